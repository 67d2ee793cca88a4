//! The router, the stamper and the gateway: verified forwarding over bursts of packets.

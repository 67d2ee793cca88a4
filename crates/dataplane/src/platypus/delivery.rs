//! Delivery to ordinary hosts: the last waypoint takes the Platypus header off (paper, section 2: the original destination is
//! put back at the last waypoint).

use std::net::IpAddr;

use wayleave_core::Prefix;
use wayleave_packet::platypus::header::Packet;
use wayleave_packet::platypus::verify::{Layout, strip};

/// Makes the stamped packet in `octets` its inner packet, at the same place, if no waypoint remains and its final destination
/// lies in `networks`. Returns the inner packet's length in octets. A packet within a packet of this format stays as it is: an
/// ordinary host could not read it.
pub(super) fn decapsulate(octets: &mut [u8], networks: &[Prefix]) -> Option<usize> {
    let packet = Packet::decode(octets).ok()?;
    if packet.current().is_some() || !contain(networks, packet.final_destination()) {
        return None;
    }
    let layout = Layout::of(&packet)?;
    let inner = strip(octets, &layout)?;
    let length = inner.len();
    // A port sends a packet from where it was received.
    octets.copy_within(inner, 0);
    Some(length)
}

fn contain(networks: &[Prefix], address: IpAddr) -> bool {
    let host = Prefix::truncated(address, if address.is_ipv4() { 32 } else { 128 });
    host.is_ok_and(|host| networks.iter().any(|network| network.afi() == host.afi() && network.contains(&host)))
}

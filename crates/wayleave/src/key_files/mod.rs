//! Files of keys, capabilities and signed lists, as commands write and roles read them.

pub mod attestation;
pub mod capability;
pub mod forwarding;
pub mod private;
pub mod revocation;
pub mod router_keys;

//! `run router` as processes with real sockets: SCION on loopback and over veth, Platypus by IP in a namespace.

mod bfd;
mod bfd_bird;
mod captured;
pub(crate) mod common;
pub(crate) mod icing;
mod icing_node;
mod platypus;
mod rates;
mod refused;
mod revoke;
mod scion;
mod stamper;

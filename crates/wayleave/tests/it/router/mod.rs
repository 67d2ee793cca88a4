//! `run router` as processes with real sockets: SCION on loopback and over veth, Platypus by IP in a namespace.

mod bfd;
mod bfd_bird;
mod billed;
mod captured;
pub(crate) mod common;
mod folded;
pub(crate) mod icing;
mod icing_node;
mod leased;
pub(crate) mod platypus;
mod pop;
mod rates;
mod refusals;
mod refused;
mod revoke;
pub(crate) mod scion;
mod scion_folder;
mod servers;
mod stamper;

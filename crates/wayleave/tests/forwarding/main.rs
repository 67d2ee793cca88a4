//! `run router` as processes with real sockets: SCION on loopback and over veth, Platypus by IP in a namespace.
#![allow(clippy::disallowed_methods, reason = "a test starts the program")]

mod bfd;
mod bfd_bird;
mod captured;
mod common;
mod icing;
mod icing_node;
mod platypus;
mod rates;
mod refused;
mod revoke;
mod scion;
mod stamper;

//! The laboratory: real routers in network namespaces, and the scenario that `wayleave-lab demo` plays with them.
//!
//! This crate touches the world. It fetches BIRD, FRR and other routers ([`routers`]), lays out an exchange in namespaces that vanish
//! with the process ([`netns`]), writes the routers' configurations and reads their tables back ([`bird`], [`frr`]),
//! and plays the demonstration, which is also the end-to-end test ([`demo`]). From a description it starts an overlay ([`overlay`]), an
//! exchange ([`exchange`]) or attesting networks ([`attested`]), as a [`laboratory`]. For tests it runs a database server ([`postgres`]).

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the laboratory starts processes and reads files, sockets and clocks"
)]

pub mod attested;
pub mod bench;
pub mod bird;
pub mod console;
pub mod demo;
pub mod exchange;
pub mod frr;
pub mod gobgp;
pub mod laboratory;
pub mod netns;
pub mod openbgpd;
pub mod overlay;
pub mod packages;
mod peer_tcp;
pub mod ports;
pub mod postgres;
pub mod process;
pub mod product;
pub mod replay;
pub mod role_process;
pub mod router_config;
pub mod routers;
pub mod sim;
pub mod sink;
pub mod speaker;
pub mod table;
pub mod tap;
pub mod trace;
pub mod transit;
pub mod wire;

//! The SCION router from outside: single packets, bursts, whole networks.

mod cases;
mod lanes;
mod limits;
mod model;
mod network;

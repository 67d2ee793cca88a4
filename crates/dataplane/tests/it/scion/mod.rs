//! The SCION router from outside: single packets, bursts, whole networks, and the model that it equals.

mod cases;
mod fixture;
mod lanes;
mod limits;
mod model;
mod network;
mod packets;
mod random;
mod scmp;

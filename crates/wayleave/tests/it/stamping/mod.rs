//! `run stamper`: ordinary hosts that know nothing of Platypus, behind it or on its machine, and waypoints that take the header
//! off again.

mod between;
mod cgroup;
mod chosen;
mod closed;
mod delegated;
mod dns;
mod epochs;
mod ipv6;
mod looked_up;
mod marked;
mod nft;
mod registered;
mod replies;
mod transit;
pub(crate) mod world;

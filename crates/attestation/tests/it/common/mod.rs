//! Worlds of ASes and nets of speakers that several tests use.

pub(crate) mod few_time;
pub(crate) mod network;
pub(crate) mod proxy_net;

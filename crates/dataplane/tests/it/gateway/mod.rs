//! Two gateways over real routers, in memory and in virtual time.

mod attacks;
mod carry;
mod failover;
mod flows;
mod paths;
mod quality;
mod sealed;
mod stream;
mod threads;
mod timed;
mod world;

//! Two gateways over real routers, in memory and in virtual time.

mod attacks;
mod carry;
mod paths;
mod world;

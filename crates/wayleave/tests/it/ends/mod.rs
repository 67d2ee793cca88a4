//! How the process of each role ends: by SIGTERM always, by a panic at once, and never since nobody reads its log.

mod log;
mod panics;
mod restore;
mod starts;
mod stops;
mod units;
mod world;

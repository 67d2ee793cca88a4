//! The tests of the packet formats, in one binary.
#![allow(clippy::disallowed_methods, reason = "tests read their counts from the environment and their data from files")]

mod icing;
mod path;
mod platypus;
mod scion;

//! The integration tests of the crate, in one binary.
#![allow(clippy::disallowed_methods, reason = "tests read the pages of the guide")]

mod guide;
mod pages;
mod ports;
mod scion_folder;
mod sections;

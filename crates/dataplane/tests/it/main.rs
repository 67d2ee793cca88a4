//! The tests of the data plane, in one binary.
#![allow(unreachable_pub, reason = "a test binary of several modules")]

mod arriving;
mod bfd;
mod common;
mod gateway;
mod icing;
mod link;
mod platypus;
mod replies;
mod scion;
mod stamper;

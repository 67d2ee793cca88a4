//! The `wayleave` binary.
fn main() {}

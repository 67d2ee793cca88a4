//! The tests of the cryptographic primitives, in one binary.

mod lanes;

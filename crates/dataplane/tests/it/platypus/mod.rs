//! The Platypus router from outside.

mod lanes;
mod model;
mod router;

//! The Platypus router from outside.

mod lanes;
mod model;
mod relay;
mod router;
mod starve;

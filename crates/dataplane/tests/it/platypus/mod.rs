//! The Platypus router from outside.

mod model;
mod router;

//! The Platypus router from outside.

mod delivery;
mod lanes;
mod model;
mod relay;
mod router;
mod sources;
mod starve;

//! The circuits of the exchange, each with a reference in plain code that shares nothing with it.

mod export_all;
mod select_best;

pub use export_all::{export_all, export_all_reference};
pub use select_best::{
    Choice, MAX_BITS, MAX_ROUTES, Output, Precedence, Route, SelectBest, ShapeError, select_best, select_best_reference,
};

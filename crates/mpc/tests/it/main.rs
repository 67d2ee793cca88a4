//! Tests of the two-party engine: circuits, shares, and messages of a hostile peer.

mod circuits;
mod common;
mod cost;
mod engine;
mod hostile;
mod shares;

//! The routing information bases of RFC 4271 section 3.2, in memory: what a peer sent ([`AdjRibIn`]), all candidates
//! and the best of them ([`LocRib`]), and what a peer was sent and is to be sent ([`AdjRibOut`]).
//!
//! Each is a sorted map, so that it is walked in prefix order and two of them compare by walking side by side.
//! Attributes are shared ([`std::sync::Arc`]); [`AttributePool`] makes equal ones one.

mod adj_in;
mod adj_out;
mod loc;
mod pool;

pub use adj_in::{AdjRibIn, Announced, LimitAction, MaxPrefixes, Route};
pub use adj_out::{AdjRibOut, Batch, RejectedRoutes};
pub use loc::{BestChange, LocRib, LocRoute, PeerId, Source, candidate};
pub use pool::AttributePool;

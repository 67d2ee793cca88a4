//! Types that every other crate uses: AS numbers, prefixes, identities, time, the [`Machine`] trait, [`Verdict`], and how messages
//! are encoded ([`wire`](mod@wire)).
//!
//! This crate is pure. It has no sockets, files, threads, clocks or randomness, and depends on no other crate of the
//! workspace.

mod asn;
mod contain;
mod declared;
mod identity;
mod inner_traffic;
mod machine;
mod prefix;
pub mod stream;
mod time;
mod verdict;
pub mod wire;

pub use asn::{Asn, ParseAsnError};
#[cfg(debug_assertions)]
pub use contain::order_contained_panics;
pub use contain::{contained, is_contained};
pub use identity::{IdentityKey, InnerPrefixes};
pub use inner_traffic::{InnerTraffic, ParseInnerTrafficError};
pub use machine::Machine;
pub use prefix::{Afi, ParsePrefixError, Prefix, PrefixError};
pub use time::{Instant, Now, UnixTime};
pub use verdict::{Verdict, VerdictKind};

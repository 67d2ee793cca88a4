//! BGP, pure: messages and their codec, attributes kept byte for byte, the session state machine, the RIBs, MRT, BMP.
//!
//! This crate does no I/O: it has no clock, socket, file or source of randomness of its own. A decoder never panics and bounds every count
//! before it allocates; the consequence of a malformed UPDATE follows RFC 7606 and is a value ([`Problem`]).

mod as4;
mod as_path;
pub mod aspa;
mod attribute;
mod attributes;
pub mod bmp;
mod check;
mod community;
pub mod decision;
mod edit;
mod message;
pub mod mrt;
mod nlri;
pub mod notification;
mod open;
pub mod origins;
mod params;
pub mod peer;
mod problem;
mod refresh;
pub mod rib;
pub mod rpki;
pub mod session;
mod update;
mod wire;

pub use as_path::{AsPath, AsPathBuf, Segment, SegmentKind};
pub use attribute::{AttributeCode, AttributeFlags, AttributeIter, Origin, RawAttribute};
pub use attributes::{Aggregator, Attributes, AttributesError, Ipv6NextHop, NextHop};
pub use community::{Community, ExtendedCommunity, LargeCommunity, ParseCommunityError};
pub use edit::AttributesEditor;
pub use message::{Frame, Message, MessageError, MessageType, frame};
pub use nlri::{Nlri, NlriIter, RawNlri};
pub use notification::Notification;
pub use open::{AddPathEntry, AddPathMode, Capability, GracefulRestartFamily, LongLivedFamily, Open};
pub use params::{AddPath, SessionParams};
pub use problem::{Action, Fault, Problem};
pub use refresh::{RefreshKind, RouteRefresh};
pub use update::{EncodeError, Update, UpdateBuilder, UpdateView, encode_updates, end_of_rib};

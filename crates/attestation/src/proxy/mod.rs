//! The attesting proxy: a pair of BGP sessions that passes for each end at the other, and what it proves of paths.
//!
//! Each end sees the other's AS number, identifier and capabilities. Of the capabilities those pass that the proxy can
//! keep: IPv4 and IPv6 unicast, four-octet AS numbers, ROUTE-REFRESH and its marks, messages of up to 65,535 octets,
//! ADD-PATH, roles and End-of-RIB, each only if both ends have it. Graceful restart is refused (End-of-RIB alone
//! passes): routes that outlive a session would outlive what was proved of them. All others are left out.

mod event;
pub mod handover;
mod machine;
pub mod offer;
mod open_rewrite;
mod open_timeout;
mod sequences;
pub mod session_pair;
mod side;
pub mod status;

pub use event::{Event, Input, MAX_OCTETS, MAX_OCTETS_EXTENDED, MOST_MEMORY, Output, PairOptions, ProxyConfig};
pub use machine::Proxy;
pub use open_rewrite::config_towards;
pub use session_pair::{EndConfig, PairConfig, PairEvent, SessionPair, Side};
pub use status::Status;

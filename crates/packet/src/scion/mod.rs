//! SCION as deployed: `header` decodes and encodes, `mint` is what control plane and senders compute, [`verify`] is what
//! a router checks.
//!
//! Sources are the SCION header reference and draft-dekater-scion-dataplane; `docs/wire/scion.md` says where every bit lies.

pub mod header;
pub mod mint;
pub mod verify;

pub use header::{
    Extension, ExtensionError, Extensions, Header, HeaderError, HopField, HostAddress, InfoField, IsdAs, Layout,
    MAX_HOPS, OneHopPath, Packet, ParseIsdAsError, Path, PathError, PathMeta, PathType, Position, Service,
    StandardPath, addresses, next_header, scmp,
};
pub use mint::{AsHop, BuildError, Direction, ForwardingKey, PathBuilder, PeerHop, Segment};
pub use verify::{Hop, Link, MacInput, hop_expiry, mac_input};

//! Today's SCION wire: common and address headers, paths of info and hop fields, extension headers, SCMP.
//!
//! After the SCION header reference and draft-dekater-scion-dataplane; the bits are in `docs/wire/scion.md`.

mod address;
mod extension;
mod header;
mod mint;
mod path;
pub mod scmp;
mod verify;

pub use address::{HostAddress, IsdAs, ParseIsdAsError, Service};
pub use extension::{Extension, ExtensionError, Extensions};
pub use header::{Header, HeaderError, Layout, Packet, PathType, addresses, next_header};
pub use mint::{AsHop, BuildError, Direction, ForwardingKey, PathBuilder, PeerHop, Segment};
pub use path::{HopField, InfoField, MAX_HOPS, OneHopPath, Path, PathError, PathMeta, Position, StandardPath};
pub use verify::{Hop, MacInput, hop_expiry, mac_input};

//! Today's SCION wire: common and address headers, paths of info and hop fields, extension headers, SCMP.
//!
//! After the SCION header reference and draft-dekater-scion-dataplane; the bits are in `docs/wire/scion.md`.

mod header;
mod mint;
mod verify;

pub use header::{
    Extension, ExtensionError, Extensions, Header, HeaderError, HopField, HostAddress, InfoField, IsdAs, Layout,
    MAX_HOPS, OneHopPath, Packet, ParseIsdAsError, Path, PathError, PathMeta, PathType, Position, Service,
    StandardPath, addresses, next_header, scmp,
};
pub use mint::{AsHop, BuildError, Direction, ForwardingKey, PathBuilder, PeerHop, Segment};
pub use verify::{Hop, MacInput, hop_expiry, mac_input};

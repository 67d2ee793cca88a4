//! Steering: which packets the kernel puts into the queue for control traffic, and by which octets it chooses the socket for
//! the others, before any header is decoded. Offsets are into the common header. Not the flow classes of `flow_class`.

use wayleave_packet::scion::next_header;

/// The octet that names the next header, and the one that names the path type.
const NEXT_HEADER: u32 = 4;
const PATH_TYPE: u32 = 8;
const ONE_HOP: u8 = 2;

/// A packet is control traffic if the octet at one of these offsets has this value: BFD and SCMP, and one-hop paths, by
/// which neighbours' beacons and BFD packets come.
pub const CONTROL: [(u32, u8); 3] =
    [(NEXT_HEADER, next_header::BFD), (NEXT_HEADER, next_header::SCMP), (PATH_TYPE, ONE_HOP)];

/// Offset and mask of the word with the flow ID.
pub const FLOW: (u32, u32) = (0, 0x000f_ffff);

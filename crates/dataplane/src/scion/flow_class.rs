//! Flow classes: what the constant fields of a header say, computed once for all packets of a burst that share them.
//!
//! Most packets of a burst have the same header length, address types and path position. For these, decoding the header
//! again would only find the same offsets, so a burst keeps a small cache of classes. A packet belongs to a class if its
//! constant fields are equal to those of the packet from which the class was made, and its length fits its own header.

use wayleave_packet::scion::verify::HopPosition;
use wayleave_packet::scion::{Layout, PathType, next_header};

/// Which bits of the common header's first twelve octets make a class: version; next header and header length; path type
/// and address types. Traffic class, flow ID, payload length and reserved bits differ between packets of one class.
const CLASS_MASK: [u64; 2] =
    [u64::from_ne_bytes([0xf0, 0, 0, 0, 0xff, 0xff, 0, 0]), u64::from_ne_bytes([0xff, 0xff, 0, 0, 0, 0, 0, 0])];
/// Octets of the common header and of the two AS numbers.
const ADDRESSES: usize = 28;
/// Octets of the path meta header.
const META_LEN: usize = 4;
/// Octets of a hop field.
const HOP_LEN: usize = 12;

/// Where a path begins, by the octet of address types and lengths.
const PATH_BEGINS: [u8; 256] = {
    let mut begins = [0; 256];
    let mut types = 0;
    while types < 256 {
        begins[types] = (ADDRESSES + 8 + 4 * (types >> 4 & 3) + 4 * (types & 3)) as u8;
        types += 1;
    }
    begins
};

/// A standard path at one of its hops.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlowClass {
    /// The common header under [`CLASS_MASK`].
    words: [u64; 2],
    meta: [u8; META_LEN],
    /// Octets of the header. With extension headers it is a length that no packet has: those must be checked in each packet,
    /// so that no packet may join the class.
    header_len: u32,
    pub(super) offsets: Offsets,
    pub(super) at: HopPosition,
    /// The hop lies within its segment, is not the path's last, and no segment has a single hop: as far as the layout tells,
    /// the packet is in transit and the lanes can take it.
    pub(super) is_transit: bool,
}

/// Where a router reads and writes in a packet of a class.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offsets {
    pub(super) path: u16,
    /// The current info field.
    pub(super) info: u16,
    /// The current hop field.
    pub(super) hop: u16,
    /// The path's first octet (`CurrINF` and `CurrHF`) once the packet has gone on by one hop.
    pub(super) next_pointer: u8,
}

impl Offsets {
    pub(super) const NONE: Self = Self { path: 0, info: 0, hop: 0, next_pointer: 0 };

    /// The hop field behind the current one.
    #[inline(always)]
    pub(super) fn next_hop(&self) -> usize {
        usize::from(self.hop) + HOP_LEN
    }
}

/// The classes of one burst, each at the index that [`class_index`] computes from a packet. Classes with one index replace
/// each other.
pub(super) type FlowClasses = [Option<FlowClass>; 8];

/// The index of a packet's class: a hash of header length and path pointer, which is what differs between classes most.
#[inline(always)]
pub(super) fn class_index(packet: &[u8]) -> usize {
    let Some(front) = packet.first_chunk::<ADDRESSES>() else { return 0 };
    let path = usize::from(PATH_BEGINS[usize::from(front[9])]);
    let pointer = packet.get(path).map_or(0, |pointer| *pointer);
    usize::from((front[5] / 3) ^ pointer) % 8
}

impl FlowClass {
    /// The class of a packet with this layout; `None` if its path is of another type.
    pub(super) fn new(packet: &[u8], layout: &Layout) -> Option<Self> {
        if layout.path_type != PathType::Standard {
            return None;
        }
        let position = layout.position;
        let at = HopPosition::new(&position);
        let [word, other] = words(packet.first_chunk()?);
        let next = position.hop + 1;
        let next_pointer = (position.segment_of(next) << 6 | next & 0x3f) as u8;
        let has_extension = matches!(layout.next_header, next_header::HOP_BY_HOP | next_header::END_TO_END);
        Some(Self {
            words: [word & CLASS_MASK[0], other & CLASS_MASK[1]],
            meta: *packet.get(layout.path..)?.first_chunk()?,
            header_len: if has_extension { u32::MAX } else { layout.header_len as u32 },
            at,
            is_transit: !(at.is_last || at.has_single_hop_segment || at.changes_segment),
            offsets: Offsets {
                path: layout.path as u16,
                info: layout.info(position.info) as u16,
                hop: layout.hop(position.hop) as u16,
                next_pointer,
            },
        })
    }

    /// Whether `packet` belongs to this class. Then [`Layout::decode`] would accept it and find the same offsets: all fields
    /// that it looks at are equal, but for the payload's length, which is compared with the packet's.
    #[inline(always)]
    pub(super) fn contains(&self, packet: &[u8]) -> bool {
        let Some(front) = packet.first_chunk::<ADDRESSES>() else { return false };
        let [word, other] = words(front);
        let payload = u64::from(u16::from_be_bytes([front[6], front[7]]));
        let path = usize::from(self.offsets.path);
        let Some(meta) = packet.get(path..path + META_LEN) else { return false };
        ((word ^ self.words[0]) & CLASS_MASK[0]) | ((other ^ self.words[1]) & CLASS_MASK[1]) == 0
            && u64::from(self.header_len) + payload == packet.len() as u64
            && meta == self.meta
    }
}

/// The common header as two words, zeros behind its twelve octets.
#[inline(always)]
fn words(front: &[u8; ADDRESSES]) -> [u64; 2] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = *front;
    [u64::from_ne_bytes([a, b, c, d, e, f, g, h]), u64::from_ne_bytes([i, j, k, l, 0, 0, 0, 0])]
}

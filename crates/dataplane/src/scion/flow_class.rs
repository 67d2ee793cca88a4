//! What a header's first octets and its pointers say, worked out once for all packets of a burst that have them in common.

use wayleave_packet::scion::{Layout, PathType, next_header};

/// Version; next header, length; path type, address types. Flow, payload length and reserved bits differ from kin to kin.
const COMMON: [u64; 2] =
    [u64::from_ne_bytes([0xf0, 0, 0, 0, 0xff, 0xff, 0, 0]), u64::from_ne_bytes([0xff, 0xff, 0, 0, 0, 0, 0, 0])];
/// Octets of common header and AS numbers, of the path meta header, of a hop field.
const ADDRESSES: usize = 28;
const META_LEN: usize = 4;
const HOP_LEN: usize = 12;

/// Where a path begins, by the octet of address types.
const PATHS: [u8; 256] = {
    let mut paths = [0; 256];
    let mut types = 0;
    while types < 256 {
        paths[types] = (ADDRESSES + 8 + 4 * (types >> 4 & 3) + 4 * (types & 3)) as u8;
        types += 1;
    }
    paths
};

/// A standard path at one hop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kin {
    words: [u64; 2],
    meta: [u8; META_LEN],
    /// Octets of the header. Others may be laid out in the same way, but not behind an extension header, which must be
    /// looked at in each: this is then more than any packet has.
    header_len: u32,
    pub(super) offsets: Offsets,
    /// Whether the current hop is the first, or the last one.
    pub(super) first: bool,
    pub(super) last: bool,
    /// Whether a segment has a single hop.
    pub(super) single: bool,
    /// Whether there are two segments, and the hop is one of the two where they join.
    pub(super) two: bool,
    pub(super) joint: bool,
    /// Whether the next hop is of another segment.
    pub(super) enters: bool,
    /// Hop fields behind the current one.
    pub(super) left: u8,
    /// Whether the hop is one within its segment, with no peering link as far as the layout tells, and not the path's last.
    pub(super) is_plain: bool,
}

/// What a router reads and rewrites in such a packet: where the path, the current info field and the current hop field
/// begin, and the pointer's next octet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offsets {
    pub(super) path: u16,
    pub(super) info: u16,
    pub(super) field: u16,
    pub(super) pointer: u8,
}

impl Offsets {
    pub(super) const NONE: Self = Self { path: 0, info: 0, field: 0, pointer: 0 };
}

/// The kins of one burst, each at a place that follows from a header's length and pointer.
pub(super) type Kins = [Option<Kin>; 8];

/// Where the kin of `packet` is, if it is there.
#[inline(always)]
pub(super) fn slot_of(packet: &[u8]) -> usize {
    let Some(front) = packet.first_chunk::<ADDRESSES>() else { return 0 };
    let path = usize::from(PATHS[usize::from(front[9])]);
    let pointer = packet.get(path).map_or(0, |pointer| *pointer);
    usize::from((front[5] / 3) ^ pointer) % 8
}

impl Kin {
    /// Of a packet with this layout; `None` if its path is of another type.
    pub(super) fn of(packet: &[u8], layout: &Layout) -> Option<Self> {
        if layout.path_type != PathType::Standard {
            return None;
        }
        let at = layout.position;
        let (second, third) = (at.second_end - at.first_end, at.hops - at.second_end);
        let segment = at.segment_of(at.hop + 1);
        let [word, other] = words(packet.first_chunk()?);
        let (last, single) = (at.hop + 1 == at.hops, at.first_end == 1 || second == 1 || third == 1);
        let enters = segment != at.info && !last;
        let pointer = (segment << 6 | (at.hop + 1) & 0x3f) as u8;
        let has_extension = matches!(layout.next_header, next_header::HOP_BY_HOP | next_header::END_TO_END);
        Some(Self {
            words: [word & COMMON[0], other & COMMON[1]],
            meta: *packet.get(layout.path..)?.first_chunk()?,
            header_len: if has_extension { u32::MAX } else { layout.header_len as u32 },
            first: at.hop == 0,
            last,
            single,
            two: at.segments == 2,
            joint: at.hop + 1 == at.first_end || at.hop == at.first_end,
            enters,
            left: (at.hops - at.hop - 1) as u8,
            is_plain: !(last || single || enters),
            offsets: Offsets {
                path: layout.path as u16,
                info: layout.info(at.info) as u16,
                field: layout.hop(at.hop) as u16,
                pointer,
            },
        })
    }

    /// Whether `packet` is laid out in the same way, and as long as it says.
    #[inline(always)]
    pub(super) fn holds(&self, packet: &[u8]) -> bool {
        let Some(front) = packet.first_chunk::<ADDRESSES>() else { return false };
        let [word, other] = words(front);
        let payload = u64::from(u16::from_be_bytes([front[6], front[7]]));
        let path = usize::from(self.offsets.path);
        let Some(meta) = packet.get(path..path + META_LEN) else { return false };
        ((word ^ self.words[0]) & COMMON[0]) | ((other ^ self.words[1]) & COMMON[1]) == 0
            && u64::from(self.header_len) + payload == packet.len() as u64
            && meta == self.meta
    }

    /// Where the current info field begins, the current hop field, and the next one.
    #[inline(always)]
    pub(super) fn fields(&self) -> [usize; 3] {
        let (info, field) = (self.offsets.info.into(), usize::from(self.offsets.field));
        [info, field, field + HOP_LEN]
    }
}

/// The common header, zeros behind it.
#[inline(always)]
fn words(front: &[u8; ADDRESSES]) -> [u64; 2] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = *front;
    [u64::from_ne_bytes([a, b, c, d, e, f, g, h]), u64::from_ne_bytes([i, j, k, l, 0, 0, 0, 0])]
}

//! What a header's first octets and its pointers say, worked out once for all packets of a burst that have them in common.

use wayleave_packet::scion::{Layout, PathType, next_header};

/// Version; next header, length; path type, address types. Flow, payload length and reserved bits differ from kin to kin.
const COMMON: [u64; 2] =
    [u64::from_ne_bytes([0xf0, 0, 0, 0, 0xff, 0xff, 0, 0]), u64::from_ne_bytes([0xff, 0xff, 0, 0, 0, 0, 0, 0])];
/// Octets of common header and AS numbers, of the path meta header, of a hop field.
const ADDRESSES: usize = 28;
const META_LEN: usize = 4;
const HOP_LEN: usize = 12;

/// A standard path at one hop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kin {
    /// Others may be laid out in the same way: not behind an extension header, which must be looked at in each.
    is_shared: bool,
    words: [u64; 2],
    meta: [u8; META_LEN],
    header_len: usize,
    /// Where the path, the current info field, and the current hop field begin; that of the next hop follows it.
    pub(super) path: usize,
    pub(super) info: usize,
    pub(super) field: usize,
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
    /// The pointer's octet when it has gone on by one hop.
    pub(super) pointer: u8,
    /// Hop fields behind the current one.
    pub(super) left: u8,
}

/// The kins of one burst, each at a place that follows from a header's length and pointer.
pub(super) type Kins = [Option<Kin>; 8];

/// Where the kin of `packet` is, if it is there.
#[inline(always)]
pub(super) fn place(packet: &[u8]) -> usize {
    let Some(front) = packet.first_chunk::<ADDRESSES>() else { return 0 };
    let types = usize::from(front[9]);
    let path = ADDRESSES + 8 + 4 * (types >> 4 & 3) + 4 * (types & 3);
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
        Some(Self {
            is_shared: !matches!(layout.next_header, next_header::HOP_BY_HOP | next_header::END_TO_END),
            words: [word & COMMON[0], other & COMMON[1]],
            meta: *packet.get(layout.path..)?.first_chunk()?,
            header_len: layout.header_len,
            path: layout.path,
            info: layout.info(at.info),
            field: layout.hop(at.hop),
            first: at.hop == 0,
            last: at.hop + 1 == at.hops,
            single: at.first_end == 1 || second == 1 || third == 1,
            two: at.segments == 2,
            joint: at.hop + 1 == at.first_end || at.hop == at.first_end,
            enters: segment != at.info && at.hop + 1 < at.hops,
            pointer: (segment << 6 | (at.hop + 1) & 0x3f) as u8,
            left: (at.hops - at.hop - 1) as u8,
        })
    }

    /// Whether `packet` is laid out in the same way, and as long as it says.
    #[inline(always)]
    pub(super) fn holds(&self, packet: &[u8]) -> bool {
        let Some(front) = packet.first_chunk::<ADDRESSES>() else { return false };
        let [word, other] = words(front);
        let payload = usize::from(u16::from_be_bytes([front[6], front[7]]));
        let meta = packet.get(self.path..).and_then(<[u8]>::first_chunk::<META_LEN>);
        ((word ^ self.words[0]) & COMMON[0]) | ((other ^ self.words[1]) & COMMON[1]) == 0
            && self.header_len + payload == packet.len()
            && meta == Some(&self.meta)
            && self.is_shared
    }

    /// Where the next hop field begins.
    #[inline(always)]
    pub(super) fn next_field(&self) -> usize {
        self.field + HOP_LEN
    }
}

/// The common header, zeros behind it.
#[inline(always)]
fn words(front: &[u8; ADDRESSES]) -> [u64; 2] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = *front;
    [u64::from_ne_bytes([a, b, c, d, e, f, g, h]), u64::from_ne_bytes([i, j, k, l, 0, 0, 0, 0])]
}

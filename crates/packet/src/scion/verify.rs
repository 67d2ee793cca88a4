//! The rules of SCION for one hop of a packet: a named check for each, in the order in which a router applies them.
//!
//! This is the specification in code: scalar, total, and free of a router's state. `docs/wire/scion.md` states the same
//! rules in words; their source is draft-dekater-scion-dataplane. What depends on a configuration (who owns an interface,
//! whether a link is up) is decided by the router.

use wayleave_core::UnixTime;

use super::header::{Extensions, HeaderError, HopField, InfoField, IsdAs, Layout, PathError, Position, next_header};

/// How far a segment's timestamp may lie in the future, in microseconds: the clocks of ASes differ. One unit of `ExpTime`.
pub const MAX_CLOCK_SKEW: u64 = 337_500_000;

/// The rule that a packet breaks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// Lengths, version or counts of the header.
    Malformed,
    /// The payload's length is not what the header says.
    PacketSize,
    /// Pointers, segment lengths or flags of the path do not fit together.
    MalformedPath,
    /// An extension header is malformed.
    Extension,
    /// A path type that is not routed.
    PathType,
    /// The packet came in by another interface than its hop field names.
    WrongIngress,
    /// A packet in transit that does not come from the router by which it entered the AS.
    TransitSource,
    /// A packet with this source AS cannot be here.
    SourceAddress,
    /// A packet with this destination AS cannot be here.
    DestinationAddress,
    /// The hop field has expired.
    Expired,
    /// The segment's timestamp lies in the future.
    Future,
    /// The MAC is wrong.
    BadMac,
    /// These two links may not be used one after the other within a segment.
    Direction,
    /// These two segments may not be joined here.
    SegmentChange,
    /// The path ends before its destination.
    PathEnd,
}

impl From<HeaderError> for Reason {
    fn from(error: HeaderError) -> Self {
        match error {
            HeaderError::PayloadLength { .. } => Self::PacketSize,
            HeaderError::Path(PathError::UnknownType(_)) => Self::PathType,
            HeaderError::Path(PathError::Length { .. }) => Self::Malformed,
            HeaderError::Path(_) => Self::MalformedPath,
            _ => Self::Malformed,
        }
    }
}

/// What a link is to the AS that has it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Link {
    /// Between core ASes.
    Core,
    /// The neighbour is the AS's provider.
    Parent,
    /// The neighbour is the AS's customer.
    Child,
    /// The neighbour is a peer.
    Peer,
}

/// Where the current hop lies in its path, by the path's pointers and segment lengths.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HopPosition {
    /// It is the path's first hop.
    pub is_first: bool,
    /// It is the path's last hop.
    pub is_last: bool,
    /// Some segment of the path has a single hop.
    pub has_single_hop_segment: bool,
    /// The path has two segments.
    pub has_two_segments: bool,
    /// It is the last hop of the first segment or the first hop of the second: where a peering link may join them.
    pub is_at_joint: bool,
    /// The next hop belongs to another segment.
    pub changes_segment: bool,
    /// Hop fields behind the current one.
    pub hops_left: u8,
}

impl HopPosition {
    /// From checked pointers and segment lengths.
    #[must_use]
    pub fn new(at: &Position) -> Self {
        let (second, third) = (at.second_end - at.first_end, at.hops - at.second_end);
        let is_last = at.hop + 1 == at.hops;
        Self {
            is_first: at.hop == 0,
            is_last,
            has_single_hop_segment: at.first_end == 1 || second == 1 || third == 1,
            has_two_segments: at.segments == 2,
            is_at_joint: at.hop + 1 == at.first_end || at.hop == at.first_end,
            changes_segment: !is_last && at.segment_of(at.hop + 1) != at.info,
            // A path has at most 64 hop fields.
            hops_left: (at.hops - at.hop - 1) as u8,
        }
    }
}

/// The time in the units of hop fields.
#[derive(Clone, Copy, Debug)]
pub struct HopTime {
    /// Half seconds of Unix time: a unit of `ExpTime` (337.5 s) is 675 of them.
    half_seconds: u64,
    /// The latest second at which a segment may have begun.
    latest_begin: u64,
}

impl HopTime {
    /// Of the Unix time `now`.
    #[must_use]
    pub fn new(now: UnixTime) -> Self {
        Self { half_seconds: now.0 / 500_000, latest_begin: now.0.saturating_add(MAX_CLOCK_SKEW) / 1_000_000 }
    }
}

/// The extension headers behind the SCION header, if `next_header` says that there are any, can be walked to their end.
#[inline(always)]
pub fn check_extensions(next_header: u8, payload: &[u8]) -> Result<(), Reason> {
    let has_extensions = matches!(next_header, next_header::HOP_BY_HOP | next_header::END_TO_END);
    if has_extensions && Extensions::decode(next_header, payload).is_err() {
        return Err(Reason::Extension);
    }
    Ok(())
}

/// Returns whether the current hop is one of the two at a peering link. With the P flag the path has two segments;
/// without it a segment has at least two hops, since one of a single hop would be left as soon as it is entered.
#[inline(always)]
pub fn check_peering(hop: &Hop, at: &HopPosition) -> Result<bool, Reason> {
    match hop.peering() {
        true if !at.has_two_segments => Err(Reason::MalformedPath),
        true => Ok(at.is_at_joint),
        false if at.has_single_hop_segment => Err(Reason::MalformedPath),
        false => Ok(false),
    }
}

/// A packet from a neighbour came in by the interface that its hop field names; zero names none.
#[inline(always)]
pub fn check_ingress(hop: &Hop, interface: u16) -> Result<(), Reason> {
    if interface != 0 && hop.ingress() == interface { Ok(()) } else { Err(Reason::WrongIngress) }
}

/// The interface by which a packet that another router of this AS sent has entered the AS. Where the segment changed at
/// that router, the pointer is already in the next segment, and the hop before it tells. At a peering link each of the two
/// hops has its own interfaces.
#[cold]
#[must_use]
pub fn entry_interface(packet: &[u8], hop: &Hop, is_peering: bool) -> u16 {
    if is_peering {
        return hop.ingress();
    }
    let Ok(layout) = Layout::decode(packet) else { return 0 };
    let at = layout.position;
    let before = at.hop.saturating_sub(1);
    let hop = if at.segment_of(before) == at.info { at.hop } else { before };
    Hop::read(packet, layout.info(at.segment_of(hop)), layout.hop(hop)).ingress()
}

/// Source and destination AS of a packet from a neighbour, in the AS `here`: it does not come from this AS, and it is for
/// this AS exactly at the path's last hop. Returns whether it is.
#[inline(always)]
pub fn check_addresses_from_neighbor(at: &HopPosition, here: IsdAs, dst: IsdAs, src: IsdAs) -> Result<bool, Reason> {
    if src == here {
        return Err(Reason::SourceAddress);
    }
    if at.is_last == (dst == here) { Ok(at.is_last) } else { Err(Reason::DestinationAddress) }
}

/// Source and destination AS of a packet from within the AS `here`: at the path's first hop the source is this AS, and the
/// destination is another.
#[inline(always)]
pub fn check_addresses_from_within(at: &HopPosition, here: IsdAs, dst: IsdAs, src: IsdAs) -> Result<(), Reason> {
    if at.is_first && src != here {
        return Err(Reason::SourceAddress);
    }
    if dst == here { Err(Reason::DestinationAddress) } else { Ok(()) }
}

/// The hop field has not ended: it lasts `(1 + ExpTime)` times 337.5 s from the segment's timestamp on.
#[inline(always)]
pub fn check_expiry(hop: &Hop, time: &HopTime) -> Result<(), Reason> {
    let end = 2 * u64::from(hop.timestamp()) + 675 * (u64::from(hop.exp_time()) + 1);
    if end <= time.half_seconds { Err(Reason::Expired) } else { Ok(()) }
}

/// The segment has begun, give or take [`MAX_CLOCK_SKEW`].
#[inline(always)]
pub fn check_timestamp(hop: &Hop, time: &HopTime) -> Result<(), Reason> {
    if u64::from(hop.timestamp()) > time.latest_begin { Err(Reason::Future) } else { Ok(()) }
}

/// The hop with the accumulator under which its MAC was minted. Against construction, the router where a packet enters the
/// AS takes this hop's MAC out of the accumulator before it verifies; hops at a peering link are not part of the chain.
#[inline(always)]
#[must_use]
pub fn hop_as_minted(hop: Hop, from_neighbor: bool, is_peering: bool) -> Hop {
    if from_neighbor && !hop.construction() && !is_peering { hop.with_seg_id(hop.next_seg_id()) } else { hop }
}

/// The bits in which a hop field's MAC differs from the `computed` one, both in the low 48 bits. All bits are compared at
/// once, so that the time does not depend on how many are right.
#[inline(always)]
#[must_use]
pub fn mac_difference(hop: &Hop, computed: u64) -> u64 {
    hop.mac() ^ computed
}

/// The hop field has the MAC that was `computed` of [`Hop::mac_input`].
#[inline(always)]
pub fn check_mac(hop: &Hop, computed: u64) -> Result<(), Reason> {
    if mac_difference(hop, computed) == 0 { Ok(()) } else { Err(Reason::BadMac) }
}

/// Within a segment links follow each other without a valley and without a U-turn: core to core, parent to child, child
/// to parent or peer, peer to child.
#[inline(always)]
pub fn check_direction(from: Link, to: Link) -> Result<(), Reason> {
    use Link::{Child, Core, Parent, Peer};
    match (from, to) {
        (Core, Core) | (Parent | Peer, Child) | (Child, Parent | Peer) => Ok(()),
        _ => Err(Reason::Direction),
    }
}

/// Segments change only at the core, or at an AS that an up and a down segment have in common: core to child, child to
/// core, child to child.
#[inline(always)]
pub fn check_segment_change(from: Link, to: Link) -> Result<(), Reason> {
    use Link::{Child, Core};
    match (from, to) {
        (Core, Child) | (Child, Core | Child) => Ok(()),
        _ => Err(Reason::SegmentChange),
    }
}

/// A packet that leaves the AS has a hop field for the next AS: behind the current one, or behind the first one of the
/// segment to which it changes here.
#[inline(always)]
pub fn check_path_end(hops_left: u8, changes_segment: bool) -> Result<(), Reason> {
    if hops_left > u8::from(changes_segment) { Ok(()) } else { Err(Reason::PathEnd) }
}

/// The accumulator with which a packet leaves the AS. In construction direction the router where it leaves puts this hop's
/// MAC in; hops at a peering link are not part of the chain.
#[inline(always)]
#[must_use]
pub fn seg_id_at_egress(hop: &Hop, is_peering: bool) -> u16 {
    if hop.construction() && !is_peering { hop.next_seg_id() } else { hop.seg_id() }
}

/// The block under a hop field's MAC.
pub type MacInput = [u8; 16];

/// The 16 octets under the MAC: `0:16 | beta:16 | timestamp:32 | 0:8 | ExpTime:8 | ConsIngress:16 | ConsEgress:16 | 0:16`.
#[inline]
#[must_use]
pub fn mac_input(beta: u16, timestamp: u32, exp_time: u8, cons_ingress: u16, cons_egress: u16) -> MacInput {
    let high = u64::from(beta) << 32 | u64::from(timestamp);
    let low = u64::from(exp_time) << 48 | u64::from(cons_ingress) << 32 | u64::from(cons_egress) << 16;
    (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
}

/// When a hop field minted at `timestamp` (Unix seconds) with `exp_time` ends: `(1 + ExpTime)` times 337.5 s later.
#[inline]
#[must_use]
pub fn hop_expiry(timestamp: u32, exp_time: u8) -> UnixTime {
    UnixTime(u64::from(timestamp) * 1_000_000 + (1 + u64::from(exp_time)) * 337_500_000)
}

/// A hop field with the info field of its segment, as the words that lie in the packet. Ingress and egress are in the
/// direction of travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hop {
    /// `flags 8 | reserved 8 | SegID 16 | timestamp 32`.
    info: u64,
    /// `flags 8 | ExpTime 8 | ConsIngress 16 | ConsEgress 16 | MAC 16`.
    field: u64,
    /// The MAC's other four octets.
    mac: u32,
}

impl Hop {
    /// From both fields.
    #[must_use]
    pub fn new(info: &InfoField, field: &HopField) -> Self {
        Self::from_octets(&info.octets(), &field.octets())
    }

    /// From the packet's octets, in which the info field begins at `info` and the hop field at `field`.
    ///
    /// # Panics
    /// If the packet is too short for them: the header's lengths must have been checked.
    #[inline]
    #[must_use]
    pub fn read(packet: &[u8], info: usize, field: usize) -> Self {
        let info = packet[info..info + 8].first_chunk().expect("eight octets");
        Self::from_octets(info, packet[field..field + 12].first_chunk().expect("twelve octets"))
    }

    /// From the octets of both fields.
    #[inline(always)]
    #[must_use]
    pub fn from_octets(info: &[u8; 8], field: &[u8; 12]) -> Self {
        let [f0, f1, f2, f3, f4, f5, f6, f7, m0, m1, m2, m3] = *field;
        Self {
            info: u64::from_be_bytes(*info),
            field: u64::from_be_bytes([f0, f1, f2, f3, f4, f5, f6, f7]),
            mac: u32::from_be_bytes([m0, m1, m2, m3]),
        }
    }

    /// From the info field, the first eight octets of the hop field, and its last four, as numbers.
    #[inline(always)]
    #[must_use]
    pub fn from_words(info: u64, field: u64, mac: u32) -> Self {
        Self { info, field, mac }
    }

    /// `C`: the packet travels in the direction in which the segment was constructed.
    #[inline(always)]
    #[must_use]
    pub fn construction(&self) -> bool {
        self.info >> 56 & 1 != 0
    }

    /// `P`: the segment joins the other one over a peering link.
    #[inline(always)]
    #[must_use]
    pub fn peering(&self) -> bool {
        self.info >> 56 & 2 != 0
    }

    /// The router where the packet enters the AS shall look at it (router alert).
    #[inline(always)]
    #[must_use]
    pub fn ingress_alert(&self) -> bool {
        self.field >> 56 & u64::from(self.ingress_alert_flag()) != 0
    }

    /// The router where the packet leaves the AS shall look at it (router alert).
    #[inline(always)]
    #[must_use]
    pub fn egress_alert(&self) -> bool {
        self.field >> 56 & u64::from(self.egress_alert_flag()) != 0
    }

    /// The flag of [`Hop::ingress_alert`] in the hop field's first octet.
    #[inline(always)]
    #[must_use]
    pub fn ingress_alert_flag(&self) -> u8 {
        if self.construction() { 2 } else { 1 }
    }

    /// The flag of [`Hop::egress_alert`] in the hop field's first octet.
    #[inline(always)]
    #[must_use]
    pub fn egress_alert_flag(&self) -> u8 {
        if self.construction() { 1 } else { 2 }
    }

    /// Either router alert is set.
    #[inline(always)]
    #[must_use]
    pub fn has_alert(&self) -> bool {
        self.field >> 56 & 3 != 0
    }

    /// `SegID`, the accumulator of the MACs so far.
    #[inline(always)]
    #[must_use]
    pub fn seg_id(&self) -> u16 {
        (self.info >> 32) as u16
    }

    /// The Unix second at which the segment was begun.
    #[inline(always)]
    #[must_use]
    pub fn timestamp(&self) -> u32 {
        self.info as u32
    }

    /// Lifetime in units of 337.5 s, less one.
    #[inline(always)]
    #[must_use]
    pub fn exp_time(&self) -> u8 {
        (self.field >> 48) as u8
    }

    /// The interface by which the packet enters this AS; zero if it starts here.
    #[inline(always)]
    #[must_use]
    pub fn ingress(&self) -> u16 {
        (self.field >> if self.construction() { 32 } else { 16 }) as u16
    }

    /// The interface by which the packet leaves this AS; zero if it ends here.
    #[inline(always)]
    #[must_use]
    pub fn egress(&self) -> u16 {
        (self.field >> if self.construction() { 16 } else { 32 }) as u16
    }

    /// The MAC, in the low 48 bits.
    #[inline(always)]
    #[must_use]
    pub fn mac(&self) -> u64 {
        (self.field & 0xffff) << 32 | u64::from(self.mac)
    }

    /// The MAC that a computed block begins with, in the low 48 bits; `half` is the block's first half as it lies in memory.
    #[inline(always)]
    #[must_use]
    pub fn computed_mac(half: u64) -> u64 {
        u64::from_be(half) >> 16
    }

    /// Both halves of [`mac_input`](Self::mac_input) as they lie in memory: the info field without flags, and the hop field
    /// without flags and MAC, are the two halves of the input already.
    #[inline(always)]
    #[must_use]
    pub fn mac_input_halves(&self) -> [u64; 2] {
        [self.info & 0xffff_ffff_ffff, self.field & 0x00ff_ffff_ffff_0000].map(u64::to_be)
    }

    /// The block under the MAC, for the accumulator that this hop has: [`mac_input`] of the fields.
    #[inline(always)]
    #[must_use]
    pub fn mac_input(&self) -> MacInput {
        let [high, low] = self.mac_input_halves();
        (u128::from(u64::from_be(high)) << 64 | u128::from(u64::from_be(low))).to_be_bytes()
    }

    /// The accumulator with this hop's MAC put in; putting it in twice takes it out again.
    #[inline(always)]
    #[must_use]
    pub fn next_seg_id(&self) -> u16 {
        self.seg_id() ^ self.field as u16
    }

    /// The same hop under another accumulator.
    #[inline(always)]
    #[must_use]
    pub fn with_seg_id(self, seg_id: u16) -> Self {
        Self { info: self.info & !(0xffff << 32) | u64::from(seg_id) << 32, ..self }
    }
}

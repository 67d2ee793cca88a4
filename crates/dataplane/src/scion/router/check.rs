//! The checks before the MAC, in their order: ingress, addresses, expiry; and the blocks for the MAC.

use wayleave_core::{Instant, Now};
use wayleave_packet::scion::{Extensions, HeaderError, Hop, Layout, PathError, addresses};

use super::super::config::Owner;
use super::super::flow_class::Kin;
use super::{Router, SKEW, Slot, Tags};
use crate::counters::Reason;
use crate::frame::{Frame, Ingress};

/// A packet that has passed all checks but that of its MAC, with what the router needs to rewrite it.
#[derive(Clone, Copy, Default)]
pub(super) struct Pending {
    /// The current hop, its accumulator as it was verified.
    pub(super) hop: Hop,
    /// Where the path and its current info field begin.
    pub(super) path: u32,
    pub(super) info: u32,
    pub(super) slot: Slot,
    pub(super) next_slot: Slot,
    /// The pointer's octet when it has gone on by one hop.
    pub(super) pointer: u8,
    /// Hop fields behind the current one.
    pub(super) left: u8,
    /// The first hop of the next segment counts too, since the packet changes to it here.
    pub(super) changes: bool,
    /// The hop joins two segments over a peering link.
    pub(super) peering: bool,
    /// The packet ends in this AS.
    pub(super) local: bool,
}

/// The time as hop fields have it.
#[derive(Clone, Copy)]
pub(in crate::scion) struct Time {
    /// Half seconds of Unix time: a unit of `ExpTime` is 675 of them.
    half_seconds: u64,
    /// The latest second at which a segment may have begun.
    latest: u64,
    pub(super) instant: Instant,
}

impl Time {
    pub(super) fn new(now: Now) -> Self {
        let unix = now.unix.0;
        Self { half_seconds: unix / 500_000, latest: unix.saturating_add(SKEW) / 1_000_000, instant: now.instant }
    }

    /// The hop field has begun, give or take the clocks, and not ended.
    #[inline(always)]
    pub(super) fn check(&self, hop: &Hop) -> Result<(), Reason> {
        let end = 2 * u64::from(hop.timestamp()) + 675 * (u64::from(hop.exp_time()) + 1);
        if end <= self.half_seconds {
            return Err(Reason::Expired);
        }
        if u64::from(hop.timestamp()) > self.latest { Err(Reason::Future) } else { Ok(()) }
    }

    /// Whether [`check`](Self::check) finds nothing wrong.
    #[inline(always)]
    pub(in crate::scion) fn holds(&self, hop: &Hop) -> bool {
        self.check(hop).is_ok()
    }
}

/// Why a header that cannot be decoded is refused.
pub(super) fn reason(error: HeaderError) -> Reason {
    match error {
        HeaderError::PayloadLength { .. } => Reason::PacketSize,
        HeaderError::Path(PathError::UnknownType(_)) => Reason::PathType,
        HeaderError::Path(PathError::Length { .. }) => Reason::Malformed,
        HeaderError::Path(_) => Reason::MalformedPath,
        _ => Reason::Malformed,
    }
}

/// Whether the extension headers can be walked to their end.
#[cold]
pub(super) fn extensions_are_sound(next_header: u8, payload: &[u8]) -> bool {
    Extensions::decode(next_header, payload).is_ok()
}

/// The hop whose fields begin at `info` and `field`.
#[inline]
pub(super) fn read(packet: &[u8], info: usize, field: usize) -> Hop {
    let info = packet[info..info + 8].first_chunk().expect("eight octets");
    Hop::from_octets(info, packet[field..field + 12].first_chunk().expect("twelve octets"))
}

impl Router {
    /// The checks of a standard path before the MAC.
    #[inline(always)]
    pub(super) fn check_hops(
        &self,
        frame: &Frame<'_>,
        kin: &Kin,
        time: &Time,
        tags: &mut Tags,
        pending: &mut Pending,
    ) -> Result<(), Reason> {
        let [info, field, next_field] = kin.fields();
        let mut hop = read(frame.octets, info, field);
        let peering = peering(&hop, kin)?;
        self.check_ingress(frame, kin, &hop, peering)?;
        let local = self.check_addresses(frame, kin)?;
        time.check(&hop)?;
        // Against construction, the router where a packet comes in takes this hop's MAC out of the accumulator first.
        if matches!(frame.ingress, Ingress::External(_)) && !hop.construction() && !peering {
            hop = hop.with_seg_id(hop.next_seg_id());
        }
        pending.changes = kin.enters && !local && !peering;
        if pending.changes {
            let next = read(frame.octets, info + 8, next_field);
            time.check(&next)?;
            pending.next_slot = tags.push(self.keys.newer(next.timestamp()), next.mac_input());
        }
        pending.slot = tags.push(self.keys.newer(hop.timestamp()), hop.mac_input());
        pending.hop = hop;
        pending.path = kin.offsets.path.into();
        pending.info = kin.offsets.info.into();
        pending.pointer = kin.offsets.pointer;
        pending.left = kin.left;
        pending.peering = peering;
        pending.local = local;
        Ok(())
    }

    /// A packet comes in where its hop field says, from the sibling that owns that way in, or from a host at its first hop.
    #[inline(always)]
    fn check_ingress(&self, frame: &Frame<'_>, kin: &Kin, hop: &Hop, peering: bool) -> Result<(), Reason> {
        match frame.ingress {
            Ingress::External(interface) if interface != 0 && hop.ingress() == interface => Ok(()),
            Ingress::External(_) => Err(Reason::WrongIngress),
            Ingress::Internal | Ingress::Sibling(_) if kin.first => Ok(()),
            Ingress::Internal => Err(Reason::TransitSource),
            Ingress::Sibling(sibling) => {
                let came_in = if peering { hop.ingress() } else { came_in(frame.octets) };
                let owner = self.port(came_in).map(|port| port.owner);
                if owner == Some(Owner::Sibling(sibling)) { Ok(()) } else { Err(Reason::TransitSource) }
            }
        }
    }

    /// Whether the packet ends here; its source and destination must be where they can be.
    #[inline(always)]
    fn check_addresses(&self, frame: &Frame<'_>, kin: &Kin) -> Result<bool, Reason> {
        let (dst, src) = addresses(frame.octets);
        let (from_here, to_here) = (src == self.isd_as, dst == self.isd_as);
        if let Ingress::External(_) = frame.ingress {
            if from_here {
                return Err(Reason::SourceAddress);
            }
            return if kin.last == to_here { Ok(to_here) } else { Err(Reason::DestinationAddress) };
        }
        if kin.first && !from_here {
            return Err(Reason::SourceAddress);
        }
        if to_here { Err(Reason::DestinationAddress) } else { Ok(false) }
    }
}

/// Whether the current hop is one of the two that join segments over a peering link. A segment without such a link has at
/// least two hops: one of a single hop would be left as soon as it is entered.
#[inline(always)]
fn peering(hop: &Hop, kin: &Kin) -> Result<bool, Reason> {
    if !hop.peering() {
        return if kin.single { Err(Reason::MalformedPath) } else { Ok(false) };
    }
    if kin.two { Ok(kin.joint) } else { Err(Reason::MalformedPath) }
}

/// The interface by which a packet in transit has come into the AS: that of the hop before, if the segment changed here.
#[cold]
fn came_in(packet: &[u8]) -> u16 {
    let Ok(layout) = Layout::decode(packet) else { return 0 };
    let at = layout.position;
    let before = at.hop.saturating_sub(1);
    let hop = if at.segment_of(before) == at.info { at.hop } else { before };
    read(packet, layout.info(at.segment_of(hop)), layout.hop(hop)).ingress()
}

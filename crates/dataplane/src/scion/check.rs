//! The checks before the MAC, in their order: ingress, addresses, expiry; and the blocks for the MAC.

use wayleave_core::Now;
use wayleave_packet::scion::{
    Extensions, HeaderError, Hop, HopField, InfoField, Layout, PathError, PathMeta, hop_expiry,
};

use super::config::Owner;
use super::{Router, SKEW, Slot, Tags};
use crate::counters::Reason;
use crate::frame::{Frame, Ingress};

/// A packet that has passed all checks but that of its MAC, with what the router needs to rewrite it.
#[derive(Clone, Copy)]
pub(super) struct Pending {
    /// Where the path and its current info field begin.
    pub(super) path: u16,
    pub(super) info: u16,
    pub(super) hop_count: u8,
    pub(super) meta: PathMeta,
    /// The current hop, its accumulator as it was verified.
    pub(super) hop: Hop,
    pub(super) slot: Slot,
    /// The first hop of the next segment, if the packet changes to it here.
    pub(super) next: Option<(Hop, Slot)>,
    /// The hop joins two segments over a peering link.
    pub(super) peering: bool,
    /// The packet ends in this AS.
    pub(super) local: bool,
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
pub(super) fn extensions_are_sound(layout: &Layout, packet: &[u8]) -> bool {
    Extensions::decode(layout.next_header, &packet[layout.header_len..]).is_ok()
}

#[inline]
pub(super) fn read_info(packet: &[u8], at: usize) -> InfoField {
    InfoField::read(packet[at..at + 8].first_chunk().expect("eight octets"))
}

#[inline]
pub(super) fn read_hop(packet: &[u8], at: usize) -> HopField {
    HopField::read(packet[at..at + 12].first_chunk().expect("twelve octets"))
}

impl Router {
    /// The checks of a standard path before the MAC.
    #[inline]
    pub(super) fn check_hops(
        &self,
        frame: &Frame<'_>,
        layout: &Layout,
        now: Now,
        tags: &mut Tags,
    ) -> Result<Pending, Reason> {
        let meta = layout.meta;
        let current = usize::from(meta.current_hop);
        let info_at = layout.info(meta.current_info.into());
        let info = read_info(frame.octets, info_at);
        let field = read_hop(frame.octets, layout.hop(current));
        let mut hop = Hop { info, field };
        let peering = peering(info, meta)?;
        self.check_ingress(frame, layout, &hop, peering)?;
        let local = self.check_addresses(frame, layout)?;
        check_time(&hop, now)?;
        // Against construction, the router where a packet comes in takes this hop's MAC out of the accumulator first.
        if matches!(frame.ingress, Ingress::External(_)) && !info.construction && !peering {
            hop.info.seg_id = hop.next_seg_id();
        }
        let changes = !local && !peering && current + 1 < layout.hops && {
            meta.segment_of(current + 1) != usize::from(meta.current_info)
        };
        let next = if changes { Some(self.next_segment(frame, layout, now, tags)?) } else { None };
        let slot = tags.push(self.keys.at(info.timestamp), hop.mac_input());
        Ok(Pending {
            path: layout.path as u16,
            info: info_at as u16,
            hop_count: layout.hops as u8,
            meta,
            hop,
            slot,
            next,
            peering,
            local,
        })
    }

    /// The first hop of the next segment, whose MAC counts as much as that of the last one of this.
    #[cold]
    fn next_segment(
        &self,
        frame: &Frame<'_>,
        layout: &Layout,
        now: Now,
        tags: &mut Tags,
    ) -> Result<(Hop, Slot), Reason> {
        let info = read_info(frame.octets, layout.info(usize::from(layout.meta.current_info) + 1));
        let field = read_hop(frame.octets, layout.hop(usize::from(layout.meta.current_hop) + 1));
        let hop = Hop { info, field };
        check_time(&hop, now)?;
        Ok((hop, tags.push(self.keys.at(info.timestamp), hop.mac_input())))
    }

    /// A packet comes in where its hop field says, from the sibling that owns that way in, or from a host at its first hop.
    #[inline]
    fn check_ingress(&self, frame: &Frame<'_>, layout: &Layout, hop: &Hop, peering: bool) -> Result<(), Reason> {
        let first = layout.meta.current_hop == 0;
        match frame.ingress {
            Ingress::External(interface) if interface != 0 && hop.ingress() == interface => Ok(()),
            Ingress::External(_) => Err(Reason::WrongIngress),
            Ingress::Internal | Ingress::Sibling(_) if first => Ok(()),
            Ingress::Internal => Err(Reason::TransitSource),
            Ingress::Sibling(sibling) => {
                let came_in = came_in(frame.octets, layout, hop, peering);
                let owner = self.port(came_in).map(|port| port.owner);
                if owner == Some(Owner::Sibling(sibling)) { Ok(()) } else { Err(Reason::TransitSource) }
            }
        }
    }

    /// Whether the packet ends here; its source and destination must be where they can be.
    #[inline]
    fn check_addresses(&self, frame: &Frame<'_>, layout: &Layout) -> Result<bool, Reason> {
        let (from_here, to_here) = (layout.src == self.isd_as, layout.dst == self.isd_as);
        let first = layout.meta.current_hop == 0;
        if let Ingress::External(_) = frame.ingress {
            if from_here {
                return Err(Reason::SourceAddress);
            }
            let last = usize::from(layout.meta.current_hop) + 1 == layout.hops;
            return if last == to_here { Ok(to_here) } else { Err(Reason::DestinationAddress) };
        }
        if first && !from_here {
            return Err(Reason::SourceAddress);
        }
        if to_here { Err(Reason::DestinationAddress) } else { Ok(false) }
    }
}

/// Whether the current hop is one of the two that join segments over a peering link. A segment without such a link has at
/// least two hops: one of a single hop would be left as soon as it is entered.
#[inline]
fn peering(info: InfoField, meta: PathMeta) -> Result<bool, Reason> {
    let [first, second, third] = meta.segment_len;
    if !info.peering {
        return if first == 1 || second == 1 || third == 1 { Err(Reason::MalformedPath) } else { Ok(false) };
    }
    if second == 0 || third != 0 {
        return Err(Reason::MalformedPath);
    }
    Ok(meta.current_hop + 1 == first || meta.current_hop == first)
}

/// The interface by which a packet in transit has come into the AS: that of the hop before, if the segment changed here.
fn came_in(packet: &[u8], layout: &Layout, hop: &Hop, peering: bool) -> u16 {
    let meta = layout.meta;
    let before = usize::from(meta.current_hop) - 1;
    if peering || meta.segment_of(before) == usize::from(meta.current_info) {
        return hop.ingress();
    }
    let info = read_info(packet, layout.info(meta.segment_of(before)));
    Hop { info, field: read_hop(packet, layout.hop(before)) }.ingress()
}

/// The hop field has begun, give or take the clocks, and not ended.
#[inline]
fn check_time(hop: &Hop, now: Now) -> Result<(), Reason> {
    if hop_expiry(hop.info.timestamp, hop.field.exp_time) <= now.unix {
        return Err(Reason::Expired);
    }
    if u64::from(hop.info.timestamp) * 1_000_000 > now.unix.0.saturating_add(SKEW) {
        return Err(Reason::Future);
    }
    Ok(())
}

//! The checks before the MAC, in the order of `docs/wire/scion.md`: layout and extensions, ingress, addresses, expiry.

use wayleave_packet::scion::verify;
use wayleave_packet::scion::{Hop, IsdAs, Layout, PathType, addresses, next_header};

use super::super::action::Reason;
use super::super::config::Owner;
use super::super::flow_class::{FlowClass, FlowClasses, class_index};
use super::answer::Refusal;
use super::macs::{MacBatch, MacIndex};
use super::{Clock, Router, Stage};
use crate::frame::{Frame, Ingress};

/// A packet that has passed all checks but that of its MAC, with what the router needs to forward it.
#[derive(Clone, Copy, Default)]
pub(super) struct PendingPacket {
    /// The current hop as it was minted.
    pub(super) hop: Hop,
    /// Where the path and its current info field begin.
    pub(super) path: u32,
    pub(super) info: u32,
    /// Where its current hop field begins.
    pub(super) field: u32,
    pub(super) mac: MacIndex,
    /// Of the next segment's first hop, if the packet changes segments here.
    pub(super) next_mac: MacIndex,
    /// The path's first octet once the packet has gone on by one hop.
    pub(super) next_pointer: u8,
    /// Hop fields behind the current one.
    pub(super) hops_left: u8,
    /// The packet changes here to the next segment, so that this router verifies the first hop of that segment too.
    pub(super) changes_segment: bool,
    /// The hop is one of the two at a peering link.
    pub(super) is_peering: bool,
    /// The packet ends in this AS.
    pub(super) is_local: bool,
}

impl Router {
    /// All checks of a packet that need no MAC. The inputs of its MACs go into `macs`.
    #[inline(always)]
    pub(super) fn check_before_mac(
        &self,
        frame: &Frame<'_>,
        classes: &mut FlowClasses,
        clock: &Clock,
        macs: &mut MacBatch,
        pending: &mut PendingPacket,
    ) -> Stage {
        let class = match self.classify(frame, classes) {
            Ok(class) => class,
            Err(stage) => return stage,
        };
        match self.check_hops(frame, class, clock, macs, pending) {
            Ok(()) => Stage::AwaitsMac,
            Err(refusal) => Stage::Refused(refusal),
        }
    }

    /// The class of a packet whose header is sound and whose path is a standard one; otherwise what happens to it.
    #[inline(always)]
    pub(super) fn classify<'c>(&self, frame: &Frame<'_>, classes: &'c mut FlowClasses) -> Result<&'c FlowClass, Stage> {
        let class = &mut classes[class_index(frame.octets)];
        if class.as_ref().is_none_or(|class| !class.contains(frame.octets)) {
            *class = Some(self.decode(frame)?);
        }
        class.as_ref().ok_or(Stage::Refused(Reason::Unprocessed.into()))
    }

    /// Decodes a header into a new class.
    #[inline(never)]
    fn decode(&self, frame: &Frame<'_>) -> Result<FlowClass, Stage> {
        let refused = |reason: verify::Reason| Stage::Refused(reason.into());
        let layout = Layout::decode(frame.octets).map_err(|error| refused(error.into()))?;
        verify::check_extensions(layout.next_header, &frame.octets[layout.header_len..]).map_err(refused)?;
        match layout.path_type {
            PathType::Standard => FlowClass::new(frame.octets, &layout).ok_or(Stage::Refused(Reason::Malformed.into())),
            PathType::OneHop => Err(Stage::OneHop),
            PathType::Empty => Err(self.empty_path(frame.ingress, layout.src, layout.dst, layout.next_header)),
        }
    }

    /// Within the AS only control traffic between its routers comes without a path.
    fn empty_path(&self, ingress: Ingress, src: IsdAs, dst: IsdAs, next_header: u8) -> Stage {
        let is_ours = dst == self.isd_as && src == self.isd_as;
        match ingress {
            Ingress::Sibling(_) if is_ours && next_header == next_header::BFD => Stage::Control,
            _ => Stage::Refused(Reason::PathType.into()),
        }
    }

    /// The checks of a standard path.
    #[inline(always)]
    fn check_hops(
        &self,
        frame: &Frame<'_>,
        class: &FlowClass,
        clock: &Clock,
        macs: &mut MacBatch,
        pending: &mut PendingPacket,
    ) -> Result<(), Refusal> {
        if self.is_throttled(frame.ingress, clock.now) {
            return Err(Reason::Throttled.into());
        }
        let offsets = &class.offsets;
        let hop = Hop::read(frame.octets, offsets.info.into(), offsets.hop.into());
        let is_peering = verify::check_peering(&hop, &class.at)?;
        self.check_ingress(frame, class, &hop, is_peering)?;
        let is_local = self.check_addresses(frame, class)?;
        verify::check_expiry(&hop, &clock.hop_time)?;
        verify::check_timestamp(&hop, &clock.hop_time)?;
        let from_neighbor = matches!(frame.ingress, Ingress::External(_));
        let hop = verify::hop_as_minted(hop, from_neighbor, is_peering);
        pending.changes_segment = class.at.changes_segment && !is_local && !is_peering;
        if pending.changes_segment {
            // Info fields have eight octets.
            let next = Hop::read(frame.octets, usize::from(offsets.info) + 8, offsets.next_hop());
            verify::check_expiry(&next, &clock.hop_time).map_err(Refusal::at_next)?;
            verify::check_timestamp(&next, &clock.hop_time).map_err(Refusal::at_next)?;
            pending.next_mac = macs.push(&next, &self.keys);
        }
        pending.mac = macs.push(&hop, &self.keys);
        pending.hop = hop;
        pending.path = offsets.path.into();
        pending.info = offsets.info.into();
        pending.field = offsets.hop.into();
        pending.next_pointer = offsets.next_pointer;
        pending.hops_left = class.at.hops_left;
        pending.is_peering = is_peering;
        pending.is_local = is_local;
        Ok(())
    }

    /// A packet comes from the neighbour at the interface that its hop field names, from the router of this AS that has
    /// that interface, or from a host of this AS at the path's first hop.
    #[inline(always)]
    fn check_ingress(&self, frame: &Frame<'_>, class: &FlowClass, hop: &Hop, is_peering: bool) -> Result<(), Reason> {
        match frame.ingress {
            Ingress::External(interface) => Ok(verify::check_ingress(hop, interface)?),
            Ingress::Internal | Ingress::Sibling(_) if class.at.is_first => Ok(()),
            Ingress::Internal => Err(Reason::TransitSource),
            Ingress::Sibling(sibling) => {
                let entry = verify::entry_interface(frame.octets, hop, is_peering);
                let owner = self.interface(entry).map(|found| found.owner);
                if owner == Some(Owner::Sibling(sibling)) { Ok(()) } else { Err(Reason::TransitSource) }
            }
        }
    }

    /// Returns whether the packet ends in this AS.
    #[inline(always)]
    fn check_addresses(&self, frame: &Frame<'_>, class: &FlowClass) -> Result<bool, Reason> {
        let (dst, src) = addresses(frame.octets);
        match frame.ingress {
            Ingress::External(_) => Ok(verify::check_addresses_from_neighbor(&class.at, self.isd_as, dst, src)?),
            Ingress::Internal | Ingress::Sibling(_) => {
                verify::check_addresses_from_within(&class.at, self.isd_as, dst, src)?;
                Ok(false)
            }
        }
    }
}

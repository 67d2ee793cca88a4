//! After the MAC: where the packet goes, by the rules of direction and of segment change, and what is rewritten in it.

use wayleave_packet::scion::Hop;

use super::check::Pending;
use super::config::{Link, Owner};
use super::{Router, Slot, Tags};
use crate::counters::Reason;
use crate::frame::{Action, Frame, Ingress};

impl Router {
    #[inline]
    pub(super) fn decide(&mut self, frame: &mut Frame<'_>, packet: &Pending, tags: &Tags) -> Result<Action, Reason> {
        self.check_mac(&packet.hop, packet.slot, tags)?;
        if let Some((next, slot)) = &packet.next {
            self.check_mac(next, *slot, tags)?;
        }
        if alerted(&packet.hop, frame.ingress) && self.traceroute(frame, packet.hop.ingress()) {
            return Ok(Action::Answer(Reason::Traceroute));
        }
        if packet.local {
            write_seg_id(frame.octets, packet.info, packet.hop.info.seg_id);
            return Ok(Action::Deliver);
        }
        let hop = packet.next.map_or(packet.hop, |(next, _)| next);
        let egress = hop.egress();
        let port = self.port(egress).ok_or(Reason::UnknownEgress)?;
        match frame.ingress {
            Ingress::External(interface) => {
                let ingress = self.port(interface).ok_or(Reason::WrongIngress)?.link;
                check_direction(ingress, port.link, packet.next.is_some())?;
            }
            _ if packet.next.is_some() => return Err(Reason::SegmentChange),
            // What comes from within goes out here, or it would go around.
            _ if port.owner != Owner::This => return Err(Reason::UnknownEgress),
            _ => {}
        }
        if !port.up {
            return Err(Reason::LinkDown);
        }
        match port.owner {
            Owner::This => leave(frame, packet, &hop, egress),
            Owner::Sibling(sibling) => {
                write_seg_id(frame.octets, packet.info, packet.hop.info.seg_id);
                if packet.next.is_some() {
                    write_pointer(frame.octets, packet, packet.meta.current_hop + 1);
                }
                Ok(Action::Sibling(sibling))
            }
        }
    }

    /// All bits that count, at once; whether they are equal is no secret.
    #[inline]
    fn check_mac(&self, hop: &Hop, slot: Slot, tags: &Tags) -> Result<(), Reason> {
        let [a, b, c, d, e, f] = hop.field.mac;
        let mac = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        if (mac ^ tags.tag(slot)) & self.compared == 0 { Ok(()) } else { Err(Reason::BadMac) }
    }
}

/// The last router of the AS: a segment travelled in construction direction takes this hop's MAC into its accumulator,
/// and the pointer goes on.
#[inline]
fn leave(frame: &mut Frame<'_>, packet: &Pending, hop: &Hop, egress: u16) -> Result<Action, Reason> {
    let steps = 1 + u8::from(packet.next.is_some());
    let pointer = packet.meta.current_hop + steps;
    if pointer >= packet.hop_count {
        return Err(Reason::PathEnd);
    }
    let seg_id = if hop.info.construction && !packet.peering { hop.next_seg_id() } else { hop.info.seg_id };
    if packet.next.is_some() {
        write_seg_id(frame.octets, packet.info, packet.hop.info.seg_id);
        write_seg_id(frame.octets, packet.info + 8, seg_id);
    } else {
        write_seg_id(frame.octets, packet.info, seg_id);
    }
    write_pointer(frame.octets, packet, pointer);
    Ok(Action::Forward(egress))
}

/// Which links may follow each other: within a segment no valley and no U-turn; from one segment to the next only at the
/// core, or at a common AS of an up and a down segment.
#[inline]
fn check_direction(ingress: Link, egress: Link, changes: bool) -> Result<(), Reason> {
    use Link::{Child, Core, Parent, Peer};
    match (ingress, egress) {
        (Core, Child) | (Child, Core | Child) if changes => Ok(()),
        _ if changes => Err(Reason::SegmentChange),
        (Core, Core) | (Child, Parent | Peer) | (Parent | Peer, Child) => Ok(()),
        _ => Err(Reason::Direction),
    }
}

/// Whether the router at which the packet came in shall look at it.
fn alerted(hop: &Hop, ingress: Ingress) -> bool {
    let alert = if hop.info.construction { hop.field.ingress_alert } else { hop.field.egress_alert };
    alert && matches!(ingress, Ingress::External(_))
}

#[inline]
fn write_seg_id(packet: &mut [u8], info: u16, seg_id: u16) {
    let at = usize::from(info) + 2;
    packet[at..at + 2].copy_from_slice(&seg_id.to_be_bytes());
}

/// `CurrINF` and `CurrHF` share the meta header's first octet.
#[inline]
fn write_pointer(packet: &mut [u8], pending: &Pending, hop: u8) {
    let info = pending.meta.segment_of(hop.into()) as u8;
    packet[usize::from(pending.path)] = info << 6 | hop;
}

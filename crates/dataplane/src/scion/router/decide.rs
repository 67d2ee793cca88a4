//! After the MAC: where the packet goes, by the rules of direction and of segment change, and what is rewritten in it.

use wayleave_packet::scion::{Hop, PathMeta};

use super::super::config::{Link, Owner, WITHIN};
use super::check::{Pending, read};
use super::{Router, Slot, Tags};
use crate::counters::Reason;
use crate::frame::{Action, Frame, Ingress};

impl Router {
    #[inline(always)]
    pub(super) fn decide(
        &mut self,
        frame: &mut Frame<'_>,
        packet: &Pending,
        tags: &Tags,
        action: &mut Action,
    ) -> Result<(), Reason> {
        let mut hop = packet.hop;
        self.check_mac(&hop, packet.slot, tags)?;
        let outside = matches!(frame.ingress, Ingress::External(_));
        if packet.changes {
            hop = next_segment(frame.octets, packet);
            self.check_mac(&hop, packet.next_slot, tags)?;
        }
        if outside && packet.hop.ingress_alert() && self.traceroute(frame, packet.hop.ingress()) {
            *action = Action::Answer(Reason::Traceroute);
            return Ok(());
        }
        if packet.local {
            write_seg_id(frame.octets, packet.info, packet.hop.seg_id());
            *action = Action::Deliver;
            return Ok(());
        }
        let egress = hop.egress();
        let port = self.port(egress).ok_or(Reason::UnknownEgress)?;
        match frame.ingress {
            Ingress::External(interface) => {
                let ingress = self.port(interface).ok_or(Reason::WrongIngress)?.link;
                check_direction(ingress, port.link, packet.changes)?;
            }
            _ if packet.changes => return Err(Reason::SegmentChange),
            // What comes from within goes out here, or it would go around.
            _ if port.owner != Owner::This => return Err(Reason::UnknownEgress),
            _ => {}
        }
        let owner = port.owner;
        if !port.up {
            return Err(Reason::LinkDown);
        }
        match owner {
            Owner::This if hop.egress_alert() && self.traceroute(frame, egress) => {
                *action = Action::Answer(Reason::Traceroute);
            }
            Owner::This => {
                leave(frame, packet, &hop)?;
                *action = Action::Forward(egress);
            }
            Owner::Sibling(sibling) => {
                write_seg_id(frame.octets, packet.info, packet.hop.seg_id());
                if packet.changes {
                    frame.octets[packet.path as usize] = packet.pointer;
                }
                *action = Action::Sibling(sibling);
            }
        }
        Ok(())
    }

    /// All bits that count, at once; whether they are equal is no secret.
    #[inline]
    fn check_mac(&self, hop: &Hop, slot: Slot, tags: &Tags) -> Result<(), Reason> {
        if (hop.mac() ^ tags.tag(slot)) & self.compared == 0 { Ok(()) } else { Err(Reason::BadMac) }
    }
}

/// The last router of the AS: a segment travelled in construction direction takes this hop's MAC into its accumulator,
/// and the pointer goes on.
#[inline(always)]
fn leave(frame: &mut Frame<'_>, packet: &Pending, hop: &Hop) -> Result<(), Reason> {
    if packet.left <= u8::from(packet.changes) {
        return Err(Reason::PathEnd);
    }
    let seg_id = if hop.construction() && !packet.peering { hop.next_seg_id() } else { hop.seg_id() };
    // `CurrINF` and `CurrHF` share the meta header's first octet.
    if packet.changes {
        // The next segment has a second hop, to which the pointer goes on.
        write_seg_id(frame.octets, packet.info, packet.hop.seg_id());
        write_seg_id(frame.octets, packet.info + 8, seg_id);
        frame.octets[packet.path as usize] = packet.pointer + 1;
    } else {
        write_seg_id(frame.octets, packet.info, seg_id);
        frame.octets[packet.path as usize] = packet.pointer;
    }
    Ok(())
}

/// Which links may follow each other: within a segment by [`WITHIN`]; from one segment to the next only at the core, or at a
/// common AS of an up and a down segment.
#[inline]
fn check_direction(ingress: Link, egress: Link, changes: bool) -> Result<(), Reason> {
    // From and to core, parent, child, peer, as `WITHIN`.
    const CHANGE: [[bool; 4]; 4] = [
        [false, false, true, false],
        [false, false, false, false],
        [true, false, true, false],
        [false, false, false, false],
    ];
    let (rules, reason) = if changes { (&CHANGE, Reason::SegmentChange) } else { (&WITHIN, Reason::Direction) };
    if rules[ingress as usize][egress as usize] { Ok(()) } else { Err(reason) }
}

/// The first hop of the next segment, which lies behind the current hop.
#[cold]
fn next_segment(packet: &[u8], pending: &Pending) -> Hop {
    let path = pending.path as usize;
    let meta = PathMeta::read(packet[path..path + 4].try_into().expect("four octets"));
    let segments = meta.segment_len.iter().filter(|length| **length != 0).count();
    read(packet, pending.info as usize + 8, path + 4 + 8 * segments + 12 * (usize::from(meta.current_hop) + 1))
}

#[inline]
fn write_seg_id(packet: &mut [u8], info: u32, seg_id: u16) {
    let at = info as usize + 2;
    packet[at..at + 2].copy_from_slice(&seg_id.to_be_bytes());
}

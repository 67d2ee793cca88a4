//! After the MAC: the router alert, the egress by the rules of direction and segment change, and the rewriting.

use wayleave_core::Now;
use wayleave_packet::scion::{Hop, PathMeta, verify};

use super::super::action::{Action, Reason};
use super::super::config::Owner;
use super::Router;
use super::answer::Refusal;
use super::before_mac::PendingPacket;
use super::macs::{MacBatch, MacIndex};
use crate::frame::{Frame, Ingress};

/// Octets of a hop field.
const HOP_LEN: u32 = 12;

impl Router {
    /// Decides on a packet whose MACs are computed, and rewrites it. Returns the reason if it is refused.
    #[inline(always)]
    pub(super) fn decide(
        &mut self,
        frame: &mut Frame<'_>,
        packet: &PendingPacket,
        macs: &MacBatch,
        now: Now,
        action: &mut Action,
    ) -> Result<(), Refusal> {
        let mut hop = packet.hop;
        // Which of the two hops of a change of segment an error is in.
        let in_hop = Refusal::at(packet.changes_segment);
        self.check_mac(&hop, packet.mac, macs)?;
        let from_neighbor = matches!(frame.ingress, Ingress::External(_));
        if packet.changes_segment {
            hop = next_segment(frame.octets, packet);
            self.check_mac(&hop, packet.next_mac, macs).map_err(&in_hop)?;
        }
        let is_alerted_here = from_neighbor && packet.hop.ingress_alert();
        if is_alerted_here && let Some(done) = self.traceroute(frame, packet.hop.ingress(), now) {
            *action = done;
            return Ok(());
        }
        if packet.is_local {
            self.local.check(frame.octets)?;
            if is_alerted_here {
                clear_alert(frame, packet.field, packet.hop.ingress_alert_flag());
            }
            write_seg_id(frame.octets, packet.info, packet.hop.seg_id());
            *action = Action::Deliver;
            return Ok(());
        }
        let egress = hop.egress();
        let found = self.interface(egress).ok_or(Reason::UnknownEgress).map_err(&in_hop)?;
        match frame.ingress {
            Ingress::External(interface) => {
                let from = self.interface(interface).ok_or(Reason::WrongIngress)?.link;
                if packet.changes_segment {
                    verify::check_segment_change(from, found.link).map_err(Refusal::at_next)?;
                } else {
                    verify::check_direction(from, found.link)?;
                }
            }
            // Only the router where a packet enters the AS changes its segment.
            _ if packet.changes_segment => return Err(in_hop(Reason::SegmentChange)),
            // A packet from within leaves here: sent to a sibling again, it could go in circles.
            _ if found.owner != Owner::This => return Err(in_hop(Reason::UnknownEgress)),
            _ => {}
        }
        let (owner, is_up) = (found.owner, found.up);
        let is_alerted_there = owner == Owner::This && hop.egress_alert();
        // Ahead of the link's state: a traceroute tells its sender which link it was that failed.
        if is_alerted_there && let Some(done) = self.traceroute(frame, egress, now) {
            *action = done;
            return Ok(());
        }
        if !is_up {
            return Err(in_hop(Reason::LinkDown));
        }
        if owner == Owner::This {
            verify::check_path_end(packet.hops_left, packet.changes_segment)?;
        }
        // The router that a flag is for takes it out: this one is done with the packet.
        if is_alerted_here {
            clear_alert(frame, packet.field, packet.hop.ingress_alert_flag());
        }
        if is_alerted_there {
            let field = if packet.changes_segment { packet.field + HOP_LEN } else { packet.field };
            clear_alert(frame, field, hop.egress_alert_flag());
        }
        match owner {
            Owner::This => {
                leave(frame, packet, &hop);
                *action = Action::Forward(egress);
            }
            Owner::Sibling(sibling) => {
                write_seg_id(frame.octets, packet.info, packet.hop.seg_id());
                if packet.changes_segment {
                    frame.octets[packet.path as usize] = packet.next_pointer;
                }
                *action = Action::Sibling(sibling);
            }
        }
        Ok(())
    }

    /// [`verify::check_mac`], under the mask of MAC bits that a unit test may narrow.
    #[inline]
    fn check_mac(&self, hop: &Hop, index: MacIndex, macs: &MacBatch) -> Result<(), Reason> {
        let difference = verify::mac_difference(hop, macs.mac(index)) & self.mac_mask;
        if difference == 0 { Ok(()) } else { Err(Reason::BadMac) }
    }
}

/// Rewrites a packet that leaves the AS here: the accumulator, and the pointer to the next AS's hop field.
#[inline(always)]
fn leave(frame: &mut Frame<'_>, packet: &PendingPacket, hop: &Hop) {
    let seg_id = verify::seg_id_at_egress(hop, packet.is_peering);
    // `CurrINF` and `CurrHF` share the path's first octet.
    if packet.changes_segment {
        // The pointer goes on by two: over the last hop of this segment and the first of the next, both of this AS.
        write_seg_id(frame.octets, packet.info, packet.hop.seg_id());
        write_seg_id(frame.octets, packet.info + 8, seg_id);
        frame.octets[packet.path as usize] = packet.next_pointer + 1;
    } else {
        write_seg_id(frame.octets, packet.info, seg_id);
        frame.octets[packet.path as usize] = packet.next_pointer;
    }
}

/// Takes a router alert out of the hop field at `field`.
#[cold]
fn clear_alert(frame: &mut Frame<'_>, field: u32, flag: u8) {
    if let Some(flags) = frame.octets.get_mut(field as usize) {
        *flags &= !flag;
    }
}

/// The first hop of the next segment, which lies behind the current hop.
#[cold]
fn next_segment(packet: &[u8], pending: &PendingPacket) -> Hop {
    let path = pending.path as usize;
    let meta = PathMeta::read(packet[path..path + 4].try_into().expect("four octets"));
    let segments = meta.segment_len.iter().filter(|length| **length != 0).count();
    Hop::read(packet, pending.info as usize + 8, path + 4 + 8 * segments + 12 * (usize::from(meta.current_hop) + 1))
}

#[inline]
fn write_seg_id(packet: &mut [u8], info: u32, seg_id: u16) {
    let at = info as usize + 2;
    packet[at..at + 2].copy_from_slice(&seg_id.to_be_bytes());
}

//! After the MAC: the router alert, the egress by the rules of direction and segment change, and the rewriting.

use wayleave_packet::scion::{Hop, PathMeta, verify};

use super::super::action::{Action, Reason};
use super::super::config::Owner;
use super::Router;
use super::before_mac::PendingPacket;
use super::macs::{MacBatch, MacIndex};
use crate::frame::{Frame, Ingress};

impl Router {
    /// Decides on a packet whose MACs are computed, and rewrites it. Returns the reason if it is refused.
    #[inline(always)]
    pub(super) fn decide(
        &mut self,
        frame: &mut Frame<'_>,
        packet: &PendingPacket,
        macs: &MacBatch,
        action: &mut Action,
    ) -> Result<(), Reason> {
        let mut hop = packet.hop;
        self.check_mac(&hop, packet.mac, macs)?;
        let from_neighbor = matches!(frame.ingress, Ingress::External(_));
        if packet.changes_segment {
            hop = next_segment(frame.octets, packet);
            self.check_mac(&hop, packet.next_mac, macs)?;
        }
        if from_neighbor && packet.hop.ingress_alert() && self.traceroute(frame, packet.hop.ingress()) {
            *action = Action::Answer(Reason::Traceroute);
            return Ok(());
        }
        if packet.is_local {
            write_seg_id(frame.octets, packet.info, packet.hop.seg_id());
            *action = Action::Deliver;
            return Ok(());
        }
        let egress = hop.egress();
        let found = self.interface(egress).ok_or(Reason::UnknownEgress)?;
        match frame.ingress {
            Ingress::External(interface) => {
                let from = self.interface(interface).ok_or(Reason::WrongIngress)?.link;
                if packet.changes_segment {
                    verify::check_segment_change(from, found.link)?;
                } else {
                    verify::check_direction(from, found.link)?;
                }
            }
            // Only the router where a packet enters the AS changes its segment.
            _ if packet.changes_segment => return Err(Reason::SegmentChange),
            // A packet from within leaves here: sent to a sibling again, it could go in circles.
            _ if found.owner != Owner::This => return Err(Reason::UnknownEgress),
            _ => {}
        }
        let owner = found.owner;
        if !found.up {
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
fn leave(frame: &mut Frame<'_>, packet: &PendingPacket, hop: &Hop) -> Result<(), Reason> {
    verify::check_path_end(packet.hops_left, packet.changes_segment)?;
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
    Ok(())
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

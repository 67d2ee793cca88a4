//! One-hop paths: how two neighbours speak before there is a segment between them.

use subtle::ConstantTimeEq;
use wayleave_core::Now;
use wayleave_packet::scion::{HopField, InfoField, Layout, OneHopPath, Path, hop_expiry, mac_input, next_header};

use super::super::config::Owner;
use super::Router;
use crate::counters::Reason;
use crate::frame::{Action, Frame, Ingress};

impl Router {
    /// Never answered: its sender is this AS or a neighbour.
    #[cold]
    pub(super) fn one_hop(&self, frame: &mut Frame<'_>, now: Now) -> Result<Action, Reason> {
        let layout = Layout::decode(frame.octets).map_err(|_| Reason::Malformed)?;
        let Ok(Path::OneHop(OneHopPath { info, first, .. })) =
            Path::decode(2, &frame.octets[layout.path..layout.header_len])
        else {
            return Err(Reason::Malformed);
        };
        match frame.ingress {
            _ if !info.construction => Err(Reason::OneHop),
            Ingress::External(interface) => self.one_hop_in(frame, &layout, info, first, interface, now),
            Ingress::Internal => self.one_hop_out(frame, &layout, info, first, now),
            Ingress::Sibling(_) => Err(Reason::OneHop),
        }
    }

    /// From a host or service of this AS to the neighbour.
    fn one_hop_out(
        &self,
        frame: &mut Frame<'_>,
        layout: &Layout,
        info: InfoField,
        first: HopField,
        now: Now,
    ) -> Result<Action, Reason> {
        if layout.src != self.isd_as {
            return Err(Reason::SourceAddress);
        }
        let port = self.port(first.cons_egress).filter(|port| port.owner == Owner::This);
        let port = port.ok_or(Reason::UnknownEgress)?;
        if layout.dst != port.neighbor {
            return Err(Reason::DestinationAddress);
        }
        if hop_expiry(info.timestamp, first.exp_time) <= now.unix {
            return Err(Reason::Expired);
        }
        let input = mac_input(info.seg_id, info.timestamp, first.exp_time, first.cons_ingress, first.cons_egress);
        let tag = self.keys.of(info.timestamp).hop_mac(&input);
        if !bool::from(tag.ct_eq(&first.mac)) {
            return Err(Reason::BadMac);
        }
        if !port.up {
            return Err(Reason::LinkDown);
        }
        let seg_id = info.seg_id ^ u16::from_be_bytes([first.mac[0], first.mac[1]]);
        frame.octets[layout.path + 2..layout.path + 4].copy_from_slice(&seg_id.to_be_bytes());
        Ok(Action::Forward(first.cons_egress))
    }

    /// From the neighbour: the second hop field is ours to write, so that an answer finds its way.
    fn one_hop_in(
        &self,
        frame: &mut Frame<'_>,
        layout: &Layout,
        info: InfoField,
        first: HopField,
        interface: u16,
        now: Now,
    ) -> Result<Action, Reason> {
        if layout.dst != self.isd_as {
            return Err(Reason::DestinationAddress);
        }
        let port = self.port(interface).ok_or(Reason::WrongIngress)?;
        if layout.src != port.neighbor {
            return Err(Reason::SourceAddress);
        }
        if hop_expiry(info.timestamp, first.exp_time) <= now.unix {
            return Err(Reason::Expired);
        }
        if layout.next_header == next_header::BFD {
            return Ok(Action::Control);
        }
        let input = mac_input(info.seg_id, info.timestamp, first.exp_time, interface, 0);
        let mac = self.keys.of(info.timestamp).hop_mac(&input);
        let second = HopField { exp_time: first.exp_time, cons_ingress: interface, mac, ..HopField::default() };
        frame.octets[layout.path + 20..layout.path + 32].copy_from_slice(&second.octets());
        Ok(Action::Deliver)
    }
}

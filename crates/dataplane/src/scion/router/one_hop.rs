//! One-hop paths: how neighbours reach each other before there is a segment between them.

use wayleave_core::Now;
use wayleave_packet::scion::verify::{self, HopTime};
use wayleave_packet::scion::{Extensions, Hop, HopField, InfoField, Layout, OneHopPath, Path, mac_input, next_header};

use super::super::action::{Action, Reason};
use super::super::config::{Keys, Owner};
use super::Router;
use crate::frame::{Frame, Ingress};

impl Router {
    /// Decides on a packet with a one-hop path. A refused one is not answered: its path is no way back yet.
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

    /// A packet from a host or service of this AS to the neighbour, with a first hop field that this AS minted.
    fn one_hop_out(
        &self,
        frame: &mut Frame<'_>,
        layout: &Layout,
        info: InfoField,
        first: HopField,
        now: Now,
    ) -> Result<Action, Reason> {
        // The router's own leaves by another way. The first hop field of any path may make one of one hop, so that a host could
        // otherwise speak to the neighbour's router as this one, and take the link down.
        let inner = Extensions::decode(layout.next_header, &frame.octets[layout.header_len..]);
        if inner.is_ok_and(|inner| inner.next_header == next_header::BFD) {
            return Err(Reason::OneHop);
        }
        if layout.src != self.isd_as {
            return Err(Reason::SourceAddress);
        }
        let found = self.interface(first.cons_egress).filter(|found| found.owner == Owner::This);
        let found = found.ok_or(Reason::UnknownEgress)?;
        if layout.dst != found.neighbor {
            return Err(Reason::DestinationAddress);
        }
        let hop = Hop::new(&info, &first);
        verify::check_expiry(&hop, &HopTime::new(now.unix))?;
        verify::check_mac(&hop, computed_mac(&self.keys, &hop))?;
        if !found.up {
            return Err(Reason::LinkDown);
        }
        let seg_id = verify::seg_id_at_egress(&hop, false);
        frame.octets[layout.path + 2..layout.path + 4].copy_from_slice(&seg_id.to_be_bytes());
        Ok(Action::Forward(first.cons_egress))
    }

    /// A packet from the neighbour. This router writes the second hop field, which makes the path one that an answer can
    /// take back.
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
        let found = self.interface(interface).ok_or(Reason::WrongIngress)?;
        if layout.src != found.neighbor {
            return Err(Reason::SourceAddress);
        }
        // No MAC shows that the first hop's time is right, and this router is about to mint one for the same time: not for
        // paths that begin later.
        let (hop, time) = (Hop::new(&info, &first), HopTime::new(now.unix));
        verify::check_expiry(&hop, &time)?;
        verify::check_timestamp(&hop, &time)?;
        if layout.next_header == next_header::BFD {
            return Ok(Action::Control);
        }
        self.local.check(frame.octets)?;
        let input = mac_input(info.seg_id, info.timestamp, first.exp_time, interface, 0);
        let mac = self.keys.of(info.timestamp).hop_mac(&input);
        let second = HopField { exp_time: first.exp_time, cons_ingress: interface, mac, ..HopField::default() };
        frame.octets[layout.path + 20..layout.path + 32].copy_from_slice(&second.octets());
        Ok(Action::Deliver)
    }
}

/// The MAC that this AS mints for `hop`, in the low 48 bits.
fn computed_mac(keys: &Keys, hop: &Hop) -> u64 {
    let [a, b, c, d, e, f] = keys.of(hop.timestamp()).hop_mac(&hop.mac_input());
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

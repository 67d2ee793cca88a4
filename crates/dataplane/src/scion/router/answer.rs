//! SCMP messages, written over the packet that they answer: under a rate limit, and never longer than that packet.
//!
//! Only this code allocates, and only as often as the rate limit allows an answer.

use wayleave_core::Now;
use wayleave_packet::scion::scmp::{Message, Problem, checksum};
use wayleave_packet::scion::{Extensions, Header, Path, StandardPath, next_header};

use super::super::action::{Action, Reason};
use super::super::config::Owner;
use super::Router;
use crate::frame::{Frame, Ingress};

/// Octets that an error may quote of the packet; the whole message has at most 1,280 octets, the least MTU of IPv6.
const QUOTE_MAX: usize = 1_232;
/// Octets of the longest packet that is answered when its length is wrong: its header is repaired in a copy on the stack.
const SCRATCH: usize = 4_096;

impl Router {
    /// Counts a refusal, and writes the SCMP message for the sender if there is one and the rate limit allows it.
    #[cold]
    pub(super) fn refuse(&mut self, frame: &mut Frame<'_>, reason: Reason, now: Now) -> Action {
        if let (Reason::BadMac, Ingress::External(interface)) = (reason, frame.ingress)
            && let Some(count) = self.bad_macs.get_mut(usize::from(interface))
        {
            *count += 1;
            let limits = self.bad_mac_limits.as_mut();
            if let Some(bucket) = limits.and_then(|limits| limits.buckets.get_mut(usize::from(interface))) {
                bucket.take(now.instant);
            }
        }
        if !self.answers.ready(now.instant) {
            self.counters.unanswered += 1;
            return Action::Drop(reason);
        }
        let Some((message, header)) = self.message(frame, reason) else { return Action::Drop(reason) };
        if !write(frame, &header, message, true) {
            self.counters.unanswered += 1;
            return Action::Drop(reason);
        }
        self.answers.take(now.instant);
        Action::Answer(reason)
    }

    /// The SCMP message for `reason` and the header that carries it; `None` if there is none.
    fn message(&self, frame: &Frame<'_>, reason: Reason) -> Option<(Message, Header)> {
        let mut copy = [0; SCRATCH];
        let octets = match reason {
            // The rest of the header can be decoded once the payload's length is the actual one.
            Reason::PacketSize => {
                let copy = copy.get_mut(..frame.octets.len())?;
                copy.copy_from_slice(frame.octets);
                let payload = copy.len().checked_sub(4 * usize::from(copy[5]))?;
                copy[6..8].copy_from_slice(&u16::try_from(payload).ok()?.to_be_bytes());
                &*copy
            }
            _ => &*frame.octets,
        };
        let (header, payload) = Header::decode(octets).ok()?;
        let Path::Standard(path) = &header.path else { return None };
        if is_scmp_error(header.next_header, payload) {
            return None;
        }
        let meta = path.meta;
        let info = path.infos.get(usize::from(meta.current_info))?;
        let field = path.hops.get(usize::from(meta.current_hop))?;
        let path_at = header.wire_len() - header.path.wire_len();
        let hop_at = path_at + 4 + 8 * path.infos.len() + 12 * usize::from(meta.current_hop);
        let info_at = path_at + 4 + 8 * usize::from(meta.current_info);
        let problem =
            |code: Problem, at: usize| Some(Message::ParameterProblem { code: code as u8, pointer: at as u16 });
        let (unknown_in, unknown_out) = match info.construction {
            true => (Problem::UnknownHopFieldIngress, Problem::UnknownHopFieldEgress),
            false => (Problem::UnknownHopFieldEgress, Problem::UnknownHopFieldIngress),
        };
        let egress = if info.construction { field.cons_egress } else { field.cons_ingress };
        let ingress = if info.construction { field.cons_ingress } else { field.cons_egress };
        let message = match reason {
            Reason::PacketSize => problem(Problem::InvalidPacketSize, 0),
            Reason::WrongIngress => problem(unknown_in, hop_at),
            Reason::UnknownEgress => problem(unknown_out, hop_at),
            Reason::SourceAddress => problem(Problem::InvalidSourceAddress, 20),
            Reason::DestinationAddress => problem(Problem::InvalidDestinationAddress, 12),
            Reason::Expired => problem(Problem::PathExpired, hop_at),
            Reason::Future | Reason::Direction => problem(Problem::InvalidPath, hop_at),
            Reason::BadMac => problem(Problem::InvalidHopFieldMac, hop_at),
            Reason::SegmentChange => problem(Problem::InvalidSegmentChange, info_at),
            Reason::Extension => problem(Problem::InvalidExtensionHeader, header.wire_len()),
            Reason::LinkDown => Some(self.link_down(ingress, egress)),
            _ => None,
        }?;
        Some((message, self.answer_header(header, frame.ingress)?))
    }

    fn link_down(&self, ingress: u16, egress: u16) -> Message {
        match self.interface(egress).map(|found| found.owner) {
            Some(Owner::Sibling(_)) => Message::InternalConnectivityDown {
                isd_as: self.isd_as,
                ingress: ingress.into(),
                egress: egress.into(),
            },
            _ => Message::ExternalInterfaceDown { isd_as: self.isd_as, interface: egress.into() },
        }
    }

    /// The header of an answer to a packet with `header`: back along its path, which has not been rewritten yet.
    fn answer_header(&self, header: Header, ingress: Ingress) -> Option<Header> {
        let Path::Standard(path) = &header.path else { return None };
        let path = way_back(path, ingress)?;
        Some(Header {
            next_header: next_header::SCMP,
            dst: header.src,
            src: self.isd_as,
            dst_host: header.src_host,
            src_host: self.address,
            path: Path::Standard(path),
            ..header
        })
    }

    /// Writes the reply over a traceroute request, for `interface`. Returns false if the packet is no such request or the
    /// reply does not fit into it.
    #[cold]
    pub(super) fn traceroute(&mut self, frame: &mut Frame<'_>, interface: u16) -> bool {
        let Ok((header, payload)) = Header::decode(frame.octets) else { return false };
        let Ok(inner) = Extensions::decode(header.next_header, payload) else { return false };
        if inner.next_header != next_header::SCMP {
            return false;
        }
        let Ok((Message::TracerouteRequest { identifier, sequence }, _)) = Message::decode(inner.rest) else {
            return false;
        };
        let reply = Message::TracerouteReply { identifier, sequence, isd_as: self.isd_as, interface: interface.into() };
        let Some(header) = self.answer_header(header, frame.ingress) else { return false };
        write(frame, &header, reply, false)
    }
}

/// The path back from here. The accumulators are those with which the packet came in, which is what the hops on the way
/// back verify.
fn way_back(path: &StandardPath, ingress: Ingress) -> Option<StandardPath> {
    let mut back = path.reversed();
    let peering = |path: &StandardPath| {
        let hop = path.meta.current_hop;
        let first = path.meta.segment_len[0];
        path.infos[usize::from(path.meta.current_info)].peering && (hop + 1 == first || hop == first)
    };
    let step = |path: &mut StandardPath| {
        let hop = path.meta.current_hop + 1;
        path.meta.current_hop = hop;
        path.meta.current_info = path.meta.segment_of(hop.into()) as u8;
        (usize::from(hop) < path.hops.len()).then_some(())
    };
    // If another router of this AS has already changed the segment, the packet goes back into the segment that it left.
    let next = usize::from(back.meta.current_hop) + 1;
    let changes = next < back.hops.len() && back.meta.segment_of(next) != usize::from(back.meta.current_info);
    if changes && !peering(&back) {
        step(&mut back)?;
    }
    if let Ingress::External(_) = ingress {
        step(&mut back)?;
    }
    Some(back)
}

/// Whether a payload is an SCMP error, or SCMP that cannot be read. Neither is answered, so that two routers never answer
/// each other's errors.
fn is_scmp_error(next: u8, payload: &[u8]) -> bool {
    match Extensions::decode(next, payload) {
        Ok(inner) if inner.next_header == next_header::SCMP => inner.rest.first().is_none_or(|&kind| kind < 128),
        Ok(_) => false,
        // What a malformed extension header hides is unknown. Its only answer is the error about that header.
        Err(_) => false,
    }
}

/// Writes `message` with `header` over the packet, with as much of the packet as fits if it `quotes`. Returns false and
/// writes nothing if even the message alone does not fit.
fn write(frame: &mut Frame<'_>, header: &Header, message: Message, quotes: bool) -> bool {
    let room = frame.octets.len();
    let fixed = header.wire_len() + message.wire_len();
    let Some(left) = room.checked_sub(fixed) else { return false };
    let quote = if quotes { left.min(QUOTE_MAX).min(1_280usize.saturating_sub(fixed)) } else { 0 };
    let payload_len = message.wire_len() + quote;
    let mut answer = Vec::with_capacity(fixed + quote);
    header.encode(payload_len as u16, &mut answer);
    answer.extend(&message.octets()[..message.wire_len()]);
    answer.extend(&frame.octets[..quote]);
    let (head, payload) = answer.split_at_mut(header.wire_len());
    let hosts = header.dst_host.wire_len() + header.src_host.wire_len();
    let sum = checksum(head, hosts, payload);
    payload[2..4].copy_from_slice(&sum.to_be_bytes());
    let octets = &mut std::mem::take(&mut frame.octets)[..answer.len()];
    octets.copy_from_slice(&answer);
    frame.octets = octets;
    true
}

//! SCMP messages about packets that go no further: composed beside the packet, under a limit that is taken before anything
//! else is done for them.
//!
//! The rules are those of draft-dekater-scion-controlplane ("Processing Rules" of SCMP), and of the SCMP specification that
//! it names, for codes and pointers. Only this code allocates, and only as often as the limit allows an answer.

use wayleave_core::{Instant, Now};
use wayleave_packet::scion::scmp::{Message, NO_ROUTE, Problem, checksum};
use wayleave_packet::scion::verify;
use wayleave_packet::scion::{Extensions, Header, Layout, Path, StandardPath, next_header};

use super::super::action::{Action, Reason};
use super::super::config::Owner;
use super::super::delivery::{ADDRESS_TYPES, ADDRESSES, INFORMATIONAL};
use super::Router;
use crate::frame::{Frame, Ingress};

/// Octets of an error with its SCION header, at most: 1,280, the least MTU of IPv6, less 48 for the IPv6 and UDP headers
/// around it. As much as fits of the packet is quoted, since the sender finds its process by what follows the header.
const LONGEST_ERROR: usize = 1_232;
/// Octets of the longest SCION header.
const LONGEST_HEADER: usize = 4 * 255;
/// Where the destination AS begins, and the source AS.
const DESTINATION: usize = 12;
const SOURCE: usize = 20;

/// Why a packet is refused, and which of its hops shows it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: Reason,
    /// The hop is the first one of the next segment, to which the packet changes here.
    pub(super) is_next: bool,
}

impl Refusal {
    /// For `reason` in the current hop, or in the one behind it.
    pub(super) fn at(is_next: bool) -> impl Fn(Reason) -> Self {
        move |reason| Self { reason, is_next }
    }

    /// For `reason` in the first hop of the next segment.
    pub(super) fn at_next(reason: verify::Reason) -> Self {
        Self { reason: reason.into(), is_next: true }
    }
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        Self { reason, is_next: false }
    }
}

impl From<verify::Reason> for Refusal {
    fn from(reason: verify::Reason) -> Self {
        Reason::from(reason).into()
    }
}

/// The messages about the packets of one burst, one behind the other.
#[derive(Clone, Default, Debug)]
pub(super) struct Answers {
    octets: Vec<u8>,
    /// Where each one ends.
    ends: Vec<usize>,
}

impl Answers {
    pub(super) fn clear(&mut self) {
        self.octets.clear();
        self.ends.clear();
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let begins = [0].into_iter().chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(begin, &end)| &self.octets[begin..end])
    }

    /// Adds a message to `header`'s destination, with as much of `quoted` as fits an error behind it.
    fn push(&mut self, header: &Header, message: Message, quoted: &[u8]) {
        let begin = self.octets.len();
        let fixed = header.wire_len() + message.wire_len();
        let quote = &quoted[..quoted.len().min(LONGEST_ERROR.saturating_sub(fixed))];
        header.encode((message.wire_len() + quote.len()) as u16, &mut self.octets);
        self.octets.extend(&message.octets()[..message.wire_len()]);
        self.octets.extend(quote);
        let (head, payload) = self.octets[begin..].split_at_mut(header.wire_len());
        let hosts = header.dst_host.wire_len() + header.src_host.wire_len();
        let sum = checksum(head, hosts, payload);
        payload[2..4].copy_from_slice(&sum.to_be_bytes());
        self.ends.push(self.octets.len());
    }
}

/// Whether there is an SCMP message for `reason` at all.
fn is_answered(reason: Reason) -> bool {
    match reason {
        // What cannot be decoded has no way back, and what does not come from where it says has no sender. One-hop paths
        // are no way back yet, and `Throttled` is there to do nothing.
        Reason::Unprocessed
        | Reason::Malformed
        | Reason::MalformedPath
        | Reason::PathType
        | Reason::TransitSource
        | Reason::OneHop
        | Reason::Traceroute
        | Reason::Throttled => false,
        Reason::PacketSize
        | Reason::Extension
        | Reason::WrongIngress
        | Reason::SourceAddress
        | Reason::DestinationAddress
        | Reason::Expired
        | Reason::Future
        | Reason::BadMac
        | Reason::UnknownEgress
        | Reason::Direction
        | Reason::SegmentChange
        | Reason::PathEnd
        | Reason::LinkDown
        | Reason::UnknownService
        | Reason::HostAddress => true,
    }
}

impl Router {
    /// Counts a refusal, and composes the SCMP message for the sender if there is one and the limit allows it. The packet
    /// stays as it is.
    #[cold]
    pub(super) fn refuse(&mut self, frame: &Frame<'_>, refusal: Refusal, now: Now) -> Action {
        let reason = refusal.reason;
        if let (Reason::BadMac, Ingress::External(interface)) = (reason, frame.ingress)
            && let Some(count) = self.bad_macs.get_mut(usize::from(interface))
        {
            *count += 1;
            let limits = self.bad_mac_limits.as_mut();
            if let Some(bucket) = limits.and_then(|limits| limits.buckets.get_mut(usize::from(interface))) {
                bucket.take(now.instant);
            }
        }
        if !is_answered(reason) {
            return Action::Drop(reason);
        }
        if self.may_answer(frame.ingress, now.instant)
            && let Some((message, header)) = self.error(frame, refusal)
        {
            self.composed.push(&header, message, frame.octets);
            return Action::Answer(reason);
        }
        self.counters.unanswered += 1;
        Action::Drop(reason)
    }

    /// Takes one answer to a packet that came in by `ingress` out of the limit, if there is one left.
    fn may_answer(&mut self, ingress: Ingress, now: Instant) -> bool {
        let place = match ingress {
            Ingress::Internal => 0,
            Ingress::Sibling(sibling) => 1 + usize::from(sibling),
            Ingress::External(interface) => self.interface(interface).map_or(0, |found| found.place.into()),
        };
        self.answers.take(place, now)
    }

    /// The SCMP error for a refusal and the header that carries it; `None` if the packet gets none.
    fn error(&self, frame: &Frame<'_>, refusal: Refusal) -> Option<(Message, Header)> {
        let octets = &*frame.octets;
        let (header, payload) = match refusal.reason {
            Reason::PacketSize => decode_alone(octets)?,
            _ => Header::decode(octets).ok()?,
        };
        let Path::Standard(path) = &header.path else { return None };
        if is_scmp_error(header.next_header, payload, refusal.reason) {
            return None;
        }
        // If the packet changes its segment here, the error may lie in the segment to which it changes.
        let next = usize::from(refusal.is_next);
        let (info, hop) = (usize::from(path.meta.current_info) + next, usize::from(path.meta.current_hop) + next);
        let construction = path.infos.get(info)?.construction;
        let field = path.hops.get(hop)?;
        let path_at = header.wire_len() - header.path.wire_len();
        let info_at = path_at + 4 + 8 * info;
        let hop_at = path_at + 4 + 8 * path.infos.len() + 12 * hop;
        let (unknown_in, unknown_out, egress) = match construction {
            true => (Problem::UnknownHopFieldIngress, Problem::UnknownHopFieldEgress, field.cons_egress),
            false => (Problem::UnknownHopFieldEgress, Problem::UnknownHopFieldIngress, field.cons_ingress),
        };
        let is_last = hop + 1 == path.hops.len();
        let problem =
            |code: Problem, at: usize| Some(Message::ParameterProblem { code: code as u8, pointer: at as u16 });
        let message = match refusal.reason {
            Reason::PacketSize => problem(Problem::InvalidPacketSize, 0),
            Reason::WrongIngress => problem(unknown_in, hop_at),
            Reason::UnknownEgress => problem(unknown_out, hop_at),
            Reason::SourceAddress => problem(Problem::InvalidSourceAddress, SOURCE),
            Reason::DestinationAddress | Reason::PathEnd if is_last && header.dst != self.isd_as => {
                problem(Problem::NonLocalDelivery, DESTINATION)
            }
            Reason::DestinationAddress => problem(Problem::InvalidDestinationAddress, DESTINATION),
            Reason::Expired | Reason::Future => problem(Problem::PathExpired, hop_at),
            Reason::Direction => problem(Problem::InvalidPath, hop_at),
            Reason::BadMac => problem(Problem::InvalidHopFieldMac, hop_at),
            Reason::SegmentChange => problem(Problem::InvalidSegmentChange, info_at),
            Reason::Extension => problem(Problem::InvalidExtensionHeader, header.wire_len()),
            Reason::LinkDown => Some(self.link_down(frame.ingress, egress)),
            Reason::UnknownService => Some(Message::DestinationUnreachable { code: NO_ROUTE }),
            // An address of a known type that is no host, or a type that is not known.
            Reason::HostAddress if matches!(octets[ADDRESS_TYPES] >> 4, 0 | 3) => {
                problem(Problem::InvalidDestinationAddress, ADDRESSES)
            }
            Reason::HostAddress => problem(Problem::UnknownAddressFormat, ADDRESS_TYPES),
            _ => None,
        }?;
        Some((message, self.answer_header(header, frame.ingress)?))
    }

    /// The link at `egress` is down: that to the neighbour if the interface is this router's, and otherwise the way to the
    /// router that has it.
    fn link_down(&self, ingress: Ingress, egress: u16) -> Message {
        let isd_as = self.isd_as;
        match (self.interface(egress).map(|found| found.owner), ingress) {
            (Some(Owner::Sibling(_)), Ingress::External(ingress)) => {
                Message::InternalConnectivityDown { isd_as, ingress: ingress.into(), egress: egress.into() }
            }
            _ => Message::ExternalInterfaceDown { isd_as, interface: egress.into() },
        }
    }

    /// The header of an answer to a packet with `header`: back along its path, which has not been rewritten yet, and for no
    /// router on the way to look at. `None` if the packet has no sender that may be answered.
    fn answer_header(&self, header: Header, ingress: Ingress) -> Option<Header> {
        if !self.local.may_be_answered(header.src_host) {
            return None;
        }
        let Path::Standard(path) = &header.path else { return None };
        let mut path = way_back(path, ingress)?;
        path.hops.iter_mut().for_each(|hop| (hop.ingress_alert, hop.egress_alert) = (false, false));
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

    /// What happens to a traceroute request for `interface`: it is answered if the limit allows it, and goes no further.
    /// `None` if the packet is no such request. No MAC covers the flag by which it came here, so that anybody can send them
    /// by any valid path.
    #[cold]
    pub(super) fn traceroute(&mut self, frame: &Frame<'_>, interface: u16, now: Now) -> Option<Action> {
        let (identifier, sequence) = traceroute_request(frame.octets)?;
        let reply = Message::TracerouteReply { identifier, sequence, isd_as: self.isd_as, interface: interface.into() };
        if self.may_answer(frame.ingress, now.instant)
            && let Ok((header, _)) = Header::decode(frame.octets)
            && let Some(header) = self.answer_header(header, frame.ingress)
        {
            self.composed.push(&header, reply, &[]);
            return Some(Action::Answer(Reason::Traceroute));
        }
        self.counters.unanswered += 1;
        Some(Action::Drop(Reason::Traceroute))
    }
}

/// Identifier and sequence number of a traceroute request.
fn traceroute_request(octets: &[u8]) -> Option<(u16, u16)> {
    let layout = Layout::decode(octets).ok()?;
    let inner = Extensions::decode(layout.next_header, &octets[layout.header_len..]).ok()?;
    if inner.next_header != next_header::SCMP {
        return None;
    }
    match Message::decode(inner.rest) {
        Ok((Message::TracerouteRequest { identifier, sequence }, _)) => Some((identifier, sequence)),
        _ => None,
    }
}

/// The header of a packet whose payload is not as long as the header says, and the octets behind it.
fn decode_alone(octets: &[u8]) -> Option<(Header, &[u8])> {
    let length = 4 * usize::from(*octets.get(5)?);
    let (header, payload) = octets.split_at_checked(length)?;
    let mut copy = [0; LONGEST_HEADER];
    let copy = copy.get_mut(..length)?;
    copy.copy_from_slice(header);
    copy.get_mut(6..8)?.fill(0);
    Some((Header::decode(copy).ok()?.0, payload))
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

/// Whether a payload is, or may be, an SCMP error, or SCMP that cannot be read. None of them is answered, so that two routers never answer
/// each other's errors.
fn is_scmp_error(next: u8, payload: &[u8], reason: Reason) -> bool {
    match Extensions::decode(next, payload) {
        Ok(inner) if inner.next_header == next_header::SCMP => {
            inner.rest.first().is_none_or(|&kind| kind < INFORMATIONAL)
        }
        Ok(_) => false,
        // What a malformed extension header hides is unknown. Its only answer is the error about that header.
        Err(_) => reason != Reason::Extension,
    }
}

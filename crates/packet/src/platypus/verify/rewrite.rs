//! How a packet leaves a waypoint: the next destination, the waypoint's own source, one hop less to live.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;

use wayleave_core::Afi;

use super::super::header::offsets::{self, Offsets, POINTER, PROTOCOL, lean};
use super::super::header::{
    Carriage, DelegationId, IPV4_HEADER, IPV6_HEADER, Interval, Packet, Principal, UDP_HEADER, kind, paper_kind,
    rewrite_ipv4, udp, v4, v6, write_ipv4_checksum,
};
use super::super::mint::reply::option_length;

/// A decision to forward: where in the datagram lies what is to be written. It is small, since a router holds one for
/// every packet of a burst; the datagram that was verified says the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forward {
    /// Where the Platypus header begins. All offsets are below 40 + 8 + 44 + 255 * 4 octets.
    header: u16,
    /// Where the verified capability begins: with the address of this waypoint, the new outer source.
    capability: u16,
    /// Where its binding begins.
    binding: u16,
    /// Where the new outer destination lies: the next waypoint, or the final destination.
    next: u16,
    /// The pointer's new value.
    pointer: u8,
    /// The new TTL or hop limit.
    pub ttl: u8,
    carriage: Carriage,
    shape: Shape,
    /// Whether no capability is left.
    pub is_last: bool,
    /// Version 0: the original source, to be written where the header had none.
    original_source: Option<Ipv4Addr>,
    /// The commonest shape: the word of the IPv4 header with TTL, protocol and checksum as it leaves, as it lies in memory.
    rewritten: u32,
}

/// Version and family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shape {
    Paper,
    Ipv4,
    Ipv6,
    /// IPv4 over IP with one capability that is not delegated: everything lies where [`lean`] says.
    Lean,
}

/// Octets of the commonest shape up to the end of half a binding.
const LEAN_FRONT: usize = lean::BINDING + 8;

impl Shape {
    fn offsets(self) -> &'static Offsets {
        match self {
            Self::Paper => &offsets::PAPER,
            Self::Ipv4 | Self::Lean => &offsets::IPV4,
            Self::Ipv6 => &offsets::IPV6,
        }
    }
}

/// Who pays for a packet, and under which delegation and key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Charge {
    /// The principal.
    pub principal: Principal,
    /// The delegation, and the sub-delegation within it.
    pub delegation: Option<(DelegationId, Option<DelegationId>)>,
    /// How long a key epoch lasts; `None` in version 0.
    pub interval: Option<Interval>,
    /// The full epoch; the key ID in version 0.
    pub epoch: u32,
}

impl Charge {
    /// Of a capability that has been decoded.
    #[inline]
    fn read(capability: &[u8], table: &Offsets) -> Self {
        let at = &table.capability;
        let principal = Principal::from_octets(offsets::three(capability, at.principal));
        let kind = capability[at.kind];
        let id = |at| DelegationId::from_octets(offsets::three(capability, at));
        if table.version == 0 {
            let delegation = (kind & paper_kind::DELEGATED != 0).then(|| (id(at.delegation_id), None));
            return Self { principal, delegation, interval: None, epoch: u32::from(kind >> 4) };
        }
        let sub = || (kind & kind::SUB_DELEGATED != 0).then(|| id(at.sub_length + 1));
        let delegation = (kind & kind::DELEGATED != 0).then(|| (id(at.delegation_id), sub()));
        let interval = Interval::new(kind & kind::INTERVAL);
        Self { principal, delegation, interval, epoch: offsets::word(capability, at.epoch) }
    }
}

impl Forward {
    /// The decision for capability `index`, which has been verified.
    #[must_use]
    pub fn of(packet: &Packet<'_>, index: usize) -> Self {
        let table = packet.table();
        let header = packet.outer().length;
        let is_last = index + 1 == packet.count();
        let next = if is_last { header + table.destination } else { packet.capability_offset(index + 1) };
        let source = match packet.outer().source {
            IpAddr::V4(source) if packet.original_source().is_unspecified() => Some(source),
            _ => None,
        };
        let binding = packet.binding_range(index).start;
        // One capability of IPv4 over IP ends elsewhere if it is delegated.
        let is_lean = packet.outer().carriage == Carriage::Ip && packet.count() == 1 && binding == lean::BINDING;
        Self {
            header: header as u16,
            capability: packet.capability_offset(index) as u16,
            binding: binding as u16,
            next: next as u16,
            pointer: packet.pointer_to(index + 1),
            ttl: packet.outer().ttl.saturating_sub(1),
            carriage: packet.outer().carriage,
            shape: match (table.version, table.family) {
                (0, _) => Shape::Paper,
                (_, Afi::Ipv4) if is_lean => Shape::Lean,
                (_, Afi::Ipv4) => Shape::Ipv4,
                (_, Afi::Ipv6) => Shape::Ipv6,
            },
            is_last,
            original_source: source.filter(|_| table.version == 0),
            rewritten: if is_lean { rewritten(packet) } else { 0 },
        }
    }

    /// The decision for an IPv4 packet over IP with one capability, whose list has `pointer` words; `rewritten` is the word
    /// with TTL, protocol and checksum, as it lies in memory.
    #[inline(always)]
    #[must_use]
    pub const fn lean(rewritten: u32, pointer: u8) -> Self {
        Self {
            header: lean::HEADER as u16,
            capability: lean::CAPABILITY as u16,
            binding: lean::BINDING as u16,
            next: lean::DESTINATION as u16,
            pointer,
            ttl: rewritten.to_ne_bytes()[0],
            carriage: Carriage::Ip,
            shape: Shape::Lean,
            is_last: true,
            original_source: None,
            rewritten,
        }
    }

    /// The new outer source: the waypoint. `datagram` is what was verified, as for all that follow.
    #[must_use]
    pub fn source(&self, datagram: &[u8]) -> IpAddr {
        offsets::address(datagram, self.capability.into(), self.shape.offsets().family)
    }

    /// The new outer destination: the next waypoint, or the final destination.
    #[must_use]
    pub fn destination(&self, datagram: &[u8]) -> IpAddr {
        offsets::address(datagram, self.next.into(), self.shape.offsets().family)
    }

    /// The verified capability's octets without its binding.
    #[must_use]
    pub fn capability<'a>(&self, datagram: &'a [u8]) -> &'a [u8] {
        &datagram[self.capability.into()..self.binding.into()]
    }

    /// What was verified, from the binding on.
    #[inline(always)]
    #[must_use]
    pub fn binding<'a>(&self, datagram: &'a [u8]) -> &'a [u8] {
        &datagram[self.binding.into()..]
    }

    /// Whom the packet is charged to.
    #[must_use]
    #[inline(always)]
    pub fn charge(&self, datagram: &[u8]) -> Charge {
        if self.shape == Shape::Lean
            && let Some(front) = datagram.first_chunk::<LEAN_FRONT>()
        {
            return Charge {
                principal: Principal::from_octets(offsets::three(front, lean::PRINCIPAL)),
                delegation: None,
                interval: Interval::new(front[lean::KIND] & kind::INTERVAL),
                epoch: offsets::word(front, lean::EPOCH),
            };
        }
        Charge::read(&datagram[usize::from(self.capability)..], self.shape.offsets())
    }

    /// Octets that no two packets share: the nonce (none in version 0) and half of the binding just verified.
    #[must_use]
    #[inline(always)]
    pub fn fingerprint(&self, datagram: &[u8]) -> [u8; 16] {
        let mut out = [0; 16];
        if self.shape == Shape::Lean
            && let Some(front) = datagram.first_chunk::<LEAN_FRONT>()
        {
            out[..8].copy_from_slice(&front[lean::NONCE..lean::NONCE + 8]);
            out[8..].copy_from_slice(&front[lean::BINDING..]);
            return out;
        }
        let binding = usize::from(self.binding);
        out[8..].copy_from_slice(&datagram[binding..binding + 8]);
        if self.shape != Shape::Paper {
            let nonce = usize::from(self.header) + self.shape.offsets().nonce;
            out[..8].copy_from_slice(&datagram[nonce..nonce + 8]);
        }
        out
    }

    /// Rewrites the packet in place.
    #[inline(always)]
    pub fn apply(&self, datagram: &mut [u8]) {
        if self.shape != Shape::Lean || !Self::apply_lean(datagram, self.rewritten, self.pointer) {
            self.apply_any(datagram);
        }
    }

    /// Does what [`lean`](Self::lean) with the same `rewritten` and `pointer` decides; whether the packet was long enough, as
    /// one that was verified is.
    #[inline(always)]
    pub fn apply_lean(datagram: &mut [u8], rewritten: u32, pointer: u8) -> bool {
        let Some(front) = datagram.first_chunk_mut::<LEAN_FRONT>() else { return false };
        front[lean::PLACE] = pointer;
        let four = |at: usize| [front[at], front[at + 1], front[at + 2], front[at + 3]];
        let (source, destination) = (four(lean::CAPABILITY), four(lean::DESTINATION));
        front[v4::TTL..v4::SOURCE].copy_from_slice(&rewritten.to_ne_bytes());
        front[v4::SOURCE..v4::DESTINATION].copy_from_slice(&source);
        front[v4::DESTINATION..IPV4_HEADER].copy_from_slice(&destination);
        true
    }

    /// The same for every shape.
    #[inline(never)]
    fn apply_any(&self, datagram: &mut [u8]) {
        let header = usize::from(self.header);
        datagram[header + POINTER] = self.pointer;
        if let Some(source) = self.original_source {
            write_address(datagram, header + offsets::SOURCE, source.into());
        }
        if self.carriage == Carriage::Socket {
            return;
        }
        let (source, destination) = (usize::from(self.capability), usize::from(self.next));
        if self.shape == Shape::Ipv6 {
            datagram.copy_within(source..source + 16, v6::SOURCE);
            datagram.copy_within(destination..destination + 16, v6::DESTINATION);
            datagram[v6::HOP_LIMIT] = self.ttl;
        } else {
            let four = |at: usize| [datagram[at], datagram[at + 1], datagram[at + 2], datagram[at + 3]];
            let (source, destination) = (four(source), four(destination));
            rewrite_ipv4(datagram, self.ttl, source, destination);
        }
        if self.carriage == Carriage::Udp {
            let checksum = header - UDP_HEADER + udp::CHECKSUM;
            datagram[checksum..checksum + 2].fill(0);
        }
    }
}

/// The word with TTL, protocol and checksum of a packet of the commonest shape as it leaves.
fn rewritten(packet: &Packet<'_>) -> u32 {
    let mut header = [0; IPV4_HEADER];
    header.copy_from_slice(&packet.datagram()[..IPV4_HEADER]);
    let four = |at: usize| offsets::word(packet.datagram(), at).to_be_bytes();
    rewrite_ipv4(&mut header, packet.outer().ttl.saturating_sub(1), four(lean::CAPABILITY), four(lean::DESTINATION));
    let mut word = [0; 4];
    word.copy_from_slice(&header[v4::TTL..v4::SOURCE]);
    u32::from_ne_bytes(word)
}

/// Takes the Platypus header off an IP packet that has passed its last waypoint: writes the inner IP header right in
/// front of the payload (behind a reply option, if there is one), and returns where the inner packet lies. `datagram` is
/// what the layout was made of.
pub fn strip(datagram: &mut [u8], layout: &Layout) -> Option<Range<usize>> {
    let Layout { family, payload, end, protocol, source, destination } = *layout;
    match family {
        Afi::Ipv4 => {
            let start = payload.checked_sub(IPV4_HEADER)?;
            datagram.copy_within(..IPV4_HEADER, start);
            let inner = &mut datagram[start..end];
            let length = u16::try_from(inner.len()).ok()?;
            inner[v4::TOTAL_LENGTH..v4::TOTAL_LENGTH + 2].copy_from_slice(&length.to_be_bytes());
            inner[v4::PROTOCOL] = protocol;
            write_address(inner, v4::SOURCE, source);
            write_address(inner, v4::DESTINATION, destination);
            write_ipv4_checksum(inner);
            Some(start..end)
        }
        Afi::Ipv6 => {
            let start = payload.checked_sub(IPV6_HEADER)?;
            datagram.copy_within(..IPV6_HEADER, start);
            let inner = &mut datagram[start..end];
            let length = u16::try_from(inner.len() - IPV6_HEADER).ok()?;
            inner[v6::PAYLOAD_LENGTH..v6::PAYLOAD_LENGTH + 2].copy_from_slice(&length.to_be_bytes());
            inner[v6::NEXT_HEADER] = protocol;
            write_address(inner, v6::SOURCE, source);
            write_address(inner, v6::DESTINATION, destination);
            Some(start..end)
        }
    }
}

/// What [`strip`] needs to know of a packet, which it cannot borrow while it writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    family: Afi,
    payload: usize,
    end: usize,
    protocol: u8,
    source: IpAddr,
    destination: IpAddr,
}

impl Layout {
    /// `None` if a waypoint is left, if the reply option is malformed, if the packet came through a socket, or if another
    /// Platypus packet is inside.
    #[must_use]
    pub fn of(packet: &Packet<'_>) -> Option<Self> {
        let option = if packet.has_reply_option() { option_length(packet.payload())? } else { 0 };
        let is_strippable = packet.current().is_none()
            && packet.outer().carriage != Carriage::Socket
            && packet.inner_protocol() != PROTOCOL;
        is_strippable.then(|| Self {
            family: packet.family(),
            payload: packet.payload_offset() + option,
            end: packet.datagram().len(),
            protocol: packet.inner_protocol(),
            source: packet.real_source(),
            destination: packet.final_destination(),
        })
    }
}

/// The inner IP packet of a packet that has passed its last waypoint, as a copy; see [`strip`].
#[must_use]
pub fn decapsulate(packet: &Packet<'_>) -> Option<Vec<u8>> {
    let layout = Layout::of(packet)?;
    let mut datagram = packet.datagram().to_vec();
    let range = strip(&mut datagram, &layout)?;
    Some(datagram[range].to_vec())
}

fn write_address(octets: &mut [u8], at: usize, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => octets[at..at + 4].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => octets[at..at + 16].copy_from_slice(&v6.octets()),
    }
}

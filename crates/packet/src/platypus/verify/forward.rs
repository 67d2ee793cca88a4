//! A decision to forward, and how it rewrites the packet: next destination, the waypoint's address as source, one hop less.

use std::net::IpAddr;

use wayleave_core::Afi;

use super::super::header::offsets::{self, Offsets, POINTER, SOURCE};
use super::super::header::{
    Carriage, DelegationId, Interval, Marks, Packet, Principal, UDP_HEADER, kind, rewrite_ipv4, udp, v6,
};

/// A decision to forward: where in the datagram the fields lie that are read and written next. It is small, since a router
/// keeps one for every packet of a burst; everything else is read from the datagram that was verified.
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
    family: Afi,
    /// Whether no capability is left.
    pub is_last: bool,
}

/// Who pays for a packet, and under which delegation and key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Charge {
    pub principal: Principal,
    /// The delegation, and the sub-delegation within it.
    pub delegation: Option<(DelegationId, Option<DelegationId>)>,
    /// How long a key epoch lasts; `None` only in records of the paper's version 0, whose epoch is a key ID.
    pub interval: Option<Interval>,
    /// The full number of the key epoch.
    pub epoch: u32,
}

impl Charge {
    /// Reads the octets of a capability that has been decoded.
    #[inline]
    fn read(capability: &[u8], table: &Offsets) -> Self {
        let at = &table.capability;
        let principal = Principal::from_octets(offsets::three(capability, at.principal));
        let kind = capability[at.kind];
        let id = |at| DelegationId::from_octets(offsets::three(capability, at));
        let sub = || (kind & kind::SUB_DELEGATED != 0).then(|| id(at.sub_length + 1));
        let delegation = (kind & kind::DELEGATED != 0).then(|| (id(at.delegation_id), sub()));
        let interval = Interval::new(kind & kind::INTERVAL);
        Self { principal, delegation, interval, epoch: offsets::word(capability, at.epoch) & Marks::EPOCH }
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
        Self {
            header: header as u16,
            capability: packet.capability_offset(index) as u16,
            binding: packet.binding_range(index).start as u16,
            next: next as u16,
            pointer: packet.pointer_to(index + 1),
            ttl: packet.outer().ttl.saturating_sub(1),
            carriage: packet.outer().carriage,
            family: table.family,
            is_last,
        }
    }

    /// The new outer source: the waypoint. Here and below, `datagram` is the one that was verified.
    #[must_use]
    pub fn source(&self, datagram: &[u8]) -> IpAddr {
        offsets::address(datagram, self.capability.into(), self.family)
    }

    /// The new outer destination: the next waypoint, or the final destination.
    #[must_use]
    pub fn destination(&self, datagram: &[u8]) -> IpAddr {
        offsets::address(datagram, self.next.into(), self.family)
    }

    /// The verified capability's octets without its binding.
    #[must_use]
    pub fn capability<'a>(&self, datagram: &'a [u8]) -> &'a [u8] {
        &datagram[self.capability.into()..self.binding.into()]
    }

    /// The octets from the verified binding on.
    #[inline(always)]
    #[must_use]
    pub fn binding<'a>(&self, datagram: &'a [u8]) -> &'a [u8] {
        &datagram[self.binding.into()..]
    }

    /// Whom the packet is charged to.
    #[must_use]
    #[inline(always)]
    pub fn charge(&self, datagram: &[u8]) -> Charge {
        Charge::read(&datagram[usize::from(self.capability)..], offsets::of(self.family))
    }

    /// The packet's original source, with zeros behind an address of IPv4.
    #[must_use]
    #[inline(always)]
    pub fn original_source(&self, datagram: &[u8]) -> [u8; 16] {
        let mut out = [0; 16];
        let size = if self.family == Afi::Ipv6 { 16 } else { 4 };
        let source = usize::from(self.header) + SOURCE;
        out[..size].copy_from_slice(&datagram[source..source + size]);
        out
    }

    /// The packet's original source and final destination.
    #[must_use]
    #[inline(always)]
    pub fn ends(&self, datagram: &[u8]) -> (IpAddr, IpAddr) {
        let address = |at| offsets::address(datagram, usize::from(self.header) + at, self.family);
        (address(SOURCE), address(offsets::of(self.family).destination))
    }

    /// What the verified capability is marked with.
    #[must_use]
    #[inline(always)]
    pub fn marks(&self, datagram: &[u8]) -> Marks {
        let epoch = offsets::of(self.family).capability.epoch;
        Marks::of_word(offsets::word(datagram, usize::from(self.capability) + epoch))
    }

    /// When the packet was stamped, in Unix seconds modulo 2^32.
    #[must_use]
    #[inline(always)]
    pub fn stamped(&self, datagram: &[u8]) -> u32 {
        offsets::word(datagram, usize::from(self.header) + offsets::of(self.family).nonce)
    }

    /// Octets that no two packets share, nor two visits of one packet: the nonce, and half of the binding that was verified.
    /// The pointer, which is under no MAC, is not among them: the binding itself depends on the place of its capability.
    #[must_use]
    #[inline(always)]
    pub fn fingerprint(&self, datagram: &[u8]) -> [u8; 16] {
        let mut out = [0; 16];
        let binding = usize::from(self.binding);
        out[8..].copy_from_slice(&datagram[binding..binding + 8]);
        let nonce = usize::from(self.header) + offsets::of(self.family).nonce;
        out[..8].copy_from_slice(&datagram[nonce..nonce + 8]);
        out
    }

    /// Rewrites the packet in place: pointer, outer addresses, time to live and checksums.
    pub fn apply(&self, datagram: &mut [u8]) {
        let header = usize::from(self.header);
        datagram[header + POINTER] = self.pointer;
        if self.carriage == Carriage::Socket {
            return;
        }
        let (source, destination) = (usize::from(self.capability), usize::from(self.next));
        if self.family == Afi::Ipv6 {
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

//! Simple packets: IPv4 over IP with one capability that is neither delegated nor sealed. Most packets are, and the fast
//! path takes no others.

use std::net::{IpAddr, Ipv4Addr};

use wayleave_packet::platypus::header::offsets::{self, IPV4};
use wayleave_packet::platypus::header::{IPV4_HEADER, Interval, Marks, Principal, kind, v4};
use wayleave_packet::platypus::verify::Charge;

use super::super::router::Forwarding;

/// Where the fields of a simple packet lie. There are no options and no other capabilities, so that every offset is a
/// constant: those of `header::offsets`, behind an IPv4 header.
pub(super) mod at {
    use super::{IPV4, IPV4_HEADER, offsets};

    pub(in super::super) const HEADER: usize = IPV4_HEADER;
    pub(in super::super) const FLAGS: usize = HEADER + offsets::VERSION_AND_FLAGS;
    pub(in super::super) const LENGTH: usize = HEADER + offsets::LENGTH;
    pub(in super::super) const POINTER: usize = HEADER + offsets::POINTER;
    pub(in super::super) const INNER_PROTOCOL: usize = HEADER + offsets::INNER_PROTOCOL;
    pub(in super::super) const SOURCE: usize = HEADER + offsets::SOURCE;
    pub(in super::super) const DESTINATION: usize = HEADER + IPV4.destination;
    pub(in super::super) const NONCE: usize = HEADER + IPV4.nonce;
    pub(in super::super) const CAPABILITY: usize = HEADER + IPV4.capabilities;
    pub(in super::super) const PRINCIPAL: usize = CAPABILITY + IPV4.capability.principal;
    pub(in super::super) const KIND: usize = CAPABILITY + IPV4.capability.kind;
    pub(in super::super) const EPOCH: usize = CAPABILITY + IPV4.capability.epoch;
    pub(in super::super) const BINDING: usize = CAPABILITY + IPV4.capability.prefix;
}

/// Octets up to the end of half a binding: every simple packet has them.
const FRONT: usize = at::BINDING + 8;

/// How a verified simple packet is sent on; the same as `Forward` decides for it, in the little that differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimpleForward {
    /// The word of the IPv4 header with TTL, protocol and checksum as the packet leaves, as it lies in memory.
    pub(super) rewritten: u32,
    /// The pointer's new value: behind the only capability.
    pub(super) pointer: u8,
}

impl SimpleForward {
    /// The binding and what follows it.
    #[inline(always)]
    pub(super) fn binding(datagram: &[u8]) -> &[u8] {
        datagram.get(at::BINDING..).unwrap_or_default()
    }
}

/// What `Forward` does, at constant offsets. A datagram that was verified has the octets; another one is left alone.
impl Forwarding for SimpleForward {
    #[inline(always)]
    fn charge(&self, datagram: &[u8]) -> Charge {
        let front = front(datagram);
        Charge {
            principal: Principal::from_octets(offsets::three(front, at::PRINCIPAL)),
            delegation: None,
            interval: Interval::new(front[at::KIND] & kind::INTERVAL),
            epoch: offsets::word(front, at::EPOCH) & Marks::EPOCH,
        }
    }

    #[inline(always)]
    fn stamped(&self, datagram: &[u8]) -> u32 {
        offsets::word(front(datagram), at::NONCE)
    }

    #[inline(always)]
    fn fingerprint(&self, datagram: &[u8]) -> [u8; 16] {
        let front = front(datagram);
        let mut out = [0; 16];
        out[..8].copy_from_slice(&front[at::NONCE..at::NONCE + 8]);
        out[8..].copy_from_slice(&front[at::BINDING..]);
        out
    }

    #[inline(always)]
    fn original_source(&self, datagram: &[u8]) -> [u8; 16] {
        let mut out = [0; 16];
        out[..4].copy_from_slice(&front(datagram)[at::SOURCE..at::SOURCE + 4]);
        out
    }

    #[inline(always)]
    fn ends(&self, datagram: &[u8]) -> (IpAddr, IpAddr) {
        let address = |at| Ipv4Addr::from(offsets::word(front(datagram), at)).into();
        (address(at::SOURCE), address(at::DESTINATION))
    }

    #[inline(always)]
    fn marks(&self, datagram: &[u8]) -> Marks {
        Marks::of_word(offsets::word(front(datagram), at::EPOCH))
    }

    #[inline(always)]
    fn apply(&self, datagram: &mut [u8]) {
        let Some(front) = datagram.first_chunk_mut::<FRONT>() else { return };
        front[at::POINTER] = self.pointer;
        let word = |at: usize| [front[at], front[at + 1], front[at + 2], front[at + 3]];
        let (source, destination) = (word(at::CAPABILITY), word(at::DESTINATION));
        front[v4::TTL..v4::SOURCE].copy_from_slice(&self.rewritten.to_ne_bytes());
        front[v4::SOURCE..v4::DESTINATION].copy_from_slice(&source);
        front[v4::DESTINATION..IPV4_HEADER].copy_from_slice(&destination);
    }
}

#[inline(always)]
fn front(datagram: &[u8]) -> &[u8; FRONT] {
    datagram.first_chunk().unwrap_or(&[0; FRONT])
}

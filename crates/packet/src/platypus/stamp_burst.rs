//! A stamper's work over a burst of IPv4 packets with one capability each: headers in place, bindings in lanes. The
//! outcome is that of [`encapsulate`](super::mint::encapsulate), which does every other shape.

use std::net::IpAddr;

use wayleave_crypto::lanes::{BURST, Block, Kernel, Parts, cmac_each};

use super::header::offsets::{INNER_PROTOCOL, IPV4, LENGTH, POINTER, PROTOCOL, SOURCE, VERSION_AND_FLAGS, WORD, half};
use super::header::{CapabilityOctets, IPV4_HEADER, Malformed, Width, v4, write_ipv4_checksum};
use super::mint::{Hop, MintError, Nonce, PURPOSE_BINDING, label};

/// Blocks of the head of any IPv4 packet that is not sealed.
const HEAD: usize = 3;

/// A capability that is laid out for many packets.
#[derive(Clone)]
pub struct Ready {
    key: Block,
    capability: CapabilityOctets,
    waypoint: [u8; 4],
    width: Width,
}

impl Drop for Ready {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.key);
    }
}

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ready(..)")
    }
}

impl Ready {
    /// `None` unless the capability is of IPv4 and consistent.
    #[must_use]
    pub fn new(hop: &Hop) -> Option<Self> {
        let IpAddr::V4(waypoint) = hop.capability.waypoint else { return None };
        hop.capability.is_consistent().then(|| Self {
            key: *hop.key.expose(),
            capability: hop.capability.octets(),
            waypoint: waypoint.octets(),
            width: hop.capability.width,
        })
    }

    /// Octets that a packet grows by.
    #[must_use]
    pub fn growth(&self) -> usize {
        IPV4.capabilities + self.capability.as_slice().len() + self.width.octets()
    }
}

/// An IPv4 packet with room in front.
#[derive(Debug)]
pub struct Unstamped<'a> {
    /// Room, then the packet, which ends where its total length says or before this ends.
    pub buffer: &'a mut [u8],
    /// Where the packet begins.
    pub begin: usize,
    /// What stamps it.
    pub ready: &'a Ready,
    /// Different for every packet.
    pub nonce: Nonce,
}

/// Stamps at most [`BURST`] packets in place. The outcome at the same place is where the stamped packet begins, or why it
/// was left as it is.
pub fn stamp(kernel: Kernel, packets: &mut [Unstamped<'_>], outcomes: &mut [Result<usize, MintError>]) {
    let mut keys = [[0; 16]; BURST];
    let mut heads = [[[0; 16]; HEAD]; BURST];
    let mut tags = [[0; 16]; BURST];
    let count = packets.len().min(outcomes.len()).min(BURST);
    for (slot, (packet, outcome)) in packets.iter_mut().zip(outcomes.iter_mut()).take(count).enumerate() {
        *outcome = lay_out(packet, &mut heads[slot]);
        keys[slot] = packet.ready.key;
    }
    let mut messages = [Parts::default(); BURST];
    for (slot, (message, packet)) in messages.iter_mut().zip(packets.iter()).take(count).enumerate() {
        if let Ok(begin) = outcomes[slot] {
            let total = usize::from(half(packet.buffer, begin + v4::TOTAL_LENGTH));
            let payload = &packet.buffer[packet.begin + IPV4_HEADER..begin + total];
            *message = Parts { head: &heads[slot], tail: payload };
        }
    }
    cmac_each(kernel, &keys[..count], &messages[..count], &mut tags[..count]);
    for ((packet, outcome), tag) in packets.iter_mut().zip(outcomes.iter()).zip(&tags).take(count) {
        if outcome.is_ok() {
            let (payload, width) = (packet.begin + IPV4_HEADER, packet.ready.width.octets());
            packet.buffer[payload - width..payload].copy_from_slice(&tag[..width]);
        }
    }
    zeroize::Zeroize::zeroize(&mut keys);
}

/// Writes both headers in front of the payload, and the masked head; the binding stays open.
#[inline]
fn lay_out(packet: &mut Unstamped<'_>, head: &mut [Block; HEAD]) -> Result<usize, MintError> {
    let Unstamped { buffer, begin, ready, nonce } = packet;
    let have = buffer.len().saturating_sub(*begin);
    let truncated = |need| MintError::Inner(Malformed::Truncated { need, have });
    let inner: [u8; IPV4_HEADER] =
        *buffer.get(*begin..).and_then(|inner| inner.first_chunk()).ok_or(truncated(IPV4_HEADER))?;
    let total = usize::from(half(&inner, v4::TOTAL_LENGTH)).max(IPV4_HEADER);
    match inner[v4::VERSION_AND_LENGTH] {
        0x45 => {}
        first if first >> 4 == 4 => return Err(MintError::Inner(Malformed::Options)),
        _ => return Err(MintError::Inner(Malformed::NotIp)),
    }
    if half(&inner, v4::FRAGMENT) & v4::FRAGMENTED != 0 {
        return Err(MintError::Inner(Malformed::Fragment));
    }
    if total > have {
        return Err(truncated(total));
    }
    let growth = ready.growth();
    let length = u16::try_from(total + growth).map_err(|_| MintError::TooLong(total + growth))?;
    let start = begin.checked_sub(growth).ok_or(MintError::TooLong(total + growth))?;

    let (ip, platypus) = buffer[start..*begin + IPV4_HEADER].split_at_mut(IPV4_HEADER);
    ip.copy_from_slice(&inner);
    ip[v4::TOTAL_LENGTH..v4::TOTAL_LENGTH + 2].copy_from_slice(&length.to_be_bytes());
    ip[v4::PROTOCOL] = PROTOCOL;
    ip[v4::DESTINATION..v4::DESTINATION + 4].copy_from_slice(&ready.waypoint);
    write_ipv4_checksum(ip);
    platypus[VERSION_AND_FLAGS] = IPV4.version << 4;
    // At most ten words.
    platypus[LENGTH] = ((growth - IPV4.capabilities) / WORD) as u8;
    platypus[POINTER] = 0;
    platypus[INNER_PROTOCOL] = inner[v4::PROTOCOL];
    platypus[SOURCE..IPV4.nonce].copy_from_slice(&inner[v4::SOURCE..]);
    platypus[IPV4.nonce..IPV4.capabilities].copy_from_slice(&nonce.octets());
    let capability = ready.capability.as_slice();
    platypus[IPV4.capabilities..IPV4.capabilities + capability.len()].copy_from_slice(capability);

    let octets = head.as_flattened_mut();
    octets[..4].copy_from_slice(&label(PURPOSE_BINDING, wayleave_core::Afi::Ipv4));
    octets[4] = inner[v4::PROTOCOL];
    octets[5] = IPV4.version << 4;
    octets[6..8].copy_from_slice(&((total - IPV4_HEADER) as u16).to_be_bytes());
    octets[8..16].copy_from_slice(&inner[v4::SOURCE..]);
    octets[16..16 + capability.len()].copy_from_slice(capability);
    octets[16 + capability.len()..24 + capability.len()].copy_from_slice(&nonce.octets());
    Ok(start)
}

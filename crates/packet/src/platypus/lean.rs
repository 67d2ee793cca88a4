//! The commonest shape of packet, checked by reading its fields in place: IPv4 over IP, one capability, neither delegated
//! nor sealed. What most packets of a burst have in common is compared as a whole.

use std::net::{IpAddr, Ipv4Addr};

use wayleave_core::{Afi, UnixTime};
use wayleave_crypto::lanes::Block;

use super::header::offsets::lean as at;
use super::header::offsets::{FLAG_REPLY, PROTOCOL, WORD};
use super::header::{Interval, ipv4_header_is_right, kind, v4};
use super::mint::{PURPOSE_BINDING, PURPOSE_SECRET, WaypointKey, epoch, label};
use super::verify::Waypoint;

/// Blocks of such a packet's head: what its binding is computed over in front of the payload.
pub(super) const HEAD: usize = 3;
/// Octets up to its binding.
const FRONT: usize = at::BINDING;
/// Words of eight octets that hold them, the last one half.
const WORDS: usize = FRONT.div_ceil(8);

/// The bits that packets for one waypoint have in common, if they are under one key and bindings are of one width: version
/// and header length, fragmentation, protocol, destination; version, flags (but for the reply option's), length and pointer
/// of the Platypus header; waypoint, kind and epoch of the capability.
const COMMON: [u64; WORDS] = {
    let mut mask = [0; FRONT];
    let ranges = [
        (v4::VERSION_AND_LENGTH, 1),
        (v4::FRAGMENT, v4::TTL),
        (v4::PROTOCOL, v4::CHECKSUM),
        (v4::DESTINATION, at::INNER),
        (at::CAPABILITY, at::PRINCIPAL),
        (at::KIND, FRONT),
    ];
    let mut range = 0;
    while range < ranges.len() {
        let (mut octet, end) = ranges[range];
        while octet < end {
            mask[octet] = 0xff;
            octet += 1;
        }
        range += 1;
    }
    mask[v4::FRAGMENT] = (v4::FRAGMENTED >> 8) as u8;
    mask[at::FLAGS] = !FLAG_REPLY;
    words(&mask)
};

/// The octets by words in this machine's order, zeros behind them.
#[inline(always)]
const fn words(front: &[u8; FRONT]) -> [u64; WORDS] {
    let (whole, rest) = front.as_chunks::<8>();
    let mut words = [0; WORDS];
    let mut index = 0;
    while index < whole.len() {
        words[index] = u64::from_ne_bytes(whole[index]);
        index += 1;
    }
    words[index] = u64::from_ne_bytes([rest[0], rest[1], rest[2], rest[3], 0, 0, 0, 0]);
    words
}

/// What a packet that passes is rewritten with and where its payload lies; and the key that makes its secret.
#[derive(Clone, Copy)]
pub(super) struct Lean<'k, 'p> {
    pub(super) key: &'k WaypointKey,
    pub(super) ttl: u8,
    pub(super) pointer: u8,
    /// Octets of its binding.
    pub(super) width: usize,
    /// Octets of the tag that are compared.
    pub(super) compared: usize,
    pub(super) payload: &'p [u8],
}

/// The kins of one burst, each at a place that follows from waypoint, kind and epoch.
pub(super) type Kins<'k> = [Option<Kin<'k>>; 8];

/// What a packet of this shape has in common with those that came before it in the burst.
pub(super) struct Kin<'k> {
    here: &'k Waypoint,
    key: &'k WaypointKey,
    /// The bits of [`COMMON`].
    words: [u64; WORDS],
    /// Bits of the outer source that must be the original source's: all or none.
    source: u32,
    interval: Interval,
    width: usize,
    /// Where the payload begins.
    behind: usize,
    /// Whether the waypoint refuses networks.
    refuses: bool,
}

impl<'k> Kin<'k> {
    /// Of the first such packet: what it has in common with its kin is right and allowed.
    #[cold]
    #[inline(never)]
    fn of(front: &[u8; FRONT], waypoints: &'k [Waypoint], now: UnixTime) -> Option<Self> {
        let half = |place: usize| u16::from_be_bytes([front[place], front[place + 1]]);
        let word =
            |place: usize| u32::from_be_bytes([front[place], front[place + 1], front[place + 2], front[place + 3]]);
        let kinds = front[at::KIND];
        let width = if kinds & kind::NARROW == 0 { 16 } else { 8 };
        let behind = FRONT + width;
        let is_lean = front[v4::VERSION_AND_LENGTH] == 0x45
            && half(v4::FRAGMENT) & v4::FRAGMENTED == 0
            && front[v4::PROTOCOL] == PROTOCOL
            && front[at::FLAGS] & !FLAG_REPLY == 0x10
            && usize::from(front[at::WORDS]) * WORD == behind - at::CAPABILITY
            && front[at::PLACE] == 0
            && kinds & (kind::DELEGATED | kind::SUB_DELEGATED) == 0
            && word(v4::DESTINATION) == word(at::CAPABILITY);
        if !is_lean {
            return None;
        }
        let address = IpAddr::V4(Ipv4Addr::from(word(at::CAPABILITY)));
        let here = waypoints.iter().find(|here| here.address() == address)?;
        let policy = here.policy();
        let interval = Interval::new(kinds & kind::INTERVAL)?;
        if width != 16 && !policy.narrow || !epoch::is_accepted(interval, word(at::EPOCH), now) {
            return None;
        }
        let key = here.keys().of_epoch(interval, word(at::EPOCH))?;
        let mut words = words(front);
        words.iter_mut().zip(&COMMON).for_each(|(word, mask)| *word &= mask);
        let source = if policy.check_source { u32::MAX } else { 0 };
        Some(Self { here, key, words, source, interval, width, behind, refuses: !policy.refused.is_empty() })
    }

    #[inline(always)]
    fn holds(&self, words: &[u64; WORDS]) -> bool {
        let mut other = 0;
        for ((own, word), mask) in self.words.iter().zip(words).zip(&COMMON) {
            other |= (own ^ word) & mask;
        }
        other == 0
    }
}

/// As [`is_martian`], for an IPv4 address in this machine's order of octets, without a branch.
#[inline(always)]
fn is_martian_word(address: u32) -> bool {
    // Below 1.0.0.0 and from 224.0.0.0 on.
    (address.wrapping_sub(1 << 24) >= 223 << 24)
        | (address >> 24 == 127)
        | (address >> 16 == 169 << 8 | 254)
        | (address >> 8 == 192 << 16)
}

/// A packet of the commonest shape that is sound and allowed: writes what its secret and its binding are the MAC of.
/// `None` sends the packet the general way. `kins` are of packets before, since which `now` has not changed.
#[inline(always)]
pub(super) fn lean<'k, 'p>(
    datagram: &'p [u8],
    kins: &mut Kins<'k>,
    waypoints: &'k [Waypoint],
    now: UnixTime,
    input: &mut Block,
    head: &mut [Block; HEAD],
) -> Option<Lean<'k, 'p>> {
    let front: &[u8; FRONT] = datagram.first_chunk()?;
    let words = words(front);
    // The last bits of waypoint and epoch, and the one that tells the binding's width.
    let kin = &mut kins[usize::from(front[at::PRINCIPAL - 1] ^ front[FRONT - 1] << 1 ^ front[at::KIND] >> 3) % 8];
    if kin.as_ref().is_none_or(|kin| !kin.holds(&words)) {
        *kin = Some(Kin::of(front, waypoints, now)?);
    }
    let kin = kin.as_ref()?;
    let half = |place: usize| u16::from_be_bytes([front[place], front[place + 1]]);
    let word = |place: usize| u32::from_be_bytes([front[place], front[place + 1], front[place + 2], front[place + 3]]);
    let total = usize::from(half(v4::TOTAL_LENGTH));
    let freshness = kin.here.policy().freshness;
    // From as many seconds before now as after: 2 * 30 + 1 of them at most.
    let since = word(at::NONCE).wrapping_sub(now.secs() as u32).wrapping_add(freshness);
    let (source, last) = (word(at::SOURCE), word(at::DESTINATION));
    let is_allowed = total >= kin.behind
        && total <= datagram.len()
        && front[v4::TTL] > 1
        && front.first_chunk().is_some_and(ipv4_header_is_right)
        && (word(v4::SOURCE) ^ source) & kin.source == 0
        && since <= 2 * freshness
        && !is_martian_word(source)
        && !is_martian_word(last)
        && !(kin.refuses && kin.here.is_own(Ipv4Addr::from(last).into()));
    if !is_allowed {
        return None;
    }
    let payload = datagram.get(kin.behind..total)?;
    input[..4].copy_from_slice(&label(PURPOSE_SECRET, Afi::Ipv4));
    input[4..12].copy_from_slice(&front[at::CAPABILITY..at::EPOCH]);
    input[11] = kin.interval.exponent();
    input[12..].copy_from_slice(&front[at::EPOCH..]);
    let octets = head.as_flattened_mut();
    octets[..4].copy_from_slice(&label(PURPOSE_BINDING, Afi::Ipv4));
    octets[4] = front[at::INNER];
    octets[5] = front[at::FLAGS];
    octets[6..8].copy_from_slice(&(payload.len() as u16).to_be_bytes());
    octets[8..16].copy_from_slice(&front[at::SOURCE..at::NONCE]);
    octets[16..28].copy_from_slice(&front[at::CAPABILITY..]);
    octets[28..36].copy_from_slice(&front[at::NONCE..at::CAPABILITY]);
    octets[36..].fill(0);
    Some(Lean {
        key: kin.key,
        ttl: front[v4::TTL] - 1,
        pointer: front[at::WORDS],
        width: kin.width,
        compared: kin.here.compared(),
        payload,
    })
}

#[cfg(test)]
mod tests {
    use super::super::verify::is_martian;
    use super::*;

    #[test]
    fn martian_words_are_martians() {
        for prefix in 0..=0xff_ffffu32 {
            for address in [prefix << 8, prefix << 8 | 0xff] {
                assert_eq!(is_martian_word(address), is_martian(Ipv4Addr::from(address).into()), "{address:08x}");
            }
        }
    }
}

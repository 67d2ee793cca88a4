//! A waypoint's checks over a burst of packets, with secrets and bindings computed in lanes; the verdicts are those of
//! [`Waypoint::verify`].
//!
//! A packet of the commonest shape (IPv4 over IP, one capability, neither delegated nor sealed) is checked by reading its
//! fields in place. Whatever does not pass there goes the general way, which knows the reason.

use std::net::{IpAddr, Ipv4Addr};

use wayleave_core::UnixTime;
use wayleave_crypto::lanes::{BURST, Block, Kernel, Parts, cmac_each, prefetch_octet};

use super::delegations::Delegations;
use super::header::offsets::{FLAG_REPLY, PROTOCOL};
use super::header::{Interval, Packet, Version, ipv4_header_sum, kind, v4};
use super::mint::{HEAD_BLOCKS, PURPOSE_BINDING, PURPOSE_SECRET, WaypointKey, epoch, label, write_head};
use super::verify::{Forward, Reason, Verdict, Waypoint, is_martian};

/// Blocks of the commonest packet's head.
const LEAN_HEAD: usize = 3;
/// Octets up to the commonest packet's binding.
const LEAN_FRONT: usize = 52;
/// Packets whose first octets are on their way from memory while one is read.
const AHEAD: usize = 16;

/// One core's scratch, and the stamping keys of the delegations that it verified last.
pub struct Verifier {
    kernel: Kernel,
    keys: [Block; BURST],
    heads: Box<[[Block; HEAD_BLOCKS]; BURST]>,
    lean_heads: [[Block; LEAN_HEAD]; BURST],
    waiting: [Waiting; BURST],
    tags: [Block; BURST],
    delegations: Delegations,
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Verifier on {}", self.kernel.name())
    }
}

/// A packet that waits for its tag.
#[derive(Clone, Copy)]
struct Waiting {
    forward: Forward,
    /// Its place in the burst.
    place: u8,
    /// Blocks of its head; of the lean head if zero.
    head: u8,
    /// Octets of its binding.
    width: u8,
    /// Octets of the tag that are compared.
    compared: u8,
    /// A delegation whose stamping key is worth keeping once it has verified a packet.
    is_new: bool,
    /// Where its payload lies.
    payload: u32,
    end: u32,
}

impl Waiting {
    const NONE: Self = Self {
        forward: Forward::lean(0, 0),
        place: 0,
        head: 0,
        width: 0,
        compared: 0,
        is_new: false,
        payload: 0,
        end: 0,
    };
}

impl Verifier {
    /// A verifier that keeps the keys of `delegations` delegations.
    #[must_use]
    pub fn new(kernel: Kernel, delegations: usize) -> Self {
        Self {
            kernel,
            keys: [[0; 16]; BURST],
            heads: Box::new([[[0; 16]; HEAD_BLOCKS]; BURST]),
            lean_heads: [[[0; 16]; LEAN_HEAD]; BURST],
            waiting: [Waiting::NONE; BURST],
            tags: [[0; 16]; BURST],
            delegations: Delegations::new(delegations),
        }
    }

    /// Forgets delegations: the waypoints' keys are others now.
    pub fn forget(&mut self) {
        self.delegations.clear();
    }

    /// Decides on up to [`BURST`] IP packets of version 1 for any of `waypoints`. Verdicts beyond the packets are left.
    pub fn verify(&mut self, waypoints: &[Waypoint], datagrams: &[&[u8]], now: UnixTime, verdicts: &mut [Verdict]) {
        let datagrams = &datagrams[..datagrams.len().min(verdicts.len()).min(BURST)];
        let mut inputs: [Option<&WaypointKey>; BURST] = [None; BURST];
        let mut count = 0;
        datagrams.iter().take(AHEAD).for_each(|datagram| fetch(datagram));
        for (place, datagram) in datagrams.iter().enumerate() {
            datagrams.get(place + AHEAD).inspect(|datagram| fetch(datagram));
            let (key, head) = (&mut self.keys[count], &mut self.lean_heads[count]);
            inputs[count] = lean(datagram, waypoints, now, key, head, &mut self.waiting[count]);
            if inputs[count].is_none()
                && let Err(refused) = self.prepare(count, waypoints, datagram, now)
            {
                verdicts[place] = refused;
                continue;
            }
            self.waiting[count].place = place as u8;
            count += 1;
        }
        self.derive_secrets(&inputs[..count]);
        self.tag(datagrams, count);
        for slot in 0..count {
            let one = &self.waiting[slot];
            let datagram = datagrams[usize::from(one.place)];
            let is_right = matches(&self.tags[slot], one, datagram);
            verdicts[usize::from(one.place)] =
                if is_right { Verdict::Forward(one.forward) } else { Reason::Binding.into() };
            if is_right && one.is_new {
                self.delegations.insert(one.forward.capability(datagram), &self.keys[slot]);
            }
        }
    }

    /// The general way: every shape of packet, or the reason for which it is refused.
    fn prepare(&mut self, slot: usize, waypoints: &[Waypoint], datagram: &[u8], now: UnixTime) -> Result<(), Verdict> {
        let packet = Packet::decode(datagram, Version::Standard)?;
        let destination = packet.outer().destination;
        let here = waypoints.iter().find(|here| here.address() == destination).ok_or(Reason::NotForUs)?;
        let (index, capability) = here.check_before_mac(&packet, now)?;
        let is_delegated = capability.delegation.is_some();
        let name = packet.capability_octets(index);
        let is_cached = is_delegated && self.delegations.find(name, &mut self.keys[slot]);
        if !is_cached {
            self.keys[slot] = *here.keys().stamp_key(&capability).ok_or(Reason::KeyGone)?.expose();
        }
        self.waiting[slot] = Waiting {
            forward: Forward::of(&packet, index),
            place: 0,
            head: write_head(&packet, index, &mut self.heads[slot]) as u8,
            width: packet.binding(index).len() as u8,
            compared: here.compared() as u8,
            is_new: is_delegated && !is_cached,
            // An IPv6 packet of 65,535 octets behind its header is one of 65,575: more than 16 bits hold.
            payload: packet.payload_offset() as u32,
            end: packet.datagram().len() as u32,
        };
        Ok(())
    }

    /// Turns the inputs that wait for a waypoint's key into secrets, neighbours under one key together.
    fn derive_secrets(&mut self, inputs: &[Option<&WaypointKey>]) {
        let is_same = |a: &Option<&WaypointKey>, b: &Option<&WaypointKey>| match (a, b) {
            (Some(a), Some(b)) => std::ptr::eq(*a, *b),
            (None, None) => true,
            _ => false,
        };
        let mut begin = 0;
        for run in inputs.chunk_by(is_same) {
            let end = begin + run.len();
            if let Some(Some(key)) = run.first() {
                key.in_lanes().tag_blocks(&mut self.keys[begin..end]);
            }
            begin = end;
        }
    }

    fn tag(&mut self, datagrams: &[&[u8]], count: usize) {
        let mut messages = [Parts::default(); BURST];
        for (slot, (message, one)) in messages.iter_mut().zip(&self.waiting[..count]).enumerate() {
            let head: &[Block] = match one.head {
                0 => &self.lean_heads[slot],
                blocks => &self.heads[slot][..usize::from(blocks)],
            };
            let tail = &datagrams[usize::from(one.place)][one.payload as usize..one.end as usize];
            *message = Parts { head, tail };
        }
        cmac_each(self.kernel, &self.keys[..count], &messages[..count], &mut self.tags[..count]);
    }
}

/// Begins to fetch the first octets of a packet that is read soon.
#[inline(always)]
fn fetch(datagram: &[u8]) {
    // The headers of the commonest shape end in the second cache line.
    prefetch_octet(datagram, 0);
    prefetch_octet(datagram, 64);
}

/// Whether the first octets of a tag are those presented, without a branch on any of them.
#[inline(always)]
fn matches(tag: &Block, one: &Waiting, datagram: &[u8]) -> bool {
    let presented = one.forward.binding(datagram);
    let presented = match (one.width, presented.first_chunk::<16>(), presented.first_chunk::<8>()) {
        (16, Some(whole), _) => u128::from_be_bytes(*whole),
        (_, _, Some(half)) => u128::from(u64::from_be_bytes(*half)) << 64,
        _ => return false,
    };
    // Octets is 8 or 16; 2 in a test.
    let octets = u32::from(one.width.min(one.compared));
    (u128::from_be_bytes(*tag) ^ presented) >> (8 * (16 - octets)) == 0
}

/// A packet of the commonest shape that is sound and allowed: writes what its secret and its binding are the MAC of, and
/// returns the key that makes the secret. `None` sends the packet the general way.
#[inline(always)]
fn lean<'k>(
    datagram: &[u8],
    waypoints: &'k [Waypoint],
    now: UnixTime,
    input: &mut Block,
    head: &mut [Block; LEAN_HEAD],
    waiting: &mut Waiting,
) -> Option<&'k WaypointKey> {
    let front: &[u8; LEAN_FRONT] = datagram.first_chunk()?;
    let half = |at: usize| u16::from_be_bytes([front[at], front[at + 1]]);
    let word = |at: usize| u32::from_be_bytes([front[at], front[at + 1], front[at + 2], front[at + 3]]);
    let total = usize::from(half(v4::TOTAL_LENGTH));
    let kinds = front[47];
    let width = if kinds & kind::NARROW == 0 { 16 } else { 8 };
    let behind = LEAN_FRONT + width;
    let is_lean = front[0] == 0x45
        && half(v4::FRAGMENT) & v4::FRAGMENTED == 0
        && front[v4::PROTOCOL] == PROTOCOL
        && front[v4::TTL] > 1
        && (total >= behind && total <= datagram.len())
        && front[20] & !FLAG_REPLY == 0x10
        && usize::from(front[21]) * 4 == behind - 40
        && front[22] == 0
        && kinds & (kind::DELEGATED | kind::SUB_DELEGATED) == 0
        && word(v4::DESTINATION) == word(40)
        && front.first_chunk().is_some_and(|header| ipv4_header_sum(header) == 0xffff);
    if !is_lean {
        return None;
    }
    let address = IpAddr::V4(Ipv4Addr::from(word(40)));
    let here = waypoints.iter().find(|here| here.address() == address)?;
    let policy = here.policy();
    let interval = Interval::new(kinds & kind::INTERVAL)?;
    let (source, last) = (IpAddr::V4(Ipv4Addr::from(word(24))), IpAddr::V4(Ipv4Addr::from(word(28))));
    let off = word(32).wrapping_sub(now.secs() as u32).cast_signed().unsigned_abs();
    let is_allowed = (!policy.check_source || word(v4::SOURCE) == word(24))
        && (width == 16 || policy.narrow)
        && epoch::is_accepted(interval, word(48), now)
        && off <= policy.freshness
        && !is_martian(source)
        && !is_martian(last)
        && !here.is_own(last);
    if !is_allowed {
        return None;
    }
    let key = here.keys().of_epoch(interval, word(48))?;
    input[..4].copy_from_slice(&label(PURPOSE_SECRET, wayleave_core::Afi::Ipv4));
    input[4..12].copy_from_slice(&front[40..48]);
    input[11] = interval.exponent();
    input[12..].copy_from_slice(&front[48..52]);
    let octets = head.as_flattened_mut();
    octets[..4].copy_from_slice(&label(PURPOSE_BINDING, wayleave_core::Afi::Ipv4));
    octets[4] = front[23];
    octets[5] = front[20];
    octets[6..8].copy_from_slice(&((total - behind) as u16).to_be_bytes());
    octets[8..16].copy_from_slice(&front[24..32]);
    octets[16..28].copy_from_slice(&front[40..52]);
    octets[28..36].copy_from_slice(&front[32..40]);
    octets[36..].fill(0);
    *waiting = Waiting::NONE;
    waiting.forward = Forward::lean(front[v4::TTL] - 1, front[21]);
    (waiting.width, waiting.compared) = (width as u8, here.compared() as u8);
    (waiting.payload, waiting.end) = (behind as u32, total as u32);
    Some(key)
}

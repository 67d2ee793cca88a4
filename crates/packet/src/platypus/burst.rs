//! A waypoint's checks over a burst of packets, with secrets and bindings computed in lanes; the verdicts are those of
//! [`Waypoint::verify`].
//!
//! A packet of the commonest shape (IPv4 over IP, one capability, neither delegated nor sealed) is checked by reading its
//! fields in place. Whatever does not pass there goes the general way, which knows the reason.

use std::net::{IpAddr, Ipv4Addr};

use wayleave_core::UnixTime;
use wayleave_crypto::lanes::{BURST, Block, Kernel, Parts, cmac_each};

use super::header::offsets::{FLAG_REPLY, PROTOCOL};
use super::header::{Capability, Interval, Packet, Principal, Version, ipv4_header_sum, kind, v4};
use super::mint::{HEAD_BLOCKS, PURPOSE_BINDING, PURPOSE_SECRET, StampKey, WaypointKey, epoch, label, write_head};
use super::recent::Recent;
use super::verify::{Charge, Forward, Reason, Verdict, Waypoint, is_martian};

/// Blocks of the commonest packet's head.
const LEAN_HEAD: usize = 3;
/// Octets up to the commonest packet's binding.
const LEAN_FRONT: usize = 52;

/// One core's scratch, and the stamping keys of the delegations that it verified last.
pub struct Verifier {
    kernel: Kernel,
    keys: [Block; BURST],
    heads: Box<[[Block; HEAD_BLOCKS]; BURST]>,
    lean_heads: [[Block; LEAN_HEAD]; BURST],
    tags: [Block; BURST],
    delegations: Recent<Capability, StampKey>,
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Verifier on {}", self.kernel.name())
    }
}

/// A packet that waits for its tag.
#[derive(Clone, Copy)]
struct Waiting<'a> {
    /// Its place in the burst.
    place: usize,
    forward: Forward,
    presented: &'a [u8],
    payload: &'a [u8],
    /// Blocks of its head; of the lean head if zero.
    head: usize,
    /// Octets of the tag that are compared.
    compared: usize,
    /// A delegation whose stamping key is worth keeping once it has verified a packet.
    keep: Option<Capability>,
}

/// A packet of the commonest shape that has passed every check but the MAC.
struct Lean<'a, 'k> {
    forward: Forward,
    key: &'k WaypointKey,
    input: Block,
    head: [Block; LEAN_HEAD],
    presented: &'a [u8],
    payload: &'a [u8],
    compared: usize,
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
            tags: [[0; 16]; BURST],
            delegations: Recent::new(delegations),
        }
    }

    /// Forgets delegations: the waypoints' keys are others now.
    pub fn forget(&mut self) {
        self.delegations.clear();
    }

    /// Decides on up to [`BURST`] IP packets of version 1 for any of `waypoints`. Verdicts beyond the packets are left.
    pub fn verify(&mut self, waypoints: &[Waypoint], datagrams: &[&[u8]], now: UnixTime, verdicts: &mut [Verdict]) {
        let mut waiting: [Option<Waiting<'_>>; BURST] = [None; BURST];
        let mut inputs: [Option<&WaypointKey>; BURST] = [None; BURST];
        let mut count = 0;
        for (place, (datagram, verdict)) in datagrams.iter().zip(verdicts.iter_mut()).take(BURST).enumerate() {
            let prepared = match lean(datagram, waypoints, now) {
                Some(lean) => {
                    self.keys[count] = lean.input;
                    self.lean_heads[count] = lean.head;
                    inputs[count] = Some(lean.key);
                    let Lean { forward, presented, payload, compared, .. } = lean;
                    Ok(Waiting { place, forward, presented, payload, head: 0, compared, keep: None })
                }
                None => self.prepare(place, count, waypoints, datagram, now),
            };
            match prepared {
                Ok(one) => {
                    waiting[count] = Some(one);
                    count += 1;
                }
                Err(refused) => *verdict = refused,
            }
        }
        self.derive_secrets(&inputs[..count]);
        self.tag(&waiting[..count]);
        for (slot, one) in waiting[..count].iter().flatten().enumerate() {
            let is_right = matches(&self.tags[slot], one.presented, one.compared);
            if is_right && let Some(capability) = one.keep {
                let key = wayleave_crypto::secret::Key128::new(self.keys[slot]);
                self.delegations.insert(capability, StampKey::new(key));
            }
            verdicts[one.place] = if is_right { Verdict::Forward(one.forward) } else { Reason::Binding.into() };
        }
    }

    /// The general way: every shape of packet, or the reason for which it is refused.
    fn prepare<'a>(
        &mut self,
        place: usize,
        slot: usize,
        waypoints: &[Waypoint],
        datagram: &'a [u8],
        now: UnixTime,
    ) -> Result<Waiting<'a>, Verdict> {
        let packet = Packet::decode(datagram, Version::Standard)?;
        let destination = packet.outer().destination;
        let here = waypoints.iter().find(|here| here.address() == destination).ok_or(Reason::NotForUs)?;
        let (index, capability) = here.check_before_mac(&packet, now)?;
        let cached = capability.delegation.and_then(|_| self.delegations.get(&capability));
        let is_new = capability.delegation.is_some() && cached.is_none();
        self.keys[slot] = match cached {
            Some(key) => *key.expose(),
            None => *here.keys().stamp_key(&capability).ok_or(Reason::KeyGone)?.expose(),
        };
        let head = write_head(&packet, index, &mut self.heads[slot]);
        Ok(Waiting {
            place,
            forward: Forward::of(&packet, index, &capability, here.address()),
            presented: packet.binding(index),
            payload: packet.payload(),
            head,
            compared: here.compared(),
            keep: is_new.then_some(capability),
        })
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

    fn tag(&mut self, waiting: &[Option<Waiting<'_>>]) {
        let mut messages = [Parts::default(); BURST];
        for (slot, (message, one)) in messages.iter_mut().zip(waiting.iter().flatten()).enumerate() {
            let head: &[Block] = match one.head {
                0 => &self.lean_heads[slot],
                blocks => &self.heads[slot][..blocks],
            };
            *message = Parts { head, tail: one.payload };
        }
        let count = waiting.len();
        cmac_each(self.kernel, &self.keys[..count], &messages[..count], &mut self.tags[..count]);
    }
}

/// Whether the first octets of a tag are those presented, without a branch on any of them.
#[inline]
fn matches(tag: &Block, presented: &[u8], compared: usize) -> bool {
    let octets = presented.len().min(compared);
    let mut other = [0; 16];
    other[..presented.len()].copy_from_slice(presented);
    let difference = u128::from_be_bytes(*tag) ^ u128::from_be_bytes(other);
    // Octets is 8 or 16; 2 in a test.
    difference >> (8 * (16 - octets)) == 0
}

/// A packet of the commonest shape that is sound and allowed; `None` sends it the general way.
#[inline(always)]
fn lean<'a, 'k>(datagram: &'a [u8], waypoints: &'k [Waypoint], now: UnixTime) -> Option<Lean<'a, 'k>> {
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
    let mut input = [0; 16];
    input[..4].copy_from_slice(&label(PURPOSE_SECRET, wayleave_core::Afi::Ipv4));
    input[4..11].copy_from_slice(&front[40..47]);
    input[11] = interval.exponent();
    input[12..].copy_from_slice(&front[48..52]);
    let payload = &datagram[behind..total];
    let mut head = [[0; 16]; LEAN_HEAD];
    let octets = head.as_flattened_mut();
    octets[..4].copy_from_slice(&label(PURPOSE_BINDING, wayleave_core::Afi::Ipv4));
    octets[4] = front[23];
    octets[5] = front[20];
    octets[6..8].copy_from_slice(&(payload.len() as u16).to_be_bytes());
    octets[8..16].copy_from_slice(&front[24..32]);
    octets[16..28].copy_from_slice(&front[40..52]);
    octets[28..36].copy_from_slice(&front[32..40]);
    let charge = Charge {
        principal: Principal::from_octets([front[44], front[45], front[46]]),
        delegation: None,
        interval: Some(interval),
        epoch: word(48),
    };
    Some(Lean {
        forward: Forward::lean(address, last, front[v4::TTL] - 1, charge, front[21]),
        key,
        input,
        head,
        presented: &datagram[LEAN_FRONT..behind],
        payload,
        compared: here.compared(),
    })
}

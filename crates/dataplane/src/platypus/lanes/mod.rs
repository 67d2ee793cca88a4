//! The vector path: a burst verified with its secrets and bindings computed in lanes.
//!
//! The decisions are those of `packet::platypus::verify`, packet by packet; a test compares the two on random, mutated and
//! forged packets. Simple packets are checked sixteen at a time (`sixteen`), by flow class (`flow_class`). Whatever does
//! not pass there takes the general path: `verify`'s own checks, with only the MAC computed together with others.
//!
//! Nothing depends on this module but speed. Without it, [`Router`](super::Router) calls `verify` for each packet, as
//! `Router::without_lanes` does.

mod delegation_keys;
mod flow_class;
#[cfg(test)]
mod forgery;
mod simple;
mod sixteen;
mod verdicts;

use std::hint::black_box;

use wayleave_core::UnixTime;
use wayleave_crypto::lanes::{Block, Parts, Row, cmac_each};
use wayleave_packet::platypus::header::Packet;
use wayleave_packet::platypus::mint::{HEAD_BLOCKS, WaypointKey, write_head};
use wayleave_packet::platypus::verify::{Arrival, Forward, Reason, Verdict, Waypoint, find_waypoint};

use crate::frame::BURST;
use crate::lanes::{CpuKernel, LANES, VectorCode, prefetch_octet};
use delegation_keys::DelegationKeys;
use sixteen::{Passed, Scratch, Sixteen};
use verdicts::GROUPS;

pub use simple::SimpleForward;
pub use verdicts::{Decision, Verdicts};

pub(super) use verdicts::Group;

/// Every bit of a tag, by halves.
const WHOLE_TAG: [u64; 2] = [u64::MAX; 2];

/// One core's verifier of bursts: its scratch, and the stamping keys of the delegations that it verified last.
pub struct BurstVerifier {
    kernel: CpuKernel,
    keys: [Block; BURST],
    heads: Box<[[Block; HEAD_BLOCKS]; BURST]>,
    rows: Box<[[Row; LANES]; GROUPS]>,
    scratch: Box<Scratch>,
    pending: [Pending; BURST],
    tags: [Block; BURST],
    delegations: DelegationKeys,
    /// See [`BurstVerifier::counted`].
    #[cfg(test)]
    counted: [u64; 2],
}

impl std::fmt::Debug for BurstVerifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BurstVerifier on {}", self.kernel.name())
    }
}

/// A packet whose tag is computed with those of other groups.
#[derive(Clone, Copy)]
struct Pending {
    /// In the burst.
    index: u8,
    binding_length: u8,
    /// Whether its delegation's stamping key is worth keeping once it has verified this packet.
    is_new_delegation: bool,
}

impl Pending {
    const NONE: Self = Self { index: 0, binding_length: 0, is_new_delegation: false };
}

impl BurstVerifier {
    /// A verifier that keeps the keys of `delegations` delegations.
    #[must_use]
    pub fn new(kernel: CpuKernel, delegations: usize) -> Self {
        Self {
            kernel,
            keys: [[0; 16]; BURST],
            heads: Box::new([[[0; 16]; HEAD_BLOCKS]; BURST]),
            rows: Box::new([[[[0; 16]; 4]; LANES]; GROUPS]),
            scratch: Box::new(Scratch::EMPTY),
            pending: [Pending::NONE; BURST],
            tags: [[0; 16]; BURST],
            delegations: DelegationKeys::new(delegations),
            #[cfg(test)]
            counted: WHOLE_TAG,
        }
    }

    /// Forgets delegations: the waypoints' keys have changed.
    pub fn forget(&mut self) {
        self.delegations.clear();
    }

    /// Decides on up to [`BURST`] IP packets for any of `waypoints`, each of which came as `arrival` says of its index. Decisions
    /// beyond the packets are stale.
    #[inline(always)]
    pub fn verify(
        &mut self,
        waypoints: &[Waypoint],
        datagrams: &[&[u8]],
        arrival: &dyn Fn(usize) -> Arrival,
        now: UnixTime,
        verdicts: &mut Verdicts,
    ) {
        let kernel = self.kernel;
        VerifyBurst { verifier: self, waypoints, datagrams, arrival, now, verdicts }.run_on(kernel);
    }

    /// The bits of a tag's halves that count: all. The test of forgeries weakens its own verifier.
    #[inline(always)]
    fn counted(&self) -> [u64; 2] {
        #[cfg(test)]
        return self.counted;
        #[cfg(not(test))]
        WHOLE_TAG
    }

    /// In two passes over the burst. The first checks everything but MACs, and finishes the groups of sixteen whose tags
    /// can be computed at once. The second computes all other tags together: packets of different lengths, the general
    /// path, and what is left of a group that is not whole.
    ///
    /// Constant time: no branch depends on an octet of a tag, but on whether a packet's tag differs at all, which the
    /// sender sees anyway, and before that on whether any of sixteen does.
    #[inline(always)]
    fn verify_burst(
        &mut self,
        waypoints: &[Waypoint],
        datagrams: &[&[u8]],
        arrival: &dyn Fn(usize) -> Arrival,
        now: UnixTime,
        verdicts: &mut Verdicts,
    ) {
        let counted = self.counted();
        let Self { kernel, keys, heads, rows, scratch, pending, tags, delegations, .. } = self;
        let Verdicts { each: decisions, uniform, rewritten } = verdicts;
        *uniform = [None; GROUPS];
        let datagrams = &datagrams[..datagrams.len().min(BURST)];
        let mut inputs: [Option<&WaypointKey>; BURST] = [None; BURST];
        let mut messages = [Parts::default(); BURST];
        let mut differ = [0; BURST];
        let mut count = 0;
        let mut sixteen = Sixteen::new(*kernel, waypoints, now, scratch);
        let groups = datagrams.chunks(LANES).zip(rows.iter_mut()).zip(heads.chunks_mut(LANES));
        datagrams.iter().take(LANES).for_each(|datagram| prefetch_front(datagram));
        for (group, ((packets, rows), heads)) in groups.enumerate() {
            let first = group * LANES;
            sixteen.check(packets, |lane| arrival(first + lane));
            // The next group is on its way from memory while the tags of this one are computed.
            let next = datagrams.get(first + LANES..).unwrap_or_default();
            next.iter().take(LANES).for_each(|datagram| prefetch_front(datagram));
            let mut group_tags = [[0; 16]; LANES];
            let are_tagged = sixteen.tag(packets, &mut group_tags);
            if are_tagged
                && let Some(parameters) = sixteen.uniform()
                && Sixteen::difference(parameters, packets, &group_tags, counted) == 0
            {
                (uniform[group], rewritten[group]) = (Some(parameters.pointer()), *sixteen.rewritten());
                continue;
            }
            if !are_tagged {
                sixteen.rows(rows);
            }
            for (lane, ((datagram, row), head)) in packets.iter().zip(&*rows).zip(heads).enumerate() {
                let index = first + lane;
                let passed = sixteen.passed(lane, datagram);
                if let Some(Passed { forward, binding_length, .. }) = passed.as_ref().filter(|_| are_tagged) {
                    decisions[index] = Decision::Simple(*forward);
                    let presented = SimpleForward::binding(datagram);
                    differ[index] = difference(&group_tags[lane], *binding_length, presented, counted);
                    continue;
                }
                let (key, input, message) = (&mut keys[count], &mut inputs[count], &mut messages[count]);
                let one = &mut pending[count];
                // Forwarded, unless the tag, below, differs.
                decisions[index] = if let Some(passed) = passed {
                    *key = row[0];
                    *input = Some(passed.key);
                    *message = Parts { head: &row[1..], tail: passed.payload };
                    let binding_length = passed.binding_length as u8;
                    *one = Pending { index: index as u8, binding_length, is_new_delegation: false };
                    Decision::Simple(passed.forward)
                } else {
                    match check_general(waypoints, (datagram, arrival(index)), now, delegations, key, head) {
                        Ok((this, forward, parts)) => {
                            (*one, *message) = (Pending { index: index as u8, ..this }, parts);
                            Decision::General(Verdict::Forward(forward))
                        }
                        Err(refused) => {
                            decisions[index] = Decision::General(refused);
                            continue;
                        }
                    }
                };
                count += 1;
            }
        }
        if uniform[..datagrams.len().div_ceil(LANES)].iter().all(Option::is_some) {
            return;
        }
        derive_secrets(&inputs[..count], keys);
        cmac_each(*kernel, &keys[..count], &messages[..count], &mut tags[..count]);
        for (one, tag) in pending.iter().zip(&*tags).take(count) {
            let index = usize::from(one.index);
            let presented = match &decisions[index] {
                Decision::Simple(_) => SimpleForward::binding(datagrams[index]),
                Decision::General(Verdict::Forward(forward)) => forward.binding(datagrams[index]),
                Decision::General(_) => continue,
            };
            differ[index] = difference(tag, one.binding_length.into(), presented, counted);
        }
        // Opaque to the compiler, so that no decision moves in front of the last comparison.
        let differ = black_box(&differ);
        for (one, key) in pending.iter().zip(&*keys).take(count).filter(|(one, _)| one.is_new_delegation) {
            let index = usize::from(one.index);
            if let (Decision::General(Verdict::Forward(forward)), 0) = (&decisions[index], differ[index]) {
                delegations.insert(forward.capability(datagrams[index]), key);
            }
        }
        // verify: check_binding
        for (decision, differ) in decisions.iter_mut().zip(differ) {
            if *differ != 0 {
                *decision = Decision::General(Reason::Binding.into());
            }
        }
    }
}

/// A burst for one verifier.
struct VerifyBurst<'a, 'd> {
    verifier: &'a mut BurstVerifier,
    waypoints: &'a [Waypoint],
    datagrams: &'a [&'d [u8]],
    arrival: &'a dyn Fn(usize) -> Arrival,
    now: UnixTime,
    verdicts: &'a mut Verdicts,
}

impl VectorCode for VerifyBurst<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { verifier, waypoints, datagrams, arrival, now, verdicts } = self;
        verifier.verify_burst(waypoints, datagrams, arrival, now, verdicts);
    }
}

/// The general path up to the MAC: any packet, with `verify`'s own checks. Writes the stamping key and the head of what
/// the binding is computed over.
#[inline(never)]
fn check_general<'a>(
    waypoints: &[Waypoint],
    (datagram, arrival): (&'a [u8], Arrival),
    now: UnixTime,
    delegations: &mut DelegationKeys,
    key: &mut Block,
    head: &'a mut [Block; HEAD_BLOCKS],
) -> Result<(Pending, Forward, Parts<'a>), Verdict> {
    let packet = Packet::decode(datagram)?;
    let waypoint = find_waypoint(waypoints, &packet)?;
    let (index, capability) = waypoint.check_before_mac(&packet, arrival, now)?;
    // The key of a capability for replies depends on the packet's source too, which its name here does not have.
    let is_kept = capability.delegation.is_some() && !capability.marks.is_reply();
    let is_known = is_kept && delegations.find(packet.capability_octets(index), key);
    if !is_known {
        let found = waypoint.keys().stamp_key_from(&capability, packet.original_source());
        *key = *found.ok_or(Reason::KeyGone)?.expose();
    }
    let pending = Pending {
        index: 0,
        binding_length: packet.binding(index).len() as u8,
        is_new_delegation: is_kept && !is_known,
    };
    let blocks = write_head(&packet, index, head);
    let payload = packet.payload_offset()..packet.datagram().len();
    Ok((pending, Forward::of(&packet, index), Parts { head: &head[..blocks], tail: &datagram[payload] }))
}

/// Turns the inputs of secrets into secrets, neighbours under one waypoint key together. Keys without an input are
/// complete.
fn derive_secrets(inputs: &[Option<&WaypointKey>], keys: &mut [Block; BURST]) {
    let is_same = |a: &Option<&WaypointKey>, b: &Option<&WaypointKey>| match (a, b) {
        (Some(a), Some(b)) => std::ptr::eq(*a, *b),
        (None, None) => true,
        _ => false,
    };
    let mut begin = 0;
    for run in inputs.chunk_by(is_same) {
        let end = begin + run.len();
        if let Some(Some(key)) = run.first() {
            key.in_lanes().tag_blocks(&mut keys[begin..end]);
        }
        begin = end;
    }
}

/// Begins to fetch the headers of a packet: those of a simple one end in the second cache line.
#[inline(always)]
fn prefetch_front(datagram: &[u8]) {
    prefetch_octet(datagram, 0);
    if datagram.len() > 64 {
        prefetch_octet(datagram, 64);
    }
}

/// Zero if the first octets of a tag, as many as the binding has (8 or 16), are those presented; without a branch on any
/// of them. What is too short differs.
#[inline(always)]
fn difference(tag: &Block, binding_length: usize, presented: &[u8], counted: [u64; 2]) -> u64 {
    let half = |octets: &[u8], at: usize| Some(u64::from_ne_bytes(*octets.get(at..)?.first_chunk()?));
    let (Some(upper), Some(tag_upper), Some(tag_lower)) = (half(presented, 0), half(tag, 0), half(tag, 8)) else {
        return u64::MAX;
    };
    let lower = if binding_length == 8 { Some(tag_lower) } else { half(presented, 8) };
    lower.map_or(u64::MAX, |lower| (upper ^ tag_upper) & counted[0] | (lower ^ tag_lower) & counted[1])
}

//! A waypoint's checks over a burst of packets, with secrets and bindings computed in lanes; the verdicts are those of
//! [`Waypoint::verify`].
//!
//! Packets of the commonest shape are checked beside each other ([`sixteen`]). Whatever does not pass there goes the general way,
//! which knows the reason.

mod delegation_keys;
#[cfg(test)]
mod forgery;
mod sixteen;

use std::hint::black_box;

use wayleave_core::UnixTime;
use wayleave_crypto::lanes::{BURST, Block, CpuKernel, LANES, Parts, Row, Work, cmac_each, prefetch_octet};

use wayleave_packet::platypus::header::{Packet, Version};
use wayleave_packet::platypus::mint::{HEAD_BLOCKS, WaypointKey, write_head};
use wayleave_packet::platypus::verify::{Forward, Reason, Verdict, Waypoint};

use delegation_keys::Delegations;
use sixteen::{Beside, Lean, Scratch};

/// Every bit of a tag, by halves.
const WHOLE_TAG: [u64; 2] = [u64::MAX; 2];

/// One core's scratch, and the stamping keys of the delegations that it verified last.
pub struct Verifier {
    kernel: CpuKernel,
    keys: [Block; BURST],
    heads: Box<[[Block; HEAD_BLOCKS]; BURST]>,
    rows: Box<[[Row; LANES]; BURST / LANES]>,
    scratch: Box<Scratch>,
    waiting: [Waiting; BURST],
    tags: [Block; BURST],
    delegations: Delegations,
    /// See [`Verifier::counted`].
    #[cfg(test)]
    counted: [u64; 2],
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Verifier on {}", self.kernel.name())
    }
}

/// A packet that waits for its tag.
#[derive(Clone, Copy)]
struct Waiting {
    /// Its place in the burst.
    place: u8,
    /// Octets of its binding.
    width: u8,
    /// A delegation whose stamping key is worth keeping once it has verified a packet.
    is_new: bool,
}

impl Waiting {
    const NONE: Self = Self { place: 0, width: 0, is_new: false };

    #[inline(always)]
    fn lean(lean: &Lean<'_, '_>, place: usize) -> Self {
        Self { place: place as u8, width: lean.width as u8, is_new: false }
    }
}

/// What becomes of the packets of a burst. It is large: one serves for many bursts.
#[derive(Debug)]
pub struct Verdicts {
    each: [Verdict; BURST],
    /// Where [`LANES`] packets one after another are forwarded as the commonest shape is: the pointer's new value. What is in
    /// `each` for them says nothing.
    alike: [Option<u8>; BURST / LANES],
    /// Of these, the word with TTL, protocol and checksum.
    rewritten: [[u32; LANES]; BURST / LANES],
}

impl Default for Verdicts {
    fn default() -> Self {
        Self { each: [Verdict::default(); BURST], alike: [None; BURST / LANES], rewritten: [[0; LANES]; BURST / LANES] }
    }
}

impl Verdicts {
    /// Of the packet at `place` of the burst, below [`BURST`].
    #[must_use]
    pub fn get(&self, place: usize) -> Verdict {
        match self.group(place / LANES) {
            Group::Alike(Alike { pointer, rewritten }) => {
                Verdict::Forward(Forward::lean(rewritten[place % LANES], pointer))
            }
            Group::Each(verdicts) => verdicts[place % LANES],
        }
    }

    /// Of the `group`-th [`LANES`] packets, or as many as there are; what is beyond the packets says nothing.
    #[must_use]
    #[inline(always)]
    pub fn group(&self, group: usize) -> Group<'_> {
        match self.alike.get(group) {
            Some(Some(pointer)) => Group::Alike(Alike { pointer: *pointer, rewritten: &self.rewritten[group] }),
            Some(None) => Group::Each(&self.each[group * LANES..(group + 1) * LANES]),
            None => Group::Each(&[]),
        }
    }
}

/// What becomes of [`LANES`] packets one after another.
#[derive(Clone, Copy, Debug)]
pub enum Group<'a> {
    /// All of them are forwarded, and written to in the same places.
    Alike(Alike<'a>),
    /// A verdict for each.
    Each(&'a [Verdict]),
}

/// How [`LANES`] packets of the commonest shape are forwarded.
#[derive(Clone, Copy, Debug)]
pub struct Alike<'a> {
    pointer: u8,
    rewritten: &'a [u32; LANES],
}

impl Alike<'_> {
    /// Rewrites the packets in place, as [`Forward::apply`] would each of them.
    #[inline(always)]
    pub fn apply(self, datagrams: [&mut [u8]; LANES]) {
        for (datagram, rewritten) in datagrams.into_iter().zip(self.rewritten) {
            Forward::apply_lean(datagram, *rewritten, self.pointer);
        }
    }

    /// One for each packet.
    #[inline(always)]
    pub fn forwards(self) -> impl Iterator<Item = Forward> {
        self.rewritten.iter().map(move |rewritten| Forward::lean(*rewritten, self.pointer))
    }
}

impl Verifier {
    /// A verifier that keeps the keys of `delegations` delegations.
    #[must_use]
    pub fn new(kernel: CpuKernel, delegations: usize) -> Self {
        Self {
            kernel,
            keys: [[0; 16]; BURST],
            heads: Box::new([[[0; 16]; HEAD_BLOCKS]; BURST]),
            rows: Box::new([[[[0; 16]; 4]; LANES]; BURST / LANES]),
            scratch: Box::new(Scratch::EMPTY),
            waiting: [Waiting::NONE; BURST],
            tags: [[0; 16]; BURST],
            delegations: Delegations::new(delegations),
            #[cfg(test)]
            counted: WHOLE_TAG,
        }
    }

    /// The code that computes, whose instructions other work on the packets may have.
    #[must_use]
    pub fn kernel(&self) -> CpuKernel {
        self.kernel
    }

    /// Forgets delegations: the waypoints' keys are others now.
    pub fn forget(&mut self) {
        self.delegations.clear();
    }

    /// Decides on up to [`BURST`] IP packets of version 1 for any of `waypoints`. Verdicts beyond the packets are left.
    pub fn verify(&mut self, waypoints: &[Waypoint], datagrams: &[&[u8]], now: UnixTime, verdicts: &mut [Verdict]) {
        let mut decided = Verdicts::default();
        let count = datagrams.len().min(verdicts.len()).min(BURST);
        self.decide(waypoints, &datagrams[..count], now, &mut decided);
        for (place, verdict) in verdicts.iter_mut().enumerate().take(count) {
            *verdict = decided.get(place);
        }
    }

    /// The same without a look at each packet where sixteen are alike. Verdicts beyond the packets say nothing.
    #[inline(always)]
    pub fn decide(&mut self, waypoints: &[Waypoint], datagrams: &[&[u8]], now: UnixTime, verdicts: &mut Verdicts) {
        self.kernel.run(Verify { verifier: self, waypoints, datagrams, now, verdicts });
    }

    /// The bits of a tag's halves that count: all. The test of forgeries weakens its own verifier.
    #[inline(always)]
    fn counted(&self) -> [u64; 2] {
        #[cfg(test)]
        return self.counted;
        #[cfg(not(test))]
        WHOLE_TAG
    }

    #[inline(always)]
    fn verify_all(&mut self, waypoints: &[Waypoint], datagrams: &[&[u8]], now: UnixTime, verdicts: &mut Verdicts) {
        let counted = self.counted();
        let Self { kernel, keys, heads, rows, scratch, waiting, tags, delegations, .. } = self;
        let Verdicts { each: verdicts, alike, rewritten } = verdicts;
        *alike = [None; BURST / LANES];
        let datagrams = &datagrams[..datagrams.len().min(BURST)];
        let mut inputs: [Option<&WaypointKey>; BURST] = [None; BURST];
        let mut messages = [Parts::default(); BURST];
        let mut differ = [0; BURST];
        let mut count = 0;
        let mut beside = Beside::new(*kernel, waypoints, now, scratch);
        let groups = datagrams.chunks(LANES).zip(rows.iter_mut()).zip(heads.chunks_mut(LANES));
        datagrams.iter().take(LANES).for_each(|datagram| fetch(datagram));
        for (group, ((here, rows), heads)) in groups.enumerate() {
            let first = group * LANES;
            beside.check(here);
            // The next ones are on their way from memory while these are decided.
            datagrams.get(first + LANES..).unwrap_or_default().iter().take(LANES).for_each(|datagram| fetch(datagram));
            let mut group_tags = [[0; 16]; LANES];
            let are_tagged = beside.tag(here, &mut group_tags);
            if are_tagged
                && let Some(found) = beside.whole()
                && Beside::compare(found, here, &group_tags, counted) == 0
            {
                (alike[group], rewritten[group]) = (Some(found.pointer()), *beside.rewritten());
                continue;
            }
            if !are_tagged {
                beside.rows(rows);
            }
            for (lane, ((datagram, row), head)) in here.iter().zip(&*rows).zip(heads).enumerate() {
                let place = first + lane;
                let lean = beside.lean(lane, datagram);
                if let Some(lean) = lean.as_ref().filter(|_| are_tagged) {
                    let waiting = Waiting::lean(lean, place);
                    verdicts[place] = Verdict::Forward(lean.forward);
                    differ[place] = difference(&group_tags[lane], &waiting, lean.forward.binding(datagram), counted);
                    continue;
                }
                let (key, input, message) = (&mut keys[count], &mut inputs[count], &mut messages[count]);
                let one = &mut waiting[count];
                // A packet is forwarded unless its tag, below, is another.
                verdicts[place] = if let Some(lean) = lean {
                    *key = row[0];
                    *input = Some(lean.key);
                    *message = Parts { head: &row[1..], tail: lean.payload };
                    *one = Waiting::lean(&lean, place);
                    Verdict::Forward(lean.forward)
                } else {
                    match general(waypoints, datagram, now, delegations, key, head) {
                        Ok((this, forward, parts)) => {
                            (*one, *message) = (Waiting { place: place as u8, ..this }, parts);
                            Verdict::Forward(forward)
                        }
                        Err(refused) => {
                            verdicts[place] = refused;
                            continue;
                        }
                    }
                };
                count += 1;
            }
        }
        if alike[..datagrams.len().div_ceil(LANES)].iter().all(Option::is_some) {
            return;
        }
        derive_secrets(&inputs[..count], keys);
        cmac_each(*kernel, &keys[..count], &messages[..count], &mut tags[..count]);
        for (one, tag) in waiting.iter().zip(&*tags).take(count) {
            let place = usize::from(one.place);
            if let Verdict::Forward(forward) = &verdicts[place] {
                differ[place] = difference(tag, one, forward.binding(datagrams[place]), counted);
            }
        }
        // Nothing before this depends on what a packet's difference is, but on whether sixteen together have any.
        let differ = black_box(&differ);
        for (one, key) in waiting.iter().zip(&*keys).take(count).filter(|(one, _)| one.is_new) {
            let place = usize::from(one.place);
            if let (Verdict::Forward(forward), 0) = (&verdicts[place], differ[place]) {
                delegations.insert(forward.capability(datagrams[place]), key);
            }
        }
        for (verdict, differ) in verdicts.iter_mut().zip(differ) {
            if *differ != 0 {
                *verdict = Reason::Binding.into();
            }
        }
    }
}

/// A burst for one verifier.
struct Verify<'a, 'd> {
    verifier: &'a mut Verifier,
    waypoints: &'a [Waypoint],
    datagrams: &'a [&'d [u8]],
    now: UnixTime,
    verdicts: &'a mut Verdicts,
}

impl Work for Verify<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { verifier, waypoints, datagrams, now, verdicts } = self;
        verifier.verify_all(waypoints, datagrams, now, verdicts);
    }
}

/// The general way: every shape of packet, or the reason for which it is refused. Writes its key and the head of what its
/// binding is computed over.
#[inline(never)]
fn general<'a>(
    waypoints: &[Waypoint],
    datagram: &'a [u8],
    now: UnixTime,
    delegations: &mut Delegations,
    key: &mut Block,
    head: &'a mut [Block; HEAD_BLOCKS],
) -> Result<(Waiting, Forward, Parts<'a>), Verdict> {
    let packet = Packet::decode(datagram, Version::Standard)?;
    let destination = packet.outer().destination;
    let here = waypoints.iter().find(|here| here.address() == destination).ok_or(Reason::NotForUs)?;
    let (index, capability) = here.check_before_mac(&packet, now)?;
    let is_delegated = capability.delegation.is_some();
    let is_cached = is_delegated && delegations.find(packet.capability_octets(index), key);
    if !is_cached {
        *key = *here.keys().stamp_key(&capability).ok_or(Reason::KeyGone)?.expose();
    }
    let waiting = Waiting { place: 0, width: packet.binding(index).len() as u8, is_new: is_delegated && !is_cached };
    let blocks = write_head(&packet, index, head);
    let payload = packet.payload_offset()..packet.datagram().len();
    Ok((waiting, Forward::of(&packet, index), Parts { head: &head[..blocks], tail: &datagram[payload] }))
}

/// Turns the inputs that wait for a waypoint's key into secrets, neighbours under one key together.
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

/// Begins to fetch the first octets of a packet that is read soon.
#[inline(always)]
fn fetch(datagram: &[u8]) {
    // The headers of the commonest shape end in the second cache line.
    prefetch_octet(datagram, 0);
    if datagram.len() > 64 {
        prefetch_octet(datagram, 64);
    }
}

/// Zero if a tag's first octets, as many as the binding has, are those presented; without a branch on any of them.
#[inline(always)]
fn difference(tag: &Block, one: &Waiting, presented: &[u8], counted: [u64; 2]) -> u64 {
    let half = |octets: &[u8], at: usize| Some(u64::from_ne_bytes(*octets.get(at..)?.first_chunk()?));
    let (Some(upper), Some(tag_upper), Some(tag_lower)) = (half(presented, 0), half(tag, 0), half(tag, 8)) else {
        return u64::MAX;
    };
    let lower = if one.width == 8 { Some(tag_lower) } else { half(presented, 8) };
    lower.map_or(u64::MAX, |lower| (upper ^ tag_upper) & counted[0] | (lower ^ tag_lower) & counted[1])
}

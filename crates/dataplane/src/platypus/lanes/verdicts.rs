//! The decisions on a burst, sixteen packets at a time where they are alike.

use wayleave_crypto::lanes::LANES;
use wayleave_packet::platypus::verify::Verdict;

use super::super::router::Forwarding;
use super::simple::SimpleForward;
use crate::frame::BURST;

/// Groups of a burst.
pub(super) const GROUPS: usize = BURST / LANES;

/// What the verifier decides on one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// A verified simple packet.
    Simple(SimpleForward),
    /// What `verify` says.
    General(Verdict),
}

impl Default for Decision {
    fn default() -> Self {
        Self::General(Verdict::default())
    }
}

/// The decisions on a burst. It is large: one serves for many bursts.
#[derive(Debug)]
pub struct Verdicts {
    pub(super) each: [Decision; BURST],
    /// For a group of sixteen simple packets that are all forwarded: the pointer's new value, which they share. Their
    /// entries in `each` are stale.
    pub(super) uniform: [Option<u8>; GROUPS],
    /// For those groups, each packet's word with TTL, protocol and checksum.
    pub(super) rewritten: [[u32; LANES]; GROUPS],
}

impl Default for Verdicts {
    fn default() -> Self {
        Self { each: [Decision::default(); BURST], uniform: [None; GROUPS], rewritten: [[0; LANES]; GROUPS] }
    }
}

impl Verdicts {
    /// The decision on the packet at `index` of the burst, below [`BURST`].
    #[must_use]
    pub fn get(&self, index: usize) -> Decision {
        match self.group(index / LANES) {
            Group::Uniform(uniform) => Decision::Simple(uniform.of(index % LANES)),
            Group::Each(decisions) => decisions[index % LANES],
        }
    }

    /// Sets every decision by itself, without groups.
    pub(in super::super) fn set_each(&mut self, verdicts: impl Iterator<Item = Verdict>) {
        self.uniform = [None; GROUPS];
        for (decision, verdict) in self.each.iter_mut().zip(verdicts) {
            *decision = Decision::General(verdict);
        }
    }

    /// The decisions on the `group`-th [`LANES`] packets; those beyond the packets of the burst are stale.
    #[inline(always)]
    pub(in super::super) fn group(&self, group: usize) -> Group<'_> {
        match self.uniform.get(group) {
            Some(Some(pointer)) => Group::Uniform(Uniform { pointer: *pointer, rewritten: &self.rewritten[group] }),
            Some(None) => Group::Each(&self.each[group * LANES..(group + 1) * LANES]),
            None => Group::Each(&[]),
        }
    }
}

/// The decisions on [`LANES`] packets in a row.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Group<'a> {
    /// All are simple and forwarded.
    Uniform(Uniform<'a>),
    /// One for each.
    Each(&'a [Decision]),
}

/// How [`LANES`] simple packets are forwarded.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Uniform<'a> {
    pointer: u8,
    rewritten: &'a [u32; LANES],
}

impl Uniform<'_> {
    /// Rewrites the packets in place.
    #[inline(always)]
    pub(in super::super) fn apply(self, datagrams: [&mut [u8]; LANES]) {
        for (datagram, forward) in datagrams.into_iter().zip(self.each()) {
            forward.apply(datagram);
        }
    }

    /// One decision for each packet.
    #[inline(always)]
    pub(in super::super) fn each(self) -> impl Iterator<Item = SimpleForward> {
        self.rewritten.iter().map(move |rewritten| SimpleForward { rewritten: *rewritten, pointer: self.pointer })
    }

    fn of(self, lane: usize) -> SimpleForward {
        SimpleForward { rewritten: self.rewritten[lane], pointer: self.pointer }
    }
}

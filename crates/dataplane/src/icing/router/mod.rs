//! The ICING router: consent and provenance of a burst in lanes, then replay and accounting, in that order.
//!
//! A node keeps the paths on which it verified a packet, each with the keys that it shares with the other nodes. Packets on
//! a kept path go the fast way; the first packet of any other goes through `learn`, which may compute agreements.

mod learn;

use wayleave_core::{Now, UnixTime};
use wayleave_crypto::lanes::{CpuKernel, Work};
use wayleave_packet::icing::header::{Handle, MAX_NODES, Packet, Version};
use wayleave_packet::icing::mint::PairKey;
use wayleave_packet::icing::verify::{Candidate, Compared, MAX_FRESHNESS, Proved, Verifier};

use crate::frame::{BURST, Frame, Ingress};
use crate::limit::TokenBucket;
use crate::replay::{ReplayFilter, ReplayOutcome};

use super::account::{Accounts, Total};
use super::action::{Action, Counters, Reason};
use super::config::{Config, ConfigError, Policy};
use super::known_path::{Decision, Known, Pair};
use super::report::Report;
use super::table::Table;

/// Consent may end this many seconds from now, and no later: two epochs of tag keys.
pub const MAX_CONSENT: u32 = 2 << wayleave_packet::icing::mint::TAG_EPOCH;

/// Agreements that one packet may need: a bucket that holds fewer would never let a path of new nodes pass.
const MOST_AGREEMENTS: u32 = MAX_NODES as u32 - 1;

/// One core's router.
pub struct Router {
    version: Version,
    policy: Policy,
    paths: Table<Handle, Known>,
    peers: Table<Pair, PairKey>,
    verifier: Verifier,
    pub(super) admission: Admission,
    /// Agreements for packets of each link.
    agreements: Vec<(u16, TokenBucket)>,
    agreements_per_second: u32,
    counters: Counters,
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Router with {} links", self.policy.links.len())
    }
}

/// What a packet is, before any tag is computed.
enum Sorted<'a> {
    /// On a path that is kept at this place.
    Kept(usize, Packet<'a>),
    /// On a path that is not kept, unless a packet in front of it in the burst brings it.
    New,
    Drop(Reason),
}

impl Router {
    /// A router of `config`, which keeps no path yet.
    ///
    /// # Errors
    /// If the configuration contradicts itself.
    pub fn new(config: Config, kernel: CpuKernel) -> Result<Self, ConfigError> {
        config.policy.check()?;
        let mut admission = Admission {
            replay: (config.replay_capacity > 0 && config.version == Version::Standard)
                .then(|| ReplayFilter::new(&config.replay_key, config.replay_capacity)),
            accounts: Accounts::default(),
        };
        admission.accounts.set(&config.policy.accounts);
        let mut router = Self {
            version: config.version,
            policy: config.policy,
            paths: Table::new(config.paths, config.seed),
            peers: Table::new(config.peers, config.seed.rotate_left(32)),
            verifier: Verifier::new(kernel, Compared::All),
            admission,
            agreements: Vec::new(),
            agreements_per_second: config.agreements_per_second,
            counters: Counters::default(),
        };
        router.set_agreements();
        Ok(router)
    }

    /// The same router comparing only the first 16 bits of each verifier: shows in a test that all bits are compared.
    #[doc(hidden)]
    #[must_use]
    pub fn with_16_bit_verifiers(mut self) -> Self {
        self.verifier = Verifier::new(CpuKernel::best(), Compared::Two);
        self
    }

    /// Takes another policy between two bursts: keys, neighbours, meanings of tags, accounts. Kept paths stay, except those
    /// that name this node by a key that it has no more, or to which it consented under a master that is another now.
    ///
    /// # Errors
    /// If the policy contradicts itself; then the old one stays.
    pub fn set_policy(&mut self, policy: Policy) -> Result<(), ConfigError> {
        policy.check()?;
        self.paths.retain(|_, known| match known.decide(&policy, self.version) {
            Some(decision) => {
                known.decision = decision;
                true
            }
            None => false,
        });
        self.peers.retain(|Pair(own, _), _| policy.secret(own).is_some());
        self.admission.accounts.set(&policy.accounts);
        self.policy = policy;
        self.set_agreements();
        Ok(())
    }

    fn set_agreements(&mut self) {
        let rate = self.agreements_per_second;
        let links = self.policy.links.iter();
        let bucket = |id| self.agreements.iter().find(|(other, _)| *other == id).map(|(_, bucket)| bucket.clone());
        self.agreements = links
            .map(|link| (link.id, bucket(link.id).unwrap_or_else(|| TokenBucket::new(rate, rate.max(MOST_AGREEMENTS)))))
            .collect();
    }

    /// Processes at most [`BURST`] packets in place; actions beyond them are the default.
    pub fn process(&mut self, frames: &mut [Frame<'_>], now: Now) -> [Action; BURST] {
        let mut actions = [Action::default(); BURST];
        let count = frames.len().min(BURST);
        let frames = &mut frames[..count];
        touch(frames);
        let kernel = self.verifier.kernel();
        let new = kernel.run(Kept { router: self, frames: &mut *frames, now, actions: &mut actions });
        for place in (0..count).filter(|place| new >> place & 1 != 0) {
            actions[place] = self.process_new(&mut frames[place], now).unwrap_or_else(Action::Drop);
        }
        for action in &actions[..count] {
            self.counters.count(*action);
        }
        actions
    }

    /// Processes the packets on kept paths; the others come back, a bit each.
    #[inline(always)]
    fn process_kept(&mut self, frames: &mut [Frame<'_>], now: Now, actions: &mut [Action; BURST]) -> u64 {
        let mut new = 0;
        let mut right = 0;
        let (mut places, mut slots, mut used) = ([0u8; BURST], [0usize; BURST], 0);
        {
            let mut candidates: [Option<Candidate<'_>>; BURST] = [None; BURST];
            for (place, frame) in frames.iter().enumerate() {
                match self.sort(frame, now.unix) {
                    Sorted::Kept(slot, packet) => {
                        let Some(known) = self.paths.at(slot) else { continue };
                        (places[used], slots[used]) = (place as u8, slot);
                        candidates[used] = Some(Candidate { packet, path: &known.keys });
                        used += 1;
                    }
                    Sorted::New => new |= 1 << place,
                    Sorted::Drop(reason) => actions[place] = Action::Drop(reason),
                }
            }
            if self.version == Version::Standard {
                let consented = self.verifier.consented(&candidates[..used]);
                let all = used;
                used = 0;
                for slot in 0..all {
                    if consented >> slot & 1 == 0 {
                        actions[usize::from(places[slot])] = Action::Drop(Reason::Consent);
                        continue;
                    }
                    (places[used], slots[used], candidates[used]) = (places[slot], slots[slot], candidates[slot]);
                    used += 1;
                }
            }
            right |= self.verifier.verify(&candidates[..used]);
        }
        for (number, (place, slot)) in places[..used].iter().zip(slots).enumerate() {
            let (Some(known), place) = (self.paths.at_mut(slot), usize::from(*place)) else { continue };
            actions[place] = if right >> number & 1 == 0 {
                Action::Drop(Reason::Verifier)
            } else {
                let admitted = self.admission.admit(known, self.verifier.proved(number), &mut frames[place], now);
                admitted.unwrap_or_else(Action::Drop)
            };
        }
        new
    }

    /// Every check of a packet on a kept path that needs no key.
    #[inline(always)]
    fn sort<'a>(&self, frame: &'a Frame<'_>, now: UnixTime) -> Sorted<'a> {
        let Ok(packet) = Packet::decode(frame.octets, self.version) else { return Sorted::Drop(Reason::Malformed) };
        let Some(slot) = self.paths.find(&packet.handle()) else { return Sorted::New };
        match self.paths.at(slot).map(|known| self.check(&packet, known, frame.ingress, now)) {
            Some(Ok(())) => Sorted::Kept(slot, packet),
            Some(Err(reason)) => Sorted::Drop(reason),
            None => Sorted::New,
        }
    }

    #[inline(always)]
    fn check(&self, packet: &Packet<'_>, known: &Known, ingress: Ingress, now: UnixTime) -> Result<(), Reason> {
        let is_same = packet.count() == known.keys.count() && packet.path().is_none_or(|path| path == known.octets());
        if !is_same {
            return Err(Reason::Handle);
        }
        if packet.index() != known.keys.index() {
            return Err(Reason::NotForUs);
        }
        self.check_ingress(&known.decision, ingress)?;
        known.decision.action?;
        self.check_time(packet, known.expiry, now)
    }

    fn check_ingress(&self, decision: &Decision, ingress: Ingress) -> Result<(), Reason> {
        let Ingress::External(link) = ingress else { return Err(Reason::Ingress) };
        let is_right = match decision.from {
            Some(from) => from == link,
            None => self.policy.links.iter().any(|other| other.id == link && other.is_open),
        };
        if is_right { Ok(()) } else { Err(Reason::Ingress) }
    }

    fn check_time(&self, packet: &Packet<'_>, expiry: u32, now: UnixTime) -> Result<(), Reason> {
        if self.version == Version::Paper {
            return Ok(());
        }
        let now = now.secs() as u32;
        // Times have 32 bits, which wrap in 2106; a difference has a sign.
        let ahead = expiry.wrapping_sub(now).cast_signed();
        if ahead < 0 {
            return Err(Reason::Expired);
        }
        if ahead.cast_unsigned() > MAX_CONSENT {
            return Err(Reason::Future);
        }
        let off = packet.seconds().wrapping_sub(now).cast_signed().unsigned_abs();
        if off > MAX_FRESHNESS { Err(Reason::Stale) } else { Ok(()) }
    }

    /// What this core has counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What account `id` has sent.
    #[must_use]
    pub fn account(&self, id: u16) -> Option<Total> {
        self.admission.accounts.total(id)
    }

    /// Totals that changed since this was last called, by the accounts' numbers: the next records of a journal.
    pub fn journal(&mut self) -> Vec<(u16, Total)> {
        self.admission.accounts.journal()
    }

    /// Takes over a journal's records after a start, in any order.
    pub fn restore(&mut self, records: impl IntoIterator<Item = (u16, Total)>) {
        records.into_iter().for_each(|(id, total)| self.admission.accounts.restore(id, total));
    }

    /// Empties the replay filter, so that a benchmark may process the same packets again.
    pub fn clear_replay(&mut self) {
        self.admission.replay.iter_mut().for_each(ReplayFilter::clear);
    }

    /// The replay filter, to see how full it is.
    #[must_use]
    pub fn replay(&self) -> Option<&ReplayFilter> {
        self.admission.replay.as_ref()
    }

    /// Paths kept.
    #[must_use]
    pub fn paths(&self) -> usize {
        self.paths.iter().count()
    }

    /// What to tell others of window `window`: a report for every kept path that was counted through all of it.
    pub fn reports(&self, window: u32) -> impl Iterator<Item = Report> {
        self.paths.iter().filter_map(move |(handle, known)| {
            let count = known.windows.of(window)?;
            // Indices are below 16.
            Some(Report { handle: *handle, index: known.keys.index() as u8, window, count })
        })
    }
}

/// The packets on kept paths of a burst, for one router.
struct Kept<'a, 'f> {
    router: &'a mut Router,
    frames: &'a mut [Frame<'f>],
    now: Now,
    actions: &'a mut [Action; BURST],
}

impl Work for Kept<'_, '_> {
    /// A bit for each of the others.
    type Output = u64;

    #[inline(always)]
    fn run(self) -> u64 {
        let Self { router, frames, now, actions } = self;
        router.process_kept(frames, now, actions)
    }
}

/// Reads an octet of every cache line of the headers, so that the lines of all packets are fetched side by side.
#[inline]
fn touch(frames: &[Frame<'_>]) {
    /// Lines of a header of eight nodes, with the beginning of the payload.
    const LINES: usize = 9;
    let lines = |frame: &Frame<'_>| frame.octets.iter().step_by(64).take(LINES).fold(0, |sum, octet| sum ^ octet);
    std::hint::black_box(frames.iter().fold(0, |sum, frame| sum ^ lines(frame)));
}

/// What depends on other packets than this one.
pub(super) struct Admission {
    pub(super) replay: Option<ReplayFilter>,
    accounts: Accounts,
}

impl Admission {
    /// Replay and accounting of a verified packet; then it is written for the next node.
    #[inline(always)]
    fn admit(&mut self, known: &mut Known, proved: &Proved, frame: &mut Frame<'_>, now: Now) -> Result<Action, Reason> {
        let action = known.decision.action?;
        if let Some(replay) = &mut self.replay {
            match replay.insert(proved.fingerprint(), now.unix) {
                ReplayOutcome::Fresh => {}
                ReplayOutcome::Repeated => return Err(Reason::Replayed),
                ReplayOutcome::Full => return Err(Reason::ReplayFull),
            }
        }
        if let Some(account) = known.decision.account
            && !self.accounts.charge(account, frame.octets.len(), now.instant)
        {
            return Err(Reason::Rate);
        }
        let [_, _, _, _, high, low, _, _, s0, s1, s2, s3, ..] = *frame.octets else { return Err(Reason::Malformed) };
        known.windows.add(u32::from_be_bytes([s0, s1, s2, s3]), usize::from(u16::from_be_bytes([high, low])));
        proved.advance(frame.octets);
        Ok(action)
    }
}

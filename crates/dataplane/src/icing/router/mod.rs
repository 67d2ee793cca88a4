//! One core's ICING router: consent and provenance of a burst; then the replay filter's look-up, the payer's rate, a place in
//! the payer's partition of the filter, and the account, in that order: a packet that is dropped takes nothing that others need.
//!
//! Packets on known paths are verified in lanes. All others are taken one by one (`learn`): the first packet of a path may
//! cost agreements, and it makes the path known.

mod learn;

use std::collections::HashMap;

use wayleave_core::{Instant, Now, UnixTime};
use wayleave_packet::icing::header::{Handle, MAX_NODES, NodeId, Packet, Path, Version};
use wayleave_packet::icing::mint::PairKey;
use wayleave_packet::icing::verify::{self, ProofTags};

use super::account::{Accounts, Buckets, ChargeLine, PayerState, Total};
use super::action::{Action, Counters, Reason};
use super::cache::Cache;
use super::config::{Config, ConfigError, Indexed, Policy};
use super::known_path::{Decision, KnownPath, NodePair};
use super::lanes::{Candidate, Lanes};
use super::learned::LearnedPaths;
use super::report::Report;
use crate::frame::{BURST, Frame, Ingress};
use crate::lanes::{CpuKernel, VectorCode};
use crate::limit::TokenBucket;
use crate::replay::{ClockJumps, ReplayFilter, ReplayOutcome};

/// Agreements that one packet may need. A bucket with room for fewer would never let a path of new nodes pass.
const MOST_AGREEMENTS: u32 = MAX_NODES as u32 - 1;

/// One core's router.
pub struct Router {
    version: Version,
    policy: Indexed,
    freshness: u32,
    paths: Cache<Handle, KnownPath>,
    /// What other threads know as well, and by which of its policies this one goes; none if there are no others.
    learned: Option<LearnedPaths>,
    /// How many paths, and the seed of their places.
    capacity: (usize, u64),
    peers: Cache<NodePair, PairKey>,
    lanes: Lanes,
    has_lanes: bool,
    /// The bits of verifiers that are compared: all of them, but in the unit test of the comparison.
    verifier_mask: u128,
    admission: Admission,
    /// Where packets of the last burst were counted.
    charged: [ChargeLine; BURST],
    /// The limit of agreements for packets of each link.
    agreements: HashMap<u16, TokenBucket>,
    agreements_per_second: u32,
    counters: Counters,
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Router with {} links", self.policy.links.len())
    }
}

/// A packet after the checks that need no key.
enum Sorted<'a> {
    /// On the path in this slot of the cache.
    Known(usize, Packet<'a>),
    /// On a path that was not known when the burst began.
    Unknown,
    Refused(Reason),
}

impl Router {
    /// A router of `config` that knows no path yet.
    ///
    /// # Errors
    /// If the configuration contradicts itself.
    pub fn new(config: Config, kernel: CpuKernel) -> Result<Self, ConfigError> {
        config.policy.check()?;
        let mut admission = Admission {
            replay: (config.replay_capacity > 0 && config.version != Version::Paper)
                .then(|| ReplayFilter::new(&config.replay_key, config.replay_capacity, config.started)),
            accounts: Accounts::default(),
            line: ChargeLine::default(),
        };
        admission.set(&config.policy);
        let mut router = Self {
            version: config.version,
            policy: Indexed::new(config.policy),
            freshness: config.freshness.clamp(verify::MIN_FRESHNESS, verify::MAX_FRESHNESS),
            paths: Cache::new(config.paths, config.seed),
            learned: None,
            capacity: (config.paths, config.seed.rotate_left(16)),
            peers: Cache::new(config.peers, config.seed.rotate_left(32)),
            lanes: Lanes::new(kernel),
            has_lanes: true,
            verifier_mask: u128::MAX,
            admission,
            charged: [ChargeLine::default(); BURST],
            agreements: HashMap::new(),
            agreements_per_second: config.agreements_per_second,
            counters: Counters::default(),
        };
        router.set_agreement_limits();
        Ok(router)
    }

    /// The same router with every packet taken by itself: for comparing the lanes with it. The results are the same, and take
    /// longer.
    #[must_use]
    pub fn without_lanes(mut self) -> Self {
        self.has_lanes = false;
        self
    }

    /// The same router comparing only the first 16 bits of each verifier.
    #[cfg(test)]
    pub(super) fn with_16_bit_verifiers(mut self) -> Self {
        self.verifier_mask = 0xffff << 112;
        self
    }

    /// Sets the policy between two bursts. Known paths stay, except those that name this node by a key that the policy lacks,
    /// and those to which it consented under another master of tag keys.
    ///
    /// # Errors
    /// If the policy contradicts itself; the router stays as it was.
    pub fn set_policy(&mut self, policy: Policy) -> Result<(), ConfigError> {
        policy.check()?;
        if self.policy.decides_like(&policy) {
            self.policy.set_agreed(policy.agreed);
            self.share_policy();
            return Ok(());
        }
        let policy = Indexed::new(policy);
        let Self { paths, peers, counters, .. } = self;
        paths.retain(|_, known| {
            counters.decided += 1;
            match known.decide(&policy) {
                Some(decision) => {
                    known.decision = decision;
                    true
                }
                None => false,
            }
        });
        peers.retain(|NodePair(own, _), _| policy.secret(own).is_some());
        self.admission.set(&policy);
        self.policy = policy;
        self.share_policy();
        self.set_agreement_limits();
        Ok(())
    }

    /// Says to the other threads by which policy this one goes, even if it has it already: it may come back to one that others have left.
    fn share_policy(&mut self) {
        if let Some(learned) = &self.learned {
            self.counters.decided += learned.set_policy(&self.policy);
        }
    }

    /// The node that sent a packet which was just verified: the first one of its path.
    #[must_use]
    pub fn sender(&self, packet: &Packet<'_>) -> Option<NodeId> {
        let known = || self.paths.at(self.paths.find(&packet.handle())?).map(KnownPath::octets);
        Path::decode(packet.path().or_else(known)?).ok().map(|path| *path.node(0))
    }

    fn set_agreement_limits(&mut self) {
        let rate = self.agreements_per_second;
        let mut before = std::mem::take(&mut self.agreements);
        let links = self.policy.links.iter();
        self.agreements = links
            .map(|link| {
                let bucket = before.remove(&link.id);
                (link.id, bucket.unwrap_or_else(|| TokenBucket::new(rate, rate.max(MOST_AGREEMENTS))))
            })
            .collect();
    }

    /// Processes at most [`BURST`] packets in place; actions behind them are the default.
    pub fn process(&mut self, frames: &mut [Frame<'_>], now: Now) -> [Action; BURST] {
        let mut actions = [Action::default(); BURST];
        let count = frames.len().min(BURST);
        let frames = &mut frames[..count];
        self.observe(now);
        read_headers(frames);
        if self.has_lanes {
            let kernel = self.lanes.kernel();
            ProcessBurst { router: self, frames, now, actions: &mut actions }.run_on(kernel);
        } else {
            for (frame, action) in frames.iter_mut().zip(&mut actions) {
                *action = self.process_one(frame, now).unwrap_or_else(Action::Drop);
            }
        }
        for action in &actions[..count] {
            self.counters.count(*action);
        }
        actions
    }

    /// Verifies the packets on known paths in lanes, and then admits them and takes the others one by one, all in their order:
    /// what one packet leaves of a rate or a partition is the next one's, whichever way each was verified.
    ///
    /// Packets that pass a step are moved together before the next one, so that lanes stay full: `indices` has the index in
    /// the burst of each candidate, `slots` that of its path in the cache.
    #[inline(always)]
    fn process_burst(&mut self, frames: &mut [Frame<'_>], now: Now, actions: &mut [Action; BURST]) {
        let mut unknown = 0u64;
        let mut right = 0;
        let (mut indices, mut slots, mut used) = ([0u8; BURST], [0usize; BURST], 0);
        {
            let mut candidates: [Option<Candidate<'_>>; BURST] = [None; BURST];
            for (index, frame) in frames.iter().enumerate() {
                match self.sort(frame, now.unix) {
                    Sorted::Known(slot, packet) => {
                        let Some(known) = self.paths.at(slot) else { continue };
                        (indices[used], slots[used]) = (index as u8, slot);
                        candidates[used] = Some(Candidate { packet, keys: &known.keys });
                        used += 1;
                    }
                    Sorted::Unknown => unknown |= 1 << index,
                    Sorted::Refused(reason) => actions[index] = Action::Drop(reason),
                }
            }
            if self.version != Version::Paper {
                let consented = self.lanes.check_consents(&candidates[..used]);
                let all = used;
                used = 0;
                for slot in 0..all {
                    if consented >> slot & 1 == 0 {
                        actions[usize::from(indices[slot])] = Action::Drop(Reason::Consent);
                        continue;
                    }
                    (indices[used], slots[used], candidates[used]) = (indices[slot], slots[slot], candidates[slot]);
                    used += 1;
                }
            }
            right |= self.lanes.check_verifiers(&candidates[..used], self.verifier_mask);
        }
        self.counters.hashed += self.lanes.take_hashed();
        // All lines of the filter are on their way before the first packet needs one.
        let mut hashes: [[u8; 16]; BURST] =
            std::array::from_fn(|number| if number < used { self.lanes.proof(number).fingerprint() } else { [0; 16] });
        self.admission.look_up(&mut hashes[..used]);
        let mut verified = indices[..used].iter().zip(slots).enumerate().peekable();
        let mut has_learned = false;
        for (index, frame) in frames.iter_mut().enumerate() {
            if unknown >> index & 1 != 0 {
                actions[index] = self.process_one(frame, now).unwrap_or_else(Action::Drop);
                self.charged[index] = self.admission.take_line();
                has_learned = true;
                continue;
            }
            let Some((number, (_, slot))) = verified.next_if(|(_, (at, _))| usize::from(**at) == index) else {
                continue;
            };
            // A path that was learnt meanwhile may have taken the place of this one.
            if has_learned && !self.is_at(slot, frame) {
                actions[index] = self.process_one(frame, now).unwrap_or_else(Action::Drop);
                self.charged[index] = self.admission.take_line();
                continue;
            }
            let Some(known) = self.paths.at_mut(slot) else { continue };
            actions[index] = if right >> number & 1 == 0 {
                Action::Drop(known.fault(self.lanes.proof(number), frame.octets))
            } else {
                let proof = (self.lanes.proof(number), hashes[number]);
                self.admission.admit(known, proof, frame, now).unwrap_or_else(Action::Drop)
            };
            self.charged[index] = self.admission.take_line();
        }
    }

    /// Whether the packet's path is the one in this slot of the cache.
    #[cold]
    fn is_at(&self, slot: usize, frame: &Frame<'_>) -> bool {
        let packet = Packet::decode(frame.octets, self.version);
        packet.is_ok_and(|packet| self.paths.find(&packet.handle()) == Some(slot))
    }

    #[inline(always)]
    fn sort<'a>(&self, frame: &'a Frame<'_>, now: UnixTime) -> Sorted<'a> {
        let Ok(packet) = Packet::decode(frame.octets, self.version) else { return Sorted::Refused(Reason::Malformed) };
        let Some(slot) = self.paths.find(&packet.handle()) else { return Sorted::Unknown };
        match self.paths.at(slot).map(|known| self.check_without_keys(&packet, known, frame.ingress, now)) {
            Some(Ok(())) => Sorted::Known(slot, packet),
            Some(Err(reason)) => Sorted::Refused(reason),
            None => Sorted::Unknown,
        }
    }

    /// The checks of a packet on a known path that need no key.
    #[inline(always)]
    fn check_without_keys(
        &self,
        packet: &Packet<'_>,
        known: &KnownPath,
        ingress: Ingress,
        now: UnixTime,
    ) -> Result<(), Reason> {
        verify::check_same_path(packet, known.version, known.keys.count(), known.octets())?;
        verify::check_index(packet, known.keys.index())?;
        self.check_ingress(&known.decision, ingress)?;
        known.decision.action?;
        verify::check_expiry(self.version, known.expiry, now)?;
        Ok(verify::check_freshness(self.version, packet, self.freshness, now)?)
    }

    /// The packet came in by the link to the node in front of this one; from a node that is not a neighbour, by an open link.
    fn check_ingress(&self, decision: &Decision, ingress: Ingress) -> Result<(), Reason> {
        let link = ingress_link(ingress)?;
        let is_right = match decision.from {
            Some(from) => from == link,
            None => self.policy.is_open(link),
        };
        if is_right { Ok(()) } else { Err(Reason::Ingress) }
    }

    /// What this core has counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How many keys are there before a packet needs them.
    #[must_use]
    pub fn agreed_keys(&self) -> usize {
        self.policy.agreed.len()
    }

    /// The total of account `id`.
    #[must_use]
    pub fn account(&self, id: u16) -> Option<Total> {
        self.admission.accounts.total(id)
    }

    /// The totals that have changed since the last call, by the accounts' numbers: the journal's next records.
    pub fn journal(&mut self) -> Vec<(u16, Total)> {
        self.admission.accounts.journal()
    }

    /// Takes over the journal's records after a start, in any order.
    pub fn restore(&mut self, records: impl IntoIterator<Item = (u16, Total)>) {
        records.into_iter().for_each(|(id, total)| self.admission.accounts.restore(id, total));
    }

    /// The replay filter, which tells how full it is.
    #[must_use]
    pub fn replay(&self) -> Option<&ReplayFilter> {
        self.admission.replay.as_ref()
    }

    /// What another thread's router may share with this one. To be called before the first packet.
    pub fn shared(&mut self) -> Shared {
        let (capacity, seed) = self.capacity;
        let new = || LearnedPaths::new(capacity, seed, Policy::clone(&self.policy));
        let learned = self.learned.get_or_insert_with(new).clone();
        let Admission { replay, accounts, .. } = &self.admission;
        Shared { replay: replay.as_ref().map(ReplayFilter::share), buckets: accounts.buckets().clone(), learned }
    }

    /// Has this router remember packets together with that of another thread, so that what one has accepted all refuse, charge payers
    /// together with it, and know the paths that it has learnt. To be called before the first packet.
    pub fn share(&mut self, shared: &Shared) {
        self.learned = Some(shared.learned.clone());
        self.share_policy();
        self.admission.replay = shared.replay.as_ref().map(ReplayFilter::share);
        self.admission.accounts.share(shared.buckets.clone());
        self.admission.set(&self.policy);
    }

    /// Puts `count` packets that are nobody's into the replay filter, whose numbers begin with `first`: the load between two
    /// passes of a benchmark.
    pub fn load_replay(&mut self, first: u64, count: u64, now: Instant) {
        self.admission.replay.iter_mut().for_each(|filter| filter.fill(first, count, now));
    }

    /// Every payer's partition and what it was refused, with the packets that are taken of the partition in this turn.
    pub fn partitions(&self, now: Now) -> impl Iterator<Item = (PayerState, u64)> {
        let taken =
            move |state: &PayerState| self.replay().map_or(0, |filter| filter.taken(state.partition, now.instant));
        self.admission.accounts.payers().map(move |state| (state, taken(&state)))
    }

    /// Compares the clocks, and returns how the wall clock jumped since the start. Without a replay filter nothing depends on
    /// that.
    pub fn observe(&self, now: Now) -> ClockJumps {
        self.replay().map_or_else(ClockJumps::default, |filter| {
            filter.observe(now);
            filter.clock_jumps()
        })
    }

    /// Where the packet at this index of the last burst was counted, if it is not dropped.
    #[inline(always)]
    #[must_use]
    pub fn charged(&self, index: usize) -> ChargeLine {
        self.charged[index]
    }

    /// Credits its account with a packet that was counted and could not be sent. It must be done before [`Router::journal`] is called: what
    /// is recorded is not taken back.
    #[cold]
    pub fn credit(&mut self, charged: ChargeLine) {
        self.admission.accounts.credit(charged);
    }

    /// The number of known paths.
    #[must_use]
    pub fn paths(&self) -> usize {
        self.paths.iter().count()
    }

    /// The reports of window `window`, one for every known path: also of those of whose packets this thread may have counted a part, since
    /// another one may have had the rest.
    pub fn reports(&self, window: u32) -> impl Iterator<Item = Report> {
        self.paths.iter().map(move |(handle, known)| {
            let (count, is_whole) = known.windows.of(window);
            // Indices are below 16.
            Report { handle: *handle, index: known.keys.index() as u8, window, is_whole, count }
        })
    }
}

/// What the routers of several threads share.
#[derive(Debug)]
pub struct Shared {
    replay: Option<ReplayFilter>,
    buckets: Buckets,
    learned: LearnedPaths,
}

/// A burst for one router.
struct ProcessBurst<'a, 'f> {
    router: &'a mut Router,
    frames: &'a mut [Frame<'f>],
    now: Now,
    actions: &'a mut [Action; BURST],
}

impl VectorCode for ProcessBurst<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { router, frames, now, actions } = self;
        router.process_burst(frames, now, actions);
    }
}

/// Reads an octet of every cache line of the headers before any of them is needed, and the last one, where a seal's tag is, so that the
/// lines of all packets are loaded side by side, and not one after another as the checks come to them.
#[inline]
fn read_headers(frames: &[Frame<'_>]) {
    /// Lines of a header of eight nodes, with the beginning of the payload.
    const LINES: usize = 9;
    let lines = |frame: &Frame<'_>| {
        let last = frame.octets.last();
        frame.octets.iter().step_by(64).take(LINES).chain(last).fold(0, |sum, octet| sum ^ octet)
    };
    std::hint::black_box(frames.iter().fold(0, |sum, frame| sum ^ lines(frame)));
}

/// The link by which a packet came in: by nothing else does one come.
#[inline(always)]
fn ingress_link(ingress: Ingress) -> Result<u16, Reason> {
    if let Ingress::External(link) = ingress { Ok(link) } else { Err(Reason::Ingress) }
}

/// The checks that depend on other packets: replays and accounts.
struct Admission {
    replay: Option<ReplayFilter>,
    accounts: Accounts,
    /// Where the packet that was admitted last was counted, until it is taken.
    line: ChargeLine,
}

impl Admission {
    fn set(&mut self, policy: &Policy) {
        let links = policy.links.iter().map(|link| link.id).collect();
        self.accounts.set(&policy.accounts, links, self.replay.as_ref().map_or(1, ReplayFilter::capacity));
    }

    #[inline(always)]
    fn take_line(&mut self) -> ChargeLine {
        std::mem::take(&mut self.line)
    }

    /// Turns fingerprints into what [`Admission::admit`] takes, and begins to fetch what the filter knows of them.
    #[inline(always)]
    fn look_up(&self, fingerprints: &mut [[u8; 16]]) {
        if let Some(replay) = &self.replay {
            replay.look_up(fingerprints);
        }
    }

    /// [`Admission::look_up`] and [`Admission::admit`] for a packet by itself.
    fn admit_one(
        &mut self,
        known: &mut KnownPath,
        proof: &ProofTags,
        frame: &mut Frame<'_>,
        now: Now,
    ) -> Result<Action, Reason> {
        let mut hash = [proof.fingerprint()];
        self.look_up(&mut hash);
        self.admit(known, (proof, hash[0]), frame, now)
    }

    /// Admits a verified packet and rewrites it for the next node. A repeated packet takes nothing of its payer's rate and
    /// partition, and costs its account nothing.
    #[inline(always)]
    fn admit(
        &mut self,
        known: &mut KnownPath,
        (proof, hash): (&ProofTags, [u8; 16]),
        frame: &mut Frame<'_>,
        now: Now,
    ) -> Result<Action, Reason> {
        let action = known.decision.action?;
        let [_, _, _, _, high, low, _, _, s0, s1, s2, s3, ..] = *frame.octets else { return Err(Reason::Malformed) };
        let link = ingress_link(frame.ingress)?;
        let (account, length) = (known.decision.account, frame.octets.len());
        let seconds = u32::from_be_bytes([s0, s1, s2, s3]);
        let Self { replay, accounts, line } = self;
        let mut claim = || accounts.claim(link, account, length, now.instant);
        match replay {
            Some(replay) if replay.is_from_before(seconds) => return Err(Reason::BeforeStart),
            Some(replay) => match replay.admit(hash, now.instant, claim) {
                ReplayOutcome::Fresh => {}
                ReplayOutcome::Repeated => return Err(Reason::Replayed),
                ReplayOutcome::Unpaid => return Err(Reason::Rate),
                ReplayOutcome::Full => {
                    accounts.note_full(link, account);
                    return Err(Reason::ReplayFull);
                }
            },
            None if claim().is_none() => return Err(Reason::Rate),
            None => {}
        }
        *line = accounts.add(account, length);
        known.windows.add(seconds, usize::from(u16::from_be_bytes([high, low])), proof.is_sample());
        proof.advance(frame.octets);
        Ok(action)
    }
}

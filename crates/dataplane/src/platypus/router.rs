//! The Platypus router: what becomes of verified packets.
//!
//! The order is such that a packet takes nothing before all is checked that comes for free: revocation, sources, the replay filter's
//! look-up, the payer's rate, a place in the payer's partition of the filter, and the account. Who repeats packets, or sends more
//! than it may, takes nothing from anybody else; and nothing is counted twice.

use std::net::IpAddr;

use crate::lanes::{CpuKernel, LANES, VectorCode};
use wayleave_core::{Instant, Now, Prefix};
use wayleave_packet::platypus::header::{Marks, Packet, Principal};
use wayleave_packet::platypus::verify::{self, Arrival, Charge, Forward, IcmpError, Verdict, Waypoint, icmp, verify};

use super::account::{AccountKey, Accounts, ChargeLine, ChargeOutcome, PayerState};
use super::delivery;
use super::foreign::{ForeignWaypoint, ForeignWaypoints};
use super::lanes::{BurstVerifier, Decision, Group, Verdicts};
use super::payers::{PayerCounters, Payers};
use super::revocation::RevocationTable;
use crate::answers::AnswerLimit;
use crate::frame::{BURST, Frame, Ingress};
use crate::replay::{ClockJumps, Partition, ReplayFilter, ReplayOutcome};

/// What becomes of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Drop(Reason),
    /// The packet is rewritten, and sent to its outer destination.
    Route,
    /// The octets are now an ICMP error, no longer than the packet that caused it, and sent to its outer destination.
    Answer(Reason),
}

impl Default for Action {
    fn default() -> Self {
        Self::Drop(Reason::Packet(verify::Reason::Malformed))
    }
}

/// Why a packet is not forwarded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// A check of the packet alone.
    Packet(verify::Reason),
    /// Its capability or delegation is revoked.
    Revoked,
    /// No list of revocations has been applied since the start.
    RevocationsUnknown,
    /// Its payer may not send from its original source; of a reply, not have it sent to its destination.
    Sources,
    /// Its capability says that its payer has source prefixes, and this router knows of none.
    SourcesUnknown,
    /// It was stamped before this router started, or before its clock went back: nobody remembers what came then.
    BeforeStart,
    /// The replay filter knows it.
    Replayed,
    /// Its payer's partition in the replay filter is full until the next turn.
    ReplayFull,
    /// Its principal or delegation exceeds its rate.
    Rate,
    /// The table of accounts is full, or the principal's share of it.
    AccountsFull,
    /// Not a drop: an ICMP error of another router, sent on to the original source.
    Relayed,
    /// An ICMP error that quotes a packet which this router is not known to have sent.
    Unrelated,
    /// An ICMP error that would be relayed, beyond the limit of answers or too long.
    RelayLimit,
}

impl Reason {
    /// How many there are.
    pub const COUNT: usize = verify::Reason::ALL.len() + 12;
    /// How many of them a packet alone does not give.
    pub(super) const OF_PAYERS: usize = Self::COUNT - verify::Reason::ALL.len();

    fn number(self) -> usize {
        let own = |n| verify::Reason::ALL.len() + n;
        match self {
            Self::Packet(reason) => reason as usize,
            Self::Revoked => own(0),
            Self::RevocationsUnknown => own(1),
            Self::Replayed => own(2),
            Self::ReplayFull => own(3),
            Self::Rate => own(4),
            Self::AccountsFull => own(5),
            Self::Relayed => own(6),
            Self::Unrelated => own(7),
            Self::BeforeStart => own(8),
            Self::RelayLimit => own(9),
            Self::Sources => own(10),
            Self::SourcesUnknown => own(11),
        }
    }

    /// Its number among those that a packet alone does not give.
    pub(super) fn of_payer(self) -> Option<usize> {
        self.number().checked_sub(verify::Reason::ALL.len())
    }

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Packet(reason) => reason.name(),
            Self::Revoked => "revoked",
            Self::RevocationsUnknown => "revocations-unknown",
            Self::Sources => "sources",
            Self::SourcesUnknown => "sources-unknown",
            Self::Replayed => "replayed",
            Self::ReplayFull => "replay-full",
            Self::Rate => "rate",
            Self::AccountsFull => "accounts-full",
            Self::Relayed => "relayed",
            Self::Unrelated => "unrelated",
            Self::BeforeStart => "before-start",
            Self::RelayLimit => "relay-limit",
        }
    }
}

/// One core's counters, on cache lines of their own.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    pub forwarded: u64,
    /// Of these, packets whose header was taken off behind their last waypoint.
    pub decapsulated: u64,
    /// ICMP errors sent or relayed.
    pub answered: u64,
    /// ICMP errors not sent, because of the rate limit or of the packet's length.
    pub unanswered: u64,
    reasons: [u64; Reason::COUNT],
}

impl Counters {
    /// Packets with `reason`.
    #[must_use]
    pub fn of(&self, reason: Reason) -> u64 {
        self.reasons[reason.number()]
    }
}

/// What is done with a repeated packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplayPolicy {
    /// Forwarded and counted like any other: there is no filter.
    Pass,
    /// Forwarded within the payer's rate, but counted once.
    CountOnce,
    /// Dropped.
    Drop,
}

/// Whether a packet is charged to its account.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counted {
    Yes,
    No,
}

/// How a router is set up.
#[derive(Debug)]
pub struct Config {
    /// Waypoint addresses, each with its keys and policy; several routers may have the same ones.
    pub waypoints: Vec<Waypoint>,
    /// What is done with repeated packets.
    pub repeated: ReplayPolicy,
    /// Recognises repeated packets, unless they pass; all threads of a router share its memory.
    pub replay: ReplayFilter,
    /// Whether nothing passes before a list of revocations was applied.
    pub need_revocations: bool,
    /// ICMP errors a second.
    pub answers_per_second: u32,
    /// Accounts at most; with zero, nothing is counted and rates do not apply.
    pub accounts: usize,
    /// Random: keeps principals from choosing IDs that collide in the table of accounts.
    pub account_seed: u64,
    /// How many delegations' stamping keys the vector path keeps.
    pub delegations: usize,
}

/// One core's router.
#[derive(Debug)]
pub struct Router {
    waypoints: Vec<Waypoint>,
    /// Networks of ordinary hosts, whose packets leave the last waypoint without a Platypus header.
    ordinary: Vec<Prefix>,
    kernel: CpuKernel,
    /// The vector path, if it is used: its decisions are those of `verify`.
    lanes: Option<BurstVerifier>,
    /// The decisions on the last burst; not there while a burst is processed.
    verdicts: Option<Box<Verdicts>>,
    /// For each packet of this burst, its hash in the replay filter and the key of its account.
    hashes: [[u8; 16]; BURST],
    /// Their original sources, as far as `hashes` are computed.
    origins: [[u8; 16]; BURST],
    account_keys: [AccountKey; BURST],
    /// Where the packets of the last burst were counted; nowhere, if they were not.
    charged: [ChargeLine; BURST],
    revocations: RevocationTable,
    need_revocations: bool,
    repeated: ReplayPolicy,
    replay: ReplayFilter,
    is_accounting: bool,
    accounts: Accounts,
    payers: Payers,
    answers: AnswerLimit,
    /// Quotes whose MAC may be checked, where there is no replay filter.
    quotes: AnswerLimit,
    answers_per_second: u32,
    foreign: ForeignWaypoints,
    counters: Counters,
}

/// A decision to forward: what the router has to know of a verified packet. Each way of verifying has its own.
pub trait Forwarding {
    /// Whom the packet is charged to. `datagram` is what was verified, as for all that follow.
    fn charge(&self, datagram: &[u8]) -> Charge;
    /// When the packet was stamped, in Unix seconds modulo 2^32.
    fn stamped(&self, datagram: &[u8]) -> u32;
    /// Octets that no two packets share.
    fn fingerprint(&self, datagram: &[u8]) -> [u8; 16];
    /// The packet's original source, with zeros behind it.
    fn original_source(&self, datagram: &[u8]) -> [u8; 16];
    /// The packet's original source and final destination.
    fn ends(&self, datagram: &[u8]) -> (IpAddr, IpAddr);
    /// What the verified capability is marked with.
    fn marks(&self, datagram: &[u8]) -> Marks;
    /// Rewrites the packet in place.
    fn apply(&self, datagram: &mut [u8]);
}

impl Forwarding for Forward {
    #[inline(always)]
    fn charge(&self, datagram: &[u8]) -> Charge {
        Forward::charge(self, datagram)
    }

    #[inline(always)]
    fn stamped(&self, datagram: &[u8]) -> u32 {
        Forward::stamped(self, datagram)
    }

    #[inline(always)]
    fn fingerprint(&self, datagram: &[u8]) -> [u8; 16] {
        Forward::fingerprint(self, datagram)
    }

    #[inline(always)]
    fn original_source(&self, datagram: &[u8]) -> [u8; 16] {
        Forward::original_source(self, datagram)
    }

    #[inline(always)]
    fn ends(&self, datagram: &[u8]) -> (IpAddr, IpAddr) {
        Forward::ends(self, datagram)
    }

    #[inline(always)]
    fn marks(&self, datagram: &[u8]) -> Marks {
        Forward::marks(self, datagram)
    }

    #[inline(always)]
    fn apply(&self, datagram: &mut [u8]) {
        Forward::apply(self, datagram);
    }
}

impl Router {
    /// A router of `config`, with no revocations yet.
    #[must_use]
    pub fn new(config: Config, kernel: CpuKernel) -> Self {
        let lanes = BurstVerifier::new(kernel, config.delegations);
        Self { kernel, lanes: Some(lanes), ..Self::without_lanes(config) }
    }

    /// The same router without the vector path: every packet is decided by `verify` alone. It does the same, slowly; tests
    /// compare the two.
    #[must_use]
    pub fn without_lanes(config: Config) -> Self {
        let mut accounts = Accounts::new(config.accounts, config.account_seed);
        // All of the filter, until rates are set.
        accounts.set_pool(Partition::pool(u32::try_from(config.replay.capacity()).unwrap_or(u32::MAX)));
        Self {
            waypoints: config.waypoints,
            ordinary: Vec::new(),
            kernel: CpuKernel::PORTABLE,
            lanes: None,
            verdicts: Some(Box::default()),
            hashes: [[0; 16]; BURST],
            origins: [[0; 16]; BURST],
            account_keys: [AccountKey::default(); BURST],
            charged: [ChargeLine::default(); BURST],
            revocations: RevocationTable::default(),
            need_revocations: config.need_revocations,
            repeated: config.repeated,
            replay: config.replay,
            is_accounting: config.accounts > 0,
            accounts,
            payers: Payers::new(config.account_seed),
            answers: AnswerLimit::new(config.answers_per_second, config.answers_per_second, 1),
            quotes: AnswerLimit::new(config.answers_per_second, config.answers_per_second, 1),
            answers_per_second: config.answers_per_second,
            foreign: ForeignWaypoints::new(),
            counters: Counters::default(),
        }
    }

    /// The same router with the limit of answers divided among `places` where packets come in: [`Ingress::External`] by its number,
    /// and place zero for all others.
    #[must_use]
    pub fn with_places(mut self, places: usize) -> Self {
        self.set_places(places);
        self
    }

    /// Divides the limit of answers anew, between two bursts. What is used up stays so.
    pub fn set_places(&mut self, places: usize) {
        for limit in [&mut self.answers, &mut self.quotes] {
            limit.retune(self.answers_per_second, self.answers_per_second, places);
        }
        self.foreign.set_places(places);
    }

    /// Processes at most [`BURST`] packets in place; actions beyond them are the default.
    pub fn process(&mut self, frames: &mut [Frame<'_>], now: Now) -> [Action; BURST] {
        let mut actions = [Action::default(); BURST];
        let kernel = self.kernel;
        ProcessBurst { router: self, frames, actions: &mut actions, now }.run_on(kernel);
        actions
    }

    /// Verifies all packets, begins to fetch what is known of other packets, and then decides on one after another, so
    /// that of two copies in one burst the first one passes.
    #[inline(always)]
    fn process_burst(&mut self, frames: &mut [Frame<'_>], actions: &mut [Action; BURST], now: Now) {
        self.replay.observe(now);
        if self.is_accounting {
            // Whatever is not charged in this burst has no place of an earlier one's.
            self.charged = [ChargeLine::default(); BURST];
        }
        let mut verdicts = self.verdicts.take().unwrap_or_default();
        {
            let mut datagrams: [&[u8]; BURST] = [&[]; BURST];
            for (datagram, frame) in datagrams.iter_mut().zip(frames.iter()) {
                *datagram = frame.octets;
            }
            let datagrams = &datagrams[..frames.len().min(BURST)];
            let arrival = |index: usize| arrival(&frames[index]);
            match &mut self.lanes {
                Some(lanes) => lanes.verify(&self.waypoints, datagrams, &arrival, now.unix, &mut verdicts),
                None => {
                    let packets = datagrams.iter().enumerate();
                    verdicts.set_each(
                        packets.map(|(index, datagram)| verify(&self.waypoints, datagram, arrival(index), now.unix)),
                    );
                }
            }
            self.look_up(datagrams, &verdicts);
        }
        let is_stateless = self.is_stateless();
        for (group, (frames, actions)) in frames.chunks_mut(LANES).zip(actions.chunks_mut(LANES)).enumerate() {
            let verdicts = verdicts.group(group);
            if let (Group::Uniform(uniform), Some(frames), true) = (verdicts, frames.first_chunk_mut(), is_stateless) {
                uniform.apply(frames.each_mut().map(|frame| &mut *frame.octets));
                actions.fill(Action::Route);
                self.counters.forwarded += LANES as u64;
                continue;
            }
            let packets = frames.iter_mut().zip(actions).zip(group * LANES..);
            match verdicts {
                Group::Uniform(uniform) => {
                    for (((frame, action), index), forward) in packets.zip(uniform.each()) {
                        *action = self.forward(frame, &forward, index, now);
                        self.count(*action);
                    }
                }
                Group::Each(decisions) => {
                    for (((frame, action), index), decision) in packets.zip(decisions) {
                        *action = self.decide(frame, decision, (is_stateless, index), now);
                        self.count(*action);
                    }
                }
            }
        }
        self.verdicts = Some(verdicts);
        if !self.ordinary.is_empty() {
            self.decapsulate(frames, actions);
        }
    }

    /// Takes the header off packets that have passed their last waypoint here and go on to an ordinary host. What is verified,
    /// charged and counted is the stamped packet, as everywhere.
    fn decapsulate(&mut self, frames: &mut [Frame<'_>], actions: &[Action; BURST]) {
        let routed = frames.iter_mut().zip(actions).filter(|(_, action)| **action == Action::Route);
        for (frame, _) in routed {
            if let Some(length) = delivery::decapsulate(frame.octets, &self.ordinary) {
                let (inner, _) = std::mem::take(&mut frame.octets).split_at_mut(length);
                frame.octets = inner;
                self.counters.decapsulated += 1;
            }
        }
    }

    /// What becomes of the packet at `index` of the burst.
    #[inline(always)]
    fn decide(
        &mut self,
        frame: &mut Frame<'_>,
        decision: &Decision,
        (is_stateless, index): (bool, usize),
        now: Now,
    ) -> Action {
        match decision {
            Decision::Simple(forward) if is_stateless => {
                forward.apply(frame.octets);
                Action::Route
            }
            Decision::Simple(forward) => self.forward(frame, forward, index, now),
            Decision::General(Verdict::Forward(forward)) => self.forward(frame, forward, index, now),
            Decision::General(Verdict::Answer(error, reason)) => self.answer(frame, *error, *reason, now),
            Decision::General(Verdict::Drop(reason)) => {
                if *reason == verify::Reason::ForeignWaypoint {
                    self.foreign.note(frame, &self.waypoints, now);
                }
                self.relay(frame, now).unwrap_or(Action::Drop(Reason::Packet(*reason)))
            }
        }
    }

    /// Whether nothing but the packet itself decides on it now.
    fn is_stateless(&self) -> bool {
        self.repeated == ReplayPolicy::Pass
            && !self.is_accounting
            && self.revocations.is_empty()
            && self.revocations.sources().is_empty()
            && (!self.need_revocations || self.revocations.is_loaded())
    }

    /// Begins to fetch what is known of other packets, for the whole burst at once: the lines of the replay filter and of
    /// the table of accounts are far apart, and would be waited for one by one.
    #[inline]
    fn look_up(&mut self, datagrams: &[&[u8]], verdicts: &Verdicts) {
        if self.repeated == ReplayPolicy::Pass && !self.is_accounting {
            return;
        }
        for (group, datagrams) in datagrams.chunks(LANES).enumerate() {
            let indices = group * LANES..(group + 1) * LANES;
            let hashed = self.hashes[indices.clone()].iter_mut().zip(&mut self.origins[indices.clone()]);
            let packets = datagrams.iter().zip(hashed.zip(&mut self.account_keys[indices]));
            match verdicts.group(group) {
                Group::Uniform(uniform) => {
                    for ((datagram, known), forward) in packets.zip(uniform.each()) {
                        note(&self.accounts, datagram, &forward, known);
                    }
                }
                Group::Each(decisions) => {
                    for ((datagram, known), decision) in packets.zip(decisions) {
                        match decision {
                            Decision::Simple(forward) => note(&self.accounts, datagram, forward, known),
                            Decision::General(Verdict::Forward(forward)) => {
                                note(&self.accounts, datagram, forward, known);
                            }
                            Decision::General(_) => {}
                        }
                    }
                }
            }
        }
        if self.repeated != ReplayPolicy::Pass {
            let count = datagrams.len();
            self.replay.look_up_with(&mut self.origins[..count], &mut self.hashes[..count]);
        }
    }

    #[inline(always)]
    fn forward(&mut self, frame: &mut Frame<'_>, forward: &impl Forwarding, index: usize, now: Now) -> Action {
        match self.check_after_mac(frame.octets, forward, index, now) {
            Ok(()) => {
                forward.apply(frame.octets);
                Action::Route
            }
            Err(reason) => {
                self.payers.refuse(forward.charge(frame.octets).principal, reason);
                Action::Drop(reason)
            }
        }
    }

    /// What depends on other packets than this one, in the order that the module's documentation gives.
    #[inline(always)]
    fn check_after_mac(
        &mut self,
        octets: &[u8],
        forward: &impl Forwarding,
        index: usize,
        now: Now,
    ) -> Result<(), Reason> {
        self.check_revocation(octets, forward)?;
        check_sources(&self.revocations, octets, forward)?;
        let counted = self.admit(octets, forward, index, now)?;
        if !self.is_accounting {
            return Ok(());
        }
        if counted == Counted::No {
            return Ok(());
        }
        let (key, charge) = (self.account_keys[index], || forward.charge(octets));
        let (outcome, charged) = self.accounts.add(key, charge, octets.len() as u64);
        self.charged[index] = charged;
        if outcome == ChargeOutcome::TableFull { Err(Reason::AccountsFull) } else { Ok(()) }
    }

    #[inline(always)]
    fn check_revocation(&self, octets: &[u8], forward: &impl Forwarding) -> Result<(), Reason> {
        if self.need_revocations && !self.revocations.is_loaded() {
            return Err(Reason::RevocationsUnknown);
        }
        if !self.revocations.is_empty() && self.revocations.contains(&forward.charge(octets)) {
            return Err(Reason::Revoked);
        }
        Ok(())
    }

    /// Replay filter and rate.
    #[inline(always)]
    fn admit(&mut self, octets: &[u8], forward: &impl Forwarding, index: usize, now: Now) -> Result<Counted, Reason> {
        let (charge, length) = (|| forward.charge(octets), octets.len() as u64);
        let Self { replay, accounts, .. } = self;
        if self.repeated == ReplayPolicy::Pass {
            let is_paid = accounts.claim(charge, length, now.instant).is_some();
            return if is_paid { Ok(Counted::Yes) } else { Err(Reason::Rate) };
        }
        if replay.is_from_before(forward.stamped(octets)) {
            return Err(Reason::BeforeStart);
        }
        match replay.admit(self.hashes[index], now.instant, || accounts.claim(charge, length, now.instant)) {
            ReplayOutcome::Fresh => Ok(Counted::Yes),
            ReplayOutcome::Unpaid => Err(Reason::Rate),
            ReplayOutcome::Full => {
                accounts.note_full(&charge());
                Err(Reason::ReplayFull)
            }
            ReplayOutcome::Repeated if self.repeated == ReplayPolicy::Drop => Err(Reason::Replayed),
            ReplayOutcome::Repeated if accounts.claim_repeated(&charge(), length, now.instant) => Ok(Counted::No),
            ReplayOutcome::Repeated => Err(Reason::Rate),
        }
    }

    fn answer(&mut self, frame: &mut Frame<'_>, error: IcmpError, reason: verify::Reason, now: Now) -> Action {
        let reason = Reason::Packet(reason);
        // The limit comes before any work, and what is taken for a packet that gets no answer is not given back.
        if self.answers.take(place(frame), now.instant)
            && let Some(answer) = Packet::decode(frame.octets)
                .ok()
                .and_then(|packet| icmp::error(&packet, error, packet.outer().destination))
        {
            replace(frame, &answer);
            return Action::Answer(reason);
        }
        self.counters.unanswered += 1;
        Action::Drop(reason)
    }

    /// Relays another router's ICMP error about a packet that a waypoint here sent on to that packet's original source. `None`
    /// if the packet is no such error.
    ///
    /// Anybody may send ICMP errors, and a source that believes a forged one gives up a connection or a size of packets. So
    /// the error must show that its sender has seen the packet: by source, nonce and binding, which the replay filter remembers.
    /// Who pays for a packet knows all of it, and may quote it with any source: only what came from a source proves it. Where no
    /// filter is in use, the whole packet with a right binding has to do, if its source is none that is refused. Quotes that are
    /// too short are dropped.
    fn relay(&mut self, frame: &mut Frame<'_>, now: Now) -> Option<Action> {
        let Self { waypoints, revocations, replay, quotes, answers, repeated, counters, .. } = self;
        let read = |here: &Waypoint| icmp::quoted(frame.octets, here.address());
        let (here, error) = waypoints.iter().find_map(|here| Some((here, read(here)?)))?;
        let is_related = if *repeated == ReplayPolicy::Pass {
            error.packet().is_some_and(|packet| {
                quotes.take(place(frame), now.instant)
                    && here.may_have_sent(&packet, now.unix)
                    && have_sources_passed(revocations, &packet)
            })
        } else {
            error.fingerprint().is_some_and(|fingerprint| replay.knows(error.origin(), fingerprint, now.instant))
        };
        if !is_related {
            return Some(Action::Drop(Reason::Unrelated));
        }
        if answers.take(place(frame), now.instant)
            && let Some(relayed) = error.relayed()
        {
            replace(frame, &relayed);
            return Some(Action::Answer(Reason::Relayed));
        }
        counters.unanswered += 1;
        Some(Action::Drop(Reason::RelayLimit))
    }

    fn count(&mut self, action: Action) {
        match action {
            Action::Route => self.counters.forwarded += 1,
            Action::Drop(reason) => self.counters.reasons[reason.number()] += 1,
            Action::Answer(reason) => {
                self.counters.answered += 1;
                self.counters.reasons[reason.number()] += 1;
            }
        }
    }

    /// Where the packet at this index of the last burst was counted. It was nowhere if the packet is not charged: one that is answered
    /// or dropped before its account, or repeated.
    #[inline(always)]
    #[must_use]
    pub fn charged(&self, index: usize) -> ChargeLine {
        self.charged[index]
    }

    /// Credits its payer with a packet that was counted and could not be sent. It must be done before [`Accounts::journal`] and
    /// [`Accounts::close`] are called: what is recorded is not taken back.
    #[cold]
    pub fn credit(&mut self, charged: ChargeLine) {
        if let Some(principal) = self.accounts.credit(charged) {
            self.payers.credit(principal, charged.octets());
        }
    }

    /// What was refused and credited to each payer, and under `None` to those beyond [`super::MOST_PAYERS`].
    pub fn payers(&self) -> impl Iterator<Item = (Option<Principal>, &PayerCounters)> {
        self.payers.iter()
    }

    /// This core's counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The waypoints from which packets were refused since this was last called, because the policy does not name them: a few
    /// at most, and only those of packets that would pass behind a named one.
    pub fn take_foreign_waypoints(&mut self) -> Vec<ForeignWaypoint> {
        self.foreign.take()
    }

    /// The revocations in use, to apply lists and to drop expired entries.
    pub fn revocations(&mut self) -> &mut RevocationTable {
        &mut self.revocations
    }

    /// Accounts, to see how full their table is.
    #[must_use]
    pub fn account_table(&self) -> &Accounts {
        &self.accounts
    }

    /// Accounts, to set rates and partitions and to write the journal.
    pub fn accounts(&mut self) -> &mut Accounts {
        &mut self.accounts
    }

    /// Puts `count` packets that are nobody's into the replay filter, whose numbers begin with `first`: the load between two
    /// passes of a benchmark.
    pub fn load_replay(&mut self, first: u64, count: u64, now: Instant) {
        self.replay.fill(first, count, now);
    }

    /// Every payer's partition and what it was refused, with the packets that all threads have taken of the partition in this turn.
    pub fn partitions(&self, now: Now) -> impl Iterator<Item = (PayerState, u64)> {
        self.accounts.payers(now.instant).map(move |state| (state, self.replay.taken(state.partition, now.instant)))
    }

    /// Compares the clocks where no packets come, and returns how the wall clock jumped since the start.
    pub fn observe(&self, now: Now) -> ClockJumps {
        self.replay.observe(now);
        self.replay.clock_jumps()
    }

    /// The replay filter, if one is in use.
    #[must_use]
    pub fn replay(&self) -> Option<&ReplayFilter> {
        (self.repeated != ReplayPolicy::Pass).then_some(&self.replay)
    }

    /// Whether packets to this address are verified here.
    #[must_use]
    pub fn is_waypoint(&self, address: Option<IpAddr>) -> bool {
        address.is_some_and(|address| self.waypoints.iter().any(|here| here.address() == address))
    }

    /// Names the networks of ordinary hosts, between two bursts: packets to them leave their last waypoint, if it is here,
    /// without a Platypus header.
    pub fn set_ordinary(&mut self, networks: Vec<Prefix>) {
        self.ordinary = networks;
    }

    /// Replaces waypoints, keys and policies between two bursts, as when an address moves here or away.
    pub fn set_waypoints(&mut self, waypoints: Vec<Waypoint>) {
        self.waypoints = waypoints;
        if let Some(lanes) = &mut self.lanes {
            lanes.forget();
        }
    }
}

/// The packet's original source is one that its payer may use. Whoever pays for replies can stamp them for any source: so the one
/// to whom they go has to be where the payer may be.
#[inline(always)]
fn check_sources(revocations: &RevocationTable, octets: &[u8], forward: &impl Forwarding) -> Result<(), Reason> {
    let marks = forward.marks(octets);
    if revocations.sources().is_empty() && marks.is_none() {
        return Ok(());
    }
    let (source, destination) = forward.ends(octets);
    let address = if marks.is_reply() { destination } else { source };
    revocations.sources().check(&forward.charge(octets), marks.is_bound(), address)
}

/// Whether a packet that a waypoint here may have sent on had a source that its payer may use.
fn have_sources_passed(revocations: &RevocationTable, packet: &Packet<'_>) -> bool {
    let passed = packet.current().unwrap_or(packet.count()).checked_sub(1);
    passed.is_some_and(|index| check_sources(revocations, packet.datagram(), &Forward::of(packet, index)).is_ok())
}

/// Notes a packet's replay fingerprint, its original source and the key of its account.
#[inline(always)]
fn note(
    accounts: &Accounts,
    datagram: &[u8],
    forward: &impl Forwarding,
    ((hash, origin), key): ((&mut [u8; 16], &mut [u8; 16]), &mut AccountKey),
) {
    *hash = forward.fingerprint(datagram);
    *origin = forward.original_source(datagram);
    *key = accounts.look_up(&forward.charge(datagram));
}

/// A burst of packets for one router.
struct ProcessBurst<'a, 'f> {
    router: &'a mut Router,
    frames: &'a mut [Frame<'f>],
    actions: &'a mut [Action; BURST],
    now: Now,
}

impl VectorCode for ProcessBurst<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { router, frames, actions, now } = self;
        router.process_burst(frames, actions, now);
    }
}

/// How a packet came, as far as its outer source is judged by that.
pub(super) fn arrival(frame: &Frame<'_>) -> Arrival {
    match frame.ingress {
        Ingress::External(link) => Arrival::Link(link),
        Ingress::Sibling(_) | Ingress::Internal => Arrival::Ip,
    }
}

/// The number of the place where a packet came in, for the limit of answers.
pub(super) fn place(frame: &Frame<'_>) -> usize {
    match frame.ingress {
        Ingress::External(number) => number.into(),
        Ingress::Sibling(_) | Ingress::Internal => 0,
    }
}

/// Replaces a packet by an answer, which is no longer than it.
fn replace(frame: &mut Frame<'_>, answer: &[u8]) {
    let octets = std::mem::take(&mut frame.octets);
    let (place, _) = octets.split_at_mut(answer.len());
    place.copy_from_slice(answer);
    frame.octets = place;
}

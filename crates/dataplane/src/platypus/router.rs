//! The Platypus router: bindings of a burst in lanes, then revocation, replay and accounting, in that order.

use std::net::IpAddr;

use wayleave_core::Now;
use wayleave_crypto::lanes::{CpuKernel, LANES, Work};
use wayleave_packet::platypus::header::{Packet, Version};
use wayleave_packet::platypus::verify::{self, Forward, IcmpError, Verdict, Waypoint, icmp};

use super::account::{Accounts, Charged, Name};
use super::lanes::{Group, Verdicts, Verifier};
use super::revocation::Revocations;
use crate::frame::{BURST, Frame};
use crate::limit::TokenBucket;
use crate::replay::{Outcome, ReplayFilter};

/// What becomes of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Nothing more.
    Drop(Reason),
    /// The packet is rewritten: to its outer destination.
    Route,
    /// The octets are now an ICMP error, no longer than what provoked it: to its outer destination.
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
    /// No list of revocations has been taken over since the start.
    RevocationsUnknown,
    /// It came before.
    Replayed,
    /// The replay filter is full: counted traffic waits for the next turn.
    ReplayFull,
    /// Its principal or delegation sends more than it may.
    Rate,
    /// There is no room for another account.
    AccountsFull,
    /// Not a drop: an error of another router, sent on to the original source.
    Relayed,
}

impl Reason {
    const COUNT: usize = verify::Reason::ALL.len() + 7;

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
        }
    }

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Packet(reason) => reason.name(),
            Self::Revoked => "revoked",
            Self::RevocationsUnknown => "revocations-unknown",
            Self::Replayed => "replayed",
            Self::ReplayFull => "replay-full",
            Self::Rate => "rate",
            Self::AccountsFull => "accounts-full",
            Self::Relayed => "relayed",
        }
    }
}

/// One core's counters, on cache lines of their own.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    /// Packets sent on.
    pub forwarded: u64,
    /// ICMP errors sent or relayed.
    pub answered: u64,
    /// ICMP errors that the rate limit or the packet's length forbade.
    pub unanswered: u64,
    reasons: [u64; Reason::COUNT],
}

impl Counters {
    /// Packets that met `reason`.
    #[must_use]
    pub fn of(&self, reason: Reason) -> u64 {
        self.reasons[reason.number()]
    }
}

/// What is done with a packet that came before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repeated {
    /// Forwarded and counted like any other: there is no filter.
    Pass,
    /// Forwarded, but counted once.
    CountOnce,
    /// Dropped.
    Drop,
}

/// How a router is set up.
#[derive(Debug)]
pub struct Config {
    /// Waypoint addresses, each with its keys and policy; several routers may have the same ones.
    pub waypoints: Vec<Waypoint>,
    /// What is done with repeated packets.
    pub repeated: Repeated,
    /// What knows repeated packets, unless they pass; all threads of a router share one memory.
    pub replay: ReplayFilter,
    /// Whether nothing passes until a list of revocations is there.
    pub need_revocations: bool,
    /// ICMP errors a second.
    pub answers_per_second: u32,
    /// Accounts at most; with zero, nothing is counted and no rate is held.
    pub accounts: usize,
    /// Random: makes the table of accounts unforeseeable.
    pub account_seed: u64,
    /// Stamping keys of delegations kept.
    pub delegations: usize,
}

/// One core's router.
#[derive(Debug)]
pub struct Router {
    waypoints: Vec<Waypoint>,
    verifier: Verifier,
    /// Those of the last burst; not there while a burst is processed.
    verdicts: Option<Box<Verdicts>>,
    /// What the replay filter knows the packets of this burst by, and the names of their accounts.
    hashes: [[u8; 16]; BURST],
    names: [Name; BURST],
    revocations: Revocations,
    need_revocations: bool,
    repeated: Repeated,
    replay: ReplayFilter,
    is_accounting: bool,
    accounts: Accounts,
    answers: TokenBucket,
    counters: Counters,
}

impl Router {
    /// A router of `config`, with no revocations yet.
    #[must_use]
    pub fn new(config: Config, kernel: CpuKernel) -> Self {
        Self {
            waypoints: config.waypoints,
            verifier: Verifier::new(kernel, config.delegations),
            verdicts: Some(Box::default()),
            hashes: [[0; 16]; BURST],
            names: [Name::default(); BURST],
            revocations: Revocations::default(),
            need_revocations: config.need_revocations,
            repeated: config.repeated,
            replay: config.replay,
            is_accounting: config.accounts > 0,
            accounts: Accounts::new(config.accounts, config.account_seed),
            answers: TokenBucket::new(config.answers_per_second, config.answers_per_second),
            counters: Counters::default(),
        }
    }

    /// Processes at most [`BURST`] packets in place; actions beyond them are the default.
    pub fn process(&mut self, frames: &mut [Frame<'_>], now: Now) -> [Action; BURST] {
        let mut actions = [Action::default(); BURST];
        let kernel = self.verifier.kernel();
        kernel.run(Run { router: self, frames, actions: &mut actions, now });
        actions
    }

    #[inline(always)]
    fn process_burst(&mut self, frames: &mut [Frame<'_>], actions: &mut [Action; BURST], now: Now) {
        let mut verdicts = self.verdicts.take().unwrap_or_default();
        {
            let mut datagrams: [&[u8]; BURST] = [&[]; BURST];
            for (datagram, frame) in datagrams.iter_mut().zip(frames.iter()) {
                *datagram = frame.octets;
            }
            let count = frames.len().min(BURST);
            self.verifier.decide(&self.waypoints, &datagrams[..count], now.unix, &mut verdicts);
            self.look_up(&datagrams[..count], &verdicts);
        }
        let is_alone = self.is_alone();
        for (group, (frames, actions)) in frames.chunks_mut(LANES).zip(actions.chunks_mut(LANES)).enumerate() {
            let verdicts = verdicts.group(group);
            if let (Group::Alike(alike), Some(frames), true) = (verdicts, frames.first_chunk_mut(), is_alone) {
                alike.apply(frames.each_mut().map(|frame| &mut *frame.octets));
                actions.fill(Action::Route);
                self.counters.forwarded += LANES as u64;
                continue;
            }
            let packets = frames.iter_mut().zip(actions);
            match verdicts {
                Group::Alike(alike) => {
                    for (lane, ((frame, action), forward)) in packets.zip(alike.forwards()).enumerate() {
                        *action = self.forward(frame, &forward, group * LANES + lane, now);
                        self.count(*action);
                    }
                }
                Group::Each(verdicts) => {
                    for (lane, ((frame, action), verdict)) in packets.zip(verdicts).enumerate() {
                        *action = self.decide(frame, verdict, (is_alone, group * LANES + lane), now);
                        self.count(*action);
                    }
                }
            }
        }
        self.verdicts = Some(verdicts);
    }

    /// What becomes of the packet at `place` of the burst.
    #[inline(always)]
    fn decide(
        &mut self,
        frame: &mut Frame<'_>,
        verdict: &Verdict,
        (is_alone, place): (bool, usize),
        now: Now,
    ) -> Action {
        match verdict {
            Verdict::Forward(forward) if is_alone => {
                forward.apply(frame.octets);
                Action::Route
            }
            Verdict::Forward(forward) => self.forward(frame, forward, place, now),
            Verdict::Answer(error, reason) => self.answer(frame, *error, *reason, now),
            Verdict::Drop(reason) => self.relay(frame, now).unwrap_or(Action::Drop(Reason::Packet(*reason))),
        }
    }

    /// Whether nothing but the packet itself decides on it now.
    fn is_alone(&self) -> bool {
        self.repeated == Repeated::Pass
            && !self.is_accounting
            && self.revocations.is_empty()
            && (!self.need_revocations || self.revocations.is_loaded())
    }

    /// Begins to fetch what is known of other packets, for the whole burst at once.
    #[inline]
    fn look_up(&mut self, datagrams: &[&[u8]], verdicts: &Verdicts) {
        if self.repeated == Repeated::Pass && !self.is_accounting {
            return;
        }
        for (group, datagrams) in datagrams.chunks(LANES).enumerate() {
            let places = group * LANES..(group + 1) * LANES;
            let known = self.hashes[places.clone()].iter_mut().zip(&mut self.names[places]);
            let packets = datagrams.iter().zip(known);
            match verdicts.group(group) {
                Group::Alike(alike) => {
                    for ((datagram, known), forward) in packets.zip(alike.forwards()) {
                        note(&self.accounts, datagram, &forward, known);
                    }
                }
                Group::Each(verdicts) => {
                    for ((datagram, known), verdict) in packets.zip(verdicts) {
                        if let Verdict::Forward(forward) = verdict {
                            note(&self.accounts, datagram, forward, known);
                        }
                    }
                }
            }
        }
        if self.repeated != Repeated::Pass {
            self.replay.look_up(&mut self.hashes[..datagrams.len()]);
        }
    }

    #[inline(always)]
    fn forward(&mut self, frame: &mut Frame<'_>, forward: &Forward, place: usize, now: Now) -> Action {
        match self.check_after_mac(frame.octets, forward, place, now) {
            Ok(()) => {
                forward.apply(frame.octets);
                Action::Route
            }
            Err(reason) => Action::Drop(reason),
        }
    }

    /// What depends on other packets than this one.
    #[inline(always)]
    fn check_after_mac(&mut self, octets: &[u8], forward: &Forward, place: usize, now: Now) -> Result<(), Reason> {
        if self.need_revocations && !self.revocations.is_loaded() {
            return Err(Reason::RevocationsUnknown);
        }
        if !self.revocations.is_empty() && self.revocations.contains(&forward.charge(octets)) {
            return Err(Reason::Revoked);
        }
        let is_counted = match self.repeated {
            Repeated::Pass => true,
            mode => match (self.replay.put(self.hashes[place], now.unix), mode) {
                (Outcome::Fresh, _) => true,
                (Outcome::Seen, Repeated::CountOnce) => false,
                (Outcome::Seen, _) => return Err(Reason::Replayed),
                (Outcome::Full, _) => return Err(Reason::ReplayFull),
            },
        };
        if !is_counted || !self.is_accounting {
            return Ok(());
        }
        match self.accounts.charge_to(self.names[place], || forward.charge(octets), octets.len() as u64, now.instant) {
            Charged::Yes => Ok(()),
            Charged::OverRate => Err(Reason::Rate),
            Charged::Full => Err(Reason::AccountsFull),
        }
    }

    fn answer(&mut self, frame: &mut Frame<'_>, error: IcmpError, reason: verify::Reason, now: Now) -> Action {
        let reason = Reason::Packet(reason);
        if !self.answers.ready(now.instant) {
            self.counters.unanswered += 1;
            return Action::Drop(reason);
        }
        let answer = Packet::decode(frame.octets, Version::Standard)
            .ok()
            .and_then(|packet| icmp::error(&packet, error, packet.outer().destination));
        match answer {
            Some(answer) => {
                self.answers.take(now.instant);
                replace(frame, &answer);
                Action::Answer(reason)
            }
            None => {
                self.counters.unanswered += 1;
                Action::Drop(reason)
            }
        }
    }

    /// An ICMP error about a packet that a waypoint of ours sent on goes to that packet's original source.
    fn relay(&mut self, frame: &mut Frame<'_>, now: Now) -> Option<Action> {
        let relayed = self.waypoints.iter().find_map(|here| icmp::relay(frame.octets, here.address()))?;
        if !self.answers.take(now.instant) {
            self.counters.unanswered += 1;
            return None;
        }
        replace(frame, &relayed);
        Some(Action::Answer(Reason::Relayed))
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

    /// What this core has counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Revocations, to take over lists and to drop what has expired.
    pub fn revocations(&mut self) -> &mut Revocations {
        &mut self.revocations
    }

    /// Accounts, to set rates and to write the journal.
    pub fn accounts(&mut self) -> &mut Accounts {
        &mut self.accounts
    }

    /// The replay filter, to see how full it is.
    #[must_use]
    pub fn replay(&self) -> Option<&ReplayFilter> {
        (self.repeated != Repeated::Pass).then_some(&self.replay)
    }

    /// Forgets every packet that was seen, between two passes of a benchmark. Only a router that shares its filter with no
    /// other thread may do it.
    pub fn clear_replay(&mut self) {
        self.replay.clear();
    }

    /// Whether packets to this address are verified here.
    #[must_use]
    pub fn is_waypoint(&self, address: Option<IpAddr>) -> bool {
        address.is_some_and(|address| self.waypoints.iter().any(|here| here.address() == address))
    }

    /// Takes other waypoints, keys or policies between two bursts: addresses move here or away.
    pub fn set_waypoints(&mut self, waypoints: Vec<Waypoint>) {
        self.waypoints = waypoints;
        self.verifier.forget();
    }
}

/// Notes what the replay filter and the accounts know a packet by.
#[inline(always)]
fn note(accounts: &Accounts, datagram: &[u8], forward: &Forward, (hash, name): (&mut [u8; 16], &mut Name)) {
    *hash = forward.fingerprint(datagram);
    *name = accounts.look_up(&forward.charge(datagram));
}

/// A burst of packets for one router.
struct Run<'a, 'f> {
    router: &'a mut Router,
    frames: &'a mut [Frame<'f>],
    actions: &'a mut [Action; BURST],
    now: Now,
}

impl Work for Run<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { router, frames, actions, now } = self;
        router.process_burst(frames, actions, now);
    }
}

/// Puts an answer, which is no longer, in the place of a packet.
fn replace(frame: &mut Frame<'_>, answer: &[u8]) {
    let octets = std::mem::take(&mut frame.octets);
    let (place, _) = octets.split_at_mut(answer.len());
    place.copy_from_slice(answer);
    frame.octets = place;
}

//! The rounds of batches: rankings come in, both parties evaluate Select-Best, each member gets its shares of the result.
//!
//! Several rounds are open at a time, and batches go on beside them. The engine does one thing after the other, and party 1 says
//! what comes next: what changed just now before what is evaluated again, and among rounds the one of which the least was
//! done, so that a round with many prefixes delays another by one evaluation and not by all of its own.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use wayleave_core::{Instant, Now, Prefix};
use wayleave_crypto::secret::Seed;
use wayleave_mpc::{BitRows, Demand};

use super::engine::{Engine, MAX_TARGET};
use super::state::{Stage, State};
use super::supply::SetupDone;
use super::{PartyEvent, PartyNumber, PartyOutput};
use crate::frames::{EngineStream, Instance, MAX_CANDIDATES, PartyFrame, ToMember, round_order};
use crate::rng::stream;

/// Bits of a member's class and of the exchange's recommendation.
pub(super) const CLASS_BITS: usize = 8;
/// Bytes of a ranking for each candidate: the valid bit, the class.
pub(super) const RANK_BYTES: usize = 2;
/// How often members are told that a round goes on; they wait for three times as long at least.
const PROGRESS: Duration = Duration::from_secs(3);
/// Comparators times lanes of one evaluation: our own limit on what is in memory at once.
const JOB_COMPARATORS: usize = 1 << 16;
/// The same where prefixes are evaluated again: what changes meanwhile waits for one of these.
const LATER_JOB_COMPARATORS: usize = 1 << 14;

/// Comparators of one lane of an evaluation among so many routes, padded as it is.
pub(super) fn comparators(routes: usize) -> usize {
    routes.clamp(1, MAX_CANDIDATES).next_power_of_two() - 1
}

/// A member's share of a ranking.
pub(super) enum RankShare {
    /// Party 1's: a seed.
    Seed(Seed),
    /// Party 2's.
    Bytes(Vec<u8>),
}

/// Rounds that are open at a time: our own limit. Beyond it no batch is made until one of them ends. With the usual tick and wait for
/// rankings this is more than begin while the first one waits for a member that is silent.
pub(super) const MAX_ROUNDS: usize = 32;
/// Of these, rounds with prefixes that are evaluated again: our own limit.
pub(super) const MAX_BACKGROUND: usize = 2;
/// Evaluations of what changed just now that go before one that can wait: our own limit.
const MAX_LIVE: u32 = 16;
/// Of these each so-manieth is the first round's, however much of that was done: a round with several evaluations would otherwise wait
/// for as long as new ones come.
const FIRST_ROUND: u32 = 8;
/// Evaluations that go before one for which correlations are made: our own limit. Then the engine waits for these.
const MAX_OVERTAKEN: u32 = 64;
/// Work that party 1 may name before it is begun here: the engine at party 1 is ahead by one evaluation at most.
const MAX_ORDERED: usize = 4;

/// Members that get the same instances.
pub(super) struct Group {
    /// All instances of the tick: first those that changed just now.
    pub instances: Vec<Instance>,
    pub live: usize,
    /// The prefixes of those that changed just now, and of the others, each ascending.
    live_prefixes: Vec<Prefix>,
    later_prefixes: Vec<Prefix>,
    /// Those with two or more candidates, in [`round_order`], and how many of them changed just now.
    pub multi: Vec<Instance>,
    live_multi: usize,
    /// The place in `multi` of each of `instances` that is there.
    number: HashMap<usize, usize>,
    /// The slots that rank.
    pub members: Vec<u32>,
    /// Places in `multi`, and slots whose rankings there count as zero.
    unranked: HashSet<(usize, u32)>,
    /// Comparators of a lane that are there because of each announcer's changes.
    comparators_of: BTreeMap<u32, usize>,
}

impl Group {
    pub(super) fn new(live: Vec<(Prefix, Instance)>, later: Vec<(Prefix, Instance)>) -> Self {
        let (live_prefixes, mut instances): (Vec<Prefix>, Vec<Instance>) = live.into_iter().unzip();
        let live = instances.len();
        let (later_prefixes, later): (Vec<Prefix>, Vec<Instance>) = later.into_iter().unzip();
        instances.extend(later);
        let order = round_order(&instances, live);
        let live_multi = order.iter().filter(|place| **place < live).count();
        let number = order.iter().enumerate().map(|(number, place)| (*place, number)).collect();
        let multi = order.into_iter().map(|place| Arc::clone(&instances[place])).collect();
        let (members, unranked, comparators_of) = (Vec::new(), HashSet::new(), BTreeMap::new());
        Self {
            instances,
            live,
            live_prefixes,
            later_prefixes,
            multi,
            live_multi,
            number,
            members,
            unranked,
            comparators_of,
        }
    }

    /// Notes which announcers' changes the evaluations are there for: of each prefix, the slots whose routes changed.
    pub(super) fn note_announcers(&mut self, changed_by: &BTreeMap<Prefix, BTreeSet<u32>>) {
        for (prefix, instance) in self.live_prefixes.iter().zip(&self.instances) {
            let of_prefix = comparators(instance.len());
            for slot in changed_by.get(prefix).into_iter().flatten().filter(|_| of_prefix > 0) {
                *self.comparators_of.entry(*slot).or_default() += of_prefix;
            }
        }
    }

    /// Has what the slot ranks for a prefix count as zero. Returns its place in `instances`, if there is something to rank.
    pub(super) fn leave_out(&mut self, prefix: &Prefix, slot: u32) -> Option<u32> {
        let place = self.place(prefix)?;
        self.unranked.insert((*self.number.get(&place)?, slot));
        u32::try_from(place).ok()
    }

    /// Whether there is something to rank for a prefix.
    pub(super) fn is_contested(&self, prefix: &Prefix) -> bool {
        self.place(prefix).is_some_and(|place| self.number.contains_key(&place))
    }

    fn place(&self, prefix: &Prefix) -> Option<usize> {
        let later = || Some(self.live + self.later_prefixes.binary_search(prefix).ok()?);
        self.live_prefixes.binary_search(prefix).ok().or_else(later)
    }

    /// Runs of `multi` with equally many candidates, padded to a power of two: each with that number, and whether it changed just now.
    fn runs(&self) -> Vec<(Range<usize>, usize, bool)> {
        let mut runs: Vec<(Range<usize>, usize, bool)> = Vec::new();
        for (place, instance) in self.multi.iter().enumerate() {
            let (routes, live) = (instance.len().next_power_of_two(), place < self.live_multi);
            match runs.last_mut() {
                Some((run, of, is_live)) if (*of, *is_live) == (routes, live) => run.end = place + 1,
                _ => runs.push((place..place + 1, routes, live)),
            }
        }
        runs
    }
}

/// One evaluation: a run of instances of a group with equally many candidates (padded to a power of two), for all its members.
struct Job {
    group: usize,
    routes: usize,
    instances: Range<usize>,
    /// Whether they changed just now.
    live: bool,
}

/// The round of a batch.
pub(super) struct Round {
    seq: u64,
    groups: Vec<Group>,
    begin: Instant,
    deadline: Instant,
    /// When members were last told that it goes on, and what the engine had done by then.
    told: Instant,
    progress: u64,
    /// Rankings that this party holds.
    rows: BTreeMap<u32, ([u8; 16], Vec<u8>)>,
    /// At party 1, the rankings that party 2 holds.
    peer_rows: BTreeMap<u32, [u8; 16]>,
    /// Whether rankings came, or members went, since party 1 last looked whether all are there.
    pub has_changed: bool,
    running: Option<Running>,
}

struct Running {
    /// Rankings that count, by slot.
    rows: BTreeMap<u32, Vec<u8>>,
    /// First those over what changed just now.
    jobs: VecDeque<Job>,
    /// How many have been done.
    done: usize,
    demand: Demand,
}

impl Round {
    pub(super) fn new(seq: u64, groups: Vec<Group>, begin: Instant, deadline: Instant) -> Self {
        let (rows, peer_rows) = (BTreeMap::new(), BTreeMap::new());
        Self {
            seq,
            groups,
            begin,
            deadline,
            told: begin,
            progress: 0,
            rows,
            peer_rows,
            has_changed: true,
            running: None,
        }
    }

    /// When it is the turn of its next evaluation, if it has one: the least first. Where rounds are crowded, the first ones end first.
    fn turn(&self, in_order: bool) -> Option<(bool, usize, u64)> {
        let running = self.running.as_ref()?;
        let live = running.jobs.front()?.live;
        Some((!live, if live && !in_order { running.done } else { 0 }, self.seq))
    }

    /// What its next evaluation takes, if that is over prefixes that changed just now (`live`), or over ones that are evaluated again.
    fn demand(&self, engine: &mut Engine, live: bool) -> Option<Demand> {
        let job = self.running.as_ref()?.jobs.front().filter(|job| job.live == live)?;
        let lanes = job.instances.len() * self.groups[job.group].members.len();
        Some(Demand::of(&engine.program(job.routes), lanes))
    }

    /// Whether it has prefixes that are evaluated again, or may have.
    pub(super) fn is_background(&self) -> bool {
        match &self.running {
            Some(running) => running.jobs.back().is_some_and(|job| !job.live),
            None => self.groups.iter().any(|group| group.live_multi < group.multi.len()),
        }
    }

    /// Comparators, in all lanes, that are still to be evaluated because of what the slot announced, about.
    pub(super) fn comparators_of(&self, slot: u32) -> usize {
        let of_group = |group: &Group| group.comparators_of.get(&slot).map_or(0, |of| of * group.members.len());
        let all: usize = self.groups.iter().map(of_group).sum();
        match &self.running {
            // Evaluations are of about one size.
            Some(running) => all * running.jobs.len() / (running.jobs.len() + running.done).max(1),
            None => all,
        }
    }

    /// When its ticks went out.
    pub(super) fn begin(&self) -> Instant {
        self.begin
    }

    /// Until when rankings are awaited, if they still are.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.running.is_none().then_some(self.deadline)
    }

    /// When rankings are, or were, due.
    pub(super) fn due(&self) -> Instant {
        self.deadline
    }

    /// When members are to be told that their rankings are still awaited.
    pub(super) fn progress_due(&self) -> Option<Instant> {
        let at = self.told + PROGRESS;
        (self.running.is_none() && at <= self.deadline).then_some(at)
    }

    /// Whether the engine is at work.
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Party 2 holds this ranking.
    pub(super) fn peer_ranked(&mut self, slot: u32, row: [u8; 16]) {
        self.peer_rows.insert(slot, row);
        self.has_changed = true;
    }

    /// The rankings that both parties hold, by slot, and the participants without one.
    pub(super) fn matched_rankings(&self) -> (Vec<(u32, [u8; 16])>, Vec<u32>) {
        let (mut rows, mut missed) = (Vec::new(), Vec::new());
        for slot in self.participants() {
            match (self.rows.get(&slot), self.peer_rows.get(&slot)) {
                (Some((own, _)), Some(peer)) if own == peer => rows.push((slot, *own)),
                _ => missed.push(slot),
            }
        }
        rows.sort_unstable();
        (rows, missed)
    }

    fn group_of(&self, slot: u32) -> Option<&Group> {
        self.groups.iter().find(|group| group.members.contains(&slot))
    }

    fn expected_len(&self, slot: u32) -> Option<usize> {
        Some(self.group_of(slot)?.multi.iter().map(|candidates| candidates.len() * RANK_BYTES).sum())
    }

    /// The participants whose rankings this party does not hold.
    pub(super) fn without_ranking(&self) -> BTreeSet<u32> {
        self.participants().filter(|slot| !self.rows.contains_key(slot)).collect()
    }

    fn participants(&self) -> impl Iterator<Item = u32> + '_ {
        self.groups.iter().flat_map(|group| group.members.iter().copied())
    }

    /// Whether the ranking of each participant that is waited for is at both parties.
    pub(super) fn is_complete(&self, is_awaited: impl Fn(u32) -> bool) -> bool {
        let same = |slot: u32| {
            let own = self.rows.get(&slot).map(|(row, _)| row);
            own.is_some() && own == self.peer_rows.get(&slot)
        };
        self.participants().filter(|slot| is_awaited(*slot)).all(same)
    }

    /// Whether this party, and the peer party, have the member's ranking.
    pub(super) fn is_at(&self, slot: u32) -> [bool; 2] {
        [self.rows.contains_key(&slot), self.peer_rows.contains_key(&slot)]
    }

    /// The member has gone: nobody waits for it.
    pub(super) fn leave(&mut self, slot: u32) {
        if self.running.is_none() {
            self.groups.iter_mut().for_each(|group| group.members.retain(|member| *member != slot));
            self.has_changed = true;
        }
    }

    /// Jobs over the rankings that count; the same at both parties.
    pub(super) fn start(&mut self, ids: &[(u32, [u8; 16])]) -> Result<(), &'static str> {
        let mut rows = BTreeMap::new();
        for (slot, id) in ids {
            match self.rows.remove(slot) {
                Some((row, share)) if row == *id => rows.insert(*slot, share),
                _ => return Err("an evaluation with a ranking that we do not hold"),
            };
        }
        let mut jobs = Vec::new();
        for (number, group) in self.groups.iter_mut().enumerate() {
            group.members.retain(|slot| rows.contains_key(slot));
            group.members.sort_unstable();
            let lanes = group.members.len();
            if lanes == 0 {
                continue;
            }
            for (run, routes, live) in group.runs() {
                let comparators = if live { JOB_COMPARATORS } else { LATER_JOB_COMPARATORS };
                let most = (comparators / ((routes - 1) * lanes)).max(1);
                let part = |from: usize| from..(from + most).min(run.end);
                let parts = run.clone().step_by(most).map(part);
                jobs.extend(parts.map(|instances| Job { group: number, routes, instances, live }));
            }
        }
        // The results of one group stay in order.
        jobs.sort_by_key(|job| !job.live);
        self.running = Some(Running { rows, jobs: jobs.into(), done: 0, demand: Demand::default() });
        Ok(())
    }
}

impl State {
    /// Takes a member's ranking. Returns whether it counts.
    pub(super) fn rank(&mut self, slot: u32, seq: u64, row: [u8; 16], share: RankShare) -> bool {
        let open = self.rounds.get_mut(&seq).filter(|round| round.running.is_none());
        let Some((round, expected)) = open.and_then(|round| round.expected_len(slot).map(|len| (round, len))) else {
            self.counters.missed_rankings += 1;
            return false;
        };
        if round.rows.contains_key(&slot) {
            // The first counts: the peer party may already have been informed of it.
            self.bad_member_frame(slot, "a second ranking for one batch".to_owned());
            return false;
        }
        let bytes = match share {
            RankShare::Seed(seed) => stream(&seed, expected),
            RankShare::Bytes(bytes) => bytes,
        };
        if bytes.len() != expected {
            self.bad_member_frame(slot, format!("a ranking of {} bytes, not {expected}", bytes.len()));
            return false;
        }
        round.rows.insert(slot, (row, bytes));
        round.has_changed = true;
        true
    }

    /// Starts the evaluation with the rankings that party 1 named.
    pub(super) fn evaluate(&mut self, seq: u64, rows: &[(u32, [u8; 16])]) -> Result<(), &'static str> {
        match self.rounds.get_mut(&seq) {
            Some(round) if round.running.is_none() => round.start(rows)?,
            _ => return Err("an evaluation out of turn"),
        }
        self.finish_round(seq);
        Ok(())
    }

    /// Party 1 has begun the next part of the round, or of Export-All, of this batch.
    pub(super) fn order(&mut self, seq: u64) -> Result<(), &'static str> {
        if self.engine.is_none() || self.ordered.len() >= MAX_ORDERED {
            return Err("work for the engine out of turn");
        }
        self.ordered.push_back(seq);
        Ok(())
    }

    pub(super) fn engine_frame(&mut self, stream: EngineStream, step: u64, bytes: Vec<u8>) -> Result<(), &'static str> {
        let engine = self.engine.as_mut().ok_or("an engine message without a session")?;
        let taken = match stream {
            EngineStream::Evaluation => engine.receive(step, bytes),
            EngineStream::Setup => engine.receive_setup(step, bytes),
        };
        if let Err(what) = taken {
            self.event(PartyEvent::Engine { what });
            return Err("an engine message out of turn");
        }
        Ok(())
    }

    fn send_engine(&mut self, stream: EngineStream, step: u64, bytes: Vec<u8>) {
        self.counters.engine_messages += 1;
        self.counters.engine_bytes += bytes.len() as u64;
        self.send_to_peer(&PartyFrame::Engine { stream, step, bytes });
    }

    fn engine_failed(&mut self, what: String) {
        self.event(PartyEvent::Engine { what });
        self.close_peer("invalid message of the two-party evaluation");
    }

    /// Gives out the next job of setup. One at a time, also if the link of the last one has gone meanwhile.
    pub(super) fn run_setup(&mut self) {
        if self.setup_runs {
            return;
        }
        match self.engine.as_mut().map_or(Ok(None), |engine| engine.setup_job()) {
            Ok(None) => {}
            Ok(Some(job)) => {
                self.setup_runs = true;
                self.output.push_back(PartyOutput::Setup(job));
            }
            Err(what) => self.engine_failed(what),
        }
    }

    /// Takes a job of setup back. One of a link that has gone is dropped with all that it made.
    pub(super) fn setup_done(&mut self, done: SetupDone, now: Now) {
        self.setup_runs = false;
        let link = self.peer.as_ref().map(|peer| peer.link);
        let Some(engine) = self.engine.as_mut().filter(|_| link == Some(done.link())) else { return };
        // Otherwise an evaluation runs, whose own messages show whether it goes on.
        let is_awaited = engine.is_idle();
        match engine.setup_done(done, now.instant) {
            Ok((message, made)) => {
                self.engine_progress += u64::from(is_awaited && (made || message.is_some()));
                if let Some((step, bytes)) = message {
                    self.send_engine(EngineStream::Setup, step, bytes);
                }
            }
            Err(what) => self.engine_failed(what),
        }
    }

    /// Takes the evaluation as far as it can go.
    pub(super) fn run_engine(&mut self, now: Now) {
        while self.next_work() {
            let Some(engine) = &mut self.engine else { return };
            let (messages, finished) = match engine.pump() {
                Ok(done) => done,
                Err(what) => return self.engine_failed(what),
            };
            self.engine_progress += messages.len() as u64 + u64::from(finished.is_some());
            for (step, bytes) in messages {
                self.send_engine(EngineStream::Evaluation, step, bytes);
            }
            match finished {
                None => return,
                Some(outputs) => {
                    let Some(seq) = self.work.take() else { return };
                    if self.is_exporting(seq) {
                        self.exports_done(&outputs, now);
                    } else {
                        self.job_done(seq, &outputs);
                    }
                }
            }
        }
    }

    /// Gives the engine its next work, if it has none. `false` if there is nothing to do.
    fn next_work(&mut self) -> bool {
        let Some(engine) = &mut self.engine else { return false };
        if !engine.is_idle() {
            return true;
        }
        if self.work.is_none() {
            self.work = self.take_up_work();
        }
        let Some(seq) = self.work else { return false };
        let begun = if self.is_exporting(seq) { self.begin_export() } else { self.begin_job(seq) };
        begun.unwrap_or_else(|what| {
            self.event(PartyEvent::Engine { what });
            self.close_peer("an evaluation that cannot begin");
            false
        })
    }

    /// Party 1 chooses what the engine does next, and tells party 2.
    fn take_up_work(&mut self) -> Option<u64> {
        if self.config.number == PartyNumber::Two {
            return self.ordered.pop_front();
        }
        let seq = match &self.stage {
            // What is delivered goes before what is chosen.
            Stage::Exporting(exporting) => Some(exporting.seq()),
            _ => {
                let is_first = self.live_in_a_row % FIRST_ROUND == FIRST_ROUND - 1;
                let in_order = is_first || self.rounds.len() > MAX_ROUNDS / 2;
                let turns = || self.rounds.values().filter_map(|round| round.turn(in_order));
                // What can wait is not put off for ever, however much changes.
                let owed = turns().filter(|(can_wait, ..)| *can_wait && self.live_in_a_row >= MAX_LIVE).min();
                let next = owed.or_else(|| turns().min()).map(|(.., seq)| seq);
                next.and_then(|next| self.supplied(next))
            }
        };
        let is_owed = self.live_in_a_row >= MAX_LIVE;
        let engine = self.engine.as_mut()?;
        // What is evaluated again takes nothing of what the pool keeps for what changes.
        let later = seq.and_then(|seq| self.rounds.get(&seq)).and_then(|round| round.demand(engine, false));
        let is_later = later.is_some();
        if let Some(demand) = later
            && !is_owed
            && !engine.is_spare(&demand)
            && engine.keep_spare(&demand)
            && (engine.is_supplying() || engine.orders_ahead())
        {
            return None;
        }
        engine.keep_spare(&Demand::default());
        let seq = seq?;
        self.live_in_a_row = if is_later { 0 } else { self.live_in_a_row.saturating_add(1) };
        self.heard = self.clocks.instant;
        self.send_to_peer(&PartyFrame::Next { seq });
        Some(seq)
    }

    /// The round whose evaluation is next: `first`, once the pool has what that takes. Until then the least one that changed just now and
    /// takes less goes before it, so that it waits for its own setup and for no other's.
    fn supplied(&mut self, first: u64) -> Option<u64> {
        let Self { rounds, engine: Some(engine), overtaken, .. } = self else { return None };
        let Some(wanted) = rounds.get(&first)?.demand(engine, true) else { return Some(first) };
        if engine.has(&wanted) || *overtaken >= MAX_OVERTAKEN {
            *overtaken = 0;
            return Some(first);
        }
        let demands = rounds.iter().filter_map(|(seq, round)| Some((round.demand(engine, true)?.total(), *seq)));
        let (least, seq) = demands.min()?;
        if least >= wanted.total() {
            return None;
        }
        let demand = rounds.get(&seq)?.demand(engine, true)?;
        let has = engine.has(&demand);
        *overtaken += u32::from(has);
        has.then_some(seq)
    }

    /// Gives the engine the next evaluation of a round. `false` while the pool lacks what it takes.
    fn begin_job(&mut self, seq: u64) -> Result<bool, String> {
        let Self { rounds, engine: Some(engine), counters, recommendation, table, .. } = self else { return Ok(false) };
        let none = || format!("batch {seq} has nothing to evaluate");
        let round = rounds.get_mut(&seq).ok_or_else(none)?;
        let running = round.running.as_mut().ok_or_else(none)?;
        let job = running.jobs.front().ok_or_else(none)?;
        let program = engine.program(job.routes);
        let lanes = job.instances.len() * round.groups[job.group].members.len();
        let demand = Demand::of(&program, lanes);
        if !engine.has(&demand) {
            return Ok(false);
        }
        running.demand += demand;
        counters.comparators += ((job.routes - 1) * lanes) as u64;
        let inputs = inputs(job, &round.groups[job.group], &running.rows, &program, |handle| {
            recommendation.get(&table.announcer(handle)?).copied()
        });
        engine.evaluate(&program, &inputs).map(|()| true)
    }

    /// Sends each member its share of the results of an evaluation.
    fn job_done(&mut self, seq: u64, outputs: &BitRows) {
        let Some(round) = self.rounds.get_mut(&seq) else { return };
        let Some(running) = &mut round.running else { return };
        let Some(job) = running.jobs.pop_front() else { return };
        running.done += 1;
        let members = &round.groups[job.group].members;
        let index_bits = outputs.rows() - 1;
        self.counters.lanes += outputs.lanes() as u64;
        let first = u32::try_from(job.instances.start).expect("a tick has few million instances");
        let octet = |lane: usize| {
            let index = u8::try_from(outputs.number(0, index_bits, lane)).expect("at most 7 bits");
            index | u8::from(outputs.bit(index_bits, lane)) << 7
        };
        let share = |m: usize| (0..job.instances.len()).map(|i| octet(i * members.len() + m)).collect();
        let parts: Vec<(u32, Vec<u8>)> = members.iter().enumerate().map(|(m, slot)| (*slot, share(m))).collect();
        for (slot, share) in parts {
            self.send_to_member(slot, &ToMember::Outcome { seq, first, share });
        }
        self.finish_round(seq);
    }

    /// Tells the members of each round now and then that it goes on, if it does: they wait for as long as that.
    pub(super) fn report_progress(&mut self, now: Now) {
        let done = self.engine_progress;
        let mut told = Vec::new();
        for round in self.rounds.values_mut().filter(|round| now.instant.since(round.told) >= PROGRESS) {
            // One that waits for its turn goes on as the others do.
            let goes_on = if round.running.is_some() { done > round.progress } else { now.instant <= round.deadline };
            if goes_on {
                (round.told, round.progress) = (now.instant, done);
                told.push((round.seq, round.participants().collect::<Vec<u32>>()));
            }
        }
        for (seq, slots) in told {
            for slot in slots {
                self.send_to_member(slot, &ToMember::Progress { seq });
            }
        }
    }

    /// Forgets a round once all of it is evaluated.
    pub(super) fn finish_round(&mut self, seq: u64) {
        let is_done = |round: &Round| round.running.as_ref().is_some_and(|running| running.jobs.is_empty());
        if !self.rounds.get(&seq).is_some_and(is_done) {
            return;
        }
        let Some(running) = self.rounds.remove(&seq).and_then(|round| round.running) else { return };
        self.counters.rounds += 1;
        if let Some(engine) = &mut self.engine {
            engine.keep(&running.demand);
        }
        self.refill_at = self.clocks.instant + REFILL_PAUSE;
    }

    /// Raises the pool's target to a burst of [`READY_PREFIXES`] for all who rank, at the widest class so far: a batch
    /// that comes then finds it full. It follows from public shape alone.
    pub(super) fn expect_rounds(&mut self, widest: usize, now: Now) {
        self.refill_at = now.instant + REFILL_PAUSE;
        let members = self.active.values().filter(|active| active.select_best).count();
        let Some(engine) = &mut self.engine else { return };
        engine.widest = engine.widest.max(widest.next_power_of_two());
        if engine.widest < 2 || members == 0 {
            return;
        }
        let program = engine.program(engine.widest);
        let lane = Demand::of(&program, 1);
        engine.keep(&(lane * (members * READY_PREFIXES).min(MAX_TARGET / lane.total().max(1))));
    }
}

/// Prefixes of one batch for which correlations are kept ahead.
const READY_PREFIXES: usize = 128;
/// How long after a batch the pool is filled, so that members on the same machine, and the next batch, go first.
const REFILL_PAUSE: Duration = Duration::from_millis(2);

/// This party's shares of a job's inputs. Lane `i * members + m` is instance `i` for member `m`.
fn inputs(
    job: &Job,
    group: &Group,
    rows: &BTreeMap<u32, Vec<u8>>,
    circuit: &wayleave_mpc::circuit::Circuit,
    recommendation: impl Fn(&crate::object::Handle) -> Option<u8>,
) -> BitRows {
    use wayleave_mpc::circuit::Kind;
    let members = group.members.len();
    let mut offsets = Vec::with_capacity(group.multi.len());
    let mut offset = 0;
    for candidates in &group.multi {
        offsets.push(offset);
        offset += candidates.len() * RANK_BYTES;
    }
    let rankings: Vec<&[u8]> = group.members.iter().map(|slot| rows[slot].as_slice()).collect();
    let mut out = BitRows::zero(circuit.input_rows(), job.instances.len() * members);
    let first = |kind, route| circuit.input(kind, route).map_or(0, |input| input.first);
    for (i, instance) in job.instances.clone().enumerate() {
        let is_unranked: Vec<bool> =
            group.members.iter().map(|slot| group.unranked.contains(&(instance, *slot))).collect();
        for (route, (handle, _)) in group.multi[instance].iter().enumerate() {
            let (valid, class) = (first(Kind::Valid, route), first(Kind::Class, route));
            let recommended = recommendation(handle).unwrap_or(0);
            let at = offsets[instance] + route * RANK_BYTES;
            for (m, ranking) in rankings.iter().enumerate() {
                if is_unranked[m] {
                    continue;
                }
                let lane = i * members + m;
                let ranking = &ranking[at..at + RANK_BYTES];
                out.set_bit(valid, lane, ranking[0] & 1 == 1);
                out.set_number(class, CLASS_BITS, lane, u128::from(ranking[1]));
                if recommended > 0 {
                    let row = first(Kind::Recommendation, route);
                    out.set_number(row, CLASS_BITS, lane, u128::from(recommended));
                }
            }
        }
    }
    out
}

//! The round of a batch: rankings come in, both parties evaluate Select-Best, each member gets its shares of the result.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use wayleave_core::{Instant, Now};
use wayleave_crypto::secret::Seed;
use wayleave_mpc::{BitRows, Demand};

use super::batch::by_class;
use super::engine::{self, Finished, MAX_TARGET};
use super::{MAX_MISSED, Number, Party, PartyEvent, Stage};
use crate::frames::{Between, Instance, ToMember};
use crate::rng::stream;

/// Bits of a member's class and of the exchange's recommendation.
pub(super) const CLASS_BITS: usize = 8;
/// Bytes of a ranking for each candidate: the valid bit, the class.
pub(super) const RANK_BYTES: usize = 2;
/// Comparators times lanes of one evaluation: our own limit on what is in memory at once.
const JOB_COMPARATORS: usize = 1 << 16;

/// A member's share of a ranking.
pub(super) enum RankShare {
    /// Party 1's: a seed.
    Seed(Seed),
    /// Party 2's.
    Bytes(Vec<u8>),
}

/// Members that are shown the same instances.
pub(super) struct Group {
    /// All instances of the tick.
    pub instances: Vec<Instance>,
    /// Those with two or more candidates, in order.
    pub multi: Vec<Instance>,
    /// The slots that rank.
    pub members: Vec<u32>,
}

/// One evaluation: instances of a group with equally many candidates (padded to a power of two), for all its members.
struct Job {
    group: usize,
    routes: usize,
    instances: Vec<usize>,
}

/// The round of a batch.
pub(super) struct Round {
    seq: u64,
    groups: Vec<Group>,
    deadline: Instant,
    /// Rankings that this party holds.
    rows: BTreeMap<u32, ([u8; 16], Vec<u8>)>,
    /// Rankings that party 2 holds, as party 1 knows.
    other_rows: BTreeMap<u32, [u8; 16]>,
    running: Option<Running>,
}

struct Running {
    /// Rankings that count, by slot.
    rows: BTreeMap<u32, Vec<u8>>,
    jobs: VecDeque<Job>,
    /// Results so far by slot: one octet for each instance of the member's group.
    results: BTreeMap<u32, Vec<u8>>,
    demand: Demand,
}

impl Round {
    pub(super) fn new(seq: u64, groups: Vec<Group>, deadline: Instant) -> Self {
        Self { seq, groups, deadline, rows: BTreeMap::new(), other_rows: BTreeMap::new(), running: None }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.running.is_none().then_some(self.deadline)
    }

    /// Whether the engine is at work.
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    fn group_of(&self, slot: u32) -> Option<&Group> {
        self.groups.iter().find(|group| group.members.contains(&slot))
    }

    fn expected_len(&self, slot: u32) -> Option<usize> {
        Some(self.group_of(slot)?.multi.iter().map(|candidates| candidates.len() * RANK_BYTES).sum())
    }

    fn participants(&self) -> impl Iterator<Item = u32> + '_ {
        self.groups.iter().flat_map(|group| group.members.iter().copied())
    }

    /// Whether each participant's ranking is at both parties.
    fn is_complete(&self) -> bool {
        let same = |slot: u32| {
            let own = self.rows.get(&slot).map(|(row, _)| row);
            own.is_some() && own == self.other_rows.get(&slot)
        };
        self.participants().all(same)
    }

    /// Jobs over the rankings that count; the same at both parties.
    fn start(&mut self, ids: &[(u32, [u8; 16])]) -> Result<(), &'static str> {
        let mut rows = BTreeMap::new();
        for (slot, id) in ids {
            match self.rows.remove(slot) {
                Some((row, share)) if row == *id => rows.insert(*slot, share),
                _ => return Err("an evaluation with a ranking that we do not hold"),
            };
        }
        let mut jobs = VecDeque::new();
        let mut results = BTreeMap::new();
        for (number, group) in self.groups.iter_mut().enumerate() {
            group.members.retain(|slot| rows.contains_key(slot));
            group.members.sort_unstable();
            let lanes = group.members.len();
            if lanes == 0 {
                continue;
            }
            results.extend(group.members.iter().map(|slot| (*slot, vec![0; group.multi.len()])));
            for (routes, instances) in by_class(&group.multi) {
                let most = (JOB_COMPARATORS / ((routes - 1) * lanes)).max(1);
                let cut = instances.chunks(most);
                jobs.extend(cut.map(|part| Job { group: number, routes, instances: part.to_vec() }));
            }
        }
        self.running = Some(Running { rows, jobs, results, demand: Demand::default() });
        Ok(())
    }
}

impl Party {
    /// A member's ranking came.
    pub(super) fn ranked(&mut self, slot: u32, seq: u64, row: [u8; 16], share: RankShare, now: Now) {
        let Stage::Round(round) = &mut self.stage else {
            self.counters.missed_rankings += 1;
            return;
        };
        let Some(expected) = round.expected_len(slot).filter(|_| round.seq == seq && round.running.is_none()) else {
            self.counters.missed_rankings += 1;
            return;
        };
        if round.rows.contains_key(&slot) {
            // The first counts: the other party may already have been told of it.
            if let Some(link) = self.members.get(&slot).map(|m| m.link) {
                self.bad_frame(Some(slot), link, "a second ranking for one batch".to_owned());
            }
            return;
        }
        let bytes = match share {
            RankShare::Seed(seed) => stream(&seed, expected),
            RankShare::Bytes(bytes) => bytes,
        };
        if bytes.len() != expected {
            if let Some(link) = self.members.get(&slot).map(|m| m.link) {
                self.bad_frame(Some(slot), link, format!("a ranking of {} bytes, not {expected}", bytes.len()));
            }
            return;
        }
        round.rows.insert(slot, (row, bytes));
        if self.config.number == Number::Two {
            self.tell_other(&Between::Ranked { seq, slot, row });
        }
        self.run_round(now);
    }

    pub(super) fn other_ranked(&mut self, seq: u64, slot: u32, row: [u8; 16]) {
        if let Stage::Round(round) = &mut self.stage
            && round.seq == seq
        {
            round.other_rows.insert(slot, row);
        }
    }

    /// Party 1 says which rankings count.
    pub(super) fn evaluate_told(&mut self, seq: u64, rows: Vec<(u32, [u8; 16])>) -> Result<(), &'static str> {
        match &mut self.stage {
            Stage::Round(round) if round.seq == seq && round.running.is_none() => round.start(&rows),
            _ => Err("an evaluation out of turn"),
        }
    }

    pub(super) fn refill_told(&mut self, demand: &[(u32, u64)]) -> Result<(), &'static str> {
        if !matches!(self.stage, Stage::Idle) {
            return Err("a refill out of turn");
        }
        let chunks = engine::from_frame(demand)?;
        let engine = self.engine.as_mut().ok_or("a refill without a session")?;
        engine.fill(&chunks).map_err(|_| "a refill that cannot be")?;
        self.stage = Stage::Refill;
        Ok(())
    }

    pub(super) fn engine_frame(&mut self, step: u64, bytes: Vec<u8>) -> Result<(), &'static str> {
        let engine = self.engine.as_mut().ok_or("an engine message without a session")?;
        if let Err(what) = engine.receive(step, bytes) {
            self.event(PartyEvent::Engine { what });
            return Err("an engine message out of turn");
        }
        Ok(())
    }

    /// Takes the round, or a refill, as far as it can go.
    pub(super) fn run_round(&mut self, now: Now) {
        self.start_if_due(now);
        loop {
            if !self.next_work(now) {
                break;
            }
            let Some(engine) = &mut self.engine else { return };
            let (messages, finished) = match engine.pump() {
                Ok(done) => done,
                Err(what) => {
                    self.event(PartyEvent::Engine { what });
                    if let Some(link) = self.other.as_ref().map(|o| o.link) {
                        self.close(link, "the engine's peer erred");
                    }
                    return;
                }
            };
            for (step, bytes) in messages {
                self.counters.engine_messages += 1;
                self.counters.engine_bytes += bytes.len() as u64;
                self.tell_other(&Between::Engine { step, bytes });
            }
            match finished {
                None => break,
                Some(Finished::Filled) => {
                    if matches!(self.stage, Stage::Refill) {
                        self.stage = Stage::Idle;
                    }
                }
                Some(Finished::Evaluated(outputs)) => self.job_done(&outputs),
            }
        }
        self.refill_if_idle(now);
    }

    /// Party 1 starts the evaluation when all rankings are there, or at the deadline with those that are.
    fn start_if_due(&mut self, now: Now) {
        if self.config.number != Number::One {
            return;
        }
        let Stage::Round(round) = &mut self.stage else { return };
        if round.running.is_some() || !(round.is_complete() || now.instant >= round.deadline) {
            return;
        }
        let seq = round.seq;
        let (mut rows, mut late) = (Vec::new(), Vec::new());
        for slot in round.participants() {
            match (round.rows.get(&slot), round.other_rows.get(&slot)) {
                (Some((own, _)), Some(other)) if own == other => rows.push((slot, *own)),
                _ => late.push(slot),
            }
        }
        rows.sort_unstable();
        if round.start(&rows).is_err() {
            return;
        }
        self.heard = now.instant;
        for (slot, _) in &rows {
            if let Some(member) = self.members.get_mut(slot) {
                member.missed = 0;
            }
        }
        self.tell_other(&Between::Evaluate { seq, rows });
        for slot in late {
            self.late(slot);
        }
    }

    fn late(&mut self, slot: u32) {
        self.counters.missed_rankings += 1;
        self.event(PartyEvent::MissedRanking { slot });
        self.resync.insert(slot);
        let Some(member) = self.members.get_mut(&slot) else { return };
        member.missed += 1;
        if member.missed >= MAX_MISSED {
            let link = member.link;
            self.close(link, "three rankings in a row did not come in time");
        }
    }

    /// Gives the engine its next work, if it has none. `false` if there is nothing to do.
    fn next_work(&mut self, now: Now) -> bool {
        let Some(engine) = &mut self.engine else { return false };
        if !engine.is_idle() {
            return true;
        }
        let Stage::Round(round) = &mut self.stage else { return false };
        let Some(running) = &mut round.running else { return false };
        let Some(job) = running.jobs.front() else {
            self.finish_round(now);
            return false;
        };
        let program = engine.program(job.routes);
        let lanes = job.instances.len() * round.groups[job.group].members.len();
        let demand = Demand::of(&program, lanes);
        let short = engine.short_of(&demand);
        let started = if short.total() > 0 {
            engine.fill(&short.chunks(engine::CHUNK))
        } else {
            running.demand += demand;
            let inputs = inputs(job, &round.groups[job.group], &running.rows, &program, |handle| {
                let slot = self.table.announcer(handle)?;
                (self.config.number == Number::One).then(|| self.recommendation.get(&slot).copied())?
            });
            engine.evaluate(&program, &inputs)
        };
        if let Err(what) = started {
            self.event(PartyEvent::Engine { what });
            return false;
        }
        true
    }

    /// Puts the results of a job to those of its members.
    fn job_done(&mut self, outputs: &BitRows) {
        let Stage::Round(round) = &mut self.stage else { return };
        let Some(running) = &mut round.running else { return };
        let Some(job) = running.jobs.pop_front() else { return };
        let members = &round.groups[job.group].members;
        let index_bits = outputs.rows() - 1;
        self.counters.lanes += outputs.lanes() as u64;
        for (m, slot) in members.iter().enumerate() {
            let Some(result) = running.results.get_mut(slot) else { continue };
            for (i, instance) in job.instances.iter().enumerate() {
                let lane = i * members.len() + m;
                let index = u8::try_from(outputs.number(0, index_bits, lane)).expect("at most 7 bits");
                result[*instance] = index | u8::from(outputs.bit(index_bits, lane)) << 7;
            }
        }
    }

    fn finish_round(&mut self, now: Now) {
        let Stage::Round(round) = std::mem::replace(&mut self.stage, Stage::Idle) else { return };
        let Some(running) = round.running else { return };
        self.counters.rounds += 1;
        for (slot, share) in running.results {
            self.tell_member(slot, &ToMember::Outcome { seq: round.seq, first: 0, share });
        }
        if let Some(engine) = &mut self.engine {
            engine.keep(&running.demand);
        }
        self.refill_at = now.instant + REFILL_PAUSE;
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

    /// Whether the pool holds what it should, and no refill is under way: for those who wait for that.
    #[must_use]
    pub fn is_stocked(&self) -> bool {
        let short = |engine: &engine::Engine| engine.short_of(&engine.target).total() > 0;
        let lacks = self.is_one() && self.engine.as_ref().is_some_and(short);
        !(lacks || matches!(self.stage, Stage::Refill))
    }

    /// When party 1 next fills the pool, if nothing comes in between.
    pub(super) fn refill_deadline(&self) -> Option<Instant> {
        let may = self.is_one() && matches!(self.stage, Stage::Idle) && self.other_ready() && !self.has_work();
        (may && !self.is_stocked()).then_some(self.refill_at)
    }

    /// Party 1 fills the pool while nothing else is to do.
    fn refill_if_idle(&mut self, now: Now) {
        if self.config.number != Number::One || !matches!(self.stage, Stage::Idle) || !self.other_ready() {
            return;
        }
        if now.instant < self.refill_at || (self.has_work() && now.instant >= self.next_tick) {
            return;
        }
        let Some(engine) = self.engine.as_mut().filter(|engine| engine.is_idle()) else { return };
        let short = engine.short_of(&engine.target);
        let chunks = engine::refill_chunks(&short);
        if chunks.is_empty() || engine.fill(&chunks).is_err() {
            return;
        }
        self.heard = now.instant;
        self.tell_other(&Between::Refill { demand: engine::to_frame(&chunks) });
        self.stage = Stage::Refill;
        self.run_round(now);
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
    for (i, instance) in job.instances.iter().enumerate() {
        for (route, (handle, _)) in group.multi[*instance].iter().enumerate() {
            let (valid, class) = (first(Kind::Valid, route), first(Kind::Class, route));
            let recommended = recommendation(handle).unwrap_or(0);
            let at = offsets[*instance] + route * RANK_BYTES;
            for (m, ranking) in rankings.iter().enumerate() {
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

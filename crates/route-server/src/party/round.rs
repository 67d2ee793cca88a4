//! The round of a batch: rankings come in, both parties evaluate Select-Best, each member gets its shares of the result.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use wayleave_core::{Instant, Now};
use wayleave_crypto::secret::Seed;
use wayleave_mpc::{BitRows, Demand};

use super::batch::by_class;
use super::engine::MAX_TARGET;
use super::state::{Stage, State};
use super::supply::SetupDone;
use super::{PartyEvent, PartyOutput};
use crate::frames::{EngineStream, Instance, PartyFrame, ToMember};
use crate::rng::stream;

/// Bits of a member's class and of the exchange's recommendation.
pub(super) const CLASS_BITS: usize = 8;
/// Bytes of a ranking for each candidate: the valid bit, the class.
pub(super) const RANK_BYTES: usize = 2;
/// How often members are told that a round goes on; they wait for three times as long at least.
const PROGRESS: Duration = Duration::from_secs(3);
/// Comparators times lanes of one evaluation: our own limit on what is in memory at once.
const JOB_COMPARATORS: usize = 1 << 16;

/// A member's share of a ranking.
pub(super) enum RankShare {
    /// Party 1's: a seed.
    Seed(Seed),
    /// Party 2's.
    Bytes(Vec<u8>),
}

/// Members that get the same instances.
pub(super) struct Group {
    /// All instances of the tick.
    pub instances: Vec<Instance>,
    /// Those with two or more candidates, in [`crate::frames::round_order`].
    pub multi: Vec<Instance>,
    /// The slots that rank.
    pub members: Vec<u32>,
}

/// One evaluation: a run of instances of a group with equally many candidates (padded to a power of two), for all its members.
struct Job {
    group: usize,
    routes: usize,
    instances: Range<usize>,
}

/// The round of a batch.
pub(super) struct Round {
    seq: u64,
    groups: Vec<Group>,
    deadline: Instant,
    /// When members were last told that it goes on.
    told: Instant,
    /// Whether the evaluation has advanced since.
    advanced: bool,
    /// Rankings that this party holds.
    rows: BTreeMap<u32, ([u8; 16], Vec<u8>)>,
    /// At party 1, the rankings that party 2 holds.
    peer_rows: BTreeMap<u32, [u8; 16]>,
    running: Option<Running>,
}

struct Running {
    /// Rankings that count, by slot.
    rows: BTreeMap<u32, Vec<u8>>,
    jobs: VecDeque<Job>,
    demand: Demand,
}

impl Round {
    pub(super) fn new(seq: u64, groups: Vec<Group>, begin: Instant, deadline: Instant) -> Self {
        let (rows, peer_rows) = (BTreeMap::new(), BTreeMap::new());
        Self { seq, groups, deadline, told: begin, advanced: false, rows, peer_rows, running: None }
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

    pub(super) fn seq(&self) -> u64 {
        self.seq
    }

    /// Party 2 holds this ranking.
    pub(super) fn peer_ranked(&mut self, seq: u64, slot: u32, row: [u8; 16]) {
        if self.seq == seq {
            self.peer_rows.insert(slot, row);
        }
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
        let mut jobs = VecDeque::new();
        for (number, group) in self.groups.iter_mut().enumerate() {
            group.members.retain(|slot| rows.contains_key(slot));
            group.members.sort_unstable();
            let lanes = group.members.len();
            if lanes == 0 {
                continue;
            }
            for (routes, instances) in by_class(&group.multi) {
                let most = (JOB_COMPARATORS / ((routes - 1) * lanes)).max(1);
                let run = |part: &[usize]| part[0]..part[0] + part.len();
                jobs.extend(instances.chunks(most).map(|part| Job { group: number, routes, instances: run(part) }));
            }
        }
        self.running = Some(Running { rows, jobs, demand: Demand::default() });
        Ok(())
    }
}

impl State {
    /// Takes a member's ranking. Returns whether it counts.
    pub(super) fn rank(&mut self, slot: u32, seq: u64, row: [u8; 16], share: RankShare) -> bool {
        let Stage::Round(round) = &mut self.stage else {
            self.counters.missed_rankings += 1;
            return false;
        };
        let Some(expected) = round.expected_len(slot).filter(|_| round.seq == seq && round.running.is_none()) else {
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
        true
    }

    /// Starts the evaluation with the rankings that party 1 named.
    pub(super) fn evaluate(&mut self, seq: u64, rows: &[(u32, [u8; 16])]) -> Result<(), &'static str> {
        match &mut self.stage {
            Stage::Round(round) if round.seq == seq && round.running.is_none() => round.start(rows),
            _ => Err("an evaluation out of turn"),
        }
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
        let waited = engine.waits();
        match engine.setup_done(done, now.instant) {
            Ok((message, made)) => {
                if let Stage::Round(round) = &mut self.stage {
                    round.advanced |= waited && (made || message.is_some());
                }
                if let Some((step, bytes)) = message {
                    self.send_engine(EngineStream::Setup, step, bytes);
                }
            }
            Err(what) => self.engine_failed(what),
        }
    }

    /// Takes the evaluation as far as it can go.
    pub(super) fn run_engine(&mut self, now: Now) {
        while self.next_work(now) {
            let Some(engine) = &mut self.engine else { return };
            let (messages, finished) = match engine.pump() {
                Ok(done) => done,
                Err(what) => return self.engine_failed(what),
            };
            if let Stage::Round(round) = &mut self.stage {
                round.advanced |= !messages.is_empty() || finished.is_some();
            }
            for (step, bytes) in messages {
                self.send_engine(EngineStream::Evaluation, step, bytes);
            }
            match finished {
                None => return,
                Some(outputs) if matches!(self.stage, Stage::Exporting(_)) => self.exports_done(&outputs),
                Some(outputs) => self.job_done(&outputs),
            }
        }
    }

    /// Gives the engine its next work, if it has none. `false` if there is nothing to do.
    fn next_work(&mut self, now: Now) -> bool {
        let Some(engine) = &mut self.engine else { return false };
        if !engine.is_idle() {
            return true;
        }
        if matches!(self.stage, Stage::Exporting(_)) {
            return self.next_export(now);
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
        if !engine.has(&demand) {
            return false;
        }
        running.demand += demand;
        self.counters.comparators += ((job.routes - 1) * lanes) as u64;
        let inputs = inputs(job, &round.groups[job.group], &running.rows, &program, |handle| {
            self.recommendation.get(&self.table.announcer(handle)?).copied()
        });
        if let Err(what) = engine.evaluate(&program, &inputs) {
            self.event(PartyEvent::Engine { what });
            return false;
        }
        true
    }

    /// Sends each member its share of the results of an evaluation.
    fn job_done(&mut self, outputs: &BitRows) {
        let Stage::Round(round) = &mut self.stage else { return };
        let Some(running) = &mut round.running else { return };
        let Some(job) = running.jobs.pop_front() else { return };
        let members = &round.groups[job.group].members;
        let index_bits = outputs.rows() - 1;
        self.counters.lanes += outputs.lanes() as u64;
        let first = u32::try_from(job.instances.start).expect("a tick has few million instances");
        let octet = |lane: usize| {
            let index = u8::try_from(outputs.number(0, index_bits, lane)).expect("at most 7 bits");
            index | u8::from(outputs.bit(index_bits, lane)) << 7
        };
        let share = |m: usize| (0..job.instances.len()).map(|i| octet(i * members.len() + m)).collect();
        let seq = round.seq;
        let parts: Vec<(u32, Vec<u8>)> = members.iter().enumerate().map(|(m, slot)| (*slot, share(m))).collect();
        for (slot, share) in parts {
            self.send_to_member(slot, &ToMember::Outcome { seq, first, share });
        }
    }

    /// Tells the members of a round now and then that it goes on, if it does: they wait for as long as that.
    pub(super) fn report_progress(&mut self, now: Now) {
        let Stage::Round(round) = &mut self.stage else { return };
        let goes_on = if round.running.is_some() { round.advanced } else { now.instant <= round.deadline };
        if !goes_on || now.instant.since(round.told) < PROGRESS {
            return;
        }
        (round.told, round.advanced) = (now.instant, false);
        let (seq, slots) = (round.seq, round.participants().collect::<Vec<u32>>());
        for slot in slots {
            self.send_to_member(slot, &ToMember::Progress { seq });
        }
    }

    fn finish_round(&mut self, now: Now) {
        let Stage::Round(round) = std::mem::replace(&mut self.stage, Stage::Idle) else { return };
        let Some(running) = round.running else { return };
        self.counters.rounds += 1;
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
        for (route, (handle, _)) in group.multi[instance].iter().enumerate() {
            let (valid, class) = (first(Kind::Valid, route), first(Kind::Class, route));
            let recommended = recommendation(handle).unwrap_or(0);
            let at = offsets[instance] + route * RANK_BYTES;
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

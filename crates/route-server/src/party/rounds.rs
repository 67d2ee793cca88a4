//! The open rounds of a party, and the engine that evaluates them.
//!
//! Several rounds are open at a time, and batches go on beside them. The engine does one thing after the other, and party 1 says
//! what comes next: what changed just now before what is evaluated again and what is late, and of that what is there because of the
//! announcer that has had the least of the engine.
//!
//! A round is opened when its batch is delivered, takes rankings until its evaluation begins, and goes once all of it is evaluated. All
//! of it goes with the link to the peer party, whose session the engine is: nothing here outlives that, and nothing is durable.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use wayleave_core::Instant;
use wayleave_mpc::{BitRows, Demand};

use super::allowance::AllowanceFor;
use super::engine::{Engine, MAX_TARGET};
use super::late::{LateRounds, LateShare};
use super::round::{RankShare, Ranking, Round, Shares};
use super::supply::{SetupDone, SetupJob};
use crate::frames::{EngineStream, LATE, MAX_LATE_ROUNDS};
use crate::object::Handle;

/// Rounds that are evaluated at a time: our own limit. Beyond it no batch with a round is made until one of them ends.
const MAX_ROUNDS: usize = 32;
/// Octets of rankings for which rounds wait that have not begun: our own limit, of some tens of the largest batches. Otherwise these take no
/// place that others need.
const MAX_AWAITED: usize = 32 << 20;
/// Of these, rounds with prefixes that are evaluated again: our own limit.
const MAX_BACKGROUND: usize = 2;
/// Evaluations of what changed just now that go before one that can wait: our own limit.
const MAX_LIVE: u32 = 16;
/// Evaluations that go before one for which correlations are made: our own limit. Then the engine waits for these.
const MAX_OVERTAKEN: u32 = 64;
/// Work that party 1 may name before it is begun here: the engine at party 1 is ahead by one evaluation at most.
const MAX_ORDERED: usize = 4;
/// Prefixes of one batch for which correlations are kept ahead.
const READY_PREFIXES: usize = 128;
/// Rounds over what changed just now that say how long one usually takes: the last ones, of which the median counts.
const USUAL_ROUNDS: usize = 64;
/// How long after a batch the pool is filled, so that members on the same machine, and the next batch, go first.
const REFILL_PAUSE: Duration = Duration::from_millis(2);

/// Messages of an evaluation with their numbers, and at its end the result.
type Pumped = (Vec<(u64, Vec<u8>)>, Option<BitRows>);

pub(super) struct Rounds {
    /// Rounds whose rankings are awaited, or that are evaluated, by batch.
    open: BTreeMap<u64, Round>,
    /// Rankings that were not there when their rounds began.
    pub late: LateRounds,
    /// How long the last rounds took, but for what they waited for members that were late.
    took: VecDeque<Duration>,
    engine: Option<Engine>,
    /// The batch of which the engine evaluates a part, and at party 2 those of what comes next.
    work: Option<u64>,
    ordered: VecDeque<u64>,
    /// How much the engine has done.
    progress: u64,
    /// How much of the engine each announcer has had, at party 1.
    shares: EngineShares,
    /// Evaluations of what changed just now since the last one that could wait, at party 1.
    live_in_a_row: u32,
    /// Evaluations that went before one for which correlations are made, at party 1.
    overtaken: u32,
    /// From when on the pool is filled ahead of need, if no batch comes in between.
    refill_at: Instant,
    /// Whether a job of setup is out: at most one is, whatever becomes of the link.
    is_setup_out: bool,
}

/// How much of the engine each announcer has had. Who has had the least is next, so that whoever has much to be ranked delays others by one
/// evaluation and not by all of its own. One evaluation is there because of several announcers: it has the turn of the one among them that
/// has had the least, and each of them has had its part of it (start-time fair queueing).
#[derive(Default)]
struct EngineShares {
    /// The start of the last evaluation: who comes anew has had as much.
    clock: u64,
    /// Comparators that each announcer has had, those in whose place others had theirs included.
    had: BTreeMap<u32, u64>,
}

impl EngineShares {
    /// When an evaluation has its turn: the least first.
    fn start(&self, load: &BTreeMap<u32, usize>) -> u64 {
        let of = |slot: &u32| self.had.get(slot).map_or(self.clock, |had| self.clock.max(*had));
        load.keys().map(of).min().unwrap_or(self.clock)
    }

    /// It has its turn.
    fn serve(&mut self, load: &BTreeMap<u32, usize>) {
        self.clock = self.start(load);
        for (slot, comparators) in load {
            let had = self.had.entry(*slot).or_default();
            *had = self.clock.max(*had) + *comparators as u64;
        }
        // The others have had no more than whoever comes anew.
        self.had.retain(|_, had| *had > self.clock);
    }
}

// The rounds.
impl Rounds {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            open: BTreeMap::new(),
            late: LateRounds::default(),
            took: VecDeque::new(),
            engine: None,
            work: None,
            ordered: VecDeque::new(),
            progress: 0,
            shares: EngineShares::default(),
            live_in_a_row: 0,
            overtaken: 0,
            refill_at: now,
            is_setup_out: false,
        }
    }

    pub(super) fn open(&mut self, seq: u64, round: Round) {
        self.open.insert(seq, round);
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Whether none is open, and no late ranking is awaited.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.late.is_empty()
    }

    pub(super) fn get(&self, seq: u64) -> Option<&Round> {
        self.open.get(&seq)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Round> {
        self.open.values()
    }

    /// Whether a round more may be open.
    pub(super) fn has_place(&self) -> bool {
        let running = self.open.values().filter(|round| round.is_running()).count();
        running < MAX_ROUNDS && self.open.values().map(Round::octets_awaited).sum::<usize>() < MAX_AWAITED
    }

    /// Whether more may be evaluated again, beside what changes: as much as waits is enough to keep the parties busy.
    pub(super) fn has_background_place(&self) -> bool {
        self.open.values().filter(|round| round.is_background()).count() < MAX_BACKGROUND
    }

    /// Comparators that wait for the engine because of what a slot announced, or of what it announces no more.
    pub(super) fn comparators_of(&self, slot: u32) -> usize {
        self.open.values().map(|round| round.comparators_of(slot)).sum()
    }

    /// Takes a member's ranking.
    pub(super) fn rank(&mut self, seq: u64, slot: u32, row: [u8; 16], share: RankShare) -> Ranking {
        if let Some(round) = self.open.get_mut(&seq).filter(|round| !round.is_running() || round.counts(slot)) {
            return round.rank(slot, row, share);
        }
        self.late.rank(seq, slot, row, share).unwrap_or(Ranking::Late)
    }

    /// Party 2 holds this ranking. `false` if it is too late.
    pub(super) fn peer_ranked(&mut self, seq: u64, slot: u32, row: [u8; 16]) -> bool {
        match self.open.get_mut(&seq).filter(|round| !round.is_running()) {
            Some(round) => {
                round.peer_ranked(slot, row);
                true
            }
            None => self.late.peer_ranked(seq, slot, row),
        }
    }

    /// When a ranking was to be there, but for the allowance, and whether its round began without it, if it is at both parties.
    pub(super) fn matched(&self, seq: u64, slot: u32) -> Option<(Instant, bool)> {
        match self.open.get(&seq).filter(|round| !round.is_running()) {
            Some(round) => Some((round.matched(slot)?, false)),
            None => Some((self.late.matched(seq, slot)?, true)),
        }
    }

    /// Nobody waits in any round for the ranking of a member that has gone.
    pub(super) fn leave(&mut self, slot: u32) {
        self.open.values_mut().for_each(|round| round.leave(slot));
        self.late.leave(slot);
    }

    /// Who was waited for in one round is waited for in others no more: they may begin.
    pub(super) fn note_changed(&mut self) {
        self.open.values_mut().for_each(Round::note_changed);
    }

    /// The next round to start at party 1 ([`Round::may_begin`]). `is_awaited`: whether a slot's ranking is waited for, in a round that
    /// began at that time.
    pub(super) fn next_to_start(
        &mut self,
        now: Instant,
        allowance: AllowanceFor,
        is_awaited: impl Fn(u32, Instant) -> bool,
    ) -> Option<u64> {
        for (seq, round) in self.open.iter_mut().filter(|(_, round)| !round.is_running()) {
            let begin = round.begin();
            if round.may_begin(now, allowance, |slot| is_awaited(slot, begin)) {
                return Some(*seq);
            }
        }
        None
    }

    /// Begins the evaluation of a round with the rankings that count; those of the slots in `late` may be evaluated later.
    ///
    /// # Errors
    /// There is no such round, or it does not hold these.
    pub(super) fn start(
        &mut self,
        seq: u64,
        (rows, late): (&[(u32, [u8; 16])], &[u32]),
        now: Instant,
    ) -> Result<(), &'static str> {
        let open = self.open.get_mut(&seq).filter(|round| !round.is_running());
        let late = open.ok_or("an evaluation out of turn")?.start(rows, late, now)?;
        self.late.insert(seq, late);
        if self.late.len() > MAX_LATE_ROUNDS {
            return Err("late rankings of too many rounds");
        }
        Ok(())
    }

    /// How long a round usually takes, if some were measured.
    pub(super) fn usual(&self) -> Option<Duration> {
        let mut took: Vec<Duration> = self.took.iter().copied().collect();
        took.sort_unstable();
        took.get(took.len() / 2).copied()
    }

    /// Forgets a round once all of it is evaluated. Returns whether it is.
    pub(super) fn finish(&mut self, seq: u64, now: Instant) -> bool {
        let Some(demand) = self.open.get(&seq).and_then(Round::done) else { return false };
        if let Some(round) = self.open.remove(&seq).filter(Round::is_live) {
            self.took.push_back(round.took(now));
            if self.took.len() > USUAL_ROUNDS {
                self.took.pop_front();
            }
        }
        if let Some(engine) = &mut self.engine {
            engine.keep(&demand);
        }
        self.refill_at = now + REFILL_PAUSE;
        true
    }

    /// The rounds whose members are to be told that they go on, and these. They wait for as long as that.
    pub(super) fn take_progress(&mut self, now: Instant) -> Vec<(u64, Vec<u32>)> {
        let done = self.progress;
        let going_on = self
            .open
            .iter_mut()
            .filter_map(|(seq, round)| round.note_progress(done, now).then(|| (*seq, round.participants().collect())));
        going_on.chain(self.late.take_progress(now)).collect()
    }

    /// When they are to be told next, while rankings are awaited.
    pub(super) fn progress_due(&self) -> Option<Instant> {
        self.open.values().filter_map(Round::progress_due).chain(self.late.progress_due()).min()
    }
}

// The engine.
impl Rounds {
    pub(super) fn begin_session(&mut self, engine: Engine) {
        self.engine = Some(engine);
    }

    /// The link to the peer party is gone: what was begun on it comes to nothing. A job of setup may still be out.
    pub(super) fn end_session(&mut self) {
        self.engine = None;
        self.open.clear();
        self.late = LateRounds::default();
        self.work = None;
        self.ordered.clear();
    }

    pub(super) fn engine(&self) -> Option<&Engine> {
        self.engine.as_ref()
    }

    pub(super) fn engine_mut(&mut self) -> Option<&mut Engine> {
        self.engine.as_mut()
    }

    /// Whether the engine evaluates something.
    pub(super) fn is_at_work(&self) -> bool {
        self.work.is_some()
    }

    pub(super) fn refill_at(&self) -> Instant {
        self.refill_at
    }

    /// Takes a message of the peer party's engine.
    ///
    /// # Errors
    /// There is no session, or the message does not fit its state: what, for the log.
    pub(super) fn receive(&mut self, stream: EngineStream, step: u64, bytes: Vec<u8>) -> Result<(), Option<String>> {
        let engine = self.engine.as_mut().ok_or(None)?;
        match stream {
            EngineStream::Evaluation => engine.receive(step, bytes),
            EngineStream::Setup => engine.receive_setup(step, bytes),
        }
        .map_err(Some)
    }

    /// The next job of setup. One at a time is out, also if the link of the last one has gone meanwhile.
    pub(super) fn next_setup(&mut self) -> Result<Option<SetupJob>, String> {
        if self.is_setup_out {
            return Ok(None);
        }
        let job = self.engine.as_mut().map_or(Ok(None), Engine::setup_job)?;
        self.is_setup_out = job.is_some();
        Ok(job)
    }

    /// Takes a job of setup back. One of another link than `link` is dropped with all that it made. Returns the message to send.
    pub(super) fn setup_done(
        &mut self,
        done: SetupDone,
        link: Option<u64>,
        now: Instant,
    ) -> Result<Option<(u64, Vec<u8>)>, String> {
        self.is_setup_out = false;
        let Some(engine) = self.engine.as_mut().filter(|_| link == Some(done.link())) else { return Ok(None) };
        // Otherwise an evaluation runs, whose own messages show whether it goes on.
        let is_awaited = engine.is_idle();
        let (message, made) = engine.setup_done(done, now)?;
        self.progress += u64::from(is_awaited && (made || message.is_some()));
        Ok(message)
    }

    /// Takes the evaluation as far as it can go.
    pub(super) fn pump(&mut self) -> Result<Pumped, String> {
        let Some(engine) = &mut self.engine else { return Ok(Pumped::default()) };
        let (messages, finished) = engine.pump()?;
        self.progress += messages.len() as u64 + u64::from(finished.is_some());
        Ok((messages, finished))
    }

    /// Whether the engine has nothing to do, and would take up something.
    pub(super) fn is_free(&self) -> bool {
        self.engine.as_ref().is_some_and(Engine::is_idle)
    }

    pub(super) fn work(&self) -> Option<u64> {
        self.work
    }

    pub(super) fn take_up(&mut self, work: Option<u64>) {
        self.work = work;
    }

    /// What the engine did of the batch is done.
    pub(super) fn take_work(&mut self) -> Option<u64> {
        self.work.take()
    }

    /// Party 1 has begun the next part of the round, or of Export-All, of this batch.
    pub(super) fn order(&mut self, seq: u64) -> Result<(), &'static str> {
        if self.engine.is_none() || self.ordered.len() >= MAX_ORDERED {
            return Err("work for the engine out of turn");
        }
        self.ordered.push_back(seq);
        Ok(())
    }

    /// What party 1 said comes next, at party 2.
    pub(super) fn next_ordered(&mut self) -> Option<u64> {
        self.ordered.pop_front()
    }

    /// Chooses at party 1 what the engine does next. `exporting`: the batch that waits for Export-All.
    pub(super) fn choose(&mut self, exporting: Option<u64>) -> Option<u64> {
        // What is delivered goes before what is chosen.
        let seq = exporting.or_else(|| {
            // What can wait is not put off for ever, however much changes; late rankings have a part of its share of the engine.
            let can_wait = || {
                let first = self.open.iter().find(|(_, round)| round.next_job().is_some_and(|(can_wait, _)| can_wait));
                self.late.has_job().then_some(LATE).or(first.map(|(seq, _)| *seq))
            };
            let live = || {
                let jobs = self.open.iter().filter_map(|(seq, round)| Some((*seq, round.next_job()?)));
                let live =
                    jobs.filter(|(_, (can_wait, _))| !can_wait).map(|(seq, (_, load))| (self.shares.start(load), seq));
                live.min().map(|(_, seq)| seq)
            };
            let owed = if self.live_in_a_row >= MAX_LIVE { can_wait() } else { None };
            let next = owed.or_else(live).or_else(can_wait);
            next.and_then(|next| self.supplied(next))
        });
        let is_owed = self.live_in_a_row >= MAX_LIVE;
        let engine = self.engine.as_mut()?;
        // What is evaluated again takes nothing of what the pool keeps for what changes.
        let later = match seq {
            Some(LATE) => self.late.demand(engine),
            seq => seq.and_then(|seq| self.open.get(&seq)).and_then(|round| round.demand(engine, false)),
        };
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
        if let Some((false, load)) = self.open.get(&seq).and_then(Round::next_job) {
            self.shares.serve(load);
        }
        if !self.open.values().any(Round::is_running) {
            self.shares = EngineShares::default();
        }
        Some(seq)
    }

    /// The round whose evaluation is next: `first`, once the pool has what that takes. Until then the least one that changed just now and
    /// takes less goes before it, so that it waits for its own setup and for no other's.
    fn supplied(&mut self, first: u64) -> Option<u64> {
        let Self { open, engine: Some(engine), overtaken, .. } = self else { return None };
        if first == LATE {
            return Some(first);
        }
        let Some(wanted) = open.get(&first)?.demand(engine, true) else { return Some(first) };
        if engine.has(&wanted) || *overtaken >= MAX_OVERTAKEN {
            *overtaken = 0;
            return Some(first);
        }
        let demands = open.iter().filter_map(|(seq, round)| Some((round.demand(engine, true)?.total(), *seq)));
        let (least, seq) = demands.min()?;
        if least >= wanted.total() {
            return None;
        }
        let demand = open.get(&seq)?.demand(engine, true)?;
        let has = engine.has(&demand);
        *overtaken += u32::from(has);
        has.then_some(seq)
    }

    /// Gives the engine the next evaluation of a round. Returns its comparators times lanes; `None` while the pool lacks what it takes.
    pub(super) fn begin_job(
        &mut self,
        seq: u64,
        recommendation: impl Fn(&Handle) -> Option<u8>,
    ) -> Result<Option<u64>, String> {
        let Self { open, late, engine: Some(engine), .. } = self else { return Ok(None) };
        if seq == LATE {
            return late.begin_job(engine, recommendation);
        }
        let round = open.get_mut(&seq).ok_or_else(|| format!("batch {seq} has nothing to evaluate"))?;
        round.begin_job(engine, recommendation)
    }

    /// Takes the results of an evaluation of late rankings.
    pub(super) fn late_job_done(&mut self, outputs: &BitRows) -> Vec<LateShare> {
        self.late.job_done(outputs)
    }

    /// Takes the results of the evaluation of a round ([`Round::job_done`]).
    pub(super) fn job_done(&mut self, seq: u64, outputs: &BitRows) -> Option<Shares> {
        self.open.get_mut(&seq)?.job_done(outputs)
    }

    /// Raises the pool's target to a burst of [`READY_PREFIXES`] for all `rankers`, at the widest class so far: a batch
    /// that comes then finds it full. It follows from public shape alone.
    pub(super) fn expect(&mut self, widest: usize, rankers: usize, now: Instant) {
        self.refill_at = now + REFILL_PAUSE;
        let Some(engine) = &mut self.engine else { return };
        engine.widest = engine.widest.max(widest.next_power_of_two());
        if engine.widest < 2 || rankers == 0 {
            return;
        }
        let program = engine.program(engine.widest);
        let lane = Demand::of(&program, 1);
        engine.keep(&(lane * (rankers * READY_PREFIXES).min(MAX_TARGET / lane.total().max(1))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(of: &[(u32, usize)]) -> BTreeMap<u32, usize> {
        of.iter().copied().collect()
    }

    #[test]
    fn announcers_have_equal_parts_of_the_engine_whatever_they_bring() {
        let mut shares = EngineShares::default();
        // One has large evaluations, always; another has small ones, always; a third comes now and then.
        let (large, small) = (load(&[(1, 16_000)]), load(&[(2, 1_000)]));
        let mut served = [0, 0];
        for turn in 0..1_000 {
            if turn % 50 == 49 {
                let third = load(&[(3, 100)]);
                assert!(shares.start(&third) <= shares.start(&large).min(shares.start(&small)), "it waits for nobody");
                shares.serve(&third);
            }
            let is_large = shares.start(&large) < shares.start(&small);
            let of = if is_large { &large } else { &small };
            served[usize::from(!is_large)] += of.values().sum::<usize>();
            shares.serve(of);
        }
        assert!(served[0].abs_diff(served[1]) <= 16_000, "{served:?}");
    }

    #[test]
    fn an_evaluation_has_the_turn_of_the_announcer_that_has_had_the_least() {
        let mut shares = EngineShares::default();
        shares.serve(&load(&[(1, 5_000)]));
        let both = load(&[(1, 5_000), (2, 10)]);
        assert!(shares.start(&both) < shares.start(&load(&[(1, 1)])));
        shares.serve(&both);
        assert!(shares.start(&load(&[(2, 1)])) < shares.start(&load(&[(1, 1)])));
    }
}

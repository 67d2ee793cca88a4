//! The round of a batch: rankings come in, both parties evaluate Select-Best, each member gets its shares of the result.
//! Which round is evaluated next is decided in `rounds`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use wayleave_core::{Instant, Prefix};
use wayleave_crypto::secret::Seed;
use wayleave_mpc::circuit::Circuit;
use wayleave_mpc::{BitRows, Demand, Program};

use super::allowance::AllowanceFor;
use super::engine::Engine;
use super::late::{LateGroup, LateRound, LateRow};
use crate::frames::{Instance, MAX_CANDIDATES, round_order};
use crate::object::Handle;
use crate::rng::stream;

/// Bits of a member's class and of the exchange's recommendation.
pub(super) const CLASS_BITS: usize = 8;
/// Bytes of a ranking for each candidate: the valid bit, the class.
pub(super) const RANK_BYTES: usize = 2;
/// How often members are told that a round goes on; they wait for three times as long at least.
pub(super) const PROGRESS: Duration = Duration::from_secs(3);
/// Comparators times lanes of one evaluation: our own limit on what is in memory at once.
const JOB_COMPARATORS: usize = 1 << 16;
/// The same where prefixes are evaluated again: what changes meanwhile waits for one of these.
pub(super) const LATER_JOB_COMPARATORS: usize = 1 << 14;

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

/// Results of one evaluation: the number of its first instance, and by slot the member's shares, one octet for each instance.
pub(super) type Shares = (u32, Vec<(u32, Vec<u8>)>);

/// What a ranking is to its round.
pub(super) enum Ranking {
    Counts,
    /// The round is not there, or its evaluation has begun.
    Late,
    /// It breaks the protocol, and how.
    Wrong(String),
}

impl Ranking {
    /// A member has one ranking for a round. The first counts: the peer party may already have been informed of it.
    pub(super) fn second() -> Self {
        Self::Wrong("a second ranking for one batch".to_owned())
    }

    pub(super) fn wrong_length(octets: usize, expected: usize) -> Self {
        Self::Wrong(format!("a ranking of {octets} bytes, not {expected}"))
    }
}

/// Members that get the same instances.
pub(super) struct Group {
    /// All instances of the tick: first those that changed just now.
    pub instances: Vec<Instance>,
    pub live: usize,
    /// The prefixes of those that changed just now, and of each its place in `instances`.
    live_prefixes: Vec<Prefix>,
    places: HashMap<Prefix, usize>,
    /// Those with two or more candidates, in [`round_order`], and how many of them changed just now.
    pub multi: Vec<Instance>,
    live_multi: usize,
    /// The place in `multi` of each of `instances` that is there.
    number: HashMap<usize, usize>,
    /// The slots that rank.
    pub members: Vec<u32>,
    /// Places in `multi`, and slots whose rankings there count as zero.
    unranked: HashSet<(usize, u32)>,
    /// Of each of `multi` that changed just now, the announcers whose changes it is there for.
    announcers: Vec<Vec<u32>>,
}

impl Group {
    pub(super) fn new(live: Vec<(Prefix, Instance)>, later: Vec<(Prefix, Instance)>) -> Self {
        let (live_prefixes, mut instances): (Vec<Prefix>, Vec<Instance>) = live.into_iter().unzip();
        let live = instances.len();
        let (later_prefixes, later): (Vec<Prefix>, Vec<Instance>) = later.into_iter().unzip();
        let all = live_prefixes.iter().chain(&later_prefixes).copied();
        let places = all.enumerate().map(|(place, prefix)| (prefix, place)).collect();
        instances.extend(later);
        let order = round_order(&instances, live);
        let live_multi = order.iter().filter(|place| **place < live).count();
        let number = order.iter().enumerate().map(|(number, place)| (*place, number)).collect();
        let multi = order.into_iter().map(|place| Arc::clone(&instances[place])).collect();
        let (members, unranked, announcers) = (Vec::new(), HashSet::new(), Vec::new());
        Self { instances, live, live_prefixes, places, multi, live_multi, number, members, unranked, announcers }
    }

    /// Notes which announcers' changes the evaluations are there for: of each prefix, the slots whose routes changed.
    pub(super) fn note_announcers(&mut self, changed_by: &BTreeMap<Prefix, BTreeSet<u32>>) {
        self.announcers = vec![Vec::new(); self.live_multi];
        for (place, prefix) in self.live_prefixes.iter().enumerate() {
            if let Some(number) = self.number.get(&place) {
                self.announcers[*number] = changed_by.get(prefix).into_iter().flatten().copied().collect();
            }
        }
    }

    /// Comparators of a run of instances, in the lanes of all members, that are there because of each announcer.
    fn load(&self, instances: Range<usize>) -> BTreeMap<u32, usize> {
        let mut load = BTreeMap::new();
        for place in instances {
            let of = comparators(self.multi[place].len()) * self.members.len();
            for slot in self.announcers.get(place).into_iter().flatten() {
                *load.entry(*slot).or_default() += of;
            }
        }
        load
    }

    /// Octets of the rankings of all its members.
    fn octets(&self) -> usize {
        self.multi.iter().map(|candidates| candidates.len()).sum::<usize>() * RANK_BYTES * self.members.len()
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
        self.places.get(prefix).copied()
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
    /// Comparators, in all lanes, that are there because of each announcer.
    load: BTreeMap<u32, usize>,
}

/// The round of a batch.
pub(super) struct Round {
    seq: u64,
    groups: Vec<Group>,
    begin: Instant,
    deadline: Instant,
    /// When each participant's ranking leaves by the schedule, and the last one of them.
    leaves: BTreeMap<u32, Instant>,
    last_leaves: Instant,
    /// Octets of all rankings.
    octets: usize,
    /// At party 1: how many rankings are at both parties, and how many are awaited, which is to be counted if members went or others are
    /// waited for; and when half of these were there.
    matched: usize,
    awaited: usize,
    is_awaited_by_others: bool,
    half_at: Option<Instant>,
    /// Whether it waits for more than the allowance.
    is_overdue: bool,
    /// When members were last told that it goes on, and what the engine had done by then.
    reported: Instant,
    progress: u64,
    /// Rankings that this party holds.
    rows: BTreeMap<u32, ([u8; 16], Vec<u8>)>,
    /// At party 1, the rankings that party 2 holds.
    peer_rows: BTreeMap<u32, [u8; 16]>,
    /// Whether rankings came, or members went, since party 1 last looked whether all are there.
    has_changed: bool,
    running: Option<Running>,
}

struct Running {
    /// Rankings that count, by slot.
    rows: BTreeMap<u32, Vec<u8>>,
    /// First those over what changed just now.
    jobs: VecDeque<Job>,
    demand: Demand,
    began: Instant,
}

impl Round {
    /// `leaves`: when each participant's ranking leaves by the schedule.
    pub(super) fn new(
        seq: u64,
        groups: Vec<Group>,
        (begin, deadline): (Instant, Instant),
        leaves: BTreeMap<u32, Instant>,
    ) -> Self {
        let (rows, peer_rows) = (BTreeMap::new(), BTreeMap::new());
        let last_leaves = leaves.values().max().copied().unwrap_or(deadline).min(deadline);
        Self {
            seq,
            begin,
            deadline,
            leaves,
            last_leaves,
            octets: groups.iter().map(Group::octets).sum(),
            matched: 0,
            awaited: 0,
            is_awaited_by_others: true,
            half_at: None,
            is_overdue: false,
            groups,
            reported: begin,
            progress: 0,
            rows,
            peer_rows,
            has_changed: true,
            running: None,
        }
    }

    /// Its next evaluation, if it has one: whether that can wait, and comparators that are there because of each announcer.
    pub(super) fn next_job(&self) -> Option<(bool, &BTreeMap<u32, usize>)> {
        let job = self.running.as_ref()?.jobs.front()?;
        Some((!job.live, &job.load))
    }

    /// Octets of the rankings that it waits for, if its evaluation has not begun.
    pub(super) fn octets_awaited(&self) -> usize {
        if self.running.is_some() { 0 } else { self.octets }
    }

    /// What its next evaluation takes, if that is over prefixes that changed just now (`live`), or over ones that are evaluated again.
    pub(super) fn demand(&self, engine: &mut Engine, live: bool) -> Option<Demand> {
        let job = self.running.as_ref()?.jobs.front().filter(|job| job.live == live)?;
        let lanes = job.instances.len() * self.groups[job.group].members.len();
        Some(Demand::of(&engine.program(job.routes), lanes))
    }

    /// Whether it has prefixes that are evaluated again, or may have. One that waits for more than the allowance keeps nobody from being
    /// served.
    pub(super) fn is_background(&self) -> bool {
        match &self.running {
            Some(running) => running.jobs.back().is_some_and(|job| !job.live),
            None if self.is_overdue => false,
            None => self.groups.iter().any(|group| group.live_multi < group.multi.len()),
        }
    }

    /// Comparators, in all lanes, that wait for the engine because of what the slot announced.
    pub(super) fn comparators_of(&self, slot: u32) -> usize {
        let jobs = self.running.iter().flat_map(|running| &running.jobs);
        jobs.filter_map(|job| job.load.get(&slot)).sum()
    }

    /// When its ticks went out.
    pub(super) fn begin(&self) -> Instant {
        self.begin
    }

    /// From when on a ranking is late by the allowance: when the last one left by its schedule, or half of them were there, if that is later.
    /// What delays most of them is no single member's doing.
    fn usual_time(&self) -> Option<Instant> {
        self.half_at.map(|half| half.max(self.last_leaves))
    }

    /// Until when all rankings are awaited.
    fn awaits_all_until(&self, allowance: AllowanceFor) -> Instant {
        let allowance = allowance.of_round(self.last_leaves.since(self.begin));
        self.usual_time().map_or(self.deadline, |at| (at + allowance).min(self.deadline))
    }

    /// When party 1 looks at it whatever comes, if rankings are still awaited.
    pub(super) fn looked_at(&self, allowance: AllowanceFor) -> Option<Instant> {
        self.running.is_none().then(|| self.awaits_all_until(allowance))
    }

    /// Whether it begins: at party 1, once all rankings are there that are waited for; an allowance after they usually are; and at the
    /// deadline.
    pub(super) fn may_begin(
        &mut self,
        now: Instant,
        allowance: AllowanceFor,
        is_awaited: impl Fn(u32) -> bool,
    ) -> bool {
        if std::mem::take(&mut self.is_awaited_by_others) {
            self.awaited = self.participants().filter(|slot| is_awaited(*slot)).count();
        }
        if self.half_at.is_none() && self.matched * 2 >= self.awaited {
            self.half_at = Some(now);
        }
        let is_due = now >= self.awaits_all_until(allowance);
        self.is_overdue |= now >= self.last_leaves + allowance.of_round(self.last_leaves.since(self.begin));
        // Where nobody is waited for those who are there at the usual time take part, and the others are told once they have their ticks.
        let is_for_others = self.awaited == 0 && self.participants().next().is_some();
        is_due
            || self.take_changed()
                && !is_for_others
                && self.participants().filter(|slot| is_awaited(*slot)).all(|of| self.is_matched(of))
    }

    /// The time that the round has taken, but for what it waited beyond the schedule: how long rounds usually take is not for those to say
    /// who are late.
    pub(super) fn took(&self, now: Instant) -> Duration {
        let started = self.running.as_ref().map_or(now, |running| running.began);
        now.since(self.begin).saturating_sub(started.since(self.usual_time().unwrap_or(started)))
    }

    /// Whether it has something that changed just now.
    pub(super) fn is_live(&self) -> bool {
        self.groups.iter().any(|group| group.live_multi > 0)
    }

    fn note_ranked(&mut self, slot: u32, was_matched: bool) {
        self.has_changed = true;
        self.matched = self.matched + usize::from(self.is_matched(slot)) - usize::from(was_matched);
    }

    fn is_matched(&self, slot: u32) -> bool {
        let own = self.rows.get(&slot).map(|(row, _)| row);
        own.is_some() && own == self.peer_rows.get(&slot)
    }

    /// When the member's ranking was to be there, but for the allowance, if it is at both parties.
    pub(super) fn matched(&self, slot: u32) -> Option<Instant> {
        self.expected_at(slot).filter(|_| self.is_matched(slot))
    }

    fn expected_at(&self, slot: u32) -> Option<Instant> {
        let leaves = *self.leaves.get(&slot)?;
        // Until half of them are there, whatever comes is among the first.
        Some(self.half_at.map_or(self.deadline, |half| half.max(leaves)))
    }

    /// Until when rankings are, or were, taken.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// When members are to be told that their rankings are still awaited.
    pub(super) fn progress_due(&self) -> Option<Instant> {
        let at = self.reported + PROGRESS;
        (self.running.is_none() && at <= self.deadline).then_some(at)
    }

    /// Whether the engine is at work.
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Party 2 holds this ranking.
    pub(super) fn peer_ranked(&mut self, slot: u32, row: [u8; 16]) {
        let was_matched = self.is_matched(slot);
        self.peer_rows.insert(slot, row);
        self.note_ranked(slot, was_matched);
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

    pub(super) fn participants(&self) -> impl Iterator<Item = u32> + '_ {
        self.groups.iter().flat_map(|group| group.members.iter().copied())
    }

    /// Whether this party, and the peer party, have the member's ranking.
    pub(super) fn is_at(&self, slot: u32) -> [bool; 2] {
        [self.rows.contains_key(&slot), self.peer_rows.contains_key(&slot)]
    }

    /// The member has gone: nobody waits for it.
    pub(super) fn leave(&mut self, slot: u32) {
        if self.running.is_none() {
            self.groups.iter_mut().for_each(|group| group.members.retain(|member| *member != slot));
            self.note_changed();
        }
    }

    /// Jobs over the rankings that count; the same at both parties. Returns what is left of the round for those in `late`.
    pub(super) fn start(
        &mut self,
        ids: &[(u32, [u8; 16])],
        late: &[u32],
        now: Instant,
    ) -> Result<LateRound, &'static str> {
        let mut rows = BTreeMap::new();
        for (slot, id) in ids {
            match self.rows.remove(slot) {
                Some((row, share)) if row == *id => rows.insert(*slot, share),
                _ => return Err("an evaluation with a ranking that we do not hold"),
            };
        }
        let (mut jobs, late) = (Vec::new(), self.late_round(late, now));
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
                let job = |instances: Range<usize>| {
                    let load = if live { group.load(instances.clone()) } else { BTreeMap::new() };
                    Job { group: number, routes, instances, live, load }
                };
                jobs.extend(parts.map(job));
            }
        }
        // The results of one group stay in order.
        jobs.sort_by_key(|job| !job.live);
        self.running = Some(Running { rows, jobs: jobs.into(), demand: Demand::default(), began: now });
        Ok(late)
    }

    /// What is left of the round for those whose rankings are not there.
    fn late_round(&mut self, late: &[u32], now: Instant) -> LateRound {
        let mut round = LateRound::new(self.begin, self.deadline, now);
        let expected_at = |slot: &u32| (*slot, self.expected_at(*slot).unwrap_or(self.deadline));
        let expected_at: BTreeMap<u32, Instant> = late.iter().map(expected_at).collect();
        let Self { groups, rows, peer_rows, .. } = self;
        for group in groups {
            let members: Vec<u32> = late.iter().copied().filter(|slot| group.members.contains(slot)).collect();
            if members.is_empty() {
                continue;
            }
            let unranked = group.unranked.iter().filter(|(_, slot)| members.contains(slot)).copied().collect();
            let rows = members.into_iter().map(|slot| LateRow {
                slot,
                expected_at: expected_at[&slot],
                row: rows.remove(&slot),
                peer_row: peer_rows.remove(&slot),
            });
            round.add(LateGroup::new(group.multi.clone(), group.live_multi, unranked), rows.collect());
        }
        round
    }

    /// Whether its evaluation has begun with a ranking of the member.
    pub(super) fn counts(&self, slot: u32) -> bool {
        self.running.as_ref().is_some_and(|running| running.rows.contains_key(&slot))
    }

    /// Takes a member's ranking.
    pub(super) fn rank(&mut self, slot: u32, row: [u8; 16], share: RankShare) -> Ranking {
        if self.counts(slot) || self.rows.contains_key(&slot) {
            return Ranking::second();
        }
        let Some(expected) = self.expected_len(slot).filter(|_| self.running.is_none()) else { return Ranking::Late };
        let bytes = match share {
            RankShare::Seed(seed) => stream(&seed, expected),
            RankShare::Bytes(bytes) => bytes,
        };
        if bytes.len() != expected {
            return Ranking::wrong_length(bytes.len(), expected);
        }
        self.rows.insert(slot, (row, bytes));
        self.note_ranked(slot, false);
        Ranking::Counts
    }

    /// Whether it has to be looked at whether all rankings are there; asked once.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// What others of its members do may let it begin.
    pub(super) fn note_changed(&mut self) {
        (self.has_changed, self.is_awaited_by_others) = (true, true);
    }

    /// What all its evaluations so far took, once the last one is done.
    pub(super) fn done(&self) -> Option<Demand> {
        self.running.as_ref().filter(|running| running.jobs.is_empty()).map(|running| running.demand)
    }

    /// Notes that it goes on, if it does since members were last told so and they are due to be. `done`: what the engine has done.
    pub(super) fn note_progress(&mut self, done: u64, now: Instant) -> bool {
        if now.since(self.reported) < PROGRESS {
            return false;
        }
        // One that waits for its turn goes on as the others do.
        let goes_on = if self.running.is_some() { done > self.progress } else { now <= self.deadline };
        if goes_on {
            (self.reported, self.progress) = (now, done);
        }
        goes_on
    }

    /// Gives the engine the next evaluation. Returns its comparators times lanes; `None` while the pool lacks what it takes.
    ///
    /// # Errors
    /// Why it cannot begin.
    pub(super) fn begin_job(
        &mut self,
        engine: &mut Engine,
        recommendation: impl Fn(&Handle) -> Option<u8>,
    ) -> Result<Option<u64>, String> {
        let none = || format!("batch {} has nothing to evaluate", self.seq);
        let running = self.running.as_mut().ok_or_else(none)?;
        let job = running.jobs.front().ok_or_else(none)?;
        let program: Program = engine.program(job.routes);
        let lanes = job.instances.len() * self.groups[job.group].members.len();
        let demand = Demand::of(&program, lanes);
        if !engine.has(&demand) {
            return Ok(None);
        }
        running.demand += demand;
        let inputs = inputs(job, &self.groups[job.group], &running.rows, &program, recommendation);
        engine.evaluate(&program, &inputs)?;
        Ok(Some(((job.routes - 1) * lanes) as u64))
    }

    /// Takes the results of the evaluation that was begun.
    pub(super) fn job_done(&mut self, outputs: &BitRows) -> Option<Shares> {
        let running = self.running.as_mut()?;
        let job = running.jobs.pop_front()?;
        let members = &self.groups[job.group].members;
        let first = u32::try_from(job.instances.start).expect("a tick has few million instances");
        let share = |m: usize| (0..job.instances.len()).map(|i| result(outputs, i * members.len() + m)).collect();
        Some((first, members.iter().enumerate().map(|(m, slot)| (*slot, share(m))).collect()))
    }
}

/// This party's share of the result of a lane: valid 1 bit, index 7.
pub(super) fn result(outputs: &BitRows, lane: usize) -> u8 {
    let index_bits = outputs.rows() - 1;
    let index = u8::try_from(outputs.number(0, index_bits, lane)).expect("at most 7 bits");
    index | u8::from(outputs.bit(index_bits, lane)) << 7
}

/// Puts a party's share of what a member ranks of a route, and of the exchange's recommendation, into a lane.
pub(super) fn set_ranking(
    out: &mut BitRows,
    circuit: &Circuit,
    (route, lane): (usize, usize),
    (ranking, recommended): (&[u8], u8),
) {
    use wayleave_mpc::circuit::Kind;
    let first = |kind| circuit.input(kind, route).map_or(0, |input| input.first);
    out.set_bit(first(Kind::Valid), lane, ranking[0] & 1 == 1);
    out.set_number(first(Kind::Class), CLASS_BITS, lane, u128::from(ranking[1]));
    if recommended > 0 {
        out.set_number(first(Kind::Recommendation), CLASS_BITS, lane, u128::from(recommended));
    }
}

/// This party's shares of a job's inputs. Lane `i * members + m` is instance `i` for member `m`.
fn inputs(
    job: &Job,
    group: &Group,
    rows: &BTreeMap<u32, Vec<u8>>,
    circuit: &Circuit,
    recommendation: impl Fn(&Handle) -> Option<u8>,
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

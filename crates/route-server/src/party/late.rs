//! Rankings that were not there when their rounds began. Lanes are independent of each other, so that those of such rankings, of all
//! members and rounds, are evaluated together afterwards.
//!
//! A round names at its beginning for whom that may be ([`LateRound`]). Both parties keep what these ranked until party 1 names the ones
//! that are evaluated together, or says that no more of the round will be. Each ranking is evaluated once. Results go out when all of a
//! ranking is done, to the member whose ranking it is and to nobody else.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use wayleave_core::Instant;
use wayleave_mpc::circuit::Circuit;
use wayleave_mpc::{BitRows, Demand, Program};

use super::engine::Engine;
use super::round::{LATER_JOB_COMPARATORS, PROGRESS, RANK_BYTES, RankShare, Ranking, comparators, set_ranking};
use crate::frames::Instance;
use crate::object::Handle;
use crate::rng::stream;

/// Octets of a candidate of a late round in memory, about.
const CANDIDATE: usize = 36;

/// What the late members of a round that got the same instances rank.
pub(super) struct LateGroup {
    /// Those with two or more candidates, as the round has them, and how many of them changed just now.
    multi: Vec<Instance>,
    live: usize,
    /// Places in `multi`, and slots whose rankings there count as zero.
    unranked: HashSet<(usize, u32)>,
    /// Where the octets of each of `multi` begin in a ranking, and how many there are.
    offsets: Vec<usize>,
    octets: usize,
}

impl LateGroup {
    pub(super) fn new(multi: Vec<Instance>, live: usize, unranked: HashSet<(usize, u32)>) -> Self {
        let mut octets = 0;
        let offset = |candidates: &Instance| {
            octets += candidates.len() * RANK_BYTES;
            octets - candidates.len() * RANK_BYTES
        };
        let offsets = multi.iter().map(offset).collect();
        Self { multi, live, unranked, offsets, octets }
    }

    /// Comparators of one lane for each of the instances: all, and those that changed just now.
    fn comparators(&self) -> (usize, usize) {
        let of = |instances: &[Instance]| instances.iter().map(|instance| comparators(instance.len())).sum();
        (of(&self.multi), of(&self.multi[..self.live]))
    }
}

/// A member whose ranking was not there when its round began.
struct LateMember {
    group: Arc<LateGroup>,
    /// When its ranking was to be there, but for the allowance.
    expected_at: Instant,
    row: Option<([u8; 16], Vec<u8>)>,
    /// At party 1, the ranking that party 2 holds.
    peer_row: Option<[u8; 16]>,
}

impl LateMember {
    fn is_matched(&self) -> bool {
        self.row.as_ref().is_some_and(|(row, _)| Some(*row) == self.peer_row)
    }
}

/// A round that began without some members' rankings, and these.
pub(super) struct LateRound {
    pub begin: Instant,
    /// Until when these are taken.
    pub deadline: Instant,
    members: BTreeMap<u32, LateMember>,
    octets: usize,
    /// When these members were last told that it goes on.
    reported: Instant,
}

impl LateRound {
    pub(super) fn new(begin: Instant, deadline: Instant, reported: Instant) -> Self {
        Self { begin, deadline, members: BTreeMap::new(), octets: 0, reported }
    }

    /// Adds members that got the same instances, each with what there is of its ranking.
    pub(super) fn add(&mut self, group: LateGroup, members: Vec<LateRow>) {
        self.octets += group.multi.iter().map(|candidates| candidates.len() * CANDIDATE).sum::<usize>();
        let group = Arc::new(group);
        for LateRow { slot, expected_at, row, peer_row } in members {
            self.octets += group.octets;
            self.members.insert(slot, LateMember { group: Arc::clone(&group), expected_at, row, peer_row });
        }
    }

    /// The members whose rankings are not at both parties.
    pub(super) fn absent(&self) -> Vec<u32> {
        self.members.iter().filter(|(_, member)| !member.is_matched()).map(|(slot, _)| *slot).collect()
    }

    /// The member's ranking, if it is awaited and is not at both parties.
    fn missing(&self, slot: u32) -> Option<MissingRanking> {
        let member = self.members.get(&slot).filter(|member| !member.is_matched())?;
        let is_at = [member.row.is_some(), member.peer_row.is_some()];
        Some(MissingRanking { begin: self.begin, deadline: self.deadline, is_at })
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = u32> {
        self.members.keys().copied()
    }
}

/// A ranking that was not there when its round was to begin, or until the deadline.
pub(super) struct MissingRanking {
    pub begin: Instant,
    pub deadline: Instant,
    /// Whether party 1, and party 2, have it.
    pub is_at: [bool; 2],
}

/// What there is of a member's ranking when its round begins without it.
pub(super) struct LateRow {
    pub slot: u32,
    pub expected_at: Instant,
    pub row: Option<([u8; 16], Vec<u8>)>,
    pub peer_row: Option<[u8; 16]>,
}

/// One evaluation: lanes among equally many candidates, padded to a power of two: batch, slot, place.
struct LateJob {
    routes: usize,
    lanes: Vec<(u64, u32, usize)>,
}

/// A ranking that is evaluated.
struct LateEvaluation {
    group: Arc<LateGroup>,
    row: Vec<u8>,
    /// Shares of the results so far, and how many are still to come.
    results: Vec<u8>,
    left: usize,
}

/// All late rounds, and what is evaluated of them.
#[derive(Default)]
pub(super) struct LateRounds {
    rounds: BTreeMap<u64, LateRound>,
    jobs: VecDeque<LateJob>,
    evaluated: BTreeMap<(u64, u32), LateEvaluation>,
}

/// Share of the results of one ranking: slot, batch, an octet for each instance.
pub(super) type LateShare = (u32, u64, Vec<u8>);

impl LateRounds {
    pub(super) fn insert(&mut self, seq: u64, round: LateRound) {
        if !round.members.is_empty() {
            self.rounds.insert(seq, round);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rounds.is_empty() && self.evaluated.is_empty()
    }

    /// Whether none is being evaluated.
    pub(super) fn is_idle(&self) -> bool {
        self.evaluated.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.rounds.len()
    }

    /// Octets of what waits, about.
    pub(super) fn octets(&self) -> usize {
        self.rounds.values().map(|round| round.octets).sum()
    }

    pub(super) fn get(&self, seq: u64) -> Option<&LateRound> {
        self.rounds.get(&seq)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &LateRound)> {
        self.rounds.iter().map(|(seq, round)| (*seq, round))
    }

    /// Takes a late ranking. `None` if none is awaited.
    pub(super) fn rank(&mut self, seq: u64, slot: u32, row: [u8; 16], share: RankShare) -> Option<Ranking> {
        if self.evaluated.contains_key(&(seq, slot)) {
            return Some(Ranking::second());
        }
        let member = self.rounds.get_mut(&seq)?.members.get_mut(&slot)?;
        if member.row.is_some() {
            return Some(Ranking::second());
        }
        let bytes = match share {
            RankShare::Seed(seed) => stream(&seed, member.group.octets),
            RankShare::Bytes(bytes) => bytes,
        };
        if bytes.len() != member.group.octets {
            return Some(Ranking::wrong_length(bytes.len(), member.group.octets));
        }
        member.row = Some((row, bytes));
        Some(Ranking::Counts)
    }

    /// Party 2 holds this late ranking. `false` if none is awaited.
    pub(super) fn peer_ranked(&mut self, seq: u64, slot: u32, row: [u8; 16]) -> bool {
        let member = self.rounds.get_mut(&seq).and_then(|round| round.members.get_mut(&slot));
        member.map(|member| member.peer_row = Some(row)).is_some()
    }

    /// When the ranking was to be there, but for the allowance, if it is at both parties.
    pub(super) fn matched(&self, seq: u64, slot: u32) -> Option<Instant> {
        let member = self.rounds.get(&seq)?.members.get(&slot)?;
        member.is_matched().then_some(member.expected_at)
    }

    /// Comparators that the ranking takes: all, and those over what changed just now; and its id. `None` if there is none.
    pub(super) fn cost(&self, seq: u64, slot: u32) -> Option<((usize, usize), [u8; 16])> {
        let member = self.rounds.get(&seq)?.members.get(&slot)?;
        Some((member.group.comparators(), member.row.as_ref()?.0))
    }

    /// The member's late ranking of a batch, if it is awaited and is not at both parties.
    pub(super) fn missing(&self, seq: u64, slot: u32) -> Option<MissingRanking> {
        self.rounds.get(&seq)?.missing(slot)
    }

    /// All of these of the member, with their batches.
    pub(super) fn absent_of(&self, slot: u32) -> Vec<(u64, MissingRanking)> {
        self.rounds.iter().filter_map(|(seq, round)| Some((*seq, round.missing(slot)?))).collect()
    }

    /// Nobody awaits the member's ranking of this batch any more.
    pub(super) fn drop_member(&mut self, seq: u64, slot: u32) {
        if let Some(round) = self.rounds.get_mut(&seq)
            && let Some(member) = round.members.remove(&slot)
        {
            round.octets = round.octets.saturating_sub(member.group.octets);
        }
    }

    /// The member has gone.
    pub(super) fn leave(&mut self, slot: u32) {
        let seqs: Vec<u64> = self.rounds.keys().copied().collect();
        seqs.into_iter().for_each(|seq| self.drop_member(seq, slot));
    }

    /// Rounds of which nothing is awaited any more.
    pub(super) fn emptied(&self) -> Vec<u64> {
        self.rounds.iter().filter(|(_, round)| round.members.is_empty()).map(|(seq, _)| *seq).collect()
    }

    /// Evaluates these rankings together, and forgets the rounds that have ended. The same at both parties.
    ///
    /// # Errors
    /// A ranking is not here, or a round.
    pub(super) fn take(&mut self, rows: &[(u64, u32, [u8; 16])], ended: &[u64]) -> Result<(), &'static str> {
        if !rows.is_empty() && !self.is_idle() {
            return Err("late rankings out of turn");
        }
        let mut lanes: BTreeMap<usize, Vec<(u64, u32, usize)>> = BTreeMap::new();
        for (seq, slot, id) in rows {
            let round = self.rounds.get_mut(seq).ok_or("a late ranking of no round")?;
            let is_here = |member: &LateMember| member.row.as_ref().is_some_and(|(row, _)| row == id);
            let member = round.members.get(slot).filter(|member| is_here(member));
            let _ = member.ok_or("a late ranking that we do not hold")?;
            let Some(LateMember { group, row: Some((_, row)), .. }) = round.members.remove(slot) else { continue };
            round.octets = round.octets.saturating_sub(group.octets);
            for (place, candidates) in group.multi.iter().enumerate() {
                lanes.entry(candidates.len().next_power_of_two()).or_default().push((*seq, *slot, place));
            }
            let (left, results) = (group.multi.len(), vec![0; group.multi.len()]);
            self.evaluated.insert((*seq, *slot), LateEvaluation { group, row, results, left });
        }
        for (routes, lanes) in lanes {
            let most = (LATER_JOB_COMPARATORS / (routes - 1)).max(1);
            self.jobs.extend(lanes.chunks(most).map(|lanes| LateJob { routes, lanes: lanes.to_vec() }));
        }
        for seq in ended {
            self.rounds.remove(seq).ok_or("the end of late rankings of no round")?;
        }
        Ok(())
    }

    /// What the next evaluation takes.
    pub(super) fn demand(&self, engine: &mut Engine) -> Option<Demand> {
        let job = self.jobs.front()?;
        Some(Demand::of(&engine.program(job.routes), job.lanes.len()))
    }

    pub(super) fn has_job(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Gives the engine the next evaluation. Returns its comparators times lanes; `None` while the pool lacks what it takes.
    pub(super) fn begin_job(
        &self,
        engine: &mut Engine,
        recommendation: impl Fn(&Handle) -> Option<u8>,
    ) -> Result<Option<u64>, String> {
        let job = self.jobs.front().ok_or("no late rankings to evaluate")?;
        let program: Program = engine.program(job.routes);
        if !engine.has(&Demand::of(&program, job.lanes.len())) {
            return Ok(None);
        }
        engine.evaluate(&program, &self.inputs(job, &program, recommendation))?;
        Ok(Some(((job.routes - 1) * job.lanes.len()) as u64))
    }

    /// This party's shares of a job's inputs.
    fn inputs(&self, job: &LateJob, circuit: &Circuit, recommendation: impl Fn(&Handle) -> Option<u8>) -> BitRows {
        let mut out = BitRows::zero(circuit.input_rows(), job.lanes.len());
        for (lane, (seq, slot, place)) in job.lanes.iter().enumerate() {
            let Some(LateEvaluation { group, row, .. }) = self.evaluated.get(&(*seq, *slot)) else { continue };
            if group.unranked.contains(&(*place, *slot)) {
                continue;
            }
            let rankings = row[group.offsets[*place]..].chunks_exact(RANK_BYTES);
            for (route, ((handle, _), ranking)) in group.multi[*place].iter().zip(rankings).enumerate() {
                let recommended = recommendation(handle).unwrap_or(0);
                set_ranking(&mut out, circuit, (route, lane), (ranking, recommended));
            }
        }
        out
    }

    /// Takes the results of the evaluation that was begun. Returns those of rankings of which all is done.
    pub(super) fn job_done(&mut self, outputs: &BitRows) -> Vec<LateShare> {
        let Some(job) = self.jobs.pop_front() else { return Vec::new() };
        let mut done = Vec::new();
        for (lane, (seq, slot, place)) in job.lanes.into_iter().enumerate() {
            let Some(evaluated) = self.evaluated.get_mut(&(seq, slot)) else { continue };
            evaluated.results[place] = super::round::result(outputs, lane);
            evaluated.left -= 1;
            if evaluated.left == 0
                && let Some(LateEvaluation { results, .. }) = self.evaluated.remove(&(seq, slot))
            {
                done.push((slot, seq, results));
            }
        }
        done
    }

    /// The members that are to be told that their late rankings are still awaited, or evaluated.
    pub(super) fn take_progress(&mut self, now: Instant) -> Vec<(u64, Vec<u32>)> {
        let due = self.rounds.iter_mut().filter(|(_, round)| now.since(round.reported) >= PROGRESS);
        let told = due.map(|(seq, round)| {
            round.reported = now;
            (*seq, round.members.keys().copied().collect())
        });
        told.collect()
    }

    /// When they are.
    pub(super) fn progress_due(&self) -> Option<Instant> {
        self.rounds.values().map(|round| round.reported + PROGRESS).min()
    }
}

/// How long after the deadline a ranking that is at both parties may wait for the engine.
pub(super) fn waits_until(round: &LateRound, rank_wait: Duration) -> Instant {
    round.deadline + rank_wait
}

//! The batch that is under way, whom batches serve, and what is evaluated again beside what changes.
//!
//! One batch is under way at a time. Party 1 goes `Idle`, `Proposed`, `Persisting`, party 2 `Idle`, `Persisting`, `Accepted`; both then
//! deliver, which in mode `mpc` is `Exporting` until the shares are there. Each step from one stage to the next is a method here, so that
//! none is left out: nothing is delivered that is not durable at both parties, and nobody is waited for in a stage that does not wait.
//!
//! Who is served changes with a batch's steps alone, the same at both parties, and ends for everybody with the link between them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wayleave_core::{Instant, Prefix, UnixTime};

use super::PersistId;
use super::batch::Applied;
use super::export::Exporting;
use super::relist::{Relist, Relisted};
use crate::digests::InstanceHash;
use crate::frames::{SessionId, Step};
use crate::leaps::{Heard, is_leap};
use crate::object_table::{Effects, ObjectTable};
use crate::schedule::Schedule;

/// Numbers of batches that may be left out whatever the clock says.
const LEFT_OUT: u64 = 1 << 16;

/// The stage of the current batch. Rounds of earlier ones go on beside it.
pub(super) enum Stage {
    Idle,
    /// The store of party 1 is writing what the parties agreed on.
    Agreeing {
        id: PersistId,
    },
    /// Party 1 awaits the answer to its proposal.
    Proposed {
        seq: u64,
        steps: Vec<Step>,
    },
    /// Applied; the store is writing. Party 1 then says go, party 2 accepts.
    Persisting {
        seq: u64,
        id: PersistId,
        applied: Box<Applied>,
    },
    /// Party 2 accepted and awaits the go.
    Accepted {
        seq: u64,
        applied: Box<Applied>,
    },
    /// Delivered as far as this party can alone: Export-All runs, in mode `mpc`.
    Exporting(Box<Exporting>),
}

/// Why a proposal cannot be taken.
pub(super) enum NotProposed {
    Nothing,
    Another,
}

/// A member to which both parties deliver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ActiveMember {
    pub session: SessionId,
    pub select_best: bool,
    /// How far it has been sent what it lacks; `None` once it lacks nothing.
    pub served: Option<Served>,
    /// Whether it ranks while it is sent what it lacks.
    pub chooses: bool,
}

/// How far a member has been sent what it lacks: first objects; then instances, of which it has those whose hashes are below this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Served {
    Objects,
    Instances(InstanceHash),
}

pub(super) struct Batches {
    /// The last one.
    seq: u64,
    /// The next one's number is above this, too.
    floor: u64,
    stage: Stage,
    /// The batch that the store is writing, whatever became of it meanwhile.
    writing: Option<(PersistId, u64)>,
    /// The interval between batches, as party 1 says.
    tick: Duration,
    active: BTreeMap<u32, ActiveMember>,
    /// Connected members that are not in `active`: to look at all members with each input would cost the square of their number.
    unserved: BTreeSet<u32>,
    /// Of members that are sent what they lack, the prefixes for which routes of their own AS that change buy them no choice any more.
    chosen: BTreeMap<u32, BTreeSet<Prefix>>,
    /// What is still to be evaluated again since an epoch began, and what has been.
    relist: Option<Relist>,
    relisted: Relisted,
    /// By when members that are up to date have taken up what batches brought, and a part of what others are sent again.
    schedule: Schedule,
    /// By when each member has taken up what it was sent, by the schedule that it keeps itself.
    schedules: BTreeMap<u32, Schedule>,
}

// Batches, one after the other.
impl Batches {
    pub(super) fn new(seq: u64, tick: Duration) -> Self {
        Self {
            seq,
            floor: 0,
            stage: Stage::Idle,
            writing: None,
            tick,
            active: BTreeMap::new(),
            unserved: BTreeSet::new(),
            chosen: BTreeMap::new(),
            relist: None,
            relisted: Relisted::default(),
            schedule: Schedule::default(),
            schedules: BTreeMap::new(),
        }
    }

    pub(super) fn seq(&self) -> u64 {
        self.seq
    }

    /// A member took this batch, which neither party knows of: it takes none that is not above it.
    pub(super) fn begin_above(&mut self, seq: u64) {
        self.floor = self.floor.max(seq);
    }

    /// No batch with a number up to this one will be made.
    pub(super) fn newest(&self) -> u64 {
        self.seq.max(self.floor)
    }

    /// Whether the number of a batch is one that nobody can have come to. What was left out since the last one, as numbers of batches that
    /// were rejected, is none, whatever the clock says.
    pub(super) fn is_leap(&self, seq: u64, heard: Heard, now: UnixTime) -> bool {
        seq > self.newest().saturating_add(LEFT_OUT) && is_leap(seq, heard, now)
    }

    /// The peer party's last batch.
    pub(super) fn saw(&mut self, seq: u64) {
        self.seq = self.seq.max(seq);
    }

    pub(super) fn tick(&self) -> Duration {
        self.tick
    }

    pub(super) fn set_tick(&mut self, tick: Duration) {
        self.tick = tick;
    }

    pub(super) fn stage(&self) -> &Stage {
        &self.stage
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Idle)
    }

    /// Party 1 proposes the next batch. Returns its number.
    pub(super) fn propose(&mut self, steps: Vec<Step>) -> u64 {
        self.seq = self.newest() + 1;
        self.stage = Stage::Proposed { seq: self.seq, steps };
        self.seq
    }

    /// The steps of the proposal `seq`, which party 2 answers.
    pub(super) fn take_proposal(&mut self, seq: u64) -> Result<Vec<Step>, NotProposed> {
        match &self.stage {
            Stage::Proposed { seq: proposed, .. } if *proposed == seq => Ok(self.take_steps()),
            Stage::Proposed { .. } => Err(NotProposed::Another),
            _ => Err(NotProposed::Nothing),
        }
    }

    /// Whatever was under way comes to nothing. Returns the steps of a proposal that was not answered.
    pub(super) fn take_steps(&mut self) -> Vec<Step> {
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Proposed { steps, .. } => steps,
            _ => Vec::new(),
        }
    }

    /// The steps of a batch are being applied.
    pub(super) fn begin(&mut self, seq: u64) {
        self.seq = seq;
    }

    /// They have been, and the store is writing.
    pub(super) fn write(&mut self, id: PersistId, applied: Applied) {
        self.writing = Some((id, self.seq));
        self.stage = Stage::Persisting { seq: self.seq, id, applied: Box::new(applied) };
    }

    /// The batch that the store has written with this, if it was one.
    pub(super) fn stored(&mut self, id: PersistId) -> Option<u64> {
        self.writing.take_if(|(awaited, _)| *awaited == id).map(|(_, seq)| seq)
    }

    /// The store has written something: the batch, if it was that. Otherwise the peer's link went while the batch was written, and it is
    /// not delivered; or something else was written than a batch.
    pub(super) fn written(&mut self, id: PersistId) -> Option<(u64, Box<Applied>)> {
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Persisting { seq, id: awaited, applied } if awaited == id => Some((seq, applied)),
            Stage::Agreeing { id: awaited } if awaited == id => None,
            stage => {
                self.stage = stage;
                None
            }
        }
    }

    /// What the parties agreed on is being written: nothing is proposed before it has been. Otherwise a batch could be durable at the peer
    /// party alone, by which it knows more than is so: that what this party had, and drops, was withdrawn.
    pub(super) fn await_agreement(&mut self, id: PersistId) {
        self.stage = Stage::Agreeing { id };
    }

    /// Party 2 accepts what it has written.
    pub(super) fn accept(&mut self, seq: u64, applied: Box<Applied>) {
        self.stage = Stage::Accepted { seq, applied };
    }

    /// Party 1 says go: party 2 delivers.
    pub(super) fn go(&mut self, seq: u64) -> Option<Box<Applied>> {
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Accepted { seq: accepted, applied } if accepted == seq => Some(applied),
            stage => {
                self.stage = stage;
                None
            }
        }
    }

    pub(super) fn begin_export(&mut self, exporting: Exporting) {
        self.stage = Stage::Exporting(Box::new(exporting));
    }

    /// What waits for Export-All.
    pub(super) fn exporting(&self) -> Option<&Exporting> {
        if let Stage::Exporting(exporting) = &self.stage { Some(exporting) } else { None }
    }

    pub(super) fn exporting_mut(&mut self) -> Option<&mut Exporting> {
        if let Stage::Exporting(exporting) = &mut self.stage { Some(exporting) } else { None }
    }

    /// What waited for Export-All, once all is computed.
    pub(super) fn exported(&mut self) -> Option<Box<Exporting>> {
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Exporting(exporting) if exporting.is_done() => Some(exporting),
            stage => {
                self.stage = stage;
                None
            }
        }
    }

    /// Members that are up to date have work for so long with what a batch brought.
    pub(super) fn note_work(&mut self, work: Duration, now: Instant) {
        self.schedule.came(work, now);
    }

    /// Each of these members has so much work with a batch whose ticks have left. Returns when their rankings leave.
    pub(super) fn schedule_rankings(
        &mut self,
        works: &BTreeMap<u32, Duration>,
        now: Instant,
    ) -> BTreeMap<u32, Instant> {
        self.schedules.retain(|slot, _| works.contains_key(slot));
        let of = |(slot, work): (&u32, &Duration)| {
            let schedule = self.schedules.entry(*slot).or_default();
            schedule.came(*work, now);
            (*slot, schedule.ranking(now, self.tick))
        };
        works.iter().map(of).collect()
    }

    /// For how long they still have.
    pub(super) fn work_left(&self, now: Instant) -> Duration {
        self.schedule.left(now)
    }
}

// Whom batches serve.
impl Batches {
    pub(super) fn active(&self) -> &BTreeMap<u32, ActiveMember> {
        &self.active
    }

    pub(super) fn is_active(&self, slot: u32) -> bool {
        self.active.contains_key(&slot)
    }

    /// The session that is served.
    pub(super) fn session_of(&self, slot: u32) -> Option<SessionId> {
        self.active.get(&slot).map(|active| active.session)
    }

    /// Members that rank what changes.
    pub(super) fn rankers(&self) -> usize {
        self.active.values().filter(|active| active.select_best).count()
    }

    /// Whether a member has begun to be sent what it lacks, and has not been sent all of it.
    pub(super) fn is_begun(&self, slot: u32) -> bool {
        self.active.get(&slot).is_some_and(|active| active.served.is_some())
    }

    /// Slots that are being sent what they lack.
    pub(super) fn synchronising(&self) -> impl Iterator<Item = u32> {
        self.active.iter().filter(|(_, active)| active.served.is_some()).map(|(slot, _)| *slot)
    }

    /// Connected members that are not served.
    pub(super) fn unserved(&self) -> &BTreeSet<u32> {
        &self.unserved
    }

    /// A member has a link.
    pub(super) fn connected(&mut self, slot: u32) {
        if !self.active.contains_key(&slot) {
            self.unserved.insert(slot);
        }
    }

    /// It has none any more. It stays served, for nothing, until a batch says that it is gone.
    pub(super) fn disconnected(&mut self, slot: u32) {
        self.unserved.remove(&slot);
    }

    /// From this batch on the member gets what changes.
    pub(super) fn activate(&mut self, slot: u32, active: ActiveMember) {
        self.active.insert(slot, active);
        self.chosen.remove(&slot);
        self.unserved.remove(&slot);
    }

    /// The member gets nothing more until it is activated again.
    pub(super) fn deactivate(&mut self, slot: u32, is_connected: bool) {
        self.active.remove(&slot);
        self.chosen.remove(&slot);
        if is_connected {
            self.unserved.insert(slot);
        }
    }

    pub(super) fn deactivate_all(&mut self, connected: impl Iterator<Item = u32>) {
        self.active.clear();
        self.chosen.clear();
        self.unserved = connected.collect();
    }

    /// The member has been sent what it lacked up to here.
    pub(super) fn was_sent(&mut self, slot: u32, served: Option<Served>) {
        if let Some(active) = self.active.get_mut(&slot) {
            active.served = served;
        }
    }

    /// The prefixes for which routes of its own AS that change buy a member no choice any more.
    pub(super) fn chosen(&mut self, slot: u32) -> &mut BTreeSet<Prefix> {
        self.chosen.entry(slot).or_default()
    }

    /// The member is sent nothing that differs any more.
    pub(super) fn forget_chosen(&mut self, slot: u32) {
        self.chosen.remove(&slot);
    }
}

// What is evaluated again.
impl Batches {
    pub(super) fn relist(&self) -> Option<&Relist> {
        self.relist.as_ref()
    }

    /// An epoch begins with other values of these slots.
    pub(super) fn begin_relist(&mut self, changed: &[u32]) {
        self.relist = Relist::begin(self.relist.take(), changed);
    }

    /// Looks at so many prefixes more, and lets those be evaluated again that an epoch's change concerns.
    pub(super) fn relist_some(&mut self, table: &ObjectTable, prefixes: u32, effects: &mut Effects) {
        let Some(relist) = self.relist.take() else { return };
        self.relisted.note(&relist, self.seq);
        let (concerned, rest) = relist.take(table, prefixes);
        effects.relisted.extend(concerned);
        self.relist = rest;
    }

    /// Everybody is compared again, and then sent what is left of the walk.
    pub(super) fn break_off_relist(&mut self) {
        self.relisted.broke_off(self.relist.take());
    }

    /// The parties agree on what they store, as of the last batch.
    pub(super) fn agreed(&mut self) {
        self.break_off_relist();
        self.relisted.agreed(self.seq);
        self.stage = Stage::Idle;
    }

    pub(super) fn relisted(&self) -> &Relisted {
        &self.relisted
    }
}

//! Party 1's own task: it gives batches, evaluations and correlations their order.
//!
//! Everything here happens at party 1 alone. Party 2 reports what it holds ([`PartyFrame::Holding`], [`PartyFrame::Joined`],
//! [`PartyFrame::Ranked`]); the sequencer proposes what both parties can do.

mod late_rankings;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use wayleave_core::{Instant, Now};

use super::admission::{
    BATCH_BYTES, BatchLoad, LIVE_COMPARATORS, MAX_BATCH, OPEN_COMPARATORS, OPEN_COMPARATORS_GOING, Replaced,
    blob_octets, comparators, new_prefixes, octets_left, octets_told, prefixes_left, work_left, work_of,
};
use super::allowance::Allowance;
use super::batch::{BatchInput, Noted};
use super::batches::{NotProposed, Stage};
use super::budget::{Turns, octets_stored, prefixes_allowed};
use super::compare::Comparisons;
use super::engine::Engine;
use super::lack::Lack;
use super::late::MissingRanking;
use super::late_order::LateOrder;
use super::links::Departure;
use super::probation::{Missed, Punctuality};
use super::reconcile::{Conclusion, MAX_INVENTORY, PeerInventory};
use super::relist::Relist;
use super::role::{Role, RoleEvent, RoleStatus};
use super::state::State;
use super::waiting::PendingObject;
use super::{PartyEvent, engine, lack};
use crate::directory::{Directory, Succession};
use crate::frames::{
    BudgetLeft, InventoryRow, LostObject, MAX_SLICE, Miss, PartyFrame, Refusal, SessionId, Step, ToMember,
};
use crate::leaps::{Heard, is_leap};
use crate::object::Kind;
use crate::object_table::Effects;

/// Members that get a slice with one batch: our own limit. The others wait their turn.
const MAX_SLICES: usize = 8;
/// Members that one batch begins to serve and that lack nothing: our own limit. Each is sent some hundred octets.
const MAX_EQUAL: usize = 256;
/// Lost objects of which so many members are told with one batch: our own limit.
const MAX_LOST_BESIDE: usize = 64;
/// Members whose state is compared in one batch once there is no place for a further slice.
const MAX_COMPARED: usize = 32;
/// Candidates, and candidates times members, that one batch evaluates again for a new epoch: our own limits, so that what
/// changes meanwhile is not delayed.
const RELIST: usize = 2048;
const RELIST_LANES: usize = 1 << 18;
/// How often objects without their other half, and routes of absent members, are looked for.
const SWEEP: Duration = Duration::from_millis(250);
/// Rankings that a member may miss in a row before its link is closed, where nobody is put on probation.
const MAX_MISSED: u32 = 3;
/// How long the pool may be short, while batches follow each other, until it is filled beside them.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// Refused objects of one slot whose other half may be at party 2: our own limit, as many as a member has on its way.
const MAX_REFUSED: usize = 1024;

/// Slot and version of an object that both parties drop, and why.
type Dropped = ((u32, u64), Refusal);

/// What only party 1 keeps.
pub(super) struct Sequencer {
    /// Objects of the batch that is proposed. They are applied even if their member goes meanwhile.
    proposed: BTreeMap<(u32, u64), PendingObject>,
    /// Objects that wait at party 2: digest, and since when this party knows.
    peer_holds: BTreeMap<(u32, u64), ([u8; 32], Instant)>,
    /// What follows from the inventories, while party 2 has not been sent all of it.
    conclusion: Option<Conclusion>,
    /// Objects that this party refused and of which party 2 has not said that it holds them: the last ones of each slot.
    refused: BTreeMap<u32, BTreeSet<u64>>,
    /// Members connected to party 2: session, and whether they take part in Select-Best.
    peer_joined: BTreeMap<u32, (SessionId, bool)>,
    /// Members that are to get what they lack.
    comparisons: Comparisons,
    /// Members that wait to get what they lack, in the order of their turns, and those of them that have been told.
    waiting: Vec<u32>,
    told: BTreeSet<u32>,
    /// Members that are being sent what they lack, in the order in which they began.
    begun: Vec<u32>,
    /// When members may be sent what they lack again, and those that have been told that they must wait for that.
    turns: BTreeMap<u32, Turns>,
    deferred: BTreeSet<u32>,
    /// When Select-Best may choose again for members among what they are sent so.
    choices: BTreeMap<u32, Turns>,
    /// Members that are sent something again since the link between the parties failed, which is not their doing.
    excused: BTreeSet<u32>,
    /// What the members paid that the proposed batch begins to serve.
    paid: BTreeMap<u32, Paid>,
    /// Members that take up too little of what party 2 sends, and those that it could not send something since they were last begun to be
    /// served.
    peer_held: BTreeSet<u32>,
    peer_lacks: BTreeSet<u32>,
    /// Members that get nothing until they have caught up.
    paused: BTreeSet<u32>,
    /// Slots whose routes are being removed, since their members have been away for too long.
    expiring: BTreeSet<u32>,
    /// The slot whose objects the next batch takes first.
    first: u32,
    /// Slots whose first object waits for rounds to end, and what was done when that was found.
    held_back: BTreeSet<u32>,
    held_back_at: (u64, u64, u64, usize),
    /// Announcers that are not connected, and since when.
    absent_since: BTreeMap<u32, Instant>,
    punctuality: Punctuality,
    /// How long rounds wait for rankings beyond the schedule, and the rankings that come later.
    allowance: Allowance,
    late: LateOrder,
    /// By the slot of who said so last, after which batch and up to which none was made here, although a member took one. One range for each
    /// slot, and no batch that was made lies in one: nobody can have what others took count as such.
    foreign: BTreeMap<u32, (u64, u64)>,
    /// The newest batch that a member says it took, and its slot; and whether the operator was told in this session of the parties that
    /// both stores may be older copies.
    newest_taken: (u64, u32),
    doubts_stores: bool,
    /// Steps for the next batch.
    queued: Vec<Step>,
    /// The recommendation from the next epoch on; and the one of an epoch whose batch is proposed.
    next_recommendation: Option<BTreeMap<u32, u8>>,
    proposed_recommendation: Option<BTreeMap<u32, u8>>,
    /// Whether one was given in this life, and whether the next epoch begins with the first one: what counted before is not known.
    was_recommended: bool,
    is_unknown: bool,
    /// When the next epoch may begin.
    next_epoch: Instant,
    /// When what changes may go into a batch, and when what everybody has already may: neither delays the other.
    next_tick: Instant,
    next_background: Instant,
    next_sweep: Instant,
    /// Since when the pool lacks something that is not ordered.
    short_since: Option<Instant>,
}

impl Sequencer {
    /// A sequencer for a party whose store holds routes of `announcers`.
    pub(super) fn new(announcers: BTreeSet<u32>, allowance: Allowance, now: Now) -> Self {
        Self {
            proposed: BTreeMap::new(),
            peer_holds: BTreeMap::new(),
            conclusion: None,
            refused: BTreeMap::new(),
            peer_joined: BTreeMap::new(),
            comparisons: Comparisons::default(),
            waiting: Vec::new(),
            told: BTreeSet::new(),
            begun: Vec::new(),
            turns: BTreeMap::new(),
            deferred: BTreeSet::new(),
            choices: BTreeMap::new(),
            excused: BTreeSet::new(),
            paid: BTreeMap::new(),
            peer_held: BTreeSet::new(),
            peer_lacks: BTreeSet::new(),
            paused: BTreeSet::new(),
            expiring: BTreeSet::new(),
            first: 0,
            held_back: BTreeSet::new(),
            held_back_at: (0, 0, 0, 0),
            absent_since: announcers.into_iter().map(|slot| (slot, now.instant)).collect(),
            punctuality: Punctuality::default(),
            allowance,
            late: LateOrder::default(),
            foreign: BTreeMap::new(),
            newest_taken: (0, 0),
            doubts_stores: false,
            queued: Vec::new(),
            next_recommendation: None,
            proposed_recommendation: None,
            was_recommended: false,
            is_unknown: false,
            next_epoch: now.instant,
            next_tick: now.instant,
            next_background: now.instant,
            next_sweep: now.instant,
            short_since: None,
        }
    }

    /// Whether something that changes can be proposed.
    fn has_work(&self, party: &State) -> bool {
        party.peer_ready()
            && (self.queued.iter().any(|step| !self.waits_for_epoch(step, party.now()))
                || party.rounds.has_place() && self.expirable(party).next().is_some()
                || Self::forgets_at(party).is_some_and(|at| at <= party.now())
                || self.has_matched_object(party)
                || (party.links.strained().union(&self.peer_held))
                    .any(|slot| party.batches.is_active(*slot) && self.is_behind(party, *slot)))
    }

    /// Whether something can be proposed that is evaluated, or sent, again.
    fn has_background_work(&self, party: &State) -> bool {
        party.peer_ready()
            && party.rounds.has_place()
            && party.rounds.has_background_place()
            && (party.batches.relist().is_some() || self.has_turn(party))
    }

    /// The steps that wait for the next batch, and the slots whose values change if one of them begins an epoch.
    fn queued_steps(&mut self, party: &State) -> (Vec<Step>, Option<Vec<u32>>) {
        let queued = std::mem::take(&mut self.queued);
        let (later, mut steps): (Vec<Step>, Vec<Step>) =
            queued.into_iter().partition(|step| self.waits_for_epoch(step, party.now()));
        self.queued = later;
        // What was proposed and taken back may be there twice: one epoch begins, with the latest recommendation.
        let (mut begins, mut epochs) = (None, 0);
        steps.retain(|step| !matches!(step, Step::Epoch { .. }) || std::mem::replace(&mut epochs, 1) == 0);
        for step in &mut steps {
            if let Step::Epoch { epoch, changed } = step {
                *epoch = party.membership.epoch().saturating_add(1);
                self.proposed_recommendation = self.next_recommendation.take();
                if let Some(next) = &self.proposed_recommendation {
                    *changed = self.changed(party, next);
                }
                begins = Some(changed.clone());
            }
        }
        (steps, begins)
    }

    /// Whether the step begins an epoch before its time.
    fn waits_for_epoch(&self, step: &Step, now: Instant) -> bool {
        matches!(step, Step::Epoch { .. }) && now < self.next_epoch
    }

    /// Whether a batch may be proposed when the tick has come.
    fn may_propose(party: &State) -> bool {
        party.batches.is_idle()
    }

    /// The slots whose values the next epoch changes. In a life's first one, whose values before are not known here, all: or none, if
    /// nothing has been evaluated in this life.
    fn changed(&self, party: &State, next: &BTreeMap<u32, u8>) -> Vec<u32> {
        if self.is_unknown {
            let all =
                u32::try_from(party.membership.set().slots.len()).expect("the directory bounds the slots of a set");
            return if party.env.counters.batches == 0 { Vec::new() } else { (0..all).collect() };
        }
        let value = |of: &BTreeMap<u32, u8>, slot: &u32| of.get(slot).copied().unwrap_or(0);
        let slots: BTreeSet<u32> = party.membership.recommendation().keys().chain(next.keys()).copied().collect();
        slots.into_iter().filter(|slot| value(party.membership.recommendation(), slot) != value(next, slot)).collect()
    }

    /// Whether there is a member that lacks something and can be sent it, or asked.
    fn has_turn(&self, party: &State) -> bool {
        let lacks = |slot: u32| {
            if party.batches.is_begun(slot) && !self.comparisons.says_anew(slot) {
                return self.comparisons.can_serve(party, slot);
            }
            self.sync_of(party, slot).is_some()
                && self.comparisons.can_go_on(slot, party.now())
                // Or it is yet to be told that it must wait.
                && (self.turn_of(party, slot) <= party.now() || !self.deferred.contains(&slot))
        };
        let begun = self.begun.iter().copied();
        self.perhaps_lacking(party).chain(begun).any(|slot| lacks(slot) && self.is_ready(party, slot))
    }

    /// The members that may lack something, and few others.
    fn perhaps_lacking<'a>(&'a self, party: &'a State) -> impl Iterator<Item = u32> + 'a {
        party.batches.unserved().iter().copied().chain(self.comparisons.slots())
    }

    /// When a member may next be sent what it lacks.
    fn turn_of(&self, party: &State, slot: u32) -> Instant {
        let now = party.now();
        let turns = self.turns.get(&slot).filter(|_| !self.excused.contains(&slot));
        turns.map_or(now, |turns| turns.next(party.env.config.budget.syncs, now))
    }

    /// When the first of those may be again that have been sent what they lacked too often.
    fn next_turn(&self, party: &State) -> Option<Instant> {
        // Who has been asked for more is not sent anything before it has answered: until then there is nothing to do at its turn.
        let can_be_sent = |slot: u32| {
            self.sync_of(party, slot).is_some()
                && self.is_ready(party, slot)
                && self.comparisons.can_go_on(slot, party.now())
        };
        let deferred = self.deferred.iter().filter(|slot| can_be_sent(**slot));
        deferred.map(|slot| self.turn_of(party, *slot)).min()
    }

    /// When the digests of a member's buckets are no longer awaited.
    fn compared_at(&self, party: &State) -> Option<Instant> {
        let waits = self.comparisons.awaited().filter(|(_, at)| *at > party.now());
        let is_asked = |slot| party.batches.is_begun(slot) || self.sync_of(party, slot).is_some();
        let of_ready = waits.filter(|(slot, _)| is_asked(*slot) && self.is_ready(party, *slot));
        of_ready.map(|(_, at)| at).min()
    }

    /// Whether both parties can send the member more of what it lacks.
    fn is_ready(&self, party: &State, slot: u32) -> bool {
        party.links.is_ready(slot) && !self.peer_held.contains(&slot)
    }

    /// Whether the member takes up too little of what one of the parties sends.
    fn is_behind(&self, party: &State, slot: u32) -> bool {
        party.links.is_behind(slot) || self.peer_held.contains(&slot)
    }

    /// The session of a member whose two links are up and which is to be sent what it lacks, and whether it takes part in
    /// Select-Best.
    fn sync_of(&self, party: &State, slot: u32) -> Option<(SessionId, bool)> {
        party.membership.set().active(slot)?;
        let joined = party.links.session_of(slot)?;
        let is_active = party.batches.session_of(slot) == Some(joined.0);
        let is_due = self.comparisons.contains(slot) || (!is_active && party.links.has_said(slot));
        (self.peer_joined.get(&slot) == Some(&joined) && is_due).then_some(joined)
    }

    /// Whether a member is connected to both parties, takes up what they send, and is not served yet.
    fn waits_for_turn(&self, party: &State, slot: u32) -> bool {
        self.sync_of(party, slot).is_some() && self.is_ready(party, slot)
    }

    /// The steps that send members what they lack: first those that have begun, then those that have waited longest. Whoever has not
    /// taken up the last slice lets others go first, and keeps its place.
    fn slices(&mut self, party: &mut State) -> Vec<Step> {
        self.begun.retain(|slot| party.batches.is_begun(*slot));
        let mut queue = std::mem::take(&mut self.waiting);
        let known: BTreeSet<u32> = queue.iter().copied().collect();
        queue.extend(party.links.slots().filter(|slot| !known.contains(slot)));
        let (mut steps, mut served, mut equal, mut compared) = (Vec::new(), 0, 0, 0);
        let mut looked = lack::MAX_LOOKED;
        // Who has had a slice is behind the others, and who waits has a place: nobody keeps both from others by asking for little.
        let places = MAX_SLICES - usize::from(queue.iter().any(|slot| self.sync_of(party, *slot).is_some()));
        let (mut had, mut others) = (Vec::new(), Vec::new());
        for slot in std::mem::take(&mut self.begun) {
            let session = party.batches.session_of(slot);
            let session = session.filter(|_| served < places && looked > 0 && self.is_ready(party, slot));
            let content = session.and_then(|session| {
                self.comparisons.ask(party, slot);
                self.comparisons.slice(party, (slot, &session), &mut looked)
            });
            served += usize::from(content.is_some());
            if content.is_some() {
                had.push(slot)
            } else {
                others.push(slot)
            }
            steps.extend(content.map(|content| Step::Slice { slot, content }));
        }
        others.append(&mut had);
        self.begun = others;
        let mut waiting = Vec::new();
        for slot in queue {
            let Some((session, select_best)) = self.sync_of(party, slot) else { continue };
            let (now, turn) = (party.now(), self.turn_of(party, slot));
            if turn > now {
                if self.deferred.insert(slot) {
                    let seconds = u32::try_from(turn.since(now).as_secs()).unwrap_or(u32::MAX).saturating_add(1);
                    party.links.note_overspent(slot, now);
                    party.event(PartyEvent::Deferred { slot, seconds });
                    party.offer_to_member(slot, &ToMember::Deferred { seconds });
                }
                waiting.push(slot);
                continue;
            }
            let is_begun = self.begun.contains(&slot);
            if is_begun && !self.comparisons.says_anew(slot) || !self.is_ready(party, slot) {
                waiting.push(slot);
                continue;
            }
            // What differs takes a while to find: for few at a time, where there may be no place for them.
            if served >= MAX_SLICES && compared >= MAX_COMPARED {
                waiting.push(slot);
                continue;
            }
            // Also if no step comes of it: what is bounded is the work of comparing.
            compared += 1;
            let lack = self.comparisons.lack(party, slot, now);
            // Of few lost objects it is told in some octets, too.
            let is_equal = lack.as_ref().is_some_and(Lack::is_equal);
            let is_short = is_equal && party.objects.table().lost().len() <= MAX_LOST_BESIDE;
            let has_place = if is_short { equal < MAX_EQUAL } else { served < MAX_SLICES };
            let Some(lack) = lack.filter(|_| has_place) else {
                waiting.push(slot);
                continue;
            };
            equal += usize::from(is_short);
            served += usize::from(!is_short);
            self.deferred.remove(&slot);
            let chooses = self.take_turn(party, slot, select_best && !is_equal) || is_equal;
            steps.push(Step::Sync { slot, session, select_best, chooses, own: lack.lists_own() });
            self.comparisons.begins(slot, lack);
            let content = self.comparisons.slice(party, (slot, &session), &mut looked);
            steps.extend(content.map(|content| Step::Slice { slot, content }));
            if !is_begun {
                self.begun.push(slot);
            }
            // Its last session ends with this one's beginning.
            self.queued.retain(|step| *step != Step::Gone { slot });
            if self.paused.remove(&slot) {
                party.event(PartyEvent::Behind { slot, begins: false });
            }
        }
        self.told.retain(|slot| waiting.contains(slot));
        for (ahead, slot) in (0u32..).zip(&waiting) {
            if !self.begun.contains(slot) && !self.deferred.contains(slot) && self.told.insert(*slot) {
                party.offer_to_member(*slot, &ToMember::Queued { ahead });
            }
        }
        self.waiting = waiting;
        steps
    }

    /// A member is sent what it lacks. Returns whether Select-Best may choose for it among that; `asks`: whether it is to.
    fn take_turn(&mut self, party: &mut State, slot: u32, asks: bool) -> bool {
        let is_excused = self.excused.remove(&slot);
        let (turns, choices) = (self.turns.get(&slot).copied(), self.choices.get(&slot).copied());
        // Before anything is spent: `return_budget` puts these copies back.
        self.paid.insert(slot, Paid { is_excused, turns, choices });
        if is_excused {
            return true;
        }
        let (now, budget) = (party.now(), party.env.config.budget);
        self.turns.entry(slot).or_insert_with(|| Turns::new(now)).take(budget.syncs, now);
        if !asks {
            return true;
        }
        let choices = self.choices.entry(slot).or_insert_with(|| Turns::new(now));
        let next = choices.next(budget.choices, now);
        if next <= now {
            choices.take(budget.choices, now);
            return true;
        }
        let seconds = u32::try_from(next.since(now).as_secs()).unwrap_or(u32::MAX).saturating_add(1);
        party.links.note_overspent(slot, now);
        party.event(PartyEvent::OwnOrder { slot, seconds });
        party.offer_to_member(slot, &ToMember::OwnOrder { seconds });
        false
    }

    /// The batch that was to begin to serve a member came to nothing: it has what it paid for that, and no more.
    fn return_budget(&mut self, slot: u32) {
        let Some(Paid { is_excused, turns, choices }) = self.paid.remove(&slot) else { return };
        if is_excused {
            self.excused.insert(slot);
        }
        for (all, before) in [(&mut self.turns, turns), (&mut self.choices, choices)] {
            match before {
                Some(before) => all.insert(slot, before),
                None => all.remove(&slot),
            };
        }
    }

    /// What a member may cost, and what is left of that.
    fn budget_left(&self, party: &State, slot: u32) -> BudgetLeft {
        let (now, budget) = (party.now(), party.env.config.budget);
        let max_prefix = party.membership.set().slot(slot).map_or(0, |of| of.max_prefix);
        let prefixes = prefixes_allowed(max_prefix, party.env.config.max_prefix_limit);
        let left =
            |turns: Option<&Turns>, per_hour| turns.copied().unwrap_or_else(|| Turns::new(now)).left(per_hour, now);
        BudgetLeft {
            objects: budget.objects,
            octets: budget.octets,
            prefixes,
            stored: party.objects.table().octets_of(slot),
            max_stored: octets_stored(prefixes),
            syncs: budget.syncs,
            syncs_left: left(self.turns.get(&slot), budget.syncs),
            choices: budget.choices,
            choices_left: left(self.choices.get(&slot), budget.choices),
        }
    }

    /// The steps after which members that take up too little get nothing more.
    fn pauses(&mut self, party: &mut State) -> Vec<Step> {
        party.links.review_strained();
        let perhaps = party.links.strained().union(&self.peer_held).copied();
        let behind: Vec<u32> = perhaps.filter(|slot| party.batches.is_active(*slot)).collect();
        for slot in &behind {
            if self.paused.insert(*slot) {
                party.event(PartyEvent::Behind { slot: *slot, begins: true });
            }
        }
        behind.into_iter().map(|slot| Step::Pause { slot }).collect()
    }

    /// The step that has prefixes evaluated again because of an epoch that is under way, or begins with these slots' values.
    fn relist(party: &State, begins: Option<&[u32]>) -> Option<Step> {
        let walk = match begins {
            Some(changed) => Relist::begin(party.batches.relist().cloned(), changed)?,
            None => party.batches.relist()?.clone(),
        };
        let most = RELIST.min(RELIST_LANES / party.batches.active().len().max(1));
        Some(Step::Relist { prefixes: walk.within(party.objects.table(), most, MAX_SLICE as usize) })
    }

    /// Slots whose routes can be removed now, and for how many comparators there is room because of each.
    fn expirable(&self, party: &State) -> impl Iterator<Item = (u32, usize)> {
        // Whoever is back, and waits for its turn, said what it holds while all of it was there.
        let away = self.expiring.iter().copied();
        let away = away.filter(|slot| {
            !party.batches.is_active(*slot)
                && !party.objects.table().has_ended(*slot)
                && !self.waits_for_turn(party, *slot)
        });
        let capacity = |slot| (slot, OPEN_COMPARATORS_GOING.saturating_sub(party.rounds.comparators_of(slot)));
        party.objects.table().ending().chain(away).map(capacity).filter(|(_, capacity)| *capacity > 0)
    }

    /// The steps that remove routes of slots that were removed, and of members that have been away for too long: of one after the
    /// other, as far as a batch has room.
    fn expiries(&mut self, party: &State) -> Vec<Step> {
        self.expiring.retain(|slot| !party.batches.is_active(*slot) && party.objects.table().prefixes_of(*slot) > 0);
        let rankers = party.batches.rankers();
        let (mut octets, mut comparators) = (lack::SLICE_BYTES, LIVE_COMPARATORS);
        let mut steps = Vec::new();
        for (slot, capacity) in self.expirable(party) {
            if octets == 0 || comparators == 0 {
                break;
            }
            let of_slot = comparators.min(capacity);
            let mut left = of_slot;
            let objects = lack::objects_to_expire(party.objects.table(), slot, rankers, &mut octets, &mut left);
            comparators -= of_slot - left;
            steps.push(Step::Expire { slot, objects });
        }
        steps
    }

    /// Up to when lost objects have been lost that are forgotten by now, in microseconds of Unix time.
    fn forgotten_until(party: &State) -> u64 {
        let stale = u64::try_from(party.env.config.stale.as_micros()).unwrap_or(u64::MAX);
        party.env.clocks.unix.0.saturating_sub(stale)
    }

    /// When the first of the lost objects is forgotten.
    fn forgets_at(party: &State) -> Option<Instant> {
        let oldest = party.objects.table().lost().oldest()?;
        Some(party.now() + Duration::from_micros(oldest.saturating_sub(Self::forgotten_until(party))))
    }

    /// Whether party 2 holds the same object.
    fn is_matched(&self, slot: u32, version: u64, object: &PendingObject) -> bool {
        self.peer_holds.get(&(slot, version)).is_some_and(|(digest, _)| *digest == object.digest)
    }

    /// Whether an object can be taken; not if it is known to wait for rounds to end, and none did since.
    fn has_matched_object(&self, party: &State) -> bool {
        let is_as_it_was = self.held_back_at == work_done(party);
        let mut waiting =
            party.objects.pending().iter().filter(|(slot, _)| !(is_as_it_was && self.held_back.contains(slot)));
        waiting.any(|(slot, waiting)| {
            waiting.first_key_value().is_some_and(|(version, object)| self.is_matched(*slot, *version, object))
        })
    }

    /// The steps that take the objects of which both parties hold their half, and the objects that are over a limit of their
    /// announcer. What may wait, and for how long, follows from who announces what and from rounds, and from nothing that a member
    /// opened or ranked.
    fn object_steps(&mut self, party: &State) -> (Vec<Step>, Vec<Dropped>) {
        // One member's flood leaves room for the others' objects.
        let share = |of: usize| (of / party.objects.pending().len().max(1)).max(1);
        let quota =
            BatchLoad { objects: share(MAX_BATCH), octets: share(BATCH_BYTES), comparators: share(LIVE_COMPARATORS) };
        let work_left = work_left(party);
        let work_quota =
            work_left.map(|left| left / u32::try_from(party.objects.pending().len().max(1)).unwrap_or(u32::MAX));
        let (rankers, has_round, max_blob) =
            (party.batches.rankers(), party.rounds.has_place(), party.max_blob() as usize);
        let (mut steps, mut over_limit, mut all) = (Vec::new(), Vec::new(), BatchLoad::default());
        let (mut all_work, mut added) = (Duration::ZERO, BTreeMap::new());
        self.held_back.clear();
        self.held_back_at = work_done(party);
        let first = self.first;
        'slots: for (slot, waiting) in
            party.objects.pending().range(first..).chain(party.objects.pending().range(..first))
        {
            let (mut new, mut new_octets, mut taken) = (0, 0, BatchLoad::default());
            let mut replaced = Replaced::default();
            let mut work = Duration::ZERO;
            let open = party.rounds.comparators_of(*slot);
            // In order within a slot: what waits for its other half holds back what comes after it.
            for (version, object) in waiting {
                let is_full = taken.reaches(&quota) || work_quota.is_some_and(|quota| work >= quota);
                if is_full || !self.is_matched(*slot, *version, object) {
                    break;
                }
                if all.reaches(&BatchLoad::MOST) || work_left.is_some_and(|left| all_work >= left) {
                    // The next batch begins with this slot: with a fixed order the last ones would find every batch full.
                    self.first = *slot;
                    break 'slots;
                }
                if blob_octets(object) > max_blob {
                    over_limit.push(((*slot, *version), Refusal::BlobSize));
                    continue;
                }
                let kind = &object.header.description.kind;
                let comparators = rankers * comparators(party, *slot, kind, &added);
                let goes = matches!(kind, Kind::Withdraw { .. });
                let most = if goes { OPEN_COMPARATORS_GOING } else { OPEN_COMPARATORS };
                let is_open = open + taken.comparators > 0;
                let waits = is_open && open + taken.comparators + comparators > most;
                // What a column opens is evaluated for the new slot.
                let needs_round = comparators > 0 || rankers > 0 && matches!(kind, Kind::Column { .. });
                if comparators > 0 && waits || needs_round && !has_round {
                    if taken.objects == 0 {
                        self.held_back.insert(*slot);
                    }
                    break;
                }
                let more_octets = blob_octets(object) as u64;
                let freed = replaced.by(party.objects.table(), &object.header.description);
                if more_octets > 0 && new_octets + more_octets > octets_left(party, *slot) + freed {
                    if taken.objects > 0 {
                        break;
                    }
                    over_limit.push(((*slot, *version), Refusal::Stored));
                    replaced = Replaced::default();
                    continue;
                }
                new_octets += more_octets;
                let more = new_prefixes(party, *slot, kind);
                if more > 0 && new + more > prefixes_left(party, *slot) {
                    // What goes before it in this batch may make room: then it is considered again in the next.
                    if taken.objects > 0 {
                        break;
                    }
                    over_limit.push(((*slot, *version), Refusal::MaxPrefix));
                    replaced = Replaced::default();
                    continue;
                }
                new += more;
                let octets = blob_octets(object) + octets_told(party, kind);
                for load in [&mut taken, &mut all] {
                    load.add(octets, comparators);
                }
                let more_work = work_of(party, kind);
                (work, all_work) = (work + more_work, all_work + more_work);
                if let Kind::Announce { prefixes } = kind {
                    for nlri in prefixes.iter().filter(|nlri| !party.objects.table().owns(*slot, nlri)) {
                        *added.entry(nlri.prefix).or_default() += 1;
                    }
                }
                steps.push(Step::Object { slot: *slot, version: *version, digest: object.digest });
            }
        }
        (steps, over_limit)
    }

    /// A proposed batch came to nothing: its objects wait again, if their members are still there.
    fn take_back_proposed(&mut self, party: &mut State) {
        for ((slot, version), object) in std::mem::take(&mut self.proposed) {
            if party.links.has(slot) {
                party.objects.put_back(slot, version, object);
            }
        }
    }

    fn take_back_recommendation(&mut self) {
        self.next_recommendation = self.next_recommendation.take().or(self.proposed_recommendation.take());
        self.proposed_recommendation = None;
    }

    /// Makes one step of the member sets that wait, in order, as they go on from what is in force now. One that does not is
    /// dropped, with an event at this party's operator.
    fn merge_member_sets(&mut self, party: &mut State) {
        let is_set = |step: &Step| matches!(step, Step::Set { .. });
        let (sets, rest): (Vec<Step>, Vec<Step>) = std::mem::take(&mut self.queued).into_iter().partition(is_set);
        self.queued = rest;
        let mut next: Option<Directory> = None;
        for step in sets {
            let Step::Set { set } = step else { continue };
            let joined = match &next {
                None => party.own_set(&set),
                Some(before) => match before.succeed(&set) {
                    Ok(Succession::Newer(both, _)) => Some(*both),
                    Ok(Succession::Same | Succession::Older(_)) => None,
                    Err(error) => {
                        party.event(PartyEvent::MembersRefused { why: error.to_string() });
                        None
                    }
                },
            };
            next = joined.or(next);
        }
        self.queued.extend(next.map(|next| Step::Set { set: next.encode().into() }));
    }

    fn queue_withdrawals(&mut self, party: &State, slot: u32) {
        let joins = |step: &Step| matches!(step, Step::Sync { slot: joining, .. } if *joining == slot);
        let is_joining = matches!(party.batches.stage(), Stage::Proposed { steps, .. } if steps.iter().any(joins));
        let is_active = is_joining || party.batches.is_active(slot);
        self.peer_held.remove(&slot);
        self.peer_lacks.remove(&slot);
        self.deferred.remove(&slot);
        self.paused.remove(&slot);
        // One that was paused, or whose beginning came to nothing, has been absent since now.
        if !is_active {
            self.absent_since.entry(slot).or_insert(party.now());
        }
        if is_active && !self.queued.contains(&Step::Gone { slot }) {
            self.queued.push(Step::Gone { slot });
        }
    }

    /// Drops waiting objects at both parties and reports it to their members.
    fn drop_unmatched(&mut self, party: &mut State, objects: Vec<Dropped>) {
        if objects.is_empty() {
            return;
        }
        for ((slot, version), reason) in &objects {
            party.objects.take_pending(*slot, *version);
            self.peer_holds.remove(&(*slot, *version));
            party.refuse(*slot, *version, *reason);
            if matches!(reason, Refusal::MaxPrefix | Refusal::Stored) {
                party.links.note_overspent(*slot, party.now());
            }
        }
        party.send_to_peer(&PartyFrame::Drop { objects: objects.into_iter().map(|(object, _)| object).collect() });
    }

    /// Asks members again for objects that only one party got, or that the parties got different halves of.
    fn expire_unmatched(&mut self, party: &mut State) {
        let is_overdue = |since| party.now().since(since) >= party.env.config.match_wait;
        let mut unmatched = BTreeSet::new();
        for (slot, waiting) in party.objects.pending() {
            for (version, object) in waiting {
                if !self.is_matched(*slot, *version, object) && is_overdue(object.since) {
                    unmatched.insert((*slot, *version));
                }
            }
        }
        for ((slot, version), (_, since)) in &self.peer_holds {
            let pending = party.objects.pending().get(slot).is_some_and(|waiting| waiting.contains_key(version));
            if !pending && is_overdue(*since) {
                unmatched.insert((*slot, *version));
            }
        }
        // While a batch is proposed its objects are no longer `pending`, and `peer_holds` has them until it is applied: they would pass for
        // objects that only party 2 has.
        if party.batches.is_idle() {
            for (slot, version) in &unmatched {
                party.event(PartyEvent::Mismatch { slot: *slot, version: *version });
            }
            let unmatched = unmatched.into_iter().map(|object| (object, Refusal::Mismatch)).collect();
            self.drop_unmatched(party, unmatched);
        }
    }

    /// Removes the routes of members that have been away for longer than the stale timer.
    fn expire_absent(&mut self, party: &mut State) {
        // Whoever is there and waits for the parties is not absent.
        let is_absent = |slot: u32| !party.batches.is_active(slot) && !self.waits_for_turn(party, slot);
        let is_due =
            |slot: &u32, since: Instant| is_absent(*slot) && party.now().since(since) >= party.env.config.stale;
        let due: Vec<u32> =
            self.absent_since.iter().filter(|(slot, since)| is_due(slot, **since)).map(|(slot, _)| *slot).collect();
        for slot in due {
            self.absent_since.remove(&slot);
            if party.objects.table().prefixes_of(slot) > 0 && !party.objects.table().has_ended(slot) {
                self.expiring.insert(slot);
                party.event(PartyEvent::Expired { slot });
            }
        }
    }

    /// Party 2 lacks objects of the batch: it is proposed again without them.
    fn rejected(&mut self, party: &mut State, seq: u64, missing: &[(u32, u64)]) -> Result<(), &'static str> {
        let steps = party.batches.take_proposal(seq).map_err(|stage| match stage {
            NotProposed::Nothing => "a rejection of nothing",
            NotProposed::Another => "a rejection of another batch",
        })?;
        for step in &steps {
            if let Step::Sync { slot, .. } = step {
                self.comparisons.request(*slot);
                self.return_budget(*slot);
            }
        }
        self.comparisons.rejected();
        // What was queued meanwhile comes after it.
        let again =
            steps.into_iter().filter(|s| matches!(s, Step::Gone { .. } | Step::Epoch { .. } | Step::Set { .. }));
        self.queued = again.chain(std::mem::take(&mut self.queued)).collect();
        self.take_back_proposed(party);
        self.take_back_recommendation();
        // Otherwise they would count as matched, and the next batch would be proposed with them and rejected again.
        for (slot, version) in missing {
            self.peer_holds.remove(&(*slot, *version));
        }
        Ok(())
    }

    /// Party 2 applied the batch, with this view as the result.
    fn accepted(&mut self, party: &mut State, seq: u64, view: [u8; 32]) -> Result<(), &'static str> {
        let steps = party.batches.take_proposal(seq).map_err(|stage| match stage {
            NotProposed::Nothing => "an acceptance of nothing",
            NotProposed::Another => "an acceptance of another batch",
        })?;
        // Party 2 has applied it: from here on it comes to nothing only with the link, after which everybody is excused.
        self.paid.clear();
        // Before `apply`, which stores it together with what the batch changed.
        // It was durable there before it was accepted.
        party.objects.note_agreed(seq);
        let input = self.input(party, &steps);
        let recommendation = input.recommendation.clone();
        let applied = party.apply(seq, &steps, input).inspect_err(|_| {
            // The link ends with this. What comes from the operator is proposed again on the next one.
            self.proposed_recommendation = recommendation;
            self.queued
                .extend(steps.iter().filter(|step| matches!(step, Step::Set { .. } | Step::Epoch { .. })).cloned());
        });
        for noted in applied? {
            self.note(party, seq, noted);
        }
        self.comparisons.applied(party, seq);
        if party.objects.view() == view { Ok(()) } else { Err("its view differs from ours") }
    }

    /// Part of party 2's inventory; with the last part, concludes what both parties keep.
    fn inventory(
        &mut self,
        party: &mut State,
        (rows, high_water, more): (Vec<InventoryRow>, &[(u32, u64)], bool),
        applied: Vec<(u32, u64)>,
    ) -> Result<(), &'static str> {
        if self.conclusion.is_some() || !party.links.is_peer_unready() {
            return Err("an inventory out of turn");
        }
        let hello = party.links.peer_hello().ok_or("an inventory before the hello")?;
        let (their_epoch, their_set) = (hello.epoch, Arc::clone(&hello.set));
        if party.links.rows() + rows.len() > MAX_INVENTORY {
            return Err("an inventory that is too long");
        }
        party.links.add_rows(rows);
        if more {
            return Ok(());
        }
        let theirs = PeerInventory { rows: party.links.take_rows(), applied };
        let mut effects = Effects::default();
        party.adopt_newer_set(&their_set)?;
        let epoch = party.membership.epoch().max(their_epoch);
        let (slots, now) = (party.membership.set().slots.len(), party.env.clocks.unix);
        party.objects.saw(high_water, slots, (Heard::First, now))?;
        party.membership.raise_epoch(epoch, Heard::First, now)?;
        party.begin_lost(&mut effects);
        let (drop, differ) = party.objects.compare(&theirs, party.time_of_loss(), &mut effects);
        party.reset_view();
        self.conclusion = Some(Conclusion { drop, differ, effects, ..Conclusion::default() });
        self.conclude(party);
        Ok(())
    }

    /// Some of the lost objects that party 2 knows of.
    fn lost(&mut self, party: &mut State, objects: Vec<LostObject>, more: bool) -> Result<(), &'static str> {
        let conclusion = self.conclusion.as_mut().filter(|conclusion| conclusion.is_sent);
        party.take_lost(&mut conclusion.ok_or("lost objects out of turn")?.lost, (objects, more))?;
        self.conclude(party);
        Ok(())
    }

    /// Goes on to send what follows from the inventories, and then what is lost; once both have all of that, the parties agree.
    fn conclude(&mut self, party: &mut State) {
        let Some(mut conclusion) = self.conclusion.take() else { return };
        if !conclusion.is_sent {
            conclusion.is_sent = party.send_conclusion(&mut conclusion);
        }
        if conclusion.is_sent {
            party.send_lost(&mut conclusion.lost);
        }
        if !party.share_lost(&mut conclusion.lost, &mut conclusion.effects) {
            self.conclusion = Some(conclusion);
            return;
        }
        party.agreed(&conclusion.effects);
        self.comparisons.agreed(party);
        // What is said of batches up to here is compared by digests. Some of them party 2 may have made, which was not known before.
        let agreed = party.batches.seq();
        self.foreign.retain(|_, (from, to)| {
            *from = agreed.max(*from);
            *from < *to
        });
        self.doubt_stores(party);
        // What waits here is given time again: party 2 reports only now what it holds.
        party.objects.restart_waits(party.env.now());
        self.absent_since = party.objects.announcers().into_iter().map(|slot| (slot, party.now())).collect();
    }

    /// The member's ranking was not at both parties when the evaluation began.
    fn missed_ranking(&mut self, party: &mut State, (seq, slot): (u64, u32), round: &MissingRanking) {
        self.allowance.note(slot, party.env.config.rank_wait, party.now());
        // Rounds are open beside each other: what is not there while one deadline passes is one lapse.
        let is_same = party.links.note_missed(slot, round.begin, party.env.now());
        let missed = if party.batches.tick().is_zero() || is_same && !self.punctuality.is_on_probation(slot) {
            Missed::Tolerated
        } else {
            self.punctuality.missed(slot, seq, round.deadline, round.is_at, party.now())
        };
        let why = if missed == Missed::OnProbation { Miss::Probation } else { Miss::Absent };
        party.send_to_member(slot, &ToMember::Missed { seq, why });
        match missed {
            Missed::Tolerated => {
                party.env.counters.missed_rankings += 1;
                party.event(PartyEvent::MissedRanking { slot });
                self.comparisons.request(slot);
                if party.batches.tick().is_zero() && !is_same {
                    self.close_after_misses(party, slot);
                }
            }
            Missed::Begins => {
                party.env.counters.missed_rankings += 1;
                party.event(PartyEvent::Probation { slot, begins: true });
            }
            Missed::OnProbation => {}
        }
        if !is_same && missed != Missed::OnProbation {
            // What else is not there of rounds that began by now is the same lapse: the member is told at once.
            for (seq, late) in party.rounds.late.absent_of(slot) {
                party.rounds.late.drop_member(seq, slot);
                self.missed_ranking(party, (seq, slot), &late);
            }
        }
    }

    /// The next round to start.
    fn next_to_start(&self, party: &mut State) -> Option<u64> {
        let State { rounds, links, env, .. } = party;
        let is_awaited =
            |slot: u32, begin: Instant| !self.punctuality.is_on_probation(slot) && !links.is_late_since(slot, begin);
        rounds.next_to_start(env.now(), self.allowance.get(), is_awaited)
    }

    fn start_round(&mut self, party: &mut State, seq: u64) {
        let Some(round) = party.rounds.get(seq) else { return };
        let (rows, missed) = round.matched_rankings();
        let (begin, deadline, now) = (round.begin(), round.deadline(), party.now());
        // Those for whom nobody waits have their own orders decide at once.
        let is_over = |slot: u32| {
            now >= deadline || self.punctuality.is_on_probation(slot) || party.links.is_late_since(slot, begin)
        };
        let (missed, mut late): (Vec<u32>, Vec<u32>) = missed.into_iter().partition(|slot| is_over(*slot));
        late.sort_unstable();
        let missing = |slot: u32| (slot, MissingRanking { begin, deadline, is_at: round.is_at(slot) });
        let missed: Vec<(u32, MissingRanking)> = missed.into_iter().map(missing).collect();
        // Before party 2 is told to evaluate: with rankings that do not fit nothing is evaluated anywhere.
        if let Err(what) = party.rounds.start(seq, (&rows, &late), now) {
            party.close_peer(what);
            return;
        }
        party.links.note_heard(now);
        for (slot, _) in &rows {
            party.links.note_in_time(*slot);
            if self.late.is_owed(*slot) {
                // As after a probation: its own order decided where it was late.
                self.comparisons.request(*slot);
            }
            if self.punctuality.in_time(*slot, now) {
                self.probation_ended(party, *slot);
            }
        }
        late.iter().for_each(|slot| self.late.note_late(*slot, now));
        party.send_to_peer(&PartyFrame::Evaluate { seq, rows, late });
        party.finish_round(seq);
        if !missed.is_empty() {
            // Others that are open may have waited for these alone.
            party.rounds.note_changed();
        }
        for (slot, late) in missed {
            self.missed_ranking(party, (seq, slot), &late);
        }
    }

    fn close_after_misses(&mut self, party: &mut State, slot: u32) {
        if party.links.count_missed(slot) >= MAX_MISSED
            && let Some(link) = party.links.link_of(slot)
        {
            party.close(link, "three rankings in a row did not come in time");
            // At once, and not at the end of the step: `start_evaluation` goes on with other rounds, which this member must have left.
            for departure in party.links.take_departures() {
                self.departed(party, departure);
            }
        }
    }

    /// The member's probation is over: it gets again what Select-Best did not choose in for it.
    fn probation_ended(&mut self, party: &mut State, slot: u32) {
        party.changes = true;
        party.event(PartyEvent::Probation { slot, begins: false });
        self.comparisons.request(slot);
    }

    /// When more is ordered for the pool ahead of need. After a pause, so that members on the same machine, and the next batch, go
    /// first; without one once the pool has been short for a while, since batches may follow each other without end.
    fn refill_deadline(&self, party: &State) -> Option<Instant> {
        let may_order = party.rounds.engine().is_some_and(Engine::orders_ahead);
        let since = self.short_since.filter(|_| may_order && party.peer_ready())?;
        let latest = since + LONGEST_PAUSE;
        Some(if party.batches.is_idle() { latest.min(party.rounds.refill_at()) } else { latest })
    }
}

impl Sequencer {
    fn peer_frame(&mut self, party: &mut State, frame: PartyFrame) -> Result<(), &'static str> {
        match frame {
            PartyFrame::Inventory { .. } => Err("an inventory out of turn"),
            PartyFrame::Holding { objects } => {
                let mut refused = Vec::new();
                for (slot, version, digest) in objects {
                    if self.refused.get_mut(&slot).is_some_and(|versions| versions.remove(&version)) {
                        refused.push((slot, version));
                    } else {
                        self.peer_holds.insert((slot, version), (digest, party.now()));
                    }
                }
                if !refused.is_empty() {
                    party.send_to_peer(&PartyFrame::Drop { objects: refused });
                }
                Ok(())
            }
            // Party 2 reports of slots alone that there are.
            PartyFrame::Joined { slot, .. } | PartyFrame::Held { slot, .. } | PartyFrame::Ranked { slot, .. }
                if slot as usize >= party.membership.set().slots.len() =>
            {
                Ok(())
            }
            PartyFrame::Joined { slot, session, select_best } => {
                self.peer_joined.insert(slot, (session, select_best));
                Ok(())
            }
            PartyFrame::Left { slot, session } => {
                if self.peer_joined.get(&slot).is_some_and(|(s, _)| *s == session) {
                    self.peer_joined.remove(&slot);
                    // It keeps no place among those that are compared while it is not to be served.
                    self.comparisons.left(slot);
                    self.peer_holds.retain(|(s, _), _| *s != slot);
                    self.refused.remove(&slot);
                    party.leave_rounds(slot);
                    self.queue_withdrawals(party, slot);
                }
                Ok(())
            }
            PartyFrame::Held { slot, held, lacks } => {
                if lacks {
                    self.peer_lacks.insert(slot);
                    self.comparisons.has_not_all(slot);
                }
                if held {
                    // It may not have its tick of the round.
                    party.leave_rounds(slot);
                    self.peer_held.insert(slot);
                } else {
                    self.peer_held.remove(&slot);
                }
                Ok(())
            }
            PartyFrame::Members { set } => {
                if let Some(next) = party.membership.newer(&party.env.config, &set)? {
                    self.new_member_set(party, &next);
                }
                Ok(())
            }
            PartyFrame::Accept { seq, view } => self.accepted(party, seq, view),
            PartyFrame::Reject { seq, missing } => self.rejected(party, seq, &missing),
            PartyFrame::Ranked { seq, slot, row } => {
                if party.rounds.peer_ranked(seq, slot, row) {
                    self.ranked(party, seq, slot);
                } else {
                    self.ranking_came_late(party, seq, slot, 1);
                }
                Ok(())
            }
            _ => Err("a frame that only party 2 may get"),
        }
    }

    fn departed(&mut self, party: &mut State, departure: Departure) {
        match departure {
            Departure::Member { slot, .. } => {
                self.comparisons.departed(slot);
                self.refused.remove(&slot);
                party.leave_rounds(slot);
                self.queue_withdrawals(party, slot);
            }
            Departure::Peer { steps } => {
                // What this party dropped of it stays dropped, also if it is not told to party 2.
                if let Some(conclusion) = self.conclusion.take() {
                    party.persist_effects(&conclusion.effects);
                }
                self.queued.extend(steps);
                self.take_back_proposed(party);
                self.take_back_recommendation();
                self.comparisons.begin_anew();
                self.peer_holds.clear();
                self.peer_joined.clear();
                self.peer_held.clear();
                self.peer_lacks.clear();
                self.expiring.clear();
                self.paid.clear();
                self.late.end_session();
                self.doubts_stores = false;
                self.excused =
                    party.membership.set().iter().filter(|(_, slot)| slot.active).map(|(slot, _)| slot).collect();
                // Last, since the steps of the batch that was proposed are among them now.
                // What comes from the operator stays to be done; everything else is reported again after the next hello.
                self.queued.retain(|step| matches!(step, Step::Set { .. } | Step::Epoch { .. }));
            }
        }
    }

    /// Party 2 cannot see what was wrong with it, and would hold its half until that is overdue.
    fn object_refused(&mut self, party: &mut State, slot: u32, version: u64) {
        if self.peer_holds.remove(&(slot, version)).is_some() {
            party.send_to_peer(&PartyFrame::Drop { objects: vec![(slot, version)] });
        } else {
            let refused = self.refused.entry(slot).or_default();
            refused.insert(version);
            if refused.len() > MAX_REFUSED {
                refused.pop_first();
            }
        }
    }

    /// A ranking came to party 1 (0) or party 2 (1) after the evaluation of its round had begun.
    fn ranking_came_late(&mut self, party: &mut State, seq: u64, slot: u32, at: usize) {
        if self.punctuality.came(slot, seq, at, party.now()) {
            self.probation_ended(party, slot);
        }
    }

    fn new_member_set(&mut self, party: &mut State, next: &Directory) {
        // What waits already counts too: each operator may remove a member alone, while a set that both signed is on its way.
        self.queued.push(Step::Set { set: next.encode().into() });
        self.merge_member_sets(party);
    }

    fn new_recommendation(&mut self, party: &mut State, recommendation: BTreeMap<u32, u8>) {
        let is_first = !std::mem::replace(&mut self.was_recommended, true);
        let latest = self.next_recommendation.as_ref().or(self.proposed_recommendation.as_ref());
        if recommendation == *latest.unwrap_or(party.membership.recommendation()) {
            return;
        }
        if party.membership.recommendation().is_empty() && party.objects.table().is_empty() && latest.is_none() {
            if !recommendation.is_empty() {
                self.next_epoch = party.now() + party.env.config.epoch;
            }
            party.membership.recommend(recommendation);
            return;
        }
        self.is_unknown |= is_first;
        // Fixed for an epoch: it counts from the batch that starts the next one.
        self.next_recommendation = Some(recommendation);
        if !self.queued.iter().any(|s| matches!(s, Step::Epoch { .. })) {
            self.queued.push(Step::Epoch { epoch: party.membership.epoch().saturating_add(1), changed: Vec::new() });
        }
        let now = party.now();
        if now < self.next_epoch {
            let seconds = u32::try_from(self.next_epoch.since(now).as_secs()).unwrap_or(u32::MAX).saturating_add(1);
            party.event(PartyEvent::EpochLater { seconds });
        }
    }

    /// Whether a member took a batch that was never made here: both parties' clocks were ahead once, and their stores are newer than that.
    /// It holds nothing that could be compared, and the next batch has a number that it takes.
    ///
    /// # Errors
    /// No clock has reached the number: the member errs.
    fn is_foreign(&mut self, party: &mut State, slot: u32, took: u64) -> Result<bool, &'static str> {
        let last = party.batches.newest();
        if took > last {
            if is_leap(took, Heard::First, party.env.clocks.unix) {
                return Err("it says that it took a batch that was never made");
            }
            self.foreign.insert(slot, (last, took));
            party.batches.begin_above(took);
        }
        Ok(self.foreign.values().any(|(from, to)| *from < took && took <= *to))
    }

    /// Both parties store a batch before it is delivered: one that a member took and that neither store has shows that both are older
    /// copies, or that the member errs. Said once in a session of the two, and only once each knows what the other's store holds.
    fn doubt_stores(&mut self, party: &mut State) {
        let Some(theirs) = party.links.peer_hello().map(|hello| hello.store.stored) else { return };
        let (took, slot) = self.newest_taken;
        let holds = party.objects.store().stored.max(theirs);
        // Stores that hold nothing are new: their operators know.
        if holds > 0 && took > holds && !std::mem::replace(&mut self.doubts_stores, true) {
            party.event(PartyEvent::OlderStores { slot, took, holds });
        }
    }

    /// What this role brings to a batch.
    fn input(&mut self, party: &mut State, steps: &[Step]) -> BatchInput {
        let mut input = BatchInput::default();
        for step in steps {
            match step {
                Step::Object { slot, version, .. } => {
                    self.peer_holds.remove(&(*slot, *version));
                    let object = self.proposed.remove(&(*slot, *version));
                    let object = object.or_else(|| party.objects.take_pending(*slot, *version));
                    input.objects.extend(object.map(|object| ((*slot, *version), object)));
                }
                Step::Epoch { .. } => input.recommendation = self.proposed_recommendation.take(),
                _ => {}
            }
        }
        input
    }

    /// Notes what a batch was to a member, or to this role.
    fn note(&mut self, party: &State, seq: u64, noted: Noted) {
        match noted {
            Noted::Synced(slot) => {
                self.absent_since.remove(&slot);
                self.peer_lacks.remove(&slot);
            }
            Noted::Paused { slot, own, lacks } => {
                let has_all = !self.peer_lacks.remove(&slot) && !lacks;
                self.comparisons.paused(slot, seq, own, has_all);
            }
            Noted::Inactive(slot) => {
                self.absent_since.insert(slot, party.now());
            }
            Noted::EpochBegan => {
                self.next_epoch = party.now() + party.env.config.epoch;
                if std::mem::take(&mut self.is_unknown) {
                    self.comparisons.values_are_unknown(party.membership.epoch());
                }
            }
        }
    }

    /// Proposes the next batch, if the last one is delivered and the tick has come. Rounds of earlier ones go on.
    fn propose(&mut self, party: &mut State) {
        if !Self::may_propose(party) {
            return;
        }
        let is_live = party.now() >= self.next_tick && self.has_work(party);
        let is_background = party.now() >= self.next_background && self.has_background_work(party);
        if !(is_live || is_background) {
            return;
        }
        let mut steps = Vec::new();
        let mut begins = None;
        if is_live {
            // Also if there turn out to be no steps: otherwise `deadline` would name the same past instant for ever.
            self.next_tick = party.now() + party.batches.tick();
            // Before what is queued is taken: one batch has one step to a new member set.
            self.merge_member_sets(party);
            (steps, begins) = self.queued_steps(party);
            steps.extend(self.pauses(party));
            if party.rounds.has_place() {
                steps.extend(self.expiries(party));
            }
            let objects = lack::objects_to_forget(party.objects.table(), Self::forgotten_until(party));
            steps.extend((objects > 0).then_some(Step::Forget { objects }));
        }
        // A new member set may end the slots of objects that wait: those are checked under it, in the next batch. Nor is anything of
        // such slots sent with it again.
        let has_set = steps.iter().any(|step| matches!(step, Step::Set { .. }));
        if !has_set && is_background {
            self.next_background = party.now() + party.batches.tick();
            steps.extend(self.slices(party));
        }
        if is_live && !has_set {
            let (objects, over_limit) = self.object_steps(party);
            steps.extend(objects);
            self.drop_unmatched(party, over_limit);
        }
        if is_background {
            steps.extend(Self::relist(party, begins.as_deref()));
        }
        if steps.is_empty() {
            return;
        }
        party.links.note_heard(party.env.now());
        for step in &steps {
            if let Step::Object { slot, version, .. } = step
                && let Some(object) = party.objects.take_pending(*slot, *version)
            {
                self.proposed.insert((*slot, *version), object);
            }
        }
        let seq = party.batches.propose(steps.clone());
        party.send_to_peer(&PartyFrame::Propose { seq, steps });
    }

    fn supply(&mut self, party: &mut State) {
        if !party.peer_ready() {
            return;
        }
        let is_short = party.rounds.engine().is_some_and(|engine| engine.short().total() > 0);
        self.short_since = if is_short { self.short_since.or(Some(party.now())) } else { None };
        loop {
            let ahead = self.refill_deadline(party).is_some_and(|at| party.now() >= at);
            let Some(engine) = party.rounds.engine_mut() else { return };
            let Some(chunk) = engine.next_chunk(ahead) else { return };
            if engine.order(chunk).is_err() {
                return;
            }
            party.env.counters.correlations += chunk.count as u64;
            party.send_to_peer(&PartyFrame::Refill { demand: vec![engine::to_frame(chunk)] });
        }
    }

    fn sweep(&mut self, party: &mut State) {
        if party.now() >= self.next_sweep {
            self.next_sweep = party.now() + SWEEP;
            self.expire_unmatched(party);
            self.expire_absent(party);
        }
    }
}

impl Role for Sequencer {
    fn on(&mut self, party: &mut State, event: RoleEvent) -> Result<(), &'static str> {
        match event {
            RoleEvent::PeerFrame(frame) if party.peer_ready() => return self.peer_frame(party, frame),
            RoleEvent::PeerFrame(PartyFrame::Inventory { rows, high_water, applied, more }) => {
                return self.inventory(party, (rows, &high_water, more), applied);
            }
            RoleEvent::PeerFrame(PartyFrame::Lost { objects, more }) => return self.lost(party, objects, more),
            RoleEvent::PeerFrame(_) => return Err("a frame before the inventories were compared"),
            RoleEvent::PeerGranted => self.conclude(party),
            RoleEvent::Departed(departure) => self.departed(party, departure),
            RoleEvent::Refused { slot, version } => self.object_refused(party, slot, version),
            RoleEvent::Ranked { seq, slot, .. } => self.ranked(party, seq, slot),
            RoleEvent::RankedLate { seq, slot, .. } => self.ranking_came_late(party, seq, slot, 0),
            RoleEvent::Holds { slot, holding } => {
                let took = holding.seq;
                if self.is_foreign(party, slot, took)? {
                    self.comparisons.request(slot);
                } else {
                    self.comparisons.said(slot, holding)?;
                }
                self.newest_taken = self.newest_taken.max((took, slot));
                self.doubt_stores(party);
                party.links.note_said(slot);
            }
            RoleEvent::Named { slot, half, question, named } => {
                self.comparisons.named(slot, (half, question), named)?
            }
            RoleEvent::NewMemberSet(next) => self.new_member_set(party, &next),
            RoleEvent::NewRecommendation(recommendation) => self.new_recommendation(party, recommendation),
            RoleEvent::Persisted { seq, applied } => {
                party.send_to_peer(&PartyFrame::Go { seq });
                party.deliver(seq, &applied);
                self.begun.retain(|slot| party.batches.is_begun(*slot));
            }
            RoleEvent::Propose => self.propose(party),
            RoleEvent::StartEvaluation => {
                // Rounds whose rankings are all there, or at the deadline with those that are.
                while let Some(seq) = self.next_to_start(party) {
                    self.start_round(party, seq);
                }
                self.order_late(party);
            }
            RoleEvent::Supply => {
                // Rounds may have ended.
                self.allowance.follow(party.env.counters.rounds, || party.rounds.usual());
                self.supply(party);
            }
            RoleEvent::FlowChanged => party.links.forget_flow(),
            RoleEvent::Sweep => self.sweep(party),
            RoleEvent::PeerLinked
            | RoleEvent::PeerGreeted
            | RoleEvent::MemberGreeted { .. }
            | RoleEvent::Submitted { .. } => {}
        }
        Ok(())
    }

    fn deadline(&self, party: &State) -> Option<Instant> {
        let round = party.rounds.iter().filter_map(|round| round.looked_at(self.allowance.get())).min();
        let late = self.late_due(party);
        let may_propose = Self::may_propose(party);
        let tick = (may_propose && self.has_work(party)).then_some(self.next_tick);
        let is_epoch = |step: &Step| matches!(step, Step::Epoch { .. });
        let begins_epoch = may_propose && party.peer_ready() && self.queued.iter().any(is_epoch);
        let epoch = begins_epoch.then(|| self.next_epoch.max(self.next_tick));
        let unmatched = !(party.objects.pending().is_empty() && self.peer_holds.is_empty());
        // Nothing is to be swept for an absent member before its routes die: that may be hours.
        let absent = self.absent_since.iter().filter(|(slot, _)| !party.batches.is_active(**slot));
        let dies = absent.map(|(_, since)| self.next_sweep.max(*since + party.env.config.stale)).min();
        let sweep = if unmatched { Some(self.next_sweep) } else { dies };
        let sweep = sweep.filter(|_| party.peer_ready());
        let may_propose = may_propose && party.rounds.has_place() && party.rounds.has_background_place();
        let forgets = Self::forgets_at(party).filter(|_| party.batches.is_idle() && party.peer_ready());
        let forgets = forgets.map(|at| at.max(self.next_tick));
        let turn = self.next_turn(party).filter(|_| may_propose && party.peer_ready());
        let turn = turn.map(|at| at.max(self.next_background));
        let has_background_work = Self::may_propose(party) && self.has_background_work(party);
        let background = has_background_work.then_some(self.next_background);
        let is_idle = party.batches.is_idle() && party.peer_ready();
        let compared = is_idle.then(|| self.compared_at(party)).flatten();
        [round, late, tick, background, epoch, sweep, forgets, turn, compared, self.refill_deadline(party)]
            .into_iter()
            .flatten()
            .min()
    }

    /// In a round party 1 waits for members first, and for party 2 once it is evaluated.
    fn awaits_peer(&self, party: &State) -> bool {
        party.is_in_agreement()
    }

    fn is_at_rest(&self, party: &State) -> bool {
        let lacks_something = self.perhaps_lacking(party).any(|slot| self.sync_of(party, slot).is_some());
        let is_begun = party.batches.synchronising().next().is_some();
        !self.has_work(party)
            && !self.has_background_work(party)
            && self.peer_holds.is_empty()
            && !lacks_something
            && !is_begun
    }

    fn is_stocked(&self, party: &State) -> bool {
        party.rounds.engine().is_none_or(|engine| engine.short().total() == 0)
    }

    fn budget_of(&self, party: &State, slot: u32) -> Option<BudgetLeft> {
        Some(self.budget_left(party, slot))
    }

    fn status(&self, party: &State, now: Instant) -> RoleStatus {
        RoleStatus {
            on_probation: self.punctuality.on_probation().collect(),
            late: self.late.late(now),
            rank_allowance: self.allowance.get().of_round(party.batches.tick()),
            waiting: self.waiting.clone(),
            behind: self.paused.iter().copied().collect(),
            deferred: self.deferred.iter().copied().collect(),
        }
    }
}

/// What there was of a member's budgets before it was begun to be served.
struct Paid {
    is_excused: bool,
    turns: Option<Turns>,
    choices: Option<Turns>,
}

/// What changes when a round ends, or goes on, or a batch is made: what waited for that is looked at again.
fn work_done(party: &State) -> (u64, u64, u64, usize) {
    (party.env.counters.rounds, party.env.counters.lanes, party.batches.seq(), party.rounds.len())
}

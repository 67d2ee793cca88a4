//! Party 2: takes up what party 1 sequences.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use wayleave_core::Instant;

use super::batch::BatchInput;
use super::links::Departure;
use super::reconcile::{CHUNK, Conclusion, LONG, LostExchange};
use super::role::{Role, RoleEvent};
use super::round::Round;
use super::state::State;
use super::waiting::PendingObject;
use super::{PartyEvent, engine};
use crate::directory::{Directory, Succession};
use crate::frames::{PartyFrame, Step};
use crate::leaps::Heard;
use crate::object_table::Effects;

/// Batches after which party 1 need not know that a ranking came late: it remembers as many.
const MAX_LATE: usize = 256;
/// Octets of a member's objects of links that are gone, which are kept until party 1 knows: our own limit. As much comes in a second.
const MAX_DEPARTING: usize = 32 << 20;
/// What such an object takes in memory beyond its octets, about.
const DEPARTING: usize = 1024;

/// Batches that party 1 may make before it takes a member set or a removal from here.
const MAX_OFFERED: u32 = 64;
/// How long it may take for that, however few batches it makes. What waits takes effect when the link comes up again, so an
/// honest party 1 that is slower loses nothing but a session.
const MAX_OFFER_WAIT: Duration = Duration::from_secs(120);
const NOT_TAKEN: &str = "it does not take a member set or a removal of this party's operator";

/// Party 2's part. All that it decides follows from what party 1 sends, but for its operator's member sets and removals,
/// which party 1 must take: neither operator can keep a member whom the other removed.
#[derive(Default)]
pub(super) struct Follower {
    offered: Option<Offer>,
    /// From which object on the inventory is still to be sent.
    inventory: Option<(u32, u64)>,
    /// What party 1 has sent so far of what it concludes from the inventories.
    conclusion: Conclusion,
    /// Once that is done here: what is lost, and what changed.
    concluded: Option<(LostExchange, Effects)>,
    /// Objects that wait here and of which party 1 has not been told, for want of credit.
    unreported: BTreeSet<(u32, u64)>,
    /// Of the latest batches, the members without whose rankings the evaluation began. Party 1 is told once that one came.
    missing: BTreeMap<u64, BTreeSet<u32>>,
    /// Objects of links that are gone, of which party 1 has been told: what it proposed before it knew of that may have them.
    departing: BTreeMap<(u32, u64), PendingObject>,
    /// Octets of these, about, by slot.
    departing_octets: BTreeMap<u32, usize>,
}

/// A directory of this party's operator that party 1 has not put into a batch yet.
struct Offer {
    set: Arc<[u8]>,
    /// How many batches party 1 made since, and since when it waits.
    batches: u32,
    since: Instant,
}

impl Role for Follower {
    fn on(&mut self, party: &mut State, event: RoleEvent) -> Result<(), &'static str> {
        match event {
            RoleEvent::PeerFrame(frame) if party.peer_ready() => return self.peer_frame(party, frame),
            RoleEvent::PeerFrame(frame @ PartyFrame::Reconciled { .. }) => return self.peer_frame(party, frame),
            RoleEvent::PeerFrame(PartyFrame::Reconciling { drop, differ }) => {
                return self.conclusion.add(drop, differ, party.objects.table().len());
            }
            RoleEvent::PeerFrame(PartyFrame::Lost { objects, more }) => {
                let (exchange, _) = self.concluded.as_mut().ok_or("lost objects out of turn")?;
                party.take_lost(exchange, (objects, more))?;
                self.share_lost(party);
            }
            RoleEvent::PeerFrame(_) => return Err("a frame before the inventories were compared"),
            RoleEvent::PeerLinked => self.take_offered(party),
            RoleEvent::PeerGreeted => {
                // Party 1 concludes from the inventory of party 2, which goes out first of all.
                self.inventory = Some((0, 0));
                self.send_inventory(party);
            }
            RoleEvent::PeerGranted => {
                self.send_inventory(party);
                self.share_lost(party);
                self.report(party);
            }
            RoleEvent::MemberGreeted { slot, session, select_best } => {
                // Not before the parties agree: then all are named.
                if party.peer_ready() {
                    party.send_to_peer(&PartyFrame::Joined { slot, session, select_best });
                }
            }
            RoleEvent::Departed(departure) => self.departed(party, departure),
            RoleEvent::Submitted { slot, version } => {
                if party.peer_ready() {
                    self.unreported.insert((slot, version));
                    self.report(party);
                }
            }
            RoleEvent::Ranked { seq, slot, row } => party.send_to_peer(&PartyFrame::Ranked { seq, slot, row }),
            RoleEvent::RankedLate { seq, slot, row } => self.ranking_came_late(party, seq, slot, row),
            RoleEvent::Holds { .. } | RoleEvent::Named { .. } => return Err("a frame meant for the other party"),
            RoleEvent::NewMemberSet(next) => self.new_member_set(party, &next),
            RoleEvent::Persisted { seq, applied } => {
                party.send_to_peer(&PartyFrame::Accept { seq, view: applied.view });
                party.batches.accept(seq, applied);
            }
            RoleEvent::FlowChanged => report_held(party),
            RoleEvent::Sweep => self.sweep(party),
            RoleEvent::Refused { .. }
            | RoleEvent::NewRecommendation(_)
            | RoleEvent::Propose
            | RoleEvent::StartEvaluation
            | RoleEvent::Supply => {}
        }
        Ok(())
    }

    fn deadline(&self, party: &State) -> Option<Instant> {
        self.offer_ends(party)
    }

    /// In a round party 2 waits for party 1, which waits for members.
    fn awaits_peer(&self, party: &State) -> bool {
        party.is_in_agreement() || party.rounds.has_open()
    }

    fn is_at_rest(&self, _party: &State) -> bool {
        self.offered.is_none()
    }
}

impl Follower {
    fn peer_frame(&mut self, party: &mut State, frame: PartyFrame) -> Result<(), &'static str> {
        match frame {
            PartyFrame::Reconciled { epoch, set, drop, differ, high_water, view } => {
                let mut all = std::mem::take(&mut self.conclusion);
                if !(drop.is_empty() && differ.is_empty()) {
                    all.add(drop, differ, party.objects.table().len())?;
                }
                if self.concluded.is_some() {
                    return Err("a reconciliation out of turn");
                }
                let effects = reconcile(party, epoch, &set, &all, &high_water, view)?;
                self.concluded = Some((LostExchange::default(), effects));
                self.share_lost(party);
                Ok(())
            }
            PartyFrame::Propose { seq, steps } => self.apply_proposal(party, seq, &steps),
            PartyFrame::Go { seq } => deliver_accepted(party, seq),
            PartyFrame::Late { rows, ended } => party.rounds.late.take(&rows, &ended),
            PartyFrame::Evaluate { seq, rows, late } => {
                let missing = party.rounds.get(seq).map(Round::without_ranking).unwrap_or_default();
                party.evaluate(seq, &rows, &late)?;
                self.note_missing(seq, missing);
                Ok(())
            }
            PartyFrame::Next { seq } => party.rounds.order(seq),
            PartyFrame::Refill { demand } => refill(party, &demand),
            PartyFrame::Drop { objects } => {
                // Party 1 told the member why.
                for (slot, version) in objects {
                    party.objects.take_pending(slot, version);
                    self.unreported.remove(&(slot, version));
                }
                Ok(())
            }
            _ => Err("a frame that only party 1 may get"),
        }
    }

    /// What waits takes effect before the hello, as it would at a start with that file: so party 1 has it too, or nothing is
    /// computed, and no new link gives it more batches.
    fn take_offered(&mut self, party: &mut State) {
        let Some(next) = self.offered.take().and_then(|offer| party.own_set(&offer.set)) else { return };
        party.adopt(next);
        party.persist(Vec::new());
    }

    fn new_member_set(&mut self, party: &mut State, next: &Directory) {
        let mut offer = Offer { set: next.encode().into(), batches: 0, since: party.now() };
        if let Some(before) = self.offered.take() {
            (offer.batches, offer.since) = (before.batches, before.since);
            match next.succeed(&before.set) {
                Ok(Succession::Newer(both, _)) => offer.set = both.encode().into(),
                Ok(Succession::Same | Succession::Older(_)) => {}
                Err(error) => {
                    offer.set = before.set;
                    party.event(PartyEvent::MembersRefused { why: error.to_string() });
                }
            }
        }
        self.offered = Some(offer);
        if party.peer_ready() {
            self.offer(party);
        }
    }

    fn sweep(&mut self, party: &mut State) {
        if self.offer_ends(party).is_some_and(|at| party.now() >= at) {
            party.event(PartyEvent::BadFrame { slot: None, what: NOT_TAKEN.to_owned() });
            party.close_peer(NOT_TAKEN);
        }
    }

    fn departed(&mut self, party: &mut State, departure: Departure) {
        match departure {
            Departure::Member { slot, session, pending } if party.peer_ready() => {
                self.keep_departing(slot, pending);
                party.send_to_peer(&PartyFrame::Left { slot, session });
            }
            Departure::Member { .. } => {}
            Departure::Peer { .. } => {
                self.inventory = None;
                self.conclusion = Conclusion::default();
                // What this party dropped of it stays dropped.
                if let Some((_, effects)) = self.concluded.take() {
                    party.persist_effects(&effects);
                }
                self.unreported.clear();
                self.missing.clear();
                self.departing.clear();
                self.departing_octets.clear();
            }
        }
    }

    /// Party 1 began without it, and is told once that it came all the same: whoever is on probation shows so that it is in time again.
    /// What nobody waits for costs the parties' link nothing that others need.
    fn ranking_came_late(&mut self, party: &mut State, seq: u64, slot: u32, row: [u8; 16]) {
        let is_first = self.missing.get_mut(&seq).is_some_and(|missing| missing.remove(&slot));
        if is_first && party.peer_ready() && party.links.has_peer_credit(LONG) {
            party.send_to_peer(&PartyFrame::Ranked { seq, slot, row });
        }
    }

    /// Goes on to tell party 1 what is lost; once both have told the other, they agree.
    fn share_lost(&mut self, party: &mut State) {
        let Some((mut exchange, mut effects)) = self.concluded.take() else { return };
        party.send_lost(&mut exchange);
        if !party.share_lost(&mut exchange, &mut effects) {
            self.concluded = Some((exchange, effects));
            return;
        }
        party.agreed(&effects);
        for (slot, session, select_best) in party.links.sessions().collect::<Vec<_>>() {
            party.send_to_peer(&PartyFrame::Joined { slot, session, select_best });
        }
        party.links.forget_held();
        let waiting = |(slot, objects): (&u32, &BTreeMap<u64, PendingObject>)| {
            objects.keys().map(|version| (*slot, *version)).collect::<Vec<_>>()
        };
        self.unreported = party.objects.pending().iter().flat_map(waiting).collect();
        self.report(party);
        self.offer(party);
    }

    /// Sends the inventory as far as there is credit.
    fn send_inventory(&mut self, party: &mut State) {
        while let Some(from) = self.inventory
            && party.links.has_peer_credit(LONG)
        {
            let mut rows = party.objects.table().inventory_from(from, CHUNK + 1);
            self.inventory = rows.get(CHUNK).map(|row| (row.slot, row.version));
            rows.truncate(CHUNK);
            let more = self.inventory.is_some();
            let (mut high_water, mut applied) = Default::default();
            if !more {
                let table = party.objects.table();
                (high_water, applied) = (table.high_waters(), table.applied_through());
            }
            party.send_to_peer(&PartyFrame::Inventory { rows, high_water, applied, more });
        }
    }

    /// Tells party 1 what waits here, as far as there is credit.
    fn report(&mut self, party: &mut State) {
        while !self.unreported.is_empty() && party.links.has_peer_credit(LONG) {
            let keys: Vec<(u32, u64)> = self.unreported.iter().take(CHUNK).copied().collect();
            let mut objects = Vec::with_capacity(keys.len());
            for (slot, version) in keys {
                self.unreported.remove(&(slot, version));
                let object = party.objects.waiting().get(slot, version);
                objects.extend(object.map(|object| (slot, version, object.digest)));
            }
            if !objects.is_empty() {
                party.send_to_peer(&PartyFrame::Holding { objects });
            }
        }
    }

    /// Notes without whose rankings the evaluation of a batch began.
    fn note_missing(&mut self, seq: u64, slots: BTreeSet<u32>) {
        if !slots.is_empty() {
            self.missing.insert(seq, slots);
        }
        if self.missing.len() > MAX_LATE {
            self.missing.pop_first();
        }
    }

    /// Keeps the objects of a link that is gone as far as party 1 has been told of them.
    fn keep_departing(&mut self, slot: u32, pending: BTreeMap<u64, PendingObject>) {
        for (version, object) in pending {
            let is_known = !self.unreported.remove(&(slot, version));
            let octets = self.departing_octets.entry(slot).or_default();
            if is_known && *octets < MAX_DEPARTING {
                // One that withdraws has none.
                *octets += object.octets() + DEPARTING;
                self.departing.insert((slot, version), object);
            }
        }
    }

    /// Applies a batch that party 1 proposed, or rejects it if an object of it is not here.
    fn apply_proposal(&mut self, party: &mut State, seq: u64, steps: &[Step]) -> Result<(), &'static str> {
        if !party.batches.is_idle() || seq <= party.batches.seq() {
            return Err("a batch proposed out of turn");
        }
        // Numbers are left out where batches were rejected, and where members took later ones than either party knows of.
        if party.batches.is_leap(seq, Heard::Used, party.env.clocks.unix) {
            return Err("a batch number that no clock has reached; compare both parties' clocks");
        }
        // What party 1 proposes after the answer to this it proposes knowing which links are gone: it was told before.
        let departing = std::mem::take(&mut self.departing);
        self.departing_octets.clear();
        let lacks = |step: &Step| match step {
            Step::Object { slot, version, digest } => {
                let pending = party.objects.waiting().get(*slot, *version);
                let has = |object: &PendingObject| object.digest == *digest;
                let same = pending.is_some_and(has) || departing.get(&(*slot, *version)).is_some_and(has);
                (!same).then_some((*slot, *version))
            }
            _ => None,
        };
        let missing: Vec<(u32, u64)> = steps.iter().filter_map(lacks).collect();
        if missing.is_empty() {
            take_up_departing(party, departing, steps);
        } else {
            party.send_to_peer(&PartyFrame::Reject { seq, missing });
            return Ok(());
        }
        let input = BatchInput { objects: take_objects(party, steps), recommendation: None };
        // Nothing here depends on whom a batch serves.
        party.apply(seq, steps, input)?;
        self.drop_what_is_done(party);
        match &mut self.offered {
            None => Ok(()),
            Some(offer) if offer.batches < MAX_OFFERED => {
                offer.batches += 1;
                Ok(())
            }
            Some(_) => Err(NOT_TAKEN),
        }
    }

    /// Forgets the offer if it is in force, or can be no more.
    fn drop_what_is_done(&mut self, party: &mut State) {
        self.offered = self.offered.take().filter(|offer| party.own_set(&offer.set).is_some());
    }

    /// Sends party 1 the directory of this party's operator, unless it is in force by now.
    fn offer(&mut self, party: &mut State) {
        self.drop_what_is_done(party);
        if let Some(offer) = &self.offered {
            party.send_to_peer(&PartyFrame::Members { set: Arc::clone(&offer.set) });
        }
    }

    /// When party 1 has kept an offer waiting for too long.
    fn offer_ends(&self, party: &State) -> Option<Instant> {
        self.offered.as_ref().filter(|_| party.links.has_peer()).map(|offer| offer.since + MAX_OFFER_WAIT)
    }
}

/// Has the objects of a batch wait again whose links are gone, so that it takes them.
fn take_up_departing(party: &mut State, mut departing: BTreeMap<(u32, u64), PendingObject>, steps: &[Step]) {
    for step in steps {
        let Step::Object { slot, version, digest } = step else { continue };
        if let Some(object) = departing.remove(&(*slot, *version)).filter(|object| object.digest == *digest) {
            party.objects.put_back(*slot, *version, object);
        }
    }
}

/// The objects that the steps name, as far as they are here.
fn take_objects(party: &mut State, steps: &[Step]) -> BTreeMap<(u32, u64), PendingObject> {
    let named = steps.iter().filter_map(|step| match step {
        Step::Object { slot, version, .. } => Some((*slot, *version)),
        _ => None,
    });
    named.filter_map(|key| Some((key, party.objects.take_pending(key.0, key.1)?))).collect()
}

/// Delivers the batch of which party 1 has the same view.
fn deliver_accepted(party: &mut State, seq: u64) -> Result<(), &'static str> {
    let applied = party.batches.go(seq).ok_or("a go for another batch")?;
    // Party 1 says go once it is durable there.
    party.objects.note_agreed(seq);
    party.deliver(seq, &applied);
    Ok(())
}

/// Party 1 must know which members can get nothing more now, and which can again.
fn report_held(party: &mut State) {
    if party.peer_ready() {
        for (slot, held, lacks) in party.links.take_held() {
            party.send_to_peer(&PartyFrame::Held { slot, held, lacks });
        }
    }
}

/// Makes the correlations that party 1 ordered, after those that it ordered before.
fn refill(party: &mut State, demand: &[(u32, u64)]) -> Result<(), &'static str> {
    let engine = party.rounds.engine_mut().ok_or("an order of correlations without a session")?;
    if demand.is_empty() {
        return Err("an order of no correlations");
    }
    for chunk in demand {
        let chunk = engine::from_frame(*chunk)?;
        engine.order(chunk)?;
        party.env.counters.correlations += chunk.count as u64;
    }
    Ok(())
}

/// Does what party 1 concluded from the inventories; both must then have the same view. Returns what changed.
fn reconcile(
    party: &mut State,
    epoch: u64,
    set: &Arc<[u8]>,
    conclusion: &Conclusion,
    high_water: &[(u32, u64)],
    view: [u8; 32],
) -> Result<Effects, &'static str> {
    if party.peer_ready() || party.rounds.engine().is_none() {
        return Err("a reconciliation out of turn");
    }
    if epoch < party.membership.epoch() {
        return Err("an epoch that is past");
    }
    let mut effects = Effects::default();
    party.adopt_newer_set(set)?;
    let (slots, now) = (party.membership.set().slots.len(), party.env.clocks.unix);
    party.objects.saw(high_water, slots, (Heard::Relayed, now))?;
    party.membership.raise_epoch(epoch, Heard::Relayed, now)?;
    party.begin_lost(&mut effects);
    party.objects.conclude(conclusion, party.time_of_loss(), &mut effects);
    party.reset_view();
    if party.objects.view() != view {
        return Err("after the inventories were compared the views differ");
    }
    Ok(effects)
}

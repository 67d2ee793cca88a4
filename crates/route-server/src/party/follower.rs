//! Party 2: takes up what party 1 sequences.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use wayleave_core::{Instant, Now};

use super::batch::Applied;
use super::reconcile::{CHUNK, Conclusion, LONG};
use super::role::Role;
use super::round::Round;
use super::state::{Departure, PendingObject, Stage, State};
use super::{PartyEvent, engine};
use crate::directory::{Directory, Succession};
use crate::frames::{PartyFrame, SessionId, Step};
use crate::object_table::Effects;

/// How far the number of a batch may be above the last one. Only batches that were rejected lie between.
const MAX_SEQ_STEP: u64 = 1 << 16;

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
    fn peer_frame_before_ready(&mut self, party: &mut State, frame: PartyFrame, now: Now) -> Result<(), &'static str> {
        match frame {
            PartyFrame::Reconciled { .. } => self.peer_frame(party, frame, now),
            PartyFrame::Reconciling { drop, differ } => self.conclusion.add(drop, differ, party.table.len()),
            _ => Err("a frame before the inventories were compared"),
        }
    }

    fn peer_frame(&mut self, party: &mut State, frame: PartyFrame, now: Now) -> Result<(), &'static str> {
        match frame {
            PartyFrame::Reconciled { epoch, set, drop, differ, high_water, view } => {
                let mut all = std::mem::take(&mut self.conclusion);
                if !(drop.is_empty() && differ.is_empty()) {
                    all.add(drop, differ, party.table.len())?;
                }
                reconcile(party, epoch, &set, &all, &high_water, view)?;
                let waiting = |(slot, objects): (&u32, &BTreeMap<u64, PendingObject>)| {
                    objects.keys().map(|version| (*slot, *version)).collect::<Vec<_>>()
                };
                self.unreported = party.pending.iter().flat_map(waiting).collect();
                self.report(party);
                self.offer(party);
                Ok(())
            }
            PartyFrame::Propose { seq, steps } => self.apply_proposal(party, seq, &steps, now),
            PartyFrame::Go { seq } => deliver_accepted(party, seq, now),
            PartyFrame::Evaluate { seq, rows } => {
                let missing = party.rounds.get(&seq).map(Round::without_ranking).unwrap_or_default();
                party.evaluate(seq, &rows)?;
                self.note_missing(seq, missing);
                Ok(())
            }
            PartyFrame::Next { seq } => party.order(seq),
            PartyFrame::Refill { demand } => refill(party, &demand),
            PartyFrame::Drop { objects } => {
                // Party 1 told the member why.
                for (slot, version) in objects {
                    party.take_pending(slot, version);
                    self.unreported.remove(&(slot, version));
                }
                Ok(())
            }
            _ => Err("a frame that only party 1 may get"),
        }
    }

    /// What waits takes effect before the hello, as it would at a start with that file: so party 1 has it too, or nothing is
    /// computed, and no new link gives it more batches.
    fn peer_linked(&mut self, party: &mut State) {
        let Some(next) = self.offered.take().and_then(|offer| party.own_set(&offer.set)) else { return };
        party.adopt(next);
        party.persist(Vec::new());
    }

    /// Party 1 concludes from the inventory of party 2, which goes out at once.
    fn peer_greeted(&mut self, party: &mut State) {
        self.inventory = Some((0, 0));
        self.send_inventory(party);
    }

    fn peer_granted(&mut self, party: &mut State) {
        self.send_inventory(party);
        self.report(party);
    }

    /// Party 1 must know which members can get nothing more now, and which can again.
    fn flow_changed(&mut self, party: &mut State) {
        if !party.peer_ready() {
            return;
        }
        for slot in std::mem::take(&mut party.flow_changed) {
            let held = match party.members.get(&slot) {
                Some(member) if member.held => !party.is_ready(slot),
                Some(_) => party.is_behind(slot),
                None => continue,
            };
            if let Some(member) = party.members.get_mut(&slot)
                && member.held != held
            {
                member.held = held;
                party.send_to_peer(&PartyFrame::Held { slot, held });
            }
        }
    }

    fn new_member_set(&mut self, party: &mut State, next: &Directory) {
        let mut offer = Offer { set: next.encode().into(), batches: 0, since: party.clocks.instant };
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

    fn is_at_rest(&self, _party: &State) -> bool {
        self.offered.is_none()
    }

    fn sweep(&mut self, party: &mut State, now: Now) {
        if self.offer_ends(party).is_some_and(|at| now.instant >= at) {
            party.event(PartyEvent::BadFrame { slot: None, what: NOT_TAKEN.to_owned() });
            party.close_peer(NOT_TAKEN);
        }
    }

    fn deadline(&self, party: &State) -> Option<Instant> {
        self.offer_ends(party)
    }

    fn member_greeted(&mut self, party: &mut State, slot: u32, session: SessionId, select_best: bool) {
        // Not before the parties agree: then all are named.
        if party.peer_ready() {
            party.send_to_peer(&PartyFrame::Joined { slot, session, select_best });
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
                self.unreported.clear();
                self.missing.clear();
                self.departing.clear();
                self.departing_octets.clear();
            }
        }
    }

    fn object_submitted(&mut self, party: &mut State, slot: u32, version: u64, _digest: [u8; 32]) {
        if party.peer_ready() {
            self.unreported.insert((slot, version));
            self.report(party);
        }
    }

    fn ranking_submitted(&mut self, party: &mut State, seq: u64, slot: u32, row: [u8; 16]) {
        party.send_to_peer(&PartyFrame::Ranked { seq, slot, row });
    }

    /// Party 1 began without it, and is told once that it came all the same: whoever is on probation shows so that it is in time again.
    /// What nobody waits for costs the parties' link nothing that others need.
    fn ranking_was_late(&mut self, party: &mut State, (seq, slot): (u64, u32), row: [u8; 16], _now: Now) {
        let is_first = self.missing.get_mut(&seq).is_some_and(|missing| missing.remove(&slot));
        if is_first && party.peer.as_ref().is_some_and(|peer| peer.ready && peer.sending.has_credit(LONG)) {
            party.send_to_peer(&PartyFrame::Ranked { seq, slot, row });
        }
    }

    fn batch_persisted(&mut self, party: &mut State, seq: u64, applied: Box<Applied>, _now: Now) {
        party.send_to_peer(&PartyFrame::Accept { seq, view: applied.view });
        party.stage = Stage::Accepted { seq, applied };
    }
}

impl Follower {
    /// Sends the inventory as far as there is credit.
    fn send_inventory(&mut self, party: &mut State) {
        while let Some(from) = self.inventory
            && party.peer.as_ref().is_some_and(|peer| peer.sending.has_credit(LONG))
        {
            let mut rows = party.table.inventory_from(from, CHUNK + 1);
            self.inventory = rows.get(CHUNK).map(|row| (row.slot, row.version));
            rows.truncate(CHUNK);
            let more = self.inventory.is_some();
            let high_water = if more { Vec::new() } else { party.table.high_waters() };
            party.send_to_peer(&PartyFrame::Inventory { rows, high_water, more });
        }
    }

    /// Tells party 1 what waits here, as far as there is credit.
    fn report(&mut self, party: &mut State) {
        while !self.unreported.is_empty() && party.peer.as_ref().is_some_and(|peer| peer.sending.has_credit(LONG)) {
            let keys: Vec<(u32, u64)> = self.unreported.iter().take(CHUNK).copied().collect();
            let mut objects = Vec::with_capacity(keys.len());
            for (slot, version) in keys {
                self.unreported.remove(&(slot, version));
                let object = party.pending.get(&slot).and_then(|waiting| waiting.get(&version));
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
    fn apply_proposal(&mut self, party: &mut State, seq: u64, steps: &[Step], now: Now) -> Result<(), &'static str> {
        if !matches!(party.stage, Stage::Idle) || seq <= party.seq {
            return Err("a batch proposed out of turn");
        }
        if seq - party.seq > MAX_SEQ_STEP {
            return Err("a batch number too far ahead");
        }
        // What party 1 proposes after the answer to this it proposes knowing which links are gone: it was told before.
        let departing = std::mem::take(&mut self.departing);
        self.departing_octets.clear();
        let lacks = |step: &Step| match step {
            Step::Object { slot, version, digest } => {
                let pending = party.pending.get(slot).and_then(|waiting| waiting.get(version));
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
        party.apply(self, seq, steps, now)?;
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
        self.offered.as_ref().filter(|_| party.peer.is_some()).map(|offer| offer.since + MAX_OFFER_WAIT)
    }
}

/// Has the objects of a batch wait again whose links are gone, so that it takes them.
fn take_up_departing(party: &mut State, mut departing: BTreeMap<(u32, u64), PendingObject>, steps: &[Step]) {
    for step in steps {
        let Step::Object { slot, version, digest } = step else { continue };
        if let Some(object) = departing.remove(&(*slot, *version)).filter(|object| object.digest == *digest) {
            party.pending.entry(*slot).or_default().insert(*version, object);
        }
    }
}

/// Delivers the batch of which party 1 has the same view.
fn deliver_accepted(party: &mut State, seq: u64, now: Now) -> Result<(), &'static str> {
    match std::mem::replace(&mut party.stage, Stage::Idle) {
        Stage::Accepted { seq: accepted, applied } if accepted == seq => {
            // Party 1 says go once it is durable there.
            party.store.agreed = seq;
            party.deliver(seq, &applied, now);
            Ok(())
        }
        stage => {
            party.stage = stage;
            Err("a go for another batch")
        }
    }
}

/// Makes the correlations that party 1 ordered, after those that it ordered before.
fn refill(party: &mut State, demand: &[(u32, u64)]) -> Result<(), &'static str> {
    let engine = party.engine.as_mut().ok_or("an order of correlations without a session")?;
    if demand.is_empty() {
        return Err("an order of no correlations");
    }
    for chunk in demand {
        let chunk = engine::from_frame(*chunk)?;
        engine.order(chunk)?;
        party.counters.correlations += chunk.count as u64;
    }
    Ok(())
}

/// Does what party 1 concluded from the inventories; both must then have the same view.
fn reconcile(
    party: &mut State,
    epoch: u64,
    set: &Arc<[u8]>,
    conclusion: &Conclusion,
    high_water: &[(u32, u64)],
    view: [u8; 32],
) -> Result<(), &'static str> {
    if party.peer_ready() || party.engine.is_none() {
        return Err("a reconciliation out of turn");
    }
    if epoch < party.epoch {
        return Err("an epoch that is past");
    }
    let mut effects = Effects::default();
    party.adopt_newer_set(set)?;
    party.epoch = epoch;
    for (slot, version) in high_water {
        party.table.saw(*slot, *version);
    }
    for (slot, version) in &conclusion.drop {
        party.table.drop_object(*slot, *version, &mut effects);
    }
    for (slot, version, width, dead) in &conclusion.differ {
        party.table.narrow(*slot, *version, *width);
        party.table.mark_dead(*slot, *version, dead, &mut effects);
        effects.marked.insert((*slot, *version));
    }
    party.table.reset_view(party.epoch, &party.directory.id().hash);
    if party.table.view() != view {
        return Err("after the inventories were compared the views differ");
    }
    party.agreed(&effects);
    let joined: Vec<PartyFrame> = party
        .members
        .iter()
        .filter_map(|(slot, m)| {
            m.session.map(|session| PartyFrame::Joined { slot: *slot, session, select_best: m.select_best })
        })
        .collect();
    for frame in joined {
        party.send_to_peer(&frame);
    }
    // Party 1 knows nothing of who can get nothing.
    party.members.values_mut().for_each(|member| member.held = false);
    party.flow_changed.extend(party.members.keys());
    Ok(())
}

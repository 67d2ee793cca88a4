//! Batches: party 1 proposes, both apply the same steps, compare their views, make them durable and deliver.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wayleave_core::Now;

use super::round::{Group, Round};
use super::{Active, Party, PartyEvent, PartyOutput, PersistId, Stage, store, width};
use crate::directory::SignedMemberSet;
use crate::frames::{Between, Deliver, Instance, MAX_CANDIDATES, Refusal, Step, Tick, ToMember};
use crate::object::Kind;
use crate::table::{Effects, Entry};

/// Objects of one batch: our own limit, so that a batch stays a bounded amount of work.
const MAX_BATCH: usize = 1024;

/// How far the number of a batch may be above the last one. Only batches that were rejected lie between.
const MAX_SEQ_STEP: u64 = 1 << 16;

/// A batch that this party has applied.
pub(super) struct Applied {
    pub effects: Effects,
    /// Members that get everything.
    pub synced: BTreeSet<u32>,
    /// Whether every prefix is looked at again.
    pub everything: bool,
    /// Whether epoch or member set changed.
    pub renewed: bool,
    pub view: [u8; 32],
}

impl Party {
    /// Whether all that was given to this party has had its effect: for those who wait for that.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        matches!(self.stage, Stage::Idle | Stage::Refill)
            && self.other_ready()
            && !self.has_work()
            && self.pending.is_empty()
            && self.other_holds.is_empty()
    }

    /// The slots whose members are connected to both parties.
    pub fn active(&self) -> impl Iterator<Item = u32> + '_ {
        self.active.keys().copied()
    }

    /// The number of the member set.
    #[must_use]
    pub fn member_set(&self) -> u64 {
        self.set.number
    }

    /// Whether party 1 has something to propose.
    pub(super) fn has_work(&self) -> bool {
        self.other_ready() && (!self.queued.is_empty() || self.next_sync().is_some() || self.next_object().is_some())
    }

    /// A member whose two links are up and to which not everything was sent.
    fn next_sync(&self) -> Option<u32> {
        self.members.keys().copied().find(|slot| self.sync_of(*slot).is_some())
    }

    fn sync_of(&self, slot: u32) -> Option<Step> {
        self.set.active(slot)?;
        let member = self.members.get(&slot)?;
        let session = member.session?;
        let (other_session, select_best) = *self.other_joined.get(&slot)?;
        let is_active = self.active.get(&slot).is_some_and(|active| active.session == session);
        let wanted = !is_active || self.resync.contains(&slot);
        (session == other_session && select_best == member.select_best && wanted).then_some(Step::Sync {
            slot,
            session,
            select_best,
        })
    }

    fn next_object(&self) -> Option<(u32, u64)> {
        self.pending.iter().find_map(|(slot, waiting)| {
            let (version, object) = waiting.first_key_value()?;
            let (digest, _) = self.other_holds.get(&(*slot, *version))?;
            (*digest == object.digest).then_some((*slot, *version))
        })
    }

    /// Party 1 proposes the next batch, if the last one is done and the tick has come.
    pub(super) fn propose(&mut self, now: Now) {
        if !matches!(self.stage, Stage::Idle) || now.instant < self.next_tick || !self.has_work() {
            return;
        }
        self.next_tick = now.instant + self.tick;
        let mut steps = std::mem::take(&mut self.queued);
        for step in &mut steps {
            if let Step::Epoch { epoch } = step {
                *epoch = self.epoch.saturating_add(1);
            }
        }
        let slots: Vec<u32> = self.members.keys().copied().collect();
        steps.extend(slots.iter().filter_map(|slot| self.sync_of(*slot)));
        // A member that floods takes no more than its part.
        let quota = (MAX_BATCH / self.pending.len().max(1)).max(1);
        let mut over_limit = Vec::new();
        // A new member set may end the slots of objects that wait: those are looked at under it, in the next batch.
        let renews = steps.iter().any(|step| matches!(step, Step::Set { .. }));
        for (slot, waiting) in self.pending.iter().filter(|_| !renews) {
            let (mut new, mut taken) = (0, 0);
            // In order within a slot: what waits for its other half holds back what comes after it.
            for (version, object) in waiting {
                let matched =
                    self.other_holds.get(&(*slot, *version)).is_some_and(|(digest, _)| *digest == object.digest);
                if !matched || taken == quota {
                    break;
                }
                let more = self.new_prefixes(*slot, &object.header.description.kind);
                if more > 0 && new + more > self.prefixes_left(*slot) {
                    // What goes before it in this batch may make room: then it is looked at again in the next.
                    if taken > 0 {
                        break;
                    }
                    over_limit.push((*slot, *version));
                    continue;
                }
                new += more;
                taken += 1;
                steps.push(Step::Object { slot: *slot, version: *version, digest: object.digest });
            }
        }
        self.drop_both(&over_limit, Refusal::MaxPrefix);
        if steps.is_empty() {
            return;
        }
        self.seq += 1;
        let seq = self.seq;
        self.heard = now.instant;
        for step in &steps {
            if let Step::Object { slot, version, .. } = step
                && let Some(object) = self.take_pending(*slot, *version)
            {
                self.proposed.insert((*slot, *version), object);
            }
        }
        self.tell_other(&Between::Propose { seq, steps: steps.clone() });
        self.stage = Stage::Proposed { seq, steps };
    }

    /// Prefixes that an object adds to those of its announcer.
    fn new_prefixes(&self, slot: u32, kind: &Kind) -> usize {
        let Kind::Announce { prefixes } = kind else { return 0 };
        prefixes.iter().filter(|nlri| !self.table.owns(slot, nlri)).count()
    }

    /// Prefixes that a member may announce beyond those it does; no limit is set by 0.
    fn prefixes_left(&self, slot: u32) -> usize {
        match self.set.slot(slot).map_or(0, |s| s.max_prefix as usize) {
            0 => usize::MAX,
            most => most.saturating_sub(self.table.prefixes_of(slot)),
        }
    }

    /// Drops waiting objects at both parties and tells their members.
    fn drop_both(&mut self, objects: &[(u32, u64)], reason: Refusal) {
        if objects.is_empty() {
            return;
        }
        for (slot, version) in objects {
            self.take_pending(*slot, *version);
            self.other_holds.remove(&(*slot, *version));
            self.refuse(*slot, *version, reason);
        }
        self.tell_other(&Between::Drop { objects: objects.to_vec() });
    }

    /// Objects of which only one party was told, or the parties were told different things: the member is asked again.
    pub(super) fn expire_unmatched(&mut self, now: Now) {
        let waits = |since| now.instant.since(since) >= self.config.match_wait;
        let mut unmatched = BTreeSet::new();
        for (slot, waiting) in &self.pending {
            for (version, object) in waiting {
                let same = self.other_holds.get(&(*slot, *version)).is_some_and(|(digest, _)| *digest == object.digest);
                if !same && waits(object.since) {
                    unmatched.insert((*slot, *version));
                }
            }
        }
        for ((slot, version), (_, since)) in &self.other_holds {
            let held = self.pending.get(slot).is_some_and(|waiting| waiting.contains_key(version));
            if !held && waits(*since) {
                unmatched.insert((*slot, *version));
            }
        }
        if matches!(self.stage, Stage::Idle | Stage::Round(_)) {
            for (slot, version) in &unmatched {
                self.event(PartyEvent::Mismatch { slot: *slot, version: *version });
            }
            self.drop_both(&unmatched.into_iter().collect::<Vec<_>>(), Refusal::Mismatch);
        }
    }

    /// Routes of members that are gone past the stale timer die.
    pub(super) fn expire_absent(&mut self, now: Now) {
        let due: Vec<u32> = self
            .absent_since
            .iter()
            .filter(|(slot, since)| !self.active.contains_key(slot) && now.instant.since(**since) >= self.config.stale)
            .map(|(slot, _)| *slot)
            .collect();
        for slot in due {
            self.absent_since.remove(&slot);
            if self.table.prefixes_of(slot) > 0 {
                self.queued.push(Step::Expire { slot });
                self.event(PartyEvent::Expired { slot });
            }
        }
    }

    /// Party 2 is asked to apply a batch.
    pub(super) fn proposed(&mut self, seq: u64, steps: Vec<Step>, now: Now) -> Result<(), &'static str> {
        if !matches!(self.stage, Stage::Idle) || seq <= self.seq {
            return Err("a batch out of turn");
        }
        if seq - self.seq > MAX_SEQ_STEP {
            return Err("a batch number far ahead");
        }
        let missing: Vec<(u32, u64)> = steps
            .iter()
            .filter_map(|step| match step {
                Step::Object { slot, version, digest } => {
                    let held = self.pending.get(slot).and_then(|waiting| waiting.get(version));
                    let same = held.is_some_and(|object| object.digest == *digest);
                    (!same).then_some((*slot, *version))
                }
                _ => None,
            })
            .collect();
        if !missing.is_empty() {
            self.tell_other(&Between::Reject { seq, missing });
            return Ok(());
        }
        self.apply(seq, &steps, now)
    }

    /// Party 2 lacks objects of the batch: it goes back, without them.
    pub(super) fn rejected(&mut self, seq: u64, missing: &[(u32, u64)]) -> Result<(), &'static str> {
        let Stage::Proposed { seq: proposed, steps } = &mut self.stage else {
            return Err("a rejection of nothing");
        };
        if *proposed != seq {
            return Err("a rejection of another batch");
        }
        let steps = std::mem::take(steps);
        self.stage = Stage::Idle;
        // What was queued meanwhile comes after it.
        let again = steps.into_iter().filter(|s| !matches!(s, Step::Object { .. } | Step::Sync { .. }));
        self.queued = again.chain(std::mem::take(&mut self.queued)).collect();
        self.take_back_proposed();
        for (slot, version) in missing {
            self.other_holds.remove(&(*slot, *version));
        }
        Ok(())
    }

    /// Party 2 applied the batch and tells its view.
    pub(super) fn accepted(&mut self, seq: u64, view: [u8; 32], now: Now) -> Result<(), &'static str> {
        let Stage::Proposed { seq: proposed, steps } = &mut self.stage else {
            return Err("an acceptance of nothing");
        };
        if *proposed != seq {
            return Err("an acceptance of another batch");
        }
        let steps = std::mem::take(steps);
        self.apply(seq, &steps, now)?;
        if self.table.view() == view { Ok(()) } else { Err("its view differs from ours") }
    }

    /// Applies steps and hands what changed to the store.
    fn apply(&mut self, seq: u64, steps: &[Step], now: Now) -> Result<(), &'static str> {
        self.seq = seq;
        let mut applied = Applied {
            effects: Effects::default(),
            synced: BTreeSet::new(),
            everything: false,
            renewed: false,
            view: [0; 32],
        };
        for step in steps {
            self.apply_step(step, &mut applied, now)?;
        }
        self.table.extend_view(seq, steps);
        applied.view = self.table.view();
        let changes = store::changes(&self.table, &applied.effects, self.epoch, seq);
        let id = self.persist(changes);
        self.stage = Stage::Persisting { seq, id, applied: Box::new(applied) };
        Ok(())
    }

    pub(super) fn persist(&mut self, changes: Vec<store::Change>) -> PersistId {
        self.next_persist += 1;
        let id = self.next_persist;
        self.output.push_back(PartyOutput::Persist { id, changes });
        id
    }

    fn apply_step(&mut self, step: &Step, applied: &mut Applied, now: Now) -> Result<(), &'static str> {
        match step {
            Step::Object { slot, version, .. } => {
                let object = self.take_pending(*slot, *version).ok_or("a batch with an object that is gone")?;
                self.other_holds.remove(&(*slot, *version));
                let header = &object.header;
                match &header.description.kind {
                    Kind::Announce { .. } => {
                        let width = *self.widths.get(&header.description.set).ok_or("an unknown member set")?;
                        let entry = Entry {
                            handle: header.description.handle(&self.config.exchange),
                            digest: object.digest,
                            width,
                            dead: BTreeSet::new(),
                            part: object.part.ok_or("an announcement without its part")?,
                            header: object.header,
                        };
                        self.table.announce(entry, &mut applied.effects);
                    }
                    Kind::Withdraw { .. } => self.table.withdraw(header, &mut applied.effects),
                    Kind::Column { .. } => {
                        self.table.column(header, object.column.as_deref(), &mut applied.effects);
                    }
                }
            }
            Step::Expire { slot } => self.table.expire(*slot, &mut applied.effects),
            Step::Sync { slot, session, select_best } => {
                self.active.insert(*slot, Active { session: *session, select_best: *select_best });
                self.absent_since.remove(slot);
                self.resync.remove(slot);
                applied.synced.insert(*slot);
            }
            Step::Gone { slot } => {
                self.active.remove(slot);
                if self.is_one() {
                    self.absent_since.insert(*slot, now.instant);
                }
            }
            Step::Epoch { epoch } => {
                if *epoch < self.epoch {
                    return Err("an epoch that is past");
                }
                self.epoch = *epoch;
                if let Some(recommendation) = self.next_recommendation.take() {
                    self.recommendation = recommendation;
                }
                applied.everything = true;
                applied.renewed = true;
            }
            Step::Set { set } => {
                let opened = SignedMemberSet::open(set, &self.config.operator);
                let opened = opened.ok_or("a member set that the operator did not sign")?;
                self.adopt_set(opened, Arc::clone(set), &mut applied.effects);
                applied.renewed = true;
            }
        }
        Ok(())
    }

    /// Takes a newer member set: leavers' routes die, their links are closed.
    pub(super) fn adopt_set(&mut self, set: crate::directory::MemberSet, bytes: Arc<[u8]>, effects: &mut Effects) {
        if set.number <= self.set.number || set.may_follow(&self.set).is_err() {
            return;
        }
        let left: Vec<u32> =
            (0u32..).zip(&set.slots).filter(|(_, slot)| !slot.active).map(|(number, _)| number).collect();
        for slot in left {
            self.table.expire(slot, effects);
            self.active.remove(&slot);
            self.pending.remove(&slot);
            if let Some(link) = self.members.get(&slot).map(|m| m.link) {
                self.close(link, "the member left the exchange");
            }
        }
        self.widths.insert(set.number, width(&set));
        self.keys = crate::directory::keys(&set);
        self.set = set;
        self.set_bytes = bytes;
        self.output.push_back(PartyOutput::Members(Box::new(self.set.clone())));
    }

    /// The store has it: party 2 accepts, party 1 says go.
    pub(super) fn persisted(&mut self, id: PersistId, now: Now) {
        let Stage::Persisting { seq, id: awaited, .. } = &self.stage else { return };
        if *awaited != id {
            return;
        }
        let seq = *seq;
        self.heard = now.instant;
        let Stage::Persisting { applied, .. } = std::mem::replace(&mut self.stage, Stage::Idle) else { return };
        if self.is_one() {
            self.tell_other(&Between::Go { seq });
            self.deliver(seq, &applied, now);
        } else {
            self.tell_other(&Between::Accept { seq, view: applied.view });
            self.stage = Stage::Accepted { seq, applied };
        }
    }

    /// Party 1 has the same view.
    pub(super) fn go(&mut self, seq: u64, now: Now) -> Result<(), &'static str> {
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Accepted { seq: accepted, applied } if accepted == seq => {
                self.deliver(seq, &applied, now);
                Ok(())
            }
            stage => {
                self.stage = stage;
                Err("a go for another batch")
            }
        }
    }

    /// Sends every active member its tick and starts the round.
    fn deliver(&mut self, seq: u64, applied: &Applied, now: Now) {
        self.counters.batches += 1;
        if applied.renewed {
            let renew = ToMember::Renew { epoch: self.epoch, set: Arc::clone(&self.set_bytes) };
            // Who has not said hello yet learns all of it from its welcome.
            let greeted = self.members.iter().filter(|(_, member)| member.session.is_some());
            for slot in greeted.map(|(slot, _)| *slot).collect::<Vec<u32>>() {
                self.tell_member(slot, &renew);
            }
        }
        let all = if applied.everything || !applied.synced.is_empty() { self.all_instances() } else { Vec::new() };
        let changed = if applied.everything {
            all.clone()
        } else {
            applied.effects.touched.iter().map(|prefix| self.instance(prefix)).filter(|i| !i.is_empty()).collect()
        };
        // Slots that columns opened objects to also look at the prefixes of those.
        let both = applied.effects.touched.union(&applied.effects.opened);
        let opened = if applied.effects.widened.is_empty() {
            Vec::new()
        } else {
            both.map(|prefix| self.instance(prefix)).filter(|i| !i.is_empty()).collect()
        };
        let mut groups = [Group::new(changed), Group::new(all), Group::new(opened)];
        let active: Vec<(u32, Active)> = self.active.iter().map(|(slot, active)| (*slot, *active)).collect();
        let handles = self.deliverable(&applied.effects);
        for (slot, active) in active {
            let full = applied.synced.contains(&slot);
            let is_new = applied.effects.widened.iter().any(|(_, _, from, to)| (*from..*to).contains(&slot));
            let group = &mut groups[if full { 1 } else { usize::from(is_new && !applied.everything) * 2 }];
            let rank = active.select_best && !group.multi.is_empty();
            let mut tick = Tick {
                seq,
                view: applied.view,
                full,
                applied: applied.effects.applied.get(&slot).cloned().unwrap_or_default(),
                instances: group.instances.clone(),
                rank,
                ..Tick::default()
            };
            if rank {
                group.members.push(slot);
            }
            if full {
                self.fill_full(slot, &mut tick);
            } else {
                tick.dead.clone_from(&applied.effects.dead);
                tick.gone = applied.effects.removed.iter().map(|(.., handle)| *handle).collect();
                tick.deliver = handles.iter().filter_map(|key| self.deliver_to(slot, *key, &applied.effects)).collect();
            }
            self.tell_member(slot, &ToMember::Tick(Box::new(tick)));
        }
        let widest = groups.iter().flat_map(|group| &group.multi).map(|instance| instance.len()).max().unwrap_or(0);
        self.expect_rounds(widest, now);
        let wait = self.tick + self.config.rank_wait;
        let groups: Vec<Group> = groups.into_iter().filter(|g| !g.members.is_empty()).collect();
        self.stage = if groups.is_empty() {
            Stage::Idle
        } else {
            Stage::Round(Box::new(Round::new(seq, groups, now.instant + wait)))
        };
    }

    /// Objects that someone may get from this batch.
    fn deliverable(&self, effects: &Effects) -> Vec<(u32, u64)> {
        let added = effects.added.iter().copied();
        let widened = effects.widened.iter().map(|(slot, version, ..)| (*slot, *version));
        let mut keys: Vec<(u32, u64)> = added.chain(widened).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    fn deliver_to(&self, receiver: u32, (slot, version): (u32, u64), effects: &Effects) -> Option<Deliver> {
        let new = effects.added.contains(&(slot, version));
        let opened = |w: &&(u32, u64, u32, u32)| (w.0, w.1) == (slot, version) && (w.2..w.3).contains(&receiver);
        if !new && !effects.widened.iter().any(|w| opened(&w)) {
            return None;
        }
        self.delivery(receiver, self.table.entry(slot, version)?)
    }

    fn delivery(&self, receiver: u32, entry: &Entry) -> Option<Deliver> {
        Some(Deliver {
            handle: entry.handle,
            epoch: entry.header.description.epoch,
            share: entry.key_share(receiver)?,
            dead: entry.dead_places(),
            body: entry.body(),
        })
    }

    fn fill_full(&self, slot: u32, tick: &mut Tick) {
        for entry in self.table.entries() {
            let description = &entry.header.description;
            if description.slot == slot {
                tick.own.push((description.version, entry.live().copied().collect()));
            }
            if let Some(delivery) = self.delivery(slot, entry) {
                tick.held.push(entry.handle);
                tick.deliver.push(delivery);
            }
        }
    }

    fn instance(&self, prefix: &wayleave_core::Prefix) -> Instance {
        self.table.candidates(prefix, MAX_CANDIDATES).into()
    }

    fn all_instances(&self) -> Vec<Instance> {
        self.table.prefixes().map(|prefix| self.instance(prefix)).collect()
    }
}

/// Two-candidate instances and more, which need a round.
impl Group {
    fn new(instances: Vec<Instance>) -> Self {
        let multi = instances.iter().filter(|i| i.len() > 1).cloned().collect();
        Self { instances, multi, members: Vec::new() }
    }
}

/// By number of routes padded to a power of two: which instances, in order.
pub(super) fn by_class(multi: &[Instance]) -> BTreeMap<usize, Vec<usize>> {
    let mut classes: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (i, instance) in multi.iter().enumerate() {
        classes.entry(instance.len().next_power_of_two()).or_default().push(i);
    }
    classes
}

//! Batches: what both parties do with the steps that party 1 proposed. They apply the same steps, compare their views, make
//! them durable and deliver.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use wayleave_core::{Asn, Now, Prefix};

use super::deliveries::{Brought, Deliveries};
use super::relist::Relist;
use super::role::Role;
use super::round::{Group, Round};
use super::state::{ActiveMember, Stage, State, width};
use super::sync::{Cursor, Lack, Listing};
use super::{Party, PartyNumber, PartyOutput, PersistId, store, sync};
use crate::digests::{Differs, InstanceHash};
use crate::directory::{Directory, MemberSet};
use crate::frames::{Deliver, Instance, MAX_CANDIDATES, Rejection, Slice, Step, Tick, ToMember};
use crate::object::{ExportMode, Kind};
use crate::object_table::{Effects, ObjectEntry};
use crate::schedule;

/// A batch that this party has applied.
pub(super) struct Applied {
    pub effects: Effects,
    /// Of the prefixes whose candidates changed, the instances that there were before, if a member is sent what differs.
    pub before: BTreeMap<Prefix, InstanceHash>,
    /// Members that get a slice of everything: how many objects, and whether it is the first one.
    pub slices: BTreeMap<u32, (u32, bool)>,
    /// Whether epoch or member set changed.
    pub renewed: bool,
    pub view: [u8; 32],
}

impl Party {
    /// The slots whose members are connected to both parties.
    pub fn active(&self) -> impl Iterator<Item = u32> + '_ {
        self.state.active.keys().copied()
    }

    /// The number of the member set.
    #[must_use]
    pub fn member_set(&self) -> u64 {
        self.state.set.number
    }

    /// The store has what the batch changed.
    pub(super) fn persisted(&mut self, id: PersistId, now: Now) {
        match std::mem::replace(&mut self.state.stage, Stage::Idle) {
            Stage::Persisting { seq, id: awaited, applied } if awaited == id => {
                self.state.heard = now.instant;
                self.state.store.stored = seq;
                self.role.batch_persisted(&mut self.state, seq, applied, now);
            }
            // The peer's link went while the batch was written, and it is not delivered; or something else was written than a batch.
            stage => self.state.stage = stage,
        }
    }
}

impl State {
    /// Applies steps and hands what changed to the store.
    pub(super) fn apply(
        &mut self,
        role: &mut dyn Role,
        seq: u64,
        steps: &[Step],
        now: Now,
    ) -> Result<(), &'static str> {
        self.seq = seq;
        let (effects, before, slices) = (Effects::default(), BTreeMap::new(), BTreeMap::new());
        let mut applied = Applied { effects, before, slices, renewed: false, view: [0; 32] };
        for step in steps {
            self.apply_step(role, step, &mut applied, now)?;
        }
        // Before `settle`, which puts the new hashes in place of these.
        if self.active.values().filter_map(|active| active.cursor).any(|cursor| cursor.is_of_differing()) {
            let before = |prefix: &Prefix| Some((*prefix, self.table.instance_of(prefix)?));
            applied.before = applied.effects.touched.iter().filter_map(before).collect();
        }
        self.table.settle();
        self.table.extend_view(seq, steps);
        self.recent.note(seq, &applied.effects);
        applied.view = self.table.view();
        let changes = store::changes(&self.table, &applied.effects, self.epoch, seq);
        let id = self.persist(changes);
        self.stage = Stage::Persisting { seq, id, applied: Box::new(applied) };
        Ok(())
    }

    fn apply_step(
        &mut self,
        role: &mut dyn Role,
        step: &Step,
        applied: &mut Applied,
        now: Now,
    ) -> Result<(), &'static str> {
        match step {
            Step::Object { slot, version, .. } => {
                let object = role.take_object(self, *slot, *version).ok_or("a batch with an unknown object")?;
                let header = &object.header;
                match &header.description.kind {
                    Kind::Announce { .. } => {
                        let width = *self.widths.get(&header.description.set).ok_or("an unknown member set")?;
                        let entry = ObjectEntry {
                            handle: header.description.handle(&self.config.exchange),
                            digest: object.digest,
                            mode: self.config.export,
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
            Step::Expire { slot, objects } => self.table.expire(*slot, *objects as usize, &mut applied.effects),
            // A batch may end the slot that it was to serve.
            Step::Sync { slot, .. } if self.set.active(*slot).is_none() => {}
            Step::Sync { slot, session, select_best, chooses, objects, differs } => {
                let before = self.active.get(slot).filter(|before| before.session == *session);
                let complete = before.is_some_and(|before| before.complete) || *differs != Differs::EVERYTHING;
                let (session, select_best, chooses) = (*session, *select_best, *chooses);
                let cursor = Some(Cursor::before(differs));
                let lacks = Arc::new(Lack::of(differs.clone(), &self.recent));
                self.activate(*slot, ActiveMember { session, select_best, cursor, lacks, complete, chooses });
                role.member_synced(*slot);
                applied.slices.insert(*slot, (*objects, true));
            }
            Step::Slice { slot, objects } => {
                applied.slices.entry(*slot).or_insert((*objects, false));
            }
            Step::Pause { slot } => {
                self.deactivate(*slot);
                if let Some(member) = self.members.get_mut(slot) {
                    member.lacks = false;
                    self.flow_changed.insert(*slot);
                }
            }
            Step::Gone { slot } => {
                self.deactivate(*slot);
                role.member_inactive(*slot, now);
            }
            Step::Epoch { epoch, changed } => {
                if *epoch < self.epoch {
                    return Err("an epoch that is past");
                }
                self.epoch = *epoch;
                self.epoch_began = Some(now.instant);
                if let Some(recommendation) = role.epoch_began(self) {
                    self.recommendation = recommendation;
                }
                self.relist = Relist::begin(self.relist.take(), changed);
                applied.renewed = true;
            }
            Step::Relist { prefixes } => self.relist_some(*prefixes, &mut applied.effects),
            Step::Set { set } => {
                if let Some(next) = self.newer_set(set)? {
                    self.adopt(next);
                }
                applied.renewed = true;
            }
        }
        Ok(())
    }

    /// Takes a newer member set: ends the routes of members that left, and closes their links and those of members that
    /// have a new certificate. The store has it before anything depends on it: it goes with the changes of its batch.
    pub(super) fn adopt(&mut self, next: Directory) {
        let set = MemberSet::clone(next.set());
        let left: Vec<u32> =
            (0u32..).zip(&set.slots).filter(|(_, slot)| !slot.active).map(|(number, _)| number).collect();
        for slot in left {
            self.table.end(slot);
            self.deactivate(slot);
            self.pending.remove(&slot);
            if let Some(link) = self.members.get(&slot).map(|m| m.link) {
                let by = next.removals().find(|removal| removal.slot == slot).map_or(0, |removal| removal.party);
                // Before its link is closed, with which the member is forgotten and can be sent nothing.
                self.send_to_member(
                    slot,
                    &ToMember::Rejected { why: Rejection::Removed { slot, set: set.number, by } },
                );
                self.close(link, "the member has left the exchange");
            }
        }
        let renewed =
            self.set.iter().zip(&set.slots).filter(|((_, before), slot)| slot.active && slot.tls != before.tls);
        for slot in renewed.map(|((id, _), _)| id).collect::<Vec<u32>>() {
            if let Some(link) = self.members.get(&slot).map(|m| m.link) {
                self.close(link, "the member has a new certificate; it connects again with that");
            }
        }
        if set.number != self.set.number {
            let (now, wait) = (self.clocks.instant, self.config.match_wait);
            self.replaced.retain(|_, at| now.since(*at) < wait);
            self.replaced.insert(self.set.number, now);
        }
        // Only now: what is above compares certificates and numbers with the set before.
        self.widths.insert(set.number, width(&set));
        self.keys = crate::directory::keys(&set);
        self.set = set;
        self.set_bytes = next.encode().into();
        self.set_is_stored = false;
        self.set_is_unannounced = true;
        self.directory = next;
        self.output.push_back(PartyOutput::Members(Box::new(self.set.clone())));
    }

    /// Tells the connected members the epoch and the member set. One without a hello so far learns both from its welcome.
    pub(super) fn tell_members(&mut self) {
        self.set_is_unannounced = false;
        let greeted = self.members.iter().filter(|(_, member)| member.session.is_some());
        for slot in greeted.map(|(slot, _)| *slot).collect::<Vec<u32>>() {
            self.tell_set(slot);
        }
    }

    /// Tells a member the epoch and the member set once there is credit for that; no tick goes before.
    pub(super) fn tell_set(&mut self, slot: u32) {
        let renew = ToMember::Renew { epoch: self.epoch, set: Arc::clone(&self.set_bytes) };
        let told = self.offer_to_member(slot, &renew);
        if let Some(member) = self.members.get_mut(&slot) {
            member.owes_set = !told;
            self.strained.insert(slot);
        }
    }

    /// Looks at so many prefixes more, and lets those be evaluated again that an epoch's change concerns.
    fn relist_some(&mut self, prefixes: u32, effects: &mut Effects) {
        let Some(relist) = self.relist.take() else { return };
        self.relisted.note(&relist, self.seq);
        let (concerned, rest) = relist.take(&self.table, prefixes);
        effects.relisted.extend(concerned);
        self.relist = rest;
    }

    /// Sends every active member its tick and starts the round.
    pub(super) fn deliver(&mut self, seq: u64, applied: &Applied, now: Now) {
        self.counters.batches += 1;
        // Before the ticks: a member for which there is no credit to be told owes the set, and then gets no tick that refers to it.
        if applied.renewed {
            self.tell_members();
        }
        let mut groups: BTreeMap<Listing, Group> = BTreeMap::new();
        let mut changed_by_one = None;
        let active: Vec<(u32, ActiveMember)> =
            self.active.iter().map(|(slot, active)| (*slot, active.clone())).collect();
        let deliveries = Deliveries::of(&self.table, &applied.effects);
        // In mode `mpc` the shares in them are still to be computed.
        let mut unfinished = Vec::new();
        let (mut without_tick, mut most) = (BTreeSet::new(), Duration::ZERO);
        for (slot, active) in active {
            let slice = applied.slices.get(&slot).zip(active.cursor);
            let begins = slice.is_some_and(|((_, begins), _)| *begins);
            let taken =
                slice.map(|((objects, _), cursor)| sync::take(&self.table, slot, cursor, &active.lacks, *objects));
            let ends = taken.as_ref().is_some_and(|taken| taken.after.is_none()).then(|| self.table.roots(slot));
            let listing = Listing::new(deliveries.widens(slot), active.complete, active.cursor, taken.as_ref());
            let group = groups.entry(listing.clone()).or_insert_with(|| {
                let instances = |prefixes: BTreeSet<Prefix>| {
                    let all = prefixes.into_iter().map(|prefix| (prefix, self.instance(&prefix)));
                    all.filter(|(_, instance)| !instance.is_empty()).collect()
                };
                let [live, later] = listing.prefixes(&self.table, &applied.effects);
                Group::new(instances(live), instances(later))
            });
            let chooses = active.chooses || active.cursor.is_none();
            let rank = active.select_best && chooses && !group.multi.is_empty();
            let mut tick = Tick {
                seq,
                view: applied.view,
                applied: applied.effects.applied.get(&slot).cloned().unwrap_or_default(),
                dead: applied.effects.dead.clone(),
                gone: applied.effects.removed.iter().map(|(.., handle)| *handle).collect(),
                instances: group.instances.clone(),
                live: u32::try_from(group.live).expect("a tick has few million instances"),
                rank,
                ..Tick::default()
            };
            let Brought { objects: known, new, widened: mut others, scanned } =
                deliveries.to(slot, &listing, taken.is_some());
            self.counters.scanned += scanned;
            let mut cursor = active.cursor;
            if let Some(taken) = taken {
                others.extend(taken.objects.iter().filter(|object| !known.contains(object)));
                let begins = begins.then(|| active.lacks.differs.clone());
                if let Some(since) = begins.as_ref().and_then(|differs| differs.since) {
                    (tick.dead, tick.gone) = self.recent.dead_since(since.objects);
                }
                let own_ends = taken.own_ends || begins.as_ref().is_some_and(|differs| !differs.own);
                tick.slice = Some(Slice { begins, ends, own: taken.own, own_ends });
                cursor = taken.after;
            }
            let others = others.into_iter().filter_map(|(slot, version)| self.table.entry(slot, version));
            tick.deliver = new;
            tick.deliver.extend(others.filter_map(|entry| Self::delivery(slot, entry)));
            if cursor.is_none() && active.cursor.is_none() {
                self.chosen.remove(&slot);
            }
            // Whether its tick can be sent or not: the peer party moves the same cursor without knowing that. A member without its tick is
            // paused, and sent what it lacks later.
            if let Some(active) = self.active.get_mut(&slot) {
                active.was_sent(cursor);
            }
            self.counters.delivered += tick.deliver.len() as u64;
            let candidates: usize = tick.instances.iter().map(|instance| instance.len()).sum();
            self.counters.listed += candidates as u64;
            // What columns open to one member alone keeps nobody from announcing.
            if tick.slice.is_none() && !deliveries.widens(slot) {
                most = most.max(schedule::work(tick.deliver.len(), candidates));
            }
            if rank {
                let changed_by_one = changed_by_one.get_or_insert_with(|| self.changed_by_one_as(&applied.effects));
                let own = self.set.slot(slot).and_then(|of| changed_by_one.get(&of.asn));
                let own = own.into_iter().flatten().copied().filter(|prefix| group.is_contested(prefix)).collect();
                let stays = match active.cursor.filter(Cursor::is_of_differing) {
                    Some(cursor) => self.stays_while_sent(slot, cursor, (&listing, &active.lacks, own), applied),
                    None => own.into_iter().filter(|prefix| !listing.lists_anyway(prefix, &applied.effects)).collect(),
                };
                tick.unranked = stays.iter().filter_map(|prefix| group.leave_out(prefix, slot)).collect();
                tick.unranked.sort_unstable();
                // By the batch alone, so that both parties have the same groups. Who gets no tick leaves the round afterwards.
                group.members.push(slot);
            }
            match self.config.export {
                ExportMode::Direct => {
                    // Party 1 decides for whose rankings the round waits. Party 2 reports a member that it could not send its tick as held, and
                    // party 1 has it leave the round then.
                    if !self.send_tick(slot, tick) && self.config.number == PartyNumber::One {
                        without_tick.insert(slot);
                    }
                }
                ExportMode::Mpc => unfinished.push((slot, tick)),
            }
        }
        self.schedule.came(schedule::with_spare(most), now.instant);
        let widest = groups.values().flat_map(|group| &group.multi).map(|instance| instance.len()).max().unwrap_or(0);
        self.expect_rounds(widest, now);
        let mut groups: Vec<Group> = groups.into_values().filter(|g| !g.members.is_empty()).collect();
        groups.iter_mut().for_each(|group| group.note_announcers(&applied.effects.changed_by));
        self.export(seq, unfinished, (groups, without_tick), now);
    }

    /// Prefixes of which only routes of one AS changed, by AS. Its own slots use none of these routes, so that for them the choice
    /// among the others stays; to make it anew would let them ask for the order of the recommendation as often as they like.
    fn changed_by_one_as(&self, effects: &Effects) -> BTreeMap<Asn, BTreeSet<Prefix>> {
        let mut prefixes: BTreeMap<Asn, BTreeSet<Prefix>> = BTreeMap::new();
        for (prefix, slots) in &effects.changed_by {
            let mut asns = slots.iter().filter_map(|slot| self.set.slots.get(*slot as usize)).map(|slot| slot.asn);
            if let Some(asn) = asns.next().filter(|first| asns.all(|other| other == *first)) {
                prefixes.entry(asn).or_default().insert(*prefix);
            }
        }
        prefixes
    }

    /// The prefixes for which the choice stays of a member that is sent what differs: of those of which only routes of its `own` AS
    /// changed, all that it does not lack, or has had. One that it lacks it is owed a choice for, which it has paid for: with the first such
    /// change, since the instance is another one then, which perhaps no slice lists. With no later change or slice, or a member that
    /// takes up little would have as many choices as it changes its routes.
    fn stays_while_sent(
        &mut self,
        slot: u32,
        cursor: Cursor,
        (listing, lacks, own): (&Listing, &Lack, Vec<Prefix>),
        applied: &Applied,
    ) -> Vec<Prefix> {
        let effects = &applied.effects;
        let chosen = self.chosen.entry(slot).or_default();
        let is_listed = |prefix: &&Prefix| !effects.touched.contains(prefix) && chosen.contains(prefix);
        let mut stays: Vec<Prefix> = listing.differing().iter().filter(is_listed).copied().collect();
        for prefix in own {
            let before = applied.before.get(&prefix);
            let is_owed = before.is_some_and(|hash| lacks.awaits(cursor, &prefix, hash));
            if !chosen.insert(prefix) || !is_owed {
                stays.push(prefix);
            }
        }
        stays.retain(|prefix| !listing.evaluates_again(prefix, effects));
        stays
    }

    /// Waits for rankings, but not for those who do not have their tick. Whether there is a round follows from the batch, as the
    /// peer party knows it: also if nobody is left in it.
    pub(super) fn begin_round(&mut self, seq: u64, groups: Vec<Group>, without_tick: &BTreeSet<u32>, now: Now) {
        self.stage = Stage::Idle;
        if groups.is_empty() {
            return;
        }
        let wait = self.tick + self.config.rank_wait;
        let mut round = Round::new(seq, groups, now.instant, now.instant + wait);
        without_tick.iter().for_each(|slot| round.leave(*slot));
        self.rounds.insert(seq, round);
    }

    fn delivery(receiver: u32, entry: &ObjectEntry) -> Option<Deliver> {
        let share = match entry.mode {
            ExportMode::Direct => entry.key_share(receiver)?,
            // Export-All puts it there.
            ExportMode::Mpc if receiver < entry.width => [0; 16],
            ExportMode::Mpc => return None,
        };
        Some(entry.deliver(share))
    }

    fn instance(&self, prefix: &Prefix) -> Instance {
        self.table.candidates(prefix, MAX_CANDIDATES).into()
    }
}

//! The objects of a party: those that count, those that wait for their other half, and what the stores of both parties hold of them.
//!
//! What counts changes with a batch's steps ([`Objects::apply_object`], [`Objects::expire`]) and with the comparison with the peer party
//! ([`Objects::compare`], [`Objects::conclude`]), which both parties go through alike, and in no other way. Each such change is in the
//! [`Effects`] that it is given, from which the write of the store is made: a batch is delivered only once that is durable at both.
//! After the changes of one batch the table is settled ([`Objects::finish_batch`]), which puts the new digests in place of the old ones;
//! whoever needs the old ones looks before.
//!
//! What waits is in memory alone. Its announcer sends it again if this process or its link goes.

use std::collections::{BTreeMap, BTreeSet};

use wayleave_core::{Instant, Prefix, UnixTime};

use super::OlderStore;
use super::env::Env;
use super::membership::Membership;
use super::recent::RecentChanges;
use super::reconcile::{Conclusion, PeerInventory, StoreState};
use super::store::{self, Change};
use super::waiting::{Pending, PendingObject, Waiting, octets};
use crate::competition::CompetitionChange;
use crate::digests::{BucketDigests, BucketSet, Digest, InstanceHash, Roots, bucket_of};
use crate::frames::{Difference, DroppedObject, InventoryRow, LostObject, Refusal, Seq, Step};
use crate::leaps::{Heard, is_leap};
use crate::object::{ExportMode, Header, Kind, MAX_BLOB};
use crate::object_table::{Effects, ObjectEntry, ObjectTable, Part, Snapshot};
use crate::order::OrderKey;

pub(super) struct Objects {
    table: ObjectTable,
    waiting: Waiting,
    /// What changed with the latest batches.
    recent: RecentChanges,
    /// The last batch that was applied, and what it replaced, while the parties have agreed on nothing since.
    applied: Seq,
    replaced: Vec<LostObject>,
    /// What this party's store holds, and what the peer party's does at least.
    store: StoreState,
    /// The last time one of the two came with an older one.
    older_store: Option<(OlderStore, Instant)>,
}

impl Objects {
    /// With what the store held.
    pub(super) fn new(table: ObjectTable, replaced: Vec<LostObject>, store: StoreState) -> Self {
        let (waiting, recent, applied) = (Waiting::default(), RecentChanges::default(), store.stored);
        Self { table, waiting, recent, applied, replaced, store, older_store: None }
    }

    pub(super) fn table(&self) -> &ObjectTable {
        &self.table
    }

    pub(super) fn recent(&self) -> &RecentChanges {
        &self.recent
    }

    /// The last batch that was applied.
    pub(super) fn applied(&self) -> Seq {
        self.applied
    }

    /// Slots that announce something.
    pub(super) fn announcers(&self) -> BTreeSet<u32> {
        self.table.entries().map(|entry| entry.header.description.slot).collect()
    }
}

// What waits.
impl Objects {
    pub(super) fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    pub(super) fn pending(&self) -> &Pending {
        self.waiting.objects()
    }

    /// Lets an object wait that has been checked ([`Objects::check`]). Nothing older of its slot is taken from then on.
    pub(super) fn add_pending(&mut self, slot: u32, object: PendingObject) {
        let version = object.header.description.version;
        self.table.saw(slot, version);
        self.waiting.insert(slot, version, object);
    }

    /// What was taken waits again.
    pub(super) fn put_back(&mut self, slot: u32, version: u64, object: PendingObject) {
        self.waiting.insert(slot, version, object);
    }

    pub(super) fn take_pending(&mut self, slot: u32, version: u64) -> Option<PendingObject> {
        self.waiting.take(slot, version)
    }

    /// Takes all that waits of a slot.
    pub(super) fn take_all_pending(&mut self, slot: u32) -> BTreeMap<u64, PendingObject> {
        self.waiting.take_all(slot)
    }

    /// What waits is given time again for its other half.
    pub(super) fn restart_waits(&mut self, now: Instant) {
        self.waiting.restart(now);
    }

    /// Checks an object, but for its signature, as far as one party can. `max_blob`: octets of the largest blob that is taken.
    ///
    /// # Errors
    /// Why it is refused.
    pub(super) fn check(
        &self,
        (slot, header): (u32, &Header),
        (part, column): (Option<&Part>, Option<&[u8]>),
        (env, membership): (&Env, &Membership),
        max_blob: u32,
    ) -> Result<(), Refusal> {
        let (description, config) = (&header.description, &env.config);
        if membership.set().active(slot).is_none() {
            return Err(Refusal::Set);
        }
        if description.slot != slot {
            return Err(Refusal::Proof);
        }
        // One that leaps would end what the slot can announce, also once whoever sent it has been replaced by its member's own software.
        if description.version <= self.table.high_water(slot)
            || is_leap(description.version, Heard::Used, env.clocks.unix)
        {
            return Err(Refusal::OldVersion);
        }
        if !membership.takes_epoch(description.epoch, env.now(), config.match_wait) {
            return Err(Refusal::Epoch);
        }
        let width = membership.width_of(description.set, env.now(), config.match_wait).ok_or(Refusal::Set)?;
        if !self.waiting.has_room(slot, octets(part, column), config.max_waiting) {
            return Err(Refusal::Busy);
        }
        match (&description.kind, part) {
            (Kind::Announce { .. }, Some(part)) => match part {
                Part::One { share, blob, .. } => {
                    if blob.len() > MAX_BLOB || !blob.len().is_power_of_two() || blob.len() < 512 {
                        return Err(Refusal::Size);
                    }
                    if blob.len() > max_blob as usize {
                        return Err(Refusal::BlobSize);
                    }
                    if !share.matches(header) || crate::object::blob_hash(blob) != header.blob_hash {
                        return Err(Refusal::Proof);
                    }
                }
                Part::Two { row } if row.len() != config.export.row_bytes(width) => return Err(Refusal::Size),
                Part::Two { .. } => {}
            },
            (Kind::Withdraw { .. }, None) if column.is_none() => {}
            (Kind::Column { from, to, versions }, None) => {
                let expected = versions.len() * config.export.column_bytes(to - from);
                // Only party 2 gets the shares of a column: party 1 derives its own from the seed that it holds.
                let fits = match (env.is_party_one(), column) {
                    (false, Some(row)) => row.len() == expected,
                    (is_one, None) => is_one,
                    (true, Some(_)) => false,
                };
                if !fits || *to != width {
                    return Err(Refusal::Size);
                }
            }
            _ => return Err(Refusal::Size),
        }
        Ok(())
    }
}

// What counts.
impl Objects {
    /// Applies an object of a batch.
    ///
    /// # Errors
    /// What is wrong with the batch.
    pub(super) fn apply_object(
        &mut self,
        object: PendingObject,
        (exchange, mode): (&str, ExportMode),
        membership: &Membership,
        effects: &mut Effects,
    ) -> Result<(), &'static str> {
        let header = &object.header;
        match &header.description.kind {
            Kind::Announce { .. } => {
                let width = membership.width_under(header.description.set).ok_or("an unknown member set")?;
                let entry = ObjectEntry {
                    handle: header.description.handle(exchange),
                    digest: object.digest,
                    mode,
                    width,
                    dead: BTreeSet::new(),
                    part: object.part.ok_or("an announcement without its part")?,
                    header: object.header,
                    since: Vec::new(),
                };
                self.table.announce(entry, effects);
            }
            Kind::Withdraw { .. } => self.table.withdraw(header, effects),
            Kind::Column { .. } => self.table.column(header, object.column.as_deref(), effects),
        }
        Ok(())
    }

    /// Removes so many objects of a slot.
    pub(super) fn expire(&mut self, slot: u32, most: u32, effects: &mut Effects) {
        self.table.expire(slot, most as usize, effects);
    }

    /// Forgets so many lost objects.
    pub(super) fn forget(&mut self, most: u32, effects: &mut Effects) {
        self.table.forget_lost(most as usize, effects);
    }

    /// Ends the routes of a slot that is no member's any more, and drops what waits of it. What is stored is removed with batches.
    pub(super) fn end(&mut self, slot: u32) {
        self.table.end(slot);
        self.waiting.take_all(slot);
    }

    /// The instances of prefixes whose candidates a batch changed, as they were before: until [`Objects::finish_batch`].
    pub(super) fn instances_before(&self, effects: &Effects) -> BTreeMap<Prefix, InstanceHash> {
        let before = |prefix: &Prefix| Some((*prefix, self.table.instance_of(prefix)?));
        effects.touched.iter().filter_map(before).collect()
    }

    /// The steps of a batch are being applied.
    pub(super) fn begin_batch(&mut self, seq: u64) {
        self.table.begin_batch(seq);
    }

    /// All steps of a batch are applied. Returns what makes the store equal to the table again.
    pub(super) fn finish_batch(&mut self, seq: u64, steps: &[Step], effects: &Effects, epoch: u64) -> Vec<Change> {
        self.table.settle();
        self.table.extend_view(seq, steps);
        let changed = effects.added.iter().chain(&effects.marked).copied();
        let changed = changed.chain(effects.widened.iter().map(|(slot, version, ..)| (*slot, *version)));
        let handles = changed.filter_map(|(slot, version)| Some(self.table.entry(slot, version)?.handle));
        let handles = handles.chain(effects.removed.iter().map(|(.., handle)| *handle));
        let objects = handles.map(|handle| bucket_of(&handle.0)).collect();
        (self.applied, self.replaced) = (seq, effects.replaced_objects());
        // Also those that are listed as they were: somebody may lack the result.
        let listed = effects.touched.iter().chain(&effects.relisted).chain(&effects.opened);
        let mut instances: Vec<u16> =
            listed.filter_map(|prefix| Some(bucket_of(&self.table.instance_of(prefix)?))).collect();
        instances.extend(self.table.take_changed());
        self.recent.note(seq, [objects, instances]);
        let mut changes = self.changes(effects, epoch, seq);
        changes.push(store::replaced_change(&self.replaced));
        changes
    }

    pub(super) fn changes(&self, effects: &Effects, epoch: u64, seq: u64) -> Vec<Change> {
        store::changes(&self.table, effects, epoch, seq)
    }

    pub(super) fn view(&self) -> [u8; 32] {
        self.table.view()
    }
}

// The order of candidates.
impl Objects {
    /// The parties agree on the key of the order.
    pub(super) fn set_order(&mut self, key: OrderKey) {
        self.table.set_order(key);
    }

    /// Of each slot, which of its routes compete no more, or do again, since this was last asked.
    pub(super) fn take_competition(&mut self) -> BTreeMap<u32, CompetitionChange> {
        self.table.take_competition()
    }
}

// The comparison with the peer party.
impl Objects {
    /// The peer party has seen these versions, of the `slots` that there are: none up to them is taken any more.
    ///
    /// # Errors
    /// One is of another slot, or so high that its slot could announce nothing more.
    pub(super) fn saw(
        &mut self,
        high_water: &[(u32, u64)],
        slots: usize,
        (heard, now): (Heard, UnixTime),
    ) -> Result<(), &'static str> {
        if high_water.iter().any(|(slot, _)| *slot as usize >= slots) {
            return Err("a version of a slot that there is not");
        }
        let is_leap =
            |(slot, version): &(u32, u64)| *version > self.table.high_water(*slot) && is_leap(*version, heard, now);
        if high_water.iter().any(is_leap) {
            return Err("a version that no member can have come to");
        }
        for (slot, version) in high_water {
            self.table.saw(*slot, *version);
        }
        Ok(())
    }

    /// Drops here what the peer party lacks; returns what it must drop, and where widths or dead places differ. What neither knows to be
    /// withdrawn or replaced is lost, here since `now`.
    pub(super) fn compare(
        &mut self,
        theirs: &PeerInventory,
        now: u64,
        effects: &mut Effects,
    ) -> (Vec<DroppedObject>, Vec<Difference>) {
        let rows: BTreeMap<(u32, u64), &InventoryRow> =
            theirs.rows.iter().map(|row| ((row.slot, row.version), row)).collect();
        let applied: BTreeMap<u32, u64> = theirs.applied.iter().copied().collect();
        let mut differ = Vec::new();
        for row in self.table.inventory() {
            let key @ (slot, version) = (row.slot, row.version);
            match rows.get(&key) {
                Some(their) if their.digest == row.digest => {
                    if their.dead == row.dead && their.width == row.width {
                        continue;
                    }
                    let dead: BTreeSet<u16> = their.dead.iter().chain(&row.dead).copied().collect();
                    let difference = (slot, version, row.width.min(their.width), dead.into_iter().collect());
                    self.settle_difference(&difference, now, effects);
                    differ.push(difference);
                }
                _ => {
                    // What the peer party has applied, and has no more, was withdrawn or replaced there.
                    let is_known = applied.get(&slot).is_some_and(|through| version <= *through);
                    self.lose(key, now, !is_known, effects);
                }
            }
        }
        let lacks = |key: &&(u32, u64)| {
            let same = |entry: &ObjectEntry| entry.digest == rows[*key].digest;
            !self.table.entry(key.0, key.1).is_some_and(same)
        };
        let dropped = |(slot, version): &(u32, u64)| (*slot, *version, self.table.applied_of(*slot) < *version);
        (rows.keys().filter(lacks).map(dropped).collect(), differ)
    }

    /// Does at party 2 what party 1 concluded from both inventories.
    pub(super) fn conclude(&mut self, conclusion: &Conclusion, now: u64, effects: &mut Effects) {
        for (slot, version, is_lost) in &conclusion.drop {
            self.lose((*slot, *version), now, *is_lost, effects);
        }
        for difference in &conclusion.differ {
            self.settle_difference(difference, now, effects);
        }
    }

    /// Drops an object, which may be lost.
    fn lose(&mut self, key: (u32, u64), now: u64, is_lost: bool, effects: &mut Effects) {
        let lost = self.table.as_lost(key, (0, now), |_| is_lost);
        self.table.drop_object(key.0, key.1, effects);
        lost.into_iter().for_each(|lost| self.table.add_lost(lost, effects));
    }

    fn settle_difference(&mut self, difference: &Difference, now: u64, effects: &mut Effects) {
        let (slot, version, width, dead) = difference;
        let is_wider = self.table.entry(*slot, *version).is_some_and(|entry| entry.width > *width);
        // For the slots that only this party's row covered.
        let lost = || self.table.as_lost((*slot, *version), (*width, now), |index| !dead.contains(&index));
        let lost = is_wider.then(lost).flatten();
        self.table.narrow(*slot, *version, *width);
        self.table.mark_dead(*slot, *version, dead, effects);
        effects.marked.insert((*slot, *version));
        lost.into_iter().for_each(|lost| self.table.add_lost(lost, effects));
    }

    /// What was lost before is what the peer party says: this party's store is an older copy.
    pub(super) fn forget_all_lost(&mut self, effects: &mut Effects) {
        self.table.forget_lost(usize::MAX, effects);
    }

    /// What this party's last batch replaced is lost with it: the peer party does not have that batch, and its announcer was not told of it.
    pub(super) fn lose_replaced(&mut self, now: u64, effects: &mut Effects) {
        for object in std::mem::take(&mut self.replaced) {
            self.table.add_lost(LostObject { since: now, ..object }, effects);
        }
    }

    /// The peer party's lost objects are this party's, too.
    pub(super) fn add_lost(&mut self, objects: Vec<LostObject>, effects: &mut Effects) {
        objects.into_iter().for_each(|object| self.table.add_lost(object, effects));
        self.table.settle_lost(effects);
        self.table.note_lost_in_view();
    }

    /// Both parties have the same objects; their views begin anew.
    pub(super) fn reset_view(&mut self, epoch: u64, directory: &[u8; 32]) {
        self.table.reset_view(epoch, directory);
    }

    /// Both agree, as of the batch `seq`. Returns what makes the store equal to the table again.
    pub(super) fn agreed(&mut self, effects: &Effects, epoch: u64, seq: u64) -> Vec<Change> {
        self.table.settle();
        self.table.take_changed();
        // Members are not served, and are compared.
        self.table.take_competition();
        self.recent.begin(seq);
        self.replaced.clear();
        let mut changes = self.changes(effects, epoch, seq);
        changes.push(store::replaced_change(&[]));
        changes
    }
}

// What the stores hold.
impl Objects {
    pub(super) fn store(&self) -> StoreState {
        self.store
    }

    /// This party's store holds the batch.
    pub(super) fn note_stored(&mut self, seq: u64) {
        self.store.stored = seq;
    }

    /// The peer party's store does.
    pub(super) fn note_agreed(&mut self, seq: u64) {
        self.store.agreed = seq;
    }

    pub(super) fn note_older_store(&mut self, older: OlderStore, now: Instant) {
        self.older_store = Some((older, now));
    }

    pub(super) fn older_store(&self) -> Option<&(OlderStore, Instant)> {
        self.older_store.as_ref()
    }
}

// Digests of what a member is to have. They are computed when somebody asks, and kept: that changes nothing else.
impl Objects {
    pub(super) fn roots(&mut self, slot: u32) -> Roots {
        self.table.roots(slot)
    }

    pub(super) fn own_digest(&mut self, slot: u32) -> Digest {
        self.table.own_digest(slot)
    }

    pub(super) fn snapshot(&mut self) -> Snapshot {
        self.table.snapshot()
    }

    /// The buckets of objects, and of instances, in which what a member holds is not what it is to have.
    pub(super) fn differing(
        &mut self,
        slot: u32,
        objects: &BucketDigests,
        instances: &BucketDigests,
    ) -> [BucketSet; 2] {
        self.table.differing(slot, objects, instances)
    }
}

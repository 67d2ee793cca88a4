//! What a party stores: live objects, who owns which prefix, and the view that both parties must share.
//!
//! The same code runs at both parties on the same steps, so that they reach the same view or notice that they did not.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::iter;
use std::ops::Bound;
use std::sync::Arc;

use wayleave_bgp::Nlri;
use wayleave_core::Prefix;
use wayleave_core::wire::{Wire, Writer};
use wayleave_crypto::hash::hash;

use crate::competition::{CompetitionChange, NonCompetingRoutes, Route, Routes, competing, first_paths};
use crate::digests::{self, BUCKETS, BucketDigests, BucketSet, Digest, InstanceHash, Roots, bounds, bucket_of};
use crate::frames::{
    Body, Candidate, Deliver, InventoryRow, LostObject, MAX_CANDIDATES, OwnObject, Seq, SessionId, Step,
};
use crate::lost::LostObjects;
use crate::object::{self, ExportMode, Handle, Header, Kind, ShareOne};
use crate::object_buckets::ObjectBuckets;
use crate::order::{Number, OrderKey, OrderPosition};

/// Digests of buckets that are hashed in the time of one object, about.
const BUCKETS_PER_OBJECT: u64 = 8;
const LABEL_VIEW: &str = "wayleave/route-server/view/v1";

/// What a party holds of an announcement besides its header. The two parties' parts are never in one process.
#[derive(Clone)]
pub enum Part {
    /// Party 1: the seed of its row, the columns that extended it, and the blob.
    One {
        share: ShareOne,
        /// The first slot and the salt of each, ascending.
        columns: Vec<(u32, [u8; 32])>,
        /// The sealed route.
        blob: Arc<[u8]>,
    },
    /// Party 2: its row ([`ShareTwo::row`](crate::object::ShareTwo::row)).
    Two { row: Vec<u8> },
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::One { .. } => "Part::One(..)",
            Self::Two { .. } => "Part::Two(..)",
        })
    }
}

/// A stored object.
#[derive(Clone, Debug)]
pub struct ObjectEntry {
    /// As the announcer signed it.
    pub header: Arc<Header>,
    /// [`Header::digest`].
    pub digest: [u8; 32],
    pub handle: Handle,
    /// How key and policy are shared.
    pub mode: ExportMode,
    /// Slots that its row covers.
    pub width: u32,
    /// Which of its prefixes are dead: superseded or withdrawn.
    pub dead: BTreeSet<u16>,
    pub part: Part,
    /// Since which batches slots have it: from a slot on, ascending. Empty for what is older than this life of the party.
    pub since: Vec<(u32, Seq)>,
}

impl ObjectEntry {
    /// The batch that brought it to all members in `slot` that were served.
    #[must_use]
    pub fn since(&self, slot: u32) -> Seq {
        self.since.iter().rev().find(|(from, _)| *from <= slot).map_or(0, |(_, seq)| *seq)
    }

    /// The check of its dead prefixes ([`digests::dead_check`]).
    #[must_use]
    pub fn dead_check(&self, session: &SessionId) -> u32 {
        digests::dead_check(session, &self.handle, self.dead.iter().copied())
    }

    /// This party's share of what `slot` gets in mode `direct`, key or dummy; `None` if the row does not cover the slot, and in mode
    /// `mpc`, in which the parties compute it.
    #[must_use]
    pub fn key_share(&self, slot: u32) -> Option<[u8; 16]> {
        if slot >= self.width || self.mode == ExportMode::Mpc {
            return None;
        }
        match &self.part {
            Part::One { share, columns, .. } => {
                let column = columns.iter().rev().find(|(from, _)| *from <= slot);
                Some(share.key_share(column.map(|(_, salt)| salt), slot))
            }
            Part::Two { row } => row.get(slot as usize * 16..)?.first_chunk().copied(),
        }
    }

    /// In mode `mpc`, this party's shares of the key, and of the policy, one bit a slot; `None` in mode `direct`.
    #[must_use]
    pub fn factors(&self) -> Option<([u8; 16], Vec<u8>)> {
        if self.mode == ExportMode::Direct {
            return None;
        }
        match &self.part {
            Part::One { share, columns, .. } => {
                let first = columns.first().map_or(self.width, |(from, _)| *from);
                let mut policy = object::policy_mask(&share.seed, None, first);
                for (i, (from, salt)) in columns.iter().enumerate() {
                    let to = columns.get(i + 1).map_or(self.width, |(next, _)| *next);
                    let slots = to.saturating_sub(*from);
                    append_bits(&mut policy, *from, &object::policy_mask(&share.seed, Some(salt), slots), slots);
                }
                Some((object::key_mask(&share.seed), policy))
            }
            Part::Two { row } => row.split_first_chunk().map(|(key, policy)| (*key, policy.to_vec())),
        }
    }

    /// What a receiver whose share this is gets.
    #[must_use]
    pub fn deliver(&self, share: [u8; 16]) -> Deliver {
        let epoch = self.header.description.epoch;
        Deliver { handle: self.handle, epoch, share, dead: self.dead_indices(), body: self.body() }
    }

    /// What receivers get of the blob from this party.
    #[must_use]
    pub fn body(&self) -> Body {
        match &self.part {
            Part::One { blob, .. } => Body::Blob(Arc::clone(blob)),
            Part::Two { .. } => Body::Hash(self.header.blob_hash),
        }
    }

    /// Octets of its blob, which party 1 has.
    #[must_use]
    pub fn octets(&self) -> u64 {
        match &self.part {
            Part::One { blob, .. } => blob.len() as u64,
            Part::Two { .. } => 0,
        }
    }

    /// Prefixes that it still owns, in order.
    pub fn live(&self) -> impl Iterator<Item = &Nlri> {
        let prefixes = self.header.description.prefixes().iter();
        (0u16..).zip(prefixes).filter(|(index, _)| !self.dead.contains(index)).map(|(_, nlri)| nlri)
    }

    /// Indices of dead prefixes, ascending.
    #[must_use]
    pub fn dead_indices(&self) -> Vec<u16> {
        self.dead.iter().copied().collect()
    }

    /// This party's row from slot 0: all that it sees of the policy.
    #[must_use]
    pub fn row(&self) -> Vec<u8> {
        if let Some((key, policy)) = self.factors() {
            return [&key[..], &policy].concat();
        }
        match &self.part {
            Part::One { share, columns, .. } => {
                let first = columns.first().map_or(self.width, |(from, _)| *from);
                let mut row = object::expand(&share.seed, None, 0, first);
                for (i, (from, salt)) in columns.iter().enumerate() {
                    let to = columns.get(i + 1).map_or(self.width, |(next, _)| *next);
                    row.extend(object::expand(&share.seed, Some(salt), *from, to));
                }
                row
            }
            Part::Two { row } => row.clone(),
        }
    }
}

/// What applying steps changed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Effects {
    /// New objects, (slot, version).
    pub added: Vec<(u32, u64)>,
    /// Objects without a live prefix.
    pub removed: Vec<(u32, u64, Handle)>,
    /// Live objects with newly dead prefixes.
    pub marked: BTreeSet<(u32, u64)>,
    /// Objects that a column widened: (slot, version, old width, new width).
    pub widened: Vec<(u32, u64, u32, u32)>,
    /// Prefixes of objects that died, in order.
    pub dead: Vec<Candidate>,
    /// Prefixes whose candidates changed.
    pub touched: BTreeSet<Prefix>,
    /// Of each of these, the slots whose routes changed.
    pub changed_by: BTreeMap<Prefix, BTreeSet<u32>>,
    /// Prefixes that are evaluated again though their candidates are the same.
    pub relisted: BTreeSet<Prefix>,
    /// Prefixes of the objects in `widened`, which are new to the new slots only.
    pub opened: BTreeSet<Prefix>,
    /// Versions applied, per slot.
    pub applied: BTreeMap<u32, Vec<u64>>,
    /// Routes that objects replaced, and nothing withdrew, by slot: the first object that was replaced, by version and handle, and the prefix's
    /// index in it.
    pub replaced: BTreeMap<(u32, Nlri), (u64, Handle, u16)>,
    /// Lost objects that are new, or of which something is not lost any more, (slot, version).
    pub lost: BTreeSet<(u32, u64)>,
    /// Prefixes that are lost no more for the slots from one on, and live for those below.
    pub not_lost: Vec<(Candidate, u32)>,
}

impl Effects {
    /// What was replaced, as objects.
    pub(crate) fn replaced_objects(&self) -> Vec<LostObject> {
        let mut objects: BTreeMap<(u32, u64), LostObject> = BTreeMap::new();
        for ((slot, nlri), (version, handle, index)) in &self.replaced {
            let (slot, version, handle) = (*slot, *version, *handle);
            let object = LostObject { slot, version, handle, since: 0, prefixes: Vec::new() };
            objects.entry((slot, version)).or_insert(object).prefixes.push((*index, 0, *nlri));
        }
        objects.into_values().collect()
    }

    /// A route of `slot` to the prefix came or went.
    fn touch(&mut self, prefix: Prefix, slot: u32) {
        self.touched.insert(prefix);
        self.changed_by.entry(prefix).or_default().insert(slot);
    }
}

/// The objects of one exchange at one party.
#[derive(Default)]
pub struct ObjectTable {
    objects: BTreeMap<(u32, u64), ObjectEntry>,
    by_handle: BTreeMap<Handle, (u32, u64)>,
    by_prefix: BTreeMap<Prefix, Routes>,
    /// All prefixes of that, in an order that says nothing of them.
    places: BTreeSet<OrderPosition>,
    /// Numbers candidates. Without it, as before the parties have agreed on one, nothing is listed for anybody.
    order: Option<OrderKey>,
    /// Routes that do not compete.
    outside: NonCompetingRoutes,
    /// Candidates that were numbered so far.
    numbered: u64,
    /// The batch that is applied, or was last.
    seq: Seq,
    prefixes_of: BTreeMap<u32, usize>,
    /// At party 1: octets of the blobs of each slot.
    octets_of: BTreeMap<u32, u64>,
    high_water: BTreeMap<u32, u64>,
    /// The highest version applied from each slot: of what is not above it and not here it is known that it is withdrawn or replaced.
    applied_through: BTreeMap<u32, u64>,
    lost: LostObjects,
    /// Slots that were removed: what they announced is no candidate and is delivered no more, until all of it has been removed.
    ended: BTreeSet<u32>,
    /// Those of them of which something is left.
    ending: BTreeSet<u32>,
    view: [u8; 32],
    digests: DigestCache,
}

/// The digests of what members were to have at one time.
pub struct Snapshot {
    objects: ObjectBuckets,
    /// The same for all members.
    instances: Digest,
}

impl Snapshot {
    /// What the member in a slot was to have, if it is known.
    #[must_use]
    pub fn roots(&self, slot: u32) -> Option<Roots> {
        Some(Roots { objects: self.objects.known_root(slot)?, instances: self.instances })
    }
}

/// What members that have everything hold, by buckets, and digests of it. Only what changed is hashed again, once for all members.
struct DigestCache {
    objects: ObjectBuckets,
    /// The instance of each prefix, as it was when [`ObjectTable::settle`] was last called, and since which batch it has it.
    instance_of: BTreeMap<Prefix, (InstanceHash, Seq)>,
    by_instance: BTreeMap<InstanceHash, Prefix>,
    /// Of each bucket of instances, unless it changed since.
    instances: Vec<Option<Option<Digest>>>,
    all_instances: Option<Digest>,
    /// Prefixes whose candidates changed since.
    unsettled: Vec<Prefix>,
    /// Buckets of instances that changed, until somebody takes note of them.
    changed: Vec<u16>,
    /// Of the own objects of a slot, unless they changed since.
    own: BTreeMap<u32, Digest>,
    /// Instances, objects of announcers, and candidates that went into digests so far, and buckets in the time of as many.
    hashed: u64,
}

impl Default for DigestCache {
    fn default() -> Self {
        Self {
            objects: ObjectBuckets::default(),
            instance_of: BTreeMap::new(),
            by_instance: BTreeMap::new(),
            instances: vec![None; usize::from(BUCKETS)],
            all_instances: None,
            unsettled: Vec::new(),
            changed: Vec::new(),
            own: BTreeMap::new(),
            hashed: 0,
        }
    }
}

impl DigestCache {
    /// A prefix has another instance since a batch, or none.
    fn instance_changed(&mut self, prefix: Prefix, hash: Option<InstanceHash>, seq: Seq) {
        let before = self.instance_of.get(&prefix).map(|(hash, _)| *hash);
        if before == hash {
            return;
        }
        match hash {
            Some(hash) => self.instance_of.insert(prefix, (hash, seq)),
            None => self.instance_of.remove(&prefix),
        };
        if let Some(before) = before {
            self.by_instance.remove(&before);
        }
        self.by_instance.extend(hash.map(|hash| (hash, prefix)));
        for changed in before.iter().chain(&hash).map(bucket_of) {
            self.instances[usize::from(changed)] = None;
            self.changed.push(changed);
        }
        self.all_instances = None;
    }
}

impl ObjectTable {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A stored object.
    #[must_use]
    pub fn entry(&self, slot: u32, version: u64) -> Option<&ObjectEntry> {
        self.objects.get(&(slot, version))
    }

    /// All objects by (slot, version).
    pub fn entries(&self) -> impl Iterator<Item = &ObjectEntry> {
        self.objects.values()
    }

    /// Number of objects.
    #[must_use]
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether nothing is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// The objects of `slot` from `version` on, in order.
    pub fn objects_of(&self, slot: u32, version: u64) -> impl Iterator<Item = &ObjectEntry> {
        self.objects.range((slot, version)..=(slot, u64::MAX)).map(|(_, entry)| entry)
    }

    /// Prefixes with a live route from `from` on, in the order of their places.
    pub fn places_from(&self, from: Option<OrderPosition>) -> impl Iterator<Item = &OrderPosition> {
        self.places.range((from.map_or(Bound::Unbounded, Bound::Included), Bound::Unbounded))
    }

    /// Where a prefix stands.
    fn place_of(&self, prefix: &Prefix) -> OrderPosition {
        self.order.as_ref().map_or((0, *prefix), |key| key.place(prefix))
    }

    /// How many live routes of a prefix compete.
    #[must_use]
    pub fn routes_of(&self, prefix: &Prefix) -> usize {
        self.by_prefix.get(prefix).map_or(0, |routes| first_paths(routes).count())
    }

    /// Routes of a slot to a prefix, whether they compete or not.
    pub fn paths_of(&self, slot: u32, prefix: &Prefix) -> usize {
        self.by_prefix.get(prefix).map_or(0, |routes| routes.range((slot, 0)..=(slot, u32::MAX)).count())
    }

    /// Slots with live routes of a prefix, ascending, one for each route.
    pub fn announcers_of(&self, prefix: &Prefix) -> impl Iterator<Item = u32> {
        self.by_prefix.get(prefix).into_iter().flat_map(|routes| routes.keys().map(|(slot, _)| *slot))
    }

    /// Live prefixes that `slot` announces.
    #[must_use]
    pub fn prefixes_of(&self, slot: u32) -> usize {
        self.prefixes_of.get(&slot).copied().unwrap_or(0)
    }

    /// Octets of the blobs that are stored for `slot`, at party 1.
    #[must_use]
    pub fn octets_of(&self, slot: u32) -> u64 {
        self.octets_of.get(&slot).copied().unwrap_or(0)
    }

    /// The object of `slot` with its live route for `nlri`.
    #[must_use]
    pub fn owner(&self, slot: u32, nlri: &Nlri) -> Option<&ObjectEntry> {
        let route = self.by_prefix.get(&nlri.prefix)?.get(&(slot, nlri.path_id))?;
        self.objects.get(&(slot, route.version))
    }

    /// Whether `slot` has a live route for `nlri`.
    #[must_use]
    pub fn owns(&self, slot: u32, nlri: &Nlri) -> bool {
        self.by_prefix.get(&nlri.prefix).is_some_and(|routes| routes.contains_key(&(slot, nlri.path_id)))
    }

    /// The highest version applied or seen from `slot`.
    #[must_use]
    pub fn high_water(&self, slot: u32) -> u64 {
        self.high_water.get(&slot).copied().unwrap_or(0)
    }

    /// Notes that `version` was seen from `slot`, so that it is never accepted again.
    pub fn saw(&mut self, slot: u32, version: u64) {
        let mark = self.high_water.entry(slot).or_default();
        *mark = (*mark).max(version);
    }

    /// The highest version of each slot.
    #[must_use]
    pub fn high_waters(&self) -> Vec<(u32, u64)> {
        self.high_water.iter().map(|(slot, version)| (*slot, *version)).collect()
    }

    /// The view: a hash over all that was applied.
    #[must_use]
    pub fn view(&self) -> [u8; 32] {
        self.view
    }

    /// All prefixes that have a live route.
    pub fn prefixes(&self) -> impl Iterator<Item = &Prefix> {
        self.by_prefix.keys()
    }

    /// The live routes of a prefix that compete, in the order of their numbers; none of slots that have ended, and of each slot
    /// [`MAX_PATHS`](crate::frames::MAX_PATHS) at most, so that no member makes the choice among its own paths and another's routes many
    /// times as expensive.
    #[must_use]
    pub fn candidates(&self, prefix: &Prefix) -> Vec<Candidate> {
        let Some(routes) = self.by_prefix.get(prefix) else { return Vec::new() };
        let all = competing(routes, |slot| self.has_ended(slot), MAX_CANDIDATES).into_iter();
        all.map(|((slot, _), route)| (self.objects[&(*slot, route.version)].handle, route.index)).collect()
    }

    /// Candidates are numbered under this key from now on. Instances, and digests of them, follow with [`Self::settle`].
    pub fn set_order(&mut self, key: OrderKey) {
        if self.order.as_ref() == Some(&key) {
            return;
        }
        for (prefix, routes) in &mut self.by_prefix {
            self.numbered += routes.len() as u64;
            for ((slot, path_id), route) in routes {
                route.number = key.number(*slot, &Nlri { path_id: *path_id, prefix: *prefix });
            }
            self.digests.unsettled.push(*prefix);
        }
        self.places = self.by_prefix.keys().map(|prefix| key.place(prefix)).collect();
        self.order = Some(key);
    }

    /// Candidates that were numbered so far.
    #[must_use]
    pub fn numbered(&self) -> u64 {
        self.numbered
    }

    /// Which routes of each slot compete no more, or do again, since this was last asked.
    pub fn take_competition(&mut self) -> BTreeMap<u32, CompetitionChange> {
        self.outside.take_changed()
    }

    /// The last batch that changed which routes of a slot compete.
    #[must_use]
    pub fn competition_since(&self, slot: u32) -> Seq {
        self.outside.since(slot)
    }

    /// An object as its announcer is told of it.
    pub(crate) fn own_object(&self, entry: &ObjectEntry) -> OwnObject {
        let (slot, version) = (entry.header.description.slot, entry.header.description.version);
        let live: Vec<Nlri> = entry.live().copied().collect();
        let outside = live.iter().filter(|nlri| self.outside.has(slot, nlri)).copied().collect();
        OwnObject { version, width: entry.width, live, outside }
    }

    /// A live route of `slot`. Its number is the one that it had, if it replaces one.
    fn insert_route(&mut self, slot: u32, nlri: &Nlri, (version, index): (u64, u16), number: Option<Number>) {
        let number = number.unwrap_or_else(|| {
            self.numbered += u64::from(self.order.is_some());
            self.order.as_ref().map(|key| key.number(slot, nlri)).unwrap_or_default()
        });
        if !self.by_prefix.contains_key(&nlri.prefix) {
            self.places.insert(self.place_of(&nlri.prefix));
        }
        let routes = self.by_prefix.entry(nlri.prefix).or_default();
        routes.insert((slot, nlri.path_id), Route { version, index, number });
    }

    /// A live object.
    #[must_use]
    pub fn by_handle(&self, handle: &Handle) -> Option<&ObjectEntry> {
        self.by_handle.get(handle).and_then(|key| self.objects.get(key))
    }

    /// The announcer's slot of a live object.
    #[must_use]
    pub fn announcer(&self, handle: &Handle) -> Option<u32> {
        self.by_handle.get(handle).map(|(slot, _)| *slot)
    }

    /// Extends the view by the steps of a batch.
    pub fn extend_view(&mut self, seq: u64, steps: &[Step]) {
        let mut w = Writer::new();
        w.bytes(&self.view).u64(seq).list32(steps, |w, step| step.write(w));
        self.view = hash(LABEL_VIEW, &[&w.finish()]);
    }

    /// What is applied from now on is of this batch.
    pub fn begin_batch(&mut self, seq: Seq) {
        self.seq = seq;
    }

    /// Applies an announcement. `version` must be above every version of that slot that was applied.
    pub fn announce(&mut self, mut entry: ObjectEntry, effects: &mut Effects) {
        entry.since = vec![(0, self.seq)];
        let description = &entry.header.description;
        let (slot, version) = (description.slot, description.version);
        self.applied(slot, version, effects);
        effects.added.push((slot, version));
        let prefixes: Vec<Nlri> = description.prefixes().to_vec();
        self.digests.own.remove(&slot);
        self.digests.objects.added(&entry.handle, entry.width);
        self.by_handle.insert(entry.handle, (slot, version));
        *self.octets_of.entry(slot).or_default() += entry.octets();
        self.objects.insert((slot, version), entry);
        for (index, nlri) in (0u16..).zip(prefixes) {
            self.end_lost(slot, &nlri, effects);
            let before = self.supersede(slot, &nlri, effects);
            let number = before.map(|(.., number)| number);
            if let Some((version, handle, index, _)) = before {
                effects.replaced.entry((slot, nlri)).or_insert((version, handle, index));
            }
            self.insert_route(slot, &nlri, (version, index), number);
            self.count_prefix(slot);
            self.digests.unsettled.push(nlri.prefix);
            effects.touch(nlri.prefix, slot);
        }
    }

    /// Applies a withdrawal.
    pub fn withdraw(&mut self, header: &Header, effects: &mut Effects) {
        let description = &header.description;
        self.applied(description.slot, description.version, effects);
        for nlri in description.prefixes() {
            self.end_lost(description.slot, nlri, effects);
            self.supersede(description.slot, nlri, effects);
            effects.replaced.remove(&(description.slot, *nlri));
        }
    }

    /// Applies a column. `row` is party 2's; party 1's comes from the object's seed and the column's salt.
    pub fn column(&mut self, header: &Header, row: Option<&[u8]>, effects: &mut Effects) {
        let description = &header.description;
        self.applied(description.slot, description.version, effects);
        let Kind::Column { from, to, versions } = &description.kind else { return };
        for (i, version) in versions.iter().enumerate() {
            let Some(entry) = self.objects.get_mut(&(description.slot, *version)) else { continue };
            if entry.width != *from {
                continue;
            }
            match &mut entry.part {
                Part::One { columns, .. } => columns.push((*from, description.salt)),
                Part::Two { row: stored } => {
                    let run = entry.mode.column_bytes(to - from);
                    let Some(more) = row.and_then(|row| row.get(i * run..(i + 1) * run)) else { continue };
                    match entry.mode {
                        ExportMode::Direct => stored.extend_from_slice(more),
                        ExportMode::Mpc => {
                            let mut policy = stored.split_off(16.min(stored.len()));
                            append_bits(&mut policy, *from, more, to - from);
                            stored.append(&mut policy);
                        }
                    }
                }
            }
            entry.width = *to;
            entry.since.push((*from, self.seq));
            if self.lost.remove((description.slot, *version)).is_some() {
                effects.lost.insert((description.slot, *version));
            }
            self.digests.own.remove(&description.slot);
            self.digests.objects.resized(&entry.handle, *from, *to);
            effects.opened.extend(entry.live().map(|nlri| nlri.prefix));
            effects.widened.push((description.slot, *version, *from, *to));
        }
    }

    /// The slot has been removed. From now on nothing that it announced is a candidate, is delivered, or is among what members are to
    /// have; [`Self::expire`] then removes it in parts, so that each batch names a bounded part of it as dead.
    pub fn end(&mut self, slot: u32) {
        if !self.ended.insert(slot) {
            return;
        }
        if self.prefixes_of(slot) > 0 {
            self.ending.insert(slot);
        }
        self.lost.end_slot(slot);
        let objects = self.objects.range((slot, 0)..=(slot, u64::MAX));
        for (_, entry) in objects {
            self.digests.objects.removed(&entry.handle, entry.width);
            self.digests.unsettled.extend(entry.live().map(|nlri| nlri.prefix));
        }
    }

    /// Whether the slot has been removed.
    #[must_use]
    pub fn has_ended(&self, slot: u32) -> bool {
        self.ended.contains(&slot)
    }

    /// Slots that have been removed, and whose objects have not all been.
    pub fn ending(&self) -> impl Iterator<Item = u32> {
        self.ending.iter().copied()
    }

    /// Removes the first `most` objects of `slot`.
    pub fn expire(&mut self, slot: u32, most: usize, effects: &mut Effects) {
        let of_slot = self.objects_of(slot, 0).take(most);
        let live: Vec<Nlri> = of_slot.flat_map(ObjectEntry::live).copied().collect();
        for nlri in live {
            self.supersede(slot, &nlri, effects);
        }
    }

    fn count_prefix(&mut self, slot: u32) {
        *self.prefixes_of.entry(slot).or_default() += 1;
        if self.ended.contains(&slot) {
            self.ending.insert(slot);
        }
    }

    fn applied(&mut self, slot: u32, version: u64, effects: &mut Effects) {
        self.saw(slot, version);
        self.was_applied(slot, version);
        effects.applied.entry(slot).or_default().push(version);
    }

    /// Removes `nlri` from the object of `slot` that owns it, if any. Returns its version and handle, the prefix's index in it, and the number
    /// that the route had.
    fn supersede(&mut self, slot: u32, nlri: &Nlri, effects: &mut Effects) -> Option<(u64, Handle, u16, Number)> {
        let routes = self.by_prefix.get_mut(&nlri.prefix)?;
        let Route { version, index, number } = routes.remove(&(slot, nlri.path_id))?;
        if routes.is_empty() {
            self.by_prefix.remove(&nlri.prefix);
            let place = self.place_of(&nlri.prefix);
            self.places.remove(&place);
        }
        self.digests.unsettled.push(nlri.prefix);
        effects.touch(nlri.prefix, slot);
        let handle = self.objects.get(&(slot, version)).map(|entry| entry.handle);
        self.kill(slot, version, index, effects);
        Some((version, handle?, index, number))
    }

    fn kill(&mut self, slot: u32, version: u64, index: u16, effects: &mut Effects) {
        if let Some(count) = self.prefixes_of.get_mut(&slot) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.ending.remove(&slot);
            }
        }
        // What has ended is in no digest any more.
        let has_ended = self.has_ended(slot);
        let Some(entry) = self.objects.get_mut(&(slot, version)) else { return };
        entry.dead.insert(index);
        self.digests.own.remove(&slot);
        effects.dead.push((entry.handle, index));
        if entry.dead.len() == entry.header.description.prefixes().len() {
            let (handle, octets) = (entry.handle, entry.octets());
            if let Some(stored) = self.octets_of.get_mut(&slot) {
                *stored = stored.saturating_sub(octets);
            }
            if !has_ended {
                self.digests.objects.removed(&handle, entry.width);
            }
            self.objects.remove(&(slot, version));
            self.by_handle.remove(&handle);
            effects.marked.remove(&(slot, version));
            effects.removed.push((slot, version, handle));
        } else {
            if !has_ended {
                self.digests.objects.changed(&entry.handle, entry.width);
            }
            effects.marked.insert((slot, version));
        }
    }

    /// Restores an object after a restart; its dead prefixes are already marked.
    pub fn restore(&mut self, entry: ObjectEntry) {
        let description = &entry.header.description;
        let (slot, version) = (description.slot, description.version);
        self.saw(slot, version);
        for (index, nlri) in (0u16..).zip(description.prefixes()) {
            if entry.dead.contains(&index) {
                continue;
            }
            let nlri = *nlri;
            self.insert_route(slot, &nlri, (version, index), None);
            self.count_prefix(slot);
            self.digests.unsettled.push(nlri.prefix);
        }
        self.digests.own.remove(&slot);
        self.digests.objects.added(&entry.handle, entry.width);
        self.by_handle.insert(entry.handle, (slot, version));
        *self.octets_of.entry(slot).or_default() += entry.octets();
        self.objects.insert((slot, version), entry);
    }

    /// Notes that everything up to a version was applied from `slot`.
    pub fn was_applied(&mut self, slot: u32, version: u64) {
        let through = self.applied_through.entry(slot).or_default();
        *through = (*through).max(version);
    }

    /// The highest version that was applied from each slot.
    #[must_use]
    pub fn applied_through(&self) -> Vec<(u32, u64)> {
        self.applied_through.iter().map(|(slot, version)| (*slot, *version)).collect()
    }

    /// The same of one slot.
    pub(crate) fn applied_of(&self, slot: u32) -> u64 {
        self.applied_through.get(&slot).copied().unwrap_or(0)
    }

    pub(crate) fn lost(&self) -> &LostObjects {
        &self.lost
    }

    /// What is lost with an object for the slots from one on: some of its live prefixes, by index.
    pub(crate) fn as_lost(
        &self,
        (slot, version): (u32, u64),
        (from, since): (u32, u64),
        is_lost: impl Fn(u16) -> bool,
    ) -> Option<LostObject> {
        let entry = self.objects.get(&(slot, version))?;
        let prefixes = (0u16..).zip(entry.header.description.prefixes()).map(|(index, nlri)| (index, from, *nlri));
        let prefixes = prefixes.filter(|(index, ..)| !entry.dead.contains(index) && is_lost(*index)).collect();
        Some(LostObject { slot, version, handle: entry.handle, since, prefixes })
    }

    /// An object is lost, as this party found, or as its store or the peer party says. What lives is not lost, and one that would be
    /// another than is known is passed over.
    pub(crate) fn add_lost(&mut self, object: LostObject, effects: &mut Effects) {
        let key = (object.slot, object.version);
        let of_handle = self.lost.by_handle(object.handle).next().filter(|known| known.handle == object.handle);
        let is_other = of_handle.is_some_and(|known| (known.slot, known.version) != key)
            || self.lost.get(key.0, key.1).is_some_and(|known| known.handle != object.handle)
            || self.by_handle.get(&object.handle).is_some_and(|known| *known != key);
        if is_other {
            return;
        }
        self.digests.own.remove(&object.slot);
        self.lost.add(if self.has_ended(object.slot) { LostObject { since: 0, ..object } } else { object });
        effects.lost.insert(key);
    }

    /// What lives is not lost, nor what would be too much. Both parties have the same objects, and know of the same lost ones.
    pub(crate) fn settle_lost(&mut self, effects: &mut Effects) {
        let objects = &self.objects;
        let changed = self.lost.retain(|object, (index, from, _)| {
            let entry = objects.get(&(object.slot, object.version));
            entry.is_none_or(|entry| *from >= entry.width || entry.dead.contains(index))
        });
        for (slot, _) in &changed {
            self.digests.own.remove(slot);
        }
        effects.lost.extend(changed);
    }

    /// The announcer said what became of its route to a prefix, of which nothing else was known.
    fn end_lost(&mut self, slot: u32, nlri: &Nlri, effects: &mut Effects) {
        for ended in self.lost.end(slot, nlri) {
            self.digests.own.remove(&slot);
            effects.lost.insert((slot, ended.version));
            // Where both parties have it for some, it is dead for all once it is replaced there.
            if ended.from == 0 {
                effects.dead.push((ended.handle, ended.index));
            }
        }
    }

    /// Forgets so many lost objects: those that were lost first.
    pub(crate) fn forget_lost(&mut self, most: usize, effects: &mut Effects) {
        for _ in 0..most {
            let Some(object) = self.lost.take_oldest() else { return };
            self.digests.own.remove(&object.slot);
            effects.lost.insert((object.slot, object.version));
            let (whole, part): (Vec<_>, Vec<_>) = object.candidates().partition(|(_, from)| *from == 0);
            effects.dead.extend(whole.into_iter().map(|(candidate, _)| candidate));
            effects.not_lost.extend(part);
        }
    }

    /// The objects of `slot` from a version on, as it is told of them: also those that are lost, which nobody has.
    pub(crate) fn own_of(&self, slot: u32, version: u64) -> impl Iterator<Item = OwnObject> {
        let mut live = self.objects_of(slot, version).peekable();
        let lost = self.lost.of(slot, version).filter(move |object| self.entry(slot, object.version).is_none());
        let mut lost = lost.peekable();
        iter::from_fn(move || {
            let next = live.peek().map(|entry| entry.header.description.version);
            let is_lost = |object: &&LostObject| next.is_none_or(|next| object.version < next);
            lost.next_if(is_lost).map(LostObject::as_own).or_else(|| live.next().map(|entry| self.own_object(entry)))
        })
    }

    /// The inventory that the parties compare when their link comes up.
    #[must_use]
    pub fn inventory(&self) -> Vec<InventoryRow> {
        self.inventory_from((0, 0), usize::MAX)
    }

    /// At most so many rows of the same from (slot, version) on.
    #[must_use]
    pub fn inventory_from(&self, from: (u32, u64), most: usize) -> Vec<InventoryRow> {
        let row = |((slot, version), entry): (&(u32, u64), &ObjectEntry)| InventoryRow {
            slot: *slot,
            version: *version,
            digest: entry.digest,
            width: entry.width,
            dead: entry.dead_indices(),
        };
        self.objects.range(from..).map(row).take(most).collect()
    }

    /// Drops an object that the peer party does not have.
    pub fn drop_object(&mut self, slot: u32, version: u64, effects: &mut Effects) {
        let Some(entry) = self.objects.get(&(slot, version)) else { return };
        let indices = u16::try_from(entry.header.description.prefixes().len()).unwrap_or(u16::MAX);
        let all: Vec<u16> = (0..indices).collect();
        self.mark_dead(slot, version, &all, effects);
    }

    /// Marks prefixes of an object dead, by index.
    pub fn mark_dead(&mut self, slot: u32, version: u64, indices: &[u16], effects: &mut Effects) {
        for &index in indices {
            let Some(entry) = self.objects.get(&(slot, version)) else { return };
            let Some(nlri) = entry.header.description.prefixes().get(usize::from(index)).copied() else { continue };
            if !entry.dead.contains(&index) {
                self.supersede(slot, &nlri, effects);
            }
        }
    }

    /// Narrows an object's row to what both parties have of it.
    pub fn narrow(&mut self, slot: u32, version: u64, width: u32) {
        let Some(entry) = self.objects.get_mut(&(slot, version)) else { return };
        let (before, width) = (entry.width, width.min(entry.width));
        entry.width = width;
        self.digests.own.remove(&slot);
        if width < before && !self.ended.contains(&slot) {
            self.digests.objects.resized(&entry.handle, before, width);
        }
        match &mut entry.part {
            Part::One { columns, .. } => columns.retain(|(from, _)| *from < width),
            Part::Two { row } => row.truncate(entry.mode.row_bytes(width)),
        }
    }

    /// Finds the instances of the prefixes whose candidates changed. Digests, and the order of instances, are as of then.
    pub fn settle(&mut self) {
        let mut unsettled = std::mem::take(&mut self.digests.unsettled);
        unsettled.sort_unstable();
        unsettled.dedup();
        for prefix in unsettled {
            let candidates = self.candidates(&prefix);
            self.settle_competition(prefix, candidates.len());
            self.digests.hashed += candidates.len() as u64;
            let hash = (!candidates.is_empty()).then(|| digests::instance(&candidates));
            self.digests.instance_changed(prefix, hash, self.seq);
        }
    }

    /// Finds which routes of a prefix do not compete, where there are more than so many that do.
    fn settle_competition(&mut self, prefix: Prefix, most: usize) {
        let mut outside = BTreeSet::new();
        if let Some(routes) = self.by_prefix.get(&prefix).filter(|routes| routes.len() > most) {
            outside.extend(routes.keys().filter(|(slot, _)| !self.ended.contains(slot)));
            for (key, _) in competing(routes, |slot| self.ended.contains(&slot), MAX_CANDIDATES) {
                outside.remove(key);
            }
        }
        for slot in self.outside.set(prefix, outside, self.seq) {
            self.digests.own.remove(&slot);
        }
    }

    /// The buckets of instances that changed since this was last asked.
    pub fn take_changed(&mut self) -> Vec<u16> {
        std::mem::take(&mut self.digests.changed)
    }

    /// The objects in some buckets from a handle on, in order.
    pub fn objects_in<'a>(
        &'a self,
        buckets: &'a BucketSet,
        from: Handle,
    ) -> impl Iterator<Item = (Handle, (u32, u64))> + 'a {
        buckets.from(bucket_of(&from.0)).flat_map(move |bucket| {
            let (first, last) = bounds(bucket);
            let range = self.by_handle.range(from.max(Handle(first))..=Handle(last));
            range.filter(|(_, (slot, _))| !self.has_ended(*slot)).map(|(handle, key)| (*handle, *key))
        })
    }

    /// The instances in some buckets from a hash on, in order, with their prefixes and the batches since which they are.
    pub fn instances_in<'a>(
        &'a self,
        buckets: &'a BucketSet,
        from: InstanceHash,
    ) -> impl Iterator<Item = (InstanceHash, Prefix, Seq)> + 'a {
        buckets.from(bucket_of(&from)).flat_map(move |bucket| {
            let (first, last) = bounds(bucket);
            let since = |prefix: &Prefix| self.digests.instance_of.get(prefix).map_or(0, |(_, seq)| *seq);
            let range = self.digests.by_instance.range(from.max(first)..=last);
            range.map(move |(hash, prefix)| (*hash, *prefix, since(prefix)))
        })
    }

    /// Objects and instances that went into digests so far.
    #[must_use]
    pub fn hashed(&self) -> u64 {
        self.digests.hashed + self.digests.objects.hashed()
    }

    /// What the member in `slot` is to have.
    pub fn roots(&mut self, slot: u32) -> Roots {
        self.settle();
        let objects = self.digests.objects.root(slot, in_bucket(&self.by_handle, &self.objects, &self.ended));
        let instances = match self.digests.all_instances {
            Some(digest) => digest,
            None => digests::root(&self.instance_digests()),
        };
        Roots { objects, instances }
    }

    /// The digest of what the announcer in `slot` has here.
    pub fn own_digest(&mut self, slot: u32) -> Digest {
        if let Some(digest) = self.digests.own.get(&slot) {
            return *digest;
        }
        let mut objects = 0;
        let own = self.own_of(slot, 0).map(|mut own| {
            objects += 1;
            own.live.sort_unstable();
            own.outside.sort_unstable();
            own
        });
        let digest = digests::own(own);
        self.digests.hashed += objects;
        self.digests.own.insert(slot, digest);
        digest
    }

    /// The digests of what members are to have, as they are now.
    pub fn snapshot(&mut self) -> Snapshot {
        self.settle();
        let objects = self.digests.objects.snapshot(in_bucket(&self.by_handle, &self.objects, &self.ended));
        let instances = self.instance_digests();
        Snapshot { objects, instances: digests::root(&instances) }
    }

    /// The buckets of objects, and of instances, in which what a member holds is not what it is to have.
    pub fn differing(&mut self, slot: u32, objects: &BucketDigests, instances: &BucketDigests) -> [BucketSet; 2] {
        self.settle();
        let objects = BucketSet::differing(objects, &self.object_digests(slot));
        [objects, BucketSet::differing(instances, &self.instance_digests())]
    }

    /// The instance of a prefix, as of the last batch.
    #[must_use]
    pub fn instance_of(&self, prefix: &Prefix) -> Option<InstanceHash> {
        self.digests.instance_of.get(prefix).map(|(hash, _)| *hash)
    }

    /// The buckets of instances with something to choose and a route of one of these slots, as of the last batch.
    pub fn contested_by<'a>(&'a self, slots: &'a BTreeSet<u32>) -> impl Iterator<Item = u16> + 'a {
        let live = slots.iter().flat_map(|slot| self.objects_of(*slot, 0)).flat_map(ObjectEntry::live);
        let contested = live.filter(|nlri| self.routes_of(&nlri.prefix) > 1);
        contested.filter_map(|nlri| self.instance_of(&nlri.prefix)).map(|hash| bucket_of(&hash))
    }

    /// Digests of the buckets of objects whose rows cover `slot`.
    fn object_digests(&mut self, slot: u32) -> BucketDigests {
        let all = self.digests.objects.digests(slot, in_bucket(&self.by_handle, &self.objects, &self.ended));
        self.digests.hashed += all.len() as u64 / BUCKETS_PER_OBJECT;
        all
    }

    fn instance_digests(&mut self) -> BucketDigests {
        let mut all = BucketDigests::new();
        for bucket in 0..BUCKETS {
            let digest = self.digests.instances[usize::from(bucket)].unwrap_or_else(|| {
                let (first, last) = bounds(bucket);
                let count = &mut self.digests.hashed;
                let all = self.digests.by_instance.range(first..=last).map(|(hash, _)| hash);
                digests::of_instances(all.inspect(|_| *count += 1))
            });
            self.digests.instances[usize::from(bucket)] = Some(digest);
            all.extend(digest.map(|digest| (bucket, digest)));
        }
        self.digests.hashed += all.len() as u64 / BUCKETS_PER_OBJECT;
        self.digests.all_instances = Some(digests::root(&all));
        all
    }

    /// Extends the view by what is lost.
    pub(crate) fn note_lost_in_view(&mut self) {
        let mut w = Writer::new();
        w.bytes(&self.view).u64(self.lost.len() as u64);
        self.lost.iter().for_each(|object| object.write(&mut w));
        self.view = hash(LABEL_VIEW, &[&w.finish()]);
    }

    /// Starts a new view from the inventory, after both parties agreed on it.
    pub fn reset_view(&mut self, epoch: u64, set: &[u8]) {
        let mut w = Writer::new();
        w.u64(epoch).blob(set).list32(&self.inventory(), |w, row| {
            w.u32(row.slot).u64(row.version).bytes(&row.digest).u32(row.width).list32(&row.dead, |w, index| {
                w.u16(*index);
            });
        });
        self.view = hash(LABEL_VIEW, &[&w.finish()]);
    }
}

/// The objects in a bucket that members are to have, ascending by handle.
fn in_bucket<'a>(
    by_handle: &'a BTreeMap<Handle, (u32, u64)>,
    objects: &'a BTreeMap<(u32, u64), ObjectEntry>,
    ended: &'a BTreeSet<u32>,
) -> impl Fn(u16) -> Box<dyn Iterator<Item = &'a ObjectEntry> + 'a> + Copy {
    move |bucket| {
        let (first, last) = bounds(bucket);
        let handles = by_handle.range(Handle(first)..=Handle(last));
        let handles = handles.filter(|(_, (slot, _))| !ended.contains(slot));
        Box::new(handles.filter_map(|(_, key)| objects.get(key)))
    }
}

/// Puts `count` bits of `more` behind the first `len` bits of `bits`, whatever `bits` had there.
fn append_bits(bits: &mut Vec<u8>, len: u32, more: &[u8], count: u32) {
    bits.resize(((len + count) as usize).div_ceil(8), 0);
    for i in 0..count {
        let (from, to) = (i as usize, (len + i) as usize);
        let bit = more[from / 8] >> (from % 8) & 1;
        bits[to / 8] = bits[to / 8] & !(1 << (to % 8)) | bit << (to % 8);
    }
}

#[cfg(test)]
mod tests {
    use wayleave_crypto::commit::Commitment;
    use wayleave_crypto::secret::Secret;
    use wayleave_crypto::sign::SigningKey;

    use super::*;
    use crate::object::Description;

    fn entry(slot: u32, version: u64, width: u32) -> ObjectEntry {
        let prefixes = vec![Nlri::new(format!("20.{slot}.{version}.0/24").parse().expect("a prefix"))];
        let kind = Kind::Announce { prefixes };
        let description =
            Description { format: object::Format::default(), slot, set: 1, epoch: 1, version, salt: [7; 32], kind };
        let handle = description.handle("test");
        let key = SigningKey::from_seed(&Secret::new([1; 32]));
        let header = Arc::new(Header::sign("test", description, [0; 32], [Commitment([0; 32]); 2], &key));
        let (mode, dead, part) = (ExportMode::Direct, BTreeSet::new(), Part::Two { row: Vec::new() });
        ObjectEntry { header, digest: [0; 32], handle, mode, width, dead, part, since: Vec::new() }
    }

    #[test]
    fn a_walk_through_all_prefixes_does_not_follow_their_order() {
        let mut table = ObjectTable::new();
        (1..=60).for_each(|version| table.restore(entry(0, version, 4)));
        for byte in [5, 6] {
            table.set_order(OrderKey::new([byte; 32]));
            let walked: Vec<Prefix> = table.places_from(None).map(|(_, prefix)| *prefix).collect();
            let ascending = walked.is_sorted_by(|a, b| a < b);
            let all: BTreeSet<Prefix> = walked.iter().copied().collect();
            assert_eq!((ascending, walked.len(), all.len()), (false, 60, 60));
            let rises = walked.windows(2).filter(|pair| pair[0] < pair[1]).count();
            assert!((18..=41).contains(&rises), "{rises} of 59 neighbours rise");
            let half = *table.places_from(None).nth(30).expect("60 of them");
            assert_eq!(table.places_from(Some(half)).count(), 30);
        }
        table.expire(0, 59, &mut Effects::default());
        assert_eq!(table.places_from(None).count(), 1);
    }

    #[test]
    fn each_candidate_is_numbered_once_and_keeps_its_number() {
        let mut table = ObjectTable::new();
        table.set_order(OrderKey::new([5; 32]));
        for version in 1..=60 {
            table.restore(entry(0, version, 4));
        }
        assert_eq!(table.numbered(), 60, "a start numbers each candidate once");
        table.settle();
        let before = table.candidates(&"20.0.7.0/24".parse().expect("a prefix"));
        table.set_order(OrderKey::new([5; 32]));
        table.settle();
        assert_eq!((table.numbered(), before.len()), (60, 1));
        // What replaces a route has its number.
        let mut replacing = entry(0, 61, 4);
        let prefixes = vec![Nlri::new("20.0.7.0/24".parse().expect("a prefix"))];
        let header = Header {
            description: Description { kind: Kind::Announce { prefixes }, ..replacing.header.description.clone() },
            ..(*replacing.header).clone()
        };
        replacing.header = Arc::new(header);
        table.announce(replacing, &mut Effects::default());
        assert_eq!(table.numbered(), 60);
        table.set_order(OrderKey::new([6; 32]));
        assert_eq!(table.numbered(), 120, "another key numbers all");
    }

    #[test]
    fn a_snapshot_tells_what_members_were_to_have_without_a_hash_for_each() {
        const MEMBERS: u32 = 750;
        let mut table = ObjectTable::new();
        for version in 1..=60 {
            table.restore(entry(0, version, MEMBERS));
            table.restore(entry(1, version, if version % 2 == 0 { MEMBERS } else { MEMBERS / 2 }));
        }
        let snapshot = table.snapshot();
        let wanted: Vec<Roots> = (0..MEMBERS).map(|slot| table.roots(slot)).collect();
        let before = digests::ROOTS_HASHED.get();
        assert!((0..MEMBERS).all(|slot| snapshot.roots(slot) == Some(wanted[slot as usize])));
        assert_eq!(digests::ROOTS_HASHED.get() - before, 0);
        assert_ne!(wanted[0], wanted[MEMBERS as usize - 1]);
    }
}

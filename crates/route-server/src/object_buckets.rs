//! Digests of the buckets of objects, as members hold them.
//!
//! A member holds the objects whose rows cover its slot. Rows have few widths, one for each member set under which objects were
//! announced or widened, and all slots between two of them hold the same objects: they are one class, whose digests are computed
//! once for all of them. A change makes the digest of one bucket unknown in each class that has the object, so that a member that
//! connects again costs what has changed since the last one, and no pass over all objects.

use std::collections::BTreeMap;

use crate::digests::{self, BUCKETS, BucketDigests, Digest, bucket_of};
use crate::object::Handle;
use crate::object_table::ObjectEntry;

/// Classes whose digests are kept, of some 100 kB each: our own limit. The one that was not used for longest goes.
const MAX_CLASSES: usize = 64;
/// Classes of which a snapshot has all digests: our own limit, since each may take a pass over all objects.
const SNAPSHOT_CLASSES: usize = 4;

/// The digest of a bucket; `None` if it is empty.
type Bucket = Option<Digest>;

/// What the slots of one class hold.
#[derive(Clone)]
struct Class {
    /// Those that have changed since are `None`.
    buckets: Vec<Option<Bucket>>,
    root: Option<Digest>,
    used: u64,
}

impl Class {
    /// With the same in each bucket.
    fn of(bucket: Option<Bucket>, used: u64) -> Self {
        Self { buckets: vec![bucket; usize::from(BUCKETS)], root: None, used }
    }

    fn changed(&mut self, bucket: u16) {
        self.buckets[usize::from(bucket)] = None;
        self.root = None;
    }

    /// Computes the digest of all, if those of all buckets are known.
    fn conclude(&mut self) {
        if self.root.is_none() && self.buckets.iter().all(Option::is_some) {
            self.root = Some(digests::root(&digests_of(&self.buckets)));
        }
    }
}

fn digests_of(buckets: &[Option<Bucket>]) -> BucketDigests {
    (0u16..).zip(buckets).filter_map(|(number, bucket)| Some((number, (*bucket)??))).collect()
}

/// The digests of all classes that members asked for.
#[derive(Clone, Default)]
pub(crate) struct ObjectBuckets {
    /// Objects by the width of their rows.
    widths: BTreeMap<u32, usize>,
    /// By the least width of their rows.
    classes: BTreeMap<u32, Class>,
    uses: u64,
    /// Objects that went into digests so far.
    hashed: u64,
}

impl ObjectBuckets {
    /// Objects that went into digests so far.
    pub(crate) fn hashed(&self) -> u64 {
        self.hashed
    }

    /// There is a new object.
    pub(crate) fn added(&mut self, handle: &Handle, width: u32) {
        self.count(width);
        self.changed(handle, width);
    }

    /// What members hold of an object has changed.
    pub(crate) fn changed(&mut self, handle: &Handle, width: u32) {
        self.classes.range_mut(..=width).for_each(|(_, class)| class.changed(bucket_of(&handle.0)));
    }

    /// An object is gone.
    pub(crate) fn removed(&mut self, handle: &Handle, width: u32) {
        self.changed(handle, width);
        self.discount(width);
    }

    /// The row of an object covers more slots, or fewer. Who held it before and after holds the same.
    pub(crate) fn resized(&mut self, handle: &Handle, from: u32, to: u32) {
        self.count(to);
        let between = self.classes.range_mut(from.min(to) + 1..=from.max(to));
        between.for_each(|(_, class)| class.changed(bucket_of(&handle.0)));
        self.discount(from);
    }

    /// A row of this width more. The first one divides the class of the wider ones.
    fn count(&mut self, width: u32) {
        let rows = self.widths.entry(width).or_default();
        *rows += 1;
        if *rows > 1 {
            return;
        }
        let class = match self.widths.range(width + 1..).next() {
            Some((wider, _)) => self.classes.get(wider).cloned(),
            None => Some(Class::of(Some(None), self.uses)),
        };
        if let Some(class) = class {
            self.insert(width, class);
        }
    }

    /// A row of this width fewer. After the last one, its class is that of the wider ones.
    fn discount(&mut self, width: u32) {
        let Some(rows) = self.widths.get_mut(&width) else { return };
        *rows -= 1;
        if *rows > 0 {
            return;
        }
        self.widths.remove(&width);
        if let Some(class) = self.classes.remove(&width)
            && let Some((wider, _)) = self.widths.range(width..).next()
        {
            self.classes.entry(*wider).or_insert(class);
        }
    }

    fn insert(&mut self, least: u32, class: Class) {
        while self.classes.len() >= MAX_CLASSES
            && let Some(oldest) = self.classes.iter().min_by_key(|(_, class)| class.used).map(|(least, _)| *least)
        {
            self.classes.remove(&oldest);
        }
        self.classes.insert(least, class);
    }

    /// The class of a slot, with all digests known; `None` if no row covers the slot. `objects`: those in a bucket, ascending.
    fn class<'a, I>(&mut self, slot: u32, objects: impl Fn(u16) -> I) -> Option<&mut Class>
    where
        I: Iterator<Item = &'a ObjectEntry>,
    {
        let least = *self.widths.range(slot + 1..).next()?.0;
        self.uses += 1;
        if !self.classes.contains_key(&least) {
            self.insert(least, Class::of(None, self.uses));
        }
        let class = self.classes.get_mut(&least)?;
        class.used = self.uses;
        for (number, bucket) in (0..).zip(&mut class.buckets) {
            if bucket.is_none() {
                let held: Vec<&ObjectEntry> = objects(number).filter(|entry| entry.width >= least).collect();
                self.hashed += held.len() as u64;
                let content = held.iter().map(|entry| (&entry.handle, entry.dead.iter().copied()));
                *bucket = Some(digests::of_objects(content));
            }
        }
        Some(class)
    }

    /// The digests of what a slot holds.
    pub(crate) fn digests<'a, I>(&mut self, slot: u32, objects: impl Fn(u16) -> I) -> BucketDigests
    where
        I: Iterator<Item = &'a ObjectEntry>,
    {
        self.class(slot, objects).map(|class| digests_of(&class.buckets)).unwrap_or_default()
    }

    /// The digest of all that a slot holds.
    pub(crate) fn root<'a, I>(&mut self, slot: u32, objects: impl Fn(u16) -> I) -> Digest
    where
        I: Iterator<Item = &'a ObjectEntry>,
    {
        let Some(class) = self.class(slot, objects) else { return digests::root(&[]) };
        *class.root.get_or_insert_with(|| digests::root(&digests_of(&class.buckets)))
    }

    /// These digests as they are now, of the narrowest classes.
    pub(crate) fn snapshot<'a, I>(&mut self, objects: impl Fn(u16) -> I + Copy) -> Self
    where
        I: Iterator<Item = &'a ObjectEntry>,
    {
        let widths: Vec<u32> = self.widths.keys().take(SNAPSHOT_CLASSES).copied().collect();
        for width in widths {
            self.class(width.saturating_sub(1), objects);
        }
        self.classes.values_mut().for_each(Class::conclude);
        self.clone()
    }

    /// The digest of all that a slot holds, if it is known: for as many slots as there are at no more than a look.
    pub(crate) fn known_root(&self, slot: u32) -> Option<Digest> {
        let Some((least, _)) = self.widths.range(slot + 1..).next() else { return Some(digests::root(&[])) };
        self.classes.get(least)?.root
    }
}

//! Synchronisation: a member that connects, or asks, is sent what it lacks, a slice with each batch.
//!
//! One that says what it holds is sent the buckets that differ ([`crate::digests`]), and all that changes meanwhile: first its own
//! objects by version, then objects by handle, then instances by hash; where the member says through which batch it has everything,
//! what was new and what was listed since. Whoever holds nothing, or little, is sent everything.
//!
//! What a member has had of everything so far is a [`Cursor`], the same at both parties: first its own objects by version, then all objects by
//! [`Position`]. What changes below the cursor comes with the batch that changed it; what is above it comes with its slice. So a
//! slow member costs one cursor, and a batch brings it a bounded amount. Party 1 says how many objects a slice has: it knows
//! how large their blobs are.

use std::collections::BTreeSet;

use wayleave_bgp::Nlri;
use wayleave_core::Prefix;

use super::recent::{RecentChanges, Since};
use super::round;
use crate::digests::{self, Differs, InstanceHash};
use crate::frames::{MAX_SLICE, OwnObject};
use crate::object::Handle;
use crate::object_table::{Effects, ObjectEntry, ObjectTable, Part, Position};

/// Octets of a slice, about: our own limit.
pub(super) const SLICE_BYTES: usize = 512 << 10;
/// Octets of a candidate in the list of a prefix.
const CANDIDATE: usize = 34;
/// Octets of an object beyond its blob, about.
const OBJECT: usize = 128;

/// How far a member has been sent everything.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Cursor {
    /// The version from which on its own objects are still to be listed; `None` once all are.
    own: Option<u64>,
    next: Next,
}

/// What is sent next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Next {
    /// Of everything: the first place that the member has not had; `None` before the first.
    Position(Option<Position>),
    /// Of what differs: the lowest handle that it has not had.
    Object(Handle),
    /// After these, of what has changed since the batch that the member names: which object.
    Added(usize),
    /// Of what differs, after all objects: the lowest hash that it has not had.
    Instance(InstanceHash),
    /// After these, of what has changed since: which prefix.
    Listed(usize),
}

/// What a member is sent, as it is when that begins.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Lack {
    pub differs: Differs,
    since: Since,
}

impl Lack {
    pub(super) fn of(differs: Differs, recent: &RecentChanges) -> Self {
        let since = differs.since.map(|seq| recent.since(seq)).unwrap_or_default();
        Self { differs, since }
    }

    /// Whether what is still to be sent from a cursor on lists a prefix whose instance has this hash, where what differs is sent.
    pub(super) fn awaits(&self, cursor: Cursor, prefix: &Prefix, hash: &InstanceHash) -> bool {
        let from = match cursor.next {
            Next::Position(_) => return false,
            Next::Object(_) | Next::Added(_) => Some([0; 32]),
            Next::Instance(from) => Some(from),
            Next::Listed(_) => None,
        };
        if self.differs.instances.has(digests::bucket_of(hash)) {
            return from.is_some_and(|from| from <= *hash);
        }
        let from = if let Next::Listed(from) = cursor.next { from } else { 0 };
        self.since.listed.get(from..).is_some_and(|listed| listed.binary_search(prefix).is_ok())
    }

    /// What differs from a place on, in order: objects by handle, those that are new, instances by hash, those that were listed; each
    /// once, as far as it lives.
    fn from<'a>(&'a self, table: &'a ObjectTable, next: Next) -> impl Iterator<Item = (Next, Lacking)> + 'a {
        let (objects, instances) = (&self.differs.objects, &self.differs.instances);
        let (mut handle, mut added, mut hash, mut listed) = (None, None, None, 0);
        match next {
            Next::Object(from) => (handle, added, hash) = (Some(from), Some(0), Some([0; 32])),
            Next::Added(from) => (added, hash) = (Some(from), Some([0; 32])),
            Next::Instance(from) => hash = Some(from),
            Next::Listed(from) => listed = from,
            Next::Position(_) => listed = usize::MAX,
        }
        let in_buckets = handle.into_iter().flat_map(|from| table.objects_in(objects, from));
        let in_buckets =
            in_buckets.map(|(handle, (slot, version))| (Next::Object(handle), Lacking::Object(slot, version)));
        let added = added.into_iter().flat_map(|from| (from..).zip(self.since.added.get(from..).unwrap_or_default()));
        let added = added.filter_map(|(place, (slot, version))| {
            let is_due = |entry: &&ObjectEntry| {
                !objects.has(digests::bucket_of(&entry.handle.0)) && !table.has_ended(entry.header.description.slot)
            };
            table.entry(*slot, *version).filter(is_due)?;
            Some((Next::Added(place), Lacking::Object(*slot, *version)))
        });
        let of_buckets = hash.into_iter().flat_map(|from| table.instances_in(instances, from));
        let of_buckets = of_buckets.map(|(hash, prefix)| (Next::Instance(hash), Lacking::Instance(prefix)));
        let listed = (listed..).zip(self.since.listed.get(listed..).unwrap_or_default());
        let listed = listed.filter_map(|(place, prefix)| {
            let hash = table.instance_of(prefix)?;
            (!instances.has(digests::bucket_of(&hash))).then_some((Next::Listed(place), Lacking::Instance(*prefix)))
        });
        in_buckets.chain(added).chain(of_buckets).chain(listed)
    }
}

/// Something that a member lacks.
enum Lacking {
    Object(u32, u64),
    Instance(Prefix),
}

impl Cursor {
    /// Before everything.
    const START: Self = Self { own: Some(0), next: Next::Position(None) };

    /// Before what differs.
    pub(super) fn before(differs: &Differs) -> Self {
        if *differs == Differs::EVERYTHING {
            return Self::START;
        }
        Self { own: differs.own.then_some(0), next: Next::Object(Handle([0; 32])) }
    }

    /// Whether only what differs is sent.
    pub(super) fn is_of_differing(&self) -> bool {
        !matches!(self.next, Next::Position(_))
    }

    /// The place, if everything is sent.
    fn place(&self) -> Option<Position> {
        match self.next {
            Next::Position(place) => place,
            Next::Object(_) | Next::Added(_) | Next::Instance(_) | Next::Listed(_) => None,
        }
    }

    /// Whether the object in this place was sent.
    fn has(&self, place: &Position) -> bool {
        self.place().is_some_and(|next| *place < next)
    }

    /// Whether the prefix was listed: each object with a route to it was sent.
    fn lists(&self, prefix: &Prefix) -> bool {
        self.place().is_some_and(|(next, ..)| *prefix < next)
    }
}

/// What a slice brings.
pub(super) struct SliceContent {
    pub own: Vec<OwnObject>,
    pub own_ends: bool,
    /// Slot and version of each object.
    pub objects: Vec<(u32, u64)>,
    /// Prefixes to list, where only what differs is sent. Otherwise they follow from the cursor.
    pub prefixes: Option<Vec<Prefix>>,
    /// Where the next slice begins; `None` after the last one.
    pub after: Option<Cursor>,
}

/// Takes a slice of so many objects, and instances where only what differs is sent, for the member in `slot`.
pub(super) fn take(table: &ObjectTable, slot: u32, mut cursor: Cursor, lacks: &Lack, objects: u32) -> SliceContent {
    let mut left = objects as usize;
    let (mut own, listed_own) = (Vec::new(), cursor.own.is_none());
    if let Some(from) = cursor.own {
        let mut entries = table.objects_of(slot, from);
        own = entries.by_ref().take(left).map(ObjectEntry::as_own).collect();
        left -= own.len();
        cursor.own = entries.next().map(|entry| entry.header.description.version);
    }
    let own_ends = !listed_own && cursor.own.is_none();
    if cursor.own.is_some() {
        let prefixes = (!matches!(cursor.next, Next::Position(_))).then(Vec::new);
        return SliceContent { own, own_ends, objects: Vec::new(), prefixes, after: Some(cursor) };
    }
    let Next::Position(place) = cursor.next else {
        let (objects, prefixes, next) = take_differing(table, lacks, cursor.next, left);
        let after = next.map(|next| Cursor { own: None, next });
        return SliceContent { own, own_ends, objects, prefixes: Some(prefixes), after };
    };
    let mut places = table.places_from(place);
    let objects = places.by_ref().take(left).map(|(_, slot, version)| (*slot, *version)).collect();
    let after = places.next().map(|place| Cursor { own: None, next: Next::Position(Some(*place)) });
    SliceContent { own, own_ends, objects, prefixes: None, after }
}

/// The same of what differs: slots and versions, prefixes, and what comes next.
fn take_differing(
    table: &ObjectTable,
    lacks: &Lack,
    next: Next,
    most: usize,
) -> (Vec<(u32, u64)>, Vec<Prefix>, Option<Next>) {
    let (mut objects, mut prefixes) = (Vec::new(), Vec::new());
    let mut all = lacks.from(table, next);
    for (_, lacking) in all.by_ref().take(most) {
        match lacking {
            Lacking::Object(slot, version) => objects.push((slot, version)),
            Lacking::Instance(prefix) => prefixes.push(prefix),
        }
    }
    let next = all.next().map(|(next, _)| next);
    (objects, prefixes, next)
}

/// How many objects from `cursor` on are a slice, at party 1.
pub(super) fn objects_of_slice(table: &ObjectTable, slot: u32, cursor: Cursor, lacks: &Lack) -> u32 {
    let own = cursor.own.into_iter().flat_map(|from| table.objects_of(slot, from));
    let own = own.map(|entry| 16 + 22 * entry.live().count());
    let blob = |entry: &ObjectEntry| if let Part::One { blob, .. } = &entry.part { blob.len() } else { 0 };
    let Next::Position(place) = cursor.next else {
        let all = lacks.from(table, cursor.next).map(|(_, lacking)| match lacking {
            Lacking::Object(slot, version) => table.entry(slot, version).map_or(0, blob) + OBJECT,
            Lacking::Instance(prefix) => 4 + CANDIDATE * table.routes_of(&prefix),
        });
        return fills_slice(own.chain(all));
    };
    let all = table.places_from(place).filter_map(|(_, slot, version)| table.entry(*slot, *version));
    let all = all.map(|entry| blob(entry) + OBJECT + CANDIDATE * entry.header.description.prefixes().len());
    fills_slice(own.chain(all))
}

/// How many of what takes so many octets each are a slice.
fn fills_slice(each: impl Iterator<Item = usize>) -> u32 {
    let mut octets = 0;
    for (objects, more) in (1..MAX_SLICE).zip(each) {
        octets += more;
        if octets >= SLICE_BYTES {
            return objects;
        }
    }
    // To the end, with what the batch adds.
    MAX_SLICE
}

/// How many objects of a slot are removed with one batch, which has room for so many octets to each member and for so many comparisons
/// by `rankers` members; at least one is. Takes from both what these take up.
pub(super) fn objects_to_expire(
    table: &ObjectTable,
    slot: u32,
    rankers: usize,
    octets: &mut usize,
    comparators: &mut usize,
) -> u32 {
    for (objects, entry) in (1..MAX_SLICE).zip(table.objects_of(slot, 0)) {
        *octets = octets.saturating_sub(32 + listing(table, entry.live()));
        let left = entry.live().map(|nlri| table.routes_of(&nlri.prefix) - 1);
        *comparators = comparators.saturating_sub(rankers * left.map(round::comparators).sum::<usize>());
        if *octets == 0 || *comparators == 0 {
            return objects;
        }
    }
    MAX_SLICE
}

/// Octets, about, that it takes to name dead routes to these prefixes, and to list what is left of each.
pub(super) fn listing<'a>(table: &ObjectTable, prefixes: impl Iterator<Item = &'a Nlri>) -> usize {
    prefixes.map(|nlri| 2 * CANDIDATE + CANDIDATE * table.routes_of(&nlri.prefix)).sum()
}

/// Which prefixes a member's tick lists; members with equal ones share the work. Those that are up to date come first, so that
/// their results do, too.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Listing {
    /// Whether a slice of everything comes with the batch.
    is_slice: bool,
    /// What a slice of what differs lists.
    differing: Vec<Prefix>,
    /// Whether columns opened objects to the member.
    is_new: bool,
    /// Whether the member gets all that is new.
    gets_all: bool,
    before: Option<Cursor>,
    after: Option<Cursor>,
}

impl Listing {
    pub(super) fn new(is_new: bool, gets_all: bool, before: Option<Cursor>, taken: Option<&SliceContent>) -> Self {
        let gets_all = gets_all || before.is_none();
        let differing = taken.and_then(|taken| taken.prefixes.clone());
        let taken = taken.filter(|taken| taken.prefixes.is_none());
        // What a member lacks so far says nothing of its list if it gets all that is new and no slice of everything.
        let before = before.filter(|_| !gets_all || taken.is_some());
        let (is_slice, after) = (taken.is_some(), taken.and_then(|taken| taken.after));
        Self { is_slice, differing: differing.unwrap_or_default(), is_new, gets_all, before, after }
    }

    /// Whether the member gets an object that is new: all, or those below some place.
    pub(super) fn has(&self, place: &Position) -> bool {
        self.gets_all || self.before.is_some_and(|before| before.has(place))
    }

    /// Prefixes that a slice of what differs lists.
    pub(super) fn differing(&self) -> &[Prefix] {
        &self.differing
    }

    /// Whether the prefix is evaluated again whatever changed.
    pub(super) fn evaluates_again(&self, prefix: &Prefix, effects: &Effects) -> bool {
        effects.relisted.contains(prefix) || self.is_new && effects.opened.contains(prefix)
    }

    /// Whether the prefix is listed whatever changed: it is evaluated again, or comes with a slice of everything.
    pub(super) fn lists_anyway(&self, prefix: &Prefix, effects: &Effects) -> bool {
        let is_in_slice = || {
            let from = self.before.and_then(|before| before.place()).map(|(prefix, ..)| prefix);
            self.is_slice && from <= Some(*prefix) && self.after.is_none_or(|after| after.lists(prefix))
        };
        self.evaluates_again(prefix, effects) || is_in_slice()
    }

    /// The prefixes that changed just now, and those that are evaluated again, each in order.
    pub(super) fn prefixes(&self, table: &ObjectTable, effects: &Effects) -> [BTreeSet<Prefix>; 2] {
        // What it has been sent of everything is all below some prefix: nothing behind that is looked at.
        let is_known = |prefix: &&Prefix| self.gets_all || self.before.is_some_and(|before| before.lists(prefix));
        let live: BTreeSet<Prefix> = effects.touched.iter().take_while(is_known).copied().collect();
        let mut later: BTreeSet<Prefix> = effects.relisted.iter().take_while(is_known).copied().collect();
        if self.is_new {
            later.extend(effects.opened.iter().take_while(is_known));
        }
        if self.is_slice {
            let from = self.before.and_then(|before| before.place()).map(|(prefix, ..)| prefix);
            let is_in = |prefix: &&Prefix| self.after.is_none_or(|after| after.lists(prefix));
            later.extend(table.prefixes_from(from).take_while(is_in));
        }
        later.extend(&self.differing);
        later.retain(|prefix| !live.contains(prefix));
        [live, later]
    }
}

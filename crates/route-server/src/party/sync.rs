//! Synchronisation: a member that connects, or asks, is sent everything, a slice with each batch.
//!
//! What a member has had so far is a [`Cursor`], the same at both parties: first its own objects by version, then all objects by
//! [`Place`]. What changes below the cursor comes with the batch that changed it; what is above it comes with its slice. So a
//! slow member costs one cursor, and a batch brings it a bounded amount. Party 1 says how many objects a slice has: it knows
//! how large their blobs are.

use std::collections::BTreeSet;

use wayleave_bgp::Nlri;
use wayleave_core::Prefix;

use super::state::State;
use crate::frames::MAX_SLICE;
use crate::object_table::{Effects, ObjectTable, Part, Place};

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
    /// The first place that it has not had; `None` before the first.
    next: Option<Place>,
}

impl Cursor {
    pub(super) const START: Self = Self { own: Some(0), next: None };

    /// Whether the object in this place was sent.
    fn has(&self, place: &Place) -> bool {
        self.next.is_some_and(|next| *place < next)
    }

    /// Whether the prefix was listed: each object with a route to it was sent.
    fn lists(&self, prefix: &Prefix) -> bool {
        self.next.is_some_and(|(next, ..)| *prefix < next)
    }
}

/// What a slice brings.
pub(super) struct Taken {
    pub own: Vec<(u64, Vec<Nlri>)>,
    pub own_ends: bool,
    /// Slot and version of each object.
    pub objects: Vec<(u32, u64)>,
    /// Where the next slice begins; `None` after the last one.
    pub after: Option<Cursor>,
}

/// Takes a slice of so many objects, for the member in `slot`.
pub(super) fn take(table: &ObjectTable, slot: u32, mut cursor: Cursor, objects: u32) -> Taken {
    let mut left = objects as usize;
    let (mut own, listed_own) = (Vec::new(), cursor.own.is_none());
    if let Some(from) = cursor.own {
        let mut entries = table.objects_of(slot, from);
        let row = |entry: &crate::object_table::ObjectEntry| {
            (entry.header.description.version, entry.live().copied().collect::<Vec<Nlri>>())
        };
        own = entries.by_ref().take(left).map(row).collect();
        left -= own.len();
        cursor.own = entries.next().map(|entry| entry.header.description.version);
    }
    let own_ends = !listed_own && cursor.own.is_none();
    if cursor.own.is_some() {
        return Taken { own, own_ends, objects: Vec::new(), after: Some(cursor) };
    }
    let mut places = table.places_from(cursor.next);
    let objects = places.by_ref().take(left).map(|(_, slot, version)| (*slot, *version)).collect();
    let after = places.next().map(|place| Cursor { own: None, next: Some(*place) });
    Taken { own, own_ends, objects, after }
}

/// How many objects from `cursor` on are a slice, at party 1.
pub(super) fn objects_of_slice(table: &ObjectTable, slot: u32, cursor: Cursor) -> u32 {
    let own = cursor.own.into_iter().flat_map(|from| table.objects_of(slot, from));
    let own = own.map(|entry| 12 + 22 * entry.live().count());
    let all = table.places_from(cursor.next).filter_map(|(_, slot, version)| table.entry(*slot, *version));
    let all = all.map(|entry| {
        let blob = if let Part::One { blob, .. } = &entry.part { blob.len() } else { 0 };
        blob + OBJECT + CANDIDATE * entry.header.description.prefixes().len()
    });
    let mut octets = 0;
    for (objects, more) in (1..MAX_SLICE).zip(own.chain(all)) {
        octets += more;
        if octets >= SLICE_BYTES {
            return objects;
        }
    }
    // To the end, with what the batch adds.
    MAX_SLICE
}

/// How many objects of a slot may be removed with one batch: what that makes known to each member is bounded.
pub(super) fn objects_to_expire(table: &ObjectTable, slot: u32) -> u32 {
    let mut octets = 0;
    for (objects, entry) in (1..MAX_SLICE).zip(table.objects_of(slot, 0)) {
        octets += 32 + listing(table, entry.live());
        if octets >= SLICE_BYTES {
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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Listing {
    /// Whether a slice comes with the batch.
    is_slice: bool,
    /// Whether columns opened objects to the member.
    is_new: bool,
    /// Whether the member gets all that is new.
    gets_all: bool,
    before: Option<Cursor>,
    after: Option<Cursor>,
}

impl Listing {
    pub(super) fn new(is_new: bool, gets_all: bool, before: Option<Cursor>, taken: Option<&Taken>) -> Self {
        let gets_all = gets_all || before.is_none();
        // What a member lacks so far says nothing of its list if it gets all that is new and no slice.
        let before = before.filter(|_| !gets_all || taken.is_some());
        Self { is_slice: taken.is_some(), is_new, gets_all, before, after: taken.and_then(|taken| taken.after) }
    }

    /// Whether the member gets an object that is new.
    pub(super) fn has(&self, place: Option<Place>) -> bool {
        self.gets_all || self.before.zip(place).is_some_and(|(before, place)| before.has(&place))
    }

    /// The prefixes that changed just now, and those that are evaluated again, each in order.
    pub(super) fn prefixes(&self, table: &ObjectTable, effects: &Effects) -> [BTreeSet<Prefix>; 2] {
        let is_known = |prefix: &&Prefix| self.gets_all || self.before.is_some_and(|before| before.lists(prefix));
        let live: BTreeSet<Prefix> = effects.touched.iter().filter(is_known).copied().collect();
        let mut later: BTreeSet<Prefix> = effects.relisted.iter().filter(is_known).copied().collect();
        if self.is_new {
            later.extend(effects.opened.iter().filter(is_known));
        }
        if self.is_slice {
            let from = self.before.and_then(|before| before.next).map(|(prefix, ..)| prefix);
            let is_in = |prefix: &&Prefix| self.after.is_none_or(|after| after.lists(prefix));
            later.extend(table.prefixes_from(from).take_while(is_in));
        }
        later.retain(|prefix| !live.contains(prefix));
        [live, later]
    }
}

impl State {
    /// Slots that are being sent everything.
    pub(super) fn synchronising(&self) -> impl Iterator<Item = u32> {
        self.active.iter().filter(|(_, active)| active.cursor.is_some()).map(|(slot, _)| *slot)
    }
}

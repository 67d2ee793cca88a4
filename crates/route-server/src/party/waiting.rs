//! The objects that wait to be applied, and what of memory they take.
//!
//! All members' objects wait in one memory of a fixed size. A member may have as much waiting as is still free: who has the most is
//! refused first, and as much as each of those may have stays free for others, however many fill it. Sizes are public, and nothing else
//! counts. What each member and all together have waiting is kept, never counted anew: an object comes with every frame.

use std::collections::BTreeMap;
use std::sync::Arc;

use wayleave_core::Instant;

use crate::object::Header;
use crate::object_table::Part;

/// Objects that one member may have waiting, and octets of them: our own limits.
const MAX_OBJECTS: usize = 8192;
const MAX_OCTETS: usize = 32 << 20;

/// An object that waits to be applied.
pub(super) struct PendingObject {
    pub header: Arc<Header>,
    pub digest: [u8; 32],
    pub part: Option<Part>,
    pub column: Option<Arc<[u8]>>,
    pub since: Instant,
}

impl PendingObject {
    /// Octets of its blob, row or column: what it takes up in memory, about.
    pub(super) fn octets(&self) -> usize {
        octets(self.part.as_ref(), self.column.as_deref())
    }
}

/// Octets of the blob, row or column of an object.
pub(super) fn octets(part: Option<&Part>, column: Option<&[u8]>) -> usize {
    let part = match part {
        Some(Part::One { blob, .. }) => blob.len(),
        Some(Part::Two { row }) => row.len(),
        None => 0,
    };
    part + column.map_or(0, <[u8]>::len)
}

/// What waits, by slot and version.
pub(super) type Pending = BTreeMap<u32, BTreeMap<u64, PendingObject>>;

#[derive(Default)]
pub(super) struct Waiting {
    objects: Pending,
    /// Octets of them by slot, of slots that have any object waiting; and of all.
    octets: BTreeMap<u32, usize>,
    all: usize,
}

impl Waiting {
    pub(super) fn objects(&self) -> &Pending {
        &self.objects
    }

    pub(super) fn get(&self, slot: u32, version: u64) -> Option<&PendingObject> {
        self.objects.get(&slot)?.get(&version)
    }

    /// Octets of all members' objects.
    pub(super) fn octets_of_all(&self) -> usize {
        self.all
    }

    /// Octets of the objects of the member with the most.
    pub(super) fn octets_of_largest(&self) -> usize {
        self.octets.values().copied().max().unwrap_or(0)
    }

    /// Whether a member may have an object of so many octets waiting besides what it has, where all may have `most`.
    pub(super) fn has_room(&self, slot: u32, octets: usize, most: usize) -> bool {
        let (own, free) = (self.octets.get(&slot).copied().unwrap_or(0), most.saturating_sub(self.all));
        let objects = self.objects.get(&slot).map_or(0, BTreeMap::len);
        objects < MAX_OBJECTS && own < MAX_OCTETS && own + octets <= free
    }

    pub(super) fn insert(&mut self, slot: u32, version: u64, object: PendingObject) {
        let octets = object.octets();
        let before = self.objects.entry(slot).or_default().insert(version, object);
        *self.octets.entry(slot).or_default() += octets;
        self.all += octets;
        if let Some(before) = before {
            self.gone(slot, before.octets());
        }
    }

    pub(super) fn take(&mut self, slot: u32, version: u64) -> Option<PendingObject> {
        let object = self.objects.get_mut(&slot)?.remove(&version)?;
        self.gone(slot, object.octets());
        Some(object)
    }

    /// Takes all that waits of a slot.
    pub(super) fn take_all(&mut self, slot: u32) -> BTreeMap<u64, PendingObject> {
        self.all -= self.octets.remove(&slot).unwrap_or(0);
        self.objects.remove(&slot).unwrap_or_default()
    }

    /// What waits is given time again for its other half.
    pub(super) fn restart(&mut self, now: Instant) {
        for object in self.objects.values_mut().flat_map(BTreeMap::values_mut) {
            object.since = now;
        }
    }

    /// So many octets of a slot's objects wait no more.
    fn gone(&mut self, slot: u32, octets: usize) {
        self.all -= octets;
        self.octets.entry(slot).and_modify(|of_slot| *of_slot -= octets);
        if self.objects.get(&slot).is_some_and(BTreeMap::is_empty) {
            self.objects.remove(&slot);
            self.octets.remove(&slot);
        }
    }
}

#[cfg(test)]
mod tests {
    //! SIX, waiting memory: what is kept is what would be counted; whoever has the most waiting is refused first.

    use wayleave_crypto::commit::Commitment;
    use wayleave_crypto::secret::Seed;
    use wayleave_crypto::sign::SigningKey;

    use super::*;
    use crate::object::{Description, Format, Kind};

    fn object(version: u64, octets: usize) -> PendingObject {
        let kind = Kind::Withdraw { prefixes: Vec::new() };
        let description =
            Description { format: Format::default(), slot: 0, set: 1, epoch: 1, version, salt: [0; 32], kind };
        let key = SigningKey::from_seed(&Seed::new([1; 32]));
        let header = Header::sign("x", description, [0; 32], [Commitment([0; 32]); 2], &key);
        let part = Some(Part::Two { row: vec![0; octets] });
        PendingObject { header: Arc::new(header), digest: [0; 32], part, column: None, since: Instant(1) }
    }

    #[test]
    fn what_is_kept_is_what_would_be_counted() {
        let (mut waiting, mut state) = (Waiting::default(), 1u32);
        let mut draw = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below
        };
        for _ in 0..3_000 {
            let (slot, version) = (draw(4), u64::from(draw(8)));
            match draw(8) {
                0 => drop(waiting.take_all(slot)),
                1..4 => drop(waiting.take(slot, version)),
                _ => waiting.insert(slot, version, object(version, draw(100) as usize)),
            }
            let counted = |of: &BTreeMap<u64, PendingObject>| of.values().map(PendingObject::octets).sum();
            let counted: BTreeMap<u32, usize> = waiting.objects.iter().map(|(slot, of)| (*slot, counted(of))).collect();
            assert_eq!(waiting.octets, counted);
            assert_eq!(waiting.all, counted.values().sum::<usize>());
            assert!(waiting.objects.values().all(|of| !of.is_empty()));
        }
    }

    #[test]
    fn whoever_has_the_most_is_refused_first_and_others_find_room() {
        const MOST: usize = 1_000;
        let mut waiting = Waiting::default();
        for version in 0..1_000 {
            for hostile in 0..3 {
                if waiting.has_room(hostile, 10, MOST) {
                    waiting.insert(hostile, version, object(version, 10));
                }
            }
        }
        assert_eq!(waiting.octets, BTreeMap::from([(0, 250), (1, 250), (2, 250)]), "as much as is free");
        assert!(waiting.has_room(3, 250, MOST) && !waiting.has_room(3, 251, MOST));
        assert!(waiting.take_all(0).len() == 25 && waiting.has_room(1, 10, MOST));
    }
}

//! What an epoch's new recommendation has evaluated again: the prefixes with something to choose and a candidate whose value
//! changed, a bounded number with each batch.
//!
//! Which these are follows from the slots that party 1 names and from the table, so that both parties go through the same.

use std::collections::{BTreeMap, BTreeSet};

use wayleave_core::Prefix;

use crate::frames::Seq;
use crate::object_table::ObjectTable;
use crate::order::OrderPosition;

/// A walk through all prefixes, by their places: with which batch a prefix is evaluated again does not tell which it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Relist {
    /// The next place; `None` is the first one.
    next: Option<OrderPosition>,
    /// From which place on those of a slot are still to be evaluated; `None` is the first one.
    from: BTreeMap<u32, Option<OrderPosition>>,
}

/// With which batches prefixes of each slot were evaluated again, so that whoever was away for them gets these.
#[derive(Default)]
pub(super) struct Relisted {
    /// The last batch that evaluated prefixes of a slot again.
    last: BTreeMap<u32, Seq>,
    /// Slots of walks that did not come to their end.
    broken_off: BTreeSet<u32>,
}

impl Relisted {
    /// A walk goes on with this batch.
    pub(super) fn note(&mut self, walk: &Relist, seq: Seq) {
        self.last.extend(walk.from.keys().map(|slot| (*slot, seq)));
    }

    /// A walk ends before its end.
    pub(super) fn broke_off(&mut self, walk: Option<Relist>) {
        self.broken_off.extend(walk.into_iter().flat_map(|walk| walk.from.into_keys()));
    }

    /// The parties agree on what they store, as of the batch `seq`: the rest of such walks nobody has had yet.
    pub(super) fn agreed(&mut self, seq: Seq) {
        let slots = std::mem::take(&mut self.broken_off);
        self.last.extend(slots.into_iter().map(|slot| (slot, seq + 1)));
    }

    /// The slots of which a member has not had all that was evaluated again, if it has everything through a batch.
    pub(super) fn missed(&self, through: Seq) -> BTreeSet<u32> {
        self.last.iter().filter(|(_, last)| **last > through).map(|(slot, _)| *slot).collect()
    }
}

impl Relist {
    /// Begins a walk for the slots whose values changed, and takes up what was left of the one before.
    pub(super) fn begin(before: Option<Self>, changed: &[u32]) -> Option<Self> {
        let mut from = BTreeMap::new();
        if let Some(before) = before {
            // What it has passed is done; what it was yet to come to in an even earlier one stays so.
            from.extend(before.from.into_iter().map(|(slot, at)| (slot, at.max(before.next))));
        }
        from.extend(changed.iter().map(|slot| (*slot, None)));
        let next = from.values().min().copied()?;
        Some(Self { next, from })
    }

    /// Whether the change concerns the prefix: there is something to choose, and a value among it is another.
    fn concerns(&self, table: &ObjectTable, place @ (_, prefix): &OrderPosition) -> bool {
        let is_due = |slot: u32| self.from.get(&slot).is_some_and(|from| *from <= Some(*place));
        table.routes_of(prefix) > 1 && table.announcers_of(prefix).any(is_due)
    }

    /// Of the next `prefixes` those that are concerned, and what is left.
    pub(super) fn take(self, table: &ObjectTable, prefixes: u32) -> (Vec<Prefix>, Option<Self>) {
        let mut all = table.places_from(self.next);
        let some = all.by_ref().take(prefixes as usize);
        let concerned = some.filter(|place| self.concerns(table, place)).map(|(_, prefix)| *prefix).collect();
        let next = all.next().copied();
        (concerned, next.map(|next| Self { next: Some(next), ..self }))
    }

    /// How many prefixes to look at with one batch so that those that are evaluated again have `most` candidates, about.
    pub(super) fn within(&self, table: &ObjectTable, most: usize, longest: usize) -> u32 {
        let (mut prefixes, mut candidates) = (0, 0);
        for place in table.places_from(self.next).take(longest) {
            prefixes += 1;
            if self.concerns(table, place) {
                candidates += table.routes_of(&place.1);
            }
            if candidates >= most {
                break;
            }
        }
        prefixes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(n: u64) -> OrderPosition {
        (n, "20.0.0.0/16".parse().expect("a prefix"))
    }

    #[test]
    fn a_change_during_a_walk_adds_to_what_is_left_of_it() {
        let walk = Relist::begin(None, &[1, 2]).expect("a walk");
        assert_eq!(walk.next, None);
        // It came to the fifth prefix when the values of 2 and 3 changed, and then to the third when that of 4 did.
        let walk = Relist { next: Some(place(5)), ..walk };
        let walk = Relist::begin(Some(walk), &[2, 3]).expect("a walk");
        assert_eq!(walk.next, None);
        assert_eq!(walk.from, BTreeMap::from([(1, Some(place(5))), (2, None), (3, None)]));
        let walk = Relist { next: Some(place(3)), ..walk };
        let walk = Relist::begin(Some(walk), &[4]).expect("a walk");
        let from = [(1, Some(place(5))), (2, Some(place(3))), (3, Some(place(3))), (4, None)];
        assert_eq!(walk.from, BTreeMap::from(from));
        // Nothing new: it goes on where it was.
        let walk = Relist::begin(Some(Relist { next: Some(place(6)), ..walk }), &[]).expect("a walk");
        assert_eq!(walk.next, Some(place(6)));
        assert_eq!(Relist::begin(None, &[]), None);
    }
}

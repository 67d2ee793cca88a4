//! What the parties have of the member's objects, as they say: inventories, confirmations and refusals.
//!
//! An object in flight ends in one of these ways: both parties have applied it, as a tick or an inventory shows; one refuses it;
//! a later one of this member is applied before it, so that it or its refusal was lost; or the session ends. But for the first,
//! what the parties have of its prefixes is in doubt: unless a later object has announced them, they become leftovers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wayleave_bgp::Nlri;
use wayleave_core::Instant;

use super::{Announcements, Bar};
use crate::digests::{self, Digest};
use crate::frames::{OwnObject as Listed, Refusal};

/// Delay before a refused announcement is retried, so that a party that refuses everything is not flooded.
const RETRY: Duration = Duration::from_millis(50);

/// The parties' inventory of this member's objects, as far as it has been listed.
#[derive(Default)]
pub(in super::super) struct Inventory {
    /// Which version owns each live prefix, and the slots that its row covers.
    held: BTreeMap<Nlri, (u64, u32)>,
    /// Live objects.
    live: BTreeSet<u64>,
    /// Live prefixes that do not compete.
    outside: BTreeSet<Nlri>,
}

impl Inventory {
    pub(in super::super) fn list(&mut self, own: &Listed) {
        self.add(own.version, own.width, &own.live);
        // What a tick said before was of a time before.
        self.outside.retain(|nlri| !own.live.contains(nlri));
        self.outside.extend(&own.outside);
    }

    fn add(&mut self, version: u64, width: u32, live: &[Nlri]) {
        self.held.extend(live.iter().map(|nlri| (*nlri, (version, width))));
        // A lost object has no width. One that is in flight all the same is not confirmed by that: its refusal, or a later one, tells.
        if width > 0 {
            self.live.insert(version);
        }
    }
}

impl Announcements {
    /// What was in flight may be lost; the next inventory shows whether it is.
    pub(in super::super) fn session_lost(&mut self) {
        for (_, prefixes) in std::mem::take(&mut self.in_flight) {
            for nlri in prefixes {
                self.announced.remove(&nlri);
                // The parties may have it or not: a later object or withdrawal decides.
                self.leftover.insert(nlri);
                self.mark(nlri);
            }
        }
    }

    /// The digest of what the parties have of this member's objects, as far as it knows. Where it does not, the list is sent.
    pub(in super::super) fn own_digest(&self) -> Digest {
        if !self.leftover.is_empty() || !self.in_flight.is_empty() {
            return Digest::default();
        }
        let mut live: BTreeMap<(u64, u32), Vec<Nlri>> = BTreeMap::new();
        for (nlri, last) in &self.announced {
            live.entry((last.version, last.width())).or_default().push(*nlri);
        }
        digests::own(live.into_iter().map(|((version, width), live)| {
            let outside = live.iter().filter(|nlri| self.outside.contains(nlri)).copied().collect();
            Listed { version, width, live, outside }
        }))
    }

    /// Both parties say which of this member's routes compete no more, and which do again, or are gone.
    pub(in super::super) fn competition(
        &mut self,
        outside: &[Nlri],
        inside: &[Nlri],
        inventory: Option<&mut Inventory>,
    ) {
        for known in std::iter::once(&mut self.outside).chain(inventory.map(|inventory| &mut inventory.outside)) {
            for nlri in inside {
                known.remove(nlri);
            }
            known.extend(outside);
        }
    }

    /// The parties' inventory of this member's objects.
    pub(in super::super) fn inventory(&mut self, own: Inventory) {
        let Inventory { held, live, outside } = own;
        self.outside = outside;
        let lost: Vec<Nlri> = self
            .announced
            .iter()
            .filter(|(nlri, last)| {
                held.get(nlri) != Some(&(last.version, last.width())) && !self.in_flight.contains_key(&last.version)
            })
            .map(|(nlri, _)| *nlri)
            .collect();
        for nlri in lost {
            self.announced.remove(&nlri);
            self.mark(nlri);
        }
        for (nlri, (version, _)) in held {
            if self.announced.get(&nlri).is_none_or(|last| last.version != version) {
                self.leftover.insert(nlri);
                if self.is_settled || self.router.contains_key(&nlri) {
                    self.mark(nlri);
                }
            }
        }
        self.confirm_by_inventory(&live);
        self.objects.retain(|version, _| live.contains(version) || self.in_flight.contains_key(version));
    }

    /// Removes from what is in flight whatever both parties have applied, also where the tick that confirms it was lost with
    /// the link between the parties. An inventory does not list columns, so the objects of a column are announced again.
    fn confirm_by_inventory(&mut self, live: &BTreeSet<u64>) {
        let held = |nlri: &Nlri| self.leftover.contains(nlri);
        let announced_as =
            |nlri: &Nlri, version: u64| self.announced.get(nlri).is_some_and(|last| last.version == version);
        let (mut done, mut columns) = (Vec::new(), Vec::new());
        for (version, prefixes) in &self.in_flight {
            let announced = prefixes.iter().any(|nlri| announced_as(nlri, *version));
            let columned = prefixes.iter().any(|nlri| self.announced.get(nlri).is_some_and(|t| t.version < *version));
            if live.contains(version) || (!announced && !columned && !prefixes.iter().any(held)) {
                done.push(*version);
            } else if columned && !announced {
                columns.push(*version);
            }
        }
        for version in done {
            self.in_flight.remove(&version);
        }
        let again: Vec<Nlri> =
            columns.into_iter().filter_map(|version| self.in_flight.remove(&version)).flatten().collect();
        for nlri in again {
            self.announced.remove(&nlri);
            // The parties have it all the same: it may be on its way out.
            self.leftover.insert(nlri);
            self.mark(nlri);
        }
    }

    /// Both parties applied these; what an inventory that is under way listed before is past.
    pub(in super::super) fn applied(&mut self, versions: &[u64], mut inventory: Option<&mut Inventory>) {
        for version in versions {
            let Some(prefixes) = self.in_flight.remove(version) else { continue };
            let Some(inventory) = &mut inventory else { continue };
            for nlri in prefixes {
                match self.announced.get(&nlri) {
                    Some(last) if last.version == *version => inventory.add(*version, last.width(), &[nlri]),
                    // A column: the list may have the object as it was before.
                    Some(last) => {
                        let listed = inventory.held.get_mut(&nlri).filter(|(version, _)| *version == last.version);
                        listed.into_iter().for_each(|(_, width)| *width = last.width());
                    }
                    None => drop(inventory.held.remove(&nlri)),
                }
            }
        }
        // A slot's objects are applied in their order: of what came before, the tick or the refusal was lost.
        let last = versions.iter().max().copied().unwrap_or(0);
        let before: Vec<u64> = self.in_flight.range(..last).map(|(version, _)| *version).collect();
        for version in before {
            for nlri in self.in_flight.remove(&version).unwrap_or_default() {
                self.lost(version, nlri);
                self.mark(nlri);
            }
        }
    }

    /// What the parties have of a prefix of an object, a column or a withdrawal is perhaps not what it should be.
    fn lost(&mut self, version: u64, nlri: Nlri) {
        if self.announced.get(&nlri).is_some_and(|last| last.version <= version) {
            self.announced.remove(&nlri);
        }
        if !self.announced.contains_key(&nlri) {
            self.leftover.insert(nlri);
        }
    }

    /// A party refused an object. The next flush waits, so that one that refuses everything is not flooded.
    pub(in super::super) fn refused(&mut self, version: u64, reason: Refusal, now: Instant) {
        self.next_flush = self.next_flush.max(now + RETRY);
        let Some(prefixes) = self.in_flight.remove(&version) else { return };
        self.objects.remove(&version);
        let again = !matches!(
            reason,
            Refusal::MaxPrefix | Refusal::Size | Refusal::Proof | Refusal::BlobSize | Refusal::Stored
        );
        for nlri in prefixes {
            // A column or a withdrawal is refused with the same effect as an announcement.
            self.lost(version, nlri);
            if !again {
                // Whatever the parties still have of it may go to whom it no longer may: it is withdrawn instead.
                self.bar(nlri, Bar::Refused(reason));
            }
            self.mark(nlri);
        }
    }
}

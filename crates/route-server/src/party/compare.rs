//! Comparison at party 1: what a member that connected again, or asks, says that it holds, and what follows from that.
//!
//! A member says the digests of all that it holds. If they are those of what it is to have, it is sent nothing. Otherwise party 1
//! asks for the digests of its buckets, of few members at a time, and sends the buckets that differ. What a member says concerns
//! that member alone: whoever says what is not so lacks routes, or keeps routes that are gone.
//!
//! Digests are compared with the table as it is when the batch that begins to send is proposed, or, for who has had nothing since the
//! parties agreed, as it was then. What the member did not have when
//! it made them differs, and is sent; what changes from that batch on it gets with the batches.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wayleave_core::Instant;

use super::state::State;
use crate::digests::{self, BucketDigests, Differs, Digest, Listed, Roots, Through};
use crate::frames::{Seq, ToMember};
use crate::object_table::Snapshot;

/// Members whose buckets are awaited or held at a time: our own limit, of some megabytes.
const MAX_COMPARING: usize = 16;
/// How long a member may take to send its buckets. Then it is sent everything.
const COMPARE_WAIT: Duration = Duration::from_secs(10);

/// What a member says that it holds.
pub(super) struct Holding {
    /// The last batch that it took.
    pub seq: Seq,
    pub through: Through,
    /// The first epoch of those in which Select-Best chose for it.
    pub epoch: u64,
    /// The digest of what it knows of its own objects.
    pub own: Digest,
    pub held: HeldDigests,
}

pub(super) enum HeldDigests {
    Roots(Roots),
    Buckets { objects: BucketDigests, instances: BucketDigests },
}

/// How far the comparison with a member is.
enum Comparison {
    /// The member is to be asked for its buckets.
    Due,
    Said(Box<Holding>),
    /// It was asked, at this time.
    Requested(Instant),
    /// It wants everything.
    Everything,
}

/// The comparisons with members that are to be sent what they lack.
#[derive(Default)]
pub(super) struct Comparisons {
    of: BTreeMap<u32, Comparison>,
    /// Members whose buckets may still come, though they are no longer awaited.
    overdue: BTreeSet<u32>,
    /// What members were to have when the parties agreed. Who has not been served since is compared with that.
    agreed: Option<Snapshot>,
    /// The first epoch whose choices count: which values changed before it is not known here. `None` before the parties agreed.
    first_epoch: Option<u64>,
}

impl Comparisons {
    /// Whether the member is to be sent something, or to be compared.
    pub(super) fn contains(&self, slot: u32) -> bool {
        self.of.contains_key(&slot)
    }

    /// The member is to be sent what it lacks.
    pub(super) fn request(&mut self, slot: u32) {
        let comparison = self.of.entry(slot).or_insert(Comparison::Due);
        // What it lacks since then is not in what it said.
        if matches!(comparison, Comparison::Said(_)) {
            *comparison = Comparison::Due;
        }
    }

    /// The member wants everything.
    pub(super) fn request_everything(&mut self, slot: u32) {
        if let Some(Comparison::Requested(_)) = self.of.insert(slot, Comparison::Everything) {
            self.overdue.insert(slot);
        }
    }

    /// The parties agree on what they store.
    pub(super) fn agreed(&mut self, party: &mut State) {
        self.agreed = Some(party.objects.snapshot());
        self.first_epoch.get_or_insert(party.membership.epoch());
    }

    /// An epoch begins, and which values it changes is not known.
    pub(super) fn values_are_unknown(&mut self, epoch: u64) {
        self.first_epoch = Some(epoch);
    }

    /// The link between the parties failed: nobody is sent anything until it is up, and what was said is too old then.
    pub(super) fn begin_anew(&mut self) {
        for (slot, comparison) in &mut self.of {
            if matches!(comparison, Comparison::Requested(_)) {
                self.overdue.insert(*slot);
            }
            if !matches!(comparison, Comparison::Everything) {
                *comparison = Comparison::Due;
            }
        }
    }

    /// It is being sent what it lacks.
    pub(super) fn remove(&mut self, slot: u32) {
        self.of.remove(&slot);
    }

    /// It is gone.
    pub(super) fn departed(&mut self, slot: u32) {
        self.of.remove(&slot);
        self.overdue.remove(&slot);
    }

    /// Takes what a member says. `Err` says how it erred.
    pub(super) fn said(&mut self, slot: u32, holding: Holding) -> Result<(), &'static str> {
        if holding.through.objects > holding.seq {
            return Err("it says that it has everything through a batch that it did not take");
        }
        match (self.of.get(&slot), &holding.held) {
            (Some(Comparison::Requested(_)), HeldDigests::Buckets { .. }) => {}
            (_, HeldDigests::Buckets { .. }) if self.overdue.remove(&slot) => return Ok(()),
            (_, HeldDigests::Buckets { .. }) => return Err("digests of buckets that nobody asked for"),
            // It gets everything, or has been asked for more.
            (Some(Comparison::Everything | Comparison::Requested(_)), HeldDigests::Roots(_)) => return Ok(()),
            (_, HeldDigests::Roots(_)) => {}
        }
        self.of.insert(slot, Comparison::Said(Box::new(holding)));
        Ok(())
    }

    /// All such members, ascending.
    pub(super) fn slots(&self) -> impl Iterator<Item = u32> {
        self.of.keys().copied()
    }

    /// Members whose buckets are awaited, and until when.
    pub(super) fn awaited(&self) -> impl Iterator<Item = (u32, Instant)> {
        self.of.iter().filter_map(|(slot, comparison)| match comparison {
            Comparison::Requested(at) => Some((*slot, *at + COMPARE_WAIT)),
            _ => None,
        })
    }

    /// Whether something can be done for the member now.
    pub(super) fn can_go_on(&self, slot: u32, now: Instant) -> bool {
        match self.of.get(&slot) {
            Some(Comparison::Requested(at)) => now >= *at + COMPARE_WAIT,
            Some(Comparison::Due) | None => self.has_capacity(),
            Some(Comparison::Said(_) | Comparison::Everything) => true,
        }
    }

    fn has_capacity(&self) -> bool {
        let is_large = |comparison: &&Comparison| match comparison {
            Comparison::Requested(_) => true,
            Comparison::Said(holding) => matches!(holding.held, HeldDigests::Buckets { .. }),
            Comparison::Due | Comparison::Everything => false,
        };
        self.of.values().filter(is_large).count() < MAX_COMPARING
    }

    /// What the member is to be sent, as far as that is known; otherwise it is asked, in its turn.
    pub(super) fn differs(&mut self, party: &mut State, slot: u32, now: Instant) -> Option<Differs> {
        match self.of.get(&slot) {
            Some(Comparison::Everything) => return Some(Differs::EVERYTHING),
            // Whoever does not answer gets all the same what it is to have.
            Some(Comparison::Requested(at)) if now >= *at + COMPARE_WAIT => {
                self.request_everything(slot);
                return Some(Differs::EVERYTHING);
            }
            Some(Comparison::Requested(_)) => return None,
            Some(Comparison::Said(holding)) => match self.of_holding(party, slot, holding) {
                Some(differs) => return Some(differs),
                None => self.of.insert(slot, Comparison::Due),
            },
            Some(Comparison::Due) | None => None,
        };
        if self.has_capacity() {
            party.offer_to_member(slot, &ToMember::Compare);
            self.of.insert(slot, Comparison::Requested(now));
        } else {
            self.request(slot);
        }
        None
    }

    /// What differs, unless more has to be known.
    fn of_holding(&self, party: &mut State, slot: u32, holding: &Holding) -> Option<Differs> {
        // What was chosen in an epoch that is known, with values that have not changed since, counts.
        let known = self.first_epoch.is_some_and(|first| (first..=party.membership.epoch()).contains(&holding.epoch));
        let own = party.objects.own_digest(slot) != holding.own;
        let (after, agreed) = (holding.through, party.objects.recent().agreed());
        // What was removed with a slot is not among what members are to have, but they are still being told.
        let is_complete = party.objects.table().ending().next().is_none();
        let is_recent =
            known && is_complete && after.results > agreed && party.objects.recent().covers(slot, after.results);
        if is_recent && party.objects.recent().is_any_after(after.results) {
            return Some(Differs { own, since: Some(after), ..Differs::NOTHING });
        }
        let is_current = is_recent || holding.epoch == party.membership.epoch();
        let stale = if is_current { BTreeSet::new() } else { party.batches.relisted().missed(after.objects) };
        // Who has had nothing since the parties agreed is compared with what it was to have then, and gets what changed since.
        let is_unserved = is_complete && holding.seq <= agreed && party.objects.recent().covers(slot, agreed);
        let snapshot = self.agreed.as_ref().filter(|snapshot| is_unserved && snapshot.knows(slot));
        let since_agreed = Some(Through { objects: agreed, results: agreed });
        match &holding.held {
            HeldDigests::Buckets { objects, instances } => {
                let said = (objects, known.then_some(instances), &holding.own);
                let differs = party.objects.differs(slot, said, snapshot);
                if differs == Differs::EVERYTHING {
                    return Some(differs);
                }
                let since = since_agreed.filter(|_| snapshot.is_some() && party.objects.recent().is_any_after(agreed));
                Some(Differs {
                    instances: differs.instances.with(party.objects.table().contested_by(&stale)),
                    since,
                    ..differs
                })
            }
            HeldDigests::Roots(roots) => {
                let (wanted, nothing) = (party.objects.roots(slot), digests::root(&[]));
                if roots.objects == nothing && wanted.objects != nothing {
                    return Some(Differs::EVERYTHING);
                }
                // Where there are no instances, there is nothing in which Select-Best chose.
                let is_chosen = known || wanted.instances == nothing;
                // The prefixes of stale slots are many: they are looked up for those alone that are sent nothing else.
                let instances = |party: &State| Listed::Nothing.with(party.objects.table().contested_by(&stale));
                if known && snapshot.is_some_and(|snapshot| snapshot.roots(slot) == *roots) && *roots != wanted {
                    return Some(Differs { own, instances: instances(party), since: since_agreed, ..Differs::NOTHING });
                }
                (*roots == wanted && is_chosen).then(|| Differs {
                    own,
                    instances: instances(party),
                    ..Differs::NOTHING
                })
            }
        }
    }
}

//! Who is sent what it lacks, at party 1: what a member that connected again, or is in doubt, says that it holds, and what follows from that.
//!
//! A member says the digests of all that it holds. If they are those of what it is to have, it is sent nothing. If it has everything
//! through a batch since which all changes are known, or is one that party 1 itself sent nothing for a while, these changes name the
//! buckets that may differ; otherwise party 1 asks for the digests of its buckets, of few members at a time. What is in them is settled
//! by names ([`Lack`]). What a member says concerns that member alone: whoever says what is not so lacks routes, or keeps routes that
//! are gone.
//!
//! What a slice brings counts as sent once the batch is applied ([`Comparisons::applied`]); with a batch that comes to nothing it is
//! forgotten ([`Comparisons::rejected`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wayleave_core::Instant;

use super::lack::{Again, Half, Lack, Named, Progress, Rest};
use super::state::State;
use crate::digests::{BucketDigests, BucketSet, Digest, Roots, Through};
use crate::frames::{Seq, SessionId, SliceContent, ToMember};
use crate::object_table::Snapshot;

/// Members whose buckets are awaited or held at a time: our own limit, of some megabytes.
const MAX_COMPARING: usize = 16;
/// How long a member may take to send its buckets.
const SAY_WAIT: Duration = Duration::from_secs(10);

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
    Reported(Box<Holding>),
    /// It was asked, at this time.
    Requested(Instant),
    Paused(Box<Pause>),
}

/// Since when a member was sent nothing, which takes up too little.
struct Pause {
    /// The last batch that it was sent.
    since: Seq,
    /// The highest version of its own objects by then.
    own: u64,
    /// What it lacked before.
    before: Rest,
}

/// The comparisons with members that are to be sent what they lack, and those that are being sent that.
#[derive(Default)]
pub(super) struct Comparisons {
    of: BTreeMap<u32, Comparison>,
    /// What the members lack that are being sent it.
    serving: BTreeMap<u32, Lack>,
    /// What members lack that the proposed batch begins to serve, and how far its slices go.
    begins: BTreeMap<u32, Lack>,
    goes_on: BTreeMap<u32, Progress>,
    /// Members whose buckets may still come, though they are no longer awaited.
    overdue: BTreeSet<u32>,
    /// Questions that members have not answered, and the number of the last one.
    open: BTreeMap<u32, u32>,
    question: u32,
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
        if !matches!(comparison, Comparison::Requested(_)) {
            *comparison = Comparison::Due;
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
            *comparison = Comparison::Due;
        }
        self.serving.clear();
        self.rejected();
    }

    /// It is gone.
    pub(super) fn departed(&mut self, slot: u32) {
        self.of.remove(&slot);
        self.overdue.remove(&slot);
        self.open.remove(&slot);
        self.serving.remove(&slot);
    }

    /// It has left the other party: it is not served, but may still answer.
    pub(super) fn left(&mut self, slot: u32) {
        if let Some(Comparison::Requested(_)) = self.of.remove(&slot) {
            self.overdue.insert(slot);
        }
        self.serving.remove(&slot);
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
            // It has been asked for more.
            (Some(Comparison::Requested(_)), HeldDigests::Roots(_)) => return Ok(()),
            (_, HeldDigests::Roots(_)) => {}
        }
        self.of.insert(slot, Comparison::Reported(Box::new(holding)));
        Ok(())
    }

    /// Takes what a member says that it holds in some buckets. `Err` says how it erred.
    pub(super) fn named(&mut self, slot: u32, of: (Half, u32), named: Named) -> Result<(), &'static str> {
        match self.open.get_mut(&slot) {
            Some(open) if *open > 0 => *open -= 1,
            _ => return Err("names of what it holds that nobody asked for"),
        }
        // It may have been asked when it was last served.
        self.serving.get_mut(&slot).map_or(Ok(()), |lack| lack.said(of, named))
    }

    /// All such members, ascending.
    pub(super) fn slots(&self) -> impl Iterator<Item = u32> {
        self.of.keys().copied()
    }

    /// Members whose buckets are awaited, and until when.
    pub(super) fn awaited(&self) -> impl Iterator<Item = (u32, Instant)> {
        self.of.iter().filter_map(|(slot, comparison)| match comparison {
            Comparison::Requested(at) => Some((*slot, *at + SAY_WAIT)),
            _ => None,
        })
    }

    /// Whether something can be done for the member now.
    pub(super) fn can_go_on(&self, slot: u32, now: Instant) -> bool {
        match self.of.get(&slot) {
            Some(Comparison::Requested(at)) => now >= *at + SAY_WAIT,
            Some(Comparison::Due) | None => self.has_capacity(now),
            Some(Comparison::Reported(_) | Comparison::Paused(..)) => true,
        }
    }

    fn has_capacity(&self, now: Instant) -> bool {
        let is_large = |comparison: &&Comparison| match comparison {
            Comparison::Requested(at) => now < *at + SAY_WAIT,
            Comparison::Reported(holding) => matches!(holding.held, HeldDigests::Buckets { .. }),
            Comparison::Due | Comparison::Paused(..) => false,
        };
        self.of.values().filter(is_large).count() < MAX_COMPARING
    }

    /// What the member lacks, as far as that is known; otherwise it is asked, in its turn.
    pub(super) fn lack(&mut self, party: &mut State, slot: u32, now: Instant) -> Option<Lack> {
        self.known(party, slot, now).map(|lack| lack.with_lost(party.objects.table(), slot))
    }

    fn known(&mut self, party: &mut State, slot: u32, now: Instant) -> Option<Lack> {
        let known = match self.of.get(&slot) {
            // Whoever does not answer leaves its place to others: it may lack anything, and is asked for names.
            Some(Comparison::Requested(at)) if now >= *at + SAY_WAIT => {
                self.overdue.insert(slot);
                self.of.insert(slot, Comparison::Due);
                let everything = [BucketSet::Everything, BucketSet::Everything];
                return Some(Lack::of(everything, true, Again { all: true, ..Again::default() }));
            }
            Some(Comparison::Requested(_)) => return None,
            Some(Comparison::Reported(holding)) => self.of_holding(party, slot, holding),
            Some(Comparison::Paused(pause)) => of_pause(party, slot, pause),
            Some(Comparison::Due) | None => None,
        };
        if known.is_some() {
            return known;
        }
        self.of.insert(slot, Comparison::Due);
        if self.has_capacity(now) {
            party.offer_to_member(slot, &ToMember::Compare);
            self.of.insert(slot, Comparison::Requested(now));
        }
        None
    }

    /// What differs, unless more has to be known.
    fn of_holding(&self, party: &mut State, slot: u32, holding: &Holding) -> Option<Lack> {
        // What was chosen in an epoch that is known, with values that have not changed since, counts.
        let known = self.first_epoch.is_some_and(|first| (first..=party.membership.epoch()).contains(&holding.epoch));
        let own = party.objects.own_digest(slot) != holding.own;
        let (through, agreed) = (holding.through, party.objects.recent().agreed());
        let is_current = holding.epoch == party.membership.epoch();
        let of = if is_current { BTreeSet::new() } else { party.batches.relisted().missed(through.objects) };
        let again = Again { all: !known, of };
        let lack = |buckets| Lack::of(with_again(party, buckets, &again), own, again.clone());
        // What was removed with a slot is not among what members are to have, but they are still being told.
        let is_complete = party.objects.table().ending().next().is_none();
        if known && is_complete && through.results > agreed && party.objects.recent().covers(through.results) {
            return Some(lack(party.objects.recent().after(through)));
        }
        match &holding.held {
            HeldDigests::Buckets { objects, instances } => {
                let differing = party.objects.differing(slot, objects, instances);
                Some(Lack::of(with_again(party, differing, &again), own, again))
            }
            HeldDigests::Roots(roots) if *roots == Roots::of_nothing() => {
                let has_nothing = party.objects.roots(slot) == *roots && !own;
                Some(if has_nothing {
                    Lack::of(Default::default(), false, Again::default())
                } else {
                    Lack::everything()
                })
            }
            HeldDigests::Roots(roots) => {
                // Who has had nothing since the parties agreed is compared with what it was to have then, and gets what changed since.
                let is_unserved = is_complete && holding.seq <= agreed && party.objects.recent().covers(agreed);
                let snapshot = self.agreed.as_ref().filter(|_| is_unserved && known);
                let is_as_agreed = snapshot.and_then(|snapshot| snapshot.roots(slot)) == Some(*roots);
                let is_equal = known && party.objects.roots(slot) == *roots;
                if !(is_equal || is_as_agreed) {
                    return None;
                }
                let since = Through { objects: agreed, results: agreed };
                let buckets = if is_equal { Default::default() } else { party.objects.recent().after(since) };
                Some(Lack::of(with_again(party, buckets, &again), own, again))
            }
        }
    }

    /// The proposed batch begins to serve the member.
    pub(super) fn begins(&mut self, slot: u32, lack: Lack) {
        self.of.remove(&slot);
        self.begins.insert(slot, lack);
    }

    /// What a member lacks that is served, or begins to be.
    fn lack_of(&self, slot: u32) -> Option<&Lack> {
        self.begins.get(&slot).or_else(|| self.serving.get(&slot))
    }

    /// Whether a member that is being sent what it lacks has said anew what it holds, and does not say what it was asked for.
    pub(super) fn says_anew(&self, slot: u32) -> bool {
        matches!(self.of.get(&slot), Some(Comparison::Reported(_)))
            && self.serving.get(&slot).is_some_and(Lack::is_asked)
    }

    /// Whether something can be done now for a member that is being sent what it lacks.
    pub(super) fn can_serve(&self, party: &State, slot: u32) -> bool {
        self.serving.get(&slot).is_some_and(|lack| lack.can_go_on(party.objects.table()))
    }

    /// The next slice for a member, which the proposed batch brings it.
    /// Takes what is looked at for it off `looked`.
    pub(super) fn slice(
        &mut self,
        party: &mut State,
        (slot, session): (u32, &SessionId),
        looked: &mut usize,
    ) -> Option<Box<SliceContent>> {
        let lack = self.lack_of(slot)?;
        let (content, progress) =
            lack.slice(party.objects.table(), (slot, session), (*looked, party.env.clocks.unix))?;
        *looked = looked.saturating_sub(progress.looked);
        party.env.counters.scanned += progress.looked as u64;
        self.goes_on.insert(slot, progress);
        Some(Box::new(content))
    }

    /// Asks a member what it holds of what it is sent next, where that must be known.
    pub(super) fn ask(&mut self, party: &mut State, slot: u32) {
        let question = self.question.wrapping_add(1);
        let lack = self.serving.get_mut(&slot);
        if let Some(frame) = lack.and_then(|lack| lack.ask(question, party.batches.seq())) {
            self.question = question;
            *self.open.entry(slot).or_default() += 1;
            party.offer_to_member(slot, &frame);
        }
    }

    /// The batch is applied: what it brings counts as sent.
    pub(super) fn applied(&mut self, party: &mut State, seq: Seq) {
        let goes_on: Vec<u32> = self.begins.keys().chain(self.goes_on.keys()).copied().collect();
        for (slot, mut lack) in std::mem::take(&mut self.begins) {
            lack.begins(seq);
            self.serving.insert(slot, lack);
        }
        for (slot, progress) in std::mem::take(&mut self.goes_on) {
            if let Some(lack) = self.serving.get_mut(&slot) {
                lack.advance(progress, seq, party.objects.recent());
            }
        }
        self.serving.retain(|slot, _| party.batches.is_begun(*slot));
        goes_on.into_iter().for_each(|slot| self.ask(party, slot));
    }

    /// It comes to nothing.
    pub(super) fn rejected(&mut self) {
        self.begins.clear();
        self.goes_on.clear();
    }

    /// The batch `seq` has the member sent nothing more. `own`: the highest version of its own objects before it; `has_all`: whether it has
    /// been sent all ticks before that.
    pub(super) fn paused(&mut self, slot: u32, seq: Seq, own: u64, has_all: bool) {
        let before = self.serving.remove(&slot).map(Lack::rest).unwrap_or_default();
        if self.of.contains_key(&slot) || !has_all {
            return self.request(slot);
        }
        self.of.insert(slot, Comparison::Paused(Box::new(Pause { since: seq - 1, own, before })));
    }

    /// It turns out that a member has not had all that it was sent.
    pub(super) fn has_not_all(&mut self, slot: u32) {
        if let Some(comparison @ Comparison::Paused(_)) = self.of.get_mut(&slot) {
            *comparison = Comparison::Due;
        }
    }
}

/// What a member lacks that was sent nothing for a while, if the changes since are known.
fn of_pause(party: &State, slot: u32, pause: &Pause) -> Option<Lack> {
    let Rest { own, buckets: [mut objects, mut instances], mut again, began } = pause.before.clone();
    let recent = party.objects.recent();
    let results = began.map_or(pause.since, |began| pause.since.min(began.saturating_sub(1)));
    if !recent.covers(results) {
        return None;
    }
    let [of_objects, of_instances] = recent.after(Through { objects: pause.since, results });
    objects.extend(of_objects.from(0));
    instances.extend(of_instances.from(0));
    again.of.extend(party.batches.relisted().missed(pause.since));
    let table = party.objects.table();
    let own = own || table.high_water(slot) != pause.own || table.competition_since(slot) > pause.since;
    Some(Lack::of(with_again(party, [objects, instances], &again), own, again))
}

/// These buckets, and those of instances in which the choice is made anew.
fn with_again(party: &State, [objects, mut instances]: [BucketSet; 2], again: &Again) -> [BucketSet; 2] {
    if again.all {
        instances = BucketSet::Everything;
    } else {
        instances.extend(party.objects.table().contested_by(&again.of));
    }
    [objects, instances]
}

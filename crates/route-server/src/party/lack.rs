//! What a member lacks, at party 1: the buckets in which it may not have what it is to have, and how far they are settled.
//!
//! A bucket is settled by names: the member says what it holds there, and is sent what is missing and the names of what is gone. So what
//! is sent follows from what lacks, however large a bucket is and however many there are. First come the member's own objects by version,
//! then the lost objects, all of them whatever the member has, then objects by handle, then instances by hash; each part has so many octets, lists and names included, and the next one goes on
//! after it. Party 1 names what a part brings ([`SliceContent`]), and both parties send that as it is after the batch.
//!
//! From the batch with which this begins on the member gets all that changes, as everybody does: what is newer is not sent again.

use std::collections::{BTreeMap, BTreeSet};

use wayleave_bgp::Nlri;
use wayleave_core::{Prefix, UnixTime};

use super::recent::RecentChanges;
use super::round;
use crate::digests::{self, BucketSet, ShortName, Through, bucket_of};
use crate::frames::{LostObject, MAX_NAMES, MAX_SLICE, Seq, SessionId, SliceContent, ToMember};
use crate::object::Handle;
use crate::object_table::ObjectTable;

/// Octets of a slice, about: our own limit.
pub(super) const SLICE_BYTES: usize = 512 << 10;
/// Objects and instances that are looked at for the slices of one batch, most of which the members may have: our own limit.
pub(super) const MAX_LOOKED: usize = 1 << 14;
/// Octets of a candidate in the list of a prefix.
const CANDIDATE: usize = 34;
/// Octets of an object beyond its blob, about.
const OBJECT: usize = 128;

/// The two kinds of what a member holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Half {
    Objects,
    Instances,
}

/// What a member holds, by names, with the check of the dead prefixes of an object.
type Names = BTreeMap<ShortName, u32>;

/// Beside the name of an instance: it need not be listed again, or has to be.
pub(super) const DONE: u32 = 0;
pub(super) const OPEN: u32 = 1;

/// What a member says that it holds up to a hash, with the checks of dead prefixes, or with [`DONE`] or [`OPEN`] for instances.
pub(super) struct Named {
    pub through: [u8; 32],
    pub names: Names,
    /// How many it said, with any twice.
    pub said: usize,
}

/// What the member said of the next hashes.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Answer {
    Nothing,
    /// It was asked, by this question. It may take its time: nobody waits for the answer.
    Asked(u32),
    /// It holds these and no others up to a hash: objects with the checks of their dead prefixes, instances with whether they are to be
    /// listed again.
    Names {
        through: [u8; 32],
        names: Names,
    },
    /// It holds nothing at all.
    HoldsNone,
}

/// How far one half is settled.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Unsettled {
    /// Where it may differ.
    buckets: BucketSet,
    /// What is below this hash is settled.
    from: [u8; 32],
    said: Answer,
}

impl Unsettled {
    fn new(buckets: BucketSet, holds_none: bool) -> Self {
        Self { buckets, from: [0; 32], said: if holds_none { Answer::HoldsNone } else { Answer::Nothing } }
    }

    fn is_settled(&self) -> bool {
        match self.buckets {
            BucketSet::Nothing => true,
            BucketSet::Everything => false,
            BucketSet::Some(_) => self.buckets.from(bucket_of(&self.from)).next().is_none(),
        }
    }

    /// What it says of the hashes from `from` on: through which, and what it holds. `None` while that is not known.
    fn known(&self) -> Option<([u8; 32], Option<&Names>)> {
        match &self.said {
            Answer::Names { through, names } => Some((*through, Some(names))),
            Answer::HoldsNone => Some((LAST, None)),
            Answer::Nothing | Answer::Asked(_) => None,
        }
    }

    /// All up to a hash is settled.
    fn settle_through(&mut self, through: [u8; 32]) {
        match after(through) {
            Some(next) => self.from = next,
            None => self.buckets = BucketSet::Nothing,
        }
        if !matches!(self.said, Answer::HoldsNone) {
            self.said = Answer::Nothing;
        }
    }
}

/// The highest hash.
pub(super) const LAST: [u8; 32] = [0xff; 32];

/// The next hash.
fn after(mut hash: [u8; 32]) -> Option<[u8; 32]> {
    for octet in hash.iter_mut().rev() {
        *octet = octet.wrapping_add(1);
        if *octet != 0 {
            return Some(hash);
        }
    }
    None
}

/// Of which instances the choice is made anew though the member has them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Again {
    /// All: what was chosen before is not known to count.
    pub all: bool,
    /// Those with a route of these slots, whose values changed.
    pub of: BTreeSet<u32>,
}

/// What one member lacks that is sent none of it.
#[derive(Clone, Default)]
pub(super) struct Rest {
    /// Whether its own objects are to be listed.
    pub own: bool,
    /// Where objects, and instances, may differ.
    pub buckets: [BucketSet; 2],
    pub again: Again,
    /// The batch from which on it got what changed, if objects were still to come: what was listed since then was not whole.
    pub began: Option<Seq>,
}

/// What one member lacks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Lack {
    /// The version from which on its own objects are still to be listed; `None` once all are.
    own: Option<u64>,
    /// The same of the handles of lost objects.
    lost: Option<Handle>,
    halves: [Unsettled; 2],
    again: Again,
    /// The batch from which on it gets all that changes, and the one with which it had the last of its objects: what was listed before
    /// that it could not look at whole.
    began: Option<Seq>,
    listed: Option<Seq>,
}

/// How far a slice goes.
#[derive(Default)]
pub(super) struct Progress {
    /// Objects and instances that were looked at.
    pub looked: usize,
    own: Option<u64>,
    lost: Option<Handle>,
    halves: [Reach; 2],
}

/// How far a slice goes in one half.
#[derive(Clone, Default)]
enum Reach {
    #[default]
    None,
    /// Up to this hash, which is still to be sent, having come by these that the member has.
    To([u8; 32], Vec<ShortName>),
    /// Through this hash.
    Through([u8; 32]),
}

/// What a slice may still take.
struct SliceBudget {
    octets: usize,
    items: usize,
    looked: usize,
    most: usize,
}

impl SliceBudget {
    fn is_full(&self) -> bool {
        self.octets >= SLICE_BYTES || self.items >= MAX_SLICE as usize || self.looked >= self.most
    }

    fn add(&mut self, octets: usize) {
        self.octets += octets;
        self.items += 1;
    }
}

impl Lack {
    /// Of a member that lacks nothing but what may differ in these buckets of objects and of instances.
    pub(super) fn of([objects, instances]: [BucketSet; 2], own: bool, again: Again) -> Self {
        let halves = [Unsettled::new(objects, false), Unsettled::new(instances, false)];
        Self { own: own.then_some(0), lost: None, halves, again, began: None, listed: None }
    }

    /// Of one that holds nothing.
    pub(super) fn everything() -> Self {
        let all = || Unsettled::new(BucketSet::Everything, true);
        Self { own: Some(0), lost: None, halves: [all(), all()], again: Again::default(), began: None, listed: None }
    }

    /// Whoever is sent what it lacks is told what is lost, also if it lacks nothing else.
    pub(super) fn with_lost(self, table: &ObjectTable, slot: u32) -> Self {
        let concerns = |object: &LostObject| object.concerns(slot) && !table.has_ended(object.slot);
        Self { lost: table.lost().iter().any(concerns).then_some(Handle([0; 32])), ..self }
    }

    /// Whether it has what it is to have: what it lacks is at most to be told what is lost.
    pub(super) fn is_equal(&self) -> bool {
        self.own.is_none() && self.halves.iter().all(Unsettled::is_settled)
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.is_equal() && self.lost.is_none()
    }

    /// Whether its own objects are listed.
    pub(super) fn lists_own(&self) -> bool {
        self.own.is_some()
    }

    /// What it still lacks, where it is sent no more of it for now.
    pub(super) fn rest(self) -> Rest {
        let began = self.began.filter(|_| !self.halves[0].is_settled());
        let buckets = self.halves.map(|mut half| {
            half.buckets.retain_from(bucket_of(&half.from));
            half.buckets
        });
        Rest { own: self.own.is_some(), buckets, again: self.again, began }
    }

    /// The member gets all that changes from this batch on.
    pub(super) fn begins(&mut self, seq: Seq) {
        self.began = Some(seq);
        if self.halves[0].is_settled() {
            self.listed = Some(seq);
        }
    }

    /// The half of which something is sent next.
    fn current(&self) -> Option<&Unsettled> {
        self.halves.iter().find(|half| !half.is_settled())
    }

    /// Whether something can be sent, or asked, now.
    pub(super) fn can_go_on(&self, table: &ObjectTable) -> bool {
        match self.current() {
            _ if self.own.is_some() || self.lost.is_some() => true,
            Some(_) => !self.is_asked(),
            None => may_end(table),
        }
    }

    /// Whether the answer to a question is awaited, before anything else is sent.
    pub(super) fn is_asked(&self) -> bool {
        self.own.is_none()
            && self.lost.is_none()
            && self.current().is_some_and(|half| matches!(half.said, Answer::Asked(_)))
    }

    /// Asks the member, by a question of this number, what it holds after a batch of what comes next, if that has to be known.
    pub(super) fn ask(&mut self, question: u32, after: Seq) -> Option<ToMember> {
        let mut halves = [Half::Objects, Half::Instances].into_iter().zip(&mut self.halves);
        let (kind, half) =
            halves.find(|(_, half)| !half.is_settled()).filter(|(_, half)| half.said == Answer::Nothing)?;
        let (buckets, from) = (half.buckets.clone(), half.from);
        half.said = Answer::Asked(question);
        Some(match kind {
            Half::Objects => ToMember::NameObjects { question, after, buckets, from: Handle(from) },
            Half::Instances => ToMember::NameInstances { question, after, buckets, from },
        })
    }

    /// Takes the answer to a question, if that is open. `Err` says how the member erred.
    pub(super) fn said(&mut self, (half, question): (Half, u32), named: Named) -> Result<(), &'static str> {
        let unsettled = &mut self.halves[half as usize];
        if !matches!(unsettled.said, Answer::Asked(open) if open == question) {
            return Ok(());
        }
        if named.through < unsettled.from {
            return Err("it says what it holds in another place than it was asked for");
        }
        // Only what one frame does not hold is another answer: each one costs a batch.
        if named.said > MAX_NAMES || named.through != LAST && named.said < MAX_NAMES {
            return Err("it says a part of what it holds where it was asked for all that a frame has room for");
        }
        unsettled.said = Answer::Names { through: named.through, names: named.names };
        Ok(())
    }

    /// The next slice for the member in `slot`, for which so many objects and instances may be looked at, and how far it goes; `None` if the
    /// member must say something first.
    pub(super) fn slice(
        &self,
        table: &ObjectTable,
        (slot, session): (u32, &SessionId),
        (most, now): (usize, UnixTime),
    ) -> Option<(SliceContent, Progress)> {
        let mut budget = SliceBudget { octets: 0, items: 0, looked: 0, most };
        let mut content = SliceContent::default();
        let mut progress = Progress { own: self.own, lost: self.lost, ..Progress::default() };
        self.list_own(table, slot, (&mut content, &mut progress), &mut budget);
        if progress.own.is_none() {
            self.list_lost(table, (slot, now), (&mut content, &mut progress), &mut budget);
        }
        let mut is_settled = self.halves.each_ref().map(Unsettled::is_settled);
        let is_listed = progress.own.is_none() && progress.lost.is_none();
        if is_listed && !is_settled[0] && !budget.is_full() {
            progress.halves[0] = self.objects(table, (slot, session), &mut content, &mut budget);
            is_settled[0] = self.is_settled_after(Half::Objects, &progress.halves[0]);
        }
        if is_listed && is_settled[0] && !is_settled[1] && !budget.is_full() {
            progress.halves[1] = self.instances(table, session, &mut content, &mut budget);
            is_settled[1] = self.is_settled_after(Half::Instances, &progress.halves[1]);
        }
        // Who lacks nothing to begin with has nothing of what is still being told.
        let lacks_nothing = self.began.is_none() && self.is_nothing();
        content.ends = is_listed && is_settled == [true; 2] && (lacks_nothing || may_end(table));
        content.settled = is_settled[0].then(|| match &progress.halves[1] {
            Reach::To(next, _) => *next,
            Reach::Through(last) => after(*last).unwrap_or(LAST),
            Reach::None => self.halves[1].from,
        });
        let SliceContent { own, own_ends, objects, died, prefixes, gone, gone_instances, lost, settled: _, ends } =
            &content;
        // That it has all objects is said with the batch that begins: from then on changes are whole for it.
        let has_objects = self.began.is_none() && content.settled.is_some();
        let is_empty = own.is_empty()
            && !(*own_ends || *ends || has_objects)
            && objects.is_empty()
            && died.is_empty()
            && prefixes.is_empty()
            && gone.is_empty()
            && gone_instances.is_empty()
            && lost.is_empty();
        progress.looked = budget.looked;
        // Where it has all of what it was asked for, the next it is asked is another part.
        let goes_on = progress.lost != self.lost || progress.halves.iter().any(|step| !matches!(step, Reach::None));
        (!is_empty || goes_on).then_some((content, progress))
    }

    fn is_settled_after(&self, half: Half, step: &Reach) -> bool {
        let Reach::Through(last) = step else { return false };
        after(*last).is_none_or(|next| self.halves[half as usize].buckets.from(bucket_of(&next)).next().is_none())
    }

    fn list_own(
        &self,
        table: &ObjectTable,
        slot: u32,
        (content, progress): (&mut SliceContent, &mut Progress),
        budget: &mut SliceBudget,
    ) {
        let Some(from) = self.own else { return };
        let mut own = table.own_of(slot, from).peekable();
        while let Some(object) = own.next_if(|_| !budget.is_full()) {
            budget.add(16 + 22 * object.live.len());
            content.own.push(object.version);
        }
        progress.own = own.next().map(|object| object.version);
        content.own_ends = progress.own.is_none();
    }

    fn list_lost(
        &self,
        table: &ObjectTable,
        (slot, now): (u32, UnixTime),
        (content, progress): (&mut SliceContent, &mut Progress),
        budget: &mut SliceBudget,
    ) {
        let Some(from) = self.lost else { return };
        let all = table.lost().by_handle(from);
        let mut lost = all.filter(|object| object.concerns(slot) && !table.has_ended(object.slot)).peekable();
        while let Some(object) = lost.next_if(|_| !budget.is_full()) {
            budget.add(40 + 2 * object.prefixes.len());
            let seconds = now.0.saturating_sub(object.since) / 1_000_000;
            content.lost.push((object.slot, object.version, u32::try_from(seconds).unwrap_or(u32::MAX)));
        }
        progress.lost = lost.next().map(|object| object.handle);
    }

    fn objects(
        &self,
        table: &ObjectTable,
        (slot, session): (u32, &SessionId),
        content: &mut SliceContent,
        budget: &mut SliceBudget,
    ) -> Reach {
        let half = &self.halves[0];
        let Some((through, names)) = half.known() else { return Reach::None };
        let mut matched = Vec::new();
        for (handle, (announcer, version)) in table.objects_in(&half.buckets, Handle(half.from)) {
            if handle.0 > through {
                break;
            }
            if budget.is_full() {
                return Reach::To(handle.0, matched);
            }
            budget.looked += 1;
            let Some(entry) = table.entry(announcer, version).filter(|entry| slot < entry.width) else { continue };
            let held = names.and_then(|names| {
                let name = digests::name(session, &handle.0);
                Some((name, *names.get(&name)?))
            });
            match held {
                Some((name, check)) => {
                    matched.push(name);
                    if check != entry.dead_check(session) {
                        budget.add(CANDIDATE * entry.dead.len());
                        content.died.push((announcer, version));
                    }
                }
                None if self.began.is_some_and(|began| entry.since(slot) >= began) => {}
                None => {
                    budget.add(entry.octets() as usize + OBJECT);
                    content.objects.push((announcer, version));
                }
            }
        }
        content.gone = gone(names, matched, budget);
        Reach::Through(through)
    }

    fn instances(
        &self,
        table: &ObjectTable,
        session: &SessionId,
        content: &mut SliceContent,
        budget: &mut SliceBudget,
    ) -> Reach {
        let half = &self.halves[1];
        let Some((through, names)) = half.known() else { return Reach::None };
        let is_again = |prefix: &Prefix| {
            (self.again.all || table.announcers_of(prefix).any(|slot| self.again.of.contains(&slot)))
                && table.routes_of(prefix) > 1
        };
        let mut matched = Vec::new();
        for (hash, prefix, since) in table.instances_in(&half.buckets, half.from) {
            if hash > through {
                break;
            }
            if budget.is_full() {
                return Reach::To(hash, matched);
            }
            budget.looked += 1;
            let name = names.map(|_| digests::name(session, &hash));
            let held = name.and_then(|name| names?.get(&name));
            matched.extend(name.filter(|_| held.is_some()));
            let is_newer = self.listed.is_some_and(|listed| since >= listed);
            if !is_newer && (held != Some(&DONE) || is_again(&prefix)) {
                budget.add(4 + CANDIDATE * table.routes_of(&prefix));
                content.prefixes.push(prefix);
            }
        }
        content.gone_instances = gone(names, matched, budget);
        Reach::Through(through)
    }

    /// The slice is on its way, with this batch; `recent` has what changed with this one and those before.
    pub(super) fn advance(&mut self, progress: Progress, seq: Seq, recent: &RecentChanges) {
        (self.own, self.lost) = (progress.own, progress.lost);
        let had_objects = self.halves[0].is_settled();
        for (half, step) in self.halves.iter_mut().zip(progress.halves) {
            match step {
                Reach::None => {}
                Reach::To(next, matched) => {
                    half.from = next;
                    if let Answer::Names { names, .. } = &mut half.said {
                        matched.iter().for_each(|name| {
                            names.remove(name);
                        });
                    }
                }
                Reach::Through(through) => half.settle_through(through),
            }
        }
        if !had_objects && self.halves[0].is_settled() {
            self.listed = Some(seq);
            // What was listed since it began may be of objects that had not come.
            let since = self.began.unwrap_or(seq).saturating_sub(1);
            if recent.covers(since) {
                let [_, instances] = recent.after(Through { objects: since, results: since });
                self.halves[1].buckets.extend(instances.from(0));
            } else {
                self.halves[1].buckets = BucketSet::Everything;
            }
        }
    }
}

/// What was named and is not there.
fn gone(names: Option<&Names>, matched: Vec<ShortName>, budget: &mut SliceBudget) -> Vec<ShortName> {
    let matched: BTreeSet<ShortName> = matched.into_iter().collect();
    let gone: Vec<ShortName> =
        names.into_iter().flat_map(BTreeMap::keys).filter(|name| !matched.contains(*name)).copied().collect();
    budget.octets += gone.len() * size_of::<ShortName>();
    gone
}

/// Whether a member can be told what it is to have: what was removed with a slot is not among that, but members are still being told.
fn may_end(table: &ObjectTable) -> bool {
    table.ending().next().is_none()
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

/// How many lost objects are forgotten with one batch, of those that have been lost since a time or before: as many as it has room to name to
/// each member.
pub(super) fn objects_to_forget(table: &ObjectTable, until: u64) -> u32 {
    let (mut objects, mut octets) = (0, 0);
    for object in table.lost().by_age(until) {
        octets += CANDIDATE * object.prefixes.len();
        if objects > 0 && octets > SLICE_BYTES || objects == MAX_SLICE {
            break;
        }
        objects += 1;
    }
    objects
}

/// Octets, about, that it takes to name dead routes to these prefixes, and to list what is left of each.
pub(super) fn listing<'a>(table: &ObjectTable, prefixes: impl Iterator<Item = &'a Nlri>) -> usize {
    prefixes.map(|nlri| 2 * CANDIDATE + CANDIDATE * table.routes_of(&nlri.prefix)).sum()
}

#[cfg(test)]
mod tests {
    //! SIX, names: what a member lacks, of buckets of any size, comes in slices of bounded size, each part once, and what is gone is named.

    use std::sync::Arc;

    use wayleave_crypto::commit::Commitment;
    use wayleave_crypto::secret::{Secret, Seed};
    use wayleave_crypto::sign::SigningKey;

    use super::*;
    use crate::object::{Description, ExportMode, Format, Header, Kind, ShareOne};
    use crate::object_table::{ObjectEntry, Part};

    const SESSION: SessionId = [9; 16];
    const SLOT: u32 = 3;

    /// Entries with these handles, each with one prefix of its own.
    fn table(handles: impl Iterator<Item = [u8; 32]>) -> ObjectTable {
        let key = SigningKey::from_seed(&Secret::new([1; 32]));
        let blob: Arc<[u8]> = vec![0; 512].into();
        let mut table = ObjectTable::new();
        let mut signed = None;
        for (number, handle) in (1u32..).zip(handles) {
            let [a, b, c, d] = (0x1400_0000 + number).to_be_bytes();
            let prefixes = vec![Nlri::new(format!("{a}.{b}.{c}.{d}/32").parse().expect("a prefix"))];
            let version = u64::from(number);
            let (format, kind) = (Format::default(), Kind::Announce { prefixes });
            let description = Description { format, slot: 0, set: 1, epoch: 1, version, salt: [7; 32], kind };
            // One signature for all: nobody checks it here.
            let header = signed.get_or_insert_with(|| {
                Header::sign("test", description.clone(), [0; 32], [Commitment([0; 32]); 2], &key)
            });
            let header = Arc::new(Header { description, ..header.clone() });
            let share = ShareOne { opening: [0; 32], seed: Seed::new([0; 32]) };
            let part = Part::One { share, columns: Vec::new(), blob: Arc::clone(&blob) };
            let (digest, mode, dead, since) = ([0; 32], ExportMode::Direct, BTreeSet::new(), Vec::new());
            table.restore(ObjectEntry { header, digest, handle: Handle(handle), mode, width: 8, dead, part, since });
        }
        table.settle();
        table
    }

    /// A hash in a bucket.
    fn in_bucket(bucket: u16, number: u32) -> [u8; 32] {
        let mut hash = digests::name(&[0; 16], &[number as u8; 32]).repeat(4);
        hash[..2].copy_from_slice(&(bucket << 4).to_be_bytes());
        hash[2..6].copy_from_slice(&number.wrapping_mul(2_654_435_761).to_be_bytes());
        hash.try_into().expect("32 octets")
    }

    /// What a member is sent that holds some objects and no instances, and answers what it is asked. Returns the objects that came, what it
    /// named and is gone, and the slices.
    fn serve(table: &ObjectTable, mut lack: Lack, held: &BTreeSet<[u8; 32]>) -> (Vec<(u32, u64)>, usize, usize) {
        let (mut objects, mut gone, mut slices) = (Vec::new(), 0, 0);
        let recent = RecentChanges::default();
        lack.begins(1);
        for batch in 2.. {
            let answer = match lack.ask(7, batch) {
                Some(ToMember::NameObjects { buckets, from, .. }) => {
                    let asked = held.range(from.0..).filter(|hash| buckets.has(bucket_of(hash)));
                    let first: Vec<[u8; 32]> = asked.copied().take(MAX_NAMES).collect();
                    let through = first.last().filter(|_| first.len() == MAX_NAMES).copied().unwrap_or(LAST);
                    let names = first.iter().map(|hash| (digests::name(&SESSION, hash), 0)).collect();
                    let said = first.len();
                    Some((Half::Objects, Named { through, names, said }))
                }
                Some(_) => Some((Half::Instances, Named { through: LAST, names: BTreeMap::new(), said: 0 })),
                None => None,
            };
            if let Some((half, named)) = answer {
                assert!(!lack.can_go_on(table), "it waits for the answer");
                lack.said((half, 7), named).expect("an answer");
            }
            assert!(lack.can_go_on(table));
            let (content, progress) =
                lack.slice(table, (SLOT, &SESSION), (MAX_LOOKED, UnixTime(0))).expect("something goes on");
            let octets = content.objects.len() * (512 + OBJECT) + content.prefixes.len() * (4 + CANDIDATE);
            assert!(octets < SLICE_BYTES + 1_000, "{octets}");
            objects.extend(content.objects);
            gone += content.gone.len();
            slices += 1;
            lack.advance(progress, batch, &recent);
            if content.ends {
                assert!(lack.is_nothing());
                break;
            }
        }
        (objects, gone, slices)
    }

    #[test]
    fn of_a_bucket_with_250_000_objects_what_lacks_is_sent_and_nothing_else() {
        const OBJECTS: u32 = 250_000;
        const LACKS: u32 = 3_000;
        let table = table((0..OBJECTS).map(|number| in_bucket(77, number)));
        let mut held: BTreeSet<[u8; 32]> = (LACKS..OBJECTS).map(|number| in_bucket(77, number)).collect();
        held.extend((0..500).map(|number| in_bucket(77, OBJECTS + number)));
        let [mut objects, instances] = [BucketSet::Nothing, BucketSet::Nothing];
        objects.extend([77]);
        let (came, gone, slices) = serve(&table, Lack::of([objects, instances], false, Again::default()), &held);
        let distinct: BTreeSet<(u32, u64)> = came.iter().copied().collect();
        assert_eq!((came.len(), distinct.len(), gone), (LACKS as usize, LACKS as usize, 500));
        assert!(came.iter().all(|(_, version)| *version <= u64::from(LACKS)));
        assert!(slices < 40, "{slices} slices");
    }

    #[test]
    fn whoever_holds_nothing_gets_each_object_and_each_list_once() {
        let table = table((0..20_000).map(|number| in_bucket((number % 4_096) as u16, number)));
        let (came, gone, _) = serve(&table, Lack::everything(), &BTreeSet::new());
        let distinct: BTreeSet<(u32, u64)> = came.iter().copied().collect();
        assert_eq!((came.len(), distinct.len(), gone), (20_000, 20_000, 0));
    }

    #[test]
    fn an_answer_to_another_question_changes_nothing_and_one_of_another_place_is_an_error() {
        let table = table((0..10).map(|number| in_bucket(7, number)));
        let mut buckets = BucketSet::Nothing;
        buckets.extend([7]);
        let mut lack = Lack::of([buckets, BucketSet::Nothing], false, Again::default());
        assert!(lack.ask(5, 1).is_some());
        let of = |said: usize, through| Named { through, names: BTreeMap::new(), said };
        let named = |through| of(if through == LAST { 0 } else { MAX_NAMES }, through);
        lack.said((Half::Objects, 4), named(LAST)).expect("it is passed over");
        lack.said((Half::Instances, 5), named(LAST)).expect("it is passed over");
        assert!(lack.slice(&table, (SLOT, &SESSION), (MAX_LOOKED, UnixTime(0))).is_none());
        assert!(lack.said((Half::Objects, 5), of(3, in_bucket(7, 0))).is_err(), "a part without need");
        assert!(lack.said((Half::Objects, 5), of(MAX_NAMES + 1, LAST)).is_err(), "more than a frame has");
        lack.said((Half::Objects, 5), named(in_bucket(7, 0))).expect("a part");
        let (content, progress) = lack.slice(&table, (SLOT, &SESSION), (MAX_LOOKED, UnixTime(0))).expect("that part");
        assert!(!content.objects.is_empty());
        lack.advance(progress, 2, &RecentChanges::default());
        assert!(lack.ask(6, 2).is_some(), "what it holds behind that");
        assert!(lack.said((Half::Objects, 6), named([0; 32])).is_err());
    }

    #[test]
    fn what_a_bucket_lacks_after_a_pause_is_what_is_not_settled() {
        let mut buckets = BucketSet::Nothing;
        buckets.extend([3, 7, 9]);
        let mut lack = Lack::of([buckets, BucketSet::Everything], true, Again::default());
        let halves = [Reach::To(in_bucket(7, 0), Vec::new()), Reach::None];
        lack.advance(Progress { halves, ..Progress::default() }, 2, &RecentChanges::default());
        let Rest { own, buckets: [objects, instances], .. } = lack.rest();
        assert_eq!(objects.from(0).collect::<Vec<u16>>(), [7, 9]);
        assert_eq!((own, instances), (false, BucketSet::Everything));
    }
}

//! The member as receiver: pairs the two parties' ticks, opens what it may have, and keeps what lives.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::{Asn, Instant, Now, Prefix, VerdictKind};

use super::announce::Inventory;
use super::backlog::{Look, Unopened, Urgency};
use super::limits::Limits;
use super::listed::first_by;
use super::select::{DueRanking, Round};
use super::{Alarm, Cause, Finding, Member, MemberConfig, MemberEvent, MemberOutput, Question, Saying, Suspect, index};
use crate::credit;
use crate::data::Data;
use crate::digests::{self, BucketDigests, InstanceHash, Roots, ShortName, Through, bucket_of};
use crate::directory::{MemberSet, Slot};
use crate::frames::{Body, Candidate, Deliver, FromMember, Instance, Slice, Tick, round_order};
use crate::object::{self, Handle, OpenError};
use crate::party::PartyNumber;
use crate::policy::Policy;
use crate::policy::ranking::{Rank, RankInput, rank_alone};
use crate::policy::treatments;
use crate::policy::validate::{self, Known};
use crate::schedule;

/// How long after it was asked a member says what it holds, where a tick is longer: the parties wait for it.
const LATEST_SAYING: Duration = Duration::from_secs(1);
/// Octets, about, of ticks that wait for the other party's: our own limit. While one link stands still, small ticks come over the other
/// for longer than a link lives.
const MAX_HALVES: usize = 2 * credit::TO_MEMBER as usize;
/// So often in a row what came is not what the parties say before somebody is told.
const MAX_FAILED: u32 = 2;
/// What a tick takes in memory beyond its octets, about.
const HALF: usize = 512;

/// A live object, opened if this member may open it.
pub(super) struct ReceivedObject {
    /// What came of it, until it has its turn to be opened.
    pub unopened: Option<Unopened>,
    pub opened: Option<Arc<OpenRoute>>,
    /// Whether it is not what the parties and its announcer should have made: it is opened again if it comes again.
    pub is_broken: bool,
    /// Whether a prefix of it may have been listed, and ranked, before it came.
    pub is_late: bool,
    pub dead: BTreeSet<u16>,
    /// The assessment of each prefix, computed once; `None` after the policy or a finding changed.
    pub assessment: Option<Vec<Assessment>>,
    pub validation: Validation,
    /// When it came.
    pub since: Instant,
}

/// What this member lacks is being sent.
pub(super) struct Sync {
    /// Whether it is the first time in the session.
    is_first: bool,
    /// Whether the list of own objects is sent.
    lists_own: bool,
    /// Objects that came.
    objects: usize,
    /// The own objects so far.
    own: Inventory,
    /// What this member named and the parties do not have. It goes at the end, since what replaces it comes with a later slice, perhaps.
    gone: HashSet<Handle>,
    gone_instances: HashMap<InstanceHash, Candidate>,
    died: Vec<Candidate>,
    /// All that is lost, as far as it has been listed, and for how many seconds it has been.
    lost: BTreeMap<Candidate, u32>,
}

/// What this member named to party 1 last.
#[derive(Default)]
pub(super) struct Named {
    objects: HashMap<ShortName, Handle>,
    /// Each with its first candidate.
    instances: HashMap<ShortName, (InstanceHash, Candidate)>,
}

/// The state of a route's validation.
pub(super) enum Validation {
    /// Not requested: the route could not become best so far.
    NotRequested,
    /// Requested, without a result so far.
    Pending,
    /// One per prefix.
    Done(Vec<Finding>),
}

impl Validation {
    pub(super) fn of(&self, prefix_index: usize) -> Option<&Finding> {
        match self {
            Validation::Done(findings) => findings.get(prefix_index),
            Validation::NotRequested | Validation::Pending => None,
        }
    }
}

/// How this member assesses one prefix of an open route.
#[derive(Clone, Copy)]
pub(super) struct Assessment {
    pub prefix: Prefix,
    /// Whether the route is valid for the prefix and validation has a result.
    pub usable: bool,
    pub verdict: VerdictKind,
    /// Its rank, if it is usable and import rules accept it.
    pub rank: Option<Rank>,
    /// Its best possible rank and the verdict needed for it, while validation has no result and import rules could
    /// accept the route.
    pub best_case: Option<(Rank, VerdictKind)>,
    /// Why it is not valid ([`validate::Invalid::name`]).
    pub refused: Option<&'static str>,
}

/// A route that this member may have.
pub(super) struct OpenRoute {
    pub slot: u32,
    pub prefixes: Vec<Nlri>,
    pub attributes: Attributes,
    /// How many hops this member added to the path, since its announcer asks it to, and the attributes without them, as they were signed.
    pub prepended: Option<Box<(u8, Attributes)>>,
    /// Whom its attestation is for ([`object::Opened::signed_for`]).
    pub set: [u8; 32],
}

impl OpenRoute {
    /// The attributes as their announcer may have signed them.
    pub(super) fn signed(&self) -> &Attributes {
        self.prepended.as_ref().map_or(&self.attributes, |prepended| &prepended.1)
    }

    /// What validation found of a route, with the hops that were added since.
    pub(super) fn with_hops(&self, finding: &Finding) -> Finding {
        let times = self.prepended.as_ref().map_or(0, |prepended| prepended.0);
        let attributes = finding.attributes.clone().map(|attributes| treatments::prepend(attributes, times));
        Finding { attributes, ..finding.clone() }
    }

    /// The route to one of its prefixes, as rules and rankings look at it.
    pub(super) fn rank_input<'a>(&'a self, nlri: &Nlri, announcer: &'a Slot, verdict: VerdictKind) -> RankInput<'a> {
        let (prefix, path_id) = (nlri.prefix, nlri.path_id);
        RankInput { prefix, attributes: &self.attributes, announcer, path_id, verdict }
    }
}

impl ReceivedObject {
    /// The prefix in `place`, if the route is open and lives there.
    pub(super) fn prefix(&self, prefix_index: u16) -> Option<Prefix> {
        if self.dead.contains(&prefix_index) {
            return None;
        }
        Some(self.opened.as_ref()?.prefixes.get(usize::from(prefix_index))?.prefix)
    }

    /// The prefixes that live, if the route is open, each with its announcer.
    pub(super) fn live(&self) -> impl Iterator<Item = (u32, Prefix)> {
        let numbered = self.opened.iter().flat_map(|open| (0u16..).zip(&open.prefixes).map(|one| (open.slot, one)));
        numbered.filter(|(_, (index, _))| !self.dead.contains(index)).map(|(slot, (_, nlri))| (slot, nlri.prefix))
    }
}

impl Member {
    /// Takes one party's tick, which waits for the other party's.
    pub(super) fn half_tick(&mut self, party: PartyNumber, tick: Box<Tick>, now: Now) {
        let seq = tick.seq;
        if seq <= self.last_seq {
            self.counters.replayed += 1;
            return;
        }
        let halves = self.halves.entry(seq).or_default();
        if halves[index(party)].is_some() {
            self.fail(party, "two ticks for one batch".to_owned(), now);
            return;
        }
        self.halves_octets += HALF + tick.octets();
        halves[index(party)] = Some((tick, self.presented[index(party)].clone(), self.epochs[index(party)]));
        if let [Some(_), Some(_)] = halves {
            let older_waits = self.halves.keys().next() != Some(&seq);
            let Some([Some((one, first, epoch)), Some((two, second, _))]) = self.halves.remove(&seq) else { return };
            let octets = |tick: &Tick| HALF + tick.octets();
            self.halves_octets = self.halves_octets.saturating_sub(octets(&one) + octets(&two));
            if !self.agree_on_set(first, second, now) {
                return;
            }
            if older_waits && !begins(&one) {
                // One party skipped a batch that the other made: start from all that lives.
                self.clear_halves();
                self.in_doubt();
                self.request_resync();
                return;
            }
            let later = self.halves.split_off(&seq);
            let older = std::mem::replace(&mut self.halves, later);
            let gone: usize = older.values().flatten().flatten().map(|(tick, ..)| octets(tick)).sum();
            self.halves_octets = self.halves_octets.saturating_sub(gone);
            self.tick_epoch = epoch;
            self.tick(*one, *two, now);
        } else if self.halves_octets > MAX_HALVES {
            self.other_is_late(party, now);
        }
    }

    /// A party sent more than is kept for the time until the other one's ticks come. None of them erred: it is the other link that is slow.
    fn other_is_late(&mut self, party: PartyNumber, now: Now) {
        let late = if party == PartyNumber::One { PartyNumber::Two } else { PartyNumber::One };
        let (ticks, ours) = (self.halves.len(), [party, late].map(super::number));
        let reason =
            format!("party {} has not sent {ticks} ticks that party {} sent, and no more can wait", ours[1], ours[0]);
        self.close(late, reason, false, now);
    }

    pub(super) fn clear_halves(&mut self) {
        self.halves.clear();
        self.halves_octets = 0;
    }

    pub(super) fn request_resync(&mut self) {
        self.counters.resyncs += 1;
        self.saying.get_or_insert(Saying::Roots);
    }

    /// Says what this member holds a tick after it was asked or came to doubt it, so that the moment does not show how much work
    /// what came before was.
    pub(super) fn say_due(&mut self, now: Now) {
        if !self.has_to_say() {
            return;
        }
        let due = *self.saying_due.get_or_insert(now.instant + self.tick.min(LATEST_SAYING));
        if due > now.instant {
            return;
        }
        self.saying_due = None;
        match self.saying.take() {
            Some(Saying::Roots) => self.send_held(),
            Some(Saying::Buckets) => self.send_buckets(),
            None => {}
        }
        let (now, later) =
            std::mem::take(&mut self.questions).into_iter().partition(|question| question.after() <= self.last_seq);
        self.questions = later;
        let now: Vec<Question> = now;
        now.into_iter().for_each(|question| self.answer(question));
    }

    /// Whether something is to be said, as far as what it is of has come.
    pub(super) fn has_to_say(&self) -> bool {
        self.saying.is_some() || self.questions.iter().any(|question| question.after() <= self.last_seq)
    }

    /// Party 1 asks what this member holds. What it asked of the same kind before it does not wait for any more.
    pub(super) fn asked(&mut self, question: Question) {
        self.questions.retain(|before| std::mem::discriminant(before) != std::mem::discriminant(&question));
        self.questions.push(question);
    }

    /// Says what this member holds of some buckets, whether it could open it or not.
    fn answer(&mut self, question: Question) {
        let Some(session) = self.session else { return };
        let name = |hash: &[u8; 32]| digests::name(&session, hash);
        match question {
            Question::Objects { question, buckets, from, .. } => {
                let held = self.routes.keys().filter(|handle| **handle >= from && buckets.has(bucket_of(&handle.0)));
                let mut held: Vec<Handle> = held.copied().collect();
                let through = Handle(first_by(&mut held, |handle| handle.0));
                // What is named again is not gone any more, as far as is known.
                if let Some(sync) = &mut self.sync {
                    // They are in order: both may be many.
                    sync.gone.retain(|handle| held.binary_search(handle).is_err());
                }
                let named = |handle: &Handle| {
                    let dead = self.routes[handle].dead.iter().copied();
                    (name(&handle.0), digests::dead_check(&session, handle, dead))
                };
                let names: Vec<(ShortName, u32)> = held.iter().map(named).collect();
                self.named.objects = names.iter().map(|(name, _)| *name).zip(held).collect();
                self.send(PartyNumber::One, &FromMember::ObjectNames { question, through, names });
            }
            Question::Instances { question, buckets, from, .. } => {
                let (through, held) = self.instances.name((&buckets, &from), self.config.select_best);
                self.named.instances.clear();
                let (mut names, mut open) = (Vec::new(), Vec::new());
                for (hash, first, is_done) in held {
                    let name = name(&hash);
                    if let Some(sync) = &mut self.sync {
                        sync.gone_instances.remove(&hash);
                    }
                    self.named.instances.insert(name, (hash, first));
                    if is_done { names.push(name) } else { open.push(name) }
                }
                self.send(PartyNumber::One, &FromMember::InstanceNames { question, through, names, open });
            }
        }
    }

    /// Notes what this member named and the parties do not have.
    fn note_gone(&mut self, slice: &Slice) {
        let Some(sync) = &mut self.sync else { return };
        sync.gone.extend(slice.gone.iter().filter_map(|name| self.named.objects.remove(name)));
        sync.died.extend(&slice.died);
        for (handle, seconds, indices) in &slice.lost {
            sync.lost.extend(indices.iter().map(|index| ((*handle, *index), *seconds)));
        }
        sync.gone_instances.extend(slice.gone_instances.iter().filter_map(|name| self.named.instances.remove(name)));
    }

    /// All that was to be sent has come, and what is gone goes; the router keeps what is lost.
    fn drop_gone(&mut self, now: Now) {
        let Some(sync) = &mut self.sync else { return };
        let lost = std::mem::take(&mut sync.lost);
        self.keep_lost(&lost, now);
        let Some(sync) = &mut self.sync else { return };
        for (handle, prefix_index) in std::mem::take(&mut sync.died) {
            self.instances.died(&(handle, prefix_index));
            self.mark_dead(handle, prefix_index);
        }
        let gone = self.sync.as_mut().map(|sync| std::mem::take(&mut sync.gone));
        gone.into_iter().flatten().for_each(|handle| self.drop_route(&handle));
    }

    /// Tells party 1 what this member holds, so that it is sent the rest.
    pub(super) fn send_held(&mut self) {
        let (seq, own, epoch) = (self.last_seq, self.announcements.own_digest(), self.first_epoch());
        let objects = digests::root(&self.objects_held());
        let instances = digests::root(&self.instances.done(self.config.select_best));
        let (through, roots) = (self.through(), Roots { objects, instances });
        self.send(PartyNumber::One, &FromMember::Holds { seq, through, epoch, roots, own });
    }

    /// Tells party 1 the same by buckets.
    pub(super) fn send_buckets(&mut self) {
        let (seq, own, epoch) = (self.last_seq, self.announcements.own_digest(), self.first_epoch());
        let (objects, instances) = (self.objects_held(), self.instances.done(self.config.select_best));
        let through = self.through();
        self.send(PartyNumber::One, &FromMember::Buckets { seq, through, epoch, objects, instances, own });
    }

    fn first_epoch(&self) -> u64 {
        self.instances.first_epoch().unwrap_or(self.tick_epoch)
    }

    /// The last batches through which this member has everything.
    fn through(&self) -> Through {
        let objects = self.complete;
        Through { objects, results: objects.min(self.instances.done_through(self.config.select_best)) }
    }

    /// This member lacks something, or may, of this batch or those before it: it has everything again once it has been sent that.
    fn in_doubt(&mut self) {
        self.is_in_doubt = true;
    }

    /// Digests of the objects that came, whether this member could open them or not.
    fn objects_held(&self) -> BucketDigests {
        let mut held: Vec<(&Handle, &BTreeSet<u16>)> =
            self.routes.iter().map(|(handle, route)| (handle, &route.dead)).collect();
        held.sort_unstable_by_key(|(handle, _)| **handle);
        let digest = |bucket: &[(&Handle, &BTreeSet<u16>)]| {
            digests::of_objects(bucket.iter().map(|(handle, dead)| (*handle, dead.iter().copied())))
        };
        digests::by_bucket(&held, |(handle, _)| &handle.0, digest)
    }

    /// Takes a batch. All that follows from it publicly is done at once; what depends on what this member may open waits in the
    /// backlog.
    fn tick(&mut self, mut one: Tick, mut two: Tick, now: Now) {
        self.last_seq = one.seq;
        if !alike(&one, &two) {
            let what = "the two parties describe a batch differently".to_owned();
            self.alarm(Alarm { what, handle: None, suspects: both_parties() });
            self.in_doubt();
            self.request_resync();
            return;
        }
        // Ticks of a session before its first slice, and slices without a first one, change nothing.
        if !begins(&one) && self.sync.is_none() && (!self.synced || one.slice.is_some()) {
            self.in_doubt();
            return;
        }
        self.counters.ticks += 1;
        if let Some(lists_own) = one.slice.as_ref().and_then(|slice| slice.begins) {
            self.begin_sync(lists_own);
        }
        for (handle, prefix_index) in &one.dead {
            self.instances.died(&(*handle, *prefix_index));
            self.mark_dead(*handle, *prefix_index);
            self.lost_died(&(*handle, *prefix_index));
            if let Some(sync) = &mut self.sync {
                sync.lost.remove(&(*handle, *prefix_index));
            }
        }
        for handle in &one.gone {
            self.drop_route(handle);
        }
        let deliver = std::mem::take(&mut one.deliver).into_iter().zip(std::mem::take(&mut two.deliver));
        let mut came = Vec::with_capacity(deliver.len());
        for (first, second) in deliver {
            if let Some(sync) = &mut self.sync {
                sync.objects += 1;
                sync.gone.remove(&first.handle);
            }
            came.push(first.handle);
            self.delivered(first, second);
        }
        if let Some(slice) = &one.slice {
            self.list_own(slice);
        }
        let own = self.sync.as_mut().map(|sync| &mut sync.own);
        self.announcements.applied(&one.applied, own);
        let own = self.sync.as_mut().map(|sync| &mut sync.own);
        self.announcements.competition(&one.outside, &one.inside, own);
        if let Some(first) = one.outside.first() {
            self.event(MemberEvent::NotCompeting { routes: one.outside.len(), prefix: first.prefix.to_string() });
        }
        let ends = one.slice.as_ref().and_then(|slice| slice.ends);
        let ended = std::mem::take(&mut self.touched);
        one.slice.iter().for_each(|slice| self.note_gone(slice));
        let lost = if ends.is_some() { self.sync.as_ref().map_or(0, |sync| sync.lost.len()) } else { 0 };
        if ends.is_some() {
            self.drop_gone(now);
        }
        let unranked: BTreeSet<usize> = one.unranked.iter().map(|place| *place as usize).collect();
        let live = one.live as usize;
        // Objects that a slice brings are none that changed just now, and nothing tells them apart.
        let changed = if one.slice.is_some() { &[][..] } else { &came };
        let changed = (self.sync.is_some() || self.is_in_doubt).then_some(changed);
        let list = |(place, candidates)| {
            self.list((one.seq, one.rank), candidates, (unranked.contains(&place).then_some(changed), place < live))
        };
        let numbers = one.instances.iter().enumerate().map(list).collect();
        self.instances.settle();
        let candidates = one.instances.iter().map(|candidates| candidates.len()).sum();
        // What is kept of what is lost takes no longer than to open it.
        self.schedule.came(schedule::work(came.len() + lost, candidates), now.instant);
        let rows = if one.rank { self.begin_round(&one, numbers, now) } else { Vec::new() };
        self.look_later(&one, rows, &unranked);
        came.into_iter().for_each(|handle| self.backlog.open(one.seq, handle));
        if let Some(wanted) = ends {
            self.end_sync(wanted);
        }
        if self.sync.is_none() && !self.is_in_doubt {
            self.complete = one.seq;
        }
        let mut stale = std::mem::take(&mut self.touched);
        // What ended while this member was away is replaced by what the slices list, the last of which may be to come.
        if begins(&one) {
            self.ended_away.extend(ended);
        } else {
            self.hold(Urgency::Live, one.seq, ended);
        }
        if ends.is_some() {
            stale.append(&mut self.ended_away);
        }
        self.hold(Urgency::Later, one.seq, stale);
    }

    /// The first slice of what this member lacks has come.
    fn begin_sync(&mut self, lists_own: bool) {
        // What it was told is gone before it was paused goes at the end all the same, unless it is named again.
        let before = self.sync.take().map(|sync| (sync.gone, sync.gone_instances, sync.died));
        let (own, (gone, gone_instances, died)) = (Inventory::default(), before.unwrap_or_default());
        let (is_first, lost) = (!self.synced, BTreeMap::new());
        self.sync = Some(Sync { is_first, lists_own, objects: 0, own, gone, gone_instances, died, lost });
        // What is sent from here on is what it lacked before, whatever the reason.
        self.is_in_doubt = false;
        self.ahead = None;
        self.deferred = None;
        self.lost_since = None;
    }

    /// Takes note of the candidates of a prefix; `stays`: what was chosen does, and what changed ([`Instances::list_own_change`]);
    /// `is_live`: they changed just now. Returns the number of the instance.
    fn list(
        &mut self,
        (seq, rank): (u64, bool),
        candidates: &Instance,
        (stays, is_live): (Option<Option<&[Handle]>>, bool),
    ) -> usize {
        let is_whole = candidates.iter().all(|(handle, _)| self.routes.contains_key(handle));
        if let Some(changed) = stays {
            self.instances.list_own_change(self.tick_epoch, candidates, (is_whole, changed))
        } else {
            // What this member is sent later than others may have changed with any batch.
            let since = if is_live || self.sync.is_none() { seq } else { 0 };
            let ranks = rank && candidates.len() > 1;
            let number = self.instances.list((seq, since, self.tick_epoch), candidates, (is_whole, ranks));
            // Digests follow a synchronisation: now it is spread over its slices.
            if self.sync.is_some() {
                self.instances.hash(number);
            }
            number
        }
    }

    /// Begins a round, with a ranking of nothing. Returns the places of the instances that need one, in the order of the ranking, each
    /// with where its octets of the ranking begin.
    fn begin_round(&mut self, tick: &Tick, numbers: Vec<usize>, now: Now) -> Vec<(usize, usize)> {
        let mut round = Round::new(self.tick_epoch, now.instant);
        let (mut rows, mut octets) = (Vec::new(), 0);
        for place in round_order(&tick.instances, tick.live as usize) {
            let candidates = &tick.instances[place];
            rows.push((place, octets));
            round.multi.push((Arc::clone(candidates), numbers[place], None));
            octets += candidates.len() * 2;
        }
        self.open_round(tick.seq, round);
        let (at, ranking) = (self.schedule.ranking(now.instant, self.tick), vec![0; octets]);
        self.rankings_due.push_back(DueRanking { at, seq: tick.seq, ranking });
        rows
    }

    /// The candidates of prefixes are looked at one after the other: those first over which Select-Best decides.
    fn look_later(&mut self, tick: &Tick, rows: Vec<(usize, usize)>, unranked: &BTreeSet<usize>) {
        let is_in_round = |place: &usize| tick.rank && tick.instances[*place].len() > 1;
        let others = (0..tick.instances.len()).filter(|place| !is_in_round(place)).map(|place| (place, None));
        let in_round = rows.into_iter().enumerate().map(|(number, (place, at))| (place, Some((number, at))));
        for (place, row) in in_round.chain(others) {
            let urgency = if place < tick.live as usize { Urgency::Live } else { Urgency::Later };
            let (candidates, stays) = (Arc::clone(&tick.instances[place]), unranked.contains(&place));
            self.backlog.look(urgency, tick.seq, Look { candidates, row: row.filter(|_| !stays), stays });
        }
    }

    /// Own objects of a slice; once all are listed, the member may announce.
    fn list_own(&mut self, slice: &Slice) {
        let Some(sync) = &mut self.sync else { return };
        for own in &slice.own {
            sync.own.list(own);
        }
        if !slice.own_ends {
            return;
        }
        if sync.lists_own {
            self.announcements.inventory(std::mem::take(&mut sync.own));
        }
        if !self.synced {
            // Retries what was refused for good too: the refusal may have been a transient fault.
            self.announcements.mark_all_dirty();
        }
        self.synced = true;
    }

    /// All that was to be sent has come. What this member has now must be what both parties have for it.
    fn end_sync(&mut self, wanted: Roots) {
        let Some(sync) = self.sync.take() else { return };
        self.named = Named::default();
        sync.gone_instances.iter().for_each(|(hash, first)| self.instances.gone(hash, first));
        self.forget_unlisted();
        self.find_not_competing();
        let roots =
            Roots { objects: digests::root(&self.objects_held()), instances: digests::root(&self.instances.all()) };
        let has_come = |(handle, _): &Candidate| self.routes.contains_key(handle);
        let failed = std::mem::take(&mut self.failed_syncs);
        if roots != wanted {
            self.sync_failed(failed);
        } else if self.instances.is_overtaken(has_come) {
            // Changes of prefixes came before the objects that were on their way. It is compared again, and gets those prefixes.
            self.request_resync();
        }
        if sync.is_first {
            let own = self.announcements.at_parties();
            self.event(MemberEvent::Synced { objects: sync.objects, own });
        }
    }

    /// After all was sent, what this member has is not what the parties have for it; as often before, in a row.
    fn sync_failed(&mut self, failed: u32) {
        self.failed_syncs = failed.saturating_add(1);
        // Once may be what changed meanwhile: what this member said was of a time before.
        if self.failed_syncs == MAX_FAILED {
            let what =
                "the parties sent all that this member lacked, and it is not what they say that it is".to_owned();
            self.alarm(Alarm { what, handle: None, suspects: both_parties() });
        }
        // What the parties send since some batch is not enough.
        self.complete = 0;
        self.in_doubt();
        self.request_resync();
    }

    pub(super) fn drop_route(&mut self, handle: &Handle) {
        self.touch_all(handle);
        self.awaited.remove(handle);
        let gone = self.routes.remove(handle);
        gone.iter().flat_map(ReceivedObject::live).for_each(|(slot, prefix)| self.limits.went(slot, prefix));
        self.instances.lost(handle);
        if let Some(unopened) = gone.as_ref().and_then(|route| route.unopened.as_ref()) {
            self.backlog.went(unopened);
        }
        let is_validated = gone.is_some_and(|route| !matches!(route.validation, Validation::NotRequested));
        if is_validated && !self.kept.has(handle) {
            self.output.push_back(MemberOutput::Forget { handle: *handle });
        }
    }

    pub(super) fn touch_all(&mut self, handle: &Handle) {
        if let Some(open) = self.routes.get(handle).and_then(|route| route.opened.as_ref()) {
            self.touched.extend(open.prefixes.iter().map(|nlri| nlri.prefix));
        }
    }

    /// A prefix of an object is dead.
    fn mark_dead(&mut self, handle: Handle, prefix_index: u16) {
        let Some(route) = self.routes.get_mut(&handle) else { return };
        let prefix = route.prefix(prefix_index);
        route.dead.insert(prefix_index);
        if let (Some(prefix), Some(open)) = (prefix, &route.opened) {
            self.limits.went(open.slot, prefix);
        }
        self.touched.extend(prefix);
    }

    /// Both parties' halves of a delivery.
    fn delivered(&mut self, one: Deliver, two: Deliver) {
        let dead: BTreeSet<u16> = one.dead.iter().copied().collect();
        if let Some(route) = self.routes.get_mut(&one.handle).filter(|route| !route.is_broken) {
            // Already known: a full tick repeats all live objects, with the prefixes that died meanwhile.
            let newly: Vec<u16> = dead.difference(&route.dead).copied().collect();
            for prefix_index in newly {
                self.mark_dead(one.handle, prefix_index);
            }
            return;
        }
        self.counters.delivered += 1;
        let handle = one.handle;
        self.lost_came(&handle);
        // What came before, broken, was listed as if it were whole.
        let is_late = self.instances.are_partial() || self.routes.contains_key(&handle);
        let unopened = Box::new((one, two));
        self.backlog.came(&unopened);
        self.routes.insert(
            handle,
            ReceivedObject {
                unopened: Some(unopened),
                opened: None,
                is_broken: false,
                is_late,
                dead,
                assessment: None,
                validation: Validation::NotRequested,
                since: self.at,
            },
        );
    }

    /// Opens an object, if this member may. `Err` is what is wrong with it.
    pub(super) fn open(&self, one: &Deliver, two: &Deliver) -> Result<Option<OpenRoute>, Alarm> {
        let handle = one.handle;
        let alarm = |what: &str, suspects: Vec<Suspect>| Alarm {
            what: what.to_owned(),
            handle: Some(handle.to_string()),
            suspects,
        };
        let (Body::Blob(blob), Body::Hash(hash)) = (&one.body, &two.body) else {
            return Err(alarm("a party sent what the other party must send", both_parties()));
        };
        if object::blob_hash(blob) != *hash {
            return Err(alarm("party 1's blob is not the one that party 2 names", both_parties()));
        }
        let opened = object::open(&self.config.exchange, one.epoch, &handle, [&one.share, &two.share], blob);
        let opened = match opened {
            Ok(None) => return Ok(None),
            Ok(Some(opened)) if !self.config.speaks.formats.include(opened.description.format.number()) => {
                return Ok(None);
            }
            // Its announcer announces it again once it knows that not all members read it.
            Err(OpenError::Format(_)) => return Ok(None),
            Ok(Some(opened)) => opened,
            Err(error @ OpenError::Key) => {
                return Err(alarm(&error.to_string(), [both_parties(), vec![Suspect::Announcer(None)]].concat()));
            }
            Err(error) => return Err(alarm(&error.to_string(), vec![Suspect::Announcer(None)])),
        };
        let slot = opened.description.slot;
        let by = vec![Suspect::Announcer(Some(slot))];
        let keys = self.keys.get(slot as usize).filter(|keys| !keys.is_empty());
        let keys = keys.ok_or_else(|| alarm("the announcer is not in the member set", both_parties()))?;
        if !keys.iter().any(|key| opened.is_signed_by(&handle, key)) {
            return Err(alarm("the announcer's signature does not fit", by));
        }
        let attributes = Attributes::decode(&opened.attributes)
            .map_err(|error| alarm(&format!("the route's attributes: {error}"), by.clone()))?;
        let prefixes = opened.description.prefixes().to_vec();
        let own = self.set.as_ref().and_then(|set| set.slot(self.config.slot));
        let receiver = own.map_or(Asn(0), |own| own.asn);
        let (signed, times) = treatments::received(attributes, self.config.rs_asn, receiver);
        let attributes = treatments::prepend(signed.clone(), times);
        let prepended = (times > 0).then(|| Box::new((times, signed)));
        Ok(Some(OpenRoute { slot, prefixes, attributes, prepended, set: opened.signed_for }))
    }

    /// Assesses a candidate; `None` if this member may not open it, or it is dead.
    pub(super) fn assessment(&mut self, (handle, prefix_index): &Candidate) -> Option<Assessment> {
        let Self { routes, set, policy, config, origins, aspas, data, limits, .. } = self;
        let route = routes.get_mut(handle)?;
        let open = route.opened.as_ref()?;
        if route.dead.contains(prefix_index) {
            return None;
        }
        let rpki = Known { vrps: origins.as_deref(), aspas: aspas.as_deref() };
        let known = (policy.as_ref(), rpki, data.in_force(), &*limits);
        let assessment =
            route.assessment.get_or_insert_with(|| assess(open, &route.validation, set.as_ref(), known, config));
        assessment.get(usize::from(*prefix_index)).copied()
    }
}

/// Validates and ranks each prefix of a route.
fn assess(
    open: &OpenRoute,
    validation: &Validation,
    set: Option<&MemberSet>,
    (policy, rpki, data, limits): (&Policy, Known<'_>, Option<&Data>, &Limits),
    config: &MemberConfig,
) -> Vec<Assessment> {
    let receiver = set.and_then(|set| set.slot(config.slot)).map(|slot| slot.asn);
    // One that was removed counts no more, though its routes are said to be dead with later batches.
    let announcer = set.and_then(|set| set.active(open.slot));
    let assess_prefix = |(prefix_index, nlri): (usize, &Nlri)| {
        let verdict = VerdictKind::default();
        let mut assessment =
            Assessment { prefix: nlri.prefix, usable: false, verdict, rank: None, best_case: None, refused: None };
        let (Some(receiver), Some(announcer)) = (receiver, announcer) else { return assessment };
        let rules = config.rules(set, data);
        if let Err(invalid) = validate::validate_for(receiver, nlri.prefix, &open.attributes, announcer, rules) {
            assessment.refused = Some(Cause::of(&invalid).name());
            return assessment;
        }
        let known = validate::validate_known(nlri.prefix, &open.attributes, announcer, rpki, rules);
        if let Err(invalid) = known.and_then(|()| limits.check(open.slot, nlri.prefix)) {
            assessment.refused = Some(Cause::of(&invalid).name());
            return assessment;
        }
        let stands = |verdict| rank_alone(policy, &open.rank_input(nlri, announcer, verdict));
        let known =
            if config.validates { validation.of(prefix_index).map(|finding| finding.verdict) } else { Some(verdict) };
        match known {
            Some(verdict) => {
                let refused = validation.of(prefix_index).is_some_and(|finding| finding.attributes.is_none());
                assessment.rank = if refused { None } else { stands(verdict) };
                (assessment.usable, assessment.verdict) = (true, verdict);
            }
            None => {
                let kinds = if policy.imports_by_verdict() { &KINDS[..] } else { &KINDS[..1] };
                assessment.best_case = kinds
                    .iter()
                    .filter_map(|kind| Some((stands(*kind)?, *kind)))
                    .max_by_key(|(rank, kind)| (rank.of_one_route(), *kind));
            }
        }
        assessment
    };
    open.prefixes.iter().enumerate().map(assess_prefix).collect()
}

/// All verdicts, the best first.
const KINDS: [VerdictKind; 5] =
    [VerdictKind::Valid, VerdictKind::Gap, VerdictKind::Unattested, VerdictKind::Expired, VerdictKind::Invalid];

fn both_parties() -> Vec<Suspect> {
    vec![Suspect::Party(1), Suspect::Party(2)]
}

/// Whether a tick has the first slice of what this member lacks.
fn begins(tick: &Tick) -> bool {
    tick.slice.as_ref().is_some_and(|slice| slice.begins.is_some())
}

/// Whether the two parties made the same batch: all but shares and bodies.
fn alike(one: &Tick, two: &Tick) -> bool {
    let same = |(a, b): (&Deliver, &Deliver)| a.handle == b.handle && a.epoch == b.epoch && a.dead == b.dead;
    one.seq == two.seq
        && one.view == two.view
        && one.slice == two.slice
        && one.applied == two.applied
        && one.dead == two.dead
        && one.gone == two.gone
        && one.instances == two.instances
        && one.live == two.live
        && one.rank == two.rank
        && one.unranked == two.unranked
        && one.outside == two.outside
        && one.inside == two.inside
        && one.deliver.len() == two.deliver.len()
        && one.deliver.iter().zip(&two.deliver).all(same)
}

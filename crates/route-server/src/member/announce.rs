//! The member as announcer: the router's routes, what the parties have of them, and what is still to be sent.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::wire;
use wayleave_core::{Instant, Now, Prefix};
use wayleave_crypto::secret::{Key128, Seed};

use super::barred::Barred;
use super::dirty::Dirty;
use super::{Member, MemberEvent, MemberOutput, RESERVE, VERSION_KEY};
use crate::digests::{self, Digest};
use crate::directory::MemberSet;
use crate::frames::{FromMember, MAX_PATHS, OwnObject as Listed, Refusal};
use crate::object::{self, Description, ExportMode, Fresh, Kind, MAX_COLUMN, MAX_PREFIXES};
use crate::party::{Change, PartyNumber, PersistId};
use crate::policy::validate::{Invalid, validate};
use crate::policy::{ExportSet, export_set, sealed_attributes};
use crate::rng::Draw;

/// Objects that may be in flight: our own limit, so that a member never floods a party.
const WINDOW: usize = 512;
/// Octets of a column, about: our own limit.
const COLUMN_OCTETS: usize = 256 << 10;
/// Prefixes that one flush looks at: our own limit, so that a table that is confirmed again stalls nothing.
const MAX_SCAN: usize = 8_192;

/// How often objects that did not change are announced again after a reload, and how many each time: our own limit of 500
/// objects a second, so that what changes meanwhile goes first and parties are not flooded.
const REPEAT_INTERVAL: Duration = Duration::from_millis(100);
const REPEAT_BURST: usize = 50;

/// Version numbers of objects. Each is used once, over all restarts of the process.
pub(super) struct Versions {
    next: u64,
    /// Versions below this may be used: the store has reserved them.
    reserved: u64,
    writing: Option<(PersistId, u64)>,
}

impl Versions {
    /// A party has seen `version`: lower ones and itself cannot be used.
    pub(super) fn seen(&mut self, version: u64) {
        self.next = self.next.max(version.saturating_add(1));
    }

    pub(super) fn durable(&mut self, id: PersistId) {
        if let Some((_, until)) = self.writing.take_if(|(writing, _)| *writing == id) {
            self.reserved = until;
        }
    }

    /// Whether no version is left. The slot can then announce nothing more.
    pub(super) fn are_spent(&self) -> bool {
        self.next == u64::MAX
    }

    fn take(&mut self) -> Option<u64> {
        if self.next >= self.reserved {
            return None;
        }
        self.next += 1;
        Some(self.next - 1)
    }
}

/// A route of the router, and the UPDATE that brought it: the prefixes of one may share an object, and no others, so
/// that parties see which prefixes shared an UPDATE and not which routes are alike.
struct RouterRoute {
    update: u64,
    attributes: Attributes,
    /// The members that they were signed for ([`MemberSet::neighbours_digest`]); `None` if they were not signed.
    under: Option<[u8; 32]>,
}

/// What was last announced to the parties for a prefix; the attributes as the router sent them.
struct AnnouncedRoute {
    version: u64,
    attributes: Attributes,
    exported: ExportSet,
}

impl AnnouncedRoute {
    /// Slots that the row of its object covers.
    fn width(&self) -> u32 {
        u32::try_from(self.exported.width()).expect("the directory bounds the slots of a set")
    }
}

/// An own object since the start of the process, as far as columns need it.
struct OwnObject {
    prefixes: Vec<Nlri>,
    key: Key128,
    seed: Seed,
    epoch: u64,
    width: u32,
}

/// Routes that are announced again though nothing of them changed, so that a reload does not show which of them it concerns.
struct Repeats {
    /// What is still to be announced, and the UPDATE that had brought it when it came to wait.
    waiting: BTreeMap<Nlri, u64>,
    /// An UPDATE, and prefixes of one object that it brought. Those that no longer wait, or that another UPDATE brought
    /// meanwhile, are passed over.
    queue: VecDeque<(u64, Vec<Nlri>)>,
    next: Instant,
}

/// How a route of the own router stands at the parties.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum OwnState {
    /// Both have it; so many slots may open it.
    Announced(usize),
    /// It is being sent, or waits for that.
    UnderWay,
    /// It is not announced.
    Barred(Bar),
}

/// Why a route of the own router is not announced.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Bar {
    /// A party refused it for good.
    #[error("a party refused it: {0}")]
    Refused(Refusal),
    #[error("no receiver would use it: {0}")]
    Invalid(Invalid),
    /// It would be one too many: the slot's prefix limit.
    #[error("it would exceed this member's prefix limit of {0}")]
    OverLimit(u32),
    #[error("{MAX_PATHS} other paths of this member to the prefix compete already, and an exchange takes no more")]
    SurplusPath,
    #[error("its attributes take {octets} octets sealed, and this exchange takes at most {most}")]
    TooLarge { octets: usize, most: u32 },
}

/// The parties' inventory of this member's objects, as far as it has been listed.
#[derive(Default)]
pub(super) struct Inventory {
    /// Which version owns each live prefix, and the slots that its row covers.
    held: BTreeMap<Nlri, (u64, u32)>,
    /// Live objects.
    live: BTreeSet<u64>,
}

impl Inventory {
    pub(super) fn add(&mut self, version: u64, width: u32, live: &[Nlri]) {
        self.held.extend(live.iter().map(|nlri| (*nlri, (version, width))));
        self.live.insert(version);
    }
}

/// The announcing half of a member's state.
pub(super) struct Announcements {
    pub(super) versions: Versions,
    router: BTreeMap<Nlri, RouterRoute>,
    updates: u64,
    announced: BTreeMap<Nlri, AnnouncedRoute>,
    /// Prefixes that the parties hold, or may hold, from before this process started.
    leftover: BTreeSet<Nlri>,
    dirty: Dirty,
    /// Prefixes that were refused for good, or that no receiver would use: not announced before the router, the member set or a new
    /// session changes something, or there is room again.
    barred: Barred,
    /// The last one of those refused for their octets that was tried again.
    retried: Option<Nlri>,
    repeats: Repeats,
    objects: BTreeMap<u64, OwnObject>,
    in_flight: BTreeMap<u64, Vec<Nlri>>,
    is_settled: bool,
    pub(super) settles_at: Option<Instant>,
    pub(super) next_flush: Instant,
}

impl Announcements {
    pub(super) fn new(used: u64, now: Instant) -> Self {
        Self {
            versions: Versions { next: used.saturating_add(1), reserved: 0, writing: None },
            router: BTreeMap::new(),
            updates: 0,
            announced: BTreeMap::new(),
            leftover: BTreeSet::new(),
            dirty: Dirty::default(),
            barred: Barred::default(),
            retried: None,
            repeats: Repeats { waiting: BTreeMap::new(), queue: VecDeque::new(), next: now },
            objects: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            is_settled: false,
            settles_at: None,
            next_flush: now,
        }
    }

    /// Whether something can be sent now.
    pub(super) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty() && self.in_flight.len() < WINDOW
    }

    /// What the parties know of the prefix has to be looked at.
    fn mark(&mut self, nlri: Nlri) {
        let route = self.router.get(&nlri).filter(|_| !self.barred.contains(&nlri));
        self.dirty.insert(nlri, route.map(|route| route.update));
    }

    fn mark_each(&mut self, prefixes: impl IntoIterator<Item = Nlri>) {
        prefixes.into_iter().for_each(|nlri| self.mark(nlri));
    }

    /// When a route is next announced again though nothing of it changed.
    pub(super) fn next_repeat(&self) -> Option<Instant> {
        (!self.repeats.queue.is_empty() && self.in_flight.len() < WINDOW).then_some(self.repeats.next)
    }

    /// Announces everything again, `most` prefixes in an object at most: first what waits since the last time, so that
    /// frequent reloads leave nothing out, then by prefix. The order follows from what the parties know.
    pub(super) fn repeat_all(&mut self, most: usize) {
        let waiting = std::mem::take(&mut self.repeats.queue).into_iter().flat_map(|(_, prefixes)| prefixes);
        let mut order: Vec<Nlri> = waiting.filter(|nlri| self.repeats.waiting.remove(nlri).is_some()).collect();
        let first: BTreeSet<Nlri> = order.iter().copied().collect();
        order.extend(self.announced.keys().filter(|nlri| !first.contains(nlri)));
        let mut places: HashMap<u64, usize> = HashMap::new();
        let mut groups: Vec<(u64, Vec<Nlri>)> = Vec::new();
        for nlri in order {
            let Some(route) = self.router.get(&nlri) else { continue };
            let place = *places.entry(route.update).or_insert(groups.len());
            if place == groups.len() {
                groups.push((route.update, Vec::new()));
            }
            groups[place].1.push(nlri);
        }
        let each = groups.iter().flat_map(|(update, prefixes)| prefixes.iter().map(|nlri| (*nlri, *update)));
        self.repeats.waiting = each.collect();
        let objects = groups.iter().flat_map(|(update, prefixes)| prefixes.chunks(most).map(|part| (*update, part)));
        self.repeats.queue = objects.map(|(update, prefixes)| (update, prefixes.to_vec())).collect();
    }

    /// Whether a version is available; if not, the store is reserving more.
    pub(super) fn has_versions(&self) -> bool {
        self.versions.next < self.versions.reserved
    }

    pub(super) fn router_routes(&self) -> usize {
        self.router.len()
    }

    /// What became of the router's routes to a prefix: their attributes, and how they stand at the parties.
    pub(super) fn own_routes(&self, prefix: &Prefix) -> Vec<(&Attributes, OwnState)> {
        let of_prefix = self.router.iter().filter(|(nlri, _)| nlri.prefix == *prefix);
        of_prefix.map(|(nlri, route)| (&route.attributes, self.own_state(nlri))).collect()
    }

    fn own_state(&self, nlri: &Nlri) -> OwnState {
        if let Some(reason) = self.barred.get(nlri) {
            return OwnState::Barred(reason.clone());
        }
        let is_under_way = self.in_flight.values().any(|prefixes| prefixes.contains(nlri));
        match self.announced.get(nlri) {
            Some(last) if !is_under_way && !self.dirty.contains(nlri) => OwnState::Announced(last.exported.count()),
            _ => OwnState::UnderWay,
        }
    }

    pub(super) fn unconfirmed(&self) -> usize {
        self.in_flight.len() + self.dirty.len() + self.repeats.waiting.len()
    }

    pub(super) fn router_up(&mut self, settles_at: Instant) {
        self.settles_at = Some(settles_at);
    }

    /// The router's session is down: all that it announced is gone.
    pub(super) fn router_down(&mut self) {
        self.settles_at = None;
        let gone = std::mem::take(&mut self.router);
        self.mark_each(gone.into_keys());
    }

    pub(super) fn router_update(&mut self, withdrawn: &[Nlri], announced: &[Nlri], attributes: Option<&Attributes>) {
        for nlri in withdrawn {
            if self.router.remove(nlri).is_some() {
                self.barred.remove(nlri);
                self.mark(*nlri);
                self.make_place(nlri);
            }
        }
        if let Some(attributes) = attributes {
            self.announce(announced, attributes, None);
        }
    }

    /// The router's routes, signed for the members whose list has this digest.
    pub(super) fn signed(&mut self, announced: &[Nlri], attributes: &Attributes, under: [u8; 32]) {
        self.announce(announced, attributes, Some(under));
    }

    fn announce(&mut self, announced: &[Nlri], attributes: &Attributes, under: Option<[u8; 32]>) {
        self.updates += 1;
        for nlri in announced {
            if self.router.get(nlri).is_none_or(|known| known.attributes != *attributes || known.under != under) {
                let route = RouterRoute { update: self.updates, attributes: attributes.clone(), under };
                let is_new = self.router.insert(*nlri, route).is_none();
                if is_new || self.barred.contains(nlri) {
                    // Those with higher identifiers may have to make way.
                    let higher = *nlri..=Nlri { path_id: u32::MAX, ..*nlri };
                    let higher: Vec<Nlri> = self.router.range(higher).skip(1).map(|(path, _)| *path).collect();
                    higher.into_iter().for_each(|path| self.mark(path));
                }
                self.barred.remove(nlri);
                self.mark(*nlri);
            }
        }
    }

    /// Whether so many paths with lower identifiers compete for the prefix that the parties would not let this one.
    fn is_surplus(&self, nlri: &Nlri) -> bool {
        let lower = self.router.range(Nlri { path_id: 0, ..*nlri }..*nlri).map(|(lower, _)| lower);
        lower.filter(|lower| !self.barred.contains(lower)).take(MAX_PATHS).count() == MAX_PATHS
    }

    /// A path of the prefix competes no more: another may take its place.
    fn make_place(&mut self, nlri: &Nlri) {
        for path in self.barred.surplus_paths(nlri.prefix) {
            self.barred.remove(&path);
            self.mark(path);
        }
    }

    /// The route is not announced.
    fn bar(&mut self, nlri: Nlri, bar: Bar) {
        let is_surplus = bar == Bar::SurplusPath;
        self.barred.insert(nlri, bar);
        if !is_surplus {
            self.make_place(&nlri);
        }
    }

    /// The router has sent all its routes: what the parties hold beyond them is withdrawn.
    pub(super) fn settled(&mut self) {
        self.settles_at = None;
        self.is_settled = true;
        let leftover: Vec<Nlri> = self.leftover.iter().copied().collect();
        self.mark_each(leftover);
    }

    /// Some of the router's routes that are not announced, in order, and how many there are.
    pub(super) fn barred(&self, most: usize) -> (Vec<(Nlri, &Bar)>, usize) {
        (self.barred.iter().take(most).map(|(nlri, bar)| (*nlri, bar)).collect(), self.barred.len())
    }

    /// Routes that the parties would not take for their size.
    pub(super) fn too_large(&self) -> usize {
        let is_large = |bar: &Bar| matches!(bar, Bar::TooLarge { .. } | Bar::Refused(Refusal::BlobSize));
        self.barred.iter().filter(|(_, bar)| is_large(bar)).count()
    }

    /// Live prefixes that count towards the slot's limit, once all that was sent is applied.
    pub(super) fn at_parties(&self) -> usize {
        self.announced.len() + self.leftover.iter().filter(|nlri| !self.announced.contains_key(nlri)).count()
    }

    /// These prefixes were withdrawn: as many of those that were over a limit are announced instead. What was withdrawn since it was
    /// refused for its octets frees none, or the withdrawals and refusals of two such prefixes would follow each other without end.
    fn make_room(&mut self, withdrawn: &[Nlri]) {
        let freed = withdrawn.iter().filter(|nlri| !self.barred.is_refused_stored(nlri)).count();
        let mut next: Vec<Nlri> = self.barred.over_limit().take(withdrawn.len()).collect();
        // In turn: those that were refused the last time may be too long still.
        let refused: Vec<Nlri> = self.barred.refused_stored_after(self.retried).take(freed).collect();
        self.retried = refused.last().copied().or(self.retried);
        next.extend(refused);
        for nlri in next {
            self.barred.remove(&nlri);
            self.mark(nlri);
        }
    }

    /// What was refused for good is tried once more.
    pub(super) fn retry_barred(&mut self) {
        let barred = self.barred.take();
        self.mark_each(barred);
    }

    pub(super) fn mark_all_dirty(&mut self) {
        self.barred.clear();
        let all: Vec<Nlri> = self.router.keys().copied().collect();
        self.mark_each(all);
    }

    /// What was in flight may be lost; the next inventory shows whether it is.
    pub(super) fn session_lost(&mut self) {
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
    pub(super) fn own_digest(&self) -> Digest {
        if !self.leftover.is_empty() || !self.in_flight.is_empty() {
            return Digest::default();
        }
        let mut live: BTreeMap<(u64, u32), Vec<Nlri>> = BTreeMap::new();
        for (nlri, last) in &self.announced {
            live.entry((last.version, last.width())).or_default().push(*nlri);
        }
        digests::own(live.into_iter().map(|((version, width), live)| Listed { version, width, live }))
    }

    /// The parties' inventory of this member's objects.
    pub(super) fn inventory(&mut self, own: Inventory) {
        let Inventory { held, live } = own;
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
    pub(super) fn applied(&mut self, versions: &[u64], mut inventory: Option<&mut Inventory>) {
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

    pub(super) fn refused(&mut self, version: u64, reason: Refusal) {
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

    /// Forgets the keys of an object that owns none of its prefixes any more.
    fn forget_object(&mut self, version: u64) {
        let owns = |nlri: &Nlri| self.announced.get(nlri).is_some_and(|last| last.version == version);
        if !self.objects.get(&version).is_some_and(|own| own.prefixes.iter().any(owns)) {
            self.objects.remove(&version);
        }
    }
}

/// Whether two export decisions are the same for every present member. The slots of former members do not matter.
fn same_for_members(last: &ExportSet, now: &ExportSet, set: &MemberSet) -> bool {
    let same = |(slot, _): (u32, &crate::directory::Slot)| last.contains(slot) == now.contains(slot);
    last.width() == now.width() && set.iter().filter(|(_, slot)| slot.active).all(same)
}

/// One octet for each decision.
fn octets(exported: &[bool]) -> Vec<u8> {
    exported.iter().map(|exported| u8::from(*exported)).collect()
}

impl Member {
    /// Sends what changed, withdrawals first, as far as the window and the store allow.
    pub(super) fn flush(&mut self, now: Now) {
        let repeats = self.announcements.next_repeat().is_some_and(|at| now.instant >= at);
        let is_idle = !self.announcements.has_dirty() && !repeats;
        if !self.synced || is_idle || !self.is_listed() || self.storing_set.is_some() {
            return;
        }
        // Versions first: without one there is no deadline, and the store wakes this up.
        if !self.reserve_versions() || now.instant < self.announcements.next_flush || !self.has_credit() {
            return;
        }
        self.announcements.next_flush = now.instant + self.tick;
        let (withdrawn, announced) = self.sort_dirty();
        for chunk in withdrawn.chunks(MAX_PREFIXES) {
            if !self.submit_withdrawal(chunk) {
                return;
            }
        }
        let most = self.prefixes_per_object();
        for ((attributes, exported), prefixes) in announced {
            for chunk in prefixes.chunks(most) {
                if !self.submit_announcement(chunk, &attributes, &exported) {
                    return;
                }
            }
        }
        if repeats {
            self.repeat_some(now);
        }
    }

    /// Announces again some of what a reload may have changed.
    fn repeat_some(&mut self, now: Now) {
        self.announcements.repeats.next = now.instant + REPEAT_INTERVAL;
        for _ in 0..REPEAT_BURST {
            let a = &mut self.announcements;
            let (Some(set), Some((update, prefixes))) = (&self.set, a.repeats.queue.pop_front()) else { return };
            let mut groups: BTreeMap<ExportSet, (Attributes, Vec<Nlri>)> = BTreeMap::new();
            let waiting: Vec<Nlri> =
                prefixes.iter().filter(|nlri| a.repeats.waiting.contains_key(nlri)).copied().collect();
            for nlri in &waiting {
                // Another UPDATE, or the loss of the object, announces it by itself.
                let route = a.router.get(nlri).filter(|route| route.update == update && a.announced.contains_key(nlri));
                let Some(RouterRoute { attributes, .. }) = route else {
                    a.repeats.waiting.remove(nlri);
                    continue;
                };
                let slot = self.config.slot;
                let exported = export_set(nlri.prefix, attributes, slot, set, self.config.rs_asn, &self.policy);
                groups.entry(exported).or_insert_with(|| (attributes.clone(), Vec::new())).1.push(*nlri);
            }
            for (exported, (attributes, group)) in groups {
                if !self.submit_announcement(&group, &attributes, &exported) {
                    self.announcements.repeats.queue.push_front((update, prefixes));
                    return;
                }
            }
        }
    }

    /// Reserves versions in the store in time; `false` while none is left.
    fn reserve_versions(&mut self) -> bool {
        let versions = &mut self.announcements.versions;
        let left = versions.reserved.saturating_sub(versions.next);
        if left < RESERVE / 2 && versions.writing.is_none() && !versions.are_spent() {
            self.next_persist += 1;
            let until = versions.next.saturating_add(RESERVE);
            versions.writing = Some((self.next_persist, until));
            let change = Change {
                table: crate::party::META,
                key: VERSION_KEY.to_vec(),
                value: Some(until.to_be_bytes().to_vec()),
            };
            self.output.push_back(MemberOutput::Persist { id: self.next_persist, changes: vec![change] });
        }
        left > 0
    }

    /// Splits what is dirty into withdrawals and announcements; what the parties already know is no longer dirty.
    ///
    /// Prefixes share an object if they shared an UPDATE, and then they have one policy. Where rules look at prefixes
    /// that need not be so, and each prefix is an object of its own, always: to split only where policies differ would
    /// show that they do.
    ///
    /// It looks at all withdrawals, and at announcements until they fill what may be in flight.
    #[expect(clippy::type_complexity, reason = "withdrawn prefixes, and announced ones by what they share")]
    fn sort_dirty(&mut self) -> (Vec<Nlri>, Vec<((Attributes, ExportSet), Vec<Nlri>)>) {
        let Some(set) = &self.set else { return (Vec::new(), Vec::new()) };
        let own = set.slot(self.config.slot);
        let a = &mut self.announcements;
        let (mut withdrawn, mut clean) = (Vec::new(), Vec::new());
        let mut barred: Vec<(Nlri, Bar)> = Vec::new();
        for nlri in a.dirty.gone() {
            let is_known = a.announced.contains_key(nlri);
            let is_barred = a.barred.contains(nlri);
            let is_leftover = a.leftover.contains(nlri);
            if is_known || ((a.is_settled || is_barred) && is_leftover) {
                withdrawn.push(*nlri);
            } else {
                // A leftover waits until the router has sent all its routes, which marks it again.
                clean.push(*nlri);
            }
        }
        let window_left = WINDOW.saturating_sub(a.in_flight.len() + withdrawn.len().div_ceil(MAX_PREFIXES));
        let mut groups: HashMap<(u64, ExportSet), usize> = HashMap::new();
        let mut announced: Vec<((Attributes, ExportSet), Vec<Nlri>)> = Vec::new();
        let mut last_update = None;
        let limit = own.map_or(0, |own| own.max_prefix);
        // What is withdrawn goes first, and makes room.
        let mut prefixes_left = match limit {
            0 => usize::MAX,
            most => (most as usize + withdrawn.len()).saturating_sub(a.at_parties()),
        };
        for (number, (update, nlri)) in a.dirty.routes().enumerate() {
            // An UPDATE is never cut, since its prefixes share objects.
            let is_another = last_update.replace(update) != Some(update);
            if is_another && (announced.len() >= window_left || number >= MAX_SCAN) {
                break;
            }
            let Some(RouterRoute { attributes, .. }) = a.router.get(nlri) else { continue };
            let last = a.announced.get(nlri);
            let is_known = last.is_some() || a.leftover.contains(nlri);
            // What no receiver would use, or the parties would refuse, is not announced; what they have of it goes.
            let checked = own.map_or(Ok(()), |own| validate(nlri.prefix, attributes, own, self.config.rules()));
            // The limit last: what is barred for another reason takes no place under it.
            let bar = match checked {
                Err(invalid) => Some(Bar::Invalid(invalid)),
                Ok(()) if a.is_surplus(nlri) => Some(Bar::SurplusPath),
                Ok(()) if !is_known && prefixes_left == 0 => Some(Bar::OverLimit(limit)),
                Ok(()) => None,
            };
            if let Some(bar) = bar {
                if is_known {
                    withdrawn.push(*nlri)
                } else {
                    clean.push(*nlri)
                }
                barred.push((*nlri, bar));
                continue;
            }
            // Before the checks below, though they leave prefixes out: only such as the parties know, which take no place.
            prefixes_left -= usize::from(!is_known);
            // Only its policy may have changed: it is announced again, whether that has or not. In its turn, if that is still to come:
            // another UPDATE that ended with the same attributes has taken it from there.
            let is_same = last.is_some_and(|last| last.attributes == *attributes);
            let repeats = a.repeats.waiting.get(nlri).filter(|_| is_same);
            if repeats == Some(&update) {
                clean.push(*nlri);
                continue;
            }
            let slot = self.config.slot;
            self.counters.export_decisions += 1;
            let exported = export_set(nlri.prefix, attributes, slot, set, self.config.rs_asn, &self.policy);
            let is_there = last.is_some_and(|last| is_same && same_for_members(&last.exported, &exported, set));
            if is_there && repeats.is_none() {
                clean.push(*nlri);
                continue;
            }
            let group = *groups.entry((update, exported.clone())).or_insert_with(|| {
                announced.push(((attributes.clone(), exported), Vec::new()));
                announced.len() - 1
            });
            announced[group].1.push(*nlri);
        }
        for nlri in clean {
            a.dirty.remove(&nlri);
        }
        // Those that others kept from competing first: they take the places of what is barred now.
        barred.sort_by_key(|(_, bar)| *bar != Bar::SurplusPath);
        for (nlri, bar) in barred {
            let why = bar.to_string();
            self.announcements.bar(nlri, bar);
            self.event(MemberEvent::NotAnnounced { prefix: nlri.prefix.to_string(), why });
        }
        (withdrawn, announced)
    }

    /// Describes the next object, and draws its randomness. `hidden`: what that will hide.
    fn describe(&mut self, kind: Kind, hidden: &[&[u8]]) -> Option<(Description, Draw)> {
        let set = self.set.as_ref()?.number;
        if self.announcements.in_flight.len() >= WINDOW || !self.has_credit() {
            return None;
        }
        let version = self.announcements.versions.take()?;
        let slot = self.config.slot;
        let mut description = Description { slot, set, epoch: self.epoch, version, salt: [0; 32], kind };
        let described = wire::encode(&description);
        let mut draw = self.rng.draw(&[&[b"object", described.as_slice()], hidden].concat());
        description.salt = draw.bytes();
        Some((description, draw))
    }

    fn submit_withdrawal(&mut self, prefixes: &[Nlri]) -> bool {
        let kind = Kind::Withdraw { prefixes: prefixes.to_vec() };
        // Before anything is forgotten: with a full window, or without credit, the prefixes stay dirty.
        let Some((description, _)) = self.describe(kind, &[]) else { return false };
        let version = description.version;
        let header = Box::new(object::withdraw(&self.config.exchange, description, &self.signing));
        self.send(PartyNumber::One, &FromMember::SubmitOne { header: header.clone(), body: None });
        self.send(PartyNumber::Two, &FromMember::SubmitTwo { header, share: None });
        let a = &mut self.announcements;
        for nlri in prefixes {
            if let Some(old) = a.announced.remove(nlri) {
                a.forget_object(old.version);
            }
            a.leftover.remove(nlri);
            a.dirty.remove(nlri);
            a.repeats.waiting.remove(nlri);
        }
        a.make_room(prefixes);
        a.in_flight.insert(version, prefixes.to_vec());
        self.counters.withdrawals += 1;
        true
    }

    fn submit_announcement(&mut self, prefixes: &[Nlri], attributes: &Attributes, exported: &ExportSet) -> bool {
        let kind = Kind::Announce { prefixes: prefixes.to_vec() };
        let row = exported.to_bools();
        let inside = sealed_attributes(attributes, self.config.rs_asn).encode();
        let route = prefixes.first().and_then(|nlri| self.announcements.router.get(nlri));
        let signed_for = route.and_then(|route| route.under).unwrap_or(self.neighbours);
        let hidden: [&[u8]; 3] = [&inside, &signed_for, &octets(&row)];
        let Some((description, mut draw)) = self.describe(kind, &hidden) else { return false };
        let (version, epoch) = (description.version, description.epoch);
        let (exchange, mode) = (&self.config.exchange, self.export());
        let fresh = Fresh { key: draw.bytes(), seed: draw.bytes(), openings: [draw.bytes(), draw.bytes()] };
        let sealed = object::announce(mode, exchange, description, (&inside, &signed_for), &row, &fresh, &self.signing);
        let most = self.max_blobs[0].min(self.max_blobs[1]);
        if sealed.blob.len() > most as usize {
            self.bar_too_large(prefixes, sealed.blob.len(), most);
            return true;
        }
        let a = &mut self.announcements;
        let width = u32::try_from(row.len()).expect("the directory bounds the slots of a set");
        let own =
            OwnObject { prefixes: prefixes.to_vec(), key: sealed.key, seed: sealed.one.seed.clone(), epoch, width };
        a.objects.insert(version, own);
        for nlri in prefixes {
            let last = AnnouncedRoute { version, attributes: attributes.clone(), exported: exported.clone() };
            if let Some(old) = a.announced.insert(*nlri, last) {
                a.forget_object(old.version);
            }
            a.leftover.remove(nlri);
            a.dirty.remove(nlri);
            a.repeats.waiting.remove(nlri);
        }
        a.in_flight.insert(version, prefixes.to_vec());
        self.counters.announcements += 1;
        let header = Box::new(sealed.header);
        let body = Some((sealed.one, sealed.blob.into()));
        self.send(PartyNumber::One, &FromMember::SubmitOne { header: header.clone(), body });
        self.send(PartyNumber::Two, &FromMember::SubmitTwo { header, share: Some(sealed.two) });
        true
    }

    /// The parties would not take these routes: they are not announced, and what the parties have of them is withdrawn.
    fn bar_too_large(&mut self, prefixes: &[Nlri], octets: usize, most: u32) {
        for nlri in prefixes {
            let a = &mut self.announcements;
            let is_known = a.announced.contains_key(nlri) || a.leftover.contains(nlri);
            a.dirty.remove(nlri);
            a.repeats.waiting.remove(nlri);
            let bar = Bar::TooLarge { octets, most };
            let why = bar.to_string();
            a.bar(*nlri, bar);
            if is_known {
                a.mark(*nlri);
            }
            self.event(MemberEvent::NotAnnounced { prefix: nlri.prefix.to_string(), why });
        }
    }

    /// The member set is larger: every own object gets the new slots' columns.
    pub(super) fn set_grew(&mut self) {
        if !self.synced {
            self.announcements.mark_all_dirty();
            return;
        }
        let Some(set) = self.set.clone() else { return };
        let to = u32::try_from(set.slots.len()).expect("the directory bounds the slots of a set");
        let mut by_width: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for (version, own) in &self.announcements.objects {
            if own.width < to {
                by_width.entry(own.width).or_default().push(*version);
            }
        }
        for (from, versions) in by_width {
            // As many objects as fit the credit that any object needs.
            let most = COLUMN_OCTETS / (8 + self.export().column_bytes(to - from)).max(1);
            for chunk in versions.chunks(most.clamp(1, MAX_COLUMN)) {
                self.submit_column(&set, from, to, chunk);
            }
        }
        // Export decisions that a column cannot express are made again for the new set.
        self.announcements.mark_all_dirty();
    }

    fn submit_column(&mut self, set: &MemberSet, from: u32, to: u32, candidates: &[u64]) {
        if !self.reserve_versions() {
            return;
        }
        let (mut versions, mut exports, mut hidden) = (Vec::new(), Vec::new(), Vec::new());
        for version in candidates {
            let Some(exported) = self.column_exports(set, *version) else { continue };
            versions.push(*version);
            hidden.extend(octets(&exported.to_bools()));
            exports.push(exported);
        }
        if versions.is_empty() {
            return;
        }
        let kind = Kind::Column { from, to, versions: versions.clone() };
        let Some((description, mut draw)) = self.describe(kind, &[&hidden]) else { return };
        let number = description.version;
        let opening = draw.bytes();
        let parts = versions.iter().zip(&exports);
        let row = parts.flat_map(|(version, exported)| self.column_part(&description.salt, *version, from, exported));
        let row = row.collect();
        let (header, two) = object::column(&self.config.exchange, description, opening, row, &self.signing);
        let header = Box::new(header);
        self.send(PartyNumber::One, &FromMember::SubmitOne { header: header.clone(), body: None });
        self.send(PartyNumber::Two, &FromMember::SubmitTwo { header, share: Some(two) });
        let a = &mut self.announcements;
        let mut covered = Vec::new();
        for (version, exported) in versions.iter().zip(exports) {
            let Some(own) = a.objects.get_mut(version) else { continue };
            own.width = to;
            for nlri in &own.prefixes {
                if let Some(last) = a.announced.get_mut(nlri).filter(|last| last.version == *version) {
                    last.exported = last.exported.extended(&exported);
                    covered.push(*nlri);
                }
            }
        }
        a.in_flight.insert(number, covered);
        self.event(MemberEvent::Column { from, to, objects: versions.len() });
    }

    /// Party 2's shares of an object for the new slots.
    fn column_part(&self, salt: &[u8; 32], version: u64, from: u32, exported: &ExportSet) -> Vec<u8> {
        let bools = exported.to_bools();
        let (Some(own), Some(new)) = (self.announcements.objects.get(&version), bools.get(from as usize..)) else {
            return Vec::new();
        };
        let share = (&own.seed, Some(salt));
        match self.export() {
            ExportMode::Direct => object::key_row(&self.config.exchange, share, &own.key, own.epoch, from, new),
            ExportMode::Mpc => object::policy_row(share.0, share.1, new),
        }
    }

    /// Who may have an object: whoever may have all prefixes that it still owns. Where a reload decides otherwise for some of
    /// them, that comes with the object's own turn; whether it does must not show in what a column leaves out.
    fn column_exports(&self, set: &MemberSet, version: u64) -> Option<ExportSet> {
        let a = &self.announcements;
        let own = a.objects.get(&version)?;
        let mut decided: Option<ExportSet> = None;
        for nlri in own.prefixes.iter().filter(|nlri| a.announced.get(nlri).is_some_and(|last| last.version == version))
        {
            let attributes = &a.router.get(nlri)?.attributes;
            let slot = self.config.slot;
            let exported = export_set(nlri.prefix, attributes, slot, set, self.config.rs_asn, &self.policy);
            decided = Some(decided.map_or_else(|| exported.clone(), |decided| decided.and(&exported)));
        }
        decided
    }
}

//! The member as announcer: the router's routes, what the parties have of them, and what is still to be sent.
//!
//! [`Announcements`] owns that state: nothing outside this module and those below it sees a field. It is given what it needs in
//! a [`Context`], and returns [`Effect`]s, which [`Member`](super::Member) carries out at once and in order (`submit.rs`).
//!
//! # What changes it
//!
//! - The router's UPDATEs, its session and its End-of-RIB change the routes.
//! - The parties' inventories, confirmations and refusals, and the end of a session, change what is known of the parties
//!   (`announce/inventory.rs`).
//! - A format that not all members read any more has everything announced again, in a lower one (`announce/repeats.rs`).
//! - What the RPKI says of origins and paths bars routes, or lets them go, that a changed VRP covers, or that have an AS with other ASPA
//!   records on their path.
//! - A new policy or member set makes the decision who may have a route again, for all routes alike
//!   (`announce/repeats.rs`). A larger member set sends columns at once (`announce/columns.rs`).
//!
//! But for those columns, none of these sends anything: they mark prefixes as dirty, or let them wait for their repeat. Only a
//! flush, at most once a tick, looks at those, decides what leaves (`announce/flush.rs`), and makes the objects
//! (`announce/objects.rs`).
//!
//! # In which order
//!
//! A flush sends withdrawals, then what changed, then repeats. It makes one object at a time, and that object's effects are
//! carried out before the next is made: each costs credit, and none is begun without credit for the largest.
//!
//! What an object changes here is changed when it is made. Until the parties confirm it, it is in flight; where anything else
//! becomes of it, or may have, its prefixes become leftovers, of which the parties may have anything or nothing. They apply a
//! slot's objects in the order of their versions, so a later object or withdrawal settles a leftover.
//!
//! Columns go before the new member set's export decisions: these are marked after the columns, and see what a column covered.
//!
//! # What is durable before what
//!
//! A version is reserved in the store before an object takes it: none that a party has seen is ever used for another object,
//! whatever is lost here. A member set is durable before anything is announced under it: `Member` neither flushes nor sends
//! columns before that.
//!
//! Nothing else of this state is stored. After a start the parties' inventory tells what this member has announced, and all of
//! it is leftovers; those that the router does not announce again are withdrawn only once it has sent all its routes.

mod columns;
mod flush;
mod inventory;
mod objects;
mod repeats;
mod stale;
mod versions;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use wayleave_bgp::aspa::Aspas;
use wayleave_bgp::origins::Vrps;
use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::{Afi, Instant, Prefix};
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;

use super::barred::Barred;
use super::dirty::Dirty;
use super::origins::Changed;
use super::{Cause, MemberConfig, MemberCounters, MemberEvent};
use crate::data::Data;
use crate::directory::MemberSet;
use crate::frames::{FromMember, MAX_PATHS, Refusal};
use crate::object::{ExportMode, Handle, MAX_PREFIXES};
use crate::party::{Change, PersistId, StoredRecord};
use crate::policy::validate::Invalid;
use crate::policy::{ExportSet, Policy, export_set};
use crate::rng::Rng;

use objects::OwnObject;
use repeats::Repeats;
use versions::Versions;

pub(super) use inventory::Inventory;

/// Objects that may be in flight: our own limit, so that a member never floods a party.
const WINDOW: usize = 512;

/// What [`Announcements`] needs of the member to decide what leaves, and to make it.
pub(super) struct Context<'a> {
    pub(super) config: &'a MemberConfig,
    pub(super) policy: &'a Policy,
    /// The member set in force.
    pub(super) set: &'a MemberSet,
    /// What the RPKI says of origins; `None` while nothing is known.
    pub(super) origins: Option<&'a Vrps>,
    /// Data of the exchange in force.
    pub(super) data: Option<&'a Data>,
    /// Its ASPA records.
    pub(super) aspas: Option<&'a Aspas>,
    /// [`MemberSet::neighbours_digest`] of the set.
    pub(super) neighbours: [u8; 32],
    pub(super) epoch: u64,
    pub(super) signing: &'a SigningKey,
    /// How the parties multiply policy and key.
    pub(super) export: ExportMode,
    /// Octets of the largest blob that both parties take.
    pub(super) max_blob: u32,
    /// The format in which objects are made.
    pub(super) format: u16,
    /// Whether both parties can be sent another object, of any size. It holds for one object.
    pub(super) has_credit: bool,
    pub(super) rng: &'a mut Rng,
    pub(super) counters: &'a mut MemberCounters,
    /// The last number of a write.
    pub(super) last_persist: &'a mut PersistId,
}

impl Context<'_> {
    /// Who may have a route of the member.
    fn export_set(&self, nlri: &Nlri, attributes: &Attributes) -> ExportSet {
        export_set(nlri.prefix, attributes, self.config.slot, self.set, self.config.rs_asn, self.policy)
    }
}

/// What is to be done, in order.
pub(super) enum Effect {
    /// Send an object: to party 1, then to party 2.
    Submit {
        one: FromMember,
        two: FromMember,
    },
    Persist {
        id: PersistId,
        change: Change,
    },
    Event(MemberEvent),
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
    /// The format of its object.
    format: u16,
    attributes: Attributes,
    exported: ExportSet,
}

impl AnnouncedRoute {
    /// Slots that the row of its object covers.
    fn width(&self) -> u32 {
        width(&self.exported)
    }
}

/// How a route of the own router stands at the parties.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum OwnState {
    /// Both have it; so many slots may open it, and whether it competes with others.
    Announced { slots: usize, competes: bool },
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
    /// Receivers would refuse it by what the RPKI says of it (RFC 6811, ASPA), and by the registries where that says nothing.
    #[error("{0}")]
    Origin(Invalid),
    /// It would be one too many: the slot's prefix limit.
    #[error("it would exceed this member's prefix limit of {0}")]
    OverLimit(u32),
    /// It would be one too many of its family: receivers would leave out all of them.
    #[error("it would exceed this member's limit of {limit} prefixes of {afi} in the exchange's data")]
    MaxPrefixes { afi: Afi, limit: u32 },
    #[error("{MAX_PATHS} other paths of this member to the prefix compete already, and an exchange takes no more")]
    SurplusPath,
    #[error("its attributes take {octets} octets sealed, and this exchange takes at most {most}")]
    TooLarge { octets: usize, most: u32 },
}

impl Bar {
    /// It in a word, for counters.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Refused(_) => "refused-by-party",
            Self::Invalid(invalid) | Self::Origin(invalid) => Cause::of(invalid).name(),
            Self::OverLimit(_) => "prefix-limit",
            Self::MaxPrefixes { .. } => "max-prefixes",
            Self::SurplusPath => "surplus-path",
            Self::TooLarge { .. } => "too-large",
        }
    }
}

/// The announcing half of a member's state.
pub(super) struct Announcements {
    versions: Versions,
    router: BTreeMap<Nlri, RouterRoute>,
    /// Those from before the loss of its session of which the router has said nothing since; attestation may withdraw such a one
    /// and announce it again.
    stale: BTreeSet<Nlri>,
    /// Families whose stale routes are long-lived ones.
    long_lived: BTreeSet<Afi>,
    updates: u64,
    announced: BTreeMap<Nlri, AnnouncedRoute>,
    /// Prefixes that the parties hold, or may hold, without it being known what they have of them: from before this
    /// process started, or of an object in flight that was perhaps lost.
    leftover: BTreeSet<Nlri>,
    dirty: Dirty,
    /// Prefixes that were refused for good, or that no receiver would use: not announced before the router, the member set or a new
    /// session changes something, or there is room again.
    barred: Barred,
    /// The last one of those refused for their octets that was tried again.
    retried: Option<Nlri>,
    /// Those that the parties have and that do not compete, since too many others do.
    outside: BTreeSet<Nlri>,
    repeats: Repeats,
    objects: BTreeMap<u64, OwnObject>,
    /// Objects, columns and withdrawals that the parties have not confirmed, and their prefixes.
    in_flight: BTreeMap<u64, Vec<Nlri>>,
    /// Whether the router has sent all its routes.
    is_settled: bool,
    /// When that is assumed though it has not said so.
    settles_at: Option<Instant>,
    next_flush: Instant,
}

impl Announcements {
    /// With what the store held.
    pub(super) fn new(stored: &[StoredRecord], seed: &Seed, now: Instant) -> Self {
        Self {
            versions: Versions::new(stored),
            router: BTreeMap::new(),
            stale: BTreeSet::new(),
            long_lived: BTreeSet::new(),
            updates: 0,
            announced: BTreeMap::new(),
            leftover: BTreeSet::new(),
            dirty: Dirty::default(),
            barred: Barred::default(),
            retried: None,
            outside: BTreeSet::new(),
            repeats: Repeats::new(seed, now),
            objects: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            is_settled: false,
            settles_at: None,
            next_flush: now,
        }
    }

    /// When a flush has something to do, or the router's routes count as complete. `may_submit`: whether the member may
    /// announce, and has credit.
    pub(super) fn deadline(&self, may_submit: bool) -> Option<Instant> {
        // Without a version there is nothing to wait for but the store.
        let may_submit = may_submit && self.versions.has_reserved();
        let flush = (may_submit && self.has_dirty()).then_some(self.next_flush);
        let repeat = self.repeats_at().filter(|_| may_submit).map(|at| at.max(self.next_flush));
        [flush, repeat, self.settles_at].into_iter().flatten().min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.settles_at.is_some_and(|at| now >= at) {
            self.settled();
        }
    }

    /// A party has seen this version of the slot.
    pub(super) fn version_seen(&mut self, version: u64) {
        self.versions.seen(version);
    }

    /// Whether the slot can announce nothing more.
    pub(super) fn are_versions_spent(&self) -> bool {
        self.versions.are_spent()
    }

    /// The store has made a write durable, of this state or of another.
    pub(super) fn durable(&mut self, id: PersistId) {
        self.versions.durable(id);
    }

    /// Reserves versions in the store in time.
    fn reserve_versions(&mut self, context: &mut Context<'_>) -> Vec<Effect> {
        let write = self.versions.reserve(context.last_persist);
        write.into_iter().map(|(id, change)| Effect::Persist { id, change }).collect()
    }

    /// Whether something can be sent now.
    fn has_dirty(&self) -> bool {
        !self.dirty.is_empty() && self.in_flight.len() < WINDOW
    }

    /// When a route is next announced again though nothing of it changed.
    fn repeats_at(&self) -> Option<Instant> {
        self.repeats.next().filter(|_| self.in_flight.len() < WINDOW)
    }

    /// Whether the parties have the prefix, or may have it.
    fn is_known(&self, nlri: &Nlri) -> bool {
        self.announced.contains_key(nlri) || self.leftover.contains(nlri)
    }

    /// What the parties know of the prefix has to be looked at.
    fn mark(&mut self, nlri: Nlri) {
        let route = self.router.get(&nlri).filter(|_| !self.barred.contains(&nlri));
        self.dirty.insert(nlri, route.map(|route| route.update));
    }

    fn mark_each(&mut self, prefixes: impl IntoIterator<Item = Nlri>) {
        prefixes.into_iter().for_each(|nlri| self.mark(nlri));
    }

    /// Routes of the router that it has not announced again since its session was lost.
    pub(super) fn stale_routes(&self) -> usize {
        self.stale.iter().filter(|nlri| self.router.contains_key(nlri)).count()
    }

    pub(super) fn router_routes(&self) -> usize {
        self.router.len()
    }

    pub(super) fn router_routes_by_family(&self) -> BTreeMap<Afi, usize> {
        self.router.keys().fold(BTreeMap::new(), |mut all, nlri| {
            *all.entry(nlri.prefix.afi()).or_default() += 1;
            all
        })
    }

    /// What became of the router's routes to a prefix: their attributes, and how they stand at the parties.
    pub(super) fn own_routes(&self, prefix: &Prefix) -> Vec<(&Attributes, OwnState)> {
        let [first, last] = [0, u32::MAX].map(|path_id| Nlri { prefix: *prefix, path_id });
        let of_prefix = self.router.range(first..=last);
        of_prefix.map(|(nlri, route)| (&route.attributes, self.own_state(nlri))).collect()
    }

    /// Whether the object is this member's own, as it last announced the prefix: it comes back sealed.
    pub(super) fn is_own(&self, prefix: &Prefix, handle: &Handle) -> bool {
        let [first, last] = [0, u32::MAX].map(|path_id| Nlri { prefix: *prefix, path_id });
        let mut announced = self.announced.range(first..=last);
        announced.any(|(_, last)| self.objects.get(&last.version).is_some_and(|own| own.handle == *handle))
    }

    /// Whether the router announces a route to the prefix.
    pub(super) fn has_route(&self, prefix: &Prefix) -> bool {
        let [first, last] = [0, u32::MAX].map(|path_id| Nlri { prefix: *prefix, path_id });
        self.router.range(first..=last).next().is_some()
    }

    /// The first `most` prefixes behind `after` to which the router announces routes, in order.
    pub(super) fn router_prefixes(&self, after: Option<Prefix>, most: usize) -> Vec<Prefix> {
        let last = after.map(|prefix| Nlri { prefix, path_id: u32::MAX });
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        let mut all: Vec<Prefix> = Vec::new();
        for nlri in self.router.range((from, Bound::Unbounded)).map(|(nlri, _)| nlri) {
            if all.last() == Some(&nlri.prefix) {
                continue;
            }
            if all.len() == most {
                break;
            }
            all.push(nlri.prefix);
        }
        all
    }

    fn own_state(&self, nlri: &Nlri) -> OwnState {
        if let Some(reason) = self.barred.get(nlri) {
            return OwnState::Barred(reason.clone());
        }
        let is_under_way = self.in_flight.values().any(|prefixes| prefixes.contains(nlri));
        match self.announced.get(nlri) {
            Some(last) if !is_under_way && !self.dirty.contains(nlri) => {
                OwnState::Announced { slots: last.exported.count(), competes: !self.outside.contains(nlri) }
            }
            _ => OwnState::UnderWay,
        }
    }

    pub(super) fn unconfirmed(&self) -> usize {
        self.in_flight.len() + self.dirty.len() + self.repeats.len()
    }

    pub(super) fn router_up(&mut self, settles_at: Instant) {
        self.settles_at = Some(settles_at);
    }

    /// The router's session is down: all that it announced is gone.
    pub(super) fn router_down(&mut self) {
        self.settles_at = None;
        self.stale.clear();
        self.long_lived.clear();
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
        if self.long_lived.is_empty() {
            return self.announce_as(announced, attributes, under);
        }
        let (stale, others): (Vec<Nlri>, Vec<Nlri>) = announced.iter().partition(|nlri| self.is_long_lived(nlri));
        self.announce_as(&others, attributes, under);
        if let Some(attributes) = stale::with_stale(attributes) {
            self.announce_as(&stale, &attributes, under);
        }
    }

    fn announce_as(&mut self, announced: &[Nlri], attributes: &Attributes, under: Option<[u8; 32]>) {
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

    /// A path of the prefix competes no more: another may take its place.
    fn make_place(&mut self, nlri: &Nlri) {
        for path in self.barred.surplus_paths(nlri.prefix) {
            self.barred.remove(&path);
            self.mark(path);
        }
    }

    /// The route is not announced.
    pub(super) fn bar(&mut self, nlri: Nlri, bar: Bar) {
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

    /// How many are not announced, by the reason.
    pub(super) fn barred_by_reason(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        self.barred.iter().for_each(|(_, bar)| *counts.entry(bar.name()).or_default() += 1);
        counts
    }

    /// Routes that do not compete.
    pub(super) fn not_competing(&self) -> usize {
        self.outside.len()
    }

    /// Routes that the parties would not take for their size.
    pub(super) fn too_large(&self) -> usize {
        let is_large = |bar: &Bar| matches!(bar, Bar::TooLarge { .. } | Bar::Refused(Refusal::BlobSize));
        self.barred.iter().filter(|(_, bar)| is_large(bar)).count()
    }

    /// Live prefixes that count towards the slot's limit, once all that was sent is applied.
    pub(super) fn at_parties(&self) -> usize {
        self.announced.len() + self.leftover_alone().count()
    }

    fn leftover_alone(&self) -> impl Iterator<Item = &Nlri> {
        self.leftover.iter().filter(|nlri| !self.announced.contains_key(nlri))
    }

    /// The same of one family.
    fn at_parties_of(&self, afi: Afi) -> usize {
        self.announced.keys().chain(self.leftover_alone()).filter(|nlri| nlri.prefix.afi() == afi).count()
    }

    /// The route is not announced, and the operator is told why.
    fn bar_with_event(&mut self, nlri: Nlri, bar: Bar) -> Effect {
        let why = bar.to_string();
        self.bar(nlri, bar);
        Effect::Event(MemberEvent::NotAnnounced { prefix: nlri.prefix.to_string(), why })
    }

    /// These prefixes were withdrawn: as many of those that were over a limit are announced instead. What was withdrawn since it was
    /// refused for its octets frees none, or the withdrawals and refusals of two such prefixes would follow each other without end.
    fn make_room(&mut self, withdrawn: &[Nlri]) {
        let freed = withdrawn.iter().filter(|nlri| !self.barred.is_refused_stored(nlri)).count();
        let mut next: BTreeSet<Nlri> = self.barred.over_limit().take(withdrawn.len()).collect();
        // A place of one family may be of no use to the other.
        for afi in [Afi::Ipv4, Afi::Ipv6] {
            let is_of = |nlri: &Nlri| nlri.prefix.afi() == afi;
            let places = withdrawn.iter().filter(|nlri| is_of(nlri)).count();
            next.extend(self.barred.over_limit().filter(is_of).take(places));
        }
        // In turn: those that were refused the last time may be too long still.
        let refused: Vec<Nlri> = self.barred.refused_stored_after(self.retried).take(freed).collect();
        self.retried = refused.last().copied().or(self.retried);
        next.extend(refused);
        for nlri in next {
            self.barred.remove(&nlri);
            self.mark(nlri);
        }
    }

    /// The operator has changed the policy. What was refused for good is tried once more, and all routes are announced
    /// again, in an order that the policy does not determine: which ones it concerns must not show.
    pub(super) fn policy_changed(&mut self, policy: &Policy) {
        let barred = self.barred.take();
        self.mark_each(barred);
        self.repeat_all(policy);
    }

    /// The RPKI says something else of these routes' origins or paths: they are decided again.
    pub(super) fn origins_changed(&mut self, changed: &Changed) {
        let is_concerned =
            |(nlri, route): &(&Nlri, &RouterRoute)| changed.concerns(&nlri.prefix, &route.attributes.as_path());
        let covered: Vec<Nlri> = self.router.iter().filter(is_concerned).map(|(nlri, _)| *nlri).collect();
        for nlri in &covered {
            if matches!(self.barred.get(nlri), Some(Bar::Origin(_))) {
                self.barred.remove(nlri);
            }
        }
        self.mark_each(covered);
    }

    /// Every route of the router is decided again, also what was refused for good.
    pub(super) fn mark_all_dirty(&mut self) {
        self.barred.clear();
        let all: Vec<Nlri> = self.router.keys().copied().collect();
        self.mark_each(all);
    }
}

/// Slots that the row of an object with these receivers covers.
fn width(exported: &ExportSet) -> u32 {
    u32::try_from(exported.width()).expect("the directory bounds the slots of a set")
}

/// Prefixes that one object may have. Rules that look at prefixes make each an object of its own, always: to split only
/// where policies differ would show that they do.
fn prefixes_per_object(policy: &Policy) -> usize {
    if policy.exports_by_prefix() { 1 } else { MAX_PREFIXES }
}

//! The attestor's course: when what is signed, validated, and looked at again.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::{Asn, Instant, Machine, Now, Prefix, UnixTime};

use super::announced::{Outcomes, Outward, Went};
use super::event::{Finding, Input, MemberAttestationConfig, MemberAttestationEvent as Event, Output, RouteId};
use super::received::{Done, Inward, Job, Results, Work, opened};
use crate::attest::{KeyRing, endorse};
use crate::cache::Cache;
use crate::clock::{stepped, wake};
use crate::clock_doubt::{ClockDoubt, ClockWatch};
use crate::leaf::{Leaf, LeafKey, Tree};
use crate::pipeline::Counts;
use crate::pipeline::jobs::{Outcome, RouteGroup, Sign, Signed, Target, Validate};
use crate::pipeline::keys::SigningKeys;
use crate::pipeline::keys::few_time::ToPersist;
use crate::pipeline::pending::{FAILED_REST, PendingRoutes};
use crate::pipeline::policy::{Policy, VerdictClass};
use crate::pki::View;
use crate::report::Report;
use crate::validate::Clock;

/// Routes of one burst of signing, at most.
const SIGN_BURST: usize = 128;
/// Reports of what the router hands in.
const CACHE: usize = 65_536;
/// Bits of strength below which no member may sign after another. Every member makes the same tree, so nothing of its own
/// configuration may enter it.
const LEAST_STRENGTH: u16 = 112;
/// Member sets of which routes may still live, at most.
const MOST_SETS: usize = 64;
/// Seconds until what should have been looked at already, and could not be, is tried again.
const AGAIN: u64 = 60;

/// The members under one set.
pub(super) struct Directory {
    pub(super) set: u64,
    digest: [u8; 32],
    pub(super) tree: Arc<Tree>,
}

/// What became of a route of the own router.
pub(super) enum Fate {
    Out(Outcome),
    Refused(VerdictClass, Arc<Report>),
}

/// What is to be looked at again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Out(Nlri),
    In(RouteId),
}

/// The attestor of one member.
pub struct MemberAttestation {
    pub(super) config: MemberAttestationConfig,
    own: Option<Arc<Vec<Prefix>>>,
    pub(super) view: Arc<View>,
    keys: SigningKeys,
    /// Of the last sets, the newest last.
    pub(super) directories: Vec<Directory>,
    pub(super) outgoing: PendingRoutes<Fate>,
    /// Chains of others as they were extended, by what they came with.
    extended: HashMap<Arc<Attributes>, Outcome>,
    /// Whether what is being signed was given out before the members, our keys or the clock changed.
    is_stale: bool,
    signing: bool,
    end_of_rib: bool,
    handed_in: Arc<Mutex<Cache>>,
    pub(super) incoming: Inward,
    times: BTreeSet<(u64, Due)>,
    watch: ClockWatch,
    pub(super) doubt: Option<ClockDoubt>,
    pub(super) counts: Counts,
    outputs: VecDeque<Output>,
    now: Now,
}

impl MemberAttestation {
    /// Nothing known yet. `ring` holds the AS's keys, `used` by encoded public key how often a few-time key may have
    /// signed in earlier lives.
    #[must_use]
    pub fn new(config: MemberAttestationConfig, ring: KeyRing, used: &HashMap<Vec<u8>, u64>, now: Now) -> Self {
        let mut attestor = Self {
            own: config.own.clone().map(Arc::new),
            view: Arc::new(View::new(0)),
            keys: SigningKeys::new(ring, used),
            directories: Vec::new(),
            outgoing: PendingRoutes::new(),
            extended: HashMap::new(),
            is_stale: false,
            signing: false,
            end_of_rib: false,
            handed_in: Arc::new(Mutex::new(Cache::new(CACHE))),
            incoming: Inward::default(),
            times: BTreeSet::new(),
            watch: ClockWatch::default(),
            doubt: None,
            counts: Counts::default(),
            outputs: VecDeque::new(),
            now,
            config,
        };
        attestor.reserve();
        attestor
    }

    /// Lets go of what no route needs any more; to be called now and then.
    pub fn sweep(&mut self) {
        let used: std::collections::HashSet<*const Attributes> =
            self.outgoing.iter().map(|(_, entry)| Arc::as_ptr(&entry.attributes)).collect();
        self.extended.retain(|attributes, _| used.contains(&Arc::as_ptr(attributes)));
    }

    pub(super) fn ring(&self) -> MutexGuard<'_, KeyRing> {
        self.keys.ring.lock()
    }

    /// Signatures that are left of the key at this place of the ring, if it is a few-time key.
    pub(super) fn left(&self, place: usize, pair: &crate::attest::Pair) -> Option<u64> {
        self.keys.left(place, pair).map(|left| left.left)
    }

    fn unix(&self) -> u64 {
        self.now.unix.secs()
    }

    pub(super) fn clock(&self) -> Clock {
        Clock { now: self.now.unix, uncertainty: self.config.uncertainty }
    }

    fn tell(&mut self, event: Event) {
        self.outputs.push_back(Output::Event(event));
    }

    fn on_now(&mut self, now: Now) {
        let before = std::mem::replace(&mut self.now, now);
        if let Some(seconds) = stepped(before, now) {
            self.tell(Event::ClockStepped(seconds));
            self.incoming.queue_those(|_| true);
            self.sign_anew();
        }
    }

    /// Forgets what was signed for members, with keys or at a time that are over, and signs everything anew.
    fn sign_anew(&mut self) {
        self.extended.clear();
        self.is_stale = self.signing;
        self.outgoing.queue_all();
    }

    fn on_members(&mut self, set: u64, digest: [u8; 32], neighbours: &[(Asn, Vec<LeafKey>)]) {
        let newest = self.directories.last();
        if newest.is_some_and(|newest| newest.set >= set) {
            return;
        }
        let same = newest.filter(|newest| newest.digest == digest).map(|newest| Arc::clone(&newest.tree));
        let is_same = same.is_some();
        // The directory bounds members, keys and suites, and names each AS once: always a tree.
        let Some(tree) = same.or_else(|| tree(neighbours).map(Arc::new)) else {
            return;
        };
        self.directories.push(Directory { set, digest, tree });
        let live: BTreeSet<u64> = self.incoming.entries.values().map(|entry| entry.set).collect();
        let places = self.directories.len();
        let mut place = 0;
        self.directories.retain(|directory| {
            place += 1;
            place + 1 >= places || live.contains(&directory.set)
        });
        if self.directories.len() > MOST_SETS {
            self.directories.remove(0);
        }
        // Routes made under a set that we hear of only now.
        self.incoming.queue_those(|entry| entry.set == set);
        if !is_same {
            self.check_listed(neighbours);
            self.sign_anew();
        }
    }

    fn check_listed(&mut self, neighbours: &[(Asn, Vec<LeafKey>)]) {
        let mut held: Vec<LeafKey> = self.ring().pairs.iter().map(|pair| pair.leaf_key()).collect();
        held.sort_unstable();
        let own = self.config.asn;
        let listed = neighbours.iter().find(|(asn, _)| *asn == own).map(|(_, keys)| keys.as_slice());
        if listed.is_some_and(|listed| listed != held) {
            self.tell(Event::OtherKeysListed);
        }
    }

    pub(super) fn directory(&self, set: u64) -> Option<&Arc<Tree>> {
        self.directories.iter().find(|directory| directory.set == set).map(|directory| &directory.tree)
    }

    fn on_update(&mut self, withdrawn: Vec<Nlri>, announced: Vec<Nlri>, attributes: Option<Attributes>) {
        for nlri in &withdrawn {
            let due = self.outgoing.remove(nlri).and_then(|entry| entry.due);
            due.map(|due| self.times.remove(&(due, Due::Out(*nlri))));
        }
        if !withdrawn.is_empty() {
            self.announce(withdrawn, Vec::new(), None, None);
        }
        let Some(attributes) = attributes.map(Arc::new) else { return };
        announced.into_iter().for_each(|nlri| self.outgoing.put(nlri, Arc::clone(&attributes)));
    }

    fn announce(
        &mut self,
        withdrawn: Vec<Nlri>,
        announced: Vec<Nlri>,
        attributes: Option<Attributes>,
        under: Option<[u8; 32]>,
    ) {
        self.outputs.push_back(Output::Announce { withdrawn, announced, attributes, under });
    }

    fn on_router_down(&mut self) {
        self.outgoing = PendingRoutes::new();
        self.extended.clear();
        self.is_stale = self.signing;
        self.end_of_rib = false;
        self.times.retain(|(_, due)| matches!(due, Due::In(_)));
    }

    /// Gives out work, and tells the end of the router's routes where nothing waits.
    fn work(&mut self) {
        while let Some(burst) = self.incoming.burst() {
            let directory = self.directory(burst.set).map(|tree| tree.as_ref().clone());
            let work = Validate {
                cache: burst.cache,
                view: Arc::clone(&self.view),
                rules: self.config.rules,
                clock: self.clock(),
                directories: Arc::new(directory.into_iter().collect()),
                attribute: self.config.attribute,
                receiver: self.config.asn,
                groups: burst.groups,
            };
            self.outputs.push_back(Output::Work(Job(Work::Validate(burst.announcer, work))));
        }
        if !self.signing {
            self.sign();
        }
        if self.end_of_rib && !self.signing && self.outgoing.waiting() == 0 {
            self.end_of_rib = false;
            self.outputs.push_back(Output::EndOfRib);
        }
    }

    fn sign(&mut self) {
        let Some(target) = self.directories.last().map(|newest| Target::Directory(Arc::clone(&newest.tree))) else {
            return;
        };
        let unix = self.unix();
        let groups = self.outgoing.burst(SIGN_BURST);
        if groups.is_empty() {
            return;
        }
        self.signing = true;
        let sequence = self.keys.sequence(self.now.unix, SIGN_BURST);
        let sign = (!self.keys.is_empty()).then(|| Sign {
            ring: self.keys.ring.clone(),
            asn: self.config.asn,
            target,
            now: unix,
            lifetime: self.config.lifetime,
            sequence,
            attribute: self.config.attribute,
            most: self.config.most,
            own: self.own.clone(),
            groups: Vec::new(),
        });
        let known = |group: &RouteGroup| {
            let known = self.extended.get(&group.attributes).filter(|known| known.is_current(unix))?;
            Some((Arc::clone(&group.attributes), known.clone()))
        };
        let work = Outward {
            cache: Arc::clone(&self.handed_in),
            view: Arc::clone(&self.view),
            rules: self.config.rules,
            clock: self.clock(),
            policy: self.config.policy.clone(),
            sign,
            asn: self.config.asn,
            attribute: self.config.attribute,
            known: groups.iter().filter_map(known).collect(),
            groups,
        };
        self.outputs.push_back(Output::Work(Job(Work::Outward(work))));
    }

    fn on_done(&mut self, done: Done) {
        let failed = done.failed;
        match done.result {
            Results::Validated(announcer, judged) => {
                judged.iter().for_each(|judged| self.watch.observe(&judged.report, self.now.unix));
                let ids = self.incoming.judged(announcer, judged, &failed);
                ids.into_iter().for_each(|id| self.on_judged(id));
                self.on_failed("validating", failed);
                let doubt = self.watch.doubt(self.now.unix);
                if std::mem::replace(&mut self.doubt, doubt) != doubt {
                    self.tell(Event::ClockInDoubt(doubt));
                }
            }
            Results::Outward(Outcomes { went, until }) => {
                self.signing = false;
                for went in went {
                    match went {
                        Went::Out(signed) => self.on_signed(signed, &until),
                        Went::Refused(group, class, report) => self.on_refused(group, class, report),
                        Went::Passed(_) => {}
                    }
                }
                self.on_unsigned(&failed);
                self.on_failed("signing", failed);
                self.is_stale = false;
                self.reserve();
                if self.keys.are_few_time() && self.outgoing.waiting() == 0 {
                    // What few-time keys need next is made in the background, where nothing waits to be signed.
                    self.signing = true;
                    self.outputs.push_back(Output::Work(Job(Work::Ahead(self.keys.ring.clone()))));
                }
            }
            Results::Ahead(made) => {
                self.signing = false;
                // Nothing was being signed while keys were made.
                self.is_stale = false;
                if !made {
                    self.tell(Event::Failed { what: "making keys ahead", routes: Vec::new() });
                }
            }
        }
    }

    /// Work on these routes of the own router panicked: they are not announced, and tried again later.
    fn on_unsigned(&mut self, failed: &[RouteGroup]) {
        let due = self.unix() + FAILED_REST;
        let mut routes = Vec::new();
        for RouteGroup { attributes, routes: of_group } in failed {
            for nlri in of_group {
                let Some(before) = self.outgoing.fail(nlri, attributes, due) else { continue };
                before.map(|due| self.times.remove(&(due, Due::Out(*nlri))));
                self.times.insert((due, Due::Out(*nlri)));
                routes.push(*nlri);
            }
        }
        if !routes.is_empty() {
            self.announce(routes, Vec::new(), None, None);
        }
    }

    fn on_failed(&mut self, what: &'static str, failed: Vec<RouteGroup>) {
        let routes: Vec<Nlri> = failed.into_iter().flat_map(|group| group.routes).collect();
        if !routes.is_empty() {
            self.counts.failed += routes.len() as u64;
            self.tell(Event::Failed { what, routes });
        }
    }

    /// A route of another member is wholly judged.
    fn on_judged(&mut self, id: RouteId) {
        let unix = self.unix();
        let Some(entry) = self.incoming.entries.get_mut(&id) else { return };
        let until = entry.reports.iter().flatten().filter_map(|report| report.until).min();
        let rest = entry.has_failed.then_some(unix + FAILED_REST);
        let due = rest.or_else(|| until.map(|until| ahead(until.secs(), unix)));
        let before = std::mem::replace(&mut entry.due, due);
        self.counts.validated += entry.prefixes.len() as u64;
        before.map(|due| self.times.remove(&(due, Due::In(id))));
        self.times.extend(due.map(|due| (due, Due::In(id))));
        self.decide(id);
    }

    /// Lets policy act on what was found of a route, and tells the member if that is something else than before.
    fn decide(&mut self, id: RouteId) {
        let Some(entry) = self.incoming.entries.get(&id) else { return };
        let directory = self.directory(entry.set).map(AsRef::as_ref);
        let attributes = opened(&entry.attributes, self.config.attribute, directory, self.config.asn);
        let Some(findings) = entry.findings(&self.config.policy, &attributes) else { return };
        let Some(entry) = self.incoming.entries.get_mut(&id) else { return };
        if entry.told.as_ref() == Some(&findings) {
            return;
        }
        let before = entry.told.replace(findings.clone());
        self.counts.rejected += findings.iter().filter(|finding| finding.attributes.is_none()).count() as u64;
        self.say(id, before.as_deref(), &findings);
        self.outputs.push_back(Output::Found { id, findings });
    }

    /// Tells each class that is to be told, when it is another than before.
    fn say(&mut self, id: RouteId, before: Option<&[Finding]>, now: &[Finding]) {
        let Some(entry) = self.incoming.entries.get(&id) else { return };
        let mut events = Vec::new();
        for (place, nlri) in entry.prefixes.iter().enumerate() {
            let known = before.and_then(|before| before.get(place)).map(|finding| finding.verdict);
            let (Some(class), Some(Some(report))) = (entry.class(place), entry.reports.get(place)) else { continue };
            if self.config.policy.treatment(class).log && known != now.get(place).map(|finding| finding.verdict) {
                let (announcer, report) = (entry.announcer, Arc::clone(report));
                events.push(Event::Verdict { announcer, nlri: *nlri, class, report });
            }
        }
        events.into_iter().for_each(|event| self.tell(event));
    }

    /// `until` says when what was found of routes of others must be looked at again.
    fn on_signed(&mut self, Signed { group, outcome }: Signed, until: &HashMap<Nlri, u64>) {
        let unix = self.unix();
        let RouteGroup { attributes, routes } = group;
        // Of lists that we originate each has a value of its own.
        if matches!(&outcome, Outcome::Attested { origin: false, .. }) && !self.is_stale {
            self.extended.insert(Arc::clone(&attributes), outcome.clone());
        }
        let routes = self.still_there(routes, &attributes);
        for nlri in &routes {
            let Some(entry) = self.outgoing.same(nlri, &attributes) else { continue };
            let before = entry.found.replace(Fate::Out(outcome.clone()));
            let is_renewed =
                matches!(&before, Some(Fate::Out(before)) if before.renewal().is_some_and(|at| at <= unix));
            self.counts.note(&outcome, is_renewed);
            self.set_due(*nlri, outcome.renewal().into_iter().chain(until.get(nlri).copied()).min());
        }
        if routes.is_empty() || self.is_stale {
            // What was signed for other members comes again.
            return;
        }
        let under = self.directories.last().map(|newest| newest.digest);
        match outcome {
            Outcome::Attested { attributes, .. } => {
                self.announce(Vec::new(), routes, Some(attributes.as_ref().clone()), under);
            }
            Outcome::AsTheyCame => self.announce(Vec::new(), routes, Some(attributes.as_ref().clone()), None),
            Outcome::NotExtended(error) => {
                self.announce(Vec::new(), routes.clone(), Some(attributes.as_ref().clone()), None);
                self.tell(Event::NotExtended(routes, error));
            }
            Outcome::TooLong { need } => {
                self.announce(routes.clone(), Vec::new(), None, None);
                self.tell(Event::TooLong(routes, need));
            }
            Outcome::Exhausted => {
                self.announce(routes.clone(), Vec::new(), None, None);
                self.tell(Event::Exhausted(routes));
            }
            // Queued again once the count is durable.
            Outcome::NotReserved => {}
        }
    }

    fn on_refused(&mut self, group: RouteGroup, class: VerdictClass, report: Arc<Report>) {
        let due = report.until.map(UnixTime::secs);
        let routes = self.still_there(group.routes, &group.attributes);
        for nlri in &routes {
            let Some(entry) = self.outgoing.same(nlri, &group.attributes) else { continue };
            entry.found = Some(Fate::Refused(class, Arc::clone(&report)));
            self.set_due(*nlri, due);
        }
        if !routes.is_empty() {
            self.counts.rejected += routes.len() as u64;
            self.announce(routes.clone(), Vec::new(), None, None);
            self.tell(Event::Refused(routes, class, report));
        }
    }

    /// A route of the own router is to be looked at again then.
    fn set_due(&mut self, nlri: Nlri, due: Option<u64>) {
        let due = due.map(|due| ahead(due, self.unix()));
        let before = self.outgoing.set_due(&nlri, due);
        before.map(|due| self.times.remove(&(due, Due::Out(nlri))));
        self.times.extend(due.map(|due| (due, Due::Out(nlri))));
    }

    /// Those that still have the attributes that were looked at.
    fn still_there(&mut self, routes: Vec<Nlri>, attributes: &Arc<Attributes>) -> Vec<Nlri> {
        routes.into_iter().filter(|nlri| self.outgoing.same(nlri, attributes).is_some()).collect()
    }

    fn on_view(&mut self, view: Arc<View>) {
        self.view = view;
        self.incoming.queue_those(|_| true);
        if self.keys.register(&self.view, self.config.asn) {
            self.sign_anew();
        } else {
            self.look_at_others_routes();
        }
    }

    /// Looks again at what the router hands in, but for own routes that are signed: of those nothing was found.
    fn look_at_others_routes(&mut self) {
        let is_own = |fate: &Option<Fate>| matches!(fate, Some(Fate::Out(Outcome::Attested { origin: true, .. })));
        self.outgoing.queue_those(|entry| !is_own(&entry.found));
    }

    fn on_policy(&mut self, policy: Policy) {
        self.config.policy = policy;
        let mut ids: Vec<RouteId> = self.incoming.entries.keys().copied().collect();
        ids.sort_unstable();
        ids.into_iter().for_each(|id| self.decide(id));
        self.look_at_others_routes();
    }

    /// Asks for more signatures of few-time keys to be made durable, well before they are used.
    fn reserve(&mut self) {
        let (due, ending) = self.keys.reserve();
        ending.into_iter().for_each(|left| self.tell(Event::KeyEnds(left)));
        let persist = |ToPersist { id, public, limit }| Output::Persist { id, public, limit };
        self.outputs.extend(due.into_iter().map(persist));
    }

    fn on_persisted(&mut self, id: u64) {
        if self.keys.persisted(id) {
            let waits = |fate: &Option<Fate>| matches!(fate, Some(Fate::Out(Outcome::NotReserved)));
            self.outgoing.queue_those(|entry| waits(&entry.found));
        }
    }

    /// Looks again at what is due.
    fn on_times(&mut self) {
        let unix = self.unix();
        while let Some((_, due)) = self.times.first().copied().filter(|(at, _)| *at <= unix) {
            self.times.pop_first();
            match due {
                Due::Out(nlri) => self.outgoing.queue(&nlri),
                Due::In(id) => self.incoming.queue(&id),
            }
        }
    }
}

/// The tree of all members: those without keys, or with none that may be used, stand in it as ones that do not attest.
fn tree(neighbours: &[(Asn, Vec<LeafKey>)]) -> Option<Tree> {
    let leaf = |keys: &[LeafKey]| endorse(keys, LEAST_STRENGTH).unwrap_or_else(|_| Leaf::keyless());
    let slots: Vec<(Asn, Leaf)> = neighbours.iter().map(|(asn, keys)| (*asn, leaf(keys))).collect();
    Tree::directory(&slots).ok()
}

/// When to look again: where that time has passed already (work took so long, or failed and what was found before
/// stands), a while from now, so that nothing is tried again and again at once.
fn ahead(due: u64, unix: u64) -> u64 {
    if due > unix { due } else { unix + AGAIN }
}

impl Machine for MemberAttestation {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, input: Input, now: Now) {
        self.on_now(now);
        match input {
            Input::RouterUpdate { withdrawn, announced, attributes } => {
                self.on_update(withdrawn, announced, attributes);
            }
            Input::RouterEndOfRib => self.end_of_rib = true,
            Input::RouterDown => self.on_router_down(),
            Input::Members { set, digest, neighbours } => self.on_members(set, digest, &neighbours),
            Input::Route { id, announcer, set, prefixes, attributes } => {
                self.incoming.put(id, announcer, set, prefixes, attributes);
            }
            Input::Gone(id) => {
                let due = self.incoming.remove(&id);
                due.map(|due| self.times.remove(&(due, Due::In(id))));
            }
            Input::View(view) => self.on_view(view),
            Input::Policy(policy) => self.on_policy(policy),
            Input::Done(done) => self.on_done(done),
            Input::Persisted(id) => self.on_persisted(id),
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        self.on_now(now);
        self.on_times();
    }

    fn poll(&mut self) -> Option<Output> {
        if self.outputs.is_empty() {
            self.work();
        }
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        self.times.first().map(|(due, _)| wake(self.now, *due))
    }
}

//! Attestation beside a route-server member: signs what its router announces, and validates what other members do.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::{Afi, Asn, Instant, Machine, Now, VerdictKind};

use super::directories::{Directories, SetChange};
use super::event::{Finding, Input, MemberAttestationConfig, MemberAttestationEvent, Output, RouteId};
use super::received::{ReceivedRoutes, opened};
use crate::cache::VerifiedSignatures;
use crate::leaf::LeafKey;
use crate::pipeline::jobs::{
    JobResult, PEER_SIGNATURES, PeerSignatures, PolicyCheck, Results, RouteGroup, SignedGroup, SigningJob,
    SigningOutcome, SigningResults, Target, TargetRoutes, ValidationResults,
};
use crate::pipeline::policy::Policy;
use crate::pipeline::queue::{
    RETRY_FAILED, Recorded, SIGNING_BURST, SigningQueue, VerificationBudget, not_in_the_past,
};
use crate::pipeline::{CACHE_AGE, Counts, Pipeline, RouteEvent};
use crate::pki::View;
use crate::sign::KeyRing;

/// The source of the member's own signing jobs; those of validation have the announcer's slot.
const OWN_ROUTER: usize = 0;

/// How often routes are signed again for new or changed members, and how many each time: our own limit of 200 routes a
/// second. Meanwhile those that are there already use the earlier signatures.
const RENEWAL_INTERVAL: Duration = Duration::from_millis(100);
const RENEWAL_BURST: usize = 20;

/// A route as the schedule names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RouteKey {
    Announced(Nlri),
    Received(RouteId),
}

/// The attestation of one member.
pub struct MemberAttestation {
    pub(super) pipeline: Pipeline<RouteKey>,
    max_octets: usize,
    pub(super) directories: Directories,
    /// The routes of the own router.
    pub(super) announced: SigningQueue,
    /// Those of them that it has not announced again since the loss of its session.
    stale: BTreeSet<Nlri>,
    /// Right signatures of those that came from others.
    pub(super) known: PeerSignatures,
    /// What wrong signatures of the own router's routes cost.
    check_budget: VerificationBudget<usize>,
    pub(super) received: ReceivedRoutes,
    pub(super) counts: Counts,
    /// Routes that are signed again for new or changed members, and when the next of them are.
    pub(super) renewals: BTreeSet<Nlri>,
    next_renewal: Instant,
    /// The digest of the set for which the job in flight signs.
    signing_for: Option<[u8; 32]>,
    /// When the caches of signatures last aged.
    aged: Instant,
    outputs: VecDeque<Output>,
}

impl MemberAttestation {
    /// No member set and no route yet. `ring` holds the AS's keys, `seen` by encoded public key the last slot of
    /// time in which a few-time key may have signed before this start.
    #[must_use]
    pub fn new(config: MemberAttestationConfig, ring: KeyRing, seen: &HashMap<Vec<u8>, u64>, now: Now) -> Self {
        let mut member = Self {
            pipeline: Pipeline::new(config.pipeline, ring, seen, now),
            max_octets: config.max_octets,
            directories: Directories::default(),
            announced: SigningQueue::new(),
            stale: BTreeSet::new(),
            known: PeerSignatures::new(PEER_SIGNATURES),
            check_budget: VerificationBudget::new(now.instant),
            received: ReceivedRoutes::new(config.most_memory, now.instant),
            counts: Counts::default(),
            renewals: BTreeSet::new(),
            next_renewal: now.instant,
            signing_for: None,
            aged: now.instant,
            outputs: VecDeque::new(),
        };
        member.reserve();
        member
    }

    /// Gives back the memory of queues that were long; to be called now and then.
    pub fn sweep(&mut self) {
        self.outputs.shrink_to_fit();
        if self.pipeline.now.instant.since(self.aged) >= CACHE_AGE {
            self.aged = self.pipeline.now.instant;
            self.known.if_idle(VerifiedSignatures::age);
            self.received.queues.age();
        }
    }

    fn notify(&mut self, event: MemberAttestationEvent) {
        self.outputs.push_back(Output::Event(event));
    }

    /// Reports what happened to routes of the own router.
    fn notify_of_announced(&mut self, event: Option<RouteEvent>) {
        if let Some(event) = event {
            self.notify(MemberAttestationEvent::Route { announcer: None, event });
        }
    }

    fn on_now(&mut self, now: Now) {
        let Some(stepped) = self.pipeline.set_now(now) else { return };
        self.notify(MemberAttestationEvent::Process(stepped));
        self.received.queue_where(|_| true);
        self.announced.sign_all_again();
    }

    fn on_members(&mut self, set: u64, digest: [u8; 32], neighbours: &[(Asn, Vec<LeafKey>)]) {
        let live = self.received.routes.values().map(|route| route.set).collect();
        let change = self.directories.insert(set, digest, neighbours, &live);
        if change != SetChange::Old {
            // Routes that came under this set before the set itself did.
            self.received.queue_where(|route| route.set == digest);
        }
        if matches!(change, SetChange::Left | SetChange::Leaves) {
            self.check_listed(neighbours);
        }
        if change == SetChange::Leaves {
            if self.renewals.is_empty() {
                self.next_renewal = self.pipeline.now.instant;
            }
            self.renewals.extend(self.announced.routes.iter().map(|(nlri, _)| *nlri));
            self.renew();
        }
    }

    /// Whether routes still are to be signed again for new or changed members.
    #[must_use]
    pub fn has_renewals(&self) -> bool {
        !self.renewals.is_empty()
    }

    /// Queues some of the routes that are to be signed again for new or changed members.
    fn renew(&mut self) {
        let now = self.pipeline.now.instant;
        if self.renewals.is_empty() || now < self.next_renewal {
            return;
        }
        self.next_renewal = now + RENEWAL_INTERVAL;
        for _ in 0..RENEWAL_BURST {
            let Some(nlri) = self.renewals.pop_first() else { return };
            self.announced.routes.queue(&nlri);
        }
    }

    fn check_listed(&mut self, neighbours: &[(Asn, Vec<LeafKey>)]) {
        let mut held: Vec<LeafKey> = self.pipeline.keys.held().iter().map(|key| key.leaf).collect();
        held.sort_unstable();
        let own = self.pipeline.config.asn;
        let listed = neighbours.iter().find(|(asn, _)| *asn == own).map(|(_, keys)| keys.as_slice());
        if listed.is_some_and(|listed| listed != held) {
            self.notify(MemberAttestationEvent::OtherKeysListed);
        }
    }

    fn on_update(&mut self, withdrawn: Vec<Nlri>, announced: Vec<Nlri>, attributes: Option<Attributes>) {
        self.forget(&withdrawn);
        for nlri in &announced {
            self.stale.remove(nlri);
        }
        if !withdrawn.is_empty() {
            self.withdraw(withdrawn);
        }
        let Some(attributes) = attributes.map(Arc::new) else { return };
        announced.into_iter().for_each(|nlri| self.announced.routes.insert(nlri, Arc::clone(&attributes)));
    }

    fn withdraw(&mut self, withdrawn: Vec<Nlri>) {
        self.outputs.push_back(Output::Announce { withdrawn, announced: Vec::new(), attributes: None, under: None });
    }

    fn forget(&mut self, gone: &[Nlri]) {
        for nlri in gone {
            let due = self.announced.remove(nlri);
            self.pipeline.schedule.cancel(RouteKey::Announced(*nlri), due);
            self.renewals.remove(nlri);
            self.stale.remove(nlri);
        }
    }

    fn on_router_lost(&mut self, stays: BTreeSet<Nlri>) {
        let all = self.announced.routes.iter().map(|(nlri, _)| *nlri);
        let gone: Vec<Nlri> = all.filter(|nlri| !stays.contains(nlri)).collect();
        self.forget(&gone);
        self.announced.routes.forget_ends_of_rib();
        self.stale = stays;
    }

    /// What the router has not announced again is gone. The member withdraws it by itself.
    fn on_stale_gone(&mut self, family: Option<Afi>) {
        let is_gone = |nlri: &&Nlri| family.is_none_or(|afi| nlri.prefix.afi() == afi);
        let gone: Vec<Nlri> = self.stale.iter().filter(is_gone).copied().collect();
        self.forget(&gone);
    }

    fn on_router_down(&mut self) {
        self.announced.clear();
        self.stale.clear();
        self.renewals.clear();
        self.pipeline.schedule.retain(|route| matches!(route, RouteKey::Received(_)));
    }

    /// Gives out jobs, and the router's End-of-RIB where no route waits.
    fn give_out_jobs(&mut self) {
        let now = self.pipeline.now.instant;
        loop {
            let pipeline = &self.pipeline;
            let Some(burst) = self.received.next_burst(now, |attributes| pipeline.estimated_units(attributes)) else {
                break;
            };
            let directory = self.directories.tree(&burst.set).map(|tree| tree.as_ref().clone());
            let directories = Arc::new(directory.into_iter().collect());
            let validator = self.pipeline.validator(&burst.known, burst.alone, directories);
            let job = self.pipeline.validation_job(burst.announcer as usize, validator, burst.groups);
            self.outputs.push_back(Output::Job(job));
        }
        if !self.pipeline.signing {
            self.sign();
        }
        if !self.announced.take_ends_of_rib(now).is_empty() {
            self.outputs.push_back(Output::EndOfRib);
        }
    }

    fn sign(&mut self) {
        let Some(newest) = self.directories.newest() else { return };
        let (target, digest) = (Target::Directory(Arc::clone(&newest.tree)), newest.digest);
        self.check_budget.advance(self.pipeline.now.instant);
        let groups = self.announced.next_burst(SIGNING_BURST);
        if groups.is_empty() {
            return;
        }
        self.announced.routes.in_flight = true;
        self.signing_for = Some(digest);
        let validator = self.pipeline.validator(&self.known, false, Arc::default());
        let alone = self.check_budget.is_suspect(OWN_ROUTER).then_some(OWN_ROUTER).into_iter().collect();
        let check = Some(PolicyCheck { validator, policy: self.pipeline.config.policy.clone(), alone });
        let signer = self.pipeline.signer(SIGNING_BURST, None);
        let targets = vec![TargetRoutes { source: OWN_ROUTER, target, max_octets: self.max_octets, groups }];
        let job = self.pipeline.signing_job(OWN_ROUTER, SigningJob { check, signer, targets });
        self.outputs.push_back(Output::Job(job));
    }

    fn on_job_done(&mut self, result: JobResult) {
        let JobResult { source, results, failed } = result;
        match results {
            Results::Validated(validated) => self.on_validated(source, validated, failed),
            Results::Signed(targets) => targets.into_iter().for_each(|results| self.on_signing_done(results)),
            Results::KeysMade(made) => {
                self.pipeline.signing = false;
                if !made {
                    let failed = RouteEvent::Failed { task: "making keys ahead", routes: Vec::new() };
                    self.notify_of_announced(Some(failed));
                }
            }
        }
    }

    fn on_validated(&mut self, source: usize, validated: ValidationResults, failed: Vec<RouteGroup>) {
        let clock_event = self.pipeline.watch_clock(&validated.groups);
        self.counts.note_work(&validated.work);
        let announcer = source as u32;
        let was_suspect = self.received.queues.is_suspect(announcer);
        let ids = self.received.record(announcer, validated, &failed, self.pipeline.now.instant);
        if self.received.queues.is_suspect(announcer) && !was_suspect {
            self.notify(MemberAttestationEvent::Suspect(announcer));
        }
        ids.into_iter().for_each(|id| self.on_report(id));
        self.on_failed("validating", failed);
        clock_event.into_iter().for_each(|event| self.notify(MemberAttestationEvent::Process(event)));
    }

    fn on_signing_done(&mut self, results: SigningResults) {
        self.pipeline.signing_done(&results);
        let SigningResults { groups, failed, checked_until, work, .. } = results;
        self.check_budget.charge(OWN_ROUTER, &work, self.pipeline.now.instant);
        self.counts.note_work(&work);
        groups.into_iter().for_each(|signed| self.on_signed(signed, &checked_until));
        self.withdraw_failed(&failed);
        self.on_failed("signing", failed);
        self.announced.end_job();
        self.reserve();
        if self.announced.routes.waiting() == 0 {
            // More of the routes that wait for a key are tried where no other is queued.
            self.queue_unreserved(self.pipeline.keys.few_time.more_capacity(self.pipeline.now.unix));
        }
        if self.announced.routes.waiting() == 0 {
            // What few-time keys need next is made in the background, where no route waits to be signed.
            self.outputs.extend(self.pipeline.keys_ahead_job(OWN_ROUTER).map(Output::Job));
        }
    }

    /// A job on these routes of the own router panicked: they are withdrawn, and tried again later.
    fn withdraw_failed(&mut self, failed: &[RouteGroup]) {
        let due = self.pipeline.unix() + RETRY_FAILED;
        let mut routes = Vec::new();
        for RouteGroup { attributes, routes: of_group } in failed {
            for nlri in of_group {
                if self.announced.fail(nlri, attributes) {
                    self.reschedule(*nlri, Some(due));
                    routes.push(*nlri);
                }
            }
        }
        if !routes.is_empty() {
            self.withdraw(routes);
        }
    }

    fn on_failed(&mut self, task: &'static str, failed: Vec<RouteGroup>) {
        let routes: Vec<Nlri> = failed.into_iter().flat_map(|group| group.routes).collect();
        if !routes.is_empty() {
            self.counts.failed += routes.len() as u64;
            self.notify_of_announced(Some(RouteEvent::Failed { task, routes }));
        }
    }

    /// A route of another member has new reports.
    fn on_report(&mut self, id: RouteId) {
        let unix = self.pipeline.unix();
        let Some(route) = self.received.routes.get_mut(&id) else { return };
        let until = route.reports.iter().flatten().filter_map(|(_, report)| report.until).min();
        let retry = route.has_failed.then_some(unix + RETRY_FAILED);
        let due = retry.or_else(|| until.map(|until| not_in_the_past(until.secs(), unix)));
        let before = std::mem::replace(&mut route.due, due);
        self.counts.validated += route.prefixes.len() as u64;
        self.pipeline.schedule.reschedule(RouteKey::Received(id), before, due);
        self.apply_policy(id);
    }

    /// Lets policy act on the reports of a route, and gives the member the findings if they have changed.
    fn apply_policy(&mut self, id: RouteId) {
        let Some(route) = self.received.routes.get(&id) else { return };
        let directory = self.directories.tree(&route.set).map(AsRef::as_ref);
        let config = &self.pipeline.config;
        let attributes = opened(&route.attributes, config.attribute, directory, config.asn);
        let Some(findings) = route.findings(&config.policy, &attributes) else { return };
        let Some(route) = self.received.routes.get_mut(&id) else { return };
        if route.findings.as_ref() == Some(&findings) {
            return;
        }
        let before = route.findings.replace(findings.clone());
        self.counts.rejected += findings.iter().filter(|finding| finding.attributes.is_none()).count() as u64;
        self.notify_of_verdicts(id, before.as_deref(), &findings);
        self.outputs.push_back(Output::Findings { id, findings });
    }

    /// Reports the verdicts that policy reports and that have changed.
    fn notify_of_verdicts(&mut self, id: RouteId, before: Option<&[Finding]>, now: &[Finding]) {
        let Some(route) = self.received.routes.get(&id) else { return };
        let announcer = Some(route.announcer);
        let mut events = Vec::new();
        for (index, nlri) in route.prefixes.iter().enumerate() {
            let known = before.and_then(|before| before.get(index)).map(|finding| finding.verdict);
            let Some(Some((class, report))) = route.reports.get(index) else { continue };
            let class = *class;
            let has_changed = known != now.get(index).map(|finding| finding.verdict);
            if has_changed && self.pipeline.config.policy.treatment(class).log {
                let event = RouteEvent::Verdict { nlri: *nlri, class, report: Arc::clone(report) };
                events.push(MemberAttestationEvent::Route { announcer, event });
            }
        }
        events.into_iter().for_each(|event| self.notify(event));
    }

    /// `checked_until` says until when the reports of routes of other ASes hold.
    fn on_signed(&mut self, signed: SignedGroup, checked_until: &HashMap<Nlri, u64>) {
        let unix = self.pipeline.unix();
        let attribute = self.pipeline.config.attribute;
        let Recorded { routes, withdrawn } = self.announced.record(&signed, attribute, unix, &mut self.counts);
        if !withdrawn.is_empty() {
            self.withdraw(withdrawn);
        }
        let SignedGroup { group, outcome } = signed;
        let is_newest = self.directories.newest().map(|newest| newest.digest) == self.signing_for;
        for nlri in &routes {
            if is_newest {
                self.renewals.remove(nlri);
            }
            let due = outcome.due(unix).into_iter().chain(checked_until.get(nlri).copied()).min();
            self.reschedule(*nlri, due.map(|due| not_in_the_past(due, unix)));
        }
        // What was signed with other keys or by another clock is signed again, and is announced then. What was signed for the
        // members of an earlier set holds for them.
        let is_refused = matches!(outcome, SigningOutcome::Refused { .. });
        if routes.is_empty() || (self.announced.is_stale() && !is_refused) {
            return;
        }
        match outcome.sent(&group.attributes) {
            Some(attributes) => {
                let is_signed = matches!(outcome, SigningOutcome::Signed { .. });
                let under = self.signing_for.filter(|_| is_signed);
                let attributes = Some(attributes.as_ref().clone());
                let announced = routes.clone();
                self.outputs.push_back(Output::Announce { withdrawn: Vec::new(), announced, attributes, under });
            }
            // Queued again when a slot of time has come.
            None if matches!(outcome, SigningOutcome::NotReserved) => {}
            None => self.withdraw(routes.clone()),
        }
        self.notify_of_announced(outcome.event(routes));
    }

    /// Sets when a route of the own router must be worked on again.
    fn reschedule(&mut self, nlri: Nlri, due: Option<u64>) {
        let before = self.announced.routes.set_due(&nlri, due);
        self.pipeline.schedule.reschedule(RouteKey::Announced(nlri), before, due);
    }

    fn on_view(&mut self, view: Arc<View>) {
        let change = self.pipeline.set_view(view);
        let event = self.pipeline.key_use_event();
        event.into_iter().for_each(|event| self.notify(MemberAttestationEvent::Process(event)));
        let pipeline = &self.pipeline;
        let concerns = |nlri: &Nlri, attributes: &Attributes| pipeline.concerns(&change, &nlri.prefix, attributes);
        self.received.queue_where(|route| route.prefixes.iter().any(|nlri| concerns(nlri, &route.attributes)));
        if change.own_keys {
            self.announced.sign_all_again();
        } else {
            self.announced.routes.queue_where(|nlri, route| concerns(nlri, &route.attributes));
        }
    }

    fn on_policy(&mut self, policy: Policy) {
        self.pipeline.config.policy = policy;
        let mut ids: Vec<RouteId> = self.received.routes.keys().copied().collect();
        ids.sort_unstable();
        ids.into_iter().for_each(|id| self.apply_policy(id));
        self.announced.check_again();
    }

    /// There is no room for a route of another member: it is not used until it is announced again.
    fn refuse(&mut self, id: RouteId, announcer: u32, prefixes: usize) {
        let refused = Finding { verdict: VerdictKind::Invalid, attributes: None };
        self.outputs.push_back(Output::Findings { id, findings: vec![refused; prefixes] });
        self.counts.out_of_memory += prefixes as u64;
        self.notify(MemberAttestationEvent::OutOfMemory(announcer));
    }

    /// Asks for slots of few-time keys to be made durable, and reports what operators should know of such keys.
    fn reserve(&mut self) {
        let (reserves, events) = self.pipeline.reserve();
        events.into_iter().for_each(|event| self.notify(MemberAttestationEvent::Process(event)));
        self.outputs.extend(reserves.into_iter().map(Output::Persist));
    }

    fn on_persisted(&mut self, id: u64) {
        if self.pipeline.keys.few_time.persisted(id, self.pipeline.now.unix) {
            self.queue_unreserved(self.pipeline.keys.few_time.capacity(self.pipeline.now.unix));
        }
    }

    fn on_clock(&mut self, is_synchronised: bool) {
        if self.pipeline.keys.few_time.set_synchronised(is_synchronised, self.pipeline.now) {
            self.reserve();
        }
    }

    /// Tries routes again that waited until a key may sign, where one may now.
    fn on_slot(&mut self) {
        let capacity = self.pipeline.keys.few_time.take_retry(self.pipeline.now.unix);
        self.queue_unreserved(capacity);
        self.reserve();
    }

    /// Queues as many routes that wait until a key may sign as one can sign for.
    fn queue_unreserved(&mut self, capacity: Option<usize>) {
        let Some(capacity) = capacity else { return };
        let capacity = capacity.saturating_sub(self.announced.tried());
        self.announced.queue_unreserved(capacity);
        self.pipeline.keys.few_time.retried(self.announced.has_unreserved());
    }

    /// Queues the routes that are due.
    fn queue_due(&mut self) {
        let unix = self.pipeline.unix();
        while let Some(route) = self.pipeline.schedule.take_due(unix) {
            match route {
                RouteKey::Announced(nlri) => self.announced.routes.queue(&nlri),
                RouteKey::Received(id) => self.received.queue(&id),
            }
        }
    }
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
            Input::RouterEndOfRib => {
                self.on_stale_gone(None);
                // The member has one End-of-RIB for all families.
                self.announced.routes.request_end_of_rib(Afi::Ipv4);
            }
            Input::RouterDown => self.on_router_down(),
            Input::RouterLost { stays } => self.on_router_lost(stays),
            Input::StaleGone(afi) => self.on_stale_gone(Some(afi)),
            Input::Members { set, digest, neighbours } => self.on_members(set, digest, &neighbours),
            Input::Route { id, announcer, set, prefixes, attributes } => {
                let before = self.received.routes.get(&id).and_then(|route| route.due);
                self.pipeline.schedule.cancel(RouteKey::Received(id), before);
                let count = prefixes.len();
                if !self.received.insert(id, announcer, set, prefixes, attributes) {
                    self.refuse(id, announcer, count);
                }
            }
            Input::Gone(id) => {
                let due = self.received.remove(&id);
                self.pipeline.schedule.cancel(RouteKey::Received(id), due);
            }
            Input::View(view) => self.on_view(view),
            Input::Policy(policy) => self.on_policy(policy),
            Input::JobDone(result) => self.on_job_done(result),
            Input::Persisted(id) => self.on_persisted(id),
            Input::ClockSynchronised(is_synchronised) => self.on_clock(is_synchronised),
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        self.on_now(now);
        self.queue_due();
        self.renew();
        self.on_slot();
    }

    fn poll(&mut self) -> Option<Output> {
        if self.outputs.is_empty() {
            self.give_out_jobs();
        }
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        let end_of_rib = self.announced.end_of_rib_deadline(self.pipeline.now.instant);
        let renewal = (!self.renewals.is_empty()).then_some(self.next_renewal);
        let deadlines = self.pipeline.deadline().into_iter().chain(self.received.queues.deadline());
        deadlines.chain(end_of_rib).chain(renewal).min()
    }
}

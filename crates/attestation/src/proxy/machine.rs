//! All session pairs of one AS in one process: what comes in is validated before it goes inside, what goes out is signed.

mod keys;
mod revalidate;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::{Instant, Machine, Now, UnixTime};
use wayleave_crypto::secret::Seed;

use super::event::{Event, Input, Output, ProxyConfig};
use super::handover::{GrantedKey, Handover, ReceivedGrants};
use super::offer::{ask, offer, offered};
use super::sequences::Sequences;
use super::session_pair::{self, PairConfig, PairEvent, SessionPair, Side};
use crate::burst::MAX_BURST;
use crate::cache::VerifiedSignatures;
use crate::leaf::{Leaf, LeafKey, Tree};
use crate::pipeline::jobs::{
    JobResult, PEER_SIGNATURES, PeerSignatures, PolicyCheck, Results, SignedGroup, SigningJob, SigningOutcome,
    SigningResults, Target, TargetRoutes, Validated,
};
use crate::pipeline::policy::VerdictClass;
use crate::pipeline::queue::{
    PendingRoutes, Recorded, SIGNING_BURST, SigningQueue, VerificationBudget, not_in_the_past,
};
use crate::pipeline::{CACHE_AGE, Counts, Pipeline, RouteEvent};
use crate::sign::KeyRing;

/// Routes of one validation job, at most, so that no peer's routes wait long behind another's.
const VALIDATION_BURST: usize = 512;

/// Likewise of one signing job, of a pair of whose routes many had wrong signatures when they were checked.
const SUSPECT_BURST: usize = 8;

/// A route as the schedule names it: its pair, the side from which it came, and its prefix.
pub(super) type RouteKey = (usize, Side, Nlri);

/// One pair of sessions, and its routes in both directions.
pub(super) struct PairState {
    pub(super) name: String,
    pub(super) sessions: SessionPair,
    /// From outside to inside. Of a report only the class is kept: a report of many routes would stay as long as the last of them.
    pub(super) incoming: PendingRoutes<VerdictClass>,
    /// From inside to outside.
    pub(super) outgoing: SigningQueue,
    /// What our hop says of the outside peer, while its session is up.
    leaf: Option<Leaf>,
    pub(super) known: PeerSignatures,
    pub(super) sequences: Sequences,
    handover: Handover,
    /// The key that we made for the outside peer, while its session is up.
    granted: Option<GrantedKey>,
    /// Keys that the outside peer made for us.
    received_grants: ReceivedGrants,
    pub(super) offered: Vec<LeafKey>,
    /// Octets of an attestation that the outside peer takes, without and with extended messages.
    max_octets: [usize; 2],
    pub(super) counts: Counts,
}

impl PairState {
    /// Sets when a route must be worked on again; returns the previous time.
    fn set_due(&mut self, from: Side, nlri: &Nlri, due: Option<u64>) -> Option<u64> {
        match from {
            Side::Outside => self.incoming.set_due(nlri, due),
            Side::Inside => self.outgoing.routes.set_due(nlri, due),
        }
    }
}

/// The proxy of one AS.
pub struct Proxy {
    pub(super) pipeline: Pipeline<RouteKey>,
    pub(super) pairs: Vec<PairState>,
    pub(super) directories: Arc<Vec<Tree>>,
    /// Where one signature serves a burst of routes to all neighbours: the secret from which its salts come.
    burst_salts: Option<Seed>,
    secret: Option<Seed>,
    /// The code of the capability that offers keys.
    capability: u8,
    least_strength: u16,
    require_post_quantum: bool,
    /// The pair whose turn it is to sign.
    turn: usize,
    /// The pair from which on routes are tried again that wait until a key may sign.
    unreserved_turn: usize,
    /// The pair from which on routes are given out for validation.
    validation_turn: usize,
    pub(super) budget: VerificationBudget<usize>,
    /// Right signatures of routes that are signed: these come from inside, wherever they came in.
    pub(super) checked: PeerSignatures,
    /// What wrong signatures from inside cost, by the pair that was to sign after them.
    pub(super) check_budget: VerificationBudget<usize>,
    /// When the caches of signatures last aged.
    aged: Instant,
    /// Keys that are to sign once no job does, and what the store has seen of them.
    new_keys: Option<(KeyRing, HashMap<Vec<u8>, u64>)>,
    outputs: VecDeque<Output>,
}

impl Proxy {
    /// Makes pairs at rest. `ring` holds the AS's keys, `seen` by encoded public key the last slot of time in
    /// which a few-time key may have signed before this start; `seed` feeds the jitter of timers.
    #[must_use]
    pub fn new(config: ProxyConfig, ring: KeyRing, seen: &HashMap<Vec<u8>, u64>, seed: u64, now: Now) -> Self {
        let keys: Vec<LeafKey> = ring.pairs.iter().map(|pair| pair.leaf_key()).collect();
        let pairs = config.pairs.iter().enumerate().map(|(index, options)| {
            let more = match options.handover.may_take() {
                true => vec![ask(config.capability, &keys)],
                false if keys.is_empty() => Vec::new(),
                false => vec![offer(config.capability, &keys)],
            };
            let most_memory = options.most_memory;
            let pair = PairConfig { ends: options.ends.clone(), more: [Vec::new(), more], most_memory };
            PairState {
                name: options.name.clone(),
                sessions: SessionPair::new(pair, seed ^ (index as u64) << 32, now),
                incoming: PendingRoutes::new(),
                outgoing: SigningQueue::new(),
                leaf: None,
                known: PeerSignatures::new(PEER_SIGNATURES),
                sequences: Sequences::default(),
                handover: options.handover,
                granted: None,
                received_grants: ReceivedGrants::default(),
                offered: Vec::new(),
                max_octets: [options.max_octets, options.max_octets_extended],
                counts: Counts::default(),
            }
        });
        let mut proxy = Self {
            pairs: pairs.collect(),
            pipeline: Pipeline::new(config.pipeline, ring, seen, now),
            directories: Arc::default(),
            burst_salts: None,
            secret: None,
            capability: config.capability,
            least_strength: config.least_strength,
            require_post_quantum: config.require_post_quantum,
            turn: 0,
            unreserved_turn: 0,
            validation_turn: 0,
            budget: VerificationBudget::new(now.instant),
            checked: PeerSignatures::new(PEER_SIGNATURES),
            check_budget: VerificationBudget::new(now.instant),
            aged: now.instant,
            new_keys: None,
            outputs: VecDeque::new(),
        };
        proxy.reserve();
        proxy
    }

    /// Number of pairs.
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// The sessions of the pair with this index.
    #[must_use]
    pub fn pair(&self, index: usize) -> Option<&SessionPair> {
        self.pairs.get(index).map(|pair| &pair.sessions)
    }

    /// Frees what no route needs any more; to be called now and then.
    pub fn sweep(&mut self) {
        let unix = self.pipeline.unix();
        let ages = self.pipeline.now.instant.since(self.aged) >= CACHE_AGE;
        if ages {
            self.aged = self.pipeline.now.instant;
            self.checked.if_idle(VerifiedSignatures::age);
        }
        for pair in &mut self.pairs {
            pair.sessions.sweep();
            pair.sequences.sweep(unix);
            if ages {
                pair.known.if_idle(VerifiedSignatures::age);
            }
        }
    }

    fn notify(&mut self, event: Event) {
        self.outputs.push_back(Output::Event(event));
    }

    fn notify_of_routes(&mut self, pair: usize, event: Option<RouteEvent>) {
        if let Some(event) = event {
            self.notify(Event::Route { pair, event });
        }
    }

    fn on_now(&mut self, now: Now) {
        let Some(stepped) = self.pipeline.set_now(now) else { return };
        self.notify(Event::Process(stepped));
        for pair in &mut self.pairs {
            pair.incoming.queue_all();
            pair.outgoing.sign_all_again();
        }
    }

    fn on_sessions(&mut self, pair: usize, output: session_pair::Output) {
        let output = match output {
            session_pair::Output::Tcp { side, request } => Output::Tcp { pair, side, request },
            session_pair::Output::Event(event) => return self.on_event(pair, event),
            session_pair::Output::Route { from, nlri, attributes } => {
                return self.on_route(pair, from, nlri, attributes);
            }
            session_pair::Output::EndOfRib { from: Side::Outside, afi } => {
                return self.pairs[pair].incoming.request_end_of_rib(afi);
            }
            session_pair::Output::EndOfRib { from: Side::Inside, afi } => {
                return self.pairs[pair].outgoing.routes.request_end_of_rib(afi);
            }
        };
        self.outputs.push_back(output);
    }

    fn on_event(&mut self, index: usize, event: PairEvent) {
        let pair = &mut self.pairs[index];
        match &event {
            PairEvent::Up(Side::Outside, established) => {
                let offered = offered(self.capability, &established.peer_capabilities);
                pair.offered.clone_from(&offered);
                pair.received_grants.begin_session();
                self.name_neighbour(index);
                self.pairs[index].outgoing.sign_all_again();
                self.notify(Event::Offered(index, offered));
            }
            PairEvent::Down(Side::Outside, _) => {
                (pair.leaf, pair.granted) = (None, None);
                pair.offered.clear();
                pair.outgoing.set_stale();
                pair.incoming.forget_ends_of_rib();
            }
            PairEvent::Down(Side::Inside, _) => pair.outgoing.routes.forget_ends_of_rib(),
            PairEvent::Malformed(..) => pair.counts.malformed_updates += 1,
            PairEvent::Rejected(_, rejected) => pair.counts.oversize += rejected.routes.len() as u64,
            _ => {}
        }
        self.notify(Event::Pair(index, event));
    }

    fn on_route(&mut self, index: usize, from: Side, nlri: Nlri, attributes: Option<Arc<Attributes>>) {
        let attributes = attributes.map(|attributes| self.take_grant(index, from, attributes));
        let own = self.pipeline.config.asn;
        let pair = &mut self.pairs[index];
        // Some routers announce a neighbour's own routes to it: an ordinary loop, and nobody's false claim.
        let loops =
            |attributes: &Attributes| from == Side::Outside && attributes.as_path().asns().any(|asn| asn == own);
        let attributes = attributes.filter(|attributes| {
            let loops = loops(attributes);
            pair.counts.loops += u64::from(loops);
            !loops
        });
        match (from, attributes) {
            (Side::Outside, Some(attributes)) => pair.incoming.insert(nlri, attributes),
            (Side::Inside, Some(attributes)) => pair.outgoing.routes.insert(nlri, attributes),
            (_, None) => {
                let due = match from {
                    Side::Outside => pair.incoming.remove(&nlri),
                    Side::Inside => pair.outgoing.remove(&nlri),
                };
                pair.sessions.route(from.other(), nlri, None);
                self.pipeline.schedule.cancel((index, from, nlri), due);
            }
        }
    }

    /// Gives out jobs, and sends End-of-RIB where no route waits.
    fn give_out_jobs(&mut self) {
        if !self.pipeline.signing {
            self.take_new_keys();
            self.add_granted_keys();
        }
        self.budget.advance(self.pipeline.now.instant);
        for is_suspect in [false, true] {
            let pairs = self.pairs.len();
            let turn = self.validation_turn.min(pairs);
            for index in (turn..pairs).chain(0..turn) {
                if self.budget.is_suspect(index) == is_suspect {
                    self.validate(index);
                }
            }
        }
        if !self.pipeline.signing {
            self.sign();
        }
        for pair in &mut self.pairs {
            for afi in pair.incoming.take_ends_of_rib() {
                pair.sessions.end_of_rib(Side::Inside, afi);
            }
            for afi in pair.outgoing.take_ends_of_rib(self.pipeline.now.instant) {
                pair.sessions.end_of_rib(Side::Outside, afi);
            }
        }
    }

    fn validate(&mut self, index: usize) {
        let alone = self.budget.is_suspect(index);
        let pair = &self.pairs[index].incoming;
        if pair.in_flight || pair.waiting() == 0 {
            return;
        }
        let others_wait = alone && self.others_wait();
        if others_wait && self.suspect_in_flight() {
            return;
        }
        let Some(units) = self.budget.burst_units(index, others_wait) else { return };
        let (pair, pipeline) = (&mut self.pairs[index], &self.pipeline);
        let cost = |attributes: &Attributes| pipeline.estimated_units(attributes);
        let groups = pair.incoming.next_burst(VALIDATION_BURST, units, cost);
        if groups.is_empty() {
            return;
        }
        pair.incoming.in_flight = true;
        self.validation_turn = index + 1;
        let validator = pipeline.validator(&pair.known, alone, Arc::clone(&self.directories));
        self.outputs.push_back(Output::Job(pipeline.validation_job(index, validator, groups)));
    }

    /// Whether pairs whose neighbours are not suspect have routes that wait or are being validated.
    fn others_wait(&self) -> bool {
        let is_busy = |pair: &PairState| pair.incoming.in_flight || pair.incoming.waiting() > 0;
        self.pairs.iter().enumerate().any(|(index, pair)| is_busy(pair) && !self.budget.is_suspect(index))
    }

    fn suspect_in_flight(&self) -> bool {
        self.pairs.iter().enumerate().any(|(index, pair)| pair.incoming.in_flight && self.budget.is_suspect(index))
    }

    /// When a suspect neighbour's routes may be validated though others wait.
    fn budget_deadline(&self) -> Option<Instant> {
        let waits = |(index, pair): (usize, &PairState)| {
            !pair.incoming.in_flight && pair.incoming.waiting() > 0 && self.budget.is_suspect(index)
        };
        let must_wait = !self.suspect_in_flight() && self.pairs.iter().enumerate().any(waits);
        must_wait.then(|| self.budget.ready_at())
    }

    /// Signs the next routes of one pair or, where one signature serves a burst, of several.
    fn sign(&mut self) {
        let burst = if self.burst_salts.is_some() { MAX_BURST } else { SIGNING_BURST };
        self.check_budget.advance(self.pipeline.now.instant);
        let mut left = burst;
        let mut targets: Vec<TargetRoutes> = Vec::new();
        for _ in 0..self.pairs.len() {
            let index = self.turn;
            self.turn = (self.turn + 1) % self.pairs.len();
            let most = if self.check_budget.is_suspect(index) { SUSPECT_BURST.min(left) } else { left };
            let routes = self.routes_to_sign(index, most);
            left -= routes.as_ref().map_or(0, |routes| routes.groups.iter().map(|group| group.routes.len()).sum());
            targets.extend(routes);
            if left == 0 || (self.burst_salts.is_none() && !targets.is_empty()) {
                break;
            }
        }
        let Some(source) = targets.first().map(|target| target.source) else { return };
        let signer = self.pipeline.signer(burst, self.burst_salts.as_ref());
        let check = Some(self.check(&targets));
        let job = SigningJob { check, signer, targets };
        self.outputs.push_back(Output::Job(self.pipeline.signing_job(source, job)));
    }

    /// The check of other ASes' routes before they are signed. They have been validated where they came in, but perhaps by
    /// nobody, at a border without a proxy, or with another outcome than now.
    fn check(&self, targets: &[TargetRoutes]) -> PolicyCheck {
        let mut validator = self.pipeline.validator(&self.checked, false, Arc::clone(&self.directories));
        validator.others = self.pairs.iter().map(|pair| pair.known.clone()).collect();
        let sources = targets.iter().map(|target| target.source);
        let alone = sources.filter(|source| self.check_budget.is_suspect(*source)).collect();
        PolicyCheck { validator, policy: self.pipeline.config.policy.clone(), alone }
    }

    /// Takes at most `max` routes of a pair off its queue; without keys they leave as they came.
    fn routes_to_sign(&mut self, index: usize, max: usize) -> Option<TargetRoutes> {
        let pair = &mut self.pairs[index];
        let established = pair.sessions.established(Side::Outside)?;
        let target = Target::Neighbour(established.peer_asn, pair.leaf.clone()?);
        let max_octets = pair.max_octets[usize::from(established.params.extended_message)];
        let groups = pair.outgoing.next_burst(max);
        if self.pipeline.keys.is_empty() {
            for group in groups {
                let signed = SignedGroup { group, outcome: SigningOutcome::AsReceived };
                self.on_signed(index, signed, &HashMap::new());
            }
            return None;
        }
        if groups.is_empty() {
            return None;
        }
        self.pairs[index].outgoing.routes.in_flight = true;
        Some(TargetRoutes { source: index, target, max_octets, groups })
    }

    fn on_job_done(&mut self, result: JobResult) {
        let index = result.source;
        if index >= self.pairs.len() {
            return;
        }
        match result.results {
            Results::Validated(validated) => {
                self.pairs[index].incoming.in_flight = false;
                let was_suspect = self.budget.is_suspect(index);
                self.budget.charge(index, &validated.work, self.pipeline.now.instant);
                self.pairs[index].counts.note_work(&validated.work);
                if self.budget.is_suspect(index) && !was_suspect {
                    self.notify(Event::Suspect(index));
                }
                let clock_event = self.pipeline.watch_clock(&validated.groups);
                validated.groups.into_iter().for_each(|validated| self.on_validated(index, validated));
                self.on_failed(index, Side::Outside, result.failed);
                clock_event.into_iter().for_each(|event| self.notify(Event::Process(event)));
            }
            Results::Signed(targets) => {
                for results in targets {
                    self.pipeline.signing_done(&results);
                    let SigningResults { source, groups, failed, checked_until, work } = results;
                    self.check_budget.charge(source, &work, self.pipeline.now.instant);
                    self.pairs[source].counts.note_work(&work);
                    groups.into_iter().for_each(|signed| self.on_signed(source, signed, &checked_until));
                    self.on_failed(source, Side::Inside, failed);
                    self.pairs[source].outgoing.end_job();
                }
                self.reserve();
                self.make_keys_ahead(index);
            }
            Results::KeysMade(made) => {
                self.pipeline.signing = false;
                if !made {
                    let failed = RouteEvent::Failed { task: "making keys ahead", routes: Vec::new() };
                    self.notify_of_routes(index, Some(failed));
                }
            }
        }
    }

    fn on_validated(&mut self, index: usize, validated: Validated) {
        self.compare_sequences(index, &validated);
        let Validated { group, classes, report } = validated;
        let due = report.until.map(UnixTime::secs);
        for (nlri, class) in group.routes.into_iter().zip(classes) {
            let pair = &mut self.pairs[index];
            let Some(route) = pair.incoming.unchanged(&nlri, &group.attributes) else { continue };
            route.result = Some(class);
            pair.counts.validated += 1;
            self.reschedule(index, Side::Outside, nlri, due);
            self.apply_policy(index, nlri);
            if self.pipeline.config.policy.treatment(class).log {
                let report = Arc::clone(&report);
                self.notify_of_routes(index, Some(RouteEvent::Verdict { nlri, class, report }));
            }
        }
    }

    /// Passes a validated route inside, or rejects it.
    pub(super) fn apply_policy(&mut self, index: usize, nlri: Nlri) {
        let pair = &mut self.pairs[index];
        let Some(route) = pair.incoming.get(&nlri) else { return };
        let Some(class) = route.result else { return };
        match self.pipeline.config.policy.apply(class, &route.attributes) {
            Some(attributes) => pair.sessions.route_with(Side::Inside, nlri, attributes),
            None => {
                pair.counts.rejected += 1;
                pair.sessions.route(Side::Inside, nlri, None);
            }
        }
    }

    /// `checked_until` says until when the reports of routes of other ASes hold.
    fn on_signed(&mut self, index: usize, signed: SignedGroup, checked_until: &HashMap<Nlri, u64>) {
        let unix = self.pipeline.unix();
        let attribute = self.pipeline.config.attribute;
        let pair = &mut self.pairs[index];
        let Recorded { routes, withdrawn } = pair.outgoing.record(&signed, attribute, unix, &mut pair.counts);
        for nlri in withdrawn {
            pair.sessions.route(Side::Outside, nlri, None);
        }
        let SignedGroup { group, outcome } = signed;
        if pair.outgoing.is_stale() && !matches!(outcome, SigningOutcome::Refused { .. }) {
            // Signed for another neighbour, with other keys or at another time. The routes are queued again, or will be.
            return;
        }
        // The grant goes with the hop that names its key, and stands nowhere else.
        let sent = match (&outcome, &pair.granted) {
            (SigningOutcome::Signed { attributes, .. }, Some(granted)) => Some(Arc::new(granted.add_to(attributes))),
            _ => outcome.sent(&group.attributes).cloned(),
        };
        let sent = sent.map(|attributes| pair.sessions.intern_shared(attributes));
        // Routes that wait for a slot of time are queued again when it has come.
        let waits = matches!(outcome, SigningOutcome::NotReserved);
        for nlri in routes.iter().filter(|_| !waits) {
            pair.sessions.route(Side::Outside, *nlri, sent.clone());
        }
        for nlri in &routes {
            let due = outcome.due(unix).into_iter().chain(checked_until.get(nlri).copied()).min();
            self.reschedule(index, Side::Inside, *nlri, due.map(|due| not_in_the_past(due, unix)));
        }
        self.notify_of_routes(index, outcome.event(routes));
    }

    /// Sets when a route must be worked on again.
    fn reschedule(&mut self, index: usize, from: Side, nlri: Nlri, due: Option<u64>) {
        let before = self.pairs[index].set_due(from, &nlri, due);
        self.pipeline.schedule.reschedule((index, from, nlri), before, due);
    }
}

impl Machine for Proxy {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, input: Input, now: Now) {
        self.on_now(now);
        match input {
            Input::Pair(index, input) => {
                if let Some(pair) = self.pairs.get_mut(index) {
                    pair.sessions.handle(input, now);
                }
            }
            Input::JobDone(result) => self.on_job_done(result),
            Input::View(view) => self.on_view(view),
            Input::Directories(directories) => {
                self.directories = directories;
                for pair in &mut self.pairs {
                    pair.incoming.queue_all();
                    pair.outgoing.check_again();
                }
            }
            Input::Policy(policy) => self.on_policy(policy),
            Input::Persisted(id) => self.on_persisted(id),
            Input::ClockSynchronised(is_synchronised) => self.on_clock(is_synchronised),
            Input::Keys(ring, seen) => self.new_keys = Some((ring, seen)),
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        self.on_now(now);
        for pair in &mut self.pairs {
            if pair.sessions.deadline().is_some_and(|deadline| deadline <= now.instant) {
                pair.sessions.handle_timeout(now);
            }
        }
        self.queue_due();
        self.on_slot();
    }

    fn poll(&mut self) -> Option<Output> {
        loop {
            if let Some(output) = self.outputs.pop_front() {
                return Some(output);
            }
            let next = self.pairs.iter_mut().enumerate().find_map(|(index, pair)| Some((index, pair.sessions.poll()?)));
            if let Some((index, output)) = next {
                self.on_sessions(index, output);
                continue;
            }
            self.give_out_jobs();
            let is_due = self.pairs.iter().any(|pair| pair.sessions.is_due());
            if self.outputs.is_empty() && !is_due {
                return None;
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let pairs = self.pairs.iter().filter_map(|pair| pair.sessions.deadline());
        let now = self.pipeline.now.instant;
        let ends_of_rib = self.pairs.iter().filter_map(|pair| pair.outgoing.end_of_rib_deadline(now));
        pairs.chain(ends_of_rib).chain(self.pipeline.deadline()).chain(self.budget_deadline()).min()
    }
}

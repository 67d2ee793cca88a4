//! All pairs of one AS in one process: what comes in is validated before it goes inside, what goes out is signed.

mod keys;
mod revalidate;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::{Instant, Machine, Now, Prefix, UnixTime};
use wayleave_crypto::secret::Seed;

use super::event::{Event, Input, Output, ProxyConfig};
use super::handover::{Granted, Handover, Taken};
use super::offer::{ask, offer, offered};
use super::sequences::Sequences;
use super::session_pair::{self, PairConfig, PairEvent, SessionPair, Side};
use crate::attest::KeyRing;
use crate::cache::Cache;
use crate::clock::{stepped, wake};
use crate::clock_doubt::{ClockDoubt, ClockWatch};
use crate::leaf::{Leaf, LeafKey, Tree};
use crate::pipeline::Counts;
use crate::pipeline::jobs::{Done, Job, Judged, Outcome, Results, RouteGroup, Sign, Signed, Target, Validate, Work};
use crate::pipeline::keys::SigningKeys;
use crate::pipeline::pending::PendingRoutes;
use crate::pipeline::policy::VerdictClass;
use crate::pipeline::shared_tree::NeighbourTree;
use crate::pki::View;
use crate::report::Report;
use crate::validate::Clock;

/// Routes of one burst of validation, at most, so that no peer's routes wait long behind another's.
const BURST: usize = 512;
/// Routes of one burst of signing, at most.
const SIGN_BURST: usize = 128;
/// Reports that a pair's cache holds.
const CACHE: usize = 65_536;

/// One pair and its routes in both directions.
pub(super) struct Place {
    pub(super) name: String,
    pub(super) pair: SessionPair,
    /// From outside to inside.
    pub(super) incoming: PendingRoutes<Arc<Report>>,
    /// From inside to outside.
    pub(super) outgoing: PendingRoutes<Outcome>,
    /// Chains of others as they were extended for this neighbour, by what they came with.
    extended: HashMap<Arc<Attributes>, Outcome>,
    /// Whether what is being signed was given out before the neighbour's leaf, our keys or the clock changed.
    is_stale: bool,
    /// What we say of the outside peer, while its session is up.
    leaf: Option<Leaf>,
    /// Of this pair's validations: one at a time works on it.
    cache: Arc<Mutex<Cache>>,
    /// How far its origins' sequences have come.
    sequences: Sequences,
    handover: Handover,
    /// The pair that we made for the outside peer, while its session is up.
    granted: Option<Granted>,
    /// Those that it made for us.
    taken: Taken,
    pub(super) offered: Vec<LeafKey>,
    most: [usize; 2],
    pub(super) counts: Counts,
}

impl Place {
    /// Forgets what was signed under a leaf, a key or a time that is over, also where it is being signed just now.
    fn forget_signed(&mut self) {
        self.extended.clear();
        self.is_stale = self.outgoing.in_flight;
    }

    /// Signs every route out anew.
    fn sign_anew(&mut self) {
        self.forget_signed();
        self.outgoing.queue_all();
    }
}

/// The proxy of one AS.
pub struct Proxy {
    pub(super) config: ProxyConfig,
    own: Option<Arc<Vec<Prefix>>>,
    pub(super) places: Vec<Place>,
    pub(super) view: Arc<View>,
    pub(super) directories: Arc<Vec<Tree>>,
    keys: SigningKeys,
    /// Where one signature serves all neighbours.
    roots: Option<NeighbourTree>,
    secret: Option<Seed>,
    /// A burst is being signed; whose turn it is next.
    signing: bool,
    turn: usize,
    /// Routes to be looked at again, by time.
    times: BTreeSet<(u64, usize, Side, Nlri)>,
    watch: ClockWatch,
    pub(super) doubt: Option<ClockDoubt>,
    outputs: VecDeque<Output>,
    pub(super) now: Now,
}

impl Proxy {
    /// Pairs at rest. `ring` holds the AS's keys, `used` by encoded public key how often a few-time key may have signed
    /// in earlier lives; `seed` feeds the jitter of timers.
    #[must_use]
    pub fn new(config: ProxyConfig, ring: KeyRing, used: &HashMap<Vec<u8>, u64>, seed: u64, now: Now) -> Self {
        let keys: Vec<LeafKey> = ring.pairs.iter().map(|pair| pair.leaf_key()).collect();
        let places = config.pairs.iter().enumerate().map(|(place, options)| {
            let more = match options.handover.may_take() {
                true => vec![ask(config.capability, &keys)],
                false if keys.is_empty() => Vec::new(),
                false => vec![offer(config.capability, &keys)],
            };
            let pair = PairConfig { ends: options.ends.clone(), more: [Vec::new(), more] };
            Place {
                name: options.name.clone(),
                pair: SessionPair::new(pair, seed ^ (place as u64) << 32, now),
                incoming: PendingRoutes::new(),
                outgoing: PendingRoutes::new(),
                extended: HashMap::new(),
                is_stale: false,
                leaf: None,
                cache: Arc::new(Mutex::new(Cache::new(CACHE))),
                sequences: Sequences::default(),
                handover: options.handover,
                granted: None,
                taken: Taken::default(),
                offered: Vec::new(),
                most: [options.most, options.most_extended],
                counts: Counts::default(),
            }
        });
        let mut proxy = Self {
            own: config.own.clone().map(Arc::new),
            places: places.collect(),
            view: Arc::new(View::new(0)),
            directories: Arc::default(),
            keys: SigningKeys::new(ring, used),
            roots: None,
            secret: None,
            signing: false,
            turn: 0,
            times: BTreeSet::new(),
            watch: ClockWatch::default(),
            doubt: None,
            outputs: VecDeque::new(),
            now,
            config,
        };
        proxy.reserve();
        proxy
    }

    /// How many pairs there are.
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.places.len()
    }

    /// The sessions of a pair, by its place.
    #[must_use]
    pub fn pair(&self, place: usize) -> Option<&SessionPair> {
        self.places.get(place).map(|place| &place.pair)
    }

    /// Lets go of what no route needs any more; to be called now and then.
    pub fn sweep(&mut self) {
        let unix = self.unix();
        for place in &mut self.places {
            let used: std::collections::HashSet<*const Attributes> =
                place.outgoing.iter().map(|(_, entry)| Arc::as_ptr(&entry.attributes)).collect();
            place.extended.retain(|attributes, _| used.contains(&Arc::as_ptr(attributes)));
            place.pair.sweep();
            place.sequences.sweep(unix);
        }
    }

    pub(super) fn ring(&self) -> MutexGuard<'_, KeyRing> {
        self.keys.ring.lock()
    }

    /// Seconds since 1970.
    pub(super) fn unix(&self) -> u64 {
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
            self.roots.iter_mut().for_each(NeighbourTree::forget_signed);
            self.places.iter_mut().for_each(|place| {
                place.incoming.queue_all();
                place.sign_anew();
            });
        }
    }

    fn on_pair(&mut self, place: usize, output: session_pair::Output) {
        let pair = place;
        let output = match output {
            session_pair::Output::Connect { side, attempt } => Output::Connect { pair, side, attempt },
            session_pair::Output::Send { side, connection, bytes } => Output::Send { pair, side, connection, bytes },
            session_pair::Output::Close { side, connection } => Output::Close { pair, side, connection },
            session_pair::Output::Event(event) => return self.on_event(place, event),
            session_pair::Output::Route { from, nlri, attributes } => {
                return self.on_route(place, from, nlri, attributes);
            }
            session_pair::Output::EndOfRib { from: Side::Outside, afi } => return self.places[place].incoming.end(afi),
            session_pair::Output::EndOfRib { from: Side::Inside, afi } => return self.places[place].outgoing.end(afi),
        };
        self.outputs.push_back(output);
    }

    fn on_event(&mut self, place: usize, event: PairEvent) {
        let at = &mut self.places[place];
        match &event {
            PairEvent::Up(Side::Outside, established) => {
                let offered = offered(self.config.capability, &established.peer_capabilities);
                at.offered.clone_from(&offered);
                self.name_neighbour(place);
                self.places[place].taken.begin_session();
                self.places[place].sign_anew();
                self.tell(Event::Offered(place, offered));
            }
            PairEvent::Down(Side::Outside, _) => {
                (at.leaf, at.granted) = (None, None);
                at.offered.clear();
                at.forget_signed();
            }
            PairEvent::Malformed(..) => at.counts.malformed_updates += 1,
            PairEvent::Rejected(_, rejected) => at.counts.oversize += rejected.routes.len() as u64,
            _ => {}
        }
        if let PairEvent::Down(side, _) = &event {
            match side {
                Side::Outside => self.places[place].incoming.forget_ends(),
                Side::Inside => self.places[place].outgoing.forget_ends(),
            }
        }
        self.tell(Event::Pair(place, event));
    }

    fn on_route(&mut self, place: usize, from: Side, nlri: Nlri, attributes: Option<Arc<Attributes>>) {
        let attributes = attributes.map(|attributes| self.keep_grant(place, from, attributes));
        let at = &mut self.places[place];
        // Some routers tell a neighbour its own routes: an ordinary loop, and nobody's false claim.
        let own = self.config.asn;
        let loops =
            |attributes: &Arc<Attributes>| from == Side::Outside && attributes.as_path().asns().any(|asn| asn == own);
        let attributes = attributes.filter(|attributes| {
            let loops = loops(attributes);
            at.counts.loops += u64::from(loops);
            !loops
        });
        let Some(attributes) = attributes else {
            let due = match from {
                Side::Outside => at.incoming.remove(&nlri).and_then(|entry| entry.due),
                Side::Inside => at.outgoing.remove(&nlri).and_then(|entry| entry.due),
            };
            at.pair.route(from.other(), nlri, None);
            self.forget_time(place, from, nlri, due);
            return;
        };
        match from {
            Side::Outside => at.incoming.put(nlri, attributes),
            Side::Inside => at.outgoing.put(nlri, attributes),
        }
    }

    fn forget_time(&mut self, place: usize, side: Side, nlri: Nlri, due: Option<u64>) {
        if let Some(due) = due {
            self.times.remove(&(due, place, side, nlri));
        }
    }

    /// Gives out work, and tells the ends of routes where nothing waits.
    fn work(&mut self) {
        if !self.signing {
            self.take_granted();
        }
        for place in 0..self.places.len() {
            self.validate(place);
        }
        for _ in 0..self.places.len() {
            if self.signing {
                break;
            }
            let place = self.turn;
            self.turn = (self.turn + 1) % self.places.len();
            self.sign(place);
        }
        for at in &mut self.places {
            at.incoming.ends().into_iter().for_each(|afi| at.pair.end_of_rib(Side::Inside, afi));
            at.outgoing.ends().into_iter().for_each(|afi| at.pair.end_of_rib(Side::Outside, afi));
        }
    }

    fn validate(&mut self, place: usize) {
        let at = &mut self.places[place];
        if at.incoming.in_flight {
            return;
        }
        let groups = at.incoming.burst(BURST);
        if groups.is_empty() {
            return;
        }
        at.incoming.in_flight = true;
        let clock = Clock { now: self.now.unix, uncertainty: self.config.uncertainty };
        let work = Work::Validate(Validate {
            cache: Arc::clone(&at.cache),
            view: Arc::clone(&self.view),
            rules: self.config.rules,
            clock,
            directories: Arc::clone(&self.directories),
            attribute: self.config.attribute,
            receiver: self.config.asn,
            groups,
        });
        self.outputs.push_back(Output::Work(Job { pair: place, work }));
    }

    fn sign(&mut self, place: usize) {
        let unix = self.unix();
        let at = &mut self.places[place];
        let Some(established) = at.pair.established(Side::Outside) else { return };
        let Some(leaf) = at.leaf.clone() else { return };
        let neighbour = established.peer_asn;
        let most = at.most[usize::from(established.params.extended_message)];
        let burst = at.outgoing.burst(SIGN_BURST);
        let has_keys = !self.keys.is_empty();
        let mut groups = Vec::new();
        for group in burst {
            let known =
                self.places[place].extended.get(&group.attributes).filter(|known| known.is_current(unix)).cloned();
            match known {
                _ if !has_keys => self.on_signed(place, Signed { group, outcome: Outcome::AsTheyCame }),
                Some(outcome) => self.on_signed(place, Signed { group, outcome }),
                None => groups.push(group),
            }
        }
        if groups.is_empty() {
            return;
        }
        self.places[place].outgoing.in_flight = true;
        self.signing = true;
        let sequence = self.keys.sequence(self.now.unix, SIGN_BURST);
        let target = match self.roots.as_mut().and_then(|roots| roots.shared(neighbour, &leaf)) {
            Some(shared) => Target::Root(neighbour, leaf, shared),
            None => Target::Neighbour(neighbour, leaf),
        };
        let work = Work::Sign(Sign {
            ring: self.keys.ring.clone(),
            asn: self.config.asn,
            target,
            now: unix,
            lifetime: self.config.lifetime,
            sequence,
            attribute: self.config.attribute,
            most,
            own: self.own.clone(),
            groups,
        });
        self.outputs.push_back(Output::Work(Job { pair: place, work }));
    }

    fn on_done(&mut self, done: Done) {
        let place = done.pair;
        if place >= self.places.len() {
            return;
        }
        match done.result {
            Results::Validated(judged) => {
                self.places[place].incoming.in_flight = false;
                judged.into_iter().for_each(|judged| self.on_judged(place, judged));
                self.on_failed(place, Side::Outside, done.failed);
                let doubt = self.watch.doubt(self.now.unix);
                if std::mem::replace(&mut self.doubt, doubt) != doubt {
                    self.tell(Event::ClockInDoubt(doubt));
                }
            }
            Results::Signed(signed) => {
                self.places[place].outgoing.in_flight = false;
                self.signing = false;
                signed.into_iter().for_each(|signed| self.on_signed(place, signed));
                self.on_failed(place, Side::Inside, done.failed);
                self.places[place].is_stale = false;
                self.reserve();
                self.make_ahead(place);
            }
            Results::Ahead(made) => {
                self.signing = false;
                if !made {
                    self.tell(Event::Failed { pair: place, what: "making keys ahead", routes: Vec::new() });
                }
            }
        }
    }

    fn on_judged(&mut self, place: usize, Judged { group, report }: Judged) {
        self.compare_sequences(place, &group, &report);
        let due = report.until.map(UnixTime::secs);
        self.watch.observe(&report, self.now.unix);
        for nlri in group.routes {
            let at = &mut self.places[place];
            let Some(entry) = at.incoming.same(&nlri, &group.attributes) else { continue };
            entry.found = Some(Arc::clone(&report));
            let before = std::mem::replace(&mut entry.due, due);
            at.counts.validated += 1;
            self.forget_time(place, Side::Outside, nlri, before);
            self.times.extend(due.map(|due| (due, place, Side::Outside, nlri)));
            self.decide(place, nlri);
        }
    }

    /// Lets policy act on what was found of a route.
    fn decide(&mut self, place: usize, nlri: Nlri) {
        let at = &mut self.places[place];
        let Some(entry) = at.incoming.get(&nlri) else { return };
        let Some(report) = entry.found.clone() else { return };
        let class = VerdictClass::of(&report, &nlri.prefix);
        match self.config.policy.apply(class, &entry.attributes) {
            Some(attributes) => at.pair.route_with(Side::Inside, nlri, attributes),
            None => {
                at.counts.rejected += 1;
                at.pair.route(Side::Inside, nlri, None);
            }
        }
        if self.config.policy.treatment(class).log {
            self.tell(Event::Verdict { pair: place, nlri, class, report });
        }
    }

    fn on_signed(&mut self, place: usize, Signed { group, outcome }: Signed) {
        let unix = self.unix();
        let RouteGroup { attributes, routes } = group;
        let due = outcome.renewal();
        let at = &mut self.places[place];
        // Of lists that we originate each has a value of its own.
        if matches!(&outcome, Outcome::Attested { origin: false, .. }) && !at.is_stale {
            at.extended.insert(Arc::clone(&attributes), outcome.clone());
        }
        let routes: Vec<Nlri> =
            routes.into_iter().filter(|nlri| at.outgoing.same(nlri, &attributes).is_some()).collect();
        // The grant goes with the hop that names it, and stands nowhere else.
        let handed = match (&outcome, &at.granted) {
            (Outcome::Attested { attributes, .. }, Some(granted)) => Some(Arc::new(granted.beside(attributes))),
            (Outcome::Attested { attributes, .. }, None) => Some(Arc::clone(attributes)),
            _ => None,
        };
        for nlri in &routes {
            let at = &mut self.places[place];
            let Some(entry) = at.outgoing.same(nlri, &attributes) else { continue };
            entry.found = Some(outcome.clone());
            let before = std::mem::replace(&mut entry.due, due);
            at.counts.note(&outcome, before.is_some_and(|before| before <= unix));
            match &outcome {
                Outcome::Attested { .. } => at.pair.route(Side::Outside, *nlri, handed.clone()),
                Outcome::AsTheyCame | Outcome::NotExtended(_) => {
                    at.pair.route(Side::Outside, *nlri, Some(Arc::clone(&attributes)));
                }
                Outcome::TooLong { .. } | Outcome::Exhausted => at.pair.route(Side::Outside, *nlri, None),
                // Queued again once the count is durable.
                Outcome::NotReserved => {}
            }
            self.forget_time(place, Side::Inside, *nlri, before);
            self.times.extend(due.map(|due| (due, place, Side::Inside, *nlri)));
        }
        match outcome {
            Outcome::NotExtended(error) if !routes.is_empty() => self.tell(Event::NotExtended(place, routes, error)),
            Outcome::TooLong { need } if !routes.is_empty() => self.tell(Event::TooLong(place, routes, need)),
            Outcome::Exhausted if !routes.is_empty() => self.tell(Event::Exhausted(place, routes)),
            _ => {}
        }
    }
}

impl Machine for Proxy {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, input: Input, now: Now) {
        self.on_now(now);
        match input {
            Input::Pair(place, input) => {
                if let Some(place) = self.places.get_mut(place) {
                    place.pair.handle(input, now);
                }
            }
            Input::Done(done) => self.on_done(done),
            Input::View(view) => self.on_view(view),
            Input::Directories(directories) => {
                self.directories = directories;
                self.places.iter_mut().for_each(|place| place.incoming.queue_all());
            }
            Input::Policy(policy) => self.on_policy(policy),
            Input::Persisted(id) => self.on_persisted(id),
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        self.on_now(now);
        for place in &mut self.places {
            if place.pair.deadline().is_some_and(|deadline| deadline <= now.instant) {
                place.pair.handle_timeout(now);
            }
        }
        self.on_times();
    }

    fn poll(&mut self) -> Option<Output> {
        loop {
            if let Some(output) = self.outputs.pop_front() {
                return Some(output);
            }
            let next = self.places.iter_mut().enumerate().find_map(|(at, place)| Some((at, place.pair.poll()?)));
            if let Some((place, output)) = next {
                self.on_pair(place, output);
                continue;
            }
            self.work();
            let due = self.places.iter().any(|place| place.pair.is_due());
            if self.outputs.is_empty() && !due {
                return None;
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let pairs = self.places.iter().filter_map(|place| place.pair.deadline());
        let next = self.times.first().map(|(due, ..)| wake(self.now, *due));
        pairs.chain(next).min()
    }
}

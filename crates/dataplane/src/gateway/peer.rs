//! What a gateway knows of another one: paths there, sessions, flows, and what waits.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use wayleave_core::{IdentityKey, Instant, Now};
use wayleave_packet::Path;
use wayleave_packet::icing::header::{Handle, PathHash};
use wayleave_packet::icing::mint::{Form, Nonce, Sender};

use super::machine::room;
use super::noise::{Session, Started};
use super::offload::Offload;
use super::policy::{PathPolicy, between};

/// Interval of probes on each path in use.
pub const PROBE: Duration = Duration::from_millis(500);
/// Unanswered probes after which a path is dead.
pub const MOST_UNANSWERED: u8 = 3;
/// A dead path is not used for this long, if there is another.
const DEAD_FOR: Duration = Duration::from_secs(5);
/// A path that comes first is used again once it has been answered on for this long.
const PROVEN: Duration = Duration::from_secs(10);
/// Flows of which the newest segment is remembered while their path is in doubt, and octets of such segments.
const LIMIT_DOUBTED: usize = 64;
const LIMIT_DOUBTED_OCTETS: usize = 256 << 10;
/// A flow is live for this long after its last packet: paths are probed, consents renewed.
pub const LIVE: Duration = Duration::from_secs(15);
/// Paths that a peer sends probes on are answered from paths that are kept for this long.
const KEPT: Duration = Duration::from_secs(5);
/// A question that nobody answered is put again after this long.
const PATIENCE: Duration = Duration::from_secs(5);
/// A refused question is put again after this long.
const RETRY: Duration = Duration::from_secs(1);
/// Paths are asked for again after this long.
const REFRESH: Duration = Duration::from_secs(30);
/// Paths to a peer.
pub const LIMIT_PATHS: usize = 32;
/// Ways to choose a path to a peer: its policies, and the paths by which it sends.
pub const LIMIT_ROUTES: usize = 16;
/// Sessions with a peer.
pub const LIMIT_SESSIONS: usize = 4;
/// Flows with a peer.
pub const LIMIT_FLOWS: usize = 4096;
/// A flow of which nothing was seen for this long may be forgotten.
const FORGOTTEN: Duration = Duration::from_secs(120);
/// Packets that wait for a peer, and their octets.
pub const LIMIT_WAITING: usize = 32;
pub const LIMIT_WAITING_OCTETS: usize = 256 << 10;
/// Paths by which a peer sends that are remembered.
const LIMIT_HEARD: usize = 32;
/// A session is renewed after this long by who began it, and after a little more by the other; and then it ends.
const REKEY: Duration = Duration::from_secs(120);
const REKEY_BY_OTHER: Duration = Duration::from_secs(150);
const SESSION_ENDS: Duration = Duration::from_secs(180);

/// How a path is chosen: by a policy, and if the peer began the flow, over its own path reversed if the policy allows that.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Class {
    pub(super) policy: usize,
    pub(super) mirror: Option<Arc<[IdentityKey]>>,
}

/// A path with proofs.
pub(super) struct Lane {
    pub(super) sender: Sender,
    pub(super) expiry: u64,
    begun: u64,
    nonce: u64,
    /// Where the count of each second begins: another life of this process counts from elsewhere.
    start: u32,
    all: u16,
    held: u16,
    probe: u32,
    probed: Option<Instant>,
    unanswered: u8,
    answered_since: Option<Instant>,
    pub(super) round_trip: Option<Duration>,
}

impl Lane {
    pub(super) fn new(sender: Sender, expiry: u64, start: u32, now: Now) -> Self {
        // At most 16 nodes.
        let all = ((1u32 << sender.count()) - 2) as u16;
        let begun = now.unix.secs();
        Self {
            sender,
            expiry,
            begun,
            nonce: 0,
            start: start >> 2,
            all,
            held: 0,
            probe: 0,
            probed: None,
            unanswered: 0,
            answered_since: None,
            round_trip: None,
        }
    }

    /// A nonce that no other packet on the path has.
    pub(super) fn nonce(&mut self, now: Now) -> Nonce {
        self.nonce = (self.nonce + 1).max(Nonce::new(now.unix, self.start).0);
        Nonce(self.nonce)
    }

    /// Two nonces of which one follows the other.
    pub(super) fn two_nonces(&mut self, now: Now) -> (Nonce, Nonce) {
        let first = self.nonce(now);
        (first, self.nonce_after(first))
    }

    fn nonce_after(&mut self, nonce: Nonce) -> Nonce {
        self.nonce = nonce.next().0;
        Nonce(self.nonce)
    }

    /// The next probe is due.
    pub(super) fn probe_now(&mut self) {
        self.probed = None;
    }

    /// A probe of before stays unanswered: what is sent now may be lost.
    pub(super) fn is_doubtful(&self) -> bool {
        self.unanswered > 1
    }

    /// The path is left out once every node on it holds it. Probes repeat it.
    pub(super) fn form(&self) -> Form {
        if self.held & self.all == self.all { Form::Handle } else { Form::Path }
    }

    pub(super) fn is_held(&self) -> bool {
        self.form() == Form::Handle
    }

    fn is_usable(&self, now: Now) -> bool {
        now.unix.secs() < self.expiry
    }

    /// Half of the time is over.
    fn is_due(&self, now: Now) -> bool {
        now.unix.secs() >= self.begun + (self.expiry.saturating_sub(self.begun)) / 2
    }

    /// The number of the next probe, if one is due.
    pub(super) fn next_probe(&mut self, now: Instant) -> Option<u32> {
        if self.probed.is_some_and(|last| now.since(last) < PROBE) {
            return None;
        }
        self.probed = Some(now);
        self.probe = self.probe.wrapping_add(1);
        self.unanswered = self.unanswered.saturating_add(1);
        Some(self.probe)
    }

    pub(super) fn answered(&mut self, number: u32, held: u16, now: Instant) {
        if number == self.probe
            && let Some(sent) = self.probed
        {
            self.round_trip = Some(now.since(sent));
        }
        self.held = held;
        self.unanswered = 0;
        self.answered_since.get_or_insert(now);
    }
}

/// A path to a peer.
pub(super) struct Candidate {
    /// Without proofs, as it is asked about.
    pub(super) path: Path,
    pub(super) hash: PathHash,
    pub(super) nodes: Arc<[IdentityKey]>,
    pub(super) link: u16,
    pub(super) is_listed: bool,
    pub(super) lane: Option<Lane>,
    /// The same path with later proofs, until every node on it holds it.
    pub(super) next: Option<Lane>,
    asked: Option<Instant>,
    retry: Instant,
    /// Why there are no proofs, or no later ones.
    pub(super) refused: Option<String>,
    pub(super) dead_until: Option<Instant>,
}

/// How good a path is to send on, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Standing {
    Ready,
    /// Nobody has refused proofs yet.
    Possible,
    Dead,
    Refused,
}

impl Candidate {
    pub(super) fn new(path: Path, hash: PathHash, nodes: Arc<[IdentityKey]>, link: u16) -> Self {
        Self {
            path,
            hash,
            nodes,
            link,
            is_listed: true,
            lane: None,
            next: None,
            asked: None,
            retry: Instant(0),
            refused: None,
            dead_until: None,
        }
    }

    pub(super) fn is_usable(&self, now: Now) -> bool {
        self.lane.as_ref().is_some_and(|lane| lane.is_usable(now))
    }

    fn is_dead(&self, now: Now) -> bool {
        self.dead_until.is_some_and(|until| now.instant < until)
    }

    fn standing(&self, now: Now) -> Standing {
        match (self.is_usable(now), self.is_dead(now)) {
            (true, false) => Standing::Ready,
            (_, true) => Standing::Dead,
            (false, false) if self.refused.is_some() || !self.is_listed => Standing::Refused,
            (false, false) => Standing::Possible,
        }
    }

    /// Whether proofs are to be asked for now; then they are.
    pub(super) fn asks_now(&mut self, now: Now) -> bool {
        let needs = match &self.lane {
            None => true,
            Some(lane) => self.next.is_none() && lane.is_due(now),
        };
        let waits = self.asked.is_some_and(|asked| now.instant.since(asked) < PATIENCE);
        let asks = needs && !waits && self.is_listed && now.instant >= self.retry;
        if asks {
            self.asked = Some(now.instant);
        }
        asks
    }

    pub(super) fn refuse(&mut self, why: String, now: Now) {
        self.asked = None;
        self.retry = now.instant + RETRY;
        self.refused = Some(why);
    }

    /// Takes proofs; the lane that is in use stays until every node holds the new one, or its own proofs end.
    pub(super) fn prove(&mut self, lane: Lane, now: Now) {
        (self.asked, self.refused) = (None, None);
        let handle = lane.sender.handle();
        if self.lanes().any(|known| known.sender.handle() == handle) {
            // The same proofs again: another count of nonces would use some twice. There will be later ones.
            self.retry = now.instant + RETRY;
            return;
        }
        if self.is_usable(now) {
            self.next = Some(lane);
        } else {
            self.lane = Some(lane);
        }
    }

    /// Ends lanes whose time is over, and goes over to the next one.
    pub(super) fn turn(&mut self, now: Now) {
        let next_is_held = self.next.as_ref().is_some_and(Lane::is_held);
        if next_is_held || !self.is_usable(now) {
            if let Some(mut next) = self.next.take() {
                if let Some(before) = &self.lane {
                    next.answered_since = next.answered_since.and(before.answered_since);
                }
                self.lane = Some(next);
            } else if !self.is_usable(now) {
                self.lane = None;
            }
        }
    }

    pub(super) fn lanes(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.lane.iter_mut().chain(&mut self.next)
    }

    /// Notes that the path is dead if too many probes stayed unanswered; returns whether that is new.
    fn check_life(&mut self, now: Instant) -> bool {
        let Some(lane) = &mut self.lane else { return false };
        let since = lane.probed.map_or(Duration::ZERO, |last| now.since(last));
        if since >= PROBE * 4 {
            // It was not probed for a while.
            lane.unanswered = 0;
        }
        let is_due = since >= PROBE;
        if lane.unanswered < MOST_UNANSWERED || !is_due {
            return false;
        }
        // It is probed on; what comes next counts from here.
        lane.unanswered = 0;
        lane.answered_since = None;
        let is_new = self.dead_until.is_none_or(|until| now >= until);
        self.dead_until = Some(now + DEAD_FOR);
        is_new
    }

    /// Takes an answer to a probe on the path of `handle`; returns whether it was this one's.
    pub(super) fn answered(&mut self, handle: Handle, number: u32, held: u16, now: Instant) -> bool {
        let Some(lane) = self.lanes().find(|lane| lane.sender.handle() == handle) else { return false };
        lane.answered(number, held, now);
        self.dead_until = None;
        true
    }
}

/// A choice of paths for one class of flows.
pub(super) struct Route {
    pub(super) class: Class,
    pub(super) active: Option<PathHash>,
    pub(super) spare: Option<PathHash>,
    /// When something was last sent by it.
    pub(super) used: Instant,
    /// When an inner packet was.
    pub(super) data: Option<Instant>,
    /// When a probe came that is answered by this route.
    pub(super) heard: Option<Instant>,
}

impl Route {
    pub(super) fn is_live(&self, now: Instant) -> bool {
        self.data.is_some_and(|data| now.since(data) < LIVE)
    }

    pub(super) fn is_kept(&self, now: Instant) -> bool {
        self.is_live(now) || self.heard.is_some_and(|heard| now.since(heard) < KEPT)
    }
}

/// Whether a route can be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RouteState {
    Ready,
    /// Servers have not answered yet.
    Asking,
    /// No path, and why.
    NoPath(String),
    /// No consent, and why.
    NoConsent(String),
}

/// A session as both ends number it.
pub(super) struct Known {
    pub(super) index: u32,
    pub(super) to: u32,
    pub(super) session: Session,
    /// The peer has it too.
    pub(super) is_confirmed: bool,
}

impl Known {
    /// Whether it may be sent in.
    pub(super) fn is_good(&self, now: Instant) -> bool {
        self.is_confirmed && now.since(self.session.begun) < SESSION_ENDS
    }
}

/// A handshake that waits for its answer.
pub(super) struct Starting {
    pub(super) index: u32,
    pub(super) started: Started,
    pub(super) at: Instant,
}

/// A packet that waits, as it came.
pub(super) struct Waiting {
    pub(super) octets: Vec<u8>,
    pub(super) offload: Offload,
    pub(super) since: Instant,
}

/// The newest segment of a TCP flow that left by a path in doubt.
struct Doubted {
    flow: FlowKey,
    path: PathHash,
    packet: Waiting,
}

/// A flow, by this end's addresses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct FlowKey {
    pub(super) local: IpAddr,
    pub(super) remote: IpAddr,
    pub(super) protocol: u8,
    pub(super) ports: (u16, u16),
}

pub(super) struct Flow {
    pub(super) class: Class,
    /// The address of a name in the place of the remote one.
    pub(super) name: Option<IpAddr>,
    /// This end began it.
    pub(super) is_own: bool,
    /// The path of the last packet that came.
    pub(super) handle: Handle,
    pub(super) last: Instant,
}

/// Keys of tables that peers choose are hashed under a secret.
#[derive(Clone)]
pub(super) struct Keyed(pub(super) [u8; 16]);

impl BuildHasher for Keyed {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        let mut hasher = DefaultHasher::new();
        hasher.write(&self.0);
        hasher
    }
}

pub(super) struct Peer {
    /// Newest last.
    pub(super) sessions: Vec<Known>,
    pub(super) starting: Option<Starting>,
    /// When the newest handshake that it began was made.
    pub(super) opened: u64,
    /// A response that waits for a path.
    pub(super) response: Option<(Vec<u8>, Class, Instant)>,
    pub(super) candidates: Vec<Candidate>,
    asked: Option<Instant>,
    listed: Option<Instant>,
    /// Why there are no paths.
    pub(super) failure: Option<String>,
    pub(super) routes: Vec<Route>,
    pub(super) waiting: VecDeque<Waiting>,
    waiting_octets: usize,
    /// Oldest first.
    doubted: Vec<Doubted>,
    pub(super) flows: HashMap<FlowKey, Flow, Keyed>,
    /// The paths by which it sends, in its own order, and when it last probed them.
    heard: VecDeque<(Handle, Arc<[IdentityKey]>, Instant)>,
}

impl Peer {
    pub(super) fn new(keyed: Keyed) -> Self {
        Self {
            sessions: Vec::new(),
            starting: None,
            opened: 0,
            response: None,
            candidates: Vec::new(),
            asked: None,
            listed: None,
            failure: None,
            routes: Vec::new(),
            waiting: VecDeque::new(),
            waiting_octets: 0,
            doubted: Vec::new(),
            flows: HashMap::with_hasher(keyed),
            heard: VecDeque::new(),
        }
    }

    /// The route of a class, made if there is none; the one that was used last gives way.
    pub(super) fn route(&mut self, class: &Class, now: Instant) -> usize {
        if let Some(place) = self.routes.iter().position(|route| route.class == *class) {
            return place;
        }
        if self.routes.len() == LIMIT_ROUTES {
            let oldest = (0..self.routes.len()).min_by_key(|place| self.routes[*place].used);
            self.routes.remove(oldest.unwrap_or_default());
        }
        self.routes.push(Route { class: class.clone(), active: None, spare: None, used: now, data: None, heard: None });
        self.routes.len() - 1
    }

    /// Whether paths are to be asked for now; then they are.
    pub(super) fn asks_paths(&mut self, now: Now) -> bool {
        let has_any = self.candidates.iter().any(|candidate| {
            let is_good = matches!(candidate.standing(now), Standing::Ready | Standing::Possible);
            is_good && candidate.is_listed && candidate.path.expiry() > now.unix.secs()
        });
        // Others may be known by now, if nobody consents to these.
        let is_stuck = (0..self.routes.len())
            .any(|route| self.routes[route].is_kept(now.instant) && self.usable(route, now).is_none());
        let wait = if has_any && !is_stuck { REFRESH } else { RETRY };
        let is_due = self.listed.is_none_or(|listed| now.instant.since(listed) >= wait);
        let waits = self.asked.is_some_and(|asked| now.instant.since(asked) < PATIENCE);
        if is_due && !waits {
            self.asked = Some(now.instant);
        }
        is_due && !waits
    }

    /// Takes the list of paths; those that are no longer there are used until their proofs end.
    pub(super) fn set_paths(&mut self, fresh: Vec<Candidate>, now: Now) {
        (self.asked, self.listed, self.failure) = (None, Some(now.instant), None);
        self.candidates.iter_mut().for_each(|candidate| candidate.is_listed = false);
        for candidate in fresh {
            if let Some(known) = self.candidates.iter_mut().find(|known| known.hash == candidate.hash) {
                (known.is_listed, known.path) = (true, candidate.path);
            } else if self.candidates.len() < LIMIT_PATHS {
                self.candidates.push(candidate);
            }
        }
        self.candidates.retain(|candidate| candidate.is_listed || candidate.is_usable(now));
    }

    pub(super) fn fail_paths(&mut self, why: String, now: Now) {
        (self.asked, self.listed, self.failure) = (None, Some(now.instant), Some(why));
    }

    pub(super) fn candidate(&self, hash: &PathHash) -> Option<&Candidate> {
        self.candidates.iter().find(|candidate| candidate.hash == *hash)
    }

    /// Chooses active and spare path of every route. Returns how many went over to another path, and how many paths died.
    pub(super) fn choose(&mut self, policies: &[PathPolicy], now: Now) -> (u64, u64) {
        let mut dead = 0;
        for candidate in &mut self.candidates {
            candidate.turn(now);
            dead += u64::from(candidate.check_life(now.instant));
        }
        self.candidates.retain(|candidate| candidate.is_listed || candidate.is_usable(now));
        let Self { routes, candidates, heard, .. } = self;
        let recent = heard.iter().filter(|(_, _, last)| now.instant.since(*last) < KEPT);
        let heard: Vec<Arc<[IdentityKey]>> = recent.map(|(_, nodes, _)| reversed(nodes)).collect();
        let changes = routes.iter_mut().filter(|route| route.is_kept(now.instant));
        (changes.map(|route| u64::from(choose(route, candidates, policies, &heard, now))).sum(), dead)
    }

    /// No route goes by a path that its policy does not allow now. Returns whether one did.
    pub(super) fn leave_forbidden(&mut self, policies: &[PathPolicy]) -> bool {
        let Self { routes, candidates, .. } = self;
        let mut has_left = false;
        for route in routes {
            let policy = policies.get(route.class.policy);
            let is_allowed = |hash: &PathHash| {
                let candidate = candidates.iter().find(|candidate| candidate.hash == *hash);
                candidate.is_some_and(|candidate| policy.is_some_and(|policy| policy.allows(&candidate.nodes)))
            };
            for place in [&mut route.active, &mut route.spare] {
                has_left |= place.take_if(|hash| !is_allowed(hash)).is_some();
            }
        }
        has_left
    }

    /// The place of the candidate to send on by this route.
    pub(super) fn usable(&self, route: usize, now: Now) -> Option<usize> {
        let route = &self.routes[route];
        let place = |hash: &Option<PathHash>| {
            self.candidates.iter().position(|candidate| Some(candidate.hash) == *hash && candidate.is_usable(now))
        };
        place(&route.active).or_else(|| place(&route.spare))
    }

    /// Octets of the longest inner packet on any path in use.
    pub(super) fn least_room(&self, now: Now) -> Option<usize> {
        let in_use = self.candidates.iter().filter(|candidate| candidate.is_usable(now));
        in_use
            .filter_map(|candidate| Some(room(candidate.lane.as_ref()?, candidate.path.mtu().into(), Form::Handle)))
            .min()
    }

    /// Every candidate in use by a route that `which` takes.
    pub(super) fn in_use(&self, which: impl Fn(&Route) -> bool) -> Vec<usize> {
        let hashes: Vec<PathHash> = self
            .routes
            .iter()
            .filter(|route| which(route))
            .flat_map(|route| route.active.into_iter().chain(route.spare))
            .collect();
        (0..self.candidates.len()).filter(|place| hashes.contains(&self.candidates[*place].hash)).collect()
    }

    /// What hinders a route.
    pub(super) fn state(&self, route: usize, policies: &[PathPolicy], now: Now) -> RouteState {
        if self.usable(route, now).is_some() {
            return RouteState::Ready;
        }
        let class = &self.routes[route].class;
        let Some(policy) = policies.get(class.policy) else {
            return RouteState::NoPath("the policy is no longer configured".to_owned());
        };
        let mut allowed = self.candidates.iter().filter(|candidate| policy.allows(&candidate.nodes)).peekable();
        if allowed.peek().is_none() {
            return match (&self.failure, self.candidates.len(), self.listed) {
                (Some(why), _, _) => RouteState::NoPath(why.clone()),
                (None, 0, None) => RouteState::Asking,
                (None, 0, Some(_)) => RouteState::NoPath("the path server knows no path there".to_owned()),
                (None, count, _) => {
                    let by_itself = |candidate: &Candidate| policy.allows_by_itself(&candidate.nodes);
                    let s = if count == 1 { "" } else { "s" };
                    RouteState::NoPath(match self.candidates.iter().filter(|candidate| by_itself(candidate)).count() {
                        0 => format!("policy `{}` allows none of {count} known path{s}", policy.name),
                        some => format!(
                            "policy `{}` allows {some} of {count} known path{s}, and `wayleave path pin` or `path avoid` \
                             leaves none of them",
                            policy.name
                        ),
                    })
                }
            };
        }
        let mut refused = None;
        for candidate in allowed {
            match &candidate.refused {
                None if candidate.is_listed => return RouteState::Asking,
                None => {}
                Some(why) => refused = refused.or(Some(why.clone())),
            }
        }
        RouteState::NoConsent(refused.unwrap_or_else(|| "consent has ended and the path is no longer known".to_owned()))
    }

    /// The session to send in.
    pub(super) fn session(&mut self, now: Instant) -> Option<&mut Known> {
        self.sessions.iter_mut().rev().find(|known| known.is_good(now))
    }

    /// Whether a session is to be begun: none is good for long, or nothing was heard in it for a while on any path in use. A
    /// gateway that restarted knows no session of before, and answers nothing in it. Of a path without proofs, such as a spare one that
    /// somebody refuses, nothing can be heard.
    pub(super) fn wants_session(&mut self, now: Now) -> bool {
        let in_use = self.in_use(|route| route.is_live(now.instant));
        let mut usable = in_use.iter().map(|place| &self.candidates[*place]).filter(|of| of.is_usable(now)).peekable();
        let is_deaf = usable.peek().is_some() && usable.all(|candidate| candidate.is_dead(now));
        match self.session(now.instant) {
            None => true,
            Some(known) => {
                let age = now.instant.since(known.session.begun);
                let most = if known.session.is_initiator() { REKEY } else { REKEY_BY_OTHER };
                age >= most || is_deaf && age >= DEAD_FOR
            }
        }
    }

    /// Adds a session; returns the numbers of those that end.
    pub(super) fn add_session(&mut self, known: Known, now: Instant) -> Vec<u32> {
        let mut ended = Vec::new();
        self.sessions.push(known);
        while self.sessions.len() > LIMIT_SESSIONS
            || self.sessions.first().is_some_and(|oldest| now.since(oldest.session.begun) >= SESSION_ENDS)
        {
            ended.push(self.sessions.remove(0).index);
        }
        ended
    }

    /// Lets a packet wait; returns whether there was room.
    pub(super) fn wait(&mut self, octets: &[u8], offload: Offload, since: Instant) -> bool {
        let has_room = self.waiting.len() < LIMIT_WAITING && self.waiting_octets + octets.len() <= LIMIT_WAITING_OCTETS;
        if has_room {
            self.waiting_octets += octets.len();
            self.waiting.push_back(Waiting { octets: octets.to_vec(), offload, since });
        }
        has_room
    }

    /// Remembers a packet that leaves by a path in doubt, in the place of its flow's one before.
    pub(super) fn doubt(&mut self, flow: FlowKey, path: PathHash, packet: Waiting) {
        self.doubted.retain(|known| known.flow != flow);
        self.doubted.push(Doubted { flow, path, packet });
        let octets = |doubted: &[Doubted]| doubted.iter().map(|known| known.packet.octets.len()).sum::<usize>();
        while self.doubted.len() > LIMIT_DOUBTED || octets(&self.doubted) > LIMIT_DOUBTED_OCTETS {
            self.doubted.remove(0);
        }
    }

    /// The path is alive: what left by it arrived, or is the application's to repeat.
    pub(super) fn trust(&mut self, path: &PathHash) {
        self.doubted.retain(|known| known.path != *path);
    }

    /// What left by paths that are dead now.
    pub(super) fn take_lost(&mut self, now: Now) -> Vec<Waiting> {
        let Self { doubted, candidates, .. } = self;
        let is_alive = |path: &PathHash| candidates.iter().any(|known| known.hash == *path && !known.is_dead(now));
        doubted.extract_if(.., |known| !is_alive(&known.path)).map(|known| known.packet).collect()
    }

    /// All that waits.
    pub(super) fn take_waiting(&mut self) -> VecDeque<Waiting> {
        self.waiting_octets = 0;
        std::mem::take(&mut self.waiting)
    }

    /// What has waited since before `since`.
    pub(super) fn take_overdue(&mut self, now: Instant, patience: Duration) -> Vec<Waiting> {
        let count = self.waiting.iter().take_while(|waiting| now.since(waiting.since) >= patience).count();
        let overdue: Vec<Waiting> = self.waiting.drain(..count).collect();
        self.waiting_octets -= overdue.iter().map(|waiting| waiting.octets.len()).sum::<usize>();
        overdue
    }

    /// Remembers by which nodes the path of `handle` leads, as the peer says.
    pub(super) fn hear(&mut self, handle: Handle, nodes: &[IdentityKey], now: Instant) -> Arc<[IdentityKey]> {
        if let Some((_, known, last)) =
            self.heard.iter_mut().find(|(other, known, _)| *other == handle && **known == *nodes)
        {
            *last = now;
            return known.clone();
        }
        self.heard.retain(|(known, _, _)| *known != handle);
        if self.heard.len() == LIMIT_HEARD {
            self.heard.pop_front();
        }
        let nodes: Arc<[IdentityKey]> = nodes.into();
        self.heard.push_back((handle, nodes.clone(), now));
        nodes
    }

    /// The nodes by which the path of `handle` leads, in the order of our own packets.
    pub(super) fn mirror(&self, handle: &Handle) -> Option<Arc<[IdentityKey]>> {
        let (_, nodes, _) = self.heard.iter().find(|(known, _, _)| known == handle)?;
        Some(reversed(nodes))
    }

    /// Makes room for a flow; returns whether there is any.
    pub(super) fn has_room_for_flow(&mut self, now: Instant) -> bool {
        if self.flows.len() < LIMIT_FLOWS {
            return true;
        }
        self.flows.retain(|_, flow| now.since(flow.last) < FORGOTTEN);
        self.flows.len() < LIMIT_FLOWS
    }

    /// Whether nothing is known that would be missed.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        self.routes.iter().all(|route| !route.is_kept(now)) && self.waiting.is_empty() && self.sessions.is_empty()
    }

    /// Ends routes and sessions of which nothing was heard; returns the numbers of those sessions.
    pub(super) fn forget(&mut self, now: Instant) -> Vec<u32> {
        self.routes.retain(|route| route.is_kept(now) || now.since(route.used) < FORGOTTEN);
        let ended = self.sessions.extract_if(.., |known| now.since(known.session.begun) >= SESSION_ENDS);
        ended.map(|known| known.index).collect()
    }
}

pub(super) fn reversed(nodes: &[IdentityKey]) -> Arc<[IdentityKey]> {
    nodes.iter().rev().copied().collect()
}

/// Chooses a route's paths; returns whether it left one that it sent on. `heard` are the paths by which the peer sends,
/// reversed: what answers its flows stays on them as long as our own policy allows that, so that its policy holds both ways.
fn choose(
    route: &mut Route,
    candidates: &[Candidate],
    policies: &[PathPolicy],
    heard: &[Arc<[IdentityKey]>],
    now: Now,
) -> bool {
    let Some(policy) = policies.get(route.class.policy) else {
        (route.active, route.spare) = (None, None);
        return false;
    };
    let allowed: Vec<&Candidate> = candidates.iter().filter(|candidate| policy.allows(&candidate.nodes)).collect();
    let answers = route.class.mirror.is_some();
    let is_heard = |candidate: &Candidate| !answers || heard.contains(&candidate.nodes);
    let rank = |candidate: &Candidate| {
        let is_mirror = route.class.mirror.as_ref().is_some_and(|mirror| **mirror == *candidate.nodes);
        (!is_mirror, !is_heard(candidate), policy.rank(&candidate.nodes))
    };
    let find = |hash: Option<PathHash>| allowed.iter().copied().find(|candidate| Some(candidate.hash) == hash);
    let (before, spare_before) = (find(route.active), find(route.spare));
    let had_one = route.active.is_some();
    let is_asking = |candidate: &Candidate| candidate.asked.is_none_or(|asked| now.instant.since(asked) < RETRY);
    let keeps = |candidate: &&Candidate| match candidate.standing(now) {
        Standing::Ready => true,
        Standing::Possible => is_asking(candidate),
        Standing::Dead | Standing::Refused => false,
    };
    // At first the path that comes first has its time to get proofs, though another may be ready; that one is the spare
    // meanwhile.
    let floor = if had_one { Standing::Ready } else { Standing::Possible };
    let best = || allowed.iter().copied().min_by_key(|candidate| (candidate.standing(now).max(floor), rank(candidate)));
    let mut active = before.filter(keeps).or_else(best);
    // A path that comes first, and has proven itself, is gone back to.
    if let (Some(now_active), Some(spare)) = (active, spare_before) {
        let is_proven = spare
            .lane
            .as_ref()
            .and_then(|lane| lane.answered_since)
            .is_some_and(|since| now.instant.since(since) >= PROVEN);
        if is_proven && spare.standing(now) == Standing::Ready && rank(spare) < rank(now_active) {
            active = Some(spare);
        }
    }
    let shared = |candidate: &Candidate| {
        let of_active = active.map_or(&[][..], |active| between(&active.nodes));
        between(&candidate.nodes).iter().filter(|node| of_active.contains(node)).count()
    };
    let is_other = |candidate: &&Candidate| active.is_none_or(|active| active.hash != candidate.hash);
    let best_spare = || {
        let must_be_heard = active.is_some_and(is_heard);
        let others = allowed.iter().copied().filter(is_other).filter(|other| !must_be_heard || is_heard(other));
        others.min_by_key(|candidate| (candidate.standing(now), shared(candidate), rank(candidate)))
    };
    let spare = spare_before.filter(is_other).filter(keeps).or_else(best_spare);
    let has_changed = had_one && before.is_some() && active.map(|active| active.hash) != route.active;
    route.active = active.map(|active| active.hash);
    route.spare = spare.map(|spare| spare.hash);
    has_changed
}

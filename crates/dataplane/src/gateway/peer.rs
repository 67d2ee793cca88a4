//! What a gateway knows of another one: paths there, sessions, and what waits.

use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use wayleave_core::{IdentityKey, Instant, Now};
use wayleave_packet::Path;
use wayleave_packet::icing::header::{Handle, PathHash, Version};
use wayleave_packet::icing::mint::Form;

use super::flows::FlowKey;
use super::lane::{IN_DOUBT, Lane, PROBE};
use super::offload::Offload;
use super::policy::{PathPolicy, are_known, between};
use super::quality::Loss;
use crate::limit::TokenBucket;
use crate::noise::{Session, Started};

/// What was found by probes holds for this long after the last one.
const KNOWN_FOR: Duration = Duration::from_secs(5);
/// A session is at least so old when another is begun because nothing is heard in it.
const DEAF: Duration = Duration::from_secs(5);
/// A path that comes first is used again once it has been answered on for this long.
const PROVEN: Duration = Duration::from_secs(10);
/// Segments that are remembered while their path is in doubt, and their octets.
const LIMIT_DOUBTED: usize = 64;
const LIMIT_DOUBTED_OCTETS: usize = 256 << 10;
/// A flow is live for this long after its last packet: paths are probed, consents renewed.
pub const LIVE: Duration = Duration::from_secs(15);
/// Paths that a peer sends probes on are answered from paths that are kept for this long.
const KEPT: Duration = Duration::from_secs(5);
/// A question that nobody answered is put again after this long.
const TIMEOUT: Duration = Duration::from_secs(5);
/// A refused question is put again after this long.
const RETRY: Duration = Duration::from_secs(1);
/// Paths are asked for again after this long.
const REFRESH: Duration = Duration::from_secs(30);
/// A list that seems to lack paths is asked for again after [`RETRY`], doubled so often at most.
const MOST_DOUBLINGS: u32 = 2;
/// Paths to a peer.
pub const LIMIT_PATHS: usize = 32;
/// Ways to choose a path to a peer: its policies, and the paths by which it sends.
pub const LIMIT_ROUTES: usize = 16;
/// Sessions with a peer.
pub const LIMIT_SESSIONS: usize = 4;
/// Handshakes with a peer that wait for an answer.
const LIMIT_STARTING: usize = 4;
/// A route by which nothing was sent for this long is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(120);
/// Packets that wait for a peer, and their octets.
pub const LIMIT_WAITING: usize = 32;
pub const LIMIT_WAITING_OCTETS: usize = 256 << 10;
/// Paths by which a peer sends that are remembered.
const LIMIT_HEARD: usize = 32;
/// Probes that are answered in a second, and at once: more than a peer has paths, in doubt or not.
const PROBES: (u32, u32) = (200, 200);
/// SYNs that are answered by a reset in a second, and at once.
const RESETS: (u32, u32) = (10, 20);
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
    requested: Option<Instant>,
    retry: Instant,
    /// Why there are no proofs, or no later ones.
    pub(super) refused: Option<String>,
    /// For whose sake the packets that there are proofs for are not those whose proofs leave sealed payloads out.
    pub(super) unsealed: Unsealed,
    /// Later proofs are wanted now: all nodes read such packets, which was not so when these were asked for.
    is_outdated: bool,
    /// The Unix second since which it is dead: probes stay unanswered, or data do not pass.
    pub(super) dead_since: Option<u64>,
    /// When a probe was last sent on it, and when one was last answered.
    probed: Option<Instant>,
    pub(super) answered: Option<Instant>,
}

/// For whose sake packets on a path are not those whose proofs leave sealed payloads out, in the order of the path.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Unsealed {
    /// Nodes whose adverts do not say that they read these.
    pub before: Vec<IdentityKey>,
    /// Nodes that read them, and did not consent to them.
    pub refusing: Vec<IdentityKey>,
}

/// How good a path is to send on, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum CandidateStatus {
    Ready,
    /// Nobody has refused proofs yet.
    Possible,
    /// Dead when it was last probed, which is a while ago.
    Untried,
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
            requested: None,
            retry: Instant(0),
            refused: None,
            unsealed: Unsealed::default(),
            is_outdated: false,
            dead_since: None,
            probed: None,
            answered: None,
        }
    }

    pub(super) fn is_usable(&self, now: Now) -> bool {
        self.lane.as_ref().is_some_and(|lane| lane.is_usable(now))
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead_since.is_some()
    }

    /// Octets of the largest packet that data may have on it.
    pub(super) fn mtu(&self) -> u16 {
        let mtu = self.path.mtu();
        self.lane.as_ref().map_or(mtu, |lane| lane.quality.size(mtu))
    }

    /// It passes less than its nodes say.
    fn is_narrow(&self) -> bool {
        self.mtu() < self.path.mtu()
    }

    /// Probes pass, and data do not.
    fn is_faulty(&self, now: Instant) -> bool {
        self.lane.as_ref().is_some_and(|lane| lane.quality.is_faulty(now))
    }

    /// Probes were answered until just now.
    fn is_heard(&self, now: Instant) -> bool {
        !self.is_dead() && self.answered.is_some_and(|answered| now.since(answered) < KNOWN_FOR)
    }

    fn status(&self, now: Now) -> CandidateStatus {
        let is_probed = self.probed.is_some_and(|probed| now.instant.since(probed) < KNOWN_FOR);
        match (self.is_usable(now), self.is_dead()) {
            (true, false) => CandidateStatus::Ready,
            (false, _) if self.refused.is_some() || !self.is_listed => CandidateStatus::Refused,
            (_, true) if is_probed => CandidateStatus::Dead,
            (_, true) => CandidateStatus::Untried,
            (false, false) => CandidateStatus::Possible,
        }
    }

    /// It is no longer listed, and ends with its proofs before the list is renewed anyway.
    fn passes(&self, now: Now) -> bool {
        let until = now.unix.secs() + REFRESH.as_secs();
        !self.is_listed && self.lane.as_ref().is_none_or(|lane| lane.expiry < until)
    }

    /// Servers still know the path: nobody consents to one that is over.
    fn is_current(&self, now: Now) -> bool {
        self.path.expiry() > now.unix.secs()
    }

    /// Whether proofs are to be asked for now; then they are.
    pub(super) fn asks_now(&mut self, now: Now) -> bool {
        let needs = match &self.lane {
            None => true,
            Some(lane) => self.next.is_none() && (self.is_outdated || lane.is_due(now)),
        };
        let waits = self.requested.is_some_and(|requested| now.instant.since(requested) < TIMEOUT);
        let asks = needs && !waits && self.is_listed && self.is_current(now) && now.instant >= self.retry;
        if asks {
            self.requested = Some(now.instant);
        }
        asks
    }

    pub(super) fn refuse(&mut self, why: String, now: Now) {
        self.requested = None;
        self.retry = now.instant + RETRY;
        self.refused = Some(why);
    }

    /// The path as proofs are asked for: for packets whose proofs leave sealed payloads out if all nodes read these.
    pub(super) fn asked(&self) -> Path {
        let mut path = self.path.clone();
        if self.is_sealable() {
            path.set_version(Version::Sealed);
        }
        path
    }

    fn is_sealable(&self) -> bool {
        self.path.unread_by().next().is_none()
    }

    /// Whether all nodes say that they read packets on this lane: a program of before drops those of a version that it does not know.
    fn is_read(&self, lane: &Lane) -> bool {
        !is_sealed(lane) || self.is_sealable()
    }

    /// Takes the path as it is listed now. What a node does not read any more is worth nothing.
    fn list(&mut self, path: Path) {
        if path.expiry() > self.path.expiry() {
            // It is another question from now on.
            (self.refused, self.retry) = (None, Instant(0));
        }
        let is_other = path.unread_by().ne(self.path.unread_by());
        (self.is_listed, self.path) = (true, path);
        if is_other {
            // What was asked for may not be wanted any more.
            self.requested = None;
            self.lane = self.lane.take().filter(|lane| self.is_read(lane));
            self.next = self.next.take().filter(|lane| self.is_read(lane));
            self.is_outdated = self.is_sealable() && self.lane.as_ref().is_some_and(|lane| !is_sealed(lane));
        }
    }

    /// Takes proofs, as they came with `proven`; the lane that is in use stays until every node holds the new one, or its own proofs end.
    pub(super) fn prove(&mut self, lane: Lane, proven: &Path, now: Now) {
        (self.requested, self.refused) = (None, None);
        if !self.is_read(&lane) {
            // They were asked for before a node went back to a program of before: others are asked for at once.
            return;
        }
        if !lane.is_usable(now) {
            return self.refuse("the consents that were given are over already".to_owned(), now);
        }
        let node = |index: usize| self.nodes.get(index).copied();
        self.unsealed = Unsealed {
            before: proven.unread_by().filter_map(node).collect(),
            refusing: proven.unsealed_by().filter_map(node).collect(),
        };
        // They were asked for before the last node read others.
        self.is_outdated = self.is_sealable() && !self.unsealed.before.is_empty();
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
                    next.quality = before.quality.inherit();
                }
                self.lane = Some(next);
            } else if !self.is_usable(now) {
                self.lane = None;
            }
        }
    }

    /// A probe has left.
    pub(super) fn was_probed(&mut self, now: Instant) {
        self.probed = Some(now);
    }

    pub(super) fn lanes(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.lane.iter_mut().chain(&mut self.next)
    }

    /// Notes that the path is dead if too many probes stayed unanswered, or data do not pass; returns whether that is new.
    fn check_life(&mut self, now: Now) -> bool {
        let Some(lane) = &mut self.lane else { return false };
        let since = lane.probed.map_or(Duration::ZERO, |last| now.instant.since(last));
        if since >= PROBE * 4 {
            // It was not probed for a while.
            lane.unanswered = 0;
        }
        let is_silent = lane.unanswered >= lane.quality.most_unanswered() && since >= lane.interval();
        if !is_silent && !lane.quality.is_faulty(now.instant) {
            return false;
        }
        self.die(now)
    }

    /// The path is dead: it is probed on, until it is answered. Returns whether that is new.
    pub(super) fn die(&mut self, now: Now) -> bool {
        let Some(lane) = &mut self.lane else { return false };
        lane.answered_since = None;
        let is_new = self.dead_since.is_none();
        self.dead_since.get_or_insert(now.unix.secs());
        is_new
    }

    /// Takes an answer to a probe on the path of `handle`; returns whether it was this one's.
    pub(super) fn answered(&mut self, handle: Handle, number: u32, (held, received): (u16, u64), now: Instant) -> bool {
        let Some(lane) = self.lanes().find(|lane| lane.sender.handle() == handle) else { return false };
        lane.answered(number, held, received, now);
        self.answered = Some(now);
        if !self.is_faulty(now) {
            self.dead_since = None;
        }
        true
    }
}

fn is_sealed(lane: &Lane) -> bool {
    lane.sender.version() == Version::Sealed
}

/// A choice of paths for one class of flows.
pub(super) struct Route {
    pub(super) class: Class,
    pub(super) active: Option<PathHash>,
    pub(super) spare: Option<PathHash>,
    /// A path that is wanted back, and probed for that: it comes before the active one, or has fewer nodes in common with it than the
    /// spare one has.
    wanted: Option<PathHash>,
    /// A path that is probed so that the peer hears it: of those by which it may answer, few nodes are to be common to all.
    reserve: Option<PathHash>,
    /// When something was last sent by it.
    pub(super) used: Instant,
    /// When an inner packet was.
    pub(super) data: Option<Instant>,
    /// When a probe came that is answered by this route.
    pub(super) heard: Option<Instant>,
}

impl Route {
    fn new(class: Class, now: Instant) -> Self {
        Self { class, active: None, spare: None, wanted: None, reserve: None, used: now, data: None, heard: None }
    }

    /// The paths that it goes by, and by which it is answered.
    fn paths(&self) -> impl Iterator<Item = PathHash> {
        [self.active, self.spare, self.wanted, self.reserve].into_iter().flatten()
    }

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
    /// How many handshakes before it went unanswered, and the path by which this one was begun.
    pub(super) attempt: usize,
    pub(super) path: PathHash,
    pub(super) started: Started,
    pub(super) at: Instant,
}

/// A packet that waits, as it came.
pub(super) struct Waiting {
    pub(super) octets: Vec<u8>,
    pub(super) offload: Offload,
    pub(super) since: Instant,
}

/// The newest segment of a TCP flow that left by a path in doubt: of those that are repeated until they are acknowledged, and of
/// those that only acknowledge. The latter may be newer, and must not take the former's place.
struct Doubted {
    flow: FlowKey,
    is_repeated: bool,
    path: PathHash,
    packet: Waiting,
}

/// A path by which a peer sends.
struct Heard {
    handle: Handle,
    /// Its nodes in the peer's own order, once the peer has said that.
    nodes: Option<Arc<[IdentityKey]>>,
    /// When it was last probed, or when its first packet came.
    last: Instant,
    /// Data packets that came.
    received: u64,
    loss: Loss,
}

/// What was carried for a member since the start, in inner packets, and when its last session began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// The Unix second of the last handshake.
    pub handshake: Option<u64>,
    pub sent: Volume,
    pub received: Volume,
}

/// Inner packets, each segment counted, and their octets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Volume {
    pub packets: u64,
    pub octets: u64,
}

impl Volume {
    pub(super) fn add(&mut self, packets: usize, octets: usize) {
        self.packets += packets as u64;
        self.octets += octets as u64;
    }
}

pub(super) struct Peer {
    pub(super) traffic: Traffic,
    /// When its timers are due.
    pub(super) due: Instant,
    /// Newest last.
    pub(super) sessions: Vec<Known>,
    /// Handshakes that wait for an answer, newest last: the peer may have to find a path first, so that it answers one that is not the
    /// newest.
    pub(super) starting: Vec<Starting>,
    /// When the newest handshake that it began was made.
    pub(super) opened: u64,
    /// A response that waits for a path.
    pub(super) response: Option<(Vec<u8>, Class, Instant)>,
    /// The limit of probes that are answered.
    pub(super) probes: TokenBucket,
    /// The limit of SYNs that are answered by a reset.
    pub(super) resets: TokenBucket,
    pub(super) candidates: Vec<Candidate>,
    requested: Option<Instant>,
    listed: Option<Instant>,
    /// The same in Unix seconds.
    listed_at: u64,
    /// How many lists in a row seemed to lack paths.
    short_lists: u32,
    /// Why there are no paths.
    pub(super) failure: Option<String>,
    pub(super) routes: Vec<Route>,
    pub(super) waiting: VecDeque<Waiting>,
    waiting_octets: usize,
    /// Oldest first.
    doubted: Vec<Doubted>,
    /// The paths by which it sends.
    heard: Vec<Heard>,
}

impl Peer {
    pub(super) fn new(traffic: Traffic, due: Instant) -> Self {
        Self {
            traffic,
            due,
            sessions: Vec::new(),
            starting: Vec::new(),
            opened: 0,
            response: None,
            probes: TokenBucket::new(PROBES.0, PROBES.1),
            resets: TokenBucket::new(RESETS.0, RESETS.1),
            candidates: Vec::new(),
            requested: None,
            listed: None,
            listed_at: 0,
            short_lists: 0,
            failure: None,
            routes: Vec::new(),
            waiting: VecDeque::new(),
            waiting_octets: 0,
            doubted: Vec::new(),
            heard: Vec::new(),
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
        self.routes.push(Route::new(class.clone(), now));
        self.routes.len() - 1
    }

    /// Whether paths are to be asked for now; then they are.
    pub(super) fn asks_paths(&mut self, now: Now) -> bool {
        let has_any = self.candidates.iter().any(|candidate| {
            let is_good = matches!(candidate.status(now), CandidateStatus::Ready | CandidateStatus::Possible);
            is_good && candidate.is_listed && candidate.is_current(now)
        });
        // Others may be known by now, if nobody consents to these, or if they are dead.
        let is_stuck = (0..self.routes.len()).any(|place| {
            let route = &self.routes[place];
            let is_dead = route.active.and_then(|hash| self.candidate(&hash)).is_some_and(Candidate::is_dead);
            route.is_kept(now.instant) && (is_dead || self.usable(place, now).is_none())
        });
        let is_short = self.is_short(now);
        let wait = match has_any && !is_stuck {
            true if is_short => RETRY * (1u32 << self.short_lists.saturating_sub(1).min(MOST_DOUBLINGS)),
            // The list is renewed while half of what it says lasts: consents to a path end with it.
            true => self.half_life().max(RETRY),
            false => RETRY,
        };
        let wait = wait.min(REFRESH);
        let is_due = self.listed.is_none_or(|listed| now.instant.since(listed) >= wait);
        let waits = self.requested.is_some_and(|requested| now.instant.since(requested) < TIMEOUT);
        if is_due && !waits {
            self.requested = Some(now.instant);
            self.short_lists = if is_short { self.short_lists.saturating_add(1) } else { 0 };
        }
        is_due && !waits
    }

    /// The list seems to lack paths: one has no path beside it, or one with common nodes or that ends soon since it is no longer
    /// listed, or the peer sends over nodes by which none is known here. A path server's list grows while nodes come, and what a node
    /// remembers of it is a little older. Until the list has the path back, a probe is answered over other nodes, which is no help
    /// when these fail.
    fn is_short(&self, now: Now) -> bool {
        let is_known = |nodes: &Arc<[IdentityKey]>| self.candidates.iter().any(|candidate| *candidate.nodes == **nodes);
        let mut kept = self.routes.iter().filter(|route| route.is_kept(now.instant));
        let of = |hash: Option<PathHash>| hash.and_then(|hash| self.candidate(&hash));
        let nodes = |hash: Option<PathHash>| of(hash).map_or(&[][..], |of| between(&of.nodes));
        kept.any(|route| {
            let (active, spare) = (nodes(route.active), nodes(route.spare));
            let shares = spare.iter().any(|node| active.contains(node));
            let passes = [route.active, route.spare].iter().any(|hash| of(*hash).is_some_and(|of| of.passes(now)));
            route.spare.is_none()
                || shares
                || passes
                || route.class.mirror.as_ref().is_some_and(|nodes| !is_known(nodes))
        })
    }

    /// Half of the time from when the paths were listed until the first one that is in use is over.
    fn half_life(&self) -> Duration {
        let in_use = self.in_use(|_| true).into_iter().map(|place| &self.candidates[place]);
        let listed = in_use.filter(|candidate| candidate.is_listed);
        let left = listed.map(|candidate| candidate.path.expiry().saturating_sub(self.listed_at)).min();
        left.map_or(REFRESH, |left| Duration::from_millis(left.saturating_mul(500)))
    }

    /// Takes the list of paths; those that are no longer there are used until their proofs end.
    pub(super) fn set_paths(&mut self, fresh: Vec<Candidate>, now: Now) {
        (self.requested, self.listed, self.failure) = (None, Some(now.instant), None);
        self.listed_at = now.unix.secs();
        self.candidates.iter_mut().for_each(|candidate| candidate.is_listed = false);
        for candidate in fresh {
            if let Some(known) = self.candidates.iter_mut().find(|known| known.hash == candidate.hash) {
                known.list(candidate.path);
            } else if self.candidates.len() < LIMIT_PATHS {
                self.candidates.push(candidate);
            }
        }
        self.candidates.retain(|candidate| candidate.is_listed || candidate.is_usable(now));
    }

    pub(super) fn fail_paths(&mut self, why: String, now: Now) {
        (self.requested, self.listed, self.failure) = (None, Some(now.instant), Some(why));
    }

    pub(super) fn candidate(&self, hash: &PathHash) -> Option<&Candidate> {
        self.candidates.iter().find(|candidate| candidate.hash == *hash)
    }

    /// Chooses active and spare path of every route. Returns how many went over to another path, and how many paths died.
    pub(super) fn choose(&mut self, policies: &[PathPolicy], now: Now) -> (u64, u64) {
        let mut dead = 0;
        for candidate in &mut self.candidates {
            candidate.turn(now);
            dead += u64::from(candidate.check_life(now));
        }
        self.candidates.retain(|candidate| candidate.is_listed || candidate.is_usable(now));
        let Self { routes, candidates, heard, .. } = self;
        let recent = heard.iter().filter(|heard| now.instant.since(heard.last) < KEPT);
        let heard: Vec<Arc<[IdentityKey]>> = recent.filter_map(|heard| Some(reversed(heard.nodes.as_ref()?))).collect();
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
            for place in [&mut route.active, &mut route.spare, &mut route.wanted, &mut route.reserve] {
                has_left |= place.take_if(|hash| !is_allowed(hash)).is_some();
            }
        }
        has_left
    }

    /// Forgets paths over nodes that are not among `known`, with their proofs. Returns whether there was one.
    pub(super) fn leave_unknown(&mut self, known: &BTreeSet<IdentityKey>) -> bool {
        let count = self.candidates.len();
        self.candidates.retain(|candidate| are_known(&candidate.nodes, known));
        self.candidates.len() < count
    }

    /// The place of the candidate to send on by this route. While servers are asked for proofs of the active path, nothing goes by a
    /// dead one in its place: packets wait.
    pub(super) fn usable(&self, route: usize, now: Now) -> Option<usize> {
        let route = &self.routes[route];
        let status = |hash: &Option<PathHash>| {
            let place = self.candidates.iter().position(|candidate| Some(candidate.hash) == *hash)?;
            Some((self.candidates[place].status(now), place))
        };
        let (active, spare) = (status(&route.active), status(&route.spare));
        let is_asking = matches!(active, Some((CandidateStatus::Possible, _)));
        let takes = |of: &(CandidateStatus, usize)| {
            of.0 == CandidateStatus::Ready || !is_asking && self.candidates[of.1].is_usable(now)
        };
        active.filter(takes).or_else(|| spare.filter(takes)).map(|(_, place)| place)
    }

    /// Octets of the longest inner packet on any path in use.
    pub(super) fn least_headroom(&self, now: Now) -> Option<usize> {
        let in_use = self.candidates.iter().filter(|candidate| candidate.is_usable(now));
        in_use
            .filter_map(|candidate| Some(candidate.lane.as_ref()?.inner_mtu(candidate.mtu().into(), Form::Handle)))
            .min()
    }

    /// Every candidate in use by a route that `which` takes.
    pub(super) fn in_use(&self, which: impl Fn(&Route) -> bool) -> Vec<usize> {
        let hashes: Vec<PathHash> = self.routes.iter().filter(|route| which(route)).flat_map(Route::paths).collect();
        (0..self.candidates.len()).filter(|place| hashes.contains(&self.candidates[*place].hash)).collect()
    }

    /// Every usable candidate by which a route's class is answered: over the same nodes, and over others, since one of them may be dead.
    pub(super) fn answering(&self, class: &Class, now: Now) -> Vec<usize> {
        let mut places = self.in_use(|route| route.class == *class);
        places.retain(|place| self.candidates[*place].is_usable(now));
        places
    }

    /// The path by which attempt number `attempt` to begin a session is made: each of those in use in turn, the active one first,
    /// since without a session nothing else tells which of them is dead.
    pub(super) fn begins_by(&self, attempt: usize, now: Now) -> Option<usize> {
        let live = self.routes.iter().filter(|route| route.is_live(now.instant));
        let mut places = Vec::new();
        for hash in live.flat_map(Route::paths) {
            let is_it = |candidate: &Candidate| candidate.hash == hash && candidate.is_usable(now);
            places.extend(self.candidates.iter().position(is_it).filter(|place| !places.contains(place)));
        }
        // Those that are known to be dead come last.
        places.sort_by_key(|place| self.candidates[*place].is_dead());
        places.get(attempt % places.len().max(1)).copied()
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
    /// somebody refuses, nothing can be heard; on one that passes no data something is.
    pub(super) fn wants_session(&mut self, now: Now) -> bool {
        let in_use = self.in_use(|route| route.is_live(now.instant));
        let mut usable = in_use.iter().map(|place| &self.candidates[*place]).filter(|of| of.is_usable(now)).peekable();
        let is_deaf = usable.peek().is_some() && usable.all(|of| of.is_dead() && !of.is_faulty(now.instant));
        match self.session(now.instant) {
            None => true,
            Some(known) => {
                let age = now.instant.since(known.session.begun);
                let most = if known.session.is_initiator() { REKEY } else { REKEY_BY_OTHER };
                age >= most || is_deaf && age >= DEAF
            }
        }
    }

    /// Adds a handshake that waits for its answer; returns the number of the one that gives way.
    pub(super) fn start(&mut self, starting: Starting) -> Option<u32> {
        let oldest = (self.starting.len() == LIMIT_STARTING).then(|| self.starting.remove(0).index);
        self.starting.push(starting);
        oldest
    }

    /// Adds a session; returns the numbers of those that end. Those that the peer never used give way first: while none of our
    /// responses reaches it, it begins one after the other, and sends in the last one that it has.
    pub(super) fn add_session(&mut self, known: Known, now: Instant) -> Vec<u32> {
        let is_over = |known: &mut Known| now.since(known.session.begun) >= SESSION_ENDS;
        let mut ended: Vec<u32> = self.sessions.extract_if(.., is_over).map(|known| known.index).collect();
        if self.sessions.len() == LIMIT_SESSIONS {
            let unused = self.sessions.iter().position(|known| !known.is_confirmed);
            ended.push(self.sessions.remove(unused.unwrap_or_default()).index);
        }
        self.sessions.push(known);
        ended
    }

    /// Lets a packet wait; returns whether there was room.
    pub(super) fn wait(&mut self, octets: &[u8], offload: Offload, since: Instant) -> bool {
        let has_capacity =
            self.waiting.len() < LIMIT_WAITING && self.waiting_octets + octets.len() <= LIMIT_WAITING_OCTETS;
        if has_capacity {
            self.waiting_octets += octets.len();
            self.waiting.push_back(Waiting { octets: octets.to_vec(), offload, since });
        }
        has_capacity
    }

    /// Remembers a packet that leaves by a path in doubt, in the place of its flow's one of the kind before.
    pub(super) fn doubt(&mut self, flow: FlowKey, is_repeated: bool, path: PathHash, packet: Waiting) {
        self.doubted.retain(|known| known.flow != flow || known.is_repeated != is_repeated);
        self.doubted.push(Doubted { flow, is_repeated, path, packet });
        let octets = |doubted: &[Doubted]| doubted.iter().map(|known| known.packet.octets.len()).sum::<usize>();
        while self.doubted.len() > LIMIT_DOUBTED || octets(&self.doubted) > LIMIT_DOUBTED_OCTETS {
            // Whoever misses an acknowledgement asks again; data come again when their own timer says so.
            let least = self.doubted.iter().position(|known| !known.is_repeated);
            self.doubted.remove(least.unwrap_or_default());
        }
    }

    /// The path is alive: what left by it arrived, or is the application's to repeat.
    pub(super) fn trust(&mut self, path: &PathHash) {
        self.doubted.retain(|known| known.path != *path);
    }

    /// What left by paths that are dead now. What has waited for another one for long is nobody's any more.
    pub(super) fn take_lost(&mut self, now: Instant) -> Vec<Waiting> {
        let Self { doubted, candidates, .. } = self;
        let is_alive = |path: &PathHash| candidates.iter().any(|known| known.hash == *path && !known.is_dead());
        let lost = doubted.extract_if(.., |known| !is_alive(&known.path)).map(|known| known.packet);
        lost.filter(|packet| now.since(packet.since) < KNOWN_FOR).collect()
    }

    /// All that waits.
    pub(super) fn take_waiting(&mut self) -> VecDeque<Waiting> {
        self.waiting_octets = 0;
        std::mem::take(&mut self.waiting)
    }

    /// What has waited since before `since`.
    pub(super) fn take_overdue(&mut self, now: Instant, timeout: Duration) -> Vec<Waiting> {
        let count = self.waiting.iter().take_while(|waiting| now.since(waiting.since) >= timeout).count();
        let overdue: Vec<Waiting> = self.waiting.drain(..count).collect();
        self.waiting_octets -= overdue.iter().map(|waiting| waiting.octets.len()).sum::<usize>();
        overdue
    }

    /// What is known of the path of `handle`, by which it sends. The one that was probed last a long time ago gives way.
    fn heard(&mut self, handle: Handle, now: Instant) -> &mut Heard {
        let place = self.heard.iter().position(|heard| heard.handle == handle).unwrap_or_else(|| {
            if self.heard.len() == LIMIT_HEARD {
                let oldest = (0..LIMIT_HEARD).min_by_key(|place| self.heard[*place].last);
                self.heard.swap_remove(oldest.unwrap_or_default());
            }
            self.heard.push(Heard { handle, nodes: None, last: now, received: 0, loss: Loss::default() });
            self.heard.len() - 1
        });
        &mut self.heard[place]
    }

    /// Remembers by which nodes the path of `handle` leads, as the peer says.
    pub(super) fn hear(&mut self, handle: Handle, nodes: &[IdentityKey], now: Instant) -> Arc<[IdentityKey]> {
        let heard = self.heard(handle, now);
        heard.last = now;
        let known = heard.nodes.take().filter(|known| **known == *nodes);
        heard.nodes.insert(known.unwrap_or_else(|| nodes.into())).clone()
    }

    /// Counts a data packet on the path of `handle`.
    pub(super) fn count(&mut self, handle: Handle, now: Instant) {
        self.heard(handle, now).received += 1;
    }

    /// Data packets that came on the path of `handle`, on which the peer has sent `sent`.
    pub(super) fn received(&mut self, handle: Handle, sent: u64, now: Instant) -> u64 {
        let heard = self.heard(handle, now);
        heard.loss.note(sent, heard.received, now);
        heard.received
    }

    /// Millionths of its packets over these nodes, in the order of packets to it, that were lost.
    pub(super) fn loss_over(&self, nodes: &[IdentityKey]) -> Option<u32> {
        let is_it = |heard: &&Heard| heard.nodes.as_ref().is_some_and(|known| known.iter().rev().eq(nodes));
        self.heard.iter().filter(is_it).max_by_key(|heard| heard.last)?.loss.ppm()
    }

    /// The nodes by which the path of `handle` leads, in the order of our own packets.
    pub(super) fn mirror(&self, handle: &Handle) -> Option<Arc<[IdentityKey]>> {
        self.heard.iter().find(|heard| heard.handle == *handle)?.nodes.as_ref().map(|nodes| reversed(nodes))
    }

    /// When something of it ends, if nothing else is to be done for it before.
    pub(super) fn deadline(&self, now: Instant) -> Option<Instant> {
        let is_in_use = self.routes.iter().any(|route| route.is_kept(now)) || self.response.is_some();
        if is_in_use || !self.waiting.is_empty() {
            return None;
        }
        let routes = self.routes.iter().map(|route| route.used + FORGOTTEN);
        routes.chain(self.sessions.iter().map(|known| known.session.begun + SESSION_ENDS)).min()
    }

    /// Whether nothing is known that would be missed. Flows are remembered elsewhere.
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
        (route.active, route.spare, route.wanted, route.reserve) = (None, None, None, None);
        return false;
    };
    let allowed: Vec<&Candidate> = candidates.iter().filter(|candidate| policy.allows(&candidate.nodes)).collect();
    let answers = route.class.mirror.is_some();
    let is_heard = |candidate: &Candidate| !answers || heard.contains(&candidate.nodes);
    let rank = |candidate: &Candidate| {
        let is_mirror = route.class.mirror.as_ref().is_some_and(|mirror| **mirror == *candidate.nodes);
        (candidate.is_narrow(), !is_mirror, !is_heard(candidate), policy.rank(&candidate.nodes))
    };
    let find = |hash: Option<PathHash>| allowed.iter().copied().find(|candidate| Some(candidate.hash) == hash);
    let (before, spare_before, wanted_before) = (find(route.active), find(route.spare), find(route.wanted));
    let had_one = route.active.is_some();
    let is_asking =
        |candidate: &Candidate| candidate.requested.is_none_or(|requested| now.instant.since(requested) < RETRY);
    // What passes large packets, if another does, is better at once.
    let is_wide = |candidate: &&Candidate| {
        candidate.status(now) == CandidateStatus::Ready && candidate.is_heard(now.instant) && !candidate.is_narrow()
    };
    let has_wide = allowed.iter().any(is_wide);
    let keeps = |candidate: &&Candidate| match candidate.status(now) {
        CandidateStatus::Ready => !candidate.is_narrow() || !has_wide,
        CandidateStatus::Possible => is_asking(candidate),
        CandidateStatus::Untried | CandidateStatus::Dead | CandidateStatus::Refused => false,
    };
    // At first the path that comes first has its time to get proofs, though another may be ready; that one is the spare
    // meanwhile. Later on one that is answered comes before one of which nothing is known, and if all are dead, the one that was
    // answered last is the likeliest to be again.
    let floor = if had_one { CandidateStatus::Ready } else { CandidateStatus::Possible };
    // What killed a path may be about to show on others: one that answers comes first, and one without the nodes of those that are dead.
    let dead = allowed.iter().filter(|candidate| candidate.status(now) == CandidateStatus::Dead);
    let suspects: Vec<&IdentityKey> = dead.flat_map(|candidate| between(&candidate.nodes)).collect();
    let best = || {
        let status = |candidate: &Candidate| match candidate.status(now) {
            CandidateStatus::Untried => CandidateStatus::Dead,
            status => status.max(floor),
        };
        let heard_last = |candidate: &Candidate| match status(candidate) {
            // Of those that pass probes alone the one in use stays.
            CandidateStatus::Dead if candidate.is_faulty(now.instant) && Some(candidate.hash) == route.active => {
                Reverse(candidate.answered.map(|_| now.instant))
            }
            CandidateStatus::Dead => Reverse(candidate.answered),
            _ => Reverse((had_one && candidate.is_heard(now.instant)).then_some(now.instant)),
        };
        let doubt = |candidate: &Candidate| {
            let suspects = between(&candidate.nodes).iter().filter(|node| suspects.contains(node)).count();
            let is_in_doubt = candidate.lane.as_ref().is_some_and(|lane| lane.unanswered >= IN_DOUBT);
            if had_one { (is_in_doubt, suspects) } else { (false, 0) }
        };
        let order = |candidate: &&Candidate| {
            let is_narrow = candidate.is_narrow() && has_wide;
            (status(candidate), is_narrow, doubt(candidate), heard_last(candidate), rank(candidate))
        };
        allowed.iter().copied().min_by_key(order)
    };
    let mut active = before.filter(keeps).or_else(best);
    // A path that comes first, and has proven itself, is gone back to.
    for other in [spare_before, wanted_before].into_iter().flatten() {
        let since = other.lane.as_ref().and_then(|lane| lane.answered_since);
        let is_proven = since.is_some_and(|since| now.instant.since(since) >= PROVEN);
        let is_better = active.is_some_and(|active| rank(other) < rank(active));
        if is_better && is_proven && other.is_usable(now) && other.is_heard(now.instant) {
            active = Some(other);
        }
    }
    let shared = |candidate: &Candidate| {
        let of_active = active.map_or(&[][..], |active| between(&active.nodes));
        between(&candidate.nodes).iter().filter(|node| of_active.contains(node)).count()
    };
    let is_other = |candidate: &&Candidate| active.is_none_or(|active| active.hash != candidate.hash);
    let must_be_heard = active.is_some_and(is_heard);
    let others = allowed.iter().copied().filter(is_other).filter(|other| !must_be_heard || is_heard(other));
    // What kills a node of the active path is to leave the spare one, so few common nodes count more than proofs that are there
    // already; only then does the one of before stay.
    let spare = others.min_by_key(|candidate| {
        let status = if keeps(candidate) {
            CandidateStatus::Ready
        } else {
            candidate.status(now).max(CandidateStatus::Possible)
        };
        let is_new = spare_before.is_none_or(|before| before.hash != candidate.hash);
        (status, shared(candidate), is_new, candidate.status(now), rank(candidate))
    });
    let is_possible = |candidate: &&Candidate| {
        let is_spare = spare.is_some_and(|spare| spare.hash == candidate.hash);
        !is_spare && candidate.status(now) != CandidateStatus::Refused
    };
    let comes_first = |candidate: &Candidate| active.is_some_and(|active| rank(candidate) < rank(active));
    let is_apart = |candidate: &Candidate| {
        (!must_be_heard || is_heard(candidate)) && spare.is_some_and(|spare| shared(candidate) < shared(spare))
    };
    let others: Vec<&Candidate> = allowed.iter().copied().filter(is_other).filter(is_possible).collect();
    let wanted = others.iter().copied().filter(|candidate| comes_first(candidate) || is_apart(candidate));
    let wanted = wanted.min_by_key(|candidate| (!comes_first(candidate), shared(candidate), rank(candidate)));
    // The peer answers by paths that it has heard, as far as its own policy allows them. That may leave it a single one of the active
    // and the spare one, or two with a common node; then one death makes paths look dead that are not. So who begins flows lets it
    // hear another, which has few nodes in common with both.
    let rest = others.iter().copied().filter(|other| !answers && wanted.is_none_or(|wanted| wanted.hash != other.hash));
    let reserve = rest.min_by_key(|candidate| {
        let of_spare = spare.map_or(&[][..], |spare| between(&spare.nodes));
        let with_spare = between(&candidate.nodes).iter().filter(|node| of_spare.contains(node)).count();
        let is_new = route.reserve != Some(candidate.hash);
        (candidate.status(now).max(CandidateStatus::Possible), shared(candidate) + with_spare, is_new, rank(candidate))
    });
    let hash = |candidate: Option<&Candidate>| candidate.map(|candidate| candidate.hash);
    let has_changed = had_one && before.is_some() && hash(active) != route.active;
    (route.active, route.spare, route.wanted) = (hash(active), hash(spare), hash(wanted));
    route.reserve = hash(reserve);
    has_changed
}

//! Leases of a rate: several routers keep one principal's rate together (distributed token buckets, which the Platypus paper leaves
//! open in section 7.4).
//!
//! Every router has a *floor* of its own, which no other ever uses. What is left of the rate, the pool, is leased by one
//! [`Lessor`] to the routers' [`Lease`]s, in proportion to demand, for a short time. The shares that routers hold never sum to more
//! than the pool, whatever is lost, late, repeated or cut off:
//!
//! - a router counts a lease's time from when it asked, the lessor from when it answered, with a margin for clocks that run apart, so
//!   that the router's lease always ends first;
//! - a share that shrinks is given to others only once the router has said that it uses the smaller one, or the greater one's time
//!   is over;
//! - a router that hears nothing cannot know whether it is cut off or the lessor is gone: its last share stays for a while and then
//!   dwindles to nothing, by a schedule that both sides know ([`Offline`]), and the lessor reckons with what is left of it;
//! - a lessor that has lost its memory learns from each request what the router uses. Until all routers have spoken, or their
//!   schedules have ended, it gives nobody more than that.
//!
//! So the sum of what routers let pass exceeds the rate by no more than the sum of their burst depths, and whoever starts the lessor
//! again within a minute takes nothing from anybody. Nobody's clock is compared with another's.

use std::collections::BTreeMap;
use std::time::Duration;

use wayleave_core::Instant;

/// How often a router asks.
pub const INTERVAL: Duration = Duration::from_millis(100);
/// How long an answer may take, and how long a share is used at least, from the moment that the router asked for it.
pub const LEASE: Duration = Duration::from_millis(500);
/// How long a share stays as it is beyond that without an answer, and in which time it dwindles to nothing then.
pub const HOLD: Duration = Duration::from_secs(60);
pub const FALL: Duration = Duration::from_secs(240);
/// By clocks that differ by an eighth the lessor hears nothing for so long before a router's lease has ended.
const RECKONED: Duration = Duration::from_millis(572);
/// The part of the rate that all floors have together: one in so many.
const FLOORS: u64 = 100;
/// Routers that share a rate, at most.
pub const MAX_ROUTERS: usize = 256;
/// Answers to a process of a router that may be in use, at most, apart from those that are taken together; one that asks every
/// [`INTERVAL`] has six.
const MAX_GIVEN: usize = 64;
/// Processes of a router that may use something, at most: one, if no machine was copied.
const MAX_SESSIONS: usize = 8;

/// A router of those that share a rate, by its index in the configuration.
pub type RouterIndex = u16;

/// The floor of each of `routers` routers, in octets a second.
#[must_use]
pub fn floor(rate: u64, routers: usize) -> u64 {
    rate / FLOORS / routers.max(1) as u64
}

wayleave_core::wire! {
    /// What becomes of a share when nobody answers.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
    pub enum Offline: "what becomes of a share" {
        /// It stays for [`HOLD`], and dwindles in [`FALL`].
        #[default]
        0 = Decay,
        /// It ends with the lease: the router falls to its floor.
        1 = Floor,
    }

    /// What a router asks for.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct LeaseRequest {
        /// Of this process of the router: how often the router was started 32, and 32 random bits.
        pub session: u64,
        /// Counts requests of the session from 1.
        pub number: u64,
        /// The number of the request whose answer the router uses now; zero if none.
        pub uses: u64,
        /// What the router lets pass by that answer beyond its floor, in octets a second.
        pub share: u64,
        /// What was offered to the router since its last request, let pass or not, in octets a second.
        pub demand: u64,
    }

    /// What the lessor answers.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct LeaseAnswer {
        pub session: u64,
        /// The number of the request.
        pub number: u64,
        /// Octets a second above the floor.
        pub share: u64,
    }
}

/// A rate that routers share: octets a second of all together, and what becomes of shares when nobody answers.
pub type LeaseTerms = (u64, Offline);

impl Offline {
    /// What is left of a share in octets a second, so long after it was asked for.
    fn left(self, share: u64, age: Duration) -> u64 {
        let (hold, fall) = match self {
            Self::Decay => (HOLD, FALL),
            Self::Floor => (Duration::ZERO, Duration::ZERO),
        };
        let begins = LEASE + hold;
        if age < begins {
            return share;
        }
        let left = (begins + fall).saturating_sub(age).as_millis();
        let part = (u128::from(share) * left).checked_div(fall.as_millis()).unwrap_or(0);
        u64::try_from(part).unwrap_or(share).min(share)
    }

    /// Nothing is left of any share after this time.
    fn span(self) -> Duration {
        match self {
            Self::Decay => LEASE + HOLD + FALL,
            Self::Floor => LEASE,
        }
    }
}

/// How much of a time by the lessor's clock has passed by a router's at least.
fn by_routers(time: Duration) -> Duration {
    time * 7 / 8
}

/// What the lessor has given to a process and cannot be sure to be out of use.
#[derive(Clone, Copy, Debug)]
struct Given {
    number: u64,
    share: u64,
    answered: Instant,
}

/// What the lessor knows of a process of a router.
#[derive(Clone, Debug)]
struct Session {
    id: u64,
    number: u64,
    demand: u64,
    /// When it asked last.
    heard: Instant,
    given: Vec<Given>,
}

impl Session {
    /// How often the router had been started.
    fn start(&self) -> u64 {
        self.id >> 32
    }

    /// It asks no more, as far as the lessor can tell.
    fn is_silent(&self, now: Instant) -> bool {
        now.since(self.heard) >= RECKONED
    }

    /// Notes what it may use from now on. Of too many the oldest two are taken for one that is as great and as late as either.
    fn give(&mut self, given: Given) {
        self.given.push(given);
        if self.given.len() > MAX_GIVEN {
            let oldest = self.given.remove(0);
            if let Some(next) = self.given.first_mut() {
                next.share = next.share.max(oldest.share);
            }
        }
    }
}

/// Leases the pool of one rate.
#[derive(Clone, Debug)]
pub struct Lessor {
    pool: u64,
    offline: Offline,
    begun: Instant,
    routers: BTreeMap<RouterIndex, Vec<Session>>,
    count: usize,
}

impl Lessor {
    /// Leases what `rate` (octets a second) leaves above the floors of `routers` routers, at most [`MAX_ROUTERS`], with indices from
    /// zero on.
    #[must_use]
    pub fn new(rate: u64, offline: Offline, routers: usize, now: Instant) -> Self {
        let count = routers.clamp(1, MAX_ROUTERS);
        let pool = rate - floor(rate, count) * count as u64;
        Self { pool, offline, begun: now, routers: BTreeMap::new(), count }
    }

    /// Answers a router's request, unless it is a stranger's, or older than one that was answered, or of one process of too many.
    pub fn handle(&mut self, router: RouterIndex, request: &LeaseRequest, now: Instant) -> Option<LeaseAnswer> {
        if usize::from(router) >= self.count {
            return None;
        }
        let (pool, offline, is_young) = (self.pool, self.offline, self.is_young(now));
        let sessions = self.routers.entry(router).or_default();
        sessions.retain(|session| session.id == request.session || left(session, offline, now) > 0 || !session.is_silent(now));
        let at = match sessions.iter().position(|session| session.id == request.session) {
            Some(at) => at,
            None if sessions.len() >= MAX_SESSIONS => return None,
            None => {
                // What a lessor before this one gave it. Later it can have nothing that is not known here.
                let share = if is_young { request.share.min(pool) } else { 0 };
                let given = Vec::from([Given { number: request.uses, share, answered: now }]);
                sessions.push(Session { id: request.session, number: 0, demand: 0, heard: now, given });
                sessions.len() - 1
            }
        };
        let session = sessions.get_mut(at)?;
        if request.number <= session.number {
            return None;
        }
        session.number = request.number;
        // Nobody can use more than the pool: a router that claims more draws no more of it.
        (session.demand, session.heard) = (request.demand.min(pool), now);
        // Answers to requests before the one whose answer is in use are never used again.
        session.given.retain(|given| given.number >= request.uses);
        let share = self.share(router, request.session, now);
        let given = Given { number: request.number, share, answered: now };
        self.routers.get_mut(&router)?.get_mut(at)?.give(given);
        Some(LeaseAnswer { session: request.session, number: request.number, share })
    }

    /// Whether routers that have not spoken yet may use what an earlier lessor gave them.
    fn is_young(&self, now: Instant) -> bool {
        self.routers.len() < self.count && by_routers(now.since(self.begun)) < self.offline.span()
    }

    /// A process's part of the pool by demand, as far as others do not use it yet.
    fn share(&self, router: RouterIndex, id: u64, now: Instant) -> u64 {
        let all = || self.routers.iter().flat_map(|(index, sessions)| sessions.iter().map(move |of| (*index, sessions, of)));
        let Some((_, _, own)) = all().find(|(index, _, of)| (*index, of.id) == (router, id)) else { return 0 };
        let demand = |of: &Session| if of.is_silent(now) { 0 } else { of.demand };
        let demands: u128 = all().map(|(_, _, of)| u128::from(demand(of))).sum();
        let part = (u128::from(self.pool) * u128::from(demand(own))).checked_div(demands).unwrap_or(0);
        let part = u64::try_from(part).unwrap_or(u64::MAX);
        if self.is_young(now) {
            // What others use is not known, and whoever goes on with what it has takes nothing from them.
            return left(own, self.offline, now);
        }
        // A process that was started after it, of the same router, is in its place.
        let is_over = |sessions: &[Session], of: &Session| {
            of.is_silent(now) && sessions.iter().any(|other| other.start() > of.start())
        };
        let others = all().filter(|(index, sessions, of)| (*index, of.id) != (router, id) && !is_over(sessions, of));
        let used = others.fold(0, |sum: u64, (_, _, of)| sum.saturating_add(left(of, self.offline, now)));
        part.min(self.pool.saturating_sub(used))
    }

    /// Answers that may be in use, as far as they are remembered one by one.
    #[must_use]
    pub fn given(&self) -> usize {
        self.routers.values().flatten().map(|session| session.given.len()).sum()
    }
}

/// The greatest share that a process may use at `now` or later.
fn left(session: &Session, offline: Offline, now: Instant) -> u64 {
    let each = session.given.iter().map(|given| offline.left(given.share, by_routers(now.since(given.answered))));
    each.max().unwrap_or(0)
}

/// A router's side.
#[derive(Clone, Debug)]
pub struct Lease {
    floor: u64,
    offline: Offline,
    session: u64,
    number: u64,
    /// When requests were sent whose answers may still come: the number, and the time.
    requests: Vec<(u64, Instant)>,
    /// Number and share of the answer in use, and when it was asked for.
    held: Option<(u64, u64, Instant)>,
}

impl Lease {
    /// A router's part in `rate`, which `routers` routers share. `session` is of this process: see [`LeaseRequest`].
    #[must_use]
    pub fn new(rate: u64, offline: Offline, routers: usize, session: u64) -> Self {
        let floor = floor(rate, routers.clamp(1, MAX_ROUTERS));
        Self { floor, offline, session, number: 0, requests: Vec::new(), held: None }
    }

    /// The rate has changed, or the number of routers: what is held stays until there is another answer.
    pub fn change(&mut self, rate: u64, offline: Offline, routers: usize) {
        (self.floor, self.offline) = (floor(rate, routers.clamp(1, MAX_ROUTERS)), offline);
    }

    /// There is another link: answers that were to come by the one before are not taken any more, since who answers now does not know
    /// of them.
    pub fn reconnected(&mut self) {
        self.requests.clear();
    }

    /// The request to send at `now`, every [`INTERVAL`].
    pub fn request(&mut self, demand: u64, now: Instant) -> LeaseRequest {
        self.number += 1;
        self.requests.retain(|(_, sent)| now.since(*sent) < LEASE);
        self.requests.push((self.number, now));
        let (uses, share) = self.held.map_or((0, 0), |(number, share, sent)| (number, self.left(share, sent, now)));
        LeaseRequest { session: self.session, number: self.number, uses, share, demand }
    }

    /// Takes an answer over, unless it is of another process, older than the one in use, or to no request of ours that counts.
    pub fn handle(&mut self, answer: &LeaseAnswer, now: Instant) {
        if answer.session != self.session || self.held.is_some_and(|(number, ..)| answer.number <= number) {
            return;
        }
        let Some((_, sent)) = self.requests.iter().find(|(number, _)| *number == answer.number) else { return };
        if now.since(*sent) < LEASE {
            self.held = Some((answer.number, answer.share, *sent));
        }
    }

    fn left(&self, share: u64, sent: Instant, now: Instant) -> u64 {
        self.offline.left(share, now.since(sent))
    }

    /// Octets a second that the router always has.
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Octets a second beyond the floor, and until when they may be used without another look: no more than is left of the share then.
    #[must_use]
    pub fn share(&self, now: Instant) -> Option<(u64, Instant)> {
        let (_, share, sent) = self.held?;
        // A share that dwindles is less at the end.
        let (ends, at) = match self.offline {
            Offline::Decay => (now + LEASE, now + LEASE),
            Offline::Floor => (sent + LEASE, now),
        };
        let share = self.left(share, sent, at);
        (share > 0).then_some((share, ends))
    }

    /// Octets a second that the router may let pass at `now`.
    #[must_use]
    pub fn rate(&self, now: Instant) -> u64 {
        self.floor + self.share(now).map_or(0, |(share, _)| share)
    }
}

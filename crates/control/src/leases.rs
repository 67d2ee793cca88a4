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
//! again within a minute takes from nobody what it has. What no router has demand for is spread over all, so that one that was idle
//! has something when the lessor is gone. Nobody's clock is compared with another's.

use std::collections::{BTreeMap, BTreeSet};
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

/// A router of those that share a rate.
pub type RouterNumber = u16;

/// The floor of each of `routers` routers, in octets a second.
#[must_use]
pub fn floor(rate: u64, routers: usize) -> u64 {
    rate / FLOORS / routers.max(1) as u64
}

/// What all floors together leave of a rate, however many routers there are.
fn pool(rate: u64) -> u64 {
    rate - rate / FLOORS
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

impl Offline {
    /// As configurations and answers say it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Decay => "decay",
            Self::Floor => "floor",
        }
    }

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
    /// By the terms of then the router goes on, or by later ones if these leave less.
    offline: Offline,
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
                next.offline = next.offline.min(oldest.offline);
            }
        }
    }
}

/// Leases the pool of one rate.
#[derive(Clone, Debug)]
pub struct Lessor {
    rate: u64,
    /// The greatest rate that there was.
    most: u64,
    /// The floors that routers use, as far as they have said so: of another rate or number of routers until they have been told.
    floors: BTreeMap<RouterNumber, u64>,
    offline: Offline,
    begun: Instant,
    /// Processes of each router.
    routers: BTreeMap<RouterNumber, Vec<Session>>,
    /// Those that have not spoken since this lessor began, and may use what an earlier one gave them.
    unknown: BTreeSet<RouterNumber>,
    /// Processes of routers that are no longer there.
    gone: Vec<Session>,
}

impl Lessor {
    /// Leases what `rate` (octets a second) leaves above the floors of these routers, of which the first [`MAX_ROUTERS`] count. Each may use
    /// something already that was given before `begun`.
    #[must_use]
    pub fn new(rate: u64, offline: Offline, routers: &BTreeSet<RouterNumber>, begun: Instant) -> Self {
        Self::after(rate, offline, (routers, &BTreeSet::new()), begun)
    }

    /// The same behind a lessor that may have given something to routers of which this one knows nothing more, too: until that is over, nobody
    /// gets more than it has.
    #[must_use]
    pub fn after(
        rate: u64,
        offline: Offline,
        (routers, others): (&BTreeSet<RouterNumber>, &BTreeSet<RouterNumber>),
        begun: Instant,
    ) -> Self {
        let mut new = Self {
            rate: 0,
            most: 0,
            floors: BTreeMap::new(),
            offline,
            begun,
            routers: BTreeMap::new(),
            unknown: BTreeSet::new(),
            gone: Vec::new(),
        };
        new.change(rate, offline, routers);
        new.unknown = new.routers.keys().chain(others).copied().collect();
        new
    }

    /// The rate has changed, or what becomes of shares, or who the routers are. A router that is new has nothing yet.
    pub fn change(&mut self, rate: u64, offline: Offline, routers: &BTreeSet<RouterNumber>) {
        let gone: Vec<RouterNumber> = self.routers.keys().copied().filter(|router| !routers.contains(router)).collect();
        gone.into_iter().for_each(|router| self.remove(router));
        for router in routers.iter().take(MAX_ROUTERS) {
            self.routers.entry(*router).or_default();
        }
        (self.rate, self.most, self.offline) = (rate, self.most.max(rate), offline);
    }

    /// A router is no longer there, or another one has its number: what it may use is nobody's until it is over.
    pub fn remove(&mut self, router: RouterNumber) {
        self.gone.extend(self.routers.remove(&router).into_iter().flatten());
        self.unknown.remove(&router);
        self.floors.remove(&router);
    }

    /// A router has said that it uses this floor, in octets a second: no greater one than a lone router ever had.
    pub fn use_floor(&mut self, router: RouterNumber, floor: u64) {
        if self.routers.contains_key(&router) {
            self.floors.insert(router, floor.min(self.most / FLOORS));
        }
    }

    /// What floors leave of the rate: those that routers use, and those that they will use.
    fn pool(&self) -> u64 {
        let own = floor(self.rate, self.routers.len());
        let used: u64 = self
            .routers
            .keys()
            .map(|router| self.floors.get(router).map_or(own, |floor| own.max(*floor)))
            .fold(0, u64::saturating_add);
        pool(self.rate).min(self.rate.saturating_sub(used))
    }

    /// Answers a router's request, unless it is a stranger's, or older than one that was answered, or of one process of too many.
    pub fn handle(&mut self, router: RouterNumber, request: &LeaseRequest, now: Instant) -> Option<LeaseAnswer> {
        let (pool, offline, is_young) = (self.pool(), self.offline, self.is_young(now));
        self.gone.retain(|of| left(of, now) > 0);
        let sessions = self.routers.get_mut(&router)?;
        let is_unknown = self.unknown.remove(&router) && is_young;
        // The processes before this one have ended, once nothing is heard of them: what they had is its own.
        let is_over = |of: &Session| of.is_silent(now) && of.start() < request.session >> 32;
        let inherited = sessions.iter().filter(|of| is_over(of)).map(|of| left(of, now)).max().unwrap_or(0);
        sessions.retain(|of| !is_over(of));
        sessions.retain(|of| of.id == request.session || left(of, now) > 0 || !of.is_silent(now));
        let at = match sessions.iter().position(|session| session.id == request.session) {
            Some(at) => at,
            None if sessions.len() >= MAX_SESSIONS => return None,
            None => {
                // What a lessor before this one gave it. Later it can have nothing that is not known here.
                let share = if is_unknown { request.share.min(pool) } else { 0 };
                // By which terms is not known.
                let given = Given { number: request.uses, share, answered: now, offline: Offline::Decay };
                let given = Vec::from([given]);
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
        if inherited > 0 {
            session.give(Given { number: request.uses, share: inherited, answered: now, offline });
        }
        let share = self.share(router, request.session, now);
        let given = Given { number: request.number, share, answered: now, offline };
        self.routers.get_mut(&router)?.get_mut(at)?.give(given);
        Some(LeaseAnswer { session: request.session, number: request.number, share })
    }

    /// Whether routers that have not spoken yet may use what an earlier lessor gave them, by whatever terms.
    fn is_young(&self, now: Instant) -> bool {
        !self.unknown.is_empty() && by_routers(now.since(self.begun)) < Offline::Decay.span()
    }

    /// A process's part of the pool by demand, as far as others do not use it yet.
    fn share(&self, router: RouterNumber, id: u64, now: Instant) -> u64 {
        let all = || self.routers.iter().flat_map(|(index, sessions)| sessions.iter().map(move |of| (*index, of)));
        let Some((_, own)) = all().find(|(index, of)| (*index, of.id) == (router, id)) else { return 0 };
        let (pool, own_left) = (u128::from(self.pool()), left(own, now));
        let others = all().filter(|(index, of)| (*index, of.id) != (router, id));
        let others = others.map(|(_, of)| of).chain(&self.gone);
        let used: u128 = others.map(|of| u128::from(left(of, now))).sum();
        if self.is_young(now) {
            // What others use is not known, and whoever goes on with what it has takes nothing from them. Where what is said to be in use is
            // more than there is, as of a rate that was lowered, each has its part of what there is.
            let claimed = (used + u128::from(own_left)).max(pool).max(1);
            return u64::try_from(u128::from(own_left) * pool / claimed).unwrap_or(0);
        }
        // A process counts no more once another one of its router was started.
        let is_last = |of: &Session, sessions: &[Session]| sessions.iter().all(|other| other.start() <= of.start());
        let asking = self.routers.values().flat_map(|sessions| {
            sessions.iter().filter(move |of| of.id == id || !of.is_silent(now) && is_last(of, sessions))
        });
        let (count, demands) = asking.fold((0, 0), |(count, sum), of| (count + 1, sum + u128::from(of.demand)));
        let part = match pool.checked_sub(demands) {
            Some(rest) => u128::from(own.demand) + rest / count.max(1),
            None => pool * u128::from(own.demand) / demands,
        };
        u64::try_from(part.min(pool.saturating_sub(used))).unwrap_or(0)
    }

    /// Answers that may be in use, as far as they are remembered one by one.
    #[must_use]
    pub fn given(&self) -> usize {
        self.routers.values().flatten().map(|session| session.given.len()).sum()
    }
}

/// The greatest share that a process may use at `now` or later.
fn left(session: &Session, now: Instant) -> u64 {
    let each = session.given.iter().map(|given| given.offline.left(given.share, by_routers(now.since(given.answered))));
    each.max().unwrap_or(0)
}

/// An answer in use.
#[derive(Clone, Copy, Debug)]
struct LeaseInUse {
    number: u64,
    share: u64,
    /// When it was asked for, and by which terms.
    sent: Instant,
    offline: Offline,
}

/// A router's side.
#[derive(Clone, Debug)]
pub struct Lease {
    floor: u64,
    /// What all routers have above their floors: no share is greater.
    pool: u64,
    offline: Offline,
    session: u64,
    number: u64,
    /// When requests were sent whose answers may still come: the number, and the time.
    requests: Vec<(u64, Instant)>,
    held: Option<LeaseInUse>,
}

impl Lease {
    /// A router's part in `rate`, which `routers` routers share. `session` is of this process: see [`LeaseRequest`]; its requests are
    /// numbered from `number` on, exclusively.
    #[must_use]
    pub fn new(rate: u64, offline: Offline, routers: usize, (session, number): (u64, u64)) -> Self {
        let mut new = Self { floor: 0, pool: 0, offline, session, number, requests: Vec::new(), held: None };
        new.change(rate, offline, routers);
        new
    }

    /// The rate has changed, or the number of routers: what is held stays, as far as there is so much, until there is another answer.
    pub fn change(&mut self, rate: u64, offline: Offline, routers: usize) {
        let count = routers.clamp(1, MAX_ROUTERS);
        (self.floor, self.pool, self.offline) = (floor(rate, count), pool(rate), offline);
    }

    /// The number of the last request.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
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
        let (uses, share) = self.held.map_or((0, 0), |held| (held.number, self.left(&held, now)));
        LeaseRequest { session: self.session, number: self.number, uses, share, demand }
    }

    /// Takes an answer over, unless it is of another process, older than the one in use, or to no request of ours that counts.
    pub fn handle(&mut self, answer: &LeaseAnswer, now: Instant) {
        if answer.session != self.session || self.held.is_some_and(|held| answer.number <= held.number) {
            return;
        }
        let Some((_, sent)) = self.requests.iter().find(|(number, _)| *number == answer.number) else { return };
        if now.since(*sent) < LEASE {
            let (number, share) = (answer.number, answer.share);
            self.held = Some(LeaseInUse { number, share, sent: *sent, offline: self.offline });
        }
    }

    /// By the terms of the answer and those of now, whichever leaves less.
    fn left(&self, held: &LeaseInUse, now: Instant) -> u64 {
        let age = now.since(held.sent);
        held.offline.left(held.share, age).min(self.offline.left(held.share, age)).min(self.pool)
    }

    /// Octets a second that the router always has.
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Octets a second beyond the floor, and until when they may be used without another look: no more than is left of the share then.
    #[must_use]
    pub fn share(&self, now: Instant) -> Option<(u64, Instant)> {
        let held = self.held?;
        // A share that dwindles is less at the end.
        let (ends, at) = match held.offline.max(self.offline) {
            Offline::Decay => (now + LEASE, now + LEASE),
            Offline::Floor => (held.sent + LEASE, now),
        };
        let share = self.left(&held, at);
        (share > 0).then_some((share, ends))
    }

    /// Octets a second that the router may let pass at `now`.
    #[must_use]
    pub fn rate(&self, now: Instant) -> u64 {
        self.floor + self.share(now).map_or(0, |(share, _)| share)
    }
}

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
//! - a lessor that has lost its memory gives nothing until every lease it may have given is over.
//!
//! So the sum of what routers let pass exceeds the rate by no more than the sum of their burst depths, and routers that are cut off
//! fall to their floors. Nobody's clock is compared with another's.

use std::collections::BTreeMap;
use std::time::Duration;

use wayleave_core::Instant;

/// How often a router asks.
pub const INTERVAL: Duration = Duration::from_millis(100);
/// How long a lease lasts, from the moment that the router asked for it.
pub const LEASE: Duration = Duration::from_millis(500);
/// How long the lessor reckons with it, from the moment that it answered: clocks that differ by an eighth do no harm.
const RECKONED: Duration = Duration::from_millis(570);
/// The part of the rate that all floors have together: one in so many.
const FLOORS: u64 = 100;
/// Routers that share a rate, at most.
pub const MAX_ROUTERS: usize = 256;
/// Leases of a router that may be in use, at most: one that asks every [`INTERVAL`] has six.
const MAX_GIVEN: usize = 64;

/// A router of those that share a rate, by its index in the configuration.
pub type RouterIndex = u16;

/// The floor of each of `routers` routers, in octets a second.
#[must_use]
pub fn floor(rate: u64, routers: usize) -> u64 {
    rate / FLOORS / routers.max(1) as u64
}

wayleave_core::wire! {
    /// What a router asks for.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct LeaseRequest {
        /// Of this process of the router: another one after a restart. Random.
        pub session: u64,
        /// Counts requests of the session from 1.
        pub number: u64,
        /// The number of the request whose answer the router uses now; zero if none.
        pub uses: u64,
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

/// What the lessor has given to a router and cannot be sure to be out of use.
#[derive(Clone, Copy, Debug)]
struct Given {
    session: u64,
    number: u64,
    share: u64,
    /// When it is out of use whatever happens.
    ends: Instant,
}

/// What the lessor knows of a router.
#[derive(Clone, Debug, Default)]
struct Lessee {
    demand: u64,
    /// When the demand was told; older than a lease, it counts no more.
    heard: Option<Instant>,
    session: u64,
    number: u64,
    given: Vec<Given>,
}

impl Lessee {
    /// The greatest share that the router may use at `now` or later, without what its process `asking` has. Processes that run side by
    /// side with one identity, as of a machine that was copied, have shares of their own.
    fn outstanding(&self, now: Instant, asking: Option<u64>) -> u64 {
        let in_use = || self.given.iter().filter(|given| given.ends > now && Some(given.session) != asking);
        let is_greatest = |given: &&Given| {
            let mut alike = in_use().filter(|other| other.session == given.session);
            alike.all(|other| (other.share, other.number) <= (given.share, given.number))
        };
        in_use().filter(is_greatest).map(|given| given.share).sum()
    }
}

/// Leases the pool of one rate.
#[derive(Clone, Debug)]
pub struct Lessor {
    pool: u64,
    /// Before this, leases of an earlier process may be in use.
    quiet_until: Instant,
    routers: BTreeMap<RouterIndex, Lessee>,
    count: usize,
}

impl Lessor {
    /// Leases what `rate` (octets a second) leaves above the floors of `routers` routers, at most [`MAX_ROUTERS`], with indices from
    /// zero on.
    #[must_use]
    pub fn new(rate: u64, routers: usize, now: Instant) -> Self {
        let count = routers.clamp(1, MAX_ROUTERS);
        let pool = rate - floor(rate, count) * count as u64;
        Self { pool, quiet_until: now + RECKONED, routers: BTreeMap::new(), count }
    }

    /// Answers a router's request, unless it is a stranger's, or older than one that was answered, or one of very many.
    pub fn handle(&mut self, router: RouterIndex, request: &LeaseRequest, now: Instant) -> Option<LeaseAnswer> {
        if usize::from(router) >= self.count {
            return None;
        }
        let lessee = self.routers.entry(router).or_default();
        if lessee.session == request.session && request.number <= lessee.number {
            return None;
        }
        // What the process before had is in use until its time is over; it may be the process before that asks late.
        let is_later = lessee.session == request.session;
        lessee.given.retain(|given| given.ends > now);
        if is_later {
            // Answers to requests before the one whose answer is in use are never used again.
            lessee.given.retain(|given| given.session != request.session || given.number >= request.uses);
        }
        let is_repeated =
            lessee.given.iter().any(|given| (given.session, given.number) == (request.session, request.number));
        if is_repeated || lessee.given.len() >= MAX_GIVEN {
            return None;
        }
        (lessee.session, lessee.number) = (request.session, request.number);
        // Before its share is computed, which is by all demands, this one included. Nobody can use more than the pool: a router that claims
        // more draws no more of it.
        (lessee.demand, lessee.heard) = (request.demand.min(self.pool), Some(now));
        let share = if now < self.quiet_until { 0 } else { self.share(router, request.session, now) };
        let given = Given { session: request.session, number: request.number, share, ends: now + RECKONED };
        if let Some(lessee) = self.routers.get_mut(&router) {
            lessee.given.push(given);
        }
        Some(LeaseAnswer { session: request.session, number: request.number, share })
    }

    /// A router's part of the pool by demand, as far as the others, and other processes of the same router, do not use it yet.
    fn share(&self, router: RouterIndex, session: u64, now: Instant) -> u64 {
        let demand = |lessee: &Lessee| match lessee.heard {
            Some(heard) if now.since(heard) < RECKONED => lessee.demand,
            _ => 0,
        };
        let all: u128 = self.routers.values().map(|lessee| u128::from(demand(lessee))).sum();
        let own = self.routers.get(&router).map_or(0, demand);
        let part = (u128::from(self.pool) * u128::from(own)).checked_div(all).unwrap_or(0);
        let asking = |index: RouterIndex| (index == router).then_some(session);
        let used: u64 = self.routers.iter().map(|(index, lessee)| lessee.outstanding(now, asking(*index))).sum();
        // No more than the pool, since each other outstanding share was given within it.
        u64::try_from(part).unwrap_or(u64::MAX).min(self.pool.saturating_sub(used))
    }
}

/// A router's side.
#[derive(Clone, Debug)]
pub struct Lease {
    floor: u64,
    session: u64,
    number: u64,
    /// When requests were sent whose answers may still come: the number, and the time.
    requests: Vec<(u64, Instant)>,
    /// Number, share and end of the lease in use.
    held: Option<(u64, u64, Instant)>,
}

impl Lease {
    /// A router's part in `rate`, which `routers` routers share. `session` must be random: another one after each start.
    #[must_use]
    pub fn new(rate: u64, routers: usize, session: u64) -> Self {
        let floor = floor(rate, routers.clamp(1, MAX_ROUTERS));
        Self { floor, session, number: 0, requests: Vec::new(), held: None }
    }

    /// The request to send at `now`, every [`INTERVAL`].
    pub fn request(&mut self, demand: u64, now: Instant) -> LeaseRequest {
        self.number += 1;
        self.requests.retain(|(_, sent)| now.since(*sent) < LEASE);
        self.requests.push((self.number, now));
        let uses = self.held.filter(|(_, _, ends)| *ends > now).map_or(0, |(number, ..)| number);
        LeaseRequest { session: self.session, number: self.number, uses, demand }
    }

    /// Takes an answer over, unless it is of another process, older than the one in use, or to no request of ours that counts.
    pub fn handle(&mut self, answer: &LeaseAnswer, now: Instant) {
        if answer.session != self.session || self.held.is_some_and(|(number, ..)| answer.number <= number) {
            return;
        }
        let Some((_, sent)) = self.requests.iter().find(|(number, _)| *number == answer.number) else { return };
        let ends = *sent + LEASE;
        if ends > now {
            self.held = Some((answer.number, answer.share, ends));
        }
    }

    /// Octets a second that the router always has.
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Octets a second beyond the floor, and when the lease ends; none without a lease.
    #[must_use]
    pub fn share(&self, now: Instant) -> Option<(u64, Instant)> {
        self.held.filter(|(_, _, ends)| *ends > now).map(|(_, share, ends)| (share, ends))
    }

    /// Octets a second that the router may let pass at `now`.
    #[must_use]
    pub fn rate(&self, now: Instant) -> u64 {
        self.floor + self.share(now).map_or(0, |(share, _)| share)
    }
}

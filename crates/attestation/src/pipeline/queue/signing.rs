//! Routes of one direction that are signed before they leave, and chains that need not be signed twice.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use wayleave_bgp::{Attributes, Nlri};

use super::pending::PendingRoutes;
use crate::pipeline::counts::Counts;
use crate::pipeline::jobs::{RouteGroup, SignedGroup, SigningOutcome};

/// Routes of one signing job, at most: the key ring is locked while it runs, and other pairs wait for it.
pub(crate) const SIGNING_BURST: usize = 128;

/// Extensions that are kept beyond twice the routes, at most, until those that no route needs are dropped.
const MORE_EXTENDED: usize = 1024;

/// The routes that one target gets, in whichever state of signing they are.
pub(crate) struct SigningQueue {
    pub(crate) routes: PendingRoutes<SigningOutcome>,
    /// Chains of other ASes as they were extended, by the attributes with which they came: routes that share
    /// attributes share the extension.
    extended: HashMap<Arc<Attributes>, SigningOutcome>,
    /// Whether the job in flight began before the target, a key or the clock changed. Its results are not reused.
    is_stale: bool,
}

impl SigningQueue {
    pub(crate) fn new() -> Self {
        Self { routes: PendingRoutes::new(), extended: HashMap::new(), is_stale: false }
    }

    /// Forgets extensions that were made for a target, with keys or at a time that no longer hold.
    pub(crate) fn forget_signed(&mut self) {
        self.extended = HashMap::new();
        self.is_stale = self.routes.in_flight;
    }

    /// Signs every route again.
    pub(crate) fn sign_all_again(&mut self) {
        self.forget_signed();
        self.routes.queue_all();
    }

    /// Queues routes whose key waited for a reserve of signatures to become durable.
    pub(crate) fn queue_unreserved(&mut self) {
        self.routes.queue_where(|_, route| matches!(route.result, Some(SigningOutcome::NotReserved)));
    }

    /// Removes all routes.
    pub(crate) fn clear(&mut self) {
        self.routes.clear();
        self.forget_signed();
    }

    /// How a chain with these attributes was extended, if that can be used for further routes at `unix`.
    pub(crate) fn known(&self, attributes: &Arc<Attributes>, unix: u64) -> Option<SigningOutcome> {
        self.extended.get(attributes).filter(|known| known.is_current(unix)).cloned()
    }

    /// The next routes to be signed.
    pub(crate) fn next_burst(&mut self) -> Vec<RouteGroup> {
        self.routes.next_burst(SIGNING_BURST, u64::MAX, |_| 0)
    }

    /// Whether the target, a key or the clock changed since the job in flight began.
    pub(crate) fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// The job in flight is done, and its results are recorded.
    pub(crate) fn end_job(&mut self) {
        self.routes.in_flight = false;
        self.is_stale = false;
    }

    /// Records how a group went out. Returns those of its routes that still have the attributes that were signed.
    pub(crate) fn record(&mut self, signed: &SignedGroup, unix: u64, counts: &mut Counts) -> Vec<Nlri> {
        let SignedGroup { group: RouteGroup { attributes, routes }, outcome } = signed;
        // Each list that we originate has a value of its own.
        if matches!(outcome, SigningOutcome::Signed { origin: false, .. }) && !self.is_stale {
            self.extended.insert(Arc::clone(attributes), outcome.clone());
            // Each that is needed is a route's: at least every second one goes.
            if self.extended.len() > 2 * self.routes.len() + MORE_EXTENDED {
                self.sweep();
            }
        }
        let mut recorded = Vec::new();
        for nlri in routes {
            let Some(route) = self.routes.unchanged(nlri, attributes) else { continue };
            let before = route.result.replace(outcome.clone());
            let is_renewed = before.and_then(|before| before.renewal()).is_some_and(|renewal| renewal <= unix);
            counts.note(outcome, is_renewed);
            recorded.push(*nlri);
        }
        recorded
    }

    /// Forgets extensions of attributes that no route has any more.
    pub(crate) fn sweep(&mut self) {
        let used: HashSet<*const Attributes> =
            self.routes.iter().map(|(_, route)| Arc::as_ptr(&route.attributes)).collect();
        self.extended.retain(|attributes, _| used.contains(&Arc::as_ptr(attributes)));
        self.extended.shrink_to(2 * self.extended.len());
    }

    /// Octets of the table of extensions, and at most. The attributes themselves are in the pair's pool.
    pub(crate) fn extended_octets(&self) -> [usize; 2] {
        const ENTRY: usize = size_of::<(Arc<Attributes>, SigningOutcome)>() + 1;
        // The standard library's table doubles, and fills seven of eight places.
        let most = 2 * self.routes.len() + MORE_EXTENDED + 1;
        [self.extended.capacity(), most].map(|entries| (entries * 8 / 7 + 1).next_power_of_two() * ENTRY)
    }
}

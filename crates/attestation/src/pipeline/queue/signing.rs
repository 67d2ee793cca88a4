//! Routes of one direction that are signed before they leave, and chains that need not be signed twice.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use wayleave_bgp::{Attributes, Nlri};

use super::pending::PendingRoutes;
use crate::pipeline::counts::Counts;
use crate::pipeline::jobs::{RouteGroup, SignedGroup, SigningOutcome};

/// Routes of one signing job, at most: the key ring is locked while it runs, and other pairs wait for it.
pub(crate) const SIGNING_BURST: usize = 128;

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
        self.extended.clear();
        self.is_stale = self.routes.in_flight;
    }

    /// Signs every route again.
    pub(crate) fn sign_all_again(&mut self) {
        self.forget_signed();
        self.routes.queue_all();
    }

    /// Queues at most `max` routes that wait until a key may sign; returns how many.
    pub(crate) fn queue_unreserved(&mut self, max: usize) -> usize {
        self.routes.queue_some(max, |_, route| matches!(route.result, Some(SigningOutcome::NotReserved)))
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
        self.routes.next_burst(SIGNING_BURST)
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
    }
}

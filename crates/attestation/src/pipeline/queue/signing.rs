//! Routes of one direction that are signed before they leave.

use wayleave_bgp::Nlri;

use super::pending::PendingRoutes;
use crate::pipeline::counts::Counts;
use crate::pipeline::jobs::{RouteGroup, SignedGroup, SigningOutcome};

/// Routes of one signing job, at most: the key ring is locked while it runs, and other pairs wait for it.
pub(crate) const SIGNING_BURST: usize = 128;

/// The routes that one target gets, in whichever state of signing they are.
pub(crate) struct SigningQueue {
    pub(crate) routes: PendingRoutes<SigningOutcome>,
    /// Whether the job in flight began before the target, a key or the clock changed. Its results are not sent.
    is_stale: bool,
}

impl SigningQueue {
    pub(crate) fn new() -> Self {
        Self { routes: PendingRoutes::new(), is_stale: false }
    }

    /// What is being signed is for a target, with keys or at a time that no longer hold.
    pub(crate) fn set_stale(&mut self) {
        self.is_stale = self.routes.in_flight;
    }

    /// Signs every route again.
    pub(crate) fn sign_all_again(&mut self) {
        self.set_stale();
        self.routes.queue_all();
    }

    /// Queues at most `max` routes that wait until a key may sign; returns how many.
    pub(crate) fn queue_unreserved(&mut self, max: usize) -> usize {
        self.routes.queue_some(max, |_, route| matches!(route.result, Some(SigningOutcome::NotReserved)))
    }

    /// Removes all routes.
    pub(crate) fn clear(&mut self) {
        self.routes.clear();
        self.set_stale();
    }

    /// The next routes to be signed, at most `max`.
    pub(crate) fn next_burst(&mut self, max: usize) -> Vec<RouteGroup> {
        self.routes.next_burst(max, u64::MAX, |_| 0)
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
}

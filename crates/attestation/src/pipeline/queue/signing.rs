//! Routes of one direction that are signed before they leave.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use wayleave_bgp::{AttributeCode, Attributes, Nlri};
use wayleave_core::{Afi, Instant};

use super::pending::{PendingRoute, PendingRoutes};
use crate::pipeline::counts::Counts;
use crate::pipeline::jobs::{RouteGroup, SignedGroup, SigningOutcome};

/// Routes of one signing job, at most: the key ring is locked while it runs, and other pairs wait for it.
pub(crate) const SIGNING_BURST: usize = 128;
/// How long End-of-RIB waits for routes that wait until a key may sign. A restarted speaker that defers its selection of
/// routes until End-of-RIB (RFC 4724 section 4.1) gives up after so long, in FRR unless configured otherwise.
const END_OF_RIB_WAIT: Duration = Duration::from_secs(360);

/// The routes that one target gets, in whichever state of signing they are.
pub(crate) struct SigningQueue {
    pub(crate) routes: PendingRoutes<SigningOutcome>,
    /// Whether the job in flight began before the target, a key or the clock changed. Its results are not sent.
    is_stale: bool,
    /// Routes that wait until a key may sign.
    unreserved: BTreeMap<Nlri, Unreserved>,
    /// Those of them that are tried again now.
    tried: usize,
    /// The route of those behind which the next to be tried is looked for.
    last_tried: Option<Nlri>,
    /// Until when End-of-RIB waits for them.
    end_of_rib_at: Option<Instant>,
}

/// A route that waits until a key may sign.
#[derive(Default)]
struct Unreserved {
    /// What was sent of it before and stands, if that is so.
    stands: Option<Arc<Attributes>>,
    /// It is queued or being signed.
    is_tried: bool,
}

/// What became of a group's routes that still have the attributes that were signed.
pub(crate) struct Recorded {
    pub(crate) routes: Vec<Nlri>,
    /// Of those: what was sent of them before is no longer true, and there is nothing yet in its place.
    pub(crate) withdrawn: Vec<Nlri>,
}

impl SigningQueue {
    pub(crate) fn new() -> Self {
        Self {
            routes: PendingRoutes::new(),
            is_stale: false,
            unreserved: BTreeMap::new(),
            tried: 0,
            last_tried: None,
            end_of_rib_at: None,
        }
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

    /// Whether routes wait until a key may sign and are not tried now.
    pub(crate) fn has_unreserved(&self) -> bool {
        self.unreserved.len() > self.tried
    }

    /// Routes that have waited until a key may sign and are tried now.
    pub(crate) fn tried(&self) -> usize {
        self.tried
    }

    /// Queues at most `max` routes that wait until a key may sign, in turn; returns how many.
    pub(crate) fn queue_unreserved(&mut self, max: usize) -> usize {
        let first = self.last_tried.map_or(Bound::Unbounded, Bound::Excluded);
        let behind = self.unreserved.range((first, Bound::Unbounded));
        let before = self.last_tried.into_iter().flat_map(|last| self.unreserved.range(..=last));
        let idle = behind.chain(before).filter(|(_, route)| !route.is_tried).map(|(nlri, _)| *nlri);
        let tried: Vec<Nlri> = idle.take(max).collect();
        for nlri in &tried {
            self.routes.queue(nlri);
            self.unreserved.entry(*nlri).or_default().is_tried = true;
        }
        self.tried += tried.len();
        self.last_tried = tried.last().copied().or(self.last_tried);
        tried.len()
    }

    /// A route does not wait any more until a key may sign; returns what stands of it.
    fn end_wait(&mut self, nlri: &Nlri) -> Option<Arc<Attributes>> {
        let Unreserved { stands, is_tried } = self.unreserved.remove(nlri)?;
        self.tried -= usize::from(is_tried);
        stands
    }

    /// Queues the routes of other ASes, to be checked again before they are signed; of own routes that are signed nothing is
    /// checked.
    pub(crate) fn check_again(&mut self) {
        self.routes.queue_where(|_, route| !is_own_signed(route));
    }

    /// Removes a route; returns when it was due.
    pub(crate) fn remove(&mut self, nlri: &Nlri) -> Option<u64> {
        self.end_wait(nlri);
        self.routes.remove(nlri)
    }

    /// Forgets the result of an unchanged route whose job failed. Returns whether there is such a route.
    pub(crate) fn fail(&mut self, nlri: &Nlri, attributes: &Arc<Attributes>) -> bool {
        let is_unchanged = self.routes.fail(nlri, attributes);
        if is_unchanged {
            self.end_wait(nlri);
        }
        is_unchanged
    }

    /// Removes all routes.
    pub(crate) fn clear(&mut self) {
        self.routes.clear();
        self.unreserved.clear();
        self.tried = 0;
        self.end_of_rib_at = None;
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

    /// Records how a group went out; `attribute` is the attestation's. What was signed for a target or with keys that no longer
    /// hold is not sent, and not recorded as sent.
    ///
    /// Of a route that waits until a key may sign, what was sent before stands as long as it differs in its attestation alone:
    /// then it says what is still true, until it expires. Anything else that changed makes it a claim that nobody makes any
    /// more, so that it is withdrawn, and the route is announced again when the key may sign.
    pub(crate) fn record(
        &mut self,
        signed: &SignedGroup,
        attribute: AttributeCode,
        unix: u64,
        counts: &mut Counts,
    ) -> Recorded {
        let SignedGroup { group: RouteGroup { attributes, routes }, outcome } = signed;
        let mut recorded = Recorded { routes: Vec::new(), withdrawn: Vec::new() };
        let waits = matches!(outcome, SigningOutcome::NotReserved);
        let is_sent = !self.is_stale || waits || matches!(outcome, SigningOutcome::Refused { .. });
        let unattested = waits.then(|| without(attributes, attribute));
        for nlri in routes {
            let Some(route) = self.routes.unchanged(nlri, attributes) else { continue };
            let before = match is_sent {
                true => route.result.replace(outcome.clone()),
                false => route.result.clone(),
            };
            let is_renewed = before.as_ref().and_then(SigningOutcome::renewal).is_some_and(|renewal| renewal <= unix);
            counts.note(outcome, is_renewed);
            recorded.routes.push(*nlri);
            if let Some(unattested) = &unattested {
                let stood = self.end_wait(nlri);
                let (was_sent, sent) = match before {
                    Some(SigningOutcome::Signed { attributes, .. }) => (true, Some(attributes)),
                    // With attributes that are not known any more.
                    Some(
                        SigningOutcome::AsReceived
                        | SigningOutcome::NoRegisteredKey
                        | SigningOutcome::NoPostQuantumKey
                        | SigningOutcome::NotExtended(_),
                    ) => (true, None),
                    _ => (stood.is_some(), stood),
                };
                let stands = sent.filter(|sent| without(sent, attribute) == *unattested);
                recorded.withdrawn.extend((was_sent && stands.is_none()).then_some(*nlri));
                self.unreserved.insert(*nlri, Unreserved { stands, is_tried: false });
            } else if is_sent {
                self.end_wait(nlri);
            }
        }
        recorded
    }

    /// Takes the families whose End-of-RIB may be sent now: behind all routes, those that wait until a key may sign included,
    /// but for these no longer than [`END_OF_RIB_WAIT`].
    pub(crate) fn take_ends_of_rib(&mut self, now: Instant) -> Vec<Afi> {
        if !self.routes.awaits_end_of_rib() {
            self.end_of_rib_at = None;
            return Vec::new();
        }
        if !self.unreserved.is_empty() && now < *self.end_of_rib_at.get_or_insert(now + END_OF_RIB_WAIT) {
            return Vec::new();
        }
        self.routes.take_ends_of_rib()
    }

    /// When End-of-RIB waits no longer.
    pub(crate) fn end_of_rib_deadline(&self, now: Instant) -> Option<Instant> {
        self.end_of_rib_at.filter(|at| *at > now)
    }

    /// Octets of the queue and of the table of routes that wait until a key may sign, and at most.
    pub(crate) fn octets(&self) -> [usize; 2] {
        // A node of the standard library's tree is half full at least.
        const UNRESERVED: usize = 2 * size_of::<(Nlri, Unreserved)>();
        let [octets, most] = self.routes.queue_octets();
        [octets + self.unreserved.len() * UNRESERVED, most + self.routes.iter().len() * UNRESERVED]
    }
}

/// Whether this AS signed the route as its origin.
fn is_own_signed(route: &PendingRoute<SigningOutcome>) -> bool {
    matches!(route.result, Some(SigningOutcome::Signed { origin: true, .. }))
}

/// A route's attributes but the attestation.
fn without(attributes: &Attributes, attribute: AttributeCode) -> Attributes {
    let mut edit = attributes.edit();
    edit.remove(attribute);
    edit.finish()
}

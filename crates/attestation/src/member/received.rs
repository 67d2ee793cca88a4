//! Routes of other members, as the member asks about them, and the bursts in which they are validated.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use wayleave_bgp::{AttributeCode, Attributes, Nlri};
use wayleave_core::{Asn, Instant, VerdictKind};

use super::event::{Finding, RouteId};
use crate::chain::Attestation;
use crate::leaf::Tree;
use crate::pipeline::jobs::{ANNOUNCER_SIGNATURES, PeerSignatures, RouteGroup, Validated, ValidationResults, carried};
use crate::pipeline::policy::{Policy, VerdictClass};
use crate::pipeline::queue::{PeerQueues, Step};
use crate::report::{PrefixReport, Report};
use crate::sign;
use crate::validate::Carried;

/// Routes of one burst, at most, so that no announcer's routes wait long behind another's.
const BURST: usize = 256;
/// Octets of a route besides its attributes and prefixes: its places in the tables and in the schedule, and its hops' reports.
const ROUTE_OCTETS: usize = 1024;
/// The share of the memory that one announcer's routes may take: none of them alone can keep out the others'.
const SHARE: usize = 4;
/// Void tickets that the queues may have beyond twice the routes.
const VOID_TICKETS: usize = 1024;
/// Bursts that are validated at a time, at most: they must not take the pool from signing.
const MAX_BURSTS: usize = 8;

/// A route of another member.
pub(super) struct ReceivedRoute {
    pub(super) announcer: u32,
    pub(super) set: [u8; 32],
    pub(super) prefixes: Vec<Nlri>,
    pub(super) attributes: Arc<Attributes>,
    /// Of each prefix, once it has been validated. A report is of prefixes of this route alone.
    pub(super) reports: Vec<Option<(VerdictClass, Arc<Report>)>>,
    /// What the member got last.
    pub(super) findings: Option<Vec<Finding>>,
    /// When it must be validated again, in seconds since 1970.
    pub(super) due: Option<u64>,
    /// Its place in the queue, while it waits.
    ticket: Option<u64>,
    /// Validating it panicked: it is not used.
    pub(super) has_failed: bool,
}

/// All routes that the member asked about.
pub(super) struct ReceivedRoutes {
    pub(super) routes: HashMap<RouteId, ReceivedRoute>,
    /// By the address of their attributes, which a route holds as long as it is there.
    by_attributes: HashMap<usize, RouteId>,
    /// Tickets and their routes. A ticket counts as long as its route has it.
    pub(super) queues: PeerQueues<(u64, RouteId)>,
    tickets: u64,
    /// Routes that wait.
    waiting: usize,
    /// Octets of all routes, and of each announcer's.
    octets: usize,
    octets_of: BTreeMap<u32, usize>,
    /// Octets that all may take.
    most_octets: usize,
}

/// A burst of routes of one announcer, made under one member set.
pub(super) struct Burst {
    pub(super) announcer: u32,
    pub(super) set: [u8; 32],
    pub(super) groups: Vec<RouteGroup>,
    pub(super) known: PeerSignatures,
    pub(super) alone: bool,
}

fn address(attributes: &Arc<Attributes>) -> usize {
    Arc::as_ptr(attributes) as usize
}

impl ReceivedRoutes {
    pub(super) fn new(most_octets: usize, now: Instant) -> Self {
        let queues = PeerQueues::new(MAX_BURSTS, ANNOUNCER_SIGNATURES, now);
        Self {
            routes: HashMap::new(),
            by_attributes: HashMap::new(),
            queues,
            tickets: 0,
            waiting: 0,
            octets: 0,
            octets_of: BTreeMap::new(),
            most_octets,
        }
    }

    /// Adds a route, to be validated. Returns false if it would take more than there is; then it is not there.
    #[must_use]
    pub(super) fn insert(
        &mut self,
        id: RouteId,
        announcer: u32,
        set: [u8; 32],
        prefixes: Vec<Nlri>,
        attributes: Attributes,
    ) -> bool {
        self.remove(&id);
        let octets = route_octets(&attributes, &prefixes);
        let of_announcer = self.octets_of.get(&announcer).copied().unwrap_or(0);
        if self.octets + octets > self.most_octets || of_announcer + octets > self.most_octets / SHARE {
            return false;
        }
        self.octets += octets;
        *self.octets_of.entry(announcer).or_default() += octets;
        let attributes = Arc::new(attributes);
        self.by_attributes.insert(address(&attributes), id);
        let reports = vec![None; prefixes.len()];
        let route = ReceivedRoute {
            announcer,
            set,
            prefixes,
            attributes,
            reports,
            findings: None,
            due: None,
            ticket: None,
            has_failed: false,
        };
        self.routes.insert(id, route);
        self.queue(&id);
        true
    }

    /// Removes a route; returns when it was due.
    pub(super) fn remove(&mut self, id: &RouteId) -> Option<u64> {
        let route = self.routes.remove(id)?;
        self.by_attributes.remove(&address(&route.attributes));
        let octets = route_octets(&route.attributes, &route.prefixes);
        self.octets -= octets;
        if let Some(of_announcer) = self.octets_of.get_mut(&route.announcer) {
            *of_announcer -= octets;
            if *of_announcer == 0 {
                self.octets_of.remove(&route.announcer);
            }
        }
        self.waiting -= usize::from(route.ticket.is_some());
        // Routes that come and go must not make the queues longer and longer.
        if self.queues.entries() > 2 * self.routes.len() + VOID_TICKETS {
            let routes = &self.routes;
            self.queues.retain(|(ticket, id)| routes.get(id).is_some_and(|route| route.ticket == Some(*ticket)));
        }
        route.due
    }

    /// Queues a known route, unless it waits already.
    pub(super) fn queue(&mut self, id: &RouteId) {
        let Some(route) = self.routes.get_mut(id).filter(|route| route.ticket.is_none()) else { return };
        self.tickets += 1;
        route.ticket = Some(self.tickets);
        self.waiting += 1;
        self.queues.push(route.announcer, (self.tickets, *id));
    }

    pub(super) fn queue_where(&mut self, is_wanted: impl Fn(&ReceivedRoute) -> bool) {
        let mut ids: Vec<RouteId> =
            self.routes.iter().filter(|(_, route)| is_wanted(route)).map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids.iter().for_each(|id| self.queue(id));
    }

    /// Number of routes that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Octets of the routes, with their attributes, reports and findings, and at most.
    pub(super) fn octets(&self) -> [usize; 2] {
        [self.octets, self.most_octets]
    }

    /// Octets of the queues, and at most.
    pub(super) fn queue_octets(&self) -> [usize; 2] {
        let most = 2 * self.routes.len() + VOID_TICKETS + 1;
        // The standard library's queues double.
        [self.queues.entries(), 2 * most].map(|entries| entries * size_of::<(u64, RouteId)>())
    }

    /// The next burst, if one may be validated now. All its routes were announced under one member set. `cost` estimates the
    /// units of a route.
    pub(super) fn next_burst(&mut self, now: Instant, cost: impl Fn(&Attributes) -> u64) -> Option<Burst> {
        let (mut groups, mut of_set) = (Vec::new(), None);
        let (routes, waiting) = (&mut self.routes, &mut self.waiting);
        let step = |(ticket, id): &(u64, RouteId)| {
            let Some(route) = routes.get_mut(id).filter(|route| route.ticket == Some(*ticket)) else {
                return Step::Drop;
            };
            if groups.len() >= BURST || *of_set.get_or_insert(route.set) != route.set {
                return Step::Stop;
            }
            route.ticket = None;
            *waiting -= 1;
            groups.push(RouteGroup { attributes: Arc::clone(&route.attributes), routes: route.prefixes.clone() });
            Step::Take(cost(&route.attributes))
        };
        let next = self.queues.next_burst(now, step)?;
        Some(Burst { announcer: next.peer, set: of_set?, groups, known: next.known, alone: next.alone })
    }

    /// Records the reports of a burst; returns the routes to which they belong.
    pub(super) fn record(
        &mut self,
        announcer: u32,
        validated: ValidationResults,
        failed: &[RouteGroup],
        now: Instant,
    ) -> Vec<RouteId> {
        self.queues.end_burst(announcer, &validated.work, now);
        let mut ids = Vec::new();
        for group in failed {
            let Some(id) = self.by_attributes.get(&address(&group.attributes)).copied() else { continue };
            self.routes.get_mut(&id).into_iter().for_each(|route| route.has_failed = true);
            ids.push(id);
        }
        for Validated { group, classes, report } in validated.groups {
            let Some(id) = self.by_attributes.get(&address(&group.attributes)).copied() else { continue };
            let Some(route) = self.routes.get_mut(&id) else { continue };
            route.has_failed = false;
            // Both are in the route's order; a group may leave some out.
            let mut places = route.prefixes.iter().zip(&mut route.reports);
            for (nlri, class) in group.routes.iter().zip(classes) {
                if let Some((_, place)) = places.find(|(prefix, _)| *prefix == nlri) {
                    *place = Some((class, Arc::clone(&report)));
                }
            }
            if ids.last() != Some(&id) {
                ids.push(id);
            }
        }
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

/// Octets of a route, with its attributes as they came and as policy makes them, its reports and its findings; about.
fn route_octets(attributes: &Attributes, prefixes: &[Nlri]) -> usize {
    let of_prefix = size_of::<(Nlri, Option<(VerdictClass, Arc<Report>)>, Finding, PrefixReport)>();
    2 * attributes.as_octets().len() + prefixes.len() * of_prefix + ROUTE_OCTETS
}

impl ReceivedRoute {
    /// The class of the route to the prefix at `index`.
    pub(super) fn class(&self, index: usize) -> Option<VerdictClass> {
        self.reports.get(index)?.as_ref().map(|(class, _)| *class)
    }

    /// What policy makes of the route, once every prefix has a report. `opened`: its attributes with the receiver's own
    /// opening in the last hop.
    pub(super) fn findings(&self, policy: &Policy, opened: &Attributes) -> Option<Vec<Finding>> {
        // Attributes once for each class: a route may have thousands of prefixes.
        let mut of_class: BTreeMap<VerdictClass, Option<Attributes>> = BTreeMap::new();
        let mut finding = |index: usize| {
            if self.has_failed {
                return Some(Finding { verdict: VerdictKind::Invalid, attributes: None });
            }
            let class = self.class(index)?;
            let attributes = of_class.entry(class).or_insert_with(|| policy.apply(class, opened)).clone();
            Some(Finding { verdict: kind(class), attributes })
        };
        (0..self.prefixes.len()).map(&mut finding).collect()
    }
}

/// A class as the member's ranking and rules take it.
fn kind(class: VerdictClass) -> VerdictKind {
    match class {
        VerdictClass::Valid => VerdictKind::Valid,
        VerdictClass::Gap => VerdictKind::Gap,
        VerdictClass::Unattested | VerdictClass::Aggregate | VerdictClass::Missing => VerdictKind::Unattested,
        VerdictClass::Expired => VerdictKind::Expired,
        VerdictClass::Invalid | VerdictClass::Malformed => VerdictKind::Invalid,
    }
}

/// The route with the receiver's own opening in its last hop, if that is for the members of `directory`: whoever has no
/// directory can go on from there.
pub(super) fn opened(
    attributes: &Attributes,
    code: AttributeCode,
    directory: Option<&Tree>,
    receiver: Asn,
) -> Attributes {
    let Carried::Value(value) = carried(attributes, code) else { return attributes.clone() };
    let written = Attestation::decode(value).ok().zip(directory).and_then(|(attestation, tree)| {
        let written = sign::open(&attestation, tree, receiver)?;
        (written != value).then_some(written)
    });
    let (Some(written), Some(found)) = (written, attributes.get(code)) else { return attributes.clone() };
    let mut edit = attributes.edit();
    edit.remove(code).set(code, found.flags, &written);
    edit.finish()
}

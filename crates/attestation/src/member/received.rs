//! Routes of other members, as the member asks about them, and the bursts in which they are validated.

use std::collections::HashMap;
use std::sync::Arc;

use wayleave_bgp::{AttributeCode, Attributes, Nlri};
use wayleave_core::{Asn, VerdictKind};

use super::event::{Finding, RouteId};
use crate::chain::Attestation;
use crate::leaf::Tree;
use crate::pipeline::jobs::{ANNOUNCER_REPORTS, PeerReports, RouteGroup, Validated, carried};
use crate::pipeline::policy::{Policy, VerdictClass};
use crate::pipeline::queue::{PeerQueues, Step};
use crate::report::Report;
use crate::sign;
use crate::validate::Carried;

/// Routes of one burst, at most, so that no announcer's routes wait long behind another's.
const BURST: usize = 256;
/// Bursts that are validated at a time, at most: they must not take the pool from signing.
const MAX_BURSTS: usize = 8;

/// A route of another member.
pub(super) struct ReceivedRoute {
    pub(super) announcer: u32,
    pub(super) set: u64,
    pub(super) prefixes: Vec<Nlri>,
    pub(super) attributes: Arc<Attributes>,
    /// Of each prefix.
    pub(super) reports: Vec<Option<Arc<Report>>>,
    /// What the member got last.
    pub(super) findings: Option<Vec<Finding>>,
    /// When it must be validated again, in seconds since 1970.
    pub(super) due: Option<u64>,
    queued: bool,
    /// Validating it panicked: it is not used.
    pub(super) has_failed: bool,
}

/// All routes that the member asked about.
pub(super) struct ReceivedRoutes {
    pub(super) routes: HashMap<RouteId, ReceivedRoute>,
    /// By the address of their attributes, which a route holds as long as it is there.
    by_attributes: HashMap<usize, RouteId>,
    queues: PeerQueues<RouteId>,
}

/// A burst of routes of one announcer, made under one member set.
pub(super) struct Burst {
    pub(super) announcer: u32,
    pub(super) set: u64,
    pub(super) groups: Vec<RouteGroup>,
    pub(super) cache: PeerReports,
}

fn address(attributes: &Arc<Attributes>) -> usize {
    Arc::as_ptr(attributes) as usize
}

impl ReceivedRoutes {
    pub(super) fn new() -> Self {
        let queues = PeerQueues::new(MAX_BURSTS, ANNOUNCER_REPORTS);
        Self { routes: HashMap::new(), by_attributes: HashMap::new(), queues }
    }

    pub(super) fn insert(
        &mut self,
        id: RouteId,
        announcer: u32,
        set: u64,
        prefixes: Vec<Nlri>,
        attributes: Attributes,
    ) {
        self.remove(&id);
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
            queued: false,
            has_failed: false,
        };
        self.routes.insert(id, route);
        self.queue(&id);
    }

    /// Removes a route; returns when it was due.
    pub(super) fn remove(&mut self, id: &RouteId) -> Option<u64> {
        let route = self.routes.remove(id)?;
        self.by_attributes.remove(&address(&route.attributes));
        route.due
    }

    /// Queues a known route, unless it waits already.
    pub(super) fn queue(&mut self, id: &RouteId) {
        let Some(route) = self.routes.get_mut(id).filter(|route| !route.queued) else { return };
        route.queued = true;
        self.queues.push(route.announcer, *id);
    }

    pub(super) fn queue_where(&mut self, is_wanted: impl Fn(&ReceivedRoute) -> bool) {
        let mut ids: Vec<RouteId> =
            self.routes.iter().filter(|(_, route)| is_wanted(route)).map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids.iter().for_each(|id| self.queue(id));
    }

    /// Number of routes that wait.
    pub(super) fn waiting(&self) -> usize {
        self.queues.waiting()
    }

    /// The next burst, if one may be validated now. All its routes were announced under one member set.
    pub(super) fn next_burst(&mut self) -> Option<Burst> {
        let (mut groups, mut of_set) = (Vec::new(), None);
        let routes = &mut self.routes;
        let step = |id: &RouteId| {
            // The route may have been withdrawn since it was queued, or withdrawn and announced.
            let Some(route) = routes.get_mut(id).filter(|route| route.queued) else { return Step::Drop };
            if groups.len() >= BURST || *of_set.get_or_insert(route.set) != route.set {
                return Step::Stop;
            }
            route.queued = false;
            groups.push(RouteGroup { attributes: Arc::clone(&route.attributes), routes: route.prefixes.clone() });
            Step::Take
        };
        let (announcer, cache) = self.queues.next_burst(step)?;
        Some(Burst { announcer, set: of_set?, groups, cache })
    }

    /// Records the reports of a burst; returns the routes to which they belong.
    pub(super) fn record(&mut self, announcer: u32, validated: Vec<Validated>, failed: &[RouteGroup]) -> Vec<RouteId> {
        self.queues.end_burst(announcer);
        let mut ids = Vec::new();
        for group in failed {
            let Some(id) = self.by_attributes.get(&address(&group.attributes)).copied() else { continue };
            self.routes.get_mut(&id).into_iter().for_each(|route| route.has_failed = true);
            ids.push(id);
        }
        for Validated { group, report } in validated {
            let Some(id) = self.by_attributes.get(&address(&group.attributes)).copied() else { continue };
            let Some(route) = self.routes.get_mut(&id) else { continue };
            route.has_failed = false;
            for nlri in group.routes {
                let index = route.prefixes.iter().position(|prefix| *prefix == nlri);
                index.into_iter().for_each(|index| route.reports[index] = Some(Arc::clone(&report)));
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

impl ReceivedRoute {
    /// The class of the route to the prefix at `index`.
    pub(super) fn class(&self, index: usize) -> Option<VerdictClass> {
        let report = self.reports.get(index)?.as_ref()?;
        Some(VerdictClass::of(report, &self.prefixes.get(index)?.prefix))
    }

    /// What policy makes of the route, once every prefix has a report. `opened`: its attributes with the receiver's own
    /// opening in the last hop.
    pub(super) fn findings(&self, policy: &Policy, opened: &Attributes) -> Option<Vec<Finding>> {
        let finding = |index: usize| {
            if self.has_failed {
                return Some(Finding { verdict: VerdictKind::Invalid, attributes: None });
            }
            let class = self.class(index)?;
            Some(Finding { verdict: kind(class), attributes: policy.apply(class, opened) })
        };
        (0..self.prefixes.len()).map(finding).collect()
    }
}

/// A class as the member's ranking and rules take it.
fn kind(class: VerdictClass) -> VerdictKind {
    match class {
        VerdictClass::Valid => VerdictKind::Valid,
        VerdictClass::Gap => VerdictKind::Gap,
        VerdictClass::Unattested | VerdictClass::Missing => VerdictKind::Unattested,
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

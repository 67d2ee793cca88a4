//! Routes that stay in the router though the parties lost their objects ([`crate::lost`]).
//!
//! When the parties say that an object is lost, this member takes it out of all that it counts and says, whether it could open it or not.
//! What the router has of it is this member's own affair: a route that is installed stays until the announcer has said what became of it, it
//! is not among what is lost any more, its announcer is removed, or the stale timer has passed since this member heard of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use wayleave_bgp::Attributes;
use wayleave_core::{Instant, Now, Prefix, VerdictKind};

use super::origins::Changed;
use super::receive::OpenRoute;
use super::{Finding, Member, MemberEvent, MemberOutput};
use crate::frames::Candidate;
use crate::object::Handle;
use crate::policy::Imported;
use crate::policy::validate::{Known, for_router, validate_for, validate_known};

/// An installed route whose object is lost.
pub(super) struct KeptRoute {
    handle: Handle,
    /// The places of the prefix in the object, one for each path: the router has one of them, and it is not kept which.
    indices: BTreeSet<u16>,
    open: Arc<OpenRoute>,
    /// What validation found.
    finding: Option<Finding>,
    /// When it was lost.
    since: Instant,
}

/// All of them.
#[derive(Default)]
pub(super) struct KeptRoutes {
    of: BTreeMap<Prefix, KeptRoute>,
    by_candidate: BTreeMap<Candidate, Prefix>,
    by_age: BTreeSet<(Instant, Prefix)>,
}

impl KeptRoutes {
    pub(super) fn len(&self) -> usize {
        self.of.len()
    }

    pub(super) fn contains(&self, prefix: &Prefix) -> bool {
        self.of.contains_key(prefix)
    }

    fn insert(&mut self, prefix: Prefix, route: KeptRoute) {
        self.remove(&prefix);
        self.by_candidate.extend(route.indices.iter().map(|index| ((route.handle, *index), prefix)));
        self.by_age.insert((route.since, prefix));
        self.of.insert(prefix, route);
    }

    fn remove(&mut self, prefix: &Prefix) -> Option<KeptRoute> {
        let route = self.of.remove(prefix)?;
        for index in &route.indices {
            self.by_candidate.remove(&(route.handle, *index));
        }
        self.by_age.remove(&(route.since, *prefix));
        Some(route)
    }

    /// The prefixes for which an object's routes are kept.
    fn of_object(&self, handle: &Handle) -> impl Iterator<Item = Prefix> {
        self.by_candidate.range((*handle, 0)..=(*handle, u16::MAX)).map(|(_, prefix)| *prefix)
    }

    /// Whether a route of an object is kept.
    pub(super) fn has(&self, handle: &Handle) -> bool {
        self.of_object(handle).next().is_some()
    }

    /// Those that another state of the RPKI may decide otherwise.
    pub(super) fn concerned<'a>(&'a self, changed: &'a Changed) -> impl Iterator<Item = Prefix> + 'a {
        let concerned = self.of.iter().filter(|(at, route)| changed.concerns(at, &route.open.attributes.as_path()));
        concerned.map(|(prefix, _)| *prefix)
    }

    pub(super) fn prefixes(&self) -> impl Iterator<Item = Prefix> {
        self.of.keys().copied()
    }

    /// When the first one has stayed for long enough.
    pub(super) fn first(&self) -> Option<Instant> {
        self.by_age.first().map(|(since, _)| *since)
    }
}

impl Member {
    /// The parties have said all that is lost: what the router has of that stays, and nothing else that is not among what lives.
    /// With each, for how many seconds it has been lost.
    pub(super) fn keep_lost(&mut self, lost: &BTreeMap<Candidate, u32>, now: Now) {
        let before = self.kept.len();
        for (candidate @ (handle, index), seconds) in lost {
            let route = self.routes.get(handle);
            let Some(open) = route.and_then(|route| route.opened.clone()) else { continue };
            let Some(nlri) = open.prefixes.get(usize::from(*index)) else { continue };
            let is_installed = self.installed.get(&nlri.prefix).is_some_and(|installed| installed.handle == *handle);
            if !is_installed || self.kept.by_candidate.contains_key(candidate) {
                continue;
            }
            let finding = route.and_then(|route| route.validation.of(usize::from(*index))).cloned();
            let (prefix, handle, index) = (nlri.prefix, *handle, *index);
            let since = now.instant.before(Duration::from_secs((*seconds).into()));
            let mut indices = BTreeSet::from([index]);
            // Another path of the same object to the prefix.
            indices.extend(
                self.kept.remove(&prefix).filter(|kept| kept.handle == handle).iter().flat_map(|kept| &kept.indices),
            );
            self.kept.insert(prefix, KeptRoute { handle, indices, open, finding, since });
        }
        let is_over = |(candidate, _): &(&Candidate, &Prefix)| !lost.contains_key(*candidate);
        let over: Vec<Candidate> =
            self.kept.by_candidate.iter().filter(is_over).map(|(candidate, _)| *candidate).collect();
        over.iter().for_each(|candidate| self.lost_died(candidate));
        if self.kept.len() > before {
            self.event(MemberEvent::Kept { routes: self.kept.len() });
        }
    }

    /// What is installed for a prefix counts by the usual rules again.
    pub(super) fn keep_no_longer(&mut self, prefix: Prefix) {
        let Some(route) = self.kept.remove(&prefix) else { return };
        self.touched.insert(prefix);
        let handle = route.handle;
        if route.finding.is_some() && !self.kept.has(&handle) && !self.routes.contains_key(&handle) {
            self.output.push_back(MemberOutput::Forget { handle });
        }
    }

    /// A result of validation changed of a route that may be kept.
    pub(super) fn on_kept_findings(&mut self, handle: &Handle, findings: &[Finding]) {
        let all: Vec<Prefix> = self.kept.of_object(handle).collect();
        for prefix in all {
            let Some(route) = self.kept.of.get_mut(&prefix) else { continue };
            let first = route.indices.first().copied().unwrap_or_default();
            if let Some(finding) = findings.get(usize::from(first)) {
                route.finding = Some(route.open.with_hops(finding));
                self.touched.insert(prefix);
            }
        }
    }

    /// A prefix of an object is dead.
    pub(super) fn lost_died(&mut self, candidate: &Candidate) {
        let Some(prefix) = self.kept.by_candidate.remove(candidate) else { return };
        let Some(route) = self.kept.of.get_mut(&prefix) else { return };
        route.indices.remove(&candidate.1);
        if route.indices.is_empty() {
            self.keep_no_longer(prefix);
        }
    }

    /// An object has come again.
    pub(super) fn lost_came(&mut self, handle: &Handle) {
        let all: Vec<Prefix> = self.kept.of_object(handle).collect();
        all.into_iter().for_each(|prefix| self.keep_no_longer(prefix));
    }

    /// What has stayed for as long as the stale timer goes.
    pub(super) fn expire_kept(&mut self, now: Now) {
        let is_over = |(since, _): &&(Instant, Prefix)| now.instant.since(*since) >= self.config.stale;
        let over: Vec<Prefix> = self.kept.by_age.iter().take_while(is_over).map(|(_, prefix)| *prefix).collect();
        over.into_iter().for_each(|prefix| self.keep_no_longer(prefix));
    }

    /// Installs a route that is kept as the rules for import are now. `false` if they refuse it, or its announcer was removed: it is kept no
    /// longer.
    pub(super) fn install_kept(&mut self, prefix: Prefix) -> bool {
        let Some(route) = self.kept.of.get(&prefix) else { return false };
        let Some(attributes) = self.kept_attributes(route) else {
            // It is looked at right now.
            self.keep_no_longer(prefix);
            self.touched.remove(&prefix);
            return false;
        };
        let installed = self.installed.get_mut(&prefix).filter(|installed| installed.attributes != attributes);
        if let Some(installed) = installed {
            installed.attributes = attributes.clone();
            self.install_at_router(prefix, &attributes);
        }
        true
    }

    fn kept_attributes(&self, route: &KeptRoute) -> Option<Attributes> {
        let nlri = route.open.prefixes.get(usize::from(*route.indices.first()?))?;
        let set = self.set.as_ref()?;
        let (receiver, announcer) = (set.slot(self.config.slot)?.asn, set.active(route.open.slot)?);
        validate_for(receiver, nlri.prefix, &route.open.attributes, announcer, self.route_rules()).ok()?;
        let known = Known { vrps: self.origins.as_deref(), aspas: self.aspas.as_deref() };
        validate_known(nlri.prefix, &route.open.attributes, announcer, known, self.route_rules()).ok()?;
        let (mut verdict, mut attributes) = (VerdictKind::default(), &route.open.attributes);
        if self.config.validates {
            let finding = route.finding.as_ref()?;
            (verdict, attributes) = (finding.verdict, finding.attributes.as_ref()?);
        }
        match self.policy.import(&route.open.rank_input(nlri, announcer, verdict).route()) {
            Imported::Accepted(changes) => {
                Some(for_router(nlri.prefix.afi(), changes.apply(attributes), self.route_rules()))
            }
            Imported::Rejected(_) => None,
        }
    }
}

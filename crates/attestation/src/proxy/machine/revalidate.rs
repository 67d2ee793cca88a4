//! Routes that are looked at again: what is known, policy or the time has changed, or work on them failed.

use std::sync::Arc;

use wayleave_bgp::Nlri;

use super::Proxy;
use crate::chain::Attestation;
use crate::path::Path;
use crate::pipeline::jobs::{RouteGroup, carried};
use crate::pipeline::pending::FAILED_REST;
use crate::pipeline::policy::Policy;
use crate::pipeline::shared_tree::NeighbourTree;
use crate::pki::View;
use crate::proxy::event::Event;
use crate::proxy::sequences::Said;
use crate::proxy::session_pair::Side;
use crate::report::Report;
use crate::validate::Carried;

impl Proxy {
    pub(super) fn on_view(&mut self, view: Arc<View>) {
        let before = std::mem::replace(&mut self.view, view);
        if before.differs_in_vrps_alone(&self.view) {
            return self.on_vrps(&before);
        }
        let changed = self.keys.register(&self.view, self.config.asn);
        if changed {
            self.roots.iter_mut().for_each(NeighbourTree::forget_signed);
        }
        for place in 0..self.places.len() {
            let is_another = self.name_neighbour(place);
            let at = &mut self.places[place];
            at.incoming.queue_all();
            if changed || is_another {
                at.sign_anew();
            }
        }
    }

    /// Only who may originate what has changed, as it does every few minutes in the RPKI: only routes are looked at again
    /// of which that makes something else.
    fn on_vrps(&mut self, before: &View) {
        let (asn, now) = (self.config.asn, Arc::clone(&self.view));
        for place in &mut self.places {
            let changed: Vec<Nlri> = place
                .incoming
                .iter()
                .filter(|(nlri, entry)| {
                    let path = Path::from_as_path(entry.attributes.as_path());
                    let is_own = path.entries().is_empty() && !path.has_set();
                    let origin = if is_own { Some(asn) } else { path.origin() };
                    let validity = |view: &View| view.origin_validity(&nlri.prefix, origin);
                    validity(before) != validity(&now)
                })
                .map(|(nlri, _)| *nlri)
                .collect();
            changed.iter().for_each(|nlri| place.incoming.queue(nlri));
        }
    }

    pub(super) fn on_policy(&mut self, policy: Policy) {
        self.config.policy = policy;
        for place in 0..self.places.len() {
            let routes: Vec<Nlri> = self.places[place].incoming.iter().map(|(nlri, _)| *nlri).collect();
            routes.into_iter().for_each(|nlri| self.decide(place, nlri));
        }
    }

    /// Looks again at what is due.
    pub(super) fn on_times(&mut self) {
        let unix = self.unix();
        while let Some(&(due, place, side, nlri)) = self.times.first().filter(|(due, ..)| *due <= unix) {
            self.times.remove(&(due, place, side, nlri));
            match side {
                Side::Outside => self.places[place].incoming.queue(&nlri),
                Side::Inside => self.places[place].outgoing.queue(&nlri),
            }
        }
    }

    /// Work on these routes panicked: they go nowhere, and are tried again later.
    pub(super) fn on_failed(&mut self, place: usize, from: Side, groups: Vec<RouteGroup>) {
        if groups.is_empty() {
            return;
        }
        let due = self.unix() + FAILED_REST;
        let mut routes = Vec::new();
        for RouteGroup { attributes, routes: of_group } in groups {
            for nlri in of_group {
                let at = &mut self.places[place];
                let before = match from {
                    Side::Outside => at.incoming.fail(&nlri, &attributes, due),
                    Side::Inside => at.outgoing.fail(&nlri, &attributes, due),
                };
                let Some(before) = before else { continue };
                at.pair.route(from.other(), nlri, None);
                at.counts.failed += 1;
                self.forget_time(place, from, nlri, before);
                self.times.insert((due, place, from, nlri));
                routes.push(nlri);
            }
        }
        let what = if from == Side::Outside { "validating" } else { "signing" };
        self.tell(Event::Failed { pair: place, what, routes });
    }

    /// Tells of an attestation that is older than one which the same origin had sent the same way.
    pub(super) fn compare_sequences(&mut self, place: usize, group: &RouteGroup, report: &Report) {
        let Carried::Value(value) = carried(&group.attributes, self.config.attribute) else { return };
        let Some(origin) = report.hops.first().filter(|hop| hop.proved && report.path_is_proved()) else { return };
        let Ok(attestation) = Attestation::decode(value) else { return };
        let path = Path::from_as_path(group.attributes.as_path());
        let next = path.entries().get(usize::from(origin.prepend)).copied().unwrap_or(self.config.asn);
        let said = Said { origin: origin.asn, next, sequence: attestation.head().sequence, until: origin.not_after };
        for nlri in &group.routes {
            let at = &mut self.places[place];
            if at.incoming.same(nlri, &group.attributes).is_none() {
                continue;
            }
            if let Some(newest) = at.sequences.note(nlri, said) {
                at.counts.older += 1;
                self.tell(Event::Older { pair: place, nlri: *nlri, origin: said.origin, have: said.sequence, newest });
            }
        }
    }
}

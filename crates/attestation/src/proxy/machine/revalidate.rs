//! Schedules validation and signing after a change of keys, policy or time, and after a failed job.

use std::sync::Arc;

use wayleave_bgp::Nlri;

use super::Proxy;
use crate::chain::Attestation;
use crate::path::Path;
use crate::pipeline::RouteEvent;
use crate::pipeline::jobs::{RouteGroup, Validated, carried};
use crate::pipeline::policy::{Policy, VerdictClass};
use crate::pipeline::queue::RETRY_FAILED;
use crate::pki::View;
use crate::proxy::event::Event;
use crate::proxy::sequences::OriginSequence;
use crate::proxy::session_pair::Side;
use crate::validate::Carried;

impl Proxy {
    pub(super) fn on_view(&mut self, view: Arc<View>) {
        let change = self.pipeline.set_view(view);
        self.pipeline.key_use_event().into_iter().for_each(|event| self.notify(Event::Process(event)));
        for index in 0..self.pairs.len() {
            let is_another = self.name_neighbour(index);
            let (pair, pipeline) = (&mut self.pairs[index], &self.pipeline);
            pair.incoming.queue_where(|nlri, route| pipeline.concerns(&change, &nlri.prefix, &route.attributes));
            if change.own_keys || is_another {
                pair.outgoing.sign_all_again();
            } else {
                // Their origins may require other suites now, the check of those of other ASes may come to something else, and
                // what this AS may originate may have changed.
                pair.outgoing
                    .routes
                    .queue_where(|nlri, route| pipeline.concerns(&change, &nlri.prefix, &route.attributes));
            }
        }
    }

    /// A new policy needs no validation of what comes in: it is applied to the classes that are known. Only routes of classes
    /// that are logged from now on are validated again, to say why they have them; and where other classes are rejected, what
    /// goes out is checked again.
    pub(super) fn on_policy(&mut self, policy: Policy) {
        let before = std::mem::replace(&mut self.pipeline.config.policy, policy);
        for index in 0..self.pairs.len() {
            let routes: Vec<Nlri> = self.pairs[index].incoming.iter().map(|(nlri, _)| *nlri).collect();
            routes.into_iter().for_each(|nlri| self.apply_policy(index, nlri));
            let policy = &self.pipeline.config.policy;
            let is_newly_logged = |class: VerdictClass| policy.treatment(class).log && !before.treatment(class).log;
            self.pairs[index].incoming.queue_where(|_, route| route.result.is_some_and(is_newly_logged));
            let is_other = |class: &VerdictClass| policy.treatment(*class).reject != before.treatment(*class).reject;
            if VerdictClass::ALL.iter().any(is_other) {
                self.pairs[index].outgoing.check_again();
            }
        }
    }

    /// Queues the routes that are due.
    pub(super) fn queue_due(&mut self) {
        let unix = self.pipeline.unix();
        while let Some((index, from, nlri)) = self.pipeline.schedule.take_due(unix) {
            match from {
                Side::Outside => self.pairs[index].incoming.queue(&nlri),
                Side::Inside => self.pairs[index].outgoing.routes.queue(&nlri),
            }
        }
    }

    /// A job on these routes panicked: they are withdrawn, and tried again later.
    pub(super) fn on_failed(&mut self, index: usize, from: Side, groups: Vec<RouteGroup>) {
        if groups.is_empty() {
            return;
        }
        let due = self.pipeline.unix() + RETRY_FAILED;
        let mut routes = Vec::new();
        for RouteGroup { attributes, routes: of_group } in groups {
            for nlri in of_group {
                let pair = &mut self.pairs[index];
                let is_unchanged = match from {
                    Side::Outside => pair.incoming.fail(&nlri, &attributes),
                    Side::Inside => pair.outgoing.fail(&nlri, &attributes),
                };
                if !is_unchanged {
                    continue;
                }
                pair.sessions.route(from.other(), nlri, None);
                pair.counts.failed += 1;
                self.reschedule(index, from, nlri, Some(due));
                routes.push(nlri);
            }
        }
        let task = if from == Side::Outside { "validating" } else { "signing" };
        self.notify_of_routes(index, Some(RouteEvent::Failed { task, routes }));
    }

    /// Reports an attestation that is older than one which the same origin had sent the same way.
    pub(super) fn compare_sequences(&mut self, index: usize, Validated { group, report, .. }: &Validated) {
        let Carried::Value(value) = carried(&group.attributes, self.pipeline.config.attribute) else { return };
        let Some(origin) = report.hops.first().filter(|hop| hop.proved && report.path_is_proved()) else { return };
        let Ok(attestation) = Attestation::decode(value) else { return };
        let path = Path::from_as_path(group.attributes.as_path());
        let next = path.entries().get(usize::from(origin.prepend)).copied().unwrap_or(self.pipeline.config.asn);
        let sequence = attestation.head().sequence;
        let of_origin = OriginSequence { origin: origin.asn, next, sequence, until: origin.not_after };
        for nlri in &group.routes {
            let pair = &mut self.pairs[index];
            if pair.incoming.unchanged(nlri, &group.attributes).is_none() {
                continue;
            }
            if let Some(newest) = pair.sequences.note(nlri, of_origin) {
                pair.counts.older += 1;
                self.notify(Event::Older { pair: index, nlri: *nlri, origin: origin.asn, have: sequence, newest });
            }
        }
    }
}

//! The router's own announcements: validated as they were received, then signed for all members.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::{Asn, Prefix};

use crate::cache::Cache;
use crate::path::Path;
use crate::pipeline::jobs::{Outcome, RouteGroup, Sign, Signed, carried, guarded, split, without};
use crate::pipeline::policy::{Policy, VerdictClass};
use crate::pki::View;
use crate::report::Report;
use crate::validate::{Clock, Context, Route, Rules};

/// A burst of announcements.
pub(super) struct Outward {
    /// Of what the router hands in.
    pub(super) cache: Arc<Mutex<Cache>>,
    pub(super) view: Arc<View>,
    pub(super) rules: Rules,
    pub(super) clock: Clock,
    pub(super) policy: Policy,
    /// Signs what passes; without keys nothing is signed.
    pub(super) sign: Option<Sign>,
    pub(super) asn: Asn,
    pub(super) attribute: wayleave_bgp::AttributeCode,
    /// How routes with these attributes went out, if that still holds.
    pub(super) known: HashMap<Arc<Attributes>, Outcome>,
    pub(super) groups: Vec<RouteGroup>,
}

/// What became of a burst.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    pub(super) went: Vec<Went>,
    /// When what was found of routes of others that are not refused must be looked at again, in seconds since 1970.
    pub(super) until: HashMap<Nlri, u64>,
}

/// What became of routes.
#[derive(Debug)]
pub(super) enum Went {
    /// They go out so.
    Out(Signed),
    /// They do not: policy rejects what was found of them.
    Refused(RouteGroup, VerdictClass, Arc<Report>),
    /// They are to be signed.
    Passed(RouteGroup),
}

impl Outward {
    /// What became of the routes, and the groups on which the work panicked.
    pub(super) fn run(mut self) -> (Outcomes, Vec<RouteGroup>) {
        let groups = std::mem::take(&mut self.groups);
        let mut until = HashMap::new();
        let (checked, mut failed) = guarded(groups, |groups| self.check(groups, &mut until));
        let (mut went, mut to_sign) = (Vec::new(), Vec::new());
        for checked in checked {
            match checked {
                Went::Passed(group) => to_sign.push(group),
                decided => went.push(decided),
            }
        }
        match self.sign {
            Some(mut sign) => {
                sign.groups = to_sign;
                let (signed, more) = sign.run();
                went.extend(signed.into_iter().map(Went::Out));
                failed.extend(more);
            }
            None => {
                let as_they_came = |group| Went::Out(Signed { group, outcome: Outcome::AsTheyCame });
                went.extend(to_sign.into_iter().map(as_they_came));
            }
        }
        (Outcomes { went, until }, failed)
    }

    /// What of the groups is refused, what goes out as before, and what is to be signed.
    fn check(&self, groups: Vec<RouteGroup>, until: &mut HashMap<Nlri, u64>) -> Vec<Went> {
        let groups: Vec<RouteGroup> = groups.into_iter().flat_map(|group| split(group, self.attribute)).collect();
        let reports = self.validate(&groups);
        let mut went = Vec::new();
        for (mut group, report) in groups.into_iter().zip(reports) {
            if let Some(report) = report {
                let refused = self.refused(&mut group, &report);
                went.extend(refused.into_iter().map(|(group, class)| Went::Refused(group, class, Arc::clone(&report))));
                let stays = report.until.map(|until| group.routes.iter().map(move |nlri| (*nlri, until.secs())));
                until.extend(stays.into_iter().flatten());
            }
            if !group.routes.is_empty() {
                let known = self.known.get(&group.attributes).cloned();
                went.push(match known {
                    Some(outcome) => Went::Out(Signed { group, outcome }),
                    None => Went::Passed(group),
                });
            }
        }
        went
    }

    /// What is found of each group as this AS received it; of its own routes nothing.
    fn validate(&self, groups: &[RouteGroup]) -> Vec<Option<Arc<Report>>> {
        let parts: Vec<Option<(Path, Vec<Prefix>)>> = groups
            .iter()
            .map(|group| {
                let path = Path::from_as_path(group.attributes.as_path());
                let (received, prepend) = without(&path, self.asn);
                let is_foreign = prepend > 0 && !path.has_set() && !received.entries().is_empty();
                is_foreign.then(|| (received, group.routes.iter().map(|nlri| nlri.prefix).collect()))
            })
            .collect();
        let routes: Vec<Route<'_>> = groups
            .iter()
            .zip(&parts)
            .filter_map(|(group, part)| {
                let (path, prefixes) = part.as_ref()?;
                let carried = carried(&group.attributes, self.attribute);
                Some(Route { prefixes, path, carried, receiver: self.asn })
            })
            .collect();
        let context = Context { view: &self.view, rules: &self.rules, clock: self.clock, directories: &[] };
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reports = cache.validate_burst(&context, &routes).into_iter();
        parts.iter().map(|part| part.as_ref().and_then(|_| reports.next())).collect()
    }

    /// Takes the routes that policy rejects out of a group, by class.
    fn refused(&self, group: &mut RouteGroup, report: &Report) -> Vec<(RouteGroup, VerdictClass)> {
        let mut refused: Vec<(RouteGroup, VerdictClass)> = Vec::new();
        group.routes.retain(|nlri| {
            let class = VerdictClass::of(report, &nlri.prefix);
            if !self.policy.treatment(class).reject {
                return true;
            }
            match refused.iter_mut().find(|(_, of)| *of == class) {
                Some((group, _)) => group.routes.push(*nlri),
                None => {
                    let routes = vec![*nlri];
                    refused.push((RouteGroup { attributes: Arc::clone(&group.attributes), routes }, class));
                }
            }
            false
        });
        refused
    }
}

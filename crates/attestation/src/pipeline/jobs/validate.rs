//! Validation in bursts: of what peers announce, and of routes of other ASes before they are signed.

use std::sync::{Arc, Mutex, PoisonError};

use wayleave_bgp::AttributeCode;
use wayleave_core::{Asn, Prefix};

use super::{RouteGroup, SigningOutcome, carried, guarded, received_path};
use crate::cache::ReportCache;
use crate::leaf::Tree;
use crate::path::Path;
use crate::pipeline::policy::{Policy, VerdictClass};
use crate::pki::View;
use crate::report::Report;
use crate::validate::{Clock, Context, Route, Rules};

/// Reports that are kept of a BGP peer, and of an announcer at an exchange: of the latter there are hundreds.
pub(crate) const PEER_REPORTS: usize = 65_536;
pub(crate) const ANNOUNCER_REPORTS: usize = 16_384;

/// The reports of earlier validations of one peer. One job at a time uses it.
pub(crate) type PeerReports = Arc<Mutex<ReportCache>>;

/// An empty cache for so many reports.
pub(crate) fn peer_reports(reports: usize) -> PeerReports {
    Arc::new(Mutex::new(ReportCache::new(reports)))
}

/// All that a verdict depends on besides the route, as it was when the job was made.
pub(crate) struct Validator {
    pub(crate) cache: PeerReports,
    pub(crate) view: Arc<View>,
    pub(crate) rules: Rules,
    pub(crate) clock: Clock,
    /// The exchanges' directories, where a hop may be for their members.
    pub(crate) directories: Arc<Vec<Tree>>,
    pub(crate) attribute: AttributeCode,
    pub(crate) receiver: Asn,
}

impl Validator {
    /// Validates the groups in one burst, each with its path as it was received; nothing is validated where that is
    /// `None`.
    fn reports(&self, groups: &[RouteGroup], paths: &[Option<Path>]) -> Vec<Option<Arc<Report>>> {
        let prefixes: Vec<Vec<Prefix>> = groups.iter().map(RouteGroup::prefixes).collect();
        let routes: Vec<Route<'_>> = groups
            .iter()
            .zip(paths)
            .zip(&prefixes)
            .filter_map(|((group, path), prefixes)| {
                let carried = carried(&group.attributes, self.attribute);
                Some(Route { prefixes, path: path.as_ref()?, carried, receiver: self.receiver })
            })
            .collect();
        let context =
            Context { view: &self.view, rules: &self.rules, clock: self.clock, directories: &self.directories };
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reports = cache.validate_burst(&context, &routes).into_iter();
        paths.iter().map(|path| path.as_ref().and_then(|_| reports.next())).collect()
    }
}

/// Routes of one peer to be validated.
pub(crate) struct ValidationJob {
    pub(crate) validator: Validator,
    pub(crate) groups: Vec<RouteGroup>,
}

/// Routes with the same attributes, and their report.
#[derive(Debug)]
pub(crate) struct Validated {
    pub(crate) group: RouteGroup,
    pub(crate) report: Arc<Report>,
}

impl ValidationJob {
    /// The reports, and the groups on which validation panicked.
    pub(crate) fn run(mut self) -> (Vec<Validated>, Vec<RouteGroup>) {
        guarded(std::mem::take(&mut self.groups), |groups| self.validate(groups))
    }

    fn validate(&self, groups: Vec<RouteGroup>) -> Vec<Validated> {
        let attribute = self.validator.attribute;
        let groups: Vec<RouteGroup> = groups.into_iter().flat_map(|group| group.split_by_exports(attribute)).collect();
        let paths: Vec<Option<Path>> =
            groups.iter().map(|group| Some(Path::from_as_path(group.attributes.as_path()))).collect();
        let reports = self.validator.reports(&groups, &paths).into_iter();
        groups
            .into_iter()
            .zip(reports)
            .filter_map(|(group, report)| Some(Validated { group, report: report? }))
            .collect()
    }
}

/// The check of routes before they are signed: those of other ASes are validated as this AS received them, since an AS
/// that signs after a false hop vouches for it.
pub(crate) struct PolicyCheck {
    pub(crate) validator: Validator,
    pub(crate) policy: Policy,
}

/// What a [`PolicyCheck`] lets pass, and what it refuses.
pub(crate) enum Checked {
    /// Routes to be signed, and until when their report holds.
    Passed(RouteGroup, Option<u64>),
    Refused(RouteGroup, SigningOutcome),
}

impl PolicyCheck {
    pub(crate) fn check(&self, groups: Vec<RouteGroup>) -> Vec<Checked> {
        let Validator { attribute, receiver, .. } = self.validator;
        let groups: Vec<RouteGroup> = groups.into_iter().flat_map(|group| group.split_by_exports(attribute)).collect();
        let paths: Vec<Option<Path>> = groups.iter().map(|group| foreign_path(group, receiver)).collect();
        let reports = self.validator.reports(&groups, &paths);
        let mut checked = Vec::new();
        for (group, report) in groups.into_iter().zip(reports) {
            match report {
                Some(report) => self.apply(&group, &report, &mut checked),
                None => checked.push(Checked::Passed(group, None)),
            }
        }
        checked
    }

    /// Sorts the routes of a group by what policy makes of their classes.
    fn apply(&self, group: &RouteGroup, report: &Arc<Report>, checked: &mut Vec<Checked>) {
        for class in VerdictClass::ALL {
            let is_of_class = |prefix: &Prefix| VerdictClass::of(report, prefix) == class;
            let routes: Vec<_> = group.routes.iter().copied().filter(|nlri| is_of_class(&nlri.prefix)).collect();
            if !routes.is_empty() && self.policy.treatment(class).reject {
                let outcome = SigningOutcome::Refused { class, report: Arc::clone(report) };
                checked.push(Checked::Refused(group.part(routes), outcome));
            }
        }
        let is_rejected = |prefix: &Prefix| self.policy.treatment(VerdictClass::of(report, prefix)).reject;
        let passed: Vec<_> = group.routes.iter().copied().filter(|nlri| !is_rejected(&nlri.prefix)).collect();
        if !passed.is_empty() {
            checked.push(Checked::Passed(group.part(passed), report.until.map(|until| until.secs())));
        }
    }
}

/// The path of a route of another AS as `asn` received it; `None` for its own routes, and for those that it does not sign.
fn foreign_path(group: &RouteGroup, asn: Asn) -> Option<Path> {
    let path = Path::from_as_path(group.attributes.as_path());
    let (received, prepend) = received_path(&path, asn);
    let is_foreign = prepend > 0 && !path.has_set() && !received.entries().is_empty();
    is_foreign.then_some(received)
}

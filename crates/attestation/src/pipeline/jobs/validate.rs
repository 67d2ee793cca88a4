//! Validation in bursts: of what peers announce, and of routes of other ASes before they are signed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use wayleave_bgp::{AttributeCode, Nlri};
use wayleave_core::{Asn, Prefix};

use super::{RouteGroup, SigningOutcome, carried, guarded, received_path};
use crate::cache::{KnownSignatures, SignatureHash, VerifiedSignatures};
use crate::leaf::Tree;
use crate::path::Path;
use crate::pipeline::policy::{Policy, VerdictClass};
use crate::pki::View;
use crate::report::Report;
use crate::validate::{Clock, Context, Route, Rules, VerificationWork, validate_burst_knowing};

/// Octets of the cache of right signatures of a BGP peer, and of an announcer at an exchange: of the latter there are hundreds.
pub(crate) const PEER_SIGNATURES: usize = 9 << 20;
pub(crate) const ANNOUNCER_SIGNATURES: usize = 9 << 16;

/// The right signatures of one peer's routes: no other peer can push them out. One job at a time uses it.
#[derive(Clone, Debug)]
pub(crate) struct PeerSignatures {
    known: Arc<Mutex<VerifiedSignatures>>,
    limit: usize,
}

impl PeerSignatures {
    /// An empty cache of at most so many octets.
    pub(crate) fn new(octets: usize) -> Self {
        let known = VerifiedSignatures::new(octets);
        Self { limit: known.limit(), known: Arc::new(Mutex::new(known)) }
    }

    /// Octets that it takes at most.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Works on the cache, unless a job does: the machine does not wait for jobs.
    pub(crate) fn if_idle<T>(&self, work: impl FnOnce(&mut VerifiedSignatures) -> T) -> Option<T> {
        match self.known.try_lock() {
            Ok(mut known) => Some(work(&mut known)),
            Err(std::sync::TryLockError::Poisoned(known)) => Some(work(&mut known.into_inner())),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }
}

/// A cache, and others in which is looked what it does not have.
struct WithOthers<'a> {
    own: &'a mut VerifiedSignatures,
    others: &'a [PeerSignatures],
}

impl KnownSignatures for WithOthers<'_> {
    fn contains(&mut self, signature: &SignatureHash) -> bool {
        // One that another job has is passed over: verifying again costs less than waiting for its end.
        self.own.contains(signature)
            || self.others.iter().any(|other| other.if_idle(|known| known.has(signature)) == Some(true))
    }

    fn insert(&mut self, signature: SignatureHash) {
        self.own.insert(signature);
    }
}

/// All that a verdict depends on besides the route, as it was when the job was made.
pub(crate) struct Validator {
    pub(crate) known: PeerSignatures,
    /// Caches of others, where a route may have been verified when it came in.
    pub(crate) others: Vec<PeerSignatures>,
    /// Whether each signature is verified by itself: the peer has sent many that are wrong.
    pub(crate) alone: bool,
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
    fn reports(
        &self,
        groups: &[RouteGroup],
        paths: &[Option<Path>],
        alone: bool,
    ) -> (Vec<Option<Arc<Report>>>, VerificationWork) {
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
        let mut own = self.known.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = WithOthers { own: &mut own, others: &self.others };
        let (reports, work) = validate_burst_knowing(&context, &routes, &mut known, alone);
        let mut reports = reports.into_iter().map(Arc::new);
        (paths.iter().map(|path| path.as_ref().and_then(|_| reports.next())).collect(), work)
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
    /// The class of each route.
    pub(crate) classes: Vec<VerdictClass>,
    pub(crate) report: Arc<Report>,
}

/// What a [`ValidationJob`] came to.
#[derive(Debug, Default)]
pub(crate) struct ValidationResults {
    pub(crate) groups: Vec<Validated>,
    pub(crate) work: VerificationWork,
}

impl ValidationJob {
    /// The reports, and the groups on which validation panicked.
    pub(crate) fn run(mut self) -> (ValidationResults, Vec<RouteGroup>) {
        let mut work = VerificationWork::default();
        let (groups, failed) = guarded(std::mem::take(&mut self.groups), |groups| self.validate(groups, &mut work));
        (ValidationResults { groups, work }, failed)
    }

    fn validate(&self, groups: Vec<RouteGroup>, work: &mut VerificationWork) -> Vec<Validated> {
        let attribute = self.validator.attribute;
        let groups: Vec<RouteGroup> = groups.into_iter().flat_map(|group| group.split_by_exports(attribute)).collect();
        let paths: Vec<Option<Path>> =
            groups.iter().map(|group| Some(Path::from_as_path(group.attributes.as_path()))).collect();
        let (reports, done) = self.validator.reports(&groups, &paths, self.validator.alone);
        *work += done;
        groups
            .into_iter()
            .zip(reports)
            .filter_map(|(group, report)| {
                let report = report?;
                Some(Validated { group, classes: VerdictClass::of_all(&report), report })
            })
            .collect()
    }
}

/// The check of routes before they are signed: those of other ASes are validated as this AS received them, since an AS
/// that signs after a false hop vouches for it.
pub(crate) struct PolicyCheck {
    pub(crate) validator: Validator,
    pub(crate) policy: Policy,
    /// Sources of which each signature is verified by itself: they have sent many that are wrong.
    pub(crate) alone: BTreeSet<usize>,
}

/// What a [`PolicyCheck`] lets pass, and what it refuses.
pub(crate) enum Checked {
    /// Routes to be signed, and until when their report holds.
    Passed(RouteGroup, Option<u64>),
    Refused(RouteGroup, SigningOutcome),
}

impl PolicyCheck {
    pub(crate) fn check(&self, groups: Vec<RouteGroup>, alone: bool, work: &mut VerificationWork) -> Vec<Checked> {
        let Validator { attribute, receiver, .. } = self.validator;
        let groups: Vec<RouteGroup> = groups.into_iter().flat_map(|group| group.split_by_exports(attribute)).collect();
        let refuses_aggregates = self.policy.treatment(VerdictClass::Aggregate).reject;
        let path = |group: &RouteGroup| {
            let aggregate = || refuses_aggregates.then(|| aggregate_path(group)).flatten();
            foreign_path(group, receiver).or_else(aggregate)
        };
        let paths: Vec<Option<Path>> = groups.iter().map(path).collect();
        let (reports, done) = self.validator.reports(&groups, &paths, alone);
        *work += done;
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
        let mut refused: BTreeMap<VerdictClass, Vec<Nlri>> = BTreeMap::new();
        let mut passed = Vec::new();
        let is_aggregate = aggregate_path(group).is_some();
        for (nlri, class) in group.routes.iter().zip(VerdictClass::of_all(report)) {
            let class = if is_aggregate { VerdictClass::Aggregate } else { class };
            match self.policy.treatment(class).reject {
                true => refused.entry(class).or_default().push(*nlri),
                false => passed.push(*nlri),
            }
        }
        // A refused route keeps the report, and must not keep what it says of other routes.
        let reason = Arc::new(report.without_prefixes());
        for (class, routes) in refused {
            let outcome = SigningOutcome::Refused { class, report: Arc::clone(&reason) };
            checked.push(Checked::Refused(group.part(routes), outcome));
        }
        if !passed.is_empty() {
            checked.push(Checked::Passed(group.part(passed), report.until.map(|until| until.secs())));
        }
    }
}

/// The path of a route with an AS_SET, which must not be sent on, whoever made the set (RFC 9774 section 3).
fn aggregate_path(group: &RouteGroup) -> Option<Path> {
    Some(Path::from_as_path(group.attributes.as_path())).filter(Path::has_set)
}

/// The path of a route of another AS as `asn` received it; `None` for its own routes, and for those that it does not sign.
fn foreign_path(group: &RouteGroup, asn: Asn) -> Option<Path> {
    let path = Path::from_as_path(group.attributes.as_path());
    let (received, prepend) = received_path(&path, asn);
    let is_foreign = prepend > 0 && !path.has_set() && !received.entries().is_empty();
    is_foreign.then_some(received)
}

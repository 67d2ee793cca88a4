//! What takes time: validating and signing in bursts, as values that a pool of threads runs and hands back.

mod sign;
mod validate;

use std::sync::Arc;

use wayleave_bgp::{AttributeCode, Attributes, Nlri};
use wayleave_core::{Asn, Prefix, contained};

pub(crate) use self::sign::{
    RouteSigner, SignedGroup, SigningJob, SigningOutcome, SigningResults, Target, TargetRoutes,
};
pub(crate) use self::validate::{
    ANNOUNCER_SIGNATURES, PEER_SIGNATURES, PeerSignatures, PolicyCheck, Validated, ValidationJob, ValidationResults,
    Validator,
};
use super::keys::SharedKeyRing;
use crate::chain::Attestation;
use crate::path::Path;
use crate::validate::Carried;

/// Routes with the same attributes.
#[derive(Clone, Debug)]
pub(crate) struct RouteGroup {
    pub(crate) attributes: Arc<Attributes>,
    pub(crate) routes: Vec<Nlri>,
}

impl RouteGroup {
    pub(crate) fn prefixes(&self) -> Vec<Prefix> {
        self.routes.iter().map(|nlri| nlri.prefix).collect()
    }

    /// Some of its routes.
    pub(crate) fn part(&self, routes: Vec<Nlri>) -> RouteGroup {
        RouteGroup { attributes: Arc::clone(&self.attributes), routes }
    }

    /// Separates the routes that the attestation passes on from the others: a prefix that is not attested is a fault of its
    /// own, and must not make the others invalid. Each of the others is alone, so that the report names its prefix.
    pub(crate) fn split_by_exports(self, attribute: AttributeCode) -> Vec<RouteGroup> {
        let Carried::Value(value) = carried(&self.attributes, attribute) else { return vec![self] };
        let Ok(attestation) = Attestation::decode(value) else { return vec![self] };
        let (exported, others): (Vec<Nlri>, Vec<Nlri>) =
            self.routes.iter().partition(|nlri| attestation.is_exported(&nlri.prefix));
        let others = others.into_iter().map(|nlri| self.part(vec![nlri]));
        (!exported.is_empty()).then(|| self.part(exported.clone())).into_iter().chain(others).collect()
    }
}

/// The attestation as the UPDATE carried it. `Attributes` keeps the first of several (RFC 7606 section 3 (g)).
pub(crate) fn carried(attributes: &Attributes, code: AttributeCode) -> Carried<'_> {
    match attributes.get(code) {
        None => Carried::Absent,
        Some(found) if found.flags.is_optional() && found.flags.is_transitive() => Carried::Value(found.value),
        Some(_) => Carried::Malformed,
    }
}

/// Octets of a carried attestation.
pub(crate) fn carried_octets(attributes: &Attributes, code: AttributeCode) -> usize {
    match carried(attributes, code) {
        Carried::Value(value) => value.len(),
        Carried::Absent | Carried::Malformed => 0,
    }
}

/// The path as `asn` received it, and how many times it has prepended itself since.
pub(crate) fn received_path(path: &Path, asn: Asn) -> (Path, u8) {
    let entries = path.entries();
    let own = entries.iter().rev().take_while(|entry| **entry == asn).count();
    let received = Path::from_travel(&entries[..entries.len() - own]);
    (received, u8::try_from(own).unwrap_or(0))
}

/// Work for a pool of threads. Its driver runs it on any thread and returns the [`JobResult`] to the machine.
pub struct Job {
    /// The pair, or the announcer's slot, whose routes these are.
    pub(crate) source: usize,
    pub(crate) kind: JobKind,
}

pub(crate) enum JobKind {
    Validate(ValidationJob),
    Sign(SigningJob),
    /// Few-time keys, by index in the ring, compute what their signatures in these slots need.
    MakeKeysAhead(SharedKeyRing, Vec<(usize, u64)>),
}

/// What a [`Job`] came to.
#[derive(Debug)]
pub struct JobResult {
    pub(crate) source: usize,
    pub(crate) results: Results,
    /// Groups on which a validation panicked.
    pub(crate) failed: Vec<RouteGroup>,
}

#[derive(Debug)]
pub(crate) enum Results {
    Validated(ValidationResults),
    /// For each target.
    Signed(Vec<SigningResults>),
    /// Whether the keys are ready.
    KeysMade(bool),
}

impl Job {
    /// Runs the job; takes as long as its signatures do. A panic inside is caught, and comes back with the routes that
    /// caused it.
    #[must_use]
    pub fn run(self) -> JobResult {
        let (results, failed) = match self.kind {
            JobKind::Validate(job) => {
                let (validated, failed) = job.run();
                (Results::Validated(validated), failed)
            }
            JobKind::Sign(job) => (Results::Signed(job.run()), Vec::new()),
            JobKind::MakeKeysAhead(ring, slots) => (Results::KeysMade(ring.make_ahead(&slots)), Vec::new()),
        };
        JobResult { source: self.source, results, failed }
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            JobKind::Validate(_) => "validate",
            JobKind::Sign(_) => "sign",
            JobKind::MakeKeysAhead(..) => "make keys ahead",
        };
        f.debug_struct("Job").field("source", &self.source).field("kind", &kind).finish()
    }
}

/// Runs `task` on all groups together and, where it panics, on each group alone: the fault of one route must not hold up
/// the others. Returns the results, and the groups that panicked alone.
pub(crate) fn guarded<G: Clone, T>(groups: Vec<G>, mut task: impl FnMut(Vec<G>) -> Vec<T>) -> (Vec<T>, Vec<G>) {
    let mut run = |groups: Vec<G>| contained(|| task(groups));
    if let Some(results) = run(groups.clone()) {
        return (results, Vec::new());
    }
    let (mut results, mut failed) = (Vec::new(), Vec::new());
    for group in groups {
        match run(vec![group.clone()]) {
            Some(of_group) => results.extend(of_group),
            None => failed.push(group),
        }
    }
    (results, failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wayleave_bgp::Origin;

    #[test]
    fn what_panics_in_a_burst_comes_back_alone() {
        let group = |number: u8| {
            let prefix = Prefix::new([10, number, 0, 0].into(), 16).expect("a prefix");
            let attributes = Arc::new(Attributes::builder().origin(Origin::Igp).finish());
            RouteGroup { attributes, routes: vec![Nlri { prefix, path_id: 0 }] }
        };
        let bad = group(3).routes[0];
        let (results, failed) = guarded((0..8).map(group).collect(), |groups: Vec<RouteGroup>| {
            let routes: Vec<Nlri> = groups.into_iter().flat_map(|group| group.routes).collect();
            assert!(!routes.contains(&bad), "this one");
            routes
        });
        assert_eq!(results.len(), 7);
        assert!(!results.contains(&bad));
        assert_eq!(failed.len(), 1);
        assert_eq!(failed[0].routes, [bad]);
    }
}

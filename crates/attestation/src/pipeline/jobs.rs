//! What takes time: validating and signing in bursts, as values that a pool of threads runs and hands back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use wayleave_bgp::{AttributeCode, AttributeFlags, Attributes, Nlri};
use wayleave_core::{Asn, Prefix};
use wayleave_crypto::hash::hash;

use super::keys::Ring;
use super::shared_tree::{Kept, Shared};
use crate::attest::{self, AttestError, Attested, KeyRing, Onward, Origination, Speaker};
use crate::cache::Cache;
use crate::chain::Attestation;
use crate::leaf::{Leaf, Tree};
use crate::path::Path;
use crate::pki::View;
use crate::report::Report;
use crate::suite::SignError;
use crate::validate::{Carried, Clock, Context, Route, Rules};

/// Routes with the same attributes.
#[derive(Clone, Debug)]
pub(crate) struct RouteGroup {
    pub(crate) attributes: Arc<Attributes>,
    pub(crate) routes: Vec<Nlri>,
}

impl RouteGroup {
    fn prefixes(&self) -> Vec<Prefix> {
        self.routes.iter().map(|nlri| nlri.prefix).collect()
    }
}

/// Routes of one peer to be validated.
pub(crate) struct Validate {
    pub(crate) cache: Arc<Mutex<Cache>>,
    pub(crate) view: Arc<View>,
    pub(crate) rules: Rules,
    pub(crate) clock: Clock,
    pub(crate) directories: Arc<Vec<Tree>>,
    pub(crate) attribute: AttributeCode,
    pub(crate) receiver: Asn,
    pub(crate) groups: Vec<RouteGroup>,
}

/// Routes with the same attributes, and what was found of them.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) group: RouteGroup,
    pub(crate) report: Arc<Report>,
}

/// The attestation as the UPDATE carried it. `Attributes` holds the first of several.
pub(crate) fn carried(attributes: &Attributes, code: AttributeCode) -> Carried<'_> {
    match attributes.get(code) {
        None => Carried::Absent,
        Some(found) if found.flags.is_optional() && found.flags.is_transitive() => Carried::Value(found.value),
        Some(_) => Carried::Malformed,
    }
}

impl Validate {
    /// The reports, and the groups on which the work panicked.
    pub(crate) fn run(mut self) -> (Vec<Judged>, Vec<RouteGroup>) {
        guarded(std::mem::take(&mut self.groups), |groups| self.judge(groups))
    }

    fn judge(&self, groups: Vec<RouteGroup>) -> Vec<Judged> {
        let groups: Vec<RouteGroup> = groups.into_iter().flat_map(|group| split(group, self.attribute)).collect();
        let parts: Vec<(Path, Vec<Prefix>)> =
            groups.iter().map(|group| (Path::from_as_path(group.attributes.as_path()), group.prefixes())).collect();
        let routes: Vec<Route<'_>> = groups
            .iter()
            .zip(&parts)
            .map(|(group, (path, prefixes))| Route {
                prefixes,
                path,
                carried: carried(&group.attributes, self.attribute),
                receiver: self.receiver,
            })
            .collect();
        let context =
            Context { view: &self.view, rules: &self.rules, clock: self.clock, directories: &self.directories };
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let reports = cache.validate_burst(&context, &routes);
        groups.into_iter().zip(reports).map(|(group, report)| Judged { group, report }).collect()
    }
}

/// Routes of the signed list, and those beside it: one that is not signed for must not speak for the others.
pub(crate) fn split(group: RouteGroup, attribute: AttributeCode) -> Vec<RouteGroup> {
    let Carried::Value(value) = carried(&group.attributes, attribute) else { return vec![group] };
    let Ok(attestation) = Attestation::decode(value) else { return vec![group] };
    let (listed, others): (Vec<Nlri>, Vec<Nlri>) =
        group.routes.iter().partition(|nlri| attestation.covers(&nlri.prefix));
    let part = |routes: Vec<Nlri>| RouteGroup { attributes: Arc::clone(&group.attributes), routes };
    // Each alone: the fault names its prefix.
    let others = others.into_iter().map(|nlri| part(vec![nlri]));
    (!listed.is_empty()).then(|| part(listed.clone())).into_iter().chain(others).collect()
}

/// For whom routes are signed.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// One neighbour, and what we say of it.
    Neighbour(Asn, Leaf),
    /// One neighbour of many, for all of which one signature does.
    Root(Asn, Leaf, Shared),
    /// All members of an exchange.
    Directory(Arc<Tree>),
}

impl Target {
    fn onward(&self) -> Onward<'_> {
        match self {
            Target::Neighbour(asn, leaf) => Onward::Neighbour(*asn, leaf.view()),
            Target::Root(_, _, shared) => Onward::Tree(&shared.tree),
            Target::Directory(tree) => Onward::Tree(tree),
        }
    }

    /// The value that it gets.
    fn value(&self, attested: &Attested<'_>) -> Vec<u8> {
        let value = match self {
            Target::Neighbour(asn, _) | Target::Root(asn, ..) => attested.for_neighbour(*asn),
            Target::Directory(_) => attested.for_directory(),
        };
        value.unwrap_or_default()
    }
}

/// Routes for one target, to be signed.
pub(crate) struct Sign {
    pub(crate) ring: Ring,
    pub(crate) asn: Asn,
    pub(crate) target: Target,
    /// Seconds since 1970.
    pub(crate) now: u64,
    /// Minutes.
    pub(crate) lifetime: u16,
    /// Of the first list; the next have the next ones.
    pub(crate) sequence: u64,
    pub(crate) attribute: AttributeCode,
    /// Octets of a value that the neighbour takes, at most.
    pub(crate) most: usize,
    /// Own prefixes that are signed; `None`: all.
    pub(crate) own: Option<Arc<Vec<Prefix>>>,
    pub(crate) groups: Vec<RouteGroup>,
}

/// What became of routes that go out.
#[derive(Debug)]
pub(crate) struct Signed {
    pub(crate) group: RouteGroup,
    pub(crate) outcome: Outcome,
}

/// How routes go out.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// With these attributes; to be signed again at this time (seconds since 1970).
    Attested { attributes: Arc<Attributes>, renew: u64, origin: bool, smaller: bool },
    /// As they came: nothing to extend, or not ours to sign.
    AsTheyCame,
    /// As they came, though there was something to extend.
    NotExtended(AttestError),
    /// Not at all: no suite is small enough for the neighbour.
    TooLong { need: usize },
    /// Not yet: the key's count is not durable.
    NotReserved,
    /// Not at all: no key is left to sign with.
    Exhausted,
}

impl Outcome {
    /// When what was signed is to be signed again.
    pub(crate) fn renewal(&self) -> Option<u64> {
        match self {
            Self::Attested { renew, .. } => Some(*renew),
            _ => None,
        }
    }

    /// Whether it can be used for further routes at `unix`.
    pub(crate) fn is_current(&self, unix: u64) -> bool {
        self.renewal().is_some_and(|renew| renew > unix)
    }
}

impl Sign {
    /// What became of the routes, and the groups on which the work panicked.
    pub(crate) fn run(mut self) -> (Vec<Signed>, Vec<RouteGroup>) {
        guarded(std::mem::take(&mut self.groups), |groups| self.sign(groups))
    }

    fn sign(&mut self, groups: Vec<RouteGroup>) -> Vec<Signed> {
        let ring = self.ring.clone();
        let mut ring = ring.lock();
        groups.into_iter().flat_map(|group| self.group(group, &mut ring)).collect()
    }

    fn group(&mut self, group: RouteGroup, ring: &mut KeyRing) -> Vec<Signed> {
        let path = Path::from_as_path(group.attributes.as_path());
        let (received, prepend) = without(&path, self.asn);
        let whole = |outcome| vec![Signed { group: group.clone(), outcome }];
        if path.has_set() || prepend == 0 {
            return whole(Outcome::AsTheyCame);
        }
        if received.entries().is_empty() {
            return self.originate(&group, prepend, ring);
        }
        let Carried::Value(value) = carried(&group.attributes, self.attribute) else {
            return whole(Outcome::AsTheyCame);
        };
        let outcome = match Attestation::decode(value) {
            Ok(attestation) => {
                let speaker = self.speaker(prepend);
                let most = self.most;
                let path: Vec<u8> = received.entries().iter().flat_map(|asn| asn.0.to_be_bytes()).collect();
                let key = hash("wayleave/attestation/shared/extended/v1", &[value, &path, &[prepend]]);
                self.signed(&group, key, false, |onward| {
                    attest::extend_within(most, &attestation, &received, &speaker, ring, onward)
                })
            }
            // Whoever comes next will say what is wrong with it.
            Err(error) => Outcome::NotExtended(error.into()),
        };
        whole(outcome)
    }

    /// Own routes, in lists of at most 32 prefixes.
    fn originate(&mut self, group: &RouteGroup, prepend: u8, ring: &mut KeyRing) -> Vec<Signed> {
        let is_own = |prefix: &Prefix| match &self.own {
            None => true,
            Some(own) => own.iter().any(|owned| owned.contains(prefix)),
        };
        let (ours, others): (Vec<Nlri>, Vec<Nlri>) = group.routes.iter().partition(|nlri| is_own(&nlri.prefix));
        let part = |routes: Vec<Nlri>| RouteGroup { attributes: Arc::clone(&group.attributes), routes };
        let mut done = Vec::new();
        if !others.is_empty() {
            done.push(Signed { group: part(others), outcome: Outcome::AsTheyCame });
        }
        let prefixes: Vec<Prefix> = ours.iter().map(|nlri| nlri.prefix).collect();
        for list in attest::lists(&prefixes) {
            let sequence = self.sequence;
            self.sequence += 1;
            let speaker = self.speaker(prepend);
            let most = self.most;
            let origination = Origination { prefixes: &list, sequence };
            let key = originated(&list, prepend);
            let routes = ours.iter().copied().filter(|nlri| list.binary_search(&nlri.prefix).is_ok()).collect();
            let group = part(routes);
            let made = self.signed(&group, key, true, |onward| {
                attest::originate_within(most, &origination, &speaker, ring, onward)
            });
            let outcome = match made {
                // Without a registered key the AS does not attest its own routes.
                Outcome::NotExtended(AttestError::NotOurs(_)) => Outcome::AsTheyCame,
                outcome => outcome,
            };
            done.push(Signed { group, outcome });
        }
        done
    }

    fn speaker(&self, prepend: u8) -> Speaker {
        Speaker { asn: self.asn, prepend, not_before: self.now, lifetime: self.lifetime }
    }

    /// Signs for the target, or takes what was signed for `key` and another neighbour under the same root. What does not
    /// fit with its opening is signed for the neighbour alone.
    fn signed<'t>(
        &'t self,
        group: &RouteGroup,
        key: [u8; 32],
        origin: bool,
        mut make: impl FnMut(Onward<'t>) -> Result<Attested<'t>, AttestError>,
    ) -> Outcome {
        let Target::Root(asn, leaf, shared) = &self.target else {
            return self.outcome(group, make(self.target.onward()), origin, self.renewal(group));
        };
        if let Some(Kept { hop, renew }) = shared.find(&key, self.now) {
            let attested = hop.under(&shared.tree);
            if self.target.value(&attested).len() <= self.most {
                return self.outcome(group, Ok(attested), origin, renew);
            }
        }
        let renew = self.renewal(group);
        match make(Onward::Tree(&shared.tree)) {
            Ok(attested) => {
                shared.keep(key, Kept { hop: attested.clone().into_signed(), renew });
                self.outcome(group, Ok(attested), origin, renew)
            }
            Err(AttestError::TooLarge { .. }) => {
                self.outcome(group, make(Onward::Neighbour(*asn, leaf.view())), origin, renew)
            }
            made => self.outcome(group, made, origin, renew),
        }
    }

    fn outcome(
        &self,
        group: &RouteGroup,
        made: Result<Attested<'_>, AttestError>,
        origin: bool,
        renew: u64,
    ) -> Outcome {
        match made {
            Ok(attested) => {
                let value = self.target.value(&attested);
                let mut edit = group.attributes.edit();
                // Ours says whether everyone before knew the attribute.
                edit.remove(self.attribute).set(self.attribute, AttributeFlags::OPTIONAL_TRANSITIVE, &value);
                let attributes = Arc::new(edit.finish());
                Outcome::Attested { attributes, renew, origin, smaller: attested.is_smaller() }
            }
            Err(AttestError::TooLarge { need }) => Outcome::TooLong { need },
            Err(AttestError::Sign(SignError::NotReserved(_))) => Outcome::NotReserved,
            Err(AttestError::Sign(SignError::Exhausted(_))) => Outcome::Exhausted,
            Err(error) => Outcome::NotExtended(error),
        }
    }

    /// Between half and three quarters of the lifetime from now, the same for a list, different for each.
    fn renewal(&self, group: &RouteGroup) -> u64 {
        let lifetime = u64::from(self.lifetime) * 60;
        let first = group.routes.first().map_or([0; 16], |nlri| nlri.prefix.octets());
        let mixed = first.iter().fold(self.sequence, |sum, octet| {
            (sum ^ u64::from(*octet)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23)
        });
        self.now + lifetime / 2 + mixed % (lifetime / 4).max(1)
    }
}

/// Under what a list that we originate is kept for other neighbours.
fn originated(list: &[Prefix], prepend: u8) -> [u8; 32] {
    let mut octets = Vec::new();
    for prefix in list {
        octets.extend_from_slice(&prefix.afi().code().to_be_bytes());
        octets.push(prefix.len());
        octets.extend_from_slice(&prefix.octets());
    }
    hash("wayleave/attestation/shared/originated/v1", &[&octets, &[prepend]])
}

/// The path as `asn` received it, and how many times it put itself on it.
pub(crate) fn without(path: &Path, asn: Asn) -> (Path, u8) {
    let entries = path.entries();
    let own = entries.iter().rev().take_while(|entry| **entry == asn).count();
    let received = Path::from_travel(&entries[..entries.len() - own]);
    (received, u8::try_from(own).unwrap_or(0))
}

/// Work for a pool.
pub struct Job {
    pub(crate) pair: usize,
    pub(crate) work: Work,
}

pub(crate) enum Work {
    Validate(Validate),
    Sign(Sign),
    /// Keys are to be made ready for their next signatures.
    Ahead(Ring),
}

/// Work that is done.
#[derive(Debug)]
pub struct Done {
    pub(crate) pair: usize,
    pub(crate) result: Results,
    /// Groups for which the work panicked.
    pub(crate) failed: Vec<RouteGroup>,
}

#[derive(Debug)]
pub(crate) enum Results {
    Validated(Vec<Judged>),
    Signed(Vec<Signed>),
    /// Whether keys were made.
    Ahead(bool),
}

impl Job {
    /// Does it. Takes as long as the signatures do; any thread may. A panic inside is caught, and told with the routes
    /// that caused it.
    #[must_use]
    pub fn run(self) -> Done {
        let (result, failed) = match self.work {
            Work::Validate(work) => {
                let (judged, failed) = work.run();
                (Results::Validated(judged), failed)
            }
            Work::Sign(work) => {
                let (signed, failed) = work.run();
                (Results::Signed(signed), failed)
            }
            Work::Ahead(ring) => (Results::Ahead(ring.make_ahead()), Vec::new()),
        };
        Done { pair: self.pair, result, failed }
    }
}

/// Does the work for all groups and, where it panics, for each alone: one route's fault must not hold up the others.
/// What panicked alone comes back beside the results.
pub(crate) fn guarded<T>(
    groups: Vec<RouteGroup>,
    mut run: impl FnMut(Vec<RouteGroup>) -> Vec<T>,
) -> (Vec<T>, Vec<RouteGroup>) {
    let mut run = |groups: Vec<RouteGroup>| catch_unwind(AssertUnwindSafe(|| run(groups)));
    if let Ok(done) = run(groups.clone()) {
        return (done, Vec::new());
    }
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for group in groups {
        match run(vec![group.clone()]) {
            Ok(more) => done.extend(more),
            Err(_) => failed.push(group),
        }
    }
    (done, failed)
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self.work {
            Work::Validate(_) => "validate",
            Work::Sign(_) => "sign",
            Work::Ahead(_) => "make keys ahead",
        };
        f.debug_struct("Job").field("pair", &self.pair).field("work", &what).finish()
    }
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
        let (done, failed) = guarded((0..8).map(group).collect(), |groups: Vec<RouteGroup>| {
            let routes: Vec<Nlri> = groups.into_iter().flat_map(|group| group.routes).collect();
            assert!(!routes.contains(&bad), "this one");
            routes
        });
        assert_eq!(done.len(), 7);
        assert!(!done.contains(&bad));
        assert_eq!(failed.len(), 1);
        assert_eq!(failed[0].routes, [bad]);
    }

    #[test]
    fn both_default_routes_are_kept_apart() {
        let key = |prefix: &str| originated(&[prefix.parse().expect("a prefix")], 1);
        assert_ne!(key("0.0.0.0/0"), key("::/0"));
    }
}

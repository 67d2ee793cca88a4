//! Signing in bursts: routes of this AS as their origin, those of others by a further hop.

use std::collections::HashMap;
use std::sync::Arc;

use wayleave_bgp::{AttributeCode, AttributeFlags, Attributes, Nlri};
use wayleave_core::{Asn, Prefix};
use wayleave_crypto::hash::hash;

use super::shared_tree::{SharedHop, SharedTree};
use super::validate::{Checked, PolicyCheck};
use super::{RouteGroup, carried, guarded, received_path};
use crate::chain::Attestation;
use crate::leaf::{Leaf, Tree};
use crate::path::Path;
use crate::pipeline::event::RouteEvent;
use crate::pipeline::keys::SharedKeyRing;
use crate::pipeline::policy::VerdictClass;
use crate::report::Report;
use crate::sign::{self, AttestationError, KeyRing, Origination, Recipient, SignedAttestation, Speaker};
use crate::suite::SignError;
use crate::validate::Carried;

/// For whom routes are signed.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// One neighbour, and the leaf that names its keys.
    Neighbour(Asn, Leaf),
    /// One neighbour of many, all of which one signature serves.
    SharedTree(Asn, Leaf, SharedTree),
    /// All members of an exchange.
    Directory(Arc<Tree>),
}

impl Target {
    fn recipient(&self) -> Recipient<'_> {
        match self {
            Target::Neighbour(asn, leaf) => Recipient::Neighbour(*asn, leaf.view()),
            Target::SharedTree(_, _, shared) => Recipient::Tree(&shared.tree),
            Target::Directory(tree) => Recipient::Tree(tree),
        }
    }

    /// The attribute's value for this target.
    fn value(&self, attested: &SignedAttestation<'_>) -> Vec<u8> {
        let value = match self {
            Target::Neighbour(asn, _) | Target::SharedTree(asn, ..) => attested.for_neighbour(*asn),
            Target::Directory(_) => attested.for_directory(),
        };
        value.unwrap_or_default()
    }
}

/// Signs routes for one target.
pub(crate) struct RouteSigner {
    pub(crate) ring: SharedKeyRing,
    pub(crate) asn: Asn,
    pub(crate) target: Target,
    /// Seconds since 1970.
    pub(crate) now: u64,
    /// Minutes.
    pub(crate) lifetime: u16,
    /// Of the first list that is originated; each further list takes the next number.
    pub(crate) sequence: u64,
    pub(crate) attribute: AttributeCode,
    /// Octets of a value that the target takes, at most.
    pub(crate) max_octets: usize,
    /// Own prefixes that are signed; `None`: all.
    pub(crate) own: Option<Arc<Vec<Prefix>>>,
}

/// Routes for one target, to be checked where that is asked for, and signed.
pub(crate) struct SigningJob {
    pub(crate) check: Option<PolicyCheck>,
    /// How chains with these attributes were extended before, where that still holds.
    pub(crate) known: HashMap<Arc<Attributes>, SigningOutcome>,
    /// `None`: this AS has no key, and routes leave as they came.
    pub(crate) signer: Option<RouteSigner>,
    pub(crate) groups: Vec<RouteGroup>,
}

/// Routes, and how they went out.
#[derive(Debug)]
pub(crate) struct SignedGroup {
    pub(crate) group: RouteGroup,
    pub(crate) outcome: SigningOutcome,
}

/// What a [`SigningJob`] came to.
#[derive(Debug, Default)]
pub(crate) struct SigningResults {
    pub(crate) groups: Vec<SignedGroup>,
    /// Until when the reports of checked routes hold that passed, in seconds since 1970.
    pub(crate) checked_until: HashMap<Nlri, u64>,
}

/// How routes went out, or why they did not.
#[derive(Clone, Debug)]
pub(crate) enum SigningOutcome {
    /// With these attributes; to be signed again at `renew` (seconds since 1970). `smaller`: a preferred key was passed
    /// over because its signature would have been too long.
    Signed { attributes: Arc<Attributes>, renew: u64, origin: bool, smaller: bool },
    /// As they came: there was nothing to extend, or the prefix is not one that this AS signs for.
    AsReceived,
    /// As they came, though there was something to extend.
    NotExtended(AttestationError),
    /// Not sent: the shortest value has `need` octets.
    TooLong { need: usize },
    /// Not sent yet: the key waits for a slot of time in which it may sign.
    NotReserved,
    /// Not sent: the lives of all keys are over.
    Exhausted,
    /// Not sent: policy rejects the class of what was received.
    Refused { class: VerdictClass, report: Arc<Report> },
}

impl SigningOutcome {
    /// When the routes must be signed again.
    pub(crate) fn renewal(&self) -> Option<u64> {
        match self {
            Self::Signed { renew, .. } => Some(*renew),
            _ => None,
        }
    }

    /// Whether it can be used for further routes at `unix`.
    pub(crate) fn is_current(&self, unix: u64) -> bool {
        self.renewal().is_some_and(|renew| renew > unix)
    }

    /// When the routes must be signed again, or validated again where they were refused.
    pub(crate) fn due(&self) -> Option<u64> {
        match self {
            Self::Refused { report, .. } => report.until.map(|until| until.secs()),
            outcome => outcome.renewal(),
        }
    }

    /// Whether routes leave, and with which attributes; `received` are those with which they came.
    pub(crate) fn sent<'a>(&'a self, received: &'a Arc<Attributes>) -> Option<&'a Arc<Attributes>> {
        match self {
            Self::Signed { attributes, .. } => Some(attributes),
            Self::AsReceived | Self::NotExtended(_) => Some(received),
            Self::TooLong { .. } | Self::NotReserved | Self::Exhausted | Self::Refused { .. } => None,
        }
    }

    /// What an operator should know about it.
    pub(crate) fn event(&self, routes: Vec<Nlri>) -> Option<RouteEvent> {
        if routes.is_empty() {
            return None;
        }
        match self {
            Self::Signed { .. } | Self::AsReceived | Self::NotReserved => None,
            Self::NotExtended(error) => Some(RouteEvent::NotExtended { routes, error: *error }),
            Self::TooLong { need } => Some(RouteEvent::TooLong { routes, need: *need }),
            Self::Exhausted => Some(RouteEvent::Exhausted { routes }),
            Self::Refused { class, report } => {
                Some(RouteEvent::Refused { routes, class: *class, report: Arc::clone(report) })
            }
        }
    }
}

impl SigningJob {
    /// How the routes went out, and the groups on which the job panicked.
    pub(crate) fn run(self) -> (SigningResults, Vec<RouteGroup>) {
        let Self { check, known, signer, groups } = self;
        let mut results = SigningResults::default();
        let (passed, mut failed) = match check {
            Some(check) => checked(&check, groups, &mut results),
            None => (groups, Vec::new()),
        };
        let mut to_sign = Vec::new();
        for group in passed {
            match known.get(&group.attributes) {
                Some(outcome) => results.groups.push(SignedGroup { group, outcome: outcome.clone() }),
                None => to_sign.push(group),
            }
        }
        match signer {
            Some(mut signer) => {
                let (signed, failed_to_sign) = guarded(to_sign, |groups| signer.sign(groups));
                results.groups.extend(signed);
                failed.extend(failed_to_sign);
            }
            None => {
                let as_received = |group| SignedGroup { group, outcome: SigningOutcome::AsReceived };
                results.groups.extend(to_sign.into_iter().map(as_received));
            }
        }
        (results, failed)
    }
}

/// Puts what the check refuses into the results; returns what passes, and the groups on which it panicked.
fn checked(
    check: &PolicyCheck,
    groups: Vec<RouteGroup>,
    results: &mut SigningResults,
) -> (Vec<RouteGroup>, Vec<RouteGroup>) {
    let (checked, failed) = guarded(groups, |groups| check.check(groups));
    let mut passed = Vec::new();
    for checked in checked {
        match checked {
            Checked::Refused(group, outcome) => results.groups.push(SignedGroup { group, outcome }),
            Checked::Passed(group, until) => {
                let until = until.into_iter().flat_map(|until| group.routes.iter().map(move |nlri| (*nlri, until)));
                results.checked_until.extend(until);
                passed.push(group);
            }
        }
    }
    (passed, failed)
}

impl RouteSigner {
    fn sign(&mut self, groups: Vec<RouteGroup>) -> Vec<SignedGroup> {
        let ring = self.ring.clone();
        let mut ring = ring.lock();
        groups.into_iter().flat_map(|group| self.group(group, &mut ring)).collect()
    }

    fn group(&mut self, group: RouteGroup, ring: &mut KeyRing) -> Vec<SignedGroup> {
        let path = Path::from_as_path(group.attributes.as_path());
        let (received, prepend) = received_path(&path, self.asn);
        let whole = |outcome| vec![SignedGroup { group: group.clone(), outcome }];
        if path.has_set() || prepend == 0 {
            return whole(SigningOutcome::AsReceived);
        }
        if received.entries().is_empty() {
            return self.originate(&group, prepend, ring);
        }
        let Carried::Value(value) = carried(&group.attributes, self.attribute) else {
            return whole(SigningOutcome::AsReceived);
        };
        let outcome = match Attestation::decode(value) {
            Ok(attestation) => {
                let speaker = self.speaker(prepend);
                let max_octets = self.max_octets;
                let path: Vec<u8> = received.entries().iter().flat_map(|asn| asn.0.to_be_bytes()).collect();
                let key = hash("wayleave/attestation/shared/extended/v1", &[value, &path, &[prepend]]);
                self.signed(&group, key, false, |recipient| {
                    sign::extend_within(max_octets, &attestation, &received, &speaker, ring, recipient)
                })
            }
            // The next verifier reports what is wrong with it.
            Err(error) => SigningOutcome::NotExtended(error.into()),
        };
        whole(outcome)
    }

    /// Own routes, in lists of at most 32 prefixes.
    fn originate(&mut self, group: &RouteGroup, prepend: u8, ring: &mut KeyRing) -> Vec<SignedGroup> {
        let is_own = |prefix: &Prefix| match &self.own {
            None => true,
            Some(own) => own.iter().any(|owned| owned.contains(prefix)),
        };
        let (ours, others): (Vec<Nlri>, Vec<Nlri>) = group.routes.iter().partition(|nlri| is_own(&nlri.prefix));
        let part = |routes: Vec<Nlri>| RouteGroup { attributes: Arc::clone(&group.attributes), routes };
        let mut done = Vec::new();
        if !others.is_empty() {
            done.push(SignedGroup { group: part(others), outcome: SigningOutcome::AsReceived });
        }
        let prefixes: Vec<Prefix> = ours.iter().map(|nlri| nlri.prefix).collect();
        for list in sign::lists(&prefixes) {
            let sequence = self.sequence;
            self.sequence += 1;
            let speaker = self.speaker(prepend);
            let max_octets = self.max_octets;
            let origination = Origination { prefixes: &list, sequence };
            let key = originated(&list, prepend);
            let routes = ours.iter().copied().filter(|nlri| list.binary_search(&nlri.prefix).is_ok()).collect();
            let group = part(routes);
            let made = self.signed(&group, key, true, |recipient| {
                sign::originate_within(max_octets, &origination, &speaker, ring, recipient)
            });
            let outcome = match made {
                // Without a registered key the AS does not attest its own routes.
                SigningOutcome::NotExtended(AttestationError::NotOurs(_)) => SigningOutcome::AsReceived,
                outcome => outcome,
            };
            done.push(SignedGroup { group, outcome });
        }
        done
    }

    fn speaker(&self, prepend: u8) -> Speaker {
        Speaker { asn: self.asn, prepend, not_before: self.now, lifetime: self.lifetime }
    }

    /// Signs for the target, or reuses what was signed under `key` for another neighbour of the same tree. What does not
    /// fit with its opening is signed for the neighbour alone.
    fn signed<'t>(
        &'t self,
        group: &RouteGroup,
        key: [u8; 32],
        origin: bool,
        mut make: impl FnMut(Recipient<'t>) -> Result<SignedAttestation<'t>, AttestationError>,
    ) -> SigningOutcome {
        let Target::SharedTree(asn, leaf, shared) = &self.target else {
            return self.outcome(group, make(self.target.recipient()), origin, self.renewal(group));
        };
        if let Some(SharedHop { hop, renew }) = shared.find(&key, self.now) {
            let attested = hop.under(&shared.tree);
            if self.target.value(&attested).len() <= self.max_octets {
                return self.outcome(group, Ok(attested), origin, renew);
            }
        }
        let renew = self.renewal(group);
        match make(Recipient::Tree(&shared.tree)) {
            Ok(attested) => {
                shared.keep(key, SharedHop { hop: attested.clone().into_signed(), renew });
                self.outcome(group, Ok(attested), origin, renew)
            }
            Err(AttestationError::TooLarge { .. }) => {
                self.outcome(group, make(Recipient::Neighbour(*asn, leaf.view())), origin, renew)
            }
            made => self.outcome(group, made, origin, renew),
        }
    }

    fn outcome(
        &self,
        group: &RouteGroup,
        made: Result<SignedAttestation<'_>, AttestationError>,
        origin: bool,
        renew: u64,
    ) -> SigningOutcome {
        match made {
            Ok(attested) => {
                let value = self.target.value(&attested);
                let mut edit = group.attributes.edit();
                // Ours says whether everyone before knew the attribute.
                edit.remove(self.attribute).set(self.attribute, AttributeFlags::OPTIONAL_TRANSITIVE, &value);
                let attributes = Arc::new(edit.finish());
                SigningOutcome::Signed { attributes, renew, origin, smaller: attested.is_smaller() }
            }
            Err(AttestationError::TooLarge { need }) => SigningOutcome::TooLong { need },
            Err(AttestationError::Sign(SignError::NotReserved(_))) => SigningOutcome::NotReserved,
            Err(AttestationError::Sign(SignError::Exhausted(_))) => SigningOutcome::Exhausted,
            Err(error) => SigningOutcome::NotExtended(error),
        }
    }

    /// Between half and three quarters of the lifetime from now: the same for all routes of a list, and different from
    /// list to list, so that renewals are spread over time.
    fn renewal(&self, group: &RouteGroup) -> u64 {
        let lifetime = u64::from(self.lifetime) * 60;
        let first = group.routes.first().map_or([0; 16], |nlri| nlri.prefix.octets());
        let mixed = first.iter().fold(self.sequence, |sum, octet| {
            (sum ^ u64::from(*octet)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23)
        });
        self.now + lifetime / 2 + mixed % (lifetime / 4).max(1)
    }
}

/// The key under which a list that we originate is kept for other neighbours.
fn originated(list: &[Prefix], prepend: u8) -> [u8; 32] {
    let mut octets = Vec::new();
    for prefix in list {
        octets.extend_from_slice(&prefix.afi().code().to_be_bytes());
        octets.push(prefix.len());
        octets.extend_from_slice(&prefix.octets());
    }
    hash("wayleave/attestation/shared/originated/v1", &[&octets, &[prepend]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_default_routes_are_kept_apart() {
        let key = |prefix: &str| originated(&[prefix.parse().expect("a prefix")], 1);
        assert_ne!(key("0.0.0.0/0"), key("::/0"));
    }
}

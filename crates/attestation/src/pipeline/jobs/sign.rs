//! Signing in bursts: routes of this AS as their origin, those of others by a further hop.

use std::collections::HashMap;
use std::sync::Arc;

use wayleave_bgp::{AttributeCode, AttributeFlags, Attributes, Nlri};
use wayleave_core::{Asn, Prefix};
use wayleave_crypto::secret::Seed;

use super::validate::{Checked, PolicyCheck};
use super::{RouteGroup, carried, guarded, received_path};
use crate::chain::Attestation;
use crate::leaf::{KeyId, Leaf, Tree};
use crate::path::Path;
use crate::pipeline::event::RouteEvent;
use crate::pipeline::keys::SharedKeyRing;
use crate::pipeline::policy::VerdictClass;
use crate::pipeline::queue::RETRY_FAILED;
use crate::pki::{OriginValidity, View};
use crate::report::Report;
use crate::sign::{
    self, AttestationError, Draft, KeyPair, KeyRing, Origination, Recipient, Signatures, SignedAttestation, Speaker,
};
use crate::suite::{self, SignError, Suite, SuiteId};
use crate::validate::{Carried, VerificationWork};

/// For whom routes are signed.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// One neighbour, and the leaf that names its keys.
    Neighbour(Asn, Leaf),
    /// All members of an exchange.
    Directory(Arc<Tree>),
}

impl Target {
    fn recipient(&self) -> Recipient<'_> {
        match self {
            Target::Neighbour(asn, leaf) => Recipient::Neighbour(*asn, leaf.view()),
            Target::Directory(tree) => Recipient::Directory(tree),
        }
    }
}

/// Signs routes with the keys and at the time of one job.
pub(crate) struct RouteSigner {
    pub(crate) ring: SharedKeyRing,
    pub(crate) asn: Asn,
    /// What verifiers know, too: the origins' records and this AS's own keys.
    pub(crate) view: Arc<View>,
    /// Seconds since 1970.
    pub(crate) now: u64,
    /// Minutes.
    pub(crate) lifetime: u16,
    /// Of the first list that is originated; each further list takes the next number.
    pub(crate) sequence: u64,
    pub(crate) attribute: AttributeCode,
    /// Own prefixes that are signed; `None`: all.
    pub(crate) own: Option<Arc<Vec<Prefix>>>,
    /// See [`PipelineConfig`](crate::pipeline::PipelineConfig).
    pub(crate) announces_unauthorised: bool,
    /// Where one signature serves a burst of routes: the secret from which its salts come.
    pub(crate) burst: Option<Seed>,
}

/// Routes for one target.
pub(crate) struct TargetRoutes {
    /// The pair whose routes these are, as the machine numbers it.
    pub(crate) source: usize,
    pub(crate) target: Target,
    /// Octets of a value that the target takes, at most.
    pub(crate) max_octets: usize,
    pub(crate) groups: Vec<RouteGroup>,
}

/// Routes to be checked where that is asked for, and signed: of one target, or of several where one signature serves a burst.
pub(crate) struct SigningJob {
    pub(crate) check: Option<PolicyCheck>,
    /// `None`: this AS has no key, and routes leave as they came.
    pub(crate) signer: Option<RouteSigner>,
    pub(crate) targets: Vec<TargetRoutes>,
}

/// Routes, and how they went out.
#[derive(Debug)]
pub(crate) struct SignedGroup {
    pub(crate) group: RouteGroup,
    pub(crate) outcome: SigningOutcome,
}

/// What a [`SigningJob`] came to for one target.
#[derive(Debug, Default)]
pub(crate) struct SigningResults {
    /// See [`TargetRoutes::source`].
    pub(crate) source: usize,
    pub(crate) groups: Vec<SignedGroup>,
    /// Groups on which the job panicked.
    pub(crate) failed: Vec<RouteGroup>,
    /// Until when the reports of checked routes hold that passed, in seconds since 1970.
    pub(crate) checked_until: HashMap<Nlri, u64>,
    /// What the check cost.
    pub(crate) work: VerificationWork,
}

/// How routes went out, or why they did not.
#[derive(Clone, Debug)]
pub(crate) enum SigningOutcome {
    /// With these attributes; to be signed again at `renew` (seconds since 1970). `smaller`: a preferred key was passed
    /// over because its signature would have been too long.
    Signed { attributes: Arc<Attributes>, renew: u64, origin: bool, smaller: bool, key: KeyId },
    /// As they came: there was nothing to extend, or the prefix is not one that this AS signs for.
    AsReceived,
    /// As they came, though they are own routes that this AS signs for: none of its keys that may sign them is registered.
    NoRegisteredKey,
    /// Likewise: the record of this AS requires a post-quantum suite, and none of its keys that may sign is of one.
    NoPostQuantumKey,
    /// As they came, though there was something to extend.
    NotExtended(AttestationError),
    /// Not sent: the shortest value has `need` octets.
    TooLong { need: usize },
    /// Not sent yet: the key waits for a slot of time in which it may sign.
    NotReserved,
    /// Not sent: the lives of all keys are over.
    Exhausted,
    /// Not sent: what the keys sign does not verify.
    Faulty(SuiteId),
    /// Not sent: records and VRPs cover the prefix, and none lets this AS originate it. Every verifier would find it invalid.
    NotAuthorised,
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

    /// When the routes must be signed again, or validated again where they were refused; `unix` is now, in seconds since 1970.
    pub(crate) fn due(&self, unix: u64) -> Option<u64> {
        match self {
            Self::Refused { report, .. } => report.until.map(|until| until.secs()),
            Self::Faulty(_) => Some(unix + RETRY_FAILED),
            outcome => outcome.renewal(),
        }
    }

    /// Whether routes leave, and with which attributes; `received` are those with which they came.
    pub(crate) fn sent<'a>(&'a self, received: &'a Arc<Attributes>) -> Option<&'a Arc<Attributes>> {
        match self {
            Self::Signed { attributes, .. } => Some(attributes),
            Self::AsReceived | Self::NoRegisteredKey | Self::NoPostQuantumKey | Self::NotExtended(_) => Some(received),
            Self::TooLong { .. }
            | Self::NotReserved
            | Self::Exhausted
            | Self::Faulty(_)
            | Self::NotAuthorised
            | Self::Refused { .. } => None,
        }
    }

    /// Whether routes do not leave that should, and do not only wait for a slot of time. What policy rejects is no fault here: others
    /// cause it.
    pub(crate) fn holds_back(&self) -> bool {
        match self {
            Self::TooLong { .. } | Self::Exhausted | Self::Faulty(_) | Self::NotAuthorised => true,
            Self::Signed { .. }
            | Self::AsReceived
            | Self::NoRegisteredKey
            | Self::NoPostQuantumKey
            | Self::NotExtended(_)
            | Self::NotReserved
            | Self::Refused { .. } => false,
        }
    }

    /// Whether policy rejects the routes.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }

    /// What an operator should know about it.
    pub(crate) fn event(&self, routes: Vec<Nlri>) -> Option<RouteEvent> {
        if routes.is_empty() {
            return None;
        }
        match self {
            Self::Signed { .. }
            | Self::AsReceived
            | Self::NoRegisteredKey
            | Self::NoPostQuantumKey
            | Self::NotReserved => None,
            Self::NotExtended(error) => Some(RouteEvent::NotExtended { routes, error: *error }),
            Self::TooLong { need } => Some(RouteEvent::TooLong { routes, need: *need }),
            Self::Exhausted => Some(RouteEvent::Exhausted { routes }),
            Self::NotAuthorised => Some(RouteEvent::NotAuthorised { routes }),
            Self::Faulty(suite) => Some(RouteEvent::Faulty { routes, suite: *suite }),
            Self::Refused { class, report } => {
                Some(RouteEvent::Refused { routes, class: *class, report: Arc::clone(report) })
            }
        }
    }
}

impl SigningJob {
    /// How the routes of each target went out.
    pub(crate) fn run(self) -> Vec<SigningResults> {
        let Self { check, signer, targets } = self;
        let mut results = Vec::with_capacity(targets.len());
        let mut to_sign: Vec<(usize, RouteGroup)> = Vec::new();
        let mut recipients = Vec::with_capacity(targets.len());
        for (number, TargetRoutes { source, target, max_octets, groups }) in targets.into_iter().enumerate() {
            let mut of_target = SigningResults { source, ..SigningResults::default() };
            let passed = match &check {
                Some(check) => checked(check, source, groups, &mut of_target),
                None => groups,
            };
            to_sign.extend(passed.into_iter().map(|group| (number, group)));
            results.push(of_target);
            recipients.push((target, max_octets));
        }
        let Some(mut signer) = signer else {
            for (number, group) in to_sign {
                results[number].groups.push(SignedGroup { group, outcome: SigningOutcome::AsReceived });
            }
            return results;
        };
        let (signed, failed) = guarded(to_sign, |groups| signer.sign(&recipients, groups));
        signed.into_iter().for_each(|(number, signed)| results[number].groups.push(signed));
        failed.into_iter().for_each(|(number, group)| results[number].failed.push(group));
        results
    }
}

/// Puts what the check refuses into the results, and the groups on which it panicked; returns what passes.
fn checked(
    check: &PolicyCheck,
    source: usize,
    groups: Vec<RouteGroup>,
    results: &mut SigningResults,
) -> Vec<RouteGroup> {
    let mut work = VerificationWork::default();
    let alone = check.alone.contains(&source);
    let (checked, failed) = guarded(groups, |groups| check.check(groups, alone, &mut work));
    results.work = work;
    results.failed = failed;
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
    passed
}

/// Groups whose hops are drafted, in the order of the drafts, and groups that are done.
#[derive(Default)]
struct Drafts {
    drafts: Vec<Draft>,
    /// Of each draft: the target, the routes, whether this AS originates them, and when they are signed again.
    groups: Vec<(usize, RouteGroup, bool, u64)>,
    done: Vec<(usize, SignedGroup)>,
}

impl Drafts {
    fn done(&mut self, target: usize, group: RouteGroup, outcome: SigningOutcome) {
        self.done.push((target, SignedGroup { group, outcome }));
    }

    fn add(
        &mut self,
        target: usize,
        group: RouteGroup,
        origin: bool,
        renew: u64,
        draft: Result<Draft, SigningOutcome>,
    ) {
        match draft {
            Ok(draft) => {
                self.drafts.push(draft);
                self.groups.push((target, group, origin, renew));
            }
            Err(outcome) => self.done(target, group, outcome),
        }
    }
}

impl RouteSigner {
    /// Signs groups of routes, each for one of `targets` with the octets that it takes.
    fn sign(&mut self, targets: &[(Target, usize)], groups: Vec<(usize, RouteGroup)>) -> Vec<(usize, SignedGroup)> {
        let ring = self.ring.clone();
        let mut ring = ring.lock();
        let mut drafts = Drafts::default();
        for (number, group) in groups {
            let (target, max_octets) = &targets[number];
            self.draft(&ring, target.recipient(), *max_octets, number, group, &mut drafts);
        }
        let signatures = self.burst.as_ref().map_or(Signatures::Each, Signatures::Burst);
        let Drafts { drafts, groups, mut done } = drafts;
        let made = sign::sign_all(drafts, &mut ring, signatures);
        for ((number, group, origin, renew), made) in groups.into_iter().zip(made) {
            let made = made.map_err(|error| if origin { self.failure_of_own(error, &ring) } else { failure(error) });
            let outcome = self.outcome(&group, made, origin, renew);
            done.push((number, SignedGroup { group, outcome }));
        }
        done
    }

    fn draft(
        &mut self,
        ring: &KeyRing,
        recipient: Recipient<'_>,
        max_octets: usize,
        target: usize,
        group: RouteGroup,
        drafts: &mut Drafts,
    ) {
        let path = Path::from_as_path(group.attributes.as_path());
        let (received, prepend) = received_path(&path, self.asn);
        if path.has_set() || prepend == 0 {
            return drafts.done(target, group, SigningOutcome::AsReceived);
        }
        if received.entries().is_empty() {
            return self.draft_own(ring, recipient, max_octets, target, &group, prepend, drafts);
        }
        let attributes = Arc::clone(&group.attributes);
        let Carried::Value(value) = carried(&attributes, self.attribute) else {
            return drafts.done(target, group, SigningOutcome::AsReceived);
        };
        let attestation = match Attestation::decode(value) {
            Ok(attestation) => attestation,
            // The next verifier reports what is wrong with it.
            Err(error) => return drafts.done(target, group, SigningOutcome::NotExtended(error.into())),
        };
        for part in group.split_by_exports(self.attribute) {
            let (speaker, renew) = (self.speaker(prepend), self.renewal(&part));
            let exports = part.prefixes();
            let draft = Draft::extension(&attestation, &received, &exports, &speaker, ring, recipient);
            let draft = draft.map(|draft| self.with_keys(draft, ring, received.origin()).within(max_octets));
            drafts.add(target, part, false, renew, draft.map_err(failure));
        }
    }

    /// Own routes, in lists of at most 32 prefixes.
    #[expect(clippy::too_many_arguments, reason = "those of `draft` and what it has found out")]
    fn draft_own(
        &mut self,
        ring: &KeyRing,
        recipient: Recipient<'_>,
        max_octets: usize,
        target: usize,
        group: &RouteGroup,
        prepend: u8,
        drafts: &mut Drafts,
    ) {
        let is_own = |prefix: &Prefix| match &self.own {
            None => true,
            Some(own) => own.iter().any(|owned| owned.contains(prefix)),
        };
        let may = |nlri: &Nlri| {
            let validity = self.view.origin_validity(&nlri.prefix, Some(self.asn));
            self.announces_unauthorised || validity != OriginValidity::Invalid
        };
        let (authorised, refused): (Vec<Nlri>, Vec<Nlri>) = group.routes.iter().partition(|nlri| may(nlri));
        if !refused.is_empty() {
            drafts.done(target, group.part(refused), SigningOutcome::NotAuthorised);
        }
        let (ours, others): (Vec<Nlri>, Vec<Nlri>) = authorised.into_iter().partition(|nlri| is_own(&nlri.prefix));
        if !others.is_empty() {
            drafts.done(target, group.part(others), SigningOutcome::AsReceived);
        }
        let prefixes: Vec<Prefix> = ours.iter().map(|nlri| nlri.prefix).collect();
        for list in sign::lists(&prefixes) {
            let sequence = self.sequence;
            self.sequence += 1;
            let routes = ours.iter().copied().filter(|nlri| list.binary_search(&nlri.prefix).is_ok()).collect();
            let part = group.part(routes);
            let (speaker, renew) = (self.speaker(prepend), self.renewal(&part));
            let draft = Draft::origination(&Origination { prefixes: &list, sequence }, &speaker, ring, recipient);
            let draft = draft.map(|draft| self.with_keys(draft, ring, Some(self.asn)).within(max_octets));
            let draft = draft.map_err(|error| self.failure_of_own(error, ring));
            drafts.add(target, part, true, renew, draft);
        }
    }

    /// The draft with keys alone that verifiers accept: registered ones if this AS registered any, and post-quantum ones if the
    /// origin's record requires them.
    fn with_keys(&self, draft: Draft, ring: &KeyRing, origin: Option<Asn>) -> Draft {
        let is_bound = self.view.is_registered(self.asn);
        let post_quantum = origin.is_some_and(|origin| self.view.requires_post_quantum(origin, self.now));
        draft.only(ring, |pair| {
            let is_post_quantum = suite::of(pair.suite).is_some_and(Suite::is_post_quantum);
            (pair.registered || !is_bound) && (is_post_quantum || !post_quantum)
        })
    }

    /// What becomes of the AS's own routes that were not signed with the keys of `ring`.
    fn failure_of_own(&self, error: AttestationError, ring: &KeyRing) -> SigningOutcome {
        let is_bound = self.view.is_registered(self.asn);
        let may_sign = |pair: &KeyPair| pair.registered || !is_bound;
        match error {
            // Without keys the AS does not attest, and without one that may sign not its own routes.
            AttestationError::NotOurs(_) if ring.pairs.is_empty() => SigningOutcome::AsReceived,
            AttestationError::NotOurs(_)
                if self.view.requires_post_quantum(self.asn, self.now) && ring.pairs.iter().any(may_sign) =>
            {
                SigningOutcome::NoPostQuantumKey
            }
            AttestationError::NotOurs(_) => SigningOutcome::NoRegisteredKey,
            error => failure(error),
        }
    }

    fn speaker(&self, prepend: u8) -> Speaker {
        Speaker { asn: self.asn, prepend, not_before: self.now, lifetime: self.lifetime }
    }

    fn outcome(
        &self,
        group: &RouteGroup,
        made: Result<SignedAttestation, SigningOutcome>,
        origin: bool,
        renew: u64,
    ) -> SigningOutcome {
        match made {
            Ok(SignedAttestation { value, is_smaller, key }) => {
                let mut edit = group.attributes.edit();
                // Ours says whether everyone before knew the attribute.
                edit.remove(self.attribute).set(self.attribute, AttributeFlags::OPTIONAL_TRANSITIVE, &value);
                let attributes = Arc::new(edit.finish());
                SigningOutcome::Signed { attributes, renew, origin, smaller: is_smaller, key }
            }
            Err(outcome) => outcome,
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

/// What becomes of routes that were not signed.
fn failure(error: AttestationError) -> SigningOutcome {
    match error {
        AttestationError::TooLarge { need } => SigningOutcome::TooLong { need },
        AttestationError::Sign(SignError::NotReserved(_)) => SigningOutcome::NotReserved,
        AttestationError::Sign(SignError::Exhausted(_)) => SigningOutcome::Exhausted,
        AttestationError::Faulty(suite) => SigningOutcome::Faulty(suite),
        error => SigningOutcome::NotExtended(error),
    }
}

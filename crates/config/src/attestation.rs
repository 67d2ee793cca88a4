//! What the configurations of `run member` and `run attest` share: keys, policy by verdict, terms of signing.

use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use wayleave_attestation::member::MOST_MEMORY;
use wayleave_attestation::pipeline::policy::{Policy, Treatment, VerdictClass};
use wayleave_attestation::pki::{Object, ObjectSet, Role};
use wayleave_attestation::proxy::handover::HANDOVER;
use wayleave_attestation::sign::KeyRing;
use wayleave_bgp::LargeCommunity;
use wayleave_core::{Asn, Prefix};
use wayleave_runtime::clock::unix_now;

use super::machine::kind_fault;
use super::parse::{Text, TextValue};
use super::rpki::RpkiSection;
use super::rs::{FileFault, range};
use super::{Fault, Source};
use crate::failure::{Failure, Outcome};
use crate::key_files::attestation::{self as files, FileSnapshot, Keys, Objects, set};

/// `[attestation]` of a member: the terms of an attesting proxy, with its keys and its policy within.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttestationSection {
    /// The attribute's type code.
    #[serde(default = "default_attribute")]
    pub attribute: Spanned<u64>,
    /// Validity of signatures made here.
    #[serde(default = "default_lifetime")]
    pub lifetime_minutes: Spanned<u64>,
    /// How far clocks may be wrong, this one and others.
    #[serde(default = "default_uncertainty")]
    pub clock_uncertainty_secs: Spanned<u64>,
    /// Least security strength of accepted suites, in bits.
    #[serde(default = "default_strength")]
    pub least_strength: Spanned<u64>,
    /// Longest attestation, in octets: it must fit the messages of every member's router.
    #[serde(default = "default_most")]
    pub most_octets: Spanned<u64>,
    /// What the routes of other members may take, in MiB.
    #[serde(default = "default_most_memory")]
    pub most_memory_mib: Spanned<u64>,
    /// Own prefixes that are signed, with their more specific prefixes. Default: all.
    pub originate: Option<Vec<Prefix>>,
    /// Announce own routes too that what is registered does not let this AS originate.
    #[serde(default)]
    pub announce_unauthorised: bool,
    pub keys: KeysSection,
    #[serde(default)]
    pub rpki: RpkiSection,
    #[serde(default)]
    pub policy: PolicySection,
}

impl AttestationSection {
    pub(super) fn faults(&self) -> Vec<Fault> {
        let Self { attribute, lifetime_minutes, clock_uncertainty_secs, least_strength, .. } = self;
        let mut faults = terms_faults(attribute, lifetime_minutes, clock_uncertainty_secs, least_strength);
        faults.extend(range(&self.most_octets, 256, 65_000, "octets"));
        faults.extend(range(&self.most_memory_mib, 64, 1 << 20, "MiB"));
        faults.extend(self.keys.faults());
        faults.extend(self.rpki.faults());
        faults.extend(self.policy.faults());
        faults
    }

    pub(super) fn file_faults(&self, source: &Source, own: Asn) -> Vec<FileFault> {
        let mut faults = self.keys.file_faults(source, own);
        faults.extend(self.rpki.file_faults(source));
        faults
    }
}

/// `[keys]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeysSection {
    /// The file of the AS's private attestation keys; without it the proxy only validates.
    pub signing: Option<Spanned<PathBuf>>,
    /// Which part of a few-time key's signatures this host has, from 0, if the key was created for several.
    pub part: Option<Spanned<u16>>,
    /// The clock is kept right by other means than a time service of which the kernel knows.
    pub clock_kept_otherwise: Option<Spanned<bool>>,
    /// The trust anchor's public part.
    pub anchor: Option<Spanned<PathBuf>>,
    /// The folder of signed objects.
    pub objects: Option<Spanned<PathBuf>>,
    /// The trust anchor is another one, or lost its post-quantum key, and that is right.
    pub trust_changed_anchor: Option<Spanned<bool>>,
}

/// `[policy]`: the treatment of each verdict class.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicySection {
    pub valid: Option<Spanned<TreatmentSection>>,
    pub gap: Option<Spanned<TreatmentSection>>,
    pub unattested: Option<Spanned<TreatmentSection>>,
    /// Routes with an AS_SET (RFC 9774).
    pub aggregate: Option<Spanned<TreatmentSection>>,
    pub missing: Option<Spanned<TreatmentSection>>,
    pub expired: Option<Spanned<TreatmentSection>>,
    pub invalid: Option<Spanned<TreatmentSection>>,
    pub malformed: Option<Spanned<TreatmentSection>>,
}

/// The treatment of one verdict class.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreatmentSection {
    #[serde(default)]
    pub reject: bool,
    pub large_community: Option<Text<LargeCommunity>>,
    pub med: Option<u32>,
    pub local_pref: Option<u32>,
    #[serde(default)]
    pub log: bool,
}

impl TextValue for LargeCommunity {
    const EXPECTED: &'static str = "a large community, such as \"64497:1:2\"";
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

pub(super) fn default_attribute() -> Spanned<u64> {
    Spanned::new(0..0, u64::from(wayleave_attestation::chain::TYPE_CODE))
}

pub(super) fn default_capability() -> Spanned<u64> {
    Spanned::new(0..0, u64::from(wayleave_attestation::proxy::offer::CAPABILITY_CODE))
}

pub(super) fn default_lifetime() -> Spanned<u64> {
    Spanned::new(0..0, u64::from(wayleave_attestation::sign::DEFAULT_LIFETIME))
}

pub(super) fn default_uncertainty() -> Spanned<u64> {
    Spanned::new(0..0, wayleave_attestation::validate::DEFAULT_UNCERTAINTY)
}

pub(super) fn default_strength() -> Spanned<u64> {
    Spanned::new(0..0, 112)
}

fn default_most_memory() -> Spanned<u64> {
    Spanned::new(0..0, (MOST_MEMORY >> 20) as u64)
}

pub(super) fn default_most() -> Spanned<u64> {
    Spanned::new(0..0, wayleave_attestation::proxy::MAX_OCTETS as u64)
}

/// No source of keys or prefixes is configured.
pub(super) fn unknown_origins(keys: &KeysSection, rpki: &RpkiSection) -> Option<Fault> {
    let message = "neither a trust anchor in [keys] nor [rpki]: no origin's key is known, so that no route is valid";
    let is_nothing = keys.anchor.is_none() && rpki.is_empty();
    is_nothing.then(|| Fault { span: None, message: message.to_owned(), help: None })
}

/// Lower type codes are assigned, or will be next (IANA assigns them upwards; 42 was the last in 2025).
const FIRST_TYPE_CODE: u64 = 64;

/// Type codes from there on that routers give a meaning of their own.
const TAKEN_TYPE_CODES: [(u64, &str); 8] = [
    (99, "BGP-LS before it had a number"),
    (128, "ATTR_SET (RFC 6368)"),
    (129, "deprecated, since routers used it without an assignment (RFC 8093)"),
    (241, "deprecated, since routers used it without an assignment (RFC 8093)"),
    (242, "deprecated, since routers used it without an assignment (RFC 8093)"),
    (243, "deprecated, since routers used it without an assignment (RFC 8093)"),
    (HANDOVER.0 as u64, "the attribute of grants"),
    (254, "an internal attribute of BIRD's, which withdraws routes that come with it"),
];

fn attribute_fault(attribute: &Spanned<u64>) -> Option<Fault> {
    let code = *attribute.get_ref();
    let taken = TAKEN_TYPE_CODES.iter().find(|(taken, _)| *taken == code);
    let taken = taken.map(|(_, what)| {
        let message = format!("{code} is {what}, expected a type code without a meaning");
        Fault::at(attribute.span(), message)
            .help("without the key it is the default, which all attesting networks have")
    });
    taken.or_else(|| range(attribute, FIRST_TYPE_CODE, 255, "(an attribute's type code)"))
}

/// Faults in the terms of signing and validating.
pub(super) fn terms_faults(
    attribute: &Spanned<u64>,
    lifetime_minutes: &Spanned<u64>,
    clock_uncertainty_secs: &Spanned<u64>,
    least_strength: &Spanned<u64>,
) -> Vec<Fault> {
    let mut faults = Vec::new();
    faults.extend(attribute_fault(attribute));
    faults.extend(range(lifetime_minutes, 2, 7 * 24 * 60, "minutes"));
    faults.extend(range(clock_uncertainty_secs, 0, 86_400, "seconds"));
    faults.extend(range(least_strength, 0, 240, "bits"));
    if !least_strength.get_ref().is_multiple_of(16) {
        let message = format!("{} is not a strength of a suite, expected a multiple of 16", least_strength.get_ref());
        faults.push(Fault::at(least_strength.span(), message));
    }
    faults
}

impl KeysSection {
    pub(super) fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        if self.objects.is_some() != self.anchor.is_some() {
            let given = self.objects.as_ref().or(self.anchor.as_ref());
            let span = given.map(Spanned::span).unwrap_or_default();
            let message = "only one of `anchor` and `objects`, expected both or neither";
            faults.push(Fault::at(span, message).help("only objects that the anchor has signed count"));
        }
        faults
    }

    /// What is allowed, and dangerous.
    pub(super) fn warnings(&self) -> Vec<Fault> {
        [self.clock_warning(), self.anchor_warning()].into_iter().flatten().collect()
    }

    fn anchor_warning(&self) -> Option<Fault> {
        let trusted = self.trust_changed_anchor.as_ref().filter(|trusted| *trusted.get_ref())?;
        let message = "whoever changes the trust anchor's file, or takes its post-quantum key out, is not noticed";
        Some(Fault::at(trusted.span(), message).help("remove the line once the changed anchor is in force"))
    }

    /// Whether an anchor counts that is another one than before, or lost its post-quantum key.
    pub fn is_changed_anchor_trusted(&self) -> bool {
        self.trust_changed_anchor.as_ref().is_some_and(|trusted| *trusted.get_ref())
    }

    fn clock_warning(&self) -> Option<Fault> {
        let otherwise = self.clock_kept_otherwise.as_ref().filter(|otherwise| *otherwise.get_ref())?;
        let message = "few-time keys sign whatever the kernel says of this machine's clock: if it goes back by more than four \
                       seconds while the state file is lost, they sign twice with one index, and can be forged";
        Some(Fault::at(otherwise.span(), message).help("run a time service (NTP, PTP), and remove the line"))
    }

    /// Whether few-time keys sign whatever the kernel says of the clock.
    pub fn is_clock_kept_otherwise(&self) -> bool {
        self.clock_kept_otherwise.as_ref().is_some_and(|otherwise| *otherwise.get_ref())
    }

    /// The files that it names, and `more`, as they are now; nothing is read.
    pub fn snapshot(&self, source: &Source, more: Vec<PathBuf>) -> FileSnapshot {
        let path = |named: &Spanned<PathBuf>| source.resolve(named.get_ref());
        files::snapshot(self.anchor.as_ref().map(path), self.objects.as_ref().map(path).as_deref(), more)
    }

    /// The objects that the anchor has signed, and what was refused; `Ok(None)` without an anchor.
    pub fn objects<'o>(
        &self,
        source: &Source,
        remembered: impl Iterator<Item = &'o [u8]>,
    ) -> Result<Option<Objects>, Failure> {
        let (Some(anchor), Some(folder)) = (&self.anchor, &self.objects) else { return Ok(None) };
        let (path, folder) = (source.resolve(anchor.get_ref()), source.resolve(folder.get_ref()));
        let known = files::read_objects(&path, &folder, remembered, unix_now().secs());
        known.map(Some).map_err(|failure| source.failure(Fault::of(anchor.span(), &failure)))
    }

    /// The keys that a proxy signs with; empty without a file.
    pub fn ring(&self, asn: Asn, source: &Source) -> Outcome<KeyRing> {
        let Some(file) = &self.signing else { return Ok(KeyRing::default()) };
        let loaded = Keys::load("attest", &source.resolve(file.get_ref()));
        let loaded = loaded.map_err(|failure| source.failure(Fault::of(file.span(), &failure)))?;
        if loaded.asn != Some(asn) {
            let whose = loaded.asn.map_or("no AS".to_owned(), |asn| asn.to_string());
            let message = format!("these are keys of {whose}, expected keys of {asn}");
            return Err(source.failure(Fault::at(file.span(), message)).into());
        }
        let part = loaded.part(self.part.as_ref().map(|part| *part.get_ref()));
        let span = self.part.as_ref().map_or(file.span(), Spanned::span);
        let part = part.map_err(|message| source.failure(Fault::at(span, message)))?;
        Ok(loaded.ring(part))
    }

    /// Faults of the files that it names, at a proxy of AS `own`.
    pub(super) fn file_faults(&self, source: &Source, own: Asn) -> Vec<FileFault> {
        let mut faults = Vec::new();
        let named = [
            (&self.signing, "wayleave keys attest"),
            (&self.anchor, "wayleave keys anchor"),
            (&self.objects, "wayleave keys profile"),
        ];
        for (file, command) in named {
            let Some(file) = file else { continue };
            let path = source.resolve(file.get_ref());
            if !path.exists() {
                let fault = Fault::at(file.span(), format!("{} does not exist yet", path.display()));
                faults.push(FileFault::Missing(fault.help(format!("`{command}` creates it"))));
            }
        }
        let kinds = [(&self.signing, false), (&self.anchor, false), (&self.objects, true)];
        let kinds = kinds.into_iter().filter_map(|(file, is_folder)| kind_fault(file.as_ref()?, source, is_folder));
        let of_other_kind: Vec<FileFault> = kinds.collect();
        if !of_other_kind.is_empty() {
            faults.extend(of_other_kind);
            return faults;
        }
        let mut signing = None;
        if let Some(file) = self.signing.as_ref().filter(|file| source.resolve(file.get_ref()).exists()) {
            match Keys::load("attest", &source.resolve(file.get_ref())) {
                Err(failure) => faults.push(FileFault::Unusable(Fault::of(file.span(), &failure))),
                Ok(keys) => {
                    if let Err(message) = keys.part(self.part.as_ref().map(|part| *part.get_ref())) {
                        let span = self.part.as_ref().map_or(file.span(), Spanned::span);
                        faults.push(FileFault::Unusable(Fault::at(span, message)));
                    }
                    if let Some(of) = keys.asn.filter(|of| *of != own) {
                        let message = format!("the keys of this file are {of}'s, expected keys of {own}");
                        let fault = Fault::at(file.span(), message);
                        let help = format!("`wayleave keys attest FILE --asn {}` creates them", own.0);
                        faults.push(FileFault::Unusable(fault.help(help)));
                    }
                    signing = Some((file, keys));
                }
            }
        }
        let (Some(anchor), Some(objects)) = (&self.anchor, &self.objects) else { return faults };
        let (path, folder) = (source.resolve(anchor.get_ref()), source.resolve(objects.get_ref()));
        if path.exists() && folder.exists() {
            match set(&path, &folder, unix_now().secs()) {
                Err(failure) => faults.push(FileFault::Unusable(Fault::of(anchor.span(), &failure))),
                Ok(objects) => match objects.other_anchor(anchor.get_ref()) {
                    // Whoever can write the folder can cause it, and a running proxy has what its state file remembers.
                    Some((message, help)) => {
                        let message = format!(
                            "{message}; but for what the state file remembers, nothing counts and nothing is protected"
                        );
                        faults.push(FileFault::Doubtful(Fault::at(anchor.span(), message).help(help)));
                    }
                    None => {
                        let registered = signing.and_then(|(file, keys)| unregistered(&keys, own, &objects.set, file));
                        faults.extend(registered.map(FileFault::Doubtful));
                    }
                },
            }
        }
        faults
    }
}

/// Keys with which this AS signs and which its profile does not list, if it has one.
fn unregistered(keys: &Keys, own: Asn, set: &ObjectSet, file: &Spanned<PathBuf>) -> Option<Fault> {
    let listed = |public: &[u8]| {
        let mut of_own = set.objects().filter_map(|(object, _)| match object {
            Object::Profile(profile) if profile.asn == own => Some(&profile.keys),
            Object::Addition(addition) if addition.asn == own => Some(&addition.keys),
            _ => None,
        });
        of_own.any(|keys| keys.iter().any(|key| key.role == Role::Attest && key.public == public))
    };
    let has_profile = set.objects().any(|(object, _)| matches!(object, Object::Profile(profile) if profile.asn == own));
    let pairs = keys.pairs();
    let missing = pairs.iter().find(|(_, key)| !listed(key.public()))?;
    let suite = missing.0.name();
    let (message, help) = match has_profile {
        true => (
            format!(
                "the profile of {own} does not list the {suite} key of this file: nothing is signed with it, and without another key routes \
                 leave unsigned"
            ),
            "put the file with the key that the profile lists in its place, or have this one registered with `wayleave keys profile ... --add`",
        ),
        false => (
            format!(
                "the folder of objects has no profile of {own}: its {suite} key counts only where a neighbour endorses it"
            ),
            "`wayleave keys profile` makes one, signed by the anchor",
        ),
    };
    Some(Fault::at(file.span(), message).help(help))
}

impl PolicySection {
    pub(super) fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        for treatment in self.treatments() {
            let what = treatment.get_ref();
            let more = what.large_community.is_some() || what.med.is_some() || what.local_pref.is_some();
            if what.reject && more {
                let message = "a rejected route cannot be changed too, expected `reject` alone";
                faults.push(Fault::at(treatment.span(), message));
            }
        }
        faults
    }

    /// The policy that the section describes.
    pub fn policy(&self) -> Policy {
        let section = self;
        let mut policy = Policy::default();
        let classes = [
            (VerdictClass::Valid, &section.valid),
            (VerdictClass::Gap, &section.gap),
            (VerdictClass::Unattested, &section.unattested),
            (VerdictClass::Aggregate, &section.aggregate),
            (VerdictClass::Missing, &section.missing),
            (VerdictClass::Expired, &section.expired),
            (VerdictClass::Invalid, &section.invalid),
            (VerdictClass::Malformed, &section.malformed),
        ];
        for (class, treatment) in classes {
            let Some(treatment) = treatment else { continue };
            let treatment = treatment.get_ref();
            policy.set(
                class,
                Treatment {
                    reject: treatment.reject,
                    large_community: treatment.large_community.map(|community| community.0),
                    med: treatment.med,
                    local_pref: treatment.local_pref,
                    log: treatment.log,
                },
            );
        }
        policy
    }

    fn treatments(&self) -> impl Iterator<Item = &Spanned<TreatmentSection>> {
        let PolicySection { valid, gap, unattested, aggregate, missing, expired, invalid, malformed } = self;
        [valid, gap, unattested, aggregate, missing, expired, invalid, malformed].into_iter().flatten()
    }
}

//! The configuration of an attesting proxy.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use wayleave_attestation::proxy::policy::{Class, Policy, Treatment};
use wayleave_attestation::suite::hbs::Part;
use wayleave_bgp::LargeCommunity;
use wayleave_core::{Asn, Prefix};
use wayleave_runtime::clock::unix_now;

use super::check::Checked;
use super::rpki::RpkiSection;
use super::rs::{FileFault, StatusSection, range, status_warning};
use super::words::{Text, Word};
use super::{Fault, Source};
use crate::attestation_files::{Keys, fault, set};
use crate::failure::Failures;

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttestFile {
    pub attest: AttestSection,
    pub keys: KeysSection,
    #[serde(default)]
    pub rpki: RpkiSection,
    #[serde(default)]
    pub policy: PolicySection,
    #[serde(default)]
    pub pair: Vec<Spanned<PairSection>>,
    pub status: Option<StatusSection>,
}

/// `[attest]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttestSection {
    /// The AS whose proxy this is.
    pub asn: Spanned<Asn>,
    /// What must survive a restart.
    pub state: PathBuf,
    /// Whether the paper's suites and the baselines may appear.
    #[serde(default)]
    pub lab: bool,
    /// The attribute's type code.
    #[serde(default = "default_attribute")]
    pub attribute: Spanned<u64>,
    /// The code of the capability that offers keys.
    #[serde(default = "default_capability")]
    pub capability: Spanned<u64>,
    /// How long what is signed here holds.
    #[serde(default = "default_lifetime")]
    pub lifetime_minutes: Spanned<u64>,
    /// How far our clock and others' may be wrong.
    #[serde(default = "default_uncertainty")]
    pub clock_uncertainty_secs: Spanned<u64>,
    /// Bits of strength below which no suite is taken, or endorsed for a neighbour.
    #[serde(default = "default_strength")]
    pub least_strength: Spanned<u64>,
    /// Own prefixes that are signed, with those within them; all if not given.
    pub originate: Option<Vec<Prefix>>,
}

/// `[keys]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeysSection {
    /// The AS's private attestation keys; without them the proxy only validates.
    pub signing: Option<Spanned<PathBuf>>,
    /// Which part of a few-time key's signatures is this proxy's, where several proxies of the AS hold the same file.
    pub part: Option<Spanned<PartSection>>,
    /// The trust anchor's public part.
    pub anchor: Option<Spanned<PathBuf>>,
    /// The folder of signed objects.
    pub objects: Option<Spanned<PathBuf>>,
}

/// One of several equal parts.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartSection {
    /// Counted from 0.
    pub number: u16,
    pub of: u16,
}

/// `[policy]`: what follows from each class.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicySection {
    pub valid: Option<Spanned<TreatmentSection>>,
    pub gap: Option<Spanned<TreatmentSection>>,
    pub unattested: Option<Spanned<TreatmentSection>>,
    pub missing: Option<Spanned<TreatmentSection>>,
    pub expired: Option<Spanned<TreatmentSection>>,
    pub invalid: Option<Spanned<TreatmentSection>>,
    pub malformed: Option<Spanned<TreatmentSection>>,
}

/// What follows from a class.
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

/// `[[pair]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairSection {
    pub name: String,
    pub inside: Spanned<EndSection>,
    pub outside: Spanned<EndSection>,
    /// Octets of an attestation that the outside peer takes, at most, without and with extended messages.
    #[serde(default = "default_most")]
    pub most_octets: Spanned<u64>,
    #[serde(default = "default_most_extended")]
    pub most_octets_extended: Spanned<u64>,
    /// What our hops say of the neighbour: its own keys (`endorsed`), or a pair that we make (`granted`) if it asks.
    #[serde(default)]
    pub keys: NeighbourKeys,
    /// The neighbour is asked to make our pair.
    pub take_granted: Option<Spanned<bool>>,
}

/// Whose keys our hops give the neighbour.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct NeighbourKeys(Option<Spanned<KeysName>>);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum KeysName {
    Endorsed,
    Granted,
}

impl NeighbourKeys {
    /// Whether we make them.
    pub fn is_granted(&self) -> bool {
        self.0.as_ref().is_some_and(|name| *name.get_ref() == KeysName::Granted)
    }
}

/// One end of a pair.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndSection {
    pub listen: Option<Spanned<Text<SocketAddr>>>,
    pub connect: Option<Text<SocketAddr>>,
    /// Only the speaker at this address may connect.
    pub address: Option<Text<IpAddr>>,
    /// Only a speaker of this AS is taken; inside, that is our own.
    pub asn: Option<Spanned<Asn>>,
    /// The local address of connections that we open.
    pub bind: Option<Text<IpAddr>>,
    /// Time to live of what is sent: 255 for speakers that check it.
    pub ttl: Option<u8>,
    /// Prefixes of each family that it may announce; without it any number.
    pub max_prefixes: Option<u32>,
    /// It is a transparent route server, whose own AS is not on its paths (RFC 7947).
    #[serde(default)]
    pub route_server: bool,
    /// Nobody else reads this session: only then keys are handed over on it.
    #[serde(default)]
    pub protected: bool,
}

impl Word for LargeCommunity {
    const EXPECTED: &'static str = "a large community, as \"64497:1:2\"";
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

fn default_attribute() -> Spanned<u64> {
    Spanned::new(0..0, u64::from(wayleave_attestation::chain::TYPE_CODE))
}

fn default_capability() -> Spanned<u64> {
    Spanned::new(0..0, u64::from(wayleave_attestation::proxy::offer::CAPABILITY_CODE))
}

fn default_lifetime() -> Spanned<u64> {
    Spanned::new(0..0, u64::from(wayleave_attestation::attest::DEFAULT_LIFETIME))
}

fn default_uncertainty() -> Spanned<u64> {
    Spanned::new(0..0, wayleave_attestation::validate::DEFAULT_UNCERTAINTY)
}

fn default_strength() -> Spanned<u64> {
    Spanned::new(0..0, 112)
}

fn default_most() -> Spanned<u64> {
    Spanned::new(0..0, wayleave_attestation::proxy::MOST_OCTETS as u64)
}

fn default_most_extended() -> Spanned<u64> {
    Spanned::new(0..0, wayleave_attestation::proxy::MOST_OCTETS_EXTENDED as u64)
}

impl AttestFile {
    /// Reads and checks it; files that it names are not looked at.
    pub fn parse(source: &Source) -> Result<Self, Failures> {
        let file: Self = source.parse()?;
        let faults = file.faults();
        if faults.is_empty() {
            return Ok(file);
        }
        Err(Failures(faults.into_iter().map(|fault| source.failure(fault)).collect()))
    }

    pub(super) fn checked(source: &Source) -> Checked {
        match Self::parse(source) {
            Ok(file) => {
                let (mut errors, mut warnings) = (Vec::new(), file.warnings());
                for fault in file.file_faults(source) {
                    match fault {
                        // A configuration to start from needs no files yet.
                        FileFault::Missing(fault) => warnings.push(fault),
                        FileFault::Unusable(fault) => errors.push(fault),
                    }
                }
                Checked::found("attest", source, errors, warnings)
            }
            Err(failures) => Checked::wrong("attest", failures),
        }
    }

    /// What follows from each class.
    pub fn policy(&self) -> Policy {
        let section = &self.policy;
        let mut policy = Policy::default();
        let classes = [
            (Class::Valid, &section.valid),
            (Class::Gap, &section.gap),
            (Class::Unattested, &section.unattested),
            (Class::Missing, &section.missing),
            (Class::Expired, &section.expired),
            (Class::Invalid, &section.invalid),
            (Class::Malformed, &section.malformed),
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
        let PolicySection { valid, gap, unattested, missing, expired, invalid, malformed } = &self.policy;
        [valid, gap, unattested, missing, expired, invalid, malformed].into_iter().flatten()
    }

    fn faults(&self) -> Vec<Fault> {
        let attest = &self.attest;
        let mut faults = Vec::new();
        if !attest.asn.get_ref().is_routable() {
            let message =
                format!("{} is reserved, expected an AS number that may appear in a route", attest.asn.get_ref());
            faults.push(Fault::at(attest.asn.span(), message));
        }
        faults.extend(range(&attest.attribute, 41, 255, "(an attribute's type code)"));
        faults.extend(range(&attest.capability, 239, 254, "(codes for experiments, RFC 8810)"));
        faults.extend(range(&attest.lifetime_minutes, 2, 7 * 24 * 60, "minutes"));
        faults.extend(range(&attest.clock_uncertainty_secs, 0, 86_400, "seconds"));
        faults.extend(range(&attest.least_strength, 0, 240, "bits"));
        if !attest.least_strength.get_ref().is_multiple_of(16) {
            let message = format!("{} cannot be said, expected a multiple of 16", attest.least_strength.get_ref());
            faults.push(Fault::at(attest.least_strength.span(), message));
        }
        if self.keys.objects.is_some() != self.keys.anchor.is_some() {
            let given = self.keys.objects.as_ref().or(self.keys.anchor.as_ref());
            let span = given.map(Spanned::span).unwrap_or_default();
            let message = "one of `anchor` and `objects` alone, expected both or neither";
            faults.push(Fault::at(span, message).help("objects count as far as the anchor has signed them"));
        }
        if let Some(part) = &self.keys.part {
            let PartSection { number, of } = *part.get_ref();
            if Part::new(number, of).is_none() {
                let message =
                    format!("there is no part {number} of {of}, expected 0 to one less than `of`, which is 1 to 1024");
                faults.push(Fault::at(part.span(), message));
            }
        }
        for treatment in self.treatments() {
            let what = treatment.get_ref();
            let more = what.large_community.is_some() || what.med.is_some() || what.local_pref.is_some();
            if what.reject && more {
                let message = "a rejected route goes nowhere, expected `reject` without other changes";
                faults.push(Fault::at(treatment.span(), message));
            }
        }
        faults.extend(self.rpki.faults());
        self.pair_faults(&mut faults);
        faults
    }

    fn pair_faults(&self, faults: &mut Vec<Fault>) {
        let own = *self.attest.asn.get_ref();
        let mut listening: Vec<SocketAddr> = Vec::new();
        let mut names: Vec<&str> = Vec::new();
        for pair in &self.pair {
            let section = pair.get_ref();
            if names.contains(&section.name.as_str()) {
                faults.push(Fault::at(
                    pair.span(),
                    format!("a second pair `{}`, expected a name of its own", section.name),
                ));
            }
            names.push(&section.name);
            faults.extend(range(&section.most_octets, 256, 4_000, "octets"));
            faults.extend(range(&section.most_octets_extended, 256, 65_000, "octets"));
            if !section.outside.get_ref().protected {
                let grants = section.keys.0.as_ref().filter(|_| section.keys.is_granted()).map(Spanned::span);
                let takes = section.take_granted.as_ref().filter(|takes| *takes.get_ref()).map(Spanned::span);
                for span in grants.into_iter().chain(takes) {
                    let message = "private keys on a session that others may read, expected `protected = true` outside";
                    let help = "say so only if the session runs within IPsec, MACsec, a like tunnel, or one machine; TCP MD5 hides nothing";
                    faults.push(Fault::at(span, message).help(help));
                }
            }
            for end in [&section.inside, &section.outside] {
                let fields = end.get_ref();
                if fields.listen.is_none() && fields.connect.is_none() {
                    let message = "no way to reach this end, expected `listen` or `connect`, or both";
                    faults.push(Fault::at(end.span(), message));
                }
                if let Some(listen) = &fields.listen {
                    let address = listen.get_ref().0;
                    if listening.contains(&address) && address.port() != 0 {
                        let message = format!("another end listens at {address}, expected an address of its own");
                        faults.push(Fault::at(listen.span(), message));
                    }
                    listening.push(address);
                }
            }
            if let Some(asn) = section.inside.get_ref().asn.as_ref().filter(|asn| *asn.get_ref() != own) {
                let message = format!("{} inside, expected {own}, the AS of [attest]", asn.get_ref());
                faults.push(Fault::at(asn.span(), message));
            }
            if let Some(asn) = section.outside.get_ref().asn.as_ref().filter(|asn| *asn.get_ref() == own) {
                let message = format!("{own} outside too, expected another AS");
                faults.push(Fault::at(asn.span(), message).help("within one AS there is nothing to attest"));
            }
        }
    }

    fn file_faults(&self, source: &Source) -> Vec<FileFault> {
        let mut faults = self.rpki.file_faults(source);
        let named = [
            (&self.keys.signing, "wayleave keys attest"),
            (&self.keys.anchor, "wayleave keys anchor"),
            (&self.keys.objects, "wayleave keys profile"),
        ];
        for (file, command) in named {
            let Some(file) = file else { continue };
            let path = source.beside(file.get_ref());
            if !path.exists() {
                let fault = Fault::at(file.span(), format!("{} does not exist yet", path.display()));
                faults.push(FileFault::Missing(fault.help(format!("`{command}` makes it"))));
            }
        }
        if let Some(file) = self.keys.signing.as_ref().filter(|file| source.beside(file.get_ref()).exists())
            && let Err(failure) = Keys::load("attest", &source.beside(file.get_ref()))
        {
            faults.push(FileFault::Unusable(fault(file.span(), &failure)));
        }
        let (Some(anchor), Some(objects)) = (&self.keys.anchor, &self.keys.objects) else { return faults };
        let (path, folder) = (source.beside(anchor.get_ref()), source.beside(objects.get_ref()));
        if path.exists()
            && folder.exists()
            && let Err(failure) = set(&path, &folder, unix_now().secs())
        {
            faults.push(FileFault::Unusable(fault(anchor.span(), &failure)));
        }
        faults
    }

    fn warnings(&self) -> Vec<Fault> {
        let mut warnings = Vec::new();
        if self.pair.is_empty() {
            warnings.push(Fault { span: None, message: "no [[pair]]: nothing is proxied".to_owned(), help: None });
        }
        if self.keys.anchor.is_none() && self.rpki.cache.is_none() && self.rpki.certificates.is_none() {
            let message = "neither a trust anchor in [keys] nor [rpki]: no origin's key is known, and nothing is valid";
            warnings.push(Fault { span: None, message: message.to_owned(), help: None });
        }
        warnings.extend(self.status.as_ref().and_then(status_warning));
        warnings
    }
}

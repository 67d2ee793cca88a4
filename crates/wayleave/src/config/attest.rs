//! The configuration of an attesting proxy.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use wayleave_core::{Asn, Prefix};

pub use super::attestation::KeysSection;
use super::attestation::{
    PolicySection, default_attribute, default_capability, default_lifetime, default_most, default_strength,
    default_uncertainty, terms_faults, unknown_origins,
};
use super::check::Checked;
use super::parse::Text;
use super::rpki::RpkiSection;
use super::rs::{FileFault, StatusSection, range, status_warning};
use super::{Fault, Source};
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

fn default_most_extended() -> Spanned<u64> {
    Spanned::new(0..0, wayleave_attestation::proxy::MAX_OCTETS_EXTENDED as u64)
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
                for fault in file.keys.file_faults(source).into_iter().chain(file.rpki.file_faults(source)) {
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

    fn faults(&self) -> Vec<Fault> {
        let attest = &self.attest;
        let mut faults = Vec::new();
        if !attest.asn.get_ref().is_routable() {
            let message =
                format!("{} is reserved, expected an AS number that may appear in a route", attest.asn.get_ref());
            faults.push(Fault::at(attest.asn.span(), message));
        }
        let AttestSection { attribute, lifetime_minutes, clock_uncertainty_secs, least_strength, .. } = attest;
        faults.extend(range(&attest.capability, 239, 254, "(codes for experiments, RFC 8810)"));
        faults.extend(terms_faults(attribute, lifetime_minutes, clock_uncertainty_secs, least_strength));
        faults.extend(self.keys.faults());
        faults.extend(self.policy.faults());
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

    fn warnings(&self) -> Vec<Fault> {
        let mut warnings = Vec::new();
        if self.pair.is_empty() {
            warnings.push(Fault { span: None, message: "no [[pair]]: nothing is proxied".to_owned(), help: None });
        }
        warnings.extend(unknown_origins(&self.keys, &self.rpki));
        warnings.extend(self.status.as_ref().and_then(status_warning));
        warnings
    }
}

/// What `wayleave init attest` prints.
pub const TEMPLATE: &str = "# An attesting proxy between your BGP speakers and their neighbours. Run it with: wayleave run attest --config FILE\n\
     # Paths are relative to this file.\n\
     \n\
     [attest]\n\
     # Your AS.\n\
     asn = 64497\n\
     # What must survive a restart: how often keys have signed.\n\
     state = \"attest.redb\"\n\
     # How long what is signed here holds; it is signed again ahead of that.\n\
     #lifetime_minutes = 1440\n\
     # How far clocks may be wrong, yours and others'.\n\
     #clock_uncertainty_secs = 600\n\
     # Bits of strength below which no suite counts.\n\
     #least_strength = 112\n\
     # The attribute's type code, and the code of the capability that offers keys: the same in all networks.\n\
     #attribute = 255\n\
     #capability = 240\n\
     # Own prefixes that are signed, with those within them; all if not given.\n\
     #originate = [\"192.0.2.0/24\"]\n\
     \n\
     [keys]\n\
     # Your private keys, made by: wayleave keys attest attest.key --asn 64497\n\
     # Without them the proxy only validates.\n\
     signing = \"attest.key\"\n\
     # Where several proxies hold the same file and it has a few-time key (kc-hbs): which part of its signatures is this\n\
     # proxy's own. Never give two proxies the same part.\n\
     #part = { number = 0, of = 4 }\n\
     # The trust anchor's public part, and the folder of profiles and records that it has signed.\n\
     anchor = \"anchor.pub\"\n\
     objects = \"objects\"\n\
     \n\
     # What the RPKI says, beside the records: an RTR cache (RFC 8210) with who may originate what and the keys of routers,\n\
     # or a folder of router certificates (RFC 8209, .cer and .crl) under trust anchors. Read again on SIGHUP.\n\
     [rpki]\n\
     #cache = \"127.0.0.1:3323\"\n\
     #tls = { name = \"cache.example.net\", authorities = \"cache-ca.pem\" }\n\
     #anchors = [\"ta.cer\"]\n\
     #certificates = \"rpki\"\n\
     \n\
     # What follows from a verdict: reject, large_community, med, local_pref (within one AS), log. Classes: valid, gap,\n\
     # unattested, missing (the origin usually attests), expired, invalid, malformed. Read again on SIGHUP.\n\
     [policy]\n\
     invalid = { reject = true, log = true }\n\
     malformed = { reject = true, log = true }\n\
     expired = { reject = true, log = true }\n\
     #valid = { large_community = \"64497:1:1\" }\n\
     #gap = { large_community = \"64497:1:2\", med = 50 }\n\
     \n\
     # One pair for each neighbour. Each end sees the other as if the proxy were not there.\n\
     [[pair]]\n\
     name = \"neighbour\"\n\
     # Your own speaker: it connects to the address here, or the proxy connects to it.\n\
     inside = { listen = \"127.0.0.1:1790\", address = \"127.0.0.1\" }\n\
     # The neighbour.\n\
     outside = { connect = \"192.0.2.2:179\", asn = 64498 }\n\
     # Octets of an attestation that the neighbour takes, without and with extended messages. BIRD keeps 1,024 octets of\n\
     # each message for itself.\n\
     #most_octets = 2800\n\
     #most_octets_extended = 60000\n\
     # Your hops name the neighbour's own keys; or, where `protected = true` stands outside (nobody else reads the session),\n\
     # a pair that you make and hand over if it asks, and yours may be of its making.\n\
     #keys = \"granted\"\n\
     #take_granted = true\n\
     \n\
     # Status, metrics and views, for you alone.\n\
     [status]\n\
     listen = \"127.0.0.1:8485\"\n";

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
use super::check::{Checked, RoleConfig};
use super::machine::{absent_address, state_fault, taken_by_status};
use super::parse::Text;
use super::protection::{ProtectionKeys, TtlSecurity};
use super::rpki::RpkiSection;
use super::rs::{FileFault, StatusSection, range, status_warning};
use super::{Fault, Source};
use crate::failure::Failures;

/// `run attest`.
pub const ROLE: RoleConfig = RoleConfig {
    name: "attest",
    section: "attest",
    sections: "[attest], [keys] and [[pair]]",
    check: AttestFile::checked,
    template: |_| TEMPLATE.to_owned(),
};

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
    /// The file of the state that must survive a restart.
    pub state: Spanned<PathBuf>,
    /// Accept suites whose numbers are reserved for experiments; for a laboratory only.
    #[serde(default)]
    pub lab: bool,
    /// The attribute's type code.
    #[serde(default = "default_attribute")]
    pub attribute: Spanned<u64>,
    /// The code of the capability that offers keys.
    #[serde(default = "default_capability")]
    pub capability: Spanned<u64>,
    /// Validity of signatures made here.
    #[serde(default = "default_lifetime")]
    pub lifetime_minutes: Spanned<u64>,
    /// How far clocks may be wrong, this one and others.
    #[serde(default = "default_uncertainty")]
    pub clock_uncertainty_secs: Spanned<u64>,
    /// Least security strength, in bits, of suites that are accepted or endorsed for a neighbour.
    #[serde(default = "default_strength")]
    pub least_strength: Spanned<u64>,
    /// Whether all who extend what this AS signs must have post-quantum suites.
    #[serde(default)]
    pub require_post_quantum: bool,
    /// Own prefixes that are signed, with their more specific prefixes. Default: all.
    pub originate: Option<Vec<Prefix>>,
    /// Announce own routes too that what is registered does not let this AS originate.
    #[serde(default)]
    pub announce_unauthorised: bool,
}

/// `[[pair]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairSection {
    pub name: String,
    pub inside: Spanned<EndSection>,
    pub outside: Spanned<EndSection>,
    /// Longest attestation that the outside peer accepts, in octets, without and with extended messages.
    #[serde(default = "default_most")]
    pub most_octets: Spanned<u64>,
    #[serde(default = "default_most_extended")]
    pub most_octets_extended: Spanned<u64>,
    /// What the routes of this pair may take, in MiB.
    #[serde(default = "default_most_memory")]
    pub most_memory_mib: Spanned<u64>,
    /// The neighbour's keys in our hops: its own (`endorsed`), or a pair that we create on request (`granted`).
    #[serde(default)]
    pub keys: NeighbourKeys,
    /// Ask the neighbour to create our key pair.
    pub take_granted: Option<Spanned<bool>>,
}

/// The neighbour's keys in our hops.
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
    /// Whether we create them.
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
    /// The speaker's AS; inside it is our own.
    pub asn: Option<Spanned<Asn>>,
    /// The local address of outgoing connections.
    pub bind: Option<Text<IpAddr>>,
    /// IP TTL of outgoing packets. `ttl_security` sets it to 255.
    pub ttl: Option<u8>,
    /// The file with the password of TCP MD5 (RFC 2385), which the speaker has too.
    pub password_file: Option<Spanned<PathBuf>>,
    /// Take packets only from a speaker at most this many hops away (RFC 5082), and send so that it can check the same.
    pub ttl_security: Option<Spanned<TtlSecurity>>,
    /// Limit of prefixes by family. Default: none.
    pub max_prefixes: Option<u32>,
    /// The speaker is a transparent route server, whose AS is not on its paths (RFC 7947).
    #[serde(default)]
    pub route_server: bool,
    /// Nobody else can read this session; only then are private keys handed over on it.
    #[serde(default)]
    pub protected: bool,
}

fn default_most_extended() -> Spanned<u64> {
    Spanned::new(0..0, wayleave_attestation::proxy::MAX_OCTETS_EXTENDED as u64)
}

impl EndSection {
    /// The keys that protect the session.
    pub fn protection_keys(&self) -> ProtectionKeys<'_> {
        ProtectionKeys {
            listen: self.listen.as_ref().map(|listen| listen.get_ref().0),
            connect: self.connect.map(|connect| connect.0),
            address: self.address.map(|address| address.0),
            ttl: self.ttl,
            password_file: self.password_file.as_ref(),
            ttl_security: self.ttl_security.as_ref(),
        }
    }
}

fn default_most_memory() -> Spanned<u64> {
    Spanned::new(0..0, (wayleave_attestation::proxy::MOST_MEMORY >> 20) as u64)
}

impl AttestFile {
    /// Reads and checks the file, not the files that it names.
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
                let ends = file.pair.iter().flat_map(|pair| [&pair.get_ref().inside, &pair.get_ref().outside]);
                let passwords = ends.filter_map(|end| end.get_ref().protection_keys().file_faults(source));
                let own = *file.attest.asn.get_ref();
                let named = file.keys.file_faults(source, own).into_iter().chain(file.rpki.file_faults(source));
                let state = state_fault(&file.attest.state, source);
                for fault in named.chain(passwords).chain(state) {
                    match fault {
                        // A new configuration needs no files yet.
                        FileFault::Missing(fault) | FileFault::Doubtful(fault) => warnings.push(fault),
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
        let listening: Vec<SocketAddr> = self.listening().map(|listen| listen.get_ref().0).collect();
        faults.extend(taken_by_status(self.status.as_ref(), &listening));
        faults
    }

    /// Where the proxy listens for speakers.
    fn listening(&self) -> impl Iterator<Item = &Spanned<Text<SocketAddr>>> {
        let ends = self.pair.iter().flat_map(|pair| [&pair.get_ref().inside, &pair.get_ref().outside]);
        ends.filter_map(|end| end.get_ref().listen.as_ref())
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
                    format!("pair `{}` exists already, expected another name", section.name),
                ));
            }
            names.push(&section.name);
            faults.extend(range(&section.most_octets, 256, 4_000, "octets"));
            faults.extend(range(&section.most_octets_extended, 256, 65_000, "octets"));
            faults.extend(range(&section.most_memory_mib, 64, 1 << 20, "MiB"));
            if !section.outside.get_ref().protected {
                let grants = section.keys.0.as_ref().filter(|_| section.keys.is_granted()).map(Spanned::span);
                let takes = section.take_granted.as_ref().filter(|takes| *takes.get_ref()).map(Spanned::span);
                for span in grants.into_iter().chain(takes) {
                    let message =
                        "private keys would cross a session that is not protected, expected `protected = true` outside";
                    let help = "set it only if the session runs within IPsec, MACsec, a similar tunnel or one machine; TCP MD5 does not encrypt";
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
                faults.extend(fields.protection_keys().faults());
            }
            if let Some(asn) = section.inside.get_ref().asn.as_ref().filter(|asn| *asn.get_ref() != own) {
                let message = format!("{} is not this AS, expected {own}, the AS of [attest]", asn.get_ref());
                faults.push(Fault::at(asn.span(), message));
            }
            if let Some(asn) = section.outside.get_ref().asn.as_ref().filter(|asn| *asn.get_ref() == own) {
                let message = format!("{own} is this AS, expected the neighbour's");
                faults.push(Fault::at(asn.span(), message).help("sessions within one AS are not attested"));
            }
        }
    }

    fn warnings(&self) -> Vec<Fault> {
        let mut warnings = Vec::new();
        if self.pair.is_empty() {
            warnings.push(Fault { span: None, message: "no [[pair]]: nothing is proxied".to_owned(), help: None });
        }
        warnings.extend(unknown_origins(&self.keys, &self.rpki));
        warnings.extend(self.keys.warnings());
        warnings.extend(self.listening().filter_map(absent_address));
        warnings.extend(self.status.as_ref().and_then(status_warning));
        warnings
    }
}

/// What `wayleave init attest` prints.
const TEMPLATE: &str = "# An attesting proxy between your BGP speakers and their neighbours. Run it with: wayleave run attest --config FILE\n\
     # Paths are relative to this file.\n\
     \n\
     [attest]\n\
     # Your AS.\n\
     asn = 64497\n\
     # The state that should survive a restart: the last slot of time in which few-time keys have signed.\n\
     state = \"attest.redb\"\n\
     # Validity of signatures; routes are signed again before it ends.\n\
     #lifetime_minutes = 1440\n\
     # How far clocks may be wrong, yours and others', in seconds.\n\
     #clock_uncertainty_secs = 600\n\
     # Least security strength of accepted suites, in bits.\n\
     #least_strength = 112\n\
     # Whether all who extend your routes' attestations must sign with post-quantum suites.\n\
     #require_post_quantum = false\n\
     # The attribute's type code and the code of the capability that offers keys; all networks must use the same.\n\
     #attribute = 213\n\
     #capability = 240\n\
     # Own prefixes that are signed, with their more specific prefixes. Default: all.\n\
     #originate = [\"192.0.2.0/24\"]\n\
     # Announce own routes too that what is registered does not let this AS originate; others find them invalid.\n\
     #announce_unauthorised = false\n\
     \n\
     [keys]\n\
     # Your private keys, created by: wayleave keys attest attest.key --asn 64497\n\
     # Without them the proxy only validates. Reloaded on SIGHUP: a new key signs once the profile lists it.\n\
     signing = \"attest.key\"\n\
     # If the few-time key (kc-hbs) of that file was created for several hosts (`--parts`): the part of this host, from 0.\n\
     # Two hosts must never have the same part.\n\
     #part = 0\n\
     # Few-time keys sign only while the kernel says that a time service keeps its clock. Where it cannot know (a laboratory):\n\
     #clock_kept_otherwise = true\n\
     # The trust anchor's public part, and the folder of profiles and records that it has signed.\n\
     anchor = \"anchor.pub\"\n\
     objects = \"objects\"\n\
     # The anchor is another one, or lost its post-quantum key, and that is right: for one start.\n\
     #trust_changed_anchor = true\n\
     \n\
     # RPKI data, in addition to the records: an RTR cache (RFC 8210) with prefix origins and router keys, or a folder of\n\
     # router certificates (RFC 8209, .cer and .crl) with their trust anchors. Reloaded on SIGHUP.\n\
     [rpki]\n\
     #cache = \"127.0.0.1:3323\"\n\
     # The version of RTR that the cache knows, if it does not answer to newer ones: 0, 1 or 2.\n\
     #version = 1\n\
     #tls = { name = \"cache.example.net\", authorities = \"cache-ca.pem\" }\n\
     # In place of a cache a file of ROAs, as Routinator and rpki-client write it (JSON); it is read again when it changes.\n\
     #file = \"roas.json\"\n\
     # Or several in place of these, of which the one with the lowest number that is in order counts: [[rpki.source]], each with\n\
     # `preference` and one of `cache` and `file`.\n\
     #anchors = [\"ta.cer\"]\n\
     #certificates = \"rpki\"\n\
     \n\
     # Treatment by verdict: reject, large_community, med, local_pref (within one AS), log. Classes: valid, gap, unattested,\n\
     # aggregate (an AS_SET in the path), missing (the origin attests its routes), expired, invalid, malformed. Reloaded on SIGHUP.\n\
     [policy]\n\
     invalid = { reject = true, log = true }\n\
     malformed = { reject = true, log = true }\n\
     expired = { reject = true, log = true }\n\
     #valid = { large_community = \"64497:1:1\" }\n\
     #gap = { large_community = \"64497:1:2\", med = 50 }\n\
     # Routes with an AS_SET are rejected (RFC 9774) but with this.\n\
     #aggregate = {}\n\
     \n\
     # One pair of sessions for each neighbour. Each end sees the other as if there were no proxy.\n\
     [[pair]]\n\
     name = \"neighbour\"\n\
     # Your own speaker: it connects to the address here, or the proxy connects to it. On one machine its session is multihop.\n\
     inside = { listen = \"127.0.0.2:1790\", address = \"127.0.0.1\" }\n\
     # The neighbour.\n\
     outside = { connect = \"192.0.2.2:179\", asn = 64498 }\n\
     # Each end may have, as its speaker has it: `password_file`, a file with the password of TCP MD5 (RFC 2385) that only its\n\
     # owner can read (mode 0600), and `ttl_security = true`, or how many hops away the speaker is (RFC 5082):\n\
     #outside = { connect = \"192.0.2.2:179\", asn = 64498, password_file = \"neighbour.password\", ttl_security = true }\n\
     # Longest attestation that the neighbour accepts, in octets, without and with extended messages. BIRD reserves 1,024\n\
     # octets of each message.\n\
     #most_octets = 2800\n\
     #most_octets_extended = 60000\n\
     # Memory that the routes of this pair may take, in MiB; the session that goes beyond is stopped.\n\
     #most_memory_mib = 8192\n\
     # Your hops name the neighbour's own keys. With `protected = true` outside (nobody else can read the session) you may\n\
     # create its key pair on request, and it may create yours.\n\
     #keys = \"granted\"\n\
     #take_granted = true\n\
     \n\
     # Status pages and metrics, for you alone.\n\
     [status]\n\
     listen = \"127.0.0.1:8485\"\n";

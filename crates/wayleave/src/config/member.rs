//! The configuration of a member's proxy.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use wayleave_bgp::session::HoldTime;
use wayleave_core::Asn;
use wayleave_route_server::policy::config::{RankingConfig, RuleConfig};
use wayleave_route_server::policy::{Policy, PolicyConfig, PolicyError, PolicyProblem};
use wayleave_runtime::identity::Fingerprint;

use super::attestation::{AttestationSection, unknown_origins};
use super::check::Checked;
use super::parse::{HostPort, PublicKey, Text};
use super::rs::{FileFault, StatusSection, example, exchange_fault, key_fault, range, status_warning};
use super::{EXAMPLE_OPERATOR, EXAMPLE_PINS, Fault, Source};
use crate::failure::Failures;

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberFile {
    pub member: MemberSection,
    pub exchange: ExchangeSection,
    pub router: Spanned<RouterSection>,
    pub select_best: Option<SelectBestSection>,
    #[serde(default)]
    pub groups: BTreeMap<String, Vec<Asn>>,
    #[serde(default)]
    pub rule: Vec<Spanned<RuleConfig>>,
    pub ranking: Option<Spanned<RankingConfig>>,
    /// Without it routes are neither signed nor validated.
    pub attestation: Option<Spanned<AttestationSection>>,
    pub status: Option<StatusSection>,
}

/// `[member]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberSection {
    pub name: String,
    pub slot: u32,
    pub key: Spanned<PathBuf>,
    pub state: PathBuf,
    /// How long delivered routes are kept while a party is away.
    #[serde(default = "default_stale")]
    pub stale_secs: Spanned<u64>,
    /// How long a router that sends no End-of-RIB has to tell its routes after the proxy or it restarted.
    #[serde(default = "default_settle")]
    pub settle_secs: Spanned<u64>,
    /// Whether documentation and private prefixes are taken.
    #[serde(default)]
    pub lab: bool,
}

/// `[exchange]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExchangeSection {
    pub name: Spanned<String>,
    pub asn: Spanned<Asn>,
    pub operator: Spanned<Text<PublicKey>>,
    pub party1: PartyAt,
    pub party2: PartyAt,
}

/// Where a party is.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartyAt {
    pub address: Text<HostPort>,
    pub pin: Spanned<Text<Fingerprint>>,
}

/// `[router]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouterSection {
    pub listen: Option<Text<SocketAddr>>,
    pub connect: Option<Text<SocketAddr>>,
    /// Only the router at this address may connect.
    pub address: Option<Text<IpAddr>>,
    pub asn: Spanned<Asn>,
    pub router_id: Spanned<Text<Ipv4Addr>>,
    #[serde(default = "default_hold_time")]
    pub hold_time: Spanned<u16>,
    /// Time to live of what is sent: 255 for routers that check it.
    pub ttl: Option<u8>,
}

/// `[select_best]`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SelectBestSection {
    pub enabled: bool,
}

fn default_stale() -> Spanned<u64> {
    Spanned::new(0..0, 3600)
}

fn default_settle() -> Spanned<u64> {
    Spanned::new(0..0, 30)
}

fn default_hold_time() -> Spanned<u16> {
    Spanned::new(0..0, 90)
}

/// A configuration that can be used.
#[derive(Clone, Debug)]
pub struct MemberConfig {
    pub file: MemberFile,
    pub policy: Policy,
    pub hold_time: HoldTime,
}

impl MemberConfig {
    /// Reads and checks it; files that it names are not looked at.
    pub fn parse(source: &Source) -> Result<Self, Failures> {
        let file: MemberFile = source.parse()?;
        let mut faults = file.faults();
        let rules =
            PolicyConfig { groups: file.groups.clone(), rules: file.rule.clone(), ranking: file.ranking.clone() };
        let policy = Policy::compile(&rules).map_err(|error| {
            faults.push(policy_fault(&error));
        });
        match (policy, HoldTime::from_secs(*file.router.get_ref().hold_time.get_ref()), faults.is_empty()) {
            (Ok(policy), Some(hold_time), true) => Ok(Self { file, policy, hold_time }),
            _ => Err(Failures(faults.into_iter().map(|fault| source.failure(fault)).collect())),
        }
    }

    pub(super) fn checked(source: &Source) -> Checked {
        match Self::parse(source) {
            Ok(config) => {
                let (mut errors, mut warnings) = (Vec::new(), config.file.warnings());
                match key_fault(&config.file.member.key, source) {
                    // A configuration to start from needs no key yet.
                    Some(FileFault::Missing(fault)) if config.has_examples() => warnings.push(fault),
                    fault => errors.extend(fault.map(FileFault::into_fault)),
                }
                let attestation = config.file.attestation.as_ref().map(Spanned::get_ref);
                for fault in attestation.iter().flat_map(|section| section.file_faults(source)) {
                    match fault {
                        FileFault::Missing(fault) => warnings.push(fault),
                        FileFault::Unusable(fault) => errors.push(fault),
                    }
                }
                Checked::found("member", source, errors, warnings)
            }
            Err(failures) => Checked::wrong("member", failures),
        }
    }

    /// Whether it still has values from `init`, with which nothing can run.
    pub fn has_examples(&self) -> bool {
        let exchange = &self.file.exchange;
        let is_example = |party: &PartyAt| EXAMPLE_PINS.contains(&party.pin.get_ref().0.to_string().as_str());
        exchange.operator.get_ref().0.to_string() == EXAMPLE_OPERATOR
            || is_example(&exchange.party1)
            || is_example(&exchange.party2)
    }
}

/// The policy's own words, with what was expected at the caret.
fn policy_fault(error: &PolicyError) -> Fault {
    let (problem, mut help) = (&error.problem, None);
    let message = match problem {
        PolicyProblem::UnknownGroup { name, known } if known.is_empty() => {
            help = Some(format!("[groups] defines them, as: {name} = [64500, 64501]"));
            format!("no group `{name}`, expected a group, and there are none")
        }
        PolicyProblem::UnknownGroup { name, known } => {
            format!("no group `{name}`, expected one of: {}", known.join(", "))
        }
        PolicyProblem::AllOrNone(_) => format!("{problem}, expected AS numbers and groups"),
        PolicyProblem::WrongDirection { direction, .. } => {
            format!("{problem}, expected only what an {direction} rule has")
        }
        PolicyProblem::RejectAnd(_) => format!("{problem}, expected `reject` without other actions"),
        PolicyProblem::IgnoreWithoutAnnounce => {
            "`ignore_communities` permits nothing by itself, expected `announce` with \"all\" or a list beside it"
                .into()
        }
        _ => problem.to_string(),
    };
    Fault { span: error.span.clone(), message, help }
}

impl MemberFile {
    fn faults(&self) -> Vec<Fault> {
        let (exchange, router) = (&self.exchange, self.router.get_ref());
        let mut faults = Vec::new();
        faults.extend(exchange_fault(&exchange.name));
        for asn in [&exchange.asn, &router.asn] {
            if !asn.get_ref().is_routable() {
                let message =
                    format!("{} is reserved, expected an AS number that may appear in a route", asn.get_ref());
                faults.push(Fault::at(asn.span(), message));
            }
        }
        if exchange.party1.pin.get_ref() == exchange.party2.pin.get_ref() {
            let message = "party 1's fingerprint again, expected party 2's own";
            faults.push(
                Fault::at(exchange.party2.pin.span(), message)
                    .help("one operator of both parties could read every member's policy"),
            );
        }
        if router.listen.is_none() && router.connect.is_none() {
            let message = "no way to reach the router, expected `listen` or `connect`, or both";
            faults.push(Fault::at(self.router.span(), message));
        }
        if router.router_id.get_ref().0.is_unspecified() {
            let message = "0.0.0.0 identifies nobody, expected the proxy's own IPv4 address";
            faults.push(Fault::at(router.router_id.span(), message).help("RFC 6286 section 2.1"));
        }
        let hold_time = *router.hold_time.get_ref();
        if HoldTime::from_secs(hold_time).is_none() {
            let message = format!("a hold time of {hold_time} seconds is not allowed, expected 0 or 3 to 65535");
            faults.push(Fault::at(router.hold_time.span(), message).help("RFC 4271 section 4.2"));
        }
        faults.extend(range(&self.member.stale_secs, 1, 7 * 86_400, "seconds"));
        faults.extend(range(&self.member.settle_secs, 1, 3600, "seconds"));
        faults.extend(self.attestation.iter().flat_map(|section| section.get_ref().faults()));
        faults
    }

    fn warnings(&self) -> Vec<Fault> {
        let mut warnings = Vec::new();
        let exchange = &self.exchange;
        if exchange.operator.get_ref().0.to_string() == EXAMPLE_OPERATOR {
            warnings.push(example(exchange.operator.span(), "the operator's key, from the exchange's invitation"));
        }
        for party in [&exchange.party1, &exchange.party2] {
            if EXAMPLE_PINS.contains(&party.pin.get_ref().0.to_string().as_str()) {
                warnings.push(example(party.pin.span(), "the party's fingerprint, from the exchange's invitation"));
            }
        }
        warnings.extend(
            self.attestation
                .as_ref()
                .and_then(|section| unknown_origins(&section.get_ref().keys, &section.get_ref().rpki)),
        );
        warnings.extend(self.status.as_ref().and_then(status_warning));
        warnings
    }
}

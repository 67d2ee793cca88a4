//! The configuration of a member's proxy.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use wayleave_bgp::session::HoldTime;
use wayleave_core::Asn;
use wayleave_route_server::key_roles::{KeyRole, KeyRoles};
use wayleave_route_server::policy::config::{CommunitiesConfig, RankingConfig, RuleConfig};
use wayleave_route_server::policy::{NewMembers, Policy, PolicyConfig, PolicyError, PolicyProblem};
use wayleave_runtime::identity::{Fingerprint, Identity};

use super::attestation::{AttestationSection, unknown_origins};
use super::check::{Checked, RoleConfig};
use super::data::DataSection;
use super::listed;
use super::machine::{absent_address, state_fault, taken_by_status};
use super::parse::{HostPort, PublicKey, Text};
use super::protection::{ProtectionKeys, TtlSecurity};
use super::rpki::RpkiSection;
use super::rs::{
    FileFault, StatusSection, TRIAL, example, exchange_fault, has_example_operators, key_fault, operators_fault, range,
    shared_fault, status_warning,
};
use super::two_pairs::PairSection;
use super::{EXAMPLE_OPERATORS, EXAMPLE_PINS, Fault, Source};
use crate::failure::Failures;
use crate::key_files::attestation::{Keys, listed};
use crate::key_files::signing_key;

/// `run member`.
pub const ROLE: RoleConfig = RoleConfig {
    name: "member",
    section: "member",
    sections: "[member], [exchange] and [router]",
    check: MemberConfig::checked,
    template: |_| template(),
};

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
    pub communities: Option<CommunitiesConfig>,
    /// Without it routes are neither signed nor validated.
    pub attestation: Option<Spanned<AttestationSection>>,
    /// Without it, and without `[attestation.rpki]`, origins are not validated.
    pub rpki: Option<Spanned<RpkiSection>>,
    /// Without it nothing is refused by the exchange's data.
    pub data: Option<DataSection>,
    pub status: Option<StatusSection>,
    /// Without it no station hears of the session with the router.
    pub bmp: Option<BmpSection>,
    /// Further pairs of parties, with a member set, keys, a state and a session with the router of their own.
    #[serde(default)]
    pub pair: Vec<Spanned<PairSection>>,
}

/// `[member]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberSection {
    pub name: Spanned<String>,
    pub slot: Spanned<u32>,
    pub key: Spanned<PathBuf>,
    pub state: Spanned<PathBuf>,
    /// How long delivered routes are kept while a party is unreachable.
    #[serde(default = "default_stale")]
    pub stale_secs: Spanned<u64>,
    /// How long after a restart a router that sends no End-of-RIB has to announce its routes.
    #[serde(default = "default_settle")]
    pub settle_secs: Spanned<u64>,
    /// Whether slots that joined after this file was last checked get routes.
    #[serde(default = "default_new_members")]
    pub new_members: Spanned<NewMembersChoice>,
    /// With `new_members = "hold"`: the slots of the member set when it was last checked. Slots from this number on are new.
    pub known_slots: Option<Spanned<u32>>,
    /// New slots that are not held. Slots that the member set marks as held are, whatever `new_members` says, until they are
    /// listed here.
    #[serde(default)]
    pub released: Vec<Spanned<u32>>,
    /// Accept documentation and private prefixes; for a laboratory only.
    #[serde(default)]
    pub lab: bool,
    /// Announce and use routes with an AS_SET, which RFC 9774 has treated as withdrawn.
    pub accept_as_set: Option<Spanned<bool>>,
}

/// What an announcer does with slots that join.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NewMembersChoice {
    /// They get routes at once, as the policy says.
    #[default]
    Serve,
    /// They get none until they are released.
    Hold,
}

impl MemberSection {
    /// Whether routes with an AS_SET are taken, if the exchange's profile does not refuse them.
    #[must_use]
    pub fn accepts_as_set(&self) -> bool {
        self.accept_as_set.as_ref().is_some_and(|accepts| *accepts.get_ref())
    }

    fn new_members(&self) -> NewMembers {
        let held_from = self.known_slots.as_ref().map(|known| *known.get_ref());
        NewMembers {
            held_from: held_from.filter(|_| *self.new_members.get_ref() == NewMembersChoice::Hold),
            released: self.released.iter().map(|slot| *slot.get_ref()).collect(),
        }
    }

    fn new_members_faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        if *self.new_members.get_ref() == NewMembersChoice::Hold && self.known_slots.is_none() {
            let message = "`hold` without `known_slots`, expected the number of slots that the member set has today";
            faults.push(Fault::at(self.new_members.span(), message).help(
                "`wayleave members show` prints it; every slot from this number on is held until `released` lists it",
            ));
        }
        if let Some(known) =
            self.known_slots.as_ref().filter(|_| *self.new_members.get_ref() == NewMembersChoice::Serve)
        {
            let message = "`known_slots` without `new_members = \"hold\"` holds nothing, expected both or neither";
            faults.push(Fault::at(known.span(), message));
        }
        faults
    }
}

/// `[exchange]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExchangeSection {
    pub name: Spanned<String>,
    pub asn: Spanned<Asn>,
    /// Of party 1's and of party 2's operator.
    pub operators: Spanned<[Text<PublicKey>; 2]>,
    pub party1: PartyAt,
    pub party2: PartyAt,
}

/// A party's address and certificate.
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
    pub listen: Option<Spanned<Text<SocketAddr>>>,
    pub connect: Option<Text<SocketAddr>>,
    /// The local address of outgoing connections.
    pub bind: Option<Spanned<Text<IpAddr>>>,
    /// Only the router at this address may connect.
    pub address: Option<Spanned<Text<IpAddr>>>,
    pub asn: Spanned<Asn>,
    pub router_id: Spanned<Text<Ipv4Addr>>,
    #[serde(default = "default_hold_time")]
    pub hold_time: Spanned<u16>,
    /// The proxy's role in the session (RFC 9234).
    #[serde(default)]
    pub role: RouterRole,
    /// Refuse a router that states no role (RFC 9234 section 4.2).
    #[serde(default = "default_strict_role")]
    pub strict_role: Spanned<bool>,
    /// How many routes to a prefix the router gets, where it takes several (RFC 7911).
    pub add_path: Option<Spanned<u8>>,
    /// Whether the router's routes stay announced while it restarts, if it asks for that (RFC 4724).
    #[serde(default = "default_graceful_restart")]
    pub graceful_restart: bool,
    /// How long they stay at most after that, as long-lived stale ones (RFC 9494).
    #[serde(default = "default_long_lived")]
    pub long_lived_stale_secs: Spanned<u64>,
    /// IP TTL of outgoing packets. `ttl_security` sets it to 255.
    pub ttl: Option<u8>,
    /// The file with the password of TCP MD5 (RFC 2385), which the router has too.
    pub password_file: Option<Spanned<PathBuf>>,
    /// Take packets only from a router at most this many hops away (RFC 5082), and send so that it can check the same.
    pub ttl_security: Option<Spanned<TtlSecurity>>,
}

/// The proxy's role towards the router (RFC 9234).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouterRole {
    /// A route server's, whose client the router is: its routes get OTC, and a route of the router with OTC is a leak.
    #[default]
    Rs,
    /// None: nothing is stated, set or checked in this session.
    Off,
}

/// Most routes to a prefix for a router: our own limit.
const MOST_PATHS: u8 = 16;

/// The longest stale time that RFC 9494 has room for, three octets of seconds.
const MOST_LONG_LIVED: u64 = (1 << 24) - 1;

impl RouterSection {
    /// How many routes to a prefix the router gets.
    #[must_use]
    pub fn paths(&self) -> u8 {
        self.add_path.as_ref().map_or(1, |paths| *paths.get_ref())
    }

    fn session_faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        if let Some(paths) = self.add_path.as_ref().filter(|paths| !(1..=MOST_PATHS).contains(paths.get_ref())) {
            let message = format!("{} paths for a prefix, expected 1 (no ADD-PATH) to {MOST_PATHS}", paths.get_ref());
            faults.push(Fault::at(paths.span(), message).help("RFC 7911"));
        }
        faults.extend(range(&self.long_lived_stale_secs, 0, MOST_LONG_LIVED, "seconds"));
        faults
    }

    fn session_warnings(&self) -> Vec<Fault> {
        let is_set = |secs: &Spanned<u64>| !secs.span().is_empty() && *secs.get_ref() > 0;
        let lone = Some(&self.long_lived_stale_secs).filter(|secs| !self.graceful_restart && is_set(secs));
        let message = "`long_lived_stale_secs` without `graceful_restart` keeps nothing, expected both or neither";
        lone.map(|secs| Fault::at(secs.span(), message).help("RFC 9494 section 3.1")).into_iter().collect()
    }

    /// The keys that protect the session.
    pub fn protection_keys(&self) -> ProtectionKeys<'_> {
        ProtectionKeys {
            listen: self.listen.as_ref().map(|listen| listen.get_ref().0),
            connect: self.connect.map(|connect| connect.0),
            address: self.address.as_ref().map(|address| address.get_ref().0),
            ttl: self.ttl,
            password_file: self.password_file.as_ref(),
            ttl_security: self.ttl_security.as_ref(),
        }
    }
}

/// `[bmp]`: a station that hears of the session with the router (RFC 7854).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BmpSection {
    /// Where the station listens.
    pub connect: Text<HostPort>,
    /// The interval of Statistics Reports.
    #[serde(default = "default_statistics")]
    pub statistics_secs: Spanned<u64>,
}

/// `[select_best]`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SelectBestSection {
    pub enabled: bool,
}

fn default_new_members() -> Spanned<NewMembersChoice> {
    Spanned::new(0..0, NewMembersChoice::default())
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

fn default_graceful_restart() -> bool {
    true
}

fn default_long_lived() -> Spanned<u64> {
    Spanned::new(0..0, 86_400)
}

fn default_statistics() -> Spanned<u64> {
    Spanned::new(0..0, 60)
}

fn default_strict_role() -> Spanned<bool> {
    Spanned::new(0..0, false)
}

/// A valid configuration, with the compiled policy.
#[derive(Clone, Debug)]
pub struct MemberConfig {
    pub file: MemberFile,
    pub policy: Policy,
    pub hold_time: HoldTime,
    /// Those of further pairs of parties, each as if it were the only one.
    pub further: Vec<MemberConfig>,
}

impl MemberConfig {
    /// Reads and checks the file, not the files that it names.
    pub fn parse(source: &Source) -> Result<Self, Failures> {
        let file: MemberFile = source.parse()?;
        let of_pairs: Vec<MemberFile> = file.pair.iter().map(|pair| file.of_pair(pair.get_ref())).collect();
        let mut faults = file.faults();
        for fault in of_pairs.iter().flat_map(MemberFile::faults).chain(file.pair_faults()) {
            // What is wrong with the settings of all is told once.
            if !faults.contains(&fault) {
                faults.push(fault);
            }
        }
        let rules = PolicyConfig {
            groups: file.groups.clone(),
            rules: file.rule.clone(),
            ranking: file.ranking.clone(),
            communities: file.communities,
        };
        let policy = Policy::compile(&rules).map_err(|error| {
            faults.push(policy_fault(&error));
        });
        let of = |file: MemberFile, policy: &Policy| {
            let hold_time = HoldTime::from_secs(*file.router.get_ref().hold_time.get_ref())?;
            let policy = policy.clone().with_new_members(file.member.new_members());
            Some(Self { file, policy, hold_time, further: Vec::new() })
        };
        let all = policy.ok().filter(|_| faults.is_empty()).and_then(|policy| {
            let further = of_pairs.into_iter().map(|file| of(file, &policy)).collect::<Option<_>>()?;
            Some(Self { further, ..of(file, &policy)? })
        });
        all.ok_or_else(|| Failures(faults.into_iter().map(|fault| source.failure(fault)).collect()))
    }

    /// The keys that this member knows, with its own. `attest` are those with which its AS signs paths.
    pub fn keys(&self, identity: &Identity, attest: &[[u8; 32]]) -> Vec<(KeyRole, [u8; 32])> {
        let (member, exchange) = (&self.file.member, &self.file.exchange);
        let slot = *member.slot.get_ref();
        let asn = *self.file.router.get_ref().asn.get_ref();
        let [first, second] = exchange.operators.get_ref().each_ref().map(|key| key.0.0.to_bytes());
        let mut keys = vec![
            (KeyRole::SlotCertificate(slot), identity.fingerprint().0),
            (KeyRole::SlotSigning(slot), signing_key(identity).verifying_key().to_bytes()),
            (KeyRole::PartyCertificate(1), exchange.party1.pin.get_ref().0.0),
            (KeyRole::PartyCertificate(2), exchange.party2.pin.get_ref().0.0),
            (KeyRole::Operator(1), first),
            (KeyRole::Operator(2), second),
        ];
        keys.extend(attest.iter().map(|key| (KeyRole::Attestation(asn), *key)));
        keys
    }

    /// A key that has two roles, at the value that says so.
    fn shared_key_fault(&self, source: &Source) -> Option<Fault> {
        let identity = Identity::load(&source.resolve(self.file.member.key.get_ref())).ok()?;
        let attest = self.file.attestation.as_ref().and_then(|section| {
            let path = source.resolve(section.get_ref().keys.signing.as_ref()?.get_ref());
            Keys::load("attest", &path).ok()
        });
        let attest: Vec<[u8; 32]> = attest.iter().flat_map(listed).collect();
        let shared = KeyRoles::of(self.keys(&identity, &attest)).err()?;
        let span = match shared.second {
            KeyRole::PartyCertificate(1) => self.file.exchange.party1.pin.span(),
            KeyRole::PartyCertificate(_) => self.file.exchange.party2.pin.span(),
            KeyRole::Operator(_) => self.file.exchange.operators.span(),
            _ => self.file.member.key.span(),
        };
        Some(shared_fault(span, &shared))
    }

    pub(super) fn checked(source: &Source) -> Checked {
        match Self::parse(source) {
            Ok(config) => {
                let (mut errors, mut warnings) = (Vec::new(), Vec::new());
                let mut add = |fault: FileFault, is_error: bool| {
                    let (all, fault) = match fault {
                        FileFault::Unusable(fault) if is_error => (&mut errors, fault),
                        FileFault::Missing(fault) | FileFault::Doubtful(fault) | FileFault::Unusable(fault) => {
                            (&mut warnings, fault)
                        }
                    };
                    // What is wrong with the settings of all pairs is told once.
                    if !all.contains(&fault) {
                        all.push(fault);
                    }
                };
                let has_examples = config.has_examples();
                for config in config.pairs() {
                    config.file.warnings().into_iter().for_each(|fault| add(FileFault::Doubtful(fault), false));
                    match key_fault(&config.file.member.key, source) {
                        // A new configuration needs no key yet.
                        Some(FileFault::Missing(fault)) if has_examples => add(FileFault::Missing(fault), false),
                        fault => fault.into_iter().for_each(|f| add(FileFault::Unusable(f.into_fault()), true)),
                    }
                    let shared = config.shared_key_fault(source).map(FileFault::Unusable);
                    let state = state_fault(&config.file.member.state, source).map(FileFault::into_fault);
                    let asn = *config.file.router.get_ref().asn.get_ref();
                    let attestation = config.file.attestation.as_ref().map(Spanned::get_ref);
                    let password = config.file.router.get_ref().protection_keys().file_faults(source);
                    let of_set = listed::faults(config, source);
                    let of_keys = attestation.iter().flat_map(|section| section.file_faults(source, asn));
                    let of_rpki = config.file.rpki.iter().flat_map(|section| section.get_ref().file_faults(source));
                    let of_data = config.file.data.iter().filter_map(|section| section.file_faults(source));
                    let first = shared.into_iter().chain(state.map(FileFault::Unusable));
                    let all = first.chain(of_keys).chain(password).chain(of_set).chain(of_rpki).chain(of_data);
                    all.for_each(|fault| add(fault, true));
                }
                config.shared_by_pairs(source).into_iter().for_each(|fault| add(FileFault::Unusable(fault), true));
                let examples = config.pairs().flat_map(|config| config.file.examples()).collect();
                let mut checked = Checked::found("member", source, errors, warnings).with_examples(source, examples);
                checked
                    .notes
                    .extend(config.pairs().filter_map(|config| config.file.router.get_ref().protection_keys().note()));
                let notes = config.pairs().filter_map(|config| listed::not_compared(config, source));
                for note in notes {
                    if !checked.notes.contains(&note) {
                        checked.notes.push(note);
                    }
                }
                checked
            }
            Err(failures) => Checked::wrong("member", failures),
        }
    }

    /// Whether it still has example values from `init`, with which the role cannot run.
    pub fn has_examples(&self) -> bool {
        let is_example = |party: &PartyAt| EXAMPLE_PINS.contains(&party.pin.get_ref().0.to_string().as_str());
        self.pairs().map(|config| &config.file.exchange).any(|exchange| {
            has_example_operators(&exchange.operators) || is_example(&exchange.party1) || is_example(&exchange.party2)
        })
    }
}

/// The policy's error, with what was expected at the caret.
pub fn policy_fault(error: &PolicyError) -> Fault {
    let (problem, mut help) = (&error.problem, None);
    let message = match problem {
        PolicyProblem::UnknownGroup { name, known } if known.is_empty() => {
            help = Some(format!("define it in [groups]: {name} = [64500, 64501]"));
            format!("no group `{name}`, expected a group, but none is defined")
        }
        PolicyProblem::UnknownGroup { name, known } => {
            format!("no group `{name}`, expected one of: {}", known.join(", "))
        }
        PolicyProblem::AllOrNone(_) => format!("{problem}, expected AS numbers and groups"),
        PolicyProblem::WrongDirection { direction, .. } => {
            format!("{problem}, expected a key of {direction} rules")
        }
        PolicyProblem::RejectAnd(_) => format!("{problem}, expected `reject` without other actions"),
        PolicyProblem::IgnoreWithoutAnnounce => {
            "`ignore_communities` permits nothing by itself, expected `announce` with \"all\" or a list as well".into()
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
        faults.extend(operators_fault(&exchange.operators));
        for asn in [&exchange.asn, &router.asn] {
            if !asn.get_ref().is_routable() {
                let message =
                    format!("{} is reserved, expected an AS number that may appear in a route", asn.get_ref());
                faults.push(Fault::at(asn.span(), message));
            }
        }
        if exchange.asn.get_ref() == router.asn.get_ref() {
            let message = format!("{} is the exchange's, expected the AS number of your router", router.asn.get_ref());
            faults.push(Fault::at(router.asn.span(), message));
        }
        if let Some(bind) = &router.bind {
            let is_same = |connect: Text<SocketAddr>| connect.0.is_ipv4() == bind.get_ref().0.is_ipv4();
            if !router.connect.is_some_and(is_same) {
                let message =
                    "only outgoing connections have this address, expected `connect` with one of the same family";
                faults.push(Fault::at(bind.span(), message));
            }
        }
        if exchange.party1.pin.get_ref() == exchange.party2.pin.get_ref() {
            let message = "the same fingerprint as party 1's, expected party 2's";
            faults.push(
                Fault::at(exchange.party2.pin.span(), message)
                    .help("whoever operates both parties can read every member's policy"),
            );
        }
        if exchange.party1.address == exchange.party2.address {
            let message = "the same address as party 1's, expected party 2's";
            faults.push(
                Fault::at(exchange.party2.pin.span(), message)
                    .help("the parties are two organisations with hosts of their own"),
            );
        }
        if router.listen.is_none() && router.connect.is_none() {
            let message = "no way to reach the router, expected `listen` or `connect`, or both";
            faults.push(Fault::at(self.router.span(), message));
        }
        if router.router_id.get_ref().0.is_unspecified() {
            let message = "0.0.0.0 is not a BGP identifier, expected an IPv4 address of the proxy";
            faults.push(Fault::at(router.router_id.span(), message).help("RFC 6286 section 2.1"));
        }
        if let Some(connect) = router.connect.filter(|connect| connect.0.port() == 0) {
            let message = format!("port 0 of {} is no port, expected the router's, usually 179", connect.0.ip());
            faults.push(Fault::at(self.router.span(), message));
        }
        let listening: Vec<SocketAddr> = router.listen.iter().map(|listen| listen.get_ref().0).collect();
        faults.extend(taken_by_status(self.status.as_ref(), &listening));
        let hold_time = *router.hold_time.get_ref();
        if HoldTime::from_secs(hold_time).is_none() {
            let message = format!("a hold time of {hold_time} seconds is not allowed, expected 0 or 3 to 65535");
            faults.push(Fault::at(router.hold_time.span(), message).help("RFC 4271 section 4.2"));
        }
        if *router.strict_role.get_ref() && router.role == RouterRole::Off {
            let message = "`strict_role` without a role requires nothing, expected `role = \"rs\"`, or neither";
            faults.push(Fault::at(router.strict_role.span(), message).help("RFC 9234 section 4.2"));
        }
        faults.extend(self.member.new_members_faults());
        faults.extend(router.session_faults());
        faults.extend(router.protection_keys().faults());
        faults.extend(range(&self.member.stale_secs, 1, 7 * 86_400, "seconds"));
        faults.extend(range(&self.member.settle_secs, 1, 3600, "seconds"));
        faults.extend(self.bmp.iter().filter_map(|bmp| range(&bmp.statistics_secs, 5, 86_400, "seconds")));
        faults.extend(self.attestation.iter().flat_map(|section| section.get_ref().faults()));
        if let Some(rpki) = &self.rpki {
            if self.attestation.is_some() {
                let message = "[rpki] beside [attestation], expected [attestation.rpki], which serves both";
                let help = "move its keys there: routes whose origin is invalid are refused with what it says, too";
                faults.push(Fault::at(rpki.span(), message).help(help));
            }
            faults.extend(rpki.get_ref().origin_faults());
        }
        faults
    }

    fn examples(&self) -> Vec<Fault> {
        let mut examples = Vec::new();
        let exchange = &self.exchange;
        if has_example_operators(&exchange.operators) {
            examples.push(example(exchange.operators.span(), "both operators' keys, from the invitation"));
        }
        for party in [&exchange.party1, &exchange.party2] {
            if EXAMPLE_PINS.contains(&party.pin.get_ref().0.to_string().as_str()) {
                examples.push(example(party.pin.span(), "the party's fingerprint, from the exchange's invitation"));
            }
        }
        examples
    }

    fn warnings(&self) -> Vec<Fault> {
        let mut warnings = Vec::new();
        warnings.extend(
            self.attestation
                .as_ref()
                .and_then(|section| unknown_origins(&section.get_ref().keys, &section.get_ref().rpki)),
        );
        warnings.extend(self.attestation.iter().flat_map(|section| section.get_ref().keys.warnings()));
        if let Some(rpki) = self.rpki.as_ref().filter(|section| section.get_ref().is_empty()) {
            let message = "neither `cache` nor `file` in [rpki]: no route is refused for its origin";
            warnings.push(Fault::at(rpki.span(), message));
        }
        warnings.extend(self.router_warnings());
        warnings.extend(self.status.as_ref().and_then(status_warning));
        if is_trial(self.exchange.name.get_ref()) {
            let message =
                format!("`{}` is a trial: one person has the keys of both parties", self.exchange.name.get_ref());
            let help = "who runs it can read your policy; announce nothing to it that you would not publish";
            warnings.push(Fault::at(self.exchange.name.span(), message).help(help));
        }
        warnings
    }
}

impl MemberFile {
    /// Where the member learns who may originate what (RFC 6811): its own section, or that of attestation.
    pub fn rpki(&self) -> Option<&RpkiSection> {
        let of_attestation = self.attestation.as_ref().map(|section| &section.get_ref().rpki);
        of_attestation.or(self.rpki.as_ref().map(Spanned::get_ref))
    }
}

/// Whether an exchange is one person's, for a trial.
pub fn is_trial(exchange: &str) -> bool {
    exchange.starts_with(TRIAL)
}

impl MemberFile {
    /// What is allowed of `[router]`, and probably not meant.
    fn router_warnings(&self) -> Vec<Fault> {
        let router = self.router.get_ref();
        let mut warnings: Vec<Fault> = router.listen.iter().filter_map(absent_address).collect();
        warnings.extend(router.session_warnings());
        let id = IpAddr::V4(router.router_id.get_ref().0);
        let (address, connect) = (router.address.as_ref(), router.connect.map(|connect| connect.0.ip()));
        if address.is_some_and(|address| address.get_ref().0 == id) || connect == Some(id) {
            let message = format!("{id} is the router's address, expected an identifier of the proxy's own");
            let help =
                "two speakers with one BGP identifier refuse each other, or each other's routes (RFC 4271 section 6.2)";
            warnings.push(Fault::at(router.router_id.span(), message).help(help));
        }
        if let Some((address, connect)) = address.zip(connect).filter(|(address, to)| address.get_ref().0 != *to) {
            let message = format!(
                "the proxy connects to {connect}, and only {} may connect to it, expected one router",
                address.get_ref().0
            );
            warnings.push(Fault::at(address.span(), message));
        }
        warnings
    }
}

/// What `wayleave init member` prints.
fn template() -> String {
    template_with(&Invitation {
        name: "alpha",
        slot: 0,
        asn: 64_497,
        pin: None,
        router: None,
        router_id: Some("192.0.2.101"),
        exchange: "example-ix",
        rs_asn: 64_496,
        operators: EXAMPLE_OPERATORS.map(str::to_owned),
        parties: [("127.0.0.1:7001", EXAMPLE_PINS[0]), ("127.0.0.1:7002", EXAMPLE_PINS[1])],
        beside: None,
    })
}

/// A proxy on its router's own machine, in a trial with others.
pub struct BesideRouter {
    /// Its address on loopback, with which the router has the session.
    pub proxy: Ipv4Addr,
    /// The port of its status pages.
    pub status: u16,
}

/// Where a proxy listens for a router of the same machine: at an address that no interface has, since no router takes one of its own
/// for a neighbour's; and not at the router's port.
const BESIDE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// The port.
pub const BESIDE_PORT: u16 = 1790;
const STATUS: u16 = 8490;

/// The values in which members' configurations differ.
pub struct Invitation<'a> {
    pub name: &'a str,
    pub slot: u32,
    pub asn: u32,
    /// The fingerprint of the slot's certificate, where the set has it: the member's key file may have another name.
    pub pin: Option<String>,
    /// The router's address, if known; then nobody else may connect.
    pub router: Option<String>,
    /// The proxy's BGP identifier; if not known, the member fills it in.
    pub router_id: Option<&'a str>,
    pub exchange: &'a str,
    pub rs_asn: u32,
    /// Of party 1 and party 2.
    pub operators: [String; 2],
    pub parties: [(&'a str, &'a str); 2],
    /// In a trial on one machine.
    pub beside: Option<BesideRouter>,
}

/// A member's configuration with these values.
pub fn template_with(parts: &Invitation<'_>) -> String {
    let Invitation { name, slot, asn, router, router_id, exchange, rs_asn, operators: [operator1, operator2], .. } =
        parts;
    let Invitation { parties, beside, pin, .. } = parts;
    let which = pin.as_ref().map_or(String::new(), |pin| {
        format!(
            "# The key file with which this slot was requested, of which `wayleave keys show` prints\n\
             # pin {pin}:\n\
             # if yours has another name, put that in.\n"
        )
    });
    let (proxy, status) = beside.as_ref().map_or((BESIDE, STATUS), |beside| (beside.proxy, beside.status));
    // What only a trial has from the beginning.
    let trial = if beside.is_some() { "" } else { "#" };
    // A name of the member set is printable, but may hold what TOML quotes.
    let (quoted, exchange) = (toml::Value::from(*name), toml::Value::from(*exchange));
    let file: String = name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' }).collect();
    let address = router.as_ref().map_or("#address = \"192.0.2.1\"".to_owned(), |ip| format!("address = \"{ip}\""));
    let connect = router.as_deref().unwrap_or("192.0.2.1");
    let connect = if connect.contains(':') { format!("[{connect}]:179") } else { format!("{connect}:179") };
    let router_id = match router_id {
        Some(id) => format!("router_id = \"{id}\""),
        None => "# Fill in:\n#router_id = \"192.0.2.101\"".to_owned(),
    };
    let [(address1, pin1), (address2, pin2)] = parties;
    format!(
        "# A member's proxy. Run it with: wayleave run member --config FILE\n\
         # Paths are relative to this file.\n\
         \n\
         [member]\n\
         name = {quoted}\n\
         slot = {slot}\n\
         # Created by: wayleave keys new {file}.key (send the public keys to the exchange)\n\
         {which}\
         key = \"{file}.key\"\n\
         # The state that must survive a restart.\n\
         state = \"{file}.redb\"\n\
         # How long routes are kept while a party is unreachable, in seconds.\n\
         #stale_secs = 3600\n\
         # In a laboratory: take routes to prefixes that are reserved for documentation.\n\
         {trial}lab = true\n\
         # Announce and use routes with an AS_SET, which are treated as withdrawn otherwise (RFC 9774).\n\
         #accept_as_set = true\n\
         # Whether slots that join later get routes: \"serve\", or \"hold\" until `released` lists them. A further slot of an AS\n\
         # for which none of its other slots signed is held in any case.\n\
         #new_members = \"hold\"\n\
         # The number of slots when you last checked the member set, and slots that you let since.\n\
         #known_slots = 12\n\
         #released = [12, 14]\n\
         \n\
         [exchange]\n\
         name = {exchange}\n\
         # The AS number of the exchange's route server, as used in communities.\n\
         asn = {rs_asn}\n\
         # The public keys of party 1's and party 2's operators, who both sign the member set.\n\
         operators = [\"{operator1}\", \"{operator2}\"]\n\
         party1 = {{ address = \"{address1}\", pin = \"{pin1}\" }}\n\
         party2 = {{ address = \"{address2}\", pin = \"{pin2}\" }}\n\
         \n\
         # Your own BGP router, which peers with this proxy as with any route server. On the router's own machine the proxy has an\n\
         # address on loopback (docs/guide/member.md); on another one, one of the exchange's network, and port 179.\n\
         [router]\n\
         listen = \"{proxy}:{BESIDE_PORT}\"\n\
         # The proxy connects to the router, too, from the address in `bind`:\n\
         {trial}connect = \"{connect}\"\n\
         {trial}bind = \"{proxy}\"\n\
         # Only the router at this address may connect.\n\
         {address}\n\
         asn = {asn}\n\
         # The proxy's BGP identifier: an IPv4 address of yours, not the router's.\n\
         {router_id}\n\
         #hold_time = 90\n\
         # The proxy's role in the session (RFC 9234): \"rs\", a route server's, or \"off\"; and whether the router must state its own.\n\
         #role = \"rs\"\n\
         #strict_role = true\n\
         # Give the router up to so many routes to a prefix, if it takes them (ADD-PATH, RFC 7911).\n\
         #add_path = 4\n\
         # Keep the router's routes announced while it restarts, if it asks for that (RFC 4724), and for so long after that as\n\
         # long-lived stale ones (RFC 9494).\n\
         #graceful_restart = true\n\
         #long_lived_stale_secs = 86400\n\
         # As your router has them: a file with the password of TCP MD5 (RFC 2385) that only its owner can read (mode 0600); TTL\n\
         # security (RFC 5082), `true` or how many hops away the router is.\n\
         #password_file = \"{file}.password\"\n\
         #ttl_security = true\n\
         \n\
         # Hides your ranking from everyone else; you learn only the winner.\n\
         [select_best]\n\
         enabled = true\n\
         \n\
         # Who may have which routes, in addition to the communities that your router sets:\n\
         #[groups]\n\
         #rivals = [64500, 64501]\n\
         #\n\
         #[[rule]]\n\
         #direction = \"export\"\n\
         #prefix = \"192.0.2.0/24+\"\n\
         #hide_from = \"rivals\"\n\
         #\n\
         # Which routes you prefer:\n\
         #[[rule]]\n\
         #direction = \"import\"\n\
         #as_path = \"_64511_\"\n\
         #local_pref = 50\n\
         #\n\
         # Whether receivers' proxies prepend, or add NO_EXPORT and NO_ADVERTISE, as your communities say for one peer: then every\n\
         # receiver can read which peers they name. \"private\": it is not done.\n\
         #[communities]\n\
         #per_peer = \"readable\"\n\
         \n\
         # Refuse routes whose origin the RPKI does not let announce the prefix (RFC 6811), and do not announce such: an RTR cache\n\
         # (Routinator, rpki-client with stayrtr), or a file that one of them writes. With [attestation] it is [attestation.rpki].\n\
         #[rpki]\n\
         #cache = \"127.0.0.1:3323\"\n\
         #file = \"roas.json\"\n\
         # Or several, of which the one with the lowest number that is in order counts:\n\
         #[[rpki.source]]\n\
         #preference = 1\n\
         #cache = \"127.0.0.1:3323\"\n\
         #[[rpki.source]]\n\
         #preference = 2\n\
         #file = \"roas.json\"\n\
         \n\
         # Refuse routes that the routing registries do not have for their announcer, where the exchange has such data: the file\n\
         # that both operators' machines sign. It is read again when it changes.\n\
         #[data]\n\
         #file = \"example-ix.data\"\n\
         \n\
         # Another pair of parties of the same exchange, as a second route server, is a [[pair]] (docs/guide/two-pairs.md).\n\
         \n\
         # To sign your announcements and validate those of others:\n\
         #[attestation]\n\
         #lifetime_minutes = 1440\n\
         #clock_uncertainty_secs = 600\n\
         #least_strength = 112\n\
         # Longest attestation in octets: it must fit the messages of every member's router.\n\
         #most_octets = 2800\n\
         # Memory that the routes of other members may take, in MiB; one member's take a quarter at most.\n\
         #most_memory_mib = 4096\n\
         #originate = [\"192.0.2.0/24\"]\n\
         # Announce own routes too that what is registered does not let this AS originate; others find them invalid.\n\
         #announce_unauthorised = false\n\
         #[attestation.keys]\n\
         # Created by: wayleave keys attest attest.key --asn {asn} (public keys go to the exchange and to the trust anchor)\n\
         #signing = \"attest.key\"\n\
         #anchor = \"anchor.pub\"\n\
         #objects = \"objects\"\n\
         # Treatment by verdict, before import rules: reject, large_community, med, log.\n\
         #[attestation.policy]\n\
         #valid = {{ large_community = \"{asn}:1:1\" }}\n\
         \n\
         # Tell a BMP station (RFC 7854) of the session with the router: what the router announces, and what it gets. Statistics every\n\
         # so many seconds.\n\
         #[bmp]\n\
         #connect = \"127.0.0.1:11019\"\n\
         #statistics_secs = 60\n\
         \n\
         # Status pages and metrics. They show the results of your policy: for you alone.\n\
         [status]\n\
         listen = \"127.0.0.1:{status}\"\n\
         # Answer a looking glass (Alice-LG) at /birdwatcher. It shows who lets you have routes, and which you refuse.\n\
         #birdwatcher = true\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_the_session_have_bounds_and_say_where_they_mean_nothing() {
        let of = |more: &str| {
            let text = template().replace("#hold_time = 90\n", &format!("{more}\n"));
            let file: MemberFile = toml::from_str(&text).expect("parses");
            let texts = |faults: Vec<Fault>| faults.into_iter().map(|fault| fault.message).collect::<Vec<_>>();
            let router = file.router.get_ref();
            (router.paths(), texts(router.session_faults()), texts(router.session_warnings()))
        };
        assert_eq!(of(""), (1, vec![], vec![]));
        assert_eq!(of("add_path = 4"), (4, vec![], vec![]));
        assert!(of("add_path = 0").1[0].contains("expected 1 (no ADD-PATH) to 16"));
        assert!(of("add_path = 17").1[0].starts_with("17 paths for a prefix"));
        assert_eq!(of("long_lived_stale_secs = 16777216").1.len(), 1);
        assert_eq!(of("graceful_restart = false"), (1, vec![], vec![]));
        let lone = of("graceful_restart = false\nlong_lived_stale_secs = 60").2;
        assert!(lone[0].contains("keeps nothing, expected both or neither"), "{lone:?}");
    }

    #[test]
    fn a_station_has_an_address_and_an_interval_within_bounds() {
        let of = |more: &str| {
            let text = template().replace("[status]\n", &format!("[bmp]\n{more}\n[status]\n"));
            toml::from_str::<MemberFile>(&text)
        };
        let file = of("connect = \"bmp.example.net:11019\"").expect("parses");
        let bmp = file.bmp.as_ref().expect("a section");
        assert_eq!((bmp.connect.0.to_string().as_str(), *bmp.statistics_secs.get_ref()), ("bmp.example.net:11019", 60));
        assert!(file.faults().is_empty());
        let often = of("connect = \"127.0.0.1:11019\"\nstatistics_secs = 1").expect("parses");
        let faults: Vec<String> = often.faults().into_iter().map(|fault| fault.message).collect();
        assert_eq!(faults, ["1 is out of range, expected 5 to 86400 seconds"]);
        assert!(of("connect = \"127.0.0.1\"").is_err(), "no port");
        assert!(of("statistics_secs = 60").is_err(), "no station");
    }

    #[test]
    fn a_source_of_origins_has_one_place() {
        let faults = |more: &str| {
            let file: MemberFile = toml::from_str(&(template() + more)).expect("parses");
            let faults: Vec<String> = file.faults().into_iter().map(|fault| fault.message).collect();
            (faults, file.rpki().is_some(), file.warnings().into_iter().map(|fault| fault.message).collect::<Vec<_>>())
        };
        let (cache, attestation) = ("[rpki]\ncache = \"127.0.0.1:3323\"\n", "[attestation.keys]\n");
        let of = |more| faults(more).0;
        assert!(of(cache).is_empty() && of("[rpki]\nfile = \"roas.json\"\n").is_empty());
        assert_eq!((faults("").1, faults(cache).1, faults(attestation).1), (false, true, true));
        let both = format!("{cache}{attestation}");
        let both = of(&both);
        assert_eq!(both, ["[rpki] beside [attestation], expected [attestation.rpki], which serves both"]);
        let within = format!("{attestation}[attestation.rpki]\nfile = \"roas.json\"\n");
        assert!(of(&within).is_empty());
        let certificates = of("[rpki]\nanchors = [\"ta.cer\"]\ncertificates = \"rpki\"\n");
        assert!(certificates[0].starts_with("router certificates validate attestations"), "{certificates:?}");
        let (_, _, warnings) = faults("[rpki]\n");
        assert!(
            warnings.iter().any(|warning| warning.starts_with("neither `cache` nor `file` in [rpki]")),
            "{warnings:?}"
        );
    }
}

//! The configuration of a gateway.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use wayleave_control::realm::Roles;
use wayleave_core::{Afi, Prefix};
use wayleave_dataplane::gateway::Order;
use wayleave_dataplane::gateway::internet::is_wide;
use wayleave_runtime::routes::{OtherRoute, Routes};

use super::check::{Checked, RoleConfig};
use super::consent::load_policy;
use super::machine::{absent_address, state_fault, taken_by_status};
use super::overlay::{self, NodeRef, OverlaySection, OverlayValues};
use super::parse::{Text, TextValue};
use super::rs::{FileFault, StatusSection, example, range, status_warning};
use super::{EXAMPLE_REALM, Fault, Source};
use crate::failure::Failures;

/// Policies, at most.
const MAX_POLICIES: usize = 32;
/// Threads that forward, at most, and for so many cores without being asked for.
const MAX_WORKERS: u64 = 256;
const MOST_CORES: usize = 16;
/// Octets of a packet at the TUN interface.
const MIN_MTU: u64 = 1_280;
const MAX_MTU: u64 = 65_535;
/// The block of RFC 2544, from which names have their IPv4 addresses at a gateway whose configuration names no other one.
pub const NAMES_V4: (Ipv4Addr, u8) = (Ipv4Addr::new(198, 18, 0, 0), 15);
/// Blocks in which the IPv4 addresses of names may be: nobody has these in the public Internet (RFC 2544, RFC 1918, RFC 6598).
const NAMES_WITHIN: [&str; 5] = ["198.18.0.0/15", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"];
/// The routing table that every packet is looked up in.
const MAIN: u64 = 254;
/// Bits of the smallest block for them.
const LONGEST_NAMES_V4: u8 = 24;
/// What is accepted of a realm, if the configuration does not say: no address of the public Internet (RFC 1918, RFC 6598, RFC 2544,
/// RFC 4193).
const PRIVATE: [&str; 6] =
    ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "198.18.0.0/15", "fc00::/7"];
/// Numbers of rules in front of that of the main table, with room for another two.
const TABLES: (u64, u64) = (1_000, 32_000);
/// Octets of an interface's name, at most.
const MAX_INTERFACE: usize = 15;

/// Why a gateway is no exit, and what helps.
pub const NO_DEFAULT_ROUTE: &str =
    "`exit = true`, and the membership grants no default route: no member sends packets to the Internet here";
const ASK_DEFAULT_ROUTE: &str =
    "ask the realm's operator for a membership with the prefix 0.0.0.0/0, ::/0 or both, or remove `exit`";

/// `run gateway`.
pub const ROLE: RoleConfig = RoleConfig {
    name: "gateway",
    section: "gateway",
    sections: "[gateway] and [overlay]",
    check: GatewayFile::checked,
    template: |_| template(),
};

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayFile {
    pub gateway: GatewaySection,
    #[serde(default)]
    pub policy: Vec<Spanned<PolicySection>>,
    pub overlay: Option<Spanned<OverlaySection>>,
    pub laboratory: Option<LaboratorySection>,
    pub status: Option<StatusSection>,
}

/// `[gateway]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewaySection {
    /// The TUN interface that the role makes; it makes none with a proxy.
    pub interface: Option<Spanned<String>>,
    /// Where applications ask for connections, by SOCKS5 or HTTP, in the place of a TUN interface.
    pub proxy: Option<Spanned<Text<SocketAddr>>>,
    /// Other machines may use the proxy, with this node's identity.
    #[serde(default)]
    pub proxy_remote: bool,
    /// Threads that forward, each with a queue of the interface; one for each core without it, and one with a proxy.
    pub workers: Option<Spanned<u64>>,
    #[serde(default = "default_mtu")]
    pub mtu: Spanned<u64>,
    /// The names of nodes end in this.
    pub suffix: Spanned<String>,
    /// Where names are answered; nowhere without it.
    pub dns: Option<Spanned<Text<SocketAddr>>>,
    /// systemd-resolved, where it runs, is told to ask there; so it is without the key.
    pub resolved: Option<Spanned<bool>>,
    /// IPv6 addresses of names are from this prefix of 64 bits.
    #[serde(default = "default_names")]
    pub names: Spanned<Text<Prefix>>,
    /// IPv4 addresses of names are from this block.
    #[serde(default = "default_names_ipv4")]
    pub names_ipv4: Spanned<Text<Prefix>>,
    /// Inner prefixes of members are routed here only within these, whatever the realm grants; all private ones without them.
    pub accept: Option<Vec<Spanned<Text<Prefix>>>>,
    /// Members reach the Internet through this machine, within the default route that the membership grants.
    #[serde(default)]
    pub exit: bool,
    /// Rules on consent, whose `inner` says what members may begin to send here; everything without it.
    pub consent_policy: Option<Spanned<PathBuf>>,
    /// Number of the routing table, of the first rule that looks in it, and of the mark of the gateway's own packets.
    #[serde(default = "default_table")]
    pub table: Spanned<u64>,
    pub state: Spanned<PathBuf>,
    /// What is decided while the gateway runs.
    #[serde(default = "default_choices")]
    pub choices: Spanned<PathBuf>,
    /// Seconds for which consent is asked.
    #[serde(default = "default_consent")]
    pub consent_secs: Spanned<u64>,
}

impl GatewaySection {
    /// Why nothing is to listen as a proxy at an address, if so.
    pub fn proxy_fault(&self, proxy: SocketAddr) -> Option<String> {
        (!proxy.ip().is_loopback() && !self.proxy_remote).then(|| {
            format!(
                "{proxy} can be reached from other machines, which would use this node's identity, expected an address of loopback, such as \
                 127.0.0.1:1080, or `proxy_remote = true`"
            )
        })
    }

    /// How many threads forward between a TUN interface and neighbours.
    pub fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get().min(MOST_CORES));
        self.workers.as_ref().map_or_else(cores, |workers| usize::try_from(*workers.get_ref()).unwrap_or(usize::MAX))
    }

    /// Whether systemd-resolved is told where names are answered.
    pub fn tells_resolved(&self) -> bool {
        self.dns.is_some() && self.resolved.as_ref().is_none_or(|resolved| *resolved.get_ref())
    }

    /// The keys that say nothing with a proxy.
    fn unused(&self) -> impl Iterator<Item = Fault> {
        let table = Some(self.table.span()).filter(|span| !span.is_empty());
        let accept = self.accept.iter().flatten().next().map(Spanned::span);
        let keys = [
            ("interface", self.interface.as_ref().map(Spanned::span)),
            ("workers", self.workers.as_ref().map(Spanned::span)),
            ("table", table),
            ("accept", accept),
            ("dns", self.dns.as_ref().map(Spanned::span)),
            ("resolved", self.resolved.as_ref().map(Spanned::span)),
            ("exit", self.exit.then_some(0..0)),
        ];
        let unused = |(key, span): (&str, Option<std::ops::Range<usize>>)| {
            let message = format!(
                "`{key}` is not used: a proxy has no interface and no routes, and answers no questions for names"
            );
            Some(Fault::at(span?, message).help("remove it, or remove `proxy`"))
        };
        keys.into_iter().filter_map(unused)
    }

    /// Where the addresses of names are, the IPv4 ones first, and the key that says so.
    pub fn name_blocks(&self) -> [(&'static str, &Spanned<Text<Prefix>>); 2] {
        [("names_ipv4", &self.names_ipv4), ("names", &self.names)]
    }

    /// Who else has the addresses of names on this machine: packets to names would go there, or the other one's come here. Of a route of the
    /// main table, which is looked in first, any but a default one has them; of other tables, which may be looked in for a few packets or none,
    /// those that are not nearly as wide. Whether it leads to a tunnel, such as another gateway's, stands beside each.
    pub fn names_in_use(&self) -> Vec<(Fault, bool)> {
        let all = |afi| Routes::open().and_then(|mut routes| routes.all(afi)).unwrap_or_default();
        let mut faults = Vec::new();
        for (key, block) in self.name_blocks() {
            let Text(of_names) = block.get_ref();
            let all = all(of_names.afi());
            let other = |of_names: &Prefix| {
                let is_none = |route: &OtherRoute| match u64::from(route.table) {
                    MAIN => route.to.len() == 0,
                    table => table == *self.table.get_ref() || is_wide(&route.to),
                };
                let others = all.iter().filter(|route| !is_none(route));
                let overlapping = others.filter(|route| route.to.contains(of_names) || of_names.contains(&route.to));
                // An interface says more than the blackhole behind its route, which IPv6 has at the loopback interface.
                overlapping.max_by_key(|route| route.interface.as_deref().is_some_and(|name| name != "lo"))
            };
            let Some(found) = other(of_names) else { continue };
            let free = free_blocks(of_names.afi()).find(|free| other(free).is_none());
            let example = free.map_or_else(String::new, |free| format!(", such as \"{free}\""));
            let message = format!(
                "{of_names}, where names have their addresses (`{key}`), is in use on this machine, since {found}; packets to names would go there, or \
                 those of the other one come here"
            );
            let fault = Fault {
                span: Some(block.span()).filter(|span| !span.is_empty()),
                message,
                help: Some(format!("give `{key}` of [gateway] a block that nobody uses here{example}")),
            };
            faults.push((fault, found.is_tunnel));
        }
        faults
    }

    /// What is inside a block of the addresses of names, where nothing else is reached: a prefix of this node's own or one that is accepted.
    fn hidden_by_names(&self, granted: &[Prefix]) -> Vec<Fault> {
        let mut faults = Vec::new();
        for (key, block) in self.name_blocks() {
            let Text(of_names) = block.get_ref();
            for prefix in granted.iter().filter(|prefix| of_names.contains(prefix)) {
                let message = format!(
                    "the membership grants {prefix}, which lies in {of_names}, where names have their addresses (`{key}`), so that nobody is reached in it"
                );
                faults.push(Fault {
                    span: Some(block.span()).filter(|span| !span.is_empty()),
                    message,
                    help: Some(format!("give `{key}` another block")),
                });
            }
            for accepted in self.accept.iter().flatten().filter(|accepted| of_names.contains(&accepted.get_ref().0)) {
                let message = format!(
                    "{} lies in {of_names}, where names have their addresses (`{key}`), so that no member is reached in it",
                    accepted.get_ref().0
                );
                faults.push(
                    Fault::at(accepted.span(), message).help(format!("remove it, or give `{key}` another block")),
                );
            }
        }
        faults
    }

    /// The prefixes within which members' prefixes are routed.
    pub fn accepted(&self) -> Vec<Prefix> {
        let private = || PRIVATE.iter().filter_map(|text| text.parse().ok()).collect();
        self.accept.as_ref().map_or_else(private, |accept| accept.iter().map(|prefix| prefix.get_ref().0).collect())
    }
}

/// `[[policy]]`: the first one is for addresses that are not those of names.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicySection {
    /// The first label of names.
    pub name: Spanned<String>,
    #[serde(default)]
    pub order: OrderName,
    #[serde(default)]
    pub avoid: Vec<Spanned<Text<NodeRef>>>,
    #[serde(default)]
    pub require: Vec<Spanned<Text<NodeRef>>>,
    pub pin: Option<Vec<Spanned<Text<NodeRef>>>>,
}

impl PolicySection {
    /// The nodes that it names, and by which key.
    pub fn names(&self) -> impl Iterator<Item = (&'static str, &Spanned<Text<NodeRef>>)> {
        let avoid = self.avoid.iter().map(|node| ("avoid", node));
        let require = self.require.iter().map(|node| ("require", node));
        avoid.chain(require).chain(self.pin.iter().flatten().map(|node| ("pin", node)))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OrderName {
    #[default]
    Shortest,
    Longest,
}

impl OrderName {
    pub fn order(self) -> Order {
        match self {
            Self::Shortest => Order::Shortest,
            Self::Longest => Order::Longest,
        }
    }
}

/// `[laboratory]`: members, paths and proofs from a file in the place of servers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaboratorySection {
    pub file: Spanned<PathBuf>,
}

fn default_mtu() -> Spanned<u64> {
    Spanned::new(0..0, 1_500)
}

/// Where decisions are, if the configuration does not say.
pub const DEFAULT_CHOICES: &str = "choices.toml";

fn default_choices() -> Spanned<PathBuf> {
    Spanned::new(0..0, PathBuf::from(DEFAULT_CHOICES))
}

fn default_table() -> Spanned<u64> {
    Spanned::new(0..0, 20_520)
}

fn default_consent() -> Spanned<u64> {
    Spanned::new(0..0, 300)
}

fn default_names() -> Spanned<Text<Prefix>> {
    // "wayl" in a unique local prefix.
    let prefix = "fd77:6179:6c65::/64".parse().expect("a prefix");
    Spanned::new(0..0, Text(prefix))
}

/// Blocks for the addresses of names that few machines use.
fn free_blocks(afi: Afi) -> impl Iterator<Item = Prefix> {
    let text = move |number: u16| match afi {
        Afi::Ipv4 => format!("100.{}.0.0/16", 64 + number),
        Afi::Ipv6 => format!("fd77:6179:6c65:{:x}::/64", 1 + number),
    };
    (0..64).filter_map(move |number| text(number).parse().ok())
}

fn default_names_ipv4() -> Spanned<Text<Prefix>> {
    let (address, length) = NAMES_V4;
    Spanned::new(0..0, Text(Prefix::new(address.into(), length).expect("a prefix")))
}

impl TextValue for Prefix {
    const EXPECTED: &'static str = "a prefix, such as \"fd77:6179:6c65::/64\"";
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl GatewayFile {
    /// Reads and checks the file, not the files that it names.
    pub fn parse(source: &Source) -> Result<Self, Failures> {
        let file: Self = source.parse()?;
        let faults = file.faults();
        if faults.is_empty() {
            return Ok(file);
        }
        Err(Failures(faults.into_iter().map(|fault| source.failure(fault)).collect()))
    }

    fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let gateway = &self.gateway;
        if let Some(interface) = &gateway.interface {
            let name = interface.get_ref();
            let is_name = !name.is_empty()
                && name.len() <= MAX_INTERFACE
                && name.bytes().all(|octet| octet.is_ascii_alphanumeric() || matches!(octet, b'_' | b'.' | b'-'));
            if !is_name {
                let message = format!(
                    "`{name}` is no interface's name, expected at most {MAX_INTERFACE} letters, digits, `_`, `.` and `-`"
                );
                faults.push(Fault::at(interface.span(), message));
            }
        }
        if let Some(proxy) = &gateway.proxy {
            let message = gateway.proxy_fault(proxy.get_ref().0);
            faults.extend(message.map(|message| Fault::at(proxy.span(), message)));
        }
        faults.extend(gateway.workers.as_ref().and_then(|workers| range(workers, 1, MAX_WORKERS, "threads")));
        faults.extend(range(&gateway.mtu, MIN_MTU, MAX_MTU, "octets"));
        faults.extend(range(&gateway.consent_secs, 5, 8_000, "seconds"));
        faults.extend(range(&gateway.table, TABLES.0, TABLES.1, "for the number of a table"));
        let suffix = gateway.suffix.get_ref();
        if suffix.is_empty() || !suffix.split('.').all(is_label) {
            let message =
                format!("`{suffix}` is no suffix of names, expected labels such as \"demo\" or \"overlay.example\"");
            faults.push(Fault::at(gateway.suffix.span(), message));
        }
        let names = gateway.names.get_ref().0;
        if names.afi() != Afi::Ipv6 || names.len() != 64 {
            let message = "not a prefix for the addresses of names, expected an IPv6 prefix of 64 bits";
            faults.push(Fault::at(gateway.names.span(), message));
        }
        let names = gateway.names_ipv4.get_ref().0;
        let is_private =
            NAMES_WITHIN.iter().filter_map(|text| text.parse::<Prefix>().ok()).any(|block| block.contains(&names));
        if names.len() > LONGEST_NAMES_V4 || !is_private {
            let message = format!(
                "not a block for the addresses of names, expected an IPv4 prefix of at most {LONGEST_NAMES_V4} bits within {}",
                NAMES_WITHIN.join(", ")
            );
            faults.push(Fault::at(gateway.names_ipv4.span(), message));
        }
        if self.policy.is_empty() || self.policy.len() > MAX_POLICIES {
            let message = format!("{} policies, expected 1 to {MAX_POLICIES} sections [[policy]]", self.policy.len());
            faults.push(Fault { span: None, message, help: None });
        }
        let mut seen = BTreeSet::new();
        for policy in &self.policy {
            let name = &policy.get_ref().name;
            if !is_label(name.get_ref()) {
                let message =
                    format!("`{}` cannot be a label of a name, expected letters, digits and `-`", name.get_ref());
                faults.push(Fault::at(name.span(), message));
            }
            if !seen.insert(name.get_ref().to_ascii_lowercase()) {
                faults.push(Fault::at(name.span(), "a policy of this name exists already, expected another name"));
            }
        }
        match (&self.overlay, &self.laboratory) {
            (Some(overlay), None) => {
                faults.extend(overlay.get_ref().faults());
                faults.extend(overlay.get_ref().end_faults("gateway"));
                if overlay.get_ref().noise.is_none() {
                    let message = "a gateway's [overlay] without `noise`, expected the file of its static key";
                    faults.push(Fault::at(overlay.span(), message));
                }
            }
            (None, Some(_)) => {}
            (None, None) => {
                let message = "no section [overlay], expected the node's part in a realm".to_owned();
                faults.push(Fault { span: None, message, help: Some("`wayleave join TOKEN` writes it".to_owned()) });
            }
            (Some(overlay), Some(_)) => {
                let message = "[overlay] and [laboratory], expected one of them";
                faults.push(Fault::at(overlay.span(), message));
            }
        }
        let own: Vec<SocketAddr> = gateway.dns.iter().chain(&gateway.proxy).map(|at| at.get_ref().0).collect();
        faults.extend(taken_by_status(self.status.as_ref(), &own));
        faults
    }

    /// Whether it still has the example's realm, with which the role cannot run.
    pub fn has_examples(&self) -> bool {
        let realm = self.overlay.as_ref().map(|overlay| overlay.get_ref().realm.get_ref().0.to_string());
        realm.is_some_and(|realm| realm == EXAMPLE_REALM)
    }

    /// Names in policies that no member has of which this node's state knows. A running role, which has the state open, says it
    /// itself.
    fn unresolved(&self, source: &Source) -> Vec<Fault> {
        let Some(names) = self.overlay.as_ref().and_then(|overlay| overlay.get_ref().known_names(source)) else {
            return Vec::new();
        };
        let nodes = self.policy.iter().flat_map(|policy| policy.get_ref().names());
        let unresolved = nodes.filter_map(|(key, node)| match &node.get_ref().0 {
            NodeRef::Name(name) if !names.contains(name) => {
                let message = format!("`{key}` names `{name}`, and no member of which this node knows is called so");
                let help =
                    "names are those of the memberships: `wayleave path list` and the realm's operator have them";
                Some(Fault::at(node.span(), message).help(help))
            }
            _ => None,
        });
        unresolved.collect()
    }

    pub(super) fn checked(source: &Source) -> Checked {
        let file = match Self::parse(source) {
            Ok(file) => file,
            Err(failures) => return Checked::wrong("gateway", failures),
        };
        let (mut errors, mut warnings, mut examples) = (Vec::new(), Vec::new(), Vec::new());
        let mut faults = Vec::new();
        if let Some(overlay) = &file.overlay {
            if file.has_examples() {
                examples.push(example(overlay.get_ref().realm.span(), "the realm's key, from `wayleave realm show`"));
            }
            faults.extend(overlay.get_ref().file_faults(source));
            if let Ok(settings) = overlay.get_ref().load(source) {
                let span = || overlay.get_ref().membership.span();
                if let Err(failure) = settings.require(Roles::GATEWAY, "gateway") {
                    faults.push(FileFault::Unusable(Fault::of(span(), &failure)));
                }
                let granted = &settings.membership.object().grants.prefixes;
                warnings.extend(file.gateway.hidden_by_names(granted));
                match (file.gateway.exit, granted.iter().any(is_wide)) {
                    (true, false) => errors.push(Fault::at(span(), NO_DEFAULT_ROUTE).help(ASK_DEFAULT_ROUTE)),
                    (false, true) => warnings.push(
                        Fault::at(
                            span(),
                            "the membership grants a default route, and packets to the Internet end here",
                        )
                        .help("let them out with `exit = true` in [gateway]"),
                    ),
                    _ => {}
                }
            }
        }
        if let Some(laboratory) = &file.laboratory {
            let message = "paths and proofs come from a file: for the laboratory only";
            warnings.push(Fault::at(laboratory.file.span(), message));
        }
        faults.extend(state_fault(&file.gateway.state, source));
        let policy = file.gateway.consent_policy.as_ref().map(|named| (named, load_policy(named, source)));
        if let Some((named, Ok((policy, _)))) = &policy {
            warnings.extend(policy.rules_on_ways().map(|rule| {
                let message = format!(
                    "rule {rule:?} has conditions on the way or the profile of packets, of which a receiver knows nothing: it admits \
                     nothing, or refuses"
                );
                Fault::at(named.span(), message)
            }));
        }
        for fault in faults {
            match fault {
                // A new configuration needs no files yet.
                FileFault::Missing(fault) if file.has_examples() => warnings.push(fault),
                FileFault::Doubtful(fault) => warnings.push(fault),
                fault => errors.push(fault.into_fault()),
            }
        }
        warnings.extend(file.unresolved(source));
        let gateway = &file.gateway;
        match &gateway.proxy {
            Some(proxy) => {
                warnings.extend(gateway.unused());
                warnings.extend(absent_address(proxy));
            }
            None => {
                warnings.extend(gateway.names_in_use().into_iter().map(|(fault, _)| fault));
                warnings.extend(gateway.dns.as_ref().and_then(absent_address));
                warnings.extend(gateway.resolved.as_ref().filter(|_| gateway.dns.is_none()).map(|resolved| {
                    Fault::at(resolved.span(), "`resolved` is not used: without `dns` no names are answered")
                        .help("give `dns` an address, such as \"127.0.0.1:5354\", or remove it")
                }));
            }
        }
        let has_none = file.overlay.as_ref().is_some_and(|overlay| overlay.get_ref().neighbour.is_empty());
        if has_none && !file.has_examples() {
            let help = "`wayleave link add` adds one; the neighbour lists this node too";
            let message = "no neighbour is configured, and nobody is reached: [[overlay.neighbour]] is missing";
            warnings.push(Fault { span: None, message: message.to_owned(), help: Some(help.to_owned()) });
        }
        if gateway.interface.is_none() && gateway.proxy.is_none() {
            let message = "[gateway] has no `interface` and no `proxy`".to_owned();
            let help = "with `run gateway --proxy 127.0.0.1:1080` it needs neither".to_owned();
            warnings.push(Fault { span: None, message, help: Some(help) });
        }
        warnings.extend(file.status.as_ref().and_then(status_warning));
        let mut checked = Checked::found("gateway", source, errors, warnings).with_examples(source, examples);
        if let Some((_, Err(failures))) = policy {
            // Their places may be in the policy's own file.
            checked.errors.extend(failures.0);
        }
        checked
    }
}

/// Whether `text` can be a label of a DNS name.
fn is_label(text: &str) -> bool {
    let is_inside = |octet: u8| octet.is_ascii_alphanumeric() || octet == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(is_inside) && !text.starts_with('-') && !text.ends_with('-')
}

/// What `wayleave init gateway` prints.
fn template() -> String {
    let values = OverlayValues {
        has_noise: true,
        has_ids: true,
        has_tags: true,
        offers: Some(("deliver", "80000000")),
        ..OverlayValues::example("overlay.redb")
    };
    template_with(&overlay::template_with(&values), "127.0.0.1:8492")
}

/// A gateway's configuration with this section `[overlay]`.
pub fn template_with(overlay: &str, status: &str) -> String {
    format!(
        "# A gateway: it carries IP packets between this machine and members of a realm, sealed, over paths that you choose.\n\
         # Run it with: wayleave run gateway --config FILE   (as root, or with CAP_NET_ADMIN)\n\
         # or, as any user, for applications that use a proxy: wayleave run gateway --proxy 127.0.0.1:1080 --config FILE\n\
         # Paths are relative to this file.\n\
         \n\
         [gateway]\n\
         # The TUN interface that the role makes.\n\
         interface = \"wayleave0\"\n\
         # In its place, without root: a proxy for applications, by SOCKS5 and HTTP.\n\
         #proxy = \"127.0.0.1:1080\"\n\
         # Whether other machines may use it, with this node's identity.\n\
         #proxy_remote = false\n\
         # Threads that forward, each with a queue of the interface; one for each core without the key.\n\
         #workers = 2\n\
         #mtu = 1500\n\
         # Names are POLICY.NODE.SUFFIX, such as short.b.overlay.\n\
         suffix = \"overlay\"\n\
         # Where they are answered.\n\
         dns = \"127.0.0.1:5354\"\n\
         # Their addresses are from here; a second gateway on this machine needs other blocks.\n\
         #names = \"fd77:6179:6c65::/64\"\n\
         #names_ipv4 = \"198.18.0.0/15\"\n\
         # Whether systemd-resolved, where it runs, is told to ask at `dns`. Any other resolver you tell yourself.\n\
         #resolved = true\n\
         # Prefixes of members are routed only within these; without the key within private ranges (RFC 1918, fc00::/7 and such).\n\
         # This machine's own routes go first, all but default ones.\n\
         #accept = [\"10.0.0.0/8\", \"fd00::/8\"]\n\
         # What members may begin to send here: `inner` of the rules of this policy, the one of this node's consent server.\n\
         #consent_policy = \"policy.toml\"\n\
         # Members reach the Internet through this machine, if its membership grants 0.0.0.0/0 or ::/0: nftables translates their addresses.\n\
         #exit = false\n\
         # Number of the routing table, of the first rule, and of the mark of the gateway's own packets.\n\
         #table = 20520\n\
         # Which name has which address, and connections by name, must survive a restart.\n\
         state = \"gateway.redb\"\n\
         # What `wayleave path pin` and `path avoid` decide while it runs.\n\
         #choices = \"choices.toml\"\n\
         # Seconds for which consent is asked.\n\
         #consent_secs = 300\n\
         \n\
         # How paths are chosen. The first policy is for addresses that are not those of names.\n\
         [[policy]]\n\
         name = \"short\"\n\
         order = \"shortest\"          # or \"longest\"\n\
         #avoid = [\"east\"]            # nodes, by name or key\n\
         #require = []\n\
         #pin = [\"w1\", \"w2\"]         # exactly these nodes\n\
         \n\
         {overlay}\n\
         # Status pages and metrics, for you alone.\n\
         [status]\n\
         listen = \"{status}\"\n"
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use wayleave_control::realm::{Grants, Membership, RealmKey};
    use wayleave_control::store::Record;
    use wayleave_core::IdentityKey;
    use wayleave_crypto::dh::DhSecret;
    use wayleave_crypto::secret::Seed;
    use wayleave_crypto::sign::SigningKey;
    use wayleave_crypto::signed::Signed;
    use wayleave_runtime::store::{Change, FileStore, Store as _};

    use super::*;
    use crate::check::check;

    #[test]
    fn a_check_warns_of_names_that_no_known_member_has() {
        let folder = std::env::temp_dir().join(format!("wayleave-unresolved-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let text = template().replace("#avoid = [\"east\"]", "avoid = [\"east\", \"west\"]");
        fs::write(folder.join("gateway.toml"), text).unwrap();
        let warnings = || {
            let checked = check(&Source::read(&folder.join("gateway.toml")).unwrap());
            let all = checked.warnings.iter().map(ToString::to_string);
            all.filter(|text| text.contains("names `")).collect::<Vec<String>>()
        };
        assert!(warnings().is_empty(), "nothing is known of the realm");
        let key = SigningKey::from_seed(&Seed::new([1; 32]));
        let membership = Membership {
            realm: RealmKey(key.verifying_key().to_bytes()),
            number: 1,
            identity: IdentityKey([7; 32]),
            noise: DhSecret::from_seed(&Seed::new([2; 32])).public(),
            grants: Grants { roles: Roles::FORWARDER, names: vec!["west".parse().unwrap()], prefixes: Vec::new() },
            not_before: 1,
            not_after: 2,
            rolls: wayleave_control::realm::Rolls::default(),
        };
        let record = Record::Membership(Signed::sign(&membership, &key).unwrap());
        let store = FileStore::open(&folder.join("overlay.redb")).unwrap();
        let change = Change { table: overlay::RECORDS, key: record.key(), value: Some(record.encode()) };
        store.submit(vec![change], Box::new(|| ())).unwrap();
        store.close();
        assert_eq!(warnings(), ["`avoid` names `east`, and no member of which this node knows is called so"]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_ipv4_addresses_of_names_are_from_a_private_block_of_at_least_256() {
        let parsed = |block: &str| {
            let text = template().replace("#names_ipv4 = \"198.18.0.0/15\"", &format!("names_ipv4 = \"{block}\""));
            GatewayFile::parse(&Source::of_text("gateway.toml", &text))
        };
        for block in
            ["198.18.0.0/15", "198.19.255.0/24", "10.0.0.0/8", "172.20.0.0/16", "192.168.9.0/24", "100.64.0.0/10"]
        {
            assert_eq!(parsed(block).unwrap().gateway.names_ipv4.get_ref().0.to_string(), block);
        }
        for block in ["198.18.0.0/25", "198.16.0.0/12", "203.0.113.0/24", "0.0.0.0/0", "fd77::/64", "172.0.0.0/8"] {
            let refused = parsed(block).unwrap_err().to_string();
            assert!(refused.contains("not a block for the addresses of names"), "{refused}");
        }
        let default = GatewayFile::parse(&Source::of_text("gateway.toml", &template())).unwrap();
        assert_eq!(default.gateway.names_ipv4.get_ref().0.to_string(), "198.18.0.0/15");
    }

    #[test]
    fn what_lies_where_names_have_their_addresses_is_warned_of() {
        let keys = "names_ipv4 = \"10.77.0.0/16\"\naccept = [\"10.77.3.0/24\", \"10.0.0.0/8\"]";
        let text = template().replace("#names_ipv4 = \"198.18.0.0/15\"", keys);
        let gateway = GatewayFile::parse(&Source::of_text("gateway.toml", &text)).unwrap().gateway;
        let granted = ["10.77.0.0/24", "10.78.0.0/24", "fd77:6179:6c65::/80"].map(|text| text.parse().unwrap());
        let messages: Vec<String> = gateway.hidden_by_names(&granted).into_iter().map(|fault| fault.message).collect();
        assert_eq!(messages.len(), 3, "{messages:?}");
        for (message, start) in messages.iter().zip([
            "the membership grants 10.77.0.0/24, which lies in 10.77.0.0/16, where names have their addresses (`names_ipv4`)",
            "10.77.3.0/24 lies in 10.77.0.0/16",
            "the membership grants fd77:6179:6c65::/80, which lies in fd77:6179:6c65::/64, where names have their addresses (`names`)",
        ]) {
            assert!(message.starts_with(start), "{message}");
        }
    }

    #[test]
    fn a_proxy_needs_no_interface_and_is_for_this_machine_unless_it_is_said() {
        let parsed = |keys: &str| {
            let text = template().replace("interface = \"wayleave0\"\n", keys).replace("#table", "table");
            GatewayFile::parse(&Source::of_text("gateway.toml", &text))
        };
        for keys in [
            "proxy = \"127.0.0.1:1080\"\n",
            "proxy = \"[::1]:1080\"\n",
            "",
            "proxy = \"0.0.0.0:1\"\nproxy_remote = true\n",
        ] {
            assert!(parsed(keys).is_ok(), "{keys}");
        }
        let refused = parsed("proxy = \"0.0.0.0:1080\"\n").unwrap_err().to_string();
        assert!(refused.contains("0.0.0.0:1080 can be reached from other machines"), "{refused}");
        let taken = parsed("proxy = \"127.0.0.1:8492\"\n").unwrap_err().to_string();
        assert!(taken.contains("in use by this configuration"), "{taken}");
        let both =
            parsed("proxy = \"127.0.0.1:1080\"\ninterface = \"wayleave0\"\naccept = [\"10.0.0.0/8\"]\n").unwrap();
        let unused: Vec<String> = both.gateway.unused().map(|fault| fault.message).collect();
        assert_eq!(unused.len(), 4, "{unused:?}");
        for key in ["interface", "table", "accept", "dns"] {
            assert!(unused.iter().any(|message| message.starts_with(&format!("`{key}` is not used"))), "{key}");
        }
    }
}

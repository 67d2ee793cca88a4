//! What a laboratory of an overlay is made of: one TOML file, read and checked.

pub mod routed;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;
use wayleave_control::consent::{Policy as ConsentPolicy, PolicyFile};
use wayleave_core::{Afi, Prefix};

use crate::laboratory::check::{Check, MAX_NAME, is_label, label_rule, read};
pub use crate::laboratory::check::{MAX_COMMANDS, MOST_OCTETS, Mistake};

use self::routed::{Capability, CapabilityEntry, KeyServer, KeyServerEntry, Router, RouterEntry, Stamp, StampEntry};

/// Forwarders, at most.
pub const MAX_NODES: usize = 64;
/// Gateways, at most.
pub const MAX_GATEWAYS: usize = 32;
/// Path servers, and consent servers, at most.
pub const MAX_SERVERS: usize = 16;
/// Links, at most.
pub const MAX_LINKS: usize = 256;
/// Links of one node, at most: an advert has no more.
pub const MAX_NEIGHBOURS: usize = 64;
/// Hosts, at most.
pub const MAX_HOSTS: usize = 64;
/// Policies of one gateway, and prefixes, and tags of a node, at most.
pub const MAX_ENTRIES: usize = 16;
/// Delay of a link, at most.
pub const MAX_DELAY_MS: u64 = 2_000;
/// How long consents last, if the file does not say.
const CONSENT_SECS: u64 = 60;

wayleave_core::named! {
    /// What `to` is to `from`, as in `overlay.neighbour`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Relationship {
        Provider = "provider",
        Peer = "peer",
        Customer = "customer",
    }
}

impl Relationship {
    /// The same as the other end sees it.
    #[must_use]
    pub fn reversed(self) -> Self {
        match self {
            Self::Provider => Self::Customer,
            Self::Peer => Self::Peer,
            Self::Customer => Self::Provider,
        }
    }
}

/// Which allowed path comes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    #[default]
    Shortest,
    Longest,
}

/// What a tag is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TagUse {
    Transit,
    Deliver,
    Service,
}

/// A tag that a node offers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TagEntry {
    tag: Spanned<String>,
    #[serde(rename = "use")]
    usage: TagUse,
    meaning: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    lab: LabEntry,
    #[serde(default)]
    path_server: Vec<PathServerEntry>,
    #[serde(default)]
    consent_server: Vec<ConsentServerEntry>,
    #[serde(default)]
    node: Vec<NodeEntry>,
    #[serde(default)]
    gateway: Vec<GatewayEntry>,
    #[serde(default)]
    link: Vec<Spanned<LinkEntry>>,
    #[serde(default)]
    router: Vec<RouterEntry>,
    #[serde(default)]
    key_server: Vec<KeyServerEntry>,
    #[serde(default)]
    capability: Vec<CapabilityEntry>,
    #[serde(default)]
    host: Vec<HostEntry>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LabEntry {
    name: Spanned<String>,
    suffix: Option<Spanned<String>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PathServerEntry {
    name: Spanned<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConsentServerEntry {
    name: Spanned<String>,
    /// A policy file's text.
    policy: Option<Spanned<String>>,
    /// How long its consents last, without a policy.
    seconds: Option<Spanned<u64>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeEntry {
    name: Spanned<String>,
    consent: Spanned<String>,
    tags: Option<Vec<TagEntry>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GatewayEntry {
    name: Spanned<String>,
    consent: Spanned<String>,
    prefixes: Spanned<Vec<Spanned<String>>>,
    consent_secs: Option<Spanned<u64>>,
    #[serde(default)]
    policy: Vec<PolicyEntry>,
    #[serde(default)]
    run: Vec<Spanned<String>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyEntry {
    name: Spanned<String>,
    #[serde(default)]
    order: Order,
    #[serde(default)]
    avoid: Vec<Spanned<String>>,
    #[serde(default)]
    require: Vec<Spanned<String>>,
    pin: Option<Vec<Spanned<String>>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkEntry {
    from: Spanned<String>,
    to: Spanned<String>,
    /// Of an overlay's nodes.
    relationship: Option<Spanned<Relationship>>,
    /// Of ordinary routers.
    cost: Option<Spanned<u64>>,
    delay_ms: Option<Spanned<u64>>,
    #[serde(default = "yes")]
    public: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostEntry {
    name: Spanned<String>,
    gateway: Option<Spanned<String>>,
    router: Option<Spanned<String>>,
    addresses: Spanned<Vec<Spanned<String>>>,
    /// Capabilities that lie in the host's folder.
    #[serde(default)]
    holds: Vec<Spanned<String>>,
    #[serde(default)]
    stamp: Vec<Spanned<StampEntry>>,
    #[serde(default)]
    run: Vec<Spanned<String>>,
}

fn yes() -> bool {
    true
}

/// A laboratory as its file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub name: String,
    /// Names of nodes are `POLICY.NODE.SUFFIX`.
    pub suffix: String,
    pub path_servers: Vec<String>,
    pub consent_servers: Vec<ConsentServer>,
    pub nodes: Vec<Node>,
    pub gateways: Vec<Gateway>,
    pub links: Vec<Link>,
    /// Ordinary routers, in the place of all of these but links.
    pub routers: Vec<Router>,
    pub key_servers: Vec<KeyServer>,
    pub capabilities: Vec<Capability>,
    pub hosts: Vec<Host>,
}

/// A consent server with its policy's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsentServer {
    pub name: String,
    pub policy: String,
}

/// A forwarder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    /// The consent server that answers for it.
    pub consent: String,
    /// The tags that it offers, if not the usual one.
    pub tags: Option<Vec<Tag>>,
}

/// A tag: 8 hexadecimal digits, what it is for, and its meaning for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag {
    pub tag: String,
    pub usage: TagUse,
    pub meaning: Option<String>,
}

/// A gateway, which is a node too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    pub name: String,
    pub consent: String,
    pub prefixes: Vec<Prefix>,
    /// Seconds for which it asks consent.
    pub consent_secs: u64,
    pub policies: Vec<Policy>,
    /// Commands that run in its namespace once the overlay is up.
    pub run: Vec<String>,
}

impl Gateway {
    /// Its own address of each family: the first one of its first prefix.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        let first = |afi| self.prefixes.iter().find(|prefix| prefix.afi() == afi);
        let address = |prefix: &Prefix| match prefix.address() {
            address if prefix.len() == prefix.afi().bits() => address,
            IpAddr::V4(v4) => IpAddr::from((u32::from(v4) | 1).to_be_bytes()),
            IpAddr::V6(v6) => IpAddr::from((u128::from(v6) | 1).to_be_bytes()),
        };
        [Afi::Ipv4, Afi::Ipv6].into_iter().filter_map(first).map(address).collect()
    }
}

/// How a gateway chooses paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub name: String,
    pub order: Order,
    pub avoid: Vec<String>,
    pub require: Vec<String>,
    pub pin: Option<Vec<String>>,
}

/// A link between two nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub from: String,
    pub to: String,
    /// What `to` is to `from`.
    pub relationship: Relationship,
    /// In each direction.
    pub delay: Duration,
    pub public: bool,
    /// Between ordinary routers: packets take the cheapest way.
    pub cost: u32,
}

/// A host behind a gateway or a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub name: String,
    /// The gateway or router that it is behind.
    pub gateway: String,
    pub addresses: Vec<IpAddr>,
    /// Capabilities that lie in its folder; those that it stamps with, too.
    pub holds: Vec<String>,
    pub stamps: Vec<Stamp>,
    pub run: Vec<String>,
}

impl Plan {
    /// Reads a description.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn parse(text: &str) -> Result<Self, Vec<Mistake>> {
        let file: File = read(text)?;
        let mut check = Check::default();
        let plan = check.plan(&file);
        if check.mistakes.is_empty() { Ok(plan) } else { Err(check.mistakes) }
    }

    /// Everything that has a network namespace of its own but the realm's operator: path servers, consent servers, nodes,
    /// gateways; routers, key servers; hosts.
    pub fn places(&self) -> impl Iterator<Item = &str> {
        let servers = self.path_servers.iter().chain(self.consent_servers.iter().map(|server| &server.name));
        let nodes = self.nodes.iter().map(|node| &node.name).chain(self.gateways.iter().map(|gateway| &gateway.name));
        let routers = self.routers.iter().map(|router| &router.name);
        let routers = routers.chain(self.key_servers.iter().map(|server| &server.name));
        servers.chain(nodes).chain(routers).chain(self.hosts.iter().map(|host| &host.name)).map(String::as_str)
    }

    /// What to try, as arguments of `wayleave-lab exec`.
    #[must_use]
    pub fn to_try(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let [first, second, ..] = &self.gateways[..] {
            for policy in &first.policies {
                let name = format!("{}.{}.{}", policy.name, second.name, self.suffix);
                lines.push(format!("{} wayleave path trace {name} --config gateway.toml", first.name));
            }
            let name = format!("{}.{}.{}", first.policies[0].name, second.name, self.suffix);
            lines.push(format!("{} wayleave ping {name} --config gateway.toml", first.name));
            lines.push(format!("{} wayleave why {name} --config gateway.toml", first.name));
        }
        for server in &self.key_servers {
            lines.push(format!("{} wayleave cap usage --config key.toml", server.name));
        }
        lines
    }

    /// The links of a node, seen from it: the neighbour, what it is to the node, the link.
    pub fn links_of<'a>(&'a self, node: &'a str) -> impl Iterator<Item = (&'a str, Relationship, &'a Link)> {
        self.links.iter().filter_map(move |link| match () {
            () if link.from == node => Some((link.to.as_str(), link.relationship, link)),
            () if link.to == node => Some((link.from.as_str(), link.relationship.reversed(), link)),
            () => None,
        })
    }
}

impl Check {
    fn plan(&mut self, file: &File) -> Plan {
        self.counts(file);
        let name = file.lab.name.get_ref();
        self.lab_name(&file.lab.name);
        let suffix = file.lab.suffix.as_ref().map_or("lab", |suffix| suffix.get_ref().as_str()).to_owned();
        if let Some(given) = &file.lab.suffix
            && !suffix.split('.').all(is_label)
        {
            self.wrong(given, format!("`{suffix}` is no suffix of names, expected labels such as \"demo\""));
        }
        for server in &file.path_server {
            self.name(&server.name);
        }
        for server in &file.consent_server {
            self.name(&server.name);
        }
        for node in &file.node {
            self.name(&node.name);
        }
        for gateway in &file.gateway {
            self.name(&gateway.name);
        }
        for name in file.router.iter().map(|router| &router.name) {
            self.name(name);
        }
        for name in file.key_server.iter().map(|server| &server.name) {
            self.name(name);
        }
        let names = |names: Vec<&Spanned<String>>| -> BTreeSet<String> {
            names.into_iter().map(|name| name.get_ref().clone()).collect()
        };
        let servers = names(file.consent_server.iter().map(|server| &server.name).collect());
        let gateways = names(file.gateway.iter().map(|gateway| &gateway.name).collect());
        let mut nodes = names(file.node.iter().map(|node| &node.name).collect());
        nodes.extend(gateways.iter().cloned());
        let routers = names(file.router.iter().map(|router| &router.name).collect());
        let key_servers = names(file.key_server.iter().map(|server| &server.name).collect());
        nodes.extend(routers.iter().cloned());
        let mut of_routers: Vec<Router> = file.router.iter().map(|router| self.router(router, &key_servers)).collect();
        let capabilities = self.capabilities(&file.capability, &of_routers);
        for (router, entry) in of_routers.iter_mut().zip(&file.router) {
            router.stamps = self.stamps(entry.stamps(), &capabilities);
        }
        let plan = Plan {
            name: name.clone(),
            suffix,
            path_servers: file.path_server.iter().map(|server| server.name.get_ref().clone()).collect(),
            consent_servers: file.consent_server.iter().map(|server| self.consent_server(server)).collect(),
            nodes: file.node.iter().map(|node| self.node(node, &servers)).collect(),
            gateways: file.gateway.iter().map(|gateway| self.gateway(gateway, &servers, &nodes)).collect(),
            links: self.links(&file.link, &nodes, !file.router.is_empty()),
            routers: of_routers,
            key_servers: file.key_server.iter().filter_map(|server| self.key_server(server, &routers)).collect(),
            capabilities,
            hosts: Vec::new(),
        };
        self.owners(file, &plan);
        self.connected(&plan);
        Plan { hosts: file.host.iter().map(|host| self.host(host, &gateways, &plan)).collect(), ..plan }
    }

    fn counts(&mut self, file: &File) {
        let is_routed = !file.router.is_empty();
        if is_routed {
            self.either(file);
        } else if !file.key_server.is_empty() || !file.capability.is_empty() {
            self.whole(
                "key servers or capabilities without a router, expected waypoints",
                "each is a section [[router]]",
            );
        }
        let servers = usize::from(!is_routed);
        let limits = [
            (file.path_server.len(), servers, MAX_SERVERS, "path servers", "[[path_server]]"),
            (file.consent_server.len(), servers, MAX_SERVERS, "consent servers", "[[consent_server]]"),
            (file.node.len(), 0, MAX_NODES, "nodes", "[[node]]"),
            (file.gateway.len(), 0, MAX_GATEWAYS, "gateways", "[[gateway]]"),
            (file.link.len(), 1, MAX_LINKS, "links", "[[link]]"),
            (file.host.len(), 0, MAX_HOSTS, "hosts", "[[host]]"),
        ];
        for (count, least, most, what, section) in limits {
            self.count(count, least, most, what, section);
        }
    }

    fn consent_server(&mut self, server: &ConsentServerEntry) -> ConsentServer {
        let seconds = server.seconds.as_ref().map_or(CONSENT_SECS, |seconds| *seconds.get_ref());
        if let Some(given) = &server.seconds {
            self.range(given, 5, 8_000, "seconds");
        }
        if let (Some(policy), Some(_)) = (&server.policy, &server.seconds) {
            self.wrong(policy, "a policy and `seconds`, expected one of them: the policy's rules have their own");
        }
        if let Some(policy) = &server.policy
            && let Err(reason) = check_policy(policy.get_ref())
        {
            self.wrong(policy, format!("the policy does not hold: {reason}"));
        }
        let policy = server.policy.as_ref().map(|policy| policy.get_ref().clone());
        let all = || format!("[[rule]]\nname = \"members\"\nallow = true\nseconds = {seconds}\n");
        ConsentServer { name: server.name.get_ref().clone(), policy: policy.unwrap_or_else(all) }
    }

    fn server(&mut self, name: &Spanned<String>, servers: &BTreeSet<String>) {
        if !servers.contains(name.get_ref()) {
            self.wrong(
                name,
                format!("no consent server `{}`, expected the name of a [[consent_server]]", name.get_ref()),
            );
        }
    }

    fn node(&mut self, node: &NodeEntry, servers: &BTreeSet<String>) -> Node {
        self.server(&node.consent, servers);
        let mut seen = BTreeSet::new();
        for entry in node.tags.iter().flatten() {
            let tag = entry.tag.get_ref();
            if tag.len() != 8 || !tag.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                self.wrong(
                    &entry.tag,
                    format!("`{tag}` is no tag, expected 8 hexadecimal digits, such as \"40000000\""),
                );
            } else if !seen.insert(tag.to_ascii_lowercase()) {
                self.wrong(&entry.tag, "the tag is offered already, expected another one");
            } else if seen.len() > MAX_ENTRIES {
                self.wrong(&entry.tag, format!("too many tags, expected at most {MAX_ENTRIES}"));
            }
        }
        let tag = |entry: &TagEntry| Tag {
            tag: entry.tag.get_ref().to_ascii_lowercase(),
            usage: entry.usage,
            meaning: entry.meaning.clone(),
        };
        Node {
            name: node.name.get_ref().clone(),
            consent: node.consent.get_ref().clone(),
            tags: node.tags.as_ref().map(|tags| tags.iter().map(tag).collect()),
        }
    }

    fn gateway(&mut self, gateway: &GatewayEntry, servers: &BTreeSet<String>, nodes: &BTreeSet<String>) -> Gateway {
        self.server(&gateway.consent, servers);
        let mut prefixes = Vec::new();
        for text in gateway.prefixes.get_ref() {
            match text.get_ref().parse() {
                Ok(prefix) => prefixes.push(prefix),
                Err(error) => self.wrong(text, format!("`{}` is no prefix: {error}", text.get_ref())),
            }
        }
        let count = gateway.prefixes.get_ref().len();
        if !(1..=MAX_ENTRIES).contains(&count) {
            self.wrong(&gateway.prefixes, format!("{count} prefixes, expected 1 to {MAX_ENTRIES}"));
        }
        if let Some(given) = &gateway.consent_secs {
            self.range(given, 5, 8_000, "seconds");
        }
        let mut seen = BTreeSet::new();
        for policy in &gateway.policy {
            let name = policy.name.get_ref();
            if !is_label(name) {
                self.wrong(&policy.name, format!("`{name}` cannot be a label of a name, {}", label_rule(MAX_NAME)));
            } else if !seen.insert(name.clone()) {
                self.wrong(&policy.name, "a policy of this name exists already, expected another name");
            } else if seen.len() > MAX_ENTRIES {
                self.wrong(&policy.name, format!("too many policies, expected at most {MAX_ENTRIES}"));
            }
            for node in policy.avoid.iter().chain(&policy.require).chain(policy.pin.iter().flatten()) {
                self.known(node, nodes);
            }
        }
        let texts = |all: &[Spanned<String>]| all.iter().map(|one| one.get_ref().clone()).collect::<Vec<_>>();
        let policy = |policy: &PolicyEntry| Policy {
            name: policy.name.get_ref().clone(),
            order: policy.order,
            avoid: texts(&policy.avoid),
            require: texts(&policy.require),
            pin: policy.pin.as_ref().map(|pin| texts(pin)),
        };
        let shortest = Policy {
            name: "short".to_owned(),
            order: Order::Shortest,
            avoid: Vec::new(),
            require: Vec::new(),
            pin: None,
        };
        let policies: Vec<Policy> = gateway.policy.iter().map(policy).collect();
        Gateway {
            name: gateway.name.get_ref().clone(),
            consent: gateway.consent.get_ref().clone(),
            prefixes,
            consent_secs: gateway.consent_secs.as_ref().map_or(CONSENT_SECS, |seconds| *seconds.get_ref()),
            policies: if policies.is_empty() { vec![shortest] } else { policies },
            run: self.commands(&gateway.run),
        }
    }

    fn known(&mut self, name: &Spanned<String>, nodes: &BTreeSet<String>) {
        if !nodes.contains(name.get_ref()) {
            let message =
                format!("no node `{}`, expected the name of a [[node]], [[gateway]] or [[router]]", name.get_ref());
            self.wrong(name, message);
        }
    }

    fn links(&mut self, entries: &[Spanned<LinkEntry>], nodes: &BTreeSet<String>, is_routed: bool) -> Vec<Link> {
        let mut pairs = BTreeSet::new();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let mut links = Vec::new();
        for spanned in entries {
            let entry = spanned.get_ref();
            let (from, to) = (entry.from.get_ref().as_str(), entry.to.get_ref().as_str());
            self.known(&entry.from, nodes);
            self.known(&entry.to, nodes);
            if from == to {
                self.wrong(&entry.to, format!("a link from `{from}` to itself, expected another node"));
            } else if !pairs.insert((from.min(to), from.max(to))) {
                self.wrong(
                    &entry.to,
                    format!("`{from}` and `{to}` have a link already, expected one link between two nodes"),
                );
            }
            for end in [&entry.from, &entry.to] {
                let count = counts.entry(end.get_ref()).or_default();
                *count += 1;
                if *count == MAX_NEIGHBOURS + 1 {
                    self.wrong(
                        end,
                        format!("too many links of `{}`, expected at most {MAX_NEIGHBOURS}", end.get_ref()),
                    );
                }
            }
            if let Some(delay) = &entry.delay_ms {
                self.range(delay, 0, MAX_DELAY_MS, "ms");
            }
            if !is_routed && entry.relationship.is_none() {
                let message =
                    "no relationship, expected what `to` is to `from`: \"provider\", \"peer\" or \"customer\"";
                self.wrong(&entry.to, message);
            }
            if let Some(cost) = entry.cost.as_ref().filter(|_| !is_routed) {
                self.wrong(cost, "a cost in an overlay, expected none: links of ordinary routers have one");
            }
            links.push(Link {
                from: from.to_owned(),
                to: to.to_owned(),
                relationship: entry.relationship.as_ref().map_or(Relationship::Peer, |what| *what.get_ref()),
                delay: Duration::from_millis(entry.delay_ms.as_ref().map_or(0, |delay| *delay.get_ref())),
                public: entry.public,
                cost: routed::cost(&entry.cost),
            });
        }
        links
    }

    /// No two gateways have addresses in common, nor the addresses that the laboratory uses itself.
    fn owners(&mut self, file: &File, plan: &Plan) {
        let own: Vec<Prefix> = OWN_PREFIXES.iter().filter_map(|text| text.parse().ok()).collect();
        let overlaps = |one: &Prefix, other: &Prefix| one.contains(other) || other.contains(one);
        let mut taken: Vec<(Prefix, &str)> = Vec::new();
        for (entry, gateway) in file.gateway.iter().zip(&plan.gateways) {
            for text in entry.prefixes.get_ref() {
                let Ok(prefix) = text.get_ref().parse::<Prefix>() else { continue };
                if let Some((other, name)) = taken.iter().find(|(other, _)| overlaps(other, &prefix)) {
                    self.wrong(text, format!("`{name}` has {other}, expected a prefix of its own"));
                }
                if let Some(used) = own.iter().find(|used| overlaps(used, &prefix)) {
                    let fault = format!("the laboratory itself uses {used}, expected another prefix");
                    self.mistakes.push(Mistake::at(text.span(), fault).help("10.0.0.0/8 and fd00::/16 are free"));
                }
                taken.push((prefix, &gateway.name));
            }
        }
    }

    fn host(&mut self, host: &HostEntry, gateways: &BTreeSet<String>, plan: &Plan) -> Host {
        self.name(&host.name);
        match (&host.gateway, &host.router) {
            (Some(gateway), None) if !plan.is_routed() => return self.host_of(host, gateway, gateways, plan),
            (None, Some(router)) if plan.is_routed() => return self.host_of_router(host, router, plan),
            _ if plan.is_routed() => self.wrong(&host.name, "a host at no router, expected `router = NAME`"),
            _ => self.wrong(&host.name, "a host behind no gateway, expected `gateway = NAME`"),
        }
        let (name, gateway) = (host.name.get_ref().clone(), String::new());
        Host { name, gateway, addresses: Vec::new(), holds: Vec::new(), stamps: Vec::new(), run: Vec::new() }
    }

    /// A host of a network of routers: one address, and perhaps a stamper.
    fn host_of_router(&mut self, host: &HostEntry, router: &Spanned<String>, plan: &Plan) -> Host {
        let routers = plan.routers.iter().map(|router| router.name.clone()).collect();
        self.behind(router, &routers);
        if host.addresses.get_ref().len() != 1 {
            self.wrong(&host.addresses, "not one address, expected one of IPv4");
        }
        let addresses: Vec<IpAddr> =
            host.addresses.get_ref().iter().filter_map(|text| self.address(text)).map(IpAddr::V4).collect();
        self.held(&host.holds, &plan.capabilities);
        let stamps = self.stamps(&host.stamp, &plan.capabilities);
        for stamp in host.stamp.iter().filter(|stamp| !stamp.get_ref().is_own()) {
            self.wrong(stamp, "a host stamps its own packets, expected no `sources`");
        }
        Host {
            name: host.name.get_ref().clone(),
            gateway: router.get_ref().clone(),
            addresses,
            holds: host.holds.iter().map(|name| name.get_ref().clone()).collect(),
            stamps,
            run: self.commands(&host.run),
        }
    }

    fn host_of(
        &mut self,
        host: &HostEntry,
        behind: &Spanned<String>,
        gateways: &BTreeSet<String>,
        plan: &Plan,
    ) -> Host {
        if !gateways.contains(behind.get_ref()) {
            self.wrong(behind, format!("no gateway `{}`, expected the name of a [[gateway]]", behind.get_ref()));
        }
        if let Some(held) = host.holds.first() {
            self.wrong(held, "a capability in an overlay, expected none: hosts at ordinary routers have them");
        }
        if let Some(stamp) = host.stamp.first() {
            self.wrong(stamp, "a stamper in an overlay, expected none: hosts at ordinary routers have them");
        }
        let gateway = plan.gateways.iter().find(|gateway| gateway.name == *behind.get_ref());
        let mut addresses = Vec::new();
        for text in host.addresses.get_ref() {
            let Ok(address) = text.get_ref().parse::<IpAddr>() else {
                self.wrong(text, format!("`{}` is no address, expected one such as \"10.0.1.10\"", text.get_ref()));
                continue;
            };
            let Some(gateway) = gateway else { continue };
            let bits = if address.is_ipv4() { 32 } else { 128 };
            let single = Prefix::new(address, bits).ok();
            let is_within = single.is_some_and(|single| gateway.prefixes.iter().any(|prefix| prefix.contains(&single)));
            if !is_within {
                self.wrong(
                    text,
                    format!("{address} is outside `{}`, expected an address of its prefixes", gateway.name),
                );
            } else if gateway.addresses().contains(&address) {
                self.wrong(text, format!("{address} is the gateway's own address, expected another one"));
            } else if addresses.contains(&address) {
                self.wrong(text, "the address is there already, expected each once");
            }
            addresses.push(address);
        }
        if !(1..=2).contains(&host.addresses.get_ref().len()) {
            self.wrong(&host.addresses, "not one or two addresses, expected one of a family, or one of each");
        } else if let [one, other] = addresses[..]
            && one.is_ipv4() == other.is_ipv4()
        {
            self.wrong(&host.addresses, "two addresses of one family, expected one of each");
        }
        Host {
            name: host.name.get_ref().clone(),
            gateway: behind.get_ref().clone(),
            addresses,
            holds: Vec::new(),
            stamps: Vec::new(),
            run: self.commands(&host.run),
        }
    }
}

/// What the laboratory uses itself: the servers' network, links, hosts' links, names, the resolver.
const OWN_PREFIXES: [&str; 7] = [
    "192.0.2.0/24",
    "100.64.0.0/10",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "127.0.0.0/8",
    "fd77:6179:6c65::/48",
    "fdff::/16",
];

/// Whether a consent server would take the policy: its rules are well formed, and its own tests pass.
fn check_policy(text: &str) -> Result<(), String> {
    let file: PolicyFile = toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        format!("line {} of it: {}", before.matches('\n').count() + 1, error.message())
    })?;
    let policy = ConsentPolicy::new(&file).map_err(|error| error.to_string())?;
    let failed = policy.run_tests(&file).map_err(|error| error.to_string())?;
    failed.first().map_or(Ok(()), |failure| Err(failure.to_string()))
}

#[cfg(test)]
mod tests {
    //! LAB, mistakes: a mistake in each kind of entry, too many of each, a policy that fails its own test: named with
    //! line and column.

    use super::*;

    const GOOD: &str = r#"
[lab]
name = "small"

[[path_server]]
name = "paths"

[[consent_server]]
name = "west"

[[node]]
name = "w1"
consent = "west"
tags = [{ tag = "4000000A", use = "transit", meaning = "fast" }]

[[gateway]]
name = "a"
consent = "west"
prefixes = ["10.0.1.0/24", "fd00:1::/64"]

[[gateway]]
name = "b"
consent = "west"
prefixes = ["10.0.2.0/24"]
[[gateway.policy]]
name = "clean"
avoid = ["w1"]

[[link]]
from = "a"
to = "w1"
relationship = "provider"
delay_ms = 5

[[link]]
from = "w1"
to = "b"
relationship = "customer"

[[host]]
name = "h"
gateway = "b"
addresses = ["10.0.2.10"]
run = ["sleep 60"]
"#;

    /// The first mistake's line, column and message.
    fn mistake(text: &str) -> (usize, usize, String) {
        Plan::parse(text).expect_err("a mistake")[0].located(text)
    }

    #[test]
    fn a_description_is_read() {
        let plan = Plan::parse(GOOD).expect("fine");
        assert_eq!(plan.places().collect::<Vec<_>>(), ["paths", "west", "w1", "a", "b", "h"]);
        assert_eq!((plan.suffix.as_str(), plan.gateways[0].policies[0].name.as_str()), ("lab", "short"));
        assert_eq!(plan.nodes[0].tags.as_ref().expect("tags")[0].tag, "4000000a");
        let seen: Vec<_> = plan.links_of("w1").map(|(node, what, _)| (node, what)).collect();
        assert_eq!(seen, [("a", Relationship::Customer), ("b", Relationship::Customer)]);
        let addresses: Vec<String> = plan.gateways[0].addresses().iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.0.1.1", "fd00:1::1"]);
    }

    #[test]
    fn mistakes_have_their_place_and_say_what_was_expected() {
        for (old, new, line, column, said) in [
            ("name = \"small\"", "name = \"Small lab\"", 3, 8, "no name of a laboratory"),
            ("name = \"small\"", "name = \"small\"\nsuffix = \"-\"", 4, 10, "no suffix"),
            ("name = \"w1\"\nc", "name = \"paths\"\nc", 12, 8, "is there already"),
            ("name = \"w1\"\nc", "name = \"lo\"\nc", 12, 8, "the laboratory's own"),
            ("name = \"w1\"\nc", "name = \"a-name-too-long\"\nc", 12, 8, "no name here"),
            ("consent = \"west\"\ntags", "consent = \"east\"\ntags", 13, 11, "no consent server `east`"),
            ("4000000A", "4000", 14, 17, "no tag"),
            ("10.0.1.0/24", "10.0.1.1/24", 19, 13, "no prefix"),
            ("10.0.2.0/24", "10.0.1.128/25", 24, 13, "`a` has 10.0.1.0/24"),
            ("10.0.2.0/24", "192.0.2.0/25", 24, 13, "the laboratory itself uses 192.0.2.0/24"),
            ("avoid = [\"w1\"]", "avoid = [\"w2\"]", 27, 10, "no node `w2`"),
            ("from = \"a\"", "from = \"west\"", 30, 8, "no node `west`"),
            ("to = \"b\"", "to = \"w1\"", 37, 6, "to itself"),
            ("to = \"b\"", "to = \"a\"", 37, 6, "have a link already"),
            ("delay_ms = 5", "delay_ms = 5000", 33, 12, "5000 ms, expected 0 to 2000"),
            ("delay_ms = 5", "delay = 5", 33, 1, "unknown field"),
            ("\"customer\"", "\"friend\"", 38, 16, "unknown variant"),
            ("gateway = \"b\"", "gateway = \"w1\"", 42, 11, "no gateway `w1`"),
            ("10.0.2.10", "10.0.3.10", 43, 14, "outside `b`"),
            ("10.0.2.10", "10.0.2.1", 43, 14, "the gateway's own address"),
            ("sleep 60", " ", 44, 8, "an empty command"),
        ] {
            assert!(GOOD.contains(old), "{old}");
            let found = mistake(&GOOD.replacen(old, new, 1));
            assert!(found.2.contains(said) && (found.0, found.1) == (line, column), "{new}: {found:?}");
        }
        assert!(mistake(&GOOD.replace("[[path_server]]\nname = \"paths\"\n", "")).2.contains("0 path servers"));
    }

    #[test]
    fn counts_are_bounded() {
        let many: String =
            (0..=MAX_NODES).map(|n| format!("[[node]]\nname = \"n{n}\"\nconsent = \"west\"\n")).collect();
        assert!(mistake(&format!("{GOOD}{many}")).2.contains("expected at most 64"));
        assert!(mistake(&"#".repeat(MOST_OCTETS + 1)).2.contains("octets, expected at most"));
        let commands = format!("run = [{}]", "\"true\",".repeat(MAX_COMMANDS + 1));
        assert!(mistake(&GOOD.replace("run = [\"sleep 60\"]", &commands)).2.contains("17 commands"));
    }
}

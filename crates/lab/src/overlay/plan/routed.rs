//! Networks of ordinary routers, some of which are waypoints of Platypus: what such a description has beside links and hosts.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::{IpAddr, Ipv4Addr};

use serde::Deserialize;
use toml::Spanned;
use wayleave_core::{Afi, Prefix};

use super::{File, Link, MAX_ENTRIES, MAX_NODES, MAX_SERVERS, Plan};
use crate::laboratory::check::{Check, MAX_NAME, is_label, label_rule};

/// Capabilities, at most.
pub const MAX_CAPABILITIES: usize = 64;
/// Waypoints on one packet's way, at most: the format has no more.
const MAX_WAYPOINTS: usize = 8;
/// Cost of a link, at most.
const MAX_COST: u64 = 1_000;
/// Principals and delegations are numbers of 24 bits.
const MAX_NUMBER: u64 = (1 << 24) - 1;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RouterEntry {
    pub(super) name: Spanned<String>,
    /// Its address as a waypoint; without one it is an ordinary router.
    waypoint: Option<Spanned<String>>,
    key_server: Option<Spanned<String>>,
    /// Networks of ordinary hosts, for which it takes the header off.
    #[serde(default)]
    decapsulate: Vec<Spanned<String>>,
    #[serde(default)]
    stamp: Vec<Spanned<StampEntry>>,
    #[serde(default)]
    run: Vec<Spanned<String>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyServerEntry {
    pub(super) name: Spanned<String>,
    router: Spanned<String>,
    address: Spanned<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CapabilityEntry {
    name: Spanned<String>,
    principal: Option<Spanned<u64>>,
    waypoint: Option<Spanned<String>>,
    of: Option<Spanned<String>>,
    prefix: Option<Spanned<String>>,
    id: Option<Spanned<u64>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StampEntry {
    to: Spanned<String>,
    with: Spanned<Vec<Spanned<String>>>,
    /// Networks behind this router whose packets are stamped.
    #[serde(default)]
    sources: Vec<Spanned<String>>,
}

impl RouterEntry {
    pub(super) fn stamps(&self) -> &[Spanned<StampEntry>] {
        &self.stamp
    }
}

impl StampEntry {
    pub(super) fn is_own(&self) -> bool {
        self.sources.is_empty()
    }
}

/// An ordinary router; one with a waypoint's address also runs `wayleave run router`, one that stamps `wayleave run stamper`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Router {
    pub name: String,
    pub waypoint: Option<Waypoint>,
    pub stamps: Vec<Stamp>,
    pub run: Vec<String>,
}

/// A waypoint, the key server of its provider, and the networks for which it takes the header off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waypoint {
    pub address: Ipv4Addr,
    pub key_server: String,
    pub decapsulate: Vec<Prefix>,
}

/// A provider's key server, behind a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyServer {
    pub name: String,
    pub router: String,
    pub address: Ipv4Addr,
}

/// A capability that somebody holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    pub name: String,
    pub from: From,
}

/// Where a capability comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum From {
    /// The provider of a waypoint (a router's name) grants it to a principal.
    Grant { principal: u32, waypoint: String },
    /// A holder delegates it for some destinations.
    Delegation { of: String, prefix: Prefix, id: u32 },
}

/// Packets that are stamped, and the capabilities for that in the order of their waypoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub to: Prefix,
    pub with: Vec<String>,
    pub sources: Vec<Prefix>,
}

impl Plan {
    /// Whether it is a network of ordinary routers, not an overlay.
    #[must_use]
    pub fn is_routed(&self) -> bool {
        !self.routers.is_empty()
    }

    /// The router at which a capability can be used.
    #[must_use]
    pub fn waypoint_of(&self, capability: &str) -> Option<&Router> {
        let mut name = capability;
        // A delegation comes after what it is of.
        for capability in self.capabilities.iter().rev() {
            if capability.name == name {
                match &capability.from {
                    From::Grant { waypoint, .. } => return self.routers.iter().find(|router| router.name == *waypoint),
                    From::Delegation { of, .. } => name = of,
                }
            }
        }
        None
    }

    /// For each router that `from` reaches, the neighbour on the cheapest way there; of equal ones that by the first name.
    #[must_use]
    pub fn next_hops<'a>(&'a self, from: &'a str) -> BTreeMap<&'a str, &'a str> {
        let mut nearest: BTreeMap<&str, &str> = BTreeMap::new();
        let mut waiting = BinaryHeap::from([std::cmp::Reverse((0, from, from))]);
        while let Some(std::cmp::Reverse((cost, router, first))) = waiting.pop() {
            if nearest.contains_key(router) {
                continue;
            }
            nearest.insert(router, first);
            for (next, _, link) in self.links_of(router).filter(|(next, ..)| !nearest.contains_key(next)) {
                let first = if router == from { next } else { first };
                waiting.push(std::cmp::Reverse((cost + u64::from(link.cost), next, first)));
            }
        }
        nearest.remove(from);
        nearest
    }
}

impl Check {
    /// What only an overlay has, and what only a network of routers has.
    pub(super) fn either(&mut self, file: &File) {
        let has_overlay = !file.path_server.is_empty()
            || !file.consent_server.is_empty()
            || !file.node.is_empty()
            || !file.gateway.is_empty();
        if has_overlay {
            let message = "routers beside nodes or servers of an overlay, expected one or the other";
            self.whole(message, "describe two laboratories: each has one kind of network");
        }
        let limits = [
            (file.router.len(), MAX_NODES, "routers"),
            (file.key_server.len(), MAX_SERVERS, "key servers"),
            (file.capability.len(), MAX_CAPABILITIES, "capabilities"),
        ];
        for (count, most, what) in limits {
            if count > most {
                self.whole(format!("{count} {what}, expected at most {most}"), "divide the laboratory");
            }
        }
        for spanned in &file.link {
            let link = spanned.get_ref();
            if let Some(relationship) = &link.relationship {
                self.wrong(relationship, "a relationship between ordinary routers, expected `cost` at most");
            }
            if let Some(cost) = &link.cost {
                self.range(cost, 1, MAX_COST, "as a cost");
            }
        }
    }

    pub(super) fn router(&mut self, entry: &RouterEntry, key_servers: &BTreeSet<String>) -> Router {
        let waypoint = entry.waypoint.as_ref().and_then(|address| {
            let key_server = entry.key_server.as_ref().map(|name| name.get_ref().clone());
            match &entry.key_server {
                None => self.wrong(address, "a waypoint without a key server, expected `key_server = NAME`"),
                Some(name) if !key_servers.contains(name.get_ref()) => {
                    self.wrong(
                        name,
                        format!("no key server `{}`, expected the name of a [[key_server]]", name.get_ref()),
                    );
                }
                Some(_) => {}
            }
            let decapsulate = entry.decapsulate.iter().filter_map(|text| self.network(text)).collect();
            Some(Waypoint { address: self.address(address)?, key_server: key_server?, decapsulate })
        });
        if entry.waypoint.is_none() {
            for only in entry.key_server.iter().chain(&entry.decapsulate) {
                self.wrong(only, "the router is no waypoint, expected `waypoint = ADDRESS` beside this");
            }
        } else if let Some(stamp) = entry.stamp.first() {
            self.wrong(stamp, "a waypoint that stamps too, expected two routers: one process runs at each");
        }
        for stamp in entry.stamp.iter().filter(|stamp| stamp.get_ref().sources.is_empty()) {
            self.wrong(stamp, "a router stamps for others, expected `sources`, the networks behind it");
        }
        Router { name: entry.name.get_ref().clone(), waypoint, stamps: Vec::new(), run: self.commands(&entry.run) }
    }

    pub(super) fn key_server(&mut self, entry: &KeyServerEntry, routers: &BTreeSet<String>) -> Option<KeyServer> {
        self.behind(&entry.router, routers);
        let address = self.address(&entry.address)?;
        Some(KeyServer { name: entry.name.get_ref().clone(), router: entry.router.get_ref().clone(), address })
    }

    pub(super) fn capabilities(&mut self, entries: &[CapabilityEntry], routers: &[Router]) -> Vec<Capability> {
        let mut all: Vec<Capability> = Vec::new();
        for entry in entries {
            let name = entry.name.get_ref();
            if all.iter().any(|other| other.name == *name) {
                self.wrong(&entry.name, format!("a capability `{name}` is there already, expected another name"));
            } else if !is_label(name) {
                self.wrong(&entry.name, format!("`{name}` is no name here, {}", label_rule(MAX_NAME)));
            }
            let from = match (&entry.principal, &entry.waypoint, &entry.of, &entry.prefix, &entry.id) {
                (Some(principal), Some(waypoint), None, None, None) => {
                    self.range(principal, 1, MAX_NUMBER, "as a principal");
                    let is_waypoint = |router: &Router| router.name == *waypoint.get_ref() && router.waypoint.is_some();
                    if !routers.iter().any(is_waypoint) {
                        let message = format!("`{}` is no waypoint, expected a router with one", waypoint.get_ref());
                        self.wrong(waypoint, message);
                    }
                    let principal = u32::try_from(*principal.get_ref()).unwrap_or(u32::MAX);
                    From::Grant { principal, waypoint: waypoint.get_ref().clone() }
                }
                (None, None, Some(of), Some(prefix), Some(id)) => {
                    self.range(id, 1, MAX_NUMBER, "as a delegation");
                    if !all.iter().any(|other| other.name == *of.get_ref()) {
                        self.wrong(of, format!("no capability `{}` before this, expected its name", of.get_ref()));
                    }
                    let Some(prefix) = self.network(prefix) else { continue };
                    let id = u32::try_from(*id.get_ref()).unwrap_or(u32::MAX);
                    From::Delegation { of: of.get_ref().clone(), prefix, id }
                }
                _ => {
                    let expected = "expected `principal` and `waypoint`, or `of`, `prefix` and `id`";
                    self.wrong(&entry.name, format!("neither granted nor delegated, {expected}"));
                    continue;
                }
            };
            all.push(Capability { name: name.clone(), from });
        }
        all
    }

    pub(super) fn stamps(&mut self, entries: &[Spanned<StampEntry>], capabilities: &[Capability]) -> Vec<Stamp> {
        if let Some(first) = entries.get(MAX_ENTRIES) {
            self.wrong(first, format!("{} rules, expected at most {MAX_ENTRIES}", entries.len()));
        }
        let mut all = Vec::new();
        for entry in entries.iter().map(Spanned::get_ref) {
            let count = entry.with.get_ref().len();
            if !(1..=MAX_WAYPOINTS).contains(&count) {
                self.wrong(&entry.with, format!("{count} capabilities, expected 1 to {MAX_WAYPOINTS}"));
            }
            self.held(entry.with.get_ref(), capabilities);
            let with = entry.with.get_ref().iter().map(|name| name.get_ref().clone()).collect();
            let sources = entry.sources.iter().filter_map(|text| self.network(text)).collect();
            all.extend(self.network(&entry.to).map(|to| Stamp { to, with, sources }));
        }
        all
    }

    pub(super) fn held(&mut self, names: &[Spanned<String>], capabilities: &[Capability]) {
        for name in names.iter().filter(|name| !capabilities.iter().any(|other| other.name == *name.get_ref())) {
            self.wrong(name, format!("no capability `{}`, expected the name of a [[capability]]", name.get_ref()));
        }
    }

    pub(super) fn behind(&mut self, router: &Spanned<String>, routers: &BTreeSet<String>) {
        if !routers.contains(router.get_ref()) {
            self.wrong(router, format!("no router `{}`, expected the name of a [[router]]", router.get_ref()));
        }
    }

    /// An address that nobody else has.
    pub(super) fn address(&mut self, text: &Spanned<String>) -> Option<Ipv4Addr> {
        let Ok(address) = text.get_ref().parse::<Ipv4Addr>() else {
            let message = format!("`{}` is no address of IPv4, expected one such as \"192.0.2.10\"", text.get_ref());
            self.wrong(text, message);
            return None;
        };
        let own = ["100.64.0.0/10", "127.0.0.0/8", "224.0.0.0/3", "0.0.0.0/8"];
        let single = Prefix::new(IpAddr::V4(address), 32).ok();
        let own = own.iter().filter_map(|network| network.parse::<Prefix>().ok());
        let mut used = own.filter(|network| single.is_some_and(|single| network.contains(&single)));
        if let Some(used) = used.next() {
            self.wrong(text, format!("{address} is of {used}, expected another address: no host can have it here"));
        } else if !self.addresses.insert(address) {
            self.wrong(text, format!("{address} is there already, expected an address of its own"));
        }
        Some(address)
    }

    fn network(&mut self, text: &Spanned<String>) -> Option<Prefix> {
        let parsed = text.get_ref().parse::<Prefix>().ok().filter(|prefix| prefix.afi() == Afi::Ipv4);
        if parsed.is_none() {
            let message = format!("`{}` is no network of IPv4, expected one such as \"192.0.2.0/24\"", text.get_ref());
            self.wrong(text, message);
        }
        parsed
    }

    /// Every router reaches every other one.
    pub(super) fn connected(&mut self, plan: &Plan) {
        let Some(first) = plan.routers.first() else { return };
        let reached = plan.next_hops(&first.name);
        let apart = plan.routers.iter().skip(1).find(|router| !reached.contains_key(router.name.as_str()));
        if let Some(apart) = apart {
            let message = format!("`{}` and `{}` have no way to each other, expected links", first.name, apart.name);
            self.whole(message, "each link is a section [[link]]");
        }
    }
}

/// The cost of a link, if the file does not say.
pub(super) fn cost(link: &Option<Spanned<u64>>) -> u32 {
    link.as_ref().map_or(1, |cost| u32::try_from(*cost.get_ref()).unwrap_or(u32::MAX))
}

/// A link's cost behind a comma, for drawings; nothing for the usual one.
#[must_use]
pub fn cost_of(link: &Link) -> String {
    if link.cost == 1 { String::new() } else { format!(", cost {}", link.cost) }
}

#[cfg(test)]
mod tests {
    use super::super::Mistake;
    use super::*;

    const GOOD: &str = r#"
[lab]
name = "small"
[[router]]
name = "edge"
[[router.stamp]]
to = "203.0.113.0/24"
with = ["sold"]
sources = ["192.0.2.0/24"]
[[router]]
name = "far"
[[router]]
name = "pro"
waypoint = "198.51.100.1"
key_server = "keys"
decapsulate = ["203.0.113.0/24"]
[[key_server]]
name = "keys"
router = "pro"
address = "198.51.100.53"
[[capability]]
name = "own"
principal = 7
waypoint = "pro"
[[capability]]
name = "sold"
of = "own"
prefix = "203.0.113.0/24"
id = 1
[[host]]
name = "desk"
router = "edge"
addresses = ["192.0.2.10"]
holds = ["own"]
[[link]]
from = "edge"
to = "far"
[[link]]
from = "edge"
to = "pro"
cost = 9
[[link]]
from = "pro"
to = "far"
cost = 2
"#;

    #[test]
    fn a_network_is_read_and_packets_take_the_cheapest_way() {
        let plan = Plan::parse(GOOD).expect("fine");
        assert_eq!(plan.places().collect::<Vec<_>>(), ["edge", "far", "pro", "keys", "desk"]);
        assert_eq!(plan.waypoint_of("sold").map(|router| router.name.as_str()), Some("pro"));
        assert!(plan.waypoint_of("none").is_none());
        assert_eq!(plan.next_hops("edge"), BTreeMap::from([("far", "far"), ("pro", "far")]));
        assert_eq!(plan.next_hops("far"), BTreeMap::from([("edge", "edge"), ("pro", "pro")]));
    }

    /// The first mistake's line and message.
    fn mistake(text: &str) -> (usize, String) {
        let mistakes = Plan::parse(text).expect_err("a mistake");
        let Mistake { span, message, .. } = mistakes[0].clone();
        (span.map_or(0, |span| text[..span.start].matches('\n').count() + 1), message)
    }

    #[test]
    fn mistakes_have_their_place_and_say_what_was_expected() {
        for (old, new, line, said) in [
            ("name = \"keys\"", "name = \"far\"", 18, "is there already"),
            ("name = \"desk\"", "name = \"stamp0\"", 31, "the laboratory's own"),
            ("waypoint = \"198.51.100.1\"", "waypoint = \"2001:db8::1\"", 14, "no address of IPv4"),
            ("waypoint = \"198.51.100.1\"", "waypoint = \"100.64.0.1\"", 14, "no host can have it"),
            ("address = \"198.51.100.53\"", "address = \"198.51.100.1\"", 20, "there already"),
            ("key_server = \"keys\"", "key_server = \"key\"", 15, "no key server `key`"),
            ("key_server = \"keys\"\n", "", 14, "without a key server"),
            ("waypoint = \"198.51.100.1\"\n", "", 14, "the router is no waypoint"),
            ("router = \"pro\"", "router = \"desk\"", 19, "no router `desk`"),
            ("principal = 7", "principal = 16777216", 23, "expected 1 to 16777215"),
            ("waypoint = \"pro\"", "waypoint = \"far\"", 24, "`far` is no waypoint"),
            ("of = \"own\"", "of = \"owned\"", 27, "no capability `owned` before this"),
            ("of = \"own\"\n", "", 26, "neither granted nor delegated"),
            ("prefix = \"203.0.113.0/24\"", "prefix = \"203.0.113.1/24\"", 28, "no network of IPv4"),
            ("with = [\"sold\"]", "with = [\"resold\"]", 8, "no capability `resold`"),
            ("with = [\"sold\"]", "with = []", 8, "0 capabilities"),
            ("sources = [\"192.0.2.0/24\"]\n", "", 6, "expected `sources`"),
            ("holds = [\"own\"]", "holds = [\"it\"]", 34, "no capability `it`"),
            ("router = \"edge\"\n", "", 31, "a host at no router"),
            ("addresses = [\"192.0.2.10\"]", "addresses = []", 33, "not one address"),
            ("cost = 9", "cost = 0", 41, "expected 1 to 1000"),
            ("cost = 9", "relationship = \"peer\"", 41, "between ordinary routers"),
            (
                "to = \"far\"\n[[link]]\nfrom = \"edge\"",
                "to = \"keys\"\n[[link]]\nfrom = \"edge\"",
                37,
                "no node `keys`",
            ),
        ] {
            assert!(GOOD.contains(old), "{old}");
            let found = mistake(&GOOD.replacen(old, new, 1));
            assert!(found.1.contains(said) && found.0 == line, "{new}: {found:?}");
        }
        let apart = GOOD.replace("[[key_server]]", "[[router]]\nname = \"apart\"\n[[key_server]]");
        assert!(mistake(&apart).1.contains("have no way to each other"));
        let both = format!("{GOOD}[[node]]\nname = \"w1\"\nconsent = \"c\"\n");
        assert!(mistake(&both).1.contains("beside nodes or servers of an overlay"));
        let many: String = (0..=MAX_CAPABILITIES)
            .map(|number| format!("[[capability]]\nname = \"c{number}\"\nprincipal = 1\nwaypoint = \"pro\"\n"))
            .collect();
        assert!(mistake(&format!("{GOOD}{many}")).1.contains("expected at most 64"));
    }
}

//! A realm in network namespaces: an operator, a path server, three consent servers, four forwarders and two gateways, each node in
//! a place of its own. Every path and every consent comes from the servers.
//!
//! ```text
//!          w2
//!         /  \          providers above; w1 and w3 are peers
//!   a - w1 -- w3 - b
//!    \--- e ------/     e is a provider of both, and no clean one
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use serde_json::Value;
use wayleave_lab::netns::{Network, NetworkNamespace};

use super::harness::{Realm, Running};
use super::relay::Relay;
use crate::common::eventually;

/// The address of the servers.
pub(crate) const HERE: &str = "192.0.2.250";
/// Where nodes and servers show their status.
const PAGE: &str = "127.0.0.1:8492";
/// Name, role, number, the consent server of its provider.
pub(crate) const NODES: [(&str, &str, u8, usize); 6] = [
    ("a", "gateway", 1, 0),
    ("b", "gateway", 2, 0),
    ("w1", "router", 11, 1),
    ("w2", "router", 12, 1),
    ("w3", "router", 13, 1),
    ("e", "router", 21, 2),
];
/// Both ends, and what the second is to the first.
const LINKS: [(&str, &str, &str); 7] = [
    ("a", "w1", "provider"),
    ("a", "e", "provider"),
    ("w1", "w2", "provider"),
    ("w1", "w3", "peer"),
    ("w3", "w2", "provider"),
    ("b", "w3", "provider"),
    ("b", "e", "provider"),
];
/// The consent servers: of the gateways, of the west and of the east.
const CONSENT: [&str; 3] = ["ends", "west", "east"];

/// How a world differs from others.
pub(crate) struct Plan {
    /// Seconds for which gateways ask for consent.
    pub(crate) consent_secs: u64,
    /// Further members, as routers or gateways, and their links.
    pub(crate) more: &'static [(&'static str, &'static str, u8, usize)],
    pub(crate) links: &'static [(&'static str, &'static str, &'static str)],
    /// What is added to the ports of the servers' addresses as the others know them: somebody relays between both.
    pub(crate) ports_up: u16,
    /// Seconds that memberships last, if not a year.
    pub(crate) lasts: Option<u64>,
    /// Seconds between two lists of removed nodes, and after the next one is due until a list is too old to trust, if not as usual.
    pub(crate) lists: Option<(u64, u64)>,
    /// Whether the provider in the east consents to nothing.
    pub(crate) denies_east: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self { consent_secs: 300, more: &[], links: &[], ports_up: 0, lasts: None, lists: None, denies_east: false }
    }
}

pub(crate) struct World {
    pub(crate) network: Network,
    pub(crate) realm: Realm,
    pub(crate) paths: Running,
    pub(crate) consent: Vec<Running>,
    pub(crate) nodes: BTreeMap<&'static str, Running>,
    pub(crate) places: BTreeMap<&'static str, NetworkNamespace>,
    pub(crate) identities: BTreeMap<String, String>,
    /// In front of the path server and the consent servers, if the plan has ports for them.
    pub(crate) relays: Vec<Relay>,
}

pub(crate) fn address(number: u8) -> String {
    format!("192.0.2.{number}")
}

/// Where the node `number` receives what the node `from` sends.
pub(crate) fn port(number: u8, from: u8) -> String {
    format!("{}:{}", address(number), 50_000 + u16::from(from))
}

fn reversed(relationship: &str) -> &str {
    match relationship {
        "provider" => "customer",
        "customer" => "provider",
        same => same,
    }
}

impl World {
    pub(crate) fn new(name: &str) -> Self {
        Self::with(name, &Plan::default())
    }

    pub(crate) fn with(name: &str, plan: &Plan) -> Self {
        let begin = Instant::now();
        let network = Network::new().expect("a network");
        let added = Command::new("ip").args(["addr", "add", &format!("{HERE}/24"), "dev", "lan"]).status();
        assert!(added.expect("ip runs").success());
        let mut realm = Realm::at(name, &format!("{HERE}:7000"), "127.0.0.1:8500");
        realm.lasts = plan.lasts;
        if let Some((interval, _)) = plan.lists {
            realm.operator.kill();
            let often = format!("list_interval_secs = {interval}");
            realm.edit("realm/realm.toml", |text| text.replace("#list_interval_secs = 600", &often));
            realm.operator.resume();
        }
        let relay = |port: u16| Relay::start(&format!("{HERE}:{}", port + plan.ports_up), &format!("{HERE}:{port}"));
        let relays = match plan.ports_up {
            0 => Vec::new(),
            _ => [7_100, 7_200, 7_201, 7_202].map(relay).into(),
        };
        let at = |port: u16| (format!("{HERE}:{port}"), format!("{HERE}:{}", port + plan.ports_up));
        let (listen, shown) = at(7_100);
        let token = realm.invite(&["paths", "--role", "path", "--address", &shown]);
        let mut identities = BTreeMap::new();
        let joined = |realm: &Realm, name: &str, arguments: &[&str]| -> String {
            let said = realm.folder.ok(&[&["join"], arguments, &["--dir", name, "--json"]].concat());
            let said: Value = serde_json::from_str(&said).expect("JSON");
            said["identity"].as_str().expect("an identity").to_owned()
        };
        let paths_identity = joined(&realm, "paths", &[&token, "--listen", &listen, "--status", "127.0.0.1:8501"]);
        identities.insert("paths".to_owned(), paths_identity);
        let paths = Running::launch("paths", realm.path("paths"), "path", "127.0.0.1:8501", NetworkNamespace::Own);
        let mut who = Vec::new();
        for (index, name) in (0u16..).zip(CONSENT) {
            let (listen, shown) = at(7_200 + index);
            let token = realm.invite(&[name, "--role", "consent"]);
            let status = format!("127.0.0.1:{}", 8_510 + index);
            let identity = joined(&realm, name, &[&token, "--listen", &listen, "--status", &status]);
            who.push(format!("{identity}@{shown}"));
            identities.insert(name.to_owned(), identity);
        }
        let nodes: Vec<_> = NODES.iter().chain(plan.more).copied().collect();
        let links: Vec<_> = LINKS.iter().chain(plan.links).copied().collect();
        let number = |name: &str| nodes.iter().find(|node| node.0 == name).expect("a node").2;
        let mut places = BTreeMap::new();
        for (name, _, number, _) in &nodes {
            let place = network.attach(&format!("n-{name}"), &[format!("{}/24", address(*number))]);
            places.insert(*name, place.expect("a namespace"));
        }
        let token = |(name, role, number, _): &(&str, &str, u8, usize)| {
            let (v4, v6) = (format!("10.0.{number}.0/24"), format!("fd00:{number}::/64"));
            match *role {
                "gateway" => realm.invite(&[name, "--role", role, "--prefix", &v4, "--prefix", &v6]),
                role => realm.invite(&[name, "--role", role]),
            }
        };
        let join = |node: &(&'static str, &'static str, u8, usize)| {
            let (name, role, own, server) = *node;
            let identity = joined(&realm, name, &[&token(node), "--consent", &who[server], "--status", PAGE]);
            let mut sections = String::new();
            for (one, other, is) in &links {
                let (other, is) = match () {
                    () if *one == name => (*other, *is),
                    () if *other == name => (*one, reversed(is)),
                    () => continue,
                };
                let theirs = number(other);
                sections += &format!(
                    "[[overlay.neighbour]]\nnode = \"{other}\"\nrelationship = \"{is}\"\ninterface = {theirs}\nlocal = \"{}\"\n",
                    port(own, theirs)
                );
            }
            realm.edit(&format!("{name}/{role}.toml"), |text| {
                let text = text.replace("127.0.0.1:5354\"\n# Their", "127.0.0.1:53\"\n# Their");
                let text = text.replace("#consent_secs = 300", &format!("consent_secs = {}", plan.consent_secs));
                let policies = "[[policy]]\nname = \"clean\"\norder = \"longest\"\navoid = [\"e\"]\n\
                                [[policy]]\nname = \"pinned\"\npin = [\"w1\", \"w2\", \"w3\"]\n\n[overlay]\n";
                let text = text.replace("name = \"short\"", "name = \"fast\"");
                let text = if role == "gateway" { text.replace("[overlay]\n", policies) } else { text };
                format!("{text}\n{sections}")
            });
            (name, identity)
        };
        // Two at a time: each is a process that waits for the operator's.
        let (first, second) = nodes.split_at(nodes.len() / 2);
        let all = std::thread::scope(|scope| {
            let other = scope.spawn(|| second.iter().map(join).collect::<Vec<_>>());
            let mut all: Vec<_> = first.iter().map(join).collect();
            all.extend(other.join().expect("joined"));
            all
        });
        for (name, identity) in all {
            let (.., server) = nodes.iter().find(|node| node.0 == name).expect("a node");
            let section = format!("[[consent.node]]\nidentity = \"{identity}\"\ntags = \"../{name}/tags.key\"\n");
            realm.edit(&format!("{}/consent.toml", CONSENT[*server]), |text| format!("{text}\n{section}"));
            identities.insert(name.to_owned(), identity);
        }
        if let Some((_, staleness)) = plan.lists {
            let files = nodes.iter().map(|(name, role, ..)| (*name, *role));
            for (name, role) in files.chain(CONSENT.map(|name| (name, "consent"))) {
                let soon = format!("max_staleness_secs = {staleness}");
                realm.edit(&format!("{name}/{role}.toml"), |text| text.replace("#max_staleness_secs = 86400", &soon));
            }
        }
        if plan.denies_east {
            realm.edit("east/policy.toml", |_| "[[rule]]\nname = \"nobody\"\nallow = false\n".to_owned());
        }
        let consent = (0u16..).zip(CONSENT).map(|(index, name)| {
            let status = format!("127.0.0.1:{}", 8_510 + index);
            Running::launch(name, realm.path(name), "consent", &status, NetworkNamespace::Own)
        });
        let consent = consent.collect();
        let running = nodes
            .iter()
            .map(|(name, role, ..)| (*name, Running::launch(name, realm.path(name), role, PAGE, places[name].clone())));
        let nodes = running.collect();
        let mut world = Self { network, realm, paths, consent, nodes, places, identities, relays };
        world.paths.wait();
        world.consent.iter_mut().for_each(Running::wait);
        world.nodes.values_mut().for_each(Running::wait);
        eprintln!("the processes are up after {:?}", begin.elapsed());
        world
    }

    /// Waits until both gateways reach each other by every policy.
    pub(crate) fn settled(self) -> Self {
        let begin = Instant::now();
        for (from, name) in [("a", "clean.b.overlay"), ("a", "fast.b.overlay"), ("b", "clean.a.overlay")] {
            eventually(&format!("{from} reaches {name}: {}", self.logs()), || {
                self.nodes[from].ask(&["ping", name]).status.success()
            });
        }
        eprintln!("everybody is reached {:?} later", begin.elapsed());
        self
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.realm.path(file)
    }

    /// What the processes said last.
    pub(crate) fn logs(&self) -> String {
        let running = self.nodes.values().chain(&self.consent).chain([&self.paths]);
        let tail = |running: &Running| {
            let log = running.log();
            let lines: Vec<&str> = log.lines().collect();
            format!("--- {}\n{}\n", running.name, lines[lines.len().saturating_sub(6)..].join("\n"))
        };
        running.map(tail).collect()
    }

    /// The status of every node.
    pub(crate) fn statuses(&self) -> String {
        self.nodes.iter().map(|(name, running)| format!("{name}: {}\n", running.show("status", &[]))).collect()
    }

    /// Packets that a forwarder sent on.
    pub(crate) fn forwarded(&self, node: &str) -> u64 {
        self.nodes[node].counted("decided", "forwarded")
    }

    pub(crate) fn node(&mut self, name: &str) -> &mut Running {
        self.nodes.get_mut(name).expect("a node")
    }

    /// A command in a node's namespace, with a home of its own.
    pub(crate) fn command(&self, node: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = self.places[node].command(program);
        command.current_dir(&self.realm.folder.0).env("HOME", &self.realm.folder.0).stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, node: &str, program: &str, arguments: &[&str]) -> Output {
        self.command(node, program).args(arguments).output().expect("the program runs")
    }
}

/// The addresses of a name where [`use_names`] is in force: of IPv4, and of IPv6.
pub(crate) fn addresses_of(place: &NetworkNamespace, name: &str) -> [IpAddr; 2] {
    let mut found = None;
    eventually(&format!("{name} has addresses"), || {
        let answer = place.within(|| (name, 0).to_socket_addrs().map(Vec::from_iter)).expect("in its place");
        let all: Vec<IpAddr> = answer.unwrap_or_default().iter().map(SocketAddr::ip).collect();
        let of = |is_right: fn(&IpAddr) -> bool| all.iter().copied().find(is_right);
        found = of(IpAddr::is_ipv4).zip(of(IpAddr::is_ipv6));
        found.is_some()
    });
    found.expect("found").into()
}

/// Lets every namespace ask its own gateway for names.
pub(crate) fn use_names(network: &Network) {
    let (own, system) = (network.state().join("resolv.conf"), "/etc/resolv.conf");
    // Asked as often as the resolver will: a gateway whose disk is late answers that it failed.
    fs::write(&own, "nameserver 127.0.0.1\noptions timeout:3 attempts:5\n").expect("written");
    let mount = Command::new("mount").arg("--bind").arg(&own).arg(system).status();
    assert!(mount.expect("mount runs").success());
}

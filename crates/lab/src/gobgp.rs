//! GoBGP as a router: configuration, `gobgp`, table.
//!
//! What it originates stands in no configuration: `gobgp global rib add` tells it, each time that it has started.

use std::fs;
use std::io;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use wayleave_bgp::{Community, LargeCommunity};
use wayleave_core::{Afi, Asn, Prefix};

use crate::netns::NetworkNamespace;
use crate::process::{Daemon, wait_until};
use crate::router_config::{Neighbour, RouterConfig};
use crate::routers::Installation;
use crate::table::{Announcement, LearnedRoute, Peering, Router, RouterError};

/// How long the daemon may take to open its API.
const START: Duration = Duration::from_secs(10);
/// Where the API listens, in the router's own namespace.
const API: &str = "127.0.0.1:50051";
/// The state of a session that is up, as `gobgp neighbor -j` has it.
const ESTABLISHED: u64 = 6;
/// Types of path attributes.
const AS_PATH: u64 = 2;
const NEXT_HOP: u64 = 3;
const MULTI_EXIT_DISC: u64 = 4;
const COMMUNITIES: u64 = 8;
const MP_REACH_NLRI: u64 = 14;
const LARGE_COMMUNITIES: u64 = 32;

/// Which configuration a GoBGP gets.
#[derive(Debug)]
enum Role {
    Member(Peering),
    RouterConfig(RouterConfig),
    /// In GoBGP's own language, TOML.
    Text(String),
}

/// A GoBGP that peers with the exchange, or with a list of neighbours by IPv4.
#[derive(Debug)]
pub struct Gobgp {
    installation: Installation,
    namespace: NetworkNamespace,
    name: String,
    role: Role,
    folder: PathBuf,
    routes: Vec<Announcement>,
    daemon: Option<Daemon>,
}

impl Gobgp {
    /// A router that is not started yet; its files go to `state/NAME-router`. A customer is not supported.
    pub fn new(installation: &Installation, namespace: NetworkNamespace, peering: Peering, state: &Path) -> Self {
        Self::with(installation, namespace, peering.name.clone(), Role::Member(peering), state)
    }

    /// The router of a site, not started yet.
    pub fn with_config(
        installation: &Installation,
        namespace: NetworkNamespace,
        site: RouterConfig,
        state: &Path,
    ) -> Self {
        Self::with(installation, namespace, site.name.clone(), Role::RouterConfig(site), state)
    }

    /// A router with a configuration in GoBGP's own language, not started yet.
    pub fn with_text(
        installation: &Installation,
        namespace: NetworkNamespace,
        name: &str,
        text: String,
        state: &Path,
    ) -> Self {
        Self::with(installation, namespace, name.to_owned(), Role::Text(text), state)
    }

    fn with(installation: &Installation, namespace: NetworkNamespace, name: String, role: Role, state: &Path) -> Self {
        let folder = state.join(format!("{name}-router"));
        Self { installation: installation.clone(), namespace, name, role, folder, routes: Vec::new(), daemon: None }
    }

    fn configuration(&self) -> String {
        match &self.role {
            Role::Member(peering) => {
                let site = RouterConfig::new(&peering.name, peering.asn, peering.address);
                let site = site.with("exchange", peering.peer_address, peering.peer_asn);
                configuration(&site, &["ipv4-unicast", "ipv6-unicast"])
            }
            Role::RouterConfig(site) => configuration(site, &["ipv4-unicast"]),
            Role::Text(text) => text.clone(),
        }
    }

    fn client(&self) -> Command {
        let mut command = self.namespace.command(self.installation.program("gobgp"));
        self.installation.prepare(&mut command);
        command
    }

    /// Runs a `gobgp` command and returns what it printed.
    fn ask(&self, question: &str) -> Result<String, RouterError> {
        let output = self.client().args(question.split(' ')).output().map_err(|error| self.system(error))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(text);
        }
        Err(self.refused(question, text + &String::from_utf8_lossy(&output.stderr)))
    }

    fn ask_json(&self, question: &str) -> Result<Value, RouterError> {
        let text = self.ask(question)?;
        serde_json::from_str(&text).map_err(|error| self.answer(format!("{question}: {error}")))
    }

    /// Adds a route, or puts it in the place of the one that is there.
    fn add(&self, route: &Announcement) -> Result<(), RouterError> {
        let address6 = own_address6(&self.namespace).map_err(|error| self.system(error))?;
        self.ask(&addition(route, address6)).map(drop)
    }

    fn system(&self, error: io::Error) -> RouterError {
        RouterError::System { router: self.name.clone(), error }
    }

    fn refused(&self, command: &str, answer: String) -> RouterError {
        RouterError::Refused { router: self.name.clone(), command: command.to_owned(), answer }
    }

    fn answer(&self, line: String) -> RouterError {
        RouterError::Answer { router: self.name.clone(), line }
    }
}

impl Router for Gobgp {
    fn name(&self) -> &str {
        &self.name
    }

    fn software(&self) -> String {
        format!("GoBGP {}", self.installation.version)
    }

    fn start(&mut self) -> Result<(), RouterError> {
        let path = self.folder.join("gobgpd.toml");
        let written = fs::create_dir_all(&self.folder).and_then(|()| fs::write(&path, self.configuration()));
        written.map_err(|error| self.system(error))?;
        let mut command = self.namespace.command(self.installation.program("gobgpd"));
        self.installation.prepare(&mut command);
        command.args(["--pprof-disable", "--api-hosts", API, "-t", "toml", "-f"]).arg(path);
        let daemon = Daemon::start(&mut command, &self.folder.join("log")).map_err(|error| self.system(error))?;
        self.daemon = Some(daemon);
        let ready = wait_until(START, || self.ask("global").ok().filter(|answer| answer.contains("AS:")));
        ready.ok_or_else(|| self.refused("gobgpd", self.log_tail()))?;
        self.routes.iter().try_for_each(|route| self.add(route))
    }

    fn kill(&mut self) {
        self.daemon = None;
    }

    fn announce(&mut self, routes: &[Announcement]) -> Result<(), RouterError> {
        let before = std::mem::replace(&mut self.routes, routes.to_vec());
        if self.daemon.is_none() {
            return Ok(());
        }
        for gone in before.iter().filter(|old| !routes.iter().any(|new| new.prefix == old.prefix)) {
            self.ask(&format!("global rib del {} -a {}", gone.prefix, family(gone.prefix.afi())))?;
        }
        routes.iter().filter(|new| !before.contains(new)).try_for_each(|route| self.add(route))
    }

    fn is_established(&mut self) -> Result<bool, RouterError> {
        let answer = self.ask_json("neighbor -j")?;
        let neighbours = answer.as_array().ok_or_else(|| self.answer(answer.to_string()))?;
        let is_up = |neighbour: &Value| neighbour["state"]["session_state"].as_u64() == Some(ESTABLISHED);
        Ok(!neighbours.is_empty() && neighbours.iter().all(is_up))
    }

    fn table(&mut self) -> Result<Vec<LearnedRoute>, RouterError> {
        let mut routes = Vec::new();
        for afi in [Afi::Ipv4, Afi::Ipv6] {
            let answer = self.ask_json(&format!("global rib -a {} -j", family(afi)))?;
            routes.extend(read_table(&answer).map_err(|line| self.answer(line))?);
        }
        routes.sort_by_key(|route| route.prefix);
        Ok(routes)
    }

    fn show(&mut self, prefix: Prefix) -> Result<String, RouterError> {
        let question = format!("global rib {prefix} -a {}", family(prefix.afi()));
        Ok(format!("$ gobgp {question}\n{}", self.ask(&question)?.trim_end()))
    }

    fn log_tail(&self) -> String {
        self.daemon.as_ref().map(|daemon| daemon.log_tail(20)).unwrap_or_default()
    }

    fn id(&self) -> Option<u32> {
        self.daemon.as_ref().map(Daemon::id)
    }

    fn shell(&self) -> Option<(&'static str, Command)> {
        Some(("gobgp", self.client()))
    }
}

fn family(afi: Afi) -> &'static str {
    if afi == Afi::Ipv4 { "ipv4" } else { "ipv6" }
}

/// The first global IPv6 address of a namespace, from the kernel's table: address, index, prefix length, scope, flags, name.
pub(crate) fn own_address6(namespace: &NetworkNamespace) -> io::Result<Option<Ipv6Addr>> {
    let table = namespace.within(|| fs::read_to_string("/proc/thread-self/net/if_inet6"))?;
    // Without IPv6 there is no such table.
    Ok(table.ok().and_then(|table| table.lines().find_map(global_address)))
}

fn global_address(line: &str) -> Option<Ipv6Addr> {
    let mut words = line.split_whitespace();
    let bits = u128::from_str_radix(words.next()?, 16).ok()?;
    (words.nth(2)? == "00").then(|| bits.into())
}

/// The command that adds a route. GoBGP has no IPv6 next hop for a session by IPv4 unless the route has one.
fn addition(route: &Announcement, address6: Option<Ipv6Addr>) -> String {
    let mut words = format!("global rib add {} -a {} origin igp", route.prefix, family(route.prefix.afi()));
    if let (Afi::Ipv6, Some(address)) = (route.prefix.afi(), address6) {
        words += &format!(" nexthop {address}");
    }
    let communities: Vec<String> = route.communities.iter().map(ToString::to_string).collect();
    if !communities.is_empty() {
        words += &format!(" community {}", communities.join(","));
    }
    let large: Vec<String> = route.large_communities.iter().map(ToString::to_string).collect();
    if !large.is_empty() {
        words += &format!(" large-community {}", large.join(","));
    }
    words
}

/// gobgpd's configuration: sessions with these families.
fn configuration(site: &RouterConfig, families: &[&str]) -> String {
    let id = site.router_id;
    let mut text = format!(
        "# {}: written by the laboratory.
[global.config]
as = {}
router-id = \"{id}\"
local-address-list = [\"{id}\"]
",
        site.name, site.asn.0,
    );
    for neighbour in &site.neighbours {
        let Neighbour { local, address, port, asn, passive, .. } = neighbour;
        let password = neighbour.password.iter().map(|text| format!("auth-password = \"{text}\"\n"));
        let password: String = password.collect();
        let protection = "[neighbors.ttl-security.config]\nenabled = true\nttl-min = 255\n";
        let ttl_security = if neighbour.ttl_security { protection } else { "" };
        text += &format!(
            "[[neighbors]]
[neighbors.config]
neighbor-address = \"{address}\"
peer-as = {}
{password}{ttl_security}[neighbors.timers.config]
hold-time = 9.0
connect-retry = 1.0
[neighbors.transport.config]
local-address = \"{local}\"
remote-port = {port}
passive-mode = {passive}
",
            asn.0
        );
        for family in families {
            text += &format!("[[neighbors.afi-safis]]\n[neighbors.afi-safis.config]\nafi-safi-name = \"{family}\"\n");
        }
    }
    text
}

/// Parses `gobgp global rib -j` without what the router originates itself; an error is what cannot be parsed.
fn read_table(value: &Value) -> Result<Vec<LearnedRoute>, String> {
    let Some(prefixes) = value.as_object() else { return Err(value.to_string()) };
    let mut routes = Vec::new();
    for (text, paths) in prefixes {
        let prefix: Prefix = text.parse().map_err(|_| text.clone())?;
        let paths = paths.as_array().ok_or_else(|| text.clone())?;
        for path in paths.iter().filter(|path| path["neighbor-ip"].is_string()) {
            routes.push(read_path(prefix, path).ok_or_else(|| format!("{text}: {path}"))?);
        }
    }
    routes.sort_by_key(|route| route.prefix);
    Ok(routes)
}

fn read_path(prefix: Prefix, path: &Value) -> Option<LearnedRoute> {
    let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
    let mut route = LearnedRoute {
        prefix,
        next_hop: None,
        as_path: Vec::new(),
        communities: Vec::new(),
        large_communities: Vec::new(),
        med: None,
        best: path["best"].as_bool() == Some(true),
    };
    for attribute in path["attrs"].as_array()? {
        match attribute["type"].as_u64()? {
            AS_PATH => {
                let segments = attribute["as_paths"].as_array().into_iter().flatten();
                let numbers = segments.flat_map(|segment| segment["asns"].as_array().into_iter().flatten());
                route.as_path = numbers.map(|asn| number(asn).map(Asn)).collect::<Option<_>>()?;
            }
            NEXT_HOP | MP_REACH_NLRI => route.next_hop = Some(attribute["nexthop"].as_str()?.parse().ok()?),
            MULTI_EXIT_DISC => route.med = Some(number(&attribute["metric"])?),
            COMMUNITIES => {
                let all = attribute["communities"].as_array()?.iter();
                route.communities = all.map(|one| number(one).map(Community)).collect::<Option<_>>()?;
            }
            LARGE_COMMUNITIES => {
                let parts = |one: &Value| {
                    let part = |name: &str| number(&one[name]);
                    Some(LargeCommunity::new(part("ASN")?, part("LocalData1")?, part("LocalData2")?))
                };
                let all = attribute["value"].as_array()?.iter();
                route.large_communities = all.map(parts).collect::<Option<_>>()?;
            }
            _ => {}
        }
    }
    Some(route)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_as_gobgp_prints_it() {
        let text = r#"{
            "198.51.100.0/24": [{"nlri": {"prefix": "198.51.100.0/24"}, "age": 1796092567, "best": true, "attrs": [
                {"type": 1, "value": 0}, {"type": 2, "as_paths": [{"segment_type": 2, "num": 2, "asns": [64498, 64510]}]},
                {"type": 3, "nexthop": "192.0.2.2"}, {"type": 4, "metric": 7}, {"type": 8, "communities": [64500, 4226809857]},
                {"type": 32, "value": [{"ASN": 64496, "LocalData1": 0, "LocalData2": 64497}]},
                {"flags": 192, "type": 35, "value": "AAD78A=="}],
                "stale": false, "source-id": "192.0.2.103", "neighbor-ip": "192.0.2.103"}],
            "2001:db8:c::/48": [{"nlri": {"prefix": "2001:db8:c::/48"}, "age": 1, "best": true, "attrs": [
                {"type": 1, "value": 0}, {"type": 14, "nexthop": "2001:db8::3"}], "stale": false}]
        }"#;
        let routes = read_table(&serde_json::from_str(text).expect("JSON")).expect("a table");
        let [route] = &routes[..] else { panic!("{routes:?}") };
        assert_eq!((route.prefix.to_string().as_str(), route.best, route.med), ("198.51.100.0/24", true, Some(7)));
        assert_eq!(route.as_path, [Asn(64498), Asn(64510)]);
        assert_eq!(route.next_hop, Some("192.0.2.2".parse().expect("an address")));
        assert_eq!(route.communities, [Community::new(0, 64500), Community::new(64496, 1)]);
        assert_eq!(route.large_communities, [LargeCommunity::new(64496, 0, 64497)]);
        assert_eq!(read_table(&serde_json::json!({})), Ok(Vec::new()));
    }

    #[test]
    fn a_route_is_added_with_what_gobgp_does_not_know_by_itself() {
        let prefix = |text: &str| text.parse().expect("a prefix");
        let address6 = Some("2001:db8::3".parse().expect("an address"));
        let route = Announcement::of(prefix("203.0.113.0/24")).with(Community::new(0, 64500));
        let route = route.with(Community::NO_EXPORT).with_large(LargeCommunity::new(64496, 0, 1));
        let expected = "global rib add 203.0.113.0/24 -a ipv4 origin igp community 0:64500,65535:65281 \
                        large-community 64496:0:1";
        assert_eq!(addition(&route, address6), expected);
        let expected = "global rib add 2001:db8:c::/48 -a ipv6 origin igp nexthop 2001:db8::3";
        assert_eq!(addition(&Announcement::of(prefix("2001:db8:c::/48")), address6), expected);
    }

    #[test]
    fn a_global_address_is_told_from_the_others() {
        assert_eq!(global_address("00000000000000000000000000000001 01 80 10 80       lo"), None);
        assert_eq!(global_address("fe800000000000000000000000000001 02 40 20 80     eth0"), None);
        let found = global_address("20010db8000000000000000000000003 02 40 00 82     eth0");
        assert_eq!(found, Some("2001:db8::3".parse().expect("an address")));
    }
}

//! FRR (`zebra` and `bgpd`) as a router: configuration, `vtysh`, table.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use wayleave_bgp::{Community, LargeCommunity};
use wayleave_core::{Afi, Asn, Prefix};

use crate::netns::NetworkNamespace;
use crate::process::{Daemon, wait_until};
use crate::router_config::RouterConfig;
use crate::routers::Installation;
use crate::table::{Announcement, LearnedRoute, Peering, Router, RouterError};

/// How long a daemon may take to open its sockets.
const START: Duration = Duration::from_secs(10);

/// Which configuration an FRR gets.
#[derive(Debug)]
enum Role {
    Member(Peering),
    RouterConfig(RouterConfig),
    /// In bgpd's own language, of a router of this AS.
    Text(Asn, String),
}

impl Role {
    fn asn(&self) -> Asn {
        match self {
            Self::Member(peering) => peering.asn,
            Self::RouterConfig(site) => site.asn,
            Self::Text(asn, _) => *asn,
        }
    }
}

/// An FRR that peers with the exchange, or with a list of neighbours.
#[derive(Debug)]
pub struct Frr {
    installation: Installation,
    namespace: NetworkNamespace,
    name: String,
    role: Role,
    folder: PathBuf,
    routes: Vec<Announcement>,
    daemons: Vec<Daemon>,
}

impl Frr {
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

    /// A router with a configuration in bgpd's own language, not started yet.
    pub fn with_text(
        installation: &Installation,
        namespace: NetworkNamespace,
        name: &str,
        (asn, text): (Asn, String),
        state: &Path,
    ) -> Self {
        Self::with(installation, namespace, name.to_owned(), Role::Text(asn, text), state)
    }

    fn with(installation: &Installation, namespace: NetworkNamespace, name: String, role: Role, state: &Path) -> Self {
        let folder = state.join(format!("{name}-router"));
        Self {
            installation: installation.clone(),
            namespace,
            name,
            role,
            folder,
            routes: Vec::new(),
            daemons: Vec::new(),
        }
    }

    fn configuration(&self) -> String {
        match &self.role {
            Role::Member(peering) => configuration(peering, &self.routes),
            Role::RouterConfig(site) => site_configuration(site, &self.routes),
            Role::Text(_, text) => text.clone(),
        }
    }

    /// Starts one daemon with its sockets in this router's own folder. FRR must neither change
    /// its user nor look one up: it is root inside its namespaces only.
    fn start_daemon(&self, name: &str, as_user: &[&str]) -> Result<Daemon, RouterError> {
        let mut command = self.namespace.command(self.installation.program(name));
        self.installation.prepare(&mut command);
        command.args(as_user).args(["-P", "0", "--log", "stdout", "--log-level", "notifications"]);
        command.arg("-f").arg(self.folder.join(format!("{name}.conf")));
        command.arg("-i").arg(self.folder.join(format!("{name}.pid")));
        command.arg("-z").arg(self.folder.join("zserv.api")).arg("--vty_socket").arg(&self.folder);
        Daemon::start(&mut command, &self.folder.join("log")).map_err(|error| self.system(error))
    }

    fn write_configuration(&self) -> Result<(), RouterError> {
        let write = |name: &str, text: &str| fs::write(self.folder.join(name), text);
        fs::create_dir_all(&self.folder)
            .and_then(|()| write("zebra.conf", &format!("hostname {}\n", self.name)))
            .and_then(|()| write("vtysh.conf", "username root nopassword\n"))
            .and_then(|()| write("bgpd.conf", &self.configuration()))
            .map_err(|error| self.system(error))
    }

    fn client(&self) -> Command {
        let mut command = self.namespace.command(self.installation.program("vtysh"));
        self.installation.prepare(&mut command);
        command.arg("--vty_socket").arg(&self.folder).arg("--config_dir").arg(&self.folder);
        command
    }

    /// Runs commands in one `vtysh` and returns what it printed.
    fn ask<S: AsRef<str>>(&self, lines: &[S]) -> Result<String, RouterError> {
        let mut command = self.client();
        for line in lines {
            command.args(["-c", line.as_ref()]);
        }
        let output = command.output().map_err(|error| self.system(error))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() && !text.contains("% ") {
            return Ok(text);
        }
        let command = lines.iter().map(AsRef::as_ref).collect::<Vec<_>>().join("; ");
        Err(self.refused(&command, text + &String::from_utf8_lossy(&output.stderr)))
    }

    fn ask_json(&self, question: &str) -> Result<Value, RouterError> {
        let text = self.ask(&[question])?;
        let answer = |error: serde_json::Error| RouterError::Answer {
            router: self.name.clone(),
            line: format!("{question}: {error}"),
        };
        serde_json::from_str(&text).map_err(answer)
    }

    fn system(&self, error: std::io::Error) -> RouterError {
        RouterError::System { router: self.name.clone(), error }
    }

    fn refused(&self, command: &str, answer: String) -> RouterError {
        RouterError::Refused { router: self.name.clone(), command: command.to_owned(), answer }
    }

    fn routes_of(&self, afi: Afi) -> Result<Vec<LearnedRoute>, RouterError> {
        // Without `detail` the output has no communities.
        let family = family(afi);
        let value = self.ask_json(&format!("show bgp {family} unicast json detail"))?;
        let peer = match &self.role {
            Role::Member(peering) => Some(peering.peer_address.to_string()),
            Role::RouterConfig(_) | Role::Text(..) => None,
        };
        read_table(&value, peer.as_deref()).map_err(|line| RouterError::Answer { router: self.name.clone(), line })
    }
}

impl Router for Frr {
    fn name(&self) -> &str {
        &self.name
    }

    fn software(&self) -> String {
        format!("FRR {}", self.installation.version)
    }

    fn start(&mut self) -> Result<(), RouterError> {
        self.write_configuration()?;
        // bgpd queries zebra for interfaces when it starts.
        let zebra = self.start_daemon("zebra", &["-u", "root", "-g", "root"])?;
        self.daemons.push(zebra);
        let socket = self.folder.join("zserv.api");
        wait_until(START, || socket.exists().then_some(())).ok_or_else(|| self.refused("zebra", self.log_tail()))?;
        let bgpd = self.start_daemon("bgpd", &["--skip_runas"])?;
        self.daemons.push(bgpd);
        let ready = wait_until(START, || self.ask(&["show bgp summary json"]).ok());
        ready.map(drop).ok_or_else(|| self.refused("bgpd", self.log_tail()))
    }

    fn kill(&mut self) {
        self.daemons.clear();
    }

    fn announce(&mut self, routes: &[Announcement]) -> Result<(), RouterError> {
        let before = std::mem::replace(&mut self.routes, routes.to_vec());
        if self.daemons.is_empty() {
            return Ok(());
        }
        let mut lines = vec!["configure terminal".to_owned()];
        for gone in before.iter().filter(|old| !routes.iter().any(|new| new.prefix == old.prefix)) {
            lines.extend(in_family(self.role.asn(), gone.prefix, "no "));
        }
        for route in routes.iter().filter(|new| !before.contains(new)) {
            lines.push(format!("no route-map {} permit 10", route_map(route.prefix)));
            lines.extend(route_map_lines(route));
            lines.extend(in_family(self.role.asn(), route.prefix, ""));
        }
        if lines.len() == 1 {
            return Ok(());
        }
        // Removing a route-map that does not exist is an error, which FRR reports before it goes on.
        match self.ask(&lines) {
            Err(RouterError::Refused { answer, .. }) if answer.lines().all(is_harmless) => Ok(()),
            other => other.map(drop),
        }
    }

    fn is_established(&mut self) -> Result<bool, RouterError> {
        let summary = self.ask_json("show bgp summary json")?;
        let peers = summary["ipv4Unicast"]["peers"].as_object();
        let is_up = |peer: &Value| peer["state"].as_str() == Some("Established");
        Ok(peers.is_some_and(|peers| !peers.is_empty() && peers.values().all(is_up)))
    }

    fn table(&mut self) -> Result<Vec<LearnedRoute>, RouterError> {
        let mut routes = self.routes_of(Afi::Ipv4)?;
        routes.extend(self.routes_of(Afi::Ipv6)?);
        routes.sort_by_key(|route| route.prefix);
        Ok(routes)
    }

    fn show(&mut self, prefix: Prefix) -> Result<String, RouterError> {
        let question = format!("show bgp {} unicast {prefix}", family(prefix.afi()));
        let answer = match self.ask(&[&question]) {
            Err(RouterError::Refused { answer, .. }) => answer,
            other => other?,
        };
        let lines: Vec<&str> = answer.lines().filter(|line| !line.trim().is_empty()).collect();
        Ok(format!("vtysh# {question}\n{}", lines.join("\n")))
    }

    fn log_tail(&self) -> String {
        self.daemons.first().map(|daemon| daemon.log_tail(20)).unwrap_or_default()
    }

    /// That of bgpd.
    fn id(&self) -> Option<u32> {
        self.daemons.last().map(Daemon::id)
    }

    fn shell(&self) -> Option<(&'static str, Command)> {
        Some(("vtysh", self.client()))
    }
}

fn family(afi: Afi) -> &'static str {
    if afi == Afi::Ipv4 { "ipv4" } else { "ipv6" }
}

fn is_harmless(line: &str) -> bool {
    line.trim().is_empty() || line.contains("Could not find route-map") || line.contains("does not exist")
}

/// bgpd's configuration: one session to the exchange, `network` statements for what the member originates.
fn configuration(peering: &Peering, routes: &[Announcement]) -> String {
    let Peering { name, asn, address, peer_asn, peer_address, .. } = peering;
    let networks = |afi| {
        let own = routes.iter().filter(move |route| route.prefix.afi() == afi);
        own.map(|route| format!("  {}\n", network(route.prefix))).collect::<String>()
    };
    let maps: String = routes
        .iter()
        .flat_map(route_map_lines)
        .map(|line| line + "\n")
        .collect::<String>()
        .replace("exit\n", "exit\n!\n");
    format!(
        "! {name}: written by the laboratory.
hostname {name}
{maps}router bgp {asn}
 bgp router-id {address}
 no bgp ebgp-requires-policy
 no bgp network import-check
 timers bgp 3 9
 neighbor {peer_address} remote-as {peer_asn}
 ! a route server does not add its own number (RFC 7947)
 no neighbor {peer_address} enforce-first-as
 neighbor {peer_address} timers connect 1
 neighbor {peer_address} advertisement-interval 0
 address-family ipv4 unicast
  neighbor {peer_address} activate
  neighbor {peer_address} send-community all
  neighbor {peer_address} filter-list own out
{networks4} exit-address-family
 address-family ipv6 unicast
  neighbor {peer_address} activate
  neighbor {peer_address} send-community all
  neighbor {peer_address} filter-list own out
{networks6} exit-address-family
exit
bgp as-path access-list own permit ^$
",
        asn = asn.0,
        peer_asn = peer_asn.0,
        networks4 = networks(Afi::Ipv4),
        networks6 = networks(Afi::Ipv6),
    )
}

/// bgpd's configuration at a site.
fn site_configuration(site: &RouterConfig, routes: &[Announcement]) -> String {
    let maps: String = routes.iter().flat_map(route_map_lines).map(|line| line + "\n").collect();
    let mut text = format!(
        "! {name}: written by the laboratory.
hostname {name}
{maps}router bgp {asn}
 bgp router-id {id}
 no bgp ebgp-requires-policy
 no bgp network import-check
 timers bgp 3 9
",
        name = site.name,
        maps = maps.replace("exit\n", "exit\n!\n"),
        asn = site.asn.0,
        id = site.router_id,
    );
    for neighbour in &site.neighbours {
        let address = neighbour.address;
        let passive = if neighbour.passive { format!(" neighbor {address} passive\n") } else { String::new() };
        let password = neighbour.password.iter().map(|text| format!(" neighbor {address} password {text}\n"));
        let password: String = password.collect();
        let hops = format!(" neighbor {address} ttl-security hops 1\n");
        let ttl_security = if neighbour.ttl_security { hops.as_str() } else { "" };
        text += &format!(
            " neighbor {address} remote-as {asn}
 neighbor {address} update-source {local}
 neighbor {address} port {port}
 neighbor {address} timers connect 1
 neighbor {address} advertisement-interval 0
{password}{ttl_security}{passive}",
            port = neighbour.port,
            asn = neighbour.asn.0,
            local = neighbour.local,
        );
    }
    for afi in [Afi::Ipv4, Afi::Ipv6] {
        text += &format!(" address-family {} unicast\n", family(afi));
        for neighbour in &site.neighbours {
            let address = neighbour.address;
            text += &format!("  neighbor {address} activate\n  neighbor {address} send-community all\n");
            if neighbour.asn == site.asn {
                text += &format!("  neighbor {address} next-hop-self\n");
            }
        }
        for route in routes.iter().filter(|route| route.prefix.afi() == afi) {
            text += &format!("  {}\n", network(route.prefix));
        }
        text += " exit-address-family\n";
    }
    text + "exit\n"
}

/// A name for the route-map of one prefix.
fn route_map(prefix: Prefix) -> String {
    format!("own-{}", prefix.to_string().replace(['/', ':', '.'], "-"))
}

fn network(prefix: Prefix) -> String {
    format!("network {prefix} route-map {}", route_map(prefix))
}

fn route_map_lines(route: &Announcement) -> Vec<String> {
    let joined = |all: Vec<String>| all.join(" ");
    let mut lines = vec![format!("route-map {} permit 10", route_map(route.prefix))];
    if !route.communities.is_empty() {
        let all = route.communities.iter().map(ToString::to_string).collect();
        lines.push(format!("set community {}", joined(all)));
    }
    if !route.large_communities.is_empty() {
        let all = route.large_communities.iter().map(ToString::to_string).collect();
        lines.push(format!("set large-community {}", joined(all)));
    }
    lines.push("exit".to_owned());
    lines
}

/// Commands, from the top of the configuration, that add a network or, with `no `, remove it.
fn in_family(asn: Asn, prefix: Prefix, no: &str) -> [String; 5] {
    [
        format!("router bgp {}", asn.0),
        format!("address-family {} unicast", family(prefix.afi())),
        format!("{no}{}", network(prefix)),
        "exit-address-family".to_owned(),
        "exit".to_owned(),
    ]
}

/// Parses `show bgp ... json detail`; keeps the routes of `peer`, or all. An error is what cannot be parsed.
fn read_table(value: &Value, peer: Option<&str>) -> Result<Vec<LearnedRoute>, String> {
    let Some(prefixes) = value["routes"].as_object() else { return Ok(Vec::new()) };
    let mut routes = Vec::new();
    for (text, entry) in prefixes {
        let prefix: Prefix = text.parse().map_err(|_| text.clone())?;
        // A list of paths, or an object with one, depending on the version.
        let paths = entry.as_array().or_else(|| entry["paths"].as_array()).ok_or_else(|| text.clone())?;
        let of_peer = |path: &&Value| match (path["peer"]["peerId"].as_str(), peer) {
            (from, Some(peer)) => from == Some(peer),
            // What bgpd originates itself has this peer.
            (from, None) => from != Some("0.0.0.0"),
        };
        for path in paths.iter().filter(of_peer) {
            routes.push(read_path(prefix, path).ok_or_else(|| format!("{text}: {path}"))?);
        }
    }
    routes.sort_by_key(|route| route.prefix);
    Ok(routes)
}

fn read_path(prefix: Prefix, path: &Value) -> Option<LearnedRoute> {
    let global = |hop: &&Value| hop["scope"].as_str() != Some("link-local");
    let next_hop = path["nexthops"].as_array().and_then(|hops| hops.iter().find(global));
    let words = |text: &Value| -> Vec<String> {
        text.as_str().unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    };
    let as_path = path["aspath"]["string"].as_str().filter(|text| *text != "Local").unwrap_or_default();
    let numbers = as_path.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty());
    Some(LearnedRoute {
        prefix,
        next_hop: next_hop.and_then(|hop| hop["ip"].as_str()?.parse().ok()),
        as_path: numbers.map(|word| word.parse().map(Asn).ok()).collect::<Option<_>>()?,
        communities: words(&path["community"]["string"])
            .iter()
            .filter_map(|word| word.parse::<Community>().ok())
            .collect(),
        large_communities: words(&path["largeCommunity"]["string"])
            .iter()
            .filter_map(|word| word.parse::<LargeCommunity>().ok())
            .collect(),
        med: path["metric"].as_u64().and_then(|med| u32::try_from(med).ok()),
        best: path["bestpath"]["overall"].as_bool() == Some(true),
    })
}

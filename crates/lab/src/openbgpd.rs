//! OpenBGPD as a router: configuration, `bgpctl`, table.
//!
//! It runs as root alone: its processes give up a user that a user namespace does not have.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::Ipv6Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use wayleave_bgp::{Community, LargeCommunity};
use wayleave_core::{Asn, Prefix};

use crate::gobgp::own_address6;
use crate::netns::{NetworkNamespace, OPENBGPD_HOME};
use crate::process::{Daemon, wait_until};
use crate::router_config::RouterConfig;
use crate::routers::Installation;
use crate::table::{Announcement, LearnedRoute, Peering, Router, RouterError};

/// How long the daemon may take to open its control socket.
const START: Duration = Duration::from_secs(10);

/// Which configuration an OpenBGPD gets.
#[derive(Debug)]
enum Role {
    Member(Peering),
    RouterConfig(RouterConfig),
    /// In OpenBGPD's own language, without `socket`.
    Text(String),
}

/// An OpenBGPD that peers with the exchange, or with a list of neighbours by IPv4.
#[derive(Debug)]
pub struct OpenBgpd {
    installation: Installation,
    namespace: NetworkNamespace,
    name: String,
    role: Role,
    folder: PathBuf,
    routes: Vec<Announcement>,
    daemon: Option<Daemon>,
}

impl OpenBgpd {
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

    /// A router with a configuration in OpenBGPD's own language, not started yet.
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

    fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    fn configuration(&self) -> io::Result<String> {
        let text = match &self.role {
            Role::Member(peering) => member_configuration(peering, own_address6(&self.namespace)?, &self.routes),
            Role::RouterConfig(site) => site_configuration(site, &self.routes),
            Role::Text(text) => text.clone(),
        };
        Ok(format!("socket \"{}\"\n{text}", self.socket().display()))
    }

    fn write_configuration(&self) -> Result<PathBuf, RouterError> {
        let path = self.folder.join("bgpd.conf");
        // It refuses a configuration that others may read, which may hold keys.
        let private = || fs::set_permissions(&path, fs::Permissions::from_mode(0o600));
        let written = fs::create_dir_all(&self.folder)
            .and_then(|()| fs::create_dir_all(OPENBGPD_HOME))
            .and_then(|()| fs::write(&path, self.configuration()?))
            .and_then(|()| private());
        written.map_err(|error| self.system(error))?;
        Ok(path)
    }

    fn client(&self) -> Command {
        let mut command = self.namespace.command(self.installation.program("bgpctl"));
        self.installation.prepare(command.arg("-s").arg(self.socket()));
        command
    }

    /// Runs a `bgpctl` command and returns what it printed.
    fn ask(&self, question: &str) -> Result<String, RouterError> {
        let output = self.client().args(question.split(' ')).output().map_err(|error| self.system(error))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(text);
        }
        Err(self.refused(question, text + &String::from_utf8_lossy(&output.stderr)))
    }

    fn ask_json(&self, question: &str) -> Result<Value, RouterError> {
        let text = self.ask(&format!("-j {question}"))?;
        serde_json::from_str(&text).map_err(|error| self.answer(format!("{question}: {error}")))
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

impl Router for OpenBgpd {
    fn name(&self) -> &str {
        &self.name
    }

    fn software(&self) -> String {
        format!("OpenBGPD {}", self.installation.version)
    }

    fn start(&mut self) -> Result<(), RouterError> {
        let path = self.write_configuration()?;
        // One that was killed leaves its socket, at which nobody answers.
        let _ = fs::remove_file(self.socket());
        let mut command = self.namespace.command(self.installation.program("bgpd"));
        self.installation.prepare(&mut command);
        command.arg("-d").arg("-f").arg(path);
        let daemon = Daemon::start(&mut command, &self.folder.join("log")).map_err(|error| self.system(error))?;
        self.daemon = Some(daemon);
        let ready = wait_until(START, || self.ask("show").ok());
        ready.map(drop).ok_or_else(|| self.refused("bgpd", self.log_tail()))
    }

    fn kill(&mut self) {
        self.daemon = None;
    }

    fn announce(&mut self, routes: &[Announcement]) -> Result<(), RouterError> {
        self.routes = routes.to_vec();
        if self.daemon.is_none() {
            return Ok(());
        }
        self.write_configuration()?;
        let answer = self.ask("reload")?;
        if answer.contains("request processed") { Ok(()) } else { Err(self.refused("reload", answer)) }
    }

    fn is_established(&mut self) -> Result<bool, RouterError> {
        let answer = self.ask_json("show")?;
        let neighbours = answer["neighbors"].as_array().ok_or_else(|| self.answer(answer.to_string()))?;
        let is_up = |neighbour: &Value| neighbour["state"].as_str() == Some("Established");
        Ok(!neighbours.is_empty() && neighbours.iter().all(is_up))
    }

    fn table(&mut self) -> Result<Vec<LearnedRoute>, RouterError> {
        // Without `detail` the output has no communities.
        read_table(&self.ask_json("show rib detail")?).map_err(|line| self.answer(line))
    }

    fn show(&mut self, prefix: Prefix) -> Result<String, RouterError> {
        let question = format!("show rib {prefix}");
        Ok(format!("$ bgpctl {question}\n{}", self.ask(&question)?.trim_end()))
    }

    fn log_tail(&self) -> String {
        self.daemon.as_ref().map(|daemon| daemon.log_tail(20)).unwrap_or_default()
    }

    /// That of the process that starts the others.
    fn id(&self) -> Option<u32> {
        self.daemon.as_ref().map(Daemon::id)
    }

    fn shell(&self) -> Option<(&'static str, Command)> {
        Some(("bgpctl", self.client()))
    }
}

/// OpenBGPD's configuration: one session to the exchange, `network` statements for what the member originates.
fn member_configuration(peering: &Peering, address6: Option<Ipv6Addr>, routes: &[Announcement]) -> String {
    let Peering { name, asn, address, peer_asn, peer_address, .. } = peering;
    let next_hop = address6.map_or(String::new(), |own| {
        format!(
            "match to {peer_address} prefix ::/0 or-longer set nexthop {own}
match to {peer_address} prefix ::/0 or-longer set nexthop no-modify
"
        )
    });
    format!(
        "# {name}: written by the laboratory.
AS {}
router-id {address}
listen on {address}
fib-update no
{}neighbor {peer_address} {{
  remote-as {}
  local-address {address}
  # otherwise IPv6 routes have no next hop on a session by IPv4
  multihop 2
  holdtime 9
  # a route server does not add its own number (RFC 7947)
  enforce neighbor-as no
  announce IPv4 unicast
  announce IPv6 unicast
}}
allow from any
allow to any
{next_hop}",
        asn.0,
        networks(routes),
        peer_asn.0,
    )
}

/// OpenBGPD's configuration at a site: sessions by IPv4 for IPv4.
fn site_configuration(site: &RouterConfig, routes: &[Announcement]) -> String {
    let mut text = format!(
        "# {}: written by the laboratory.
AS {}
router-id {id}
listen on {id}
fib-update no
allow from any
allow to any
{}",
        site.name,
        site.asn.0,
        networks(routes),
        id = site.router_id,
    );
    for neighbour in &site.neighbours {
        let passive = if neighbour.passive { "  passive\n" } else { "" };
        let ttl_security = if neighbour.ttl_security { "  ttl-security yes\n" } else { "" };
        let password = neighbour.password.iter().map(|text| format!("  tcp md5sig password {text}\n"));
        let _ = write!(
            text,
            "neighbor {} {{
  remote-as {}
  local-address {}
  port {}
  holdtime 9
{passive}{}{ttl_security}  announce IPv4 unicast
}}
",
            neighbour.address,
            neighbour.asn.0,
            neighbour.local,
            neighbour.port,
            password.collect::<String>(),
        );
    }
    text
}

fn networks(routes: &[Announcement]) -> String {
    let mut text = String::new();
    for route in routes {
        let communities = route.communities.iter().map(|one| format!(" community {one}"));
        let large = route.large_communities.iter().map(|one| format!(" large-community {one}"));
        let all: String = communities.chain(large).collect();
        let set = if all.is_empty() { String::new() } else { format!(" set {{{all} }}") };
        let _ = writeln!(text, "network {}{set}", route.prefix);
    }
    text
}

/// Parses `bgpctl -j show rib detail` without what the router originates itself; an error is what cannot be parsed.
fn read_table(value: &Value) -> Result<Vec<LearnedRoute>, String> {
    let paths = value["rib"].as_array().into_iter().flatten();
    let learned = paths.filter(|path| path["source"].as_str() != Some("internal") && path["announced"] != true);
    let routes = learned.map(|path| read_path(path).ok_or_else(|| path.to_string()));
    let mut routes: Vec<LearnedRoute> = routes.collect::<Result<_, _>>()?;
    routes.sort_by_key(|route| route.prefix);
    Ok(routes)
}

fn read_path(path: &Value) -> Option<LearnedRoute> {
    // What OpenBGPD has a name for is printed as that.
    fn named<T: std::str::FromStr>(values: &Value) -> Vec<T> {
        let words = values.as_array().into_iter().flatten().filter_map(Value::as_str);
        words.filter_map(|word| word.to_lowercase().replace('_', "-").parse().ok()).collect()
    }
    let as_path = path["aspath"].as_str().unwrap_or_default();
    let numbers = as_path.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty());
    Some(LearnedRoute {
        prefix: path["prefix"].as_str()?.parse().ok()?,
        next_hop: Some(path["exit_nexthop"].as_str()?.parse().ok()?),
        as_path: numbers.map(|word| word.parse().map(Asn).ok()).collect::<Option<_>>()?,
        communities: named::<Community>(&path["communities"]),
        large_communities: named::<LargeCommunity>(&path["large_communities"]),
        // A route without MED is printed as one with 0.
        med: path["metric"].as_u64().filter(|med| *med > 0).and_then(|med| u32::try_from(med).ok()),
        best: path["best"].as_bool() == Some(true),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_as_bgpctl_prints_it() {
        let text = r#"{"rib": [
            {"prefix": "203.0.113.0/26", "aspath": "64498 { 64510 64511 }", "exit_nexthop": "192.0.2.1", "true_nexthop": "192.0.2.4",
             "neighbor": {"remote_addr": "192.0.2.104", "bgp_id": "192.0.2.104"}, "valid": true, "best": true,
             "source": "external", "ovs": "not-found", "origin": "IGP", "metric": 7, "localpref": 100,
             "communities": ["0:64497", "NO_EXPORT"], "large_communities": ["64496:0:1"],
             "attributes": [{"type": "OTC", "length": 4, "as": 64496}]},
            {"prefix": "2001:db8:d::/48", "aspath": "", "exit_nexthop": "::", "true_nexthop": "::",
             "neighbor": {"description": "LOCAL", "remote_addr": "???", "bgp_id": "192.0.2.4"}, "valid": true, "best": true,
             "source": "internal", "announced": true, "metric": 0}]}"#;
        let routes = read_table(&serde_json::from_str(text).expect("JSON")).expect("a table");
        let [route] = &routes[..] else { panic!("{routes:?}") };
        assert_eq!((route.prefix.to_string().as_str(), route.best, route.med), ("203.0.113.0/26", true, Some(7)));
        assert_eq!(route.as_path, [Asn(64498), Asn(64510), Asn(64511)]);
        assert_eq!(route.next_hop, Some("192.0.2.1".parse().expect("an address")));
        assert_eq!(route.communities, [Community::new(0, 64497), Community::NO_EXPORT]);
        assert_eq!(route.large_communities, [LargeCommunity::new(64496, 0, 1)]);
        assert_eq!(read_table(&serde_json::json!({})), Ok(Vec::new()));
    }
}

//! BIRD 2 as a router: configuration, control socket, table.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use wayleave_bgp::{Community, LargeCommunity};
use wayleave_core::{Afi, Asn, Prefix};

use crate::netns::NetworkNamespace;
use crate::process::{Daemon, wait_until};
use crate::router_config::RouterConfig;
use crate::routers::Installation;
use crate::table::{Announcement, LearnedRoute, Peering, Router, RouterError};

/// How long BIRD may take to open its control socket.
const START: Duration = Duration::from_secs(10);

/// Which configuration a BIRD gets.
#[derive(Debug)]
enum Role {
    Member(Peering),
    RouterConfig(RouterConfig),
    /// In BIRD's own language.
    Text(String),
}

/// A BIRD that peers with the exchange, or with a list of neighbours.
#[derive(Debug)]
pub struct Bird {
    installation: Installation,
    namespace: NetworkNamespace,
    name: String,
    role: Role,
    folder: PathBuf,
    routes: Vec<Announcement>,
    daemon: Option<Daemon>,
}

impl Bird {
    /// A router that is not started yet; its files go to `state/NAME-router`.
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

    /// A router with a configuration in BIRD's own language, not started yet.
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
        self.folder.join("bird.ctl")
    }

    fn write_configuration(&self) -> Result<PathBuf, RouterError> {
        let path = self.folder.join("bird.conf");
        fs::create_dir_all(&self.folder).map_err(|error| self.system(error))?;
        fs::write(&path, self.configuration()).map_err(|error| self.system(error))?;
        Ok(path)
    }

    fn configuration(&self) -> String {
        match &self.role {
            Role::Member(peering) => configuration(peering, &self.routes),
            Role::RouterConfig(site) => site_configuration(site, &self.routes),
            Role::Text(text) => text.clone(),
        }
    }

    /// Which routes are learned ones.
    fn learned(&self) -> &'static str {
        match self.role {
            Role::Member(_) => "protocol exchange",
            Role::RouterConfig(_) | Role::Text(_) => "where source = RTS_BGP",
        }
    }

    fn client(&self) -> Command {
        let mut command = self.namespace.command(self.installation.program("birdcl"));
        self.installation.prepare(command.arg("-s").arg(self.socket()));
        command
    }

    /// Runs a `birdcl` command and returns the reply without the greeting.
    fn ask(&self, question: &str) -> Result<String, RouterError> {
        let output = self.client().args(question.split(' ')).output().map_err(|error| self.system(error))?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let answer = text.trim().to_owned() + String::from_utf8_lossy(&output.stderr).trim();
            return Err(self.refused(question, answer));
        }
        // The first line is the greeting: `BIRD 2.0.12 ready.`
        Ok(text.split_once('\n').map_or(String::new(), |(_, rest)| rest.to_owned()))
    }

    fn system(&self, error: std::io::Error) -> RouterError {
        RouterError::System { router: self.name.clone(), error }
    }

    fn refused(&self, command: &str, answer: String) -> RouterError {
        RouterError::Refused { router: self.name.clone(), command: command.to_owned(), answer }
    }
}

impl Router for Bird {
    fn name(&self) -> &str {
        &self.name
    }

    fn software(&self) -> String {
        format!("BIRD {}", self.installation.version)
    }

    fn start(&mut self) -> Result<(), RouterError> {
        let configuration = self.write_configuration()?;
        let mut command = self.namespace.command(self.installation.program("bird"));
        self.installation.prepare(&mut command);
        command.arg("-f").arg("-c").arg(configuration).arg("-s").arg(self.socket());
        let daemon = Daemon::start(&mut command, &self.folder.join("log")).map_err(|error| self.system(error))?;
        self.daemon = Some(daemon);
        let ready = wait_until(START, || self.ask("show status").ok());
        ready.map(drop).ok_or_else(|| self.refused("bird", self.log_tail()))
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
        let answer = self.ask("configure")?;
        if answer.contains("Reconfigured") || answer.contains("Reconfiguration in progress") {
            return Ok(());
        }
        Err(self.refused("configure", answer))
    }

    fn is_established(&mut self) -> Result<bool, RouterError> {
        let answer = self.ask("show protocols")?;
        let mut sessions = answer.lines().filter(|line| line.split_whitespace().nth(1) == Some("BGP"));
        let is_up = |line: &str| line.contains("Established") || line.starts_with("customer");
        Ok(sessions.all(is_up))
    }

    fn table(&mut self) -> Result<Vec<LearnedRoute>, RouterError> {
        let answer = self.ask(&format!("show route all {}", self.learned()))?;
        read_table(&answer).map_err(|line| RouterError::Answer { router: self.name.clone(), line })
    }

    fn show(&mut self, prefix: Prefix) -> Result<String, RouterError> {
        let question = format!("show route {prefix} {}", self.learned());
        // BIRD reports an absent route as an error; here it is a reply like any other.
        let answer = match self.ask(&question) {
            Err(RouterError::Refused { answer, .. }) => answer,
            other => other?,
        };
        let lines = answer.lines().filter(|line| !line.starts_with("Table") && !line.starts_with("BIRD"));
        Ok(format!("birdc> {question}\n{}", lines.collect::<Vec<_>>().join("\n")))
    }

    fn log_tail(&self) -> String {
        self.daemon.as_ref().map(|daemon| daemon.log_tail(20)).unwrap_or_default()
    }

    fn id(&self) -> Option<u32> {
        self.daemon.as_ref().map(Daemon::id)
    }

    fn shell(&self) -> Option<(&'static str, Command)> {
        Some(("birdc", self.client()))
    }
}

/// BIRD's configuration: one session to the exchange, static routes for what the member originates.
fn configuration(peering: &Peering, routes: &[Announcement]) -> String {
    let Peering { name, asn, address, peer_asn, peer_address, customer } = peering;
    let mut text = format!(
        "# {name}: written by the laboratory.
log stderr {{ info, remote, warning, error, auth, fatal, bug }};
router id {address};
protocol device {{ }}
{statics}
protocol bgp exchange {{
  local {address} as {asn};
  neighbor {peer_address} as {peer_asn};
  enforce first as off;  # a route server does not add its own number (RFC 7947)
  graceful restart off;  # a dead neighbour's routes go at once
  hold time 9;
  connect delay time 1; connect retry time 1; error wait time 1, 2;
  ipv4 {{ import all; add paths rx; export where proto = \"own4\" || proto = \"customer\"; }};
  ipv6 {{ import all; add paths rx; export where proto = \"own6\" || proto = \"customer\"; }};
}}
",
        asn = asn.0,
        peer_asn = peer_asn.0,
        statics = static_protocol("own4", Afi::Ipv4, routes) + &static_protocol("own6", Afi::Ipv6, routes),
    );
    if let Some(customer) = customer {
        let _ = write!(
            text,
            "protocol bgp customer {{
  local {} as {};
  neighbor {} as {};
  passive; hold time 90;
  ipv4 {{ import all; export none; }};
}}
",
            customer.local_address, asn.0, customer.address, customer.asn.0
        );
    }
    text
}

/// BIRD's configuration at a site: its sessions, each with what goes out to whom.
fn site_configuration(site: &RouterConfig, routes: &[Announcement]) -> String {
    let mut text = format!(
        "# {}: written by the laboratory.
log stderr {{ info, remote, warning, error, auth, fatal, bug }};
router id {};
protocol device {{ }}
{}{}",
        site.name,
        site.router_id,
        static_protocol("own4", Afi::Ipv4, routes),
        static_protocol("own6", Afi::Ipv6, routes)
    );
    for neighbour in &site.neighbours {
        let is_internal = neighbour.asn == site.asn;
        let internal = if is_internal { "direct; " } else { "" };
        let next_hop = if is_internal { "next hop self; " } else { "" };
        let extended = if neighbour.extended_messages { "on" } else { "off" };
        let meds = neighbour.meds.iter().map(|(prefix, med)| format!(" if net = {prefix} then bgp_med = {med};"));
        let export = format!(
            "export filter {{ if source != RTS_STATIC && source != RTS_BGP then reject;{} accept; }};",
            meds.collect::<String>()
        );
        let import = site.lowers.map_or("import all;".to_owned(), |tag| {
            let LargeCommunity { global, local1, local2 } = tag;
            let tag = format!("({global}, {local1}, {local2})");
            format!("import filter {{ if {tag} ~ bgp_large_community then bgp_local_pref = 50; accept; }};")
        });
        let restart = match neighbour.graceful_restart {
            true => {
                "graceful restart on; graceful restart time 2; long lived graceful restart on; long lived stale time 3600;"
            }
            false => "graceful restart off;",
        };
        let passive = if neighbour.passive { "passive; " } else { "" };
        let password = neighbour.password.iter().map(|text| format!("password \"{text}\"; ")).collect::<String>();
        let ttl_security = if neighbour.ttl_security { "ttl security on; " } else { "" };
        let _ = write!(
            text,
            "protocol bgp '{}' {{
  local {} as {};
  neighbor {} port {} as {};
  {internal}{passive}{password}{ttl_security}enable extended messages {extended};
  {restart} hold time 9;
  connect delay time 1; connect retry time 1; error wait time 1, 2;
  ipv4 {{ {import} {export} {next_hop}}};
  ipv6 {{ {import} {export} {next_hop}}};
}}
",
            neighbour.name, neighbour.local, site.asn.0, neighbour.address, neighbour.port, neighbour.asn.0
        );
    }
    text
}

fn static_protocol(name: &str, afi: Afi, routes: &[Announcement]) -> String {
    let channel = if afi == Afi::Ipv4 { "ipv4" } else { "ipv6" };
    let mut text = format!("protocol static {name} {{\n  {channel};\n");
    for route in routes.iter().filter(|route| route.prefix.afi() == afi) {
        let mut actions = String::new();
        for community in &route.communities {
            let _ = write!(actions, " bgp_community.add(({},{}));", community.upper(), community.lower());
        }
        for LargeCommunity { global, local1, local2 } in &route.large_communities {
            let _ = write!(actions, " bgp_large_community.add(({global},{local1},{local2}));");
        }
        let block = if actions.is_empty() { String::new() } else { format!(" {{{actions} }}") };
        let _ = writeln!(text, "  route {} blackhole{block};", route.prefix);
    }
    text + "}\n"
}

/// Parses `show route all`; an error is the first line that cannot be parsed.
fn read_table(text: &str) -> Result<Vec<LearnedRoute>, String> {
    let mut routes: Vec<LearnedRoute> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with("Table ")) {
        if line.starts_with('\t') {
            let route = routes.last_mut().ok_or(line)?;
            read_attribute(line.trim(), route).ok_or(line)?;
        } else if line.contains('[') {
            let before = routes.last().map(|route| route.prefix);
            routes.push(read_route_line(line, before).ok_or(line)?);
        } else {
            return Err(line.to_owned());
        }
    }
    routes.sort_by_key(|route| route.prefix);
    Ok(routes)
}

/// `203.0.113.0/24  unicast [exchange 12:00:00.123] * (100) [AS64498i]`; a further route of the same prefix leaves the
/// prefix out.
fn read_route_line(line: &str, before: Option<Prefix>) -> Option<LearnedRoute> {
    let prefix = if line.starts_with(' ') { before? } else { line.split_whitespace().next()?.parse().ok()? };
    let best = line.split_once(']')?.1.trim_start().starts_with('*');
    Some(LearnedRoute {
        prefix,
        next_hop: None,
        as_path: Vec::new(),
        communities: Vec::new(),
        large_communities: Vec::new(),
        med: None,
        best,
    })
}

fn read_attribute(line: &str, route: &mut LearnedRoute) -> Option<()> {
    // Lines without a colon are next hops: `via 192.0.2.2 on eth0`. BIRD 3 has other names than BIRD 2.
    let Some((name, value)) = line.split_once(": ") else { return Some(()) };
    match name {
        "BGP.as_path" | "bgp_path" => {
            let numbers = value.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty());
            route.as_path = numbers.map(|word| word.parse().map(Asn).ok()).collect::<Option<_>>()?;
        }
        "BGP.next_hop" | "bgp_next_hop" => route.next_hop = Some(value.split_whitespace().next()?.parse().ok()?),
        "BGP.med" | "bgp_med" => route.med = Some(value.trim().parse().ok()?),
        "BGP.community" | "bgp_community" => {
            let pairs = tuples(value).map(|tuple| {
                let [high, low] = tuple[..] else { return None };
                Some(Community::new(u16::try_from(high).ok()?, u16::try_from(low).ok()?))
            });
            route.communities = pairs.collect::<Option<_>>()?;
        }
        "BGP.large_community" | "bgp_large_community" => {
            let triples = tuples(value).map(|tuple| {
                let [a, b, c] = tuple[..] else { return None };
                Some(LargeCommunity::new(a, b, c))
            });
            route.large_communities = triples.collect::<Option<_>>()?;
        }
        _ => {}
    }
    Some(())
}

/// The numbers in each pair of brackets: `(0,64500) (64496, 0, 1)`.
fn tuples(text: &str) -> impl Iterator<Item = Vec<u32>> {
    let inner = text.split('(').skip(1).filter_map(|part| part.split_once(')'));
    inner.map(|(tuple, _)| tuple.split(',').filter_map(|number| number.trim().parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_as_birdc_prints_it() {
        let text = "Table master4:
203.0.113.0/24       unicast [exchange 03:19:22.123] * (100) [AS64498i]
\tvia 192.0.2.2 on eth0
\tType: BGP univ
\tBGP.origin: IGP
\tBGP.as_path: 64498 {64511 64510}
\tBGP.next_hop: 192.0.2.2
\tBGP.med: 7
\tBGP.local_pref: 100
\tBGP.community: (0,64500) (64496,1)
\tBGP.large_community: (64496, 0, 64500)

Table master6:
2001:db8:1::/48      unicast [exchange 03:19:22.123] (100) [AS64498i]
\tvia 2001:db8::2 on eth0
\tBGP.as_path: 64498
\tBGP.next_hop: 2001:db8::2 fe80::1
";
        let routes = read_table(text).expect("a table");
        let v4 = LearnedRoute {
            prefix: "203.0.113.0/24".parse().expect("a prefix"),
            next_hop: Some("192.0.2.2".parse().expect("an address")),
            as_path: vec![Asn(64498), Asn(64511), Asn(64510)],
            communities: vec![Community::new(0, 64500), Community::new(64496, 1)],
            large_communities: vec![LargeCommunity::new(64496, 0, 64500)],
            med: Some(7),
            best: true,
        };
        assert_eq!(routes[0], v4);
        assert_eq!(routes[1].next_hop, Some("2001:db8::2".parse().expect("an address")));
        assert!(!routes[1].best);
    }

    #[test]
    fn a_table_of_bird_3_is_read_too() {
        let text = "Table master4:
203.0.113.64/26      unicast [exchange 02:46:42.458 from 192.0.2.101] * (100) [AS64498i]
\tvia 192.0.2.2 on eth0
\tpreference: 100
\tfrom: 192.0.2.101
\tbgp_origin: IGP
\tbgp_path: 64498 64510
\tbgp_next_hop: 192.0.2.2
\tbgp_med: 7
\tbgp_community: (65535,65281)
\tbgp_large_community: (64496, 0, 64500)
\tbgp_otc: 64496
\tInternal route handling values: 0L 4G 0S id 3
";
        let expected = LearnedRoute {
            prefix: "203.0.113.64/26".parse().expect("a prefix"),
            next_hop: Some("192.0.2.2".parse().expect("an address")),
            as_path: vec![Asn(64498), Asn(64510)],
            communities: vec![Community::NO_EXPORT],
            large_communities: vec![LargeCommunity::new(64496, 0, 64500)],
            med: Some(7),
            best: true,
        };
        assert_eq!(read_table(text), Ok(vec![expected]));
    }

    #[test]
    fn nonsense_is_named() {
        assert_eq!(read_table("Network not found"), Err("Network not found".to_owned()));
    }
}

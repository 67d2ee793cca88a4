//! A laboratory of ordinary routers with waypoints of Platypus: key servers grant capabilities, hosts and routers stamp with them.
//!
//! Between routers packets take the cheapest way, as the system's own routing tables say; only capabilities lead elsewhere.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::Value;

use super::plan::routed::{From, KeyServer, Router, Stamp, Waypoint};
use super::plan::{Host, Plan};
use super::{Addresses, Overlay, Role, at_once, host_lines, links, named, namespace, page, page_of};
use crate::laboratory::TIMEOUT;
use crate::netns;
use crate::overlay::delay::Delay;
use crate::process::wait_until;

/// Where routers report to their key server.
const REPORTS: u16 = 8_494;
/// Packets that a waypoint's replay filter holds: a laboratory's routers share one machine's memory.
const REPLAY: u32 = 100_000;

/// A router's own address: a waypoint's, else one of the laboratory's.
fn own_address(plan: &Plan, router: &Router) -> Ipv4Addr {
    let number = plan.routers.iter().position(|other| other.name == router.name).unwrap_or(0);
    let first = u32::from(Ipv4Addr::new(100, 126, 0, 1));
    router.waypoint.as_ref().map_or(Ipv4Addr::from(first + number as u32), |waypoint| waypoint.address)
}

/// Hosts, and key servers, which are attached like them.
fn stations(plan: &Plan) -> Vec<Host> {
    let server = |server: &KeyServer| Host {
        name: server.name.clone(),
        gateway: server.router.clone(),
        addresses: vec![IpAddr::V4(server.address)],
        holds: Vec::new(),
        stamps: Vec::new(),
        run: Vec::new(),
    };
    plan.hosts.iter().cloned().chain(plan.key_servers.iter().map(server)).collect()
}

/// Makes the namespaces, links and routes.
pub(super) fn lay_out(plan: &Plan) -> Result<Vec<Delay>, String> {
    let text = |error: netns::NetworkError| error.to_string();
    let stations = stations(plan);
    let names = plan.routers.iter().map(|router| &router.name).chain(stations.iter().map(|station| &station.name));
    let names: Vec<String> = names.map(|name| format!("netns add n-{name}")).collect();
    netns::ip(&names).map_err(text)?;
    for place in plan.places() {
        without_ipv6(place).map_err(|error| format!("{place}: {error}"))?;
    }
    let (mut made, mut lines) = (Vec::new(), Vec::new());
    let delays = links(plan, &mut made, &mut lines)?;
    for router in &plan.routers {
        let own = own_address(plan, router);
        lines.push(format!("-n n-{} link set lo up", router.name));
        lines.push(format!("-n n-{} addr add {own}/32 dev lo", router.name));
    }
    for (number, station) in stations.iter().enumerate() {
        let Host { name, gateway, .. } = station;
        made.push(format!("link add name {name} netns n-{gateway} type veth peer name eth0 netns n-{name}"));
        lines.extend(host_lines(number, station));
    }
    for router in &plan.routers {
        lines.extend(routes(plan, router, &stations));
    }
    // One call of `ip` for each namespace: the order within a namespace stays.
    lines.sort_by_key(|line| line.split(' ').nth(1).map(str::to_owned));
    made.extend(lines);
    netns::ip(&made).map_err(text)?;
    for router in &plan.routers {
        forward(&router.name).map_err(|error| format!("{} does not forward: {error}", router.name))?;
    }
    Ok(delays)
}

/// A router's routes to all other routers, and to what is attached to them.
fn routes(plan: &Plan, router: &Router, stations: &[Host]) -> Vec<String> {
    let mut lines = Vec::new();
    let source = own_address(plan, router);
    for (to, next) in plan.next_hops(&router.name) {
        let Some(number) = plan.links_of(&router.name).find(|(name, ..)| *name == next).and_then(|(_, _, link)| {
            let is_link = |other: &super::plan::Link| other == link;
            plan.links.iter().position(is_link).map(|number| (number, link.from == router.name))
        }) else {
            continue;
        };
        let [from, peer] = Addresses::link(number.0);
        let via = if number.1 { peer } else { from };
        let routers = plan.routers.iter().filter(|other| other.name == to).map(|other| own_address(plan, other));
        let attached = stations.iter().filter(|station| station.gateway == to);
        let attached = attached.flat_map(|station| &station.addresses).filter_map(|address| match address {
            IpAddr::V4(address) => Some(*address),
            IpAddr::V6(_) => None,
        });
        let line = |address| format!("-n n-{} route add {address}/32 via {via} dev {next} src {source}", router.name);
        lines.extend(routers.chain(attached).map(line));
    }
    lines
}

/// Nothing but what is sent on purpose crosses the links: no neighbour discovery, no reports of multicast listeners.
fn without_ipv6(place: &str) -> io::Result<()> {
    namespace(place).within(|| match fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1") {
        // A kernel without it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        written => written,
    })?
}

/// Lets a router pass packets on, also where the way back is another one.
fn forward(router: &str) -> io::Result<()> {
    namespace(router).within(|| {
        fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        for interface in fs::read_dir("/proc/sys/net/ipv4/conf")?.flatten() {
            fs::write(interface.path().join("rp_filter"), "0")?;
        }
        Ok(())
    })?
}

impl Overlay {
    /// Key servers with their grants, waypoints, and stampers.
    pub(super) fn start_routed(&mut self, say: &mut dyn FnMut(&str)) -> Result<(), String> {
        for place in self.plan.places().map(str::to_owned).collect::<Vec<_>>() {
            let folder = self.folder_of(&place);
            fs::create_dir_all(&folder).map_err(named(&folder))?;
        }
        let plan = self.plan.clone();
        for server in &plan.key_servers {
            self.key_server(&plan, server)?;
        }
        for capability in &plan.capabilities {
            if let From::Grant { principal, waypoint } = &capability.from {
                let found = plan.routers.iter().find(|router| router.name == *waypoint);
                let Some(Waypoint { address, key_server, .. }) = found.and_then(|router| router.waypoint.as_ref())
                else {
                    continue;
                };
                let config = format!("{key_server}/key.toml");
                let (address, principal) = (address.to_string(), principal.to_string());
                let of = ["--waypoint", &address, "--principal", &principal, "--name", &capability.name];
                let line = self.tool(&[&["cap", "grant", "--config", &config], &of[..]].concat())?;
                self.keep_line(&capability.name, &line)?;
            }
        }
        for server in &plan.key_servers {
            self.start_role(&server.name, Role::Key)?;
        }
        for capability in &plan.capabilities {
            if let From::Delegation { of, prefix, id } = &capability.from {
                let (of, prefix, id) = (format!("{of}.line"), prefix.to_string(), id.to_string());
                let arguments = ["--line", &of, "--prefix", &prefix, "--id", &id];
                let line =
                    self.at_key_server(&plan, &capability.name, &[&["cap", "delegate"], &arguments[..]].concat())?;
                self.keep_line(&capability.name, &line)?;
            }
        }
        let (servers, capabilities) = (plan.key_servers.len(), plan.capabilities.len());
        say(&format!("{servers} key servers, {capabilities} capabilities"));
        self.stampers(&plan)?;
        let waypoints = plan.routers.iter().filter(|router| router.waypoint.is_some());
        for router in waypoints {
            self.begin(&router.name, Role::Router)?;
        }
        for place in stampers(&plan) {
            self.begin(place, Role::Stamper)?;
        }
        for place in self.processes.iter().map(|process| process.place.clone()).collect::<Vec<_>>() {
            self.wait_for(&place)?;
        }
        say("every process answers");
        Ok(())
    }

    /// A key server with the keys of its waypoints, to which their routers report.
    fn key_server(&self, plan: &Plan, server: &KeyServer) -> Result<(), String> {
        let (name, listen) = (&server.name, format!("{}:53", server.address));
        let zone = format!("{name}.{}", plan.suffix);
        let (name_server, status) = (format!("ns.{zone}"), page(Role::Key));
        // It makes the folder itself.
        fs::remove_dir(self.folder_of(name)).map_err(named(&self.folder_of(name)))?;
        let of = ["--zone", &zone, "--name-server", &name_server, "--listen", &listen, "--status", &status];
        self.tool(&[&["cap", "init", name], &of[..]].concat())?;
        let identity = self.identity(&format!("{name}/identity.key"))?;
        let reports = format!("{}:{REPORTS}", server.address);
        let file = self.folder_of(name).join("key.toml");
        let text = fs::read_to_string(&file).map_err(named(&file))?;
        let settings: toml::Table = text.parse().map_err(|error| format!("{}: {error}", file.display()))?;
        let writer = settings["key"]["writer"].as_str().unwrap_or_default();
        let mut more = format!("[key.routers]\nlisten = \"{reports}\"\nidentity = \"identity.key\"\n");
        let of_server = |router: &&Router| router.waypoint.as_ref().is_some_and(|at| at.key_server == *name);
        for (number, router) in (1..).zip(plan.routers.iter().filter(of_server)) {
            let Some(waypoint) = &router.waypoint else { continue };
            let place = &router.name;
            self.tool(&["keys", "forwarding", &format!("{place}/router.key"), "--format", "platypus"])?;
            let own = self.identity(&format!("{place}/identity.key"))?;
            more += &format!(
                "[[key.waypoint]]\naddress = \"{}\"\nkey = \"../{place}/router.key\"\n\
                 [[key.router]]\nnumber = {number}\nname = \"{place}\"\nidentity = \"{own}\"\n",
                waypoint.address
            );
            // The other routers' waypoints, of this provider and of all others: each checks the sources of what comes to it first.
            let others = plan.routers.iter().filter_map(|router| router.waypoint.as_ref());
            let others = others.filter(|other| other.address != waypoint.address);
            let (own, peers): (Vec<_>, Vec<_>) = others.partition(|other| other.key_server == waypoint.key_server);
            let [own, peers] = [own, peers].map(|waypoints| {
                waypoints.iter().map(|other| format!("\"{}/32\"", other.address)).collect::<Vec<_>>().join(", ")
            });
            let bare: Vec<String> = waypoint.decapsulate.iter().map(|network| format!("\"{network}\"")).collect();
            self.write(
                &format!("{place}/router.toml"),
                &format!(
                    "[forwarding]\nformat = \"platypus\"\nkeys = \"router.key\"\nstate = \"router.redb\"\n\n[platypus]\n\
                     waypoints = [\"{}\"]\nown_waypoints = [{own}]\npeer_waypoints = [{peers}]\nreplay_capacity = {REPLAY}\ndecapsulate = [{}]\n\
                     revocations = {{ file = \"revoked\", key = \"{writer}\", required = true }}\n\n[platypus.provider]\n\
                     identity = \"identity.key\"\nserver = {{ identity = \"{identity}\", address = \"{reports}\" }}\n\n\
                     [status]\nlisten = \"{}\"\n",
                    waypoint.address,
                    bare.join(", "),
                    page(Role::Router)
                ),
            )?;
        }
        self.write(&format!("{name}/key.toml"), &(text + &more))
    }

    /// Configurations of stampers, and the capabilities of who holds some.
    fn stampers(&self, plan: &Plan) -> Result<(), String> {
        for host in &plan.hosts {
            let names = host.holds.iter().chain(host.stamps.iter().flat_map(|stamp| &stamp.with));
            self.hand_over(plan, &host.name, names)?;
            if let Some(IpAddr::V4(address)) = host.addresses.first().filter(|_| stamps(host)) {
                // The socket is there for those who hold capabilities of their own.
                let own = format!("address = \"{address}\"\nsocket = \"stamper.sock\"\n");
                self.write(&format!("{}/stamper.toml", host.name), &stamper(plan, &own, &host.stamps))?;
            }
        }
        for router in plan.routers.iter().filter(|router| !router.stamps.is_empty()) {
            self.hand_over(plan, &router.name, router.stamps.iter().flat_map(|stamp| &stamp.with))?;
            let mut sources: Vec<String> = Vec::new();
            for source in router.stamps.iter().flat_map(|stamp| &stamp.sources).map(|source| format!("\"{source}\"")) {
                if !sources.contains(&source) {
                    sources.push(source);
                }
            }
            let own = format!("sources = [{}]\n", sources.join(", "));
            self.write(&format!("{}/stamper.toml", router.name), &stamper(plan, &own, &router.stamps))?;
        }
        Ok(())
    }

    /// Puts capabilities into a place's folder: the line of each, and a file with its secrets of now.
    fn hand_over<'a>(&self, plan: &Plan, place: &str, names: impl Iterator<Item = &'a String>) -> Result<(), String> {
        for name in names {
            let (line, secrets) = (format!("{name}.line"), format!("{place}/{name}.cap"));
            let text = fs::read_to_string(self.folder.join(&line)).map_err(named(&self.folder.join(&line)))?;
            self.write(&format!("{place}/{line}"), &text)?;
            self.secret(&format!("{place}/{line}"))?;
            self.at_key_server(plan, name, &["cap", "lookup", "--line", &line, "--out", &secrets])?;
        }
        Ok(())
    }

    /// A command of the program that asks the key server of a capability.
    fn at_key_server(&self, plan: &Plan, capability: &str, arguments: &[&str]) -> Result<String, String> {
        let waypoint = plan.waypoint_of(capability).and_then(|router| router.waypoint.as_ref());
        let server = waypoint.and_then(|at| plan.key_servers.iter().find(|server| server.name == at.key_server));
        let server = server.ok_or_else(|| format!("no key server for {capability}"))?;
        let at = format!("{}:53", server.address);
        let mut said = Err(String::new());
        // What was granted or ordered a moment ago is known in a moment.
        wait_until(TIMEOUT, || {
            said = self.tool_at(&namespace(&server.name), &[arguments, &["--server", &at]].concat());
            said.is_ok().then_some(())
        });
        said
    }

    fn keep_line(&self, capability: &str, line: &str) -> Result<(), String> {
        let file = format!("{capability}.line");
        self.write(&file, &format!("{line}\n"))?;
        self.secret(&file)
    }

    /// Makes a file its owner's alone.
    fn secret(&self, file: &str) -> Result<(), String> {
        let path = self.folder.join(file);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(named(&path))
    }

    fn write(&self, file: &str, text: &str) -> Result<(), String> {
        let path = self.folder.join(Path::new(file));
        fs::write(&path, text).map_err(named(&path))
    }

    /// Makes an identity; its public key.
    fn identity(&self, file: &str) -> Result<String, String> {
        let made = self.tool(&["keys", "node", file, "--kind", "identity", "--json"])?;
        let made: Value = serde_json::from_str(&made).map_err(|error| format!("wayleave keys node: {error}"))?;
        made["public"].as_str().map(str::to_owned).ok_or_else(|| format!("{file}: no public key"))
    }

    /// Waits until waypoints accept what is stamped now and report, and stampers have their secrets.
    pub(super) fn settle_routed(&mut self, say: &mut dyn FnMut(&str)) -> Result<(), String> {
        let places: Vec<(String, Role)> = self.processes.iter().map(|one| (one.place.clone(), one.role)).collect();
        let missing = at_once(&places, |(place, role)| {
            let mut why = String::new();
            let is_ready =
                || match page_of(&namespace(place), place, *role, "/api/v1/status").map(|status| not_ready(&status)) {
                    Ok(None) => Some(()),
                    Ok(Some(what)) | Err(what) => {
                        why = what;
                        None
                    }
                };
            let found = wait_until(TIMEOUT, is_ready);
            Ok(found.is_none().then(|| format!("{place} after {} s: {why}", TIMEOUT.as_secs())))
        })?;
        self.first_ended().map_or(Ok(()), Err)?;
        self.warnings.extend(missing.into_iter().flatten());
        say("waypoints report to their key servers, stampers have their secrets");
        self.start_commands()
    }
}

/// Why a process of Platypus does not do its work yet.
fn not_ready(status: &Value) -> Option<String> {
    if let Some(until) = status["refuses_until"].as_str() {
        return Some(format!("refuses packets until {until}"));
    }
    if !status["refuses_until"].is_null() {
        return Some("refuses what was stamped before its start".to_owned());
    }
    if status["revocations"].is_object() && status["revocations"]["sequence"].is_null() {
        return Some("has no list of revocations".to_owned());
    }
    if let Some(problem) = status["problems"].as_array().and_then(|problems| problems.first()) {
        return Some(problem.to_string());
    }
    let mut routers = status["routers"].as_array().into_iter().flatten();
    let apart = routers.find(|router| router["connected"] != true);
    apart.map(|router| format!("{} is not connected", router["name"]))
}

/// Whether a stamper runs at a host.
fn stamps(host: &Host) -> bool {
    !host.stamps.is_empty() || !host.holds.is_empty()
}

/// Where stampers run.
fn stampers(plan: &Plan) -> impl Iterator<Item = &str> {
    let hosts = plan.hosts.iter().filter(|host| stamps(host)).map(|host| host.name.as_str());
    hosts.chain(plan.routers.iter().filter(|router| !router.stamps.is_empty()).map(|router| router.name.as_str()))
}

/// A stamper's configuration.
fn stamper(plan: &Plan, own: &str, stamps: &[Stamp]) -> String {
    let resolvers: Vec<String> = plan.key_servers.iter().map(|server| format!("\"{}\"", server.address)).collect();
    let (mut routes, mut rules) = (Vec::new(), Vec::new());
    for (number, stamp) in (1..).zip(stamps) {
        let lines: Vec<String> = stamp.with.iter().map(|name| format!("\"{name}.line\"")).collect();
        routes.push(format!("{{ name = \"route{number}\", capabilities = [{}] }}", lines.join(", ")));
        rules.push(format!("{{ to = \"{}\", route = \"route{number}\" }}", stamp.to));
    }
    format!(
        "[host]\n{own}resolvers = [{}]\n\n[stamper]\nroutes = [{}]\nrules = [{}]\n\n[status]\nlisten = \"{}\"\n",
        resolvers.join(", "),
        routes.join(", "),
        rules.join(", "),
        page(Role::Stamper)
    )
}

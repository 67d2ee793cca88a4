//! A laboratory of an overlay: a realm, its servers, nodes, gateways and hosts in network namespaces, from one description.
//!
//! Everything is done as an operator would do it: commands of the program make the realm, invite and join, and each node is a
//! process of its own that runs the configuration that `wayleave join` wrote.

mod delay;
pub mod graph;
pub mod plan;
mod routed;
pub mod wire;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toml::Table;

use self::delay::Delay;
use self::plan::{Gateway, Host, Node, Order, Plan, TagUse};
use crate::laboratory::processes::Processes;
pub use crate::laboratory::processes::{Role, page_of};
use crate::laboratory::{Laboratory, TIMEOUT};
use crate::netns::{self, Network, NetworkNamespace};
use crate::process::{Daemon, wait_until};
use crate::role_process::RoleProcess;

/// Commands of the program that run at a time.
const AT_ONCE: usize = 4;
/// Octets of a command's answer that are shown, at most.
const MOST_SAID: usize = 2_000;

/// The bridge of the servers' network, and the laboratory's own address there.
const BRIDGE: (&str, &str) = ("servers", "198.51.100.254/24");
/// Where names are answered, in every gateway's namespace: its hosts reach it by their default route.
const RESOLVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 53);
/// The port of every link's end.
const LINK_PORT: u16 = 49_252;

/// The network namespace of a place of the plan.
#[must_use]
pub fn namespace(place: &str) -> NetworkNamespace {
    NetworkNamespace::Named(format!("n-{place}"))
}

/// A command of a host or gateway.
#[derive(Debug)]
struct Running {
    place: String,
    line: String,
    daemon: Daemon,
}

/// A running laboratory. Its processes end with it.
pub struct Overlay {
    plan: Plan,
    folder: PathBuf,
    binary: PathBuf,
    processes: Processes,
    commands: Vec<Running>,
    _delays: Vec<Delay>,
    warnings: Vec<String>,
}

/// Who a server is and where: as configurations have it.
#[derive(Clone, Debug)]
struct Server {
    identity: String,
    address: String,
}

/// The addresses of the plan.
struct Addresses<'a> {
    plan: &'a Plan,
}

impl Addresses<'_> {
    /// On the servers' network: the realm's operator is 1, then all places in the plan's order.
    fn station(&self, place: &str) -> Ipv4Addr {
        let number = self.plan.places().position(|one| one == place).map_or(1, |at| at + 2);
        Ipv4Addr::new(198, 51, 100, u8::try_from(number).unwrap_or(u8::MAX))
    }

    /// The two ends of the link with this number, `from` first.
    fn link(number: usize) -> [Ipv4Addr; 2] {
        let first = u32::from(Ipv4Addr::new(100, 64, 0, 0)) + 2 * number as u32;
        [Ipv4Addr::from(first), Ipv4Addr::from(first + 1)]
    }

    /// The two ends of a host's link, the gateway's first, in both families.
    fn host(number: usize) -> [(Ipv4Addr, Ipv6Addr); 2] {
        let first = u32::from(Ipv4Addr::new(100, 127, 0, 0)) + 2 * number as u32;
        let wide = |end: u16| Ipv6Addr::new(0xfdff, 0, 0, 0, 0, 0, number as u16, end);
        [(Ipv4Addr::from(first), wide(0)), (Ipv4Addr::from(first + 1), wide(1))]
    }
}

impl Overlay {
    /// Lays the plan out in `network`, with keys, configurations, state and logs in `folder`, and starts everything.
    /// `binary` is the program; `say` gets a line for each stage.
    ///
    /// # Errors
    /// What failed, and what the failing part said.
    pub fn start(
        plan: Plan,
        network: &Network,
        folder: &Path,
        binary: &Path,
        say: &mut dyn FnMut(&str),
    ) -> Result<Self, String> {
        fs::create_dir_all(folder).map_err(named(folder))?;
        let is_routed = plan.is_routed();
        let delays = if is_routed { routed::lay_out(&plan)? } else { lay_out(&plan, network)? };
        // An overlay's realm has one too.
        let namespaces = plan.places().count() + usize::from(!is_routed);
        say(&format!("{namespaces} namespaces, {} links", plan.links.len()));
        let mut overlay = Self {
            plan,
            folder: folder.to_path_buf(),
            binary: binary.to_path_buf(),
            processes: Processes::new(folder, binary),
            commands: Vec::new(),
            _delays: delays,
            warnings: Vec::new(),
        };
        if is_routed {
            overlay.start_routed(say)?;
            return Ok(overlay);
        }
        if let Err(reason) = use_resolver(network) {
            overlay.warnings.push(format!("names are not looked up by themselves: {reason}"));
        }
        let consent_servers = overlay.servers(say)?;
        overlay.nodes(&consent_servers, say)?;
        Ok(overlay)
    }

    /// The plan that it runs.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What does not work as it should, though everything runs.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The folder of a place: its keys, configuration, state and log.
    #[must_use]
    pub fn folder_of(&self, place: &str) -> PathBuf {
        self.folder.join(place)
    }

    fn addresses(&self) -> Addresses<'_> {
        Addresses { plan: &self.plan }
    }

    /// The realm, its path servers and its consent servers; the latter do not run yet.
    fn servers(&mut self, say: &mut dyn FnMut(&str)) -> Result<BTreeMap<String, Server>, String> {
        let at = self.addresses().station("");
        self.tool(&["realm", "init", "realm", "--listen", &format!("{at}:7000"), "--status", &page(Role::Realm)])?;
        self.start_role("realm", Role::Realm)?;
        let names = self.plan.path_servers.clone();
        let mut path_servers = BTreeMap::new();
        for name in &names {
            let at = format!("{}:7100", self.addresses().station(name));
            let token = self.invite(&[name, "--role", "path", "--address", &at])?;
            let identity = self.join(name, &token, &["--listen", &at])?;
            path_servers.insert(name.clone(), Server { identity, address: at });
        }
        for name in &names {
            let others = path_servers.iter().filter(|(other, _)| *other != name).map(|(_, server)| entry(server));
            let others: Vec<toml::Value> = others.collect();
            self.edit(&format!("{name}/path.toml"), |text| {
                section(text, "path")?.insert("peers".to_owned(), others.into());
                Ok(())
            })?;
            self.start_role(name, Role::Path)?;
        }
        let mut consent_servers = BTreeMap::new();
        for server in self.plan.consent_servers.clone() {
            let at = format!("{}:7200", self.addresses().station(&server.name));
            let token = self.invite(&[&server.name, "--role", "consent"])?;
            let identity = self.join(&server.name, &token, &["--listen", &at])?;
            let policy = self.folder_of(&server.name).join("policy.toml");
            fs::write(&policy, &server.policy).map_err(named(&policy))?;
            consent_servers.insert(server.name, Server { identity, address: at });
        }
        let (paths, consents) = (path_servers.len(), consent_servers.len());
        say(&format!("a realm with {paths} path and {consents} consent servers"));
        Ok(consent_servers)
    }

    /// Nodes and gateways join, get their configurations, and run; and the consent servers that know them now.
    fn nodes(&mut self, consent_servers: &BTreeMap<String, Server>, say: &mut dyn FnMut(&str)) -> Result<(), String> {
        let routers = self.plan.nodes.iter().map(|node| (&node.name, &node.consent, Vec::new()));
        let gateways =
            self.plan.gateways.iter().map(|gateway| (&gateway.name, &gateway.consent, gateway.prefixes.clone()));
        let mut joining = Vec::new();
        for (name, consent, prefixes) in routers.chain(gateways) {
            let prefixes: Vec<String> = prefixes.iter().map(ToString::to_string).collect();
            let role = if prefixes.is_empty() { "router" } else { "gateway" };
            let mut arguments = vec![name.as_str(), "--role", role];
            arguments.extend(prefixes.iter().flat_map(|prefix| ["--prefix", prefix]));
            let token = self.invite(&arguments)?;
            let server = &consent_servers[consent];
            joining.push((name.clone(), token, format!("{}@{}", server.identity, server.address)));
        }
        let identities: BTreeMap<String, String> = at_once(&joining, |(name, token, consent)| {
            Ok((name.clone(), self.join(name, token, &["--consent", consent])?))
        })?
        .into_iter()
        .collect();
        say(&format!("{} nodes and {} gateways have joined", self.plan.nodes.len(), self.plan.gateways.len()));
        for node in &self.plan.nodes {
            self.configure_node(node)?;
        }
        for gateway in &self.plan.gateways {
            self.configure_gateway(gateway)?;
        }
        let served: Vec<(String, String)> = {
            let nodes = self.plan.nodes.iter().map(|node| (node.name.clone(), node.consent.clone()));
            nodes.chain(self.plan.gateways.iter().map(|one| (one.name.clone(), one.consent.clone()))).collect()
        };
        for server in consent_servers.keys() {
            let mut sections = Vec::new();
            for (node, _) in served.iter().filter(|(_, consent)| consent == server) {
                let (from, to) = (self.folder_of(node).join("tags.key"), format!("{node}.tags"));
                // The copy has the original's mode: nobody else reads it.
                fs::copy(&from, self.folder_of(server).join(&to)).map_err(named(&from))?;
                sections.push(table([("identity", identities[node].clone().into()), ("tags", to.into())]));
            }
            self.edit(&format!("{server}/consent.toml"), |text| {
                section(text, "consent")?.insert("node".to_owned(), sections.into());
                Ok(())
            })?;
        }
        let consents = consent_servers.keys().map(|name| (name.clone(), Role::Consent));
        let routers = self.plan.nodes.iter().map(|node| (node.name.clone(), Role::Router));
        let gateways = self.plan.gateways.iter().map(|gateway| (gateway.name.clone(), Role::Gateway));
        let all: Vec<(String, Role)> = consents.chain(routers).chain(gateways).collect();
        for (place, role) in &all {
            self.begin(place, *role)?;
        }
        for (place, _) in &all {
            self.wait_for(place)?;
        }
        say("every process answers");
        Ok(())
    }

    /// The first process that is not as it should be.
    fn without_neighbours(&mut self) -> Result<Option<String>, String> {
        self.first_ended().map_or(Ok(()), Err)?;
        for process in self.processes.iter().filter(|process| process.role == Role::Router) {
            let status = match self.page(&process.place, "/api/v1/status") {
                Ok(status) => status,
                Err(reason) => return Ok(Some(reason)),
            };
            if status["neighbours"] != status["neighbours_known"] {
                let known = &status["neighbours_known"];
                return Ok(Some(format!("{} knows {known} of {} neighbours", process.place, status["neighbours"])));
            }
            if status["neighbours"] != status["links_up"] {
                let up = &status["links_up"];
                return Ok(Some(format!("{} has {up} of {} links", process.place, status["neighbours"])));
            }
        }
        Ok(None)
    }

    /// A process that has ended, with the end of its log.
    pub fn first_ended(&mut self) -> Option<String> {
        self.processes.first_ended()
    }

    /// Every name that a gateway may use for another one: the gateway that asks, and the name.
    #[must_use]
    pub fn names(&self) -> Vec<(String, String)> {
        let mut names = Vec::new();
        for from in &self.plan.gateways {
            for to in self.plan.gateways.iter().filter(|to| to.name != from.name) {
                for policy in &from.policies {
                    names.push((from.name.clone(), format!("{}.{}.{}", policy.name, to.name, self.plan.suffix)));
                }
            }
        }
        names
    }

    /// Asks for a path until there is one, or the time has come.
    fn first_path(&self, from: &str, name: &str, end: Instant) -> Result<(), String> {
        let mut reason = "not tried any more".to_owned();
        // A question lasts some seconds, until there is an answer.
        while Instant::now() < end {
            match self.page(from, &format!("/api/v1/ping?name={name}")) {
                Ok(_) => return Ok(()),
                Err(why) => reason = why,
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Err(reason)
    }

    fn start_commands(&mut self) -> Result<(), String> {
        let hosts = self.plan.hosts.iter().map(|host| (&host.name, &host.run));
        let gateways = self.plan.gateways.iter().map(|gateway| (&gateway.name, &gateway.run));
        let routers = self.plan.routers.iter().map(|router| (&router.name, &router.run));
        for (place, run) in gateways.chain(routers).chain(hosts) {
            let folder = self.folder.join(place);
            fs::create_dir_all(&folder).map_err(named(&folder))?;
            for (number, line) in run.iter().enumerate() {
                let mut command = namespace(place).command("sh");
                command.args(["-c", line]).current_dir(&folder).env("PATH", with_program(&self.binary));
                let log = folder.join(format!("command-{}.log", number + 1));
                let daemon = Daemon::start(&mut command, &log).map_err(|error| format!("{place}: {error}"))?;
                self.commands.push(Running { place: place.clone(), line: line.clone(), daemon });
            }
        }
        Ok(())
    }

    /// Reads a status page of a place.
    ///
    /// # Errors
    /// What came instead.
    pub fn page(&self, place: &str, path: &str) -> Result<Value, String> {
        self.processes.page(place, path)
    }

    /// A command in a place's namespace, with the place's folder as its own.
    #[must_use]
    pub fn command(&self, place: &str, program: impl AsRef<OsStr>) -> Command {
        let mut command = namespace(place).command(program);
        command.current_dir(self.folder_of(place)).stdin(Stdio::null());
        command
    }

    /// The process of a place.
    ///
    /// # Errors
    /// If there is none.
    pub fn process(&mut self, place: &str) -> Result<&mut RoleProcess, String> {
        Ok(&mut self.processes.of(place)?.process)
    }

    /// Changes a configuration in the laboratory's folder.
    ///
    /// # Errors
    /// If it cannot be read or written, or is not as expected.
    pub fn edit(&self, file: &str, change: impl FnOnce(&mut Table) -> Result<(), String>) -> Result<(), String> {
        let path = self.folder.join(file);
        let text = fs::read_to_string(&path).map_err(named(&path))?;
        let mut all: Table = text.parse().map_err(|error| format!("{}: {error}", path.display()))?;
        change(&mut all).map_err(|reason| format!("{}: {reason}", path.display()))?;
        fs::write(&path, all.to_string()).map_err(named(&path))
    }

    fn configure_node(&self, node: &Node) -> Result<(), String> {
        let neighbours = self.neighbours(&node.name);
        let offered = node.tags.as_ref().map(|tags| {
            let entry = |tag: &plan::Tag| {
                let usage = match tag.usage {
                    TagUse::Transit => "transit",
                    TagUse::Deliver => "deliver",
                    TagUse::Service => "service",
                };
                let mut entry = table([("tag", tag.tag.clone().into()), ("use", usage.into())]);
                if let (Some(meaning), Some(table)) = (&tag.meaning, entry.as_table_mut()) {
                    table.insert("meaning".to_owned(), meaning.clone().into());
                }
                entry
            };
            tags.iter().map(entry).collect::<Vec<_>>()
        });
        self.edit(&format!("{}/router.toml", node.name), |text| {
            let overlay = section(text, "overlay")?;
            overlay.insert("neighbour".to_owned(), neighbours.into());
            overlay.insert("lifetime_minutes".to_owned(), 1.into());
            offered.map(|offered| overlay.insert("tags_offered".to_owned(), offered.into()));
            Ok(())
        })
    }

    fn configure_gateway(&self, gateway: &Gateway) -> Result<(), String> {
        let neighbours = self.neighbours(&gateway.name);
        let policies: Vec<toml::Value> = gateway.policies.iter().map(policy).collect();
        self.edit(&format!("{}/gateway.toml", gateway.name), |text| {
            let own = section(text, "gateway")?;
            own.insert("suffix".to_owned(), self.plan.suffix.clone().into());
            own.insert("dns".to_owned(), format!("{RESOLVER}:53").into());
            // The plan's prefixes, whatever they are.
            own.insert("accept".to_owned(), vec!["0.0.0.0/0", "::/0"].into());
            own.insert("consent_secs".to_owned(), i64::try_from(gateway.consent_secs).unwrap_or(i64::MAX).into());
            let overlay = section(text, "overlay")?;
            overlay.insert("neighbour".to_owned(), neighbours.into());
            overlay.insert("lifetime_minutes".to_owned(), 1.into());
            text.insert("policy".to_owned(), policies.into());
            Ok(())
        })
    }

    fn neighbours(&self, node: &str) -> Vec<toml::Value> {
        let mut sections = Vec::new();
        for (interface, (neighbour, relationship, link)) in (1i64..).zip(self.plan.links_of(node)) {
            let number = self.plan.links.iter().position(|other| other == link).unwrap_or(0);
            let [from, to] = Addresses::link(number);
            let local = if link.from == node { from } else { to };
            sections.push(table([
                ("node", neighbour.into()),
                ("relationship", relationship.name().into()),
                ("interface", interface.into()),
                ("local", format!("{local}:{LINK_PORT}").into()),
                ("public", link.public.into()),
            ]));
        }
        sections
    }

    /// Runs a command of the program in the laboratory's folder, for what it prints.
    fn tool(&self, arguments: &[&str]) -> Result<String, String> {
        self.tool_at(&NetworkNamespace::Own, arguments)
    }

    /// The same in a network namespace.
    fn tool_at(&self, place: &NetworkNamespace, arguments: &[&str]) -> Result<String, String> {
        let mut command = place.command(&self.binary);
        let output = command.args(arguments).current_dir(&self.folder).stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("{}: {error}", self.binary.display()))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        // A token is a secret.
        let shown: Vec<&str> = arguments.iter().filter(|word| !word.starts_with("wayleave-join-")).copied().collect();
        Err(format!("wayleave {}: {}", shown.join(" "), said(&output)))
    }

    fn invite(&self, arguments: &[&str]) -> Result<String, String> {
        self.tool(&[&["realm", "invite"], arguments, &["--config", "realm/realm.toml"]].concat())
    }

    /// Joins; the node's identity.
    fn join(&self, name: &str, token: &str, arguments: &[&str]) -> Result<String, String> {
        let joined = self.tool(&[&["join", token, "--dir", name, "--json"], arguments].concat())?;
        let value: Value = serde_json::from_str(&joined).map_err(|error| format!("wayleave join: {error}"))?;
        let identity = value["identity"].as_str().ok_or("wayleave join printed no identity")?;
        Ok(identity.to_owned())
    }

    fn begin(&mut self, place: &str, role: Role) -> Result<(), String> {
        self.processes.begin(place, role, namespace(place))
    }

    fn start_role(&mut self, place: &str, role: Role) -> Result<(), String> {
        self.begin(place, role)?;
        self.wait_for(place)
    }

    /// Waits until a place's process answers.
    ///
    /// # Errors
    /// If it ends instead, with the end of its log.
    pub fn wait_for(&mut self, place: &str) -> Result<(), String> {
        self.processes.wait_for(place)
    }
}

impl Laboratory for Overlay {
    /// Waits until every node knows its neighbours, and every gateway has a path to each other one by each of its policies; a
    /// pair without a path is a warning, since the plan may not have one. Then starts the commands of hosts and gateways.
    fn settle(&mut self, say: &mut dyn FnMut(&str)) -> Result<(), String> {
        if self.plan.is_routed() {
            return self.settle_routed(say);
        }
        let mut missing = String::new();
        let found = wait_until(TIMEOUT, || match self.without_neighbours() {
            Ok(None) => Some(Ok(())),
            Ok(Some(what)) => {
                missing = what;
                None
            }
            Err(ended) => Some(Err(ended)),
        });
        found.ok_or_else(|| format!("after {} s: {missing}", TIMEOUT.as_secs()))??;
        say("every node knows its neighbours");
        let names = self.names();
        let end = Instant::now() + TIMEOUT;
        let answers =
            at_once(&names, |(from, name)| Ok((from.clone(), name.clone(), self.first_path(from, name, end))))?;
        let (mut ready, all) = (0, answers.len());
        for (from, name, answer) in answers {
            match answer {
                Ok(()) => ready += 1,
                Err(reason) => self.warnings.push(format!("no path from {from} to {name}: {reason}")),
            }
        }
        say(&format!("{ready} of {all} names have a path"));
        self.start_commands()
    }

    fn describe(&self) -> Value {
        let command = |one: &Running| json!({ "node": one.place, "command": one.line, "pid": one.daemon.id() });
        json!({
            "processes": self.processes.describe(),
            "commands": self.commands.iter().map(command).collect::<Vec<_>>(),
            "warnings": self.warnings,
        })
    }

    fn reap(&mut self) {
        self.processes.reap();
        for command in &mut self.commands {
            command.daemon.is_running();
        }
    }

    fn stop(&mut self) -> usize {
        self.commands.clear();
        self.processes.stop()
    }
}

/// Why no TUN interface can be made here, if that is so: gateways, stampers and links with a delay are such interfaces.
#[must_use]
pub fn tun_problem() -> Option<String> {
    let opened = fs::File::options().read(true).write(true).open("/dev/net/tun");
    opened.err().map(|error| format!("/dev/net/tun: {error}"))
}

/// Where programs are looked for: first beside this one, so that it has its name.
#[must_use]
pub fn with_program(binary: &Path) -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = binary.parent().map(Path::to_path_buf);
    std::env::join_paths(own.into_iter().chain(std::env::split_paths(&path))).unwrap_or(path)
}

fn page(role: Role) -> String {
    role.page().to_string()
}

fn named(path: &Path) -> impl FnOnce(io::Error) -> String {
    let path = path.display().to_string();
    move |error| format!("{path}: {error}")
}

/// What a command said that failed.
fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    text.trim().chars().take(MOST_SAID).collect()
}

fn table<const N: usize>(entries: [(&str, toml::Value); N]) -> toml::Value {
    toml::Value::Table(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

fn entry(server: &Server) -> toml::Value {
    table([("identity", server.identity.clone().into()), ("address", server.address.clone().into())])
}

fn section<'a>(text: &'a mut Table, name: &str) -> Result<&'a mut Table, String> {
    text.get_mut(name).and_then(toml::Value::as_table_mut).ok_or_else(|| format!("no section [{name}]"))
}

fn policy(policy: &plan::Policy) -> toml::Value {
    let order = match policy.order {
        Order::Shortest => "shortest",
        Order::Longest => "longest",
    };
    let list = |names: &[String]| toml::Value::from(names.to_vec());
    let mut all = table([
        ("name", policy.name.clone().into()),
        ("order", order.into()),
        ("avoid", list(&policy.avoid)),
        ("require", list(&policy.require)),
    ]);
    if let (Some(pin), Some(table)) = (&policy.pin, all.as_table_mut()) {
        table.insert("pin".to_owned(), list(pin));
    }
    all
}

/// Does the work for each of `all`, some at a time; the results in their order, or the first failure.
fn at_once<T: Sync, R: Send>(all: &[T], work: impl Fn(&T) -> Result<R, String> + Sync) -> Result<Vec<R>, String> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Result<R, String>)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(all.len()) {
            scope.spawn(|| {
                while let at = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(one) = all.get(at)
                {
                    let result = work(one);
                    done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((at, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Makes the namespaces, the servers' network, the links and the hosts' links.
fn lay_out(plan: &Plan, network: &Network) -> Result<Vec<Delay>, String> {
    let text = |error: netns::NetworkError| error.to_string();
    let (bridge, own) = BRIDGE;
    network.bridge(bridge, own).map_err(text)?;
    let addresses = Addresses { plan };
    let servers = plan.path_servers.iter().chain(plan.consent_servers.iter().map(|server| &server.name));
    let nodes = plan.nodes.iter().map(|node| &node.name).chain(plan.gateways.iter().map(|gateway| &gateway.name));
    for (place, at) in servers
        .chain(nodes)
        .map(|name| (name.as_str(), addresses.station(name)))
        .chain([("realm", addresses.station(""))])
    {
        network.attach_to(bridge, &format!("n-{place}"), &[format!("{at}/24")]).map_err(text)?;
    }
    let (mut made, mut lines) = (Vec::new(), Vec::new());
    let delays = links(plan, &mut made, &mut lines)?;
    for gateway in &plan.gateways {
        lines.push(format!("-n n-{} addr add {RESOLVER}/32 dev lo", gateway.name));
    }
    for (number, host) in plan.hosts.iter().enumerate() {
        made.push(format!("netns add n-{}", host.name));
        made.push(format!(
            "link add name {} netns n-{} type veth peer name eth0 netns n-{}",
            host.name, host.gateway, host.name
        ));
        lines.extend(host_lines(number, host));
    }
    // One call of `ip` for each namespace: the order within a namespace stays.
    lines.sort_by_key(|line| line.split(' ').nth(1).map(str::to_owned));
    made.extend(lines);
    netns::ip(&made).map_err(text)?;
    for gateway in plan.gateways.iter().filter(|gateway| plan.hosts.iter().any(|host| host.gateway == gateway.name)) {
        forward(&gateway.name).map_err(|error| format!("{} does not forward: {error}", gateway.name))?;
    }
    Ok(delays)
}

/// The links, as lines for `ip` that make them and then set them up; those with a delay are made at once.
fn links(plan: &Plan, made: &mut Vec<String>, lines: &mut Vec<String>) -> Result<Vec<Delay>, String> {
    let mut delays = Vec::new();
    for (number, link) in plan.links.iter().enumerate() {
        let ([one, other], [from, to]) = ([&link.from, &link.to], Addresses::link(number));
        // At each end the interface is named after the node at the other.
        if link.delay.is_zero() {
            made.push(format!("link add name {other} netns n-{one} type veth peer name {one} netns n-{other}"));
        } else {
            let ends = [(&namespace(one), other.as_str()), (&namespace(other), one.as_str())];
            let delay = Delay::start(ends, link.delay);
            delays.push(delay.map_err(|error| format!("the link of {one} and {other} can have no delay: {error}"))?);
        }
        for (place, interface, own, peer) in [(one, other, from, to), (other, one, to, from)] {
            lines.push(format!("-n n-{place} addr add {own} peer {peer} dev {interface}"));
            lines.push(format!("-n n-{place} link set dev {interface} up"));
        }
    }
    Ok(delays)
}

/// A host's link to its gateway, and its addresses.
fn host_lines(number: usize, host: &Host) -> Vec<String> {
    let [near, far] = Addresses::host(number);
    let (own, gateway) = (format!("-n n-{}", host.name), format!("-n n-{}", host.gateway));
    let interface = &host.name;
    let mut lines = vec![
        format!("{own} link set lo up"),
        format!("{own} link set eth0 up"),
        format!("{gateway} link set dev {interface} up"),
    ];
    for address in &host.addresses {
        match address {
            IpAddr::V4(address) => lines.extend([
                format!("{gateway} addr add {} peer {} dev {interface}", near.0, far.0),
                format!("{gateway} route add {address}/32 via {} dev {interface}", far.0),
                format!("{own} addr add {} peer {} dev eth0", far.0, near.0),
                format!("{own} addr add {address}/32 dev eth0"),
                format!("{own} route add default via {} dev eth0 src {address}", near.0),
            ]),
            IpAddr::V6(address) => lines.extend([
                format!("{gateway} addr add {}/127 dev {interface} nodad", near.1),
                format!("{gateway} route add {address}/128 via {} dev {interface}", far.1),
                format!("{own} addr add {}/127 dev eth0 nodad", far.1),
                format!("{own} addr add {address}/128 dev eth0 nodad"),
                format!("{own} route add default via {} dev eth0 src {address}", near.1),
            ]),
        }
    }
    lines
}

/// Lets a gateway's namespace pass its hosts' packets on.
fn forward(gateway: &str) -> io::Result<()> {
    namespace(gateway).within(|| {
        fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        // A kernel without IPv6 has nothing to forward.
        let _ = fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1");
        Ok(())
    })?
}

/// Lets every namespace ask its own gateway for names. A file of the laboratory's own lies over the system's.
fn use_resolver(network: &Network) -> io::Result<()> {
    let text = format!("nameserver {RESOLVER}\noptions timeout:1 attempts:3\n");
    let system = Path::new("/etc/resolv.conf");
    if !system.exists() {
        // Often a link to a file below /run, which is the laboratory's own here.
        let to = Path::new("/etc").join(fs::read_link(system)?);
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        return fs::write(to, text);
    }
    let own = network.state().join("resolv.conf");
    fs::write(&own, text)?;
    netns::mount(&["--bind", &own.display().to_string(), &system.display().to_string()])
}

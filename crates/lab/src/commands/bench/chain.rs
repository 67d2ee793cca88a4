//! The chain of the PoComON paper (Figure 4) as a realm of processes in network namespaces: `a`, the forwarders `w1`, `w2` and
//! `w3`, and `b`, in a row, with a link from `w1` to `w3` that bypasses `w2`; and, where they are wanted, `c` and `d` with a link between
//! them and no forwarder. Servers are on a LAN that all of them have besides.

use std::fmt::Display;
use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{RData, RecordType};
use serde_json::Value;
use wayleave_lab::netns::{Network, NetworkNamespace};
use wayleave_lab::process::{Daemon, wait_until};

/// What goes wrong in a benchmark's laboratory, in words.
pub type Result<T> = std::result::Result<T, String>;

/// The nodes in their order, each with the end of its address on the LAN.
const NODES: [(&str, u8); 7] = [("a", 1), ("w1", 11), ("w2", 12), ("w3", 13), ("b", 2), ("c", 3), ("d", 4)];
/// Links: interface and network number, the lower node, the upper one.
const LINKS: [(&str, u8, &str, &str); 6] = [
    ("l1", 1, "a", "w1"),
    ("l2", 2, "w1", "w2"),
    ("l3", 3, "w3", "w2"),
    ("l4", 4, "b", "w3"),
    ("l5", 5, "w1", "w3"),
    ("l6", 6, "c", "d"),
];
/// Octets of the longest ICING packet: a datagram of an Ethernet frame.
const MTU: u16 = 1_472;
const PORT: u16 = 50_001;
/// Two gateways; the first one sends.
#[derive(Debug)]
pub struct Pair {
    pub ends: [&'static str; 2],
    /// Their addresses for what the kernel forwards.
    pub outer: [Ipv4Addr; 2],
    /// The addresses of their inner networks.
    pub inner: [Ipv4Addr; 2],
    /// Nodes of the longest path from one to the other.
    pub nodes: usize,
    /// What results that are measured between them end with.
    pub suffix: &'static str,
}

/// Over three forwarders.
pub const CHAIN: Pair = Pair {
    ends: ["a", "b"],
    outer: [Ipv4Addr::new(10, 1, 1, 1), Ipv4Addr::new(10, 1, 4, 1)],
    inner: [Ipv4Addr::new(10, 0, 1, 1), Ipv4Addr::new(10, 0, 2, 1)],
    nodes: 5,
    suffix: "",
};
/// Over a link, and nothing between.
pub const DIRECT: Pair = Pair {
    ends: ["c", "d"],
    outer: [Ipv4Addr::new(10, 1, 6, 1), Ipv4Addr::new(10, 1, 6, 2)],
    inner: [Ipv4Addr::new(10, 0, 3, 1), Ipv4Addr::new(10, 0, 4, 1)],
    nodes: 2,
    suffix: ".direct",
};

pub const STATUS: &str = "127.0.0.1:8492";
const TIMEOUT: Duration = Duration::from_secs(40);

pub fn said(error: impl Display) -> String {
    error.to_string()
}

/// Where the path server and the consent server run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Servers {
    /// On the first node.
    Beside,
    /// On a machine of their own.
    Apart,
}

/// Namespaces, links and the kernel's routes; no process yet.
pub struct Chain {
    pub network: Network,
    places: Vec<(&'static str, NetworkNamespace)>,
}

impl Chain {
    pub fn new() -> Result<Self> {
        let network = Network::new().map_err(said)?;
        shell(&NetworkNamespace::Own, "ip addr add 192.0.2.250/24 dev lan")?;
        let mut places = Vec::new();
        for (name, number) in NODES.into_iter().chain([("s", 200)]) {
            // `ip` takes a single letter for one of its words.
            let place = network.attach(&within(name), &[format!("192.0.2.{number}/24")]).map_err(said)?;
            places.push((name, place));
        }
        for (interface, number, lower, upper) in LINKS {
            let end = |last| format!("10.1.{number}.{last}/24");
            network.join(interface, (&within(lower), &end(1)), (&within(upper), &end(2))).map_err(said)?;
        }
        let chain = Self { network, places };
        for name in ["w1", "w2", "w3"] {
            // The bypass makes the way back another one than the way there.
            chain.shell(name, "for f in all/rp_filter default/rp_filter l5/rp_filter; do echo 0 > /proc/sys/net/ipv4/conf/$f; done 2>/dev/null; echo 1 > /proc/sys/net/ipv4/ip_forward")?;
        }
        chain.bypass(false)?;
        Ok(chain)
    }

    /// Lets the kernel forward between `a` and `b` over `w2`, or past it.
    pub fn bypass(&self, is_past: bool) -> Result<()> {
        let (there, back) = if is_past { ("10.1.5.2", "10.1.5.1") } else { ("10.1.2.2", "10.1.3.2") };
        for (name, to, via) in [
            ("a", 4, "10.1.1.2"),
            ("w1", 4, there),
            ("w2", 4, "10.1.3.1"),
            ("b", 1, "10.1.4.2"),
            ("w3", 1, back),
            ("w2", 1, "10.1.2.1"),
        ] {
            self.shell(name, &format!("ip route replace 10.1.{to}.0/24 via {via}"))?;
        }
        Ok(())
    }

    pub fn place(&self, name: &str) -> &NetworkNamespace {
        let found = self.places.iter().find(|(known, _)| *known == name);
        found.map_or(&NetworkNamespace::Own, |(_, place)| place)
    }

    /// Runs a line in a node's namespace.
    pub fn shell(&self, name: &str, line: &str) -> Result<()> {
        shell(self.place(name), line)
    }
}

/// The namespace of a node.
fn within(name: &str) -> String {
    format!("n-{name}")
}

fn shell(place: &NetworkNamespace, line: &str) -> Result<()> {
    let output = place.command("sh").args(["-c", line]).stdin(Stdio::null()).output().map_err(said)?;
    let why = || format!("`{line}`: {}", String::from_utf8_lossy(&output.stderr).trim());
    if output.status.success() { Ok(()) } else { Err(why()) }
}

/// The chain's processes.
pub struct Realm {
    folder: PathBuf,
    program: PathBuf,
    pub daemons: Vec<(&'static str, Daemon)>,
}

/// `role`, the place and the folder of a process.
struct Run(&'static str, &'static str, &'static str, NetworkNamespace);

impl Realm {
    /// From nothing: the operator, a path server, a consent server for all nodes, the forwarders; the gateways have joined, and do
    /// not run yet.
    pub fn start(chain: &Chain, servers: Servers, pairs: &[&Pair], policies: &str) -> Result<Self> {
        let folder = chain.network.state().join(format!("realm-{servers:?}"));
        fs::create_dir_all(&folder).map_err(said)?;
        let program = wayleave_lab::product::program().map_err(said)?;
        let mut realm = Self { folder, program, daemons: Vec::new() };
        let (place, host) = match servers {
            Servers::Beside => (chain.place("a").clone(), "192.0.2.1"),
            Servers::Apart => (chain.place("s").clone(), "192.0.2.200"),
        };
        realm.ok(&["realm", "init", "realm", "--listen", "192.0.2.250:7000"])?;
        realm.run(Run("operator", "realm", "realm", NetworkNamespace::Own))?;
        let listen = format!("{host}:7100");
        let token = realm.invite(&["paths", "--role", "path", "--address", &listen])?;
        let joined = ["join", &token, "--dir", "paths", "--listen", &listen, "--status", "127.0.0.1:8501"];
        in_place(&place, || realm.ok(&joined))?;
        realm.edit("paths/path.toml", |text| {
            text.replace("#requests_per_second = 20", "requests_per_second = 100000")
        })?;
        realm.run(Run("paths", "path", "paths", place.clone()))?;
        let listen = format!("{host}:7200");
        let token = realm.invite(&["consent", "--role", "consent"])?;
        let joined = ["join", &token, "--dir", "consent", "--listen", &listen, "--status", "127.0.0.1:8502"];
        in_place(&place, || realm.ok(&joined))?;
        let consent = format!("{}@{listen}", realm.identity("consent")?);
        for (name, _) in NODES {
            let inner = inner_address(name);
            if inner.is_some() && !pairs.iter().any(|pair| pair.ends.contains(&name)) {
                continue;
            }
            let (status, role) = if inner.is_some() { (STATUS, "gateway") } else { ("127.0.0.1:8503", "router") };
            let prefix = inner.map(|[a, b, c, _]| format!("{a}.{b}.{c}.0/24"));
            let prefixed = prefix.as_ref().map_or_else(Vec::new, |prefix| vec!["--prefix", prefix]);
            let token = realm.invite(&[&[name, "--role", role][..], &prefixed].concat())?;
            in_place(chain.place(name), || {
                realm.ok(&["join", &token, "--dir", name, "--consent", &consent, "--status", status])
            })?;
            let config = format!("{name}/{role}.toml");
            let links: String = LINKS.iter().filter_map(|link| neighbour(name, link)).collect();
            realm.edit(&config, |text| text.replace("#mtu = 1400", &format!("mtu = {MTU}")) + &links)?;
            if role == "gateway" {
                realm.edit(&config, |text| with_policies(&text, policies))?;
            }
            let section = format!(
                "\n[[consent.node]]\nidentity = \"{}\"\ntags = \"../{name}/tags.key\"\n",
                realm.identity(name)?
            );
            realm.edit("consent/consent.toml", |text| text + &section)?;
        }
        realm.edit("consent/consent.toml", |text| {
            text.replace("#requests_per_second = 100", "requests_per_second = 100000")
        })?;
        realm.run(Run("consent", "consent", "consent", place))?;
        for name in ["w1", "w2", "w3"] {
            realm.forwarder(chain, name)?;
        }
        Ok(realm)
    }

    pub fn forwarder(&mut self, chain: &Chain, name: &'static str) -> Result<()> {
        self.run(Run(name, "router", name, chain.place(name).clone()))
    }

    /// Starts gateways, which may be each other's only neighbours; each is ready once it has one.
    pub fn gateways(&mut self, chain: &Chain, names: &[&'static str]) -> Result<()> {
        for name in names.iter().copied() {
            self.run(Run(name, "gateway", name, chain.place(name).clone()))?;
        }
        for name in names.iter().copied() {
            let is_ready = || {
                let status = self.show(chain.place(name), &["show", "status"]);
                (status["neighbours"].as_u64() >= Some(1) && status["members"].as_u64() >= Some(5)).then_some(())
            };
            wait_until(TIMEOUT, is_ready).ok_or_else(|| self.log(name))?;
        }
        Ok(())
    }

    /// Ends a process.
    pub fn stop(&mut self, name: &str) {
        self.daemons.retain_mut(|(known, daemon)| {
            let is_it = *known == name;
            if is_it {
                daemon.kill();
            }
            !is_it
        });
    }

    fn run(&mut self, Run(name, role, dir, place): Run) -> Result<()> {
        let dir = self.folder.join(dir);
        let mut command = place.command(&self.program);
        // Some are killed more often than a role may end within a minute without refusing whom it heard last.
        command.args(["run", role, "--refuse-nobody", "--config", &format!("{role}.toml")]).current_dir(&dir);
        let mut daemon = Daemon::start(&mut command, &dir.join("log")).map_err(said)?;
        let page = status_of(&fs::read_to_string(dir.join(format!("{role}.toml"))).map_err(said)?);
        let is_up = wait_until(TIMEOUT, || {
            let status = show(&self.program, &place, &["show", "status"], &page);
            (!status.is_null() || !daemon.is_running()).then_some(!status.is_null())
        });
        let result = if is_up == Some(true) { Ok(()) } else { Err(format!("{name}: {}", daemon.log_tail(10))) };
        self.daemons.push((name, daemon));
        result
    }

    /// What a page of a gateway says; null if it does not answer.
    pub fn show(&self, place: &NetworkNamespace, arguments: &[&str]) -> Value {
        show(&self.program, place, arguments, STATUS)
    }

    /// Waits until the second gateway of the pair is reached by its name under the policy, over so many nodes.
    pub fn reach(&self, chain: &Chain, pair: &Pair, policy: &str, nodes: usize) -> Result<()> {
        let [from, to] = pair.ends;
        let name = &format!("{policy}.{to}.overlay");
        let reached = wait_until(TIMEOUT, || {
            let answer = self.show(chain.place(from), &["ping", name]);
            (answer["nodes"].as_array().map(Vec::len) == Some(nodes)).then_some(())
        });
        reached.ok_or_else(|| {
            let why = self.show(chain.place(from), &["why", name]);
            format!("{name} is not reached over {nodes} nodes: {why}\n{}\n{}", self.log(from), self.log(to))
        })
    }

    pub fn folder(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn log(&self, name: &str) -> String {
        let daemon = self.daemons.iter().find(|(known, _)| *known == name);
        format!("{name}: {}", daemon.map(|(_, daemon)| daemon.log_tail(10)).unwrap_or_default())
    }

    /// Runs the program in the folder, and returns what it printed.
    fn ok(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new(&self.program).args(arguments).current_dir(&self.folder).output().map_err(said)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        Err(format!("wayleave {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr)))
    }

    fn invite(&self, arguments: &[&str]) -> Result<String> {
        self.ok(&[&["realm", "invite"], arguments, &["--config", "realm/realm.toml"]].concat())
    }

    fn identity(&self, name: &str) -> Result<String> {
        let shown = self.ok(&["keys", "show", &format!("{name}/identity.key"), "--json"])?;
        let value: Value = serde_json::from_str(&shown).map_err(said)?;
        Ok(value["public"].as_str().unwrap_or_default().to_owned())
    }

    fn edit(&self, file: &str, change: impl FnOnce(String) -> String) -> Result<()> {
        let path = self.folder.join(file);
        let text = fs::read_to_string(&path).map_err(|error| format!("{file}: {error}"))?;
        write(&path, &change(text))
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    let file = fs::OpenOptions::new().write(true).truncate(true).create(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| format!("{}: {error}", path.display()))
}

/// Joining asks the operator, who is reached from everywhere.
fn in_place<T: Send>(place: &NetworkNamespace, task: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    place.within(task).map_err(said)?
}

fn show(program: &Path, place: &NetworkNamespace, arguments: &[&str], page: &str) -> Value {
    let output = place.command(program).args(arguments).args(["--json", "--url", page]).output();
    let answer = output.ok().filter(|output| output.status.success());
    answer.and_then(|answer| serde_json::from_slice(&answer.stdout).ok()).unwrap_or(Value::Null)
}

/// The address under `[status]`.
fn status_of(text: &str) -> String {
    let behind = text.split("[status]").nth(1).unwrap_or_default();
    behind.split('"').nth(1).unwrap_or_default().to_owned()
}

/// The inner address of a gateway; a forwarder has none.
fn inner_address(name: &str) -> Option<[u8; 4]> {
    let gateways = [&CHAIN, &DIRECT].into_iter().flat_map(|pair| pair.ends.into_iter().zip(pair.inner));
    gateways.into_iter().find(|(known, _)| *known == name).map(|(_, inner)| inner.octets())
}

/// A node's end of a link. The upper end is the lower one's provider; those of the bypass, and of the link without forwarders, are
/// peers.
fn neighbour(name: &str, (_, number, lower, upper): &(&str, u8, &str, &str)) -> Option<String> {
    let (other, last, is) = match name {
        _ if name == *lower => (upper, 1, "provider"),
        _ if name == *upper => (lower, 2, "customer"),
        _ => return None,
    };
    let is = if *number >= 5 { "peer" } else { is };
    Some(format!(
        "\n[[overlay.neighbour]]\nnode = \"{other}\"\nrelationship = \"{is}\"\ninterface = {number}\n\
         local = \"10.1.{number}.{last}:{PORT}\"\n"
    ))
}

/// A gateway's configuration with these policies in the place of its own.
fn with_policies(text: &str, policies: &str) -> String {
    let begin = text.find("[[policy]]").unwrap_or(text.len());
    let end = text[begin..].find("[overlay]").map_or(text.len(), |end| begin + end);
    format!("{}{policies}\n{}", &text[..begin], &text[end..])
}

/// The IPv4 address of a name, as the gateway of `place` has it.
pub fn address_of(place: &NetworkNamespace, name: &str) -> Result<IpAddr> {
    let mut question = Message::query();
    question.add_query(Query::query(format!("{name}.").parse().map_err(said)?, RecordType::A));
    let question = question.to_vec().map_err(said)?;
    let ask = || {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        socket.send_to(&question, "127.0.0.1:5354")?;
        let mut octets = [0; 1232];
        let length = socket.recv(&mut octets)?;
        Ok::<_, std::io::Error>(octets[..length].to_vec())
    };
    let answer = place.within(ask).map_err(said)?.map_err(|error| format!("{name}: {error}"))?;
    let answer = Message::from_vec(&answer).map_err(said)?;
    let address = answer.answers.iter().find_map(|record| match &record.data {
        RData::A(v4) => Some(IpAddr::V4(v4.0)),
        _ => None,
    });
    address.ok_or_else(|| format!("{name} has no address"))
}

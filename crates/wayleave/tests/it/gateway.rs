//! Two gateways over ICING routers, as processes in network namespaces, with what no server would answer: paths and consents come
//! from a file here. `overlay::applications` and its neighbours have real servers.
//!
//! ICC, gateway attacks: a bogus consent between processes: packets die at the node that did not give it.
//! ICC, gateway killed: packets to members and names with a default route beside: none leaves; a capture of the link
//! sees nothing in clear.
//! ICC, idle connections: a gateway is killed under a TCP connection by name that is idle; the server speaks first: the
//! connection goes on. So does a download, also when the gateway is stopped.
//! ICC, gateway's machine: it has routes of its own to what the realm grants, and others within it, and rules: none is changed, its
//! own go first, the gateway's packets never enter the interface, and all is taken back by a stop, after a kill too.
//! ICC, gateway's disk: its store comes to a standstill: new names are refused, and everything else goes on; no address is
//! given twice.
//! ICC, names of nobody: a policy that is reloaded names nodes that nobody is called: the log, `show events`, `show status` and `why` of that policy
//! say so.
//! ICC-11, decided: nodes avoided and paths pinned by commands, over a restart: from the next packet on; `why` says
//! whose decision it is.

mod admitted;
pub(crate) mod exit;
mod proxy;
mod resolved;
mod two;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::RecordType;
use serde_json::{Value, json};
use wayleave_crypto::dh::DhSecret;
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_crypto::sign::SigningKey;
use wayleave_lab::netns::{self, Network, NetworkNamespace};
use wayleave_lab::process::Daemon;
use wayleave_lab::wire::Capture;
use wayleave_packet::icing::header::{Hop, Path, Tag, Version};
use wayleave_packet::icing::mint::{NodeSecret, TagMaster};
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::identity::to_hex;

use crate::common::eventually;
use crate::common::metrics::assert_named_by_the_rule;
use crate::common::screen::assert_one_screen;
use crate::overlay::applications::{page, serve};
use crate::overlay::nat::Download;
use crate::router::common::{Folder, Router};
use crate::router::icing::{hex, key, seed};

const TAG: Tag = Tag(0x4900_0001);
const MTU: u16 = 1_472;
/// Gateways a and b, forwarders w1, w2, w3 in the west and e in the east.
const NODES: [&str; 6] = ["a", "b", "w1", "w2", "w3", "e"];
const A: usize = 0;
const B: usize = 1;
const EAST: usize = 5;
/// Paths from a to b.
const ORDERS: [&[usize]; 3] = [&[0, 2, 3, 4, 1], &[0, 2, 4, 1], &[0, 5, 1]];
const LINKS: [(usize, usize); 7] = [(0, 2), (2, 3), (3, 4), (2, 4), (4, 1), (0, 5), (5, 1)];
const TIMEOUT: Duration = Duration::from_secs(30);

fn identity(node: usize) -> String {
    let key = SigningKey::from_seed(&Seed::new([node as u8 + 1; 32])).verifying_key();
    format!("ed25519:{}", to_hex(&key.to_bytes()))
}

fn noise(node: usize) -> Seed {
    Seed::new([0x60 + node as u8; 32])
}

fn address(node: usize) -> String {
    format!("192.0.2.{}", node + 1)
}

/// Where `node` receives what `from` sends.
fn port(node: usize, from: usize) -> String {
    format!("{}:{}", address(node), 49_300 + from)
}

fn master(node: usize) -> TagMaster {
    if node < 2 { TagMaster::new(Key128::new([0x80 + node as u8; 16])) } else { TagMaster::derive(&seed(node), 0) }
}

fn neighbours(node: usize) -> Vec<usize> {
    let ends = LINKS.iter().flat_map(|(one, other)| [(*one, *other), (*other, *one)]);
    ends.filter(|(one, _)| *one == node).map(|(_, other)| other).collect()
}

struct World {
    _network: Network,
    places: Vec<NetworkNamespace>,
    routers: Vec<(usize, Router)>,
    gateways: Vec<Gateway>,
    folder: Folder,
    options: Options,
}

/// What a test changes of the configurations of a and b.
#[derive(Clone, Copy, Default)]
struct Options {
    /// Prefixes that the realm grants b besides.
    grants: &'static [&'static str],
    /// Lines of [gateway].
    lines: [&'static str; 2],
}

struct Gateway {
    daemon: Daemon,
    page: SocketAddr,
    place: NetworkNamespace,
}

impl Gateway {
    fn ask(&self, arguments: &[&str]) -> Output {
        let mut command = self.place.command(env!("CARGO_BIN_EXE_wayleave"));
        command.args(arguments).args(["--url", &self.page.to_string()]).output().expect("the program runs")
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.ask(&[arguments, &["--json"]].concat());
        if output.status.success() { serde_json::from_slice(&output.stdout).expect("JSON") } else { Value::Null }
    }

    fn status(&self) -> Value {
        self.json(&["show", "status"])
    }

    fn dropped(&self, reason: &str) -> u64 {
        self.status()["dropped"][reason].as_u64().unwrap_or(0)
    }
}

impl World {
    fn start(name: &str) -> Self {
        Self::start_with(name, Options::default(), |_| ())
    }

    /// `prepare` is called when the namespaces are there, before anything runs in them.
    fn start_with(name: &str, options: Options, prepare: impl FnOnce(&Self)) -> Self {
        let network = Network::new().expect("a network");
        let folder = Folder::new(name);
        let places: Vec<NetworkNamespace> = (0..NODES.len())
            .map(|node| {
                network.attach(&format!("n-{}", NODES[node]), &[format!("{}/24", address(node))]).expect("a namespace")
            })
            .collect();
        let mut world = Self { _network: network, places, routers: Vec::new(), gateways: Vec::new(), folder, options };
        prepare(&world);
        for (node, name) in NODES.iter().enumerate().skip(2) {
            world.folder.keys(&format!("{node}.key"), "icing", &[(0, key(node))]);
            let mut config = format!(
                "[forwarding]\nformat = \"icing\"\nkeys = \"{node}.key\"\n[icing]\ntags = [{{ prefix = \"49000000/8\" }}]\n"
            );
            for other in neighbours(node) {
                config += &format!(
                    "[[link]]\nid = {}\nlocal = \"{}\"\nremote = \"{}\"\nnodes = [\"{}\"]\n",
                    other + 1,
                    port(node, other),
                    port(other, node),
                    hex(&NodeSecret::from_seed(&seed(other)).id())
                );
            }
            let router = Router::start(&world.folder, name, world.places[node].clone(), &config);
            world.routers.push((node, router));
        }
        for node in [A, B] {
            world.write_file(node, &|_, _| true);
            let gateway = world.gateway(node);
            world.gateways.push(gateway);
        }
        world
    }

    /// The laboratory's file of a gateway; consents for which `is_right` is false are another node's.
    fn write_file(&self, node: usize, is_right: &dyn Fn(usize, usize) -> bool) {
        let expiry = unix_now().secs() as u32 + 3_000;
        let member = |node: usize| {
            let granted = if node == B { self.options.grants } else { &[] };
            let own = [format!("10.0.{}.0/24", node + 1), format!("fd00:{}::/64", node + 1)];
            let prefixes: Vec<String> = own.into_iter().chain(granted.iter().map(ToString::to_string)).collect();
            json!({
                "name": NODES[node], "identity": identity(node),
                "noise": to_hex(&DhSecret::from_seed(&noise(node)).public().to_bytes()),
                "prefixes": prefixes,
            })
        };
        let id = |node: usize| NodeSecret::from_seed(&seed(node)).id();
        let paths: Vec<Value> = ORDERS
            .iter()
            .enumerate()
            .map(|(number, order)| {
                let mut order = order.to_vec();
                if node == B {
                    order.reverse();
                }
                let hops: Vec<Hop> = order[1..].iter().map(|node| Hop { node: id(*node), tag: TAG, expiry }).collect();
                let hash = Path::new(id(node), &hops).expect("a path").hash(Version::Standard);
                let consent = |(index, hop): (usize, &usize)| {
                    let by = if is_right(number, *hop) { *hop } else { 7 };
                    let consent = master(by).consent(&hash, index, TAG, expiry);
                    to_hex(consent.key().expose())
                };
                json!({
                    "nodes": order.iter().map(|node| json!({
                        "identity": identity(*node), "node": hex(&id(*node)), "tag": TAG.0,
                    })).collect::<Vec<_>>(),
                    "mtu": MTU, "expiry": expiry,
                    "consents": (1..).zip(&order[1..]).map(consent).collect::<Vec<_>>(),
                })
            })
            .collect();
        let links: Vec<Value> = neighbours(node)
            .into_iter()
            .map(|other| {
                json!({
                    "id": other + 1, "identity": identity(other), "node": hex(&id(other)),
                    "local": port(node, other), "remote": port(other, node),
                })
            })
            .collect();
        let file = json!({
            "identity": identity(node), "noise": to_hex(noise(node).expose()), "node": to_hex(seed(node).expose()),
            "tags": to_hex(&[0x80 + node as u8; 16]), "tag": TAG.0, "links": links,
            "members": [member(A), member(B)], "paths": paths,
        });
        self.folder.write(&format!("{}.json", NODES[node]), &file.to_string());
    }

    fn gateway(&self, node: usize) -> Gateway {
        let name = NODES[node];
        let page: SocketAddr = "127.0.0.1:8492".parse().expect("an address");
        let avoid = identity(EAST);
        let pin: Vec<String> = [2, 3, 4].map(|node| format!("\"{}\"", identity(node))).to_vec();
        let mut pin = pin;
        if node == B {
            pin.reverse();
        }
        self.folder.write(
            &format!("{name}.toml"),
            &format!(
                "[gateway]\ninterface = \"way0\"\nsuffix = \"demo\"\ndns = \"127.0.0.1:53\"\nstate = \"{name}.redb\"\n\
                 choices = \"{name}.choices\"\n{}[laboratory]\nfile = \"{name}.json\"\n\
                 [[policy]]\nname = \"fast\"\n\
                 [[policy]]\nname = \"clean\"\norder = \"longest\"\navoid = [\"{avoid}\"]\n\
                 [[policy]]\nname = \"pinned\"\npin = [{}]\n\
                 [status]\nlisten = \"{page}\"\n",
                self.options.lines[node],
                pin.join(", ")
            ),
        );
        let checked = self.folder.run(&["check", &format!("{name}.toml")]);
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
        let mut command = self.places[node].command(env!("CARGO_BIN_EXE_wayleave"));
        command.args(["run", "gateway", "--config", &format!("{name}.toml")]).current_dir(&self.folder.0);
        command.env("WAYLEAVE_TEST_FAULT", format!("{name}.fault"));
        let daemon = Daemon::start(&mut command, &self.folder.0.join(format!("{name}.log"))).expect("started");
        let mut gateway = Gateway { daemon, page, place: self.places[node].clone() };
        let begin = Instant::now();
        while gateway.status().is_null() {
            let is_there = gateway.daemon.is_running() && begin.elapsed() < TIMEOUT;
            assert!(is_there, "{name} did not start: {}", gateway.daemon.log_tail(20));
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_named_by_the_rule("gateway", &gateway.place, page);
        assert_one_screen(&gateway.place, page);
        let has_none = || gateway.json(&["show", "paths"])["paths"] == serde_json::json!([]);
        let (before, shown) = (has_none(), text(&gateway.ask(&["show", "paths"]).stdout));
        if before && has_none() {
            assert!(shown.starts_with("no paths yet") && shown.contains("`wayleave ping NAME`"), "{shown}");
        }
        gateway
    }

    fn router(&mut self, node: usize) -> &mut Router {
        &mut self.routers.iter_mut().find(|(number, _)| *number == node).expect("a forwarder").1
    }

    fn run(&self, node: usize, program: &str, arguments: &[&str]) -> Output {
        let mut command = self.places[node].command(program);
        command.args(arguments).current_dir(&self.folder.0).env("HOME", &self.folder.0).stdin(Stdio::null());
        command.output().expect("the program runs")
    }

    /// The response code of a's DNS server, and the IPv4 address of a name; none without an answer.
    fn look_up(&self, name: &str) -> Option<(ResponseCode, Option<String>)> {
        self.look_up_at("127.0.0.1:53", name)
    }

    /// The same of a server in a's place.
    fn look_up_at(&self, server: &str, name: &str) -> Option<(ResponseCode, Option<String>)> {
        let mut question = Message::query();
        question.add_query(Query::query(name.parse().expect("a name"), RecordType::A));
        let question = question.to_vec().expect("encoded");
        let octets = self.places[A].within(|| {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
            socket.set_read_timeout(Some(TIMEOUT)).expect("set");
            socket.send_to(&question, server).expect("sent");
            let mut answer = [0; 1_500];
            socket.recv(&mut answer).map(|length| answer[..length].to_vec()).unwrap_or_default()
        });
        let answer = Message::from_vec(&octets.expect("in its place")).ok()?;
        Some((answer.metadata.response_code, answer.answers.first().map(|record| record.data.to_string())))
    }

    fn address_of(&self, name: &str) -> IpAddr {
        let mut address = None;
        // While its disk is late, a gateway answers that it failed.
        eventually(&format!("{name} has an address"), || {
            address = self.look_up(name).and_then(|(_, address)| address?.parse().ok());
            address.is_some()
        });
        address.expect("an address")
    }

    fn log(&self, node: usize) -> String {
        fs::read_to_string(self.folder.0.join(format!("{}.log", NODES[node]))).unwrap_or_default()
    }
}

fn text(octets: &[u8]) -> String {
    String::from_utf8_lossy(octets).trim().to_owned()
}

#[test]
fn a_killed_gateway_leaves_nothing_in_clear() {
    if netns::enter_for_test("gateway::a_killed_gateway_leaves_nothing_in_clear").is_none() {
        return;
    }
    let mut world = World::start("gateway-killed");
    // There is a way out, and a station that would take everything.
    let ip = |arguments: &str| {
        let status = Command::new("ip").args(arguments.split(' ')).status();
        assert!(status.expect("ip runs").success(), "{arguments}");
    };
    ip("-n n-a route add default via 192.0.2.6");
    ip("-n n-a neigh replace 192.0.2.6 lladdr 02:00:00:00:00:66 dev eth0");
    ip("-n n-a -6 route add default via fe80::66 dev eth0");
    ip("-n n-a -6 neigh replace fe80::66 lladdr 02:00:00:00:00:66 dev eth0");
    let send = |world: &World, to: &str| {
        let to: IpAddr = to.parse().expect("an address");
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let result =
            world.places[A].within(|| UdpSocket::bind(any).and_then(|socket| socket.send_to(b"secret", (to, 9))));
        result.expect("in its place")
    };
    let all = ["10.0.2.1", "fd00:2::1", "198.18.0.1", "198.19.255.254", "fd77:6179:6c65::1"];
    for to in all {
        assert!(send(&world, to).is_ok(), "{to}");
    }
    world.gateways[0].daemon.kill();
    let sent = |world: &World| {
        let output = world.run(A, "cat", &["/sys/class/net/eth0/statistics/tx_packets"]);
        // Another mount of /sys shows another namespace's interfaces: ask `ip` then.
        let shown = world.run(A, "ip", &["-s", "-j", "link", "show", "eth0"]);
        let links: Value = serde_json::from_slice(&shown.stdout).unwrap_or(Value::Null);
        links[0]["stats64"]["tx"]["packets"].as_u64().unwrap_or_else(|| text(&output.stdout).parse().unwrap_or(0))
    };
    // The way out is a way out, and what goes by is seen.
    let is_clear = |frame: &[u8]| frame.windows(6).any(|octets| octets == b"secret");
    let capture = Capture::start(&NetworkNamespace::Own, is_clear).expect("a packet socket");
    let before = sent(&world);
    assert!(send(&world, "203.0.113.1").is_ok());
    assert!(sent(&world) > before, "the counter counts");
    crate::common::eventually("the capture sees it", || !capture.frames().is_empty());
    capture.clear();
    let before = sent(&world);
    for to in all {
        for _ in 0..10 {
            assert!(send(&world, to).is_err(), "{to} leaves in clear");
        }
    }
    assert_eq!(sent(&world), before);
    assert_eq!(capture.frames().len(), 0, "nothing in clear is on the link");
    // It comes back, and so does the path.
    world.gateways[0] = world.gateway(A);
    for to in all {
        assert!(send(&world, to).is_ok(), "{to}");
    }
    assert_eq!(capture.frames().len(), 0, "what is carried is sealed");
}

#[test]
fn a_disk_at_a_standstill_costs_new_names_and_nothing_else() {
    if netns::enter_for_test("gateway::a_disk_at_a_standstill_costs_new_names_and_nothing_else").is_none() {
        return;
    }
    let mut world = World::start("gateway-disk");
    let fast = world.look_up("fast.b.demo.");
    assert_eq!(fast, Some((ResponseCode::NoError, Some("198.18.0.1".to_owned()))));
    world.folder.write("a.fault", "stall store");
    crate::common::eventually("the order is read", || !world.folder.0.join("a.fault").exists());
    for name in ["clean.b.demo.", "pinned.b.demo.", "clean.b.demo."] {
        assert_eq!(world.look_up(name), Some((ResponseCode::ServFail, None)), "{name}");
    }
    assert_eq!(world.look_up("fast.b.demo."), fast, "what is durable is answered");
    world.gateways[0].daemon.signal(rustix::process::Signal::HUP).expect("sent");
    crate::common::eventually("reloaded", || world.log(A).contains("configuration reloaded"));
    let ping = world.gateways[0].ask(&["ping", "fast.b.demo"]);
    assert!(ping.status.success(), "paths, proofs and sessions: {}", text(&ping.stderr));
    // With a disk that writes again each pair has its own address, and the one of before.
    world.gateways[0].daemon.kill();
    world.gateways[0] = world.gateway(A);
    let addresses = ["pinned.b.demo.", "clean.b.demo.", "fast.b.demo."].map(|name| world.address_of(name).to_string());
    assert_eq!(addresses, ["198.18.0.2", "198.18.0.3", "198.18.0.1"]);
}

#[test]
fn a_connection_by_name_outlives_its_gateway_and_the_server_may_speak_first() {
    if netns::enter_for_test("gateway::a_connection_by_name_outlives_its_gateway_and_the_server_may_speak_first")
        .is_none()
    {
        return;
    }
    let mut world = World::start("gateway-idle");
    let server = world.places[B].within(|| TcpListener::bind("10.0.2.1:7")).expect("in its place").expect("bound");
    let name = world.address_of("clean.b.demo.");
    let client =
        world.places[A].within(move || TcpStream::connect((name, 7))).expect("in its place").expect("connected");
    let (connection, from) = server.accept().expect("a connection");
    assert_eq!(from.ip().to_string(), "10.0.1.1");
    let (mut client, mut connection) = (client, connection);
    for end in [&client, &connection] {
        end.set_read_timeout(Some(TIMEOUT)).expect("set");
    }
    let mut octets = [0; 5];
    client.write_all(b"hello").expect("sent");
    connection.read_exact(&mut octets).expect("received");
    crate::common::eventually("the connection is on disk", || {
        world.gateways[0].status()["flows_recorded"].as_u64().is_some_and(|count| count > 0)
    });
    world.gateways[0].daemon.kill();
    world.gateways[0] = world.gateway(A);
    connection.write_all(b"still").expect("sent");
    client.read_exact(&mut octets).expect("what the server says reaches the client");
    assert_eq!(&octets, b"still");
    client.write_all(b"going").expect("sent");
    connection.read_exact(&mut octets).expect("and the other way");
    assert_eq!((&octets, world.gateways[0].dropped("flow-conflict")), (b"going", 0));
}

#[test]
fn a_download_by_name_goes_on_when_its_gateway_is_stopped_or_killed_and_starts_again() {
    let test = "gateway::a_download_by_name_goes_on_when_its_gateway_is_stopped_or_killed_and_starts_again";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let mut world = World::start("gateway-download");
    serve(&world.places[B], &["10.0.2.1:8080"], &page(64 << 20), &world.folder.0);
    let name = world.address_of("clean.b.demo.").to_string();
    let mut download = Download::start(&world.places[A], &name, &world.folder.0);
    download.goes_on("a download", &|| world.log(A));
    eventually("the connection is on disk", || {
        world.gateways[0].status()["flows_recorded"].as_u64().is_some_and(|count| count > 0)
    });
    assert!(world.gateways[0].daemon.stop(TIMEOUT), "{}", world.log(A));
    world.gateways[0] = world.gateway(A);
    download.goes_on("it goes on after a stop", &|| world.log(A));
    world.gateways[0].daemon.kill();
    world.gateways[0] = world.gateway(A);
    download.goes_on("it goes on after a kill", &|| world.log(A));
    assert_eq!(world.gateways[0].dropped("flow-conflict"), 0);
}

#[test]
fn the_machines_routes_stay_and_go_first_and_what_was_added_is_taken_back() {
    if netns::enter_for_test("gateway::the_machines_routes_stay_and_go_first_and_what_was_added_is_taken_back")
        .is_none()
    {
        return;
    }
    let mut world = World::start("gateway-machine");
    let stop = |world: &mut World| {
        world.gateways[0].daemon.signal(rustix::process::Signal::TERM).expect("sent");
        crate::common::eventually("a stops", || !world.gateways[0].daemon.is_running());
    };
    stop(&mut world);
    let ip = |world: &World, arguments: &str| {
        let output = world.run(A, "ip", &arguments.split(' ').collect::<Vec<_>>());
        (output.status.success(), text(&output.stdout))
    };
    for own in ["10.0.2.0/24 via 192.0.2.6", "10.0.2.128/25 via 192.0.2.6", "default via 192.0.2.6"] {
        assert!(ip(&world, &format!("route add {own}")).0, "{own}");
    }
    assert!(ip(&world, "-6 route add fd00:2::/64 via fe80::66 dev eth0").0);
    let all = |world: &World| {
        let tables = ["-4 rule", "-6 rule", "-4 route show table all", "-6 route show table all"];
        tables.map(|table| ip(world, table).1)
    };
    // The interface's own addresses are in it as well.
    let main = |world: &World| {
        let tables = ["-4 route show table main", "-6 route show table main"].map(|table| ip(world, table).1);
        tables.map(|table| table.lines().filter(|line| !line.contains("way0")).map(str::to_owned).collect::<Vec<_>>())
    };
    let (all_before, main_before) = (all(&world), main(&world));
    world.gateways[0] = world.gateway(A);
    assert_eq!(main(&world), main_before);
    let leads = |world: &World, to: &str, by: &str| {
        let (_, route) = ip(world, &format!("route get {to}"));
        assert!(route.contains(by), "{to}: {route}");
    };
    for own in ["10.0.2.1", "10.0.2.200", "203.0.113.1", "198.18.0.1 mark 20520", "10.0.2.1 mark 20520"] {
        leads(&world, own, "via 192.0.2.6");
    }
    leads(&world, "fd00:2::1", "via fe80::66");
    let covered = |world: &World, prefix: &str| {
        let shown = world.gateways[0].json(&["show", "routes"]);
        let rows = shown["routes"].as_array().cloned().unwrap_or_default();
        rows.iter().find(|row| row["prefix"] == prefix).map(|row| row["covered_by"].clone()).expect(prefix)
    };
    assert_eq!(covered(&world, "10.0.2.0/24"), json!(["10.0.2.0/24", "10.0.2.128/25"]));
    assert_eq!(covered(&world, "fd00:2::/64"), json!(["fd00:2::/64"]));
    assert!(ip(&world, "route del 10.0.2.0/24").0);
    assert_eq!(covered(&world, "10.0.2.0/24"), json!(["10.0.2.128/25"]));
    for overlay in ["10.0.2.1", "198.18.0.1", "fd77:6179:6c65::1"] {
        leads(&world, overlay, "dev way0");
    }
    leads(&world, "10.0.2.200", "via 192.0.2.6");
    assert!(world.gateways[0].ask(&["ping", "fast.b.demo"]).status.success());
    // Only what is accepted is routed.
    let file = world.folder.0.join("a.toml");
    let config = fs::read_to_string(&file).expect("a configuration");
    world.folder.write("a.toml", &config.replace("state = ", "accept = [\"fd00::/8\"]\nstate = "));
    world.gateways[0].daemon.signal(rustix::process::Signal::HUP).expect("sent");
    let unaccepted = |world: &World| world.gateways[0].status()["unaccepted"].clone();
    crate::common::eventually("reloaded", || unaccepted(&world) == json!(["10.0.2.0/24"]));
    leads(&world, "10.0.2.1", "via 192.0.2.6");
    leads(&world, "198.18.0.1", "dev way0");
    // A killed gateway leaves what keeps packets of the overlay from leaving in clear, and nothing else; the next one takes it over.
    world.gateways[0].daemon.kill();
    assert!(!ip(&world, "route get 198.18.0.1").0 && !ip(&world, "route get fd77:6179:6c65::1").0);
    leads(&world, "10.0.2.1", "via 192.0.2.6");
    world.gateways[0] = world.gateway(A);
    leads(&world, "10.0.2.1", "dev way0");
    stop(&mut world);
    assert!(ip(&world, "route add 10.0.2.0/24 via 192.0.2.6").0);
    assert_eq!(all(&world), all_before);
}

#[test]
fn a_bogus_consent_dies_at_the_node_that_did_not_give_it_and_why_says_that_nobody_answers() {
    let test = "gateway::a_bogus_consent_dies_at_the_node_that_did_not_give_it_and_why_says_that_nobody_answers";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let mut world = World::start("gateway-bogus");
    // Node w2 did not consent to the pinned path.
    world.write_file(A, &|number, node| (number, node) != (0, 3));
    let reloads = |world: &World| world.log(A).matches("configuration reloaded").count();
    world.gateways[0].daemon.signal(rustix::process::Signal::HUP).expect("sent");
    crate::common::eventually("reloaded", || reloads(&world) > 0);
    let ping = world.gateways[0].ask(&["ping", "pinned.b.demo"]);
    assert!(!ping.status.success());
    crate::common::eventually("w2 refuses", || world.router(3).count("reasons", "consent") > 0);
    assert_eq!(world.router(4).count("reasons", "consent"), 0);
    let why = text(&world.gateways[0].ask(&["why", "pinned.b.demo"]).stdout);
    assert!(why.contains("has not answered"), "{why}");
    assert_eq!(world.gateways[1].dropped("seal"), 0);
}

#[test]
fn what_a_user_pins_and_avoids_holds_at_once_and_after_a_restart_until_it_is_undone() {
    let test = "gateway::what_a_user_pins_and_avoids_holds_at_once_and_after_a_restart_until_it_is_undone";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let mut world = World::start("gateway-decided");
    let decide = |world: &World, arguments: &[&str]| {
        let all = [&["path"], arguments, &["--config", "a.toml"]].concat();
        let output = world.run(A, env!("CARGO_BIN_EXE_wayleave"), &all);
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    };
    let nodes = |world: &World| {
        let answer = world.gateways[0].json(&["ping", "fast.b.demo"]);
        answer["nodes"].as_array().map(Vec::len)
    };
    let restart = |world: &mut World| {
        world.gateways[0].daemon.kill();
        world.gateways[0] = world.gateway(A);
    };
    assert_eq!(nodes(&world), Some(3), "over e, the shortest");
    let east = identity(EAST);
    let west: Vec<String> = [2, 3, 4].map(identity).to_vec();
    let (is_done, said) = decide(&world, &["avoid", &east]);
    assert!(is_done, "{said}");
    assert_eq!(nodes(&world), Some(4), "the shortest of the others");
    let (is_done, said) = decide(&world, &["pin", "fast.b.demo", &west[0], &west[1], &west[2]]);
    assert!(is_done && said.contains("goes over"), "{said}");
    assert_eq!(nodes(&world), Some(5));
    let why = text(&world.gateways[0].ask(&["why", "fast.b.demo"]).stdout);
    assert!(why.contains("pinned: ") && why.contains(&format!("avoided: {east}")), "{why}");
    let list = text(&world.gateways[0].ask(&["path", "list"]).stdout);
    assert!(list.contains("pinned for fast") && list.contains(&format!("avoided for {east}")), "{list}");
    assert_eq!(world.gateways[0].status()["pins"], 1);
    restart(&mut world);
    assert_eq!(nodes(&world), Some(5), "it survives");
    // No path is left, and it says so.
    assert!(decide(&world, &["avoid", &west[0]]).0);
    let refused = world.gateways[0].ask(&["ping", "fast.b.demo"]);
    assert!(!refused.status.success() && text(&refused.stderr).contains("path avoid"), "{}", text(&refused.stderr));
    for (wrong, expected) in [
        (&["allow", "nobody"][..], "not avoided"),
        (&["avoid", "nobody"], "no member"),
        (&["unpin", "clean.b.demo"], "not pinned"),
    ] {
        let (is_done, said) = decide(&world, wrong);
        assert!(!is_done && said.contains(expected), "{wrong:?}: {said}");
    }
    for undo in [&["allow", &west[0]][..], &["allow", &east], &["unpin", "fast.b.demo"]] {
        let (is_done, said) = decide(&world, undo);
        assert!(is_done, "{undo:?}: {said}");
    }
    restart(&mut world);
    assert_eq!(nodes(&world), Some(3), "as the policy says");
    // What no path can satisfy is refused, and what no known one does is said.
    let (own, other) = (identity(A), identity(B));
    for (wrong, expected) in [
        (&["avoid", &own][..], "is this gateway itself"),
        (&["pin", "fast.b.demo", &own], "is this gateway itself"),
        (&["pin", "fast.b.demo", &west[0], &other], "the end of the path"),
        (&["pin", "fast.b.demo", &west[0], &west[0]], "is named twice"),
        (&["pin", "clean.b.demo", &east], "policy clean avoids"),
        (&["pin", "pinned.b.demo", &west[0]], "policy pinned pins another path itself"),
    ] {
        let (is_done, said) = decide(&world, wrong);
        let said = said.replace('│', " ").split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(!is_done && said.contains(expected), "{wrong:?}: {said}");
    }
    let (is_done, said) = decide(&world, &["pin", "fast.b.demo", &west[1], &west[0]]);
    assert!(is_done && said.contains("warning: no such path"), "{said}");
    let (is_done, said) = decide(&world, &["unpin", "fast.b.demo"]);
    assert!(is_done, "{said}");
    assert_eq!(nodes(&world), Some(3));
    // The path in use is kept, and no warning is due.
    let (is_done, said) = decide(&world, &["pin", "fast.b.demo"]);
    assert!(is_done && said.contains(&format!("goes over {east} only")) && !said.contains("warning"), "{said}");
    assert!(decide(&world, &["unpin", "fast.b.demo"]).0);
    // What is wrong with the file changes nothing.
    world.folder.write("a.choices", "avoid = 1");
    crate::common::eventually("the fault is reported", || world.log(A).contains("decided before stays in force"));
    assert_eq!(nodes(&world), Some(3));
}

#[test]
fn a_policy_that_names_nobody_is_told_by_the_log_the_status_and_why() {
    let test = "gateway::a_policy_that_names_nobody_is_told_by_the_log_the_status_and_why";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let world = World::start("gateway-nobody");
    let problems = |world: &World| world.gateways[0].status()["problems"].to_string();
    assert!(!problems(&world).contains("no known member is called so"), "{}", problems(&world));
    let file = world.folder.0.join("a.toml");
    let config = fs::read_to_string(&file).expect("a configuration");
    let config = config.replace("name = \"fast\"\n", "name = \"fast\"\nrequire = [\"ghost\"]\n");
    world.folder.write("a.toml", &config.replace("avoid = [", "avoid = [\"phantom\", "));
    world.gateways[0].daemon.signal(rustix::process::Signal::HUP).expect("sent");
    let avoid = "`avoid` of policy clean names `phantom`, and no known member is called so, so no path over a node that is not known here is used";
    let require = "`require` of policy fast names `ghost`, and no known member is called so, so no path satisfies it";
    eventually("the log says so", || [avoid, require].iter().all(|line| world.log(A).contains(line)));
    let events = world.gateways[0].json(&["show", "events"]);
    assert_eq!(events.to_string().matches("name-unresolved").count(), 2, "{events}");
    assert!([avoid, require].iter().all(|line| problems(&world).contains(line)), "{}", problems(&world));
    // Each policy has its own.
    for (policy, line) in [("clean", avoid), ("fast", require)] {
        let name = format!("{policy}.b.demo");
        assert_eq!(world.gateways[0].json(&["why", &name])["unresolved"], json!([line]));
        let why = text(&world.gateways[0].ask(&["why", &name]).stdout);
        assert!(why.contains(&format!("not resolved: {line}")), "{why}");
    }
}

//! Two gateways over ICING routers, as processes in network namespaces: applications that know nothing of it.
//!
//! Paths and consents come from a file here, in the place of path and consent servers.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wayleave_crypto::dh::DhSecret;
use wayleave_crypto::hash::sha256;
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_crypto::sign::SigningKey;
use wayleave_lab::netns::{self, Network, NetworkNamespace};
use wayleave_lab::process::Daemon;
use wayleave_lab::routers::{IPERF3, Installation, SSHD, default_cache, locate_or_fetch_router};
use wayleave_packet::icing::header::{Hop, Path, Tag, Version};
use wayleave_packet::icing::mint::{NodeSecret, TagMaster};
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::identity::to_hex;

use crate::common::metrics::assert_named_by_the_rule;
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
const PATIENCE: Duration = Duration::from_secs(30);

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
    network: Network,
    places: Vec<NetworkNamespace>,
    routers: Vec<(usize, Router)>,
    gateways: Vec<Gateway>,
    folder: Folder,
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
        let network = Network::new().expect("a network");
        let folder = Folder::new(name);
        let places: Vec<NetworkNamespace> = (0..NODES.len())
            .map(|node| {
                network.attach(&format!("n-{}", NODES[node]), &[format!("{}/24", address(node))]).expect("a namespace")
            })
            .collect();
        let mut world = Self { network, places, routers: Vec::new(), gateways: Vec::new(), folder };
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
            json!({
                "name": NODES[node], "identity": identity(node),
                "noise": to_hex(&DhSecret::from_seed(&noise(node)).public().to_bytes()),
                "prefixes": [format!("10.0.{}.0/24", node + 1), format!("fd00:{}::/64", node + 1)],
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
                 [laboratory]\nfile = \"{name}.json\"\n\
                 [[policy]]\nname = \"fast\"\n\
                 [[policy]]\nname = \"clean\"\norder = \"longest\"\navoid = [\"{avoid}\"]\n\
                 [[policy]]\nname = \"pinned\"\npin = [{}]\n\
                 [status]\nlisten = \"{page}\"\n",
                pin.join(", ")
            ),
        );
        let checked = self.folder.run(&["check", &format!("{name}.toml")]);
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
        let mut command = self.places[node].command(env!("CARGO_BIN_EXE_wayleave"));
        command.args(["run", "gateway", "--config", &format!("{name}.toml")]).current_dir(&self.folder.0);
        let daemon = Daemon::start(&mut command, &self.folder.0.join(format!("{name}.log"))).expect("started");
        let mut gateway = Gateway { daemon, page, place: self.places[node].clone() };
        let begin = Instant::now();
        while gateway.status().is_null() {
            let is_there = gateway.daemon.is_running() && begin.elapsed() < PATIENCE;
            assert!(is_there, "{name} did not start: {}", gateway.daemon.log_tail(20));
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_named_by_the_rule("gateway", &gateway.place, page);
        gateway
    }

    fn router(&mut self, node: usize) -> &mut Router {
        &mut self.routers.iter_mut().find(|(number, _)| *number == node).expect("a forwarder").1
    }

    /// Packets that a forwarder sent on.
    fn forwarded(&mut self, node: usize) -> u64 {
        self.router(node).count("decided", "forwarded")
    }

    fn run(&self, node: usize, program: &str, arguments: &[&str]) -> Output {
        let mut command = self.places[node].command(program);
        command.args(arguments).current_dir(&self.folder.0).env("HOME", &self.folder.0).stdin(Stdio::null());
        command.output().expect("the program runs")
    }

    fn log(&self, node: usize) -> String {
        fs::read_to_string(self.folder.0.join(format!("{}.log", NODES[node]))).unwrap_or_default()
    }
}

fn text(octets: &[u8]) -> String {
    String::from_utf8_lossy(octets).trim().to_owned()
}

fn fetched(what: &wayleave_lab::routers::RouterPackage, test: &str) -> Option<Installation> {
    match locate_or_fetch_router(what, &default_cache(), &mut |_| ()) {
        Ok(found) => Some(found),
        Err(error) => {
            netns::skipped(&format!("{test}: {error}"));
            None
        }
    }
}

/// Lets every namespace ask its own gateway for names.
pub(crate) fn use_names(network: &Network) {
    let (own, system) = (network.state().join("resolv.conf"), "/etc/resolv.conf");
    fs::write(&own, "nameserver 127.0.0.1\noptions timeout:1 attempts:2\n").expect("written");
    let mount = Command::new("mount").arg("--bind").arg(&own).arg(system).status();
    assert!(mount.expect("mount runs").success());
}

/// A server of one page behind gateway b, on both families; `/part` is its first fifth.
pub(crate) fn serve(place: &NetworkNamespace, page: &[u8]) {
    for at in ["10.0.2.1:8080", "[fd00:2::1]:8080"] {
        let listener = place.within(|| TcpListener::bind(at)).expect("in its place").expect("an address");
        let page = page.to_vec();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let page = page.clone();
                std::thread::spawn(move || {
                    let mut stream = stream;
                    let mut request = [0; 4096];
                    let length = stream.read(&mut request).unwrap_or(0);
                    let is_part = request[..length].starts_with(b"GET /part");
                    let page = &page[..if is_part { page.len() / 5 } else { page.len() }];
                    let head =
                        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", page.len());
                    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(page));
                });
            }
        });
    }
}

fn page(octets: usize) -> Vec<u8> {
    (0..octets as u32 / 4).flat_map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()).collect()
}

/// `curl` of the page by both families; names must be in use.
#[test]
fn curl_by_name_has_every_octet_over_three_forwarders_in_both_families() {
    if netns::enter_for_test("gateway::curl_by_name_has_every_octet_over_three_forwarders_in_both_families").is_none() {
        return;
    }
    let mut world = World::start("gateway-curl");
    use_names(&world.network);
    let page = page(100 << 20);
    // A fifth of the page is enough for the others.
    let expected = [&page[..], &page[..page.len() / 5]].map(|page| to_hex(&sha256(page)));
    serve(&world.places[B], &page);
    let cases = [("-4", "clean.b.demo", 0), ("-6", "clean.b.demo", 1), ("-4", "fast.b.demo", 1)];
    for (family, name, part) in cases {
        let before: Vec<u64> = (2..NODES.len()).map(|node| world.forwarded(node)).collect();
        let begin = Instant::now();
        let url = format!("http://{name}:8080/{}", ["page", "part"][part]);
        let output = world.run(A, "curl", &[family, "-sS", "--max-time", "120", "-o", "page", &url]);
        assert!(output.status.success(), "{}\n{}\n{}", text(&output.stderr), world.log(A), world.gateways[0].status());
        let octets = fs::read(world.folder.0.join("page")).expect("the page");
        assert_eq!(to_hex(&sha256(&octets)), expected[part]);
        let rate = 8.0 * octets.len() as f64 / begin.elapsed().as_secs_f64() / 1e6;
        eprintln!("curl {family} {name}: {rate:.0} Mb/s");
        let passed: Vec<u64> =
            (2..NODES.len()).zip(before).map(|(node, before)| world.forwarded(node) - before).collect();
        let is_clean = name.starts_with("clean");
        assert!(passed[..3].iter().all(|count| (*count > 10_000) == is_clean), "{passed:?}");
        assert!(if is_clean { passed[3] < 100 } else { passed[3] > 10_000 }, "{passed:?}");
    }
    for gateway in &world.gateways {
        let status = gateway.status();
        assert_eq!(status["dropped"]["inner-source"], 0);
        assert!(status["peers"][0]["sessions"].as_u64() >= Some(1), "{status}");
    }
    // What the operator sees.
    let gateway = &world.gateways[0];
    let names = gateway.json(&["show", "names"]);
    assert_eq!(names["names"][0]["name"], "clean.b.demo");
    let why = gateway.json(&["why", "clean.b.demo"]);
    assert_eq!((&why["state"], why["active"]["nodes"].as_array().map(Vec::len)), (&json!("ready"), Some(5)));
    let ping = gateway.ask(&["ping", "pinned.b.demo"]);
    assert!(
        ping.status.success() && text(&ping.stdout).contains("ms"),
        "{} {}",
        text(&ping.stdout),
        text(&ping.stderr)
    );
    let trace = text(&gateway.ask(&["path", "trace", "clean.b.demo"]).stdout);
    assert_eq!(
        (trace.lines().count(), trace.lines().next(), trace.lines().last()),
        (5, Some("a"), Some("b")),
        "{trace}"
    );
    let list = text(&gateway.ask(&["path", "list"]).stdout);
    assert!(list.contains("active of clean"), "{list}");
    for nothing in ["clean.c.demo", "none.b.demo", "b.demo", "example.org"] {
        let output = world.run(A, "curl", &["-sS", "--max-time", "5", &format!("http://{nothing}:8080/")]);
        assert_eq!(output.status.code(), Some(6), "{nothing}: no such host");
    }
}

/// A real sshd, unmodified, reached by name; then a forwarder dies, and the session goes on.
#[test]
fn ssh_by_name_works_and_outlives_a_forwarder() {
    let test = "gateway::ssh_by_name_works_and_outlives_a_forwarder";
    if netns::inside().is_none() && fetched(&SSHD, test).is_none() {
        return;
    }
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let Some(sshd) = fetched(&SSHD, test) else { return };
    let mut world = World::start("gateway-ssh");
    use_names(&world.network);
    // The server wants a user to be harmless as; inside there is only one.
    let passwd = fs::read_to_string("/etc/passwd").expect("users");
    fs::write("/etc/passwd", passwd + "sshd:x:0:0::/run/sshd:/bin/false\n").expect("written");
    fs::create_dir_all("/run/sshd").expect("a folder");
    for key in ["host", "user"] {
        let made = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-f"])
            .arg(world.folder.0.join(key))
            .status();
        assert!(made.expect("ssh-keygen runs").success());
    }
    let folder = world.folder.0.display().to_string();
    fs::copy(world.folder.0.join("user.pub"), "/run/sshd/authorized").expect("copied");
    fs::set_permissions("/run/sshd/authorized", fs::Permissions::from_mode(0o600)).expect("mode");
    world.folder.write(
        "sshd_config",
        &format!(
            "HostKey {folder}/host\nAuthorizedKeysFile /run/sshd/authorized\nPermitRootLogin yes\nUsePAM no\nStrictModes no\n\
             PidFile none\nPasswordAuthentication no\nListenAddress 0.0.0.0\nListenAddress ::\nUseDNS no\n"
        ),
    );
    let mut command = world.places[B].command(sshd.program("sshd"));
    sshd.prepare(&mut command);
    command.args(["-D", "-e", "-f", &format!("{folder}/sshd_config")]);
    let server = Daemon::start(&mut command, &world.folder.0.join("sshd.log")).expect("started");
    let options = [
        "-i",
        "user",
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
        "UserKnownHostsFile=/dev/null",
        "-o",
        "LogLevel=ERROR",
        "-o",
        "ConnectTimeout=10",
    ];
    let ssh = |world: &World, more: &[&str]| {
        let output = world.run(A, "ssh", &[&options[..], more].concat());
        assert!(output.status.success(), "{}\n{}\n{}", text(&output.stderr), server.log_tail(20), world.log(A));
        text(&output.stdout)
    };
    let begin = Instant::now();
    assert_eq!(ssh(&world, &["-4", "root@clean.b.demo", "echo $SSH_CONNECTION"]).split(' ').next(), Some("10.0.1.1"));
    eprintln!("the first session took {:?}", begin.elapsed());
    assert_eq!(ssh(&world, &["-6", "root@fast.b.demo", "echo $SSH_CONNECTION"]).split(' ').next(), Some("fd00:1::1"));
    // A session of four seconds; the forwarder in the middle dies in the first.
    let east = world.forwarded(EAST);
    let place = world.places[A].clone();
    let mut command = place.command("ssh");
    let loops = "for n in $(seq 40); do echo $n; sleep 0.1; done";
    command.args(options).args(["root@clean.b.demo", loops]).current_dir(&world.folder.0);
    let child: Child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("ssh runs");
    std::thread::sleep(Duration::from_millis(1_500));
    let before = world.forwarded(4);
    world.router(3).kill();
    let begin = Instant::now();
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", world.log(A));
    let lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
    assert_eq!(lines, (1..=40).map(|n: u32| n.to_string()).collect::<Vec<_>>());
    eprintln!("{:?} after the kill the session ended well", begin.elapsed());
    assert!(world.forwarded(4) > before);
    assert!(world.forwarded(EAST) - east < 50, "the spare path keeps the policy");
    let status = world.gateways[0].status();
    assert!(status["failovers"].as_u64() >= Some(1) && status["dead"].as_u64() >= Some(1), "{status}");
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
    // The way out is a way out.
    let before = sent(&world);
    assert!(send(&world, "203.0.113.1").is_ok());
    assert!(sent(&world) > before, "the counter counts");
    let before = sent(&world);
    for to in all {
        for _ in 0..10 {
            assert!(send(&world, to).is_err(), "{to} leaves in clear");
        }
    }
    assert_eq!(sent(&world), before);
    // It comes back, and so does the path.
    world.gateways[0] = world.gateway(A);
    for to in all {
        assert!(send(&world, to).is_ok(), "{to}");
    }
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
fn iperf3_runs_in_both_directions() {
    let test = "gateway::iperf3_runs_in_both_directions";
    if netns::inside().is_none() && fetched(&IPERF3, test).is_none() {
        return;
    }
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let Some(iperf) = fetched(&IPERF3, test) else { return };
    let world = World::start("gateway-iperf");
    use_names(&world.network);
    let mut command = world.places[B].command(iperf.program("iperf3"));
    iperf.prepare(&mut command);
    let _server = Daemon::start(command.args(["-s"]), &world.folder.0.join("iperf.log")).expect("started");
    for more in [&[][..], &["-R"]] {
        let mut command = world.places[A].command(iperf.program("iperf3"));
        iperf.prepare(&mut command);
        let output = command.args(["-c", "clean.b.demo", "-t", "1", "-J"]).args(more).output().expect("iperf3 runs");
        let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let rate = result["end"]["sum_received"]["bits_per_second"].as_f64().unwrap_or(0.0) / 1e6;
        eprintln!("iperf3 {more:?}: {rate:.0} Mb/s");
        assert!(rate > 20.0, "{result}");
    }
}

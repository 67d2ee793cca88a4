//! Members anywhere.
//!
//! ICC, links: two gateways, each behind a NAT of its own (nftables masquerade) that takes another port at every flush, one of them with
//! IPv6 alone and a link of 1,280 octets; open forwarders that list neither. Pages by name both ways, and a command by `ssh`; the table of the NAT flushed and the gateway's address changed
//! under a transfer, which goes on; the forwarder killed and restarted; `show links` says where everybody is. The forwarders give their
//! consent server the keys of their tags by a link, also after it was killed.
//! ICC, a NAT's new port: at each end in turn, under `iperf3` and numbered datagrams both ways: what is lost is at most what a second sends.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wayleave_lab::netns::{self, Network, NetworkNamespace};
use wayleave_lab::process::Daemon;
use wayleave_lab::routers::{IPERF3, Installation, SSHD};

use super::applications::{SSH, fetched, has, serve, sshd};
use super::harness::{Neighbour, Realm, Running};
use super::world::{addresses_of, use_names};
use crate::common::{eventually, text};

/// The address of everything but the gateways, in both families.
const HERE: &str = "192.0.2.250";
const HERE_V6: &str = "[2001:db8::fa]";

/// Datagrams of a [`Flow`] and of `iperf3` in a second.
const RATE: u64 = 100;
/// What a new port may cost: a second until the next message of the session, and a quarter for the round of the challenge; three times
/// that for a machine that does other things.
const LOST: u64 = 3 * (RATE + RATE / 4);

/// A network behind a NAT.
pub(super) struct Home {
    pub(super) box_: NetworkNamespace,
    pub(super) inside: NetworkNamespace,
}

fn run(place: &NetworkNamespace, line: &str) {
    let mut words = line.split(' ');
    let output = place.command(words.next().expect("a program")).args(words).output().expect("it runs");
    assert!(output.status.success(), "{line}: {}", text(&output.stderr));
}

impl Home {
    /// The NAT has the address `number` outside; inside `(box, host)` of each family.
    pub(super) fn new(network: &Network, name: &str, number: u8, inside: &[(&str, &str)]) -> Self {
        let (name_box, name_in) = (format!("x-{name}"), format!("n-{name}"));
        let outside = [format!("192.0.2.{number}/24"), format!("2001:db8::{number:x}/64")];
        let box_ = network.attach(&name_box, &outside).expect("a namespace");
        let place = network.apart(&name_in).expect("a namespace");
        for (place, command) in
            [(&box_, "sysctl -q -w net.ipv4.ip_forward=1"), (&box_, "sysctl -q -w net.ipv6.conf.all.forwarding=1")]
        {
            run(place, command);
        }
        for (number, (gateway, host)) in inside.iter().enumerate() {
            if number == 0 {
                network.join("in0", (&name_box, gateway), (&name_in, host)).expect("a link");
            } else {
                run(&box_, &format!("ip addr add {gateway} dev in0 nodad"));
                run(&place, &format!("ip addr add {host} dev in0 nodad"));
            }
            let gateway = gateway.split('/').next().unwrap_or_default();
            let family = if gateway.contains(':') { "-6" } else { "-4" };
            run(&place, &format!("ip {family} route add default via {gateway}"));
        }
        let rules = "table inet nat { chain out { type nat hook postrouting priority srcnat; oifname \"eth0\" masquerade fully-random; }; }";
        let output = box_.command("nft").arg(rules).output().expect("nft runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        Self { box_, inside: place }
    }

    /// The NAT forgets all that it knows.
    fn flush(&self) {
        let output = self.box_.command("conntrack").arg("-F").output().expect("conntrack runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
}

pub(super) struct Gateway {
    name: &'static str,
    pub(super) place: NetworkNamespace,
    pub(super) daemon: Daemon,
}

impl Gateway {
    /// Joins with a provider that it alone names, and starts.
    pub(super) fn start(
        realm: &Realm,
        place: &NetworkNamespace,
        (name, number): (&'static str, u8),
        consent: &str,
        by: &str,
        local: &str,
    ) -> Self {
        Self::join(realm, (name, number), &[], consent, by, local);
        Self::run(realm, place, name)
    }

    /// Joins with prefixes of its own, by its number, and `more`.
    pub(super) fn join(
        realm: &Realm,
        (name, number): (&'static str, u8),
        more: &[&str],
        consent: &str,
        by: &str,
        local: &str,
    ) {
        let (v4, v6) = (format!("10.0.{number}.0/24"), format!("fd00:{number}::/64"));
        let prefixes = [v4.as_str(), v6.as_str()].into_iter().chain(more.iter().copied());
        let prefixes: Vec<&str> = prefixes.flat_map(|prefix| ["--prefix", prefix]).collect();
        let token = realm.invite(&[&[name, "--role", "gateway"], &prefixes[..]].concat());
        realm.folder.ok(&["join", &token, "--dir", name, "--consent", consent, "--status", "127.0.0.1:8492"]);
        realm.edit(&format!("{name}/gateway.toml"), |text| {
            let text = text.replace("127.0.0.1:5354\"\n# Their", "127.0.0.1:53\"\n# Their");
            let text = text.replace("#lifetime_minutes = 5", "lifetime_minutes = 1");
            format!(
                "{text}\n[[overlay.neighbour]]\nnode = \"{by}\"\nrelationship = \"provider\"\ninterface = 1\n{local}"
            )
        });
    }

    /// Starts one that has joined.
    pub(super) fn run(realm: &Realm, place: &NetworkNamespace, name: &'static str) -> Self {
        let folder = realm.path(name);
        let mut command = place.command(env!("CARGO_BIN_EXE_wayleave"));
        command.args(["run", "gateway", "--config", "gateway.toml"]).current_dir(&folder);
        let daemon = Daemon::start(&mut command, &folder.join("log")).expect("started");
        let mut gateway = Self { name, place: place.clone(), daemon };
        eventually(&format!("{name} starts"), || {
            assert!(gateway.daemon.is_running(), "{}", gateway.daemon.log_tail(20));
            !gateway.json(&["show", "status"]).is_null()
        });
        gateway
    }

    pub(super) fn ask(&self, arguments: &[&str]) -> String {
        let mut command = self.place.command(env!("CARGO_BIN_EXE_wayleave"));
        let output = command.args(arguments).args(["--url", "127.0.0.1:8492"]).output().expect("the program runs");
        text(&output.stdout)
    }

    pub(super) fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.ask(&[arguments, &["--json"]].concat())).unwrap_or_default()
    }

    pub(super) fn log(&self) -> String {
        format!("{}: {}\n{}", self.name, self.daemon.log_tail(20), self.json(&["show", "links"]))
    }
}

/// The link to a node, as a process shows it.
pub(super) fn link(shown: &Value, node: &str) -> Value {
    let links = shown["links"].as_array().cloned().unwrap_or_default();
    links.into_iter().find(|link| link["node"] == node).unwrap_or_default()
}

/// A download of many seconds, and its octets so far. It reads slowly by little buffers, so that all that it has came lately.
pub(crate) struct Download(Child, std::path::PathBuf);

const READER: &str = "
import socket, sys, time
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)
address = None
while not address:
    try:
        address = socket.gethostbyname(sys.argv[1])
    except socket.gaierror as error:
        # What the gateway answers while its disk is late.
        if error.errno != socket.EAI_AGAIN: raise
s.connect((address, 8080))
s.sendall(b'GET /page HTTP/1.0\\r\\n\\r\\n')
count = 0
while data := s.recv(8192):
    count += len(data)
    open(sys.argv[2], 'w').write(str(count))
    time.sleep(0.02)
";

impl Download {
    pub(crate) fn start(place: &NetworkNamespace, host: &str, folder: &std::path::Path) -> Self {
        let file = folder.join("download");
        let mut command = place.command("python3");
        command.args(["-c", READER, host]).arg(&file);
        Self(command.stdin(Stdio::null()).spawn().expect("python3 runs"), file)
    }

    fn octets(&self) -> u64 {
        std::fs::read_to_string(&self.1).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Waits until so many more octets have come.
    pub(crate) fn goes_on(&mut self, what: &str, logs: &dyn Fn() -> String) {
        let (until, begin) = (self.octets() + 300_000, std::time::Instant::now());
        let is_there = std::panic::catch_unwind(|| eventually(what, || self.octets() >= until));
        let over = self.0.try_wait().expect("a child");
        assert!(is_there.is_ok() && over.is_none(), "{what}: {over:?} after {} octets: {}", self.octets(), logs());
        eprintln!("{what}: 300 kB more after {:?}", begin.elapsed());
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Numbered datagrams from one gateway to the other, [`RATE`] a second, and which of them came when.
struct Flow {
    name: &'static str,
    sent: Arc<AtomicU64>,
    came: Arc<Mutex<Vec<(u64, Instant)>>>,
    ends: Arc<AtomicBool>,
}

impl Flow {
    fn start(name: &'static str, from: &Gateway, to: &Gateway, address: IpAddr) -> Self {
        let open = |gateway: &Gateway, at: &str| {
            gateway.place.within(|| UdpSocket::bind(at)).expect("in its place").expect("a port")
        };
        let (source, sink) = (open(from, if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }), open(to, "[::]:9"));
        sink.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
        let flow = Self { name, sent: Arc::default(), came: Arc::default(), ends: Arc::default() };
        let (sent, ends) = (Arc::clone(&flow.sent), Arc::clone(&flow.ends));
        std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                let number = sent.fetch_add(1, Ordering::Relaxed) + 1;
                let _ = source.send_to(&number.to_be_bytes(), SocketAddr::new(address, 9));
                std::thread::sleep(Duration::from_millis(1_000 / RATE));
            }
        });
        let (came, ends) = (Arc::clone(&flow.came), Arc::clone(&flow.ends));
        std::thread::spawn(move || {
            let mut octets = [0; 8];
            while !ends.load(Ordering::Relaxed) {
                if sink.recv(&mut octets).is_ok() {
                    came.lock().expect("no panic").push((u64::from_be_bytes(octets), Instant::now()));
                }
            }
        });
        flow
    }

    /// Waits until something comes that is sent from now on; the number of the last that was sent before.
    fn goes_on(&self, logs: &dyn Fn() -> String) -> u64 {
        let sent = self.sent.load(Ordering::Relaxed);
        eventually(&format!("datagrams {} come: {}", self.name, logs()), || {
            self.came.lock().expect("no panic").last().is_some_and(|(number, _)| *number > sent)
        });
        sent
    }

    /// How many after `first` were lost, and the longest pause in what came.
    fn lost(&self, first: u64) -> (u64, Duration) {
        let came = self.came.lock().expect("no panic");
        let at = came.iter().position(|(number, _)| *number > first).unwrap_or(came.len()).saturating_sub(1);
        let fresh = came[at..].iter().filter(|(number, _)| *number > first);
        let (count, last) = fresh.fold((0, first), |(count, last), (number, _)| (count + 1, last.max(*number)));
        let pause = came[at..].windows(2).map(|two| two[1].1 - two[0].1).max().unwrap_or_default();
        (last - first - count, pause)
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

/// `iperf3` by UDP in both directions at once, for a few seconds.
struct Iperf {
    client: Child,
    _server: Daemon,
}

impl Iperf {
    /// Waits until datagrams have arrived for a second.
    fn start(program: &Installation, from: &Gateway, to: (&Gateway, &str), log: &std::path::Path) -> Self {
        let command = |gateway: &Gateway| {
            let mut command = gateway.place.command(program.program("iperf3"));
            program.prepare(&mut command);
            command
        };
        let server = Daemon::start(command(to.0).args(["-s", "-1", "--forceflush"]), log).expect("started");
        eventually("iperf3 listens", || server.log_tail(20).contains("listening"));
        // As long as fits b's link whole.
        let (length, rate) = (500, (500 * 8 * RATE).to_string());
        let mut client = command(from);
        client.args(["-c", to.1, "-u", "--bidir", "-t", "10", "-l", &length.to_string(), "-b", &rate, "-J"]);
        let client = client.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("iperf3 runs");
        eventually(&format!("iperf3 receives: {}", server.log_tail(20)), || server.log_tail(20).contains("0.00-1.00 "));
        Self { client, _server: server }
    }

    /// It ends well, and neither direction lost more than a new port may cost.
    fn ends(self, home: &str) {
        let output = self.client.wait_with_output().expect("it ends");
        let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert!(output.status.success(), "{result}");
        let streams = result["end"]["streams"].as_array().cloned().unwrap_or_default();
        assert_eq!(streams.len(), 2, "{}", result["end"]);
        for of in streams.iter().map(|stream| &stream["udp"]) {
            let [lost, all] = ["lost_packets", "packets"].map(|field| of[field].as_u64().unwrap_or(u64::MAX));
            eprintln!("a new port for {home}: iperf3 lost {lost} of {all}");
            assert!(lost <= LOST && all > LOST, "{}", result["end"]);
        }
    }
}

#[test]
fn two_gateways_behind_nats_reach_each_other_and_what_they_carry_outlives_new_ports_and_addresses() {
    let test =
        "overlay::nat::two_gateways_behind_nats_reach_each_other_and_what_they_carry_outlives_new_ports_and_addresses";
    if netns::inside().is_none() {
        // Inside there is no way to a mirror.
        for package in [SSHD, IPERF3] {
            let _ = fetched(&package, test);
        }
    }
    let has_ssh = has("ssh", test);
    if netns::enter_for_test(test).is_none() {
        return;
    }
    if ["nft", "conntrack"].iter().any(|program| Command::new(program).arg("--version").output().is_err()) {
        netns::skipped(&format!("{test} without nft and conntrack; scripts/setup installs them as root"));
        return;
    }
    let network = Network::new().expect("a network");
    for arguments in [format!("addr add {HERE}/24 dev lan"), "addr add 2001:db8::fa/64 dev lan nodad".to_owned()] {
        let added = Command::new("ip").args(arguments.split(' ')).status();
        assert!(added.expect("ip runs").success());
    }
    let realm = Realm::new("nat");
    let listen = format!("{HERE_V6}:7100");
    let token = realm.invite(&["paths", "--role", "path", "--address", &listen]);
    realm.folder.ok(&["join", &token, "--dir", "paths", "--listen", &listen, "--status", "127.0.0.1:8501"]);
    let _paths = Running::start("paths", realm.path("paths"), "path", "127.0.0.1:8501");
    let token = realm.invite(&["consent", "--role", "consent"]);
    let at = format!("{HERE_V6}:7200");
    realm.folder.ok(&["join", &token, "--dir", "consent", "--listen", &at, "--status", "127.0.0.1:8502"]);
    let who = format!("{}@{at}", realm.identity("consent"));
    let router = |name: &str, open: &str, other: &str, w: &str| {
        let page = realm.router(name, Some(&who));
        realm.entrust("consent", name);
        realm.link(name, &[Neighbour(other, "peer", 1, w)]);
        realm.edit(&format!("{name}/router.toml"), |text| format!("{text}\n[overlay.open]\nlocal = \"{open}\"\n"));
        realm.start(name, "router", &page)
    };
    let mut w1 = router("w1", &format!("{HERE}:50001"), "w2", &format!("{HERE}:50012"));
    let w2 = router("w2", &format!("{HERE_V6}:50002"), "w1", &format!("{HERE}:50021"));
    // a: both families, behind one NAT; b: IPv6 alone, over a link of 1,280 octets.
    let home_a = Home::new(&network, "a", 101, &[("172.20.1.1/24", "172.20.1.2/24"), ("fd20:1::1/64", "fd20:1::2/64")]);
    let home_b = Home::new(&network, "b", 102, &[("fd20:2::1/64", "fd20:2::2/64")]);
    for place in [&home_b.box_, &home_b.inside] {
        run(place, "ip link set in0 mtu 1280");
    }
    let a = Gateway::start(&realm, &home_a.inside, ("a", 1), &who, "w1", "");
    let b = Gateway::start(&realm, &home_b.inside, ("b", 2), &who, "w2", "");
    for gateway in ["a", "b"] {
        realm.serve("consent", gateway);
    }
    let mut consent = realm.start("consent", "consent", "127.0.0.1:8502");
    use_names(&network);
    let page: Vec<u8> = (0..6_000_000u32).flat_map(u32::to_be_bytes).collect();
    for (gateway, addresses) in
        [(&a, ["10.0.1.1:8080", "[fd00:1::1]:8080"]), (&b, ["10.0.2.1:8080", "[fd00:2::1]:8080"])]
    {
        let address = addresses[0].split(':').next().unwrap_or_default().to_owned();
        eventually("it has its address", || {
            let shown =
                gateway.place.command("ip").args(["-j", "addr", "show", "wayleave0"]).output().expect("ip runs");
            text(&shown.stdout).contains(&address)
        });
        serve(&gateway.place, &addresses, &page, &realm.folder.0);
    }
    let logs = || format!("{}\n{}\n{}\n{}", a.log(), b.log(), w1.show("links", &[]), w2.show("links", &[]));
    let curl = |from: &Gateway, to: &str, seconds: &str| {
        let mut command = from.place.command("curl");
        command
            .args(["-sS", "--max-time", seconds])
            .arg(format!("http://short.{to}.overlay:8080/page"))
            .stdin(Stdio::null());
        command.output().expect("curl runs")
    };
    eventually(&format!("the first page: {}", logs()), || curl(&a, "b", "20").stdout == page);
    assert!(curl(&b, "a", "20").stdout == page, "{}", logs());
    let server = if has_ssh { sshd(&b.place, &realm.folder.0, test) } else { None };
    if let Some(server) = &server {
        let ssh = || {
            let mut command = a.place.command("ssh");
            command.args(SSH).args(["-4", "root@short.b.overlay", "echo $SSH_CONNECTION"]).stdin(Stdio::null());
            command.current_dir(&realm.folder.0).env("HOME", &realm.folder.0).output().expect("ssh runs")
        };
        // It may not listen yet.
        eventually(&format!("a command by ssh: {}\n{}", server.log_tail(20), logs()), || {
            text(&ssh().stdout).starts_with("10.0.1.1 ")
        });
    }
    drop(server);
    // The server has the forwarders' keys in its memory alone, and gets them anew.
    consent.kill();
    consent.resume();
    eventually(&format!("the forwarders give their keys again: {}", consent.log()), || {
        let status = consent.show("status", &[]);
        status["awaits_keys_of"] == json!([]) && status["consents_for"].as_array().is_some_and(|all| all.len() == 4)
    });
    eventually(&format!("and say no more that they are not there: {}", w1.log()), || {
        [&w1, &w2].iter().all(|router| !router.status("problems").to_string().contains("consent server"))
    });
    // Nobody wrote an address of a gateway anywhere, and the forwarders know where they are.
    let of_a = link(&w1.show("links", &[]), "a");
    assert!(
        of_a["state"] == "up" && of_a["address"].as_str().is_some_and(|at| at.starts_with("192.0.2.101:")),
        "{of_a}"
    );
    let of_b = link(&w2.show("links", &[]), "b");
    assert!(of_b["address"].as_str().is_some_and(|at| at.starts_with("[2001:db8::66]:")), "{of_b}");
    eventually(&format!("the size of b's link is known: {}", logs()), || {
        link(&b.json(&["show", "links"]), "w2")["size"] == 1_232
    });
    // The NATs forget ports under a transfer, and choose others.
    let mut download = Download::start(&a.place, "short.b.overlay", &realm.folder.0);
    download.goes_on("a download", &logs);
    let flows = [
        Flow::start("from a to b", &a, &b, addresses_of(&a.place, "short.b.overlay")[0]),
        Flow::start("from b to a", &b, &a, addresses_of(&b.place, "short.a.overlay")[1]),
    ];
    let iperf3 = fetched(&IPERF3, test);
    for (home, forwarder, name) in [(&home_a, &w1, "a"), (&home_b, &w2, "b")] {
        let log = realm.path(&format!("iperf3-{name}.log"));
        let mut iperf3 = iperf3.as_ref().map(|program| Iperf::start(program, &a, (&b, "short.b.overlay"), &log));
        let sent = flows.each_ref().map(|flow| flow.goes_on(&logs));
        let before = link(&forwarder.show("links", &[]), name);
        home.flush();
        if let Some(iperf3) = &mut iperf3 {
            assert!(iperf3.client.try_wait().expect("a child").is_none(), "iperf3 ended before the port did");
        }
        download.goes_on("it goes on with another port", &logs);
        eventually(&format!("{name} is seen at another port: {}", logs()), || {
            let now = link(&forwarder.show("links", &[]), name);
            now["state"] == "up"
                && now["address"] != before["address"]
                && now["last_handshake"] == before["last_handshake"]
        });
        for (flow, first) in flows.iter().zip(sent) {
            flow.goes_on(&logs);
            let (lost, pause) = flow.lost(first);
            eprintln!(
                "a new port for {name}: {lost} datagrams {} were lost, the longest pause was {pause:?}",
                flow.name
            );
            assert!(lost <= LOST, "{lost} of {RATE} a second {} were lost: {}", flow.name, logs());
        }
        if let Some(iperf3) = iperf3 {
            iperf3.ends(name);
        }
    }
    drop(flows);
    // a goes to another network: another address inside, another NAT outside.
    let before = link(&w1.show("links", &[]), "a")["address"].clone();
    for line in ["ip addr del 192.0.2.101/24 dev eth0", "ip addr add 192.0.2.111/24 dev eth0"] {
        run(&home_a.box_, line);
    }
    home_a.flush();
    download.goes_on("it goes on from another address", &logs);
    eventually(&format!("a is seen at another address: {}", logs()), || {
        let now = link(&w1.show("links", &[]), "a")["address"].clone();
        now != before && now.as_str().is_some_and(|at| at.starts_with("192.0.2.111:"))
    });
    drop(download);
    // The forwarder dies, and comes back: the gateways find it, and not the other way round.
    w1.kill();
    w1.resume();
    eventually(&format!("a page after the forwarder's restart: {}", a.log()), || curl(&a, "b", "10").stdout == page);
    let shown = a.ask(&["show", "links"]);
    for part in
        ["link 1: w1\n", "  endpoint: 192.0.2.250:50001\n", "  latest handshake: ", " received, ", "  round trip: "]
    {
        assert!(shown.contains(part), "{shown}");
    }
}

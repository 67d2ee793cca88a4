//! A member with valid keys floods nodes and servers with all that it can send, from many addresses and with many IDs, at a capped share of
//! a processor. Nobody else loses a packet by it, and whoever asks for paths is answered.
//!
//! ICC, insiders: handshakes of links, of TLS and of gateways, silent connections, adverts with changing IDs, searches, subscriptions,
//! requests for consent, packets of unclaimed IDs and unknown paths, by turns with quiet phases: of an honest flow no packet is lost, and of
//! an honest member's new paths each is found and consented to.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::{Path as FilePath, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::net::TcpSocket;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::timeout;
use wayleave_control::advert::Advert;
use wayleave_control::frames::Body;
use wayleave_core::Now;
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::Signed;
use wayleave_dataplane::link::{Config as LinkConfig, Links as LinkSessions, Peer as LinkPeer};
use wayleave_lab::netns::{self, NetworkNamespace};
use wayleave_packet::Path;
use wayleave_packet::icing::header::{Path as IcingPath, Version};
use wayleave_packet::icing::mint::{Consent, NodeSecret, Sender};
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::links::{Connecting, Limits, LinkEvent, Links};
use wayleave_runtime::node_tls::NodeIdentity;

use super::attacks::{Wire, advert, key, membership};
use super::harness::Running;
use super::hostile::{End, M, Thief, dig, search, server_of};
use super::world::{HERE, Plan, World, port};
use crate::common::cpu_cap::CpuCap;
use crate::common::eventually;

/// Set in the process that runs [`child`] as a test.
const CHILD: &str = "WAYLEAVE_INSIDER_CHILD";
/// Hundredths of a processor that the insider may use.
const CAP: u32 = 20;
/// The insider's further addresses: 192.0.2.100 and so on.
const ADDRESSES: u8 = 32;
/// Ports from which it sends handshakes at each address.
const PORTS: usize = 4;
/// What the insider does by turns: nothing, use up its share of a processor, attack. How often, and new paths in each phase, if
/// `WAYLEAVE_INSIDER_PATHS` does not say.
const KINDS: [&str; 3] = ["rest", "burn", "attack"];
const ROUNDS: usize = 3;
const NEW_PATHS: usize = 20;
/// Of so many new paths one is asked for by new links.
const NEW_LINKS_EACH: usize = 5;
/// The time for a new path: a path server answers 20 questions of a member in a second.
const PACE: Duration = Duration::from_millis(60);
/// The honest flow: a packet each 10 ms.
const INTERVAL: Duration = Duration::from_millis(10);
/// Requests that wait for a server's answer.
const AHEAD: u64 = 32;
/// Links of strangers, and connections that say nothing, at a time.
const STRANGERS: usize = 64;
const SILENT: usize = 2_048;
/// Connections that say nothing in a turn.
const SILENT_EACH: usize = 32;

/// What the process that plays the insider is told.
#[derive(Serialize, Deserialize)]
struct Order {
    folder: PathBuf,
    identities: BTreeMap<String, String>,
}

/// What it has done.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Done {
    packets: u64,
    link_handshakes: u64,
    tls_handshakes: u64,
    silent_connections: u64,
    adverts: u64,
    questions: u64,
    consents: u64,
    answers: u64,
    refusals: u64,
}

/// A link to a server by which requests go without waiting for answers.
struct Flood {
    wire: Wire,
    waiting: u64,
}

impl Flood {
    fn send(&mut self, body: Body) -> u64 {
        if self.waiting >= AHEAD {
            return 0;
        }
        self.waiting += 1;
        self.wire.put(body);
        1
    }

    fn drain(&mut self, done: &mut Done) {
        let (answers, refusals, is_new) = self.wire.drain();
        done.answers += answers;
        done.refusals += refusals;
        // What was asked by a link that has ended is not answered.
        self.waiting = if is_new { 0 } else { self.waiting.saturating_sub(answers) };
    }
}

struct Insider {
    own: Thief,
    folder: PathBuf,
    turn: usize,
    /// Its end of the link to w1, which proves itself.
    host: UdpSocket,
    _end: End,
    sockets: Vec<UdpSocket>,
    /// Ways to packets of nobody, on paths that nobody consented to; and to packets with all proofs.
    bogus: Vec<Sender>,
    proved: Vec<Sender>,
    path: Path,
    paths: Flood,
    consent: Vec<Flood>,
    advert: Advert,
    runtime: Runtime,
    links: Links,
    strangers: VecDeque<(Connecting, mpsc::Receiver<LinkEvent>)>,
    silent: VecDeque<TcpStream>,
    done: Done,
}

impl Insider {
    fn new(order: &Order) -> Self {
        let own = Thief::new(&order.folder, &order.identities, "m");
        let host = UdpSocket::bind(port(M, 11)).expect("m's end");
        let end = End::start(&order.folder, &host);
        let (to_b, to_a) = (own.path("b", &["m", "w1", "w3", "b"]), own.path("a", &["m", "w1", "a"]));
        let path = own.consented(&to_b, 250);
        let proved = [&path, &own.consented(&to_a, 250)].map(|path| own.sender(path)).into();
        let hops = path.icing_path().expect("whole").hops().to_vec();
        let bogus = (0..32u8).map(|number| {
            let secret = NodeSecret::from_seed(&Seed::new([number; 32]));
            // Half of them go on over nodes that do not exist.
            let mut hops = hops.clone();
            if number % 2 == 0 {
                hops[1].node = NodeSecret::from_seed(&Seed::new([number + 100; 32])).id();
            }
            let consents: Vec<Consent> = hops.iter().map(|_| Consent::new(Key128::new([number; 16]))).collect();
            let path = IcingPath::new(secret.id(), &hops).expect("a path");
            Sender::new(Version::Standard, &path, &secret, &consents).expect("a sender")
        });
        let any = |address| (0..PORTS).map(move |_| UdpSocket::bind((address, 0)).expect("a port"));
        let sockets = (0..ADDRESSES).map(|index| Ipv4Addr::new(192, 0, 2, 100 + index)).flat_map(any).collect();
        let flood = |server: &str, at: &str| Flood { wire: own.wire(server, at), waiting: 0 };
        let consent = ["w1", "e", "a"].map(|node| {
            let (server, at) = server_of(node);
            flood(server, &at)
        });
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
        let signing = SigningKey::from_seed(&own.identity);
        let mut advert = advert(own.membership().object().realm, &signing, own.secret.id());
        advert.sequence += 100_000;
        Self {
            turn: 0,
            host,
            _end: end,
            sockets,
            bogus: bogus.collect(),
            proved,
            path,
            paths: flood("paths", &format!("{HERE}:7100")),
            consent: consent.into(),
            advert,
            runtime,
            links: Links::new(Limits { protocols: wayleave_control::frames::PROTOCOLS, ..Limits::default() }),
            strangers: VecDeque::new(),
            silent: VecDeque::new(),
            done: Done::default(),
            folder: order.folder.clone(),
            own,
        }
    }

    /// A little of everything.
    fn step(&mut self) {
        self.turn += 1;
        self.send_packets();
        self.begin_sessions();
        if self.turn.is_multiple_of(2) {
            self.ask_path_server();
            self.ask_consent_servers();
        }
        if self.turn.is_multiple_of(4) {
            self.connect();
        }
    }

    /// Packets of nobody; and proved ones, with handshakes of gateways or data of no session in them.
    fn send_packets(&mut self) {
        let mut noise = [0; 180];
        getrandom::fill(&mut noise).expect("randomness");
        let mut send = |packet: &[u8]| {
            self.done.packets += u64::from(self.host.send_to(packet, port(11, M)).is_ok());
        };
        for sender in self.bogus.iter().skip(self.turn % 4 * 8).take(8) {
            send(&self.own.packet(sender, &noise));
        }
        for sender in &self.proved {
            for kind in [1, 1, 2, 3] {
                noise[..4].copy_from_slice(&[kind, 0, 0, 0]);
                noise[4] = noise[4].wrapping_add(1);
                send(&self.own.packet(sender, &noise));
            }
        }
    }

    /// Handshakes of links to everybody, as a member that is a neighbour of w1 alone, from many addresses; and such without the MAC.
    fn begin_sessions(&mut self) {
        const TARGETS: [(&str, u8, u8); 6] =
            [("w1", 11, M), ("w1", 11, 1), ("w3", 13, 12), ("e", 21, 1), ("a", 1, 11), ("b", 2, 13)];
        let (name, number, from) = TARGETS[self.turn % TARGETS.len()];
        let to: SocketAddr = port(number, from).parse().expect("an address");
        let (theirs, ours) = (membership(&self.folder, name), self.own.membership());
        let (theirs, ours) = (theirs.object(), ours.object());
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).expect("randomness");
        let noise = super::attacks::seed(&self.folder.join("m/noise.key"));
        let config = LinkConfig { identity: ours.identity, realm: ours.realm.0, noise, seed: Seed::new(seed) };
        let mut session = LinkSessions::new(config);
        let peer = LinkPeer {
            link: 1,
            identity: theirs.identity,
            noise: theirs.noise,
            sockets: vec![0],
            endpoints: vec![(0, to)],
            tls: None,
            tls_endpoints: Vec::new(),
            largest: 1_400,
        };
        // Which of two ends begins first is no matter.
        let (start, later) = (Now { unix: unix_now(), ..Now::default() }, Duration::from_secs(1));
        session.set_peers(vec![peer], start);
        session.handle_timeout(Now { instant: start.instant + later, ..start });
        let begun = session.poll().expect("an initiation").octets;
        let mut spoilt = begun.clone();
        spoilt[100] ^= 1;
        for index in 0..8 {
            let socket = &self.sockets[(8 * self.turn + index) % self.sockets.len()];
            for octets in [&begun, &spoilt] {
                self.done.link_handshakes += u64::from(socket.send_to(octets, to).is_ok());
            }
        }
    }

    /// Adverts, each with an ID of its own and the next number, searches, and everything that the server has.
    fn ask_path_server(&mut self) {
        let signing = SigningKey::from_seed(&self.own.identity);
        self.paths.drain(&mut self.done);
        let id = NodeSecret::from_seed(&Seed::new([self.turn as u8; 32])).id();
        let next = advert(self.advert.realm, &signing, id);
        self.advert = Advert { sequence: self.advert.sequence + 1, ..next };
        let advert = Signed::sign(&self.advert, &signing).expect("well formed");
        self.done.adverts += self.paths.send(Body::Register { membership: self.own.membership(), advert });
        for host in ["a", "b", "nobody"] {
            self.done.questions += self.paths.send(search(host));
        }
        self.done.questions += self.paths.send(Body::Subscribe { instance: 0, since: 0 });
    }

    /// Requests for consent: good ones, of unclaimed IDs, and for paths that do not exist.
    fn ask_consent_servers(&mut self) {
        for (server, index) in [(0, 1), (0, 2), (2, 3), (1, 1)] {
            let flood = &mut self.consent[server];
            flood.drain(&mut self.done);
            let other = NodeSecret::from_seed(&Seed::new([self.turn as u8; 32])).id();
            for kind in 0..3 {
                let body = self.own.question(&self.path, index, 60, |request| match kind {
                    0 => {}
                    1 => request.path.sender = other,
                    _ => request.path.hops[2].0 = other,
                });
                self.done.consents += flood.send(body);
            }
        }
    }

    /// A stranger's link over TLS to each server in turn, and connections that say nothing, from many addresses.
    fn connect(&mut self) {
        const SERVERS: [(&str, u16); 4] = [("paths", 7_100), ("ends", 7_200), ("west", 7_201), ("east", 7_202)];
        let number = self.turn / 4;
        let (name, at) = SERVERS[number % SERVERS.len()];
        let mut seed = [77; 32];
        seed[..8].copy_from_slice(&(number as u64).to_be_bytes());
        let stranger = NodeIdentity::from_seed(&seed).expect("a key");
        let (to, events) = mpsc::channel::<LinkEvent>(16);
        let _inside = self.runtime.enter();
        let server = key(self.own.who(name));
        let connecting = self.links.connect_node(format!("{HERE}:{at}"), &stranger, server, to);
        self.strangers.push_back((connecting.expect("a configuration"), events));
        self.done.tls_handshakes += 1;
        for index in 0..SILENT_EACH {
            let own = Ipv4Addr::new(192, 0, 2, 100 + ((SILENT_EACH * number + index) % usize::from(ADDRESSES)) as u8);
            let socket = TcpSocket::new_v4().expect("a socket");
            socket.bind(SocketAddr::from((own, 0))).expect("an address of ours");
            let to = SocketAddr::new(HERE.parse().expect("an address"), at);
            let opened = self.runtime.block_on(async { timeout(Duration::from_millis(50), socket.connect(to)).await });
            if let Ok(Ok(stream)) = opened {
                self.silent.push_back(stream.into_std().expect("a stream"));
                self.done.silent_connections += 1;
            }
        }
        while self.strangers.len() > STRANGERS {
            self.strangers.pop_front();
        }
        while self.silent.len() > SILENT {
            self.silent.pop_front();
        }
    }
}

/// Plays the insider while it is told to, until its input ends. Does nothing unless [`CHILD`] is set.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let mut line = String::new();
    io::stdin().read_line(&mut line).expect("a line");
    let order: Order = serde_json::from_str(&line).expect("an order");
    let place = NetworkNamespace::Named("n-m".to_owned());
    let done = place.within(|| {
        let mut insider = Insider::new(&order);
        println!("\nready");
        let (kind, ends) = (Arc::new(AtomicU8::new(0)), Arc::new(AtomicBool::new(false)));
        let (of_thread, ended) = (Arc::clone(&kind), Arc::clone(&ends));
        std::thread::spawn(move || {
            for line in io::stdin().lines().map_while(Result::ok) {
                let kind = KINDS.iter().position(|kind| *kind == line).expect("a kind");
                of_thread.store(kind as u8, Ordering::Relaxed);
            }
            ended.store(true, Ordering::Relaxed);
        });
        while !ends.load(Ordering::Relaxed) {
            match KINDS[usize::from(kind.load(Ordering::Relaxed))] {
                "attack" => insider.step(),
                "burn" => (0..1_000).for_each(|_| std::hint::spin_loop()),
                _ => std::thread::sleep(Duration::from_millis(2)),
            }
        }
        insider.done
    });
    println!("\n{}", serde_json::to_string(&done.expect("in its place")).expect("JSON"));
}

/// The process that plays the insider.
struct Attacker {
    child: Child,
    said: BufReader<ChildStdout>,
    cap: Option<CpuCap>,
}

impl Attacker {
    fn start(world: &World) -> Self {
        let this = std::env::current_exe().expect("this test");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(this);
        command.args(["overlay::insider::child", "--exact", "--nocapture"]).env(CHILD, "1");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        let said = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut attacker = Self { child, said, cap: None };
        let order = Order { folder: world.realm.folder.0.clone(), identities: world.identities.clone() };
        attacker.tell(&serde_json::to_string(&order).expect("it can be told"));
        attacker.line(|line| (line == "ready").then_some(()));
        // What it had to do before is done at full speed.
        attacker.cap = Some(CpuCap::new(attacker.child.id(), CAP));
        attacker
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().expect("a pipe"), "{line}").expect("it listens");
    }

    /// The first line that `wanted` takes.
    fn line<T>(&mut self, wanted: impl Fn(&str) -> Option<T>) -> T {
        loop {
            let mut line = String::new();
            assert!(self.said.read_line(&mut line).expect("text") > 0, "the insider has ended");
            if let Some(wanted) = wanted(line.trim()) {
                return wanted;
            }
        }
    }

    /// Ends it. Returns what it did, and how it was capped.
    fn end(mut self) -> (Done, String) {
        drop(self.child.stdin.take());
        let done = self.line(|line| serde_json::from_str(line).ok());
        (done, self.cap.as_ref().expect("a cap").to_string())
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        self.cap = None;
        let _ = self.child.wait();
    }
}

/// A member that asks for new paths, and for the consents to them, by links that are up.
struct Honest {
    own: Thief,
    paths: Wire,
    consent: BTreeMap<&'static str, Wire>,
}

impl Honest {
    fn new(folder: &FilePath, identities: &BTreeMap<String, String>) -> Self {
        let own = Thief::new(folder, identities, "h");
        let consent = ["w1", "b"].map(server_of).map(|(server, at)| (server, own.wire(server, &at)));
        Self { paths: own.wire("paths", &format!("{HERE}:7100")), consent: consent.into(), own }
    }

    /// Leaves its links for new ones.
    fn connect_anew(&mut self) {
        let new = |server: &str, at: &str| self.own.wire(server, at);
        let consent = ["w1", "b"].map(server_of).map(|(server, at)| (server, new(server, &at)));
        (self.paths, self.consent) = (new("paths", &format!("{HERE}:7100")), consent.into());
    }

    /// A path over these nodes, with all consents.
    ///
    /// # Errors
    /// Who refused, and why.
    fn set_up(&mut self, nodes: &[&str]) -> Result<(), String> {
        let found = match self.paths.ask(search("b")) {
            Body::Paths { paths, .. } => paths,
            other => return Err(format!("the path server: {other:?}")),
        };
        let path = self.own.path_of(&found, nodes);
        for index in 1..nodes.len() {
            let (server, _) = self.own.server(&path, index);
            let question = self.own.question(&path, index, 60, |_| ());
            let answer = self.consent.get_mut(server).expect("a server").ask(question);
            self.own.consent(answer).map_err(|refusal| format!("{server}: {refusal}"))?;
        }
        Ok(())
    }
}

/// Datagrams from a to b, each with the number of its phase.
struct Flow {
    phase: Arc<AtomicU8>,
    ends: Arc<AtomicBool>,
    sender: std::thread::JoinHandle<Vec<u8>>,
    receiver: std::thread::JoinHandle<BTreeSet<u32>>,
}

impl Flow {
    fn start(from: UdpSocket, to: UdpSocket) -> Self {
        let (phase, ends) = (Arc::new(AtomicU8::new(0)), Arc::new(AtomicBool::new(false)));
        to.set_read_timeout(Some(Duration::from_secs(3))).expect("a timeout");
        let (of_thread, ended, over) = (Arc::clone(&phase), Arc::clone(&ends), Arc::clone(&ends));
        let receiver = std::thread::spawn(move || {
            let (mut numbers, mut octets) = (BTreeSet::new(), [0; 2_000]);
            // Until nothing has come for a while after the end: whatever is under way then is lost.
            loop {
                match to.recv(&mut octets) {
                    Ok(length) => {
                        if let Some(number) = octets[..length].first_chunk() {
                            numbers.insert(u32::from_be_bytes(*number));
                        }
                    }
                    Err(_) if over.load(Ordering::Relaxed) => return numbers,
                    Err(_) => {}
                }
            }
        });
        let sender = std::thread::spawn(move || {
            // The phase of each number.
            let mut sent: Vec<u8> = Vec::new();
            while !ended.load(Ordering::Relaxed) {
                let mut octets = [0; 200];
                octets[..4].copy_from_slice(&(sent.len() as u32).to_be_bytes());
                from.send(&octets).expect("sent");
                sent.push(of_thread.load(Ordering::Relaxed));
                std::thread::sleep(INTERVAL);
            }
            sent
        });
        Self { phase, ends, sender, receiver }
    }

    /// Ends it. Returns how many datagrams were sent, and how many lost, in phases of each kind.
    fn end(self) -> [(usize, usize); KINDS.len()] {
        self.ends.store(true, Ordering::Relaxed);
        let sent = self.sender.join().expect("it sends");
        let received = self.receiver.join().expect("it receives");
        [0, 1, 2].map(|phase| {
            let numbers = || (0u32..).zip(&sent).filter(|(_, of)| **of == phase).map(|(number, _)| number);
            (numbers().count(), numbers().filter(|number| !received.contains(number)).count())
        })
    }
}

/// Hundredths of a second that processes have used.
fn used<'a>(all: impl IntoIterator<Item = &'a Running>) -> u64 {
    let of = |running: &Running| {
        let text = fs::read_to_string(format!("/proc/{}/stat", running.id())).unwrap_or_default();
        let fields =
            text.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().skip(11).take(2)).into_iter().flatten();
        fields.filter_map(|field| field.parse::<u64>().ok()).sum::<u64>()
    };
    all.into_iter().map(of).sum()
}

/// Packets that a node has dropped, for whatever reason.
fn dropped(world: &World, node: &str) -> u64 {
    let status = world.nodes[node].show("status", &[]);
    let reasons = status["reasons"].as_object().into_iter().flat_map(|reasons| reasons.values());
    reasons.filter_map(serde_json::Value::as_u64).sum()
}

/// What was measured in the phases of one kind.
#[derive(Debug, Default)]
struct Measured {
    set_up: usize,
    /// The time for which new paths were waited for, that for links before, and that of the phases.
    waited: Duration,
    connected: Duration,
    lasted: Duration,
    /// Hundredths of a second: of the servers, of the nodes.
    used: [u64; 2],
}

#[test]
fn an_insider_who_floods_everybody_costs_others_no_packet_and_no_new_path() {
    let test = "overlay::insider::an_insider_who_floods_everybody_costs_others_no_packet_and_no_new_path";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let plan = Plan {
        more: &[("m", "gateway", M, 0), ("h", "gateway", 67, 0)],
        links: &[("m", "w1", "provider"), ("h", "w1", "provider")],
        ..Plan::default()
    };
    let mut world = World::with("insider", &plan).settled();
    // Both were members like others until now: everybody knows them.
    for name in ["m", "h"] {
        eventually(&format!("{name} is known"), || world.nodes[name].ask(&["ping", "fast.b.overlay"]).status.success());
        world.node(name).kill();
    }
    for index in 0..ADDRESSES {
        let address = format!("192.0.2.{}/32", 100 + index);
        let status = Command::new("ip").args(["-n", "n-m", "addr", "add", &address, "dev", "lo"]).status();
        assert!(status.expect("ip runs").success(), "{address}");
    }
    let to = world.places["b"].within(|| UdpSocket::bind("0.0.0.0:9")).expect("in its place").expect("b's end");
    let resolved = dig(&world, "a", "clean.b.overlay").expect("a name");
    let open =
        || UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.connect((resolved.as_str(), 9)).map(|()| socket));
    let from = world.places["a"].within(open).expect("in its place").expect("a's end");
    to.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    eventually("a sends to b", || from.send(&[]).is_ok() && to.recv(&mut [0; 10]).is_ok());

    let new_paths =
        std::env::var("WAYLEAVE_INSIDER_PATHS").ok().and_then(|text| text.parse().ok()).unwrap_or(NEW_PATHS);
    let mut honest = Honest::new(&world.realm.folder.0, &world.identities);
    let mut attacker = Attacker::start(&world);
    let flow = Flow::start(from, to);
    let routes: [&[&str]; 2] = [&["h", "w1", "w3", "b"], &["h", "w1", "w2", "w3", "b"]];
    let mut measured: [Measured; KINDS.len()] = Default::default();
    let mut refused = Vec::new();
    let servers = || used(world.consent.iter().chain([&world.paths]));
    let nodes = || used(["a", "b", "w1", "w2", "w3", "e"].map(|name| &world.nodes[name]));
    for phase in 0..ROUNDS * KINDS.len() {
        let kind = phase % KINDS.len();
        attacker.tell(KINDS[kind]);
        // What is under way from the phase before is not measured.
        std::thread::sleep(Duration::from_millis(300));
        flow.phase.store(kind as u8, Ordering::Relaxed);
        let (begin, before, of) = (Instant::now(), [servers(), nodes()], &mut measured[kind]);
        for number in 0..new_paths {
            let due = begin + PACE * number as u32;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if number.is_multiple_of(NEW_LINKS_EACH) {
                let begin = Instant::now();
                honest.connect_anew();
                of.connected += begin.elapsed();
            }
            let asked = Instant::now();
            match honest.set_up(routes[number % 2]) {
                Ok(()) => of.set_up += 1,
                Err(why) => refused.push((KINDS[kind], why)),
            }
            of.waited += asked.elapsed();
        }
        of.lasted += begin.elapsed();
        for (used, (before, now)) in of.used.iter_mut().zip(before.into_iter().zip([servers(), nodes()])) {
            *used += now - before;
        }
    }
    let (done, cap) = attacker.end();
    let packets = flow.end();
    println!("the insider at {cap}: {done:?}");
    let rate = |of: &Measured| of.set_up as f64 / of.lasted.as_secs_f64();
    for ((kind, of), (sent, lost)) in KINDS.iter().zip(&measured).zip(packets) {
        let (ratio, each) = (rate(of) / rate(&measured[0]), of.waited / of.set_up.max(1) as u32);
        println!(
            "{kind}: new paths at {ratio:.3} of the rate at rest, {each:?} each; {lost} of {sent} packets lost; {of:?}"
        );
    }
    // The attack was one: each kind of it came to where it went.
    assert!(done.refusals > 0 && done.answers > done.refusals, "{done:?}");
    assert!(done.tls_handshakes > 0 && done.silent_connections > 0 && done.link_handshakes > 0, "{done:?}");
    assert!(dropped(&world, "w1") > done.packets / 4, "w1: {}", world.nodes["w1"].show("status", &[]));
    assert!(refused.is_empty(), "new paths that were refused (under attack or not): {refused:?}: {}", world.logs());
    // On a machine that does not run a node for seconds packets are lost without an insider too.
    let [rest, burn, attack] = packets.map(|(_, lost)| lost);
    assert!(attack <= rest + burn, "{packets:?} packets were sent and lost: {}", world.statuses());
}

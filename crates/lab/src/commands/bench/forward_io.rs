//! `bench forward-io`: `run router` between two network namespaces with each backend, compared with the kernel's own IP
//! forwarding in the same run. The generator runs on its own core and sends prepared packets, at its maximum rate or, for
//! Platypus' Figure 4, at several rates up to it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path as FilePath;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_lab::netns::{self, Network, NetworkNamespace};
use wayleave_lab::ports;
use wayleave_packet::icing::header::{Hop as IcingHop, Part, Path as IcingPath, Tag, Version};
use wayleave_packet::icing::mint::{
    Form, NodeSecret, Nonce as IcingNonce, Sender, TagMaster, encapsulate as icing_encapsulate,
};
use wayleave_packet::platypus::header::{Capability, Carriage, Interval, Marks, Principal, Width};
use wayleave_packet::platypus::mint::{Hop, Nonce, Route, WaypointKey, WaypointKeys, encapsulate, epoch};
use wayleave_packet::scion::{
    Direction, ForwardingKey, Header, HostAddress, IsdAs, Packet, Path, PathBuilder, Segment, next_header,
};
use wayleave_papers::plot::forward as plots;
use wayleave_papers::report::{Report, median};
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::packets::udp::{self, Group, Intake, Udp};
use wayleave_runtime::packets::{Burst, Outgoing, Port, wait};

use super::{check_only, draw, enter};
use crate::commands::bench::Bench;
use wayleave_config::failure::{Failure, Outcome};
use wayleave_config::key_files::forwarding::{icing_master, icing_secret};

const KEY: [u8; 16] = [7; 16];
/// Addresses of the generator, the router's two sides, the sink.
const FROM: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
const IN: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const OUT: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 1);
const TO: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 2);
const PORT: u16 = 50_000;
const WAYPOINT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const LAST: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
/// Octets of Ethernet, IPv4 and UDP headers, which a device counts once for each message.
const CARRIED_BY: u64 = 14 + 20 + 8;
/// Nodes of an ICING path, including its sender. Every packet carries the path: 64 octets of header for each node.
const ICING_NODES: usize = 8;
/// Prepared packets, and consecutive packets of one flow.
const BUILT: usize = 1024;
const FLOW: usize = 128;
/// Time before a measurement, and time of one measurement.
const WARM: Duration = Duration::from_millis(300);
const LASTS: Duration = Duration::from_millis(700);
/// Time that a router may take to start.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The forwarder that a case measures; a router's backend.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Forwarder {
    /// The system's own IP forwarding.
    Kernel,
    /// Receives and sends by the sockets of the router's default backend, and looks at nothing: the Platypus paper's *null forwarding*.
    Null,
    Scion(&'static str),
    Platypus(&'static str),
    Icing(&'static str),
}

/// One measurement.
struct Case {
    name: &'static str,
    forwarder: Forwarder,
    /// Octets of a packet without Ethernet, IPv4 and UDP.
    length: usize,
    /// Whether each packet leaves the generator as a message of its own.
    singles: bool,
    threads: usize,
    /// Whether the forwarder's core receives, as from a network card; else the system does it on the core that sends.
    receives: bool,
}

const fn case(name: &'static str, forwarder: Forwarder, length: usize, singles: bool) -> Case {
    Case { name, forwarder, length, singles, threads: 1, receives: matches!(forwarder, Forwarder::Kernel) }
}

/// All of Figure 4's forwarders receive on their own core, or the generator, which would do it for them, could not overload them.
const fn offered(name: &'static str, forwarder: Forwarder) -> Case {
    Case { receives: true, ..case(name, forwarder, FIGURE_4, true) }
}

const CASES: [Case; 14] = [
    case("kernel-ip", Forwarder::Kernel, 172, true),
    case("kernel-ip.64", Forwarder::Kernel, 64, true),
    case("kernel-ip.batching", Forwarder::Kernel, 172, false),
    case("udp-gso.scion", Forwarder::Scion("udp-gso"), 172, false),
    case("udp-gso.scion.least", Forwarder::Scion("udp-gso"), 92, false),
    case("udp-gso.scion.singles", Forwarder::Scion("udp-gso"), 172, true),
    Case {
        name: "udp-gso.scion.cores",
        forwarder: Forwarder::Scion("udp-gso"),
        length: 172,
        singles: false,
        threads: 2,
        receives: false,
    },
    case("udp-batch.scion", Forwarder::Scion("udp-batch"), 172, true),
    case("af-xdp.scion", Forwarder::Scion("af-xdp"), 172, true),
    case("af-xdp.scion.least", Forwarder::Scion("af-xdp"), 92, true),
    case("udp-gso.platypus", Forwarder::Platypus("udp-gso"), 64, false),
    case("udp-batch.platypus", Forwarder::Platypus("udp-batch"), 64, true),
    case("af-xdp.platypus", Forwarder::Platypus("af-xdp"), 64, true),
    case("udp-gso.icing", Forwarder::Icing("udp-gso"), 64 * ICING_NODES + 64, false),
];

/// Platypus' Figure 4: packets of the paper's length, each a message of its own, from a generator that offers more and more.
const OFFERED: [Case; 4] = [
    offered("figure-4.kernel-ip", Forwarder::Kernel),
    offered("figure-4.null", Forwarder::Null),
    offered("figure-4.platypus.udp-gso", Forwarder::Platypus("udp-gso")),
    offered("figure-4.platypus.af-xdp", Forwarder::Platypus("af-xdp")),
];
/// Octets of the paper's packets, without Ethernet. Ours are as long without their UDP, and the kernel's too.
const FIGURE_4: usize = 68;
/// A packet in 200 is lost at most where no loss is meant: a measurement on a shared machine is not exact to the packet.
const LOSSLESS: f64 = 0.995;

/// Runs this program again inside namespaces, which measures and prints; returns `None` in the outer process.
pub fn run(bench: &Bench) -> Outcome<Option<Report>> {
    let names = CASES.iter().chain(&OFFERED).map(|case| case.name.to_owned());
    check_only(bench, names.chain(["overload".to_owned()]))?;
    let Some(rung) = enter([])? else { return Ok(None) };
    let repetitions = bench.repetitions.unwrap_or(if bench.short { 3 } else { 9 });
    let lab = Laboratory::new().map_err(|error| Failure::new(format!("the network of the benchmark: {error}")))?;
    let mut refused = serde_json::Map::new();
    let octets: BTreeMap<&str, usize> = CASES.iter().chain(&OFFERED).map(|case| (case.name, case.length)).collect();
    let mut report = Report::new(
        "forward-io",
        json!({
            "rung": rung.to_string(),
            "cores": thread::available_parallelism().map_or(1, usize::from),
            "generator": "core 0, with the interrupts of what it sends; the router on core 1; \
                kernel IP forwarding, and all of figure-4, receive on core 1 by RPS",
            "octets": octets,
            "paper": {
                "scion-2015.port": 14.88e6, "scion-2015.12-ports": 140e6,
                "platypus.68": 0.767e6, "pocomon": 0.0064e6,
            },
        }),
    );
    for case in CASES.iter().filter(|case| bench.wants(case.name)) {
        match lab.measure(case, repetitions) {
            Ok(rates) => report.add(case.name, "packets/s", &rates),
            Err(why) => drop(refused.insert(case.name.to_owned(), json!(why))),
        }
    }
    if bench.wants("overload") {
        match lab.overload(repetitions.min(3)) {
            Ok((full, peak)) => report.exact("overload", "ratio", full / peak),
            Err(why) => drop(refused.insert("overload".to_owned(), json!(why))),
        }
    }
    let levels = levels(if bench.short { 4 } else { 10 });
    for case in OFFERED.iter().filter(|case| bench.wants(case.name)) {
        match lab.offered(case, &levels, bench.repetitions.unwrap_or(if bench.short { 1 } else { 3 })) {
            Ok(curve) => add_curve(&mut report, case.name, &curve),
            Err(why) => drop(refused.insert(case.name.to_owned(), json!(why))),
        }
    }
    report.params.insert("refused".to_owned(), refused.into());
    draw(bench, || plots::forward_io(&report))?;
    Ok(Some(report))
}

/// A point of a curve: per cent of the generator's maximum rate, and of each repetition the packets a second that were sent and
/// that arrived.
struct Point {
    level: usize,
    offered: Vec<f64>,
    forwarded: Vec<f64>,
}

/// Per cent of the generator's maximum rate, in `count` equal steps up to it.
fn levels(count: usize) -> Vec<usize> {
    (1..=count).map(|step| 100 * step / count).collect()
}

fn add_curve(report: &mut Report, name: &str, curve: &[Point]) {
    for Point { level, offered, forwarded } in curve {
        report.add(format!("{name}.offered.{level}"), "packets/s", offered);
        report.add(format!("{name}.forwarded.{level}"), "packets/s", forwarded);
    }
    if let Some(rate) = lossless(curve) {
        report.exact(format!("{name}.lossless"), "packets/s", rate);
    }
}

/// The most packets a second that were forwarded of as many offered, but for [`LOSSLESS`].
fn lossless(curve: &[Point]) -> Option<f64> {
    let rates = curve.iter().map(|point| (median(&point.offered), median(&point.forwarded)));
    rates.filter(|(offered, forwarded)| *forwarded >= LOSSLESS * offered).map(|rate| rate.1).reduce(f64::max)
}

/// Generator, router and sink in namespaces that are connected in a row.
struct Laboratory {
    network: Network,
    generator: NetworkNamespace,
    router: NetworkNamespace,
    sink: NetworkNamespace,
}

/// A router process, which is killed when this is dropped.
struct RouterProcess(Child);

impl Drop for RouterProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A thread that forwards without looking at packets, which ends when this is dropped.
struct NullForwarder {
    is_done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl NullForwarder {
    /// From the router's one side to the sink, on the router's core.
    fn start(router: &NetworkNamespace) -> Result<Self, String> {
        let open = |at: Ipv4Addr| udp::open(SocketAddr::from((at, PORT)), 1, Intake::Merged, None);
        let groups = router.within(|| Ok([open(IN)?, open(OUT)?])).and_then(|groups: io::Result<_>| groups);
        let [mut from, mut out] = groups.map_err(|error| format!("the null forwarder: {error}"))?.map(first);
        let is_done = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_done);
        let thread = thread::spawn(move || {
            pin(1);
            let (mut burst, mut packets) = (Burst::default(), Vec::new());
            while !ends.load(Ordering::Acquire) {
                let Ok(count @ 1..) = from.receive(&mut burst) else {
                    let _ = wait([&from as &dyn Port].into_iter(), Duration::from_millis(5));
                    continue;
                };
                packets.clear();
                packets.extend((0..count as u32).map(|packet| Outgoing { packet, to: SocketAddr::from((TO, PORT)) }));
                // What the system has no room for is lost, as at the router.
                let _ = out.send(&burst, &packets);
            }
        });
        Ok(Self { is_done, thread: Some(thread) })
    }
}

impl Drop for NullForwarder {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::Release);
        self.thread.take().map(JoinHandle::join);
    }
}

fn first(mut group: Group) -> Udp {
    group.data.remove(0)
}

/// What forwards, until this is dropped; the kernel if there is neither.
#[derive(Default)]
struct Running {
    _null: Option<NullForwarder>,
    _router: Option<RouterProcess>,
}

/// What the generator is asked for, in packets a second (its maximum if zero), and what it has sent.
#[derive(Default)]
struct Load {
    pace: AtomicU64,
    sent: AtomicU64,
}

impl Laboratory {
    fn new() -> Result<Self, netns::NetworkError> {
        let network = Network::new()?;
        let [generator, router, sink] = ["generator", "router", "sink"].map(|name| network.apart(name));
        let (generator, router, sink) = (generator?, router?, sink?);
        network.join("in", ("generator", &format!("{FROM}/24")), ("router", &format!("{IN}/24")))?;
        network.join("out", ("router", &format!("{OUT}/24")), ("sink", &format!("{TO}/24")))?;
        let lab = Self { network, generator, router, sink };
        let route = format!("ip route add 10.2.0.0/24 via {IN}");
        for (place, line) in [
            (&lab.generator, route.as_str()),
            (&lab.sink, &format!("ip route add 10.1.0.0/24 via {OUT}")),
            (&lab.router, "sysctl -qw net.ipv4.ip_forward=1 || echo 1 > /proc/sys/net/ipv4/ip_forward"),
            (&lab.router, &format!("ip addr add {WAYPOINT}/32 dev lo")),
        ] {
            shell(place, line);
        }
        Ok(lab)
    }

    /// Packets per second that arrive at the sink in each repetition, at the generator's maximum rate.
    fn measure(&self, case: &Case, repetitions: usize) -> Result<Vec<f64>, String> {
        let (_router, load) = (self.start(case)?, Load::default());
        self.play(case, &load, || (0..repetitions).map(|_| Ok(self.rate(case, &load)?.1)).collect())
    }

    /// What is forwarded of what is offered, at each level of the generator's maximum rate.
    fn offered(&self, case: &Case, levels: &[usize], repetitions: usize) -> Result<Vec<Point>, String> {
        let (_router, load) = (self.start(case)?, Load::default());
        self.play(case, &load, || {
            // At its best: other programs only ever slow the generator down.
            let mut most = 0.0_f64;
            for _ in 0..repetitions {
                most = most.max(self.rate(case, &load)?.0);
            }
            let mut curve: Vec<Point> = levels
                .iter()
                .map(|level| Point { level: *level, offered: Vec::new(), forwarded: Vec::new() })
                .collect();
            // In turn, so that a slow second of the machine is not that of one level.
            for _ in 0..repetitions {
                for point in &mut curve {
                    let pace = if point.level < 100 { most * point.level as f64 / 100.0 } else { 0.0 };
                    load.pace.store(pace as u64, Ordering::Release);
                    let (offered, forwarded) = self.rate(case, &load)?;
                    point.offered.push(offered);
                    point.forwarded.push(forwarded);
                }
            }
            Ok(curve)
        })
    }

    /// Packets per second at the generator's maximum rate, and the most at any rate up to it.
    fn overload(&self, repetitions: usize) -> Result<(f64, f64), String> {
        let case = case("overload", Forwarder::Scion("udp-batch"), 172, true);
        let (_router, load) = (self.start(&case)?, Load::default());
        self.play(&case, &load, || {
            let median = |offered: f64| {
                load.pace.store(offered as u64, Ordering::Release);
                let rates: Result<Vec<f64>, String> =
                    (0..repetitions).map(|_| Ok(self.rate(&case, &load)?.1)).collect();
                rates.map(|rates| median(&rates))
            };
            let full = median(0.0)?;
            let mut peak = full;
            for part in [0.5, 0.75, 1.0, 1.25] {
                peak = peak.max(median(full * part)?);
            }
            Ok((full, peak))
        })
    }

    /// Calls `measure` while the generator sends.
    fn play<T>(&self, case: &Case, load: &Load, measure: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        shell(&self.generator, &format!("ip link set in gso_max_segs {}", if case.singles { 1 } else { 65_535 }));
        steer(if case.receives { 2 } else { 0 });
        let to_sink = SocketAddr::from((TO, PORT));
        let sink =
            self.sink.within(|| udp::open(to_sink, 1, Intake::Merged, None)).map_err(|error| error.to_string())?;
        let _sink = sink.map_err(|error| format!("the sink: {error}"))?;
        let to = if case.forwarder == Forwarder::Kernel { to_sink } else { SocketAddr::from((IN, PORT)) };
        let from = SocketAddr::from((FROM, PORT));
        let port =
            self.generator.within(|| udp::open(from, 1, Intake::Single, None)).map_err(|error| error.to_string())?;
        let mut port = first(port.map_err(|error| format!("the generator: {error}"))?);
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| generate(case, &mut port, to, load, &is_done));
            thread::sleep(WARM);
            let measured = measure();
            is_done.store(true, Ordering::Release);
            measured
        })
    }

    /// Packets a second that the generator sent, and that arrived at the sink.
    fn rate(&self, case: &Case, load: &Load) -> Result<(f64, f64), String> {
        thread::sleep(WARM);
        let sent = || load.sent.load(Ordering::Acquire);
        let (before, sent_before, begin) = (self.arrived(case.length)?, sent(), Instant::now());
        thread::sleep(LASTS);
        let (after, sent_after, took) = (self.arrived(case.length)?, sent(), begin.elapsed());
        if after == before {
            return Err("no packet arrived at the sink".to_owned());
        }
        let rate = |count: u64| count as f64 / took.as_secs_f64();
        Ok((rate(sent_after - sent_before), rate(after - before)))
    }

    /// Packets that arrived at the sink's device: its octets without the headers, of which each message has one set.
    fn arrived(&self, length: usize) -> Result<u64, String> {
        let table = self.sink.within(|| fs::read_to_string("/proc/thread-self/net/dev"));
        let table = table.and_then(|table| table).map_err(|error| error.to_string())?;
        let line = table.lines().find_map(|line| line.trim().strip_prefix("out:")).ok_or("no device")?;
        let mut numbers = line.split_whitespace().map(|word| word.parse::<u64>().unwrap_or(0));
        let (octets, messages) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        Ok(octets.saturating_sub(messages * CARRIED_BY) / length as u64)
    }

    /// Starts what forwards in this case, unless the kernel does.
    fn start(&self, case: &Case) -> Result<Running, String> {
        let (format, config) = match case.forwarder {
            Forwarder::Kernel => return Ok(Running::default()),
            Forwarder::Null => {
                return Ok(Running { _null: Some(NullForwarder::start(&self.router)?), _router: None });
            }
            Forwarder::Scion(backend) => ("scion", scion_config(backend, case.threads)),
            Forwarder::Platypus(backend) => ("platypus", platypus_config(backend)),
            Forwarder::Icing(backend) => ("icing", icing_config(backend)),
        };
        let failed = |error: io::Error| error.to_string();
        let page = self.router.within(ports::free_address);
        let page = page.and_then(|page| page).map_err(failed)?;
        let folder = self.network.state();
        let write = |name: &str, text: String| fs::write(folder.join(name), text).map_err(failed);
        let secret = format!("{:032x}", u128::from_be_bytes(KEY));
        write(
            "router.key",
            format!("role = \"router\"\nformat = \"{format}\"\n[[key]]\nfrom = 0\nsecret = \"{secret}\"\n"),
        )?;
        write("router.toml", format!("{config}[status]\nlisten = \"{page}\"\n"))?;
        shell(&NetworkNamespace::Own, &format!("chmod 600 {}", folder.join("router.key").display()));
        let _ = fs::remove_file(folder.join("router.redb"));
        let program = wayleave_lab::product::program().map_err(|error| error.to_string())?;
        let log = fs::File::create(folder.join("router.log")).map_err(failed)?;
        let mut command = self.router.command(&program);
        command
            .args(["run", "router", "--config", "router.toml"])
            .current_dir(folder)
            .stdout(Stdio::null())
            .stderr(log);
        let mut running = RouterProcess(command.spawn().map_err(failed)?);
        let begin = Instant::now();
        while !is_ready(&self.router, &program, &page.to_string()) {
            let ended = running.0.try_wait().map_err(failed)?.is_some();
            if ended || begin.elapsed() > TIMEOUT {
                let log = fs::read_to_string(folder.join("router.log")).unwrap_or_default();
                return Err(log.split_whitespace().collect::<Vec<_>>().join(" "));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(Running { _null: None, _router: Some(running) })
    }
}

fn is_ready(place: &NetworkNamespace, program: &FilePath, page: &str) -> bool {
    let mut command = place.command(program);
    let output = command.args(["show", "status", "--json", "--url", page]).output();
    // An error is also an object with a version, but the command fails.
    let answer = output.ok().filter(|output| output.status.success());
    answer.is_some_and(|answer| {
        serde_json::from_slice::<Value>(&answer.stdout).is_ok_and(|status| status["version"] == 1)
    })
}

/// Runs a shell line in a namespace. Its errors are ignored: they show in the measurement.
fn shell(place: &NetworkNamespace, line: &str) {
    let _ = place.command("sh").args(["-c", line]).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// Sets the cores (a mask) on which the router's namespace receives packets; 0 means the core that sent them.
fn steer(mask: u32) {
    let line = format!("echo {mask} > /sys/class/net/in/queues/rx-0/rps_cpus");
    let mut command = Command::new("ip");
    let _ = command.args(["netns", "exec", "router", "sh", "-c", &line]).stderr(Stdio::null()).status();
}

/// Keeps the calling thread on one core.
fn pin(core: usize) {
    let mut cores = rustix::thread::CpuSet::new();
    cores.set(core);
    let _ = rustix::thread::sched_setaffinity(None, &cores);
}

/// Sends prepared packets as `load` asks, and counts them there.
fn generate(case: &Case, port: &mut dyn Port, to: SocketAddr, load: &Load, is_done: &AtomicBool) {
    if case.threads == 1 {
        pin(0);
    }
    let mut burst = Burst::default();
    let out: Vec<Outgoing> = (0..BUILT as u32).map(|packet| Outgoing { packet, to }).collect();
    let is_stamped = !matches!(case.forwarder, Forwarder::Kernel | Forwarder::Null);
    let mut built = None::<Instant>;
    let mut packet = builder(case);
    let (mut begin, mut sent, mut at) = (Instant::now(), 0u64, 0);
    while !is_done.load(Ordering::Acquire) {
        // Platypus and ICING packets carry a time stamp and are rebuilt before it is too old.
        if built.is_none_or(|built| is_stamped && built.elapsed() > Duration::from_secs(3)) {
            burst.clear();
            for number in 0..BUILT {
                burst.push(&packet(number), to);
            }
            built = Some(Instant::now());
        }
        let offered = load.pace.load(Ordering::Acquire);
        if offered != at {
            (begin, sent, at) = (Instant::now(), 0, offered);
        }
        let some = if offered == 0 { &out[..] } else { &out[..FLOW.min(64)] };
        if offered != 0 && begin.elapsed().as_secs_f64() * (offered as f64) < sent as f64 {
            continue;
        }
        match port.send(&burst, some) {
            Ok(0) => drop(wait([&*port].into_iter(), Duration::from_micros(50))),
            Ok(count) => {
                sent += count as u64;
                load.sent.fetch_add(count as u64, Ordering::Release);
            }
            Err(_) => {}
        }
    }
}

/// Returns a function that makes the packets of a case by number.
fn builder(case: &Case) -> Box<dyn FnMut(usize) -> Vec<u8>> {
    let length = case.length;
    match case.forwarder {
        Forwarder::Kernel | Forwarder::Null => Box::new(move |_| vec![0; length]),
        Forwarder::Scion(_) => Box::new(move |number| scion_packet(length, (number / FLOW) as u32 + 1)),
        Forwarder::Platypus(_) => Box::new(move |number| platypus_packet(length, number as u32)),
        Forwarder::Icing(_) => {
            let senders: Vec<Sender> = (0..BUILT / FLOW).map(icing_sender).collect();
            let payload = vec![0; length - 64 * ICING_NODES];
            Box::new(move |number| {
                let mut out = Vec::new();
                let nonce = IcingNonce::new(unix_now(), number as u32);
                icing_encapsulate(&senders[number / FLOW], (Form::Path, Part::Whole), 4, nonce, &payload, &mut out)
                    .expect("no payload is too long");
                out
            })
        }
    }
}

/// The secret of a node of the path. The router is node 1, the first after the sender.
fn icing_node(index: usize) -> NodeSecret {
    if index == 1 { icing_secret(&KEY) } else { NodeSecret::derive(&Seed::new([index as u8; 32]), 0) }
}

/// Sender `number` with its own path over the same nodes and every node's consent.
fn icing_sender(number: usize) -> Sender {
    let secret = NodeSecret::derive(&Seed::new([0xf0; 32]), number as u32);
    let expiry = unix_now().secs() as u32 + 8_000;
    let hop = |index| IcingHop { node: icing_node(index).id(), tag: Tag(number as u32), expiry };
    let hops: Vec<IcingHop> = (1..ICING_NODES).map(hop).collect();
    let path = IcingPath::new(secret.id(), &hops).expect("eight nodes");
    let hash = path.hash(Version::Standard);
    let master = |index| if index == 1 { icing_master(&KEY) } else { TagMaster::new(Key128::new([index as u8; 16])) };
    let consents: Vec<_> =
        (1..ICING_NODES).map(|index| master(index).consent(&hash, index, Tag(number as u32), expiry)).collect();
    Sender::new(Version::Standard, &path, &secret, &consents).expect("one consent for each node")
}

/// A transit hop in construction direction, the second of three.
fn scion_packet(length: usize, flow_id: u32) -> Vec<u8> {
    let timestamp = unix_now().secs() as u32 - 60;
    let (key, other) = (ForwardingKey::new(&KEY), ForwardingKey::new(&[1; 16]));
    let mut segment = Segment::new(0x1234, timestamp);
    segment.extend(&other, 63, 0, 7, &[]);
    segment.extend(&key, 63, 1, 2, &[]);
    segment.extend(&other, 63, 9, 0, &[]);
    let path = PathBuilder::new().segment(&segment, 0..3, Direction::Construction).and_then(PathBuilder::build);
    let mut path = path.expect("three hops are a path");
    path.infos[0].seg_id = segment.beta(1);
    path.meta.current_hop = 1;
    let header = Header {
        traffic_class: 0,
        flow_id,
        next_header: next_header::UDP,
        dst: IsdAs::new(1, 300),
        src: IsdAs::new(1, 100),
        dst_host: HostAddress::V4(Ipv4Addr::new(10, 0, 0, 1)),
        src_host: HostAddress::V4(Ipv4Addr::new(10, 0, 0, 2)),
        path: Path::Standard(path),
    };
    let payload = vec![0; length.saturating_sub(header.wire_len())];
    Packet { header, payload }.encode()
}

fn platypus_packet(length: usize, number: u32) -> Vec<u8> {
    let now = unix_now();
    let keys = WaypointKeys::new(WaypointKey::new(&Key128::new(KEY)));
    let interval = Interval::new(12).expect("in range");
    let width = if length < 72 { Width::Narrow } else { Width::Full };
    let capability = Capability {
        waypoint: IpAddr::V4(WAYPOINT),
        principal: Principal::new(number % 64).expect("24 bits"),
        interval,
        epoch: epoch::epoch_at(interval, now),
        marks: Marks::default(),
        delegation: None,
        width,
    };
    let hops = [Hop { key: keys.stamp_key(&capability).expect("one key for ever"), capability }];
    let nonce = Nonce::new(now, number);
    let route = Route { hops: &hops, nonce, sealed: false, reply_option: &[], carriage: Carriage::Ip };
    let inner_length = length - 32 - width.octets();
    let mut inner = vec![0; inner_length];
    inner[0] = 0x45;
    inner[2..4].copy_from_slice(&(inner_length as u16).to_be_bytes());
    (inner[8], inner[9]) = (64, 17);
    inner[12..16].copy_from_slice(&[192, 0, 2, 1]);
    inner[16..20].copy_from_slice(&LAST.octets());
    let mut out = Vec::new();
    encapsulate(&inner, &route, &mut out).expect("a sound packet");
    out
}

fn scion_config(backend: &str, threads: usize) -> String {
    let cores = if threads == 1 { "[1]".to_owned() } else { format!("{:?}", (0..threads).collect::<Vec<_>>()) };
    let interface = |id, link, neighbor, (local, remote), device| {
        format!(
            "[[interface]]\nid = {id}\nlink = \"{link}\"\nneighbor = \"1-{neighbor}\"\nlocal = \"{local}:{PORT}\"\n\
             remote = \"{remote}:{PORT}\"\n{}",
            carried(backend, device)
        )
    };
    format!(
        "[forwarding]\nformat = \"scion\"\nkeys = \"router.key\"\nworkers = {threads}\ncores = {cores}\n\
         [scion]\nisd_as = \"1-200\"\ninternal = \"127.0.0.1:30042\"\n{}{}",
        interface(1, "parent", 100, (IN, FROM), "in"),
        interface(2, "child", 300, (OUT, TO), "out")
    )
}

fn platypus_config(backend: &str) -> String {
    let link = |(local, remote), device, routes: String| {
        format!(
            "[[link]]\nlocal = \"{local}:{PORT}\"\nremote = \"{remote}:{PORT}\"\nroutes = [{routes}]\n{}",
            carried(backend, device)
        )
    };
    format!(
        "[forwarding]\nformat = \"platypus\"\nkeys = \"router.key\"\nstate = \"router.redb\"\ncores = [1]\n\
         [platypus]\nwaypoints = [\"{WAYPOINT}\"]\nnarrow = true\nrepeated = \"pass\"\n{}{}",
        link((IN, FROM), "in", String::new()),
        link((OUT, TO), "out", format!("\"{LAST}/32\""))
    )
}

/// Without a replay filter, since the prepared packets are sent repeatedly.
fn icing_config(backend: &str) -> String {
    let next: String = icing_node(2).id().to_bytes().iter().map(|octet| format!("{octet:02x}")).collect();
    let link = |id, (local, remote), device, behind: &str| {
        format!(
            "[[link]]\nid = {id}\nlocal = \"{local}:{PORT}\"\nremote = \"{remote}:{PORT}\"\n{behind}\n{}",
            carried(backend, device)
        )
    };
    format!(
        "[forwarding]\nformat = \"icing\"\nkeys = \"router.key\"\ncores = [1]\n\
         [icing]\nreplay_capacity = 0\ntags = [{{ prefix = \"00000000/0\" }}]\n{}{}",
        link(1, (IN, FROM), "in", "open = true"),
        link(2, (OUT, TO), "out", &format!("nodes = [\"{next}\"]"))
    )
}

fn carried(backend: &str, device: &str) -> String {
    let device = if backend == "af-xdp" { format!("device = \"{device}\"\n") } else { String::new() };
    format!("backend = \"{backend}\"\n{device}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(level: usize, offered: f64, forwarded: f64) -> Point {
        Point { level, offered: vec![offered], forwarded: vec![forwarded] }
    }

    #[test]
    fn the_lossless_rate_is_the_highest_at_which_all_arrive() {
        let curve =
            [point(25, 100.0, 100.0), point(50, 200.0, 199.9), point(75, 300.0, 250.0), point(100, 400.0, 240.0)];
        assert_eq!(lossless(&curve), Some(199.9));
        assert_eq!(lossless(&curve[2..]), None);
        let mut report = Report::new("forward-io", Value::Null);
        add_curve(&mut report, "figure-4.null", &curve);
        assert_eq!(report.results.len(), 2 * curve.len() + 1);
        assert_eq!(report.value("figure-4.null.forwarded.75"), Some(250.0));
        assert_eq!(report.value("figure-4.null.lossless"), Some(199.9));
    }

    #[test]
    fn levels_rise_in_equal_steps_to_the_maximum() {
        assert_eq!((levels(4), levels(10).len()), (vec![25, 50, 75, 100], 10));
        assert_eq!(levels(10).last(), Some(&100));
    }

    #[test]
    fn packets_of_figure_4_have_the_papers_length() {
        for case in &OFFERED {
            assert!(case.name.starts_with("figure-4.") && case.singles && case.receives, "{}", case.name);
            assert_eq!(builder(case)(3).len(), 68, "{}", case.name);
        }
    }
}

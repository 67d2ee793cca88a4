//! `kill -9` of a node on a path in use, under `ssh` and `iperf3`: on the path of one direction, of the other, and of both.
//!
//! The overlay is the demonstration's: two clean paths in the west, a shorter one through the east that b does not answer by. What is
//! measured is the longest time in which the application got nothing.
//!
//! ICC-08, by process: `kill -9` of a node on the path of both directions or of either alone, under `ssh` and `iperf3`
//! both ways, 20 times, and 200 once (`WAYLEAVE_FAILOVER_KILLS`; the longest gap of the 200 was 2.02 s, beside builds
//! on both cores): nothing is missing for three seconds, less what a thread that only sleeps was not run; no active
//! path has the dead node.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use wayleave_lab::laboratory::Laboratory;
use wayleave_lab::netns::{self, Network, Rung};
use wayleave_lab::overlay::plan::Plan;
use wayleave_lab::overlay::{Overlay, tun_problem};
use wayleave_lab::process::{Daemon, wait_until};
use wayleave_lab::routers::{IPERF3, Installation, SSHD, default_cache, locate_or_fetch_router};

use crate::common::Folder;

const DESCRIPTION: &str = include_str!("../../../../../docs/examples/lab/demo.toml");
/// Kills, unless `WAYLEAVE_FAILOVER_KILLS` says otherwise; then those that were done before count, if the program is the same.
const KILLS: usize = 20;
/// No application waits so long.
const BOUND: Duration = Duration::from_secs(3);
/// Limit on each wait for what has no bound.
const TIMEOUT: Duration = Duration::from_secs(60);
/// What is sent in each of these; `iperf3` reports no shorter ones.
const STEP: Duration = Duration::from_millis(50);
/// So much is watched after the longest gap.
const AFTER: Duration = Duration::from_millis(3_200);
/// A kill during which the machine ran nothing for too long proves nothing, and is repeated at most so often.
const REPEATS: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Application {
    /// Lines to `cat` at the other end, and back.
    Ssh,
    /// From a to b, and from b to a.
    Iperf,
    IperfReverse,
}

/// On which direction's path the node is that is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Forward,
    Back,
    Both,
}

/// One of the kills, by its number.
fn kill_number(number: usize) -> (Application, Way) {
    let application = [Application::Ssh, Application::Iperf, Application::IperfReverse][number % 3];
    (application, [Way::Both, Way::Forward, Way::Back][number / 3 % 3])
}

/// When something arrived.
type Arrivals = Arc<Mutex<Vec<Instant>>>;

/// An application that runs, until it is dropped.
struct Flow {
    children: Vec<Child>,
    arrivals: Arrivals,
}

impl Flow {
    /// Notes every line for which `counts` holds.
    fn watch(&self, child: &mut Child, counts: fn(&str) -> bool) {
        let (output, arrivals) = (child.stdout.take().expect("piped"), Arc::clone(&self.arrivals));
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if counts(&line) {
                    arrivals.lock().expect("no panic").push(Instant::now());
                }
            }
        });
    }

    fn count(&self) -> usize {
        self.arrivals.lock().expect("no panic").len()
    }

    /// Seconds after `from` at which the first twenty things arrived.
    fn after(&self, from: Instant) -> Vec<f64> {
        let arrivals = self.arrivals.lock().expect("no panic");
        arrivals.iter().filter(|at| **at > from).take(20).map(|at| (*at - from).as_secs_f64()).collect()
    }

    /// The longest time in which nothing arrived, from just before `from` on, and when it began.
    fn longest(&self, from: Instant) -> (Duration, Instant) {
        let arrivals = self.arrivals.lock().expect("no panic");
        let before = arrivals.iter().rev().find(|at| **at <= from).copied().unwrap_or(from);
        let after = arrivals.iter().filter(|at| **at > from).copied();
        let mut last = before;
        let gaps = after.chain([Instant::now()]).map(|at| {
            let gap = (at - last, last);
            last = at;
            gap
        });
        gaps.max_by_key(|(gap, _)| *gap).expect("at least one")
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// How long this machine did not run a thread that wanted to run, and when.
struct Stalls {
    stalls: Arc<Mutex<Vec<(Instant, Duration)>>>,
    ends: Arc<AtomicBool>,
}

impl Stalls {
    const NAP: Duration = Duration::from_millis(10);

    fn start() -> Self {
        let watch = Self { stalls: Arc::default(), ends: Arc::default() };
        let (stalls, ends) = (Arc::clone(&watch.stalls), Arc::clone(&watch.ends));
        std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                let begin = Instant::now();
                std::thread::sleep(Self::NAP);
                let stall = begin.elapsed().saturating_sub(Self::NAP * 2);
                if !stall.is_zero() {
                    stalls.lock().expect("no panic").push((begin, stall));
                }
            }
        });
        watch
    }

    /// How much of a span this was.
    fn within(&self, from: Instant, span: Duration) -> Duration {
        let stalls = self.stalls.lock().expect("no panic");
        stalls.iter().filter(|(at, _)| (from..from + span).contains(at)).map(|(_, stall)| *stall).sum()
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

/// What was done before, in a file beside the program, so that a run that was interrupted goes on.
struct Record {
    file: PathBuf,
    done: Vec<String>,
}

impl Record {
    /// That of this program; one of another is begun anew.
    fn open() -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_wayleave"));
        let about = fs::metadata(program).expect("the program");
        let head = format!("{} octets, {:?}", about.len(), about.modified().expect("a time"));
        let folder = program.ancestors().nth(2).expect("target/PROFILE/wayleave").join("failover");
        fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join("kills");
        let known = fs::read_to_string(&file).unwrap_or_default();
        let mut lines = known.lines().map(str::to_owned);
        let is_same = lines.next().as_ref() == Some(&head);
        let done = if is_same { lines.collect() } else { Vec::new() };
        if !is_same {
            fs::write(&file, head + "\n").expect("written");
        }
        Self { file, done }
    }

    fn add(&mut self, line: String) {
        let mut file = OpenOptions::new().append(true).open(&self.file).expect("the record");
        writeln!(file, "{line}").expect("written");
        self.done.push(line);
    }
}

/// The overlay, and what runs in it.
struct Place {
    overlay: Overlay,
    folder: PathBuf,
    iperf: Installation,
    _sshd: Daemon,
    port: u16,
}

impl Place {
    fn start(network: &Network, folder: &Path, rung: Rung, [sshd, iperf]: [Installation; 2]) -> Self {
        assert!(rung != Rung::Rootless, "sshd would be another user");
        let plan = Plan::parse(DESCRIPTION).expect("the example");
        let program = Path::new(env!("CARGO_BIN_EXE_wayleave"));
        let mut overlay =
            Overlay::start(plan, network, &folder.join("overlay"), program, &mut |_| ()).expect("it starts");
        overlay.settle(&mut |_| ()).expect("nodes find each other");
        let server = start_sshd(&overlay, &sshd, folder);
        Self { overlay, folder: folder.to_owned(), iperf, _sshd: server, port: 5_200 }
    }

    fn page(&self, place: &str, page: &str) -> Value {
        self.overlay.page(place, &format!("/api/v1/{page}")).unwrap_or_default()
    }

    /// The active path of a name at a.
    fn active(&self, name: &str) -> Vec<String> {
        nodes(&self.page("a", &format!("why?name={name}"))["active"])
    }

    /// The paths of a gateway that are in use.
    fn used(&self, gateway: &str) -> Vec<Value> {
        let paths = self.page(gateway, "paths");
        let all = paths["paths"].as_array().cloned().unwrap_or_default();
        all.into_iter().filter(|path| path["used"].as_array().is_some_and(|used| !used.is_empty())).collect()
    }

    /// Which paths each gateway sends by and which are dead.
    fn seen(&self) -> String {
        let mut seen = String::new();
        for gateway in ["a", "b"] {
            let paths = self.page(gateway, "paths");
            for path in paths["paths"].as_array().into_iter().flatten() {
                let dead = if path["dead"] == true { ", dead" } else { "" };
                let _ = write!(seen, "| {} {}{dead} ", nodes(path).concat(), path["used"]);
            }
        }
        seen
    }

    /// What is known of paths, for who reads a failure.
    fn shown(&self) -> String {
        let of =
            |gateway: &str| format!("{gateway}: {}\n  {}\n", self.page(gateway, "paths"), self.page(gateway, "status"));
        of("a") + &of("b")
    }

    /// Waits until a name has an active and a spare path, and no path in use is dead.
    fn settle(&self, name: &str) {
        // A node that returned is listed a little later; until then its path ends with the proofs that it has.
        let is_well = |path: &Value| {
            path["listed"] == true && path["proven_until"].is_u64() && path["dead"] == false && path["held"] == true
        };
        let settled = wait_until(TIMEOUT, || {
            let why = self.page("a", &format!("why?name={name}"));
            // Of the paths that a uses b's own policy leaves two in the west, and none through the east.
            let rest = ["a", "b"].iter().all(|gateway| {
                let used = self.used(gateway);
                used.len() >= 2 && used.iter().all(is_well)
            });
            // A name that goes by the east does so again once the east has proven itself.
            let is_first = !name.starts_with("fast") || nodes(&why["active"]) == ["a", "e", "b"];
            (is_well(&why["active"]) && is_well(&why["spare"]) && rest && is_first).then_some(())
        });
        assert!(settled.is_some(), "{name} does not settle: {}", self.shown());
    }

    fn iperf(&self, place: &str, arguments: &[&str]) -> Child {
        let mut command = self.overlay.command(place, self.iperf.program("iperf3"));
        self.iperf.prepare(&mut command);
        let step = format!("{}", 2.0 * STEP.as_secs_f64());
        command.args(arguments).args(["-p", &self.port.to_string(), "-i", &step, "--forceflush"]);
        command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("iperf3 runs")
    }

    /// Starts an application between a and b, by this name of b, and waits until something arrives.
    fn flow(&mut self, application: Application, name: &str) -> Flow {
        let begin = Instant::now();
        loop {
            let flow = self.try_flow(application, name);
            if wait_until(Duration::from_secs(10), || (flow.count() > 10).then_some(())).is_some() {
                return flow;
            }
            assert!(begin.elapsed() < TIMEOUT, "{application:?} to {name} does not begin: {}", self.shown());
        }
    }

    fn try_flow(&mut self, application: Application, name: &str) -> Flow {
        let mut flow = Flow { children: Vec::new(), arrivals: Arrivals::default() };
        if application == Application::Ssh {
            let mut command = self.overlay.command("a", "ssh");
            command.arg("-i").arg(self.folder.join("user"));
            for option in
                ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "BatchMode=yes"]
            {
                command.args(["-o", option]);
            }
            command.args(["-4", &format!("root@{name}"), "cat"]);
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("ssh runs");
            let mut input = child.stdin.take().expect("piped");
            std::thread::spawn(move || {
                for number in 0u64.. {
                    if writeln!(input, "{number}").and_then(|()| input.flush()).is_err() {
                        break;
                    }
                    std::thread::sleep(STEP);
                }
            });
            flow.watch(&mut child, |_| true);
            flow.children.push(child);
            return flow;
        }
        self.port += 1;
        let mut server = self.iperf("b", &["-s", "-1"]);
        std::thread::sleep(Duration::from_millis(300));
        let sends = ["-4", "-c", name, "-t", "600", "-b", "20M"];
        let more: &[&str] = if application == Application::IperfReverse { &["-R"] } else { &[] };
        let mut client = self.iperf("a", &[&sends[..], more].concat());
        let reader = if application == Application::IperfReverse { &mut client } else { &mut server };
        flow.watch(reader, has_octets);
        flow.children.extend([client, server]);
        flow
    }

    fn forwarded(&self, node: &str) -> u64 {
        self.page(node, "status")["sent"].as_u64().unwrap_or(0)
    }

    /// A node on the active path of a direction: another one of it each time.
    fn victim(&self, way: Way, name: &str, number: usize) -> String {
        let forward = self.active(name);
        if way != Way::Back {
            return forward[1 + number % (forward.len() - 2)].clone();
        }
        // The path of what b sends is that which is busier.
        let count = || ["w2", "w5"].map(|node| self.forwarded(node));
        let before = count();
        std::thread::sleep(Duration::from_millis(700));
        let [north, south] = [0, 1].map(|at| count()[at] - before[at]);
        let path = if north > south { ["w1", "w2", "w3"] } else { ["w4", "w5", "w6"] };
        path[number % 3].to_owned()
    }
}

/// Whether a line of `iperf3` is about a span in which something arrived.
fn has_octets(line: &str) -> bool {
    let Some((span, rest)) = line.split_once("sec") else { return false };
    let amount = rest.split_whitespace().next().and_then(|text| text.parse::<f64>().ok());
    span.contains('-') && amount.is_some_and(|amount| amount > 0.0)
}

fn nodes(path: &Value) -> Vec<String> {
    path["nodes"].as_array().into_iter().flatten().filter_map(|node| node.as_str().map(str::to_owned)).collect()
}

/// A real server at b, unmodified, for one key.
fn start_sshd(overlay: &Overlay, sshd: &Installation, folder: &Path) -> Daemon {
    // It wants a user to be harmless as; inside there is only one.
    let users = fs::read_to_string("/etc/passwd").expect("users");
    fs::write("/etc/passwd", users + "sshd:x:0:0::/run/sshd:/bin/false\n").expect("written");
    fs::create_dir_all("/run/sshd").expect("a folder");
    for key in ["host", "user"] {
        let mut command = Command::new("ssh-keygen");
        let made = command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.join(key)).status();
        assert!(made.expect("ssh-keygen runs").success());
    }
    let authorized = "/run/sshd/authorized";
    fs::copy(folder.join("user.pub"), authorized).expect("copied");
    fs::set_permissions(authorized, fs::Permissions::from_mode(0o600)).expect("mode");
    let config = folder.join("sshd_config");
    let lines = format!(
        "HostKey {}\nAuthorizedKeysFile {authorized}\nPermitRootLogin yes\nUsePAM no\nStrictModes no\nPidFile none\n\
         PasswordAuthentication no\nListenAddress 0.0.0.0\nUseDNS no\n",
        folder.join("host").display()
    );
    fs::write(&config, lines).expect("written");
    let mut command = overlay.command("b", sshd.program("sshd"));
    sshd.prepare(&mut command);
    command.args(["-D", "-e", "-f"]).arg(&config);
    Daemon::start(&mut command, &folder.join("sshd.log")).expect("started")
}

/// One kill: the longest gap, and how long the machine stood still within it. The node runs again afterwards.
fn kill(place: &mut Place, stalls: &Stalls, number: usize) -> (String, Duration, Duration) {
    let (application, way) = kill_number(number);
    let name = if way == Way::Both { "clean.b.demo" } else { "fast.b.demo" };
    let flow = place.flow(application, name);
    place.settle(name);
    // At any moment between two probes, lists and consents.
    std::thread::sleep(Duration::from_millis((number as u64 * 377) % 1_500));
    let victim = place.victim(way, name, number / 9 + number);
    let at = Instant::now();
    place.overlay.process(&victim).expect("a node").kill();
    let (mut story, mut before) = (String::new(), String::new());
    while at.elapsed() < AFTER || flow.longest(at).0 + AFTER > at.elapsed() && at.elapsed() < TIMEOUT / 3 {
        let seen = place.seen();
        if seen != before {
            let _ = writeln!(story, "{:.2} s {seen}", at.elapsed().as_secs_f64());
            before = seen;
        }
        std::thread::sleep(STEP);
    }
    let arrivals = flow.after(at);
    let (gap, from) = flow.longest(at);
    let stall = stalls.within(from, gap);
    let on_dead = |gateway: &&str| {
        let is_active = |path: &Value| path["used"].to_string().contains("active of");
        place.used(gateway).iter().any(|path| is_active(path) && nodes(path).contains(&victim))
    };
    let dead: Vec<_> = ["a", "b"].into_iter().filter(on_dead).collect();
    let shown = if dead.is_empty() && gap.saturating_sub(stall) < BOUND { String::new() } else { place.shown() };
    assert!(dead.is_empty(), "kill {number} of {victim}: the path through it is active at {dead:?}: {shown}");
    let what = format!("kill {number}, {application:?}, {way:?}, {victim}");
    assert!(
        gap.saturating_sub(stall) < BOUND,
        "{what}: nothing arrived for {gap:?}, machine busy for {stall:?}; arrivals {arrivals:.2?}\n{story}{shown}"
    );
    let process = place.overlay.process(&victim).expect("a node");
    process.start().expect("it starts again");
    place.overlay.wait_for(&victim).expect("it answers");
    (what, gap, stall)
}

#[test]
fn whichever_direction_loses_a_node_ssh_and_iperf3_go_on_within_three_seconds() {
    let test = "overlay::failover::whichever_direction_loses_a_node_ssh_and_iperf3_go_on_within_three_seconds";
    // Inside there is no way to a mirror.
    let mut found = Vec::new();
    for package in [SSHD, IPERF3] {
        match locate_or_fetch_router(&package, &default_cache(), &mut |_| ()) {
            Ok(installation) => found.push(installation),
            Err(error) => return netns::skipped(&format!("{test} with {}: {error}", package.name)),
        }
    }
    if let Some(reason) = tun_problem() {
        return netns::skipped(&format!("{test}: {reason}"));
    }
    let Some(rung) = netns::enter_for_test(test) else { return };
    if rung == Rung::Rootless {
        return netns::skipped(&format!("{test}: without root, sshd is not started"));
    }
    let requested = std::env::var("WAYLEAVE_FAILOVER_KILLS").ok().and_then(|text| text.parse().ok());
    let mut record = requested.map(|_: usize| Record::open());
    let before = record.as_ref().map_or(0, |record| record.done.len());
    let kills = requested.unwrap_or(KILLS);
    let network = Network::new().expect("a network");
    let folder = Folder::new("overlay-failover");
    let found: [Installation; 2] = found.try_into().expect("both");
    let mut place = Place::start(&network, &folder.0, rung, found);
    let stalls = Stalls::start();
    let (mut longest, begin) = (Duration::ZERO, Instant::now());
    let mut repeats = 0;
    let mut number = before;
    while number < kills {
        let (what, gap, stall) = kill(&mut place, &stalls, number);
        eprintln!("{what}: {:.2} s, of which the machine was busy for {:.2} s", gap.as_secs_f64(), stall.as_secs_f64());
        if gap >= BOUND {
            // Without what the machine was busy with it would have been shorter; that is shown once more.
            repeats += 1;
            assert!(repeats <= REPEATS, "the machine is too busy to measure anything");
            continue;
        }
        longest = longest.max(gap);
        if let Some(record) = &mut record {
            record.add(format!("{what}: {} ms, busy {} ms", gap.as_millis(), stall.as_millis()));
        }
        number += 1;
    }
    eprintln!(
        "{} kills took {:?}, {before} were done before: the longest gap was {longest:?}",
        kills - before.min(kills),
        begin.elapsed()
    );
    place.overlay.stop();
}

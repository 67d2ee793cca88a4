//! A gateway whose names a real systemd-resolved asks for, told by a real bus: both run in the namespace of gateway a, without systemd.
//!
//! ICC, resolver: systemd-resolved is told at the start, when it comes later and when it, or the bus, is killed and comes back; it asks for names and their
//! addresses; what it was told goes with the gateway, killed or stopped; where it refuses, the problems say what to do.

use std::fs;
use std::os::unix::fs::chown;
use std::process::Stdio;

use wayleave_lab::routers::{DBUS, Installation, RESOLVED};

use super::*;
use crate::common::eventually;
use crate::key::fetched;

const BUS: &str = "/run/lab/system_bus";
const USER: u32 = 991;
const NOBODY: u32 = 65_534;
const CONFIG: &str = "<busconfig><type>system</type><listen>unix:path=/run/lab/system_bus</listen><auth>EXTERNAL</auth>\
    <policy context='default'><allow user='*'/><allow own='*'/><allow send_destination='*' eavesdrop='true'/>\
    <allow eavesdrop='true'/></policy></busconfig>";

fn on_bus(command: &mut Command) -> &mut Command {
    command.env("DBUS_SYSTEM_BUS_ADDRESS", format!("unix:path={BUS}"))
}

/// The bus, and what starts systemd-resolved; nothing where this namespace has one user only.
struct Parts {
    bus: Daemon,
    resolved: Installation,
}

fn start_bus(world: &World, dbus: &Installation) -> Daemon {
    world.folder.write("bus.conf", CONFIG);
    let mut command = world.places[A].command(dbus.program("dbus-daemon"));
    dbus.prepare(&mut command);
    command
        .arg("--nofork")
        .arg("--nopidfile")
        .arg(format!("--config-file={}", world.folder.0.join("bus.conf").display()));
    let bus = Daemon::start(&mut command, &world.folder.0.join("bus.log")).expect("started");
    eventually("the bus is there", || fs::exists(BUS).expect("it is looked for"));
    bus
}

fn parts(world: &World, dbus: &Installation, resolved: Installation) -> Parts {
    let bus = start_bus(world, dbus);
    // It becomes a user of its own. This copy of the file is the namespace's.
    let users = fs::read_to_string("/etc/passwd").expect("users");
    if !users.contains("systemd-resolve:") {
        fs::write("/etc/passwd", format!("{users}systemd-resolve:x:{USER}:{USER}::/:/usr/sbin/nologin\n"))
            .expect("written");
        let groups = fs::read_to_string("/etc/group").expect("groups");
        fs::write("/etc/group", format!("{groups}systemd-resolve:x:{USER}:\n")).expect("written");
    }
    fs::create_dir_all("/run/systemd").expect("a folder");
    Parts { bus, resolved }
}

impl Parts {
    fn start(&self, world: &World) -> Daemon {
        let mut command = world.places[A].command(self.resolved.program("systemd-resolved"));
        self.resolved.prepare(&mut command);
        Daemon::start(on_bus(&mut command), &world.folder.0.join("resolved.log")).expect("started")
    }

    fn ctl(&self, world: &World, arguments: &[&str]) -> String {
        let mut command = world.places[A].command(self.resolved.program("resolvectl"));
        self.resolved.prepare(&mut command);
        let output = on_bus(&mut command).args(arguments).stdin(Stdio::null()).output().expect("it runs");
        text(&output.stdout)
    }
}

/// Starts a in the place of the one that runs; as nobody, with the right to make interfaces and to answer at port 53, if `is_root` is not so.
fn start(world: &mut World, is_root: bool) {
    world.gateways[0].daemon.kill();
    let mut command = if is_root {
        world.places[A].command(env!("CARGO_BIN_EXE_wayleave"))
    } else {
        for name in ["", "a.toml", "a.json", "a.redb"] {
            chown(world.folder.0.join(name), Some(NOBODY), Some(NOBODY)).expect("another user");
        }
        let mut command = world.places[A].command("setpriv");
        // The last one for /dev/net/tun, which some systems keep to root.
        let rights = "+net_admin,+net_bind_service,+dac_override";
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg(format!("--inh-caps={rights}")).arg(format!("--ambient-caps={rights}"));
        command.arg(env!("CARGO_BIN_EXE_wayleave"));
        command
    };
    command.args(["run", "gateway", "--config", "a.toml"]).current_dir(&world.folder.0);
    world.gateways[0].daemon = Daemon::start(on_bus(&mut command), &world.folder.0.join("a.log")).expect("started");
    let is_there = || !world.gateways[0].status().is_null();
    eventually("a answers", is_there);
}

/// What systemd-resolved answers a program that asks as any other.
fn ask(world: &World, name: &str, kind: RecordType) -> Vec<String> {
    let mut question = Message::query();
    question.add_query(Query::query(name.parse().expect("a name"), kind));
    question.metadata.recursion_desired = true;
    let question = question.to_vec().expect("encoded");
    let octets = world.places[A].within(|| {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        socket.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
        let mut answer = [0; 1_500];
        // Nobody may be there.
        let length = socket.send_to(&question, "127.0.0.53:53").and_then(|_| socket.recv(&mut answer)).unwrap_or(0);
        answer[..length].to_vec()
    });
    let answer = Message::from_vec(&octets.expect("in its place"));
    answer.into_iter().flat_map(|answer| answer.answers).map(|record| record.data.to_string()).collect()
}

fn stands(world: &World) -> Value {
    world.gateways[0].status()["resolver"].clone()
}

#[test]
fn systemd_resolved_asks_for_names_as_long_as_both_run() {
    let test = "gateway::resolved::systemd_resolved_asks_for_names_as_long_as_both_run";
    let (Some(dbus), Some(resolved)) = (fetched(&DBUS, test), fetched(&RESOLVED, test)) else { return };
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let others =
        Command::new("setpriv").args(["--reuid=65534", "--clear-groups", "true"]).stderr(Stdio::null()).status();
    if !others.expect("setpriv runs").success() {
        netns::skipped("systemd-resolved: it becomes another user, and there is one only in this namespace");
        return;
    }
    let mut world = World::start("gateway-resolved");
    // Without a bus there is nothing to tell.
    eventually("it has been looked for", || stands(&world) == "absent");
    let mut parts = parts(&world, &dbus, resolved);
    start(&mut world, true);
    eventually("a bus alone does not do", || stands(&world) == "absent");
    let mut resolved = parts.start(&world);
    eventually("it is told when it comes", || stands(&world) == "set");
    assert_eq!(ask(&world, "fast.b.demo.", RecordType::A), ["198.18.0.1"]);
    assert_eq!(ask(&world, "b.demo.", RecordType::AAAA), ["fd77:6179:6c65::1"]);
    assert_eq!(ask(&world, "1.0.18.198.in-addr.arpa.", RecordType::PTR), ["fast.b.demo."]);
    let v6 = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.5.6.c.6.9.7.1.6.7.7.d.f.ip6.arpa.";
    assert_eq!(ask(&world, v6, RecordType::PTR), ["fast.b.demo."]);
    let shown = parts.ctl(&world, &["status", "way0"]);
    for part in ["127.0.0.1", "~demo", "~18.198.in-addr.arpa", "-DefaultRoute", "-DNSOverTLS"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // Somebody takes it back: it is told again.
    parts.ctl(&world, &["revert", "way0"]);
    eventually("it is told again", || parts.ctl(&world, &["domain"]).contains("~demo"));
    assert_eq!(stands(&world), "set");
    // Killed, with nothing remembered of it: whoever comes next is told again.
    resolved.kill();
    eventually("its end is seen", || stands(&world) == "absent");
    fs::remove_dir_all("/run/systemd/resolve").expect("removed");
    resolved = parts.start(&world);
    eventually("it is told again", || stands(&world) == "set");
    assert_eq!(ask(&world, "clean.b.demo.", RecordType::A), ["198.18.0.2"]);
    // The bus ends, and with it whatever hung on it; the gateway finds the next one, and names go on being answered.
    parts.bus.kill();
    eventually("the end of the bus is seen", || stands(&world) == "failed");
    assert!(world.gateways[0].status()["problems"].to_string().contains("the system's bus does not answer"));
    resolved.kill();
    fs::remove_file(BUS).expect("what a bus that is killed leaves");
    parts.bus = start_bus(&world, &dbus);
    resolved = parts.start(&world);
    eventually("it is told by the next bus", || stands(&world) == "set");
    assert_eq!(ask(&world, "fast.b.demo.", RecordType::A), ["198.18.0.1"]);
    // Both ways in which a gateway ends take it back.
    world.gateways[0].daemon.kill();
    eventually("nobody is asked", || !parts.ctl(&world, &["domain"]).contains("~demo"));
    start(&mut world, true);
    eventually("the next one tells it", || stands(&world) == "set");
    assert_eq!(ask(&world, "clean.b.demo.", RecordType::A), ["198.18.0.2"]);
    assert!(world.gateways[0].daemon.stop(TIMEOUT), "{}", world.log(A));
    eventually("nobody is asked", || !parts.ctl(&world, &["domain"]).contains("~demo"));
    // Who is neither root nor allowed by polkit is told what to do.
    start(&mut world, false);
    eventually("it refuses", || stands(&world) == "failed");
    let status = world.gateways[0].status();
    let problems = status["problems"].to_string();
    assert!(problems.contains("`resolvectl dns way0 127.0.0.1:53`") && problems.contains("polkit"), "{problems}");
    assert!(world.log(A).contains("resolvectl domain way0 '~demo'"), "{}", world.log(A));
    let why = text(&world.gateways[0].ask(&["why", "fast.b.demo"]).stdout);
    assert!(why.contains("systemd-resolved does not ask"), "{why}");
    // It is left alone.
    let config = fs::read_to_string(world.folder.0.join("a.toml")).expect("a configuration");
    world.folder.write("a.toml", &config.replacen("[gateway]\n", "[gateway]\nresolved = false\n", 1));
    start(&mut world, true);
    assert_eq!(stands(&world), Value::Null);
    assert!(!parts.ctl(&world, &["domain"]).contains("~demo"));
    drop(resolved);
}

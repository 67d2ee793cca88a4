//! What gateways do while servers are slow, hang or are gone, and what they ask of them; and hosts on which a gateway cannot run.
//!
//! ICC, gateways and slow servers: 150 ms to and from every server; a new flow, then 20,000 packets, a million in `make
//! soak` (`WAYLEAVE_FLOW_PACKETS`): one round trip to all consent servers for each direction and none to the path
//! server; then no request more.
//! ICC, gateways without servers: all path and consent servers killed, and stopped without a word, under a flow:
//! packets pass until the consents end; then ICMP (administratively prohibited), and `why` says which server is
//! missing; all is well when they are back.
//! ICC, gateways, mistakes: no right to make interfaces, no `/dev/net/tun`, another resolver at the address, an address
//! of another machine, names that do not exist: the error says what is missing and what to do; nothing is left behind.
//! ICC-10, by process: 4,000 names that do not exist, of policies and of nodes: none has an address; the one in use
//! keeps its own.

use std::fs;
use std::net::UdpSocket;
use std::process::Command;
use std::time::{Duration, Instant};

use wayleave_lab::netns;

use super::harness::Running;
use super::hostile::dig;
use super::world::{Plan, World};
use crate::common::{eventually, text};

/// How long an answer may take under load.
const WAIT: Duration = Duration::from_millis(300);
/// Packets after which the servers have counted no request more.
const PACKETS: u64 = 20_000;

/// Answers each datagram to b, with itself.
fn echo(world: &World) {
    for at in ["10.0.2.1:7", "[fd00:2::1]:7"] {
        let socket = world.places["b"].within(|| UdpSocket::bind(at)).expect("in its place").expect("b's end");
        std::thread::spawn(move || {
            let mut octets = [0; 2_000];
            loop {
                if let Ok((length, from)) = socket.recv_from(&mut octets) {
                    let _ = socket.send_to(&octets[..length], from);
                }
            }
        });
    }
}

fn socket(world: &World, to: &str) -> UdpSocket {
    let any = if to.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
    let open = || UdpSocket::bind(any).and_then(|socket| socket.connect(to).map(|()| socket));
    let socket = world.places["a"].within(open).expect("in its place").expect("a socket");
    socket.set_read_timeout(Some(WAIT)).expect("a timeout");
    socket
}

/// Whether a datagram comes back.
fn is_answered(socket: &UdpSocket) -> std::io::Result<()> {
    socket.send(b"are you there?")?;
    socket.recv(&mut [0; 100]).map(drop)
}

/// Searches that the path server counted, and decisions of all consent servers.
fn requests(world: &World) -> (u64, u64) {
    let decided = |server: &Running| server.count("consented") + server.count("refused");
    (world.paths.count("queries"), world.consent.iter().map(decided).sum())
}

/// As [`requests`], once what is under way has come to its end: a gateway asks again for the paths of a flow that has too few of
/// them, at most 4 s later, and its client then asks the server once more if an advert has come since.
fn last_requests(world: &World) -> (u64, u64) {
    let mut last = (requests(world), Instant::now());
    eventually("servers are asked no more", || {
        let now = requests(world);
        if now != last.0 {
            last = (now, Instant::now());
        }
        last.1.elapsed() > Duration::from_secs(5)
    });
    last.0
}

#[test]
fn a_new_flow_waits_one_round_trip_to_all_consent_servers_at_once_and_packets_ask_nothing() {
    let test =
        "overlay::servers::a_new_flow_waits_one_round_trip_to_all_consent_servers_at_once_and_packets_ask_nothing";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let plan = Plan {
        more: &[("m", "gateway", 66, 0)],
        links: &[("m", "w1", "provider"), ("m", "e", "provider")],
        ports_up: 10,
        ..Plan::default()
    };
    let world = World::with("round-trips", &plan);
    // Links to all consent servers are up once a and b have sent elsewhere; between each other they know no path.
    for (from, names) in [("a", ["fast.m.overlay", "clean.m.overlay"]), ("b", ["fast.m.overlay", "clean.m.overlay"])] {
        for name in names {
            eventually(&format!("{from} reaches {name}: {}", world.logs()), || {
                world.nodes[from].ask(&["ping", name]).status.success()
            });
        }
    }
    eventually("b has its address", || {
        let shown = world.run("b", "ip", &["-j", "addr", "show", "wayleave0"]);
        text(&shown.stdout).contains("10.0.2.1") && text(&shown.stdout).contains("fd00:2::1")
    });
    echo(&world);
    let socket = socket(&world, "10.0.2.1:7");
    let before = last_requests(&world);
    let way = Duration::from_millis(150);
    world.relays.iter().for_each(|relay| relay.delay(way));
    socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    let begin = Instant::now();
    is_answered(&socket).expect("an answer");
    let waited = begin.elapsed();
    eprintln!("with {:?} to each server and back the first answer came after {waited:?}", 2 * way);
    // For each direction all consents at once: two round trips, since gateways search what path servers have sent. One after the other it
    // were six and more.
    assert!(waited >= 4 * way, "{waited:?}: without consents?");
    assert!(waited < 8 * way, "{waited:?}: consents one after the other?");
    let (searches, _) = requests(&world);
    assert_eq!(searches - before.0, 0, "the path server is not asked");
    // Spare paths get their consents too.
    let first = last_requests(&world);
    let packets = std::env::var("WAYLEAVE_FLOW_PACKETS").ok().and_then(|text| text.parse().ok()).unwrap_or(PACKETS);
    let sent = world.nodes["a"].count("sent");
    let carried = || world.nodes["a"].count("sent") - sent;
    // In bursts that the interface has room for.
    while carried() < packets {
        for _ in 0..100 {
            for number in 0..50u32 {
                let _ = socket.send(&number.to_be_bytes());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    eprintln!("{} packets were carried", carried());
    assert_eq!(requests(&world), first, "packets ask nobody for anything");
}

#[test]
fn while_servers_are_gone_or_hang_flows_live_until_their_proofs_expire_and_are_then_refused_with_a_reason() {
    let test = "overlay::servers::while_servers_are_gone_or_hang_flows_live_until_their_proofs_expire_and_are_then_refused_with_a_reason";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let mut world = World::with("gone", &Plan { consent_secs: 6, ..Plan::default() }).settled();
    echo(&world);
    let four = socket(&world, "10.0.2.1:7");
    let six = socket(&world, "[fd00:2::1]:7");
    for stops in [true, false] {
        for socket in [&four, &six] {
            eventually("packets are answered", || is_answered(socket).is_ok());
        }
        for server in world.consent.iter_mut().chain([&mut world.paths]) {
            // Killed, or alive and silent.
            if stops { server.kill() } else { server.signal("-STOP") }
        }
        let begin = Instant::now();
        let mut answers = 0;
        while begin.elapsed() < Duration::from_millis(2_000) {
            answers += u32::from(is_answered(&four).is_ok());
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(answers > 10, "{answers} answers in the two seconds after the servers went");
        // IPv4 has one error for this and others; that of IPv6 is its own (ICMPv6 type 1, code 1).
        let mut last = String::new();
        eventually("packets are refused as prohibited", || {
            let refused = is_answered(&six);
            last = format!("{refused:?}");
            refused.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
        });
        let lived = begin.elapsed();
        eprintln!("proofs of six seconds carried packets for {lived:?} after the servers went");
        assert!(lived < Duration::from_secs(20), "{lived:?}");
        eventually("IPv4 too", || {
            is_answered(&four).is_err_and(|error| error.kind() == std::io::ErrorKind::HostUnreachable)
        });
        let why = world.nodes["a"].json(&["why", "fast.b.overlay"]);
        assert_eq!(why["state"], "no-consent", "{why}");
        let reason = why["why"].as_str().unwrap_or_default();
        assert!(reason.contains("cannot be reached") || reason.contains("no answer"), "{why}");
        for server in world.consent.iter_mut().chain([&mut world.paths]) {
            if stops { server.spawn() } else { server.signal("-CONT") }
        }
        let begin = Instant::now();
        eventually(&format!("packets are answered again: {}", world.logs()), || is_answered(&four).is_ok());
        eprintln!("packets were answered {:?} after the servers came back", begin.elapsed());
    }
}

#[test]
fn a_gateway_that_cannot_run_here_says_what_is_missing_and_names_that_do_not_exist_are_explained() {
    let test = "overlay::servers::a_gateway_that_cannot_run_here_says_what_is_missing_and_names_that_do_not_exist_are_explained";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let mut world = World::new("missing");
    // Members become known one after another.
    eventually("a knows b", || dig(&world, "a", "clean.b.overlay").is_some());
    for (name, expected) in [
        ("none.b.overlay", "there is no policy `none`; there are: fast, clean, pinned"),
        ("fast.nobody.overlay", "no member of the realm that is known here is called `nobody`"),
        ("fast.nobody.overlay", "may not have been heard of yet"),
    ] {
        let output = world.nodes["a"].ask(&["ping", name]);
        let said = text(&output.stderr).replace('│', " ").split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(!output.status.success() && said.contains(expected), "{name}: {said}");
    }
    // Names that do not exist have no address, however many are asked for, and those that do keep theirs (ICC-10).
    let before = dig(&world, "a", "clean.b.overlay").expect("a name");
    for number in 0..2_000 {
        assert_eq!(dig(&world, "a", &format!("p{number}.b.overlay")), None);
        assert_eq!(dig(&world, "a", &format!("clean.n{number}.overlay")), None);
    }
    assert_eq!(dig(&world, "a", "clean.b.overlay"), Some(before));
    assert_eq!(world.nodes["a"].count("names"), 1);
    world.node("a").kill();
    let run = |wrapper: &[&str]| {
        let mut command = world.places["a"].command(wrapper.first().copied().unwrap_or(env!("CARGO_BIN_EXE_wayleave")));
        if let Some((_, more)) = wrapper.split_first() {
            command.args(more).arg(env!("CARGO_BIN_EXE_wayleave"));
        }
        command.args(["run", "gateway", "--config", "gateway.toml"]).env("NO_COLOR", "1");
        let output = command.current_dir(world.path("a")).output().expect("it ends by itself");
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        text(&output.stderr).replace("\n  │ ", " ")
    };
    // Root, but without the right.
    let said = run(&["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"]);
    assert!(said.contains("cannot make the TUN interface wayleave0") && said.contains("CAP_NET_ADMIN"), "{said}");
    // The address for names is taken, or no address of this machine: somebody else answers there.
    let taken = world.places["a"].within(|| UdpSocket::bind("127.0.0.1:53")).expect("in its place").expect("a socket");
    let said = run(&[]);
    assert!(said.contains("cannot answer names at 127.0.0.1:53") && said.contains("another resolver"), "{said}");
    drop(taken);
    world.realm.edit("a/gateway.toml", |text| text.replace("127.0.0.1:53", "192.0.2.99:53"));
    let checked = world.realm.folder.run(&["check", "a/gateway.toml"]);
    let said = run(&[]);
    assert!(said.contains("cannot answer names at 192.0.2.99:53"), "{said}\n{}", text(&checked.stdout));
    world.realm.edit("a/gateway.toml", |text| text.replace("192.0.2.99:53", "127.0.0.1:53"));
    // A system without TUN.
    let mounted = Command::new("mount").args(["-t", "tmpfs", "tmpfs", "/dev/net"]).status().expect("mount runs");
    assert!(mounted.success());
    let said = run(&[]);
    assert!(said.contains("cannot make the TUN interface wayleave0") && said.contains("/dev/net/tun"), "{said}");
    let unmounted = Command::new("umount").arg("/dev/net").status().expect("umount runs");
    assert!(unmounted.success());
    // Nothing of all this was left behind: it runs.
    world.node("a").resume();
    assert!(fs::exists("/dev/net/tun").expect("a file system"));
}

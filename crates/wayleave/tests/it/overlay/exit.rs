//! An exit to the Internet in a realm with its servers: the member that uses it has no route to anything but a default one.
//!
//! ICC, exit and servers: a reaches the Internet by b's address in both families, and members by name as before; its link, its path server and its
//! consent server are reached from its own address, also after they restarted, and what the realm's operator removes is known. Rules, settings
//! and packet filter are as before at the end, and after a kill at the next start; meanwhile nothing leaves in clear.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use wayleave_lab::netns::{self, Network, NetworkNamespace};

use super::harness::{Realm, Running};
use super::nat::{Gateway, link};
use super::world::{addresses_of, use_names};
use crate::common::{eventually, text};
use crate::gateway::exit::{WEB, WEB_V6, run, seen, serve, settings};

/// The address of the servers and of the forwarder.
const HERE: &str = "192.0.2.250";
const HERE_V6: &str = "[2001:db8::fa]";
/// The only addresses of a, and b's to the Internet.
const A: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
const OUTSIDE: [&str; 2] = ["203.0.113.2", "2001:db8:53::2"];
const ACCEPT: &str = "accept = [\"0.0.0.0/0\", \"::/0\"]";

/// What a gateway may have changed of its machine.
fn machine(place: &NetworkNamespace) -> Vec<String> {
    let rules = ["ip -4 rule", "ip -6 rule"].map(|line| run(place, line));
    let routes = ["ip -4 route show table all", "ip -6 route show table all"].map(|line| {
        let shown = run(place, line);
        shown.lines().filter(|line| line.contains("table 20520") || line.contains("wayleave0")).collect()
    });
    settings(place).into_iter().chain(rules).chain(routes).collect()
}

/// Whether somebody at this address is connected to this port of the servers.
fn is_connected(from: &str, port: u16) -> bool {
    let shown = run(&NetworkNamespace::Own, &format!("ss -Htn state established sport = :{port}"));
    let peers = shown.lines().filter_map(|line| line.split_whitespace().last()?.parse::<SocketAddr>().ok());
    peers.into_iter().any(|peer| peer.ip().to_canonical().to_string() == from)
}

#[test]
fn a_member_that_uses_an_exit_keeps_its_servers_and_the_other_members() {
    let test = "overlay::exit::a_member_that_uses_an_exit_keeps_its_servers_and_the_other_members";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    if Command::new("nft").arg("--version").output().is_err() {
        netns::skipped(&format!("{test} without nft; scripts/setup installs it as root"));
        return;
    }
    let network = Network::new().expect("a network");
    for address in [format!("{HERE}/24"), "2001:db8::fa/64".to_owned()] {
        run(&NetworkNamespace::Own, &format!("ip addr add {address} dev lan nodad"));
    }
    let attach = |name: &str, addresses: &[&str]| {
        let addresses: Vec<String> = addresses.iter().map(|address| (*address).to_owned()).collect();
        network.attach(name, &addresses).expect("a namespace")
    };
    let internet = attach("n-net", &["203.0.113.80/24", "2001:db8:53::80/64"]);
    serve(&internet, WEB);
    serve(&internet, WEB_V6);
    // What left in clear would be answered.
    for line in ["ip route add 192.0.2.1 dev eth0", "ip -6 route add 2001:db8::1 dev eth0"] {
        run(&internet, line);
    }
    let place_a = attach("n-a", &["192.0.2.1/32", "2001:db8::1/128"]);
    for line in ["ip route add default dev eth0", "ip -6 route add default dev eth0"] {
        run(&place_a, line);
    }
    let place_b = attach("n-b", &["192.0.2.2/24", "2001:db8::2/64"]);
    for line in [
        "ip addr add 203.0.113.2/24 dev eth0 noprefixroute",
        "ip addr add 2001:db8:53::2/64 dev eth0 noprefixroute nodad",
        "ip route add default dev eth0 src 203.0.113.2",
        "ip -6 route add default dev eth0 src 2001:db8:53::2",
    ] {
        run(&place_b, line);
    }
    let place_c = attach("n-c", &["192.0.2.3/24", "2001:db8::3/64"]);

    let realm = Realm::new("exit");
    let listen = format!("{HERE}:7100");
    let token = realm.invite(&["paths", "--role", "path", "--address", &listen]);
    realm.folder.ok(&["join", &token, "--dir", "paths", "--listen", &listen, "--status", "127.0.0.1:8501"]);
    let mut paths = Running::start("paths", realm.path("paths"), "path", "127.0.0.1:8501");
    let token = realm.invite(&["consent", "--role", "consent"]);
    let at = format!("{HERE_V6}:7200");
    realm.folder.ok(&["join", &token, "--dir", "consent", "--listen", &at, "--status", "127.0.0.1:8502"]);
    let who = format!("{}@{at}", realm.identity("consent"));
    let page = realm.router("w", Some(&who));
    realm.serve("consent", "w");
    let open = format!("\n[overlay.open]\nlocal = \"{HERE}:50001\"\n");
    realm.edit("w/router.toml", |text| text + &open);
    let w = realm.start("w", "router", &page);
    let before = [&place_a, &place_b].map(machine);
    Gateway::join(&realm, ("a", 1), &[], &who, "w", "");
    Gateway::join(&realm, ("b", 2), &["0.0.0.0/0", "::/0"], &who, "w", "");
    Gateway::join(&realm, ("c", 3), &[], &who, "w", "");
    let set = |name: &str, from: &str, to: &str| {
        realm.edit(&format!("{name}/gateway.toml"), |text| {
            assert!(text.contains(from), "{text}");
            text.replace(from, to)
        });
    };
    set("a", "#accept = [\"10.0.0.0/8\", \"fd00::/8\"]", ACCEPT);
    set("a", "#consent_secs = 300", "consent_secs = 6");
    set("b", "#exit = false", "exit = true");
    for gateway in ["a", "b", "c"] {
        realm.serve("consent", gateway);
    }
    let mut consent = realm.start("consent", "consent", "127.0.0.1:8502");
    let mut a = Gateway::run(&realm, &place_a, "a");
    let mut b = Gateway::run(&realm, &place_b, "b");
    let mut c = Gateway::run(&realm, &place_c, "c");
    use_names(&network);
    for gateway in [&a, &b, &c] {
        serve(&gateway.place, "[::]:80");
    }

    let in_clear = || [WEB, WEB_V6].map(|to| seen(&place_a, to).ok());
    let goes_out = |a: &Gateway, b: &Gateway| {
        for (to, outside) in [(WEB, OUTSIDE[0]), (WEB_V6, OUTSIDE[1])] {
            eventually(&format!("{to} sees {outside}: {}\n{}", a.log(), b.log()), || {
                seen(&a.place, to).is_ok_and(|from| from == outside)
            });
        }
    };
    // By name, and by their own addresses.
    let reaches = |from: &Gateway, own: [&str; 2], name: &str| {
        eventually(&format!("a path to {name}: {}", from.log()), || from.ask(&["ping", name]).contains("ms"));
        for (address, own) in addresses_of(&from.place, name).into_iter().zip(own) {
            let to = SocketAddr::new(address, 80).to_string();
            eventually(&format!("{name} at {to}: {}", from.log()), || {
                seen(&from.place, &to).is_ok_and(|seen| seen == own)
            });
        }
    };
    let own = |number: u8| [format!("10.0.{number}.1"), format!("fd00:{number}::1")];
    let own = [own(1), own(3)];
    let [of_a, of_c] = own.each_ref().map(|own| own.each_ref().map(String::as_str));
    let keeps_members = |a: &Gateway, c: &Gateway| {
        reaches(a, of_a, "short.b.overlay");
        reaches(a, of_a, "short.c.overlay");
        reaches(c, of_c, "short.a.overlay");
    };
    let keeps_servers = |a: &Gateway| {
        eventually(&format!("a's path server: {}", a.log()), || is_connected(A[0], 7_100));
        let until = |a: &Gateway| a.json(&["why", "short.b.overlay"])["active"]["proven_until"].as_u64();
        eventually("a's path is proven", || until(a).is_some());
        let before = until(a);
        eventually(&format!("a's consent server proves more: {}", a.log()), || until(a) > before);
    };
    goes_out(&a, &b);
    keeps_members(&a, &c);
    keeps_servers(&a);
    // The servers restart while the exit is in use.
    for server in [&mut paths, &mut consent] {
        server.kill();
        server.resume();
    }
    keeps_servers(&a);
    goes_out(&a, &b);
    let shown = link(&w.show("links", &[]), "a");
    let at = shown["address"].as_str().unwrap_or_default();
    assert!(shown["state"] == "up" && at.starts_with("192.0.2.1:"), "{shown}");

    // A kill leaves all; the next life takes it up.
    let during = settings(&place_b);
    for (gateway, place, name) in [(&mut a, &place_a, "a"), (&mut b, &place_b, "b")] {
        gateway.daemon.kill();
        assert_eq!(in_clear(), [None, None], "after {name} was killed");
        *gateway = Gateway::run(&realm, place, name);
    }
    goes_out(&a, &b);
    keeps_members(&a, &c);
    assert_eq!(settings(&place_b)[..4], during[..4]);
    // After another kill it is no exit any more: settings and packet filter are as before, members and servers are there.
    b.daemon.kill();
    set("b", "exit = true", "exit = false");
    b = Gateway::run(&realm, &place_b, "b");
    eventually("settings and packet filter are as before", || settings(&place_b)[..] == before[1][..5]);
    keeps_members(&a, &c);
    assert_eq!(in_clear(), [None, None], "without the exit");
    // By a stop, too.
    assert!(b.daemon.stop(Duration::from_secs(30)), "{}", b.log());
    set("b", "exit = false", "exit = true");
    b = Gateway::run(&realm, &place_b, "b");
    goes_out(&a, &b);
    // What the realm's operator says reaches a by its path server.
    assert!(c.daemon.stop(Duration::from_secs(30)), "{}", c.log());
    realm.folder.ok(&["realm", "revoke", "c", "--config", "realm/realm.toml"]);
    eventually(&format!("a knows who was removed: {}", a.log()), || {
        let mut command = a.place.command(env!("CARGO_BIN_EXE_wayleave"));
        let why = command.args(["why", "short.c.overlay", "--url", "127.0.0.1:8492"]).output().expect("it runs");
        text(&why.stderr).contains("c was removed from the realm")
    });
    for (gateway, place, before) in [(&mut a, &place_a, &before[0]), (&mut b, &place_b, &before[1])] {
        assert!(gateway.daemon.stop(Duration::from_secs(30)), "{}", gateway.log());
        assert_eq!(machine(place), *before);
    }
    assert_eq!(in_clear(), A.map(|own| Some(own.to_owned())), "as before");
}

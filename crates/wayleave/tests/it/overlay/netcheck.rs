//! What `wayleave netcheck` says of a neighbour whose name has addresses of both families.
//!
//! ICC, netcheck: UDP passes over IPv4 and not over IPv6, then over both: it says which, of a role that runs and of one that does not; the
//! session stays, and one that the command began is ended. Questions over TLS have the gateway's mark.
//! ICC, netcheck's role: it does not answer, something else answers in its place, or only its state is open: each is said, and no session is
//! begun. A name that does not resolve is named, of a role that runs and of one that does not.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use wayleave_lab::netns::{self, Network};

use super::harness::{Realm, Running};
use super::nat::{Gateway, link};
use crate::common::{eventually, text};

const HERE: &str = "192.0.2.250";
const HERE_V6: &str = "2001:db8::fa";
/// What the command says where a role may run.
const NOT_BEGUN: &str = "no session was begun in its place";

/// Carries datagrams of one sender between the port of both families: what a forwarder with IPv6 would answer.
fn carry_ipv6() {
    let outside = UdpSocket::bind((HERE_V6, 50_001)).expect("an address");
    let inside = UdpSocket::bind((HERE, 0)).expect("an address");
    inside.connect((HERE, 50_001)).expect("connected");
    inside.set_read_timeout(Some(Duration::from_millis(500))).expect("set");
    std::thread::spawn(move || {
        let mut octets = [0; 9_000];
        while let Ok((length, from)) = outside.recv_from(&mut octets) {
            // One answer to each, if there is one.
            if inside.send(&octets[..length]).is_ok()
                && let Ok(length) = inside.recv(&mut octets)
            {
                let _ = outside.send_to(&octets[..length], from); // it is asked again
            }
        }
    });
}

#[test]
fn both_families_of_a_neighbour_are_tried_and_what_does_not_pass_is_named() {
    let test = "overlay::netcheck::both_families_of_a_neighbour_are_tried_and_what_does_not_pass_is_named";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let network = Network::new().expect("a network");
    for address in [format!("{HERE}/24"), format!("{HERE_V6}/64")] {
        let mut command = Command::new("ip");
        command.args(["addr", "add", &address, "dev", "lan"]).args(address.contains(':').then_some("nodad"));
        assert!(command.status().expect("ip runs").success());
    }
    let hosts = network.state().join("hosts");
    fs::write(&hosts, format!("127.0.0.1 localhost\n{HERE} w.example\n{HERE_V6} w.example\n")).expect("written");
    let mounted = Command::new("mount").arg("--bind").arg(&hosts).arg("/etc/hosts").status();
    assert!(mounted.expect("mount runs").success());
    let realm = Realm::new("netcheck");
    let listen = format!("{HERE}:7100");
    let token = realm.invite(&["paths", "--role", "path", "--address", &listen]);
    realm.folder.ok(&["join", &token, "--dir", "paths", "--listen", &listen, "--status", "127.0.0.1:8501"]);
    let _paths = Running::start("paths", realm.path("paths"), "path", "127.0.0.1:8501");
    let token = realm.invite(&["consent", "--role", "consent"]);
    let at = format!("{HERE}:7200");
    realm.folder.ok(&["join", &token, "--dir", "consent", "--listen", &at, "--status", "127.0.0.1:8502"]);
    let who = format!("{}@{at}", realm.identity("consent"));
    let page = realm.router("w", Some(&who));
    realm.edit("w/router.toml", |text| {
        format!(
            "{text}\n[overlay.open]\nlocal = \"{HERE}:50001\"\nendpoint = \"w.example:50001\"\n\n[overlay.tls]\nlocal = \"{HERE}:443\"\n"
        )
    });
    let w = realm.start("w", "router", &page);
    let place =
        network.attach("n-a", &["192.0.2.101/24".to_owned(), "2001:db8::65/64".to_owned()]).expect("a namespace");
    let mut a = Gateway::start(&realm, &place, ("a", 1), &who, "w", "");
    eventually(&format!("the link is up: {}", a.log()), || link(&a.json(&["show", "links"]), "w")["state"] == "up");
    // What the gateway sends has its mark, so that nothing of it goes into the overlay: so has what the command sends.
    let rules = "table inet marked { chain out { type filter hook output priority 0; tcp dport 443 meta mark != 20520 drop; }; }";
    match place.command("nft").arg(rules).output() {
        Ok(output) => assert!(output.status.success(), "{}", text(&output.stderr)),
        Err(_) => netns::skipped("the mark of questions over TLS: there is no nft; scripts/setup installs it as root"),
    }
    let handshake = || link(&a.json(&["show", "links"]), "w")["last_handshake"].clone();
    let before = handshake();
    let checked = a.ask(&["netcheck"]);
    for part in [
        "good  w: UDP passes, to 192.0.2.250:50001",
        "bad   w: no answer by UDP over IPv6, at [2001:db8::fa]:50001\n      the link has no other way",
        "good  UDP over IPv4: passes",
        "bad   UDP over IPv6: no neighbour answers by it",
        "good  w: TLS on TCP answers at 192.0.2.250:443",
    ] {
        assert!(checked.contains(part), "{part} is not in: {checked}");
    }
    carry_ipv6();
    let checked = a.ask(&["netcheck"]);
    for part in ["good  w: UDP passes over IPv6 too, to [2001:db8::fa]:50001: ", "good  UDP over IPv6: passes"] {
        assert!(checked.contains(part), "{part} is not in: {checked}");
    }
    assert!(!checked.contains("bad "), "{checked}");
    assert_eq!(handshake(), before, "the session is as it was");
    let run = |more: &[&str]| {
        let mut command = place.command(env!("CARGO_BIN_EXE_wayleave"));
        let output = command.args(["netcheck"]).args(more).current_dir(realm.path("a")).output().expect("it runs");
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, said, _) = run(&["--config", "gateway.toml", "--json"]);
    let shown: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((code, &shown["running"], &shown["tls_errors"]), (Some(0), &json!(true), &json!({})), "{shown}");
    // A role that does not answer, or whose pages are elsewhere, still runs.
    realm.edit("a/gateway.toml", |text| {
        fs::write(realm.path("a/other.toml"), text.replace("127.0.0.1:8492", "127.0.0.1:8499")).expect("written");
        text.to_owned()
    });
    let (code, said, error) = run(&["--config", "other.toml"]);
    assert!(code == Some(1) && error.contains("is in use by another process"), "{said}{error}");
    assert!(error.contains(NOT_BEGUN), "{said}{error}");
    assert_eq!(handshake(), before, "the session is as it was");
    a.daemon.signal(Signal::STOP).expect("sent");
    let (code, said, error) = run(&["--config", "gateway.toml"]);
    a.daemon.signal(Signal::CONT).expect("sent");
    assert!(code == Some(1) && error.contains("within 10 s") && error.contains(NOT_BEGUN), "{said}{error}");
    // The forwarder is told at once that the command's own session ends.
    assert!(a.daemon.stop(Duration::from_secs(20)), "{}", a.log());
    let (code, said, error) = run(&["--config", "gateway.toml"]);
    assert_eq!(code, Some(0), "{said}{error}");
    for part in ["UDP passes, to ", "too, to ", "good  UDP over IPv4: passes", "good  UDP over IPv6: passes"] {
        assert!(said.contains(part), "{part} is not in: {said}{error}");
    }
    let shown = link(&w.show("links", &[]), "a");
    assert_eq!(shown["state"], "stopped", "{shown}");

    // Something else answers where the role's pages would be.
    let pages = place.within(|| TcpListener::bind("127.0.0.1:8492")).expect("in its place").expect("a port");
    let other = std::thread::spawn(move || {
        let (mut stream, _) = pages.accept().expect("a question");
        let mut octets = [0; 1_000];
        let mut length = 0;
        while !octets[..length].ends_with(b"\r\n\r\n") {
            length += stream.read(&mut octets[length..]).expect("the question goes on");
        }
        stream.write_all(b"HTTP/1.0 500 no\r\n\r\nnothing").expect("sent");
    });
    let (code, said, error) = run(&["--config", "gateway.toml"]);
    other.join().expect("asked");
    assert!(code == Some(1) && error.contains("is no role (HTTP 500)") && error.contains(NOT_BEGUN), "{said}{error}");
    // A name that nobody resolves.
    fs::write(&hosts, "127.0.0.1 localhost\n").expect("written");
    let unresolved = "bad   w: its name w.example:50001 does not resolve here (";
    let (code, said, error) = run(&["--config", "gateway.toml"]);
    assert!(code == Some(1) && said.contains(unresolved), "{said}{error}");
    let a = Gateway::run(&realm, &place, "a");
    eventually(&format!("a role that runs says so: {}", a.log()), || {
        let checked = a.ask(&["netcheck"]);
        checked.contains(unresolved) && !checked.contains("not answered yet")
    });
}

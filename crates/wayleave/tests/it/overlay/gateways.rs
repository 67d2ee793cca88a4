//! A realm from nothing with two gateways: every path and every consent comes from servers.
//!
//! ICC, realm and gateways: a realm from nothing, three routers of customers and providers, two gateways; a page by
//! name in both families; consents of six seconds renewed; a node refuses the profile `sealed`: the path goes on without
//! it, and `why` names the node; the provider's policy changes: the first byte within seconds; then nothing passes, and
//! `why` says who refused.
//! ICC, a removed node: the realm's operator revokes a gateway; the only node on a path stops: both say so in `show
//! status` and the log, and no longer once the path is back.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use wayleave_lab::netns::{self, Network, NetworkNamespace};
use wayleave_lab::process::Daemon;

use super::applications::serve;
use super::harness::{Neighbour, Realm, Running};
use super::world::use_names;
use crate::common::{eventually, text};

/// The address of everything but the gateways.
const HERE: &str = "192.0.2.250";

struct Gateway {
    name: &'static str,
    place: NetworkNamespace,
    daemon: Daemon,
}

impl Gateway {
    /// Joins, and starts beside the forwarder `by`, which receives at `port`.
    fn start(realm: &Realm, network: &Network, (name, number): (&'static str, u8), consent: &str, by: &str) -> Self {
        let place = network.attach(&format!("n-{name}"), &[format!("192.0.2.{number}/24")]).expect("a namespace");
        let (v4, v6) = (format!("10.0.{number}.0/24"), format!("fd00:{number}::/64"));
        let token = realm.invite(&[name, "--role", "gateway", "--prefix", &v4, "--prefix", &v6]);
        realm.folder.ok(&["join", &token, "--dir", name, "--consent", consent, "--status", "127.0.0.1:8492"]);
        realm.edit(&format!("{name}/gateway.toml"), |text| {
            let text = text.replace("127.0.0.1:5354\"\n# Their", "127.0.0.1:53\"\n# Their");
            let text = text.replace("#consent_secs = 300", "consent_secs = 6");
            format!(
                "{text}\n[[overlay.neighbour]]\nnode = \"{by}\"\nrelationship = \"provider\"\ninterface = 1\n\
                 local = \"192.0.2.{number}:50001\"\n"
            )
        });
        let folder = realm.path(name);
        let mut command = place.command(env!("CARGO_BIN_EXE_wayleave"));
        command.args(["run", "gateway", "--config", "gateway.toml"]).current_dir(&folder);
        let daemon = Daemon::start(&mut command, &folder.join("log")).expect("started");
        let mut gateway = Self { name, place, daemon };
        eventually(&format!("{name} starts"), || {
            assert!(gateway.daemon.is_running(), "{}", gateway.daemon.log_tail(20));
            !gateway.json(&["show", "status"]).is_null()
        });
        gateway
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let mut command = self.place.command(env!("CARGO_BIN_EXE_wayleave"));
        let output = command.args(arguments).args(["--json", "--url", "127.0.0.1:8492"]).output();
        let output = output.expect("the program runs");
        if output.status.success() { serde_json::from_slice(&output.stdout).expect("JSON") } else { Value::Null }
    }

    fn log(&self) -> String {
        format!("{}: {}\n{}", self.name, self.daemon.log_tail(20), self.json(&["show", "status"]))
    }
}

fn router(realm: &Realm, name: &str, consent: &str, neighbours: &[Neighbour<'_>]) -> Running {
    let page = realm.router(name, Some(consent));
    realm.serve("consent", name);
    realm.link(name, neighbours);
    realm.start(name, "router", &page)
}

#[test]
fn a_realm_from_nothing_carries_tcp_by_name_until_a_provider_no_longer_consents() {
    let test = "overlay::gateways::a_realm_from_nothing_carries_tcp_by_name_until_a_provider_no_longer_consents";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let network = Network::new().expect("a network");
    let added = Command::new("ip").args(["addr", "add", &format!("{HERE}/24"), "dev", "lan"]).status();
    assert!(added.expect("ip runs").success());
    let begin = Instant::now();
    let realm = Realm::new("gateways");
    let listen = format!("{HERE}:7100");
    let token = realm.invite(&["paths", "--role", "path", "--address", &listen]);
    realm.folder.ok(&["join", &token, "--dir", "paths", "--listen", &listen, "--status", "127.0.0.1:8501"]);
    let _paths = Running::start("paths", realm.path("paths"), "path", "127.0.0.1:8501");
    let token = realm.invite(&["consent", "--role", "consent"]);
    let at = format!("{HERE}:7200");
    realm.folder.ok(&["join", &token, "--dir", "consent", "--listen", &at, "--status", "127.0.0.1:8502"]);
    let who = format!("{}@{at}", realm.identity("consent"));
    let end = |port: u16| format!("{HERE}:{port}");
    let [to_a, to_b, w12, w21, w23, w32] = [50_001, 50_002, 50_012, 50_021, 50_023, 50_032].map(end);
    // A chain of customers up to w2 and down again.
    let forwarders = [
        router(&realm, "w1", &who, &[Neighbour("a", "customer", 1, &to_a), Neighbour("w2", "provider", 2, &w12)]),
        router(&realm, "w2", &who, &[Neighbour("w1", "customer", 1, &w21), Neighbour("w3", "customer", 2, &w23)]),
        router(&realm, "w3", &who, &[Neighbour("b", "customer", 1, &to_b), Neighbour("w2", "provider", 2, &w32)]),
    ];
    let a = Gateway::start(&realm, &network, ("a", 1), &who, "w1");
    let b = Gateway::start(&realm, &network, ("b", 2), &who, "w3");
    for gateway in ["a", "b"] {
        realm.serve("consent", gateway);
    }
    let consent = realm.start("consent", "consent", "127.0.0.1:8502");
    use_names(&network);
    // Before the first packet: then none has to wait for a limit that others may have used up.
    // Two IDs of each node, of this epoch and the next.
    eventually("the forwarders share keys with the four other members", || {
        let agreed = |router: &Running| router.show("status", &[])["agreed_keys"].as_u64();
        forwarders.iter().all(|router| agreed(router).is_some_and(|keys| keys >= 2 * 2 * 4))
    });
    let page: Vec<u8> = (0..300_000u32).flat_map(u32::to_be_bytes).collect();
    eventually("b has its address", || {
        let shown = b.place.command("ip").args(["-j", "addr", "show", "wayleave0"]).output().expect("ip runs");
        text(&shown.stdout).contains("10.0.2.1")
    });
    serve(&b.place, &["10.0.2.1:8080", "[fd00:2::1]:8080"], &page, &realm.folder.0);
    let curl = |family: &str, seconds: &str| {
        let mut command = a.place.command("curl");
        command.args([family, "-sS", "--max-time", seconds, "http://short.b.overlay:8080/page"]).stdin(Stdio::null());
        command.output().expect("curl runs")
    };
    // On a busy machine one try may be too slow: what is stated is that the page comes.
    let page_comes = |family: &str, what: &str| {
        eventually(&format!("{what}: {} {}", a.log(), b.log()), || curl(family, "10").stdout == page);
    };
    page_comes("-4", "the first page");
    eprintln!("a realm from nothing had its first page after {:?}", begin.elapsed());
    page_comes("-6", "the page in the other family");
    // All keys were there; but for one that was on its way to the thread, packets cost no agreement, of which a path has four a node.
    let costs = forwarders.each_ref().map(|router| router.counted("decided", "agreements"));
    let keys = forwarders.each_ref().map(|router| router.show("status", &[])["agreed_keys"].clone());
    assert!(costs.iter().sum::<u64>() <= 3, "{costs:?} of packets, {keys:?}");
    eventually(&format!("the path is named by its nodes: {}", a.log()), || {
        let why = a.json(&["why", "short.b.overlay"]);
        why["active"]["nodes"] == serde_json::json!(["a", "w1", "w2", "w3", "b"])
    });
    // A router is nobody's gateway: its name has no addresses, and the answer says so.
    let mut command = a.place.command(env!("CARGO_BIN_EXE_wayleave"));
    let why = command.args(["why", "short.w1.overlay", "--url", "127.0.0.1:8492"]).output().expect("it runs");
    assert!(text(&why.stderr).replace('│', " ").contains("w1 is no gateway"), "{}", text(&why.stderr));
    let said = |arguments: &[&str]| {
        let mut command = a.place.command(env!("CARGO_BIN_EXE_wayleave"));
        let output = command.args(arguments).args(["--url", "127.0.0.1:8492"]).output().expect("it runs");
        let said = text(&output.stdout) + &text(&output.stderr);
        said.replace('│', " ").split_whitespace().collect::<Vec<_>>().join(" ")
    };
    for (arguments, part) in [
        (["why", "short.a.overlay"], "is this gateway itself"),
        (["why", "10.0.1.1"], "is this gateway itself"),
        (["why", "short.b.ovrlay"], "names are POLICY.NODE.overlay"),
        (["ping", "10.0.2.11"], "b, the gateway of 10.0.2.11, by policy short: "),
        (["show", "neighbours"], "w1 1 known"),
    ] {
        eventually(&format!("{arguments:?} says {part}: {}", said(&arguments)), || said(&arguments).contains(part));
    }
    let status = a.json(&["show", "status"]);
    assert_eq!((&status["gateways"], status["members"].as_u64() > Some(5)), (&Value::from(2), true), "{status}");
    // Longer than one consent lasts.
    std::thread::sleep(Duration::from_secs(7));
    page_comes("-4", "consents are renewed");
    // w2 wants to see payloads whole: traffic goes on without the profile, and it is said for whose sake.
    let profile = |why: &Value| why["active"]["profile"].as_str().map(str::to_owned);
    eventually(&format!("packets are sealed: {}", a.log()), || {
        profile(&a.json(&["why", "short.b.overlay"])).as_deref() == Some("sealed")
    });
    let everybody = realm.read("consent/policy.toml");
    let whole =
        "[[rule]]\nname = \"whole\"\nallow = false\nprofiles = [\"sealed\"]\nbefore = [\"w1\"]\nafter = [\"w3\"]\n";
    realm.edit("consent/policy.toml", |_| format!("{whole}\n{everybody}"));
    consent.signal("-HUP");
    eventually(&format!("the next consents are for payloads: {}", consent.log()), || {
        let why = a.json(&["why", "short.b.overlay"]);
        profile(&why).as_deref() == Some("payload")
            && why["unsealed"]
                .as_str()
                .is_some_and(|why| why.starts_with("w2 does not consent to packets of the profile"))
    });
    page_comes("-4", "the page without the profile");
    eventually(&format!("the screen names it: {}", a.log()), || {
        said(&["why", "short.b.overlay"]).contains("w2 does not consent")
    });
    realm.edit("consent/policy.toml", |_| everybody);
    consent.signal("-HUP");
    // The only path's node in the middle stops for a while: the first screen says so, and since when.
    let has_problem = |gateway: &Gateway, words: &str| {
        let status = gateway.json(&["show", "status"]);
        status["problems"].as_array().into_iter().flatten().any(|problem| {
            let problem = problem.as_str().unwrap_or_default();
            problem.contains(words)
        })
    };
    let dead = "every path to b by policy short is dead since 20";
    eventually(&format!("no path is dead: {}", a.log()), || !has_problem(&a, dead));
    forwarders[1].signal("-STOP");
    eventually(&format!("the dead path is a problem: {}", a.log()), || {
        let _ = curl("-4", "1");
        has_problem(&a, dead)
    });
    forwarders[1].signal("-CONT");
    eventually(&format!("the path is back: {}", a.log()), || curl("-4", "10").stdout == page && !has_problem(&a, dead));
    // The provider of w2 changes its mind.
    realm.edit("consent/policy.toml", |_| "[[rule]]\nname = \"nobody\"\nallow = false\n".to_owned());
    consent.signal("-HUP");
    eventually(&format!("consent ends: {}", consent.log()), || {
        let failed = !curl("-4", "2").status.success();
        let why = a.json(&["why", "short.b.overlay"]);
        failed && why["state"] == "no-consent" && why["why"].as_str().is_some_and(|why| why.contains("refused"))
    });
    eventually(&format!("the first screen says whose consent is missing: {}", a.log()), || {
        let _ = curl("-4", "1");
        has_problem(&a, "nothing is sent to b: no consent; w1, node 1 of the path, by its consent server consent (")
    });
    // A node that every path crosses is removed from the realm, and then the other gateway.
    let remove = |name: &str| realm.folder.ok(&["realm", "revoke", name, "--config", "realm/realm.toml"]);
    let says = |words: &str| said(&["why", "short.b.overlay"]).contains(words);
    remove("w2");
    eventually(&format!("it names who was removed, and when: {}", a.log()), || {
        says("w2 was removed from the realm at 20")
    });
    remove("b");
    eventually(&format!("it names the gateway: {}", a.log()), || {
        says("b was removed from the realm at 20") && says("it is no member any more; ask the realm's operator")
    });
    let why = said(&["why", "10.0.2.1"]);
    assert!(why.contains("b was removed from the realm at 20") && why.contains("with the address 10.0.2.1"), "{why}");
    eventually(&format!("b says so itself: {}", b.log()), || {
        let why = b.json(&["why", "short.a.overlay"]);
        why["state"] == "removed"
            && has_problem(&b, "this node was removed from the realm")
            && b.log().contains("this node was removed from the realm")
    });
}

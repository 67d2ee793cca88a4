//! A gateway whose network lets no UDP out, and forwarders and gateways that stop.
//!
//! ICC, links: nftables drops all UDP of a gateway under a transfer, which goes on over TLS, and by UDP again when it passes; strangers
//! hold a thousand connections meanwhile, and keep nobody out. A forwarder ends by SIGTERM: its neighbours say so at once; it is killed:
//! they find it again. A gateway sleeps for longer than its advert lasts, and is reached when it wakes.

use std::io::Write as _;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::process::Signal;
use wayleave_lab::netns::{self, Network, NetworkNamespace};

use super::applications::serve;
use super::harness::{Realm, Running};
use super::nat::{Download, Gateway, Home, link};
use super::world::use_names;
use crate::common::{eventually, text};

const HERE: &str = "192.0.2.250";

fn nft(place: &NetworkNamespace, rules: &str) {
    let output = place.command("nft").arg(rules).output().expect("nft runs");
    assert!(output.status.success(), "{rules}: {}", text(&output.stderr));
}

#[test]
fn a_gateway_without_udp_goes_over_tls_and_whoever_stops_says_so() {
    let test = "overlay::blocked::a_gateway_without_udp_goes_over_tls_and_whoever_stops_says_so";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    if Command::new("nft").arg("--version").output().is_err() {
        netns::skipped(&format!("{test} without nft; scripts/setup installs it as root"));
        return;
    }
    let network = Network::new().expect("a network");
    let added = Command::new("ip").args(["addr", "add", &format!("{HERE}/24"), "dev", "lan"]).status();
    assert!(added.expect("ip runs").success());
    let realm = Realm::new("blocked");
    let listen = format!("{HERE}:7100");
    let token = realm.invite(&["paths", "--role", "path", "--address", &listen]);
    realm.folder.ok(&["join", &token, "--dir", "paths", "--listen", &listen, "--status", "127.0.0.1:8501"]);
    let paths = Running::start("paths", realm.path("paths"), "path", "127.0.0.1:8501");
    let token = realm.invite(&["consent", "--role", "consent"]);
    let at = format!("{HERE}:7200");
    realm.folder.ok(&["join", &token, "--dir", "consent", "--listen", &at, "--status", "127.0.0.1:8502"]);
    let who = format!("{}@{at}", realm.identity("consent"));
    let page_w = realm.router("w", Some(&who));
    realm.serve("consent", "w");
    realm.edit("w/router.toml", |text| {
        format!("{text}\n[overlay.open]\nlocal = \"{HERE}:50001\"\n\n[overlay.tls]\nlocal = \"{HERE}:443\"\n")
    });
    let mut w = realm.start("w", "router", &page_w);
    let home_a = Home::new(&network, "a", 101, &[("172.20.1.1/24", "172.20.1.2/24")]);
    let home_b = Home::new(&network, "b", 102, &[("172.20.2.1/24", "172.20.2.2/24")]);
    let mut a = Gateway::start(&realm, &home_a.inside, ("a", 1), &who, "w", "");
    let b = Gateway::start(&realm, &home_b.inside, ("b", 2), &who, "w", "");
    for gateway in ["a", "b"] {
        realm.serve("consent", gateway);
    }
    let _consent = realm.start("consent", "consent", "127.0.0.1:8502");
    use_names(&network);
    let page: Vec<u8> = (0..6_000_000u32).flat_map(u32::to_be_bytes).collect();
    for (gateway, address) in [(&a, "10.0.1.1:8080"), (&b, "10.0.2.1:8080")] {
        eventually("it has its address", || {
            let shown = gateway.place.command("ip").args(["-j", "addr", "show", "wayleave0"]).output();
            text(&shown.expect("ip runs").stdout).contains(address.trim_end_matches(":8080"))
        });
        serve(&gateway.place, &[address], &page, &realm.folder.0);
    }
    let curl = |from: &NetworkNamespace, to: &str| {
        let mut command = from.command("curl");
        command.args(["-sS", "--max-time", "20", "--range", "0-99999", "-o", "/dev/null", "-w", "%{http_code}"]);
        let output = command.arg(format!("http://short.{to}.overlay:8080/page")).stdin(Stdio::null()).output();
        text(&output.expect("curl runs").stdout) == "200"
    };
    let (place_a, place_b) = (a.place.clone(), b.place.clone());
    eventually(&format!("the first page: {}\n{}", a.log(), w.show("links", &[])), || curl(&place_a, "b"));
    assert!(curl(&place_b, "a"));
    let transport = |shown: serde_json::Value, node: &str| link(&shown, node)["transport"].clone();
    // Where w started late UDP was not answered at first.
    eventually("a goes by UDP", || transport(a.json(&["show", "links"]), "w") == "udp");
    eventually("b goes by UDP", || transport(b.json(&["show", "links"]), "w") == "udp");

    // No UDP leaves a's network any more, under a transfer.
    let mut download = Download::start(&a.place, "short.b.overlay", &realm.folder.0);
    {
        let logs = || format!("{}\n{}\n{}", a.log(), b.log(), w.show("links", &[]));
        download.goes_on("a download", &logs);
        let begin = Instant::now();
        nft(
            &home_a.box_,
            "table inet block { chain forward { type filter hook forward priority 0; meta l4proto udp drop; }; }",
        );
        eventually(&format!("a goes over TLS: {}", logs()), || transport(a.json(&["show", "links"]), "w") == "tls");
        eprintln!("over TLS after {:?}", begin.elapsed());
        download.goes_on("it goes on over TLS", &logs);
    }
    eventually("w says so too", || transport(w.show("links", &[]), "a") == "tls");
    eventually("w goes to b by UDP", || transport(w.show("links", &[]), "b") == "udp");
    let shown = a.ask(&["show", "links"]);
    assert!(shown.contains("  transport: TLS on TCP, since UDP does not pass"), "{shown}");
    eventually(&format!("its log says so: {}", a.log()), || a.daemon.log_tail(400).contains("the link goes over TLS"));
    let why = a.ask(&["why", "short.b.overlay"]);
    assert!(why.contains("the link to w goes over TLS"), "{why}");
    let checked = a.ask(&["netcheck"]);
    for part in [
        "bad   w: no answer by UDP; the link goes over TLS, to 192.0.2.250:443\n      let UDP out",
        "good  w: TLS on TCP answers at 192.0.2.250:443",
        "bad   UDP over IPv4: no neighbour answers by it\n      does this network",
    ] {
        assert!(checked.contains(part), "{part} is not in: {checked}");
    }

    // Strangers with a thousand connections, silent or of one octet, from b's network: a begins anew all the same.
    let at = format!("{HERE}:443");
    let strangers: Vec<TcpStream> = (0..1_000)
        .map(|number| {
            let mut stream = home_b.box_.within(|| TcpStream::connect(&at)).expect("in its place").expect("connected");
            if number % 2 == 1 {
                let _ = stream.write_all(&[22]); // it may have been closed
            }
            stream
        })
        .collect();
    drop(download);
    assert!(a.daemon.stop(std::time::Duration::from_secs(20)), "{}", a.log());
    eventually("w says that a has stopped", || link(&w.show("links", &[]), "a")["state"] == "stopped");
    a = Gateway::run(&realm, &home_a.inside, "a");
    eventually(&format!("a page without any UDP: {}", a.log()), || curl(&place_a, "b"));
    assert_eq!(transport(a.json(&["show", "links"]), "w"), "tls");
    drop(strangers);

    // UDP passes again.
    nft(&home_a.box_, "delete table inet block");
    let begin = Instant::now();
    eventually(&format!("a goes by UDP: {}", a.log()), || transport(a.json(&["show", "links"]), "w") == "udp");
    eprintln!("by UDP after {:?}", begin.elapsed());
    assert!(curl(&place_a, "b"));
    assert_eq!(transport(w.show("links", &[]), "a"), "udp");
    let checked = || a.json(&["netcheck"]);
    eventually(&format!("nothing is bad: {}", checked()), || {
        let checked = checked();
        let all = checked["findings"].as_array().cloned().unwrap_or_default();
        !all.is_empty() && all.iter().all(|finding| finding["good"] == true)
    });
    let checked = checked();
    let seen = checked["links"][0]["seen"].as_str().unwrap_or_default().to_owned();
    assert!(seen.starts_with("192.0.2.101:") && checked["nat"] == "unknown kind", "{checked}");

    // Without a role the command begins sessions itself, as the same node.
    assert!(a.daemon.stop(std::time::Duration::from_secs(20)), "{}", a.log());
    let mut command = a.place.command(env!("CARGO_BIN_EXE_wayleave"));
    let output = command.args(["netcheck", "--config"]).arg(realm.path("a/gateway.toml")).output().expect("it runs");
    let (said, warned) = (text(&output.stdout), text(&output.stderr));
    assert!(warned.contains("no role answers"), "{said}{warned}");
    for part in [
        "good  w: UDP passes, to 192.0.2.250:50001",
        "good  w: it sees this node at 192.0.2.101:",
        "TLS on TCP answers",
    ] {
        assert!(said.contains(part), "{part} is not in: {said}{warned}");
    }
    a = Gateway::run(&realm, &home_a.inside, "a");
    eventually(&format!("a page after that: {}", a.log()), || curl(&place_a, "b"));

    // The forwarder ends, and says so; it is killed, and is found again.
    w.signal("-TERM");
    eventually(&format!("a and b say that w has stopped: {}", a.log()), || {
        [&a, &b].iter().all(|gateway| link(&gateway.json(&["show", "links"]), "w")["state"] == "stopped")
    });
    eventually(&format!("its log says so: {}", a.log()), || {
        a.daemon.log_tail(400).contains("a neighbour has said that it stops")
    });
    for how in ["ended", "was killed"] {
        w.kill();
        w.resume();
        let begin = Instant::now();
        eventually(&format!("a page after w {how}: {}", a.log()), || curl(&place_a, "b"));
        eprintln!("a page {:?} after the start of w, which {how}", begin.elapsed());
    }

    // A gateway sleeps for longer than its advert lasts.
    let advert = || {
        let members = paths.show("members", &[]);
        let all = members["members"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|member| member["names"].to_string().contains("\"a\""))
    };
    assert!(advert().is_some_and(|member| member["advert_secs_left"].as_u64() > Some(0)), "{:?}", advert());
    a.daemon.signal(Signal::STOP).expect("stopped");
    let begin = Instant::now();
    while advert().is_some_and(|member| member["advert_secs_left"].as_u64() > Some(0)) {
        assert!(begin.elapsed().as_secs() < 120, "the advert lasts for ever: {:?}", advert());
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    a.daemon.signal(Signal::CONT).expect("goes on");
    let begin = Instant::now();
    eventually(&format!("a page when a wakes: {}", a.log()), || curl(&place_a, "b"));
    eprintln!("from a after {:?}", begin.elapsed());
    eventually(&format!("a page from a when it wakes: {}", a.log()), || curl(&place_b, "a"));
    eprintln!("to a after {:?}", begin.elapsed());
}

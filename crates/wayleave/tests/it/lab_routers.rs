//! Laboratories with real routers: an exchange, and networks behind attesting proxies, each from its example file.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use wayleave_lab::netns;
use wayleave_lab::netns::Rung;
use wayleave_lab::routers::{GOBGP, OPENBGPD, RouterPackage, default_cache, locate_or_fetch, locate_or_fetch_router};

use crate::common::{Folder, eventually, text};
use crate::console;
use crate::lab::{Lab, example, gone, lower_rung};

/// Starts an example as it is, or changed; `None` where there are no namespaces or no routers.
fn up(name: &str, file: &str, rung: &str) -> Option<(Lab, String)> {
    let lab = Lab::new(name)?;
    if let Err(error) = locate_or_fetch(&default_cache(), &mut |line| eprintln!("{line}")) {
        netns::skipped(&format!("lab_routers, {name}: {error}"));
        return None;
    }
    let output = lab.up(&[file, "--rung", rung]);
    let said = text(&output.stdout);
    assert!(output.status.success() && output.stderr.is_empty(), "{said}{}{}", text(&output.stderr), lab.logs());
    Some((lab, said))
}

impl Lab {
    /// What a proxy says of a prefix.
    fn why(&self, at: &str, prefix: &str) -> Value {
        let said = self.at(at, &["wayleave", "why", prefix, "--json"]);
        serde_json::from_str(&said).expect("JSON")
    }

    /// The rows of `status` have these roles, and all run.
    fn runs(&self, wanted: &[(&str, &str)]) {
        let status = self.status();
        let rows = status["processes"].as_array().expect("processes");
        let seen: Vec<(&str, &str)> = rows
            .iter()
            .map(|row| (row["node"].as_str().expect("a name"), row["role"].as_str().expect("a role")))
            .collect();
        assert_eq!(seen, wanted, "{status}");
        assert!(rows.iter().all(|row| row["state"] == "up"), "{status}");
    }
}

/// The announcer of the route that a member's router got.
fn installed(why: &Value) -> Vec<String> {
    let routes = why["routes"].as_array().expect("routes").iter();
    let installed = routes.filter(|route| route["outcome"] == "installed");
    installed.map(|route| route["announcer"]["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn an_exchange_comes_up_from_one_file_and_each_policy_shows_in_the_routers_tables() {
    let Some((lab, said)) = up("exchange", &example("exchange.toml"), lower_rung()) else { return };
    assert!(
        said.contains("7 routes are announced; in the routers' tables: alpha 4, bravo 5, charlie 4, delta 4"),
        "{said}"
    );
    lab.runs(&[
        ("party1", "rs"),
        ("party2", "rs"),
        ("alpha", "member"),
        ("bravo", "member"),
        ("charlie", "member"),
        ("delta", "member"),
        ("alpha-router", "bird"),
        ("bravo-router", "frr"),
        ("charlie-router", "bird"),
        ("delta-router", "frr"),
    ]);
    // What `up` says to try works, each line.
    let lines: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("  wayleave-lab exec --dir ")).collect();
    assert_eq!(lines.len(), 5, "{said}");
    for line in lines {
        let (_, command) = line.split_once(' ').expect("a folder and a command");
        let words: Vec<&str> = command.split(' ').collect();
        let (node, rest) = words.split_first().expect("a node");
        let shown = lab.at(node, &["sh", "-c", &rest.join(" ")]);
        assert!(!shown.is_empty(), "{line}");
    }
    // alpha prefers bravo by a rule of its own, whatever the exchange recommends; charlie leaves it to the exchange.
    assert_eq!(installed(&lab.why("alpha", "198.51.100.0/24")), ["bravo"]);
    assert_eq!(installed(&lab.why("charlie", "198.51.100.0/24")), ["delta"]);
    // Hidden by a rule of alpha's, and by a community of charlie's router.
    assert_eq!(installed(&lab.why("charlie", "203.0.113.0/26")), Vec::<String>::new());
    assert_eq!(installed(&lab.why("delta", "203.0.113.0/26")), ["alpha"]);
    let shown = lab.at("charlie", &["birdc", "show", "route"]);
    assert!(!shown.contains("203.0.113.0/26") && shown.contains("203.0.113.64/26"), "{shown}");
    let shown = lab.at("delta-router", &["vtysh", "-c", "show bgp ipv4 unicast"]);
    assert!(!shown.contains("203.0.113.128/26") && shown.contains("203.0.113.0/26"), "{shown}");
    // The router and its proxy are machines of their own, and a party does not see what a policy says.
    assert!(lab.at("alpha-router", &["ip", "-brief", "addr"]).contains("192.0.2.1/24"));
    assert!(lab.at("alpha", &["ip", "-brief", "addr"]).contains("192.0.2.101/24"));
    // A rule that its member changes counts after SIGHUP, as in any exchange.
    let status = lab.status();
    let row = status["processes"].as_array().expect("processes").iter().find(|row| row["node"] == "alpha");
    let pid = row.expect("alpha")["pid"].to_string();
    lab.at("alpha", &["sed", "-i", "s/hide_from = 64499/hide_from = 64500/", "wayleave.toml"]);
    lab.at("alpha", &["kill", "-HUP", &pid]);
    eventually("delta has no route any more, and charlie has one", || {
        let at = |router: &str| lab.why(router, "203.0.113.0/26");
        installed(&at("delta")).is_empty() && installed(&at("charlie")) == ["alpha"]
    });
    let drawn = text(&lab.lab("graph", &["--text"]).stdout);
    assert!(drawn.contains("alpha-router  bird with 203.0.113.0/26, 2001:db8:a::/48"), "{drawn}");
    let nowhere = lab.lab("exec", &["zulu", "true"]);
    assert!(text(&nowhere.stderr).contains("there are: alpha, alpha-router, bravo"), "{}", text(&nowhere.stderr));
    // What each process says, in one console. Its sockets go with it, and a console that may not show both parties ends.
    console::of_laboratory(&lab, |browser| {
        console::shows_the_exchange(browser);
        console::refuses_both_parties(&lab);
    });
    // A router dies, and `status` says so. Down: all of it.
    let row = status["processes"].as_array().expect("processes").iter().find(|row| row["node"] == "delta-router");
    lab.at("delta-router", &["kill", "-9", &row.expect("a router")["pid"].to_string()]);
    eventually("delta's router has ended", || {
        let rows = lab.status()["processes"].clone();
        rows.as_array().expect("rows").iter().all(|row| (row["node"] == "delta-router") == (row["state"] == "ended"))
    });
    let inside = lab.processes();
    let output = lab.lab("down", &[]);
    assert!(text(&output.stdout).contains("every process has ended"), "{}", text(&output.stdout));
    eventually("all have ended", || gone(&inside));
    assert!(!Path::new(&lab.dir).exists());
}

/// The example with another router for a member, where there is one and it can run here.
fn with_router(exchange: &str, asn: u32, package: &RouterPackage, name: &str) -> Option<String> {
    if name == "openbgpd" && netns::detect().rung != Rung::Root {
        netns::skipped("lab_routers, exchange-mpc: OpenBGPD runs as root alone");
        return None;
    }
    if let Err(error) = locate_or_fetch_router(package, &default_cache(), &mut |line| eprintln!("{line}")) {
        netns::skipped(&format!("lab_routers, exchange-mpc: {error}"));
        return None;
    }
    let (before, after) = exchange.split_once(&format!("asn = {asn}\nrouter = \"")).expect("a member");
    let (_, after) = after.split_once('"').expect("its router");
    Some(format!("{before}asn = {asn}\nrouter = \"{name}\"{after}"))
}

/// Two members have GoBGP and OpenBGPD. The parties multiply policies themselves.
#[test]
fn the_parties_of_a_laboratory_multiply_policies_themselves_if_the_file_says_so() {
    let folder = Folder::new("lab-exchange-mpc-file");
    let exchange = fs::read_to_string(example("exchange.toml")).expect("an example");
    assert!(exchange.contains("export = \"direct\"") && exchange.contains("\"203.0.113.0/26\", \"2001"));
    // A prefix that no exchange takes is announced, too.
    let changed = exchange.replace("export = \"direct\"", "export = \"mpc\"");
    let changed = changed.replace("\"203.0.113.0/26\", \"2001", "\"10.0.0.0/8\", \"203.0.113.0/26\", \"2001");
    // A member with FRR and one with BIRD get all routes to a prefix (ADD-PATH).
    let changed = changed.replacen("router = \"bird\"", "router = \"frr\"\nadd_path = 4", 1);
    let changed = changed.replacen("router = \"bird\"", "router = \"bird\"\nadd_path = 4", 1);
    let file = folder.0.join("mpc.toml").display().to_string();
    let Some(lab) = Lab::new("exchange-mpc") else { return };
    if locate_or_fetch(&default_cache(), &mut |line| eprintln!("{line}")).is_err() {
        return netns::skipped("lab_routers, exchange-mpc: no routers");
    }
    let with_gobgp = with_router(&changed, 64_498, &GOBGP, "gobgp");
    let changed = with_gobgp.clone().unwrap_or(changed);
    let with_openbgpd = with_router(&changed, 64_500, &OPENBGPD, "openbgpd");
    folder.write("mpc.toml", with_openbgpd.as_ref().unwrap_or(&changed));
    if with_openbgpd.is_some() {
        let output = lab.up(&[&file, "--rung", "rootless"]);
        let refused = text(&output.stderr);
        assert!(!output.status.success() && refused.contains("OpenBGPD runs as root alone"), "{refused}");
    }
    let output = lab.up(&[&file]);
    let (said, warned) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}{warned}{}", lab.logs());
    assert!(said.contains("alpha 5, bravo 5, charlie 5, delta 4"), "{said}");
    assert!(warned.contains("alpha does not announce 10.0.0.0/8"), "{warned}");
    // The two that announce it, of whom alpha prefers bravo and the exchange recommends delta.
    let shown = lab.at("charlie-router", &["birdc", "show", "route", "198.51.100.0/24"]);
    assert!(shown.contains("[AS64498i]") && shown.contains("[AS64500i]"), "{shown}");
    let shown = lab.at("alpha-router", &["vtysh", "-c", "show bgp ipv4 unicast 198.51.100.0/24"]);
    assert!(shown.contains("Paths: (2 available"), "{shown}");
    // The identifiers are those of the slots, whichever of them is chosen.
    for (member, chosen) in [("alpha", "bravo"), ("charlie", "delta")] {
        let why = lab.why(member, "198.51.100.0/24");
        assert_eq!(installed(&why), [chosen]);
        let ids: Vec<_> = why["routes"].as_array().expect("routes").iter().map(|route| &route["path_id"]).collect();
        assert!(ids.len() == 2 && ids.contains(&&json!(2)) && ids.contains(&&json!(4)), "{why}");
    }
    let party = lab.at("party2", &["wayleave", "show", "status", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&party).expect("JSON")["export"], "mpc");
    if with_openbgpd.is_some() {
        let shown = lab.at("delta", &["bgpctl", "show", "rib"]);
        // A community of charlie's router keeps one from it.
        assert!(shown.contains("203.0.113.0/26") && !shown.contains("203.0.113.128/26"), "{shown}");
        assert!(lab.at("delta", &["wayleave", "session", "refresh"]).contains("ipv4"));
        assert_eq!(installed(&lab.why("alpha", "203.0.113.192/26")), ["delta"]);
    }
    if with_gobgp.is_some() {
        let shown = lab.at("bravo-router", &["gobgp", "global", "rib"]);
        assert!(shown.contains("203.0.113.0/26") && shown.contains("203.0.113.128/26"), "{shown}");
        assert_eq!(installed(&lab.why("alpha", "203.0.113.64/26")), ["bravo"]);
        lab.at("bravo", &["gobgp", "global", "rib", "del", "203.0.113.64/26", "-a", "ipv4"]);
        eventually("the route is withdrawn", || installed(&lab.why("alpha", "203.0.113.64/26")).is_empty());
        let own = ["gobgp", "global", "rib", "add", "203.0.113.144/28", "-a", "ipv4", "community", "0:64499"];
        lab.at("bravo", &own);
        eventually("another is announced", || installed(&lab.why("alpha", "203.0.113.144/28")) == ["bravo"]);
        assert_eq!(installed(&lab.why("charlie", "203.0.113.144/28")), Vec::<String>::new());
    }
    assert!(lab.lab("down", &["--json"]).status.success());
}

#[test]
fn attesting_networks_come_up_from_one_file_and_a_hijack_is_refused() {
    let Some((lab, said)) = up("attested", &example("attested.toml"), lower_rung()) else { return };
    assert!(said.contains("invalid 1, unattested 2, valid 3"), "{said}");
    lab.runs(&[
        ("left", "attest"),
        ("right", "attest"),
        ("left-router", "bird"),
        ("right-router", "frr"),
        ("plain-router", "bird"),
        ("mallory-router", "bird"),
    ]);
    let proved = lab.at("left", &["wayleave", "why", "198.51.100.0/25"]);
    assert!(proved.contains("every hop is proved") && proved.contains("AS64498  signed with kc-ed25519"), "{proved}");
    let refused = lab.at("right", &["wayleave", "why", "203.0.113.128/25"]);
    assert!(refused.contains("the origin may not announce 203.0.113.128/25 (cause: AS64511)"), "{refused}");
    let shown = lab.at("right", &["vtysh", "-c", "show bgp ipv4 unicast"]);
    assert!(shown.contains("203.0.113.0/24") && !shown.contains("203.0.113.128/25"), "{shown}");
    // What the description has as the proxy's policy is what it does: unattested routes are marked.
    let shown = lab.at("right", &["vtysh", "-c", "show bgp ipv4 unicast 198.51.100.128/25"]);
    assert!(shown.contains("64498:1:3"), "{shown}");
    // The anchor's operator lets mallory have it, and the proxies take the new record by SIGHUP.
    let record = ["wayleave", "keys", "record", "--anchor", "anchor.key", "--objects", "objects", "--asn"];
    lab.at("anchor", &[&record[..], &["64511", "--prefix", "203.0.113.128/25"]].concat());
    let status = lab.status();
    for row in status["processes"].as_array().expect("rows").iter().filter(|row| row["role"] == "attest") {
        lab.at("anchor", &["kill", "-HUP", &row["pid"].to_string()]);
    }
    eventually("the route is used", || {
        lab.at("right", &["vtysh", "-c", "show bgp ipv4 unicast"]).contains("203.0.113.128/25")
    });
    let drawn = text(&lab.lab("graph", &[]).stdout);
    assert!(drawn.contains("\"right\" -- \"mallory-router\";"), "{drawn}");
    let inside = lab.processes();
    assert!(lab.lab("down", &[]).status.success());
    eventually("all have ended", || gone(&inside));
}

#[test]
fn mistakes_in_descriptions_with_routers_are_shown_where_they_are() {
    let folder = Folder::new("lab-routers-mistakes");
    for (name, old, new, said) in [
        ("exchange.toml", "hide_from = 64499", "hide_from = \"rivals\"", "no group `rivals`"),
        ("exchange.toml", "router = \"frr\"", "router = \"ios\"", "unknown variant `ios`"),
        ("exchange.toml", "delta = 10", "echo = 10", "no member `echo`"),
        ("exchange.toml", "asn = 64498", "asn = 64496", "AS64496 is the exchange's"),
        ("attested.toml", "router = \"frr\"", "router = \"gobgp\"", "`gobgp` is for members of an exchange"),
        ("attested.toml", "attest = false", "attest = \"no\"", "expected true or false"),
        ("attested.toml", "to = \"plain\"", "to = \"plane\"", "no AS `plane`"),
        ("attested.toml", "[as.policy]", "[as.rule]", "unknown field `rule`"),
    ] {
        let good = fs::read_to_string(example(name)).expect("an example");
        let said_fine = folder.ok(&["wayleave-lab", "check", &example(name)]);
        assert!(said_fine.contains("fine, a description for `wayleave-lab up`"), "{said_fine}");
        assert!(good.contains(old), "{old}");
        folder.write(name, &good.replacen(old, new, 1));
        let line = good[..good.find(old).expect("it is there")].matches('\n').count() + 1;
        for command in [&["wayleave-lab", "check", name][..], &["wayleave-lab", "up", name]] {
            let shown = folder.fails(1, command);
            assert!(shown.contains(&format!("{name}:{line}:")) && shown.contains(said), "{new}: {shown}");
        }
    }
}

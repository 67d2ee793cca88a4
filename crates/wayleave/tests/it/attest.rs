//! `run attest` as processes on loopback, with keys and records made on the command line.
//!
//! KCX-12: `kill -9` of a real proxy three times (`WAYLEAVE_KILLS`, 100 in `make soak`), with its store deleted and put
//! back; two hosts with one key; a `part` that contradicts the key file: no index signs twice; refused by `check` and
//! `run`.
//! KCX-17: a granted key pair handed from process to process: it signs at the neighbour, and no router sees it.
//! KCX-40: one key twice in a file: refused.
//! OPS, objects, replaced: records, profiles and additions that drop what the present one lists, one that is missing,
//! another publisher's file: refused with what it drops; `--add` keeps it, `--replace` drops it.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::common::attesting::{PREFIX, Proxy, UNDER_THE_ANCHOR, own, prefix, speaker, speaker_at};
use crate::common::metrics::assert_named_by_the_rule;
use crate::common::screen::assert_one_screen;
use crate::common::{Folder, eventually, free, text};
use serde_json::Value;
use wayleave_attestation::chain::TYPE_CODE;
use wayleave_attestation::proxy::handover::HANDOVER;
use wayleave_bgp::AttributeCode;
use wayleave_core::Asn;
use wayleave_lab::netns::NetworkNamespace;
use wayleave_runtime::clock::unix_now;

const ORIGIN: u32 = 64_496;
const LAST: u32 = 64_497;
const MIDDLE: u32 = 64_498;

/// A folder with keys, profiles and records of two ASes under one anchor.
fn with_keys(name: &str) -> Folder {
    let folder = Folder::new(&format!("attest-{name}"));
    folder.ok(&["keys", "anchor", "anchor.key", "--name", "lab", "--classical"]);
    for asn in [ORIGIN, LAST] {
        let asn = asn.to_string();
        folder.ok(&["keys", "attest", &format!("{asn}.key"), "--asn", &asn]);
        folder.sign(&["profile", "--attest", &format!("{asn}.key")]);
    }
    folder.sign(&["record", "--asn", &ORIGIN.to_string(), "--prefix", PREFIX, "--attested", "strict"]);
    folder
}

#[test]
fn two_proxies_attest_between_two_speakers_and_survive_a_kill() {
    let folder = with_keys("two");
    let meet = free();
    let mut a = Proxy::new(&folder, ORIGIN, &format!("connect = \"{meet}\", asn = {LAST}"), "");
    let b = Proxy::new(&folder, LAST, &format!("listen = \"{meet}\", asn = {ORIGIN}"), "");
    let (left, right) = (speaker(ORIGIN, LAST, 1, &a), speaker(LAST, ORIGIN, 2, &b));
    left.announce(own(ORIGIN));
    let attested = || right.learned().get(&prefix()).is_some_and(|route| route.get(AttributeCode(TYPE_CODE)).is_some());
    eventually("the route arrives, attested", attested);
    assert_eq!(b.class(), "valid");
    let why = text(&b.ask(&["why", PREFIX]).stdout);
    assert!(
        why.contains("+ AS64496  signed with kc-ed25519 and its registered key ") && why.contains(": proved"),
        "{why}"
    );
    assert!(why.contains("valid, passed inside") && why.contains("every hop is proved"), "{why}");
    assert!(why.contains("rule: every hop is signed") && !why.contains("what to do"), "{why}");
    let sent = text(&a.ask(&["why", PREFIX]).stdout);
    assert!(sent.contains("to the neighbour of there") && sent.contains("signed as origin"), "{sent}");
    let status = b.json(&["show", "status"]);
    assert_eq!((&status["classes"]["valid"], &status["pairs"][0]["inside"]["up"]), (&1.into(), &true.into()));
    let peers = text(&b.ask(&["show", "peers"]).stdout);
    assert_named_by_the_rule("attest", &NetworkNamespace::Own, a.page.parse().expect("an address"));
    assert_one_screen(&NetworkNamespace::Own, a.page.parse().expect("an address"));
    assert!(peers.contains("there inside") && peers.contains("Established"), "{peers}");
    let routes = text(&b.ask(&["show", "routes"]).stdout);
    assert!(routes.contains("192.0.2.0/24") && routes.contains("valid"), "{routes}");
    assert_eq!(a.json(&["show", "keys"])["keys"][0]["registered"], true);
    // Killed, its neighbours lose the session and the route; started again, all comes back.
    a.kill();
    eventually("the route is gone", || right.learned().is_empty());
    a.start();
    eventually("the route is back", attested);
    assert_eq!(b.class(), "valid");
    // The peers learn of the shutdown.
    a.signal("-TERM");
    eventually("the route is gone again", || right.learned().is_empty());
    assert!(a.log().contains("stopping"));
}

#[test]
fn records_and_policy_take_effect_without_a_restart_or_a_new_update() {
    let folder = with_keys("reload");
    let meet = free();
    let a = Proxy::new(&folder, ORIGIN, &format!("connect = \"{meet}\""), "");
    let b = Proxy::new(&folder, LAST, &format!("listen = \"{meet}\""), "");
    let (left, right) = (speaker(ORIGIN, LAST, 1, &a), speaker(LAST, ORIGIN, 2, &b));
    left.announce(own(ORIGIN));
    let has = || right.learned().contains_key(&prefix());
    eventually("the route arrives", has);
    // The record is rewritten: the prefix is another's.
    folder.sign(&["record", "--asn", &ORIGIN.to_string(), "--prefix", "198.51.100.0/24", "--replace"]);
    folder.sign(&["record", "--asn", "64499", "--prefix", PREFIX]);
    b.signal("-HUP");
    eventually("the route is refused", || !has());
    assert_eq!(b.class(), "invalid");
    let why = text(&b.ask(&["why", PREFIX]).stdout);
    assert!(why.contains("the origin may not announce 192.0.2.0/24") && why.contains("rejected by policy"), "{why}");
    assert!(why.contains("rule: a record or a VRP") && why.contains("what to do: if the origin is right"), "{why}");
    // Policy lets it in, tagged.
    let config = fs::read_to_string(folder.0.join("as64497.toml")).expect("a configuration");
    let lax = config.replace("[[pair]]", "[policy]\ninvalid = { large_community = \"64497:9:9\" }\n[[pair]]");
    folder.write("as64497.toml", &lax);
    b.signal("-HUP");
    eventually("the route is let in with a tag", || {
        let learned = right.learned();
        let route = learned.get(&prefix());
        route.is_some_and(|route| route.large_communities().any(|tag| tag.to_string() == "64497:9:9"))
    });
    let shown = text(&b.ask(&["show", "events"]).stdout);
    let is_time = |line: &str| line.starts_with("20") && line.split(' ').next().is_some_and(|time| time.ends_with('Z'));
    assert!(!shown.is_empty() && shown.lines().all(is_time), "{shown}");
    let events = b.json(&["show", "events"]);
    assert!(events["events"][0]["unix"].is_u64() && events["events"][0]["time"].is_string(), "{events}");
    assert!(events["events"].to_string().contains("verdict"), "{events}");
    // What is no configuration changes nothing.
    folder.write("as64497.toml", "nonsense");
    b.signal("-HUP");
    eventually("the reload is refused", || b.log().contains("the configuration in force stays"));
    assert!(has());
}

/// How often the sessions of a proxy's pair came up.
fn established(proxy: &Proxy) -> Vec<Value> {
    let pair = &proxy.json(&["show", "status"])["pairs"][0];
    ["inside", "outside"].map(|side| pair[side]["counters"]["established"].clone()).to_vec()
}

#[test]
fn a_new_key_signs_after_a_reload_and_no_session_ends() {
    let folder = with_keys("roll");
    let meet = free();
    let a = Proxy::new(&folder, ORIGIN, &format!("connect = \"{meet}\""), "");
    let b = Proxy::new(&folder, LAST, &format!("listen = \"{meet}\""), "");
    let (left, right) = (speaker(ORIGIN, LAST, 1, &a), speaker(LAST, ORIGIN, 2, &b));
    left.announce(own(ORIGIN));
    eventually("the route arrives", || right.learned().contains_key(&prefix()));
    let signer = || b.json(&["why", PREFIX])["routes"][0]["hops"][0]["key_id"].clone();
    let ids = || {
        let shown = a.json(&["show", "keys"]);
        let keys = shown["keys"].as_array().cloned().unwrap_or_default();
        keys.iter().map(|key| (key["id"].clone(), key["registered"].clone())).collect::<Vec<_>>()
    };
    let [(old, _)] = &ids()[..] else { panic!("one key") };
    assert_eq!(signer(), *old);
    let before = [established(&a), established(&b)];
    assert!(before.iter().flatten().all(|count| *count == 1), "{before:?}");
    // The new key is there, and not registered yet: the old one signs on.
    let asn = ORIGIN.to_string();
    folder.ok(&["keys", "attest", "new.key", "--asn", &asn]);
    fs::rename(folder.0.join("new.key"), folder.0.join(format!("{asn}.key"))).expect("in its place");
    a.signal("-HUP");
    eventually("it has both keys", || ids().len() == 2);
    let new = ids()[0].0.clone();
    assert!(new != *old && ids()[0].1 == false && ids()[1] == (old.clone(), true.into()), "{:?}", ids());
    let waits = format!("none of them is registered yet, and {} goes on signing", old.as_str().expect("an id"));
    assert!(a.log().contains(&waits), "{}", a.log());
    let states = || {
        let shown = a.json(&["show", "keys"]);
        let keys = shown["keys"].as_array().cloned().unwrap_or_default();
        keys.iter().map(|key| (key["state"].clone(), key["routes"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(states(), [("not registered yet: signs nothing".into(), 0.into()), ("signs".into(), 1.into())]);
    assert_eq!(signer(), *old);
    folder.sign(&["profile", "--attest", &format!("{asn}.key"), "--add"]);
    b.signal("-HUP");
    a.signal("-HUP");
    eventually("the new one signs", || signer() == new);
    let instead = format!("with key {} instead of {}", new.as_str().expect("an id"), old.as_str().expect("an id"));
    assert!(a.log().contains(&instead), "{}", a.log());
    let replaced = "replaced: keep it registered while what it signed holds";
    assert_eq!(states(), [("signs".into(), 1.into()), (replaced.into(), 0.into())]);
    assert_eq!(b.class(), "valid");
    let why = text(&b.ask(&["why", PREFIX]).stdout);
    assert!(why.contains(&format!("its registered key {}: proved", new.as_str().expect("an id"))), "{why}");
    assert_eq!([established(&a), established(&b)], before, "no session ended");
    assert!([&a, &b].iter().all(|proxy| !proxy.log().contains("peer down")), "{}", a.log());
    // The profile drops the key that is in use: nothing is signed, and both proxies say why.
    folder.ok(&["keys", "attest", "third.key", "--asn", &asn]);
    folder.sign(&["profile", "--attest", "third.key", "--replace"]);
    b.signal("-HUP");
    a.signal("-HUP");
    eventually("the proxy says that it signs nothing", || {
        text(&a.ask(&["show", "status"]).stdout).contains("are in no profile of AS64496: its routes leave unsigned")
    });
    let why = || text(&a.ask(&["why", PREFIX]).stdout);
    eventually("and so of the route", || why().contains("sent unsigned: no key here that may sign it is registered"));
    assert!(why().contains("what to do: have the key registered") && !why().contains("took the"), "{}", why());
    assert!(a.json(&["show", "events"])["events"].to_string().contains("keys-unregistered"));
    eventually("the neighbour refuses it", || b.class() == "invalid");
    let why = text(&b.ask(&["why", PREFIX]).stdout);
    assert!(why.contains("the origin did not sign it, or somebody on the path took the attribute away"), "{why}");
    let said = folder.ok(&["check", &format!("as{asn}.toml")]);
    assert!(said.contains("does not list the kc-ed25519 key of this file: nothing is signed with it"), "{said}");
}

#[test]
fn what_the_own_as_may_not_originate_is_neither_signed_nor_sent_unless_that_is_wanted() {
    let folder = with_keys("unauthorised");
    folder.sign(&["record", "--asn", &ORIGIN.to_string(), "--prefix", "198.51.100.0/24", "--replace"]);
    folder.sign(&["record", "--asn", "64499", "--prefix", PREFIX]);
    let meet = free();
    let mut a = Proxy::new(&folder, ORIGIN, &format!("connect = \"{meet}\""), "[policy]\n");
    let b = Proxy::new(&folder, LAST, &format!("listen = \"{meet}\""), "[policy]\ninvalid = { log = true }\n");
    let (left, right) = (speaker(ORIGIN, LAST, 1, &a), speaker(LAST, ORIGIN, 2, &b));
    left.announce(own(ORIGIN));
    let why = || text(&a.ask(&["why", PREFIX]).stdout);
    eventually("its own proxy says so", || why().contains("not sent: this AS may not originate it"));
    assert!(why().contains("RFC 6811") && why().contains("wayleave keys record"), "{}", why());
    let screen = text(&a.ask(&["show", "status"]).stdout);
    assert!(
        screen.contains(&format!("pair there: one route is not sent to the neighbour; `wayleave why {PREFIX}`")),
        "{screen}"
    );
    let status = a.json(&["show", "status"]);
    assert_eq!((&status["pairs"][0]["held_back"], &status["pairs"][0]["inside"]["received"]), (&1.into(), &1.into()));
    let log = a.log();
    assert!(log.contains("not signed and not sent") && log.contains("what is registered"), "{log}");
    assert!(a.json(&["show", "events"])["events"].to_string().contains("not-authorised"));
    let page = wayleave_lab::demo::http::get(&NetworkNamespace::Own, a.page.parse().expect("an address"), "/metrics");
    let page = page.expect("a page");
    let count = page.lines().find_map(|line| line.strip_prefix("wayleave_attest_not_authorised_routes_total "));
    assert!(count.is_some_and(|count| count != "0"), "{page}");
    assert!(right.learned().is_empty());
    // It is registered, and goes out without a new announcement.
    folder.sign(&["record", "--asn", &ORIGIN.to_string(), "--prefix", PREFIX, "--replace"]);
    a.signal("-HUP");
    b.signal("-HUP");
    eventually("the route arrives", || right.learned().contains_key(&prefix()));
    folder.sign(&["record", "--asn", &ORIGIN.to_string(), "--prefix", "198.51.100.0/24", "--replace"]);
    a.signal("-HUP");
    eventually("and is withdrawn where it is taken away again", || right.learned().is_empty());
    // Unless that is wanted.
    let config = fs::read_to_string(folder.0.join("as64496.toml")).expect("a configuration");
    folder.write("as64496.toml", &config.replace("[keys]\n", "announce_unauthorised = true\n[keys]\n"));
    a.kill();
    a.start();
    b.signal("-HUP");
    eventually("the route arrives as it is", || b.class() == "invalid");
}

#[test]
fn a_file_with_one_key_twice_is_refused() {
    let folder = Folder::new("attest-key-twice");
    folder.ok(&["keys", "attest", "a.key", "--asn", "64496"]);
    let file = fs::read_to_string(folder.0.join("a.key")).expect("a file");
    let key = file.find("[[").expect("a key");
    folder.write("a.key", &format!("{file}\n{}", &file[key..]));
    let output = folder.run(&["keys", "show", "a.key"]);
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("has one kc-ed25519 key twice"), "{said}");
}

#[test]
fn keys_are_created_listed_signed_and_refused_if_others_can_read_them() {
    let folder = Folder::new("attest-keys");
    let made = folder.ok(&["keys", "attest", "a.key", "--asn", "64496"]);
    assert!(made.contains("asn     AS64496") && made.contains("attest  attest:kc-ed25519:"), "{made}");
    assert_eq!(folder.ok(&["keys", "show", "a.key"]), made);
    let secret = fs::read_to_string(folder.0.join("a.key")).expect("a file");
    let seed = secret.lines().find_map(|line| line.strip_prefix("seed = ")).expect("a seed").trim_matches('"');
    assert!(!made.contains(seed));
    assert!(folder.fails(1, &["keys", "attest", "a.key", "--asn", "64496"]).contains("exists"));
    assert!(
        folder
            .fails(2, &["keys", "attest", "b.key", "--asn", "1", "--suite", "rot13"])
            .contains("there are: kc-ed25519")
    );
    let anchor = folder.ok(&["keys", "anchor", "anchor.key", "--classical"]);
    assert!(anchor.contains("public  anchor.pub") && anchor.contains("ed25519:"), "{anchor}");
    let under = ["--anchor", "anchor.key", "--objects", "objects"];
    // The anchor's operator needs public keys only.
    let public = made.lines().find_map(|line| line.strip_prefix("attest  ")).expect("a key");
    folder.ok(&[&["keys", "profile", "--asn", "64496", "--key", public], &under[..]].concat());
    folder.ok(&[
        &["keys", "record", "--asn", "64496", "--prefix", "192.0.2.0/24-26", "--attested", "prefer"],
        &under[..],
    ]
    .concat());
    let listed = folder.ok(&["keys", "objects", "--anchor", "anchor.pub", "--objects", "objects"]);
    let ends: Vec<&str> = listed
        .lines()
        .skip(1)
        .filter(|line| !line.contains(": "))
        .filter_map(|line| line.split_whitespace().nth(2))
        .collect();
    assert!(!ends.is_empty() && ends.iter().all(|end| end.starts_with("20") && end.ends_with('Z')), "{listed}");
    assert!(
        listed.contains("profile") && listed.contains("192.0.2.0/24-26") && listed.contains("prefer since"),
        "{listed}"
    );
    assert!(folder.fails(2, &[&["keys", "profile", "--key", "x"], &under[..]].concat()).contains("ROLE:SUITE:HEX"));
    assert!(
        folder
            .fails(2, &[&["keys", "record", "--asn", "1", "--prefix", "10.0.0.0/8-4"], &under[..]].concat())
            .contains("from 8 to 32")
    );
    // The AS adds a key to its profile itself, once that lists its identity key.
    let identity = folder.ok(&["keys", "identity", "identity.key", "--asn", "64496", "--classical"]);
    let public_identity = identity.lines().find_map(|line| line.strip_prefix("identity  ")).expect("a key");
    folder.ok(&["keys", "attest", "new.key", "--asn", "64496", "--suite", "kc-p256"]);
    let list = || folder.ok(&["keys", "objects", "--anchor", "anchor.pub", "--objects", "objects"]);
    let add = ["keys", "addition", "--identity", "identity.key", "--attest", "new.key", "--objects", "objects"];
    assert!(folder.ok(&add).contains("addition-64496.object"));
    assert!(list().contains("refused: objects/addition-64496.object"), "{}", list());
    let keys = [public, public_identity];
    folder.ok(&[&["keys", "profile", "--asn", "64496", "--key", keys[0], "--key", keys[1]], &under[..]].concat());
    assert!(
        list().contains("addition") && list().contains("attest:kc-p256:") && !list().contains("refused"),
        "{}",
        list()
    );
    let wrong = ["keys", "addition", "--identity", "identity.key", "--objects", "objects", "--key", keys[1]];
    assert!(folder.fails(2, &wrong).contains("attestation keys only"));
    // Nothing that is in force is dropped silently.
    let record = |more: &[&'static str]| [&["keys", "record", "--asn", "64496"], more, &under[..]].concat();
    let listed = |what: &str| list().split_whitespace().collect::<Vec<_>>().join(" ").contains(what);
    // Messages are broken into lines.
    let plain = |said: &str| said.replace('│', " ").split_whitespace().collect::<Vec<_>>().join(" ");
    let said = plain(&folder.fails(1, &record(&["--prefix", "198.51.100.0/24"])));
    assert!(said.contains("lists what this one does not: 192.0.2.0/24-26, attested prefer"), "{said}");
    assert!(said.contains("--add lists all of it") && said.contains("--replace drops it"), "{said}");
    assert!(listed("192.0.2.0/24-26"), "{}", list());
    folder.ok(&record(&["--prefix", "198.51.100.0/24", "--add"]));
    assert!(listed("192.0.2.0/24-26 198.51.100.0/24") && list().contains("prefer since"), "{}", list());
    let stricter = ["--prefix", "198.51.100.0/24", "--prefix", "192.0.2.0/24-28", "--attested", "strict"];
    folder.ok(&record(&stricter));
    assert!(list().contains("strict since"), "{}", list());
    let said = folder.ok(&record(&["--prefix", "198.51.100.0/24", "--attested", "strict", "--replace"]));
    assert!(said.contains("dropped 192.0.2.0/24-28") && !said.contains("attested"), "{said}");
    let profile =
        |more: &[&'static str]| [&["keys", "profile", "--asn", "64496", "--key", keys[0]], more, &under[..]].concat();
    assert!(plain(&folder.fails(1, &profile(&[]))).contains("identity:kc-ed25519:"));
    folder.ok(&profile(&["--add"]));
    assert!(list().contains("identity:kc-ed25519:"), "{}", list());
    folder.ok(&["keys", "attest", "newer.key", "--asn", "64496", "--suite", "kc-p256"]);
    let newer = ["keys", "addition", "--identity", "identity.key", "--attest", "newer.key", "--objects", "objects"];
    assert!(plain(&folder.fails(1, &newer)).contains("attest:kc-p256:"));
    folder.ok(&[&newer[..], &["--add"]].concat());
    std::fs::remove_file(folder.0.join("objects/record-64496.object")).expect("removed");
    assert!(plain(&folder.fails(1, &record(&["--prefix", "198.51.100.0/24"]))).contains("the last manifest lists it"));
    // An object that another anchor signed does not count.
    folder.ok(&["keys", "anchor", "other.key", "--classical"]);
    let foreign = ["keys", "profile", "--attest", "a.key", "--anchor", "other.key", "--objects", "objects"];
    assert!(plain(&folder.fails(1, &foreign)).contains("is not signed by this publisher"));
    folder.ok(&[&foreign[..], &["--replace"]].concat());
    let listed = folder.ok(&["keys", "objects", "--anchor", "anchor.pub", "--objects", "objects"]);
    assert!(listed.contains("refused: objects/profile-64496.object: the trust anchor did not sign"), "{listed}");
}

#[test]
fn loose_permissions_another_as_s_keys_and_an_expired_anchor_are_refused_with_a_remedy() {
    let folder = with_keys("refused");
    folder.write("p.toml", "[attest]\nasn = 64496\nstate = \"p.redb\"\n[keys]\nsigning = \"64496.key\"\nanchor = \"anchor.pub\"\nobjects = \"objects\"\n");
    let chmod = |mode: &str, file: &str| {
        assert!(Command::new("chmod").args([mode, file]).current_dir(&folder.0).status().expect("chmod").success());
    };
    chmod("640", "64496.key");
    for command in ["check", "run"] {
        let arguments: &[&str] =
            if command == "check" { &["check", "p.toml"] } else { &["run", "attest", "--config", "p.toml"] };
        let said = folder.fails(1, arguments);
        assert!(said.contains("chmod 600") && said.contains("p.toml:5:11"), "{said}");
    }
    chmod("600", "64496.key");
    folder.write("q.toml", "[attest]\nasn = 64497\nstate = \"p.redb\"\n[keys]\nsigning = \"64496.key\"\n");
    let said = folder.fails(1, &["run", "attest", "--config", "q.toml"]);
    assert!(said.contains("these are keys of AS64496") && said.contains("expected keys of AS64497"), "{said}");
    // An anchor whose time is over.
    let public = fs::read_to_string(folder.0.join("anchor.pub")).expect("a file");
    let ended: String =
        public
            .lines()
            .map(|line| {
                if line.starts_with("not_after") { "not_after = 1000000000\n".to_owned() } else { format!("{line}\n") }
            })
            .collect();
    folder.write("anchor.pub", &ended);
    let said = folder.fails(1, &["run", "attest", "--config", "p.toml"]);
    assert!(said.contains("expired") && said.contains("create or fetch a new anchor"), "{said}");
}

#[test]
fn check_reports_faults_of_an_attesting_proxy_and_init_prints_a_valid_configuration() {
    let folder = Folder::new("attest-check");
    let text = folder.ok(&["init", "attest"]);
    folder.write("a.toml", &text);
    let said = folder.ok(&["check", "a.toml"]);
    assert!(said.contains("a configuration for `wayleave run attest`"), "{said}");
    assert!(said.contains("attest.key does not exist yet"), "{said}");
    let wrong = |line: &str, instead: &str| {
        assert!(text.contains(line), "{line}");
        folder.write("b.toml", &text.replace(line, instead));
        folder.fails(1, &["check", "b.toml"])
    };
    let default = format!("#attribute = {TYPE_CODE}");
    let said = wrong(&default, "attribute = 5");
    assert!(said.contains("expected 64 to 255") && said.contains("b.toml:18:13"), "{said}");
    let said = wrong(&default, "attribute = 129");
    assert!(said.contains("129 is deprecated") && said.contains("b.toml:18:13"), "{said}");
    let said = wrong(&default, "attribute = 254");
    assert!(said.contains("254 is an internal attribute of BIRD's"), "{said}");
    let said = wrong("#capability = 240", "capability = 3");
    assert!(said.contains("expected 239 to 254"), "{said}");
    let said = wrong("asn = 64498", "asn = 64497");
    assert!(said.contains("sessions within one AS are not attested"), "{said}");
    let said = wrong("invalid = { reject = true, log = true }", "invalid = { reject = true, med = 5 }");
    assert!(said.contains("a rejected route cannot be changed too"), "{said}");
    let said = wrong("invalid = {", "invald = {");
    assert!(said.contains("unknown field `invald`") && said.contains("`malformed`"), "{said}");
    let said = wrong("anchor = \"anchor.pub\"\n", "");
    assert!(said.contains("expected both or neither"), "{said}");
    for line in ["keys = \"granted\"", "take_granted = true"] {
        let said = wrong(&format!("#{line}"), line);
        assert!(said.contains("private keys would cross a session that is not protected"), "{said}");
    }
    folder.write(
        "c.toml",
        &text.replace("asn = 64498 }", "asn = 64498, protected = true }").replace("#keys = ", "keys = "),
    );
    folder.ok(&["check", "c.toml"]);
    let said = wrong("#lifetime_minutes = 1440", "lifetime_minutes = 1");
    assert!(said.contains("expected 2 to 10080 minutes"), "{said}");
    let said = wrong(
        "inside = { listen = \"127.0.0.2:1790\", address = \"127.0.0.1\" }",
        "inside = { address = \"127.0.0.1\" }",
    );
    assert!(said.contains("no way to reach this end"), "{said}");
    let said = wrong("#gap = { large_community = \"64497:1:2\", med = 50 }", "gap = { large_community = \"64497:1\" }");
    assert!(said.contains("expected a large community"), "{said}");
}

/// Lines of `[keys]` of a proxy with a few-time key, on a machine that may have no time service.
fn few_time_keys(key: &str) -> String {
    format!("signing = \"{key}\"\nclock_kept_otherwise = true\n{UNDER_THE_ANCHOR}")
}

#[test]
fn no_few_time_signature_is_used_twice_however_often_the_proxy_is_killed_and_whatever_becomes_of_its_store() {
    let lives: usize = std::env::var("WAYLEAVE_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(3);
    let folder = Folder::new("attest-kills");
    folder.ok(&["keys", "anchor", "anchor.key", "--classical"]);
    folder.ok(&["keys", "attest", "64496.key", "--asn", "64496", "--suite", "kc-hbs"]);
    folder.ok(&["keys", "attest", "64497.key", "--asn", "64497"]);
    for key in ["64496.key", "64497.key"] {
        folder.sign(&["profile", "--attest", key]);
    }
    folder.sign(&["record", "--asn", "64496", "--prefix", PREFIX]);
    let meet = free();
    let outside = format!("connect = \"{meet}\"");
    let mut a = Proxy::with_keys(&folder, ORIGIN, &outside, &few_time_keys("64496.key"), "");
    let b = Proxy::new(&folder, LAST, &format!("listen = \"{meet}\""), "");
    let (left, right) = (speaker(ORIGIN, LAST, 1, &a), speaker(LAST, ORIGIN, 2, &b));
    left.announce(own(ORIGIN));
    let index = || {
        let learned = right.learned();
        let value = learned.get(&prefix())?.get(AttributeCode(TYPE_CODE))?.value;
        let hop = wayleave_attestation::chain::Attestation::decode(value).ok()?.last_hop()?;
        Some(hop.signature[..5].iter().fold(0, |index, octet| index << 8 | u64::from(*octet)))
    };
    let (store, copy) = (folder.0.join("as64496.redb"), folder.0.join("copy.redb"));
    let mut used = std::collections::BTreeSet::new();
    for life in 0..lives {
        eventually("the route arrives, signed", || index().is_some());
        let index = index().expect("signed");
        assert!(used.insert(index), "index {index} again in life {life}: {used:?}");
        assert_eq!(b.class(), "valid");
        a.kill();
        eventually("the route is gone", || right.learned().is_empty());
        match life % 3 {
            0 => assert!(fs::copy(&store, &copy).is_ok()),
            1 => fs::remove_file(&store).expect("a store"),
            _ => assert!(fs::copy(&copy, &store).is_ok(), "an older store"),
        }
        a.start();
        // Some lives end at once, while a slot is written or a signature made.
        std::thread::sleep(Duration::from_millis(37 * (life as u64 % 11)));
        if life % 2 == 1 {
            a.kill();
            a.start();
        }
    }
    eventually("the state of its key is shown", || {
        let status = text(&a.ask(&["show", "status"]).stdout);
        status.contains("of 16384 signatures left in slot") && status.contains("lasts until 20")
    });
}

#[test]
fn a_key_file_says_among_how_many_hosts_a_few_time_key_is_divided_and_no_configuration_may_differ() {
    let folder = Folder::new("attest-parts");
    folder.ok(&["keys", "attest", "one.key", "--asn", "64496", "--suite", "kc-hbs"]);
    folder.ok(&["keys", "attest", "three.key", "--asn", "64496", "--suite", "kc-hbs", "--parts", "3"]);
    folder.ok(&["keys", "attest", "plain.key", "--asn", "64496"]);
    assert!(folder.fails(2, &["keys", "attest", "n.key", "--asn", "1", "--parts", "257"]).contains("1..=256"));
    let config = |key: &str, part: &str| {
        let keys = format!("[keys]\nsigning = \"{key}\"\n{part}\n");
        folder.write("a.toml", &format!("[attest]\nasn = 64496\nstate = \"a.redb\"\n{keys}"));
    };
    for (key, part) in [("one.key", ""), ("one.key", "part = 0"), ("three.key", "part = 2"), ("plain.key", "")] {
        config(key, part);
        folder.ok(&["check", "a.toml"]);
    }
    for (key, part, why) in [
        ("three.key", "", "was created for 3 hosts"),
        ("three.key", "part = 3", "there is no part 3"),
        ("one.key", "part = 1", "was created for one host"),
        ("plain.key", "part = 0", "this file has no few-time key"),
    ] {
        config(key, part);
        for command in [&["check", "a.toml"][..], &["run", "attest", "--config", "a.toml"]] {
            let said = folder.fails(1, command);
            assert!(said.contains(why) && said.contains("a.toml:"), "{said}");
        }
    }
    config("one.key", "clock_kept_otherwise = true");
    assert!(folder.ok(&["check", "a.toml"]).contains("whatever the kernel says of this machine's clock"));
    // A key of an earlier version, whose signatures were counted.
    let text = fs::read_to_string(folder.0.join("one.key")).expect("a file");
    let old: String = text
        .lines()
        .filter(|line| !line.starts_with("birth") && !line.starts_with("parts"))
        .flat_map(|line| [line, "\n"])
        .collect();
    folder.write("one.key", &old);
    config("one.key", "");
    let said = folder.fails(1, &["check", "a.toml"]);
    assert!(said.contains("is of an earlier version") && said.contains("create a new key"), "{said}");
}

#[test]
fn a_granted_key_pair_is_handed_over_and_signs_at_the_neighbour() {
    let folder = Folder::new("attest-granted");
    folder.ok(&["keys", "anchor", "anchor.key", "--classical"]);
    folder.ok(&["keys", "attest", "64496.key", "--asn", "64496"]);
    folder.sign(&["profile", "--attest", "64496.key"]);
    folder.sign(&["record", "--asn", "64496", "--prefix", PREFIX]);
    let (first, second, inside) = (free(), free(), free());
    let signing = format!("signing = \"64496.key\"\n{UNDER_THE_ANCHOR}");
    let outside = format!("connect = \"{first}\", protected = true");
    let a = Proxy::with_pair(&folder, ORIGIN, &outside, "keys = \"granted\"\n", &signing, "");
    // The middle has no key of its own. It takes a pair from one neighbour, and sends routes to another.
    let onward = format!(
        "[[pair]]\nname = \"onward\"\ninside = {{ listen = \"{inside}\" }}\noutside = {{ connect = \"{second}\" }}\n"
    );
    let outside = format!("listen = \"{first}\", protected = true");
    let middle = Proxy::with_pair(&folder, MIDDLE, &outside, "take_granted = true\n", UNDER_THE_ANCHOR, &onward);
    let c = Proxy::with_keys(&folder, LAST, &format!("listen = \"{second}\""), UNDER_THE_ANCHOR, "");
    let left = speaker(ORIGIN, MIDDLE, 1, &a);
    let (here, there) = (speaker(MIDDLE, ORIGIN, 2, &middle), speaker_at(MIDDLE, LAST, 3, &inside));
    let right = speaker(LAST, MIDDLE, 4, &c);
    left.announce(own(ORIGIN));
    eventually("the route arrives in the middle", || here.learned().contains_key(&prefix()));
    let route = here.learned().remove(&prefix()).expect("learned");
    assert!(route.get(HANDOVER).is_none(), "the router is handed no private key");
    let keys = middle.json(&["show", "keys"]);
    assert_eq!(
        (&keys["keys"][0]["suite"], keys["keys"].as_array().map(Vec::len)),
        (&"kc-ed25519".into(), Some(1)),
        "{keys}"
    );
    let mut edit = route.edit();
    edit.prepend(Asn(MIDDLE), 1);
    there.announce([(prefix(), edit.finish())].into());
    eventually("the route arrives at the end", || right.learned().contains_key(&prefix()));
    assert_eq!(c.class(), "valid");
    assert!(right.learned()[&prefix()].get(HANDOVER).is_none());
    let why = text(&c.ask(&["why", PREFIX]).stdout);
    assert!(why.contains("AS64498") && why.contains("AS64496 could have signed too"), "{why}");
}

#[test]
fn a_few_time_key_whose_life_ends_is_logged_before_and_after() {
    let folder = Folder::new("attest-ending");
    folder.ok(&["keys", "anchor", "anchor.key", "--classical"]);
    folder.ok(&["keys", "attest", "64496.key", "--asn", "64496", "--suite", "kc-hbs"]);
    // As if it had been created 17 years ago.
    let text = fs::read_to_string(folder.0.join("64496.key")).expect("a file");
    let ends = unix_now().secs() + 45;
    let aged = |line: &str| match line.strip_prefix("birth = ") {
        Some(_) => format!("birth = {}\n", ends - (8 << 26)),
        None => format!("{line}\n"),
    };
    folder.write("64496.key", &text.lines().map(aged).collect::<String>());
    folder.sign(&["profile", "--attest", "64496.key"]);
    let outside = free();
    let mut a = Proxy::with_keys(&folder, ORIGIN, &format!("listen = \"{outside}\""), &few_time_keys("64496.key"), "");
    let (left, right) = (speaker(ORIGIN, LAST, 1, &a), speaker_at(LAST, ORIGIN, 2, &outside));
    left.announce(own(ORIGIN));
    eventually("the route arrives, signed", || right.learned().contains_key(&prefix()));
    let make_new = "make a new key with \"wayleave keys attest\" and publish a new profile";
    assert!(
        a.log().contains("the life of key kc-hbs ends in 0 days, at 20") && a.log().contains(make_new),
        "{}",
        a.log()
    );
    let events = a.json(&["show", "events"])["events"].to_string();
    assert!(events.contains("key ends") && events.contains("key waits") && events.contains("key signs"), "{events}");
    assert_eq!(a.json(&["show", "status"])["few_time_keys"][0]["ends"], ends);
    assert_eq!(a.json(&["show", "keys"])["keys"][0]["ends"], ends);
    a.kill();
    eventually("the route is gone", || right.learned().is_empty());
    std::thread::sleep(Duration::from_secs(ends.saturating_sub(unix_now().secs())));
    a.start();
    eventually("the end is logged", || a.log().contains("routes not sent: the lives of the signing keys are over"));
    assert!(right.learned().is_empty(), "rather no route than one without its attestation");
    assert_eq!(a.json(&["show", "status"])["counts"]["exhausted"], 1);
}

//! Paths and consents, and what happens to them when servers die, hang or come back.

use std::fs;
use std::time::{Duration, Instant};

use super::harness::Row;
use crate::common::{eventually, free};

#[test]
fn from_nothing_a_path_is_found_and_every_node_on_it_consents() {
    let row = Row::new("row").settled();
    eventually("both nodes consent", || row.is_consented("c"));
    let paths = row.paths("c");
    assert_eq!(paths["paths"][0]["nodes"], serde_json::json!(["a", "b", "c"]), "{paths}");
    assert_eq!(paths["paths"][0]["mtu"], 1400);
    // Each server was asked for its own node, and wrote down what it decided.
    for (server, node) in [("consent-b", "b"), ("consent-c", "c")] {
        let log = row.realm.read(&format!("{server}/audit.log"));
        let line: serde_json::Value = serde_json::from_str(log.lines().last().expect("a line")).expect("JSON");
        assert_eq!(line["decision"], "consented", "{line}");
        assert_eq!(line["node"], serde_json::json!(row.realm.identity(node)), "{line}");
        assert_eq!(line["sender"], serde_json::json!(row.realm.identity("a")), "{line}");
        assert_eq!(line["rule"], "members", "{line}");
    }
    // What was found is remembered: asking again asks no path server.
    let before = row.path_server.count("queries");
    assert!(row.is_consented("c"));
    assert_eq!(row.path_server.count("queries"), before);
    assert!(row.paths("nowhere").is_null());
}

#[test]
fn a_policy_decides_a_reload_changes_it_and_one_whose_tests_fail_is_not_taken() {
    let row = Row::new("policy").settled();
    eventually("consented", || row.is_consented("c"));
    let policy = row.realm.path("consent-c/policy.toml");
    let forbids = "[[rule]]\nname = \"not a\"\nallow = false\nsenders = [\"a\"]\n\n[[test]]\nname = \"t\"\nsender = \"a\"\nallow = false\n";
    fs::write(
        &policy,
        forbids
            .replace("allow = false\n\n", "allow = false\n\n")
            .replace("sender = \"a\"\nallow = false", "sender = \"a\"\nallow = true"),
    )
    .expect("written");
    let error = row.realm.folder.fails(1, &["check", "consent-c/consent.toml"]);
    assert!(error.contains('t') && error.contains("policy's own tests"), "{error}");
    row.consent[1].signal("-HUP");
    eventually("the reload fails", || row.consent[1].log().contains("reload failed, the configuration in force stays"));
    assert!(row.is_consented("c"), "the policy in force stays");
    fs::write(&policy, forbids).expect("written");
    row.consent[1].signal("-HUP");
    eventually("the reload is done", || row.consent[1].log().contains("configuration reloaded"));
    eventually("a is refused, and learns why", || {
        let why = row.paths("c")["paths"][0]["not_consented"].as_str().unwrap_or_default().to_owned();
        why.contains("the policy does not allow it")
    });
    let log = row.realm.read("consent-c/audit.log");
    assert!(log.lines().last().expect("a line").contains("\"rule\":\"not a\""), "{log}");
}

#[test]
fn neighbours_change_without_a_restart() {
    let row = Row::new("moves").settled();
    let id = row.nodes[0].id();
    // b's end of the link moves to another port; a learns of it from b's advert.
    let moved = free();
    let before = row.nodes[0].show("neighbours", &[])["neighbours"][0]["remote"].as_str().expect("known").to_owned();
    row.realm.edit("b/router.toml", |text| text.replace(&before, &moved));
    row.nodes[1].signal("-HUP");
    eventually("a sends to where b is now", || {
        row.nodes[0].show("neighbours", &[])["neighbours"][0]["remote"] == serde_json::json!(moved)
    });
    assert_eq!(row.nodes[0].id(), id);
    // One that is not listed by the other end any more is known no more.
    row.realm.edit("b/router.toml", |text| {
        text.replace("node = \"a\"\nrelationship = \"customer\"", "node = \"a\"\nrelationship = \"peer\"")
    });
    row.nodes[1].signal("-HUP");
    eventually("a link with two opinions leads nowhere", || row.nodes[0].status("neighbours_known") == 0);
    eventually("and no path uses it", || row.paths("c").is_null());
}

#[test]
fn a_path_server_that_was_killed_knows_everything_again_and_never_takes_an_older_advert() {
    let mut row = Row::new("killed").settled();
    let sequence = |row: &Row| {
        let members = row.path_server.show("members", &[])["members"].as_array().cloned().unwrap_or_default();
        members.iter().find(|member| member["names"][0] == "b").and_then(|member| member["advert"].as_u64())
    };
    let before = sequence(&row).expect("an advert");
    // A copy of b's state of now.
    let saved = row.realm.path("b/saved.redb");
    row.nodes[1].signal("-TERM");
    std::thread::sleep(Duration::from_millis(500));
    fs::copy(row.realm.path("b/overlay.redb"), &saved).expect("copied");
    row.nodes[1].kill();
    row.nodes[1].resume();
    eventually("b publishes on", || sequence(&row).is_some_and(|now| now > before));
    let newest = sequence(&row).expect("an advert");
    for _ in 0..3 {
        row.path_server.kill();
        row.path_server.resume();
        // From its own state, before b has said anything again.
        assert!(sequence(&row).is_none_or(|now| now >= newest), "{:?} after {newest}", sequence(&row));
        eventually("nodes find each other", || !row.paths("c").is_null());
    }
    // b comes back with its older state: it goes on above what others know.
    let newest = sequence(&row).expect("an advert");
    row.nodes[1].kill();
    fs::copy(&saved, row.realm.path("b/overlay.redb")).expect("copied");
    row.nodes[1].resume();
    eventually("b is above what others know", || sequence(&row).is_some_and(|now| now > newest));
}

#[test]
fn a_consent_server_that_was_killed_answers_again_and_asks_nobody_for_what_it_had() {
    let mut row = Row::new("consent-killed").settled();
    eventually("consented", || row.is_consented("c"));
    row.path_server.kill();
    row.consent[0].kill();
    let begin = Instant::now();
    eventually("the user learns which server is missing", || {
        let why = row.paths("c")["paths"][0]["not_consented"].as_str().unwrap_or_default().to_owned();
        why.contains("node 1 of the path") && (why.contains("cannot be reached") || why.contains("no answer"))
    });
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    row.consent[0].resume();
    // No path server runs: it has its members from its own state.
    eventually("it consents again", || row.is_consented("c"));
}

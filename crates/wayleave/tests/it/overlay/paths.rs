//! Paths and consents, and what happens to them when servers die, hang or come back.
//!
//! ICC, processes: a realm from nothing: operator, path server, consent servers, routers join by tokens; a path is
//! found and consented to: `show paths` has it; each server wrote its decision down.
//! ICC-05, by process: links that one end lists: no path leads over them, unless the other is open.
//! ICC, older, by process: `kill -9` of path and consent servers; a node that comes back with an older state: nothing
//! older is taken; the node goes on above what others know.
//! ICC, kills: `kill -9` of random processes of an overlay eight times, 300 in `make soak` (`WAYLEAVE_OVERLAY_KILLS`):
//! every node consents again; no sequence goes back.
//! ICC, moves: a neighbour's address, relationship or node ID changes under way: followed without a restart; a link on
//! which the ends disagree leads nowhere; consents by each ID.
//! ICC, policy: rules change at a reload; a policy that fails its own tests; a delegated prefix of tags: decided by the
//! new rules; refused by `check` and by the reload; consent under the prefix alone.
//! ICC, audit: the audit log's disk is full: nobody gets an answer, the status says why, and the server stops at once
//! when told to.
//! ICC, lost state: a path server's state is deleted, and another one runs: it answers once the other has told it
//! everything.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use wayleave_lab::netns::NetworkNamespace;

use super::harness::{Realm, Row};
use crate::common::metrics::assert_named_by_the_rule;
use crate::common::screen::{self, assert_one_screen};
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
        assert_eq!(line["node"], serde_json::json!(row.realm.identity(node).trim_start_matches("node:")), "{line}");
        assert_eq!(line["sender"], serde_json::json!(row.realm.identity("a").trim_start_matches("node:")), "{line}");
        assert_eq!(line["rule"], "members", "{line}");
    }
    let Row { realm, path_server, consent, nodes } = &row;
    for (role, process) in
        [("realm", &realm.operator), ("path", path_server), ("consent", &consent[0]), ("router", &nodes[1])]
    {
        assert_named_by_the_rule(role, &NetworkNamespace::Own, process.page.parse().expect("an address"));
        assert_one_screen(&NetworkNamespace::Own, process.page.parse().expect("an address"));
    }
    // By name, each with its times as people read them.
    let shown = screen::status(&NetworkNamespace::Own, path_server.page.parse().expect("an address"), &[]);
    let row_of = |name: &str| shown.lines().find(|line| line.split_whitespace().next() == Some(name));
    assert!(
        row_of("b").is_some_and(|line| line.contains("router") && line.contains("T") && line.ends_with('Z')),
        "{shown}"
    );
    let shown = screen::status(&NetworkNamespace::Own, nodes[1].page.parse().expect("an address"), &[]);
    assert!(shown.contains("NEIGHBOUR") && shown.contains("known"), "{shown}");
    // What was found is remembered: asking again asks no path server.
    // Links that came since the first question are asked for once more.
    std::thread::sleep(Duration::from_millis(1_200));
    assert!(row.is_consented("c"));
    std::thread::sleep(Duration::from_millis(200));
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
    // The test says that a may send, and the rule that it may not.
    fs::write(&policy, forbids.replace("sender = \"a\"\nallow = false", "sender = \"a\"\nallow = true"))
        .expect("written");
    let error = row.realm.folder.fails(1, &["check", "consent-c/consent.toml"]);
    assert!(error.contains("test \"t\"") && error.contains("policy's own tests"), "{error}");
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
    let why = "by this configuration b is a provider of this node, and by that of b this node is a peer of b";
    eventually("the first screen has both opinions", || row.nodes[0].status("problems").to_string().contains(why));
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
    eventually("the user learns which server is missing", || {
        let why = row.paths("c")["paths"][0]["not_consented"].as_str().unwrap_or_default().to_owned();
        let is_named = why.starts_with("no consent; b, node 1 of the path, by its consent server ");
        is_named && (why.contains("cannot be reached") || why.contains("no answer"))
    });
    row.consent[0].resume();
    // No path server runs: it has its members from its own state.
    eventually("it consents again", || row.is_consented("c"));
}

#[test]
fn node_ids_roll_and_paths_go_on() {
    let realm = Row::prepared("roll", |realm| {
        for node in ["a", "b", "c"] {
            realm.edit(&format!("{node}/router.toml"), |text| {
                text.replace("lifetime_minutes = 1", "lifetime_minutes = 1\nid_epoch_secs = 4")
            });
        }
    });
    let row = realm.settled();
    let id = |row: &Row| row.nodes[0].show("neighbours", &[])["neighbours"][0]["id"].as_str().map(str::to_owned);
    let mut seen = std::collections::BTreeSet::new();
    eventually("b has had three IDs, and everybody consented by each", || {
        let now = id(&row);
        let consented = row.is_consented("c");
        if consented && id(&row) == now {
            seen.extend(now);
        }
        seen.len() >= 3
    });
}

#[test]
fn without_a_place_to_write_its_decisions_down_a_consent_server_answers_nobody_and_says_why() {
    let row = Row::prepared("audit", |realm| {
        realm.edit("consent-b/consent.toml", |text| text.replace("\"audit.log\"", "\"/dev/full\""));
    });
    let row = row.settled();
    eventually("b's server is silent", || {
        let why = row.paths("c")["paths"][0]["not_consented"].as_str().unwrap_or_default().to_owned();
        why.contains("node 1 of the path") && why.contains("no answer")
    });
    let audit = row.consent[0].status("audit");
    assert!(audit.as_str().is_some_and(|why| why.contains("/dev/full: No space left")), "{audit}");
    // It stops all the same.
    row.consent[0].signal("-TERM");
    eventually("it stops", || row.consent[0].show("status", &[]).is_null());
}

#[test]
fn a_path_server_that_lost_its_state_answers_once_another_one_has_told_it_everything() {
    let realm = Realm::new("peers");
    let mut first = realm.path_server("paths");
    // The token of the second names the first, and its configuration has it as a peer.
    let second = realm.path_server("others");
    let (page, _) = realm.consent_server("k");
    let _node = realm.start("k", "consent", &page);
    eventually("the first knows the member, and the second has learned it", || {
        first.count("members") == 1 && second.count("members") == 1
    });
    let listen =
        realm.read("others/path.toml").lines().find_map(|line| line.strip_prefix("listen = ").map(str::to_owned));
    let peer = format!(
        "peers = [{{ identity = \"{}\", address = {} }}]",
        realm.identity("others"),
        listen.expect("its address")
    );
    realm.edit("paths/path.toml", |text| {
        text.lines()
            .map(|line| if line.starts_with("#peers") { peer.clone() } else { line.to_owned() } + "\n")
            .collect()
    });
    first.kill();
    fs::remove_file(realm.path("paths/path.redb")).expect("removed");
    first.resume();
    eventually("it has everything again", || first.status("recovering") == false && first.count("members") == 1);
    assert!(first.log().contains("the records that were lost are back"), "{}", first.log());
}

#[test]
fn a_server_consents_by_a_prefix_that_was_delegated_to_it_and_by_nothing_else() {
    let row = Row::prepared("delegated", |realm| {
        let (tags, out) = ("b/tags.key", "consent-b/b.branch");
        realm.folder.ok(&["keys", "delegate-tags", tags, "--prefix", "40000000/2", "--out", out]);
        let next = (wayleave_runtime::clock::unix_now().secs() + 4_096).to_string();
        let out = "consent-b/b-next.branch";
        realm.folder.ok(&["keys", "delegate-tags", tags, "--prefix", "40000000/2", "--at", &next, "--out", out]);
        realm.edit("consent-b/consent.toml", |text| {
            text.replace("tags = \"../b/tags.key\"", "delegated = [\"b.branch\", \"b-next.branch\"]")
        });
    });
    let row = row.settled();
    // b passes on under its transit tag, which begins with these bits.
    eventually("consented", || row.is_consented("c"));
    // As the last node it would need its other tag.
    eventually("b itself is refused", || {
        let why = row.paths("b")["paths"][0]["not_consented"].as_str().unwrap_or_default().to_owned();
        why.contains("no key for this tag")
    });
}

/// Kills of random processes of the overlay.
const KILLS: u32 = 8;

#[test]
fn after_random_kills_everybody_is_found_again_and_no_number_went_back() {
    let kills = std::env::var("WAYLEAVE_OVERLAY_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(KILLS);
    let mut row = Row::new("kills").settled();
    let numbers = |row: &Row| {
        let members = row.path_server.show("members", &[])["members"].as_array().cloned().unwrap_or_default();
        let number = |name: &str| {
            let member = members.iter().find(|member| member["names"][0] == name);
            member.and_then(|member| member["advert"].as_u64()).unwrap_or(0)
        };
        ["a", "b", "c"].map(number)
    };
    let mut highest = numbers(&row);
    let mut dice = 1u64;
    for kill in 0..kills {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let Row { path_server, consent, nodes, realm } = &mut row;
        let [first, second] = consent;
        let [a, b, c] = nodes;
        let all = [path_server, first, second, a, b, c, &mut realm.operator];
        let of = (dice >> 33) as usize % all.len();
        all[of].kill();
        std::thread::sleep(Duration::from_millis((dice >> 20) % 300));
        all[of].resume();
        eventually(&format!("consents after kill {kill} (of {of})"), || row.is_consented("c"));
        let now = numbers(&row);
        // A node that has not published since the path server's start may be missing, never older.
        assert!(now.iter().zip(highest).all(|(now, before)| *now == 0 || *now >= before), "{now:?} after {highest:?}");
        highest = std::array::from_fn(|at| highest[at].max(now[at]));
    }
}

/// a has b as its provider, and no address of its own; b is open and does not list a; c is reached by a name.
#[test]
fn a_member_that_an_open_node_does_not_list_is_a_neighbour_by_its_own_word() {
    let open = free();
    let endpoint = open.replace("127.0.0.1", "localhost");
    let row = Row::prepared("open", |realm| {
        realm.edit("a/router.toml", |text| {
            let (before, rest) = text.rsplit_once("\nlocal = ").expect("the link's end");
            format!("{before}\n{}", rest.split_once('\n').expect("a line").1)
        });
        realm.edit("b/router.toml", |text| {
            let (before, rest) = text.split_once("[[overlay.neighbour]]\nnode = \"a\"").expect("the neighbour");
            let (_, rest) = rest.split_once("[[overlay.neighbour]]").expect("the next one");
            let open = format!("[overlay.open]\nlocal = \"{open}\"\nendpoint = \"{endpoint}\"\n");
            format!("{before}{open}\n[[overlay.neighbour]]{rest}")
        });
        let checked = realm.folder.run(&["check", "b/router.toml"]);
        let says = String::from_utf8_lossy(&checked.stdout);
        assert!(says.contains("open to every member of the realm"), "{says}");
    });
    let row = row.settled();
    eventually("every node of the path from a to c consents", || row.is_consented("c"));
    let shown = |node: usize| row.nodes[node].show("neighbours", &[])["neighbours"].clone();
    let [at_a, at_b] = [shown(0), shown(1)];
    assert_eq!((&at_a[0]["state"], &at_a[0]["remote"]), (&json!("known"), &json!(endpoint)), "{at_a}");
    let of_a = at_b.as_array().expect("a list").iter().find(|row| row["open"] == true).expect("a is served");
    assert_eq!(
        (&of_a["node"], &of_a["interface"], &of_a["remote"]),
        (&json!("a"), &json!(0x8000), &Value::Null),
        "{at_b}"
    );
    // Whom b does not admit is nobody's neighbour there.
    row.realm.edit("b/router.toml", |text| text.replace("\n[[overlay", "admit = [\"c\"]\n\n[[overlay"));
    row.nodes[1].signal("-HUP");
    eventually("b serves a no more", || shown(1).as_array().is_some_and(|rows| rows.len() == 1));
}

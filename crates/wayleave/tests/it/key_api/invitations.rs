//! Invitations between a provider and its customers, and everybody else who gets hold of one.
//!
//! PLA, invitations: redeemed by eight at once, cut, at another server, with `kill -9` in the middle, with a
//! database put back behind a redemption: one holder, all or nothing; refused and counted; an old copy does not start.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use wayleave_config::Source;
use wayleave_config::key::KeyFile;
use wayleave_control::capability::{ChangeBody, Invitation, InvitationLine, Terms};
use wayleave_crypto::secret::Seed;
use wayleave_packet::platypus::header::{Interval, Principal, Width};
use wayleave_runtime::clock::unix_now;

use super::description::redemption;
use super::world::{WAYPOINT, World};
use crate::common::{eventually, text};
use crate::key::copy_database;

/// What `cap accept` must fail with.
fn refused(world: &World, arguments: &[&str], why: &str) {
    let said = world.folder.fails(1, &[&["cap", "accept"], arguments].concat());
    let said = said.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ");
    assert!(said.contains(why), "{said}");
}

#[test]
fn an_invitation_whose_answer_was_lost_is_given_again_by_its_idempotency_key() {
    let mut world = World::new("idempotency");
    let invite = |world: &World, key: &str, body: &Value| {
        let head = format!("Authorization: Bearer {}\r\nIdempotency-Key: {key}\r\n", world.full);
        world.request("POST", "/v1/invitations", &head, &body.to_string()).expect("an answer")
    };
    let body = json!({ "principal": 7, "name": "customer", "waypoints": [WAYPOINT], "expires_days": 3 });
    let first = invite(&world, "\"order-1\"", &body);
    assert_eq!(first.status, 201, "{first:?}");
    // Also after a restart, without the quotes, with the fields in another order.
    world.running.kill();
    world.running.resume();
    let turned = r#"{ "waypoints": ["198.51.100.1"], "expires_days": 3, "name": "customer", "principal": 7 }"#;
    let head = format!("Authorization: Bearer {}\r\nIdempotency-Key: order-1\r\n", world.full);
    let again = world.request("POST", "/v1/invitations", &head, turned).expect("an answer");
    assert_eq!((again.status, again.json()), (201, first.json()));
    assert_eq!(world.running.counted("invitations", "open"), 1);
    let mut other = body.clone();
    other["expires_days"] = json!(4);
    assert!(invite(&world, "order-1", &other).is("repeated"), "another body");
    assert!(invite(&world, "order-2", &body).is("conflict"), "another request for the same principal");
    for wrong in ["\"\"".to_owned(), "x".repeat(256)] {
        assert!(invite(&world, &wrong, &body).is("request"), "{wrong}");
    }
    // It works, and when it has been used the answer says so.
    world.folder.write("once.invitation", first.json()["invitation"].as_str().expect("a line"));
    world.folder.ok(&["cap", "accept", "--line", "once.invitation"]);
    let used = invite(&world, "order-1", &body);
    assert!(used.is("conflict") && used.body.contains("was redeemed at"), "{used:?}");
    let head = format!("Authorization: Bearer {}\r\nIdempotency-Key: order-3\r\n", world.full);
    let account = json!({ "principal": 8, "name": "x" }).to_string();
    let refused = world.request("POST", "/v1/accounts", &head, &account).expect("an answer");
    assert!(refused.is("request") && refused.body.contains("PUT"), "{refused:?}");
    let put = || world.done("PUT", "/v1/accounts/8", Some(&json!({ "name": "x" })));
    let (opened, number) = (put(), world.running.count("number"));
    assert_eq!((put(), world.running.count("number")), (opened, number));
}

#[test]
fn an_invitation_is_redeemed_once_and_again_by_its_holder_alone() {
    let world = World::new("life");
    let other = "198.51.100.2";
    world.invite("one.line", &["--principal", "7", "--waypoint", other, "--days", "30"]);
    assert_eq!(world.list(&[])["principals"], json!([]));
    eventually("the server follows", || world.running.counted("invitations", "open") == 1);
    let said = world.folder.ok(&["cap", "accept", "--line", "one.line", "--out", "own.line"]);
    assert!(said.contains("own.line: waypoint 198.51.100.1, principal 7, until"), "{said}");
    assert!(said.contains("own.line.2: waypoint 198.51.100.2"), "{said}");
    world.folder.ok(&["cap", "lookup", "--line", "own.line", "--server", &world.listen]);
    let tree = &world.list(&["--principal", "7"])["principals"][0];
    assert_eq!(tree["name"], "customer");
    let waypoints: Vec<&Value> = tree["waypoints"].as_array().expect("a list").iter().map(|of| &of["kind"]).collect();
    assert_eq!(waypoints, [&json!("pop"), &Value::Null]);
    // The same again, by the key beside the file: to a new file, or in JSON.
    refused(&world, &["--line", "one.line", "--out", "own.line"], "exists already");
    let again = world.folder.ok(&["cap", "accept", "--line", "one.line", "--json"]);
    let again: Value = serde_json::from_str(&again).expect("JSON");
    assert_eq!(again["repeated"], true);
    let read = |file: &str| fs::read_to_string(world.folder.0.join(file)).expect("there").trim().to_owned();
    assert_eq!(again["capabilities"][0]["capability"], read("own.line"));
    assert_eq!(again["capabilities"][1]["capability"], read("own.line.2"));
    // Somebody else with the line, which was given as an argument.
    let line = read("one.line");
    refused(&world, &[&line, "--key", "other.key"], "used already, by another holder");
    assert_eq!(world.list(&[])["number"], 4, "probe, its withdrawal, the invitation, one redemption");
    let counts = ["redeemed", "repeated", "redemptions_used"].map(|what| world.counted(what));
    assert_eq!(counts, [1, 1, 1]);
    let listed = world.folder.ok(&["cap", "invitations", "--config", "server/key.toml"]);
    assert!(listed.contains("used") && listed.contains("withdrawn"), "{listed}");
    let log = world.running.log();
    let secrets = [line, read("own.line"), world.full.clone()];
    let stored: Vec<u8> = ["accounts.db", "accounts.db-wal"]
        .iter()
        .flat_map(|file| fs::read(world.folder.0.join("server").join(file)).unwrap_or_default())
        .collect();
    let stored = String::from_utf8_lossy(&stored);
    assert!(secrets.iter().all(|secret| !log.contains(secret) && !stored.contains(secret)), "{log}");
}

#[test]
fn withdrawn_forged_cut_and_misdirected_invitations_are_refused_and_counted() {
    let world = World::new("refused");
    let (_, line) = world.invite("one.line", &["--principal", "7"]);
    let mut parsed: InvitationLine = line.parse().expect("an invitation");
    eventually("the server follows", || world.running.counted("invitations", "open") == 1);
    world.folder.write("cut.line", &line[..line.len() - 3]);
    refused(&world, &["--line", "cut.line"], "cut or changed");
    world.folder.write("not.line", "wayleave-cap-abc");
    refused(&world, &["--line", "not.line"], "one begins with wayleave-invitation-");
    // Another one-time key, and an ID that nobody has.
    let forged = InvitationLine { secret: Seed::new([7; 32]), ..parsed.clone() };
    world.folder.write("forged.line", &forged.expose());
    refused(&world, &["--line", "forged.line"], "does not know the invitation");
    // Another server at the address of the one that was pinned: nothing is sent to it.
    let requests = world.counted("requests");
    parsed.pin = [9; 32];
    world.folder.write("misdirected.line", &parsed.expose());
    refused(&world, &["--line", "misdirected.line"], "another server answers there");
    assert_eq!(world.counted("requests"), requests);
    let id = parsed.id.to_string();
    world.folder.ok(&["cap", "invitations", "--withdraw", &id, "--config", "server/key.toml"]);
    eventually("the server follows", || world.running.counted("invitations", "withdrawn") == 2);
    refused(&world, &["--line", "one.line"], "withdrawn by the provider");
    let said = world.folder.fails(1, &["cap", "invitations", "--withdraw", &id, "--config", "server/key.toml"]);
    assert!(said.contains("withdrawn"), "{said}");
    let counts = ["redemptions_forged", "redemptions_withdrawn", "redeemed"].map(|what| world.counted(what));
    assert_eq!(counts, [1, 1, 0]);
    assert_eq!(world.list(&[])["principals"], json!([]));
}

/// Makes a change as the writer's key allows, whatever the time is said to be.
fn append(world: &World, body: ChangeBody, issued: u64) {
    let source = Source::read(&world.folder.0.join("server/key.toml")).expect("there");
    let config = KeyFile::parse(&source).expect("a configuration");
    let (server, mut database) = config.server(&source).expect("a database");
    let change = server.sign(body, wayleave_core::UnixTime(issued * 1_000_000)).expect("possible");
    let effects = (server.state().effects(change.object()), server.state().settled());
    assert!(database.append(&change, effects, ("a test", "")).expect("appended").is_empty());
}

#[test]
fn an_invitation_of_last_week_has_expired_and_a_wrong_clock_is_told() {
    let mut world = World::new("expired");
    let (_, line) = world.invite("one.line", &["--principal", "7"]);
    let line: InvitationLine = line.parse().expect("an invitation");
    world.running.kill();
    let waypoint = WAYPOINT.parse().expect("an address");
    let (principal, interval) = (Principal::new(8).expect("24 bits"), Interval::new(12).expect("in range"));
    let terms = vec![Terms { waypoint, principal, interval, width: Width::Full, delegation: None }];
    let now = unix_now().secs();
    let old =
        InvitationLine { id: wayleave_control::capability::InvitationId([4; 8]), not_after: now - 60, ..line.clone() };
    let invitation =
        Invitation { id: old.id, key: old.key(), name: "late".to_owned(), lasts: 9, not_after: old.not_after, terms };
    append(&world, ChangeBody::Invite(invitation), now - 3_600);
    world.running.resume();
    assert_eq!(world.running.counted("invitations", "expired"), 1);
    world.folder.write("old.line", &old.expose());
    refused(&world, &["--line", "old.line"], "has expired");
    let late = wayleave_core::UnixTime((now - 3_600) * 1_000_000);
    let answer = world.call(None, "POST", "/v1/redemptions", Some(&redemption(&line, 1, late)));
    assert!(answer.is("request") && answer.body.contains("clock"), "{answer:?}");
    let counts = ["redemptions_expired", "redemptions_clock", "redeemed"].map(|what| world.counted(what));
    assert_eq!(counts, [1, 1, 0]);
}

/// An old copy of the database would let an invitation be used a second time: a server does not start with one.
#[test]
fn a_server_whose_database_was_put_back_behind_a_redemption_does_not_start() {
    let mut world = World::new("put-back");
    world.invite("one.line", &["--principal", "7"]);
    eventually("the server follows", || world.running.counted("invitations", "open") == 1);
    let (folder, backup) = (world.folder.0.join("server"), world.folder.0.join("backup"));
    world.running.kill();
    copy_database(&folder, &backup);
    world.running.resume();
    world.folder.ok(&["cap", "accept", "--line", "one.line"]);
    world.running.kill();
    copy_database(&backup, &folder);
    let said = text(&world.folder.run(&["run", "key", "--config", "server/key.toml"]).stderr);
    assert!(said.contains("wayleave cap adopt"), "{said}");
}

#[test]
fn of_many_holders_at_once_one_has_the_invitation() {
    let world = World::with("race", "");
    world.invite("one.line", &["--principal", "7"]);
    eventually("the server follows", || world.running.counted("invitations", "open") == 1);
    let accept = |number: usize| {
        let key = format!("holder-{number}.key");
        let output = world.folder.run(&["cap", "accept", "--line", "one.line", "--key", &key]);
        output.status.success().then(|| text(&output.stdout))
    };
    let given: Vec<String> = thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|number| scope.spawn(move || accept(number))).collect();
        all.into_iter().filter_map(|one| one.join().expect("it ends")).collect()
    });
    assert_eq!(given.len(), 1, "{given:?}");
    assert_eq!(world.counted("redeemed"), 1);
    assert_eq!(world.list(&[])["principals"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_kill_in_the_middle_of_a_redemption_leaves_nothing_or_all_of_it() {
    let mut world = World::new("killed");
    let mut outcomes = BTreeSet::new();
    for round in 0..16_u64 {
        let principal = (100 + round).to_string();
        let file = format!("{round}.line");
        world.invite(&file, &["--principal", &principal, "--waypoint", "198.51.100.2"]);
        let invitations = round as usize + 1;
        eventually("the server follows", || {
            let of = |what| world.running.counted("invitations", what);
            of("open") + of("used") == invitations as u64
        });
        let mut command = Command::new(env!("CARGO_BIN_EXE_wayleave"));
        let key = format!("{round}.key");
        command.args(["cap", "accept", "--line", &file, "--key", &key, "--json"]).current_dir(&world.folder.0);
        let accepting = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it runs");
        // From before the request to after its answer.
        thread::sleep(Duration::from_millis(10 * round));
        world.running.kill();
        let accepted = accepting.wait_with_output().expect("it ends");
        world.running.resume();
        let list = world.list(&["--principal", &principal]);
        let waypoints = list["principals"][0]["waypoints"].as_array().map_or(0, Vec::len);
        assert!(waypoints == 0 || waypoints == 2, "{list}");
        outcomes.insert((accepted.status.success(), waypoints));
        assert!(!accepted.status.success() || waypoints == 2, "what was answered is on the disk");
        let again = world.folder.ok(&["cap", "accept", "--line", &file, "--key", &key, "--json"]);
        let again: Value = serde_json::from_str(&again).expect("JSON");
        assert_eq!(again["repeated"], waypoints == 2);
        if accepted.status.success() {
            let first: Value = serde_json::from_slice(&accepted.stdout).expect("JSON");
            assert_eq!(first["capabilities"], again["capabilities"]);
        }
    }
    assert!(!outcomes.is_empty());
}

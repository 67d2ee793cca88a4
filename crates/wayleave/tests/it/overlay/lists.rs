//! Lists of removed nodes and what signs them.
//!
//! ICC, operator gone: the operator's side dies for longer than `max_staleness_secs`, and a list is signed with a list key on another
//! machine: a warning, then no consent, with the reason and what to do; then consent again.
//! ICC, operator gone, at a gateway: its status warns, and when consent has ended `why` names the list and the command that helps.
//! ICC, backup: old records of the operator's are put back while nodes run: who was removed since stays removed.
//! ICC, realm key: rolls under a running overlay, and is stolen: consents go on, also after a restart of every role.
//! ICC, list keys: revoked, with the realm's key off line: lists go on; nobody is admitted.

use std::fs;
use std::net::TcpStream;
use std::process::{Command, Stdio};

use serde_json::Value;
use wayleave_lab::netns;

use super::harness::{Realm, Row, Running};
use super::world::{Plan, World};
use crate::common::descriptors::Descriptors;
use crate::common::eventually;

const CONFIG: [&str; 2] = ["--config", "realm/realm.toml"];

fn problems(running: &Running) -> String {
    running.status("problems").to_string()
}

/// A realm whose lists are due every two seconds.
fn quick(name: &str) -> Realm {
    let mut realm = Realm::new(name);
    realm.operator.kill();
    let interval = |text: String| text.replace("#list_interval_secs = 600", "list_interval_secs = 2");
    realm.edit("realm/realm.toml", interval);
    realm.operator.resume();
    realm
}

fn realm_command(realm: &Realm, arguments: &[&str]) -> String {
    realm.folder.ok(&[&["realm"], arguments, &CONFIG].concat())
}

/// The names of those that a path server takes for members.
fn members(server: &Running) -> Vec<String> {
    let members = server.show("members", &[])["members"].as_array().cloned().unwrap_or_default();
    members.iter().filter_map(|member| member["names"][0].as_str().map(str::to_owned)).collect()
}

#[test]
fn without_the_operators_side_consent_ends_after_a_warning_and_a_list_of_another_machine_brings_it_back() {
    let realm = quick("stale");
    realm_command(&realm, &["list-key", "new", "list.key"]);
    let soon = |realm: &Realm| {
        let names = ["a/router", "b/router", "c/router", "consent-b/consent", "consent-c/consent"];
        for file in names {
            let change = |text: String| text.replace("#max_staleness_secs = 86400", "max_staleness_secs = 12");
            realm.edit(&format!("{file}.toml"), change);
        }
    };
    let mut row = Row::of(realm, soon).settled();
    eventually("consented", || row.is_consented("c"));
    assert_eq!(problems(&row.nodes[0]), "[]");
    // What the other machine has: the key above and this line.
    fs::write(row.realm.path("last"), realm_command(&row.realm, &["list", "export"])).expect("written");
    // Since then somebody was removed, of whom the line does not know.
    let token = row.realm.invite(&["late", "--role", "consent"]);
    row.realm.folder.ok(&["join", &token, "--dir", "late"]);
    realm_command(&row.realm, &["revoke", "late"]);
    row.realm.operator.kill();
    eventually("there is a warning", || problems(&row.nodes[0]).contains("next list of removed nodes is overdue"));
    let refused = || row.paths("c")["paths"][0]["not_consented"].as_str().unwrap_or_default().to_owned();
    eventually("consent ends", || refused().contains("list of removed nodes is too old to trust"));
    assert!(refused().contains("wayleave realm list sign"), "{}", refused());
    assert_eq!(row.paths("c")["paths"].as_array().map(Vec::len), Some(1), "paths are found as before");
    for running in row.nodes.iter().chain(&row.consent) {
        eventually("all say so", || problems(running).contains("consent servers give no consent"));
        assert!(running.log().contains("wayleave realm list sign"), "{}", running.log());
    }
    let said = row.realm.folder.ok(&["check", "a/router.toml"]);
    assert!(said.contains("wayleave realm list sign"), "{said}");
    let address = row.realm.read("realm/servers");
    let address = address.lines().last().and_then(|line| line.split_once(' ')).expect("paths and where it is").1;
    let server = format!("{}@{address}", row.realm.identity("paths"));
    let sign = ["realm", "list", "sign", "last", "--key", "list.key", "--ahead", "1d", "--out"];
    row.realm.folder.ok(&[&sign[..], &["of-the-line"]].concat());
    let refused_list = row.realm.folder.run(&["realm", "list", "publish", "of-the-line", "--server", &server]);
    assert!(crate::common::text(&refused_list.stdout).contains("leaves out"), "{refused_list:?}");
    row.realm.folder.ok(&[&sign[..], &["next", "--server", &server]].concat());
    let said = row.realm.folder.ok(&["realm", "list", "publish", "next", "--server", &server]);
    assert!(said.contains(" has it\n"), "{said}");
    eventually("consented again", || row.is_consented("c"));
    eventually("nothing is wrong", || row.nodes.iter().all(|node| problems(node) == "[]"));
    // The operator's side comes back, and goes on above the list that it does not know.
    row.realm.operator.resume();
    let number = row.path_server.count("revocations");
    eventually("its lists are taken", || row.path_server.count("revocations") > number);
}

#[test]
fn a_gateway_says_in_why_that_the_list_of_removed_nodes_is_too_old_and_which_command_helps() {
    let test =
        "overlay::lists::a_gateway_says_in_why_that_the_list_of_removed_nodes_is_too_old_and_which_command_helps";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let plan = Plan { consent_secs: 6, lists: Some((2, 12)), ..Plan::default() };
    let mut world = World::with("stale-gateway", &plan).settled();
    world.realm.operator.kill();
    eventually("there is a warning", || problems(&world.nodes["a"]).contains("next list of removed nodes is overdue"));
    let why = || {
        // A path is asked for anew.
        let _ = world.nodes["a"].ask(&["ping", "fast.b.overlay"]);
        crate::common::text(&world.nodes["a"].ask(&["why", "fast.b.overlay"]).stdout)
    };
    let mut said = String::new();
    eventually("consent ends", || {
        said = why();
        said.contains("list of removed nodes is too old to trust")
    });
    assert!(said.contains("wayleave realm list sign"), "{said}");
    assert!(problems(&world.nodes["a"]).contains("consent servers give no consent"), "{}", world.statuses());
    world.realm.operator.resume();
    eventually("consented again", || world.nodes["a"].ask(&["ping", "fast.b.overlay"]).status.success());
    eventually("nothing is said any more", || !why().contains("list of removed nodes"));
}

/// ICC, descriptors: connections use up those of a path server: it serves as soon as they are closed.
#[test]
fn a_path_server_without_a_free_descriptor_serves_again_once_there_is_one() {
    let realm = Realm::new("descriptors");
    let mut server = realm.path_server("paths");
    let id = server.id();
    let address = realm.read("realm/servers");
    let address = address.lines().last().and_then(|line| line.split_once(' ')).expect("paths and where it is").1;
    let at = format!("{}@{address}", realm.identity("paths"));
    fs::write(realm.path("last"), realm_command(&realm, &["list", "export"])).expect("written");
    let descriptors = Descriptors::leave(id, 4);
    let all = descriptors.use_up(|| TcpStream::connect(address).expect("the system takes what waits to be accepted"));
    eventually("the server says so", || server.log().contains("cannot accept a connection"));
    drop(all);
    let said = realm.folder.ok(&["realm", "list", "publish", "last", "--server", &at]);
    assert!(said.contains(" has it\n"), "{said}");
    server.wait();
    assert_eq!(server.id(), id);
}

#[test]
fn of_two_removals_at_once_both_hold() {
    let realm = Realm::new("two-removals");
    let server = realm.path_server("paths");
    for name in ["k", "l", "m"] {
        let token = realm.invite(&[name, "--role", "consent"]);
        realm.folder.ok(&["join", &token, "--dir", name]);
    }
    let begin = |name: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wayleave"));
        command.args(["realm", "revoke", name]).args(CONFIG).current_dir(&realm.folder.0).stdout(Stdio::null());
        command.spawn().expect("the program runs")
    };
    let mut both = [begin("k"), begin("l")];
    assert!(both.iter_mut().all(|child| child.wait().expect("a child").success()));
    let shown: Value = serde_json::from_str(&realm_command(&realm, &["show", "--json"])).expect("JSON");
    let state = |name: &str| {
        let all = shown["members"].as_array().expect("members");
        all.iter().find(|member| member["name"] == name).expect("a member")["state"].clone()
    };
    assert_eq!(["k", "l", "m"].map(state), ["removed", "removed", "member"]);
    eventually("the path server's list has both", || {
        realm.operator.count("revoked") == 2 && server.count("revocations") >= realm.operator.count("revocations")
    });
}

#[test]
fn a_node_whose_key_was_stolen_is_replaced_with_its_names_and_the_thief_gets_nothing() {
    let realm = Realm::new("replaced");
    let server = realm.path_server("paths");
    let old = realm.invite(&["g", "--role", "gateway", "--prefix", "10.7.0.0/24"]);
    realm.folder.ok(&["join", &old, "--dir", "stolen", "--status", &crate::common::free()]);
    let said = realm_command(&realm, &["replace", "g"]);
    let token = said.lines().last().expect("the token").to_owned();
    assert!(said.contains("removed ") && said.contains(" has it\n"), "{said}");
    // With the token of before the old keys get nothing, and they do not join by the new one.
    for token in [&old, &token] {
        let error = realm.folder.fails(1, &["join", token, "--dir", "stolen"]);
        let error = error.replace('│', " ").split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(error.contains("the identity was revoked") && error.contains("into an empty folder"), "{error}");
    }
    realm.folder.ok(&["join", &token, "--dir", "anew", "--status", &crate::common::free()]);
    assert_ne!(realm.identity("stolen"), realm.identity("anew"));
    let shown: Value = serde_json::from_str(&realm_command(&realm, &["show", "--json"])).expect("JSON");
    let all = shown["members"].as_array().expect("members");
    let of_name: Vec<&Value> = all.iter().filter(|member| member["name"] == "g").collect();
    let states = |state: &str| of_name.iter().filter(|member| member["state"] == state).count();
    assert_eq!((states("removed"), states("member")), (1, 1));
    assert!(of_name.iter().all(|member| member["prefixes"][0] == "10.7.0.0/24" && member["role"] == "gateway"));
    assert!(!members(&server).contains(&"g".to_owned()), "neither has published anything yet");
}

#[test]
fn with_the_realms_key_off_line_lists_go_on_by_a_list_key_until_that_is_revoked() {
    let mut realm = quick("off-line");
    let server = realm.path_server("paths");
    realm_command(&realm, &["list-key", "new", "realm/list.key"]);
    realm_command(&realm, &["list-key", "new", "spare.key"]);
    let token = realm.invite(&["k", "--role", "consent"]);
    realm.operator.kill();
    realm.edit("realm/realm.toml", |text| text.replace("#list_key = ", "list_key = "));
    fs::rename(realm.path("realm/realm.key"), realm.path("key-on-a-stick")).expect("moved");
    assert!(realm.folder.ok(&["check", "realm/realm.toml"]).contains("the realm's key is not here"));
    realm.operator.resume();
    let number = server.count("revocations");
    eventually("lists go on", || server.count("revocations") > number + 2_000_000);
    assert_eq!(realm.operator.status("realm_key"), false);
    let error = realm.folder.fails(1, &["join", &token, "--dir", "k"]);
    assert!(error.contains("the realm's key is kept off line"), "{error}");
    let error = realm.folder.fails(1, &[&["realm", "invite", "l", "--role", "consent"][..], &CONFIG].concat());
    assert!(error.contains("the realm's key is not here"), "{error}");
    // The list key is stolen: the realm's key comes back for a moment, and ends it.
    fs::rename(realm.path("key-on-a-stick"), realm.path("realm/realm.key")).expect("moved");
    let shown: Value = serde_json::from_str(&realm_command(&realm, &["list-key", "show", "--json"])).expect("JSON");
    let keys = shown["list_keys"].as_array().expect("two").clone();
    assert_eq!(keys.len(), 2);
    fs::write(realm.path("last"), realm_command(&realm, &["list", "export"])).expect("written");
    let sign = |out: &str| ["realm", "list", "sign", "last", "--key", "spare.key", "--out", out].map(str::to_owned);
    let thief: Vec<String> = sign("of-thief").to_vec();
    realm.folder.ok(&thief.iter().map(String::as_str).collect::<Vec<_>>());
    let spare = {
        let file = realm.read("spare.key");
        let of_file = |key: &&Value| file.contains(key["certificate"].as_str().expect("a line"));
        keys.iter().find(of_file).expect("in its file")["key"].as_str().expect("a key").to_owned()
    };
    let said = realm_command(&realm, &["list-key", "revoke", &spare]);
    assert!(said.contains("wayleave realm list-key renew FILE wayleave-list-key-v1."), "{said}");
    let error = realm.folder.fails(1, &[&["realm", "list", "publish", "of-thief"][..], &CONFIG].concat());
    assert!(error.contains("a list key that was revoked"), "{error}");
    let address = realm.read("realm/servers");
    let address = address.lines().last().and_then(|line| line.split_once(' ')).expect("paths and where it is").1;
    let at = format!("{}@{address}", realm.identity("paths"));
    let output = realm.folder.run(&["realm", "list", "publish", "of-thief", "--server", &at]);
    assert!(crate::common::text(&output.stdout).contains("has ended or was revoked"), "{output:?}");
    // The operator's process goes on with the certificate that is in the records, without a restart.
    let number = server.count("revocations");
    eventually("lists go on", || server.count("revocations") > number + 2_000_000);
}

/// ICC, other keys: a router has others, and its neighbours, paths and consents come back without an edit but that of its consent server's
/// list of keys.
#[test]
fn a_router_rolls_its_keys_and_is_found_by_its_name_as_before() {
    let mut row = Row::new("rolled").settled();
    eventually("consented", || row.is_consented("c"));
    let before = row.realm.identity("b");
    fs::copy(row.realm.path("b/identity.key"), row.realm.path("old.key")).expect("copied");
    let said = row.realm.folder.ok(&["keys", "roll-node", "--config", "b/router.toml"]);
    let after = row.realm.identity("b");
    assert!(said.contains(&after) && said.contains(&before) && after != before, "{said}");
    assert!(row.realm.folder.ok(&["check", "b/router.toml"]).contains("`wayleave run router`"));
    assert!(!row.realm.path("b/identity.key.roll").exists() && !row.realm.path("b/ids.key.next").exists());
    // Nothing is left to be done a second time by the old key.
    fs::rename(row.realm.path("b/identity.key"), row.realm.path("new.key")).expect("moved");
    fs::copy(row.realm.path("old.key"), row.realm.path("b/identity.key")).expect("copied");
    let error = row.realm.folder.fails(1, &["keys", "roll-node", "--config", "b/router.toml"]);
    assert!(error.contains("the identity was revoked"), "{error}");
    fs::rename(row.realm.path("new.key"), row.realm.path("b/identity.key")).expect("moved");
    row.nodes[1].kill();
    row.nodes[1].resume();
    row.realm.edit("consent-b/consent.toml", |text| text.replace(&before, &after));
    row.consent[0].signal("-HUP");
    eventually("consented by the new identity", || row.is_consented("c"));
    let names = members(&row.path_server);
    assert_eq!(names.iter().filter(|name| *name == "b").count(), 1, "{names:?}");
}

/// A path server has what the records have lost.
#[test]
fn old_records_that_are_put_back_make_nobody_a_member_again() {
    let mut realm = quick("backup");
    let server = realm.path_server("paths");
    for name in ["k", "l"] {
        let token = realm.invite(&[name, "--role", "consent"]);
        realm.folder.ok(&["join", &token, "--dir", name]);
    }
    let backup = fs::read(realm.path("realm/records")).expect("read");
    realm_command(&realm, &["revoke", "k"]);
    eventually("it is removed there", || realm.operator.count("revoked") == 1);
    realm.operator.kill();
    fs::write(realm.path("realm/records"), backup).expect("written");
    realm.operator.resume();
    let number = server.count("revocations");
    eventually("the removal is back", || realm.operator.count("revoked") == 1);
    eventually("lists go on", || server.count("revocations") > number + 2_000_000);
    let shown: Value = serde_json::from_str(&realm_command(&realm, &["show", "--json"])).expect("JSON");
    let state = |name: &str| {
        let all = shown["members"].as_array().expect("members");
        all.iter().find(|member| member["name"] == name).expect("a member")["state"].clone()
    };
    assert_eq!(["k", "l"].map(state), ["removed", "member"]);
    assert!(realm.operator.log().contains("removes nodes, here too from now on"), "{}", realm.operator.log());
}

/// Where the realm's key is not, `replace` does nothing at all.
#[test]
fn a_member_that_cannot_be_invited_again_is_not_removed_either() {
    let realm = Realm::new("not-replaced");
    realm_command(&realm, &["list-key", "new", "realm/list.key"]);
    let _server = realm.path_server("paths");
    let token = realm.invite(&["g", "--role", "consent"]);
    realm.folder.ok(&["join", &token, "--dir", "g"]);
    realm.edit("realm/realm.toml", |text| text.replace("#list_key = ", "list_key = "));
    fs::rename(realm.path("realm/realm.key"), realm.path("key-on-a-stick")).expect("moved");
    let error = realm.folder.fails(1, &[&["realm", "replace", "g"][..], &CONFIG].concat());
    assert!(error.contains("is not removed"), "{error}");
    assert_eq!(realm.operator.count("revoked"), 0);
    let shown = realm_command(&realm, &["show"]);
    assert!(!shown.contains("removed"), "{shown}");
    // What `keys show` says of the new kinds of files and lines.
    let shown = realm.folder.ok(&["keys", "show", "realm/list.key"]);
    assert!(shown.contains("list:ed25519:") && shown.contains("holds") && !shown.contains("secret = "), "{shown}");
    fs::write(realm.path("last"), realm_command(&realm, &["list", "export"])).expect("written");
    let shown = realm.folder.ok(&["keys", "show", "last"]);
    assert!(shown.contains("a list of a realm's removed nodes") && shown.contains("holds"), "{shown}");
}

/// Restarts every role of a row.
fn restart(row: &mut Row) {
    for running in row.nodes.iter_mut().chain(&mut row.consent).chain([&mut row.path_server, &mut row.realm.operator]) {
        running.kill();
        running.resume();
    }
}

#[test]
fn the_realms_key_rolls_under_a_running_overlay_and_everybody_follows() {
    let mut row = Row::of(quick("key-rolls"), |_| ()).settled();
    eventually("consented", || row.is_consented("c"));
    let invited = row.realm.invite(&["late", "--role", "consent"]);
    let said = realm_command(&row.realm, &["roll-key", "new", "realm/next.key", "--seconds", "15"]);
    assert!(said.contains(" has it\n"), "{said}");
    let problem = "which is not here";
    assert!(row.realm.folder.ok(&["check", "realm/realm.toml"]).contains(problem));
    eventually("it is said", || problems(&row.realm.operator).contains(problem));
    row.realm.edit("realm/realm.toml", |text| text.replace("#next_key = ", "next_key = "));
    row.realm.operator.kill();
    row.realm.operator.resume();
    assert!(!row.realm.folder.ok(&["check", "realm/realm.toml"]).contains(problem));
    for running in row.nodes.iter().chain(&row.consent).chain([&row.path_server]) {
        eventually(&format!("{} says so", running.name), || running.log().contains("another key from a date on"));
    }
    // The old key is put away once its time is over.
    let rolled = || {
        let shown = row.realm.folder.run(&[&["realm", "invite", "new", "--role", "consent"][..], &CONFIG].concat());
        crate::common::text(&shown.stdout).trim().to_owned()
    };
    let is_of_next = |token: &str| {
        fs::write(row.realm.path("token"), token).expect("written");
        token.starts_with("wayleave-join-") && token.len() > invited.len() + 200
    };
    eventually("invitations are of the next key", || is_of_next(&rolled()));
    fs::rename(row.realm.path("realm/realm.key"), row.realm.path("key-on-a-stick")).expect("moved");
    let token = row.realm.read("token");
    assert!(row.is_consented("c"), "flows go on");
    restart(&mut row);
    let mut row = row.settled();
    eventually("consented after the restart of every role", || row.is_consented("c"));
    let number = row.path_server.count("revocations");
    eventually("lists go on by the next key", || row.path_server.count("revocations") > number + 2_000_000);
    let error = row.realm.folder.fails(1, &["join", &invited, "--dir", "late"]);
    assert!(error.contains("has expired"), "a token of the key before: {error}");
    row.realm.folder.ok(&["join", token.trim(), "--dir", "new"]);
    row.realm.folder.ok(&["check", "new/consent.toml"]);
    // A member that the key before admitted is removed by the next one.
    realm_command(&row.realm, &["revoke", "b"]);
    eventually("no path over it", || {
        row.paths("c").is_null() || row.paths("c")["paths"].as_array().is_none_or(Vec::is_empty)
    });
    row.nodes[1].kill();
}

#[test]
fn a_stolen_realm_key_ends_at_once_and_every_member_gets_a_membership_of_the_next() {
    let mut row = Row::of(quick("key-stolen"), |_| ()).settled();
    eventually("consented", || row.is_consented("c"));
    let names = ["paths", "consent-b", "consent-c", "a", "b", "c"];
    let before = names.map(|name| row.realm.read(&format!("{name}/membership")));
    let said = realm_command(&row.realm, &["roll-key", "new", "realm/next.key", "--stolen"]);
    // What it prints is what the configuration needs.
    let line = said.lines().find_map(|line| line.strip_prefix("next: ")?.split(" into ").next()).expect("a line");
    assert!(said.contains("run realm` now"), "{said}");
    row.realm.edit("realm/realm.toml", |text| text.replace("#next_key = \"next.key\"", line));
    row.realm.folder.ok(&["check", "realm/realm.toml"]);
    fs::rename(row.realm.path("realm/realm.key"), row.realm.path("stolen.key")).expect("moved");
    row.realm.operator.kill();
    row.realm.operator.resume();
    eventually("everybody has fetched another membership", || {
        names.iter().zip(&before).all(|(name, before)| row.realm.read(&format!("{name}/membership")) != *before)
    });
    eventually("consented", || row.is_consented("c"));
    restart(&mut row);
    let row = row.settled();
    eventually("consented after the restart of every role", || row.is_consented("c"));
}

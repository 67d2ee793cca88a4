//! Tokens, and what a node has once it joined.
//!
//! ICC, join, by process: a token used twice, after a kill of the operator's side, withdrawn beside its running
//! process, cut, of another realm: one node is admitted; refused with the reason.
//! ICC, renewal: memberships of ten seconds of a path server, consent servers and routers; a node that was removed,
//! whose operator renews by hand: each has a later one in time, without a restart; refused with the reason, in the log
//! and under `problems`.
//! ICC, removed: a member is removed while it forwards, or while a path server is down: it is on no path, and its
//! adverts are refused; the server learns it when it is back.
//! ICC, mistakes: configurations of nodes and servers with one mistake each: `check` names each.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use serde_json::Value;
use wayleave_runtime::clock::unix_now;

use super::harness::Realm;
use crate::common::{Folder, eventually, free, text};

#[test]
fn a_token_works_once_and_the_same_node_may_ask_again() {
    let realm = Realm::new("token");
    let token = realm.invite(&["p", "--role", "path", "--address", "127.0.0.1:7100"]);
    let joined = realm.folder.ok(&["join", &token, "--dir", "one"]);
    assert!(joined.starts_with("joined as p, until "), "{joined}");
    assert!(realm.folder.ok(&["check", "one/path.toml"]).contains("fine"));
    // Its answer was lost, say: the same keys get the same membership.
    let first = realm.read("one/membership");
    fs::remove_file(realm.path("one/membership")).expect("removed");
    realm.folder.ok(&["join", &token, "--dir", "one"]);
    assert_eq!(realm.read("one/membership"), first);
    // Another node is too late, and learns why.
    let error = realm.folder.fails(1, &["join", &token, "--dir", "two"]);
    assert!(error.contains("the token was used by another node"), "{error}");
    assert!(!realm.path("two/membership").exists());
    // Names are unique among members.
    let error = realm.folder.fails(
        1,
        &["realm", "invite", "p", "--role", "path", "--address", "127.0.0.1:1", "--config", "realm/realm.toml"],
    );
    assert!(error.contains("the name p belongs to the member"), "{error}");
}

#[test]
fn a_used_token_stays_used_when_the_operator_is_killed_and_one_that_was_withdrawn_is_refused() {
    let mut realm = Realm::new("withdrawn");
    let used = realm.invite(&["p", "--role", "path", "--address", "127.0.0.1:7100"]);
    realm.folder.ok(&["join", &used, "--dir", "one"]);
    realm.operator.kill();
    realm.operator.resume();
    let error = realm.folder.fails(1, &["join", &used, "--dir", "two"]);
    assert!(error.contains("the token was used by another node"), "{error}");
    // While the operator's process runs, the command writes beside it, and leaves files to whose they are.
    let servers = realm.folder.0.join("realm/servers");
    let is_given = std::os::unix::fs::chown(&servers, Some(4_321), Some(4_321)).is_ok(); // of another only if this is root
    let other = realm.invite(&["q", "--role", "path", "--address", "127.0.0.1:7101"]);
    assert_eq!(fs::metadata(&servers).expect("there").uid() == 4_321, is_given);
    realm.folder.ok(&["realm", "revoke", &other, "--config", "realm/realm.toml"]);
    let error = realm.folder.fails(1, &["join", &other, "--dir", "three"]);
    assert!(error.contains("withdrew the invitation"), "{error}");
    let shown: Value =
        serde_json::from_str(&realm.folder.ok(&["realm", "show", "--json", "--config", "realm/realm.toml"]))
            .expect("JSON");
    assert_eq!(shown["members"].as_array().map(Vec::len), Some(1), "{shown}");
    assert_eq!(realm.operator.count("tokens_used"), 2);
}

#[test]
fn a_renewed_membership_is_fetched_with_the_token_of_before_and_replaces_the_older_one() {
    let realm = Realm::new("renewed");
    let server = realm.path_server("paths");
    let token = realm.invite(&["k", "--role", "consent", "--days", "1"]);
    let status = free();
    realm.folder.ok(&["join", &token, "--dir", "k", "--listen", &free(), "--status", &status]);
    let until = || {
        let members = server.show("members", &[])["members"].as_array().cloned().unwrap_or_default();
        members.iter().find(|member| member["names"][0] == "k").and_then(|member| member["membership_until"].as_u64())
    };
    let mut node = realm.start("k", "consent", &status);
    eventually("k is known", || until().is_some());
    let (before, old) = (until().expect("known"), realm.read("k/membership"));
    let said = realm.folder.ok(&["realm", "renew", "k", "--days", "30", "--config", "realm/realm.toml"]);
    assert!(said.starts_with("renewed ed25519:"), "{said}");
    eventually("the operator's process gives it out", || {
        realm.folder.ok(&["join", &token, "--dir", "k"]);
        realm.read("k/membership") != old
    });
    node.kill();
    node.resume();
    eventually("others know it", || until().is_some_and(|now| now > before + 28 * 86_400));
    // The older one is not taken any more.
    node.kill();
    fs::write(realm.path("k/membership"), old).expect("written");
    node.resume();
    eventually("it is told so", || node.log().contains("a newer object is known"));
    assert!(until().is_some_and(|now| now > before + 28 * 86_400));
}

#[test]
fn nodes_and_servers_renew_their_memberships_by_themselves_and_one_that_was_removed_says_why_it_cannot() {
    let mut realm = Realm::new("renewing");
    realm.lasts = Some(10);
    let row = super::harness::Row::of(realm, |_| ()).settled();
    let file = |name: &str| row.realm.read(&format!("{name}/membership"));
    let names = ["paths", "consent-b", "consent-c", "a", "b", "c"];
    let first = names.map(file);
    eventually("everybody has a later membership, twice", || {
        let renewed = |log: String| log.matches("the operator has renewed this node's membership").count() >= 2;
        let others = [&row.path_server, &row.consent[0], &row.consent[1]];
        others.into_iter().chain(&row.nodes).all(|running| renewed(running.log()))
    });
    eventually("and has written it down", || names.iter().zip(&first).all(|(name, first)| file(name) != *first));
    // By now the first ones have ended: with the later ones all is as before.
    eventually("consented", || row.is_consented("c"));
    let members = row.path_server.show("members", &[])["members"].as_array().cloned().unwrap_or_default();
    let later = |name: &str| {
        let member = members.iter().find(|member| member["names"][0] == name).expect("a member");
        member["membership_until"].as_u64() > Some(unix_now().secs())
    };
    assert!(["a", "b", "c"].into_iter().all(later), "{members:?}");
    assert!(row.realm.operator.log().contains("membership renewed"));
    row.realm.folder.ok(&["realm", "revoke", "b", "--config", "realm/realm.toml"]);
    eventually("b says so", || {
        let problems = row.nodes[1].status("problems");
        problems[0].as_str().is_some_and(|why| why.contains("does not renew") && why.contains("revoked"))
    });
    assert!(row.nodes[1].log().contains("does not renew this node's membership"), "{}", row.nodes[1].log());
    assert_eq!(row.nodes[0].status("problems"), serde_json::json!([]));
}

#[test]
fn a_token_that_was_changed_cut_off_or_is_of_another_realm_is_refused_before_anything_is_sent() {
    let realm = Realm::new("changed");
    let token = realm.invite(&["p", "--role", "path", "--address", "127.0.0.1:7100"]);
    let error = realm.folder.fails(2, &["join", &token[..token.len() - 8], "--dir", "one"]);
    assert!(error.contains("cut off") || error.contains("malformed") || error.contains("not signed"), "{error}");
    realm.folder.write("p.token", &token);
    let error = realm.folder.fails(2, &["join", "p.token", "--dir", "one"]);
    assert!(error.contains("`p.token` is a file") && error.contains("<p.token"), "{error}");
    let other = "ed25519:3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29";
    let error = realm.folder.fails(1, &["join", &token, "--dir", "one", "--realm", other]);
    assert!(error.contains("the token is of the realm"), "{error}");
    assert!(!realm.path("one/identity.key").exists());
}

#[test]
fn the_first_member_must_be_a_path_server_and_every_role_gets_a_configuration_that_check_accepts() {
    let realm = Realm::new("roles");
    let error = realm.folder.fails(1, &["realm", "invite", "a", "--role", "router", "--config", "realm/realm.toml"]);
    assert!(error.contains("no path server yet"), "{error}");
    let token = realm.invite(&["p", "--role", "path", "--address", "127.0.0.1:7100"]);
    realm.folder.ok(&["join", &token, "--dir", "p"]);
    for (name, role) in [("a", "router"), ("k", "consent")] {
        let token = realm.invite(&[name, "--role", role]);
        let said = realm.folder.ok(&["join", &token, "--dir", name]);
        let config = format!("{name}/{role}.toml");
        assert_eq!(said.contains("first: wayleave link add"), role == "router", "{said}");
        assert!(said.contains(&format!("next: wayleave run {role} --config {config}")), "{said}");
        assert!(realm.folder.ok(&["check", &config]).contains(&format!("`wayleave run {role}`")));
        assert!(realm.read(&config).contains(&realm.identity("p")), "the path server that the token named");
    }
    // A path server has no other key than its identity.
    let files = fs::read_dir(realm.path("p")).expect("a folder").map(|file| file.expect("a file").file_name());
    let keys: Vec<_> = files.filter(|name| text(name.as_encoded_bytes()).ends_with(".key")).collect();
    assert_eq!(keys, ["identity.key"]);
}

#[test]
fn a_removed_node_is_refused_by_path_servers_and_is_on_no_path() {
    let row = super::harness::Row::new("removed").settled();
    let said = row.realm.folder.ok(&["realm", "revoke", "b", "--config", "realm/realm.toml"]);
    assert!(said.contains(" has it\n"), "{said}");
    eventually("nobody finds a path over b", || row.paths("c").is_null());
    eventually("the path server refuses b's adverts", || {
        row.nodes[1].log().contains("revoked by the realm's operator")
    });
    let error = row.realm.folder.fails(1, &["realm", "revoke", "b", "--config", "realm/realm.toml"]);
    let error = error.replace('│', " ").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(error.contains("`b` is removed already") && error.contains("wayleave realm invite b --role"), "{error}");
}

#[test]
fn a_list_of_removed_nodes_reaches_a_path_server_that_was_down() {
    let realm = Realm::new("late");
    let mut server = realm.path_server("paths");
    let token = realm.invite(&["k", "--role", "consent"]);
    realm.folder.ok(&["join", &token, "--dir", "k"]);
    server.kill();
    let said = realm.folder.ok(&["realm", "revoke", "k", "--config", "realm/realm.toml"]);
    assert!(said.contains("does not have it"), "{said}");
    server.resume();
    eventually("it has the list", || server.count("revocations") > 0);
}

#[test]
fn a_realm_is_never_made_over_another() {
    let folder = Folder::new("overlay-again");
    folder.ok(&["realm", "init", "realm"]);
    let error = folder.fails(1, &["realm", "init", "realm"]);
    assert!(error.contains("there is a realm in this folder"), "{error}");
    fs::remove_file(folder.0.join("realm/records")).expect("removed");
    let error = folder.fails(1, &["realm", "show", "--config", "realm/realm.toml"]);
    assert!(error.contains("restore them from a backup"), "{error}");
}

#[test]
fn check_names_each_mistake_in_a_nodes_configuration() {
    let realm = Realm::new("mistakes");
    let token = realm.invite(&["p", "--role", "path", "--address", "127.0.0.1:7100"]);
    realm.folder.ok(&["join", &token, "--dir", "p"]);
    for (name, role) in [("a", "router"), ("k", "consent")] {
        let token = realm.invite(&[name, "--role", role]);
        realm.folder.ok(&["join", &token, "--dir", name]);
    }
    let link =
        "[[overlay.neighbour]]\nnode = \"b\"\nrelationship = \"peer\"\ninterface = 1\nlocal = \"127.0.0.1:49252\"\n";
    let good = realm.read("a/router.toml");
    let says = |file: &str, text: String, expected: &str| {
        fs::write(realm.path(file), text).expect("written");
        let output = realm.folder.run(&["check", file, "--json"]);
        let said = crate::common::text(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{expected}: {said}");
        assert!(said.contains(expected), "{expected} is not in: {said}");
    };
    let cases = [
        (format!("{good}{link}{}", link.replace("interface = 1", "interface = 2")), "one link to each node"),
        (format!("{good}{link}{}", link.replace("\"b\"", "\"c\"")), "another link has this number"),
        (format!("{good}{}", link.replace("interface = 1", "interface = 0")), "0 is no link's number"),
        (format!("{good}{}", link.replace("peer", "friend")), "friend"),
        (format!("{good}{}", link.replace("127.0.0.1:49252", "0.0.0.0:49252")), "cannot be sent to"),
        (format!("{good}{}", link.replace("\"b\"", "\"B!\"")), "a node's name"),
        (format!("{good}{}", link.replace("local = ", "endpoint = \"b:0\"\nlocal = ")), "node.example.net:49252"),
        (format!("{good}[overlay.open]\nlocal = \"0.0.0.0:49252\"\n"), "cannot be sent to"),
        (format!("{good}[overlay.tls]\nlocal = \"0.0.0.0:443\"\n"), "cannot be sent to"),
        (format!("{good}[overlay.open]\nlocal = \"127.0.0.1:49252\"\nadmit = []\n"), "an open node that admits nobody"),
        (
            format!("{good}{}[overlay.open]\nlocal = \"127.0.0.1:49253\"\n", link.replace("= 1", "= 32768")),
            "the links of an open node to its members have numbers from 32768 on",
        ),
        (format!("{good}{link}[overlay.open]\nlocal = \"127.0.0.1:49252\"\n"), "in use by another interface or link"),
        (good.replace("ids = \"ids.key\"", "ids = \"identity.key\""), "has a key of the kind `identity`, not `ids`"),
        (good.replace("membership = \"membership\"", "membership = \"../p/membership\""), "not of this identity"),
        (good.replace("path_servers = [{", "path_servers = [] #"), "0 path servers"),
        (good.replace("tag = \"40000000\"", "tag = \"4\""), "a tag of 8 hexadecimal digits"),
    ];
    for (text, expected) in cases {
        says("a/router.toml", text, expected);
    }
    let good = realm.read("k/consent.toml");
    let node = format!("[[consent.node]]\nidentity = \"{}\"\n", realm.identity("a"));
    let cases = [
        (format!("{good}{node}"), "a node without keys"),
        (format!("{good}[overlay.open]\nlocal = \"127.0.0.1:49252\"\n"), "a consent server forwards nothing"),
        (format!("{good}[overlay.tls]\nlocal = \"127.0.0.1:443\"\n"), "no [overlay.tls]"),
        (format!("{good}{node}tags = \"../a/tags.key\"\n{node}tags = \"../a/tags.key\"\n"), "the same node twice"),
        (format!("{good}{node}tags = \"../a/router.key\"\n"), "is not a key file of a node"),
        (good.replace("policy = \"policy.toml\"", "policy = \"nowhere.toml\""), "nowhere.toml"),
        (good.replace("audit = \"audit.log\"", "audit = \"nowhere/audit.log\""), "there is no folder"),
    ];
    for (text, expected) in cases {
        says("k/consent.toml", text, expected);
    }
    let good = realm.read("p/path.toml");
    says(
        "p/path.toml",
        good.replace("identity = \"identity.key\"", "identity = \"../a/identity.key\""),
        "not of this identity",
    );
    says("p/path.toml", good.replace("#members = 65536", "members = 0"), "0 is out of range");
}

#[test]
fn an_invitation_warns_of_prefixes_that_lie_in_each_other_and_of_no_others() {
    let realm = Realm::new("overlaps");
    let token = realm.invite(&["p", "--role", "path", "--address", "127.0.0.1:7100"]);
    realm.folder.ok(&["join", &token, "--dir", "p"]);
    let token = realm.invite(&["b", "--role", "gateway", "--prefix", "10.2.0.0/16", "--prefix", "fd00:2::/64"]);
    realm.folder.ok(&["join", &token, "--dir", "b"]);
    let warnings = |prefixes: &[&str]| {
        let prefixes = prefixes.iter().flat_map(|prefix| ["--prefix", *prefix]);
        let command = ["realm", "invite", "c", "--role", "gateway", "--config", "realm/realm.toml"];
        let output = realm.folder.run(&command.into_iter().chain(prefixes).collect::<Vec<_>>());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stderr).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        warnings(&["10.0.0.0/8", "10.2.3.0/24"]),
        [
            "warning: 10.2.0.0/16 of b lies in 10.0.0.0/8: these addresses stay with b",
            "warning: 10.2.3.0/24 lies in 10.2.0.0/16 of b, which loses these addresses to the new node",
        ]
    );
    assert_eq!(warnings(&["10.3.0.0/16", "fd00:3::/64"]), [""; 0]);
    assert_eq!(
        warnings(&["198.18.7.0/24"]),
        ["warning: 198.18.7.0/24 lies where gateways have the addresses of names: nothing in it is reached"]
    );
}

/// ICC, links by command: what is added is what `check` takes, beside what stands there; what is removed leaves the rest.
#[test]
fn neighbours_are_added_listed_and_removed_by_command() {
    use std::os::unix::fs::PermissionsExt as _;

    let realm = Realm::new("link-command");
    let token = realm.invite(&["p", "--role", "path", "--address", "127.0.0.1:7100"]);
    realm.folder.ok(&["join", &token, "--dir", "p"]);
    let token = realm.invite(&["a", "--role", "router"]);
    realm.folder.ok(&["join", &token, "--dir", "a"]);
    let file = "a/router.toml";
    let before = realm.read(file);
    fs::set_permissions(realm.path(file), fs::Permissions::from_mode(0o640)).expect("ours");
    let link = |arguments: &str| {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let output = realm.folder.run(&[&["link"], &arguments[..], &["--config", file]].concat());
        format!("{}{}", text(&output.stdout), text(&output.stderr))
    };
    assert_eq!(link("list"), "no neighbours: `wayleave link add NODE provider` adds one\n");
    assert_eq!(
        link("add b provider"),
        "b is a provider over interface 1; a running role takes it over at a reload (SIGHUP)\n\
         the other end lists this node too, unless it is open\n"
    );
    let section = "[[overlay.neighbour]]\nnode = \"b\"\nrelationship = \"provider\"\ninterface = 1\n";
    assert_eq!(realm.read(file), format!("{before}\n{section}"));
    link("add c peer --local 127.0.0.1:49252 --endpoint c.example.net:49252 --private");
    assert_eq!(
        link("list"),
        "NODE  RELATIONSHIP  INTERFACE  PUBLIC  LOCAL            ENDPOINT\n\
         b     provider      1          yes     -                -\n\
         c     peer          2          no      127.0.0.1:49252  c.example.net:49252\n"
    );
    let listed: Value = serde_json::from_str(&link("list --json")).expect("JSON");
    let c = &listed["neighbours"][1];
    assert_eq!((&c["node"], &c["interface"], &c["public"]), (&Value::from("c"), &Value::from(2), &Value::from(false)));
    // What `check` refuses is not written.
    let both = realm.read(file);
    for (arguments, why) in [
        ("add b peer", "a neighbour already"),
        ("add d peer --local 0.0.0.0:49253", "cannot be sent to"),
        ("add d peer --local 127.0.0.1:49252", "in use by another interface or link"),
        ("add d friend", "invalid value 'friend'"),
        ("add D! peer", "a node's name"),
        ("add d peer --endpoint d", "not an endpoint"),
        ("remove d", "it has b, c"),
    ] {
        let said = link(arguments);
        assert!(said.contains(why), "{arguments}: {said}");
        assert_eq!(realm.read(file), both, "{arguments}");
    }
    // The number that is free again is the next one's.
    assert_eq!(link("remove b"), "b is no neighbour any more; a running role takes it over at a reload (SIGHUP)\n");
    assert!(link("add e customer").starts_with("e is a customer over interface 1; "));
    link("remove c");
    link("remove e");
    assert_eq!(realm.read(file), before);
    let mode = fs::metadata(realm.path(file)).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
}

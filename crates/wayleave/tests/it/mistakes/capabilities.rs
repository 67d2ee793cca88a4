//! Mistakes on the command line of `cap`: each is refused before anything is changed, with its cause, and its cure where there is one.

use std::fs;

use crate::common::{Folder, text};

/// Arguments behind `cap`, the exit status, and what is said.
type CommandMistake = (&'static [&'static str], i32, &'static [&'static str]);

const CONFIG: &str = "server/key.toml";
const WRITER: &str = "writer:ed25519:3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29";

const MISTAKES: &[CommandMistake] = &[
    (
        &["init", "other", "--zone", "keys.example.net", "--name-server", "a b"],
        2,
        &["--name-server", "labels of 1 to 63"],
    ),
    (&["init", "server", "--zone", "keys.example.net", "--name-server", "ns1.example.net"], 1, &["another folder"]),
    (&["list"], 2, &["no key server given", "--config FILE, or --api URL"]),
    (&["revoke", "7"], 2, &["no key server given", "--config FILE, or --api URL"]),
    (&["revoke", "--config", CONFIG], 2, &["nothing to revoke"]),
    (&["revoke", "9/4", "--lift", "--config", CONFIG], 1, &["9/4 is not revoked", "cap list"]),
    (
        &["revoke", "--line", "customer.line", "--delegation", "3/", "--server", "127.0.0.1:1"],
        2,
        &["`3/` is not DELEGATION or DELEGATION/SUB-DELEGATION"],
    ),
    (
        &["usage", "--from", "2026-12-01", "--to", "2026-11-01", "--config", CONFIG],
        2,
        &["--from is 2026-12-01", "--to is not later"],
    ),
    (&["usage", "--from", "yesterday", "--config", CONFIG], 2, &["2026-11-01, or Unix seconds"]),
    (&["usage", "--from", "2026-12-01T00:00:00Z", "--to", "2026-11-01", "--config", CONFIG], 2, &["--to is not later"]),
    (
        &["usage", "--config", "waypoint.toml"],
        1,
        &["waypoint.toml is the configuration of another role, `router`, expected one of `key`"],
    ),
    (&["usage", "--close", "20261101", "--config", CONFIG], 2, &["`20261101` is no day (2026-11-01, UTC)"]),
    (&["usage", "--close", "2099-01-01", "--config", CONFIG], 2, &["is not a day ago yet", "on it can be closed"]),
    (
        &["rate", "999", "100", "--config", CONFIG],
        1,
        &["there is no account of principal 999", "grant --principal 999"],
    ),
    (&["usage", "--close", "2026-01-01", "--config", CONFIG, "--principal", "7"], 2, &["cannot be used with"]),
    (&["statements", "1", "--config", CONFIG], 1, &["there is no statement 1", "cap statements"]),
    (&["statements", "--signed", "x", "--config", CONFIG], 2, &["--principal"]),
    (&["verify", "server/key.toml", "--writer", WRITER], 1, &["no signed statement"]),
    (&["import-usage", "none", "--config", CONFIG], 1, &["none is not there"]),
    (&["grant", "--principal", "16777216", "--waypoint", "198.51.100.1", "--config", CONFIG], 2, &["24 bits"]),
    (
        &["grant", "--principal", "7", "--waypoint", "198.51.100.1", "--interval", "3", "--config", CONFIG],
        2,
        &["3 is not an interval, which is 4 to 24"],
    ),
    (
        &["grant", "--principal", "7", "--name", "x", "--waypoint", "198.51.100.1", "--config", CONFIG],
        1,
        &["principal 7 has an account already, `customer`", "shares its keys and its bill", "leave --name out"],
    ),
    (&["account", "55", "--close", "--config", CONFIG], 1, &["principal 55 has no account"]),
    (&["account", "7", "--close", "--name", "x", "--config", CONFIG], 2, &["cannot be used with"]),
    (&["account", "7", "--withdraw", "12", "--config", CONFIG], 1, &["no grant of the ID `12`", "cap list"]),
    (
        &["invite", "--principal", "7", "--name", "x", "--waypoint", "198.51.100.1", "--config", CONFIG],
        1,
        &["principal 7 has an account already, `customer`", "shares its keys and its bill", "--again"],
    ),
    (
        &["invite", "--principal", "8", "--name", "x", "--waypoint", "198.51.100.1", "--config", CONFIG],
        1,
        &["principal 8 is invited already, as `second`", "--again"],
    ),
    (
        &["mint", "own.cap", "--key", "router.key", "--waypoint", "198.51.100.1", "--principal", "7"],
        1,
        &["own.cap exists already", "--replace"],
    ),
    (&["narrow", "own.cap", "--of", "own.cap", "--prefix", "203.0.113.0/24"], 1, &["exists already", "--replace"]),
    (&["accept", "nonsense"], 1, &["one begins with wayleave-invitation-", "cap invite"]),
];

#[test]
fn mistakes_of_the_provider_and_of_holders_are_named_and_change_nothing() {
    let folder = Folder::new("mistakes-cap");
    folder.ok(&["keys", "forwarding", "router.key", "--format", "platypus"]);
    let init = ["cap", "init", "server", "--zone", "keys.example.net", "--name-server", "ns1.example.net"];
    folder.ok(&[&init[..], &["--api", "127.0.0.1:1"]].concat());
    folder.write(
        "waypoint.toml",
        "[forwarding]\nformat = \"platypus\"\nkeys = \"router.key\"\n[platypus]\nwaypoints = []\n",
    );
    let at = ["--waypoint", "198.51.100.1", "--config", CONFIG];
    let line = folder.ok(&[&["cap", "grant", "--principal", "7", "--name", "customer"], &at[..]].concat());
    folder.write("customer.line", &line);
    let second = folder.ok(&[&["cap", "invite", "--principal", "8", "--name", "second"], &at[..]].concat());
    folder.ok(&["cap", "mint", "own.cap", "--key", "router.key", "--waypoint", "198.51.100.1", "--principal", "7"]);
    let list = || folder.ok(&["cap", "list", "--config", CONFIG, "--json"]);
    let before = list();
    let faults: Vec<String> = MISTAKES
        .iter()
        .filter_map(|(arguments, code, words)| {
            let output = folder.run(&[&["cap"], *arguments].concat());
            let said = text(&output.stderr).replace('│', " ").split_whitespace().collect::<Vec<_>>().join(" ");
            let missing: Vec<_> = words.iter().filter(|word| !said.contains(**word)).collect();
            let ended = output.status.code();
            (ended != Some(*code) || !missing.is_empty())
                .then(|| format!("{arguments:?}: {ended:?}, expected {code}; {missing:?} is not in: {said}"))
        })
        .collect();
    assert!(faults.is_empty(), "{} of {} mistakes:\n{}", faults.len(), MISTAKES.len(), faults.join("\n"));
    assert_eq!(list(), before);
    let nobody = folder.ok(&["cap", "list", "--principal", "55", "--config", CONFIG]);
    assert!(nobody.contains("principal 55 has no account"), "{nobody}");
    // A number that nobody has is revoked, and said; what is revoked can be read.
    let output = folder.run(&["cap", "revoke", "77/4", "7/3", "--config", CONFIG]);
    let said = text(&output.stderr);
    assert!(
        output.status.success()
            && said.contains("principal 77 has no account: 77/4 revokes nothing")
            && !said.contains("principal 7 "),
        "{said}"
    );
    let listed = folder.ok(&["cap", "list", "--config", CONFIG]);
    assert!(listed.contains("2 revocations in force\nrevoked: 7/3, 77/4\n"), "{listed}");
    // An invitation that was withdrawn stands in nobody's way, and the operator who means it invites again.
    let again = [&["cap", "invite", "--principal", "8", "--name", "second"], &at[..]].concat();
    folder.ok(&[&again[..], &["--again"]].concat());
    folder.fails(1, &again);
    for invitation in ids(&folder.ok(&["cap", "invitations", "--config", CONFIG, "--json"])) {
        folder.ok(&["cap", "invitations", "--withdraw", &invitation, "--config", CONFIG]);
    }
    assert_ne!(folder.ok(&again), second);
}

/// Two files of identities are easily taken for each other.
#[test]
fn a_router_and_its_key_server_with_one_identity_are_refused_and_a_key_of_another_length_is_named_so() {
    let folder = Folder::new("mistakes-cap-identities");
    let init = ["cap", "init", "server", "--zone", "keys.example.net", "--name-server", "ns1.example.net", "--json"];
    let said: serde_json::Value = serde_json::from_str(&folder.ok(&init)).expect("JSON");
    let writer = said["writer"].as_str().expect("a key");
    folder.ok(&["keys", "forwarding", "router.key", "--format", "platypus"]);
    let made = |file: &str| {
        let said = folder.ok(&["keys", "node", file, "--kind", "identity", "--json"]);
        let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        said["public"].as_str().expect("a key").to_owned()
    };
    let (server, router) = (made("server/identity.key"), made("router.identity"));
    let key = fs::read_to_string(folder.0.join(CONFIG)).expect("a configuration");
    let checked = |file: &str| text(&folder.run(&["check", file, "--json"]).stdout);
    let of_server = |router: &str| {
        let routers = "[key.routers]\nlisten = \"127.0.0.1:8494\"\nidentity = \"identity.key\"";
        let section = format!("{routers}\n[[key.router]]\nnumber = 1\nidentity = \"{router}\"\n[status]");
        folder.write(CONFIG, &key.replace("[status]", &section));
        checked(CONFIG)
    };
    let own = "this is the identity of the key server itself";
    assert!(of_server(&server).contains(own) && !of_server(&router).contains(own), "{}", of_server(&server));
    // `check` runs before the role does, which starts.
    assert!(of_server(&server).contains("\"ok\":true"), "{}", of_server(&server));
    let of_router = |server: &str, writer: &str| {
        let text = format!(
            "[forwarding]\nformat = \"platypus\"\nkeys = \"router.key\"\nstate = \"router.redb\"\n[platypus]\nwaypoints = [\"127.0.0.1\"]\n\
             revocations = {{ file = \"revoked\", key = \"{writer}\" }}\n[platypus.provider]\nidentity = \"router.identity\"\n\
             server = {{ identity = \"{server}\", address = \"127.0.0.1:8494\" }}\n"
        );
        folder.write("waypoint.toml", &text);
        checked("waypoint.toml")
    };
    let own = "a key server with the identity of this router itself";
    assert!(of_router(&router, writer).contains(own), "{}", of_router(&router, writer));
    assert!(of_router(&router, writer).contains("\"ok\":true"), "{}", of_router(&router, writer));
    assert!(of_router(&server, writer).contains("\"ok\":true"), "{}", of_router(&server, writer));
    let longer = of_router(&server, &format!("{writer}ab"));
    assert!(longer.contains("another length: 66 characters behind `writer:ed25519:`"), "{longer}");
}

/// Nobody is told to remove the secret from which all accounts come.
#[test]
fn a_key_server_is_begun_again_where_its_database_was_away() {
    let folder = Folder::new("mistakes-cap-init");
    let init = ["cap", "init", "server", "--zone", "keys.example.net", "--name-server", "ns1.example.net"];
    let key = || fs::read_to_string(folder.0.join("server/accounts.key")).expect("a key");
    let away = [&init[..], &["--database", "postgresql://nobody@127.0.0.1:1/none"]].concat();
    folder.fails(1, &away);
    let made = key();
    let again = folder.fails(1, &away);
    assert!(again.contains("is taken over") && !again.contains("remove the file"), "{again}");
    assert!(!folder.0.join(CONFIG).exists() && folder.0.join("server/init.unfinished").exists());
    folder.ok(&init);
    assert_eq!(key(), made);
    folder.ok(&["cap", "grant", "--principal", "7", "--waypoint", "198.51.100.1", "--config", CONFIG]);
    // With the keys of a provider whose database is gone, lines that it had closed would be good again.
    for lost in [CONFIG, "server/accounts.db", "server/revoked"] {
        fs::remove_file(folder.0.join(lost)).expect("there");
    }
    let refused = folder.fails(1, &init);
    assert!(refused.contains("accounts.key exists already") && !refused.contains("is taken over"), "{refused}");
    assert_eq!(key(), made);
    assert!(!folder.0.join(CONFIG).exists() && !folder.0.join("server/accounts.db").exists());
}

/// The server refuses all of these, since revoked capabilities would work again.
#[test]
fn check_names_a_list_that_does_not_go_with_the_database_and_no_other_is_begun_over_it() {
    let folder = Folder::new("mistakes-cap-list");
    folder.ok(&["cap", "init", "server", "--zone", "keys.example.net", "--name-server", "ns1.example.net"]);
    let (list, database) = (folder.0.join("server/revoked"), folder.0.join("server/accounts.db"));
    let grant = |principal| {
        folder.ok(&["cap", "grant", "--principal", principal, "--waypoint", "198.51.100.1", "--config", CONFIG]);
    };
    let begin = ["cap", "new-list", "--config", CONFIG];
    let is_named = |words: [&str; 2]| {
        let output = folder.run(&["check", CONFIG, "--json"]);
        let said = text(&output.stdout);
        assert!(!output.status.success() && words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
    };
    let is_refused = |word: &str| {
        let said = folder.fails(1, &begin).replace('│', " ").split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(word), "{said}");
    };
    grant("7");
    folder.ok(&["check", CONFIG]);
    is_refused("nothing is to be done");
    let old = fs::read(&database).expect("there");
    fs::remove_file(&list).expect("there");
    is_named(["is missing, and the database ends with change 1", "new-list"]);
    grant("8");
    folder.ok(&begin);
    folder.ok(&["check", CONFIG]);
    // The database is put back to a copy, on a machine that has not seen it.
    fs::remove_file(folder.0.join("server/position")).expect("there");
    let new = fs::read(&database).expect("there");
    fs::write(&database, old).expect("written");
    is_named(["was made of change 2, and the database ends with change 1", "move it away"]);
    is_refused("move it away");
    fs::write(&database, new).expect("written");
    folder.ok(&["check", CONFIG]);
    fs::write(&list, "cut").expect("written");
    is_named(["is too short for a list of revocations", "revoked"]);
    is_refused("move it away");
    assert_eq!(fs::read(&list).expect("there"), b"cut");
}

/// The IDs of invitations.
fn ids(text: &str) -> Vec<String> {
    let all: serde_json::Value = serde_json::from_str(text).expect("JSON");
    let all = all["invitations"].as_array().expect("a list").iter();
    all.map(|invitation| invitation["id"].as_str().expect("an ID").to_owned()).collect()
}

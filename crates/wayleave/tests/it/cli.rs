//! The command line as a person meets it: what it prints, and how it ends.
//!
//! MEM-01, older: an operator with a backup of the set, two proposals that cross: no second set of one number is signed
//! unless the operator says so.
//! MEM-05: a member's keys and addresses change by command: only with both operators' signatures.
//! MEM-06: a proposal that takes the other operator's key; what rides along with a confirmed member; a claim with a
//! member's certificate and another signing key; a member with a party's certificate: not signed.
//! OPS, one role for each key: a key in a configuration that the role knows in another role: no role starts.
//! ICC, mistakes: key files of nodes in each other's place: `check` names each.
//! OPS, command line, JSON: mistakes on the command line with `--json`; `--plot` where nothing is drawn; recordings
//! with unknown records, cut, or with a record longer than any: one JSON object and code 2; an error; skipped and
//! counted, an error that names the record.
//! OPS, benchmarks, stopped: Ctrl-C and SIGTERM while a benchmark in memory measures: what was measured until then,
//! marked as stopped, and exit code 130 or 143.
//! OPS, a party's configuration in one command: sets, pins and folders that are wrong or missing: refused with the
//! option that is missing; what is written needs no edit.
//! OPS, randomness: roles of a system that gives none: a sentence, and exit code 1.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{Folder, assert_known, program, text};
use rustix::process::{Pid, Signal, kill_process};
use wayleave_crypto::secret::Secret;
use wayleave_crypto::sign::SigningKey;
use wayleave_route_server::directory::{Change, Claim, Consent, Directory, Proposal, Request};
use wayleave_runtime::identity::{Identity, from_hex, to_hex};

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).expect("JSON")
}

/// A message without the line breaks of a terminal.
fn unbroken(said: &str) -> String {
    said.replace('│', " ").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The word after `name` on its line.
fn field<'a>(text: &'a str, name: &str) -> &'a str {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.expect("the field").trim()
}

#[test]
fn help_lists_every_command_and_an_unknown_one_is_a_usage_error() {
    let folder = Folder::new("cli-help");
    let help = folder.ok(&["--help"]);
    let commands = ["init", "check", "run", "show", "why", "locate", "invite", "realm", "join", "keys", "members"];
    for command in commands {
        assert!(help.lines().any(|line| line.trim_start().starts_with(command)), "{command} is not in: {help}");
        assert!(folder.ok(&[command, "--help"]).contains("Usage:"), "{command}");
    }
    assert!(folder.fails(2, &["frobnicate"]).contains("unrecognized subcommand"));
    assert!(folder.fails(2, &["why", "192.0.2.1/24", "--url", "x"]).contains("a bit beyond the prefix length is set"));
    assert!(folder.ok(&["completions", "bash"]).contains("_wayleave()"));
    assert!(folder.ok(&["man"]).starts_with(".ie"));
    let help = folder.ok(&["wayleave-lab", "--help"]);
    for command in ["demo", "up", "status", "exec", "graph", "down", "check", "ping", "speak", "bench"] {
        assert!(help.lines().any(|line| line.trim_start().starts_with(command)), "{command} is not in: {help}");
        assert!(folder.ok(&["wayleave-lab", command, "--help"]).contains("Usage:"), "{command}");
    }
    assert!(folder.ok(&["wayleave-lab", "completions", "bash"]).contains("wayleave-lab"));
}

#[test]
fn commands_of_the_laboratory_say_where_they_went() {
    let folder = Folder::new("cli-moved");
    let moved = [
        (&["lab", "up", "chain.toml"][..], "wayleave-lab up chain.toml"),
        (&["demo", "--headless"], "wayleave-lab demo --headless"),
        (&["bench", "select-best", "--short"], "wayleave-lab bench select-best --short"),
    ];
    for (before, now) in moved {
        let said = folder.fails(2, before);
        assert!(said.contains("`wayleave-lab`") && said.contains(&format!("run: {now}")), "{said}");
    }
    folder.write("lab.toml", "[lab]\nname = \"x\"\n");
    assert!(folder.fails(1, &["check", "lab.toml"]).contains("wayleave-lab check"));
}

#[test]
fn help_begins_with_where_to_start_and_tells_the_invitations_apart() {
    let folder = Folder::new("cli-help-groups");
    let help = folder.ok(&["--help"]);
    assert!((24..=50).contains(&help.lines().count()), "{help}");
    let at = |word: &str| help.find(word).unwrap_or_else(|| panic!("{word}: {help}"));
    assert!(at("Start here:") < at("Run and watch:") && at("Run and watch:") < at("Exchange:"), "{help}");
    // One line each, at the top and where they are.
    for words in ["Invite a member to an exchange", "`realm invite` invites a node", "`cap invite` invites a customer"]
    {
        at(words);
    }
    assert!(folder.ok(&["realm", "--help"]).contains("Invite a node to the overlay"));
    assert!(folder.ok(&["cap", "--help"]).contains("Invite a customer of a provider"));
}

#[test]
fn a_role_is_known_by_what_people_call_it() {
    let folder = Folder::new("cli-roles");
    assert_eq!(folder.ok(&["init", "route-server"]), folder.ok(&["init", "rs"]));
    folder.write("1.toml", &folder.ok(&["init", "route-server"]));
    // It is that role: the example's keys are refused as `run rs` refuses them.
    assert!(folder.fails(1, &["run", "route-server", "--config", "1.toml"]).contains("example"));
    for (word, role) in [("route-sever", "rs"), ("routeserver", "rs"), ("key-server", "key"), ("gatway", "gateway")] {
        let said = folder.fails(2, &["run", word, "--config", "1.toml"]);
        assert!(
            said.contains(&format!("'{role}'")) && !said.contains("a similar value exists: 'router'"),
            "{word}: {said}"
        );
    }
    assert!(!folder.fails(2, &["run", "frobnicate", "--config", "1.toml"]).contains("similar"));
}

#[test]
fn init_with_a_member_set_leaves_nothing_to_edit() {
    let folder = Folder::new("cli-init-whole");
    for name in ["party1", "party2", "operator1", "operator2"] {
        folder.ok(&["keys", "new", &format!("{name}.key"), "--name", name]);
    }
    let public = |file: &str, part: &str| -> String {
        let shown: serde_json::Value =
            serde_json::from_str(&folder.ok(&["keys", "show", file, "--json"])).expect("JSON");
        shown[part].as_str().expect("a public part").to_owned()
    };
    let [one, two] = ["operator1.key", "operator2.key"].map(|file| public(file, "sign"));
    let pin = public("party2.key", "pin");
    folder.ok(&["members", "init", "members", "--exchange", "example-ix", "--operator1", &one, "--operator2", &two]);
    let values =
        ["--members", "members", "--listen", "192.0.2.251:7001", "--link", "[2001:db8::1]:7000", "--pin", &pin];
    let said = folder.ok(&[&["init", "rs", "--party", "1", "--out", "party1.toml"], &values[..]].concat());
    assert!(said.contains(&one) && said.contains(&two) && said.contains("compare both"), "{said}");
    let checked = folder.run(&["check", "party1.toml"]);
    assert_eq!(checked.status.code(), Some(0), "{}", text_of(&checked.stderr));
    let made = std::fs::read_to_string(folder.0.join("party1.toml")).expect("written");
    assert!(made.contains("listen = \"[2001:db8::1]:7000\"") && made.contains("members = \"members\""), "{made}");
    // From another folder the set is named in full; what is printed names it as it lies there.
    std::fs::create_dir(folder.0.join("etc")).expect("a folder");
    folder.ok(&[&["init", "rs", "--party", "2", "--out", "etc/party2.toml"], &values[..]].concat());
    // Of what was changed afterwards `check` says whose it is.
    let own = folder
        .ok(&[
            "init",
            "rs",
            "--party",
            "1",
            "--members",
            "members",
            "--listen",
            "192.0.2.251:7001",
            "--link",
            "198.51.100.1:7000",
            "--pin",
            &pin,
        ])
        .replace(&pin, &public("party1.key", "pin"));
    folder.write("own.toml", &own);
    let said = folder.fails(1, &["check", "own.toml"]);
    assert!(said.contains("line `pin` of the peer") && !said.contains("keys new"), "{said}");
    let made = std::fs::read_to_string(folder.0.join("etc/party2.toml")).expect("written");
    let there = folder.0.join("members").canonicalize().expect("it is there");
    assert!(made.contains(&format!("members = \"{}\"", there.display())), "{made}");
    assert!(made.contains("connect = \"[2001:db8::1]:7000\""), "{made}");
    for (arguments, expected) in [
        (&["init", "rs", "--members", "members"][..], "--listen"),
        (&["init", "rs", "--pin", &pin], "--members"),
        (&[&["init", "rs"], &values[..]].concat(), "--party"),
        (&[&["init", "member", "--party", "1"], &values[..]].concat(), "--members is for `rs`"),
        (
            &[&["init", "rs", "--party", "1", "--members", "party1.toml"], &values[2..]].concat(),
            "does not count as a member set",
        ),
        (&[&["init", "rs", "--party", "1"], &values[..6], &["--pin", &one]].concat(), "pin"),
        (&[&["init", "rs", "--party", "2"], &values[..]].concat(), "that of party2.key itself"),
    ] {
        let refused = folder.run(arguments);
        let said = text_of(&refused.stderr);
        assert!(!refused.status.success() && said.contains(expected), "{arguments:?}: {said}");
    }
}

#[test]
fn configurations_printed_by_init_pass_check_once_their_examples_are_accepted() {
    let folder = Folder::new("cli-init");
    let roles = [
        ("1.toml", &["rs"][..]),
        ("2.toml", &["rs", "--party", "2"]),
        ("m.toml", &["member"]),
        ("p.toml", &["path"]),
        ("c.toml", &["consent"]),
    ];
    for (name, arguments) in roles {
        let text = folder.ok(&[&["init"], arguments].concat());
        folder.write(name, &text);
        assert!(text.trim_end().lines().last().is_some_and(|line| line.contains("check --example")), "{text}");
        let said = folder.fails(1, &["check", name]);
        assert!(said.contains("still the example's value"), "{said}");
        let said = folder.ok(&["check", "--example", name]);
        assert!(said.contains("a configuration for `wayleave run"), "{said}");
        assert!(said.contains("still the example's value") && !said.contains("fine"), "{said}");
        assert!(!said.contains("for documentation"), "{said}");
        let said = json(&folder.ok(&["check", "--example", name, "--json"]));
        assert_eq!((&said["version"], &said["ok"]), (&1.into(), &true.into()));
        // With an example's keys nothing runs.
        assert!(
            folder.fails(1, &["run", said["role"].as_str().expect("a role"), "--config", name]).contains("example")
        );
    }
    assert!(folder.fails(1, &["init", "rs", "--out", "1.toml"]).contains("exists"));
    assert_eq!(folder.ok(&["init", "rs", "--out", "-"]), folder.ok(&["init", "rs"]));
    assert!(!folder.0.join("-").exists());
    let said = folder.ok(&["init", "rs", "--out", "new.toml"]);
    assert!(
        said.lines().last().is_some_and(|line| line.contains("wayleave check --example new.toml accepts them")),
        "{said}"
    );
    // An operator's has no example's key, but no files yet.
    folder.write("r.toml", &folder.ok(&["init", "realm"]));
    let said = folder.ok(&["check", "r.toml"]);
    assert!(said.contains("a configuration for `wayleave run realm`, with 3 warnings"), "{said}");
}

#[test]
fn key_files_of_nodes_have_one_kind_and_one_use() {
    let folder = Folder::new("cli-node-keys");
    let shown = folder.ok(&["keys", "node", "i.key", "--kind", "identity"]);
    assert!(field(&shown, "public").starts_with("node:ed25519:"), "{shown}");
    assert_eq!(folder.ok(&["keys", "show", "i.key"]), shown);
    assert!(folder.fails(1, &["keys", "node", "i.key", "--kind", "noise"]).contains("exist"));
    folder.ok(&["keys", "node", "n.key", "--kind", "noise"]);
    folder.ok(&["keys", "node", "d.key", "--kind", "ids"]);
    // The router's tags, and the same from its forwarding keys; a prefix of them for another server.
    folder.ok(&["keys", "forwarding", "r.key", "--format", "icing"]);
    folder.ok(&["keys", "node", "t.key", "--kind", "tags", "--of-router", "r.key"]);
    let said = folder.ok(&[
        "keys",
        "delegate-tags",
        "t.key",
        "--prefix",
        "40000000/2",
        "--at",
        "1800000000",
        "--out",
        "b.key",
    ]);
    assert_eq!(field(&said, "prefix"), "40000000/2");
    let error = folder.fails(2, &["keys", "delegate-tags", "t.key", "--prefix", "4000/2", "--out", "x.key"]);
    assert!(error.contains("the first bits of a tag"), "{error}");
    // In each other's place.
    let consent = folder.ok(&["init", "consent"]).replace("#[[consent.node]]", "[[consent.node]]");
    let consent = consent.replace(
        "#identity = \"node:ed25519:64 hexadecimal digits\"",
        "identity = \"node:ed25519:8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c\"",
    );
    folder.write("c.toml", &consent.replace("#tags = \"tags.key\"", "tags = \"d.key\""));
    let error = folder.fails(1, &["check", "c.toml"]);
    assert!(error.contains("has a key of the kind `ids`, not `tags`"), "{error}");
    folder.write("c.toml", &consent.replace("#tags = \"tags.key\"", "tags = \"t.key\""));
    assert!(folder.ok(&["check", "--example", "c.toml"]).contains("still the example's value"));
    folder.write("c.toml", &consent.replace("#delegated = []", "delegated = [\"t.key\"]"));
    let error = folder.fails(1, &["check", "c.toml"]);
    assert!(error.contains("has a key of the kind `tags`, not `tag-branch`"), "{error}");
    folder.write("c.toml", &consent.replace("#delegated = []", "delegated = [\"b.key\"]"));
    let said = folder.ok(&["check", "--example", "c.toml"]);
    assert!(!said.contains("epoch that has ended"), "{said}");
}

#[test]
fn a_mistake_on_the_command_line_is_json_where_json_was_asked_for() {
    let folder = Folder::new("cli-usage-json");
    for arguments in [
        &["keys", "--json", "frobnicate"][..],
        &["wayleave-lab", "bench", "bgp-codec", "--json", "--no-such-option"],
        &["why", "192.0.2.1/24", "--url", "x", "--json"],
        &["wayleave-lab", "bench", "no-such-benchmark", "--json"],
    ] {
        let output = folder.run(arguments);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(2), String::new()), "{arguments:?}");
        let said = json(&text(&output.stdout));
        assert_eq!(said["version"], 1);
        let error = said["error"].as_str().expect("a sentence");
        assert!(!error.starts_with("error") && !error.contains('\n'), "{error}");
        assert!(said["help"].is_string(), "{said}");
    }
    // Without it they are on standard error, and help is never JSON.
    assert!(folder.fails(2, &["keys", "frobnicate"]).contains("Usage:"));
    assert!(folder.ok(&["wayleave-lab", "bench", "--json", "--help"]).contains("Usage:"));
}

#[test]
fn a_plot_that_nothing_draws_and_a_damaged_recording_are_errors() {
    let folder = Folder::new("cli-bench-errors");
    for name in ["bgp-codec", "export-all", "exchange-restart", "exchange-trace"] {
        let said = folder.fails(2, &["wayleave-lab", "bench", name, "--plot", "plot.svg"]);
        assert!(said.contains("draws no plot"), "{said}");
    }
    assert!(
        folder
            .fails(2, &["wayleave-lab", "bench", "attest-trace", "--mrt", "x", "--plot", "plot.svg"])
            .contains("draws no plot")
    );
    assert!(!folder.0.join("plot.svg").exists());
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/bgp/bird.messages.mrt");
    let whole = fs::read(trace).expect("the trace");
    let write = |octets: &[u8]| fs::write(folder.0.join("trace.mrt"), octets).expect("written");
    let run = ["wayleave-lab", "bench", "bgp-codec", "--mrt", "trace.mrt", "--short", "--json", "--repetitions", "1"];
    // A record of a type that nobody knows is skipped, and counted.
    let unknown = [&[0, 0, 0, 1, 0xff, 0xfe, 0, 9, 0, 0, 0, 3, 1, 2, 3][..], &whole].concat();
    write(&whole);
    let before = json(&folder.ok(&run));
    write(&unknown);
    let after = json(&folder.ok(&run));
    let skipped = |said: &serde_json::Value| said["params"]["skipped_records"].as_u64().expect("a number");
    assert_eq!(skipped(&after), skipped(&before) + 1);
    assert_eq!(after["params"]["updates"], before["params"]["updates"]);
    // The end is missing; a record says that it is longer than any.
    for damaged in [&whole[..whole.len() - 1], &[&whole[..], &[0xff; 12]].concat()] {
        write(damaged);
        let output = folder.run(&run);
        let said = json(&text(&output.stdout));
        assert_eq!(output.status.code(), Some(1), "{said}");
        let error = said["error"].as_str().expect("a sentence");
        assert!(error.contains("trace.mrt, record ") && error.contains("MRT record cannot be read"), "{error}");
    }
}

/// A party's configuration with a line in place of another.
fn wrong(folder: &Folder, name: &str, role: &[&str], line: &str, instead: &str) -> String {
    let text = folder.ok(&[&["init"], role].concat());
    assert!(text.contains(line), "{line} is not in what init prints");
    folder.write(name, &text.replace(line, instead));
    folder.fails(1, &["check", name])
}

#[test]
fn check_shows_the_line_the_column_a_caret_and_what_was_expected() {
    let folder = Folder::new("cli-check");
    let said = wrong(&folder, "p.toml", &["rs"], "listen = \"127.0.0.1:7001\"", "listen = \"127.0.0.1\"");
    let expected = [
        "  × invalid value: string \"127.0.0.1\"",
        "    ╭─[p.toml:9:10]",
        "  8 │ # Where members connect.",
        "  9 │ listen = \"127.0.0.1\"",
        "    ·          ─────┬─────",
        "    ·               ╰── expected an address and port, such as \"192.0.2.1:7001\" or \"[2001:db8::1]:7001\"",
        " 10 │ # Created by: wayleave keys new party1.key",
        "    ╰────",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);

    let said = wrong(&folder, "p.toml", &["rs"], "#tick_ms = 50", "tik_ms = 50");
    assert!(
        said.contains("unknown field `tik_ms`") && said.contains("p.toml:19:1") && said.contains("`tick_ms`"),
        "{said}"
    );

    let said = wrong(&folder, "p.toml", &["rs"], "number = 1", "number = 3");
    assert!(said.contains("p.toml:5:10") && said.contains("expected 1 (the exchange) or 2 (neutral)"), "{said}");

    let said = wrong(&folder, "p.toml", &["rs"], "[link]", "[link]\nconnect = \"192.0.2.1:1\"");
    assert!(said.contains("both or neither of `listen` and `connect`"), "{said}");

    let said = wrong(&folder, "m.toml", &["member"], "#hold_time = 90", "hold_time = 2");
    assert!(said.contains("hold time of 2 seconds") && said.contains("expected 0 or 3 to 65535"), "{said}");

    let rule = "[[rule]]\ndirection = \"export\"\nhide_from = \"rivals\"\n[status]";
    let said = wrong(&folder, "m.toml", &["member"], "[status]", rule);
    assert!(said.contains("no group `rivals`") && said.contains("m.toml:"), "{said}");

    let said = wrong(&folder, "m.toml", &["member"], "slot = 0", "slot = -1");
    assert!(said.contains("expected a number from 0 to 4294967295"), "{said}");

    let said = wrong(&folder, "m.toml", &["member"], "router_id = \"192.0.2.101\"", "router_id = \"0.0.0.0\"");
    assert!(said.contains("is not a BGP identifier"), "{said}");

    folder.write("broken.toml", "[party\n");
    assert!(folder.fails(1, &["check", "broken.toml"]).contains("broken.toml:1:7"));
    folder.write("other.toml", "[something]\n");
    assert!(folder.fails(1, &["check", "other.toml"]).contains("no role has these sections"));
    assert!(folder.fails(1, &["check", "absent.toml"]).contains("absent.toml: No such file"));
}

#[test]
fn check_reports_the_same_as_json() {
    let folder = Folder::new("cli-check-json");
    wrong(&folder, "m.toml", &["member"], "#hold_time = 90", "hold_time = 2");
    let output = folder.run(&["check", "m.toml", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let said = json(&text(&output.stdout));
    let error = &said["errors"][0];
    let written = fs::read_to_string(folder.0.join("m.toml")).expect("written");
    let line = written.lines().position(|line| line == "hold_time = 2").expect("the line") + 1;
    assert_eq!(
        (&said["version"], &said["ok"], &error["line"], &error["column"]),
        (&1.into(), &false.into(), &line.into(), &13.into())
    );
    assert_eq!(error["expected"], "0 or 3 to 65535");
    assert!(error["message"].as_str().is_some_and(|message| message.contains("hold time")), "{said}");
}

#[test]
fn check_refuses_a_key_file_that_run_would_refuse() {
    let folder = Folder::new("cli-check-key");
    let operators = begin(&folder, "example-ix");
    folder.write("p.toml", &party_of(&folder, &operators));
    assert!(folder.ok(&["check", "p.toml"]).contains("fine"));
    let chmod = Command::new("chmod").args(["644", "party1.key"]).current_dir(&folder.0).status().expect("chmod");
    assert!(chmod.success());
    assert!(folder.fails(1, &["check", "p.toml"]).contains("chmod 600"));
    fs::remove_file(folder.0.join("party1.key")).expect("removed");
    assert!(folder.fails(1, &["check", "p.toml"]).contains("wayleave keys new"));
}

#[test]
fn a_recording_that_cannot_be_read_is_an_error() {
    let folder = Folder::new("cli-speak");
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/bgp/bird.messages.mrt");
    let whole = fs::read(trace).expect("the trace");
    let first = 12 + u32::from_be_bytes([whole[8], whole[9], whole[10], whole[11]]) as usize;
    let cut = |octets: &[u8], name: &str| fs::write(folder.0.join(name), octets).expect("written");
    cut(b"", "empty.mrt");
    cut(b"hello, this is no recording at all", "junk.mrt");
    cut(&whole[..first - 1], "cut.mrt");
    cut(&[0x1f, 0x8b, 8, 0, 1, 2, 3], "broken.gz");
    let rest = ["--connect", "127.0.0.1:1", "--asn", "64497", "--router-id", "192.0.2.1", "--once"];
    for name in ["empty.mrt", "junk.mrt", "cut.mrt", "broken.gz"] {
        let said = folder.fails(1, &[&["wayleave-lab", "speak", "--mrt", name], &rest[..]].concat());
        assert!(said.contains(name), "{said}");
    }
}

#[test]
fn commands_that_change_files_answer_in_json() {
    let folder = Folder::new("cli-json");
    assert_eq!(json(&folder.ok(&["init", "member", "--out", "m.toml", "--json"]))["file"], "m.toml");
    let output = folder.run(&["init", "member", "--out", "m.toml", "--json"]);
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(1), ""));
    let said = json(&text(&output.stdout));
    assert!(said["error"].as_str().is_some_and(|error| error.contains("exists")) && said["help"].is_string(), "{said}");
    let operators = begin(&folder, "test-ix");
    let again = ["members", "init", "n.signed", "--exchange", "test-ix", "--operator1", &operators[0]];
    let said = json(&folder.ok(&[&again[..], &["--operator2", &operators[1], "--json"]].concat()));
    assert_eq!(said["operators"], serde_json::json!(operators));
    folder.ok(&["keys", "new", "alpha.key"]);
    let request = ["members", "request", "a.request", "--key", "alpha.key", "--exchange", "test-ix", "--asn", "64497"];
    let said = json(&folder.ok(&[&request[..], &["--name", "alpha", "--address", "192.0.2.1", "--json"]].concat()));
    let claim = said["claim"].as_str().expect("a digest").to_owned();
    let propose = ["members", "propose", "m.signed", "--operator", "op1.key", "--out", "p", "--request", "a.request"];
    let said = json(&folder.ok(&[&propose[..], &["--max-prefix", "alpha=9", "--json"]].concat()));
    assert_eq!((&said["party"], &said["changes"][0]["slot"]), (&1.into(), &0.into()));
    let countersign = ["members", "countersign", "m.signed", "p", "--operator", "op2.key", "--json"];
    let said = json(&folder.ok(&[&countersign[..], &["--confirm", &claim]].concat()));
    assert_eq!(said["number"], 1);
    let remove = ["members", "remove", "m.signed", "--operator", "op2.key", "--name", "alpha", "--json"];
    let said = json(&folder.ok(&remove));
    assert_eq!((&said["number"], &said["party"]), (&2.into(), &2.into()));
    assert_eq!(json(&folder.ok(&["wayleave-lab", "bench", "--list", "--json"]))["benchmarks"][0]["name"], "bgp-codec");
}

#[test]
fn keys_are_created_once_and_only_their_public_parts_are_printed() {
    let folder = Folder::new("cli-keys");
    let made = folder.ok(&["keys", "new", "a.key"]);
    assert_eq!(folder.ok(&["key", "show", "a.key"]), made);
    assert!(field(&made, "pin").starts_with("sha256:") && field(&made, "sign").starts_with("sign:ed25519:"));
    assert!(field(&made, "api_pin").starts_with("spki:sha256:") && made.contains("into `[link] pin`"), "{made}");
    assert_eq!(json(&folder.ok(&["keys", "show", "a.key", "--json"]))["pin"], field(&made, "pin"));
    assert!(folder.fails(1, &["keys", "new", "a.key"]).contains("is not overwritten"));
    let key = fs::read_to_string(folder.0.join("a.key")).expect("the key file");
    let secret = key.lines().nth(1).expect("a line of the key");
    assert!(!made.contains(secret));
    let open = Command::new("chmod").args(["644", "a.key"]).current_dir(&folder.0).status().expect("chmod");
    assert!(open.success());
    assert!(folder.fails(1, &["keys", "show", "a.key"]).contains("chmod 600"));
}

/// Both operators' keys, and a member set without members; the operators' public keys.
fn begin(folder: &Folder, exchange: &str) -> [String; 2] {
    let operators = ["op1.key", "op2.key"].map(|file| field(&folder.ok(&["keys", "new", file]), "sign").to_owned());
    let init = ["members", "init", "m.signed", "--exchange", exchange, "--operator1", &operators[0]];
    let said = folder.ok(&[&init[..], &["--operator2", &operators[1]]].concat());
    assert!(said.contains(&operators[0]) && said.contains(&operators[1]), "{said}");
    operators
}

/// A member with a key of its own asks to join.
fn request(folder: &Folder, name: &str, asn: &str, address: &str, more: &[&str]) -> String {
    requested(folder, name, asn, address, more).0
}

/// The same, with the digest that it tells both operators.
fn requested(folder: &Folder, name: &str, asn: &str, address: &str, more: &[&str]) -> (String, String) {
    let (key, file) = (format!("{name}.key"), format!("{name}.request"));
    if !folder.0.join(&key).exists() {
        folder.ok(&["keys", "new", &key]);
    }
    let fixed = ["members", "request", &file, "--key", &key, "--exchange", "test-ix", "--asn", asn, "--name", name];
    let said = folder.ok(&[&fixed[..], &["--address", address], more].concat());
    (file, field(&said, "claim").to_owned())
}

/// Each new slot has a limit, of ten prefixes where none is named.
fn propose(folder: &Folder, more: &[&str]) -> String {
    let requests = more.windows(2).filter(|pair| pair[0] == "--request").map(|pair| request_in(folder, pair[1]));
    let is_limited = |name: &str| more.iter().any(|word| word.starts_with(&format!("{name}=")));
    let joins = requests.filter(|request| !matches!(request.consent, Some((Consent::Renewal, ..))));
    let joins = joins.filter(|request| member_set(folder).set().slot_by_name(&request.claim.name).is_none());
    let limits: Vec<String> = joins
        .map(|request| request.claim.name)
        .filter(|name| !is_limited(name))
        .map(|name| format!("{name}=10"))
        .collect();
    let limits: Vec<&str> = limits.iter().flat_map(|limit| ["--max-prefix", limit]).collect();
    let fixed = ["members", "propose", "m.signed", "--operator", "op1.key", "--out", "p"];
    folder.ok(&[&fixed[..], more, &limits].concat())
}

const COUNTERSIGN: [&str; 6] = ["members", "countersign", "m.signed", "p", "--operator", "op2.key"];

#[test]
fn a_set_counts_once_the_second_operator_has_seen_what_changes_and_countersigned() {
    let folder = Folder::new("cli-countersign");
    begin(&folder, "test-ix");
    let (alpha, claim) = requested(&folder, "alpha", "64497", "192.0.2.1", &[]);
    let said = propose(&folder, &["--request", &alpha, "--max-prefix", "alpha=10"]);
    assert!(said.contains(&claim) && said.contains("the first slot of its AS"), "{said}");
    // Nobody is at a terminal, and nobody confirmed.
    // Messages are broken into lines.
    let said = folder.fails(1, &COUNTERSIGN).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("not signed: nobody confirmed") && said.contains("--confirm DIGEST"), "{said}");
    let other = format!("claim:{}", "ab".repeat(32));
    let said = folder.fails(1, &[&COUNTERSIGN[..], &["--confirm", &other]].concat());
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("you did not confirm") && said.contains(&claim), "{said}");
    let fingerprint = format!("sha256:{}", "ab".repeat(32));
    let said = unbroken(&folder.fails(2, &[&COUNTERSIGN[..], &["--confirm", &fingerprint]].concat()));
    assert!(said.contains("the fingerprint of a certificate, which says nothing of the member's other keys"), "{said}");
    // The operator that proposed does not countersign, and no other key does.
    let mut own = COUNTERSIGN;
    own[5] = "op1.key";
    let said = folder.fails(1, &[&own[..], &["--yes"]].concat());
    assert!(said.contains("the operator of party 1 proposed it"), "{said}");
    own[5] = "alpha.key";
    assert!(folder.fails(1, &[&own[..], &["--yes"]].concat()).contains("not an operator key of this exchange"));
    assert_eq!(json(&folder.ok(&["members", "show", "m.signed", "--json"]))["number"], 0);
    folder.ok(&[&COUNTERSIGN[..], &["--confirm", &claim]].concat());
    let set = json(&folder.ok(&["members", "show", "m.signed", "--json"]));
    assert_eq!((&set["number"], &set["members"][0]["max_prefix"]), (&1.into(), &10.into()));
    // What was countersigned once follows nothing any more.
    let said = folder.fails(1, &[&COUNTERSIGN[..], &["--yes"]].concat());
    assert!(said.contains("set 2 was expected, not 1"), "{said}");
    // A request that was changed on its way.
    let path = folder.0.join(&alpha);
    let mut octets = fs::read(&path).expect("the request");
    octets[30] ^= 1;
    fs::write(&path, octets).expect("written");
    let again = ["members", "propose", "m.signed", "--operator", "op1.key", "--out", "p", "--request", &alpha];
    assert!(folder.fails(1, &again).contains("the member's signature does not hold"));
}

/// OPS, profile, by command: a mistake has its place; the other operator sees what changes before it signs.
#[test]
fn a_profile_is_signed_with_the_set_and_the_other_operator_sees_old_and_new() {
    let folder = Folder::new("cli-profile");
    begin(&folder, "test-ix");
    let template = folder.ok(&["members", "profile", "--print-default"]);
    assert!(template.contains("[profile]") && template.contains("ipv4_longest = 24"), "{template}");
    fs::write(folder.0.join("profile.toml"), &template).expect("written");
    let read = folder.ok(&["members", "profile", "profile.toml"]);
    assert!(field(&read, "max hops") == "32" && field(&read, "transit free").starts_with("174 209 "), "{read}");
    assert_eq!(json(&folder.ok(&["members", "profile", "profile.toml", "--json"]))["profile"]["blackhole"], false);
    let propose = ["members", "propose", "m.signed", "--operator", "op1.key", "--out", "p", "--profile"];
    let propose = |folder: &Folder, more: &[&str]| folder.ok(&[&propose[..], more].concat());
    // A key that no profile has, and a value that none can have: nothing is signed, and the place is named.
    for (line, place, what) in [
        ("longest = 24", "wrong.toml:2:1", "unknown field `longest`"),
        ("max_hops = 65", "wrong.toml:2:12", "expected 1 to 64"),
    ] {
        fs::write(folder.0.join("wrong.toml"), format!("[profile]\n{line}\n")).expect("written");
        let wrong =
            ["members", "propose", "m.signed", "--operator", "op1.key", "--out", "p", "--profile", "wrong.toml"];
        let said = unbroken(&folder.fails(1, &wrong));
        assert!(said.contains(place) && said.contains(what), "{said}");
        assert!(!folder.0.join("p").exists(), "nothing is proposed");
    }
    let said = propose(&folder, &["profile.toml"]);
    assert_eq!(field(&said, "profile max hops"), "- -> 32", "{said}");
    let said = refused_to_countersign(&folder, &[]);
    assert!(said.contains("addresses, limits, the profile"), "{said}");
    let shown = text(&folder.run(&COUNTERSIGN).stdout);
    assert_eq!(field(&shown, "profile ipv4 longest"), "- -> 24", "{shown}");
    folder.ok(&[&COUNTERSIGN[..], &["--yes"]].concat());
    let shown = folder.ok(&["members", "show", "m.signed"]);
    assert!(field(&shown, "refuse as set") == "yes" && shown.contains("on the announcer's honesty rests"), "{shown}");
    let again = ["members", "propose", "m.signed", "--operator", "op1.key", "--out", "p", "--profile", "profile.toml"];
    assert!(unbroken(&folder.fails(1, &again)).contains("is the profile that is in force already"));
    // What differs, and nothing else, in one line each.
    let changed = template.replace("max_hops = 32", "max_hops = 20");
    let changed = changed + "[profile.blackhole]\nnext_hop4 = \"192.0.2.66\"\nallowed = [64498, 64497]\n";
    fs::write(folder.0.join("profile.toml"), changed).expect("written");
    propose(&folder, &["profile.toml"]);
    let said = folder.ok(&[&COUNTERSIGN[..], &["--yes"]].concat());
    assert_eq!(field(&said, "profile max hops"), "32 -> 20", "{said}");
    assert_eq!(field(&said, "profile blackhole allowed"), "- -> 64497 64498", "{said}");
    assert!(!said.contains("transit free") && said.contains("set 2 counts"), "{said}");
    let set = json(&folder.ok(&["members", "show", "m.signed", "--json"]));
    assert_eq!(
        (&set["profile"]["max_hops"], &set["profile"]["blackhole_next_hop4"]),
        (&20.into(), &"192.0.2.66".into())
    );
}

/// A backup of the set's file, put back, or two proposals that cross: the other operator could complete both.
#[test]
fn no_operator_signs_two_sets_of_one_number_unless_it_says_so() {
    let folder = Folder::new("cli-twice");
    begin(&folder, "test-ix");
    let [alpha, bravo] = [("alpha", "64497", "192.0.2.1"), ("bravo", "64498", "192.0.2.2")]
        .map(|(name, asn, address)| request(&folder, name, asn, address, &[]));
    fs::copy(folder.0.join("m.signed"), folder.0.join("backup")).expect("a backup");
    propose(&folder, &["--request", &alpha]);
    folder.ok(&[&COUNTERSIGN[..], &["--yes"]].concat());
    fs::copy(folder.0.join("m.signed"), folder.0.join("kept")).expect("a copy");
    fs::copy(folder.0.join("backup"), folder.0.join("m.signed")).expect("put back");
    let as_one = [
        "members",
        "propose",
        "m.signed",
        "--operator",
        "op1.key",
        "--out",
        "p",
        "--request",
        &bravo,
        "--max-prefix",
        "bravo=10",
    ];
    let said = folder.fails(1, &as_one).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        said.contains("this key has signed another set 1 before")
            && said.contains("get the file from the other operator"),
        "{said}"
    );
    // Nor does the other one, from the backup, propose or countersign another set 1.
    let mut as_two = as_one;
    as_two[4] = "op2.key";
    assert!(unbroken(&folder.fails(1, &as_two)).contains("this key has signed another set 1 before"));
    folder.ok(&[&as_one[..], &["--given-up"]].concat());
    let said = unbroken(&folder.fails(1, &[&COUNTERSIGN[..], &["--yes"]].concat()));
    assert!(said.contains("this key has signed another set 1 before"), "{said}");
    assert_eq!(json(&folder.ok(&["members", "show", "m.signed", "--json"]))["number"], 0);
    // The next set of the real one is another number; the same proposal again is the same set.
    fs::copy(folder.0.join("kept"), folder.0.join("m.signed")).expect("put back");
    folder.ok(&as_one);
    folder.ok(&as_one);
    folder.ok(&[&COUNTERSIGN[..], &["--yes"]].concat());
    // Two proposals that cross.
    let more = ["--max-prefix", "alpha=7"];
    propose(&folder, &more);
    let crossing =
        ["members", "propose", "m.signed", "--operator", "op2.key", "--out", "p2", "--max-prefix", "alpha=8"];
    folder.ok(&crossing);
    let said = unbroken(&folder.fails(1, &[&COUNTERSIGN[..], &["--yes"]].concat()));
    assert!(said.contains("this key has signed another set 3 before"), "{said}");
    folder.ok(&[&COUNTERSIGN[..], &["--yes", "--given-up"]].concat());
}

#[test]
fn a_further_slot_is_marked_unless_the_present_one_signs_and_keys_change_in_place() {
    let folder = Folder::new("cli-further");
    begin(&folder, "test-ix");
    let alpha = request(&folder, "alpha", "64497", "192.0.2.1", &[]);
    propose(&folder, &["--request", &alpha]);
    folder.ok(&[&COUNTERSIGN[..], &["--yes"]].concat());
    let second = request(&folder, "alpha-2", "64497", "192.0.2.2", &[]);
    let said = propose(&folder, &["--request", &second]);
    assert!(said.contains("HELD: no key of an earlier slot of its AS signed for it"), "{said}");
    assert!(said.contains("--beside OLD.key") && said.contains("`wayleave members endorse`"), "{said}");
    let second = request(&folder, "alpha-2", "64497", "192.0.2.2", &["--beside", "alpha.key"]);
    let again = [
        "members",
        "propose",
        "m.signed",
        "--operator",
        "op1.key",
        "--out",
        "p",
        "--request",
        &second,
        "--max-prefix",
        "alpha-2=10",
    ];
    let said = unbroken(&folder.fails(1, &again));
    assert!(said.contains("this key has signed another set 2 before") && said.contains("--given-up"), "{said}");
    let said = propose(&folder, &["--request", &second, "--given-up"]);
    assert!(said.contains("slot 0 of its AS signed for it"), "{said}");
    folder.ok(&[&COUNTERSIGN[..], &["--yes"]].concat());
    // New keys for slot 0, by the old one; addresses and a limit by the operators; an operator's next key.
    folder.ok(&["keys", "new", "new.key"]);
    let more = ["--key", "new.key", "--instead-of", "alpha.key"];
    let fixed = ["members", "request", "r", "--exchange", "test-ix", "--asn", "64497", "--name", "alpha"];
    folder.ok(&[&fixed[..], &["--address", "192.0.2.1"], &more[..]].concat());
    folder.ok(&["keys", "new", "op3.key"]);
    let changes = ["--request", "r", "--max-prefix", "alpha-2=5", "--addresses", "alpha-2=192.0.2.7,192.0.2.8"];
    let said = propose(&folder, &[&changes[..], &["--new-operator", "op3.key"]].concat());
    assert!(said.contains("new keys or addresses") && said.contains("new operator's key"), "{said}");
    folder.ok(&[&COUNTERSIGN[..], &["--yes"]].concat());
    let set = json(&folder.ok(&["members", "show", "m.signed", "--json"]));
    let new = folder.ok(&["keys", "show", "new.key"]);
    assert_eq!(set["members"][0]["tls"], field(&new, "pin"));
    assert_eq!((&set["members"][1]["max_prefix"], &set["members"][1]["held"]), (&5.into(), &false.into()));
    assert_eq!(set["members"][1]["addresses"], serde_json::json!(["192.0.2.7", "192.0.2.8"]));
    assert_eq!(set["operators"][0], field(&folder.ok(&["keys", "show", "op3.key"]), "sign"));
    let old = ["members", "remove", "m.signed", "--operator", "op1.key", "--name", "alpha"];
    assert!(folder.fails(1, &old).contains("not the key of an operator of this set"));
}

/// The signing key of a key file.
fn signing(folder: &Folder, file: &str) -> SigningKey {
    let identity = Identity::load(&folder.0.join(file)).expect("a key file");
    SigningKey::from_seed(&Secret::new(*identity.signing_seed()))
}

fn member_set(folder: &Folder) -> Directory {
    Directory::decode(&fs::read(folder.0.join("m.signed")).expect("the file")).expect("a sound set")
}

/// Party 1's operator proposes these changes without the command, which would not.
fn proposed_by_hand(folder: &Folder, changes: Vec<Change>) {
    let step = member_set(folder).propose(changes);
    let proposal = Proposal { party: 1, signature: step.sign(&signing(folder, "op1.key")), step };
    fs::write(folder.0.join("p"), proposal.encode()).expect("written");
}

fn refused_to_countersign(folder: &Folder, more: &[&str]) -> String {
    let before = fs::read(folder.0.join("m.signed")).expect("the file");
    let said = folder.fails(1, &[&COUNTERSIGN[..], more].concat());
    assert_eq!(fs::read(folder.0.join("m.signed")).expect("the file"), before, "nothing is signed");
    unbroken(&said)
}

fn request_in(folder: &Folder, file: &str) -> Request {
    Request::decode(&fs::read(folder.0.join(file)).expect("the request")).expect("a request")
}

#[test]
fn a_proposal_that_takes_the_other_operators_key_is_not_countersigned() {
    let folder = Folder::new("cli-takeover");
    begin(&folder, "test-ix");
    let (alpha, claim) = requested(&folder, "alpha", "64497", "192.0.2.1", &[]);
    folder.ok(&["keys", "new", "evil.key"]);
    let before = member_set(&folder);
    let join = before.requested(&request_in(&folder, &alpha), 10).expect("sound");
    proposed_by_hand(&folder, vec![join, Change::operator(&before, 2, &signing(&folder, "evil.key"))]);
    for more in [&["--confirm", claim.as_str()][..], &["--yes"]] {
        let said = refused_to_countersign(&folder, more);
        assert!(said.contains("replaces the key of party 2's operator, which only that operator proposes"), "{said}");
    }
}

#[test]
fn what_rides_along_with_a_confirmed_member_is_not_signed_unseen() {
    let folder = Folder::new("cli-ride-along");
    begin(&folder, "test-ix");
    let (alpha, alphas) = requested(&folder, "alpha", "64497", "192.0.2.1", &[]);
    folder.ok(&["keys", "new", "op3.key"]);
    let new = field(&folder.ok(&["keys", "show", "op3.key"]), "sign").to_owned();
    propose(&folder, &["--request", &alpha, "--new-operator", "op3.key"]);
    let said = refused_to_countersign(&folder, &["--confirm", &alphas]);
    assert!(said.contains("you did not confirm") && said.contains(&new), "{said}");
    folder.ok(&[&COUNTERSIGN[..], &["--confirm", &alphas, "--confirm", &new]].concat());
    // Addresses and limits are the operators' to decide: no member's digest confirms them.
    fs::copy(folder.0.join("op3.key"), folder.0.join("op1.key")).expect("in its place");
    let (bravo, bravos) = requested(&folder, "bravo", "64498", "192.0.2.2", &[]);
    propose(&folder, &["--request", &bravo, "--max-prefix", "alpha=7"]);
    let said = refused_to_countersign(&folder, &["--confirm", &bravos]);
    assert!(said.contains("it also changes what no member confirms"), "{said}");
    folder.ok(&[&COUNTERSIGN[..], &["--confirm", &bravos, "--yes"]].concat());
    // A removal that the operator's own file has needs no second look.
    folder.ok(&["members", "remove", "m.signed", "--operator", "op1.key", "--name", "bravo"]);
    let (charlie, charlies) = requested(&folder, "charlie", "64499", "192.0.2.3", &[]);
    propose(&folder, &["--request", &charlie]);
    folder.ok(&[&COUNTERSIGN[..], &["--confirm", &charlies]].concat());
}

#[test]
fn a_claim_with_a_members_certificate_and_another_signing_key_is_not_what_the_member_told() {
    let folder = Folder::new("cli-other-claim");
    begin(&folder, "test-ix");
    let (alpha, digest) = requested(&folder, "alpha", "64497", "192.0.2.1", &[]);
    folder.ok(&["keys", "new", "evil.key"]);
    let evil = signing(&folder, "evil.key");
    let claim = Claim { sign: evil.verifying_key().to_bytes(), ..request_in(&folder, &alpha).claim };
    let join = member_set(&folder).requested(&claim.sign("test-ix", &evil), 10).expect("sound by itself");
    proposed_by_hand(&folder, vec![join]);
    let said = refused_to_countersign(&folder, &["--confirm", &digest]);
    assert!(said.contains("you did not confirm: claim:"), "{said}");
    // Attestation keys are there to be compared, not counted.
    let key = to_hex(&evil.verifying_key().to_bytes());
    let attest = format!("kc-ed25519:{key}");
    let (bravo, _) = requested(&folder, "bravo", "64498", "192.0.2.2", &["--attest", &attest]);
    assert!(propose(&folder, &["--request", &bravo]).contains(&attest));
}

#[test]
fn nobody_becomes_a_member_with_a_partys_certificate() {
    let folder = Folder::new("cli-party-pin");
    begin(&folder, "test-ix");
    let pins = ["party1.key", "party2.key"].map(|file| field(&folder.ok(&["keys", "new", file]), "pin").to_owned());
    let (alpha, _) = requested(&folder, "alpha", "64497", "192.0.2.1", &[]);
    let Request { claim, .. } = request_in(&folder, &alpha);
    let claim = Claim { tls: from_hex(&pins[1]["sha256:".len()..]).expect("a fingerprint"), ..claim };
    let request = claim.sign("test-ix", &signing(&folder, "alpha.key"));
    fs::write(folder.0.join("pinned.request"), request.encode()).expect("written");
    let parties = ["--parties", &pins[0], &pins[1]];
    let propose = ["members", "propose", "m.signed", "--operator", "op1.key", "--out", "p"];
    let said = unbroken(
        &folder
            .fails(1, &[&propose[..], &["--request", "pinned.request", "--max-prefix", "alpha=10"], &parties].concat()),
    );
    assert!(said.contains("claims a party's certificate"), "{said}");
    proposed_by_hand(&folder, vec![member_set(&folder).requested(&request, 10).expect("sound by itself")]);
    let said = refused_to_countersign(&folder, &[&["--yes"][..], &parties].concat());
    assert!(said.contains("alpha claims a party's certificate as a key of its own"), "{said}");
}

#[test]
fn a_command_waits_for_whoever_changes_the_member_sets_file() {
    let folder = Folder::new("cli-lock");
    begin(&folder, "test-ix");
    let alpha = request(&folder, "alpha", "64497", "192.0.2.1", &[]);
    propose(&folder, &["--request", &alpha]);
    folder.ok(&[&COUNTERSIGN[..], &["--yes"]].concat());
    let lock = fs::File::options().append(true).open(folder.0.join("m.signed.lock")).expect("left by the command");
    lock.lock().expect("nobody has it");
    let remove = ["members", "remove", "m.signed", "--operator", "op2.key", "--name", "alpha"];
    let mut waits = Command::new(env!("CARGO_BIN_EXE_wayleave"))
        .args(remove)
        .current_dir(&folder.0)
        .spawn()
        .expect("the program runs");
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(waits.try_wait().expect("a child").is_none() && member_set(&folder).set().active(0).is_some());
    drop(lock);
    assert!(waits.wait().expect("a child").success() && member_set(&folder).set().active(0).is_none());
}

#[test]
fn a_key_that_was_found_again_signs_for_the_slot_that_is_held() {
    let folder = Folder::new("cli-endorse");
    begin(&folder, "test-ix");
    let alpha = request(&folder, "alpha", "64497", "192.0.2.1", &[]);
    propose(&folder, &["--request", &alpha]);
    folder.ok(&[&COUNTERSIGN[..], &["--yes"]].concat());
    let second = request(&folder, "alpha-2", "64497", "192.0.2.2", &[]);
    propose(&folder, &["--request", &second]);
    folder.ok(&[&COUNTERSIGN[..], &["--yes"]].concat());
    let shown = |folder: &Folder| json(&folder.ok(&["members", "show", "m.signed", "--json"]));
    assert_eq!(shown(&folder)["members"][1]["held"], true);
    let endorse = ["members", "endorse", "e.request", "--members", "m.signed", "--name", "alpha-2", "--key"];
    folder.ok(&["keys", "new", "other.key"]);
    folder.fails(1, &[&endorse[..], &["other.key"]].concat());
    folder.ok(&[&endorse[..], &["alpha.key"]].concat());
    assert!(propose(&folder, &["--request", "e.request"]).contains("held no more"));
    folder.ok(&[&COUNTERSIGN[..], &["--yes"]].concat());
    assert_eq!(shown(&folder)["members"][1]["held"], false);
    let said = unbroken(&folder.fails(1, &[&endorse[..], &["alpha.key"]].concat()));
    assert!(said.contains("no slot `alpha-2` is held"), "{said}");
}

#[test]
fn a_limit_beside_a_renewal_keeps_the_addresses_that_the_member_signed() {
    let folder = Folder::new("cli-renew-limit");
    begin(&folder, "test-ix");
    let alpha = request(&folder, "alpha", "64497", "192.0.2.1", &[]);
    propose(&folder, &["--request", &alpha]);
    folder.ok(&[&COUNTERSIGN[..], &["--yes"]].concat());
    let alpha = request(&folder, "alpha", "64497", "192.0.2.9", &["--instead-of", "alpha.key"]);
    propose(&folder, &["--request", &alpha, "--max-prefix", "alpha=2000"]);
    folder.ok(&[&COUNTERSIGN[..], &["--yes"]].concat());
    let set = json(&folder.ok(&["members", "show", "m.signed", "--json"]));
    let slot = &set["members"][0];
    assert_eq!((&slot["max_prefix"], &slot["addresses"]), (&2000.into(), &serde_json::json!(["192.0.2.9"])));
    // The limit that is in force may be named again.
    let alpha = request(&folder, "alpha", "64497", "192.0.2.10", &["--instead-of", "alpha.key"]);
    let said = propose(&folder, &["--request", &alpha, "--max-prefix", "alpha=2000"]);
    assert!(said.contains("new keys or addresses"), "{said}");
}

#[test]
fn members_join_and_leave_and_an_invitation_is_a_valid_configuration() {
    let folder = Folder::new("cli-members");
    let operators = begin(&folder, "test-ix");
    let alpha = request(&folder, "alpha", "64497", "192.0.2.1", &[]);
    let bravo = request(&folder, "bravo", "64498", "192.0.2.2", &[]);
    propose(&folder, &["--request", &alpha, "--request", &bravo]);
    folder.ok(&[&COUNTERSIGN[..], &["--yes"]].concat());
    fs::copy(folder.0.join("alpha.key"), folder.0.join("charlie.key")).expect("copied");
    let charlie = request(&folder, "charlie", "64499", "192.0.2.3", &[]);
    let again = ["members", "propose", "m.signed", "--operator", "op1.key", "--out", "p", "--request", &charlie];
    let said = unbroken(&folder.fails(1, &again));
    assert!(said.contains("the key of this request is that of slot 0 (`alpha`), which is active"), "{said}");
    let twice = ["members", "init", "twice", "--exchange", "test-ix", "--operator1", &operators[0], "--operator2"];
    let said = unbroken(&folder.fails(2, &[&twice[..], &[&operators[0]]].concat()));
    assert!(said.contains("--operator1 and --operator2 are one key"), "{said}");
    // For an exchange of another name, which is no fault of the set.
    let elsewhere =
        ["members", "request", "typo.request", "--key", "alpha.key", "--exchange", "tset-ix", "--asn", "64497"];
    folder.ok(&[&elsewhere[..], &["--name", "alpha", "--address", "192.0.2.1"]].concat());
    let typo = ["members", "propose", "m.signed", "--operator", "op1.key", "--out", "p", "--request", "typo.request"];
    let said = unbroken(&folder.fails(1, &typo));
    assert!(said.contains("typo.request is a request for the exchange `tset-ix`"), "{said}");
    fs::copy(folder.0.join("m.signed"), folder.0.join("old.signed")).expect("copied");
    folder.ok(&["members", "remove", "m.signed", "--operator", "op1.key", "--name", "alpha"]);
    // Whoever proposes from a file of before the removal is told that the file may be old.
    folder.ok(&["keys", "new", "returned.key"]);
    let returned =
        ["members", "request", "returned.request", "--key", "returned.key", "--exchange", "test-ix", "--asn"];
    folder.ok(&[&returned[..], &["64497", "--name", "alpha", "--address", "192.0.2.1", "--beside", "alpha.key"]].concat());
    let old =
        ["members", "propose", "old.signed", "--operator", "op1.key", "--out", "p", "--request", "returned.request"];
    let said = unbroken(&folder.fails(1, &[&old[..], &["--max-prefix", "alpha=9"]].concat()));
    assert!(said.contains("another active slot has the same name"), "{said}");
    assert!(said.contains("old.signed has member set 1") && said.contains("take the file of your party"), "{said}");
    // It comes back with the key of before.
    let alpha = request(&folder, "alpha", "64497", "192.0.2.1", &[]);
    let again = ["members", "propose", "m.signed", "--operator", "op1.key", "--out", "p", "--request", &alpha];
    let said = unbroken(&folder.fails(1, &again));
    assert!(said.contains("alpha's key was removed with slot 0 by party 1's operator"), "{said}");
    assert!(said.contains("makes a new key (`wayleave keys new`)"), "{said}");
    let keys = ["--operators", &operators[0], &operators[1], "--json"];
    let set = json(&folder.ok(&[&["members", "show", "m.signed"][..], &keys].concat()));
    assert_eq!(set["number"], 2);
    assert_eq!((&set["members"][0]["active"], &set["members"][1]["active"]), (&false.into(), &true.into()));
    folder.ok(&["keys", "new", "other.key"]);
    let said = folder.fails(1, &["members", "remove", "m.signed", "--operator", "other.key", "--name", "bravo"]);
    assert!(said.contains("other.key is not the key of an operator"), "{said}");
    let strangers = ["members", "show", "m.signed", "--operators", &operators[1], &operators[0]];
    assert!(folder.fails(1, &strangers).contains("other operators' keys"));

    let config = party_of(&folder, &operators).replace("example-ix", "test-ix");
    folder.write("p.toml", &config);
    let said = unbroken(&folder.fails(1, &["run", "member", "--config", "p.toml"]));
    assert!(said.contains("p.toml is the configuration of another role, `rs`"), "{said}");
    let invite = ["invite", "bravo", "--config", "p.toml", "--rs-asn", "64496"];
    let second = ["--party2", "rs2.example.net:7002"];
    let said = folder.fails(2, &[&invite[..], &second].concat());
    assert!(said.contains("it listens at 127.0.0.1:7001") && said.contains("--party1 HOST:PORT"), "{said}");
    folder.write("p.toml", &config.replace("127.0.0.1:7001", "192.0.2.251:7001"));
    assert!(folder.fails(2, &invite).contains("--party2 HOST:PORT"));
    let member = folder.ok(&[&invite[..], &second].concat());
    assert!(member.contains("\"192.0.2.251:7001\"") && member.contains("\naddress = \"192.0.2.2\"\n"), "{member}");
    // Which of the member's key files it is, whatever that is called.
    let pin = field(&folder.ok(&["keys", "show", "bravo.key"]), "pin").to_owned();
    assert!(member.contains(&format!("\n# pin {pin}:\n")), "{member}");
    // The proxy's identifier is the member's to choose.
    folder.write("bravo.toml", &member);
    assert!(folder.fails(1, &["check", "bravo.toml"]).contains("missing field `router_id`"));
    folder.write("bravo.toml", &member.replace("#router_id", "router_id"));
    let said = json(&folder.ok(&["check", "bravo.toml", "--json"]));
    let warnings = said["warnings"].as_array().expect("warnings");
    assert!(said["ok"] == true && warnings.len() == 2, "{said}");
    assert!(
        warnings.iter().all(|one| one["message"].as_str().is_some_and(|what| what.contains("for documentation"))),
        "{said}"
    );
    let said = json(&folder.ok(&["check", "--example", "bravo.toml", "--json"]));
    assert_eq!((&said["ok"], said["warnings"].as_array().map(Vec::len)), (&true.into(), Some(0)), "{said}");
    let both = format!("operators = [\"{}\", \"{}\"]", operators[0], operators[1]);
    assert!(member.contains(&both), "{member}");
    assert!(member.contains("slot = 1") && member.contains("rs2.example.net:7002"), "{member}");
    assert!(folder.fails(1, &["invite", "alpha", "--config", "p.toml", "--rs-asn", "1"]).contains("no active member"));
}

/// Party 1's configuration with real keys in place of the example's.
fn party_of(folder: &Folder, operators: &[String; 2]) -> String {
    folder.ok(&["keys", "new", "party1.key"]);
    let party2 = folder.ok(&["keys", "new", "party2.key"]);
    let text = folder.ok(&["init", "rs"]);
    let replace = |text: String, start: &str, value: &str| -> String {
        let lines = text
            .lines()
            .map(|line| if line.starts_with(start) { format!("{start}\"{value}\"") } else { line.to_owned() });
        lines.collect::<Vec<_>>().join("\n")
    };
    let text = replace(text, "members = ", "m.signed");
    let text = replace(text, "pin = ", field(&party2, "pin"));
    let example = text.lines().find_map(|line| line.strip_prefix("operators = ")).expect("both operators");
    text.replace(example, &format!("{operators:?}"))
}

#[test]
fn show_and_why_report_a_role_that_does_not_answer() {
    let folder = Folder::new("cli-show");
    for arguments in
        [&["show", "status", "--url", "http://127.0.0.1:1"][..], &["why", "192.0.2.0/24", "--url", "127.0.0.1:1"]]
    {
        let said = folder.fails(1, arguments);
        assert!(said.contains("no answer from http://127.0.0.1:1") && said.contains("is the role running?"), "{said}");
    }
    let said = unbroken(&folder.fails(2, &["show", "status"]));
    assert!(said.contains("no role given") && said.contains("`wayleave.toml` of this folder"), "{said}");
    let output = folder.run(&["show", "status", "--json"]);
    assert_eq!(output.status.code(), Some(2));
    let said = json(&text(&output.stdout));
    assert_eq!((&said["version"], &said["error"]), (&1.into(), &"no role given".into()));
    assert!(folder.fails(2, &["show", "everything", "--url", "x"]).contains("possible values"));
}

/// It says on standard error that it is at work; then Ctrl-C comes. On a slow machine nothing may be measured yet: it says so, and has
/// more time at the next try.
#[test]
fn a_benchmark_that_is_stopped_prints_what_it_has_measured() {
    for words in 1..6 {
        let endless = ["--suite", "kc-ed25519", "--repetitions", "1000000"];
        let mut command =
            program(&[&["wayleave-lab", "bench", "attest-ops", "--short", "--json"], &endless[..]].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
        assert!(lines.by_ref().filter(|line| line.contains("s so far")).nth(words - 1).is_some());
        kill_process(Pid::from_child(&child), Signal::INT).expect("sent");
        let rest = lines.collect::<Vec<_>>().join("\n");
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(130), "{rest}");
        if rest.contains("before anything was measured") {
            continue;
        }
        let report = json(&text(&output.stdout));
        assert_eq!((&report["bench"], &report["params"]["stopped"]), (&"attest-ops".into(), &true.into()), "{report}");
        let first = &report["results"][0];
        assert!(first["value"].as_f64().is_some_and(|value| value > 0.0), "{report}");
        return;
    }
    panic!("nothing is measured in 40 seconds");
}

#[test]
fn benchmarks_are_listed_and_report_in_the_common_form() {
    let folder = Folder::new("cli-bench");
    let list = folder.ok(&["wayleave-lab", "bench", "--list"]);
    let exchange = [
        "bgp-codec",
        "export-all",
        "select-best",
        "exchange-trace",
        "exchange-stress",
        "exchange-join",
        "exchange-restart",
        "exchange-peers",
    ];
    for name in exchange.iter().chain(&[
        "forward",
        "forward-io",
        "stamp",
        "overlay",
        "pocomon",
        "key-server",
        "waypoint-granularity",
        "attest-ops",
        "attest-trace",
        "attest-memory",
    ]) {
        assert!(list.lines().any(|line| line.split_whitespace().next() == Some(*name)), "{name} is not in: {list}");
    }
    assert!(list.contains("sixpack/table-1") && list.contains("both parties over loopback TCP"), "{list}");
    let table = ["wayleave-lab", "bench", "--paper", "sixpack/table-1", "--short", "--repetitions", "1"];
    let said = folder.ok(&table);
    assert!(said.starts_with("SIXPACK, Table 1: 750 members\n"), "{said}");
    assert!(said.contains("setup, published") && said.contains("ratio") && said.contains("Select-Best 32"), "{said}");
    assert!(list.contains("--short TAKES"), "{list}");
    let said = folder.ok(&["wayleave-lab", "bench", "--paper", "kc-x/table-4", "--short"]);
    assert!(said.contains("KC-x, Table IV") && said.contains("published") && !said.contains("Table V:"), "{said}");
    let said = folder.fails(2, &["wayleave-lab", "bench", "--paper", "sixpack/table-9"]);
    assert!(said.contains("no table or figure `sixpack/table-9`") && said.contains("kc-x/table-6"), "{said}");
    assert!(folder.fails(2, &["wayleave-lab", "bench", "nothing"]).contains("no benchmark `nothing`"));
    assert!(
        folder
            .fails(2, &["wayleave-lab", "bench", "--all", "results", "--members", "9"])
            .contains("cannot be used with")
    );
    assert!(
        folder.fails(2, &["wayleave-lab", "bench", "--all", "results", "select-best"]).contains("cannot be used with")
    );
    for name in ["forward", "forward-io", "stamp", "overlay", "pocomon"] {
        let said = folder.fails(2, &["wayleave-lab", "bench", name, "--only", "tea"]);
        assert!(said.contains("no result's name begins with `tea`"), "{said}");
    }
    assert!(folder.fails(2, &["wayleave-lab", "bench", "bgp-codec", "--only", "tea"]).contains("takes no --only"));
    let table = json(&folder.ok(&["wayleave-lab", "bench", "forward", "--only", "table-1.trace-2", "--json"]));
    assert_eq!(
        (table["results"].as_array().map(Vec::len), &table["params"]["only"][0]),
        (Some(2), &"table-1.trace-2".into())
    );
    let one = ["wayleave-lab", "bench", "stamp", "--only", "scion.1500", "--json", "--repetitions", "1"];
    let results = json(&folder.ok(&one))["results"].as_array().expect("results").clone();
    assert_eq!(results.iter().map(|result| &result["name"]).collect::<Vec<_>>(), ["scion.1500"]);
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/bgp/bird.messages.mrt");
    let trace = trace.to_str().expect("UTF-8");
    let runs: [(&[&str], &[&str]); 11] = [
        (&["bgp-codec", "--mrt", trace], &["decode_encode", "identical"]),
        (&["export-all", "--members", "20"], &["online", "setup", "bytes_online", "bytes_setup", "rounds", "memory"]),
        (
            &["export-all", "--mode", "mpc", "--members", "20"],
            &["online", "setup", "bytes_online", "bytes_setup", "rounds", "memory"],
        ),
        (
            &["select-best", "--members", "20", "--routes", "4"],
            &["online", "setup", "bytes_online", "bytes_setup", "rounds", "memory"],
        ),
        (
            &["exchange-trace", "--members", "4", "--prefixes", "20"],
            &[
                "prefix_mean",
                "prefix_p50",
                "prefix_p99",
                "parties_mean",
                "parties_p99",
                "oracle_mismatches",
                "party_link",
            ],
        ),
        (
            &["exchange-trace", "--generated", "--members", "12", "--prefixes", "30"],
            &["parties_mean", "parties_p50", "parties_p99", "parties.export_all.p99", "parties.select_best.p99"],
        ),
        (
            &["exchange-trace", "--generated", "--mode", "mpc", "--members", "12", "--prefixes", "30"],
            &["parties_mean", "parties_p50", "parties_p99", "parties.export_all.p99", "parties.select_best.p99"],
        ),
        (
            &["exchange-stress", "--members", "20", "--threads", "2", "--routes", "4"],
            &["export_all", "select_best.4", "select_best.4.sustained", "export_all.workers.2"],
        ),
        (
            &["exchange-join", "--members", "6", "--prefixes", "40"],
            &["join", "announce", "deliveries", "announce.party-1", "announce.sinks"],
        ),
        (
            &["exchange-restart", "--members", "6", "--prefixes", "40"],
            &["first_update", "synced", "memory", "memory.party-1", "synced.party-2"],
        ),
        (
            &["select-best", "--members", "20", "--routes", "4", "--delay-us", "100", "--group", "8"],
            &["online", "setup", "bytes_setup"],
        ),
    ];
    for (arguments, expected) in runs {
        let said =
            folder.ok(&[&["wayleave-lab", "bench"], arguments, &["--short", "--json", "--repetitions", "3"]].concat());
        assert_eq!(said.lines().count(), 1, "one object on one line");
        let said = json(&said);
        assert_eq!((&said["bench"], &said["version"]), (&arguments[0].into(), &1.into()));
        for field in ["git", "cpu", "params"] {
            assert!(!said[field].is_null(), "{field}");
        }
        let names: Vec<&str> =
            said["results"].as_array().expect("results").iter().filter_map(|result| result["name"].as_str()).collect();
        for name in expected {
            assert!(names.contains(name), "{name} is not in {names:?}");
        }
    }
}

#[test]
fn the_exchanges_benchmarks_count_what_they_do_and_draw_the_papers_figures() {
    let folder = Folder::new("cli-bench-exchange");
    let run = |arguments: &[&str]| {
        let said =
            folder.ok(&[&["wayleave-lab", "bench"], arguments, &["--short", "--json", "--repetitions", "2"]].concat());
        json(&said)["results"].as_array().expect("results").clone()
    };
    let value = |results: &[serde_json::Value], name: &str| {
        let result = results.iter().find(|result| result["name"] == name);
        result.unwrap_or_else(|| panic!("no {name}"))["value"].as_f64().expect("a number")
    };
    // One announces 60 prefixes to 20 sinks; 27 of them are contested, and 23 members choose among two routes.
    let size = ["exchange-join", "--members", "23", "--prefixes", "60"];
    let join = run(&size);
    assert_eq!(value(&join, "deliveries"), 60.0 * 20.0);
    assert!(value(&join, "announce.lanes") >= 27.0 * 23.0);
    assert_eq!(value(&join, "announce.refused"), 0.0);
    // Only the announcer and the receivers choose.
    let opted_out = run(&[&size[..], &["--sinks", "opt-out"]].concat());
    assert!((1.0..27.0 * 23.0).contains(&value(&opted_out, "announce.lanes")));
    assert_eq!(value(&run(&[&size[..], &["--contested", "0", "--mode", "mpc"]].concat()), "announce.rankings"), 0.0);

    let drawn: [&[&str]; 3] = [
        &["select-best", "--members", "10", "--plot", "table-1.svg"],
        &["exchange-trace", "--generated", "--members", "10", "--prefixes", "20", "--plot", "figure-10.svg"],
        &["exchange-stress", "--members", "10", "--routes", "8", "--plot", "figure-11.svg"],
    ];
    for (arguments, file) in drawn.into_iter().zip(["table-1.svg", "figure-10.svg", "figure-11.svg"]) {
        run(arguments);
        let svg = std::fs::read_to_string(folder.0.join(file)).expect("a picture");
        assert!(svg.contains("published") && svg.ends_with("</svg>\n"), "{file}");
    }
    assert!(
        folder
            .fails(2, &["wayleave-lab", "bench", "exchange-trace", "--plot", "x.svg"])
            .contains("draws no plot of a recorded trace")
    );
    assert!(
        folder
            .fails(2, &["wayleave-lab", "bench", "party", "--party", "1", "2", "3", "4", "5", "6"])
            .contains("start no party")
    );
}

/// One key file in the place of another: what `check` and `run` say.
fn refused(folder: &Folder, config: &str, text: &str, roles: [&str; 2]) {
    folder.write(config, text);
    let role = if text.contains("[party]") { "rs" } else { "member" };
    for arguments in [&["check", config][..], &["run", role, "--config", config]] {
        let said = folder.fails(1, arguments);
        // Messages are broken into lines.
        let said = said.replace('│', " ").split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(roles.iter().all(|role| said.contains(role)), "{arguments:?}: {said}");
    }
}

#[test]
fn no_role_starts_with_a_key_that_it_knows_in_another_role() {
    let folder = Folder::new("cli-key-roles");
    let operators = begin(&folder, "test-ix");
    let alpha = request(&folder, "alpha", "64497", "192.0.2.1", &[]);
    propose(&folder, &["--request", &alpha]);
    folder.ok(&[&COUNTERSIGN[..], &["--yes"]].concat());
    let config = party_of(&folder, &operators).replace("example-ix", "test-ix");
    let shown = folder.ok(&["keys", "show", "alpha.key"]);
    let as_own = |key: &str| config.replace("\"party1.key\"", &format!("\"{key}\""));
    refused(&folder, "1.toml", &as_own("alpha.key"), ["the certificate of party 1", "the certificate of slot 0"]);
    refused(&folder, "1.toml", &as_own("op1.key"), ["the signing key of party 1", "the key of party 1's operator"]);
    refused(&folder, "1.toml", &as_own("op2.key"), ["the signing key of party 1", "the key of party 2's operator"]);
    refused(&folder, "1.toml", &as_own("party2.key"), ["the certificate of party 1", "the certificate of party 2"]);
    let party2 = folder.ok(&["keys", "show", "party2.key"]);
    let pinned = config.replace(field(&party2, "pin"), field(&shown, "pin"));
    refused(&folder, "1.toml", &pinned, ["the certificate of party 2", "the certificate of slot 0"]);

    // An operator's key as a member's, and a party's: the commands know no party, but its party and the invitation do.
    for (role, name) in [("op2.key", "bravo"), ("party2.key", "charlie")] {
        fs::copy(folder.0.join(role), folder.0.join(format!("{name}.key"))).expect("a copy");
    }
    let bravo = request(&folder, "bravo", "64498", "192.0.2.2", &[]);
    let said = folder.fails(
        1,
        &[
            "members",
            "propose",
            "m.signed",
            "--operator",
            "op1.key",
            "--out",
            "p",
            "--request",
            &bravo,
            "--max-prefix",
            "bravo=9",
        ],
    );
    assert!(said.contains("a key is used in two roles"), "{said}");
    let charlie = request(&folder, "charlie", "64498", "192.0.2.2", &[]);
    propose(&folder, &["--request", &charlie]);
    folder.ok(&[&COUNTERSIGN[..], &["--yes"]].concat());
    refused(&folder, "1.toml", &config, ["the certificate of party 2", "the certificate of slot 1"]);
    let invite = ["invite", "alpha", "--config", "1.toml", "--rs-asn", "64496", "--party1", "a:1", "--party2", "b:1"];
    assert!(folder.fails(1, &invite).contains("slot 1"));

    // A member that pins itself, or gives one address for both parties.
    let member = folder.ok(&["init", "member"]);
    let example = member.lines().find_map(|line| line.strip_prefix("operators = ")).expect("a line");
    let member = member.replace(example, &format!("{operators:?}"));
    let party1 = folder.ok(&["keys", "show", "party1.key"]);
    let pins = |first: &str, second: &str| {
        let example = ["1", "2"].map(|digit| format!("sha256:{}", digit.repeat(64)));
        member.replace(&example[0], field(first, "pin")).replace(&example[1], field(second, "pin"))
    };
    refused(&folder, "a.toml", &pins(&shown, &party2), ["the certificate of party 1", "the certificate of slot 0"]);
    refused(&folder, "a.toml", &pins(&party1, &shown), ["the certificate of party 2", "the certificate of slot 0"]);
    let one_address = pins(&party1, &party2).replace("127.0.0.1:7002", "127.0.0.1:7001");
    refused(&folder, "a.toml", &one_address, ["the same address as party 1's", "expected party 2's"]);
    let own_operator = pins(&party1, &party2).replace(&operators[1], field(&shown, "sign"));
    refused(&folder, "a.toml", &own_operator, ["the signing key of slot 0", "the key of party 2's operator"]);
}

#[test]
fn holding_new_members_needs_the_number_of_those_that_are_known() {
    let folder = Folder::new("cli-new-members");
    let member = folder.ok(&["init", "member"]);
    let with = |lines: &str| {
        folder.write("m.toml", &member.replace("slot = 0\n", &format!("slot = 0\n{lines}\n")));
    };
    with("new_members = \"hold\"");
    assert!(folder.fails(1, &["check", "m.toml"]).contains("known_slots"));
    with("known_slots = 3");
    assert!(folder.fails(1, &["check", "m.toml"]).contains("holds nothing"));
    with("new_members = \"hold\"\nknown_slots = 3\nreleased = [4]");
    assert!(folder.ok(&["check", "--example", "m.toml"]).contains("a configuration for `wayleave run member`"));
    with("new_members = \"wait\"");
    assert!(folder.fails(1, &["check", "m.toml"]).contains("new_members"));
}

#[test]
fn a_member_without_a_prefix_limit_or_beyond_an_operators_is_refused_everywhere() {
    let folder = Folder::new("cli-limits");
    let operators = begin(&folder, "test-ix");
    let alpha = request(&folder, "alpha", "64497", "192.0.2.1", &[]);
    let again = ["members", "propose", "m.signed", "--operator", "op1.key", "--out", "p", "--request", &alpha];
    for more in [&[][..], &["--max-prefix", "alpha=0"]] {
        let said = unbroken(&folder.fails(2, &[&again[..], more].concat()));
        assert!(said.contains("no prefix limit for `alpha`") && said.contains("--max-prefix alpha=NUMBER"), "{said}");
    }
    let said = unbroken(&folder.fails(2, &[&again[..], &["--max-prefix", "alpha=1000001"]].concat()));
    assert!(said.contains("`alpha` could announce 1000001 prefixes, and you agree to 1000000 at most"), "{said}");
    // One operator agrees to more, the other does not.
    let more = ["--max-prefix", "alpha=5000", "--max-prefix-limit", "5000"];
    folder.ok(&[&again[..], &more].concat());
    let said = unbroken(&folder.fails(2, &[&COUNTERSIGN[..], &["--yes", "--max-prefix-limit", "4000"]].concat()));
    assert!(said.contains("you agree to 4000 at most"), "{said}");
    folder.ok(&[&COUNTERSIGN[..], &["--yes"]].concat());
    let config = party_of(&folder, &operators).replace("example-ix", "test-ix");
    folder.write("p.toml", &config);
    assert!(folder.ok(&["check", "p.toml"]).contains("fine"));
    folder.write("p.toml", &config.replace("#max_prefix_limit = 1000000", "max_prefix_limit = 4000"));
    let said = unbroken(&folder.fails(1, &["check", "p.toml"]));
    assert!(said.contains("lets `alpha` announce 5000 prefixes") && said.contains("at most 4000"), "{said}");
    // A set of before, in which a member has none, as no command signs it any more.
    let bravo = request(&folder, "bravo", "64498", "192.0.2.2", &[]);
    proposed_by_hand(&folder, vec![member_set(&folder).requested(&request_in(&folder, &bravo), 0).expect("sound")]);
    let said = unbroken(&folder.fails(2, &[&COUNTERSIGN[..], &["--yes"]].concat()));
    assert!(said.contains("no prefix limit for `bravo`"), "{said}");
    let before = member_set(&folder);
    let proposal = Proposal::decode(&fs::read(folder.0.join("p")).expect("the proposal")).expect("a proposal");
    let signed = proposal.countersign(&before, &signing(&folder, "op2.key")).expect("by hand");
    fs::write(folder.0.join("m.signed"), signed.encode()).expect("written");
    folder.write("p.toml", &config);
    let said = unbroken(&folder.fails(1, &["check", "p.toml"]));
    assert!(said.contains("no prefix limit for `bravo`"), "{said}");
    let parties = ["--party1", "a.example:1", "--party2", "b.example:1"];
    let invite = ["invite", "bravo", "--config", "p.toml", "--rs-asn", "64496"];
    let said = unbroken(&folder.fails(1, &[&invite[..], &parties].concat()));
    assert!(said.contains("`bravo` has no prefix limit"), "{said}");
}

#[test]
fn a_key_pin_or_claim_of_another_kind_is_refused_with_its_name() {
    let folder = Folder::new("cli-names");
    let operators = begin(&folder, "test-ix");
    let (alpha, claim) = requested(&folder, "alpha", "64497", "192.0.2.1", &[]);
    let config = party_of(&folder, &operators).replace("example-ix", "test-ix");
    let party1 = folder.ok(&["keys", "show", "party1.key"]);
    let [pin, api_pin] = ["pin", "api_pin"].map(|name| field(&party1, name).to_owned());
    let node = field(&folder.ok(&["keys", "node", "i.key", "--kind", "identity"]), "public").to_owned();
    let realm = field(&folder.ok(&["keys", "node", "r.key", "--kind", "realm"]), "public").to_owned();
    let hash = field(&folder.ok(&["keys", "token", "token"]), "hash").to_owned();
    let secret = fs::read_to_string(folder.0.join("token")).expect("a token").trim().to_owned();
    let attest = folder.ok(&["keys", "attest", "attest.key", "--asn", "64497"]);
    let attest = field(&attest, "attest").to_owned();
    let pinned = config.lines().find_map(|line| line.strip_prefix("pin = ")).expect("a pin").to_owned();
    let names = [
        (&api_pin, "the pin of an API's key"),
        (&hash, "the hash of an API token"),
        (&claim, "the digest of a member's claim"),
        (&operators[0], "a signing key of `keys new`"),
        (&node, "the identity of a node"),
        (&realm, "a realm's key"),
        (&attest, "an attestation key"),
        (&secret, "an API token, which is secret"),
    ];
    for (text, name) in names {
        folder.write("wrong.toml", &config.replace(&pinned, &format!("\"{text}\"")));
        let said = unbroken(&folder.fails(1, &["check", "wrong.toml"]));
        assert!(said.contains(&format!("this is {name}")) && !said.contains(&secret), "{said}");
    }
    // On the command line: parties' pins, operators, claims, API pins, attestation keys.
    let propose = ["members", "propose", "m.signed", "--operator", "op1.key", "--out", "p", "--request", &alpha];
    let propose = [&propose[..], &["--max-prefix", "alpha=9"]].concat();
    let said = unbroken(&folder.fails(2, &[&propose[..], &["--parties", &api_pin, &api_pin]].concat()));
    assert!(said.contains("this is the pin of an API's key, expected the fingerprint of a certificate"), "{said}");
    let init = ["members", "init", "n", "--exchange", "x", "--operator1", &node, "--operator2", &operators[1]];
    assert!(unbroken(&folder.fails(2, &init)).contains("this is the identity of a node, expected a signing key"));
    folder.ok(&propose);
    let said = unbroken(&folder.fails(2, &[&COUNTERSIGN[..], &["--confirm", &hash]].concat()));
    assert!(said.contains("this is the hash of an API token"), "{said}");
    let token = ["--token", "token", "--api", "https://192.0.2.1:1"];
    let said = unbroken(&folder.fails(2, &[&["cap", "list", "--pin", &pin][..], &token].concat()));
    assert!(said.contains("this is the fingerprint of a certificate, expected the pin of an API's key"), "{said}");
    let identity = folder.ok(&["keys", "identity", "identity.key", "--asn", "64497", "--classical"]);
    let more = ["--attest", field(&identity, "identity")];
    let fixed = ["members", "request", "x", "--key", "alpha.key", "--exchange", "test-ix", "--asn", "64497"];
    let said =
        unbroken(&folder.fails(2, &[&fixed[..], &["--name", "alpha", "--address", "192.0.2.1"], &more].concat()));
    assert!(said.contains("this is an AS's identity key, expected an attestation key"), "{said}");
    folder.ok(&[&fixed[..], &["--name", "alpha", "--address", "192.0.2.1", "--attest", &attest]].concat());
    // What it is, and where it goes, is to be had of each.
    for (text, name) in names.iter().filter(|(text, _)| **text != secret) {
        let shown = folder.ok(&["keys", "show", text]);
        assert!(shown.contains(name) && shown.contains("goes into"), "{shown}");
    }
    let shown = folder.ok(&["keys", "show", "token"]);
    assert!(shown.contains("an API token") && shown.contains(&hash) && !shown.contains(&secret), "{shown}");
}

#[test]
fn keys_show_knows_every_kind_of_file() {
    let folder = Folder::new("cli-kinds");
    let [one, two] = ["operator1", "operator2"].map(|name| {
        let made = json(&folder.ok(&["keys", "new", &format!("{name}.key"), "--name", name, "--json"]));
        made["sign"].as_str().expect("a key").to_owned()
    });
    folder.ok(&["members", "init", "members", "--exchange", "test-ix", "--operator1", &one, "--operator2", &two]);
    folder.ok(&["keys", "new", "alpha.key", "--name", "alpha"]);
    let requested = folder.ok(&[
        "members",
        "request",
        "alpha.request",
        "--key",
        "alpha.key",
        "--exchange",
        "test-ix",
        "--asn",
        "64497",
        "--name",
        "alpha",
        "--address",
        "192.0.2.1",
    ]);
    let claim = field(&requested, "claim").to_owned();
    folder.ok(&[
        "members",
        "propose",
        "members",
        "--operator",
        "operator1.key",
        "--out",
        "p",
        "--request",
        "alpha.request",
        "--max-prefix",
        "alpha=10",
    ]);
    folder.ok(&["keys", "anchor", "anchor.key", "--name", "lab"]);
    folder.ok(&["keys", "attest", "attest.key", "--asn", "64497"]);
    folder.sign(&["profile", "--attest", "attest.key"]);
    folder.sign(&["record", "--asn", "64497", "--prefix", "192.0.2.0/24"]);
    folder.ok(&["keys", "identity", "identity.key", "--asn", "64497", "--classical"]);
    folder.ok(&["keys", "forwarding", "icing.key", "--format", "icing"]);
    folder.ok(&["keys", "forwarding", "platypus.key", "--format", "platypus"]);
    folder.ok(&["cap", "revoke-list", "revoked", "--key", "alpha.key", "7/1"]);
    folder.write("other", "name it as you like");
    for (file, words) in [
        ("alpha.key", vec!["pin ", "sign ", "api_pin "]),
        ("attest.key", vec!["AS64497", "attest  attest:kc-ed25519:"]),
        ("identity.key", vec!["identity  identity:kc-ed25519:"]),
        ("anchor.key", vec!["anchor  anchor:kc-ed25519:", "slh-dsa"]),
        ("anchor.pub", vec!["trust anchor, public", "anchor:ed25519:", "anchor:slh-dsa-sha2-128s:"]),
        ("icing.key", vec!["format  icing", "node"]),
        ("platypus.key", vec!["format  platypus"]),
        ("members", vec!["member set", "test-ix", &one]),
        ("alpha.request", vec!["member's request", "alpha", "first slot of its AS", "holds", &claim]),
        ("p", vec!["operator's proposal", "countersign"]),
        ("objects/profile-64497.object", vec!["profile", "Ed25519 and SLH-DSA", "attest:kc-ed25519:"]),
        ("objects/record-64497.object", vec!["record", "192.0.2.0/24"]),
        ("objects/manifest.object", vec!["manifest", "not its signature"]),
        ("revoked", vec!["list of revoked capabilities", "entries   1"]),
    ] {
        let shown = folder.ok(&["keys", "show", file]);
        assert!(words.iter().all(|word| shown.contains(word)), "{file}, {words:?}: {shown}");
        assert!(json(&folder.ok(&["keys", "show", file, "--json"])).is_object(), "{file}");
    }
    assert!(folder.fails(1, &["keys", "show", "objects"]).contains("keys objects"));
    let said = folder.fails(1, &["keys", "show", "other"]);
    assert!(said.contains("not a trust anchor") || said.contains("no kind of file"), "{said}");
    folder.write("other", "nothing");
    assert!(folder.fails(1, &["keys", "show", "other"]).contains("is no kind of file that Wayleave's commands make"));
}

/// Whatever commands write: the folders are walked, so a file that comes later is looked at as well.
#[test]
fn keys_show_knows_every_file_that_commands_write() {
    let folder = Folder::new("cli-written");
    fs::create_dir(folder.0.join("copies")).expect("a folder");
    folder.ok(&["exchange", "new", "trial", "--member", "alpha=64497@192.0.2.1"]);
    folder.ok(&["cap", "init", "provider", "--zone", "keys.example.net", "--name-server", "ns1.example.net"]);
    let realm = ["--config", "realm/realm.toml"];
    folder.ok(&["realm", "init", "realm", "--listen", "127.0.0.1:7000"]);
    folder.ok(&[&["realm", "list-key", "new", "realm/list.key"], &realm[..]].concat());
    let invited =
        folder.ok(&[&["realm", "invite", "p", "--role", "path", "--address", "127.0.0.1:7100"], &realm[..]].concat());
    folder.write("realm/token", &invited);
    let said = unbroken(&folder.fails(1, &["backup", "--config", "trial/alpha/wayleave.toml", "stick/alpha"]));
    assert!(said.contains("cannot make stick/alpha") && said.contains("`mkdir -p stick`"), "{said}");
    let also = ["backup", "--config", "trial/alpha/wayleave.toml", "--also", "none.key", "copies/alpha.tar"];
    let said = unbroken(&folder.fails(1, &also));
    assert!(said.contains("none.key is not there, which --also names"), "{said}");
    folder.ok(&["backup", "--config", "trial/alpha/wayleave.toml", "copies/alpha.tar"]);
    folder.ok(&["backup", "--config", "trial/party1/wayleave.toml", "copies/party1"]);
    folder.ok(&["backup", "--config", "provider/key.toml", "copies/provider"]);
    for written in ["trial", "provider", "realm", "copies"] {
        assert_known(&folder, &folder.0.join(written));
    }
    for (file, kind) in [
        ("trial/operators/operator1.key.signed", "what the operator's key beside it has signed"),
        ("trial/alpha/bird.conf", "configuration of a member's router, BIRD"),
        ("provider/accounts.db", "database (SQLite)"),
        ("provider/position", "what was last seen of a key server's database"),
        ("provider/revoked", "list of revoked capabilities"),
        ("realm/list.key", "a list key, which is secret"),
        ("realm/servers", "where a realm's path servers are"),
        ("copies/alpha.tar", "copy of a role in one file"),
        ("copies/party1/backup.json", "what is in the copy of a role"),
    ] {
        let shown = folder.ok(&["keys", "show", file]);
        assert!(shown.contains(kind), "{file}: {shown}");
    }
}

#[test]
fn show_needs_only_where_the_status_pages_are() {
    let folder = Folder::new("cli-only-status");
    // As while somebody edits the file of a role that runs.
    folder.write("half.toml", "[party]\nnumber = 7\nlisten = \"no\"\n[status]\nlisten = \"127.0.0.1:1\"\n");
    let said = folder.fails(1, &["show", "status", "--config", "half.toml"]);
    assert!(said.contains("no answer from http://127.0.0.1:1"), "{said}");
    folder.write("without.toml", "[party]\nnumber = 1\n");
    assert!(folder.fails(1, &["show", "status", "--config", "without.toml"]).contains("has no [status] section"));
}

/// A program that forbids itself `getrandom` (it then fails with EIO) and becomes another one.
const WITHOUT_RANDOMNESS: &str = "
import os, struct, sys, platform
try: import ctypes
except ImportError: sys.exit(77) # Debian's minimal Python
number = {'x86_64': 318, 'aarch64': 278}[platform.machine()]
libc = ctypes.CDLL(None)
parts = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050005), (0x06, 0, 0, 0x7fff0000)]
program = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *part) for part in parts))
class Filter(ctypes.Structure):
    _fields_ = [('len', ctypes.c_ushort), ('filter', ctypes.c_void_p)]
chosen = Filter(len(parts), ctypes.addressof(program))
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(chosen), 0, 0):
    sys.exit(77)
os.execv(sys.argv[1], sys.argv[1:])
";

#[test]
fn without_randomness_of_the_system_a_role_ends_with_a_sentence() {
    let folder = Folder::new("cli-randomness");
    for (role, config) in [("rs", "rs"), ("member", "member"), ("attest", "attest"), ("router", "router")] {
        let text = folder.ok(&["init", role]);
        folder.write(&format!("{config}.toml"), &text);
        let file = format!("{config}.toml");
        let mut command = std::process::Command::new("python3");
        command.args(["-c", WITHOUT_RANDOMNESS, env!("CARGO_BIN_EXE_wayleave"), "run", role, "--config", &file]);
        let output = match command.current_dir(&folder.0).env("NO_COLOR", "1").output() {
            Ok(output) if output.status.code() != Some(77) => output,
            _ => {
                return wayleave_lab::netns::skipped("a system without randomness: needs python3 and seccomp");
            }
        };
        let said = text_of(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{role}: {said}");
        assert!(said.contains("the system gave no randomness") && !said.contains("panicked"), "{role}: {said}");
    }
}

fn text_of(octets: &[u8]) -> String {
    String::from_utf8_lossy(octets).into_owned()
}

/// OPS, data, by command: one machine of each operator signs, the second only what its own build bears out.
#[test]
fn data_are_built_by_both_operators_compared_and_signed_by_a_machine_of_each() {
    let folder = Folder::new("cli-data");
    begin(&folder, "test-ix");
    let machines = ["m1.key", "m2.key"].map(|file| field(&folder.ok(&["keys", "new", file]), "sign").to_owned());
    let alpha = request(&folder, "alpha", "64497", "192.0.2.1", &[]);
    let build = ["members", "data", "build", "ix.data", "--members", "m.signed", "--irr", "irr"];
    let profile = format!("[profile]\n[profile.data]\nkeys = [\"{}\", \"{}\"]\n", machines[0], machines[1]);
    fs::write(folder.0.join("profile.toml"), profile).expect("written");
    let said = unbroken(&folder.fails(1, &build));
    assert!(said.contains("names no machine keys") && said.contains("[profile.data]"), "{said}");
    let propose = ["members", "propose", "m.signed", "--operator", "op1.key", "--out", "p", "--max-prefix", "alpha=10"];
    let said = folder.ok(&[&propose[..], &["--request", &alpha, "--profile", "profile.toml"]].concat());
    assert_eq!(field(&said, "profile irr origin"), "- -> yes", "{said}");
    folder.ok(&[&COUNTERSIGN[..], &["--yes"]].concat());
    assert!(folder.ok(&["members", "show", "m.signed"]).contains(&machines[1]));

    let write = |at: &str, text: &str| fs::write(folder.0.join(at), text).expect("written");
    let prefixes = |count: u8| {
        let all: Vec<String> =
            (0..count).map(|at| format!("{{\"prefix\":\"10.0.{at}.0/24\",\"exact\":true}}")).collect();
        format!("{{\"NN\":[{}]}}", all.join(","))
    };
    for (at, count) in [("irr", 2), ("irr2", 20)] {
        fs::create_dir(folder.0.join(at)).expect("a folder");
        write(&format!("{at}/AS64497.asns.json"), "{\"NN\":[64497,64499]}");
        write(&format!("{at}/AS64497.ipv4.json"), &prefixes(count));
        write(&format!("{at}/AS64500.json"), "no JSON, and no member");
    }
    let built = json(&folder.ok(&[&build[..], &["--json"]].concat()));
    assert_eq!((&built["number"], &built["prefixes"], &built["other_files"]), (&1.into(), &2.into(), &1.into()));
    assert_eq!(built["without_lists"], serde_json::json!([]));
    let build_to = |out: &str, irr: &str| {
        folder.ok(&["members", "data", "build", out, "--members", "m.signed", "--irr", irr]);
    };
    build_to("own", "irr");
    build_to("other", "irr2");
    let sign = |key: &'static str| ["members", "data", "sign", "ix.data", "--members", "m.signed", "--key", key];
    let first = |key| [&sign(key)[..], &["--first"]].concat();
    assert!(unbroken(&folder.fails(1, &first("op1.key"))).contains("not a machine key of this exchange"));
    assert!(unbroken(&folder.fails(2, &sign("m1.key"))).contains("--compare"), "neither --first nor --compare");
    assert!(folder.ok(&first("m1.key")).contains("signed for party 1"));
    let check = ["members", "data", "check", "ix.data", "--members", "m.signed"];
    assert!(unbroken(&folder.fails(1, &check)).contains("the machine key of party 2's operator did not sign them"));
    assert!(unbroken(&folder.fails(2, &first("m2.key"))).contains("expected --compare"));
    let said = unbroken(&folder.fails(1, &[&sign("m2.key")[..], &["--compare", "other"]].concat()));
    assert!(said.contains("AS64497: 18 of your 20 prefixes missing, at most 10"), "{said}");
    let said = folder.ok(&[&sign("m2.key")[..], &["--compare", "own"]].concat());
    assert!(said.contains("data 1 count: both operators' machines signed them"), "{said}");
    folder.ok(&check);
    let shown = folder.ok(&["members", "data", "show", "ix.data", "--asn", "64497"]);
    assert!(shown.contains("signed by party 1's and party 2's operator's machine"), "{shown}");
    assert!(shown.contains("origins 64497 64499") && shown.contains("10.0.1.0/24"), "{shown}");
    // A number far ahead would leave none for those that follow; an AS that is to join has its lists before it is a member.
    fs::rename(folder.0.join("irr2/AS64500.json"), folder.0.join("irr2/AS64500.ipv4.json")).expect("moved");
    write("irr2/AS64500.ipv4.json", "{\"NN\":[]}");
    let far = ["members", "data", "build", "far", "--members", "m.signed", "--irr", "irr2", "--number", "1002"];
    let built = json(&folder.ok(&[&far[..], &["--also", "AS64500", "--json"]].concat()));
    assert_eq!((&built["members"], &built["other_files"]), (&2.into(), &0.into()));
    let far = ["members", "data", "sign", "far", "--members", "m.signed", "--key", "m1.key"];
    for more in [&["--first", "--after", "ix.data"][..], &["--compare", "ix.data"]] {
        let said = unbroken(&folder.fails(1, &[&far[..], more].concat()));
        assert!(said.contains("far has number 1002, and") && said.contains("expected at most 1001"), "{said}");
    }
    // What is in force goes on until the number has risen.
    let said = unbroken(&folder.fails(1, &[&sign("m1.key")[..], &["--first", "--after", "ix.data"]].concat()));
    assert!(said.contains("has number 1, and 1 is in force"), "{said}");
    write("irr/AS64497.ipv4.json", "{\"NN\":[{\"prefix\":\"10.0.0.1/24\"}]}");
    let said = unbroken(&folder.fails(1, &build));
    assert!(said.contains("AS64497.ipv4.json") && said.contains("nothing was written"), "{said}");
}

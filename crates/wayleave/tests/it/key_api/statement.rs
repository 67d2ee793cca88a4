//! A statement in pages, of a key server that adds usage of closed time up while they are read.
//!
//! PLA, usage by pages: usage of closed time is added up while a statement is read in pages: pages of one time, or
//! refused; the command begins again.
//! PLA, old statements: exported, and their sums taken away: the files are what `cap verify` takes; the database names what it has no more,
//! at the server's machine and by the API.
//! PLA, signed statements: made, listed and shown alike at the server's machine and by the API; its signature, its principal and the
//! customer's own count are checked; changed, or of another key: refused.

use std::thread;

use serde_json::Value;
use wayleave_dataplane::platypus::record;
use wayleave_packet::platypus::header::{DelegationId, Interval, Principal};
use wayleave_packet::platypus::verify::Charge;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::store::{Change, FileStore, Store};

use super::world::{WAYPOINT, World};
use crate::common::{assert_known, eventually, free, text};

const DAY: u64 = 86_400;
const INTERVAL: u8 = 12;
/// Totals: three times as many as a page has lines, or the server reads at a time.
const TOTALS: u32 = 3_000;

/// Brings totals of one router into the database of a server that does not run, from a file of an earlier version: of a few principals, their delegations, and ten key epochs
/// a week ago. All have as many packets as the one before, and one more.
fn put(world: &World) -> u128 {
    let store = FileStore::open(&world.folder.0.join("server/usage")).expect("nobody has it open");
    let first = ((unix_now().secs() - 7 * DAY) >> INTERVAL) as u32;
    let change = |number: u32| {
        let id = DelegationId::new(1 + number / 40).expect("24 bits");
        let account = record::encode(&Charge {
            principal: Principal::new(7 + number % 4).expect("24 bits"),
            delegation: Some((id, None)),
            interval: Interval::new(INTERVAL),
            epoch: first + number / 4 % 10,
        });
        let packets = u128::from(number);
        Change {
            table: "usage",
            key: [&1_u16.to_be_bytes()[..], &[5; 16], &account].concat(),
            value: Some([packets.to_be_bytes(), (packets * 100).to_be_bytes()].concat()),
        }
    };
    store.submit((0..TOTALS).map(change).collect(), Box::new(|| ())).expect("there is room");
    store.close();
    let command = ["cap", "import-usage", "server/usage", "--config", "server/key.toml"];
    assert!(world.folder.ok(&command).starts_with("3000 records"));
    (0..u128::from(TOTALS)).sum()
}

fn packets(page: &Value) -> u128 {
    let lines = page["usage"].as_array().expect("lines");
    lines
        .iter()
        .map(|line| line["packets"].as_str().and_then(|text| text.parse::<u128>().ok()).expect("a number"))
        .sum()
}

/// Closes the time before so many days ago, and waits until all of it is folded.
fn close(world: &World, days: u64) {
    let before = (unix_now().secs() - days * DAY).to_string();
    world.folder.ok(&["cap", "usage", "--close", &before, "--force", "--config", "server/key.toml"]);
    let folded = || world.call(Some(&world.read), "GET", "/v1/usage?by=epoch&most=10000", None).json();
    let is_month = |line: &Value| line["epoch"].is_null();
    eventually("it is folded", || folded()["usage"].as_array().expect("lines").iter().all(is_month));
}

#[test]
fn pages_of_a_statement_are_of_one_time_or_are_refused_and_the_command_begins_again() {
    let routers = format!("[key.routers]\nlisten = \"{}\"\nidentity = \"identity.key\"\n", free());
    let mut world = World::with("statement", &routers);
    world.running.kill();
    let all = put(&world);
    world.running.resume();
    let page = |after: Option<&str>| {
        let after = after.map_or(String::new(), |after| format!("&after={after}"));
        world.call(Some(&world.read), "GET", &format!("/v1/usage?by=epoch&most=1000{after}"), None)
    };
    // Undisturbed, the pages have all of it.
    let (mut sum, mut lines, mut after) = (0, 0, None::<String>);
    loop {
        let page = page(after.as_deref()).json();
        lines += page["usage"].as_array().expect("lines").len();
        sum += packets(&page);
        let Some(next) = page["next"].as_str() else { break };
        after = Some(next.to_owned());
    }
    assert_eq!((sum, lines), (all, TOTALS as usize));
    // The command reads page after page while usage is folded.
    let shown = world.folder.ok(&["keys", "show", "server/api.key", "--json"]);
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    let pin = shown["api_pin"].as_str().expect("a pin");
    let url = format!("https://{}", world.api);
    let command = ["cap", "usage", "--by", "epoch", "--json", "--api", &url, "--token", "read.token", "--pin", pin];
    let first = page(None).json();
    let next = first["next"].as_str().expect("more");
    thread::scope(|scope| {
        let reading = scope.spawn(|| {
            (0..4).map(|_| serde_json::from_str(&world.folder.ok(&command)).expect("JSON")).collect::<Vec<Value>>()
        });
        close(&world, 5);
        for statement in reading.join().expect("no panic") {
            assert_eq!(packets(&statement), all);
        }
    });
    // A page that was begun before would have usage that an earlier one had, in a sum of its month.
    let refused = page(Some(next));
    assert!(refused.status == 410 && refused.is("gone"), "{refused:?}");
    assert!(refused.json()["help"].as_str().is_some_and(|help| help.contains("begin again")), "{refused:?}");
    assert_eq!(packets(&page(None).json()), all);
    let csv = world.call(Some(&world.read), "GET", &format!("/v1/usage?by=epoch&format=csv&after={next}"), None);
    assert_eq!(csv.status, 410);
}

/// The command of whoever pays.
fn verify<'a>(writer: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["cap", "verify", "one.statement", "--writer", writer], more].concat()
}

#[test]
fn a_statement_is_made_signed_and_checked_by_who_pays_and_never_changes() {
    let section = format!(
        "[key.routers]\nlisten = \"{}\"\nidentity = \"identity.key\"\n[[key.router]]\nnumber = 1\nname = \"fra1\"\n\
         identity = \"node:ed25519:3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29\"\n",
        free()
    );
    let mut world = World::with("statements", &section);
    world.running.kill();
    let all = put(&world);
    world.running.resume();
    let (url, pin) = (format!("https://{}", world.api), world.pin.to_string());
    let at = |token: &'static str| ["--api", url.as_str(), "--token", token, "--pin", pin.as_str()];
    let by_api = |command: &[&str]| world.folder.ok(&[command, &at("full.token")].concat());
    let here = |command: &[&str]| world.folder.ok(&[command, &["--config", "server/key.toml"]].concat());
    let line = by_api(&["cap", "grant", "--principal", "7", "--waypoint", WAYPOINT, "--name", "customer"]);
    world.folder.write("customer.line", &line);
    assert!(by_api(&["cap", "statements"]).contains("no statements"));
    // A router has not confirmed, and says so at both places; then time is closed without it.
    let before = (unix_now().secs() - 5 * DAY).to_string();
    let close = ["cap", "usage", "--close", &before, "--reason", "the week is over"];
    for place in [&at("full.token")[..], &["--config", "server/key.toml"]] {
        let said = world.folder.fails(1, &[&close[..], place].concat());
        assert!(said.contains("fra1 (confirmed:"), "{said}");
        let said =
            world.folder.fails(if place.len() > 2 { 1 } else { 2 }, &[&close[..], &["--without", "x"], place].concat());
        assert!(said.contains("no router x"), "{said}");
    }
    world.folder.fails(1, &[&close[..], &["--force"], &at("read.token")].concat());
    let said = by_api(&[&close[..], &["--without", "fra1", "--json"]].concat());
    assert_eq!(serde_json::from_str::<Value>(&said).expect("JSON")["statement"], 1);
    // The same again is the same statement, at both places; less than that is closed already.
    for place in [&at("full.token")[..], &["--config", "server/key.toml"]] {
        let said = world.folder.ok(&[&close[..], &["--json"], place].concat());
        assert_eq!(serde_json::from_str::<Value>(&said).expect("JSON")["statement"], 1);
        let said = world.folder.fails(1, &[&["cap", "usage", "--close", "2026-01-01"], place].concat());
        assert!(said.contains("is closed already"), "{said}");
    }
    for form in [&[][..], &["--json"]] {
        assert_eq!(by_api(&[&["cap", "statements"], form].concat()), here(&[&["cap", "statements"], form].concat()));
    }
    let listed = here(&["cap", "statements", "--json"]);
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    let head = &listed["statements"][0];
    assert_eq!((&head["complete"], &head["not_confirmed_by"][0]), (&Value::Bool(true), &Value::from("fra1")));
    assert!(
        head["by"].as_str().is_some_and(|by| by.contains("operator")) && head["reason"] == "the week is over",
        "{head}"
    );
    for by in ["principal", "delegation", "epoch", "router"] {
        for form in [&[][..], &["--csv"], &["--json"], &["--principal", "7"]] {
            let command = [&["cap", "statements", "1", "--by", by], form].concat();
            assert_eq!(by_api(&command), here(&command), "{command:?}");
        }
    }
    let whole: Value = serde_json::from_str(&here(&["cap", "statements", "1", "--json"])).expect("JSON");
    assert_eq!(packets(&whole), all);
    let said = world.folder.fails(1, &["cap", "statements", "3", "--config", "server/key.toml"]);
    assert!(said.contains("there is no statement 3"), "{said}");

    // Who pays checks the signature, and holds its own count against it.
    let of_seven = ["cap", "statements", "1", "--principal", "7", "--signed"];
    by_api(&[&of_seven[..], &["one.statement"]].concat());
    let said = here(&[&of_seven[..], &["two.statement", "--json"]].concat());
    for place in [&at("full.token")[..], &["--config", "server/key.toml"]] {
        let of_nobody = ["cap", "statements", "1", "--principal", "70", "--signed", "70.statement"];
        let said = world.folder.fails(1, &[&of_nobody[..], place].concat()).replace('│', " ");
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains("principal 70 never had an account"), "{said}");
        assert!(!world.folder.0.join("70.statement").exists());
    }
    // Whose account was closed has its signed statement still, of nothing.
    here(&["cap", "grant", "--principal", "60", "--waypoint", WAYPOINT]);
    here(&["cap", "account", "60", "--close"]);
    for (place, file) in [(&at("full.token")[..], "60.statement"), (&["--config", "server/key.toml"], "61.statement")] {
        let closed = [&["cap", "statements", "1", "--principal", "60", "--signed", file][..], place].concat();
        eventually("the server follows the database", || world.folder.run(&closed).status.success());
    }
    let writer = serde_json::from_str::<Value>(&said).expect("JSON")["writer"].as_str().expect("a key").to_owned();
    let read = |name: &str| std::fs::read(world.folder.0.join(name)).expect("there");
    assert_eq!(read("one.statement"), read("two.statement"));
    let said = world.folder.ok(&verify(&writer, &["--line", "customer.line", "--json"]));
    let said: Value = serde_json::from_str(&said).expect("JSON");
    let seven: Value =
        serde_json::from_str(&here(&["cap", "statements", "1", "--principal", "7", "--json"])).expect("JSON");
    assert_eq!(said["packets"], packets(&seven).to_string());
    assert_eq!((&said["owner"], &said["not_confirmed_by"][0]["router"]), (&Value::from(0), &Value::from(1)));
    // What the account is called now changes nothing of it.
    by_api(&["cap", "account", "7", "--name", "renamed"]);
    here(&[&of_seven[..], &["three.statement"]].concat());
    assert_eq!(read("one.statement"), read("three.statement"));
    let again = world.folder.fails(1, &[&of_seven[..], &["one.statement", "--config", "server/key.toml"]].concat());
    assert!(again.contains("one.statement"), "{again}");
    let octets: u128 = said["octets"].as_str().and_then(|text| text.parse().ok()).expect("a number");
    let less = (octets - 1).to_string();
    let output = world.folder.run(&verify(&writer, &["--sent", &less]));
    assert!(output.status.success() && text(&output.stderr).contains("1 octets are billed beyond"), "{output:?}");
    let output = world.folder.run(&verify(&writer, &["--sent", &octets.to_string()]));
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let other = by_api(&["cap", "grant", "--principal", "8", "--waypoint", WAYPOINT, "--name", "other"]);
    world.folder.write("other.line", &other);
    let said = world.folder.fails(1, &verify(&writer, &["--line", "other.line"]));
    assert!(said.contains("it is of principal 7"), "{said}");
    let stranger = "writer:ed25519:3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29";
    let said = world.folder.fails(1, &["cap", "verify", "one.statement", "--writer", stranger]);
    assert!(said.contains("this key did not sign it"), "{said}");
    // The next one goes on where it ended.
    let later = (unix_now().secs() - 3 * DAY).to_string();
    here(&["cap", "usage", "--close", &later, "--force"]);
    here(&["cap", "statements", "2", "--principal", "7", "--signed", "next.statement"]);
    let next = ["cap", "verify", "next.statement", "--writer", &writer, "--previous"];
    world.folder.ok(&[&next[..], &["one.statement"]].concat());
    let said = world.folder.fails(1, &[&next[..], &["next.statement"]].concat());
    assert!(said.contains("and statement 2 up to"), "{said}");
    let mut octets = read("one.statement");
    let last = octets.len() - 70;
    octets[last] ^= 1;
    std::fs::write(world.folder.0.join("changed.statement"), &octets).expect("written");
    let said = world.folder.fails(1, &["cap", "verify", "changed.statement", "--writer", &writer]);
    assert!(said.contains("did not sign it") || said.contains("no signed statement"), "{said}");
}

/// A customer's token reads what is its own of a statement.
#[test]
fn a_token_for_own_reads_what_is_its_own_of_a_statement() {
    let routers = format!("[key.routers]\nlisten = \"{}\"\nidentity = \"identity.key\"\n", free());
    let mut world = World::with("own-statement", &routers);
    world.running.kill();
    put(&world);
    let made: Value = serde_json::from_str(&world.folder.ok(&["keys", "token", "own.token", "--json"])).expect("JSON");
    let own = std::fs::read_to_string(world.folder.0.join("own.token")).expect("there").trim().to_owned();
    let path = world.folder.0.join("server/key.toml");
    let config = std::fs::read_to_string(&path).expect("there");
    let hash = made["hash"].as_str().expect("a hash");
    let entry =
        format!("[[key.api.token]]\nname = \"own\"\nhash = \"{hash}\"\naccess = \"own\"\nprincipal = 7\n[status]");
    std::fs::write(&path, config.replace("[status]", &entry)).expect("written");
    world.running.resume();
    world.folder.ok(&[
        "cap",
        "usage",
        "--close",
        &(unix_now().secs() - 5 * DAY).to_string(),
        "--force",
        "--config",
        "server/key.toml",
    ]);
    let ask = |path: &str| world.call(Some(&own), "GET", path, None);
    assert_eq!(ask("/v1/statements").json()["statements"][0]["statement"], 1);
    let lines = ask("/v1/statements/1?by=principal").json();
    let lines = lines["usage"].as_array().expect("lines");
    assert!(lines.len() == 1 && lines[0]["principal"] == 7, "{lines:?}");
    assert!(ask("/v1/statements/1?principal=8").is("access"));
    assert!(ask("/v1/statements/1/signed?principal=8").is("access"));
    assert!(ask("/v1/statements/1/signed").json()["signed"].as_str().is_some_and(|signed| signed.len() > 200));
    assert!(ask("/v1/statements/2").is("not-found"));
    let before = serde_json::json!({ "before": "2026-01-01" });
    assert!(world.call(Some(&own), "POST", "/v1/statements", Some(&before)).is("access"));
}

#[test]
fn old_statements_leave_by_export_and_their_files_are_what_was_signed() {
    let section = format!("[key.routers]\nlisten = \"{}\"\nidentity = \"identity.key\"\n", free());
    let mut world = World::with("export", &section);
    world.running.kill();
    let all = put(&world);
    world.running.resume();
    let here = |command: &[&str]| world.folder.ok(&[command, &["--config", "server/key.toml"]].concat());
    let day = |days: u64| (unix_now().secs() - days * DAY).to_string();
    let (first, second) = (day(5), day(2));
    for before in [&first, &second] {
        here(&["cap", "usage", "--close", before, "--force"]);
    }
    let signed = ["cap", "statements", "1", "--principal", "7", "--signed", "one.statement", "--json"];
    let said: Value = serde_json::from_str(&here(&signed)).expect("JSON");
    let writer = said["writer"].as_str().expect("a key").to_owned();
    let export = |more: &[&str]| -> Value {
        let command = [&["cap", "statements", "--export", "old", "--json"], more].concat();
        serde_json::from_str(&here(&command)).expect("JSON")
    };
    let said = export(&[]);
    assert_eq!((&said["exported"], &said["removed"]), (&serde_json::json!([1, 2]), &serde_json::json!([])));
    let said = export(&["--remove-before", &first]);
    assert_eq!((&said["exported"], &said["removed"]), (&serde_json::json!([]), &serde_json::json!([1])));
    let read = |name: &str| std::fs::read(world.folder.0.join(name)).expect("there");
    assert_eq!(read("one.statement"), read("old/statement-1-7-0.signed"));
    let whole: Value = serde_json::from_slice(&read("old/statement-1.json")).expect("JSON");
    assert_eq!((packets(&whole), &whole["statement"]), (all, &Value::from(1)));
    world.folder.ok(&["cap", "verify", "old/statement-1-7-0.signed", "--writer", &writer]);
    assert_known(&world.folder, &world.folder.0.join("old"));
    let shown = world.folder.ok(&["keys", "show", "one.statement"]);
    assert!(shown.contains("signed statement of usage") && shown.contains("principal"), "{shown}");
    // The database says what it has no more, and has all else.
    let said = world.folder.fails(1, &["cap", "statements", "1", "--config", "server/key.toml"]);
    assert!(said.contains("statement 1 were exported"), "{said}");
    let asked = world.call(Some(&world.read), "GET", "/v1/statements/1", None);
    assert!(asked.status == 404 && asked.body.contains("exported"), "{asked:?}");
    assert_eq!(here(&["cap", "statements", "--json"]).matches("\"complete\":").count(), 2);
    here(&["cap", "statements", "2"]);
    assert!(here(&["cap", "usage"]).contains("no usage"));
    let said = world.folder.fails(2, &["cap", "statements", "--remove-before", &first, "--config", "server/key.toml"]);
    assert!(said.contains("--export"), "{said}");
}

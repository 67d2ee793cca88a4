//! Terms of sale: what billing knows accounts and grants by, price tags on statements, and quotas by volume.
//!
//! PLA, billing: an external ID, a price tag and metadata of accounts and grants, by the API and by commands alike: listed, filtered,
//! in the trail, on statements and under their signatures; what is too long: refused, and nothing has changed.
//! PLA, quotas: a payer beyond its soft quota is named; one that has used up its hard one gets no secret, and is on the list for routers,
//! until the quota is raised.

use serde_json::{Value, json};
use wayleave_control::capability::Month;
use wayleave_dataplane::platypus::record;
use wayleave_packet::platypus::header::{DelegationId, Interval, Principal};
use wayleave_packet::platypus::verify::Charge;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::store::{Change, FileStore, Store};

use super::world::{WAYPOINT, World};
use crate::common::{eventually, free, text};

const DAY: u64 = 86_400;
const INTERVAL: u8 = 12;

fn routers() -> String {
    format!("[key.routers]\nlisten = \"{}\"\nidentity = \"identity.key\"\n", free())
}

/// Brings octets of principal 7, of the key epoch at a Unix second, into the database of a server that does not run.
fn put(world: &World, second: u64, octets: u128) {
    put_of(world, None, second, octets);
}

/// The same of a delegation of it.
fn put_of(world: &World, delegation: Option<u32>, second: u64, octets: u128) {
    let store = FileStore::open(&world.folder.0.join("server/usage")).expect("nobody has it open");
    let account = record::encode(&Charge {
        principal: Principal::new(7).expect("24 bits"),
        delegation: delegation.map(|id| (DelegationId::new(id).expect("24 bits"), None)),
        interval: Interval::new(INTERVAL),
        epoch: (second >> INTERVAL) as u32,
    });
    let change = Change {
        table: "usage",
        key: [&1_u16.to_be_bytes()[..], &[5; 16], &account].concat(),
        value: Some([octets.div_ceil(1_500).to_be_bytes(), octets.to_be_bytes()].concat()),
    };
    store.submit(vec![change], Box::new(|| ())).expect("there is room");
    store.close();
    world.folder.ok(&["cap", "import-usage", "server/usage", "--config", "server/key.toml"]);
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

#[test]
fn what_billing_knows_is_set_listed_filtered_and_noted_by_the_api_and_by_commands_alike() {
    let world = World::new("billing");
    let (url, pin) = (format!("https://{}", world.api), world.pin.to_string());
    let at = ["--api", url.as_str(), "--token", "full.token", "--pin", pin.as_str()];
    let by_api = |command: &[&str]| world.folder.ok(&[command, &at].concat());
    let here = |command: &[&str]| world.folder.ok(&[command, &["--config", "server/key.toml"]].concat());
    let account =
        json!({ "principal": 7, "name": "customer 7", "external_id": "cust-7", "metadata": { "vat": "DE1" } });
    let opened = world.done("POST", "/v1/accounts", Some(&account));
    assert_eq!(
        (&opened["external_id"], &opened["price"], &opened["metadata"]["vat"]),
        (&json!("cust-7"), &Value::Null, &json!("DE1"))
    );
    // A rename leaves it, as a repeat does; an empty text ends it.
    let put = |body: Value| world.done("PUT", "/v1/accounts/7", Some(&body));
    assert_eq!(put(json!({ "name": "customer", "price": "gold" }))["external_id"], "cust-7");
    let number = world.running.count("number");
    assert_eq!(put(json!({ "name": "customer", "price": "gold" }))["price"], "gold");
    assert_eq!(world.running.count("number"), number, "what is so already is no change");
    let cleared = world.done("PATCH", "/v1/accounts/7", Some(&json!({ "price": "", "metadata": {} })));
    assert_eq!(
        (&cleared["price"], &cleared["metadata"], &cleared["external_id"]),
        (&Value::Null, &json!({}), &json!("cust-7"))
    );
    for wrong in [
        json!({ "external_id": "x".repeat(129) }),
        json!({ "price": "x".repeat(65) }),
        json!({ "price": "a\nb" }),
        json!({ "metadata": { "": "x" } }),
        json!({ "metadata": { "a": "x".repeat(129) } }),
    ] {
        let refused = world.call(Some(&world.full), "PATCH", "/v1/accounts/7", Some(&wrong));
        assert!(refused.is("request"), "{wrong}: {refused:?}");
    }
    // Of grants, and by commands.
    let grant = ["cap", "grant", "--principal", "7", "--waypoint", WAYPOINT];
    let line =
        by_api(&[&grant[..], &["--external-id", "line-1", "--price", "EUR 0.42/TB", "--metadata", "a=b=c"]].concat());
    assert_eq!(here(&[&grant[..], &["--price", "EUR 0.42/TB"]].concat()), line, "what is not named stays");
    world.folder.ok(&[
        "cap",
        "grant",
        "--principal",
        "8",
        "--waypoint",
        WAYPOINT,
        "--name",
        "other",
        "--config",
        "server/key.toml",
    ]);
    let shown = parsed(&here(&["cap", "account", "8", "--external-id", "cust-8", "--price", "tin", "--json"]));
    assert_eq!((&shown["name"], &shown["price"]), (&json!("other"), &json!("tin")));
    for command in
        [&["cap", "account", "7"][..], &["cap", "account", "7", "--json"], &["cap", "list"], &["cap", "list", "--json"]]
    {
        assert_eq!(by_api(command), here(command), "{command:?}");
    }
    let tree = world.done("GET", "/v1/accounts/7", None);
    let granted = &tree["waypoints"][0]["grants"][0];
    assert_eq!(
        (&granted["external_id"], &granted["price"], &granted["metadata"]["a"]),
        (&json!("line-1"), &json!("EUR 0.42/TB"), &json!("b=c"))
    );
    // Lists by what they are known by.
    let principals = |path: &str, list: &str| {
        let all = world.done("GET", path, None);
        all[list]
            .as_array()
            .expect("a list")
            .iter()
            .map(|one| one["principal"].as_u64().expect("a number"))
            .collect::<Vec<_>>()
    };
    assert_eq!(principals("/v1/accounts?external_id=cust-8", "accounts"), [8]);
    assert_eq!(principals("/v1/accounts?external_id=line-1", "accounts"), [0; 0], "it is a grant's");
    assert_eq!(principals("/v1/accounts?name=ust", "accounts"), [7]);
    assert_eq!(principals("/v1/grants?external_id=line-1", "principals"), [7]);
    assert_eq!(principals("/v1/grants?external_id=cust-8", "principals"), [8]);
    assert_eq!(principals("/v1/grants?external_id=none", "principals"), [0; 0]);
    for id in ["line-1", "cust-8", "none"] {
        let command = ["cap", "list", "--external-id", id, "--json"];
        assert_eq!(by_api(&command), here(&command), "{id}");
    }
    for entry in ["7/3", "8/3"] {
        world.done("POST", "/v1/revocations", Some(&json!({ "entry": entry })));
        world.done(
            "PUT",
            "/v1/rates",
            Some(&json!({ "principal": entry[..1].parse::<u32>().expect("a number"), "octets_per_second": 5 })),
        );
    }
    assert_eq!(world.done("GET", "/v1/revocations?principal=8", None)["revocations"], json!(["8/3"]));
    assert_eq!(principals("/v1/rates?principal=8", "rates"), [8]);
    // The trail has each, by whose it is.
    for command in [
        &["cap", "changes", "--principal", "8", "--json"][..],
        &["cap", "changes", "--principal", "8", "--after", "1", "--json"],
    ] {
        let changes = parsed(&here(command));
        assert_eq!(parsed(&by_api(command)), changes);
        let said: Vec<&str> =
            changes["changes"].as_array().expect("a list").iter().filter_map(|one| one["what"].as_str()).collect();
        assert!(said.contains(&"billing of account 8: external ID cust-8, price tin"), "{said:?}");
        assert!(said.iter().all(|what| !what.contains("account 7")), "{said:?}");
    }
    // Nobody finds what was closed.
    world.done("DELETE", "/v1/accounts/8", None);
    assert_eq!(principals("/v1/grants?external_id=cust-8", "principals"), [0; 0]);
}

#[test]
fn a_statement_has_the_price_tags_that_were_in_force_and_its_signature_covers_them() {
    let mut world = World::with("prices", &routers());
    let (url, pin) = (format!("https://{}", world.api), world.pin.to_string());
    let week_ago = unix_now().secs() - 7 * DAY;
    world.done("POST", "/v1/accounts", Some(&json!({ "principal": 7, "name": "customer", "price": "gold" })));
    world.running.kill();
    put(&world, week_ago, 10_000);
    world.running.resume();
    let here = |command: &[&str]| world.folder.ok(&[command, &["--config", "server/key.toml"]].concat());
    let by_api = |command: &[&str]| {
        world.folder.ok(&[command, &["--api", &url, "--token", "full.token", "--pin", &pin]].concat())
    };
    // The tag was set today, and the statement is of last week.
    here(&["cap", "usage", "--close", &(unix_now().secs() - 5 * DAY).to_string(), "--force"]);
    assert!(here(&["cap", "statements", "1", "--prices"]).contains("no price tags"));
    world.running.kill();
    world.running.resume();
    for form in [&[][..], &["--json"], &["--csv"]] {
        let command = [&["cap", "statements", "1", "--prices"], form].concat();
        assert_eq!(by_api(&command), here(&command), "{form:?}");
    }
    let prices = world.done("GET", "/v1/statements/1/billing?principal=7", None);
    assert_eq!((&prices["statement"], &prices["prices"], &prices["next"]), (&json!(1), &json!([]), &Value::Null));
    let said = here(&["cap", "statements", "1", "--principal", "7", "--signed", "one.statement", "--json"]);
    let writer = parsed(&said)["writer"].as_str().expect("a key").to_owned();
    let said = world.folder.ok(&["cap", "verify", "one.statement", "--writer", &writer, "--json"]);
    assert_eq!((&parsed(&said)["octets"], &parsed(&said)["prices"]), (&json!("10000"), &json!([])));
}

#[test]
fn a_quota_that_is_used_up_ends_look_ups_and_revokes_until_it_is_raised() {
    let mut world = World::with("quota", &routers());
    let writer = world.running.status("writer").as_str().expect("a key").to_owned();
    world.done("POST", "/v1/accounts", Some(&json!({ "principal": 7, "name": "customer" })));
    let granted =
        world.done("POST", "/v1/grants", Some(&json!({ "principal": 7, "waypoint": WAYPOINT, "interval": 4 })));
    world.folder.write("own.line", granted["capability"].as_str().expect("a line"));
    let quota = |soft: u64, hard: u64| json!({ "principal": 7, "soft_octets": soft, "hard_octets": hard });
    let wrong = world.call(Some(&world.full), "PUT", "/v1/quotas", Some(&quota(11, 10)));
    assert!(wrong.is("request"), "{wrong:?}");
    let missing =
        world.call(Some(&world.full), "PUT", "/v1/quotas", Some(&json!({ "principal": 9, "hard_octets": 1 })));
    assert!(missing.is("not-found"), "{missing:?}");
    let set = world.done("PUT", "/v1/quotas", Some(&quota(9_000, 20_000)));
    assert_eq!(world.done("PUT", "/v1/quotas", Some(&quota(9_000, 20_000)))["number"], set["number"]);
    let entries = |world: &World| {
        let list = world.folder.ok(&["cap", "revoked", "server/revoked", "--key", &writer, "--json"]);
        parsed(&list)["entries"].as_array().expect("a list").len()
    };
    let look_up = |world: &World| world.folder.run(&["cap", "lookup", "--line", "own.line", "--server", &world.listen]);
    let state = |world: &World| world.done("GET", "/v1/quotas?principal=7", None)["quotas"][0].clone();
    assert!(look_up(&world).status.success());
    // A router reports: beyond the soft quota.
    world.running.kill();
    // Of a key epoch that begins in this month.
    put(&world, unix_now().secs().max(Month::of(unix_now().secs()).begin() + (1 << INTERVAL) - 1), 10_000);
    world.running.resume();
    eventually("it is beyond its soft quota", || state(&world)["state"] == "exceeded");
    assert_eq!(state(&world)["used_octets"], 10_000);
    assert_eq!(world.running.status("quotas")["exceeded"], json!([7]));
    assert!(world.running.log().contains("beyond its soft quota of 9000"));
    let here = parsed(&world.folder.ok(&["cap", "quota", "--json", "--config", "server/key.toml"]));
    assert_eq!(here["quotas"][0], state(&world));
    assert!(look_up(&world).status.success() && entries(&world) == 0);
    // Then the hard one is lowered below what was sent.
    world.folder.ok(&["cap", "quota", "7", "--hard", "10000", "--reason", "a test", "--config", "server/key.toml"]);
    eventually("it is used up", || state(&world)["state"] == "used-up");
    let output = look_up(&world);
    assert!(text(&output.stderr).contains("the quota of the month is used up"), "{}", text(&output.stderr));
    // What it looked up before is revoked, but for key epochs that begin in another month.
    eventually("routers are told", || entries(&world) > 0);
    assert_eq!(world.running.status("quotas")["used_up"], json!([7]));
    let trail = world.folder.ok(&["cap", "changes", "--config", "server/key.toml"]);
    assert!(trail.contains("has used up its quota of the month") && trail.contains("the key server"), "{trail}");
    // Also after a restart, without a moment in which it passes.
    world.running.kill();
    world.running.resume();
    assert!(!look_up(&world).status.success());
    world.done("PUT", "/v1/quotas", Some(&json!({ "principal": 7, "hard_octets": 10_001 })));
    assert!(look_up(&world).status.success(), "it is raised");
    eventually("routers are told", || entries(&world) == 0);
    assert_eq!(state(&world)["state"], "within", "there is no soft one any more");
    world.done("DELETE", "/v1/quotas?principal=7", None);
    assert!(world.call(Some(&world.full), "DELETE", "/v1/quotas?principal=7", None).is("not-found"));
}

/// A reseller's customer that used up what it may send in a month: it alone is refused, until the month ends or its reseller raises the limit.
#[test]
fn a_delegation_that_used_up_its_month_is_refused_and_its_principal_is_not() {
    let mut world = World::with("volume", &routers());
    let writer = world.running.status("writer").as_str().expect("a key").to_owned();
    world.done("POST", "/v1/accounts", Some(&json!({ "principal": 7, "name": "customer" })));
    let granted =
        world.done("POST", "/v1/grants", Some(&json!({ "principal": 7, "waypoint": WAYPOINT, "interval": 4 })));
    world.folder.write("own.line", granted["capability"].as_str().expect("a line"));
    let asked = |world: &World, command: &[&str]| {
        world.folder.ok(&[&["cap"], command, &["--server", world.listen.as_str()]].concat())
    };
    let line = asked(&world, &["delegate", "--line", "own.line", "--prefix", "203.0.113.0/24", "--id", "3"]);
    world.folder.write("branch.line", &line);
    asked(&world, &["limit", "--line", "own.line", "3", "--month-octets", "10000"]);
    let status = |world: &World, line: &str| parsed(&asked(world, &["status", "--line", line, "--json"]));
    assert_eq!(status(&world, "branch.line")["month_quota"], 10_000);
    assert_eq!(status(&world, "own.line")["delegations"][0]["month_quota"], 10_000);
    let look_up =
        |world: &World, line: &str| world.folder.run(&["cap", "lookup", "--line", line, "--server", &world.listen]);
    assert!(look_up(&world, "branch.line").status.success());
    world.running.kill();
    let now = unix_now().secs();
    // Of a key epoch that begins in this month.
    put_of(&world, Some(3), now.max(Month::of(now).begin() + (1 << INTERVAL) - 1), 10_000);
    world.running.resume();
    eventually("it is used up", || !look_up(&world, "branch.line").status.success());
    let output = look_up(&world, "branch.line");
    assert!(text(&output.stderr).contains("the quota of the month is used up"), "{}", text(&output.stderr));
    assert!(look_up(&world, "own.line").status.success(), "its principal is none of it");
    let entries = |world: &World| {
        let list = world.folder.ok(&["cap", "revoked", "server/revoked", "--key", &writer, "--json"]);
        parsed(&list)["entries"].as_array().expect("a list").len()
    };
    eventually("routers are told", || entries(&world) > 0);
    assert_eq!(world.done("GET", "/v1/quotas", None)["quotas"], json!([]), "the provider set none");
    let trail = world.folder.ok(&["cap", "changes", "--config", "server/key.toml"]);
    for what in
        ["principal 7 with delegation 3 limited by its holder to 10000 octets a month", "delegation 3 has used up"]
    {
        assert!(trail.contains(what), "{trail}");
    }
    asked(&world, &["limit", "--line", "own.line", "3", "--month-octets", "10001"]);
    assert!(look_up(&world, "branch.line").status.success(), "it is raised");
    eventually("routers are told", || entries(&world) == 0);
    asked(&world, &["limit", "--line", "own.line", "3", "--end"]);
    assert_eq!(status(&world, "branch.line")["month_quota"], Value::Null);
}

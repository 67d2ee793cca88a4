//! `why`: every verdict of a member's proxy carries its reason, its rule and what to do.
//!
//! SIX-15: a route that is not announced has its reason in the status.
//! OPS, why: documentation prefixes, an import rule, a default route, a sealed route, a route that came back: outcome,
//! rule and cure of each; nobody is accused of a route that came back.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use wayleave_bgp::{AsPathBuf, Attributes, Origin, SegmentKind};
use wayleave_core::{Asn, Prefix};
use wayleave_lab::demo::exchange::DemoExchange;
use wayleave_lab::demo::layout::Layout;
use wayleave_lab::process::wait_until;
use wayleave_lab::speaker::Routes;
use wayleave_lab::table::Announcement;

const TIMEOUT: Duration = Duration::from_secs(30);
const ALPHA: usize = 0;
const BRAVO: usize = 1;
const CHARLIE: usize = 2;
const DELTA: usize = 3;

fn prefix(text: &str) -> Prefix {
    text.parse().expect("a prefix")
}

fn route(path: &[u32], next_hop: [u8; 4]) -> Attributes {
    let path: Vec<Asn> = path.iter().copied().map(Asn).collect();
    let mut edit = Attributes::builder();
    edit.origin(Origin::Igp).as_path(AsPathBuf::from_sequence(&path).as_path());
    edit.ipv4_next_hop(next_hop.into());
    edit.finish()
}

/// The same with {65001 65002} at the end of its path.
fn with_set(route: Attributes) -> Attributes {
    let first: Vec<Asn> = route.as_path().asns().collect();
    let mut path = AsPathBuf::from_sequence(&first);
    path.push_segment(SegmentKind::Set, &[Asn(65001), Asn(65002)]);
    let mut edit = route.edit();
    edit.as_path(path.as_path());
    edit.finish()
}

fn why(exchange: &DemoExchange, member: usize, prefix: &str) -> Value {
    exchange.members[member].ask(&format!("/api/v1/why?prefix={prefix}")).unwrap_or(Value::Null)
}

/// Waits for a verdict on the only route to a prefix, or on the own router's.
fn says(exchange: &DemoExchange, member: usize, of: &str, prefix: &str, outcome: &str) -> Value {
    let mut last = Value::Null;
    let found = wait_until(TIMEOUT, || {
        last = why(exchange, member, prefix);
        let mut routes = last[of].as_array().into_iter().flatten();
        routes.find(|route| route["outcome"].as_str().is_some_and(|said| said.contains(outcome))).cloned()
    });
    found.unwrap_or_else(|| panic!("{prefix} at {member}, expected {outcome}: {last:#}"))
}

#[test]
fn every_verdict_carries_its_reason_its_rule_and_what_to_do() {
    let state = Path::new(env!("CARGO_TARGET_TMPDIR")).join("why");
    let _ = fs::remove_dir_all(&state);
    fs::create_dir_all(&state).expect("a folder");
    let layout = Layout::simulated(&state).expect("free ports");
    let mut exchange = DemoExchange::new(layout, Path::new(env!("CARGO_BIN_EXE_wayleave")), None).expect("files");
    let edit = |member: &str, from: &str, to: &str| {
        let path = exchange.files.member(member);
        let text = fs::read_to_string(&path).expect("a configuration");
        fs::write(&path, text.replacen(from, to, 1)).expect("written");
    };
    edit("bravo", "lab = true", "lab = false");
    let rule = "[[rule]]\ndirection = \"import\"\nprefix = \"20.1.0.0/16\"\nreject = true\n";
    edit("charlie", "[status]", &format!("{rule}[status]"));
    // It matches none of alpha's routes: the prefix is a longer one.
    let rule = "[[rule]]\ndirection = \"export\"\nprefix = \"20.1.0.0/17\"\nhide_from = 64499\n";
    edit("alpha", "[status]", &format!("{rule}[status]"));
    for party in &mut exchange.parties {
        party.role.start().expect("a party that starts");
    }
    for member in &mut exchange.members[..4] {
        member.role.start().expect("a member that starts");
        member.router.start().expect("a speaker");
    }
    let announced = ["203.0.113.0/24", "20.1.0.0/16"].map(|text| Announcement::of(prefix(text)));
    let hidden = Announcement::of(prefix("20.5.0.0/16")).with("0:64499".parse().expect("a community"));
    let routes = [announced.to_vec(), vec![hidden]].concat();
    exchange.announce("alpha", &routes).expect("taken");
    let of_delta = Routes::from([
        (prefix("20.2.0.0/16"), route(&[64500, 64497], [192, 0, 2, 4])),
        (prefix("0.0.0.0/0"), route(&[64500], [192, 0, 2, 4])),
        (prefix("20.5.0.0/16"), route(&[64500], [192, 0, 2, 4])),
        (prefix("20.6.0.0/16"), with_set(route(&[64500], [192, 0, 2, 4]))),
    ]);
    exchange.members[DELTA].router.pass_on(of_delta);

    for (member, of, at, outcome, rule, cure) in [
        (BRAVO, "routes", "203.0.113.0/24", "lies in 203.0.113.0/24", "RFC 5737", "`lab = true`"),
        (BRAVO, "routes", "20.1.0.0/16", "installed", "only route", "nothing"),
        (CHARLIE, "routes", "20.1.0.0/16", "your import rule 1 rejects it", "[[rule]] number 1", "`accept`"),
        (CHARLIE, "routes", "20.5.0.0/16", "sealed", "export policy", "ask the members"),
        (ALPHA, "routes", "20.2.0.0/16", "the path already has AS64497", "RFC 4271 section 9.1.2", "came back"),
        (
            ALPHA,
            "own",
            "20.1.0.0/16",
            "announced: both parties have it; slots that may open it: 5",
            "of your export rules none matches it",
            "nothing",
        ),
        (
            DELTA,
            "own",
            "0.0.0.0/0",
            "not announced, since no receiver would use it: 0.0.0.0/0",
            "RFC 7948",
            "export filter",
        ),
        (
            DELTA,
            "own",
            "20.6.0.0/16",
            "not announced, since no receiver would use it: the AS path has an AS_SET",
            "RFC 9774",
            "accept_as_set = true",
        ),
    ] {
        let found = says(&exchange, member, of, at, outcome);
        let has = |field: &str, word: &str| found[field].as_str().is_some_and(|said| said.contains(word));
        assert!(has("rule", rule) && has("cure", cure), "{at}: {rule}, {cure}: {found:#}");
    }
    let own = &says(&exchange, ALPHA, "own", "20.5.0.0/16", "hidden from AS64499 by its communities")["hidden_from"];
    assert_eq!(own, &json!([{ "asn": 64499, "why": "a community denies it to this AS" }]));
    // An own announcement that comes back sealed is no stranger's.
    let routes = why(&exchange, ALPHA, "20.5.0.0/16")["routes"].clone();
    let announcers: Vec<&Value> =
        routes.as_array().into_iter().flatten().map(|route| &route["announcer"]["name"]).collect();
    assert_eq!(announcers, ["delta"], "{routes:#}");
    let came_back = says(&exchange, ALPHA, "routes", "20.2.0.0/16", "already has");
    assert_eq!((&came_back["came_back"], &came_back["hops"]), (&json!(true), &Value::Null), "nobody is accused");
    assert_eq!(
        why(&exchange, ALPHA, "20.1.0.0/16")["summary"],
        "your own announcement; no other member exports a route for this prefix to you"
    );
    assert_eq!(why(&exchange, BRAVO, "20.9.0.0/16")["summary"], "no member exports a route for this prefix to you");

    // One shape for an announcer and a path, wherever they are shown.
    let announcer = json!({ "slot": 0, "name": "alpha", "asn": 64497 });
    let installed = says(&exchange, BRAVO, "routes", "20.1.0.0/16", "installed");
    let table = exchange.members[BRAVO].ask("/api/v1/routes").expect("a table");
    let row =
        table["routes"].as_array().into_iter().flatten().find(|row| row["prefix"] == "20.1.0.0/16").expect("a row");
    for route in [&installed, row] {
        assert_eq!((&route["announcer"], &route["as_path"]), (&announcer, &json!([64497])), "{route:#}");
    }
    let url = exchange.members[BRAVO].at.proxy.status.to_string();
    // An address stands for the longest prefix that has it, or for itself.
    let shown = exchange.files.tool(&["why", "20.1.7.9", "--url", &url]).expect("shown");
    assert!(shown.starts_with("20.1.0.0/16: ") && shown.contains("installed"), "{shown}");
    let shown = exchange.files.tool(&["why", "20.9.0.1", "--url", &url]).expect("shown");
    assert!(shown.starts_with("20.9.0.1/32: no member exports a route"), "{shown}");
    let party = exchange.parties[0].at.process.status.to_string();
    let said = exchange.files.tool(&["why", "20.1.0.0/16", "--url", &party]).expect_err("a party does not know");
    assert!(said.contains("this role does not show `why`") && said.contains("a party does not know"), "{said}");
    let shown = exchange.files.tool(&["why", "203.0.113.0/24", "--url", &url]).expect("shown");
    assert!(shown.contains("  from alpha (AS64497) path 64497: not used:"), "{shown}");
    assert!(shown.contains("    rule: RFC 5737") && shown.contains("    what to do: in a laboratory"), "{shown}");

    let url = exchange.members[DELTA].at.proxy.status.to_string();
    let shown = exchange.files.tool(&["why", "--announced", "0.0.0.0/0", "--url", &url]).expect("shown");
    assert!(shown.contains("  x prefix ") && shown.contains("  + first AS "), "{shown}");
    let status = exchange.members[DELTA].ask("/api/v1/status").expect("a status");
    let withheld = json!([
        { "prefix": "0.0.0.0/0", "why": "no receiver would use it: 0.0.0.0/0 is the default route" },
        { "prefix": "20.6.0.0/16", "why": "no receiver would use it: the AS path has an AS_SET, which names no order of ASes" },
    ]);
    assert_eq!((&status["not_announced"], &status["withheld"]), (&json!(2), &withheld), "{status:#}");

    // Without its router's session a route is chosen, and not installed.
    exchange.members[BRAVO].router.kill();
    says(
        &exchange,
        BRAVO,
        "routes",
        "20.1.0.0/16",
        "chosen, and not in your router: the BGP session with the router is down",
    );
}

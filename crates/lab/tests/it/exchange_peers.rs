//! The benchmark that gives the same routes, policies and outages to the private route server, to BIRD and to OpenBGPD.
//!
//! OPS, benchmarks, plain route servers: each member's table beside what follows from the routes and policies, prefix by prefix.
#![allow(clippy::disallowed_methods, reason = "a test starts the program")]

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use serde_json::Value;
use wayleave_lab::bench::exchange_peers::work::{OwnBest, Stage, Work};
use wayleave_lab::netns::{self, Rung};

const SERVERS: [&str; 3] = ["wayleave", "bird", "openbgpd"];
const MEMBERS: usize = 6;
const ROUTES: usize = 300;

/// What `exchange-peers` says with these further arguments.
fn run(more: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wayleave-lab"));
    command.args(["bench", "exchange-peers", "--json", "--members", &MEMBERS.to_string()]);
    command.args(["--routes", &ROUTES.to_string()]).args(more).stderr(Stdio::inherit());
    let output = command.output().expect("it runs");
    // It fails if a table is not as it is to be after any stage.
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).expect("one object")
}

fn values(report: &Value) -> BTreeMap<String, f64> {
    let results = report["results"].as_array().expect("results").iter();
    results
        .map(|result| {
            (result["name"].as_str().expect("a name").to_owned(), result["value"].as_f64().expect("a number"))
        })
        .collect()
}

/// Routes at these members once all tables are whole, and how many of them the reload changes.
fn expected(slots: impl Iterator<Item = u32> + Clone, own_best: OwnBest) -> (f64, f64) {
    let work = Work::new(MEMBERS, ROUTES);
    assert_eq!(work.routes, ROUTES);
    let tables = |stage| slots.clone().flat_map(move |slot| Work::new(MEMBERS, ROUTES).expected(slot, stage, own_best));
    let routes = tables(Stage::Whole).filter(|entry| *entry > 0).count();
    let changed = tables(Stage::Whole).zip(tables(Stage::Hidden)).filter(|(whole, hidden)| whole != hidden).count();
    (routes as f64, changed as f64)
}

#[test]
fn the_same_routes_reach_all_members_of_each_route_server() {
    if netns::detect().rung == Rung::Simulated {
        return netns::skipped("network namespaces are not available");
    }
    let report = run(&[]);
    let values = values(&report);
    let absent = report["params"]["absent"].as_object().expect("servers");
    for (server, why) in absent {
        netns::skipped(&format!("{server}: {why}"));
    }
    let (routes, changed) = expected(0..MEMBERS as u32, OwnBest::NextIsSent);
    assert!(changed > 0.0 && changed < routes, "{changed} of {routes}");
    for server in SERVERS.iter().filter(|server| !absent.contains_key(**server)) {
        for name in ["sessions", "table", "reload", "return", "memory"] {
            assert!(values[&format!("{name}.{server}")] > 0.0, "{name}.{server}");
        }
        assert_eq!(values[&format!("wrong.{server}")], 0.0, "{server}: {report}");
        let found = (values[&format!("routes.{server}")], values[&format!("reload.{server}.changed")]);
        match *server {
            // Where a member's own route is the best it sends most often none of the others.
            "openbgpd" => {
                assert!(found.0 <= routes && found.0 > 0.9 * routes && found.1 > 0.0, "{found:?} of {routes}")
            }
            _ => assert_eq!(found, (routes, changed), "{server}"),
        }
    }
    let compared = values.keys().filter(|name| name.ends_with(".ratio")).count();
    let others = SERVERS.iter().filter(|server| !absent.contains_key(**server) && **server != "bird").count();
    assert_eq!(compared, if absent.contains_key("bird") { 0 } else { others });
}

#[test]
fn beside_sinks_the_largest_member_and_two_others_have_their_whole_tables() {
    let report = run(&["--servers", "wayleave", "--sinks", "rank"]);
    let values = values(&report);
    let whole = [0, 1, MEMBERS as u32 - 1];
    let found = (values["routes.wayleave"], values["reload.wayleave.changed"]);
    assert_eq!(found, expected(whole.into_iter(), OwnBest::NextIsSent));
    assert_eq!(values["wrong.wayleave"], 0.0, "{report}");
    assert!(!values.keys().any(|name| name.contains("bird")), "only what was asked for");
}

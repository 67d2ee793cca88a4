//! Attesting proxies between real routers: what BIRD and FRR hold in their own tables.

#![allow(clippy::disallowed_methods, reason = "a test of the laboratory touches the world")]

use std::path::Path;
use std::time::Duration;

use wayleave_core::{Asn, Prefix};
use wayleave_lab::demo::internet::{Internet, Plan, Proxied};
use wayleave_lab::demo::layout::Software::{Bird, Frr};
use wayleave_lab::netns::{Network, enter_for_test};
use wayleave_lab::process::wait_until;
use wayleave_lab::routers::{default_cache, locate_or_fetch};

const PATIENCE: Duration = Duration::from_secs(60);

fn prefix(text: &str) -> Prefix {
    text.parse().expect("a prefix")
}

/// Thirty prefixes of 198.51.100.0/24.
fn thirty() -> Vec<Prefix> {
    (0..30).map(|n| prefix(&format!("198.51.100.{}/30", 4 * n))).collect()
}

/// Runs `plan`; `None` outside the namespaces, or where there are none.
fn internet(test: &str, plan: impl FnOnce() -> Plan) -> Option<Internet> {
    let routers = match locate_or_fetch(&default_cache(), &mut |line| eprintln!("{line}")) {
        Ok(routers) => routers,
        Err(error) => {
            wayleave_lab::netns::skipped(&error.to_string());
            return None;
        }
    };
    enter_for_test(test)?;
    let network = Network::new().expect("a network");
    let binary = Path::new(env!("CARGO_BIN_EXE_wayleave"));
    let mut internet = Internet::new(plan(), &network, 1, binary, &routers, "internet").expect("laid out");
    internet.start().expect("started");
    let mut missing = None;
    let up = wait_until(PATIENCE, || {
        missing = internet.first_missing();
        missing.is_none().then_some(())
    });
    up.unwrap_or_else(|| panic!("not up: {missing:?}\n{:?}", internet.dead()));
    Some(internet)
}

/// Waits until the router of `name` uses exactly these: prefix, AS path.
fn uses(internet: &mut Internet, name: &str, wanted: &[(Prefix, &[u32])]) {
    let wanted: Vec<(Prefix, Vec<Asn>)> =
        wanted.iter().map(|(prefix, path)| (*prefix, path.iter().map(|asn| Asn(*asn)).collect())).collect();
    let mut last = Vec::new();
    let found = wait_until(PATIENCE, || {
        let table = internet.site(name).best().expect("a table");
        last = table.into_iter().map(|route| (route.prefix, route.as_path)).collect();
        (last == wanted).then_some(())
    });
    found.unwrap_or_else(|| {
        let site = internet.site(name);
        let log = site.proxy.as_ref().map(|proxy| proxy.log_tail()).unwrap_or_default();
        panic!("{name} uses {last:?}\nnot {wanted:?}\n{log}")
    });
}

/// What the proxy of `name` says of a prefix.
fn why(internet: &mut Internet, name: &str, of: Prefix) -> serde_json::Value {
    internet.site(name).ask(&format!("/api/v1/why?prefix={of}")).expect("an answer")
}

#[test]
fn thirty_prefixes_signed_together_verify_after_a_router_sent_each_by_itself() {
    let plan = || {
        Plan::default()
            .attesting("golf", 64505, Bird, Proxied::strict(&[prefix("198.51.100.0/24")]))
            .attesting("hotel", 64506, Bird, Proxied::strict(&[]))
            .attesting("india", 64507, Frr, Proxied::strict(&[]))
            .link("golf", "hotel")
            .link("hotel", "india")
            .one_by_one(&thirty())
    };
    let test = "thirty_prefixes_signed_together_verify_after_a_router_sent_each_by_itself";
    let Some(mut internet) = internet(test, plan) else { return };
    internet.announce("golf", &thirty()).expect("announced");
    let wanted: Vec<(Prefix, &[u32])> = thirty().into_iter().map(|prefix| (prefix, &[64506, 64505][..])).collect();
    uses(&mut internet, "india", &wanted);
    let status = internet.site("india").ask("/api/v1/status").expect("an answer");
    eprintln!("{status:#}");
    eprintln!("{:#}", why(&mut internet, "india", thirty()[7]));
    assert_eq!(status["classes"]["valid"], 30);
}

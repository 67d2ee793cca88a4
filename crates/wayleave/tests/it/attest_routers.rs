//! Attesting proxies between real routers: what BIRD and FRR hold in their own tables.
//!
//! KCX-07: the attribute stripped, through real BIRD: refused, set aside by local preference, or used, as the origin's
//! record says.
//! KCX-10: a legacy FRR in the middle, with re-anchoring: a gap at that AS, all else proved; no private key is in the
//! octets on its links.
//! BGP-12: an attested UPDATE above 4,096 octets to BIRD, which keeps 1,024 for itself: sent with a smaller suite, or
//! not at all.

use std::path::Path;
use std::time::Duration;

use wayleave_attestation::chain::TYPE_CODE;
use wayleave_bgp::LargeCommunity;
use wayleave_core::{Asn, Prefix};
use wayleave_lab::demo::forge;
use wayleave_lab::demo::internet::{Internet, OriginPolicy, Plan, ProxyPlan, Testbed};
use wayleave_lab::demo::layout::Software::{Bird, Frr};
use wayleave_lab::netns::{Network, enter_for_test};
use wayleave_lab::process::wait_until;
use wayleave_lab::routers::{default_cache, locate_or_fetch};
use wayleave_lab::speaker::Routes;

const TIMEOUT: Duration = Duration::from_secs(60);

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
    enter_for_test(&format!("attest_routers::{test}"))?;
    let network = Network::new().expect("a network");
    let binary = Path::new(env!("CARGO_BIN_EXE_wayleave"));
    let mut internet =
        Internet::new(plan(), Testbed::Lan(&network, &routers, 1), binary, "internet").expect("laid out");
    internet.start().expect("started");
    let mut missing = None;
    let up = wait_until(TIMEOUT, || {
        missing = internet.first_missing();
        missing.is_none().then_some(())
    });
    up.unwrap_or_else(|| panic!("not up: {missing:?}\n{:?}", internet.exited()));
    Some(internet)
}

/// Waits until the router of `name` uses exactly these: prefix, AS path.
fn uses(internet: &mut Internet, name: &str, wanted: &[(Prefix, &[u32])]) {
    let wanted: Vec<(Prefix, Vec<Asn>)> =
        wanted.iter().map(|(prefix, path)| (*prefix, path.iter().map(|asn| Asn(*asn)).collect())).collect();
    let mut last = Vec::new();
    let found = wait_until(TIMEOUT, || {
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
            .attesting("golf", 64505, Bird, ProxyPlan::strict(&[prefix("198.51.100.0/24")]))
            .attesting("hotel", 64506, Bird, ProxyPlan::strict(&[]))
            .attesting("india", 64507, Frr, ProxyPlan::strict(&[]))
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
    assert_eq!(status["classes"]["valid"], 30);
}

/// The classes of the routes to a prefix that came to the proxy of `name` from outside, once none waits.
fn classes(internet: &mut Internet, name: &str, of: Prefix) -> Vec<String> {
    // A router may tell its neighbour the neighbour's own route; that is a loop and no lie.
    let own = internet.site(name).plan.asn.0;
    let is_loop =
        |route: &serde_json::Value| route["as_path"].as_array().is_some_and(|path| path.iter().any(|asn| *asn == own));
    let answer = wait_until(TIMEOUT, || {
        let why = why(internet, name, of);
        let routes: Vec<_> = why["routes"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|route| route["direction"] == "in" && !is_loop(route))
            .cloned()
            .collect();
        let waits = routes.is_empty() || routes.iter().any(|route| route["outcome"] == "waits to be validated");
        (!waits).then_some(routes)
    });
    let routes = answer.unwrap_or_else(|| panic!("{name} knows of no route to {of}"));
    routes.iter().map(|route| route["class"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Waits until the proxy of `name` has a route to `of` of each of these classes.
fn has_classes(internet: &mut Internet, name: &str, of: Prefix, wanted: &[&str]) {
    let mut last = Vec::new();
    let found = wait_until(TIMEOUT, || {
        last = classes(internet, name, of);
        last.sort();
        (last == wanted).then_some(())
    });
    found.unwrap_or_else(|| panic!("{name}, {of}: {last:?}, not {wanted:?}\n{:#}", why(internet, name, of)));
}

#[test]
fn routes_received_at_one_border_router_are_signed_at_the_other() {
    let plan = || {
        let other = ProxyPlan { key_of: Some("west".to_owned()), ..ProxyPlan::strict(&[]) };
        Plan::default()
            .attesting("golf", 64505, Bird, ProxyPlan::strict(&[prefix("198.51.100.0/24")]))
            .attesting("west", 64506, Bird, ProxyPlan::strict(&[]))
            .attesting("east", 64506, Frr, other)
            .attesting("india", 64507, Bird, ProxyPlan::strict(&[]))
            .link("golf", "west")
            .link("west", "east")
            .link("east", "india")
    };
    let Some(mut internet) = internet("routes_received_at_one_border_router_are_signed_at_the_other", plan) else {
        return;
    };
    let route = prefix("198.51.100.0/24");
    internet.announce("golf", &[route]).expect("announced");
    uses(&mut internet, "east", &[(route, &[64505])]);
    uses(&mut internet, "india", &[(route, &[64506, 64505])]);
    has_classes(&mut internet, "india", route, &["valid"]);
    let hops = why(&mut internet, "india", route)["routes"][0]["hops"].clone();
    assert_eq!(hops.as_array().map(Vec::len), Some(2), "{hops:#}");
    assert!(hops.as_array().into_iter().flatten().all(|hop| hop["proved"] == true), "{hops:#}");
}

#[test]
fn a_legacy_router_carries_the_chain_and_receives_no_secret() {
    let plan = || {
        Plan::default()
            .attesting("golf", 64505, Bird, ProxyPlan::strict(&[prefix("198.51.100.0/24")]))
            .attesting("hotel", 64506, Frr, ProxyPlan::strict(&[]))
            .legacy("india", 64507, Frr)
            .attesting("juliet", 64508, Bird, ProxyPlan::strict(&[]))
            .attesting("kilo", 64509, Frr, ProxyPlan::strict(&[]))
            .link("golf", "hotel")
            .link("hotel", "india")
            .tapped()
            .link("india", "juliet")
            .tapped()
            .link("juliet", "kilo")
    };
    let test = "a_legacy_router_carries_the_chain_and_receives_no_secret";
    let Some(mut internet) = internet(test, plan) else { return };
    let route = prefix("198.51.100.0/24");
    internet.announce("golf", &[route]).expect("announced");
    uses(&mut internet, "kilo", &[(route, &[64508, 64507, 64506, 64505])]);
    has_classes(&mut internet, "juliet", route, &["gap"]);
    has_classes(&mut internet, "kilo", route, &["gap"]);
    let why = why(&mut internet, "kilo", route);
    let hops = why["routes"][0]["hops"].as_array().cloned().unwrap_or_default();
    let proved: Vec<bool> = hops.iter().map(|hop| hop["proved"] == true).collect();
    assert_eq!(proved, [true, true, false, true], "golf, hotel, not india, juliet: {why:#}");
    assert_eq!(internet.taps.len(), 2);
    for tap in &internet.taps {
        assert!(tap.octets() > 500, "{} octets", tap.octets());
        let carried: usize = [0xc0, 0xd0, 0xe0, 0xf0].iter().map(|flags| tap.count(&[*flags, TYPE_CODE])).sum();
        assert!(carried > 0, "the attribute passes this link");
        for site in ["golf", "hotel", "juliet", "kilo"] {
            let secrets = forge::secrets(&internet.folder.join(format!("{site}.key"))).expect("a key file");
            assert_eq!(secrets.len(), 2, "one seed, as octets and spelt");
            let heard: usize = secrets.iter().map(|secret| tap.count(secret)).sum();
            assert_eq!(heard, 0, "{site}'s private key on a link to a router without attestations");
        }
    }
}

#[test]
fn a_missing_attestation_is_treated_as_the_origins_record_states() {
    let tag: LargeCommunity = "64508:1:3".parse().expect("a large community");
    let plan = || {
        let of = |text: &str, since| ProxyPlan { since, ..ProxyPlan::strict(&[prefix(text)]) };
        let judge =
            ProxyPlan { policy: format!("missing = {{ large_community = \"{tag}\" }}\n"), ..ProxyPlan::strict(&[]) };
        Plan::default()
            .attesting("golf", 64505, Bird, of("198.51.100.0/26", OriginPolicy::Strict))
            .attesting("hotel", 64506, Bird, of("198.51.100.64/26", OriginPolicy::Prefer))
            .attesting("india", 64507, Bird, of("198.51.100.128/26", OriginPolicy::Unlisted))
            .attesting("juliet", 64508, Bird, judge)
            .link("golf", "hotel")
            .link("hotel", "india")
            .link("india", "golf")
            .link("golf", "juliet")
            .injector("mallory", 64511, "juliet")
            .lowering("juliet", tag)
    };
    let Some(mut internet) = internet("a_missing_attestation_is_treated_as_the_origins_record_states", plan) else {
        return;
    };
    let [strict, prefer, unlisted] = ["198.51.100.0/26", "198.51.100.64/26", "198.51.100.128/26"].map(prefix);
    let mallory = internet.injector("mallory").identity.clone();
    let stripped = [(strict, 64505), (prefer, 64506), (unlisted, 64507)]
        .map(|(prefix, origin)| (prefix, forge::route(&mallory, &[Asn(64511), Asn(origin)], None)));
    internet.injector("mallory").start().announce(Routes::from(stripped));
    has_classes(&mut internet, "juliet", strict, &["invalid"]);
    has_classes(&mut internet, "juliet", prefer, &["missing"]);
    has_classes(&mut internet, "juliet", unlisted, &["unattested"]);
    uses(&mut internet, "juliet", &[(prefer, &[64511, 64506]), (unlisted, &[64511, 64507])]);
    let table = internet.site("juliet").best().expect("a table");
    let tagged: Vec<bool> = table.iter().map(|route| route.large_communities.contains(&tag)).collect();
    assert_eq!(tagged, [true, false], "the missing one is marked, the unlisted one is not");

    // The real routes come, as long or longer; a lower local preference sets the stripped one aside.
    internet.announce("golf", &[strict]).expect("announced");
    internet.announce("hotel", &[prefer]).expect("announced");
    uses(&mut internet, "juliet", &[(strict, &[64505]), (prefer, &[64505, 64506]), (unlisted, &[64511, 64507])]);
    has_classes(&mut internet, "juliet", prefer, &["missing", "valid"]);
}

/// Golf behind hotel behind india, all attesting; mallory is india's neighbour.
fn with_mallory() -> Plan {
    Plan::default()
        .attesting("golf", 64505, Frr, ProxyPlan::strict(&[prefix("198.51.100.0/24")]))
        .attesting("hotel", 64506, Bird, ProxyPlan::strict(&[]))
        .attesting("india", 64507, Frr, ProxyPlan::strict(&[]))
        .link("golf", "hotel")
        .link("hotel", "india")
        .injector("mallory", 64511, "india")
}

#[test]
fn a_forged_path_shorter_than_the_real_one_is_not_used() {
    let plan = || {
        with_mallory()
            .attesting("juliet", 64508, Bird, ProxyPlan::strict(&[]))
            .link("hotel", "juliet")
            .link("juliet", "india")
    };
    let Some(mut internet) = internet("a_forged_path_shorter_than_the_real_one_is_not_used", plan) else { return };
    let route = prefix("198.51.100.0/24");
    internet.announce("golf", &[route]).expect("announced");
    uses(&mut internet, "india", &[(route, &[64506, 64505])]);
    let mallory = internet.injector("mallory");
    let identity = mallory.identity.clone();
    let speaker = mallory.start();
    let heard = wait_until(TIMEOUT, || speaker.learned().get(&route).and_then(forge::attestation));
    let copied = heard.expect("an attested route");
    // By mallory alone, next to golf; then as if golf were mallory; then golf's own signature cut from its path.
    let one_hop = copied.len() / 3;
    for (path, value) in [
        (vec![64511, 64505], Some(copied.as_slice())),
        (vec![64511], Some(copied.as_slice())),
        (vec![64511, 64505], None),
        (vec![64511, 64505], Some(&copied[..one_hop])),
        (vec![64511], None),
    ] {
        let path: Vec<Asn> = path.into_iter().map(Asn).collect();
        internet.injector("mallory").start().announce(Routes::from([(route, forge::route(&identity, &path, value))]));
        let refused = wait_until(TIMEOUT, || {
            let why = why(&mut internet, "india", route);
            let mut routes = why["routes"].as_array().cloned().unwrap_or_default().into_iter();
            let from_mallory = routes.find(|route| route["pair"] == "mallory" && route["direction"] == "in")?;
            let is_it = from_mallory["as_path"].as_array().map(Vec::len) == Some(path.len());
            let class = from_mallory["class"].as_str()?.to_owned();
            (is_it && matches!(class.as_str(), "invalid" | "malformed")).then_some(class)
        });
        assert!(refused.is_some(), "{path:?}: {:#}", why(&mut internet, "india", route));
        uses(&mut internet, "india", &[(route, &[64506, 64505])]);
    }
}

#[test]
fn an_expired_attestation_is_refused_and_the_same_one_in_time_is_not() {
    let test = "an_expired_attestation_is_refused_and_the_same_one_in_time_is_not";
    let Some(mut internet) = internet(test, with_mallory) else { return };
    let lent = prefix("198.51.100.128/25");
    let key = internet.folder.join("golf.key");
    let identity = internet.injector("mallory").identity.clone();
    for (ago, class) in [(60, "gap"), (3 * 3600, "expired"), (120, "gap")] {
        let value = forge::attest(&key, Asn(64505), lent, Asn(64511), Duration::from_secs(ago)).expect("signed");
        let route = forge::route(&identity, &[Asn(64511), Asn(64505)], Some(&value));
        internet.injector("mallory").start().announce(Routes::from([(lent, route)]));
        has_classes(&mut internet, "india", lent, &[class]);
        let expected: &[(Prefix, &[u32])] = if class == "gap" { &[(lent, &[64511, 64505])] } else { &[] };
        uses(&mut internet, "india", expected);
    }
}

/// Lengths of the BGP messages in what was said in one direction of a connection.
fn lengths(said: &[u8]) -> Vec<usize> {
    let mut rest = said;
    let mut lengths = Vec::new();
    while let Some(length) = rest.get(16..18) {
        let length = usize::from(length[0]) << 8 | usize::from(length[1]);
        lengths.push(length);
        rest = rest.get(length..).unwrap_or_default();
    }
    lengths
}

/// Four ASes that sign with RSA, one after the other, and at the end a BIRD that takes 4,096 octets and no more.
fn long_chain(last: &[&str]) -> Plan {
    let rsa = |suites: &[&str]| ProxyPlan {
        suites: suites.iter().map(|suite| (*suite).to_owned()).collect(),
        ..ProxyPlan::strict(&[prefix("198.51.100.0/24")])
    };
    Plan::default()
        .attesting("golf", 64505, Bird, rsa(&["kc-rsa"]))
        .attesting("hotel", 64506, Bird, rsa(&["kc-rsa"]))
        .attesting("india", 64507, Bird, rsa(&["kc-rsa"]))
        .attesting("juliet", 64508, Bird, rsa(last))
        .legacy("kilo", 64509, Bird)
        .link("golf", "hotel")
        .link("hotel", "india")
        .link("india", "juliet")
        .link("juliet", "kilo")
        .tapped()
        .short_messages()
}

fn longest(internet: &Internet) -> usize {
    internet.taps.iter().flat_map(|tap| tap.recorded()).flat_map(|octets| lengths(&octets)).max().unwrap_or(0)
}

#[test]
fn an_attestation_too_long_for_a_bird_is_not_sent() {
    let plan = || long_chain(&["kc-rsa"]);
    let Some(mut internet) = internet("an_attestation_too_long_for_a_bird_is_not_sent", plan) else { return };
    let route = prefix("198.51.100.0/24");
    internet.announce("golf", &[route]).expect("announced");
    uses(&mut internet, "juliet", &[(route, &[64507, 64506, 64505])]);
    let counted = wait_until(TIMEOUT, || {
        let status = internet.site("juliet").ask("/api/v1/status").expect("an answer");
        (status["counts"]["too_long"].as_u64() > Some(0)).then_some(())
    });
    assert!(counted.is_some(), "{:#}", why(&mut internet, "juliet", route));
    uses(&mut internet, "kilo", &[]);
    assert!(longest(&internet) <= 4096, "{} octets in one message", longest(&internet));
    assert!(internet.first_missing().is_none(), "every session stands");
}

#[test]
fn a_smaller_suite_is_used_where_the_preferred_one_is_too_long_for_a_bird() {
    let plan = || long_chain(&["kc-rsa", "kc-ed25519"]);
    let test = "a_smaller_suite_is_used_where_the_preferred_one_is_too_long_for_a_bird";
    let Some(mut internet) = internet(test, plan) else { return };
    let route = prefix("198.51.100.0/24");
    internet.announce("golf", &[route]).expect("announced");
    uses(&mut internet, "kilo", &[(route, &[64508, 64507, 64506, 64505])]);
    let status = internet.site("juliet").ask("/api/v1/status").expect("an answer");
    assert!(status["counts"]["smaller"].as_u64() > Some(0), "{status:#}");
    let longest = longest(&internet);
    assert!((1000..=4096).contains(&longest), "{longest} octets in the longest message");
}

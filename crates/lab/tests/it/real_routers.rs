//! Real BIRD and FRR exchange routes in namespaces, without an exchange between them.

#![allow(clippy::disallowed_methods, reason = "a test of the laboratory does I/O")]

use std::net::Ipv4Addr;
use std::time::Instant;

use wayleave_bgp::{Community, LargeCommunity};
use wayleave_core::{Asn, Prefix};
use wayleave_lab::bird::Bird;
use wayleave_lab::frr::Frr;
use wayleave_lab::gobgp::Gobgp;
use wayleave_lab::netns::{Network, Rung, enter_for_test, inside, skipped};
use wayleave_lab::openbgpd::OpenBgpd;
use wayleave_lab::process::wait_until;
use wayleave_lab::routers::{
    BIRD_3, FRR, GOBGP, OPENBGPD, TRIXIE, default_cache, fetch_from, fetched_from, locate_or_fetch_router,
};
use wayleave_lab::speaker::SpeakingRouter;
use wayleave_lab::table::{Announcement, LearnedRoute, Peering, Router};

use crate::common::routers::{ROUTER_TIMEOUT, routers};

fn prefix(text: &str) -> Prefix {
    text.parse().expect("a prefix")
}

fn peering(name: &str, host: u8, peer_host: u8) -> Peering {
    let address = |host| Ipv4Addr::new(192, 0, 2, host);
    let asn = |host: u8| Asn(64496 + u32::from(host));
    let name = name.to_owned();
    Peering {
        name,
        asn: asn(host),
        address: address(host),
        peer_asn: asn(peer_host),
        peer_address: address(peer_host),
        customer: None,
    }
}

fn addresses(host: u8) -> [String; 2] {
    [format!("192.0.2.{host}/24"), format!("2001:db8::{host}/64")]
}

/// Waits until `router` has learned exactly `prefixes` and uses them.
fn learns(router: &mut dyn Router, prefixes: &[&str]) -> Vec<LearnedRoute> {
    let wanted: Vec<Prefix> = prefixes.iter().map(|text| prefix(text)).collect();
    let mut last = Vec::new();
    let found = wait_until(ROUTER_TIMEOUT, || {
        last = router.table().expect("a table");
        let used = last.iter().filter(|route| route.best).map(|route| route.prefix);
        (used.collect::<Vec<_>>() == wanted).then(|| last.clone())
    });
    found.unwrap_or_else(|| panic!("{} has {last:#?}\n{}", router.name(), router.log_tail()))
}

/// Both routers announce, change and withdraw, and each reads it in its own table.
fn exchange_routes(left: &mut dyn Router, right: &mut dyn Router) {
    let marked = Announcement::of(prefix("203.0.113.0/25"))
        .with(Community::new(0, 64500))
        .with_large(LargeCommunity::new(64496, 0, 64500));
    left.announce(&[marked.clone(), Announcement::of(prefix("2001:db8:1::/48"))]).expect("announced");
    right.announce(&[Announcement::of(prefix("198.51.100.0/24"))]).expect("announced");
    left.start().expect("left starts");
    right.start().expect("right starts");

    let got = learns(right, &["203.0.113.0/25", "2001:db8:1::/48"]);
    assert_eq!(got[0].communities, marked.communities);
    assert_eq!(got[0].large_communities, marked.large_communities);
    assert_eq!(got[0].as_path, [Asn(64497)]);
    assert_eq!(got[0].next_hop, Some(Ipv4Addr::new(192, 0, 2, 1).into()));
    assert_eq!(got[1].next_hop, Some("2001:db8::1".parse().expect("an address")));
    assert_eq!(learns(left, &["198.51.100.0/24"])[0].as_path, [Asn(64498)]);
    assert!(left.is_established().expect("an answer") && right.is_established().expect("an answer"));

    left.announce(&[Announcement::of(prefix("203.0.113.0/25")), Announcement::of(prefix("203.0.113.128/25"))])
        .expect("announced at run time");
    learns(right, &["203.0.113.0/25", "203.0.113.128/25"]);
    let unmarked =
        wait_until(ROUTER_TIMEOUT, || right.table().expect("a table")[0].communities.is_empty().then_some(()));
    assert!(unmarked.is_some(), "the communities went with the change");
    assert!(right.show(prefix("203.0.113.0/25")).expect("shown").contains("64497"));
    right.announce(&[]).expect("withdrawn");
    learns(left, &[]);
    left.kill();
    learns(right, &[]);
}

#[test]
fn two_birds_exchange_routes() {
    let Some(routers) = routers() else { return };
    if enter_for_test("real_routers::two_birds_exchange_routes").is_none() {
        return;
    }
    let network = Network::new().expect("a network");
    let places = [1, 2].map(|host| network.attach(&format!("r{host}"), &addresses(host)).expect("attached"));
    let [left_place, right_place] = places;
    let mut left = Bird::new(&routers.bird, left_place, peering("left", 1, 2), network.state());
    let mut right = Bird::new(&routers.bird, right_place, peering("right", 2, 1), network.state());
    exchange_routes(&mut left, &mut right);
}

#[test]
fn a_bird_and_an_frr_exchange_routes_both_ways() {
    let Some(routers) = routers() else { return };
    if enter_for_test("real_routers::a_bird_and_an_frr_exchange_routes_both_ways").is_none() {
        return;
    }
    let started = Instant::now();
    let network = Network::new().expect("a network");
    let places = [1, 2].map(|host| network.attach(&format!("r{host}"), &addresses(host)).expect("attached"));
    let [left_place, right_place] = places;
    let mut bird = Bird::new(&routers.bird, left_place.clone(), peering("left", 1, 2), network.state());
    let mut frr = Frr::new(&routers.frr, right_place.clone(), peering("right", 2, 1), network.state());
    exchange_routes(&mut bird, &mut frr);
    frr.kill();
    let mut frr = Frr::new(&routers.frr, left_place, peering("left", 1, 2), network.state());
    let mut bird = Bird::new(&routers.bird, right_place, peering("right", 2, 1), network.state());
    exchange_routes(&mut frr, &mut bird);
    eprintln!("both ways in {:.1} s", started.elapsed().as_secs_f64());
}

#[test]
#[ignore = "fetches BIRD 3 and FRR 10 with their libraries from another release"]
fn a_bird_3_and_an_frr_10_exchange_routes() {
    let cache = default_cache();
    for package in [&BIRD_3, &FRR] {
        if inside().is_none()
            && let Err(error) = fetch_from(&TRIXIE, package, &cache, &mut |line| eprintln!("{line}"))
        {
            return skipped(&format!("{} of {}: {error}", package.name, TRIXIE.name));
        }
    }
    if enter_for_test("real_routers::a_bird_3_and_an_frr_10_exchange_routes").is_none() {
        return;
    }
    let [bird, frr] = [&BIRD_3, &FRR].map(|package| fetched_from(&TRIXIE, package, &cache).expect("it is there"));
    assert!(bird.version.starts_with("3.") && frr.version.starts_with("10."), "{} {}", bird.version, frr.version);
    let network = Network::new().expect("a network");
    let places = [1, 2].map(|host| network.attach(&format!("r{host}"), &addresses(host)).expect("attached"));
    let [left_place, right_place] = places;
    let mut left = Bird::new(&bird, left_place, peering("left", 1, 2), network.state());
    let mut right = Frr::new(&frr, right_place, peering("right", 2, 1), network.state());
    exchange_routes(&mut left, &mut right);
}

/// What these two are told and say, without a proxy.
#[test]
fn a_gobgp_and_an_openbgpd_exchange_routes() {
    let test = "real_routers::a_gobgp_and_an_openbgpd_exchange_routes";
    let mut found = Vec::new();
    for package in [&GOBGP, &OPENBGPD] {
        match locate_or_fetch_router(package, &default_cache(), &mut |line| eprintln!("{line}")) {
            Ok(installation) => found.push(installation),
            Err(error) => return skipped(&error.to_string()),
        }
    }
    match enter_for_test(test) {
        None => return,
        Some(Rung::Root) => {}
        Some(_) => return skipped("OpenBGPD runs as root alone"),
    }
    let network = Network::new().expect("a network");
    let places = [1, 2].map(|host| network.attach(&format!("r{host}"), &addresses(host)).expect("attached"));
    let [left_place, right_place] = places;
    let mut left = Gobgp::new(&found[0], left_place, peering("left", 1, 2), network.state());
    let mut right = OpenBgpd::new(&found[1], right_place, peering("right", 2, 1), network.state());
    exchange_routes(&mut left, &mut right);
}

#[test]
fn a_speaker_of_ours_and_a_bird_exchange_routes() {
    let Some(routers) = routers() else { return };
    if enter_for_test("real_routers::a_speaker_of_ours_and_a_bird_exchange_routes").is_none() {
        return;
    }
    let network = Network::new().expect("a network");
    let places = [1, 2].map(|host| network.attach(&format!("r{host}"), &addresses(host)).expect("attached"));
    let [left_place, right_place] = places;
    let mut left = SpeakingRouter::new(left_place, &peering("left", 1, 2), 179);
    let mut right = Bird::new(&routers.bird, right_place, peering("right", 2, 1), network.state());
    exchange_routes(&mut left, &mut right);
}

//! What a route server checks, and what communities ask of it, held against BIRD with the same rules: a real BIRD as a route server, and
//! the functions that members' proxies call, not their processes or the parties, for 10,000 generated routes and for a table that was
//! recorded. Every difference has a cause that is listed, and every cause occurs.
//!
//! Held are: lengths of prefixes and paths, special-purpose prefixes, next hop, first AS, AS_SET, reserved and transit-free ASes, origins by
//! the RPKI (RFC 6811), roles (RFC 9234), BLACKHOLE, who may have a route, and what receivers get (hops, NO_EXPORT, NO_ADVERTISE, which
//! communities go). Not held: lists of the registries (IRR), ASPA, prefix limits, rules of a member's policy, and which route is best.

#![allow(clippy::disallowed_methods, reason = "a test of the laboratory does I/O")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use wayleave_bgp::origins::Vrp;
use wayleave_bgp::{AsPathBuf, Attributes, Community, Origin};
use wayleave_core::{Afi, Asn, Prefix};
use wayleave_lab::bird::Bird;
use wayleave_lab::netns::{Network, enter_for_test};
use wayleave_lab::process::wait_until;
use wayleave_lab::speaker::{Identity, Speaker, routes_of_mrt};
use wayleave_lab::table::Router;

use crate::common::routers::{ROUTER_TIMEOUT, routers};

mod differences;
mod filter;
mod routes;

use differences::{Difference, Differences, Ours, compare};
use routes::{ANNOUNCERS, Dice, RECEIVERS, RS, Route, Routes, generate, lan4, lan6, members};

/// Who is sent everything, with the reasons.
const WATCHER: Asn = Asn(1_300);
const GENERATED: usize = 10_000;
const RECORDED: usize = 4_000;
const TABLE: &str = "ris.2015-10-23.first-50000-prefixes.updates.bz2";

/// BIRD as a route server, and its members' speakers: announcers, receivers, the watcher.
struct Exchange {
    bird: Bird,
    speakers: Vec<Speaker>,
    /// How often something was announced.
    rounds: u8,
}

impl Exchange {
    fn start(network: &Network, bird: &wayleave_lab::routers::Installation, vrps: &[Vrp]) -> Self {
        let address = Ipv4Addr::new(192, 0, 2, 1);
        let session = |place, asn: Asn| format!("local {address} as {}; neighbor {} as {};", RS.0, lan4(place), asn.0);
        let text = filter::configuration(vrps, WATCHER, &session);
        let at = |name: &str, last: u8| {
            let addresses = [format!("192.0.2.{last}/24"), format!("2001:db8::{last}/64")];
            network.attach(name, &addresses).expect("attached")
        };
        let mut bird = Bird::with_text(bird, at("rs", 1), "rs", text, network.state());
        bird.start().expect("BIRD takes its configuration");
        let all = ANNOUNCERS.into_iter().chain(RECEIVERS).chain([WATCHER]).enumerate();
        let speaker = |(place, asn): (usize, Asn)| {
            let (name, peer) = (format!("as{}", asn.0), (address, 179).into());
            let place_name = at(&name, 11 + place as u8);
            let identity = Identity { name, asn, address: lan4(place), address6: lan6(place), peer_asn: RS, peer };
            Speaker::start(identity, place_name)
        };
        Self { bird, speakers: all.map(speaker).collect(), rounds: 0 }
    }

    /// Announces these routes, and no others, and returns what the watcher and the receivers have once BIRD has sent all.
    fn announce(&mut self, routes: &Routes, dropped: &BTreeSet<Prefix>) -> [BTreeMap<Prefix, Attributes>; 3] {
        let mut by_speaker: [wayleave_lab::speaker::Routes; 3] = Default::default();
        for (prefix, route) in routes {
            by_speaker[route.announcer].insert(*prefix, route.attributes.clone());
        }
        for (speaker, routes) in self.speakers.iter().zip(&by_speaker) {
            speaker.announce(routes.clone());
        }
        let watcher = &self.speakers[5];
        let has_all = || {
            let learned = watcher.learned();
            routes.keys().all(|prefix| learned.contains_key(prefix) || dropped.contains(prefix)).then_some(())
        };
        assert!(wait_until(ROUTER_TIMEOUT, has_all).is_some(), "{}\n{}", self.state(), self.bird.log_tail());
        // BIRD has taken everything: what comes now leaves after it, with attributes of its own.
        self.rounds += 1;
        let last = |place: usize| -> Prefix { format!("8.8.{place}.0/24").parse().expect("a prefix") };
        for (place, routes) in by_speaker.iter_mut().enumerate() {
            let mut edit = Attributes::builder();
            edit.origin(Origin::Igp).as_path(AsPathBuf::from_sequence(&[ANNOUNCERS[place]]).as_path());
            edit.ipv4_next_hop(lan4(place)).communities(&[Community::new(1_101, 1_000 + u16::from(self.rounds))]);
            routes.insert(last(place), edit.finish());
            self.speakers[place].announce(routes.clone());
        }
        let is_last = |attributes: &Attributes| {
            attributes.communities().any(|community| community.lower() == 1_000 + u16::from(self.rounds))
        };
        let all = wait_until(ROUTER_TIMEOUT, || {
            let learned = [5, 3, 4].map(|place: usize| self.speakers[place].learned());
            let whole =
                learned.iter().all(|learned| (0..3).all(|place| learned.get(&last(place)).is_some_and(is_last)));
            whole.then_some(learned)
        });
        all.unwrap_or_else(|| panic!("{}\n{}", self.state(), self.bird.log_tail()))
    }

    fn state(&self) -> String {
        let state = |speaker: &Speaker| format!("{}, {}", speaker.learned().len(), speaker.last_failure());
        self.speakers.iter().map(state).collect::<Vec<_>>().join("; ")
    }
}

/// Routes of a table that was recorded, a third for each announcer, and VRPs for some.
fn recorded() -> (Routes, Vec<Vrp>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/bgp").join(TABLE);
    let mut dice = Dice(7);
    let (mut routes, mut vrps) = (Routes::new(), Vec::new());
    for (announcer, asn) in ANNOUNCERS.into_iter().enumerate() {
        let peer = (Ipv4Addr::LOCALHOST, 179).into();
        let identity = Identity {
            name: String::new(),
            asn,
            address: lan4(announcer),
            address6: lan6(announcer),
            peer_asn: RS,
            peer,
        };
        // The same prefixes for each, of which it takes a third.
        let all = routes_of_mrt(&path, &identity, RECORDED, &[RS]).expect("a table");
        for (number, (prefix, attributes)) in all.into_iter().enumerate() {
            if number % 3 != announcer {
                continue;
            }
            if let Some(origin) = attributes.as_path().origin_asn() {
                let other = Asn(9_998);
                match dice.below(9) {
                    0 | 1 => vrps.push(Vrp { prefix, max_length: prefix.len(), asn: origin }),
                    2 => vrps.push(Vrp { prefix, max_length: prefix.len(), asn: other }),
                    _ => {}
                }
            }
            routes.insert(prefix, Route { announcer, attributes });
        }
    }
    (routes, vrps)
}

#[test]
fn checks_and_communities_of_ten_thousand_routes_and_a_table_differ_from_birds_only_where_it_is_said() {
    let Some(routers) = routers() else { return };
    let test = "held_against_bird::checks_and_communities_of_ten_thousand_routes_and_a_table_differ_from_birds_only_where_it_is_said";
    if enter_for_test(test).is_none() {
        return;
    }
    let (generated, vrps) = generate(40, GENERATED);
    let (table, more) = recorded();
    assert!(table.len() > RECORDED / 2 && table.keys().any(|prefix| prefix.afi() == Afi::Ipv4));
    let all: Vec<Vrp> = vrps.into_iter().chain(more).collect();
    let (members, vrps) = (members(), all.iter().copied().collect());
    let ours = Ours { members: &members, vrps: &vrps };
    let network = Network::new().expect("a network");
    let mut exchange = Exchange::start(&network, &routers.bird, &all);
    let is_up =
        wait_until(Duration::from_secs(30), || exchange.speakers.iter().all(Speaker::is_established).then_some(()));
    assert!(is_up.is_some(), "{}\n{}", exchange.state(), exchange.bird.log_tail());

    let mut run = |name: &str, routes: &Routes| -> Differences {
        let dropped = ours.dropped(routes);
        let [in_table, first, second] = exchange.announce(routes, &dropped);
        let (differences, unexplained) = compare(&ours, routes, &in_table, [&first, &second]);
        println!(
            "{name}: {} routes to two receivers, accepted {} and {}; {differences:?}",
            routes.len(),
            first.len(),
            second.len()
        );
        assert!(
            unexplained.is_empty(),
            "{name}: {} unexplained:\n{}",
            unexplained.len(),
            unexplained[..unexplained.len().min(8)].join("\n")
        );
        differences
    };
    let of_generated = run("generated", &generated);
    let of_table = run("recorded", &table);
    for difference in Difference::ALL {
        assert!(of_generated.contains_key(&difference), "no route shows {difference:?}");
    }
    let of_path = [Difference::AnotherOfItsFaults, Difference::NotInBirdsTable, Difference::Loop];
    assert!(of_table.keys().all(|difference| of_path.contains(difference)), "{of_table:?}");
    let hits = ours.hits(&generated);
    assert!(hits.len() >= 10 && hits.values().all(|count| *count >= 100), "each rule refuses many: {hits:?}");
}

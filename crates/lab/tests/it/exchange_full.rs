//! An exchange of the size for which it is made, where work and links cost time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::Prefix;
use wayleave_lab::sim::costs::Costs;
use wayleave_lab::sim::{FrameAction, Node, PARTIES, Setup, Sim};
use wayleave_route_server::credit;
use wayleave_route_server::frames::FromMember;

use crate::common::{Exchange, LIMIT, factor, nlri, route};

const TICK: Duration = Duration::from_millis(50);

/// A /24 of a large table.
fn prefix(number: usize) -> Nlri {
    nlri(&format!("{}.{}.{}.0/24", 20 + number / 65_536, number / 256 % 256, number % 256))
}

/// Lets everything come to rest, and compares every router's table but that of `except` with the oracle's.
fn check(exchange: &mut Exchange, except: u32) {
    assert!(exchange.sim.settle(LIMIT), "the exchange did not come to rest: {}", exchange.describe());
    for slot in exchange.sim.tables.keys().copied().filter(|slot| *slot != except) {
        let expected: BTreeMap<Prefix, Attributes> =
            exchange.oracle.table(slot).into_iter().map(|(prefix, (_, attributes))| (prefix, attributes)).collect();
        assert_eq!(exchange.sim.table(slot), expected, "member {slot}");
    }
}

#[test]
fn two_hundred_members_have_what_the_oracle_says_whatever_fails_meanwhile() {
    const MEMBERS: usize = 200;
    const MUTE: u32 = 199;
    let setup = Setup { members: MEMBERS, tick: TICK, costs: Some(Costs::default()), ..Setup::default() };
    let mut exchange = Exchange::new(setup);
    // One never ranks, which shows after the first rounds; its own order decides for it.
    exchange.sim.tamper = Some(Box::new(|from, _, bytes| {
        let is_ranking = matches!(bytes.first(), Some(4 | 5))
            && matches!(FromMember::decode(bytes), Ok(FromMember::RankOne { .. } | FromMember::RankTwo { .. }));
        if from == Node::Member(MUTE) && is_ranking { FrameAction::Drop } else { FrameAction::Pass }
    }));
    let change = |exchange: &mut Exchange, number: usize| {
        let slot = u32::try_from(exchange.sim.choose(MEMBERS - 1)).expect("few");
        let prefix = prefix(exchange.sim.choose(25));
        if number % 5 == 4 {
            exchange.withdraw(slot, &[prefix]);
        } else {
            let tail: Vec<u32> = (0..=exchange.sim.choose(3)).map(|i| 64_500 + i as u32).collect();
            exchange.announce(slot, &[prefix], &route(slot, &tail, &[]));
        }
        let pause = Duration::from_millis(exchange.sim.choose(100) as u64);
        exchange.sim.pass(pause);
    };
    (0..40).for_each(|number| change(&mut exchange, number));
    check(&mut exchange, MUTE);
    // Members connect again and restart during changes.
    for number in 0..20 {
        change(&mut exchange, number);
        let slot = u32::try_from(exchange.sim.choose(MEMBERS - 1)).expect("few");
        if number % 4 == 0 {
            exchange.sim.kill(Node::Member(slot));
            exchange.sim.start(Node::Member(slot));
        }
    }
    // The recommendation changes, and before all is evaluated again a party restarts.
    let recommended: BTreeMap<u32, u8> = (0..MEMBERS as u32).map(|slot| (slot, (slot * 37 % 256) as u8)).collect();
    exchange.recommend(&recommended);
    (0..5).for_each(|number| change(&mut exchange, number));
    exchange.sim.kill(PARTIES[1]);
    (0..5).for_each(|number| change(&mut exchange, number));
    exchange.sim.start(PARTIES[1]);
    (0..10).for_each(|number| change(&mut exchange, number));
    exchange.sim.cut_parties();
    (0..5).for_each(|number| change(&mut exchange, number));
    check(&mut exchange, MUTE);
    let status = exchange.sim.party(PARTIES[0]).expect("it runs").status();
    assert_eq!(status.on_probation, [MUTE]);
    // The mute one has a route to what the others have routes to; only the choice is its own.
    let prefixes = |slot: u32| exchange.sim.table(slot).keys().copied().collect::<BTreeSet<_>>();
    assert!(prefixes(MUTE).is_superset(&prefixes(0)));
}

/// Latencies of changes by the whole member 0 at the other whole members, and the most that waited anywhere.
struct Watched {
    latencies: Vec<Duration>,
    octets_waiting: usize,
    synchronising: usize,
}

impl Watched {
    fn p99(&mut self) -> Duration {
        self.latencies.sort_unstable();
        self.latencies[(self.latencies.len() * 99).div_ceil(100) - 1]
    }
}

/// Milliseconds after which links that are down are connected again, and within which a change must arrive.
const RECONNECT: u32 = 50;
const MOST_TURNS: u32 = 60_000;

/// Member 0 changes its route so many times, which both other whole members see; `act` happens before each change.
fn watch(sim: &mut Sim, changes: u32, base: u32, mut act: impl FnMut(&mut Sim, u32)) -> Watched {
    let mut watched = Watched { latencies: Vec::new(), octets_waiting: 0, synchronising: 0 };
    let prefix = nlri("99.0.0.0/24");
    for change in 0..changes {
        act(sim, change);
        let (begin, wanted) = (sim.now().instant, route(0, &[64_500 + base + change], &[]));
        sim.announce(0, &[prefix], &wanted);
        let lacks = |sim: &Sim| [1, 2].iter().any(|slot| sim.tables[slot].get(&prefix.prefix) != Some(&wanted));
        let mut turns = 0;
        while lacks(sim) {
            sim.pass(Duration::from_millis(1));
            turns += 1;
            if turns % RECONNECT == 0 {
                sim.connect_all();
            }
            assert!(turns < MOST_TURNS, "the route arrives: {:?}", sim.closed);
        }
        watched.latencies.push(sim.now().instant - begin);
        for party in PARTIES {
            let status = sim.party(party).expect("it runs").status();
            watched.octets_waiting = watched.octets_waiting.max(status.octets_waiting);
            watched.synchronising = watched.synchronising.max(status.synchronising.len());
        }
        let pause = Duration::from_millis(sim.choose(120) as u64);
        sim.pass(pause);
    }
    watched
}

/// No link holds more than the credit for it.
fn assert_bounded(sim: &Sim, members: usize) {
    for slot in 0..members as u32 {
        for party in PARTIES {
            let to = sim.most_outstanding(party, Node::Member(slot)) as u64;
            assert!(to <= credit::TO_MEMBER / 2, "{to} octets to slot {slot}");
            let from = sim.most_outstanding(Node::Member(slot), party) as u64;
            assert!(from <= credit::FROM_MEMBER, "{from} octets from slot {slot}");
        }
    }
    for (from, to) in [(PARTIES[0], PARTIES[1]), (PARTIES[1], PARTIES[0])] {
        let between = sim.most_outstanding(from, to) as u64;
        assert!(between <= credit::BETWEEN_PARTIES, "{between} octets between the parties");
    }
}

/// Three whole members; the others take and discard, and announce `objects` routes, of which every third is to a prefix that has two.
fn large(members: usize, objects: usize) {
    let setup = Setup {
        members,
        tick: TICK,
        costs: Some(Costs::default()),
        sinks: (3..members as u32).collect(),
        ..Setup::default()
    };
    let mut sim = Sim::new(setup);
    assert!(sim.settle(LIMIT), "it starts");
    let sinks = members - 3;
    let by_sinks = |sim: &mut Sim, numbers: std::ops::Range<usize>| {
        for number in numbers {
            let slot = 3 + (number % sinks) as u32;
            let to = prefix(if number % 3 == 2 { number - 1 } else { number });
            sim.announce(slot, &[to], &route(slot, &[64_500, 64_501], &[]));
        }
    };
    // Members announce their tables while one changes its route.
    let step = (objects / 2).div_ceil(40);
    let mut loading = watch(&mut sim, 40, 0, |sim, change| {
        let from = change as usize * step;
        by_sinks(sim, from..(from + step).min(objects / 2));
    });
    by_sinks(&mut sim, objects / 2..objects);
    assert!(sim.settle(LIMIT), "the table is loaded");
    assert_eq!(sim.party(PARTIES[0]).expect("it runs").status().objects, objects + 1);
    assert_eq!(sim.closed, []);
    assert_eq!(sim.tables[&1].len(), objects - objects / 3 + 1, "a whole member has a route to each prefix");

    // Some connect again, and everything is evaluated again, while the table is full.
    let mut full = watch(&mut sim, 60, 100, |sim, change| {
        if change % 6 == 0 {
            let slot = 3 + (change * 7) % sinks as u32;
            sim.kill(Node::Member(slot));
            sim.start(Node::Member(slot));
        }
        if change == 20 {
            sim.recommend((0..members as u32).map(|slot| (slot, (slot * 37 % 256) as u8)).collect());
        }
    });
    assert!(sim.settle(LIMIT));

    // A party returns, and all members are sent what they lack.
    sim.kill(PARTIES[0]);
    sim.start(PARTIES[0]);
    let returned = watch(&mut sim, 1, 300, |_, _| {}).latencies[0];
    let begin = sim.now().instant;
    assert!(sim.settle(LIMIT), "all are synchronised");
    let synced = sim.now().instant - begin;
    let refused: u64 = (3..members as u32).map(|slot| sim.taken(slot).refused).sum();
    let (loading_p99, full_p99) = (loading.p99(), full.p99());
    eprintln!(
        "{members} members, {objects} objects: p99 {loading_p99:?} while loading, {full_p99:?} full; a party back: first update \
         {returned:?}, all after {synced:?}; most octets waiting {}, {} synchronised at a time",
        loading.octets_waiting.max(full.octets_waiting),
        full.synchronising
    );
    assert!(loading_p99 <= Duration::from_secs(2), "{:?}", loading.latencies);
    assert!(full_p99 <= Duration::from_secs(2), "{:?}", full.latencies);
    assert!(returned <= Duration::from_secs(5), "{returned:?}");
    assert!(synced <= Duration::from_secs(300), "{synced:?}");
    assert_eq!(refused, 0);
    assert!(loading.octets_waiting.max(full.octets_waiting) as u64 <= credit::FROM_MEMBER);
    assert_bounded(&sim, members);
}

#[test]
fn with_750_members_latency_and_queues_stay_bounded_while_tables_are_announced_members_return_and_a_party_restarts() {
    large(750, 1_200);
}

#[test]
#[ignore = "takes minutes, and memory: 25 kB for each object"]
fn with_750_members_the_same_holds_for_a_larger_table() {
    // A million objects of 750 slots would be 25 GB in this one process: 12 kB of shares at party 2, and as much in its store.
    large(750, (200 * factor()).clamp(5_000, 200_000));
}

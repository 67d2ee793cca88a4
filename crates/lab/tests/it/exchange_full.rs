//! An exchange of the size for which it is made, where work and links cost time.

use std::collections::BTreeMap;
use std::time::Duration;

use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::Prefix;
use wayleave_lab::sim::bad::Forger;
use wayleave_lab::sim::costs::{Costs, Wire};
use wayleave_lab::sim::{FrameAction, Node, PARTIES, Setup, Sim};
use wayleave_route_server::credit;
use wayleave_route_server::frames::FromMember;
use wayleave_route_server::member::MemberEvent;
use wayleave_route_server::object::ExportMode;
use wayleave_route_server::oracle::Oracle;
use wayleave_route_server::party::Budget;

use crate::common::{Exchange, LIMIT, factor, nlri, route};

const TICK: Duration = Duration::from_millis(50);

/// A /24 of a large table.
fn prefix(number: usize) -> Nlri {
    nlri(&format!("{}.{}.{}.0/24", 20 + number / 65_536, number / 256 % 256, number % 256))
}

/// Members of the exchange in which everything fails, those that announce and change policies, and those with large routes.
const MEMBERS: u32 = 200;
const CHANGING: u32 = 180;
const LARGE: std::ops::Range<u32> = 190..193;
/// It asks for everything again and again.
const ASKER: u32 = 193;
/// Beside its own it sends rankings that are wrong.
const RANKER: u32 = 194;
/// It announces more prefixes than it may, with blobs as large as they may be.
const PADDER: u32 = 195;
/// It sends more objects than its budget allows.
const FLOODER: u32 = 196;
/// It restarts again and again.
const FLAPPER: u32 = 197;
/// It reads slowly, so that it may rank too late.
const SLOW: u32 = 198;
/// It never ranks, so that its own order decides for it.
const MUTE: u32 = 199;
/// Prefixes that each may announce.
const MAX_PREFIX: u32 = 40;

/// Members that the test plays.
struct Hostile {
    forgers: BTreeMap<u32, Forger>,
    /// Objects for both parties, made once.
    flood: Vec<[Vec<u8>; 2]>,
    /// A route that fills the largest blob.
    padded: Attributes,
}

impl Hostile {
    /// For the first time, or a later one: then their versions are above all before.
    fn take_over(sim: &mut Sim, time: u32) -> Self {
        let mut forgers: BTreeMap<u32, Forger> = (PADDER..=FLOODER).map(|slot| (slot, Forger::new(1, slot))).collect();
        for (slot, forger) in &mut forgers {
            forger.version *= u64::from(time + 1);
            sim.play_member(*slot);
        }
        // Until party 1 knows that those before them left party 2: it drops what they asked for.
        sim.run_for(Duration::from_millis(500));
        for forger in forgers.values_mut() {
            forger.greet(sim, false);
        }
        sim.run_for(Duration::from_secs(1));
        let flooder = forgers.get_mut(&FLOODER).expect("one of them");
        let flood = (0..4_000).map(|_| flooder.withdraw(sim, &[nlri("50.0.0.0/16")]));
        let flood = flood.map(|object| [object.to_one(), object.to_two()]).collect();
        Self { forgers, flood, padded: large_route(PADDER) }
    }

    /// Each does what it does; whoever lost its links connects again.
    fn act(&mut self, sim: &mut Sim, turn: u32) {
        for (slot, forger) in &mut self.forgers {
            if !PARTIES.iter().all(|party| sim.has_link(Node::Member(*slot), *party)) {
                sim.play_member(*slot);
                sim.run_for(Duration::from_millis(1));
                forger.greet(sim, false);
            }
        }
        // Until one is for a round that waits for it.
        let status = sim.party(PARTIES[1]).expect("it runs").status();
        if !status.misbehaving.contains(&RANKER) {
            for seq in status.batch - 3..=status.batch {
                let wrong = FromMember::RankTwo { seq, row: [1; 16], share: vec![1; 1 + turn as usize] };
                sim.inject(Node::Member(RANKER), PARTIES[1], &wrong.encode());
            }
        }
        if turn.is_multiple_of(4) {
            for object in &self.flood {
                for (party, frame) in PARTIES.into_iter().zip(object) {
                    sim.inject(Node::Member(FLOODER), party, frame);
                }
            }
        }
        let padder = self.forgers.get_mut(&PADDER).expect("one of them");
        for i in 0..3 {
            let draft = padder.draft(sim, &[nlri(&format!("60.{turn}.{i}.0/24"))], &self.padded);
            let object = padder.seal(&draft);
            padder.submit(sim, &object);
        }
    }

    /// Their operators run the proxy again.
    fn end(self, sim: &mut Sim) {
        for slot in self.forgers.into_keys() {
            sim.kill(Node::Member(slot));
            sim.start(Node::Member(slot));
        }
    }
}

/// A route whose blob is of the largest class: large communities of other systems, which nobody removes.
fn large_route(slot: u32) -> Attributes {
    let communities: Vec<String> = (0..550).map(|n| format!("64999:{n}:1")).collect();
    route(slot, &[64_500], &communities.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A random change by a random member.
fn change(exchange: &mut Exchange, number: u32) {
    let slot = u32::try_from(exchange.sim.choose(CHANGING as usize)).expect("few");
    if exchange.sim.tables.contains_key(&slot) {
        match number % 8 {
            3 => {
                let prefixes = exchange.random_prefixes(2);
                exchange.withdraw(slot, &prefixes);
            }
            // Those whom the others' communities and policies name choose, too.
            5 => {
                let policy = exchange.random_policy();
                exchange.set_policy(slot % 6, &policy);
            }
            7 => {
                let policy = exchange.random_policy();
                exchange.set_policy(slot, &policy);
            }
            _ => exchange.random_announcement(slot),
        }
    }
    let pause = Duration::from_millis(exchange.sim.choose(100) as u64);
    exchange.sim.pass(pause);
}

/// Compares every router's table with the oracle's, but those of `except`, which may still lack something.
fn compare(exchange: &Exchange, except: &[u32]) {
    // Without a recommendation Select-Best chooses as each member's own order does.
    let mut own_order = exchange.oracle.clone();
    own_order.recommend(BTreeMap::new());
    let of = |oracle: &Oracle, slot: u32| -> BTreeMap<Prefix, Attributes> {
        oracle.table(slot).into_iter().map(|(prefix, (_, attributes))| (prefix, attributes)).collect()
    };
    for slot in exchange.sim.tables.keys().copied().filter(|slot| !except.contains(slot)) {
        let (table, own) = (exchange.sim.table(slot), of(&own_order, slot));
        match slot {
            // Which of the two decides depends on whether it was in time; the mute one is not.
            MUTE | SLOW | FLAPPER | RANKER => {
                let chosen = if slot == MUTE { own.clone() } else { of(&exchange.oracle, slot) };
                let lacks: Vec<&Prefix> = chosen.keys().filter(|prefix| !table.contains_key(prefix)).collect();
                let kept: Vec<&Prefix> = table.keys().filter(|prefix| !chosen.contains_key(prefix)).collect();
                assert!(lacks.is_empty() && kept.is_empty(), "member {slot} lacks {lacks:?} and kept {kept:?}");
                // Where it was not in time it keeps what it has while that is among its best.
                let mut other = own_order.clone();
                let mut is_among_best = |prefix: &Prefix, route: &Attributes| {
                    (0..MEMBERS * 2).any(|announcer| {
                        other.recommend(BTreeMap::from([(announcer, 255)]));
                        other.best(slot, *prefix).is_some_and(|offer| offer.attributes == *route)
                    })
                };
                for (prefix, route) in &table {
                    let is_either = chosen.get(prefix) == Some(route) || own.get(prefix) == Some(route);
                    assert!(is_either || is_among_best(prefix, route), "member {slot}: {prefix}");
                }
            }
            _ => assert_eq!(table, of(&exchange.oracle, slot), "member {slot}"),
        }
    }
}

/// Lets everything come to rest, and compares every router's table with the oracle's.
fn check(exchange: &mut Exchange) {
    assert!(exchange.sim.settle(LIMIT), "the exchange did not come to rest: {}", exchange.describe());
    compare(exchange, &[]);
}

fn restart(exchange: &mut Exchange, node: Node, meanwhile: impl FnOnce(&mut Exchange)) {
    exchange.sim.kill(node);
    meanwhile(exchange);
    exchange.sim.start(node);
}

/// Hostile members do what they do during changes; what they sent that the parties took is delivered as if it were honest.
fn attack(exchange: &mut Exchange, time: u32, turns: u32) {
    let mut hostile = Hostile::take_over(&mut exchange.sim, time);
    for turn in 0..turns {
        hostile.act(&mut exchange.sim, turn);
        change(exchange, turn);
    }
    // More often than each may be sent everything at once.
    for _ in 0..20 {
        exchange.sim.inject(Node::Member(ASKER), PARTIES[0], &FromMember::holds_nothing().encode());
        restart(exchange, Node::Member(FLAPPER), |_| {});
        exchange.sim.pass(Duration::from_millis(500));
    }
    let status = exchange.sim.party(PARTIES[0]).expect("it runs").status();
    assert!([ASKER, PADDER, FLOODER, FLAPPER].iter().all(|slot| status.over_budget.contains(slot)), "{status:?}");
    let of_two = exchange.sim.party(PARTIES[1]).expect("it runs").status();
    assert!(of_two.misbehaving.contains(&RANKER), "{of_two:?}");
    exchange.sim.pass(Duration::from_secs(30));
    let stored = exchange.sim.party(PARTIES[0]).expect("it runs").routes(usize::MAX, false);
    let taken = stored.iter().filter(|route| route.slot == PADDER).flat_map(|route| &route.prefixes);
    let taken: Vec<Nlri> = taken.map(|prefix| nlri(prefix)).collect();
    assert_eq!(taken.len(), MAX_PREFIX as usize);
    exchange.oracle.announce(PADDER, &taken, &hostile.padded);
    compare(exchange, &[FLAPPER, ASKER, RANKER]);
    hostile.end(&mut exchange.sim);
    exchange.oracle.withdraw(PADDER, &taken);
}

/// Changes of routes and policies while members are mute, slow and hostile, restart, join and leave, the recommendation changes,
/// and each party and the link between them fails: `times` as many of each.
fn everything(export: ExportMode, times: u32) {
    let slow = Wire { bytes_per_second: 60_000, delay: Duration::from_millis(20), ..Wire::LAN };
    let wires = PARTIES.map(|party| ((party, Node::Member(SLOW)), slow)).into();
    // The oracle has no budget of choices; its own test is in `exchange_hostile`.
    let budget = Budget { choices: u32::MAX, ..Budget::default() };
    let (members, costs) = (MEMBERS as usize, Some(Costs { wires, ..Costs::default() }));
    let setup = Setup { members, tick: TICK, max_prefix: MAX_PREFIX, budget, costs, export, ..Setup::default() };
    let mut exchange = Exchange::new(setup);
    exchange.sim.tamper = Some(Box::new(|from, _, bytes| {
        let is_ranking = matches!(bytes.first(), Some(4 | 5))
            && matches!(FromMember::decode(bytes), Ok(FromMember::RankOne { .. } | FromMember::RankTwo { .. }));
        if from == Node::Member(MUTE) && is_ranking { FrameAction::Drop } else { FrameAction::Pass }
    }));
    // More octets than a slice has.
    for (number, slot) in LARGE.cycle().take(75).enumerate() {
        exchange.announce(slot, &[prefix(number)], &large_route(slot));
    }
    (0..30 * times).for_each(|number| change(&mut exchange, number));
    check(&mut exchange);
    for time in 0..times {
        attack(&mut exchange, time, 24);
        // Members restart, join and leave during changes.
        let leaver = (0..CHANGING).rev().find(|slot| exchange.sim.tables.contains_key(slot)).expect("some are left");
        for number in 0..16 {
            change(&mut exchange, number);
            let slot = u32::try_from(exchange.sim.choose(CHANGING as usize)).expect("few");
            match number {
                5 => drop(exchange.join()),
                9 => exchange.leave(leaver),
                _ if number % 4 == 0 && exchange.sim.tables.contains_key(&slot) => {
                    restart(&mut exchange, Node::Member(slot), |_| {});
                }
                _ => {}
            }
        }
        check(&mut exchange);
        // The recommendation changes, and before all is evaluated again the parties restart, one after the other.
        let value = |exchange: &mut Exchange| u8::try_from(exchange.sim.choose(256)).expect("below 256");
        let values: BTreeMap<u32, u8> = (0..MEMBERS).map(|slot| (slot, value(&mut exchange))).collect();
        exchange.recommend(&values);
        let changes = |exchange: &mut Exchange| (0..5).for_each(|number| change(exchange, number));
        for party in PARTIES {
            changes(&mut exchange);
            restart(&mut exchange, party, changes);
        }
        changes(&mut exchange);
        exchange.sim.cut_parties();
        changes(&mut exchange);
        check(&mut exchange);
    }
    let status = exchange.sim.party(PARTIES[0]).expect("it runs").status();
    assert!(status.on_probation.contains(&MUTE), "{:?}", status.on_probation);
    let honest = |(slot, event): &&(u32, MemberEvent)| *slot != FLAPPER && matches!(event, MemberEvent::Alarm(_));
    assert_eq!(exchange.sim.member_events.iter().find(honest), None, "nobody had reason to doubt the parties");
    // Somebody may not have what others have.
    let routes = |slot: u32| exchange.sim.table(slot).len();
    assert!(
        (0..CHANGING).filter(|slot| exchange.sim.tables.contains_key(slot)).any(|slot| routes(slot) != routes(MUTE))
    );
}

/// The other mode, and more of both, take minutes: the test below.
#[test]
fn two_hundred_members_have_what_the_oracle_says_whatever_fails_meanwhile() {
    everything(ExportMode::Direct, 1);
}

#[test]
#[ignore = "takes minutes"]
fn two_hundred_members_have_what_the_oracle_says_however_often_it_fails() {
    for export in [ExportMode::Direct, ExportMode::Mpc] {
        everything(export, 4);
    }
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
    // How long the table takes is not what this is about.
    assert!(sim.settle(LIMIT * (1 + objects as u32 / 10_000)), "the table is loaded");
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
    // A million objects of 750 slots would be 25 GB in this one process: 12 kB of shares at party 2, and as much in its store. And after a
    // party's return all sinks are sent everything, since they hold nothing: that takes 5 minutes with some 45,000.
    large(750, (200 * factor()).clamp(5_000, 40_000));
}

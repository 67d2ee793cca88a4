//! Limits, crowding and absence: who asks for too much or goes away harms itself, and others get their routes.
//!
//! SIX-15: routes with a foreign first AS or next hop, of 65 hops, to a special prefix, over the prefix limit: not
//! announced; the limit's next in line takes a place that is free.
//! SIX, limits of families: an announcer whose proxy holds it to none: receivers leave it out, and nobody else can tell; others keep all.
//! SIX, limits: prefix limits, paths of one member beyond the fourth in any order, 161 paths of 41 members, flapping
//! after a quiet time: each harms itself, and is told; everybody's first path is looked at.

use std::time::Duration;

use crate::common::{Exchange, nlri, route};
use crate::exchange_origins::shapes;
use wayleave_bgp::Nlri;
use wayleave_lab::sim::{Node, PARTIES, Recorded, Setup, Sim, member_address, member_asn, operator_keys};
use wayleave_route_server::directory::Change;
use wayleave_route_server::frames::{PartyFrame, ToMember};
use wayleave_route_server::party::MemberBudget;

fn prefixes(numbers: std::ops::Range<u8>) -> Vec<Nlri> {
    numbers.map(|n| nlri(&format!("20.{n}.0.0/16"))).collect()
}

#[test]
fn a_refusal_for_the_limit_leaves_no_older_wider_export_in_force() {
    let mut exchange = Exchange::new(Setup { max_prefix: 2, ..Setup::default() });
    let known = prefixes(0..2);
    exchange.announce(0, &known, &route(0, &[64500], &[]));
    exchange.check();
    assert!(exchange.sim.tables[&3].contains_key(&known[0].prefix));
    // One UPDATE hides a known prefix from member 3 and brings one too many: it is refused whole.
    let hidden = route(0, &[64500], &["64496:0:65003"]);
    exchange.sim.announce(0, &[known[0], nlri("20.9.0.0/16")], &hidden);
    assert!(exchange.sim.settle(crate::common::LIMIT));
    assert!(!exchange.sim.tables[&3].contains_key(&known[0].prefix), "hidden from 3, whatever else was refused");
}

#[test]
fn a_member_at_its_limit_swaps_prefixes_in_one_tick() {
    let tick = Duration::from_millis(50);
    let mut exchange = Exchange::new(Setup { max_prefix: 3, tick, ..Setup::default() });
    exchange.announce(0, &prefixes(0..3), &route(0, &[64500], &[]));
    exchange.check();
    exchange.withdraw(0, &prefixes(0..3));
    exchange.announce(0, &prefixes(10..13), &route(0, &[64501], &[]));
    exchange.check();
    assert!(exchange.sim.tables[&1].contains_key(&prefixes(10..11)[0].prefix));
}

#[test]
fn a_prefix_over_the_limit_is_not_announced_and_takes_the_place_of_one_that_goes() {
    let mut exchange = Exchange::new(Setup { max_prefix: 2, ..Setup::default() });
    let attributes = route(0, &[64500], &[]);
    exchange.sim.announce(0, &prefixes(0..3), &attributes);
    assert!(exchange.sim.settle(crate::common::LIMIT));
    assert_eq!(exchange.sim.tables[&1].len(), 2);
    let member = exchange.sim.member(0).expect("runs");
    let status = member.status();
    assert_eq!((status.not_announced, status.counters.refused), (1, 0), "no party had to refuse it");
    assert_eq!(status.withheld[0].why, "it would exceed this member's prefix limit of 2");
    let limit = member.why(prefixes(2..3)[0].prefix).own[0].checks.pop().expect("the limit is checked last");
    assert_eq!(
        (limit.check, limit.passed, limit.found.as_str()),
        ("prefix limit", false, "2 prefixes announced, at most 2")
    );
    exchange.sim.withdraw(0, &prefixes(0..1));
    assert!(exchange.sim.settle(crate::common::LIMIT));
    let table: Vec<_> = exchange.sim.tables[&1].keys().copied().collect();
    assert_eq!(table, prefixes(1..3).iter().map(|nlri| nlri.prefix).collect::<Vec<_>>());
    assert_eq!(exchange.sim.member(0).expect("runs").status().not_announced, 0);
}

/// The prefixes of IPv4 that the member in `slot` has of slot 0.
fn of_first(sim: &Sim, slot: u32) -> usize {
    let all: Vec<_> = prefixes(0..20).iter().map(|nlri| nlri.prefix).collect();
    sim.tables[&slot].keys().filter(|prefix| all.contains(prefix)).count()
}

#[test]
fn who_has_more_prefixes_of_a_family_than_the_data_allow_is_left_out_by_receivers_until_it_has_fewer() {
    let mut sim = Exchange::new(Setup::default()).sim;
    sim.begin_data();
    sim.announce(0, &prefixes(0..4), &route(0, &[64500], &[]));
    sim.announce(1, &prefixes(30..40), &route(1, &[64500], &[]));
    assert!(sim.settle(crate::common::LIMIT));
    // The announcer's proxy does not read the data, and the one of slot 3 does not either.
    sim.give_limits(1, &[(0, [3, 1]), (1, [10, 0])], &[1, 2]);
    sim.run_for(Duration::from_secs(5));
    assert_eq!([1, 2, 3].map(|slot| of_first(&sim, slot)), [4; 3], "not at once: others may come before these go");
    sim.run_for(Duration::from_secs(10));
    assert_eq!([1, 2, 3].map(|slot| of_first(&sim, slot)), [0, 0, 4]);
    assert_eq!(sim.tables[&2].len(), 10, "another's routes, as many as it may have, stay");
    let why = sim.member(2).expect("it runs").why(prefixes(0..1)[0].prefix);
    let outcome = &why.routes[0].route.reason.outcome;
    assert!(outcome.contains("more than the 3 prefixes of IPv4 that it may have"), "{outcome}");
    let status = sim.member(2).expect("it runs").status();
    assert_eq!(status.refused_at_receive.get("max-prefixes"), Some(&4), "{:?}", status.refused_at_receive);
    // Fewer for a moment is not enough; what stays within the limit is back after the restart, and what is more then is left out anew.
    sim.withdraw(0, &prefixes(0..1));
    sim.run_for(Duration::from_secs(600));
    assert_eq!(of_first(&sim, 2), 0);
    sim.run_for(Duration::from_secs(400));
    assert_eq!([1, 2, 3].map(|slot| of_first(&sim, slot)), [3; 3]);
    sim.announce(0, &prefixes(0..1), &route(0, &[64500], &[]));
    sim.run_for(Duration::from_secs(15));
    assert_eq!([1, 2, 3].map(|slot| of_first(&sim, slot)), [0, 0, 4]);
    // The operators allow more: that is known at the end of the time.
    sim.give_limits(2, &[(0, [4, 1])], &[1]);
    sim.run_for(Duration::from_secs(1000));
    assert_eq!([1, 2].map(|slot| of_first(&sim, slot)), [4, 0]);
    // No limit is none at once.
    sim.give_limits(2, &[(0, [4, 1])], &[2]);
    sim.give_limits(3, &[], &[2]);
    sim.run_for(Duration::from_secs(5));
    assert_eq!(of_first(&sim, 2), 4);
}

#[test]
fn that_a_receiver_leaves_an_announcer_out_shows_to_nobody() {
    let [within, over] = [10, 1].map(|limit| {
        let mut sim = Exchange::new(Setup::default()).sim;
        sim.begin_data();
        sim.announce(0, &prefixes(0..2), &route(0, &[64500], &[]));
        sim.announce(1, &prefixes(0..1), &route(1, &[64500, 64501], &[]));
        assert!(sim.settle(crate::common::LIMIT));
        sim.fill_pools();
        sim.recording = Some(Vec::new());
        sim.give_limits(1, &[(0, [limit, 0])], &[2]);
        sim.run_for(Duration::from_secs(20));
        let whose = sim.tables[&2][&prefixes(0..1)[0].prefix].as_path().first_asn();
        // Something is ranked after it, too, and it ends.
        sim.announce(1, &prefixes(0..1), &route(1, &[64500, 64502], &[]));
        sim.run_for(Duration::from_secs(20));
        sim.withdraw(0, &prefixes(1..2));
        sim.run_for(Duration::from_secs(1000));
        (whose, shapes(&sim.recording.take().unwrap_or_default()))
    });
    assert_eq!((within.0, over.0), (Some(member_asn(0)), Some(member_asn(1))), "one of the two leaves it out");
    assert!(!over.1.is_empty() && within.1 == over.1, "{:?}\n{:?}", within.1, over.1);
}

#[test]
fn a_proxy_holds_its_router_to_the_limits_of_the_data_and_receivers_never_have_to() {
    let mut sim = Exchange::new(Setup::default()).sim;
    sim.begin_data();
    sim.give_limits(1, &[(0, [3, 1])], &[0, 1, 2, 3]);
    sim.announce(0, &prefixes(0..4), &route(0, &[64500], &[]));
    sim.run_for(Duration::from_secs(30));
    assert_eq!([1, 2, 3].map(|slot| of_first(&sim, slot)), [3; 3]);
    let withheld = |sim: &mut Sim| sim.member(0).expect("it runs").status().withheld;
    let why = "it would exceed this member's limit of 3 prefixes of IPv4 in the exchange's data";
    assert_eq!(withheld(&mut sim).iter().map(|one| one.why.as_str()).collect::<Vec<_>>(), [why]);
    // One goes, and the fourth takes its place.
    sim.withdraw(0, &prefixes(1..2));
    sim.run_for(Duration::from_secs(30));
    assert_eq!((of_first(&sim, 1), withheld(&mut sim).len()), (3, 0));
    // All at once are replaced by as many others.
    sim.withdraw(0, &prefixes(0..4));
    sim.announce(0, &prefixes(10..13), &route(0, &[64501], &[]));
    sim.run_for(Duration::from_secs(30));
    assert_eq!([1, 2, 3].map(|slot| of_first(&sim, slot)), [3; 3]);
    // A lower limit: what is too many goes, and a higher one brings it back.
    for (number, limit) in [(2, 1), (3, 2), (4, 0)] {
        sim.give_limits(number, &[(0, [limit, 1])], &[0, 1, 2, 3]);
        sim.run_for(Duration::from_secs(30));
        let expected = if limit == 0 { 3 } else { limit as usize };
        assert_eq!([1, 2, 3].map(|slot| of_first(&sim, slot)), [expected; 3], "{limit}");
    }
}

#[test]
fn a_route_that_replaces_another_needs_no_room_for_both_and_a_withdrawal_makes_room() {
    /// Routes of 8 KiB that fill the 4 MiB which a member has at least.
    const FIT: u32 = 512;
    let mut sim = Exchange::new(Setup { max_prefix: 1_000, ..Setup::default() }).sim;
    let filling: Vec<String> = (0..550).map(|n| format!("64999:{n}:1")).collect();
    let filling: Vec<&str> = filling.iter().map(String::as_str).collect();
    let prefix = |i: u32| nlri(&format!("30.{}.{}.0/24", i / 250, i % 250));
    let settle = |sim: &mut Sim| assert!(sim.settle(crate::common::LIMIT));
    for i in 0..FIT + 2 {
        sim.announce(0, &[prefix(i)], &route(0, &[64500], &filling));
    }
    settle(&mut sim);
    let not_announced = |sim: &mut Sim| sim.member(0).expect("it runs").status().not_announced;
    assert_eq!((sim.tables[&1].len(), not_announced(&mut sim)), (FIT as usize, 2));
    // Each of the first routes changes: one object takes the place of one of the same size.
    for i in 0..20 {
        let changed = route(0, &[64501], &filling);
        sim.announce(0, &[prefix(i)], &changed);
        settle(&mut sim);
        assert_eq!(sim.tables[&1].get(&prefix(i).prefix), Some(&changed), "{i}");
    }
    assert_eq!((sim.tables[&1].len(), not_announced(&mut sim)), (FIT as usize, 2));
    // All of them at once, in one batch.
    let all: Vec<Nlri> = (0..20).map(prefix).collect();
    for nlri in &all {
        sim.announce(0, &[*nlri], &route(0, &[64502], &filling));
    }
    settle(&mut sim);
    assert_eq!((sim.tables[&1].len(), not_announced(&mut sim)), (FIT as usize, 2));
    for left in [1, 0] {
        sim.withdraw(0, &[prefix(left)]);
        settle(&mut sim);
        assert_eq!((sim.tables[&1].len(), not_announced(&mut sim)), (FIT as usize, left as usize));
    }
    sim.withdraw(0, &[prefix(2)]);
    settle(&mut sim);
    assert_eq!(sim.tables[&1].len(), FIT as usize - 1);
}

#[test]
fn what_no_receiver_would_use_is_not_announced_and_what_was_announced_before_goes() {
    let mut exchange = Exchange::new(Setup::default());
    let good = route(0, &[64500], &[]);
    let long: Vec<u32> = (0..64).map(|i| 64_500 + i % 2).collect();
    let mut foreign_hop = good.edit();
    foreign_hop.ipv4_next_hop(member_address(1));
    let (valid, martian) = (nlri("20.0.0.0/16"), nlri("10.0.0.0/16"));
    for (prefix, bad, why) in [
        (valid, route(1, &[64500], &[]), "the AS path begins with"),
        (valid, foreign_hop.finish(), "is not the announcer's"),
        (valid, route(0, &long, &[]), "65 hops"),
        (martian, good.clone(), "not routed"),
    ] {
        if prefix == valid {
            exchange.announce(0, &[prefix], &good);
            exchange.check();
            assert_eq!(exchange.sim.tables[&1].len(), 1);
        }
        exchange.sim.recording = Some(Vec::new());
        exchange.announce(0, &[prefix], &bad);
        exchange.check();
        assert!(exchange.sim.tables[&1].is_empty(), "{why}");
        let status = exchange.sim.member(0).expect("runs").status();
        assert_eq!(status.not_announced, 1);
        assert!(status.withheld[0].why.contains(why), "{:?}", status.withheld);
        let blobs = exchange.sim.recording.take().unwrap_or_default();
        let announced = |frame: &&Recorded| frame.from == Node::Member(0) && frame.bytes.len() > 512;
        assert_eq!(blobs.iter().filter(announced).count(), 0, "{why}: nothing is announced");
        exchange.withdraw(0, &[prefix]);
        exchange.check();
    }
}

#[test]
fn many_paths_of_many_members_crowd_nobody_out() {
    const MANY: u32 = 40;
    let setup = Setup { members: MANY as usize + 2, sinks: (0..MANY).collect(), ..Setup::default() };
    let mut exchange = Exchange::new(Setup { opted_out: (0..MANY).collect(), ..setup });
    let prefix = nlri("20.0.0.0/16");
    for slot in 0..MANY {
        let paths: Vec<Nlri> = (0..4).map(|path_id| Nlri { path_id, ..prefix }).collect();
        exchange.sim.announce(slot, &paths, &route(slot, &[64500], &[]));
    }
    exchange.sim.announce(MANY, &[prefix], &route(MANY, &[], &[]));
    assert!(exchange.sim.settle(crate::common::LIMIT));
    let listed = exchange.sim.member(MANY + 1).expect("runs").why(prefix.prefix).routes;
    let slots: Vec<u32> = listed.iter().filter_map(|route| route.route.announcer.as_ref().map(|by| by.slot)).collect();
    assert_eq!(slots.len(), 4 * MANY as usize + 1, "also those that do not compete");
    // Those that Select-Best looks at come first.
    let slots = &slots[..128];
    assert!((0..=MANY).all(|slot| slots.contains(&slot)), "everybody's first: {slots:?}");
    let best = exchange.sim.tables[&(MANY + 1)][&prefix.prefix].as_path().first_asn();
    assert_eq!(best, Some(wayleave_lab::sim::member_asn(MANY)));
}

#[test]
fn a_member_that_flaps_after_a_quiet_time_keeps_its_routes() {
    let stale = Duration::from_secs(120);
    let mut exchange = Exchange::new(Setup { stale, ..Setup::default() });
    exchange.announce(0, &prefixes(0..3), &route(0, &[64500], &[]));
    exchange.check();
    exchange.sim.pass(Duration::from_secs(1000));
    exchange.sim.kill(Node::Member(0));
    exchange.sim.pass(Duration::from_secs(60));
    assert!(exchange.sim.tables[&1].contains_key(&prefixes(0..1)[0].prefix), "within the stale time");
    exchange.sim.pass(Duration::from_secs(120));
    assert!(exchange.sim.tables[&1].is_empty(), "past it");
    exchange.sim.start(Node::Member(0));
    exchange.check();
}

#[test]
fn a_member_learns_its_own_budget_and_the_parties_show_everybodys() {
    let mut exchange = Exchange::new(Setup { max_prefix: 9, ..Setup::default() });
    exchange.announce(0, &prefixes(0..2), &route(0, &[64500], &[]));
    exchange.announce(1, &prefixes(2..5), &route(1, &[64500], &[]));
    exchange.check();
    let own = |exchange: &mut Exchange, slot| {
        exchange.sim.member(slot).expect("it runs").status().budget.expect("it is told")
    };
    let budgets = |exchange: &Exchange, party: Node| exchange.sim.party(party).expect("it runs").status().budgets;
    let before = own(&mut exchange, 0);
    assert_eq!(
        (before.prefixes, before.max_prefixes, before.resyncs_per_hour, before.choices_per_hour),
        (2, 9, 720, 32)
    );
    let other = own(&mut exchange, 1);
    assert_eq!((other.prefixes, other.max_stored), (3, 4 << 20));
    exchange.sim.recording = Some(Vec::new());
    exchange.sim.cut_member(0);
    exchange.check();
    let after = own(&mut exchange, 0);
    assert_eq!((before.resyncs_left, after.resyncs_left), (16, 15));
    assert_eq!((before.stored, after.stored), (0, 512), "both prefixes are of one object of the smallest size");
    // Who did not connect is not told, and party 2 says nothing of turns.
    for frame in exchange.sim.recording.take().expect("it records") {
        if let Ok(ToMember::Welcome { budget, .. }) = ToMember::decode(&frame.bytes) {
            assert_eq!(frame.to, Node::Member(0));
            assert_eq!(budget.syncs_left, if frame.from == PARTIES[0] { 15 } else { 0 });
        }
    }
    let shown = budgets(&exchange, PARTIES[0]);
    let of = |budget: &MemberBudget| (budget.slot, budget.prefixes, budget.max_prefixes);
    assert_eq!(shown.iter().map(of).collect::<Vec<_>>(), [(0, 2, 9), (1, 3, 9), (2, 0, 9), (3, 0, 9)]);
    assert_eq!((shown[0].stored, shown[0].resyncs_left), (Some(512), Some(14)));
    let of_two = &budgets(&exchange, PARTIES[1])[0];
    assert_eq!((of_two.prefixes, of_two.stored, of_two.resyncs_left), (2, None, None));
}

#[test]
fn a_limit_that_is_lowered_keeps_what_is_announced_and_takes_nothing_new() {
    let setup = Setup { max_prefix: 4, ..Setup::default() };
    let seed = setup.seed;
    let mut exchange = Exchange::new(setup);
    exchange.announce(0, &prefixes(0..4), &route(0, &[64500], &[]));
    exchange.check();
    for limit in [3, 9] {
        let addresses = exchange.sim.set.slots[0].addresses.clone();
        let amend = Change::Amend { slot: 0, addresses, max_prefix: limit };
        let [one, two] = operator_keys(seed);
        let next = exchange.sim.directory.signed_by_both(vec![amend], [&one, &two]).expect("a sound set");
        exchange.sim.publish(PARTIES[0], next);
        exchange.sim.pass(Duration::from_secs(10));
        exchange.sim.announce(0, &prefixes(4..5), &route(0, &[64500 + limit], &[]));
        assert!(exchange.sim.settle(crate::common::LIMIT));
        let count = if limit == 3 { 4 } else { 5 };
        assert_eq!(exchange.sim.tables[&1].len(), count, "{limit}");
        let member = exchange.sim.member(0).expect("runs");
        let budget = member.status().budget.expect("it is told");
        assert_eq!((budget.prefixes, budget.max_prefixes), (count, limit));
        let check = member.why(prefixes(0..1)[0].prefix).own[0].checks.pop().expect("the limit is checked last");
        assert_eq!((check.check, check.passed), ("prefix limit", limit == 9), "{}", check.found);
    }
}

#[test]
fn a_member_that_goes_while_it_joins_is_not_waited_for() {
    for steps in 0..60 {
        let stale = Duration::from_secs(60);
        let mut exchange = Exchange::new(Setup { stale, seed: 40 + steps, ..Setup::default() });
        exchange.announce(0, &prefixes(0..2), &route(0, &[64500], &[]));
        exchange.check();
        exchange.sim.kill(Node::Member(0));
        exchange.sim.start(Node::Member(0));
        for _ in 0..steps {
            exchange.sim.step(Duration::from_secs(1));
        }
        exchange.sim.kill(Node::Member(0));
        exchange.sim.pass(Duration::from_secs(200));
        assert!(exchange.sim.tables[&1].is_empty(), "after {steps} steps its routes are gone past the stale time");
        for party in PARTIES {
            let active: Vec<u32> = exchange.sim.party(party).expect("it runs").active().collect();
            assert_eq!(active, [1, 2, 3], "after {steps} steps");
        }
    }
}

/// Frames between the parties in which correlations are asked for ahead of need, and the longest message of the engine.
fn setup_seen(exchange: &mut Exchange) -> (usize, usize) {
    let recorded = exchange.sim.recording.take().expect("it records");
    let between = recorded.iter().filter(|frame| PARTIES.contains(&frame.from) && PARTIES.contains(&frame.to));
    let frames: Vec<PartyFrame> = between.map(|frame| PartyFrame::decode(&frame.bytes).expect("a frame")).collect();
    let refills = frames.iter().filter(|frame| matches!(frame, PartyFrame::Refill { .. })).count();
    let length = |frame: &PartyFrame| if let PartyFrame::Engine { bytes, .. } = frame { bytes.len() } else { 0 };
    (refills, frames.iter().map(length).max().unwrap_or(0))
}

#[test]
fn correlations_for_a_burst_are_made_after_a_pause_and_not_while_its_prefixes_wait() {
    let mut exchange = Exchange::new(Setup::default());
    exchange.sim.recording = Some(Vec::new());
    exchange.announce(0, &prefixes(0..1), &route(0, &[64500], &[]));
    exchange.announce(1, &prefixes(0..1), &route(1, &[64500, 64501], &[]));
    exchange.check();
    let (refills, longest) = setup_seen(&mut exchange);
    assert!(refills > 0 && longest > 0, "two routes met, and what their evaluation lacked was made");
    exchange.sim.recording = Some(Vec::new());
    let is_short = |party| !exchange.sim.party(party).expect("it runs").is_stocked();
    assert!(PARTIES.into_iter().any(is_short), "tables are right before the pool is filled");
    exchange.sim.fill_pools();
    assert!(PARTIES.iter().all(|party| exchange.sim.party(*party).expect("it runs").is_stocked()));
    let (refills, setup_message) = setup_seen(&mut exchange);
    assert!(refills > 0);
    // A burst: 100 prefixes with two routes each.
    exchange.announce(0, &prefixes(1..101), &route(0, &[64500], &[]));
    exchange.check();
    exchange.sim.recording = Some(Vec::new());
    exchange.announce(1, &prefixes(1..101), &route(1, &[64500, 64501], &[]));
    exchange.check();
    let (refills, longest) = setup_seen(&mut exchange);
    assert_eq!(refills, 0);
    // 400 lanes open 34 rows of bits at once, and no more; correlations for them would be a message of 6,160 bytes.
    assert!(longest < 400 / 8 * 40 && longest < setup_message, "a message of {longest} bytes");
}

#[test]
fn a_members_paths_beyond_the_fourth_do_not_compete_and_their_announcer_is_told() {
    let mut exchange = Exchange::new(Setup { members: 4, sinks: [3].into(), ..Setup::default() });
    let prefix = nlri("20.0.0.0/16");
    let path = |path_id| Nlri { path_id, ..prefix };
    let listed = |exchange: &mut Exchange| exchange.sim.member(2).expect("runs").why(prefix.prefix).routes.len();
    let left_out = |exchange: &mut Exchange| exchange.sim.member(0).expect("runs").status().not_announced;
    let settle = |exchange: &mut Exchange| assert!(exchange.sim.settle(crate::common::LIMIT));
    // In whatever order they come.
    for path_id in [3, 6, 2, 5, 4, 1] {
        exchange.sim.announce(0, &[path(path_id)], &route(0, &[64500 + path_id], &[]));
        settle(&mut exchange);
    }
    assert_eq!((listed(&mut exchange), left_out(&mut exchange)), (4, 2));
    let budgets = exchange.sim.party(PARTIES[0]).expect("runs").status().budgets;
    assert_eq!(budgets[0].prefixes, 4, "the others are withdrawn");
    let own = exchange.sim.member(0).expect("runs").why(prefix.prefix).own;
    assert!(own[4].reason.outcome.contains("4 other paths"), "{:?}", own[4].reason);
    // One that goes, or that nobody would use, gives its place to the next.
    exchange.sim.withdraw(0, &[path(2)]);
    settle(&mut exchange);
    assert_eq!((listed(&mut exchange), left_out(&mut exchange)), (4, 1));
    exchange.sim.announce(0, &[path(1)], &route(1, &[64501], &[]));
    settle(&mut exchange);
    assert_eq!((listed(&mut exchange), left_out(&mut exchange)), (4, 1), "it is not of this member's AS");
    for path_id in 7..=8 {
        exchange.sim.announce(0, &[path(path_id)], &route(0, &[64500 + path_id], &[]));
    }
    settle(&mut exchange);
    assert_eq!((listed(&mut exchange), left_out(&mut exchange)), (4, 3));
    // All those that are barred come together with one that is not.
    exchange.sim.withdraw(0, &(1..=8).map(path).collect::<Vec<_>>());
    settle(&mut exchange);
    let of_another = (1..=4).map(path).collect::<Vec<_>>();
    exchange.sim.announce(0, &of_another, &route(1, &[64501], &[]));
    exchange.sim.announce(0, &[path(5)], &route(0, &[64505], &[]));
    settle(&mut exchange);
    assert_eq!((listed(&mut exchange), left_out(&mut exchange)), (1, 4));
    exchange.sim.withdraw(0, &(1..=5).map(path).collect::<Vec<_>>());
    (1..=4).for_each(|id| exchange.sim.announce(0, &[path(id)], &route(0, &[64500 + id], &[])));
    settle(&mut exchange);
    // One that does not check itself costs those who rank no more than that.
    let all: Vec<Nlri> = (0..100).map(path).collect();
    exchange.sim.announce(3, &all, &route(3, &[64500], &[]));
    settle(&mut exchange);
    assert_eq!(listed(&mut exchange), 8);
    let before = exchange.sim.party(PARTIES[0]).expect("runs").counters().comparators;
    exchange.sim.announce(1, &[prefix], &route(1, &[64500], &[]));
    assert!(exchange.sim.settle(crate::common::LIMIT));
    let after = exchange.sim.party(PARTIES[0]).expect("runs").counters().comparators;
    assert_eq!(after - before, 15 * 4, "nine routes, padded to sixteen, for four members that rank");
}

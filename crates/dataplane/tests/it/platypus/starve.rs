//! One payer against all others, by packets of every kind: nobody uses up what others need, and no clock or restart makes a
//! router accept a packet twice or refuse all of them.
//!
//! PLA-09, starve: a payer limited to 1,000 octets a second sends 30,000 packets; one of two at ten times its rate;
//! floods of tiny, huge, unmetered, replayed, revoked, expired, forged packets, endless delegations: the other payer
//! passes all, or loses less than a hundredth; payers without a rate lose only to those without.
//! PLA-09, tokens: ten thousand copies of one packet; the same where repeated packets pass: no token of its payer;
//! within the rate.
//! PLA-09, restart: random restarts and jumps of the clock, while whoever is on the way sends any packet again: no
//! packet passes twice; fresh ones pass again within nine seconds.
//! PLA-09, twice: a path that visits a waypoint twice with one capability: both visits pass, each once; no copy.
//! PLA, accounts: four principals with delegations without end: every new principal gets its accounts; the memory stays
//! as it was.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};

use wayleave_core::{Instant, Now, UnixTime};
use wayleave_crypto::lanes::CpuKernel;
use wayleave_crypto::secret::{Key128, Secret};
use wayleave_crypto::sign::SigningKey;
use wayleave_dataplane::frame::{BURST, Frame, Ingress};
use wayleave_dataplane::platypus::account::Payer;
use wayleave_dataplane::platypus::revocation::{ListKind, Revocation, sign_list};
use wayleave_dataplane::platypus::{Action, Config, Reason, ReplayPolicy, Router};
use wayleave_dataplane::replay::{Partitions, ReplayFilter, packets_of};
use wayleave_packet::platypus::header::{Capability, Carriage, DelegationId, Interval, Marks, Principal, Width};
use wayleave_packet::platypus::mint::{Hop, Nonce, Route, WaypointKey, WaypointKeys, encapsulate, epoch};
use wayleave_packet::platypus::verify::{Policy, Waypoint};

use crate::common::Random;

const BEGIN: u64 = 1_795_240_800;
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));
const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 2));
/// Octets of the shortest packet.
const SHORTEST: usize = 60;

/// So many microseconds after the beginning, by both clocks.
fn after(micros: u64) -> Now {
    Now { instant: Instant(micros * 1_000), unix: UnixTime(BEGIN * 1_000_000 + micros) }
}

fn keys() -> WaypointKeys {
    WaypointKeys::new(WaypointKey::new(&Key128::new([7; 16])))
}

fn principal(number: u32) -> Principal {
    Principal::new(number).expect("24 bits")
}

fn router(repeated: ReplayPolicy, capacity: usize, started: UnixTime) -> Router {
    let peers = vec!["198.51.100.0/24".parse().expect("a prefix")];
    let policy = || Policy { narrow: true, peers: peers.clone(), ..Policy::default() };
    let config = Config {
        waypoints: [HERE, THERE].map(|address| Waypoint::new(address, keys(), policy())).to_vec(),
        repeated,
        replay: ReplayFilter::new(&Key128::new([3; 16]), capacity, started),
        need_revocations: false,
        answers_per_second: 100,
        accounts: 256,
        account_seed: 1,
        delegations: 16,
    };
    Router::new(config, CpuKernel::best())
}

/// Gives principals rates in octets a second, and their partitions in a filter of `capacity` packets a turn. Each may send a tenth of
/// a second's octets at once, and one of the longest packets.
fn set_rates(router: &mut Router, capacity: usize, rates: &[(u32, u64)]) {
    let depth = |rate: u64| (rate / 10).max(1_500);
    let needs: Vec<u64> = rates.iter().map(|(_, rate)| packets_of(*rate, depth(*rate), SHORTEST)).collect();
    let partitions = Partitions::divide(capacity, &needs);
    router.accounts().set_pool(partitions.pool);
    for ((number, rate), partition) in rates.iter().zip(partitions.each) {
        let payer = Payer { principal: principal(*number), delegation: None };
        router.accounts().set_rate(payer, *rate, depth(*rate), Instant(0));
        router.accounts().set_partition(&payer, partition);
    }
}

fn capability(waypoint: IpAddr, number: u32, secs: u64) -> Capability {
    let interval = Interval::new(12).expect("in range");
    let epoch = epoch::epoch_at(interval, UnixTime(secs * 1_000_000));
    Capability {
        waypoint,
        principal: principal(number),
        interval,
        epoch,
        marks: Marks::default(),
        delegation: None,
        width: Width::Narrow,
    }
}

/// A packet over `hops` with `payload` octets of payload.
fn stamped(hops: &[Hop], counter: u32, secs: u64, payload: usize) -> Vec<u8> {
    let nonce = Nonce::new(UnixTime(secs * 1_000_000), counter);
    let route = Route { hops, nonce, sealed: false, reply_option: &[], carriage: Carriage::Ip };
    let length = (20 + payload) as u16;
    let mut inner = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0, 192, 0, 2, 7, 203, 0, 113, 9];
    inner[2..4].copy_from_slice(&length.to_be_bytes());
    inner.resize(length.into(), 0x5a);
    let mut out = Vec::new();
    encapsulate(&inner, &route, &mut out).expect("sound");
    out
}

/// A packet of principal `number`, of [`SHORTEST`] octets and `payload` more.
fn packet(number: u32, counter: u32, secs: u64, payload: usize) -> Vec<u8> {
    let capability = capability(HERE, number, secs);
    stamped(&[Hop { capability, key: keys().stamp_key(&capability).expect("held") }], counter, secs, payload)
}

/// The same under one of the principal's delegations.
fn delegated(number: u32, id: u32, counter: u32, secs: u64) -> Vec<u8> {
    let mut capability = capability(HERE, number, secs);
    let key = WaypointKey::new(&Key128::new([7; 16]));
    let secret = key.secret(HERE, capability.principal, capability.interval, capability.epoch);
    let id = DelegationId::new(id).expect("24 bits");
    let held = secret.delegate(id, "203.0.113.0/24".parse().expect("a prefix")).expect("of the family");
    capability.delegation = Some(held.delegation());
    stamped(&[Hop { capability, key: keys().stamp_key(&capability).expect("held") }], counter, secs, 0)
}

/// What the router does with each packet, in bursts.
fn process(router: &mut Router, packets: &mut [Vec<u8>], now: Now) -> Vec<Action> {
    let mut all = Vec::new();
    for burst in packets.chunks_mut(BURST) {
        let mut frames: Vec<Frame<'_>> =
            burst.iter_mut().map(|octets| Frame { octets, ingress: Ingress::Internal }).collect();
        let count = frames.len();
        all.extend_from_slice(&router.process(&mut frames, now)[..count]);
    }
    all
}

fn routed(router: &mut Router, mut packets: Vec<Vec<u8>>, now: Now) -> usize {
    process(router, &mut packets, now).iter().filter(|action| **action == Action::Route).count()
}

/// A payer that may send 1,000 octets a second sends 30,000 packets.
#[test]
fn a_payer_far_above_its_rate_takes_no_place_that_another_needs() {
    let mut router = router(ReplayPolicy::Drop, 10_000, UnixTime(0));
    set_rates(&mut router, 10_000, &[(1, 1_000)]);
    let now = after(0);
    let passed = routed(&mut router, (0..30_000).map(|n| packet(1, n, BEGIN, 0)).collect(), now);
    assert_eq!(passed, 1_500 / SHORTEST);
    let passed = routed(&mut router, (0..1_000).map(|n| packet(2, n, BEGIN, 0)).collect(), now);
    assert_eq!(passed, 1_000, "{:?}", router.counters());
    assert_eq!(router.counters().of(Reason::ReplayFull), 0);
    let partitions: Vec<(u64, u64)> =
        router.partitions(now).map(|(state, taken)| (taken, state.refused.rate)).collect();
    // Quotas are taken by two in the pool.
    assert!((1_000..=1_002).contains(&partitions[0].0), "{partitions:?}");
    assert_eq!(partitions[1], (25, 29_975));
}

/// In a filter that has just room for both, with and without a third one that floods the pool.
#[test]
fn of_two_payers_one_at_ten_times_its_rate_the_other_loses_less_than_a_hundredth() {
    for is_flooded in [false, true] {
        let rate = 60_000;
        let capacity = packets_of(rate, 6_000, SHORTEST) as usize * 2 * 4 / 3 + 2;
        let mut router = router(ReplayPolicy::Drop, capacity, UnixTime(0));
        set_rates(&mut router, capacity, &[(1, rate), (2, rate)]);
        let (mut sent, mut passed) = ([0; 3], [0; 3]);
        for tick in 0..1_200u64 {
            let now = after(tick * 10_000);
            let secs = now.unix.secs();
            // A hundredth of a second: a hundred packets; nine or ten, 990 a second; fifty.
            let counts = [100, if tick % 10 == 0 { 9 } else { 10 }, if is_flooded { 50 } else { 0 }];
            let mut burst: Vec<(usize, Vec<u8>)> = Vec::new();
            for (index, count) in counts.into_iter().enumerate() {
                let counter = |n: u32| (tick as u32) << 8 | n;
                burst.extend((0..count).map(|n| (index, packet(1 + index as u32, counter(n), secs, 0))));
            }
            let mut packets: Vec<Vec<u8>> = burst.iter().map(|(_, octets)| octets.clone()).collect();
            for ((index, _), action) in burst.iter().zip(process(&mut router, &mut packets, now)) {
                sent[*index] += 1;
                passed[*index] += usize::from(action == Action::Route);
            }
        }
        assert!(passed[1] * 100 > sent[1] * 99, "{passed:?} of {sent:?}, {:?}", router.counters());
        // Of the replay filter the other has taken nothing that it needed.
        let (other, taken) = router.partitions(after(11_990_000)).nth(2).expect("the other's room");
        assert!(other.refused.partition == 0 && taken > 0, "{other:?}, {taken} places");
        // Its own rate, and what it may send at once.
        assert!(passed[0] <= 12 * 1_000 + 100 && passed[0] > 11_900, "{passed:?}");
    }
}

/// PLA-09: ten times as many packets as the filter is made for, of a payer without a rate, and beside them one that has a rate.
#[test]
fn at_ten_times_the_filters_load_what_is_counted_has_passed_and_a_payer_with_a_rate_loses_nothing() {
    let (capacity, rate) = (12_000, 60_000);
    let mut router = router(ReplayPolicy::Drop, capacity, UnixTime(0));
    set_rates(&mut router, capacity, &[(2, rate)]);
    let (mut passed, mut refused) = ([0u64; 2], 0);
    // A turn of the filter is four seconds.
    for tick in 0..40u64 {
        let now = after(tick * 100_000);
        let secs = now.unix.secs();
        let flood: Vec<_> = (0..3_000).map(|n| packet(1, (tick as u32) << 12 | n, secs, 0)).collect();
        for (index, mut packets) in
            [flood, (0..90).map(|n| packet(2, (tick as u32) << 8 | n, secs, 0)).collect()].into_iter().enumerate()
        {
            for action in process(&mut router, &mut packets, now) {
                passed[index] += u64::from(action == Action::Route);
                refused += u64::from(index == 0 && action != Action::Route);
            }
        }
    }
    assert!(passed[0] <= capacity as u64 && passed[0] > 0 && passed[0] + refused == 120_000, "{passed:?}");
    assert!(passed[1] * 1_000 >= 3_600 * 999, "{passed:?} of 3600, {:?}", router.counters());
    // Who looks at the router sees it: the pool is full, and what it refused is counted.
    let full = router.counters().of(Reason::ReplayFull);
    assert!(full * 1_000 >= refused * 999, "{full} of {refused}");
    let (pool, taken) = router.partitions(after(3_900_000)).next().expect("the pool");
    assert!(pool.refused.partition >= full && taken >= passed[0], "{pool:?}, {taken}");
    // No account has more than what passed.
    let journal = router.accounts().journal();
    let counted = |number| {
        journal
            .iter()
            .filter(|(charge, _)| charge.principal == principal(number))
            .map(|(_, total)| total.packets)
            .sum::<u128>()
    };
    assert_eq!([counted(1), counted(2)], passed.map(u128::from));
}

/// Twenty thousand packets of one payer, of each kind, and beside them a payer with a rate and one without.
#[test]
fn packets_of_no_kind_take_what_other_payers_need() {
    let capacity = 16_000;
    let signer = SigningKey::from_seed(&Secret::new([1; 32]));
    type Make = fn(u32, u64) -> Vec<u8>;
    let forged: Make = |n, secs| {
        let mut octets = packet(1, n, secs, 0);
        octets[59] ^= 1;
        octets
    };
    // Kind, packets of it, whether the payer has a rate, and the packets that take place at most.
    let kinds: [(&str, Make, bool, u64); 10] = [
        ("tiny", |n, secs| packet(1, n, secs, 0), true, 1_800),
        ("huge", |n, secs| packet(1, n, secs, 1_400), true, 80),
        ("unmetered", |n, secs| packet(1, n, secs, 0), false, 16_000),
        ("replayed", |_, secs| packet(1, 7, secs, 0), true, 3),
        ("replayed, unmetered", |_, secs| packet(1, 7, secs, 0), false, 3),
        ("revoked", |n, secs| packet(9, n, secs, 0), false, 0),
        ("expired", |n, secs| packet(1, n, secs - 7, 0), false, 0),
        ("ahead", |n, secs| packet(1, n, secs + 2, 0), false, 0),
        ("forged", forged, false, 0),
        ("many delegations", |n, secs| delegated(1, n, n, secs), true, 1_800),
    ];
    for (kind, make, has_rate, most) in kinds {
        let mut router = router(ReplayPolicy::Drop, capacity, UnixTime(0));
        let rates: &[(u32, u64)] = if has_rate { &[(1, 20_000), (2, 20_000)] } else { &[(2, 20_000)] };
        set_rates(&mut router, capacity, rates);
        let entry = Revocation { principal: principal(9), delegation: None, epoch: None };
        let (list, signature) = sign_list(&signer, 1, after(0).unix, ListKind::Whole, &[entry]);
        router.revocations().apply(&list, &signature, &signer.verifying_key()).expect("a list");
        let mut passed = [0; 2];
        for second in 0..3u64 {
            for tick in 0..10 {
                let now = after(second * 1_000_000 + tick * 100_000);
                let (secs, first) = (now.unix.secs(), (second * 10 + tick) as u32 * 1_000);
                let flood = (0..667).map(|n| make(first + n, secs)).collect();
                routed(&mut router, flood, now);
                for (index, number) in [2, 3].into_iter().enumerate() {
                    let own = (0..25).map(|n| packet(number, first + n, secs, 0)).collect();
                    passed[index] += routed(&mut router, own, now);
                }
            }
        }
        let (_, pool) = router.partitions(after(2_900_000)).next().expect("the pool");
        let all: u64 = router.partitions(after(2_900_000)).map(|(_, taken)| taken).sum();
        // A full filter takes one packet in a thousand for a repeated one.
        assert!(passed[0] * 1_000 >= 750 * 998, "{kind}: the payer with a rate; {passed:?}, {:?}", router.counters());
        // Payers without a rate share the pool, and only with each other.
        let is_pool_flooded = kind == "unmetered";
        assert_eq!(passed[1] == 750, !is_pool_flooded, "{kind}: {passed:?} {:?}", router.counters());
        assert!(all <= most + 1_500 + 8, "{kind}: {all} places, {pool} of the pool");
    }
}

/// Ten thousand copies of one packet: its payer still sends all that it may.
#[test]
fn a_replayed_packet_takes_no_token_of_its_payer() {
    let mut router = router(ReplayPolicy::Drop, 10_000, UnixTime(0));
    set_rates(&mut router, 10_000, &[(1, 1_000)]);
    let first = packet(1, 0, BEGIN, 0);
    assert_eq!(routed(&mut router, vec![first; 10_000], after(0)), 1);
    let own = (1..100).map(|n| packet(1, n, BEGIN, 0)).collect();
    assert_eq!(routed(&mut router, own, after(0)), 1_500 / SHORTEST - 1);
    assert_eq!(router.counters().of(Reason::Replayed), 9_999);
}

/// Where repeated packets pass, they pass within the rate, and leave half of the bucket to what is new.
#[test]
fn a_router_that_counts_once_holds_repeated_packets_to_the_rate_too() {
    let mut router = router(ReplayPolicy::CountOnce, 10_000, UnixTime(0));
    set_rates(&mut router, 10_000, &[(1, 1_000)]);
    let first = packet(1, 0, BEGIN, 0);
    let copies = routed(&mut router, vec![first.clone(); 10_000], after(0));
    assert_eq!(copies, 1 + (1_500 / 2 - SHORTEST) / SHORTEST);
    let own = (1..100).map(|n| packet(1, n, BEGIN, 0)).collect();
    let own = routed(&mut router, own, after(0));
    assert_eq!(copies + own, 1_500 / SHORTEST);
    let (_, total) = router.accounts().journal()[0];
    assert_eq!(total.packets, 1 + own as u128, "copies are not counted");
}

/// Four with delegations without end, by packets.
#[test]
fn four_principals_lock_no_new_one_out_of_the_accounts() {
    let mut router = router(ReplayPolicy::Drop, 100_000, UnixTime(0));
    for id in 0..300 {
        let flood = (1..=4).map(|number| delegated(number, id, id, BEGIN)).collect();
        routed(&mut router, flood, after(0));
    }
    assert!(router.account_table().folded() > 500);
    assert_eq!(router.counters().of(Reason::AccountsFull), 0);
    for number in 5..20 {
        let own = vec![packet(number, 1, BEGIN, 0), delegated(number, 1, 2, BEGIN), delegated(number, 2, 3, BEGIN)];
        assert_eq!(routed(&mut router, own, after(0)), 3, "{number}: {:?}", router.account_table().open());
    }
}

/// One capability at two places of a path, over a router that serves the waypoint between as well.
#[test]
fn a_path_that_visits_a_waypoint_twice_passes_both_times_and_no_copy_of_it_does() {
    let mut router = router(ReplayPolicy::Drop, 10_000, UnixTime(0));
    let hop = |waypoint| {
        let capability = capability(waypoint, 1, BEGIN);
        Hop { capability, key: keys().stamp_key(&capability).expect("held") }
    };
    let hops = [hop(HERE), hop(THERE), hop(HERE)];
    let mut octets = stamped(&hops, 1, BEGIN, 10);
    let mut met = Vec::new();
    for visit in 0..3 {
        met.push(octets.clone());
        let mut packets = [octets.clone()];
        assert_eq!(process(&mut router, &mut packets, after(0)), [Action::Route], "visit {visit}");
        [octets] = packets;
        for copy in &met {
            let again = process(&mut router, &mut [copy.clone()], after(0));
            assert_eq!(again, [Action::Drop(Reason::Replayed)], "visit {visit}");
        }
    }
    // The pointer is under no MAC: moved to any other place, no packet passes again.
    for copy in &met {
        for pointer in 0..=octets[21] {
            let mut moved = copy.clone();
            moved[22] = pointer;
            assert_ne!(process(&mut router, &mut [moved], after(0)), [Action::Route], "{pointer}");
        }
    }
}

/// Random restarts and jumps of the clock. Whoever is on the way has every packet and sends any of them at any time; senders'
/// clocks are right. No packet passes twice, and after no event do fresh ones wait longer than nine seconds.
#[test]
fn over_restarts_and_jumps_of_the_clock_no_packet_passes_twice_and_none_waits_for_long() {
    let mut random = Random(5);
    for _ in 0..60 {
        // Both clocks in microseconds: the monotonic one begins anew with the process.
        let (mut wall, mut mono, mut counter) = (BEGIN as i64 * 1_000_000, 0i64, 0u32);
        // What the router's clock is ahead of the senders'.
        let mut ahead = 0i64;
        let now = |wall: i64, ahead: i64, mono: i64| Now {
            instant: Instant(mono as u64 * 1_000),
            unix: UnixTime((wall + ahead) as u64),
        };
        let mut router = router(ReplayPolicy::Drop, 100_000, now(wall, ahead, mono).unix);
        let (mut sent, mut passed) = (Vec::<Vec<u8>>::new(), HashSet::new());
        let mut quiet = 0i64;
        for _ in 0..300 {
            let step = 1_000 + random.below(500_000) as i64;
            (wall, mono, quiet) = (wall + step, mono + step, quiet + step);
            match random.below(100) {
                // Not in the seconds after the clock went back, which a process that begins then knows nothing of.
                0 if quiet > 9_000_000 || ahead == 0 => {
                    (mono, quiet) = (0, 0);
                    router = self::router(ReplayPolicy::Drop, 100_000, now(wall, ahead, mono).unix);
                }
                // Back by at most a window, and long after the last event: the promise has no more than that.
                1 if quiet > 20_000_000 => {
                    (ahead, quiet) = (ahead - 500_001 - random.below(4_500_000) as i64, 0);
                }
                // Ahead as far as it likes, and there it stays for the senders as well.
                2 if quiet > 20_000_000 => {
                    (wall, quiet) = (wall + random.below(100_000_000) as i64, 0);
                }
                3 if quiet > 20_000_000 => {
                    // The senders' clocks follow the router's.
                    (wall, ahead) = (wall + ahead, 0);
                }
                _ => {}
            }
            let now = now(wall, ahead, mono);
            counter += 1;
            let fresh = packet(1, counter, wall as u64 / 1_000_000, 0);
            sent.push(fresh.clone());
            let mut burst = vec![fresh];
            // Copies of late packets, in front and behind.
            let recent = sent.len().min(40);
            burst.extend((0..6).map(|_| sent[sent.len() - 1 - random.below(recent)].clone()));
            let place = random.below(burst.len());
            burst.swap(0, place);
            let names: Vec<Vec<u8>> = burst.iter().map(|octets| octets[32..60].to_vec()).collect();
            for (name, action) in names.into_iter().zip(process(&mut router, &mut burst, now)) {
                assert!(action != Action::Route || passed.insert(name), "a packet passed twice");
            }
            let name = &sent[sent.len() - 1][32..60];
            // The router's clock may be wrong for longer; then it is the senders' stamps that are refused.
            if quiet > 9_000_000 && ahead == 0 {
                assert!(passed.contains(name), "{:?} {:?}", router.counters(), router.observe(now));
            }
        }
    }
}

/// A clock that was years ahead, and is set right: the filter goes on, and says so.
#[test]
fn a_clock_that_jumps_far_ahead_and_back_freezes_nothing() {
    let mut router = router(ReplayPolicy::Drop, 10_000, UnixTime(BEGIN * 1_000_000));
    let at = |mono: u64, unix: u64| Now { instant: Instant(mono * 1_000_000_000), unix: UnixTime(unix * 1_000_000) };
    let mut counter = 0;
    let mut passes = |router: &mut Router, mono: u64, unix: u64| {
        counter += 1;
        routed(router, vec![packet(1, counter, unix, 0)], at(mono, unix)) == 1
    };
    let year = 365 * 86_400;
    assert!(passes(&mut router, 10, BEGIN + 10));
    assert!(passes(&mut router, 20, BEGIN + year));
    assert!(passes(&mut router, 30, BEGIN + year + 10));
    // Back: what is stamped within the next six seconds may have been accepted before, and after that all is fresh.
    let passed: Vec<bool> = (0..20).map(|second| passes(&mut router, 40 + second, BEGIN + 40 + second)).collect();
    assert!(passed[..7].iter().all(|passed| !passed) && passed[7..].iter().all(|passed| *passed), "{passed:?}");
    // More packets than one turn has place for, over many turns.
    for second in 60..100 {
        let many = (0..2_000).map(|n| packet(2, second as u32 * 10_000 + n, BEGIN + second, 0)).collect();
        let count = routed(&mut router, many, at(second, BEGIN + second));
        assert!(count >= 1_990, "{count} in second {second}: {:?}", router.counters());
    }
    let jumps = router.observe(at(100, BEGIN + 100));
    assert_eq!((jumps.ahead, jumps.back), (1, 1));
}

/// The account table's own bound: what it takes does not depend on who sends what.
#[test]
fn the_account_table_has_a_bound_in_octets() {
    let mut router = router(ReplayPolicy::Pass, 1, UnixTime(0));
    let before = router.account_table().memory();
    for id in 0..2_000 {
        routed(&mut router, vec![delegated(1 + id % 50, id, id, BEGIN)], after(0));
    }
    assert_eq!(router.account_table().memory(), before);
    assert!(before <= 128 * 1_024, "{before}");
}

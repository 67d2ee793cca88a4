//! The router equals the model, and itself without lanes, on random, mutated and malformed packets.
//!
//! ICD-09: a plain model beside random, mutated and malformed packets, with rates, rooms, accounts and restarts (`make
//! soak`: 10^8): equal.

use std::collections::HashSet;

use wayleave_core::Now;
use wayleave_crypto::lanes::CpuKernel;
use wayleave_dataplane::frame::{BURST, Frame, Ingress};
use wayleave_dataplane::icing::{Action, Config, Reason, Router};
use wayleave_packet::icing::header::Version;

use super::model::{Crafted, Limit, Model, Who};
use super::network::{self, EXPIRY, LINK, OPEN, Random, TAGS, TIME, at, at_micros, times};

const NODES: usize = 6;

/// The accounts of every node: one with endless room beside which the next has place for some packets, one with a rate that is
/// soon used up, one without.
const LIMITS: [Limit; 4] = [Some((210_000_000, 1 << 30)), Some((40_000, 40_000)), Some((3_000, 3_000)), None];
/// Packets that a node's filter is made for in a turn.
const FILTER: u64 = 1 << 20;

/// Paths of every kind: honest ones, expiries around the limits, unknown tags, IDs that are not keys or occur twice.
fn crafted(random: &mut Random, version: u8) -> Crafted {
    let count = 2 + random.below(6);
    let mut order: Vec<usize> = (0..NODES + 2).collect();
    for place in 0..order.len() {
        let other = place + random.below(order.len() - place);
        order.swap(place, other);
    }
    // Some tags name accounts, one more than there are.
    let mut tag = || TAGS | (random.below(LIMITS.len() + 2) as u32) << 8;
    let mut hops: Vec<(Who, u32, u32)> = order[..count].iter().map(|node| (Who::Node(*node), tag(), EXPIRY)).collect();
    // The last two nodes of the order have no neighbours.
    let place = 1 + random.below(count - 1);
    match random.below(24) {
        0 => hops[place].1 = TAGS | 0x0080_0001,
        1 => hops[place].1 = TAGS | 0x0040_0002,
        2 => hops[place].1 = random.next() as u32,
        3 => hops[place].2 = TIME - 1 + random.below(3) as u32,
        4 => hops[place].2 = TIME + 8_191 + random.below(3) as u32,
        5 => hops[place].0 = hops[random.below(place)].0,
        6 => hops[random.below(count)].0 = Who::Id([random.below(12) as u8; 32]),
        7 => {
            let mut small = [0; 32];
            small[0] = random.below(3) as u8;
            hops[random.below(count)].0 = Who::Id(small);
        }
        8 => hops[random.below(count)].0 = Who::Id([0xff; 32]),
        _ => {}
    }
    Crafted::new(version, &hops)
}

fn mutate(random: &mut Random, octets: &mut Vec<u8>) {
    for _ in 0..=random.below(2) {
        let most = if random.one_in(3) { octets.len().min(32) } else { octets.len() };
        if most == 0 {
            return;
        }
        let at = random.below(most);
        match random.below(7) {
            0..3 => octets[at] ^= 1 << random.below(8),
            3 => octets[at] = random.next() as u8,
            4 => octets.truncate(at),
            5 => octets.extend_from_within(at..),
            _ => {
                let other = random.below(most);
                octets.swap(at, other);
            }
        }
    }
}

/// A packet for `node` on one of `paths`, and the link that it comes by.
fn arrival(random: &mut Random, paths: &[Crafted], node: usize, now: u32) -> (Vec<u8>, u16) {
    let is_here = |who: &Who| matches!(who, Who::Node(other) if *other == node);
    let place = |path: &Crafted| path.who.iter().position(is_here).filter(|index| *index > 0);
    let mut path = &paths[random.below(paths.len())];
    while place(path).is_none() && !random.one_in(20) {
        path = &paths[random.below(paths.len())];
    }
    let index = match place(path) {
        Some(index) if !random.one_in(20) => index,
        _ => 1 + random.below(path.who.len() - 1),
    };
    let flags = if random.one_in(15) { random.below(16) as u8 } else { [0, 0, 8, 8, 2, 4, 12][random.below(7)] };
    let seconds = now - if random.one_in(8) { random.below(9) as u32 } else { 0 } + u32::from(random.one_in(15)) * 2;
    let nonce = u64::from(seconds) << 32 | random.below(80) as u64;
    let length = if random.one_in(50) { random.below(1_500) } else { nonce as usize % 80 };
    // The shortest seals, and some payloads that are too short for one.
    let length = length + if path.version == 2 { 28 } else { 0 };
    let mut octets = path.packet(index, flags, nonce, &vec![nonce as u8; length]);
    let link = match path.who[index - 1] {
        Who::Node(before) if before < NODES => LINK + before as u16,
        _ => OPEN,
    };
    if random.one_in(4) {
        mutate(random, &mut octets);
    }
    let other = [OPEN, LINK, LINK + random.below(NODES) as u16, 7];
    let link = if random.one_in(25) { other[random.below(4)] } else { link };
    (octets, link)
}

fn compare(version: Version, rounds: usize, seed: u64) {
    let mut random = Random(seed);
    let mut met = [0u64; Reason::ALL.len() + 1];
    let mut done = 0;
    while done < rounds {
        let paths: Vec<Crafted> = (0..60)
            .map(|_| {
                let is_sealed = version == Version::Standard && random.one_in(2);
                crafted(&mut random, if is_sealed { Version::Sealed } else { version } as u8)
            })
            .collect();
        let kernels: Vec<CpuKernel> = CpuKernel::available().collect();
        for node in 0..NODES {
            let policy = network::with_accounts(network::policy(node, NODES), &LIMITS);
            let config = Config { version, policy, ..network::config(node, NODES) };
            let kernel = kernels[random.below(kernels.len())];
            let start = |started: Now| {
                let config = Config { started: started.unix, ..config.clone() };
                let secs = started.unix.secs() as u32;
                let model = Model::new(node, NODES, version as u8, (LIMITS.to_vec(), FILTER), secs);
                // For some of the nodes, since it takes as long again.
                let general = (node % 3 == 0).then(|| Router::new(config.clone(), kernel).unwrap().without_lanes());
                (Router::new(config, kernel).unwrap(), general, model)
            };
            let (mut router, mut general, mut model) = start(at(TIME - 5));
            let mut accepted = HashSet::new();
            // Twenty seconds, in which some nodes start again.
            let restart = 20 + random.below(130);
            for burst in 0..100 {
                let micros = u64::from(TIME) * 1_000_000 + burst as u64 * 200_000 + random.below(1_000) as u64;
                let now = at_micros(micros);
                if burst == restart {
                    check_totals(&router, &model);
                    (router, general, model) = start(now);
                }
                let arrivals: Vec<(Vec<u8>, u16)> = (0..=random.below(BURST))
                    .map(|_| arrival(&mut random, &paths, node, now.unix.secs() as u32))
                    .collect();
                let mut octets: Vec<Vec<u8>> = arrivals.iter().map(|(octets, _)| octets.clone()).collect();
                let mut frames: Vec<Frame<'_>> = octets
                    .iter_mut()
                    .zip(&arrivals)
                    .map(|(octets, (_, link))| Frame { octets, ingress: Ingress::External(*link) })
                    .collect();
                let actions = router.process(&mut frames, now);
                if let Some(general) = &mut general {
                    let mut again: Vec<Vec<u8>> = arrivals.iter().map(|(octets, _)| octets.clone()).collect();
                    let mut frames: Vec<Frame<'_>> = again
                        .iter_mut()
                        .zip(&arrivals)
                        .map(|(octets, (_, link))| Frame { octets, ingress: Ingress::External(*link) })
                        .collect();
                    assert_eq!(general.process(&mut frames, now), actions);
                    assert!(again == octets);
                }
                for (place, (before, link)) in arrivals.iter().enumerate() {
                    let expected = model.process(before, *link, micros);
                    assert_eq!(actions[place], expected.0, "{before:02x?} from {link} at node {node}");
                    assert!(octets[place] == expected.1, "{before:02x?}");
                    if version == Version::Standard && !matches!(actions[place], Action::Drop(_)) {
                        // Nonce and payload, and where the packet is on its way.
                        let name = (before[3], before[8..16].to_vec(), before[16..32].to_vec());
                        assert!(accepted.insert((name, before.len(), before[0])), "twice, over all restarts");
                    }
                    met[match actions[place] {
                        Action::Drop(reason) => reason as usize,
                        _ => Reason::ALL.len(),
                    }] += 1;
                }
                done += arrivals.len();
            }
            check_totals(&router, &model);
        }
    }
    for reason in Reason::ALL {
        let is_meant = !matches!(reason, Reason::Unprocessed | Reason::Busy);
        let is_filtered = matches!(reason, Reason::Replayed | Reason::ReplayFull | Reason::BeforeStart);
        let is_timed = matches!(reason, Reason::Expired | Reason::Future | Reason::Stale | Reason::Consent);
        let is_timed = is_timed || is_filtered || reason == Reason::Sample;
        let is_met = is_meant && (version == Version::Standard || !is_timed);
        assert!(!is_met || met[reason as usize] > 0, "{} never", reason.name());
    }
    assert!(met[Reason::ALL.len()] as usize > done / 6, "{met:?}");
}

/// Accounts count what passes and nothing else.
fn check_totals(router: &Router, model: &Model) {
    for (number, (packets, octets)) in model.totals.iter().enumerate() {
        let total = router.account(10 + number as u16).unwrap();
        assert_eq!((total.packets, total.octets), (*packets, *octets), "account {number}");
    }
}

/// More with `WAYLEAVE_ICING_PACKETS`, and others with `WAYLEAVE_ICING_SEED`.
#[test]
fn the_router_equals_the_model_on_random_mutated_and_malformed_packets() {
    compare(Version::Standard, times("WAYLEAVE_ICING_PACKETS", 1_000_000), times("WAYLEAVE_ICING_SEED", 1) as u64);
}

#[test]
fn the_papers_router_equals_the_model_too() {
    compare(Version::Paper, times("WAYLEAVE_ICING_PACKETS", 1_000_000) / 10, 2);
}

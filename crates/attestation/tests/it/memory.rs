//! The memory of a proxy beside a neighbour that sends without end: within its bounds, and given back.
//!
//! KCX-34: 20,000 UPDATEs over 1,000 prefixes, 1,000 of 16,000 octets, flapping routes, endless routes: every table
//! within its bound and given back; the session beyond the bound is stopped.

use std::time::Duration;

use crate::common::network::Network;
use crate::common::proxy_net::{ATTRIBUTE, At, Net, START, config, shared};
use wayleave_attestation::proxy::session_pair::Side;
use wayleave_attestation::proxy::{Event, PairEvent, ProxyConfig};
use wayleave_attestation::sign::KeyRing;
use wayleave_attestation::suite::SuiteId;
use wayleave_bgp::{AsPathBuf, AttributeFlags};
use wayleave_core::{Asn, Prefix};

const LAST: u32 = 64_500;
const NEIGHBOUR: u32 = 3;
/// The speakers of the net: the own one inside, the neighbour outside.
const OUTSIDE: usize = 1;

/// A proxy between its own speaker and a neighbour; both take extended messages.
fn net(change: impl FnOnce(&mut ProxyConfig)) -> (Net, Network) {
    let mut net = Net::new();
    let mut network = Network::new(3, &[SuiteId::KcEd25519]);
    network.now = START;
    net.speaker(LAST);
    net.speaker(NEIGHBOUR);
    net.speakers[0].is_end = true;
    let mut sessions = [0, OUTSIDE].map(|speaker| net.session(speaker, |config| config.offer.extended_message = true));
    let mut options = config(LAST, 1, false);
    change(&mut options);
    let proxy = net.proxy(options, KeyRing::default());
    net.link(sessions[0], At::Proxy(proxy, 0, Side::Inside));
    net.link(sessions[1], At::Proxy(proxy, 0, Side::Outside));
    sessions.reverse();
    net.tell(proxy, shared(network.view.clone()));
    net.start();
    (net, network)
}

fn prefix(number: u32) -> Prefix {
    Prefix::new((0x0a00_0000 | number << 8).to_be_bytes().into(), 24).expect("a prefix")
}

/// Octets of all tables, none of them above its bound.
fn octets(net: &mut Net) -> usize {
    let status = net.proxies[0].status();
    for (name, table) in status.memory.iter().chain(&status.pairs[0].memory) {
        assert!(table.octets <= table.most_octets, "{name}: {table:?}");
    }
    let of_pairs = |table: &str| table != "checked_signatures";
    let shared = status.memory.iter().filter(|(table, _)| of_pairs(table));
    assert!(shared.eq(&status.pairs[0].memory), "there is one pair");
    // The neighbour keeps what it has sent, and the test what was seen.
    net.seen.clear();
    net.speakers.iter_mut().for_each(|speaker| speaker.updates.clear());
    status.memory.values().map(|table| table.octets).sum()
}

#[test]
fn twenty_thousand_updates_over_the_same_prefixes_take_no_more_than_the_first_thousands() {
    let (mut net, mut network) = net(|_| ());
    let mut after = Vec::new();
    for number in 0..20_000_u32 {
        let prefix = prefix(number % 1_000);
        let (value, _) = network.chain(&[prefix], &[1, 2, 3], LAST);
        // One in two is garbage, one in three has another path and so is false.
        net.announce_with(OUTSIDE, &prefix.to_string(), |edit| {
            let mut value = value.clone();
            if number % 2 == 0 {
                let place = value.len() - 1 - number as usize % 200;
                value[place] ^= 1;
            }
            let far = if number % 3 == 0 { Asn(100_000 + number) } else { Asn(1) };
            edit.as_path(AsPathBuf::from_sequence(&[Asn(2), far]).as_path()).med(Some(number));
            edit.set(ATTRIBUTE, AttributeFlags::OPTIONAL_TRANSITIVE, &value);
        });
        if number % 1_000 == 999 {
            after.push(octets(&mut net));
        }
    }
    // A thousand routes of some 600 octets, twice; and what a small pool may leave unused, which comes and goes.
    assert!(after[10..].iter().max() < Some(&(6 << 20)), "{after:?}");
    assert!(after[10..].iter().min() < Some(&(2 << 20)), "{after:?}");
    assert_eq!(net.proxies[0].status().pairs[0].outside.received, 1_000);
    // When the neighbour has gone, so has what was kept for it; the caches an hour or two later.
    net.shut(At::Speaker(OUTSIDE, 0), "the end");
    for _ in 0..3 {
        net.wait(Duration::from_secs(3_601));
        net.proxies[0].sweep();
    }
    assert!(octets(&mut net) < 1 << 20, "{:?}", net.proxies[0].status().memory);
}

#[test]
fn a_thousand_updates_of_sixteen_thousand_octets_take_no_more_than_the_routes_that_stand() {
    let (mut net, _) = net(|_| ());
    let mut most = 0;
    for number in 0..1_000_u32 {
        net.announce_with(OUTSIDE, &prefix(number % 50).to_string(), |edit| {
            let mut value = vec![1; 16_000];
            value[..4].copy_from_slice(&number.to_be_bytes());
            edit.set(ATTRIBUTE, AttributeFlags::OPTIONAL_TRANSITIVE, &value);
        });
        most = most.max(octets(&mut net));
    }
    // Fifty routes of 16,000 octets, twice, and what a small pool may leave unused.
    assert!(most < 8 << 20, "{most}");
}

#[test]
fn routes_that_come_and_go_faster_than_they_are_validated_leave_nothing_behind() {
    let (mut net, _) = net(|_| ());
    // A job that never ends: the first route's.
    net.pool = Some(std::collections::VecDeque::new());
    for number in 0..10_000_u32 {
        let prefix = prefix(number % 3_000).to_string();
        net.announce_with(OUTSIDE, &prefix, |edit| {
            edit.med(Some(number));
        });
        net.withdraw(OUTSIDE, &prefix);
    }
    assert!(octets(&mut net) < 8 << 20);
    assert_eq!(net.proxies[0].status().pairs[0].waiting, [0, 0]);
}

#[test]
fn a_neighbour_whose_routes_take_more_than_its_pair_may_is_stopped() {
    let (mut net, _) = net(|config| config.pairs[0].most_memory = 8 << 20);
    let mut announced = 0;
    while net.speakers[OUTSIDE].ends.is_empty() {
        net.announce_with(OUTSIDE, &prefix(announced).to_string(), |edit| {
            let mut value = vec![1; 8_000];
            value[..4].copy_from_slice(&announced.to_be_bytes());
            edit.set(ATTRIBUTE, AttributeFlags::OPTIONAL_TRANSITIVE, &value);
        });
        octets(&mut net);
        announced += 1;
        assert!(announced < 1_000, "it is never stopped");
    }
    assert!(announced > 200, "stopped after {announced}");
    let is_out_of_memory =
        |event: &(usize, Event)| matches!(event.1, Event::Pair(0, PairEvent::OutOfMemory(Side::Outside)));
    assert_eq!(net.events.iter().filter(|event| is_out_of_memory(event)).count(), 1);
    assert_eq!(net.proxies[0].status().pairs[0].outside.received, 0);
    net.proxies[0].sweep();
    assert!(octets(&mut net) < 1 << 20);
}

//! A packet passes only if it came over all nodes of its path in order, from the sender that it names.
//!
//! ICD-02: every set of nodes skipped in front of every node on paths of up to eight, nodes inserted, swapped, doubled,
//! passed twice, another sender: dropped by the next honest node.
//! ICD-03: every bit of packets flipped, with path and with handle: dropped by the next node, or by the one whose proof
//! it was; the bits of `held` excepted.
//! ICD-04: two nodes around an honest one try every combination of what their keys compute: dropped behind them.

use wayleave_crypto::lanes::CpuKernel;
use wayleave_dataplane::icing::{Action, Config, Link, Output, Reason, Router};
use wayleave_packet::icing::header::{Packet, Version};
use wayleave_packet::icing::mint::{Form, Sender};

use super::model;
use super::network::{self, LINK, carry, mesh, packet, process, sender};

/// Routers that check neither the link nor replays: provenance alone decides.
fn blind(count: usize) -> Vec<Router> {
    let open = |node: usize| {
        let mut config = Config { replay_capacity: 0, ..network::config(node, count) };
        // Packets come by an open link and leave by another.
        config.policy.links.retain(|link| link.id == network::OPEN);
        config.policy.links.push(Link { id: 7, nodes: Vec::new(), is_open: false });
        for rule in &mut config.policy.rules {
            rule.meaning.output = Output::Link(7);
        }
        Router::new(config, CpuKernel::best()).unwrap()
    };
    (0..count).map(open).collect()
}

/// What node `place` of the path does with a packet whose index is set to it.
fn ask(router: &mut Router, octets: &[u8], place: usize) -> (Action, Vec<u8>) {
    let mut octets = octets.to_vec();
    octets[3] = place as u8;
    process(router, &octets, network::OPEN)
}

/// ICD-02: every set of nodes skipped in front of every node, on every length up to eight. Only packets over all nodes pass.
#[test]
fn a_packet_that_skipped_any_nodes_is_dropped_by_the_next_honest_one() {
    for count in 3..=8usize {
        let order: Vec<usize> = (0..count).collect();
        let mut routers = blind(count);
        let octets = packet(&sender(&order), Form::Path, 1, b"payload");
        for (honest, router) in routers.iter_mut().enumerate().take(count - 1).skip(1) {
            for visited in 0..1u32 << (honest - 1) {
                let mut octets = octets.clone();
                for place in (1..honest).filter(|place| visited >> (place - 1) & 1 != 0) {
                    // A node that is given what skipped others would drop it; one that works for the attacker marks it.
                    octets = mark(&octets, &order, place);
                }
                let is_whole = visited + 1 == 1 << (honest - 1);
                let expected = if is_whole { None } else { Some(Reason::Verifier) };
                let (action, _) = ask(router, &octets, honest);
                assert_eq!(dropped(action), expected, "{visited:b} in front of {honest} of {count}");
            }
        }
    }
}

fn dropped(action: Action) -> Option<Reason> {
    match action {
        Action::Drop(reason) => Some(reason),
        _ => None,
    }
}

/// The packet with the proofs that node `place` gives, whatever it received.
fn mark(octets: &[u8], order: &[usize], place: usize) -> Vec<u8> {
    let mut out = octets.to_vec();
    let path = network::path(order);
    let hash = model::hash_of(octets, &path.route(Version::Standard).0);
    let begin = 32 + 32 + 40 * (order.len() - 1);
    for other in place + 1..order.len() {
        let key = model::pair(network::seed(order[place]).expose(), &path.node(other).to_bytes(), 1).unwrap();
        let tag = model::tag(&key, place, other, &hash);
        for (octet, tag) in out[begin + 24 * (other - 1) + 8..].iter_mut().zip(tag) {
            *octet ^= tag;
        }
    }
    out
}

/// ICD-02: a node that processes a packet twice cancels its own proofs.
#[test]
fn a_packet_that_passed_a_node_twice_is_dropped_by_the_next() {
    let order = [0, 1, 2, 3, 4];
    let mut routers = blind(5);
    let octets = packet(&sender(&order), Form::Path, 1, b"payload");
    let once = ask(&mut routers[1], &octets, 1).1;
    let twice = ask(&mut routers[1], &once, 1).1;
    assert_eq!(dropped(ask(&mut routers[2], &once, 2).0), None);
    assert_eq!(dropped(ask(&mut routers[2], &twice, 2).0), Some(Reason::Verifier));
    let thrice = ask(&mut routers[1], &twice, 1).1;
    assert_eq!(dropped(ask(&mut routers[2], &thrice, 2).0), None);
}

/// ICD-02: nodes inserted into a path, swapped or doubled in it, or another sender's name on it.
#[test]
fn a_path_that_was_changed_is_no_path_that_anybody_consented_to() {
    let order = [0, 1, 2, 3];
    let honest = packet(&sender(&order), Form::Path, 1, b"payload");
    let mut routers = mesh(6);
    // Into the middle: the handle is another path's, and with the right handle nobody consented.
    for (other, is_rehashed) in
        [([0, 1, 4, 3], false), ([0, 1, 4, 3], true), ([0, 1, 3, 2], true), ([4, 1, 2, 3], true)]
    {
        let mut octets = honest.clone();
        let path = network::path(&other);
        let mut wire = Vec::new();
        path.encode(&mut wire);
        octets[32..32 + wire.len()].copy_from_slice(&wire);
        if is_rehashed {
            octets[16..32].copy_from_slice(&path.route(Version::Standard).handle().0);
        }
        let from = LINK + other[0] as u16;
        let expected = if is_rehashed { Reason::Consent } else { Reason::Handle };
        assert_eq!(process(&mut routers[1], &octets, from).0, Action::Drop(expected), "{other:?}");
    }
    // A node that is not on the path.
    assert_eq!(process(&mut routers[5], &honest, LINK).0, Action::Drop(Reason::NotForUs));
    // Twice on the path.
    let mut octets = honest.clone();
    let (front, behind) = octets.split_at_mut(32 + 32 + 40);
    behind[..32].copy_from_slice(&front[64..96]);
    assert_eq!(process(&mut routers[1], &octets, LINK).0, Action::Drop(Reason::Malformed));
    // From elsewhere than the node before.
    assert_eq!(process(&mut routers[1], &honest, LINK + 2).0, Action::Drop(Reason::Ingress));
}

/// ICD-02: consent is not enough; the sender's own proofs must be there.
#[test]
fn a_packet_in_the_name_of_another_sender_is_dropped_though_all_nodes_consented() {
    let order = [0, 1, 2];
    let path = network::path(&order);
    let consents = network::consents(&order, &path, Version::Standard);
    assert!(Sender::new(Version::Standard, &path, &network::secret(4), &consents).is_err());
    let octets = packet(&sender(&order), Form::Path, 1, b"payload");
    // Node 4 has the consents but not node 0's key: it makes the proofs with its own.
    let mut forged = octets.clone();
    let hash = model::hash_of(&octets, &path.route(Version::Standard).0);
    for (place, node) in [(1, 1), (2, 2)] {
        let right = model::pair(network::seed(0).expose(), &network::id(node).to_bytes(), 1).unwrap();
        let wrong = model::pair(network::seed(4).expose(), &network::id(node).to_bytes(), 1).unwrap();
        let at = 32 + 32 + 80 + 24 * (place - 1) + 8;
        for key in [right, wrong] {
            for (octet, tag) in forged[at..].iter_mut().zip(model::tag(&key, 0, place, &hash)) {
                *octet ^= tag;
            }
        }
    }
    let mut routers = mesh(3);
    assert_eq!(carry(&mut routers, &order, 1, &forged), Err((1, Reason::Verifier)));
    assert!(carry(&mut routers, &order, 1, &octets).is_ok());
}

/// ICD-03: no bit but those of `held` can be changed without the next node, or the one whose proof it is, noticing.
#[test]
fn a_packet_with_any_bit_flipped_is_dropped_by_the_next_node_or_by_the_one_whose_proof_it_was() {
    let order = [0, 1, 2, 3];
    let mut routers = blind(4);
    // The receiver has no link to go on by.
    routers[3] = network::router(3, 4);
    let sender = sender(&order);
    for form in [Form::Path, Form::Handle] {
        let octets = packet(&sender, form, 1, b"some octets of payload");
        let mut known = packet(&sender, Form::Path, 9, b"");
        for (place, router) in routers.iter_mut().enumerate().take(3).skip(1) {
            known = ask(router, &known, place).1;
        }
        process(&mut routers[3], &known, LINK + 2);
        let begin = sender.header_length(form) - 3 * 24;
        for bit in 0..8 * octets.len() {
            let octet = bit / 8;
            let mut changed = octets.clone();
            changed[octet] ^= 1 << (bit % 8);
            let first = process(&mut routers[1], &changed, network::OPEN);
            let later = (begin + 24..begin + 72).contains(&octet);
            if (6..8).contains(&octet) {
                assert_eq!(dropped(first.0), None, "bit {bit}");
            } else if later {
                assert_eq!(dropped(first.0), None, "bit {bit}");
                let second = process(&mut routers[2], &first.1, network::OPEN);
                let is_its = octet < begin + 48;
                assert_eq!(dropped(second.0).is_some(), is_its, "bit {bit}");
                if !is_its {
                    assert!(dropped(process(&mut routers[3], &second.1, LINK + 2).0).is_some(), "bit {bit}");
                }
            } else {
                assert!(dropped(first.0).is_some(), "bit {bit} of {form:?}");
            }
        }
    }
}

/// ICD-04: nodes 1 and 3 work together and leave out node 2. Every combination of what their keys can compute is tried on
/// node 4, from every verifier that they saw.
#[test]
fn two_nodes_that_work_together_cannot_leave_out_the_one_between_them() {
    let order = [0, 1, 2, 3, 4];
    let mut routers = blind(6);
    routers[4] = network::router(4, 5);
    let path = network::path(&order);
    let honest = packet(&sender(&order), Form::Path, 1, b"payload");
    let hash = model::hash_of(&honest, &path.route(Version::Standard).0);
    let mut tags = Vec::new();
    for own in [1usize, 3] {
        for other in (0..5).filter(|other| *other != own) {
            let key = model::pair(network::seed(own).expose(), &path.node(other).to_bytes(), 1).unwrap();
            tags.push(model::tag(&key, own.min(other), own.max(other), &hash));
        }
    }
    let verifier = |place: usize| 32 + 32 + 160 + 24 * (place - 1) + 8;
    let seen: Vec<[u8; 16]> =
        (1..5).map(|place| honest[verifier(place)..verifier(place) + 16].try_into().unwrap()).collect();
    let whole = [1, 2, 3].iter().fold(honest.clone(), |octets, place| mark(&octets, &order, *place));
    for start in &seen {
        for chosen in 0..1u32 << tags.len() {
            let mut octets = honest.clone();
            octets[3] = 4;
            let mut sum = *start;
            for tag in tags.iter().enumerate().filter(|(n, _)| chosen >> n & 1 != 0).map(|(_, tag)| tag) {
                sum = std::array::from_fn(|n| sum[n] ^ tag[n]);
            }
            octets[verifier(4)..verifier(4) + 16].copy_from_slice(&sum);
            assert_eq!(dropped(process(&mut routers[4], &octets, LINK + 3).0), Some(Reason::Verifier));
        }
    }
    let (action, after) = ask_from(&mut routers[4], &whole, 4, LINK + 3);
    assert_eq!(dropped(action), None);
    assert!(Packet::decode(&after, Version::Standard).unwrap().is_last());
}

fn ask_from(router: &mut Router, octets: &[u8], place: usize, from: u16) -> (Action, Vec<u8>) {
    let mut octets = octets.to_vec();
    octets[3] = place as u8;
    process(router, &octets, from)
}

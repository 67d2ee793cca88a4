//! The router equals the model, and itself without lanes, on random, mutated and malformed packets.
//!
//! SCI-02: random, mutated and malformed packets (`make soak`: 10^8): equal to the model.
//! SCI-05, SCMP: traceroute requests with every set of alert flags, links up and down: answered as the model answers
//! them.
//! FWD, amplification: random and mutated packets of SCION: no answer to an error or to many.

use super::fixture::{HERE, INTERFACES, KEY, now, router};
use super::model::{Model, Verdict};
use super::packets::{mutate, random};
use super::scmp::check_answer;
use crate::common::{Random, times};
use wayleave_dataplane::frame::{BURST, Frame, Ingress};
use wayleave_dataplane::scion::{Action, Reason};

/// Bursts of `count` packets from `seed`; returns how many had each verdict.
fn compare(seed: u64, count: usize) -> std::collections::BTreeMap<String, usize> {
    let mut source = Random(seed);
    let mut router = router();
    let mut model = Model { here: HERE, key: KEY, down: Vec::new() };
    let mut verdicts = std::collections::BTreeMap::new();
    for burst in 0..count.div_ceil(BURST) {
        if burst % 16 == 0 {
            // Now and then a link goes down, and comes up again.
            model.down.drain(..).for_each(|id| router.set_link(id, true));
            if source.one_in(2) {
                model.down.push(source.pick(&INTERFACES).0);
                router.set_link(model.down[0], false);
            }
        }
        let mut arrivals: Vec<(Vec<u8>, Ingress)> = Vec::new();
        while arrivals.len() < BURST {
            // Often one that has much in common with the one before: the router decodes such headers once.
            let like = arrivals.last().filter(|_| source.one_in(2)).cloned();
            let mut arrival = like.unwrap_or_else(|| random(&mut source));
            while source.one_in(2) && arrival.0.len() > 30 {
                arrival = mutate(&mut source, arrival);
            }
            arrivals.push(arrival);
        }
        let before = arrivals.clone();
        let mut frames: Vec<Frame<'_>> =
            arrivals.iter_mut().map(|(octets, ingress)| Frame { octets, ingress: *ingress }).collect();
        // Now and then the same burst goes through a copy without lanes.
        let general = (burst % 4 == 0).then(|| router.clone().without_lanes());
        let actions = router.process(&mut frames, now());
        if let Some(mut general) = general {
            let mut again = before.clone();
            let mut again: Vec<Frame<'_>> =
                again.iter_mut().map(|(octets, ingress)| Frame { octets, ingress: *ingress }).collect();
            assert_eq!(general.process(&mut again, now()), actions);
            assert!(frames.iter().zip(&again).all(|(frame, again)| frame.octets == again.octets));
        }
        let mut answers = router.answers();
        for ((frame, action), (packet, ingress)) in frames.iter().zip(actions).zip(&before) {
            let mut expected = packet.clone();
            let verdict = model.process(&mut expected, *ingress, now());
            let got = match action {
                Action::Forward(interface) => Verdict::Forward(interface),
                Action::Sibling(sibling) => Verdict::Sibling(sibling),
                Action::Deliver => Verdict::Deliver,
                Action::Control => Verdict::Control,
                Action::Answer(Reason::Traceroute) | Action::Drop(Reason::Traceroute) => Verdict::Traceroute,
                Action::Drop(reason) | Action::Answer(reason) => Verdict::Refuse(reason),
            };
            assert_eq!(got, verdict, "{ingress:?} {packet:02x?}");
            match action {
                Action::Answer(_) => {
                    check_answer(packet, answers.next().expect("composed"));
                    assert_eq!(frame.octets, packet);
                }
                Action::Drop(_) => assert_eq!(frame.octets, packet),
                _ => assert_eq!(frame.octets, expected, "{verdict:?} {ingress:?} {packet:02x?}"),
            }
            *verdicts.entry(format!("{verdict:?}").split('(').next().unwrap().to_owned()).or_insert(0) += 1;
            if let Verdict::Refuse(reason) = verdict {
                *verdicts.entry(reason.name().to_owned()).or_insert(0) += 1;
            }
        }
    }
    verdicts
}

#[test]
fn the_router_equals_the_model_on_random_and_mutated_packets() {
    let count = times("WAYLEAVE_SCION_PACKETS", 1_000_000);
    let verdicts = compare(1, count);
    // Every verdict occurs often enough to mean something.
    for verdict in ["Forward", "Sibling", "Deliver", "Control", "Traceroute"] {
        assert!(verdicts.get(verdict).is_some_and(|n| *n > count / 20_000), "{verdict} {verdicts:?}");
    }
    let rare = [Reason::PathEnd, Reason::Expired, Reason::Future];
    // The router here has no limit on wrong MACs.
    let unseen = [&[Reason::Unprocessed, Reason::Traceroute, Reason::Throttled][..], &rare].concat();
    for reason in Reason::ALL.into_iter().filter(|reason| !unseen.contains(reason)) {
        assert!(verdicts.get(reason.name()).is_some_and(|n| *n > count / 20_000), "{reason:?} {verdicts:?}");
    }
}

#[test]
#[ignore = "100 million packets take some minutes"]
fn the_router_equals_the_model_on_100_million_packets() {
    for seed in 2..=101 {
        compare(seed, times("WAYLEAVE_SCION_PACKETS", 1_000_000));
    }
}

#[test]
fn noise_is_refused_as_the_model_refuses_it() {
    let mut source = Random(9);
    let (mut router, model) = (router(), Model { here: HERE, key: KEY, down: Vec::new() });
    for _ in 0..times("WAYLEAVE_SCION_PACKETS", 1_000_000) / 10 {
        let mut packet: Vec<u8> = (0..source.below(200)).map(|_| source.next() as u8).collect();
        if source.one_in(2) && packet.len() > 40 {
            // Lengths that fit, so that the noise gets further.
            (packet[0], packet[5], packet[8], packet[9]) = (0, (packet.len() / 4) as u8, 1, 0);
            let payload = (packet.len() % 4) as u16;
            packet[6..8].copy_from_slice(&payload.to_be_bytes());
        }
        let verdict = model.process(&mut packet.clone(), Ingress::External(21), now());
        let (action, _) = super::fixture::process(&mut router, &packet, Ingress::External(21), now());
        let (Action::Drop(reason) | Action::Answer(reason)) = action else { panic!("{action:?} {packet:02x?}") };
        assert_eq!(Verdict::Refuse(reason), verdict, "{packet:02x?}");
    }
}

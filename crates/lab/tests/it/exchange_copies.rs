//! A process that is copied, or resumed from an older state, repeats no mask, seed, share, salt, opening or key.
//!
//! Machines are functions of their inputs, so two runs of one seed and one history are a copy of one another. From a
//! point on they get other entropy, or the same entropy for other secrets.
//!
//! SIX, S17: a process is copied, or resumed from an older state, with other entropy, or with the same entropy and
//! other secrets: no salt, seed, opening, key, share, commitment, session or correlation twice.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::common::{LIMIT, in_both_modes, nlri, policy, route};
use wayleave_lab::sim::{Node, PARTIES, Recorded, Setup, Sim};
use wayleave_route_server::frames::{FromMember, PartyFrame};
use wayleave_route_server::object::ExportMode;

/// Octets that two runs cannot have alike by chance.
const BLOCK: usize = 16;
/// Messages of the engine from this length on hold base transfers or correlations.
const SETUP: usize = 1024;

fn rest(sim: &mut Sim) {
    assert!(sim.settle(LIMIT), "the exchange did not come to rest");
}

/// An exchange with routes of two members to the same prefixes, and pools that are full.
fn history(export: ExportMode) -> Sim {
    let mut sim = Sim::new(Setup { members: 4, seed: 61, export, ..Setup::default() });
    sim.recording = Some(Vec::new());
    for slot in 0..2 {
        for prefix in 0..3 {
            sim.announce(slot, &[nlri(&format!("20.{prefix}.0.0/16"))], &route(slot, &[64500], &[]));
        }
    }
    rest(&mut sim);
    sim.fill_pools();
    sim
}

/// What two runs sent, from the point on at which one became the copy of the other.
fn copies(export: ExportMode, runs: [&dyn Fn(&mut Sim); 2]) -> [Vec<Recorded>; 2] {
    let mut sims = [history(export), history(export)];
    let before = sims.each_mut().map(|sim| sim.recording.replace(Vec::new()).expect("it records"));
    assert!(before[0] == before[1] && !before[0].is_empty(), "the copy has the same history");
    for (sim, run) in sims.iter_mut().zip(runs) {
        run(sim);
    }
    sims.map(|mut sim| sim.recording.take().expect("it records"))
}

/// All random octets in what `sender` sent: what it draws, and what it masks, seals or hashes with that.
fn random(frames: &[Recorded], sender: Node) -> BTreeSet<Vec<u8>> {
    let mut out: Vec<Vec<u8>> = Vec::new();
    for frame in frames.iter().filter(|frame| frame.from == sender) {
        match (frame.from, frame.to) {
            (Node::Member(_), _) => match FromMember::decode(&frame.bytes).expect("a frame") {
                FromMember::Hello { session, .. } => out.push(session.to_vec()),
                FromMember::SubmitOne { header, body } => {
                    out.push(header.description.salt.to_vec());
                    out.extend(header.commitments.iter().map(|commitment| commitment.0.to_vec()));
                    if let Some((share, blob)) = body {
                        out.extend([share.opening.to_vec(), share.seed.expose().to_vec(), blob[..32].to_vec()]);
                        out.extend(blob[32..].chunks_exact(BLOCK).map(<[u8]>::to_vec));
                    }
                }
                FromMember::SubmitTwo { share, .. } => {
                    if let Some(share) = share {
                        out.push(share.opening.to_vec());
                        out.extend(share.row.chunks_exact(BLOCK).map(<[u8]>::to_vec));
                    }
                }
                FromMember::RankOne { row, seed, .. } => out.extend([row.to_vec(), seed.expose().to_vec()]),
                FromMember::RankTwo { share, .. } => out.extend((share.len() >= BLOCK).then_some(share)),
                FromMember::Begin { .. }
                | FromMember::Holds { .. }
                | FromMember::Buckets { .. }
                | FromMember::ObjectNames { .. }
                | FromMember::InstanceNames { .. }
                | FromMember::Credit { .. } => {}
            },
            (Node::Party(_), Node::Party(_)) => match PartyFrame::decode(&frame.bytes).expect("a frame") {
                PartyFrame::Hello { nonce, .. } => out.push(nonce.to_vec()),
                PartyFrame::Engine { bytes, .. } if bytes.len() >= SETUP => {
                    out.extend(bytes[BLOCK..].chunks_exact(BLOCK).map(<[u8]>::to_vec));
                }
                _ => {}
            },
            (Node::Party(_), Node::Member(_)) => {}
        }
    }
    out.into_iter().filter(|octets| octets.iter().any(|octet| *octet != 0)).collect()
}

fn assert_disjoint(runs: &[Vec<Recorded>; 2], senders: &[Node], least: usize) {
    for sender in senders {
        let [one, two] = runs.each_ref().map(|frames| random(frames, *sender));
        assert!(one.len() >= least && two.len() >= least, "{sender:?}: {} and {}", one.len(), two.len());
        let repeated: Vec<&Vec<u8>> = one.intersection(&two).collect();
        assert!(repeated.is_empty(), "{sender:?} repeats {} of {}: {:02x?}", repeated.len(), one.len(), repeated[0]);
    }
}

/// The same inputs for the copy and for the original.
fn go_on(sim: &mut Sim) {
    sim.announce(0, &[nlri("20.9.0.0/16")], &route(0, &[64500], &["64496:0:65002"]));
    sim.announce(1, &[nlri("20.9.0.0/16")], &route(1, &[64500], &[]));
    sim.withdraw(1, &[nlri("20.0.0.0/16")]);
    rest(sim);
    sim.join();
    rest(sim);
}

in_both_modes!(a_copied_process_repeats_nothing_that_the_original_sends);
fn a_copied_process_repeats_nothing_that_the_original_sends(export: ExportMode) {
    let run = |branch| {
        move |sim: &mut Sim| {
            sim.diverge(branch);
            go_on(sim);
        }
    };
    let runs = copies(export, [&run(1), &run(2)]);
    assert_disjoint(&runs, &[Node::Member(0), Node::Member(1)], 40);
    assert_disjoint(&runs, &[Node::Member(2), Node::Member(3)], 2);
}

in_both_modes!(parties_that_are_resumed_make_other_sessions_and_other_correlations);
fn parties_that_are_resumed_make_other_sessions_and_other_correlations(export: ExportMode) {
    let run = |branch| {
        move |sim: &mut Sim| {
            sim.cut_all();
            sim.diverge(branch);
            rest(sim);
            go_on(sim);
            sim.fill_pools();
        }
    };
    let runs = copies(export, [&run(1), &run(2)]);
    assert_disjoint(&runs, &PARTIES, 1000);
    assert_disjoint(&runs, &[Node::Member(0), Node::Member(1)], 40);
}

in_both_modes!(entropy_that_repeats_gives_nothing_twice_for_other_secrets);
fn entropy_that_repeats_gives_nothing_twice_for_other_secrets(export: ExportMode) {
    let run = |hidden_from: &'static str, preferred: u32| {
        move |sim: &mut Sim| {
            sim.freeze_entropy();
            sim.announce(0, &[nlri("20.9.0.0/16")], &route(0, &[64500], &[hidden_from]));
            let rule = format!("[[rule]]\ndirection = \"import\"\npeer = [\"{preferred}\"]\nclass = 250\n");
            sim.set_policy(2, policy(&rule));
            rest(sim);
        }
    };
    let runs = copies(export, [&run("64496:0:65002", 65_000), &run("64496:0:65003", 65_001)]);
    assert_disjoint(&runs, &[Node::Member(0)], 36);
    assert_disjoint(&runs, &[Node::Member(2)], 2);
}

in_both_modes!(a_party_whose_wall_clock_jumps_uses_no_correlation_of_the_session_before);
fn a_party_whose_wall_clock_jumps_uses_no_correlation_of_the_session_before(export: ExportMode) {
    let sessions = |sim: &mut Sim| {
        let frames = sim.recording.replace(Vec::new()).expect("it records");
        let decoded = frames.iter().filter(|frame| frame.from == PARTIES[0] && frame.to == PARTIES[1]);
        decoded.filter(|frame| matches!(PartyFrame::decode(&frame.bytes), Ok(PartyFrame::Hello { .. }))).count()
    };
    let mut sim = history(export);
    sessions(&mut sim);
    sim.set_wall_clock_forward(Duration::from_secs(9));
    go_on(&mut sim);
    assert_eq!(sessions(&mut sim), 0, "clocks are set now and then");
    sim.set_wall_clock_forward(Duration::from_secs(3600));
    sim.withdraw(1, &[nlri("20.1.0.0/16")]);
    rest(&mut sim);
    assert!(sessions(&mut sim) > 0);
    assert!(sim.closed.iter().any(|(.., reason)| reason.contains("wall clock jumped")), "{:?}", sim.closed);
}

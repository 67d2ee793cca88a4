//! The vector paths of Platypus: their results are those of the plain code in `packet`.

mod burst;
#[path = "../../../../../packet/tests/it/platypus/random.rs"]
mod random;
mod stamp;
mod uniform;
#[allow(dead_code, reason = "shared with the tests of packet, which use all of it")]
#[path = "../../../../../packet/tests/it/platypus/world.rs"]
mod world;

use wayleave_core::UnixTime;
use wayleave_dataplane::platypus::Forwarding;
use wayleave_dataplane::platypus::lanes::{BurstVerifier, Decision, Verdicts};
use wayleave_packet::platypus::verify::{Arrival, Charge, Verdict, Waypoint, verify};

use crate::common::times;

/// What follows from a decision: octets as they leave, who pays, and what the packet is known by; or the refusal.
type Effects = Result<(Vec<u8>, Charge, [u8; 16]), Verdict>;

fn effects(forward: &impl Forwarding, datagram: &[u8]) -> Effects {
    let mut out = datagram.to_vec();
    forward.apply(&mut out);
    Ok((out, forward.charge(datagram), forward.fingerprint(datagram)))
}

/// The effects of `verify` on one packet.
fn one_by_one(waypoints: &[Waypoint], datagram: &[u8], now: UnixTime) -> Effects {
    one_by_one_from(waypoints, datagram, Arrival::Ip, now)
}

/// The same for a packet that came as `arrival` says.
fn one_by_one_from(waypoints: &[Waypoint], datagram: &[u8], arrival: Arrival, now: UnixTime) -> Effects {
    match verify(waypoints, datagram, arrival, now) {
        Verdict::Forward(forward) => effects(&forward, datagram),
        refused => Err(refused),
    }
}

/// The effects of the vector path on each packet of a burst.
fn in_lanes(verifier: &mut BurstVerifier, waypoints: &[Waypoint], datagrams: &[&[u8]], now: UnixTime) -> Vec<Effects> {
    in_lanes_from(verifier, waypoints, datagrams, &|_| Arrival::Ip, now)
}

/// The same for packets that came as `arrival` says.
fn in_lanes_from(
    verifier: &mut BurstVerifier,
    waypoints: &[Waypoint],
    datagrams: &[&[u8]],
    arrival: &dyn Fn(usize) -> Arrival,
    now: UnixTime,
) -> Vec<Effects> {
    let mut verdicts = Verdicts::default();
    verifier.verify(waypoints, datagrams, arrival, now, &mut verdicts);
    let of = |(index, datagram): (usize, &&[u8])| match verdicts.get(index) {
        Decision::Simple(forward) => effects(&forward, datagram),
        Decision::General(Verdict::Forward(forward)) => effects(&forward, datagram),
        Decision::General(refused) => Err(refused),
    };
    datagrams.iter().enumerate().map(of).collect()
}

/// How many random cases a test makes: `WAYLEAVE_PLATYPUS_CASES`, or `default`.
fn cases(default: u64) -> u64 {
    times("WAYLEAVE_PLATYPUS_CASES", default as usize) as u64
}

/// How many packets the waypoint and its model are given.
fn packets(default: u64) -> u64 {
    times("WAYLEAVE_PLATYPUS_PACKETS", default as usize) as u64
}

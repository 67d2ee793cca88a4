//! BFD sessions in virtual time: states, intervals, polls and detection as RFC 5880 has them.
//!
//! BFD-01: every state by every state of the other end; polls, silence, other sessions, demands; links that lose,
//! double and delay packets: as RFC 5880, sections 6.2 and 6.8.
//! BFD-01, forged: packets that name no session and say that their sender is down, with endless intervals and polls; an
//! other end that begins anew: a session that is up does not hear them; noticed within the detection time.

use std::num::NonZeroU32;
use std::time::Duration;

use wayleave_core::Instant;
use wayleave_dataplane::bfd::{Config, ControlPacket, Diagnostic, Output, Session, State};

const MILLISECOND: u64 = 1_000_000;
/// The link's delay.
const DELAY: u64 = 5 * MILLISECOND;

fn config(number: u32) -> Config {
    Config {
        discriminator: NonZeroU32::new(number).expect("not zero"),
        desired_min_tx: 200_000,
        required_min_rx: 200_000,
        detect_multiplier: 3,
        seed: u64::from(number),
    }
}

/// A packet as the other end of `session` would send it.
fn heard(state: State, yours: Option<u32>) -> ControlPacket {
    ControlPacket {
        diagnostic: Diagnostic::NONE,
        state,
        poll: false,
        is_final: false,
        is_independent: false,
        demand: false,
        detect_multiplier: 3,
        mine: NonZeroU32::new(99).expect("not zero"),
        yours: yours.and_then(NonZeroU32::new),
        desired_min_tx: 200_000,
        required_min_rx: 200_000,
        required_min_echo_rx: 0,
    }
}

fn drain(session: &mut Session) -> Vec<Output> {
    std::iter::from_fn(|| session.poll()).collect()
}

fn sent(outputs: &[Output]) -> Vec<ControlPacket> {
    outputs.iter().filter_map(|output| if let Output::Send(packet) = output { Some(*packet) } else { None }).collect()
}

fn at(milliseconds: u64) -> Instant {
    Instant(milliseconds * MILLISECOND)
}

/// A session that is up since `at(0)`, with the other end's poll answered.
fn up() -> Session {
    let mut session = Session::new(config(1), at(0));
    session.receive(&heard(State::Down, None), at(0));
    session.receive(&heard(State::Init, Some(1)), at(0));
    session.receive(&ControlPacket { is_final: true, ..heard(State::Up, Some(1)) }, at(0));
    drain(&mut session);
    assert_eq!(session.state(), State::Up);
    session
}

/// Two ends and the packets between them.
struct Pair {
    ends: [Session; 2],
    /// Arrival, which end, packet.
    flying: Vec<(u64, usize, ControlPacket)>,
    now: u64,
    sent: [Vec<(u64, ControlPacket)>; 2],
    changes: Vec<(u64, usize, State, u8)>,
}

impl Pair {
    fn new() -> Self {
        let ends = [Session::new(config(1), at(0)), Session::new(config(2), at(0))];
        Self { ends, flying: Vec::new(), now: 0, sent: [Vec::new(), Vec::new()], changes: Vec::new() }
    }

    /// Runs until `end`; `fate` gives the delay of each packet, or none if the packet is lost.
    fn run(&mut self, end: u64, mut fate: impl FnMut(usize) -> Vec<u64>) {
        loop {
            let due = self.ends.iter().filter_map(Session::deadline).map(|due| due.0).min().unwrap_or(u64::MAX);
            let arrival = self.flying.iter().map(|(at, ..)| *at).min().unwrap_or(u64::MAX);
            let next = due.min(arrival).max(self.now);
            if next >= end {
                self.now = end;
                return;
            }
            self.now = next;
            let arrived: Vec<_> = self.flying.extract_if(.., |(at, ..)| *at <= next).collect();
            for (_, end, packet) in arrived {
                let packet = ControlPacket::decode(&packet.encode()).expect("sound");
                self.ends[end].receive(&packet, Instant(next));
            }
            for end in 0..2 {
                self.ends[end].handle_timeout(Instant(next));
                for output in drain(&mut self.ends[end]) {
                    match output {
                        Output::Send(packet) => {
                            self.sent[end].push((next, packet));
                            self.flying.extend(fate(end).into_iter().map(|delay| (next + delay, 1 - end, packet)));
                        }
                        Output::Changed(state, diagnostic) => {
                            self.changes.push((next, end, state, diagnostic.number()));
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn two_ends_come_up_in_three_steps_and_then_send_at_their_own_rate() {
    let mut pair = Pair::new();
    pair.run(10_000 * MILLISECOND, |_| vec![DELAY]);
    let steps: Vec<(usize, State)> = pair.changes.iter().map(|(_, end, state, _)| (*end, *state)).collect();
    assert_eq!(steps, [(0, State::Init), (1, State::Init), (0, State::Up), (1, State::Up)]);
    for sent in &pair.sent {
        assert_eq!((sent[0].1.state, sent[0].1.desired_min_tx, sent[0].1.yours), (State::Down, 1_000_000, None));
        let settled: Vec<_> = sent.iter().filter(|(at, _)| *at > 2_000 * MILLISECOND).collect();
        assert!(settled.iter().all(|(_, packet)| packet.state == State::Up && !packet.poll && !packet.is_final));
        // 8 seconds of intervals between 150 and 200 milliseconds.
        assert!((40..=54).contains(&settled.len()), "{}", settled.len());
        for pair in settled.windows(2) {
            let interval = pair[1].0 - pair[0].0;
            assert!((150 * MILLISECOND..=200 * MILLISECOND).contains(&interval), "{interval}");
        }
        assert!(settled.windows(3).any(|three| three[1].0 - three[0].0 != three[2].0 - three[1].0), "not spread");
    }
    // The change from the slow interval was polled, and answered.
    assert!(pair.sent.iter().all(|sent| sent.iter().any(|(_, packet)| packet.poll)));
    assert!(pair.sent.iter().all(|sent| sent.iter().any(|(_, packet)| packet.is_final)));
}

#[test]
fn while_it_is_not_up_a_session_sends_once_a_second_at_most() {
    let mut pair = Pair::new();
    pair.run(60_000 * MILLISECOND, |_| Vec::new());
    assert!(pair.changes.is_empty());
    for sent in &pair.sent {
        assert!((60..=81).contains(&sent.len()), "{}", sent.len());
        assert!(sent.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 750 * MILLISECOND));
    }
}

#[test]
fn silence_for_the_detection_time_ends_a_session_and_no_moment_less() {
    let mut session = up();
    session.handle_timeout(Instant(600 * MILLISECOND - 1));
    assert_eq!(session.state(), State::Up);
    session.handle_timeout(at(600));
    let outputs = drain(&mut session);
    assert!(outputs.contains(&Output::Changed(State::Down, Diagnostic::TIME_EXPIRED)));
    let last = *sent(&outputs).last().expect("told at once");
    assert_eq!((last.state, last.diagnostic, last.yours), (State::Down, Diagnostic::TIME_EXPIRED, None));
    // The other end's own interval and multiplier count, if they are greater.
    let mut session = up();
    let slow = ControlPacket { desired_min_tx: 400_000, detect_multiplier: 5, ..heard(State::Up, Some(1)) };
    session.receive(&slow, at(100));
    session.handle_timeout(at(2_099));
    assert_eq!(session.state(), State::Up);
    session.handle_timeout(at(2_100));
    assert_eq!(session.state(), State::Down);
}

#[test]
fn every_state_follows_from_the_other_ends_as_the_rfc_draws_it() {
    use State::{AdminDown, Down, Init, Up};
    // RFC 5880, section 6.2: from Down, Init and Up by the state that is received.
    let table = [
        (Down, [(AdminDown, Down), (Down, Init), (Init, Up), (Up, Down)]),
        (Init, [(AdminDown, Down), (Down, Init), (Init, Up), (Up, Up)]),
        (Up, [(AdminDown, Down), (Down, Down), (Init, Up), (Up, Up)]),
    ];
    for (from, row) in table {
        for (said, to) in row {
            let mut session = match from {
                Up => up(),
                _ => Session::new(config(1), at(0)),
            };
            if from == Init {
                session.receive(&heard(Down, None), at(0));
            }
            assert_eq!(session.state(), from);
            session.receive(&heard(said, Some(1)), at(1));
            assert_eq!(session.state(), to, "{from:?} hears {said:?}");
            if to == Down && from != Down {
                let change = Output::Changed(Down, Diagnostic::NEIGHBOR_DOWN);
                assert!(drain(&mut session).contains(&change), "{from:?} hears {said:?}");
            }
        }
    }
}

#[test]
fn a_poll_is_answered_at_once_and_alone() {
    let mut session = up();
    session.receive(&ControlPacket { poll: true, ..heard(State::Up, Some(1)) }, at(1));
    let answers = sent(&drain(&mut session));
    assert_eq!(answers.len(), 1);
    assert!(answers[0].is_final && !answers[0].poll);
}

#[test]
fn packets_of_other_sessions_are_passed_over() {
    let mut session = up();
    let before = session.deadline();
    session.receive(&heard(State::Down, Some(2)), at(10));
    assert_eq!((session.state(), session.deadline()), (State::Up, before));
    assert!(drain(&mut session).is_empty());
}

#[test]
fn a_session_that_is_up_hears_nobody_who_does_not_know_its_discriminator() {
    for said in [State::Down, State::AdminDown] {
        let mut session = up();
        let before = session.deadline();
        // With a detection time of days, if it were believed.
        let forged = ControlPacket {
            poll: true,
            detect_multiplier: 255,
            desired_min_tx: u32::MAX,
            required_min_rx: u32::MAX,
            ..heard(said, None)
        };
        (0..100).for_each(|_| session.receive(&forged, at(10)));
        assert_eq!((session.state(), session.deadline()), (State::Up, before));
        assert!(drain(&mut session).is_empty());
    }
}

#[test]
fn an_other_end_that_begins_anew_is_noticed_within_the_detection_time_and_heard_again() {
    let mut pair = Pair::new();
    pair.run(10_000 * MILLISECOND, |_| vec![DELAY]);
    assert_eq!(pair.ends.each_ref().map(Session::state), [State::Up; 2]);
    let (again, first) = (pair.now, pair.changes.len());
    pair.ends[1] = Session::new(config(3), Instant(again));
    pair.run(again + 10_000 * MILLISECOND, |_| vec![DELAY]);
    let down =
        pair.changes[first..].iter().find(|(_, end, state, _)| (*end, *state) == (0, State::Down)).expect("noticed");
    assert!(down.0 - again <= 610 * MILLISECOND, "{}", down.0 - again);
    assert_eq!(pair.ends.each_ref().map(Session::state), [State::Up; 2]);
}

#[test]
fn who_wants_no_packets_gets_none_and_who_wants_fewer_gets_fewer() {
    let mut session = up();
    session.receive(&ControlPacket { required_min_rx: 0, ..heard(State::Up, Some(1)) }, at(1));
    drain(&mut session);
    session.handle_timeout(at(500));
    assert!(drain(&mut session).is_empty());
    session.receive(
        &ControlPacket { required_min_rx: 2_000_000, desired_min_tx: 9_000_000, ..heard(State::Up, Some(1)) },
        at(510),
    );
    drain(&mut session);
    let mut times = Vec::new();
    while let Some(due) = session.deadline().filter(|due| *due < at(20_000)) {
        session.handle_timeout(due);
        times.extend(sent(&drain(&mut session)).iter().map(|_| due));
    }
    let intervals: Vec<Duration> = times.windows(2).map(|pair| pair[1].since(pair[0])).collect();
    assert!(intervals.len() >= 8 && intervals.iter().all(|interval| *interval >= Duration::from_millis(1_500)));
}

/// Links that lose, duplicate and delay packets at random, then recover, then fail: an end is up only while packets of the
/// other arrive, both are up once the link has recovered, and down once it has failed.
#[test]
fn ends_agree_after_any_weather() {
    for seed in 1..200u64 {
        let mut random = seed;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            random >> 33
        };
        let mut pair = Pair::new();
        let loss = next() % 100;
        pair.run(20_000 * MILLISECOND, |_| {
            let copies = if next() % 100 < loss { 0 } else { 1 + next() % 2 };
            (0..copies).map(|_| next() % (400 * MILLISECOND)).collect()
        });
        for end in 0..2 {
            let heard = pair.sent[1 - end].iter().any(|(_, packet)| packet.yours.is_some());
            assert!(heard || pair.ends[end].state() != State::Up, "{seed}");
        }
        pair.run(30_000 * MILLISECOND, |_| vec![DELAY]);
        assert_eq!(pair.ends.each_ref().map(Session::state), [State::Up; 2], "{seed}");
        let (before, first) = (pair.now, pair.changes.len());
        pair.run(before + 700 * MILLISECOND, |_| Vec::new());
        assert_eq!(pair.ends.each_ref().map(Session::state), [State::Down; 2], "{seed}");
        assert_eq!(pair.changes.len() - first, 2, "{seed}");
        // Two packets an interval at most, and an answer to each poll.
        let answers = |sent: &[(u64, ControlPacket)]| sent.iter().filter(|(_, packet)| packet.is_final).count();
        for (sent, heard) in pair.sent.iter().zip(pair.sent.iter().rev()) {
            let polls = heard.iter().filter(|(_, packet)| packet.poll).count();
            assert!(answers(sent) <= 2 * polls && sent.len() - answers(sent) <= 2 + 2 * 31_000 / 150, "{seed}");
        }
    }
}

/// What the fuzz target does, with random octets that are mostly near a packet.
#[test]
fn any_packets_leave_a_session_with_a_deadline_ahead_and_few_answers() {
    let mut random = 1u64;
    let mut next = move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 33
    };
    let (mut session, mut now, mut taken) = (Session::new(config(1), at(0)), 0u64, 0);
    for _ in 0..200_000 {
        now += next() % (900 * MILLISECOND);
        session.handle_timeout(Instant(now));
        let mut octets = heard(State::Down, Some(1)).encode();
        for _ in 0..next() % 4 {
            octets[next() as usize % 24] ^= 1 << (next() % 8);
        }
        octets[1] ^= (next() as u8) << 4;
        if let Ok(packet) = ControlPacket::decode(&octets) {
            assert_eq!(ControlPacket::decode(&packet.encode()), Ok(packet));
            session.receive(&packet, Instant(now));
            taken += 1;
        }
        let outputs = drain(&mut session);
        assert!(outputs.len() <= 8, "{outputs:?}");
        assert!(session.deadline().is_none_or(|due| due > Instant(now)));
    }
    assert!(taken > 10_000, "{taken}");
}

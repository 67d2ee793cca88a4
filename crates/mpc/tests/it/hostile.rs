//! Peers that send what no honest peer sends. Every case ends in an error that names the peer.
//!
//! MPC-06: other groups at the two ends: refused.
//! MPC-07: wrong counts, sizes, extra messages, a stop in mid-layer: an error that names the peer; all freed.
//! MPC-11: identity, low-order, non-canonical, repeated points: refused.
//! MPC-12: a chunk or a tree that is not as the protocol has it: refused.

use crate::common::{self, Pair, Random};
use proptest::prelude::*;
use wayleave_mpc::circuits::{SelectBest, export_all};
use wayleave_mpc::{
    BitRows, Chunk, Demand, Error, Evaluation, Fault, LockstepError, Misuse, PointFault, Pool, Program, Role, Rounds,
    SessionId, Setup, StartError, Step, Width, lockstep,
};

const CHUNK: Chunk = Chunk { width: Width::ALL[3], count: 128 };

fn by_two<T>(fault: Fault) -> Result<T, Error> {
    Err(Error::Peer { peer: Role::Party2, fault })
}

fn send<T>(step: Step<T>) -> Vec<u8> {
    match step {
        Step::Send(message) => message,
        Step::Done(_) => panic!("done where a message was due"),
    }
}

fn requested() -> [Setup; 2] {
    let mut setups = common::setups(1);
    setups.iter_mut().for_each(|setup| setup.request(CHUNK).unwrap());
    setups
}

/// Both setups after `rounds` rounds, with party 2's message of the next one.
fn setup_after(rounds: usize) -> (Setup, Vec<u8>) {
    let [mut one, mut two] = requested();
    let (mut first, mut second) = (one.round(None).unwrap(), two.round(None).unwrap());
    for _ in 0..rounds {
        let (a, b) = (send(first), send(second));
        (first, second) = (one.round(Some(&b)).unwrap(), two.round(Some(&a)).unwrap());
    }
    (one, send(second))
}

/// Party 1 gets `message` and must blame party 2 for `fault`, and be dead afterwards.
fn refuses(mut machine: impl Rounds, message: &[u8], fault: Fault) {
    assert_eq!(machine.round(Some(message)).map(|_| ()), by_two(fault));
    assert_eq!(machine.round(Some(message)).map(|_| ()), Err(Error::Caller(Misuse::Ended)));
    assert_eq!(machine.round(None).map(|_| ()), Err(Error::Caller(Misuse::Ended)));
    assert_eq!(machine.expects(), None);
}

#[test]
fn a_greeting_of_another_version_role_or_session_is_refused() {
    for (place, byte, fault) in [
        (0, 9, Fault::Version(9)),
        (1, 1, Fault::Role(1)),
        (1, 0, Fault::Role(0)),
        (2, 4, Fault::Group(4)),
        (18, 0xff, Fault::Session),
    ] {
        let (one, mut message) = setup_after(0);
        message[place] = byte;
        refuses(one, &message, fault);
    }
}

#[test]
fn two_parties_with_one_role_or_two_sessions_are_refused() {
    let setup = |role, id, seed| Setup::new(role, SessionId([id; 16]), [seed; 32]);
    let roles = lockstep(&mut setup(Role::Party1, 1, 1), &mut setup(Role::Party1, 1, 2)).map(|_| ());
    assert_eq!(roles, Err(LockstepError::End(Error::Peer { peer: Role::Party2, fault: Fault::Role(1) })));
    let ids = lockstep(&mut setup(Role::Party1, 1, 1), &mut setup(Role::Party2, 2, 2)).map(|_| ());
    assert_eq!(ids, Err(LockstepError::End(Error::Peer { peer: Role::Party2, fault: Fault::Session })));
}

#[test]
fn a_message_sent_back_is_refused() {
    let (mut one, _) = setup_after(0);
    let own = send(Setup::new(Role::Party1, SessionId([1; 16]), [1; 32]).round(None).unwrap());
    assert_eq!(one.round(Some(&own)).map(|_| ()), by_two(Fault::Role(1)));
    // With the role put right, the point is still ours.
    let (one, _) = setup_after(0);
    let mut own = own;
    own[1] = 2;
    refuses(one, &own, Fault::Point { index: 0, fault: PointFault::Repeated });
}

#[test]
fn bad_points_end_the_session() {
    let mut negative = [0u8; 32];
    negative[0] = 1;
    let mut past_the_prime = [0xff; 32];
    past_the_prime[31] = 0x7f;
    let mut order_two = past_the_prime;
    order_two[0] = 0xec;
    for (bytes, fault) in [
        ([0; 32], PointFault::Identity),
        (negative, PointFault::NotCanonical),
        (past_the_prime, PointFault::NotCanonical),
        (order_two, PointFault::NotCanonical),
        ([0xff; 32], PointFault::NotCanonical),
    ] {
        let (one, mut message) = setup_after(0);
        message[51..].copy_from_slice(&bytes);
        refuses(one, &message, Fault::Point { index: 0, fault });
        for place in [0, 1, 64, 127, 255] {
            let (one, mut message) = setup_after(1);
            message[32 * place..][..32].copy_from_slice(&bytes);
            refuses(one, &message, Fault::Point { index: place + 1, fault });
        }
    }
    let (one, mut message) = setup_after(1);
    message.copy_within(0..32, 32 * 9);
    refuses(one, &message, Fault::Point { index: 10, fault: PointFault::Repeated });
}

#[test]
fn setup_messages_of_a_wrong_length_are_refused() {
    for rounds in 0..4 {
        for change in [-1isize, 1, isize::MIN] {
            let (one, mut message) = setup_after(rounds);
            let expected = message.len();
            assert_eq!(one.expects(), Some(expected));
            message.resize(expected.saturating_add_signed(change), 0);
            refuses(one, &message, Fault::Length { expected, got: message.len() });
        }
    }
}

#[test]
fn a_chunk_out_of_step_is_refused() {
    // Width, count and number of the first transfer stand in front.
    for place in [0, 4, 8, 15] {
        let (one, mut message) = setup_after(3);
        message[place] ^= 1;
        refuses(one, &message, Fault::OutOfStep);
    }
    let [mut one, mut two] = common::setups(1);
    one.request(CHUNK).unwrap();
    two.request(Chunk { width: Width::ALL[0], ..CHUNK }).unwrap();
    let outcome = lockstep(&mut one, &mut two).map(|_| ());
    assert_eq!(outcome, by_two(Fault::OutOfStep).map_err(LockstepError::End));
}

#[test]
fn a_chunk_with_any_changed_octet_is_refused() {
    // The matrix has 63 pieces of 32 octets: 128 transfers, and 128 for the check. Behind it stand the bits and the hash of the proof.
    let (_, honest) = setup_after(3);
    assert_eq!(honest.len(), 16 + 63 * 32 + 16 + 32);
    for place in (16..honest.len()).step_by(37) {
        let (one, mut message) = setup_after(3);
        message[place] ^= 1 << (place % 8);
        refuses(one, &message, Fault::Transfers);
    }
}

#[test]
fn trees_that_are_not_whole_are_refused() {
    // For each of 64 trees: the sums of the left and right children of the second level, the sum of the tags, their hash.
    let (_, honest) = setup_after(2);
    assert_eq!(honest.len(), 64 * 96);
    for tree in [0, 1, 31, 63] {
        for place in [32, 63, 64, 95] {
            let (one, mut message) = setup_after(2);
            message[96 * tree + place] ^= 0x40;
            refuses(one, &message, Fault::Trees);
        }
        // Both sums, of which each end uses one.
        let (one, mut message) = setup_after(2);
        message[96 * tree] ^= 1;
        message[96 * tree + 16] ^= 1;
        refuses(one, &message, Fault::Trees);
    }
    // Those of another session, with another seed at the same end.
    let setup = |role, seed| Setup::new(role, SessionId([1; 16]), [seed; 32]);
    let (mut other, mut two) = (setup(Role::Party1, 1), setup(Role::Party2, 7));
    let (mut first, mut second) = (other.round(None).unwrap(), two.round(None).unwrap());
    for _ in 0..2 {
        let (a, b) = (send(first), send(second));
        (first, second) = (other.round(Some(&b)).unwrap(), two.round(Some(&a)).unwrap());
    }
    refuses(setup_after(2).0, &send(second), Fault::Trees);
}

#[test]
fn a_chunk_sent_back_is_refused() {
    let [mut one, mut two] = requested();
    let (mut first, mut second) = (one.round(None).unwrap(), two.round(None).unwrap());
    for _ in 0..3 {
        let (a, b) = (send(first), send(second));
        (first, second) = (one.round(Some(&b)).unwrap(), two.round(Some(&a)).unwrap());
    }
    let own = send(first);
    refuses(one, &own, Fault::Transfers);
}

#[test]
fn a_round_called_out_of_turn_is_an_error() {
    let [mut one, _] = common::setups(1);
    assert_eq!(one.round(Some(&[])).map(|_| ()), Err(Error::Caller(Misuse::OutOfTurn)));
    for count in [0, 1, 127, Chunk::MAX + 128] {
        assert_eq!(one.request(Chunk { count, ..CHUNK }), Err(Misuse::ChunkCount(count)));
    }
    let mut pair = Pair::new(1);
    let [left, _] = &mut pair.setups;
    assert_eq!(left.round(None).map(|_| ()), Err(Error::Caller(Misuse::NoChunk)));
    pair.chunk(CHUNK);
    assert_eq!(pair.pools[0].available(), Demand::just(CHUNK.width, 128));
}

/// Both ends of an evaluation whose inputs are zero, after `rounds` rounds, with party 2's next message.
fn evaluation_after(pair: &mut Pair, rounds: usize, lanes: usize) -> (Evaluation, Vec<u8>) {
    let program = Program::new(SelectBest::standard(3).circuit().unwrap()).unwrap();
    pair.fill(&Demand::of(&program, lanes));
    let inputs = BitRows::zero(program.input_rows(), lanes);
    let [mut one, mut two] = pair.pools.each_mut().map(|pool| Evaluation::new(&program, &inputs, pool).unwrap());
    let (mut first, mut second) = (one.round(None).unwrap(), two.round(None).unwrap());
    for _ in 0..rounds {
        let (a, b) = (send(first), send(second));
        (first, second) = (one.round(Some(&b)).unwrap(), two.round(Some(&a)).unwrap());
    }
    (one, send(second))
}

#[test]
fn evaluation_messages_of_a_wrong_length_are_refused_in_every_layer() {
    let mut pair = Pair::new(3);
    for round in 0..13 {
        for change in [-1isize, 1, 94, isize::MIN] {
            let (one, mut message) = evaluation_after(&mut pair, round, 70);
            let expected = message.len();
            assert_eq!(one.expects(), Some(expected));
            message.resize(expected.saturating_add_signed(change), 0);
            refuses(one, &message, Fault::Length { expected, got: message.len() });
        }
    }
}

#[test]
fn a_message_of_another_layer_is_refused() {
    let mut pair = Pair::new(3);
    let (_, later) = evaluation_after(&mut pair, 8, 64);
    let (one, message) = evaluation_after(&mut pair, 2, 64);
    assert_eq!(later.len(), message.len(), "the same layer of the next match");
    refuses(one, &later, Fault::OutOfStep);
    let (one, mut message) = evaluation_after(&mut pair, 0, 64);
    message[0] ^= 1;
    refuses(one, &message, Fault::OutOfStep);
}

#[test]
fn set_padding_bits_are_refused() {
    let (one, mut message) = evaluation_after(&mut Pair::new(3), 1, 70);
    let last = message.len() - 1;
    message[last] |= 0x80;
    refuses(one, &message, Fault::Padding);
}

#[test]
fn another_circuit_lane_count_or_place_in_the_pool_is_refused() {
    let program = Program::new(SelectBest::standard(4).circuit().unwrap()).unwrap();
    let other = SelectBest { precedence: wayleave_mpc::circuits::Precedence::Exchange, ..SelectBest::standard(4) };
    let other = Program::new(other.circuit().unwrap()).unwrap();
    let start = |pool: &mut Pool, program: &Program, lanes| {
        Evaluation::new(program, &BitRows::zero(program.input_rows(), lanes), pool).unwrap()
    };
    let refused = |mut one: Evaluation, mut two: Evaluation| {
        one.round(None).unwrap();
        let message = send(two.round(None).unwrap());
        assert_eq!(one.round(Some(&message)).map(|_| ()), by_two(Fault::OutOfStep));
    };
    let mut pair = Pair::new(4);
    let two_runs = Demand::of(&program, 64) * 2;
    pair.fill(&two_runs);
    let [one, two] = &mut pair.pools;
    refused(start(one, &program, 64), start(two, &other, 64));
    let mut pair = Pair::new(4);
    pair.fill(&two_runs);
    let [one, two] = &mut pair.pools;
    refused(start(one, &program, 63), start(two, &program, 64));
    let mut pair = Pair::new(4);
    pair.fill(&two_runs);
    let [one, two] = &mut pair.pools;
    drop(start(two, &program, 64)); // the peer lost one in the middle
    refused(start(one, &program, 64), start(two, &program, 64));
}

#[test]
fn changed_openings_of_some_lanes_change_the_results_of_no_others() {
    let program = Program::new(SelectBest::standard(5).circuit().unwrap()).unwrap();
    let (lanes, mut random) = (80, Random::new(12));
    let mut pair = Pair::new(12);
    for deviates in [vec![0], vec![79], vec![3, 8, 64, 65]] {
        let inputs = random.rows(program.input_rows(), lanes);
        pair.fill(&Demand::of(&program, lanes));
        let (one, two) = wayleave_mpc::split(&inputs, random.rows(inputs.rows(), lanes)).unwrap();
        let [left, right] = &mut pair.pools;
        let mut one = Evaluation::new(&program, one.rows(), left).unwrap();
        let mut two = Evaluation::new(&program, two.rows(), right).unwrap();
        let (mut first, mut second) = (one.round(None).unwrap(), two.round(None).unwrap());
        let out = loop {
            (first, second) = match (first, second) {
                (Step::Send(a), Step::Send(mut b)) => {
                    for row in b[8..].chunks_exact_mut(lanes / 8) {
                        deviates.iter().for_each(|lane| row[lane / 8] ^= ((random.word() & 1) as u8) << (lane % 8));
                    }
                    (one.round(Some(&b)).unwrap(), two.round(Some(&a)).unwrap())
                }
                (Step::Done(a), Step::Done(b)) => break a.xor(&b).unwrap(),
                _ => panic!("one end was done before the other"),
            };
        };
        let expected = program.oracle(&inputs);
        let differs = |lane: usize| (0..out.rows()).any(|row| out.bit(row, lane) != expected.bit(row, lane));
        assert!((0..lanes).all(|lane| deviates.contains(&lane) || !differs(lane)));
        assert!(deviates.iter().any(|lane| differs(*lane)), "the deviation had an effect");
    }
}

#[test]
fn an_extra_message_is_refused() {
    let mut pair = Pair::new(5);
    let program = Program::new(export_all()).unwrap();
    pair.fill(&Demand::of(&program, 8));
    let inputs = BitRows::zero(program.input_rows(), 8);
    let [mut one, mut two] = pair.pools.map(|mut pool| Evaluation::new(&program, &inputs, &mut pool).unwrap());
    one.round(None).unwrap();
    let message = send(two.round(None).unwrap());
    assert!(matches!(one.round(Some(&message)), Ok(Step::Done(_))));
    assert_eq!(one.expects(), None);
    assert_eq!(one.round(Some(&message)).map(|_| ()), Err(Error::Caller(Misuse::Ended)));
}

#[test]
fn a_stop_in_mid_layer_loses_the_correlations_and_nothing_else() {
    let mut pair = Pair::new(6);
    let program = Program::new(SelectBest::standard(2).circuit().unwrap()).unwrap();
    let once = Demand::of(&program, 10);
    pair.fill(&(once * 2));
    let before = pair.pools[0].available();
    let inputs = BitRows::zero(program.input_rows(), 10);
    for pool in &mut pair.pools {
        let mut stopped = Evaluation::new(&program, &inputs, pool).unwrap();
        stopped.round(None).unwrap();
        drop(stopped);
        assert_eq!(pool.available() + once, before);
    }
    // Both ends lost the same, so the next evaluation is right.
    let out = pair.evaluate(&program, &inputs, &mut Random::new(6));
    assert!(out == program.oracle(&inputs));
}

#[test]
fn an_empty_pool_refuses_and_loses_nothing() {
    let mut pair = Pair::new(7);
    let program = Program::new(export_all()).unwrap();
    pair.fill(&Demand::of(&program, 100));
    let before = pair.pools[0].available();
    let inputs = BitRows::zero(program.input_rows(), 129);
    let width = Width::fitting(128).unwrap();
    let refused = Evaluation::new(&program, &inputs, &mut pair.pools[0]).map(|_| ());
    assert_eq!(refused, Err(StartError::NotEnough { width, have: 128, need: 129 }));
    let rows = BitRows::zero(1, 1);
    let refused = Evaluation::new(&program, &rows, &mut pair.pools[0]).map(|_| ());
    assert_eq!(refused, Err(StartError::Caller(Misuse::InputRows { expected: 257, got: 1 })));
    assert_eq!(pair.pools[0].available(), before);
}

#[test]
fn a_pool_takes_only_what_continues_it() {
    let stock = |setups: &mut [Setup; 2]| {
        let [one, two] = setups;
        one.request(CHUNK).unwrap();
        two.request(CHUNK).unwrap();
        lockstep(one, two).unwrap()
    };
    let (mut ours, mut others) = (Pair::new(8), Pair::new(9));
    let ((first, of_two), (second, _)) = (stock(&mut ours.setups), stock(&mut ours.setups));
    let mut pool = Pool::new(2 * 17 * 128 / 8);
    pool.add(first).unwrap();
    assert_eq!(pool.add(of_two), Err(Misuse::ForeignCorrelations));
    assert_eq!(pool.add(stock(&mut others.setups).0), Err(Misuse::ForeignCorrelations));
    let (third, _) = stock(&mut ours.setups);
    assert_eq!(pool.add(third), Err(Misuse::ForeignCorrelations), "a gap in the numbers");
    pool.add(second).unwrap();
    assert_eq!(pool.free_bytes(), 0);
    let (fourth, _) = stock(&mut ours.setups);
    let mut small = Pool::new(271);
    assert!(matches!(small.add(fourth), Err(Misuse::ForeignCorrelations | Misuse::PoolFull(_))));
}

#[test]
fn every_flipped_bit_of_a_message_gives_an_error_or_another_result_but_no_panic() {
    let mut pair = Pair::new(3);
    let (_, message) = evaluation_after(&mut pair, 0, 3);
    for bit in 0..8 * message.len() {
        let (mut one, mut message) = evaluation_after(&mut pair, 0, 3);
        message[bit / 8] ^= 1 << (bit % 8);
        let outcome = one.round(Some(&message));
        assert_eq!(outcome.is_err(), bit < 64 || bit % 8 > 2, "bit {bit}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_bytes_make_setup_panic(rounds in 0usize..4, bytes in prop::collection::vec(any::<u8>(), 0..5000), keep in any::<bool>()) {
        let (mut one, mut message) = setup_after(rounds);
        if keep {
            message.iter_mut().zip(&bytes).skip(19).for_each(|(to, from)| *to ^= from & 0x11);
        } else {
            message = bytes;
        }
        let _ = one.round(Some(&message));
    }

    #[test]
    fn no_bytes_make_an_evaluation_panic(rounds in 0usize..13, lanes in 0usize..80, bytes in prop::collection::vec(any::<u8>(), 0..5000), keep in any::<bool>()) {
        let (mut one, mut message) = evaluation_after(&mut Pair::new(3), rounds, lanes);
        if keep {
            message.iter_mut().zip(&bytes).skip(8).for_each(|(to, from)| *to ^= from);
        } else {
            message = bytes;
        }
        let _ = one.round(Some(&message));
    }
}

//! Exact counts, sizes that follow from the public shape alone, and correlations that are used once.
//!
//! MPC-05: correlation numbers over many lives; chunks that reach the two pools at other moments: none used twice; the
//! same at both ends.

use std::collections::HashMap;
use std::ops::Add;

use crate::common::{self, Pair, Random};
use wayleave_crypto::hash::hash;
use wayleave_mpc::circuits::{SelectBest, export_all};
use wayleave_mpc::{
    BitRows, Chunk, CorrelationRange, Counts, DEFAULT_CHUNK, Demand, Evaluation, EvaluationBatch, GroupBits, Pool,
    Program, Role, Rounds, SessionId, SessionTag, Setup, Step, Width, lockstep, split,
};

fn program(routes: usize) -> Program {
    Program::new(SelectBest::standard(routes).circuit().unwrap()).unwrap()
}

/// The messages of party 1 and of party 2, round by round.
type Sent = [Vec<Vec<u8>>; 2];

/// Both outputs, and what was sent.
fn recorded<R: Rounds>(mut one: R, mut two: R) -> ((R::Output, R::Output), Sent) {
    let (mut first, mut second) = (one.round(None).unwrap(), two.round(None).unwrap());
    let mut sent = Sent::default();
    loop {
        (first, second) = match (first, second) {
            (Step::Send(a), Step::Send(b)) => {
                assert_eq!((one.expects(), two.expects()), (Some(b.len()), Some(a.len())));
                let next = (one.round(Some(&b)).unwrap(), two.round(Some(&a)).unwrap());
                sent[0].push(a);
                sent[1].push(b);
                next
            }
            (Step::Done(a), Step::Done(b)) => return ((a, b), sent),
            _ => panic!("one end was done before the other"),
        };
    }
}

fn messages<R: Rounds>(one: R, two: R) -> Sent {
    recorded(one, two).1
}

#[test]
fn rounds_messages_bytes_and_correlations_are_these() {
    // Routes: rounds, bytes each party sends online, correlations a lane, bytes each party sends in setup; 750 lanes.
    for (routes, rounds, online, correlations, setup) in [
        (2, 7, 10_490, 35, 211_936),
        (4, 13, 31_312, 103, 618_352),
        (8, 19, 73_002, 239, 1_429_232),
        (16, 25, 156_428, 511, 3_047_840),
        (32, 31, 323_326, 1055, 6_288_144),
    ] {
        let program = program(routes);
        let demand = Demand::of(&program, 750);
        let predicted = Counts::online(&program, 750);
        assert_eq!(predicted, Counts { rounds, messages: rounds, bytes_sent: online }, "{routes} routes");
        assert_eq!(demand.total(), 750 * correlations, "{routes} routes");
        assert_eq!(Counts::setup(GroupBits::STANDARD, &demand, DEFAULT_CHUNK).bytes_sent, setup, "{routes} routes");

        let mut pair = Pair::new(1);
        pair.fill(&demand);
        let inputs = BitRows::zero(program.input_rows(), 750);
        let [mut one, mut two] = pair.pools.map(|mut pool| {
            let before = pool.available();
            let evaluation = Evaluation::new(&program, &inputs, &mut pool).unwrap();
            assert_eq!(before.beyond(&pool.available()), demand);
            evaluation
        });
        lockstep(&mut one, &mut two).unwrap();
        assert_eq!((one.counts(), two.counts()), (predicted, predicted));
    }
}

#[test]
fn larger_groups_send_less_in_setup() {
    let demand = Demand::of(&program(32), 750);
    let bytes = GroupBits::ALL.map(|group| Counts::setup(group, &demand, DEFAULT_CHUNK).bytes_sent);
    assert_eq!(bytes, [12_672_784, 6_288_144, 3_095_824, 1_499_664]);
    assert_eq!(GroupBits::ALL.map(GroupBits::tree_bytes), [8_192, 6_144, 5_120, 4_608]);
    assert_eq!([0, 3, 16, 255].map(GroupBits::new), [None; 4]);
}

#[test]
fn export_all_is_one_round() {
    let program = Program::new(export_all()).unwrap();
    assert_eq!(Counts::online(&program, 750), Counts { rounds: 1, messages: 1, bytes_sent: 8 + 129 * 94 });
    assert_eq!(Demand::of(&program, 750), Demand::just(Width::ALL[7], 750));
}

#[test]
fn setup_sends_what_was_counted() {
    let demand = Demand::of(&program(4), 100);
    let [mut one, mut two] = common::setups(2);
    for chunk in demand.chunks(1024) {
        one.request(chunk).unwrap();
        two.request(chunk).unwrap();
    }
    let sent = messages(&mut one, &mut two);
    let base: usize = sent[0][..3].iter().map(Vec::len).sum();
    assert_eq!(base, Setup::base_bytes(GroupBits::STANDARD));
    assert_eq!(base, 83 + 2 * 128 * 32 + 6_144);
    let mut counts = Counts::default();
    sent[0][3..].iter().for_each(|message| counts.add(message.len()));
    while one.pending() > 0 {
        let sent = messages(&mut one, &mut two);
        sent[0].iter().for_each(|message| counts.add(message.len()));
    }
    assert_eq!(counts, Counts::setup(GroupBits::STANDARD, &demand, 1024));
}

#[test]
fn sizes_and_order_follow_from_the_public_shape_alone() {
    let program = program(5);
    let mut random = Random::new(3);
    let mut shapes: Option<[Vec<usize>; 2]> = None;
    for (seed, fixed) in [(1, true), (2, true), (3, false), (4, false), (5, false)] {
        let mut pair = Pair::new(seed);
        pair.fill(&Demand::of(&program, 77));
        let mut inputs = random.rows(program.input_rows(), 77);
        if fixed {
            inputs = BitRows::zero(program.input_rows(), 77);
        }
        let (one, two) = split(&inputs, random.rows(program.input_rows(), 77)).unwrap();
        let [left, right] = &mut pair.pools;
        let one = Evaluation::new(&program, one.rows(), left).unwrap();
        let two = Evaluation::new(&program, two.rows(), right).unwrap();
        let sizes = messages(one, two).map(|sent| sent.iter().map(Vec::len).collect());
        assert_eq!(*shapes.get_or_insert(sizes.clone()), sizes);
    }
}

#[test]
fn setup_may_run_between_two_evaluations_of_one_link() {
    let (program, mut random) = (program(6), Random::new(4));
    let mut pair = Pair::new(4);
    for lanes in [3, 200, 1, 64, 129] {
        let inputs = random.rows(program.input_rows(), lanes);
        assert!(pair.evaluate(&program, &inputs, &mut random) == program.oracle(&inputs));
        pair.chunk(Chunk { width: Width::ALL[1], count: 256 });
        assert_eq!(pair.pools[0].available(), pair.pools[1].available());
    }
}

#[test]
fn when_correlations_reach_a_pool_does_not_change_which_an_evaluation_takes() {
    // Chunks are made in one order and evaluations start in one order; at each end they meet in another way.
    let work: Vec<(Program, usize)> =
        [(3, 40), (5, 200), (2, 1), (8, 130), (3, 64)].map(|(routes, lanes)| (program(routes), lanes)).into();
    let of = |(program, lanes): &(Program, usize)| Demand::of(program, *lanes);
    let whole = work.iter().map(of).fold(Demand::default(), Add::add);
    for seed in 0..20 {
        let mut random = Random::new(100 + seed);
        let [mut one, mut two] = common::setups(u8::try_from(seed).unwrap());
        let mut made: [std::collections::VecDeque<_>; 2] = Default::default();
        // In an order of widths that differs from that of the evaluations, and with more than they take.
        let mut chunks = (whole + Demand::just(Width::ALL[0], 500)).chunks(256);
        for place in 0..chunks.len() {
            let other = place + random.below(chunks.len() - place);
            chunks.swap(place, other);
        }
        for chunk in chunks {
            one.request(chunk).unwrap();
            two.request(chunk).unwrap();
            let (first, second) = lockstep(&mut one, &mut two).unwrap();
            made[0].push_back(first);
            made[1].push_back(second);
        }
        let inputs: Vec<BitRows> =
            work.iter().map(|(program, lanes)| random.rows(program.input_rows(), *lanes)).collect();
        let shares: Vec<_> =
            inputs.iter().map(|all| split(all, random.rows(all.rows(), all.lanes())).unwrap()).collect();
        let mut evaluations = [Vec::new(), Vec::new()];
        for (end, started) in evaluations.iter_mut().enumerate() {
            let mut pool = Pool::new(1 << 24);
            while started.len() < work.len() {
                // Sometimes as late as can be, sometimes early.
                let next = started.len();
                let is_short = pool.missing_for(&of(&work[next])).total() > 0;
                if is_short || (random.below(2) == 0 && !made[end].is_empty()) {
                    pool.add(made[end].pop_front().unwrap()).unwrap();
                    continue;
                }
                let share = if end == 0 { shares[next].0.rows() } else { shares[next].1.rows() };
                started.push(Evaluation::new(&work[next].0, share, &mut pool).unwrap());
            }
        }
        let [ones, twos] = evaluations;
        for (((one, two), (program, _)), inputs) in ones.into_iter().zip(twos).zip(&work).zip(&inputs) {
            assert_eq!(one.consumed(), two.consumed());
            let ((first, second), _) = recorded(one, two);
            assert!(first.xor(&second).unwrap() == program.oracle(inputs));
        }
    }
}

#[test]
fn evaluations_of_many_circuits_share_their_rounds() {
    let mut random = Random::new(8);
    let mut pair = Pair::new(8);
    let work: Vec<_> = [(1, 5), (2, 70), (7, 1), (3, 0), (32, 9)]
        .into_iter()
        .map(|(routes, lanes)| (program(routes), random.rows(program(routes).input_rows(), lanes)))
        .collect();
    pair.fill(
        &work.iter().map(|(program, inputs)| Demand::of(program, inputs.lanes())).fold(Demand::default(), Add::add),
    );
    let (mut ones, mut twos) = (Vec::new(), Vec::new());
    for (program, inputs) in &work {
        let (one, two) = split(inputs, random.rows(inputs.rows(), inputs.lanes())).unwrap();
        let [left, right] = &mut pair.pools;
        ones.push(Evaluation::new(program, one.rows(), left).unwrap());
        twos.push(Evaluation::new(program, two.rows(), right).unwrap());
    }
    let (mut one, mut two) = (EvaluationBatch::new(ones), EvaluationBatch::new(twos));
    let sent = messages(&mut one, &mut two);
    assert_eq!(sent[0].len(), 31);
    let total: usize = work.iter().map(|(program, inputs)| Counts::online(program, inputs.lanes()).bytes_sent).sum();
    assert_eq!(sent[0].iter().map(Vec::len).sum::<usize>(), total);
}

#[test]
fn the_results_of_shared_rounds_are_those_of_each() {
    let mut random = Random::new(9);
    let mut pair = Pair::new(9);
    let work: Vec<_> = [(4, 65), (1, 3), (5, 2)]
        .map(|(routes, lanes)| {
            let program = program(routes);
            let inputs = random.rows(program.input_rows(), lanes);
            (program, inputs)
        })
        .into();
    pair.fill(
        &work.iter().map(|(program, inputs)| Demand::of(program, inputs.lanes())).fold(Demand::default(), Add::add),
    );
    let (mut ones, mut twos) = (Vec::new(), Vec::new());
    for (program, inputs) in &work {
        let (one, two) = split(inputs, random.rows(inputs.rows(), inputs.lanes())).unwrap();
        let [left, right] = &mut pair.pools;
        ones.push(Evaluation::new(program, one.rows(), left).unwrap());
        twos.push(Evaluation::new(program, two.rows(), right).unwrap());
    }
    let (ones, twos) = lockstep(&mut EvaluationBatch::new(ones), &mut EvaluationBatch::new(twos)).unwrap();
    for (((program, inputs), one), two) in work.iter().zip(&ones).zip(&twos) {
        assert!(one.xor(two).unwrap() == program.oracle(inputs));
    }
}

#[test]
fn no_correlation_is_used_twice_over_many_lives() {
    // A life ends at any moment, as by `kill -9`: in the middle of an evaluation at one end or both. The session id is even
    // the same one each time; only the seeds are fresh, as they must be, and in some lives at one end only.
    let (program, mut random) = (program(3), Random::new(5));
    let mut log: Vec<CorrelationRange> = Vec::new();
    for life in 0..40u8 {
        let seeds = if life % 2 == 0 { [life; 32] } else { [0; 32] };
        let id = SessionId([7; 16]);
        let setups = [Setup::new(Role::Party1, id, seeds), Setup::new(Role::Party2, id, [life ^ 0x80; 32])];
        let mut pair = Pair::of(setups, 1 << 20);
        for _ in 0..1 + random.below(3) {
            let lanes = 1 + random.below(90);
            pair.fill(&Demand::of(&program, lanes));
            let inputs = random.rows(program.input_rows(), lanes);
            let [mut one, two] = pair.pools.each_mut().map(|pool| Evaluation::new(&program, &inputs, pool).unwrap());
            assert_eq!(one.consumed(), two.consumed());
            log.extend(one.consumed());
            one.round(None).unwrap();
        }
    }
    let mut next: HashMap<(SessionTag, Width), u64> = HashMap::new();
    for used in &log {
        let next = next.entry((used.session, used.width)).or_default();
        assert!(used.first >= *next, "{used:?} was used before");
        *next = used.first + used.count as u64;
    }
    let sessions: std::collections::HashSet<_> = log.iter().map(|used| used.session).collect();
    assert_eq!(sessions.len(), 40);
}

#[test]
fn a_pool_wipes_and_forgets_what_it_gave() {
    let program = program(2);
    let mut pair = Pair::new(6);
    let demand = Demand::of(&program, 128);
    pair.fill(&demand);
    let pool = &mut pair.pools[0];
    assert_eq!(pool.available(), demand);
    assert_eq!(pool.bytes(), demand.bytes());
    let inputs = BitRows::zero(program.input_rows(), 128);
    let evaluation = Evaluation::new(&program, &inputs, pool).unwrap();
    assert_eq!((pool.available().total(), pool.bytes()), (0, 0));
    assert!(Evaluation::new(&program, &inputs, pool).is_err());
    assert_eq!(evaluation.consumed().iter().map(|used| used.count).sum::<usize>(), demand.total());
}

#[test]
fn nothing_secret_is_printed() {
    let mut pair = Pair::new(7);
    let program = program(2);
    pair.fill(&Demand::of(&program, 64));
    let inputs = Random::new(7).rows(program.input_rows(), 64);
    let (one, _) = split(&inputs, BitRows::zero(program.input_rows(), 64)).unwrap();
    let share = format!("{one:?}");
    assert_eq!(share, "Share<party 1>(BitRows { rows: 34, lanes: 64, .. })");
    let evaluation = Evaluation::new(&program, &inputs, &mut pair.pools[0]).unwrap();
    assert_eq!(format!("{evaluation:?}"), "Evaluation { role: party 1, lanes: 64, layer: 0 of 8, .. }");
    assert_eq!(format!("{:?}", pair.setups[0]), "Setup { role: party 1, state: ready, requested: [], .. }");
}

#[test]
fn known_seeds_give_known_messages() {
    // A change here is a change of the wire protocol, or of the randomness that seeds give.
    let program = program(3);
    let [mut one, mut two] = common::setups(1);
    let mut pools = [Pool::new(1 << 20), Pool::new(1 << 20)];
    let mut digest = [0u8; 32];
    let mut note = |sent: Sent| {
        for message in sent.iter().flatten() {
            digest = hash("known-answer", &[&digest, message]);
        }
    };
    for chunk in Demand::of(&program, 9).chunks(DEFAULT_CHUNK) {
        let [left, right] = [&mut one, &mut two];
        left.request(chunk).unwrap();
        right.request(chunk).unwrap();
        let (outputs, sent) = recorded(left, right);
        pools[0].add(outputs.0).unwrap();
        pools[1].add(outputs.1).unwrap();
        note(sent);
    }
    let inputs = BitRows::zero(program.input_rows(), 9);
    let [mut first, mut second] = pools.each_mut().map(|pool| Evaluation::new(&program, &inputs, pool).unwrap());
    note(recorded(&mut first, &mut second).1);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(hex(&one.tag().unwrap().0), "fa874b02184f1622bb046d93a7663c09");
    assert_eq!(hex(&digest), "76c93403a3df964866bae58260938fc1fc42acadf761f1f7ed11cb8237e1cc22");
}

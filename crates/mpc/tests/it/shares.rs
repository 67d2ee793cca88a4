//! MPC-02: what a party sees of fixed inputs looks uniformly random, and never comes twice; also where it changes what it sends.

use std::collections::HashSet;

use crate::common::{Pair, Random};
use wayleave_mpc::circuits::SelectBest;
use wayleave_mpc::{BitRows, Chunk, Demand, Evaluation, Program, Rounds, Step, Width, split};

/// Bounds of a standard normal variable with a chance of about 1e-7 on either side: fifteen statistics are taken.
const BOUND: f64 = 5.2;

/// Chi-square of byte values over 255 degrees of freedom, as a standard normal variable (Wilson and Hilferty).
fn uniformity(bytes: &[u8]) -> f64 {
    let mut counts = [0f64; 256];
    bytes.iter().for_each(|byte| counts[usize::from(*byte)] += 1.0);
    let expected = bytes.len() as f64 / 256.0;
    let square: f64 = counts.iter().map(|count| (count - expected).powi(2) / expected).sum();
    let spread = 2.0 / (9.0 * 255.0);
    ((square / 255.0).cbrt() - (1.0 - spread)) / f64::sqrt(spread)
}

/// Correlation of each byte with the one `lag` after it, as a standard normal variable.
fn serial_correlation(bytes: &[u8], lag: usize) -> f64 {
    let (middle, variance) = (127.5, (256.0 * 256.0 - 1.0) / 12.0);
    let pairs = bytes.iter().zip(&bytes[lag..]);
    let sum: f64 = pairs.map(|(a, b)| (f64::from(*a) - middle) * (f64::from(*b) - middle)).sum();
    sum / variance / ((bytes.len() - lag) as f64).sqrt()
}

fn looks_random(name: &str, bytes: &[u8], seen: &mut HashSet<[u8; 16]>) {
    assert!(bytes.len() > 1_000_000, "{name}: {} bytes", bytes.len());
    let statistics = [uniformity(bytes), serial_correlation(bytes, 1), serial_correlation(bytes, 94)];
    assert!(statistics.iter().all(|value| value.abs() < BOUND), "{name}: {statistics:?}");
    for block in bytes.as_chunks::<16>().0 {
        assert!(seen.insert(*block), "{name}: a block came twice");
    }
}

/// Runs a protocol to its end and collects what each party sent but for the first `skip` bytes of each message.
fn record<R: Rounds>(one: &mut R, two: &mut R, skip: usize, sent: &mut [Vec<u8>; 2]) -> (R::Output, R::Output) {
    let (mut first, mut second) = (one.round(None).unwrap(), two.round(None).unwrap());
    loop {
        (first, second) = match (first, second) {
            (Step::Send(a), Step::Send(b)) => {
                sent[0].extend_from_slice(&a[skip..]);
                sent[1].extend_from_slice(&b[skip..]);
                (one.round(Some(&b)).unwrap(), two.round(Some(&a)).unwrap())
            }
            (Step::Done(a), Step::Done(b)) => return (a, b),
            _ => panic!("one end was done before the other"),
        };
    }
}

#[test]
fn shares_and_messages_of_fixed_inputs_look_random_and_never_come_twice() {
    let program = Program::new(SelectBest::standard(8).circuit().unwrap()).unwrap();
    let lanes = 8 * 94; // no padding bits, which are zero
    let inputs = BitRows::zero(program.input_rows(), lanes);
    let (mut shares, mut seen) = (Vec::new(), HashSet::new());
    let [mut setup, mut online] = <[[Vec<u8>; 2]; 2]>::default();
    // Each life has the same inputs; seeds are fresh, as from the system.
    for life in 0..18 {
        let (mut pair, mut random) = (Pair::new(life), Random::new(life.into()));
        pair.fill(&Demand::of(&program, lanes));
        let (one, two) = split(&inputs, random.rows(program.input_rows(), lanes)).unwrap();
        let mut first = Evaluation::new(&program, one.rows(), &mut pair.pools[0]).unwrap();
        let mut second = Evaluation::new(&program, two.rows(), &mut pair.pools[1]).unwrap();
        let outputs = record(&mut first, &mut second, 8, &mut online);
        // Fixed inputs are zero, so both shares of an input are equal, and both of an output: take one of each.
        for rows in [one.rows(), &outputs.0] {
            (0..rows.rows())
                .for_each(|row| shares.extend(rows.row(row)[..11].iter().flat_map(|word| word.to_le_bytes())));
        }
    }
    let mut pair = Pair::new(100);
    let [one, two] = &mut pair.setups;
    for _ in 0..2 {
        let chunk = Chunk { width: Width::ALL[0], count: 1 << 16 };
        one.request(chunk).unwrap();
        two.request(chunk).unwrap();
        record(one, two, 16, &mut setup);
    }
    for _ in 0..700 {
        let (one, _) = split(&inputs, Random::new(1000 + shares.len() as u64).rows(inputs.rows(), lanes)).unwrap();
        (0..inputs.rows())
            .for_each(|row| shares.extend(one.rows().row(row)[..11].iter().flat_map(|word| word.to_le_bytes())));
    }
    looks_random("shares", &shares, &mut seen);
    for party in 0..2 {
        looks_random("setup", &setup[party], &mut seen);
        looks_random("online", &online[party], &mut seen);
    }
}

#[test]
fn what_a_party_sends_looks_random_whatever_its_peer_sends() {
    // Party 2 changes every opening, by all ones or at random; the inputs of party 1 are zero or all ones.
    let program = Program::new(SelectBest::standard(8).circuit().unwrap()).unwrap();
    let lanes = 8 * 94;
    let mut ones = BitRows::zero(program.input_rows(), lanes);
    (0..ones.rows()).for_each(|row| ones.set_row(row, &[u64::MAX; 12]));
    let mut seen = HashSet::new();
    for inputs in [BitRows::zero(program.input_rows(), lanes), ones] {
        let mut sent = Vec::new();
        for life in 0..18 {
            let (mut pair, mut random) = (Pair::new(life), Random::new(life.into()));
            pair.fill(&Demand::of(&program, lanes));
            let [mut one, mut two] = pair.pools.map(|mut pool| Evaluation::new(&program, &inputs, &mut pool).unwrap());
            let (mut first, mut second) = (one.round(None).unwrap(), two.round(None).unwrap());
            while let (Step::Send(a), Step::Send(mut b)) = (first, second) {
                sent.extend_from_slice(&a[8..]);
                let second_next = two.round(Some(&a)).unwrap();
                b[8..].iter_mut().for_each(|octet| *octet ^= if life % 2 == 0 { 0xff } else { random.word() as u8 });
                (first, second) = (one.round(Some(&b)).unwrap(), second_next);
            }
        }
        looks_random("online, to a peer that deviates", &sent, &mut seen);
        seen.clear(); // the lives have the same seeds as before
    }
}

#[test]
fn the_statistics_find_what_is_not_random() {
    let counter: Vec<u8> = (0..1_000_000u32).map(|k| k as u8).collect();
    assert!(serial_correlation(&counter, 1) > BOUND);
    assert!(uniformity(&counter) < -BOUND);
    let biased: Vec<u8> =
        (0..1_000_000u32).map(|k| (k.wrapping_mul(2_654_435_761) >> 24) as u8 | u8::from(k % 50 == 0)).collect();
    assert!(uniformity(&biased) > BOUND);
}

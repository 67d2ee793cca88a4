//! The cost of setup; run by hand, in a release build.

use std::time::{Duration, Instant};

use wayleave_mpc::{Chunk, Role, SessionId, Setup, Width, lockstep};

#[expect(clippy::disallowed_methods, reason = "a measurement of real time")]
fn now() -> Instant {
    Instant::now()
}

fn ends() -> [Setup; 2] {
    [(Role::Party1, 1), (Role::Party2, 2)].map(|(role, seed)| Setup::new(role, SessionId([5; 16]), [seed; 32]))
}

/// The median and the lowest of some times.
fn summary(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    format!("median {:?}, lowest {:?}, both parties", times[times.len() / 2], times[0])
}

#[test]
#[ignore = "a measurement: `cargo test --release -p wayleave-mpc --test it cost -- --ignored --nocapture`"]
fn what_comes_before_the_first_chunk_takes_so_long() {
    let time = || {
        let [mut one, mut two] = ends();
        let begun = now();
        lockstep(&mut one, &mut two).unwrap();
        begun.elapsed()
    };
    println!("before the first chunk: {}", summary((0..21).map(|_| time()).collect()));
}

#[test]
#[ignore = "a measurement: `cargo test --release -p wayleave-mpc --test it cost -- --ignored --nocapture`"]
fn a_chunk_of_setup_takes_so_long() {
    for width in Width::ALL {
        let [mut one, mut two] = ends();
        lockstep(&mut one, &mut two).unwrap();
        let mut time = || {
            let chunk = Chunk { width, count: 8192 };
            one.request(chunk).unwrap();
            two.request(chunk).unwrap();
            let begun = now();
            lockstep(&mut one, &mut two).unwrap();
            begun.elapsed()
        };
        println!("width {}: {}", width.bits(), summary((0..200).map(|_| time()).collect()));
    }
}

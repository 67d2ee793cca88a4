//! The cost of setup; run by hand, in a release build.

use std::time::Instant;

use wayleave_mpc::{Chunk, Role, SessionId, Setup, Width, lockstep};

#[test]
#[ignore = "a measurement: `cargo test --release -p wayleave-mpc --test it cost -- --ignored --nocapture`"]
fn a_chunk_of_setup_takes_so_long() {
    for width in Width::ALL {
        let setup = |role, seed| Setup::new(role, SessionId([5; 16]), [seed; 32]);
        let (mut one, mut two) = (setup(Role::Party1, 1), setup(Role::Party2, 2));
        lockstep(&mut one, &mut two).unwrap();
        let mut times: Vec<_> = (0..200)
            .map(|_| {
                let chunk = Chunk { width, count: 8192 };
                (one.request(chunk).unwrap(), two.request(chunk).unwrap());
                let begun = Instant::now();
                lockstep(&mut one, &mut two).unwrap();
                begun.elapsed()
            })
            .collect();
        times.sort_unstable();
        println!("width {}: median {:?}, lowest {:?}, both parties", width.bits(), times[100], times[0]);
    }
}

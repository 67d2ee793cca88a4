//! Times forwarding in memory on one core: packets a second and nanoseconds a packet, the best and the median pass.
#![allow(clippy::disallowed_methods, reason = "an example times; the crate does not")]

use std::time::Instant;

use wayleave_crypto::lanes::Kernel;
use wayleave_dataplane::bench::{Bench, Work, generated_routes};

fn main() {
    let passes = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(1_000);
    let only = std::env::args().nth(2);
    let routes = generated_routes(1_000_000, 1);
    let start = Instant::now();
    let mut clock = || start.elapsed();
    for kernel in Kernel::available() {
        for (name, work) in
            [("none", Work::None), ("ip", Work::Ip), ("scion-2015", Work::Scion2015), ("scion", Work::Scion)]
        {
            if only.as_deref().is_some_and(|only| only != name) || kernel != Kernel::best() && only.is_some() {
                continue;
            }
            for length in [64, 1_518] {
                let mut bench = Bench::new(work, length, &routes, kernel, 7).expect("the generated routes fit");
                let mut times: Vec<f64> =
                    (0..passes).map(|_| bench.pass(&mut clock).1.as_secs_f64() / bench.packets() as f64).collect();
                times.sort_by(f64::total_cmp);
                let (best, median) = (times[0], times[times.len() / 2]);
                println!(
                    "{:9} {name:10} {:4} B: best {:6.1} M/s {:5.1} ns, median {:6.1} M/s {:5.1} ns",
                    kernel.name(),
                    bench.length(),
                    1e-6 / best,
                    best * 1e9,
                    1e-6 / median,
                    median * 1e9
                );
            }
        }
    }
}

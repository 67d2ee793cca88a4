//! Times forwarding in memory on one core: packets per second and nanoseconds per packet, in the best and the median pass.
//!
//! Arguments: passes; the names to measure (`scion,platypus.64`: all that begin so, with the best processor features only);
//! `aligned` to let all packets begin with their slots.
#![allow(clippy::disallowed_methods, reason = "an example times; the crate does not")]

use std::time::Instant;

use wayleave_crypto::lanes::CpuKernel;
use wayleave_papers::bench::forward::{ForwardBench, ForwardTask, generated_routes};
use wayleave_papers::bench::platypus::{PlatypusBench, PlatypusStampBench, PlatypusTask};
use wayleave_papers::bench::slots::{Headroom, PACKETS};

fn main() {
    let passes = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(1_000);
    let only = std::env::args().nth(2);
    let is_aligned = std::env::args().nth(3).is_some_and(|layout| layout == "aligned");
    let headroom = if is_aligned { Headroom::None } else { Headroom::Staggered };
    let routes = generated_routes(1_000_000, 1);
    let start = Instant::now();
    let mut clock = || start.elapsed();
    for kernel in CpuKernel::available() {
        let is_left_out = |name: &str| {
            only.as_deref().is_some_and(|only| !only.split(',').any(|only| name.starts_with(only)))
                || kernel != CpuKernel::best() && only.is_some()
        };
        for (name, work) in [
            ("none", ForwardTask::None),
            ("ip", ForwardTask::Ip),
            ("scion-2015", ForwardTask::Scion2015),
            ("scion", ForwardTask::Scion),
            ("scion-mixed", ForwardTask::ScionMixed),
        ] {
            for length in [64, 1_518] {
                if is_left_out(&format!("{name}.{length}")) {
                    continue;
                }
                let mut bench =
                    ForwardBench::new(work, length, &routes, kernel, headroom, 7).expect("the generated routes fit");
                let times = (0..passes).map(|_| bench.pass(&mut clock).1.as_secs_f64()).collect();
                report(kernel, name, bench.length(), PACKETS, times);
            }
        }
        for (name, work) in [
            ("platypus", PlatypusTask::Plain),
            ("platypus-mixed", PlatypusTask::Mixed),
            ("platypus-macs", PlatypusTask::Macs),
            ("platypus-full", PlatypusTask::Full),
        ] {
            for length in [64, 348, 1_500] {
                if is_left_out(&format!("{name}.{length}")) {
                    continue;
                }
                let mut bench = PlatypusBench::new(work, length, kernel, headroom);
                let times = (0..passes).map(|_| bench.pass(&mut clock).1.as_secs_f64()).collect();
                report(kernel, name, bench.length(), PACKETS, times);
            }
        }
        for length in [40, 64, 348, 1_500] {
            if !is_left_out(&format!("stamp.{length}")) {
                let mut bench = PlatypusStampBench::new(length, kernel, headroom);
                let times = (0..passes).map(|_| bench.pass(&mut clock).1.as_secs_f64()).collect();
                report(kernel, "stamp", length, PACKETS, times);
            }
        }
    }
}

fn report(kernel: CpuKernel, name: &str, length: usize, packets: usize, mut times: Vec<f64>) {
    times.sort_by(f64::total_cmp);
    let (best, median) = (times[0] / packets as f64, times[times.len() / 2] / packets as f64);
    println!(
        "{:9} {name:13} {length:4} B: best {:6.1} M/s {:5.1} ns, median {:6.1} M/s {:5.1} ns",
        kernel.name(),
        1e-6 / best,
        best * 1e9,
        1e-6 / median,
        median * 1e9
    );
}

//! Times ICING in memory on one core: packets per second and nanoseconds per packet, in the best and the median pass.
#![allow(clippy::disallowed_methods, reason = "an example times; the crate does not")]

use std::time::Instant;

use wayleave_crypto::lanes::CpuKernel;
use wayleave_packet::icing::mint::Form;
use wayleave_papers::bench::icing::{IcingBench, IcingTask};
use wayleave_papers::bench::slots::{Headroom, PACKETS};

fn main() {
    let passes = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(200);
    let only = std::env::args().nth(2);
    let only_payload = std::env::args().nth(3).and_then(|octets| octets.parse().ok());
    let start = Instant::now();
    let mut clock = || start.elapsed();
    let tasks = [
        ("forward", IcingTask::Forward),
        ("forward-sealed", IcingTask::ForwardSealed),
        ("full", IcingTask::Full),
        ("stamp", IcingTask::Stamp),
        ("stamp-sealed", IcingTask::StampSealed),
    ];
    for (name, work) in tasks {
        if only.as_deref().is_some_and(|only| only != name) {
            continue;
        }
        for (payload, form) in [(64, Form::Path), (64, Form::Handle), (1_500, Form::Path), (1_500, Form::Handle)] {
            if only_payload.is_some_and(|only: usize| only != payload) {
                continue;
            }
            let mut bench = IcingBench::new(work, payload, form, CpuKernel::best(), Headroom::Staggered);
            let mut times: Vec<f64> =
                (0..passes).map(|_| bench.pass(&mut clock).1.as_secs_f64() / PACKETS as f64).collect();
            times.sort_by(f64::total_cmp);
            let (best, median) = (times[0], times[times.len() / 2]);
            let bits = 8.0 * payload as f64 / best * 1e-9;
            println!(
                "{name:14} {payload:4} B {form:?} ({} B in all): best {:5.2} M/s {:6.1} ns {bits:5.1} Gb/s of payload, median {:5.2} M/s",
                bench.length(),
                1e-6 / best,
                best * 1e9,
                1e-6 / median,
            );
        }
    }
}

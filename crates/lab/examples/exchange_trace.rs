//! Measures a trace through a simulated exchange: `exchange_trace FILE MEMBERS UPDATES`.

#![allow(clippy::disallowed_methods, reason = "an example reads files and clocks")]

use std::time::Duration;

use wayleave_route_server::object::ExportMode;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let members = args[2].parse().expect("members");
    let most: usize = args[3].parse().expect("updates");
    let file = std::fs::File::open(&args[1]).expect("a trace");
    let updates = wayleave_lab::trace::load(file, usize::MAX).expect("a readable trace");
    let updates = &updates[..most.min(updates.len())];
    let out = wayleave_lab::bench::exchange_trace(members, updates, Duration::ZERO, ExportMode::Direct, |_| {});
    let mut seconds = out.seconds.clone();
    seconds.sort_by(f64::total_cmp);
    let mean = seconds.iter().sum::<f64>() / seconds.len() as f64;
    let cpu = out.cpu_seconds.iter().sum::<f64>() / out.cpu_seconds.len() as f64;
    println!(
        "processor time: mean {:.3} ms; setup ahead of need {:.3} ms a prefix",
        cpu * 1e3,
        out.setup.as_secs_f64() * 1e3 / out.prefixes as f64
    );
    println!(
        "{} UPDATEs, {} prefixes: mean {:.3} ms, p50 {:.3} ms, p99 {:.3} ms; {} B between parties a prefix; mismatches {}; routes {}",
        out.updates,
        out.prefixes,
        mean * 1e3,
        seconds[seconds.len() / 2] * 1e3,
        seconds[seconds.len() * 99 / 100] * 1e3,
        out.party_link_bytes / out.prefixes as u64,
        out.oracle_mismatches,
        out.routes
    );
}

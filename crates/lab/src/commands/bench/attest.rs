//! `bench attest-ops`, `attest-trace` and `attest-memory`.

use wayleave_attestation::SuiteId;
use wayleave_papers::bench::attestation::trace::{self, TraceOptions};
use wayleave_papers::bench::attestation::workload::Workload;
use wayleave_papers::bench::attestation::{Options, SuiteFailure, memory as bytes, ops as operations};
use wayleave_papers::plot::attestation as plots;
use wayleave_papers::report::Report;

use super::{draw, file_name, open};
use crate::commands::bench::{AttestWorkload, Bench};
use wayleave_config::failure::{Failure, Outcome};

/// This thread's processor time in nanoseconds.
fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

fn options(bench: &Bench) -> Outcome<Options> {
    let suite = |name: &String| {
        let known: Vec<&str> =
            SuiteId::ALL.into_iter().chain(SuiteId::OF_OBJECTS).chain(SuiteId::RESERVED).map(SuiteId::name).collect();
        SuiteId::from_name(name).ok_or_else(|| Failure::usage(format!("no suite `{name}`")).help(known.join(", ")))
    };
    let suites = bench.suite.iter().map(suite).collect::<Result<_, _>>()?;
    Ok(Options { suites, short: bench.short, repetitions: bench.repetitions, clock: now })
}

fn failure(failed: SuiteFailure) -> Failure {
    Failure::new(failed)
}

pub fn ops(bench: &Bench) -> Outcome<Report> {
    let report = operations::run(&options(bench)?).map_err(failure)?;
    draw(bench, || plots::ops(&report))?;
    Ok(report)
}

pub fn memory(bench: &Bench) -> Outcome<Report> {
    let report = bytes::run(&options(bench)?).map_err(failure)?;
    draw(bench, || plots::memory(&report))?;
    Ok(report)
}

pub fn trace(bench: &Bench) -> Outcome<Report> {
    let options = options(bench)?;
    let trace = TraceOptions { prefixes: bench.prefixes, cache: bench.cache.unwrap_or(false) };
    if bench.plot.is_some() && bench.mrt.is_some() {
        return Err(Failure::usage("`attest-trace` draws no plot of a recording")
            .help("leave out --plot or --mrt")
            .into());
    }
    let workloads: &[Workload] = match (bench.workload, &bench.mrt) {
        (Some(AttestWorkload::Table), None) => {
            return Err(Failure::usage("--workload table needs --mrt with a RIB").into());
        }
        (Some(AttestWorkload::Table), Some(path)) => {
            return Ok(trace::full_table(&options, trace, &file_name(path), open(path)?).map_err(failure)?);
        }
        (_, Some(path)) => {
            return Ok(trace::recorded(&options, trace, &file_name(path), open(path)?).map_err(failure)?);
        }
        (Some(AttestWorkload::Normal), None) => &[Workload::Normal],
        (Some(AttestWorkload::Pathological), None) => &[Workload::Pathological],
        (Some(AttestWorkload::Heavy), None) => &[Workload::Heavy],
        (None, None) => &Workload::ALL,
    };
    let (report, served) = trace::generated(&options, trace, workloads).map_err(failure)?;
    draw(bench, || plots::trace(&report, workloads, &served))?;
    Ok(report)
}

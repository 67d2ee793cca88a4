//! `bench attest-ops`, `attest-trace` and `attest-memory`.

use std::fmt::Write as _;
use std::path::Path;

use wayleave_attestation::SuiteId;
use wayleave_papers::bench::attestation::trace::{self, NothingSelected, RecordingError, Selection, TraceOptions};
use wayleave_papers::bench::attestation::workload::Workload;
use wayleave_papers::bench::attestation::{Options, Part, SuiteFailure, memory as bytes, ops as operations};
use wayleave_papers::plot::attestation as plots;
use wayleave_papers::report::Report;
use wayleave_runtime::clock::utc;

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
    // What no row of the table or figure needs is not measured.
    let part = match bench.paper.as_deref() {
        Some("kc-x/table-1" | "kc-x/table-3") => Part::Operations,
        Some("kc-x/figure-4") => Part::Trees,
        Some("kc-x/table-4" | "kc-x/figure-5") => Part::Arrivals,
        _ => Part::All,
    };
    Ok(Options { part, suites, short: bench.short, repetitions: bench.repetitions, clock: now })
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
    let selection = selection(bench)?;
    let trace = TraceOptions { prefixes: bench.prefixes, cache: bench.cache.unwrap_or(false), selection };
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
            let report = trace::full_table(&options, trace, &file_name(path), open(path)?);
            return Ok(report.map_err(|error| not_measured(error, path, selection))?);
        }
        (_, Some(path)) => {
            let report = trace::recorded(&options, trace, &file_name(path), open(path)?);
            return Ok(report.map_err(|error| not_measured(error, path, selection))?);
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

/// What of a recording is wanted.
fn selection(bench: &Bench) -> Outcome<Selection> {
    let selection = Selection { peer: bench.peer, from: bench.from, until: bench.until };
    if bench.mrt.is_none() && !selection.is_all() {
        let refused = Failure::usage("--peer, --from and --until select from a recorded trace, and none was given");
        return Err(refused.help("say --mrt FILE").into());
    }
    let has_time = selection.from.or(selection.until).is_some();
    if has_time && bench.workload == Some(AttestWorkload::Table) {
        let refused = Failure::usage("a table is of one moment: `--workload table` takes no --from and no --until");
        return Err(refused.help("leave them out, or --workload table").into());
    }
    match (selection.from, selection.until) {
        (Some(from), Some(until)) if until <= from => {
            let (from, until) = (utc(from.secs()), utc(until.secs()));
            Err(Failure::usage(format!("nothing comes from {from} on and before {until}"))
                .help("--until is the later of the two")
                .into())
        }
        _ => Ok(selection),
    }
}

/// Peers that are named as the help of an error, at most: those with the most routes.
const NAMED: usize = 12;

fn not_measured(error: RecordingError, path: &Path, selection: Selection) -> Failure {
    let file = path.display();
    let nothing = match error {
        RecordingError::Suite(failed) => return failure(failed),
        RecordingError::Damaged(error) => return Failure::new(format!("{file}: {error}")),
        RecordingError::Empty(nothing) => nothing,
    };
    let NothingSelected { peers, times } = nothing;
    if peers.is_empty() {
        return Failure::new(format!("{file} holds no route that is announced"))
            .help("a trace has BGP4MP records with UPDATEs; a table (`--workload table`) has TABLE_DUMP_V2 records");
    }
    let mut wanted = String::new();
    if let Some(peer) = selection.peer {
        let _ = write!(wanted, " by {peer}");
    }
    if let Some(from) = selection.from {
        let _ = write!(wanted, " from {} on", utc(from.secs()));
    }
    if let Some(until) = selection.until {
        let _ = write!(wanted, " before {}", utc(until.secs()));
    }
    let mut peers: Vec<_> = peers.into_iter().collect();
    peers.sort_by_key(|(asn, count)| (std::cmp::Reverse(*count), *asn));
    let more = if peers.len() > NAMED { " and others" } else { "" };
    let named: Vec<String> = peers.iter().take(NAMED).map(|(asn, _)| asn.to_string()).collect();
    let span = times
        .map_or_else(String::new, |(first, last)| format!(", from {} until {}", utc(first.secs()), utc(last.secs())));
    Failure::new(format!("{file} holds nothing that is announced{wanted}"))
        .help(format!("it has routes of {}{more}{span}", named.join(", ")))
}

#[cfg(test)]
mod tests {
    use wayleave_core::{Asn, UnixTime};

    use super::*;

    fn refused(change: impl FnOnce(&mut Bench)) -> String {
        let mut bench = Bench::of("attest-trace");
        (bench.short, bench.suite) = (true, vec!["kc-ed25519".to_owned()]);
        change(&mut bench);
        let failures = trace(&bench).expect_err("it is refused");
        format!("{failures:?}")
    }

    fn recording(bench: &mut Bench) {
        let jinx = "../../test-data/bgp/routeviews.jinx.2015-04-01.updates.bz2";
        bench.mrt = Some(Path::new(env!("CARGO_MANIFEST_DIR")).join(jinx));
    }

    #[test]
    fn what_cannot_be_selected_is_refused_and_the_help_says_what_can() {
        let time = |seconds: u64| Some(UnixTime(1_000_000 * seconds));
        let said = refused(|bench| bench.peer = Some(Asn(3_277)));
        assert!(said.contains("none was given") && said.contains("--mrt FILE"), "{said}");
        let said = refused(|bench| bench.until = time(1));
        assert!(said.contains("none was given"), "{said}");
        let said = refused(|bench| {
            recording(bench);
            (bench.from, bench.until) = (time(1_427_846_500), time(1_427_846_500));
        });
        assert!(said.contains("nothing comes from 2015-04-01T00:01:40Z on and before 2015-04-01T00:01:40Z"), "{said}");
        let said = refused(|bench| {
            recording(bench);
            (bench.workload, bench.from) = (Some(AttestWorkload::Table), time(1));
        });
        assert!(said.contains("takes no --from"), "{said}");
        let said = refused(|bench| {
            recording(bench);
            bench.peer = Some(Asn(3_277));
        });
        assert!(said.contains("nothing that is announced by AS3277"), "{said}");
        assert!(said.contains("routes of AS30844, ") && said.contains("from 2015-04-01T00:00:30Z"), "{said}");
        let said = refused(|bench| {
            recording(bench);
            (bench.peer, bench.from) = (Some(Asn(30_844)), time(1_427_900_000));
        });
        assert!(said.contains("by AS30844 from 2015-04-01T14:53:20Z on"), "{said}");
        let said = refused(|bench| {
            recording(bench);
            bench.workload = Some(AttestWorkload::Table);
        });
        assert!(said.contains("holds no route that is announced"), "{said}");
    }

    #[test]
    fn a_peer_of_a_recording_is_measured_in_a_part_of_its_time() {
        let mut bench = Bench::of("attest-trace");
        recording(&mut bench);
        (bench.short, bench.json, bench.suite) = (true, true, vec!["kc-ed25519".to_owned()]);
        (bench.peer, bench.prefixes) = (Some(Asn(30_844)), Some(50));
        (bench.from, bench.until) = (Some(UnixTime(1_427_846_500_000_000)), Some(UnixTime(1_427_847_000_000_000)));
        let report = trace(&bench).unwrap_or_else(|failures| panic!("{failures:?}"));
        assert_eq!((&report.params["updates"], &report.params["selected"]["peer"]), (&50.into(), &30_844.into()));
        let octets = report.results.iter().find(|result| result.name == "octets.kc-ed25519.recorded");
        assert!(octets.is_some_and(|octets| octets.n == 50 && octets.value > 100.0), "{octets:?}");
    }
}

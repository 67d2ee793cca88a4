//! `attest-memory`: bytes of signatures of the paper's three tables.

use serde_json::json;
use wayleave_attestation::SuiteId;
use wayleave_attestation::bench::memory::{TABLES, of_table};
use wayleave_attestation::paper::hybrid::Mix;

use super::super::Report;
use super::{cannot, contenders, draw, note_missing, plots, seed};
use crate::cli::Bench;
use crate::failure::Outcome;

pub fn memory(bench: &Bench) -> Outcome<Report> {
    let samples = if bench.short { 40 } else { 400 };
    let params = json!({ "samples": samples, "counted": "signatures, as in the paper" });
    let mut report = Report::new("attest-memory", params);
    let mut missing = Vec::new();
    for contender in contenders(bench)? {
        // Of the hybrid the paper has the two mixes; the first has the suite's name.
        let name = match (contender.suite, contender.mix) {
            (SuiteId::KcHybridPaper, Mix::Only(_)) => continue,
            (SuiteId::KcHybridPaper, Mix::OneIn(2)) => contender.suite.to_string(),
            _ => contender.name(),
        };
        let Some(mut scheme) = contender.scheme(&seed()) else {
            missing.push(name);
            continue;
        };
        for table in &TABLES {
            let bytes = of_table(scheme.as_mut(), table, samples).map_err(cannot(contender))?;
            report.exact(format!("memory.{name}.{}", table.asn), "bytes", bytes.round());
        }
    }
    note_missing(&mut report, &missing);
    draw(bench, || plots::memory(&report))?;
    Ok(report)
}

//! Bytes of signatures in a router's memory (section V-B, table VI).

use serde_json::json;
use wayleave_attestation::SuiteId;
use wayleave_core::Asn;

use super::{Options, SuiteFailure, failed, note_missing, receive, seed, workload::Route};
use crate::kc_x::hybrid::Mix;
use crate::report::Report;
use crate::scheme::{Scheme, SchemeError};

/// A routing table of the paper.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RoutingTable {
    pub asn: u32,
    /// Routes.
    pub entries: u64,
    /// Mean path length in ASes.
    pub mean_path: f64,
}

/// The three tables of table VI.
pub const TABLES: [RoutingTable; 3] = [
    RoutingTable { asn: 1221, entries: 211_721, mean_path: 3.555 },
    RoutingTable { asn: 4637, entries: 163_918, mean_path: 3.356 },
    RoutingTable { asn: 7660, entries: 167_288, mean_path: 4.46 },
];

/// `bench attest-memory`.
///
/// # Errors
/// If a scheme cannot sign the UPDATEs.
pub fn run(options: &Options) -> Result<Report, SuiteFailure> {
    let samples = if options.short { 40 } else { 400 };
    let params = json!({ "samples": samples, "counted": "signatures, as in the paper" });
    let mut report = Report::new("attest-memory", params);
    let mut missing = Vec::new();
    for variant in options.variants() {
        // The paper has two mixes of the hybrid; the first has the suite's name.
        let name = match (variant.suite, variant.mix) {
            (SuiteId::KcHybridPaper, Mix::Only(_)) => continue,
            (SuiteId::KcHybridPaper, Mix::OneIn(2)) => variant.suite.to_string(),
            _ => variant.name(),
        };
        let Some(mut scheme) = variant.scheme(&seed()) else {
            missing.push(name);
            continue;
        };
        for table in &TABLES {
            let bytes = of_table(scheme.as_mut(), table, samples).map_err(failed(variant))?;
            report.exact(format!("memory.{name}.{}", table.asn), "bytes", bytes.round());
        }
    }
    note_missing(&mut report, &missing);
    Ok(report)
}

/// Mean bytes of signatures of an UPDATE that passed `hops` ASes, over `samples` generated UPDATEs.
///
/// # Errors
/// As [`receive`].
pub fn signature_bytes(scheme: &mut dyn Scheme, hops: usize, samples: usize) -> Result<f64, SchemeError> {
    let mut sum = 0;
    for sample in 0..samples as u32 {
        // An origin has one key pair; the ASes that forward its UPDATEs vary.
        let between = (1..hops as u32).map(|hop| Asn(2_000 + 100 * hop + sample % 8));
        let path: Vec<Asn> = std::iter::once(Asn(1_000)).chain(between).collect();
        let prefix = format!("10.{}.{}.0/24", sample / 256, sample % 256).parse().expect("a prefix");
        let route = Route { path, prefixes: vec![prefix] };
        scheme.prepare(&route.path);
        let received = receive(scheme, &route.path, &route.prefixes)?;
        sum += scheme.signature_bytes(&received.attestation);
    }
    Ok(sum as f64 / samples as f64)
}

/// Bytes of signatures of a whole table: paths of the two lengths around its mean, in the ratio that gives the mean.
///
/// # Errors
/// As [`receive`].
pub fn of_table(scheme: &mut dyn Scheme, table: &RoutingTable, samples: usize) -> Result<f64, SchemeError> {
    let short = table.mean_path.floor();
    let longer = table.mean_path - short;
    let bytes = signature_bytes(scheme, short as usize, samples)? * (1.0 - longer)
        + signature_bytes(scheme, short as usize + 1, samples)? * longer;
    Ok(bytes * table.entries as f64)
}

#[cfg(test)]
mod tests {
    use wayleave_attestation::suite;

    use super::*;
    use crate::standard::standard_scheme;

    /// Forty bytes a hop.
    struct Forty;

    impl Scheme for Forty {
        fn name(&self) -> &'static str {
            "forty"
        }
        fn prepare(&mut self, _: &[Asn]) {}
        fn attest(&mut self, _: &crate::scheme::Announcement, received: &[u8], _: Asn) -> Result<Vec<u8>, SchemeError> {
            Ok([received, &[0; 40]].concat())
        }
        fn verify(&self, _: &crate::scheme::Announcement, _: &[u8], _: Asn) -> bool {
            true
        }
        fn signature_bytes(&self, attestation: &[u8]) -> usize {
            attestation.len()
        }
    }

    /// In MB of 2^20 bytes, as docs/benchmarks.md prints them. A hop of `kc-hbs` differs from one of `kc-ed25519` in its signature
    /// and a few octets that describe it; a key of it takes seconds to make.
    #[test]
    fn the_products_suites_take_what_the_present_format_of_a_hop_has() {
        let mut scheme = standard_scheme(SuiteId::KcEd25519, &seed()).expect("implemented");
        let octets = |suite| suite::of(suite).map_or(0, |suite| suite.signature_len()) as f64;
        let longer = octets(SuiteId::KcHbs) - octets(SuiteId::KcEd25519);
        for (table, [ed25519, hbs]) in TABLES.iter().zip([[77.4, 1_474.0], [56.6, 1_077.0], [76.9, 1_461.0]]) {
            let megabyte = f64::from(1 << 20);
            let bytes = of_table(scheme.as_mut(), table, 2).expect("signs") / megabyte;
            let of_hbs = bytes + longer * table.mean_path * table.entries as f64 / megabyte;
            assert!((bytes - ed25519).abs() < 0.1, "AS {}: {bytes}", table.asn);
            assert!((of_hbs / hbs - 1.0).abs() < 0.005, "AS {}: {of_hbs}", table.asn);
        }
    }

    #[test]
    fn forty_bytes_a_hop_take_what_the_paper_says_of_s_bgp() {
        // 28.7, 21 and 28.5 MB, of 2^20 bytes.
        let of = |table: &RoutingTable| of_table(&mut Forty, table, 2).expect("sound") / f64::from(1 << 20);
        let tenths: Vec<i64> = TABLES.iter().map(|table| (of(table) * 10.0).round() as i64).collect();
        assert_eq!(tenths, [287, 210, 285]);
    }
}

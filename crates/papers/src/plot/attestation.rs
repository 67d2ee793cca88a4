//! The tables and figures of the KC-x paper (tables I and III to VI, figures 4 to 6), its points beside ours.

use wayleave_attestation::SuiteId;

use super::{Content, Panel, Plot, Series, Style};
use crate::bench::attestation::hors::{MEAN_PATH, shapes};
use crate::bench::attestation::memory::TABLES;
use crate::bench::attestation::neighbours::NEIGHBOURS;
use crate::bench::attestation::ops::{AFTER, shape_name};
use crate::bench::attestation::trace::WorkloadDelays;
use crate::bench::attestation::workload::Workload;
use crate::bench::attestation::{SEED, SuiteVariant, queue};
use crate::kc_x::hors::{KC_MT, SPV};
use crate::report::Report;

/// Values by name: of a suite, or of a place along an axis.
type Values = Vec<(String, f64)>;

/// The suites that have results under `what`, and their values.
fn found(report: &Report, what: &str, suffix: &str) -> Values {
    let of = |name: String| report.value(&format!("{what}.{name}{suffix}")).map(|value| (name, value));
    names().into_iter().filter_map(of).collect()
}

/// Every name that results may have.
fn names() -> Vec<String> {
    let mut names: Vec<String> = SuiteVariant::all().into_iter().map(SuiteVariant::name).collect();
    let without = SuiteVariant { tables: false, ..SuiteVariant::new(SuiteId::SBgp) }.name();
    let place = names.iter().position(|name| name == SuiteId::SBgp.name()).map_or(names.len(), |place| place + 1);
    names.insert(place, without);
    names
}

/// A pair of axes with the named `places` from left to right.
struct Places<'a> {
    title: &'a str,
    measure: &'a str,
    places: Vec<String>,
    series: Vec<Series<usize>>,
}

impl<'a> Places<'a> {
    fn new(title: &'a str, measure: &'a str, places: Vec<String>) -> Self {
        Self { title, measure, places, series: Vec::new() }
    }

    /// Adds a series; values whose name is not a place are left out.
    fn with(mut self, name: &str, style: Style, values: &[(String, f64)]) -> Self {
        let place = |name: &String| self.places.iter().position(|place| place == name);
        let points = values.iter().filter_map(|(name, value)| Some((place(name)?, *value))).collect();
        self.series.push(Series { name: name.to_owned(), style, points });
        self
    }

    fn panel(self) -> Panel {
        let content = Content::Categories { places: self.places, series: self.series };
        Panel { title: self.title.to_owned(), measure: self.measure.to_owned(), content }
    }
}

/// Table III, in seconds: sign (S-BGP with DSA's precomputation), verify.
const TABLE_III: [(SuiteId, f64, f64); 5] = [
    (SuiteId::SBgp, 30e-6, 4_607e-6),
    (SuiteId::Spv, 703e-6, 191e-6),
    (SuiteId::SasV, 6_800e-6, 350e-6),
    (SuiteId::KcRsaPaper, 6_800e-6, 350e-6),
    (SuiteId::KcMtPaper, 90e-6, 111e-6),
];

/// The same for KC-MT over a chain of KC-RSA.
const HYBRID: (SuiteId, f64, f64) = (SuiteId::KcHybridPaper, 90e-6, 350e-6);

fn table_iii(of: impl Fn(f64, f64) -> f64) -> Values {
    TABLE_III.iter().map(|(suite, sign, verify)| (suite.to_string(), of(*sign, *verify))).collect()
}

/// Equation (1) with table III.
fn equation_1(sign: f64, verify: f64) -> f64 {
    MEAN_PATH * verify + sign
}

/// Table I: how many times faster than S-BGP.
const TABLE_I: [(SuiteId, f64); 5] = [
    (SuiteId::SBgp, 1.0),
    (SuiteId::SasV, 2.0),
    (SuiteId::Spv, 13.0),
    (SuiteId::KcRsaPaper, 2.0),
    (SuiteId::KcMtPaper, 34.0),
];

/// Tables I and III, and figure 4, from the results of `attest-ops`.
#[must_use]
pub fn ops(report: &Report) -> Plot {
    let updates = found(report, "update", "");
    let places = || updates.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let own = || places().into_iter().filter(|name| report.value(&format!("verification.{name}")).is_some()).collect();
    let mut published = table_iii(equation_1);
    published.push((HYBRID.0.to_string(), equation_1(HYBRID.1, HYBRID.2)));
    let mut panels = vec![
        Places::new(
            "KC-x, Table III: sign, and verify one signature (published: Pentium 4, 1.8 GHz)",
            "seconds",
            own(),
        )
        .with("sign", Style::Measured, &found(report, "sign", ""))
        .with("sign, published", Style::Published, &table_iii(|sign, _| sign))
        .with("verify", Style::Measured, &found(report, "verification", ""))
        .with("verify, published", Style::Published, &table_iii(|_, verify| verify))
        .panel(),
        Places::new(
            "KC-x, equation (1): an UPDATE over the mean path of 3.7 ASes, verify all and sign one",
            "seconds",
            places(),
        )
        .with("by equation (1)", Style::Measured, &found(report, "equation_1", ""))
        .with("by equation (1), published", Style::Published, &published)
        .with("really, in bursts", Style::Measured, &updates)
        .with("really, alone", Style::Measured, &found(report, "update_alone", ""))
        .panel(),
    ];
    if let Some(s_bgp) = report.value(&format!("equation_1.{}", SuiteId::SBgp)) {
        let times = |(name, seconds): (String, f64)| (name, s_bgp / seconds);
        let ours: Values = found(report, "equation_1", "").into_iter().map(times).collect();
        let theirs = TABLE_I.map(|(suite, times)| (suite.to_string(), times));
        let title = "KC-x, Table I: how many times faster than S-BGP an UPDATE is, by equation (1)";
        panels.push(
            Places::new(title, "times", places())
                .with("measured", Style::Measured, &ours)
                .with("published", Style::Published, &theirs)
                .panel(),
        );
    }
    if report.value(&format!("hors_sigma.{}", shape_name(KC_MT))).is_some() {
        panels.extend(figure_4(report));
    }
    panels.extend(neighbours(report));
    Plot { title: "KC-x: the cost of one operation and of one UPDATE of attestation".to_owned(), panels }
}

/// What an UPDATE costs the product's proxy by the number of neighbours. Nothing is published beside it: the paper's schemes
/// sign once for all of them.
fn neighbours(report: &Report) -> Vec<Panel> {
    let places = || NEIGHBOURS.map(|number| format!("to {number}")).to_vec();
    let of = |what: &str, suite: SuiteId| -> Values {
        let value = |number: usize| report.value(&format!("{what}.{suite}.{number}"));
        NEIGHBOURS.into_iter().filter_map(|number| Some((format!("to {number}"), value(number)?))).collect()
    };
    let suites = || SuiteId::ALL.into_iter().filter(|suite| !of("neighbours", *suite).is_empty());
    if suites().next().is_none() {
        return Vec::new();
    }
    let mut times =
        Places::new("An UPDATE at an attesting proxy, by its neighbours: all of its work", "seconds", places());
    let mut octets =
        Places::new("The same: octets of the attestations that leave, to all neighbours", "bytes", places());
    for suite in suites() {
        times = times.with(&format!("{suite}, in bursts"), Style::Measured, &of("neighbours", suite)).with(
            &format!("{suite}, alone"),
            Style::Measured,
            &of("neighbours_alone", suite),
        );
        octets = octets.with(suite.name(), Style::Measured, &of("neighbours_octets", suite));
    }
    vec![times.panel(), octets.panel()]
}

/// Figure 4, with the published points that the text gives as numbers.
fn figure_4(report: &Report) -> Vec<Panel> {
    let places = || shapes().into_iter().map(shape_name).collect::<Vec<_>>();
    let of = |what: &str| -> Values {
        let value = |name: String| report.value(&format!("{what}.{name}")).map(|value| (name, value));
        places().into_iter().filter_map(value).collect()
    };
    let said =
        |points: &[(&str, f64)]| points.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect::<Values>();
    let verify = said(&[("512-3", 111e-6), ("1024-2", 103e-6), ("1024-6", 197e-6)]);
    let title = "KC-x, Figure 4(a): KC-MT with trees of n leaves, m of them disclosed (n-m)";
    let mut panels = vec![
        Places::new(title, "seconds", places())
            .with("first signature (S1)", Style::Measured, &of("hors_sign_first"))
            .with("later signatures (S2)", Style::Measured, &of("hors_sign_next"))
            .with("verification (V)", Style::Measured, &of("hors_verify"))
            .with("verification, published", Style::Published, &verify)
            .with("UPDATE, equation (5)", Style::Measured, &of("hors_update"))
            .with("UPDATE, published", Style::Published, &said(&[("512-3", equation_1(90e-6, 111e-6))]))
            .panel(),
        Places::new("KC-x, Figure 4(b): signatures that a tree bears (Sigma)", "signatures", places())
            .with("computed", Style::Measured, &of("hors_sigma"))
            .with("published", Style::Published, &said(&[("512-3", 15.0), ("256-6", 15.0)]))
            .panel(),
        Places::new("KC-x, Figure 4(c): bytes of a signature", "bytes", places())
            .with("measured", Style::Measured, &of("hors_bytes"))
            .with("published", Style::Published, &said(&[("512-3", 213.0), ("256-6", 353.0)]))
            .panel(),
    ];
    let mut series = Vec::new();
    for (shape, whose) in [(KC_MT, "KC-MT"), (SPV, "SPV")] {
        let name = shape_name(shape);
        let bits = |what: &str| -> Vec<(f64, f64)> {
            let bits = |after: u32| report.value(&format!("{what}.{name}.{after}")).map(|value| -value.log2());
            let points = AFTER.into_iter().filter_map(|after| Some((f64::from(after), bits(after)?)));
            points.filter(|point| point.1.is_finite()).collect()
        };
        let add = |name: String, style, points| Series { name, style, points };
        series.push(add(format!("{name} ({whose})"), Style::Measured, bits("hors_forgery_computed")));
        series.push(add(format!("{name}, tried"), Style::Tried, bits("hors_forgery_tried")));
    }
    series.push(Series {
        name: "published: 2^-11 after 15".to_owned(),
        style: Style::Published,
        points: vec![(15.0, 11.0)],
    });
    panels.push(Panel {
        title: "KC-x, Figure 4(b), the security behind it: one try at a forgery succeeds with probability 2^-bits"
            .to_owned(),
        measure: "bits".to_owned(),
        content: Content::Lines { along: "signatures seen".to_owned(), series },
    });
    panels
}

/// Table IV: announcements, their average and highest rate.
const TABLE_IV: [(Workload, [f64; 3]); 3] = [
    (Workload::Normal, [1_121.0, 1.29, 117.0]),
    (Workload::Pathological, [88_777.0, 101.34, 6_764.0]),
    (Workload::Heavy, [508_058.0, 583.97, 5_011.0]),
];

/// Table V, in seconds: suite, then mean and maximum under the normal, the pathological and the heavy workload.
const TABLE_V: [(SuiteId, [(f64, f64); 3]); 4] = [
    (SuiteId::SBgp, [(0.60, 3.20), (515.84, 952.83), (2927.98, 5635.07)]),
    (SuiteId::Spv, [(0.04, 0.22), (4.16, 14.09), (34.11, 85.34)]),
    (SuiteId::KcRsaPaper, [(0.18, 1.04), (251.9, 454.30), (1659.71, 3077.80)]),
    (SuiteId::KcMtPaper, [(0.02, 0.09), (0.81, 3.22), (0.20, 1.70)]),
];

/// Tables IV and V, figures 5 and 6, from the results of `attest-trace`.
#[must_use]
pub fn trace(report: &Report, workloads: &[Workload], served: &[WorkloadDelays]) -> Plot {
    let mut panels = vec![table_iv(report, workloads)];
    for workload in workloads {
        panels.push(figure_5(*workload));
        if !served.is_empty() {
            panels.push(table_v(report, *workload));
            panels.push(figure_6(*workload, served));
            panels.push(figure_6_of_table_iii(*workload));
        }
    }
    if !served.is_empty() {
        panels.push(bandwidth(report, workloads));
    }
    Plot { title: "KC-x: delay of attested UPDATEs at a router".to_owned(), panels }
}

fn table_iv(report: &Report, workloads: &[Workload]) -> Panel {
    let rows = ["announcements", "rate_mean", "rate_max"];
    let place = |row: usize, workload: Workload| format!("{} {}", workload.name(), ["all", "mean/s", "peak/s"][row]);
    let each = || workloads.iter().flat_map(|workload| (0..3).map(move |row| (row, *workload)));
    let ours = each().filter_map(|(row, workload)| {
        Some((place(row, workload), report.value(&format!("{}.{}", rows[row], workload.name()))?))
    });
    let theirs = each().filter_map(|(row, workload)| {
        let (_, values) = TABLE_IV.into_iter().find(|(of, _)| *of == workload)?;
        Some((place(row, workload), values[row]))
    });
    let places = each().map(|(row, workload)| place(row, workload)).collect();
    Places::new("KC-x, Table IV: announcements of the workloads", "UPDATEs", places)
        .with("generated", Style::Measured, &ours.collect::<Values>())
        .with("published", Style::Published, &theirs.collect::<Values>())
        .panel()
}

fn table_v(report: &Report, workload: Workload) -> Panel {
    let suffix = format!(".{}", workload.name());
    let means = found(report, "delay_mean", &suffix);
    let published = |which: fn((f64, f64)) -> f64| -> Values {
        TABLE_V.iter().map(|(suite, delays)| (suite.to_string(), which(delays[workload as usize]))).collect()
    };
    let title = format!("KC-x, Table V: delay under the {} workload", workload.name());
    Places::new(&title, "seconds", means.iter().map(|(name, _)| name.clone()).collect())
        .with("mean", Style::Measured, &means)
        .with("mean, published", Style::Published, &published(|delay| delay.0))
        .with("maximum", Style::Measured, &found(report, "delay_max", &suffix))
        .with("maximum, published", Style::Published, &published(|delay| delay.1))
        .panel()
}

/// What a session carries of attestations. The paper says of its own that it is small, and gives no figure.
fn bandwidth(report: &Report, workloads: &[Workload]) -> Panel {
    let of = |what: &str, workload: Workload| found(report, what, &format!(".{}", workload.name()));
    let names = workloads.first().map(|workload| of("bandwidth_mean", *workload)).unwrap_or_default();
    let places = names.into_iter().map(|(name, _)| name).collect();
    let mut panel = Places::new("Attestations in received UPDATEs: bandwidth", "bit/s", places);
    for workload in workloads {
        for (what, words) in [("bandwidth_mean", "mean"), ("bandwidth_max", "busiest second")] {
            panel = panel.with(&format!("{}, {words}", workload.name()), Style::Measured, &of(what, *workload));
        }
    }
    panel.panel()
}

fn curve(name: String, counts: &[u32]) -> Series<f64> {
    let points = (0u32..).map(f64::from).zip(counts.iter().map(|count| f64::from(*count))).collect();
    Series { name, style: Style::Measured, points }
}

/// Figure 5: what arrives. The paper prints curves alone, and the numbers of table IV.
fn figure_5(workload: Workload) -> Panel {
    Panel {
        title: format!("KC-x, Figure 5, {} workload: announcements that arrive", workload.name()),
        measure: "UPDATEs/s".to_owned(),
        content: Content::Lines {
            along: "seconds".to_owned(),
            series: vec![curve("arriving".to_owned(), &workload.seconds(SEED))],
        },
    }
}

/// Figure 6 as measured. A suite that sends within the second of arrival has the curve of the arrivals.
fn figure_6(workload: Workload, served: &[WorkloadDelays]) -> Panel {
    const SECOND: u64 = 1_000_000_000;
    let mut series = vec![curve("arriving (figure 5)".to_owned(), &workload.seconds(SEED))];
    let of = served.iter().filter(|one| one.workload == workload && one.whole);
    let (late, prompt): (Vec<&WorkloadDelays>, Vec<&WorkloadDelays>) = of.partition(|one| one.delays.max >= SECOND);
    let name = |one: &WorkloadDelays| one.variant.name();
    series.extend(late.iter().map(|one| curve(format!("{} sends", name(one)), &one.delays.outgoing)));
    // The curves of the others coincide: one stands for all.
    let slowest = prompt.iter().max_by_key(|one| one.delays.max);
    series.extend(slowest.map(|one| curve(format!("{} sends", name(one)), &one.delays.outgoing)));
    let others = match prompt.len() {
        0 => String::new(),
        count => format!(", and sent by the slowest of {count} that keep up"),
    };
    Panel {
        title: format!("KC-x, Figure 6, {} workload: arriving, sent by who falls behind{others}", workload.name()),
        measure: "UPDATEs/s".to_owned(),
        content: Content::Lines { along: "seconds".to_owned(), series },
    }
}

/// Figure 6 on the paper's machine: the same arrivals, each taking the time of equation (1) with table III.
fn figure_6_of_table_iii(workload: Workload) -> Panel {
    let (seconds, arrivals) = (workload.seconds(SEED), workload.arrivals(SEED));
    let mut series = vec![curve("arriving (figure 5)".to_owned(), &seconds)];
    for (suite, sign, verify) in TABLE_III.into_iter().chain([HYBRID]) {
        let takes = (equation_1(sign, verify) * 1e9) as u64;
        let served = queue::run(&arrivals, 1, u64::MAX, |_| Ok::<_, std::convert::Infallible>(takes));
        let Ok(mut delays) = served;
        // Until the arrivals end; a suite that falls behind sends on at the same rate for up to two hours.
        delays.outgoing.truncate(seconds.len());
        series.push(curve(format!("{suite} sends"), &delays.outgoing));
    }
    Panel {
        title: format!("KC-x, Figure 6 with the times of table III (Pentium 4, 1.8 GHz), {} workload", workload.name()),
        measure: "UPDATEs/s".to_owned(),
        content: Content::Lines { along: "seconds".to_owned(), series },
    }
}

/// Table VI, in MB of 2^20 bytes, for the three tables.
const TABLE_VI: [(&str, [f64; 3]); 7] = [
    ("s-bgp", [28.7, 21.0, 28.5]),
    ("spv", [253.0, 185.0, 250.8]),
    ("kc-rsa-paper", [25.8, 20.0, 20.4]),
    ("sas-v", [25.8, 20.0, 20.4]),
    ("kc-mt-paper", [152.5, 111.5, 151.2]),
    ("kc-hybrid-paper", [102.1, 75.7, 96.0]),
    ("kc-hybrid-paper-2to1", [76.7, 57.2, 70.8]),
];

/// Table VI from the results of `attest-memory`.
#[must_use]
pub fn memory(report: &Report) -> Plot {
    let panels = TABLES.iter().enumerate().map(|(number, table)| {
        let values = found(report, "memory", &format!(".{}", table.asn));
        let published = TABLE_VI.map(|(name, sizes)| (name.to_owned(), sizes[number] * f64::from(1 << 20)));
        let title = format!("KC-x, Table VI: signatures of AS {}, {} routes", table.asn, table.entries);
        Places::new(&title, "bytes", values.iter().map(|(name, _)| name.clone()).collect())
            .with("measured", Style::Measured, &values)
            .with("published", Style::Published, &published)
            .panel()
    });
    Plot { title: "KC-x: memory for signatures of attestation".to_owned(), panels: panels.collect() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_proxys_cost_has_a_row_for_each_number_of_neighbours() {
        let mut report = Report::new("attest-ops", json!({}));
        assert!(neighbours(&report).is_empty());
        for number in NEIGHBOURS {
            report.exact(format!("neighbours.kc-hbs.{number}"), "s", number as f64 * 1e-4);
            report.exact(format!("neighbours_octets.kc-hbs.{number}"), "bytes", number as f64 * 8e3);
        }
        let text = ops(&report).to_text();
        let rows = |place: &str| text.lines().filter(|line| line.trim_start().starts_with(place)).count();
        assert_eq!((rows("to 32 "), rows("to 64 "), rows("to 3 ")), (2, 2, 0), "{text}");
        assert!(text.contains("kc-hbs, in bursts") && !text.contains("kc-ed25519, alone"), "{text}");
    }

    #[test]
    fn every_table_and_figure_of_the_paper_says_whose_it_is() {
        let mut report = Report::new("attest-ops", json!({}));
        report.exact("equation_1.s-bgp", "s", 1.0);
        report.exact(format!("hors_sigma.{}", shape_name(KC_MT)), "count", 15.0);
        let workloads = [Workload::Normal];
        for plot in [ops(&report), trace(&report, &workloads, &[]), memory(&report)] {
            assert!(plot.title.starts_with("KC-x: "), "{}", plot.title);
            let of_paper = |title: &str| ["Table ", "Figure ", "figure "].iter().any(|word| title.contains(word));
            let titles = plot.panels.iter().map(|panel| panel.title.as_str());
            let nameless: Vec<_> = titles.filter(|title| of_paper(title) && !title.starts_with("KC-x, ")).collect();
            assert!(nameless.is_empty(), "{nameless:?}");
        }
    }

    #[test]
    fn bandwidth_is_drawn_for_each_workload() {
        let mut report = Report::new("attest-trace", json!({}));
        for workload in ["normal", "heavy"] {
            report.exact(format!("bandwidth_mean.kc-ed25519.{workload}"), "bit/s", 2_000.0);
            report.exact(format!("bandwidth_max.kc-ed25519.{workload}"), "bit/s", 9_000.0);
        }
        let panel = bandwidth(&report, &[Workload::Normal, Workload::Heavy]);
        let Content::Categories { places, series } = panel.content else { panic!("places") };
        assert_eq!((places, series.len()), (vec!["kc-ed25519".to_owned()], 4));
        assert_eq!(series[3].points, [(0, 9_000.0)]);
    }
}

//! The figures and tables of forwarding and stamping (Platypus, Figure 4 and Table 3; SCION, Figures 3 and 4 and Table 1), with
//! the published points beside ours.

use super::{Content, Panel, Plot, Series, Style};
use crate::report::Report;

/// Platypus, Table 3: nanoseconds of packet processing for 68, 348 and 1500 octets, without and with verification.
const TABLE_3: [[f64; 3]; 2] = [[172.0, 173.0, 181.0], [695.0, 998.0, 1_908.0]];
/// Platypus, section 6.1: packets a second of 68 octets forwarded, and of 40 octets stamped.
const FIGURE_4: [f64; 2] = [767e3, 633e3];
/// SCION, Figures 3 and 4: one port and twelve, packets of 64 and 1518 octets; SCION, IPv4 and the baseline are equal.
const PORTS: [[f64; 2]; 2] = [[14.88e6, 0.81e6], [140e6, 9.71e6]];

/// All figures and tables of forwarding, from the results of `forward`.
#[must_use]
pub fn forward(report: &Report) -> Plot {
    let mut panels = vec![figure_4(report), table_3(report)];
    panels.extend(scion(report));
    panels.push(table_1(report));
    Plot { title: "Forwarding in memory, one core unless said".to_owned(), panels }
}

/// Platypus' Figure 4 of stamping, from the results of `stamp`.
#[must_use]
pub fn stamp(report: &Report) -> Plot {
    let places = ["platypus.40", "platypus.64", "platypus.348", "platypus.1500", "scion.64", "icing.64"];
    let series = vec![ours(report, &places), published(&[(0, FIGURE_4[1])])];
    let panel = panel("Platypus, Figure 4: stamping (published: 40 octets)", "packets a second", &places, series);
    Plot { title: "Stamping in memory, one core".to_owned(), panels: vec![panel] }
}

fn figure_4(report: &Report) -> Panel {
    let places = ["none", "ip", "platypus.64", "platypus-full.64", "platypus-full.cores"];
    let series = vec![ours(report, &places), published(&[(2, FIGURE_4[0])])];
    panel("Platypus, Figure 4: forwarding (published: 68 octets, with I/O)", "packets a second", &places, series)
}

fn table_3(report: &Report) -> Panel {
    let sizes = ["64", "348", "1500"];
    let nanoseconds = |name: &str| {
        let points = sizes.iter().enumerate();
        let time = |size: &str| report.value(&format!("{name}.{size}")).map(|rate| 1e9 / rate);
        points.filter_map(|(place, size)| Some((place, time(size)?))).collect()
    };
    let unprocessed = [("none", 0), ("none.1518", 2)];
    let unprocessed = unprocessed.map(|(name, place)| report.value(name).map(|rate| (place, 1e9 / rate)));
    let series = vec![
        line("verify and rewrite", Style::Measured, nanoseconds("platypus")),
        line("published: UMAC", Style::Published, TABLE_3[1].into_iter().enumerate().collect()),
        line("no processing", Style::Measured, unprocessed.into_iter().flatten().collect()),
        line("published: null", Style::Published, TABLE_3[0].into_iter().enumerate().collect()),
        line("replay and accounts too", Style::Measured, nanoseconds("platypus-full")),
    ];
    panel("Platypus, Table 3: packet processing (published: 68, 348, 1500 octets)", "nanoseconds", &sizes, series)
}

fn scion(report: &Report) -> [Panel; 2] {
    let places = ["none", "ip", "scion-2015", "scion"];
    let of = |suffix: &str| {
        let names = places.map(|place| format!("{place}{suffix}"));
        let points = names.iter().enumerate();
        points.filter_map(|(place, name)| Some((place, report.value(name)?))).collect::<Vec<_>>()
    };
    let level = |rate: f64| (0..3).map(|place| (place, rate)).collect::<Vec<_>>();
    let one = vec![
        line("64 octets", Style::Measured, of("")),
        line("64, published", Style::Published, level(PORTS[0][0])),
        line("1518 octets", Style::Measured, of(".1518")),
        line("1518, published", Style::Published, level(PORTS[0][1])),
    ];
    let all = vec![
        line("64 octets, all cores", Style::Measured, of(".cores")),
        line("64, published: 12 ports", Style::Published, level(PORTS[1][0])),
    ];
    [
        panel("SCION, Figure 3: one core here, one port of 10 Gb/s there", "packets a second", &places, one),
        panel("SCION, Figure 4: all cores, all ports", "packets a second", &places, all),
    ]
}

fn table_1(report: &Report) -> Panel {
    let places = ["trace-1", "trace-2", "trace-3"];
    let of = |suffix: &str| {
        let points = places.iter().enumerate();
        let value = |place: &str| report.value(&format!("table-1.{place}{suffix}"));
        points.filter_map(|(place, name)| Some((place, 100.0 * value(name)?))).collect::<Vec<_>>()
    };
    let series =
        vec![line("from its counts", Style::Measured, of("")), line("printed", Style::Published, of(".paper"))];
    panel("SCION, Table 1: octets of path for four hops", "per cent", &places, series)
}

fn ours(report: &Report, places: &[&str]) -> Series<usize> {
    let points = places.iter().enumerate().filter_map(|(place, name)| Some((place, report.value(name)?))).collect();
    line("measured here", Style::Measured, points)
}

fn published(points: &[(usize, f64)]) -> Series<usize> {
    line("published", Style::Published, points.to_vec())
}

fn line(name: &str, style: Style, points: Vec<(usize, f64)>) -> Series<usize> {
    Series { name: name.to_owned(), style, points }
}

fn panel(title: &str, measure: &str, places: &[&str], series: Vec<Series<usize>>) -> Panel {
    let places = places.iter().map(|place| (*place).to_owned()).collect();
    let content = Content::Categories { places, series };
    Panel { title: title.to_owned(), measure: measure.to_owned(), content }
}

//! The figures and tables of forwarding and stamping (Platypus, Figure 4 and Table 3; SCION, Figures 3 and 4 and Table 1), with
//! the published points beside ours. Published points are those that the text gives as numbers; of Platypus' Figure 4 these are the
//! rates without loss of forwarding and of stamping, and none of the curves of Linux and of null forwarding.

use super::{Content, Panel, Plot, Series, Style};
use crate::report::{Measurement, Report};

/// Platypus, Table 3: nanoseconds of packet processing for 68, 348 and 1500 octets, without and with verification.
const TABLE_3: [[f64; 3]; 2] = [[172.0, 173.0, 181.0], [695.0, 998.0, 1_908.0]];
/// Platypus, section 6.1: packets a second of 68 octets forwarded, and of 40 octets stamped, at most without loss.
const FIGURE_4: [f64; 2] = [767e3, 633e3];
/// SCION, Figures 3 and 4 (section 5.2): one port and twelve, packets of 64 and 1518 octets; SCION, IPv4 and the baseline are equal.
/// All but the 64 octets of twelve ports are line rate. (Section 5.2 also says 101.4 M for twelve ports of 1518 octets, which is not
/// twelve times 0.81 M; section 5.2.2 has 9.71 M.)
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
    let places = ["none", "ip", "platypus.68", "platypus-full.68", "platypus-full.cores"];
    let series = vec![ours(report, &places), published(&[(2, FIGURE_4[0])])];
    let title =
        "Platypus, Figure 4: forwarding in memory, without I/O (published: 68 octets, with I/O; `.cores`: 64 octets)";
    panel(title, "packets a second", &places, series)
}

/// Platypus' Figure 4 with input and output, and what the other forwarders of `forward-io` carry.
#[must_use]
pub fn forward_io(report: &Report) -> Plot {
    let results = report.results.iter().filter(|one| one.unit == "packets/s" && !one.name.starts_with("figure-4."));
    let places: Vec<&str> = results.map(|one| one.name.as_ref()).collect();
    let series = vec![ours(report, &places)];
    let all = panel("What arrives, at the generator's maximum rate", "packets a second", &places, series);
    Plot {
        title: "Forwarding between network namespaces".to_owned(),
        panels: vec![offered(report), lossless(report), all],
    }
}

/// Curves of Platypus' Figure 4: result, and what it is.
const OFFERED: [(&str, &str); 4] = [
    ("kernel-ip", "kernel IP forwarding"),
    ("null", "null: in and out, unread"),
    ("platypus.udp-gso", "Platypus, UDP"),
    ("platypus.af-xdp", "Platypus, AF_XDP"),
];

/// Forwarded against offered load.
fn offered(report: &Report) -> Panel {
    let mut series = Vec::new();
    for (name, what) in OFFERED {
        let begin = format!("figure-4.{name}.offered.");
        let point = |result: &Measurement| {
            let level = result.name.strip_prefix(&begin)?;
            let forwarded = report.value(&format!("figure-4.{name}.forwarded.{level}"))?;
            Some((result.value / 1e3, forwarded / 1e3))
        };
        let mut points: Vec<(f64, f64)> = report.results.iter().filter_map(point).collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        if points.is_empty() {
            continue;
        }
        series.push(Series { name: what.to_owned(), style: Style::Measured, points });
        if name == "platypus.udp-gso" {
            // A rate without loss: as much was offered.
            let points = vec![(FIGURE_4[0] / 1e3, FIGURE_4[0] / 1e3)];
            series.push(Series { name: "published: most without loss".to_owned(), style: Style::Published, points });
        }
    }
    Panel {
        title: format!("Platypus, Figure 4: 68 octets (published: {THERE}, one point in its text; here: {HERE})"),
        measure: "forwarded, thousand packets/s".to_owned(),
        content: Content::Lines { along: "offered, thousand packets/s".to_owned(), series },
    }
}

/// How ours differs from the paper's experiment.
const THERE: &str = "over IP, two Gigabit ports";
const HERE: &str = "in UDP, veth, one core";

/// The most that was forwarded without loss.
fn lossless(report: &Report) -> Panel {
    let names = OFFERED.map(|(name, _)| format!("figure-4.{name}.lossless"));
    let points = names.iter().enumerate().filter_map(|(place, name)| Some((place, report.value(name)?)));
    let points: Vec<(usize, f64)> = points.collect();
    let theirs = OFFERED.iter().position(|(name, _)| *name == "platypus.udp-gso").filter(|_| !points.is_empty());
    let theirs: Vec<(usize, f64)> = theirs.map(|place| (place, FIGURE_4[0])).into_iter().collect();
    let series = vec![line("measured here", Style::Measured, points), published(&theirs)];
    let title = format!(
        "Platypus, Figure 4: most without loss (published: {THERE}, no numbers of Linux and null; here: {HERE})"
    );
    panel(&title, "packets a second", &OFFERED.map(|(_, what)| what), series)
}

fn table_3(report: &Report) -> Panel {
    let sizes = ["68", "348", "1500"];
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
    let title =
        "Platypus, Table 3: packet processing (AES-CMAC here, UMAC there; \"no processing\" of 64 and 1518 octets)";
    panel(title, "nanoseconds", &sizes, series)
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
        line("1518 octets, all cores", Style::Measured, of(".1518.cores")),
        line("1518, published: 12 ports", Style::Published, level(PORTS[1][1])),
    ];
    let figure_4 =
        "SCION, Figure 4: all cores in memory here, without I/O; twelve ports of 10 Gb/s there (1518: line rate)";
    [
        panel("SCION, Figure 3: one core here, one port of 10 Gb/s there", "packets a second", &places, one),
        panel(figure_4, "packets a second", &places, all),
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
        vec![line("from its counts", Style::Measured, of("")), line("published", Style::Published, of(".paper"))];
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

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn counts(panel: &Panel) -> Vec<(&str, usize)> {
        match &panel.content {
            Content::Categories { series, .. } => {
                series.iter().map(|one| (one.name.as_str(), one.points.len())).collect()
            }
            Content::Lines { series, .. } => series.iter().map(|one| (one.name.as_str(), one.points.len())).collect(),
        }
    }

    #[test]
    fn a_curve_of_figure_4_has_a_point_for_each_level_in_the_order_of_what_was_offered() {
        let mut report = Report::new("forward-io", Value::Null);
        for (level, offered) in [(50, 2e3), (100, 4e3), (25, 1e3)] {
            for name in ["kernel-ip", "platypus.udp-gso"] {
                report.exact(format!("figure-4.{name}.offered.{level}"), "packets/s", offered);
                report.exact(format!("figure-4.{name}.forwarded.{level}"), "packets/s", offered / 2.0);
            }
        }
        report.exact("figure-4.platypus.udp-gso.lossless", "packets/s", 1e3);
        report.exact("kernel-ip", "packets/s", 5e5);
        let plot = forward_io(&report);
        let published = ("published: most without loss", 1);
        let curves = [("kernel IP forwarding", 3), ("Platypus, UDP", 3), published];
        assert_eq!(counts(&plot.panels[0]), curves);
        assert_eq!(counts(&plot.panels[1]), [("measured here", 1), ("published", 1)]);
        assert_eq!(counts(&plot.panels[2]), [("measured here", 1)]);
        let Content::Lines { series, .. } = &plot.panels[0].content else { panic!("curves") };
        assert_eq!(series[0].points, [(1.0, 0.5), (2.0, 1.0), (4.0, 2.0)]);
        assert_eq!((series[2].style == Style::Published, series[2].points[0]), (true, (767.0, 767.0)));
        // Where Platypus was not measured, nothing stands beside the published point, which is then left out.
        report.results.retain(|one| !one.name.contains("platypus"));
        assert_eq!(counts(&forward_io(&report).panels[0]), [("kernel IP forwarding", 3)]);
    }

    #[test]
    fn platypus_stands_beside_the_published_figures_at_the_papers_sizes() {
        let mut report = Report::new("forward", Value::Null);
        for (name, rate) in [("platypus.64", 1e6), ("platypus.68", 2e6), ("platypus-full.68", 4e6)] {
            report.exact(name, "packets/s", rate);
        }
        let text = forward(&report).to_text_of(|title| title.starts_with("Platypus, Table 3"));
        let row = text.lines().find(|line| line.trim_start().starts_with("68 ")).expect("a row");
        assert!(row.contains("500") && row.contains("695") && row.contains("250"), "{text}");
        let text = forward(&report).to_text_of(|title| title.starts_with("Platypus, Figure 4"));
        let row = text.lines().find(|line| line.trim_start().starts_with("platypus.68 ")).expect("a row");
        assert!(row.contains("2.00 M") && row.contains("767 k"), "{text}");
    }

    #[test]
    fn figure_4_of_scion_has_both_sizes_beside_the_published_ones() {
        let mut report = Report::new("forward", Value::Null);
        for name in ["none", "ip", "scion-2015", "scion"] {
            report.exact(format!("{name}.cores"), "packets/s", 2e8);
            report.exact(format!("{name}.1518.cores"), "packets/s", 1e8);
        }
        let plot = forward(&report);
        let figure = plot.panels.iter().find(|panel| panel.title.starts_with("SCION, Figure 4")).expect("drawn");
        assert_eq!(counts(figure).into_iter().map(|one| one.1).collect::<Vec<_>>(), [4, 3, 4, 3]);
        let text = plot.to_text_of(|title| title.starts_with("SCION, Figure 4"));
        assert!(text.contains("9.71 M") && text.contains("140 M") && !text.contains("not measured"), "{text}");
    }
}

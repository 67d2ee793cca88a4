//! What overlays carry beside each other, and PoComON's Figures 5, 7 and 8 with what its text says of them.

use super::{Content, Panel, Plot, Series, Style};
use crate::report::{Report, mean, percentile};

const OVERLAYS: [&str; 5] = ["icing", "null", "kernel-wireguard", "wireguard-go", "boringtun"];
/// Measure, what it is, unit.
const MEASURES: [(&str, &str, &str); 3] = [
    ("tcp", "One TCP stream through TUN at both ends", "bit/s"),
    ("udp64", "UDP of 64 octets", "packets/s"),
    ("latency", "One way, median", "seconds"),
];
/// What names of results end with, and what the overlays cross.
const WAYS: [(&str, &str); 2] = [("", "over the chain of three nodes"), (".direct", "over a link, without forwarders")];

/// The results of `overlay`.
#[must_use]
pub fn overlay(report: &Report) -> Plot {
    let of = |(suffix, way): (&str, &str), (measure, title, unit): (&str, &str, &str)| {
        let value = |name: &&str| report.value(&format!("{measure}.{name}{suffix}"));
        let points: Vec<(usize, f64)> =
            OVERLAYS.iter().enumerate().filter_map(|(place, name)| Some((place, value(name)?))).collect();
        let has_points = !points.is_empty();
        let series = vec![Series { name: "measured here".to_owned(), style: Style::Measured, points }];
        let places = OVERLAYS.map(str::to_owned).to_vec();
        let title = format!("{title}, {way}");
        let content = Content::Categories { places, series };
        has_points.then(|| Panel { title, measure: unit.to_owned(), content })
    };
    let panels = WAYS.into_iter().flat_map(|way| MEASURES.map(|measure| of(way, measure))).flatten().collect();
    Plot { title: "Overlays beside each other".to_owned(), panels }
}

/// A figure of the paper: number, result, setup, and the mean, median and standard deviation that the text gives.
pub const FIGURES: [(u8, &str, &str, [f64; 3]); 3] = [
    (5, "baseline", "path server beside the sender", [2_628.62, 2_408.91, 1_243.16]),
    (7, "apart", "path server on a machine of its own", [1_271.08, 1_258.91, 223.69]),
    (8, "cached", "paths are asked for once", [6_439.66, 5_725.09, 3_056.92]),
];
/// Columns of a distribution.
const COLUMNS: usize = 40;
/// Percentiles of the intervals' throughputs that are reported.
pub const PERCENTILES: [usize; 7] = [1, 5, 25, 50, 75, 95, 99];

/// Packets a second over all intervals, from their throughputs. Intervals that end within one batch of packets are much faster than
/// that, which the mean of their throughputs shows.
#[must_use]
pub fn overall(values: &[f64]) -> f64 {
    values.len() as f64 / values.iter().map(|value| value.recip()).sum::<f64>().max(f64::MIN_POSITIVE)
}

/// PoComON's Figures 5, 7 and 8: how the throughputs of intervals of 50 packets are distributed.
#[must_use]
pub fn pocomon(samples: &[(String, Vec<f64>)]) -> Plot {
    let mut panels = Vec::new();
    for (number, name, setup, [published, median, deviation]) in FIGURES {
        let Some((_, values)) = samples.iter().find(|(known, _)| known == name) else { continue };
        panels.push(summaries(number, setup, values, [published, median]));
        let counts = distribution(values);
        let most = counts.iter().map(|(_, count)| *count).fold(1.0, f64::max);
        let level = |part: f64, at: &[f64]| at.iter().map(|at| (at.max(0.0), part * most)).collect::<Vec<_>>();
        let series = vec![
            Series { name: "measured here".to_owned(), style: Style::Measured, points: counts },
            Series { name: "its mean".to_owned(), style: Style::Tried, points: level(0.5, &[mean(values)]) },
            Series {
                name: "published mean, +-sigma".to_owned(),
                style: Style::Published,
                points: level(0.25, &[published - deviation, published, published + deviation]),
            },
        ];
        panels.push(Panel {
            title: format!("PoComON, Figure {number}: {setup}; the samples' distribution"),
            measure: "samples".to_owned(),
            content: Content::Lines { along: "packets a second, of 50 packets each".to_owned(), series },
        });
    }
    Plot { title: "PoComON: throughput of the chain of five nodes".to_owned(), panels }
}

/// Percentiles, mean and overall rate, beside the mean and median that the paper's text gives.
fn summaries(number: u8, setup: &str, values: &[f64], [published_mean, published_median]: [f64; 2]) -> Panel {
    let mut points: Vec<(String, f64)> =
        PERCENTILES.iter().map(|percent| (format!("{percent} of 100"), percentile(values, *percent))).collect();
    let middle = PERCENTILES.iter().position(|percent| *percent == 50).unwrap_or_default();
    points[middle].0 = "median".to_owned();
    points.push(("mean".to_owned(), mean(values)));
    points.push(("all packets by all time".to_owned(), overall(values)));
    let mut published = vec![(middle, published_median), (PERCENTILES.len(), published_mean)];
    let mut differs = "";
    if number == 8 {
        // Packets that arrive together end intervals within microseconds of each other: that is no throughput. The mean of the paper's
        // samples is no less than all its packets divided by all its time, so that stands beside ours.
        published = vec![(PERCENTILES.len() + 1, published_mean)];
        differs = "; an interval within a burst is no throughput (published: its mean, no less than all by all)";
    }
    let (places, values): (Vec<String>, Vec<f64>) = points.into_iter().unzip();
    let series = vec![
        Series {
            name: "measured here".to_owned(),
            style: Style::Measured,
            points: values.into_iter().enumerate().collect(),
        },
        Series { name: "published".to_owned(), style: Style::Published, points: published },
    ];
    Panel {
        title: format!("PoComON, Figure {number}: {setup}{differs}"),
        measure: "packets/s, of 50 packets each".to_owned(),
        content: Content::Categories { places, series },
    }
}

/// How many samples lie in each of some columns of equal width, by the middle of the column.
fn distribution(values: &[f64]) -> Vec<(f64, f64)> {
    let most = values.iter().copied().fold(1.0, f64::max);
    let width = most / COLUMNS as f64;
    let mut counts = [0u32; COLUMNS];
    for value in values {
        counts[((value / width) as usize).min(COLUMNS - 1)] += 1;
    }
    let middle = |column: usize| (column as f64 + 0.5) * width;
    counts.iter().enumerate().map(|(column, count)| (middle(column), f64::from(*count))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_lies_in_one_column() {
        let values: Vec<f64> = (0..1_000).map(f64::from).collect();
        let columns = distribution(&values);
        assert_eq!((columns.len(), columns.iter().map(|column| column.1).sum::<f64>()), (COLUMNS, 1_000.0));
        assert_eq!(distribution(&[5.0]).last().map(|column| column.1), Some(1.0));
    }

    #[test]
    fn the_rate_of_a_burst_is_not_the_overall_rate() {
        // One interval of a second, and three that end within a microsecond of each other.
        let values = [50.0, 5e7, 5e7, 5e7];
        assert!((overall(&values) - 200.0).abs() < 0.1, "{}", overall(&values));
        let text = pocomon(&[("cached".to_owned(), values.to_vec())]).to_text();
        let row = |begin: &str| text.lines().find(|line| line.trim_start().starts_with(begin)).unwrap_or_default();
        let overall = row("all packets by all time");
        assert!(overall.contains("200") && overall.contains("6440") && overall.contains("0.03"), "{text}");
        assert!(row("mean").ends_with('-') && row("median").ends_with('-'), "no quotient of a burst: {text}");
        assert!(row("PoComON, Figure 8").contains("no throughput"), "{text}");
    }

    #[test]
    fn each_figure_that_was_measured_is_drawn_with_the_published_mean() {
        let samples = vec![("apart".to_owned(), vec![1_000.0, 1_200.0]), ("other".to_owned(), vec![1.0])];
        let svg = pocomon(&samples).to_svg();
        assert!(svg.contains("Figure 7") && !svg.contains("Figure 5"));
        // The distribution's three points and the two of mean and median, each with the sample in the legend.
        assert_eq!(svg.matches("fill=\"white\" stroke").count(), 3 + 1 + 2 + 1);
        let mut report = Report::new("overlay", serde_json::Value::Null);
        report.exact("tcp.icing", "bit/s", 1e9);
        assert!(overlay(&report).to_svg().contains("wireguard-go"));
    }

    #[test]
    fn overlays_are_drawn_over_the_ways_that_were_measured() {
        let mut report = Report::new("overlay", serde_json::Value::Null);
        report.exact("tcp.icing", "bit/s", 1e9);
        assert_eq!(overlay(&report).panels.len(), 1);
        report.exact("udp64.kernel-wireguard.direct", "packets/s", 1e5);
        let titles: Vec<String> = overlay(&report).panels.into_iter().map(|panel| panel.title).collect();
        assert_eq!(
            titles,
            [
                "One TCP stream through TUN at both ends, over the chain of three nodes",
                "UDP of 64 octets, over a link, without forwarders"
            ]
        );
    }
}

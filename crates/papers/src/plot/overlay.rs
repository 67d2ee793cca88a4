//! What overlays carry beside each other, and PoComON's Figures 5, 7 and 8 with what its text says of them.

use super::{Content, Panel, Plot, Series, Style};
use crate::report::{Report, mean};

const OVERLAYS: [&str; 4] = ["icing", "null", "wireguard-go", "boringtun"];

/// The results of `overlay`.
#[must_use]
pub fn overlay(report: &Report) -> Plot {
    let of = |measure: &str, title: &str, unit: &str| {
        let value = |name: &&str| report.value(&format!("{measure}.{name}"));
        let points = OVERLAYS.iter().enumerate().filter_map(|(place, name)| Some((place, value(name)?))).collect();
        let series = vec![Series { name: "measured here".to_owned(), style: Style::Measured, points }];
        let places = OVERLAYS.map(str::to_owned).to_vec();
        Panel { title: title.to_owned(), measure: unit.to_owned(), content: Content::Categories { places, series } }
    };
    let panels = vec![
        of("tcp", "One TCP stream through TUN at both ends", "bit/s"),
        of("udp64", "UDP of 64 octets", "packets/s"),
        of("latency", "One way through the chain of three nodes, median", "seconds"),
    ];
    Plot { title: "Overlays over one chain of three nodes".to_owned(), panels }
}

/// A figure of the paper: number, result, setup, and the mean, median and standard deviation that the text gives.
pub const FIGURES: [(u8, &str, &str, [f64; 3]); 3] = [
    (5, "baseline", "path server beside the sender", [2_628.62, 2_408.91, 1_243.16]),
    (7, "apart", "path server on a machine of its own", [1_271.08, 1_258.91, 223.69]),
    (8, "cached", "paths are asked for once", [6_439.66, 5_725.09, 3_056.92]),
];
/// Columns of a distribution.
const COLUMNS: usize = 40;

/// PoComON's Figures 5, 7 and 8: how the throughputs of intervals of 50 packets are distributed.
#[must_use]
pub fn pocomon(samples: &[(String, Vec<f64>)]) -> Plot {
    let mut panels = Vec::new();
    for (number, name, setup, [published, _, deviation]) in FIGURES {
        let Some((_, values)) = samples.iter().find(|(known, _)| known == name) else { continue };
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
            title: format!("PoComON, Figure {number}: {setup}"),
            measure: "samples".to_owned(),
            content: Content::Lines { along: "packets a second, of 50 packets each".to_owned(), series },
        });
    }
    Plot { title: "PoComON: throughput of the chain of five nodes".to_owned(), panels }
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
    fn each_figure_that_was_measured_is_drawn_with_the_published_mean() {
        let samples = vec![("apart".to_owned(), vec![1_000.0, 1_200.0]), ("other".to_owned(), vec![1.0])];
        let svg = pocomon(&samples).to_svg();
        assert!(svg.contains("Figure 7") && !svg.contains("Figure 5"));
        // Three points and the sample in the legend.
        assert_eq!(svg.matches("fill=\"white\" stroke").count(), 4);
        let mut report = Report::new("overlay", serde_json::Value::Null);
        report.exact("tcp.icing", "bit/s", 1e9);
        assert!(overlay(&report).to_svg().contains("wireguard-go"));
    }
}

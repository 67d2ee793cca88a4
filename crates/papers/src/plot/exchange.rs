//! The SIXPACK paper's Table 1 and Figures 10 and 11 (sections 7.2 and 7.3), beside ours. Of the figures, the published points are those that
//! the text gives as numbers.

use super::{Content, Panel, Plot, Series, Style};
use crate::report::{Report, percentile};

/// Table 1, for 750 members: inputs, then milliseconds and KiB of setup, milliseconds and KiB online.
pub const TABLE_1: [(&str, [f64; 4]); 5] = [
    ("Export-All", [1.7, 28.0, 0.6, 25.0]),
    ("Select-Best 4", [19.8, 1_492.0, 5.3, 106.0]),
    ("Select-Best 8", [34.6, 3_469.0, 10.3, 247.0]),
    ("Select-Best 16", [63.7, 7_409.0, 19.3, 528.0]),
    ("Select-Best 32", [122.4, 15_286.0, 35.9, 1_091.0]),
];
/// Routes of the rows of Table 1 that are Select-Best's.
pub const TABLE_1_ROUTES: [usize; 4] = [4, 8, 16, 32];
/// Figure 10, section 7.3: mean and 99th percentile, in milliseconds.
pub const FIGURE_10: [(&str, f64, f64); 2] = [("Export-All", 15.9, 23.6), ("Select-Best", 32.7, 62.8)];
/// Figure 11, section 7.3: series, workers, routes or prefixes a second.
pub const FIGURE_11: [(&str, usize, f64); 3] =
    [("export_all", 8, 619.28), ("export_all", 16, 1_010.0), ("select_best.8", 8, 64.33)];

/// Table 1. `rows` has for each of its rows the results of `select-best` or of `export-all --mode mpc`.
#[must_use]
pub fn table_1(rows: &[&Report]) -> Plot {
    let places = || TABLE_1.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>();
    let panel = |title: &str, measure: &str, columns: [(&str, &str, usize); 2], factor: f64| {
        let mut series = Vec::new();
        for (name, result, column) in columns {
            let ours = rows.iter().enumerate().filter_map(|(place, row)| Some((place, row.value(result)?)));
            let ours: Vec<(usize, f64)> = ours.filter(|(_, value)| *value > 0.0).collect();
            let theirs = TABLE_1.iter().enumerate().map(|(place, (_, row))| (place, row[column] * factor)).collect();
            series.push(Series { name: name.to_owned(), style: Style::Measured, points: ours });
            series.push(Series { name: format!("{name}, published"), style: Style::Published, points: theirs });
        }
        let content = Content::Categories { places: places(), series };
        Panel { title: title.to_owned(), measure: measure.to_owned(), content }
    };
    Plot {
        title: "SIXPACK, Table 1: 750 members".to_owned(),
        panels: vec![
            panel("Run time", "seconds", [("setup", "setup", 0), ("online", "online", 2)], 1e-3),
            panel(
                "Octets sent and received by one party",
                "bytes",
                [("setup", "bytes_setup", 1), ("online", "bytes_online", 3)],
                1_024.0,
            ),
        ],
    }
}

/// Figure 10: the distribution of processing times, of Export-All and Select-Best, in seconds.
#[must_use]
pub fn figure_10(samples: [&[f64]; 2]) -> Plot {
    let panel = |(name, mean, p99): (&str, f64, f64), samples: &[f64]| {
        let at = |percent: usize| (percentile(samples, percent) * 1e3, percent as f64);
        let points = if samples.is_empty() { Vec::new() } else { (0..=100).map(at).collect() };
        let series = vec![
            Series { name: "parties' time".to_owned(), style: Style::Measured, points },
            Series { name: "published 99th percentile".to_owned(), style: Style::Published, points: vec![(p99, 99.0)] },
        ];
        let title = format!("{name}: share of prefixes that took at most so long (published mean {mean} ms)");
        let content = Content::Lines { along: "milliseconds".to_owned(), series };
        Panel { title, measure: "percent".to_owned(), content }
    };
    let panels = FIGURE_10.into_iter().zip(samples).map(|(published, samples)| panel(published, samples)).collect();
    Plot { title: "SIXPACK, Figure 10, over a generated trace".to_owned(), panels }
}

/// Figure 11 from the results of `exchange-stress`: rates by the number of workers.
#[must_use]
pub fn figure_11(report: &Report, workers: &[usize], routes: &[usize]) -> Plot {
    let all: Vec<usize> = {
        let published = FIGURE_11.iter().map(|(_, workers, _)| *workers);
        let all: std::collections::BTreeSet<usize> = workers.iter().copied().chain(published).collect();
        all.into_iter().collect()
    };
    let place = |workers: usize| all.iter().position(|one| *one == workers);
    let names = std::iter::once("export_all".to_owned()).chain(routes.iter().map(|r| format!("select_best.{r}")));
    let panel = |suffix: &str, title: &str| {
        let mut series = Vec::new();
        for name in names.clone() {
            let value = |workers: &usize| report.value(&format!("{name}{suffix}.workers.{workers}"));
            let points = workers.iter().filter_map(|workers| Some((place(*workers)?, value(workers)?))).collect();
            series.push(Series { name: name.clone(), style: Style::Measured, points });
            let published = FIGURE_11.iter().filter(|(of, ..)| *of == name);
            let points: Vec<(usize, f64)> =
                published.filter_map(|(_, workers, rate)| Some((place(*workers)?, *rate))).collect();
            if !points.is_empty() {
                series.push(Series { name: format!("{name}, published"), style: Style::Published, points });
            }
        }
        let places = all.iter().map(|workers| format!("{workers} workers")).collect();
        let content = Content::Categories { places, series };
        Panel { title: title.to_owned(), measure: "routes/s, prefixes/s".to_owned(), content }
    };
    Plot {
        title: "SIXPACK, Figure 11: the parties alone".to_owned(),
        panels: vec![panel("", "From a filled pool"), panel(".sustained", "With setup, as published")],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn published_points_are_drawn_beside_ours() {
        let mut row = Report::new("select-best", json!({}));
        row.exact("setup", "s", 0.03);
        row.exact("online", "s", 0.002);
        row.exact("bytes_setup", "bytes", 1e7);
        row.exact("bytes_online", "bytes", 1e6);
        let svg = table_1(&[&row; 5]).to_svg();
        // Two columns and two panels: five rows of ours and five published, and eight samples in the legend.
        assert_eq!(svg.matches("<circle").count(), 2 * 2 * 10 + 8);
        assert_eq!(svg.matches("fill=\"white\" stroke").count(), 2 * 2 * 5 + 4);

        let svg = figure_10([&[0.001, 0.002], &[]]).to_svg();
        assert_eq!((svg.matches("<polyline").count(), svg.matches("fill=\"white\" stroke").count()), (2, 4));

        let mut report = Report::new("exchange-stress", json!({}));
        for workers in [1, 2] {
            report.exact(format!("export_all.workers.{workers}"), "routes/s", 5_000.0);
            report.exact(format!("select_best.8.sustained.workers.{workers}"), "prefixes/s", 150.0);
        }
        let svg = figure_11(&report, &[1, 2], &[8]).to_svg();
        assert!(svg.contains("16 workers") && svg.contains("select_best.8, published"));
        assert_eq!(svg.matches("fill=\"white\" stroke").count(), 2 * (3 + 2));
    }
}

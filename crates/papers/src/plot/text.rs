//! A plot as text: what was measured beside what was published, for a terminal.

use std::fmt::Write as _;

use super::{Content, Panel, Plot, Series, Style};

/// Points of a curve that are printed, at most.
const POINTS: usize = 11;

impl Plot {
    /// Title and panels, one below the other; of a panel in which nothing was measured only that.
    #[must_use]
    pub fn to_text(&self) -> String {
        self.to_text_of(|_| true)
    }

    /// The same of those panels whose title `is_wanted`.
    #[must_use]
    pub fn to_text_of(&self, is_wanted: impl Fn(&str) -> bool) -> String {
        let mut out = format!("{}\n", self.title);
        for panel in self.panels.iter().filter(|panel| is_wanted(&panel.title)) {
            out.push('\n');
            panel.write(&mut out);
        }
        out
    }
}

impl Panel {
    fn write(&self, out: &mut String) {
        let heading = format!("{} ({})", self.title, self.measure);
        let _ = writeln!(out, "{}", heading.trim_start());
        let rows = match &self.content {
            Content::Categories { places, series } => categories(places, series, show_of(&self.measure)),
            Content::Lines { along, series } => lines(along, series),
        };
        if rows.len() < 2 {
            out.push_str("  not measured\n");
        }
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| rows.iter().filter_map(|row| Some(row.get(column)?.chars().count())).max();
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        for row in rows.iter().filter(|_| rows.len() > 1) {
            let cells = row.iter().zip(&widths).enumerate();
            let line: String = cells
                .map(
                    |(column, (cell, width))| {
                        if column == 0 { format!("  {cell:width$}") } else { format!("  {cell:>width$}") }
                    },
                )
                .collect();
            let _ = writeln!(out, "{}", line.trim_end());
        }
    }
}

/// A heading and a row for each place, with the quotient of each measured series and the published one that follows it.
fn categories(places: &[String], series: &[Series<usize>], show: fn(f64) -> String) -> Vec<Vec<String>> {
    let published_after = |number: usize| series.get(number + 1).is_some_and(|next| next.style == Style::Published);
    let mut heading = vec![String::new()];
    for (number, one) in series.iter().enumerate() {
        heading.push(one.name.clone());
        if one.style == Style::Published && number > 0 && published_after(number - 1) {
            heading.push("ratio".to_owned());
        }
    }
    let value = |one: &Series<usize>, at: usize| one.points.iter().find(|(place, _)| *place == at).map(|point| point.1);
    let mut rows = vec![heading];
    for (at, place) in places.iter().enumerate() {
        if series.iter().all(|one| value(one, at).is_none()) {
            continue;
        }
        let mut row = vec![place.clone()];
        for (number, one) in series.iter().enumerate() {
            row.push(value(one, at).map_or_else(|| "-".to_owned(), show));
            if one.style == Style::Published && number > 0 {
                let quotient = value(&series[number - 1], at).zip(value(one, at)).map(|(ours, theirs)| ours / theirs);
                row.push(quotient.map_or_else(|| "-".to_owned(), plain));
            }
        }
        rows.push(row);
    }
    rows
}

/// A row for each point, of a long curve for some.
fn lines(along: &str, series: &[Series<f64>]) -> Vec<Vec<String>> {
    let mut rows = vec![vec!["series".to_owned(), along.to_owned(), "value".to_owned()]];
    for one in series {
        if one.style == Style::Spread {
            let bars = one.points.chunks_exact(2);
            let row = |bar: &[(f64, f64)]| {
                vec![one.name.clone(), shown(bar[0].0), format!("{} to {}", shown(bar[0].1), shown(bar[1].1))]
            };
            rows.extend(bars.map(row));
            continue;
        }
        let step = one.points.len().div_ceil(POINTS).max(1);
        let last = one.points.len().saturating_sub(1);
        for (number, (x, y)) in one.points.iter().enumerate() {
            if number % step == 0 || number == last {
                rows.push(vec![one.name.clone(), shown(*x), shown(*y)]);
            }
        }
    }
    rows
}

/// A quotient, which is near one or of interest to the order of its size alone.
fn plain(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 0.1 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// How the values of a measure are written.
fn show_of(measure: &str) -> fn(f64) -> String {
    if measure == "seconds" { time } else { shown }
}

/// Three significant digits of a time, always with its unit: columns have times of several.
fn time(seconds: f64) -> String {
    let (value, unit) = match seconds.abs() {
        0.0 => (0.0, "s"),
        v if v < 1e-6 => (seconds * 1e9, "ns"),
        v if v < 1e-3 => (seconds * 1e6, "µs"),
        v if v < 1.0 => (seconds * 1e3, "ms"),
        _ => (seconds, "s"),
    };
    format!("{} {unit}", significant(value))
}

fn significant(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

/// Three significant digits, with the letters of SI where they are shorter.
fn shown(value: f64) -> String {
    let (factor, letter) = match value.abs() {
        0.0 => (1.0, ""),
        v if v < 1e-6 => (1e9, " n"),
        v if v < 1e-3 => (1e6, " u"),
        v if v < 0.1 => (1e3, " m"),
        v if v < 1e4 => (1.0, ""),
        v if v < 1e6 => (1e-3, " k"),
        v if v < 1e9 => (1e-6, " M"),
        _ => (1e-9, " G"),
    };
    format!("{}{letter}", significant(value * factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot() -> Plot {
        let series = vec![
            Series { name: "ours".into(), style: Style::Measured, points: vec![(0, 0.002), (1, 40_000.0)] },
            Series { name: "published".into(), style: Style::Published, points: vec![(0, 0.02)] },
        ];
        let places = ["4 routes", "8 routes", "not there"].map(str::to_owned).to_vec();
        let bars = Content::Categories { places, series };
        let points = (0..=100).map(|x| (f64::from(x), f64::from(x) / 2.0)).collect();
        let curve = vec![Series { name: "curve".into(), style: Style::Measured, points }];
        let panel = |title: &str, content| Panel { title: title.into(), measure: "seconds".into(), content };
        let none = Content::Lines { along: "ms".into(), series: Vec::new() };
        Plot {
            title: "Paper, Table 1".into(),
            panels: vec![
                panel("Time", bars),
                panel("Curve", Content::Lines { along: "ms".into(), series: curve }),
                panel("Empty", none),
            ],
        }
    }

    #[test]
    fn what_was_measured_stands_beside_what_was_published_with_their_quotient() {
        let text = plot().to_text();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(text.lines().next(), Some("Paper, Table 1"));
        assert!(lines.contains(&vec!["ours", "published", "ratio"]), "{text}");
        assert!(lines.contains(&vec!["4", "routes", "2.00", "ms", "20.0", "ms", "0.10"]), "{text}");
        assert!(lines.contains(&vec!["8", "routes", "40000", "s", "-", "-"]), "{text}");
        assert!(!text.contains("not there"), "{text}");
        assert!(text.contains("Empty (seconds)\n  not measured\n"), "{text}");
        let of_curve = lines.iter().filter(|line| line.first() == Some(&"curve")).count();
        assert!((2..=POINTS + 1).contains(&of_curve), "{text}");
        assert!(lines.contains(&vec!["curve", "100", "50.0"]), "the end is there: {text}");
    }

    #[test]
    fn times_have_their_units() {
        let units = [
            (567e-6, "567 µs"),
            (9.89e-3, "9.89 ms"),
            (0.12, "120 ms"),
            (1.5, "1.50 s"),
            (4e-9, "4.00 ns"),
            (0.0, "0.00 s"),
        ];
        for (seconds, text) in units {
            assert_eq!(time(seconds), text);
        }
    }

    #[test]
    fn a_bar_is_one_row() {
        let points = vec![(4.0, 60.0), (4.0, 72.0), (8.0, 61.0), (8.0, 65.0)];
        let series = vec![Series { name: "+-sigma".into(), style: Style::Spread, points }];
        let content = Content::Lines { along: "clusters".into(), series };
        let panel = Panel { title: "Figure".into(), measure: "ms".into(), content };
        let text = Plot { title: "Paper".into(), panels: vec![panel] }.to_text();
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows.iter().filter(|row| row.first() == Some(&"+-sigma")).count(), 2, "{text}");
        assert!(rows.contains(&vec!["+-sigma", "4.00", "60.0", "to", "72.0"]), "{text}");
    }

    #[test]
    fn panels_are_picked_by_their_titles() {
        let text = plot().to_text_of(|title| title == "Time");
        assert!(text.contains("Time (seconds)") && !text.contains("Curve"), "{text}");
    }
}

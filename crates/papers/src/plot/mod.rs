//! Plots of results as SVG: points by category on a logarithmic axis, and lines, in panels one below the other.
//!
//! The SVG is written by hand: `plotters` with its SVG backend alone would add three crates of 20,000 lines and replace some
//! 150 lines of this file by about as many calls; the published points, the larger part of this module, would stay.

pub mod attestation;
pub mod exchange;
pub mod forward;
pub mod granularity;
pub mod overlay;
mod text;

use std::fmt::Write as _;

const WIDTH: f64 = 1080.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 230.0;
const TOP: f64 = 46.0;
const BOTTOM: f64 = 92.0;
const COLOURS: [&str; 8] = ["#0b6fb8", "#c2410c", "#15803d", "#7e22ce", "#b91c1c", "#0f766e", "#a16207", "#475569"];

/// A picture, with its panels from top to bottom.
pub struct Plot {
    pub title: String,
    pub panels: Vec<Panel>,
}

/// A pair of axes.
pub struct Panel {
    pub title: String,
    /// What the vertical axis measures, with its unit.
    pub measure: String,
    pub content: Content,
}

pub enum Content {
    /// Named places from left to right; each series has points (index of the place, value) on a logarithmic axis.
    Categories { places: Vec<String>, series: Vec<Series<usize>> },
    /// Curves over numbers; both axes are linear.
    Lines { along: String, series: Vec<Series<f64>> },
}

/// Points of one kind.
pub struct Series<X> {
    pub name: String,
    pub style: Style,
    pub points: Vec<(X, f64)>,
}

/// How a series is drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Filled marks, or a curve.
    Measured,
    /// Filled marks in the colour of the series before: an experiment beside a computed curve.
    Tried,
    /// A dashed curve in the colour of the series before: what can be reached at best. For curves only.
    Bound,
    /// Bars in the colour of the series before, each from one point to the next: how far samples spread. For curves only.
    Spread,
    /// Hollow marks in the colour of the series before: what a paper prints, and nothing else.
    Published,
}

/// The colour of each series; those that belong to the series before share its colour.
fn colours<X>(series: &[Series<X>]) -> impl Iterator<Item = &'static str> + '_ {
    let mut number = 0;
    series.iter().enumerate().map(move |(place, one)| {
        number += usize::from(place > 0 && one.style == Style::Measured);
        COLOURS[number % COLOURS.len()]
    })
}

impl Plot {
    pub fn to_svg(&self) -> String {
        let height = TOP + self.panels.len() as f64 * HEIGHT;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        text(&mut out, WIDTH / 2.0, 24.0, "middle", 16, &self.title);
        for (number, panel) in self.panels.iter().enumerate() {
            panel.draw(&mut out, TOP + number as f64 * HEIGHT);
        }
        out.push_str("</svg>\n");
        out
    }
}

impl Panel {
    fn draw(&self, out: &mut String, top: f64) {
        let (high, low) = (top + 30.0, top + HEIGHT - BOTTOM);
        text(out, LEFT, top + 18.0, "start", 13, &self.title);
        let _ = writeln!(
            out,
            "<text transform=\"translate(18 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            f64::midpoint(high, low),
            escaped(&self.measure)
        );
        match &self.content {
            Content::Categories { places, series } => categories(out, (high, low), places, series),
            Content::Lines { along, series } => lines(out, (high, low), along, series),
        }
    }
}

fn categories(out: &mut String, (high, low): (f64, f64), places: &[String], series: &[Series<usize>]) {
    let values = || series.iter().flat_map(|series| &series.points).map(|(_, value)| *value).filter(|v| *v > 0.0);
    let least = values().fold(f64::INFINITY, f64::min).log10().floor();
    let most = values().fold(f64::NEG_INFINITY, f64::max).log10().ceil();
    if !least.is_finite() || !most.is_finite() {
        return;
    }
    let most = most.max(least + 1.0);
    let y = |value: f64| low - (value.log10() - least) / (most - least) * (low - high);
    let mut power = least;
    while power <= most {
        rule(out, y(10f64.powf(power)), &format!("1e{power}"));
        power += 1.0;
    }
    let step = (WIDTH - LEFT - RIGHT) / places.len().max(1) as f64;
    for (number, place) in places.iter().enumerate() {
        let x = LEFT + step * (number as f64 + 0.5);
        let _ = writeln!(
            out,
            "<text transform=\"translate({x:.1} {:.1}) rotate(-25)\" text-anchor=\"end\">{}</text>",
            low + 18.0,
            escaped(place)
        );
    }
    for ((number, one), colour) in series.iter().enumerate().zip(colours(series)) {
        let shift = step * 0.7 * ((number as f64 + 0.5) / series.len() as f64 - 0.5);
        for (place, value) in one.points.iter().filter(|(_, value)| *value > 0.0) {
            mark(out, (LEFT + step * (*place as f64 + 0.5) + shift, y(*value)), colour, one.style);
        }
        legend(out, high, number, &one.name);
        sample(out, high, number, colour, one.style, false);
    }
}

fn lines(out: &mut String, (high, low): (f64, f64), along: &str, series: &[Series<f64>]) {
    let points = || series.iter().flat_map(|series| &series.points);
    let right = points().map(|point| point.0).fold(1.0, f64::max);
    let most = round_above(points().map(|point| point.1).fold(1.0, f64::max));
    let (x, y) = (|at: f64| LEFT + at / right * (WIDTH - LEFT - RIGHT), |value: f64| low - value / most * (low - high));
    for part in 0..=4 {
        let value = most * f64::from(part) / 4.0;
        rule(out, y(value), &format!("{}", (100.0 * value).round() / 100.0));
        let at = right * f64::from(part) / 4.0;
        text(out, x(at), low + 18.0, "middle", 12, &format!("{at:.0}"));
    }
    text(out, f64::midpoint(LEFT, WIDTH - RIGHT), low + 38.0, "middle", 12, along);
    for ((number, one), colour) in series.iter().enumerate().zip(colours(series)) {
        let points: Vec<(f64, f64)> = one.points.iter().map(|(at, value)| (x(*at), y(*value))).collect();
        match one.style {
            Style::Measured | Style::Bound => polyline(out, &points, colour, one.style),
            Style::Spread => points.chunks(2).for_each(|bar| polyline(out, bar, colour, one.style)),
            Style::Tried | Style::Published => points.iter().for_each(|point| mark(out, *point, colour, one.style)),
        }
        legend(out, high, number, &one.name);
        sample(out, high, number, colour, one.style, !matches!(one.style, Style::Tried | Style::Published));
    }
}

fn polyline(out: &mut String, points: &[(f64, f64)], colour: &str, style: Style) {
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let (path, dashes) = (path.join(" "), dashes(style));
    let _ =
        writeln!(out, "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.2\"{dashes} points=\"{path}\"/>");
}

fn dashes(style: Style) -> &'static str {
    if style == Style::Bound { " stroke-dasharray=\"5 4\"" } else { "" }
}

/// The next larger number whose quarters are round.
fn round_above(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    [1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 6.0, 8.0]
        .into_iter()
        .map(|step| step * power)
        .find(|round| *round >= value)
        .unwrap_or(10.0 * power)
}

fn rule(out: &mut String, y: f64, label: &str) {
    let end = WIDTH - RIGHT;
    let _ = writeln!(out, "<line x1=\"{LEFT}\" x2=\"{end}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>");
    text(out, LEFT - 8.0, y + 4.0, "end", 12, label);
}

/// Position of a series in the legend.
fn legend_place(high: f64, number: usize) -> (f64, f64) {
    (WIDTH - RIGHT + 24.0, high + 8.0 + 20.0 * number as f64)
}

fn legend(out: &mut String, high: f64, number: usize, name: &str) {
    let (x, y) = legend_place(high, number);
    text(out, x + 12.0, y + 4.0, "start", 12, name);
}

/// A sample of the series for the legend: a mark, or a piece of its curve.
fn sample(out: &mut String, high: f64, number: usize, colour: &str, style: Style, curve: bool) {
    let (x, y) = legend_place(high, number);
    if curve {
        let (across, along) = if style == Style::Spread { (0.0, 7.0) } else { (7.0, 0.0) };
        let (from, to, high, low, dashes) = (x - across, x + across, y - along, y + along, dashes(style));
        let _ = writeln!(
            out,
            "<line x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{high:.1}\" y2=\"{low:.1}\" stroke=\"{colour}\" \
             stroke-width=\"2\"{dashes}/>"
        );
    } else {
        mark(out, (x, y), colour, style);
    }
}

fn mark(out: &mut String, (x, y): (f64, f64), colour: &str, style: Style) {
    let fill = if style == Style::Published { "white" } else { colour };
    let _ = writeln!(
        out,
        "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\" fill=\"{fill}\" stroke=\"{colour}\" stroke-width=\"1.6\"/>"
    );
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, size: u32, words: &str) {
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{}</text>",
        escaped(words)
    );
}

fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(content: Content) -> String {
        let panel = Panel { title: "a < b".into(), measure: "s".into(), content };
        Plot { title: "plot".into(), panels: vec![panel] }.to_svg()
    }

    #[test]
    fn every_point_has_a_mark_and_so_has_each_series_in_the_legend() {
        let series = vec![
            Series { name: "here".into(), style: Style::Measured, points: vec![(0, 1e-6), (1, 2e-3)] },
            Series { name: "paper".into(), style: Style::Published, points: vec![(1, 1.0), (0, 0.0)] },
        ];
        let svg = of(Content::Categories { places: vec!["x".into(), "y".into()], series });
        assert_eq!(svg.matches("<circle").count(), 3 + 2);
        assert_eq!(svg.matches("fill=\"white\" stroke").count(), 2);
        assert!(svg.contains("a &lt; b") && svg.contains("1e-6") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn a_bound_is_dashed_and_a_spread_has_a_bar_for_each_pair_and_neither_looks_published() {
        let series = |style, points| Series { name: "one".into(), style, points };
        let curve = vec![(1.0, 2.0), (2.0, 1.0)];
        let bars = vec![(1.0, 1.5), (1.0, 2.5), (2.0, 0.5), (2.0, 1.5)];
        let series =
            vec![series(Style::Measured, curve.clone()), series(Style::Spread, bars), series(Style::Bound, curve)];
        let svg = of(Content::Lines { along: "clusters".into(), series });
        assert_eq!((svg.matches("<polyline").count(), svg.matches("stroke-dasharray").count()), (1 + 2 + 1, 2));
        assert_eq!(svg.matches("<circle").count(), 0);
    }

    #[test]
    fn a_plot_without_points_is_still_a_picture() {
        assert!(of(Content::Categories { places: Vec::new(), series: Vec::new() }).ends_with("</svg>\n"));
        assert!(of(Content::Lines { along: "s".into(), series: Vec::new() }).ends_with("</svg>\n"));
    }
}

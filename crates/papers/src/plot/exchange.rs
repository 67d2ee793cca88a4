//! The SIXPACK paper's Table 1 and Figures 10 and 11 (sections 7.2 and 7.3), and what its text says of scaling, memory and bandwidth,
//! beside ours. Of the figures, the published points are those that the text gives as numbers.

use super::{Content, Panel, Plot, Series, Style};
use crate::bench::exchange_trace::MEMBERS;
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

/// Section 7.3, "connecting a new member": seconds until it has its routes, and until the routes of one that announces about
/// 250,000 prefixes are with all others ("roughly 11 minutes").
const JOIN: [(&str, f64); 2] = [("join", 92.8), ("announce", 660.0)];

/// Members among which 32 routes are measured: those of the text, and those of Table 1.
pub const SCALING_MEMBERS: [usize; 5] = [1, 500, 750, 1_500, 2_000];
/// Routes that are measured among the 750 members of Table 1.
pub const SCALING_ROUTES: [usize; 4] = TABLE_1_ROUTES;
/// Section 7.3: members, and milliseconds of 32 routes "on average". With the setup: Table 1's 750 members take as long with it.
const AVERAGE: [(usize, f64); 2] = [(1, 9.0), (500, 158.0)];
/// Section 7.2: "with 1,500 members, Select-Best takes less than 70 ms to process 32 routes", which is Table 1's online time twice.
const ONLINE: [(usize, f64); 2] = [(750, 35.9), (1_500, 70.0)];
/// Section 7.2: members, and MiB below which the memory of a dispatch of 32 routes stays.
const MEMORY: [(usize, f64); 1] = [(2_000, 15.0)];
/// Section 7.3: "less than 2.79 Mbps" and "no more than 10.9 Mbps" between the parties, over the trace.
const BANDWIDTH: [f64; 2] = [2.79e6, 10.9e6];
/// Section 7.3: "always below 1.5 Gbps" at full speed.
const FULL_SPEED: f64 = 1.5e9;

/// Values by number: of members, or of routes.
type Values = Vec<(usize, f64)>;

/// A panel whose places are `numbers` of something, with what was measured and what was published of each of the series.
fn by_number(
    title: &str,
    measure: &str,
    (numbers, of): (&[usize], &str),
    series: Vec<(&str, Values, Values)>,
) -> Panel {
    let points = |values: Values| -> Values {
        let place = |number: usize| numbers.iter().position(|one| *one == number);
        values.into_iter().filter_map(|(number, value)| Some((place(number)?, value))).collect()
    };
    let mut drawn = Vec::new();
    for (name, measured, published) in series {
        drawn.push(Series { name: name.to_owned(), style: Style::Measured, points: points(measured) });
        if !published.is_empty() {
            let name = format!("{name}, published");
            drawn.push(Series { name, style: Style::Published, points: points(published) });
        }
    }
    let places = numbers.iter().map(|number| format!("{number} {of}")).collect();
    let content = Content::Categories { places, series: drawn };
    Panel { title: title.to_owned(), measure: measure.to_owned(), content }
}

/// What a title says of results that are not of the paper's own work.
fn otherwise(report: &Report) -> String {
    let is = |param: &str, value: &str| report.params.get(param).is_some_and(|param| param == value);
    let mut said = String::new();
    if is("output", "index") {
        said.push_str("; ours with index output, the paper's with key output");
    }
    if is("export", "direct") {
        said.push_str("; our Export-All without a circuit");
    }
    said
}

/// What sections 7.2 and 7.3 say of scaling and memory, from the results of `select-best --scaling`.
#[must_use]
pub fn scaling(report: &Report) -> Plot {
    let members = (&SCALING_MEMBERS[..], "members");
    let values = |what: &str, (numbers, along): (&[usize], &str)| -> Values {
        let value = |number: usize| report.value(&format!("{what}.{along}.{number}"));
        numbers.iter().filter_map(|number| Some((*number, value(*number)?))).collect()
    };
    let scaled = |values: &[(usize, f64)], factor: f64| -> Values {
        values.iter().map(|(number, value)| (*number, value * factor)).collect()
    };
    let (online, setup) = (values("online", members), values("setup", members));
    let both = online.iter().zip(&setup).map(|((number, online), (_, setup))| (*number, online + setup)).collect();
    let each = |what: &str| -> Values {
        values(what, members).into_iter().map(|(number, value)| (number, value / number as f64)).collect()
    };
    let [.., (_, [setup_ms, setup_kib, _, online_kib])] = TABLE_1;
    let each_published = |kib: f64| vec![(750, kib * 1_024.0 / 750.0)];
    Plot {
        title: format!("SIXPACK, sections 7.2 and 7.3: how Select-Best scales{}", otherwise(report)),
        panels: vec![
            by_number(
                "Run time of 32 routes; published for 1,500 members: less than",
                "seconds",
                members,
                vec![
                    ("online", online, scaled(&ONLINE, 1e-3)),
                    ("setup", setup, vec![(750, setup_ms * 1e-3)]),
                    ("both", both, scaled(&AVERAGE, 1e-3)),
                ],
            ),
            by_number(
                "Octets of 32 routes for each member, sent and received by one party",
                "bytes",
                members,
                vec![
                    ("online", each("bytes_online"), each_published(online_kib)),
                    ("setup", each("bytes_setup"), each_published(setup_kib)),
                ],
            ),
            by_number(
                "Memory for 32 routes: ours of one evaluation, counted; published: below, of a dispatch",
                "bytes",
                members,
                vec![("one party", values("memory", members), scaled(&MEMORY, 1_048_576.0))],
            ),
            by_number(
                "Memory for 750 members, by routes",
                "bytes",
                (&SCALING_ROUTES, "routes"),
                vec![("one party", values("memory", (&SCALING_ROUTES, "routes")), Vec::new())],
            ),
        ],
    }
}

/// What section 7.3 says of the bandwidth between the parties, from the results of `exchange-trace --generated --bandwidth`. The
/// published points are of an exchange of more than 600 members: `is_the_papers` says whether these results are. They stand beside
/// the paper's circuits, whose octets are counted; the product's Select-Best has another output, and its links carry more.
#[must_use]
pub fn bandwidth(report: &Report, is_the_papers: bool) -> Plot {
    let names = ["export_all", "select_best"];
    let values = |suffix: &str| -> Values {
        let value = |name: &str| report.value(&format!("bandwidth.{name}{suffix}"));
        names.iter().enumerate().filter_map(|(place, name)| Some((place, value(name)?))).collect()
    };
    let measured = |name: &str, points| Series { name: name.to_owned(), style: Style::Measured, points };
    let mut series = vec![
        measured("the product, measured", values("")),
        measured("the paper's circuits, counted: online", values(".circuits_online")),
        measured("the same with setup", values(".circuits")),
    ];
    if is_the_papers {
        let points = BANDWIDTH.into_iter().enumerate().collect();
        series.push(Series { name: "published: at most".to_owned(), style: Style::Published, points });
    }
    let content = Content::Categories { places: ["Export-All", "Select-Best"].map(str::to_owned).to_vec(), series };
    let title = "Between the parties, both directions, in the time of a generated trace".to_owned();
    Plot {
        title: "SIXPACK, section 7.3: bandwidth".to_owned(),
        panels: vec![Panel { title, measure: "bit/s".to_owned(), content }],
    }
}

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
    let said = rows.last().map(|row| otherwise(row)).unwrap_or_default();
    Plot {
        title: format!("SIXPACK, Table 1: 750 members{said}"),
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

/// Section 7.3, from the results of `exchange-join`: a member that joins, and one that announces a table.
#[must_use]
pub fn join(report: &Report) -> Plot {
    let of = |param: &str| report.params.get(param).map(ToString::to_string).unwrap_or_else(|| "?".to_owned());
    let ours = JOIN.iter().enumerate().filter_map(|(place, (name, _))| Some((place, report.value(name)?))).collect();
    let theirs = JOIN.iter().enumerate().map(|(place, (_, seconds))| (place, *seconds)).collect();
    let series = vec![
        Series { name: "measured here".to_owned(), style: Style::Measured, points: ours },
        Series { name: "published".to_owned(), style: Style::Published, points: theirs },
    ];
    let places = ["a member joins", "a member announces the table"].map(str::to_owned).to_vec();
    let title = format!(
        "{} members, {} prefixes, {} of 100 with two routes and the others with one (published: more than 600, about 250,000, some with up to 27)",
        of("members"),
        of("prefixes"),
        of("contested_percent")
    );
    Plot {
        title: format!("SIXPACK, section 7.3: connecting a member{}", otherwise(report)),
        panels: vec![Panel { title, measure: "seconds".to_owned(), content: Content::Categories { places, series } }],
    }
}

/// Figure 10: the distribution of processing times, of Export-All and Select-Best, in seconds, from the results of
/// `exchange-trace --generated`.
#[must_use]
pub fn figure_10(report: &Report, samples: [&[f64]; 2]) -> Plot {
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
    let members = report.params.get("members").and_then(serde_json::Value::as_u64);
    let among = match members {
        Some(members) if members != MEMBERS as u64 => format!("; ours of {members} members, the paper's of {MEMBERS}"),
        _ => String::new(),
    };
    // The paper's time has its setup, which here is made ahead, and only what an evaluation waits for is in a sample.
    let setup = report.value("prefix_setup").map_or_else(String::new, |seconds| {
        format!("; setup made between UPDATEs, {:.1} ms for each prefix, is in no sample of ours", seconds * 1e3)
    });
    Plot { title: format!("SIXPACK, Figure 10, over a generated trace{among}{}{setup}", otherwise(report)), panels }
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
        title: format!("SIXPACK, Figure 11: the parties alone{}", otherwise(report)),
        panels: vec![
            panel("", "From a filled pool"),
            panel(".sustained", "With setup, as published"),
            full_speed(report, routes),
        ],
    }
}

/// Bandwidth of the best rate with setup.
fn full_speed(report: &Report, routes: &[usize]) -> Panel {
    let names: Vec<String> =
        std::iter::once("export_all".to_owned()).chain(routes.iter().map(|r| format!("select_best.{r}"))).collect();
    let value = |name: &String| report.value(&format!("bandwidth.{name}"));
    let points: Vec<(usize, f64)> =
        names.iter().enumerate().filter_map(|(place, name)| Some((place, value(name)?))).collect();
    let bounds = points.iter().map(|(place, _)| (*place, FULL_SPEED)).collect();
    let series = vec![
        Series { name: "at full speed".to_owned(), style: Style::Measured, points },
        Series { name: "published: always below".to_owned(), style: Style::Published, points: bounds },
    ];
    Panel {
        title: "Between the parties, both directions, at the best rate with setup".to_owned(),
        measure: "bit/s".to_owned(),
        content: Content::Categories { places: names, series },
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

        let trace = Report::new("exchange-trace", json!({}));
        let svg = figure_10(&trace, [&[0.001, 0.002], &[]]).to_svg();
        assert_eq!((svg.matches("<polyline").count(), svg.matches("fill=\"white\" stroke").count()), (2, 4));

        let mut report = Report::new("exchange-stress", json!({}));
        for workers in [1, 2] {
            report.exact(format!("export_all.workers.{workers}"), "routes/s", 5_000.0);
            report.exact(format!("select_best.8.sustained.workers.{workers}"), "prefixes/s", 150.0);
        }
        let svg = figure_11(&report, &[1, 2], &[8]).to_svg();
        assert!(svg.contains("16 workers") && svg.contains("select_best.8, published"));
        // Nothing is drawn of the third panel.
        assert_eq!(svg.matches("fill=\"white\" stroke").count(), 2 * (3 + 2));
        report.exact("bandwidth.select_best.8", "bit/s", 3e9);
        let text = figure_11(&report, &[1, 2], &[8]).to_text();
        let row = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        assert_eq!(row.filter(|row| *row == ["select_best.8", "3.00", "G", "1.50", "G", "2.00"]).count(), 1, "{text}");
        assert!(text.starts_with("SIXPACK, Figure 11: the parties alone\n"), "{text}");
        report.params.insert("output".to_owned(), json!("index"));
        assert!(figure_11(&report, &[1], &[8]).title.contains("ours with index output"));
    }

    #[test]
    fn figure_10_says_what_is_not_the_papers_work() {
        let title = |params| {
            let mut report = Report::new("exchange-trace", params);
            report.exact("prefix_setup", "s", 0.012);
            figure_10(&report, [&[], &[]]).title
        };
        let own = title(json!({ "members": MEMBERS, "export": "mpc" }));
        assert!(!own.contains("members") && !own.contains("circuit"), "{own}");
        assert!(own.contains("setup made between UPDATEs, 12.0 ms for each prefix, is in no sample"), "{own}");
        let other = title(json!({ "members": 100, "export": "direct" }));
        assert!(other.contains("ours of 100 members") && other.contains("Export-All without a circuit"), "{other}");
    }

    #[test]
    fn joining_stands_beside_the_published_times() {
        let mut report = Report::new("exchange-join", json!({ "members": 20, "prefixes": 2_000, "export": "direct" }));
        report.exact("join", "s", 46.4);
        report.exact("announce", "s", 66.0);
        let text = join(&report).to_text();
        assert!(text.contains("20 members, 2000 prefixes") && text.contains("Export-All without a circuit"), "{text}");
        let row = |begin: &str| text.lines().find(|line| line.trim_start().starts_with(begin)).unwrap_or_default();
        assert!(row("a member joins").contains("92.8") && row("a member joins").ends_with("0.50"), "{text}");
        assert!(row("a member announces").contains("660") && row("a member announces").ends_with("0.10"), "{text}");
    }

    #[test]
    fn what_the_text_says_of_scaling_stands_beside_the_same_sizes() {
        let mut report = Report::new("select-best", json!({}));
        for members in SCALING_MEMBERS {
            for (what, value) in [("online", 1e-5), ("setup", 4e-5), ("bytes_online", 1_500.0), ("memory", 7_500.0)] {
                report.exact(format!("{what}.members.{members}"), "s", value * members as f64);
            }
        }
        let text = scaling(&report).to_text();
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let line = |begin: &str, number: usize| {
            words(text.lines().filter(|line| line.trim_start().starts_with(begin)).nth(number).unwrap_or_default())
        };
        // Online, setup and both; of 500 members the paper gives the sum alone.
        assert_eq!(
            line("500 members", 0),
            ["500", "members", "5.00", "ms", "-", "-", "20.0", "ms", "-", "-", "25.0", "ms", "158", "ms", "0.16"]
        );
        assert_eq!(line("1500 members", 0)[2..7], ["15.0", "ms", "70.0", "ms", "0.21"]);
        assert_eq!(line("2000 members", 2)[2..], ["15.0", "M", "15.7", "M", "0.95"]);
        assert!(text.contains("Memory for 750 members, by routes (bytes)\n  not measured"), "{text}");
    }

    #[test]
    fn published_bandwidths_stand_beside_the_papers_number_of_members_alone() {
        let mut report = Report::new("exchange-trace", json!({}));
        report.exact("bandwidth.export_all", "bit/s", 9e6);
        report.exact("bandwidth.export_all.circuits", "bit/s", 1.395e6);
        let published = |is_the_papers| {
            let text = bandwidth(&report, is_the_papers).to_text();
            text.lines().any(|line| line.contains("1.40 M") && line.contains("2.79 M") && line.ends_with("0.50"))
        };
        assert!(published(true) && !published(false));
    }
}

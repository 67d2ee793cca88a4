//! Platypus' Figure 5: latency through the best cluster against the number of clusters.

use super::{Content, Panel, Plot, Series, Style};
use crate::bench::granularity::{CLUSTERS, PAIRS, POINTS, PROVIDERS};
use crate::report::Report;

/// The results of `waypoint-granularity`.
#[must_use]
pub fn granularity(report: &Report) -> Plot {
    let panel = |provider: &crate::bench::granularity::Provider| {
        let mut series = Vec::new();
        for (from, to) in PAIRS {
            let pair = format!("{}-{}", POINTS[from].0, POINTS[to].0);
            let name = |what: &str| format!("{}.{pair}.{what}", provider.name);
            let at =
                |clusters: &usize| Some((*clusters as f64, report.value(&name(&format!("latency.{clusters}")))? * 1e3));
            let points: Vec<(f64, f64)> = CLUSTERS.iter().filter_map(at).collect();
            let spread = |(clusters, mean): &(f64, f64)| {
                let deviation = report.value(&name(&format!("deviation.{clusters}")))? * 1e3;
                Some([(*clusters, mean - deviation), (*clusters, mean + deviation)])
            };
            let bars = points.iter().filter_map(spread).flatten().collect();
            series.push(Series { name: pair.clone(), style: Style::Measured, points });
            series.push(Series { name: format!("{pair}, +-sigma"), style: Style::Spread, points: bars });
            let optimal = report.value(&name("optimal")).map(|optimal| optimal * 1e3);
            let ends = [CLUSTERS[0], CLUSTERS[CLUSTERS.len() - 1]];
            let points = optimal.into_iter().flat_map(|optimal| ends.map(|end| (end as f64, optimal))).collect();
            series.push(Series { name: format!("{pair}, best router"), style: Style::Bound, points });
        }
        Panel {
            title: format!(
                "{}: {} router interfaces of ours (of the paper's curves its text has no number)",
                provider.name, provider.routers
            ),
            measure: "one-way latency, ms".to_owned(),
            content: Content::Lines { along: "clusters".to_owned(), series },
        }
    };
    Plot {
        title: "Platypus, Figure 5, over generated latencies".to_owned(),
        panels: PROVIDERS.iter().map(panel).collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn nothing_of_ours_looks_published() {
        let mut report = Report::new("waypoint-granularity", Value::Null);
        let pair = format!("{}.{}-{}", PROVIDERS[0].name, POINTS[PAIRS[0].0].0, POINTS[PAIRS[0].1].0);
        report.exact(format!("{pair}.optimal"), "s", 0.08);
        for clusters in CLUSTERS {
            report.exact(format!("{pair}.latency.{clusters}"), "s", 0.1);
            report.exact(format!("{pair}.deviation.{clusters}"), "s", 0.01);
        }
        let plot = granularity(&report);
        let Content::Lines { series, .. } = &plot.panels[0].content else { panic!("curves") };
        assert!(series.iter().all(|one| one.style != Style::Published));
        let counts: Vec<usize> = series.iter().take(3).map(|one| one.points.len()).collect();
        assert_eq!(counts, [CLUSTERS.len(), 2 * CLUSTERS.len(), 2]);
        assert!(plot.to_svg().contains("stroke-dasharray"));
    }
}

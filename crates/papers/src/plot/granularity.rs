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
            let points = CLUSTERS.iter().filter_map(at).collect();
            series.push(Series { name: pair.clone(), style: Style::Measured, points });
            let optimal = report.value(&name("optimal")).map(|optimal| optimal * 1e3);
            let ends = [CLUSTERS[0], CLUSTERS[CLUSTERS.len() - 1]];
            let points = optimal.into_iter().flat_map(|optimal| ends.map(|end| (end as f64, optimal))).collect();
            series.push(Series { name: format!("{pair}, best router"), style: Style::Published, points });
        }
        Panel {
            title: format!("{}: {} router interfaces", provider.name, provider.routers),
            measure: "one-way latency, ms".to_owned(),
            content: Content::Lines { along: "clusters".to_owned(), series },
        }
    };
    Plot {
        title: "Platypus, Figure 5, over generated latencies".to_owned(),
        panels: PROVIDERS.iter().map(panel).collect(),
    }
}

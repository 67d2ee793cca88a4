//! Dashboards ask for metrics that there are.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{key, router};

/// The names of metrics in a query.
fn names(query: &str) -> BTreeSet<String> {
    let is_name = |octet: char| octet.is_ascii_alphanumeric() || octet == '_';
    let words = query.split(|octet: char| !is_name(octet));
    words.filter(|word| word.starts_with("wayleave_")).map(str::to_owned).collect()
}

/// All panels, each with its title and its queries.
fn panels(dashboard: &Value) -> Vec<(&str, Vec<&str>)> {
    let all = dashboard["panels"].as_array().expect("panels");
    let of = |panel| {
        let panel: &Value = panel;
        let title = panel["title"].as_str().expect("a title");
        let targets = panel["targets"].as_array().into_iter().flatten();
        (title, targets.map(|target| target["expr"].as_str().expect("a query")).collect())
    };
    all.iter().filter(|panel| panel["type"] != "row").map(of).collect()
}

#[tokio::test]
async fn each_query_of_a_dashboard_names_a_metric_that_there_is() {
    let known: BTreeSet<String> = router::metric_names().into_iter().chain(key::metric_names().await).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/grafana");
    let guide = fs::read_to_string(folder.join("../../docs/guide/capabilities.md")).expect("the guide");
    let mut dashboards = 0;
    for file in fs::read_dir(folder).expect("dashboards") {
        let path = file.expect("a file").path();
        let text = fs::read_to_string(&path).expect("text");
        let dashboard: Value = serde_json::from_str(&text).expect("JSON");
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        assert!(dashboard["title"].is_string() && dashboard["uid"].is_string(), "{name}");
        assert!(guide.contains(&format!("packaging/grafana/{name}")), "the guide has {name}");
        let ids: Vec<u64> =
            dashboard["panels"].as_array().into_iter().flatten().filter_map(|panel| panel["id"].as_u64()).collect();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), dashboard["panels"].as_array().map_or(0, Vec::len));
        let panels = panels(&dashboard);
        assert!(panels.len() > 10, "{name}");
        for (title, queries) in panels {
            assert!(!queries.is_empty(), "{name}: {title} asks for nothing");
            for query in queries {
                let asked = names(query);
                assert!(!asked.is_empty(), "{name}: {title}: {query}");
                let unknown: Vec<&String> = asked.difference(&known).collect();
                assert!(unknown.is_empty(), "{name}: {title}: there is no {unknown:?}");
                // A rate is of what only grows.
                let is_rate = query.contains("rate(") || query.contains("increase(");
                assert_eq!(is_rate, asked.iter().any(|metric| metric.ends_with("_total")), "{name}: {title}: {query}");
                assert_eq!(query.matches('(').count(), query.matches(')').count(), "{name}: {title}: {query}");
            }
        }
        dashboards += 1;
    }
    assert!(dashboards > 0);
}

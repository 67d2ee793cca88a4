//! Dashboards and alert rules ask for metrics and labels that there are, and each alert says what to do.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::{key, router};

/// The names of metrics in a query.
fn names(query: &str) -> BTreeSet<String> {
    let is_name = |octet: char| octet.is_ascii_alphanumeric() || octet == '_';
    let words = query.split(|octet: char| !is_name(octet));
    words
        .filter(|word| ["wayleave_", "process_"].iter().any(|begin| word.starts_with(begin)))
        .map(str::to_owned)
        .collect()
}

/// The labels that a query names: in the braces of a selector, and in the brackets of `by` and `on`.
fn labels(query: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for selector in query.split('{').skip(1).filter_map(|rest| rest.split_once('}')) {
        // A value here holds no comma.
        let named = selector.0.split(',').filter_map(|matcher| matcher.split(['=', '!']).next());
        found.extend(named.map(|label| label.trim().to_owned()));
    }
    for keyword in [" by (", " on ("] {
        for group in query.split(keyword).skip(1).filter_map(|rest| rest.split_once(')')) {
            found.extend(group.0.split(',').map(|label| label.trim().to_owned()));
        }
    }
    found.retain(|label| !label.is_empty());
    found
}

/// What Prometheus adds to each sample.
const TARGET: [&str; 2] = ["job", "instance"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The metrics of all roles with their labels, as test-data/metrics has them; tests of running roles hold the pages to that.
fn listed() -> BTreeMap<String, BTreeSet<String>> {
    let text = fs::read_to_string(root().join("test-data/metrics/names.txt")).expect("the list");
    let lines = text.lines().filter(|line| !line.starts_with('#')).map(|line| line.trim_end_matches(" ?"));
    let of = |line: &str| {
        let (name, labels) = line.trim_end_matches('}').split_once('{').unwrap_or((line, ""));
        (
            name.to_owned(),
            labels
                .split(',')
                .filter(|label| !label.is_empty())
                .map(|label| label.trim_end_matches('?').to_owned())
                .collect(),
        )
    };
    lines.map(of).collect()
}

/// What is up is Prometheus' own metric.
const UP: &str = "up";

/// What is wrong with a query: metrics or labels that there are not, brackets, a rate of what also falls.
fn fault(query: &str, known: &BTreeMap<String, BTreeSet<String>>) -> Option<String> {
    let asked = names(query);
    if asked.is_empty() && !query.starts_with(&format!("{UP}{{")) {
        return Some("it names no metric".to_owned());
    }
    if let Some(unknown) = asked.iter().find(|name| !known.contains_key(*name)) {
        return Some(format!("there is no {unknown}"));
    }
    let has = |label: &String| {
        TARGET.contains(&label.as_str()) || asked.iter().filter_map(|name| known.get(name)).any(|of| of.contains(label))
    };
    if let Some(unknown) = labels(query).iter().find(|label| !has(label)) {
        return Some(format!("none of these has the label {unknown}"));
    }
    // A rate is of what only grows.
    let is_rate = query.contains("rate(") || query.contains("increase(");
    if is_rate != asked.iter().any(|metric| metric.ends_with("_total")) {
        return Some("a rate is of what only grows, and nothing else is".to_owned());
    }
    let is_balanced = query.matches('(').count() == query.matches(')').count();
    (!is_balanced).then(|| "a bracket is missing".to_owned())
}

/// The anchors of a page's headings, as those who show Markdown make them.
fn anchors(page: &str) -> BTreeSet<String> {
    let anchor = |heading: &str| {
        let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    page.lines().filter(|line| line.starts_with('#')).map(|line| anchor(line.trim_start_matches('#').trim())).collect()
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
    let mut known = listed();
    // What the list has as `*`.
    let of_tests = router::metric_names().into_iter().chain(key::metric_names().await);
    let is_listed = |name: &str, known: &BTreeMap<String, _>| {
        let mut all = known.keys().filter_map(|listed: &String| listed.split_once('*'));
        known.contains_key(name) || all.any(|(begin, end)| name.starts_with(begin) && name.ends_with(end))
    };
    for name in of_tests {
        assert!(is_listed(&name, &known), "{name} is not in test-data/metrics/names.txt");
        known.entry(name).or_default();
    }
    let folder = root().join("packaging/grafana");
    let guide = fs::read_to_string(root().join("docs/guide/monitoring.md")).expect("the guide");
    let (mut dashboards, mut uids) = (0, BTreeSet::new());
    for file in fs::read_dir(folder).expect("dashboards") {
        let path = file.expect("a file").path();
        let text = fs::read_to_string(&path).expect("text");
        let dashboard: Value = serde_json::from_str(&text).expect("JSON");
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        assert!(dashboard["title"].is_string(), "{name}");
        assert!(uids.insert(dashboard["uid"].as_str().expect("a uid").to_owned()), "{name}: its uid is another's");
        assert!(guide.contains(&format!("packaging/grafana/{name}")), "the guide has {name}");
        let ids: Vec<u64> =
            dashboard["panels"].as_array().into_iter().flatten().filter_map(|panel| panel["id"].as_u64()).collect();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), dashboard["panels"].as_array().map_or(0, Vec::len));
        let panels = panels(&dashboard);
        assert!(panels.len() > 10, "{name}");
        for (title, queries) in panels {
            assert!(!queries.is_empty(), "{name}: {title} asks for nothing");
            for query in queries {
                assert_eq!(fault(query, &known), None, "{name}: {title}: {query}");
            }
        }
        dashboards += 1;
    }
    assert_eq!(dashboards, 5);
}

/// The rules of the file, each with its lines as names and values. It has one form, so that no library is needed to read it; promtool reads
/// the whole language below.
fn rules(text: &str) -> Vec<BTreeMap<&str, String>> {
    let mut rules: Vec<BTreeMap<&str, String>> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        let (name, value) = line.split_once(':').expect("a name and a value");
        let value = value.trim().trim_matches(['\'', '"']).to_owned();
        match name {
            "- alert" => rules.push(BTreeMap::from([("alert", value)])),
            name => drop(rules.last_mut().and_then(|rule| rule.insert(name, value))),
        }
    }
    rules
}

#[test]
fn each_alert_asks_for_what_there_is_waits_has_a_severity_and_leads_to_what_to_do() {
    let known = listed();
    let path = root().join("packaging/prometheus/wayleave.rules.yml");
    let text = fs::read_to_string(&path).expect("the rules");
    let guide = |page: &str| fs::read_to_string(root().join("docs/guide").join(page)).expect("a page");
    let mut names = BTreeSet::new();
    for rule in rules(&text) {
        let of = |name: &str| rule.get(name).unwrap_or_else(|| panic!("{rule:?} has no {name}")).as_str();
        let alert = of("alert");
        assert!(names.insert(alert.to_owned()) && alert.starts_with("Wayleave"), "{alert}");
        assert_eq!(fault(of("expr"), &known), None, "{alert}: {}", of("expr"));
        let (amount, unit) = of("for").split_at(of("for").len() - 1);
        assert!(amount.parse::<u32>().is_ok() && ["m", "h", "d"].contains(&unit), "{alert}");
        assert!(["critical", "warning"].contains(&of("severity")), "{alert}");
        assert!(!of("summary").is_empty() && !of("description").is_empty(), "{alert}");
        let page = of("runbook_url").strip_prefix("file:///usr/share/doc/wayleave/docs/guide/").expect("a page");
        let (page, anchor) = page.split_once('#').expect("an anchor");
        assert!(anchors(&guide(page)).contains(anchor), "{alert}: {page} has no heading #{anchor}");
        // Labels in its texts are on the samples.
        for label in rule.values().flat_map(|text| text.split("$labels.").skip(1)) {
            let label: String = label.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
            let is_there = TARGET.contains(&label.as_str()) || known.values().any(|labels| labels.contains(&label));
            assert!(is_there, "{alert}: there is no label {label}");
        }
    }
    assert!(names.len() > 20, "{names:?}");
    // Links of the guide's page to anchors lead somewhere.
    let page = guide("monitoring.md");
    for link in page.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
        let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
        let there = fs::read_to_string(root().join("docs/guide").join(file)).expect(file);
        assert!(anchor.is_empty() || anchors(&there).contains(anchor), "monitoring.md: {link} leads nowhere");
    }
    match Command::new("promtool").args(["check", "rules"]).arg(&path).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(_) => eprintln!("promtool is not there: the rules' syntax is tried by our own reader alone"),
    }
}

#[test]
fn a_query_with_a_name_or_a_label_that_there_is_not_is_found() {
    let known = listed();
    for (query, why) in [
        ("wayleave_member_router_down", "there is no"),
        ("sum by (router) (wayleave_member_refused_routes)", "the label router"),
        ("wayleave_member_refused_routes{cause=\"x\"}", "the label cause"),
        ("rate(wayleave_member_router_up[5m])", "a rate"),
        ("(wayleave_member_router_up", "a bracket"),
        ("vector(1)", "no metric"),
    ] {
        assert!(fault(query, &known).is_some_and(|said| said.contains(why)), "{query}: {:?}", fault(query, &known));
    }
    let right = "sum by (reason) (wayleave_member_refused_routes{job=~\"$job\",at=\"receive\"})";
    assert_eq!(fault(right, &known), None);
}

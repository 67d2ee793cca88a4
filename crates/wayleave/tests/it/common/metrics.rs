//! The rule of metric names: `wayleave_<role>_<thing>_<unit>`, with `_total` for counters, and the list of them, `test-data/metrics`.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use wayleave_lab::demo::http::get;
use wayleave_lab::netns::NetworkNamespace;

/// Units that end a name. A new one belongs to `wayleave_runtime::http::Unit` and here.
const UNITS: [&str; 33] = [
    "alarms",
    "attestations",
    "batches",
    "bursts",
    "bytes",
    "calls",
    "changes",
    "connections",
    "evaluations",
    "events",
    "files",
    "frames",
    "keys",
    "links",
    "members",
    "messages",
    "networks",
    "number",
    "objects",
    "outcomes",
    "packets",
    "pairs",
    "prefixes",
    "rankings",
    "ratio",
    "rooms",
    "rounds",
    "routes",
    "seconds",
    "sessions",
    "signatures",
    "up",
    "updates",
];

/// What every page has beside the role's own metrics.
const OF_ALL: [&str; 2] = ["process_", "wayleave_build"];

/// The name and the names of the labels of a sample, as the list has them.
fn signature(sample: &str) -> String {
    let end = sample.find(['{', ' ']).expect("a value");
    let (name, mut rest) = sample.split_at(end);
    let mut labels = Vec::new();
    while let Some((label, value)) = rest.get(1..).and_then(|rest| rest.split_once("=\"")) {
        labels.push(label);
        let mut is_escaped = false;
        let quote = value.find(|letter| {
            let ends = letter == '"' && !is_escaped;
            is_escaped = letter == '\\' && !is_escaped;
            ends
        });
        // A comma or a bracket follows.
        rest = &value[quote.expect("a whole label") + 1..];
    }
    if labels.is_empty() { name.to_owned() } else { format!("{name}{{{}}}", labels.join(",")) }
}

/// A line of the list with the labels that it may lack, marked with `?`, and without them.
fn forms(line: &str) -> [String; 2] {
    let line = line.trim_end_matches(" ?");
    let (name, labels) = line.trim_end_matches('}').split_once('{').unwrap_or((line, ""));
    let with = |labels: Vec<&str>| match labels.is_empty() {
        true => name.to_owned(),
        false => format!("{name}{{{}}}", labels.join(",")),
    };
    let labels = || labels.split(',').filter(|label| !label.is_empty());
    let whole = labels().map(|label| label.trim_end_matches('?')).collect();
    [with(whole), with(labels().filter(|label| !label.ends_with('?')).collect())]
}

/// Asserts that the page has no metric, and no label, that the list lacks, and lacks none that the list has without a `?`.
fn assert_listed(role: &str, page: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/metrics/names.txt");
    let list = std::fs::read_to_string(path).expect("the list");
    let list: Vec<&str> = list.lines().filter(|line| !line.starts_with('#')).collect();
    let found: BTreeSet<String> =
        page.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(signature).collect();
    let fits = |listed: &str, found: &str| match listed.split_once('*') {
        Some((begin, end)) => found.starts_with(begin) && found.ends_with(end),
        None => found == listed,
    };
    for name in &found {
        let is_listed = list.iter().flat_map(|line| forms(line)).any(|form| fits(&form, name));
        assert!(is_listed, "{name} is not in test-data/metrics/names.txt: add it, with ` ?` if a page may lack it");
    }
    let own = format!("wayleave_{role}_");
    let is_own = |line: &&&str| line.starts_with(&own) || OF_ALL.iter().any(|begin| line.starts_with(begin));
    for line in list.iter().filter(is_own).filter(|line| !line.ends_with(" ?")) {
        assert!(
            forms(line).iter().any(|form| found.contains(form)),
            "test-data/metrics/names.txt has {line}, and the page of {role} lacks it: {page}"
        );
    }
}

/// Asserts that every name on the metrics page of `role` at `address` follows the rule.
pub fn assert_named_by_the_rule(role: &str, place: &NetworkNamespace, address: SocketAddr) {
    let page = get(place, address, "/metrics").expect("a page");
    assert!(page.contains("# EOF"), "a whole page: {page}");
    let mut names = 0;
    for line in page.lines() {
        let Some(family) = line.strip_prefix("# TYPE ") else { continue };
        let (name, kind) = family.split_once(' ').expect("a name and a type");
        if OF_ALL.iter().any(|begin| name.starts_with(begin)) {
            continue;
        }
        names += 1;
        let rest = name.strip_prefix(&format!("wayleave_{role}_")).unwrap_or_else(|| panic!("{name}: not of {role}"));
        let (thing, unit) = rest.rsplit_once('_').unwrap_or_else(|| panic!("{name}: no thing and unit"));
        let is_plain = |octet: u8| octet.is_ascii_lowercase() || octet.is_ascii_digit() || octet == b'_';
        assert!(!thing.is_empty() && thing.bytes().all(is_plain), "{name}");
        assert!(UNITS.contains(&unit), "{name}: {unit} is not a unit");
        assert!(page.contains(&format!("\n# UNIT {name} {unit}\n")), "{name}: its unit is not stated");
        match kind {
            "counter" => {
                let is_total =
                    page.contains(&format!("\n{name}_total ")) || page.contains(&format!("\n{name}_total{{"));
                assert!(is_total, "{name}: a counter without _total");
            }
            "gauge" => {
                let is_there = [' ', '{'].iter().any(|next| page.contains(&format!("\n{name}{next}")));
                assert!(is_there, "{name}: a gauge under another name");
            }
            kind => panic!("{name}: a {kind}"),
        }
    }
    assert!(names > 1, "metrics of {role}: {page}");
    assert_listed(role, &page);
}

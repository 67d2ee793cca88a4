//! The rule of metric names: `wayleave_<role>_<thing>_<unit>`, with `_total` for counters.

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

/// Asserts that every name on the metrics page of `role` at `address` follows the rule.
pub fn assert_named_by_the_rule(role: &str, place: &NetworkNamespace, address: SocketAddr) {
    let page = get(place, address, "/metrics").expect("a page");
    assert!(page.contains("# EOF"), "a whole page: {page}");
    let mut names = 0;
    for line in page.lines() {
        let Some(family) = line.strip_prefix("# TYPE ") else { continue };
        let (name, kind) = family.split_once(' ').expect("a name and a type");
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
    assert!(names > 4, "metrics of {role}: {page}");
}

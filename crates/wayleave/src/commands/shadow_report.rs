//! The report of a comparison: as JSON, and from that as text and as a page of HTML.

use std::fmt::Write as _;

use serde_json::{Value, json};
use wayleave_route_server::directory::MemberSet;
use wayleave_route_server::shadow::{Difference, Exchange, Report, Shown, next_hop};
use wayleave_runtime::clock::utc;

use crate::output::{cell, objects};

/// Examples of each cause that the text has.
const IN_TEXT: usize = 3;

/// The report, as `--json` prints it.
pub fn describe(report: &Report, exchange: &Exchange, notes: &[String]) -> Value {
    let set = exchange.members();
    let name = |slot: u32| set.slot(slot).map_or_else(String::new, |slot| slot.name.clone());
    let learned = report.learned.iter().map(|(slot, routes)| {
        let refused = report.refused.iter().filter(|refused| refused.announcer == *slot);
        let refused: Vec<Value> =
            refused.map(|refused| json!({ "rule": refused.rule, "routes": refused.routes })).collect();
        json!({ "name": name(*slot), "asn": set.slot(*slot).map(|slot| slot.asn), "routes": routes, "refused": refused })
    });
    let members = report.members.iter().map(|(slot, totals)| {
        json!({
            "name": name(*slot), "asn": set.slot(*slot).map(|slot| slot.asn), "given": totals.given,
            "computed": totals.computed, "same": totals.same, "equal_choice": totals.equal_choice,
            "different": totals.different,
        })
    });
    let not_compared: Vec<String> =
        set.iter().filter(|(slot, _)| !report.members.contains_key(slot)).map(|(slot, _)| name(slot)).collect();
    let mut causes: Vec<Value> = Vec::new();
    for ((cause, detail), group) in &report.causes {
        let examples: Vec<Value> = group.examples.iter().map(|example| difference(example, set)).collect();
        causes.push(json!({ "cause": cause, "detail": detail, "count": group.count, "examples": examples }));
    }
    causes.sort_by_key(|cause| std::cmp::Reverse(cause["count"].as_u64()));
    let strangers = report.strangers.iter().map(|(asn, routes)| json!({ "asn": asn, "routes": routes }));
    json!({
        "exchange": set.exchange, "asn": exchange.rs, "prefixes": report.prefixes,
        "differences": report.differences(), "unexplained": report.count("unexplained"),
        "learned": learned.collect::<Vec<_>>(), "members": members.collect::<Vec<_>>(), "not_compared": not_compared,
        "causes": causes, "strangers": strangers.collect::<Vec<_>>(), "notes": notes,
    })
}

/// A difference, as `--differences` writes it.
pub fn difference(difference: &Difference, set: &MemberSet) -> Value {
    let afi = difference.prefix.afi();
    let name = |slot: u32| set.slot(slot).map(|slot| slot.name.clone());
    let route = |shown: &Shown| {
        let attributes = &shown.attributes;
        let standard = attributes.communities().map(|community| community.to_string());
        let large = attributes.large_communities().map(|community| community.to_string());
        let extended = attributes.extended_communities().map(|community| community.to_string());
        json!({
            "announcer": shown.announcer.and_then(name), "next_hop": next_hop(afi, attributes),
            "as_path": attributes.as_path().to_string(), "med": attributes.med(),
            "communities": standard.chain(large).chain(extended).collect::<Vec<_>>(),
        })
    };
    json!({
        "member": name(difference.member), "prefix": difference.prefix.to_string(), "cause": difference.cause.name(),
        "detail": difference.cause.detail(), "why": difference.cause.words(set),
        "given": difference.given.as_ref().map(route), "computed": difference.computed.as_ref().map(route),
    })
}

fn rows<'a>(described: &'a Value, of: &str) -> &'a [Value] {
    described[of].as_array().map_or(&[], Vec::as_slice)
}

/// One row for each rule by which routes of an announcer are refused.
fn refused(described: &Value) -> Vec<Value> {
    let of_member = |member: &Value| {
        let refused = rows(member, "refused").iter();
        let row = |refused: &Value| json!({ "announcer": member["name"], "rule": refused["rule"], "routes": refused["routes"], "of": member["routes"] });
        refused.map(row).collect::<Vec<_>>()
    };
    rows(described, "learned").iter().flat_map(of_member).collect()
}

fn route_words(route: &Value) -> String {
    if route.is_null() {
        return "none".to_owned();
    }
    format!("{} via {} ({})", cell(&route["announcer"]), cell(&route["next_hop"]), cell(&route["as_path"]))
}

/// The report as text.
pub fn in_words(described: &Value) -> String {
    let members = rows(described, "members");
    let mut text = format!(
        "{} (AS{}): {} prefixes, {} of {} members compared, {} differences\n\n",
        cell(&described["exchange"]),
        cell(&described["asn"]),
        described["prefixes"],
        members.len(),
        members.len() + rows(described, "not_compared").len(),
        described["differences"],
    );
    text += &objects(members, &["name", "asn", "given", "computed", "same", "equal_choice", "different"]);
    let not_compared = rows(described, "not_compared");
    if !not_compared.is_empty() {
        let names = cell(&described["not_compared"]);
        let _ = writeln!(text, "\nnot compared, since no source has what the server gives them: {names}");
    }
    let refused = refused(described);
    if !refused.is_empty() {
        text += "\nroutes that every member's proxy refuses:\n";
        text += &objects(&refused, &["announcer", "rule", "routes", "of"]);
    }
    for stranger in rows(described, "strangers") {
        let asn = if stranger["asn"].is_null() { "no AS".to_owned() } else { cell(&stranger["asn"]) };
        let _ = writeln!(text, "\nleft out: {} routes of {asn}, which is no member", stranger["routes"]);
    }
    for cause in rows(described, "causes") {
        let detail = cause["detail"].as_str().map_or(String::new(), |detail| format!(" ({detail})"));
        let _ = writeln!(text, "\n{} {}{detail}", cause["count"], cell(&cause["cause"]));
        for example in rows(cause, "examples").iter().take(IN_TEXT) {
            let _ = writeln!(text, "  {} for {}", cell(&example["prefix"]), cell(&example["member"]));
            let _ = writeln!(text, "    the server gives   {}", route_words(&example["given"]));
            let _ = writeln!(text, "    Wayleave would give {}", route_words(&example["computed"]));
            let _ = writeln!(text, "    {}", cell(&example["why"]));
        }
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn html_table(rows: &[Value], columns: &[(&str, &str)]) -> String {
    let head: String = columns.iter().map(|(_, heading)| format!("<th>{heading}</th>")).collect();
    let mut text = format!("<table><tr>{head}</tr>\n");
    for row in rows {
        let cells: String = columns.iter().map(|(key, _)| format!("<td>{}</td>", escaped(&cell(&row[*key])))).collect();
        let _ = writeln!(text, "<tr>{cells}</tr>");
    }
    text + "</table>\n"
}

/// The report as one page, which loads nothing.
pub fn page(described: &Value, now: u64) -> String {
    const STYLE: &str = "body{font:15px/1.5 sans-serif;margin:2em auto;max-width:75em;padding:0 1em}\
        table{border-collapse:collapse;margin:.5em 0 1.5em}th,td{border-bottom:1px solid #ccc;padding:.2em .8em;text-align:left}\
        th{background:#f0f0f0}h2{margin-top:2em}.none{color:#777}";
    let title = format!("Shadow of {}", escaped(&cell(&described["exchange"])));
    let mut text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style></head><body>\n\
         <h1>{title}</h1>\n<p>{} &middot; AS{} &middot; {} prefixes &middot; {} differences, {} of them unexplained</p>\n\
         <h2>Members</h2>\n",
        utc(now),
        escaped(&cell(&described["asn"])),
        described["prefixes"],
        described["differences"],
        described["unexplained"],
    );
    text += &html_table(
        rows(described, "members"),
        &[
            ("name", "Member"),
            ("asn", "AS"),
            ("given", "The server gives"),
            ("computed", "Wayleave would give"),
            ("same", "Same"),
            ("equal_choice", "of these, one of several equal"),
            ("different", "Different"),
        ],
    );
    if !rows(described, "not_compared").is_empty() {
        let names = escaped(&cell(&described["not_compared"]));
        let _ = writeln!(text, "<p>Not compared, since no source has what the server gives them: {names}</p>");
    }
    let refused = refused(described);
    if !refused.is_empty() {
        text += "<h2>Routes that every member's proxy refuses</h2>\n";
        let columns = [("announcer", "Announcer"), ("rule", "Rule"), ("routes", "Routes"), ("of", "of")];
        text += &html_table(&refused, &columns);
    }
    if !rows(described, "strangers").is_empty() {
        text += "<h2>Routes of no member</h2>\n";
        text += &html_table(rows(described, "strangers"), &[("asn", "First AS"), ("routes", "Routes")]);
    }
    text += "<h2>Differences by cause</h2>\n";
    if rows(described, "causes").is_empty() {
        text += "<p class=\"none\">none</p>\n";
    }
    for cause in rows(described, "causes") {
        let detail = cause["detail"].as_str().map_or(String::new(), |detail| format!(": {}", escaped(detail)));
        let _ = writeln!(text, "<h3>{} &times; {}{detail}</h3>", cause["count"], escaped(&cell(&cause["cause"])));
        let examples: Vec<Value> = rows(cause, "examples")
            .iter()
            .map(|example| {
                json!({
                    "prefix": example["prefix"], "member": example["member"], "why": example["why"],
                    "given": route_words(&example["given"]), "computed": route_words(&example["computed"]),
                })
            })
            .collect();
        let columns = [
            ("prefix", "Prefix"),
            ("member", "Member"),
            ("given", "The server gives"),
            ("computed", "Wayleave would give"),
            ("why", "Why"),
        ];
        text += &html_table(&examples, &columns);
    }
    for note in rows(described, "notes") {
        let _ = writeln!(text, "<p class=\"none\">{}</p>", escaped(&cell(note)));
    }
    text + "</body></html>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_loads_nothing_and_escapes_what_others_wrote() {
        let described = json!({
            "exchange": "a<script>", "asn": 64500, "prefixes": 1, "differences": 1, "unexplained": 0, "learned": [],
            "members": [{ "name": "\"x\" & y", "asn": 64501, "given": 1, "computed": 0, "same": 0, "equal_choice": 0, "different": 1 }],
            "not_compared": ["z"], "strangers": [], "notes": ["n"],
            "causes": [{ "cause": "export", "detail": null, "count": 1, "examples": [
                { "member": "x", "prefix": "20.0.0.0/16", "why": "a > b", "given": null, "computed": null },
            ] }],
        });
        let page = page(&described, 0);
        assert!(
            page.contains("a&lt;script&gt;") && page.contains("&quot;x&quot; &amp; y") && page.contains("a &gt; b")
        );
        assert!(
            !page.contains("<script") && !page.contains("src=") && !page.contains("href=") && !page.contains("url(")
        );
        let text = in_words(&described);
        assert!(text.contains("1 export\n") && text.contains("the server gives   none"), "{text}");
    }
}

//! `show` and `why`: what a running role knows, for people or as JSON.

use serde_json::Value;

use crate::cli::{Noun, Show, Why};
use crate::failure::Outcome;
use crate::fetch;
use crate::output::{cell, fields, objects, print, print_json};

pub fn show(command: &Show) -> Outcome {
    let value = fetch::json(&command.target, command.what.path())?;
    if command.json {
        print_json(value);
        return Ok(());
    }
    let list = |name: &str| value[name].as_array().cloned().unwrap_or_default();
    print(&match command.what {
        Noun::Status => fields(&value),
        Noun::Peers => objects(
            &list("peers"),
            &["peer", "slot", "up", "state", "asn", "router_id", "address", "announced", "last_end"],
        ),
        Noun::Routes => objects(
            &list("routes"),
            &["prefix", "announcer", "next_hop", "as_path", "slot", "version", "kind", "prefixes", "blob_bytes"],
        ),
        Noun::Members => {
            objects(&list("members"), &["slot", "name", "asn", "active", "connected", "addresses", "max_prefix"])
        }
        Noun::Events => list("events").iter().map(event).collect(),
        Noun::Keys => objects(&list("keys"), &["of", "tls", "sign", "reload"]),
    });
    Ok(())
}

fn event(event: &Value) -> String {
    let what = &event["what"];
    let details = what.as_object().into_iter().flatten().filter(|(name, _)| *name != "event");
    let details: Vec<String> = details.map(|(name, value)| format!("{name}={}", cell(value))).collect();
    format!("{}  {}  {}\n", cell(&event["unix"]), cell(&what["event"]), details.join(" "))
}

pub fn why(command: &Why) -> Outcome {
    let value = fetch::json(&command.target, &format!("/api/v1/why?prefix={}", command.prefix))?;
    if command.json {
        print_json(value);
        return Ok(());
    }
    let mut text = format!("{}: {}\n", cell(&value["prefix"]), cell(&value["summary"]));
    for route in value["routes"].as_array().into_iter().flatten() {
        let who = match route["announcer"][1].as_str() {
            Some(name) => format!("{name} (AS{})", cell(&route["asn"])),
            None => "somebody".to_owned(),
        };
        let path = route["as_path"].as_str().map_or(String::new(), |path| format!(" path {path}"));
        let class = route["class"].as_u64().map_or(String::new(), |class| format!(" class {class}"));
        text += &format!("  from {who}{path}{class}: {}\n", cell(&route["outcome"]));
    }
    print(&text);
    Ok(())
}

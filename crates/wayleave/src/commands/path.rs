//! `path` and `ping`: the paths of a gateway, and whether they work.

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use wayleave_runtime::clock::utc;

use crate::failure::{Failure, Outcome};
use crate::fetch::{self, Target};
use crate::output::{cell, objects, print, print_json};

#[derive(Subcommand, Debug)]
pub enum Path {
    /// List the known paths to other gateways, and what uses them.
    List(List),
    /// Ask for the path to a name or address, probe it, and show its nodes.
    Trace(Of),
}

#[derive(Args, Debug)]
pub struct List {
    #[command(flatten)]
    pub target: Target,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Of {
    /// POLICY.NODE.SUFFIX, a node's name, or an inner address.
    pub name: String,
    #[command(flatten)]
    pub target: Target,
    #[arg(long)]
    pub json: bool,
}

pub fn run(command: &Path) -> Outcome {
    match command {
        Path::List(command) => list(command),
        Path::Trace(command) => trace(command),
    }
}

/// `list`, and `show paths`.
fn list(command: &List) -> Outcome {
    let value = fetch::json(&command.target, "/api/v1/paths")?;
    if command.json {
        print_json(value);
        return Ok(());
    }
    print(&table(&value));
    Ok(())
}

/// Paths as a table.
pub fn table(value: &Value) -> String {
    let row = |path: &Value| {
        json!({
            "to": path["to"],
            "nodes": names(&path["nodes"]).join(" "),
            "used": names(&path["used"]).join("; "),
            "state": state(path),
            "round_trip": path["round_trip_micros"].as_u64().map(millis),
            "room": path["room"],
        })
    };
    let rows: Vec<Value> = value["paths"].as_array().into_iter().flatten().map(row).collect();
    objects(&rows, &["to", "nodes", "used", "state", "round_trip", "room"])
}

fn trace(command: &Of) -> Outcome {
    let value = ask("ping", command)?;
    if command.json {
        print_json(value);
        return Ok(());
    }
    print(&names(&value["nodes"]).iter().map(|node| format!("{node}\n")).collect::<String>());
    Ok(())
}

/// `ping`: one round trip over the active path.
pub fn ping(command: &Of) -> Outcome {
    let value = ask("ping", command)?;
    if command.json {
        print_json(value);
        return Ok(());
    }
    let took = value["round_trip_micros"].as_u64().map(millis).unwrap_or_default();
    print(&format!(
        "{} by policy {}: {took} over {}\n",
        cell(&value["node"]),
        cell(&value["policy"]),
        names(&value["nodes"]).join(" ")
    ));
    Ok(())
}

/// `why NAME`: how packets to a name go, or why they do not.
pub fn why(command: &Of) -> Outcome {
    let value = ask("why", command)?;
    if command.json {
        print_json(value);
        return Ok(());
    }
    let mut text = format!(
        "{} by policy {}: {}: {}\n",
        cell(&value["node"]),
        cell(&value["policy"]),
        cell(&value["state"]),
        cell(&value["why"])
    );
    for which in ["active", "spare"] {
        let path = &value[which];
        if path.is_object() {
            text += &format!("  {which}: {}: {}\n", names(&path["nodes"]).join(" "), state(path));
        }
    }
    print(&text);
    Ok(())
}

fn ask(page: &str, command: &Of) -> Outcome<Value> {
    let is_plain = |octet: u8| octet.is_ascii_alphanumeric() || matches!(octet, b'.' | b'-' | b':' | b'_');
    if command.name.is_empty() || !command.name.bytes().all(is_plain) {
        return Err(Failure::usage(format!("`{}` is no name and no address", command.name))
            .help("POLICY.NODE.SUFFIX, a node's name, or an inner address")
            .into());
    }
    fetch::json(&command.target, &format!("/api/v1/{page}?name={}", command.name))
}

/// How a path stands, for people.
fn state(path: &Value) -> String {
    let proven = path["proven_until"].as_u64().map(|until| format!("consents until {}", utc(until)));
    let mut words = vec![proven.unwrap_or_else(|| "no consents".to_owned())];
    if path["dead"] == true {
        words.push("dead".to_owned());
    }
    if let Some(why) = path["refused"].as_str() {
        words.push(why.to_owned());
    }
    words.join(", ")
}

fn names(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().map(cell).collect()
}

fn millis(micros: u64) -> String {
    format!("{}.{:03} ms", micros / 1_000, micros % 1_000)
}

//! `locate`: finds between which nodes of an ICING path packets were lost or sealed payloads replaced, from the nodes' signed reports.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use wayleave_dataplane::icing::{Report, Wrong, locate, wrong};
use wayleave_runtime::identity::to_hex;

use crate::config::parse::ReportKey;
use crate::failure::{Failure, Outcome};
use crate::output::{print, print_json};
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct Locate {
    /// A node's public key and a file of its reports (the output of `wayleave show reports --json`), as node:ed25519:HEX=FILE or sign:ed25519:HEX=FILE.
    #[arg(required = true, value_name = "KEY=FILE")]
    pub reports: Vec<NodeReports>,
    /// First digits of the path's handle; needed if the nodes report on several paths.
    #[arg(long, value_name = "HEX", default_value = "", hide_default_value = true)]
    pub handle: String,
    /// The window (Unix seconds divided by 16). Default: for lost packets the last one in all files, for wrong ones each.
    #[arg(long)]
    pub window: Option<u32>,
    /// Packets that the sender sent in the window. Default: the count of the first node.
    #[arg(long)]
    pub sent: Option<u64>,
    #[arg(long)]
    pub json: bool,
}

/// A file of reports, and the key that signed it.
#[derive(Clone, Debug)]
pub struct NodeReports {
    pub key: ReportKey,
    pub file: PathBuf,
}

impl std::str::FromStr for NodeReports {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (key, file) = text.split_once('=').ok_or("expected KEY=FILE")?;
        Ok(Self { key: key.parse()?, file: file.into() })
    }
}

pub fn run(command: &Locate) -> Outcome {
    let mut nodes = Vec::new();
    for node in &command.reports {
        nodes.push(verified(node, &command.handle.to_ascii_lowercase())?);
    }
    let mut reports: Vec<Report> = nodes.iter().flatten().copied().collect();
    reports.retain(|report| command.window.is_none_or(|window| report.window == window));
    reports.sort_unstable_by_key(|report| (report.window, report.index));
    let handles: BTreeSet<[u8; 16]> = reports.iter().map(|report| report.handle.0).collect();
    if handles.len() > 1 {
        let known: Vec<String> = handles.iter().map(|handle| to_hex(handle)).collect();
        return Err(Failure::usage(format!("reports on {} paths: {}", known.len(), known.join(", ")))
            .help("choose one with --handle")
            .into());
    }
    let Some(handle) = handles.first() else {
        let of = command.window.map_or_else(String::new, |window| format!(" on window {window}"));
        return Err(Failure::new(format!("no report{of}")).into());
    };
    let is_twice = |pair: &&[Report]| (pair[0].window, pair[0].index) == (pair[1].window, pair[1].index);
    if let Some(twice) = reports.windows(2).find(is_twice) {
        return Err(
            Failure::usage(format!("two reports of node {} on the same path and window", twice[0].index)).into()
        );
    }
    let wrongs: Vec<(u32, Wrong)> = reports
        .chunk_by(|one, other| one.window == other.window)
        .map(|of_window| (of_window[0].window, wrong(of_window)))
        .filter(|(_, wrong)| *wrong != Wrong::default())
        .collect();
    let window = match command.window.or_else(|| last_of_all(&nodes)) {
        // What is wrong in a part of a window is to be heard all the same.
        None if wrongs.is_empty() => {
            return Err(Failure::new("the files have no whole window in common")
                .help("choose one with --window")
                .into());
        }
        window => window,
    };
    reports.retain(|report| Some(report.window) == window);
    let whole = reports.iter().find(|report| report.is_whole);
    let sent = command.sent.or(whole.map(|report| report.count.packets)).unwrap_or_default();
    let losses = locate(sent, &reports);
    if command.json {
        print_json(json!({
            "handle": to_hex(handle), "window": window, "sent": command.sent,
            "reports": reports.iter().map(row).collect::<Vec<_>>(),
            "losses": losses.iter().map(|loss| json!({ "from": loss.from, "to": loss.to, "packets": loss.packets }))
                .collect::<Vec<_>>(),
            "wrong": wrongs.iter().map(|(window, wrong)| of_wrong(*window, wrong)).collect::<Vec<_>>(),
        }));
        return Ok(());
    }
    let mut text = format!("path {}\n", to_hex(handle));
    if let Some(window) = window {
        text += &format!("window {window}\n");
    }
    for report in &reports {
        let part = if report.is_whole { "" } else { " of a part of the window" };
        text += &format!("  node {}: {} packets{part}\n", report.index, report.count.packets);
    }
    for loss in &losses {
        text += &format!("  {} packets lost between node {} and node {}\n", loss.packets, loss.from, loss.to);
    }
    if losses.is_empty() && whole.is_some() {
        text += "  no packets lost\n";
    }
    for (window, wrong) in &wrongs {
        text += &format!("window {window}\n");
        if let Some(place) = &wrong.replaced {
            text += &format!(
                "  payloads replaced between node {} and node {}, or by one of them: {} samples failed\n",
                place.from, place.to, place.failed
            );
        }
        for place in &wrong.spoiled {
            text += &format!(
                "  verifiers of node {} spoiled in front of it, by the sender or a node: {} packets and {} samples dropped\n",
                place.at, place.spoiled, place.failed
            );
        }
    }
    print(&text);
    Ok(())
}

fn row(report: &Report) -> Value {
    let count = report.count;
    json!({
        "index": report.index, "whole": report.is_whole, "packets": count.packets, "samples": count.samples,
        "failed_samples": count.failed, "spoiled": count.spoiled,
    })
}

fn of_wrong(window: u32, wrong: &Wrong) -> Value {
    let replaced =
        wrong.replaced.map(|place| json!({ "from": place.from, "to": place.to, "failed_samples": place.failed }));
    let spoiled = wrong
        .spoiled
        .iter()
        .map(|place| json!({ "at": place.at, "failed_samples": place.failed, "spoiled": place.spoiled }));
    json!({ "window": window, "replaced": replaced, "spoiled": spoiled.collect::<Vec<_>>() })
}

/// A node's reports on paths whose handle begins with `handle`; each must be signed by its key.
fn verified(node: &NodeReports, handle: &str) -> Outcome<Vec<Report>> {
    let name = node.file.display();
    let text = std::fs::read_to_string(&node.file).map_err(|error| Failure::system(&name, &error))?;
    let value: Value = serde_json::from_str(&text).map_err(|error| Failure::new(format!("{name}: {error}")))?;
    let mut reports = Vec::new();
    for row in value["reports"].as_array().into_iter().flatten() {
        let octets = row["signed"].as_str().and_then(report_octets);
        let octets = octets.ok_or_else(|| Failure::new(format!("{name}: a report lacks its signature (`signed`)")))?;
        let report = Report::verify(&octets, &node.key.0)
            .map_err(|_| Failure::new(format!("{name}: a report is not signed by {}", node.key)))?;
        if to_hex(&report.handle.0).starts_with(handle) {
            reports.push(report);
        }
    }
    Ok(reports)
}

fn report_octets(text: &str) -> Option<Vec<u8>> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    let digit = |digit: u8| (digit as char).to_digit(16);
    let octet = |pair: &[u8; 2]| Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8);
    if pairs.len() > Report::MAX { None } else { pairs.iter().map(octet).collect() }
}

/// The last window that every node has counted whole.
fn last_of_all(nodes: &[Vec<Report>]) -> Option<u32> {
    let has = |reports: &[Report], window: u32| reports.iter().any(|report| report.is_whole && report.window == window);
    let windows = nodes.iter().flatten().map(|report| report.window);
    windows.filter(|window| nodes.iter().all(|reports| has(reports, *window))).max()
}

//! `locate`: finds between which nodes of an ICING path packets were lost or sealed payloads replaced, from the nodes' signed reports.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use wayleave_dataplane::icing::{Report, Wrong, locate, wrong};
use wayleave_runtime::identity::to_hex;

use crate::config::parse::ReportKey;
use crate::failure::{Failure, Outcome};
use crate::output::{print, print_json};
use clap::Args;
use std::path::{Path, PathBuf};

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
    /// Packets that the sender sent in the window. Default: the count of the first node that counted all of it.
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
        let mut reports = verified(node, &command.handle.to_ascii_lowercase())?;
        reports.retain(|report| command.window.is_none_or(|window| report.window == window));
        nodes.push((node, reports));
    }
    let handles: BTreeSet<[u8; 16]> = nodes.iter().flat_map(|(_, of)| of).map(|report| report.handle.0).collect();
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
    check_places(&mut nodes)?;
    let all: Vec<Report> = nodes.iter().flat_map(|(_, of)| of).copied().collect();
    let wrong = wrong(&all);
    let mut windows: Vec<u32> = all.iter().filter(|report| is_wrong(report)).map(|report| report.window).collect();
    windows.sort_unstable();
    windows.dedup();
    let window = command.window.or_else(|| last_of_all(&nodes));
    // What is wrong in a part of a window is to be heard all the same.
    if window.is_none() && windows.is_empty() {
        let failure = Failure::new("the files have no whole window in common");
        return Err(failure.help("choose one with --window").into());
    }
    let mut reports: Vec<Report> = all.into_iter().filter(|report| Some(report.window) == window).collect();
    reports.sort_unstable_by_key(|report| report.index);
    let whole: Vec<&Report> = reports.iter().filter(|report| report.is_whole).collect();
    let sent = command.sent.or(whole.first().map(|report| report.count.packets)).unwrap_or_default();
    let losses = locate(sent, &reports);
    if command.json {
        print_json(json!({
            "handle": to_hex(handle), "window": window, "sent": command.sent,
            "reports": reports.iter().map(row).collect::<Vec<_>>(),
            "losses": losses.iter().map(|loss| json!({ "from": loss.from, "to": loss.to, "packets": loss.packets }))
                .collect::<Vec<_>>(),
            "wrong": of_wrong(&wrong, &windows),
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
    if losses.is_empty() && whole.len() + usize::from(command.sent.is_some()) > 1 {
        text += "  no packets lost\n";
    }
    if !windows.is_empty() {
        let named: Vec<String> = windows.iter().map(ToString::to_string).collect();
        let s = if named.len() == 1 { "" } else { "s" };
        text += &format!("packets dropped for their verifiers in window{s} {}\n", named.join(", "));
        match &wrong.replaced {
            Some(place) => {
                text += &format!(
                    "  payloads replaced between node {} and node {}, or by one of them: {} samples failed\n",
                    place.from, place.to, place.failed
                );
            }
            None if wrong.spoiled.is_empty() => text += "  too few to say where payloads were replaced, if they were\n",
            None => {}
        }
    }
    for place in &wrong.spoiled {
        text += &format!(
            "  verifiers for node {} spoiled by the sender or a node in front of it: {} packets and {} samples dropped\n",
            place.at, place.spoiled, place.failed
        );
    }
    print(&text);
    Ok(())
}

/// Each file is of one node of the path, and says one thing of a window: otherwise one of them could speak for another. The same report twice is
/// one.
fn check_places(nodes: &mut [(&NodeReports, Vec<Report>)]) -> Outcome {
    let mut owners: BTreeMap<u8, &Path> = BTreeMap::new();
    for (node, reports) in nodes {
        reports.sort_unstable_by_key(|report| (report.window, report.index));
        reports.dedup();
        let name = node.file.display();
        let indices: BTreeSet<u8> = reports.iter().map(|report| report.index).collect();
        if let [one, other, ..] = indices.iter().copied().collect::<Vec<_>>()[..] {
            return Err(Failure::usage(format!("{name}: reports of node {one} and of node {other} of one path")).into());
        }
        if let Some(pair) = reports.windows(2).find(|pair| pair[0].window == pair[1].window) {
            let (index, window) = (pair[0].index, pair[0].window);
            return Err(Failure::usage(format!("{name}: two reports of node {index} on window {window}")).into());
        }
        for index in indices {
            if let Some(other) = owners.insert(index, &node.file) {
                let other = other.display();
                return Err(Failure::usage(format!("{other} and {name}: both are of node {index} of the path")).into());
            }
        }
    }
    Ok(())
}

fn is_wrong(report: &Report) -> bool {
    report.count.failed > 0 || report.count.spoiled > 0
}

fn row(report: &Report) -> Value {
    let count = report.count;
    json!({
        "index": report.index, "whole": report.is_whole, "packets": count.packets, "samples": count.samples,
        "failed_samples": count.failed, "spoiled": count.spoiled,
    })
}

fn of_wrong(wrong: &Wrong, windows: &[u32]) -> Value {
    let replaced =
        wrong.replaced.map(|place| json!({ "from": place.from, "to": place.to, "failed_samples": place.failed }));
    let spoiled = wrong
        .spoiled
        .iter()
        .map(|place| json!({ "at": place.at, "failed_samples": place.failed, "spoiled": place.spoiled }));
    json!({ "windows": windows, "replaced": replaced, "spoiled": spoiled.collect::<Vec<_>>() })
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
fn last_of_all(nodes: &[(&NodeReports, Vec<Report>)]) -> Option<u32> {
    let has = |reports: &[Report], window: u32| reports.iter().any(|report| report.is_whole && report.window == window);
    let windows = nodes.iter().flat_map(|(_, reports)| reports).map(|report| report.window);
    windows.filter(|window| nodes.iter().all(|(_, reports)| has(reports, *window))).max()
}

//! `check`: reports what is wrong with a configuration, with line and column.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::deep::{self, Finding};
use crate::config::check::{describe, expected, reason};
use crate::config::shadow::SHADOW;
use crate::config::{Source, check};
use crate::failure::{Failure, Failures, Outcome};
use crate::fetch::{self, Target};
use crate::output::{print, print_json};
use crate::roles::overlay::freshness::LIST;
use clap::Args;

#[derive(Args, Debug)]
pub struct Check {
    /// The configuration; its sections show the role.
    #[arg(default_value = "wayleave.toml")]
    pub file: PathBuf,
    /// The same, as other commands name it.
    #[arg(long, value_name = "FILE", hide = true, conflicts_with = "file")]
    pub config: Option<PathBuf>,
    /// Also ask the network and this machine: whether both parties are reached with the pinned keys, whether the ports are free, and whether
    /// the clock is right.
    #[arg(long)]
    pub deep: bool,
    /// Accept the example keys, pins, addresses and AS numbers that `wayleave init` writes; the role does not start with them.
    #[arg(long)]
    pub example: bool,
    #[arg(long)]
    pub json: bool,
}

/// How long the role may take to say how it is, if it runs.
const ASKED: fetch::Limits = fetch::Limits::within(Duration::from_secs(1));

/// What a role that runs says of its realm's list of removed nodes. The state of one that does not run tells nothing: it gets the latest list when it
/// starts.
fn stale_list(role: &str, file: &Path) -> Vec<Failure> {
    if !["router", "gateway", "path", "consent", "realm"].contains(&role) {
        return Vec::new();
    }
    let target = Target { url: None, config: Some(file.to_owned()) };
    let Ok(status) = fetch::json_within(&target, "/api/v1/status", ASKED) else { return Vec::new() };
    let problems = status["problems"].as_array().into_iter().flatten().filter_map(Value::as_str);
    problems.filter(|problem| problem.contains(LIST)).map(Failure::new).collect()
}

/// `Err` holds the errors; with `--json` they have been printed already, and it is empty.
pub fn run(command: &Check) -> Outcome {
    let named = command.config.as_ref().unwrap_or(&command.file);
    let source = Source::read(named)?;
    let mut checked = check(&source);
    if command.example {
        checked.warnings.append(&mut checked.examples);
    } else {
        checked.errors.append(&mut checked.examples);
        checked.warnings.append(&mut checked.documentation);
    }
    if checked.errors.is_empty() {
        checked.warnings.extend(stale_list(checked.role, named));
    }
    // What has errors cannot be tried.
    let mut found =
        (command.deep && checked.errors.is_empty()).then(|| deep::look(checked.role, &source)).transpose()?;
    if let Some(found) = &mut found {
        found.push(deep::kernel_clock());
    }
    let is_fine = checked.errors.is_empty() && found.iter().flatten().all(|finding| finding.is_good);
    if command.json {
        let mut value = json!({
            "file": named,
            "role": checked.role,
            "ok": is_fine,
            "errors": checked.errors.iter().map(describe).collect::<Vec<_>>(),
            "warnings": checked.warnings.iter().map(describe).collect::<Vec<_>>(),
            "notes": checked.notes,
        });
        if let Some(found) = &found {
            let finding = |one: &Finding| json!({ "about": one.about, "ok": one.is_good, "message": one.words });
            value["deep"] = json!(found.iter().map(finding).collect::<Vec<_>>());
        }
        print_json(value);
        return if is_fine { Ok(()) } else { Err(Failures(Vec::new())) };
    }
    if !checked.errors.is_empty() {
        return Err(Failures(checked.errors));
    }
    for warning in &checked.warnings {
        let place = warning.line_column().map_or(String::new(), |(line, column)| format!(":{line}:{column}"));
        let help = warning.remedy().map_or(String::new(), |help| format!(" ({help})"));
        let label = expected(warning).map(|expected| format!(", expected {expected}"));
        let label = label.or_else(|| Some(format!(": {}", reason(warning)?))).unwrap_or_default();
        print(&format!("{}{place}: warning: {warning}{label}{help}\n", named.display()));
    }
    let file = named.display();
    let what = match checked.role {
        SHADOW => format!("a configuration for `wayleave {SHADOW}`"),
        role => format!("a configuration for `wayleave run {role}`"),
    };
    match checked.warnings.len() {
        0 => print(&format!("{file}: fine, {what}\n")),
        1 => print(&format!("{file}: {what}, with one warning\n")),
        many => print(&format!("{file}: {what}, with {many} warnings\n")),
    }
    for note in &checked.notes {
        print(&format!("{note}\n"));
    }
    for Finding { about, words, .. } in found.iter().flatten().filter(|finding| finding.is_good) {
        print(&format!("{about}: {words}\n"));
    }
    let wrong = found.into_iter().flatten().filter(|finding| !finding.is_good);
    let wrong: Vec<Failure> =
        wrong.map(|finding| Failure::new(format!("{}: {}", finding.about, finding.words))).collect();
    if wrong.is_empty() { Ok(()) } else { Err(Failures(wrong)) }
}

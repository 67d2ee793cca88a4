//! `reload` and `diff`: what a changed configuration changes at the role that runs.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use crate::failure::{Failure, Failures, Outcome};
use crate::fetch::{self, Target};
use crate::output::{cell, print, print_json};

#[derive(Args, Debug)]
pub struct Reload {
    #[command(flatten)]
    pub target: Target,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Diff {
    /// The changed configuration: the role's own file, or one beside it.
    #[arg(default_value = "wayleave.toml")]
    pub file: PathBuf,
    #[command(flatten)]
    pub target: Target,
    #[arg(long)]
    pub json: bool,
}

/// How long a role may take to compare all its routes.
const COMPARED: fetch::Limits = fetch::Limits::within(Duration::from_secs(120));

/// Has the role read its configuration again, and says what came of it.
pub fn reload(command: &Reload) -> Outcome {
    let said = fetch::order(&command.target, "/api/v1/reload")?;
    show(&said, "reload", command.json)
}

/// Says what a reload with this file would change; nothing is changed.
pub fn diff(command: &Diff) -> Outcome {
    let file = std::fs::canonicalize(&command.file)
        .map_err(|error| Failure::system(command.file.display(), &error).help("name the changed configuration"))?;
    // The changed file says where the role answers, unless that is what has changed.
    let own = command.target.url.is_none() && command.target.config.is_none();
    let target = if own { Target { url: None, config: Some(file.clone()) } } else { command.target.clone() };
    let path = format!("/api/v1/diff?file={}", fetch::percent_encoded(&file.display().to_string()));
    let said = fetch::order_within(&target, &path, COMPARED)?;
    show(&said, "diff", command.json)
}

/// Prints what changes. A configuration that is not taken is a failure, with all its errors.
pub fn show(said: &Value, verb: &str, is_json: bool) -> Outcome {
    let errors = said["errors"].as_array().map_or(&[][..], Vec::as_slice);
    if is_json {
        print_json(said.clone());
        return if errors.is_empty() { Ok(()) } else { Err(Failures(Vec::new())) };
    }
    if !errors.is_empty() {
        let failure = |error: &Value| {
            let failure = Failure::new(format!("the configuration in force stays: {}", cell(&error["message"])));
            match error["help"].as_str() {
                Some(help) => failure.help(help),
                None => failure.help("`wayleave check FILE` shows the place"),
            }
        };
        return Err(Failures(errors.iter().map(failure).collect()));
    }
    print(&words(said, verb));
    Ok(())
}

/// What changes, in lines.
fn words(said: &Value, verb: &str) -> String {
    let names = |of: &str| said[of].as_array().into_iter().flatten().map(cell).collect::<Vec<_>>();
    let (reload, restart) = (names("reload"), names("restart"));
    let is_done = verb == "reload";
    let mut text = match (reload.is_empty(), is_done) {
        (true, true) => {
            "reloaded; no setting that a reload applies has changed, and the files that it names were read again\n"
                .to_owned()
        }
        (true, false) => {
            "a reload changes no setting; it reads the files again that the configuration names\n".to_owned()
        }
        (false, true) => format!("reloaded; changed: {}\n", reload.join(", ")),
        (false, false) => format!("a reload changes: {}\n", reload.join(", ")),
    };
    if !restart.is_empty() {
        text += &format!("only a restart changes, which ends the role's sessions: {}\n", restart.join(", "));
    }
    text + &routes(&said["policy"])
}

/// What a member's other policy would change at its routes.
fn routes(policy: &Value) -> String {
    let Some(rows) = policy["routes"].as_array() else { return String::new() };
    let all = policy["in_all"].as_u64().unwrap_or(0);
    if all == 0 {
        return "no route that is there would be treated otherwise\n".to_owned();
    }
    let name = |member: &Value| match member["name"].as_str() {
        Some(name) => name.to_owned(),
        None => format!("slot {}", member["slot"]),
    };
    let line = |row: &Value| {
        let prefix = cell(&row["prefix"]);
        let pair = row["pair"].as_str().map_or(String::new(), |pair| format!("at {pair}, "));
        let what = match row["change"].as_str().unwrap_or_default() {
            "refused" => format!("{prefix} of {}: would be refused\n", name(&row["announcer"])),
            "taken" => format!("{prefix} of {}: would no longer be refused\n", name(&row["announcer"])),
            "ranked" => format!("{prefix}: its routes would be ranked otherwise\n"),
            "changed" => {
                format!("{prefix} of {}: your router would get it with other attributes\n", name(&row["announcer"]))
            }
            "exported" => format!("{prefix}: {} would get it\n", name(&row["receiver"])),
            "hidden" => format!("{prefix}: {} would no longer get it\n", name(&row["receiver"])),
            "treated" => format!("{prefix}: {} would get it with other hops or communities\n", name(&row["receiver"])),
            "readable" => format!("{prefix}: its receivers could read which peers its communities name\n"),
            _ => format!("{prefix}: would be treated otherwise\n"),
        };
        format!("{pair}{what}")
    };
    let mut text: String = rows.iter().map(line).collect();
    let left_out = all.saturating_sub(rows.len() as u64);
    if left_out > 0 {
        text += &format!("and {left_out} more\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_changes_is_said_with_what_needs_a_restart() {
        let none = json!({ "applied": true, "reload": [], "restart": [], "errors": [] });
        assert!(words(&none, "reload").starts_with("reloaded; no setting"));
        assert!(words(&none, "diff").starts_with("a reload changes no setting"));
        let some = json!({ "reload": ["rule", "ranking"], "restart": ["member.slot"], "errors": [] });
        let expected =
            "a reload changes: rule, ranking\nonly a restart changes, which ends the role's sessions: member.slot\n";
        assert_eq!(words(&some, "diff"), expected);
        let policy = json!({ "in_all": 8, "routes": [
            { "change": "refused", "prefix": "192.0.2.0/24", "announcer": { "slot": 1, "name": "bravo" } },
            { "change": "ranked", "prefix": "198.51.100.0/24" },
            { "change": "hidden", "prefix": "203.0.113.0/24", "receiver": { "slot": 2, "name": null } },
            { "change": "changed", "prefix": "192.0.2.0/24", "announcer": { "slot": 1, "name": "bravo" }, "pair": "rs1" },
            { "change": "treated", "prefix": "203.0.113.0/24", "receiver": { "slot": 1, "name": "bravo" } },
            { "change": "readable", "prefix": "203.0.113.0/24" },
        ] });
        let expected = "192.0.2.0/24 of bravo: would be refused\n198.51.100.0/24: its routes would be ranked otherwise\n\
                        203.0.113.0/24: slot 2 would no longer get it\n\
                        at rs1, 192.0.2.0/24 of bravo: your router would get it with other attributes\n\
                        203.0.113.0/24: bravo would get it with other hops or communities\n\
                        203.0.113.0/24: its receivers could read which peers its communities name\nand 2 more\n";
        assert_eq!(routes(&policy), expected);
        assert_eq!(routes(&Value::Null), "");
        let wrong = json!({ "errors": [{ "message": "one" }, { "message": "two", "help": "three" }] });
        let failures = show(&wrong, "reload", false).expect_err("it is refused");
        assert_eq!(failures.0.len(), 2);
        assert_eq!(failures.0[1].remedy(), Some("three"));
    }
}

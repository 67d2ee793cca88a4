//! What `keys show` says of files without keys: those that roles and commands keep for themselves, copies, and what they write for others.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use wayleave_control::capability::Statement;
use wayleave_core::wire::decode;
use wayleave_crypto::signed::Signed;
use wayleave_dataplane::tally;
use wayleave_runtime::clock::utc;
use wayleave_runtime::starts;
use wayleave_store::Position;

use super::backup;
use crate::config::ROLES;
use crate::config::choices::ChoicesFile;
use crate::key_files::{ledger, old_records, signed_steps};
use crate::provider::statements;

/// Octets by which a file is known that may be longer than any key file.
const HEAD: u64 = 4096;
/// What a SQLite file begins with, and the endings of the files beside it while a process has it open, or was killed.
const SQLITE: &[u8] = b"SQLite format 3\0";
const BESIDE_SQLITE: [&str; 3] = ["-wal", "-shm", "-journal"];
/// Where the first header of a tar has this word.
const TAR: (usize, &[u8]) = (257, b"ustar");
/// Settings that each decision in a consent server's audit log has.
const DECISION: [&str; 3] = ["time", "sender", "decision"];

/// The first octets of a file.
///
/// # Errors
/// If it cannot be read.
pub fn head(file: &Path) -> std::io::Result<Vec<u8>> {
    let mut octets = Vec::new();
    File::open(file)?.take(HEAD).read_to_end(&mut octets)?;
    Ok(octets)
}

fn kept(kind: &str) -> Value {
    json!({ "kind": kind, "keep": "never restored from an old copy while others know a newer one" })
}

/// A file of any length, by its first octets and its name.
pub fn by_head(file: &Path, head: &[u8]) -> Option<Value> {
    if head.starts_with(b"redb") {
        return Some(kept("state of a role: `wayleave show` asks the role for what is in it"));
    }
    if head.starts_with(SQLITE) {
        return Some(kept("database (SQLite) of a key server's accounts and grants: `wayleave cap list` shows them"));
    }
    if old_records::is_one(head) {
        return Some(kept(
            "records of a key server of an earlier version: `wayleave cap import` brings them into a database",
        ));
    }
    if head.starts_with(ledger::HEADER) {
        return Some(kept("records of a realm's operator"));
    }
    if tally::is_one(head) {
        return Some(kept("what a router counted since its state was written; it belongs to the state beside it"));
    }
    if starts::is_record(head) {
        return Some(json!({ "kind": "how the last runs of a role ended; the role makes it anew" }));
    }
    if is_beside_database(file) {
        return Some(json!({ "kind": "belongs to the database beside it, and stays there" }));
    }
    if head.get(TAR.0..).is_some_and(|rest| rest.starts_with(TAR.1)) && head.starts_with(backup::MANIFEST.as_bytes()) {
        return Some(json!({
            "kind": "copy of a role in one file, with private keys: keep it as them",
            "next": "`wayleave restore` brings it back",
        }));
    }
    let line = head.split(|octet| *octet == b'\n').next()?;
    let line: Value = serde_json::from_slice(line).ok()?;
    let is_decision = DECISION.iter().all(|name| line.get(name).is_some());
    is_decision.then(|| json!({ "kind": "a consent server's audit log: one decision on each line, in JSON" }))
}

/// Whether a file belongs to a database beside it.
fn is_beside_database(file: &Path) -> bool {
    let name = file.to_str().unwrap_or_default();
    let database = BESIDE_SQLITE.iter().find_map(|ending| name.strip_suffix(ending)).map(PathBuf::from);
    database.is_some_and(|database| head(&database).is_ok_and(|head| head.starts_with(SQLITE)))
}

/// A file that was read as a whole.
pub fn whole(file: &Path, octets: &[u8]) -> Option<Value> {
    if octets.is_empty() {
        let kind = match file.extension()?.to_str()? {
            "lock" => "lock of the file beside it; it stays",
            "log" => "a consent server's audit log, without a decision yet",
            _ => return None,
        };
        return Some(json!({ "kind": kind }));
    }
    if let Ok(statement) = Signed::<Statement>::decode(octets) {
        let mut value = statements::shown(statement.object());
        value["kind"] = json!("signed statement of usage");
        value["checked"] = json!("not its signature: `wayleave cap verify` checks it");
        return Some(value);
    }
    if is_position(octets) {
        return Some(kept("what was last seen of a key server's database, so that one that was set back is refused"));
    }
    let text = std::str::from_utf8(octets).ok()?;
    if signed_steps::is_one(text) {
        return Some(kept("what the operator's key beside it has signed"));
    }
    if let Ok(value) = serde_json::from_str::<Value>(text) {
        return of_json(&value);
    }
    of_text(text)
}

/// Numbers that no database reaches are no position.
fn is_position(octets: &[u8]) -> bool {
    const MOST: u64 = 1 << 48;
    decode::<Position>(octets).is_ok_and(|position| position.timeline < MOST && position.number < MOST)
}

fn of_json(value: &Value) -> Option<Value> {
    if backup::is_manifest(value) {
        let made = value["made"].as_u64().map(utc);
        return Some(json!({
            "kind": "what is in the copy of a role that this folder is, with private keys beside it",
            "role": value["role"], "made": made, "next": "`wayleave restore` brings the folder back",
        }));
    }
    if value.get("statement").is_some() && value.get("closed_before").is_some() {
        return Some(json!({
            "kind": "statement of usage, exported", "statement": value["statement"],
            "closed_after": value["closed_after"], "closed_before": value["closed_before"],
        }));
    }
    None
}

fn of_text(text: &str) -> Option<Value> {
    let first = text.lines().next()?;
    if first.starts_with("# Path servers by name") {
        return Some(json!({ "kind": "where a realm's path servers are; `wayleave realm invite` writes it" }));
    }
    for (comment, router) in [("# The router of ", "BIRD"), ("! The router of ", "FRR")] {
        if first.starts_with(comment) {
            return Some(json!({ "kind": format!("configuration of a member's router, {router}") }));
        }
    }
    let table: toml::Table = toml::from_str(text).ok()?;
    if let Some(role) = ROLES.into_iter().find(|role| table.contains_key(role.section)) {
        let kind = format!("configuration for `wayleave run {}`", role.name);
        return Some(json!({ "kind": kind, "next": "`wayleave check` checks it" }));
    }
    let has_only = |names: &[&str]| !table.is_empty() && table.keys().all(|key| names.contains(&key.as_str()));
    if has_only(&["rule", "test"]) {
        return Some(json!({ "kind": "rules of who may have consent to what; `policy` of `[consent]` names it" }));
    }
    if has_only(&["recommendation"]) {
        return Some(json!({ "kind": "an exchange's recommendation; `recommendation` of `[party]` names it" }));
    }
    if has_only(&["avoid", "pin"]) && toml::from_str::<ChoicesFile>(text).is_ok() {
        return Some(
            json!({ "kind": "what `wayleave path pin` and `path avoid` decided; `choices` of `[gateway]` names it" }),
        );
    }
    None
}

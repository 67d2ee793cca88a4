//! `cap revoke-list` and `cap revoked`: signed lists of revoked capabilities for Platypus routers, without a key server.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde_json::{Value, json};
use wayleave_dataplane::platypus::revocation::{MAX_ENTRIES, Revocation, RevocationList, Sources, sign_whole};
use wayleave_packet::platypus::header::DelegationId;
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::identity::Identity;

use crate::config::PublicKey;
use crate::config::parse::ListKey;
use crate::failure::{Failure, Outcome};
use crate::key_files::revocation::{self, Replacement, RevocationEntry};
use crate::key_files::signing_key;
use crate::output::{print, print_json};
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct RevokeList {
    /// The list. If it exists, entries are added and the file is replaced in one step.
    pub file: PathBuf,
    /// The key file that signs, from `wayleave keys new`.
    #[arg(long)]
    pub key: PathBuf,
    /// Entries to revoke: PRINCIPAL, PRINCIPAL/DELEGATION or PRINCIPAL/DELEGATION/SUB-DELEGATION, in all key epochs, or with
    /// @INTERVAL:EPOCH in one.
    pub entries: Vec<RevocationEntry>,
    /// A file of further entries, one on a line; - is the standard input.
    #[arg(long)]
    pub from: Option<PathBuf>,
    /// An entry to remove from the list (may be repeated).
    #[arg(long, value_name = "ENTRY")]
    pub lift: Vec<RevocationEntry>,
    /// Start from an empty list instead of the existing one: without its source prefixes too.
    #[arg(long)]
    pub replace: bool,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Revoked {
    /// The list.
    pub file: PathBuf,
    /// The public key that must have signed it (`writer:ed25519:...` or `sign:ed25519:...`, from `wayleave keys show`).
    #[arg(long)]
    pub key: ListKey,
    #[arg(long)]
    pub json: bool,
}

/// Longest line of entries, in octets.
const LINE: u64 = 1024;

/// Signs the next list.
pub fn revoke(command: &RevokeList) -> Outcome {
    let key = signing_key(&Identity::load(&command.key)?);
    let now = unix_now();
    // Begun before the old list is read, so that two at a time cannot both add to it.
    let replacement = Replacement::begin(&command.file)?;
    let before = revocation::open(&command.file, &key.verifying_key())?;
    let last = before.as_ref().map_or(0, |list| list.sequence);
    let before = before.filter(|_| !command.replace);
    let (entries, sources) = before.map_or_else(Default::default, |list| (list.entries, list.sources));
    let mut entries: BTreeSet<Revocation> = entries.into_iter().collect();
    for RevocationEntry(entry) in &command.lift {
        if !entries.remove(entry) {
            return Err(
                Failure::usage(format!("{} is not in {}", RevocationEntry(*entry), command.file.display())).into()
            );
        }
    }
    entries.extend(command.entries.iter().map(|entry| entry.0));
    if let Some(path) = &command.from {
        take_lines(path, &mut entries)?;
    }
    let all = entries.len();
    entries.retain(|entry| entry.expires_at().is_none_or(|second| second > now.secs()));
    let expired = all - entries.len();
    if entries.len() > MAX_ENTRIES {
        return Err(Failure::new(format!("{} entries; a router accepts at most {MAX_ENTRIES}", entries.len())).into());
    }
    // At least the time, so that a list that is created again after a loss is newer than the one that was lost.
    let sequence = now.secs().max(last + 1);
    let entries: Vec<Revocation> = entries.into_iter().collect();
    let (list, signature) = sign_whole(&key, sequence, now, &entries, &sources);
    replacement.finish(&[&signature, &list])?;
    let (file, signer) = (&command.file, PublicKey(key.verifying_key()).to_string());
    if command.json {
        let entries = entries.len();
        print_json(
            json!({ "file": file, "sequence": sequence, "entries": entries, "expired": expired, "key": signer }),
        );
        return Ok(());
    }
    let (file, count) = (file.display(), entries.len());
    print(&format!(
        "file      {file}\nsequence  {sequence}\nentries   {count}\nexpired   {expired}\nkey       {signer}\n"
    ));
    Ok(())
}

/// Entries from a file, one on a line; from the standard input for `-`.
fn take_lines(path: &Path, entries: &mut BTreeSet<Revocation>) -> Outcome {
    let failed = |error| Failure::system(path.display(), &error);
    let mut lines: Box<dyn BufRead> = match path.as_os_str() == "-" {
        true => Box::new(std::io::stdin().lock()),
        false => Box::new(BufReader::new(File::open(path).map_err(failed)?)),
    };
    let mut line = String::new();
    for number in 1u64.. {
        line.clear();
        if lines.by_ref().take(LINE).read_line(&mut line).map_err(failed)? == 0 {
            break;
        }
        if line.len() as u64 == LINE && !line.ends_with('\n') {
            return Err(Failure::new(format!("{}, line {number}: more than {LINE} octets", path.display())).into());
        }
        let text = line.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let entry: RevocationEntry =
            text.parse().map_err(|why| Failure::new(format!("{}, line {number}: {why}", path.display())))?;
        entries.insert(entry.0);
        if entries.len() > MAX_ENTRIES {
            let message = format!("{}, line {number}: more than {MAX_ENTRIES} entries", path.display());
            return Err(Failure::new(message).into());
        }
    }
    Ok(())
}

fn shown(sources: &Sources) -> Value {
    let Sources { principal, delegation, delegates_any, prefixes } = sources;
    let prefixes: Vec<String> = prefixes.iter().map(ToString::to_string).collect();
    json!({
        "principal": principal.number(), "delegation": delegation.map(DelegationId::number), "prefixes": prefixes,
        "delegate_sources": if *delegates_any { "any" } else { "own" },
    })
}

/// Prints a list, in the form in which `cap revoke-list --from` reads it.
pub fn revoked(command: &Revoked) -> Outcome {
    let found = revocation::open(&command.file, &command.key.0)?;
    let RevocationList { sequence, issued, entries, sources, .. } =
        found.ok_or_else(|| Failure::new(format!("{} does not exist", command.file.display())))?;
    if command.json {
        let entries: Vec<String> = entries.into_iter().map(|entry| RevocationEntry(entry).to_string()).collect();
        let sources: Vec<Value> = sources.iter().map(shown).collect();
        print_json(json!({
            "file": command.file, "sequence": sequence, "issued": issued, "entries": entries, "sources": sources,
        }));
        return Ok(());
    }
    let mut text = format!("# sequence {sequence}\n# issued {}\n# entries {}\n", utc(issued), entries.len());
    for Sources { principal, delegation, delegates_any, prefixes } in &sources {
        let delegation = delegation.map_or_else(String::new, |id| format!("/{}", id.number()));
        let prefixes: String = prefixes.iter().map(|prefix| format!(" {prefix}")).collect();
        let any = if *delegates_any { " (delegations: any)" } else { "" };
        text.push_str(&format!("# sources {}{delegation}{prefixes}{any}\n", principal.number()));
    }
    entries.into_iter().for_each(|entry| text.extend([&RevocationEntry(entry).to_string(), "\n"]));
    print(&text);
    Ok(())
}

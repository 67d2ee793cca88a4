//! `realm roll-key`: the realm's key gives its place to another on a date.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use wayleave_control::realm::{
    KeyRoll, MAX_MEMBERSHIP, MAX_NOTICE, RealmKey, Registrar, RegistrarEvent, RegistrarInput,
};
use wayleave_crypto::sign::SigningKey;
use wayleave_runtime::clock::{unix_now, utc};

use super::realm::{Show, describe, hear, order, publish};
use crate::config::Source;
use crate::config::realm::RealmFile;
use crate::failure::{Failure, Outcome};
use crate::key_files::node::{self, KeyKind};
use crate::output::{objects, print, print_json, warn};

#[derive(Subcommand, Debug)]
pub enum RollKey {
    /// Make the next key, and have the present one sign from when it rules; all nodes learn it with lists.
    New(New),
    /// Print the realm's keys, and from when each one rules.
    Show(Show),
}

#[derive(Args, Debug)]
pub struct New {
    /// The file to write; `next_key` of `[realm]` names it.
    pub file: PathBuf,
    /// Days from now on which the next key rules; until then the present one does.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u64).range(1..=MAX_NOTICE / 86_400))]
    pub days: u64,
    /// Seconds in the place of days, for laboratories.
    #[arg(long, hide = true, conflicts_with = "days", value_parser = clap::value_parser!(u64).range(1..=MAX_NOTICE))]
    pub seconds: Option<u64>,
    /// The present key was stolen: it ends now, and every membership is signed anew.
    #[arg(long, conflicts_with_all = ["days", "seconds"])]
    pub stolen: bool,
    /// The operator's configuration.
    #[arg(long, short)]
    pub config: PathBuf,
    #[arg(long)]
    pub json: bool,
}

pub fn roll_key(command: &RollKey) -> Outcome {
    match command {
        RollKey::New(command) => new(command),
        RollKey::Show(command) => show(command),
    }
}

fn new(command: &New) -> Outcome {
    let source = Source::read(&command.config)?;
    let file = RealmFile::parse(&source)?;
    let (mut registrar, mut ledger) = file.registrar(&source)?;
    let now = unix_now().secs();
    if !registrar.has_realm_key(now) {
        return Err(Failure::new(
            "the realm's key is not here, or has rolled, and nobody else can say which one is next",
        )
        .help("name its file as `key` or `next_key` of [realm]")
        .into());
    }
    // Before a file is made that nobody needs.
    if let Some(waits) = registrar.rolls().iter().last().filter(|roll| roll.from > now) {
        let rolls = format!("the realm's key rolls on {} to realm:{}", utc(waits.from), waits.next);
        if !command.stolen {
            return Err(Failure::new(format!("{rolls} already, and one roll waits at a time")).into());
        }
        if !registrar.has_realm_key(waits.from) {
            let failure = Failure::new(format!("{rolls}, which is not here, and alone can say which one is next"));
            return Err(failure.help("name its file as `next_key` of [realm]").into());
        }
    }
    let servers = file.path_servers(&source, &registrar)?;
    for silent in hear(&mut registrar, &mut ledger, &servers)? {
        warn(&format!("path server {silent}: it learns of the roll later, from `wayleave run realm`"));
    }
    let seed = node::create(KeyKind::Realm, &command.file)?;
    let next = RealmKey(node::identity_of(&seed).0);
    let from = if command.stolen { now } else { now + command.seconds.unwrap_or(command.days * 86_400) };
    // What the present key signs until then may last this long.
    let until = if command.stolen { from } else { from + MAX_MEMBERSHIP };
    registrar.add_key(SigningKey::from_seed(&seed));
    let events = order(&mut registrar, &mut ledger, RegistrarInput::RollKey { next, from, until })?;
    let (mut roll, mut restored) = (None, Vec::new());
    for event in events {
        match event {
            RegistrarEvent::KeyRolled(made) => roll = Some(made),
            RegistrarEvent::Restored(nodes) => restored = nodes,
            _ => {}
        }
    }
    let restored: Vec<String> = restored.iter().map(|node| describe(&registrar, node)).collect();
    let KeyRoll { from, .. } = roll.ok_or_else(|| Failure::new("the realm's key was not rolled: a bug"))?;
    let list = registrar.revocations().ok_or_else(|| Failure::new("there is no list: a bug, please report it"))?;
    let (outcomes, text) = publish(list, &servers)?;
    if command.json {
        print_json(
            json!({ "key": format!("realm:{next}"), "from": from, "file": command.file, "servers": outcomes, "restored": restored }),
        );
        return Ok(());
    }
    let when = if command.stolen { "now" } else { "before that date" };
    print(&format!(
        "key    realm:{next}\nfrom   {}\n{text}next: next_key = \"{}\" into [realm] of {}, and restart `wayleave run realm` {when}\n",
        utc(from),
        named(&command.file, &command.config).display(),
        command.config.display()
    ));
    restored.iter().for_each(|node| print(&format!("a member again, since the stolen key alone removed it: {node}\n")));
    Ok(())
}

/// How a configuration names a file: as seen from its folder, if it lies there.
fn named(file: &Path, config: &Path) -> PathBuf {
    let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let (file, folder) = (whole(file), whole(config).parent().map(Path::to_owned).unwrap_or_default());
    file.strip_prefix(&folder).map(Path::to_owned).unwrap_or(file)
}

/// The keys to which the realm's rolled, for machines.
pub fn rows(registrar: &Registrar) -> Vec<Value> {
    let row = |roll: &KeyRoll| json!({ "key": format!("realm:{}", roll.next), "from": utc(roll.from), "before_until": utc(roll.until) });
    registrar.rolls().iter().map(row).collect()
}

fn show(command: &Show) -> Outcome {
    let source = Source::read(&command.config)?;
    let (registrar, _) = RealmFile::parse(&source)?.registrar(&source)?;
    let rolls = rows(&registrar);
    if command.json {
        print_json(json!({ "realm": format!("realm:{}", registrar.realm()), "key_rolls": rolls }));
        return Ok(());
    }
    print(&format!("realm  realm:{}\n", registrar.realm()));
    if !rolls.is_empty() {
        print(&objects(&rolls, &["key", "from", "before_until"]));
    }
    Ok(())
}

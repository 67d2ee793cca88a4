//! `realm list-key` and `realm list`: keys that sign lists of removed nodes in the realm's place, and lists that are signed on other machines.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use wayleave_control::frames::Body;
use wayleave_control::realm::{
    ListKey, ListSigner, MAX_LIST, MAX_LIST_KEY, RealmKey, Registrar, RegistrarEvent, RegistrarInput, RevocationList,
    Server,
};
use wayleave_core::IdentityKey;
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::Signed;
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::node_tls::NodeIdentity;

use super::realm::{Show, describe, find, hear, order, publish, write_new};
use crate::ask::ask;
use crate::config::parse::NodeKey;
use crate::config::realm::RealmFile;
use crate::config::{HostPort, Source};
use crate::failure::{Failure, Outcome};
use crate::key_files::node::{fresh, node_text};
use crate::key_files::realm_lists::{self, certificate, certificate_text, generate, list_text, read_list};
use crate::output::{objects, print, print_json, warn};

/// How long a path server is waited for that is asked for its list.
const ASKED: Duration = Duration::from_secs(5);

#[derive(Subcommand, Debug)]
pub enum ListKeys {
    /// Make a list key, where the realm's key is; or let one last longer that is there.
    New(New),
    /// Print the list keys, and what the realm's key signed of each.
    Show(Show),
    /// Revoke a list key: the realm's key signs the others anew, and a list that ends the revoked one everywhere.
    Revoke(Revoke),
    /// Put into a list key's file what the realm's key signed of it since.
    Renew(Renew),
}

#[derive(Args, Debug)]
pub struct New {
    /// The file to write; the machine that signs has it, and a copy of no other key.
    pub file: PathBuf,
    /// Days that the key lasts.
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=MAX_LIST_KEY / 86_400))]
    pub days: u64,
    /// The operator's configuration.
    #[arg(long, short)]
    pub config: PathBuf,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Revoke {
    /// The list key (`list:ed25519:...`), as `realm list-key show` prints it.
    pub key: String,
    /// A node (name or key) that this list key alone removed, and that is to be a member again (may be repeated).
    #[arg(long, value_name = "NODE")]
    pub restore: Vec<String>,
    /// All of them.
    #[arg(long, conflicts_with = "restore")]
    pub restore_all: bool,
    /// The operator's configuration.
    #[arg(long, short)]
    pub config: PathBuf,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Renew {
    /// The list key's file.
    pub file: PathBuf,
    /// The line `wayleave-list-key-v1....` that `realm list-key show` printed.
    pub certificate: String,
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand, Debug)]
pub enum Lists {
    /// Print the latest list of the operator's records as a line of text, for a machine that signs the next one.
    Export(Show),
    /// Sign the next list after another, with a list key and nothing else.
    Sign(Sign),
    /// Hand a list to path servers; with the operator's configuration to its records too.
    Publish(Publish),
}

#[derive(Args, Debug)]
pub struct Sign {
    /// The file of the latest list.
    #[arg(required_unless_present = "server")]
    pub list: Option<PathBuf>,
    /// A path server whose list the next one follows: KEY@ADDRESS as for `publish` (may be repeated).
    #[arg(long, value_name = "KEY@ADDRESS")]
    pub server: Vec<String>,
    /// The list key's file.
    #[arg(long)]
    pub key: PathBuf,
    /// For how long it is in force: a number with s, m, h or d behind it, such as 7d; at most 31d.
    #[arg(long, default_value = "1d", value_parser = period)]
    pub ahead: Duration,
    /// The key of a member to remove besides (may be repeated).
    #[arg(long, value_name = "KEY")]
    pub remove: Vec<NodeKey>,
    /// The file to write.
    #[arg(long, short)]
    pub out: PathBuf,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Publish {
    /// The file of the list.
    pub list: PathBuf,
    /// A path server: its key (`node:ed25519:...`), `@` and HOST:PORT (may be repeated).
    #[arg(long, value_name = "KEY@ADDRESS", required_unless_present = "config")]
    pub server: Vec<String>,
    /// The operator's configuration.
    #[arg(long, short)]
    pub config: Option<PathBuf>,
    #[arg(long)]
    pub json: bool,
}

/// A whole number of seconds, minutes, hours or days, up to what a list can say.
fn period(text: &str) -> Result<Duration, String> {
    let wrong = || "expected a number with s, m, h or d behind it, such as 7d, of at most 31d".to_owned();
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    let all = number.checked_mul(seconds).filter(|all| (1..=MAX_LIST).contains(all));
    all.map(Duration::from_secs).ok_or_else(wrong)
}

fn key_text(key: &[u8; 32]) -> String {
    format!("list:{}", IdentityKey(*key))
}

pub fn list_key(command: &ListKeys) -> Outcome {
    match command {
        ListKeys::New(command) => new(command),
        ListKeys::Show(command) => show(command),
        ListKeys::Revoke(command) => revoke(command),
        ListKeys::Renew(command) => renew(command),
    }
}

pub fn list(command: &Lists) -> Outcome {
    match command {
        Lists::Export(command) => export(command),
        Lists::Sign(command) => sign(command),
        Lists::Publish(command) => publish_list(command),
    }
}

fn new(command: &New) -> Outcome {
    let source = Source::read(&command.config)?;
    // The list key that the configuration names may be the one that is made.
    let (mut registrar, mut ledger) = RealmFile::parse(&source)?.registrar_with(&source, None)?;
    let secret = if command.file.exists() { realm_lists::load(&command.file)?.0 } else { generate()? };
    let key = SigningKey::from_seed(&secret).verifying_key().to_bytes();
    order(&mut registrar, &mut ledger, RegistrarInput::ListKey { key, lasts: command.days * 86_400 })?;
    let made = registrar.list_key(&key).ok_or_else(|| Failure::new("the list key was not signed: a bug"))?;
    realm_lists::save(&secret, made, &command.file)?;
    let until = made.object().not_after;
    if command.json {
        print_json(json!({ "file": command.file, "key": key_text(&key), "until": until }));
    } else {
        print(&format!(
            "file   {file}\nkey    {}\nuntil  {}\ninto   `list_key` of [realm] where `wayleave run realm` runs; or a machine of its own: wayleave realm list sign LIST --key {file} --out FILE\n",
            key_text(&key),
            utc(until),
            file = command.file.display(),
        ));
    }
    Ok(())
}

/// The list keys for machines, with what the realm's key signed of each.
fn rows(registrar: &Registrar) -> Vec<Value> {
    let now = unix_now().secs();
    let state = |key: &ListKey| match () {
        () if registrar.is_revoked_key(&key.key) => "revoked",
        () if key.not_after < now => "ended",
        () => "good",
    };
    let row = |key: &ListKey| {
        json!({
            "key": key_text(&key.key),
            "state": state(key),
            "until": utc(key.not_after),
            "generation": key.generation,
            "certificate": registrar.list_key(&key.key).map(certificate_text),
        })
    };
    registrar.list_keys().map(row).collect()
}

fn show(command: &Show) -> Outcome {
    let source = Source::read(&command.config)?;
    let (registrar, _) = RealmFile::parse(&source)?.registrar(&source)?;
    let keys = rows(&registrar);
    if command.json {
        print_json(json!({ "generation": registrar.generation(), "list_keys": keys }));
    } else if keys.is_empty() {
        print("no list keys: `wayleave realm list-key new FILE` makes one; the realm's key signs lists\n");
    } else {
        print(&objects(&keys, &["key", "state", "until", "certificate"]));
    }
    Ok(())
}

fn revoke(command: &Revoke) -> Outcome {
    let source = Source::read(&command.config)?;
    let file = RealmFile::parse(&source)?;
    let (mut registrar, mut ledger) = file.registrar(&source)?;
    let found = registrar.list_keys().find(|key| key_text(&key.key) == command.key).map(|key| key.key);
    let key = found.ok_or_else(|| {
        Failure::usage(format!("`{}` is no list key of this realm", command.key))
            .help("`wayleave realm list-key show` lists them")
    })?;
    let servers = file.path_servers(&source, &registrar)?;
    // What the next generation leaves out is in force nowhere any more: first it has to be known here.
    for silent in hear(&mut registrar, &mut ledger, &servers)? {
        warn(&format!(
            "path server {silent}: whom it alone knows as removed may be a member again once it has the next list"
        ));
    }
    let mut by_key = registrar.removed_by(&key);
    let all = by_key.len();
    // Whoever is no member by the records is on the next list no more.
    by_key.retain(|node| registrar.members().any(|member| member.identity == *node));
    let invented = all - by_key.len();
    let named = |text: &String| {
        find(&registrar, text).or_else(|failures| {
            let of_name = by_key.iter().find(|node| describe(&registrar, node).ends_with(&format!("({text})")));
            of_name.copied().ok_or(failures)
        })
    };
    let restored = match command.restore_all {
        true => by_key.clone(),
        false => command.restore.iter().map(named).collect::<Outcome<Vec<IdentityKey>>>()?,
    };
    let kept: Vec<String> =
        by_key.iter().filter(|node| !restored.contains(node)).map(|node| describe(&registrar, node)).collect();
    let events = order(&mut registrar, &mut ledger, RegistrarInput::RevokeListKey { key, restored: restored.clone() })?;
    let lists = events.into_iter().filter_map(|event| match event {
        RegistrarEvent::Revoked(list) => Some(list),
        _ => None,
    });
    let list = lists.max_by_key(|list| list.object().order());
    let list = list.ok_or_else(|| Failure::new("the list key was not revoked: a bug, please report it"))?;
    let (outcomes, text) = publish(&list, &servers)?;
    let keys = rows(&registrar);
    if command.json {
        let generation = registrar.generation();
        let restored: Vec<String> = restored.iter().map(|node| describe(&registrar, node)).collect();
        print_json(
            json!({ "generation": generation, "servers": outcomes, "list_keys": keys, "restored": restored, "still_removed": kept, "left_out": invented }),
        );
        return Ok(());
    }
    print(&format!("revoked {}\n{text}", command.key));
    restored.iter().for_each(|node| print(&format!("a member again: {}\n", describe(&registrar, node))));
    kept.iter().for_each(|node| print(&format!("removed by this key alone, and still removed: {node}\n")));
    if invented > 0 {
        print(&format!(
            "removed by this key alone, no members by the records, and on lists no more: {invented} nodes\n"
        ));
    }
    for other in keys.iter().filter(|row| row["state"] == "good") {
        let line = other["certificate"].as_str().unwrap_or_default();
        print(&format!("on the machine of {}: wayleave realm list-key renew FILE {line}\n", other["key"]));
    }
    Ok(())
}

fn renew(command: &Renew) -> Outcome {
    let (secret, before) = realm_lists::load(&command.file)?;
    let later = certificate(&command.certificate);
    let later = later.ok_or_else(|| Failure::usage("the line is not what `wayleave realm list-key show` prints"))?;
    let of_key = ListSigner::of_list_key(SigningKey::from_seed(&secret), later.clone());
    if of_key.is_none_or(|signer| signer.realm() != before.realm()) {
        return Err(Failure::new("the line is of another list key or realm").into());
    }
    realm_lists::save(&secret, &later, &command.file)?;
    let until = later.object().not_after;
    if command.json {
        print_json(json!({ "file": command.file, "until": until }));
    } else {
        print(&format!("{} lasts until {}\n", command.file.display(), utc(until)));
    }
    Ok(())
}

fn export(command: &Show) -> Outcome {
    let source = Source::read(&command.config)?;
    let (mut registrar, mut ledger) = RealmFile::parse(&source)?.registrar(&source)?;
    let now = unix_now().secs();
    if registrar.revocations().is_none_or(|list| list.object().is_ahead(now)) {
        // A realm that removed nobody has no list in its records; and one that a clock ahead of the time made is taken by nobody.
        order(&mut registrar, &mut ledger, RegistrarInput::NewList)?;
    }
    let list = registrar.revocations().ok_or_else(|| Failure::new("there is no list: a bug, please report it"))?;
    if command.json {
        let (object, line) = (list.object(), list_text(list));
        print_json(
            json!({ "number": object.number, "next": object.next, "removed": object.revoked.len(), "list": line }),
        );
    } else {
        print(&format!("{}\n", list_text(list)));
    }
    Ok(())
}

/// The latest list of those that path servers have and a file: it says more than any before it, as servers refuse others. One that does not count
/// is none.
fn latest(command: &Sign, realm: &RealmKey) -> Outcome<Signed<RevocationList>> {
    let mut lists: Vec<Signed<RevocationList>> =
        command.list.iter().map(|file| read_list(file)).collect::<Result<_, Failure>>()?;
    let own = NodeIdentity::from_seed(&*fresh::<32>()?)?;
    for text in &command.server {
        let server = server(text)?;
        match ask(&server, &own, Body::FindRevocations, ASKED) {
            Ok(Body::Revocations(Some(list))) => lists.push(list),
            Ok(Body::Revocations(None)) => warn(&format!("path server {text} has no list")),
            Ok(_) => warn(&format!("path server {text} is not asked: an answer of another kind")),
            Err(failures) => {
                let why = failures.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                warn(&format!("path server {text} is not asked: {why}"));
            }
        }
    }
    let now = unix_now().secs();
    let counts = |list: &Signed<RevocationList>| {
        let object = list.object();
        object.realm == *realm
            && RevocationList::verify(list, realm).is_ok()
            && object.check_key(&object.rolls, now).is_ok()
            && !object.is_ahead(now)
    };
    // A file alone is taken as it is: whatever is wrong with it is said when it is signed after.
    let is_alone = command.server.is_empty();
    let lists = lists.into_iter().filter(|list| is_alone || counts(list));
    // A list with more rolls of the realm's key is after one with fewer, of whatever number.
    let latest = lists.max_by_key(|list| (list.object().rolls.len(), list.object().order()));
    latest.ok_or_else(|| {
        let failure = Failure::new("no list to follow: none of the path servers has one that counts");
        failure.help("name the file of the last list, as `wayleave realm list export` printed it").into()
    })
}

fn sign(command: &Sign) -> Outcome {
    let (_, signer) = realm_lists::load(&command.key)?;
    let before = latest(command, &signer.realm())?;
    let more: Vec<IdentityKey> = command.remove.iter().map(NodeKey::identity).collect();
    let known = match &signer {
        ListSigner::ListKey(_, certificate) => certificate.object().base.rolls.len(),
        ListSigner::Realm(_) => 0,
    };
    for roll in before.object().rolls.iter().skip(known) {
        warn(&format!(
            "the list rolls the realm's key to realm:{} on {}: the next one does so too; if the realm's operator did not order that, publish it nowhere",
            roll.next,
            utc(roll.from)
        ));
    }
    for node in more.iter().filter(|node| before.object().has(node)) {
        warn(&format!(
            "{} is on the list already: if its owner changed its keys since, the new ones go on; remove these, which `wayleave realm show` names",
            node_text(node)
        ));
    }
    let list = signer.sign_again(&before, &more, command.ahead.as_secs(), unix_now());
    let list = list.map_err(|error| Failure::new(error.to_string()))?;
    write_new(&command.out, &format!("{}\n", list_text(&list)), 0o644)?;
    let object = list.object();
    if command.json {
        print_json(
            json!({ "file": command.out, "number": object.number, "next": object.next, "removed": object.revoked.len() }),
        );
    } else {
        let (out, removed, until) = (command.out.display(), object.revoked.len(), utc(object.next));
        print(&format!(
            "list of {removed} removed nodes, in force until {until}\nnext: wayleave realm list publish {out} --server KEY@ADDRESS\n"
        ));
    }
    Ok(())
}

fn server(text: &str) -> Outcome<Server> {
    let wrong = || Failure::usage(format!("`{text}` is not a path server: node:ed25519:KEY@HOST:PORT"));
    let (key, address) = text.split_once('@').ok_or_else(wrong)?;
    let (key, address): (NodeKey, HostPort) =
        (key.parse().map_err(|_| wrong())?, address.parse().map_err(|_| wrong())?);
    Ok(Server { identity: key.identity(), address: address.0 })
}

fn publish_list(command: &Publish) -> Outcome {
    let list = read_list(&command.list)?;
    let mut servers: Vec<Server> = command.server.iter().map(|text| server(text)).collect::<Outcome<_>>()?;
    let mut latest = list.clone();
    if let Some(config) = &command.config {
        (latest, servers) = take(config, list, servers)?;
    }
    let (outcomes, text) = publish(&latest, &servers)?;
    let is_refused = outcomes.iter().any(|outcome| !outcome["error"].is_null());
    if command.json {
        print_json(json!({ "number": latest.object().number, "servers": outcomes }));
    } else {
        print(&text);
    }
    if is_refused { Err(Failure::new("not every path server has the list").into()) } else { Ok(()) }
}

/// Takes a list into the operator's records. If more were removed there since, a list with all of them goes out in its place.
fn take(
    config: &Path,
    list: Signed<RevocationList>,
    mut servers: Vec<Server>,
) -> Outcome<(Signed<RevocationList>, Vec<Server>)> {
    let source = Source::read(config)?;
    let file = RealmFile::parse(&source)?;
    let (mut registrar, mut ledger) = file.registrar(&source)?;
    servers.extend(file.path_servers(&source, &registrar)?);
    order(&mut registrar, &mut ledger, RegistrarInput::List(Box::new(list.clone())))?;
    Ok((registrar.revocations().cloned().unwrap_or(list), servers))
}

//! `realm`: what a realm's operator does.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};
use wayleave_control::frames::Body;
use wayleave_control::realm::{
    Grants, Invitee, MAX_MEMBERSHIP, MAX_SERVERS, Membership, Name, Registrar, RegistrarEvent, RegistrarInput,
    RegistrarOutput, RevocationList, Roles, Server, Token,
};
use wayleave_core::{IdentityKey, Machine, Now, Prefix};
use wayleave_crypto::secret::Seed;
use wayleave_crypto::signed::Signed;
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::node_tls::NodeIdentity;

use super::realm_keys::{self, RollKey};
use super::realm_lists::{self, ListKeys, Lists};
use crate::ask::ask;
use crate::config::gateway::NAMES_V4;
use crate::config::kinds::TextKind;
use crate::config::parse::{NodeKey, endpoint};
use crate::config::realm::{RealmFile, file_in, template_with};
use crate::config::{HostPort, Source};
use crate::failure::{Failure, Outcome};
use crate::key_files::ledger::Ledger;
use crate::key_files::node::{self, KeyKind, fresh, node_text};
use crate::output::{objects, print, print_json, warn};
use crate::roles::role_names;

/// How long a path server is waited for that is to learn of a removed node; the operator's process tells it later otherwise.
const TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Subcommand, Debug)]
pub enum Realm {
    /// Begin a realm: its key, the operator's records and configuration, in a new folder.
    Init(Init),
    /// Invite a node to the overlay: prints a token with which it joins, once.
    Invite(Invite),
    /// Give a member a new membership of so many days; it fetches it in time, or at once by joining with its token again.
    Renew(Renew),
    /// Remove a member, and tell the path servers; or withdraw a token that nobody used.
    Revoke(Revoke),
    /// Remove a member whose key is lost or was stolen, and invite its owner again with the same names, prefixes and role: prints a token.
    Replace(Replace),
    /// Print the realm's key and its members.
    Show(Show),
    /// Make, show and revoke the keys that sign lists of removed nodes, so that the realm's key may stay off line.
    #[command(subcommand)]
    ListKey(ListKeys),
    /// Sign a list of removed nodes on another machine, and publish it.
    #[command(subcommand)]
    List(Lists),
    /// Give the realm another key from a date on; nobody joins anew.
    #[command(subcommand)]
    RollKey(RollKey),
}

#[derive(Args, Debug)]
pub struct Init {
    /// The folder to create.
    pub folder: PathBuf,
    /// Where `wayleave run realm` will answer nodes that join.
    #[arg(long, default_value = "127.0.0.1:7000", value_parser = endpoint)]
    pub listen: SocketAddr,
    /// The same as nodes reach it. Default: the address where it listens.
    #[arg(long)]
    pub address: Option<HostPort>,
    /// Its status pages.
    #[arg(long, default_value = "127.0.0.1:8489", value_parser = endpoint)]
    pub status: SocketAddr,
    #[arg(long)]
    pub json: bool,
}

/// What a node will be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum NodeRole {
    /// Passes others' packets on.
    Router,
    /// Carries applications' packets.
    Gateway,
    /// Answers with paths.
    Path,
    /// Answers with consents.
    Consent,
}

impl NodeRole {
    fn roles(self) -> Roles {
        match self {
            Self::Router => Roles::FORWARDER,
            Self::Gateway => Roles::GATEWAY,
            Self::Path => Roles::PATH_SERVER,
            Self::Consent => Roles::CONSENT_SERVER,
        }
    }
}

#[derive(Args, Debug)]
pub struct Invite {
    /// The node's name: a label of DNS.
    pub name: String,
    /// What the node will be.
    #[arg(long, value_enum)]
    pub role: NodeRole,
    /// An inner prefix that the node may source and receive (may be repeated).
    #[arg(long)]
    pub prefix: Vec<Prefix>,
    /// Where a path server will be reached; later invitations name it.
    #[arg(long)]
    pub address: Option<HostPort>,
    /// Days that the membership lasts.
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u64).range(1..=MAX_MEMBERSHIP / 86_400))]
    pub days: u64,
    /// Seconds in the place of days, for laboratories.
    #[arg(long, hide = true, conflicts_with = "days", value_parser = clap::value_parser!(u64).range(1..=MAX_MEMBERSHIP))]
    pub seconds: Option<u64>,
    /// Hours within which the token can be used.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..=8_760))]
    pub hours: u64,
    /// The operator's configuration.
    #[arg(long, short)]
    pub config: PathBuf,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Renew {
    /// The member's name or key.
    pub member: String,
    /// Days that the new membership lasts.
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u64).range(1..=MAX_MEMBERSHIP / 86_400))]
    pub days: u64,
    /// The operator's configuration.
    #[arg(long, short)]
    pub config: PathBuf,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Revoke {
    /// The member's name or key, or a token.
    pub member: String,
    /// The operator's configuration.
    #[arg(long, short)]
    pub config: PathBuf,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Replace {
    /// The member's name or key.
    pub member: String,
    /// Days that the new membership lasts.
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u64).range(1..=MAX_MEMBERSHIP / 86_400))]
    pub days: u64,
    /// Hours within which the token can be used.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..=8_760))]
    pub hours: u64,
    /// The operator's configuration.
    #[arg(long, short)]
    pub config: PathBuf,
    #[arg(long)]
    pub json: bool,
}

/// What prints something of the operator's records.
#[derive(Args, Debug)]
pub struct Show {
    /// The operator's configuration.
    #[arg(long, short)]
    pub config: PathBuf,
    #[arg(long)]
    pub json: bool,
}

pub fn run(command: &Realm) -> Outcome {
    match command {
        Realm::Init(command) => init(command),
        Realm::Invite(command) => invite(command),
        Realm::Renew(command) => renew(command),
        Realm::Revoke(command) => revoke(command),
        Realm::Replace(command) => replace(command),
        Realm::Show(command) => show(command),
        Realm::ListKey(command) => realm_lists::list_key(command),
        Realm::List(command) => realm_lists::list(command),
        Realm::RollKey(command) => realm_keys::roll_key(command),
    }
}

/// Writes a new file of text.
pub fn write_new(path: &Path, text: &str, mode: u32) -> Outcome {
    let made = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let written = made.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
    Ok(written.map_err(|error| Failure::system(path.display(), &error))?)
}

fn init(command: &Init) -> Outcome {
    let folder = &command.folder;
    fs::create_dir_all(folder).map_err(|error| Failure::system(folder.display(), &error))?;
    let file = file_in(folder);
    if file.exists() {
        return Err(Failure::new(format!("{} exists already: there is a realm in this folder", file.display()))
            .help("choose another folder; `wayleave realm roll-key new` gives a realm another key")
            .into());
    }
    let address = match &command.address {
        Some(address) => address.0.clone(),
        None if command.listen.ip().is_unspecified() => {
            return Err(Failure::usage(format!("{} is no address that nodes can reach", command.listen))
                .help("add --address HOST:PORT")
                .into());
        }
        None => command.listen.to_string(),
    };
    let realm = node::create(KeyKind::Realm, &folder.join("realm.key"))?;
    node::create(KeyKind::Identity, &folder.join("identity.key"))?;
    Ledger::create(&folder.join("records"))?;
    let text = template_with(&command.listen.to_string(), &address, &command.status.to_string());
    write_new(&file, &text, 0o644)?;
    let key = format!("realm:{}", node::identity_of(&realm));
    if command.json {
        print_json(json!({ "realm": key, "configuration": file }));
    } else {
        print(&format!(
            "realm          {key}\nconfiguration  {}\nnext: wayleave run realm --config {}\n",
            file.display(),
            file.display()
        ));
    }
    Ok(())
}

fn invite(command: &Invite) -> Outcome {
    let source = Source::read(&command.config)?;
    let file = RealmFile::parse(&source)?;
    let (registrar, _) = file.registrar(&source)?;
    let name = Name::from_str(&command.name).map_err(|error| Failure::usage(error.to_string()))?;
    let mut servers = vec![file.own_server(&source)?];
    servers.extend(file.path_servers(&source, &registrar)?.into_iter().take(wayleave_control::realm::MAX_SERVERS - 1));
    match (command.role, &command.address) {
        (NodeRole::Path, None) => {
            return Err(Failure::usage("no address of the path server, which later invitations must name")
                .help("add --address HOST:PORT, where nodes will reach it")
                .into());
        }
        (NodeRole::Path, Some(_)) => {}
        (_, Some(_)) => return Err(Failure::usage("--address belongs to --role path").into()),
        (_, None) if servers.len() == 1 => {
            return Err(Failure::new("the realm has no path server yet, and this node needs one")
                .help("first: wayleave realm invite NAME --role path --address HOST:PORT, and let that server join")
                .into());
        }
        (_, None) => {}
    }
    let now = unix_now();
    let invitee = Invitee {
        grants: Grants { roles: command.role.roles(), names: vec![name], prefixes: command.prefix.clone() },
        not_after: now.secs() + command.hours * 3_600,
        membership: command.seconds.unwrap_or(command.days * 86_400),
        servers,
    };
    let token = registrar
        .invite(invitee, Seed::new(*fresh()?), now)
        .map_err(|error| Failure::new(error.to_string()).help("`wayleave realm show` lists who has what"))?;
    if let Some(address) = &command.address {
        file.add_address(&source, &command.name, &address.0)?;
    }
    overlaps(&registrar, &command.prefix, now.secs()).iter().for_each(|overlap| warn(overlap));
    let text = token.expose();
    if command.json {
        print_json(json!({ "name": command.name, "token": text, "until": token.invitation().not_after }));
    } else {
        print(&format!("{text}\n"));
    }
    Ok(())
}

/// What a prefix inside another's, or around it, means: each address belongs to the holder of the longest prefix around it.
fn overlaps(registrar: &Registrar, prefixes: &[Prefix], now: u64) -> Vec<String> {
    let is_live = |member: &&Membership| {
        let is_revoked = registrar.revocations().is_some_and(|list| list.object().has(&member.identity));
        member.not_after >= now && !is_revoked
    };
    let (block, length) = NAMES_V4;
    let of_names = Prefix::new(block.into(), length).into_iter();
    let is_of_names = |prefix: &&Prefix| of_names.clone().any(|names| names.contains(prefix));
    let dead =
        |prefix: &Prefix| format!("{prefix} lies where gateways have the addresses of names: nothing in it is reached");
    let mut found: Vec<String> = prefixes.iter().filter(is_of_names).map(dead).collect();
    for member in registrar.members().filter(is_live) {
        let name = member.grants.names.first().map_or_else(|| member.identity.to_string(), ToString::to_string);
        for (other, prefix) in
            member.grants.prefixes.iter().flat_map(|other| prefixes.iter().map(move |own| (other, own)))
        {
            if other.contains(prefix) {
                found.push(format!("{prefix} lies in {other} of {name}, which loses these addresses to the new node"));
            } else if prefix.contains(other) {
                found.push(format!("{other} of {name} lies in {prefix}: these addresses stay with {name}"));
            }
        }
    }
    found
}

/// Carries an order out, and makes it durable.
pub fn order(registrar: &mut Registrar, ledger: &mut Ledger, input: RegistrarInput) -> Outcome<Vec<RegistrarEvent>> {
    // Nobody else's order comes in between: of two at once the later one knows of the other.
    let before = ledger.hold()?;
    registrar.handle(RegistrarInput::Records(before), Now { instant: wayleave_core::Instant(0), unix: unix_now() });
    let events = carry_out(registrar, ledger, input);
    ledger.release();
    events
}

fn carry_out(registrar: &mut Registrar, ledger: &mut Ledger, input: RegistrarInput) -> Outcome<Vec<RegistrarEvent>> {
    let now = Now { instant: wayleave_core::Instant(0), unix: unix_now() };
    let mut events = Vec::new();
    registrar.handle(input, now);
    while let Some(output) = registrar.poll() {
        match output {
            RegistrarOutput::Persist { id, records } => {
                // What another process removed meanwhile is on the list too, before anybody has it.
                let others = ledger.append(&records)?;
                registrar.handle(RegistrarInput::Records(others), now);
                registrar.handle(RegistrarInput::Persisted(id), now);
            }
            RegistrarOutput::Event(RegistrarEvent::Failed(why)) => return Err(Failure::new(why).into()),
            RegistrarOutput::Event(event) => events.push(event),
            RegistrarOutput::Reply { .. } | RegistrarOutput::Invited { .. } => {}
        }
    }
    Ok(events)
}

/// The member with this name or key.
pub fn find(registrar: &Registrar, text: &str) -> Outcome<IdentityKey> {
    if TextKind::of(text).is_some() {
        let identity = NodeKey::from_str(text).map_err(Failure::usage)?.identity();
        if registrar.members().any(|member| member.identity == identity) {
            return Ok(identity);
        }
    }
    let has = |member: &&Membership| member.grants.names.iter().any(|name| name.as_str() == text);
    let found: Vec<&Membership> =
        registrar.members().filter(has).filter(|member| !registrar.is_revoked(&member.identity)).collect();
    // A name goes to another node once its holder's membership has ended: the latest has it.
    let latest = found.iter().max_by_key(|member| member.not_after);
    let failure = || {
        match registrar.members().any(|member| has(&member)) {
        true => Failure::new(format!("`{text}` is removed already: no member is called so now"))
            .help(format!(
                "its owner comes back with new keys: `wayleave realm invite {text} --role ROLE ...`, and `wayleave join` into an empty \
                 folder; `wayleave realm show` lists it as removed"
            )),
        false => Failure::new(format!("no member `{text}`")).help("`wayleave realm show` lists the members"),
    }
    };
    Ok(latest.map(|member| member.identity).ok_or_else(failure)?)
}

fn renew(command: &Renew) -> Outcome {
    let source = Source::read(&command.config)?;
    let (mut registrar, mut ledger) = RealmFile::parse(&source)?.registrar(&source)?;
    let identity = find(&registrar, &command.member)?;
    let events = order(&mut registrar, &mut ledger, RegistrarInput::Renew(identity, command.days * 86_400))?;
    let Some(RegistrarEvent::Renewed(membership)) = events.into_iter().next() else {
        return Err(Failure::new("the membership was not renewed: a bug, please report it").into());
    };
    let until = membership.object().not_after;
    if command.json {
        print_json(json!({ "identity": identity.to_string(), "until": until }));
    } else {
        print(&format!(
            "renewed {identity} until {}\nthe node fetches it by itself once half of its present one is over; at once: wayleave join TOKEN --dir FOLDER there, with its token of before, and a restart\n",
            utc(until)
        ));
    }
    Ok(())
}

fn revoke(command: &Revoke) -> Outcome {
    let source = Source::read(&command.config)?;
    let file = RealmFile::parse(&source)?;
    let (mut registrar, mut ledger) = file.registrar(&source)?;
    if command.member.starts_with("wayleave-join-") {
        let token = Token::from_str(&command.member).map_err(|error| Failure::usage(error.to_string()))?;
        if token.invitation().realm != registrar.realm() {
            return Err(Failure::new("the token is of another realm").into());
        }
        order(&mut registrar, &mut ledger, RegistrarInput::Withdraw(token.invitation().key))?;
        if command.json {
            print_json(json!({ "withdrawn": true }));
        } else {
            print("the token is withdrawn: nobody can join with it\n");
        }
        return Ok(());
    }
    let identity = find(&registrar, &command.member)?;
    let mut removed = registrar.successors(&identity);
    // Whoever is removed already, by another's list or its own change of keys, is removed by the operator from now on.
    if !removed.iter().all(|node| registrar.is_revoked(node)) {
        removed.retain(|node| !registrar.is_revoked(node));
    }
    // Path servers are those before: if one is removed, it learns it too.
    let servers = file.path_servers(&source, &registrar)?;
    let list = remove(&mut registrar, &mut ledger, identity)?;
    let (outcomes, text) = publish(&list, &servers)?;
    if command.json {
        let removed: Vec<String> = removed.iter().map(ToString::to_string).collect();
        print_json(
            json!({ "identity": identity.to_string(), "removed": removed, "number": list.object().number, "servers": outcomes }),
        );
    } else {
        let (number, count) = (list.object().number, list.object().revoked.len());
        let removed: Vec<String> = removed.iter().map(|node| describe(&registrar, node)).collect();
        let removed = removed.join(", and what took its place by its keys: ");
        print(&format!("removed {removed}, list {number} of {count} nodes\n{text}"));
    }
    Ok(())
}

/// A node's key, with its name if it was a member.
pub fn describe(registrar: &Registrar, node: &IdentityKey) -> String {
    let name =
        registrar.members().find(|member| member.identity == *node).and_then(|member| member.grants.names.first());
    name.map_or_else(|| node.to_string(), |name| format!("{node} ({name})"))
}

/// Removes a member; returns the list that says so.
fn remove(registrar: &mut Registrar, ledger: &mut Ledger, identity: IdentityKey) -> Outcome<Signed<RevocationList>> {
    let events = order(registrar, ledger, RegistrarInput::Revoke(identity))?;
    let lists = events.into_iter().filter_map(|event| match event {
        RegistrarEvent::Revoked(list) => Some(list),
        _ => None,
    });
    let last = lists.max_by_key(|list| list.object().order());
    last.ok_or_else(|| Failure::new("the node was not removed: a bug, please report it").into())
}

/// Takes over what path servers have: who was removed by a list that was signed elsewhere is removed here too. Returns which could not be asked.
pub fn hear(registrar: &mut Registrar, ledger: &mut Ledger, servers: &[Server]) -> Outcome<Vec<String>> {
    let own = NodeIdentity::from_seed(&*fresh::<32>()?)?;
    let mut silent = Vec::new();
    for server in servers {
        match ask(server, &own, Body::FindRevocations, TIMEOUT) {
            Ok(Body::Revocations(Some(list))) => {
                let events = order(registrar, ledger, RegistrarInput::Heard(Box::new(list)))?;
                events
                    .iter()
                    .filter_map(heard)
                    .for_each(|text| warn(&format!("path server {}: {text}", server.identity)));
            }
            Ok(Body::Revocations(None)) => {}
            Ok(_) => silent.push(format!("{} at {}: an answer of another kind", server.identity, server.address)),
            Err(failures) => {
                let why = failures.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                silent.push(format!("{} at {}: {why}", server.identity, server.address));
            }
        }
    }
    Ok(silent)
}

/// What an operator reads of a list that a path server has.
fn heard(event: &RegistrarEvent) -> Option<String> {
    match event {
        RegistrarEvent::Ahead { seconds } => Some(format!(
            "its list is {seconds} s ahead of this machine's clock and is not taken: set the clock of this machine, or of the one that signed it"
        )),
        RegistrarEvent::RolledElsewhere(roll) => Some(format!(
            "its list rolls the realm's key to realm:{}, which is not here: it is not followed; if nobody ordered it, the realm's key was stolen",
            roll.next
        )),
        RegistrarEvent::Invented { left, .. } => Some(format!(
            "its list removes {left} nodes more that never were members by the records: they are not taken, its key was stolen"
        )),
        _ => None,
    }
}

/// Tells path servers of a list; returns what became of it at each, for machines and for people.
pub fn publish(list: &Signed<RevocationList>, servers: &[Server]) -> Outcome<(Vec<Value>, String)> {
    // Anybody may hand the list in: the realm signed it. A key of this moment serves.
    let own = NodeIdentity::from_seed(&*fresh::<32>()?)?;
    let mut outcomes: Vec<Value> = Vec::new();
    let mut text = String::new();
    for server in servers {
        let outcome = match ask(server, &own, Body::SubmitRevocations(list.clone()), TIMEOUT) {
            Ok(Body::Registered { .. }) => Ok(()),
            Ok(Body::Refused(refusal)) => Err(refusal.to_string()),
            Ok(_) => Err("an answer of another kind".to_owned()),
            Err(failures) => Err(failures.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")),
        };
        text += &match &outcome {
            Ok(()) => format!("path server {} at {} has it\n", server.identity, server.address),
            Err(why) => format!(
                "path server {} at {} does not have it: {why}; `wayleave run realm` tells it as soon as it can be reached\n",
                server.identity, server.address
            ),
        };
        outcomes
            .push(json!({ "server": server.identity.to_string(), "address": server.address, "error": outcome.err() }));
    }
    Ok((outcomes, text))
}

/// Removes a member and invites its owner anew: nobody else has the names and prefixes in between, and the holder of the old key gets nothing.
fn replace(command: &Replace) -> Outcome {
    let source = Source::read(&command.config)?;
    let file = RealmFile::parse(&source)?;
    let (mut registrar, mut ledger) = file.registrar(&source)?;
    let identity = find(&registrar, &command.member)?;
    let member = registrar.members().find(|member| member.identity == identity).cloned();
    let member = member.ok_or_else(|| Failure::new(format!("no member `{}`", command.member)))?;
    let servers = file.path_servers(&source, &registrar)?;
    let mut named = vec![file.own_server(&source)?];
    let others = servers.iter().filter(|server| server.identity != identity);
    named.extend(others.take(MAX_SERVERS - 1).cloned());
    let now = unix_now();
    let invitee = Invitee {
        grants: member.grants,
        not_after: now.secs() + command.hours * 3_600,
        membership: command.days * 86_400,
        servers: named,
    };
    // Whether it can be invited shows before it is removed.
    let successor = registrar.successors(&identity).last().copied();
    let token = registrar.invite_instead_of(successor, invitee, Seed::new(*fresh()?), now).map_err(|error| {
        Failure::new(format!("the node cannot be invited, and is not removed: {error}"))
            .help("`wayleave realm revoke` removes it at once; `wayleave realm invite` invites it with what is free")
    })?;
    let list = remove(&mut registrar, &mut ledger, identity)?;
    let (outcomes, text) = publish(&list, &servers)?;
    let line = token.expose();
    if command.json {
        let until = token.invitation().not_after;
        print_json(json!({ "identity": identity.to_string(), "servers": outcomes, "token": line, "until": until }));
    } else {
        print(&format!(
            "removed {identity}\n{text}its owner joins with new keys, in an empty folder, by this token:\n{line}\n"
        ));
    }
    Ok(())
}

fn show(command: &Show) -> Outcome {
    let source = Source::read(&command.config)?;
    let file = RealmFile::parse(&source)?;
    let (registrar, _) = file.registrar(&source)?;
    let own = file.own_server(&source)?;
    let now = unix_now().secs();
    let state = |member: &Membership| match () {
        () if registrar.is_revoked(&member.identity) => "removed",
        () if member.not_after < now => "expired",
        () => "member",
    };
    let addresses = file.addresses(&source)?;
    let row = |member: &Membership| {
        let names: Vec<&str> = member.grants.names.iter().map(Name::as_str).collect();
        let prefixes: Vec<String> = member.grants.prefixes.iter().map(ToString::to_string).collect();
        let address = addresses.iter().find(|known| names.contains(&known.name.as_str())).map(|known| &known.address);
        json!({
            "name": names.join(" "),
            "role": role_names(member.grants.roles).join(" "),
            "state": state(member),
            "prefixes": prefixes,
            "address": address,
            "until": utc(member.not_after),
            "identity": node_text(&member.identity),
            "next": registrar.successors(&member.identity).get(1).map(node_text),
        })
    };
    let members: Vec<Value> = registrar.members().map(row).collect();
    let number = registrar.revocations().map(|list| list.object().number);
    if command.json {
        print_json(json!({
            "realm": format!("realm:{}", registrar.realm()),
            "operator": { "identity": node_text(&own.identity), "address": own.address },
            "revocations": number,
            "key_rolls": realm_keys::rows(&registrar),
            "members": members,
        }));
        return Ok(());
    }
    print(&format!(
        "realm     realm:{}\noperator  {} at {}\n",
        registrar.realm(),
        node_text(&own.identity),
        own.address
    ));
    for roll in realm_keys::rows(&registrar) {
        print(&format!(
            "key       {} from {}\n",
            roll["key"].as_str().unwrap_or_default(),
            roll["from"].as_str().unwrap_or_default()
        ));
    }
    if !members.is_empty() {
        let mut columns = vec!["name", "role", "state", "prefixes", "address", "until", "identity"];
        // Who has rolled its keys is removed, and has another identity since.
        if members.iter().any(|member| !member["next"].is_null()) {
            columns.push("next");
        }
        print(&format!("\n{}", objects(&members, &columns)));
    }
    Ok(())
}

//! `cap`: capabilities that people hold. The provider grants, lists and revokes; a holder delegates, revokes and looks secrets up.

use std::fs;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use wayleave_control::capability::{
    Acknowledgement, BillingSubject, ChangeBody, ChangeError, Credential, DelegationLimit, Grant, KeyServer, Obtained,
    Order, OrderedPrefixes, Ordering, ProviderKey, RateTerms, State, Status, Terms, VolumeQuota, Zone, delegated,
};
use wayleave_core::Prefix;
use wayleave_crypto::secret::Seed;
use wayleave_packet::platypus::header::{Capability, DelegationId};
use wayleave_packet::platypus::mint::epoch;
use wayleave_packet::platypus::revocation::Revocation;
use wayleave_runtime::clock::{unix_now, unix_of_time, utc};
use wayleave_runtime::identity::{DEFAULT_VALIDITY, Identity};
use wayleave_store::{Location, Position};
use zeroize::Zeroizing;

use super::cap_accept::{self, Accept};
use super::cap_account::{self, AccountOf};
use super::cap_invitations::{self, Invitations, Invite};
use super::cap_quota::{self, Quota};
use super::cap_rate::{self, Rate};
use super::cap_remote::{self, KeyServerAt, Provider, Why};
use super::cap_status::{self, StatusOf};
use super::cap_usage::{self, ImportUsage, StatementsOf, UsageOf, Verify};
use super::capability::{self, Mint, Narrow};
use super::realm::write_new;
use super::revoke::{self as revocation_lists, RevokeList, Revoked};
use crate::api_client::ApiTarget;
use crate::config::Source;
use crate::config::key::{DATABASE, KeyFile, NewKeyServer, file_in, template};
use crate::config::key_api::DEFAULT_IDENTITY;
use crate::config::parse::endpoint;
use crate::failure::{Failure, Outcome};
use crate::fetch::{self, Target};
use crate::key_files::capability::Capabilities;
use crate::key_files::database::DatabaseRecords;
use crate::key_files::node::{self, KeyKind, fresh};
use crate::key_files::old_records;
use crate::key_files::revocation::{self, RevocationEntry};
use crate::look_up::{by_tcp, by_udp, look_up as find, name_server, resolvers};
use crate::output::{fields, objects, print, print_json, warn};
use crate::provider::billing::{self, BillingFields};
use crate::provider::orders::{
    DAY, DelegateSources, GrantOrder, MadeChange, SourcesOrder, beyond, check_name, check_same_name, delegation_id,
    open_or_rename, principal_of,
};
use crate::provider::tree::{self, AccountGrants};

/// How long the answer to an order may take, by UDP and by TCP.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How long a running key server may take to have what a command recorded, and how often it is asked.
const FOLLOWED: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Changes of a page of the API, at most.
const CHANGES: u64 = 1_000;
/// Revocations that are shown to people.
const MOST_SHOWN: usize = 100;
/// Octets of a file with a line, at most.
const LINE: u64 = 4_096;

#[derive(Subcommand, Debug)]
pub enum Cap {
    /// Begin a key server: its keys, database and configuration, in a new folder.
    Init(Init),
    /// Grant a capability to a principal, and print it: one line, which is a secret.
    Grant(GrantCap),
    /// Open, rename, show or close an account, replace its keys, end a grant of it; and what the provider's billing knows it by.
    Account(AccountOf),
    /// Invite a customer of a provider: prints one line, a secret, redeemed once by HTTPS (`cap accept`).
    Invite(Invite),
    /// List invitations and what became of them, or withdraw one.
    Invitations(Invitations),
    /// Accept an invitation: redeems it at the provider's key server, and prints its capabilities.
    Accept(Accept),
    /// List accounts and what they were granted, as a tree: waypoints, capabilities, delegations, sub-delegations.
    List(List),
    /// Delegate a capability for some destinations: registers the delegation with the key server, and prints it.
    Delegate(Delegate),
    /// End a delegation of a capability for good, with all that was handed on from it, and free its place.
    Withdraw(Withdraw),
    /// Revoke: as the provider whatever is named, as a holder the current secret of a capability or a delegation of it.
    Revoke(Revoke),
    /// What a principal or a delegation may send a second through all routers: set, ended, listed.
    Rate(Rate),
    /// How a capability stands, for its holder: until when it is answered, rate, usage, delegations.
    Status(StatusOf),
    /// What a principal may send in a month: set, ended, listed with what it has sent.
    Quota(Quota),
    /// Limit the rate of a delegation of a capability over all routers, or end that limit.
    Limit(Limit),
    /// Look up the secret of the current key epoch, and the next.
    Lookup(LookUp),
    /// What principals sent, as the routers reported it: a statement to bill from.
    Usage(UsageOf),
    /// Statements of usage: each has what ended in the time that it closed, and what came late for those before; or one of them, whole.
    Statements(StatementsOf),
    /// Check a signed statement, and print it.
    Verify(Verify),
    /// Bring the file of usage of an earlier version into the database, once.
    ImportUsage(ImportUsage),
    /// Bring the file of records of an earlier version into the database, once. Stop the key server first.
    Import(Import),
    /// Who changed what of accounts, grants and revocations, when, and why: of a key server with a database.
    Changes(ChangesOf),
    /// Accept a database that was set back: it counts from now on, at every key server of it.
    Adopt(Adopt),
    /// Begin the key server's list of revocations anew, from its database, after the file was lost. See the guide on backups first.
    NewList(NewList),
    /// Create a file of capabilities from the key of a waypoint, without a key server.
    Mint(Mint),
    /// Delegate a file of capabilities, restricted to some destinations, without a key server.
    Narrow(Narrow),
    /// Sign the next list of revoked capabilities for Platypus routers, without a key server.
    RevokeList(RevokeList),
    /// Print a list of revoked capabilities.
    Revoked(Revoked),
}

#[derive(Args, Debug)]
pub struct Init {
    /// The new folder.
    pub folder: PathBuf,
    /// The zone that its parent delegates to this server.
    #[arg(long)]
    pub zone: Zone,
    /// Where questions come, by UDP and TCP.
    #[arg(long, default_value = "127.0.0.1:5300", value_parser = endpoint)]
    pub listen: SocketAddr,
    /// The name of the zone's name server, as the parent has it.
    #[arg(long)]
    pub name_server: Zone,
    /// Its status pages.
    #[arg(long, default_value = "127.0.0.1:8493", value_parser = endpoint)]
    pub status: SocketAddr,
    /// Where its HTTPS API listens: people are invited by it. Default: no API.
    #[arg(long, value_parser = endpoint)]
    pub api: Option<SocketAddr>,
    /// Where accounts are kept: a SQLite file in the folder, or "postgresql://…" for several key servers.
    #[arg(long, default_value = DATABASE)]
    pub database: String,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Import {
    /// The configuration of the key server, which names the new database.
    #[arg(long, short)]
    pub config: PathBuf,
    /// The file of records.
    #[arg(long)]
    pub records: PathBuf,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct ChangesOf {
    #[command(flatten)]
    pub provider: Provider,
    /// Those behind this number. Default: the last ones.
    #[arg(long)]
    pub after: Option<u64>,
    /// Only changes of what is this principal's.
    #[arg(long)]
    pub principal: Option<u32>,
    /// At most so many.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=4_096))]
    pub most: u64,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Adopt {
    /// The configuration of a key server of the database.
    #[arg(long, short)]
    pub config: PathBuf,
    /// Why, for the audit trail.
    #[arg(long)]
    pub reason: String,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct NewList {
    /// The configuration of the key server.
    #[arg(long, short)]
    pub config: PathBuf,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct GrantCap {
    /// The principal, who pays: a number of 24 bits. An account is opened if there is none.
    #[arg(long)]
    pub principal: u32,
    /// The account's name, for people: one that is opened gets it, and one that has another name is refused.
    #[arg(long)]
    pub name: Option<String>,
    /// The waypoint: an address of a router, a POP or an AS.
    #[arg(long)]
    pub waypoint: IpAddr,
    /// Binary logarithm of a key epoch's length in seconds.
    #[arg(long, default_value_t = 12)]
    pub interval: u8,
    /// Bindings of 64 bits, where the waypoint accepts them.
    #[arg(long)]
    pub narrow: bool,
    /// Destinations that it is restricted to; needs --delegation.
    #[arg(long, requires = "delegation")]
    pub prefix: Option<Prefix>,
    /// The number of the delegation.
    #[arg(long, requires = "prefix")]
    pub delegation: Option<u32>,
    /// Days for which secrets are given.
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u64).range(1..=36_500))]
    pub days: u64,
    /// Prefixes from which the principal's packets may come, or the delegation's, at all waypoints: 16 at most, by commas. Default: unchanged.
    #[arg(long, value_name = "PREFIX", value_delimiter = ',')]
    pub sources: Option<Vec<Prefix>>,
    /// They may come from anywhere again; a delegation's from where its principal's may.
    #[arg(long, conflicts_with = "sources")]
    pub any_source: bool,
    /// Whether delegations may name sources outside the principal's own. Default: unchanged, and "own" at first.
    #[arg(long, value_name = "WHICH", conflicts_with = "delegation")]
    pub delegate_sources: Option<DelegateSources>,
    #[command(flatten)]
    pub billing: BillingOf,
    #[command(flatten)]
    pub why: Why,
    #[command(flatten)]
    pub provider: Provider,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct List {
    /// Only this principal.
    #[arg(long)]
    pub principal: Option<u32>,
    /// Only what the provider knows by this ID: grants, or all grants of an account.
    #[arg(long, value_name = "ID", conflicts_with = "principal")]
    pub external_id: Option<String>,
    #[command(flatten)]
    pub provider: Provider,
    #[arg(long)]
    pub json: bool,
}

/// What a provider's billing knows an account or a grant by. What is not named stays as it is.
#[derive(Args, Debug)]
pub struct BillingOf {
    /// The provider's own ID, by which lists are filtered; an empty one ends it.
    #[arg(long, value_name = "ID")]
    pub external_id: Option<String>,
    /// A price tag that statements show: a label, or an amount and its currency; an empty one ends it.
    #[arg(long, value_name = "TAG")]
    pub price: Option<String>,
    /// A pair for the provider's own use; all that are named take the place of those there are.
    #[arg(long, value_name = "KEY=VALUE", value_parser = billing::pair, conflicts_with = "no_metadata")]
    pub metadata: Vec<(String, String)>,
    /// Take all pairs away.
    #[arg(long)]
    pub no_metadata: bool,
}

impl BillingOf {
    /// # Errors
    /// If it is too long, or no printable ASCII.
    pub fn fields(&self) -> Outcome<BillingFields> {
        let is_named = self.no_metadata || !self.metadata.is_empty();
        let metadata = is_named.then(|| self.metadata.iter().cloned().collect());
        let fields = BillingFields { external_id: self.external_id.clone(), price: self.price.clone(), metadata };
        fields.check()?;
        Ok(fields)
    }
}

/// Where questions go.
#[derive(Args, Debug)]
pub struct Servers {
    /// A resolver or key server to ask (may be repeated), at port 53 unless it names another. Default: those of /etc/resolv.conf.
    #[arg(long, value_name = "ADDRESS[:PORT]", value_parser = name_server)]
    pub server: Vec<SocketAddr>,
}

#[derive(Args, Debug)]
pub struct Delegate {
    /// The file with the capability's line; - is the standard input.
    #[arg(long)]
    pub line: PathBuf,
    /// The destinations that the delegation is for.
    #[arg(long)]
    pub prefix: Prefix,
    /// The delegation's number (24 bits), by which it is counted and revoked.
    #[arg(long)]
    pub id: u32,
    /// Days from now until it ends. Default: it ends with what it is delegated from, also when that is renewed.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=36_500))]
    pub days: Option<u64>,
    /// Prefixes from which its packets may come, by commas: four of IPv4 or one of IPv6. Default: unchanged, and yours at first.
    #[arg(long, value_name = "PREFIX", value_delimiter = ',')]
    pub sources: Option<Vec<Prefix>>,
    #[command(flatten)]
    pub servers: Servers,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Withdraw {
    /// The file with the capability's line; - is the standard input.
    #[arg(long)]
    pub line: PathBuf,
    /// DELEGATION or DELEGATION/SUB-DELEGATION, which are numbers.
    pub delegation: String,
    #[command(flatten)]
    pub servers: Servers,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Limit {
    /// The file with the capability's line; - is the standard input.
    #[arg(long)]
    pub line: PathBuf,
    /// The number of the delegation.
    pub delegation: u32,
    /// Octets of IP packets a second, through all routers together.
    #[arg(required_unless_present_any = ["end", "month_octets"])]
    pub octets: Option<u64>,
    /// Octets at once at each router. Default: a tenth of a second's, and at least the longest packet.
    #[arg(long, requires = "octets")]
    pub burst: Option<u64>,
    /// Octets of IP packets in a calendar month (UTC), counted from now on; beyond them nothing passes until the next one.
    #[arg(long, value_name = "OCTETS")]
    pub month_octets: Option<u64>,
    /// End the limit.
    #[arg(long, conflicts_with_all = ["octets", "month_octets"])]
    pub end: bool,
    #[command(flatten)]
    pub servers: Servers,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Revoke {
    /// Entries: PRINCIPAL, PRINCIPAL/DELEGATION or PRINCIPAL/DELEGATION/SUB-DELEGATION, in all key epochs, or with
    /// @INTERVAL:EPOCH in one. For the provider.
    pub entries: Vec<RevocationEntry>,
    /// Take the entries back.
    #[arg(long, requires = "entries")]
    pub lift: bool,
    #[command(flatten)]
    pub why: Why,
    #[command(flatten)]
    pub provider: Provider,
    /// The file with the capability's line; - is the standard input. For its holder.
    #[arg(long, conflicts_with_all = ["config", "api", "entries", "reason"])]
    pub line: Option<PathBuf>,
    /// A delegation of the capability, DELEGATION or DELEGATION/SUB-DELEGATION, in all epochs. Default: the capability's own secret
    /// of the current key epoch.
    #[arg(long, requires = "line")]
    pub delegation: Option<String>,
    #[command(flatten)]
    pub servers: Servers,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct LookUp {
    /// The file with the capability's line; - is the standard input.
    #[arg(long)]
    pub line: PathBuf,
    /// A file of capabilities for stampers that is written or replaced.
    #[arg(long, short)]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub servers: Servers,
    #[arg(long)]
    pub json: bool,
}

pub fn run(command: &Cap) -> Outcome {
    match command {
        Cap::Init(command) => init(command),
        Cap::Grant(command) => grant(command),
        Cap::Account(command) => cap_account::account(command),
        Cap::Invite(command) => cap_invitations::invite(command),
        Cap::Invitations(command) => cap_invitations::list(command),
        Cap::Accept(command) => cap_accept::accept(command),
        Cap::List(command) => list(command),
        Cap::Delegate(command) => delegate(command),
        Cap::Withdraw(command) => withdraw(command),
        Cap::Revoke(command) => revoke(command),
        Cap::Rate(command) => cap_rate::rate(command),
        Cap::Status(command) => cap_status::status(command),
        Cap::Quota(command) => cap_quota::quota(command),
        Cap::Limit(command) => limit(command),
        Cap::Lookup(command) => look_up(command),
        Cap::Usage(command) => cap_usage::usage(command),
        Cap::Statements(command) => cap_usage::statements(command),
        Cap::Verify(command) => cap_usage::verify(command),
        Cap::ImportUsage(command) => cap_usage::import(command),
        Cap::Import(command) => import(command),
        Cap::Adopt(command) => adopt(command),
        Cap::Changes(command) => changes_of(command),
        Cap::NewList(command) => new_list(command),
        Cap::Mint(command) => capability::mint(command),
        Cap::Narrow(command) => capability::narrow(command),
        Cap::RevokeList(command) => revocation_lists::revoke(command),
        Cap::Revoked(command) => revocation_lists::revoked(command),
    }
}

/// It is in the folder for as long as [`init`] has not written everything.
const UNFINISHED: &str = "init.unfinished";
const ACCOUNTS_KEY: &str = "accounts.key";
const WRITER_KEY: &str = "writer.key";

fn init(command: &Init) -> Outcome {
    let folder = &command.folder;
    fs::create_dir_all(folder).map_err(|error| Failure::system(folder.display(), &error))?;
    let file = file_in(folder);
    if file.exists() {
        return Err(Failure::new(format!("{} exists already: there is a key server in this folder", file.display()))
            .help("choose another folder")
            .into());
    }
    let database = Location::parse(&command.database).map_err(|error| Failure::usage(error.to_string()))?;
    let unfinished = begin_init(folder)?;
    // Before the database, whose accounts come from it. Of an attempt that was interrupted, or whose database was away, they are there.
    let accounts = created(KeyKind::Accounts, &folder.join(ACCOUNTS_KEY))?;
    let writer = node::identity_of(&created(KeyKind::Writer, &folder.join(WRITER_KEY))?);
    let writer = format!("writer:{writer}");
    DatabaseRecords::create(&beside(&database, folder), &ProviderKey::new(accounts))?;
    let identity = folder.join(DEFAULT_IDENTITY);
    if !identity.exists() {
        Identity::generate(command.zone.as_str(), DEFAULT_VALIDITY)?.save(&identity)?;
    }
    let (listen, status) = (command.listen.to_string(), command.status.to_string());
    let api = command.api.map(|api| api.to_string());
    let text = template(&NewKeyServer {
        zone: command.zone.as_str(),
        listen: &listen,
        name_server: command.name_server.as_str(),
        status: &status,
        writer: &writer,
        database: &command.database,
        api: api.as_deref(),
    });
    write_new(&file, &text, 0o644)?;
    // An empty list: where one is missing later, it was lost.
    let source = Source::read(&file)?;
    KeyFile::parse(&source)?.begin_list(&source, unix_now())?;
    fs::remove_file(&unfinished).map_err(|error| Failure::system(unfinished.display(), &error))?;
    if command.json {
        print_json(json!({ "zone": command.zone.as_str(), "writer": writer, "configuration": file }));
    } else {
        print(&format!(
            "zone           {}\nwriter         {writer}\nconfiguration  {}\n\
             next: add [[key.waypoint]] to it, then wayleave run key --config {}\n",
            command.zone,
            file.display(),
            file.display()
        ));
    }
    Ok(())
}

/// Marks that the folder's keys are of a key server that is being made. Without the mark they are another's, whose accounts follow from them:
/// lines of customers that were closed there would be good again.
fn begin_init(folder: &Path) -> Outcome<PathBuf> {
    let unfinished = folder.join(UNFINISHED);
    if unfinished.exists() {
        return Ok(unfinished);
    }
    let keys = [ACCOUNTS_KEY, WRITER_KEY, DEFAULT_IDENTITY].map(|name| folder.join(name));
    if let Some(key) = keys.iter().find(|key| key.exists()) {
        let what = format!(
            "{} exists already: it is of another key server, whose accounts follow from its keys",
            key.display()
        );
        return Err(Failure::new(what)
            .help("choose another folder; a lost database comes back by `wayleave restore`")
            .into());
    }
    write_new(&unfinished, "`wayleave cap init` has not finished here: give the same command again.\n", 0o644)?;
    Ok(unfinished)
}

/// A key of a new key server, or the one that an earlier attempt has made.
fn created(kind: KeyKind, path: &Path) -> Outcome<Seed> {
    if !path.exists() {
        return node::create(kind, path);
    }
    let key = node::load(kind, path)?;
    warn(&format!(
        "{} is there already, as an attempt that was not finished leaves it: it is taken over",
        path.display()
    ));
    Ok(key)
}

/// A database whose relative path is one beside the configuration.
fn beside(place: &Location, folder: &Path) -> Location {
    match place {
        Location::File(path) => Location::File(folder.join(path)),
        postgres @ Location::Postgres(_) => postgres.clone(),
    }
}

fn import(command: &Import) -> Outcome {
    let source = Source::read(&command.config)?;
    let file = KeyFile::parse(&source)?;
    let (place, provider, seen) = (file.database(&source), file.provider(&source)?, file.position(&source));
    let state = old_records::read(&command.records, &provider, &file.writer())?;
    let number = state.number();
    // Before anything is written: an old copy of the file lacks revocations that the list has.
    if let Some(named) = &file.key.revocations {
        let list = source.resolve(named.get_ref());
        revocation::goes_with(revocation::last_number(&list, &file.writer())?, &list, number)?;
    }
    let rows = DatabaseRecords::import(&place, (&provider, &seen), &state, &user(), unix_now())?;
    if command.json {
        print_json(json!({ "number": number, "rows": rows, "database": place.to_string() }));
    } else {
        print(&format!(
            "change    {number}\nrows      {rows}\ndatabase  {place}\nnext: start the key server, and keep {} as a backup of this day\n",
            command.records.display()
        ));
    }
    Ok(())
}

fn adopt(command: &Adopt) -> Outcome {
    let source = Source::read(&command.config)?;
    let file = KeyFile::parse(&source)?;
    let place = file.database(&source);
    let (provider, seen) = (file.provider(&source)?, file.position(&source));
    let adopted = DatabaseRecords::adopt(&place, (&provider, &seen), (&user(), &command.reason), unix_now())?;
    let Position { number, timeline, .. } = adopted;
    if command.json {
        print_json(json!({ "number": number, "timeline": timeline }));
    } else {
        print(&format!(
            "change    {number}\ntimeline  {timeline}\nnext: revoke again what was revoked since the backup, and `wayleave cap new-list --config {}` \
             if routers refuse the list\n",
            command.config.display()
        ));
    }
    Ok(())
}

fn changes_of(command: &ChangesOf) -> Outcome {
    let rows: Vec<Value> = match command.provider.place()? {
        KeyServerAt::Here(config) => {
            let source = Source::read(config)?;
            let file = KeyFile::parse(&source)?;
            let (place, provider) = (file.database(&source), file.provider(&source)?);
            let most = usize::try_from(command.most).unwrap_or(usize::MAX);
            let changes = DatabaseRecords::trail(&place, &provider, command.after, most, command.principal)?;
            changes.iter().map(|recorded| json!(MadeChange::from(recorded))).collect()
        }
        KeyServerAt::At(at) => changes_at(&at, command)?,
    };
    if command.json {
        print_json(json!({ "changes": rows }));
    } else if rows.is_empty() {
        print("no changes\n");
    } else {
        print(&objects(&rows, &["number", "time", "by", "what", "reason"]));
    }
    Ok(())
}

/// The same by the API, whose pages are shorter.
fn changes_at(at: &ApiTarget, command: &ChangesOf) -> Outcome<Vec<Value>> {
    let first = |rows: &[Value]| rows.first().and_then(|row| row["number"].as_u64());
    let Some(after) = command.after else {
        let (mut rows, _) = page_at(at, None, (command.most.min(CHANGES), command.principal))?;
        // Numbers of one principal's changes say nothing of how many are in front of them.
        if command.principal.is_some() {
            return Ok(rows);
        }
        // Those in front of the last ones: numbers follow on each other, but where a database was adopted.
        let rest = command.most - rows.len() as u64;
        let Some(begins) = first(&rows).filter(|begins| rest > 0 && *begins > 1) else { return Ok(rows) };
        let mut earlier = pages_at(at, begins.saturating_sub(rest + 1), (rest, None))?;
        earlier.retain(|row| row["number"].as_u64() < Some(begins));
        earlier.append(&mut rows);
        return Ok(earlier);
    };
    pages_at(at, after, (command.most, command.principal))
}

/// So many changes behind this one.
fn pages_at(at: &ApiTarget, after: u64, (most, principal): (u64, Option<u32>)) -> Outcome<Vec<Value>> {
    let (mut rows, mut after) = (Vec::new(), after);
    while (rows.len() as u64) < most {
        let (mut page, next) = page_at(at, Some(after), ((most - rows.len() as u64).min(CHANGES), principal))?;
        rows.append(&mut page);
        let Some(next) = next else { break };
        after = next;
    }
    Ok(rows)
}

fn page_at(
    at: &ApiTarget,
    after: Option<u64>,
    (most, principal): (u64, Option<u32>),
) -> Outcome<(Vec<Value>, Option<u64>)> {
    let behind = after.map_or_else(String::new, |after| format!("&after={after}"));
    let of = principal.map_or_else(String::new, |principal| format!("&principal={principal}"));
    let mut page = at.json("GET", &format!("/v1/changes?most={most}{behind}{of}"), None)?;
    let rows = page["changes"].as_array_mut().map(std::mem::take).unwrap_or_default();
    Ok((rows, page["next"].as_u64()))
}

/// Who gives a command, for the audit trail.
pub fn user() -> String {
    format!("user {} of this machine", rustix::process::getuid().as_raw())
}

/// Makes a change durable that `decide` says by the state as it is then, if any. A running key server follows.
pub fn change(
    server: &mut KeyServer,
    database: &mut DatabaseRecords,
    why: &Why,
    decide: &mut dyn FnMut(&State) -> Option<ChangeBody>,
) -> Outcome {
    let by = user();
    loop {
        let Some(body) = decide(server.state()) else { return Ok(()) };
        let signed = server.sign(body, unix_now()).map_err(|error| {
            let failure = Failure::new(error.to_string());
            match error {
                ChangeError::NoAccount(principal) => failure.help(format!(
                    "`wayleave cap grant --principal {principal} ...` opens one with its first grant, `cap account {principal} --name NAME` \
                     without; `wayleave cap list` shows those that there are"
                )),
                _ => failure,
            }
        })?;
        let effects = (server.state().effects(signed.object()), server.state().settled());
        let unread = database.append(&signed, effects, (&by, why.text()))?;
        let is_written = unread.is_empty();
        unread.apply(server)?;
        if is_written {
            server.apply(&signed).map_err(|error| Failure::new(error.to_string()))?;
            return Ok(());
        }
    }
}

/// The same by a configuration of this machine, once its key server follows. Returns the state as it is then.
///
/// # Errors
/// If the configuration or its database cannot be used, or the database refuses the change.
pub fn change_here(
    config: &Path,
    why: &Why,
    decide: &mut dyn FnMut(&State) -> Option<ChangeBody>,
) -> Outcome<KeyServer> {
    let source = Source::read(config)?;
    let (mut server, mut database) = KeyFile::parse(&source)?.server(&source)?;
    change(&mut server, &mut database, why, decide)?;
    wait_until_followed(config, server.state().number());
    Ok(server)
}

/// Waits until the key server of this configuration has the changes up to this one, if it runs and shows its status: whoever goes on
/// with what was granted is not told that nobody knows it, which resolvers would keep for a while.
pub fn wait_until_followed(config: &Path, number: u64) {
    let (begin, target) = (Instant::now(), Target { url: None, config: Some(config.to_owned()) });
    loop {
        let left = FOLLOWED.saturating_sub(begin.elapsed());
        if left.is_zero() {
            return;
        }
        let Ok(status) = fetch::json_within(&target, "/api/v1/status", fetch::Limits::within(left)) else { return };
        if status["number"].as_u64().is_none_or(|held| held >= number) {
            return;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn grant(command: &GrantCap) -> Outcome {
    let config = match command.provider.place_for(&command.why)? {
        KeyServerAt::Here(config) => config,
        KeyServerAt::At(at) => return grant_at(command, &at),
    };
    let source = Source::read(config)?;
    let file = KeyFile::parse(&source)?;
    let (mut server, mut changes) = file.server(&source)?;
    let GrantCap { principal, waypoint, interval, narrow, prefix, delegation, .. } = *command;
    let terms = GrantOrder { principal, waypoint, interval, narrow, prefix, delegation }.terms()?;
    command.name.as_deref().map_or(Ok(()), check_name)?;
    warn_of_unknown(&file, waypoint);
    let sources = SourcesOrder::new(&terms, command.named_sources(), command.delegate_sources)?;
    let now = unix_now().secs();
    let not_after = now + command.days * DAY;
    let granted = ChangeBody::Grant(Grant { terms, not_before: now, not_after });
    let billing = command.billing.fields()?;
    let (mut shortened, mut refused) = (Vec::new(), Ok(()));
    // All or nothing: there is no moment in which it is granted without its sources.
    change(&mut server, &mut changes, &command.why, &mut |state| {
        let held = state.account(terms.principal).map(|(name, _)| name);
        refused = check_same_name(principal, held, command.name.as_deref());
        if refused.is_err() {
            return None;
        }
        shortened = beyond(state, &terms, not_after);
        let opened = open_or_rename(state, terms.principal, command.name.as_deref());
        let sources = sources.as_ref().map(|sources| sources.beside_grant(state));
        let billing = billing.change(state, BillingSubject::grant(terms));
        ChangeBody::all_of([opened, Some(granted.clone()), sources, billing].into_iter().flatten().collect())
    })?;
    refused?;
    wait_until_followed(config, server.state().number());
    warn_of_shortened(shortened.iter().map(|grant| grant.terms.to_string()));
    let state = server.state();
    let key = state.find(&terms).and_then(|slot| state.key(slot)).cloned();
    let key = key.ok_or_else(|| Failure::new("the grant was withdrawn again by another command"))?;
    let credential = Credential { zone: file.zone().clone(), terms, key };
    if state.is_revoked(&terms, epoch::epoch_at(terms.interval, unix_now())) {
        warn(&format!(
            "this capability is revoked: nobody has a secret by it; `wayleave cap revoke {principal} --lift` lifts what revokes its principal"
        ));
    }
    hand_over(&credential, Some(not_after), command.json);
    Ok(())
}

impl GrantCap {
    fn named_sources(&self) -> Option<Vec<Prefix>> {
        if self.any_source { Some(Vec::new()) } else { self.sources.clone() }
    }
}

/// The same by the API.
fn grant_at(command: &GrantCap, at: &ApiTarget) -> Outcome {
    let GrantCap { principal, waypoint, interval, narrow, prefix, delegation, days, .. } = command;
    let mut order = json!({
        "principal": principal, "waypoint": waypoint, "interval": interval, "narrow": narrow, "days": days,
    });
    if let (Some(prefix), Some(delegation)) = (prefix, delegation) {
        (order["prefix"], order["delegation"]) = (json!(prefix.to_string()), json!(delegation));
    }
    if let Some(sources) = command.named_sources() {
        order["sources"] = sources.iter().map(ToString::to_string).collect();
    }
    if let Some(delegates) = command.delegate_sources {
        order["delegate_sources"] = json!(delegates);
    }
    let known = billing::body(&command.billing.fields()?);
    order.as_object_mut().into_iter().for_each(|order| order.extend(known.as_object().cloned().unwrap_or_default()));
    let granted = cap_remote::grant(at, command.name.as_deref(), &order)?;
    let credential = granted["capability"].as_str().and_then(|line| line.parse().ok());
    let credential = credential.ok_or_else(|| Failure::new(format!("{} answers with no capability", at.url)))?;
    let shortened = granted["shortened"].as_array().into_iter().flatten();
    warn_of_shortened(shortened.filter_map(|grant| grant["terms"].as_str()).map(str::to_owned));
    hand_over(&credential, granted["until"].as_u64(), command.json);
    Ok(())
}

/// Says what ends sooner with the grant that it was delegated from.
fn warn_of_shortened(terms: impl Iterator<Item = String>) {
    let all: Vec<String> = terms.collect();
    if let Some(first) = all.first() {
        let count = all.len();
        warn(&format!(
            "delegations of this grant that end sooner now, with it: {count}; the first is {first}; `wayleave cap list` shows all"
        ));
    }
}

/// Says that nothing can be looked up for a waypoint yet.
pub fn warn_of_unknown(file: &KeyFile, address: IpAddr) {
    if !file.key.waypoint.iter().any(|waypoint| waypoint.get_ref().address == address) {
        warn(&format!("the key server has no key of the waypoint {address}: add [[key.waypoint]]"));
    }
}

/// Prints a capability.
fn hand_over(credential: &Credential, until: Option<u64>, json: bool) {
    let line = Zeroizing::new(credential.expose());
    if json {
        print_json(json!({ "capability": *line, "terms": credential.terms.to_string(), "until": until }));
    } else {
        print(&format!("{}\n", *line));
    }
}

fn list(command: &List) -> Outcome {
    let (number, trees, revoked) = match command.provider.place()? {
        KeyServerAt::Here(config) => list_here(config, command)?,
        KeyServerAt::At(at) => list_at(&at, command)?,
    };
    if command.json {
        print_json(json!({ "number": number, "principals": trees, "revocations": revoked }));
        return Ok(());
    }
    print(&format!("change {number}, {} revocations in force\n", revoked.len()));
    print(&listed_revocations(&revoked));
    if let (Some(principal), true) = (command.principal, trees.is_empty()) {
        print(&format!("principal {principal} has no account\n"));
    }
    if !trees.is_empty() {
        print(&format!("\n{}", tree::text(&trees)));
    }
    Ok(())
}

/// Revocations on one line, or the first of very many.
fn listed_revocations(revoked: &[String]) -> String {
    if revoked.is_empty() {
        return String::new();
    }
    let more = match revoked.len().saturating_sub(MOST_SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more, which --json lists"),
    };
    format!("revoked: {}{more}\n", revoked[..revoked.len().min(MOST_SHOWN)].join(", "))
}

/// Says that an entry is of nobody: a mistyped number revokes nothing of whom it was meant for.
fn warn_of_nobody(entry: &RevocationEntry) {
    let number = entry.0.principal.number();
    warn(&format!("principal {number} has no account: {entry} revokes nothing that is granted now"));
}

/// The number of the last change, accounts as trees, and revocations.
type Listed = (u64, Vec<Value>, Vec<String>);

fn list_here(config: &Path, command: &List) -> Outcome<Listed> {
    let List { principal, external_id, .. } = command;
    let source = Source::read(config)?;
    let file = KeyFile::parse(&source)?;
    let (server, _) = file.server(&source)?;
    let state = server.state();
    let requested = principal.map(principal_of).transpose()?;
    let is_known = |account: &mut AccountGrants| external_id.as_deref().is_none_or(|id| account.keep_known_as(id));
    let principals = state.list().into_iter().map(|(principal, ..)| principal);
    let principals = principals.filter(|principal| requested.is_none_or(|requested| requested == *principal));
    let labels = file.waypoint_labels();
    let read = |principal| AccountGrants::read(state, principal, unix_now());
    let accounts = principals.filter_map(read).filter_map(|mut account| is_known(&mut account).then_some(account));
    let trees: Vec<Value> = accounts.map(|account| json!(account.tree(&labels))).collect();
    let is_listed = |number: u32| trees.iter().any(|tree| tree["principal"] == number);
    let is_requested = |entry: &&Revocation| match external_id {
        Some(_) => is_listed(entry.principal.number()),
        None => requested.is_none_or(|requested| requested == entry.principal),
    };
    let revoked = state.revocations().filter(is_requested).map(|entry| RevocationEntry(*entry).to_string()).collect();
    Ok((state.number(), trees, revoked))
}

fn list_at(at: &ApiTarget, command: &List) -> Outcome<Listed> {
    let number = at.json("GET", "/v1/server", None)?["number"].as_u64().unwrap_or(0);
    let trees = match (command.principal, &command.external_id) {
        (Some(principal), _) => cap_remote::account(at, principal)?.into_iter().collect(),
        (None, Some(id)) => cap_remote::all(at, &format!("/v1/grants?external_id={}", encoded(id)), "principals")?,
        (None, None) => cap_remote::all(at, "/v1/grants", "principals")?,
    };
    let revoked = match command.principal {
        Some(principal) => cap_remote::all(at, &format!("/v1/revocations?principal={principal}"), "revocations")?,
        None => cap_remote::all(at, "/v1/revocations", "revocations")?,
    };
    let revoked = revoked.iter().filter_map(Value::as_str).map(str::to_owned);
    let of = |entry: &String| entry.split(['/', '@']).next().and_then(|number| number.parse::<u32>().ok());
    let is_listed =
        |number: Option<u32>| number.is_some_and(|number| trees.iter().any(|tree| tree["principal"] == number));
    let revoked = revoked.filter(|entry| command.external_id.is_none() || is_listed(of(entry))).collect();
    Ok((number, trees, revoked))
}

/// A text in a query (RFC 3986 section 2.1).
pub fn encoded(text: &str) -> String {
    let is_plain = |octet: u8| octet.is_ascii_alphanumeric() || b"-._~".contains(&octet);
    let of = |octet: u8| if is_plain(octet) { char::from(octet).to_string() } else { format!("%{octet:02X}") };
    text.bytes().map(of).collect()
}

fn delegate(command: &Delegate) -> Outcome {
    let credential = read_line(&command.line)?;
    let id = delegation_id(command.id)?;
    let terms = delegated(&credential.terms, id, command.prefix).ok_or_else(|| {
        Failure::usage(format!("{} cannot be delegated from {}", command.prefix, credential.terms))
            .help("a delegation lies within what is held, and is handed on once")
    })?;
    let sources = command.sources.as_deref().map(|all| ordered_sources(&credential, all)).transpose()?;
    let until = command.days.map(|days| unix_now().secs() + days * DAY);
    order(&credential, Order::Delegate { id, prefix: command.prefix, until }, &command.servers)?;
    if let Some(prefixes) = sources {
        order(&credential, Order::Sources { id, prefixes }, &command.servers)?;
    }
    hand_over(&credential.delegate(terms), until, command.json);
    Ok(())
}

/// Source prefixes as an order of a capability's holder has them.
fn ordered_sources(credential: &Credential, prefixes: &[Prefix]) -> Outcome<OrderedPrefixes> {
    if credential.terms.delegation.is_some() {
        return Err(Failure::usage("a sub-delegation has no sources of its own")
            .help("its packets may come from where those of its delegation may, which its principal names")
            .into());
    }
    let mut prefixes = prefixes.to_vec();
    prefixes.sort_unstable();
    prefixes.dedup();
    OrderedPrefixes::new(&prefixes).ok_or_else(|| {
        Failure::usage("an order has space for four source prefixes of IPv4, or one of IPv6")
            .help("the provider names up to 16, with `wayleave cap grant --delegation`")
            .into()
    })
}

fn withdraw(command: &Withdraw) -> Outcome {
    let credential = read_line(&command.line)?;
    let (id, sub) = branch(&command.delegation)?;
    let acknowledged = order(&credential, Order::Withdraw { id, sub }, &command.servers)?;
    report(json!({ "number": acknowledged.number, "withdrawn": command.delegation }), command.json);
    warn(&format!(
        "whoever had delegation {} would have the same keys if the number were given again: take another one",
        command.delegation
    ));
    Ok(())
}

fn limit(command: &Limit) -> Outcome {
    let credential = read_line(&command.line)?;
    let id = delegation_id(command.delegation)?;
    let burst = command.burst.unwrap_or(0);
    let rate = command.octets.map(|rate| RateTerms { rate, burst, ..RateTerms::default() });
    let limit = DelegationLimit { rate, month_octets: command.month_octets };
    if !limit.is_sound() {
        let (most, least, volume) = (RateTerms::MOST, RateTerms::LEAST_BURST, VolumeQuota::MOST);
        return Err(Failure::usage(format!(
            "a limit is from 1 to {most} octets a second, its burst from {least}, or from 1 to {volume} octets a month"
        ))
        .help("to let nothing pass, revoke the delegation")
        .into());
    }
    let acknowledged = order(&credential, Order::Limit { id, limit }, &command.servers)?;
    report(
        json!({
            "number": acknowledged.number, "delegation": command.delegation,
            "octets_per_second": command.octets, "burst_octets": command.burst, "month_octets": command.month_octets,
        }),
        command.json,
    );
    Ok(())
}

/// A delegation as it is written, or a sub-delegation of it.
fn branch(text: &str) -> Outcome<(DelegationId, Option<DelegationId>)> {
    let number = |part: &str| {
        let number = part.parse().map_err(|_| {
            Failure::usage(format!("`{text}` is not DELEGATION or DELEGATION/SUB-DELEGATION, which are numbers"))
        })?;
        delegation_id(number)
    };
    match text.split_once('/') {
        Some((id, sub)) => Ok((number(id)?, Some(number(sub)?))),
        None => Ok((number(text)?, None)),
    }
}

fn revoke(command: &Revoke) -> Outcome {
    match (command.provider.place_if_any()?, &command.line) {
        (Some(KeyServerAt::At(mut at)), None) if !command.entries.is_empty() => {
            at.reason.clone_from(&command.why.reason);
            let mut number = Value::Null;
            for entry in &command.entries {
                let text = entry.to_string();
                let done = match command.lift {
                    true => at.json("DELETE", &format!("/v1/revocations?entry={}", text.replace('/', "%2F")), None)?,
                    false => at.json("POST", "/v1/revocations", Some(&json!({ "entry": text })))?,
                };
                number = done["number"].clone();
                // Nothing depends on it: a token may not show accounts.
                if !command.lift && matches!(cap_remote::account(&at, entry.0.principal.number()), Ok(None)) {
                    warn_of_nobody(entry);
                }
            }
            let count = cap_remote::all(&at, "/v1/revocations", "revocations")?.len();
            report(json!({ "number": number, "revocations": count }), command.json);
            Ok(())
        }
        (Some(KeyServerAt::Here(config)), None) if !command.entries.is_empty() => {
            let source = Source::read(config)?;
            let (mut server, mut changes) = KeyFile::parse(&source)?.server(&source)?;
            let body = |entry: &RevocationEntry| match command.lift {
                true => ChangeBody::Lift(entry.0),
                false => ChangeBody::Revoke(entry.0),
            };
            for entry in &command.entries {
                let is_known = server.state().revocations().any(|known| *known == entry.0);
                if command.lift && !is_known {
                    return Err(Failure::new(format!("{entry} is not revoked"))
                        .help(
                            "`wayleave cap list` shows what is; entries in front of it on the command line are lifted",
                        )
                        .into());
                }
                if !command.lift && server.state().account(entry.0.principal).is_none() {
                    warn_of_nobody(entry);
                }
                change(&mut server, &mut changes, &command.why, &mut |_| Some(body(entry)))?;
            }
            let (number, count) = (server.state().number(), server.state().revocations().len());
            wait_until_followed(config, number);
            report(json!({ "number": number, "revocations": count }), command.json);
            Ok(())
        }
        (None, Some(line)) => {
            let credential = read_line(line)?;
            let ordered = match &command.delegation {
                None => Order::RevokeEpoch,
                Some(text) => {
                    let (id, sub) = branch(text)?;
                    Order::RevokeDelegation { id, sub }
                }
            };
            let acknowledged = order(&credential, ordered, &command.servers)?;
            report(json!({ "number": acknowledged.number, "revoked": true }), command.json);
            Ok(())
        }
        (None, None) if !command.entries.is_empty() => command.provider.place().map(drop),
        _ => Err(Failure::usage("nothing to revoke")
            .help("as the provider: cap revoke ENTRY.. --config FILE; as a holder: cap revoke --line FILE")
            .into()),
    }
}

/// Prints what was done.
pub fn report(value: Value, json: bool) {
    if json { print_json(value) } else { print(&fields(&value)) }
}

fn look_up(command: &LookUp) -> Outcome {
    let credential = read_line(&command.line)?;
    let servers = command.servers.addresses()?;
    let current = epoch::epoch_at(credential.terms.interval, unix_now());
    let mut obtained = vec![obtain(&credential, current, &servers)?];
    // The next secret is a convenience: without it the current one still serves.
    if let Some(next) = current.checked_add(1)
        && let Ok(next) = obtain(&credential, next, &servers)
    {
        obtained.push(next);
    }
    let until = obtained.last().map_or(0, |last| last.until);
    let Terms { waypoint, principal, interval, width, delegation } = credential.terms;
    if let Some(out) = &command.out {
        let held = |one: &Obtained| {
            let Capability { epoch, marks, .. } = one.secret.capability;
            (epoch, marks, one.secret.key().clone())
        };
        let secrets = obtained.iter().map(held).collect();
        let file = Capabilities::of_secrets((waypoint, principal, interval, width), delegation, secrets);
        file.save(out, out.exists())?;
    }
    let epochs: Vec<u32> = obtained.iter().map(|one| one.secret.capability.epoch).collect();
    report(
        json!({
            "terms": credential.terms.to_string(), "zone": credential.zone.as_str(), "epochs": epochs,
            "until": utc(until), "file": command.out,
        }),
        command.json,
    );
    Ok(())
}

fn new_list(command: &NewList) -> Outcome {
    let source = Source::read(&command.config)?;
    let entries = KeyFile::parse(&source)?.begin_list(&source, unix_now())?;
    report(json!({ "entries": entries }), command.json);
    Ok(())
}

/// A day, a time, or Unix seconds.
pub fn seconds_of(text: &str) -> Result<u64, String> {
    unix_of_time(text).ok_or_else(|| {
        "expected a time, such as 2026-11-01T08:00:00Z, a day, such as 2026-11-01, or Unix seconds".to_owned()
    })
}

/// The capability in a file. A line is a secret, so that it is no argument, which other users could see.
pub fn read_line(path: &Path) -> Result<Credential, Failure> {
    let text = read_text(path)?;
    text.trim().parse().map_err(|error| {
        Failure::new(format!("{}: {error}", path.display()))
            .help("`wayleave cap grant` and `cap delegate` print such a line")
    })
}

/// The text of a file with a line; - is the standard input.
pub fn read_text(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let mut text = Zeroizing::new(String::new());
    let read = match path.as_os_str() == "-" {
        true => std::io::stdin().lock().take(LINE).read_to_string(&mut text),
        false => fs::File::open(path).and_then(|file| file.take(LINE).read_to_string(&mut text)),
    };
    read.map_err(|error| Failure::system(path.display(), &error))?;
    Ok(text)
}

impl Servers {
    fn addresses(&self) -> Result<Vec<SocketAddr>, Failure> {
        if !self.server.is_empty() {
            return Ok(self.server.clone());
        }
        let found = resolvers();
        if found.is_empty() {
            return Err(Failure::new("/etc/resolv.conf names no resolver").help("add --server ADDRESS"));
        }
        Ok(found)
    }

    /// Who was asked, and what to do if nobody there knows the key server.
    pub fn whom(&self) -> (&'static str, &'static str) {
        match self.server.is_empty() {
            true => (
                "the resolvers of /etc/resolv.conf",
                "these resolvers have to reach the key server by its zone; `--server ADDRESS` asks it, or another resolver",
            ),
            false => ("the servers that --server names", "does the key server run, and listen there?"),
        }
    }
}

/// Looks one secret up; what somebody on the way did is a warning.
fn obtain(credential: &Credential, epoch: u32, servers: &[SocketAddr]) -> Result<Obtained, Failure> {
    let found = find(credential, epoch, servers, &mut |event| warn(&event.to_string()))?;
    found.map_err(|failure| Failure::new(failure.to_string()))
}

/// That no server carried out, or answered, what it was asked.
pub struct Unanswered {
    /// What the last one did.
    pub last: String,
    /// One of them answered, without an acknowledgement.
    pub is_reached: bool,
}

/// Has an order carried out.
pub fn order(credential: &Credential, order: Order, servers: &Servers) -> Result<Acknowledgement, Failure> {
    match answered(credential, order, servers, |ordering, octets, id| ordering.read(octets, id).ok())? {
        Ok(answer) if answer.status == Status::Done => Ok(answer),
        Ok(answer) => Err(Failure::new(format!("the key server refuses: {}", answer.status))),
        Err(Unanswered { last, .. }) => {
            let (whom, what) = servers.whom();
            Err(Failure::new(format!("it is not known whether the order was carried out: of {whom}, {last}"))
                .help(format!("repeat the command: an order is carried out once, however often it comes; {what}")))
        }
    }
}

/// Gives an order, by UDP, then by TCP, to each server, until one answers it as `read` reads it; or says what the last one did.
pub fn answered<T>(
    credential: &Credential,
    order: Order,
    servers: &Servers,
    read: impl Fn(&Ordering, &[u8], u16) -> Option<Option<T>>,
) -> Result<Result<T, Unanswered>, Failure> {
    let now = unix_now();
    let current = epoch::epoch_at(credential.terms.interval, now);
    let new = || Ok::<_, Failure>(Ordering::new(credential.clone(), order, *fresh()?, current, now));
    let mut ordering = new()?;
    let (mut last, mut is_reached) = ("no server answered".to_owned(), false);
    for server in servers.addresses()? {
        for is_tcp in [false, true] {
            let id = u16::from_be_bytes(*fresh()?);
            let question = ordering.question(id);
            let answer = match is_tcp {
                false => by_udp(server, &question, TIMEOUT, |octets| read(&ordering, octets, id)),
                true => by_tcp(server, &question, TIMEOUT).map(|octets| read(&ordering, &octets, id)),
            };
            match answer {
                Ok(Some(Some(answer))) => return Ok(Ok(answer)),
                Ok(Some(None)) => (last, is_reached) = (format!("{server} does not acknowledge it"), true),
                Ok(None) => last = format!("{server} does not answer"),
                Err(error) => last = format!("{server}: {error}"),
            }
            // What only asks is answered once.
            if matches!(order, Order::Status | Order::Delegations { .. } | Order::Refusals) {
                ordering = new()?;
            }
        }
    }
    Ok(Err(Unanswered { last, is_reached }))
}

//! `wayleave cap usage`, `cap statements` and `cap import-usage`: what principals sent, by what routers reported, and statements of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::ops::Bound;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use wayleave_control::capability::{
    AccountPeriods, ChargedAccount, JournalId, KeyServer, RouterNumber, Statement as SignedStatement, Usage, UsagePage,
    UsageRecord,
};
use wayleave_crypto::signed::Signed;
use wayleave_packet::platypus::header::Principal;
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::identity::octets_of;
use wayleave_runtime::store::{self, FileStore, Record, Store as _, StoreError as FileError};
use wayleave_store::{Closing, Details, KnownRouters, Note, StatementSums, Store, StoreError, UsageStatement};

use super::cap::{read_line, seconds_of, user};
use super::cap_remote::{self, KeyServerAt, Provider};
use crate::api_client::ApiTarget;
use crate::config::Source;
use crate::config::key::KeyFile;
use crate::config::parse::ListKey;
use crate::failure::{Failure, Outcome};
use crate::key_files::database::DatabaseRecords;
use crate::output::{fields, objects, print, print_json, warn};
use crate::provider::billing;
use crate::provider::orders::principal_of;
use crate::provider::statements::{COLUMNS, StatementHead, check_confirmed, closing, is_of_nobody, of_owner, shown};
use crate::usage::{self, By, Statement, csv, is_cut, is_within, statement};

/// Accounts that are read at a time, and attempts at all of them while totals are added to sums.
const PAGE: usize = 10_000;
const TRIES: usize = 100;
/// Totals that are added to sums at a time.
const FOLDED: usize = 10_000;
/// How often, and how many times, it is asked whether a statement is complete.
const PAUSE: Duration = Duration::from_millis(500);
const ASKED: usize = 7_200;

#[derive(Args, Debug)]
pub struct UsageOf {
    /// Only this principal.
    #[arg(long)]
    pub principal: Option<u32>,
    /// What has a line of its own.
    #[arg(long, value_enum, default_value = "delegation")]
    pub by: By,
    /// Only key epochs that begin on this day or later: YYYY-MM-DD (UTC), a time, or Unix seconds.
    #[arg(long, value_parser = seconds_of)]
    pub from: Option<u64>,
    /// Only key epochs that begin before this day.
    #[arg(long, value_parser = seconds_of)]
    pub to: Option<u64>,
    /// Comma-separated values.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Close the time before this day, which has to be past, with the next statement: key epochs that had ended by then, in sums of months.
    /// All routers must have confirmed that they have reported it. Cannot be undone.
    #[arg(long, value_name = "DAY", conflicts_with_all = ["principal", "by", "from", "to", "csv"])]
    pub close: Option<String>,
    /// Close although this router, by its name or number, has not confirmed that it has reported everything: what it reports later is
    /// on the next statement, marked as late.
    #[arg(long, value_name = "ROUTER", requires = "close")]
    pub without: Vec<String>,
    /// Close whatever routers have confirmed.
    #[arg(long, requires = "close")]
    pub force: bool,
    /// Why time is closed: it is kept with the statement.
    #[arg(long, requires = "close", default_value = "")]
    pub reason: String,
    #[command(flatten)]
    pub provider: Provider,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct StatementsOf {
    /// The number of a statement, to print its lines. Default: all statements are listed.
    pub number: Option<u64>,
    /// Only this principal.
    #[arg(long, requires = "number")]
    pub principal: Option<u32>,
    /// What has a line of its own.
    #[arg(long, value_enum, default_value = "delegation", requires = "number")]
    pub by: By,
    /// Comma-separated values.
    #[arg(long, conflicts_with = "json", requires = "number")]
    pub csv: bool,
    /// The price tags that were in force in its time, in the place of its lines.
    #[arg(long, requires = "number", conflicts_with = "by")]
    pub prices: bool,
    /// The 95th percentiles of the months that ended in its time, in samples of five minutes, in the place of its lines.
    #[arg(long, requires = "number", conflicts_with_all = ["by", "prices"])]
    pub percentiles: bool,
    /// Write the statement for --principal to this file, signed with the writer's key: for whoever pays, who checks it by `cap verify`.
    #[arg(long, value_name = "FILE", requires = "principal", conflicts_with = "csv")]
    pub signed: Option<PathBuf>,
    /// For which of the owners that its number had one after the other, from 0. Default: the present one.
    #[arg(long, requires = "signed")]
    pub owner: Option<u8>,
    /// Write all complete statements to this folder, on the key server's machine: each whole as JSON, and signed for each who pays. What
    /// is there stays.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["number", "api"])]
    pub export: Option<PathBuf>,
    /// Then take the sums of those out of the database that closed time before this day, YYYY-MM-DD (UTC): the folder has them. Cannot be
    /// undone.
    #[arg(long, value_name = "DAY", value_parser = seconds_of, requires = "export")]
    pub remove_before: Option<u64>,
    #[command(flatten)]
    pub provider: Provider,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Verify {
    /// The signed statement.
    pub file: PathBuf,
    /// The public key of the provider's key servers (`writer:ed25519:...`), as its routers have it.
    #[arg(long)]
    pub writer: ListKey,
    /// The file of a line that is paid for: the statement has to be of its principal and provider.
    #[arg(long)]
    pub line: Option<PathBuf>,
    /// The signed statement before it: this one has to go on where that one ended.
    #[arg(long, value_name = "FILE")]
    pub previous: Option<PathBuf>,
    /// Octets that were sent in this time by your own count: what is billed beyond them is said.
    #[arg(long, value_name = "OCTETS")]
    pub sent: Option<u128>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct ImportUsage {
    /// The file that [key.routers] `usage` named. It is left as it is.
    pub file: PathBuf,
    /// The configuration of the key server, which names the database.
    #[arg(long, short)]
    pub config: PathBuf,
    /// In the place of usage that is there already: what routers have reported since the upgrade, which they report again.
    #[arg(long)]
    pub replace: bool,
    #[arg(long)]
    pub json: bool,
}

/// A key server's files, and what a statement is made of beside usage.
struct Here {
    source: Source,
    file: KeyFile,
}

impl Here {
    fn new(config: &Path) -> Outcome<Self> {
        let source = Source::read(config)?;
        let file = KeyFile::parse(&source)?;
        Ok(Self { source, file })
    }

    fn store<T: Send + 'static, F: Future<Output = Result<T, StoreError>> + Send + 'static>(
        &self,
        step: impl FnOnce(Store) -> F + Send + 'static,
    ) -> Outcome<T> {
        let provider = self.file.provider(&self.source)?;
        Ok(DatabaseRecords::with_store(&self.file.database(&self.source), &provider, step)?)
    }

    /// Names of accounts, and who had their numbers when.
    fn accounts(&self) -> Outcome<(KeyServer, AccountPeriods)> {
        let (server, _) = self.file.server(&self.source)?;
        let periods = periods(&server);
        Ok((server, periods))
    }

    fn lines(
        &self,
        totals: &BTreeMap<(ChargedAccount, RouterNumber), Usage>,
        principal: Option<u32>,
    ) -> Outcome<Vec<Value>> {
        let (server, periods) = self.accounts()?;
        let account = |principal| server.state().account(principal).map(|(name, _)| name.to_owned());
        Ok(usage::lines(totals, principal, &account, &periods, &self.file.router_names()))
    }
}

fn periods(server: &KeyServer) -> AccountPeriods {
    server.state().reopened().iter().copied().collect()
}

pub fn usage(command: &UsageOf) -> Outcome {
    if let (Some(from), Some(to)) = (command.from, command.to)
        && from >= to
    {
        return Err(Failure::usage(format!("--from is {}, and --to is not later: {}", utc(from), utc(to))).into());
    }
    let before = command.close.as_deref().map(|text| closing(text, unix_now().secs())).transpose()?;
    let statement = match (command.provider.place()?, before) {
        (KeyServerAt::Here(config), Some(before)) => return close(command, &Here::new(config)?, before),
        (KeyServerAt::At(at), Some(before)) => return close_at(command, &at, before),
        (KeyServerAt::Here(config), None) => usage_here(command, &Here::new(config)?)?,
        (KeyServerAt::At(at), None) => usage_at(command, &at)?,
    };
    show(&statement, command.csv, command.json);
    Ok(())
}

fn show(statement: &Statement, is_csv: bool, is_json: bool) {
    if is_csv {
        print(&csv(statement));
    } else if is_json {
        print_json(json!({ "usage": statement.lines }));
    } else if statement.lines.is_empty() {
        print("no usage\n");
    } else {
        print(&objects(&statement.lines, &statement.columns));
    }
}

fn usage_at(command: &UsageOf, at: &ApiTarget) -> Outcome<Statement> {
    let time = |name: &str, second: Option<u64>| second.map_or(String::new(), |second| format!("&{name}={second}"));
    let principal = command.principal.map_or(String::new(), |principal| format!("&principal={principal}"));
    let (from, to) = (time("from", command.from), time("to", command.to));
    let path = format!("/v1/usage?by={}{principal}{from}{to}", command.by.name());
    let lines = cap_remote::all(at, &path, "usage")?;
    Ok(Statement { columns: command.by.all_columns(), lines })
}

fn usage_here(command: &UsageOf, here: &Here) -> Outcome<Statement> {
    let bounds = command.principal.map(principal_of).transpose()?.map(ChargedAccount::bounds);
    let totals = here.store(move |store| async move { all(&store, bounds).await })?;
    let lines = here.lines(&totals, command.principal)?;
    if is_cut(&lines, command.from, command.to) {
        warn("usage of closed time is kept by the month: --from and --to are good for whole months of it");
    }
    let lines = lines.iter().filter(|line| is_within(line, command.from, command.to));
    Ok(statement(lines, command.by))
}

/// All that routers reported, or what is within these bounds, at one moment: what is added to sums between two pages would be on both, or on
/// none.
async fn all(
    store: &Store,
    bounds: Option<(ChargedAccount, ChargedAccount)>,
) -> Result<BTreeMap<(ChargedAccount, RouterNumber), Usage>, StoreError> {
    'again: for _ in 0..TRIES {
        let mut first = bounds.map_or(Bound::Unbounded, |(first, _)| Bound::Included(first));
        let (mut all, mut at) = (BTreeMap::new(), None);
        loop {
            let UsagePage { totals, next, moved } = store.usage_page(first, bounds.map(|(_, last)| last), PAGE).await?;
            if *at.get_or_insert(moved) != moved {
                continue 'again;
            }
            all.extend(totals);
            let Some(next) = next else { return Ok(all) };
            first = Bound::Excluded(next);
        }
    }
    Err(StoreError::Unavailable("usage of closed time is being added up: ask again in some minutes".to_owned()))
}

/// Closes time with a statement, and adds it up.
fn close(command: &UsageOf, here: &Here, before: u64) -> Outcome {
    let names = here.file.router_names();
    let mut numbers: BTreeSet<RouterNumber> = here.file.routers().into_values().collect();
    let (head, known) =
        here.store(|store| async move { Ok((store.usage_head().await?, store.known_routers().await?)) })?;
    if before > head.closed_before && !command.force {
        numbers.extend(here.store(move |store| async move { store.routers_to_close(before).await })?);
        check_confirmed(&numbers, &names, &known.confirmed, (before, &command.without))?;
    }
    let (_, periods) = here.accounts()?;
    let (by, reason, now) = (user(), command.reason.clone(), unix_now().secs());
    let closed = here.store(move |store| async move {
        loop {
            let note = Note { actor: &by, reason: &reason };
            let closing = store.close_usage(before, &numbers, (now, note)).await?;
            store.fold_all_usage(FOLDED, &periods).await?;
            if !matches!(closing, Closing::Incomplete(_)) {
                return Ok(closing);
            }
        }
    })?;
    match closed {
        Closing::Done(made) | Closing::Same(made) => say_closed(made.number, made.closed_before, command.json),
        Closing::Before(_) | Closing::Incomplete(_) => {
            let failure = Failure::new(format!("the time before {} is closed already", utc(head.closed_before)));
            return Err(failure.help("`wayleave cap statements` lists what is closed").into());
        }
    }
    Ok(())
}

fn close_at(command: &UsageOf, at: &ApiTarget, before: u64) -> Outcome {
    let order = json!({
        "before": before.to_string(), "without": command.without, "force": command.force, "reason": command.reason,
    });
    let made = at.json("POST", "/v1/statements", Some(&order))?;
    let number = made["statement"].as_u64().unwrap_or(0);
    let path = format!("/v1/statements?most=1&after={}", number.saturating_sub(1));
    let mut is_complete = made["complete"] == true;
    for _ in 0..ASKED {
        if is_complete {
            say_closed(number, before, command.json);
            return Ok(());
        }
        std::thread::sleep(PAUSE);
        is_complete = at.json("GET", &path, None)?["statements"][0]["complete"] == true;
    }
    Err(Failure::new(format!("statement {number} is made, and is still being added up"))
        .help("`wayleave cap statements` says when it is complete")
        .into())
}

fn say_closed(number: u64, before: u64, is_json: bool) {
    say(&json!({ "statement": number, "closed_before": utc(before) }), is_json);
}

fn say(said: &Value, is_json: bool) {
    if is_json { print_json(said.clone()) } else { print(&fields(said)) }
}

pub fn statements(command: &StatementsOf) -> Outcome {
    let place = command.provider.place()?;
    if let Some(folder) = &command.export {
        let KeyServerAt::Here(config) = place else {
            return Err(Failure::usage("--export is for the key server's machine: give --config").into());
        };
        return export(command, &Here::new(config)?, folder);
    }
    match (command.number, &command.signed) {
        (None, _) => list_statements(command, &place),
        (Some(number), None) if command.prices || command.percentiles => for_billing(command, &place, number),
        (Some(number), None) => one_statement(command, &place, number),
        (Some(number), Some(file)) => sign_statement(command, &place, (number, file)),
    }
}

fn list_statements(command: &StatementsOf, place: &KeyServerAt<'_>) -> Outcome {
    let rows: Vec<Value> = match place {
        KeyServerAt::At(at) => cap_remote::all(at, "/v1/statements", "statements")?,
        KeyServerAt::Here(config) => {
            let here = Here::new(config)?;
            let found = all_statements(&here)?;
            let names = here.file.router_names();
            found.iter().map(|statement| json!(StatementHead::of(statement, &names))).collect()
        }
    };
    if command.json {
        print_json(json!({ "statements": rows }));
    } else if rows.is_empty() {
        print("no statements: `wayleave cap usage --close DAY` makes the first\n");
    } else {
        print(&objects(&rows, &COLUMNS));
    }
    Ok(())
}

fn all_statements(here: &Here) -> Outcome<Vec<UsageStatement>> {
    here.store(|store| async move {
        let mut all: Vec<UsageStatement> = Vec::new();
        loop {
            let more = store.statements(all.last().map_or(0, |last| last.number), PAGE).await?;
            if more.is_empty() {
                return Ok(all);
            }
            all.extend(more);
        }
    })
}

/// Writes statements to a folder, and takes the sums of old ones out of the database.
fn export(command: &StatementsOf, here: &Here, folder: &Path) -> Outcome {
    fs::create_dir_all(folder).map_err(|error| Failure::system(folder.display(), &error))?;
    let (mut exported, mut through) = (Vec::new(), 0);
    for statement in all_statements(here)?.into_iter().filter(|statement| statement.is_complete) {
        let whole = folder.join(format!("statement-{}.json", statement.number));
        if whole.exists() {
            check_exported(here, &statement, &whole)?;
        } else if export_one(here, &statement, (folder, &whole))? {
            exported.push(statement.number);
        }
        if command.remove_before.is_some_and(|before| statement.closed_before <= before) {
            through = statement.number;
        }
    }
    // The names of the files are on the disk before anything is taken away.
    let synced = fs::File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| Failure::system(folder.display(), &error))?;
    let now = unix_now().secs();
    let removed = match through {
        0 => Vec::new(),
        _ => here.store(move |store| async move { store.remove_sums(through, now).await })?,
    };
    say(&json!({ "folder": folder, "exported": exported, "removed": removed }), command.json);
    Ok(())
}

/// A file that is there is of this very statement, and not of another provider's or of one from before the database was set back.
fn check_exported(here: &Here, statement: &UsageStatement, whole: &Path) -> Outcome {
    let octets = fs::read(whole).map_err(|error| Failure::system(whole.display(), &error))?;
    let was: Value = serde_json::from_slice(&octets).unwrap_or_default();
    let is = json!(StatementHead::of(statement, &here.file.router_names()));
    if ["statement", "closed_after", "closed_before", "made"].iter().all(|name| was[name] == is[name]) {
        return Ok(());
    }
    let message =
        format!("{} is not statement {} of this database, which is not exported", whole.display(), statement.number);
    Err(Failure::new(message).help("export to another folder: nothing was removed").into())
}

/// Writes one statement, its file as a whole last; `false` if its sums were taken away before.
fn export_one(here: &Here, statement: &UsageStatement, (folder, whole): (&Path, &Path)) -> Outcome<bool> {
    let number = statement.number;
    let found = here.store(move |store| async move {
        match store.statement(number, None).await {
            Err(StoreError::Removed(_)) => Ok(None),
            found => found,
        }
    })?;
    let Some((of, sums, details)) = found else { return Ok(false) };
    let (server, periods) = here.accounts()?;
    let zone = here.file.zone().to_string();
    for principal in usage::principals(&sums).into_iter().map(Principal::number) {
        for owner in 0..=periods.latest(principal) {
            let object = of_owner(&of, &zone, (principal, owner), (&sums, &details), &periods);
            if object.lines.is_empty() {
                continue;
            }
            let signed = server.sign_statement(&object);
            let signed = signed.map_err(|error| Failure::new(format!("the statement cannot be signed: {error}")))?;
            write_whole(&folder.join(format!("statement-{number}-{principal}-{owner}.signed")), signed.octets())?;
        }
    }
    let mut said = json!(StatementHead::of(&of, &here.file.router_names()));
    said["usage"] = json!(here.lines(&sums, None)?);
    let prices = details.prices.iter().flat_map(|(principal, tags)| billing::prices(*principal, tags, &periods));
    said["prices"] = prices.map(|price| json!(price)).collect();
    let months = details.percentiles.iter().flat_map(|(principal, of)| billing::percentiles(*principal, of));
    said["percentiles"] = months.map(|month| json!(month)).collect();
    write_whole(whole, format!("{said:#}\n").as_bytes())?;
    Ok(true)
}

/// Writes a file for its owner alone, which is there with all of its content or not at all.
fn write_whole(path: &Path, octets: &[u8]) -> Outcome {
    let new = path.with_extension("new");
    let made = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new);
    let written = made.and_then(|mut file| file.write_all(octets).and_then(|()| file.sync_all()));
    written.and_then(|()| fs::rename(&new, path)).map_err(|error| Failure::system(path.display(), &error))?;
    Ok(())
}

/// A complete statement of this machine's database, with its sums.
fn found(here: &Here, (number, principal): (u64, Option<u32>)) -> Outcome<StatementSums> {
    let found = here.store(move |store| async move { store.statement(number, principal).await })?;
    let none = || {
        Failure::new(format!("there is no statement {number}"))
            .help("`wayleave cap statements` lists those that there are")
    };
    let found = found.ok_or_else(none)?;
    if found.0.is_complete {
        return Ok(found);
    }
    Err(Failure::new(format!("statement {number} is still being added up"))
        .help("a running key server, or the same `wayleave cap usage --close` again, adds it up")
        .into())
}

fn one_statement(command: &StatementsOf, place: &KeyServerAt<'_>, number: u64) -> Outcome {
    let (mut said, lines) = match place {
        KeyServerAt::At(at) => {
            let principal = command.principal.map_or(String::new(), |principal| format!("&principal={principal}"));
            let path = format!("/v1/statements/{number}?by={}{principal}", command.by.name());
            let mut said = at.json("GET", &format!("{path}&most=1"), None)?;
            if let Some(said) = said.as_object_mut() {
                said.remove("usage");
                said.remove("next");
            }
            let lines = cap_remote::all(at, &path, "usage")?;
            (said, Statement { columns: command.by.all_columns(), lines })
        }
        KeyServerAt::Here(config) => {
            let here = Here::new(config)?;
            let (of, sums, _) = found(&here, (number, command.principal))?;
            let lines = here.lines(&sums, command.principal)?;
            (json!(StatementHead::of(&of, &here.file.router_names())), statement(lines.iter(), command.by))
        }
    };
    if command.json {
        said["usage"] = json!(lines.lines);
        print_json(said);
        return Ok(());
    }
    if !command.csv {
        print(&fields(&said));
    }
    show(&lines, command.csv, false);
    Ok(())
}

/// Price tags that were in force in the time of a statement, or percentiles.
fn for_billing(command: &StatementsOf, place: &KeyServerAt<'_>, number: u64) -> Outcome {
    let list = if command.prices { "prices" } else { "percentiles" };
    let lines: Vec<Value> = match place {
        KeyServerAt::At(at) => {
            let principal = command.principal.map_or(String::new(), |principal| format!("?principal={principal}"));
            cap_remote::all(at, &format!("/v1/statements/{number}/billing{principal}"), list)?
        }
        KeyServerAt::Here(config) => {
            let here = Here::new(config)?;
            let (_, _, Details { prices, percentiles }) = found(&here, (number, command.principal))?;
            let (_, periods) = here.accounts()?;
            match command.prices {
                true => {
                    let all = prices.iter().flat_map(|(principal, of)| billing::prices(*principal, of, &periods));
                    all.map(|price| json!(price)).collect()
                }
                false => {
                    let all = percentiles.iter().flat_map(|(principal, of)| billing::percentiles(*principal, of));
                    all.map(|month| json!(month)).collect()
                }
            }
        }
    };
    let columns = if command.prices { &billing::PRICE_COLUMNS[..] } else { &billing::PERCENTILE_COLUMNS };
    if command.json {
        print_json(json!({ "statement": number, list: lines }));
    } else if lines.is_empty() && !command.csv {
        print(if command.prices { "no price tags were in force\n" } else { "no month ended in its time\n" });
    } else {
        show(&Statement { columns: columns.to_vec(), lines }, command.csv, false);
    }
    Ok(())
}

/// Writes the statement for one who pays, signed.
fn sign_statement(command: &StatementsOf, place: &KeyServerAt<'_>, (number, file): (u64, &Path)) -> Outcome {
    let principal = command.principal.ok_or_else(|| Failure::usage("--signed needs --principal: for whom it is"))?;
    let (octets, writer) = match place {
        KeyServerAt::At(at) => {
            let owner = command.owner.map_or(String::new(), |owner| format!("&owner={owner}"));
            let path = format!("/v1/statements/{number}/signed?principal={principal}{owner}");
            let said = at.json("GET", &path, None)?;
            let octets = said["signed"].as_str().and_then(octets_of);
            let octets = octets.ok_or_else(|| Failure::new(format!("{} answered no signed statement", at.url)))?;
            (octets, said["writer"].as_str().unwrap_or_default().to_owned())
        }
        KeyServerAt::Here(config) => {
            let here = Here::new(config)?;
            let (of, sums, details) = found(&here, (number, Some(principal)))?;
            let (server, periods) = here.accounts()?;
            let owner = command.owner.unwrap_or_else(|| periods.latest(principal));
            let (zone, of_principal) = (here.file.zone().to_string(), (principal, owner));
            let object = of_owner(&of, &zone, of_principal, (&sums, &details), &periods);
            if is_of_nobody(server.state(), &object) {
                let what = format!("principal {principal} never had an account, and nothing is on statement {number}");
                return Err(Failure::new(what).help("`wayleave cap list` shows accounts; nothing was signed").into());
            }
            let signed = server.sign_statement(&object);
            let signed = signed.map_err(|error| Failure::new(format!("the statement cannot be signed: {error}")))?;
            (signed.octets().to_vec(), here.file.key.writer.get_ref().0.to_string())
        }
    };
    // One that is there was given to somebody.
    let made = fs::OpenOptions::new().write(true).create_new(true).open(file);
    let written = made.and_then(|mut file| file.write_all(&octets));
    written.map_err(|error| Failure::system(file.display(), &error))?;
    say(&json!({ "statement": number, "principal": principal, "file": file, "writer": writer }), command.json);
    Ok(())
}

/// A signed statement of a file, whose signature is right.
fn read_signed(file: &Path, key: &[u8; 32]) -> Outcome<SignedStatement> {
    let octets = fs::read(file).map_err(|error| Failure::system(file.display(), &error))?;
    let refused = |what: String| Failure::new(format!("{}: {what}", file.display()));
    let signed = Signed::<SignedStatement>::decode(&octets).map_err(|error| {
        refused(format!("no signed statement: {error}")).help("`wayleave cap statements N --signed FILE` writes one")
    })?;
    let statement = signed.verify(key).map_err(|_| {
        refused("this key did not sign it".to_owned())
            .help("take the provider's writer key from your contract, and not from whoever gave you the statement: it may be forged")
    })?;
    Ok(statement.clone())
}

/// Whether a statement goes on where the one before it ended.
fn follows(before: &SignedStatement, statement: &SignedStatement) -> Result<(), Failure> {
    let of = |statement: &SignedStatement| (statement.zone.clone(), statement.principal, statement.owner);
    if of(before) != of(statement) {
        return Err(Failure::new("the two statements are of different providers, principals or owners"));
    }
    if before.number == statement.number && before != statement {
        return Err(Failure::new(format!(
            "there are two different statements {} for the same principal",
            statement.number
        ))
        .help("both are signed: the provider has to say which counts"));
    }
    if before.number + 1 == statement.number && before.before == statement.after {
        return Ok(());
    }
    Err(Failure::new(format!(
        "statement {} closes time from {} on, and statement {} up to {}: it is not the one before",
        statement.number,
        utc(statement.after),
        before.number,
        utc(before.before)
    )))
}

/// Prints a signed statement, once its signature is right.
pub fn verify(command: &Verify) -> Outcome {
    let key = command.writer.0.to_bytes();
    let statement = &read_signed(&command.file, &key)?;
    if let Some(line) = &command.line {
        let credential = read_line(line)?;
        let (principal, zone) = (credential.terms.principal.number(), credential.zone.to_string());
        if (statement.principal, statement.zone.as_str()) != (principal, zone.as_str()) {
            return Err(Failure::new(format!(
                "{}: it is of principal {} at {}, and the line is of principal {principal} at {zone}",
                command.file.display(),
                statement.principal,
                statement.zone
            ))
            .into());
        }
    }
    if let Some(previous) = &command.previous {
        follows(&read_signed(previous, &key)?, statement)?;
    }
    let mut said = shown(statement);
    let total = statement.total().octets;
    if let Some(sent) = command.sent {
        let more = total.saturating_sub(sent);
        said["sent"] = sent.to_string().into();
        said["billed_beyond_sent"] = more.to_string().into();
        if more > 0 {
            warn(&format!(
                "{more} octets are billed beyond the {sent} that were sent: count the same key epochs (one is closed when three of its \
                 lengths have passed, so that a month's last ones are on the next statement); else somebody else stamps with this capability"
            ));
        }
    }
    if command.json {
        print_json(said);
        return Ok(());
    }
    let [lines, tags, months] = ["usage", "prices", "percentiles"].map(|list| said[list].take());
    if let Some(said) = said.as_object_mut() {
        said.retain(|name, _| !["usage", "prices", "percentiles"].contains(&name.as_str()));
    }
    print(&fields(&said));
    let rows = |of: &Value| of.as_array().cloned().unwrap_or_default();
    let columns = ["delegation", "sub_delegation", "begins", "ends", "late", "packets", "octets"];
    print(&objects(&rows(&lines), &columns));
    for (list, columns) in [(tags, &billing::PRICE_COLUMNS[2..]), (months, &billing::PERCENTILE_COLUMNS[2..])] {
        if !rows(&list).is_empty() {
            print(&objects(&rows(&list), columns));
        }
    }
    Ok(())
}

/// The tables of a file of usage: totals; that of the second up to which time is closed, under an empty key; those of seconds up to which
/// routers have reported everything, by their numbers; that of lists of another history that routers have. Sums are under a journal of
/// their own.
const TOTALS: &str = "usage";
const CLOSED: &str = "usage-closed";
const CONFIRMED: &str = "usage-confirmed";
const AHEAD: &str = "routers-ahead";
const SUMS: JournalId = JournalId([0xff; 16]);
/// Octets of a total's key: router, journal, account.
const KEY: usize = 2 + 16 + ChargedAccount::LENGTH;

pub fn import(command: &ImportUsage) -> Outcome {
    let here = Here::new(&command.config)?;
    if !command.file.exists() {
        return Err(Failure::new(format!("{} is not there", command.file.display())).into());
    }
    if store::is_open(&command.file)? {
        return Err(Failure::new(format!("{} is in use", command.file.display()))
            .help("stop the key server first")
            .into());
    }
    let file = FileStore::open(&command.file)?;
    let (records, closed, known) = read(|table| file.load(table))?;
    let count = records.len();
    let replaces = command.replace;
    here.store(move |store| async move { store.import_usage(&records, closed, (&known, replaces)).await })?;
    if command.json {
        print_json(json!({ "records": count, "closed_before": utc(closed) }));
    } else {
        print(&format!(
            "{count} records\nnext: start the key server, and keep {} as a backup\n",
            command.file.display()
        ));
    }
    Ok(())
}

/// What such a file has.
fn read(
    load: impl Fn(&'static str) -> Result<Vec<Record>, FileError>,
) -> Outcome<(Vec<UsageRecord<ChargedAccount>>, u64, KnownRouters)> {
    let second = |value: &[u8]| value.try_into().ok().map(u64::from_be_bytes);
    let closed = load(CLOSED)?.first().and_then(|(_, value)| second(value)).unwrap_or(0);
    let confirmed = |(key, value): Record| Some((u16::from_be_bytes(key.try_into().ok()?), second(&value)?));
    let known = KnownRouters {
        confirmed: load(CONFIRMED)?.into_iter().filter_map(confirmed).collect(),
        ahead: load(AHEAD)?.into_iter().filter_map(confirmed).collect(),
    };
    let all = load(TOTALS)?;
    let records: Vec<_> = all.iter().filter_map(|record| self::record(record, closed)).collect();
    if records.len() < all.len() {
        let lost = all.len() - records.len();
        return Err(Failure::new(format!("the file has {lost} records of another version")).into());
    }
    Ok((records, closed, known))
}

fn record((key, value): &Record, closed: u64) -> Option<UsageRecord<ChargedAccount>> {
    let key: &[u8; KEY] = key.as_slice().try_into().ok()?;
    let value: &[u8; 32] = value.as_slice().try_into().ok()?;
    let (router, rest) = key.split_first_chunk::<2>()?;
    let (journal, account) = rest.split_first_chunk::<16>()?;
    let (packets, octets) = value.split_first_chunk::<16>()?;
    let (journal, account) = (JournalId(*journal), ChargedAccount(account.try_into().ok()?));
    // Before statements had numbers; what came late since time was closed last is on the first one that has.
    let number = u64::from(account.late_since().is_some_and(|day| day >= closed));
    Some(UsageRecord {
        router: u16::from_be_bytes(*router),
        journal: if journal == SUMS { JournalId::of_statement(number) } else { journal },
        account,
        total: Usage { packets: u128::from_be_bytes(*packets), octets: u128::from_be_bytes(octets.try_into().ok()?) },
    })
}

//! `doctor`: everything of this machine's roles at once, what is wrong first.
//!
//! It asks what `check --deep` and `show status` ask, of each configuration, and beside that the machine: who runs, by which program, and
//! whether there is room. What it may not look at it says.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use rustix::fs::statvfs;
use serde::Serialize;
use serde_json::{Value, json};
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::kernel_clock::is_synchronised;

use super::apply::unconfirmed_until;
use super::deep::{self, Runs};
use crate::config::check::{Checked, expected, reason};
use crate::config::named_files::{each_text, named_files};
use crate::config::{Source, check, status_of};
use crate::failure::{Failure, Failures};
use crate::fetch::{self, Target};
use crate::output::{print, print_json, table};
use crate::overview::Overview;

#[derive(Args, Debug)]
pub struct Doctor {
    /// The configurations; without any, those of /etc/wayleave.
    pub files: Vec<PathBuf>,
    /// Also print what is fine.
    #[arg(long)]
    pub all: bool,
    #[arg(long)]
    pub json: bool,
}

/// Where units have their configurations.
const FOLDER: &str = "/etc/wayleave";
/// How long a role may take to answer.
const ASKED: fetch::Limits = fetch::Limits::within(Duration::from_secs(2));
/// Of a file system with a role's state, how much is to be free, in percent: below the first it is a problem, below the second a warning.
const LEAST_FREE: [u64; 2] = [3, 10];
/// How long before its end a key or certificate is worth a word.
const ENDS_SOON: u64 = 14 * 24 * 3600;
/// Neighbours of a role that are not well, that are named.
const MOST_PEERS: usize = 5;
/// Lines of what was not looked at, and of warnings, without `--all`.
const MOST_LINES: usize = 12;

/// How something stands, the worst first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Standing {
    Problem,
    Warning,
    /// It could not be looked at.
    NotKnown,
    Fine,
}

/// Something that was looked at.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Found {
    standing: Standing,
    /// The role's file; none for what is the machine's.
    file: Option<PathBuf>,
    about: String,
    message: String,
    cure: Option<String>,
}

/// A role of this machine.
#[derive(Debug, Serialize)]
struct Examined {
    file: PathBuf,
    role: &'static str,
    runs: &'static str,
    process: Option<u32>,
    unit: Option<String>,
    ready: Option<bool>,
    program: Option<String>,
}

/// What was found of one file.
struct Notes<'a> {
    file: &'a Path,
    found: Vec<Found>,
}

impl Notes<'_> {
    fn add(&mut self, standing: Standing, about: &str, message: impl Into<String>, cure: Option<&str>) {
        let (about, message, cure) = (about.to_owned(), message.into(), cure.map(str::to_owned));
        self.found.push(Found { standing, file: Some(self.file.to_owned()), about, message, cure });
    }

    fn failure(&mut self, standing: Standing, about: &str, failure: &Failure) {
        let label = expected(failure).map(|expected| format!(", expected {expected}"));
        let label = label.or_else(|| Some(format!(": {}", reason(failure)?))).unwrap_or_default();
        let place = failure.line_column().map_or(String::new(), |(line, column)| format!("line {line}:{column}: "));
        // Whoever asks may not read what the role may.
        let message = format!("{place}{failure}{label}");
        let is_denied = message.contains("Permission denied");
        let standing = if is_denied { Standing::NotKnown } else { standing };
        let cure = if is_denied { Some("ask as root, or as the role's user") } else { failure.remedy() };
        self.add(standing, about, message, cure);
    }
}

/// Looks at all, and prints it.
pub fn run(command: &Doctor) -> Result<ExitCode, Failures> {
    let files = files(&command.files)?;
    let mut found = machine();
    let (mut roles, mut listens) = (Vec::new(), Vec::new());
    for file in &files {
        let mut notes = Notes { file, found: Vec::new() };
        match Source::read(file) {
            Ok(source) => {
                conflicts(&source, &mut listens, &mut notes);
                roles.push(examine(&source, &mut notes));
            }
            Err(failure) => notes.failure(Standing::Problem, "configuration", &failure),
        }
        found.append(&mut notes.found);
    }
    // What is one machine's is said once.
    let mut seen = Vec::new();
    found.retain(|one| {
        let key = (one.standing, one.about.clone(), one.message.clone());
        let is_new = !seen.contains(&key);
        seen.push(key);
        is_new
    });
    found.sort_by_key(|one| one.standing);
    let is_fine = !found.iter().any(|one| one.standing == Standing::Problem);
    if command.json {
        print_json(json!({ "ok": is_fine, "program": crate::VERSION, "roles": roles, "found": found }));
    } else {
        print(&screen(&found, &roles, command.all));
    }
    Ok(if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The configurations to look at.
fn files(named: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    if !named.is_empty() {
        return Ok(named.to_vec());
    }
    let none = || {
        Failure::usage(format!("there is no configuration in {FOLDER}"))
            .help("name the files: `wayleave doctor FILE...`; `wayleave init ROLE` prints one to begin with")
    };
    let entries = fs::read_dir(FOLDER).map_err(|error| match error.kind() {
        ErrorKind::NotFound => none(),
        _ => Failure::usage(format!("{FOLDER}: {error}")).help("ask as root, or name the files that you may read"),
    })?;
    let paths = entries.flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "toml") && path.is_file()).collect();
    files.sort();
    if files.is_empty() { Err(none()) } else { Ok(files) }
}

/// What is the machine's own.
fn machine() -> Vec<Found> {
    let words = deep::kernel_clock().words;
    let (standing, cure) = match is_synchronised() {
        Ok(true) => (Standing::Fine, None),
        Ok(false) => (Standing::Warning, Some("run a time service, such as chrony")),
        Err(_) => (Standing::NotKnown, None),
    };
    vec![Found { standing, file: None, about: "clock".to_owned(), message: words, cure: cure.map(str::to_owned) }]
}

/// An address at which a role listens: whether by UDP, and of which file it is.
type Listens = (bool, SocketAddr, PathBuf);

/// Two configurations with one address: only one of the two roles can have it.
fn conflicts(source: &Source, listens: &mut Vec<Listens>, notes: &mut Notes<'_>) {
    let file: toml::Table = source.text().parse().unwrap_or_default();
    for (setting, address) in deep::listening(&file).into_iter().filter(|(_, address)| address.port() != 0) {
        let is_udp = setting.ends_with(".local");
        let is_taken =
            |(by_udp, other, file): &&Listens| *by_udp == is_udp && clash(*other, address) && file != source.path();
        if let Some((_, of_other, other)) = listens.iter().find(is_taken) {
            let there = if *of_other == address { String::new() } else { format!(" as {of_other}") };
            let message = format!("`{setting}` is {address}, which {} has too{there}", other.display());
            notes.add(Standing::Problem, "ports", message, Some("choose another port in one of the two files"));
        } else {
            listens.push((is_udp, address, source.path().to_owned()));
        }
    }
}

/// Whether who listens at one address takes the other, too.
fn clash(one: SocketAddr, other: SocketAddr) -> bool {
    // `[::]` also takes IPv4 (ipv6(7), IPV6_V6ONLY).
    let has_all = |all: SocketAddr, of: SocketAddr| all.ip().is_unspecified() && (all.is_ipv6() || of.is_ipv4());
    one.port() == other.port() && (one.ip() == other.ip() || has_all(one, other) || has_all(other, one))
}

/// Looks at one role.
fn examine(source: &Source, notes: &mut Notes<'_>) -> Examined {
    let mut checked = check(source);
    checked.errors.append(&mut checked.examples);
    let Checked { role, errors, warnings, .. } = &checked;
    errors.iter().for_each(|failure| notes.failure(Standing::Problem, "check", failure));
    warnings.iter().for_each(|failure| notes.failure(Standing::Warning, "check", failure));
    if errors.is_empty() {
        notes.add(Standing::Fine, "check", "the configuration is valid", None);
        match deep::look(role, source) {
            Ok(found) => {
                for one in found {
                    let standing = if one.is_good { Standing::Fine } else { Standing::Problem };
                    notes.add(standing, &one.about, one.words, None);
                }
            }
            Err(failures) => failures.0.iter().for_each(|failure| notes.failure(Standing::Problem, "check", failure)),
        }
    }
    unconfirmed(unconfirmed_until(source.path()), unix_now().secs(), notes);
    let process = deep::process(role, source.path());
    let number = process.map(|(_, number)| number);
    let mut examined = Examined {
        file: source.path().to_owned(),
        role,
        runs: "no",
        process: number,
        unit: number.and_then(unit),
        ready: None,
        program: None,
    };
    ask(source, process.map_or(Runs::No, |(runs, _)| runs), &mut examined, notes);
    folders(source).iter().for_each(|folder| room(folder, notes));
    if examined.runs == "no" {
        kernel(role, source, notes);
    }
    examined
}

/// What the role says of itself, if it runs.
fn ask(source: &Source, runs: Runs, examined: &mut Examined, notes: &mut Notes<'_>) {
    let target = Target { url: None, config: Some(source.path().to_owned()) };
    let has_pages = matches!(status_of(source), Ok(Some(_)));
    let answer = has_pages.then(|| fetch::json_within(&target, "/api/v1/overview", ASKED));
    match (answer, runs) {
        (Some(Ok(page)), runs) => {
            // Another role's pages may be where this one's would be, and it may run in a container.
            examined.runs = "yes";
            said(&page, examined, notes);
            expiries(&target, notes);
            if runs == Runs::No {
                let message =
                    "a role answers at the status pages, and no process of this machine runs it with this file";
                notes.add(
                    Standing::NotKnown,
                    "process",
                    message,
                    Some("if it is no container's, compare `[status] listen` with other roles"),
                );
            }
        }
        (_, Runs::No) => {
            let name = source.path().file_stem().unwrap_or_default().to_string_lossy();
            let (role, path) = (examined.role, source.path().display());
            let cure = match source.path().parent() == Some(Path::new(FOLDER)) {
                true => format!(
                    "`systemctl enable --now wayleave-{role}@{name}`; if it ends again: `journalctl -u wayleave-{role}@{name}`"
                ),
                false => format!("`wayleave run {role} --config {path}`"),
            };
            notes.add(Standing::Problem, "process", "the role does not run", Some(&cure));
        }
        (Some(Err(failures)), _) => {
            examined.runs = if runs == Runs::Yes { "yes" } else { "not known" };
            failures.0.iter().for_each(|failure| notes.failure(Standing::Problem, "status page", failure));
        }
        (None, _) => {
            examined.runs = if runs == Runs::Yes { "yes" } else { "not known" };
            let cure = "add a section [status] with `listen = \"127.0.0.1:PORT\"`";
            notes.add(
                Standing::NotKnown,
                "status page",
                "the role serves none, and does not say how it is",
                Some(cure),
            );
        }
    }
    if runs == Runs::NotKnown && examined.runs != "yes" {
        let message =
            "another user's process runs this role with a file of this name: whether it is this file is not told";
        notes.add(Standing::NotKnown, "process", message, Some("ask as root, or as the role's user"));
    }
    older_program(examined, notes);
}

/// The role's own problems and its neighbours that are not well.
fn said(page: &Value, examined: &mut Examined, notes: &mut Notes<'_>) {
    examined.program = page["program"].as_str().map(str::to_owned);
    let Ok(overview) = serde_json::from_value::<Overview>(page.clone()) else {
        let message = "what answers there is another version's page";
        return notes.add(Standing::NotKnown, "status page", message, Some("`wayleave show status` of that version"));
    };
    examined.ready = Some(overview.ready);
    for problem in &overview.problems {
        notes.add(Standing::Problem, "status", problem, None);
    }
    if !overview.ready && overview.problems.is_empty() {
        let cure = "`/readyz` of the status pages says what it waits for";
        notes.add(Standing::Problem, "status", "the role is not ready", Some(cure));
    }
    let ill: Vec<String> = overview
        .rows
        .iter()
        .filter(|row| !row.well)
        .map(|row| row.cells.iter().filter(|cell| *cell != "-").cloned().collect::<Vec<_>>().join(", "))
        .collect();
    for row in ill.iter().take(MOST_PEERS) {
        notes.add(Standing::Warning, "peers", row, None);
    }
    if ill.len() > MOST_PEERS {
        let message = format!("{} more are not well", ill.len() - MOST_PEERS);
        notes.add(Standing::Warning, "peers", message, Some("`wayleave show status --all` has them"));
    }
}

/// A change by `wayleave apply --confirm` that nobody has confirmed. What would undo it does not outlive the machine.
fn unconfirmed(until: Option<u64>, now: u64, notes: &mut Notes<'_>) {
    let Some(until) = until else { return };
    let cure = "`wayleave confirm` keeps it, `wayleave undo` takes it back, each with `--config FILE`";
    if until < now {
        let message = format!(
            "its change was to be undone at {}, and was not: what waited for that is gone, as after a restart of the machine",
            utc(until)
        );
        notes.add(Standing::Problem, "apply", message, Some(cure));
    } else {
        let message = format!("its change is not confirmed, and is undone at {}", utc(until));
        notes.add(Standing::Warning, "apply", message, Some(cure));
    }
}

/// Whether the process runs another program than this one, which is what is installed.
fn older_program(examined: &Examined, notes: &mut Notes<'_>) {
    let cure = match &examined.unit {
        Some(unit) => format!("`systemctl restart {unit}`, in the order of docs/guide/upgrade.md"),
        None => "start the role again, in the order of docs/guide/upgrade.md".to_owned(),
    };
    let is_replaced = examined.process.and_then(|process| fs::read_link(format!("/proc/{process}/exe")).ok());
    let is_replaced = is_replaced.is_some_and(|path| path.to_string_lossy().ends_with(" (deleted)"));
    match &examined.program {
        Some(program) if program != crate::VERSION => {
            let message = format!("the process runs {program}, and this program is {}", crate::VERSION);
            notes.add(Standing::Warning, "version", message, Some(&cure));
        }
        _ if is_replaced => {
            let message = "the process runs a program that was replaced since";
            notes.add(Standing::Warning, "version", message, Some(&cure));
        }
        Some(program) => notes.add(Standing::Fine, "version", program, None),
        None => {}
    }
}

/// The unit of a process, by its control group.
fn unit(process: u32) -> Option<String> {
    unit_of(&fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?)
}

fn unit_of(groups: &str) -> Option<String> {
    let names = groups.lines().filter_map(|line| line.rsplit('/').next());
    { names }.find(|name| name.starts_with("wayleave-") && name.ends_with(".service")).map(str::to_owned)
}

/// Keys and the membership, where they end soon. A realm's list key is among the problems of its status.
fn expiries(target: &Target, notes: &mut Notes<'_>) {
    let now = unix_now().secs();
    if let Ok(keys) = fetch::json_within(target, "/api/v1/keys", ASKED) {
        for (key, end) in ends_of_keys(&keys) {
            let cure = "`wayleave show keys` says more of it; docs/guide/roll-keys.md has how it is replaced";
            expiry(&format!("the key {key}"), end, now, cure, notes);
        }
    }
    if let Ok(status) = fetch::json_within(target, "/api/v1/status", ASKED)
        && let Some(end) = status["membership_until"].as_u64()
    {
        let cure = "the realm's operator renews it: its role is to run, and the status says why it did not";
        expiry("this node's membership", end, now, cure, notes);
    }
}

fn expiry(what: &str, end: u64, now: u64, cure: &str, notes: &mut Notes<'_>) {
    if end < now {
        notes.add(Standing::Problem, "keys", format!("{what} ended at {}", utc(end)), Some(cure));
    } else if end < now + ENDS_SOON {
        notes.add(Standing::Warning, "keys", format!("{what} ends at {}", utc(end)), Some(cure));
    }
}

/// The keys of a page that have an end, in seconds since 1970. One that another key has replaced may end.
fn ends_of_keys(page: &Value) -> Vec<(String, u64)> {
    let rows = page["keys"].as_array().into_iter().flatten();
    let lasting = rows.filter(|key| key["needed_until"].is_null());
    lasting.filter_map(|key| Some((key["id"].as_str()?.to_owned(), key["ends"].as_u64()?))).collect()
}

/// The folders in which the role writes.
fn folders(source: &Source) -> BTreeSet<PathBuf> {
    let states = named_files(source).into_iter().filter(|file| file.setting.ends_with(".state"));
    let folder = |path: PathBuf| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        folder.unwrap_or(Path::new(".")).to_owned()
    };
    states.map(|file| folder(source.resolve(&file.path))).collect()
}

/// Whether there is room where the role writes.
fn room(folder: &Path, notes: &mut Notes<'_>) {
    let room = match statvfs(folder) {
        Ok(room) => room,
        Err(error) => {
            let message = format!("{}: {error}", folder.display());
            return notes.add(Standing::NotKnown, "disk", message, Some("ask as root, or as the role's user"));
        }
    };
    let counts = [("disk", room.f_bavail, room.f_blocks), ("inodes", room.f_favail, room.f_files)];
    for (about, free, all) in counts.into_iter().filter(|(.., all)| *all > 0) {
        let percent = free.saturating_mul(100) / all;
        let standing = match LEAST_FREE.iter().position(|least| percent < *least) {
            Some(0) => Standing::Problem,
            Some(_) => Standing::Warning,
            None => Standing::Fine,
        };
        let message = format!("{percent} % are free at {}, where the role's state is", folder.display());
        let cure = (standing != Standing::Fine).then_some("free some space: on a full disk the role takes nothing new");
        notes.add(standing, about, message, cure);
    }
}

/// What a role needs of the kernel, as far as its configuration tells. One that runs has it.
fn kernel(role: &str, source: &Source, notes: &mut Notes<'_>) {
    let file: toml::Table = source.text().parse().unwrap_or_default();
    let mut settings = Vec::new();
    each_text(&file, &mut |setting, text| settings.push((setting.to_owned(), text.to_owned())));
    let has = |end: &str, value: Option<&str>| {
        settings.iter().any(|(setting, text)| setting.ends_with(end) && value.is_none_or(|value| text == value))
    };
    if ["gateway", "stamper"].contains(&role) && !Path::new("/dev/net/tun").exists() {
        let cure = "`modprobe tun`; a gateway as a proxy (`--proxy ADDRESS`) needs none";
        notes.add(
            Standing::Problem,
            "kernel",
            "/dev/net/tun is not there, from which the role has its interface",
            Some(cure),
        );
    }
    if role == "stamper" && (has(".cgroup", None) || has(".otherwise", Some("drop"))) && !has_program("nft") {
        let message = "the program nft is not there, which control groups and `otherwise = \"drop\"` need";
        notes.add(Standing::Problem, "kernel", message, Some("install the package nftables"));
    }
    if has(".backend", Some("af-xdp")) {
        match fs::read_to_string("/proc/net/protocols") {
            Ok(text) if text.lines().any(|line| line.starts_with("XDP ")) => {
                notes.add(Standing::Fine, "kernel", "it has AF_XDP", None);
            }
            Ok(_) => {
                let cure = "another kernel (CONFIG_XDP_SOCKETS), or `backend = \"udp-gso\"`";
                notes.add(Standing::Problem, "kernel", "this kernel has no AF_XDP", Some(cure));
            }
            Err(error) => notes.add(Standing::NotKnown, "kernel", format!("/proc/net/protocols: {error}"), None),
        }
    }
}

fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Users' paths often lack these two.
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    { folders }.any(|folder| folder.join(name).is_file())
}

/// One screen: problems with their cures, warnings, the roles, and what was not looked at.
fn screen(found: &[Found], roles: &[Examined], all: bool) -> String {
    let name = |file: &Option<PathBuf>| file.as_ref().map_or("this machine".into(), |file| file.display().to_string());
    let of = |standing: Standing| found.iter().filter(move |one| one.standing == standing);
    let mut text = String::new();
    let shown = [
        (Standing::Problem, "problem", usize::MAX),
        (Standing::Warning, "warning", MOST_LINES),
        (Standing::NotKnown, "not looked at", MOST_LINES),
        (Standing::Fine, "fine", 0),
    ];
    let mut left_out = 0;
    for (standing, word, most) in shown {
        let most = if all { usize::MAX } else { most };
        for Found { file, about, message, cure, .. } in of(standing).take(most) {
            text += &format!("{word}: {}: {about}: {message}\n", name(file));
            text += &cure.as_ref().map_or(String::new(), |cure| format!("    {cure}\n"));
        }
        if standing != Standing::Fine {
            left_out += of(standing).count().saturating_sub(most);
        }
    }
    if !text.is_empty() {
        text.push('\n');
    }
    let cell = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let row = |role: &Examined| {
        let ready = role.ready.map(|ready| if ready { "yes" } else { "no" }.to_owned());
        let process = role.process.map(|process| process.to_string());
        let unit = cell(role.unit.clone());
        vec![
            role.file.display().to_string(),
            role.role.to_owned(),
            role.runs.to_owned(),
            cell(ready),
            cell(process),
            unit,
        ]
    };
    if !roles.is_empty() {
        let rows: Vec<Vec<String>> = roles.iter().map(row).collect();
        text += &table(&["FILE", "ROLE", "RUNS", "READY", "PROCESS", "UNIT"], &rows);
        text.push('\n');
    }
    let count = |standing| of(standing).count();
    text += &format!(
        "{} problems, {} warnings, {} not looked at, {} fine",
        count(Standing::Problem),
        count(Standing::Warning),
        count(Standing::NotKnown),
        count(Standing::Fine)
    );
    if left_out > 0 {
        text += &format!("; {left_out} lines are left out, which `--all` has");
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use wayleave_attestation::leaf::LeafKey;
    use wayleave_attestation::pipeline::explain::OwnKey;

    use super::*;

    fn found(standing: Standing, message: &str) -> Found {
        let cure = (standing == Standing::Problem).then(|| "mend it".to_owned());
        Found {
            standing,
            file: Some("/etc/wayleave/a.toml".into()),
            about: "disk".to_owned(),
            message: message.to_owned(),
            cure,
        }
    }

    #[test]
    fn problems_come_first_each_with_its_cure_and_what_is_fine_is_counted() {
        let mut all: Vec<Found> = (0..20).map(|number| found(Standing::Warning, &format!("w{number}"))).collect();
        all.extend([found(Standing::Fine, "much room"), found(Standing::Problem, "full")]);
        all.sort_by_key(|one| one.standing);
        let text = screen(&all, &[], false);
        assert!(text.starts_with("problem: /etc/wayleave/a.toml: disk: full\n    mend it\nwarning: "), "{text}");
        assert!(!text.contains("much room") && !text.contains("w19"), "{text}");
        let end = "1 problems, 20 warnings, 0 not looked at, 1 fine; 8 lines are left out, which `--all` has\n";
        assert!(text.ends_with(end), "{text}");
        let text = screen(&all, &[], true);
        assert!(text.contains("much room") && text.contains("w19") && !text.contains("left out"), "{text}");
    }

    #[test]
    fn the_unit_of_a_process_is_told_by_its_control_group() {
        let group = "0::/system.slice/system-wayleave\\x2dmember.slice/wayleave-member@alpha.service\n";
        assert_eq!(unit_of(group).as_deref(), Some("wayleave-member@alpha.service"));
        assert_eq!(unit_of("0::/user.slice/session-1.scope\n"), None);
    }

    /// A key as an attesting proxy's page has it.
    fn key(ends: Option<u64>, needed_until: Option<u64>) -> Value {
        json!(OwnKey {
            of: "attestations",
            suite: "xmss",
            id: LeafKey { suite: 1, key: [0xab; 32] }.id(),
            sign: "ab".repeat(32),
            registered: true,
            state: "signs",
            routes: 0,
            last_signed: None,
            needed_until,
            left: None,
            ends,
            reload: "SIGHUP",
        })
    }

    #[test]
    fn a_key_that_ends_soon_is_named_and_one_that_was_replaced_is_not() {
        let page = json!({ "version": 1, "keys": [key(Some(7), None), key(Some(8), Some(6)), key(None, None)] });
        let ends = ends_of_keys(&page);
        assert_eq!(ends, [(page["keys"][0]["id"].as_str().expect("a name").to_owned(), 7)]);
        let mut notes = Notes { file: Path::new("a.toml"), found: Vec::new() };
        for end in [99, 100, 99 + ENDS_SOON, 100 + ENDS_SOON] {
            expiry("the key 1", end, 100, "roll it", &mut notes);
        }
        let standings: Vec<Standing> = notes.found.iter().map(|one| one.standing).collect();
        assert_eq!(standings, [Standing::Problem, Standing::Warning, Standing::Warning]);
    }

    #[test]
    fn a_change_that_waits_is_a_warning_and_one_whose_time_is_over_a_problem() {
        let mut notes = Notes { file: Path::new("a.toml"), found: Vec::new() };
        for until in [None, Some(99), Some(100)] {
            unconfirmed(until, 100, &mut notes);
        }
        let standings: Vec<Standing> = notes.found.iter().map(|one| one.standing).collect();
        assert_eq!(standings, [Standing::Problem, Standing::Warning]);
    }

    #[test]
    fn room_is_looked_for_where_each_pair_has_its_state() {
        let folder = std::env::temp_dir().join(format!("wayleave-doctor-room-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join("a.toml");
        let pair = |state: &str| format!("[[pair]]\n[pair.member]\nstate = \"{state}\"\n");
        let text = "[member]\nstate = \"/one/a.redb\"\n".to_owned() + &pair("/two/b.redb") + &pair("/one/c.redb");
        fs::write(&file, text).expect("written");
        let found = folders(&Source::read(&file).expect("a file"));
        assert_eq!(found, BTreeSet::from(["/one", "/two"].map(PathBuf::from)));
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn an_address_in_two_files_is_a_problem() {
        let folder = std::env::temp_dir().join(format!("wayleave-doctor-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let mut listens = Vec::new();
        let mut of = |name: &str, address: &str| {
            let file = folder.join(name);
            fs::write(&file, format!("[status]\nlisten = \"{address}\"\n")).expect("written");
            let source = Source::read(&file).expect("a file");
            let mut notes = Notes { file: &file, found: Vec::new() };
            conflicts(&source, &mut listens, &mut notes);
            notes.found
        };
        assert_eq!(of("one.toml", "127.0.0.1:8481"), []);
        for address in ["127.0.0.1:8481", "0.0.0.0:8481", "[::]:8481"] {
            let said = of("two.toml", address);
            assert!(said.len() == 1 && said[0].message.contains("one.toml has too"), "{said:?}");
        }
        for address in ["127.0.0.2:8481", "[::1]:8481", "0.0.0.0:8482"] {
            assert_eq!(of("two.toml", address), [], "{address}");
        }
        let said = of("three.toml", "127.0.0.1:8482");
        assert!(said[0].message.ends_with("two.toml has too as 0.0.0.0:8482"), "{said:?}");
        fs::remove_dir_all(&folder).expect("removed");
    }
}

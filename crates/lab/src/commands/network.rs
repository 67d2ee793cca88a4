//! `up`, `status`, `exec`, `graph` and `down`: a whole network from one file.
//!
//! `up` starts a process of its own (`hold`) that turns into the holder of the laboratory's namespaces; this program is
//! their first process, and starts and watches everything in them. When the holder ends, for whatever reason, the kernel ends all
//! the rest. What the others need to know lies in the laboratory's folder: who the holder is, what runs, what was said.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use wayleave_lab::exchange::layout::Software;
use wayleave_lab::laboratory::processes::{Role, page_of};
use wayleave_lab::laboratory::routers::commands_of;
use wayleave_lab::laboratory::{Laboratory, Plan, Site};
use wayleave_lab::netns::{self, Network, NetworkNamespace, Rung};
use wayleave_lab::overlay::{tun_problem, with_program};
use wayleave_lab::routers::{self, Routers, default_cache};

use super::{description, product, signals};
use wayleave_config::Source;
use wayleave_config::failure::{Failure, Outcome};
use wayleave_config::output::{objects, print, print_json, warn};

/// Interval at which `up` reads what was said, and the first process looks whether it is to end.
const POLL: Duration = Duration::from_millis(50);
/// How long `up` waits for the laboratory.
const TIMEOUT: Duration = Duration::from_secs(180);
/// How long `down` waits until everything has ended by itself.
const END: Duration = Duration::from_secs(15);
/// Folders that are the laboratory's own inside, so that nothing there is seen from outside.
const HIDDEN: [&str; 2] = ["/run", "/var/tmp"];
/// Lines of a log that are shown.
const MOST_LINES: usize = 15;

#[derive(Args, Debug)]
pub struct Up {
    /// The description.
    pub file: PathBuf,
    /// The laboratory's folder. Default: wayleave/lab/NAME in $XDG_STATE_HOME or ~/.local/state.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// How the namespaces are made. Default: as root if that works, else in a user namespace.
    #[arg(long)]
    pub rung: Option<RungName>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum RungName {
    /// As root.
    Root,
    /// In a user namespace.
    Rootless,
}

impl RungName {
    fn rung(self) -> Rung {
        match self {
            Self::Root => Rung::Root,
            Self::Rootless => Rung::Rootless,
        }
    }
}

/// Which laboratory.
#[derive(Args, Debug, Clone)]
pub struct Which {
    /// The laboratory's name. Default: the only one there is.
    #[arg(long, conflicts_with = "dir")]
    pub lab: Option<String>,
    /// The laboratory's folder.
    #[arg(long)]
    pub dir: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Status {
    #[command(flatten)]
    pub which: Which,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Exec {
    #[command(flatten)]
    pub which: Which,
    /// A place: a node, gateway, server, host, party, member, or a member's router (`NAME-router`). `realm` and `anchor` are operators'.
    pub node: String,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub struct Graph {
    /// A description. Default: that of a laboratory that is up.
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub which: Which,
    /// Lines of text in the place of DOT.
    #[arg(long)]
    pub text: bool,
}

#[derive(Args, Debug)]
pub struct Down {
    #[command(flatten)]
    pub which: Which,
    /// Leave keys, configurations and logs in the folder.
    #[arg(long)]
    pub keep: bool,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Hold {
    /// The laboratory's folder.
    pub folder: PathBuf,
    /// How it was laid out.
    #[arg(long)]
    pub rung: RungName,
}

#[derive(Args, Debug)]
pub struct Look {
    /// The laboratory's folder.
    pub folder: PathBuf,
}

/// The process that holds a laboratory's namespaces. A process ID may come again; together with its start it does not.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Holder {
    pub(super) pid: u32,
    /// Clock ticks after the system's start (proc(5)).
    started: u64,
    rung: String,
}

impl Holder {
    fn is_alive(&self) -> bool {
        matches!(process_state(self.pid), Some((state, started)) if started == self.started && state != 'Z')
    }

    pub(super) fn rung(&self) -> Rung {
        self.rung.parse().unwrap_or(Rung::Root)
    }

    /// `kill -9`, of this process and no other.
    fn kill(&self) -> io::Result<()> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        // The descriptor stands for one process: if its start is the right one, it is the one that is meant.
        if self.is_alive() {
            pidfd_send_signal(&process, Signal::KILL)?;
        }
        Ok(())
    }
}

/// State and start of a process, from `/proc/PID/stat`; the name in it may have any characters.
fn process_state(pid: u32) -> Option<(char, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    // The state is the third field, the start is the 22nd.
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// A laboratory's folder.
#[derive(Clone, Debug)]
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.file(name)).ok()
    }

    /// Writes a file as a whole: who reads it sees the old one or the new one.
    pub(super) fn write(&self, name: &str, text: &str) -> Outcome {
        let (new, old) = (self.file(&format!("{name}.new")), self.file(name));
        let written = fs::write(&new, text).and_then(|()| fs::rename(&new, &old));
        Ok(written.map_err(|error| Failure::system(old.display(), &error))?)
    }

    fn holder(&self) -> Option<Holder> {
        serde_json::from_str(&self.read("holder")?).ok()
    }

    fn is_alive(&self) -> bool {
        self.holder().is_some_and(|holder| holder.is_alive())
    }

    pub(super) fn state(&self) -> Value {
        self.read("state.json").and_then(|text| serde_json::from_str(&text).ok()).unwrap_or(Value::Null)
    }

    pub(super) fn plan(&self) -> Outcome<Plan> {
        description::read(&Source::read(&self.file("description.toml"))?)
    }

    /// Whether a laboratory's `up` made it.
    fn is_ours(&self) -> bool {
        self.file("description.toml").is_file()
    }

    /// The end of the first process's log.
    fn log_tail(&self) -> String {
        let text = self.read("log").unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(MOST_LINES)..].join("\n")
    }
}

/// Where laboratories are by default.
fn base() -> Outcome<PathBuf> {
    let given = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = given("XDG_STATE_HOME").or_else(|| Some(given("HOME")?.join(".local/state")));
    let none =
        || Failure::usage("no folder for the laboratory: neither XDG_STATE_HOME nor HOME is set").help("add --dir DIR");
    Ok(state.ok_or_else(none)?.join("wayleave/lab"))
}

impl Which {
    /// The laboratory that is meant.
    fn find(&self) -> Outcome<Folder> {
        let missing = |what: String| Failure::new(what).help("`wayleave-lab up FILE` starts one");
        if let Some(dir) = &self.dir {
            let folder = Folder(absolute(dir)?);
            return if folder.is_ours() {
                Ok(folder)
            } else {
                Err(missing(format!("no laboratory in {}", dir.display())).into())
            };
        }
        if let Some(name) = &self.lab {
            let base = base()?;
            let folder = Folder(base.join(name));
            let is_name = !name.is_empty() && !name.contains('/') && !name.starts_with('.');
            return if is_name && folder.is_ours() {
                Ok(folder)
            } else {
                Err(missing(format!("no laboratory `{name}`")).into())
            };
        }
        match &all()?[..] {
            [] => Err(missing("there is no laboratory".to_owned()).into()),
            [one] => Ok(one.clone()),
            many => {
                let names: Vec<String> =
                    many.iter().filter_map(|one| Some(one.0.file_name()?.to_string_lossy().into_owned())).collect();
                Err(Failure::usage(format!("there are several laboratories: {}", names.join(", ")))
                    .help("add --lab NAME")
                    .into())
            }
        }
    }
}

/// All laboratories in the usual place.
fn all() -> Outcome<Vec<Folder>> {
    let entries = fs::read_dir(base()?).into_iter().flatten().flatten().map(|entry| Folder(entry.path()));
    let mut found: Vec<Folder> = entries.filter(Folder::is_ours).collect();
    found.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(found)
}

fn absolute(path: &Path) -> Outcome<PathBuf> {
    Ok(std::path::absolute(path).map_err(|error| Failure::system(path.display(), &error))?)
}

/// Makes the laboratory's folder, which nobody else can read.
fn new_folder(command: &Up, plan: &Plan) -> Outcome<Folder> {
    let path = match &command.dir {
        Some(dir) => absolute(dir)?,
        None => base()?.join(plan.name()),
    };
    let failed = |error: io::Error| Failure::system(path.display(), &error);
    let folder = Folder(path.clone());
    if path.exists() {
        let failure = match () {
            () if folder.is_alive() => Failure::new(format!("the laboratory in {} is up already", path.display()))
                .help("`wayleave-lab down` ends it"),
            () if folder.is_ours() => Failure::new(format!("a laboratory that has ended is in {}", path.display()))
                .help("`wayleave-lab down` removes what it left"),
            () => {
                Failure::new(format!("{} exists, and is no laboratory's", path.display())).help("choose another --dir")
            }
        };
        return Err(failure.into());
    }
    let parent = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent).map_err(failed)?;
    let real = fs::canonicalize(parent).map_err(failed)?;
    if let Some(hidden) = HIDDEN.iter().find(|hidden| real.starts_with(hidden)) {
        let why = format!("a laboratory's folder cannot be below {hidden}: it has one of its own there");
        return Err(Failure::usage(why).help("choose another --dir, such as one in /tmp").into());
    }
    let mut builder = fs::DirBuilder::new();
    builder.mode(0o700).create(&path).map_err(failed)?;
    Ok(Folder(real.join(path.file_name().unwrap_or_default())))
}

/// The rung to use; an error where there are no namespaces.
fn choose(given: Option<RungName>) -> Outcome<Rung> {
    if let Some(given) = given {
        return Ok(given.rung());
    }
    let found = netns::detect();
    if found.rung != Rung::Simulated {
        return Ok(found.rung);
    }
    let reasons: Vec<String> = found.refused.iter().map(|(rung, why)| format!("{rung}: {why}")).collect();
    Err(Failure::new(format!("there are no network namespaces here ({})", reasons.join("; ")))
        .help("run it as root, or allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1)")
        .into())
}

pub fn up(command: &Up) -> Outcome {
    let source = Source::read_laboratory(&command.file)?;
    let plan = description::read(&source)?;
    let rung = choose(command.rung)?;
    product()?;
    if let Some(reason) = tun_problem().filter(|_| plan.needs_tun()) {
        return Err(Failure::new(format!("gateways, stampers and links with a delay need TUN interfaces, and there are none: {reason}"))
            .help("load the module (modprobe tun); in a container pass the device in; let everybody open it (chmod 666 /dev/net/tun), as most systems do")
            .into());
    }
    if rung == Rung::Rootless && plan.software().contains(&Software::OpenBgpd) {
        return Err(Failure::new(
            "OpenBGPD runs as root alone: its processes change to a user that a user namespace does not have",
        )
        .help("run it as root, or give the member another `router`: \"bird\", \"frr\" or \"gobgp\"")
        .into());
    }
    let say = |line: &str| if command.json { eprintln!("{line}") } else { print(&format!("{line}\n")) };
    // What is fetched is fetched here: in the namespaces there is no way to a mirror.
    routers_of(&plan, &mut |line| say(line))?;
    let folder = new_folder(command, &plan)?;
    let failed = |error: io::Error| Failure::system(folder.0.display(), &error);
    fs::write(folder.file("description.toml"), source.text()).map_err(failed)?;
    say(&format!("laboratory {}, {rung}, in {}", plan.name(), folder.0.display()));
    let log = fs::File::create(folder.file("log")).map_err(failed)?;
    let mut holder = Command::new(std::env::current_exe().map_err(failed)?);
    holder.args(["hold"]).arg(&folder.0).args(["--rung", &rung.to_string()]);
    let errors = log.try_clone().map_err(failed)?;
    let is_stopped = stopped()?;
    let mut holder = holder.stdin(Stdio::null()).stdout(log).stderr(errors).spawn().map_err(failed)?;
    let begin = Instant::now();
    let mut read = 0;
    loop {
        if is_stopped.load(Ordering::Acquire) {
            // What is half up is of no use.
            let (was_alive, _) = end(&folder)?;
            if !was_alive {
                // It has not begun.
                let _ = holder.kill();
            }
            let _ = holder.wait();
            fs::remove_dir_all(&folder.0).map_err(failed)?;
            return Err(Failure::new("stopped before the laboratory was up: every process of it has ended").into());
        }
        let text = folder.read("progress").unwrap_or_default();
        let whole = text.rfind('\n').map_or(0, |at| at + 1);
        text.get(read..whole).unwrap_or_default().lines().for_each(&say);
        read = whole.max(read);
        let state = folder.state();
        match state["state"].as_str() {
            Some("up") => break,
            Some("failed") => {
                let why = state["why"].as_str().unwrap_or("it ended").to_owned();
                let help = format!("logs are in {}; `wayleave-lab down` removes them", folder.0.display());
                return Err(Failure::new(why).help(help).into());
            }
            _ => {}
        }
        let ended = holder.try_wait().map_err(failed)?.is_some();
        if ended && folder.state()["state"] != "failed" {
            let why = format!("the laboratory has ended:\n{}", folder.log_tail());
            return Err(Failure::new(why).help("`wayleave-lab down` removes what it left").into());
        }
        if begin.elapsed() > TIMEOUT {
            let why = format!("the laboratory is not up after {} s", TIMEOUT.as_secs());
            return Err(Failure::new(why)
                .help("`wayleave-lab status` shows what runs; `wayleave-lab down` ends it")
                .into());
        }
        sleep(POLL);
    }
    let state = folder.state();
    for warning in state["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        warn(warning);
    }
    if command.json {
        print_json(json!({
            "name": plan.name(), "rung": rung.to_string(), "folder": folder.0, "seconds": begin.elapsed().as_secs_f64(),
            "processes": state["processes"], "warnings": state["warnings"],
        }));
        return Ok(());
    }
    print(&format!("up after {:.1} s\n\n{}", begin.elapsed().as_secs_f64(), to_try(&plan, command)));
    Ok(())
}

/// Set by SIGINT and SIGTERM from here on; a second one ends the process at once.
fn stopped() -> Outcome<Arc<AtomicBool>> {
    let mut next = signals::listen()?;
    let is_stopped = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&is_stopped);
    spawn(move || {
        next();
        set.store(true, Ordering::Release);
        std::process::exit(128 + next());
    });
    Ok(is_stopped)
}

/// The real routers of a description that has some.
fn routers_of(plan: &Plan, say: &mut dyn FnMut(&str)) -> Outcome<Option<Routers>> {
    if !plan.needs_routers() {
        return Ok(None);
    }
    let none = |error: routers::RoutersError| Failure::new(error.to_string()).help("routers here are real ones");
    let mut found = routers::locate_or_fetch(&default_cache(), say).map_err(none)?;
    for software in plan.software() {
        found.add(software.package(), &default_cache(), say).map_err(none)?;
    }
    Ok(Some(found))
}

/// What to try in a laboratory that is up.
fn to_try(plan: &Plan, command: &Up) -> String {
    let which = match &command.dir {
        Some(dir) => format!(" --dir {}", dir.display()),
        // Beside another laboratory each command has to say which one is meant.
        None if all().is_ok_and(|all| all.len() > 1) => format!(" --lab {}", plan.name()),
        None => String::new(),
    };
    let mut lines = vec![format!("wayleave-lab status{which}"), format!("wayleave-lab graph{which} --text")];
    lines.extend(plan.to_try().iter().map(|line| format!("wayleave-lab exec{which} {line}")));
    lines.push(format!("wayleave-lab down{which}"));
    format!("To try:\n{}", lines.iter().map(|line| format!("  {line}\n")).collect::<String>())
}

/// Writes who the process is, and becomes the holder; or the laboratory itself, inside.
pub fn hold(command: &Hold) -> Outcome {
    let folder = Folder(command.folder.clone());
    if netns::inside().is_some() {
        return run(&folder, command.rung.rung());
    }
    let pid = std::process::id();
    let started = process_state(pid).map(|(_, started)| started);
    let started = started.ok_or_else(|| Failure::new("/proc does not show this process"))?;
    let holder = Holder { pid, started, rung: command.rung.rung().to_string() };
    folder.write("holder", &json!(holder).to_string())?;
    let rung = command.rung.rung();
    let arguments: [OsString; 4] = ["hold".into(), folder.0.clone().into(), "--rung".into(), rung.to_string().into()];
    let error = netns::hold(rung, arguments);
    Err(Failure::system("cannot run unshare (package util-linux)", &error).into())
}

/// The first process inside: starts everything, and waits until it is to end.
fn run(folder: &Folder, rung: Rung) -> Outcome {
    let described = |state: &str, more: Value| -> Outcome {
        let mut all = json!({ "version": 1, "state": state, "rung": rung.to_string() });
        for (key, value) in more.as_object().into_iter().flatten() {
            all[key.as_str()] = value.clone();
        }
        folder.write("state.json", &all.to_string())
    };
    described("starting", Value::Null)?;
    let mut progress = String::new();
    let mut say = |line: &str| {
        progress += &format!("{line}\n");
        // If this fails, so does the next write of the state, which reports it.
        let _ = fs::write(folder.file("progress"), &progress);
    };
    let mut start = || -> Result<Box<dyn Laboratory>, String> {
        let plan = folder.plan().map_err(|failures| failures.to_string())?;
        let binary = product().map_err(|failures| failures.to_string())?;
        let routers = routers_of(&plan, &mut say).map_err(|failures| failures.to_string())?;
        let network = Network::new().map_err(|error| error.to_string())?;
        let site = Site { network: &network, rung, routers: routers.as_ref() };
        let mut laboratory = plan.start(site, &folder.file("nodes"), &binary, &mut say)?;
        described("starting", laboratory.describe()).map_err(|failures| failures.to_string())?;
        laboratory.settle(&mut say)?;
        Ok(laboratory)
    };
    let mut laboratory = match start() {
        Ok(laboratory) => laboratory,
        Err(why) => {
            described("failed", json!({ "why": why }))?;
            return Err(Failure::new(why).into());
        }
    };
    described("up", laboratory.describe())?;
    while !folder.file("stop").exists() {
        // Ended processes are waited for, so that their IDs show that they have ended.
        laboratory.reap();
        sleep(POLL);
    }
    let killed = laboratory.stop();
    described("down", json!({ "killed": killed }))
}

/// A laboratory that is up.
pub(super) fn alive(which: &Which) -> Outcome<(Folder, Holder)> {
    let folder = which.find()?;
    match folder.holder().filter(Holder::is_alive) {
        Some(holder) => Ok((folder, holder)),
        None => Err(Failure::new(format!("the laboratory in {} has ended", folder.0.display()))
            .help("`wayleave-lab down` removes what it left, `wayleave-lab up` starts it anew")
            .into()),
    }
}

/// What runs, asked from inside.
fn inside(folder: &Folder, holder: &Holder) -> Outcome<Value> {
    let failed = |error: io::Error| Failure::system("cannot enter the laboratory", &error);
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = NetworkNamespace::Own.command_from_outside(holder.pid, holder.rung(), None, program);
    let output = command.arg("look").arg(&folder.0).stdin(Stdio::null()).output().map_err(failed)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Failure::new(format!("cannot look into the laboratory: {said}"))
            .help("only who started it, or root, may enter it")
            .into());
    }
    let value = serde_json::from_slice(&output.stdout);
    Ok(value.map_err(|error| Failure::new(format!("what was seen in the laboratory cannot be read: {error}")))?)
}

/// Looks at processes and their pages; run in the laboratory's namespaces.
pub fn look(command: &Look) -> Outcome {
    let folder = Folder(command.folder.clone());
    let (state, plan) = (folder.state(), folder.plan()?);
    let list = |key: &str| state[key].as_array().cloned().unwrap_or_default();
    let runs = |row: &Value| {
        let pid = row["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        pid.and_then(process_state).is_some_and(|(state, _)| state != 'Z')
    };
    let role = |name: &str| Role::ALL.into_iter().find(|role| role.name() == name);
    let process = |row: Value| {
        let mut seen = row.clone();
        let place = row["node"].as_str().unwrap_or_default();
        let answer = role(row["role"].as_str().unwrap_or_default())
            .filter(|_| runs(&row))
            .map(|role| page_of(&plan.namespace(place), place, role, "/api/v1/status"));
        seen["state"] = json!(match &answer {
            // A router of other software has no page.
            None if runs(&row) => "up",
            None => "ended",
            Some(Ok(_)) => "up",
            Some(Err(_)) => "silent",
        });
        if let Some(Ok(status)) = answer {
            seen["detail"] = json!(detail(&status));
        }
        seen
    };
    let line = |row: Value| {
        let mut seen = row.clone();
        seen["state"] = json!(if runs(&row) { "up" } else { "ended" });
        seen
    };
    print_json(json!({
        "processes": list("processes").into_iter().map(process).collect::<Vec<_>>(),
        "commands": list("commands").into_iter().map(line).collect::<Vec<_>>(),
    }));
    Ok(())
}

/// The counters of a status page that say most.
fn detail(status: &Value) -> String {
    let number = |key: &str| status[key].as_u64();
    let mut parts = Vec::new();
    if let (Some(known), Some(all)) = (number("neighbours_known"), number("neighbours")) {
        parts.push(format!("{known} of {all} neighbours"));
    }
    if let Some(pairs) = status["pairs"].as_array() {
        let up = pairs.iter().filter(|pair| pair["inside"]["up"] == true && pair["outside"]["up"] == true).count();
        parts.push(format!("{up} of {} pairs", pairs.len()));
    }
    if let (Some(own), Some(installed)) = (number("router_routes"), number("installed")) {
        parts.push(format!("announces {own}, installed {installed}"));
    }
    if status["party"].is_u64() {
        let members = status["members"].as_array().map_or(0, Vec::len);
        let objects = number("objects").unwrap_or_default();
        parts.push(format!("members {members}, objects {objects}"));
    }
    for key in ["members", "adverts", "forwarded", "delivered", "sent", "received", "consented", "refused", "failovers"]
    {
        if let Some(count) = number(key).filter(|count| *count > 0) {
            parts.push(format!("{key} {count}"));
        }
    }
    // Waypoints and stampers have these in sections.
    for (section, key) in [("decided", "forwarded"), ("stamper", "stamped")] {
        if let Some(count) = status[section][key].as_u64().filter(|count| *count > 0) {
            parts.push(format!("{key} {count}"));
        }
    }
    let dropped = |key: &str| -> u64 {
        status[key].as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum()
    };
    let sum: u64 = dropped("dropped") + dropped("reasons");
    if sum > 0 {
        parts.push(format!("dropped {sum}"));
    }
    parts.join(", ")
}

pub fn status(command: &Status) -> Outcome {
    let folder = command.which.find()?;
    let plan = folder.plan()?;
    let known = folder.state();
    let holder = folder.holder().filter(Holder::is_alive);
    let seen = match &holder {
        Some(holder) => inside(&folder, holder)?,
        None => json!({ "processes": [], "commands": [] }),
    };
    let state = match (&holder, known["state"].as_str()) {
        (Some(_), Some(state)) => state.to_owned(),
        (Some(_), None) => "starting".to_owned(),
        (None, _) => "ended".to_owned(),
    };
    if command.json {
        print_json(json!({
            "name": plan.name(), "state": state, "rung": known["rung"], "folder": folder.0, "why": known["why"],
            "warnings": known["warnings"], "processes": seen["processes"], "commands": seen["commands"],
        }));
        return Ok(());
    }
    let why = known["why"].as_str().map_or(String::new(), |why| format!(": {why}"));
    print(&format!("laboratory {} is {state}{why}\n", plan.name()));
    let list = |key: &str| seen[key].as_array().cloned().unwrap_or_default();
    let (processes, commands) = (list("processes"), list("commands"));
    if !processes.is_empty() {
        print(&format!("\n{}", objects(&processes, &["node", "role", "state", "pid", "page", "detail"])));
    }
    if !commands.is_empty() {
        print(&format!("\n{}", objects(&commands, &["node", "command", "state", "pid"])));
    }
    for warning in known["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        warn(warning);
    }
    Ok(())
}

pub fn exec(command: &Exec) -> Outcome {
    let (folder, holder) = alive(&command.which)?;
    let plan = folder.plan()?;
    let places = plan.places();
    if !places.contains(&command.node) {
        let all: Vec<String> = places.into_iter().collect();
        return Err(Failure::usage(format!("no `{}` in this laboratory", command.node))
            .help(format!("there are: {}", all.join(", ")))
            .into());
    }
    let Some((program, arguments)) = command.command.split_first() else {
        return Err(Failure::usage("no command").into());
    };
    let here = folder.file("nodes").join(&command.node);
    let mut entering =
        plan.namespace(&command.node).command_from_outside(holder.pid, holder.rung(), Some(&here), program);
    let path = with_program(&product()?);
    let own = std::iter::once(commands_of(&here)).chain(std::env::split_paths(&path));
    let path = std::env::join_paths(own).unwrap_or(path);
    entering.env("PATH", path);
    let error = entering.args(arguments).exec();
    Err(Failure::system("cannot run nsenter (package util-linux)", &error).into())
}

pub fn graph(command: &Graph) -> Outcome {
    let (plan, ended) = match &command.file {
        Some(file) => (description::read(&Source::read_laboratory(file)?)?, BTreeSet::new()),
        None => {
            let folder = command.which.find()?;
            let ended = match folder.holder().filter(Holder::is_alive) {
                Some(holder) => ended(&inside(&folder, &holder)?),
                None => BTreeSet::new(),
            };
            (folder.plan()?, ended)
        }
    };
    print(&if command.text { plan.drawing(&ended) } else { plan.dot(&ended) });
    Ok(())
}

/// Places whose process has ended.
fn ended(seen: &Value) -> BTreeSet<String> {
    let rows = seen["processes"].as_array().into_iter().flatten();
    let rows = rows.filter(|row| row["state"] == "ended");
    rows.filter_map(|row| row["node"].as_str().map(str::to_owned)).collect()
}

pub fn down(command: &Down) -> Outcome {
    let folder = command.which.find()?;
    let failed = |error: io::Error| Failure::system(folder.0.display(), &error);
    let (was_alive, was_killed) = end(&folder)?;
    if !command.keep {
        fs::remove_dir_all(&folder.0).map_err(failed)?;
    }
    if command.json {
        print_json(json!({ "folder": folder.0, "was_up": was_alive, "killed": was_killed, "kept": command.keep }));
        return Ok(());
    }
    let how = match (was_alive, was_killed) {
        (false, _) => "it had ended already",
        (true, false) => "every process has ended",
        (true, true) => "it did not end by itself, and was killed with all its processes",
    };
    let kept = if command.keep { format!("; its files are in {}", folder.0.display()) } else { String::new() };
    print(&format!("down: {how}{kept}\n"));
    Ok(())
}

/// Ends a laboratory: whether it was alive, and whether it had to be killed.
fn end(folder: &Folder) -> Outcome<(bool, bool)> {
    let failed = |error: io::Error| Failure::system(folder.0.display(), &error);
    let was_alive = folder.is_alive();
    fs::write(folder.file("stop"), "").map_err(failed)?;
    let begin = Instant::now();
    while folder.is_alive() && begin.elapsed() < END {
        sleep(POLL);
    }
    let mut was_killed = false;
    if let Some(holder) = folder.holder().filter(Holder::is_alive) {
        // The kernel ends all that is in its namespaces.
        holder.kill().map_err(|error| Failure::system(format!("cannot end process {}", holder.pid), &error))?;
        was_killed = true;
        let killed = Instant::now();
        while holder.is_alive() && killed.elapsed() < END {
            sleep(POLL);
        }
        if holder.is_alive() {
            return Err(Failure::new(format!("process {} does not end", holder.pid)).into());
        }
    }
    Ok((was_alive, was_killed))
}

//! `console`: the product's console beside a laboratory. Each process's status pages are in a network namespace of its own; a program inside
//! (`pages`) brings each to a socket, which the console reads. What a laboratory alone can do, experiments and attacks, is ordered at a front of it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use wayleave_config::failure::{Failure, Outcome};
use wayleave_config::output::print;
use wayleave_lab::console::attacks::Attacks;
use wayleave_lab::console::experiments::Experiments;
use wayleave_lab::console::front::Front;
use wayleave_lab::console::{LISTEN, configuration, cookie, new_folder, new_token, shows, takes_sockets, to_socket};
use wayleave_lab::laboratory::processes::Role;
use wayleave_lab::netns::NetworkNamespace;
use wayleave_lab::ports::free_address;

use super::network::{Folder, Holder, Which, alive};
use super::{bench, product, signals};

/// How long the console may take to answer.
const START: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);

#[derive(Args, Debug)]
pub struct Console {
    #[command(flatten)]
    pub which: Which,
    /// Where the console is: of this machine alone, since a laboratory's shows both parties.
    #[arg(long, default_value = LISTEN)]
    pub listen: SocketAddr,
}

#[derive(Args, Debug)]
pub struct Pages {
    /// The laboratory's folder.
    pub folder: PathBuf,
    /// Where the sockets are made.
    pub sockets: PathBuf,
}

/// What the folder of a console is called, in that of the laboratory; its process follows.
const FOLDER: &str = "pages-";
/// The file in it that names the folder of its sockets.
const SOCKETS: &str = "sockets";
/// What a folder of sockets elsewhere is called.
const ELSEWHERE: &str = "wayleave-lab";

/// The socket of a process's pages.
fn socket(sockets: &Path, place: &str) -> PathBuf {
    sockets.join(format!("{place}.sock"))
}

/// What a console has for itself while it runs; removed on drop.
struct Own {
    folder: PathBuf,
    /// Where the sockets are: in it, or elsewhere if its path is too long for one.
    sockets: PathBuf,
}

impl Own {
    fn new(folder: &Folder, places: &[(String, Role)]) -> io::Result<Self> {
        remove_left(folder);
        let own = folder.file(&format!("{FOLDER}{}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&own)?;
        let names: Vec<&str> = places.iter().map(|(place, _)| place.as_str()).collect();
        let sockets = if takes_sockets(&own, &names) { own.clone() } else { new_folder(ELSEWHERE)? };
        let own = Self { folder: own, sockets };
        fs::write(own.folder.join(SOCKETS), own.sockets.as_os_str().as_bytes())?;
        Ok(own)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        remove(&self.folder);
    }
}

/// Removes the folder of a console, with its sockets.
fn remove(own: &Path) {
    let sockets = fs::read(own.join(SOCKETS)).map(|path| PathBuf::from(OsString::from_vec(path)));
    let is_ours = |path: &Path| path.file_name().is_some_and(|name| name.as_bytes().starts_with(ELSEWHERE.as_bytes()));
    if let Some(sockets) = sockets.ok().filter(|path| is_ours(path)) {
        let _ = fs::remove_dir_all(sockets); // it may have gone
    }
    let _ = fs::remove_dir_all(own); // as above
}

/// Removes what consoles that were killed have left.
fn remove_left(folder: &Folder) {
    for entry in fs::read_dir(&folder.0).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(FOLDER)?.parse::<u32>().ok());
        let has_ended =
            |process: u32| process == std::process::id() || !Path::new(&format!("/proc/{process}")).exists();
        if process.is_some_and(has_ended) {
            remove(&entry.path());
        }
    }
}

/// The processes that have pages: place and role.
fn processes(folder: &Folder) -> Vec<(String, Role)> {
    let state = folder.state();
    let rows = state["processes"].as_array().into_iter().flatten();
    let process = |row: &serde_json::Value| {
        let role = Role::ALL.into_iter().find(|role| row["role"] == role.name())?;
        Some((row["node"].as_str()?.to_owned(), role))
    };
    rows.filter_map(process).collect()
}

/// Shows a laboratory in a browser until SIGINT or SIGTERM.
pub fn console(command: &Console) -> Outcome {
    if !command.listen.ip().is_loopback() {
        return Err(Failure::usage(format!("{} is not of this machine alone", command.listen))
            .help("a laboratory's console shows both parties: listen at 127.0.0.1, and come by `ssh -L`")
            .into());
    }
    let (folder, holder) = alive(&command.which)?;
    let sources = processes(&folder);
    if sources.is_empty() {
        return Err(Failure::new("the laboratory is not up yet: no process has started").into());
    }
    let own = Own::new(&folder, &sources).map_err(|error| Failure::system(folder.0.display(), &error))?;
    let mut pages = bring_pages(&folder, &holder, &own)?;
    let mut wait = signals::listen()?;
    let outcome = show(command, &folder, &own, &sources, &mut pages, &mut wait);
    // Without its end of the pipe the program inside ends.
    drop(pages.stdin.take());
    let _ = pages.wait(); // it has ended
    outcome
}

fn show(
    command: &Console,
    folder: &Folder,
    own: &Own,
    sources: &[(String, Role)],
    pages: &mut Child,
    wait: &mut (impl FnMut() -> i32 + Send + 'static),
) -> Outcome {
    let at = |(place, _): &(String, Role)| (place.clone(), format!("unix:{}", socket(&own.sockets, place).display()));
    let shown: Vec<(String, String)> = sources.iter().map(at).collect();
    let (file, of_token) = (own.folder.join("console.toml"), own.folder.join("console.token"));
    let failed = |error: io::Error| Failure::system(own.folder.display(), &error);
    let token = new_token(&of_token).map_err(failed)?;
    let listener = TcpListener::bind(command.listen).map_err(|error| Failure::system(command.listen, &error))?;
    let behind = free_address().map_err(|error| Failure::system("a port for the console", &error))?;
    fs::write(&file, configuration(&shown, behind, &of_token)).map_err(failed)?;
    wait_for("the sockets of the processes' pages", pages, || {
        sources.iter().all(|(place, _)| socket(&own.sockets, place).exists())
    })?;
    let program = product()?;
    let mut console = ending_with_this(&program);
    console.args(["run", "console", "--config"]).arg(&file).stdin(Stdio::null());
    let mut console = console.spawn().map_err(|error| Failure::system(program.display(), &error))?;
    // Another program may listen there: what answers is this console if it knows the token, and shows these sockets.
    let started = wait_for("the console", &mut console, || shows(behind, &token, &shown))
        .and_then(|()| take_orders(listener, behind, &token, folder, sources));
    if let Ok(experiments) = &started {
        print(&format!(
            "the laboratory's console: http://{}/?token={token}\nCtrl-C ends it; the laboratory stays.\n",
            command.listen
        ));
        wait();
        experiments.end();
    }
    // It ends by itself within seconds; nothing of it is to be kept.
    let _ = console.kill();
    let _ = console.wait();
    started.map(|_| ())
}

/// Puts the front before the console at `behind`; what it can be ordered to run.
fn take_orders(
    listener: TcpListener,
    behind: SocketAddr,
    token: &str,
    folder: &Folder,
    sources: &[(String, Role)],
) -> Outcome<Arc<Experiments>> {
    let failed = |error: io::Error| Failure::system("the console", &error);
    let program = std::env::current_exe().map_err(failed)?;
    let places = sources.iter().map(|(place, _)| place.clone()).collect();
    let attacks = Attacks::new(places, program.clone(), folder.0.clone());
    let experiments = Arc::new(Experiments::new(bench::experiments(), program));
    let cookie = cookie(behind, token).map_err(failed)?;
    let front = Front::new(behind, &cookie, Arc::clone(&experiments), attacks);
    front.ok_or_else(|| Failure::new("the console gives no cookie for its token"))?.serve(listener);
    Ok(experiments)
}

/// A program that the kernel ends with this one, however this one ends.
fn ending_with_this(program: &Path) -> Command {
    let tool = Path::new("/usr/bin/setpriv");
    if !tool.exists() {
        return Command::new(program);
    }
    let mut command = Command::new(tool);
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}

/// Waits until something holds, while a program runs.
fn wait_for(what: &str, program: &mut Child, holds: impl Fn() -> bool) -> Outcome {
    let begin = Instant::now();
    while !holds() {
        if let Ok(Some(status)) = program.try_wait() {
            return Err(Failure::new(format!("{what}: its program has ended ({status})"))
                .help("its lines above say why")
                .into());
        }
        if begin.elapsed() > START {
            return Err(Failure::new(format!("{what} did not answer within {} s", START.as_secs())).into());
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// Starts this program inside the laboratory, for its pages; it ends with its standard input.
fn bring_pages(folder: &Folder, holder: &Holder, own: &Own) -> Outcome<Child> {
    let failed = |error: io::Error| Failure::system("cannot enter the laboratory", &error);
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = NetworkNamespace::Own.command_from_outside(holder.pid, holder.rung(), None, program);
    Ok(command.arg("pages").arg(&folder.0).arg(&own.sockets).stdin(Stdio::piped()).spawn().map_err(failed)?)
}

/// Brings the processes' pages to sockets in the folder; run in the laboratory's namespaces.
pub fn pages(command: &Pages) -> Outcome {
    let folder = Folder(command.folder.clone());
    let plan = folder.plan()?;
    for (place, role) in processes(&folder) {
        let namespace = plan.namespace(&place);
        let at = socket(&command.sockets, &place);
        to_socket(namespace, role.page(), &at).map_err(|error| Failure::system(at.display(), &error))?;
    }
    // Until who asked for it has ended, however that is.
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    Ok(())
}

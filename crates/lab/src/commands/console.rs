//! `console`: the product's console beside a laboratory. Each process's status pages are in a network namespace of its own; a program inside
//! (`pages`) brings each to a socket in the laboratory's folder, which the console reads.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use wayleave_config::failure::{Failure, Outcome};
use wayleave_config::output::print;
use wayleave_lab::console::{LISTEN, configuration, to_socket};
use wayleave_lab::laboratory::processes::Role;
use wayleave_lab::netns::NetworkNamespace;

use super::network::{Folder, Holder, Which, alive};
use super::{product, signals};

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
}

/// The socket of a process's pages.
fn socket(folder: &Path, place: &str) -> PathBuf {
    folder.join("pages").join(format!("{place}.sock"))
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
    let mut pages = bring_pages(&folder, &holder)?;
    let mut wait = signals::listen()?;
    let outcome = show(command, &folder, &sources, &mut pages, &mut wait);
    // Without its end of the pipe the program inside ends.
    drop(pages.stdin.take());
    let _ = pages.wait(); // it has ended
    outcome
}

fn show(
    command: &Console,
    folder: &Folder,
    sources: &[(String, Role)],
    pages: &mut Child,
    wait: &mut (impl FnMut() -> i32 + Send + 'static),
) -> Outcome {
    let at = |(place, _): &(String, Role)| (place.clone(), format!("unix:{}", socket(&folder.0, place).display()));
    folder.write("console.toml", &configuration(&sources.iter().map(at).collect::<Vec<_>>(), command.listen))?;
    let file = folder.file("console.toml");
    wait_for("the sockets of the processes' pages", pages, || {
        sources.iter().all(|(place, _)| socket(&folder.0, place).exists())
    })?;
    let program = product()?;
    let mut console = Command::new(&program);
    console.args(["run", "console", "--config"]).arg(&file).stdin(Stdio::null());
    let mut console = console.spawn().map_err(|error| Failure::system(program.display(), &error))?;
    let started = wait_for("the console", &mut console, || TcpStream::connect(command.listen).is_ok());
    if started.is_ok() {
        print(&format!("the laboratory's console: http://{}\nCtrl-C ends it; the laboratory stays.\n", command.listen));
        wait();
    }
    // It ends by itself within seconds; nothing of it is to be kept.
    let _ = console.kill();
    let _ = console.wait();
    started
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
fn bring_pages(folder: &Folder, holder: &Holder) -> Outcome<Child> {
    let failed = |error: io::Error| Failure::system("cannot enter the laboratory", &error);
    let program = std::env::current_exe().map_err(failed)?;
    let _ = fs::remove_dir_all(folder.file("pages")); // what a console that was killed left
    fs::create_dir(folder.file("pages")).map_err(failed)?;
    let mut command = NetworkNamespace::Own.command_from_outside(holder.pid, holder.rung(), None, program);
    Ok(command.arg("pages").arg(&folder.0).stdin(Stdio::piped()).spawn().map_err(failed)?)
}

/// Brings the processes' pages to sockets in the folder; run in the laboratory's namespaces.
pub fn pages(command: &Pages) -> Outcome {
    let folder = Folder(command.folder.clone());
    let plan = folder.plan()?;
    for (place, role) in processes(&folder) {
        let namespace = plan.namespace(&place);
        let at = socket(&folder.0, &place);
        to_socket(namespace, role.page(), &at).map_err(|error| Failure::system(at.display(), &error))?;
    }
    // Until who asked for it has ended, however that is.
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    Ok(())
}

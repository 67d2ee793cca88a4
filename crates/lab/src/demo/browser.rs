//! The console of the demonstration: it runs within the namespaces, and its pages come to a port outside.

use std::ffi::OsStr;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Options;
use super::exchange::DemoExchange;
use super::report::Report;
use crate::console::{LISTEN, configuration, new_folder, new_token, shows, takes_sockets, to_port, to_socket};
use crate::netns::{NetworkNamespace, Rung};
use crate::ports::free_address;
use crate::process::wait_until;
use crate::role_process::RoleProcess;

/// Tells the process within where the way out is.
const VARIABLE: &str = "WAYLEAVE_DEMO_CONSOLE";
/// How long the console may take to answer.
const START: Duration = Duration::from_secs(10);

/// The port outside, and the socket through which pages come to it; the folder is removed on drop.
pub(super) struct Outside {
    folder: PathBuf,
}

impl Outside {
    pub(super) fn environment(&self) -> (&'static str, &OsStr) {
        (VARIABLE, self.folder.as_os_str())
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder); // nothing of worth is in it
    }
}

/// Opens the usual port, or any if that is taken.
pub(super) fn outside() -> io::Result<Outside> {
    let listener = TcpListener::bind(LISTEN).or_else(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
    let folder = new_folder("wayleave-demo")?;
    std::fs::write(folder.join("address"), listener.local_addr()?.to_string())?;
    to_port(listener, folder.join("page.sock"));
    Ok(Outside { folder })
}

/// A console that ends on drop, and then its sockets go.
pub(super) struct Shown {
    console: RoleProcess,
    /// The folder of the sockets, where it is not among those of the demonstration.
    elsewhere: Option<PathBuf>,
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.console.kill();
        if let Some(folder) = &self.elsewhere {
            let _ = std::fs::remove_dir_all(folder); // nothing of worth is in it
        }
    }
}

/// Starts the console, if somebody may look; it ends with what is returned.
pub(super) fn start(options: &Options, exchange: &DemoExchange, report: &Report) -> Option<Shown> {
    if options.headless || options.json {
        return None;
    }
    // Within namespaces whoever looked for a way out has said why there is none.
    let listen = match exchange.rung {
        Rung::Simulated => free_address().map(|listen| (listen, listen.to_string())),
        _ => way_out(PathBuf::from(std::env::var_os(VARIABLE)?)),
    };
    match listen.map_err(|error| error.to_string()).and_then(|(listen, address)| run(exchange, listen, &address)) {
        Ok((shown, address)) => {
            report.print_line(&format!("console: {address}, while the demonstration runs"));
            Some(shown)
        }
        Err(error) => {
            report.print_line(&format!("no console: {error}"));
            None
        }
    }
}

/// Where the console is to be within the namespaces, and where that is outside.
fn way_out(folder: PathBuf) -> io::Result<(SocketAddr, String)> {
    let listen: SocketAddr = LISTEN.parse().map_err(io::Error::other)?;
    to_socket(NetworkNamespace::Own, listen, &folder.join("page.sock"))?;
    Ok((listen, std::fs::read_to_string(folder.join("address"))?))
}

fn run(exchange: &DemoExchange, listen: SocketAddr, address: &str) -> Result<(Shown, String), String> {
    let failed = |error: io::Error| error.to_string();
    let pages = exchange.state().join("pages");
    std::fs::create_dir_all(&pages).map_err(failed)?;
    let parties = exchange.parties.iter().map(|party| (format!("party{}", party.at.number), &party.at.process));
    let members = exchange.members.iter().map(|member| (member.at.name.clone(), &member.at.proxy));
    let all: Vec<(String, &super::layout::ProcessLayout)> = parties.chain(members).collect();
    let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    let elsewhere = match takes_sockets(&pages, &names) {
        true => None,
        false => Some(new_folder("wayleave-demo").map_err(failed)?),
    };
    let (config, of_token) = (pages.join("console.toml"), pages.join("console.token"));
    let sockets = elsewhere.clone().unwrap_or_else(|| pages.clone());
    let mut shown = Shown { console: process(exchange, config.clone(), &pages), elsewhere };
    let source = |(name, process): (String, &super::layout::ProcessLayout)| {
        let socket = sockets.join(format!("{name}.sock"));
        to_socket(process.namespace.clone(), process.status, &socket)?;
        Ok((name, format!("unix:{}", socket.display())))
    };
    let sources = all.into_iter().map(source).collect::<io::Result<Vec<_>>>().map_err(failed)?;
    let token = new_token(&of_token).map_err(failed)?;
    std::fs::write(&config, configuration(&sources, listen, &of_token)).map_err(failed)?;
    shown.console.start()?;
    let is_up = || match shown.console.is_running() {
        true => shows(listen, &token, &sources).then_some(true),
        false => Some(false),
    };
    match wait_until(START, is_up) {
        Some(true) => Ok((shown, format!("http://{address}/?token={token}"))),
        Some(false) => Err(format!("it has ended:\n{}", shown.console.log_tail())),
        None => Err(format!("it did not come up within {} s", START.as_secs())),
    }
}

fn process(exchange: &DemoExchange, config: PathBuf, pages: &Path) -> RoleProcess {
    let log = pages.join("console.log");
    RoleProcess::new("console".to_owned(), &NetworkNamespace::Own, exchange.binary(), "console", config, log)
}

//! The console of the demonstration: it runs within the namespaces, and its pages come to a port outside.

use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use super::Options;
use super::exchange::DemoExchange;
use super::report::Report;
use crate::console::{LISTEN, configuration, to_port, to_socket};
use crate::netns::{NetworkNamespace, Rung};
use crate::ports::free_address;
use crate::role_process::RoleProcess;

/// Tells the process within where the way out is.
const VARIABLE: &str = "WAYLEAVE_DEMO_CONSOLE";

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
    let folder = std::env::temp_dir().join(format!("wayleave-demo-console-{}", std::process::id()));
    DirBuilder::new().mode(0o700).create(&folder)?;
    std::fs::write(folder.join("address"), listener.local_addr()?.to_string())?;
    to_port(listener, folder.join("page.sock"));
    Ok(Outside { folder })
}

/// Starts the console, if somebody may look; it ends with what is returned.
pub(super) fn start(options: &Options, exchange: &DemoExchange, report: &Report) -> Option<RoleProcess> {
    if options.headless || options.json {
        return None;
    }
    match run(exchange) {
        Ok((console, address)) => {
            report.print_line(&format!("console: http://{address}, while the demonstration runs"));
            Some(console)
        }
        Err(error) => {
            report.print_line(&format!("no console: {error}"));
            None
        }
    }
}

fn run(exchange: &DemoExchange) -> Result<(RoleProcess, String), String> {
    let failed = |error: io::Error| error.to_string();
    let (listen, address) = if exchange.rung == Rung::Simulated {
        let listen = free_address().map_err(failed)?;
        (listen, listen.to_string())
    } else {
        let folder = PathBuf::from(std::env::var_os(VARIABLE).ok_or("there is no port for it outside")?);
        let listen: SocketAddr = LISTEN.parse().map_err(|error| format!("{LISTEN}: {error}"))?;
        to_socket(NetworkNamespace::Own, listen, &folder.join("page.sock")).map_err(failed)?;
        (listen, std::fs::read_to_string(folder.join("address")).map_err(failed)?)
    };
    let pages = exchange.state().join("pages");
    std::fs::create_dir_all(&pages).map_err(failed)?;
    let parties = exchange.parties.iter().map(|party| (format!("party{}", party.at.number), &party.at.process));
    let members = exchange.members.iter().map(|member| (member.at.name.clone(), &member.at.proxy));
    let source = |(name, process): (String, &super::layout::ProcessLayout)| {
        let socket = pages.join(format!("{name}.sock"));
        to_socket(process.namespace.clone(), process.status, &socket)?;
        Ok((name, format!("unix:{}", socket.display())))
    };
    let sources: io::Result<Vec<_>> = parties.chain(members).map(source).collect();
    let config = pages.join("console.toml");
    std::fs::write(&config, configuration(&sources.map_err(failed)?, listen)).map_err(failed)?;
    let mut console = process(exchange, config, &pages);
    console.start()?;
    Ok((console, address))
}

fn process(exchange: &DemoExchange, config: PathBuf, pages: &Path) -> RoleProcess {
    let log = pages.join("console.log");
    RoleProcess::new("console".to_owned(), &NetworkNamespace::Own, exchange.binary(), "console", config, log)
}

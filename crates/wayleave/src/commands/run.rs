//! `run`: a role as a daemon.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use wayleave_runtime::logs;

use super::help::RoleParser;
use crate::failure::{Failure, Outcome};
use crate::roles::{self, Options, RoleName};

#[derive(Args, Debug)]
pub struct Run {
    /// Which role.
    #[arg(value_parser = RoleParser)]
    pub role: RoleName,
    /// Its configuration.
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
    /// Log level or filter, such as `info,wayleave_runtime::links=debug`. Default: WAYLEAVE_LOG, then `info`.
    #[arg(long)]
    pub log: Option<String>,
    /// How log lines are written.
    #[arg(long, value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// Refuse no peer at a third start within a minute, after runs that did not end in order. Without it, the peer whose
    /// input came last is refused for a minute.
    #[arg(long)]
    pub refuse_nobody: bool,
    /// With `gateway`: no TUN interface, and no root. Applications reach members of the realm through a proxy at this address, by SOCKS5
    /// or HTTP. Takes the place of `proxy` in the configuration.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub proxy: Option<SocketAddr>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Runs the role until SIGTERM.
pub fn run(command: &Run) -> Outcome {
    // Before anything draws it: the standard library, among others, panics where the system gives none.
    getrandom::fill(&mut [0]).map_err(|error| {
        Failure::new(format!("the system gave no randomness: {error}"))
            .help("keys and masks need it; look at the limits and filters (seccomp) under which the process runs")
    })?;
    let format = match command.log_format {
        LogFormat::Text => logs::Format::Text,
        LogFormat::Json => logs::Format::Json,
    };
    logs::start(format, command.log.as_deref())?;
    let options = Options { refuses: !command.refuse_nobody, proxy: command.proxy };
    roles::run(command.role, &command.config, options)
}

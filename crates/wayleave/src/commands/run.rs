//! `run`: a role as a daemon.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use wayleave_runtime::logs;

use super::help::RoleParser;
use crate::config::{scion_files, scion_folder};
use crate::failure::{Failure, Outcome};
use crate::roles::{self, Options, RoleName};

#[derive(Args, Debug)]
pub struct Run {
    /// Which role.
    #[arg(value_parser = RoleParser)]
    pub role: RoleName,
    /// Its configuration.
    #[arg(long, short, value_name = "FILE", required_unless_present = "scion")]
    pub config: Option<PathBuf>,
    /// With `router`, in the place of a configuration: the folder of an open-source SCION router, with `router.toml`, `topology.json` and
    /// `keys/master0.key`.
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    pub scion: Option<PathBuf>,
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
    roles::run(command.role, configuration(command)?, options)
}

/// The file of the role's configuration, or the folder that stands for one.
fn configuration(command: &Run) -> Result<&Path, Failure> {
    let Some(folder) = &command.scion else {
        return command.config.as_deref().ok_or_else(|| Failure::usage("no configuration, expected `--config FILE`"));
    };
    if command.role != RoleName::Router {
        return Err(Failure::usage("`--scion` is for a router"));
    }
    if !scion_files::is_one(folder) {
        let what = format!("{} is not the folder of a SCION router", folder.display());
        return Err(Failure::new(what)
            .help(format!("expected {} in it; `--config FILE` is for a file", scion_folder::TOPOLOGY)));
    }
    Ok(folder)
}

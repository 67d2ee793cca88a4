//! The `wayleave` binary: commands, and the roles that run as daemons.
#![allow(clippy::disallowed_methods, reason = "the binary is where clocks, files, sockets and threads are used")]
#![allow(unreachable_pub, reason = "nothing depends on a binary; `pub` marks a module's interface")]

mod api_client;
mod ask;
mod commands;
mod look_up;
mod overview;
mod provider;
mod roles;
mod usage;

use std::process::ExitCode;

use wayleave_config as config;
use wayleave_config::{command_line, failure, fetch, key_files, output};
use wayleave_runtime::huge_pages;
use wayleave_runtime::process_metrics::Build;

use commands::Cli;

/// The system's allocator, with huge pages for roles that forward packets.
#[global_allocator]
static ALLOCATOR: huge_pages::Allocator = huge_pages::Allocator;

/// Version and, where known, commit.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("WAYLEAVE_GIT"), ")");

/// The same for the page of metrics.
const BUILD: Build = Build { version: env!("CARGO_PKG_VERSION"), commit: env!("WAYLEAVE_GIT") };

fn main() -> ExitCode {
    command_line::run(commands::command(), |cli: Cli| cli.command.run())
}

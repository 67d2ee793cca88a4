//! The `wayleave-lab` binary: laboratories, the demonstration, benchmarks.
#![allow(clippy::disallowed_methods, reason = "the laboratory starts processes and reads files, sockets and clocks")]
#![allow(unreachable_pub, reason = "nothing depends on a binary; `pub` marks a module's interface")]

mod commands;

use std::process::ExitCode;

use wayleave_config::command_line;
use wayleave_runtime::huge_pages;

use commands::Cli;

/// As the product has it: what is measured in memory is measured with the product's allocator.
#[global_allocator]
static ALLOCATOR: huge_pages::Allocator = huge_pages::Allocator;

/// Version and, where known, commit.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("WAYLEAVE_GIT"), ")");

fn main() -> ExitCode {
    command_line::run(commands::command(), |cli: Cli| cli.command.run())
}

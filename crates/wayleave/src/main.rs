//! The `wayleave` binary: commands, and the roles that run as daemons.
#![allow(clippy::disallowed_methods, reason = "the binary is where clocks, files, sockets and threads are used")]
#![allow(unreachable_pub, reason = "nothing depends on a binary; `pub` marks a module's interface")]

mod commands;
mod config;
mod failure;
mod fetch;
mod key_files;
mod output;
mod roles;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use wayleave_runtime::huge_pages;

use commands::Cli;
use failure::{Failure, Failures};

/// The system's allocator, with huge pages for roles that forward packets.
#[global_allocator]
static ALLOCATOR: huge_pages::Allocator = huge_pages::Allocator;

/// Version and, where known, commit.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("WAYLEAVE_GIT"), ")");

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command.run() {
        Ok(code) => code,
        Err(failures) => {
            let code = ExitCode::from(failures.exit_code());
            // Clap has accepted the arguments, so that this one is the command's own.
            if std::env::args_os().any(|argument| argument == "--json") {
                report_json(&failures)
            } else {
                failures.0.into_iter().for_each(report)
            }
            code
        }
    }
}

/// Prints the failures as one JSON object on standard output.
fn report_json(failures: &Failures) {
    let [first, ..] = failures.0.as_slice() else { return };
    output::print_json(serde_json::json!({ "error": failures.to_string(), "help": first.remedy() }));
}

/// Prints one failure on standard error, with line and caret if it has a location.
fn report(failure: Failure) {
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let theme = if colour { miette::GraphicalTheme::unicode() } else { miette::GraphicalTheme::unicode_nocolor() };
    let handler = miette::GraphicalReportHandler::new_themed(theme).with_width(120).with_links(false);
    let mut text = String::new();
    match handler.render_report(&mut text, &failure) {
        Ok(()) => eprint!("{text}"),
        Err(_) => eprintln!("{failure}"),
    }
}

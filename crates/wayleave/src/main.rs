//! The `wayleave` binary: commands, and the roles that run as daemons.
#![allow(clippy::disallowed_methods, reason = "the binary is where clocks, files, sockets and threads are used")]
#![allow(unreachable_pub, reason = "nothing depends on a binary; `pub` marks a module's interface")]

mod api_client;
mod ask;
mod commands;
mod config;
mod failure;
mod fetch;
mod key_files;
mod look_up;
mod output;
mod overview;
mod provider;
mod roles;
mod usage;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::FromArgMatches;
use wayleave_runtime::huge_pages;

use commands::Cli;
use failure::{Failure, Failures};

/// The system's allocator, with huge pages for roles that forward packets.
#[global_allocator]
static ALLOCATOR: huge_pages::Allocator = huge_pages::Allocator;

/// Version and, where known, commit.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("WAYLEAVE_GIT"), ")");

fn main() -> ExitCode {
    let cli = match commands::command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        // Help and the version are no errors, and are printed as they are.
        Err(error) if error.use_stderr() && wants_json() => return report_usage(&error),
        Err(error) => error.exit(),
    };
    match cli.command.run() {
        Ok(code) => code,
        Err(failures) => {
            let code = ExitCode::from(failures.exit_code());
            if wants_json() {
                report_json(&failures)
            } else {
                failures.0.into_iter().for_each(report)
            }
            code
        }
    }
}

/// Whether results, and errors too, are printed as JSON. No command has a value that looks like this option.
fn wants_json() -> bool {
    std::env::args_os().any(|argument| argument == "--json")
}

/// Prints a mistake on the command line in the form of [`report_json`]: what is wrong, and clap's usage as help.
fn report_usage(error: &clap::Error) -> ExitCode {
    let text = error.to_string();
    let (message, help) = text.split_once("\n\n").unwrap_or((&text, ""));
    let message = message.strip_prefix("error: ").unwrap_or(message).trim();
    output::print_json(serde_json::json!({ "error": message, "help": help.trim() }));
    ExitCode::from(2)
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

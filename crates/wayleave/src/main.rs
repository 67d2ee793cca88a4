//! The `wayleave` binary: commands, and the roles that run as daemons.
#![allow(clippy::disallowed_methods, reason = "the binary is where clocks, files, sockets and threads are used")]
#![allow(unreachable_pub, reason = "nothing depends on a binary; `pub` says what a module is for")]

mod cli;
mod commands;
mod config;
mod failure;
mod fetch;
mod key_files;
mod output;
mod roles;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use wayleave_lab::demo;
use wayleave_lab::netns::Rung;
use wayleave_runtime::huge_pages;

use cli::{Cli, Command, Demo, Lab, RungName};
use failure::{Failure, Failures, Outcome};

/// The system's, for roles that forward packets with huge pages.
#[global_allocator]
static ALLOCATOR: huge_pages::Allocator = huge_pages::Allocator;

/// Version and, where known, commit.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("WAYLEAVE_GIT"), ")");

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Command::Demo(options) = &cli.command {
        return play_demo(options);
    }
    match run(&cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failures) => {
            let code = ExitCode::from(failures.exit_code());
            if cli.command.json() {
                report_json(&failures)
            } else {
                failures.0.into_iter().for_each(report)
            }
            code
        }
    }
}

fn run(command: &Command) -> Outcome {
    match command {
        Command::Init(init) => commands::init::run(init),
        Command::Check(check) => commands::check::run(check),
        Command::Run(run) => roles::run(run),
        Command::Show(show) => commands::show::show(show),
        Command::Why(why) => commands::show::why(why),
        Command::Locate(locate) => commands::locate::run(locate),
        Command::Invite(invite) => commands::invite::run(invite),
        Command::Keys(keys) => commands::keys::run(keys),
        Command::Members(members) => commands::members::run(members),
        Command::Lab(Lab::Speak(speak)) => commands::lab::speak(speak),
        Command::Bench(bench) => commands::bench::run(bench),
        Command::Demo(_) => Ok(()),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "wayleave", &mut text);
            output::print(&String::from_utf8_lossy(&text));
            Ok(())
        }
        Command::Man => {
            let mut text = Vec::new();
            let rendered = clap_mangen::Man::new(Cli::command()).render(&mut text);
            rendered.map_err(|error| Failure::new(format!("no manual page: {error}")))?;
            output::print(&String::from_utf8_lossy(&text));
            Ok(())
        }
    }
}

fn play_demo(options: &Demo) -> ExitCode {
    let rung = options.rung.map(|rung| match rung {
        RungName::Root => Rung::Root,
        RungName::Rootless => Rung::Rootless,
        RungName::Simulated => Rung::Simulated,
    });
    let options = demo::Options {
        rung,
        headless: options.headless,
        assert: options.assert,
        json: options.json,
        prefixes: options.prefixes,
        table: options.table.clone(),
        keep: options.keep.clone(),
    };
    demo::run(&options, &std::env::args_os().skip(1).collect::<Vec<_>>())
}

/// Prints what failed as one JSON object on standard output.
fn report_json(failures: &Failures) {
    let [first, ..] = failures.0.as_slice() else { return };
    output::print_json(serde_json::json!({ "error": failures.to_string(), "help": first.remedy() }));
}

/// Prints one failure on standard error, with the line and the caret where it has a place.
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

//! The command line of the laboratory. Each command's file has its arguments and its work; a new one is entered here, in
//! [`Command`] and [`Command::run`].

mod bench;
mod console;
mod demo;
mod description;
mod help;
mod network;
mod ping;
mod signals;
mod speak;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use wayleave_config::failure::{Failure, Failures, Outcome};
use wayleave_config::manual;
use wayleave_lab::product;

pub use help::command;

/// Wayleave's laboratory: whole networks on this machine, the demonstration, benchmarks.
#[derive(Parser, Debug)]
#[command(name = "wayleave-lab", version = crate::VERSION, max_term_width = 120)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Play the whole suite with real routers, step by step.
    Demo(demo::Demo),
    /// Start the network that a file describes, in network namespaces.
    ///
    /// A file describes one of four kinds of network. An overlay has a realm's servers, nodes, gateways and hosts. Paid transit
    /// has ordinary routers with waypoints, capabilities and stampers. An exchange (`[exchange]`, `[[member]]`) has two parties and
    /// members' proxies beside BIRD, FRR, GoBGP and OpenBGPD. Attesting networks (`[[as]]`) have BIRD and FRR behind attesting proxies. There is an
    /// example of each in docs/examples/lab.
    Up(network::Up),
    /// Show the processes of a running laboratory.
    Status(network::Status),
    /// Run a command at a place of a laboratory, such as a node, host, member or router.
    Exec(network::Exec),
    /// Show a laboratory in a browser: what each process says, on one page.
    Console(console::Console),
    /// Draw a laboratory: DOT, or lines of text.
    Graph(network::Graph),
    /// End a laboratory: exactly what `up` started.
    Down(network::Down),
    /// Check a description. Exit code 0: valid; 1: errors, with line and column.
    Check(description::Check),
    /// Send packets of a format through running routers, and show what came back.
    Ping(ping::Ping),
    /// Replay the UPDATEs of an MRT file as a BGP speaker.
    Speak(speak::Speak),
    /// Run benchmarks; one JSON object each.
    Bench(Box<bench::Bench>),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print a manual page, or write those of all commands.
    Man(manual::Pages),
    /// Hold a laboratory's namespaces: what `up` starts.
    #[command(hide = true)]
    Hold(network::Hold),
    /// Look at a laboratory from inside: what `status` starts.
    #[command(hide = true)]
    Look(network::Look),
    /// Bring the status pages of a laboratory to its folder: what `console` starts.
    #[command(hide = true)]
    Pages(console::Pages),
}

impl Command {
    /// Runs it; the exit code if it succeeded.
    pub fn run(&self) -> Result<ExitCode, Failures> {
        let outcome: Outcome = match self {
            Command::Demo(command) => return Ok(demo::run(command)),
            Command::Up(command) => network::up(command),
            Command::Status(command) => network::status(command),
            Command::Exec(command) => network::exec(command),
            Command::Console(command) => console::console(command),
            Command::Graph(command) => network::graph(command),
            Command::Down(command) => network::down(command),
            Command::Check(command) => description::check(command),
            Command::Ping(command) => ping::ping(command),
            Command::Speak(command) => speak::run(command),
            Command::Bench(command) => bench::run(command),
            Command::Completions { shell } => manual::completions(*shell, command()),
            Command::Man(pages) => manual::man(pages, command()),
            Command::Hold(command) => network::hold(command),
            Command::Look(command) => network::look(command),
            Command::Pages(command) => console::pages(command),
        };
        outcome.map(|()| ExitCode::SUCCESS)
    }
}

/// The path of the product's program.
fn product() -> Outcome<PathBuf> {
    Ok(product::program().map_err(|error| Failure::new(&error).help(product::REMEDY))?)
}

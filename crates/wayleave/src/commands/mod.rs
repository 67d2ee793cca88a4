//! The command line: nouns after `show`, verbs elsewhere. Each command's file has its arguments and its work; a new one is
//! entered here, in [`Command`] and [`Command::run`].

mod cap;
mod cap_accept;
mod cap_invitations;
mod cap_remote;
mod capability;
mod check;
mod deep;
mod init;
mod invite;
mod join;
mod key_show;
mod keys;
mod locate;
mod manual;
mod members;
mod moved;
mod node_keys;
mod path;
mod pki;
mod realm;
mod revoke;
mod run;
mod show;
mod stamp;
mod succession;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::failure::{Failures, Outcome};

/// Policy-compliant inter-domain routing: private route server, attested AS paths, verifying routers.
#[derive(Parser, Debug)]
#[command(name = "wayleave", version = crate::VERSION, max_term_width = 120)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Print a commented configuration to start from. `check` then names each example value that is to be replaced.
    Init(init::Init),
    /// Check a configuration. Exit code 0: valid; 1: errors, with line and column.
    Check(check::Check),
    /// Run a role as a daemon until SIGTERM. SIGHUP reloads the configuration.
    Run(run::Run),
    /// Show the state of a running role.
    Show(show::Show),
    /// Explain why a prefix has its route, or none (member, attesting proxy), or how packets to a name go (gateway).
    Why(show::Why),
    /// The paths of a gateway.
    #[command(subcommand)]
    Path(path::Path),
    /// Have the own packets stamped while a command runs (stamper).
    Stamp(stamp::Stamp),
    /// Probe the path from a gateway to a name or address.
    Ping(path::Of),
    /// Find between which nodes of an ICING path packets were lost, from the nodes' signed reports.
    Locate(locate::Locate),
    /// Print a member's configuration, from a party's configuration.
    Invite(invite::Invite),
    /// Operate a realm of an overlay: invite nodes, remove them.
    #[command(subcommand)]
    Realm(realm::Realm),
    /// Enter a realm by a token: makes the node's keys, gets its membership, writes its configuration.
    Join(join::Join),
    /// Capabilities of Platypus that people hold: grant, list, delegate, revoke, look secrets up.
    #[command(subcommand)]
    Cap(cap::Cap),
    /// Create key files, print public keys, sign profiles, records and lists.
    #[command(visible_alias = "key", subcommand)]
    Keys(keys::Keys),
    /// Edit the signed member set of an exchange.
    #[command(subcommand)]
    Members(members::Members),
    /// The laboratory is a program of its own.
    #[command(hide = true)]
    Lab(moved::Moved),
    /// The demonstration is a command of the laboratory's program.
    #[command(hide = true)]
    Demo(moved::Moved),
    /// The benchmarks are commands of the laboratory's program.
    #[command(hide = true)]
    Bench(moved::Moved),
    /// Print a completion script for a shell.
    Completions { shell: clap_complete::Shell },
    /// Print the manual page.
    Man,
}

impl Command {
    /// Runs it; the exit code if it succeeded.
    pub fn run(&self) -> Result<ExitCode, Failures> {
        let outcome: Outcome = match self {
            Command::Init(command) => init::run(command),
            Command::Check(command) => check::run(command),
            Command::Run(command) => run::run(command),
            Command::Show(command) => show::show(command),
            Command::Why(command) => show::why(command),
            Command::Path(command) => path::run(command),
            Command::Stamp(command) => return stamp::run(command),
            Command::Ping(command) => path::ping(command),
            Command::Locate(command) => locate::run(command),
            Command::Invite(command) => invite::run(command),
            Command::Realm(command) => realm::run(command),
            Command::Cap(command) => cap::run(command),
            Command::Join(command) => join::run(command),
            Command::Keys(command) => keys::run(command),
            Command::Members(command) => members::run(command),
            Command::Lab(command) => moved::run("lab", "", command),
            Command::Demo(command) => moved::run("demo", "demo", command),
            Command::Bench(command) => moved::run("bench", "bench", command),
            Command::Completions { shell } => manual::completions(*shell),
            Command::Man => manual::man(),
        };
        outcome.map(|()| ExitCode::SUCCESS)
    }
}

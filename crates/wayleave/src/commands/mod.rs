//! The command line: nouns after `show`, verbs elsewhere. Each command's file has its arguments and its work; a new one is
//! entered here, in [`Command`] and [`Command::run`].

mod apply;
mod backup;
mod cap;
mod cap_accept;
mod cap_account;
mod cap_invitations;
mod cap_quota;
mod cap_rate;
mod cap_remote;
mod cap_status;
mod cap_usage;
mod capability;
mod check;
mod deep;
mod doctor;
mod exchange;
mod help;
mod init;
mod invite;
mod join;
mod kept_files;
mod key_show;
mod keys;
mod link;
mod locate;
mod member_lists;
mod members;
mod members_data;
mod members_import;
mod monitor;
mod moved;
mod mrt;
mod netcheck;
mod node_keys;
mod path;
mod pki;
mod realm;
mod realm_keys;
mod realm_lists;
mod reload;
mod revoke;
mod roll_node;
mod run;
mod session;
mod shadow;
mod shadow_files;
mod shadow_live;
mod shadow_report;
mod show;
mod stamp;
mod succession;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::manual;
use crate::failure::{Failures, Outcome};
pub use help::command;

/// Policy-compliant inter-domain routing: private route server, attested AS paths, verifying routers.
#[derive(Parser, Debug)]
#[command(name = "wayleave", version = crate::VERSION, max_term_width = 120)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Print a commented configuration of a role, for `check`.
    Init(init::Init),
    /// Check a configuration and the files that it names; errors with line and column.
    Check(check::Check),
    /// Say what is wrong with this machine's roles, each with its cure.
    ///
    /// The exit code is 0 if nothing is wrong, 1 if something is, and 2 if there is nothing to look at.
    Doctor(doctor::Doctor),
    /// Run a role as a daemon until SIGTERM; SIGHUP reloads the configuration.
    Run(run::Run),
    /// Have a running role read its configuration again; says what changed.
    Reload(reload::Reload),
    /// Say what a changed configuration would change at the role that runs.
    Diff(reload::Diff),
    /// Give a running role a changed configuration; it undoes itself if that is asked for.
    Apply(apply::Apply),
    /// Keep a configuration that `apply --confirm` gave to the role.
    Confirm(apply::Confirm),
    /// Put back the configuration that `apply` replaced.
    Undo(apply::Undo),
    /// Show what happens at a running role, as it happens, until ^C.
    Monitor(monitor::Monitor),
    /// Show the state of a running role.
    Show(show::Show),
    /// Explain why a prefix has its route or none, or how packets to a name or address go.
    Why(show::Why),
    /// Disable, enable, refresh or clear a member's session with its router.
    #[command(subcommand)]
    Session(session::Session),
    /// Add and remove the neighbours of a node: add, remove, list.
    #[command(subcommand)]
    Link(link::Link),
    /// Say what passes between a node and its neighbours (UDP, NAT, TLS), and what to do.
    ///
    /// The exit code is 0 if nothing is bad, and 1 if something is or could not be asked.
    Netcheck(netcheck::NetCheck),
    /// Choose among the paths of a gateway: list, trace, pin, avoid.
    #[command(subcommand)]
    Path(path::Path),
    /// Have the own packets stamped while a command runs (stamper).
    Stamp(stamp::Stamp),
    /// Probe the path from a gateway to a name or address.
    Ping(path::Of),
    /// Find between which nodes of an ICING path packets were lost, from signed reports.
    Locate(locate::Locate),
    /// Make an exchange of one person, for a trial: all keys and configurations at once.
    #[command(subcommand)]
    Exchange(exchange::Exchange),
    /// Invite a member to an exchange: prints its configuration, from a party's.
    Invite(invite::Invite),
    /// Operate a realm of an overlay; `realm invite` invites a node: a token to join by.
    #[command(subcommand)]
    Realm(realm::Realm),
    /// Join a realm as a node, by a token: makes keys and the configuration.
    Join(join::Join),
    /// Sell transit by capabilities; `cap invite` invites a customer: a line to redeem once.
    #[command(subcommand)]
    Cap(cap::Cap),
    /// Create key files, print public keys, sign profiles and records.
    #[command(visible_alias = "key", subcommand)]
    Keys(keys::Keys),
    /// Admit and remove members of an exchange, in the set that both operators sign.
    #[command(subcommand)]
    Members(members::Members),
    /// Compare a running route server's tables with what Wayleave would give.
    Shadow(shadow::Shadow),
    /// The laboratory is a program of its own.
    #[command(hide = true)]
    Lab(moved::Moved),
    /// The demonstration is a command of the laboratory's program.
    #[command(hide = true)]
    Demo(moved::Moved),
    /// The benchmarks are commands of the laboratory's program.
    #[command(hide = true)]
    Bench(moved::Moved),
    /// Copy to a folder what is lost with a role's machine: configuration, keys, records.
    Backup(backup::Backup),
    /// Put a copy of `backup` where a role starts from it; nothing is overwritten.
    Restore(backup::Restore),
    /// Print a completion script for a shell.
    Completions {
        /// For which shell.
        shell: clap_complete::Shell,
    },
    /// Print a manual page, or write those of all commands.
    Man(manual::Pages),
}

impl Command {
    /// Runs it; the exit code if it succeeded.
    pub fn run(&self) -> Result<ExitCode, Failures> {
        let outcome: Outcome = match self {
            Command::Init(command) => init::run(command),
            Command::Check(command) => check::run(command),
            Command::Doctor(command) => return doctor::run(command),
            Command::Run(command) => run::run(command),
            Command::Reload(command) => reload::reload(command),
            Command::Diff(command) => reload::diff(command),
            Command::Apply(command) => apply::apply(command),
            Command::Confirm(command) => apply::confirm(command),
            Command::Undo(command) => apply::undo(command),
            Command::Monitor(command) => monitor::run(command),
            Command::Show(command) => show::show(command),
            Command::Why(command) => show::why(command),
            Command::Session(command) => session::run(command),
            Command::Link(command) => link::run(command),
            Command::Netcheck(command) => netcheck::run(command),
            Command::Path(command) => path::run(command),
            Command::Stamp(command) => return stamp::run(command),
            Command::Ping(command) => path::ping(command),
            Command::Locate(command) => locate::run(command),
            Command::Backup(command) => backup::backup(command),
            Command::Restore(command) => backup::restore(command),
            Command::Exchange(command) => exchange::run(command),
            Command::Invite(command) => invite::run(command),
            Command::Realm(command) => realm::run(command),
            Command::Cap(command) => cap::run(command),
            Command::Join(command) => join::run(command),
            Command::Keys(command) => keys::run(command),
            Command::Members(command) => members::run(command),
            Command::Shadow(command) => shadow::run(command),
            Command::Lab(command) => moved::run("lab", "", command),
            Command::Demo(command) => moved::run("demo", "demo", command),
            Command::Bench(command) => moved::run("bench", "bench", command),
            Command::Completions { shell } => manual::completions(*shell, command()),
            Command::Man(pages) => manual::man(pages, command()),
        };
        outcome.map(|()| ExitCode::SUCCESS)
    }
}

//! `demo`: runs a whole exchange with real routers, step by step.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use wayleave_lab::demo;
use wayleave_lab::netns::Rung;

#[derive(Args, Debug)]
pub struct Demo {
    /// No console; progress on the terminal only.
    #[arg(long)]
    pub headless: bool,
    /// Stop at the first step that fails.
    #[arg(long)]
    pub assert: bool,
    /// JSON lines on standard output.
    #[arg(long)]
    pub json: bool,
    /// How real the exchange is. Default: the most real rung that works here.
    #[arg(long)]
    pub rung: Option<RungName>,
    /// Number of prefixes of the recorded table that one member announces.
    #[arg(long)]
    pub prefixes: Option<usize>,
    /// A recorded routing table (MRT, may be compressed).
    #[arg(long)]
    pub table: Option<PathBuf>,
    /// Keep configurations, state and logs in this folder.
    #[arg(long)]
    pub keep: Option<PathBuf>,
    /// The key server keeps accounts and usage in PostgreSQL, which is fetched.
    #[arg(long)]
    pub postgresql: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum RungName {
    /// Real routers in namespaces, with root.
    Root,
    /// Real routers in namespaces, without root.
    Rootless,
    /// Processes on loopback, built-in BGP speakers.
    Simulated,
}

pub fn run(options: &Demo) -> ExitCode {
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
        postgresql: options.postgresql,
    };
    demo::run(&options, &std::env::args_os().skip(1).collect::<Vec<_>>())
}

//! The arguments of `bench`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[derive(Args, Debug)]
pub struct Bench {
    /// Which; see --list.
    #[arg(required_unless_present = "list")]
    pub name: Option<String>,
    /// Name all benchmarks.
    #[arg(long)]
    pub list: bool,
    /// One JSON object on one line.
    #[arg(long)]
    pub json: bool,
    /// A minute at most.
    #[arg(long)]
    pub short: bool,
    #[arg(long)]
    pub members: Option<usize>,
    #[arg(long)]
    pub routes: Option<usize>,
    #[arg(long, value_enum)]
    pub output: Option<BenchOutput>,
    #[arg(long, value_enum)]
    pub mode: Option<BenchMode>,
    #[arg(long)]
    pub mrt: Option<PathBuf>,
    /// Milliseconds; 0 evaluates at once.
    #[arg(long)]
    pub tick: Option<u64>,
    /// Prefixes of the trace that are played.
    #[arg(long)]
    pub prefixes: Option<usize>,
    #[arg(long)]
    pub repetitions: Option<usize>,
    /// Of forward and stamp: packets begin with their slots of 2 KiB, instead of a cache line further each.
    #[arg(long)]
    pub aligned: bool,
    /// Attestation suites, or baselines, to measure; may be given several times. All if not given.
    #[arg(long)]
    pub suite: Vec<String>,
    /// Of attest-trace: all but `table` if not given.
    #[arg(long, value_enum)]
    pub workload: Option<AttestWorkload>,
    /// Of attest-trace: whether verdicts are kept.
    #[arg(long, value_parser = clap::builder::BoolishValueParser::new())]
    pub cache: Option<bool>,
    /// Of forward and stamp: cores of the results that end in `.cores`; all if not given.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Of forward, stamp and forward-io: only results whose names begin so; may be given several times.
    #[arg(long)]
    pub only: Vec<String>,
    /// Draw what the paper drew into this SVG file, with its points beside ours.
    #[arg(long)]
    pub plot: Option<PathBuf>,
}

impl Bench {
    /// Whether the result of this name is asked for.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|begin| name.starts_with(begin.as_str()))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum AttestWorkload {
    Normal,
    Pathological,
    Heavy,
    /// A whole table at once, from --mrt.
    Table,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum BenchOutput {
    Index,
    Key,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum BenchMode {
    Mpc,
    Direct,
}

//! The arguments of `bench`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use wayleave_core::{Asn, UnixTime};
use wayleave_mpc::GroupBits;
use wayleave_runtime::clock::unix_of_day;

/// What a line decides of one benchmark, and a paper of what gives its tables and figures.
const OF_ONE: [&str; 25] = [
    "members",
    "routes",
    "output",
    "scaling",
    "mode",
    "export",
    "delay_us",
    "generated",
    "bandwidth",
    "group",
    "contested",
    "per_update",
    "sinks",
    "servers",
    "peer",
    "from",
    "until",
    "tick",
    "prefixes",
    "aligned",
    "suite",
    "workload",
    "cache",
    "threads",
    "only",
];
/// What runs of several benchmarks do not take either.
const OF_A_LINE: [&str; 3] = ["name", "list", "plot"];

#[derive(Args, Debug)]
pub struct Bench {
    /// The benchmark to run; --list names all.
    pub name: Option<String>,
    /// Run what gives a table or figure of a paper, with the paper's own work, and print it beside the published figures: such as
    /// sixpack/table-1; --list names all, and says about how long each takes. Takes --short, --repetitions, --plot and --json: the paper decides the rest.
    #[arg(long, value_name = "PAPER/EXHIBIT", conflicts_with_all = OF_ONE, conflicts_with_all = ["name", "list", "all", "headline", "mrt"])]
    pub paper: Option<String>,
    /// List all benchmarks, and the papers' tables and figures.
    #[arg(long)]
    pub list: bool,
    /// Run all benchmarks, and write NAME.json, NAME.svg and a page of them, index.html, to this folder. Takes --short and --repetitions.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = OF_ONE, conflicts_with_all = OF_A_LINE, conflicts_with_all = ["mrt", "headline"])]
    pub all: Option<PathBuf>,
    /// Run what the first table of docs/benchmarks.md shows, each benchmark in turn, write it to headline.md in this folder, and print
    /// it. Takes --short, --repetitions, and --mrt with a recorded table for the row of a full table.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = OF_ONE, conflicts_with_all = OF_A_LINE)]
    pub headline: Option<PathBuf>,
    /// Print the results as one JSON object on one line.
    #[arg(long)]
    pub json: bool,
    /// The short form: seconds for most, up to three minutes for attest-ops and forward; --list says how long the papers' tables and
    /// figures take.
    #[arg(long)]
    pub short: bool,
    /// Members of the exchange.
    #[arg(long)]
    pub members: Option<usize>,
    /// Routes of the prefix, in select-best and exchange-stress; in exchange-peers those of all members together.
    #[arg(long)]
    pub routes: Option<usize>,
    /// What select-best returns to a member: the index of the route, or its key.
    #[arg(long, value_enum)]
    pub output: Option<BenchOutput>,
    /// select-best: measure 32 routes among 1 to 2,000 members, and 4 to 32 routes among 750, beside what the paper says of how it
    /// scales.
    #[arg(long)]
    pub scaling: bool,
    /// How export-all computes: direct by default.
    #[arg(long, value_enum)]
    pub mode: Option<BenchMode>,
    /// exchange-trace, exchange-join and exchange-restart: who multiplies policies and keys, the announcer or the parties; direct by default.
    #[arg(long, value_enum)]
    pub export: Option<BenchMode>,
    /// select-best and export-all --mode mpc: microseconds of delay between the parties.
    #[arg(long)]
    pub delay_us: Option<u64>,
    /// exchange-trace: measure the parties alone over a trace that is generated with the moments that the paper publishes of its own.
    #[arg(long)]
    pub generated: bool,
    /// exchange-trace --generated: measure what the parties send each other in the trace's own time, for Export-All alone and with
    /// Select-Best.
    #[arg(long, requires = "generated")]
    pub bandwidth: bool,
    /// select-best, export-all --mode mpc and exchange-stress: columns of a group of the OT extension, 1, 2, 4 or 8. More send less and compute more.
    #[arg(long, value_parser = group_bits)]
    pub group: Option<GroupBits>,
    /// exchange-join: of how many prefixes of a hundred another member has a route before; 45 by default.
    #[arg(long)]
    pub contested: Option<usize>,
    /// exchange-join: prefixes of one UPDATE; 1 by default.
    #[arg(long)]
    pub per_update: Option<usize>,
    /// exchange-join, exchange-restart, exchange-trace --generated: whether members that take and discard rank in Select-Best, and keep what they take; they do both by
    /// default. exchange-peers: all members but three of Wayleave's take and discard, and keep nothing; without this all are whole.
    #[arg(long, value_enum)]
    pub sinks: Option<BenchSinks>,
    /// exchange-peers: the route servers to measure, one after the other; all by default. The same routes, policies and outages, but not
    /// the same work: Wayleave's parties choose by secure computation, and the proxies of all its members share the machine.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub servers: Vec<BenchServer>,
    /// MRT file with the trace or table to measure; the trace that comes with the sources by default.
    #[arg(long)]
    pub mrt: Option<PathBuf>,
    /// attest-trace --mrt: measure only what this peer of the collector sent, by its AS number.
    #[arg(long, value_name = "AS")]
    pub peer: Option<Asn>,
    /// attest-trace --mrt: measure only what came from this time on, such as 2013-12-01T00:05:00Z, 2013-12-01 or 1385856300 (seconds
    /// since 1970). All times are UTC.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub from: Option<UnixTime>,
    /// attest-trace --mrt: measure only what came before this time.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub until: Option<UnixTime>,
    /// Milliseconds between evaluations in exchange-trace; 0 evaluates every UPDATE at once.
    #[arg(long)]
    pub tick: Option<u64>,
    /// Prefixes of the trace or table to use, at most.
    #[arg(long)]
    pub prefixes: Option<usize>,
    /// Repetitions of each measurement.
    #[arg(long)]
    pub repetitions: Option<usize>,
    /// forward and stamp: let all packets begin at the same offset of their 2 KiB slots, not each one cache line further.
    #[arg(long)]
    pub aligned: bool,
    /// Attestation suite or baseline to measure; may be given several times. All by default.
    #[arg(long)]
    pub suite: Vec<String>,
    /// attest-trace: the workload; all but `table` by default.
    #[arg(long, value_enum)]
    pub workload: Option<AttestWorkload>,
    /// attest-trace: whether the router caches verdicts.
    #[arg(long, value_parser = clap::builder::BoolishValueParser::new())]
    pub cache: Option<bool>,
    /// forward and stamp: cores used for the results that end in `.cores`; all by default. exchange-stress: workers, 1, 2, 4 and 8 by
    /// default.
    #[arg(long)]
    pub threads: Option<usize>,
    /// forward, stamp, forward-io, overlay and pocomon: measure only results whose names begin with this, or with `$` at its end the one
    /// that is called so; may be given several times.
    #[arg(long)]
    pub only: Vec<String>,
    /// SVG file for the paper's figures, with its points beside ours.
    #[arg(long)]
    pub plot: Option<PathBuf>,
    /// Run one party of a benchmark, which talks on standard input and output.
    #[arg(long, hide = true, num_args = 6, allow_hyphen_values = true)]
    pub party: Vec<String>,
    /// What the outer process could not fetch, and why.
    #[arg(long, hide = true)]
    pub absent: Vec<String>,
}

impl Bench {
    /// As the command line `bench NAME` gives it.
    #[cfg(test)]
    pub fn of(name: &str) -> Self {
        let line = Self::augment_args(clap::Command::new("bench").no_binary_name(true));
        clap::FromArgMatches::from_arg_matches(&line.get_matches_from([name])).expect("all else has a default")
    }

    /// Whether the result `name` is to be measured.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|begin| selects(begin, name))
    }
}

/// Whether `only` selects the result `name`: one whose name begins so, or, with `$` at its end, the one that is called so.
pub fn selects(only: &str, name: &str) -> bool {
    only.strip_suffix('$').map_or_else(|| name.starts_with(only), |whole| name == whole)
}

fn group_bits(text: &str) -> Result<GroupBits, String> {
    text.parse().ok().and_then(GroupBits::new).ok_or_else(|| "expected 1, 2, 4 or 8".to_owned())
}

/// A time of UTC: a day, a day and a time with `Z` behind them (ISO 8601), or seconds since 1970.
fn time(text: &str) -> Result<UnixTime, String> {
    let seconds = || {
        if text.bytes().all(|octet| octet.is_ascii_digit()) {
            return text.parse().ok();
        }
        let Some((day, time)) = text.split_once('T') else { return unix_of_day(text) };
        unix_of_day(day)?.checked_add(second_of_day(time.strip_suffix('Z')?)?)
    };
    let expected = "expected a time of UTC such as 2013-12-01T00:05:00Z, 2013-12-01 or 1385856300";
    seconds().and_then(|seconds| seconds.checked_mul(1_000_000)).map(UnixTime).ok_or_else(|| expected.to_owned())
}

/// From `HH:MM` or `HH:MM:SS`.
fn second_of_day(text: &str) -> Option<u64> {
    let parts: Vec<&str> = text.split(':').collect();
    let of = |place: usize, below: u64| -> Option<u64> {
        let digits = parts.get(place).copied().unwrap_or("00");
        let is_number = digits.len() == 2 && digits.bytes().all(|octet| octet.is_ascii_digit());
        digits.parse().ok().filter(|value| is_number && *value < below)
    };
    let seconds: u64 = 3_600 * of(0, 24)? + 60 * of(1, 60)? + of(2, 60)?;
    matches!(parts.len(), 2 | 3).then_some(seconds)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum AttestWorkload {
    /// The paper's normal trace: AS 3277 on 2005-06-01.
    Normal,
    /// The paper's pathological trace: AS 7911 on 2003-01-24.
    Pathological,
    /// The paper's heavy trace: AS 2914 on 2008-12-25.
    Heavy,
    /// A whole table at once, from --mrt.
    Table,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum BenchOutput {
    /// The index of the best route.
    Index,
    /// The key of the best route.
    Key,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum BenchMode {
    /// The parties multiply policies and keys together.
    Mpc,
    /// The announcer does.
    Direct,
}

/// A route server of exchange-peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum BenchServer {
    /// Both parties of the private route server.
    Wayleave,
    /// BIRD 2, as the system or Debian has it.
    Bird,
    /// OpenBGPD, as the system or Debian has it.
    #[value(name = "openbgpd")]
    OpenBgpd,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum BenchSinks {
    /// They send rankings, in which all routes have an equal class.
    Rank,
    /// They take no part in Select-Best.
    OptOut,
    /// They rank, and when they connect again they hold nothing and are sent everything.
    Forget,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_iso_8601_has_them_in_utc_or_as_seconds() {
        let seconds = |text: &str| time(text).map(UnixTime::secs).ok();
        assert_eq!(seconds("1385856300"), Some(1_385_856_300));
        for same in ["2013-12-01T00:05:00Z", "2013-12-01T00:05Z"] {
            assert_eq!(seconds(same), Some(1_385_856_300), "{same}");
        }
        assert_eq!(
            (seconds("2013-12-01"), seconds("2013-12-01T23:59:59Z")),
            (Some(1_385_856_000), Some(1_385_942_399))
        );
        let none = [
            "",
            "noon",
            "-1",
            "1.5",
            "2013-12-01T00:05:00",
            "2013-12-01T00:05:00+01:00",
            "2013-12-01T24:00Z",
            "2013-12-01T00:60Z",
            "2013-12-01T00Z",
            "2013-12-01T0:05Z",
            "2013-12-01T00:05:00:00Z",
            "2013-13-01",
            "2013-02-29",
            "18446744073709551615",
        ];
        for text in none {
            let error = time(text).expect_err(text);
            assert!(error.contains("2013-12-01T00:05:00Z"), "{error}");
        }
    }
}

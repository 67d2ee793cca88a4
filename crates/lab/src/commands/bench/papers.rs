//! `bench --paper ID`: the tables and figures of the papers, and which benchmark gives each, with the paper's own work.

use clap::{Args, Command, FromArgMatches};

use super::Bench;
use wayleave_config::failure::{Failure, Outcome};

/// A table or figure.
pub struct Exhibit {
    /// What `--paper` takes.
    pub id: &'static str,
    /// What it shows.
    pub about: &'static str,
    /// About how long its short form takes: seconds, a minute or minutes.
    pub takes: &'static str,
    /// The benchmark and its arguments.
    arguments: &'static [&'static str],
    /// How the titles of its panels begin; all of the benchmark's if empty.
    panels: &'static str,
}

const fn exhibit(
    id: &'static str,
    about: &'static str,
    takes: &'static str,
    arguments: &'static [&'static str],
    panels: &'static str,
) -> Exhibit {
    Exhibit { id, about, takes, arguments, panels }
}

/// The suites of the KC-x paper.
const OPERATIONS: [&str; 13] = of_suites("attest-ops");
const DELAYS: [&str; 13] = of_suites("attest-trace");
const MEMORY: [&str; 13] = of_suites("attest-memory");

/// A benchmark of the paper's suites alone.
const fn of_suites(bench: &'static str) -> [&'static str; 13] {
    [
        bench,
        "--suite",
        "s-bgp",
        "--suite",
        "spv",
        "--suite",
        "sas-v",
        "--suite",
        "kc-rsa-paper",
        "--suite",
        "kc-mt-paper",
        "--suite",
        "kc-hybrid-paper",
    ]
}

pub const ALL: [Exhibit; 27] = [
    exhibit(
        "sixpack/table-1",
        "Export-All and Select-Best for 750 members: time and octets",
        "a minute",
        &["select-best", "--output", "key"],
        "",
    ),
    exhibit(
        "sixpack/figure-10",
        "processing time of prefixes over a trace",
        "a minute",
        &["exchange-trace", "--generated", "--export", "mpc"],
        "",
    ),
    exhibit(
        "sixpack/figure-11",
        "routes and prefixes a second, by workers",
        "a minute",
        &["exchange-stress", "--mode", "mpc", "--output", "key"],
        "",
    ),
    exhibit(
        "sixpack/scaling",
        "Select-Best by members and routes: time, octets, memory",
        "minutes",
        &["select-best", "--scaling", "--output", "key"],
        "",
    ),
    exhibit(
        "sixpack/bandwidth",
        "bits a second between the parties over a trace",
        "a minute",
        &["exchange-trace", "--generated", "--export", "mpc", "--members", "600", "--bandwidth"],
        "",
    ),
    exhibit(
        "sixpack/join",
        "a member that joins, and one that announces a full table",
        "a minute",
        &["exchange-join", "--export", "mpc"],
        "",
    ),
    exhibit("kc-x/table-1", "how many times faster than S-BGP an UPDATE is", "a minute", &OPERATIONS, "KC-x, Table I:"),
    exhibit("kc-x/table-3", "time of one signature and its verification", "a minute", &OPERATIONS, "KC-x, Table III:"),
    exhibit(
        "kc-x/figure-4",
        "KC-MT: time, size and security by the size of its trees",
        "seconds",
        &["attest-ops"],
        "KC-x, Figure 4",
    ),
    exhibit("kc-x/table-4", "announcements of three workloads", "seconds", &["attest-trace"], "KC-x, Table IV:"),
    exhibit("kc-x/table-5", "delay under three workloads", "a minute", &DELAYS, "KC-x, Table V:"),
    exhibit("kc-x/figure-5", "announcements that arrive, by seconds", "seconds", &["attest-trace"], "KC-x, Figure 5"),
    exhibit("kc-x/figure-6", "UPDATEs that leave, by seconds", "a minute", &DELAYS, "KC-x, Figure 6"),
    exhibit("kc-x/table-6", "memory for signatures of three tables", "a minute", &MEMORY, "KC-x, Table VI:"),
    exhibit(
        "platypus/table-3",
        "processing time of a packet",
        "a minute",
        &[
            "forward",
            "--only",
            "none$",
            "--only",
            "none.1518$",
            "--only",
            "platypus.68$",
            "--only",
            "platypus.348$",
            "--only",
            "platypus.1500$",
            "--only",
            "platypus-full.68$",
            "--only",
            "platypus-full.348$",
            "--only",
            "platypus-full.1500$",
        ],
        "Platypus, Table 3",
    ),
    exhibit(
        "platypus/figure-4",
        "forwarded against offered load, through a router",
        "a minute",
        &["forward-io", "--only", "figure-4"],
        "Platypus, Figure 4",
    ),
    exhibit(
        "platypus/figure-4-memory",
        "forwarding rate without I/O",
        "a minute",
        &[
            "forward",
            "--only",
            "none$",
            "--only",
            "ip$",
            "--only",
            "platypus.68$",
            "--only",
            "platypus-full.68$",
            "--only",
            "platypus-full.cores$",
        ],
        "Platypus, Figure 4",
    ),
    exhibit("platypus/figure-4-stamping", "stamping rate", "a minute", &["stamp"], "Platypus, Figure 4"),
    exhibit("platypus/figure-5", "latency by the number of clusters", "seconds", &["waypoint-granularity"], ""),
    exhibit(
        "scion/figure-3",
        "forwarding rate of one port",
        "a minute",
        &[
            "forward",
            "--only",
            "none$",
            "--only",
            "none.1518$",
            "--only",
            "ip$",
            "--only",
            "ip.1518$",
            "--only",
            "scion-2015$",
            "--only",
            "scion-2015.1518$",
            "--only",
            "scion$",
            "--only",
            "scion.1518$",
        ],
        "SCION, Figure 3",
    ),
    exhibit(
        "scion/figure-4",
        "forwarding rate of all ports",
        "a minute",
        &[
            "forward",
            "--only",
            "none.cores$",
            "--only",
            "none.1518.cores$",
            "--only",
            "ip.cores$",
            "--only",
            "ip.1518.cores$",
            "--only",
            "scion-2015.cores$",
            "--only",
            "scion-2015.1518.cores$",
            "--only",
            "scion.cores$",
            "--only",
            "scion.1518.cores$",
        ],
        "SCION, Figure 4",
    ),
    exhibit(
        "scion/table-1",
        "octets of path in a packet",
        "seconds",
        &["forward", "--only", "table-1"],
        "SCION, Table 1",
    ),
    exhibit("pocomon/throughput", "throughput of a chain of five nodes", "minutes", &["pocomon"], ""),
    exhibit(
        "pocomon/figure-5",
        "its samples with servers beside the sender",
        "a minute",
        &["pocomon", "--only", "baseline"],
        "",
    ),
    exhibit("pocomon/figure-7", "its samples with servers apart", "a minute", &["pocomon", "--only", "apart"], ""),
    exhibit(
        "pocomon/figure-8",
        "its samples if paths are asked for once",
        "a minute",
        &["pocomon", "--only", "cached"],
        "",
    ),
    exhibit("pocomon/overlays", "overlays beside each other", "minutes", &["overlay"], ""),
];

impl Exhibit {
    /// The table or figure of this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn named(id: &str) -> Outcome<&'static Self> {
        let known = || ALL.map(|one| format!("{}: {}", one.id, one.about)).join("\n");
        let missing = || Failure::usage(format!("no table or figure `{id}`")).help(known());
        Ok(ALL.iter().find(|one| one.id == id).ok_or_else(missing)?)
    }

    /// Whether a panel of this title is part of it.
    pub fn has(&self, title: &str) -> bool {
        title.starts_with(self.panels)
    }

    /// The benchmark that gives it, run as `wanted` says in everything else; what a paper decides, no line has beside `--paper`.
    ///
    /// # Errors
    /// If the benchmark does not take its arguments.
    pub fn bench(&self, wanted: &Bench) -> Outcome<Bench> {
        let line = Bench::augment_args(Command::new("bench").no_binary_name(true));
        let matches = line.try_get_matches_from(self.arguments).and_then(|matches| Bench::from_arg_matches(&matches));
        let mut bench = matches.map_err(|error| Failure::usage(error.to_string()))?;
        bench.paper = Some(self.id.to_owned());
        (bench.json, bench.short, bench.plot) = (wanted.json, wanted.short, wanted.plot.clone());
        (bench.repetitions, bench.absent) = (wanted.repetitions, wanted.absent.clone());
        Ok(bench)
    }
}

#[cfg(test)]
mod tests {
    use wayleave_lab::bench::forward::forward_names;

    use super::super::{ALL as BENCHMARKS, DRAWN, check_only};
    use super::*;

    #[test]
    fn what_a_paper_decides_is_refused_and_what_it_leaves_open_is_taken() {
        let line = |more: &[&str]| {
            let line = Bench::augment_args(Command::new("bench").no_binary_name(true));
            line.try_get_matches_from([&["--paper", "kc-x/table-5"], more].concat())
        };
        for open in [&["--json"][..], &["--short"], &["--repetitions", "3"], &["--plot", "x.svg"]] {
            assert!(line(open).is_ok(), "{open:?}");
        }
        let own = [
            &["--mrt", "x"][..],
            &["--peer", "64496"],
            &["--members", "9"],
            &["--suite", "s-bgp"],
            &["--prefixes", "9"],
            &["--export", "direct"],
            &["--output", "index"],
            &["--only", "x"],
            &["--threads", "2"],
            &["--generated"],
        ];
        for decided in own {
            let refused = line(decided).expect_err("refused").to_string();
            assert!(refused.contains("cannot be used with"), "{decided:?}: {refused}");
        }
    }

    #[test]
    fn a_table_measures_what_its_rows_need_and_nothing_else() {
        let wants = |id: &str, name: &str| {
            let bench = Exhibit::named(id).and_then(|one| one.bench(&Bench::of("x")));
            bench.unwrap_or_else(|_| panic!("{id}")).wants(name)
        };
        assert!(wants("platypus/table-3", "platypus-full.348") && wants("platypus/table-3", "none.1518"));
        for other in ["platypus.64", "platypus-macs.68", "platypus.cores", "none.cores"] {
            assert!(!wants("platypus/table-3", other), "{other}");
        }
        let bench = Exhibit::named("kc-x/table-3").and_then(|one| one.bench(&Bench::of("x"))).expect("it is known");
        assert!(bench.suite.contains(&"spv".to_owned()) && !bench.suite.contains(&"bgpsec".to_owned()));
    }

    #[test]
    fn every_table_and_figure_is_drawn_by_a_benchmark_that_takes_its_arguments() {
        let wanted = Exhibit::named("sixpack/table-1").and_then(|one| one.bench(&Bench::of("x")));
        assert_eq!(wanted.expect("arguments").name.as_deref(), Some("select-best"));
        for one in &ALL {
            let bench = one.bench(&Bench::of("x")).unwrap_or_else(|_| panic!("{}: its arguments", one.id));
            let name = bench.name.clone().expect("a benchmark");
            assert!(DRAWN.contains(&name.as_str()) && BENCHMARKS.iter().any(|all| all.0 == name), "{}", one.id);
            assert_eq!(ALL.iter().filter(|other| other.id == one.id).count(), 1, "{}", one.id);
            assert!(["seconds", "a minute", "minutes"].contains(&one.takes), "{}", one.id);
            if name == "forward" {
                assert!(check_only(&bench, forward_names()).is_ok(), "{}: its results", one.id);
            }
        }
        assert!(Exhibit::named("sixpack/table-9").is_err());
    }
}

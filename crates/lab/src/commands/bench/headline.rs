//! `bench --headline FOLDER`: the first table of docs/benchmarks.md, all of it from one run.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::all::{Run, play, words};
use super::{Bench, unreadable};
use wayleave_config::failure::Outcome;
use wayleave_config::output::print;

/// What a row compares its figure with.
#[derive(Clone, Copy)]
enum Ratio {
    /// With nothing.
    None,
    /// A peer's rate in the same run.
    Rate,
    /// A peer's time in the same run.
    Time,
    /// A peer's rate, by a result of the benchmark, which compares repetition by repetition.
    MeasuredRate(&'static str),
    /// A peer's time, likewise.
    MeasuredTime(&'static str),
}

/// A row: what is measured, the file of its run and the result, what the paper says, and the best peer with its result.
struct Row {
    what: &'static str,
    file: &'static str,
    ours: &'static str,
    paper: &'static str,
    peer: Option<(&'static str, &'static str)>,
    ratio: Ratio,
}

const fn row(what: &'static str, file: &'static str, ours: &'static str, paper: &'static str) -> Row {
    Row { what, file, ours, paper, peer: None, ratio: Ratio::None }
}

impl Row {
    const fn beside(self, peer: &'static str, result: &'static str, ratio: Ratio) -> Self {
        Self { peer: Some((peer, result)), ratio, ..self }
    }
}

const ROWS: [Row; 15] =
    [
        row("Select-Best, key output, 750 members by 32 routes: online", "select-best", "online", "35.9 ms"),
        row("the same: setup", "select-best", "setup", "122 ms"),
        row("UPDATE through a whole exchange of 50 members, per prefix", "exchange-trace", "prefix_mean", ""),
        row(
            "attested UPDATE, verified and signed in bursts: `kc-ed25519`",
            "attest-ops",
            "update.kc-ed25519",
            "KC-MT 501 µs",
        )
        .beside("BGPsec", "update.bgpsec", Ratio::MeasuredTime("faster.kc-ed25519.than.bgpsec")),
        row(
            "by the paper's equation (1): `kc-mt-paper`",
            "attest-ops",
            "equation_1.kc-mt-paper",
            "501 µs; 34 times faster than S-BGP",
        )
        .beside("S-BGP", "equation_1.s-bgp", Ratio::MeasuredTime("faster.kc-mt-paper.than.s-bgp")),
        row(
            "in bursts, every origin's statement verified: `kc-mt-paper`",
            "attest-ops",
            "update_each_statement.kc-mt-paper",
            "",
        )
        .beside("S-BGP", "update.s-bgp", Ratio::MeasuredTime("faster_each_statement.kc-mt-paper.than.s-bgp")),
        row("a cold full table, validated: `kc-ed25519`", TABLE, "table.kc-ed25519", "").beside(
            "BGPsec",
            "table.bgpsec",
            Ratio::Time,
        ),
        row("forwarding in memory, one core, 64 octets: `scion-2015`", "forward", "scion-2015", "14.9 M/s a port")
            .beside("DIR-24-8 IPv4 look-up", "ip", Ratio::MeasuredRate("scion-2015-over-ip")),
        row("`scion`, 92 octets", "forward", "scion", ""),
        row("`platypus`, 68 octets", "forward", "platypus.68", "0.767 M/s").beside(
            "its MACs alone",
            "platypus-macs.68",
            Ratio::Rate,
        ),
        row("`icing`, 64 octets of payload, eight nodes", "forward", "icing.64", "0.0064 M/s, end to end"),
        row("TCP between two gateways over three forwarders, sealed", "overlay", "tcp.icing", "").beside(
            "boringtun",
            "tcp.boringtun",
            Ratio::Rate,
        ),
        row("through namespaces, batching sender: SCION, 172 octets", "forward-io", "udp-gso.scion", "").beside(
            "kernel IP forwarding",
            "kernel-ip.batching",
            Ratio::Rate,
        ),
        row("the same, single packets: SCION by AF_XDP", "forward-io", "af-xdp.scion", "").beside(
            "kernel IP forwarding",
            "kernel-ip",
            Ratio::Rate,
        ),
        row("`platypus`, 64 octets, batching sender", "forward-io", "udp-gso.platypus", ""),
    ];

/// The run that needs a recorded table, which the sources do not bring.
const TABLE: &str = "attest-trace";

/// What is run: nothing that no row shows.
fn runs(table: Option<&PathBuf>) -> Vec<Run> {
    let run = |arguments: &[&str]| Run::of(arguments[0], arguments.iter().map(|&word| word.to_owned()));
    let mut runs = vec![
        run(&["select-best", "--output", "key"]),
        run(&["attest-ops", "--suite=kc-ed25519", "--suite=kc-mt-paper", "--suite=s-bgp", "--suite=bgpsec"]),
        run(&["exchange-trace", "--members", "50", "--tick", "0"]),
        run(&["forward", "--only=scion", "--only=ip", "--only=platypus", "--only=icing"]),
        run(&["overlay", "--only=tcp"]),
        run(&["forward-io", "--only=kernel-ip", "--only=udp-gso", "--only=af-xdp.scion"]),
    ];
    if let Some(table) = table {
        let mut of_table = run(&[TABLE, "--workload=table", "--suite=kc-ed25519", "--suite=bgpsec"]);
        of_table.arguments.extend(["--mrt".to_owned(), table.to_string_lossy().into_owned()]);
        runs.push(of_table);
    }
    runs
}

/// Runs what the table needs, writes each report and `headline.md` to the folder, and prints the table, or the reports with --json.
///
/// # Errors
/// If one failed, or a file cannot be written. The table of the others is there.
pub fn run(bench: &Bench, folder: &Path) -> Outcome {
    let played = play(bench, folder, &runs(bench.mrt.as_ref()), bench.json)?;
    let reports: Vec<(String, Value)> =
        played.done.iter().map(|(file, report, _)| (file.clone(), report.clone())).collect();
    let text = to_markdown(&reports);
    if !bench.json {
        print(&text);
    }
    let file = folder.join("headline.md");
    std::fs::write(&file, &text).map_err(unreadable(&file))?;
    eprintln!("wrote {}", file.display());
    played.end()
}

/// The table, and what it was measured on and with.
fn to_markdown(reports: &[(String, Value)]) -> String {
    let mut out = String::from(
        "| what | ours | paper | best peer in the same run | ratio to the peer |\n|---|---|---|---|---|\n",
    );
    for row in &ROWS {
        let report = reports.iter().find(|(file, _)| file == row.file).map(|(_, report)| report);
        out += &line(row, report);
    }
    for (file, _) in reports.iter().filter(|(_, report)| report["params"]["stopped"] == true) {
        out += &format!(
            "\nStopped while `{file}` was measured: its rows are of a part, and those behind it were not measured.\n"
        );
    }
    if let Some((_, report)) = reports.first() {
        out += &format!("\nCommit {} on {}, medians.\n", words(&report["git"]), words(&report["cpu"]).trim());
    }
    out
}

fn line(row: &Row, report: Option<&Value>) -> String {
    let find = |name: &str| report?["results"].as_array()?.iter().find(|result| result["name"] == name);
    let missing = || if report.is_none() && row.file == TABLE { "needs --mrt" } else { "not measured" }.to_owned();
    let ours = find(row.ours).map_or_else(missing, with_unit);
    let peer = row.peer.map_or_else(String::new, |(name, result)| match find(result) {
        Some(result) => format!("{name} {}", with_unit(result)),
        None => format!("{name} not measured"),
    });
    let of = |name: &str| find(name)?["value"].as_f64();
    let theirs = row.peer.and_then(|(_, result)| of(result));
    let ratio = match row.ratio {
        Ratio::None => None,
        Ratio::Rate => of(row.ours).zip(theirs).map(|(ours, theirs)| format!("{:.2}", ours / theirs)),
        Ratio::Time => of(row.ours).zip(theirs).map(|(ours, theirs)| times(theirs / ours)),
        Ratio::MeasuredRate(name) => {
            find(name).and_then(with_spread).map(|(ratio, spread)| format!("{ratio:.2} {spread}"))
        }
        Ratio::MeasuredTime(name) => {
            find(name).and_then(with_spread).map(|(ratio, spread)| format!("{} {spread}", times(ratio)))
        }
    };
    format!("| {} | {ours} | {} | {peer} | {} |\n", row.what, row.paper, ratio.unwrap_or_default())
}

/// A ratio's median, and its least and greatest as text.
fn with_spread(result: &Value) -> Option<(f64, String)> {
    let of = |key: &str| result[key].as_f64();
    Some((of("value")?, format!("({:.2} to {:.2})", of("min")?, of("max")?)))
}

fn times(ratio: f64) -> String {
    format!("{} times faster", digits(ratio))
}

/// Three significant digits.
fn digits(value: f64) -> String {
    let places = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.places$}")
}

/// A result's median with a prefix before its unit, as people write it.
fn with_unit(result: &Value) -> String {
    let value = result["value"].as_f64().unwrap_or_default();
    let (scaled, unit) = match result["unit"].as_str().unwrap_or_default() {
        "s" if value < 1e-3 => (value * 1e6, "µs"),
        "s" if value < 1.0 => (value * 1e3, "ms"),
        "packets/s" => (value / 1e6, "M/s"),
        "bit/s" => (value / 1e9, "Gb/s"),
        unit => (value, unit),
    };
    format!("{} {unit}", digits(scaled))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wayleave_lab::bench::forward::forward_names;

    use super::super::ALL;
    use super::*;

    #[test]
    fn every_row_is_of_a_run_and_every_run_has_a_row() {
        let runs = runs(Some(&PathBuf::from("rib")));
        for run in &runs {
            assert!(ALL.iter().any(|all| all.0 == run.file), "{}", run.file);
            assert!(ROWS.iter().any(|row| row.file == run.file), "{}", run.file);
        }
        for row in &ROWS {
            let run = runs.iter().find(|run| run.file == row.file).expect(row.what);
            let only: Vec<&str> = run.arguments.iter().filter_map(|word| word.strip_prefix("--only=")).collect();
            for name in [row.ours].into_iter().chain(row.peer.map(|peer| peer.1)) {
                assert!(only.is_empty() || only.iter().any(|begin| name.starts_with(begin)), "{name} is not measured");
                assert!(row.file != "forward" || forward_names().any(|known| known == name), "{name} is no result");
            }
        }
    }

    #[test]
    fn figures_have_units_and_what_was_not_measured_says_so() {
        let result = |name: &str, value: f64, unit: &str| json!({ "name": name, "value": value, "unit": unit, "min": value / 2.0, "max": value * 2.0 });
        let ops = json!({ "git": "1a2b", "cpu": " c", "results": [
            result("update.kc-ed25519", 60.71e-6, "s"), result("update.bgpsec", 231.2e-6, "s"),
            result("faster.kc-ed25519.than.bgpsec", 4.1, "ratio"),
        ] });
        let forward = json!({ "results": [result("platypus.68", 32.4e6, "packets/s"), result("platypus-macs.68", 41e6, "packets/s")] });
        let overlay = json!({ "results": [result("tcp.icing", 781_092_061.0, "bit/s")] });
        let all = [("attest-ops", ops), ("forward", forward), ("overlay", overlay)];
        let text = to_markdown(&all.map(|(file, report)| (file.to_owned(), report)));
        let has = |part: &str| assert!(text.contains(part), "{part}: {text}");
        has("`kc-ed25519` | 60.7 µs | KC-MT 501 µs | BGPsec 231 µs | 4.10 times faster (2.05 to 8.20) |");
        has("| 32.4 M/s | 0.767 M/s | its MACs alone 41.0 M/s | 0.79 |");
        has("`kc-ed25519` | needs --mrt |");
        has("sealed | 0.78 Gb/s |  | boringtun not measured |");
        has("Commit 1a2b on c");
        assert!(!text.contains("Stopped"), "{text}");
        let part = json!({ "params": { "stopped": true }, "results": [] });
        let text = to_markdown(&[("overlay".to_owned(), part)]);
        assert!(text.contains("Stopped while `overlay` was measured"), "{text}");
    }
}

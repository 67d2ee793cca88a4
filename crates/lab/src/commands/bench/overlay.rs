//! `bench overlay`: two gateways over three forwarders, and two over a link alone, TUN at both ends and sealed, beside an overlay that
//! does nothing, the kernel's WireGuard and those in user space over the same namespaces, in turn in one run.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use serde_json::json;
use wayleave_papers::plot::overlay as plots;
use wayleave_papers::report::{Report, median};

use super::chain::{CHAIN, Chain, DIRECT, Pair, Realm, Result, Servers, address_of};
use super::other_overlays::{Null, Program, WireGuard, boringtun, kernel_wireguard, wireguard_go};
use super::traffic::Ends;
use super::{check_only, draw, enter};
use crate::commands::bench::Bench;
use wayleave_config::failure::{Failure, Outcome};

/// What all overlays are measured by.
const MEASURES: [&str; 3] = ["tcp", "udp64", "latency"];
/// The overlays, and how those are had that are no part of this program.
const OVERLAYS: [(&str, Option<Peer>); 5] = [
    ("icing", None),
    ("null", None),
    ("kernel-wireguard", Some(kernel_wireguard)),
    ("wireguard-go", Some(wireguard_go)),
    ("boringtun", Some(boringtun)),
];
type Peer = fn(&mut dyn FnMut(&str)) -> Result<Program>;
const OTHERS: [&str; 4] = ["latency_hop.icing", "latency_hop.null", "new_flow", "failover"];
/// The first policy is for inner addresses: over all three forwarders, as the other overlays go.
const POLICIES: &str =
    "[[policy]]\nname = \"long\"\norder = \"longest\"\n[[policy]]\nname = \"short\"\norder = \"shortest\"\n";
/// A path is dead after three probes; then TCP waits for its own timer.
const FAILOVER: Duration = Duration::from_secs(7);
/// Round trips of one repetition.
const TRIPS: usize = 400;

/// Fetches what there is to compare with, and runs this program again inside namespaces; `None` in the outer process.
pub fn run(bench: &Bench) -> Outcome<Option<Report>> {
    let names = MEASURES.iter().flat_map(|measure| OVERLAYS.map(|(overlay, _)| results(measure, overlay)));
    check_only(bench, names.flatten().chain(OTHERS.map(str::to_owned)))?;
    let mut absent = BTreeMap::new();
    let mut programs = Vec::new();
    let wanted =
        |name: &str| MEASURES.iter().any(|measure| results(measure, name).iter().any(|name| bench.wants(name)));
    // Inside there is no network to fetch from: what the outer process did not get is named there.
    for text in &bench.absent {
        absent.extend(text.split_once('=').map(|(name, why)| (name.to_owned(), why.to_owned())));
    }
    for (name, peer) in OVERLAYS {
        let Some(peer) = peer.filter(|_| wanted(name) && !absent.contains_key(name)) else { continue };
        match peer(&mut |line| eprintln!("{line}")) {
            Ok(program) => programs.push(program),
            Err(why) => drop(absent.insert(name.to_owned(), why)),
        }
    }
    let more = absent.iter().map(|(name, why)| format!("--absent={name}={why}"));
    let Some(rung) = enter(more)? else { return Ok(None) };
    let measured = measure(bench, &programs, &mut absent);
    let (samples, versions) = measured.map_err(|error| Failure::new(format!("the benchmark's overlays: {error}")))?;
    let mut report = Report::new(
        "overlay",
        json!({
            "rung": rung.to_string(),
            "cores": thread::available_parallelism().map_or(1, usize::from),
            "forwarders": 3,
            "direct": "a link between two gateways and no forwarder, in the same run",
            "kernel": "all but icing cross the three nodes by the kernel's forwarding",
            "versions": versions,
            "absent": absent,
        }),
    );
    for (name, unit, values) in samples {
        report.add(name, unit, &values);
    }
    draw(bench, || plots::overlay(&report))?;
    Ok(Some(report))
}

/// The results of a measure: over the forwarders, and without them.
fn results(measure: &str, overlay: &str) -> [String; 2] {
    [&CHAIN, &DIRECT].map(|pair| format!("{measure}.{overlay}{}", pair.suffix))
}

type Samples = Vec<(String, &'static str, Vec<f64>)>;

/// Adds a sample to those of its name.
fn note(samples: &mut Samples, name: String, unit: &'static str, value: f64) {
    let known = samples.iter().position(|(known, ..)| *known == name);
    let at = known.unwrap_or(samples.len());
    if known.is_none() {
        samples.push((name.clone(), unit, Vec::new()));
    }
    samples[at].2.push(value);
    // For who stops it: the final median takes this one's place.
    Report::new("overlay", json!({})).add(name, unit, &samples[at].2);
}

/// An overlay that runs between two gateways.
struct Running {
    name: &'static str,
    pair: &'static Pair,
    address: IpAddr,
}

fn measure(
    bench: &Bench,
    programs: &[Program],
    absent: &mut BTreeMap<String, String>,
) -> Result<(Samples, BTreeMap<String, String>)> {
    let repetitions = bench.repetitions.unwrap_or(if bench.short { 2 } else { 7 });
    let lasts = Duration::from_millis(if bench.short { 1_000 } else { 2_000 });
    let chain = Chain::new()?;
    let is_direct =
        |(overlay, _): &(&str, _)| MEASURES.iter().any(|measure| bench.wants(&results(measure, overlay)[1]));
    let pairs: &[&'static Pair] = if OVERLAYS.iter().any(is_direct) { &[&CHAIN, &DIRECT] } else { &[&CHAIN] };
    let mut realm = Realm::start(&chain, Servers::Apart, pairs, POLICIES)?;
    let (mut overlays, mut nulls, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for pair in pairs.iter().copied() {
        realm.gateways(&chain, &pair.ends)?;
        realm.reach(&chain, pair, "long", pair.nodes)?;
        overlays.push(Running { name: "icing", pair, address: pair.inner[1].into() });
    }
    for pair in pairs.iter().copied() {
        let null = Null::start(&chain, pair, 1)?;
        overlays.push(Running { name: "null", pair, address: null.address });
        nulls.push(null);
    }
    let mut versions = BTreeMap::new();
    for (number, program) in (2..).zip(programs) {
        for pair in pairs.iter().copied() {
            match WireGuard::start(&chain, pair, program, number) {
                Ok(running) => {
                    versions.insert(program.name.to_owned(), program.version.clone());
                    overlays.push(Running { name: program.name, pair, address: running.address });
                    others.push(running);
                }
                Err(why) => drop(absent.insert(program.name.to_owned(), why)),
            }
        }
    }
    let (from, to) = (chain.place("a"), chain.place("b"));
    let ends = |address| Ends { from, to, address };
    let mut samples = Samples::new();
    let mut note = |name: String, unit, value| note(&mut samples, name, unit, value);
    // In turn, so that a slow second of the machine is a slow second of all.
    for measure in MEASURES {
        for _ in 0..repetitions {
            for overlay in &overlays {
                let name = format!("{measure}.{}{}", overlay.name, overlay.pair.suffix);
                if !bench.wants(&name) {
                    continue;
                }
                let [from, to] = overlay.pair.ends.map(|end| chain.place(end));
                let ends = Ends { from, to, address: overlay.address };
                let (unit, value) = match measure {
                    "tcp" => ("bit/s", ends.tcp(lasts)),
                    "udp64" => ("packets/s", ends.udp(lasts)),
                    _ => ("s", ends.round_trips(TRIPS).map(|times| median(&times) / 2.0)),
                };
                note(name.clone(), unit, value.map_err(|why| format!("{name}: {why}"))?);
            }
        }
    }
    if bench.wants("latency_hop.icing") {
        // The same gateways over one forwarder less.
        let short = address_of(from, "short.b.overlay")?;
        realm.reach(&chain, &CHAIN, "short", CHAIN.nodes - 1)?;
        for _ in 0..repetitions.max(3) {
            let long = median(&ends(CHAIN.inner[1].into()).round_trips(TRIPS)?);
            let less = median(&ends(short).round_trips(TRIPS)?);
            note("latency_hop.icing".to_owned(), "s", (long - less) / 2.0);
        }
    }
    if bench.wants("latency_hop.null") {
        let null = nulls.first().ok_or("no null overlay")?;
        for _ in 0..repetitions.max(3) {
            let long = median(&ends(null.address).round_trips(TRIPS)?);
            chain.bypass(true)?;
            let less = median(&ends(null.address).round_trips(TRIPS)?);
            chain.bypass(false)?;
            note("latency_hop.null".to_owned(), "s", (long - less) / 2.0);
        }
    }
    drop(others);
    drop(nulls);
    let few = if bench.short { 1 } else { repetitions.min(5) };
    if bench.wants("failover") {
        for _ in 0..few {
            let gap = ends(CHAIN.inner[1].into()).longest_gap(FAILOVER, || {
                realm.stop("w2");
                Ok(())
            });
            note("failover".to_owned(), "s", gap.map_err(|why| format!("failover: {why}"))?);
            realm.forwarder(&chain, "w2")?;
            realm.reach(&chain, &CHAIN, "long", CHAIN.nodes)?;
        }
    }
    if bench.wants("new_flow") {
        for _ in 0..few.max(3) {
            for gateway in ["a", "b"] {
                realm.stop(gateway);
            }
            for gateway in ["b", "a"] {
                realm.gateways(&chain, &[gateway])?;
            }
            // What was stamped within a second of the start might be a replay from another life, and is refused.
            thread::sleep(Duration::from_millis(1_500));
            let first = ends(CHAIN.inner[1].into()).first(Duration::from_secs(10));
            note("new_flow".to_owned(), "s", first.map_err(|why| format!("new_flow: {why}"))?);
        }
    }
    Ok((samples, versions))
}

#[cfg(test)]
mod tests {
    use wayleave_papers::report::so_far;

    use super::*;

    #[test]
    fn who_stops_it_has_the_median_of_the_samples_so_far() {
        let mut samples = Samples::new();
        for value in [3.0, 1.0, 2.0] {
            note(&mut samples, "tcp.tested".to_owned(), "bit/s", value);
        }
        assert_eq!((samples.len(), samples[0].2.len()), (1, 3));
        let noted: Vec<_> = so_far().into_iter().filter(|one| one.name == "tcp.tested").collect();
        assert_eq!(noted.iter().map(|one| (one.value, one.n)).collect::<Vec<_>>(), [(2.0, 3)]);
    }
}

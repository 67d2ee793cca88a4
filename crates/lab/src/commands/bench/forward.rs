//! `bench forward` and `bench stamp`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::thread;

use wayleave_bgp::mrt::{MrtReader, Record};
use wayleave_core::Afi;
use wayleave_lab::bench::forward::{self, Options, forward_names, stamp_names};
use wayleave_papers::bench::forward::generated_routes;
use wayleave_papers::bench::measures::{FORWARD, Measure, Routes, prepare, rate};
use wayleave_papers::bench::slots::Headroom;
use wayleave_papers::dir24::TableError;
use wayleave_papers::plot::forward as plots;
use wayleave_papers::report::Report;
use wayleave_runtime::huge_pages;

use super::{check_only, clock, draw, open};
use crate::commands::bench::Bench;
use wayleave_config::failure::{Failure, Outcome};

pub fn run(bench: &Bench) -> Outcome<Report> {
    huge_pages::enable();
    check_only(bench, forward_names().chain(full_size().map(full_size_name)))?;
    let routes = bench.mrt.as_deref().map(recorded_routes).transpose()?;
    let wants = |name: &str| bench.wants(name);
    let options = options(bench, &wants);
    let mut report = forward::forward(&options, routes.clone()).map_err(Failure::new)?;
    let wanted: Vec<&Measure> = full_size().filter(|measure| wants(&full_size_name(measure))).collect();
    if !wanted.is_empty() {
        let routes = routes.unwrap_or_else(|| generated_routes(GENERATED, 1));
        for measure in wanted {
            report.add(full_size_name(measure), "packets/s", &on_all_cores(measure, &routes, &options)?);
        }
    }
    draw(bench, || plots::forward(&report))?;
    Ok(report)
}

/// Routes of a generated table, as many as for the other results.
const GENERATED: usize = 1_000_000;
/// Octets of the longest packets of the SCION paper, whose Figure 4 has them on all ports too.
const FULL_SIZE: usize = 1_518;

fn full_size() -> impl Iterator<Item = &'static Measure> {
    FORWARD.iter().filter(|measure| measure.sizes.contains(&FULL_SIZE))
}

fn full_size_name(measure: &Measure) -> String {
    format!("{}.cores", measure.result_name(FULL_SIZE))
}

/// Packets a second of [`FULL_SIZE`] octets in each repetition, summed over cores that run at the same time.
fn on_all_cores(measure: &Measure, routes: &Routes, options: &Options<'_>) -> Outcome<Vec<f64>> {
    let (headroom, repetitions) = (options.headroom, options.repetitions);
    let one_core = || {
        let mut pass = prepare(measure.subject, FULL_SIZE, routes, headroom)?;
        let mut clock = clock();
        // The first repetition warms the caches.
        rate(&mut pass, &mut clock);
        Ok((0..repetitions).map(|_| rate(&mut pass, &mut clock)).collect::<Vec<f64>>())
    };
    let cores: Vec<Vec<f64>> = thread::scope(|scope| {
        let running: Vec<_> = (0..options.cores).map(|_| scope.spawn(one_core)).collect();
        let ended = running.into_iter().map(|core| core.join().expect("a core panicked"));
        ended.collect::<Result<_, TableError>>().map_err(Failure::new)
    })?;
    Ok((0..repetitions).map(|n| cores.iter().map(|rates| rates[n]).sum()).collect())
}

pub fn stamp(bench: &Bench) -> Outcome<Report> {
    huge_pages::enable();
    check_only(bench, stamp_names())?;
    let report = forward::stamp(&options(bench, &|name| bench.wants(name))).map_err(Failure::new)?;
    draw(bench, || plots::stamp(&report))?;
    Ok(report)
}

fn options<'a>(bench: &Bench, wants: &'a (dyn Fn(&str) -> bool + Sync)) -> Options<'a> {
    Options {
        wants,
        headroom: if bench.aligned { Headroom::None } else { Headroom::Staggered },
        repetitions: bench.repetitions.unwrap_or(if bench.short { 15 } else { 101 }),
        cores: bench.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from)).max(1),
    }
}

/// The IPv4 prefixes of a recorded table, each with a next hop by the peer that announced it first.
fn recorded_routes(path: &Path) -> Outcome<Routes> {
    let mut peers = BTreeMap::new();
    let mut routes = Routes::new();
    for record in MrtReader::new(open(path)?) {
        let Ok(Record::Rib(entries)) = record else { continue };
        let Some(entry) = entries.first().filter(|entry| entry.prefix.afi() == Afi::Ipv4) else { continue };
        let next = peers.len() as u16 + 1;
        let next_hop = *peers.entry(entry.peer_address).or_insert(next);
        let IpAddr::V4(address) = entry.prefix.address() else { continue };
        routes.push((address.into(), entry.prefix.len(), next_hop));
    }
    if routes.is_empty() {
        return Err(Failure::new(format!("{} holds no table of IPv4 routes", path.display())).into());
    }
    Ok(routes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_cores_take_the_longest_packets_of_what_the_scion_paper_compares() {
        let names: Vec<String> = full_size().map(full_size_name).collect();
        assert_eq!(names, ["none.1518.cores", "ip.1518.cores", "scion-2015.1518.cores", "scion.1518.cores"]);
        let bench = Bench::of("forward");
        let options = Options { repetitions: 2, cores: 3, ..options(&bench, &|_| true) };
        let none = full_size().next().expect("no processing");
        let rates = on_all_cores(none, &Routes::new(), &options).unwrap_or_default();
        assert!(rates.len() == 2 && rates.iter().all(|rate| *rate > 0.0), "{rates:?}");
    }
}

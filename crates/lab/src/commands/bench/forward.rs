//! `bench forward` and `bench stamp`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::thread;

use wayleave_bgp::mrt::{MrtReader, Record};
use wayleave_core::Afi;
use wayleave_lab::bench::forward::{self, Options, forward_names, stamp_names};
use wayleave_papers::bench::measures::Routes;
use wayleave_papers::bench::slots::Headroom;
use wayleave_papers::plot::forward as plots;
use wayleave_papers::report::Report;
use wayleave_runtime::huge_pages;

use super::{check_only, draw, open};
use crate::commands::bench::Bench;
use wayleave_config::failure::{Failure, Outcome};

pub fn run(bench: &Bench) -> Outcome<Report> {
    huge_pages::enable();
    check_only(bench, forward_names())?;
    let routes = bench.mrt.as_deref().map(recorded_routes).transpose()?;
    let report = forward::forward(&options(bench, &|name| bench.wants(name)), routes).map_err(Failure::new)?;
    draw(bench, || plots::forward(&report))?;
    Ok(report)
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

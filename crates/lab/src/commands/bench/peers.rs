//! `bench exchange-peers`: Wayleave, BIRD and OpenBGPD in turn, in one run.

use std::collections::BTreeMap;

use serde_json::json;
use wayleave_lab::bench::exchange_peers::own::{self, Sinks};
use wayleave_lab::bench::exchange_peers::servers::Software;
use wayleave_lab::bench::exchange_peers::work::Work;
use wayleave_lab::bench::exchange_peers::{Measured, plain};
use wayleave_lab::netns::{Network, NetworkNamespace};
use wayleave_lab::routers::{BIRD, Installation, OPENBGPD, RouterPackage, default_cache, locate_or_fetch_router};
use wayleave_lab::sim::member_address;
use wayleave_papers::report::Report;

use super::exchange::{LIMIT, failed, plan};
use super::{Bench, BenchServer, BenchSinks, enter, stopped};
use wayleave_config::failure::{Failure, Outcome};

/// Members, and routes of all of them.
const LONG: (usize, usize) = (20, 20_000);
const SHORT: (usize, usize) = (8, 1_000);
/// More would not fit the members' part of the network, nor standard communities.
const MOST_MEMBERS: usize = 500;
/// In which the work is not the same, whatever the figures say.
const NOTES: [&str; 6] = [
    "wayleave: two parties compute each choice securely; proxies of all members seal, open and rank in one thread of this machine; \
     links are pipes without TLS",
    "wayleave: each member announces 2,000 objects a second at most, its default budget; the others have no such limit",
    "wayleave: reload is a policy of the largest member's proxy, which shares its routes anew; of the others a filter of the server",
    "wayleave: routes of members that are down are kept for a time; the others withdraw them, and announce them again",
    "bird: version 2.0 may sleep for 3 s with work at hand if no socket wakes it, which an otherwise idle reload or return can meet",
    "openbgpd: a member whose own route is better than all others that it may have is most often sent none of those (7.7), so that its \
     routes are fewer; these prefixes are not compared",
];

fn package(software: Software) -> &'static RouterPackage {
    match software {
        Software::Bird => &BIRD,
        Software::OpenBgpd => &OPENBGPD,
    }
}

/// The plain servers that were asked for.
fn plain_servers(bench: &Bench) -> Vec<Software> {
    let wants = |server| bench.servers.is_empty() || bench.servers.contains(&server);
    let all = [(BenchServer::Bird, Software::Bird), (BenchServer::OpenBgpd, Software::OpenBgpd)];
    all.into_iter().filter(|(server, _)| wants(*server)).map(|(_, software)| software).collect()
}

/// Fetches the plain servers, and runs this program again inside namespaces; `None` in the outer process.
pub fn run(bench: &Bench) -> Outcome<Option<Report>> {
    let mut absent = BTreeMap::new();
    for text in &bench.absent {
        absent.extend(text.split_once('=').map(|(name, why)| (name.to_owned(), why.to_owned())));
    }
    let mut installed: Vec<(Software, Installation)> = Vec::new();
    for software in plain_servers(bench) {
        if absent.contains_key(software.name()) {
            continue;
        }
        match locate_or_fetch_router(package(software), &default_cache(), &mut |line| eprintln!("{line}")) {
            Ok(found) => installed.push((software, found)),
            Err(why) => {
                eprintln!("exchange-peers: without {}: {why}", software.name());
                absent.insert(software.name().to_owned(), why.to_string());
            }
        }
    }
    let more = absent.iter().map(|(name, why)| format!("--absent={name}={why}"));
    // Plain servers have BGP's port and their members' addresses, and so a network of their own.
    if installed.is_empty() {
        stopped::measures_here();
    } else if enter(more)?.is_none() {
        return Ok(None);
    }
    let usual = if bench.short { SHORT } else { LONG };
    let members = bench.members.unwrap_or(usual.0).clamp(4, MOST_MEMBERS);
    let work = Work::new(members, bench.routes.unwrap_or(usual.1).max(1));
    let sinks = bench.sinks.map(|sinks| Sinks { select: sinks != BenchSinks::OptOut });
    let (plan, _folder) = plan(bench, members)?;
    let versions: BTreeMap<_, _> =
        installed.iter().map(|(software, found)| (software.name(), found.version.clone())).collect();
    let params = json!({
        "members": work.members, "routes": work.routes, "prefixes": work.prefixes(),
        "whole_members": if sinks.is_some() { "three of wayleave's, all of the others'" } else { "all" },
        "sinks_select_best": sinks.map(|sinks| sinks.select),
        "export": plan.export.to_string(), "tick_ms": plan.tick.as_millis() as u64,
        "largest_announces": work.table_of(work.largest()).iter().map(|(own, _)| own.len()).sum::<usize>(),
        "quarter": work.quarter().count(),
        "versions": versions, "absent": absent, "not_the_same_work": NOTES,
        "cores": std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
    });
    let mut report = Report::new("exchange-peers", params);
    if bench.servers.is_empty() || bench.servers.contains(&BenchServer::Wayleave) {
        own::run(plan, &work, sinks).map_err(failed)?.report("wayleave", &mut report);
    }
    if !installed.is_empty() {
        let network = LanOfServers::new(&work)?;
        for (software, installation) in &installed {
            network.measure(*software, installation, &work)?.report(software.name(), &mut report);
        }
    }
    for server in ["wayleave", "openbgpd"] {
        let (own, bird) = (report.value(&format!("table.{server}")), report.value("table.bird"));
        if let (Some(own), Some(bird)) = (own, bird) {
            report.exact(format!("table.{server}.ratio"), "ratio", own / bird);
        }
    }
    Ok(Some(report))
}

/// The members' addresses in one namespace, and a further namespace for each server in turn.
struct LanOfServers {
    network: Network,
    members: NetworkNamespace,
}

impl LanOfServers {
    fn new(work: &Work) -> Outcome<Self> {
        let system = |error: &dyn std::fmt::Display| Failure::new(format!("the members' network: {error}"));
        let network = Network::new().map_err(|error| system(&error))?;
        let addresses: Vec<String> = work.slots().map(|slot| format!("{}/16", member_address(slot))).collect();
        let members = network.attach("members", &addresses).map_err(|error| system(&error))?;
        Ok(Self { network, members })
    }

    fn measure(&self, software: Software, installation: &Installation, work: &Work) -> Outcome<Measured> {
        let system = |error: &dyn std::fmt::Display| Failure::new(format!("{}: {error}", software.name()));
        let address = format!("{}/16", software.address());
        let at = self.network.attach(software.name(), &[address]).map_err(|error| system(&error))?;
        let run = || plain(software, installation, (&at, self.network.state()), work, LIMIT);
        Ok(self.members.within(run).map_err(|error| system(&error))?.map_err(failed)?)
    }
}

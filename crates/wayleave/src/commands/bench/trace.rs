//! `bench exchange-trace`: a recorded table through two parties and all members, in one thread, against the oracle.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io::BufReader;
use std::time::{Duration, Instant};

use serde_json::json;
use wayleave_bgp::{Attributes, Message, Nlri, mrt};
use wayleave_core::{Afi, Prefix};
use wayleave_lab::sim::{Node, RS_ASN, Setup, Sim, member_address, member_asn};
use wayleave_route_server::oracle::Oracle;
use wayleave_route_server::policy::validate::Martians;

use super::{Report, percentile, trace_file};
use crate::cli::Bench;
use crate::failure::{Failure, Outcome};

/// Virtual time in which the exchange must come to rest after an UPDATE.
const LIMIT: Duration = Duration::from_secs(600);

/// One change: who announces or withdraws what.
struct Change {
    slot: u32,
    announced: Vec<Nlri>,
    withdrawn: Vec<Nlri>,
    attributes: Option<Attributes>,
}

pub fn run(bench: &Bench) -> Outcome<Report> {
    let members = bench.members.unwrap_or(50);
    let most = bench.prefixes.unwrap_or(if bench.short { 300 } else { 3000 });
    let path = trace_file(bench.mrt.as_ref(), "routeviews.2013-12-01.updates.bz2")?;
    let changes = read(&path, members, most)?;

    let tick = bench.tick.unwrap_or(0);
    let mut sim = Sim::new(Setup { members, tick: Duration::from_millis(tick), ..Setup::default() });
    let restless = || Failure::new("the exchange did not come to rest");
    if !sim.settle(LIMIT) {
        return Err(restless().into());
    }
    let mut oracle = Oracle::new(sim.set.clone(), RS_ASN, BTreeMap::new()).with_martians(Martians::AllowDocumentation);
    sim.recording = Some(Vec::new());
    let (mut per_prefix, mut between, mut total) = (Vec::new(), 0, Duration::ZERO);
    for change in &changes {
        sim.fill_pools();
        if let Some(recording) = &mut sim.recording {
            recording.clear();
        }
        let start = Instant::now();
        if !change.withdrawn.is_empty() {
            sim.withdraw(change.slot, &change.withdrawn);
        }
        if let Some(attributes) = &change.attributes {
            sim.announce(change.slot, &change.announced, attributes);
        }
        if !sim.settle(LIMIT) {
            return Err(restless().into());
        }
        let took = start.elapsed();
        total += took;
        let prefixes = change.announced.len() + change.withdrawn.len();
        let each = took.as_secs_f64() / prefixes as f64;
        per_prefix.extend(std::iter::repeat_n(each, prefixes));
        let is_party = |node: Node| !matches!(node, Node::Member(_));
        let sent = sim.recording.iter().flatten().filter(|frame| is_party(frame.from) && is_party(frame.to));
        between += sent.map(|frame| frame.bytes.len() + 4).sum::<usize>();
        oracle.withdraw(change.slot, &change.withdrawn);
        if let Some(attributes) = &change.attributes {
            oracle.announce(change.slot, &change.announced, attributes);
        }
    }
    let mismatches: usize = sim.tables.iter().map(|(slot, table)| differences(table, &oracle, *slot)).sum();
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut report = Report::new(
        "exchange-trace",
        json!({
            "mrt": name, "members": members, "tick_ms": tick, "updates": changes.len(), "prefixes": per_prefix.len(),
            "threads": 1, "links": "in memory",
        }),
    );
    let mean = per_prefix.iter().sum::<f64>() / per_prefix.len().max(1) as f64;
    report.summary("prefix_mean", "s", &per_prefix, mean);
    report.add("prefix_p50", "s", &per_prefix);
    report.summary("prefix_p99", "s", &per_prefix, percentile(&per_prefix, 99));
    report.exact("oracle_mismatches", "count", mismatches as f64);
    report.exact("party_link", "bytes/s", between as f64 / total.as_secs_f64().max(f64::MIN_POSITIVE));
    Ok(report)
}

/// Prefixes on which a member's table and the oracle's differ.
fn differences(table: &BTreeMap<Prefix, Attributes>, oracle: &Oracle, slot: u32) -> usize {
    let expected: BTreeMap<Prefix, Attributes> =
        oracle.table(slot).into_iter().map(|(prefix, (_, attributes))| (prefix, attributes)).collect();
    let wrong = expected.iter().filter(|(prefix, attributes)| table.get(prefix) != Some(attributes)).count();
    wrong + table.keys().filter(|prefix| !expected.contains_key(prefix)).count()
}

/// The IPv4 UPDATEs of the trace, up to `most` prefixes, each given to the member that its recorded peer stands for.
fn read(path: &std::path::Path, members: usize, most: usize) -> Outcome<Vec<Change>> {
    let unreadable = |error: std::io::Error| Failure::new(format!("{}: {error}", path.display()));
    let file = BufReader::new(File::open(path).map_err(unreadable)?);
    let (mut changes, mut prefixes) = (Vec::new(), 0);
    for message in mrt::messages(mrt::decompress(file).map_err(unreadable)?) {
        let Ok((Message::Update(update), _)) = Message::decode(&message.octets, &message.params()) else { continue };
        let mut hasher = DefaultHasher::new();
        message.peer_address.hash(&mut hasher);
        let slot = (hasher.finish() % members as u64) as u32;
        let ipv4 = |all: &[Nlri]| -> Vec<Nlri> {
            all.iter().filter(|nlri| nlri.prefix.afi() == Afi::Ipv4).map(|nlri| Nlri::new(nlri.prefix)).collect()
        };
        let (announced, withdrawn) = (ipv4(&update.announced), ipv4(&update.withdrawn));
        let count = announced.len() + withdrawn.len();
        if count == 0 {
            continue;
        }
        let attributes = update.attributes.filter(|_| !announced.is_empty()).map(|attributes| {
            let mut edit = attributes.to_forward().edit();
            edit.prepend(member_asn(slot), 1).local_pref(None).ipv4_next_hop(member_address(slot));
            edit.finish()
        });
        changes.push(Change { slot, announced, withdrawn, attributes });
        prefixes += count;
        if prefixes >= most {
            break;
        }
    }
    if changes.is_empty() {
        return Err(Failure::new(format!("{} holds no IPv4 UPDATE", path.display())).into());
    }
    Ok(changes)
}

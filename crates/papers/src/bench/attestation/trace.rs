//! `bench attest-trace`: delay under the paper's workloads, a recorded trace or a whole table.

use std::io::Read;

use serde_json::{Map, Value, json};
use wayleave_attestation::SuiteId;
use wayleave_bgp::mrt::{self, MrtReader, Record};
use wayleave_bgp::{AsPath, Message, SegmentKind};
use wayleave_core::Asn;

use super::workload::{Route, Workload, routes, share_keys, spread};
use super::{
    BURST, NEIGHBOUR, Options, ROUTER, ReceivedUpdate, SEED, SuiteFailure, SuiteVariant, VerifiedUpdates, failed,
    note_missing, process, queue, receive_all, seed,
};
use crate::report::Report;
use crate::scheme::Scheme;

/// ASes of each kind: origins, edge, core.
const SOME_ASES: u32 = 8;
/// Keys that all ASes of real paths share.
const SHARED_KEYS: u32 = 32;
/// Prefixes of one UPDATE; BGPsec signs each prefix alone (RFC 8205 section 4.1).
const PACKED: usize = 32;
/// Different UPDATEs of a workload's short form, which are repeated.
const FEW_UPDATES: usize = 512;

/// What to measure beside [`Options`].
#[derive(Clone, Copy, Debug, Default)]
pub struct TraceOptions {
    /// Different UPDATEs of a workload, announcements of a trace, or prefixes of a table, at most.
    pub prefixes: Option<usize>,
    /// Whether verdicts are kept for UPDATEs that come again.
    pub cache: bool,
}

/// Work on one suite and workload stops after so many nanoseconds; the report says how much was served until then.
fn budget(options: &Options) -> u64 {
    if options.short { 500_000_000 } else { 600_000_000_000 }
}

/// The delays of one suite under one workload.
#[derive(Clone, Debug)]
pub struct WorkloadDelays {
    pub variant: SuiteVariant,
    pub workload: Workload,
    pub delays: queue::Delays,
    /// Whether all arrivals were served.
    pub whole: bool,
}

/// `bench attest-trace` under workloads of the paper.
///
/// # Errors
/// If a scheme cannot sign the UPDATEs.
pub fn generated(
    options: &Options,
    trace: TraceOptions,
    workloads: &[Workload],
) -> Result<(Report, Vec<WorkloadDelays>), SuiteFailure> {
    let distinct = trace.prefixes.unwrap_or(if options.short { FEW_UPDATES } else { usize::MAX }).max(1);
    let params = json!({
        "workloads": workloads.iter().map(|workload| workload.name()).collect::<Vec<_>>(),
        "distinct_updates": if distinct == usize::MAX { json!("all") } else { json!(distinct) },
        "burst": BURST, "cache": trace.cache, "budget_s": budget(options) as f64 / 1e9, "clock": "processor time",
    });
    let mut report = Report::new("attest-trace", params);
    for workload in workloads {
        let (name, seconds) = (workload.name(), workload.seconds(SEED));
        let announcements: u32 = seconds.iter().sum();
        report.exact(format!("announcements.{name}"), "UPDATEs", f64::from(announcements));
        report.exact(format!("rate_mean.{name}"), "UPDATEs/s", f64::from(announcements) / seconds.len() as f64);
        report.exact(format!("rate_max.{name}"), "UPDATEs/s", f64::from(seconds.into_iter().max().unwrap_or(0)));
    }
    let (mut missing, mut all) = (Vec::new(), Vec::new());
    for variant in options.variants() {
        for workload in workloads {
            let arrivals = workload.arrivals(SEED);
            let routes = routes(distinct.min(arrivals.len()), SOME_ASES, SEED);
            let Some(mut scheme) = variant.scheme(&seed()) else {
                missing.push(variant.name());
                break;
            };
            let delays = serve(options, trace.cache, variant, scheme.as_mut(), (&arrivals, &routes))?;
            let whole = add_delays(&mut report, variant, workload.name(), arrivals.len(), &delays);
            all.push(WorkloadDelays { variant, workload: *workload, delays, whole });
        }
    }
    note_missing(&mut report, &missing);
    Ok((report, all))
}

/// Verifies and signs every arrival in the queue. If there are fewer routes than arrivals, they are repeated.
fn serve(
    options: &Options,
    is_cached: bool,
    variant: SuiteVariant,
    scheme: &mut dyn Scheme,
    (arrivals, routes): (&[u64], &[Route]),
) -> Result<queue::Delays, SuiteFailure> {
    let mut seen = is_cached.then(VerifiedUpdates::default);
    let all_differ = routes.len() >= arrivals.len();
    let pool = if all_differ { Vec::new() } else { receive_all(scheme, routes).map_err(failed(variant))? };
    let delays = queue::run(arrivals, BURST, budget(options), |numbers| {
        // Other ASes' signatures, and what the router makes ahead in the background, are not part of the time.
        let received = if all_differ { receive_all(scheme, &routes[numbers.clone()])? } else { Vec::new() };
        let burst: Vec<&ReceivedUpdate> = if all_differ {
            received.iter().collect()
        } else {
            numbers.map(|number| &pool[number % pool.len()]).collect()
        };
        scheme.prepare(&[ROUTER, NEIGHBOUR]);
        let start = (options.clock)();
        process(scheme, &burst, seen.as_mut());
        Ok((options.clock)() - start)
    });
    delays.map_err(failed(variant))
}

/// Adds the results; returns whether all arrivals were served.
fn add_delays(
    report: &mut Report,
    variant: SuiteVariant,
    workload: &str,
    arrivals: usize,
    delays: &queue::Delays,
) -> bool {
    let name = variant.name();
    report.counted(format!("delay_mean.{name}.{workload}"), "s", delays.mean(), delays.served);
    report.counted(format!("delay_max.{name}.{workload}"), "s", delays.max as f64 / 1e9, delays.served);
    report.counted(format!("busy.{name}.{workload}"), "s", delays.busy as f64 / 1e9, delays.served);
    let whole = delays.served == arrivals;
    if !whole {
        note_slice(report, &format!("{name}.{workload}"), &format!("{} of {arrivals}", delays.served));
    }
    whole
}

fn note_slice(report: &mut Report, what: &str, slice: &str) {
    let slices = report.params.entry("slices").or_insert_with(|| Value::Object(Map::new()));
    slices[what] = json!(slice);
}

fn mean_path(routes: &[Route]) -> f64 {
    routes.iter().map(|route| route.path.len()).sum::<usize>() as f64 / routes.len().max(1) as f64
}

/// `bench attest-trace` over the announcements of an MRT trace, as they came; `name` is the file's.
///
/// # Errors
/// If a scheme cannot sign the UPDATEs.
pub fn recorded(options: &Options, trace: TraceOptions, name: &str, mrt: impl Read) -> Result<Report, SuiteFailure> {
    let (mut heard, mut times) = (Vec::new(), Vec::new());
    for record in mrt::messages(mrt) {
        let Ok((Message::Update(update), _)) = Message::decode(&record.octets, &record.params()) else { continue };
        let path = update.attributes.as_ref().and_then(|attributes| travelled(attributes.as_path()));
        let prefixes: Vec<_> = update.announced.iter().map(|nlri| nlri.prefix).collect();
        let Some(path) = path else { continue };
        for some in prefixes.chunk_by(|a, b| a.afi() == b.afi()).flat_map(|family| family.chunks(PACKED)) {
            heard.push(Route { path: path.clone(), prefixes: some.to_vec() });
            times.push(record.time.0);
        }
    }
    heard.truncate(trace.prefixes.unwrap_or(if options.short { 2_000 } else { usize::MAX }));
    share_keys(&mut heard, SHARED_KEYS);
    let start = times.iter().copied().min().unwrap_or(0);
    let mut seconds = vec![0; 1];
    for at in times.iter().take(heard.len()) {
        let second = ((at - start) / 1_000_000) as usize;
        // Everything after a gap of more than a day counts as one second.
        seconds.resize(seconds.len().max(second.min(86_400) + 1), 0);
        seconds[second.min(86_400)] += 1;
    }
    let arrivals = spread(&seconds, SEED);
    let params = json!({
        "mrt": name, "updates": heard.len(), "mean_path": mean_path(&heard), "peak": seconds.iter().max(),
        "burst": BURST, "cache": trace.cache, "keys": SHARED_KEYS, "budget_s": budget(options) as f64 / 1e9,
        "clock": "processor time",
    });
    let mut report = Report::new("attest-trace", params);
    let mut missing = Vec::new();
    for variant in options.variants() {
        let Some(mut scheme) = variant.scheme(&seed()) else {
            missing.push(variant.name());
            continue;
        };
        let delays = serve(options, trace.cache, variant, scheme.as_mut(), (&arrivals, &heard))?;
        add_delays(&mut report, variant, "recorded", arrivals.len(), &delays);
    }
    note_missing(&mut report, &missing);
    Ok(report)
}

/// The path in the order of travel, without prepending; `None` if it has a set, a loop or more than 16 ASes.
fn travelled(path: AsPath<'_>) -> Option<Vec<Asn>> {
    if path.segments().any(|segment| segment.kind != SegmentKind::Sequence) {
        return None;
    }
    let mut asns: Vec<Asn> = path.asns().collect();
    asns.dedup();
    asns.reverse();
    let looped = (1..asns.len()).any(|i| asns[..i].contains(&asns[i]));
    (!asns.is_empty() && !looped && asns.len() <= 16).then_some(asns)
}

/// `bench attest-trace` over an MRT table that an empty router receives at once: every route is verified
/// and signed onward. `name` is the file's.
///
/// # Errors
/// If a scheme cannot sign the UPDATEs.
pub fn full_table(options: &Options, trace: TraceOptions, name: &str, mrt: impl Read) -> Result<Report, SuiteFailure> {
    let most = trace.prefixes.unwrap_or(if options.short { 5_000 } else { usize::MAX });
    let mut table = Vec::new();
    for record in MrtReader::new(mrt) {
        let Ok(Record::Rib(entries)) = record else { continue };
        // One route of each prefix: that of the first peer.
        let path = |entry: &mrt::RibEntry| travelled(entry.to_attributes().ok()?.as_path());
        if let Some((path, prefix)) = entries.iter().find_map(|entry| Some((path(entry)?, entry.prefix))) {
            table.push(Route { path, prefixes: vec![prefix] });
        }
        if table.len() >= most {
            break;
        }
    }
    share_keys(&mut table, SHARED_KEYS);
    let packed = pack(&table);
    let params = json!({
        "mrt": name, "prefixes": table.len(), "mean_path": mean_path(&table), "updates": packed.len(),
        "packed": PACKED, "updates_bgpsec": table.len(), "keys": SHARED_KEYS, "burst": BURST,
        "clock": "processor time", "budget_s": budget(options) as f64 / 1e9,
    });
    let mut report = Report::new("attest-trace", params);
    let mut missing = Vec::new();
    for variant in options.variants() {
        let updates = if variant.suite == SuiteId::Bgpsec { &table } else { &packed };
        let Some(mut scheme) = variant.scheme(&seed()) else {
            missing.push(variant.name());
            continue;
        };
        let (mut busy, mut served, mut prefixes) = (0, 0, 0);
        for some in updates.chunks(4 * BURST) {
            let received = receive_all(scheme.as_mut(), some).map_err(failed(variant))?;
            let received: Vec<&ReceivedUpdate> = received.iter().collect();
            let start = (options.clock)();
            received.chunks(BURST).for_each(|burst| process(scheme.as_mut(), burst, None));
            busy += (options.clock)() - start;
            served += some.len();
            prefixes += some.iter().map(|route| route.prefixes.len()).sum::<usize>();
            if busy > budget(options) {
                break;
            }
        }
        report.counted(format!("table.{}", variant.name()), "s", busy as f64 / 1e9, prefixes);
        if served < updates.len() {
            note_slice(&mut report, &variant.name(), &format!("{prefixes} of {} prefixes", table.len()));
        }
    }
    note_missing(&mut report, &missing);
    Ok(report)
}

/// Packs the prefixes of one path into UPDATEs, as a router does that sends its table.
fn pack(table: &[Route]) -> Vec<Route> {
    let mut order: Vec<&Route> = table.iter().collect();
    order.sort_by(|a, b| (&a.path, a.prefixes[0].afi()).cmp(&(&b.path, b.prefixes[0].afi())));
    order
        .chunk_by(|a, b| a.path == b.path && a.prefixes[0].afi() == b.prefixes[0].afi())
        .flat_map(|same| same.chunks(PACKED))
        .map(|some| Route {
            path: some[0].path.clone(),
            prefixes: some.iter().map(|route| route.prefixes[0]).collect(),
        })
        .collect()
}

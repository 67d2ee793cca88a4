//! `bench attest-ops`, `attest-trace`, `attest-memory`: every suite and baseline on the same UPDATEs, in one thread.
//!
//! Times are the thread's processor time, which other programs on the machine do not lengthen.

use std::fs;
use std::fs::File;
use std::io::BufReader;

use serde_json::{Map, Value, json};
use wayleave_attestation::bench::memory::{TABLES, of_table, signature_bytes};
use wayleave_attestation::bench::workload::{Route, Workload, routes, share_keys};
use wayleave_attestation::bench::{
    Operations, Received, Seen, generate, operations, process, queue, receive_all, scheme,
};
use wayleave_attestation::paper::hybrid::{KcHybrid, Mix};
use wayleave_attestation::paper::mt::OriginStatement;
use wayleave_attestation::{Scheme, SchemeError, SuiteId};
use wayleave_bgp::mrt::{self, MrtReader, Record};
use wayleave_bgp::{AsPath, Message, SegmentKind};
use wayleave_core::Asn;
use wayleave_crypto::secret::Secret;

use super::plot::{Content, Panel, Plot, Series};
use super::{Report, median};
use crate::cli::{AttestWorkload, Bench};
use crate::failure::{Failure, Outcome};

/// Most UPDATEs verified together.
const BURST: usize = 64;
/// ASes of each kind in the internet of `attest-ops`, and of the workloads.
const FEW_ASES: u32 = 4;
const SOME_ASES: u32 = 8;
/// Keys that the ASes of real paths share.
const SHARED_KEYS: u32 = 32;
const SEED: u64 = 1;
/// Prefixes of one UPDATE; BGPsec signs each prefix alone (RFC 8205 section 4.1).
const PACKED: usize = 32;

fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

fn seed() -> Secret<32> {
    Secret::new([7; 32])
}

/// The suites asked for, or all.
fn suites(bench: &Bench) -> Outcome<Vec<SuiteId>> {
    if bench.suite.is_empty() {
        return Ok(SuiteId::ALL.to_vec());
    }
    let of = |name: &String| {
        let known = || SuiteId::ALL.map(SuiteId::name).join(", ");
        SuiteId::from_name(name).ok_or_else(|| Failure::usage(format!("no suite `{name}`")).help(known()).into())
    };
    bench.suite.iter().map(of).collect()
}

fn cannot(suite: SuiteId) -> impl Fn(SchemeError) -> Failure {
    move |error| Failure::new(format!("{suite}: {error}"))
}

/// A scheme, and the UPDATEs that it is to verify.
type World = (Box<dyn Scheme>, Vec<Received>);

/// A scheme and its UPDATEs, or `None` where the suite is not there.
fn world(suite: SuiteId, routes: &[Route], origin: OriginStatement) -> Outcome<Option<World>> {
    let Some(mut scheme) = scheme(suite, &seed(), origin) else { return Ok(None) };
    let received = receive_all(scheme.as_mut(), routes).map_err(cannot(suite))?;
    Ok(Some((scheme, received)))
}

pub fn ops(bench: &Bench) -> Outcome<Report> {
    let count = if bench.short { 120 } else { 240 };
    let repetitions = bench.repetitions.unwrap_or(if bench.short { 5 } else { 15 }).max(1);
    let routes = routes(count, FEW_ASES, SEED);
    let params = json!({
        "updates": count, "mean_path": 3.7, "burst": BURST, "origin_statements": "remembered", "clock": "processor time",
    });
    let mut report = Report::new("attest-ops", params);
    let (mut missing, mut updates) = (Vec::new(), Vec::new());
    for suite in suites(bench)? {
        let Some((mut scheme, received)) = world(suite, &routes, OriginStatement::Remembered)? else {
            missing.push(suite.name());
            continue;
        };
        let measured = operations(scheme.as_mut(), &received, BURST, repetitions, &mut now);
        let Operations { sign, verify, verify_burst, update_alone, update } = measured;
        let mut add = |what: &str, samples: &[f64]| {
            let seconds: Vec<f64> = samples.iter().map(|nanoseconds| nanoseconds / 1e9).collect();
            report.add(format!("{what}.{suite}"), "s", &seconds);
        };
        add("sign", &sign);
        add("verify", &verify);
        add("verify_burst", &verify_burst);
        add("update", &update);
        add("update_alone", &update_alone);
        add("generate", &generation(suite, if bench.short { 3 } else { 9 }));
        if matches!(suite, SuiteId::KcMtPaper | SuiteId::Spv)
            && let Some((mut scheme, received)) = world(suite, &routes, OriginStatement::EachTime)?
        {
            let each = operations(scheme.as_mut(), &received, BURST, repetitions, &mut now);
            add("update_origin_each_time", &each.update);
        }
        let hops: usize = received.iter().map(|one| one.announcement.path.len()).sum();
        let bytes: usize = received.iter().map(|one| scheme.signature_bytes(&one.attestation)).sum();
        report.exact(format!("bytes_per_hop.{suite}"), "bytes", bytes as f64 / hops as f64);
        // What one more hop adds.
        let mut of = |hops| signature_bytes(scheme.as_mut(), hops, 200).map_err(cannot(suite));
        let (shorter, longer) = (of(3)?, of(4)?);
        report.exact(format!("bytes_next_hop.{suite}"), "bytes", longer - shorter);
        updates.push((suite, median(&update)));
    }
    // How many times longer an UPDATE takes, in this run.
    for (one, other) in [
        (SuiteId::KcMtPaper, SuiteId::SBgp),
        (SuiteId::KcMtPaper, SuiteId::Spv),
        (SuiteId::KcEd25519, SuiteId::Bgpsec),
        (SuiteId::KcHbs, SuiteId::KcEd25519),
    ] {
        let of = |suite| updates.iter().find(|(of, _)| *of == suite).map(|(_, taken)| *taken);
        if let (Some(one_takes), Some(other_takes)) = (of(one), of(other)) {
            report.exact(format!("faster.{one}.than.{other}"), "ratio", other_takes / one_takes);
        }
    }
    note_missing(&mut report, &missing);
    plot(bench, || ops_plot(&report))?;
    Ok(report)
}

/// Nanoseconds of each of `repetitions` key generations.
fn generation(suite: SuiteId, repetitions: u8) -> Vec<f64> {
    let one = |number: u8| {
        let start = now();
        generate(suite, &Secret::new([number; 32]));
        (now() - start) as f64
    };
    (0..repetitions).map(one).collect()
}

fn note_missing(report: &mut Report, missing: &[&str]) {
    if !missing.is_empty() {
        report.params.insert("not_there".into(), json!(missing));
    }
}

pub fn trace(bench: &Bench) -> Outcome<Report> {
    match (bench.workload, &bench.mrt) {
        (Some(AttestWorkload::Table), Some(_)) => full_table(bench),
        (Some(AttestWorkload::Table), None) => Err(Failure::usage("--workload table needs --mrt with a RIB").into()),
        (_, Some(_)) => recorded(bench),
        (Some(AttestWorkload::Normal), None) => generated(bench, &[Workload::Normal]),
        (Some(AttestWorkload::Pathological), None) => generated(bench, &[Workload::Pathological]),
        (Some(AttestWorkload::Heavy), None) => generated(bench, &[Workload::Heavy]),
        (None, None) => generated(bench, &Workload::ALL),
    }
}

/// Work on one suite and workload stops after so many nanoseconds; what was served until then is said.
fn budget(bench: &Bench) -> u64 {
    if bench.short { 1_500_000_000 } else { 600_000_000_000 }
}

fn cached(bench: &Bench) -> bool {
    bench.cache.unwrap_or(false)
}

fn generated(bench: &Bench, workloads: &[Workload]) -> Outcome<Report> {
    let distinct = bench.prefixes.unwrap_or(if bench.short { 512 } else { 4096 }).max(1);
    let params = json!({
        "workloads": workloads.iter().map(|workload| workload.name()).collect::<Vec<_>>(), "distinct_updates": distinct,
        "burst": BURST, "cache": cached(bench), "budget_s": budget(bench) / 1_000_000_000, "clock": "processor time",
    });
    let mut report = Report::new("attest-trace", params);
    let (mut missing, mut lines) = (Vec::new(), Vec::new());
    for suite in suites(bench)? {
        for workload in workloads {
            let arrivals = workload.arrivals(SEED);
            // Every arrival is verified and signed, also those that say what an earlier one said.
            let routes = routes(distinct.min(arrivals.len()), SOME_ASES, SEED);
            let Some((mut scheme, received)) = world(suite, &routes, OriginStatement::Remembered)? else {
                missing.push(suite.name());
                break;
            };
            let delays = serve(bench, scheme.as_mut(), &arrivals, |number| &received[number % received.len()]);
            add_delays(&mut report, suite, workload.name(), arrivals.len(), &delays);
            if *workload == *workloads.last().expect("there is one at least") {
                lines.push((suite, delays.outgoing));
            }
        }
    }
    note_missing(&mut report, &missing);
    plot(bench, || trace_plot(&report, workloads, &lines))?;
    Ok(report)
}

fn serve<'a>(
    bench: &Bench,
    scheme: &mut dyn Scheme,
    arrivals: &[u64],
    update: impl Fn(usize) -> &'a Received,
) -> queue::Delays {
    let mut seen = cached(bench).then(Seen::default);
    queue::run(arrivals, BURST, budget(bench), |numbers| {
        let burst: Vec<&Received> = numbers.map(&update).collect();
        let start = now();
        process(scheme, &burst, seen.as_mut());
        now() - start
    })
}

fn add_delays(report: &mut Report, suite: SuiteId, workload: &str, arrivals: usize, delays: &queue::Delays) {
    report.counted(format!("delay_mean.{suite}.{workload}"), "s", delays.mean(), delays.served);
    report.counted(format!("delay_max.{suite}.{workload}"), "s", delays.max as f64 / 1e9, delays.served);
    report.counted(format!("busy.{suite}.{workload}"), "s", delays.busy as f64 / 1e9, delays.served);
    if delays.served < arrivals {
        let slices = report.params.entry("slices").or_insert_with(|| Value::Object(Map::new()));
        slices[format!("{suite}.{workload}")] = json!(format!("{} of {arrivals}", delays.served));
    }
}

/// The announcements of a recorded trace, as they came.
fn recorded(bench: &Bench) -> Outcome<Report> {
    let path = bench.mrt.as_ref().expect("the caller looked");
    let unreadable = |error: std::io::Error| Failure::new(format!("{}: {error}", path.display()));
    let file = BufReader::new(File::open(path).map_err(unreadable)?);
    let (mut heard, mut times) = (Vec::new(), Vec::new());
    for record in mrt::messages(mrt::decompress(file).map_err(unreadable)?) {
        let Ok((Message::Update(update), _)) = Message::decode(&record.octets, &record.params()) else { continue };
        let path = update.attributes.as_ref().and_then(|attributes| travelled(attributes.as_path()));
        let prefixes: Vec<_> = update.announced.iter().map(|nlri| nlri.prefix).collect();
        let Some(path) = path else { continue };
        for some in prefixes.chunk_by(|a, b| a.afi() == b.afi()).flat_map(|family| family.chunks(PACKED)) {
            heard.push(Route { path: path.clone(), prefixes: some.to_vec() });
            times.push(record.time.0);
        }
    }
    heard.truncate(bench.prefixes.unwrap_or(if bench.short { 2_000 } else { usize::MAX }));
    share_keys(&mut heard, SHARED_KEYS);
    let start = times.iter().copied().min().unwrap_or(0);
    let mut seconds = vec![0; 1];
    for at in times.iter().take(heard.len()) {
        let second = ((at - start) / 1_000_000) as usize;
        // A gap in the trace of more than a day is no part of it.
        seconds.resize(seconds.len().max(second.min(86_400) + 1), 0);
        seconds[second.min(86_400)] += 1;
    }
    let arrivals = wayleave_attestation::bench::workload::spread(&seconds, SEED);
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mean_path = heard.iter().map(|route| route.path.len()).sum::<usize>() as f64 / heard.len().max(1) as f64;
    let params = json!({
        "mrt": name, "updates": heard.len(), "mean_path": mean_path, "peak": seconds.iter().max(), "burst": BURST,
        "cache": cached(bench), "keys": SHARED_KEYS, "budget_s": budget(bench) / 1_000_000_000, "clock": "processor time",
    });
    let mut report = Report::new("attest-trace", params);
    let mut missing = Vec::new();
    for suite in suites(bench)? {
        let Some((mut scheme, received)) = world(suite, &heard, OriginStatement::Remembered)? else {
            missing.push(suite.name());
            continue;
        };
        let delays = serve(bench, scheme.as_mut(), &arrivals, |number| &received[number]);
        add_delays(&mut report, suite, "recorded", arrivals.len(), &delays);
    }
    note_missing(&mut report, &missing);
    Ok(report)
}

/// The path in the order of travel, without prepending; `None` with a set in it or a loop.
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

/// A table that comes all at once to a router that knows nothing: every route is verified and attested onward.
fn full_table(bench: &Bench) -> Outcome<Report> {
    let path = bench.mrt.as_ref().expect("the caller looked");
    let unreadable = |error: std::io::Error| Failure::new(format!("{}: {error}", path.display()));
    let file = BufReader::new(File::open(path).map_err(unreadable)?);
    let most = bench.prefixes.unwrap_or(if bench.short { 5_000 } else { usize::MAX });
    let mut table = Vec::new();
    for record in MrtReader::new(mrt::decompress(file).map_err(unreadable)?) {
        let Ok(Record::Rib(entries)) = record else { continue };
        // One route of each prefix, the first that a peer has.
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
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mean_path = table.iter().map(|route| route.path.len()).sum::<usize>() as f64 / table.len().max(1) as f64;
    let params = json!({
        "mrt": name, "prefixes": table.len(), "mean_path": mean_path, "updates": packed.len(), "packed": PACKED,
        "updates_bgpsec": table.len(), "keys": SHARED_KEYS, "burst": BURST, "clock": "processor time",
        "budget_s": budget(bench) / 1_000_000_000,
    });
    let mut report = Report::new("attest-trace", params);
    let mut missing = Vec::new();
    for suite in suites(bench)? {
        let updates = if suite == SuiteId::Bgpsec { &table } else { &packed };
        let Some(mut scheme) = scheme(suite, &seed(), OriginStatement::Remembered) else {
            missing.push(suite.name());
            continue;
        };
        let (mut busy, mut served, mut prefixes) = (0, 0, 0);
        for some in updates.chunks(4 * BURST) {
            let received = receive_all(scheme.as_mut(), some).map_err(cannot(suite))?;
            let received: Vec<&Received> = received.iter().collect();
            let start = now();
            received.chunks(BURST).for_each(|burst| process(scheme.as_mut(), burst, None));
            busy += now() - start;
            served += some.len();
            prefixes += some.iter().map(|route| route.prefixes.len()).sum::<usize>();
            if busy > budget(bench) {
                break;
            }
        }
        report.counted(format!("table.{suite}"), "s", busy as f64 / 1e9, prefixes);
        if served < updates.len() {
            let slices = report.params.entry("slices").or_insert_with(|| Value::Object(Map::new()));
            slices[suite.name()] = json!(format!("{prefixes} of {} prefixes", table.len()));
        }
    }
    note_missing(&mut report, &missing);
    Ok(report)
}

/// Puts the prefixes of one path together, as a router does that sends its table.
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

pub fn memory(bench: &Bench) -> Outcome<Report> {
    let samples = if bench.short { 40 } else { 400 };
    let params = json!({ "samples": samples, "counted": "signatures, as in the paper" });
    let mut report = Report::new("attest-memory", params);
    let mut missing = Vec::new();
    for suite in suites(bench)? {
        let Some(mut scheme) = scheme(suite, &seed(), OriginStatement::Remembered) else {
            missing.push(suite.name());
            continue;
        };
        let mut add = |scheme: &mut dyn Scheme, name: &str| -> Outcome<()> {
            for table in &TABLES {
                let bytes = of_table(scheme, table, samples).map_err(cannot(suite))?;
                report.exact(format!("memory.{name}.{}", table.asn), "bytes", bytes.round());
            }
            Ok(())
        };
        if suite == SuiteId::KcHybridPaper {
            // Signatures of KC-RSA to those of KC-MT, 1:1 and 2:1.
            add(&mut KcHybrid::new(&seed(), Mix::OneIn(2)), suite.name())?;
            add(&mut KcHybrid::new(&seed(), Mix::OneIn(3)), &format!("{suite}-2to1"))?;
        } else {
            add(scheme.as_mut(), suite.name())?;
        }
    }
    note_missing(&mut report, &missing);
    plot(bench, || memory_plot(&report))?;
    Ok(report)
}

fn plot(bench: &Bench, draw: impl FnOnce() -> Plot) -> Outcome<()> {
    let Some(path) = &bench.plot else { return Ok(()) };
    fs::write(path, draw().to_svg()).map_err(|error| Failure::new(format!("{}: {error}", path.display())).into())
}

/// The suites that have results under `what`, and their values.
fn found(report: &Report, what: &str, suffix: &str) -> Vec<(SuiteId, f64)> {
    let of = |suite: SuiteId| report.value(&format!("{what}.{suite}{suffix}")).map(|value| (suite, value));
    SuiteId::ALL.into_iter().filter_map(of).collect()
}

/// Points over `places`; what is published is drawn for those of its suites that were measured.
fn series(name: &str, published: bool, places: &[SuiteId], values: &[(SuiteId, f64)]) -> Series<usize> {
    let place = |suite: SuiteId| places.iter().position(|place| *place == suite);
    let points = values.iter().filter_map(|(suite, value)| Some((place(*suite)?, *value))).collect();
    Series { name: name.to_owned(), published, points }
}

/// Table III, in seconds: sign (with DSA's precomputation), verify.
const TABLE_III: [(SuiteId, f64, f64); 5] = [
    (SuiteId::SBgp, 30e-6, 4_607e-6),
    (SuiteId::Spv, 703e-6, 191e-6),
    (SuiteId::SasV, 6_800e-6, 350e-6),
    (SuiteId::KcRsaPaper, 6_800e-6, 350e-6),
    (SuiteId::KcMtPaper, 90e-6, 111e-6),
];

fn ops_plot(report: &Report) -> Plot {
    let updates = found(report, "update", "");
    let places: Vec<SuiteId> = updates.iter().map(|(suite, _)| *suite).collect();
    let names = || places.iter().map(|suite| suite.name().to_owned()).collect::<Vec<_>>();
    let paper = |of: fn(f64, f64) -> f64| TABLE_III.map(|(suite, sign, verify)| (suite, of(sign, verify))).to_vec();
    let panel = |title: &str, series: Vec<Series<usize>>| Panel {
        title: title.to_owned(),
        measure: "seconds".to_owned(),
        content: Content::Categories { places: names(), series },
    };
    Plot {
        title: "Attestation: the cost of one operation and of one UPDATE".to_owned(),
        panels: vec![
            panel(
                "Table III: sign and verify one hop (published: Pentium 4, 1.8 GHz)",
                vec![
                    series("sign", false, &places, &found(report, "sign", "")),
                    series("sign, published", true, &places, &paper(|sign, _| sign)),
                    series("verify", false, &places, &found(report, "verify", "")),
                    series("verify, published", true, &places, &paper(|_, verify| verify)),
                ],
            ),
            panel(
                "An UPDATE over the mean path of 3.7 ASes: verify all and sign one",
                vec![
                    series("in bursts", false, &places, &updates),
                    series("alone", false, &places, &found(report, "update_alone", "")),
                    series("published", true, &places, &paper(|sign, verify| 3.7 * verify + sign)),
                ],
            ),
        ],
    }
}

/// Table V, in seconds: suite, then mean and maximum under the normal, the pathological and the heavy workload.
const TABLE_V: [(SuiteId, [(f64, f64); 3]); 4] = [
    (SuiteId::SBgp, [(0.60, 3.20), (515.84, 952.83), (2927.98, 5635.07)]),
    (SuiteId::Spv, [(0.04, 0.22), (4.16, 14.09), (34.11, 85.34)]),
    (SuiteId::KcRsaPaper, [(0.18, 1.04), (251.9, 454.30), (1659.71, 3077.80)]),
    (SuiteId::KcMtPaper, [(0.02, 0.09), (0.81, 3.22), (0.20, 1.70)]),
];

fn trace_plot(report: &Report, workloads: &[Workload], lines: &[(SuiteId, Vec<u32>)]) -> Plot {
    let mut panels = Vec::new();
    for workload in workloads {
        let suffix = format!(".{}", workload.name());
        let means = found(report, "delay_mean", &suffix);
        let places: Vec<SuiteId> = means.iter().map(|(suite, _)| *suite).collect();
        let published = |which: fn((f64, f64)) -> f64| {
            TABLE_V.map(|(suite, delays)| (suite, which(delays[*workload as usize]))).to_vec()
        };
        panels.push(Panel {
            title: format!("Table V: delay under the {} workload", workload.name()),
            measure: "seconds".to_owned(),
            content: Content::Categories {
                places: places.iter().map(|suite| suite.name().to_owned()).collect(),
                series: vec![
                    series("mean", false, &places, &means),
                    series("mean, published", true, &places, &published(|delay| delay.0)),
                    series("maximum", false, &places, &found(report, "delay_max", &suffix)),
                    series("maximum, published", true, &places, &published(|delay| delay.1)),
                ],
            },
        });
    }
    if let Some(last) = workloads.last() {
        let points =
            |counts: &[u32]| (0u32..).map(f64::from).zip(counts.iter().map(|count| f64::from(*count))).collect();
        let mut series =
            vec![Series { name: "arriving".to_owned(), published: false, points: points(&last.seconds(SEED)) }];
        let served = lines.iter().filter(|(suite, _)| !report.is_slice(*suite, last.name())).take(7);
        series.extend(served.map(|(suite, counts)| Series {
            name: format!("{suite}, sent"),
            published: false,
            points: points(counts),
        }));
        panels.push(Panel {
            title: format!("Figures 5 and 6: UPDATEs a second, arriving and sent, {} workload", last.name()),
            measure: "UPDATEs/s".to_owned(),
            content: Content::Lines { along: "seconds".to_owned(), series },
        });
    }
    Plot { title: "Attestation: delay of UPDATEs at a router".to_owned(), panels }
}

/// Table VI, in MB of 2^20 bytes, for the three tables.
const TABLE_VI: [(SuiteId, [f64; 3]); 6] = [
    (SuiteId::SBgp, [28.7, 21.0, 28.5]),
    (SuiteId::Spv, [253.0, 185.0, 250.8]),
    (SuiteId::KcRsaPaper, [25.8, 20.0, 20.4]),
    (SuiteId::SasV, [25.8, 20.0, 20.4]),
    (SuiteId::KcMtPaper, [152.5, 111.5, 151.2]),
    (SuiteId::KcHybridPaper, [102.1, 75.7, 96.0]),
];

fn memory_plot(report: &Report) -> Plot {
    let panels = TABLES.iter().enumerate().map(|(number, table)| {
        let values = found(report, "memory", &format!(".{}", table.asn));
        let places: Vec<SuiteId> = values.iter().map(|(suite, _)| *suite).collect();
        let published = TABLE_VI.map(|(suite, sizes)| (suite, sizes[number] * f64::from(1 << 20)));
        Panel {
            title: format!("Table VI: signatures of AS {}, {} routes", table.asn, table.entries),
            measure: "bytes".to_owned(),
            content: Content::Categories {
                places: places.iter().map(|suite| suite.name().to_owned()).collect(),
                series: vec![
                    series("measured", false, &places, &values),
                    series("published", true, &places, &published),
                ],
            },
        }
    });
    Plot { title: "Attestation: memory for signatures".to_owned(), panels: panels.collect() }
}

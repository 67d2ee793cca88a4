//! `bench attest-trace`: delay under the paper's workloads, a recorded trace or a whole table.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;

use serde_json::{Map, Value, json};
use wayleave_attestation::SuiteId;
use wayleave_bgp::mrt::{self, MrtError, MrtReader, Record, RecordedMessage};
use wayleave_bgp::{AsPath, Message, SegmentKind};
use wayleave_core::{Asn, UnixTime};

use super::workload::{Route, Workload, routes, share_keys, spread};
use super::{
    BURST, NEIGHBOUR, Options, Part, ROUTER, ReceivedUpdate, SEED, SuiteFailure, SuiteVariant, VerifiedUpdates, failed,
    note_missing, process, queue, receive_all, seed,
};
use crate::report::Report;
use crate::scheme::{Scheme, SchemeError};

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
    /// What of a recording is measured.
    pub selection: Selection,
}

/// A part of a recording, as the paper's workloads are of one AS and of a quarter of an hour each (table IV).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Selection {
    /// What this peer of the collector sent; that of all, in one queue, if there is none.
    pub peer: Option<Asn>,
    /// From this time on.
    pub from: Option<UnixTime>,
    /// Before this time.
    pub until: Option<UnixTime>,
}

impl Selection {
    /// Whether everything is measured.
    #[must_use]
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }

    fn has(&self, peer: Asn, time: UnixTime) -> bool {
        self.has_peer(peer) && self.from.is_none_or(|from| from <= time) && self.until.is_none_or(|until| time < until)
    }

    fn has_peer(&self, peer: Asn) -> bool {
        self.peer.is_none_or(|wanted| wanted == peer)
    }

    /// The parameters that say so.
    fn note(&self, params: &mut Value) {
        let seconds = |time: Option<UnixTime>| time.map(UnixTime::secs);
        if !self.is_all() {
            params["selected"] = json!({ "peer": self.peer.map(|peer| peer.0), "from": seconds(self.from), "until": seconds(self.until) });
        }
    }
}

/// Why a recording was not measured.
#[derive(Debug)]
pub enum RecordingError {
    Suite(SuiteFailure),
    /// It ends within a record or is damaged.
    Damaged(MrtError),
    Empty(NothingSelected),
}

/// A recording none of whose routes was selected, and what it has instead.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NothingSelected {
    /// The peers that announce routes, and how many UPDATEs or routes each.
    pub peers: BTreeMap<Asn, usize>,
    /// When the first and the last of their UPDATEs came; of a table there is none.
    pub times: Option<(UnixTime, UnixTime)>,
}

impl NothingSelected {
    fn count(&mut self, peer: Asn, time: Option<UnixTime>) {
        *self.peers.entry(peer).or_default() += 1;
        if let Some(time) = time {
            let (first, last) = self.times.unwrap_or((time, time));
            self.times = Some((first.min(time), last.max(time)));
        }
    }
}

impl fmt::Display for RecordingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Suite(failure) => failure.fmt(f),
            Self::Damaged(error) => error.fmt(f),
            Self::Empty(_) => f.write_str("none of its routes was selected"),
        }
    }
}

impl std::error::Error for RecordingError {}

impl From<SuiteFailure> for RecordingError {
    fn from(failure: SuiteFailure) -> Self {
        Self::Suite(failure)
    }
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
    let variants = if options.part == Part::Arrivals { Vec::new() } else { options.variants() };
    for variant in variants {
        for workload in workloads {
            let arrivals = workload.arrivals(SEED);
            let routes = routes(distinct.min(arrivals.len()), SOME_ASES, SEED);
            let Some(mut scheme) = variant.scheme(&seed()) else {
                missing.push(variant.name());
                break;
            };
            let (delays, octets) = serve(options, trace.cache, variant, scheme.as_mut(), (&arrivals, &routes))?;
            let whole = add_delays(&mut report, variant, workload.name(), arrivals.len(), &delays);
            let duration = if whole { workload.totals().duration } else { octets.seconds.len() };
            octets.add_to(&mut report, &variant.name(), workload.name(), duration);
            all.push(WorkloadDelays { variant, workload: *workload, delays, whole });
        }
    }
    note_missing(&mut report, &missing);
    Ok((report, all))
}

/// Octets of what arrived, which a session carries beside everything else in the UPDATEs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Octets {
    count: usize,
    /// In each second.
    seconds: Vec<u64>,
}

impl Octets {
    /// `octets` of one UPDATE that arrives at this nanosecond.
    fn add(&mut self, at: u64, octets: usize) {
        let second = (at / 1_000_000_000) as usize;
        if self.seconds.len() <= second {
            self.seconds.resize(second + 1, 0);
        }
        self.seconds[second] += octets as u64;
        self.count += 1;
    }

    /// Adds the mean of an UPDATE, and the rates of all of `duration` seconds and of the busiest one.
    fn add_to(&self, report: &mut Report, name: &str, workload: &str, duration: usize) {
        let (count, sum) = (self.count, self.seconds.iter().sum::<u64>() as f64);
        let most = self.seconds.iter().copied().max().unwrap_or(0) as f64;
        report.counted(format!("octets.{name}.{workload}"), "bytes", sum / count.max(1) as f64, count);
        report.counted(format!("bandwidth_mean.{name}.{workload}"), "bit/s", 8.0 * sum / duration.max(1) as f64, count);
        report.counted(format!("bandwidth_max.{name}.{workload}"), "bit/s", 8.0 * most, count);
    }
}

/// Verifies and signs every arrival in the queue. If there are fewer routes than arrivals, they are repeated. Returns also the
/// octets of the attestations that arrived.
fn serve(
    options: &Options,
    is_cached: bool,
    variant: SuiteVariant,
    scheme: &mut dyn Scheme,
    (arrivals, routes): (&[u64], &[Route]),
) -> Result<(queue::Delays, Octets), SuiteFailure> {
    let mut octets = Octets::default();
    let mut seen = is_cached.then(VerifiedUpdates::default);
    make_ahead(scheme, routes).map_err(failed(variant))?;
    let all_differ = routes.len() >= arrivals.len();
    let pool = if all_differ { Vec::new() } else { receive_all(scheme, routes).map_err(failed(variant))? };
    let delays = queue::run(arrivals, BURST, budget(options), |numbers| {
        // Other ASes' signatures, and what the router makes ahead in the background, are not part of the time.
        let received = if all_differ { receive_all(scheme, &routes[numbers.clone()])? } else { Vec::new() };
        let burst: Vec<&ReceivedUpdate> = if all_differ {
            received.iter().collect()
        } else {
            numbers.clone().map(|number| &pool[number % pool.len()]).collect()
        };
        for (at, one) in arrivals[numbers].iter().zip(&burst) {
            octets.add(*at, one.attestation.len());
        }
        scheme.prepare(&[ROUTER, NEIGHBOUR]);
        let start = (options.clock)();
        process(scheme, &burst, seen.as_mut());
        Ok((options.clock)() - start)
    });
    Ok((delays.map_err(failed(variant))?, octets))
}

/// Lets the router sign once, untimed: its key of `kc-hbs` then has the upper part that serves eighteen hours, which takes seconds
/// and which a router makes before it needs it. The trees below are part of the time.
fn make_ahead(scheme: &mut dyn Scheme, routes: &[Route]) -> Result<(), SchemeError> {
    let received = receive_all(scheme, routes.get(..1).unwrap_or_default())?;
    received.iter().for_each(|one| process(scheme, &[one], None));
    Ok(())
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

/// The announcements of a recording that were selected.
#[derive(Debug, Default)]
struct Recording {
    updates: Vec<Route>,
    times: Vec<UnixTime>,
    /// Of the messages that brought them.
    messages: Octets,
}

/// Reads at most so many announcements of an MRT trace.
fn read(mrt: impl Read, selection: &Selection, most: usize) -> Result<Recording, RecordingError> {
    let (mut heard, mut other, mut start) = (Recording::default(), NothingSelected::default(), None);
    for record in MrtReader::new(mrt) {
        let message = match record {
            Ok(Record::Message(message)) if !message.sent => message,
            Ok(_) | Err(MrtError::Body { .. }) => continue,
            Err(error @ MrtError::Frame(_)) => return Err(RecordingError::Damaged(error)),
        };
        let announced = announced(&message);
        if announced.is_empty() {
            continue;
        }
        if !selection.has(message.peer_asn, message.time) {
            other.count(message.peer_asn, Some(message.time));
            continue;
        }
        let since = message.time.0.saturating_sub(start.get_or_insert(message.time).0);
        heard.messages.add(since.saturating_mul(1_000).min(LONGEST), message.octets.len());
        heard.times.extend(announced.iter().map(|_| message.time));
        heard.updates.extend(announced);
        if heard.updates.len() >= most {
            break;
        }
    }
    heard.updates.truncate(most);
    heard.times.truncate(most);
    if heard.updates.is_empty() { Err(RecordingError::Empty(other)) } else { Ok(heard) }
}

/// What a message announces, in UPDATEs of at most [`PACKED`] prefixes of one family.
fn announced(message: &RecordedMessage) -> Vec<Route> {
    let Ok((Message::Update(update), _)) = Message::decode(&message.octets, &message.params()) else {
        return Vec::new();
    };
    let path = update.attributes.as_ref().and_then(|attributes| travelled(attributes.as_path()));
    let Some(path) = path else { return Vec::new() };
    let prefixes: Vec<_> = update.announced.iter().map(|nlri| nlri.prefix).collect();
    let families = prefixes.chunk_by(|a, b| a.afi() == b.afi());
    families
        .flat_map(|family| family.chunks(PACKED))
        .map(|some| Route { path: path.clone(), prefixes: some.to_vec() })
        .collect()
}

/// `bench attest-trace` over the announcements of an MRT trace, as they came; `name` is the file's.
///
/// # Errors
/// If nothing was selected, the trace is damaged, or a scheme cannot sign the UPDATEs.
pub fn recorded(options: &Options, trace: TraceOptions, name: &str, mrt: impl Read) -> Result<Report, RecordingError> {
    let most = trace.prefixes.unwrap_or(if options.short { 2_000 } else { usize::MAX }).max(1);
    let Recording { updates: mut heard, times, messages } = read(mrt, &trace.selection, most)?;
    share_keys(&mut heard, SHARED_KEYS);
    let seconds = by_second(&times);
    let arrivals = spread(&seconds, SEED);
    let mut params = json!({
        "mrt": name, "updates": heard.len(), "mean_path": mean_path(&heard), "peak": seconds.iter().max(),
        "duration_s": seconds.len(), "burst": BURST, "cache": trace.cache, "keys": SHARED_KEYS,
        "budget_s": budget(options) as f64 / 1e9, "clock": "processor time",
    });
    trace.selection.note(&mut params);
    let mut report = Report::new("attest-trace", params);
    // The messages as they were recorded, without attestations.
    messages.add_to(&mut report, "messages", "recorded", seconds.len());
    let mut missing = Vec::new();
    for variant in options.variants() {
        let Some(mut scheme) = variant.scheme(&seed()) else {
            missing.push(variant.name());
            continue;
        };
        let (delays, octets) = serve(options, trace.cache, variant, scheme.as_mut(), (&arrivals, &heard))?;
        let whole = add_delays(&mut report, variant, "recorded", arrivals.len(), &delays);
        let duration = if whole { seconds.len() } else { octets.seconds.len() };
        octets.add_to(&mut report, &variant.name(), "recorded", duration);
    }
    note_missing(&mut report, &missing);
    Ok(report)
}

/// Everything after a gap of more than a day counts as one second.
const LONGEST: u64 = 86_400 * 1_000_000_000;

/// Arrivals in each second from the first on.
fn by_second(times: &[UnixTime]) -> Vec<u32> {
    let start = times.iter().min().map_or(0, |time| time.0);
    let mut seconds = vec![0; 1];
    for at in times {
        let second = (at.0 - start).saturating_mul(1_000).min(LONGEST) / 1_000_000_000;
        seconds.resize(seconds.len().max(second as usize + 1), 0);
        seconds[second as usize] += 1;
    }
    seconds
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
/// and signed onward. `name` is the file's. Of a selection only the peer counts.
///
/// # Errors
/// As [`recorded`].
pub fn full_table(
    options: &Options,
    trace: TraceOptions,
    name: &str,
    mrt: impl Read,
) -> Result<Report, RecordingError> {
    let most = trace.prefixes.unwrap_or(if options.short { 5_000 } else { usize::MAX }).max(1);
    let mut table = read_table(mrt, &trace.selection, most)?;
    share_keys(&mut table, SHARED_KEYS);
    let packed = pack(&table);
    let mut params = json!({
        "mrt": name, "prefixes": table.len(), "mean_path": mean_path(&table), "updates": packed.len(),
        "packed": PACKED, "updates_bgpsec": table.len(), "keys": SHARED_KEYS, "burst": BURST,
        "clock": "processor time", "budget_s": budget(options) as f64 / 1e9,
    });
    trace.selection.note(&mut params);
    let mut report = Report::new("attest-trace", params);
    let mut missing = Vec::new();
    for variant in options.variants() {
        let updates = if variant.suite == SuiteId::Bgpsec { &table } else { &packed };
        let Some(mut scheme) = variant.scheme(&seed()) else {
            missing.push(variant.name());
            continue;
        };
        make_ahead(scheme.as_mut(), updates).map_err(failed(variant))?;
        let (mut busy, mut served, mut prefixes, mut octets) = (0, 0, 0, 0);
        for some in updates.chunks(4 * BURST) {
            let received = receive_all(scheme.as_mut(), some).map_err(failed(variant))?;
            let received: Vec<&ReceivedUpdate> = received.iter().collect();
            let start = (options.clock)();
            received.chunks(BURST).for_each(|burst| process(scheme.as_mut(), burst, None));
            busy += (options.clock)() - start;
            served += some.len();
            octets += received.iter().map(|one| one.attestation.len()).sum::<usize>();
            prefixes += some.iter().map(|route| route.prefixes.len()).sum::<usize>();
            if busy > budget(options) {
                break;
            }
        }
        report.counted(format!("table.{}", variant.name()), "s", busy as f64 / 1e9, prefixes);
        report.counted(format!("table_octets.{}", variant.name()), "bytes", octets as f64, prefixes);
        if served < updates.len() {
            note_slice(&mut report, &variant.name(), &format!("{prefixes} of {} prefixes", table.len()));
        }
    }
    note_missing(&mut report, &missing);
    Ok(report)
}

/// At most so many routes of an MRT table, one of each prefix: that of the peer selected, or of the first one.
fn read_table(mrt: impl Read, selection: &Selection, most: usize) -> Result<Vec<Route>, RecordingError> {
    let (mut table, mut other) = (Vec::new(), NothingSelected::default());
    for record in MrtReader::new(mrt) {
        let entries = match record {
            Ok(Record::Rib(entries)) => entries,
            Ok(_) | Err(MrtError::Body { .. }) => continue,
            Err(error @ MrtError::Frame(_)) => return Err(RecordingError::Damaged(error)),
        };
        entries.iter().for_each(|entry| other.count(entry.peer_asn, None));
        let path = |entry: &mrt::RibEntry| travelled(entry.to_attributes().ok()?.as_path());
        let mut of_peer = entries.iter().filter(|entry| selection.has_peer(entry.peer_asn));
        if let Some((path, prefix)) = of_peer.find_map(|entry| Some((path(entry)?, entry.prefix))) {
            table.push(Route { path, prefixes: vec![prefix] });
        }
        if table.len() >= most {
            break;
        }
    }
    if table.is_empty() { Err(RecordingError::Empty(other)) } else { Ok(table) }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An MRT record of the second `at` with an UPDATE of `peer` for 192.0.2.0/24, whose path is the peer and AS 64500; or with
    /// a KEEPALIVE.
    fn record(at: u32, peer: u8, announces: bool) -> Vec<u8> {
        let mut body = vec![0, 0, 0, peer, 0, 0, 0, 9, 0, 0, 0, 1, 192, 0, 2, 1, 192, 0, 2, 2];
        let attributes =
            [&[0x40, 1, 1, 0][..], &[0x40, 2, 10, 2, 2, 0, 0, 0, peer, 0, 0, 0xfb, 0xf4], &[0x40, 3, 4, 192, 0, 2, 1]]
                .concat();
        let update = [&[0, 0, 0, attributes.len() as u8][..], &attributes, &[24, 192, 0, 2]].concat();
        let (kind, content) = if announces { (2, update) } else { (4, Vec::new()) };
        body.extend_from_slice(&[0xff; 16]);
        body.extend_from_slice(&(19 + content.len() as u16).to_be_bytes());
        body.push(kind);
        body.extend_from_slice(&content);
        let header = [&at.to_be_bytes()[..], &[0, 16, 0, 4], &(body.len() as u32).to_be_bytes()].concat();
        [header, body].concat()
    }

    const fn at(second: u64) -> UnixTime {
        UnixTime(second * 1_000_000)
    }

    /// UPDATEs of AS 1 in the seconds 10, 20 and 30, of AS 2 in the seconds 20 and 50, and what is none.
    fn trace() -> Vec<u8> {
        let updates = [(10, 1), (20, 1), (20, 2), (30, 1), (50, 2)].map(|(second, peer)| record(second, peer, true));
        [updates.concat(), record(60, 3, false)].concat()
    }

    fn times(selection: Selection) -> Vec<u64> {
        let heard = read(&trace()[..], &selection, usize::MAX).expect("some");
        assert_eq!((heard.updates.len(), heard.messages.count), (heard.times.len(), heard.times.len()));
        heard.times.into_iter().map(UnixTime::secs).collect()
    }

    #[test]
    fn a_selection_has_the_updates_of_its_peer_from_its_first_until_before_its_last_second() {
        let all = Selection::default();
        assert!(all.is_all());
        assert_eq!(times(all), [10, 20, 20, 30, 50]);
        let peer = |number| Selection { peer: Some(Asn(number)), ..all };
        assert_eq!((times(peer(1)), times(peer(2))), (vec![10, 20, 30], vec![20, 50]));
        let (from, until) = (Some(at(20)), Some(at(30)));
        assert_eq!(times(Selection { from, ..all }), [20, 20, 30, 50]);
        assert_eq!(times(Selection { until, ..all }), [10, 20, 20]);
        assert_eq!(times(Selection { from, until, ..peer(1) }), [20]);
    }

    #[test]
    fn where_nothing_is_selected_the_error_says_what_there_is() {
        let selection = Selection { peer: Some(Asn(3)), ..Selection::default() };
        let Err(RecordingError::Empty(other)) = read(&trace()[..], &selection, 9) else { panic!("it has none") };
        assert_eq!(other.peers, BTreeMap::from([(Asn(1), 3), (Asn(2), 2)]));
        assert_eq!(other.times, Some((at(10), at(50))));
        let Err(RecordingError::Empty(other)) = read(&record(1, 1, false)[..], &Selection::default(), 9) else {
            panic!("nothing is announced")
        };
        assert_eq!(other, NothingSelected::default());
        let damaged = trace();
        let damaged = read(&damaged[..damaged.len() - 1], &Selection::default(), usize::MAX);
        assert!(matches!(damaged, Err(RecordingError::Damaged(_))));
    }

    #[test]
    fn octets_are_counted_by_the_second_in_which_they_arrive() {
        let mut octets = Octets::default();
        for (at, count) in [(0, 100), (1, 50), (2_999_999_999, 450)] {
            octets.add(at, count);
        }
        assert_eq!(octets, Octets { count: 3, seconds: vec![150, 0, 450] });
        let mut report = Report::new("x", json!({}));
        octets.add_to(&mut report, "s", "w", 4);
        let value = |name: &str| report.value(&format!("{name}.s.w"));
        assert_eq!(
            (value("octets"), value("bandwidth_mean"), value("bandwidth_max")),
            (Some(200.0), Some(1_200.0), Some(3_600.0))
        );
    }

    #[test]
    fn the_attestations_of_a_peer_are_measured_alone() {
        fn no_clock() -> u64 {
            0
        }
        let suites = vec![SuiteId::KcEd25519];
        let options = Options { part: Part::All, suites, short: true, repetitions: None, clock: no_clock };
        let of = |peer| {
            let selection = Selection { peer, ..Selection::default() };
            recorded(&options, TraceOptions { selection, ..TraceOptions::default() }, "t", &trace()[..]).expect("some")
        };
        let (all, one) = (of(None), of(Some(Asn(1))));
        assert_eq!((&all.params["updates"], &one.params["updates"]), (&json!(5), &json!(3)));
        assert_eq!((&all.params["duration_s"], &one.params["duration_s"]), (&json!(41), &json!(21)));
        assert_eq!((all.params.get("selected"), &one.params["selected"]["peer"]), (None, &json!(1)));
        // Every path has two ASes: the attestations are of one length, and the rates as the numbers of UPDATEs.
        let octets = |report: &Report| report.value("octets.kc-ed25519.recorded").expect("measured");
        assert_eq!(octets(&all), octets(&one));
        let rate = one.value("bandwidth_mean.kc-ed25519.recorded").expect("measured");
        assert!((rate - 8.0 * 3.0 * octets(&one) / 21.0).abs() < 1e-6, "{rate}");
        assert_eq!(all.value("bandwidth_max.kc-ed25519.recorded"), Some(8.0 * 2.0 * octets(&all)));
    }
}

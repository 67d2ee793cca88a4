//! `bench exchange-trace`: a recorded table through two parties and all members, compared with the plaintext oracle. All
//! processes run in one thread, so that the time is all work of all.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::json;
use wayleave_bgp::Attributes;
use wayleave_core::Prefix;
use wayleave_papers::report::{Report, mean, percentile};
use wayleave_route_server::object::ExportMode;
use wayleave_route_server::oracle::Oracle;
use wayleave_route_server::policy::validate::Martians;

use crate::sim::{Node, PARTIES, RS_ASN, Recorded, Setup, Sim};
use crate::trace::{self, TraceUpdate};

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct ExchangeTrace {
    /// Seconds from the router's UPDATE to the last router's table, for each prefix in it.
    pub seconds: Vec<f64>,
    /// The same in processor time of the one thread, which other programs on the machine do not lengthen.
    pub cpu_seconds: Vec<f64>,
    /// The same for members on machines of their own: the work of party 1, of party 2, of the announcer and of the
    /// slowest other member, one after another.
    pub critical_seconds: Vec<f64>,
    /// Both parties' work, one after the other: the time that an UPDATE's prefixes spend at parties that have a machine each.
    pub parties_seconds: Vec<f64>,
    /// Work of both parties, and of all members.
    pub stages: [Duration; 2],
    /// Prefixes withdrawn or announced.
    pub prefixes: usize,
    /// UPDATEs.
    pub updates: usize,
    /// Prefixes of tables that differ from the plaintext route server's.
    pub oracle_mismatches: usize,
    /// Bytes between the parties, both directions.
    pub party_link_bytes: u64,
    /// Bytes from and to members.
    pub member_link_bytes: u64,
    /// Bytes of announcements, withdrawals and columns from members to both parties.
    pub submitted_bytes: u64,
    /// Time of the whole replay, without setup ahead of need.
    pub elapsed: Duration,
    /// Time of the setup that the parties did while they were idle.
    pub setup: Duration,
    /// Routes in all tables at the end.
    pub routes: usize,
}

impl ExchangeTrace {
    /// The results of a replay of the trace `name` among `members` members.
    #[must_use]
    pub fn report(&self, name: &str, members: usize, tick: Duration, export: ExportMode) -> Report {
        let params = json!({
            "mrt": name, "members": members, "export": export.to_string(), "tick_ms": tick.as_millis() as u64, "updates": self.updates,
            "prefixes": self.prefixes, "routes": self.routes, "threads": 1, "links": "in memory",
        });
        let mut report = Report::new("exchange-trace", params);
        // A prefix waits for its whole UPDATE, through both parties and every member.
        report.summary("prefix_mean", "s", &self.seconds, mean(&self.seconds));
        report.add("prefix_p50", "s", &self.seconds);
        report.summary("prefix_p99", "s", &self.seconds, percentile(&self.seconds, 99));
        // The same in processor time, which other programs on the machine do not lengthen.
        report.summary("prefix_cpu_mean", "s", &self.cpu_seconds, mean(&self.cpu_seconds));
        // The same with members on machines of their own: both parties, the announcer and the slowest receiver in turn.
        report.summary("prefix_critical_mean", "s", &self.critical_seconds, mean(&self.critical_seconds));
        report.add("prefix_critical_p50", "s", &self.critical_seconds);
        // The paper's Figure 10: from the receipt of an announcement to the transmission of its outputs.
        report.summary("parties_mean", "s", &self.parties_seconds, mean(&self.parties_seconds));
        report.add("parties_p50", "s", &self.parties_seconds);
        report.summary("parties_p99", "s", &self.parties_seconds, percentile(&self.parties_seconds, 99));
        let per_prefix = |time: Duration| time.as_secs_f64() / self.prefixes.max(1) as f64;
        report.exact("stage.parties", "s", per_prefix(self.stages[0]));
        report.exact("stage.members", "s", per_prefix(self.stages[1]));
        // All processes' work, shared out over the prefixes, and over the UPDATEs that brought them.
        report.exact("prefix_work", "s", per_prefix(self.elapsed));
        report.exact("update_work", "s", self.elapsed.as_secs_f64() / self.updates.max(1) as f64);
        report.exact("oracle_mismatches", "count", self.oracle_mismatches as f64);
        let seconds = self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        report.exact("party_link", "bytes/s", self.party_link_bytes as f64 / seconds);
        report.exact("submitted", "bytes", self.submitted_bytes as f64 / self.updates.max(1) as f64);
        // Correlations that both parties made in turn between UPDATEs: in none of the times above.
        report.exact("setup", "s", self.setup.as_secs_f64());
        report.exact("prefix_setup", "s", per_prefix(self.setup));
        report
    }
}

/// Replays `updates` among `members` members, one UPDATE at a time (`tick` zero) or as time passes in the trace.
///
/// # Panics
/// If the exchange does not come to rest.
pub fn exchange_trace(
    members: usize,
    updates: &[TraceUpdate],
    tick: Duration,
    export: ExportMode,
    mut progress: impl FnMut(usize),
) -> ExchangeTrace {
    let mut sim = Sim::new(Setup { members, tick, export, ..Setup::default() });
    assert!(sim.settle(Duration::from_secs(600)), "the exchange did not start");
    let mut oracle = Oracle::new(sim.set.clone(), RS_ASN, BTreeMap::new()).with_martians(Martians::AllowDocumentation);
    oracle.set_order(sim.order_key(PARTIES[0]).expect("the parties have agreed on an order"));
    sim.fill_pools();
    let mut out = ExchangeTrace::default();
    for (i, update) in updates.iter().enumerate() {
        let slot = u32::try_from(update.peer % members).expect("few members");
        let attributes = update.attributes.as_ref().map(|attributes| trace::as_member(attributes, slot));
        tell_oracle(&mut oracle, slot, update, attributes.as_ref());
        sim.recording = Some(Vec::new());
        sim.work = Some(BTreeMap::new());
        let (start, cpu_start) = (Instant::now(), cpu_seconds());
        if !update.withdrawn.is_empty() {
            sim.withdraw(slot, &update.withdrawn);
        }
        if let Some(attributes) = attributes.filter(|_| !update.announced.is_empty()) {
            sim.announce(slot, &update.announced, &attributes);
        }
        assert!(sim.settle(Duration::from_secs(600)), "the exchange did not come to rest");
        let (took, cpu_took) = (start.elapsed(), cpu_seconds() - cpu_start);
        out.elapsed += took;
        let prefixes = update.withdrawn.len() + update.announced.len();
        out.seconds.extend(std::iter::repeat_n(took.as_secs_f64(), prefixes));
        out.cpu_seconds.extend(std::iter::repeat_n(cpu_took, prefixes));
        let work = sim.work.take().unwrap_or_default();
        let parties: Duration = PARTIES.iter().filter_map(|party| work.get(party)).sum();
        out.parties_seconds.extend(std::iter::repeat_n(parties.as_secs_f64(), prefixes));
        let critical = critical(&work, slot, &mut out.stages);
        out.critical_seconds.extend(std::iter::repeat_n(critical.as_secs_f64(), prefixes));
        out.prefixes += prefixes;
        out.updates += 1;
        let start = Instant::now();
        sim.fill_pools();
        out.setup += start.elapsed();
        count_bytes(&sim.recording.take().unwrap_or_default(), &mut out);
        progress(i + 1);
    }
    for (slot, table) in &sim.tables {
        let expected: BTreeMap<Prefix, Attributes> =
            oracle.table(*slot).into_iter().map(|(prefix, (_, attributes))| (prefix, attributes)).collect();
        out.oracle_mismatches += expected.iter().filter(|(prefix, a)| table.get(prefix) != Some(a)).count();
        out.oracle_mismatches += table.keys().filter(|prefix| !expected.contains_key(prefix)).count();
        out.routes += table.len();
    }
    out
}

/// Processor time of this thread so far.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// The longest way that an UPDATE of the member in `slot` can take if every process has a machine of its own.
fn critical(work: &BTreeMap<Node, Duration>, slot: u32, stages: &mut [Duration; 2]) -> Duration {
    let of = |node: &Node| work.get(node).copied().unwrap_or_default();
    let parties: Duration = PARTIES.iter().map(of).sum();
    let members = work.iter().filter(|(node, _)| matches!(node, Node::Member(_)));
    stages[0] += parties;
    stages[1] += members.clone().map(|(_, time)| *time).sum::<Duration>();
    let others = members.filter(|(node, _)| **node != Node::Member(slot)).map(|(_, time)| *time);
    parties + of(&Node::Member(slot)) + others.max().unwrap_or_default()
}

fn tell_oracle(oracle: &mut Oracle, slot: u32, update: &TraceUpdate, attributes: Option<&Attributes>) {
    oracle.withdraw(slot, &update.withdrawn);
    if let Some(attributes) = attributes {
        oracle.announce(slot, &update.announced, attributes);
    }
}

fn count_bytes(recording: &[Recorded], out: &mut ExchangeTrace) {
    for frame in recording {
        let between = PARTIES.contains(&frame.from) && PARTIES.contains(&frame.to);
        let bytes = frame.bytes.len() as u64;
        if between {
            out.party_link_bytes += bytes;
        } else {
            debug_assert!(matches!(frame.from, Node::Member(_)) || matches!(frame.to, Node::Member(_)));
            out.member_link_bytes += bytes;
            // `SubmitOne` and `SubmitTwo`.
            let submits = matches!(frame.from, Node::Member(_)) && matches!(frame.bytes.first(), Some(2 | 3));
            out.submitted_bytes += if submits { bytes } else { 0 };
        }
    }
}

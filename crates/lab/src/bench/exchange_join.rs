//! `bench exchange-join`: a member announces a full table to all others, and a further member joins it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use wayleave_papers::report::Report;

use super::exchange::members::Whose;
use super::exchange::{Exchange, ExchangeError, Plan, Used, now, prefix};
use crate::sim::{member_address, member_asn};
use crate::sink::SinkTotals;

/// Slots of the whole members: one announces, two receive.
pub const ANNOUNCER: u32 = 0;
pub const RECEIVERS: [u32; 2] = [1, 2];
/// UPDATEs of the announcer's router that are given to it at a time.
const AT_ONCE: usize = 512;

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// All members but the one that joins: one that announces, two whole receivers, sinks.
    pub members: usize,
    pub prefixes: usize,
    /// Prefixes of each UPDATE.
    pub per_update: usize,
    /// Of how many prefixes of a hundred a sink has announced a route before, so that Select-Best has to choose.
    pub contested: usize,
    /// Whether sinks take part in Select-Best.
    pub sinks_select: bool,
    /// Whether sinks that connect again say what they have had, as members do that keep it; otherwise they are sent everything.
    pub sinks_keep: bool,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Join {
    /// From the first UPDATE of the announcer's router until all are at rest.
    pub announce: Duration,
    pub announce_used: Used,
    /// From the start of the member that joins until its router's table is whole and all are at rest.
    pub join: Duration,
    pub join_used: Used,
    /// What the sinks were delivered while it was announced.
    pub taken: SinkTotals,
    pub lanes: u64,
    pub party_link: u64,
    pub memory: [u64; 2],
    /// How often the parties reported what to their operators: members that were `Behind`, on `Probation`, and the like.
    pub event_counts: BTreeMap<String, u64>,
}

/// A route as the router of the member in `slot` announces it; `length` is that of its path.
#[must_use]
pub fn route(slot: u32, length: usize, number: usize) -> wayleave_bgp::Attributes {
    let mut editor = wayleave_bgp::Attributes::builder();
    let origin = 64_512 + u32::try_from(number % 20_000).expect("few");
    editor.prepend(wayleave_core::Asn(1_000_000 + origin), length);
    editor.prepend(member_asn(slot), 1).origin(wayleave_bgp::Origin::Igp).ipv4_next_hop(member_address(slot));
    editor.finish()
}

/// Connects whole members and sinks in the slots from 0 on, and waits until all are up.
///
/// # Errors
/// If that fails.
pub fn gather(exchange: &mut Exchange, size: &Size) -> Result<(), ExchangeError> {
    exchange.members.add_whole(ANNOUNCER, Whose::Announcer);
    for slot in RECEIVERS {
        exchange.members.add_whole(slot, Whose::Receivers);
    }
    for slot in sinks(size) {
        exchange.members.add_sink(slot, size.sinks_select, size.sinks_keep);
    }
    exchange.rest().map(drop)
}

/// The slots of the sinks.
pub fn sinks(size: &Size) -> std::ops::Range<u32> {
    3..u32::try_from(size.members).expect("few members").max(3)
}

/// Each of so many prefixes is announced by a sink, in turn.
///
/// # Errors
/// If that fails.
pub fn announce_by_sinks(exchange: &mut Exchange, size: &Size, prefixes: usize) -> Result<(), ExchangeError> {
    let slots: Vec<u32> = sinks(size).collect();
    for number in 0..prefixes {
        let slot = slots[number % slots.len().max(1)];
        exchange.members.update(slot, &[], &[prefix(number)], Some(&route(slot, 3, number)));
        if number % AT_ONCE == 0 {
            exchange.step(Duration::ZERO)?;
        }
    }
    exchange.rest().map(drop)
}

/// Measures both.
///
/// # Errors
/// If a process ends, or anything takes longer than `plan` says.
pub fn run(plan: Plan, size: Size) -> Result<Join, ExchangeError> {
    let mut exchange = Exchange::start(plan)?;
    gather(&mut exchange, &size)?;
    let contested = if sinks(&size).is_empty() { 0 } else { size.prefixes * size.contested.min(100) / 100 };
    announce_by_sinks(&mut exchange, &size, contested)?;
    exchange.stocked()?;
    exchange.check_links()?;

    let (begin, used, taken) = (now().instant, exchange.used(), exchange.members.taken());
    let (lanes, party_link) = (exchange.ask()?[0].lanes, exchange.party_link);
    let numbers: Vec<usize> = (0..size.prefixes).collect();
    for (at, run) in numbers.chunks(size.per_update.max(1)).enumerate() {
        let prefixes: Vec<_> = run.iter().map(|number| prefix(*number)).collect();
        exchange.members.update(ANNOUNCER, &[], &prefixes, Some(&route(ANNOUNCER, 1, run[0])));
        if at % AT_ONCE == 0 {
            exchange.step(Duration::ZERO)?;
        }
    }
    let is_there = |exchange: &Exchange| {
        let whole = |slot: &u32| exchange.members.table(*slot).is_some_and(|table| table.len() == size.prefixes);
        RECEIVERS.iter().all(whole)
    };
    exchange.until("the receivers lack prefixes", is_there)?;
    let answers = exchange.rest()?;
    let (announce, announce_used) = (now().instant.since(begin), exchange.used().since(&used));
    exchange.check_links()?;
    let after = exchange.members.taken();
    let taken = SinkTotals {
        frames: after.frames - taken.frames,
        octets: after.octets - taken.octets,
        deliveries: after.deliveries - taken.deliveries,
        rankings: after.rankings - taken.rankings,
        refused: after.refused,
    };
    let lanes = answers[0].lanes - lanes;
    let party_link = exchange.party_link - party_link;

    exchange.stocked()?;
    let joiner = u32::try_from(size.members).expect("few members").max(3);
    let (begin, used) = (now().instant, exchange.used());
    exchange.members.add_whole(joiner, Whose::Receivers);
    let is_whole = |exchange: &Exchange| exchange.members.table(joiner).is_some_and(|t| t.len() == size.prefixes);
    exchange.until("the member that joined lacks prefixes", is_whole)?;
    exchange.rest()?;
    let (join, join_used) = (now().instant.since(begin), exchange.used().since(&used));
    exchange.check_links()?;
    let (memory, event_counts) = (exchange.memory(), exchange.event_counts);
    Ok(Join { announce, announce_used, join, join_used, taken, lanes, party_link, memory, event_counts })
}

/// Adds the processor time of each part, as `NAME.PART`.
pub fn report_used(report: &mut Report, name: &str, used: &Used) {
    for (part, time) in used.parts() {
        report.exact(format!("{name}.{part}"), "s", time.as_secs_f64());
    }
}

/// Who worked for the longest, of those that each would have a machine, and for which part of the time.
#[must_use]
pub fn binding(used: &Used, elapsed: Duration) -> String {
    let parts = used.parts();
    let longest = parts.iter().max_by_key(|(_, time)| *time).map_or(("nobody", Duration::ZERO), |longest| *longest);
    let share = longest.1.as_secs_f64() / elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
    format!("{} at work for {:.0}% of the time", longest.0, 100.0 * share)
}

impl Join {
    /// The results.
    #[must_use]
    pub fn report(&self, size: &Size, plan: &Plan) -> Report {
        let params = json!({
            "members": size.members, "prefixes": size.prefixes, "prefixes_per_update": size.per_update,
            "contested_percent": size.contested, "sinks": sinks(size).len(),
            "sinks_select_best": size.sinks_select, "export": plan.export.to_string(),
            "tick_ms": plan.tick.as_millis() as u64, "links": "pipes, without TLS",
            "processes": "party 1, party 2, all members in one thread",
            "cores": std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            "events": self.event_counts,
            "announce_bound_by": binding(&self.announce_used, self.announce),
            "join_bound_by": binding(&self.join_used, self.join),
        });
        let mut report = Report::new("exchange-join", params);
        report.exact("join", "s", self.join.as_secs_f64());
        report.exact("announce", "s", self.announce.as_secs_f64());
        report.exact("deliveries", "count", self.taken.deliveries as f64);
        report_used(&mut report, "join", &self.join_used);
        report_used(&mut report, "announce", &self.announce_used);
        report.exact("announce.rankings", "count", self.taken.rankings as f64);
        report.exact("announce.lanes", "count", self.lanes as f64);
        report.exact("announce.refused", "count", self.taken.refused as f64);
        report.exact("announce.to_sinks", "bytes", self.taken.octets as f64);
        report.exact("announce.party_link", "bytes", self.party_link as f64);
        report.exact("memory.party-1", "bytes", self.memory[0] as f64);
        report.exact("memory.party-2", "bytes", self.memory[1] as f64);
        report
    }
}

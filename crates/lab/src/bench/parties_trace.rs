//! `bench exchange-trace --generated`: the parties' time alone, with sinks as members, over a trace that has the paper's published moments.
//! Both parties and all sinks run in one thread, one UPDATE at a time, with links in memory; only what the parties do is measured.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::Duration;

use wayleave_core::{Instant, Machine, Now, UnixTime};
use wayleave_crypto::secret::Seed;
use wayleave_papers::bench::exchange_trace::Trace;
use wayleave_papers::report::{Report, mean, percentile};
use wayleave_route_server::object::ExportMode;
use wayleave_route_server::party::{LinkId, Party, PartyInput, PartyNumber, PartyOutput, PeerId};

use super::exchange::members::{Members, ToParty};
use super::exchange::party::PartyArguments;
use super::exchange::{BOTH, fresh, index, now, prefix, thread_time};
use super::exchange_join::route;

/// The link between the parties.
const PEER: LinkId = 1 << 60;
/// Inputs without an end: it does not come to rest.
const MOST_INPUTS: u64 = 1 << 32;
/// Objects that are announced between two rests while the table is loaded.
const LOADED_AT_ONCE: usize = 500;

/// The parties' work for one UPDATE.
#[derive(Clone, Copy, Debug, Default)]
struct Stages {
    /// Until the route was sent to all members.
    export: Duration,
    /// From the first ranking on.
    select: Duration,
}

/// What was measured; the times of an UPDATE count for each of its prefixes.
#[derive(Clone, Debug, Default)]
pub struct PartiesTrace {
    /// Seconds, Export-All: until the route has left for all members.
    pub export: Vec<f64>,
    /// Seconds, Select-Best, of prefixes in UPDATEs that had a round.
    pub select: Vec<f64>,
    /// Both.
    pub both: Vec<f64>,
    /// Correlations made between UPDATEs, in none of these.
    pub setup: Duration,
    pub updates: usize,
    pub prefixes: usize,
    /// Routes of the table.
    pub routes: usize,
    pub party_link: u64,
    pub lanes: u64,
}

struct Exchange {
    parties: [Party; 2],
    members: Members,
    inputs: VecDeque<(PartyNumber, PartyInput)>,
    /// How far the parties' clocks are ahead, since nobody waits for a timer.
    ahead: Duration,
    stages: Stages,
    /// Whether a ranking has come since the UPDATE did.
    ranked: bool,
    party_link: u64,
    closed: Vec<String>,
}

impl Exchange {
    fn now(&self) -> Now {
        let Now { instant: Instant(nanos), unix: UnixTime(micros) } = now();
        let ahead = u64::try_from(self.ahead.as_micros()).unwrap_or(0);
        Now { instant: Instant(nanos + 1_000 * ahead), unix: UnixTime(micros + ahead) }
    }

    /// Does everything that can be done without waiting.
    fn run(&mut self) {
        for _ in 0..MOST_INPUTS {
            for one in std::mem::take(&mut self.members.out) {
                let (party, input) = match one {
                    ToParty::Up { party, link, slot, exporter } => {
                        let (peer, exporter) = (PeerId::Member(slot), Seed::new(exporter));
                        (party, PartyInput::LinkUp { link, peer, exporter })
                    }
                    ToParty::Down { party, link } => (party, PartyInput::LinkDown { link }),
                    ToParty::Frame { party, link, bytes } => (party, PartyInput::Frame { link, bytes }),
                };
                self.inputs.push_back((party, input));
            }
            let Some((party, input)) = self.inputs.pop_front() else { return };
            // `FromMember::RankOne` and `RankTwo`.
            let is_ranking = |link, bytes: &[u8]| link != PEER && matches!(bytes.first(), Some(4 | 5));
            self.ranked |= matches!(&input, PartyInput::Frame { link, bytes } if is_ranking(*link, bytes));
            self.work(party, Some(input));
        }
        panic!("the exchange does not come to rest");
    }

    fn work(&mut self, number: PartyNumber, input: Option<PartyInput>) {
        let (at, begin) = (self.now(), thread_time());
        let party = &mut self.parties[index(number)];
        party.reseed(&fresh());
        match input {
            Some(input) => party.handle(input, at),
            None => party.handle_timeout(at),
        }
        let outputs: Vec<PartyOutput> = std::iter::from_fn(|| party.poll()).collect();
        let took = thread_time().saturating_sub(begin);
        *(if self.ranked { &mut self.stages.select } else { &mut self.stages.export }) += took;
        for output in outputs {
            match output {
                PartyOutput::Send { link: PEER, frame } => {
                    self.party_link += frame.len() as u64;
                    let input = PartyInput::Frame { link: PEER, bytes: frame };
                    self.inputs.push_back((BOTH[1 - index(number)], input));
                }
                PartyOutput::Send { link, frame } => self.members.frame(link, frame),
                PartyOutput::Close { link, reason } => {
                    self.closed.push(format!("link {link}: {reason}"));
                    self.members.party_closed(link, &reason);
                }
                PartyOutput::Persist { id, .. } => self.inputs.push_back((number, PartyInput::Persisted(id))),
                PartyOutput::Setup(job) => {
                    let begin = thread_time();
                    let done = job.run();
                    // What an evaluation waits for is part of its time; the rest is done between UPDATEs.
                    *(if self.ranked { &mut self.stages.select } else { &mut self.stages.export }) +=
                        thread_time().saturating_sub(begin);
                    self.inputs.push_back((number, PartyInput::SetupDone(done)));
                }
                PartyOutput::Members(_) | PartyOutput::Event(_) => {}
            }
        }
    }

    /// Runs until all is at rest, and moves the clocks on to the parties' timers where nothing else is to do.
    fn rest(&mut self, is_done: fn(&Party) -> bool) {
        for _ in 0..MOST_INPUTS {
            self.run();
            if self.parties.iter().all(is_done) && self.members.are_at_rest() {
                return;
            }
            let due = BOTH.into_iter().filter_map(|party| Some((self.parties[index(party)].deadline()?, party)));
            let Some((at, party)) = due.min() else { return };
            self.ahead += at.since(self.now().instant) + Duration::from_micros(1);
            self.work(party, None);
        }
    }
}

/// Replays `trace` among as many sinks as it has members.
///
/// # Errors
/// If a party does not start, or closed a link.
pub fn run(
    trace: &Trace,
    members: usize,
    export: ExportMode,
    sinks_select: bool,
    mut progress: impl FnMut(usize),
) -> io::Result<PartiesTrace> {
    let arguments = |number| PartyArguments {
        number,
        slots: members,
        seed: 10,
        tick: Duration::ZERO,
        export,
        store: std::path::PathBuf::new(),
    };
    let start = |number| arguments(number).start(Vec::new(), &fresh(), now());
    let mut exchange = Exchange {
        parties: [start(BOTH[0])?, start(BOTH[1])?],
        members: Members::new(&arguments(BOTH[0]).setup()),
        inputs: VecDeque::new(),
        ahead: Duration::ZERO,
        stages: Stages::default(),
        ranked: false,
        party_link: 0,
        closed: Vec::new(),
    };
    let exporter = fresh();
    for party in BOTH {
        let up = PartyInput::LinkUp { link: PEER, peer: PeerId::Party, exporter: exporter.clone() };
        exchange.inputs.push_back((party, up));
    }
    (0..u32::try_from(members).map_err(io::Error::other)?)
        .for_each(|slot| exchange.members.add_sink(slot, sinks_select, false));
    exchange.members.connect([true; 2]);
    exchange.rest(Party::is_at_rest);
    let mut out = PartiesTrace::default();
    for (number, holders) in trace.table.iter().enumerate() {
        for slot in holders {
            exchange.members.update(*slot, &[], &[prefix(number)], Some(&route(*slot, 2, number)));
            out.routes += 1;
            if out.routes.is_multiple_of(LOADED_AT_ONCE) {
                exchange.rest(Party::is_at_rest);
            }
        }
    }
    exchange.rest(Party::is_at_rest);
    exchange.rest(Party::is_stocked);
    let lanes = exchange.parties[0].counters().lanes;
    exchange.party_link = 0;
    for (number, event) in trace.events.iter().enumerate() {
        let prefixes = |numbers: &[usize]| numbers.iter().map(|number| prefix(*number)).collect::<Vec<_>>();
        let (withdrawn, announced) = (prefixes(&event.withdrawn), prefixes(&event.announced));
        (exchange.stages, exchange.ranked) = (Stages::default(), false);
        let of = event.announced.first().copied().unwrap_or(0);
        let attributes = route(event.member, event.length, of);
        exchange.members.update(event.member, &withdrawn, &announced, Some(&attributes));
        exchange.rest(Party::is_at_rest);
        let (Stages { export, select }, ranked) = (exchange.stages, exchange.ranked);
        let count = withdrawn.len() + announced.len();
        out.export.extend(std::iter::repeat_n(export.as_secs_f64(), count));
        out.both.extend(std::iter::repeat_n((export + select).as_secs_f64(), count));
        if ranked {
            out.select.extend(std::iter::repeat_n(select.as_secs_f64(), count));
        }
        out.prefixes += count;
        out.updates += 1;
        (exchange.stages, exchange.ranked) = (Stages::default(), false);
        exchange.rest(Party::is_stocked);
        out.setup += exchange.stages.export + exchange.stages.select;
        progress(number + 1);
    }
    out.party_link = exchange.party_link;
    out.lanes = exchange.parties[0].counters().lanes - lanes;
    match exchange.closed.first() {
        Some(closed) => Err(io::Error::other(format!("links were closed, so this measures something else: {closed}"))),
        None => Ok(out),
    }
}

/// Percentiles that are reported of each stage, for its distribution.
pub const PERCENTILES: [usize; 8] = [10, 25, 50, 75, 90, 95, 99, 100];

impl PartiesTrace {
    /// The results.
    #[must_use]
    pub fn report(&self, params: &BTreeMap<&'static str, serde_json::Value>) -> Report {
        let mut params = serde_json::json!(params);
        params["updates"] = self.updates.into();
        params["prefixes"] = self.prefixes.into();
        params["routes"] = self.routes.into();
        let mut report = Report::new("exchange-trace", params);
        report.summary("parties_mean", "s", &self.both, mean(&self.both));
        report.add("parties_p50", "s", &self.both);
        report.summary("parties_p99", "s", &self.both, percentile(&self.both, 99));
        for (stage, samples) in [("export_all", &self.export), ("select_best", &self.select)] {
            report.summary(format!("parties.{stage}.mean"), "s", samples, mean(samples));
            for percent in PERCENTILES {
                let name = format!("parties.{stage}.p{percent}");
                report.summary(name, "s", samples, percentile(samples, percent));
            }
        }
        let per = |value: f64, of: usize| value / of.max(1) as f64;
        report.exact("prefix_setup", "s", per(self.setup.as_secs_f64(), self.prefixes));
        report.exact("party_link_update", "bytes", per(self.party_link as f64, self.updates));
        report.exact("lanes", "count", self.lanes as f64);
        report
    }
}

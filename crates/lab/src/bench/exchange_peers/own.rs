//! The private route server under the same work: both parties as processes, members' proxies in this process.

use std::time::Duration;

use wayleave_bgp::{Attributes, Nlri};
use wayleave_route_server::policy::{Policy, PolicyConfig};

use super::work::{Compared, OwnBest, Stage, Work};
use super::{Measured, Stretch};
use crate::bench::exchange::members::Whose;
use crate::bench::exchange::{Exchange, ExchangeError, Plan, QUERY_INTERVAL, now};
use crate::sim::member_asn;

/// UPDATEs of members' routers that are given to them at a time.
const AT_ONCE: usize = 512;

/// How long tables may take to become right after all have come to rest.
const SETTLE: Duration = Duration::from_secs(5);

/// What a member's router announces.
type Routes = [(Vec<Nlri>, Attributes)];

/// Members that take and discard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sinks {
    /// Whether they take part in Select-Best.
    pub select: bool,
}

struct Run<'a> {
    exchange: Exchange,
    work: &'a Work,
    sinks: Option<Sinks>,
    tables: Vec<Vec<(Vec<Nlri>, Attributes)>>,
    /// Of each stage that left a prefix wrong, what is known of the first.
    said: Vec<String>,
}

/// Measures it. With sinks, the whole members are the largest, one of the quarter and one that is in neither; the tables of all whole
/// members are compared.
///
/// # Errors
/// If a process ends, a table is wrong, or anything takes longer than `plan` says.
pub fn run(plan: Plan, work: &Work, sinks: Option<Sinks>) -> Result<Measured, ExchangeError> {
    let tables = work.slots().map(|slot| work.table_of(slot)).collect();
    let begin = now().instant;
    let mut run = Run { exchange: Exchange::start(plan)?, work, sinks, tables, said: Vec::new() };
    work.slots().for_each(|slot| run.add(slot, &[]));
    let sessions = run.measure(begin, Stage::Nothing, |_| Ok(()))?;

    let table = run.measure(now().instant, Stage::Whole, |run| work.slots().try_for_each(|slot| run.announce(slot)))?;
    let routes = run.tables(Stage::Whole).map(|(_, table)| table.routes()).sum();
    let mut reload = |hides: bool| {
        let stage = if hides { Stage::Hidden } else { Stage::Whole };
        let policy = policy(work, hides);
        run.measure(now().instant, stage, |run| {
            run.exchange.members.set_policy(work.largest(), policy);
            Ok(())
        })
    };
    let reload = [reload(true)?, reload(false)?];
    let hidden = run.tables(Stage::Hidden).map(|(_, table)| table.wrong).sum();
    work.quarter().for_each(|slot| run.exchange.members.remove(slot));
    run.exchange.rest()?;
    let back = run.measure(now().instant, Stage::Whole, Run::bring_back)?;
    run.exchange.check_links()?;
    let (memory, events) = (run.exchange.memory().iter().sum(), run.exchange.event_counts.clone());
    let whole = work.slots().filter(|slot| run.is_whole(*slot)).count();
    Ok(Measured { sessions, table, reload, back, memory, whole, routes, changed: hidden, events, said: run.said })
}

/// That of the largest member.
fn policy(work: &Work, hides: bool) -> Policy {
    let quarter: Vec<String> = work.quarter().map(|slot| format!("\"{}\"", member_asn(slot).0)).collect();
    let rule = format!("[[rule]]\ndirection = \"export\"\nhide_from = [{}]\n", quarter.join(", "));
    let config: PolicyConfig = toml::from_str(if hides { &rule } else { "" }).expect("the benchmark's own policy");
    Policy::compile(&config).expect("the benchmark's own policy")
}

impl Run<'_> {
    fn is_whole(&self, slot: u32) -> bool {
        self.sinks.is_none() || slot <= 1 || slot == self.work.largest()
    }

    fn add(&mut self, slot: u32, table: &Routes) {
        let whose = if slot == self.work.largest() { Whose::Announcer } else { Whose::Receivers };
        match self.sinks.filter(|_| !self.is_whole(slot)) {
            Some(sinks) => self.exchange.members.add_sink(slot, sinks.select, false),
            None => self.exchange.members.add_whole_with(slot, whose, table),
        }
    }

    fn announce(&mut self, slot: u32) -> Result<(), ExchangeError> {
        for (number, (prefixes, attributes)) in self.tables[slot as usize].iter().enumerate() {
            self.exchange.members.update(slot, &[], prefixes, Some(attributes));
            if number % AT_ONCE == 0 {
                self.exchange.step(Duration::ZERO)?;
            }
        }
        Ok(())
    }

    /// The quarter returns, and has lost all that it held; its routers announce what they did before.
    fn bring_back(&mut self) -> Result<(), ExchangeError> {
        let quarter: Vec<u32> = self.work.quarter().collect();
        for slot in &quarter {
            let table = std::mem::take(&mut self.tables[*slot as usize]);
            self.add(*slot, &table);
            self.tables[*slot as usize] = table;
        }
        self.exchange.until("members are not welcomed", |exchange| exchange.members.sinks_are_welcome())?;
        let sinks: Vec<u32> = quarter.into_iter().filter(|slot| !self.is_whole(*slot)).collect();
        sinks.into_iter().try_for_each(|slot| self.announce(slot))
    }

    /// The tables of all whole members beside what they are to be.
    fn tables(&self, stage: Stage) -> impl Iterator<Item = (u32, Compared)> + '_ {
        let whole = self.work.slots().filter(|slot| self.is_whole(*slot));
        whole.filter_map(move |slot| {
            let mut compared = Compared::of(self.work, self.exchange.members.table(slot)?.iter());
            compared.expect(self.work.expected(slot, stage, OwnBest::NextIsSent));
            Some((slot, compared))
        })
    }

    /// From `begin` until all are at rest after `act` and all tables are as `stage` says. Rankings that came too late for their round are
    /// evaluated after it, so that a table may follow after the rest; a prefix that does not within [`SETTLE`] is counted as wrong, and the time
    /// is that of the rest.
    fn measure(
        &mut self,
        begin: wayleave_core::Instant,
        stage: Stage,
        act: impl FnOnce(&mut Self) -> Result<(), ExchangeError>,
    ) -> Result<Stretch, ExchangeError> {
        let before = self.exchange.used();
        act(self)?;
        self.exchange.rest()?;
        let at_rest = now().instant;
        let seen = |run: &Self, wrong| {
            let used = run.exchange.used().since(&before).parts().to_vec();
            Stretch { elapsed: now().instant.since(begin), used, wrong }
        };
        let mut stretch = seen(self, 0);
        loop {
            let wrong: Vec<_> = self.tables(stage).filter(|(_, table)| table.wrong > 0).collect();
            let Some((slot, first)) = wrong.first() else { return Ok(stretch) };
            let missing = wrong.iter().map(|(_, table)| table.missing()).sum::<usize>();
            if now().instant.since(at_rest) > SETTLE {
                let why = first.first_wrong_prefix().map(|prefix| self.exchange.members.why(*slot, prefix));
                let said = format!("{stage:?}: at slot {slot} {}: {}", first.first_wrong(), why.unwrap_or_default());
                if missing > 0 {
                    return Err(ExchangeError::Server {
                        server: "wayleave",
                        said: format!("{missing} routes lack; {said}"),
                    });
                }
                self.said.push(said);
                stretch.wrong = wrong.iter().map(|(_, table)| table.wrong).sum();
                return Ok(stretch);
            }
            self.exchange.step(QUERY_INTERVAL)?;
            if self.tables(stage).all(|(_, table)| table.wrong == 0) {
                stretch = seen(self, 0);
            }
        }
    }
}

//! `bench exchange-restart`: each party in turn is killed by `kill -9` and started again from its store.

use std::time::Duration;

use serde_json::json;
use wayleave_papers::report::Report;
use wayleave_route_server::party::PartyNumber;

use super::exchange::{BOTH, Exchange, ExchangeError, Plan, Used, most_memory, now, prefix};
use super::exchange_join::{ANNOUNCER, RECEIVERS, Size, announce_by_sinks, binding, gather, report_used, route, sinks};

/// One party's return.
#[derive(Clone, Copy, Debug)]
pub struct Return {
    /// From the start of its process until an update that was made then is at both whole receivers.
    pub first_update: Duration,
    /// The same until all members have been sent everything and are at rest.
    pub synced: Duration,
    pub used: Used,
    /// The most memory of each party's process since its start.
    pub memory: [u64; 2],
}

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub struct Restart {
    /// Of each party.
    pub returns: [Return; 2],
    /// The most memory of each party's process before anything was killed.
    pub before: [u64; 2],
    /// That of the process of all members.
    pub members: u64,
}

/// Measures it: sinks announce all prefixes, then each party is killed.
///
/// # Errors
/// If a process ends, or anything takes longer than `plan` says.
pub fn run(plan: Plan, size: Size) -> Result<Restart, ExchangeError> {
    let mut exchange = Exchange::start(plan)?;
    gather(&mut exchange, &size)?;
    announce_by_sinks(&mut exchange, &size, size.prefixes)?;
    exchange.check_links()?;
    let before = exchange.memory();
    let mut restart = |party| one(&mut exchange, party, size.prefixes);
    let returns = [restart(BOTH[0])?, restart(BOTH[1])?];
    Ok(Restart { returns, before, members: most_memory(std::process::id()) })
}

fn one(exchange: &mut Exchange, party: PartyNumber, prefixes: usize) -> Result<Return, ExchangeError> {
    exchange.kill(party);
    exchange.step(Duration::ZERO)?;
    let (begin, before) = (now().instant, exchange.used());
    exchange.start_party(party)?;
    // A route to a prefix that nobody has yet.
    let (update, number) = (prefix(prefixes + usize::from(party == PartyNumber::Two)), prefixes);
    exchange.members.update(ANNOUNCER, &[], &[update], Some(&route(ANNOUNCER, 1, number)));
    let has = |exchange: &Exchange, slot: &u32| {
        exchange.members.table(*slot).is_some_and(|table| table.contains_key(&update.prefix))
    };
    exchange.until("the first update is not through", |e| RECEIVERS.iter().all(|slot| has(e, slot)))?;
    let first_update = now().instant.since(begin);
    exchange.rest()?;
    let synced = now().instant.since(begin);
    let used = exchange.used().since(&before);
    let memory = exchange.memory();
    Ok(Return { first_update, synced, used, memory })
}

impl Restart {
    /// The results.
    #[must_use]
    pub fn report(&self, size: &Size, plan: &Plan) -> Report {
        let slower = self.returns.iter().max_by_key(|one| one.synced).expect("two");
        let params = json!({
            "members": size.members, "prefixes": size.prefixes, "sinks": sinks(size).len(),
            "sinks_select_best": size.sinks_select, "sinks_keep": size.sinks_keep, "export": plan.export.to_string(),
            "tick_ms": plan.tick.as_millis() as u64, "links": "pipes, without TLS",
            "processes": "party 1, party 2, all members in one thread; stores in files",
            "cores": std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            "bound_by": binding(&slower.used, slower.synced),
        });
        let mut report = Report::new("exchange-restart", params);
        let samples = |of: fn(&Return) -> Duration| self.returns.each_ref().map(|one| of(one).as_secs_f64());
        let (first, synced) = (samples(|one| one.first_update), samples(|one| one.synced));
        // The slower of the two.
        report.summary("first_update", "s", &first, first[0].max(first[1]));
        report.summary("synced", "s", &synced, synced[0].max(synced[1]));
        let all = self.returns.iter().flat_map(|one| one.memory).chain(self.before);
        let all: Vec<f64> = all.map(|octets| octets as f64).collect();
        report.summary("memory", "bytes", &all, all.iter().copied().fold(0.0, f64::max));
        for (number, (one, party)) in self.returns.iter().zip(["party-1", "party-2"]).enumerate() {
            report.exact(format!("first_update.{party}"), "s", first[number]);
            report.exact(format!("synced.{party}"), "s", synced[number]);
            let most = self.before[number].max(self.returns[0].memory[number]).max(self.returns[1].memory[number]);
            report.exact(format!("memory.{party}"), "bytes", most as f64);
            report.exact(format!("memory.{party}.returned"), "bytes", one.memory[number] as f64);
            report_used(&mut report, &format!("synced.{party}.work"), &one.used);
        }
        // All whole members and sinks, and what waits for them in pipes.
        report.exact("memory.members", "bytes", self.members as f64);
        report
    }
}

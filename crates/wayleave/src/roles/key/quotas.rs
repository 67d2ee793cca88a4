//! Quotas by volume, held against what routers reported: whoever has used one up is found here, and the change that says so stops it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::sleep;
use tracing::warn;
use wayleave_control::capability::{AccountPeriods, ChangeBody, Month, QuotaStatus, RatePayer, State};
use wayleave_packet::platypus::header::Principal;
use wayleave_runtime::Clock;
use wayleave_store::Store;

use super::core::{Core, lock};
use super::operator;
use crate::failure::Failure;
use crate::roles::events::{EventLine, Events, event};

/// How often usage is held against quotas. What a payer sends meanwhile is beyond its quota.
const EVERY: Duration = Duration::from_secs(2);
/// Seconds of a month in which the one before is looked at too: secrets of its last key epochs may be good for so long, if these have the
/// default length at most.
const BEFORE: u64 = 3 << 18;
/// Who makes the change, in the trail.
const NOTE: (&str, &str) = ("the key server", "what its routers reported");

/// What payers with a quota have sent in a month.
#[derive(Clone, Default)]
pub struct MonthUsage {
    /// The Unix second at which it begins.
    pub begins: u64,
    /// Octets, by who sent any.
    octets: BTreeMap<RatePayer, u64>,
}

impl MonthUsage {
    /// Octets of a principal with all its delegations.
    pub fn of(&self, principal: Principal) -> u64 {
        self.octets.get(&RatePayer { principal, delegation: None }).copied().unwrap_or(0)
    }
}

/// The same as it was read last; none before.
pub type QuotaView = Arc<Mutex<Option<MonthUsage>>>;

/// The change that says that a payer has used up its quota, if it has and nobody has said so.
fn use_up(state: &State, payer: RatePayer, (month, octets): (u64, u64)) -> Option<ChangeBody> {
    let is_new = state.volume(&payer)?.is_newly_used_up(month, octets);
    is_new.then_some(ChangeBody::UseUpQuota { payer, month })
}

/// What holds usage against quotas.
pub struct QuotaTask {
    store: Store,
    core: Arc<Mutex<Core>>,
    clock: Clock,
    view: QuotaView,
    log: Events,
    /// The last month in which it was reported that somebody is beyond a soft limit.
    reported: BTreeMap<RatePayer, u64>,
    failed: mpsc::Sender<Failure>,
}

impl QuotaTask {
    pub fn new(
        store: Store,
        (core, clock, log): (Arc<Mutex<Core>>, Clock, Events),
        view: QuotaView,
        failed: mpsc::Sender<Failure>,
    ) -> Self {
        Self { store, core, clock, view, log, reported: BTreeMap::new(), failed }
    }

    pub async fn run(mut self) {
        loop {
            self.look().await;
            sleep(EVERY).await;
        }
    }

    async fn look(&mut self) {
        let now = self.clock.now();
        let (quotas, periods, is_up) = {
            let core = lock(&self.core);
            let state = core.server.state();
            let quotas: Vec<(RatePayer, QuotaStatus)> = state.volumes().map(|(of, status)| (of, *status)).collect();
            let periods: AccountPeriods = state.reopened().iter().copied().collect();
            (quotas, periods, core.outage().is_none())
        };
        if !is_up {
            return;
        }
        let begins = Month::of(now.unix.secs()).begin();
        let payers: BTreeSet<RatePayer> = quotas.iter().map(|(payer, _)| *payer).collect();
        let octets = match self.store.month_usage(begins, &payers, &periods).await {
            Ok(octets) => octets,
            Err(error) => return warn!("quotas are not held against usage: {error}"),
        };
        for (payer, status) in &quotas {
            let sent = octets.get(payer).copied().unwrap_or(0);
            self.report(*payer, status, (begins, sent));
            if status.is_newly_used_up(begins, sent) {
                self.stop(*payer, (begins, sent)).await;
            }
        }
        if now.unix.secs() - begins < BEFORE {
            let before = Month::of(begins - 1).begin();
            match self.store.month_usage(before, &payers, &periods).await {
                Ok(sent) => {
                    for (payer, status) in &quotas {
                        let sent = sent.get(payer).copied().unwrap_or(0);
                        if status.is_newly_used_up(before, sent) {
                            self.stop(*payer, (before, sent)).await;
                        }
                    }
                }
                Err(error) => warn!("quotas are not held against usage: {error}"),
            }
        }
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = Some(MonthUsage { begins, octets });
    }

    /// Reports once a month that somebody is beyond its soft limit.
    fn report(&mut self, payer: RatePayer, status: &QuotaStatus, (begins, sent): (u64, u64)) {
        let Some(soft) = status.quota.soft.filter(|_| status.quota.is_exceeded(sent)) else {
            self.reported.remove(&payer);
            return;
        };
        if self.reported.insert(payer, begins) != Some(begins) {
            self.log.report(exceeded_line(payer, sent, soft));
        }
    }

    /// Makes the change by which nothing more passes. It waits for the database, on a thread of its own.
    async fn stop(&self, payer: RatePayer, usage: (u64, u64)) {
        let (core, now) = (Arc::clone(&self.core), self.clock.now());
        let change = move || operator::change(&core, NOTE, now, &mut |state| Ok(use_up(state, payer, usage)));
        match tokio::task::spawn_blocking(change).await {
            Ok(Ok(Ok(_))) => self.log.report(used_up_line(payer, usage.1)),
            // It is tried again; who changes things has logged why.
            Ok(Ok(Err(_))) | Err(_) => {}
            Ok(Err(failure)) => {
                let _ = self.failed.send(failure).await; // fails if the role has stopped
            }
        }
    }
}

pub fn exceeded_line(payer: RatePayer, sent: u64, soft: u64) -> EventLine {
    event!(WARN "quota-exceeded" { principal = payer.principal.number(), sent, soft }
        "{payer} has sent {sent} octets in this month, beyond its soft quota of {soft}")
}

/// A limit of a holder's own is no alarm of the operator's.
pub fn used_up_line(payer: RatePayer, sent: u64) -> EventLine {
    let number = payer.principal.number();
    match payer.delegation {
        None => event!(WARN "quota-used-up" { principal = number, sent }
            "{payer} has used up its quota of the month with {sent} octets: it gets no secrets, and those it has are revoked"),
        Some(id) => event!(INFO "limit-used-up" { principal = number, delegation = id.number(), sent }
            "{payer} has used up what its holder lets it send in the month with {sent} octets: it gets no secrets, and those \
             it has are revoked"),
    }
}

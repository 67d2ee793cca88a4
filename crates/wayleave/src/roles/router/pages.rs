//! What a running router shows: counters, interfaces, keys, accounts.

use std::collections::BTreeMap;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tracing::info;
use wayleave_crypto::sign::SigningKey;
use wayleave_dataplane::icing;
use wayleave_dataplane::platypus;
use wayleave_dataplane::platypus::account::Total;
use wayleave_dataplane::scion::Reason;
use wayleave_packet::platypus::verify;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::http::{Metric, Pages, Serving, Unit, ViewError};
use wayleave_runtime::store::{FileStore, Health, Store};

use super::Engine;
use super::accounts::{self, Account, Payer, totals};
use super::bfd::Sessions;
use super::reports::Question;
use super::stamper::Stamping;
use super::worker::{Handle, Tally, Task, ask};
use crate::config::router::RouterFile;
use crate::failure::{Failure, Outcome};
use crate::key_files::forwarding::ForwardingKeys;
use crate::roles::Events;

/// Reasons of the Platypus router beside those of a packet alone.
const AFTER_MAC: [platypus::Reason; 7] = [
    platypus::Reason::Revoked,
    platypus::Reason::RevocationsUnknown,
    platypus::Reason::Replayed,
    platypus::Reason::ReplayFull,
    platypus::Reason::Rate,
    platypus::Reason::AccountsFull,
    platypus::Reason::Relayed,
];

/// What views are made from.
#[derive(Clone)]
pub struct Shown {
    pub log: Events,
    sessions: Sessions,
    workers: Vec<Sender<Task>>,
    store: Option<Arc<FileStore>>,
    /// By the key of their record.
    accounts: Arc<Mutex<BTreeMap<Vec<u8>, Account>>>,
    configured: Arc<Mutex<Configured>>,
}

/// What follows from the configuration.
#[derive(Clone, Default)]
struct Configured {
    format: &'static str,
    interfaces: Vec<Value>,
    keys: Vec<u64>,
    /// Of ICING: what signs reports.
    identity: Option<Arc<SigningKey>>,
}

/// One thread's counts, or the sum over threads.
#[derive(Clone, Default)]
struct Counts {
    tally: Tally,
    decided: BTreeMap<&'static str, u64>,
    reasons: BTreeMap<&'static str, u64>,
    bad_macs: BTreeMap<u16, u64>,
    /// What a stamper did, and why it left packets as they were.
    stamped: BTreeMap<&'static str, u64>,
    left: BTreeMap<&'static str, u64>,
    /// Of the filter of repeated packets: the share of this turn's room that is taken.
    replay: Option<f64>,
    /// Packets that each thread received.
    by_thread: Vec<u64>,
}

impl Counts {
    fn of(worker: &super::worker::Worker, interfaces: &[u16]) -> Self {
        let by_thread = vec![worker.tally.received];
        let mut counts = Self { tally: worker.tally, by_thread, ..Self::default() };
        match &worker.engine {
            Engine::Scion(engine) => {
                let of = engine.router.counters();
                counts.decided = BTreeMap::from([
                    ("forwarded", of.forwarded),
                    ("to_siblings", of.to_siblings),
                    ("delivered", of.delivered),
                    ("answered", of.answered),
                    ("unanswered", of.unanswered),
                ]);
                counts.reasons = Reason::ALL.iter().map(|reason| (reason.name(), of.of(*reason))).collect();
                counts.bad_macs = interfaces.iter().map(|id| (*id, engine.router.bad_macs(*id))).collect();
            }
            Engine::Icing(engine) => {
                let of = engine.router.counters();
                counts.decided = BTreeMap::from([
                    ("forwarded", of.forwarded),
                    ("served", of.served),
                    ("delivered", of.delivered),
                    ("agreements", of.agreements),
                ]);
                counts.replay = engine.router.replay().map(|filter| filter.load(worker.clock.now().unix));
                counts.reasons = icing::Reason::ALL.iter().map(|reason| (reason.name(), of.of(*reason))).collect();
            }
            Engine::Platypus(engine) => {
                let of = engine.router.counters();
                counts.decided = BTreeMap::from([
                    ("forwarded", of.forwarded),
                    ("answered", of.answered),
                    ("unanswered", of.unanswered),
                ]);
                counts.replay = engine.router.replay().map(|filter| filter.load(worker.clock.now().unix));
                let packet = verify::Reason::ALL.into_iter().map(platypus::Reason::Packet);
                counts.reasons = packet.chain(AFTER_MAC).map(|reason| (reason.name(), of.of(reason))).collect();
                if let Some(stamping) = engine.stamping() {
                    counts.note_stamping(stamping);
                }
            }
        }
        counts
    }

    fn note_stamping(&mut self, stamping: &Stamping) {
        let (passed, stamped, appended, left) = stamping.counts();
        self.stamped = BTreeMap::from([
            ("passed", passed.passed),
            ("stamped", stamped),
            ("appended", appended),
            ("unsound", passed.unsound),
            ("martian", passed.martian),
            ("expired", passed.expired),
        ]);
        self.left = left.chain([("source", passed.source)]).collect();
    }

    fn add(&mut self, other: &Self) {
        self.tally.add(&other.tally);
        self.by_thread.extend(&other.by_thread);
        // The threads share one.
        self.replay = self.replay.or(other.replay);
        let sums = [&mut self.decided, &mut self.reasons, &mut self.stamped, &mut self.left];
        for (sum, more) in sums.into_iter().zip([&other.decided, &other.reasons, &other.stamped, &other.left]) {
            more.iter().for_each(|(name, count)| *sum.entry(name).or_default() += count);
        }
        other.bad_macs.iter().for_each(|(id, count)| *self.bad_macs.entry(*id).or_default() += count);
    }
}

impl Shown {
    pub fn new(
        file: &RouterFile,
        workers: &[Handle],
        journal: &[Account],
        store: Option<Arc<FileStore>>,
        (log, sessions): (Events, Sessions),
    ) -> Self {
        let shown = Self {
            log,
            sessions,
            workers: workers.iter().map(|worker| worker.tasks.clone()).collect(),
            store,
            accounts: Arc::default(),
            configured: Arc::default(),
        };
        for (worker, payer, total) in journal {
            shown.note(*worker, *payer, *total);
        }
        shown.interfaces(file);
        shown
    }

    /// An account's new total.
    pub fn note(&self, worker: usize, payer: Payer, total: Total) {
        let (key, _) = accounts::record(worker, &payer, &total);
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        accounts.insert(key, (worker, payer, total));
    }

    /// What a configuration says.
    pub fn configured(&self, file: &RouterFile, keys: &ForwardingKeys) {
        self.interfaces(file);
        self.configured.lock().unwrap_or_else(PoisonError::into_inner).keys = keys.times().collect();
    }

    /// What signs reports from now on.
    pub fn identified(&self, identity: Option<SigningKey>) {
        self.configured.lock().unwrap_or_else(PoisonError::into_inner).identity = identity.map(Arc::new);
    }

    fn interfaces(&self, file: &RouterFile) {
        let end = |address: Option<std::net::SocketAddr>| json!(address.map(|address| address.to_string()));
        let interfaces = file.interface.iter().map(|section| {
            let section = section.get_ref();
            json!({
                "interface": section.id.get_ref(),
                "neighbor": section.neighbor.get_ref().0.to_string(),
                "local": end(section.local.as_ref().map(|local| local.get_ref().0)),
                "remote": end(section.remote.as_ref().map(|remote| remote.get_ref().0)),
                "sibling": section.sibling.as_ref().map(|sibling| *sibling.get_ref()),
            })
        });
        let links = file.link.iter().map(|section| {
            let section = section.get_ref();
            let (local, remote) = match (&section.device, &section.neighbor) {
                (Some(device), Some(neighbor)) => (device.clone(), neighbor.get_ref().0.to_string()),
                _ => (section.local.get_ref().0.to_string(), section.remote.get_ref().0.to_string()),
            };
            json!({ "interface": "link", "local": local, "remote": remote })
        });
        let mut configured = self.configured.lock().unwrap_or_else(PoisonError::into_inner);
        configured.format = file.forwarding.format.name();
        configured.interfaces = interfaces.chain(links).collect();
    }

    fn says(&self) -> Configured {
        self.configured.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn counts(&self) -> Option<Counts> {
        let ids: Vec<u16> = self
            .says()
            .interfaces
            .iter()
            .filter_map(|interface| u16::try_from(interface["interface"].as_u64()?).ok())
            .collect();
        let mut sum = Counts::default();
        for worker in &self.workers {
            let ids = ids.clone();
            sum.add(&ask(worker, move |worker| Counts::of(worker, &ids)).await?);
        }
        Some(sum)
    }

    async fn status(&self) -> Result<Value, ViewError> {
        let counts = self.counts().await.ok_or(ViewError::Unavailable)?;
        let Counts { replay, by_thread, .. } = &counts;
        let Tally { bursts, received, sent, unsent, strangers, unreachable, control, control_lost, failures } =
            counts.tally;
        let map = |counts: &BTreeMap<&'static str, u64>, all: bool| -> Map<String, Value> {
            counts.iter().filter(|(_, n)| all || **n > 0).map(|(name, n)| ((*name).to_owned(), json!(n))).collect()
        };
        let store = self.store.as_ref().map(|store| match &*store.health().borrow() {
            Health::Good => "good".to_owned(),
            Health::Failing(why) => why.clone(),
        });
        Ok(json!({
            "version": 1,
            "role": "router",
            "format": self.says().format,
            "threads": self.workers.len(),
            "bursts": bursts,
            "received": received,
            "sent": sent,
            "unsent": unsent,
            "strangers": strangers,
            "unreachable": unreachable,
            "control": control,
            "control_lost": control_lost,
            "system_failures": failures,
            "by_thread": by_thread.iter().map(|received| json!({ "received": received })).collect::<Value>(),
            "replay_filter_taken": replay,
            "decided": map(&counts.decided, true),
            "reasons": map(&counts.reasons, false),
            "stamper": map(&counts.stamped, true),
            "left": map(&counts.left, false),
            "store": store,
            "bfd": self.sessions.json(),
        }))
    }

    async fn peers(&self) -> Result<Value, ViewError> {
        let counts = self.counts().await.ok_or(ViewError::Unavailable)?;
        let mut rows = self.says().interfaces;
        for row in &mut rows {
            let id = row["interface"].as_u64().and_then(|id| u16::try_from(id).ok());
            if let Some(count) = id.and_then(|id| counts.bad_macs.get(&id)) {
                row["bad_macs"] = json!(count);
            }
        }
        Ok(json!({ "version": 1, "peers": rows }))
    }

    async fn reports(&self, question: Question) -> Result<Value, ViewError> {
        let identity = self.says().identity;
        let identity = identity.ok_or_else(|| ViewError::NotFound("no `identity` signs reports".to_owned()))?;
        let (mut reports, now) = (Vec::new(), unix_now());
        for worker in &self.workers {
            let asked = question.clone();
            let of = move |worker: &mut super::worker::Worker| match &worker.engine {
                Engine::Icing(engine) => asked.answer(&engine.router, now),
                Engine::Scion(_) | Engine::Platypus(_) => Vec::new(),
            };
            reports.extend(ask(worker, of).await.ok_or(ViewError::Unavailable)?);
        }
        // Signatures take some tens of microseconds each.
        let signed = tokio::task::spawn_blocking(move || question.sign(reports, &identity));
        signed.await.map_err(|_| ViewError::Unavailable)
    }

    fn account_list(&self) -> Value {
        let accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        let rows: Vec<Value> = totals(&accounts)
            .into_iter()
            .map(|(payer, total)| {
                let mut row = match payer {
                    Payer::Platypus(charge) => json!({
                        "principal": charge.principal.number(),
                        "delegation": charge.delegation.map(|(id, _)| id.number()),
                        "sub_delegation": charge.delegation.and_then(|(_, sub)| sub).map(|id| id.number()),
                        "epoch": charge.epoch,
                    }),
                    Payer::Icing(id) => json!({ "account": id }),
                };
                row["packets"] = json!(total.packets.to_string());
                row["octets"] = json!(total.octets.to_string());
                row
            })
            .collect();
        json!({ "version": 1, "accounts": rows })
    }

    async fn metrics(&self) -> Option<Vec<Metric>> {
        let counts = self.counts().await?;
        let tally = counts.tally;
        let packets = |thing: &str, help, count| Metric::counter(thing, Unit::Packets, help, count);
        let mut all = vec![
            packets("received", "Packets received", tally.received),
            packets("sent", "Packets sent", tally.sent),
            packets("unsent", "Packets that the system had no room to send", tally.unsent),
            packets("stranger", "Packets from addresses that are no neighbour's", tally.strangers),
            packets("unreachable", "Packets to hosts or services that cannot be reached", tally.unreachable),
            packets("control", "Control packets of this router", tally.control),
            packets("control_lost", "Control packets for which there was no room", tally.control_lost),
            Metric::counter("failed_system", Unit::Calls, "System calls that failed", tally.failures),
        ];
        let taken =
            |taken| Metric::gauge("replay_filter_taken", Unit::Ratio, "Share of this turn's room that is taken", taken);
        all.extend(counts.replay.map(taken));
        all.extend(counts.decided.iter().map(|(name, count)| packets(name, "Packets by decision", *count)));
        let refused =
            |(reason, count): (&&str, &u64)| packets(&format!("refused_{reason}"), "Packets by reason", *count);
        all.extend(counts.reasons.iter().map(refused));
        for (group, counts) in [("stamper", &counts.stamped), ("stamper_left", &counts.left)] {
            let count = |(name, count): (&&str, &u64)| packets(&format!("{group}_{name}"), "Packets to stamp", *count);
            all.extend(counts.iter().map(count));
        }
        Some(all)
    }
}

pub async fn serve(
    file: &RouterFile,
    shown: &Shown,
    is_ready: watch::Receiver<Result<(), String>>,
) -> Outcome<Option<Serving>> {
    let Some(status) = &file.status else { return Ok(None) };
    let address = status.listen.get_ref().0;
    let of = || shown.clone();
    let (a, b, c, d, e, f, g) = (of(), of(), of(), of(), of(), of(), of());
    let pages = Pages::new("router", is_ready)
        .view("/api/v1/status", move |_| {
            let shown = a.clone();
            async move { shown.status().await }
        })
        .view("/api/v1/peers", move |_| {
            let shown = b.clone();
            async move { shown.peers().await }
        })
        .view("/api/v1/accounts", move |_| {
            let list = c.account_list();
            async move { Ok(list) }
        })
        .view("/api/v1/keys", move |_| {
            let keys = d.says().keys;
            async move {
                Ok(json!({ "version": 1, "keys": keys.iter().map(|from| json!({ "from": from })).collect::<Vec<_>>() }))
            }
        })
        .view("/api/v1/events", move |_| {
            let list = e.log.list();
            async move { Ok(list) }
        })
        .view("/api/v1/reports", move |parameters| {
            let shown = g.clone();
            async move { shown.reports(Question::read(&parameters)?).await }
        })
        .metrics(move || {
            let shown = f.clone();
            async move { shown.metrics().await }
        });
    let serving = pages.serve(address).await;
    let serving =
        serving.map_err(|error| Failure::system(format!("cannot serve the status page at {address}"), &error))?;
    info!(address = %serving.address, "status page");
    Ok(Some(serving))
}

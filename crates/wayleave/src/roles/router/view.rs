//! What the status pages show of a router: views and metrics, from what threads count and what was configured.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use wayleave_dataplane::replay::ClockJumps;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::http::{Metric, Unit, ViewError};
use wayleave_runtime::store::FileStore;

use super::counters::{
    AccountTable, Counters, FormatCounters, Named, PartitionCounters, ReplayCounters, ThreadCounters,
};
use super::format::{Control, Format};
use super::journal::{Account, Total, Totals};
use super::payers::PayerRows;
use super::settings::Settings;
use super::threads::Threads;
use super::worker::Worker;
use crate::config::router::RouterFile;
use crate::output::cell;
use crate::overview::Overview;
use crate::roles::daemon::{View, Views};

/// A view of a running router.
pub struct RouterView<F: Format> {
    pub threads: Threads<F>,
    /// What the format shows apart from its counters.
    pub format: <F::Control as Control<F>>::View,
    totals: Totals<F::Account>,
    store: Option<Arc<FileStore>>,
    configured: Arc<Mutex<Configured>>,
}

impl<F: Format> Clone for RouterView<F> {
    fn clone(&self) -> Self {
        Self {
            threads: self.threads.clone(),
            format: self.format.clone(),
            totals: self.totals.clone(),
            store: self.store.clone(),
            configured: Arc::clone(&self.configured),
        }
    }
}

/// What follows from the configuration.
#[derive(Clone)]
struct Configured {
    format: &'static str,
    /// A row of the view of peers for each interface and link.
    peers: Vec<Value>,
    /// The beginning of each key of the file.
    keys: Vec<u64>,
}

impl Configured {
    fn new(settings: &Settings) -> Self {
        let Settings { file, keys, .. } = settings;
        Self { format: file.forwarding.format.name(), peers: peers(file), keys: keys.times().collect() }
    }
}

fn peers(file: &RouterFile) -> Vec<Value> {
    let end = |address: Option<SocketAddr>| json!(address.map(|address| address.to_string()));
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
    interfaces.chain(links).collect()
}

impl<F: Format> RouterView<F> {
    pub fn new(
        settings: &Settings,
        control: &F::Control,
        threads: Threads<F>,
        totals: Totals<F::Account>,
        store: Option<Arc<FileStore>>,
    ) -> Self {
        let configured = Arc::new(Mutex::new(Configured::new(settings)));
        Self { threads, format: control.view(), totals, store, configured }
    }

    /// Shows another configuration from now on.
    pub fn configure(&self, settings: &Settings) {
        *self.configured.lock().unwrap_or_else(PoisonError::into_inner) = Configured::new(settings);
    }

    fn configured(&self) -> Configured {
        self.configured.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn counters(&self) -> Option<Counters> {
        let of = |worker: &mut Worker<F>| (worker.out.counters, worker.format.counters(worker.clock.now()));
        let mut sum = Counters::default();
        for (thread, format) in self.threads.query_all(of).await? {
            sum.add(&thread, &format);
        }
        Some(sum)
    }

    fn payers(&self, format: &FormatCounters) -> PayerRows {
        PayerRows::new(self.totals.by_principal(), &format.payers)
    }

    async fn peers(&self) -> Result<Value, ViewError> {
        let bad_macs = self.counters().await.ok_or(ViewError::Unavailable)?.format.bad_macs;
        let mut rows = self.configured().peers;
        for row in &mut rows {
            let id = row["interface"].as_u64().and_then(|id| u16::try_from(id).ok());
            if let Some(count) = id.and_then(|id| bad_macs.get(&id)) {
                row["bad_macs"] = json!(count);
            }
        }
        Ok(json!({ "version": 1, "peers": rows }))
    }

    fn accounts(&self) -> Value {
        let row = |(account, total): (F::Account, Total)| {
            let mut row = account.json();
            row["packets"] = json!(total.packets.to_string());
            row["octets"] = json!(total.octets.to_string());
            row
        };
        json!({ "version": 1, "accounts": self.totals.by_account().into_iter().map(row).collect::<Vec<_>>() })
    }

    fn keys(&self) -> Value {
        let keys: Vec<Value> = self.configured().keys.iter().map(|from| json!({ "from": from })).collect();
        json!({ "version": 1, "keys": keys })
    }
}

impl<F: Format> View for RouterView<F> {
    async fn status(&self) -> Result<Value, ViewError> {
        let Counters { thread, format, received_by_thread } = self.counters().await.ok_or(ViewError::Unavailable)?;
        let ThreadCounters { bursts, received, sent, unsent, strangers, unreachable, control, control_lost, failures } =
            thread;
        let not_zero =
            |counts: &Named| counts.iter().filter(|(_, n)| **n > 0).map(|(k, n)| (*k, *n)).collect::<Named>();
        let agreements = format.agreements.map(|count| ("agreements", count));
        let payers = self.payers(&format);
        let credited = payers.credited();
        let decided: Named = format.decided.into_iter().chain(agreements).collect();
        let mut status = json!({
            "role": "router",
            "format": self.configured().format,
            "threads": self.threads.count(),
            "bursts": bursts,
            "received": received,
            "sent": sent,
            "unsent": unsent,
            "strangers": strangers,
            "unreachable": unreachable,
            "control": control,
            "control_lost": control_lost,
            "system_failures": failures,
            "by_thread": received_by_thread.iter().map(|received| json!({ "received": received })).collect::<Value>(),
            "replay_filter_taken": format.replay.as_ref().map(|replay| replay.taken),
            "replay_filter": format.replay.as_ref().map(replay_filter),
            "refuses_until": refuses_until(format.replay.as_ref()),
            "clock": format.replay.as_ref().map(|replay| clock(&replay.clock)),
            "accounts": format.accounts.map(|AccountTable { open, most, octets, folded }| {
                let credited =
                    json!({ "packets": credited.packets.to_string(), "octets": credited.octets.to_string() });
                json!({ "open": open, "most": most, "octets": octets, "folded": folded, "credited": credited })
            }),
            "payers": format.accounts.map(|_| payers.json()),
            "decided": decided,
            "agreed_keys": format.agreed,
            "reasons": not_zero(&format.reasons),
            "stamper": format.stamped,
            "left": not_zero(&format.unstamped),
            "bfd": null,
        });
        if let Value::Object(members) = &mut status {
            F::Control::status(&self.format, members);
        }
        Ok(status)
    }

    async fn overview(&self, status: &Value) -> Result<Overview, ViewError> {
        let format = cell(&status["format"]);
        let mut overview = Overview::new(format!("router for {format}"), &["link", "neighbour", "state", "at"]);
        let neighbours = F::Control::neighbours(&self.format);
        for row in neighbours.iter().flatten() {
            let state = cell(&row["state"]);
            let name = format!("interface {}", row["interface"]);
            overview.row(state == "known", [json!(name), row["node"].clone(), json!(state), row["remote"].clone()]);
        }
        for row in self.configured().peers.iter().filter(|_| neighbours.is_none()) {
            let link = if row["interface"].is_u64() {
                format!("interface {}", row["interface"])
            } else {
                cell(&row["interface"])
            };
            let state = session(&status["bfd"], row);
            let well = state.as_deref().is_none_or(|state| state.eq_ignore_ascii_case("up"));
            let at = if row["remote"].is_null() { &row["local"] } else { &row["remote"] };
            overview.row(well, [json!(link), row["neighbor"].clone(), json!(state), at.clone()]);
        }
        overview.problems.extend(problems(status));
        let sum =
            |counts: &Value| counts.as_object().into_iter().flatten().filter_map(|(_, n)| n.as_u64()).sum::<u64>();
        overview.count(format!("{} packets received", status["received"]));
        overview.count(format!("{} sent", status["sent"]));
        overview.count(format!("{} not forwarded{}", sum(&status["reasons"]), most_frequent(&status["reasons"])));
        overview.count(format!("{} unsent for want of room", status["unsent"]));
        overview.count(format!("{} from strangers", status["strangers"]));
        Ok(overview)
    }

    async fn metrics(&self) -> Option<Vec<Metric>> {
        let counters = self.counters().await?;
        let mut all = metrics(&counters);
        all.extend(counters.format.accounts.iter().flat_map(|_| self.payers(&counters.format).metrics()));
        all.extend(F::Control::metrics(&self.format));
        Some(all)
    }

    /// A router is ready once its threads run and accept what is stamped now, and its format has what it needs.
    async fn readiness(&self) -> Option<Result<(), String>> {
        let from = self.threads.query(0, |worker| worker.format.accepts_from()).await?;
        if from.is_some_and(|from| unix_now().secs() < from) {
            let why = "packets that may have been accepted before the start are refused for two seconds";
            return Some(Err(why.to_owned()));
        }
        Some(F::Control::readiness(&self.format))
    }

    fn store(&self) -> Option<&Arc<FileStore>> {
        self.store.as_ref()
    }

    fn pages(views: Views<Self>) -> Views<Self> {
        let views = views
            .page("peers", |view: Self, _| async move { view.peers().await })
            .page("accounts", |view: Self, _| async move { Ok(view.accounts()) })
            .page("keys", |view: Self, _| async move { Ok(view.keys()) });
        F::Control::pages(views)
    }
}

/// What is wrong beside the format's readiness: at the provider's key server, with the list of revocations.
fn problems(status: &Value) -> Vec<String> {
    let of_provider = status["provider"]["problems"].as_array().into_iter().flatten().map(cell);
    let away = status["provider"]["connected"] == false;
    let away = away
        .then(|| "the link to the provider's key server is down: usage waits here, and no new list comes".to_owned());
    let list =
        status["revocations"]["refused"].as_str().map(|why| format!("the list of revocations is refused: {why}"));
    of_provider.chain(away).chain(list).collect()
}

/// The state of the BFD session with a neighbour, if there is one.
fn session(bfd: &Value, row: &Value) -> Option<String> {
    bfd["sessions"][format!("interface {}", cell(&row["interface"]))].as_str().map(str::to_owned)
}

/// The reason for which most packets were not forwarded.
fn most_frequent(reasons: &Value) -> String {
    let counts = reasons.as_object().into_iter().flatten();
    let most = counts.max_by_key(|(_, count)| count.as_u64());
    most.map_or_else(String::new, |(reason, count)| format!(" (most: {reason} {count})"))
}

/// Who has room in the filter: everybody, and who is out of it.
fn replay_filter(replay: &ReplayCounters) -> Value {
    json!({
        "taken": replay.taken,
        "octets": replay.octets,
        "rooms": replay.partitions.iter().map(PartitionCounters::json).collect::<Value>(),
    })
}

/// The last second whose stamps are refused because nobody remembers what came then, while these are fresh.
fn refuses_until(replay: Option<&ReplayCounters>) -> Option<u64> {
    replay.map(|replay| replay.accepts_from).filter(|from| unix_now().secs() < *from).map(|from| from.saturating_sub(1))
}

fn clock(jumps: &ClockJumps) -> Value {
    json!({ "jumps_ahead": jumps.ahead, "jumps_back": jumps.back, "last_jump_micros": jumps.last })
}

fn metrics(counters: &Counters) -> Vec<Metric> {
    let Counters { thread, format, .. } = counters;
    let packets = |thing: &str, help, count| Metric::counter(thing, Unit::Packets, help, count);
    let mut all = vec![
        packets("received", "Packets received", thread.received),
        packets("sent", "Packets sent", thread.sent),
        packets("unsent", "Packets that the system had no room to send", thread.unsent),
        packets("stranger", "Packets from addresses that are no neighbour's", thread.strangers),
        packets("unreachable", "Packets to hosts or services that cannot be reached", thread.unreachable),
        packets("control", "Control packets of this router", thread.control),
        packets("control_lost", "Control packets of this router dropped for want of room", thread.control_lost),
        Metric::counter("failed_system", Unit::Calls, "System calls that failed", thread.failures),
    ];
    let help = "Share of the replay filter's room that is taken";
    if let Some(replay) = &format.replay {
        all.push(Metric::gauge("replay_filter_taken", Unit::Ratio, help, replay.taken));
        let help = "Share of the replay filter's pool, for payers without a rate, that is taken";
        let share = |pool: &PartitionCounters| pool.taken as f64 / pool.packets.max(1) as f64;
        let pool = replay.partitions.first().map_or(0.0, share);
        all.push(Metric::gauge("replay_pool_taken", Unit::Ratio, help, pool));
        let full = replay.partitions.iter().filter(|partition| partition.is_full()).count();
        let help = "Payers whose room in the replay filter is full, and the pool";
        all.push(Metric::gauge("replay_full", Unit::Rooms, help, full as f64));
        let help = "Jumps of the wall clock, ahead or back";
        all.push(Metric::counter("clock_jump", Unit::Alarms, help, replay.clock.ahead + replay.clock.back));
    }
    if let Some(AccountTable { open, most, octets, folded }) = format.accounts {
        let help = "Share of the table of accounts that is taken";
        all.push(Metric::gauge("accounts_taken", Unit::Ratio, help, open as f64 / most.max(1) as f64));
        all.push(Metric::gauge("accounts", Unit::Bytes, "Memory of the table of accounts", octets as f64));
        let help = "Packets charged to their delegation or principal, since their own account had no place";
        all.push(packets("accounts_folded", help, folded));
    }
    let help = "Keys agreed with other nodes (X25519)";
    all.extend(format.agreements.map(|count| Metric::counter("agreed", Unit::Keys, help, count)));
    for (group, help, counts) in [
        ("", "Packets by decision", &format.decided),
        ("refused_", "Packets that were not forwarded, by reason", &format.reasons),
        ("stamper_", "Packets that may be stamped, by what became of them", &format.stamped),
        ("stamper_left_", "Packets that passed without a stamp, by reason", &format.unstamped),
    ] {
        all.extend(counts.iter().map(|(name, count)| packets(&format!("{group}{name}"), help, *count)));
    }
    all
}

/// The names of a Platypus router's metrics, on its page.
#[cfg(test)]
pub fn metric_names() -> Vec<String> {
    let format = FormatCounters {
        reasons: super::platypus::reasons().map(|reason| (reason.name(), 0)).collect(),
        accounts: Some(AccountTable::default()),
        ..FormatCounters::default()
    };
    let mut all = metrics(&Counters { format, ..Counters::default() });
    all.extend(PayerRows::new(Default::default(), &Default::default()).metrics());
    all.iter().map(|metric| metric.name("router")).collect()
}

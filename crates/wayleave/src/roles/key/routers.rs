//! The links to the provider's routers: their usage goes to a store of its own, lists and shares of rates go to them.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tracing::{info, warn};
use wayleave_control::capability::{
    ChargedAccount, JournalId, Ledger, MAX_MESSAGE, RatePayer, RateTerms, Reopening, RouterEvent, RouterNumber,
    RouterServer, RouterServerConfig, RouterServerInput, RouterServerOutput, Usage, UsageBatch, UsageRecord,
};
use wayleave_core::IdentityKey;
use wayleave_runtime::Clock;
use wayleave_runtime::clock::utc;
use wayleave_runtime::drive::Step;
use wayleave_runtime::links::{Limits, LinkEvent, Links, Listening};
use wayleave_runtime::node_tls::NodeIdentity;
use wayleave_runtime::store::{Change, FileStore, Record, Store, StoreError};
use wayleave_runtime::tls::Role;

use crate::config::Source;
use crate::config::key::KeyFile;
use crate::failure::{Failure, Outcome};
use crate::key_files::node::{self, KeyKind};
use crate::roles::daemon::{QUEUE, Running};
use crate::roles::events::{EventLine, Events, event, shown};
use crate::roles::link_driver::{self, Driver, LinkIo, when_durable};

/// Totals that are kept, at most: about 100 octets each.
const TOTALS: usize = 4 << 20;
/// Octets that may wait for one router: a whole list of revocations, and answers.
const LINK_QUEUE: usize = 96 << 20;
/// The table of totals; that of the second up to which time is closed, under an empty key; those of seconds up to which routers have
/// reported everything, by their numbers; those at which numbers of closed accounts got another owner, by number and generation; numbers of
/// lists of revocations that routers have and that are of another history than the server's, by the routers' numbers.
pub const TABLE: &str = "usage";
const CLOSED: &str = "usage-closed";
const CONFIRMED: &str = "usage-confirmed";
const OWNERS: &str = "usage-owners";
const AHEAD: &str = "routers-ahead";
/// Octets of a total's key: router, journal, account.
const KEY: usize = 2 + 16 + ChargedAccount::LENGTH;

/// What reaches the machine's loop.
pub type Event = link_driver::Event<RouterServer, Own>;

pub enum Own {
    /// Time to see whether an operator closed some.
    Settle,
    Configure(Box<KeyFile>),
    /// The rates that the routers share are these now.
    Rates(SharedRates),
}

/// Rates over all routers, by whose they are.
pub type SharedRates = BTreeMap<RatePayer, RateTerms>;

/// The running machine.
pub struct Routers {
    pub running: Running<Event>,
    pub store: Arc<FileStore>,
    _listening: Listening,
}

impl Routers {
    /// Listens for routers; `None` if the configuration has none.
    pub async fn start(
        config: &KeyFile,
        source: &Source,
        rates: SharedRates,
        clock: Clock,
        log: Events,
    ) -> Outcome<Option<Self>> {
        let Some(section) = &config.key.routers else { return Ok(None) };
        let seed = node::load(KeyKind::Identity, &source.resolve(section.identity.get_ref()))?;
        let identity = NodeIdentity::from_seed(seed.expose())?;
        drop(seed);
        let path = source.resolve(section.usage.get_ref());
        let store = Arc::new(FileStore::open(&path)?);
        let ledger = ledger(|table| store.load(table))?;
        let machine = RouterServer::new(
            RouterServerConfig { routers: config.routers(), rates: rates.clone(), ledger, ahead: ahead(&store)? },
            clock.now().instant,
        );
        let (events, inbox) = mpsc::channel(QUEUE);
        let links = Links::new(Limits { queue: LINK_QUEUE, frame: MAX_MESSAGE as u32, ..Limits::default() });
        let at = section.listen.get_ref().0;
        let listening = links.listen_nodes(at, &identity, events.clone()).await;
        let listening =
            listening.map_err(|error| Failure::system(format!("cannot listen for routers at {at}"), &error))?;
        info!(identity = %identity.identity(), listen = %listening.address, routers = config.key.router.len(), "listening for routers");
        let names = config.router_names();
        let (closing, store_of, events_of) = (closing(&path), Arc::clone(&store), events.clone());
        let io = RouterIo {
            closing,
            links,
            store: store_of,
            events: events_of,
            names,
            routers: config.routers(),
            rates,
            log,
        };
        let running = Running::start(machine, Driver(io), clock, (events, inbox));
        Ok(Some(Self { running, store, _listening: listening }))
    }
}

/// Which routers had lists of another history than the server's.
fn ahead(store: &FileStore) -> Result<BTreeMap<RouterNumber, u64>, StoreError> {
    let read = |(key, value): Record| {
        Some((u16::from_be_bytes(key.try_into().ok()?), u64::from_be_bytes(value.try_into().ok()?)))
    };
    Ok(store.load(AHEAD)?.into_iter().filter_map(read).collect())
}

/// What a store has, which is read by `load`.
///
/// # Errors
/// What is wrong with the store.
pub fn ledger(
    load: impl Fn(&'static str) -> Result<Vec<Record>, StoreError>,
) -> Result<Ledger<ChargedAccount>, StoreError> {
    let second = |value: &[u8]| value.try_into().ok().map(u64::from_be_bytes);
    let closed = load(CLOSED)?.first().and_then(|(_, value)| second(value)).unwrap_or(0);
    let mut ledger = Ledger::new(TOTALS).with_calendar(ChargedAccount::CALENDAR, closed);
    for (key, value) in load(CONFIRMED)? {
        if let (Ok(router), Some(second)) = (key.try_into(), second(&value)) {
            ledger.restore_confirmed(u16::from_be_bytes(router), second);
        }
    }
    for (key, value) in load(OWNERS)? {
        if let ([a, b, c, d, generation @ ..], Some(at)) = (&key[..], second(&value)) {
            let Ok(generation) = generation.try_into().map(u32::from_be_bytes) else { continue };
            ledger.reopen(Reopening { principal: u32::from_be_bytes([*a, *b, *c, *d]), at, generation });
        }
    }
    stored(load(TABLE)?).iter().for_each(|record| ledger.restore(record));
    Ok(ledger)
}

/// The totals of a store.
fn stored(records: Vec<Record>) -> Vec<UsageRecord<ChargedAccount>> {
    let read = |(key, value): &Record| {
        let key: &[u8; KEY] = key.as_slice().try_into().ok()?;
        let value: &[u8; 32] = value.as_slice().try_into().ok()?;
        let (router, rest) = key.split_first_chunk::<2>()?;
        let (journal, account) = rest.split_first_chunk::<16>()?;
        let (packets, octets) = value.split_first_chunk::<16>()?;
        Some(UsageRecord {
            router: u16::from_be_bytes(*router),
            journal: JournalId(*journal),
            account: ChargedAccount(account.try_into().ok()?),
            total: Usage {
                packets: u128::from_be_bytes(*packets),
                octets: u128::from_be_bytes(octets.try_into().ok()?),
            },
        })
    };
    let all: Vec<_> = records.iter().filter_map(read).collect();
    if all.len() < records.len() {
        warn!(
            records = records.len() - all.len(),
            "the file of usage has records of another version: they stay there, unchanged, and are in no statement"
        );
    }
    all
}

/// What changes at once in the store.
fn changes(batch: &UsageBatch) -> Vec<Change> {
    let key = |router: RouterNumber, journal: &JournalId, account: &ChargedAccount| {
        [&router.to_be_bytes()[..], &journal.0, &account.0].concat()
    };
    let total = |record: &UsageRecord<ChargedAccount>| Change {
        table: TABLE,
        key: key(record.router, &record.journal, &record.account),
        value: Some([record.total.packets.to_be_bytes(), record.total.octets.to_be_bytes()].concat()),
    };
    let removed = |(router, journal, account): &(RouterNumber, JournalId, ChargedAccount)| Change {
        table: TABLE,
        key: key(*router, journal, account),
        value: None,
    };
    let closed = |second: u64| Change { table: CLOSED, key: Vec::new(), value: Some(second.to_be_bytes().to_vec()) };
    let confirmed = |(router, second): &(RouterNumber, u64)| Change {
        table: CONFIRMED,
        key: router.to_be_bytes().to_vec(),
        value: Some(second.to_be_bytes().to_vec()),
    };
    let reopened = |reopening: &Reopening| Change {
        table: OWNERS,
        key: [reopening.principal.to_be_bytes(), reopening.generation.to_be_bytes()].concat(),
        value: Some(reopening.at.to_be_bytes().to_vec()),
    };
    let ahead = |(router, has): &(RouterNumber, Option<u64>)| Change {
        table: AHEAD,
        key: router.to_be_bytes().to_vec(),
        value: has.map(|has| has.to_be_bytes().to_vec()),
    };
    let totals = batch.records.iter().map(total).chain(batch.removed.iter().map(removed));
    let routers = batch.confirmed.iter().map(confirmed).chain(batch.reopened.iter().map(reopened));
    totals.chain(batch.closed.map(closed)).chain(routers).chain(batch.ahead.iter().map(ahead)).collect()
}

/// Where an operator's command says up to when time is closed: beside the file of usage.
pub fn closing(usage: &Path) -> PathBuf {
    let mut name = usage.file_name().unwrap_or_default().to_owned();
    name.push(".closed");
    usage.with_file_name(name)
}

/// What a command wrote there, in Unix seconds; zero if none did.
pub fn closed_by_operator(path: &Path) -> u64 {
    match std::fs::read_to_string(path) {
        Ok(text) => text.trim().parse().unwrap_or(0),
        Err(_) => 0,
    }
}

struct RouterIo {
    closing: PathBuf,
    links: Links,
    store: Arc<FileStore>,
    events: mpsc::Sender<Event>,
    names: BTreeMap<RouterNumber, String>,
    routers: BTreeMap<IdentityKey, RouterNumber>,
    rates: SharedRates,
    log: Events,
}

impl LinkIo<RouterServer> for RouterIo {
    type Own = Own;

    fn link(&mut self, event: LinkEvent) -> Option<RouterServerInput> {
        match event {
            LinkEvent::Up { link, pin, .. } => {
                let Role::Node(peer) = pin.role else { return None };
                Some(RouterServerInput::Connected { link, peer })
            }
            LinkEvent::Frame { link, bytes, .. } => Some(RouterServerInput::Frame { link, octets: bytes }),
            LinkEvent::Down { link, .. } => Some(RouterServerInput::Disconnected { link }),
            LinkEvent::Failed { .. } => None,
        }
    }

    fn own(&mut self, own: Own) -> Step<RouterServer> {
        Step::Input(match own {
            Own::Settle => RouterServerInput::Settle { closed: closed_by_operator(&self.closing) },
            Own::Configure(config) => {
                (self.names, self.routers) = (config.router_names(), config.routers());
                self.configure()
            }
            Own::Rates(rates) => {
                self.rates = rates;
                self.configure()
            }
        })
    }

    fn perform(&mut self, output: RouterServerOutput, _: &mut VecDeque<RouterServerInput>) -> Result<(), Failure> {
        match output {
            RouterServerOutput::Send { link, octets } => self.links.send(link, octets),
            RouterServerOutput::Close { link, why } => self.links.close(link, why),
            RouterServerOutput::Persist(batch) => {
                let durable = when_durable(&self.events, RouterServerInput::Persisted(batch.id));
                self.store.submit(changes(&batch), durable)?;
            }
            RouterServerOutput::Event(event) => self.log.report(self.line(&event)),
        }
        Ok(())
    }
}

impl RouterIo {
    fn configure(&self) -> RouterServerInput {
        RouterServerInput::Configure { routers: self.routers.clone(), rates: self.rates.clone() }
    }

    fn name(&self, router: RouterNumber) -> String {
        self.names.get(&router).cloned().unwrap_or_else(|| format!("router {router}"))
    }

    /// What the operator is told.
    fn line(&self, event: &RouterEvent) -> EventLine {
        let name = |router: &RouterNumber| self.name(*router);
        match event {
            RouterEvent::Closed(second) => event!(INFO "usage-closed" by 0, { before = utc(*second) }
                "usage is closed: its key epochs are kept as sums of months"),
            RouterEvent::Connected(of) => event!(INFO "router-connected" by *of, { router = name(of) } "connected"),
            RouterEvent::Disconnected(of) => event!(INFO "router-disconnected" by *of, { router = name(of) }
                "disconnected: it keeps its usage until it connects again"),
            RouterEvent::Stranger(identity) => event!(WARN "stranger" by 0, { identity = shown(identity) }
                "connection refused: its key is not that of a configured router"),
            RouterEvent::Malformed { router: of, error } => {
                event!(ERROR "router-erred" by *of, { router = name(of); why = shown(error) }
                    "the router sent a malformed message: {error}")
            }
            RouterEvent::Unexpected(of) => event!(ERROR "router-erred" by *of, { router = name(of) }
                "the router sent a message that routers do not send"),
            RouterEvent::Refused { router: of, why } => {
                event!(ERROR "usage-refused" by *of, { router = name(of); why = shown(why) } "usage report of the router refused: {why}")
            }
            RouterEvent::Behind(of) => event!(WARN "router-behind" by *of, { router = name(of) }
                "the router's totals are older than those that it reported, or another router's: its state was put back, or copied; it \
                 goes on counting from there, and what it forwarded between is on no bill twice"),
            RouterEvent::Late(of) => event!(WARN "usage-late" by *of, { router = name(of) }
                "the router reported usage of closed time: it is on the next statement, marked as late"),
            RouterEvent::TooLate(of) => event!(ERROR "usage-too-late" by *of, { router = name(of) }
                "the router reported usage of time that was closed before this server knew it: it is on no statement, since it may be on \
                 another router's; if the router was never billed, see `wayleave show accounts` there"),
            RouterEvent::Differs { router: of, rate } => {
                let (principal, routers) = (rate.payer.principal.number(), rate.routers);
                event!(WARN "rate-differs" by *of, { router = name(of), principal, rate = rate.rate, routers }
                    "the router goes by another rate, number of routers or `offline` than it was told: it gets no more of it; one of an earlier \
                     version has these in its own configuration")
            }
            RouterEvent::Ahead { router: of, has, own, .. } => {
                event!(ERROR "router-ahead" by *of, { router = name(of) }
                "the router has list {has} of revocations, which was made of change {} of another history than the database's, which makes \
                 list {own}: it was set back to an old copy; the router keeps its list and is sent none, also after a restart; restore the \
                 last backup and start again; or revoke again what is missing here, then remove the router's state and start it again", has >> 32)
            }
        }
    }
}

/// The status of each router, for the status page.
pub fn status(server: &RouterServer, names: &BTreeMap<RouterNumber, String>) -> Value {
    let router = |(number, status): (&RouterNumber, &wayleave_control::capability::RouterStatus)| {
        json!({
            "number": number,
            "name": names.get(number),
            "connected": status.link.is_some(),
            "list": status.list,
            "told_rates": status.told.is_some(),
            "ahead": status.is_ahead,
            "reports": status.reports,
            "refused": status.refused,
            "too_late": status.too_late,
            "confirmed": server.ledger().confirmed().get(number),
        })
    };
    server.status().iter().map(router).collect()
}

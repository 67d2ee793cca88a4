//! The key server with its database.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::{error, info, warn};
use wayleave_control::capability::{
    Change, ChangeBody, Client, KeyServer, PendingOrder, PendingStatus, RowEffects, Served, Status, Transport,
};
use wayleave_core::Now;
use wayleave_crypto::signed::Signed;
use wayleave_packet::platypus::revocation::Revocation;
use wayleave_packet::platypus::sources::Sources;
use wayleave_runtime::Clock;
use wayleave_store::StoreError;

use super::listing::{ListHandle, ListWriter};
use crate::config::Source;
use crate::config::key::KeyFile;
use crate::failure::{Failure, Outcome};
use crate::key_files::database::{DatabaseRecords, Outage, Unread};
use crate::roles::events::{EventLine, Events, event};
use wayleave_control::capability::Position;

/// Handles that are made at a time while questions wait, and at start.
const HANDLES: u32 = 20_000;
/// Attempts at a change while others are made elsewhere.
pub(super) const ATTEMPTS: usize = 8;

/// What answers and orders share.
pub struct Core {
    pub server: KeyServer,
    /// Whoever changes something takes it first, and the server only while nothing waits for the database: look-ups go on.
    database: Arc<Mutex<DatabaseRecords>>,
    /// How long look-ups are answered while the database cannot be used, and since when it cannot.
    max_staleness: Duration,
    outage: Option<Outage>,
    /// Where the changes of the database end, and when it was last known to have nothing that is not here.
    position: Position,
    last_read: std::time::Instant,
    list: Option<ListHandle>,
    pub(super) log: Events,
    clock: Clock,
    is_prepared: bool,
}

/// What there is to answer.
pub enum Response {
    /// The message deserves no answer.
    Nothing,
    Ready(Vec<u8>),
    /// An acknowledgement, to be sent once the list for routers has all changes up to this one.
    Listed {
        octets: Vec<u8>,
        change: u64,
    },
    /// An order that waits for the database: [`carry_out`] says what to answer.
    Order(Box<PendingOrder>),
    /// A holder asks how its capability stands, and usage is read from the database: [`super::holder_usage::answer`].
    Status(Box<PendingStatus>),
}

/// Says that a start waits for the database, and why.
pub(super) fn wait_for_database(error: &StoreError) {
    warn!("waiting for the database before this server starts: {error}");
}

/// Locks the server; a panic elsewhere has left it between two messages.
pub fn lock(core: &Mutex<Core>) -> MutexGuard<'_, Core> {
    core.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The database, which is taken with [`hold`].
pub(super) fn database(core: &Mutex<Core>) -> Arc<Mutex<DatabaseRecords>> {
    Arc::clone(&lock(core).database)
}

/// Takes the database for a change.
pub(super) fn hold(database: &Mutex<DatabaseRecords>) -> MutexGuard<'_, DatabaseRecords> {
    database.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes over what others wrote, and does what is due. It may wait for the database.
///
/// # Errors
/// If the database does not continue what was read: the role ends.
pub fn follow(core: &Mutex<Core>, now: Now) -> Result<(), Failure> {
    // Whatever the database does, key epochs go on.
    lock(core).prepare(now);
    let database = database(core);
    let mut database = hold(&database);
    let unread = database.read_new()?;
    let mut core = lock(core);
    core.note_outage(&database);
    core.take(unread)?;
    core.prepare(now);
    core.announce();
    Ok(())
}

/// Carries out an order that came in `octets`, in the database, and says what to answer. It waits for the database.
///
/// # Errors
/// If the database and the state part: the role ends.
pub fn carry_out(
    core: &Mutex<Core>,
    order: Box<PendingOrder>,
    octets: &[u8],
    (client, now): (Client, Now),
) -> Result<Response, Failure> {
    let database = database(core);
    let mut database = hold(&database);
    let mut order = order;
    for _ in 0..ATTEMPTS {
        let effects = {
            let mut core = lock(core);
            let is_next = |order: &PendingOrder, number| {
                order.change.as_ref().is_none_or(|change| change.object().number == number + 1)
            };
            // Others came before it, and perhaps this very order: it is decided anew.
            if !is_next(&order, core.server.state().number()) {
                order = match core.server.serve(octets, client, now) {
                    Served::Reply(answer) => return Ok(Response::Ready(answer)),
                    Served::Nothing | Served::Status(_) => return Ok(Response::Nothing),
                    Served::Order(order) => order,
                };
            }
            let Some(change) = &order.change else { return Ok(core.acknowledge(&order, client, now)) };
            core.effects(change)
        };
        let Some(change) = &order.change else { return Ok(Response::Nothing) };
        // Nobody waits behind an order that cannot be carried out: whether it can be is seen by who follows.
        if database.outage().is_some() {
            return Ok(Response::Ready(lock(core).server.acknowledge(&order, Err(Status::Unwritten), now)));
        }
        let appended = database.append(change, effects, ("the holder", ""));
        let mut core = lock(core);
        core.note_outage(&database);
        match appended {
            Ok(unread) if unread.is_empty() => {
                core.carried_out(change)?;
                return Ok(core.acknowledge(&order, client, now));
            }
            Ok(unread) => core.take(unread)?,
            Err(failure) => {
                error!("an order was not carried out: {failure}");
                return Ok(Response::Ready(core.server.acknowledge(&order, Err(Status::Unwritten), now)));
            }
        }
    }
    Ok(Response::Nothing)
}

impl Core {
    /// Loads the database, makes the handles of the current epochs, and writes the list. Returns who writes the later ones, if
    /// there is a list.
    pub fn open(config: &KeyFile, source: &Source, clock: Clock, log: Events) -> Outcome<(Self, Option<ListWriter>)> {
        let (mut server, database) = config.waiting_server(source, wait_for_database)?;
        let database = Arc::new(Mutex::new(database));
        let now = clock.now();
        while !server.prepare(now.unix, HANDLES) {}
        let number = server.state().number();
        let mut writer = ListWriter::open(config, source, number, now.instant)?;
        let list = writer.as_ref().map(ListWriter::handle);
        let (max_staleness, outage, last_read) = (config.max_staleness(), None, std::time::Instant::now());
        let position = hold(&database).position();
        let core =
            Self { server, database, max_staleness, outage, position, last_read, list, log, clock, is_prepared: true };
        if let Some(writer) = &mut writer {
            writer.write(core.server.state().times(), &core.listed(now), now);
        }
        Ok((core, writer))
    }

    /// Whether the handles of all current epochs are made.
    pub fn is_prepared(&self) -> bool {
        self.is_prepared
    }

    /// The list for routers, if there is one.
    pub fn list(&self) -> Option<ListHandle> {
        self.list.clone()
    }

    /// The revocations that routers must know of, and where packets may come from.
    pub(super) fn listed(&self, now: Now) -> (Vec<Revocation>, Vec<Sources>) {
        let state = self.server.state();
        (state.listed(now.unix.secs()).collect(), state.sources().cloned().collect())
    }

    /// The list for routers is written, if something has changed.
    pub(super) fn announce(&self) {
        self.list.iter().for_each(ListHandle::announce);
    }

    /// What a change does to the rows, if it is made now, and what is settled.
    pub(super) fn effects(&self, change: &Signed<Change>) -> (RowEffects, u64) {
        let state = self.server.state();
        (state.effects(change.object()), state.settled())
    }

    /// Since when the database cannot be used.
    pub fn outage(&self) -> Option<&Outage> {
        self.outage.as_ref()
    }

    /// Where the changes of the database end.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Another configuration counts.
    pub fn configure(&mut self, config: &KeyFile) {
        self.max_staleness = config.max_staleness();
    }

    pub(super) fn note_outage(&mut self, database: &DatabaseRecords) {
        (self.position, self.last_read) = (database.position(), database.last_read());
        let outage = database.outage().cloned();
        match (&self.outage, &outage) {
            (None, Some(outage)) => self.log.report(database_down_line(&outage.why, self.max_staleness)),
            (Some(before), None) => self.log.report(database_up_line(before.since.elapsed())),
            _ => {}
        }
        self.outage = outage;
    }

    /// Why look-ups are refused, if they are.
    pub fn staleness(&self) -> Option<String> {
        if !self.is_stale() {
            return None;
        }
        let why = self.outage.as_ref().map_or("it does not answer", |outage| &outage.why);
        let most = self.max_staleness.as_secs();
        Some(format!("look-ups are refused, since the database could not be used for {most} s: {why}"))
    }

    /// Whether what is in memory is too old to be answered: what was revoked meanwhile elsewhere is not known.
    fn is_stale(&self) -> bool {
        self.last_read.elapsed() >= self.max_staleness
    }

    /// Makes handles of the current epochs for what is new.
    pub fn prepare(&mut self, now: Now) {
        self.is_prepared = self.server.prepare(now.unix, HANDLES);
    }

    pub(super) fn take(&mut self, unread: Unread) -> Result<(), Failure> {
        let begins = unread.state.as_ref().map(|state| state.number());
        unread.apply(&mut self.server)?;
        if let Some(number) = begins {
            info!(number, "went on from another state of the database");
            // Nobody has a secret until it is done, as at the start.
            while !self.server.prepare(self.clock.now().unix, HANDLES) {}
        }
        Ok(())
    }

    /// The answer to a message. An order that changes something waits for the database.
    pub fn answer(&mut self, octets: &[u8], client: Client, now: Now) -> Response {
        let served = match self.is_stale() {
            true => self.server.fail(octets, client, now),
            false => self.server.serve(octets, client, now),
        };
        match served {
            Served::Reply(answer) => Response::Ready(answer),
            Served::Nothing => Response::Nothing,
            Served::Order(order) if order.change.is_some() => Response::Order(order),
            Served::Status(status) => Response::Status(status),
            // Done before; perhaps just now.
            Served::Order(order) => self.acknowledge(&order, client, now),
        }
    }

    fn carried_out(&mut self, change: &Signed<Change>) -> Result<(), Failure> {
        let applied = self.server.apply(change);
        applied.map_err(|error| Failure::new(format!("a change that was just signed is refused: {error}")))?;
        let object = change.object();
        self.log.report(order_line(object.number, &object.body));
        self.announce();
        Ok(())
    }

    fn acknowledge(&mut self, order: &PendingOrder, client: Client, now: Now) -> Response {
        let change = self.server.state().number();
        let is_listed = self.list.as_ref().is_none_or(|list| list.has_now(change));
        // Copies of an order that come by datagrams while its own acknowledgement waits do not wait too: their number has no bound.
        if order.is_repeated && !is_listed && client.transport == Transport::Udp {
            return Response::Nothing;
        }
        let octets = self.server.acknowledge(order, Ok(()), now);
        if is_listed { Response::Ready(octets) } else { Response::Listed { octets, change } }
    }
}

pub fn database_down_line(why: &str, max_staleness: Duration) -> EventLine {
    event!(ERROR "database-down" { why }
        "the database cannot be used, nothing can be changed, and look-ups are answered from memory for {} s: {why}",
        max_staleness.as_secs())
}

pub fn database_up_line(after: Duration) -> EventLine {
    event!(INFO "database-up" { secs = after.as_secs() } "the database can be used again")
}

pub fn order_line(number: u64, body: &ChangeBody) -> EventLine {
    event!(INFO "order" { number } "order of a holder carried out: {}", kind(body))
}

/// What a change does, for the log; `wayleave cap list` has the rest.
fn kind(body: &ChangeBody) -> &'static str {
    match body {
        ChangeBody::Account { .. } => "an account opened or renamed",
        ChangeBody::Close { .. } => "an account closed",
        ChangeBody::Grant(_) => "a grant",
        ChangeBody::Withdraw(_) => "a grant withdrawn",
        ChangeBody::Revoke(_) => "a revocation",
        ChangeBody::Lift(_) => "a revocation taken back",
        ChangeBody::SetRate { .. } => "a rate",
        ChangeBody::EndRate(_) => "a rate ended",
        ChangeBody::SetSources(_) => "sources named",
        ChangeBody::SetBilling { .. } => "what billing knows",
        ChangeBody::SetQuota { .. } => "a quota",
        ChangeBody::EndQuota { .. } => "a quota ended",
        ChangeBody::UseUpQuota { .. } => "a quota used up",
        ChangeBody::LimitDelegation { .. } => "a delegation limited by its holder, or its limit ended",
        ChangeBody::Several(_) => "several changes of an account",
        ChangeBody::Invite(_) => "an invitation",
        ChangeBody::Redeem { .. } => "an invitation redeemed",
        ChangeBody::Uninvite(_) => "an invitation withdrawn",
        ChangeBody::WithdrawDelegation { .. } => "a delegation withdrawn by its holder",
        ChangeBody::WithdrawBranch(_) => "a grant withdrawn with all that was delegated from it",
    }
}

//! The key server with its records.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::{error, info};
use wayleave_control::capability::{Change, ChangeBody, Client, KeyServer, PendingOrder, Served, Status, Transport};
use wayleave_core::Now;
use wayleave_crypto::signed::Signed;
use wayleave_packet::platypus::revocation::Revocation;
use wayleave_runtime::Clock;

use super::listing::{ListHandle, ListWriter};
use crate::config::Source;
use crate::config::key::KeyFile;
use crate::failure::{Failure, Outcome};
use crate::key_files::changes::Changes;
use crate::key_files::records::{Base, NewChanges};
use crate::roles::events::{Events, event};

/// Handles that are made at a time while questions wait, and at start.
const HANDLES: u32 = 20_000;
/// Attempts at an order while commands append others.
const ATTEMPTS: usize = 8;

/// What answers and orders share.
pub struct Core {
    pub server: KeyServer,
    pub(super) changes: Changes,
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
}

/// Locks the server; a panic elsewhere has left it between two messages.
pub fn lock(core: &Mutex<Core>) -> MutexGuard<'_, Core> {
    core.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    /// Takes the records over, makes the handles of the current epochs, and writes the list. Returns who writes the later ones, if
    /// there is a list.
    pub fn open(config: &KeyFile, source: &Source, clock: Clock, log: Events) -> Outcome<(Self, Option<ListWriter>)> {
        let (mut server, changes) = config.server(source)?;
        let now = clock.now();
        while !server.prepare(now.unix, HANDLES) {}
        let number = server.state().number();
        let mut writer = ListWriter::open(config, source, number, now.instant)?;
        let list = writer.as_ref().map(ListWriter::handle);
        let core = Self { server, changes, list, log, clock, is_prepared: true };
        if let Some(writer) = &mut writer {
            writer.write(core.server.state().times(), &core.revocations(now), now);
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

    /// The revocations that routers must know of.
    pub(super) fn revocations(&self, now: Now) -> Vec<Revocation> {
        self.server.state().listed(now.unix.secs()).copied().collect()
    }

    /// The list for routers is written, if something has changed.
    pub(super) fn announce(&self) {
        self.list.iter().for_each(ListHandle::announce);
    }

    /// The last change, and its digest.
    pub fn end(&self) -> (u64, [u8; 32]) {
        let state = self.server.state();
        (state.number(), state.digest_of(state.number()).unwrap_or_default())
    }

    /// The change of the snapshot that the records begin with; zero without one.
    pub fn snapshot(&self) -> u64 {
        self.changes.snapshot()
    }

    /// Takes over what others appended to the records, and does what is due.
    pub fn follow(&mut self, now: Now) -> Result<(), Failure> {
        let unread = self.changes.read_new()?;
        self.take(unread)?;
        self.prepare(now);
        self.announce();
        Ok(())
    }

    /// Makes handles of the current epochs for what is new.
    pub fn prepare(&mut self, now: Now) {
        self.is_prepared = self.server.prepare(now.unix, HANDLES);
    }

    /// Whether a change that the writer sent can be taken over: it is the next one, or an earlier one, which is here already.
    ///
    /// # Errors
    /// Why not, and what to do.
    pub fn accepts(&self, change: &Signed<Change>) -> Result<(), String> {
        if change.object().number <= self.server.state().number() {
            return Ok(());
        }
        self.server.accepts(change).map_err(|error| {
            format!(
                "{error}; the records of this replica and of the writer differ: copy the writer's file, or restore the writer's from \
                 its last backup"
            )
        })
    }

    /// Takes over a change that was accepted: it is on the disk before it counts.
    ///
    /// # Errors
    /// What is wrong with the disk.
    pub fn copy(&mut self, change: &Signed<Change>) -> Result<(), Failure> {
        if change.object().number <= self.server.state().number() {
            return Ok(());
        }
        let unread = self.changes.append(change)?;
        if unread.is_empty() {
            return self.take(NewChanges { base: None, changes: vec![change.clone()] });
        }
        // Somebody has put a later copy of the file into place.
        self.take(unread)
    }

    pub(super) fn take(&mut self, unread: NewChanges) -> Result<(), Failure> {
        let base = unread.base.as_ref().map(Base::number);
        unread.apply(&mut self.server)?;
        if let Some(number) = base {
            info!(number, "went on from a snapshot of the records");
            // Nobody has a secret until it is done, as at the start.
            while !self.server.prepare(self.clock.now().unix, HANDLES) {}
        }
        Ok(())
    }

    /// The answer to a message. An order is on the disk before it is acknowledged.
    ///
    /// # Errors
    /// If the records and the state part: the role ends.
    pub fn answer(&mut self, octets: &[u8], client: Client, now: Now) -> Result<Response, Failure> {
        // A command may append between a look at the records and the order: then the order is looked at again.
        for _ in 0..ATTEMPTS {
            let order = match self.server.serve(octets, client, now) {
                Served::Reply(answer) => return Ok(Response::Ready(answer)),
                Served::Nothing => return Ok(Response::Nothing),
                Served::Order(order) => order,
            };
            // Done before; perhaps just now.
            let Some(change) = &order.change else { return Ok(self.acknowledge(&order, client, now)) };
            let unread = match self.changes.append(change) {
                Ok(unread) => unread,
                Err(failure) => {
                    error!("an order was not carried out: {failure}; check the disk");
                    return Ok(Response::Ready(self.server.acknowledge(&order, Err(Status::Unwritten), now)));
                }
            };
            if unread.is_empty() {
                self.carry_out(change)?;
                return Ok(self.acknowledge(&order, client, now));
            }
            self.take(unread)?;
        }
        Ok(Response::Nothing)
    }

    fn carry_out(&mut self, change: &Signed<Change>) -> Result<(), Failure> {
        let applied = self.server.apply(change);
        applied.map_err(|error| Failure::new(format!("a change that was just signed is refused: {error}")))?;
        let object = change.object();
        self.log.report(
            event!(INFO "order" { number = object.number } "order of a holder carried out: {}", kind(&object.body)),
        );
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

/// What a change does, for the log; `wayleave cap list` has the rest.
fn kind(body: &ChangeBody) -> &'static str {
    match body {
        ChangeBody::Account { .. } => "an account opened or renamed",
        ChangeBody::Close { .. } => "an account closed",
        ChangeBody::Grant(_) => "a grant",
        ChangeBody::Withdraw(_) => "a grant withdrawn",
        ChangeBody::Revoke(_) => "a revocation",
        ChangeBody::Lift(_) => "a revocation taken back",
        ChangeBody::Invite(_) => "an invitation",
        ChangeBody::Redeem { .. } => "an invitation redeemed",
        ChangeBody::Uninvite(_) => "an invitation withdrawn",
        ChangeBody::WithdrawDelegation { .. } => "a delegation withdrawn by its holder",
        ChangeBody::WithdrawBranch(_) => "a grant withdrawn with all that was delegated from it",
    }
}

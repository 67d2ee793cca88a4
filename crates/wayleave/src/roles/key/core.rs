//! The key server with its records and the list of revocations that it writes.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use tracing::{error, info};
use wayleave_control::budget::Budget;
use wayleave_control::capability::{Change, Client, KeyServer, PendingOrder, Served, Status};
use wayleave_control::signed::Signed;
use wayleave_core::{Instant, Now};
use wayleave_crypto::sign::SigningKey;
use wayleave_dataplane::platypus::revocation::{ListKind, Revocation, sign_list};
use wayleave_runtime::Clock;

use crate::config::Source;
use crate::config::key::KeyFile;
use crate::failure::{Failure, Outcome};
use crate::key_files::changes::Changes;
use crate::key_files::records::{Base, News};
use crate::key_files::revocation;
use crate::roles::Events;

/// Handles that are made at a time while questions wait, and at start.
const HANDLES: u32 = 20_000;
/// Orders in a second, and at once: each is written to the disk.
const ORDERS: (u32, u32) = (200, 400);
/// The list is signed anew this often, so that a router without a record of the last one takes it (`recent_secs`).
const RENEWAL: Duration = Duration::from_secs(3_600);
/// After a failure to write the list.
const RETRY: Duration = Duration::from_secs(5);

/// Attempts at an order while commands append others.
const ATTEMPTS: usize = 8;

/// What answers and orders share.
pub struct Core {
    pub server: KeyServer,
    pub(super) changes: Changes,
    list: Option<RevocationList>,
    orders: Budget,
    pub(super) log: Events,
    clock: Clock,
    is_prepared: bool,
}

/// The list of revocations for routers.
struct RevocationList {
    path: PathBuf,
    signer: SigningKey,
    /// The number of the last list, of earlier runs too.
    last: u64,
    /// The number of the state that it was made of in this run.
    made_of: Option<u64>,
    /// The last list that was written, behind its signature.
    octets: Arc<[u8]>,
    /// When it is signed anew though nothing has changed.
    renewal: Instant,
    /// Not before this, after a failure.
    not_before: Instant,
}

/// Locks the server; a panic elsewhere has left it between two messages.
pub fn lock(core: &Mutex<Core>) -> MutexGuard<'_, Core> {
    core.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    /// Takes the records over, makes the handles of the current epochs, and writes the list.
    pub fn open(config: &KeyFile, source: &Source, clock: Clock, log: Events) -> Outcome<Self> {
        let (mut server, changes) = config.server(source)?;
        let now = clock.now();
        while !server.prepare(now.unix, HANDLES) {}
        let list = match (&config.key.revocations, config.signer(source)?) {
            (Some(named), Some(signer)) => {
                let path = source.resolve(named.get_ref());
                let before = revocation::open(&path, &signer.verifying_key())?.map(|list| list.sequence);
                // The upper half of a list's number is that of the state: an old copy of the records has a lower one.
                if let Some(before) = before.filter(|before| before >> 32 > server.state().number()) {
                    let message = format!(
                        "{} was made of change {}, and the records end with change {}: they are an old copy",
                        path.display(),
                        before >> 32,
                        server.state().number()
                    );
                    return Err(Failure::new(message)
                        .help("restore the records from the last backup; revocations that routers have are missing in them")
                        .into());
                }
                let (last, start) = (before.unwrap_or(0), now.instant);
                let octets = Arc::from([]);
                Some(RevocationList { path, signer, last, made_of: None, octets, renewal: start, not_before: start })
            }
            _ => None,
        };
        let orders = Budget::new(ORDERS.0, ORDERS.1);
        let mut core = Self { server, changes, list, orders, log, clock, is_prepared: true };
        core.write_list(now);
        Ok(core)
    }

    /// Whether the handles of all current epochs are made.
    pub fn is_prepared(&self) -> bool {
        self.is_prepared
    }

    /// The list in force with its signature, and its number.
    pub fn list(&self) -> Option<(u64, Arc<[u8]>)> {
        let list = self.list.as_ref().filter(|list| list.made_of.is_some())?;
        Some((list.last, Arc::clone(&list.octets)))
    }

    /// The number of the list that routers read.
    pub fn list_number(&self) -> Option<u64> {
        self.list.as_ref().filter(|list| list.made_of.is_some()).map(|list| list.last)
    }

    /// The change of the snapshot that the records begin with; zero without one.
    pub fn snapshot(&self) -> u64 {
        self.changes.snapshot()
    }

    /// Takes over what others appended to the records, and does what is due.
    pub fn follow(&mut self, now: Now) -> Result<(), Failure> {
        let news = self.changes.news()?;
        self.take(news)?;
        self.prepare(now);
        self.write_list(now);
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
        let news = self.changes.append(change)?;
        if news.is_empty() {
            return self.take(News { base: None, changes: vec![change.clone()] });
        }
        // Somebody has put a later copy of the file into place.
        self.take(news)
    }

    pub(super) fn take(&mut self, news: News) -> Result<(), Failure> {
        let base = news.base.as_ref().map(Base::number);
        news.apply(&mut self.server)?;
        if let Some(number) = base {
            info!(number, "went on from a snapshot of the records");
            // Nobody has a secret until it is done, as at the start.
            while !self.server.prepare(self.clock.now().unix, HANDLES) {}
        }
        Ok(())
    }

    /// The answer to a message, if it deserves one. An order is on the disk before it is acknowledged.
    pub fn answer(&mut self, octets: &[u8], client: Client, now: Now) -> Result<Option<Vec<u8>>, Failure> {
        // A command may append between a look at the records and the order: then the order is looked at again.
        for _ in 0..ATTEMPTS {
            let order = match self.server.serve(octets, client, now) {
                Served::Reply(answer) => return Ok(Some(answer)),
                Served::Nothing => return Ok(None),
                Served::Order(order) => order,
            };
            if !self.orders.take(now.instant) {
                return Ok(None);
            }
            let Some(change) = &order.change else { return Ok(Some(self.server.acknowledge(&order, Ok(()), now))) };
            let news = match self.changes.append(change) {
                Ok(news) => news,
                Err(failure) => {
                    error!("an order was not carried out: {failure}; check the disk");
                    return Ok(None);
                }
            };
            if news.is_empty() {
                return self.carry_out(&order, now).map(Some);
            }
            self.take(news)?;
        }
        Ok(None)
    }

    fn carry_out(&mut self, order: &PendingOrder, now: Now) -> Result<Vec<u8>, Failure> {
        let outcome = match &order.change {
            Some(change) => match self.server.apply(change) {
                Ok(()) => {
                    let object = change.object();
                    info!(number = object.number, "order of a holder carried out: {:?}", object.body);
                    self.log.note(&json!({ "event": "order", "number": object.number }));
                    Ok(())
                }
                Err(error) => return Err(Failure::new(format!("a change that was just signed is refused: {error}"))),
            },
            None => Err(Status::NotAllowed),
        };
        self.write_list(now);
        Ok(self.server.acknowledge(order, outcome, now))
    }

    /// Signs the list of revocations if the state has changed, or if it was last signed an hour ago.
    pub(super) fn write_list(&mut self, now: Now) {
        let Some(list) = &mut self.list else { return };
        let state = self.server.state().number();
        let is_due = list.made_of != Some(state) || now.instant >= list.renewal;
        if !is_due || now.instant < list.not_before {
            return;
        }
        let second = now.unix.secs();
        let entries: Vec<Revocation> = self
            .server
            .state()
            .revocations()
            .filter(|entry| entry.expires_at().is_none_or(|expiry| expiry > second))
            .copied()
            .collect();
        let number = (state << 32 | second & 0xffff_ffff).max(list.last + 1);
        let (octets, signature) = sign_list(&list.signer, number, now.unix, ListKind::Whole, &entries);
        let written = revocation::put(&list.path, &[&signature, &octets]);
        match written {
            Ok(()) => {
                (list.last, list.made_of, list.renewal) = (number, Some(state), now.instant + RENEWAL);
                list.octets = [&signature[..], &octets].concat().into();
                info!(number, entries = entries.len(), "list of revocations written");
            }
            Err(failures) => {
                for failure in failures.0 {
                    error!("routers do not learn of revocations: {failure}");
                }
                list.not_before = now.instant + RETRY;
            }
        }
    }
}

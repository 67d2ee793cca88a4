//! The list of revocations and source prefixes for routers. It is signed and written beside the server, which answers meanwhile: one list at a time, and
//! changes that come while one is written are in the next.
//!
//! Each of several key servers with one database signs lists of its own and sends them to its routers. A list is all that is in force, numbered
//! by the change that it was made of and a second: of two that are signed at once either says the same, or the later one more, and routers
//! keep the one with the higher number. So nothing need be agreed on who signs, and none waits for another that was killed.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, oneshot, watch};
use tracing::{error, info};
use wayleave_control::capability::ChangeTimes;
use wayleave_core::{Instant, Now};
use wayleave_crypto::sign::SigningKey;
use wayleave_dataplane::platypus::revocation::{Revocation, sign_whole};
use wayleave_packet::platypus::sources::Sources;
use wayleave_runtime::Clock;

use super::core::{Core, lock};
use crate::config::Source;
use crate::config::key::KeyFile;
use crate::failure::Outcome;
use crate::key_files::revocation;

/// The list is signed anew this often, so that a router without a record of the last one takes it (`recent_secs`).
const RENEWAL: Duration = Duration::from_secs(3_600);
/// After a failure to write the list.
const RETRY: Duration = Duration::from_secs(5);

/// What was written last.
#[derive(Clone, Default)]
pub struct WrittenList {
    /// Its number, and its octets behind the signature; none before the first of this run.
    pub list: Option<(u64, Arc<[u8]>)>,
    /// When the changes that it was made of were signed.
    pub times: ChangeTimes,
    /// It has the revocations up to this change.
    made_of: Option<u64>,
    /// Why the last attempt failed, until one succeeds.
    pub problem: Option<String>,
}

impl WrittenList {
    fn has(&self, change: u64) -> bool {
        self.made_of >= Some(change) || self.problem.is_some()
    }
}

/// The server's end: who changes something says so here, and may wait until routers can read it.
#[derive(Clone)]
pub struct ListHandle {
    due: Arc<Notify>,
    written: watch::Receiver<WrittenList>,
}

impl ListHandle {
    /// Something may have changed. A list that is being written now is followed by another one.
    pub fn announce(&self) {
        self.due.notify_one();
    }

    /// What was written last.
    pub fn written(&self) -> WrittenList {
        self.written.borrow().clone()
    }

    /// Waits until the list has all changes up to this one. If it cannot be written, nobody waits for it: that was reported, and the
    /// changes are durable without it.
    pub async fn has(mut self, change: u64) {
        let _ = self.written.wait_for(|written| written.has(change)).await; // fails if the role has stopped
    }

    /// Whether nobody need wait for it.
    pub fn has_now(&self, change: u64) -> bool {
        self.written.borrow().has(change)
    }
}

/// Writes the list.
pub struct ListWriter {
    path: PathBuf,
    signer: SigningKey,
    /// The number of the last list, of earlier runs too.
    last: u64,
    /// When it is signed anew though nothing has changed.
    renewal: Instant,
    /// The second by which the last one was signed. A clock that goes back behind it was wrong then.
    signed_at: u64,
    /// Not before this, after a failure.
    not_before: Instant,
    due: Arc<Notify>,
    written: watch::Sender<WrittenList>,
}

impl ListWriter {
    /// Reads which list was written last; `None` if the configuration names none. `number` is that of the state.
    ///
    /// # Errors
    /// If the last list is damaged, was made of later changes, or is missing though there are changes: it may have been lost with some
    /// of them.
    pub fn open(config: &KeyFile, source: &Source, number: u64, now: Instant) -> Outcome<Option<Self>> {
        let Some(named) = &config.key.revocations else { return Ok(None) };
        let signer = config.signer(source)?;
        let path = source.resolve(named.get_ref());
        let before = revocation::last_number(&path, &signer.verifying_key())?;
        revocation::goes_with(before, &path, number)?;
        let (due, written) = (Arc::new(Notify::new()), watch::Sender::new(WrittenList::default()));
        Ok(Some(Self {
            path,
            signer,
            last: before.unwrap_or(0),
            renewal: now,
            signed_at: 0,
            not_before: now,
            due,
            written,
        }))
    }

    /// The server's end.
    pub fn handle(&self) -> ListHandle {
        ListHandle { due: Arc::clone(&self.due), written: self.written.subscribe() }
    }

    /// Writes a list whenever one is due, for as long as the role runs.
    pub async fn run(mut self, core: Arc<Mutex<Core>>, clock: Clock) {
        loop {
            self.due.notified().await;
            let core = Arc::clone(&core);
            let work = move || {
                self.look(&core, clock.now());
                self
            };
            // On a thread of its own: changes that wait for a list may have taken all threads of the pool.
            let (done, written) = oneshot::channel();
            let write = move || drop(done.send(work()));
            if std::thread::Builder::new().name("list".to_owned()).spawn(write).is_err() {
                return; // no thread can be had; the role ends with this task
            }
            match written.await {
                Ok(writer) => self = writer,
                // A panic; the role ends with this task.
                Err(_) => return,
            }
        }
    }

    /// Writes the list if the state has changed, if it was last signed an hour ago, or if the clock has gone back behind that. The server is locked only while its revocations
    /// are copied.
    pub(super) fn look(&mut self, core: &Mutex<Core>, now: Now) {
        if now.instant < self.not_before {
            return;
        }
        let made_of = self.written.borrow().made_of;
        let (times, entries) = {
            let core = lock(core);
            let state = core.server.state();
            let is_current = now.instant < self.renewal && now.unix.secs() >= self.signed_at;
            if made_of == Some(state.number()) && is_current {
                return;
            }
            (state.times(), core.listed(now))
        };
        self.write(times, &entries, now);
    }

    /// Signs and writes the list of these entries, which are in force after the last of the changes.
    pub fn write(&mut self, times: ChangeTimes, (entries, sources): &(Vec<Revocation>, Vec<Sources>), now: Now) {
        let number = times.list_number(self.last, now.unix);
        let (octets, signature) = sign_whole(&self.signer, number, now.unix, entries, sources);
        match revocation::put(&self.path, &[&signature, &octets]) {
            Ok(()) => {
                (self.last, self.renewal, self.signed_at) = (number, now.instant + RENEWAL, now.unix.secs());
                let list = Some((number, [&signature[..], &octets].concat().into()));
                let made_of = Some(times.last);
                self.written.send_replace(WrittenList { list, times, made_of, problem: None });
                info!(number, entries = entries.len(), sources = sources.len(), "list of revocations written");
            }
            Err(failures) => {
                self.not_before = now.instant + RETRY;
                self.written.send_modify(|written| written.problem = Some(failures.to_string()));
                for failure in failures.0 {
                    error!("routers do not learn of revocations: {failure}");
                }
            }
        }
    }
}

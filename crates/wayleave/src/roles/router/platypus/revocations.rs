//! The signed list of revocations: read when its file changes, taken over when it is newer, never when it is older, not
//! even after a restart.
//!
//! The number of the last list is durable in the state file. A router that has no record of it, because there is no state file,
//! or a new one, cannot tell an old list from the last one: an absent record never means zero. It takes only a list that was
//! signed a short time ago, says so, and forwards nothing until it has one, if the list is required.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toml::Spanned;
use tracing::{error, warn};
use wayleave_crypto::sign::{Signature, VerifyingKey};
use wayleave_dataplane::platypus::revocation::{RevocationList, RevocationTable};
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::store::{Change, FileStore, Store};

use super::Platypus;
use crate::failure::Outcome;
use crate::key_files::revocation::{self, SIGNATURE};
use crate::roles::events::{EventLine, Events, event};
use crate::roles::router::settings::Settings;
use crate::roles::router::threads::Threads;

/// The table and the key of the last list's number.
const TABLE: &str = "revocations";
const SEQUENCE: &[u8] = b"sequence";

/// How long the provider's key server has to send a list before its absence is said.
const PATIENCE: Duration = Duration::from_secs(5);

/// The list's file, and the list that was last taken from it.
pub struct RevocationFile {
    /// The file, and who signs it; none if the configuration names none.
    file: Option<(PathBuf, VerifyingKey)>,
    /// Inode, time and length of the file as last read.
    stamp: Option<(u64, i64, i64, u64)>,
    list: RevocationTable,
    /// How many seconds ago a list may have been signed if no number of an earlier one is known.
    recent_secs: u64,
    /// The number of the last list, of earlier runs too; none if nothing is known of earlier runs.
    sequence: Option<u64>,
    /// The number that the store has.
    written: Option<u64>,
    store: Option<Arc<FileStore>>,
    status: SharedStatus,
    /// Where a list comes from by the configuration, and what to do if it does not come.
    origin: String,
    /// From when it is said that nothing passes, if that is so; none once that was looked at.
    told_from: Option<Instant>,
}

/// What `show status` says of the list.
pub type SharedStatus = Arc<Mutex<ListStatus>>;

/// What a list in force has.
#[derive(Clone, Copy)]
struct InForce {
    sequence: u64,
    /// Unix second of the signature.
    issued: u64,
    entries: usize,
    /// Payers with source prefixes.
    sources: usize,
}

/// The list in force, and what is wrong with the one in the file.
#[derive(Clone, Default)]
pub struct ListStatus {
    is_configured: bool,
    in_force: Option<InForce>,
    /// The number that a restart will find.
    durable: Option<u64>,
    has_state: bool,
    refused: Option<String>,
    /// Where the list comes from without which nothing passes, and what to do.
    needed: Option<String>,
}

impl ListStatus {
    /// Why nothing passes, if that is so.
    pub fn why_nothing_passes(&self) -> Option<String> {
        let needed = self.needed.as_ref().filter(|_| self.in_force.is_none())?;
        Some(format!("nothing passes until this router has a list of revocations {needed}"))
    }

    /// Its member of the status view; null where no list is configured.
    pub fn json(&self) -> Value {
        if !self.is_configured {
            return Value::Null;
        }
        json!({
            "sequence": self.in_force.map(|list| list.sequence),
            "issued": self.in_force.map(|list| list.issued),
            "entries": self.in_force.map(|list| list.entries),
            "sources": self.in_force.map(|list| list.sources),
            "state": self.has_state,
            "durable": self.durable,
            "refused": self.refused,
        })
    }
}

/// Where the list comes from, and what to do if it does not come.
fn origin(settings: &Settings) -> String {
    let section = settings.file.platypus.as_ref().map(Spanned::get_ref);
    let file = section.and_then(|section| section.revocations.as_ref()).map(|list| list.get_ref().file.display());
    let servers = section.and_then(|section| section.provider.as_ref()).map(|provider| provider.get_ref().servers());
    match (servers, file) {
        (Some(servers), _) => {
            let servers: Vec<String> = servers.map(|server| server.address).collect();
            format!(
                "from the key server at {}: is there a link to it, and is `revocations.key` its `writer`?",
                servers.join(" or ")
            )
        }
        (None, Some(file)) => format!("in {file}: `wayleave cap revoke-list` signs one (no entry is needed)"),
        (None, None) => String::new(),
    }
}

impl RevocationFile {
    /// Finds the file that the configuration names, and the number of the last list in the store.
    pub fn new(settings: &Settings, store: Option<&Arc<FileStore>>) -> Outcome<Self> {
        let section = settings.file.platypus.as_ref().and_then(|section| section.get_ref().revocations.as_ref());
        let file = section.map(|list| (settings.source.resolve(&list.get_ref().file), list.get_ref().key.0.0));
        let records = store.map_or(Ok(Vec::new()), |store| store.load(TABLE))?;
        let last = records.into_iter().find(|(key, _)| key == SEQUENCE);
        let sequence = last.and_then(|(_, value)| Some(u64::from_be_bytes(value.try_into().ok()?)));
        let recent_secs = section.map_or(0, |list| *list.get_ref().recent_secs.get_ref());
        if file.is_some() && store.is_none() {
            warn!(
                recent_secs,
                "no `state` in [forwarding]: after a restart this router does not know which list of revocations was in force, \
                 and takes only one that was signed less than recent_secs seconds ago; set `state`"
            );
        }
        let status = ListStatus {
            is_configured: file.is_some(),
            durable: sequence,
            has_state: store.is_some(),
            needed: section.filter(|list| list.get_ref().required).map(|_| origin(settings)),
            ..ListStatus::default()
        };
        let (stamp, list, status) = (None, RevocationTable::default(), Arc::new(Mutex::new(status)));
        let is_sent = settings.file.platypus.as_ref().is_some_and(|section| section.get_ref().provider.is_some());
        let begun = Instant::now();
        Ok(Self {
            file,
            stamp,
            list,
            recent_secs,
            sequence,
            written: sequence,
            store: store.cloned(),
            status,
            origin: origin(settings),
            told_from: Some(if is_sent { begun + PATIENCE } else { begun }),
        })
    }

    /// What `show status` reads.
    pub fn status(&self) -> SharedStatus {
        Arc::clone(&self.status)
    }

    fn note(&self, change: impl FnOnce(&mut ListStatus)) {
        change(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Watches the file of another configuration from now on; the list in force stays until that file has been read. Whether a list is
    /// required stays as it was at the start.
    pub fn watch(&mut self, other: Self) {
        (self.file, self.stamp, self.recent_secs) = (other.file, None, other.recent_secs);
        if !other.origin.is_empty() {
            self.origin = other.origin;
        }
        let (is_configured, origin) = (self.file.is_some(), self.origin.clone());
        self.note(|status| {
            status.is_configured = is_configured;
            status.needed.iter_mut().for_each(|needed| needed.clone_from(&origin));
        });
    }

    /// That nothing passes, if that is so and a list had time to come; once.
    fn take_warning(&mut self, now: Instant) -> Option<String> {
        self.told_from.take_if(|from| *from <= now)?;
        self.status.lock().unwrap_or_else(PoisonError::into_inner).why_nothing_passes()
    }

    /// Says once that nothing passes, if that is so.
    pub fn announce(&mut self, now: Instant) {
        if let Some(why) = self.take_warning(now) {
            warn!("{why}");
        }
    }

    /// Takes the list over if its file has changed.
    pub async fn check(&mut self, threads: &Threads<Platypus>, log: &Events) {
        self.write_sequence();
        let Some((path, key)) = self.file.clone() else { return };
        let Ok(meta) = fs::metadata(&path) else { return };
        let stamp = Some((meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.len()));
        if stamp == self.stamp {
            return;
        }
        let read = revocation::read(&path).map_err(|error| error.to_string());
        let applied = read.and_then(|octets| self.apply(&octets, &key));
        self.stamp = stamp;
        if let Err(why) = applied {
            self.note(|status| status.refused = Some(why.clone()));
            return log.report(refused_line(&path, &why));
        }
        for thread in 0..threads.count() {
            let new = self.list.clone();
            // What it replaces is given back, so that the forwarding thread need not free it.
            let replaced =
                threads.query(thread, move |worker| std::mem::replace(worker.format.router.revocations(), new));
            drop(replaced.await);
        }
        // Not before: whoever sees an entry in the status relies on it at every thread.
        let in_force = self.in_force();
        self.note(|status| (status.refused, status.in_force) = (None, in_force));
        log.report(taken_over_line(self.list.len(), self.sequence, self.list.sources().len()));
    }

    fn apply(&mut self, octets: &[u8], key: &VerifyingKey) -> Result<(), String> {
        let (signature, list) = octets.split_first_chunk::<SIGNATURE>().ok_or("the file is too short")?;
        let number = list.first_chunk::<8>().map(|number| u64::from_be_bytes(*number));
        let number = number.ok_or("the file is too short")?;
        match self.sequence {
            Some(last) if number < last => {
                return Err(format!("list {number} is older than list {last}, which was in force before"));
            }
            Some(last) if number == last && self.list.is_loaded() => return Ok(()),
            Some(_) => {}
            None => self.check_recent(list, signature, key)?,
        }
        self.list.apply(list, signature, key).map_err(|error| error.to_string())?;
        self.sequence = Some(number);
        self.write_sequence();
        Ok(())
    }

    /// What the list has that was taken last; none before the first.
    fn in_force(&self) -> Option<InForce> {
        let now = unix_now();
        self.sequence.filter(|_| self.list.is_loaded()).map(|sequence| InForce {
            sequence,
            issued: now.secs().saturating_sub(self.list.age(now)),
            entries: self.list.len(),
            sources: self.list.sources().len(),
        })
    }

    /// Whether a list was signed a short time ago, where nothing is known of the one before it.
    fn check_recent(&self, list: &[u8], signature: &Signature, key: &VerifyingKey) -> Result<(), String> {
        let list = RevocationList::open(list, signature, key).map_err(|error| error.to_string())?;
        let age = unix_now().secs().saturating_sub(list.issued);
        if age <= self.recent_secs {
            return Ok(());
        }
        Err(format!(
            "list {} was signed {age} s ago, and this router has no record of the list that was in force before, so that it may \
             be an old one: sign it anew with `wayleave cap revoke-list` (no entry is needed), or raise `recent_secs`, which is {}",
            list.sequence, self.recent_secs
        ))
    }

    /// Writes the sequence number down, so that no restart goes back behind it. A busy store is tried again at the next
    /// check; the list is in force meanwhile.
    fn write_sequence(&mut self) {
        if self.written == self.sequence {
            return;
        }
        let Some(store) = &self.store else { return };
        let Some(sequence) = self.sequence else { return };
        let value = sequence.to_be_bytes().to_vec();
        let change = Change { table: TABLE, key: SEQUENCE.to_vec(), value: Some(value) };
        match store.submit(vec![change], Box::new(|| ())) {
            Ok(()) => {
                self.written = self.sequence;
                self.note(|status| status.durable = Some(sequence));
            }
            Err(error) => error!(
                %error, sequence,
                "the state file does not take the number of the list of revocations: after a crash an older list would be \
                 accepted; check the disk"
            ),
        }
    }
}

pub fn refused_line(path: &Path, why: &str) -> EventLine {
    event!(ERROR "revocations" {; refused = why }
        "list of revocations {} refused: {why}; the list in force stays", path.display())
}

pub fn taken_over_line(entries: usize, sequence: Option<u64>, sources: usize) -> EventLine {
    event!(INFO "revocations" { entries, sequence, sources } "list of revocations taken over")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_passes_only_while_a_list_that_is_required_is_not_there() {
        let in_force = InForce { sequence: 1, issued: 1, entries: 0, sources: 0 };
        let needed =
            || ListStatus { is_configured: true, needed: Some("in revoked".to_owned()), ..ListStatus::default() };
        let why = needed().why_nothing_passes().expect("nothing passes");
        assert_eq!(why, "nothing passes until this router has a list of revocations in revoked");
        assert_eq!(ListStatus { in_force: Some(in_force), ..needed() }.why_nothing_passes(), None);
        assert_eq!(ListStatus { needed: None, ..needed() }.why_nothing_passes(), None, "it is not required");
    }

    /// The list that a configuration has in `file`.
    fn watched(file: &str, begun: Instant) -> RevocationFile {
        let origin = format!("in {file}");
        let status = ListStatus { is_configured: true, needed: Some(origin.clone()), ..ListStatus::default() };
        RevocationFile {
            file: None,
            stamp: None,
            list: RevocationTable::default(),
            recent_secs: 1,
            sequence: None,
            written: None,
            store: None,
            status: Arc::new(Mutex::new(status)),
            origin,
            told_from: Some(begun + PATIENCE),
        }
    }

    #[test]
    fn it_is_said_once_after_the_list_had_time_to_come_and_names_the_file_of_the_reload() {
        let begun = Instant::now();
        let mut list = watched("old", begun);
        assert_eq!(list.take_warning(begun), None);
        list.watch(watched("new", begun));
        let nothing = "nothing passes until this router has a list of revocations in new";
        assert_eq!(list.take_warning(begun + PATIENCE).as_deref(), Some(nothing));
        assert_eq!(list.take_warning(begun + 2 * PATIENCE), None);
        // What is not required from the start is not by a reload.
        let mut list = watched("old", begun);
        list.note(|status| status.needed = None);
        list.watch(watched("new", begun));
        assert_eq!(list.take_warning(begun + PATIENCE), None);
    }
}

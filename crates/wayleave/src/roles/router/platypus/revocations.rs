//! The signed list of revocations: read when its file changes, taken over when it is newer, never when it is older, not
//! even after a restart.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;
use tracing::{error, info};
use wayleave_crypto::sign::VerifyingKey;
use wayleave_dataplane::platypus::revocation::RevocationTable;
use wayleave_runtime::store::{Change, FileStore, Store};

use super::Platypus;
use crate::failure::Outcome;
use crate::key_files::revocation::{self, SIGNATURE};
use crate::roles::Events;
use crate::roles::router::settings::Settings;
use crate::roles::router::threads::Threads;

/// The table and the key of the last list's number.
const TABLE: &str = "revocations";
const SEQUENCE: &[u8] = b"sequence";

/// The list's file, and the list that was last taken from it.
pub struct RevocationFile {
    /// The file, and who signs it; none if the configuration names none.
    file: Option<(PathBuf, VerifyingKey)>,
    /// Inode, time and length of the file as last read.
    stamp: Option<(u64, i64, i64, u64)>,
    list: RevocationTable,
    /// The number of the last list, of earlier runs too.
    sequence: u64,
    /// The number that the store has.
    written: u64,
    store: Option<Arc<FileStore>>,
}

impl RevocationFile {
    /// Finds the file that the configuration names, and the number of the last list in the store.
    pub fn new(settings: &Settings, store: Option<&Arc<FileStore>>) -> Outcome<Self> {
        let section = settings.file.platypus.as_ref().and_then(|section| section.get_ref().revocations.as_ref());
        let file = section.map(|list| (settings.source.resolve(&list.get_ref().file), list.get_ref().key.0.0));
        let records = store.map_or(Ok(Vec::new()), |store| store.load(TABLE))?;
        let last = records.into_iter().find(|(key, _)| key == SEQUENCE);
        let sequence = last.and_then(|(_, value)| Some(u64::from_be_bytes(value.try_into().ok()?))).unwrap_or(0);
        let (stamp, list) = (None, RevocationTable::default());
        Ok(Self { file, stamp, list, sequence, written: sequence, store: store.cloned() })
    }

    /// Watches the file of another configuration from now on; the list in force stays until that file has been read.
    pub fn watch(&mut self, other: Self) {
        (self.file, self.stamp) = (other.file, None);
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
            error!("list of revocations {} refused: {why}; the list in force stays", path.display());
            return log.note(&json!({ "event": "revocations", "refused": why }));
        }
        for thread in 0..threads.count() {
            let new = self.list.clone();
            // What it replaces is given back, so that the forwarding thread need not free it.
            let replaced =
                threads.query(thread, move |worker| std::mem::replace(worker.format.router.revocations(), new));
            drop(replaced.await);
        }
        info!(entries = self.list.len(), sequence = self.sequence, "list of revocations taken over");
        log.note(&json!({ "event": "revocations", "entries": self.list.len(), "sequence": self.sequence }));
    }

    fn apply(&mut self, octets: &[u8], key: &VerifyingKey) -> Result<(), String> {
        let (signature, list) = octets.split_first_chunk::<SIGNATURE>().ok_or("the file is too short")?;
        let number = list.first_chunk::<8>().map(|number| u64::from_be_bytes(*number));
        let number = number.ok_or("the file is too short")?;
        if number < self.sequence {
            return Err(format!("list {number} is older than list {}, which was in force before", self.sequence));
        }
        if number == self.sequence && self.list.is_loaded() {
            return Ok(());
        }
        self.list.apply(list, signature, key).map_err(|error| error.to_string())?;
        self.sequence = number;
        self.write_sequence();
        Ok(())
    }

    /// Writes the sequence number down, so that no restart goes back behind it. A busy store is tried again at the next
    /// check; the list is in force meanwhile.
    fn write_sequence(&mut self) {
        if self.written == self.sequence {
            return;
        }
        let Some(store) = &self.store else { return };
        let value = self.sequence.to_be_bytes().to_vec();
        let change = Change { table: TABLE, key: SEQUENCE.to_vec(), value: Some(value) };
        match store.submit(vec![change], Box::new(|| ())) {
            Ok(()) => self.written = self.sequence,
            Err(error) => error!(
                %error, sequence = self.sequence,
                "the state file does not take the number of the list of revocations: after a crash an older list would be \
                 accepted; check the disk"
            ),
        }
    }
}

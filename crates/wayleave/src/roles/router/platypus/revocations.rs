//! The signed list of revocations: watched, taken over when it is newer, never older, not even after a restart.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;
use tracing::{error, info};
use wayleave_crypto::sign::VerifyingKey;
use wayleave_dataplane::platypus::revocation::RevocationTable;
use wayleave_runtime::store::{Change, FileStore, Store};

use super::Engine;
use super::worker::{Handle, ask};
use crate::config::Source;
use crate::config::router::RouterFile;
use crate::failure::Outcome;
use crate::key_files::revocation::{self, SIGNATURE};
use crate::roles::Events;

/// The table and the key of the last list's number.
const TABLE: &str = "revocations";
const SEQUENCE: &[u8] = b"sequence";

/// The file and what was last taken from it.
pub struct Watched {
    file: Option<(PathBuf, VerifyingKey)>,
    stamp: Option<(u64, i64, i64, u64)>,
    held: RevocationTable,
    /// The number of the last list, of an earlier life too.
    sequence: u64,
    /// The number that the store has.
    written: u64,
    store: Option<Arc<FileStore>>,
}

impl Watched {
    pub fn new(file: &RouterFile, source: &Source, store: Option<Arc<FileStore>>) -> Outcome<Self> {
        let section = file.platypus.as_ref().and_then(|section| section.get_ref().revocations.as_ref());
        let named = section.map(|list| (source.resolve(&list.get_ref().file), list.get_ref().key.0.0));
        let records = store.as_ref().map_or(Ok(Vec::new()), |store| store.load(TABLE))?;
        let last = records.into_iter().find(|(key, _)| key == SEQUENCE);
        let sequence = last.and_then(|(_, value)| Some(u64::from_be_bytes(value.try_into().ok()?))).unwrap_or(0);
        Ok(Self { file: named, stamp: None, held: RevocationTable::default(), sequence, written: sequence, store })
    }

    /// Goes on with what another configuration names; the list held stays.
    pub fn take_over(&mut self, other: Self) {
        (self.file, self.stamp) = (other.file, None);
    }

    /// Takes the list over if its file has changed.
    pub async fn look(&mut self, workers: &[Handle], log: &Events) {
        self.write_down();
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
            error!("ALARM: {}: {why}; the list before still counts", path.display());
            return log.note(&json!({ "event": "revocations", "refused": why }));
        }
        for worker in workers {
            let new = self.held.clone();
            // What it replaces is given back, so that the thread need not free it.
            let replaced = ask(&worker.tasks, move |worker| match &mut worker.engine {
                Engine::Platypus(engine) => Some(std::mem::replace(engine.router.revocations(), new)),
                Engine::Scion(_) | Engine::Icing(_) => None,
            });
            drop(replaced.await);
        }
        info!(entries = self.held.len(), sequence = self.sequence, "revocations taken over");
        log.note(&json!({ "event": "revocations", "entries": self.held.len(), "sequence": self.sequence }));
    }

    fn apply(&mut self, octets: &[u8], key: &VerifyingKey) -> Result<(), String> {
        let (signature, list) = octets.split_first_chunk::<SIGNATURE>().ok_or("too short")?;
        let got = list.first_chunk::<8>().map(|number| u64::from_be_bytes(*number)).ok_or("too short")?;
        if got < self.sequence {
            return Err(format!("list {got} is older than {}, which was held before", self.sequence));
        }
        if got == self.sequence && self.held.is_loaded() {
            return Ok(());
        }
        self.held.apply(list, signature, key).map_err(|error| error.to_string())?;
        self.sequence = got;
        self.write_down();
        Ok(())
    }

    /// Writes the sequence number down, so that no later life goes back behind it. A store without room is asked again the
    /// next time; the list counts meanwhile.
    fn write_down(&mut self) {
        if self.written == self.sequence {
            return;
        }
        let Some(store) = &self.store else { return };
        let value = self.sequence.to_be_bytes().to_vec();
        let change = Change { table: TABLE, key: SEQUENCE.to_vec(), value: Some(value) };
        match store.submit(vec![change], Box::new(|| ())) {
            Ok(()) => self.written = self.sequence,
            Err(error) => error!(%error, "ALARM: the number of the list of revocations waits to be written down"),
        }
    }
}

//! The state of servers and nodes: records of the control plane in a file.

use std::path::Path;
use std::sync::Arc;

use tracing::error;
use wayleave_control::store::{Record, Store as Stored};
use wayleave_runtime::store::{self, Change, FileStore, Store, StoreError};

use crate::config::overlay::RECORDS;

/// What the file is.
const META: &str = "meta";
const LIFE: &[u8] = b"life";

/// A state that was opened.
pub struct State {
    pub file: Arc<FileStore>,
    /// How it was found.
    pub store: Stored,
    pub is_damaged: bool,
}

/// Opens a state. A file that is not there was lost, unless it was [`create`]d and never used: who asks others before it answers
/// says which.
pub fn open(path: &Path) -> Result<State, StoreError> {
    let was_there = path.exists();
    let file = FileStore::open(path)?;
    let life = file.load(META)?.into_iter().find(|(key, _)| key == LIFE).map(|(_, value)| value);
    let mut records = Vec::new();
    let mut is_damaged = false;
    for (_, octets) in file.load(RECORDS)? {
        match Record::restore(&octets) {
            Ok(record) => records.extend(record),
            Err(_) => is_damaged = true,
        }
    }
    if is_damaged {
        error!(path = %path.display(), "the state has records that are none: it counts as lost, and is asked of others");
    }
    let store = match life.as_deref() {
        _ if is_damaged => Stored::Lost,
        Some(b"new") => Stored::New,
        Some(_) => Stored::Kept(records),
        None if was_there && !records.is_empty() => Stored::Kept(records),
        None => Stored::Lost,
    };
    mark(&file, b"kept")?;
    Ok(State { file: Arc::new(file), store, is_damaged })
}

/// All records of a state that is open.
pub fn all(file: &FileStore) -> Result<Vec<Record>, StoreError> {
    let records = file.load(RECORDS)?;
    Ok(records.iter().filter_map(|(_, octets)| Record::decode(octets).ok()).collect())
}

/// Makes the state of a process that was just set up, and never ran.
pub fn create(path: &Path) -> Result<(), StoreError> {
    let file = FileStore::open(path)?;
    mark(&file, b"new")?;
    file.close();
    Ok(())
}

fn mark(file: &FileStore, life: &[u8]) -> Result<(), StoreError> {
    let change = Change { table: META, key: LIFE.to_vec(), value: Some(life.to_vec()) };
    file.submit(vec![change], Box::new(|| ()))
}

/// Hands records to the store, which calls `durable` once they are on disk.
pub fn submit(file: &FileStore, records: &[Record], durable: store::Durable) -> Result<(), StoreError> {
    let change = |record: &Record| Change { table: RECORDS, key: record.key(), value: Some(record.encode()) };
    file.submit(records.iter().map(change).collect(), durable)
}

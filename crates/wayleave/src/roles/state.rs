//! The state of a party and of a member: the machine's changes in the store.

use std::path::Path;
use std::sync::Arc;

use wayleave_route_server::party::{Change, StoredRecord};
use wayleave_runtime::store::{self, FileStore, Store, StoreError};

use crate::config::STATE_TABLES;

/// Opens a role's state and reads all of it.
pub fn open(path: &Path) -> Result<(Arc<FileStore>, Vec<StoredRecord>), StoreError> {
    let store = FileStore::open(path)?;
    let mut all = Vec::new();
    for table in STATE_TABLES {
        let records = store.load(table)?.into_iter();
        all.extend(records.map(|(key, value)| StoredRecord { table: table.to_owned(), key, value }));
    }
    Ok((Arc::new(store), all))
}

/// Hands a machine's changes to the store, which calls `durable` once they are on disk.
pub fn submit(store: &FileStore, changes: Vec<Change>, durable: store::Durable) -> Result<(), StoreError> {
    let change = |Change { table, key, value }| {
        debug_assert!(STATE_TABLES.contains(&table), "{table}: a table that a restart would not read");
        store::Change { table, key, value }
    };
    store.submit(changes.into_iter().map(change).collect(), durable)
}

//! Durable state: tables of byte keys and values in one redb file, written by one thread with group commit.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use redb::{Database, DatabaseError, ReadOnlyDatabase, ReadableDatabase, ReadableTable, TableDefinition, TableError};
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::faults;

/// Batches that may wait for the writer. A machine has far fewer in flight, since it waits until they are durable.
const QUEUE: usize = 16_384;
/// Changes that share one transaction, about: the last batch may exceed it.
const GROUP: usize = 65_536;
/// Pause before a failed commit is retried.
const RETRY: Duration = Duration::from_secs(1);
/// Octets of redb's cache.
const CACHE: usize = 64 << 20;

/// One change: a key's new value, or `None` to remove it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    pub table: &'static str,
    pub key: Vec<u8>,
    pub value: Option<Vec<u8>>,
}

pub type Record = (Vec<u8>, Vec<u8>);

/// Called once, from the writer's thread, when a batch is durable.
pub type Durable = Box<dyn FnOnce() + Send>;

/// The durable state of a role.
pub trait Store: Send + Sync {
    /// Queues a batch. All of it becomes durable at once, after every batch submitted before it; then `durable` is
    /// called. A commit that fails is retried until it succeeds, and meanwhile [`Store::health`] gives the reason.
    fn submit(&self, changes: Vec<Change>, durable: Durable) -> Result<(), StoreError>;

    /// All keys and values of a table, in the order of keys.
    fn load(&self, table: &'static str) -> Result<Vec<Record>, StoreError>;

    /// Whether commits succeed, and if not, why and what to do.
    fn health(&self) -> watch::Receiver<Health>;
}

/// Whether commits succeed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Health {
    #[default]
    Good,
    /// Commits fail; the text says what failed, where, and what to do.
    Failing(String),
}

/// Why the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No space is left on the file's device.
    #[error("no space is left to write {0}; make room on its file system, and writing continues by itself")]
    Full(PathBuf),
    /// Another process has the file open.
    #[error("{0} is in use by another process; stop it, or give this one another `state` file")]
    InUse(PathBuf),
    /// The file's folder is missing, or a permission is.
    #[error("{0}: {1}; check that the folder exists and that this user may write there")]
    Denied(PathBuf, io::Error),
    /// The file was damaged from outside.
    #[error(
        "{0} is damaged ({1}); check that this machine's clock is right, move the file away and start again: routes come again from members, and few-time keys wait for a slot of time that was never used"
    )]
    Damaged(PathBuf, String),
    #[error("{0}: the write queue is full ({QUEUE} batches); the disk is too slow or fails")]
    Busy(PathBuf),
    #[error("{0}: the writer thread has stopped; restart the process")]
    Stopped(PathBuf),
    #[error("{0}: {1}")]
    Other(PathBuf, redb::Error),
}

/// A [`Store`] in a redb file.
pub struct FileStore {
    path: PathBuf,
    database: Arc<Mutex<Option<Database>>>,
    queue: Option<SyncSender<Batch>>,
    health: watch::Receiver<Health>,
    /// Tells a writer that keeps retrying to give up.
    closing: Arc<AtomicBool>,
    writer: Option<JoinHandle<()>>,
}

struct Batch {
    changes: Vec<Change>,
    durable: Durable,
}

type Open = Box<dyn Fn() -> Result<Opened, StoreError> + Send>;

/// An open file.
struct Opened {
    database: Database,
    /// Whether it was repaired, as after a crash, which verified the checksums of all that is in use.
    is_verified: bool,
}

impl FileStore {
    /// Opens or makes the file (readable by its owner alone), repairs it after a crash and checks its integrity.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let at = path.to_owned();
        Self::open_with(path, Box::new(move || open_file(&at)))
    }

    fn open_with(path: &Path, open: Open) -> Result<Self, StoreError> {
        let Opened { mut database, is_verified } = open()?;
        // It takes two passes over the file: after a crash opening it took as many.
        if !is_verified && !database.check_integrity().map_err(|error| typed(path, error.into()))? {
            warn!(path = %path.display(), "the state file was damaged and has been repaired");
        }
        let database = Arc::new(Mutex::new(Some(database)));
        let (queue, batches) = sync_channel(QUEUE);
        let (health_changes, health) = watch::channel(Health::Good);
        let closing = Arc::<AtomicBool>::default();
        let writer = Writer {
            path: path.to_owned(),
            database: Arc::clone(&database),
            open,
            batches,
            health: health_changes,
            closing: Arc::clone(&closing),
        };
        let writer = std::thread::Builder::new().name("store".into()).spawn(move || writer.run());
        let writer = writer.map_err(|error| StoreError::Denied(path.to_owned(), error))?;
        Ok(Self { path: path.to_owned(), database, queue: Some(queue), health, closing, writer: Some(writer) })
    }

    /// Batches still waiting are written, and the file is closed. The same happens on drop.
    pub fn close(mut self) {
        self.finish();
    }

    fn finish(&mut self) {
        // The queue ends before the writer is joined, which ends once nothing waits and nobody can submit. The flag is for one that retries
        // in vain; it is set before that is woken, or it would sleep on.
        drop(self.queue.take());
        self.closing.store(true, Ordering::Release);
        if let Some(writer) = self.writer.take() {
            writer.thread().unpark();
            let _ = writer.join(); // a panic of the writer has been printed already
        }
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        self.finish();
    }
}

impl fmt::Debug for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileStore({})", self.path.display())
    }
}

impl Store for FileStore {
    fn submit(&self, changes: Vec<Change>, durable: Durable) -> Result<(), StoreError> {
        let stopped = || StoreError::Stopped(self.path.clone());
        let queue = self.queue.as_ref().ok_or_else(stopped)?;
        queue.try_send(Batch { changes, durable }).map_err(|error| match error {
            TrySendError::Full(_) => StoreError::Busy(self.path.clone()),
            TrySendError::Disconnected(_) => stopped(),
        })
    }

    fn load(&self, table: &'static str) -> Result<Vec<Record>, StoreError> {
        let guard = lock(&self.database);
        let database = guard.as_ref().ok_or_else(|| StoreError::Stopped(self.path.clone()))?;
        read_all(database, table).map_err(|error| typed(&self.path, error))
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }
}

struct Writer {
    path: PathBuf,
    database: Arc<Mutex<Option<Database>>>,
    open: Open,
    batches: Receiver<Batch>,
    health: watch::Sender<Health>,
    closing: Arc<AtomicBool>,
}

impl Writer {
    fn run(self) {
        let mut group = VecDeque::new();
        while let Ok(first) = self.batches.recv() {
            faults::point("store");
            group.push_back(first);
            self.gather(&mut group);
            let mut tries = 0;
            while let Err(error) = self.commit(&group) {
                self.note(&error, tries);
                tries += 1;
                if self.wait_for_retry() {
                    error!(path = %self.path.display(), "stopping: the last changes could not be written and are lost");
                    return;
                }
            }
            if tries > 0 {
                info!(path = %self.path.display(), "the state file can be written again");
                self.health.send_replace(Health::Good);
            }
            // After the commit alone, and in the order of submission: what a callback lets out relies on its batch and on all before.
            for batch in group.drain(..) {
                (batch.durable)();
            }
        }
    }

    /// Adds the batches that wait already, so that they share one transaction and one sync.
    fn gather(&self, group: &mut VecDeque<Batch>) {
        let mut changes: usize = group.iter().map(|batch| batch.changes.len()).sum();
        while changes < GROUP {
            match self.batches.try_recv() {
                Ok(batch) => {
                    changes += batch.changes.len();
                    group.push_back(batch);
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return,
            }
        }
    }

    fn commit(&self, group: &VecDeque<Batch>) -> Result<(), StoreError> {
        let mut guard = lock(&self.database);
        if guard.is_none() {
            *guard = Some((self.open)()?.database);
        }
        let database = guard.as_ref().expect("opened above");
        let committed = write_all(database, group.iter().flat_map(|batch| &batch.changes));
        committed.map_err(|error| {
            // After a failed write redb refuses further use of this handle; the next try opens the file again.
            *guard = None;
            typed(&self.path, error)
        })
    }

    fn note(&self, error: &StoreError, tries: u32) {
        if tries == 0 {
            error!("{error}; changes wait in memory, and the protocol waits for them, until they are written");
        }
        self.health.send_replace(Health::Failing(error.to_string()));
    }

    /// Waits before the next retry; `true` if the owner is closing the store. New batches stay in the queue meanwhile, whose
    /// length is bounded.
    fn wait_for_retry(&self) -> bool {
        let begin = std::time::Instant::now();
        while !self.closing.load(Ordering::Acquire) {
            let Some(left) = RETRY.checked_sub(begin.elapsed()) else { return false };
            std::thread::park_timeout(left); // may end early
        }
        true
    }
}

fn lock(database: &Mutex<Option<Database>>) -> MutexGuard<'_, Option<Database>> {
    database.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the file, or makes it: under another name first, so that a process that is killed meanwhile leaves no file that looks
/// damaged. What it leaves under that name, the next one makes anew.
fn open_file(path: &Path) -> Result<Opened, StoreError> {
    let denied = |error| StoreError::Denied(path.to_owned(), error);
    // One that is empty was never written either.
    let is_there = || fs::metadata(path).is_ok_and(|metadata| metadata.len() > 0);
    if is_there() {
        return database(path, open_private(path).map_err(denied)?);
    }
    let fresh = fresh_path(path);
    let file = open_private(&fresh).map_err(denied)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => return Err(StoreError::InUse(path.to_owned())),
        Err(fs::TryLockError::Error(error)) => return Err(denied(error)),
    }
    // Whoever had the lock before may have given the file its name since.
    if is_there() {
        drop(file);
        return database(path, open_private(path).map_err(denied)?);
    }
    file.set_len(0).map_err(denied)?;
    let copy = file.try_clone().map_err(denied)?;
    let made = database(path, file)?;
    // The content is on the disk before the name refers to it, and the name when this returns: after a power cut there is a whole file or none.
    copy.sync_all().map_err(denied)?;
    fs::rename(&fresh, path).map_err(denied)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(denied)?;
    Ok(made)
}

/// The name under which a file is made.
fn fresh_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Opens a file for its owner alone: the contents are private to the member or party. An older file with another mode is
/// restricted too.
fn open_private(path: &Path) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    Ok(file)
}

fn database(path: &Path, file: fs::File) -> Result<Opened, StoreError> {
    let is_verified = Rc::<Cell<bool>>::default();
    let mut builder = Database::builder();
    let repairs = Rc::clone(&is_verified);
    // A repair succeeds only if the checksums of all pages in use are right.
    builder.set_cache_size(CACHE).set_repair_callback(move |_| repairs.set(true));
    let made = builder.create_file(file).map_err(|error| typed(path, error.into()));
    Ok(Opened { database: made?, is_verified: is_verified.get() })
}

/// All keys and values of a table of a file that no process has open, without a change to it. `None` if there is no file, if
/// another process has it open, or if it must be repaired first, as after a crash.
///
/// # Errors
/// If the file is no state file, is damaged, or cannot be read.
pub fn peek(path: &Path, table: &'static str) -> Result<Option<Vec<Record>>, StoreError> {
    if fs::metadata(path).map_or(true, |meta| meta.len() == 0) {
        return Ok(None);
    }
    match ReadOnlyDatabase::open(path) {
        Ok(database) => read_all(&database, table).map(Some).map_err(|error| typed(path, error)),
        Err(DatabaseError::DatabaseAlreadyOpen | DatabaseError::RepairAborted) => Ok(None),
        Err(error) => Err(typed(path, error.into())),
    }
}

/// Whether a process has the file open, such as a role that runs.
///
/// # Errors
/// If the file is no state file, is damaged, or cannot be read.
pub fn is_open(path: &Path) -> Result<bool, StoreError> {
    if fs::metadata(path).map_or(true, |meta| meta.len() == 0) {
        return Ok(false);
    }
    match ReadOnlyDatabase::open(path) {
        Ok(_) | Err(DatabaseError::RepairAborted) => Ok(false),
        Err(DatabaseError::DatabaseAlreadyOpen) => Ok(true),
        Err(error) => Err(typed(path, error.into())),
    }
}

fn read_all(database: &impl ReadableDatabase, table: &'static str) -> Result<Vec<Record>, redb::Error> {
    let transaction = database.begin_read()?;
    let table = match transaction.open_table(definition(table)) {
        Ok(table) => table,
        Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut all = Vec::new();
    for entry in table.iter()? {
        let (key, value) = entry?;
        all.push((key.value().to_vec(), value.value().to_vec()));
    }
    Ok(all)
}

fn write_all<'a>(database: &Database, changes: impl Iterator<Item = &'a Change>) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?; // durable on commit, by redb's default
    // In the order of submission, not sorted by table: of two changes of one key the later one counts.
    let mut changes = changes.peekable();
    while let Some(first) = changes.peek() {
        let name = first.table;
        let mut table = transaction.open_table(definition(name))?;
        while let Some(change) = changes.next_if(|change| change.table == name) {
            match &change.value {
                Some(value) => table.insert(change.key.as_slice(), value.as_slice())?,
                None => table.remove(change.key.as_slice())?,
            };
        }
    }
    transaction.commit()?;
    Ok(())
}

fn definition(table: &'static str) -> TableDefinition<'static, &'static [u8], &'static [u8]> {
    TableDefinition::new(table)
}

/// Sorts redb's errors by what the operator can do about them.
fn typed(path: &Path, error: redb::Error) -> StoreError {
    let path = path.to_owned();
    match error {
        redb::Error::Io(error) => match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                StoreError::Full(path)
            }
            io::ErrorKind::InvalidData => StoreError::Damaged(path, error.to_string()),
            _ => StoreError::Denied(path, error),
        },
        redb::Error::DatabaseAlreadyOpen => StoreError::InUse(path),
        redb::Error::Corrupted(what) => StoreError::Damaged(path, what),
        other => StoreError::Other(path, other),
    }
}

#[cfg(test)]
mod tests {
    //! OPS, state file, an octet: an octet changed in a file that was closed, and in one that a kill left: refused as
    //! damaged.
    //! OPS, state files: copies of a file at any moment while it is made, as after a kill, and two processes that make
    //! one: it is whole whenever it is there; one has it.

    use std::sync::mpsc;

    use redb::StorageBackend;
    use redb::backends::InMemoryBackend;

    use super::*;

    /// A folder that goes with the test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("wayleave-store-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(&folder).expect("a folder");
            Self(folder)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn put(key: &str, value: &str) -> Change {
        Change { table: "words", key: key.into(), value: Some(value.into()) }
    }

    fn apply(store: &FileStore, changes: Vec<Change>) {
        let (done, durable) = mpsc::channel();
        store.submit(changes, Box::new(move || done.send(()).expect("the test waits"))).expect("queued");
        durable.recv_timeout(Duration::from_secs(20)).expect("durable");
    }

    #[test]
    fn what_was_durable_is_there_after_reopening() {
        let scratch = Scratch::new("reopen");
        let path = scratch.0.join("reopen.redb");
        let store = FileStore::open(&path).expect("opened");
        apply(&store, vec![put("a", "1"), put("b", "2"), Change { table: "words", key: b"a".to_vec(), value: None }]);
        store.close();
        let store = FileStore::open(&path).expect("opened");
        assert_eq!(store.load("words").expect("loaded"), [(b"b".to_vec(), b"2".to_vec())]);
        assert_eq!(store.load("nothing").expect("loaded"), []);
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o077, 0);
    }

    /// Another thread sees the folder as a process finds it that starts after a kill.
    #[test]
    fn a_file_that_is_there_is_whole_whenever_its_maker_is_killed() {
        let scratch = Scratch::new("made");
        let copy = scratch.0.join("copy.redb");
        let path = |number: usize| scratch.0.join(format!("{number}.redb"));
        std::thread::scope(|scope| {
            scope.spawn(|| (0..30).for_each(|number| FileStore::open(&path(number)).expect("made").close()));
            for number in 0..30 {
                // What a kill leaves is the file between two writes. A read that one overtakes has a part of each.
                let read = || fs::read(path(number)).ok();
                let found = loop {
                    match (read(), read()) {
                        (Some(found), Some(again)) if found == again => break found,
                        _ => {}
                    }
                };
                fs::write(&copy, found).expect("copied");
                let opened = copy.metadata().expect("there").len() > 0 && FileStore::open(&copy).is_ok();
                assert!(opened, "{number}");
            }
        });
        // What was left half made is made anew, and so is an empty file; nothing else stays in the folder.
        for (number, left, name) in [(40, &[0u8; 4096][..], fresh_path(&path(40))), (41, &[][..], path(41))] {
            fs::write(&name, left).expect("written");
            let store = FileStore::open(&path(number)).expect("made");
            apply(&store, vec![put("a", "1")]);
            store.close();
            assert_eq!(FileStore::open(&path(number)).expect("opened").load("words").expect("loaded").len(), 1);
            assert!(!fresh_path(&path(number)).exists());
        }
    }

    #[test]
    fn of_two_that_make_one_file_one_has_it() {
        let scratch = Scratch::new("race");
        for number in 0..20 {
            let path = scratch.0.join(format!("{number}.redb"));
            let open = || FileStore::open(&path);
            let (first, second) = std::thread::scope(|scope| {
                let other = scope.spawn(open);
                (open(), other.join().expect("no panic"))
            });
            let mut both = [first, second];
            both.sort_by_key(Result::is_err);
            assert!(matches!(&both, [Ok(_), Err(StoreError::InUse(_))]), "{both:?}");
        }
    }

    #[test]
    fn a_second_process_and_a_foreign_file_are_refused_with_the_reason() {
        let scratch = Scratch::new("held");
        let path = scratch.0.join("held.redb");
        let _store = FileStore::open(&path).expect("opened");
        assert!(matches!(FileStore::open(&path), Err(StoreError::InUse(_))));
        let path = scratch.0.join("foreign.redb");
        fs::write(&path, b"not a database, but long enough to look at".repeat(200)).expect("written");
        assert!(matches!(FileStore::open(&path), Err(StoreError::Damaged(..))));
        let nowhere = FileStore::open(Path::new("/nonexistent/folder/x.redb"));
        assert!(matches!(nowhere, Err(StoreError::Denied(..))));
    }

    /// As it lies there after a clean end, and as a process leaves it that is killed.
    #[test]
    fn an_octet_that_changed_is_found_whether_the_file_was_closed_or_left_by_a_kill() {
        let scratch = Scratch::new("rot");
        let (path, left) = (scratch.0.join("rot.redb"), scratch.0.join("left.redb"));
        let value = "a value that is there once ".repeat(20);
        let store = FileStore::open(&path).expect("opened");
        apply(&store, vec![put("a", &value)]);
        apply(&store, vec![put("b", "2")]);
        fs::copy(&path, &left).expect("copied");
        store.close();
        for (path, was_left) in [(&path, false), (&left, true)] {
            assert_eq!(open_file(path).expect("opened").is_verified, was_left);
            if was_left {
                // Whoever opened it has closed it since.
                fs::copy(scratch.0.join("kept.redb"), path).expect("copied");
            } else {
                fs::copy(&left, scratch.0.join("kept.redb")).expect("copied");
            }
            let mut octets = fs::read(path).expect("read");
            // The page of the commit before is there, too: a repair goes back to that one.
            let is_value = |at: &usize| octets[*at..].starts_with(value.as_bytes());
            let places: Vec<usize> = (0..octets.len()).filter(is_value).collect();
            assert!(!places.is_empty());
            places.iter().for_each(|at| octets[at + 100] ^= 1);
            fs::write(path, octets).expect("written");
            assert!(matches!(FileStore::open(path), Err(StoreError::Damaged(..))), "{was_left}");
        }
    }

    fn eventually(holds: impl Fn() -> bool) {
        let begin = std::time::Instant::now();
        while !holds() {
            assert!(begin.elapsed() < Duration::from_secs(20), "never");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A device that is full while the flag is up.
    #[derive(Debug)]
    struct SmallDisk {
        inner: Arc<InMemoryBackend>,
        full: Arc<AtomicBool>,
    }

    impl SmallDisk {
        fn check(&self) -> io::Result<()> {
            if self.full.load(Ordering::SeqCst) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        }
    }

    impl StorageBackend for SmallDisk {
        fn len(&self) -> io::Result<u64> {
            self.inner.len()
        }
        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.inner.read(offset, out)
        }
        fn set_len(&self, len: u64) -> io::Result<()> {
            self.check()?;
            self.inner.set_len(len)
        }
        fn sync_data(&self) -> io::Result<()> {
            self.check()?;
            self.inner.sync_data()
        }
        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.check()?;
            self.inner.write(offset, data)
        }
    }

    #[test]
    fn a_full_disk_is_reported_and_writing_continues_once_there_is_space() {
        let (inner, full) = (Arc::new(InMemoryBackend::new()), Arc::new(AtomicBool::new(false)));
        let path = Path::new("small.redb");
        let open = {
            let (inner, full) = (Arc::clone(&inner), Arc::clone(&full));
            move || {
                let disk = SmallDisk { inner: Arc::clone(&inner), full: Arc::clone(&full) };
                let made = Database::builder().create_with_backend(disk).map_err(|error| typed(path, error.into()));
                Ok(Opened { database: made?, is_verified: false })
            }
        };
        let store = FileStore::open_with(path, Box::new(open)).expect("opened");
        apply(&store, vec![put("a", "1")]);
        full.store(true, Ordering::SeqCst);
        let (done, durable) = mpsc::channel();
        store.submit(vec![put("b", "2")], Box::new(move || done.send(()).expect("the test waits"))).expect("queued");
        assert!(durable.recv_timeout(Duration::from_millis(300)).is_err());
        let Health::Failing(why) = store.health().borrow().clone() else { panic!("not failing") };
        assert!(why.contains("no space") && why.contains("small.redb") && why.contains("make room"), "{why}");
        // More than the queue holds is refused, not piled up beside it.
        let refused = (0..=QUEUE + 1).find_map(|_| store.submit(vec![put("c", "3")], Box::new(|| ())).err());
        assert!(matches!(refused, Some(StoreError::Busy(_))));
        full.store(false, Ordering::SeqCst);
        durable.recv_timeout(Duration::from_secs(20)).expect("durable at last");
        eventually(|| store.load("words").expect("loaded").len() == 3);
        assert_eq!(*store.health().borrow(), Health::Good);
        full.store(true, Ordering::SeqCst);
        store.submit(vec![put("d", "4")], Box::new(|| ())).expect("queued");
        eventually(|| *store.health().borrow() != Health::Good);
        store.close(); // a writer that cannot write does not keep its owner
    }
}

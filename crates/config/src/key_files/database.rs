//! The records of a provider's key servers in a database, for programs that wait for each step.
//!
//! The database is used on a thread of its own. What was seen of it last is remembered in a file, so that one that was set back is refused
//! also after a restart.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use wayleave_control::capability::{Change, KeyServer, ProviderKey, RowEffects, State};
use wayleave_core::UnixTime;
use wayleave_core::wire::{decode, encode};
use wayleave_crypto::signed::Signed;
use wayleave_store::{
    Appended, Barred, Loaded, Location, Note, Position, Recorded, Store, StoreError, StoreKey, patiently,
};

use super::private::sync_folder;
use crate::failure::{Failure, Failures};
use crate::replace::give_to_owner;

/// Steps that may wait for the thread.
const WAITING: usize = 64;
/// How long the database may take for a step before it counts as one that cannot be used; loading everything may take longer.
const ANSWERS: Duration = Duration::from_secs(10);
const LOADS: Duration = Duration::from_secs(600);
/// Of connections that are closed.
const CLOSES: Duration = Duration::from_secs(2);
/// Of an import, or of a whole statement, which nobody waits behind.
const IMPORTS: Duration = Duration::from_secs(86_400);

type Step = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A database with what was seen of it.
#[derive(Debug)]
pub struct DatabaseRecords {
    store: Store,
    steps: mpsc::Sender<Step>,
    provider: ProviderKey,
    /// Where the state ends that was taken over.
    position: Position,
    seen: SeenFile,
    /// When it was last known where the changes end.
    read: Instant,
    outage: Option<Outage>,
}

/// Since when the database cannot be used, and why.
#[derive(Clone, Debug)]
pub struct Outage {
    pub since: Instant,
    pub why: String,
}

/// What others wrote.
#[derive(Default)]
pub struct Unread {
    /// A state to go on from.
    pub state: Option<Box<State>>,
    pub changes: Vec<Signed<Change>>,
}

impl DatabaseRecords {
    /// Connects, and loads the state. Where `waits` is given, a database that cannot be used yet is waited for, which that is told with the
    /// reason ([`patiently`]).
    ///
    /// # Errors
    /// If the database cannot be used, was changed by somebody else, or is behind what `seen` says.
    pub fn open(
        place: &Location,
        provider: &ProviderKey,
        seen: &Path,
        waits: Option<fn(&StoreError)>,
    ) -> Result<(Self, State), Failure> {
        let seen = SeenFile::read(seen)?;
        let steps = start()?;
        let (key, of_provider, held) = (StoreKey::new(provider.store_key()), provider.clone(), seen.position);
        let at = place.clone();
        let opened = run((&steps, LOADS), async move {
            let open = || async {
                let store = Store::open(&at, key.clone()).await?;
                let loaded = store.load(&of_provider, held.as_ref()).await?;
                Ok::<_, StoreError>((store, loaded))
            };
            match waits {
                Some(waits) => patiently(&at, open, waits).await,
                None => open().await,
            }
        });
        let (store, Loaded { state, position }) = opened?.map_err(|error| refused(place, &error))?;
        let provider = provider.clone();
        let mut records = Self { store, steps, provider, position, seen, read: Instant::now(), outage: None };
        records.seen.remember(position)?;
        Ok((records, state))
    }

    /// The number of its last change, if it is in order; nothing is written.
    ///
    /// # Errors
    /// If it cannot be used, was changed by somebody else, or is behind what `seen` says.
    pub fn look(place: &Location, provider: &ProviderKey, seen: &Path) -> Result<u64, Unseen> {
        let seen = SeenFile::read(seen).map_err(Unseen::Wrong)?;
        let (at, of_provider, held) = (place.clone(), provider.clone(), seen.position);
        let steps = start().map_err(Unseen::Wrong)?;
        let looked = run((&steps, LOADS), async move {
            let store = Store::open(&at, StoreKey::new(of_provider.store_key())).await?;
            let loaded = store.load(&of_provider, held.as_ref()).await;
            store.close().await;
            loaded.map(|loaded| loaded.position.number)
        });
        looked.map_err(Unseen::Wrong)?.map_err(|error| Unseen::of(place, &error))
    }

    /// The changes behind one, or the last ones, `most` of them.
    ///
    /// # Errors
    /// If the database cannot be used, or was changed by somebody else.
    pub fn trail(
        place: &Location,
        provider: &ProviderKey,
        after: Option<u64>,
        most: usize,
        principal: Option<u32>,
    ) -> Result<Vec<Recorded>, Failure> {
        let (at, key) = (place.clone(), StoreKey::new(provider.store_key()));
        let read = run((&start()?, LOADS), async move {
            let store = Store::open(&at, key).await?;
            let trail = store.trail(after, most, principal).await;
            store.close().await;
            trail
        });
        read?.map_err(|error| refused(place, &error))
    }

    /// Makes the tables in a database that has none, and a SQLite file.
    ///
    /// # Errors
    /// If that is not possible.
    pub fn create(place: &Location, provider: &ProviderKey) -> Result<(), Failure> {
        let (at, key) = (place.clone(), StoreKey::new(provider.store_key()));
        let created = run((&start()?, ANSWERS), async move {
            Store::create(&at, key).await?.close().await;
            Ok(())
        })?;
        created.map_err(|error| refused(place, &error))
    }

    /// A copy of a SQLite file as it is at one moment, while others write to it.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn copy(file: &Path) -> Result<Vec<u8>, Failure> {
        let place = Location::File(file.to_owned());
        let mut name = file.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.copy", std::process::id()));
        let (at, to) = (place.clone(), file.with_file_name(name));
        let into = to.clone();
        let copied = run((&start()?, LOADS), async move { Store::copy(&at, &into).await })?;
        let octets = copied.map_err(|error| refused(&place, &error)).and_then(|()| {
            let read = fs::read(&to);
            read.map_err(|error| Failure::system(to.display(), &error))
        });
        let _ = fs::remove_file(&to);
        octets
    }

    /// Brings a state into a database that has none. Returns how many rows it has.
    ///
    /// # Errors
    /// If the database has one already, or cannot be used.
    pub fn import(
        place: &Location,
        (provider, seen): (&ProviderKey, &Path),
        state: &State,
        by: &str,
        now: UnixTime,
    ) -> Result<usize, Failure> {
        let mut seen = SeenFile::read(seen)?;
        let (rows, at, key) = (state.rows(), place.clone(), StoreKey::new(provider.store_key()));
        let number = state.number();
        let position = Position { timeline: 0, number, digest: state.last() };
        if let Some(held) = seen.position.filter(|held| (held.timeline, held.number) > (0, number)) {
            let path = seen.path.display();
            let message =
                format!("{path} is of a database with change {}, and the file ends with change {number}", held.number);
            return Err(Failure::new(message).help(format!(
                "take the file as it was last; if that database was only a trial, remove it and {path}, and import again"
            )));
        }
        // Lists of revocations are told apart by the time of their last change: it stays, but for that of a clock that was ahead, by which
        // revocations would seem to have expired.
        let issued = state.times().seconds.last().copied().unwrap_or(now.secs()).min(state.settled());
        let (by, count) = (by.to_owned(), rows.len());
        let imported = run((&start()?, IMPORTS), async move {
            let store = Store::create(&at, key).await?;
            let note = Note { actor: &by, reason: "brought over from a file of records" };
            let imported = store.import(&rows, position, (issued, note)).await;
            store.close().await;
            imported
        });
        imported?.map_err(|error| refused(place, &error))?;
        seen.remember(position)?;
        Ok(count)
    }

    /// Takes a database over that was set back: its state counts from now on.
    ///
    /// # Errors
    /// If it cannot be used, or was changed by somebody else.
    pub fn adopt(
        place: &Location,
        (provider, seen): (&ProviderKey, &Path),
        (by, reason): (&str, &str),
        now: UnixTime,
    ) -> Result<Position, Failure> {
        let mut seen = SeenFile::read(seen)?;
        let (at, of_provider, held) = (place.clone(), provider.clone(), seen.position);
        let (by, reason) = (by.to_owned(), reason.to_owned());
        let adopted = run((&start()?, LOADS), async move {
            let store = Store::open(&at, StoreKey::new(of_provider.store_key())).await?;
            let note = Note { actor: &by, reason: &reason };
            let adopted = store.adopt(&of_provider, (held, now.secs()), note).await;
            store.close().await;
            adopted
        });
        let position = adopted?.map_err(|error| refused(place, &error))?;
        seen.remember(position)?;
        Ok(position)
    }

    /// Does something with a store that needs no state: with what routers reported.
    ///
    /// # Errors
    /// If the database cannot be used, or was changed by somebody else.
    pub fn with_store<T: Send + 'static, F: Future<Output = Result<T, StoreError>> + Send + 'static>(
        place: &Location,
        provider: &ProviderKey,
        step: impl FnOnce(Store) -> F + Send + 'static,
    ) -> Result<T, Failure> {
        let (at, key) = (place.clone(), StoreKey::new(provider.store_key()));
        let done = run((&start()?, IMPORTS), async move {
            let store = Store::open(&at, key).await?;
            let done = step(store.clone()).await;
            store.close().await;
            done
        });
        done?.map_err(|error| refused(place, &error))
    }

    /// Since when it cannot be used.
    pub fn outage(&self) -> Option<&Outage> {
        self.outage.as_ref()
    }

    /// Where the changes end that were taken over.
    pub fn position(&self) -> Position {
        self.position
    }

    /// When it was last known where the changes end, and all were taken over.
    pub fn last_read(&self) -> Instant {
        self.read
    }

    /// What was written since this was last called; nothing while the database cannot be used ([`Self::outage`]).
    ///
    /// # Errors
    /// If it was set back, or changed by somebody else.
    pub fn read_new(&mut self) -> Result<Unread, Failure> {
        let mut unread = Unread::default();
        loop {
            let (store, held) = (self.store.clone(), self.position);
            let read = run((&self.steps, ANSWERS), async move { store.changes_after(&held).await })?;
            let Some(recorded) = self.noted(read)? else { return Ok(unread) };
            let Some(last) = recorded.last().map(|last| last.position) else {
                self.is_up_to_date();
                return Ok(unread);
            };
            // An adoption begins a new timeline; what led to it is in the state.
            if recorded.iter().any(|of| of.change.is_none()) {
                let (store, provider) = (self.store.clone(), self.provider.clone());
                let loaded = run((&self.steps, LOADS), async move { store.load(&provider, Some(&held)).await })?;
                let Some(Loaded { state, position }) = self.noted(loaded)? else { return Ok(unread) };
                if !self.remembered(position) {
                    return Ok(unread);
                }
                unread = Unread { state: Some(Box::new(state)), changes: Vec::new() };
                continue;
            }
            if !self.remembered(last) {
                return Ok(unread);
            }
            unread.changes.extend(recorded.into_iter().filter_map(|Recorded { change, .. }| change));
        }
    }

    /// Makes a change durable, unless others were written before: those are returned, and nothing is written. `effects` and `settled` are
    /// those of the state for which it was decided.
    ///
    /// # Errors
    /// If it was not written, or that is not known.
    pub fn append(
        &mut self,
        change: &Signed<Change>,
        (effects, settled): (RowEffects, u64),
        (by, reason): (&str, &str),
    ) -> Result<Unread, Failure> {
        let (store, held, signed) = (self.store.clone(), self.position, change.clone());
        let (by, reason) = (by.to_owned(), reason.to_owned());
        let appended = run((&self.steps, ANSWERS), async move {
            let note = Note { actor: &by, reason: &reason };
            store.append(&held, &signed, &effects, (settled, note)).await
        })?;
        // What is wrong with a row of one principal stops nobody else.
        if let Err(error) = &appended
            && error.is_outage()
        {
            self.outage = Some(Outage { since: self.read, why: refused(self.store.place(), error).to_string() });
        }
        match appended.map_err(|error| refused(self.store.place(), &error))? {
            Appended::Others => {
                let unread = self.read_new()?;
                if unread.is_empty() {
                    Err(Failure::new("others change the database all the time"))
                } else {
                    Ok(unread)
                }
            }
            Appended::Done => {
                let (number, digest) = (change.object().number, change.digest());
                let position = Position { number, digest, ..self.position };
                // If that fails the change is not taken for made here: it comes with those of others.
                self.seen.remember(position)?;
                self.position = position;
                Ok(Unread::default())
            }
        }
    }

    /// What came of a step; `None` if the database cannot be used now, or is refused: memory is answered from meanwhile, and it is tried
    /// again.
    fn noted<T>(&mut self, outcome: Result<T, StoreError>) -> Result<Option<T>, Failure> {
        match outcome {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                let why = refused(self.store.place(), &error).to_string();
                self.outage = Some(Outage { since: self.read, why });
                Ok(None)
            }
        }
    }

    /// It is known where the changes end, and all are taken over.
    fn is_up_to_date(&mut self) {
        (self.read, self.outage) = (Instant::now(), None);
    }

    /// Remembers what was seen; `false` if the disk does not take it, and then it is not taken over either.
    fn remembered(&mut self, position: Position) -> bool {
        match self.seen.remember(position) {
            Ok(()) => {
                self.position = position;
                true
            }
            Err(failure) => {
                self.outage = Some(Outage { since: self.read, why: failure.to_string() });
                false
            }
        }
    }
}

impl Drop for DatabaseRecords {
    fn drop(&mut self) {
        let store = self.store.clone();
        // What is not closed by then is closed by the system.
        let _ = run((&self.steps, CLOSES), async move {
            store.close().await;
            Ok(())
        });
    }
}

impl Unread {
    pub fn is_empty(&self) -> bool {
        self.state.is_none() && self.changes.is_empty()
    }

    /// Takes them over.
    ///
    /// # Errors
    /// If they do not continue the server's state.
    pub fn apply(self, server: &mut KeyServer) -> Result<(), Failure> {
        if let Some(state) = self.state {
            server.replace(*state);
        }
        for change in self.changes {
            let applied = server.apply(&change);
            applied.map_err(|error| Failure::new(format!("the database cannot be followed: {error}")))?;
        }
        Ok(())
    }
}

/// What was seen last, in a file.
#[derive(Debug)]
struct SeenFile {
    path: PathBuf,
    position: Option<Position>,
}

impl SeenFile {
    fn read(path: &Path) -> Result<Self, Failure> {
        let position = match fs::read(path) {
            Ok(octets) => Some(decode(&octets).map_err(|_| {
                Failure::new(format!("{} does not say what was seen of the database", path.display()))
                    .help("restore the file from a backup; if the database was not set back since, delete it")
            })?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(Failure::system(path.display(), &error)),
        };
        Ok(Self { path: path.to_owned(), position })
    }

    /// In the place of what was there, before anything that follows from it is acknowledged. Of several processes the highest stays.
    fn remember(&mut self, position: Position) -> Result<(), Failure> {
        if self.position.is_some_and(|held| held.order() >= position.order()) {
            return Ok(());
        }
        let system = |error| Failure::system(self.path.display(), &error);
        if let Ok(octets) = fs::read(&self.path)
            && decode::<Position>(&octets).is_ok_and(|held| held.order() > position.order())
        {
            return Ok(());
        }
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.new", std::process::id()));
        let new = self.path.with_file_name(name);
        let _ = fs::remove_file(&new); // of a process of this number that was killed
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
        let written = made.and_then(|mut file| {
            let _ = give_to_owner(&file, &self.path); // fails if this is not root, and then it is its own
            file.write_all(&encode(&position)).and_then(|()| file.sync_all())
        });
        let placed = written.and_then(|()| fs::rename(&new, &self.path));
        placed.inspect_err(|_| drop(fs::remove_file(&new))).map_err(system)?;
        let first = |failures: Failures| failures.0.into_iter().next();
        sync_folder(&self.path).map_err(|failures| first(failures).unwrap_or_else(ended))?;
        self.position = Some(position);
        Ok(())
    }
}

/// Why a look at a database showed nothing.
#[derive(Debug)]
pub enum Unseen {
    /// PostgreSQL cannot be used now, and a server that starts waits for it.
    Waits(Failure),
    Wrong(Failure),
}

impl Unseen {
    fn of(place: &Location, error: &StoreError) -> Self {
        let failure = refused(place, error);
        // A file is there, or is not.
        let waits = error.is_passing() && matches!(place, Location::Postgres(_));
        if waits { Self::Waits(failure) } else { Self::Wrong(failure) }
    }
}

/// Starts the thread that uses the database.
fn start() -> Result<mpsc::Sender<Step>, Failure> {
    let (steps, mut next) = mpsc::channel::<Step>(WAITING);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::system("cannot use the database", &error))?;
    let thread = std::thread::Builder::new().name("database".to_owned());
    let run = move || {
        runtime.block_on(async {
            while let Some(step) = next.recv().await {
                step.await;
            }
        });
    };
    thread.spawn(run).map_err(|error| Failure::system("cannot use the database", &error))?;
    Ok(steps)
}

/// Has the thread do something, and waits for it.
fn run<T: Send + 'static>(
    (steps, within): (&mpsc::Sender<Step>, Duration),
    step: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<Result<T, StoreError>, Failure> {
    let (done, outcome) = sync_channel(1);
    let mut step: Step = Box::pin(async move {
        let silent = |_| Err(StoreError::Unavailable("it does not answer".to_owned()));
        let _ = done.send(tokio::time::timeout(within, step).await.unwrap_or_else(silent)); // fails if nobody waits any more
    });
    // Within an asynchronous task nothing may wait by itself.
    while let Err(error) = steps.try_send(step) {
        match error {
            mpsc::error::TrySendError::Full(back) => step = back,
            mpsc::error::TrySendError::Closed(_) => return Err(ended()),
        }
        std::thread::yield_now();
    }
    outcome.recv().map_err(|_| ended())
}

fn ended() -> Failure {
    Failure::new("what uses the database has ended: a bug, please report it with the lines above")
}

/// What is wrong, and what to do.
fn refused(place: &Location, error: &StoreError) -> Failure {
    let failure = Failure::new(format!("{place}: {error}"));
    match error {
        StoreError::Unavailable(_) => failure.help("nothing was changed, or the change shows when the database is back: repeat it"),
        StoreError::Barred { barred, .. } => failure.help(match barred {
            Barred::User => "mend the user or the password in `database`, or let the user in by pg_hba.conf",
            Barred::Database => "mend the name in `database`, or create the database, or restore it from a backup",
            Barred::Tables => "give the user of `database` the rights on the tables again, or restore them from a backup",
        }),
        StoreError::Missing => failure.help(
            "these are the provider's accounts and revocations: restore it from a backup; without them revoked capabilities would work \
             again. `wayleave cap import` brings in the file of records of an earlier version, and `wayleave cap init` begins new ones",
        ),
        StoreError::Imported => failure.help(
            "if it has what is to be imported, start the key server; to import again, remove the database and the file `position` before",
        ),
        StoreError::Used => failure.help(
            "if key servers wrote it since the upgrade, add --replace: routers report again what they have",
        ),
        StoreError::Stated => failure.help(
            "the file of an earlier version is brought in before time is closed here: close the same time by hand, and keep the file",
        ),
        StoreError::Schema(_) => failure.help("name a database of a key server of this version, or restore one"),
        StoreError::Row { .. } | StoreError::Rows(_) | StoreError::State(_) => failure.help(
            "somebody without the key servers' secret changed the database, or it is damaged: restore it from a backup, and look who can \
             write to it",
        ),
        StoreError::Behind { .. } | StoreError::Fork(_) => failure.help(
            "restore the database as it was last; if that is lost, `wayleave cap adopt` accepts this one: revoke again what was revoked \
             since",
        ),
        StoreError::Gone(_) => failure.help("restore the file, and start this program again"),
        StoreError::Removed(number) => {
            failure.help(format!("the folder of `wayleave cap statements --export` has it as statement-{number}.json, and signed"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_postgresql_that_may_be_starting_is_waited_for_and_nothing_else_is() {
        let postgres = Location::parse("postgresql://key@db.example.net/wayleave").expect("a place");
        let file = Location::parse("key.db").expect("a place");
        let down = StoreError::Unavailable("the database system is starting up".to_owned());
        let barred = StoreError::Barred { barred: Barred::User, said: "no password".to_owned() };
        assert!(matches!(Unseen::of(&postgres, &down), Unseen::Waits(_)));
        for (place, error) in [(&postgres, &barred), (&postgres, &StoreError::Rows(7)), (&file, &down)] {
            assert!(matches!(Unseen::of(place, error), Unseen::Wrong(_)), "{place}: {error}");
        }
        let Unseen::Wrong(failure) = Unseen::of(&postgres, &barred) else { panic!("it is wrong") };
        assert!(failure.to_string().contains("does not take the user or the password"), "{failure}");
        assert!(failure.remedy().is_some_and(|help| help.contains("pg_hba.conf")));
    }
}

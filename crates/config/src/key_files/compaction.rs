//! Writes a compacted file of records beside the one in use, and puts it in its place.
//!
//! Whatever interrupts it, the file in use is whole: the new one is durable before it takes the place, and what is left of an earlier
//! attempt is written over. Changes that are appended meanwhile are in the new file too.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use wayleave_control::capability::{SnapshotHead, State};
use wayleave_core::UnixTime;
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::Signed;

use super::changes::Changes;
use super::private::{sync_folder, temporary};
use super::records::{COMPACTED, Layout, Lock, is_in_place, record, split_changes};
use crate::failure::{Failure, Outcome};

/// A file is compacted once its changes have this many octets at least, and so many times those of its snapshot.
const LEAST: u64 = 256 << 10;
const TIMES: u64 = 4;

/// What a compaction did.
#[derive(Clone, Copy, Debug)]
pub struct Compacted {
    /// The last change that is in the snapshot.
    pub number: u64,
    /// Octets of the file before and after.
    pub before: u64,
    pub after: u64,
}

/// Compacts the records in `path`, whose state is `state` after all of `changes`: each of them was verified, since a snapshot is as
/// good as what it was made of.
pub fn compact(path: &Path, state: &State, changes: Changes, signer: &SigningKey, now: UnixTime) -> Outcome<Compacted> {
    let system = |error: io::Error| Failure::system(path.display(), &error);
    let before = fs::metadata(path).map_err(system)?.len();
    let head = head_of(state, signer, now)?;
    let mut new = NewRecords::begin(path, &head)?;
    let written = state.snapshot(signer, now, |piece| new.piece(piece))?;
    if written.as_ref() != Some(&head) {
        return Err(Failure::new("the state changed while its snapshot was made: a bug, please report it").into());
    }
    let after = new.finish(changes)?;
    Ok(Compacted { number: state.number(), before, after })
}

fn head_of(state: &State, signer: &SigningKey, now: UnixTime) -> Result<Signed<SnapshotHead>, Failure> {
    let Ok(head) = state.snapshot(signer, now, |_| Ok::<(), std::convert::Infallible>(()));
    head.ok_or_else(|| Failure::new("there are more accounts than a snapshot can hold"))
}

/// Whether the changes in the file are so many that it should be compacted.
pub fn is_due(path: &Path) -> Result<bool, Failure> {
    let system = |error| Failure::system(path.display(), &error);
    let file = File::open(path).map_err(system)?;
    let Layout { base, changes_at } = Layout::read(&file, path)?;
    let changes = file.metadata().map_err(system)?.len().saturating_sub(changes_at);
    let snapshot = base.map_or(0, |base| base.head.object().octets());
    Ok(changes >= LEAST.max(snapshot.saturating_mul(TIMES)))
}

/// A file that will take the place of the records.
pub struct NewRecords {
    path: PathBuf,
    new: PathBuf,
    file: File,
    head: Signed<SnapshotHead>,
    is_in_use: bool,
    /// No other compaction writes to it.
    _lock: Lock,
}

impl Drop for NewRecords {
    fn drop(&mut self) {
        // What was not finished takes room on a disk that may be full.
        if !self.is_in_use {
            let _ = fs::remove_file(&self.new);
        }
    }
}

impl NewRecords {
    /// Begins the file with a snapshot's head. What an interrupted attempt left is written over.
    pub fn begin(path: &Path, head: &Signed<SnapshotHead>) -> Result<Self, Failure> {
        // Beside the file itself, not beside a link to it.
        let path = &fs::canonicalize(path).map_err(|error| Failure::system(path.display(), &error))?;
        let new = temporary(path);
        let system = |error: io::Error| Failure::system(new.display(), &error);
        // Not truncated before it is locked: another process may be writing it.
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&new);
        let file = opened.map_err(system)?;
        let busy = || Failure::new(format!("{} is being compacted by another process", path.display()));
        let lock = Lock::take(&file)
            .map_err(|error| if error.kind() == ErrorKind::WouldBlock { busy() } else { system(error) })?;
        if !is_in_place(&file, &new).map_err(system)? || !new.exists() {
            return Err(busy());
        }
        file.set_len(0).map_err(system)?;
        let made =
            Self { path: path.clone(), file, head: head.clone(), new: new.clone(), is_in_use: false, _lock: lock };
        let mut file = &made.file;
        // Whoever reads the records, and perhaps is not who compacts them, has to be able to go on.
        let like = fs::metadata(path).map_err(system)?;
        if let Err(error) = fchown(file, Some(like.uid()), Some(like.gid())) {
            return Err(Failure::system(
                format!("{} cannot be given to the owner of the records", new.display()),
                &error,
            )
            .help("run the command as that user, or as root"));
        }
        file.set_permissions(like.permissions()).map_err(system)?;
        let octets = head.octets();
        let length = (octets.len() as u32).to_be_bytes(); // at most `SnapshotHead::MAX`
        file.write_all(&[&COMPACTED[..], &length, octets].concat()).map_err(system)?;
        Ok(made)
    }

    fn system(&self, error: &io::Error) -> Failure {
        Failure::system(self.new.display(), error)
    }

    /// Appends a piece.
    pub fn piece(&mut self, piece: &[u8]) -> Result<(), Failure> {
        self.file.write_all(piece).map_err(|error| self.system(&error))
    }

    /// Appends the changes behind the snapshot that the file in use has, and puts this one in its place. Returns its octets.
    ///
    /// # Errors
    /// If the records do not continue the snapshot, or have a later one; or what the system said. The file in use is as before.
    pub fn finish(mut self, mut changes: Changes) -> Result<u64, Failure> {
        let unread = self.read_ahead(&mut changes)?;
        let copied = self.copy_ahead(unread)?;
        self.place(&mut changes, copied)
    }

    /// Reads the changes that the file in use has by now. It is locked only meanwhile, so that no change is read whose writer takes it
    /// back.
    fn read_ahead(&self, changes: &mut Changes) -> Result<Unread, Failure> {
        let in_use = changes.lock()?;
        let unread = self.unread()?;
        drop(in_use);
        Ok(unread)
    }

    /// Copies them, and makes all of this file durable. That may take long, and others append meanwhile: nothing here can lock the file
    /// in use.
    fn copy_ahead(&mut self, unread: Unread) -> Result<Copied, Failure> {
        let begin = self.file.stream_position().map_err(|error| self.system(&error))?;
        let copied = self.copy(unread, begin)?;
        self.file.sync_all().map_err(|error| self.system(&error))?;
        Ok(copied)
    }

    /// Copies what was appended since, and puts this file in the place of the one in use, which is locked: servers and commands wait.
    fn place(mut self, changes: &mut Changes, copied: Copied) -> Result<u64, Failure> {
        let in_use = changes.lock()?;
        let is_same = is_in_place(&copied.from, &self.path).map_err(|error| self.system(&error))?;
        let (unread, begin) = if is_same {
            let begin = copied.begin;
            (copied.rest().map_err(|error| Failure::system(self.path.display(), &error))?, begin)
        } else {
            // Another compaction was faster: all changes are those of its file.
            let again = self.file.set_len(copied.begin).and_then(|()| self.file.seek(SeekFrom::Start(copied.begin)));
            again.map_err(|error| self.system(&error))?;
            (self.unread()?, copied.begin)
        };
        self.copy(unread, begin)?;
        let length = self.file.sync_all().and_then(|()| self.file.metadata());
        let length = length.map_err(|error| self.system(&error))?.len();
        fs::rename(&self.new, &self.path).map_err(|error| self.system(&error))?;
        self.is_in_use = true;
        sync_folder(&self.path)
            .map_err(|failures| failures.0.into_iter().next().unwrap_or_else(|| Failure::new("sync")))?;
        drop(in_use);
        Ok(length)
    }

    /// All changes of the file in use, which is locked.
    fn unread(&self) -> Result<Unread, Failure> {
        let system = |error: io::Error| Failure::system(self.path.display(), &error);
        let from = File::open(&self.path).map_err(system)?;
        let Layout { base, changes_at } = Layout::read(&from, &self.path)?;
        let SnapshotHead { number, last, .. } = *self.head.object();
        if let Some(base) = base.filter(|base| base.number() > number) {
            let message = format!("{} was compacted up to change {} meanwhile", self.path.display(), base.number());
            return Err(Failure::new(message));
        }
        Unread::read(from, changes_at, last).map_err(system)
    }

    /// Copies the changes that follow the snapshot. `begin` is where they begin in this file.
    fn copy(&mut self, Unread { from, at, octets, mut previous }: Unread, begin: u64) -> Result<Copied, Failure> {
        let number = self.head.object().number;
        let (changes, length) = split_changes(&octets);
        for change in changes.into_iter().filter(|change| change.object().number > number) {
            if change.object().previous != previous {
                let message = format!(
                    "{} does not continue the snapshot of change {number}: they are of different histories",
                    self.path.display()
                );
                return Err(Failure::new(message).help("restore the file from a backup"));
            }
            previous = change.digest();
            self.file.write_all(&record(&change)).map_err(|error| self.system(&error))?;
        }
        Ok(Copied { from, at: at + length as u64, previous, begin })
    }
}

/// Octets of the file in use that are to be copied.
struct Unread {
    from: File,
    /// Where they are in it.
    at: u64,
    octets: Vec<u8>,
    /// The digest of the change before.
    previous: [u8; 32],
}

impl Unread {
    fn read(mut from: File, at: u64, previous: [u8; 32]) -> io::Result<Self> {
        let mut octets = Vec::new();
        from.seek(SeekFrom::Start(at))?;
        from.read_to_end(&mut octets)?;
        Ok(Self { from, at, octets, previous })
    }
}

/// How much of the file in use was copied.
struct Copied {
    from: File,
    at: u64,
    /// The digest of the last change that was copied.
    previous: [u8; 32],
    /// Where the changes begin in the new file.
    begin: u64,
}

impl Copied {
    /// What was appended since.
    fn rest(self) -> io::Result<Unread> {
        Unread::read(self.from, self.at, self.previous)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{NOW, Provider};

    /// A compaction of the records as they are, up to where it would lock them.
    fn begun(provider: &Provider) -> (NewRecords, Changes) {
        let (config, source) = provider.config();
        let (server, changes) = provider.server();
        let signer = config.signer(&source).expect("a key").expect("a writer");
        let head = head_of(server.state(), &signer, NOW).expect("a head");
        let mut new = NewRecords::begin(&provider.records(), &head).expect("begun");
        let written = server.state().snapshot(&signer, NOW, |piece| new.piece(piece)).expect("written");
        assert_eq!(written, Some(head));
        (new, changes)
    }

    fn number(provider: &Provider) -> u64 {
        provider.server().0.state().number()
    }

    #[test]
    fn changes_are_copied_while_others_append_and_only_the_rest_under_the_lock() {
        let provider = Provider::new("compaction-lock");
        provider.open_accounts(50);
        let (mut new, mut changes) = begun(&provider);
        provider.open_accounts(30);
        let unread = new.read_ahead(&mut changes).expect("read");
        // Whoever appends now, before and while it is copied, does not wait.
        let is_free =
            || drop(Lock::take(&File::open(provider.records()).expect("there")).expect("nobody has the lock"));
        is_free();
        provider.append();
        let copied = new.copy_ahead(unread).expect("copied");
        is_free();
        let (octets, base) = (fs::metadata(&new.new).expect("there").len(), copied.begin);
        assert!(octets > base + 30 * 100, "{octets} {base}");
        let from = copied.from.try_clone().expect("a file");
        let Unread { octets: rest, .. } = Unread::read(from, copied.at, copied.previous).expect("read");
        assert_eq!(split_changes(&rest).0.len(), 1, "the rest is what came meanwhile");
        let length = new.place(&mut changes, copied).expect("placed");
        assert_eq!(length, octets + rest.len() as u64);
        assert_eq!(number(&provider), 81);
        provider.append();
        assert_eq!(number(&provider), 82);
    }

    #[test]
    fn a_compaction_that_another_overtook_copies_what_that_one_has_or_fails() {
        let provider = Provider::new("compaction-overtaken");
        provider.open_accounts(20);
        let (mut new, mut changes) = begun(&provider);
        let unread = new.read_ahead(&mut changes).expect("read");
        let copied = new.copy_ahead(unread).expect("copied");
        // The same file again in another inode, with one change more.
        provider.append();
        let again = provider.folder.join("again");
        fs::copy(provider.records(), &again).expect("copied");
        fs::rename(&again, provider.records()).expect("put in place");
        provider.append();
        new.place(&mut changes, copied).expect("placed");
        assert_eq!(number(&provider), 22);
        let (new, changes) = begun(&provider);
        fs::rename(&new.new, provider.folder.join("held")).expect("moved");
        provider.append();
        let (config, source) = provider.config();
        assert_eq!(config.compact(&source, NOW).expect("compacted").number, 23);
        let failure = new.finish(changes).expect_err("overtaken");
        assert!(failure.to_string().contains("was compacted up to change 23 meanwhile"), "{failure}");
        assert_eq!(number(&provider), 23);
    }
}

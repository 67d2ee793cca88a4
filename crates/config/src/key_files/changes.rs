//! The records of a provider's key servers: signed, numbered changes in one file, to which the writer's process and its commands
//! append. A replica has a copy of the file, to which it appends what the writer sends. Either may be compacted meanwhile.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use wayleave_control::capability::Change;
use wayleave_crypto::signed::{Object, Signed};

use super::private::sync_folder;
use super::records::{Base, HEADER, LENGTH, Layout, Lock, NewChanges, is_in_place, record, split_changes};
use crate::failure::{Failure, Outcome};

/// How often a file may be replaced while it is being opened.
const REPLACEMENTS: usize = 16;

/// The file, and how much of it was read.
#[derive(Debug)]
pub struct Changes {
    path: PathBuf,
    file: File,
    offset: u64,
    /// The change of the snapshot that the file begins with; zero without one.
    snapshot: u64,
    /// A snapshot that was not looked at yet.
    base: Option<Base>,
    /// Number and digest of the last change that was handed out, in this file or in one that it replaced.
    last: Option<(u64, [u8; 32])>,
    /// The file replaced another, so that what it begins with was handed out already.
    is_another: bool,
}

impl Changes {
    /// Makes a new file. Refuses to overwrite.
    pub fn create(path: &Path) -> Outcome {
        let system = |error| Failure::system(path.display(), &error);
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let mut file = made.map_err(system)?;
        file.write_all(HEADER).and_then(|()| file.sync_all()).map_err(system)?;
        sync_folder(path)
    }

    /// Opens the file; nothing was read yet.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let file = opened.map_err(|error| {
            let failure = Failure::system(path.display(), &error);
            match error.kind() {
                ErrorKind::NotFound => failure.help(
                    "these are the provider's accounts and revocations: restore them from a backup; without them revoked \
                     capabilities would work again. `wayleave cap init` begins new ones",
                ),
                _ => failure,
            }
        })?;
        let Layout { base, changes_at } = Layout::read(&file, path)?;
        let snapshot = base.as_ref().map_or(0, Base::number);
        Ok(Self { path: path.to_owned(), file, offset: changes_at, snapshot, base, last: None, is_another: false })
    }

    /// The change of the snapshot that the file begins with; zero without one.
    pub fn snapshot(&self) -> u64 {
        self.snapshot
    }

    /// What was written since this was last called.
    pub fn read_new(&mut self) -> Result<NewChanges, Failure> {
        let length = self.file.metadata().map_err(|error| self.system(&error))?.len();
        let is_in_place = is_in_place(&self.file, &self.path).map_err(|error| self.system(&error))?;
        if is_in_place && length == self.offset && self.base.is_none() && !self.is_another {
            return Ok(NewChanges::default());
        }
        let lock = self.lock()?;
        let unread = self.read_on();
        drop(lock);
        unread
    }

    /// Appends a change and makes it durable, unless others were appended before: those are returned, and nothing is written.
    pub fn append(&mut self, change: &Signed<Change>) -> Result<NewChanges, Failure> {
        let lock = self.lock()?;
        if !self.path.exists() {
            let failure = Failure::new(format!("{} is gone: nothing can be recorded", self.path.display()));
            return Err(failure.help("restore the file from a backup"));
        }
        let unread = self.read_on()?;
        if unread.is_empty() {
            let record = record(change);
            let at = self.offset;
            let mut write = || -> std::io::Result<()> {
                self.file.seek(SeekFrom::Start(at))?;
                self.file.write_all(&record)?;
                self.file.sync_data()
            };
            if let Err(error) = write() {
                // Also what was written and could not be made durable is cut off, or a change that was refused would count later.
                let _ = self.file.set_len(at).and_then(|()| self.file.sync_data());
                return Err(self.system(&error));
            }
            self.offset = at + record.len() as u64;
            self.last = Some((change.object().number, change.digest()));
        }
        drop(lock);
        Ok(unread)
    }

    fn system(&self, error: &std::io::Error) -> Failure {
        Failure::system(self.path.display(), error)
    }

    /// Keeps other processes from writing to the file that is in place.
    pub(super) fn lock(&mut self) -> Result<Lock, Failure> {
        for _ in 0..REPLACEMENTS {
            let lock = Lock::wait(&self.file).map_err(|error| self.system(&error))?;
            if is_in_place(&self.file, &self.path).map_err(|error| self.system(&error))? {
                return Ok(lock);
            }
            drop(lock);
            let Self { path, last, .. } = &*self;
            *self = Self { last: *last, is_another: last.is_some(), ..Self::open(path)? };
        }
        Err(Failure::new(format!("{} is replaced again and again", self.path.display())))
    }

    /// Reads whole changes from the offset on, with the lock held; cuts off what is left of one that a crash interrupted.
    pub(super) fn read_on(&mut self) -> Result<NewChanges, Failure> {
        let before = self.offset;
        if self.file.metadata().map_err(|error| self.system(&error))?.len() < before {
            return Err(Failure::new(format!("{} became shorter while it was in use", self.path.display()))
                .help("records are only ever appended to: restore the file from a backup"));
        }
        let mut octets = Vec::new();
        let read = self.file.seek(SeekFrom::Start(self.offset)).and_then(|_| self.file.read_to_end(&mut octets));
        read.map_err(|error| self.system(&error))?;
        let (changes, length) = split_changes(&octets);
        self.offset += length as u64;
        let rest = &octets[length..];
        if !rest.is_empty() {
            // What a crash left of the last change is shorter than one, or zeros that the file system put there.
            if rest.len() < LENGTH + Change::MAX && !is_whole(rest) || rest.iter().all(|octet| *octet == 0) {
                self.file.set_len(self.offset).map_err(|error| self.system(&error))?;
            } else {
                return Err(Failure::new(format!("{} is damaged at octet {}", self.path.display(), self.offset))
                    .help("restore the file from a backup: accounts and revocations are recorded in it"));
            }
        }
        // Whoever asks again is told the same again: nothing is appended to a file that is not what was read before.
        let unread = self.hand_out(changes).inspect_err(|_| self.offset = before)?;
        let last = unread.changes.last().map(|change| (change.object().number, change.digest()));
        let base = unread.base.as_ref().map(|base| (base.number(), base.head.object().last));
        self.last = last.or(base).or(self.last);
        Ok(unread)
    }

    /// What of the file was not handed out yet. A file that replaced another has to continue it.
    fn hand_out(&mut self, mut changes: Vec<Signed<Change>>) -> Result<NewChanges, Failure> {
        let Some((held, digest)) = self.last.filter(|_| self.is_another) else {
            self.is_another = false;
            return Ok(NewChanges { base: self.base.take(), changes });
        };
        let number = self.base.as_ref().map_or(0, Base::number);
        if number > held {
            // Whether the snapshot continues what is held is for whoever takes it over to see.
            self.is_another = false;
            return Ok(NewChanges { base: self.base.take(), changes });
        }
        let of_base = self.base.as_ref().filter(|_| number == held).map(|base| base.head.object().last);
        let known = changes.iter().find(|change| change.object().number == held).map(Signed::digest).or(of_base);
        match known {
            Some(known) if known == digest => {
                (self.base, self.is_another) = (None, false);
                changes.retain(|change| change.object().number > held);
                Ok(NewChanges { base: None, changes })
            }
            _ => Err(Failure::new(format!(
                "{} was replaced by a file that does not continue change {held}: it is an old copy, or another's",
                self.path.display()
            ))
            .help("restore the file from the last backup; revocations that routers have may be missing in this one")),
        }
    }
}

/// Whether the length in front is that of what follows, so that no crash interrupted it.
fn is_whole(rest: &[u8]) -> bool {
    rest.split_first_chunk::<LENGTH>()
        .is_some_and(|(length, behind)| behind.len() >= usize::from(u16::from_be_bytes(*length)))
}

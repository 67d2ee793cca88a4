//! The records of a provider's key servers: signed, numbered changes in one file, to which the writer's process and its commands
//! append. A replica has a copy of the file, to which it appends what the writer sends.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use wayleave_control::capability::Change;
use wayleave_control::signed::{Object, Signed};

use super::private::sync_folder;
use crate::failure::{Failure, Outcome};

/// At the beginning of the file.
const HEADER: &[u8] = b"wayleave-key-records-v1\n";
/// Octets in front of a change: its length.
const LENGTH: usize = 2;

/// The file, and how much of it was read.
#[derive(Debug)]
pub struct Changes {
    path: PathBuf,
    file: File,
    offset: u64,
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
        let mut file = opened.map_err(|error| {
            let failure = Failure::system(path.display(), &error);
            match error.kind() {
                ErrorKind::NotFound => failure.help(
                    "these are the provider's accounts and revocations: restore them from a backup; without them revoked \
                     capabilities would work again. `wayleave cap init` begins new ones",
                ),
                _ => failure,
            }
        })?;
        let mut header = [0; HEADER.len()];
        if file.read_exact(&mut header).is_err() || header != HEADER {
            return Err(Failure::new(format!("{} has no records of a key server", path.display()))
                .help("restore the file from a backup"));
        }
        Ok(Self { path: path.to_owned(), file, offset: HEADER.len() as u64 })
    }

    /// The changes that were appended since this was last called.
    pub fn news(&mut self) -> Result<Vec<Signed<Change>>, Failure> {
        let length = self.file.metadata().map_err(|error| self.system(&error))?.len();
        if length < self.offset {
            return Err(Failure::new(format!("{} became shorter while it was in use", self.path.display()))
                .help("records are only ever appended to: restore the file from a backup"));
        }
        if length == self.offset {
            return Ok(Vec::new());
        }
        let lock = self.lock()?;
        let changes = self.read_on();
        drop(lock);
        changes
    }

    /// Appends a change and makes it durable, unless others were appended before: those are returned, and nothing is written.
    pub fn append(&mut self, change: &Signed<Change>) -> Result<Vec<Signed<Change>>, Failure> {
        let lock = self.lock()?;
        let news = self.read_on()?;
        if news.is_empty() {
            let octets = change.octets();
            let mut record = (octets.len() as u16).to_be_bytes().to_vec(); // at most `Change::MAX`
            record.extend_from_slice(octets);
            let at = self.offset;
            let mut write = || -> std::io::Result<()> {
                self.file.seek(SeekFrom::Start(at))?;
                self.file.write_all(&record)?;
                self.file.sync_data()
            };
            if let Err(error) = write() {
                let _ = self.file.set_len(at);
                return Err(self.system(&error));
            }
            self.offset = at + record.len() as u64;
        }
        drop(lock);
        Ok(news)
    }

    fn system(&self, error: &std::io::Error) -> Failure {
        Failure::system(self.path.display(), error)
    }

    /// Keeps other processes from writing until it is dropped.
    fn lock(&self) -> Result<Lock, Failure> {
        let file = self.file.try_clone().map_err(|error| self.system(&error))?;
        flock(&file, FlockOperation::LockExclusive).map_err(|error| self.system(&error.into()))?;
        Ok(Lock(file))
    }

    /// Reads whole changes from the offset on, with the lock held; cuts off what is left of one that a crash interrupted.
    fn read_on(&mut self) -> Result<Vec<Signed<Change>>, Failure> {
        let mut octets = Vec::new();
        let read = self.file.seek(SeekFrom::Start(self.offset)).and_then(|_| self.file.read_to_end(&mut octets));
        read.map_err(|error| self.system(&error))?;
        let mut rest = &octets[..];
        let mut changes = Vec::new();
        while let Some((length, behind)) = rest.split_first_chunk::<LENGTH>() {
            let length = usize::from(u16::from_be_bytes(*length));
            let whole = (1..=Change::MAX).contains(&length).then(|| behind.split_at_checked(length)).flatten();
            let Some((change, behind)) = whole else { break };
            let Ok(change) = Signed::decode(change) else { break };
            changes.push(change);
            self.offset += (LENGTH + length) as u64;
            rest = behind;
        }
        if rest.is_empty() {
            return Ok(changes);
        }
        // What a crash left of the last change is shorter than one, or zeros that the file system put there.
        if rest.len() < LENGTH + Change::MAX && !is_whole(rest) || rest.iter().all(|octet| *octet == 0) {
            self.file.set_len(self.offset).map_err(|error| self.system(&error))?;
            return Ok(changes);
        }
        Err(Failure::new(format!("{} is damaged at octet {}", self.path.display(), self.offset))
            .help("restore the file from a backup: accounts and revocations are recorded in it"))
    }
}

/// Reads a file of changes for somebody else, while others append to it.
#[derive(Debug)]
pub struct ChangesReader {
    file: File,
    offset: u64,
}

impl ChangesReader {
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let file = File::open(path).map_err(|error| Failure::system(path.display(), &error))?;
        Ok(Self { file, offset: HEADER.len() as u64 })
    }

    /// The next changes after the number `after`, whole, at most `most` of them and about `octets` octets. None if there are no more
    /// yet.
    pub fn next(&mut self, after: u64, (most, octets): (usize, usize)) -> Result<Vec<Vec<u8>>, std::io::Error> {
        /// Octets that are read at once.
        const BLOCK: u64 = 4 << 20;
        let (mut changes, mut length) = (Vec::new(), 0);
        loop {
            let mut block = Vec::new();
            self.file.seek(SeekFrom::Start(self.offset))?;
            (&self.file).take(BLOCK).read_to_end(&mut block)?;
            let mut rest = &block[..];
            while changes.len() < most && length < octets {
                let Some((own, behind)) = rest.split_first_chunk::<LENGTH>() else { break };
                let own = usize::from(u16::from_be_bytes(*own));
                let Some((change, behind)) = behind.split_at_checked(own) else { break };
                // What is being written, or was interrupted, is read once it is whole.
                let Ok(read) = Signed::<Change>::decode(change) else { break };
                self.offset += (LENGTH + change.len()) as u64;
                if read.object().number > after {
                    length += change.len();
                    changes.push(change.to_vec());
                }
                rest = behind;
            }
            if !changes.is_empty() || (block.len() as u64) < BLOCK {
                return Ok(changes);
            }
        }
    }
}

/// Whether the length in front is that of what follows, so that no crash interrupted it.
fn is_whole(rest: &[u8]) -> bool {
    rest.split_first_chunk::<LENGTH>()
        .is_some_and(|(length, behind)| behind.len() >= usize::from(u16::from_be_bytes(*length)))
}

/// An exclusive lock of the file.
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

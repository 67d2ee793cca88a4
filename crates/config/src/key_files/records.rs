//! How the file of a key server's records lies: a header; in a file that was compacted, a snapshot; then the changes behind it.
//!
//! A compacted file takes the place of the one before by a rename, so that a reader sees one or the other. Whoever has the old one open
//! sees by its inode that it was replaced.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};
use wayleave_control::capability::{Change, KeyServer, SnapshotError, SnapshotHead, State};
use wayleave_crypto::sign::VerifyingKey;
use wayleave_crypto::signed::{Object, Signed};

use crate::failure::Failure;

/// At the beginning of a file without a snapshot, and of one with a snapshot.
pub const HEADER: &[u8; 24] = b"wayleave-key-records-v1\n";
pub const COMPACTED: &[u8; 24] = b"wayleave-key-records-v2\n";
/// Octets in front of a change, and of a snapshot's head: their length.
pub const LENGTH: usize = 2;
pub const HEAD_LENGTH: usize = 4;

/// The snapshot at the beginning of a file.
#[derive(Clone, Debug)]
pub struct Base {
    pub head: Signed<SnapshotHead>,
    file: Arc<File>,
    /// Where each piece begins.
    places: Arc<[u64]>,
}

/// What is in front of the changes.
#[derive(Debug)]
pub struct Layout {
    pub base: Option<Base>,
    /// Where the changes begin.
    pub changes_at: u64,
}

impl Layout {
    /// Reads what is in front of the changes of the file at `path`.
    pub fn read(file: &File, path: &Path) -> Result<Self, Failure> {
        let damaged =
            |what: &str| Failure::new(format!("{} {what}", path.display())).help("restore the file from a backup");
        let mut file: &File = file;
        let mut header = [0; HEADER.len()];
        file.read_exact(&mut header).map_err(|_| damaged("has no records of a key server"))?;
        if header == *HEADER {
            return Ok(Self { base: None, changes_at: HEADER.len() as u64 });
        }
        if header != *COMPACTED {
            return Err(damaged("has no records of a key server, or of a later version"));
        }
        let torn = || damaged("has a snapshot that is damaged or cut off");
        let mut length = [0; HEAD_LENGTH];
        file.read_exact(&mut length).map_err(|_| torn())?;
        let length = u32::from_be_bytes(length) as usize;
        if length > SnapshotHead::MAX {
            return Err(torn());
        }
        let mut head = vec![0; length];
        file.read_exact(&mut head).map_err(|_| torn())?;
        let head = Signed::<SnapshotHead>::decode(&head).map_err(|_| torn())?;
        let mut at = (HEADER.len() + HEAD_LENGTH + length) as u64;
        let places: Vec<u64> = (head.object().pieces.iter())
            .map(|(length, _)| {
                let place = at;
                at += u64::from(*length);
                place
            })
            .collect();
        let metadata = file.metadata().map_err(|error| Failure::system(path.display(), &error))?;
        if metadata.len() < at {
            return Err(torn());
        }
        let file = file.try_clone().map_err(|error| Failure::system(path.display(), &error))?;
        Ok(Self { base: Some(Base { head, file: Arc::new(file), places: places.into() }), changes_at: at })
    }
}

impl Base {
    /// The number of the last change that is in it.
    pub fn number(&self) -> u64 {
        self.head.object().number
    }

    /// A piece, if there is one with this index.
    pub fn piece(&self, index: usize) -> io::Result<Option<Vec<u8>>> {
        let piece = self.places.get(index).zip(self.head.object().pieces.get(index));
        let Some((place, (length, _))) = piece else { return Ok(None) };
        let mut octets = vec![0; *length as usize];
        self.file.read_exact_at(&mut octets, *place)?;
        Ok(Some(octets))
    }

    /// Whether the writer signed it, and all of its pieces are there.
    pub fn check(&self, writer: &VerifyingKey) -> Result<(), Failure> {
        let refused = |error| {
            Failure::new(format!("the records' snapshot is refused: {error}"))
                .help("restore the file from a backup of this provider's records")
        };
        let head = self.head.verify(&writer.to_bytes());
        let head = head.map_err(|_| refused(SnapshotError::Signature(self.number())))?;
        for index in 0..head.pieces.len() {
            let piece = self.piece(index).map_err(|error| Failure::system("the records' snapshot", &error))?;
            if !head.has(index, &piece.unwrap_or_default()) {
                return Err(refused(SnapshotError::Piece(index)));
            }
        }
        Ok(())
    }

    /// The state that is in it, for this server.
    pub fn restore(&self, server: &KeyServer) -> Result<State, Failure> {
        let refused = |error| {
            Failure::new(format!("the records' snapshot is refused: {error}"))
                .help("restore the file from a backup of this provider's records")
        };
        let mut restoring = server.restoring(self.head.clone()).map_err(refused)?;
        while let Some(index) = restoring.next() {
            let piece = self.piece(index).map_err(|error| Failure::system("the records' snapshot", &error))?;
            restoring.take(&piece.unwrap_or_default()).map_err(refused)?;
        }
        restoring.finish().map_err(refused)
    }
}

/// What others wrote since the last look: perhaps a snapshot to go on from, and then changes.
#[derive(Debug, Default)]
pub struct NewChanges {
    pub base: Option<Base>,
    pub changes: Vec<Signed<Change>>,
}

impl NewChanges {
    pub fn is_empty(&self) -> bool {
        self.base.is_none() && self.changes.is_empty()
    }

    /// Takes them over.
    pub fn apply(self, server: &mut KeyServer) -> Result<(), Failure> {
        if let Some(base) = self.base {
            let state = base.restore(server)?;
            server.adopt(state).map_err(|error| {
                Failure::new(format!("the records' snapshot is refused: {error}"))
                    .help("restore the file from the last backup")
            })?;
        }
        for change in self.changes {
            server.apply(&change).map_err(|error| {
                Failure::new(format!("the records cannot be followed: {error}"))
                    .help("restore the file from the writer's last backup")
            })?;
        }
        Ok(())
    }
}

/// Splits the changes in front of `octets` off, whole and well-formed ones; returns them and how many octets they take.
pub fn split_changes(octets: &[u8]) -> (Vec<Signed<Change>>, usize) {
    let (mut changes, mut rest) = (Vec::new(), octets);
    while let Some((length, behind)) = rest.split_first_chunk::<LENGTH>() {
        let length = usize::from(u16::from_be_bytes(*length));
        let whole = (1..=Change::MAX).contains(&length).then(|| behind.split_at_checked(length)).flatten();
        let Some((change, behind)) = whole else { break };
        let Ok(change) = Signed::decode(change) else { break };
        changes.push(change);
        rest = behind;
    }
    (changes, octets.len() - rest.len())
}

/// A change behind its length, as it is appended.
pub fn record(change: &Signed<Change>) -> Vec<u8> {
    let octets = change.octets();
    let mut record = (octets.len() as u16).to_be_bytes().to_vec(); // at most `Change::MAX`
    record.extend_from_slice(octets);
    record
}

/// Whether the file at `path` is this one; a path without a file is that of nothing else.
pub fn is_in_place(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    match fs::metadata(path) {
        Ok(other) => Ok((own.dev(), own.ino()) == (other.dev(), other.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// An exclusive lock of a file, for as long as it lives.
#[derive(Debug)]
pub struct Lock(File);

impl Lock {
    /// Waits until no other process writes.
    pub fn wait(file: &File) -> io::Result<Self> {
        let file = file.try_clone()?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(Self(file))
    }

    /// A lock that nobody else has; an error of kind `WouldBlock` if somebody has.
    pub fn take(file: &File) -> io::Result<Self> {
        let file = file.try_clone()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self(file))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

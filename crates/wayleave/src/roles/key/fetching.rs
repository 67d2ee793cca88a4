//! A replica takes the writer's snapshot over: piece by piece into a new file of records, which takes the place of its own once all of
//! it is there, is the writer's, and continues what the replica has.

use std::path::Path;

use wayleave_control::capability::{KeyServer, Restoring, SnapshotError, SnapshotHead};
use wayleave_crypto::signed::Signed;

use crate::failure::Failure;
use crate::key_files::compaction::NewRecords;

/// A snapshot that is on its way.
pub struct Fetching {
    restoring: Restoring,
    new: NewRecords,
}

/// Who erred.
pub enum Fault {
    /// The other end: what it sent is not taken.
    Peer(String),
    /// This machine: the snapshot may be taken another time.
    Own(Failure),
}

impl From<SnapshotError> for Fault {
    fn from(error: SnapshotError) -> Self {
        let mend = match error {
            SnapshotError::Older { .. } | SnapshotError::Fork(_) => {
                "; the records of this replica and of the writer differ: restore the writer's from its last backup, or copy those of \
                 this replica to it; only if the writer's are right, stop this replica and copy the writer's file to it"
            }
            SnapshotError::TooFar { .. } => {
                "; stop this replica, copy the writer's file of records to it, and start it again"
            }
            _ => "",
        };
        Self::Peer(format!("{error}{mend}"))
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        Self::Own(failure)
    }
}

impl Fetching {
    /// Begins with a head, for the file at `records`.
    pub fn begin(server: &KeyServer, records: &Path, head: &[u8]) -> Result<Self, Fault> {
        let head = Signed::<SnapshotHead>::decode(head);
        let head = head.map_err(|_| Fault::Peer("a snapshot's head that cannot be read".to_owned()))?;
        let restoring = server.restoring(head.clone())?;
        Ok(Self { restoring, new: NewRecords::begin(records, &head)? })
    }

    /// The number of the last change that is in it.
    pub fn number(&self) -> u64 {
        self.restoring.head().object().number
    }

    /// The piece that is next, by its index; `None` after the last.
    pub fn next(&self) -> Option<u16> {
        self.restoring.next().and_then(|index| u16::try_from(index).ok()) // at most `MAX_PIECES`
    }

    /// Takes the next piece.
    pub fn take(&mut self, piece: &[u8]) -> Result<(), Fault> {
        self.restoring.take(piece)?;
        Ok(self.new.piece(piece)?)
    }

    /// After the last piece: whether the snapshot continues what `server` has, or is part of it. The file is to be finished.
    pub fn check(self, server: &KeyServer) -> Result<NewRecords, Fault> {
        let state = self.restoring.finish()?;
        let (held, number) = (server.state().number(), state.number());
        if number >= held {
            server.state().is_continued_by(&state)?;
        } else if server.state().digest_of(number).is_some_and(|digest| Some(digest) != state.digest_of(number)) {
            return Err(SnapshotError::Fork(number).into());
        }
        Ok(self.new)
    }
}

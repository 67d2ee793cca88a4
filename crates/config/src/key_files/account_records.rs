//! The records of a provider's key servers, wherever they are.

use wayleave_control::capability::{Change, KeyServer, State};
use wayleave_crypto::signed::Signed;

use super::changes::Changes;
use super::database::{DatabaseRecords, Unread};
use super::records::{Base, NewChanges};
use crate::failure::Failure;

/// A file of our own, or a database.
#[derive(Debug)]
pub enum AccountRecords {
    File(Changes),
    Database(Box<DatabaseRecords>),
}

/// What others wrote.
pub enum Others {
    OfFile(NewChanges),
    OfDatabase(Unread),
}

impl AccountRecords {
    /// What was written since this was last called.
    ///
    /// # Errors
    /// If the records cannot be read, or do not continue what was read.
    pub fn read_new(&mut self) -> Result<Others, Failure> {
        match self {
            Self::File(changes) => changes.read_new().map(Others::OfFile),
            Self::Database(database) => database.read_new().map(Others::OfDatabase),
        }
    }

    /// Makes a change of this state durable, unless others were written before: those are returned, and nothing is written.
    ///
    /// # Errors
    /// If it was not written.
    pub fn append(
        &mut self,
        state: &State,
        change: &Signed<Change>,
        (by, reason): (&str, &str),
    ) -> Result<Others, Failure> {
        match self {
            Self::File(changes) => changes.append(change).map(Others::OfFile),
            Self::Database(database) => {
                let effects = (state.effects(change.object()), state.settled());
                database.append(change, effects, (by, reason)).map(Others::OfDatabase)
            }
        }
    }

    /// The change of the snapshot that a file begins with; zero without one.
    pub fn snapshot(&self) -> u64 {
        match self {
            Self::File(changes) => changes.snapshot(),
            Self::Database(_) => 0,
        }
    }
}

impl Others {
    pub fn is_empty(&self) -> bool {
        match self {
            Self::OfFile(changes) => changes.is_empty(),
            Self::OfDatabase(unread) => unread.is_empty(),
        }
    }

    /// The number of the change of the state that they begin with, if they replace what was before.
    pub fn begins_at(&self) -> Option<u64> {
        match self {
            Self::OfFile(changes) => changes.base.as_ref().map(Base::number),
            Self::OfDatabase(unread) => unread.state.as_ref().map(|state| state.number()),
        }
    }

    /// Takes them over.
    ///
    /// # Errors
    /// If they do not continue the server's state.
    pub fn apply(self, server: &mut KeyServer) -> Result<(), Failure> {
        match self {
            Self::OfFile(changes) => changes.apply(server),
            Self::OfDatabase(unread) => unread.apply(server),
        }
    }
}

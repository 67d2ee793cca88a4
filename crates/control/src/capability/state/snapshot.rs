//! A snapshot: the state after some change in signed, bounded pieces, so that the changes before need not be kept.
//!
//! The head names the change and every piece by its digest, and is signed by the writer. Pieces hold the accounts, the generations of
//! closed ones, the grants, the revocations that have not expired, the invitations, and when numbers got other owners; also the digests of the last changes, so that whoever has
//! followed the changes sees whether the snapshot continues what it has. One state has one encoding.
//!
//! A further kind of record gets the next number in `Kind`, a place in `State::records`, and one in `Restoring::record`.

use std::cmp::Ordering;
use std::collections::VecDeque;

use wayleave_core::UnixTime;
use wayleave_core::wire::{Codec, List16, Malformed, Wire, Writer};
use wayleave_crypto::hash::hash;
use wayleave_crypto::sign::{SigningKey, VerifyingKey};
use wayleave_crypto::signed::{Object, SIGNATURE, Signed};
use wayleave_packet::platypus::revocation::Revocation;

use super::restoring::Restoring;
use super::{Grant, RevocationCodec, State};
use crate::capability::invitation::Invitation;
use crate::capability::usage::Reopening;

/// Octets of a piece, at most.
pub const MAX_PIECE: usize = 256 << 10;
/// Pieces of a snapshot, at most: 4 GiB.
pub const MAX_PIECES: usize = 16_384;
/// Digests of changes that a snapshot and a state have, at most: those of the last ones.
pub const PAST: usize = 4_096;
/// The version of a piece.
pub(super) const VERSION: u8 = 1;
/// Octets of the longest record: an invitation that was redeemed.
const MAX_RECORD: usize = 1 + Invitation::MAX + 1 + 32 + 8 + 4;
const LABEL: &str = "wayleave/capability/snapshot-piece/v1";

/// Kinds of records, in the order in which a snapshot has them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Kind {
    /// Principal and generation of an account that was closed: its keys never come back.
    Closed = 1,
    Account = 2,
    Grant = 3,
    Revocation = 4,
    /// The digest of a change; the last is that of the snapshot's.
    Past = 5,
    /// An invitation, and what became of it.
    Invitation = 6,
    /// A principal's number got another owner: whose usage is whose follows from it.
    Reopened = 7,
    /// Until when secrets of grants that were withdrawn may be good.
    Withdrawn = 8,
}

impl Kind {
    pub(super) const ALL: [Self; 8] = [
        Self::Closed,
        Self::Account,
        Self::Grant,
        Self::Revocation,
        Self::Past,
        Self::Invitation,
        Self::Reopened,
        Self::Withdrawn,
    ];
}

wayleave_core::wire! {
    /// The signed part of a snapshot.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct SnapshotHead: Self::check {
        /// The number of the last change that is in it, and its digest.
        pub number: u64,
        pub last: [u8; 32],
        /// Unix seconds. Revocations that had expired then are left out.
        pub issued: u64,
        /// Octets and digest of each piece.
        pub pieces: Vec<(u32, [u8; 32])> as List16<MAX_PIECES>,
    }
}

impl SnapshotHead {
    fn check(&self) -> Result<(), Malformed> {
        let is_length = |length: &u32| (1..=MAX_PIECE).contains(&(*length as usize));
        let is_sound = self.pieces.iter().all(|(length, _)| is_length(length));
        if is_sound { Ok(()) } else { Err(Malformed::Value("the length of a piece")) }
    }

    /// Octets of all pieces.
    #[must_use]
    pub fn octets(&self) -> u64 {
        self.pieces.iter().map(|(length, _)| u64::from(*length)).sum()
    }

    /// Whether these octets are piece `index` of this snapshot.
    #[must_use]
    pub fn has(&self, index: usize, piece: &[u8]) -> bool {
        self.pieces.get(index).is_some_and(|(length, expected)| {
            piece.len() == *length as usize && digest(self.number, index, piece) == *expected
        })
    }
}

impl Object for SnapshotHead {
    const LABEL: &'static str = "wayleave/capability/snapshot/v1";
    const MAX: usize = 1 + 8 + 32 + 8 + 2 + MAX_PIECES * 36 + SIGNATURE;
}

/// Why a snapshot is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("the snapshot of change {0} is not signed by the provider's key")]
    Signature(u64),
    #[error("piece {0} is not the one that the snapshot's head names: it is damaged, or of another snapshot")]
    Piece(usize),
    #[error("the snapshot ends after {got} of {expected} pieces")]
    Missing { expected: usize, got: usize },
    #[error("piece {index} of the snapshot: {error}")]
    Malformed { index: usize, error: Malformed },
    #[error(
        "piece {index} of the snapshot has records of kind {kind}, which a later version made: update this program"
    )]
    Kind { index: usize, kind: u8 },
    #[error("piece {0} of the snapshot has records out of order, or twice")]
    Order(usize),
    #[error("piece {index} of the snapshot: {what}")]
    Content { index: usize, what: &'static str },
    #[error("the records end with change {got}, and {held} changes are held: they are an old copy")]
    Older { held: u64, got: u64 },
    #[error(
        "the snapshot does not continue change {0}, which is held: the writer's records were set back to an old copy, or are forged"
    )]
    Fork(u64),
    #[error(
        "the snapshot knows the changes from {first} on, and the last that is held is {held}: whether it continues that cannot be seen"
    )]
    TooFar { held: u64, first: u64 },
}

fn digest(number: u64, index: usize, piece: &[u8]) -> [u8; 32] {
    hash(LABEL, &[&number.to_be_bytes(), &(index as u64).to_be_bytes(), piece])
}

impl State {
    /// Makes a snapshot: `take` is given each piece, in order, and the signed head comes back. Revocations are left out that have
    /// expired at `now` and had when the last change and each of the 1,023 before it were signed, so that a clock which is ahead for once
    /// lets none out; nothing else is.
    ///
    /// # Errors
    /// Those of `take`; and `None` if there is more than a snapshot can hold.
    pub fn snapshot<E>(
        &self,
        key: &SigningKey,
        now: UnixTime,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Option<Signed<SnapshotHead>>, E> {
        let second = now.secs().min(self.issued).min(self.settled());
        let mut pieces = Vec::new();
        let mut piece = vec![VERSION];
        let mut close = |piece: &mut Vec<u8>| {
            pieces.push((piece.len() as u32, digest(self.number, pieces.len(), piece))); // at most `MAX_PIECE`
            take(piece)?;
            piece.truncate(1);
            Ok(())
        };
        self.records(second, |record| {
            if piece.len() + record.len() > MAX_PIECE {
                close(&mut piece)?;
            }
            piece.extend_from_slice(record);
            Ok(())
        })?;
        if piece.len() > 1 {
            close(&mut piece)?;
        }
        if pieces.len() > MAX_PIECES {
            return Ok(None);
        }
        let head = SnapshotHead { number: self.number, last: self.last, issued: second, pieces };
        Ok(Signed::sign(&head, key).ok())
    }

    /// Every record, in order.
    fn records<E>(&self, now: u64, mut take: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut each = |kind: Kind, write: &dyn Fn(&mut Writer)| -> Result<(), E> {
            let mut out = Writer::new();
            out.u8(kind as u8);
            write(&mut out);
            take(&out.finish())
        };
        let mut closed: Vec<_> = self.closed.iter().collect();
        closed.sort_unstable();
        for (principal, generation) in closed {
            each(Kind::Closed, &|out| {
                out.u32(*principal).u32(*generation);
            })?;
        }
        let accounts = self.list();
        for (principal, name, generation) in &accounts {
            each(Kind::Account, &|out| {
                out.bytes(&principal.octets()).u32(*generation).text(name);
            })?;
        }
        for (principal, ..) in &accounts {
            // The earliest first, so that they are taken over in their order.
            let mut grants: Vec<Grant> = self.grants_of(*principal).collect();
            grants.reverse();
            for grant in grants {
                each(Kind::Grant, &|out| grant.write(out))?;
            }
        }
        for revocation in self.revocations().filter(|entry| !has_expired(entry, now)) {
            each(Kind::Revocation, &|out| RevocationCodec::write(revocation, out))?;
        }
        for digest in &self.past {
            each(Kind::Past, &|out| {
                out.bytes(digest);
            })?;
        }
        // Also those that are forgotten with the next one: whoever has all changes still takes that into account.
        for (invitation, status) in self.invitations() {
            each(Kind::Invitation, &|out| {
                invitation.write(out);
                status.write(out);
            })?;
        }
        let mut reopened = self.reopened.clone();
        reopened.sort_unstable_by_key(|of| (of.principal, of.generation));
        for Reopening { principal, at, generation } in reopened {
            each(Kind::Reopened, &|out| {
                out.u32(principal).u32(generation).u64(at);
            })?;
        }
        for ((principal, interval), until) in self.withdrawn.iter().filter(|(_, until)| **until > now) {
            each(Kind::Withdrawn, &|out| {
                out.bytes(&principal.octets()).u8(interval.exponent()).u64(*until);
            })?;
        }
        Ok(())
    }

    /// The digest of a change that was taken over, if it is among the last ones.
    #[must_use]
    pub fn digest_of(&self, number: u64) -> Option<[u8; 32]> {
        let back = usize::try_from(self.number.checked_sub(number)?).ok()?;
        self.past.get(self.past.len().checked_sub(back + 1)?).copied()
    }

    /// Whether `later`, which comes from a snapshot, continues this state.
    ///
    /// # Errors
    /// Why it does not, or why that cannot be seen.
    pub fn is_continued_by(&self, later: &Self) -> Result<(), SnapshotError> {
        let held = self.number;
        if later.number < held {
            return Err(SnapshotError::Older { held, got: later.number });
        }
        match later.digest_of(held) {
            _ if held == 0 => Ok(()),
            Some(digest) if digest == self.last => Ok(()),
            Some(_) => Err(SnapshotError::Fork(held)),
            None => Err(SnapshotError::TooFar { held, first: later.number + 1 - later.past.len() as u64 }),
        }
    }

    /// Whether records that end with this change have what this state has, as far as can be seen: they have its last change, or later
    /// ones.
    ///
    /// # Errors
    /// If they are an old copy, or of another history.
    pub fn is_within(&self, number: u64, last: &[u8; 32]) -> Result<(), SnapshotError> {
        match number.cmp(&self.number) {
            Ordering::Less => Err(SnapshotError::Older { held: self.number, got: number }),
            Ordering::Equal if *last != self.last => Err(SnapshotError::Fork(number)),
            Ordering::Equal | Ordering::Greater => Ok(()),
        }
    }

    /// Takes a snapshot over piece by piece, for the same provider.
    ///
    /// # Errors
    /// If the head is not signed by `writer`, or shows by itself that the snapshot does not continue this state or that this could not
    /// be seen: then nobody need fetch the pieces.
    pub fn restoring(&self, head: Signed<SnapshotHead>, writer: &VerifyingKey) -> Result<Restoring, SnapshotError> {
        let &SnapshotHead { number, last, .. } = head.object();
        head.verify(&writer.to_bytes()).map_err(|_| SnapshotError::Signature(number))?;
        if self.digest_of(number).is_some_and(|held| held != last) {
            return Err(SnapshotError::Fork(number));
        }
        let (held, first) = (self.number, number.saturating_sub(PAST as u64) + 1);
        if held > 0 && held < first {
            return Err(SnapshotError::TooFar { held, first });
        }
        Ok(Restoring::new(head, Self::new(self.provider.clone())))
    }
}

pub(super) fn has_expired(revocation: &Revocation, now: u64) -> bool {
    revocation.expires_at().is_some_and(|second| second <= now)
}

/// Keeps what is to be known of a further change, and of no more than [`PAST`].
pub(super) fn remember<T>(past: &mut VecDeque<T>, digest: T) {
    if past.len() >= PAST {
        past.pop_front();
    }
    past.push_back(digest);
}

const _: () = assert!(MAX_RECORD < MAX_PIECE);

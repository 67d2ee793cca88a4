//! The snapshots that earlier versions put in front of the changes of a file of records: they are read once, when the file is brought into
//! a database.
//!
//! The head names the last change and every piece by its digest, and is signed by the writer. Pieces hold records of accounts, the
//! generations of closed ones, grants, revocations, invitations, and when numbers got other owners; also the digests of the last changes.

use wayleave_core::wire::{Codec, List16, Malformed, Reader, Wire};
use wayleave_crypto::hash::hash;
use wayleave_crypto::sign::VerifyingKey;
use wayleave_crypto::signed::{Object, SIGNATURE, Signed};
use wayleave_packet::platypus::header::{Interval, Principal};

use super::{Grant, Row, State};
use crate::capability::codecs::RevocationCodec;
use crate::capability::invitation::{Invitation, InvitationStatus, MAX_NAME};
use crate::capability::keys::ProviderKey;

/// Octets of a piece, at most.
const MAX_PIECE: usize = 256 << 10;
/// Pieces of a snapshot, at most: 4 GiB.
const MAX_PIECES: usize = 16_384;
/// The version of a piece.
const VERSION: u8 = 1;
const LABEL: &str = "wayleave/capability/snapshot-piece/v1";

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

    /// Whether these octets are piece `index` of this snapshot.
    fn has(&self, index: usize, piece: &[u8]) -> bool {
        let digest = || hash(LABEL, &[&self.number.to_be_bytes(), &(index as u64).to_be_bytes(), piece]);
        self.pieces
            .get(index)
            .is_some_and(|(length, expected)| piece.len() == *length as usize && digest() == *expected)
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
    #[error("piece {index} of the snapshot: {error}")]
    Malformed { index: usize, error: Malformed },
    #[error("piece {index} of the snapshot: {what}")]
    Content { index: usize, what: &'static str },
    #[error("the digests of the snapshot do not end with that of the last change")]
    Last,
}

/// What one record says.
enum Record {
    Row(Row),
    /// The digest of a change; the last is that of the snapshot's.
    Past([u8; 32]),
}

impl Record {
    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let principal = |from: &mut Reader<'_>| Principal::new(from.u32()?).ok_or(Malformed::Value("a principal"));
        Ok(Self::Row(match from.u8()? {
            1 => Row::Closed { principal: principal(from)?, generation: from.u32()? },
            2 => {
                let principal = Principal::from_octets(from.array()?);
                Row::Account { principal, generation: from.u32()?, name: from.text(MAX_NAME)? }
            }
            3 => Row::Grant(Grant::read(from)?),
            4 => Row::Revocation(RevocationCodec::read(from)?),
            5 => return Ok(Self::Past(from.array()?)),
            6 => Row::Invitation { invitation: Invitation::read(from)?, status: InvitationStatus::read(from)? },
            7 => Row::Reopened { principal: principal(from)?, generation: from.u32()?, at: from.u64()? },
            8 => {
                let principal = Principal::from_octets(from.array()?);
                let interval = Interval::new(from.u8()?).ok_or(Malformed::Value("an interval"))?;
                Row::Withdrawn { principal, interval, until: from.u64()? }
            }
            _ => return Err(Malformed::Value("a kind of record")),
        }))
    }
}

impl State {
    /// The state that a snapshot has. `piece` gives its pieces by their index.
    ///
    /// # Errors
    /// If `writer` did not sign it, or a piece is missing, or not the one that was signed; and those of `piece`.
    pub fn from_snapshot<E: From<SnapshotError>>(
        provider: ProviderKey,
        head: &Signed<SnapshotHead>,
        writer: &VerifyingKey,
        mut piece: impl FnMut(usize) -> Result<Vec<u8>, E>,
    ) -> Result<Self, E> {
        let signed = head.verify(&writer.to_bytes());
        let head = signed.map_err(|_| SnapshotError::Signature(head.object().number))?;
        let (mut state, mut last) = (Self::new(provider), [0; 32]);
        for index in 0..head.pieces.len() {
            let octets = piece(index)?;
            let version = octets.first().filter(|_| head.has(index, &octets)).ok_or(SnapshotError::Piece(index))?;
            let malformed = |error| SnapshotError::Malformed { index, error };
            if *version != VERSION {
                return Err(malformed(Malformed::Version(*version)).into());
            }
            let mut rest = octets.get(1..).unwrap_or_default();
            while !rest.is_empty() {
                let mut reader = Reader::new(rest);
                match Record::read(&mut reader).map_err(malformed)? {
                    Record::Past(digest) => last = digest,
                    Record::Row(row) => {
                        state.take_row(row).map_err(|what| SnapshotError::Content { index, what })?;
                    }
                }
                rest = reader.rest();
            }
        }
        if last != head.last {
            return Err(SnapshotError::Last.into());
        }
        (state.number, state.last, state.issued) = (head.number, head.last, head.issued);
        // Of an earlier one the snapshot says nothing. This is not after it, so that no list of these records seems to be of others.
        state.times.push_back(head.issued);
        state.note_time(head.issued);
        Ok(state)
    }
}

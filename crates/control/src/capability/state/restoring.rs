//! A snapshot is taken over: everything in it is checked, though it is signed, and nothing counts before all of it is there.

use wayleave_core::wire::{Codec, Malformed, Reader, Wire};
use wayleave_crypto::signed::Signed;
use wayleave_packet::platypus::header::{Interval, Principal};
use wayleave_packet::platypus::revocation::Revocation;

use super::snapshot::{Kind, PAST, SnapshotError, SnapshotHead, VERSION, has_expired};
use super::{Account, Grant, MAX_REVOCATIONS, NONE, RevocationCodec, State};
use crate::capability::invitation::{Invitation, InvitationId, InvitationStatus, MAX_NAME};
use crate::capability::usage::Reopening;

/// A record by which its successor is placed: its kind, and what must ascend within it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RecordPlace {
    Closed(u32),
    Account(Principal),
    /// Several grants of one account are in the order in which they were made.
    Grant(Principal),
    Revocation(Revocation),
    Past,
    Invitation(InvitationId),
    /// Principal and generation.
    Reopened(u32, u32),
    Withdrawn(Principal, Interval),
}

/// A state that is being taken from a snapshot.
pub struct Restoring {
    head: Signed<SnapshotHead>,
    state: State,
    index: usize,
    before: Option<RecordPlace>,
}

impl Restoring {
    /// Begins with a head that was verified, and a state without anything.
    pub(super) fn new(head: Signed<SnapshotHead>, state: State) -> Self {
        Self { head, state, index: 0, before: None }
    }

    /// The head, which the writer signed.
    #[must_use]
    pub fn head(&self) -> &Signed<SnapshotHead> {
        &self.head
    }

    /// The index of the piece that is next; `None` after the last.
    #[must_use]
    pub fn next(&self) -> Option<usize> {
        (self.index < self.head.object().pieces.len()).then_some(self.index)
    }

    /// Takes the next piece.
    ///
    /// # Errors
    /// What is wrong with it. The snapshot is of no use any more, unless it was another piece than the next.
    pub fn take(&mut self, piece: &[u8]) -> Result<(), SnapshotError> {
        let index = self.index;
        if !self.head.object().has(index, piece) {
            return Err(SnapshotError::Piece(index));
        }
        let malformed = |error| SnapshotError::Malformed { index, error };
        let (version, mut rest) = piece.split_first().ok_or(SnapshotError::Piece(index))?;
        if *version != VERSION {
            return Err(malformed(Malformed::Version(*version)));
        }
        while let Some((kind, behind)) = rest.split_first() {
            let mut reader = Reader::new(behind);
            let kind = Kind::ALL
                .into_iter()
                .find(|known| *known as u8 == *kind)
                .ok_or(SnapshotError::Kind { index, kind: *kind })?;
            self.record(kind, &mut reader)?;
            rest = reader.rest();
        }
        self.index += 1;
        Ok(())
    }

    /// The state, after the last piece.
    ///
    /// # Errors
    /// If pieces are missing, or the digests do not end with the last change's.
    pub fn finish(self) -> Result<State, SnapshotError> {
        let SnapshotHead { number, last, issued, ref pieces } = *self.head.object();
        if self.index < pieces.len() {
            return Err(SnapshotError::Missing { expected: pieces.len(), got: self.index });
        }
        let index = pieces.len().saturating_sub(1);
        let mut state = self.state;
        let is_whole = match state.past.back() {
            None => number == 0 && last == [0; 32],
            Some(digest) => *digest == last && state.past.len() as u64 <= number,
        };
        if !is_whole {
            return Err(SnapshotError::Content { index, what: "the digests do not end with that of the last change" });
        }
        (state.number, state.last, state.issued) = (number, last, issued);
        // Of an earlier one the snapshot says nothing. This is not after it, so that no list of these records seems to be of others.
        state.times.push_back(issued);
        state.note_time(issued);
        Ok(state)
    }

    /// Takes one record.
    fn record(&mut self, kind: Kind, reader: &mut Reader<'_>) -> Result<(), SnapshotError> {
        let index = self.index;
        let malformed = |error| SnapshotError::Malformed { index, error };
        let content = |what| SnapshotError::Content { index, what };
        match kind {
            Kind::Closed => {
                let (principal, generation) = (reader.u32().map_err(malformed)?, reader.u32().map_err(malformed)?);
                Principal::new(principal).ok_or(content("a closed account is of no principal"))?;
                self.place(RecordPlace::Closed(principal))?;
                self.state.closed.insert(principal, generation);
            }
            Kind::Account => {
                let principal = Principal::from_octets(reader.array().map_err(malformed)?);
                let (generation, name) = (reader.u32().map_err(malformed)?, reader.text(MAX_NAME).map_err(malformed)?);
                self.place(RecordPlace::Account(principal))?;
                let account = Account { name: name.as_str().into(), generation, first: NONE };
                self.state.accounts.insert(principal.number(), account);
            }
            Kind::Grant => {
                let grant = Grant::read(reader).map_err(malformed)?;
                self.place(RecordPlace::Grant(grant.terms.principal))?;
                self.state.take_grant(&grant).map_err(content)?;
            }
            Kind::Revocation => {
                let revocation = RevocationCodec::read(reader).map_err(malformed)?;
                self.place(RecordPlace::Revocation(revocation))?;
                if has_expired(&revocation, self.head.object().issued) {
                    return Err(content("a revocation had expired"));
                }
                // Those of accounts that were closed come beyond the limit of orders.
                if self.state.revocations.len() >= 2 * MAX_REVOCATIONS {
                    return Err(content("too many revocations"));
                }
                self.state.revocations.insert(revocation);
            }
            Kind::Past => {
                let digest = reader.array().map_err(malformed)?;
                self.place(RecordPlace::Past)?;
                if self.state.past.len() >= PAST {
                    return Err(content("too many digests of changes"));
                }
                self.state.past.push_back(digest);
            }
            Kind::Invitation => {
                let invitation = Invitation::read(reader).map_err(malformed)?;
                let status = InvitationStatus::read(reader).map_err(malformed)?;
                self.place(RecordPlace::Invitation(invitation.id))?;
                if !self.state.invitations.restore(invitation, status) {
                    return Err(content("too many invitations"));
                }
            }
            Kind::Reopened => {
                let (principal, generation) = (reader.u32().map_err(malformed)?, reader.u32().map_err(malformed)?);
                let at = reader.u64().map_err(malformed)?;
                Principal::new(principal).ok_or(content("an account that was opened again is of no principal"))?;
                self.place(RecordPlace::Reopened(principal, generation))?;
                self.state.reopened.push(Reopening { principal, at, generation });
            }
            Kind::Withdrawn => {
                let principal = Principal::from_octets(reader.array().map_err(malformed)?);
                let interval = Interval::new(reader.u8().map_err(malformed)?).ok_or(content("no interval"))?;
                let until = reader.u64().map_err(malformed)?;
                self.place(RecordPlace::Withdrawn(principal, interval))?;
                self.state.withdrawn.insert((principal, interval), until);
            }
        }
        Ok(())
    }

    /// Kinds ascend, and most of what is in one.
    fn place(&mut self, place: RecordPlace) -> Result<(), SnapshotError> {
        let is_next = match (self.before, place) {
            (None, _) | (Some(RecordPlace::Past), RecordPlace::Past) => true,
            (Some(RecordPlace::Grant(before)), RecordPlace::Grant(next)) => before <= next,
            (Some(before), next) => before < next,
        };
        self.before = Some(place);
        if is_next { Ok(()) } else { Err(SnapshotError::Order(self.index)) }
    }
}

//! Grants: key pairs that one neighbour makes and hands to the other (paper section III-A).
//!
//! They travel in a non-transitive attribute of their session, never further: a private half in a transitive attribute
//! would reach every AS beyond a legacy neighbour.

use std::fmt;

use wayleave_core::Asn;
use wayleave_core::wire::{Malformed, Reader};
use zeroize::Zeroizing;

use crate::sign::KeyPair;
use crate::suite::{self, KeyRefused, SuiteId};

const VERSION: u8 = 1;
/// The kind of message: a grant. 1 is not used.
const GRANT: u8 = 2;
/// Octets of a key or of a private half, at most.
const MAX_FIELD: usize = 2048;

/// A key pair that `issuer` made for `holder`, with its private half.
pub struct Grant {
    pub issuer: Asn,
    pub holder: Asn,
    pub suite: SuiteId,
    pub public: Vec<u8>,
    private: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Grant({} to {}, {})", self.issuer, self.holder, self.suite)
    }
}

/// Why keys of a neighbour were refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// Cut short, too long, or not in order.
    #[error("the grant is malformed")]
    Malformed,
    /// For another AS, or from one that is not at the other end of the session.
    #[error("the grant names {0}, which is not at this end of the session")]
    Stranger(Asn),
    /// A suite of the laboratory, or one that is not known.
    #[error("suite {0} is not accepted in a grant")]
    Suite(u8),
    /// Not a key, or halves that do not belong together.
    #[error("the granted key cannot be used: {0}")]
    Key(#[from] KeyRefused),
    /// More than one session may bring.
    #[error("the neighbour sent more grants than one session may bring")]
    TooMany,
}

impl Grant {
    /// A grant of `pair`; `None` where its suite hands no keys over.
    #[must_use]
    pub fn new(issuer: Asn, holder: Asn, pair: &KeyPair) -> Option<Self> {
        let private = pair.key.private_half()?;
        Some(Self { issuer, holder, suite: pair.suite, public: pair.key.public().to_vec(), private })
    }

    /// The encoding: version, kind 2, issuer (4), holder (4), suite, public half and private half, each with its length
    /// (2). It is a secret.
    #[must_use]
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        // Of its full size from the start, so that no part of a secret stays behind when it grows.
        let mut out = Zeroizing::new(Vec::with_capacity(16 + self.public.len() + self.private.len()));
        out.extend_from_slice(&[VERSION, GRANT]);
        out.extend_from_slice(&self.issuer.0.to_be_bytes());
        out.extend_from_slice(&self.holder.0.to_be_bytes());
        out.push(self.suite as u8);
        field(&self.public, &mut out);
        field(&self.private, &mut out);
        out
    }

    /// Reads a grant of `issuer` to `holder` and checks the pair, in less than a millisecond whatever it is.
    pub fn decode(octets: &[u8], issuer: Asn, holder: Asn, lab: bool) -> Result<KeyPair, GrantError> {
        let mut from = Reader::new(octets);
        if from.array()? != [VERSION, GRANT] {
            return Err(GrantError::Malformed);
        }
        for expected in [issuer, holder] {
            let asn = Asn(from.u32()?);
            if asn != expected {
                return Err(GrantError::Stranger(asn));
            }
        }
        let number = from.u8()?;
        let (public, private) = (read_field(&mut from)?, read_field(&mut from)?);
        from.end()?;
        let id = SuiteId::from_byte(number).filter(|id| lab || !id.is_reserved());
        let (id, suite) = id.and_then(|id| Some((id, suite::of(id)?))).ok_or(GrantError::Suite(number))?;
        let key = suite.take_granted(public, private)?;
        Ok(KeyPair { suite: id, key, registered: false })
    }
}

fn field(octets: &[u8], out: &mut Vec<u8>) {
    // Every suite's keys are shorter than `MAX_FIELD`.
    out.extend_from_slice(&(octets.len() as u16).to_be_bytes());
    out.extend_from_slice(octets);
}

impl From<Malformed> for GrantError {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

fn read_field<'a>(from: &mut Reader<'a>) -> Result<&'a [u8], GrantError> {
    let length = from.count16(1, MAX_FIELD)?;
    Ok(from.bytes(length)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wayleave_crypto::secret::Secret;

    fn pair(byte: u8) -> KeyPair {
        let suite = SuiteId::KcEd25519;
        let key = suite::of(suite).expect("standard").generate(&Secret::new([byte; 32]));
        KeyPair { suite, key, registered: false }
    }

    #[test]
    fn a_granted_pair_signs_at_its_holder_and_nowhere_else() {
        let octets = Grant::new(Asn(1), Asn(2), &pair(7)).expect("granted").encode();
        let granted = Grant::decode(&octets, Asn(1), Asn(2), false).expect("taken");
        assert_eq!(granted.key.public(), pair(7).key.public());
        assert_eq!(Grant::decode(&octets, Asn(1), Asn(3), false).err(), Some(GrantError::Stranger(Asn(2))));
        assert_eq!(Grant::decode(&octets, Asn(3), Asn(2), false).err(), Some(GrantError::Stranger(Asn(1))));
    }

    #[test]
    fn hostile_pairs_are_refused() {
        let good = Grant::new(Asn(1), Asn(2), &pair(7)).expect("granted").encode();
        let refusal = |octets: &[u8]| Grant::decode(octets, Asn(1), Asn(2), false).err();
        let mut other = good.clone();
        let last = other.len() - 1;
        other[last] ^= 1;
        assert_eq!(refusal(&other), Some(GrantError::Key(KeyRefused::Mismatch)));
        for end in 0..good.len() {
            assert!(refusal(&good[..end]).is_some());
        }
        let mut identity = good.clone();
        identity[13..45].fill(0);
        identity[13] = 1;
        assert_eq!(refusal(&identity), Some(GrantError::Key(KeyRefused::Weak("of small order"))));
    }
}

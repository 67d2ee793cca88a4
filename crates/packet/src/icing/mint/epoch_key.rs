//! A node's key of one epoch, signed by its long-term key: the secret of an old epoch is of no use in another.

use wayleave_core::UnixTime;
use wayleave_crypto::sign::{Signature, SigningKey, VerifyingKey};

use super::super::header::{NODE, NodeId};

const LABEL: &str = "wayleave/icing/epoch-key/v1";

/// Why an epoch key is refused: an error of whoever sent it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EpochKeyError {
    /// Not [`EpochKey::LENGTH`] octets.
    #[error("{0} octets, not those of a signed epoch key")]
    Length(usize),
    /// The node's ID is not a key of the curve.
    #[error("the ID is not a key of the curve")]
    Node,
    /// The validity ends before it begins.
    #[error("valid from {0} until {1}")]
    Validity(u32, u32),
    /// The signature is not the long-term key's.
    #[error("the signature is not that of the node's long-term key")]
    Signature,
    /// Not valid at this time.
    #[error("the epoch key is not valid at this time")]
    Time,
}

/// A node's ID of one epoch, with the time in which it is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EpochKey {
    /// The epoch's full number.
    pub epoch: u32,
    /// The first Unix second of use.
    pub not_before: u32,
    /// The last one.
    pub not_after: u32,
    /// The ID.
    pub node: NodeId,
}

impl EpochKey {
    /// Octets of a signed key: epoch, first and last second, ID, signature.
    pub const LENGTH: usize = 12 + NODE + 64;

    fn fields(&self) -> [u8; 12 + NODE] {
        let mut octets = [0; 12 + NODE];
        octets[..4].copy_from_slice(&self.epoch.to_be_bytes());
        octets[4..8].copy_from_slice(&self.not_before.to_be_bytes());
        octets[8..12].copy_from_slice(&self.not_after.to_be_bytes());
        octets[12..].copy_from_slice(&self.node.to_bytes());
        octets
    }

    /// The signed key, as it is published.
    #[must_use]
    pub fn sign(&self, identity: &SigningKey) -> [u8; Self::LENGTH] {
        let fields = self.fields();
        let mut octets = [0; Self::LENGTH];
        octets[..12 + NODE].copy_from_slice(&fields);
        octets[12 + NODE..].copy_from_slice(&identity.sign(LABEL, &fields));
        octets
    }

    /// A published key of the node whose long-term key is `identity`, valid at `now`.
    ///
    /// # Errors
    /// If anything about it is wrong.
    pub fn verify(octets: &[u8], identity: &VerifyingKey, now: UnixTime) -> Result<Self, EpochKeyError> {
        let octets: &[u8; Self::LENGTH] = octets.try_into().map_err(|_| EpochKeyError::Length(octets.len()))?;
        let word = |at: usize| u32::from_be_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]]);
        let (fields, signature) = octets.split_at(12 + NODE);
        let signature = Signature::try_from(signature).expect("64 octets");
        let node = octets[12..].first_chunk().and_then(|node| NodeId::from_bytes(*node));
        let key = Self {
            epoch: word(0),
            not_before: word(4),
            not_after: word(8),
            node: node.filter(NodeId::is_on_curve).ok_or(EpochKeyError::Node)?,
        };
        if key.not_after < key.not_before {
            return Err(EpochKeyError::Validity(key.not_before, key.not_after));
        }
        identity.verify(LABEL, fields, &signature).map_err(|_| EpochKeyError::Signature)?;
        if key.is_valid_at(now) { Ok(key) } else { Err(EpochKeyError::Time) }
    }

    /// Whether the ID is used at `now`.
    #[must_use]
    pub fn is_valid_at(&self, now: UnixTime) -> bool {
        (u64::from(self.not_before)..=u64::from(self.not_after)).contains(&now.secs())
    }
}

#[cfg(test)]
mod tests {
    use super::super::NodeSecret;
    use super::*;
    use wayleave_crypto::secret::Seed;

    #[test]
    fn a_published_key_holds_in_its_time_and_no_bit_of_it_may_change() {
        let identity = SigningKey::from_seed(&Seed::new([1; 32]));
        let node = NodeSecret::derive(&Seed::new([2; 32]), 9).id();
        let key = EpochKey { epoch: 9, not_before: 100, not_after: 200, node };
        let signed = key.sign(&identity);
        let at = |secs: u64| UnixTime(secs * 1_000_000);
        assert_eq!(EpochKey::verify(&signed, &identity.verifying_key(), at(100)), Ok(key));
        assert_eq!(EpochKey::verify(&signed, &identity.verifying_key(), at(200)), Ok(key));
        assert_eq!(EpochKey::verify(&signed, &identity.verifying_key(), at(99)), Err(EpochKeyError::Time));
        assert_eq!(EpochKey::verify(&signed, &identity.verifying_key(), at(201)), Err(EpochKeyError::Time));
        for bit in 0..8 * EpochKey::LENGTH {
            let mut other = signed;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(EpochKey::verify(&other, &identity.verifying_key(), at(150)).is_err(), "bit {bit}");
        }
        assert_eq!(EpochKey::verify(&signed[1..], &identity.verifying_key(), at(150)), Err(EpochKeyError::Length(107)));
    }
}

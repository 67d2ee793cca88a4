//! Keys between nodes: each node has an X25519 key, and any two derive a common key from the secret of one and the ID of the
//! other.

use std::fmt;

use wayleave_crypto::dh::{DhError, DhPublic, DhSecret};
use wayleave_crypto::kdf;
use wayleave_crypto::secret::{Key128, Secret, Seed};

use super::super::header::{NodeId, Version};

/// The label of [`PairKey`]s.
const PAIR_LABEL: &str = "wayleave/icing/pair/v1";

/// A node's secret: permanent in the paper's profile, for one epoch in the standard one.
#[derive(Clone)]
pub struct NodeSecret {
    secret: DhSecret,
    id: NodeId,
}

impl fmt::Debug for NodeSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeSecret of {:?}", self.id)
    }
}

impl NodeSecret {
    /// The secret of a uniformly random seed.
    #[must_use]
    pub fn from_seed(seed: &Seed) -> Self {
        let secret = DhSecret::from_seed(seed);
        let id = NodeId::of(secret.public());
        Self { secret, id }
    }

    /// The node's secret of `epoch`, from a seed that makes one for each. Erase the seed to erase them all.
    #[must_use]
    pub fn derive(seed: &Seed, epoch: u32) -> Self {
        Self::from_seed(&kdf::derive("wayleave/icing/node/v1", seed.expose(), &epoch.to_be_bytes()))
    }

    /// The node's ID.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// `k_ij`, the same from either side.
    ///
    /// # Errors
    /// If the peer's key is of small order; a [`NodeId`] is not.
    pub fn pair(&self, peer: &NodeId, version: Version) -> Result<PairKey, DhError> {
        let shared = self.secret.agree(peer.public())?;
        let (a, b) = (self.id.to_bytes(), peer.to_bytes());
        let mut context = [0; 65];
        // Both versions of today share their keys: what is hashed tells their packets apart.
        context[0] = version.min(Version::Standard) as u8;
        context[1..33].copy_from_slice(if a < b { &a } else { &b });
        context[33..].copy_from_slice(if a < b { &b } else { &a });
        Ok(PairKey(kdf::derive(PAIR_LABEL, shared.expose(), &context)))
    }

    /// A secret that only we and the holder of `peer` can compute, to be fed to a key derivation together with both public keys. This is
    /// how what is sealed to a node's ID is opened.
    ///
    /// # Errors
    /// If the peer's key is of small order.
    pub fn agree(&self, peer: &DhPublic) -> Result<Secret<32>, DhError> {
        self.secret.agree(peer)
    }
}

/// `k_ij`: what two nodes prove provenance to each other with.
#[derive(Clone, PartialEq, Eq)]
pub struct PairKey(Key128);

impl fmt::Debug for PairKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PairKey(..)")
    }
}

impl PairKey {
    /// The key, for computing tags and for nothing else.
    #[must_use]
    pub fn key(&self) -> &Key128 {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_derive_one_key_and_each_epoch_and_version_another() {
        let (a, b) = (NodeSecret::from_seed(&Seed::new([1; 32])), NodeSecret::from_seed(&Seed::new([2; 32])));
        let key = a.pair(&b.id(), Version::Standard).unwrap();
        assert_eq!(key, b.pair(&a.id(), Version::Standard).unwrap());
        assert_ne!(key, a.pair(&b.id(), Version::Paper).unwrap());
        assert_eq!(key, a.pair(&b.id(), Version::Sealed).unwrap());
        let seed = Seed::new([3; 32]);
        assert_ne!(NodeSecret::derive(&seed, 1).id(), NodeSecret::derive(&seed, 2).id());
    }
}

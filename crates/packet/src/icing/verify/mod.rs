//! What a node checks of a packet, given the keys that it shares with the path's other nodes.

mod burst;
mod inner;

use subtle::ConstantTimeEq;
use wayleave_crypto::lanes::{Block, CpuKernel, cbc_pair_each, encrypt_each};
use wayleave_crypto::sha256_packets::{Message, hash_each};
use zeroize::Zeroize;

use super::header::{CONSENT, FLAG_HANDLE, MAX_NODES, PROOF, Packet, RouteHash, VERIFIER, at, header_length};
use super::mint::{Consent, PairKey};
use super::proof::{consent_block, hash_head, proof_blocks, xor_into};

pub use burst::{BURST, Candidate, Verifier};
pub use inner::{InnerError, MAX_DEPTH, check_inner};

/// The longest that a packet's time may be off, in seconds: what a replay filter must remember.
pub const MAX_FRESHNESS: u32 = 30;

/// Octets of a verifier that are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compared {
    /// All 16.
    All,
    /// The first two: shows in tests that all others count.
    Two,
}

/// What a node knows of a path in which it has a place: what packets are bound to, and a key for each node.
#[derive(Clone)]
pub struct PathKeys {
    route: RouteHash,
    index: u8,
    count: u8,
    /// At place `k` what this node shares with node `k`; at its own place its consent.
    keys: [Block; MAX_NODES],
}

impl Drop for PathKeys {
    fn drop(&mut self) {
        self.keys.zeroize();
    }
}

impl std::fmt::Debug for PathKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PathKeys of node {} of {}", self.index, self.count)
    }
}

impl PathKeys {
    /// Of node `index` of a path of `count` nodes, which gives `consent`; the other nodes' keys are still missing.
    ///
    /// # Panics
    /// If the path has more than 16 nodes or `index` is none behind the sender.
    #[must_use]
    pub fn new(route: RouteHash, index: usize, count: usize, consent: &Consent) -> Self {
        assert!(0 < index && index < count && count <= MAX_NODES);
        let mut keys = [[0; 16]; MAX_NODES];
        keys[index] = *consent.key().expose();
        Self { route, index: index as u8, count: count as u8, keys }
    }

    /// Takes what is shared with node `other`, which is not this one.
    pub fn set_pair(&mut self, other: usize, key: &PairKey) {
        if other != self.index() {
            self.keys[other] = *key.key().expose();
        }
    }

    /// Whether this node's consent is this one, compared in constant time.
    #[must_use]
    pub fn is_under(&self, consent: &Consent) -> bool {
        self.keys[self.index()].ct_eq(consent.key().expose()).into()
    }

    /// This node's place in the path.
    #[must_use]
    pub fn index(&self) -> usize {
        usize::from(self.index)
    }

    /// Nodes of the path.
    #[must_use]
    pub fn count(&self) -> usize {
        usize::from(self.count)
    }

    /// What packets on the path are bound to.
    #[must_use]
    pub fn route(&self) -> &RouteHash {
        &self.route
    }

    /// Whether the pre-check is right: the sender holds this node's consent. Needs no key of any other node.
    #[must_use]
    pub fn is_consented(&self, packet: &Packet<'_>) -> bool {
        let mut block = [consent_block(&self.route, &packet.nonce())];
        encrypt_each(CpuKernel::PORTABLE, &self.keys[self.index()..], &mut block);
        is_consent(&block[0], packet.consent(self.index()))
    }

    /// The verdict on one packet, whose path this is.
    #[must_use]
    pub fn verify(&self, packet: &Packet<'_>, compared: Compared) -> Option<Proved> {
        let front = packet.octets().first_chunk().expect("a packet has its front");
        let head = hash_head(front, &self.route);
        let mut hash = [[0; 32]];
        hash_each(&[Message { head: &head, tail: packet.payload() }], &mut hash);
        let [hash] = hash;
        let (mut tags, mut second) = ([[0; 16]; MAX_NODES], [[0; 16]; MAX_NODES]);
        for (other, (first, second)) in tags.iter_mut().zip(&mut second).enumerate().take(self.count()) {
            [*first, *second] = self.blocks(other, &hash);
        }
        let count = self.count();
        cbc_pair_each(CpuKernel::PORTABLE, &self.keys[..count], &mut tags[..count], &second[..count]);
        let proved = Proved { hash, tags };
        proved.is_proof(self.index(), packet.verifier(self.index()), compared).then_some(proved)
    }

    /// The two blocks for the tag between this node and node `other`, or for its own consent.
    #[inline]
    fn blocks(&self, other: usize, hash: &[u8; 32]) -> [Block; 2] {
        let here = self.index();
        proof_blocks(other.min(here), other.max(here), hash)
    }
}

/// Whether a pre-check's first octets are those presented, without a branch on any of them.
#[inline]
fn is_consent(tag: &Block, presented: &[u8; CONSENT]) -> bool {
    let expected: &[u8; CONSENT] = tag.first_chunk().expect("eight of sixteen");
    u64::from_ne_bytes(*expected) ^ u64::from_ne_bytes(*presented) == 0
}

/// What a node computed of a packet. Its tags are secret until they are sent, and not printed.
#[derive(Clone)]
pub struct Proved {
    /// `H`: no two packets have one.
    pub hash: [u8; 32],
    /// At place `k` the tag between this node and node `k`.
    tags: [Block; MAX_NODES],
}

impl std::fmt::Debug for Proved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Proved(..)")
    }
}

impl Proved {
    const BLANK: Self = Self { hash: [0; 32], tags: [[0; 16]; MAX_NODES] };

    /// Whether `V_i = A_i ^ XOR_{k<i} PoP_ki`, without a branch on any octet.
    #[inline]
    fn is_proof(&self, here: usize, presented: &[u8; VERIFIER], compared: Compared) -> bool {
        let mut difference = *presented;
        for tag in &self.tags[..=here] {
            xor_into(&mut difference, tag);
        }
        let beyond = match compared {
            Compared::All => 0,
            Compared::Two => 112,
        };
        u128::from_be_bytes(difference) >> beyond == 0
    }

    /// Octets that no two packets share.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 16] {
        *self.hash.first_chunk().expect("16 of 32")
    }

    /// Writes into a verified packet that it passed here: proofs for the nodes behind, the bit of who holds the path, and
    /// the next index unless this is the last node. `octets` are the packet's.
    #[inline]
    pub fn advance(&self, octets: &mut [u8]) {
        let (count, index) = (usize::from(octets[at::COUNT]), usize::from(octets[at::INDEX]));
        let begin = header_length(count, octets[0] & FLAG_HANDLE == 0) - (count - 1) * PROOF;
        let (proofs, _) = octets[begin + index * PROOF..].as_chunks_mut::<PROOF>();
        for (proof, tag) in proofs.iter_mut().zip(&self.tags[index + 1..count]) {
            let verifier: &mut [u8; VERIFIER] = proof.last_chunk_mut().expect("16 of 24");
            xor_into(verifier, tag);
        }
        let held = u16::from_be_bytes([octets[at::HELD], octets[at::HELD + 1]]) | 1 << index;
        octets[at::HELD..at::NONCE].copy_from_slice(&held.to_be_bytes());
        octets[at::INDEX] += u8::from(index + 1 < count);
    }
}

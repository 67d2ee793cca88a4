//! The rules of ICING for one packet at one node: a named check for each, in the order in which a node applies them.
//!
//! This is the specification in code: scalar, total, and free of a node's state. `docs/wire/icing.md` states the same rules
//! in words. What depends on a node's configuration (its IDs, its links, what tags mean) or on other packets (replays,
//! accounts) is decided by the router.

mod inner_packet;

use subtle::ConstantTimeEq;
use wayleave_core::UnixTime;
use wayleave_crypto::lanes::Block;
use zeroize::Zeroize;

use super::header::{
    CONSENT, FLAG_HANDLE, MAX_NODES, NodeId, PROOF, Packet, RouteHash, VERIFIER, Version, at, header_length,
};
use super::mint::{Consent, PairKey, TAG_EPOCH};
use super::proof::{consent_tag, is_sample, packet_hash, proof_tag, sample_hash, sealed_ends, sender_tags, xor_into};

pub use inner_packet::{InnerError, MAX_DEPTH, check_inner};

/// Seconds by which a packet's time may lie behind the node's clock, at least and at most as the node sets it: what a replay
/// filter must remember.
pub const MIN_FRESHNESS: u32 = 2;
pub const MAX_FRESHNESS: u32 = 5;
/// Seconds by which a packet's time may lie ahead of the node's clock.
pub const MAX_AHEAD: u32 = 1;

/// Consent may end this many seconds from now, and no later: two epochs of tag keys.
pub const MAX_CONSENT: u32 = 2 << TAG_EPOCH;

/// The rule that a packet breaks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// The handle is not that of the path, or of a path with as many nodes.
    Handle,
    /// The node at the packet's index is not this one.
    NotForUs,
    /// The consent has ended.
    Expired,
    /// The consent ends later than any may.
    Future,
    /// The packet's time is too far off.
    Stale,
    /// The pre-check is wrong: this node, or its delegate, did not consent.
    Consent,
    /// A node of the path has an ID that is not a key of the curve.
    Node,
    /// The verifier is wrong: no consent, or the packet did not come the way that its path says.
    Verifier,
    /// The same of a sealed packet that is a sample, so that the payload may be another than the sender's too.
    Sample,
}

/// The handle is that of the packet's path, which is bound to `route`.
pub fn check_handle(packet: &Packet<'_>, route: &RouteHash) -> Result<(), Reason> {
    if route.handle() == packet.handle() { Ok(()) } else { Err(Reason::Handle) }
}

/// The packet is on the path that is remembered for its handle, which is for packets of `version` and has `count` nodes and these
/// octets: a handle alone agrees in version and count, a path in every octet.
#[inline(always)]
pub fn check_same_path(packet: &Packet<'_>, version: Version, count: usize, octets: &[u8]) -> Result<(), Reason> {
    let is_alike = packet.version() == version && packet.count() == count;
    let is_same = is_alike && packet.path().is_none_or(|path| path == octets);
    if is_same { Ok(()) } else { Err(Reason::Handle) }
}

/// The packet is on its way to the node at `index`.
#[inline(always)]
pub fn check_index(packet: &Packet<'_>, index: usize) -> Result<(), Reason> {
    if packet.index() == index { Ok(()) } else { Err(Reason::NotForUs) }
}

/// The node's consent, which ends at `expiry`, has not ended, and ends no later than any may. Times have 32 bits, which wrap
/// in 2106; their difference has a sign. The paper's version knows no time.
#[inline(always)]
pub fn check_expiry(version: Version, expiry: u32, now: UnixTime) -> Result<(), Reason> {
    let ahead = expiry.wrapping_sub(now.secs() as u32).cast_signed();
    match version {
        Version::Paper => Ok(()),
        Version::Standard | Version::Sealed if ahead < 0 => Err(Reason::Expired),
        Version::Standard | Version::Sealed if ahead.cast_unsigned() > MAX_CONSENT => Err(Reason::Future),
        Version::Standard | Version::Sealed => Ok(()),
    }
}

/// The packet was made at most `freshness` seconds ago, and not more than [`MAX_AHEAD`] ahead of now. The paper's version knows
/// no time.
#[inline(always)]
pub fn check_freshness(version: Version, packet: &Packet<'_>, freshness: u32, now: UnixTime) -> Result<(), Reason> {
    // Counted from the latest time that passes.
    let behind = (now.secs() as u32).wrapping_add(MAX_AHEAD).wrapping_sub(packet.seconds());
    if version != Version::Paper && behind > freshness + MAX_AHEAD { Err(Reason::Stale) } else { Ok(()) }
}

/// The pre-check is right: the sender holds this node's consent. It costs one AES block, and no key of any other node. The
/// paper's version has none; there the verifier alone shows consent.
pub fn check_consent(version: Version, packet: &Packet<'_>, keys: &PathKeys) -> Result<(), Reason> {
    let tag = consent_tag(keys.own_key(), keys.route(), &packet.nonce());
    let is_right = version == Version::Paper || is_consent(&tag, packet.consent(keys.index()));
    if is_right { Ok(()) } else { Err(Reason::Consent) }
}

/// Whether a [`consent_tag`] begins with the `presented` pre-check, without a branch on any octet.
#[inline]
#[must_use]
pub fn is_consent(tag: &Block, presented: &[u8; CONSENT]) -> bool {
    let expected: &[u8; CONSENT] = tag.first_chunk().expect("eight of sixteen");
    u64::from_ne_bytes(*expected) ^ u64::from_ne_bytes(*presented) == 0
}

/// The node's ID is a point of the curve and not of its twist: only then is what it shares with us a secret.
pub fn check_node(node: &NodeId) -> Result<(), Reason> {
    if node.is_on_curve() { Ok(()) } else { Err(Reason::Node) }
}

/// The verifier is right: this node consented, and the packet passed every node in front of it.
pub fn check_verifier(packet: &Packet<'_>, keys: &PathKeys) -> Result<ProofTags, Reason> {
    let tags = keys.proof_tags(packet);
    let difference = tags.verifier_difference(keys.index(), packet.verifier(keys.index()));
    if difference == 0 { Ok(tags) } else { Err(tags.fault()) }
}

/// What a node knows of a path on which it has a place: what packets are bound to, and a key for each node.
#[derive(Clone)]
pub struct PathKeys {
    route: RouteHash,
    index: u8,
    count: u8,
    /// At index `k` the key shared with node `k`; at the node's own index its consent.
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
    /// Of node `index` of a path of `count` nodes, which gives `consent`. The keys shared with other nodes are still missing.
    ///
    /// # Panics
    /// If the path has more than 16 nodes, or `index` is not one behind the sender.
    #[must_use]
    pub fn new(route: RouteHash, index: usize, count: usize, consent: &Consent) -> Self {
        assert!(0 < index && index < count && count <= MAX_NODES);
        let mut keys = [[0; 16]; MAX_NODES];
        keys[index] = *consent.key().expose();
        Self { route, index: index as u8, count: count as u8, keys }
    }

    /// Sets the key shared with node `other`; the node's own index is left alone.
    pub fn set_pair(&mut self, other: usize, key: &PairKey) {
        if other != self.index() {
            self.keys[other] = *key.key().expose();
        }
    }

    /// Whether the node's consent is this one, compared in constant time.
    #[must_use]
    pub fn is_under(&self, consent: &Consent) -> bool {
        self.own_key().ct_eq(consent.key().expose()).into()
    }

    /// The node's index on the path.
    #[inline]
    #[must_use]
    pub fn index(&self) -> usize {
        usize::from(self.index)
    }

    /// The number of nodes.
    #[inline]
    #[must_use]
    pub fn count(&self) -> usize {
        usize::from(self.count)
    }

    /// What packets on the path are bound to.
    #[inline]
    #[must_use]
    pub fn route(&self) -> &RouteHash {
        &self.route
    }

    /// The key shared with each node of the path, and the node's consent at its own index: for computing tags, and for
    /// nothing else.
    #[inline]
    #[must_use]
    pub fn keys(&self) -> &[Block] {
        &self.keys[..self.count()]
    }

    /// The node's consent, as a key.
    #[inline]
    #[must_use]
    pub fn own_key(&self) -> &Block {
        &self.keys[self.index()]
    }

    /// The hash of a packet on this path, and the tags between this node and all nodes.
    #[must_use]
    pub fn proof_tags(&self, packet: &Packet<'_>) -> ProofTags {
        let front = packet.octets().first_chunk().expect("a packet has its fixed fields");
        let payload = packet.payload();
        let mut proof = ProofTags { hash: packet_hash(front, &self.route, payload), ..ProofTags::BLANK };
        let here = self.index();
        for (other, (tag, key)) in proof.tags.iter_mut().zip(self.keys()).enumerate() {
            *tag = proof_tag(key, other.min(here), other.max(here), &proof.hash);
        }
        if sealed_ends(front, payload).is_some() && proof.is_due_as_sample() {
            let keys = [self.own_key(), &self.keys[0]];
            proof.set_sample(here, sender_tags(keys, here, &sample_hash(&proof.hash, payload)));
        }
        proof
    }
}

/// What a node computes of a packet. The tags are secret until they are sent, and are not printed.
#[derive(Clone)]
pub struct ProofTags {
    /// `H`, which no two packets share.
    hash: [u8; 32],
    /// At index `k` the tag between this node and node `k`; at the node's own index `A_i`.
    tags: [Block; MAX_NODES],
    /// The sender's proofs for this node cover the payload of a sealed packet too.
    is_sample: bool,
}

impl std::fmt::Debug for ProofTags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ProofTags(..)")
    }
}

impl ProofTags {
    /// Of no packet yet.
    pub const BLANK: Self = Self { hash: [0; 32], tags: [[0; 16]; MAX_NODES], is_sample: false };

    /// Sets the hash of a packet, and the tags of the nodes of its path: at most 16.
    #[inline]
    pub fn set(&mut self, hash: &[u8; 32], tags: &[Block]) {
        self.hash = *hash;
        self.tags[..tags.len()].copy_from_slice(tags);
        self.is_sample = false;
    }

    /// Whether a sealed packet with these tags over `H` is a sample for this node.
    #[inline]
    #[must_use]
    pub fn is_due_as_sample(&self) -> bool {
        is_sample(&self.tags[0])
    }

    /// Sets what the sender's proofs for this node at index `here` are made of if the packet is a sample: [`sender_tags`] over `H'`.
    #[inline]
    pub fn set_sample(&mut self, here: usize, [authenticator, provenance]: [Block; 2]) {
        (self.tags[here], self.tags[0], self.is_sample) = (authenticator, provenance, true);
    }

    /// Whether the sender's proofs for this node cover the payload of a sealed packet too.
    #[inline]
    #[must_use]
    pub fn is_sample(&self) -> bool {
        self.is_sample
    }

    /// Which rule a packet with another verifier breaks.
    #[inline]
    #[must_use]
    pub fn fault(&self) -> Reason {
        if self.is_sample { Reason::Sample } else { Reason::Verifier }
    }

    /// `H` of the packet.
    #[inline]
    #[must_use]
    pub fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// What a replay filter remembers of the packet: the first half of `H`.
    #[inline]
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 16] {
        *self.hash.first_chunk().expect("16 of 32")
    }

    /// `V_i ^ A_i ^ XOR_{k<i} PoP_ki` for the `presented` verifier of node `here`: zero if it is right. All octets are
    /// compared at once, without a branch.
    #[inline]
    #[must_use]
    pub fn verifier_difference(&self, here: usize, presented: &[u8; VERIFIER]) -> u128 {
        let mut difference = *presented;
        for tag in &self.tags[..=here] {
            xor_into(&mut difference, tag);
        }
        u128::from_be_bytes(difference)
    }

    /// Writes into a verified packet that it passed here: the proofs for the nodes behind, the bit of who holds the path, and
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

#[cfg(test)]
mod tests {
    use wayleave_crypto::secret::{Key128, Seed};

    use super::super::header::{Hop, Part, Path, Tag};
    use super::super::mint::{Form, NodeSecret, Nonce, Sender, TagMaster, encapsulate, tag_epoch};
    use super::*;

    const NOW: u32 = 1_800_000_000;

    #[test]
    fn every_bit_of_the_verifier_counts() {
        let secret = |node: u8| NodeSecret::from_seed(&Seed::new([node; 32]));
        let master = TagMaster::new(Key128::new([7; 16]));
        let hop = |node: u8| Hop { node: secret(node).id(), tag: Tag(5), expiry: NOW };
        let path = Path::new(secret(1).id(), &[hop(2), hop(3)]).expect("three nodes");
        let hash = path.hash(Version::Standard);
        assert_eq!(tag_epoch(NOW), NOW >> TAG_EPOCH);
        let consents: Vec<Consent> = (1..3).map(|index| master.consent(&hash, index, Tag(5), NOW)).collect();
        let sender = Sender::new(Version::Standard, &path, &secret(1), &consents).expect("a consent of each");
        let mut octets = Vec::new();
        let nonce = Nonce::new(UnixTime(u64::from(NOW) * 1_000_000), 1);
        encapsulate(&sender, (Form::Path, Part::Whole), 4, nonce, b"payload", &mut octets).expect("it fits");
        let mut keys = PathKeys::new(path.route(Version::Standard), 1, 3, &consents[0]);
        for other in [0, 2] {
            keys.set_pair(other, &secret(2).pair(path.node(other), Version::Standard).expect("honest keys"));
        }
        let check = |octets: &[u8]| {
            let packet = Packet::decode(octets, Version::Standard).expect("well-formed");
            check_verifier(&packet, &keys).map(drop)
        };
        assert_eq!(check(&octets), Ok(()));
        let verifier = header_length(3, true) - 2 * PROOF + CONSENT;
        for bit in 0..8 * VERIFIER {
            octets[verifier + bit / 8] ^= 1 << (bit % 8);
            assert_eq!(check(&octets), Err(Reason::Verifier), "bit {bit}");
            octets[verifier + bit / 8] ^= 1 << (bit % 8);
        }
    }
}

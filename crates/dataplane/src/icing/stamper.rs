//! Stamping many packets at once, in lanes: the results are those of [`wayleave_packet::icing::mint::encapsulate`].

use wayleave_crypto::lanes::{BURST, Block, CpuKernel, cbc_pair_each, encrypt_each};
use wayleave_crypto::sha256_packets::{HEAD, Message, hash_each};
use wayleave_packet::icing::header::{CONSENT, MAX_NODES, PROOF};
use wayleave_packet::icing::mint::{Front, MintError, Sender};
use wayleave_packet::icing::proof::{consent_block, hash_blocks, hash_head, with_indices};

/// Packets whose proofs are computed together.
const GROUP: usize = 8;
/// Blocks of working memory: a consent and a provenance for each node behind the sender.
const SCRATCH: usize = GROUP * 2 * MAX_NODES;

/// A packet to be stamped.
#[derive(Debug)]
pub struct Stamp<'a> {
    pub sender: &'a Sender,
    pub front: Front,
    /// [`Sender::header_length`] octets of room, then the payload.
    pub octets: &'a mut [u8],
}

/// One core's working memory.
pub struct Stamper {
    kernel: CpuKernel,
    keys: [Block; SCRATCH],
    first: [Block; SCRATCH],
    second: [Block; SCRATCH],
    hashes: [[u8; 32]; BURST],
}

impl std::fmt::Debug for Stamper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stamper on {}", self.kernel.name())
    }
}

impl Stamper {
    #[must_use]
    pub fn new(kernel: CpuKernel) -> Self {
        let blank = [[0; 16]; SCRATCH];
        Self { kernel, keys: blank, first: blank, second: blank, hashes: [[0; 32]; BURST] }
    }

    /// Writes the headers of at most [`BURST`] packets; the others are left alone.
    ///
    /// # Errors
    /// If a packet has no room for its header, or its payload is too long; then none is written.
    pub fn stamp(&mut self, stamps: &mut [Stamp<'_>]) -> Result<(), MintError> {
        let count = stamps.len().min(BURST);
        let stamps = &mut stamps[..count];
        for stamp in &*stamps {
            stamp.sender.payload_length(stamp.front.form, stamp.octets.len())?;
        }
        for stamp in &mut *stamps {
            stamp.sender.write_front(&stamp.front, stamp.octets)?;
        }
        self.hash(stamps);
        for (number, group) in stamps.chunks_mut(GROUP).enumerate() {
            self.prove(group, number * GROUP);
        }
        Ok(())
    }

    fn hash(&mut self, stamps: &[Stamp<'_>]) {
        let mut heads = [[0; HEAD]; BURST];
        for (head, stamp) in heads.iter_mut().zip(stamps) {
            *head = hash_head(stamp.octets.first_chunk().expect("the front was written"), stamp.sender.route());
        }
        let mut messages = [Message { head: &heads[0], tail: &[] }; BURST];
        for ((message, head), stamp) in messages.iter_mut().zip(&heads).zip(stamps) {
            *message = Message { head, tail: &stamp.octets[stamp.sender.header_length(stamp.front.form)..] };
        }
        hash_each(&messages[..stamps.len()], &mut self.hashes);
    }

    /// Writes pre-checks and verifiers of at most [`GROUP`] packets, whose hashes begin at `slot`.
    fn prove(&mut self, group: &mut [Stamp<'_>], slot: usize) {
        let mut used = 0;
        for stamp in &*group {
            let block = consent_block(stamp.sender.route(), &stamp.front.nonce.0.to_be_bytes());
            for index in 1..stamp.sender.count() {
                let [consent, _] = stamp.sender.keys(index);
                self.keys[used] = *consent;
                self.first[used] = block;
                used += 1;
            }
        }
        encrypt_each(self.kernel, &self.keys[..used], &mut self.first[..used]);
        let mut tags = self.first[..used].iter();
        for stamp in &mut *group {
            for (proof, tag) in proofs(stamp).zip(&mut tags) {
                proof[..CONSENT].copy_from_slice(&tag[..CONSENT]);
            }
        }
        let mut used = 0;
        for (stamp, hash) in group.iter().zip(&self.hashes[slot..]) {
            let (first, second) = hash_blocks(hash);
            for index in 1..stamp.sender.count() {
                // A_j is under PoC_j with index j twice, PoP_0j under k_0j.
                for (key, from) in stamp.sender.keys(index).into_iter().zip([index, 0]) {
                    self.keys[used] = *key;
                    (self.first[used], self.second[used]) = (with_indices(first, from, index), second);
                    used += 1;
                }
            }
        }
        cbc_pair_each(self.kernel, &self.keys[..used], &mut self.first[..used], &self.second[..used]);
        let mut tags = self.first[..used].as_chunks::<2>().0.iter();
        for stamp in group {
            for (proof, [authenticator, provenance]) in proofs(stamp).zip(&mut tags) {
                let verifier = u128::from_ne_bytes(*authenticator) ^ u128::from_ne_bytes(*provenance);
                proof[CONSENT..].copy_from_slice(&verifier.to_ne_bytes());
            }
        }
    }
}

/// The proofs of a packet, node 1's first.
fn proofs<'a>(stamp: &'a mut Stamp<'_>) -> impl Iterator<Item = &'a mut [u8; PROOF]> {
    let end = stamp.sender.header_length(stamp.front.form);
    let begin = end - (stamp.sender.count() - 1) * PROOF;
    stamp.octets[begin..end].as_chunks_mut().0.iter_mut()
}

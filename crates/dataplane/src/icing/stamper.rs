//! Stamping many packets at once, in lanes: the results are those of [`wayleave_packet::icing::mint::encapsulate`].

use wayleave_crypto::lanes::{BURST, Block, CpuKernel, cbc_pair_each, encrypt_each};
use wayleave_crypto::sha256_packets::{HEAD, Message, hash_each};
use wayleave_packet::icing::header::{CONSENT, MAX_NODES, MIN_SEALED, PROOF};
use wayleave_packet::icing::mint::{Front, MintError, Sender};
use wayleave_packet::icing::proof::{
    consent_block, hash_blocks, hash_head, is_sample, sample_hash, sealed_ends, with_indices,
};

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
    /// Of each packet that is sealed, what stands for its payload.
    ends: [Option<[u8; MIN_SEALED]>; BURST],
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
        Self { kernel, keys: blank, first: blank, second: blank, hashes: [[0; 32]; BURST], ends: [None; BURST] }
    }

    /// Writes the headers of at most [`BURST`] packets; the others are left alone.
    ///
    /// # Errors
    /// If a packet has no room for its header, or its payload is too long, or not sealed on a path for what is; then none is written.
    pub fn stamp(&mut self, stamps: &mut [Stamp<'_>]) -> Result<(), MintError> {
        let count = stamps.len().min(BURST);
        let stamps = &mut stamps[..count];
        for stamp in &*stamps {
            stamp.sender.payload_length(&stamp.front, stamp.octets.len())?;
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
        for ((head, ends), stamp) in heads.iter_mut().zip(&mut self.ends).zip(stamps) {
            let front = stamp.octets.first_chunk().expect("the front was written");
            (*head, *ends) = (hash_head(front, stamp.sender.route()), sealed_ends(front, payload(stamp)));
        }
        let mut messages = [Message { head: &heads[0], tail: &[] }; BURST];
        for ((message, head), (ends, stamp)) in messages.iter_mut().zip(&heads).zip(self.ends.iter().zip(stamps)) {
            *message = Message { head, tail: ends.as_ref().map_or_else(|| payload(stamp), |ends| &ends[..]) };
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
        let tags = self.first[..used].as_chunks_mut::<2>().0;
        let mut rest = &mut *tags;
        for (number, stamp) in (slot..).zip(&*group) {
            let (own, others) = rest.split_at_mut(stamp.sender.count() - 1);
            if self.ends[number].is_some() {
                sample(self.kernel, stamp, &self.hashes[number], own);
            }
            rest = others;
        }
        let mut tags = tags.iter();
        for stamp in group {
            for (proof, [authenticator, provenance]) in proofs(stamp).zip(&mut tags) {
                let verifier = u128::from_ne_bytes(*authenticator) ^ u128::from_ne_bytes(*provenance);
                proof[CONSENT..].copy_from_slice(&verifier.to_ne_bytes());
            }
        }
    }
}

/// Puts those over `H'` in the place of the tags over `H` of nodes for which the packet is a sample: sender.rs, `encapsulate`.
#[inline]
fn sample(kernel: CpuKernel, stamp: &Stamp<'_>, hash: &[u8; 32], tags: &mut [[Block; 2]]) {
    let mut blocks = None;
    for (index, tags) in (1..).zip(tags).filter(|(_, [_, provenance])| is_sample(provenance)) {
        let (first, second) = *blocks.get_or_insert_with(|| hash_blocks(&sample_hash(hash, payload(stamp))));
        *tags = [with_indices(first, index, index), with_indices(first, 0, index)];
        cbc_pair_each(kernel, &stamp.sender.keys(index).map(|key| *key), tags, &[second; 2]);
    }
}

fn payload<'a>(stamp: &'a Stamp<'_>) -> &'a [u8] {
    &stamp.octets[stamp.sender.header_length(stamp.front.form)..]
}

/// The proofs of a packet, node 1's first.
fn proofs<'a>(stamp: &'a mut Stamp<'_>) -> impl Iterator<Item = &'a mut [u8; PROOF]> {
    let end = stamp.sender.header_length(stamp.front.form);
    let begin = end - (stamp.sender.count() - 1) * PROOF;
    stamp.octets[begin..end].as_chunks_mut().0.iter_mut()
}

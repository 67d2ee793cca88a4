//! The vector path: hashes and tags of the packets on known paths, in lanes.
//!
//! Nothing else depends on this file: without it, the router checks every packet by itself with the functions of
//! `verify.rs`, with the same results.

use wayleave_crypto::lanes::{BURST, Block, CpuKernel, cbc_pair_each, encrypt_each};
use wayleave_crypto::sha256_packets::{HEAD, Message, hash_each};
use wayleave_packet::icing::header::{MAX_NODES, MIN_SEALED, Packet};
use wayleave_packet::icing::proof::{consent_block, hash_blocks, hash_head, sample_hash, sealed_ends, with_indices};
use wayleave_packet::icing::verify::{PathKeys, ProofTags, is_consent};

/// Packets whose tags are computed together. Each has a tag for every node of its path, so that the tags of a few packets
/// fill all lanes, and more would leave the nearest cache.
const GROUP: usize = 16;
/// Blocks of working memory: a tag for each node of every path.
const SCRATCH: usize = GROUP * MAX_NODES;

/// A packet on a known path, on its way to this node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) packet: Packet<'a>,
    pub(super) keys: &'a PathKeys,
}

/// One core's working memory. Results are bit masks over the candidates, the first one in the lowest bit.
pub(super) struct Lanes {
    kernel: CpuKernel,
    keys: Box<[Block; SCRATCH]>,
    first: Box<[Block; SCRATCH]>,
    second: Box<[Block; SCRATCH]>,
    heads: Box<[[u8; HEAD]; BURST]>,
    /// Of each candidate that is sealed, what stands for its payload.
    ends: Box<[Option<[u8; MIN_SEALED]>; BURST]>,
    hashes: Box<[[u8; 32]; BURST]>,
    proofs: Box<[ProofTags; BURST]>,
    /// Octets of payloads that were hashed.
    hashed: u64,
}

impl Lanes {
    pub(super) fn new(kernel: CpuKernel) -> Self {
        let blank = || Box::new([[0; 16]; SCRATCH]);
        Self {
            kernel,
            keys: blank(),
            first: blank(),
            second: blank(),
            heads: Box::new([[0; HEAD]; BURST]),
            ends: Box::new([None; BURST]),
            hashes: Box::new([[0; 32]; BURST]),
            proofs: Box::new([ProofTags::BLANK; BURST]),
            hashed: 0,
        }
    }

    /// The kernel that computes, for which the router's other code is compiled too.
    pub(super) fn kernel(&self) -> CpuKernel {
        self.kernel
    }

    /// The candidates whose pre-check is right (verify.rs: `check_consent`): one AES block each.
    #[inline(always)]
    pub(super) fn check_consents(&mut self, candidates: &[Option<Candidate<'_>>]) -> u64 {
        let count = candidates.len().min(BURST);
        for (slot, candidate) in candidates[..count].iter().enumerate() {
            let Some(Candidate { packet, keys }) = candidate else { continue };
            self.keys[slot] = *keys.own_key();
            self.first[slot] = consent_block(keys.route(), &packet.nonce());
        }
        encrypt_each(self.kernel, &self.keys[..count], &mut self.first[..count]);
        let mut right = 0;
        for (slot, candidate) in candidates[..count].iter().enumerate() {
            let Some(Candidate { packet, keys }) = candidate else { continue };
            right |= u64::from(is_consent(&self.first[slot], packet.consent(keys.index()))) << slot;
        }
        right
    }

    /// The candidates whose verifier is right (verify.rs: `check_verifier`). `mask` has the verifier's bits that count: all
    /// of them outside of a test.
    #[inline(always)]
    pub(super) fn check_verifiers(&mut self, candidates: &[Option<Candidate<'_>>], mask: u128) -> u64 {
        let candidates = &candidates[..candidates.len().min(BURST)];
        self.hash(candidates);
        let mut right = 0;
        for (number, group) in candidates.chunks(GROUP).enumerate() {
            let begin = number * GROUP;
            self.tag(group, begin);
            for (slot, candidate) in (begin..).zip(group) {
                let Some(Candidate { packet, keys }) = candidate else { continue };
                let here = keys.index();
                let difference = self.proofs[slot].verifier_difference(here, packet.verifier(here)) & mask;
                right |= u64::from(difference == 0) << slot;
            }
        }
        right
    }

    /// Octets of payloads that were hashed since the last call.
    pub(super) fn take_hashed(&mut self) -> u64 {
        std::mem::take(&mut self.hashed)
    }

    /// The tags of candidate `slot` of the last [`Lanes::check_verifiers`].
    pub(super) fn proof(&self, slot: usize) -> &ProofTags {
        &self.proofs[slot]
    }

    /// The packets' hashes: proof.rs, `packet_hash`.
    #[inline(always)]
    fn hash(&mut self, candidates: &[Option<Candidate<'_>>]) {
        for ((head, ends), candidate) in self.heads.iter_mut().zip(self.ends.iter_mut()).zip(candidates) {
            if let Some(Candidate { packet, keys }) = candidate {
                let front = packet.octets().first_chunk().expect("a packet has its front");
                (*head, *ends) = (hash_head(front, keys.route()), sealed_ends(front, packet.payload()));
            }
        }
        let mut messages = [Message { head: &self.heads[0], tail: &[] }; BURST];
        let inputs = self.heads.iter().zip(self.ends.iter()).zip(candidates);
        for (message, ((head, ends), candidate)) in messages.iter_mut().zip(inputs) {
            let tail = match (ends, candidate) {
                (Some(ends), Some(_)) => &ends[..],
                (None, Some(one)) => one.packet.payload(),
                (_, None) => &[],
            };
            self.hashed += tail.len() as u64;
            *message = Message { head, tail };
        }
        hash_each(&messages[..candidates.len()], &mut self.hashes[..]);
    }

    /// The tags of at most [`GROUP`] candidates, of which the first has slot `begin`: proof.rs, `proof_tag`. The tags of all
    /// packets stand one after another, so that lanes stay full whatever the lengths of paths.
    #[inline(always)]
    fn tag(&mut self, group: &[Option<Candidate<'_>>], begin: usize) {
        let mut used = 0;
        for (slot, candidate) in (begin..).zip(group) {
            let Some(Candidate { keys, .. }) = candidate else { continue };
            let (hash, count) = (&self.hashes[slot], keys.count());
            self.keys[used..used + count].copy_from_slice(keys.keys());
            let (first, second) = hash_blocks(hash);
            let (below, above) = self.first[used..used + count].split_at_mut(keys.index());
            for (other, block) in below.iter_mut().enumerate() {
                *block = with_indices(first, other, keys.index());
            }
            for (other, block) in (keys.index()..).zip(above) {
                *block = with_indices(first, keys.index(), other);
            }
            self.second[used..used + count].fill(second);
            used += count;
        }
        cbc_pair_each(self.kernel, &self.keys[..used], &mut self.first[..used], &self.second[..used]);
        let mut used = 0;
        for (slot, candidate) in (begin..).zip(group) {
            let Some(Candidate { keys, .. }) = candidate else { continue };
            let count = keys.count();
            self.proofs[slot].set(&self.hashes[slot], &self.first[used..used + count]);
            used += count;
        }
        for (slot, candidate) in (begin..).zip(group) {
            if let Some(candidate) = candidate
                && self.ends[slot].is_some()
                && self.proofs[slot].is_due_as_sample()
            {
                self.sample(slot, candidate);
            }
        }
    }

    /// The sender's tags of a sample: verify.rs, `PathKeys::proof_tags`. One packet in 64 is one.
    #[cold]
    fn sample(&mut self, slot: usize, Candidate { packet, keys }: &Candidate<'_>) {
        self.hashed += packet.payload().len() as u64;
        let (first, second) = hash_blocks(&sample_hash(&self.hashes[slot], packet.payload()));
        let here = keys.index();
        let mut tags = [with_indices(first, here, here), with_indices(first, 0, here)];
        cbc_pair_each(self.kernel, &[*keys.own_key(), keys.keys()[0]], &mut tags, &[second; 2]);
        self.proofs[slot].set_sample(here, tags);
    }
}

//! The checks of many packets at once: hashes and tags in lanes. The verdicts are those of [`PathKeys`].

use wayleave_crypto::lanes::{Block, CpuKernel, Work, cbc_pair_each, encrypt_each};
use wayleave_crypto::sha256_packets::{HEAD, Message, hash_each};

use super::super::header::{MAX_NODES, Packet};
use super::super::proof::{consent_block, hash_blocks, hash_head, with_indices};
use super::{Compared, PathKeys, Proved, is_consent};

/// Packets at a time.
pub const BURST: usize = 64;
/// Packets whose tags are computed at a time.
const GROUP: usize = 16;
/// Blocks of scratch.
const SCRATCH: usize = GROUP * MAX_NODES;

/// A packet, and what is known of its path, in which this node is the one that the packet is on its way to.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The packet.
    pub packet: Packet<'a>,
    /// Its path.
    pub path: &'a PathKeys,
}

/// One core's scratch.
pub struct Verifier {
    kernel: CpuKernel,
    compared: Compared,
    keys: Box<[Block; SCRATCH]>,
    first: Box<[Block; SCRATCH]>,
    second: Box<[Block; SCRATCH]>,
    heads: Box<[[u8; HEAD]; BURST]>,
    hashes: Box<[[u8; 32]; BURST]>,
    proved: Box<[Proved; BURST]>,
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Verifier on {}", self.kernel.name())
    }
}

impl Verifier {
    /// A verifier that computes with `kernel`.
    #[must_use]
    pub fn new(kernel: CpuKernel, compared: Compared) -> Self {
        let blank = || Box::new([[0; 16]; SCRATCH]);
        Self {
            kernel,
            compared,
            keys: blank(),
            first: blank(),
            second: blank(),
            heads: Box::new([[0; HEAD]; BURST]),
            hashes: Box::new([[0; 32]; BURST]),
            proved: Box::new([Proved::BLANK; BURST]),
        }
    }

    /// How much of verifiers is compared.
    #[must_use]
    pub fn compared(&self) -> Compared {
        self.compared
    }

    /// Which of at most [`BURST`] packets have a right pre-check; a bit each.
    pub fn consented(&mut self, candidates: &[Option<Candidate<'_>>]) -> u64 {
        self.kernel.run(Verify { verifier: self, candidates, check: Check::Consent })
    }

    #[inline(always)]
    fn consented_all(&mut self, candidates: &[Option<Candidate<'_>>]) -> u64 {
        let count = candidates.len().min(BURST);
        for (slot, one) in candidates[..count].iter().enumerate() {
            let Some(Candidate { packet, path }) = one else { continue };
            self.keys[slot] = path.keys[path.index()];
            self.first[slot] = consent_block(&path.route, &packet.nonce());
        }
        encrypt_each(self.kernel, &self.keys[..count], &mut self.first[..count]);
        let mut right = 0;
        for (slot, one) in candidates[..count].iter().enumerate() {
            let Some(Candidate { packet, path }) = one else { continue };
            right |= u64::from(is_consent(&self.first[slot], packet.consent(path.index()))) << slot;
        }
        right
    }

    /// Which of at most [`BURST`] packets came the whole way that their path says; a bit each.
    pub fn verify(&mut self, candidates: &[Option<Candidate<'_>>]) -> u64 {
        self.kernel.run(Verify { verifier: self, candidates, check: Check::Way })
    }

    #[inline(always)]
    fn verify_all(&mut self, candidates: &[Option<Candidate<'_>>]) -> u64 {
        let candidates = &candidates[..candidates.len().min(BURST)];
        self.hash(candidates);
        let mut right = 0;
        for (number, group) in candidates.chunks(GROUP).enumerate() {
            let begin = number * GROUP;
            self.tag(group, begin);
            for (slot, one) in (begin..).zip(group) {
                let Some(Candidate { packet, path }) = one else { continue };
                let here = path.index();
                let is_right = self.proved[slot].is_proof(here, packet.verifier(here), self.compared);
                right |= u64::from(is_right) << slot;
            }
        }
        right
    }

    /// The code that computes, whose instructions other work on the packets may have.
    #[must_use]
    pub fn kernel(&self) -> CpuKernel {
        self.kernel
    }

    /// What was computed of the packet that had place `slot` in the last [`Verifier::verify`].
    #[must_use]
    pub fn proved(&self, slot: usize) -> &Proved {
        &self.proved[slot]
    }

    #[inline(always)]
    fn hash(&mut self, candidates: &[Option<Candidate<'_>>]) {
        for (head, one) in self.heads.iter_mut().zip(candidates) {
            if let Some(Candidate { packet, path }) = one {
                *head = hash_head(packet.octets().first_chunk().expect("a packet has its front"), &path.route);
            }
        }
        let mut messages = [Message { head: &self.heads[0], tail: &[] }; BURST];
        for ((message, head), one) in messages.iter_mut().zip(self.heads.iter()).zip(candidates) {
            *message = Message { head, tail: one.as_ref().map_or(&[], |one| one.packet.payload()) };
        }
        hash_each(&messages[..candidates.len()], &mut self.hashes[..]);
    }

    /// The tags of at most [`GROUP`] packets, the first of which has place `begin`.
    #[inline(always)]
    fn tag(&mut self, group: &[Option<Candidate<'_>>], begin: usize) {
        let mut used = 0;
        for (slot, one) in (begin..).zip(group) {
            let Some(Candidate { path, .. }) = one else { continue };
            let (hash, count) = (&self.hashes[slot], path.count());
            self.keys[used..used + count].copy_from_slice(&path.keys[..count]);
            let (first, second) = hash_blocks(hash);
            let (below, above) = self.first[used..used + count].split_at_mut(path.index());
            for (other, block) in below.iter_mut().enumerate() {
                *block = with_indices(first, other, path.index());
            }
            for (other, block) in (path.index()..).zip(above) {
                *block = with_indices(first, path.index(), other);
            }
            self.second[used..used + count].fill(second);
            used += count;
        }
        cbc_pair_each(self.kernel, &self.keys[..used], &mut self.first[..used], &self.second[..used]);
        let mut used = 0;
        for (slot, one) in (begin..).zip(group) {
            let Some(Candidate { path, .. }) = one else { continue };
            let (count, proved) = (path.count(), &mut self.proved[slot]);
            proved.hash = self.hashes[slot];
            proved.tags[..count].copy_from_slice(&self.first[used..used + count]);
            used += count;
        }
    }
}

/// What is verified.
#[derive(Clone, Copy)]
enum Check {
    Consent,
    Way,
}

/// A burst for one verifier.
struct Verify<'a, 'p> {
    verifier: &'a mut Verifier,
    candidates: &'a [Option<Candidate<'p>>],
    check: Check,
}

impl Work for Verify<'_, '_> {
    /// A bit for each packet that is right.
    type Output = u64;

    #[inline(always)]
    fn run(self) -> u64 {
        let Self { verifier, candidates, check } = self;
        match check {
            Check::Consent => verifier.consented_all(candidates),
            Check::Way => verifier.verify_all(candidates),
        }
    }
}

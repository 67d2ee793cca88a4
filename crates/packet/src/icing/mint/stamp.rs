//! What a sender does: puts path and proofs in front of a payload, for many packets at once.

use wayleave_core::UnixTime;
use wayleave_crypto::lanes::{Block, CpuKernel, cbc_pair_each, encrypt_each};
use wayleave_crypto::sha256_packets::{HEAD, Message, hash_each};
use zeroize::Zeroize;

use super::super::header::{
    CONSENT, FIXED, FLAG_FIRST, FLAG_HANDLE, FLAG_SECOND, FRONT, Handle, MAX_NODES, PROOF, Part, Path, RouteHash,
    Version, at, header_length,
};
use super::super::proof::{consent_block, hash_blocks, hash_head, with_indices};
use super::form::Form;
use super::{Consent, NodeSecret};

/// Packets hashed at a time.
const BURST: usize = 64;
/// Packets whose proofs are computed at a time.
const GROUP: usize = 8;
/// Blocks of scratch: a consent and a provenance for each node behind the sender.
const SCRATCH: usize = GROUP * 2 * MAX_NODES;

/// Unique to a packet of a path: when it was made, and a count.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Nonce(pub u64);

impl Nonce {
    /// The nonce of the `counter`-th packet of this second.
    #[must_use]
    pub fn new(now: UnixTime, counter: u32) -> Self {
        Self((now.secs() & 0xffff_ffff) << 32 | u64::from(counter))
    }

    /// The nonce of a second part.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// Why packets cannot be sent. Our caller erred, or who gave the path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MintError {
    /// The path begins at another node.
    #[error("the path begins at another node")]
    Sender,
    /// Not one consent for every node behind the sender.
    #[error("{0} consents")]
    Consents(usize),
    /// A node's key is not on the curve.
    #[error("node {0} is no key")]
    Node(usize),
    /// The packet would be longer than its header can say.
    #[error("{0} octets are more than a packet holds")]
    TooLong(usize),
}

/// A path that packets can be sent on: its octets, and every key that proofs to its nodes need.
#[derive(Clone)]
pub struct Sender {
    version: Version,
    path: Vec<u8>,
    count: usize,
    route: RouteHash,
    /// `PoC_j`, at place `j`.
    consents: [Block; MAX_NODES],
    /// `k_0j`, at place `j`.
    pairs: [Block; MAX_NODES],
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.consents.zeroize();
        self.pairs.zeroize();
    }
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sender on a path of {} nodes", self.count)
    }
}

impl Sender {
    /// A sender on `path`, whose node 0 has `secret` and whose other nodes gave `consents`, in order.
    ///
    /// # Errors
    /// If these do not belong together.
    pub fn new(version: Version, path: &Path, secret: &NodeSecret, consents: &[Consent]) -> Result<Self, MintError> {
        if *path.node(0) != secret.id() {
            return Err(MintError::Sender);
        }
        if consents.len() + 1 != path.count() {
            return Err(MintError::Consents(consents.len()));
        }
        let mut octets = Vec::new();
        path.encode(&mut octets);
        let mut sender = Self {
            version,
            path: octets,
            count: path.count(),
            route: path.route(version),
            consents: [[0; 16]; MAX_NODES],
            pairs: [[0; 16]; MAX_NODES],
        };
        for (index, consent) in (1..).zip(consents) {
            let node = path.node(index);
            let pair = secret.pair(node, version).ok().filter(|_| node.is_on_curve());
            sender.pairs[index] = *pair.ok_or(MintError::Node(index))?.key().expose();
            sender.consents[index] = *consent.key().expose();
        }
        Ok(sender)
    }

    /// What stands for the path.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.route.handle()
    }

    /// Nodes of the path, this one among them.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Octets in front of a payload.
    #[must_use]
    pub fn header_length(&self, form: Form) -> usize {
        header_length(self.count, form == Form::Path)
    }

    fn write_front(&self, stamp: &Stamp<'_>, out: &mut [u8]) {
        let header = self.header_length(stamp.form);
        let part = match stamp.part {
            Part::Whole => 0,
            Part::First => FLAG_FIRST,
            Part::Second => FLAG_SECOND,
        };
        let form = if stamp.form == Form::Handle { FLAG_HANDLE } else { 0 };
        // The caller has checked that the payload's length fits.
        let payload = (out.len() - header) as u16;
        out[0] = (self.version as u8) << 4 | form | part;
        out[at::PROTOCOL] = stamp.protocol;
        out[at::COUNT] = self.count as u8;
        out[at::INDEX] = 1;
        out[at::LENGTH..at::HELD].copy_from_slice(&payload.to_be_bytes());
        out[at::HELD..at::NONCE].fill(0);
        out[at::NONCE..FIXED].copy_from_slice(&stamp.nonce.0.to_be_bytes());
        out[FIXED..FRONT].copy_from_slice(&self.handle().0);
        if stamp.form == Form::Path {
            out[FRONT..FRONT + self.path.len()].copy_from_slice(&self.path);
        }
    }
}

/// A packet to be stamped.
#[derive(Debug)]
pub struct Stamp<'a> {
    /// The path.
    pub sender: &'a Sender,
    /// Whether the path is sent.
    pub form: Form,
    /// Whether the payload is whole.
    pub part: Part,
    /// The payload's protocol, by its number in IP.
    pub protocol: u8,
    /// Different for every packet on the path.
    pub nonce: Nonce,
    /// [`Sender::header_length`] octets of room, then the payload.
    pub octets: &'a mut [u8],
}

/// One core's scratch.
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
    /// A stamper that computes with `kernel`.
    #[must_use]
    pub fn new(kernel: CpuKernel) -> Self {
        let blank = [[0; 16]; SCRATCH];
        Self { kernel, keys: blank, first: blank, second: blank, hashes: [[0; 32]; BURST] }
    }

    /// Writes the headers of `stamps`, at most 64; the others are left.
    ///
    /// # Errors
    /// If one has no room for its header or too long a payload; then none is written.
    pub fn stamp(&mut self, stamps: &mut [Stamp<'_>]) -> Result<(), MintError> {
        let count = stamps.len().min(BURST);
        let stamps = &mut stamps[..count];
        for stamp in &mut *stamps {
            let header = stamp.sender.header_length(stamp.form);
            let length = stamp.octets.len();
            if !(header..=header + usize::from(u16::MAX)).contains(&length) {
                return Err(MintError::TooLong(length));
            }
        }
        for stamp in &mut *stamps {
            let octets = std::mem::take(&mut stamp.octets);
            stamp.sender.write_front(stamp, octets);
            stamp.octets = octets;
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
            *head = hash_head(stamp.octets.first_chunk().expect("the front was written"), &stamp.sender.route);
        }
        let mut messages = [Message { head: &heads[0], tail: &[] }; BURST];
        for ((message, head), stamp) in messages.iter_mut().zip(&heads).zip(stamps) {
            *message = Message { head, tail: &stamp.octets[stamp.sender.header_length(stamp.form)..] };
        }
        hash_each(&messages[..stamps.len()], &mut self.hashes);
    }

    /// Writes pre-checks and verifiers of at most [`GROUP`] packets, whose hashes begin at place `slot`.
    fn prove(&mut self, group: &mut [Stamp<'_>], slot: usize) {
        let mut used = 0;
        for stamp in &*group {
            let block = consent_block(&stamp.sender.route, &stamp.nonce.0.to_be_bytes());
            for index in 1..stamp.sender.count {
                self.keys[used] = stamp.sender.consents[index];
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
            for index in 1..stamp.sender.count {
                for (key, from) in [(&stamp.sender.consents[index], index), (&stamp.sender.pairs[index], 0)] {
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
    let end = stamp.sender.header_length(stamp.form);
    let begin = end - (stamp.sender.count - 1) * PROOF;
    stamp.octets[begin..end].as_chunks_mut().0.iter_mut()
}

/// Makes `out` one packet with `payload`.
///
/// # Errors
/// If the payload is too long.
pub fn encapsulate(
    sender: &Sender,
    (form, part): (Form, Part),
    protocol: u8,
    nonce: Nonce,
    payload: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), MintError> {
    out.clear();
    out.resize(sender.header_length(form), 0);
    out.extend_from_slice(payload);
    let stamp = Stamp { sender, form, part, protocol, nonce, octets: out };
    Stamper::new(CpuKernel::PORTABLE).stamp(&mut [stamp])
}

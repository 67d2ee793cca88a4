//! What a sender does: it puts path and proofs in front of a payload.

use wayleave_core::UnixTime;
use wayleave_crypto::lanes::Block;
use zeroize::Zeroize;

use super::super::header::{
    CONSENT, FIXED, FLAG_FIRST, FLAG_HANDLE, FLAG_SECOND, FRONT, Handle, MAX_NODES, MIN_SEALED, NodeId, PROOF, Part,
    Path, RouteHash, SEALED, Version, at, header_length,
};
use super::super::proof::{consent_tag, is_sample, packet_hash, sample_hash, sealed_ends, sender_tags, xor_into};
use super::form::Form;
use super::{Consent, NodeSecret, PairKey};

/// Unique to a packet of a path: when it was made, and a count.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Nonce(pub u64);

impl Nonce {
    /// The nonce of the `counter`-th packet of this second.
    #[must_use]
    pub fn new(now: UnixTime, counter: u32) -> Self {
        Self((now.secs() & 0xffff_ffff) << 32 | u64::from(counter))
    }

    /// The nonce of the second part of a split payload.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// Why packets cannot be sent: an error of the caller, or of whoever gave the path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MintError {
    /// The path begins at another node.
    #[error("the path begins at another node than the sender")]
    Sender,
    /// Not one consent for every node behind the sender.
    #[error("{0} consents, not one for each node behind the sender")]
    Consents(usize),
    /// A node's key is not on the curve.
    #[error("the ID of node {0} is not a key of the curve")]
    Node(usize),
    /// The packet would be longer than its header can say.
    #[error("a packet of {0} octets: its payload is longer than a header can say, or its header has no room")]
    TooLong(usize),
    /// The path is one for sealed payloads, and this is none.
    #[error("a payload that is not sealed, on a path for sealed ones")]
    NotSealed,
}

/// A path that packets can be sent on: its octets, and every key that proofs to its nodes need.
#[derive(Clone)]
pub struct Sender {
    version: Version,
    path: Vec<u8>,
    count: usize,
    route: RouteHash,
    /// `PoC_j`, at index `j`.
    consents: [Block; MAX_NODES],
    /// `k_0j`, at index `j`.
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
        Self::with_agreed(version, path, secret, consents, |_| None)
    }

    /// The same, with the keys that were `agreed` on before: `k_0j` of a node whose ID is on the curve. The others cost an agreement
    /// (X25519) each.
    ///
    /// # Errors
    /// As [`Sender::new`].
    pub fn with_agreed(
        version: Version,
        path: &Path,
        secret: &NodeSecret,
        consents: &[Consent],
        agreed: impl Fn(&NodeId) -> Option<PairKey>,
    ) -> Result<Self, MintError> {
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
            let pair = agreed(node).or_else(|| secret.pair(node, version).ok().filter(|_| node.is_on_curve()));
            sender.pairs[index] = *pair.ok_or(MintError::Node(index))?.key().expose();
            sender.consents[index] = *consent.key().expose();
        }
        Ok(sender)
    }

    /// The version of the packets.
    #[inline]
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The handle that stands for the path.
    #[inline]
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.route.handle()
    }

    /// The number of nodes, the sender among them.
    #[inline]
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The octets in front of a payload.
    #[inline]
    #[must_use]
    pub fn header_length(&self, form: Form) -> usize {
        header_length(self.count, form == Form::Path)
    }

    /// What packets on the path are bound to.
    #[inline]
    #[must_use]
    pub fn route(&self) -> &RouteHash {
        &self.route
    }

    /// `PoC_j` and `k_0j` of node `index`, which is behind the sender: for computing proofs, and for nothing else.
    #[inline]
    #[must_use]
    pub fn keys(&self, index: usize) -> [&Block; 2] {
        [&self.consents[index], &self.pairs[index]]
    }

    /// The length of the payload in a packet of `octets` octets.
    ///
    /// # Errors
    /// If the packet has no room for its header, the payload is too long, or it is not sealed and the path is for what is.
    pub fn payload_length(&self, front: &Front, octets: usize) -> Result<u16, MintError> {
        let payload = octets.checked_sub(self.header_length(front.form));
        let length = payload.and_then(|payload| u16::try_from(payload).ok()).ok_or(MintError::TooLong(octets))?;
        let is_short = front.part == Part::Whole && usize::from(length) < MIN_SEALED;
        let is_wrong = self.version == Version::Sealed && (front.protocol != SEALED || is_short);
        if is_wrong { Err(MintError::NotSealed) } else { Ok(length) }
    }

    /// Writes everything in front of the proofs into a packet, whose payload is in place: `octets` have room for the header.
    ///
    /// # Errors
    /// As [`Sender::payload_length`]; then nothing is written.
    pub fn write_front(&self, front: &Front, octets: &mut [u8]) -> Result<(), MintError> {
        let payload = self.payload_length(front, octets.len())?;
        let part = match front.part {
            Part::Whole => 0,
            Part::First => FLAG_FIRST,
            Part::Second => FLAG_SECOND,
        };
        let form = if front.form == Form::Handle { FLAG_HANDLE } else { 0 };
        let out = octets;
        out[0] = (self.version as u8) << 4 | form | part;
        out[at::PROTOCOL] = front.protocol;
        out[at::COUNT] = self.count as u8;
        out[at::INDEX] = 1;
        out[at::LENGTH..at::HELD].copy_from_slice(&payload.to_be_bytes());
        out[at::HELD..at::NONCE].fill(0);
        out[at::NONCE..FIXED].copy_from_slice(&front.nonce.0.to_be_bytes());
        out[FIXED..FRONT].copy_from_slice(&self.handle().0);
        if front.form == Form::Path {
            out[FRONT..FRONT + self.path.len()].copy_from_slice(&self.path);
        }
        Ok(())
    }
}

/// What a sender chooses for each packet.
#[derive(Clone, Copy, Debug)]
pub struct Front {
    /// Whether the path itself is sent.
    pub form: Form,
    pub part: Part,
    /// The payload's protocol, by its number in IP.
    pub protocol: u8,
    /// Different for every packet on the path.
    pub nonce: Nonce,
}

/// Makes `out` one packet with `payload`.
///
/// # Errors
/// If the payload is too long, or is not sealed and the path is for what is.
pub fn encapsulate(
    sender: &Sender,
    (form, part): (Form, Part),
    protocol: u8,
    nonce: Nonce,
    payload: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), MintError> {
    let header = sender.header_length(form);
    out.clear();
    out.resize(header, 0);
    out.extend_from_slice(payload);
    sender.write_front(&Front { form, part, protocol, nonce }, out)?;
    let front = out.first_chunk().expect("the front was written");
    let hash = packet_hash(front, &sender.route, payload);
    let is_sealed = sealed_ends(front, payload).is_some();
    let proofs = header - (sender.count - 1) * PROOF;
    for (index, proof) in (1..).zip(out[proofs..header].as_chunks_mut::<PROOF>().0) {
        let [consent, pair] = sender.keys(index);
        let pre_check = consent_tag(consent, &sender.route, &nonce.0.to_be_bytes());
        proof[..CONSENT].copy_from_slice(&pre_check[..CONSENT]);
        // V_j = A_j ^ PoP_0j
        let mut tags = sender_tags([consent, pair], index, &hash);
        if is_sealed && is_sample(&tags[1]) {
            tags = sender_tags([consent, pair], index, &sample_hash(&hash, payload));
        }
        let [mut verifier, provenance] = tags;
        xor_into(&mut verifier, &provenance);
        proof[CONSENT..].copy_from_slice(&verifier);
    }
    Ok(())
}

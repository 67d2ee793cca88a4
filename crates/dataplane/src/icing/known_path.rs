//! A path on which the router verified a packet: its keys, and what is decided for every packet on it.

use wayleave_core::UnixTime;
use wayleave_packet::icing::header::{Handle, MAX_PATH, NodeId, Path, Version};
use wayleave_packet::icing::mint::tag_epoch;
use wayleave_packet::icing::verify::{PathKeys, ProofTags};

use super::action::{Action, Reason};
use super::cache::CacheKey;
use super::config::{Indexed, Output};
use super::report::Windows;

impl CacheKey for Handle {
    fn word(&self) -> u64 {
        u64::from_ne_bytes(*self.0.first_chunk().expect("8 of 16"))
    }
}

/// This node under one of its keys, and another node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct NodePair(pub(super) NodeId, pub(super) NodeId);

impl CacheKey for NodePair {
    fn word(&self) -> u64 {
        let word = |node: &NodeId| u64::from_ne_bytes(*node.to_bytes().first_chunk().expect("8 of 32"));
        word(&self.0).rotate_left(32) ^ word(&self.1)
    }
}

/// Where packets on a path may come in, and what happens to those that are verified.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decision {
    /// The link to the node in front. If there is none, packets may come in by any open link.
    pub(super) from: Option<u16>,
    pub(super) action: Result<Action, Reason>,
    pub(super) account: Option<u16>,
}

impl Decision {
    /// The decision of node `index` of `path`.
    pub(super) fn new(policy: &Indexed, path: &Path, index: usize) -> Self {
        let from = policy.link_to(path.node(index - 1));
        let Some(meaning) = policy.meaning(path.hop(index).tag) else {
            return Self { from, action: Err(Reason::UnknownTag), account: None };
        };
        let queue = meaning.queue;
        let is_last = index + 1 == path.count();
        let next = || policy.link_to(path.node(index + 1)).ok_or(Reason::NoRoute);
        let action = match (meaning.output, is_last) {
            (Output::Next, true) => Ok(Action::Deliver { service: 0, queue }),
            (Output::Service(service), true) => Ok(Action::Deliver { service, queue }),
            (Output::Link(_), true) => Err(Reason::NoRoute),
            (Output::Next, false) => next().map(|link| Action::Forward { link, queue }),
            (Output::Service(service), false) => next().map(|link| Action::Service { service, link, queue }),
            (Output::Link(link), false) => Ok(Action::Forward { link, queue }),
        };
        Self { from, action, account: meaning.account }
    }
}

/// A path on which a packet was verified.
pub(super) struct KnownPath {
    /// Of the packets on it.
    pub(super) version: Version,
    pub(super) keys: PathKeys,
    pub(super) decision: Decision,
    /// The Unix second at which this node's consent ends.
    pub(super) expiry: u32,
    pub(super) windows: Windows,
    octets: [u8; MAX_PATH],
    length: u16,
}

impl KnownPath {
    /// For packets of `version`. `octets` are the path's, as decoded.
    pub(super) fn new(
        version: Version,
        keys: PathKeys,
        decision: Decision,
        expiry: u32,
        octets: &[u8],
        windows: Windows,
    ) -> Self {
        let mut copy = [0; MAX_PATH];
        copy[..octets.len()].copy_from_slice(octets);
        // A path has at most 632 octets.
        Self { version, keys, decision, expiry, windows, octets: copy, length: octets.len() as u16 }
    }

    /// The same for another thread, which counts for itself from `now` on.
    pub(super) fn another(&self, now: UnixTime) -> Self {
        let Self { version, ref keys, decision, expiry, octets, length, .. } = *self;
        Self { version, keys: keys.clone(), decision, expiry, windows: Windows::new(now), octets, length }
    }

    /// Why a packet with another verifier than `proof` calls for is dropped; in the sealed profile it is counted.
    #[cold]
    pub(super) fn fault(&mut self, proof: &ProofTags, octets: &[u8]) -> Reason {
        let nonce = octets.get(8..16).and_then(|field| field.first_chunk());
        if let (Version::Sealed, Some(nonce)) = (self.version, nonce) {
            self.windows.add_fault(u64::from_be_bytes(*nonce), proof.is_sample());
        }
        proof.fault().into()
    }

    #[inline]
    pub(super) fn octets(&self) -> &[u8] {
        &self.octets[..usize::from(self.length)]
    }

    /// What the policy decides for this path; `None` if the path names this node by a key that the policy lacks, or if the
    /// node consented under another master of tag keys.
    pub(super) fn decide(&self, policy: &Indexed) -> Option<Decision> {
        let path = Path::decode(self.octets()).ok()?;
        let index = self.keys.index();
        policy.secret(path.node(index))?;
        let hop = path.hop(index);
        let consent =
            policy.master(tag_epoch(hop.expiry))?.consent(&path.hash(self.version), index, hop.tag, hop.expiry);
        self.keys.is_under(&consent).then(|| Decision::new(policy, &path, index))
    }
}

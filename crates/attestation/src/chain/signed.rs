//! What a hop signs, and the hash that ties each hop to all before it.

use wayleave_core::Asn;
use wayleave_crypto::hash::hash;

use super::{Head, Hop, Next, UNICAST, VERSION};

const LABEL: &[u8] = b"wayleave/attestation/hop/v2";

/// The hash of a chain up to a hop; zero before the first.
pub type ChainHash = [u8; 32];

/// What a hop is about, beside what it carries itself.
#[derive(Clone, Copy, Debug)]
pub struct SignedInput<'a> {
    /// The hop's place, the origin's being 0.
    pub index: u8,
    /// The AS that signs.
    pub asn: Asn,
    /// The entries of AS_PATH that the hop skips.
    pub skipped: &'a [Asn],
    /// The hash of the chain before this hop.
    pub previous: &'a ChainHash,
    /// The next AS's leaf with its name, or the root of a directory: see [`Hop::commitment`].
    pub commitment: &'a [u8; 32],
}

impl SignedInput<'_> {
    /// Appends the content of `hop`: what it signs, by itself or in a burst. Every field has one width, or its length in front; no two different
    /// inputs have the same octets.
    pub fn encode(&self, head: &Head<'_>, hop: &Hop<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(&(LABEL.len() as u16).to_be_bytes());
        out.extend_from_slice(LABEL);
        let is_directory = u8::from(hop.next.is_directory());
        out.extend_from_slice(&[VERSION, hop.suite, self.index, hop.signer_number(), is_directory, hop.prepend]);
        out.extend_from_slice(&self.asn.0.to_be_bytes());
        out.extend_from_slice(&head.sequence.to_be_bytes());
        out.extend_from_slice(&hop.not_before(head.base_time).to_be_bytes());
        out.extend_from_slice(&hop.not_after(head.base_time).to_be_bytes());
        out.extend_from_slice(&hop.exports.0.to_be_bytes());
        out.extend_from_slice(self.previous);
        out.extend_from_slice(self.commitment);
        out.extend_from_slice(&head.afi.code().to_be_bytes());
        out.push(UNICAST);
        // At most 32 prefixes of at most 17 octets; at most 255 skipped entries.
        out.extend_from_slice(&(head.nlri.len() as u16).to_be_bytes());
        out.extend_from_slice(head.nlri);
        out.push(self.skipped.len() as u8);
        self.skipped.iter().for_each(|asn| out.extend_from_slice(&asn.0.to_be_bytes()));
    }
}

impl Hop<'_> {
    /// What stands for the next AS in the content: its leaf with its name, or the root above all slots. `None` where the
    /// hop is for a directory's receivers, who know the root.
    #[must_use]
    pub fn commitment(&self, next: Asn) -> Option<[u8; 32]> {
        match self.next {
            Next::Neighbour(leaf) => Some(leaf.commitment(next)),
            Next::Slot { leaf, index, siblings } => Some(leaf.root(next, index, siblings)),
            Next::Directory => None,
        }
    }

    /// Appends what the signature is over, where the hop's content is `content`.
    pub fn encode_signed(&self, content: &[u8], out: &mut Vec<u8>) {
        match self.burst {
            Some(opening) => opening.encode_signed(VERSION, self.suite, content, out),
            None => out.extend_from_slice(content),
        }
    }

    /// The hash of the chain up to this hop, whose content is `content`.
    #[must_use]
    pub fn chain_hash(&self, content: &[u8]) -> ChainHash {
        hash("wayleave/attestation/chain/v2", &[content, self.octets])
    }
}

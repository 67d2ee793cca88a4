//! Half-paths of opaque fields, which beacons construct, and how a sender joins two.

use wayleave_crypto::lanes::{Aes128, Block, CpuKernel};

use super::header::{Header, MAX_FIELDS, OPAQUE_LEN, OpaqueField};
use super::verify::mac_input;

/// The key of one AS for opaque fields: CBC-MAC with a zero IV over one block is one AES encryption.
#[derive(Clone)]
pub struct OpaqueKey(Aes128);

impl std::fmt::Debug for OpaqueKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OpaqueKey(..)")
    }
}

impl OpaqueKey {
    #[must_use]
    pub fn new(key: &Block) -> Self {
        Self(Aes128::new(key))
    }

    /// From an expanded key, whose processor features may have been chosen.
    #[must_use]
    pub fn from_aes(key: Aes128) -> Self {
        Self(key)
    }

    /// The processor features with which it computes.
    #[inline]
    #[must_use]
    pub fn kernel(&self) -> CpuKernel {
        self.0.kernel()
    }

    /// Replaces each of `inputs` by its CBC-MAC.
    #[inline]
    pub fn tag_blocks(&self, inputs: &mut [Block]) {
        self.0.encrypt(inputs);
    }

    /// The MAC of an opaque field after `previous`.
    #[must_use]
    pub fn mac(&self, ingress: u16, egress: u16, previous: [u8; OPAQUE_LEN]) -> [u8; 4] {
        *self.0.encrypt_one(&mac_input(ingress, egress, previous)).first_chunk().expect("a block has four octets")
    }
}

/// Opaque fields in the order of construction: from the core outwards.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HalfPath {
    pub fields: Vec<OpaqueField>,
}

impl HalfPath {
    /// Adds the opaque field of the next AS under its own `key`.
    pub fn extend(&mut self, key: &OpaqueKey, ingress: u16, egress: u16) {
        let previous = self.fields.last().map_or([0; OPAQUE_LEN], |field| field.octets());
        self.fields.push(OpaqueField { ingress, egress, mac: key.mac(ingress, egress, previous) });
    }
}

/// The header of a path up `up` to the core and down `down` from it. `None` if it has no opaque field or more than
/// [`MAX_FIELDS`].
#[must_use]
pub fn join(up: &HalfPath, down: &HalfPath, src: [u8; 8], dst: [u8; 8], protocol: u8) -> Option<Header> {
    let fields: Vec<OpaqueField> = up.fields.iter().rev().chain(&down.fields).copied().collect();
    if fields.is_empty() || fields.len() > MAX_FIELDS {
        return None;
    }
    Some(Header { pointer: 0, up: up.fields.len() as u8, protocol, src, dst, fields })
}

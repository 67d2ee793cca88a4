//! The ICING header. A decoded [`Packet`] borrows its octets.
//!
//! Lengths, counts and index of a [`Packet`] are checked. The nodes of its path are checked by [`Path::decode`], which a
//! router calls once for each path. Decoding allocates nothing.

mod carriage;
mod control;
mod path;

pub use carriage::{ETHERTYPE, Ethernet, UDP_PORT};
pub use control::{CONTROL, PathHolders};
pub use path::{Handle, Hop, NodeId, Path, PathHash, RouteHash, Tag};

/// Octets in front of the handle.
pub const FIXED: usize = 16;
/// Octets up to the path, or to the proofs if there is none.
pub const FRONT: usize = FIXED + HANDLE;
/// Octets of a handle.
pub const HANDLE: usize = 16;
/// Octets of a node's ID, which is all that the path says of the sender.
pub const NODE: usize = 32;
/// Octets that the path says of every other node: ID, tag, expiry.
pub const HOP: usize = NODE + 8;
/// Octets of the consent pre-check.
pub const CONSENT: usize = 8;
/// Octets of a verifier.
pub const VERIFIER: usize = 16;
/// Octets of each node's proof but the sender's: pre-check and verifier.
pub const PROOF: usize = CONSENT + VERIFIER;
/// Nodes of a path, sender and receiver among them.
pub const MIN_NODES: usize = 2;
/// The most: indices have four bits where they are authenticated.
pub const MAX_NODES: usize = 16;
/// The protocol number of sealed payloads, IANA's for any private encryption scheme: the only one in packets of [`Version::Sealed`].
pub const SEALED: u8 = 99;
/// Octets at either end of a sealed payload: in front what the seal does not cover, behind the seal's tag.
pub const SEAL_END: usize = 16;
/// Octets of the shortest whole payload of [`Version::Sealed`].
pub const MIN_SEALED: usize = 2 * SEAL_END;
/// Octets of the longest path.
pub const MAX_PATH: usize = NODE + (MAX_NODES - 1) * HOP;

/// Offsets of the fixed fields.
pub(crate) mod at {
    pub(crate) const PROTOCOL: usize = 1;
    pub(crate) const COUNT: usize = 2;
    pub(crate) const INDEX: usize = 3;
    pub(crate) const LENGTH: usize = 4;
    pub(crate) const HELD: usize = 6;
    pub(crate) const NONCE: usize = 8;
}

/// The path is not there: its handle stands for it.
pub(crate) const FLAG_HANDLE: u8 = 8;
/// The payload is the first part of a split packet.
pub(crate) const FLAG_FIRST: u8 = 4;
/// The payload is the second part.
pub(crate) const FLAG_SECOND: u8 = 2;

/// The version of a packet, and of the consents that it needs. A node of the paper's version speaks that alone; all others speak
/// both of the rest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Version {
    /// Version 0: as published. Static keys, no expiry, no replay defence, no consent pre-check; for the laboratory.
    Paper = 0,
    /// Version 1: proofs cover the payload.
    Standard = 1,
    /// Version 2, the profile `sealed`: proofs cover the two ends of a payload that is sealed between sender and receiver.
    Sealed = 2,
}

impl Version {
    /// The version of this number, if a node of version `self` speaks it.
    #[inline]
    #[must_use]
    pub fn spoken(self, number: u8) -> Option<Self> {
        match (self, number) {
            (Self::Paper, 0) => Some(Self::Paper),
            (Self::Standard | Self::Sealed, 1) => Some(Self::Standard),
            (Self::Standard | Self::Sealed, 2) => Some(Self::Sealed),
            _ => None,
        }
    }

    /// What policies and reports call packets of this version, by what their proofs cover.
    #[must_use]
    pub fn profile(self) -> &'static str {
        match self {
            Self::Paper => "paper",
            Self::Standard => "payload",
            Self::Sealed => "sealed",
        }
    }
}

/// Whether a payload is whole.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Part {
    /// It is.
    #[default]
    Whole,
    /// The first part of a payload that did not fit; the second has the next nonce.
    First,
    /// The second part.
    Second,
}

/// Why octets are not an ICING packet, or not a path: an error of the sender. The packet is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// Fewer octets than a header needs.
    #[error("{have} octets where a header needs {need}")]
    Truncated { need: usize, have: usize },
    /// No version that this node speaks.
    #[error("version {0} is none that this node speaks")]
    Version(u8),
    /// Of the profile for sealed payloads, and the payload is not sealed or too short for that.
    #[error("a payload of protocol {protocol} and {length} octets in a packet for sealed ones")]
    Sealed { protocol: u8, length: u16 },
    /// A flag that is not defined, or both parts at once.
    #[error("flags {0:#x} contradict each other or are not defined")]
    Flags(u8),
    /// Fewer than two nodes or more than sixteen.
    #[error("{0} nodes, not 2 to 16")]
    Count(u8),
    /// The index names the sender, or no node.
    #[error("index {0} is not that of a node behind the sender")]
    Index(u8),
    /// Header and payload do not make the packet's length.
    #[error("the header says {declared} octets, the packet has {have}")]
    Length { declared: usize, have: usize },
    /// A node's ID is of small order or not in canonical form.
    #[error("the ID of node {0} is not a canonical key")]
    Node(u8),
    /// Two nodes have one ID.
    #[error("node {0} occurs twice")]
    Repeated(u8),
}

/// An ICING packet whose lengths, count and index have been checked.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    octets: &'a [u8],
    version: Version,
    count: u8,
    index: u8,
    proofs: u16,
}

impl<'a> Packet<'a> {
    /// Decodes what a UDP datagram or an Ethernet frame carries, all of it, at a node of this version.
    #[inline]
    pub fn decode(octets: &'a [u8], version: Version) -> Result<Self, Malformed> {
        let Some(fixed) = octets.first_chunk::<FRONT>() else {
            return Err(Malformed::Truncated { need: FRONT, have: octets.len() });
        };
        let [first, protocol, count, index, ..] = *fixed;
        let version = version.spoken(first >> 4).ok_or(Malformed::Version(first >> 4))?;
        let flags = first & 0xf;
        if flags & 1 != 0 || flags & (FLAG_FIRST | FLAG_SECOND) == FLAG_FIRST | FLAG_SECOND {
            return Err(Malformed::Flags(flags));
        }
        if !(MIN_NODES..=MAX_NODES).contains(&usize::from(count)) {
            return Err(Malformed::Count(count));
        }
        if index == 0 || index >= count {
            return Err(Malformed::Index(index));
        }
        let has_path = flags & FLAG_HANDLE == 0;
        let proofs = FRONT + if has_path { path_length(usize::from(count)) } else { 0 };
        let length = u16::from_be_bytes([fixed[at::LENGTH], fixed[at::LENGTH + 1]]);
        let declared = proofs + (usize::from(count) - 1) * PROOF + usize::from(length);
        if declared != octets.len() {
            return Err(Malformed::Length { declared, have: octets.len() });
        }
        let is_short = flags & (FLAG_FIRST | FLAG_SECOND) == 0 && usize::from(length) < MIN_SEALED;
        if version == Version::Sealed && (protocol != SEALED || is_short) {
            return Err(Malformed::Sealed { protocol, length });
        }
        // A path of 16 nodes ends at octet 664.
        Ok(Self { octets, version, count, index, proofs: proofs as u16 })
    }

    /// The packet's own version.
    #[inline]
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The whole packet.
    #[inline]
    #[must_use]
    pub fn octets(&self) -> &'a [u8] {
        self.octets
    }

    /// The protocol of the payload, by its number in IP.
    #[inline]
    #[must_use]
    pub fn protocol(&self) -> u8 {
        self.octets[at::PROTOCOL]
    }

    /// Nodes of the path, 2 to 16.
    #[inline]
    #[must_use]
    pub fn count(&self) -> usize {
        usize::from(self.count)
    }

    /// The node that the packet is on its way to: 1 to the last.
    #[inline]
    #[must_use]
    pub fn index(&self) -> usize {
        usize::from(self.index)
    }

    /// Whether the node that the packet is on its way to is the receiver.
    #[inline]
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.index + 1 == self.count
    }

    /// Whether the payload is whole.
    #[inline]
    #[must_use]
    pub fn part(&self) -> Part {
        match self.octets[0] & (FLAG_FIRST | FLAG_SECOND) {
            FLAG_FIRST => Part::First,
            FLAG_SECOND => Part::Second,
            _ => Part::Whole,
        }
    }

    /// The nodes in front that hold the path for this handle, a bit each. Nothing authenticates it on the way.
    #[inline]
    #[must_use]
    pub fn held(&self) -> u16 {
        u16::from_be_bytes([self.octets[at::HELD], self.octets[at::HELD + 1]])
    }

    /// Unix seconds modulo 2^32, then a count.
    #[inline]
    #[must_use]
    pub fn nonce(&self) -> [u8; 8] {
        *self.front_chunk(at::NONCE)
    }

    /// The Unix seconds, modulo 2^32, at which the packet was made.
    #[inline]
    #[must_use]
    pub fn seconds(&self) -> u32 {
        u32::from_be_bytes(*self.front_chunk(at::NONCE))
    }

    /// The handle that stands for the path.
    #[inline]
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle(*self.front_chunk(FIXED))
    }

    /// The octets of the path, if it is there; not checked, see [`Path::decode`].
    #[inline]
    #[must_use]
    pub fn path(&self) -> Option<&'a [u8]> {
        (self.octets[0] & FLAG_HANDLE == 0).then(|| &self.octets[FRONT..usize::from(self.proofs)])
    }

    /// The consent pre-check of node `index`, which is at least 1 and below [`Packet::count`].
    #[inline]
    #[must_use]
    pub fn consent(&self, index: usize) -> &'a [u8; CONSENT] {
        self.octets[self.proof_at(index)..].first_chunk().expect("the length was checked")
    }

    /// The verifier of node `index`, which is at least 1 and below [`Packet::count`].
    #[inline]
    #[must_use]
    pub fn verifier(&self, index: usize) -> &'a [u8; VERIFIER] {
        self.octets[self.proof_at(index) + CONSENT..].first_chunk().expect("the length was checked")
    }

    /// Where the proof of node `index` begins.
    #[inline]
    #[must_use]
    pub(crate) fn proof_at(&self, index: usize) -> usize {
        usize::from(self.proofs) + (index - 1) * PROOF
    }

    /// What the packet carries.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        &self.octets[self.proof_at(self.count())..]
    }

    #[inline]
    fn front_chunk<const N: usize>(&self, at: usize) -> &'a [u8; N] {
        self.octets[at..FRONT].first_chunk().expect("the front is there")
    }
}

/// Octets of a path of `count` nodes.
#[inline]
#[must_use]
pub fn path_length(count: usize) -> usize {
    NODE + (count - 1) * HOP
}

/// Octets in front of the payload of a packet with `count` nodes.
#[inline]
#[must_use]
pub fn header_length(count: usize, has_path: bool) -> usize {
    FRONT + if has_path { path_length(count) } else { 0 } + (count - 1) * PROOF
}

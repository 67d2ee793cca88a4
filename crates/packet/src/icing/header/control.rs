//! What nodes report to each other inside packets: that they hold a path.

use super::{HANDLE, Handle};

/// The protocol number of control payloads: RFC 3692's second number for experiments.
pub const CONTROL: u8 = 254;

/// A receiver reports to a sender which nodes hold a path, as of the last packet with the whole path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PathHolders {
    /// The path's handle.
    pub handle: Handle,
    /// A bit for each node, the least significant for node 0.
    pub nodes: u16,
}

impl PathHolders {
    /// Octets: kind 1, zero, nodes, handle.
    pub const LENGTH: usize = 4 + HANDLE;

    /// The payload of a packet with protocol [`CONTROL`].
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LENGTH] {
        let mut octets = [0; Self::LENGTH];
        octets[0] = 1;
        octets[2..4].copy_from_slice(&self.nodes.to_be_bytes());
        octets[4..].copy_from_slice(&self.handle.0);
        octets
    }

    /// Decodes all of `payload`; `None` if it is something else.
    #[must_use]
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let octets: &[u8; Self::LENGTH] = payload.try_into().ok()?;
        let [1, 0, high, low, ..] = *octets else { return None };
        let handle = Handle(*octets.last_chunk()?);
        Some(Self { handle, nodes: u16::from_be_bytes([high, low]) })
    }
}

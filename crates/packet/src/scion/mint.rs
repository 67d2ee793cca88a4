//! What the control plane and the sender compute: hop fields with their MACs, and paths joined from segments.

use std::ops::Range;

use subtle::{Choice, ConstantTimeEq};
use thiserror::Error;
use wayleave_crypto::lanes::{Block, CmacKey, CpuKernel};

use super::header::{HopField, InfoField, MAX_HOPS, OneHopPath, PathMeta, StandardPath};
use super::verify::{MacInput, mac_input};

/// The key with which one AS mints and verifies its hop fields.
#[derive(Clone)]
pub struct ForwardingKey(CmacKey);

impl std::fmt::Debug for ForwardingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ForwardingKey(..)")
    }
}

impl ForwardingKey {
    /// From 16 octets.
    #[must_use]
    pub fn new(key: &Block) -> Self {
        Self(CmacKey::new(key))
    }

    /// From an expanded key, which may be of a certain kernel.
    #[must_use]
    pub fn from_cmac(key: CmacKey) -> Self {
        Self(key)
    }

    #[inline]
    #[must_use]
    pub fn kernel(&self) -> CpuKernel {
        self.0.kernel()
    }

    /// Replaces each input by its tag, of which the MAC is the first six octets, at one AES operation each.
    #[inline]
    pub fn tag_blocks(&self, inputs: &mut [MacInput]) {
        self.0.tag_blocks(inputs);
    }

    /// The MAC of one hop field.
    #[must_use]
    pub fn hop_mac(&self, input: &MacInput) -> [u8; 6] {
        let mut block = [*input];
        self.0.tag_blocks(&mut block);
        *block[0].first_chunk().expect("a block has more than six octets")
    }

    /// Whether `mac` is that of `input`, in constant time.
    #[must_use]
    pub fn verify(&self, input: &MacInput, mac: &[u8; 6]) -> Choice {
        self.hop_mac(input).ct_eq(mac)
    }

    /// The first hop field of a path to the neighbour behind `egress`, and its info field.
    #[must_use]
    pub fn one_hop(&self, seg_id: u16, timestamp: u32, exp_time: u8, egress: u16) -> OneHopPath {
        let info = InfoField { peering: false, construction: true, seg_id, timestamp };
        let mac = self.hop_mac(&mac_input(seg_id, timestamp, exp_time, 0, egress));
        let first = HopField { exp_time, cons_egress: egress, mac, ..HopField::default() };
        OneHopPath { info, first, second: HopField::default() }
    }
}

/// One AS of a segment: its hop field, and those for its peering links.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AsHop {
    /// For travel along the segment.
    pub field: HopField,
    /// For travel that leaves or joins the segment here over a peering link.
    pub peers: Vec<PeerHop>,
}

/// A hop field whose `cons_ingress` is a peering interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerHop {
    /// The hop field.
    pub field: HopField,
}

/// A segment as beacons build it, AS after AS from the core.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The random accumulator that the first AS chose.
    pub seg_id: u16,
    /// When it was begun: seconds of Unix time.
    pub timestamp: u32,
    /// Its ASes in the order of construction.
    pub hops: Vec<AsHop>,
}

impl Segment {
    /// A segment of no hop yet; `seg_id` must be random.
    #[must_use]
    pub fn new(seg_id: u16, timestamp: u32) -> Self {
        Self { seg_id, timestamp, hops: Vec::new() }
    }

    /// The accumulator under the MAC of hop `index`, or of the next hop to be.
    #[must_use]
    pub fn beta(&self, index: usize) -> u16 {
        let mac = |hop: &AsHop| u16::from_be_bytes([hop.field.mac[0], hop.field.mac[1]]);
        self.hops.iter().take(index).fold(self.seg_id, |beta, hop| beta ^ mac(hop))
    }

    /// Adds the next AS: it mints with its own `key`. `peers` are the interfaces of its peering links that it offers.
    pub fn extend(&mut self, key: &ForwardingKey, exp_time: u8, ingress: u16, egress: u16, peers: &[u16]) {
        let mint = |beta, cons_ingress| {
            let mac = key.hop_mac(&mac_input(beta, self.timestamp, exp_time, cons_ingress, egress));
            HopField { exp_time, cons_ingress, cons_egress: egress, mac, ..HopField::default() }
        };
        let beta = self.beta(self.hops.len());
        let field = mint(beta, ingress);
        // A peering hop is minted under the accumulator after the AS's own hop, so that it needs no update on the way.
        let after = beta ^ u16::from_be_bytes([field.mac[0], field.mac[1]]);
        let peers = peers.iter().map(|&peer| PeerHop { field: mint(after, peer) }).collect();
        self.hops.push(AsHop { field, peers });
    }
}

/// How a segment is travelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the core: a down segment, or a core segment in its own direction.
    Construction,
    /// Towards the core: an up segment, or a core segment turned.
    Against,
}

/// Why parts do not make a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BuildError {
    /// More than three segments.
    #[error("more than three segments")]
    TooManySegments,
    /// More hop fields than a path or a segment can count.
    #[error("{0} hop fields are more than a path can have")]
    TooManyHops(usize),
    /// The range is empty, or the segment does not have these hops.
    #[error("the segment does not have these hops")]
    NoSuchHops,
}

/// Joins segments to a path, in the order of travel. Whether routers accept the joined path is not checked.
#[derive(Clone, Debug, Default)]
pub struct PathBuilder {
    infos: Vec<InfoField>,
    hops: Vec<HopField>,
    lengths: Vec<u8>,
}

impl PathBuilder {
    /// A builder without segments.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the ASes `range` of `segment`, in order of construction.
    ///
    /// # Errors
    /// If there are no such ASes, or too many.
    pub fn segment(self, segment: &Segment, range: Range<usize>, direction: Direction) -> Result<Self, BuildError> {
        self.add(segment, range, direction, None)
    }

    /// Adds the ASes `range` of `segment`, whose first one (in order of construction) is crossed by its peering hop field
    /// number `peer`.
    ///
    /// # Errors
    /// If there are no such ASes or hop field, or too many.
    pub fn peering(
        self,
        segment: &Segment,
        range: Range<usize>,
        direction: Direction,
        peer: usize,
    ) -> Result<Self, BuildError> {
        self.add(segment, range, direction, Some(peer))
    }

    fn add(
        mut self,
        segment: &Segment,
        range: Range<usize>,
        direction: Direction,
        peer: Option<usize>,
    ) -> Result<Self, BuildError> {
        if self.infos.len() == 3 {
            return Err(BuildError::TooManySegments);
        }
        let part = segment.hops.get(range.clone()).filter(|part| !part.is_empty()).ok_or(BuildError::NoSuchHops)?;
        let total = self.hops.len() + part.len();
        // A segment's own count has six bits too.
        if total > MAX_HOPS || part.len() >= MAX_HOPS {
            return Err(BuildError::TooManyHops(total));
        }
        let mut fields: Vec<HopField> = part.iter().map(|hop| hop.field).collect();
        if let Some(peer) = peer {
            fields[0] = part[0].peers.get(peer).ok_or(BuildError::NoSuchHops)?.field;
        }
        // Where travel begins: at the first AS its own accumulator, or the one after it if it is a peering hop.
        let seg_id = match direction {
            Direction::Construction => segment.beta(range.start + usize::from(peer.is_some())),
            // The last AS alone, by its peering hop, is minted under the accumulator after its own hop.
            Direction::Against if peer.is_some() && part.len() == 1 => segment.beta(range.end),
            Direction::Against => segment.beta(range.end - 1),
        };
        let construction = direction == Direction::Construction;
        if !construction {
            fields.reverse();
        }
        self.infos.push(InfoField { peering: peer.is_some(), construction, seg_id, timestamp: segment.timestamp });
        self.lengths.push(fields.len() as u8);
        self.hops.extend(fields);
        Ok(self)
    }

    /// The path, at its first hop.
    ///
    /// # Errors
    /// If no segment was added.
    pub fn build(self) -> Result<StandardPath, BuildError> {
        if self.infos.is_empty() {
            return Err(BuildError::NoSuchHops);
        }
        let mut segment_len = [0; 3];
        segment_len[..self.lengths.len()].copy_from_slice(&self.lengths);
        let meta = PathMeta { current_info: 0, current_hop: 0, segment_len };
        Ok(StandardPath { meta, infos: self.infos, hops: self.hops })
    }
}

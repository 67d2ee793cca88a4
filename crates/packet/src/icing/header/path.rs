//! A path: the sender, then for every other node its ID, a tag and the second at which its consent ends.

use std::fmt;

use wayleave_crypto::dh::DhPublic;
use wayleave_crypto::hash::sha256;

use super::{HANDLE, HOP, MAX_NODES, MIN_NODES, Malformed, NODE, Version, path_length};

/// A node's ID: an X25519 public key in canonical form and not of small order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(DhPublic);

impl NodeId {
    /// From 32 octets; `None` if they are not in canonical form or of small order. Whether the key is on the curve costs more
    /// and is checked before the key is used, see [`NodeId::is_on_curve`].
    #[must_use]
    pub fn from_bytes(bytes: [u8; NODE]) -> Option<Self> {
        let public = DhPublic::from_bytes(bytes).ok()?;
        (!public.is_small_order()).then_some(Self(public))
    }

    /// Whether the key is on the curve and not on its twist, as that of every honest node is.
    #[must_use]
    pub fn is_on_curve(&self) -> bool {
        self.0.is_on_curve()
    }

    /// The 32 octets.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; NODE] {
        self.0.to_bytes()
    }

    /// The key.
    #[must_use]
    pub fn public(&self) -> &DhPublic {
        &self.0
    }

    pub(crate) fn of(public: DhPublic) -> Self {
        Self(public)
    }
}

impl fmt::Debug for NodeId {
    /// The first octets, to tell nodes apart in reports.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.to_bytes();
        write!(f, "NodeId({a:02x}{b:02x}{c:02x}{d:02x}..)")
    }
}

/// Selects what a node does with a packet: queue, output link, account, service.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tag(pub u32);

/// Stands for a path: the first half of a hash over nodes, tags and expiries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle(pub [u8; HANDLE]);

/// A node of a path behind the sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hop {
    pub node: NodeId,
    /// Selects what the node does.
    pub tag: Tag,
    /// The last Unix second, modulo 2^32, for which it consents.
    pub expiry: u32,
}

/// A path in which no node occurs twice.
#[derive(Clone, Copy)]
pub struct Path {
    sender: NodeId,
    /// Those beyond the count have no meaning.
    hops: [Hop; MAX_NODES - 1],
    count: usize,
}

impl PartialEq for Path {
    fn eq(&self, other: &Self) -> bool {
        (self.sender, self.hops()) == (other.sender, other.hops())
    }
}

impl Eq for Path {}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Path").field("sender", &self.sender).field("hops", &self.hops()).finish()
    }
}

impl Path {
    /// The path from `sender` over `hops`, the last of which is the receiver.
    ///
    /// # Errors
    /// If there are too few or too many hops, or a node occurs twice.
    pub fn new(sender: NodeId, hops: &[Hop]) -> Result<Self, Malformed> {
        let count = hops.len() + 1;
        let (&first, true) = (hops.first().ok_or(Malformed::Count(1))?, count <= MAX_NODES) else {
            return Err(Malformed::Count(count.min(255) as u8));
        };
        let mut path = Self { sender, hops: [first; MAX_NODES - 1], count };
        path.hops[..hops.len()].copy_from_slice(hops);
        path.check_repeated()?;
        Ok(path)
    }

    /// Decodes all of `octets`: every ID in canonical form and not of small order, none twice.
    pub fn decode(octets: &[u8]) -> Result<Self, Malformed> {
        let truncated = Malformed::Truncated { need: path_length(MIN_NODES), have: octets.len() };
        let (sender, rest) = octets.split_first_chunk::<NODE>().ok_or(truncated)?;
        let sender = NodeId::from_bytes(*sender).ok_or(Malformed::Node(0))?;
        let (hops, rest) = rest.as_chunks::<HOP>();
        let count = hops.len() + 1;
        if !rest.is_empty() {
            return Err(Malformed::Length { declared: path_length(count), have: octets.len() });
        }
        if !(MIN_NODES..=MAX_NODES).contains(&count) {
            return Err(Malformed::Count(count.min(255) as u8));
        }
        let mut path = Self { sender, hops: [Hop { node: sender, tag: Tag(0), expiry: 0 }; MAX_NODES - 1], count };
        for (number, (hop, octets)) in (1..).zip(path.hops.iter_mut().zip(hops)) {
            *hop = decode_hop(octets).ok_or(Malformed::Node(number))?;
        }
        path.check_repeated()?;
        Ok(path)
    }

    fn check_repeated(&self) -> Result<(), Malformed> {
        for index in 1..self.count {
            if (0..index).any(|before| self.node(before) == self.node(index)) {
                return Err(Malformed::Repeated(index as u8));
            }
        }
        Ok(())
    }

    /// Nodes, sender and receiver among them.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Node `index`, below [`Path::count`].
    #[must_use]
    pub fn node(&self, index: usize) -> &NodeId {
        match index.checked_sub(1) {
            None => &self.sender,
            Some(hop) => &self.hops()[hop].node,
        }
    }

    /// All nodes but the sender.
    #[must_use]
    pub fn hops(&self) -> &[Hop] {
        &self.hops[..self.count - 1]
    }

    /// Node `index` with tag and expiry; `index` is at least 1 and below [`Path::count`].
    #[must_use]
    pub fn hop(&self, index: usize) -> &Hop {
        &self.hops()[index - 1]
    }

    /// Appends the octets of the wire.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.sender.to_bytes());
        for hop in self.hops() {
            out.extend(hop.node.to_bytes());
            out.extend(hop.tag.0.to_be_bytes());
            out.extend(hop.expiry.to_be_bytes());
        }
    }

    /// `H(path)`, over nodes and tags: what consent is given to.
    #[must_use]
    pub fn hash(&self, version: Version) -> PathHash {
        let mut octets = [0; 6 + NODE + (MAX_NODES - 1) * (NODE + 4)];
        octets[..6].copy_from_slice(&[b'I', b'p', b'1', b'h', version as u8, self.count as u8]);
        octets[6..6 + NODE].copy_from_slice(&self.sender.to_bytes());
        let end = 6 + NODE + self.hops().len() * (NODE + 4);
        for (entry, hop) in octets[6 + NODE..].chunks_exact_mut(NODE + 4).zip(self.hops()) {
            entry[..NODE].copy_from_slice(&hop.node.to_bytes());
            entry[NODE..].copy_from_slice(&hop.tag.0.to_be_bytes());
        }
        PathHash(sha256(&octets[..end]))
    }

    /// The hash over [`Path::hash`] and the expiries: what packets are bound to.
    #[must_use]
    pub fn route(&self, version: Version) -> RouteHash {
        let mut octets = [0; 4 + 32 + (MAX_NODES - 1) * 4];
        octets[..4].copy_from_slice(b"Ip1r");
        octets[4..36].copy_from_slice(&self.hash(version).0);
        let end = 36 + self.hops().len() * 4;
        for (entry, hop) in octets[36..].as_chunks_mut::<4>().0.iter_mut().zip(self.hops()) {
            *entry = hop.expiry.to_be_bytes();
        }
        RouteHash(sha256(&octets[..end]))
    }
}

fn decode_hop(octets: &[u8; HOP]) -> Option<Hop> {
    let (node, rest) = octets.split_first_chunk()?;
    let (tag, expiry) = rest.split_first_chunk()?;
    Some(Hop {
        node: NodeId::from_bytes(*node)?,
        tag: Tag(u32::from_be_bytes(*tag)),
        expiry: u32::from_be_bytes(*expiry.first_chunk()?),
    })
}

/// `H(path)`: nodes and tags.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PathHash(pub [u8; 32]);

/// Nodes, tags and expiries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RouteHash(pub [u8; 32]);

impl RouteHash {
    /// Its first half.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle(*self.0.first_chunk().expect("32 octets"))
    }
}

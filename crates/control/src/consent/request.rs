//! A request for consent, signed by the sender's identity.

use wayleave_core::{IdentityKey, UnixTime};
use wayleave_crypto::sign::VerifyingKey;
use wayleave_packet::icing::header::{Hop, MAX_NODES, MIN_NODES, NodeId, Path, PathHash, Tag, Version};
use wayleave_packet::icing::mint::EpochKey;

use crate::realm::RealmKey;
use crate::signed::{NotSigned, Object, SIGNATURE, Signed};
use crate::wire::{Malformed, Reader, Writer};

/// The exact path: node IDs and tags.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestedPath {
    pub sender: NodeId,
    /// The nodes behind the sender.
    pub hops: Vec<(NodeId, Tag)>,
}

impl RequestedPath {
    /// What consent is given to.
    ///
    /// # Errors
    /// If it is no path of ICING.
    pub fn hash(&self) -> Result<PathHash, Malformed> {
        let hops: Vec<Hop> = self.hops.iter().map(|(node, tag)| Hop { node: *node, tag: *tag, expiry: 0 }).collect();
        let path = Path::new(self.sender, &hops).map_err(|_| Malformed::Value("the path"))?;
        Ok(path.hash(Version::Standard))
    }

    /// Node `index` of the path, the sender being 0.
    #[must_use]
    pub fn node(&self, index: usize) -> Option<&NodeId> {
        match index.checked_sub(1) {
            None => Some(&self.sender),
            Some(hop) => self.hops.get(hop).map(|(node, _)| node),
        }
    }
}

/// A sender asks a server for the consent of one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConsentRequest {
    pub realm: RealmKey,
    /// The server that is asked.
    pub server: IdentityKey,
    /// Who asks.
    pub sender: IdentityKey,
    /// Random; never the same twice.
    pub nonce: [u8; 16],
    /// The Unix second at which it was made.
    pub time: u64,
    pub path: RequestedPath,
    /// Which node of the path is to consent, by the tag that the path has for it.
    pub index: u8,
    /// The last Unix second for which consent is asked.
    pub expiry: u32,
    /// The path's first ID, signed by the sender's identity ([`EpochKey::sign`]).
    pub epoch_key: [u8; EpochKey::LENGTH],
}

impl ConsentRequest {
    /// The tag under which the node is to consent.
    #[must_use]
    pub fn tag(&self) -> Option<Tag> {
        self.path.hops.get(usize::from(self.index).checked_sub(1)?).map(|(_, tag)| *tag)
    }

    /// The sender signed the request, and signed the ID that it sends by, which is in use at `now`.
    ///
    /// # Errors
    /// If not.
    pub fn verify(signed: &Signed<Self>, now: UnixTime) -> Result<(&Self, EpochKey), NotSigned> {
        let request = signed.verify(&signed.object().sender.0)?;
        let identity = VerifyingKey::from_bytes(&request.sender.0).map_err(|_| NotSigned)?;
        let key = EpochKey::verify(&request.epoch_key, &identity, now).map_err(|_| NotSigned)?;
        if key.node == request.path.sender { Ok((request, key)) } else { Err(NotSigned) }
    }
}

impl Object for ConsentRequest {
    const LABEL: &'static str = "wayleave/control/consent-request/v1";
    const MAX: usize = 1 + 96 + 16 + 8 + 32 + 2 + (MAX_NODES - 1) * 36 + 1 + 4 + EpochKey::LENGTH + SIGNATURE;

    fn write(&self, out: &mut Writer) {
        out.bytes(&self.realm.0).identity(&self.server).identity(&self.sender).bytes(&self.nonce).u64(self.time);
        out.bytes(&self.path.sender.to_bytes()).list(&self.path.hops, |out, (node, tag)| {
            out.bytes(&node.to_bytes()).u32(tag.0);
        });
        out.u8(self.index).u32(self.expiry).bytes(&self.epoch_key);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let request = Self {
            realm: RealmKey(reader.array()?),
            server: reader.identity()?,
            sender: reader.identity()?,
            nonce: reader.array()?,
            time: reader.u64()?,
            path: RequestedPath {
                sender: node(reader)?,
                hops: reader.list(36, MAX_NODES - 1, |reader| Ok((node(reader)?, Tag(reader.u32()?))))?,
            },
            index: reader.u8()?,
            expiry: reader.u32()?,
            epoch_key: reader.array()?,
        };
        let count = request.path.hops.len() + 1;
        if count < MIN_NODES || request.index == 0 || usize::from(request.index) >= count {
            return Err(Malformed::Value("the index"));
        }
        request.path.hash()?;
        Ok(request)
    }
}

fn node(reader: &mut Reader<'_>) -> Result<NodeId, Malformed> {
    NodeId::from_bytes(reader.array()?).ok_or(Malformed::Value("a node ID"))
}

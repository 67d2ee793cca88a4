//! A request for consent, signed by the sender's identity.

use wayleave_core::wire::{List16, Malformed, Reader, Wire};
use wayleave_core::{IdentityKey, UnixTime};
use wayleave_crypto::sign::VerifyingKey;
use wayleave_crypto::signed::{NotSigned, Object, SIGNATURE, Signed};
use wayleave_packet::icing::header::{Hop, MAX_NODES, MIN_NODES, NodeId, Path, PathHash, Tag, Version};
use wayleave_packet::icing::mint::EpochKey;

use crate::codecs::{ByObjectCodec, NodeIdCodec, TagCodec};
use crate::realm::RealmKey;

wayleave_core::wire! {
    /// The exact path: node IDs and tags.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct RequestedPath {
        pub sender: NodeId as NodeIdCodec,
        /// The nodes behind the sender.
        pub hops: Vec<(NodeId, Tag)> as List16<{ MAX_NODES - 1 }, (NodeIdCodec, TagCodec)>,
    }
}

impl RequestedPath {
    /// What consent is given to, for packets of `version`.
    ///
    /// # Errors
    /// If it is no path of ICING.
    pub fn hash(&self, version: Version) -> Result<PathHash, Malformed> {
        let hops: Vec<Hop> = self.hops.iter().map(|(node, tag)| Hop { node: *node, tag: *tag, expiry: 0 }).collect();
        let path = Path::new(self.sender, &hops).map_err(|_| Malformed::Value("the path"))?;
        Ok(path.hash(version))
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

wayleave_core::wire! {
    /// A sender asks a server for the consent of one node.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct ConsentRequest: Self::check {
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
        /// Of the packets that are to be sent: the request's own version, [`Version::Standard`] or [`Version::Sealed`].
        pub packets: Version as ByObjectCodec,
    }
}

impl ConsentRequest {
    fn check(&self) -> Result<(), Malformed> {
        let count = self.path.hops.len() + 1;
        if count < MIN_NODES || self.index == 0 || usize::from(self.index) >= count {
            return Err(Malformed::Value("the index"));
        }
        self.path.hash(self.packets).map(drop)
    }

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
        Self::verify_with(signed, None, now)
    }

    /// The same. `known` is the request's epoch key, if the same octets of the same sender were verified before.
    ///
    /// # Errors
    /// As [`ConsentRequest::verify`].
    pub fn verify_with(
        signed: &Signed<Self>,
        known: Option<EpochKey>,
        now: UnixTime,
    ) -> Result<(&Self, EpochKey), NotSigned> {
        let request = signed.verify(&signed.object().sender.0)?;
        let key = match known.filter(|key| key.is_valid_at(now)) {
            Some(key) => key,
            None => {
                let identity = VerifyingKey::from_bytes(&request.sender.0).map_err(|_| NotSigned)?;
                EpochKey::verify(&request.epoch_key, &identity, now).map_err(|_| NotSigned)?
            }
        };
        if key.node == request.path.sender { Ok((request, key)) } else { Err(NotSigned) }
    }
}

impl Object for ConsentRequest {
    const LABEL: &'static str = "wayleave/control/consent-request/v1";
    const MAX: usize = 1 + 96 + 16 + 8 + 32 + 2 + (MAX_NODES - 1) * 36 + 1 + 4 + EpochKey::LENGTH + SIGNATURE;
    const VERSION: u8 = Version::Sealed as u8;

    fn version(&self) -> u8 {
        self.packets as u8
    }

    fn read_version(version: u8, from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let packets = Version::Standard.spoken(version).ok_or(Malformed::Version(version))?;
        Ok(Self { packets, ..Self::read(from)? })
    }
}

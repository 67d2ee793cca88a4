//! What a node publishes of itself: its IDs, links, tags and consent server. Signed by its identity.

use std::net::SocketAddr;

use wayleave_core::wire::{Ascii, List16, Malformed, Reader, check_ascending};
use wayleave_core::{IdentityKey, UnixTime};
use wayleave_crypto::sign::VerifyingKey;
use wayleave_crypto::signed::{NotSigned, Object, SIGNATURE, Signed};
use wayleave_packet::icing::header::{NodeId, Tag};
use wayleave_packet::icing::mint::EpochKey;

use crate::codecs::TagCodec;
use crate::realm::{MAX_ADDRESS, RealmKey, Server};

/// Links of a node.
pub const MAX_LINKS: usize = 256;
/// Tags that a node offers.
pub const MAX_TAGS: usize = 16;
/// Characters of a tag's meaning.
pub const MAX_MEANING: usize = 64;
/// An advert lasts at most this many minutes.
pub const MAX_LIFETIME: u8 = 60;
/// An advert may have been made this many seconds ahead of the reader's clock.
pub const MAX_AHEAD: u64 = 120;
/// A node ID is used for at most this many seconds: 31 days.
pub const MAX_EPOCH: u32 = 31 * 86_400;
/// Octets that a packet must have at least to be worth a link: IPv6's least MTU (RFC 8200 section 5).
pub const MIN_MTU: u16 = 1280;

wayleave_core::wire! {
    /// What the other end of a link is to a node.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    pub enum Relationship: "a relationship" {
        /// It carries the node's packets for pay.
        1 = Provider,
        /// Each carries its own customers' packets to the other.
        2 = Peer,
        /// The node carries its packets.
        3 = Customer,
    }
}

impl Relationship {
    /// What the node is to the other end, if this is what the other end is to the node.
    #[must_use]
    pub fn reversed(self) -> Self {
        match self {
            Self::Provider => Self::Customer,
            Self::Peer => Self::Peer,
            Self::Customer => Self::Provider,
        }
    }
}

wayleave_core::wire! {
    /// A node's end of a link.
    #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    pub struct Link {
        pub neighbour: IdentityKey,
        /// What the neighbour is to this node.
        pub relationship: Relationship,
        /// Whether others may be told of the link.
        pub public: bool,
        /// The link's number at this node.
        pub interface: u16,
        /// Where this node receives by UDP what the neighbour sends.
        pub endpoint: SocketAddr,
    }

    /// What packets under a tag are for.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    pub enum TagUse: "the use of a tag" {
        /// They pass on to the path's next node.
        1 = Transit,
        /// They are received here.
        2 = Deliver,
        /// Something else, which the meaning says.
        3 = Service,
    }

    /// A tag that a node offers.
    #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    pub struct TagOffer {
        pub tag: Tag as TagCodec,
        pub usage: TagUse,
        /// For people.
        pub meaning: String as Ascii<MAX_MEANING>,
    }

    /// A node's statement about itself.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct Advert: Self::check {
        pub realm: RealmKey,
        pub identity: IdentityKey,
        /// Rises with each advert of the node, also across its restarts.
        pub sequence: u64,
        /// The Unix second at which it was made.
        pub issued: u64,
        /// Minutes that it lasts, 1 to [`MAX_LIFETIME`].
        pub lifetime: u8,
        /// Octets of the longest ICING packet that the node takes on any link.
        pub mtu: u16,
        /// The node's ID of this epoch and that of the next, as [`EpochKey::sign`] made them, ascending by epoch. None only in a
        /// departure.
        pub ids: Vec<[u8; EpochKey::LENGTH]> as List16<MAX_IDS>,
        /// By neighbour, ascending; without any the node departs.
        pub links: Vec<Link> as List16<MAX_LINKS>,
        /// By tag, ascending.
        pub tags: Vec<TagOffer> as List16<MAX_TAGS>,
        /// Who consents for this node.
        pub consent: Option<Server>,
    }
}

impl Advert {
    /// Whether the node leaves.
    #[must_use]
    pub fn is_departure(&self) -> bool {
        self.links.is_empty()
    }

    /// The last Unix second at which it counts.
    #[must_use]
    pub fn expires(&self) -> u64 {
        self.issued.saturating_add(60 * u64::from(self.lifetime))
    }

    /// The node IDs with their epochs. What [`Advert::verify`] accepted has no others.
    pub fn epoch_keys(&self) -> impl Iterator<Item = EpochKey> {
        self.ids.iter().filter_map(read_epoch_key)
    }

    /// The ID that a path made at the Unix second `now` has for this node: of those in use, the one that lasts longest.
    #[must_use]
    pub fn current(&self, now: u64) -> Option<EpochKey> {
        let is_now = |key: &EpochKey| (u64::from(key.not_before)..=u64::from(key.not_after)).contains(&now);
        self.epoch_keys().filter(is_now).max_by_key(|key| key.not_after)
    }

    /// The link to `neighbour`.
    #[must_use]
    pub fn link(&self, neighbour: &IdentityKey) -> Option<&Link> {
        let at = self.links.binary_search_by(|link| link.neighbour.cmp(neighbour)).ok()?;
        self.links.get(at)
    }

    /// The first tag for this use.
    #[must_use]
    pub fn tag(&self, usage: TagUse) -> Option<Tag> {
        self.tags.iter().find(|offer| offer.usage == usage).map(|offer| offer.tag)
    }

    /// Its identity signed it, and every node ID in it.
    ///
    /// # Errors
    /// If one is not signed.
    pub fn verify(signed: &Signed<Self>) -> Result<&Self, NotSigned> {
        let identity = signed.object().identity;
        let advert = signed.verify(&identity.0)?;
        let key = VerifyingKey::from_bytes(&identity.0).map_err(|_| NotSigned)?;
        for (octets, epoch_key) in advert.ids.iter().zip(advert.epoch_keys()) {
            // When an ID is used is a rule of its own: here it is verified as of its own beginning.
            let begin = UnixTime(u64::from(epoch_key.not_before) * 1_000_000);
            EpochKey::verify(octets, &key, begin).map_err(|_| NotSigned)?;
        }
        Ok(advert)
    }
}

/// The fields of a signed node ID, in canonical form; the signature is not verified.
pub(crate) fn read_epoch_key(octets: &[u8; EpochKey::LENGTH]) -> Option<EpochKey> {
    let mut reader = Reader::new(octets);
    let (epoch, not_before, not_after) = (reader.u32().ok()?, reader.u32().ok()?, reader.u32().ok()?);
    let node = NodeId::from_bytes(reader.array().ok()?)?;
    let lasts = not_after.checked_sub(not_before)?;
    (lasts <= MAX_EPOCH).then_some(EpochKey { epoch, not_before, not_after, node })
}

const LINK_MAX: usize = 32 + 1 + 1 + 2 + 19;
const TAG_MAX: usize = 4 + 1 + 1 + MAX_MEANING;
/// IDs of an advert: of this epoch and the next.
const MAX_IDS: usize = 2;

impl Object for Advert {
    const LABEL: &'static str = "wayleave/control/advert/v1";
    const MAX: usize = 1
        + 64
        + 8
        + 8
        + 1
        + 2
        + 2
        + MAX_IDS * EpochKey::LENGTH
        + 2
        + MAX_LINKS * LINK_MAX
        + 2
        + MAX_TAGS * TAG_MAX
        + 1
        + 33
        + MAX_ADDRESS
        + SIGNATURE;
}

impl Advert {
    fn check(&self) -> Result<(), Malformed> {
        if self.lifetime == 0 || self.lifetime > MAX_LIFETIME {
            return Err(Malformed::Value("the lifetime"));
        }
        if self.mtu < MIN_MTU {
            return Err(Malformed::Value("the MTU"));
        }
        let keys: Vec<EpochKey> = self.epoch_keys().collect();
        if keys.len() != self.ids.len() || keys.is_empty() && !self.is_departure() {
            return Err(Malformed::Value("the node IDs"));
        }
        if !keys.is_sorted_by(|a, b| a.epoch < b.epoch && a.node != b.node) {
            return Err(Malformed::Order("the node IDs"));
        }
        let neighbours: Vec<&IdentityKey> = self.links.iter().map(|link| &link.neighbour).collect();
        check_ascending(&neighbours, "the neighbours")?;
        if neighbours.contains(&&self.identity) {
            return Err(Malformed::Value("a neighbour"));
        }
        check_ascending(&self.tags.iter().map(|offer| offer.tag).collect::<Vec<_>>(), "the tags")
    }
}

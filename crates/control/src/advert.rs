//! What a node publishes of itself: its IDs, links, tags and consent server. Signed by its identity.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use wayleave_core::wire::{Ascii, Blob, List16, Malformed, Reader, Wire, Writer, check_ascending};
use wayleave_core::{IdentityKey, UnixTime};
use wayleave_crypto::sign::VerifyingKey;
use wayleave_crypto::signed::{NotSigned, Object, SIGNATURE, Signed};
use wayleave_packet::icing::header::{NodeId, Tag, Version};
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
/// Octets of an ICING packet that every link carries: IPv6's least MTU (RFC 8200 section 5) without the headers of IPv6 and UDP.
pub const MIN_MTU: u16 = 1280 - 40 - 8;
/// Fields of an advert that later versions add.
pub const MAX_EXTENSIONS: usize = 16;
/// Octets of such a field.
pub const MAX_EXTENSION: usize = 1024;

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
        /// Where the neighbour begins a session to this node, by UDP; none: only this node can begin one.
        pub endpoint: Option<Endpoint>,
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

    /// A field that this version may not know.
    #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    pub struct Extension {
        pub kind: u16,
        pub value: Vec<u8> as Blob<MAX_EXTENSION>,
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
        /// By neighbour, ascending; without any, a node that is not open departs.
        pub links: Vec<Link> as List16<MAX_LINKS>,
        /// By tag, ascending.
        pub tags: Vec<TagOffer> as List16<MAX_TAGS>,
        /// Who consents for this node.
        pub consent: Option<Server>,
        /// Where members that this advert does not list begin sessions, as its customers: the node is open. Only a forwarder can be.
        pub open: Option<Endpoint>,
        /// By kind, ascending. One of a kind that is not known says nothing, and is kept.
        pub extensions: Vec<Extension> as List16<MAX_EXTENSIONS>,
    }
}

/// An address or name, and a port, to which UDP datagrams can be sent: `192.0.2.1:49252`, `[2001:db8::1]:49252`, `node.example.net:49252`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Endpoint(String);

impl Endpoint {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The address, if it is one and no name.
    #[must_use]
    pub fn literal(&self) -> Option<SocketAddr> {
        self.0.parse().ok()
    }

    fn is_valid(text: &str) -> bool {
        if let Ok(address) = text.parse::<SocketAddr>() {
            let ip = address.ip();
            let can_be_sent_to = address.port() > 0 && !ip.is_unspecified() && !ip.is_multicast();
            // A zone (RFC 4007) means nothing to others; and each address has one spelling.
            return can_be_sent_to && !text.contains('%') && address.to_string() == text;
        }
        let Some((host, port)) = text.rsplit_once(':') else { return false };
        let is_port = port.parse::<u16>().is_ok_and(|number| number > 0 && number.to_string() == port);
        is_port && text.len() <= MAX_ADDRESS && is_domain(host)
    }
}

/// Whether `host` is a name that DNS can have an address of (RFC 1123 section 2.1), and cannot be taken for an address.
fn is_domain(host: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|octet| octet.is_ascii_alphanumeric() || octet == b'-' || octet == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_number = |label: &str| label.bytes().all(|octet| octet.is_ascii_digit());
    host.len() <= 253 && host.split('.').all(is_label) && !host.rsplit('.').next().is_some_and(is_number)
}

/// It is no endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "not an endpoint: an address or name and a port, such as 192.0.2.1:49252, [2001:db8::1]:49252 or node.example.net:49252"
)]
pub struct NoEndpoint;

impl FromStr for Endpoint {
    type Err = NoEndpoint;
    fn from_str(text: &str) -> Result<Self, NoEndpoint> {
        if Self::is_valid(text) { Ok(Self(text.to_owned())) } else { Err(NoEndpoint) }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text.
impl Wire for Endpoint {
    const LEAST: usize = 1;

    fn write(&self, out: &mut Writer) {
        out.text(&self.0);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        from.text(MAX_ADDRESS)?.parse().map_err(|_| Malformed::Value("an endpoint"))
    }
}

impl Advert {
    /// Whether the node leaves.
    #[must_use]
    pub fn is_departure(&self) -> bool {
        self.links.is_empty() && self.open.is_none()
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

    /// Where a session to this node begins over TLS on TCP, if it can be reached so. An extension that is no endpoint says nothing.
    #[must_use]
    pub fn tls(&self) -> Option<Endpoint> {
        let extension = self.extensions.iter().find(|extension| extension.kind == TLS_EXTENSION)?;
        std::str::from_utf8(&extension.value).ok()?.parse().ok()
    }

    /// Whether the node says that it reads ICING packets of `version`. One that says nothing, as before there were several, reads the standard
    /// one.
    #[must_use]
    pub fn reads(&self, version: Version) -> bool {
        let extension = self.extensions.iter().find(|extension| extension.kind == PACKETS_EXTENSION);
        match extension.and_then(|extension| extension.value.first_chunk()) {
            Some([least, latest]) => (*least..=*latest).contains(&(version as u8)),
            None => version == Version::Standard,
        }
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

const ENDPOINT_MAX: usize = 1 + 1 + MAX_ADDRESS;
const LINK_MAX: usize = 32 + 1 + 1 + 2 + ENDPOINT_MAX;
const TAG_MAX: usize = 4 + 1 + 1 + MAX_MEANING;
/// IDs of an advert: of this epoch and the next.
const MAX_IDS: usize = 2;

impl Object for Advert {
    const LABEL: &'static str = "wayleave/control/advert/v2";
    const VERSION: u8 = 2;
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
        + ENDPOINT_MAX
        + 2
        + MAX_EXTENSIONS * (2 + 4 + MAX_EXTENSION)
        + SIGNATURE;
}

/// The kind of the extension that says where sessions of links begin over TLS on TCP: an [`Endpoint`] in ASCII.
pub const TLS_EXTENSION: u16 = 1;
/// The kind of the extension that says which versions of ICING packets the node reads: the least and the latest one, an octet each.
pub const PACKETS_EXTENSION: u16 = 2;

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
        check_ascending(&self.tags.iter().map(|offer| offer.tag).collect::<Vec<_>>(), "the tags")?;
        check_ascending(&self.extensions.iter().map(|extension| extension.kind).collect::<Vec<_>>(), "the extensions")
    }
}

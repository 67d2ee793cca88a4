//! The frames between nodes and servers, in one format: version, type, the number of the request, fields. A link carries each
//! inside a record with its length. Everything counted is bounded before it is allocated, and nothing may be left over.

use std::fmt;
use std::net::IpAddr;

use wayleave_core::IdentityKey;
use wayleave_core::wire::{Ascii, Codec, List16, Malformed, Nested, Reader, Wire, Writer};
use wayleave_crypto::signed::Signed;
use wayleave_packet::icing::header::{NodeId, Tag};
use wayleave_packet::icing::mint::TagMaster;
use wayleave_packet::{Format, Hop, HopId, Label, MAX_LABELS, Path};
use zeroize::Zeroizing;

use crate::advert::Advert;
use crate::codecs::{MasterCodec, NodeIdCodec, TagCodec};
use crate::consent::{ConsentAnswer, ConsentRequest};
use crate::database::Refusal;
use crate::labels::MAX_LABEL;
use crate::realm::{Invitation, JoinError, JoinRequest, Membership, Name, RevocationList};
use crate::store::{MAX_RECORD, Record};
use crate::topology::{MAX_HOPS, MAX_PATHS, PartialPath, Step};

/// The versions of the protocol that a program speaks, as the ends of a link tell each other by ALPN (RFC 7301), the latest first. The
/// first one that both have is used. Version 1 had no name; version 2 had no lists that say until when a node is removed, and no rolls of the
/// realm's key: a program that cannot read these would go on with what it has, so that it is refused before it asks.
pub const PROTOCOLS: &[&str] = &["wayleave-realm/3"];
/// The version of every frame.
pub const VERSION: u8 = 1;
/// Octets of the largest frame; a link refuses longer ones before it reads them.
pub const MAX_FRAME: usize = 4 << 20;
/// Records of one frame.
pub const MAX_RECORDS: usize = 1024;
/// Masters of a node's tag keys that its consent server is given: of the epochs that consents reach, and more.
pub const MAX_MASTERS: usize = 64;
/// Octets of the records that come with paths; beyond, paths are left out.
pub const MAX_ANSWER: usize = 1 << 20;

wayleave_core::wire! {
    /// Whom a path should lead to.
    #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    pub enum Host: "the kind of a host" {
        1 = Name(Name),
        2 = Identity(IdentityKey),
        /// Whoever has the longest prefix around this inner address.
        3 = Address(IpAddr),
    }
}

/// A frame.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Chosen by whoever asks; the answer has the same. Zero where nobody asked.
    pub request: u32,
    pub body: Body,
}

wayleave_core::wire! {
    /// What a frame says.
    #[derive(Clone, Debug)]
    pub enum Body: "the type of a frame" {
        /// A node publishes itself.
        1 = Register {
            membership: Signed<Membership>,
            advert: Signed<Advert>,
        },
        /// The object with this number is durable.
        2 = Registered {
            number: u64,
        },
        /// The realm's list of removed nodes, from anybody.
        3 = SubmitRevocations(Signed<RevocationList>),
        /// The sender wants the records that changed after a version of a life of the server, and then each change.
        4 = Subscribe {
            instance: u64,
            since: u64,
        },
        /// What changed, up to a version; `complete` if that is all.
        5 = Records {
            instance: u64,
            version: u64,
            complete: bool,
            records: Vec<Record> as Records,
        },
        /// The paper's `find_path_to_host`.
        6 = FindHost {
            host: Host,
            partials: Vec<PartialPath> as List16<MAX_PATHS, PartialPathCodec>,
        },
        /// The paper's `find_path_to_ps`.
        7 = FindPathServer {
            partials: Vec<PartialPath> as List16<MAX_PATHS, PartialPathCodec>,
        },
        /// Paths, and the records of every node on them. `is_cut` if the search was stopped.
        8 = Paths {
            is_cut: bool,
            paths: Vec<Path> as List16<MAX_PATHS, PathCodec>,
            records: Vec<Record> as Records,
        },
        /// Not done, and why.
        9 = Refused(Refusal),
        /// A sender asks one node for consent; its membership comes along.
        10 = Consent {
            membership: Signed<Membership>,
            request: Signed<ConsentRequest>,
        },
        11 = Consented(Signed<ConsentAnswer>),
        12 = Join(Signed<JoinRequest>),
        13 = Joined(Result<Signed<Membership>, JoinError> as JoinedCodec),
        /// The node at the other end of the link has its membership of this number, and asks for a later one.
        14 = Renew {
            number: u64,
        },
        /// The node at the other end of the link wants other keys, and asks for an invitation with what it was granted, under this one-time key.
        15 = Roll {
            key: [u8; 32],
        },
        16 = Invited(Signed<Invitation>),
        /// Anybody asks for the list of removed nodes.
        17 = FindRevocations,
        /// The list, if there is one.
        18 = Revocations(Option<Signed<RevocationList>>),
        /// The node at the other end of the link gives its own provider's consent server the masters of its tag keys, each with the epoch from
        /// which it is used, in the place of those that it gave before. The link is between these two alone.
        19 = Entrust {
            masters: Vec<(u32, TagMaster)> as List16<MAX_MASTERS, MasterCodec>,
        },
        /// The server has them, until it ends.
        20 = Entrusted,
    }
}

/// A frame as it came. There may be keys in it: it is wiped after use, and printed by its length alone.
#[derive(Clone)]
pub struct FrameOctets(Zeroizing<Vec<u8>>);

impl From<Vec<u8>> for FrameOctets {
    fn from(octets: Vec<u8>) -> Self {
        Self(Zeroizing::new(octets))
    }
}

impl std::ops::Deref for FrameOctets {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for FrameOctets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} octets", self.0.len())
    }
}

impl Frame {
    /// The octets. Lists longer than their limits are the caller's error.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u8(VERSION).u8(self.body.code()).u32(self.request);
        self.body.write_fields(&mut out);
        out.finish()
    }

    /// Decodes all of `octets`.
    ///
    /// # Errors
    /// If they are not a frame of this version.
    pub fn decode(octets: &[u8]) -> Result<Self, Malformed> {
        if octets.len() > MAX_FRAME {
            return Err(Malformed::TooLong(octets.len() - MAX_FRAME));
        }
        let mut from = Reader::new(octets);
        let version = from.u8()?;
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        let (code, request) = (from.u8()?, from.u32()?);
        let body = Body::read_fields(code, &mut from)?;
        from.end()?;
        Ok(Self { request, body })
    }

    /// The number of the request in a frame whose fields cannot be read, so that a client of another version learns which of its requests is
    /// refused; 0 if that cannot be read either.
    #[must_use]
    pub fn request_of(octets: &[u8]) -> u32 {
        match octets {
            [VERSION, _, request @ ..] => request.first_chunk().map_or(0, |octets| u32::from_be_bytes(*octets)),
            _ => 0,
        }
    }
}

/// Records as others may have them: what became of tokens stays at the operator, and a list has its list key with it.
struct Records;

impl Codec<Vec<Record>> for Records {
    const LEAST: usize = 2;

    fn write(value: &Vec<Record>, out: &mut Writer) {
        List16::<MAX_RECORDS, Nested<MAX_RECORD>>::write(value, out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Vec<Record>, Malformed> {
        let records: Vec<Record> = List16::<MAX_RECORDS, Nested<MAX_RECORD>>::read(from)?;
        if records.iter().all(Record::is_public) { Ok(records) } else { Err(Malformed::Value("the kind of a record")) }
    }
}

/// A membership, or the number of the reason why there is none; 0 in front of a membership.
struct JoinedCodec;

impl Codec<Result<Signed<Membership>, JoinError>> for JoinedCodec {
    const LEAST: usize = 1;

    fn write(value: &Result<Signed<Membership>, JoinError>, out: &mut Writer) {
        match value {
            Ok(membership) => membership.write(out.u8(0)),
            Err(error) => drop(out.u8(error.code())),
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Result<Signed<Membership>, JoinError>, Malformed> {
        match from.u8()? {
            0 => Signed::read(from).map(Ok),
            code => JoinError::from_code(code).map(Err).ok_or(Malformed::Value("the reason of a refusal")),
        }
    }
}

/// The number of the reason, whether somebody belongs to it and who, and a number.
impl Wire for Refusal {
    const LEAST: usize = 1 + 1 + 8;

    fn write(&self, out: &mut Writer) {
        let (code, by, number) = self.parts();
        out.u8(code);
        by.write(out);
        out.u64(number);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (code, by, number) = (from.u8()?, Option::read(from)?, from.u64()?);
        Self::from_parts(code, by, number).ok_or(Malformed::Value("the reason of a refusal"))
    }
}

wayleave_core::wire! {
    /// A node on a path as it travels.
    struct WireHop {
        identity: IdentityKey,
        id: NodeId as NodeIdCodec,
        tag: Tag as TagCodec,
        ingress: u16,
        egress: u16,
    }

    /// What a node signed about itself.
    struct WireLabel {
        hop: u8,
        text: String as Ascii<MAX_LABEL>,
        signer: IdentityKey,
    }
}

/// The nodes with their count, and between each two of them the step from one to the other.
struct PartialPathCodec;

impl Codec<PartialPath> for PartialPathCodec {
    const LEAST: usize = 2 + 32;

    fn write(value: &PartialPath, out: &mut Writer) {
        List16::<MAX_HOPS>::write(&value.nodes, out);
        value.steps.iter().for_each(|step| step.write(out));
    }

    fn read(from: &mut Reader<'_>) -> Result<PartialPath, Malformed> {
        let nodes: Vec<IdentityKey> = List16::<MAX_HOPS>::read(from)?;
        if nodes.is_empty() {
            return Err(Malformed::Value("a partial path"));
        }
        let steps = from.elements(nodes.len() - 1, Step::read)?;
        Ok(PartialPath { nodes, steps })
    }
}

/// A path without its proofs, which do not travel: whoever consents seals them.
struct PathCodec;

impl Codec<Path> for PathCodec {
    const LEAST: usize = 1 + 8 + 2 + 2 + 2 * WireHop::LEAST + 2;

    fn write(path: &Path, out: &mut Writer) {
        out.u8(path.format() as u8).u64(path.expiry()).u16(path.mtu());
        let hop = |hop: &Hop| {
            let (identity, id, tag) = hop.at.node()?;
            Some(WireHop { identity, id, tag, ingress: hop.ingress, egress: hop.egress })
        };
        List16::<MAX_HOPS>::write(&path.hops().iter().filter_map(hop).collect(), out);
        let label = |label: &Label| WireLabel { hop: label.hop, text: label.text.clone(), signer: label.signer };
        List16::<MAX_LABELS>::write(&path.labels().iter().map(label).collect(), out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Path, Malformed> {
        if from.u8()? != Format::Icing as u8 {
            return Err(Malformed::Value("the format of a path"));
        }
        let (expiry, mtu) = (from.u64()?, from.u16()?);
        let hops: Vec<WireHop> = List16::<MAX_HOPS>::read(from)?;
        let labels: Vec<WireLabel> = List16::<MAX_LABELS>::read(from)?;
        let hop = |WireHop { identity, id, tag, ingress, egress }| Hop {
            at: HopId::Node { identity, id, tag },
            ingress,
            egress,
        };
        let label = |WireLabel { hop, text, signer }| Label { hop, text, signer };
        let path = Path::icing(hops.into_iter().map(hop).collect(), expiry, mtu);
        let path = path.and_then(|path| path.with_labels(labels.into_iter().map(label).collect()));
        path.map_err(|_| Malformed::Value("a path"))
    }
}

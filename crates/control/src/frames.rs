//! The frames between nodes and servers, in one format: version, type, the number of the request, fields. A link carries each
//! inside a record with its length. Everything counted is bounded before it is allocated, and nothing may be left over.

use std::net::IpAddr;

use wayleave_core::IdentityKey;
use wayleave_packet::icing::header::{NodeId, Tag};
use wayleave_packet::{Format, Hop, HopId, Label, MAX_LABELS, Path};

use crate::advert::Advert;
use crate::consent::{ConsentAnswer, ConsentRequest};
use crate::database::Refusal;
use crate::labels::MAX_LABEL;
use crate::realm::{JoinError, JoinRequest, MAX_NAME, Membership, Name, RevocationList};
use crate::signed::{Object, Signed};
use crate::store::{MAX_RECORD, Record};
use crate::topology::{MAX_HOPS, MAX_PATHS, PartialPath, Step};
use crate::wire::{Malformed, Reader, Writer};

/// The version of every frame.
pub const VERSION: u8 = 1;
/// Octets of the largest frame; a link refuses longer ones before it reads them.
pub const MAX_FRAME: usize = 4 << 20;
/// Records of one frame.
pub const MAX_RECORDS: usize = 1024;
/// Octets of the records that come with paths; beyond, paths are left out.
pub const MAX_ANSWER: usize = 1 << 20;

/// Whom a path should lead to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Host {
    Name(Name),
    Identity(IdentityKey),
    /// Whoever has the longest prefix around this inner address.
    Address(IpAddr),
}

/// A frame.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Chosen by whoever asks; the answer has the same. Zero where nobody asked.
    pub request: u32,
    pub body: Body,
}

/// What a frame says.
#[derive(Clone, Debug)]
pub enum Body {
    /// A node publishes itself.
    Register {
        membership: Signed<Membership>,
        advert: Signed<Advert>,
    },
    /// The object with this number is durable.
    Registered {
        number: u64,
    },
    /// The realm's list of removed nodes, from anybody.
    HandIn(Signed<RevocationList>),
    /// The sender wants the records that changed after a version of a life of the server, and then each change.
    Subscribe {
        instance: u64,
        since: u64,
    },
    /// What changed, up to a version; `complete` if that is all.
    Records {
        instance: u64,
        version: u64,
        complete: bool,
        records: Vec<Record>,
    },
    /// The paper's `find_path_to_host`.
    FindHost {
        host: Host,
        partials: Vec<PartialPath>,
    },
    /// The paper's `find_path_to_ps`.
    FindPathServer {
        partials: Vec<PartialPath>,
    },
    /// Paths, and the records of every node on them. `is_cut` if the search was stopped.
    Paths {
        is_cut: bool,
        paths: Vec<Path>,
        records: Vec<Record>,
    },
    /// Not done, and why.
    Refused(Refusal),
    /// A sender asks one node for consent; its membership comes along.
    Consent {
        membership: Signed<Membership>,
        request: Signed<ConsentRequest>,
    },
    Consented(Signed<ConsentAnswer>),
    Join(Signed<JoinRequest>),
    Joined(Result<Signed<Membership>, JoinError>),
    /// The node at the other end of the link has its membership of this number, and asks for a later one.
    Renew {
        number: u64,
    },
}

impl Body {
    fn code(&self) -> u8 {
        match self {
            Self::Register { .. } => 1,
            Self::Registered { .. } => 2,
            Self::HandIn(_) => 3,
            Self::Subscribe { .. } => 4,
            Self::Records { .. } => 5,
            Self::FindHost { .. } => 6,
            Self::FindPathServer { .. } => 7,
            Self::Paths { .. } => 8,
            Self::Refused(_) => 9,
            Self::Consent { .. } => 10,
            Self::Consented(_) => 11,
            Self::Join(_) => 12,
            Self::Joined(_) => 13,
            Self::Renew { .. } => 14,
        }
    }
}

impl Frame {
    /// The octets. Lists longer than their limits are the caller's error.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u8(VERSION).u8(self.body.code()).u32(self.request);
        match &self.body {
            Body::Register { membership, advert } => {
                out.blob(membership.octets()).blob(advert.octets());
            }
            Body::Registered { number } => {
                out.u64(*number);
            }
            Body::HandIn(list) => {
                out.blob(list.octets());
            }
            Body::Subscribe { instance, since } => {
                out.u64(*instance).u64(*since);
            }
            Body::Records { instance, version, complete, records } => {
                out.u64(*instance).u64(*version).bool(*complete);
                write_records(&mut out, records);
            }
            Body::FindHost { host, partials } => {
                match host {
                    Host::Name(name) => out.u8(1).text(name.as_str()),
                    Host::Identity(identity) => out.u8(2).identity(identity),
                    Host::Address(address) => out.u8(3).address(*address),
                };
                out.list(partials, write_partial);
            }
            Body::FindPathServer { partials } => {
                out.list(partials, write_partial);
            }
            Body::Paths { is_cut, paths, records } => {
                out.bool(*is_cut).list(paths, write_path);
                write_records(&mut out, records);
            }
            Body::Refused(refusal) => {
                let (code, by, number) = refusal.parts();
                out.u8(code).bool(by.is_some()).bytes(by.as_ref().map_or(&[][..], |by| &by.0)).u64(number);
            }
            Body::Consent { membership, request } => {
                out.blob(membership.octets()).blob(request.octets());
            }
            Body::Consented(answer) => {
                out.blob(answer.octets());
            }
            Body::Join(request) => {
                out.blob(request.octets());
            }
            Body::Joined(Ok(membership)) => {
                out.u8(0).blob(membership.octets());
            }
            Body::Renew { number } => {
                out.u64(*number);
            }
            Body::Joined(Err(error)) => {
                out.u8(error.code());
            }
        }
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
        let mut r = Reader::new(octets);
        let version = r.u8()?;
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        let code = r.u8()?;
        let request = r.u32()?;
        let body = match code {
            1 => Body::Register { membership: object(&mut r)?, advert: object(&mut r)? },
            2 => Body::Registered { number: r.u64()? },
            3 => Body::HandIn(object(&mut r)?),
            4 => Body::Subscribe { instance: r.u64()?, since: r.u64()? },
            5 => {
                Body::Records { instance: r.u64()?, version: r.u64()?, complete: r.bool()?, records: records(&mut r)? }
            }
            6 => Body::FindHost { host: host(&mut r)?, partials: partials(&mut r)? },
            7 => Body::FindPathServer { partials: partials(&mut r)? },
            8 => Body::Paths {
                is_cut: r.bool()?,
                paths: r.list(PATH_LEAST, MAX_PATHS, read_path)?,
                records: records(&mut r)?,
            },
            9 => {
                let code = r.u8()?;
                let by = if r.bool()? { Some(r.identity()?) } else { None };
                let refusal = Refusal::from_parts(code, by, r.u64()?);
                Body::Refused(refusal.ok_or(Malformed::Value("the reason of a refusal"))?)
            }
            10 => Body::Consent { membership: object(&mut r)?, request: object(&mut r)? },
            11 => Body::Consented(object(&mut r)?),
            12 => Body::Join(object(&mut r)?),
            14 => Body::Renew { number: r.u64()? },
            13 => Body::Joined(match r.u8()? {
                0 => Ok(object(&mut r)?),
                code => Err(JoinError::from_code(code).ok_or(Malformed::Value("the reason of a refusal"))?),
            }),
            _ => return Err(Malformed::Value("the type of a frame")),
        };
        r.end()?;
        Ok(Self { request, body })
    }
}

fn object<T: Object>(r: &mut Reader<'_>) -> Result<Signed<T>, Malformed> {
    Signed::decode(r.blob(T::MAX)?)
}

fn write_records(out: &mut Writer, records: &[Record]) {
    out.list(records, |out, record| {
        out.blob(&record.encode());
    });
}

fn records(r: &mut Reader<'_>) -> Result<Vec<Record>, Malformed> {
    let records = r.list(5, MAX_RECORDS, |r| Record::decode(r.blob(MAX_RECORD)?))?;
    let is_public = !records.iter().any(|record| matches!(record, Record::Used { .. }));
    if is_public { Ok(records) } else { Err(Malformed::Value("the kind of a record")) }
}

fn host(r: &mut Reader<'_>) -> Result<Host, Malformed> {
    Ok(match r.u8()? {
        1 => Host::Name(r.text(MAX_NAME)?.parse().map_err(|_| Malformed::Value("a name"))?),
        2 => Host::Identity(r.identity()?),
        3 => Host::Address(r.address()?),
        _ => return Err(Malformed::Value("the kind of a host")),
    })
}

fn write_partial(out: &mut Writer, partial: &PartialPath) {
    out.list(&partial.nodes, |out, node| {
        out.identity(node);
    });
    partial.steps.iter().for_each(|step| {
        out.u8(*step as u8);
    });
}

fn partials(r: &mut Reader<'_>) -> Result<Vec<PartialPath>, Malformed> {
    r.list(34, MAX_PATHS, |r| {
        let nodes = r.list(32, MAX_HOPS, Reader::identity)?;
        let step = |r: &mut Reader<'_>| match r.u8()? {
            1 => Ok(Step::Up),
            2 => Ok(Step::Across),
            3 => Ok(Step::Down),
            _ => Err(Malformed::Value("a step")),
        };
        if nodes.is_empty() {
            return Err(Malformed::Value("a partial path"));
        }
        let steps = (1..nodes.len()).map(|_| step(r)).collect::<Result<_, _>>()?;
        Ok(PartialPath { nodes, steps })
    })
}

const HOP: usize = 32 + 32 + 4 + 2 + 2;
const PATH_LEAST: usize = 1 + 8 + 2 + 2 + 2 * HOP + 2;

/// Proofs do not travel with a path: whoever consents seals them.
fn write_path(out: &mut Writer, path: &Path) {
    out.u8(path.format() as u8).u64(path.expiry()).u16(path.mtu());
    let hops: Vec<_> = path.hops().iter().filter_map(|hop| Some((hop, hop.at.node()?))).collect();
    out.list(&hops, |out, (hop, (identity, id, tag))| {
        out.identity(identity).bytes(&id.to_bytes()).u32(tag.0).u16(hop.ingress).u16(hop.egress);
    });
    out.list(path.labels(), |out, label| {
        out.u8(label.hop).text(&label.text).identity(&label.signer);
    });
}

fn read_path(r: &mut Reader<'_>) -> Result<Path, Malformed> {
    if r.u8()? != Format::Icing as u8 {
        return Err(Malformed::Value("the format of a path"));
    }
    let (expiry, mtu) = (r.u64()?, r.u16()?);
    let hops = r.list(HOP, MAX_HOPS, |r| {
        let identity = r.identity()?;
        let id = NodeId::from_bytes(r.array()?).ok_or(Malformed::Value("a node ID"))?;
        let at = HopId::Node { identity, id, tag: Tag(r.u32()?) };
        Ok(Hop { at, ingress: r.u16()?, egress: r.u16()? })
    })?;
    let labels =
        r.list(34, MAX_LABELS, |r| Ok(Label { hop: r.u8()?, text: r.text(MAX_LABEL)?, signer: r.identity()? }))?;
    let path = Path::icing(hops, expiry, mtu).and_then(|path| path.with_labels(labels));
    path.map_err(|_| Malformed::Value("a path"))
}

//! One hop of a chain on the wire.

use super::{DecodeError, Exports, Head, Reader};
use crate::SuiteId;
use crate::burst::{self, BurstOpening, SALT_LEN};
use crate::leaf::{LEAF_KEY_LEN, LeafView, MAX_DEPTH};
use crate::suite::ed25519;

/// Which key of an AS signed a hop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signer {
    /// A key that the hop before listed for it.
    Chained {
        /// Whether it is the second of two keys of this suite, as while an AS changes keys.
        second: bool,
    },
    /// A registered key: the origin's, or one after a hop that gave no key.
    Registered {
        /// Entries of AS_PATH that no hop attests, between the hop before and this one.
        skipped: u8,
        /// Which registered key: see [`crate::pki::key_tag`].
        tag: [u8; 2],
    },
}

impl Signer {
    /// Whether the hop before listed the key.
    #[must_use]
    pub fn is_chained(self) -> bool {
        matches!(self, Self::Chained { .. })
    }

    /// Entries of AS_PATH between the hop before and this one.
    #[must_use]
    pub fn skipped(self) -> usize {
        match self {
            Self::Registered { skipped, .. } => usize::from(skipped),
            Self::Chained { .. } => 0,
        }
    }
}

/// The next AS, as a hop names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next<'a> {
    /// One neighbour, by its leaf.
    Neighbour(LeafView<'a>),
    /// The slots of a directory, whose root the receivers know.
    Directory,
    /// The slot of a directory whose holder passes the route on: it leads to the root that the hop signs.
    Slot {
        leaf: LeafView<'a>,
        /// The slot's position in the directory.
        index: u16,
        /// The siblings of the nodes from the leaf to the root, 32 bytes each, the lowest first.
        siblings: &'a [u8],
    },
}

impl<'a> Next<'a> {
    /// The leaf, where the hop carries it.
    #[must_use]
    pub fn leaf(&self) -> Option<LeafView<'a>> {
        match self {
            Next::Neighbour(leaf) | Next::Slot { leaf, .. } => Some(*leaf),
            Next::Directory => None,
        }
    }

    /// Whether the hop is for all slots of a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        !matches!(self, Next::Neighbour(_))
    }
}

/// One AS's attestation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hop<'a> {
    /// The number of the suite of `signature`; it may be one that this verifier does not know.
    pub suite: u8,
    pub signer: Signer,
    /// How many times the AS appears in AS_PATH: 1 to 255.
    pub prepend: u8,
    /// Minutes from the attestation's base time to this hop's not-before; 0 for the origin.
    pub not_before_offset: u16,
    /// Minutes from not-before to not-after; at least 1.
    pub lifetime: u16,
    /// The prefixes of the signed list that the AS passes on: all in the first hop.
    pub exports: Exports,
    /// The next AS.
    pub next: Next<'a>,
    /// The way to what is signed, where one signature serves a burst of hops.
    pub burst: Option<BurstOpening<'a>>,
    /// The signing key, where the hop before gave only its hash; else empty.
    pub public: &'a [u8],
    pub signature: &'a [u8],
    /// The hop's encoding; empty in a hop that is being made.
    pub octets: &'a [u8],
}

const SIGNER_CHAINED: u8 = 0;
const SIGNER_REGISTERED: u8 = 1;
const SIGNER_AFTER_GAP: u8 = 2;
const SIGNER_SECOND: u8 = 3;
const NEXT_NEIGHBOUR: u8 = 0;
const NEXT_DIRECTORY: u8 = 1;
const NEXT_SLOT: u8 = 2;
/// The bit of the shape that says that the signature is over a burst.
const BURST: u8 = 0x08;
/// Prepend counts up to this one are part of the shape.
const SHORT_PREPEND: u8 = 7;

impl Hop<'_> {
    /// Seconds since 1970 from which the hop holds.
    #[must_use]
    pub fn not_before(&self, base_time: u64) -> u64 {
        base_time.saturating_add(u64::from(self.not_before_offset) * 60)
    }

    /// Seconds since 1970 until which the hop holds.
    #[must_use]
    pub fn not_after(&self, base_time: u64) -> u64 {
        self.not_before(base_time).saturating_add(u64::from(self.lifetime) * 60)
    }

    /// Appends the encoding of the hop at `index`.
    pub fn encode(&self, index: u8, out: &mut Vec<u8>) {
        let (signer, next) = (self.signer_number(), self.next_number());
        let short = if self.prepend <= SHORT_PREPEND { self.prepend } else { 0 };
        let burst = if self.burst.is_some() { BURST } else { 0 };
        out.extend_from_slice(&[self.suite, signer << 6 | next << 4 | burst | short]);
        if short == 0 {
            out.push(self.prepend);
        }
        if let Signer::Registered { skipped, tag } = self.signer {
            if skipped > 0 {
                out.push(skipped);
            }
            out.extend_from_slice(&tag);
        }
        if index > 0 {
            out.extend_from_slice(&self.not_before_offset.to_be_bytes());
        }
        out.extend_from_slice(&self.lifetime.to_be_bytes());
        if index > 0 {
            out.extend_from_slice(&self.exports.0.to_be_bytes());
        }
        match self.next {
            Next::Neighbour(leaf) => out.extend_from_slice(leaf.octets()),
            Next::Slot { leaf, index, siblings } => {
                out.extend_from_slice(leaf.octets());
                // At most sixteen levels.
                out.push((siblings.len() / 32) as u8);
                out.extend_from_slice(&index.to_be_bytes());
                out.extend_from_slice(siblings);
            }
            Next::Directory => {}
        }
        if let Some(BurstOpening { salt, index, siblings }) = self.burst {
            out.extend_from_slice(salt);
            // At most eight levels.
            out.extend_from_slice(&[(siblings.len() / 32) as u8, index]);
            out.extend_from_slice(siblings);
        }
        if self.suite != SuiteId::KcEd25519 as u8 {
            // Suites keep keys and signatures below 64 KiB.
            out.extend_from_slice(&(self.public.len() as u16).to_be_bytes());
            out.extend_from_slice(self.public);
            out.extend_from_slice(&(self.signature.len() as u16).to_be_bytes());
        }
        out.extend_from_slice(self.signature);
    }

    pub(crate) fn signer_number(&self) -> u8 {
        match self.signer {
            Signer::Chained { second: false } => SIGNER_CHAINED,
            Signer::Chained { second: true } => SIGNER_SECOND,
            Signer::Registered { skipped: 0, .. } => SIGNER_REGISTERED,
            Signer::Registered { .. } => SIGNER_AFTER_GAP,
        }
    }

    fn next_number(&self) -> u8 {
        match self.next {
            Next::Neighbour(_) => NEXT_NEIGHBOUR,
            Next::Directory => NEXT_DIRECTORY,
            Next::Slot { .. } => NEXT_SLOT,
        }
    }
}

/// Reads the hop at `index` of a chain with this head.
pub(super) fn decode<'a>(reader: &mut Reader<'a>, head: &Head<'_>, index: u8) -> Result<Hop<'a>, DecodeError> {
    let start = reader.rest;
    let suite = reader.u8("suite")?;
    if suite == 0 {
        return Err(DecodeError::Field("suite", 0));
    }
    let shape = reader.u8("shape")?;
    let prepend = match shape & SHORT_PREPEND {
        0 => match reader.u8("prepend count")? {
            short @ 0..=SHORT_PREPEND => return Err(DecodeError::Field("long prepend count", u64::from(short))),
            long => long,
        },
        short => short,
    };
    let signer = decode_signer(reader, shape >> 6, index)?;
    let not_before_offset = if index > 0 { reader.u16("not-before")? } else { 0 };
    let lifetime = reader.u16("lifetime")?;
    if lifetime == 0 {
        return Err(DecodeError::Field("lifetime", 0));
    }
    let exports = if index > 0 { decode_exports(reader, head)? } else { head.listed() };
    let next = decode_next(reader, shape >> 4 & 3)?;
    let burst = if shape & BURST == 0 { None } else { Some(decode_burst(reader)?) };
    let (public, signature) = if suite == SuiteId::KcEd25519 as u8 {
        (&[][..], reader.take(ed25519::SIGNATURE_LEN, "signature")?)
    } else {
        let length = reader.u16("key length")?;
        if usize::from(length) == LEAF_KEY_LEN || (length > 0 && !signer.is_chained()) {
            return Err(DecodeError::NotCanonical("carried key"));
        }
        let public = reader.take(usize::from(length), "key")?;
        let length = reader.u16("signature length")?;
        (public, reader.take(usize::from(length), "signature")?)
    };
    let octets = &start[..start.len() - reader.rest.len()];
    Ok(Hop { suite, signer, prepend, not_before_offset, lifetime, exports, next, burst, public, signature, octets })
}

fn decode_signer(reader: &mut Reader<'_>, number: u8, index: u8) -> Result<Signer, DecodeError> {
    let is_first = index == 0;
    let skipped = match number {
        SIGNER_CHAINED if !is_first => return Ok(Signer::Chained { second: false }),
        SIGNER_SECOND if !is_first => return Ok(Signer::Chained { second: true }),
        SIGNER_REGISTERED => 0,
        SIGNER_AFTER_GAP if !is_first => match reader.u8("gap")? {
            0 => return Err(DecodeError::NotCanonical("gap")),
            skipped => skipped,
        },
        _ => return Err(DecodeError::Field("signer", u64::from(number))),
    };
    let tag = [reader.u8("key tag")?, reader.u8("key tag")?];
    Ok(Signer::Registered { skipped, tag })
}

/// A bitmap of prefixes that the list has, at least one of them.
fn decode_exports(reader: &mut Reader<'_>, head: &Head<'_>) -> Result<Exports, DecodeError> {
    let exports = Exports(reader.u32("exported prefixes")?);
    if exports == Exports::NONE || !exports.is_subset(head.listed()) {
        return Err(DecodeError::Field("exported prefixes", u64::from(exports.0)));
    }
    Ok(exports)
}

fn decode_next<'a>(reader: &mut Reader<'a>, number: u8) -> Result<Next<'a>, DecodeError> {
    if number == NEXT_DIRECTORY {
        return Ok(Next::Directory);
    }
    let (leaf, rest) = LeafView::decode(reader.rest).ok_or(DecodeError::NotCanonical("leaf"))?;
    reader.rest = rest;
    match number {
        NEXT_NEIGHBOUR => Ok(Next::Neighbour(leaf)),
        NEXT_SLOT => {
            let depth = decode_depth(reader, MAX_DEPTH)?;
            let index = reader.u16("slot")?;
            if u32::from(index) >> depth != 0 {
                return Err(DecodeError::Field("slot", u64::from(index)));
            }
            Ok(Next::Slot { leaf, index, siblings: reader.take(usize::from(depth) * 32, "opening")? })
        }
        other => Err(DecodeError::Field("kind of next AS", u64::from(other))),
    }
}

fn decode_burst<'a>(reader: &mut Reader<'a>) -> Result<BurstOpening<'a>, DecodeError> {
    let salt: &[u8; SALT_LEN] = reader.array("salt")?;
    let depth = decode_depth(reader, burst::MAX_DEPTH)?;
    let index = reader.u8("position in the burst")?;
    if u32::from(index) >> depth != 0 {
        return Err(DecodeError::Field("position in the burst", u64::from(index)));
    }
    Ok(BurstOpening { salt, index, siblings: reader.take(usize::from(depth) * 32, "opening")? })
}

fn decode_depth(reader: &mut Reader<'_>, most: u8) -> Result<u8, DecodeError> {
    match reader.u8("depth")? {
        depth if depth == 0 || depth > most => Err(DecodeError::Field("depth", u64::from(depth))),
        depth => Ok(depth),
    }
}

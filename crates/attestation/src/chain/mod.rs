//! The attribute's value: what is announced, and a hop for each AS that attests; decoded in place, one encoding each.
//!
//! The format is written down bit by bit in `docs/attestation.md`.

mod hop;
mod signed;

use wayleave_core::{Afi, Prefix};

pub use hop::{Hop, Next, Signer};
pub use signed::{ChainHash, SignedInput};

/// The version of the format.
pub const VERSION: u8 = 2;
/// The version before, whose hops can be moved between routes and prefixes: refused, not passed over as unknown.
const BROKEN_VERSION: u8 = 1;
/// The attribute's type code where configuration says nothing else: unassigned, and without a meaning to any router that we
/// know (`docs/attestation.md`).
pub const TYPE_CODE: u8 = 213;
/// Prefixes in the signed list, at most.
pub const MAX_PREFIXES: usize = 32;
/// Hops, at most.
pub const MAX_HOPS: usize = 64;
/// SAFI 1: unicast, the only one.
const UNICAST: u8 = 1;

/// A well-formed value, borrowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attestation<'a> {
    octets: &'a [u8],
    head: Head<'a>,
    hop_count: u8,
    hops: &'a [u8],
    exports: Exports,
}

/// What the origin announces; every hop signs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head<'a> {
    /// The family of every prefix.
    pub afi: Afi,
    /// The encoded prefixes.
    pub nlri: &'a [u8],
    /// How many they are: 1 to 32.
    pub prefix_count: u8,
    /// The origin's sequence number.
    pub sequence: u64,
    /// The origin's not-before, seconds since 1970; the other hops' times count from it.
    pub base_time: u64,
}

/// What is wrong with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It ends too early.
    #[error("the value ends within {0}")]
    Truncated(&'static str),
    /// A later version of the format: not an error of its sender.
    #[error("version {0} is not known")]
    Version(u8),
    /// Version 1, which proves too little to be accepted together with this one.
    #[error("version {BROKEN_VERSION} is not accepted any more: its hops can be moved between routes")]
    BrokenVersion,
    /// Reserved bits are set, or a field has a value that the format does not allow.
    #[error("{0} is not allowed to be {1}")]
    Field(&'static str, u64),
    /// Not the one encoding of its content.
    #[error("{0} is not encoded canonically")]
    NotCanonical(&'static str),
    /// Octets follow the last hop.
    #[error("{0} octets follow the last hop")]
    Trailing(usize),
}

impl DecodeError {
    /// Whether the value may be right for a later version: the route counts as unattested, not as tampered with.
    #[must_use]
    pub fn is_unsupported(self) -> bool {
        matches!(self, Self::Version(_))
    }
}

/// Some prefixes of the origin's signed list, as a bitmap of 32 bits: the most significant bit stands for the first prefix.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Exports(pub u32);

impl Exports {
    /// None yet.
    pub const NONE: Self = Self(0);

    /// The first `count` prefixes.
    fn first(count: u8) -> Self {
        Self(u32::MAX.checked_shl(32 - u32::from(count)).unwrap_or(0))
    }

    /// With the prefix at `position`, below 32.
    #[must_use]
    pub fn with(self, position: u8) -> Self {
        Self(self.0 | 1 << 31 >> position)
    }

    /// Whether the prefix at `position` is one of them.
    #[must_use]
    pub fn contains(self, position: u8) -> bool {
        self.0 & 1 << 31 >> position != 0
    }

    /// Those that are in `other` as well.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether all of them are in `other`.
    #[must_use]
    pub fn is_subset(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }
}

impl<'a> Head<'a> {
    /// All prefixes of the list: what the origin passes on.
    #[must_use]
    pub fn listed(&self) -> Exports {
        Exports::first(self.prefix_count)
    }

    /// Reads everything before the hop count.
    pub(crate) fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.u8("version")? {
            VERSION => {}
            BROKEN_VERSION => return Err(DecodeError::BrokenVersion),
            version => return Err(DecodeError::Version(version)),
        }
        match reader.u8("flags")? {
            0 => {}
            flags => return Err(DecodeError::Field("flags", u64::from(flags))),
        }
        let afi = match reader.u16("address family")? {
            1 => Afi::Ipv4,
            2 => Afi::Ipv6,
            afi => return Err(DecodeError::Field("address family", u64::from(afi))),
        };
        match reader.u8("SAFI")? {
            UNICAST => {}
            safi => return Err(DecodeError::Field("SAFI", u64::from(safi))),
        }
        let (nlri, prefix_count) = reader.prefixes(afi)?;
        let sequence = reader.u64("sequence")?;
        let base_time = reader.u64("base time")?;
        Ok(Self { afi, nlri, prefix_count, sequence, base_time })
    }
}

impl<'a> Attestation<'a> {
    /// Reads a value; it must be used up. Checks every hop's form, and no signature.
    pub fn decode(octets: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader { rest: octets };
        let head = Head::decode(&mut reader)?;
        let hop_count = reader.u8("hop count")?;
        if hop_count == 0 || usize::from(hop_count) > MAX_HOPS {
            return Err(DecodeError::Field("hop count", u64::from(hop_count)));
        }
        let hops = reader.rest;
        let mut exports = head.listed();
        for index in 0..hop_count {
            let hop = hop::decode(&mut reader, &head, index)?;
            exports = exports.and(hop.exports);
            // Only the receivers of a directory know its root; the one that passes the route on opens its leaf.
            if matches!(hop.next, Next::Directory) && index + 1 < hop_count {
                return Err(DecodeError::NotCanonical("directory"));
            }
        }
        if !reader.rest.is_empty() {
            return Err(DecodeError::Trailing(reader.rest.len()));
        }
        Ok(Self { octets, head, hop_count, hops, exports })
    }

    /// The encoding.
    #[must_use]
    pub fn octets(&self) -> &'a [u8] {
        self.octets
    }

    /// What the origin announced.
    #[must_use]
    pub fn head(&self) -> &Head<'a> {
        &self.head
    }

    /// The value up to its hops, with another hop count, for a hop to be appended.
    pub(crate) fn with_hop_count(&self, hop_count: u8) -> Vec<u8> {
        let mut value = self.octets.to_vec();
        value[self.octets.len() - self.hops.len() - 1] = hop_count;
        value
    }

    /// The signed list.
    pub fn prefixes(&self) -> impl Iterator<Item = Prefix> + use<'a> {
        let (afi, mut rest) = (self.head.afi, self.head.nlri);
        std::iter::from_fn(move || {
            let (&length, octets) = rest.split_first()?;
            let (octets, after) = octets.split_at_checked(usize::from(length).div_ceil(8))?;
            rest = after;
            Prefix::from_nlri(afi, length, octets).ok()
        })
    }

    /// The position of `prefix` in the signed list.
    #[must_use]
    pub fn position(&self, prefix: &Prefix) -> Option<u8> {
        // At most 32 prefixes.
        self.prefixes().position(|listed| listed == *prefix).map(|position| position as u8)
    }

    /// The prefixes that every hop passes on, whether or not it can be verified: in a sound chain those of the last hop.
    #[must_use]
    pub fn exports(&self) -> Exports {
        self.exports
    }

    /// Whether every hop passes `prefix` on.
    #[must_use]
    pub fn is_exported(&self, prefix: &Prefix) -> bool {
        self.position(prefix).is_some_and(|position| self.exports.contains(position))
    }

    /// How many hops there are: 1 to 64.
    #[must_use]
    pub fn hop_count(&self) -> usize {
        usize::from(self.hop_count)
    }

    /// The hops, the origin's first.
    pub fn hops(&self) -> impl Iterator<Item = Hop<'a>> + use<'a> {
        let (mut reader, head) = (Reader { rest: self.hops }, self.head);
        // `decode` has read them all once.
        (0..self.hop_count).map_while(move |index| hop::decode(&mut reader, &head, index).ok())
    }

    /// The hop of the AS that sent the route last.
    #[must_use]
    pub fn last_hop(&self) -> Option<Hop<'a>> {
        self.hops().last()
    }
}

/// Appends the value up to its hops, of which `hop_count` follow. `prefixes` ascend and are of one family.
pub(crate) fn encode_head(prefixes: &[Prefix], sequence: u64, base_time: u64, hop_count: u8, out: &mut Vec<u8>) {
    let afi = prefixes.first().map_or(Afi::Ipv4, Prefix::afi);
    out.extend_from_slice(&[VERSION, 0]);
    out.extend_from_slice(&afi.code().to_be_bytes());
    // At most 32 prefixes.
    out.extend_from_slice(&[UNICAST, prefixes.len() as u8]);
    for prefix in prefixes {
        out.push(prefix.len());
        out.extend_from_slice(&prefix.octets()[..usize::from(prefix.len()).div_ceil(8)]);
    }
    out.extend_from_slice(&sequence.to_be_bytes());
    out.extend_from_slice(&base_time.to_be_bytes());
    out.push(hop_count);
}

/// Reads fields from the front; every read names what it reads.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    pub(crate) rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, length: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(DecodeError::Truncated(what))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self, what: &'static str) -> Result<&'a [u8; N], DecodeError> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(DecodeError::Truncated(what))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        self.array::<1>(what).map(|octets| octets[0])
    }

    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16, DecodeError> {
        self.array(what).map(|octets| u16::from_be_bytes(*octets))
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        self.array(what).map(|octets| u32::from_be_bytes(*octets))
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        self.array(what).map(|octets| u64::from_be_bytes(*octets))
    }

    /// The encoded prefixes and their number: 1 to 32, ascending, without bits beyond their lengths.
    fn prefixes(&mut self, afi: Afi) -> Result<(&'a [u8], u8), DecodeError> {
        let count = self.u8("prefix count")?;
        if count == 0 || usize::from(count) > MAX_PREFIXES {
            return Err(DecodeError::Field("prefix count", u64::from(count)));
        }
        let start = self.rest;
        let mut before = None;
        for _ in 0..count {
            let length = self.u8("prefix length")?;
            if length > afi.bits() {
                return Err(DecodeError::Field("prefix length", u64::from(length)));
            }
            let octets = self.take(usize::from(length).div_ceil(8), "prefix")?;
            let prefix = Prefix::from_nlri(afi, length, octets)
                .map_err(|_| DecodeError::Field("prefix length", u64::from(length)))?;
            if prefix.octets()[..octets.len()] != *octets {
                return Err(DecodeError::NotCanonical("prefix"));
            }
            if before.is_some_and(|before| before >= prefix) {
                return Err(DecodeError::NotCanonical("prefix list"));
            }
            before = Some(prefix);
        }
        Ok((&start[..start.len() - self.rest.len()], count))
    }
}

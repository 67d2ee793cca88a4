//! Origin validation: what validated ROA payloads say of a route (RFC 6811).

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize};
use wayleave_core::{Afi, Asn, Prefix};

use crate::AsPath;

/// A validated ROA payload: who may originate a prefix (RFC 6811 section 2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Vrp {
    pub prefix: Prefix,
    /// The longest length that may be announced within it.
    pub max_length: u8,
    /// The AS; AS 0 authorises nobody (RFC 6483 section 4).
    pub asn: Asn,
}

impl Vrp {
    /// Whether it authorises `origin` to announce `prefix`, which it covers.
    fn authorises(&self, prefix: &Prefix, origin: Option<Asn>) -> bool {
        self.asn.0 != 0 && Some(self.asn) == origin && prefix.len() <= self.max_length
    }
}

impl fmt::Display for Vrp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prefix, max_length, asn } = self;
        write!(f, "{prefix} of {asn}, up to /{max_length}")
    }
}

/// What the VRPs say of a prefix and its origin (RFC 6811 section 2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OriginState {
    /// This VRP authorises it.
    Valid(Vrp),
    /// VRPs cover the prefix, this one among them, and none authorises this origin and length: of those that cover it one of the
    /// origin's own, if there is one, and otherwise the most specific.
    Invalid(Vrp),
    /// No VRP covers the prefix.
    NotFound,
}

/// The origin of a route with this path: the last AS, if the last segment is a sequence, and otherwise none (RFC 6811 section 2). A
/// route whose origin is not known can only be invalid or not found.
#[must_use]
pub fn origin(path: &AsPath<'_>) -> Option<Asn> {
    path.origin_asn()
}

/// A VRP without its family: as many of them are in memory as there are in the world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Entry<B> {
    bits: B,
    length: u8,
    max_length: u8,
    asn: u32,
}

/// The left-aligned bits of an address of one family.
trait Bits: Copy + Ord {
    const AFI: Afi;
    fn of(octets: [u8; 16]) -> Self;
    fn octets(self) -> [u8; 16];
}

impl Bits for u32 {
    const AFI: Afi = Afi::Ipv4;
    fn of(octets: [u8; 16]) -> Self {
        let [a, b, c, d, ..] = octets;
        Self::from_be_bytes([a, b, c, d])
    }
    fn octets(self) -> [u8; 16] {
        let mut octets = [0; 16];
        octets[..4].copy_from_slice(&self.to_be_bytes());
        octets
    }
}

/// The octets as they are, which need no alignment.
impl Bits for [u8; 16] {
    const AFI: Afi = Afi::Ipv6;
    fn of(octets: [u8; 16]) -> Self {
        octets
    }
    fn octets(self) -> [u8; 16] {
        self
    }
}

/// The VRPs of one family, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Family<B> {
    entries: Vec<Entry<B>>,
    /// Bit `l`, from 0 to 128: whether a prefix has this length.
    lengths: [u128; 2],
}

impl<B> Default for Family<B> {
    fn default() -> Self {
        Self { entries: Vec::new(), lengths: [0; 2] }
    }
}

impl<B: Bits> Family<B> {
    fn of(mut entries: Vec<Entry<B>>) -> Self {
        entries.sort_unstable();
        entries.dedup();
        entries.shrink_to_fit();
        let mut lengths = [0u128; 2];
        for entry in &entries {
            lengths[usize::from(entry.length >> 7)] |= 1 << (entry.length & 0x7f);
        }
        Self { entries, lengths }
    }

    /// The VRPs whose prefix is this one or contains it, the most specific first.
    fn covering(&self, prefix: &Prefix) -> impl Iterator<Item = Vrp> {
        let has = |length: &u8| self.lengths[usize::from(length >> 7)] >> (length & 0x7f) & 1 == 1;
        let of_length = |length| {
            let covering = Prefix::from_nlri(B::AFI, length, &prefix.octets()).ok();
            let found = covering.map_or(&[][..], |covering| self.exactly(&covering));
            found.iter().map(Self::vrp)
        };
        (0..=prefix.len()).rev().filter(has).flat_map(of_length)
    }

    /// Those of exactly this prefix.
    fn exactly(&self, prefix: &Prefix) -> &[Entry<B>] {
        let wanted = (B::of(prefix.octets()), prefix.len());
        let at = |entry: &Entry<B>| (entry.bits, entry.length);
        let begin = self.entries.partition_point(|entry| at(entry) < wanted);
        let rest = &self.entries[begin..];
        &rest[..rest.partition_point(|entry| at(entry) == wanted)]
    }

    fn vrp(entry: &Entry<B>) -> Vrp {
        let prefix = Prefix::from_nlri(B::AFI, entry.length, &entry.bits.octets());
        let prefix = prefix.expect("it was made of a prefix of this family");
        Vrp { prefix, max_length: entry.max_length, asn: Asn(entry.asn) }
    }

    /// What only one of the two has.
    fn difference(&self, other: &Self) -> Self {
        let (mut one, mut two, mut changed) = (&self.entries[..], &other.entries[..], Vec::new());
        loop {
            let order = match (one.first(), two.first()) {
                (Some(first), Some(second)) => first.cmp(second),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => return Self::of(changed),
            };
            if order != Ordering::Equal {
                changed.extend(if order == Ordering::Less { one.first() } else { two.first() });
            }
            one = &one[usize::from(order != Ordering::Greater).min(one.len())..];
            two = &two[usize::from(order != Ordering::Less).min(two.len())..];
        }
    }
}

/// Validated ROA payloads, to be looked up by prefix.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Vrps {
    v4: Family<u32>,
    v6: Family<[u8; 16]>,
}

impl Vrps {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.v4.entries.len() + self.v6.entries.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The state of a route to `prefix` with this origin ([`origin`]), by RFC 6811 section 2.
    #[must_use]
    pub fn state(&self, prefix: &Prefix, origin: Option<Asn>) -> OriginState {
        match prefix.afi() {
            Afi::Ipv4 => state(self.v4.covering(prefix), prefix, origin),
            Afi::Ipv6 => state(self.v6.covering(prefix), prefix, origin),
        }
    }

    /// Whether one of them covers `prefix`.
    #[must_use]
    pub fn covers(&self, prefix: &Prefix) -> bool {
        match prefix.afi() {
            Afi::Ipv4 => self.v4.covering(prefix).next().is_some(),
            Afi::Ipv6 => self.v6.covering(prefix).next().is_some(),
        }
    }

    /// Those that only one of the two has: the state of a route changes only if one of these covers it.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        Self { v4: self.v4.difference(&other.v4), v6: self.v6.difference(&other.v6) }
    }
}

fn state(covering: impl Iterator<Item = Vrp>, prefix: &Prefix, origin: Option<Asn>) -> OriginState {
    let mut named: Option<Vrp> = None;
    for vrp in covering {
        if vrp.authorises(prefix, origin) {
            return OriginState::Valid(vrp);
        }
        let is_origins = |vrp: &Vrp| vrp.asn.0 != 0 && Some(vrp.asn) == origin;
        if named.is_none_or(|named| is_origins(&vrp) && !is_origins(&named)) {
            named = Some(vrp);
        }
    }
    named.map_or(OriginState::NotFound, OriginState::Invalid)
}

impl FromIterator<Vrp> for Vrps {
    fn from_iter<I: IntoIterator<Item = Vrp>>(vrps: I) -> Self {
        fn entry<B: Bits>(vrp: &Vrp) -> Entry<B> {
            let (bits, length) = (B::of(vrp.prefix.octets()), vrp.prefix.len());
            Entry { bits, length, max_length: vrp.max_length, asn: vrp.asn.0 }
        }
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for vrp in vrps {
            match vrp.prefix.afi() {
                Afi::Ipv4 => v4.push(entry(&vrp)),
                Afi::Ipv6 => v6.push(entry(&vrp)),
            }
        }
        Self { v4: Family::of(v4), v6: Family::of(v6) }
    }
}

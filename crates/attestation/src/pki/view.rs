//! The verified objects as validation uses them: what is known of origins. Not a status view, and not the parties' view.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};
use wayleave_core::{Afi, Asn, Prefix};

use super::key_tag;
use crate::SuiteId;
use crate::leaf::LeafKey;

/// A key for attestations that the PKI vouches for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegisteredKey {
    pub suite: SuiteId,
    pub public: Vec<u8>,
    /// Seconds since 1970 from which it counts.
    pub not_before: u64,
    /// Seconds since 1970 until which it counts.
    pub not_after: u64,
}

/// Who may originate a prefix: a validated ROA payload (RFC 6811).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Vrp {
    pub prefix: Prefix,
    /// The longest length that may be announced within it.
    pub max_length: u8,
    /// The AS; AS 0 authorises nobody (RFC 6483 section 4).
    pub asn: Asn,
}

/// What the VRPs say of a prefix and its origin (RFC 6811 section 2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OriginValidity {
    /// A VRP authorises it.
    Valid,
    /// VRPs cover the prefix, and none authorises this origin and length.
    Invalid,
    /// No VRP covers the prefix.
    NotFound,
}

/// What a missing attestation of an origin's route means.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strictness {
    /// It is invalid.
    Strict,
    /// It is less preferred than an attested one.
    Prefer,
}

/// An origin's statement that its routes carry attestations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct AttestedSince {
    /// Seconds since 1970 from which that holds.
    pub since: u64,
    /// What a missing one means.
    pub strictness: Strictness,
    /// Whether every hop must be signed with a post-quantum suite.
    #[serde(default)]
    pub post_quantum: bool,
    /// Seconds since 1970 until which the record holds.
    pub not_after: u64,
}

/// Everything that validation looks up. Whoever builds it has verified what goes in.
#[derive(Clone, Debug, Default)]
pub struct View {
    generation: u64,
    keys: HashMap<Asn, Vec<Registered>>,
    /// ASes that listed all their keys.
    bound: HashSet<Asn>,
    vrps: HashMap<Prefix, Vec<(Asn, u8)>>,
    /// Bit `l` of the family's set: a VRP of prefix length `l` exists.
    lengths: [[u128; 2]; 2],
    attested_since: HashMap<Asn, AttestedSince>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Registered {
    key: RegisteredKey,
    leaf: LeafKey,
    tag: [u8; 2],
}

impl View {
    /// A view that knows nothing. Give each rebuilt view another `generation`: cached reports of an earlier one end.
    #[must_use]
    pub fn new(generation: u64) -> Self {
        Self { generation, ..Self::default() }
    }

    /// The number that this view was made with.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Adds a key of `asn`. From now on every key endorsed for it must be one of its registered keys.
    pub fn add_key(&mut self, asn: Asn, key: RegisteredKey) {
        self.register(asn);
        self.add_router_key(asn, key);
    }

    /// Adds a key that the RPKI binds to a router of `asn` (RFC 8209). It begins and takes up chains as any registered
    /// key does, but says nothing of the AS's other keys: a network may have router keys for BGPsec alone.
    pub fn add_router_key(&mut self, asn: Asn, key: RegisteredKey) {
        let (leaf, tag) = (LeafKey::of(key.suite, &key.public), key_tag(key.suite, &key.public));
        let keys = self.keys.entry(asn).or_default();
        if !keys.iter().any(|known| known.key == key) {
            keys.push(Registered { key, leaf, tag });
        }
    }

    /// Notes that `asn` registered its keys, of which none may be left: no key endorsed for it counts but those.
    pub fn register(&mut self, asn: Asn) {
        self.bound.insert(asn);
    }

    /// Whether `other` knows the same keys, and the same of who attests: they differ at most in who may originate what.
    #[must_use]
    pub fn differs_in_vrps_alone(&self, other: &View) -> bool {
        self.keys == other.keys && self.bound == other.bound && self.attested_since == other.attested_since
    }

    /// Adds a validated ROA payload.
    pub fn add_vrp(&mut self, vrp: Vrp) {
        let entries = self.vrps.entry(vrp.prefix).or_default();
        if !entries.contains(&(vrp.asn, vrp.max_length)) {
            entries.push((vrp.asn, vrp.max_length));
        }
        let bits = &mut self.lengths[family(vrp.prefix.afi())][usize::from(vrp.prefix.len() >> 7)];
        *bits |= 1 << (vrp.prefix.len() & 0x7f);
    }

    /// Sets since when `asn` attests.
    pub fn set_attested_since(&mut self, asn: Asn, since: AttestedSince) {
        self.attested_since.insert(asn, since);
    }

    /// Whether `asn` registered its keys, all of them.
    #[must_use]
    pub fn is_registered(&self, asn: Asn) -> bool {
        self.bound.contains(&asn)
    }

    /// How many prefixes with their origins it knows.
    #[must_use]
    pub fn vrps(&self) -> usize {
        self.vrps.values().map(Vec::len).sum()
    }

    /// The registered keys of `asn` for `suite` that share `tag`.
    pub fn keys(&self, asn: Asn, suite: SuiteId, tag: [u8; 2]) -> impl Iterator<Item = &RegisteredKey> {
        let keys = self.keys.get(&asn).map_or(&[][..], Vec::as_slice);
        keys.iter().filter(move |known| known.key.suite == suite && known.tag == tag).map(|known| &known.key)
    }

    /// The registered key of `asn` that a leaf names.
    #[must_use]
    pub fn key_of_leaf(&self, asn: Asn, leaf: &LeafKey) -> Option<&RegisteredKey> {
        self.keys.get(&asn)?.iter().find(|known| known.leaf == *leaf).map(|known| &known.key)
    }

    /// Since when the routes of `asn` carry attestations, if its record says so.
    #[must_use]
    pub fn attested_since(&self, asn: Asn) -> Option<&AttestedSince> {
        self.attested_since.get(&asn)
    }

    /// Whether `origin` may originate `prefix`; `None` stands for a route whose origin is not known (RFC 6811
    /// section 2).
    #[must_use]
    pub fn origin_validity(&self, prefix: &Prefix, origin: Option<Asn>) -> OriginValidity {
        let mut validity = OriginValidity::NotFound;
        let lengths = &self.lengths[family(prefix.afi())];
        for length in 0..=prefix.len() {
            if lengths[usize::from(length >> 7)] >> (length & 0x7f) & 1 == 0 {
                continue;
            }
            let Ok(covering) = Prefix::from_nlri(prefix.afi(), length, &prefix.octets()) else { continue };
            let Some(entries) = self.vrps.get(&covering) else { continue };
            validity = OriginValidity::Invalid;
            let authorises =
                |&(asn, max_length): &(Asn, u8)| asn.0 != 0 && Some(asn) == origin && prefix.len() <= max_length;
            if entries.iter().any(authorises) {
                return OriginValidity::Valid;
            }
        }
        validity
    }
}

fn family(afi: Afi) -> usize {
    match afi {
        Afi::Ipv4 => 0,
        Afi::Ipv6 => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p(text: &str) -> Prefix {
        text.parse().expect("a prefix")
    }

    #[test]
    fn origins_are_valid_as_in_rfc_6811() {
        let mut view = View::new(0);
        view.add_vrp(Vrp { prefix: p("192.0.2.0/24"), max_length: 25, asn: Asn(64496) });
        view.add_vrp(Vrp { prefix: p("2001:db8::/128"), max_length: 128, asn: Asn(64496) });
        view.add_vrp(Vrp { prefix: p("198.51.100.0/24"), max_length: 32, asn: Asn(0) });
        let validity = |prefix: &str, asn: u32| view.origin_validity(&p(prefix), Some(Asn(asn)));
        assert_eq!(validity("192.0.2.0/24", 64496), OriginValidity::Valid);
        assert_eq!(validity("192.0.2.128/25", 64496), OriginValidity::Valid);
        assert_eq!(validity("192.0.2.0/26", 64496), OriginValidity::Invalid);
        assert_eq!(validity("192.0.2.0/24", 64497), OriginValidity::Invalid);
        assert_eq!(validity("192.0.0.0/16", 64496), OriginValidity::NotFound);
        assert_eq!(validity("2001:db8::/128", 64496), OriginValidity::Valid);
        assert_eq!(validity("198.51.100.0/24", 0), OriginValidity::Invalid);
        assert_eq!(view.origin_validity(&p("192.0.2.0/24"), None), OriginValidity::Invalid);
    }
}

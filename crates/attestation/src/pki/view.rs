//! The verified objects as validation uses them: what is known of origins. Not a status view, and not the parties' view.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;

use serde::{Deserialize, Serialize};
pub use wayleave_bgp::origins::Vrp;
use wayleave_core::{Afi, Asn, Prefix};

use super::key_tag;
use super::object::MAX_KEYS;
use crate::SuiteId;
use crate::leaf::LeafKey;

/// Keys of one AS, suite and tag that count: each may cost a verification for every hop that names the tag.
pub const MAX_TAGGED: usize = 2;
/// Keys of one AS that count: a profile's, an addition's, and as many of routers.
pub const MAX_AS_KEYS: usize = 4 * MAX_KEYS;

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
    /// It is invalid, and every hop of an attestation must be signed with a post-quantum suite.
    PostQuantum,
}

/// An origin's statement that its routes carry attestations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct AttestedSince {
    /// Seconds since 1970 from which that holds.
    pub since: u64,
    /// What a missing one means.
    pub strictness: Strictness,
    /// Seconds since 1970 until which the record holds.
    pub not_after: u64,
}

/// Everything that validation looks up. Whoever builds it has verified what goes in.
#[derive(Clone, Debug, Default)]
pub struct View {
    generation: u64,
    /// Of each AS by rank.
    keys: HashMap<Asn, Vec<Registered>>,
    /// How many keys of each AS do not count, beyond its limits.
    surplus: BTreeMap<Asn, usize>,
    /// ASes that listed all their keys.
    bound: HashSet<Asn>,
    vrps: HashMap<Prefix, Vec<(Asn, u8)>>,
    /// Lengths of the VRPs' prefixes.
    lengths: Lengths,
    attested_since: HashMap<Asn, AttestedSince>,
    /// The trust anchor was given without its post-quantum half.
    has_classical_anchor: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Registered {
    key: RegisteredKey,
    leaf: LeafKey,
    tag: [u8; 2],
    /// A certificate of a router has it, and no profile.
    is_router: bool,
    /// Classical signatures alone vouch for it.
    is_classical: bool,
}

/// Who vouches for a registered key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Voucher {
    /// An object that was verified in both halves.
    Hybrid,
    /// An object that was verified by Ed25519 alone.
    Classical,
    /// A router certificate or an RTR cache.
    Rpki,
}

impl Registered {
    /// Whether it counts where post-quantum suites are required or not.
    fn counts(&self, requires_post_quantum: bool, has_classical_anchor: bool) -> bool {
        !requires_post_quantum || !self.is_classical || has_classical_anchor && !self.is_router
    }

    /// Which of several keys count, the lowest first: the same for all verifiers that know the same keys. Of one key under
    /// several certificates that which ends last.
    fn rank(&self) -> (bool, bool, SuiteId, &[u8], Reverse<u64>, u64) {
        let RegisteredKey { suite, public, not_before, not_after } = &self.key;
        (self.is_router, self.is_classical, *suite, public, Reverse(*not_after), *not_before)
    }
}

impl View {
    /// A view that knows nothing; `generation` tells it from others.
    #[must_use]
    pub fn new(generation: u64) -> Self {
        Self { generation, ..Self::default() }
    }

    /// The number that this view was made with.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Adds a key of `asn` for which both halves of the PKI vouch. From now on every key endorsed for it must be one of its
    /// registered keys.
    pub fn add_key(&mut self, asn: Asn, key: RegisteredKey) {
        self.register(asn);
        self.insert_key(asn, key, Voucher::Hybrid);
    }

    /// As [`View::add_key`], of a key for which an Ed25519 signature alone vouches: where post-quantum suites are required it does
    /// not count.
    pub fn add_classical_key(&mut self, asn: Asn, key: RegisteredKey) {
        self.register(asn);
        self.insert_key(asn, key, Voucher::Classical);
    }

    /// Notes that the trust anchor was given without its post-quantum half: no key can count then where post-quantum suites are
    /// required, and a route that is right but for that is proved with a lack, not invalid.
    pub fn set_classical_anchor(&mut self) {
        self.has_classical_anchor = true;
    }

    /// Whether the trust anchor was given without its post-quantum half.
    #[must_use]
    pub fn has_classical_anchor(&self) -> bool {
        self.has_classical_anchor
    }

    /// Adds a key that the RPKI binds to a router of `asn` (RFC 8209). It begins and takes up chains as any registered
    /// key does, but says nothing of the AS's other keys: a network may have router keys for BGPsec alone.
    ///
    /// Of keys with one suite and tag [`MAX_TAGGED`] count, and of one AS [`MAX_AS_KEYS`]; those of the profile before router
    /// keys, and of these the lowest. So which count does not depend on who adds a key first.
    pub fn add_router_key(&mut self, asn: Asn, key: RegisteredKey) {
        self.insert_key(asn, key, Voucher::Rpki);
    }

    fn insert_key(&mut self, asn: Asn, key: RegisteredKey, voucher: Voucher) {
        let (leaf, tag) = (LeafKey::of(key.suite, &key.public), key_tag(key.suite, &key.public));
        let (is_router, is_classical) = (voucher == Voucher::Rpki, voucher != Voucher::Hybrid);
        let added = Registered { key, leaf, tag, is_router, is_classical };
        let keys = self.keys.entry(asn).or_default();
        let same =
            keys.iter().position(|known| known.key.public == added.key.public && known.key.suite == added.key.suite);
        if let Some(place) = same {
            // One key under two certificates, or in the profile too: it is tried once.
            if keys[place].rank() <= added.rank() {
                return;
            }
            keys.remove(place);
        }
        let place = keys.partition_point(|known| known.rank() < added.rank());
        keys.insert(place, added.clone());
        let is_tagged = |known: &&Registered| known.key.suite == added.key.suite && known.tag == added.tag;
        let last = match keys.iter().filter(is_tagged).count() > MAX_TAGGED {
            true => keys.iter().rposition(|known| is_tagged(&known)),
            false => (keys.len() > MAX_AS_KEYS).then(|| keys.len() - 1),
        };
        if let Some(last) = last {
            keys.remove(last);
            *self.surplus.entry(asn).or_default() += 1;
        }
    }

    /// ASes with more keys than count, and how many of each do not. For the operator: an AS has no honest reason for them.
    pub fn surplus_keys(&self) -> impl Iterator<Item = (Asn, usize)> {
        self.surplus.iter().map(|(asn, keys)| (*asn, *keys))
    }

    /// Pairs of ASes for both of which one key counts, the lower AS first. For the operator: whoever listed the key of another
    /// lets that one sign in its name. It cannot harm the other, since each hop signs the AS that makes it; so the key goes on
    /// counting for both. If it counted for neither, any AS could take another's keys away by listing them.
    #[must_use]
    pub fn shared_keys(&self) -> BTreeSet<(Asn, Asn)> {
        let mut owners: HashMap<(SuiteId, &[u8]), Asn> = HashMap::new();
        let mut shared = BTreeSet::new();
        for (asn, known) in self.keys.iter().flat_map(|(asn, keys)| keys.iter().map(move |known| (*asn, known))) {
            let owner = *owners.entry((known.key.suite, &known.key.public)).or_insert(asn);
            if owner != asn {
                shared.insert((owner.min(asn), owner.max(asn)));
            }
        }
        shared
    }

    /// Notes that `asn` registered its keys, of which none may be left: no key endorsed for it counts but those.
    pub fn register(&mut self, asn: Asn) {
        self.bound.insert(asn);
    }

    /// The ASes of which `other` knows other keys, or anything else of who attests.
    #[must_use]
    pub fn changed_ases(&self, other: &View) -> BTreeSet<Asn> {
        let keys = changed(&self.keys, &other.keys);
        let records = changed(&self.attested_since, &other.attested_since);
        keys.chain(records).chain(self.bound.symmetric_difference(&other.bound).copied()).collect()
    }

    /// The prefixes for which `other` has other VRPs.
    #[must_use]
    pub fn changed_vrps(&self, other: &View) -> PrefixSet {
        let mut prefixes = PrefixSet::default();
        changed(&self.vrps, &other.vrps).for_each(|prefix| prefixes.insert(prefix));
        prefixes
    }

    /// Adds a validated ROA payload.
    pub fn add_vrp(&mut self, vrp: Vrp) {
        let entries = self.vrps.entry(vrp.prefix).or_default();
        if !entries.contains(&(vrp.asn, vrp.max_length)) {
            entries.push((vrp.asn, vrp.max_length));
        }
        self.lengths.insert(&vrp.prefix);
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
        self.keys_that_count(asn, suite, tag, false)
    }

    /// As [`View::keys`]. Where post-quantum suites are required, those alone for which post-quantum signatures vouch.
    pub fn keys_that_count(
        &self,
        asn: Asn,
        suite: SuiteId,
        tag: [u8; 2],
        requires_post_quantum: bool,
    ) -> impl Iterator<Item = &RegisteredKey> {
        let keys = self.keys.get(&asn).map_or(&[][..], Vec::as_slice).iter();
        keys.filter(move |known| known.key.suite == suite && known.tag == tag)
            .filter(move |known| known.counts(requires_post_quantum, self.has_classical_anchor))
            .map(|known| &known.key)
    }

    /// As [`View::key_of_leaf`]. Where post-quantum suites are required, only if post-quantum signatures vouch for it.
    #[must_use]
    pub fn leaf_key_that_counts(
        &self,
        asn: Asn,
        leaf: &LeafKey,
        requires_post_quantum: bool,
    ) -> Option<&RegisteredKey> {
        let known = self.keys.get(&asn)?.iter().find(|known| known.leaf == *leaf)?;
        known.counts(requires_post_quantum, self.has_classical_anchor).then_some(&known.key)
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

    /// Whether a route of `origin` without an attestation is invalid, if its record is of this time.
    #[must_use]
    pub fn requires_attestation(&self, origin: Asn) -> bool {
        self.attested_since.get(&origin).is_some_and(|record| record.strictness != Strictness::Prefer)
    }

    /// Whether the record of `origin` requires post-quantum suites at `now`, in seconds since 1970.
    #[must_use]
    pub fn requires_post_quantum(&self, origin: Asn, now: u64) -> bool {
        self.attested_since.get(&origin).is_some_and(|record| {
            record.strictness == Strictness::PostQuantum && (record.since..=record.not_after).contains(&now)
        })
    }

    /// Whether `origin` may originate `prefix`; `None` stands for a route whose origin is not known (RFC 6811
    /// section 2).
    #[must_use]
    pub fn origin_validity(&self, prefix: &Prefix, origin: Option<Asn>) -> OriginValidity {
        let mut validity = OriginValidity::NotFound;
        for covering in self.lengths.covering(prefix) {
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

/// Prefixes, and whether any of them covers another prefix.
#[derive(Clone, Debug, Default)]
pub struct PrefixSet {
    prefixes: HashSet<Prefix>,
    lengths: Lengths,
}

impl PrefixSet {
    fn insert(&mut self, prefix: Prefix) {
        self.lengths.insert(&prefix);
        self.prefixes.insert(prefix);
    }

    /// Whether it has `prefix` or one that it lies in.
    #[must_use]
    pub fn covers(&self, prefix: &Prefix) -> bool {
        self.lengths.covering(prefix).any(|covering| self.prefixes.contains(&covering))
    }
}

/// The lengths that prefixes have: bit `l` of the family's set for length `l`.
#[derive(Clone, Copy, Debug, Default)]
struct Lengths([[u128; 2]; 2]);

impl Lengths {
    fn insert(&mut self, prefix: &Prefix) {
        self.0[family(prefix.afi())][usize::from(prefix.len() >> 7)] |= 1 << (prefix.len() & 0x7f);
    }

    /// The prefixes of these lengths that cover `prefix`, the shortest first.
    fn covering<'a>(&'a self, prefix: &'a Prefix) -> impl Iterator<Item = Prefix> + 'a {
        let lengths = &self.0[family(prefix.afi())];
        let there = move |length: &u8| lengths[usize::from(length >> 7)] >> (length & 0x7f) & 1 == 1;
        let octets = prefix.octets();
        (0..=prefix.len()).filter(there).filter_map(move |length| Prefix::from_nlri(prefix.afi(), length, &octets).ok())
    }
}

/// The keys of which the two maps have other values.
fn changed<'a, K: Copy + Eq + Hash, V: PartialEq>(
    before: &'a HashMap<K, V>,
    now: &'a HashMap<K, V>,
) -> impl Iterator<Item = K> + 'a {
    let differs = move |key: &&K| before.get(key) != now.get(key);
    before.keys().chain(now.keys()).filter(differs).copied()
}

fn family(afi: Afi) -> usize {
    match afi {
        Afi::Ipv4 => 0,
        Afi::Ipv6 => 1,
    }
}

#[cfg(test)]
mod tests {
    //! KCX-31: endless router keys in any order, keys that share a tag: the same two count, and an AS costs no more
    //! than its limit.
    //! KCX-40: a key that two ASes have: counts for both and is named.

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

    fn key(number: u64, not_after: u64) -> RegisteredKey {
        let public = wayleave_crypto::hash::hash("test/key", &[&number.to_be_bytes()]).to_vec();
        RegisteredKey { suite: SuiteId::KcP256, public, not_before: 0, not_after }
    }

    /// Keys that share a tag, found by trying.
    fn of_one_tag(count: usize) -> Vec<RegisteredKey> {
        let tag = key_tag(SuiteId::KcP256, &key(0, 100).public);
        let keys = (0..).map(|number| key(number, 100));
        keys.filter(|key| key_tag(key.suite, &key.public) == tag).take(count).collect()
    }

    #[test]
    fn two_router_keys_of_a_tag_count_whoever_comes_first() {
        let keys = of_one_tag(5);
        let tag = key_tag(SuiteId::KcP256, &keys[0].public);
        let counted = |order: &[usize]| {
            let mut view = View::new(0);
            order.iter().for_each(|number| view.add_router_key(Asn(1), keys[*number].clone()));
            assert_eq!(view.surplus_keys().collect::<Vec<_>>(), [(Asn(1), 3)]);
            let counted: Vec<Vec<u8>> = view.keys(Asn(1), SuiteId::KcP256, tag).map(|key| key.public.clone()).collect();
            counted
        };
        let first = counted(&[0, 1, 2, 3, 4]);
        let mut lowest: Vec<Vec<u8>> = keys.iter().map(|key| key.public.clone()).collect();
        lowest.sort_unstable();
        assert_eq!(first, lowest[..2]);
        for order in [[4, 3, 2, 1, 0], [2, 0, 4, 1, 3], [1, 4, 0, 3, 2]] {
            assert_eq!(counted(&order), first);
        }
        // The key of the profile counts, whatever routers have.
        let mut view = View::new(0);
        let highest = keys.iter().max_by_key(|key| &key.public).expect("a key");
        keys.iter().for_each(|key| view.add_router_key(Asn(1), key.clone()));
        view.add_key(Asn(1), highest.clone());
        let counted: Vec<&RegisteredKey> = view.keys(Asn(1), SuiteId::KcP256, tag).collect();
        assert_eq!((counted[0], counted.len()), (highest, 2));
    }

    #[test]
    fn one_key_under_many_certificates_is_tried_once() {
        let mut view = View::new(0);
        [50, 300, 100].iter().for_each(|not_after| view.add_router_key(Asn(1), key(7, *not_after)));
        let tag = key_tag(SuiteId::KcP256, &key(7, 0).public);
        let counted: Vec<u64> = view.keys(Asn(1), SuiteId::KcP256, tag).map(|key| key.not_after).collect();
        assert_eq!((counted, view.surplus_keys().count()), (vec![300], 0));
    }

    #[test]
    fn a_key_of_two_ases_counts_for_both_and_is_named() {
        let mut view = View::new(0);
        let alone = |view: &View| view.shared_keys().is_empty();
        [1, 2].iter().for_each(|asn| view.add_router_key(Asn(*asn), key(u64::from(*asn), 100)));
        view.add_router_key(Asn(1), key(1, 200));
        assert!(alone(&view), "one AS, twice");
        view.add_router_key(Asn(7), key(2, 100));
        view.add_key(Asn(3), key(2, 100));
        let tag = key_tag(SuiteId::KcP256, &key(2, 0).public);
        for asn in [2, 3, 7] {
            assert_eq!(view.keys(Asn(asn), SuiteId::KcP256, tag).count(), 1);
        }
        let shared = view.shared_keys();
        assert!(!shared.is_empty() && shared.iter().all(|(one, other)| one < other && one.0 != 1), "{shared:?}");
        assert!([2, 3, 7].iter().all(|asn| shared.iter().any(|(one, other)| one.0 == *asn || other.0 == *asn)));
    }

    #[test]
    fn an_as_with_endless_router_keys_costs_no_more_than_its_limit() {
        let (mut forwards, mut backwards) = (View::new(0), View::new(0));
        (0..20_000).for_each(|number| forwards.add_router_key(Asn(1), key(number, 100)));
        (0..20_000).rev().for_each(|number| backwards.add_router_key(Asn(1), key(number, 100)));
        assert_eq!(forwards.keys, backwards.keys);
        assert_eq!(forwards.keys[&Asn(1)].len(), MAX_AS_KEYS);
        assert_eq!(forwards.surplus_keys().next(), Some((Asn(1), 20_000 - MAX_AS_KEYS)));
    }

    #[test]
    fn a_view_names_the_ases_that_it_knows_otherwise() {
        let mut before = View::new(0);
        before.add_key(Asn(1), key(1, 100));
        before.add_router_key(Asn(2), key(2, 100));
        let record = AttestedSince { since: 0, strictness: Strictness::Strict, not_after: 100 };
        before.set_attested_since(Asn(3), record);
        before.register(Asn(4));
        assert_eq!(before.changed_ases(&before).len(), 0);
        let mut now = View::new(1);
        now.add_key(Asn(1), key(1, 101));
        now.add_router_key(Asn(2), key(2, 100));
        now.set_attested_since(Asn(3), AttestedSince { strictness: Strictness::Prefer, ..record });
        now.add_vrp(Vrp { prefix: p("192.0.2.0/24"), max_length: 24, asn: Asn(2) });
        now.add_router_key(Asn(5), key(5, 100));
        let changed = |asns: &[u32]| asns.iter().copied().map(Asn).collect::<BTreeSet<_>>();
        assert_eq!(before.changed_ases(&now), changed(&[1, 3, 4, 5]));
        assert_eq!(now.changed_ases(&before), changed(&[1, 3, 4, 5]));
        for vrps in [before.changed_vrps(&now), now.changed_vrps(&before)] {
            assert!(vrps.covers(&p("192.0.2.0/24")) && vrps.covers(&p("192.0.2.128/25")));
            assert!(!vrps.covers(&p("192.0.0.0/16")) && !vrps.covers(&p("198.51.100.0/24")));
        }
    }
}

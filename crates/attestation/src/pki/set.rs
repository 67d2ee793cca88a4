//! The set of signed objects under a trust anchor, and the view that a validator gets of it.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Serialize};
use wayleave_core::Asn;

use super::object::{Object, ObjectError, ProfileKey, Role, Signed, Span};
use super::{RegisteredKey, View, Vrp, key_tag};
use crate::suite::ed25519::{Ed25519, KEY_LEN};
use crate::suite::{KeyRefused, Suite, SuiteId, of};

/// The key that vouches for profiles and records.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Anchor {
    /// What people call it.
    pub name: String,
    /// Its Ed25519 key.
    pub public: [u8; KEY_LEN],
    /// Seconds since 1970.
    pub not_before: u64,
    /// Seconds since 1970.
    pub not_after: u64,
}

/// Why an anchor cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AnchorError {
    /// Its key is none.
    #[error("the key of the trust anchor cannot be used: {0}")]
    Key(#[from] KeyRefused),
    /// Its time has not come; check this machine's clock.
    #[error("the trust anchor is not valid before {0} s after 1970 (see `date -d @{0}`); check this machine's clock")]
    NotYet(u64),
    /// Its time is over; get the new one.
    #[error("the trust anchor expired {0} s after 1970 (see `date -d @{0}`); make or fetch a new one")]
    Expired(u64),
}

/// Why an object was not added to the set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It does not decode.
    #[error("the object is malformed: {0}")]
    Malformed(#[from] ObjectError),
    /// The anchor did not sign it.
    #[error("the trust anchor did not sign the object of {0}")]
    Signature(Asn),
    /// It is over.
    #[error("the object of {0} has expired")]
    Expired(Asn),
    /// Too many of its kind and AS wait for their time.
    #[error("{0} has more than {MAX_AHEAD} objects of one kind that begin later")]
    TooManyAhead(Asn),
    /// A later one of its kind and AS is in the set.
    #[error("sequence {have} of {asn} is not later than {known}")]
    Superseded {
        asn: Asn,
        /// Its sequence.
        have: u64,
        /// That of the one in the set.
        known: u64,
    },
}

/// What a view could not take from the set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Omitted {
    /// No identity key of the AS's profile signed the addition.
    #[error("no identity key of {0} signed its added keys")]
    Addition(Asn),
    /// The key is none of its suite.
    #[error("a key of {0} cannot be used: {1}")]
    Key(Asn, KeyRefused),
    /// Another AS lists the same key.
    #[error("{0} and {1} list the same key: it counts for neither")]
    Shared(Asn, Asn),
    /// An addition lists a key with suite and tag of a key of the profile.
    #[error("{0} added a key that shares suite and tag with one of its profile: it does not count; make another key")]
    SameTag(Asn),
    /// An addition lists a key of another AS's profile.
    #[error("{0} added a key that {1} has registered: it does not count for {0}")]
    OthersKey(Asn, Asn),
}

/// Objects of one kind and AS that wait for their time, at most.
const MAX_AHEAD: usize = 4;

/// An object that is in force although its folder no longer has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetainedObject {
    pub asn: Asn,
    /// What it is: `profile`, `record` or `addition`.
    pub kind: &'static str,
    pub sequence: u64,
    /// The sequence of the one that the folder has in its place; `None`: it has none.
    pub in_folder: Option<u64>,
}

/// Verified objects: of each kind and AS the latest whose time has begun, and those that are to follow it.
#[derive(Clone, Debug)]
pub struct ObjectSet {
    anchor: Anchor,
    /// By kind and AS, so that profiles come before additions; ascending by sequence, at least one each.
    objects: BTreeMap<(u8, Asn), Vec<StoredObject>>,
    /// By kind and AS: sequences below which nothing is taken.
    floors: BTreeMap<(u8, Asn), u64>,
}

#[derive(Clone, Debug)]
struct StoredObject {
    object: Object,
    octets: Vec<u8>,
}

impl ObjectSet {
    /// The empty set under `anchor`, which must hold at `now`, in seconds since 1970.
    pub fn new(anchor: Anchor, now: u64) -> Result<Self, AnchorError> {
        Ed25519.check_key(&anchor.public)?;
        if now < anchor.not_before {
            return Err(AnchorError::NotYet(anchor.not_before));
        }
        if now > anchor.not_after {
            return Err(AnchorError::Expired(anchor.not_after));
        }
        Ok(Self { anchor, objects: BTreeMap::new(), floors: BTreeMap::new() })
    }

    /// The anchor.
    #[must_use]
    pub fn anchor(&self) -> &Anchor {
        &self.anchor
    }

    /// Adds an object if it is genuine and later than what the set has. An addition is genuine by a key of its AS's
    /// profile, which must be in the set before it.
    pub fn insert(&mut self, octets: &[u8], now: u64) -> Result<&Object, Refused> {
        let signed = Signed::decode(octets)?;
        let asn = signed.object.asn();
        let is_addition = matches!(signed.object, Object::Addition(_));
        if !is_addition && !signed.verify(&self.anchor.public) {
            return Err(Refused::Signature(asn));
        }
        if signed.object.span().not_after < now {
            return Err(Refused::Expired(asn));
        }
        let have = signed.object.span().sequence;
        // A stranger's addition must not push a genuine one out.
        if is_addition && !self.identity_signed(&signed) {
            return Err(Refused::Signature(asn));
        }
        let floor = self.floors.get(&(signed.object.kind(), asn)).copied().unwrap_or(0);
        if have < floor {
            return Err(Refused::Superseded { asn, have, known: floor });
        }
        let of_kind = self.objects.entry((signed.object.kind(), asn)).or_default();
        // An object whose time has not begun takes the place of none.
        let later = |stored: &&StoredObject| {
            let span = stored.object.span();
            span.sequence == have || (span.sequence > have && span.not_before <= now)
        };
        if let Some(same) = of_kind.iter().position(|stored| stored.octets == octets) {
            return Ok(&of_kind[same].object);
        }
        if let Some(later) = of_kind.iter().find(later) {
            return Err(Refused::Superseded { asn, have, known: later.object.span().sequence });
        }
        let is_ahead = |object: &Object| object.span().not_before > now;
        if is_ahead(&signed.object) && of_kind.iter().filter(|stored| is_ahead(&stored.object)).count() >= MAX_AHEAD {
            return Err(Refused::TooManyAhead(asn));
        }
        let at = of_kind.partition_point(|stored| stored.object.span().sequence < have);
        of_kind.insert(at, StoredObject { object: signed.object, octets: octets.to_vec() });
        let begun = of_kind.iter().rposition(|stored| stored.object.span().not_before <= now).unwrap_or(0);
        // What came before the one in force is over.
        of_kind.drain(..begun);
        Ok(&of_kind[at - begun].object)
    }

    /// Refuses from now on what is older than an object that the anchor signed before, also when that one has expired: objects
    /// never go back. Octets that it did not sign, or whose time has not begun, are passed over.
    pub fn remember(&mut self, octets: &[u8], now: u64) {
        let Ok(signed) = Signed::decode(octets) else { return };
        let (object, span) = (&signed.object, signed.object.span());
        let is_addition = matches!(object, Object::Addition(_));
        // Whoever may sign an addition now may have signed it then; a remembered one was verified when it came.
        if span.not_before <= now && (is_addition || signed.verify(&self.anchor.public)) {
            let floor = self.floors.entry((object.kind(), object.asn())).or_default();
            *floor = (*floor).max(span.sequence);
        }
    }

    /// The objects of this set that `folder` does not have.
    #[must_use]
    pub fn kept(&self, folder: &[Vec<u8>]) -> Vec<RetainedObject> {
        let mut newest: BTreeMap<(u8, Asn), u64> = BTreeMap::new();
        for signed in folder.iter().filter_map(|octets| Signed::decode(octets).ok()) {
            let sequence = newest.entry((signed.object.kind(), signed.object.asn())).or_default();
            *sequence = (*sequence).max(signed.object.span().sequence);
        }
        let in_folder: HashSet<&[u8]> = folder.iter().map(Vec::as_slice).collect();
        let lost = self.objects().filter(|(_, octets)| !in_folder.contains(octets));
        let kept = lost.map(|(object, _)| RetainedObject {
            asn: object.asn(),
            kind: object.kind_name(),
            sequence: object.span().sequence,
            in_folder: newest.get(&(object.kind(), object.asn())).copied(),
        });
        kept.collect()
    }

    fn identity_signed(&self, signed: &Signed<'_>) -> bool {
        let profiles = self.objects.get(&(1, signed.object.asn())).map_or(&[][..], Vec::as_slice);
        let keys = profiles.iter().flat_map(|stored| match &stored.object {
            Object::Profile(profile) => profile.keys.as_slice(),
            _ => &[],
        });
        let identity = |key: &&ProfileKey| key.role == Role::Identity && key.suite == SuiteId::KcEd25519;
        keys.filter(identity).any(|key| signed.verify(&key.public))
    }

    /// The objects with their octets, profiles first, then records, then additions.
    pub fn objects(&self) -> impl Iterator<Item = (&Object, &[u8])> {
        self.objects.values().flatten().map(|stored| (&stored.object, stored.octets.as_slice()))
    }

    /// The objects in force: of each kind and AS the latest whose time has begun, unless it is over.
    fn in_force(&self, now: u64) -> impl Iterator<Item = &StoredObject> {
        let has_begun = move |stored: &&StoredObject| stored.object.span().not_before <= now;
        self.objects
            .values()
            .filter_map(move |objects| objects.iter().rfind(has_begun))
            .filter(move |stored| stored.object.span().holds(now))
    }

    /// The moment at which a view made at `now` must be replaced, in seconds since 1970: an object begins or ends.
    #[must_use]
    pub fn next_change(&self, now: u64) -> Option<u64> {
        let ends = |span: &Span| [span.not_before, span.not_after.saturating_add(1)];
        let spans = self.objects.values().flatten().flat_map(|stored| ends(stored.object.span()));
        spans.chain([self.anchor.not_after.saturating_add(1)]).filter(|moment| *moment > now).min()
    }

    /// What holds at `now`, and what had to be left out. An expired anchor vouches for nothing.
    #[must_use]
    pub fn view(&self, generation: u64, now: u64) -> (View, Vec<Omitted>) {
        let (mut view, mut omitted) = (View::new(generation), Vec::new());
        if now < self.anchor.not_before || now > self.anchor.not_after {
            return (view, omitted);
        }
        let owners = self.owners(now, &mut omitted);
        for stored in self.in_force(now) {
            let object = &stored.object;
            let span = object.span();
            match object {
                Object::Profile(profile) => {
                    add_keys(&mut view, profile.asn, span, &profile.keys, &owners, &mut omitted);
                }
                Object::Addition(addition) => {
                    // The profile may have changed since the addition came.
                    let genuine = Signed::decode(&stored.octets).is_ok_and(|signed| self.identity_signed(&signed));
                    if genuine {
                        add_keys(&mut view, addition.asn, span, &addition.keys, &owners, &mut omitted);
                    } else {
                        omitted.push(Omitted::Addition(addition.asn));
                    }
                }
                Object::Record(record) => {
                    for &(prefix, max_length) in &record.prefixes {
                        view.add_vrp(Vrp { prefix, max_length, asn: record.asn });
                    }
                    if let Some(attested) = record.attested() {
                        view.set_attested_since(record.asn, attested);
                    }
                }
            }
        }
        (view, omitted)
    }

    /// Whose each key is that a profile in force lists; nobody's if two ASes list it, for the anchor erred.
    fn owners(&self, now: u64, omitted: &mut Vec<Omitted>) -> Owners<'_> {
        let mut owners = Owners::new();
        for stored in self.in_force(now) {
            let Object::Profile(profile) = &stored.object else { continue };
            for key in &profile.keys {
                let owner = owners.entry(&key.public).or_insert(Some(profile.asn));
                if let Some(other) = owner.filter(|owner| *owner != profile.asn) {
                    omitted.push(Omitted::Shared(other, profile.asn));
                    *owner = None;
                }
            }
        }
        owners
    }
}

/// The AS of each key.
type Owners<'a> = HashMap<&'a [u8], Option<Asn>>;

fn add_keys(
    view: &mut View,
    asn: Asn,
    span: &Span,
    keys: &[ProfileKey],
    owners: &Owners<'_>,
    omitted: &mut Vec<Omitted>,
) {
    // Even a profile whose keys all fall away binds the AS: nothing endorsed for it counts then.
    view.register(asn);
    for key in keys.iter().filter(|key| key.role == Role::Attest) {
        // Only its own AS vouches for an addition: another AS's registered key stays that AS's.
        match owners.get(key.public.as_slice()) {
            Some(None) => continue,
            Some(Some(owner)) if *owner != asn => {
                omitted.push(Omitted::OthersKey(asn, *owner));
                continue;
            }
            _ => {}
        }
        if let Some(Err(refused)) = of(key.suite).map(|suite| suite.check_key(&key.public)) {
            omitted.push(Omitted::Key(asn, refused));
            continue;
        }
        let tag = key_tag(key.suite, &key.public);
        if view.keys(asn, key.suite, tag).any(|known| known.public != key.public) {
            omitted.push(Omitted::SameTag(asn));
            continue;
        }
        let (not_before, not_after) = (span.not_before, span.not_after);
        view.add_key(asn, RegisteredKey { suite: key.suite, public: key.public.clone(), not_before, not_after });
    }
}

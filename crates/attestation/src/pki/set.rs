//! The set of signed objects under a trust anchor, and the view that a validator gets of it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::{Deserialize, Serialize};
use wayleave_core::Asn;

use super::object::{Manifest, ManifestEntry, Object, ObjectError, ProfileKey, Role, Signed, Span, TRUST_ANCHOR};
use super::{RegisteredKey, View, Vrp, key_tag, object_hash};
use crate::clock::utc;
use crate::suite::ed25519::{Ed25519, KEY_LEN};
use crate::suite::slh_dsa;
use crate::suite::{KeyRefused, Suite, SuiteId, of};

/// The key that vouches for profiles and records.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Anchor {
    /// What people call it.
    pub name: String,
    /// Its Ed25519 key.
    pub public: [u8; KEY_LEN],
    /// Its SLH-DSA key. With it, only objects count that both keys signed, whatever an object says of itself.
    #[serde(default)]
    pub post_quantum: Option<[u8; slh_dsa::KEY_LEN]>,
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
    #[error("the trust anchor is not valid before {}; check this machine's clock", utc(*.0))]
    NotYet(u64),
    /// Its time is over; get the new one.
    #[error("the trust anchor expired at {}; make or fetch a new one", utc(*.0))]
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
    /// It lacks the signature of the anchor's second key, or of the second identity key that the AS's profile lists.
    #[error("the object of {0} has no post-quantum signature, which its signer's key requires")]
    NotHybrid(Asn),
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

/// An object that still counts although its folder no longer has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetainedObject {
    pub asn: Asn,
    /// What it is: `profile`, `record`, `addition` or `manifest`.
    pub kind: &'static str,
    pub sequence: u64,
    /// When it comes into force, in seconds since 1970; `None`: it is in force.
    pub begins: Option<u64>,
    /// The sequence of the one that the folder has in its place; `None`: it has none.
    pub in_folder: Option<u64>,
    /// When that one expired, in seconds since 1970, if it is genuine, a later one, and has.
    pub expired: Option<u64>,
}

/// What manifests say of a folder, and signatures that nobody checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManifestAlarm {
    /// The publisher lists an object that neither the folder has nor was known here, nor a later one in its place.
    Withheld {
        asn: Asn,
        /// `profile`, `record` or `addition`.
        kind: &'static str,
        sequence: u64,
        /// The latest sequence of this kind and AS that the folder has; `None`: it has none.
        in_folder: Option<u64>,
        /// The manifest's number.
        number: u64,
    },
    /// The publisher does not list an object of the folder, which is older than its list.
    Unlisted { asn: Asn, kind: &'static str, sequence: u64, number: u64 },
    /// The next manifest should have come.
    Stale {
        publisher: Asn,
        number: u64,
        /// Seconds since 1970.
        next_update: u64,
    },
    /// There are objects of the publisher and no manifest: nothing shows what the folder withholds.
    Missing { publisher: Asn },
    /// The anchor here has one key, and a second one signed these of its objects too: the anchor's file may have lost it.
    Unchecked { objects: usize },
}

/// Who a manifest is of, in words.
struct Publisher(Asn);

impl std::fmt::Display for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 == TRUST_ANCHOR { f.write_str("the trust anchor") } else { write!(f, "{}", self.0) }
    }
}

impl std::fmt::Display for ManifestAlarm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::Withheld { asn, kind, sequence, in_folder, number } => {
                write!(
                    f,
                    "the folder of objects withholds the {kind} of {asn} with sequence {sequence}, which manifest {number} lists"
                )?;
                match in_folder {
                    Some(older) => write!(f, ": it has sequence {older} instead"),
                    None => Ok(()),
                }
            }
            Self::Unlisted { asn, kind, sequence, number } => {
                write!(
                    f,
                    "the folder of objects has a {kind} of {asn} with sequence {sequence}, which the later manifest {number} does not list"
                )
            }
            Self::Stale { publisher, number, next_update } => write!(
                f,
                "manifest {number} of {} is stale: the next one was due at {}",
                Publisher(publisher),
                utc(next_update)
            ),
            Self::Unchecked { objects } => write!(
                f,
                "{objects} objects of the trust anchor have post-quantum signatures that nobody checks: its file here has no \
                 `post_quantum_key`"
            ),
            Self::Missing { publisher } => write!(
                f,
                "the folder of objects has no manifest of {}: nothing shows which of its objects are withheld",
                Publisher(publisher)
            ),
        }
    }
}

/// What vouches for an object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Voucher {
    /// An Ed25519 signature.
    Classical,
    /// One of Ed25519 and one of SLH-DSA.
    Hybrid,
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

impl StoredObject {
    /// Whether it is the one that a manifest lists.
    fn has(&self, entry: &ManifestEntry) -> bool {
        self.object.span().sequence == entry.sequence && object_hash(&self.octets) == entry.hash
    }
}

/// Who signs an object.
fn publisher(object: &Object) -> Asn {
    match object {
        Object::Profile(_) | Object::Record(_) => TRUST_ANCHOR,
        Object::Addition(_) | Object::Manifest(_) => object.asn(),
    }
}

/// What a folder holds, genuine or not: names and hashes, so that whoever may write there fills no memory with long files.
#[derive(Clone, Debug, Default)]
pub struct FolderContents {
    hashes: HashSet<[u8; 32]>,
    /// The highest sequence of each kind and AS.
    newest: BTreeMap<(u8, Asn), u64>,
    /// Of genuine objects that have expired: the highest sequence of each kind and AS, and until when it held, in seconds since 1970.
    expired: BTreeMap<(u8, Asn), (u64, u64)>,
}

impl FolderContents {
    /// Adds a file's octets.
    pub fn add(&mut self, octets: &[u8]) {
        self.hashes.insert(object_hash(octets));
        if let Ok(signed) = Signed::decode(octets) {
            let newest = self.newest.entry((signed.object.kind(), signed.object.asn())).or_default();
            *newest = (*newest).max(signed.object.span().sequence);
        }
    }

    /// Notes that a set refused a file's octets as [`Refused::Expired`]: whoever signs for it signed them.
    pub fn add_expired(&mut self, octets: &[u8]) {
        if let Ok(signed) = Signed::decode(octets) {
            let expired = self.expired.entry((signed.object.kind(), signed.object.asn())).or_default();
            let span = signed.object.span();
            *expired = (*expired).max((span.sequence, span.not_after));
        }
    }
}

impl<'a> FromIterator<&'a [u8]> for FolderContents {
    fn from_iter<I: IntoIterator<Item = &'a [u8]>>(files: I) -> Self {
        let mut contents = Self::default();
        files.into_iter().for_each(|octets| contents.add(octets));
        contents
    }
}

impl ObjectSet {
    /// The empty set under `anchor`, which must hold at `now`, in seconds since 1970.
    pub fn new(anchor: Anchor, now: u64) -> Result<Self, AnchorError> {
        Ed25519.check_key(&anchor.public)?;
        // Every other 32 octets are a key of SLH-DSA; these are a file that was not filled in.
        if anchor.post_quantum == Some([0; slh_dsa::KEY_LEN]) {
            return Err(AnchorError::Key(KeyRefused::Weak("all zeros")));
        }
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

    /// Adds an object if it is genuine and later than what the set has. What an AS signs itself is genuine by a key of its
    /// profile, which must be in the set before it. A manifest counts also when the next one is overdue.
    pub fn insert(&mut self, octets: &[u8], now: u64) -> Result<&Object, Refused> {
        let signed = Signed::decode(octets)?;
        let (kind, asn, span) = (signed.object.kind(), signed.object.asn(), *signed.object.span());
        let known = self.objects.get(&(kind, asn)).map_or(&[][..], Vec::as_slice);
        // Verified when it came.
        if known.iter().all(|stored| stored.octets != octets) {
            // A stranger's object must not push a genuine one out.
            self.voucher(&signed)?;
        }
        let is_manifest = matches!(signed.object, Object::Manifest(_));
        if span.not_after < now && !is_manifest {
            return Err(Refused::Expired(asn));
        }
        let have = span.sequence;
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

    /// Refuses from now on what is older than an object that was genuine before, also when that one has expired: objects
    /// never go back.
    pub fn remember(&mut self, octets: &[u8], now: u64) {
        let Ok(signed) = Signed::decode(octets) else { return };
        let (object, span) = (&signed.object, signed.object.span());
        let name = (object.kind(), object.asn());
        let is_known =
            self.objects.get(&name).is_some_and(|of_kind| of_kind.iter().any(|stored| stored.octets == octets));
        // Whoever may sign for an AS now may have signed it then, with a key that its profile no longer lists. But an AS that
        // lists a post-quantum identity key is not held to what an Ed25519 key signed before, and others may have forged.
        let counts = match self.is_signed_by_as(object) {
            false => is_known || self.voucher(&signed).is_ok(),
            true => is_known || signed.is_hybrid() || !self.has_post_quantum_identity(object.asn()),
        };
        if span.not_before <= now && counts {
            let floor = self.floors.entry(name).or_default();
            *floor = (*floor).max(span.sequence);
        }
    }

    /// The objects of this set that `folder` does not have.
    #[must_use]
    pub fn kept(&self, folder: &FolderContents, now: u64) -> Vec<RetainedObject> {
        let FolderContents { hashes, newest, expired } = folder;
        let lost = self.objects().filter(|(_, octets)| !hashes.contains(&object_hash(octets)));
        let kept = lost.map(|(object, _)| {
            let (name, sequence) = ((object.kind(), object.asn()), object.span().sequence);
            let newest = newest.get(&name).copied();
            let expired =
                expired.get(&name).filter(|(of_folder, _)| Some(*of_folder) == newest && *of_folder > sequence);
            RetainedObject {
                asn: object.asn(),
                kind: object.kind_name(),
                sequence,
                begins: Some(object.span().not_before).filter(|begins| *begins > now),
                in_folder: newest,
                expired: expired.map(|(_, until)| *until),
            }
        });
        kept.collect()
    }

    /// What the manifests of this set say of `folder`, which is in this set as far as it is genuine. What is known here although
    /// the folder lost it is [`ObjectSet::kept`]'s to report.
    #[must_use]
    pub fn manifest_alarms(&self, folder: &FolderContents, now: u64) -> Vec<ManifestAlarm> {
        let FolderContents { hashes: in_folder, newest, .. } = folder;
        let mut alarms = Vec::new();
        let unchecked = self.objects().filter(|(object, octets)| {
            !self.is_signed_by_as(object) && Signed::decode(octets).is_ok_and(|signed| signed.is_hybrid())
        });
        if self.anchor.post_quantum.is_none() {
            let objects = unchecked.count();
            alarms.extend((objects > 0).then_some(ManifestAlarm::Unchecked { objects }));
        }
        let publishers: BTreeSet<Asn> = self.objects().map(|(object, _)| publisher(object)).collect();
        for publisher in publishers {
            let Some(manifest) = self.manifest(publisher, now) else {
                alarms.push(ManifestAlarm::Missing { publisher });
                continue;
            };
            let Span { sequence: number, not_after: next_update, .. } = manifest.span;
            if next_update < now {
                alarms.push(ManifestAlarm::Stale { publisher, number, next_update });
            }
            for entry in manifest.entries.iter().filter(|entry| entry.not_after >= now) {
                let of_kind = self.objects.get(&(entry.kind, entry.asn)).map_or(&[][..], Vec::as_slice);
                let is_known = of_kind.iter().any(|stored| stored.has(entry));
                let has_later = of_kind.iter().any(|stored| stored.object.span().sequence > entry.sequence);
                if !in_folder.contains(&entry.hash) && !is_known && !has_later {
                    let (asn, kind, sequence) = (entry.asn, entry.kind_name(), entry.sequence);
                    let in_folder = newest.get(&(entry.kind, asn)).copied();
                    alarms.push(ManifestAlarm::Withheld { asn, kind, sequence, in_folder, number });
                }
            }
            let listed: HashSet<(u8, Asn)> = manifest.entries.iter().map(|entry| (entry.kind, entry.asn)).collect();
            let of_publisher =
                self.objects().map(|(object, _)| object).filter(|object| self::publisher(object) == publisher);
            for object in of_publisher.filter(|object| !matches!(object, Object::Manifest(_))) {
                let (asn, kind, sequence) = (object.asn(), object.kind_name(), object.span().sequence);
                if sequence < number && !listed.contains(&(object.kind(), asn)) {
                    alarms.push(ManifestAlarm::Unlisted { asn, kind, sequence, number });
                }
            }
        }
        alarms
    }

    /// The latest manifest of a publisher whose time has begun; it may be stale.
    #[must_use]
    pub fn manifest(&self, publisher: Asn, now: u64) -> Option<&Manifest> {
        let of_kind = self.objects.get(&(4, publisher))?;
        of_kind.iter().rev().find_map(|stored| match &stored.object {
            Object::Manifest(manifest) if manifest.span.not_before <= now => Some(manifest),
            _ => None,
        })
    }

    /// Whether an AS signs objects of this kind itself.
    fn is_signed_by_as(&self, object: &Object) -> bool {
        match object {
            Object::Profile(_) | Object::Record(_) => false,
            Object::Addition(_) => true,
            Object::Manifest(manifest) => manifest.publisher != TRUST_ANCHOR,
        }
    }

    /// What vouches for an object, by the keys that its signer has, not by what it says of itself.
    fn voucher(&self, signed: &Signed<'_>) -> Result<Voucher, Refused> {
        let asn = signed.object.asn();
        if self.is_signed_by_as(&signed.object) {
            return self.identity_signed(signed);
        }
        match &self.anchor.post_quantum {
            None if signed.verify(&self.anchor.public) => Ok(Voucher::Classical),
            Some(_) if !signed.is_hybrid() && signed.verify(&self.anchor.public) => Err(Refused::NotHybrid(asn)),
            Some(post_quantum) if signed.verify_hybrid(&self.anchor.public, post_quantum) => Ok(Voucher::Hybrid),
            _ => Err(Refused::Signature(asn)),
        }
    }

    /// Whether identity keys of the AS's profile signed an object: one of Ed25519, and one of SLH-DSA too where the profile lists
    /// such a key.
    fn identity_signed(&self, signed: &Signed<'_>) -> Result<Voucher, Refused> {
        let asn = signed.object.asn();
        let mut best: Result<Voucher, Refused> = Err(Refused::Signature(asn));
        for keys in self.profile_keys(asn) {
            let of_suite = |suite| keys.iter().filter(move |key| key.role == Role::Identity && key.suite == suite);
            let mut classical = of_suite(SuiteId::KcEd25519).filter(|key| signed.verify(&key.public));
            let Some(classical) = classical.next() else { continue };
            let has_second = of_suite(SuiteId::SlhDsa128s).next().is_some();
            let signed_by_second =
                || of_suite(SuiteId::SlhDsa128s).any(|key| signed.verify_hybrid(&classical.public, &key.public));
            let found = match (has_second, signed.is_hybrid()) {
                (false, _) => Ok(Voucher::Classical),
                (true, false) => Err(Refused::NotHybrid(asn)),
                (true, true) if signed_by_second() => Ok(Voucher::Hybrid),
                (true, true) => Err(Refused::Signature(asn)),
            };
            best = match (best, found) {
                (Ok(best), Ok(found)) => Ok(best.max(found)),
                (Err(_), found) => found,
                (best, Err(_)) => best,
            };
        }
        best
    }

    fn has_post_quantum_identity(&self, asn: Asn) -> bool {
        let is_one = |key: &ProfileKey| key.role == Role::Identity && key.suite == SuiteId::SlhDsa128s;
        self.profile_keys(asn).any(|keys| keys.iter().any(is_one))
    }

    /// The keys of each profile of `asn` in the set.
    fn profile_keys(&self, asn: Asn) -> impl Iterator<Item = &[ProfileKey]> {
        let profiles = self.objects.get(&(1, asn)).map_or(&[][..], Vec::as_slice);
        profiles.iter().filter_map(|stored| match &stored.object {
            Object::Profile(profile) => Some(profile.keys.as_slice()),
            _ => None,
        })
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
        let of_anchor = if self.anchor.post_quantum.is_some() { Voucher::Hybrid } else { Voucher::Classical };
        if of_anchor == Voucher::Classical {
            view.set_classical_anchor();
        }
        let owners = self.owners(now, &mut omitted);
        for stored in self.in_force(now) {
            let object = &stored.object;
            let span = object.span();
            match object {
                Object::Profile(profile) => {
                    add_keys(&mut view, profile.asn, span, (profile.keys.as_slice(), of_anchor), &owners, &mut omitted);
                }
                Object::Addition(addition) => {
                    // The profile may have changed since the addition came.
                    let signed = Signed::decode(&stored.octets).map_err(Refused::from);
                    match signed.and_then(|signed| self.identity_signed(&signed)) {
                        // The profile that lists the identity key is worth what the anchor's signature is.
                        Ok(voucher) => {
                            let keys = (addition.keys.as_slice(), voucher.min(of_anchor));
                            add_keys(&mut view, addition.asn, span, keys, &owners, &mut omitted);
                        }
                        Err(_) => omitted.push(Omitted::Addition(addition.asn)),
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
                Object::Manifest(_) => {}
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
    (keys, voucher): (&[ProfileKey], Voucher),
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
        let key = RegisteredKey { suite: key.suite, public: key.public.clone(), not_before, not_after };
        match voucher {
            Voucher::Hybrid => view.add_key(asn, key),
            Voucher::Classical => view.add_classical_key(asn, key),
        }
    }
}

//! The realm's list of nodes that were removed before their memberships expire, and the keys that sign it in the realm's place.
//!
//! A list says when the next one is due, so that who is cut off from the operator notices. Lists are ordered by generation, then by number. A
//! list key belongs to a generation, which the realm's key alone gives: whoever has a stolen one cannot go beyond it, and the realm's key
//! ends it with a list of the next.

use std::collections::BTreeMap;

use wayleave_core::wire::{List16, Malformed, Reader, Wire, Writer, check_ascending};
use wayleave_core::{IdentityKey, UnixTime};
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::{NotSigned, Object, SIGNATURE, Signed};

use super::key_roll::{self, Behind, KeyFault, KeyRoll, OfRealm, Rolls};
use super::{MAX_MEMBERSHIP, RealmKey};
use crate::advert::MAX_AHEAD;

/// Entries of a list.
pub const MAX_REVOKED: usize = 16_384;
/// A list may say that the next one is due after at most so many seconds: 31 days.
pub const MAX_LIST: u64 = 31 * 86_400;
/// Seconds after which the next list is due, unless the operator's configuration says otherwise.
pub const LIST_INTERVAL: u64 = 600;
/// Seconds by which the next list may be overdue before nodes of a realm no longer trust the one that they have: a day, unless their
/// configurations say otherwise.
pub const MAX_STALENESS: u64 = 86_400;
/// A list key lasts at most so many seconds: 400 days.
pub const MAX_LIST_KEY: u64 = 400 * 86_400;
/// Nodes of which the realm's key says that no list of before removes them.
pub const MAX_RESTORED: usize = 4_096;

wayleave_core::wire! {
    /// What the realm's key says besides with a list key.
    #[derive(Clone, PartialEq, Eq, Debug, Default)]
    pub struct Base: Self::check {
        /// Who is a member again though lists of earlier generations have it: a stolen list key removed it.
        pub restored: Vec<IdentityKey> as List16<MAX_RESTORED>,
        /// Up to the key of the realm that signed.
        pub rolls: Rolls,
    }

    /// A key that signs lists in the realm's place. Signed by the realm's key.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct ListKey: Self::check {
        pub realm: RealmKey,
        /// That of the lists that it signs. It rises when a list key is revoked, and the others are signed anew.
        pub generation: u64,
        /// The Ed25519 public key.
        pub key: [u8; 32],
        /// The Unix second at which this was made.
        pub issued: u64,
        /// The last Unix second at which it signs.
        pub not_after: u64,
        pub base: Base as Behind,
    }

    /// A node that was removed.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    pub struct Removal {
        pub identity: IdentityKey,
        /// The last Unix second of any membership of it, until which lists have it; 0 in lists before version 3, which do not say.
        pub until: u64,
    }

    /// Who was removed.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct RevocationList: Self::check {
        pub realm: RealmKey,
        /// A list of a lower generation never replaces one of a higher, whatever their numbers.
        pub generation: u64,
        /// Rises with each list of a generation; a list with a lower number never replaces one with a higher.
        pub number: u64,
        /// The Unix second at which it was made.
        pub issued: u64,
        /// The Unix second by which there is another one; 0 in lists of version 1, which do not say.
        pub next: u64,
        /// The list key that signed it; without one the realm's key did that rules at `issued`.
        pub by: Option<Signed<ListKey>>,
        /// The identities, ascending. A removed identity is never admitted again; a node that returns makes a new one.
        pub revoked: Vec<Removal> as List16<MAX_REVOKED>,
        /// All rolls of the realm's key, also those whose date has not come.
        pub rolls: Rolls,
    }

    /// A list of version 2, which does not say until when a node stays on it.
    struct ListWithoutEnds {
        realm: RealmKey,
        generation: u64,
        number: u64,
        issued: u64,
        next: u64,
        by: Option<Signed<ListKey>>,
        revoked: Vec<IdentityKey> as List16<MAX_REVOKED>,
    }

    /// A list of version 1. Signed by the realm's key.
    struct ListBefore {
        realm: RealmKey,
        number: u64,
        issued: u64,
        revoked: Vec<IdentityKey> as List16<MAX_REVOKED>,
    }
}

impl Base {
    fn check(&self) -> Result<(), Malformed> {
        check_ascending(&self.restored, "the restored identities")
    }
}

impl ListKey {
    fn check(&self) -> Result<(), Malformed> {
        let lasts = self.not_after.checked_sub(self.issued);
        if lasts.is_none_or(|lasts| lasts > MAX_LIST_KEY) { Err(Malformed::Value("the validity")) } else { Ok(()) }
    }
}

impl Object for ListKey {
    const LABEL: &'static str = "wayleave/control/list-key/v1";
    const MAX: usize = 1 + 32 + 8 + 32 + 16 + 2 + MAX_RESTORED * 32 + Rolls::MAX + SIGNATURE;
    const VERSION: u8 = 2;

    fn version(&self) -> u8 {
        key_roll::version(&self.base)
    }

    fn read_version(version: u8, from: &mut Reader<'_>) -> Result<Self, Malformed> {
        key_roll::read_version(version, from)
    }
}

impl OfRealm for ListKey {
    fn realm(&self) -> RealmKey {
        self.realm
    }

    fn rolls(&self) -> &Rolls {
        &self.base.rolls
    }

    fn made(&self) -> u64 {
        self.issued
    }
}

impl RevocationList {
    fn check(&self) -> Result<(), Malformed> {
        let lasts = self.next.checked_sub(self.issued);
        if !lasts.is_some_and(|lasts| (1..=MAX_LIST).contains(&lasts)) {
            return Err(Malformed::Value("when the next list is due"));
        }
        let by = self.by.as_ref().map(Signed::object);
        if by.is_some_and(|by| by.realm != self.realm || by.generation != self.generation) {
            return Err(Malformed::Value("the list key"));
        }
        if self.revoked.iter().any(|removal| removal.until > self.issued.saturating_add(2 * MAX_MEMBERSHIP)) {
            return Err(Malformed::Value("until when a node is on the list"));
        }
        check_ascending(&self.identities(), "the revoked identities")
    }

    /// Who is on it.
    #[must_use]
    pub fn identities(&self) -> Vec<IdentityKey> {
        self.revoked.iter().map(|removal| removal.identity).collect()
    }

    /// The node's entry, if it was removed.
    #[must_use]
    pub fn removal(&self, identity: &IdentityKey) -> Option<&Removal> {
        let at = self.revoked.binary_search_by_key(identity, |removal| removal.identity);
        at.ok().map(|at| &self.revoked[at])
    }

    /// Whether `identity` was removed.
    #[must_use]
    pub fn has(&self, identity: &IdentityKey) -> bool {
        self.removal(identity).is_some()
    }

    /// The last Unix second of any membership of a node on this list. Where it does not say, that is the end of the longest one that could
    /// have been signed before.
    #[must_use]
    pub fn end(&self, removal: &Removal) -> u64 {
        if removal.until == 0 { self.issued.saturating_add(MAX_MEMBERSHIP) } else { removal.until }
    }

    /// What orders lists.
    #[must_use]
    pub fn order(&self) -> (u64, u64) {
        (self.generation, self.number)
    }

    /// Whether it was made ahead of the time, by a clock that was.
    #[must_use]
    pub fn is_ahead(&self, now: u64) -> bool {
        let latest = now.saturating_add(MAX_AHEAD);
        self.issued > latest || self.number / 1_000_000 > latest
    }

    /// The public key that signed it.
    ///
    /// # Errors
    /// If the realm's key is not behind that.
    pub fn signer(&self, realm: &RealmKey) -> Result<[u8; 32], NotSigned> {
        let keys = self.rolls.keys(realm)?;
        match &self.by {
            None => Ok(keys[self.rolls.up_to(self.issued).len()].0),
            Some(by) => {
                let by = key_roll::verify(by, realm)?;
                if self.issued > by.not_after { Err(NotSigned) } else { Ok(by.key) }
            }
        }
    }

    /// The key of the realm signed it that rules at the list's own time, or a list key that the realm signed and that had not ended by then.
    ///
    /// # Errors
    /// If not.
    pub fn verify<'a>(signed: &'a Signed<Self>, realm: &RealmKey) -> Result<&'a Self, NotSigned> {
        signed.verify(&signed.object().signer(realm)?)
    }

    /// Whether the key behind it counts at the Unix second `now`, as far as `known` tells of the realm's keys.
    ///
    /// # Errors
    /// If not.
    pub fn check_key(&self, known: &Rolls, now: u64) -> Result<(), KeyFault> {
        match self.by.as_ref().map(Signed::object) {
            Some(by) => key_roll::check_key(&by.base.rolls, by.issued, known, now),
            None => key_roll::check_key(&self.rolls.up_to(self.issued), self.issued, known, now),
        }
    }

    /// The list after `before`, which is newer than that one wherever it was made: its number counts microseconds, so that two that are made
    /// apart from each other hardly have the same. The next one is due `lasts` seconds later.
    fn after(before: Option<&Self>, realm: RealmKey, generation: u64, lasts: u64, now: UnixTime) -> Self {
        // One that a clock ahead of the time made rules nobody: no reader took it whose own clock was right.
        let before = before.filter(|before| !before.is_ahead(now.secs()));
        let number = before.filter(|before| before.generation == generation).map_or(0, |before| before.number);
        // A list never says that it is older than one that it replaces.
        let issued = before.map_or(0, |before| before.issued).max(now.secs());
        Self {
            realm,
            generation,
            number: number.saturating_add(1).max(now.0),
            issued,
            next: issued.saturating_add(lasts),
            by: None,
            revoked: Vec::new(),
            rolls: Rolls::NONE,
        }
    }
}

impl Object for RevocationList {
    const LABEL: &'static str = "wayleave/control/revocations/v1";
    const MAX: usize = 1 + 32 + 4 * 8 + 1 + 4 + ListKey::MAX + 2 + MAX_REVOKED * 40 + Rolls::MAX + SIGNATURE;
    const VERSION: u8 = 3;

    fn version(&self) -> u8 {
        let says_more = !self.rolls.is_empty() || self.revoked.iter().any(|removal| removal.until != 0);
        match self.next {
            0 => 1,
            _ if says_more => Self::VERSION,
            _ => 2,
        }
    }

    fn write_version(&self, out: &mut Writer) {
        let &Self { realm, generation, number, issued, next, ref by, .. } = self;
        let (by, revoked) = (by.clone(), self.identities());
        match self.version() {
            1 => ListBefore { realm, number, issued, revoked }.write(out),
            2 => ListWithoutEnds { realm, generation, number, issued, next, by, revoked }.write(out),
            _ => self.write(out),
        }
    }

    fn read_version(version: u8, from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let ends = |all: Vec<IdentityKey>| all.into_iter().map(|identity| Removal { identity, until: 0 }).collect();
        match version {
            1 => {
                let ListBefore { realm, number, issued, revoked } = ListBefore::read(from)?;
                check_ascending(&revoked, "the revoked identities")?;
                let (revoked, rolls) = (ends(revoked), Rolls::NONE);
                Ok(Self { realm, generation: 0, number, issued, next: 0, by: None, revoked, rolls })
            }
            2 => {
                let ListWithoutEnds { realm, generation, number, issued, next, by, revoked } =
                    ListWithoutEnds::read(from)?;
                let (revoked, rolls) = (ends(revoked), Rolls::NONE);
                let list = Self { realm, generation, number, issued, next, by, revoked, rolls };
                list.check().map(|()| list)
            }
            Self::VERSION => {
                let list = Self::read(from)?;
                if list.version() == version { Ok(list) } else { Err(Malformed::Value("the version of a list")) }
            }
            other => Err(Malformed::Version(other)),
        }
    }
}

/// Why a list cannot be signed here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ListError {
    #[error("the list key has ended; the realm's operator makes a later one: `wayleave realm list-key new`")]
    Ended,
    #[error(
        "a list key was revoked since this one was signed; the operator has its new certificate: `wayleave realm list-key show`"
    )]
    Revoked,
    #[error(
        "neither the realm's key nor a list key is here: `wayleave realm list-key new` makes one where the realm's key is"
    )]
    NoKey,
    #[error("the realm's key has rolled: the one that is here signs no more; `next_key` of [realm] names the next")]
    Rolled,
    #[error("the list is of another realm than the list key")]
    Realm,
    #[error("the list is not signed by its realm")]
    Signature,
    #[error("the list cannot be expressed: {0}")]
    Malformed(#[from] Malformed),
}

/// What signs lists: the realm's key, or a list key with what the realm's key signed of it.
#[derive(Clone, Debug)]
pub enum ListSigner {
    Realm(SigningKey),
    ListKey(SigningKey, Signed<ListKey>),
}

impl ListSigner {
    /// A list key; `None` if the certificate is not of this key, or its realm did not sign it.
    #[must_use]
    pub fn of_list_key(key: SigningKey, certificate: Signed<ListKey>) -> Option<Self> {
        let object = certificate.object();
        let is_whole =
            object.key == key.verifying_key().to_bytes() && key_roll::verify(&certificate, &object.realm).is_ok();
        is_whole.then_some(Self::ListKey(key, certificate))
    }

    /// The realm, if its key has not rolled.
    #[must_use]
    pub fn realm(&self) -> RealmKey {
        match self {
            Self::Realm(key) => RealmKey(key.verifying_key().to_bytes()),
            Self::ListKey(_, certificate) => certificate.object().realm,
        }
    }

    /// Signs the list after `before`, of `generation` or a later one, with these nodes, in ascending order, and the rolls of the realm's key. The
    /// next one is due after `lasts` seconds, or when the list key ends.
    ///
    /// # Errors
    /// If the list key has ended or was revoked, the realm's key is not the one that rules, or `lasts` is too long.
    pub fn sign(
        &self,
        before: Option<&RevocationList>,
        generation: u64,
        revoked: Vec<Removal>,
        rolls: &Rolls,
        lasts: u64,
        now: UnixTime,
    ) -> Result<Signed<RevocationList>, ListError> {
        let realm = rolls.iter().next().map_or_else(|| self.realm(), |first| first.realm);
        let after = |generation| RevocationList::after(before, realm, generation, lasts, now);
        let list = match self {
            Self::Realm(_) => RevocationList { revoked, ..after(generation) },
            Self::ListKey(_, certificate) => {
                let by = certificate.object();
                if by.generation < generation {
                    return Err(ListError::Revoked);
                }
                let list = after(by.generation);
                if list.issued > by.not_after {
                    return Err(ListError::Ended);
                }
                let next = list.next.min(by.not_after).max(list.issued + 1);
                RevocationList { revoked, next, by: Some(certificate.clone()), ..list }
            }
        };
        if list.revoked.len() > MAX_REVOKED {
            return Err(Malformed::TooMany { count: list.revoked.len(), most: MAX_REVOKED }.into());
        }
        let list = RevocationList { rolls: rolls.clone(), ..list };
        let (Self::Realm(key) | Self::ListKey(key, _)) = self;
        if list.signer(&realm) != Ok(key.verifying_key().to_bytes()) {
            return Err(ListError::Rolled);
        }
        Ok(Signed::sign(&list, key)?)
    }

    /// Signs a list with the same nodes as `before`, and those of `more`, which is in force for `lasts` seconds from now: ahead, on a machine
    /// that knows no more of the realm.
    ///
    /// # Errors
    /// As [`ListSigner::sign`], and if `before` is not a list of this realm.
    pub fn sign_again(
        &self,
        before: &Signed<RevocationList>,
        more: &[IdentityKey],
        lasts: u64,
        now: UnixTime,
    ) -> Result<Signed<RevocationList>, ListError> {
        let list = before.object();
        let realm = match self {
            Self::Realm(_) => list.realm,
            Self::ListKey(..) => self.realm(),
        };
        if list.realm != realm {
            return Err(ListError::Realm);
        }
        RevocationList::verify(before, &realm).map_err(|_| ListError::Signature)?;
        let is_restored = |identity: &IdentityKey| match self {
            Self::Realm(_) => false,
            Self::ListKey(_, by) => {
                let by = by.object();
                by.generation > list.generation && by.base.restored.binary_search(identity).is_ok()
            }
        };
        let kept = list.revoked.iter().filter(|removal| !is_restored(&removal.identity));
        let mut revoked: BTreeMap<IdentityKey, u64> =
            kept.map(|removal| (removal.identity, list.end(removal))).collect();
        for identity in more {
            // Of its memberships nothing is known here.
            revoked.entry(*identity).or_insert(now.secs() + MAX_MEMBERSHIP);
        }
        let revoked = revoked.into_iter().map(|(identity, until)| Removal { identity, until });
        self.sign(Some(list), list.generation, revoked.collect(), &list.rolls, lasts, now)
    }
}

/// Whether what is known of removed nodes is of today.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Freshness {
    #[default]
    Fresh,
    /// The next list was due at this Unix second.
    Overdue(u64),
    /// The same, so long ago that nothing may rest on it any more.
    Stale(u64),
}

impl Freshness {
    /// Of the list that is known at the Unix second `now`, if any. One that is none, or does not say when the next is due, counts as due at
    /// `since`, when its reader began. The next list is overdue after twice the time between two, or half of `most` if that is less, and the
    /// present one stale after `most`.
    #[must_use]
    pub fn of(list: Option<&RevocationList>, since: u64, most: u64, now: u64) -> Self {
        let (due, interval) = match list {
            Some(list) if list.next > 0 => (list.next, list.next - list.issued),
            _ => (since, most),
        };
        let late = now.saturating_sub(due);
        match () {
            () if late > most => Self::Stale(due),
            () if late > (2 * interval).min(most / 2) => Self::Overdue(due),
            () => Self::Fresh,
        }
    }
}

/// Looks whether the list stays fresh, for whoever goes by it.
#[derive(Clone, Copy, Debug)]
pub struct FreshnessWatch {
    /// The Unix second at which it was looked at first.
    since: Option<u64>,
    /// How many seconds the next list may be overdue.
    most: u64,
    last: Freshness,
    /// Rolls of the realm's key that were in the list.
    rolls: usize,
}

impl FreshnessWatch {
    #[must_use]
    pub fn new(most: u64) -> Self {
        Self { since: None, most, last: Freshness::Fresh, rolls: 0 }
    }

    /// For a reader that began at the Unix second `since`.
    #[must_use]
    pub fn since(since: u64, most: u64) -> Self {
        Self { since: Some(since), ..Self::new(most) }
    }

    /// How it stood when it was looked at last.
    #[must_use]
    pub fn last(&self) -> Freshness {
        self.last
    }

    /// The rolls of the realm's key that the list did not have when this was last asked.
    pub fn new_rolls(&mut self, list: Option<&Signed<RevocationList>>) -> Vec<KeyRoll> {
        let Some(rolls) = list.map(|list| &list.object().rolls) else { return Vec::new() };
        let before = std::mem::replace(&mut self.rolls, rolls.len());
        rolls.iter().skip(before).cloned().collect()
    }

    /// How the list stands at the Unix second `now`, if that is otherwise than when this was last asked.
    pub fn look(&mut self, list: Option<&Signed<RevocationList>>, now: u64) -> Option<Freshness> {
        let since = *self.since.get_or_insert(now);
        let found = Freshness::of(list.map(Signed::object), since, self.most, now);
        let before = std::mem::replace(&mut self.last, found);
        (std::mem::discriminant(&before) != std::mem::discriminant(&found)).then_some(found)
    }
}

//! What a server or client knows of a realm: memberships, revocations and adverts, none of which ever becomes older.
//!
//! All that is here was signed by the realm or by the node concerned. A node that is no member is not taken in at all, so that
//! strangers cost no memory. Revoked members stay, with the numbers below which nothing of theirs is taken.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use wayleave_core::{IdentityKey, InnerPrefixes};
use wayleave_crypto::signed::{Object, Signed};
use wayleave_packet::icing::header::{NodeId, Version};

use crate::advert::{Advert, MAX_AHEAD};
use crate::realm::{self, KeyFault, Membership, Name, RealmKey, Removal, RevocationList, Rolls};
use crate::store::Record;

/// Members of a realm that are remembered, revoked and expired ones among them.
pub const MAX_MEMBERS: usize = 65_536;
/// Node IDs of one node that others cannot claim: those of its last adverts.
const MAX_CLAIMS: usize = 4;

/// Why an object is not taken in, or a request not answered: who erred, and what to do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Refusal {
    #[error("malformed: the sender erred, or speaks another version")]
    Malformed,
    #[error("the object is of another realm")]
    Realm,
    #[error("the object is not signed by the key that must have signed it")]
    Signature,
    #[error("the node is no member of the realm; it must join first")]
    NotMember,
    #[error("the node was revoked by the realm's operator")]
    Revoked,
    #[error("a newer object is known (number {0}); use a higher number")]
    Older(u64),
    #[error("another object with the same number is known: two processes use one identity, or a copy of its state")]
    Conflict,
    #[error("the object is from the future; check the clocks")]
    Future,
    #[error("the object has expired; check the clocks")]
    Expired,
    #[error("no room for more members")]
    Full,
    #[error("the node ID is claimed by {0} already; make a new node key")]
    IdClaimed(IdentityKey),
    #[error("a name, prefix or Noise key belongs to the member {0}; the realm's operator erred")]
    Taken(IdentityKey),
    #[error("only the node itself, or another server, may hand this in")]
    NotOwn,
    #[error("too many requests; slow down")]
    TooOften,
    #[error("the server lost its records and has not got them back yet; ask another one")]
    Recovering,
    #[error("no member has this name or address")]
    NoSuchHost,
    #[error("a partial path does not begin at its sender, has a loop or a valley, or names unknown nodes")]
    PartialPath,
    #[error(
        "no advert is known of the sender, or of a node on the path; each node registers its own with a path server"
    )]
    NoAdvert,
    #[error("the server is busy; try again")]
    Busy,
    #[error("the policy does not allow it")]
    Policy,
    #[error("the request is too old, from the future, or was made before the server started; check the clocks")]
    Stale,
    #[error("the request was made before")]
    Replayed,
    #[error("the request is for another server, or for a node that it does not serve")]
    NotServed,
    #[error("the server has no key for this tag at that time")]
    NoKey,
    #[error(
        "the server's list of removed nodes is too old to trust: no later one came; the realm's operator starts `wayleave run realm`, or signs \
         one elsewhere: `wayleave realm list sign`"
    )]
    StaleList,
    #[error(
        "the policy does not allow packets of the profile `sealed`, whose payloads nodes on the way do not check, but those of the profile \
         `payload`"
    )]
    Profile,
    #[error(
        "the list is signed by a list key that has ended or was revoked; the realm's operator makes a later one: `wayleave realm list-key new`"
    )]
    ListKey,
    #[error(
        "the list leaves out {0}, which another list removed and whose memberships may last: `wayleave run realm` takes that one from a path server \
         by itself; where it does not run, `wayleave realm list publish FILE --config FILE` takes it into the operator's records"
    )]
    LeavesOut(IdentityKey),
    #[error(
        "signed by a key of the realm whose time is over, or that another roll ended: the realm's operator signs anew with the realm's present key"
    )]
    RealmKey,
}

impl Refusal {
    const PLAIN: [Self; 20] = [
        Self::Malformed,
        Self::Realm,
        Self::Signature,
        Self::NotMember,
        Self::Revoked,
        Self::Conflict,
        Self::Future,
        Self::Expired,
        Self::Full,
        Self::NotOwn,
        Self::TooOften,
        Self::Recovering,
        Self::NoSuchHost,
        Self::PartialPath,
        Self::NoAdvert,
        Self::Busy,
        Self::Policy,
        Self::Stale,
        Self::Replayed,
        Self::NotServed,
    ];

    /// The number on the wire, and what belongs to it.
    pub(crate) fn parts(self) -> (u8, Option<IdentityKey>, u64) {
        match self {
            Self::Older(number) => (101, None, number),
            Self::IdClaimed(by) => (102, Some(by), 0),
            Self::Taken(by) => (103, Some(by), 0),
            Self::LeavesOut(node) => (104, Some(node), 0),
            Self::NoKey => (21, None, 0),
            Self::StaleList => (22, None, 0),
            Self::ListKey => (23, None, 0),
            Self::RealmKey => (24, None, 0),
            Self::Profile => (25, None, 0),
            plain => (Self::PLAIN.iter().position(|p| *p == plain).map_or(1, |at| at as u8 + 1), None, 0),
        }
    }

    pub(crate) fn from_parts(code: u8, by: Option<IdentityKey>, number: u64) -> Option<Self> {
        match (code, by, number) {
            (101, None, number) => Some(Self::Older(number)),
            (102, Some(by), 0) => Some(Self::IdClaimed(by)),
            (103, Some(by), 0) => Some(Self::Taken(by)),
            (104, Some(node), 0) => Some(Self::LeavesOut(node)),
            (21, None, 0) => Some(Self::NoKey),
            (22, None, 0) => Some(Self::StaleList),
            (23, None, 0) => Some(Self::ListKey),
            (24, None, 0) => Some(Self::RealmKey),
            (25, None, 0) => Some(Self::Profile),
            (code, None, 0) => Self::PLAIN.get(usize::from(code).checked_sub(1)?).copied(),
            _ => None,
        }
    }
}

impl From<KeyFault> for Refusal {
    fn from(fault: KeyFault) -> Self {
        match fault {
            KeyFault::Ahead => Self::Future,
            KeyFault::Other | KeyFault::Ended => Self::RealmKey,
        }
    }
}

/// Rolls of a realm of which there is no list.
static NO_ROLLS: Rolls = Rolls::NONE;

/// What became of an object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Change {
    /// It is known now.
    New,
    /// It was known already, octet for octet.
    Same,
}

struct Member {
    membership: Signed<Membership>,
    advert: Option<Signed<Advert>>,
    /// Its node IDs, the latest last, with the last second of each.
    claims: Vec<(NodeId, u64)>,
    /// The change that last concerned it.
    version: u64,
}

/// The members, revocations and adverts of one realm.
pub struct Database {
    realm: RealmKey,
    capacity: usize,
    members: BTreeMap<IdentityKey, Member>,
    /// Members by the end of their memberships, for making room.
    by_end: BTreeSet<(u64, IdentityKey)>,
    names: BTreeMap<Name, IdentityKey>,
    prefixes: InnerPrefixes,
    /// Who has which Noise key.
    noise: HashMap<[u8; 32], IdentityKey>,
    ids: HashMap<NodeId, IdentityKey>,
    revocations: Option<Signed<RevocationList>>,
    revocations_version: u64,
    /// Which member changed at which version.
    log: BTreeMap<u64, IdentityKey>,
    version: u64,
    /// Counts changes after which paths may be others.
    topology: u64,
    /// Counts changes of links and tags, and nodes that came or came back: after these there may be paths that were not there
    /// before.
    graph: u64,
}

impl Database {
    /// Of the realm with this key, for at most `capacity` members.
    #[must_use]
    pub fn new(realm: RealmKey, capacity: usize) -> Self {
        Self {
            realm,
            capacity: capacity.min(MAX_MEMBERS),
            members: BTreeMap::new(),
            by_end: BTreeSet::new(),
            names: BTreeMap::new(),
            prefixes: InnerPrefixes::default(),
            noise: HashMap::new(),
            ids: HashMap::new(),
            revocations: None,
            revocations_version: 0,
            log: BTreeMap::new(),
            version: 0,
            topology: 0,
            graph: 0,
        }
    }

    /// What was stored: signatures are verified again, times are not looked at.
    ///
    /// # Errors
    /// If a record is not of this realm or not signed: the store is damaged, and counts as lost.
    pub fn restore(&mut self, records: &[Record]) -> Result<(), Refusal> {
        // Memberships first, wherever the store has them: an advert is kept with its member alone, and would be dropped in silence.
        for record in records {
            if let Record::Membership(membership) = record {
                self.verify_membership(membership)?;
                self.insert_membership(membership.clone());
            }
        }
        for record in records {
            match record {
                Record::Revocations(list) => {
                    self.verify_revocations(list)?;
                    self.insert_revocations(list.clone());
                }
                Record::Advert(advert) => {
                    Advert::verify(advert).map_err(|_| Refusal::Signature)?;
                    self.insert_advert(advert.clone());
                }
                _ => {}
            }
        }
        Ok(())
    }

    #[must_use]
    pub fn realm(&self) -> RealmKey {
        self.realm
    }

    /// Rises with every change.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Rises with every change after which paths may be others.
    #[must_use]
    pub fn topology_version(&self) -> u64 {
        self.topology
    }

    /// Rises with every change after which there may be paths that were not there before; not when adverts are renewed.
    #[must_use]
    pub fn graph_version(&self) -> u64 {
        self.graph
    }

    /// Members that are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Whether all of `membership` is in order, and newer than what is known.
    ///
    /// # Errors
    /// The first reason against it, cheap ones first.
    pub fn check_membership(&self, membership: &Signed<Membership>, now: u64) -> Result<Change, Refusal> {
        let change = self.precheck_membership(membership, now)?;
        if change == Change::New {
            self.verify_membership(membership)?;
        }
        Ok(change)
    }

    /// Takes a membership in.
    ///
    /// # Errors
    /// As [`Database::check_membership`]; then nothing changes.
    pub fn apply_membership(&mut self, membership: Signed<Membership>, now: u64) -> Result<Change, Refusal> {
        let change = self.check_membership(&membership, now)?;
        if change == Change::New {
            self.make_room(now);
            self.insert_membership(membership);
        }
        Ok(change)
    }

    fn precheck_membership(&self, signed: &Signed<Membership>, now: u64) -> Result<Change, Refusal> {
        let object = signed.object();
        if object.realm != self.realm {
            return Err(Refusal::Realm);
        }
        let known = self.members.get(&object.identity);
        if let Some(known) = known {
            newer(object.number, known.membership.object().number, signed, &known.membership)?;
            if known.membership == *signed {
                return Ok(Change::Same);
            }
        }
        if self.is_revoked(&object.identity) {
            return Err(Refusal::Revoked);
        }
        if object.not_after < now {
            return Err(Refusal::Expired);
        }
        if object.not_before > now + MAX_AHEAD {
            return Err(Refusal::Future);
        }
        realm::check_key(&object.rolls, object.not_before, self.rolls(), now)?;
        let is_other = |owner: &IdentityKey| *owner != object.identity && self.membership(owner, now).is_ok();
        let names = object.grants.names.iter().filter_map(|name| self.names.get(name).copied());
        let prefixes = object.grants.prefixes.iter().filter_map(|prefix| self.prefixes.holder(prefix));
        let noise = self.noise.get(&object.noise.to_bytes()).copied();
        if let Some(owner) = names.chain(prefixes).chain(noise).find(is_other) {
            return Err(Refusal::Taken(owner));
        }
        let has_capacity = known.is_some() || self.members.len() < self.capacity || self.first_to_go(now).is_some();
        if has_capacity { Ok(Change::New) } else { Err(Refusal::Full) }
    }

    fn verify_membership(&self, signed: &Signed<Membership>) -> Result<(), Refusal> {
        if signed.object().realm != self.realm {
            return Err(Refusal::Realm);
        }
        realm::verify(signed, &self.realm).map_err(|_| Refusal::Signature)?;
        Ok(())
    }

    /// The member whose membership ended first, if it has ended.
    fn first_to_go(&self, now: u64) -> Option<IdentityKey> {
        self.by_end.first().filter(|(end, _)| *end < now).map(|(_, identity)| *identity)
    }

    fn make_room(&mut self, now: u64) {
        if self.members.len() >= self.capacity
            && let Some(identity) = self.first_to_go(now)
            && let Some(gone) = self.members.remove(&identity)
        {
            self.forget_grants(&gone.membership, identity);
            self.log.remove(&gone.version);
            self.release(identity, &gone.claims);
        }
    }

    /// Others may claim these IDs.
    fn release(&mut self, identity: IdentityKey, claims: &[(NodeId, u64)]) {
        for (id, _) in claims {
            if self.ids.get(id) == Some(&identity) {
                self.ids.remove(id);
            }
        }
    }

    fn forget_grants(&mut self, membership: &Signed<Membership>, identity: IdentityKey) {
        let object = membership.object();
        self.by_end.remove(&(object.not_after, identity));
        let noise = object.noise.to_bytes();
        if self.noise.get(&noise) == Some(&identity) {
            self.noise.remove(&noise);
        }
        for name in &object.grants.names {
            if self.names.get(name) == Some(&identity) {
                self.names.remove(name);
            }
        }
        for prefix in &object.grants.prefixes {
            if self.prefixes.holder(prefix) == Some(identity) {
                self.prefixes.remove(prefix);
            }
        }
    }

    fn insert_membership(&mut self, membership: Signed<Membership>) {
        let object = membership.object().clone();
        let identity = object.identity;
        let known = self.members.remove(&identity);
        if let Some(known) = &known {
            self.forget_grants(&known.membership, identity);
            self.log.remove(&known.version);
        }
        self.by_end.insert((object.not_after, identity));
        self.noise.insert(object.noise.to_bytes(), identity);
        for name in object.grants.names {
            self.names.insert(name, identity);
        }
        for prefix in object.grants.prefixes {
            self.prefixes.insert(prefix, identity);
        }
        let version = self.next_version();
        let (advert, claims) = known.map_or((None, Vec::new()), |known| (known.advert, known.claims));
        self.members.insert(identity, Member { membership, advert, claims, version });
        self.log.insert(version, identity);
    }

    fn next_version(&mut self) -> u64 {
        self.topology += 1;
        self.version += 1;
        self.version
    }

    /// Whether all of `list` is in order, and newer than what is known.
    ///
    /// # Errors
    /// The first reason against it.
    pub fn check_revocations(&self, list: &Signed<RevocationList>, now: u64) -> Result<Change, Refusal> {
        let object = list.object();
        if object.realm != self.realm {
            return Err(Refusal::Realm);
        }
        if self.revocations.as_ref() == Some(list) {
            return Ok(Change::Same);
        }
        if object.is_ahead(now) {
            return Err(Refusal::Future);
        }
        if object.by.as_ref().is_some_and(|by| by.object().not_after.saturating_add(MAX_AHEAD) < now) {
            return Err(Refusal::ListKey);
        }
        // A list that knows less of the realm's keys is of who has stolen an old one, or of a machine that has not heard.
        if !object.rolls.begins_with(self.rolls()) {
            return Err(Refusal::RealmKey);
        }
        object.check_key(&object.rolls, now)?;
        if let Some(known) = &self.revocations {
            self.check_next_list(list, known, now)?;
        }
        self.verify_revocations(list)?;
        Ok(Change::New)
    }

    /// Whether a list may follow on another.
    fn check_next_list(
        &self,
        list: &Signed<RevocationList>,
        known: &Signed<RevocationList>,
        now: u64,
    ) -> Result<(), Refusal> {
        let (next, before) = (list.object(), known.object());
        // Whatever a key signed whose time is over has no say in what follows.
        let is_over = before.check_key(&next.rolls, now).is_err();
        if !is_over {
            match next.generation.cmp(&before.generation) {
                Ordering::Less => return Err(Refusal::ListKey),
                // A clock ahead of the time had this one taken in here, and it would rule until then.
                Ordering::Equal if before.is_ahead(now) => {}
                Ordering::Equal => {
                    newer(next.number, before.number, list, known)?;
                    if next.issued < before.issued {
                        return Err(Refusal::Older(before.number));
                    }
                }
                // What is made before the present list may be of a key whose time was over by then. A stolen list key's list may be a little ahead.
                Ordering::Greater if next.issued.saturating_add(MAX_AHEAD) < before.issued && !before.is_ahead(now) => {
                    return Err(Refusal::Older(before.number));
                }
                Ordering::Greater => {}
            }
        }
        // Whoever signed it knew less, or has stolen a list key: nobody is a member again by a list, unless the realm's key says so.
        let is_risen = is_over || next.generation > before.generation;
        let is_restored = |identity: &IdentityKey| {
            let named = |by: &Signed<realm::ListKey>| by.object().base.restored.binary_search(identity).is_ok();
            is_risen && next.by.as_ref().is_none_or(named)
        };
        let lasts = |removal: &&Removal| {
            let member = self.members.get(&removal.identity).map(|member| member.membership.object().not_after);
            before.end(removal).max(member.unwrap_or(0)) >= now
        };
        let is_less = |removal: &&Removal| {
            next.removal(&removal.identity).is_none_or(|other| next.end(other) < removal.until.min(before.end(removal)))
        };
        let mut left_out = before.revoked.iter().filter(is_less).filter(lasts);
        left_out
            .find(|removal| !is_restored(&removal.identity))
            .map_or(Ok(()), |removal| Err(Refusal::LeavesOut(removal.identity)))
    }

    /// Takes a list of removed nodes in.
    ///
    /// # Errors
    /// As [`Database::check_revocations`]; then nothing changes.
    pub fn apply_revocations(&mut self, list: Signed<RevocationList>, now: u64) -> Result<Change, Refusal> {
        let change = self.check_revocations(&list, now)?;
        if change == Change::New {
            self.insert_revocations(list);
        }
        Ok(change)
    }

    fn verify_revocations(&self, signed: &Signed<RevocationList>) -> Result<(), Refusal> {
        if signed.object().realm != self.realm {
            return Err(Refusal::Realm);
        }
        RevocationList::verify(signed, &self.realm).map_err(|_| Refusal::Signature)?;
        Ok(())
    }

    fn insert_revocations(&mut self, list: Signed<RevocationList>) {
        let before = self.revocations.as_ref().map(|known| (&known.object().rolls, known.object().identities()));
        let is_same = before == Some((&list.object().rolls, list.object().identities()));
        // Where nobody else was removed no path is another for it. What removed nodes claimed others may claim, and is theirs again if nobody
        // did and the realm's key restores them.
        self.revocations = Some(list);
        if is_same {
            self.version += 1;
            self.revocations_version = self.version;
        } else {
            self.revocations_version = self.next_version();
        }
    }

    /// Whether all of `advert` is in order, and newer than what is known of its node.
    ///
    /// # Errors
    /// The first reason against it, cheap ones first.
    pub fn check_advert(&self, advert: &Signed<Advert>, now: u64) -> Result<Change, Refusal> {
        let change = self.precheck_advert(advert, now)?;
        if change == Change::New {
            Advert::verify(advert).map_err(|_| Refusal::Signature)?;
        }
        Ok(change)
    }

    /// Takes an advert in.
    ///
    /// # Errors
    /// As [`Database::check_advert`]; then nothing changes.
    pub fn apply_advert(&mut self, advert: Signed<Advert>, now: u64) -> Result<Change, Refusal> {
        let change = self.check_advert(&advert, now)?;
        if change == Change::New {
            self.insert_advert(advert);
        }
        Ok(change)
    }

    fn precheck_advert(&self, signed: &Signed<Advert>, now: u64) -> Result<Change, Refusal> {
        let advert = signed.object();
        if advert.realm != self.realm {
            return Err(Refusal::Realm);
        }
        self.membership(&advert.identity, now)?;
        if let Some(known) = self.members.get(&advert.identity).and_then(|member| member.advert.as_ref()) {
            newer(advert.sequence, known.object().sequence, signed, known)?;
            if known == signed {
                return Ok(Change::Same);
            }
        }
        if advert.expires() < now {
            return Err(Refusal::Expired);
        }
        if advert.issued > now + MAX_AHEAD {
            return Err(Refusal::Future);
        }
        if !advert.is_departure() && advert.current(now).is_none() {
            return Err(Refusal::Expired);
        }
        for key in advert.epoch_keys() {
            if let Some(by) = self.claimant(&key.node, now).filter(|by| *by != advert.identity) {
                return Err(Refusal::IdClaimed(by));
            }
        }
        Ok(Change::New)
    }

    fn insert_advert(&mut self, advert: Signed<Advert>) {
        let identity = advert.object().identity;
        let Some(mut member) = self.members.remove(&identity) else { return };
        self.log.remove(&member.version);
        for key in advert.object().epoch_keys() {
            member.claims.retain(|(id, _)| *id != key.node);
            member.claims.push((key.node, u64::from(key.not_after)));
            self.ids.insert(key.node, identity);
        }
        let surplus = member.claims.len().saturating_sub(MAX_CLAIMS);
        let released: Vec<_> = member.claims.drain(..surplus).collect();
        self.release(identity, &released);
        let (before, next) = (member.advert.as_ref().map(Signed::object), advert.object());
        // One that comes after the end of the last one brings its links back.
        let is_same = before.is_some_and(|before| {
            (&before.links, &before.tags, &before.open) == (&next.links, &next.tags, &next.open)
                && before.reads(Version::Sealed) == next.reads(Version::Sealed)
                && next.issued <= before.expires()
        });
        self.graph += u64::from(!is_same);
        member.advert = Some(advert);
        member.version = self.next_version();
        self.log.insert(member.version, identity);
        self.members.insert(identity, member);
    }

    /// Takes a verified record in that another server or the store had.
    ///
    /// # Errors
    /// As the functions for each kind.
    pub fn apply(&mut self, record: Record, now: u64) -> Result<Change, Refusal> {
        match record {
            Record::Membership(membership) => self.apply_membership(membership, now),
            Record::Advert(advert) => self.apply_advert(advert, now),
            Record::Revocations(list) => self.apply_revocations(list, now),
            _ => Err(Refusal::Malformed),
        }
    }

    /// What is known in the place of a record that was refused as [`Refusal::Conflict`], if that one is signed as it must be: both together
    /// show what their signer did.
    #[must_use]
    pub fn counterpart(&self, record: &Record) -> Option<Record> {
        match record {
            Record::Membership(other) => {
                self.verify_membership(other).ok()?;
                Some(Record::Membership(self.members.get(&other.object().identity)?.membership.clone()))
            }
            Record::Advert(other) => {
                Advert::verify(other).ok()?;
                self.members.get(&other.object().identity)?.advert.clone().map(Record::Advert)
            }
            Record::Revocations(other) => {
                self.verify_revocations(other).ok()?;
                self.revocations.clone().map(Record::Revocations)
            }
            _ => None,
        }
    }

    /// Whether the realm's operator removed `identity`.
    #[must_use]
    pub fn is_revoked(&self, identity: &IdentityKey) -> bool {
        self.revocations.as_ref().is_some_and(|list| list.object().has(identity))
    }

    /// The rolls of the realm's key that are known: the list of removed nodes has them.
    #[must_use]
    pub fn rolls(&self) -> &Rolls {
        self.revocations.as_ref().map_or(&NO_ROLLS, |list| &list.object().rolls)
    }

    /// The current list of removed nodes.
    #[must_use]
    pub fn revocations(&self) -> Option<&Signed<RevocationList>> {
        self.revocations.as_ref()
    }

    /// The membership of a node that is a member at the Unix second `now`.
    ///
    /// # Errors
    /// If it is none.
    pub fn membership(&self, identity: &IdentityKey, now: u64) -> Result<&Membership, Refusal> {
        if self.is_revoked(identity) {
            return Err(Refusal::Revoked);
        }
        let member = self.members.get(identity).map(|member| member.membership.object()).ok_or(Refusal::NotMember)?;
        if self.rolls().end_of(member.rolls.len()).is_some_and(|(_, until)| now > until) {
            return Err(Refusal::RealmKey);
        }
        if member.holds(now) { Ok(member) } else { Err(Refusal::NotMember) }
    }

    /// The last membership of a node that is known here, whether it holds or not.
    #[must_use]
    pub fn last_membership(&self, identity: &IdentityKey) -> Option<&Membership> {
        self.members.get(identity).map(|member| member.membership.object())
    }

    /// The advert of a node that is a member and there at the Unix second `now`.
    #[must_use]
    pub fn advert(&self, identity: &IdentityKey, now: u64) -> Option<&Advert> {
        self.membership(identity, now).ok()?;
        let advert = self.members.get(identity)?.advert.as_ref()?.object();
        (advert.expires() >= now && !advert.is_departure()).then_some(advert)
    }

    /// Membership and advert as they were signed, for others. The membership comes first: who takes them in one by one refuses an advert
    /// of a node that is no member.
    pub fn records(&self, identity: &IdentityKey) -> impl Iterator<Item = Record> {
        let member = self.members.get(identity);
        let membership = member.map(|member| Record::Membership(member.membership.clone()));
        let advert = member.and_then(|member| member.advert.clone()).map(Record::Advert);
        membership.into_iter().chain(advert)
    }

    /// All that must survive a restart.
    pub fn all_records(&self) -> impl Iterator<Item = Record> {
        let list = self.revocations.clone().map(Record::Revocations);
        self.members.keys().flat_map(|identity| self.records(identity)).chain(list)
    }

    /// The nodes that changed after `version`, with the version of each, in order; and whether the revocations did.
    pub fn changed_since(&self, version: u64) -> (bool, impl Iterator<Item = (u64, IdentityKey)>) {
        let changed = self.log.range(version.saturating_add(1)..).map(|(version, identity)| (*version, *identity));
        (self.revocations_version > version, changed)
    }

    /// Every member that is one at the Unix second `now`.
    pub fn members(&self, now: u64) -> impl Iterator<Item = &Membership> {
        let all = self.members.values().map(|member| member.membership.object());
        all.filter(move |membership| self.membership(&membership.identity, now).is_ok())
    }

    /// The member with this name.
    #[must_use]
    pub fn named(&self, name: &Name, now: u64) -> Option<IdentityKey> {
        self.names.get(name).copied().filter(|identity| self.membership(identity, now).is_ok())
    }

    /// The member that has the longest prefix around an inner address.
    #[must_use]
    pub fn owner(&self, address: IpAddr, now: u64) -> Option<IdentityKey> {
        self.prefixes.owner(address).filter(|identity| self.membership(identity, now).is_ok())
    }

    /// Who has this node ID at the Unix second `now`.
    #[must_use]
    pub fn claimant(&self, id: &NodeId, now: u64) -> Option<IdentityKey> {
        let identity = *self.ids.get(id)?;
        let claim = self.members.get(&identity)?.claims.iter().find(|(claimed, _)| claimed == id)?;
        (claim.1 >= now && self.membership(&identity, now).is_ok()).then_some(identity)
    }
}

/// An object may take another's place if its number is higher; the same number must have the same octets.
fn newer<T: Object>(number: u64, known: u64, object: &Signed<T>, other: &Signed<T>) -> Result<(), Refusal> {
    match number.cmp(&known) {
        Ordering::Less => Err(Refusal::Older(known)),
        Ordering::Equal if object != other => Err(Refusal::Conflict),
        _ => Ok(()),
    }
}

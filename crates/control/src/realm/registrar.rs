//! The operator's side of a realm: it invites, admits, renews and revokes. It has the realm's key, or a list key alone: then it keeps the list of
//! removed nodes up and does nothing else.

mod keys;
mod lists;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use wayleave_core::wire::Malformed;
use wayleave_core::{IdentityKey, InnerPrefixes, Instant, Machine, Now, UnixTime};
use wayleave_crypto::dh::DhPublic;
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::Signed;

use super::invitation::exchange;
use super::key_roll::{KeyRoll, Rolls};
use super::{
    Grants, Invitation, JoinError, JoinRequest, LIST_INTERVAL, ListError, ListKey, ListSigner, Membership, Name,
    RealmKey, RevocationList, Server, Token,
};
use crate::store::{Record, Store};
use lists::Removed;

/// Admissions, renewals and revocations that wait to be durable.
const MAX_PENDING: usize = 256;
/// An invitation for other keys can be used for so many seconds.
const ROLL: u64 = 3_600;
/// Who has rolled its keys may do so again after so many seconds.
const ROLL_AGAIN: u64 = 86_400;
/// Invitations for other keys that a member gets in [`ROLL`] seconds: each is stored.
const MAX_INVITED: usize = 4;

/// What an operator reads who orders something for which the realm's key is needed.
const OFF_LINE: &str =
    "the realm's key is not here, or has rolled, and nothing but the list of removed nodes can be signed";

/// What the operator says of a node that is to join.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Invitee {
    pub grants: Grants,
    /// The last Unix second at which the invitation can be used.
    pub not_after: u64,
    /// Seconds that the membership lasts.
    pub membership: u64,
    pub servers: Vec<Server>,
}

/// Why the operator cannot invite like this.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InviteError {
    #[error("the name {0} belongs to the member {1}")]
    Name(Name, IdentityKey),
    #[error("the prefix {0} belongs to the member {1}")]
    Prefix(wayleave_core::Prefix, IdentityKey),
    #[error("{OFF_LINE}")]
    OffLine,
    #[error("the invitation cannot be expressed: {0}")]
    Malformed(#[from] Malformed),
}

/// What a registrar is given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RegistrarInput {
    /// A join request, which is answered to `link` with the number `request`.
    Join { link: u64, request: u32, octets: Arc<[u8]> },
    /// The node `peer`, which the link proved, has its membership of this number and asks for a later one.
    Renewal { link: u64, request: u32, peer: IdentityKey, number: u64 },
    /// The node `peer`, which the link proved, wants other keys: it asks for an invitation under this one-time key, which names these servers.
    Roll { link: u64, request: u32, peer: IdentityKey, key: [u8; 32], servers: Vec<Server> },
    /// The operator removes a node.
    Revoke(IdentityKey),
    /// The operator withdraws an invitation by its one-time key.
    Withdraw([u8; 32]),
    /// The operator gives a member a new membership of so many seconds.
    Renew(IdentityKey, u64),
    /// The operator makes or renews a list key, for so many seconds.
    ListKey { key: [u8; 32], lasts: u64 },
    /// The operator revokes a list key: the others are signed anew, in the next generation. Whom it alone removed, and is named here, is a
    /// member again.
    RevokeListKey { key: [u8; 32], restored: Vec<IdentityKey> },
    /// The operator rolls the realm's key: from a Unix second on `next` signs, and what the present one signed counts until another.
    RollKey { next: RealmKey, from: u64, until: u64 },
    /// The operator has the next list signed, which is stored.
    NewList,
    /// The operator publishes a list that was signed elsewhere.
    List(Box<Signed<RevocationList>>),
    /// A path server has this list.
    Heard(Box<Signed<RevocationList>>),
    /// A path server does not take a list since it leaves out this node, whose membership lasts.
    LeftOut(IdentityKey),
    /// The records with this number are durable.
    Persisted(u64),
    /// What another process of the operator stored.
    Records(Vec<Record>),
}

/// What a registrar asks of its driver, and reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RegistrarOutput {
    /// Store these records, all or none, and answer with [`RegistrarInput::Persisted`].
    Persist {
        id: u64,
        records: Vec<Record>,
    },
    /// The answer to a join request, or to one for a later membership: the membership, or why there is none.
    Reply {
        link: u64,
        request: u32,
        answer: Result<Signed<Membership>, JoinError>,
    },
    /// The answer to a node that wants other keys.
    Invited {
        link: u64,
        request: u32,
        answer: Result<Signed<Invitation>, JoinError>,
    },
    Event(RegistrarEvent),
}

/// What the operator reads in the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RegistrarEvent {
    Admitted(Signed<Membership>),
    Refused {
        identity: Option<IdentityKey>,
        error: JoinError,
    },
    /// To be handed to every path and consent server.
    Revoked(Signed<RevocationList>),
    Renewed(Signed<Membership>),
    /// The list key has this certificate from now on.
    ListKey(Signed<ListKey>),
    /// A list of removed nodes cannot be signed.
    NoList(ListError),
    /// A list that was signed elsewhere removes these nodes, here too from now on.
    RemovedElsewhere(Vec<IdentityKey>),
    /// A list that was signed elsewhere removes more nodes that are no members by the records than are believed: so many were left.
    Invented {
        key: [u8; 32],
        left: usize,
    },
    /// A path server's list is so many seconds ahead of the clock here.
    Ahead {
        seconds: u64,
    },
    /// A path server's list rolls the realm's key to one that is not here, and nobody ordered it here.
    RolledElsewhere(KeyRoll),
    /// A stolen key of the realm alone removed these nodes: they are members again.
    Restored(Vec<IdentityKey>),
    /// The realm has another key from a date on.
    KeyRolled(KeyRoll),
    /// A node has other keys from now on; those of before are removed.
    Rolled {
        from: IdentityKey,
        to: IdentityKey,
    },
    /// A node asked for a later membership or for other keys, and gets none.
    NotRenewed {
        identity: IdentityKey,
        error: JoinError,
    },
    /// The member is not known, or too much waits to be stored.
    Failed(&'static str),
}

enum Pending {
    Admission {
        link: u64,
        request: u32,
        key: [u8; 32],
        membership: Signed<Membership>,
        /// Whose place it takes.
        rolled: Option<IdentityKey>,
    },
    Revocation(Signed<RevocationList>),
    /// Who asked for it, unless the operator ordered it.
    Renewal {
        membership: Signed<Membership>,
        requester: Option<(u64, u32)>,
    },
    ListKeys(Vec<Signed<ListKey>>),
    KeyRoll(KeyRoll),
    Withdrawal,
}

/// The operator's side as a machine.
pub struct Registrar {
    /// The realm's keys that are here: none where it is kept off line, and the next one too before a roll.
    keys: Vec<SigningKey>,
    /// Of the realm's key.
    rolls: Rolls,
    /// A list key in its place.
    list_signer: Option<ListSigner>,
    /// The latest certificate of each.
    list_keys: BTreeMap<[u8; 32], Signed<ListKey>>,
    /// Seconds after which the next list is due.
    list_interval: u64,
    /// When the next one is signed.
    list_at: Option<Instant>,
    realm: RealmKey,
    members: BTreeMap<IdentityKey, Signed<Membership>>,
    /// Until when any membership of a node lasts. The last one may end before one that came earlier, which servers may still hold.
    last_until: BTreeMap<IdentityKey, u64>,
    names: BTreeMap<Name, IdentityKey>,
    prefixes: InnerPrefixes,
    /// Who has which Noise key.
    noise: BTreeMap<[u8; 32], IdentityKey>,
    /// One-time keys that were used, and by whom; `None` if withdrawn.
    used: BTreeMap<[u8; 32], Option<IdentityKey>>,
    revocations: Option<Signed<RevocationList>>,
    /// The realm's own list that began a generation, or the time of another key of the realm's.
    opening: Option<Signed<RevocationList>>,
    /// List keys that were revoked, and the generation that followed.
    revoked_keys: BTreeMap<[u8; 32], u64>,
    /// Everybody who was removed, also if the current list has no need of them.
    removed: BTreeMap<IdentityKey, Removed>,
    /// Whom no list removes of a generation before this.
    restored: BTreeMap<IdentityKey, u64>,
    /// The next identity of who rolled its keys.
    successors: BTreeMap<IdentityKey, IdentityKey>,
    /// The one-time keys of nodes that want other keys, with the last second of each. They are not durable: who joins too late asks again.
    rolls_of_nodes: BTreeMap<IdentityKey, ([u8; 32], u64)>,
    /// When each member got such invitations lately.
    invited: BTreeMap<IdentityKey, Vec<u64>>,
    /// When the members that joined by such an invitation did, in this life.
    rolled: BTreeMap<IdentityKey, u64>,
    /// Invitations made before this second may have been used already.
    lost_before: Option<u64>,
    /// Whether members that ask get later memberships.
    renews: bool,
    pending: BTreeMap<u64, Pending>,
    next: u64,
    outputs: VecDeque<RegistrarOutput>,
}

impl Registrar {
    /// With the realm's key and what the store has. `now` is when it starts.
    #[must_use]
    pub fn new(key: SigningKey, store: Store, now: UnixTime) -> Self {
        Self::with(ListSigner::Realm(key), store, now)
    }

    /// With a list key alone, which signs lists and nothing else; or with the realm's key.
    #[must_use]
    pub fn with(signer: ListSigner, store: Store, now: UnixTime) -> Self {
        let mut realm = signer.realm();
        if let Store::Kept(records) = &store {
            let first = |record: &Record| match record {
                Record::Rolls(rolls) => rolls.iter().next().map(|roll| roll.realm),
                _ => None,
            };
            realm = records.iter().find_map(first).unwrap_or(realm);
        }
        let (keys, list_signer) = match signer {
            ListSigner::Realm(key) => (vec![key], None),
            list_key @ ListSigner::ListKey(..) => (Vec::new(), Some(list_key)),
        };
        let lost_before = (store == Store::Lost).then(|| now.secs());
        let mut registrar = Self {
            keys,
            rolls: Rolls::NONE,
            list_signer,
            list_keys: BTreeMap::new(),
            list_interval: LIST_INTERVAL,
            list_at: Some(Instant(0)),
            realm,
            members: BTreeMap::new(),
            last_until: BTreeMap::new(),
            names: BTreeMap::new(),
            prefixes: InnerPrefixes::default(),
            noise: BTreeMap::new(),
            used: BTreeMap::new(),
            revocations: None,
            opening: None,
            revoked_keys: BTreeMap::new(),
            removed: BTreeMap::new(),
            restored: BTreeMap::new(),
            successors: BTreeMap::new(),
            rolls_of_nodes: BTreeMap::new(),
            invited: BTreeMap::new(),
            rolled: BTreeMap::new(),
            lost_before,
            renews: true,
            pending: BTreeMap::new(),
            next: 0,
            outputs: VecDeque::new(),
        };
        if let Store::Kept(records) = store {
            records.into_iter().for_each(|record| registrar.restore(record));
        }
        registrar
    }

    /// Takes in what was stored before, or by another process of the operator in the meantime.
    pub fn restore(&mut self, record: Record) {
        match record {
            Record::Membership(membership) => self.insert(membership),
            Record::Revocations(list) => self.restore_list(list, false),
            Record::Heard(list) => self.restore_list(list, true),
            Record::Ordered { identity, until } => self.restore_order(identity, until),
            Record::ListKeyRevoked { key, generation } => {
                self.revoked_keys.insert(key, generation);
            }
            Record::ListKey(certificate) => {
                let is_newer = |known: &Signed<ListKey>| {
                    let order = |key: &ListKey| (key.generation, key.issued, key.not_after);
                    order(known.object()) < order(certificate.object())
                };
                let key = certificate.object().key;
                if self.list_keys.get(&key).is_none_or(is_newer) {
                    self.list_keys.insert(key, certificate);
                }
            }
            Record::Used { key, by } => self.restore_used(key, by),
            Record::Rolled { from, to } => self.restore_roll(from, to),
            Record::Restored { identity, generation } => {
                self.removed.remove(&identity);
                self.restored.insert(identity, generation);
            }
            Record::Rolls(rolls) => {
                if rolls.begins_with(&self.rolls) {
                    self.rolls = rolls;
                }
            }
            Record::Advert(_) => {}
        }
    }

    /// Signs lists with this list key from now on, and not with the realm's key.
    pub fn set_list_signer(&mut self, signer: ListSigner) {
        self.list_signer = Some(signer);
    }

    /// Sets after how many seconds the next list is due.
    pub fn set_list_interval(&mut self, seconds: u64) {
        self.list_interval = seconds;
    }

    /// Signs with this key of the realm too, once it rules.
    pub fn add_key(&mut self, key: SigningKey) {
        self.keys.push(key);
    }

    /// The rolls of the realm's key.
    #[must_use]
    pub fn rolls(&self) -> &Rolls {
        &self.rolls
    }

    /// The keys that are here and are neither the realm's first nor one that it rolled to.
    pub fn foreign_keys(&self) -> impl Iterator<Item = RealmKey> {
        let keys = self.rolls.keys(&self.realm).unwrap_or_else(|_| vec![self.realm]);
        let own = self.keys.iter().map(|key| RealmKey(key.verifying_key().to_bytes()));
        own.filter(move |key| !keys.contains(key))
    }

    /// The realm's key that rules at the Unix second `now`, if it is here, with the rolls up to it.
    fn key(&self, now: u64) -> Option<(&SigningKey, Rolls)> {
        let rolls = self.rolls.up_to(now);
        let ruling = rolls.last_key(&self.realm).ok()?;
        let key = self.keys.iter().find(|key| key.verifying_key().to_bytes() == ruling.0)?;
        Some((key, rolls))
    }

    /// Whether the realm's key of the Unix second `now` is here, without which nobody is admitted or renewed.
    #[must_use]
    pub fn has_realm_key(&self, now: u64) -> bool {
        self.key(now).is_some()
    }

    /// A node's identity, and those that took its place since.
    #[must_use]
    pub fn successors(&self, identity: &IdentityKey) -> Vec<IdentityKey> {
        let mut all = vec![*identity];
        while let Some(next) = all.last().and_then(|last| self.successors.get(last)).filter(|next| !all.contains(next))
        {
            all.push(*next);
        }
        all
    }

    /// The latest certificate of each list key. One of an earlier generation than [`Registrar::generation`] is revoked.
    pub fn list_keys(&self) -> impl Iterator<Item = &ListKey> {
        self.list_keys.values().map(Signed::object)
    }

    /// The certificate of a list key.
    #[must_use]
    pub fn list_key(&self, key: &[u8; 32]) -> Option<&Signed<ListKey>> {
        self.list_keys.get(key)
    }

    /// Sets whether members that ask get later memberships, without an order of the operator for each.
    pub fn set_renews(&mut self, renews: bool) {
        self.renews = renews;
    }

    /// The realm's public key.
    #[must_use]
    pub fn realm(&self) -> RealmKey {
        self.realm
    }

    /// Every membership, the newest of each node.
    pub fn members(&self) -> impl Iterator<Item = &Membership> {
        self.members.values().map(Signed::object)
    }

    /// One-time keys that were used, and by whom; nobody, if the invitation was withdrawn.
    pub fn used(&self) -> impl Iterator<Item = (&[u8; 32], Option<IdentityKey>)> {
        self.used.iter().map(|(key, by)| (key, *by))
    }

    /// The current list of removed nodes, if any was ever removed.
    #[must_use]
    pub fn revocations(&self) -> Option<&Signed<RevocationList>> {
        self.revocations.as_ref()
    }

    /// An invitation, whose one-time key comes from `secret`: uniformly random, and used for nothing else.
    ///
    /// # Errors
    /// If a name or prefix belongs to a member, or something has no encoding.
    pub fn invite(&self, invitee: Invitee, secret: Seed, now: UnixTime) -> Result<Token, InviteError> {
        self.invite_instead_of(None, invitee, secret, now)
    }

    /// The same to names and prefixes of a member that is about to be removed.
    ///
    /// # Errors
    /// As [`Registrar::invite`].
    pub fn invite_instead_of(
        &self,
        member: Option<IdentityKey>,
        invitee: Invitee,
        secret: Seed,
        now: UnixTime,
    ) -> Result<Token, InviteError> {
        let Invitee { mut grants, not_after, membership, servers } = invitee;
        grants.names.sort_unstable();
        grants.prefixes.sort_unstable();
        if let Some((name, owner)) = self.taken_name(&grants, member, now) {
            return Err(InviteError::Name(name, owner));
        }
        if let Some((prefix, owner)) = self.taken_prefix(&grants, member, now) {
            return Err(InviteError::Prefix(prefix, owner));
        }
        let issued = now.secs();
        let (realm_key, rolls) = self.key(issued).ok_or(InviteError::OffLine)?;
        let key = SigningKey::from_seed(&secret).verifying_key().to_bytes();
        let exchange = exchange(realm_key, &key).public();
        let invitation =
            Invitation { realm: self.realm, key, exchange, grants, issued, not_after, membership, servers, rolls };
        Ok(Token::sign(&invitation, secret, realm_key)?)
    }

    fn taken_name(&self, grants: &Grants, except: Option<IdentityKey>, now: UnixTime) -> Option<(Name, IdentityKey)> {
        let taken =
            |name: &&Name| self.names.get(*name).copied().filter(|o| Some(*o) != except && self.is_live(o, now));
        grants.names.iter().find_map(|name| Some((name.clone(), taken(&name)?)))
    }

    fn taken_prefix(
        &self,
        grants: &Grants,
        except: Option<IdentityKey>,
        now: UnixTime,
    ) -> Option<(wayleave_core::Prefix, IdentityKey)> {
        let taken = |prefix| self.prefixes.holder(prefix).filter(|o| Some(*o) != except && self.is_live(o, now));
        grants.prefixes.iter().find_map(|prefix| Some((*prefix, taken(prefix)?)))
    }

    /// Another live member than `identity` has this Noise key.
    fn has_noise(&self, noise: &DhPublic, except: &IdentityKey, now: UnixTime) -> bool {
        self.noise.get(&noise.to_bytes()).is_some_and(|owner| owner != except && self.is_live(owner, now))
    }

    /// Whether a node was removed, also if its membership has ended since and the list no longer has it.
    #[must_use]
    pub fn is_revoked(&self, identity: &IdentityKey) -> bool {
        self.removed.contains_key(identity)
    }

    fn is_live(&self, identity: &IdentityKey, now: UnixTime) -> bool {
        let member = self.members.get(identity);
        member.is_some_and(|member| member.object().not_after >= now.secs()) && !self.is_revoked(identity)
    }

    fn insert(&mut self, membership: Signed<Membership>) {
        let object = membership.object();
        let identity = object.identity;
        for name in &object.grants.names {
            self.names.insert(name.clone(), identity);
        }
        for prefix in &object.grants.prefixes {
            self.prefixes.insert(*prefix, identity);
        }
        self.noise.insert(object.noise.to_bytes(), identity);
        let until = self.last_until.entry(identity).or_default();
        *until = object.not_after.max(*until);
        if let Some(removed) = self.removed.get_mut(&identity) {
            // Another process removed it before this was written.
            removed.until = removed.until.max(object.not_after);
        }
        self.members.insert(identity, membership);
    }

    fn join(&mut self, link: u64, request: u32, octets: &[u8], now: Now) {
        let signed = Signed::<JoinRequest>::decode(octets).map_err(JoinError::Malformed);
        let identity = signed.as_ref().ok().map(|signed| signed.object().identity);
        match signed.and_then(|signed| self.admit(link, request, &signed, now.unix)) {
            Ok(Some(membership)) => {
                self.outputs.push_back(RegistrarOutput::Reply { link, request, answer: Ok(membership) });
            }
            Ok(None) => {}
            Err(error) => {
                self.outputs.push_back(RegistrarOutput::Reply { link, request, answer: Err(error) });
                self.outputs.push_back(RegistrarOutput::Event(RegistrarEvent::Refused { identity, error }));
            }
        }
    }

    /// The membership, if the same node had it already by the same token: its answer was lost.
    fn admit(
        &mut self,
        link: u64,
        request: u32,
        signed: &Signed<JoinRequest>,
        now: UnixTime,
    ) -> Result<Option<Signed<Membership>>, JoinError> {
        if self.pending.len() >= MAX_PENDING {
            return Err(JoinError::Busy);
        }
        let (key, rolls) = self.key(now.secs()).ok_or(JoinError::OffLine)?;
        let key = key.clone();
        let join = JoinRequest::verify(signed, &self.realm, &key)?;
        let invitation = join.invitation.object();
        if self.is_revoked(&join.identity) {
            return Err(JoinError::Revoked);
        }
        // Before the invitation's end is looked at: who joined by it in time gets the membership again also later, if the answer was lost.
        let is_of =
            |(_, (key, until)): &(&IdentityKey, &([u8; 32], u64))| *key == invitation.key && *until >= now.secs();
        let rolled = self.rolls_of_nodes.iter().find(is_of).map(|(from, _)| *from);
        match self.used.get(&invitation.key) {
            Some(None) if rolled.is_some() => {}
            Some(None) => return Err(JoinError::Withdrawn),
            Some(Some(by)) if *by != join.identity => return Err(JoinError::Used),
            Some(Some(by)) => {
                let member = self.members.get(by).filter(|member| member.object().noise == join.noise);
                let is_pending = self
                    .pending
                    .values()
                    .any(|pending| matches!(pending, Pending::Admission { key, .. } if *key == invitation.key));
                return match member {
                    // It is not stored yet: after a crash the token would count as unused, and could admit another node as well.
                    _ if is_pending => Err(JoinError::Busy),
                    Some(member) => Ok(Some(member.clone())),
                    None => Err(JoinError::Used),
                };
            }
            None => {}
        }
        if now.secs() > invitation.not_after {
            return Err(JoinError::Expired);
        }
        if self.lost_before.is_some_and(|start| invitation.issued <= start) {
            return Err(JoinError::RecordsLost);
        }
        if self.members.contains_key(&join.identity) {
            return Err(JoinError::Member);
        }
        let grants = &invitation.grants;
        // Who was removed since it asked has no place to give.
        if rolled.is_some_and(|from| self.is_revoked(&from)) {
            return Err(JoinError::Revoked);
        }
        if self.taken_name(grants, rolled, now).is_some() || self.taken_prefix(grants, rolled, now).is_some() {
            return Err(JoinError::Taken);
        }
        if self.has_noise(&join.noise, &rolled.unwrap_or(join.identity), now) {
            return Err(JoinError::NoiseTaken);
        }
        // Other keys are for the time of the ones of before.
        let times = rolled
            .and_then(|from| self.members.get(&from))
            .map(|from| (from.object().not_before, from.object().not_after));
        let (not_before, not_after) =
            times.unwrap_or_else(|| (now.secs(), now.secs().saturating_add(invitation.membership)));
        let membership = Membership {
            realm: self.realm,
            number: 1,
            identity: join.identity,
            noise: join.noise,
            grants: grants.clone(),
            not_before,
            not_after,
            rolls,
        };
        let membership = Signed::sign(&membership, &key).map_err(JoinError::Malformed)?;
        let used = Record::Used { key: invitation.key, by: Some(join.identity) };
        let mut records = Vec::new();
        let mut list = None;
        if let Some(from) = rolled {
            // Names and prefixes have one member: the keys of before are removed with the same batch.
            self.remove_rolled(from, now);
            let signed = self.sign_list(&[from], now).map_err(|_| {
                self.removed.remove(&from);
                JoinError::Busy
            })?;
            self.successors.insert(from, join.identity);
            // Before the use of the invitation, which counts as withdrawn for everybody else.
            records.push(Record::Rolled { from, to: join.identity });
            self.rolls_of_nodes.remove(&from);
            self.rolled.insert(join.identity, now.secs());
            list = Some(Record::Revocations(signed));
        }
        records.extend([used, Record::Membership(membership.clone())].into_iter().chain(list));
        // Reserved at once, so that of two requests that come together one alone is admitted.
        self.used.insert(invitation.key, Some(join.identity));
        self.insert(membership.clone());
        self.persist(records, Pending::Admission { link, request, key: invitation.key, membership, rolled });
        Ok(None)
    }

    fn persist(&mut self, records: Vec<Record>, pending: Pending) {
        let id = self.next;
        self.next += 1;
        self.pending.insert(id, pending);
        self.outputs.push_back(RegistrarOutput::Persist { id, records });
    }

    fn renew(&mut self, identity: &IdentityKey, lasts: u64, now: UnixTime) -> Result<(), &'static str> {
        let before = self.members.get(identity).ok_or("no such member")?.object();
        if self.is_revoked(identity) {
            return Err("the node is revoked");
        }
        let (grants, own) = (&before.grants, Some(*identity));
        if self.taken_name(grants, own, now).is_some() || self.taken_prefix(grants, own, now).is_some() {
            return Err("another member has one of the node's names or prefixes");
        }
        if self.has_noise(&before.noise, identity, now) {
            return Err("another member has the node's Noise key");
        }
        let (key, rolls) = self.key(now.secs()).ok_or(OFF_LINE)?;
        let membership = Membership { rolls, ..later(before, lasts, now) };
        let membership = Signed::sign(&membership, key).map_err(|_| "a membership cannot last that long")?;
        self.give(membership, None);
        Ok(())
    }

    fn give(&mut self, membership: Signed<Membership>, requester: Option<(u64, u32)>) {
        self.insert(membership.clone());
        let records = vec![Record::Membership(membership.clone())];
        self.persist(records, Pending::Renewal { membership, requester });
    }

    /// An invitation for the node `peer`, which has a live membership, to what it was granted and for as long as that lasts.
    fn roll(
        &mut self,
        peer: &IdentityKey,
        key: [u8; 32],
        servers: Vec<Server>,
        now: UnixTime,
    ) -> Result<Signed<Invitation>, JoinError> {
        if self.is_revoked(peer) {
            return Err(JoinError::Revoked);
        }
        let member = self.members.get(peer).ok_or(JoinError::NotMember)?.object();
        if now.secs() >= member.not_after {
            return Err(JoinError::Expired);
        }
        if self.used.contains_key(&key) {
            return Err(JoinError::Used);
        }
        // Each roll stays on the list as long as the membership: nobody fills it.
        if self.rolled.get(peer).is_some_and(|at| now.secs() < at.saturating_add(ROLL_AGAIN)) {
            return Err(JoinError::Busy);
        }
        let invited = self.invited.entry(*peer).or_default();
        invited.retain(|at| now.secs() < at.saturating_add(ROLL));
        if invited.len() >= MAX_INVITED {
            return Err(JoinError::Busy);
        }
        let (realm_key, rolls) = self.key(now.secs()).ok_or(JoinError::OffLine)?;
        let not_after = now.secs() + ROLL;
        let invitation = Invitation {
            realm: self.realm,
            key,
            exchange: exchange(realm_key, &key).public(),
            grants: member.grants.clone(),
            issued: now.secs(),
            not_after,
            membership: member.not_after - now.secs(),
            servers,
            rolls,
        };
        let invitation = Signed::sign(&invitation, realm_key).map_err(JoinError::Malformed)?;
        self.invited.entry(*peer).or_default().push(now.secs());
        self.rolls_of_nodes.insert(*peer, (key, not_after));
        // Good while it is remembered as this member's latest: by itself it admits nobody, after a removal or a restart too.
        self.used.insert(key, None);
        self.persist(vec![Record::Used { key, by: None }], Pending::Withdrawal);
        Ok(invitation)
    }

    /// The membership for a node that asks for a later one than `number`, before its last one has ended: what it was granted before,
    /// for as long as before. Nothing is signed anew before half of the last one is over, however often it asks.
    fn renewal(
        &mut self,
        requester: (u64, u32),
        peer: &IdentityKey,
        number: u64,
        now: UnixTime,
    ) -> Result<Option<Signed<Membership>>, JoinError> {
        if self.pending.len() >= MAX_PENDING {
            return Err(JoinError::Busy);
        }
        if self.is_revoked(peer) {
            return Err(JoinError::Revoked);
        }
        let signed = self.members.get(peer).ok_or(JoinError::NotMember)?;
        let before = signed.object();
        let is_of_peer = |pending: &Pending| matches!(pending, Pending::Renewal { membership, .. } if membership.object().identity == *peer);
        // Before the membership is compared: one that waits to be stored is the member's already, and would be handed out undurable.
        if self.pending.values().any(is_of_peer) {
            return Err(JoinError::Busy);
        }
        // What has ended does not renew itself: the operator orders it, or invites anew.
        if now.secs() > before.not_after {
            return Err(JoinError::Expired);
        }
        if before.number > number || now.secs() < before.renewable_at() {
            return Ok(Some(signed.clone()));
        }
        if !self.renews {
            return Err(JoinError::ByHand);
        }
        let lasts = before.not_after - before.not_before;
        let (key, rolls) = self.key(now.secs()).ok_or(JoinError::OffLine)?;
        let membership = Membership { rolls, ..later(before, lasts, now) };
        let membership = Signed::sign(&membership, key).map_err(JoinError::Malformed)?;
        self.give(membership, Some(requester));
        Ok(None)
    }

    fn persisted(&mut self, id: u64) {
        let event = match self.pending.remove(&id) {
            Some(Pending::Admission { link, request, membership, rolled, .. }) => {
                let answer = Ok(membership.clone());
                self.outputs.push_back(RegistrarOutput::Reply { link, request, answer });
                match rolled {
                    Some(from) => RegistrarEvent::Rolled { from, to: membership.object().identity },
                    None => RegistrarEvent::Admitted(membership),
                }
            }
            Some(Pending::Revocation(list)) => RegistrarEvent::Revoked(list),
            Some(Pending::ListKeys(certificates)) => {
                let events = certificates.into_iter().map(RegistrarEvent::ListKey);
                self.outputs.extend(events.map(RegistrarOutput::Event));
                return;
            }
            Some(Pending::Renewal { membership, requester }) => {
                if let Some((link, request)) = requester {
                    let answer = Ok(membership.clone());
                    self.outputs.push_back(RegistrarOutput::Reply { link, request, answer });
                }
                RegistrarEvent::Renewed(membership)
            }
            Some(Pending::KeyRoll(roll)) => RegistrarEvent::KeyRolled(roll),
            Some(Pending::Withdrawal) | None => return,
        };
        self.outputs.push_back(RegistrarOutput::Event(event));
    }
}

impl Machine for Registrar {
    type Input = RegistrarInput;
    type Output = RegistrarOutput;

    fn handle(&mut self, input: RegistrarInput, now: Now) {
        let done = match input {
            RegistrarInput::Join { link, request, octets } => {
                self.join(link, request, &octets, now);
                Ok(())
            }
            RegistrarInput::Renewal { link, request, peer, number } => {
                let answer = match self.renewal((link, request), &peer, number, now.unix) {
                    Ok(None) => return,
                    Ok(Some(membership)) => Ok(membership),
                    Err(error) => {
                        let event = RegistrarEvent::NotRenewed { identity: peer, error };
                        self.outputs.push_back(RegistrarOutput::Event(event));
                        Err(error)
                    }
                };
                self.outputs.push_back(RegistrarOutput::Reply { link, request, answer });
                Ok(())
            }
            RegistrarInput::Roll { link, request, peer, key, servers } => {
                let answer = self.roll(&peer, key, servers, now.unix);
                if let Err(error) = answer {
                    let event = RegistrarEvent::NotRenewed { identity: peer, error };
                    self.outputs.push_back(RegistrarOutput::Event(event));
                }
                self.outputs.push_back(RegistrarOutput::Invited { link, request, answer });
                Ok(())
            }
            RegistrarInput::Persisted(id) => {
                self.persisted(id);
                Ok(())
            }
            RegistrarInput::Records(records) => {
                records.into_iter().for_each(|record| self.restore(record));
                Ok(())
            }
            _ if self.pending.len() >= MAX_PENDING => Err("too much waits to be stored"),
            RegistrarInput::Revoke(identity) => self.revoke(identity, now.unix),
            RegistrarInput::Renew(identity, lasts) => self.renew(&identity, lasts, now.unix),
            RegistrarInput::ListKey { key, lasts } => self.add_list_key(key, lasts, now.unix),
            RegistrarInput::RevokeListKey { key, restored } => self.revoke_list_key(&key, &restored, now.unix),
            RegistrarInput::RollKey { next, from, until } => self.roll_key(next, from, until, now.unix),
            RegistrarInput::NewList => {
                self.new_list(now.unix);
                Ok(())
            }
            RegistrarInput::LeftOut(identity) => {
                self.left_out(identity, now.unix);
                Ok(())
            }
            RegistrarInput::List(list) => self.take_list(*list, true, now.unix),
            RegistrarInput::Heard(list) => {
                self.hear(*list, now.unix);
                Ok(())
            }
            RegistrarInput::Withdraw(key) if self.used.contains_key(&key) => Err("the token was used already"),
            RegistrarInput::Withdraw(key) => {
                // Used from here on, not from when it is stored: somebody may join with it in between.
                self.used.insert(key, None);
                self.persist(vec![Record::Used { key, by: None }], Pending::Withdrawal);
                Ok(())
            }
        };
        if let Err(reason) = done {
            self.outputs.push_back(RegistrarOutput::Event(RegistrarEvent::Failed(reason)));
        }
        self.reconcile(now.unix);
    }

    fn handle_timeout(&mut self, now: Now) {
        self.refresh(now);
    }

    fn poll(&mut self) -> Option<RegistrarOutput> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        self.list_at
    }
}

/// The membership after `before`, from now on for so many seconds. Its number is at least the time, so that one which is made from old
/// records is not older than what the member has.
fn later(before: &Membership, lasts: u64, now: UnixTime) -> Membership {
    Membership {
        number: before.number.saturating_add(1).max(now.secs()),
        not_before: now.secs(),
        not_after: now.secs().saturating_add(lasts),
        ..before.clone()
    }
}

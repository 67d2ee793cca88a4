//! The operator's side of a realm: it invites, admits, renews and revokes. It has the realm's key.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use wayleave_core::wire::Malformed;
use wayleave_core::{IdentityKey, InnerPrefixes, Instant, Machine, Now, UnixTime};
use wayleave_crypto::dh::DhPublic;
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::Signed;

use super::invitation::exchange;
use super::{Grants, Invitation, JoinError, JoinRequest, Membership, Name, RealmKey, RevocationList, Server, Token};
use crate::store::{Record, Store};

/// Admissions, renewals and revocations that wait to be durable.
const MAX_PENDING: usize = 256;
/// A removed node stays on the list for so many seconds after its membership ended: others' clocks may be behind.
const LISTED_AFTER_END: u64 = 86_400;

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
    /// The operator removes a node.
    Revoke(IdentityKey),
    /// The operator withdraws an invitation by its one-time key.
    Withdraw([u8; 32]),
    /// The operator gives a member a new membership of so many seconds.
    Renew(IdentityKey, u64),
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
    /// A node asked for a later membership, and gets none.
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
    },
    Revocation(Signed<RevocationList>),
    /// Who asked for it, unless the operator ordered it.
    Renewal {
        membership: Signed<Membership>,
        requester: Option<(u64, u32)>,
    },
    Withdrawal,
}

/// The operator's side as a machine.
pub struct Registrar {
    key: SigningKey,
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
    /// Everybody who was on a list, also if the current one has no need of them.
    removed: BTreeSet<IdentityKey>,
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
        let realm = RealmKey(key.verifying_key().to_bytes());
        let lost_before = (store == Store::Lost).then(|| now.secs());
        let mut registrar = Self {
            key,
            realm,
            members: BTreeMap::new(),
            last_until: BTreeMap::new(),
            names: BTreeMap::new(),
            prefixes: InnerPrefixes::default(),
            noise: BTreeMap::new(),
            used: BTreeMap::new(),
            revocations: None,
            removed: BTreeSet::new(),
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
            Record::Revocations(list) => {
                self.removed.extend(&list.object().revoked);
                self.revocations = Some(list);
            }
            Record::Used { key, by } => {
                self.used.insert(key, by);
            }
            Record::Advert(_) => {}
        }
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
        let Invitee { mut grants, not_after, membership, servers } = invitee;
        grants.names.sort_unstable();
        grants.prefixes.sort_unstable();
        if let Some((name, owner)) = self.taken_name(&grants, None, now) {
            return Err(InviteError::Name(name, owner));
        }
        if let Some((prefix, owner)) = self.taken_prefix(&grants, None, now) {
            return Err(InviteError::Prefix(prefix, owner));
        }
        let issued = now.secs();
        let key = SigningKey::from_seed(&secret).verifying_key().to_bytes();
        let exchange = exchange(&self.key, &key).public();
        let invitation =
            Invitation { realm: self.realm, key, exchange, grants, issued, not_after, membership, servers };
        Ok(Token::sign(&invitation, secret, &self.key)?)
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
        self.removed.contains(identity)
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
        let join = JoinRequest::verify(signed, &self.key)?;
        let invitation = join.invitation.object();
        if self.is_revoked(&join.identity) {
            return Err(JoinError::Revoked);
        }
        // Before the invitation's end is looked at: who joined by it in time gets the membership again also later, if the answer was lost.
        match self.used.get(&invitation.key) {
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
        if self.taken_name(grants, None, now).is_some() || self.taken_prefix(grants, None, now).is_some() {
            return Err(JoinError::Taken);
        }
        if self.has_noise(&join.noise, &join.identity, now) {
            return Err(JoinError::NoiseTaken);
        }
        let membership = Membership {
            realm: self.realm,
            number: 1,
            identity: join.identity,
            noise: join.noise,
            grants: grants.clone(),
            not_before: now.secs(),
            not_after: now.secs().saturating_add(invitation.membership),
        };
        let membership = Signed::sign(&membership, &self.key).map_err(JoinError::Malformed)?;
        // Reserved at once, so that of two requests that come together one alone is admitted.
        self.used.insert(invitation.key, Some(join.identity));
        self.insert(membership.clone());
        let used = Record::Used { key: invitation.key, by: Some(join.identity) };
        let records = vec![used, Record::Membership(membership.clone())];
        self.persist(records, Pending::Admission { link, request, key: invitation.key, membership });
        Ok(None)
    }

    fn persist(&mut self, records: Vec<Record>, pending: Pending) {
        let id = self.next;
        self.next += 1;
        self.pending.insert(id, pending);
        self.outputs.push_back(RegistrarOutput::Persist { id, records });
    }

    fn revoke(&mut self, identity: IdentityKey, now: UnixTime) -> Result<(), &'static str> {
        if self.is_revoked(&identity) {
            return Err("the node is revoked already");
        }
        let before = self.revocations.as_ref().map(Signed::object);
        // Nobody takes one in whose membership has ended. Of one that is not known here it may last.
        let is_over = |identity: &IdentityKey| {
            self.last_until.get(identity).is_some_and(|until| until.saturating_add(LISTED_AFTER_END) < now.secs())
        };
        // The one that is removed now is on this list in any case: from the stored lists it is known who was ever removed.
        let mut revoked: Vec<IdentityKey> = self.removed.iter().copied().filter(|other| !is_over(other)).collect();
        revoked.push(identity);
        revoked.sort_unstable();
        // At least the time, so that a list made after the file was lost is not older than the one that servers hold.
        let number = before.map_or(0, |list| list.number + 1).max(now.secs());
        let list = RevocationList { realm: self.realm, number, issued: now.secs(), revoked };
        let list = Signed::sign(&list, &self.key).map_err(|_| "the list of revoked nodes is full")?;
        // In force before it is stored, so that the node gets no later membership meanwhile.
        self.removed.insert(identity);
        self.revocations = Some(list.clone());
        self.persist(vec![Record::Revocations(list.clone())], Pending::Revocation(list));
        Ok(())
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
        let membership = later(before, lasts, now);
        let membership = Signed::sign(&membership, &self.key).map_err(|_| "a membership cannot last that long")?;
        self.give(membership, None);
        Ok(())
    }

    fn give(&mut self, membership: Signed<Membership>, requester: Option<(u64, u32)>) {
        self.insert(membership.clone());
        let records = vec![Record::Membership(membership.clone())];
        self.persist(records, Pending::Renewal { membership, requester });
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
        let membership = Signed::sign(&later(before, lasts, now), &self.key).map_err(JoinError::Malformed)?;
        self.give(membership, Some(requester));
        Ok(None)
    }

    fn persisted(&mut self, id: u64) {
        let event = match self.pending.remove(&id) {
            Some(Pending::Admission { link, request, membership, .. }) => {
                let answer = Ok(membership.clone());
                self.outputs.push_back(RegistrarOutput::Reply { link, request, answer });
                RegistrarEvent::Admitted(membership)
            }
            Some(Pending::Revocation(list)) => RegistrarEvent::Revoked(list),
            Some(Pending::Renewal { membership, requester }) => {
                if let Some((link, request)) = requester {
                    let answer = Ok(membership.clone());
                    self.outputs.push_back(RegistrarOutput::Reply { link, request, answer });
                }
                RegistrarEvent::Renewed(membership)
            }
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
    }

    fn handle_timeout(&mut self, _: Now) {}

    fn poll(&mut self) -> Option<RegistrarOutput> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        None
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

//! Who is removed, by whom, and the lists that say so.

use std::time::Duration;

use wayleave_core::{IdentityKey, Now, UnixTime};
use wayleave_crypto::signed::Signed;

use super::{OFF_LINE, Pending, Registrar, RegistrarEvent, RegistrarOutput};
use crate::realm::key_roll::Rolls;
use crate::realm::{ListError, ListSigner, MAX_MEMBERSHIP, Removal, RevocationList};
use crate::store::Record;

/// A removed node stays on the list for so many seconds after its membership ended: others' clocks may be behind.
const LISTED_AFTER_END: u64 = 86_400;
/// Nodes that are no members by the records, and that lists of one signing key remove: records from a backup lack the latest members, and whoever has
/// stolen a list key invents any number.
const MAX_STRANGERS_OF_KEY: usize = 1_024;
/// The same of all keys together: whoever has stolen the realm's key has any number of list keys.
const MAX_STRANGERS: usize = 4_096;
/// What an operator reads whose realm removed more nodes than a list has room for.
const FULL: &str = "the list of revoked nodes is full";

/// Who says that a node is removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// The operator, here.
    Ordered,
    /// The node has other keys since.
    Rolled,
    /// It was admitted by an invitation that was withdrawn meanwhile.
    Withdrawn,
    /// A list that was signed elsewhere, by this key.
    Heard([u8; 32]),
    /// A list of records that do not say whether it was signed here, by this key.
    Unsaid([u8; 32]),
}

/// What is known of a node that was removed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Removed {
    /// The last Unix second of any membership of it.
    pub(super) until: u64,
    /// Who said so first, or the operator.
    pub(super) origin: Origin,
}

impl Removed {
    /// Whether this key said so, and the operator did not.
    pub(super) fn is_by(&self, by: &[u8; 32]) -> bool {
        matches!(self.origin, Origin::Heard(key) | Origin::Unsaid(key) if key == *by)
    }
}

/// What became of the removals of a list.
#[derive(Default)]
struct AcceptedRemovals {
    /// Who was not removed before.
    new: Vec<IdentityKey>,
    /// Whether it says of anybody what was not known.
    is_new: bool,
    /// How many were left out: they are no members by the records, and too many.
    left: usize,
}

/// The key that a list says it is signed by.
pub(super) fn signer(list: &RevocationList) -> [u8; 32] {
    let realm = || list.rolls.up_to(list.issued).iter().last().map_or(list.realm.0, |roll| roll.next.0);
    list.by.as_ref().map_or_else(realm, |by| by.object().key)
}

impl Registrar {
    /// The nodes that lists of this key were the first to remove, and the operator did not.
    #[must_use]
    pub fn removed_by(&self, key: &[u8; 32]) -> Vec<IdentityKey> {
        let is_heard = |removed: &super::Removed| removed.origin == Origin::Heard(*key);
        self.removed.iter().filter(|(_, removed)| is_heard(removed)).map(|(identity, _)| *identity).collect()
    }

    /// The realm's own list that begins the present generation. Where a reader refuses a later one since it leaves somebody out, this one comes
    /// first: what is signed by the realm's key may leave out anybody.
    #[must_use]
    pub fn opening(&self) -> Option<&Signed<RevocationList>> {
        self.opening.as_ref().filter(|list| !self.is_void(list.object()))
    }

    /// The current list, unless a key is behind it that was stolen.
    pub(super) fn known_list(&self) -> Option<&RevocationList> {
        self.revocations.as_ref().map(Signed::object).filter(|list| !self.is_void(list))
    }

    /// Whether a key is behind a list that was stolen, or that is none of the realm's by what is known here.
    fn is_void(&self, list: &RevocationList) -> bool {
        let is_cut = match &list.by {
            Some(by) => self.is_cut(&by.object().base.rolls),
            None => self.is_cut(&list.rolls.up_to(list.issued)),
        };
        is_cut || !self.rolls.begins_with(&list.rolls)
    }

    /// Whether the time of the key after these rolls ended at once, as that of one that was stolen, or it is another realm key than ours.
    pub(super) fn is_cut(&self, rolls: &Rolls) -> bool {
        !self.rolls.begins_with(rolls) || self.rolls.iter().skip(rolls.len()).any(|roll| roll.until == roll.from)
    }

    /// Takes in a list of the records: one that was signed elsewhere, or one that does not say.
    pub(super) fn restore_list(&mut self, list: Signed<RevocationList>, is_heard: bool) {
        self.accept_removals(list.object(), is_heard);
        self.put(list);
    }

    /// Has a list in force that is the latest: of several processes the one that wrote last need not know most.
    fn put(&mut self, list: Signed<RevocationList>) {
        if self.is_void(list.object()) {
            return;
        }
        self.open(&list);
        if self.known_list().is_none_or(|known| known.order() < list.object().order()) {
            self.revocations = Some(list);
        }
    }

    /// Remembers the realm's own list that begins a generation, or the time of another key.
    pub(super) fn open(&mut self, list: &Signed<RevocationList>) {
        let of = |list: &RevocationList| (list.rolls.up_to(list.issued).len(), list.generation);
        let (object, known) = (list.object(), self.opening().map_or((0, 0), |known| of(known.object())));
        if object.by.is_none() && of(object) > known {
            self.opening = Some(list.clone());
        }
    }

    /// The operator removed a node: it and all that took its place since, in whatever order processes wrote of both.
    pub(super) fn restore_order(&mut self, identity: IdentityKey, until: u64) {
        for node in self.successors(&identity) {
            let last = self.last_until.get(&node).copied().unwrap_or(0);
            let removed = self.removed.entry(node).or_insert(Removed { until: 0, origin: Origin::Ordered });
            removed.origin = Origin::Ordered;
            removed.until = removed.until.max(until).max(last);
        }
    }

    /// A node has other keys. If it was removed before that was written, by another process, the new ones are removed too.
    pub(super) fn restore_roll(&mut self, from: IdentityKey, to: IdentityKey) {
        self.successors.insert(from, to);
        let until = |node| self.last_until.get(&node).copied().unwrap_or(0);
        let (until, next) = (until(from), until(to));
        if self.removed.get(&to).is_some_and(|removed| removed.origin == Origin::Withdrawn) {
            // Each invitation for other keys counts as withdrawn, for everybody but its node.
            self.removed.remove(&to);
        }
        match self.removed.get(&from).copied() {
            None => {
                self.removed.insert(from, Removed { until, origin: Origin::Rolled });
            }
            Some(Removed { origin: Origin::Rolled, .. }) => {}
            Some(removed) => {
                let until = removed.until.max(next);
                self.removed.insert(to, Removed { until, ..removed });
            }
        }
    }

    /// A one-time key was used, or withdrawn: where both, whoever joined with it is removed, unless it has an invitation for other keys.
    pub(super) fn restore_used(&mut self, key: [u8; 32], by: Option<IdentityKey>) {
        let before = self.used.get(&key).copied();
        let joined = match (before, by) {
            (Some(None), Some(by)) | (Some(Some(by)), None) => Some(by),
            _ => None,
        };
        self.used.insert(key, by.or(before.flatten()));
        if let Some(node) = joined.filter(|node| !self.successors.values().any(|to| to == node)) {
            let until = self.last_until.get(&node).copied().unwrap_or(0);
            self.removed.entry(node).or_insert(Removed { until, origin: Origin::Withdrawn });
        }
    }

    /// Whoever is on a list is removed here, and who took its place by its keys, if a list that was signed elsewhere removes it anew.
    fn accept_removals(&mut self, list: &RevocationList, is_heard: bool) -> AcceptedRemovals {
        let by = signer(list);
        let origin = if is_heard { Origin::Heard(by) } else { Origin::Unsaid(by) };
        let mut accepted = AcceptedRemovals::default();
        let mut allowance = None;
        for removal in &list.revoked {
            let (identity, end) = (removal.identity, list.end(removal));
            if self.restored.get(&identity).is_some_and(|generation| list.generation < *generation) {
                continue;
            }
            let is_known = self.removed.contains_key(&identity) || self.members.contains_key(&identity);
            let is_believed = is_known || self.take_allowance(&by, &mut allowance);
            let is_anew = match self.removed.get_mut(&identity) {
                Some(removed) => {
                    // A list that does not say until when says a later second each time.
                    let is_later =
                        if removal.until == 0 { removed.until + LISTED_AFTER_END } else { removed.until } < end;
                    accepted.is_new |= is_later;
                    let was_rolled = removed.origin == Origin::Rolled;
                    if is_later {
                        removed.until = end;
                    }
                    // Until when the node's own change of keys has it on lists is known: whoever says more ordered it.
                    is_heard && was_rolled && is_later && removal.until != 0
                }
                None if is_believed => {
                    self.removed.insert(identity, Removed { until: end, origin });
                    self.rolls_of_nodes.remove(&identity);
                    accepted.new.push(identity);
                    accepted.is_new = true;
                    true
                }
                None => {
                    accepted.left += 1;
                    false
                }
            };
            if !is_anew {
                continue;
            }
            for node in self.successors(&identity).into_iter().skip(1) {
                let until = self.last_until.get(&node).copied().unwrap_or(0).max(end);
                if !self.is_revoked(&node) {
                    self.removed.insert(node, Removed { until, origin });
                    accepted.new.push(node);
                    accepted.is_new = true;
                }
            }
        }
        accepted
    }

    /// Whether lists of this key may remove one more that is no member by the records; `allowance` is counted at the first.
    fn take_allowance(&self, by: &[u8; 32], allowance: &mut Option<usize>) -> bool {
        let left = allowance.get_or_insert_with(|| {
            let strangers = self.removed.iter().filter(|(identity, _)| !self.members.contains_key(*identity));
            let (all, of_key) = strangers
                .fold((0, 0), |(all, of_key), (_, removed)| (all + 1, of_key + usize::from(removed.is_by(by))));
            MAX_STRANGERS.saturating_sub(all).min(MAX_STRANGERS_OF_KEY.saturating_sub(of_key))
        });
        let is_allowed = *left > 0;
        *left = left.saturating_sub(1);
        is_allowed
    }

    /// Until when a membership of the node may be in force somewhere. Records from a backup do not know of a renewal since, and one that the
    /// operator ordered is of any length.
    fn end_of(&self, identity: &IdentityKey, now: UnixTime) -> u64 {
        let longest = now.secs() + MAX_MEMBERSHIP;
        let (Some(member), Some(last)) = (self.members.get(identity), self.last_until.get(identity)) else {
            return longest;
        };
        let lasts = member.object().not_after - member.object().not_before;
        if self.renews { (now.secs() + lasts).max(*last) } else { longest.max(*last) }
    }

    /// Has the operator's order in force.
    fn remove_by_order(&mut self, identity: IdentityKey, now: UnixTime) -> Record {
        let until = self.end_of(&identity, now);
        self.removed.insert(identity, Removed { until, origin: Origin::Ordered });
        self.rolls_of_nodes.remove(&identity);
        Record::Ordered { identity, until }
    }

    /// Has a node removed that has other keys from now on.
    pub(super) fn remove_rolled(&mut self, identity: IdentityKey, now: UnixTime) {
        let until = self.end_of(&identity, now);
        self.removed.insert(identity, Removed { until, origin: Origin::Rolled });
        self.rolls_of_nodes.remove(&identity);
    }

    /// Removes a node, and whoever took its place by its keys: they may have been stolen before that. Whom somebody else removed, or its own change of
    /// keys, the operator removes as well.
    pub(super) fn revoke(&mut self, identity: IdentityKey, now: UnixTime) -> Result<(), &'static str> {
        let mut nodes = self.successors(&identity);
        nodes.retain(|node| self.removed.get(node).is_none_or(|removed| removed.origin != Origin::Ordered));
        if nodes.is_empty() {
            return Err("the node is revoked already");
        }
        let before: Vec<_> = nodes.iter().map(|node| (*node, self.removed.get(node).copied())).collect();
        // In force before it is stored, so that the node gets no later membership meanwhile.
        let mut records: Vec<Record> = nodes.iter().map(|node| self.remove_by_order(*node, now)).collect();
        let list = match self.sign_list(&nodes, now) {
            Ok(list) => list,
            Err(error) => {
                for (node, removed) in before {
                    self.removed.remove(&node);
                    self.removed.extend(removed.map(|removed| (node, removed)));
                }
                return Err(if matches!(error, ListError::Malformed(_)) { FULL } else { OFF_LINE });
            }
        };
        records.push(Record::Revocations(list.clone()));
        self.persist(records, Pending::Revocation(list));
        Ok(())
    }

    /// A reader knows a membership of a removed node that lasts longer than the records say: the node stays on lists as long as any can.
    pub(super) fn left_out(&mut self, identity: IdentityKey, now: UnixTime) {
        let until = now.secs() + MAX_MEMBERSHIP;
        let known = self.removed.get_mut(&identity).filter(|removed| removed.until + LISTED_AFTER_END < until);
        let Some(removed) = known else { return };
        removed.until = until;
        self.sign_and_store(now);
    }

    fn sign_and_store(&mut self, now: UnixTime) {
        match self.sign_list(&[], now) {
            Ok(list) => self.persist(vec![Record::Revocations(list.clone())], Pending::Revocation(list)),
            Err(error) => self.outputs.push_back(RegistrarOutput::Event(RegistrarEvent::NoList(error))),
        }
    }

    /// The next list, by the operator's order.
    pub(super) fn new_list(&mut self, now: UnixTime) {
        self.sign_and_store(now);
    }

    /// Nobody takes a node in whose memberships have ended.
    fn is_over(&self, identity: &IdentityKey, now: UnixTime) -> bool {
        self.removed.get(identity).is_some_and(|node| node.until.saturating_add(LISTED_AFTER_END) < now.secs())
    }

    /// Who is on the next list.
    pub(super) fn listed(&self, also: &[IdentityKey], now: UnixTime) -> Vec<Removal> {
        let all = self.removed.iter().map(|(identity, removed)| Removal { identity: *identity, until: removed.until });
        all.filter(|removal| also.contains(&removal.identity) || !self.is_over(&removal.identity, now)).collect()
    }

    /// Signs the next list, and has it in force. Who is removed now is on it in any case: from the stored lists it is known who was ever removed.
    pub(super) fn sign_list(
        &mut self,
        also: &[IdentityKey],
        now: UnixTime,
    ) -> Result<Signed<RevocationList>, ListError> {
        let revoked = self.listed(also, now);
        let before = self.known_list();
        let (generation, lasts) = (self.generation(), self.list_interval);
        let sign = |signer: &ListSigner| signer.sign(before, generation, revoked.clone(), &self.rolls, lasts, now);
        let of_list_key = match self.list_signer.clone() {
            Some(ListSigner::ListKey(key, certificate)) => {
                // The operator may have renewed it since its file was read.
                let latest = self.list_keys.get(&certificate.object().key).unwrap_or(&certificate).clone();
                Some(sign(&ListSigner::ListKey(key, latest)))
            }
            _ => None,
        };
        let of_realm = || self.key(now.secs()).map(|(key, _)| sign(&ListSigner::Realm(key.clone())));
        let list = match of_list_key {
            Some(Ok(list)) => list,
            // A list key that ended is a reason to make another, and none to leave the realm without a list.
            Some(Err(error)) => of_realm().unwrap_or(Err(error))?,
            None => of_realm().unwrap_or(Err(ListError::NoKey))?,
        };
        self.revocations = Some(list.clone());
        Ok(list)
    }

    /// Signs a list by the realm's key, which begins a generation or the time of another key: it may leave out whom a stolen key removed.
    pub(super) fn sign_opening(
        &mut self,
        generation: u64,
        now: UnixTime,
    ) -> Result<Signed<RevocationList>, &'static str> {
        let (key, _) = self.key(now.secs()).ok_or(OFF_LINE)?;
        let signer = ListSigner::Realm(key.clone());
        let revoked = self.listed(&[], now);
        let list = signer.sign(self.known_list(), generation, revoked, &self.rolls, self.list_interval, now);
        let list = list.map_err(|_| FULL)?;
        self.open(&list);
        self.revocations = Some(list.clone());
        Ok(list)
    }

    /// Signs the next list once half of the time of the present one is over. It need not be durable: it removes nobody, and the next one has a
    /// higher number by the clock.
    pub(super) fn refresh(&mut self, now: Now) {
        if self.list_at.is_none_or(|at| at > now.instant) {
            return;
        }
        let pause = Duration::from_secs(self.list_interval) / 2;
        self.list_at = Some(now.instant + pause);
        let signed = self.sign_list(&[], now.unix);
        if let Err(error) = signed {
            self.outputs.push_back(RegistrarOutput::Event(RegistrarEvent::NoList(error)));
        }
    }

    /// Signs a list anew if another process of the operator removed somebody whom the latest one leaves out, as when two remove nodes at once.
    pub(super) fn reconcile(&mut self, now: UnixTime) {
        let list = self.revocations.as_ref().map(Signed::object);
        let is_listed = |node| list.is_some_and(|list| list.has(node));
        let is_whole = self.removed.keys().all(|node| is_listed(node) || self.is_over(node, now))
            && list.is_none_or(|list| list.rolls.begins_with(&self.rolls));
        if is_whole || self.pending.len() >= super::MAX_PENDING {
            return;
        }
        self.sign_and_store(now);
    }

    /// A list that was signed elsewhere: whoever is on it is removed here too, also if a later one is in force. The rolls of the realm's key that it
    /// has are taken by the operator's order, or if the next key is here: otherwise whoever has stolen the present one says which is next.
    pub(super) fn take_list(
        &mut self,
        list: Signed<RevocationList>,
        is_ordered: bool,
        now: UnixTime,
    ) -> Result<(), &'static str> {
        let object = list.object().clone();
        if object.realm != self.realm || RevocationList::verify(&list, &self.realm).is_err() {
            return Err("the list is not signed by this realm or a list key of it");
        }
        if object.generation < self.generation() {
            return Err("the list is signed by a list key that was revoked");
        }
        if object.check_key(&self.rolls, now.secs()).is_err() {
            return Err("the list is signed by a key of the realm whose time is over");
        }
        if object.is_ahead(now.secs()) {
            if !is_ordered {
                let seconds = object.issued.max(object.number / 1_000_000).saturating_sub(now.secs());
                self.outputs.push_back(RegistrarOutput::Event(RegistrarEvent::Ahead { seconds }));
            }
            return Err("the list is from the future: compare the clocks");
        }
        let mut records = Vec::new();
        if object.rolls.begins_with(&self.rolls) && object.rolls.len() > self.rolls.len() {
            let is_here = |key: &[u8; 32]| self.keys.iter().any(|own| own.verifying_key().to_bytes() == *key);
            if is_ordered || object.rolls.iter().skip(self.rolls.len()).all(|roll| is_here(&roll.next.0)) {
                records.push(Record::Rolls(object.rolls.clone()));
                self.rolls = object.rolls.clone();
            } else if let Some(roll) = object.rolls.iter().nth(self.rolls.len()) {
                let event = RegistrarEvent::RolledElsewhere(roll.clone());
                self.outputs.push_back(RegistrarOutput::Event(event));
            }
        }
        let order = object.order();
        let known = self.known_list().filter(|known| !known.is_ahead(now.secs()));
        let (is_later, is_risen) =
            (known.is_none_or(|known| known.order() < order), object.generation > self.generation());
        let AcceptedRemovals { new, is_new, left } = self.accept_removals(&object, true);
        if left > 0 {
            let event = RegistrarEvent::Invented { key: signer(&object), left };
            self.outputs.push_back(RegistrarOutput::Event(event));
        }
        if !is_new && !is_later && records.is_empty() {
            return Err("a later list is in force: publish it, or sign another after it");
        }
        // A list that says nothing new of anybody is in force all the same, and the next one above it: so nothing depends on its being kept.
        if is_new || is_risen || is_ordered || !records.is_empty() {
            records.push(Record::Heard(list.clone()));
            self.persist(records, Pending::Revocation(list.clone()));
        }
        self.put(list);
        if !new.is_empty() {
            self.outputs.push_back(RegistrarOutput::Event(RegistrarEvent::RemovedElsewhere(new)));
        }
        Ok(())
    }

    /// A path server's list. Another machine may have signed it, or these records are from a backup: whoever was removed stays so, and the next
    /// list is above it.
    pub(super) fn hear(&mut self, list: Signed<RevocationList>, now: UnixTime) {
        if self.take_list(list, false, now).is_ok()
            && let Err(error) = self.sign_list(&[], now)
        {
            self.outputs.push_back(RegistrarOutput::Event(RegistrarEvent::NoList(error)));
        }
    }
}

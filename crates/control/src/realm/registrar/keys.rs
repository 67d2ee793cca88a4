//! The keys that sign in the realm's name: list keys, and the realm's key that rolls.

use wayleave_core::{IdentityKey, UnixTime};
use wayleave_crypto::signed::Signed;

use super::lists::Origin;
use super::{OFF_LINE, Pending, Registrar, RegistrarEvent, RegistrarOutput, later};
use crate::realm::{Base, ListKey, MAX_RESTORED, Membership, RealmKey};
use crate::store::Record;

/// List keys that have not ended.
const MAX_LIST_KEYS: usize = 16;

impl Registrar {
    /// The generation of lists: it rises when a list key is revoked. What a key of the realm said that was stolen counts no more.
    #[must_use]
    pub fn generation(&self) -> u64 {
        let of_list = self.known_list().map_or(0, |list| list.generation);
        self.own_generation().max(of_list)
    }

    /// The same by the operator's own orders, whatever lists say that were signed elsewhere.
    fn own_generation(&self) -> u64 {
        let keys = self.list_keys().map(|key| key.generation);
        keys.chain(self.revoked_keys.values().copied()).max().unwrap_or(0)
    }

    /// Whether a list key was revoked.
    #[must_use]
    pub fn is_revoked_key(&self, key: &[u8; 32]) -> bool {
        let before = |key: &Signed<ListKey>| key.object().generation < self.generation();
        self.revoked_keys.contains_key(key) || self.list_keys.get(key).is_some_and(before)
    }

    fn certify(
        &self,
        key: [u8; 32],
        generation: u64,
        not_after: u64,
        now: UnixTime,
    ) -> Result<Signed<ListKey>, &'static str> {
        let (realm_key, rolls) = self.key(now.secs()).ok_or(OFF_LINE)?;
        // The realm's own list that begins the generation leaves out whom this does not name.
        let is_member = |identity: &&IdentityKey| !self.is_revoked(identity) && self.members.contains_key(*identity);
        let restored = self.restored.keys().filter(is_member).take(MAX_RESTORED).copied().collect();
        let base = Base { restored, rolls };
        let certificate = ListKey { realm: self.realm, generation, key, issued: now.secs(), not_after, base };
        Signed::sign(&certificate, realm_key).map_err(|_| "a list key cannot last that long")
    }

    pub(super) fn add_list_key(&mut self, key: [u8; 32], lasts: u64, now: UnixTime) -> Result<(), &'static str> {
        let certificate = self.certify(key, self.generation(), now.secs().saturating_add(lasts), now)?;
        if self.is_revoked_key(&key) {
            return Err("the list key was revoked: make another, in a file of its own");
        }
        let is_known = self.list_keys.contains_key(&key);
        if !is_known && self.list_keys().filter(|key| key.not_after >= now.secs()).count() >= MAX_LIST_KEYS {
            return Err("the realm has too many list keys: revoke one");
        }
        let record = Record::ListKey(certificate.clone());
        self.restore(record.clone());
        self.persist(vec![record], Pending::ListKeys(vec![certificate]));
        Ok(())
    }

    /// The others are signed anew in the next generation, and a list of it is what ends the revoked key's everywhere. Whom the revoked key
    /// removed and the records know as no member is on that list no more.
    pub(super) fn revoke_list_key(
        &mut self,
        key: &[u8; 32],
        restored: &[IdentityKey],
        now: UnixTime,
    ) -> Result<(), &'static str> {
        let before = self.generation();
        self.list_keys.get(key).ok_or("no such list key")?;
        if self.is_revoked_key(key) {
            return Err("the list key is revoked already");
        }
        let next = before.checked_add(1).ok_or("whoever has the realm's key used up the generations: roll that key")?;
        if !restored.iter().all(|node| self.removed.get(node).is_some_and(|removed| removed.is_by(key))) {
            return Err("a node that is to be a member again was not removed by this list key alone");
        }
        self.key(now.secs()).ok_or(OFF_LINE)?;
        let strangers = self.removed.iter().filter(|(node, removed)| {
            removed.is_by(key) && !self.members.contains_key(*node) && !restored.contains(node)
        });
        let strangers: Vec<IdentityKey> = strangers.map(|(node, _)| *node).collect();
        let mut records = restore_all(restored.iter().copied().chain(strangers), next);
        records.push(Record::ListKeyRevoked { key: *key, generation: next });
        let is_other =
            |other: &&ListKey| other.key != *key && other.generation == before && other.not_after >= now.secs();
        let others: Vec<([u8; 32], u64)> =
            self.list_keys().filter(is_other).map(|other| (other.key, other.not_after)).collect();
        records.iter().cloned().for_each(|record| self.restore(record));
        let anew: Result<Vec<_>, _> =
            others.into_iter().map(|(other, until)| self.certify(other, next, until, now)).collect();
        let certificates = anew?;
        let anew: Vec<Record> = certificates.iter().cloned().map(Record::ListKey).collect();
        anew.iter().cloned().for_each(|record| self.restore(record));
        records.extend(anew);
        let list = self.sign_opening(next, now)?;
        records.push(Record::Revocations(list.clone()));
        self.persist(records, Pending::ListKeys(certificates));
        self.outputs.push_back(RegistrarOutput::Event(RegistrarEvent::Revoked(list)));
        Ok(())
    }

    /// The last key says which one is next. Where the time of those before ends at once, all that they signed is signed anew, a roll that
    /// waits comes at once, and whom they alone removed is a member again.
    pub(super) fn roll_key(
        &mut self,
        next: RealmKey,
        from: u64,
        until: u64,
        now: UnixTime,
    ) -> Result<(), &'static str> {
        let is_stolen = until.max(now.secs()) == now.secs();
        if !is_stolen && self.rolls.iter().any(|roll| roll.from > now.secs()) {
            return Err("the realm's key rolls already, and the date has not come");
        }
        let generation = self.own_generation();
        let last = self.rolls.last_key(&self.realm).map_err(|_| "the rolls are not in order")?;
        let key = self.keys.iter().find(|key| key.verifying_key().to_bytes() == last.0);
        let key = match key {
            Some(key) => key,
            None if self.has_realm_key(now.secs()) => {
                return Err(
                    "the key to which the realm's rolls is not here, and it alone can say which one is next: name it as `next_key`",
                );
            }
            None => return Err(OFF_LINE),
        };
        // What a stolen key signs in this very second counts no more.
        let times = match is_stolen {
            true => [now.secs().saturating_sub(1); 3],
            false => [now.secs(), from.max(now.secs()), until],
        };
        let rolls = self.rolls.and(self.realm, key, next, times);
        let rolls =
            rolls.map_err(|_| "the dates are not in order or too far off, or the key was the realm's before")?;
        let roll = rolls.iter().last().cloned().ok_or("no roll")?;
        let before = std::mem::replace(&mut self.rolls, rolls.clone());
        let mut records = vec![Record::Rolls(rolls)];
        if roll.from <= now.secs() {
            let anew = self.sign_anew(&roll, is_stolen, generation, now).inspect_err(|_| self.rolls = before)?;
            records.extend(anew);
        }
        let list = if is_stolen { self.sign_opening(generation, now).ok() } else { self.sign_list(&[], now).ok() };
        records.extend(list.map(Record::Revocations));
        self.persist(records, Pending::KeyRoll(roll));
        Ok(())
    }

    /// All that counts no more after a roll, signed by the next key; nothing where that one is not here.
    fn sign_anew(
        &mut self,
        roll: &super::KeyRoll,
        is_stolen: bool,
        generation: u64,
        now: UnixTime,
    ) -> Result<Vec<Record>, &'static str> {
        let mut records = Vec::new();
        if is_stolen {
            let nodes = self.removed_by_strangers();
            records = restore_all(nodes.iter().copied(), generation);
            let members: Vec<IdentityKey> = nodes.into_iter().filter(|node| self.members.contains_key(node)).collect();
            if !members.is_empty() {
                self.outputs.push_back(RegistrarOutput::Event(RegistrarEvent::Restored(members)));
            }
        }
        records.iter().cloned().for_each(|record| self.restore(record));
        let Some((key, rolls)) = self.key(now.secs()) else { return Ok(records) };
        let is_cut = |member: &&Membership| member.not_after > roll.until && !self.is_revoked(&member.identity);
        let anew = self.members().filter(is_cut).map(|member| {
            let lasts = member.not_after.saturating_sub(now.secs());
            Signed::sign(&Membership { rolls: rolls.clone(), ..later(member, lasts, now) }, key)
        });
        let anew: Result<Vec<Signed<Membership>>, _> = anew.collect();
        let is_live = |key: &&ListKey| {
            key.generation == generation && key.not_after >= now.secs() && !self.revoked_keys.contains_key(&key.key)
        };
        let live = self.list_keys().filter(is_live);
        let certificates: Result<Vec<_>, _> =
            live.map(|key| self.certify(key.key, generation, key.not_after, now)).collect();
        let mut signed: Vec<Record> =
            anew.map_err(|_| "a membership cannot be signed anew")?.into_iter().map(Record::Membership).collect();
        signed.extend(certificates?.into_iter().map(Record::ListKey));
        signed.iter().cloned().for_each(|record| self.restore(record));
        records.extend(signed);
        Ok(records)
    }

    /// Whom lists alone removed that a stolen key of the realm signed, or a list key of which these records know nothing: its thief made it.
    fn removed_by_strangers(&self) -> Vec<IdentityKey> {
        let is_cut = |origin| matches!(origin, Origin::Heard(by) if !self.list_keys.contains_key(&by));
        self.removed.iter().filter(|(_, removed)| is_cut(removed.origin)).map(|(node, _)| *node).collect()
    }
}

fn restore_all(nodes: impl Iterator<Item = IdentityKey>, generation: u64) -> Vec<Record> {
    nodes.map(|identity| Record::Restored { identity, generation }).collect()
}

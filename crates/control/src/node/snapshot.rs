//! What a node knows of its realm at one moment, for those who look things up in it.

use std::collections::BTreeMap;
use std::sync::Arc;

use wayleave_core::{IdentityKey, InnerPrefixes, Prefix};
use wayleave_crypto::signed::Signed;
use wayleave_packet::icing::mint::EpochKey;

use crate::advert::Advert;
use crate::database::{Database, MAX_MEMBERS, Refusal};
use crate::realm::{Membership, Name, RealmKey};
use crate::store::Record;

/// Epoch keys of one node that are remembered: of its last adverts, until they end.
const MAX_IDS: usize = 4;

/// A member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    pub membership: Membership,
    /// If the node is there: it has not departed, and the advert has not expired.
    pub advert: Option<Advert>,
    /// The node IDs that it may use, also those of earlier adverts, ascending by epoch.
    pub ids: Vec<EpochKey>,
}

/// The members of a realm that are neither revoked nor expired.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Realm {
    pub nodes: BTreeMap<IdentityKey, Arc<Member>>,
    pub names: BTreeMap<Name, IdentityKey>,
    pub prefixes: InnerPrefixes,
    /// Nodes that were members here and were removed.
    pub removed: BTreeMap<IdentityKey, Removed>,
}

/// A node that the realm's operator removed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Removed {
    /// The name that it had.
    pub name: Option<Name>,
    /// The inner prefixes that it had.
    pub prefixes: Vec<Prefix>,
    /// The Unix second of the list in which it was first seen here: no earlier than its removal.
    pub at: u64,
}

impl Realm {
    /// The database's members at the Unix second `now`; what did not change since `before` is shared with it.
    pub(super) fn of(database: &Database, before: &Self, now: u64) -> Self {
        let mut realm = Self::default();
        if let Some(list) = database.revocations().map(Signed::object) {
            let removed = list.revoked.iter().map(|removal| &removal.identity).filter_map(|identity| {
                let known = before.removed.get(identity).cloned();
                let of_list = || {
                    let before = before.nodes.get(identity).map(|member| &member.membership);
                    let membership = database.last_membership(identity).or(before)?;
                    let (name, prefixes) =
                        (membership.grants.names.first().cloned(), membership.grants.prefixes.clone());
                    Some(Removed { name, prefixes, at: list.issued })
                };
                Some((*identity, known.or_else(of_list)?))
            });
            realm.removed = removed.collect();
        }
        for membership in database.members(now) {
            let identity = membership.identity;
            let advert = database.advert(&identity, now);
            let known = before.nodes.get(&identity);
            let mut ids: Vec<EpochKey> = advert.into_iter().flat_map(Advert::epoch_keys).collect();
            for id in known.iter().flat_map(|member| &member.ids) {
                let is_live = u64::from(id.not_after) >= now && database.claimant(&id.node, now) == Some(identity);
                if is_live && ids.len() < MAX_IDS && ids.iter().all(|other| other.node != id.node) {
                    ids.push(*id);
                }
            }
            ids.sort_by_key(|id| (id.epoch, id.not_before));
            let is_same = |known: &&Arc<Member>| {
                known.membership == *membership && known.advert.as_ref() == advert && known.ids == ids
            };
            let member = known
                .filter(is_same)
                .cloned()
                .unwrap_or_else(|| Arc::new(Member { membership: membership.clone(), advert: advert.cloned(), ids }));
            for name in &membership.grants.names {
                realm.names.insert(name.clone(), identity);
            }
            for prefix in &membership.grants.prefixes {
                realm.prefixes.insert(*prefix, identity);
            }
            realm.nodes.insert(identity, member);
        }
        realm
    }

    /// The realm of this key by what a node stored of it, as it was when the newest advert was made.
    ///
    /// # Errors
    /// If a record is not of this realm or not signed.
    pub fn of_records(realm: RealmKey, records: &[Record]) -> Result<Self, Refusal> {
        let mut database = Database::new(realm, MAX_MEMBERS);
        database.restore(records)?;
        let newest = records.iter().filter_map(|record| match record {
            Record::Advert(advert) => Some(advert.object().issued),
            _ => None,
        });
        Ok(Self::of(&database, &Self::default(), newest.max().unwrap_or(0)))
    }

    /// The member with this name.
    #[must_use]
    pub fn named(&self, name: &Name) -> Option<(&IdentityKey, &Arc<Member>)> {
        self.nodes.get_key_value(self.names.get(name)?)
    }
}

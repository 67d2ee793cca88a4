//! What must survive a restart, as records that a driver stores and gives back.
//!
//! An absent record never means zero. A process says how its store is: it was kept, it is new because there never was one, or
//! it was lost; who lost it asks others before it answers.

use wayleave_core::IdentityKey;
use wayleave_core::wire::{self, Malformed};
use wayleave_crypto::signed::{Object, Signed};

use crate::advert::Advert;
use crate::realm::{ListKey, Membership, RevocationList, Rolls};

/// Octets of the longest record.
pub const MAX_RECORD: usize = 1 << 20;

wayleave_core::wire! {
    /// A record; a later one with the same [`Record::key`] replaces it.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub enum Record: "the kind of a record" {
        1 = Membership(Signed<Membership>),
        2 = Advert(Signed<Advert>),
        3 = Revocations(Signed<RevocationList>),
        /// A one-time key was used by a node, or withdrawn if there is none.
        4 = Used {
            key: [u8; 32],
            by: Option<IdentityKey>,
        },
        /// A key that signs lists in the realm's place; the latest certificate of each.
        5 = ListKey(Signed<ListKey>),
        /// The holder of an identity has another one since, and the first is removed.
        6 = Rolled {
            from: IdentityKey,
            to: IdentityKey,
        },
        /// The realm's key says that lists of generations before this one remove a node no more.
        7 = Restored {
            identity: IdentityKey,
            generation: u64,
        },
        /// All rolls of the realm's key up to now.
        8 = Rolls(Rolls),
        /// The operator removed a node, any membership of which ends by this Unix second.
        9 = Ordered {
            identity: IdentityKey,
            until: u64,
        },
        /// A list that was signed elsewhere: nobody ordered here what is new on it.
        10 = Heard(Signed<RevocationList>),
        /// A list key was revoked, and this generation of lists followed.
        11 = ListKeyRevoked {
            key: [u8; 32],
            generation: u64,
        },
    }
}

/// How a store was found at start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Store {
    /// There never was one: the operator just set the process up.
    New,
    /// These are its records.
    Kept(Vec<Record>),
    /// It is not there, is damaged, or is known to be an old copy.
    Lost,
}

impl Record {
    /// What it is stored under.
    #[must_use]
    pub fn key(&self) -> Vec<u8> {
        let (kind, key): (u8, &[u8]) = match self {
            Self::Membership(membership) => (1, &membership.object().identity.0),
            Self::Advert(advert) => (2, &advert.object().identity.0),
            Self::Revocations(_) => (3, &[]),
            Self::Used { key, .. } => (4, key),
            Self::ListKey(certificate) => (5, &certificate.object().key),
            Self::Rolled { from, .. } => (6, &from.0),
            Self::Restored { identity, .. } => (7, &identity.0),
            Self::Rolls(_) => (8, &[]),
            Self::Ordered { identity, .. } => (9, &identity.0),
            Self::Heard(_) => (10, &[]),
            Self::ListKeyRevoked { key, .. } => (11, key),
        };
        let mut out = vec![kind];
        out.extend_from_slice(key);
        out
    }

    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        wire::encode(self)
    }

    /// Whether others may have it: the rest stays with the operator, or is in the list of removed nodes.
    #[must_use]
    pub fn is_public(&self) -> bool {
        matches!(self, Self::Membership(_) | Self::Advert(_) | Self::Revocations(_))
    }

    /// Decodes all of `octets`.
    ///
    /// # Errors
    /// If they are no record.
    pub fn decode(octets: &[u8]) -> Result<Self, Malformed> {
        wire::decode(octets)
    }

    /// Decodes what an earlier version of the program may have stored: `None` if that was an advert of its version. None of those counts
    /// any more, and its node publishes another within minutes.
    ///
    /// # Errors
    /// If they are no record: the store is damaged, and counts as [`Store::Lost`].
    pub fn restore(octets: &[u8]) -> Result<Option<Self>, Malformed> {
        match Self::decode(octets) {
            Err(Malformed::Version(1..Advert::VERSION)) if octets.first() == Some(&2) => Ok(None),
            read => read.map(Some),
        }
    }
}

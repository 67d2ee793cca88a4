//! What must survive a restart, as records that a driver stores and gives back.
//!
//! An absent record never means zero. A process says how its store is: it was kept, it is new because there never was one, or
//! it was lost; who lost it asks others before it answers.

use std::sync::Arc;

use wayleave_core::IdentityKey;

use crate::advert::Advert;
use crate::realm::{Membership, RevocationList};
use crate::signed::Signed;
use crate::wire::{Malformed, Reader, Writer};

/// Octets of the longest record.
pub const MAX_RECORD: usize = 1 << 20;

/// A record; a later one with the same [`Record::key`] replaces it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    Membership(Signed<Membership>),
    Advert(Signed<Advert>),
    Revocations(Signed<RevocationList>),
    /// A one-time key was used by a node, or withdrawn if there is none.
    Used {
        key: [u8; 32],
        by: Option<IdentityKey>,
    },
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
        };
        let mut out = vec![kind];
        out.extend_from_slice(key);
        out
    }

    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        let mut signed = |kind, octets: &Arc<[u8]>| {
            out.u8(kind).blob(octets);
        };
        match self {
            Self::Membership(membership) => signed(1, membership.octets()),
            Self::Advert(advert) => signed(2, advert.octets()),
            Self::Revocations(list) => signed(3, list.octets()),
            Self::Used { key, by } => {
                out.u8(4).bytes(key).bool(by.is_some()).bytes(by.as_ref().map_or(&[][..], |by| &by.0));
            }
        }
        out.finish()
    }

    /// Decodes all of `octets`.
    ///
    /// # Errors
    /// If they are no record: the store is damaged, and counts as [`Store::Lost`].
    pub fn decode(octets: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(octets);
        let record = match reader.u8()? {
            1 => Self::Membership(Signed::decode(reader.blob(MAX_RECORD)?)?),
            2 => Self::Advert(Signed::decode(reader.blob(MAX_RECORD)?)?),
            3 => Self::Revocations(Signed::decode(reader.blob(MAX_RECORD)?)?),
            4 => {
                let key = reader.array()?;
                Self::Used { key, by: if reader.bool()? { Some(reader.identity()?) } else { None } }
            }
            _ => return Err(Malformed::Value("the kind of a record")),
        };
        reader.end()?;
        Ok(record)
    }
}

//! What a key server answers, sealed for the holder of the capability.
//!
//! All answers are equally long, so that an onlooker does not see who is denied a key.

use wayleave_core::{Afi, Prefix};
use wayleave_crypto::seal;
use wayleave_crypto::secret::Key128;
use wayleave_packet::platypus::header::{Capability, DelegationId, Marks};
use wayleave_packet::platypus::mint::{DelegateError, DelegatedSecret, Hop, StampKey, TemporalSecret, WaypointKey};
use zeroize::Zeroizing;

use super::keys::{MasterKey, associated};
use super::zone::Zone;

const LABEL: &str = "wayleave/capability/answer/v1";
/// The kind of a bound secret.
const BOUND: u8 = 4;
/// Octets before sealing: kind, secret, seconds.
const PLAIN: usize = 1 + 16 + 4;
/// Octets of a sealed answer.
pub const SEALED: usize = PLAIN + seal::OVERHEAD;

/// What is answered to the holder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The temporal secret of the epoch; of a delegated capability, the secret of the delegation. The marks, of which it has
    /// [`Marks::BOUND`] alone, are part of what it was made from.
    Secret {
        key: Key128,
        marks: Marks,
    },
    Denied(Denial),
}

/// Why a holder gets no secret. Nobody else learns even that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Denial {
    /// The provider's policy gives no key at this time, or under this load (temporal traffic engineering, paper section 4.1).
    #[error("the provider's policy gives no key now; ask again in {retry_secs} s")]
    NotNow { retry_secs: u32 },
    #[error("the capability is revoked; ask the provider or whoever delegated it for another")]
    Revoked,
    #[error("the capability has ended, or has not begun; ask the provider for another")]
    Ended,
    /// What may be sent in a month is sent. Whoever does not know this kind takes the answer for none.
    #[error(
        "the quota of the month is used up: it ends with the month, or when it is raised by who set it: the provider, or the principal of a delegation"
    )]
    UsedUp,
}

/// The octets are no answer about this capability, epoch and zone under this key: they were poisoned, or the credential has been
/// replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the answer was not made with this capability's key for this epoch and zone")]
pub struct OpenError;

impl Answer {
    /// Seals the answer about `capability`, whose epoch is asked for. The same answer is sealed alike each time, so that key
    /// servers and caches agree; a denial and a later secret are different plaintexts under one key and nonce, for which GCM-SIV is made.
    #[must_use]
    pub fn seal(&self, key: &MasterKey, capability: &Capability, zone: &Zone) -> [u8; SEALED] {
        let mut plain = Zeroizing::new([0; PLAIN]);
        match self {
            Self::Secret { key, marks } => {
                plain[0] = if marks.is_bound() { BOUND } else { 0 };
                plain[1..17].copy_from_slice(key.expose());
            }
            Self::Denied(Denial::NotNow { retry_secs }) => {
                plain[0] = 1;
                plain[17..].copy_from_slice(&retry_secs.to_be_bytes());
            }
            Self::Denied(Denial::Revoked) => plain[0] = 2,
            Self::Denied(Denial::Ended) => plain[0] = 3,
            Self::Denied(Denial::UsedUp) => plain[0] = 5,
        }
        let associated = associated(capability, zone);
        let mut out = [0; SEALED];
        out.copy_from_slice(&seal::seal(LABEL, &key.answer(&associated), &associated, &*plain));
        out
    }

    /// Opens an answer about `capability` from `zone`.
    ///
    /// # Errors
    /// [`OpenError`], whatever is wrong with it.
    pub fn open(octets: &[u8], key: &MasterKey, capability: &Capability, zone: &Zone) -> Result<Self, OpenError> {
        if octets.len() != SEALED {
            return Err(OpenError);
        }
        let associated = associated(capability, zone);
        let plain = seal::open(LABEL, &key.answer(&associated), &associated, octets).map_err(|_| OpenError)?;
        let plain = Zeroizing::new(plain);
        let (kind, rest) = plain.split_first().ok_or(OpenError)?;
        let (secret, seconds) = rest.split_first_chunk::<16>().ok_or(OpenError)?;
        let retry_secs = u32::from_be_bytes(seconds.try_into().map_err(|_| OpenError)?);
        match kind {
            0 => Ok(Self::Secret { key: Key128::new(*secret), marks: Marks::default() }),
            &BOUND => Ok(Self::Secret { key: Key128::new(*secret), marks: Marks::BOUND }),
            1 => Ok(Self::Denied(Denial::NotNow { retry_secs })),
            2 => Ok(Self::Denied(Denial::Revoked)),
            3 => Ok(Self::Denied(Denial::Ended)),
            5 => Ok(Self::Denied(Denial::UsedUp)),
            _ => Err(OpenError),
        }
    }
}

/// A capability in one key epoch with its secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EpochSecret {
    pub capability: Capability,
    key: Key128,
}

impl EpochSecret {
    /// What a key server answered about `capability`.
    #[must_use]
    pub fn new(capability: Capability, key: Key128) -> Self {
        Self { capability, key }
    }

    /// What a key server answers: the secret made from the waypoint's key.
    #[must_use]
    pub fn mint(capability: Capability, waypoint: &WaypointKey) -> Self {
        let Capability { waypoint: address, principal, interval, delegation, .. } = capability;
        let secret = waypoint.secret(address, principal, interval, capability.secret_epoch());
        let key = match delegation {
            None => *secret.expose(),
            Some(delegation) => *secret.follow(&delegation).expose(),
        };
        Self { capability, key: Key128::new(key) }
    }

    /// The secret itself, to seal for the holder.
    #[must_use]
    pub fn key(&self) -> &Key128 {
        &self.key
    }

    /// The key that stamps packets.
    #[must_use]
    pub fn stamp_key(&self) -> StampKey {
        match self.capability.delegation {
            None => TemporalSecret::new(self.key.clone(), self.afi()).stamp_key(),
            Some(delegation) => DelegatedSecret::new(self.key.clone(), delegation).stamp_key(),
        }
    }

    /// What a stamper puts in a packet's route.
    #[must_use]
    pub fn hop(&self) -> Hop {
        Hop { capability: self.capability, key: self.stamp_key() }
    }

    /// The secret of a delegation in the same epoch, without asking anybody: for destinations in `prefix`, under the number `id`,
    /// which is not needed to narrow an existing delegation.
    ///
    /// # Errors
    /// If the prefix is not within what is held, or a sub-delegation is handed on again.
    pub fn delegate(&self, prefix: Prefix, id: Option<DelegationId>) -> Result<Self, DelegateError> {
        let next = match (self.capability.delegation, id) {
            (None, id) => TemporalSecret::new(self.key.clone(), self.afi()).delegate(id.unwrap_or_default(), prefix)?,
            (Some(held), None) => DelegatedSecret::new(self.key.clone(), held).narrow(prefix)?,
            (Some(held), Some(id)) => DelegatedSecret::new(self.key.clone(), held).hand_on(id)?.narrow(prefix)?,
        };
        let capability = Capability { delegation: Some(next.delegation()), ..self.capability };
        Ok(Self { capability, key: Key128::new(*next.expose()) })
    }

    fn afi(&self) -> Afi {
        if self.capability.waypoint.is_ipv4() { Afi::Ipv4 } else { Afi::Ipv6 }
    }
}

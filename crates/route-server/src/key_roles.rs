//! One role for each key: a party's, an operator's, a member's and an AS's attestation keys are all different.
//!
//! Whoever holds one key in two roles is asked for two opinions and gives one: a party that is also a member can ask its
//! peer for what it must not know. Every place where keys meet adds those that it knows to a [`KeyRoles`], and refuses the
//! one that is known in another role.

use std::collections::BTreeMap;
use std::fmt;

use wayleave_core::Asn;

use crate::directory::{Directory, MemberSet, SlotId};

/// What a key is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum KeyRole {
    /// The certificate of party 1 or 2.
    PartyCertificate(u8),
    /// The signing key in the key file of party 1 or 2, which signs nothing.
    PartySigning(u8),
    /// The key with which the operator of party 1 or 2 signs member sets.
    Operator(u8),
    /// The key with which a machine of party 1's or 2's operator signs data.
    Machine(u8),
    /// The certificate of a slot, by which its member proves itself in TLS.
    SlotCertificate(SlotId),
    /// The key that signs route objects.
    SlotSigning(SlotId),
    /// A key with which an AS signs paths.
    Attestation(Asn),
}

impl fmt::Display for KeyRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PartyCertificate(number) => write!(f, "the certificate of party {number}"),
            Self::PartySigning(number) => write!(f, "the signing key of party {number}"),
            Self::Operator(number) => write!(f, "the key of party {number}'s operator"),
            Self::Machine(number) => write!(f, "the machine key of party {number}'s operator"),
            Self::SlotCertificate(slot) => write!(f, "the certificate of slot {slot}"),
            Self::SlotSigning(slot) => write!(f, "the signing key of slot {slot}"),
            Self::Attestation(asn) => write!(f, "an attestation key of {asn}"),
        }
    }
}

/// Two roles have one key. Whoever chose the second erred.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{second} is also {first} ({}): each role needs a key of its own, see `wayleave keys new`", Hex(.key))]
pub struct SharedKey {
    /// The role that was known before.
    pub first: KeyRole,
    pub second: KeyRole,
    /// The public key, or the certificate's fingerprint.
    pub key: [u8; 32],
}

struct Hex<'a>(&'a [u8; 32]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|octet| write!(f, "{octet:02x}"))
    }
}

/// The keys that one place knows, public keys and fingerprints of certificates, by role.
#[derive(Clone, Debug, Default)]
pub struct KeyRoles(BTreeMap<[u8; 32], KeyRole>);

impl KeyRoles {
    /// These keys.
    ///
    /// # Errors
    /// If two of them are one key in different roles.
    pub fn of(keys: impl IntoIterator<Item = (KeyRole, [u8; 32])>) -> Result<Self, SharedKey> {
        let mut roles = Self::default();
        keys.into_iter().try_for_each(|(role, key)| roles.add(role, key))?;
        Ok(roles)
    }

    /// Adds a key.
    ///
    /// # Errors
    /// If it is known in another role.
    pub fn add(&mut self, role: KeyRole, key: [u8; 32]) -> Result<(), SharedKey> {
        match *self.0.entry(key).or_insert(role) {
            known if known == role => Ok(()),
            // A claim does not prove that its AS has the key, and a key that another AS lists too gives that one nothing.
            KeyRole::Attestation(_) if matches!(role, KeyRole::Attestation(_)) => Ok(()),
            first => Err(SharedKey { first, second: role, key }),
        }
    }

    /// Adds all keys of operators and members that the directory ever had, those that were replaced among them.
    ///
    /// # Errors
    /// If one of them is known in another role.
    pub fn add_directory(&mut self, directory: &Directory) -> Result<(), SharedKey> {
        directory.keys_ever().try_for_each(|(role, key)| self.add(role, key))
    }

    /// Adds all keys of a member set, those of former members included.
    ///
    /// # Errors
    /// If one of them is known in another role.
    pub fn add_set(&mut self, set: &MemberSet) -> Result<(), SharedKey> {
        for (id, slot) in set.iter() {
            self.add(KeyRole::SlotCertificate(id), slot.tls)?;
            self.add(KeyRole::SlotSigning(id), slot.sign)?;
        }
        let attest = set.attest.iter().flat_map(|(asn, keys)| keys.iter().map(|key| (*asn, key.key)));
        attest.into_iter().try_for_each(|(asn, key)| self.add(KeyRole::Attestation(asn), key))
    }
}

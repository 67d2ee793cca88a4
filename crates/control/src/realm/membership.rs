//! A membership: the realm's operator states who a node is and what it may do.

use wayleave_core::IdentityKey;
use wayleave_core::wire::{Malformed, Reader};
use wayleave_crypto::dh::DhPublic;
use wayleave_crypto::signed::{Object, SIGNATURE};

use super::key_roll::{self, Behind, OfRealm, Rolls};
use super::{Grants, MAX_MEMBERSHIP, MAX_NAME, MAX_NAMES, MAX_PREFIXES, RealmKey};
use crate::advert::MAX_AHEAD;
use crate::codecs::NoiseKeyCodec;

wayleave_core::wire! {
    /// A node is a member of a realm. Signed by the realm's key.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct Membership: Self::check {
        pub realm: RealmKey,
        /// Rises with each membership of this identity; an older one never replaces a newer one.
        pub number: u64,
        pub identity: IdentityKey,
        /// The node's static key for sealing between gateways (Noise, X25519).
        pub noise: DhPublic as NoiseKeyCodec,
        pub grants: Grants,
        /// The first Unix second.
        pub not_before: u64,
        /// The last one.
        pub not_after: u64,
        /// Up to the key of the realm that signed it.
        pub rolls: Rolls as Behind,
    }
}

impl Membership {
    fn check(&self) -> Result<(), Malformed> {
        let lasts = self.not_after.checked_sub(self.not_before);
        if lasts.is_none_or(|lasts| lasts > MAX_MEMBERSHIP) { Err(Malformed::Value("the validity")) } else { Ok(()) }
    }

    /// Whether it holds at the Unix second `now`, of a clock that may be behind the operator's by [`MAX_AHEAD`]: a renewed one takes the
    /// place of the one before it at once, and its node would be no member until its first second.
    #[must_use]
    pub fn holds(&self, now: u64) -> bool {
        (self.not_before.saturating_sub(MAX_AHEAD)..=self.not_after).contains(&now)
    }

    /// The Unix second from which its node asks for the next one: half of its time is over.
    #[must_use]
    pub fn renewable_at(&self) -> u64 {
        self.not_before + self.not_after.saturating_sub(self.not_before) / 2
    }
}

impl Object for Membership {
    const LABEL: &'static str = "wayleave/control/membership/v1";
    const MAX: usize =
        1 + 32 + 8 + 64 + 2 + 2 + MAX_NAMES * (1 + MAX_NAME) + 2 + MAX_PREFIXES * 18 + 16 + Rolls::MAX + SIGNATURE;
    const VERSION: u8 = 2;

    fn version(&self) -> u8 {
        key_roll::version(&self.rolls)
    }

    fn read_version(version: u8, from: &mut Reader<'_>) -> Result<Self, Malformed> {
        key_roll::read_version(version, from)
    }
}

impl OfRealm for Membership {
    fn realm(&self) -> RealmKey {
        self.realm
    }

    fn rolls(&self) -> &Rolls {
        &self.rolls
    }

    fn made(&self) -> u64 {
        self.not_before
    }
}

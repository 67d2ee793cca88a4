//! Invitations: what somebody will be granted who redeems one, and what became of it.
//!
//! A database has the public half of an invitation's one-time key alone, so that nobody who reads it or a copy can
//! redeem it. A redemption opens the account and grants in one change. It is bound to the holder's own key: that holder may
//! repeat it, since the answer may be lost; nobody else may.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use wayleave_core::wire::{Ascii, List16, Malformed, is_text};
use wayleave_packet::platypus::header::Principal;

use super::terms::Terms;

/// Characters of an account's name, which an invitation may bring.
pub const MAX_NAME: usize = 64;
/// Grants of one invitation.
pub const MAX_INVITED: usize = 16;
/// Invitations that are remembered, used and withdrawn ones included.
pub const MAX_INVITATIONS: usize = 65_536;
/// Seconds after its expiry for which an invitation is remembered: so long its holder is told what became of it, and may repeat.
pub const REMEMBERED: u64 = 30 * 86_400;

wayleave_core::wire! {
    /// Names an invitation; no secret.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    pub struct InvitationId(pub [u8; 8]);
}

impl fmt::Display for InvitationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

/// The text names no invitation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("an invitation's ID is 16 hexadecimal digits")]
pub struct BadInvitationId;

impl FromStr for InvitationId {
    type Err = BadInvitationId;

    fn from_str(text: &str) -> Result<Self, BadInvitationId> {
        let is_id = text.len() == 16 && text.bytes().all(|octet| matches!(octet, b'0'..=b'9' | b'a'..=b'f'));
        let number = is_id.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        number.map(|number| Self(number.to_be_bytes())).ok_or(BadInvitationId)
    }
}

wayleave_core::wire! {
    /// What whoever redeems it is granted.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct Invitation: Self::check {
        pub id: InvitationId,
        /// The public half of the one-time key (Ed25519).
        pub key: [u8; 32],
        /// The account's name, if there is none yet.
        pub name: String as Ascii<MAX_NAME>,
        /// Seconds that the grants last from the redemption on.
        pub lasts: u64,
        /// The last Unix second at which it can be redeemed.
        pub not_after: u64,
        /// The capabilities, all of one principal.
        pub terms: Vec<Terms> as List16<MAX_INVITED>,
    }
}

impl Invitation {
    /// Octets of the longest encoding.
    pub(super) const MAX: usize = 8 + 32 + 1 + MAX_NAME + 8 + 8 + 2 + MAX_INVITED * Terms::MAX;

    /// Whose account it is.
    #[must_use]
    pub fn principal(&self) -> Option<Principal> {
        self.terms.first().map(|terms| terms.principal)
    }

    /// Whether it can be recorded: it has grants, each once and all of one principal, and a name that is a text.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let is_one = self.terms.iter().all(|terms| Some(terms.principal) == self.principal());
        let is_once = self.terms.iter().enumerate().all(|(at, terms)| !self.terms[..at].contains(terms));
        (1..=MAX_INVITED).contains(&self.terms.len()) && is_one && is_once && is_text(&self.name, MAX_NAME)
    }

    fn check(&self) -> Result<(), Malformed> {
        if self.is_sound() { Ok(()) } else { Err(Malformed::Value("the grants of an invitation")) }
    }
}

wayleave_core::wire! {
    /// What became of an invitation.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum InvitationStatus: "what became of an invitation" {
        /// It can be redeemed until it expires.
        0 = Open,
        1 = Redeemed {
            /// The holder's own key (Ed25519), to which repeats are bound.
            holder: [u8; 32],
            /// Unix seconds.
            at: u64,
            /// The generation of the account's keys that the holder was given capabilities of.
            generation: u32,
        },
        2 = Withdrawn,
    }
}

/// Why a change about an invitation is not possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvitationError {
    #[error("there is no such invitation")]
    Unknown,
    #[error("the invitation was used already, by another holder")]
    Used,
    #[error("the invitation was withdrawn by the provider")]
    Withdrawn,
    #[error("the invitation has expired")]
    Expired,
    #[error("an invitation with this ID exists already")]
    Twice,
    #[error(
        "an invitation has 1 to {MAX_INVITED} different grants of one principal, and a name of at most {MAX_NAME} ASCII characters"
    )]
    Terms,
    #[error("{MAX_INVITATIONS} invitations are remembered: wait until old ones are forgotten")]
    Full,
}

/// All that are remembered.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Invitations(BTreeMap<InvitationId, (Invitation, InvitationStatus)>);

impl Invitations {
    pub(super) fn get(&self, id: InvitationId) -> Option<(&Invitation, InvitationStatus)> {
        self.0.get(&id).map(|(invitation, status)| (invitation, *status))
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (&Invitation, InvitationStatus)> {
        self.0.values().map(|(invitation, status)| (invitation, *status))
    }

    /// Whether an invitation can be added in this Unix second.
    pub(super) fn check(&self, invitation: &Invitation, second: u64) -> Result<(), InvitationError> {
        if !invitation.is_sound() {
            return Err(InvitationError::Terms);
        }
        if self.0.contains_key(&invitation.id) {
            return Err(InvitationError::Twice);
        }
        let is_full = self.0.len() >= MAX_INVITATIONS
            && self.0.values().filter(|(of, _)| is_remembered(of, second)).count() >= MAX_INVITATIONS;
        if is_full { Err(InvitationError::Full) } else { Ok(()) }
    }

    /// An invitation that can be redeemed in this Unix second.
    pub(super) fn redeemable(&self, id: InvitationId, second: u64) -> Result<&Invitation, InvitationError> {
        match self.0.get(&id) {
            None => Err(InvitationError::Unknown),
            Some((_, InvitationStatus::Redeemed { .. })) => Err(InvitationError::Used),
            Some((_, InvitationStatus::Withdrawn)) => Err(InvitationError::Withdrawn),
            Some((invitation, InvitationStatus::Open)) if invitation.not_after < second => {
                Err(InvitationError::Expired)
            }
            Some((invitation, InvitationStatus::Open)) => Ok(invitation),
        }
    }

    /// Whether an invitation can be withdrawn.
    pub(super) fn withdrawable(&self, id: InvitationId) -> Result<(), InvitationError> {
        match self.0.get(&id) {
            None => Err(InvitationError::Unknown),
            Some((_, InvitationStatus::Redeemed { .. })) => Err(InvitationError::Used),
            Some((_, InvitationStatus::Withdrawn)) => Err(InvitationError::Withdrawn),
            Some((_, InvitationStatus::Open)) => Ok(()),
        }
    }

    /// Adds an invitation, and forgets those that expired long ago.
    pub(super) fn insert(&mut self, invitation: &Invitation, second: u64) {
        self.0.retain(|_, (of, _)| is_remembered(of, second));
        self.0.insert(invitation.id, (invitation.clone(), InvitationStatus::Open));
    }

    /// Those that are forgotten with the next one in this Unix second.
    pub(super) fn forgotten(&self, second: u64) -> impl Iterator<Item = InvitationId> {
        self.0.iter().filter(move |(_, (of, _))| !is_remembered(of, second)).map(|(id, _)| *id)
    }

    /// Takes one from a snapshot. `false` if there are too many.
    pub(super) fn restore(&mut self, invitation: Invitation, status: InvitationStatus) -> bool {
        let has_capacity = self.0.len() < MAX_INVITATIONS;
        if has_capacity {
            self.0.insert(invitation.id, (invitation, status));
        }
        has_capacity
    }

    pub(super) fn set(&mut self, id: InvitationId, status: InvitationStatus) {
        if let Some((_, held)) = self.0.get_mut(&id) {
            *held = status;
        }
    }

    /// Withdraws what is open for a principal.
    pub(super) fn withdraw_of(&mut self, principal: Principal) {
        for (invitation, status) in self.0.values_mut() {
            if invitation.principal() == Some(principal) && *status == InvitationStatus::Open {
                *status = InvitationStatus::Withdrawn;
            }
        }
    }
}

fn is_remembered(invitation: &Invitation, second: u64) -> bool {
    invitation.not_after.saturating_add(REMEMBERED) >= second
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_one_text() {
        let id = InvitationId([0, 1, 2, 3, 4, 5, 6, 0xff]);
        assert_eq!(id.to_string(), "00010203040506ff");
        assert_eq!(id.to_string().parse(), Ok(id));
        for text in ["", "00010203040506f", "00010203040506fF", "+0010203040506ff", "00010203040506ff0"] {
            assert!(text.parse::<InvitationId>().is_err(), "{text}");
        }
    }
}

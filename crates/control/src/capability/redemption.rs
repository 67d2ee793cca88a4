//! How an invitation is redeemed: what the holder asks by HTTPS, and what the server makes of it.

use wayleave_core::UnixTime;
use wayleave_crypto::sign::{Signature, SigningKey, VerifyingKey};

use super::credential::Credential;
use super::invitation::{InvitationError, InvitationId, InvitationStatus};
use super::request::WINDOW;
use super::state::{ChangeBody, State};
use super::zone::Zone;

/// Under which the one-time key signs.
const PROOF: &str = "wayleave/capability/redemption/proof/v1";
/// Under which the holder's own key signs.
const POSSESSION: &str = "wayleave/capability/redemption/possession/v1";

/// What a holder asks for. Both keys sign the ID, the holder's key and the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RedemptionRequest {
    pub id: InvitationId,
    /// The holder's own key, made for this.
    pub holder: [u8; 32],
    /// Unix seconds at the holder.
    pub time: u64,
    /// The signature of the invitation's one-time key.
    pub proof: Signature,
    /// The signature of the holder's own key.
    pub possession: Signature,
}

impl RedemptionRequest {
    pub(super) fn sign(id: InvitationId, key: &SigningKey, holder: &SigningKey, now: UnixTime) -> Self {
        let (own, time) = (holder.verifying_key().to_bytes(), now.secs());
        let covered = covered(id, &own, time);
        let (proof, possession) = (key.sign(PROOF, &covered), holder.sign(POSSESSION, &covered));
        Self { id, holder: own, time, proof, possession }
    }

    /// Whether both keys signed it; `key` is the public half of the invitation's one-time key.
    #[must_use]
    pub fn is_signed(&self, key: &[u8; 32]) -> bool {
        let covered = covered(self.id, &self.holder, self.time);
        let holds = |key: &[u8; 32], label: &str, signature: &Signature| {
            VerifyingKey::from_bytes(key).is_ok_and(|key| key.verify(label, &covered, signature).is_ok())
        };
        holds(key, PROOF, &self.proof) && holds(&self.holder, POSSESSION, &self.possession)
    }
}

/// What is signed: ID, holder's key, time.
fn covered(id: InvitationId, holder: &[u8; 32], time: u64) -> Vec<u8> {
    [&id.0[..], holder, &time.to_be_bytes()].concat()
}

/// Why an invitation is not redeemed. Who does not hold it learns [`RedemptionRefusal::Unknown`] and no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RedemptionRefusal {
    #[error("this key server does not know the invitation: the line is of another server, too old, or not real")]
    Unknown,
    #[error("the invitation was used already, by another holder; if that was not you, tell the provider at once")]
    Used,
    #[error("the invitation was withdrawn by the provider: ask for another")]
    Withdrawn,
    #[error("the invitation has expired: ask the provider for another")]
    Expired,
    #[error("the clocks of holder and server differ by more than {WINDOW} s: set the clock")]
    Clock,
    #[error(
        "what the invitation gave is no longer granted: the account was closed, its keys were replaced, or a grant was withdrawn; ask the provider"
    )]
    Gone,
    #[error(
        "the account's number was another's until lately, and what that one looked up may still be good: redeem the line again later; the provider can say when"
    )]
    TooSoon,
}

/// What becomes of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Redemption {
    /// To be made durable and applied; then [`State::invited`] has the capabilities.
    New(ChangeBody),
    /// It was redeemed by this holder before.
    Repeated,
}

impl State {
    /// What a request asks for, if it may.
    ///
    /// # Errors
    /// Why not. Nothing has changed.
    pub fn redemption(&self, request: &RedemptionRequest, now: UnixTime) -> Result<Redemption, RedemptionRefusal> {
        let (invitation, status) = self.invitation(request.id).ok_or(RedemptionRefusal::Unknown)?;
        if !request.is_signed(&invitation.key) {
            return Err(RedemptionRefusal::Unknown);
        }
        if request.time.abs_diff(now.secs()) > WINDOW {
            return Err(RedemptionRefusal::Clock);
        }
        match status {
            InvitationStatus::Redeemed { holder, .. } if holder == request.holder => Ok(Redemption::Repeated),
            _ => match self.redeemable(request.id, now.secs()) {
                Ok(()) if invitation.principal().is_some_and(|of| self.check_reopening(of, now.secs()).is_err()) => {
                    Err(RedemptionRefusal::TooSoon)
                }
                Ok(()) => Ok(Redemption::New(ChangeBody::Redeem { invitation: request.id, holder: request.holder })),
                Err(InvitationError::Used) => Err(RedemptionRefusal::Used),
                Err(InvitationError::Withdrawn) => Err(RedemptionRefusal::Withdrawn),
                Err(InvitationError::Expired) => Err(RedemptionRefusal::Expired),
                Err(_) => Err(RedemptionRefusal::Unknown),
            },
        }
    }

    /// The capabilities that a redeemed invitation gave, each with the Unix second until which it is granted.
    ///
    /// # Errors
    /// If it gave none, or not all of them are granted any more.
    pub fn invited(&self, id: InvitationId, zone: &Zone) -> Result<Vec<(Credential, u64)>, RedemptionRefusal> {
        let (invitation, status) = self.invitation(id).ok_or(RedemptionRefusal::Unknown)?;
        let InvitationStatus::Redeemed { generation, .. } = status else { return Err(RedemptionRefusal::Gone) };
        let held = invitation.principal().and_then(|principal| self.account(principal));
        if held.is_none_or(|(_, held)| held != generation) {
            return Err(RedemptionRefusal::Gone);
        }
        let of = |terms| {
            let slot = self.find(terms)?;
            let (grant, key) = (self.capped(slot)?, self.key(slot)?.clone());
            Some((Credential { zone: zone.clone(), terms: grant.terms, key }, grant.not_after))
        };
        invitation.terms.iter().map(of).collect::<Option<_>>().ok_or(RedemptionRefusal::Gone)
    }
}

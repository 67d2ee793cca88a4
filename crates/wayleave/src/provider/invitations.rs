//! Invitations as the provider makes and lists them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use wayleave_control::capability::{ApiUrl, Invitation, InvitationId, InvitationLine, InvitationStatus, State, Terms};
use wayleave_crypto::secret::Seed;
use wayleave_runtime::api_tls::KeyPin;
use wayleave_runtime::clock::utc;

use super::orders::grant_id;
use crate::failure::Failure;
use crate::key_files::node::fresh;

/// Days for which an invitation can be redeemed, if none are named.
pub const DEFAULT_EXPIRY: u64 = 7;

/// What an invitation is to give.
#[derive(Clone, Debug)]
pub struct InvitationOrder {
    pub name: String,
    pub terms: Vec<Terms>,
    /// Seconds that the grants last from the redemption on.
    pub lasts: u64,
    /// The last Unix second at which it can be redeemed.
    pub not_after: u64,
}

/// A new invitation: the line for whoever is invited, and what the database has of it. `named` are its ID and secret, if they are
/// not to be drawn.
///
/// # Errors
/// If the system gives no randomness.
pub fn invite(
    order: InvitationOrder,
    (url, pin): (ApiUrl, KeyPin),
    named: Option<(InvitationId, Seed)>,
) -> Result<(InvitationLine, Invitation), Failure> {
    let InvitationOrder { name, terms, lasts, not_after } = order;
    let (id, secret) = match named {
        Some(named) => named,
        None => (InvitationId(*fresh()?), Seed::new(*fresh()?)),
    };
    let line = InvitationLine { url, pin: pin.0, id, secret, not_after };
    let invitation = Invitation { id, key: line.key(), name, lasts, not_after, terms };
    Ok((line, invitation))
}

/// Why a new invitation would not be the only way to its principal; `None` if it is. All that hold capabilities of one principal
/// have the keys of one account, and one bill.
pub fn shared_with(state: &State, invitation: &Invitation, now: u64) -> Option<String> {
    let principal = invitation.principal()?;
    let number = principal.number();
    let who = match state.account(principal) {
        Some((name, _)) => format!("principal {number} has an account already, `{name}`"),
        None => {
            let mut others = state.invitations().filter(|(other, _)| other.principal() == Some(principal));
            let (other, _) = others.find(|(other, status)| state_of(other, *status, now) == InvitationState::Open)?;
            format!("principal {number} is invited already, as `{}`, by invitation {}", other.name, other.id)
        }
    };
    Some(format!("{who}: whoever redeems this one too shares its keys and its bill"))
}

wayleave_core::named! {
    /// What an invitation can be.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "lowercase")]
    pub enum InvitationState {
        Open = "open",
        Used = "used",
        Expired = "expired",
        Withdrawn = "withdrawn",
    }
}

/// What an invitation is now.
pub fn state_of(invitation: &Invitation, status: InvitationStatus, now: u64) -> InvitationState {
    match status {
        InvitationStatus::Redeemed { .. } => InvitationState::Used,
        InvitationStatus::Withdrawn => InvitationState::Withdrawn,
        InvitationStatus::Open if invitation.not_after < now => InvitationState::Expired,
        InvitationStatus::Open => InvitationState::Open,
    }
}

/// An invitation in a list.
#[derive(Serialize, ToSchema)]
#[schema(as = Invitation)]
pub struct ListedInvitation {
    #[schema(pattern = "^[0-9a-f]{16}$")]
    pub id: String,
    #[schema(required)]
    principal: Option<u32>,
    name: String,
    state: InvitationState,
    /// The last Unix second at which it can be redeemed.
    expires: u64,
    /// Days of the grants, from the redemption on.
    days: u64,
    /// The Unix second at which it was redeemed.
    #[schema(required)]
    used: Option<u64>,
    grants: Vec<InvitedGrant>,
}

/// What an invitation is to give.
#[derive(Serialize, ToSchema)]
pub struct InvitedGrant {
    #[schema(pattern = "^[0-9a-f]{16}$")]
    id: String,
    #[schema(value_type = String)]
    waypoint: IpAddr,
    /// Binary logarithm of a key epoch's length in seconds.
    #[schema(minimum = 4, maximum = 24)]
    interval: u8,
    #[schema(required)]
    delegation: Option<u32>,
    #[schema(required)]
    prefix: Option<String>,
}

/// An invitation in a list.
pub fn describe(invitation: &Invitation, status: InvitationStatus, now: u64) -> ListedInvitation {
    let grant = |terms: &Terms| InvitedGrant {
        id: grant_id(terms),
        waypoint: terms.waypoint,
        interval: terms.interval.exponent(),
        delegation: terms.delegation.map(|delegation| delegation.id.number()),
        prefix: terms.delegation.map(|delegation| delegation.prefix.to_string()),
    };
    let used = match status {
        InvitationStatus::Redeemed { at, .. } => Some(at),
        _ => None,
    };
    ListedInvitation {
        id: invitation.id.to_string(),
        principal: invitation.principal().map(|principal| principal.number()),
        name: invitation.name.clone(),
        state: state_of(invitation, status, now),
        expires: invitation.not_after,
        days: invitation.lasts / super::orders::DAY,
        used,
        grants: invitation.terms.iter().map(grant).collect(),
    }
}

/// The same as a row of a table.
pub fn row(described: &Value) -> Value {
    let time = |of: &str| described[of].as_u64().map(utc);
    let grants = described["grants"].as_array().into_iter().flatten();
    let waypoints: Vec<String> = grants.filter_map(|grant| grant["waypoint"].as_str().map(str::to_owned)).collect();
    json!({
        "id": described["id"], "principal": described["principal"], "name": described["name"],
        "waypoints": waypoints.join(" "), "state": described["state"], "expires": time("expires"), "used": time("used"),
    })
}

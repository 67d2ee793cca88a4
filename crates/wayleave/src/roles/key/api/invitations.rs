//! Invitations: made, listed, withdrawn by the operator; redeemed by who holds one.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};
use wayleave_control::capability::{
    ApiUrl, ChangeBody, Credential, Invitation, InvitationError, InvitationId, InvitationLine, InvitationStatus,
    MAX_INVITED, REMEMBERED, Redemption, RedemptionRefusal, RedemptionRequest, State as Records, Terms,
};
use wayleave_crypto::hash::sha256;
use wayleave_runtime::api_tls::KeyPin;
use wayleave_runtime::clock::utc;
use wayleave_runtime::identity::from_hex;
use zeroize::Zeroizing;

use super::super::core::lock;
use super::caller::{Caller, Reader, Redeemer, Seller};
use super::counts::count;
use super::extract::{IdempotencyKey, Json, NoBody, NoQuery, Path, PrincipalNumber, Query, most, page};
use super::problem::{Problem, ProblemKind};
use super::{Answer, Api, Changed, Created};
use crate::provider::invitations::{
    DEFAULT_EXPIRY, InvitationOrder, InvitationState, ListedInvitation, describe, invite, shared_with, state_of,
};
use crate::provider::orders::{DEFAULT_DAYS, GrantFields, Time, check_name, days, end};

/// Invitations of a page: by default, and at most.
const PAGE: (usize, usize) = (1_000, 10_000);

/// What an invitation is to give, and to whom.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "principal": 7, "name": "customer", "waypoints": ["198.51.100.1"], "days": 30, "expires_days": 7,
}))]
pub struct NewInvitation {
    #[schema(maximum = 16_777_215)]
    principal: u32,
    #[schema(max_length = 64, pattern = "^[ -~]*$")]
    name: String,
    #[schema(value_type = Vec<String>, min_items = 1, max_items = 16)]
    waypoints: Vec<IpAddr>,
    /// Binary logarithm of a key epoch's length in seconds; 12 by default.
    #[schema(minimum = 4, maximum = 24)]
    interval: Option<u8>,
    #[serde(default)]
    narrow: bool,
    /// Destinations that it is restricted to; needs `delegation`.
    prefix: Option<String>,
    #[schema(maximum = 16_777_215)]
    delegation: Option<u32>,
    /// Days of the grants, from the redemption on; 365 by default.
    #[schema(minimum = 1, maximum = 36_500)]
    days: Option<u64>,
    /// Days for which it can be redeemed; 7 by default.
    #[schema(minimum = 1, maximum = 36_500)]
    expires_days: Option<u64>,
    /// Until when it can be redeemed, in the place of `expires_days`.
    expires: Option<Time>,
    /// Invite although the principal has an account or an open invitation: all who redeem one share its keys and its bill.
    /// Without it the answer is 409.
    #[serde(default)]
    again: bool,
}

/// Who redeems which invitation, and may.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Redemption)]
pub struct RedeemInvitation {
    #[schema(pattern = "^[0-9a-f]{16}$", example = "0123456789abcdef")]
    invitation: String,
    /// The holder's own Ed25519 key, made for this.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    holder: String,
    /// Unix seconds.
    time: u64,
    /// Ed25519 signature by the invitation's one-time key, see docs/wire/capabilities.md.
    #[schema(pattern = "^[0-9a-f]{128}$")]
    proof: String,
    /// Ed25519 signature by the holder's own key.
    #[schema(pattern = "^[0-9a-f]{128}$")]
    possession: String,
}

/// Which page of invitations.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct Page {
    /// Only those of this principal.
    #[param(value_type = Option<u32>, maximum = 16_777_215, example = 7)]
    principal: Option<PrincipalNumber>,
    /// Only those in this state.
    #[param(inline, example = "open")]
    state: Option<InvitationState>,
    /// Only IDs above this one.
    #[param(pattern = "^[0-9a-f]{16}$", example = "0000000000000000")]
    after: Option<String>,
    /// Entries of a page.
    #[param(minimum = 1, maximum = 10_000, example = 10)]
    most: Option<usize>,
}

/// Which invitation.
#[derive(Deserialize, IntoParams)]
pub struct OneInvitation {
    #[param(pattern = "^[0-9a-f]{16}$", example = "0123456789abcdef")]
    invitation: String,
}

/// A page of invitations.
#[derive(Serialize, ToSchema)]
pub struct Invitations {
    invitations: Vec<ListedInvitation>,
    /// The value of `after` for the next page; null behind the last.
    #[schema(required)]
    next: Option<String>,
}

/// An invitation that was made.
#[derive(Serialize, ToSchema)]
pub struct Invited {
    /// Number of the last change.
    number: u64,
    #[schema(pattern = "^[0-9a-f]{16}$")]
    id: String,
    /// One line for whoever is invited: a secret that works once.
    #[schema(value_type = String, pattern = "^wayleave-invitation-[A-Za-z0-9_-]+$")]
    invitation: Zeroizing<String>,
    /// Unix seconds.
    expires: u64,
}

/// A capability, and how long it is granted.
#[derive(Serialize, ToSchema)]
pub struct GivenCapability {
    /// The capability in one line: a secret.
    #[schema(value_type = String, pattern = "^wayleave-cap-[A-Za-z0-9_-]+$")]
    capability: Zeroizing<String>,
    terms: String,
    /// Unix seconds.
    until: u64,
}

/// What an invitation gave.
#[derive(Serialize, ToSchema)]
pub struct Redeemed {
    #[schema(min_items = 1)]
    capabilities: Vec<GivenCapability>,
    /// The same holder had redeemed it before.
    repeated: bool,
}

fn id(text: &str) -> Result<InvitationId, Problem> {
    text.parse().map_err(|error| Problem::new(ProblemKind::Request, format!("{error}")))
}

/// A page of invitations, by ID
#[utoipa::path(
    get,
    path = "/v1/invitations",
    operation_id = "listInvitations",
    security(("token" = ["read"])),
    params(Page),
    responses((status = 200, description = "Done.", body = Invitations))
)]
pub async fn list(
    State(api): State<Arc<Api>>,
    _: Caller<Reader>,
    Query(wanted): Query<Page>,
    _: NoBody,
) -> Answer<Invitations> {
    let after = wanted.after.as_deref().map(id).transpose()?;
    let most = most(wanted.most, PAGE)?;
    api.run(move |api| {
        let now = api.clock.now().unix.secs();
        let core = lock(&api.core);
        let is_wanted = |(invitation, status): &(&Invitation, InvitationStatus)| {
            Some(invitation.id) > after
                && wanted.principal.is_none_or(|principal| invitation.principal() == Some(principal.0))
                && wanted.state.is_none_or(|state| state_of(invitation, *status, now) == state)
        };
        let behind = core.server.state().invitations().filter(is_wanted);
        let described = behind.map(|(invitation, status)| describe(invitation, status, now));
        let (invitations, next) = page(described, most, |last| last.id.clone());
        Ok(Json(Invitations { invitations, next }))
    })
    .await
}

/// Invite somebody
#[utoipa::path(
    post,
    path = "/v1/invitations",
    operation_id = "invite",
    security(("token" = ["sell"])),
    params((
        "Idempotency-Key" = Option<String>,
        Header,
        description = "Names the request: a repeat with the same key and body gives the same invitation, at any key server and for as long as it can be redeemed; after that the answer says what became of it (409 or 410). 1 to 255 characters."
    )),
    responses((status = 201, description = "Done.", body = Invited), (status = 410, description = "The invitation of this request was withdrawn, or has expired."), (status = 422, description = "The `Idempotency-Key` was sent with another body."))
)]
pub async fn create(
    State(api): State<Arc<Api>>,
    caller: Caller<Seller>,
    _: NoQuery,
    key: Option<IdempotencyKey>,
    Json(fields): Json<NewInvitation>,
) -> Created<Invited> {
    check_name(&fields.name)?;
    if fields.waypoints.len() > MAX_INVITED {
        return Err(Problem::new(ProblemKind::Request, InvitationError::Terms.to_string()));
    }
    let terms = |waypoint: &IpAddr| {
        let NewInvitation { principal, interval, narrow, delegation, .. } = fields;
        let prefix = fields.prefix.clone();
        let (waypoint, days, ends) = (*waypoint, None, None);
        let (sources, delegate_sources, external_id, price, metadata) = (None, None, None, None, None);
        GrantFields {
            principal,
            waypoint,
            interval,
            narrow,
            prefix,
            delegation,
            days,
            ends,
            sources,
            delegate_sources,
            external_id,
            price,
            metadata,
        }
        .order()?
        .terms()
    };
    let terms = fields.waypoints.iter().map(terms).collect::<Result<_, _>>()?;
    let named = key.map(|key| {
        let name = sha256(format!("{}\n{}", caller.by, key.0).as_bytes());
        (name, sha256(json!(fields).to_string().as_bytes()))
    });
    let lasts = days(fields.days, DEFAULT_DAYS)?;
    let url = api.settings().url.clone().ok_or_else(|| {
        Problem::new(ProblemKind::Conflict, "the address at which holders reach this API is not known")
            .help("the operator adds `url` to [key.api]")
    })?;
    let NewInvitation { name, expires, expires_days, again, .. } = fields;
    api.run(move |api| {
        let wanted =
            RequestedInvitation { name, terms, lasts, expires, expires_days, again, at: (url, api.shown.pin()), named };
        let mut line = None;
        let number = api.change(caller.note(), &mut |state| {
            let (made, invitation) = wanted.decide(state, api.clock.now().unix.secs())?;
            line = Some(made);
            Ok(invitation.map(ChangeBody::Invite))
        })?;
        let line = line.ok_or_else(|| Problem::new(ProblemKind::Stopping, "nobody decided about the request"))?;
        let (id, invitation) = (line.id.to_string(), Zeroizing::new(line.expose()));
        Ok((StatusCode::CREATED, Json(Invited { number, id, invitation, expires: line.not_after })))
    })
    .await
}

/// An invitation as a request asks for it.
struct RequestedInvitation {
    name: String,
    terms: Vec<Terms>,
    lasts: u64,
    expires: Option<Time>,
    expires_days: Option<u64>,
    again: bool,
    at: (ApiUrl, KeyPin),
    /// Of a request that may be repeated, the digests of what names it and of all of it.
    named: Option<([u8; 32], [u8; 32])>,
}

impl RequestedInvitation {
    /// The line of the invitation; and the invitation, if no earlier request like this one has made it.
    fn decide(&self, state: &Records, now: u64) -> Result<(InvitationLine, Option<Invitation>), Problem> {
        let earlier = self.named.and_then(|(name, _)| state.invitation_of_request(&name));
        let not_after = earlier.map_or_else(|| self.end(now), |(earlier, _)| Ok(earlier.not_after))?;
        let names = self.named.map(|(name, content)| state.names_of_request(&name, &content, not_after));
        let (name, terms) = (self.name.clone(), self.terms.clone());
        let order = InvitationOrder { name, terms, lasts: self.lasts, not_after };
        let (line, invitation) = invite(order, self.at.clone(), names)?;
        let Some((earlier, status)) = earlier else {
            let shared = shared_with(state, &invitation, now).filter(|_| !self.again);
            return shared.map_or(Ok((line, Some(invitation))), |shared| {
                Err(Problem::new(ProblemKind::Conflict, shared).help(
                    "choose another principal; or repeat the request with `again` (`--again` of the command) if it is the same customer",
                ))
            });
        };
        if earlier.key != invitation.key {
            let what = "this `Idempotency-Key` was sent with another request";
            return Err(Problem::new(ProblemKind::Repeated, what).help("send each request with a key of its own"));
        }
        spent(earlier, status, now).map_or(Ok((line, None)), Err)
    }

    /// The last second of a new invitation. What such a request may have made long ago is forgotten.
    fn end(&self, now: u64) -> Result<u64, Problem> {
        match self.expires {
            Some(Time(expires)) if self.named.is_some() && expires.saturating_add(REMEMBERED) < now => {
                let what = format!(
                    "what this request invites to expired at {}, and is forgotten if it was made",
                    utc(expires)
                );
                Err(Problem::new(ProblemKind::Gone, what).help(ANEW))
            }
            _ => Ok(end(self.expires, self.expires_days, DEFAULT_EXPIRY, now)?),
        }
    }
}

const ANEW: &str = "to invite anew, send a request with another `Idempotency-Key`";

/// Why the line of an invitation that was made is not given again: nobody can redeem it any more.
fn spent(invitation: &Invitation, status: InvitationStatus, now: u64) -> Option<Problem> {
    let what = format!("this request made invitation {}, which", invitation.id);
    let problem = match status {
        InvitationStatus::Open if invitation.not_after >= now => return None,
        InvitationStatus::Open => {
            Problem::new(ProblemKind::Gone, format!("{what} expired at {}", utc(invitation.not_after))).help(ANEW)
        }
        InvitationStatus::Redeemed { at, .. } => {
            Problem::new(ProblemKind::Conflict, format!("{what} was redeemed at {}", utc(at))).help(ANEW)
        }
        InvitationStatus::Withdrawn => Problem::new(ProblemKind::Gone, format!("{what} was withdrawn"))
            .help(format!("`wayleave cap changes` at the server says when, and by whom; {ANEW}")),
    };
    Some(problem)
}

/// Withdraw an invitation that nobody has used
#[utoipa::path(
    delete,
    path = "/v1/invitations/{invitation}",
    operation_id = "withdrawInvitation",
    security(("token" = ["sell"])),
    params(OneInvitation),
    responses((status = 200, description = "Done.", body = Changed), (status = 404, description = "There is no such thing."))
)]
pub async fn withdraw(
    State(api): State<Arc<Api>>,
    caller: Caller<Seller>,
    _: NoQuery,
    Path(one): Path<OneInvitation>,
    _: NoBody,
) -> Answer<Changed> {
    let id = id(&one.invitation)?;
    api.change_for(caller, move |state| {
        if state.invitation(id).is_none() {
            return Err(Problem::new(ProblemKind::NotFound, InvitationError::Unknown.to_string()));
        }
        Ok(Some(ChangeBody::Uninvite(id)))
    })
    .await
}

/// Redeem an invitation: its holder needs no token
#[utoipa::path(
    post,
    path = "/v1/redemptions",
    operation_id = "redeem",
    security(()),
    responses((status = 200, description = "Done.", body = Redeemed), (status = 404, description = "There is no such thing."), (status = 410, description = "It was there, and is no more."))
)]
pub async fn redeem(
    State(api): State<Arc<Api>>,
    caller: Caller<Redeemer>,
    _: NoQuery,
    Json(fields): Json<RedeemInvitation>,
) -> Answer<Redeemed> {
    let request = request(&fields)?;
    api.run(move |api| redeemed(api, caller.note(), &request)).await
}

fn redeemed(api: &Api, note: (&str, &str), request: &RedemptionRequest) -> Answer<Redeemed> {
    let now = api.clock.now().unix;
    let mut is_repeated = false;
    let mut refusal = None;
    // Questions do not wait while signatures are verified, and who holds nothing costs no look at the disk.
    let key = lock(&api.core).server.state().invitation(request.id).map(|(invitation, _)| invitation.key);
    if !key.is_some_and(|key| request.is_signed(&key)) {
        return Err(refused_by(api, RedemptionRefusal::Unknown));
    }
    let changed = api.change(note, &mut |state| match state.redemption(request, now) {
        Ok(Redemption::New(body)) => Ok(Some(body)),
        Ok(Redemption::Repeated) => {
            is_repeated = true;
            Ok(None)
        }
        Err(refused) => {
            refusal = Some(refused);
            Err(problem(refused))
        }
    });
    if let Some(refused) = refusal {
        return Err(refused_by(api, refused));
    }
    changed?;
    let given = {
        let core = lock(&api.core);
        core.server.state().invited(request.id, core.server.zone())
    };
    let given = given.map_err(|refused| refused_by(api, refused))?;
    count(if is_repeated { &api.counts.repeated } else { &api.counts.redeemed });
    let capabilities = given.iter().map(|(credential, until)| capability(credential, *until)).collect();
    Ok(Json(Redeemed { capabilities, repeated: is_repeated }))
}

fn capability(credential: &Credential, until: u64) -> GivenCapability {
    let capability = Zeroizing::new(credential.expose());
    GivenCapability { capability, terms: credential.terms.to_string(), until }
}

fn request(fields: &RedeemInvitation) -> Result<RedemptionRequest, Problem> {
    let refused = |name: &str, what: &str| Problem::new(ProblemKind::Request, format!("`{name}` is not {what}"));
    let signature = |name: &str, text: &str| -> Result<[u8; 64], Problem> {
        let halves = text.is_ascii().then(|| text.split_at_checked(64)).flatten();
        let halves = halves.and_then(|(first, second)| Some([from_hex(first)?, from_hex(second)?]));
        let [first, second] = halves.ok_or_else(|| refused(name, "a signature of 128 hexadecimal digits"))?;
        let mut whole = [0; 64];
        whole[..32].copy_from_slice(&first);
        whole[32..].copy_from_slice(&second);
        Ok(whole)
    };
    Ok(RedemptionRequest {
        id: id(&fields.invitation)?,
        holder: from_hex(&fields.holder).ok_or_else(|| refused("holder", "a key of 64 hexadecimal digits"))?,
        time: fields.time,
        proof: signature("proof", &fields.proof)?,
        possession: signature("possession", &fields.possession)?,
    })
}

fn problem(refused: RedemptionRefusal) -> Problem {
    let kind = match refused {
        RedemptionRefusal::Unknown => ProblemKind::NotFound,
        RedemptionRefusal::Used | RedemptionRefusal::TooSoon => ProblemKind::Conflict,
        RedemptionRefusal::Withdrawn | RedemptionRefusal::Expired | RedemptionRefusal::Gone => ProblemKind::Gone,
        RedemptionRefusal::Clock => ProblemKind::Request,
    };
    Problem::new(kind, refused.to_string())
}

/// Counts why an invitation is not redeemed.
fn refused_by(api: &Api, refused: RedemptionRefusal) -> Problem {
    let counts = &api.counts;
    count(match refused {
        RedemptionRefusal::Unknown => &counts.redemptions_forged,
        RedemptionRefusal::Used => &counts.redemptions_used,
        RedemptionRefusal::Withdrawn => &counts.redemptions_withdrawn,
        RedemptionRefusal::Expired => &counts.redemptions_expired,
        RedemptionRefusal::Clock => &counts.redemptions_clock,
        RedemptionRefusal::Gone => &counts.redemptions_gone,
        RedemptionRefusal::TooSoon => &counts.redemptions_too_soon,
    });
    problem(refused)
}

#[cfg(test)]
mod tests {
    use wayleave_control::capability::ProviderKey;
    use wayleave_core::UnixTime;
    use wayleave_crypto::secret::Seed;
    use wayleave_crypto::sign::SigningKey;
    use wayleave_packet::platypus::header::{Interval, Principal, Width};

    use super::*;

    #[test]
    fn a_repeat_whose_time_is_over_says_what_became_of_what_it_made() {
        const NOW: u64 = 1_800_000_000;
        let key = SigningKey::from_seed(&Seed::new([1; 32]));
        let empty = || Records::new(ProviderKey::new(Seed::new([2; 32])));
        let mut state = empty();
        let (principal, interval) = (Principal::new(7).expect("24 bits"), Interval::new(12).expect("in range"));
        let waypoint = IpAddr::from([198, 51, 100, 1]);
        let wanted = RequestedInvitation {
            name: "customer".to_owned(),
            terms: vec![Terms { waypoint, principal, interval, width: Width::Full, delegation: None }],
            lasts: 9,
            expires: Some(Time(NOW + 9)),
            expires_days: None,
            again: false,
            at: ("https://keys.example.net:8495".parse().expect("an address"), KeyPin([3; 32])),
            named: Some(([4; 32], [5; 32])),
        };
        let (line, invitation) = wanted.decide(&state, NOW).expect("made");
        let body = ChangeBody::Invite(invitation.expect("a new one"));
        let change = state.sign(body, &key, UnixTime(NOW * 1_000_000)).expect("possible");
        state.apply(&change, &key.verifying_key()).expect("the next");
        let (again, invitation) = wanted.decide(&state, NOW + 9).expect("in time");
        assert!(again.expose() == line.expose() && invitation.is_none());
        let refused = |state: &Records, now| {
            let problem = wanted.decide(state, now).expect_err("refused");
            (problem.kind, format!("{problem:?}"))
        };
        let (kind, said) = refused(&state, NOW + 10);
        assert!(kind == ProblemKind::Gone && said.contains(&format!("expired at {}", utc(NOW + 9))), "{said}");
        // Of a state without it nobody knows whether it was made, once it would be forgotten.
        assert_eq!(refused(&empty(), NOW + 10).0, ProblemKind::Request);
        assert_eq!(refused(&empty(), NOW + 9 + REMEMBERED).0, ProblemKind::Request);
        let (kind, said) = refused(&empty(), NOW + 9 + REMEMBERED + 1);
        assert!(kind == ProblemKind::Gone && said.contains("is forgotten"), "{said}");
    }
}

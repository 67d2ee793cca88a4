//! Invitations: made, listed, withdrawn by the operator; redeemed by who holds one.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};
use wayleave_control::capability::{
    ChangeBody, Credential, InvitationError, InvitationId, MAX_INVITED, Redemption, RedemptionRefusal,
    RedemptionRequest,
};
use wayleave_runtime::identity::from_hex;
use zeroize::Zeroizing;

use super::super::core::lock;
use super::caller::{Caller, Operator, Reader, Redeemer};
use super::counts::count;
use super::extract::{Json, NoQuery, Path, Query, most};
use super::problem::{Problem, ProblemKind};
use super::{Answer, Api, created, ok};
use crate::provider::invitations::{DEFAULT_EXPIRY, InvitationOrder, describe, invite, shared_with};
use crate::provider::orders::{DEFAULT_DAYS, GrantFields, check_name, days};

/// Invitations of a page: by default, and at most.
const PAGE: (usize, usize) = (1_000, 10_000);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Invited {
    principal: u32,
    name: String,
    waypoints: Vec<IpAddr>,
    interval: Option<u8>,
    #[serde(default)]
    narrow: bool,
    prefix: Option<String>,
    delegation: Option<u32>,
    days: Option<u64>,
    expires_days: Option<u64>,
    #[serde(default)]
    again: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Redeemed {
    invitation: String,
    holder: String,
    time: u64,
    proof: String,
    possession: String,
}

/// Which page of invitations.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Page {
    after: Option<String>,
    most: Option<usize>,
}

fn id(text: &str) -> Result<InvitationId, Problem> {
    text.parse().map_err(|error| Problem::new(ProblemKind::Request, format!("{error}")))
}

/// A page of invitations.
pub async fn list(State(api): State<Arc<Api>>, _: Caller<Reader>, Query(page): Query<Page>) -> Answer {
    let after = page.after.as_deref().map(id).transpose()?;
    let most = most(page.most, PAGE)?;
    api.run(move |api| {
        let now = api.clock.now().unix.secs();
        let core = lock(&api.core);
        let behind = core.server.state().invitations().filter(|(invitation, _)| Some(invitation.id) > after);
        let mut page: Vec<Value> =
            behind.take(most + 1).map(|(invitation, status)| describe(invitation, status, now)).collect();
        drop(core);
        let more = page.len() > most;
        page.truncate(most);
        let next = if more { page.last().map(|last| last["id"].clone()) } else { None };
        ok(json!({ "invitations": page, "next": next }))
    })
    .await
}

/// Invites.
pub async fn create(
    State(api): State<Arc<Api>>,
    caller: Caller<Operator>,
    _: NoQuery,
    Json(fields): Json<Invited>,
) -> Answer {
    check_name(&fields.name)?;
    if fields.waypoints.len() > MAX_INVITED {
        return Err(Problem::new(ProblemKind::Request, InvitationError::Terms.to_string()));
    }
    let terms = |waypoint: &IpAddr| {
        let Invited { principal, interval, narrow, delegation, .. } = fields;
        let prefix = fields.prefix.clone();
        let days = None;
        GrantFields { principal, waypoint: *waypoint, interval, narrow, prefix, delegation, days }.order()?.terms()
    };
    let terms = fields.waypoints.iter().map(terms).collect::<Result<_, _>>()?;
    let not_after = api.clock.now().unix.secs() + days(fields.expires_days, DEFAULT_EXPIRY)?;
    let order = InvitationOrder { name: fields.name, terms, lasts: days(fields.days, DEFAULT_DAYS)?, not_after };
    let url = api.settings().url.clone().ok_or_else(|| {
        Problem::new(ProblemKind::Conflict, "the address at which holders reach this API is not known")
            .help("the operator adds `url` to [key.api]")
    })?;
    let (line, invitation) = invite(order, url, api.shown.pin())?;
    api.run(move |api| {
        let number = api.change(&caller.by, &mut |state| {
            let shared = shared_with(state, &invitation, api.clock.now().unix.secs());
            match shared.filter(|_| !fields.again) {
                None => Ok(Some(ChangeBody::Invite(invitation.clone()))),
                Some(shared) => Err(Problem::new(ProblemKind::Conflict, shared).help(
                    "choose another principal; or repeat the request with `again` (`--again` of the command) if it is the same customer",
                )),
            }
        })?;
        let text = Zeroizing::new(line.expose());
        created(json!({ "number": number, "id": line.id.to_string(), "invitation": *text, "expires": not_after }))
    })
    .await
}

/// Withdraws an invitation.
pub async fn withdraw(
    State(api): State<Arc<Api>>,
    caller: Caller<Operator>,
    _: NoQuery,
    Path(invitation): Path<String>,
) -> Answer {
    let id = id(&invitation)?;
    api.run(move |api| {
        let number = api.change(&caller.by, &mut |state| {
            if state.invitation(id).is_none() {
                return Err(Problem::new(ProblemKind::NotFound, InvitationError::Unknown.to_string()));
            }
            Ok(Some(ChangeBody::Uninvite(id)))
        })?;
        ok(json!({ "number": number }))
    })
    .await
}

/// Redeems an invitation: once, and again for the same holder.
pub async fn redeem(
    State(api): State<Arc<Api>>,
    caller: Caller<Redeemer>,
    _: NoQuery,
    Json(fields): Json<Redeemed>,
) -> Answer {
    let request = request(&fields)?;
    api.run(move |api| redeemed(api, &caller.by, &request)).await
}

fn redeemed(api: &Api, by: &str, request: &RedemptionRequest) -> Answer {
    let now = api.clock.now().unix;
    let mut is_repeated = false;
    let mut refusal = None;
    // Questions do not wait while signatures are verified, and who holds nothing costs no look at the disk.
    let key = lock(&api.core).server.state().invitation(request.id).map(|(invitation, _)| invitation.key);
    if !key.is_some_and(|key| request.is_signed(&key)) {
        return Err(refused_by(api, RedemptionRefusal::Unknown));
    }
    let changed = api.change(by, &mut |state| match state.redemption(request, now) {
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
    let capabilities: Vec<Value> = given.iter().map(|(credential, until)| capability(credential, *until)).collect();
    ok(json!({ "capabilities": capabilities, "repeated": is_repeated }))
}

fn capability(credential: &Credential, until: u64) -> Value {
    let line = Zeroizing::new(credential.expose());
    json!({ "capability": *line, "terms": credential.terms.to_string(), "until": until })
}

fn request(fields: &Redeemed) -> Result<RedemptionRequest, Problem> {
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

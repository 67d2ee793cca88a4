//! Quotas by volume: listed with what was sent, set, ended.

use std::sync::{Arc, PoisonError};

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use wayleave_control::capability::{ChangeBody, ChangeError, Month, QuotaStatus, VolumeQuota};
use wayleave_packet::platypus::header::Principal;
use wayleave_runtime::clock::utc;

use super::super::core::lock;
use super::accounts::missing;
use super::caller::{Caller, Owner, Seller};
use super::extract::{Json, NoBody, NoQuery, PrincipalNumber, Query, most, page};
use super::problem::{Problem, ProblemKind};
use super::{Answer, Api, Changed};
use crate::provider::orders::principal_of;

/// Quotas of a page: by default, and at most.
const PAGE: (usize, usize) = (1_000, 10_000);

/// What a principal with all its delegations may send in a calendar month (UTC). A key epoch counts for the month in which it begins.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "principal": 7, "soft_octets": 8_000_000_000_000_u64, "hard_octets": 10_000_000_000_000_u64 }))]
pub struct SetQuota {
    #[schema(maximum = 16_777_215)]
    principal: u32,
    /// Beyond it is reported.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 1_152_921_504_606_846_976_u64)]
    soft_octets: Option<u64>,
    /// Once it is used up, no secrets of the month are given, and those that were looked up are revoked.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 1_152_921_504_606_846_976_u64)]
    hard_octets: Option<u64>,
}

/// A quota, and what was sent of it.
#[derive(Serialize, ToSchema)]
pub struct Quota {
    #[schema(maximum = 16_777_215)]
    principal: u32,
    #[schema(required)]
    soft_octets: Option<u64>,
    #[schema(required)]
    hard_octets: Option<u64>,
    /// When the present month began.
    #[schema(format = DateTime)]
    month: String,
    /// What its routers reported of the month; null if this server has not read it, or has no routers.
    #[schema(required)]
    used_octets: Option<u64>,
    /// Beyond the soft limit, or the hard one used up.
    #[schema(pattern = "^(within|exceeded|used-up)$")]
    state: &'static str,
}

/// A page of quotas, by principal.
#[derive(Serialize, ToSchema)]
pub struct Quotas {
    /// Number of the last change.
    number: u64,
    quotas: Vec<Quota>,
    /// The value of `after` for the next page; null behind the last.
    #[schema(required)]
    next: Option<u32>,
}

/// Which quotas.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct Page {
    /// Only this one's; with a token for `own` it is that token's.
    #[param(value_type = Option<u32>, maximum = 16_777_215, example = 7)]
    principal: Option<PrincipalNumber>,
    /// Only principals above this one.
    #[param(value_type = Option<u32>, maximum = 16_777_215, example = 0)]
    after: Option<PrincipalNumber>,
    /// Quotas of a page.
    #[param(minimum = 1, maximum = 10_000, example = 10)]
    most: Option<usize>,
}

/// Whose quota.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct Whose {
    /// Of whom.
    #[param(value_type = u32, maximum = 16_777_215, example = 7)]
    principal: PrincipalNumber,
}

/// Quotas, and what was sent of them in the present month
#[utoipa::path(
    get,
    path = "/v1/quotas",
    operation_id = "listQuotas",
    security(("token" = ["own"])),
    params(Page),
    responses((status = 200, description = "Done.", body = Quotas))
)]
pub async fn list(
    State(api): State<Arc<Api>>,
    caller: Caller<Owner>,
    Query(wanted): Query<Page>,
    _: NoBody,
) -> Answer<Quotas> {
    let only = caller.only(wanted.principal)?;
    let most = most(wanted.most, PAGE)?;
    api.run(move |api| {
        let begins = Month::of(api.clock.now().unix.secs()).begin();
        let usage = api.view.quota_usage().lock().unwrap_or_else(PoisonError::into_inner).clone();
        let usage = usage.filter(|usage| usage.begins == begins);
        let core = lock(&api.core);
        let state = core.server.state();
        let after = wanted.after.map(|after| after.0);
        let is_wanted = |principal: Principal| only.is_none_or(|only| only == principal) && Some(principal) > after;
        let all = state.quotas().filter(|(principal, _)| is_wanted(*principal));
        let (found, next) = page(all, most, |(principal, _)| principal.number());
        let quota = |(principal, status): (Principal, &QuotaStatus)| {
            let number = principal.number();
            let used = usage.as_ref().map(|usage| usage.of(principal));
            Quota {
                principal: number,
                soft_octets: status.quota.soft,
                hard_octets: status.quota.hard,
                month: utc(begins),
                used_octets: used,
                state: status.state(begins, used.unwrap_or(0)).name(),
            }
        };
        Ok(Json(Quotas { number: state.number(), quotas: found.into_iter().map(quota).collect(), next }))
    })
    .await
}

/// Set a quota, in the place of one that there is; one that is used up and is raised ends no more
#[utoipa::path(
    put,
    path = "/v1/quotas",
    operation_id = "setQuota",
    security(("token" = ["sell"])),
    responses(
        (status = 200, description = "Done.", body = Changed),
        (status = 404, description = "There is no such account.")
    )
)]
pub async fn set(
    State(api): State<Arc<Api>>,
    caller: Caller<Seller>,
    _: NoQuery,
    Json(SetQuota { principal, soft_octets, hard_octets }): Json<SetQuota>,
) -> Answer<Changed> {
    let (principal, quota) = (principal_of(principal)?, VolumeQuota { soft: soft_octets, hard: hard_octets });
    if !quota.is_sound() {
        let why = ChangeError::QuotaTerms.to_string();
        return Err(Problem::new(ProblemKind::Request, why));
    }
    api.change_for(caller, move |state| {
        state.account(principal).ok_or_else(|| missing(principal))?;
        let is_set = state.quota(principal).is_some_and(|held| held.quota == quota);
        Ok((!is_set).then_some(ChangeBody::SetQuota { principal, quota }))
    })
    .await
}

/// End a quota
#[utoipa::path(
    delete,
    path = "/v1/quotas",
    operation_id = "endQuota",
    security(("token" = ["sell"])),
    params(Whose),
    responses((status = 200, description = "Done.", body = Changed), (status = 404, description = "There is no such thing."))
)]
pub async fn end(
    State(api): State<Arc<Api>>,
    caller: Caller<Seller>,
    Query(Whose { principal: PrincipalNumber(principal) }): Query<Whose>,
    _: NoBody,
) -> Answer<Changed> {
    api.change_for(caller, move |state| match state.quota(principal) {
        Some(_) => Ok(Some(ChangeBody::EndQuota { principal })),
        None => {
            let why = format!("principal {} has no quota", principal.number());
            Err(Problem::new(ProblemKind::NotFound, why))
        }
    })
    .await
}

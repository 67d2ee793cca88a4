//! Grants: listed as trees, made, withdrawn.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use wayleave_control::capability::{ChangeBody, Credential, Grant};
use wayleave_packet::platypus::header::Principal;
use zeroize::Zeroizing;

use super::super::core::lock;
use super::accounts::missing;
use super::caller::{Caller, Reader, Seller};
use super::extract::{Json, NoQuery, Path, PrincipalNumber, Query, most};
use super::problem::{Problem, ProblemKind};
use super::{Answer, Api, Created};
use crate::provider::orders::{DEFAULT_DAYS, GrantFields, NamedGrant, beyond, days, grant_id, named};
use crate::provider::tree::{AccountGrants, AccountTree};

/// Accounts of a page: by default, and at most; and grants after which a page ends.
const PAGE: (usize, usize) = (100, 1_000);
const MOST_GRANTS: usize = 20_000;

/// A page of accounts with their grants.
#[derive(Serialize, ToSchema)]
pub struct GrantTrees {
    principals: Vec<AccountTree>,
    /// The value of `after` for the next page; null behind the last.
    next: Option<u32>,
}

/// A capability that was granted.
#[derive(Serialize, ToSchema)]
pub struct Granted {
    /// Number of the records' last change.
    number: u64,
    #[schema(pattern = "^[0-9a-f]{16}$")]
    id: String,
    /// The capability in one line: a secret.
    #[schema(value_type = String, pattern = "^wayleave-cap-[A-Za-z0-9_-]+$")]
    capability: Zeroizing<String>,
    terms: String,
    /// Unix seconds.
    until: u64,
    /// What was delegated from it and lasted longer: it ends with it now.
    shortened: Vec<NamedGrant>,
}

/// A grant that has ended.
#[derive(Serialize, ToSchema)]
pub struct Withdrawn {
    /// Number of the records' last change.
    number: u64,
    /// What was delegated from it: it ended with it.
    ended: Vec<NamedGrant>,
}

/// Which page of accounts.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct Page {
    /// Only principals above this one.
    #[param(value_type = Option<u32>, maximum = 16_777_215, example = 0)]
    after: Option<PrincipalNumber>,
    /// Accounts of a page.
    #[param(minimum = 1, maximum = 1_000, example = 10)]
    most: Option<usize>,
}

/// Which grant.
#[derive(Deserialize, IntoParams)]
pub struct OneGrant {
    #[param(value_type = u32, maximum = 16_777_215, example = 7)]
    principal: PrincipalNumber,
    #[param(pattern = "^[0-9a-f]{16}$", example = "0123456789abcdef")]
    grant: String,
}

/// A page of accounts with their grants as trees
#[utoipa::path(
    get,
    path = "/v1/grants",
    operation_id = "listGrants",
    security(("token" = ["read"])),
    params(Page),
    responses((status = 200, description = "Done.", body = GrantTrees))
)]
pub async fn list(State(api): State<Arc<Api>>, _: Caller<Reader>, Query(page): Query<Page>) -> Answer<GrantTrees> {
    let most = most(page.most, PAGE)?;
    api.run(move |api| {
        let now = api.clock.now().unix;
        let labels = api.settings().labels.clone();
        let after = page.after.map(|after| after.0);
        let (page, mut next) = lock(&api.core).server.state().accounts_after(after, most);
        let (mut trees, mut grants) = (Vec::new(), 0);
        let last = page.last().copied();
        for principal in page {
            // The lock is held for one account at a time: questions wait for it.
            let read = AccountGrants::read(lock(&api.core).server.state(), principal, now);
            let Some(account) = read else { continue };
            grants += account.len();
            trees.push(account.tree(&labels));
            if grants >= MOST_GRANTS && Some(principal) != last {
                next = Some(principal);
                break;
            }
        }
        Ok(Json(GrantTrees { principals: trees, next: next.map(Principal::number) }))
    })
    .await
}

/// Grant a capability to an account, or change how long one is granted; what was delegated from it lasts no longer
#[utoipa::path(
    post,
    path = "/v1/grants",
    operation_id = "grant",
    security(("token" = ["sell"])),
    responses((status = 201, description = "Done.", body = Granted), (status = 404, description = "There is no such thing."))
)]
pub async fn grant(
    State(api): State<Arc<Api>>,
    caller: Caller<Seller>,
    _: NoQuery,
    Json(fields): Json<GrantFields>,
) -> Created<Granted> {
    let terms = fields.order()?.terms()?;
    let now = api.clock.now().unix.secs();
    let not_after = now + days(fields.days, DEFAULT_DAYS)?;
    api.run(move |api| {
        let mut shortened = Vec::new();
        let number = api.change(&caller.by, &mut |state| {
            state.account(terms.principal).ok_or_else(|| missing(terms.principal))?;
            shortened = beyond(state, &terms, not_after);
            Ok(Some(ChangeBody::Grant(Grant { terms, not_before: now, not_after })))
        })?;
        let core = lock(&api.core);
        let state = core.server.state();
        let key = state.find(&terms).and_then(|slot| state.key(slot)).cloned();
        let Some(key) = key else {
            return Err(Problem::new(ProblemKind::Conflict, "the grant was withdrawn again before it was answered"));
        };
        let zone = core.server.zone().clone();
        drop(core);
        let granted = Granted {
            number,
            id: grant_id(&terms),
            capability: Zeroizing::new(Credential { zone, terms, key }.expose()),
            terms: terms.to_string(),
            until: not_after,
            shortened: named(&shortened),
        };
        Ok((StatusCode::CREATED, Json(granted)))
    })
    .await
}

/// End a grant at once, with all that was delegated from it
#[utoipa::path(
    delete,
    path = "/v1/grants/{principal}/{grant}",
    operation_id = "withdrawGrant",
    security(("token" = ["sell"])),
    params(OneGrant),
    responses((status = 200, description = "Done.", body = Withdrawn), (status = 404, description = "There is no such thing."))
)]
pub async fn withdraw(
    State(api): State<Arc<Api>>,
    caller: Caller<Seller>,
    _: NoQuery,
    Path(one): Path<OneGrant>,
) -> Answer<Withdrawn> {
    let (principal, id) = (one.principal.0, one.grant);
    api.run(move |api| {
        let mut ended = Vec::new();
        let number = api.change(&caller.by, &mut |state| {
            state.account(principal).ok_or_else(|| missing(principal))?;
            let found = state.grants_of(principal).find(|grant| grant_id(&grant.terms) == id);
            let grant = found.ok_or_else(|| {
                let what = format!("principal {} has no grant of this ID", principal.number());
                Problem::new(ProblemKind::NotFound, what).help("GET /v1/accounts/{principal} lists them with their IDs")
            })?;
            ended = state.delegated_from(grant.terms).collect();
            Ok(Some(ChangeBody::WithdrawBranch(grant.terms)))
        })?;
        Ok(Json(Withdrawn { number, ended: named(&ended) }))
    })
    .await
}

//! Grants: listed as trees, made, withdrawn.

use std::sync::Arc;

use axum::extract::State;
use serde_json::{Value, json};
use wayleave_control::capability::{ChangeBody, Credential, Grant};
use wayleave_packet::platypus::header::Principal;
use zeroize::Zeroizing;

use super::super::core::lock;
use super::accounts::{Page, missing};
use super::caller::{Caller, Operator, Reader};
use super::extract::{Json, NoQuery, Path, PrincipalNumber, Query, most};
use super::problem::{Problem, ProblemKind};
use super::{Answer, Api, created, ok};
use crate::provider::orders::{DEFAULT_DAYS, GrantFields, beyond, days, grant_id, named};
use crate::provider::tree::AccountGrants;

/// Accounts of a page: by default, and at most; and grants after which a page ends.
const PAGE: (usize, usize) = (100, 1_000);
const MOST_GRANTS: usize = 20_000;

/// A page of accounts with their grants as trees.
pub async fn list(State(api): State<Arc<Api>>, _: Caller<Reader>, Query(page): Query<Page>) -> Answer {
    let most = most(page.most, PAGE)?;
    api.run(move |api| {
        let now = api.clock.now().unix;
        let labels = api.settings().labels.clone();
        let after = page.after.map(|after| after.0);
        let (page, mut next) = lock(&api.core).server.state().accounts_after(after, most);
        let (mut trees, mut grants): (Vec<Value>, usize) = (Vec::new(), 0);
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
        ok(json!({ "principals": trees, "next": next.map(Principal::number) }))
    })
    .await
}

/// Grants a capability, or changes how long one is granted.
pub async fn grant(
    State(api): State<Arc<Api>>,
    caller: Caller<Operator>,
    _: NoQuery,
    Json(fields): Json<GrantFields>,
) -> Answer {
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
        let line = Zeroizing::new(Credential { zone, terms, key }.expose());
        created(json!({
            "number": number, "id": grant_id(&terms), "capability": *line, "terms": terms.to_string(), "until": not_after,
            "shortened": named(&shortened),
        }))
    })
    .await
}

/// Withdraws a grant with all that was delegated from it.
pub async fn withdraw(
    State(api): State<Arc<Api>>,
    caller: Caller<Operator>,
    _: NoQuery,
    Path((PrincipalNumber(principal), id)): Path<(PrincipalNumber, String)>,
) -> Answer {
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
        ok(json!({ "number": number, "ended": named(&ended) }))
    })
    .await
}

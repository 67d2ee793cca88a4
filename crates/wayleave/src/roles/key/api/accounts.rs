//! Accounts: listed, opened, renamed, given other keys, closed.

use std::sync::Arc;

use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};
use wayleave_control::capability::{ChangeBody, State as Records};
use wayleave_packet::platypus::header::Principal;

use super::super::core::lock;
use super::caller::{Caller, Operator, Reader};
use super::extract::{Json, NoQuery, Path, PrincipalNumber, Query, most};
use super::problem::{Problem, ProblemKind};
use super::{Answer, Api, created, ok};
use crate::provider::orders::{check_name, principal_of};
use crate::provider::tree::AccountGrants;

/// Accounts of a page: by default, and at most.
const PAGE: (usize, usize) = (1_000, 10_000);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Opened {
    principal: u32,
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amended {
    name: Option<String>,
    #[serde(default)]
    replace_keys: bool,
}

/// Which page of accounts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Page {
    pub after: Option<PrincipalNumber>,
    pub most: Option<usize>,
}

/// No account.
pub fn missing(principal: Principal) -> Problem {
    let what = format!("there is no account of principal {}", principal.number());
    Problem::new(ProblemKind::NotFound, what).help("POST /v1/accounts opens one")
}

fn described(state: &Records, principal: Principal) -> Option<Value> {
    let (name, generation) = state.account(principal)?;
    let grants = state.grants_of(principal).count();
    Some(json!({ "principal": principal.number(), "name": name, "generation": generation, "grants": grants }))
}

/// A page of accounts.
pub async fn list(State(api): State<Arc<Api>>, _: Caller<Reader>, Query(page): Query<Page>) -> Answer {
    let most = most(page.most, PAGE)?;
    api.run(move |api| {
        let core = lock(&api.core);
        let state = core.server.state();
        let (page, next) = state.accounts_after(page.after.map(|after| after.0), most);
        let accounts: Vec<Value> = page.into_iter().filter_map(|principal| described(state, principal)).collect();
        ok(json!({ "number": state.number(), "accounts": accounts, "next": next.map(Principal::number) }))
    })
    .await
}

/// An account with all its grants.
pub async fn show(
    State(api): State<Arc<Api>>,
    _: Caller<Reader>,
    _: NoQuery,
    Path(PrincipalNumber(principal)): Path<PrincipalNumber>,
) -> Answer {
    api.run(move |api| {
        let read = AccountGrants::read(lock(&api.core).server.state(), principal, api.clock.now().unix);
        let account = read.ok_or_else(|| missing(principal))?;
        ok(account.tree(&api.settings().labels))
    })
    .await
}

/// Opens an account.
pub async fn open(
    State(api): State<Arc<Api>>,
    caller: Caller<Operator>,
    _: NoQuery,
    Json(Opened { principal, name }): Json<Opened>,
) -> Answer {
    let principal = principal_of(principal)?;
    check_name(&name)?;
    api.run(move |api| {
        api.change(&caller.by, &mut |state| {
            if state.account(principal).is_some() {
                let what = format!("principal {} has an account already", principal.number());
                return Err(Problem::new(ProblemKind::Conflict, what).help("PATCH changes it"));
            }
            let generation = state.next_generation(principal);
            Ok(Some(ChangeBody::Account { principal, generation, name: name.clone() }))
        })?;
        created(account(api, principal)?)
    })
    .await
}

/// Renames an account, or replaces all its keys.
pub async fn amend(
    State(api): State<Arc<Api>>,
    caller: Caller<Operator>,
    _: NoQuery,
    Path(PrincipalNumber(principal)): Path<PrincipalNumber>,
    Json(Amended { name, replace_keys }): Json<Amended>,
) -> Answer {
    name.as_deref().map_or(Ok(()), check_name)?;
    api.run(move |api| {
        api.change(&caller.by, &mut |state| {
            let (held, generation) = state.account(principal).ok_or_else(|| missing(principal))?;
            let name = name.clone().unwrap_or_else(|| held.to_owned());
            let is_same = name == held && !replace_keys;
            let generation = if replace_keys { state.next_generation(principal) } else { generation };
            Ok((!is_same).then_some(ChangeBody::Account { principal, generation, name }))
        })?;
        ok(account(api, principal)?)
    })
    .await
}

/// Closes an account with all its grants.
pub async fn close(
    State(api): State<Arc<Api>>,
    caller: Caller<Operator>,
    _: NoQuery,
    Path(PrincipalNumber(principal)): Path<PrincipalNumber>,
) -> Answer {
    api.run(move |api| {
        let number = api.change(&caller.by, &mut |state| {
            state.account(principal).ok_or_else(|| missing(principal))?;
            Ok(Some(ChangeBody::Close { principal }))
        })?;
        ok(json!({ "number": number }))
    })
    .await
}

fn account(api: &Api, principal: Principal) -> Result<Value, Problem> {
    described(lock(&api.core).server.state(), principal).ok_or_else(|| missing(principal))
}

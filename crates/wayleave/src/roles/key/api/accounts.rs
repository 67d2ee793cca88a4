//! Accounts: listed, opened, renamed, given other keys, closed.

use serde::Deserialize;
use serde_json::{Value, json};
use wayleave_control::capability::{ChangeBody, State};
use wayleave_packet::platypus::header::Principal;

use super::super::core::lock;
use super::problem::{Problem, ProblemKind};
use super::{Api, Call, Reply};
use crate::provider::orders::{check_name, principal_of};
use crate::provider::tree::AccountGrants;

/// Accounts of a page: by default, and at most.
const PAGE: (usize, usize) = (1_000, 10_000);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Opened {
    principal: u32,
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Amended {
    name: Option<String>,
    #[serde(default)]
    replace_keys: bool,
}

/// The principal in a path or a query.
pub fn principal(text: &str) -> Result<Principal, Problem> {
    let number = text.parse().ok().filter(|number: &u32| number.to_string() == text);
    let number = number.ok_or_else(|| {
        Problem::new(ProblemKind::Request, format!("`{}` is not a principal's number", text.escape_debug()))
    })?;
    Ok(principal_of(number)?)
}

/// No account.
pub fn missing(principal: Principal) -> Problem {
    let what = format!("there is no account of principal {}", principal.number());
    Problem::new(ProblemKind::NotFound, what).help("POST /v1/accounts opens one")
}

fn described(state: &State, principal: Principal) -> Option<Value> {
    let (name, generation) = state.account(principal)?;
    let grants = state.grants_of(principal).count();
    Some(json!({ "principal": principal.number(), "name": name, "generation": generation, "grants": grants }))
}

/// A page of accounts.
pub fn list(api: &Api, call: &Call) -> Result<Reply, Problem> {
    let after = call.query.get("after").map(|text| principal(text)).transpose()?;
    let most = call.most(PAGE.0, PAGE.1)?;
    let core = lock(&api.core);
    let state = core.server.state();
    let (page, next) = state.accounts_after(after, most);
    let accounts: Vec<Value> = page.into_iter().filter_map(|principal| described(state, principal)).collect();
    let number = state.number();
    Ok(Reply::Json(200, json!({ "number": number, "accounts": accounts, "next": next.map(Principal::number) })))
}

/// An account with all its grants.
pub fn show(api: &Api, call: &Call) -> Result<Reply, Problem> {
    let principal = principal(call.name("principal"))?;
    let read = AccountGrants::read(lock(&api.core).server.state(), principal, api.clock.now().unix);
    let account = read.ok_or_else(|| missing(principal))?;
    Ok(Reply::Json(200, account.tree(&api.settings().labels)))
}

/// Opens an account.
pub fn open(api: &Api, call: &Call) -> Result<Reply, Problem> {
    let Opened { principal, name } = call.json()?;
    let principal = principal_of(principal)?;
    check_name(&name)?;
    api.change(call, &mut |state| {
        if state.account(principal).is_some() {
            let what = format!("principal {} has an account already", principal.number());
            return Err(Problem::new(ProblemKind::Conflict, what).help("PATCH changes it"));
        }
        let generation = state.next_generation(principal);
        Ok(Some(ChangeBody::Account { principal, generation, name: name.clone() }))
    })?;
    account(api, 201, principal)
}

/// Renames an account, or replaces all its keys.
pub fn amend(api: &Api, call: &Call) -> Result<Reply, Problem> {
    let principal = principal(call.name("principal"))?;
    let Amended { name, replace_keys } = call.json()?;
    name.as_deref().map_or(Ok(()), check_name)?;
    api.change(call, &mut |state| {
        let (held, generation) = state.account(principal).ok_or_else(|| missing(principal))?;
        let name = name.clone().unwrap_or_else(|| held.to_owned());
        let is_same = name == held && !replace_keys;
        let generation = if replace_keys { state.next_generation(principal) } else { generation };
        Ok((!is_same).then_some(ChangeBody::Account { principal, generation, name }))
    })?;
    account(api, 200, principal)
}

/// Closes an account with all its grants.
pub fn close(api: &Api, call: &Call) -> Result<Reply, Problem> {
    let principal = principal(call.name("principal"))?;
    let number = api.change(call, &mut |state| {
        state.account(principal).ok_or_else(|| missing(principal))?;
        Ok(Some(ChangeBody::Close { principal }))
    })?;
    Ok(Reply::Json(200, json!({ "number": number })))
}

fn account(api: &Api, status: u16, principal: Principal) -> Result<Reply, Problem> {
    let core = lock(&api.core);
    let described = described(core.server.state(), principal).ok_or_else(|| missing(principal))?;
    Ok(Reply::Json(status, described))
}

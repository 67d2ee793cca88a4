//! Accounts: listed, opened, renamed, given other keys, closed.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use wayleave_control::capability::{BillingSubject, ChangeBody, State as Records};
use wayleave_packet::platypus::header::Principal;

use super::super::core::lock;
use super::caller::{Caller, Owner, Reader, Seller};
use super::extract::{Json, NoBody, NoQuery, Path, PrincipalNumber, Query, most};
use super::problem::{Problem, ProblemKind};
use super::{Answer, Api, Changed, Created};
use crate::provider::billing::{BillingFields, Pairs, present};
use crate::provider::orders::{check_name, open_or_rename, principal_of};
use crate::provider::tree::{AccountGrants, AccountTree, known};

/// Accounts of a page: by default, and at most.
const PAGE: (usize, usize) = (1_000, 10_000);

/// An account that is to be opened.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "principal": 7, "name": "customer", "external_id": "cust-17", "price": "gold" }))]
pub struct OpenAccount {
    #[schema(maximum = 16_777_215)]
    principal: u32,
    #[schema(max_length = 64, pattern = "^[ -~]*$")]
    name: String,
    /// The provider's own ID of it; empty for none. Absent, it stays as it is.
    #[schema(max_length = 128, pattern = "^[ -~]*$")]
    external_id: Option<String>,
    /// A label, or an amount with its currency, that statements show; empty for none. Absent, it stays as it is.
    #[schema(max_length = 64, pattern = "^[ -~]*$")]
    price: Option<String>,
    /// Texts by their keys, 16 at most, in the place of all that there are. Absent, they stay as they are.
    metadata: Option<Pairs>,
}

/// What an account is to be.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "name": "customer" }))]
pub struct PutAccount {
    #[schema(max_length = 64, pattern = "^[ -~]*$")]
    name: String,
    /// The provider's own ID of it; empty for none. Absent, it stays as it is.
    #[schema(max_length = 128, pattern = "^[ -~]*$")]
    external_id: Option<String>,
    /// A label, or an amount with its currency, that statements show; empty for none. Absent, it stays as it is.
    #[schema(max_length = 64, pattern = "^[ -~]*$")]
    price: Option<String>,
    /// Texts by their keys, 16 at most, in the place of all that there are. Absent, they stay as they are.
    metadata: Option<Pairs>,
}

/// What is to be changed of an account.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "name": "customer 7", "replace_keys": true }))]
pub struct AmendAccount {
    #[schema(max_length = 64, pattern = "^[ -~]*$")]
    name: Option<String>,
    /// All keys of the account are replaced: every line that was handed out ends.
    #[serde(default)]
    replace_keys: bool,
    /// The provider's own ID of it; empty for none. Absent, it stays as it is.
    #[schema(max_length = 128, pattern = "^[ -~]*$")]
    external_id: Option<String>,
    /// A label, or an amount with its currency, that statements show; empty for none. Absent, it stays as it is.
    #[schema(max_length = 64, pattern = "^[ -~]*$")]
    price: Option<String>,
    /// Texts by their keys, 16 at most, in the place of all that there are. Absent, they stay as they are.
    metadata: Option<Pairs>,
}

/// An account.
#[derive(Serialize, ToSchema)]
pub struct Account {
    #[schema(maximum = 16_777_215)]
    principal: u32,
    name: String,
    /// Of the account's keys; a higher one has replaced all.
    generation: u32,
    /// The provider's own ID.
    #[schema(required)]
    external_id: Option<String>,
    /// The present price tag.
    #[schema(required)]
    price: Option<String>,
    metadata: Pairs,
    grants: usize,
}

/// A page of accounts.
#[derive(Serialize, ToSchema)]
pub struct Accounts {
    /// Number of the last change.
    number: u64,
    accounts: Vec<Account>,
    /// The value of `after` for the next page; null behind the last. A page may be empty and not the last.
    #[schema(required)]
    next: Option<u32>,
}

/// Whose account.
#[derive(Deserialize, IntoParams)]
pub struct OfPrincipal {
    #[param(value_type = u32, maximum = 16_777_215, example = 7)]
    pub principal: PrincipalNumber,
}

/// Which page of accounts.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct Page {
    /// Only principals above this one.
    #[param(value_type = Option<u32>, maximum = 16_777_215, example = 0)]
    pub after: Option<PrincipalNumber>,
    /// Accounts of a page.
    #[param(minimum = 1, maximum = 10_000, example = 10)]
    pub most: Option<usize>,
    /// Only accounts that the provider knows by this ID.
    #[param(example = "cust-17")]
    pub external_id: Option<String>,
    /// Only accounts with this in their names.
    #[param(example = "cust")]
    pub name: Option<String>,
}

/// No account.
pub fn missing(principal: Principal) -> Problem {
    let what = format!("there is no account of principal {}", principal.number());
    Problem::new(ProblemKind::NotFound, what).help("POST /v1/accounts opens one")
}

fn described(state: &Records, principal: Principal) -> Option<Account> {
    let (name, generation) = state.account(principal)?;
    let grants = state.grants_of(principal).count();
    let (external_id, price, metadata) = known(Some(&present(state, BillingSubject::account(principal))));
    let (principal, name) = (principal.number(), name.to_owned());
    Some(Account { principal, name, generation, external_id, price, metadata, grants })
}

/// A page of accounts, by principal
#[utoipa::path(
    get,
    path = "/v1/accounts",
    operation_id = "listAccounts",
    security(("token" = ["read"])),
    params(Page),
    responses((status = 200, description = "Done.", body = Accounts))
)]
pub async fn list(
    State(api): State<Arc<Api>>,
    _: Caller<Reader>,
    Query(page): Query<Page>,
    _: NoBody,
) -> Answer<Accounts> {
    let most = most(page.most, PAGE)?;
    api.run(move |api| {
        let core = lock(&api.core);
        let state = core.server.state();
        let Page { after, external_id, name, .. } = page;
        let after = after.map(|after| after.0);
        let (page, next) = match &external_id {
            Some(id) => super::extract::page(state.known_as(id, after), most, |last| *last),
            None => state.accounts_after(after, most),
        };
        let accounts = page.into_iter().filter_map(|principal| described(state, principal));
        let is_named = |account: &Account| name.as_deref().is_none_or(|name| account.name.contains(name));
        // The ID may be that of a grant.
        let is_known = |account: &Account| external_id.is_none() || account.external_id == external_id;
        let accounts = accounts.filter(|account| is_named(account) && is_known(account)).collect();
        Ok(Json(Accounts { number: state.number(), accounts, next: next.map(Principal::number) }))
    })
    .await
}

/// An account with all its grants as a tree
#[utoipa::path(
    get,
    path = "/v1/accounts/{principal}",
    operation_id = "showAccount",
    security(("token" = ["own"])),
    params(OfPrincipal),
    responses((status = 200, description = "Done.", body = AccountTree), (status = 404, description = "There is no such thing."))
)]
pub async fn show(
    State(api): State<Arc<Api>>,
    caller: Caller<Owner>,
    _: NoQuery,
    Path(OfPrincipal { principal }): Path<OfPrincipal>,
    _: NoBody,
) -> Answer<AccountTree> {
    let principal = principal.0;
    caller.may_read(principal)?;
    api.run(move |api| {
        let read = AccountGrants::read(lock(&api.core).server.state(), principal, api.clock.now().unix);
        let account = read.ok_or_else(|| missing(principal))?;
        let account = if caller.own.is_some() { account.for_customer() } else { account };
        // Whoever looks a token up waits for the settings.
        let labels = api.settings().labels.clone();
        Ok(Json(account.tree(&labels)))
    })
    .await
}

/// Open an account
#[utoipa::path(
    post,
    path = "/v1/accounts",
    operation_id = "openAccount",
    security(("token" = ["sell"])),
    responses((status = 201, description = "Done.", body = Account))
)]
pub async fn open(
    State(api): State<Arc<Api>>,
    caller: Caller<Seller>,
    _: NoQuery,
    Json(OpenAccount { principal, name, external_id, price, metadata }): Json<OpenAccount>,
) -> Created<Account> {
    let principal = principal_of(principal)?;
    check_name(&name)?;
    let billing = billing(external_id, price, metadata)?;
    api.run(move |api| {
        change(api, caller.note(), (principal, &billing), &mut |state| {
            if state.account(principal).is_some() {
                let what = format!("principal {} has an account already", principal.number());
                return Err(Problem::new(ProblemKind::Conflict, what).help("PATCH changes it"));
            }
            let generation = state.next_generation(principal);
            Ok(Some(ChangeBody::Account { principal, generation, name: name.clone() }))
        })?;
        Ok((StatusCode::CREATED, Json(account(api, principal)?)))
    })
    .await
}

/// Open an account, or rename it: a repeat changes nothing
#[utoipa::path(
    put,
    path = "/v1/accounts/{principal}",
    operation_id = "putAccount",
    security(("token" = ["sell"])),
    params(OfPrincipal),
    responses((status = 200, description = "Done.", body = Account))
)]
pub async fn put(
    State(api): State<Arc<Api>>,
    caller: Caller<Seller>,
    _: NoQuery,
    Path(OfPrincipal { principal }): Path<OfPrincipal>,
    Json(PutAccount { name, external_id, price, metadata }): Json<PutAccount>,
) -> Answer<Account> {
    let principal = principal.0;
    check_name(&name)?;
    let billing = billing(external_id, price, metadata)?;
    api.run(move |api| {
        change(api, caller.note(), (principal, &billing), &mut |state| {
            Ok(open_or_rename(state, principal, Some(&name)))
        })?;
        Ok(Json(account(api, principal)?))
    })
    .await
}

/// Rename an account, or replace its keys
#[utoipa::path(
    patch,
    path = "/v1/accounts/{principal}",
    operation_id = "amendAccount",
    security(("token" = ["sell"])),
    params(OfPrincipal),
    responses((status = 200, description = "Done.", body = Account), (status = 404, description = "There is no such thing."))
)]
pub async fn amend(
    State(api): State<Arc<Api>>,
    caller: Caller<Seller>,
    _: NoQuery,
    Path(OfPrincipal { principal }): Path<OfPrincipal>,
    Json(AmendAccount { name, replace_keys, external_id, price, metadata }): Json<AmendAccount>,
) -> Answer<Account> {
    let principal = principal.0;
    name.as_deref().map_or(Ok(()), check_name)?;
    let billing = billing(external_id, price, metadata)?;
    api.run(move |api| {
        change(api, caller.note(), (principal, &billing), &mut |state| {
            let (held, generation) = state.account(principal).ok_or_else(|| missing(principal))?;
            let name = name.clone().unwrap_or_else(|| held.to_owned());
            let is_same = name == held && !replace_keys;
            let generation = if replace_keys { state.next_generation(principal) } else { generation };
            Ok((!is_same).then_some(ChangeBody::Account { principal, generation, name }))
        })?;
        Ok(Json(account(api, principal)?))
    })
    .await
}

/// Close an account with all its grants, and withdraw its invitations
#[utoipa::path(
    delete,
    path = "/v1/accounts/{principal}",
    operation_id = "closeAccount",
    security(("token" = ["sell"])),
    params(OfPrincipal),
    responses((status = 200, description = "Done.", body = Changed), (status = 404, description = "There is no such thing."))
)]
pub async fn close(
    State(api): State<Arc<Api>>,
    caller: Caller<Seller>,
    _: NoQuery,
    Path(OfPrincipal { principal }): Path<OfPrincipal>,
    _: NoBody,
) -> Answer<Changed> {
    let principal = principal.0;
    api.change_for(caller, move |state| {
        state.account(principal).ok_or_else(|| missing(principal))?;
        Ok(Some(ChangeBody::Close { principal }))
    })
    .await
}

/// What a request says that billing is to know.
fn billing(
    external_id: Option<String>,
    price: Option<String>,
    metadata: Option<Pairs>,
) -> Result<BillingFields, Problem> {
    let fields = BillingFields { external_id, price, metadata };
    fields.check()?;
    Ok(fields)
}

/// Makes a change of an account and of what billing knows of it, all or nothing.
fn change(
    api: &Api,
    note: (&str, &str),
    (principal, billing): (Principal, &BillingFields),
    decide: &mut dyn FnMut(&Records) -> Result<Option<ChangeBody>, Problem>,
) -> Result<u64, Problem> {
    api.change(note, &mut |state| {
        let (account, billing) = (decide(state)?, billing.change(state, BillingSubject::account(principal)));
        Ok(ChangeBody::all_of(account.into_iter().chain(billing).collect()))
    })
}

fn account(api: &Api, principal: Principal) -> Result<Account, Problem> {
    described(lock(&api.core).server.state(), principal).ok_or_else(|| missing(principal))
}

//! Grants: listed as trees, made, withdrawn.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use wayleave_control::capability::{BillingSubject, ChangeBody, Credential, Grant, State as Records};
use wayleave_packet::platypus::header::Principal;
use wayleave_runtime::clock::utc;
use zeroize::Zeroizing;

use super::super::core::lock;
use super::accounts::missing;
use super::caller::{Caller, Reader, Seller};
use super::extract::{Json, NoBody, NoQuery, Path, PrincipalNumber, Query, most};
use super::problem::{Problem, ProblemKind};
use super::{Answer, Api, Created, extract};
use crate::provider::billing::BillingFields;
use crate::provider::orders::{
    DEFAULT_DAYS, GrantFields, NamedGrant, PutGrantFields, SourcesOrder, beyond, end, grant_id, named,
};
use crate::provider::tree::{AccountGrants, AccountTree};

/// Accounts of a page: by default, and at most; and grants after which a page ends.
const PAGE: (usize, usize) = (100, 1_000);
const MOST_GRANTS: usize = 20_000;

/// A page of accounts with their grants.
#[derive(Serialize, ToSchema)]
pub struct GrantTrees {
    principals: Vec<AccountTree>,
    /// The value of `after` for the next page; null behind the last. A page may be empty and not the last.
    #[schema(required)]
    next: Option<u32>,
}

/// A capability that was granted.
#[derive(Serialize, ToSchema)]
pub struct Granted {
    /// Number of the last change.
    number: u64,
    #[schema(pattern = "^[0-9a-f]{16}$")]
    id: String,
    /// The capability in one line: a secret.
    #[schema(value_type = String, pattern = "^wayleave-cap-[A-Za-z0-9_-]+$")]
    capability: Zeroizing<String>,
    terms: String,
    /// Unix seconds.
    until: u64,
    /// The same as a time (RFC 3339): no later than what it was delegated from, however late it was asked for.
    #[schema(format = DateTime)]
    ends: String,
    /// Until when it was granted before; null if it was not. If that is later than `ends`, it was shortened.
    #[schema(required, format = DateTime)]
    previous_ends: Option<String>,
    /// What was delegated from it and lasted longer: it ends with it now.
    shortened: Vec<NamedGrant>,
}

/// A grant that has ended.
#[derive(Serialize, ToSchema)]
pub struct Withdrawn {
    /// Number of the last change.
    number: u64,
    /// What was delegated from it: it ended with it.
    ended: Vec<NamedGrant>,
}

/// Which page of accounts, and of which of their grants.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct Page {
    /// Only this principal.
    #[param(value_type = Option<u32>, maximum = 16_777_215, example = 7)]
    principal: Option<PrincipalNumber>,
    /// Only what is granted at this address, and accounts that have such grants.
    #[param(value_type = Option<String>, example = "198.51.100.1")]
    waypoint: Option<IpAddr>,
    /// Only what the provider knows by this ID: grants, or all grants of an account.
    #[param(example = "cust-17")]
    external_id: Option<String>,
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
pub async fn list(
    State(api): State<Arc<Api>>,
    _: Caller<Reader>,
    Query(page): Query<Page>,
    _: NoBody,
) -> Answer<GrantTrees> {
    let most = most(page.most, PAGE)?;
    api.run(move |api| {
        let now = api.clock.now().unix;
        let labels = api.settings().labels.clone();
        let after = page.after.map(|after| after.0);
        let principals = match (page.principal, &page.external_id) {
            (Some(only), _) => (vec![only.0].into_iter().filter(|only| Some(*only) > after).collect(), None),
            (None, Some(id)) => extract::page(lock(&api.core).server.state().known_as(id, after), most, |last| *last),
            (None, None) => lock(&api.core).server.state().accounts_after(after, most),
        };
        let keep = |account: &mut AccountGrants| {
            let is_known = page.external_id.as_deref().is_none_or(|id| account.keep_known_as(id));
            is_known && page.waypoint.is_none_or(|waypoint| account.keep_at(waypoint))
        };
        // The lock is held for one account at a time: questions wait for it.
        let read = |principal| AccountGrants::read(lock(&api.core).server.state(), principal, now);
        let (accounts, next) = read_page(principals, read, keep, MOST_GRANTS);
        let principals = accounts.iter().map(|account| account.tree(&labels)).collect();
        Ok(Json(GrantTrees { principals, next: next.map(Principal::number) }))
    })
    .await
}

/// The accounts of a page, with what is to be kept of them, if anything; and behind which one the next page begins. A page ends when
/// so many grants were looked at, wanted or not.
fn read_page(
    (principals, next): (Vec<Principal>, Option<Principal>),
    read: impl Fn(Principal) -> Option<AccountGrants>,
    keep: impl Fn(&mut AccountGrants) -> bool,
    most_grants: usize,
) -> (Vec<AccountGrants>, Option<Principal>) {
    let (mut accounts, mut grants) = (Vec::new(), 0);
    let last = principals.last().copied();
    for principal in principals {
        if let Some(mut account) = read(principal) {
            grants += account.len();
            if keep(&mut account) {
                accounts.push(account);
            }
        }
        if grants >= most_grants && Some(principal) != last {
            return (accounts, Some(principal));
        }
    }
    (accounts, next)
}

/// Grant a capability to an account, or change how long one is granted; what was delegated from it lasts no longer. Without `days` and
/// `ends`, one that is granted stays as it is, and its line is answered. What is refused has changed nothing, sources that it names among it
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
    let (terms, billing) = (fields.order()?.terms()?, fields.billing()?);
    let now = api.clock.now().unix.secs();
    let not_after = end(fields.ends, fields.days, DEFAULT_DAYS, now)?;
    let grant = Grant { terms, not_before: now, not_after };
    let (sources, names_end) = (fields.sources(&terms)?, fields.ends.is_some() || fields.days.is_some());
    // Whoever names no end wants the line: a contract is not made longer or shorter by that.
    let decide = move |state: &Records| match state.find(&terms).and_then(|slot| state.grant(slot)) {
        Some(held) if held.not_after >= now => {
            names_end.then_some(Grant { not_before: held.not_before.min(now), ..grant })
        }
        _ => Some(grant),
    };
    api.run(move |api| {
        let granted = granted(api, caller.note(), &grant, (sources.as_ref(), &billing), &decide)?;
        Ok((StatusCode::CREATED, Json(granted)))
    })
    .await
}

/// Grant a capability until a time, also a sooner one: a repeat changes nothing, and gives the same line
#[utoipa::path(
    put,
    path = "/v1/grants",
    operation_id = "putGrant",
    security(("token" = ["sell"])),
    responses((status = 200, description = "Done.", body = Granted), (status = 404, description = "There is no such thing."))
)]
pub async fn put(
    State(api): State<Arc<Api>>,
    caller: Caller<Seller>,
    _: NoQuery,
    Json(fields): Json<PutGrantFields>,
) -> Answer<Granted> {
    let fields = GrantFields::from(fields);
    let (terms, billing) = (fields.order()?.terms()?, fields.billing()?);
    let now = api.clock.now().unix.secs();
    let not_after = end(fields.ends, fields.days, DEFAULT_DAYS, now)?;
    let wanted = Grant { terms, not_before: now, not_after };
    let sources = fields.sources(&terms)?;
    // What is granted now has begun, and its begin stays.
    let decide = move |state: &Records| match state.find(&terms).and_then(|slot| state.grant(slot)) {
        Some(held) if held.not_after == not_after => None,
        Some(held) if held.not_after >= now => Some(Grant { not_before: held.not_before, ..wanted }),
        _ => Some(wanted),
    };
    api.run(move |api| Ok(Json(granted(api, caller.note(), &wanted, (sources.as_ref(), &billing), &decide)?))).await
}

/// Makes a grant with the terms and end of `wanted` as `decide` says by the state as it is then, and gives its line. Sources and
/// billing are of the same change: there is no moment in which it is granted without its sources, and what is refused changes nothing.
fn granted(
    api: &Api,
    note: (&str, &str),
    Grant { terms, not_after, .. }: &Grant,
    (sources, billing): (Option<&SourcesOrder>, &BillingFields),
    decide: &dyn Fn(&Records) -> Option<Grant>,
) -> Result<Granted, Problem> {
    let (mut shortened, mut before) = (Vec::new(), None);
    let held =
        |state: &Records| state.find(terms).and_then(|slot| Some((state.capped(slot)?, state.key(slot)?.clone())));
    let number = api.change(note, &mut |state| {
        state.account(terms.principal).ok_or_else(|| missing(terms.principal))?;
        before = held(state).map(|(grant, _)| grant.not_after);
        let grant = decide(state);
        shortened = grant.as_ref().map_or_else(Vec::new, |_| beyond(state, terms, *not_after));
        let sources = sources.and_then(|sources| match grant {
            Some(_) => Some(sources.beside_grant(state)),
            None => sources.change(state),
        });
        let billing = billing.change(state, BillingSubject::grant(*terms));
        Ok(ChangeBody::all_of([grant.map(ChangeBody::Grant), sources, billing].into_iter().flatten().collect()))
    })?;
    let core = lock(&api.core);
    let Some((Grant { not_after: until, .. }, key)) = held(core.server.state()) else {
        return Err(Problem::new(ProblemKind::Conflict, "the grant was withdrawn again before it was answered"));
    };
    let zone = core.server.zone().clone();
    drop(core);
    Ok(Granted {
        number,
        id: grant_id(terms),
        capability: Zeroizing::new(Credential { zone, terms: *terms, key }.expose()),
        terms: terms.to_string(),
        until,
        ends: utc(until),
        previous_ends: before.map(utc),
        shortened: named(&shortened),
    })
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
    _: NoBody,
) -> Answer<Withdrawn> {
    let (principal, id) = (one.principal.0, one.grant);
    api.run(move |api| {
        let mut ended = Vec::new();
        let number = api.change(caller.note(), &mut |state| {
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

#[cfg(test)]
mod tests {
    use wayleave_control::capability::{ProviderKey, State, Terms};
    use wayleave_core::UnixTime;
    use wayleave_crypto::secret::Seed;
    use wayleave_crypto::sign::SigningKey;
    use wayleave_packet::platypus::header::{Interval, Width};

    use super::*;
    use crate::provider::waypoints::WaypointLabels;

    #[test]
    fn a_page_ends_when_enough_grants_were_looked_at_and_the_next_goes_on_behind_it() {
        const NOW: UnixTime = UnixTime(1_800_000_000 * 1_000_000);
        let key = SigningKey::from_seed(&Seed::new([1; 32]));
        let mut state = State::new(ProviderKey::new(Seed::new([2; 32])));
        let mut change = |body| {
            let signed = state.sign(body, &key, NOW).expect("possible");
            state.apply(&signed, &key.verifying_key()).expect("the next");
        };
        let principals: Vec<Principal> = (1..=6).filter_map(Principal::new).collect();
        let [first, other] = [1, 2].map(|last| IpAddr::from([198, 51, 100, last]));
        for principal in &principals {
            let interval = Interval::new(12).expect("in range");
            let waypoint = if principal.number() == 6 { other } else { first };
            let terms = Terms { waypoint, principal: *principal, interval, width: Width::Full, delegation: None };
            change(ChangeBody::Account { principal: *principal, generation: 0, name: String::new() });
            change(ChangeBody::Grant(Grant { terms, not_before: 0, not_after: NOW.secs() + 1 }));
        }
        let (mut after, mut found, mut looked_at) = (None, Vec::new(), Vec::new());
        loop {
            let count = std::cell::Cell::new(0);
            let read = |principal| {
                count.set(count.get() + 1);
                AccountGrants::read(&state, principal, NOW)
            };
            let (page, next) = read_page(state.accounts_after(after, 5), read, |account| account.keep_at(other), 2);
            found.extend(page.iter().map(|account| account.tree(&WaypointLabels::new()).principal));
            looked_at.push(count.get());
            after = next;
            if next.is_none() {
                break;
            }
        }
        assert_eq!((found, looked_at), (vec![6], vec![2, 2, 2]));
    }
}

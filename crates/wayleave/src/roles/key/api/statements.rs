//! Statements of usage: listed, made by closing time, shown, and signed for one who pays.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use wayleave_control::capability::AccountPeriods;
use wayleave_packet::platypus::header::Principal;
use wayleave_runtime::clock::utc;
use wayleave_runtime::identity::to_hex;
use wayleave_store::{Closing, Details, Note, StatementSums, Store, StoreError, UsageStatement};

use super::super::core::lock;
use super::caller::{Caller, Operator, Owner};
use super::extract::{Json, NoBody, NoQuery, Path, PrincipalNumber, Query, most, page};
use super::problem::{Problem, ProblemKind};
use super::usage::is_readable;
use super::{Answer, Api, Created};
use crate::provider::billing::{self, MonthPercentile, Price};
use crate::provider::statements::{StatementHead, check_confirmed, closing, is_of_nobody, of_owner};
use crate::usage::{By, StatementCursor, StatementPage};

/// Statements, and lines, of a page: by default, and at most.
const STATEMENTS: (usize, usize) = (100, 1_000);
const LINES: (usize, usize) = (1_000, 10_000);
/// Octets of a reason, at most.
const REASON: usize = 1_000;

/// A page of statements, without their lines.
#[derive(Serialize, ToSchema)]
pub struct StatementList {
    statements: Vec<StatementHead>,
    /// The value of `after` for the next page; null behind the last.
    #[schema(required)]
    next: Option<u64>,
}

/// Which page.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct ListPage {
    /// Only statements with greater numbers.
    #[param(example = 0)]
    after: Option<u64>,
    /// Statements of a page; 100 by default.
    #[param(minimum = 1, maximum = 1_000, example = 10)]
    most: Option<usize>,
}

/// Which time is closed.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "before": "2026-01-01", "reason": "December's bills" }))]
pub struct NewStatement {
    /// The time before this day (YYYY-MM-DD, UTC), time (RFC 3339) or Unix second is closed, which has to be past for a day: key epochs that
    /// had ended by then.
    before: String,
    /// Routers, by name or number, that need not have confirmed that they reported all of that time.
    #[serde(default)]
    without: Vec<String>,
    /// Whatever routers have confirmed.
    #[serde(default)]
    force: bool,
    #[serde(default)]
    #[schema(max_length = 1_000)]
    reason: String,
}

/// Which lines of a statement.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct LinesPage {
    /// Only this one; with a token for `own` it is that token's.
    #[param(value_type = Option<u32>, maximum = 16_777_215, example = 7)]
    principal: Option<PrincipalNumber>,
    /// What has a line of its own; `delegation` by default.
    #[param(inline, example = "delegation")]
    by: Option<By>,
    /// Only lines behind the one that `next` of a page with the same `by` names.
    #[param(pattern = "^[0-9]+([.]([0-9]+|-))*$", example = "0.-.-.-.0")]
    after: Option<String>,
    /// Lines of a page; 1000 by default.
    #[param(minimum = 1, maximum = 10_000, example = 10)]
    most: Option<usize>,
}

/// A statement with a page of its lines.
#[derive(Serialize, ToSchema)]
pub struct StatementLines {
    #[serde(flatten)]
    #[schema(inline)]
    head: StatementHead,
    #[schema(value_type = Vec<super::usage::UsageLine>)]
    usage: Vec<Value>,
    /// The value of `after` for the next page; null behind the last.
    #[schema(required)]
    next: Option<String>,
}

/// For whom.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct BillingPage {
    /// Only this one's; with a token for `own` it is that token's.
    #[param(value_type = Option<u32>, maximum = 16_777_215, example = 7)]
    principal: Option<PrincipalNumber>,
    /// Only those of principals above this one.
    #[param(value_type = Option<u32>, maximum = 16_777_215, example = 0)]
    after: Option<PrincipalNumber>,
    /// Principals of a page; 1000 by default.
    #[param(minimum = 1, maximum = 10_000, example = 10)]
    most: Option<usize>,
}

/// A page of what a statement has for billing beside its lines.
#[derive(Serialize, ToSchema)]
pub struct StatementBilling {
    statement: u64,
    /// Price tags of accounts and grants that were in force in the months of its lines.
    prices: Vec<Price>,
    /// 95th percentiles of the months that ended in its time.
    percentiles: Vec<MonthPercentile>,
    /// The value of `after` for the next page; null behind the last.
    #[schema(required)]
    next: Option<u32>,
}

/// For whom a statement is signed.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct Whose {
    /// The one who pays; with a token for `own` it is that token's.
    #[param(value_type = Option<u32>, maximum = 16_777_215, example = 7)]
    principal: Option<PrincipalNumber>,
    /// Which of the owners that its number had one after the other, from 0; the present one by default. A token for `own` is for that one.
    #[param(example = 0)]
    owner: Option<u8>,
}

/// A signed statement.
#[derive(Serialize, ToSchema)]
pub struct SignedStatement {
    /// In hexadecimal: the whole content of the file that `wayleave cap verify` checks.
    signed: String,
    /// The key that signed it.
    writer: String,
}

fn unusable(error: StoreError) -> Problem {
    if let StoreError::Removed(_) = error {
        return Problem::new(ProblemKind::NotFound, error.to_string());
    }
    // It is not for callers what the database says.
    tracing::error!("a statement cannot be read or made: {error}");
    let why = if error.is_outage() { "the database cannot be used now" } else { "the statement cannot be read" };
    Problem::new(ProblemKind::Busy, format!("{why}: see the key server's log"))
}

impl Api {
    fn usage_store(&self) -> Result<&Store, Problem> {
        let none = || Problem::new(ProblemKind::NotFound, "this key server has no [key.routers]: nobody reports usage");
        self.view.usage_store().ok_or_else(none)
    }

    fn periods(&self) -> AccountPeriods {
        lock(&self.core).server.state().reopened().iter().copied().collect()
    }

    fn head(&self, statement: &UsageStatement, caller: &Caller<Owner>) -> StatementHead {
        let head = StatementHead::of(statement, &self.view.names());
        if caller.own.is_some() { head.for_customer() } else { head }
    }

    /// A complete statement, with the sums of one principal or of all. What is of all is read one after the other: it may be long.
    async fn complete(&self, number: u64, principal: Option<Principal>) -> Result<StatementSums, Problem> {
        let _turn = match principal {
            None => Some(self.reading.acquire().await),
            Some(_) => None,
        };
        let found = self.usage_store()?.statement(number, principal.map(Principal::number)).await;
        let found = found.map_err(unusable)?.ok_or_else(|| none(number))?;
        if found.0.is_complete {
            return Ok(found);
        }
        let why = format!("statement {number} is still being added up");
        Err(Problem::new(ProblemKind::Conflict, why)
            .help("ask again in a minute: GET /v1/statements says when it is complete"))
    }
}

fn none(number: u64) -> Problem {
    Problem::new(ProblemKind::NotFound, format!("there is no statement {number}")).help("GET /v1/statements lists them")
}

/// The statements that there are
#[utoipa::path(
    get,
    path = "/v1/statements",
    operation_id = "listStatements",
    security(("token" = ["own"])),
    params(ListPage),
    responses(
        (status = 200, description = "Done.", body = StatementList),
        (status = 404, description = "There is no such thing.")
    )
)]
pub async fn list(
    State(api): State<Arc<Api>>,
    caller: Caller<Owner>,
    Query(page): Query<ListPage>,
    _: NoBody,
) -> Answer<StatementList> {
    let most = most(page.most, STATEMENTS)?;
    let mut found = api.usage_store()?.statements(page.after.unwrap_or(0), most + 1).await.map_err(unusable)?;
    let is_more = found.len() > most;
    found.truncate(most);
    let next = found.last().map(|last| last.number).filter(|_| is_more);
    Ok(Json(StatementList { statements: found.iter().map(|statement| api.head(statement, &caller)).collect(), next }))
}

/// Close time: the next statement has all that had ended before. This cannot be undone
#[utoipa::path(
    post,
    path = "/v1/statements",
    operation_id = "closeUsage",
    security(("token" = ["operate"])),
    responses(
        (status = 201, description = "The statement is begun; `complete` says when all of it is added up.", body = StatementHead),
        (status = 200, description = "This very time was closed already, with this statement.", body = StatementHead),
        (status = 404, description = "There is no such thing."),
        (status = 409, description = "Routers have not confirmed it, more than that time is closed already, or the statement before is not added up yet.")
    )
)]
pub async fn close(
    State(api): State<Arc<Api>>,
    caller: Caller<Operator>,
    _: NoQuery,
    Json(new): Json<NewStatement>,
) -> Created<StatementHead> {
    let now = api.clock.now().unix.secs();
    let before = closing(&new.before, now)?;
    if new.reason.len() > REASON {
        let why = format!("`reason` has {} octets, expected {REASON} at most", new.reason.len());
        return Err(Problem::new(ProblemKind::Request, why));
    }
    let (store, names) = (api.usage_store()?, api.view.names());
    let mut numbers: BTreeSet<_> = api.view.numbers();
    let closed = store.usage_head().await.map_err(unusable)?.closed_before;
    if before > closed && !new.force {
        let known = store.known_routers().await.map_err(unusable)?;
        numbers.extend(store.routers_to_close(before).await.map_err(unusable)?);
        check_confirmed(&numbers, &names, &known.confirmed, (before, &new.without)).map_err(|failure| {
            // What is named and not there is the caller's error.
            if failure.is_usage() { Problem::from(failure) } else { Problem::of(ProblemKind::Conflict, failure) }
        })?;
    }
    let (actor, said) = caller.note();
    let note = Note { actor, reason: if new.reason.is_empty() { said } else { &new.reason } };
    let conflict = |why: String| Err(Problem::new(ProblemKind::Conflict, why));
    match store.close_usage(before, &numbers, (now, note)).await.map_err(unusable)? {
        Closing::Done(made) => Ok((StatusCode::CREATED, Json(StatementHead::of(&made, &names)))),
        Closing::Same(made) => Ok((StatusCode::OK, Json(StatementHead::of(&made, &names)))),
        Closing::Before(closed) => conflict(format!("the time before {} is closed already", utc(closed))),
        Closing::Incomplete(number) => {
            conflict(format!("statement {number} is still being added up: ask again in a minute"))
        }
    }
}

/// A statement with its lines
#[utoipa::path(
    get,
    path = "/v1/statements/{statement}",
    operation_id = "statement",
    security(("token" = ["own"])),
    params(("statement" = u64, Path, description = "Its number.", example = 1), LinesPage),
    responses(
        (status = 200, description = "Done.", body = StatementLines),
        (status = 404, description = "There is no such thing."),
        (status = 409, description = "It is not added up yet.")
    )
)]
pub async fn show(
    State(api): State<Arc<Api>>,
    caller: Caller<Owner>,
    Path(number): Path<u64>,
    Query(page): Query<LinesPage>,
    _: NoBody,
) -> Answer<StatementLines> {
    let only = caller.only(page.principal)?;
    let by = page.by.unwrap_or(By::Delegation);
    let after = page.after.map(|text| {
        let refused =
            || Problem::new(ProblemKind::Request, format!("`after` is not the `next` of a page by {}", by.name()));
        StatementCursor::parse(&text, by).ok_or_else(refused)
    });
    let mut lines = StatementPage::new(by, after.transpose()?, most(page.most, LINES)?);
    let (statement, sums, _) = api.complete(number, only).await?;
    for line in api.view.lines(&sums) {
        if is_readable(&line, caller.own) {
            lines.add(&line);
        }
    }
    let (lines, next) = lines.finish();
    let next = next.map(|next| next.to_string());
    Ok(Json(StatementLines { head: api.head(&statement, &caller), usage: lines.lines, next }))
}

/// What a statement has for billing beside its lines: price tags, and 95th percentiles in samples of five minutes
#[utoipa::path(
    get,
    path = "/v1/statements/{statement}/billing",
    operation_id = "statementBilling",
    security(("token" = ["own"])),
    params(("statement" = u64, Path, description = "Its number.", example = 1), BillingPage),
    responses(
        (status = 200, description = "Done.", body = StatementBilling),
        (status = 404, description = "There is no such thing."),
        (status = 409, description = "It is not added up yet.")
    )
)]
pub async fn billing(
    State(api): State<Arc<Api>>,
    caller: Caller<Owner>,
    Path(number): Path<u64>,
    Query(wanted): Query<BillingPage>,
    _: NoBody,
) -> Answer<StatementBilling> {
    let only = caller.only(wanted.principal)?;
    let most = most(wanted.most, LINES)?;
    let (_, _, Details { prices, percentiles }) = api.complete(number, only).await?;
    let periods = api.periods();
    let after = wanted.after.map(|after| after.0.number());
    let all: BTreeSet<u32> = prices.keys().chain(percentiles.keys()).copied().collect();
    let behind = all.into_iter().filter(|principal| after.is_none_or(|after| *principal > after));
    let (principals, next) = page(behind, most, |principal| *principal);
    // The number may have been somebody else's.
    let is_readable = |principal: u32, owner: u8| caller.own.is_none() || owner == periods.latest(principal);
    let mut said = StatementBilling { statement: number, prices: Vec::new(), percentiles: Vec::new(), next };
    for principal in principals {
        let tags = prices.get(&principal).into_iter().flatten();
        let tags = tags.filter(|tag| is_readable(principal, periods.at(principal, tag.since)));
        said.prices.extend(billing::prices(principal, &tags.cloned().collect::<Vec<_>>(), &periods));
        let months = percentiles.get(&principal).into_iter().flatten();
        let months = months.filter(|month| is_readable(principal, month.owner));
        said.percentiles.extend(billing::percentiles(principal, &months.copied().collect::<Vec<_>>()));
    }
    Ok(Json(said))
}

/// A statement for one who pays, signed: `wayleave cap verify` checks it
#[utoipa::path(
    get,
    path = "/v1/statements/{statement}/signed",
    operation_id = "signedStatement",
    security(("token" = ["own"])),
    params(("statement" = u64, Path, description = "Its number.", example = 1), Whose),
    responses(
        (status = 200, description = "Done.", body = SignedStatement),
        (status = 404, description = "There is no such thing."),
        (status = 409, description = "It is not added up yet.")
    )
)]
pub async fn signed(
    State(api): State<Arc<Api>>,
    caller: Caller<Owner>,
    Path(number): Path<u64>,
    Query(whose): Query<Whose>,
    _: NoBody,
) -> Answer<SignedStatement> {
    let missing = || Problem::new(ProblemKind::Request, "`principal` is missing: for whom it is signed");
    let principal = caller.only(whose.principal)?.ok_or_else(missing)?;
    let periods = api.periods();
    let latest = periods.latest(principal.number());
    let owner = whose.owner.unwrap_or(latest);
    // The token is for who has the number now.
    if caller.own.is_some() && owner != latest {
        return Err(Problem::new(ProblemKind::Access, "this token is for the present owner of the number"));
    }
    let (statement, sums, details) = api.complete(number, Some(principal)).await?;
    let of = (principal.number(), owner);
    api.run(move |api| {
        let object = of_owner(&statement, &api.zone, of, (&sums, &details), &periods);
        if is_of_nobody(lock(&api.core).server.state(), &object) {
            let what = format!("principal {} never had an account, and nothing is on this statement", of.0);
            return Err(Problem::new(ProblemKind::NotFound, what));
        }
        let signed = lock(&api.core).server.sign_statement(&object);
        let signed = signed.map_err(|error| {
            tracing::error!("a statement cannot be signed: {error}");
            Problem::new(ProblemKind::Conflict, "it has more routers or months than a signed one may have")
        })?;
        Ok(Json(SignedStatement { signed: to_hex(signed.octets()), writer: api.writer.clone() }))
    })
    .await
}

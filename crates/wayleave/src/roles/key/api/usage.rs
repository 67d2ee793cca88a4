//! Statements of usage, as `cap usage` prints them.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use wayleave_control::capability::ChargedAccount;
use wayleave_packet::platypus::header::Principal;
use wayleave_runtime::clock::unix_of_day;
use wayleave_runtime::http::ViewError;

use super::super::views::PAGE;
use super::Api;
use super::caller::{Caller, Owner};
use super::extract::{Json, NoBody, PrincipalNumber, Query, most};
use super::problem::{Problem, ProblemKind};
use crate::usage::{By, ListingCursor, Statement, StatementPage, csv, csv_lines, is_within};

/// Lines of a page: by default, and at most.
const LINES: (usize, usize) = (1_000, 10_000);
/// How often, and after which pauses, a page is read that changes while it is read.
const TRIES: usize = 100;
const PAUSE: Duration = Duration::from_millis(200);

/// How a statement is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    Json,
    Csv,
}

/// Which page of which statement.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct Page {
    /// Only this one; with a token for `own` it is that token's.
    #[param(value_type = Option<u32>, maximum = 16_777_215, example = 7)]
    principal: Option<PrincipalNumber>,
    /// What has a line of its own; `delegation` by default.
    #[param(inline, example = "delegation")]
    by: Option<By>,
    /// Only key epochs that begin on this day (YYYY-MM-DD, UTC) or at this Unix second, or later.
    #[param(example = "2026-01-01")]
    from: Option<String>,
    /// Only key epochs that begin before.
    #[param(example = "2100-01-01")]
    to: Option<String>,
    /// CSV (RFC 4180) also by `Accept: text/csv`.
    #[param(inline, example = "json")]
    format: Option<Format>,
    /// Only lines behind the one that `next` of a page with the same `by` names. Each line is added up when its page is read; if
    /// usage of closed time was added up since the first page, which would be on two pages or on none, the answer is 410.
    #[param(pattern = "^[0-9]+([.]([0-9]+|-))*~[0-9]+$", example = "0.-.-.-.0~0")]
    after: Option<String>,
    /// Lines of a page; 1000 by default.
    #[param(minimum = 1, maximum = 10_000, example = 10)]
    most: Option<usize>,
}

/// A page of a statement.
#[derive(Serialize, ToSchema)]
pub struct UsagePage {
    #[schema(value_type = Vec<UsageLine>)]
    usage: Vec<Value>,
    /// The value of `after` for the next page; null behind the last.
    #[schema(required)]
    next: Option<String>,
}

/// A line of a statement: of the columns that tell lines apart it has those of `by`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "lines are made by the columns of a statement, as commands print them; a test reads them as this"
)]
pub struct UsageLine {
    principal: u32,
    /// The account's name.
    account: Option<String>,
    delegation: Option<u32>,
    sub_delegation: Option<u32>,
    epoch: Option<u32>,
    begins: Option<String>,
    ends: Option<String>,
    router: Option<u32>,
    router_name: Option<String>,
    /// Whether a router reported it after its time was closed: it is of the time after that closing.
    late: bool,
    #[schema(pattern = "^[0-9]+$")]
    packets: String,
    /// Of IP packets, headers included; a text, since it may have more digits than a number of JSON.
    #[schema(pattern = "^[0-9]+$")]
    octets: String,
}

/// A page of what principals sent, as routers reported it: a statement to bill from
#[utoipa::path(
    get,
    path = "/v1/usage",
    operation_id = "usage",
    security(("token" = ["own"])),
    params(Page),
    responses(
        (
            status = 200,
            description = "Done.",
            content((UsagePage = "application/json"), (String = "text/csv")),
            headers((
                "Link" = String,
                description = "Of CSV: the next page (RFC 8288, `rel=\"next\"`), if there is one. Only the first page has a line with the names of the columns."
            ))
        ),
        (status = 404, description = "There is no such thing."),
        (
            status = 410,
            description = "This page does not go with those before: usage was added up meanwhile. Begin again, without `after`."
        ),
    )
)]
pub async fn list(
    State(api): State<Arc<Api>>,
    caller: Caller<Owner>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
    Query(page): Query<Page>,
    _: NoBody,
) -> Result<Response, Problem> {
    let refused = |what: String| Problem::new(ProblemKind::Request, what);
    let by = page.by.unwrap_or(By::Delegation);
    let time = |name: &str, text: Option<String>| {
        let read = |text: String| text.parse().ok().or_else(|| unix_of_day(&text));
        let none = || refused(format!("`{name}` is no day (YYYY-MM-DD, UTC) and no Unix seconds"));
        text.map(|text| read(text).ok_or_else(none)).transpose()
    };
    let (from, to) = (time("from", page.from)?, time("to", page.to)?);
    if from.is_some_and(|from| to.is_some_and(|to| from >= to)) {
        return Err(refused("`to` is not later than `from`".to_owned()));
    }
    let accepts_csv = || headers.get(header::ACCEPT).is_some_and(|accept| accept.as_bytes().starts_with(b"text/csv"));
    let is_csv = page.format.map_or_else(accepts_csv, |format| format == Format::Csv);
    let after = page.after.map(|text| {
        let after = ListingCursor::parse(&text, by);
        after.ok_or_else(|| refused(format!("`after` is not the `next` of a page by {}", by.name())))
    });
    let after = after.transpose()?;
    let is_first = after.is_none();
    let only = caller.only(page.principal)?;
    let page = StatementPage::new(by, after.as_ref().map(|after| after.line.clone()), most(page.most, LINES)?);
    let is_requested = |line: &Value| is_within(line, from, to) && is_readable(line, caller.own);
    let (statement, next) = read(&api, page, only, after, is_requested).await?;
    let next = next.map(|next| next.to_string());
    if !is_csv {
        return Ok(Json(UsagePage { usage: statement.lines, next }).into_response());
    }
    let (text, content_type) = match is_first {
        true => (csv(&statement), "text/csv; charset=utf-8; header=present"),
        false => (csv_lines(&statement), "text/csv; charset=utf-8; header=absent"),
    };
    let mut response = ([(header::CONTENT_TYPE, content_type)], text).into_response();
    if let Some(link) = next.and_then(|next| link(&query.unwrap_or_default(), &next).parse().ok()) {
        response.headers_mut().insert(header::LINK, link);
    }
    Ok(response)
}

/// Reads a page, again if totals were added to sums meanwhile. A page that is not the first has to be of the same time as those before:
/// totals that were added since would be on two pages, or on none.
async fn read(
    api: &Api,
    page: StatementPage,
    only: Option<Principal>,
    after: Option<ListingCursor>,
    is_requested: impl Fn(&Value) -> bool,
) -> Result<(Statement, Option<ListingCursor>), Problem> {
    for _ in 0..TRIES {
        if let Some(whole) = read_parts(api, page.clone(), only, after.as_ref(), &is_requested).await? {
            return Ok(whole);
        }
        if after.is_some() {
            let why =
                "usage of closed time was added up since the first page: this page would not go with those before";
            return Err(Problem::new(ProblemKind::Gone, why).help("begin again, without `after`"));
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(Problem::new(ProblemKind::Busy, "usage of closed time is being added up: ask again in a minute"))
}

/// Reads usage in parts until the page is full: neither takes more memory than they have lines. `None` if the parts are not of one
/// time.
async fn read_parts(
    api: &Api,
    mut page: StatementPage,
    only: Option<Principal>,
    after: Option<&ListingCursor>,
    is_requested: &impl Fn(&Value) -> bool,
) -> Result<Option<(Statement, Option<ListingCursor>)>, Problem> {
    // Lines of one principal are in another order than accounts: its accounts are read from the first one on.
    let begun = after.and_then(|cursor| Principal::new(u32::try_from(cursor.line.principal()).ok()?));
    let begun = begun.filter(|_| only.is_none());
    let mut first = begun.map(|principal| Bound::Included(ChargedAccount::bounds(principal).0));
    let mut before = after.map(|cursor| cursor.moved);
    let finished = |page: StatementPage, moved| {
        let (statement, next) = page.finish();
        Ok(Some((statement, next.map(|line| ListingCursor { line, moved }))))
    };
    loop {
        let (lines, next, moved) = api.view.usage_page(first, only, PAGE).await.map_err(unavailable)?;
        if *before.get_or_insert(moved) != moved {
            return Ok(None);
        }
        for line in &lines {
            if page.is_full_before(line["principal"].as_u64().unwrap_or(0)) {
                return finished(page, moved);
            }
            if is_requested(line) {
                page.add(line);
            }
        }
        let Some(next) = next else { return finished(page, moved) };
        first = Some(Bound::Excluded(next));
    }
}

/// Whether a line is for who may read what is one principal's. Its number may have been somebody else's: what that one sent is for those who
/// may read everybody's.
pub fn is_readable(line: &Value, own: Option<Principal>) -> bool {
    own.is_none() || line["generation"].is_null()
}

fn unavailable(error: ViewError) -> Problem {
    match error {
        ViewError::Request(why) | ViewError::NotFound(why) => Problem::new(ProblemKind::NotFound, why),
        ViewError::Failed(why) => Problem::new(ProblemKind::Busy, why),
        ViewError::Unavailable => Problem::new(ProblemKind::Stopping, "starting or stopping"),
    }
}

/// The next page of a statement as comma-separated values (RFC 8288). `next` has no characters that would have to be encoded.
fn link(query: &str, next: &str) -> String {
    let kept = query.split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("after="));
    let kept: String = kept.map(|pair| format!("{pair}&")).collect();
    format!("</v1/usage?{kept}after={next}>; rel=\"next\"")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_the_former_owner_of_a_number_sent_is_not_for_its_present_one() {
        let (own, former) = (json!({ "generation": null }), json!({ "generation": 3 }));
        let principal = Principal::new(7);
        assert!(is_readable(&own, principal) && !is_readable(&former, principal));
        assert!(is_readable(&own, None) && is_readable(&former, None));
    }
}

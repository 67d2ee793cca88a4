//! Statements of usage, as `cap usage` prints them.

use std::ops::Bound;
use std::time::Duration;

use serde_json::{Value, json};
use wayleave_control::capability::ChargedAccount;
use wayleave_packet::platypus::header::Principal;
use wayleave_runtime::clock::unix_of_day;
use wayleave_runtime::http::ViewError;

use super::super::views::PAGE;
use super::accounts::principal;
use super::problem::{Problem, ProblemKind};
use super::{Api, Call, Reply};
use crate::usage::{By, ListingCursor, Statement, StatementPage, csv, csv_lines, is_within};

/// Lines of a page: by default, and at most.
const LINES: (usize, usize) = (1_000, 10_000);
/// How often, and after which pauses, a page is read that changes while it is read.
const TRIES: usize = 100;
const PAUSE: Duration = Duration::from_millis(200);

/// A page of the statement.
pub async fn list(api: &Api, call: &Call) -> Result<Reply, Problem> {
    let refused = |what: String| Problem::new(ProblemKind::Request, what);
    let by = match call.query.get("by").map(String::as_str) {
        None | Some("delegation") => By::Delegation,
        Some("principal") => By::Principal,
        Some("epoch") => By::Epoch,
        Some("router") => By::Router,
        Some(_) => return Err(refused("`by` is one of principal, delegation, epoch and router".to_owned())),
    };
    let time = |name: &str| match call.query.get(name) {
        None => Ok(None),
        Some(text) => match text.parse().ok().or_else(|| unix_of_day(text)) {
            Some(seconds) => Ok(Some(seconds)),
            None => Err(refused(format!("`{name}` is no day (YYYY-MM-DD, UTC) and no Unix seconds"))),
        },
    };
    let (from, to) = (time("from")?, time("to")?);
    if from.is_some_and(|from| to.is_some_and(|to| from >= to)) {
        return Err(refused("`to` is not later than `from`".to_owned()));
    }
    let is_csv = match call.query.get("format").map(String::as_str) {
        None => call.accept.starts_with("text/csv"),
        Some("json") => false,
        Some("csv") => true,
        Some(_) => return Err(refused("`format` is json or csv".to_owned())),
    };
    let only = call.query.get("principal").map(|text| principal(text)).transpose()?;
    let after = match call.query.get("after") {
        None => None,
        Some(text) => Some(
            ListingCursor::parse(text, by)
                .ok_or_else(|| refused(format!("`after` is not the `next` of a page by {}", by.name())))?,
        ),
    };
    let is_first = after.is_none();
    let page = StatementPage::new(by, after.as_ref().map(|after| after.line.clone()), call.most(LINES.0, LINES.1)?);
    let (statement, next) = read(api, page, only, after, |line| is_within(line, from, to)).await?;
    let next = next.map(|next| next.to_string());
    Ok(match (is_csv, is_first) {
        (false, _) => Reply::Json(200, json!({ "usage": statement.lines, "next": next })),
        (true, true) => Reply::Csv { text: csv(&statement), has_names: true, next: next.map(|next| link(call, &next)) },
        (true, false) => {
            Reply::Csv { text: csv_lines(&statement), has_names: false, next: next.map(|next| link(call, &next)) }
        }
    })
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

fn unavailable(error: ViewError) -> Problem {
    match error {
        ViewError::Request(why) | ViewError::NotFound(why) => Problem::new(ProblemKind::NotFound, why),
        ViewError::Unavailable => Problem::new(ProblemKind::Stopping, "starting or stopping"),
    }
}

/// The next page of a statement as comma-separated values (RFC 8288). No parameter has characters that would have to be encoded.
fn link(call: &Call, next: &str) -> String {
    let kept = call.query.iter().filter(|(name, _)| *name != "after");
    let kept: String = kept.map(|(name, value)| format!("{name}={value}&")).collect();
    format!("</v1/usage?{kept}after={next}>; rel=\"next\"")
}

//! Statements of usage, as `cap usage` prints them.

use serde_json::{Value, json};
use wayleave_runtime::clock::unix_of_day;
use wayleave_runtime::http::{Parameters, ViewError};

use super::accounts::principal;
use super::problem::{Problem, ProblemKind};
use super::{Api, Call, Reply};
use crate::usage::{By, csv, is_within, statement};

/// The statement.
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
    let is_csv = match call.query.get("format").map(String::as_str) {
        None => call.accept.starts_with("text/csv"),
        Some("json") => false,
        Some("csv") => true,
        Some(_) => return Err(refused("`format` is json or csv".to_owned())),
    };
    let mut parameters = Parameters::new();
    if let Some(text) = call.query.get("principal") {
        parameters.insert("principal".to_owned(), principal(text)?.number().to_string());
    }
    let page = api.view.clone().usage(parameters).await.map_err(|error| match error {
        ViewError::Request(why) => Problem::new(ProblemKind::NotFound, why),
        ViewError::NotFound(why) => Problem::new(ProblemKind::NotFound, why),
        ViewError::Unavailable => Problem::new(ProblemKind::Stopping, "starting or stopping"),
    })?;
    let lines: &[Value] = page["usage"].as_array().map_or(&[], Vec::as_slice);
    let statement = statement(lines.iter().filter(|line| is_within(line, from, to)), by);
    Ok(if is_csv { Reply::Csv(csv(&statement)) } else { Reply::Json(200, json!({ "usage": statement.lines })) })
}

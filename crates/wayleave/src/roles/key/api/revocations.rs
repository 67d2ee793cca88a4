//! Revocations: listed, made, lifted.

use serde::Deserialize;
use serde_json::{Value, json};
use wayleave_control::capability::ChangeBody;

use super::super::core::lock;
use super::problem::{Problem, ProblemKind};
use super::{Api, Call, Reply};
use crate::key_files::revocation::RevocationEntry;

/// Entries of a page: by default, and at most.
const PAGE: (usize, usize) = (1_000, 10_000);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Revoked {
    entry: String,
}

fn entry(text: &str) -> Result<RevocationEntry, Problem> {
    text.parse().map_err(|error| Problem::new(ProblemKind::Request, format!("`entry`: {error}")))
}

/// A page of revocations in force.
pub fn list(api: &Api, call: &Call) -> Result<Reply, Problem> {
    let after = call.query.get("after").map(|text| entry(text)).transpose()?;
    let most = call.most(PAGE.0, PAGE.1)?;
    let core = lock(&api.core);
    let state = core.server.state();
    let mut page: Vec<_> = state.revocations_after(after.map(|entry| entry.0)).take(most + 1).copied().collect();
    let number = state.number();
    drop(core);
    let more = page.len() > most;
    page.truncate(most);
    let texts: Vec<Value> = page.iter().map(|entry| RevocationEntry(*entry).to_string().into()).collect();
    let next = if more { texts.last().cloned() } else { None };
    Ok(Reply::Json(200, json!({ "number": number, "revocations": texts, "next": next })))
}

/// Revokes; what is revoked already stays so.
pub fn revoke(api: &Api, call: &Call) -> Result<Reply, Problem> {
    let Revoked { entry: text } = call.json()?;
    let RevocationEntry(revocation) = entry(&text)?;
    let number =
        api.change(call, &mut |state| Ok((!state.is_listed(&revocation)).then_some(ChangeBody::Revoke(revocation))))?;
    Ok(Reply::Json(200, json!({ "number": number })))
}

/// Takes a revocation back.
pub fn lift(api: &Api, call: &Call) -> Result<Reply, Problem> {
    let text = call.query.get("entry");
    let text = text.ok_or_else(|| Problem::new(ProblemKind::Request, "`entry` is missing: which revocation"))?;
    let RevocationEntry(revocation) = entry(text)?;
    let number = api.change(call, &mut |state| {
        if state.is_listed(&revocation) {
            return Ok(Some(ChangeBody::Lift(revocation)));
        }
        Err(Problem::new(ProblemKind::NotFound, "nothing of this kind is revoked"))
    })?;
    Ok(Reply::Json(200, json!({ "number": number })))
}

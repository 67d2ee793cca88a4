//! Revocations: listed, made, lifted.

use std::sync::Arc;

use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};
use wayleave_control::capability::ChangeBody;

use super::super::core::lock;
use super::caller::{Caller, Operator, Reader};
use super::extract::{Json, NoQuery, Query, most};
use super::problem::{Problem, ProblemKind};
use super::{Answer, Api, ok};
use crate::key_files::revocation::RevocationEntry;

/// Entries of a page: by default, and at most.
const PAGE: (usize, usize) = (1_000, 10_000);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Revoked {
    entry: String,
}

/// Which page of revocations.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Page {
    after: Option<String>,
    most: Option<usize>,
}

/// Which revocation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lifted {
    entry: String,
}

fn entry(text: &str) -> Result<RevocationEntry, Problem> {
    text.parse().map_err(|error| Problem::new(ProblemKind::Request, format!("`entry`: {error}")))
}

/// A page of revocations in force.
pub async fn list(State(api): State<Arc<Api>>, _: Caller<Reader>, Query(page): Query<Page>) -> Answer {
    let after = page.after.as_deref().map(entry).transpose()?;
    let most = most(page.most, PAGE)?;
    api.run(move |api| {
        let core = lock(&api.core);
        let state = core.server.state();
        let mut page: Vec<_> = state.revocations_after(after.map(|entry| entry.0)).take(most + 1).copied().collect();
        let number = state.number();
        drop(core);
        let more = page.len() > most;
        page.truncate(most);
        let texts: Vec<Value> = page.iter().map(|entry| RevocationEntry(*entry).to_string().into()).collect();
        let next = if more { texts.last().cloned() } else { None };
        ok(json!({ "number": number, "revocations": texts, "next": next }))
    })
    .await
}

/// Revokes; what is revoked already stays so.
pub async fn revoke(
    State(api): State<Arc<Api>>,
    caller: Caller<Operator>,
    _: NoQuery,
    Json(revoked): Json<Revoked>,
) -> Answer {
    let RevocationEntry(revocation) = entry(&revoked.entry)?;
    api.run(move |api| {
        let number = api.change(&caller.by, &mut |state| {
            Ok((!state.is_listed(&revocation)).then_some(ChangeBody::Revoke(revocation)))
        })?;
        ok(json!({ "number": number }))
    })
    .await
}

/// Takes a revocation back.
pub async fn lift(State(api): State<Arc<Api>>, caller: Caller<Operator>, Query(lifted): Query<Lifted>) -> Answer {
    let RevocationEntry(revocation) = entry(&lifted.entry)?;
    api.run(move |api| {
        let number = api.change(&caller.by, &mut |state| {
            if state.is_listed(&revocation) {
                return Ok(Some(ChangeBody::Lift(revocation)));
            }
            Err(Problem::new(ProblemKind::NotFound, "nothing of this kind is revoked"))
        })?;
        ok(json!({ "number": number }))
    })
    .await
}

//! The trail of changes: who changed what of accounts, grants, revocations and rates, when, and why.

use std::sync::Arc;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::super::core::{database, hold};
use super::caller::{Caller, Reader};
use super::extract::{Json, NoBody, Query, most};
use super::problem::{Problem, ProblemKind};
use super::{Answer, Api};
use crate::provider::orders::MadeChange;

/// Changes of a page: by default, and at most.
const PAGE: (usize, usize) = (100, 1_000);

/// A page of changes.
#[derive(Serialize, ToSchema)]
pub struct Changes {
    changes: Vec<MadeChange>,
    /// The value of `after` for the next page; null behind the last.
    #[schema(required)]
    next: Option<u64>,
}

/// Which page of changes.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct Page {
    /// Only those behind the change with this number, the first ones first. Without it, the last ones.
    #[param(example = 1)]
    after: Option<u64>,
    /// Changes of a page.
    #[param(minimum = 1, maximum = 1_000, example = 10)]
    most: Option<usize>,
}

/// A page of changes, each as it was authenticated: who made it, when, what it did, and why
#[utoipa::path(
    get,
    path = "/v1/changes",
    operation_id = "listChanges",
    security(("token" = ["read"])),
    params(Page),
    responses((status = 200, description = "Done.", body = Changes))
)]
pub async fn list(
    State(api): State<Arc<Api>>,
    _: Caller<Reader>,
    Query(wanted): Query<Page>,
    _: NoBody,
) -> Answer<Changes> {
    let most = most(wanted.most, PAGE)?;
    api.run(move |api| {
        // Whoever changes something waits for the page; look-ups do not.
        let database = database(&api.core);
        let read = hold(&database).trail_after(wanted.after, most);
        let read = read.map_err(|failure| Problem::of(ProblemKind::Disk, failure))?;
        let changes: Vec<MadeChange> = read.iter().map(MadeChange::from).collect();
        let next = changes.last().filter(|_| wanted.after.is_some() && changes.len() == most).map(|last| last.number);
        Ok(Json(Changes { changes, next }))
    })
    .await
}

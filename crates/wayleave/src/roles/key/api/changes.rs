//! The trail of changes: who changed what of accounts, grants, revocations and rates, when, and why.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;
use tokio::time::timeout;
use utoipa::{IntoParams, ToSchema};
use wayleave_store::{Location, Recorded, Store, StoreError, StoreKey};

use super::caller::{Caller, Operator};
use super::extract::{Json, NoBody, PrincipalNumber, Query, most};
use super::problem::{Problem, ProblemKind};
use super::{Answer, Api};
use crate::config::Source;
use crate::config::key::KeyFile;
use crate::failure::Outcome;
use crate::provider::orders::MadeChange;

/// Changes of a page: by default, and at most.
const PAGE: (usize, usize) = (100, 1_000);

/// How long the database may take.
const LIMIT: Duration = Duration::from_secs(10);

/// The database for whoever reads the trail, by connections of its own: nobody who changes something waits for a reader.
pub struct Trail {
    place: Location,
    key: StoreKey,
    opened: OnceCell<Store>,
}

impl Trail {
    /// # Errors
    /// If the key of the database cannot be read.
    pub fn of(config: &KeyFile, source: &Source) -> Outcome<Self> {
        let key = StoreKey::new(config.provider(source)?.store_key());
        Ok(Self { place: config.database(source), key, opened: OnceCell::new() })
    }

    async fn read(&self, after: Option<u64>, most: usize, principal: Option<u32>) -> Result<Vec<Recorded>, StoreError> {
        let store = self.opened.get_or_try_init(|| Store::open(&self.place, self.key.clone())).await?;
        store.trail(after, most, principal).await
    }
}

/// A page of changes.
#[derive(Serialize, ToSchema)]
pub struct Changes {
    changes: Vec<MadeChange>,
    /// The value of `after` for the next page; null behind the last, and without `after`.
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
    /// Only changes of what is this principal's.
    #[param(value_type = Option<u32>, maximum = 16_777_215, example = 7)]
    principal: Option<PrincipalNumber>,
    /// Changes of a page.
    #[param(minimum = 1, maximum = 1_000, example = 10)]
    most: Option<usize>,
}

/// A page of changes, each as it was authenticated: who made it, when, what it did, and why
#[utoipa::path(
    get,
    path = "/v1/changes",
    operation_id = "listChanges",
    security(("token" = ["operate"])),
    params(Page),
    responses((status = 200, description = "Done.", body = Changes))
)]
pub async fn list(
    State(api): State<Arc<Api>>,
    _: Caller<Operator>,
    Query(wanted): Query<Page>,
    _: NoBody,
) -> Answer<Changes> {
    let most = most(wanted.most, PAGE)?;
    let principal = wanted.principal.map(|principal| principal.0.number());
    let read = timeout(LIMIT, api.trail.read(wanted.after, most, principal)).await;
    let read =
        read.map_err(|_| "it does not answer".to_owned()).and_then(|read| read.map_err(|error| error.to_string()));
    let read = read.map_err(|why| Problem::new(ProblemKind::Disk, format!("the trail cannot be read: {why}")))?;
    let changes: Vec<MadeChange> = read.iter().map(MadeChange::from).collect();
    let next = changes.last().filter(|_| wanted.after.is_some() && changes.len() == most).map(|last| last.number);
    Ok(Json(Changes { changes, next }))
}

//! Revocations: listed, made, lifted.

use std::sync::Arc;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use wayleave_control::capability::ChangeBody;
use wayleave_packet::platypus::revocation::Revocation;

use super::super::core::lock;
use super::caller::{Caller, Operator, Reader};
use super::extract::{Json, NoBody, NoQuery, PrincipalNumber, Query, most, page};
use super::problem::{Problem, ProblemKind};
use super::{Answer, Api, Changed};
use crate::key_files::revocation::RevocationEntry;

/// Entries of a page: by default, and at most.
const PAGE: (usize, usize) = (1_000, 10_000);

/// PRINCIPAL, PRINCIPAL/DELEGATION or PRINCIPAL/DELEGATION/SUB-DELEGATION, in all key epochs, or with @INTERVAL:EPOCH in one.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(try_from = "String")]
#[schema(value_type = String, pattern = "^[0-9]+(/[0-9]+){0,2}(@[0-9]+:[0-9]+)?$")]
pub struct Entry(Revocation);

impl TryFrom<String> for Entry {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let RevocationEntry(entry) = text.parse()?;
        Ok(Self(entry))
    }
}

/// What is to be revoked.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Revocation, example = json!({ "entry": "7/3" }))]
pub struct Revoked {
    entry: Entry,
}

/// A page of revocations.
#[derive(Serialize, ToSchema)]
pub struct Revocations {
    /// Number of the last change.
    number: u64,
    #[schema(value_type = Vec<Entry>)]
    revocations: Vec<String>,
    /// The value of `after` for the next page; null behind the last.
    #[schema(required)]
    next: Option<String>,
}

/// Which page of revocations.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct Page {
    /// Only entries behind this one.
    #[param(value_type = Option<Entry>, example = "0/1")]
    after: Option<Entry>,
    /// Only this principal's.
    #[param(value_type = Option<u32>, maximum = 16_777_215, example = 7)]
    principal: Option<PrincipalNumber>,
    /// Entries of a page.
    #[param(minimum = 1, maximum = 10_000, example = 10)]
    most: Option<usize>,
}

/// Which revocation.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct Lifted {
    /// Which.
    #[param(example = "7/3")]
    entry: Entry,
}

/// A page of revocations in force
#[utoipa::path(
    get,
    path = "/v1/revocations",
    operation_id = "listRevocations",
    security(("token" = ["read"])),
    params(Page),
    responses((status = 200, description = "Done.", body = Revocations))
)]
pub async fn list(
    State(api): State<Arc<Api>>,
    _: Caller<Reader>,
    Query(wanted): Query<Page>,
    _: NoBody,
) -> Answer<Revocations> {
    let most = most(wanted.most, PAGE)?;
    api.run(move |api| {
        let core = lock(&api.core);
        let state = core.server.state();
        let (after, only) = (wanted.after.map(|after| after.0), wanted.principal.map(|only| only.0));
        // They are in order by principal: only its own are looked at.
        let behind = state.revocations_from(after, only).copied();
        let (entries, next) = page(behind, most, |last| RevocationEntry(*last).to_string());
        let number = state.number();
        drop(core);
        let revocations = entries.into_iter().map(|entry| RevocationEntry(entry).to_string()).collect();
        Ok(Json(Revocations { number, revocations, next }))
    })
    .await
}

/// Revoke; what is revoked already stays so
#[utoipa::path(
    post,
    path = "/v1/revocations",
    operation_id = "revoke",
    security(("token" = ["operate"])),
    responses((status = 200, description = "Done.", body = Changed))
)]
pub async fn revoke(
    State(api): State<Arc<Api>>,
    caller: Caller<Operator>,
    _: NoQuery,
    Json(Revoked { entry: Entry(revocation) }): Json<Revoked>,
) -> Answer<Changed> {
    api.change_for(caller, move |state| Ok((!state.is_listed(&revocation)).then_some(ChangeBody::Revoke(revocation))))
        .await
}

/// Take a revocation back
#[utoipa::path(
    delete,
    path = "/v1/revocations",
    operation_id = "liftRevocation",
    security(("token" = ["operate"])),
    params(Lifted),
    responses((status = 200, description = "Done.", body = Changed), (status = 404, description = "There is no such thing."))
)]
pub async fn lift(
    State(api): State<Arc<Api>>,
    caller: Caller<Operator>,
    Query(Lifted { entry: Entry(revocation) }): Query<Lifted>,
    _: NoBody,
) -> Answer<Changed> {
    api.change_for(caller, move |state| {
        if state.is_listed(&revocation) {
            return Ok(Some(ChangeBody::Lift(revocation)));
        }
        Err(Problem::new(ProblemKind::NotFound, "nothing of this kind is revoked"))
    })
    .await
}

//! What the server is, and the description of its API.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use serde::Serialize;
use utoipa::ToSchema;

use super::super::core::lock;
use super::caller::{Caller, Reader};
use super::extract::{Json, NoBody, NoQuery};
use super::{Answer, Api, description};
use crate::provider::tree::Waypoint;

/// What the server is.
#[derive(Serialize, ToSchema)]
pub struct Server {
    zone: String,
    #[schema(pattern = "^writer:ed25519:[0-9a-f]{64}$")]
    writer: String,
    /// Number of the last change.
    number: u64,
    accounts: usize,
    waypoints: Vec<Waypoint>,
}

/// This description
#[utoipa::path(
    get,
    path = "/v1/openapi.json",
    operation_id = "description",
    security(()),
    responses((status = 200, description = "Done.", body = Value))
)]
pub async fn describe(_: NoQuery, _: NoBody) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], description::TEXT.as_str())
}

/// The server: zone, writer, waypoints
#[utoipa::path(
    get,
    path = "/v1/server",
    operation_id = "server",
    security(("token" = ["read"])),
    responses((status = 200, description = "Done.", body = Server))
)]
pub async fn show(State(api): State<Arc<Api>>, _: Caller<Reader>, _: NoQuery, _: NoBody) -> Answer<Server> {
    api.run(|api| {
        let (number, accounts) = {
            let core = lock(&api.core);
            (core.server.state().number(), core.server.state().accounts())
        };
        let labels = &api.settings().labels;
        let waypoints = labels.keys().map(|address| Waypoint::new(*address, labels)).collect();
        Ok(Json(Server { zone: api.zone.clone(), writer: api.writer.clone(), number, accounts, waypoints }))
    })
    .await
}

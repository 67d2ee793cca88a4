//! What the server is, and the description of its API.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use serde_json::{Value, json};

use super::super::core::lock;
use super::caller::{Caller, Reader};
use super::extract::NoQuery;
use super::{Answer, Api, DESCRIPTION, ok};
use crate::provider::waypoints::describe as waypoint;

/// The description.
pub async fn description() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DESCRIPTION)
}

/// Zone, writer, and waypoints.
pub async fn describe(State(api): State<Arc<Api>>, _: Caller<Reader>, _: NoQuery) -> Answer {
    api.run(|api| {
        let (number, accounts, is_writer) = {
            let core = lock(&api.core);
            (core.server.state().number(), core.server.state().accounts(), core.server.is_writer())
        };
        let labels = &api.settings().labels;
        let waypoints: Vec<Value> = labels.keys().map(|address| waypoint(*address, labels)).collect();
        ok(json!({
            "zone": api.zone, "writer": api.writer, "is_writer": is_writer, "number": number, "accounts": accounts,
            "waypoints": waypoints,
        }))
    })
    .await
}

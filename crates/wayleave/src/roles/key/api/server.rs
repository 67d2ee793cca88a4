//! What the server is, and the description of its API.

use serde_json::{Value, json};

use super::super::core::lock;
use super::problem::Problem;
use super::{Api, Call, DESCRIPTION, Reply};
use crate::provider::waypoints::describe as waypoint;

/// The description.
#[allow(clippy::unnecessary_wraps, reason = "all handlers have one shape")]
pub fn description(_: &Api, _: &Call) -> Result<Reply, Problem> {
    Ok(Reply::Text(DESCRIPTION))
}

/// Zone, writer, and waypoints.
#[allow(clippy::unnecessary_wraps, reason = "all handlers have one shape")]
pub fn describe(api: &Api, _: &Call) -> Result<Reply, Problem> {
    let (number, accounts) = {
        let core = lock(&api.core);
        (core.server.state().number(), core.server.state().accounts())
    };
    let settings = api.settings();
    let waypoints: Vec<Value> = settings.labels.keys().map(|address| waypoint(*address, &settings.labels)).collect();
    Ok(Reply::Json(
        200,
        json!({
            "zone": api.zone, "writer": api.writer, "number": number, "accounts": accounts,
            "waypoints": waypoints,
        }),
    ))
}

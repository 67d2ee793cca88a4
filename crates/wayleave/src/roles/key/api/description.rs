//! The description of the API (OpenAPI 3.1), which follows from the routes and the types of what they take and give.

use std::sync::{Arc, LazyLock};

use serde_json::{Value, json};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::problem::Details;
use super::{Api, accounts, changes, grants, invitations, quotas, rates, revocations, server, statements, usage};
use crate::provider::orders::MAX_REASON;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Key server of a Wayleave provider",
        version = "1",
        description = "Accounts, grants, revocations, invitations and usage of Platypus capabilities, by HTTPS (TLS 1.3). Operators send a token (`Authorization: Bearer ...`), of which the server knows the hash alone; `security` names the least access that an operation needs: `own`, `read`, `sell`, `operate`, each of which may what those before it may; holders of an invitation need none. A change is answered when it is durable. Every refusal is a problem of one shape (RFC 9457) that says who erred. Fields and parameters that are not described here are refused.",
        license(name = "Apache-2.0 OR MIT", identifier = "Apache-2.0 OR MIT")
    ),
    servers((url = "https://keys.example.net:8495")),
    components(schemas(Details))
)]
struct About;

/// All routes, and what their types say of them.
pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::with_openapi(About::openapi())
        .routes(routes!(server::describe))
        .routes(routes!(server::show))
        .routes(routes!(accounts::list, accounts::open))
        .routes(routes!(accounts::show, accounts::put, accounts::amend, accounts::close))
        .routes(routes!(grants::list, grants::grant, grants::put))
        .routes(routes!(grants::withdraw))
        .routes(routes!(revocations::list, revocations::revoke, revocations::lift))
        .routes(routes!(rates::list, rates::set, rates::end))
        .routes(routes!(quotas::list, quotas::set, quotas::end))
        .routes(routes!(changes::list))
        .routes(routes!(usage::list))
        .routes(routes!(statements::list, statements::close))
        .routes(routes!(statements::show))
        .routes(routes!(statements::billing))
        .routes(routes!(statements::signed))
        .routes(routes!(invitations::list, invitations::create))
        .routes(routes!(invitations::withdraw))
        .routes(routes!(invitations::redeem))
}

/// The description, as it is served.
pub static TEXT: LazyLock<String> = LazyLock::new(|| {
    let mut description = json!(routes().into_openapi());
    description["components"]["securitySchemes"] = json!({ "token": { "type": "http", "scheme": "bearer" } });
    for operations in members(&mut description["paths"]) {
        for (method, operation) in operations.as_object_mut().into_iter().flatten() {
            add_problems(method, operation);
            add_reason(method, operation);
        }
    }
    serde_json::to_string_pretty(&description).unwrap_or_default() + "\n" // its keys are texts
});

fn members(of: &mut Value) -> impl Iterator<Item = &mut Value> {
    of.as_object_mut().into_iter().flatten().map(|(_, value)| value)
}

/// Adds the header by which a change says why it is made.
fn add_reason(method: &str, operation: &mut Value) {
    if method == "get" || operation["security"][0].get("token").is_none() {
        return;
    }
    let header = json!({
        "name": "Wayleave-Reason",
        "in": "header",
        "description": "Why, for the trail of changes (`GET /v1/changes`).",
        "required": false,
        "schema": { "type": "string", "maxLength": MAX_REASON },
        "example": "contract 2026-117",
    });
    match operation["parameters"].as_array_mut() {
        Some(parameters) => parameters.push(header),
        None => operation["parameters"] = json!([header]),
    }
}

/// Adds how an operation is refused by what is in front of all of one kind, and what a refusal looks like.
fn add_problems(method: &str, operation: &mut Value) {
    let needs_token = operation["security"][0].get("token").is_some();
    let is_change = method != "get";
    let common = [
        (true, "400", "The request is malformed, or says what cannot be."),
        (needs_token, "401", "There is no token, or nobody's."),
        (needs_token, "403", "The token allows less."),
        (is_change, "409", "The state does not allow it."),
        (true, "413", "The body is longer than 64 KiB, or broke off."),
        (true, "414", "The query is longer than 4 KiB."),
        (
            true,
            "429",
            "Too many requests of this source without a token, or with this token: `Retry-After` says when to ask again.",
        ),
        (is_change, "500", "The change could not be written."),
        (true, "503", "The server is busy, starting or stopping: ask again."),
    ];
    for (_, status, what) in common.into_iter().filter(|(is_possible, ..)| *is_possible) {
        operation["responses"][status] = json!({ "description": what });
    }
    let problem = json!({ "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } });
    for (status, response) in operation["responses"].as_object_mut().into_iter().flatten() {
        if status.as_str() >= "400" {
            response["content"] = problem.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_description_that_is_checked_in_follows_from_the_types() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api/key-server.json");
        if std::env::var_os("WAYLEAVE_WRITE").is_some() {
            std::fs::write(&path, TEXT.as_str()).expect("written");
        }
        let checked_in = std::fs::read_to_string(&path).expect("there");
        assert!(
            checked_in == *TEXT,
            "docs/api/key-server.json differs: `WAYLEAVE_WRITE=1 cargo test -p wayleave the_description_that` writes it anew"
        );
    }
}

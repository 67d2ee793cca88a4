//! What the API says when it refuses: problem details (RFC 9457), all of one shape, which say who erred.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::extract::Json;
use crate::failure::Failure;

/// The kinds of problems; each has a status and a party that erred.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProblemKind {
    /// The request is malformed, or says what cannot be.
    Request,
    /// There is no token, or nobody's.
    Credential,
    /// The token allows less.
    Access,
    NotFound,
    Method,
    /// The state does not allow it: it exists already, is full, was used.
    Conflict,
    /// It was there, and is no more.
    Gone,
    TooLarge,
    LongQuery,
    /// What names the request for repeats names another one.
    Repeated,
    TooMany,
    Disk,
    Busy,
    Stopping,
}

impl ProblemKind {
    /// Name, status, who erred, and title.
    fn parts(self) -> (&'static str, u16, &'static str, &'static str) {
        match self {
            Self::Request => ("request", 400, "caller", "The request is malformed or impossible"),
            Self::Credential => ("credential", 401, "caller", "The request has no valid token"),
            Self::Access => ("access", 403, "caller", "The token allows less"),
            Self::NotFound => ("not-found", 404, "caller", "There is no such thing"),
            Self::Method => ("method", 405, "caller", "The path has no such method"),
            Self::Conflict => ("conflict", 409, "caller", "The state does not allow the change"),
            Self::Gone => ("gone", 410, "caller", "It is no longer there"),
            Self::TooLarge => ("too-large", 413, "caller", "The request is too long"),
            Self::LongQuery => ("long-query", 414, "caller", "The query is too long"),
            Self::Repeated => ("repeated", 422, "caller", "The idempotency key is of another request"),
            Self::TooMany => ("too-many", 429, "caller", "Too many requests"),
            Self::Disk => ("disk", 500, "server", "The server cannot write"),
            Self::Busy => ("busy", 503, "server", "The server is busy"),
            Self::Stopping => ("stopping", 503, "server", "The server is starting or stopping"),
        }
    }
}

/// A problem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    pub kind: ProblemKind,
    detail: String,
    help: Option<String>,
}

impl Problem {
    /// A problem in one sentence without a full stop.
    pub fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), help: None }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }
}

/// Problem details (RFC 9457).
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct Details {
    #[schema(pattern = "^urn:wayleave:problem:[a-z-]+$")]
    r#type: String,
    title: &'static str,
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// What is wrong, in one sentence.
    detail: String,
    /// Who erred: `caller` can mend the request, `server` is for the operator of this machine.
    #[schema(pattern = "^(caller|server)$")]
    erred: &'static str,
    /// What to do about it, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    help: Option<String>,
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (name, status, erred, title) = self.kind.parts();
        let r#type = format!("urn:wayleave:problem:{name}");
        let details = Details { r#type, title, status, detail: self.detail, erred, help: self.help };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(details)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        match self.kind {
            ProblemKind::Credential => headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")),
            ProblemKind::TooMany => headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1")),
            _ => None,
        };
        response.extensions_mut().insert(self.kind); // for the counts
        response
    }
}

/// What a request says and cannot be.
impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        Self::of(ProblemKind::Request, failure)
    }
}

impl Problem {
    /// A failure as a problem of this kind.
    pub fn of(kind: ProblemKind, failure: Failure) -> Self {
        let problem = Self::new(kind, failure.to_string());
        match failure.remedy() {
            Some(help) => problem.help(help),
            None => problem,
        }
    }
}

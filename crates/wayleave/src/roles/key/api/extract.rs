//! What handlers take from a request: axum's extractors, whose rejections are problems.

use axum::body::Bytes;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, OptionalFromRequestParts, Request};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use wayleave_packet::platypus::header::Principal;
use wayleave_runtime::https::BodyRefused;

use super::LIMITS;
use super::problem::{Problem, ProblemKind};
use crate::provider::orders::principal_of;

/// Names in a path.
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = <axum::extract::Path<T> as FromRequestParts<S>>::from_request_parts(parts, state).await;
        path.map(|path| Self(path.0)).map_err(|error: PathRejection| request(error.body_text()))
    }
}

/// The parameters of a query; one that comes twice, or that `T` lacks and denies, is refused.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = axum::extract::Query::from_request_parts(parts, state).await;
        query.map(|query| Self(query.0)).map_err(|error: QueryRejection| request(error.body_text()))
    }
}

/// What names a request that may be repeated (draft-ietf-httpapi-idempotency-key-header), with or without the quotes of the draft.
pub struct IdempotencyKey(pub String);

const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Octets of a key.
const MAX_KEY: usize = 255;

impl<S: Send + Sync> OptionalFromRequestParts<S> for IdempotencyKey {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Problem> {
        let is_one = parts.headers.get_all(IDEMPOTENCY_KEY).iter().nth(1).is_none();
        // It is taken out: whoever reads the body refuses one that is left.
        let Some(header) = parts.headers.remove(IDEMPOTENCY_KEY) else { return Ok(None) };
        let text = header.to_str().unwrap_or_default();
        let key = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
        if !is_one || key.is_empty() || key.len() > MAX_KEY {
            return Err(request(format!("`Idempotency-Key` is not one text of 1 to {MAX_KEY} characters")));
        }
        Ok(Some(Self(key.to_owned())))
    }
}

/// There is no query.
pub struct NoQuery;

impl<S: Send + Sync> FromRequestParts<S> for NoQuery {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        if parts.uri.query().is_none_or(str::is_empty) {
            return Ok(Self);
        }
        Err(request("the request has parameters behind `?`, expected none".to_owned()))
    }
}

/// The body of a request, in which what it may not have is an error, or of an answer. It is JSON, whatever its `Content-Type`.
pub struct Json<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Problem;
    async fn from_request(from: Request, state: &S) -> Result<Self, Problem> {
        let read = serde_json::from_slice(&body(from, state).await?);
        read.map(Self).map_err(|error| request(format!("the body is not as described: {error}")))
    }
}

/// There is no body: one that broke off, or was not meant for this request, does not carry it out.
pub struct NoBody;

impl<S: Send + Sync> FromRequest<S> for NoBody {
    type Rejection = Problem;
    async fn from_request(from: Request, state: &S) -> Result<Self, Problem> {
        if body(from, state).await?.is_empty() {
            return Ok(Self);
        }
        Err(request("the request has a body, expected none".to_owned()))
    }
}

/// The whole body of a request. It comes last: an `Idempotency-Key` that nobody took before is refused, since that it were ignored would
/// double what whoever sends it takes for safe.
async fn body<S: Send + Sync>(from: Request, state: &S) -> Result<Bytes, Problem> {
    if from.headers().contains_key(IDEMPOTENCY_KEY) {
        return Err(request("this request takes no `Idempotency-Key`".to_owned())
            .help("POST /v1/invitations takes one; where the path has a PUT, that may be repeated as it is"));
    }
    let is_refused = from.extensions().get::<BodyRefused>().is_some();
    Bytes::from_request(from, state).await.ok().filter(|_| !is_refused).ok_or_else(|| {
        let what = format!("the body is longer than {} octets, or ended in the middle", LIMITS.body);
        Problem::new(ProblemKind::TooLarge, what)
    })
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}

fn request(what: String) -> Problem {
    Problem::new(ProblemKind::Request, what)
}

/// A principal in a path or a query, as it is written without leading zeros.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct PrincipalNumber(pub Principal);

impl TryFrom<String> for PrincipalNumber {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let number = text.parse().ok().filter(|number: &u32| number.to_string() == text);
        let number = number.ok_or_else(|| format!("`{}` is not a principal's number", text.escape_debug()))?;
        principal_of(number).map(Self).map_err(|failure| failure.to_string())
    }
}

/// How many entries a page may have: by default, and at most.
pub fn most(requested: Option<usize>, (default, most): (usize, usize)) -> Result<usize, Problem> {
    let requested = requested.unwrap_or(default);
    if (1..=most).contains(&requested) {
        return Ok(requested);
    }
    Err(request(format!("`most` is {requested}, expected 1 to {most}")))
}

/// A page of at most `most` entries, and what the last of them is by `key` if others follow.
pub fn page<T, K>(all: impl Iterator<Item = T>, most: usize, key: impl Fn(&T) -> K) -> (Vec<T>, Option<K>) {
    let mut page: Vec<T> = all.take(most + 1).collect();
    let has_more = page.len() > most;
    page.truncate(most);
    let next = page.last().filter(|_| has_more).map(key);
    (page, next)
}

#[cfg(test)]
mod tests {
    use axum::http::Uri;

    use super::*;

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Parameters {
        entry: Option<String>,
        principal: Option<PrincipalNumber>,
        most: Option<usize>,
    }

    async fn read(query: &str) -> Result<Parameters, Problem> {
        let uri: Uri = format!("/?{query}").parse().expect("an address");
        let (mut parts, ()) = axum::http::Request::builder().uri(uri).body(()).expect("a request").into_parts();
        Query::from_request_parts(&mut parts, &()).await.map(|query| query.0)
    }

    #[tokio::test]
    async fn a_query_is_decoded_and_what_is_unknown_or_doubled_is_refused() {
        let query = read("entry=7%2F3&most=2&principal=70").await.expect("a query");
        let principal = query.principal.expect("a principal").0.number();
        assert_eq!((query.entry.as_deref(), query.most, principal), (Some("7/3"), Some(2), 70));
        assert!(read("").await.is_ok());
        for bad in ["entry=1&entry=2", "other=1", "most=-1", "most=x", "principal=007", "principal=16777216"] {
            assert!(read(bad).await.is_err(), "{bad}");
        }
    }
}

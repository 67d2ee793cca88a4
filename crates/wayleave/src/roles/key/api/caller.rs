//! Who sends a request, and whether it may: strangers are limited first, and learn nothing but the routes that are theirs.

use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tracing::warn;
use wayleave_control::capability::Verdict;
use wayleave_crypto::hash::sha256;
use wayleave_crypto::secret::Seed;
use wayleave_runtime::https::{Peer, authorization};

use super::Api;
use super::counts::count;
use super::problem::{Problem, ProblemKind};
use crate::config::key_api::Access;

/// In front of a token.
const BEARER: &str = "Bearer ";

/// A token of the configuration.
pub struct Token {
    pub name: String,
    /// SHA-256 of the token.
    pub hash: Seed,
    pub access: Access,
}

/// What was found out of a request's sender before its route.
#[derive(Clone)]
struct Sender {
    source: IpAddr,
    has_token: bool,
    /// Name and access of the token's holder.
    holder: Option<(String, Access)>,
}

/// Whether a request goes on to its route, and what is counted of it.
pub async fn admit(
    State(api): State<Arc<Api>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    count(&api.counts.requests);
    let token = authorization(request.headers());
    let sender =
        Sender { source: peer.source(), has_token: token.is_some(), holder: token.and_then(|token| api.find(token)) };
    let response = if sender.holder.is_some() || api.takes_a_strangers(sender.source) {
        request.extensions_mut().insert(sender);
        next.run(request).await
    } else {
        let problem = Problem::new(ProblemKind::TooMany, "too many requests of this source without a valid token");
        problem.help("wait a second, or send a token").into_response()
    };
    if let Some(kind) = response.extensions().get() {
        api.count(*kind);
    }
    response
}

impl Api {
    /// Name and access of a token's holder. All tokens are compared, in constant time.
    pub fn find(&self, authorization: &str) -> Option<(String, Access)> {
        let token = authorization.strip_prefix(BEARER)?;
        let hash = Seed::new(sha256(token.trim().as_bytes()));
        let settings = self.settings();
        let mut found = None;
        for token in &settings.tokens {
            if token.hash == hash {
                found = Some((token.name.clone(), token.access));
            }
        }
        found
    }

    /// Whether a request without a valid token is within the limit of its source.
    fn takes_a_strangers(&self, source: IpAddr) -> bool {
        let mut limit = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        limit.take(source, self.clock.now().instant) == Verdict::Answer
    }

    fn count(&self, kind: ProblemKind) {
        count(match kind {
            ProblemKind::Credential => &self.counts.unauthenticated,
            ProblemKind::Access => &self.counts.forbidden,
            ProblemKind::TooMany => &self.counts.limited,
            _ => &self.counts.refused,
        });
    }
}

/// What a route is for.
pub trait Role {
    /// What a token must allow; `None` if none is needed.
    const ACCESS: Option<Access>;
    /// Whether the records change: replicas refuse it.
    const CHANGES: bool;
}

/// Whoever has any token.
pub struct Reader;
/// Whoever has a token with full access.
pub struct Operator;
/// The holder of an invitation, who shows that by signatures.
pub struct Redeemer;

impl Role for Reader {
    const ACCESS: Option<Access> = Some(Access::Read);
    const CHANGES: bool = false;
}

impl Role for Operator {
    const ACCESS: Option<Access> = Some(Access::Full);
    const CHANGES: bool = true;
}

impl Role for Redeemer {
    const ACCESS: Option<Access> = None;
    const CHANGES: bool = true;
}

/// Whoever asks, and may.
pub struct Caller<R> {
    /// For the log.
    pub by: String,
    role: PhantomData<R>,
}

impl<R: Role> FromRequestParts<Arc<Api>> for Caller<R> {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Problem> {
        let sender = parts.extensions.get::<Sender>();
        let sender = sender.ok_or_else(|| Problem::new(ProblemKind::Stopping, "nobody knows who sent the request"))?;
        let by = match (R::ACCESS, &sender.holder) {
            (None, Some((name, _))) => name.clone(),
            (None, None) => sender.source.to_string(),
            (Some(_), None) => {
                let what = match sender.has_token {
                    false => "the request has no token",
                    true => "the token is none of this key server's",
                };
                let help = "send `Authorization: Bearer TOKEN`; its hash stands under [[key.api.token]]";
                return Err(Problem::new(ProblemKind::Credential, what).help(help));
            }
            (Some(Access::Full), Some((name, Access::Read))) => {
                warn!(by = name, path = parts.uri.path(), "the API refuses a change: the token is for reading");
                let help = "use a token with `access = \"full\"`";
                return Err(Problem::new(ProblemKind::Access, "this token may read and not change").help(help));
            }
            (Some(_), Some((name, _))) => name.clone(),
        };
        if R::CHANGES && !api.is_writer {
            return Err(api.replica());
        }
        Ok(Self { by, role: PhantomData })
    }
}

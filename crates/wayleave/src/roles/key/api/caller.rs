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
use wayleave_packet::platypus::header::Principal;
use wayleave_runtime::https::{Peer, authorization};

use super::Api;
use super::counts::count;
use super::problem::{Problem, ProblemKind};
use crate::config::key_api::{Access, TokenEntry};

/// In front of a token.
const BEARER: &str = "Bearer ";

/// A token of the configuration.
pub struct Token {
    /// SHA-256 of the token.
    pub hash: Seed,
    pub holder: Holder,
    /// From which Unix second on it is none any more.
    pub expires: Option<u64>,
}

/// Who has a token, and what for.
#[derive(Clone)]
pub struct Holder {
    pub name: String,
    access: Access,
    /// Whose account and usage it is for, if it is for no more.
    principal: Option<Principal>,
}

/// What was found out of a request's sender before its route.
#[derive(Clone)]
struct Sender {
    source: IpAddr,
    /// Who has the token, or why it is none.
    holder: Result<Holder, &'static str>,
}

impl Token {
    /// The token of an entry.
    pub fn new(entry: &TokenEntry) -> Self {
        let (name, access, principal) = (entry.name.clone(), entry.access.get_ref().0, entry.principal());
        let holder = Holder { name, access, principal };
        Self { hash: Seed::new(entry.hash.0.0), holder, expires: entry.expires() }
    }
}

/// Whether a request goes on to its route, and what is counted of it.
pub async fn admit(
    State(api): State<Arc<Api>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    count(&api.counts.requests);
    let holder = authorization(request.headers()).ok_or("the request has no token").and_then(|token| api.find(token));
    let sender = Sender { source: peer.source(), holder };
    let response = if sender.holder.is_ok() || api.takes_a_strangers(sender.source) {
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
    /// Who has a token. All tokens are compared, in constant time.
    ///
    /// # Errors
    /// Why it is none.
    pub fn find(&self, authorization: &str) -> Result<Holder, &'static str> {
        let none = "the token is none of this key server's";
        let token = authorization.strip_prefix(BEARER).ok_or(none)?;
        let hash = Seed::new(sha256(token.trim().as_bytes()));
        let settings = self.settings();
        let mut found = None;
        for token in &settings.tokens {
            if token.hash == hash {
                found = Some(token);
            }
        }
        let token = found.ok_or(none)?;
        if token.expires.is_some_and(|expires| expires <= self.clock.now().unix.secs()) {
            return Err("the token has expired");
        }
        Ok(token.holder.clone())
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

macro_rules! roles {
    ($($(#[$doc:meta])* $role:ident = $access:expr, $changes:literal;)*) => {$(
        $(#[$doc])*
        pub struct $role;
        impl Role for $role {
            const ACCESS: Option<Access> = $access;
            const CHANGES: bool = $changes;
        }
    )*};
}

roles! {
    /// Whoever reads what is one principal's, which may be its own: the handler asks [`Caller::may_read`].
    Owner = Some(Access::Own), false;
    Reader = Some(Access::Read), false;
    Seller = Some(Access::Sell), true;
    Operator = Some(Access::Operate), true;
    /// The holder of an invitation, who shows that by signatures.
    Redeemer = None, true;
}

/// Whoever asks, and may.
pub struct Caller<R> {
    /// For the log.
    pub by: String,
    /// Whose account and usage it may read, if no others.
    pub own: Option<Principal>,
    role: PhantomData<R>,
}

impl Caller<Owner> {
    /// Whether what is this principal's may be read.
    pub fn may_read(&self, principal: Principal) -> Result<(), Problem> {
        match self.own {
            Some(own) if own != principal => {
                let what = format!("this token is for what is principal {}'s", own.number());
                Err(Problem::new(ProblemKind::Access, what).help("use a token with `access = \"read\"`"))
            }
            _ => Ok(()),
        }
    }
}

impl<R: Role> FromRequestParts<Arc<Api>> for Caller<R> {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Problem> {
        let sender = parts.extensions.get::<Sender>();
        let sender = sender.ok_or_else(|| Problem::new(ProblemKind::Stopping, "nobody knows who sent the request"))?;
        let (by, own) = match (R::ACCESS, &sender.holder) {
            (None, Err(_)) => (sender.source.to_string(), None),
            (Some(_), Err(why)) => {
                let help = "send `Authorization: Bearer TOKEN`; its hash stands under [[key.api.token]]";
                return Err(Problem::new(ProblemKind::Credential, *why).help(help));
            }
            (Some(access), Ok(holder)) if holder.access < access => {
                let (has, needed) = (holder.access.name(), access.name());
                warn!(by = holder.name, path = parts.uri.path(), "the API refuses a request: the token is for `{has}`");
                let what = format!("this token is for `{has}`, and the request needs `{needed}`");
                let help = format!("use a token with `access = \"{needed}\"`");
                return Err(Problem::new(ProblemKind::Access, what).help(help));
            }
            (_, Ok(holder)) => (holder.name.clone(), holder.principal),
        };
        if R::CHANGES && !api.is_writer {
            return Err(api.replica());
        }
        Ok(Self { by, own, role: PhantomData })
    }
}

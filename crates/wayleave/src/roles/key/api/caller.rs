//! Who sends a request, and whether it may: strangers are limited first, and learn nothing but the routes that are theirs.

use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;
use tracing::warn;
use wayleave_control::capability::Verdict;
use wayleave_core::Instant as Monotonic;
use wayleave_crypto::hash::sha256;
use wayleave_crypto::secret::Seed;
use wayleave_dataplane::limit::TokenBucket;
use wayleave_packet::platypus::header::Principal;
use wayleave_runtime::https::{Peer, authorization};
use wayleave_runtime::log_limit::{Line, LogLimit};

use super::Api;
use super::counts::count;
use super::extract::PrincipalNumber;
use super::problem::{Problem, ProblemKind};
use crate::config::key_api::{Access, TokenEntry};
use crate::provider::orders::{MAX_REASON, is_reason};

/// In front of a token.
const BEARER: &str = "Bearer ";

/// Requests a second with a token that is for one principal's own, and with any other; twice as many may come at once. The first are in
/// customers' hands, and the others in programs of the operator's.
const OWN_PER_SECOND: u32 = 10;
const PER_SECOND: u32 = 500;
const BURST_SECS: u32 = 2;
/// How often the log has a line of refused requests with one token.
const LINE_EVERY: Duration = Duration::from_secs(60);
/// The header that says why a change is made.
const REASON: &str = "wayleave-reason";
/// Octets of a query.
const MAX_QUERY: usize = 4 * 1024;

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
    limits: Arc<Mutex<Limits>>,
}

/// What the requests with one token may cost.
struct Limits {
    requests: TokenBucket,
    refusals: LogLimit,
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
        let rate = if access == Access::Own { OWN_PER_SECOND } else { PER_SECOND };
        let requests = TokenBucket::new(rate, BURST_SECS * rate);
        let limits = Arc::new(Mutex::new(Limits { requests, refusals: LogLimit::new(1, LINE_EVERY) }));
        let holder = Holder { name, access, principal, limits };
        Self { hash: Seed::new(entry.hash.0.0), holder, expires: entry.expires() }
    }
}

impl Holder {
    /// Whose connections share a part of the slots: the tokens of customers have one for all of them, since together they could take all.
    pub fn client(&self) -> String {
        if self.access == Access::Own { "tokens with access `own`".to_owned() } else { self.name.clone() }
    }

    /// Whether one more request is within the limit of the token.
    fn takes(&self, now: Monotonic) -> bool {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner).requests.take(now)
    }

    /// Logs that a request is refused, if that was not logged lately.
    fn note_refusal(&self, path: &str, why: &str) {
        let line = self.limits.lock().unwrap_or_else(PoisonError::into_inner).refusals.note(Instant::now());
        if let Some(Line { suppressed }) = line {
            let more =
                suppressed.map_or_else(String::new, |more| format!(", and refused {more} since the last such line"));
            warn!(by = self.name, path, "the API refuses a request: {why}{more}");
        }
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
    let response = match api.refusal(&sender, request.uri()) {
        Some(problem) => problem.into_response(),
        None => {
            request.extensions_mut().insert(sender);
            next.run(request).await
        }
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

    /// Why a request does not come to its route.
    fn refusal(&self, sender: &Sender, uri: &Uri) -> Option<Problem> {
        let too_many = |why, help: &str| Some(Problem::new(ProblemKind::TooMany, why).help(help));
        match &sender.holder {
            Ok(holder) if !holder.takes(self.clock.now().instant) => {
                let why = "too many requests with this token";
                holder.note_refusal(uri.path(), why);
                return too_many(why, "wait a second");
            }
            Err(_) if !self.takes_a_strangers(sender.source) => {
                let why = "too many requests of this source without a valid token";
                return too_many(why, "wait a second, or send a token");
            }
            _ => {}
        }
        let is_long = uri.query().is_some_and(|query| query.len() > MAX_QUERY);
        is_long.then(|| Problem::new(ProblemKind::LongQuery, format!("the query is longer than {MAX_QUERY} octets")))
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
}

macro_rules! roles {
    ($($(#[$doc:meta])* $role:ident = $access:expr;)*) => {$(
        $(#[$doc])*
        pub struct $role;
        impl Role for $role {
            const ACCESS: Option<Access> = $access;
        }
    )*};
}

roles! {
    /// Whoever reads what is one principal's, which may be its own: the handler asks [`Caller::may_read`] or [`Caller::only`].
    Owner = Some(Access::Own);
    Reader = Some(Access::Read);
    Seller = Some(Access::Sell);
    Operator = Some(Access::Operate);
    /// The holder of an invitation, who shows that by signatures.
    Redeemer = None;
}

/// Whoever asks, and may.
pub struct Caller<R> {
    /// For the log, and the trail of changes.
    pub by: String,
    /// Why it asks for a change, as it says itself; or nothing.
    reason: String,
    /// Whose account and usage it may read, if no others.
    pub own: Option<Principal>,
    role: PhantomData<R>,
}

impl<R> Caller<R> {
    /// Who makes a change, and why.
    pub fn note(&self) -> (&str, &str) {
        (&self.by, &self.reason)
    }
}

impl Caller<Owner> {
    /// Of whom it is to be read: who is asked for, or else whose the token is; `None` for all.
    pub fn only(&self, wanted: Option<PrincipalNumber>) -> Result<Option<Principal>, Problem> {
        let only = wanted.map(|principal| principal.0).or(self.own);
        only.map_or(Ok(()), |principal| self.may_read(principal))?;
        Ok(only)
    }

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

/// Why a request is made, by its headers.
fn reason(headers: &HeaderMap) -> Result<String, Problem> {
    let mut all = headers.get_all(REASON).iter();
    let Some(first) = all.next() else { return Ok(String::new()) };
    let text = std::str::from_utf8(first.as_bytes()).ok().filter(|text| is_reason(text) && all.next().is_none());
    let text = text.map(|text| text.trim().to_owned());
    text.ok_or_else(|| {
        let why = format!(
            "`Wayleave-Reason` is not one text in UTF-8 of at most {MAX_REASON} octets, without control characters"
        );
        Problem::new(ProblemKind::Request, why)
    })
}

impl<R: Role> FromRequestParts<Arc<Api>> for Caller<R> {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &Arc<Api>) -> Result<Self, Problem> {
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
                holder.note_refusal(parts.uri.path(), &format!("the token is for `{has}`"));
                let what = format!("this token is for `{has}`, and the request needs `{needed}`");
                let help = format!("use a token with `access = \"{needed}\"`");
                return Err(Problem::new(ProblemKind::Access, what).help(help));
            }
            (_, Ok(holder)) => (holder.name.clone(), holder.principal),
        };
        // Who has no token says nothing that stays.
        let reason = if R::ACCESS.is_some() { reason(&parts.headers)? } else { String::new() };
        Ok(Self { by, own, reason, role: PhantomData })
    }
}

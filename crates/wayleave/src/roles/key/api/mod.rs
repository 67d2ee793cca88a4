//! The HTTPS API of a key server, as `docs/api/key-server.json` describes it: who asks, whether it may, and which route it is.

mod accounts;
pub mod counts;
mod grants;
mod invitations;
pub mod problem;
mod revocations;
mod routes;
mod server;
mod usage;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tracing::{error, info, warn};
use wayleave_control::capability::{ApiUrl, ChangeBody, RateLimit, State, Verdict};
use wayleave_crypto::hash::sha256;
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_runtime::Clock;
use wayleave_runtime::api_tls::ShownKey;
use wayleave_runtime::connection_slots::{ConnectionSlots, SlotLimits};
use wayleave_runtime::https::{ApiAnswer, ApiRequest, ApiService, HttpsLimits, serve_api};

use self::counts::{ApiCounts, count};
use self::problem::{Problem, ProblemKind};
use self::routes::{Handler, Route, Who};
use super::core::{Core, lock};
use super::operator;
use super::parts::Parts;
use super::views::KeyView;
use crate::config::Source;
use crate::config::key::KeyFile;
use crate::config::key_api::Access;
use crate::failure::{Failure, Outcome};
use crate::key_files::node::fresh;
use crate::provider::waypoints::WaypointLabels;

/// The description, as it is checked in.
pub const DESCRIPTION: &str = include_str!("../../../../../../docs/api/key-server.json");

/// Connections at a time. Of those whose last request had a valid token, one token has a part, so that no holder of one keeps
/// another out.
const SLOTS: SlotLimits = SlotLimits { connections: 512, of_source: 64, of_client: 64 };
const LIMITS: HttpsLimits = HttpsLimits {
    new_per_second: 100,
    handshake: Duration::from_secs(10),
    stranger_life: Duration::from_secs(10),
    life: Duration::from_secs(60),
    body: 64 * 1024,
};
/// Octets of a query.
const MAX_QUERY: usize = 2_048;
/// In front of a token.
const BEARER: &str = "Bearer ";

/// A token of the configuration.
struct Token {
    name: String,
    /// SHA-256 of the token.
    hash: Seed,
    access: Access,
}

/// What a reload may change.
struct Settings {
    tokens: Vec<Token>,
    labels: WaypointLabels,
    url: Option<ApiUrl>,
}

/// What handlers use.
pub struct Api {
    core: Arc<Mutex<Core>>,
    view: KeyView,
    clock: Clock,
    settings: Mutex<Settings>,
    limit: Mutex<RateLimit>,
    counts: Arc<ApiCounts>,
    shown: Arc<ShownKey>,
    failed: mpsc::Sender<Failure>,
    zone: String,
    writer: String,
}

/// A running API.
pub struct RunningApi {
    api: Arc<Api>,
}

/// A request that was admitted.
pub struct Call {
    /// What stands for the names in the route's path.
    names: BTreeMap<&'static str, String>,
    query: BTreeMap<String, String>,
    body: zeroize::Zeroizing<Vec<u8>>,
    accept: String,
    /// Who asks, for the log.
    by: String,
}

/// An answer.
pub enum Reply {
    Json(u16, Value),
    Csv {
        text: String,
        /// A line with the names of the columns is in front.
        has_names: bool,
        /// The link to what follows.
        next: Option<String>,
    },
    /// JSON as it stands.
    Text(&'static str),
}

impl RunningApi {
    /// Serves the API as one of `parts`; `None` if the configuration has none.
    pub async fn start(
        config: &KeyFile,
        source: &Source,
        (core, view): (Arc<Mutex<Core>>, KeyView),
        clock: Clock,
        (slots, counts): (ConnectionSlots, Arc<ApiCounts>),
        (failed, parts): (mpsc::Sender<Failure>, &mut Parts),
    ) -> Outcome<Option<Self>> {
        let Some(section) = &config.key.api else { return Ok(None) };
        let shown = ShownKey::new(section.key(source)?);
        let limit = RateLimit::new(Key128::new(*fresh()?), section.requests_per_second());
        let api = Arc::new(Api {
            core,
            view,
            clock,
            settings: Mutex::new(settings(config)),
            limit: Mutex::new(limit),
            counts,
            shown: Arc::clone(&shown),
            failed,
            zone: config.zone().to_string(),
            writer: config.key.writer.get_ref().0.to_string(),
        });
        let at = section.listen.get_ref().0;
        let serving = serve_api(at, shown.server_config()?, (slots, LIMITS), Arc::clone(&api)).await;
        let mut serving =
            serving.map_err(|error| Failure::system(format!("cannot listen for the API at {at}"), &error))?;
        info!(listen = %serving.address, pin = %shown.pin(), tokens = section.token.len(), "API at https://{}", serving.address);
        parts.spawn("API", async move { serving.ended().await });
        Ok(Some(Self { api }))
    }

    /// Takes over what a reload may change, a renewed certificate among it.
    ///
    /// # Errors
    /// If the certificate cannot be read. Nothing has changed.
    pub fn configure(&self, config: &KeyFile, source: &Source) -> Outcome {
        let Some(section) = &config.key.api else { return Ok(()) };
        let key = section.key(source)?;
        let before = self.api.shown.pin();
        if key.pin() != before {
            warn!(%before, after = %key.pin(), "the API key has changed: invitations made before cannot be redeemed any more");
        }
        self.api.shown.replace(key);
        *self.api.settings() = settings(config);
        let mut limit = self.api.limit.lock().unwrap_or_else(PoisonError::into_inner);
        limit.set(section.requests_per_second());
        Ok(())
    }
}

fn settings(config: &KeyFile) -> Settings {
    let section = config.key.api.as_ref();
    let tokens = section.into_iter().flat_map(|section| &section.token).map(|token| {
        let token = token.get_ref();
        Token { name: token.name.clone(), hash: Seed::new(token.hash.0.0), access: token.access }
    });
    let url = section.and_then(|section| section.url().ok());
    Settings { tokens: tokens.collect(), labels: config.waypoint_labels(), url }
}

impl ApiService for Api {
    fn client(&self, authorization: &str) -> Option<String> {
        self.find(authorization).map(|(name, _)| name)
    }

    async fn answer(self: Arc<Self>, request: ApiRequest) -> ApiAnswer {
        count(&self.counts.requests);
        let outcome = match self.admit(request) {
            Ok((route, call)) => self.perform(route, call).await,
            Err(problem) => Err(problem),
        };
        match outcome {
            Ok(Reply::Json(status, value)) => json_answer(status, &value),
            Ok(Reply::Text(text)) => answer(200, "application/json", text.as_bytes().to_vec()),
            Ok(Reply::Csv { text, has_names, next }) => {
                let content_type = match has_names {
                    true => "text/csv; charset=utf-8; header=present",
                    false => "text/csv; charset=utf-8; header=absent",
                };
                let mut answer = answer(200, content_type, text.into_bytes());
                answer.headers.extend(next.map(|next| ("link", next)));
                answer
            }
            Err(problem) => {
                self.count(&problem);
                let mut answer =
                    answer(problem.status(), "application/problem+json", problem.json().to_string().into());
                match problem.kind {
                    ProblemKind::Credential => answer.headers.push(("www-authenticate", "Bearer".to_owned())),
                    ProblemKind::TooMany => answer.headers.push(("retry-after", "1".to_owned())),
                    ProblemKind::Method => answer.headers.extend(problem.allow.map(|allow| ("allow", allow))),
                    _ => {}
                }
                answer
            }
        }
    }
}

/// The slots for connections to an API.
pub fn connection_slots() -> ConnectionSlots {
    ConnectionSlots::new(SLOTS)
}

impl Api {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, problem: &Problem) {
        count(match problem.kind {
            ProblemKind::Credential => &self.counts.unauthenticated,
            ProblemKind::Access => &self.counts.forbidden,
            ProblemKind::TooMany => &self.counts.limited,
            _ => &self.counts.refused,
        });
    }

    /// Whether a request may be carried out: strangers are limited first, and learn nothing but the routes that are theirs.
    fn admit(&self, request: ApiRequest) -> Result<(&'static Route, Call), Problem> {
        let known = request.authorization.as_deref().and_then(|text| self.find(text));
        if known.is_none() {
            let mut limit = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
            if limit.take(request.from, self.clock.now().instant) != Verdict::Answer {
                let problem =
                    Problem::new(ProblemKind::TooMany, "too many requests of this source without a valid token");
                return Err(problem.help("wait a second, or send a token"));
            }
        }
        let (route, names) = routes::find(&request.method, &request.path)?;
        let by = match (route.who, known) {
            (Who::Anybody, known) => known.map_or_else(|| request.from.to_string(), |(name, _)| name),
            (_, None) => {
                let what = match &request.authorization {
                    None => "the request has no token",
                    Some(_) => "the token is none of this key server's",
                };
                let help = "send `Authorization: Bearer TOKEN`; its hash stands under [[key.api.token]]";
                return Err(Problem::new(ProblemKind::Credential, what).help(help));
            }
            (Who::Operator, Some((name, Access::Read))) => {
                warn!(by = name, path = request.path, "the API refuses a change: the token is for reading");
                let help = "use a token with `access = \"full\"`";
                return Err(Problem::new(ProblemKind::Access, "this token may read and not change").help(help));
            }
            (_, Some((name, _))) => name,
        };
        let query = query(&request.query, route.parameters)?;
        let Some(body) = request.body else {
            let what = format!("the body is longer than {} octets, or ended in the middle", LIMITS.body);
            return Err(Problem::new(ProblemKind::TooLarge, what));
        };
        Ok((route, Call { names, query, body, accept: request.accept, by }))
    }

    /// Name and access of a token's holder. All tokens are compared, in constant time.
    fn find(&self, authorization: &str) -> Option<(String, Access)> {
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

    async fn perform(self: &Arc<Self>, route: &'static Route, call: Call) -> Result<Reply, Problem> {
        match route.handler {
            Handler::Usage => usage::list(self, &call).await,
            Handler::Waits(handler) => {
                // It may wait for the disk.
                let api = Arc::clone(self);
                let done = tokio::task::spawn_blocking(move || handler(&api, &call)).await;
                done.unwrap_or_else(|_| {
                    // Of a panic with the server in hand, the role ends by itself.
                    error!("a request to the API was not finished: a bug, please report it with the lines above");
                    Err(Problem::new(ProblemKind::Stopping, "the request was not finished"))
                })
            }
        }
    }

    /// Makes a change, and waits until routers can read it; the role ends if the database and the state part.
    fn change(
        &self,
        call: &Call,
        decide: &mut dyn FnMut(&State) -> Result<Option<ChangeBody>, Problem>,
    ) -> Result<u64, Problem> {
        let mut is_change = false;
        let outcome = operator::change(&self.core, &call.by, self.clock.now(), &mut |state| {
            let body = decide(state)?;
            is_change = body.is_some();
            Ok(body)
        });
        match outcome {
            Ok(Ok(number)) => {
                let list = lock(&self.core).list();
                list.into_iter().for_each(|list| Handle::current().block_on(list.has(number)));
                if is_change {
                    count(&self.counts.changes);
                }
                Ok(number)
            }
            Ok(Err(problem)) => Err(problem),
            Err(failure) => {
                let _ = self.failed.blocking_send(failure); // fails if the role has stopped
                Err(Problem::new(ProblemKind::Stopping, "the key server stops: its database cannot be followed"))
            }
        }
    }
}

impl Call {
    /// What stands in the path for a name.
    fn name(&self, name: &str) -> &str {
        self.names.get(name).map_or("", String::as_str)
    }

    /// The body as JSON; what it may not have is an error.
    fn json<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        serde_json::from_slice(&self.body)
            .map_err(|error| Problem::new(ProblemKind::Request, format!("the body is not as described: {error}")))
    }

    /// A number of the query.
    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Problem> {
        let Some(text) = self.query.get(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| Problem::new(ProblemKind::Request, format!("`{name}` is not a number here")))
    }

    /// How many entries a page may have.
    fn most(&self, default: usize, most: usize) -> Result<usize, Problem> {
        let requested = self.number("most")?.unwrap_or(default);
        if (1..=most).contains(&requested) {
            return Ok(requested);
        }
        Err(Problem::new(ProblemKind::Request, format!("`most` is {requested}, expected 1 to {most}")))
    }
}

/// The parameters of a query; one that the route lacks, or one that comes twice, is refused.
fn query(text: &str, known: &[&str]) -> Result<BTreeMap<String, String>, Problem> {
    let refused = |what: String| Problem::new(ProblemKind::Request, what);
    if text.len() > MAX_QUERY {
        return Err(refused(format!("the query is longer than {MAX_QUERY} octets")));
    }
    let mut all = BTreeMap::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decoded(value).ok_or_else(|| refused(format!("the value of `{name}` is not URL-encoded")))?;
        if !known.contains(&name) {
            let expected = if known.is_empty() { "none".to_owned() } else { format!("`{}`", known.join("`, `")) };
            return Err(refused(format!("unknown parameter `{}`, expected {expected}", name.escape_debug())));
        }
        if all.insert(name.to_owned(), value).is_some() {
            return Err(refused(format!("the parameter `{name}` comes twice")));
        }
    }
    Ok(all)
}

/// A percent-encoded text (RFC 3986 section 2.1).
fn decoded(text: &str) -> Option<String> {
    let mut octets = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        octets.push(match first {
            b'+' => b' ',
            b'%' => {
                let (digits, behind) = rest.split_first_chunk::<2>()?;
                rest = behind;
                let digits = digits.iter().all(u8::is_ascii_hexdigit).then(|| std::str::from_utf8(digits).ok())??;
                u8::from_str_radix(digits, 16).ok()?
            }
            other => *other,
        });
    }
    String::from_utf8(octets).ok()
}

fn answer(status: u16, content_type: &'static str, body: Vec<u8>) -> ApiAnswer {
    ApiAnswer { status, content_type, headers: Vec::new(), body }
}

fn json_answer(status: u16, value: &Value) -> ApiAnswer {
    answer(status, "application/json", value.to_string().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_decoded_and_what_is_unknown_or_doubled_is_refused() {
        let read = |text| query(text, &["entry", "most"]);
        assert_eq!(read("entry=7%2F3&most=2").expect("a query")["entry"], "7/3");
        assert_eq!(read("").expect("a query").len(), 0);
        for bad in ["entry=%", "entry=%4", "entry=%zz", "entry=%ff", "entry=1&entry=2", "other=1", "entry=%+1"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}

//! The HTTPS API of a key server, as `docs/api/key-server.json` describes it: its routes, and what their handlers share.

mod accounts;
mod caller;
mod changes;
pub mod counts;
mod description;
mod extract;
mod grants;
mod invitations;
pub mod problem;
mod quotas;
mod rates;
mod revocations;
mod server;
mod statements;
#[cfg(test)]
mod tests;
mod usage;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::spawn_blocking;
use tracing::{error, info, warn};
use utoipa::ToSchema;
use wayleave_control::capability::{ApiUrl, ChangeBody, RateLimit, State};
use wayleave_crypto::secret::Key128;
use wayleave_runtime::Clock;
use wayleave_runtime::api_tls::ShownKey;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::connection_slots::{ConnectionSlots, SlotLimits};
use wayleave_runtime::https::{HttpsLimits, serve_api};

use self::caller::{Caller, Token, admit};
use self::changes::Trail;
use self::counts::{ApiCounts, count};
use self::extract::Json;
use self::problem::{Problem, ProblemKind};
use super::core::{Core, lock};
use super::operator;
use super::parts::Parts;
use super::views::KeyView;
use crate::config::Source;
use crate::config::key::KeyFile;
use crate::failure::{Failure, Outcome};
use crate::key_files::node::fresh;
use crate::provider::waypoints::WaypointLabels;

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
    /// Who reads a whole statement.
    reading: Semaphore,
    trail: Trail,
}

/// A running API.
pub struct RunningApi {
    api: Arc<Api>,
}

/// An answer in JSON.
type Answer<T> = Result<Json<T>, Problem>;
/// The same about something new.
type Created<T> = Result<(StatusCode, Json<T>), Problem>;

/// A change that was made.
#[derive(Serialize, ToSchema)]
struct Changed {
    /// Number of the last change.
    number: u64,
}

/// All routes, with what is in front of them.
fn routes(api: &Arc<Api>) -> Router {
    let routes = Router::from(description::routes()).fallback(no_path).method_not_allowed_fallback(no_method);
    routes.layer(from_fn_with_state(Arc::clone(api), admit)).with_state(Arc::clone(api))
}

async fn no_path() -> Problem {
    Problem::new(ProblemKind::NotFound, "the API has no such path").help("GET /v1/openapi.json describes all")
}

async fn no_method() -> Problem {
    Problem::new(ProblemKind::Method, "the path has no such method").help("the header `Allow` names those that it has")
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
        let trail = Trail::of(config, source)?;
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
            reading: Semaphore::new(1),
            trail,
        });
        let at = section.listen.get_ref().0;
        let clients = Arc::clone(&api);
        let client = move |authorization: &str| clients.find(authorization).ok().map(|holder| holder.client());
        let serving = serve_api(at, shown.server_config()?, (slots, LIMITS), (client, routes(&api))).await;
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
        // An operator who takes a token away must not believe that it is gone.
        let key = section.key(source).map_err(|failure| {
            let why =
                format!("the API keeps its certificate and all its tokens, also those that were taken away: {failure}");
            let kept = Failure::new(why);
            failure.remedy().map_or_else(|| kept.clone(), |help| kept.clone().help(help))
        })?;
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
    for warning in section.into_iter().flat_map(|section| section.warnings(unix_now().secs())) {
        warn!("{}", warning.message);
    }
    let tokens = section.into_iter().flat_map(|section| &section.token).map(|token| Token::new(token.get_ref()));
    let url = section.and_then(|section| section.url().ok());
    Settings { tokens: tokens.collect(), labels: config.waypoint_labels(), url }
}

/// The slots for connections to an API.
pub fn connection_slots() -> ConnectionSlots {
    ConnectionSlots::new(SLOTS)
}

impl Api {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what may wait for the disk, or for the lock of the server.
    async fn run<T: Send + 'static>(
        self: Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        spawn_blocking(move || work(&self)).await.unwrap_or_else(|_| {
            // Of a panic with the server in hand, the role ends by itself.
            error!("a request to the API was not finished: a bug, please report it with the lines above");
            Err(Problem::new(ProblemKind::Stopping, "the request was not finished"))
        })
    }

    /// Makes a change that is the whole of a request.
    async fn change_for<R: Send + 'static>(
        self: Arc<Self>,
        caller: Caller<R>,
        mut decide: impl FnMut(&State) -> Result<Option<ChangeBody>, Problem> + Send + 'static,
    ) -> Answer<Changed> {
        self.run(move |api| Ok(Json(Changed { number: api.change(caller.note(), &mut decide)? }))).await
    }

    /// Makes a change, and waits until routers can read it; the role ends if the database and the state part.
    fn change(
        &self,
        note: (&str, &str),
        decide: &mut dyn FnMut(&State) -> Result<Option<ChangeBody>, Problem>,
    ) -> Result<u64, Problem> {
        let mut is_change = false;
        let outcome = operator::change(&self.core, note, self.clock.now(), &mut |state| {
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

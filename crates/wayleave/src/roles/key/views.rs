//! What the status pages show of a key server.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use wayleave_control::capability::{
    AccountPeriods, ChargedAccount, Month, QuotaState, RouterNumber, RouterServer, State, Usage, UsagePage,
};
use wayleave_packet::platypus::header::Principal;
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::connection_slots::ConnectionSlots;
use wayleave_runtime::http::{Metric, Parameters, ViewError};
use wayleave_runtime::identity::to_hex;
use wayleave_runtime::metrics;
use wayleave_runtime::store::FileStore;
use wayleave_store::Store;

use super::api::counts::ApiCounts;
use super::core::{Core, lock};
use super::lessor::LessorView;
use super::quotas::QuotaView;
use super::routers::{self, Event, Routers, Strangers};
use super::usage::UsageProblem;
use super::usage_metrics::UsageMetrics;
use crate::config::Fault;
use crate::config::key::KeyFile;
use crate::config::key_api::ApiSection;
use crate::output::cell;
use crate::overview::Overview;
use crate::provider::invitations::{InvitationState, state_of};
use crate::roles::daemon::{self, View, Views};
use crate::usage;

/// Payers that the status names of those that are beyond a quota.
const NAMED: usize = 100;
/// Accounts on a page of usage. The machine of routers has leases to renew meanwhile.
pub(super) const PAGE: usize = 1_000;

/// The slots for connections of those who ask by TCP, and of those who use the API.
#[derive(Clone)]
pub struct Connections {
    pub dns: ConnectionSlots,
    pub api: Option<ConnectionSlots>,
}

impl Connections {
    fn json(&self) -> Value {
        let slots = |slots: &ConnectionSlots| json!({ "open": slots.len(), "evicted": slots.evicted(), "refused": slots.refused() });
        json!({ "dns": slots(&self.dns), "api": self.api.as_ref().map(slots) })
    }

    fn metrics(&self) -> Vec<Metric> {
        let api = |of: fn(&ConnectionSlots) -> u64| self.api.as_ref().map_or(0, of);
        metrics! {
            gauge "dns_open" Connections "Connections by which questions come" = self.dns.len();
            counter "dns_evicted" Connections "Idle connections of DNS that were closed for newer ones" = self.dns.evicted();
            counter "dns_refused" Connections "Connections of DNS that were refused because all others are in use" = self.dns.refused();
            gauge "api_open" Connections "Connections to the API" = api(|slots| slots.len() as u64) as f64;
            counter "api_evicted" Connections "Connections to the API without a valid token that were closed for newer ones" =
                api(ConnectionSlots::evicted);
            counter "api_refused" Connections "Connections to the API that were refused because all others are in use" =
                api(ConnectionSlots::refused);
        }
    }
}

/// What a reload may change.
struct Configured {
    routers: BTreeMap<RouterNumber, String>,
    numbers: BTreeSet<RouterNumber>,
    api: Option<ApiSection>,
}

impl Configured {
    fn new(config: &KeyFile) -> Self {
        let numbers = config.routers().into_values().collect();
        Self { routers: config.router_names(), numbers, api: config.key.api.clone() }
    }
}

/// What is shown of routers.
#[derive(Clone)]
struct OfRouters {
    events: mpsc::Sender<Event>,
    store: Store,
    problems: [UsageProblem; 3],
    lessor: Arc<Mutex<LessorView>>,
    metrics: UsageMetrics,
    strangers: Strangers,
}

#[derive(Clone)]
pub struct KeyView {
    core: Arc<Mutex<Core>>,
    zone: String,
    writer: String,
    /// The machine of the routers' links, the store of usage, and why something of it cannot be written.
    routers: Option<OfRouters>,
    quotas: QuotaView,
    configured: Arc<Mutex<Configured>>,
    api: Option<Arc<ApiCounts>>,
    connections: Connections,
}

impl KeyView {
    pub fn new(
        core: &Arc<Mutex<Core>>,
        config: &KeyFile,
        (routers, quotas): (Option<&Routers>, QuotaView),
        (api, connections): (Option<Arc<ApiCounts>>, Connections),
    ) -> Self {
        let of = |routers: &Routers| OfRouters {
            events: routers.running.events.clone(),
            store: routers.store.clone(),
            problems: routers.problems.clone(),
            lessor: Arc::clone(&routers.lessor),
            metrics: routers.metrics.clone(),
            strangers: routers.strangers.clone(),
        };
        let routers = routers.map(of);
        let configured = Arc::new(Mutex::new(Configured::new(config)));
        let (zone, writer) = (config.zone().to_string(), config.key.writer.get_ref().0.to_string());
        Self { core: Arc::clone(core), zone, writer, routers, quotas, configured, api, connections }
    }

    /// Another configuration counts.
    pub fn configure(&self, config: &KeyFile) {
        *self.configured() = Configured::new(config);
    }

    fn configured(&self) -> MutexGuard<'_, Configured> {
        self.configured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The names of routers that have one.
    pub(super) fn names(&self) -> BTreeMap<RouterNumber, String> {
        self.configured().routers.clone()
    }

    /// The numbers of all routers.
    pub(super) fn numbers(&self) -> BTreeSet<RouterNumber> {
        self.configured().numbers.clone()
    }

    /// The store of usage, if routers report any.
    pub(super) fn usage_store(&self) -> Option<&Store> {
        self.routers.as_ref().map(|of| &of.store)
    }

    /// What payers with a quota have sent, as it was read last.
    pub(super) fn quota_usage(&self) -> &QuotaView {
        &self.quotas
    }

    /// Who is beyond a soft quota in the present month, or has used up a hard one.
    fn over_quota(&self, state: &State) -> (Vec<u32>, Vec<u32>) {
        let begins = Month::of(unix_now().secs()).begin();
        let usage = self.quotas.lock().unwrap_or_else(PoisonError::into_inner);
        let usage = usage.as_ref().filter(|usage| usage.begins == begins);
        let sent = |principal: Principal| usage.map_or(0, |usage| usage.of(principal));
        let (mut exceeded, mut used_up) = (Vec::new(), Vec::new());
        for (principal, status) in state.quotas() {
            match status.state(begins, sent(principal)) {
                QuotaState::Within => {}
                QuotaState::Exceeded => exceeded.push(principal.number()),
                QuotaState::UsedUp => used_up.push(principal.number()),
            }
        }
        (exceeded, used_up)
    }

    /// Lines of sums, with the names of accounts.
    pub(super) fn lines(&self, sums: &BTreeMap<(ChargedAccount, RouterNumber), Usage>) -> Vec<Value> {
        // Questions wait while the server is locked: only names are taken there.
        let (names, account_periods): (BTreeMap<_, _>, AccountPeriods) = {
            let core = lock(&self.core);
            let state = core.server.state();
            let of = |principal| Some((principal, state.account(principal)?.0.to_owned()));
            let names = usage::principals(sums).into_iter().filter_map(of).collect();
            (names, state.reopened().iter().copied().collect())
        };
        let account = |principal| names.get(&principal).cloned();
        usage::lines(sums, None, &account, &account_periods, &self.names())
    }

    /// When the next token of the API expires, in Unix seconds; and which have expired or do so soon.
    fn expiring(&self) -> (Option<u64>, Vec<String>) {
        let now = unix_now().secs();
        let configured = self.configured();
        let Some(api) = &configured.api else { return (None, Vec::new()) };
        let next =
            api.token.iter().filter_map(|token| token.get_ref().expires()).filter(|expires| *expires > now).min();
        let problem = |Fault { message, help, .. }| match help {
            Some(help) => format!("{message}; {help}"),
            None => message,
        };
        (next, api.warnings(now).into_iter().map(problem).collect())
    }

    /// The status of each router; null without any.
    async fn routers(&self) -> Result<Value, ViewError> {
        Ok(self.routers_and_problems().await?.0)
    }

    /// The same, and what is wrong where a router knows of more than the database has.
    async fn routers_and_problems(&self) -> Result<(Value, Vec<String>), ViewError> {
        let Some(of) = &self.routers else { return Ok((Value::Null, Vec::new())) };
        let names = self.names();
        daemon::query(&of.events, move |server: &mut RouterServer| {
            (routers::status(server, &names), routers::set_back(server, &names))
        })
        .await
    }

    /// A page of what principals sent, by account and router: `after` is where the page before ended.
    async fn usage(self, parameters: Parameters) -> Result<Value, ViewError> {
        let principal = match parameters.get("principal").map(|text| text.parse().ok().and_then(Principal::new)) {
            None => None,
            Some(Some(principal)) => Some(principal),
            Some(None) => return Err(ViewError::Request("`principal` is not a number of 24 bits".to_owned())),
        };
        let first = match parameters.get("after").map(|text| account(text)) {
            None => None,
            Some(Some(account)) => Some(Bound::Excluded(account)),
            Some(None) => return Err(ViewError::Request("`after` is not the `next` of a page".to_owned())),
        };
        let (lines, next, moved) = self.usage_page(first, principal, PAGE).await?;
        let next = next.map(|account| to_hex(&account.0));
        Ok(json!({ "version": 1, "usage": lines, "next": next, "moved": moved }))
    }

    /// What principals sent, or one did, by account and router: at most `most` accounts, from `first` on; and the last of them, if
    /// others may follow. The last number is [`UsagePage::moved`].
    pub(super) async fn usage_page(
        &self,
        first: Option<Bound<ChargedAccount>>,
        principal: Option<Principal>,
        most: usize,
    ) -> Result<(Vec<Value>, Option<ChargedAccount>, u64), ViewError> {
        let Some(store) = self.usage_store() else {
            return Err(ViewError::Request("this key server has no [key.routers]: nobody reports usage".to_owned()));
        };
        let bounds = principal.map(ChargedAccount::bounds);
        let begin = bounds.map_or(Bound::Unbounded, |(first, _)| Bound::Included(first));
        let (first, last) = (first.unwrap_or(begin), bounds.map(|(_, last)| last));
        let read = store.usage_page(first, last, most).await;
        let UsagePage { totals, next, moved } = read.map_err(|error| ViewError::Failed(error.to_string()))?;
        Ok((self.lines(&totals), next, moved))
    }
}

/// An account as the cursor of a page names it.
fn account(text: &str) -> Option<ChargedAccount> {
    let is_hex = text.len() == 2 * ChargedAccount::LENGTH && text.bytes().all(|octet| octet.is_ascii_hexdigit());
    let mut account = [0; ChargedAccount::LENGTH];
    for (octet, digits) in account.iter_mut().zip(is_hex.then(|| text.as_bytes().chunks_exact(2))?) {
        *octet = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(ChargedAccount(account))
}

impl View for KeyView {
    async fn status(&self) -> Result<Value, ViewError> {
        let (routers, mut problems) = self.routers_and_problems().await?;
        let (next_expiry, expiring) = self.expiring();
        problems.extend(expiring);
        problems.extend(self.routers.iter().flat_map(|of| &of.problems).filter_map(UsageProblem::get));
        let lessor = self.routers.as_ref().map(|of| of.lessor.lock().unwrap_or_else(PoisonError::into_inner).clone());
        problems.extend(self.routers.iter().filter_map(|of| of.strangers.problem(Instant::now())));
        problems.extend(lessor.iter().filter_map(|lessor| lessor.problem.clone()));
        let core = lock(&self.core);
        let list = core.list().map(|list| list.written());
        let (server, state) = (&core.server, core.server.state());
        let (exceeded, used_up) = self.over_quota(state);
        let counters: Map<String, Value> =
            server.counters().all().into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
        Ok(json!({
            "zone": self.zone,
            "writer": self.writer,
            "number": state.number(),
            "accounts": state.accounts(),
            "grants": state.grants(),
            "revocations": state.revocations().len(),
            "sources": state.sources().len(),
            "list": list.as_ref().and_then(|written| Some(written.list.as_ref()?.0)),
            "list_problem": list.and_then(|written| written.problem),
            "load": server.load(),
            "octets": server.memory(),
            "answers": counters,
            "routers": routers,
            "lessor": lessor.map(|LessorView { row, is_own, .. }| json!({
                "own": is_own,
                "epoch": row.epoch,
                "identity": Some(row.name).filter(|name| !name.is_empty()),
            })),
            "database": {
                "up": core.outage().is_none(),
                "down_secs": core.outage().map(|outage| outage.since.elapsed().as_secs()),
                "problem": core.outage().map(|outage| &outage.why),
            },
            "invitations": invitations(state),
            "quotas": {
                "count": state.quotas().count(),
                "exceeded": exceeded.iter().take(NAMED).collect::<Vec<_>>(),
                "used_up": used_up.iter().take(NAMED).collect::<Vec<_>>(),
            },
            "api": self.api.as_ref().map(|counts| counts.json()),
            "connections": self.connections.json(),
            "next_token_expires": next_expiry.map(utc),
            "problems": problems,
        }))
    }

    async fn overview(&self, status: &Value) -> Result<Overview, ViewError> {
        let mut overview =
            Overview::new(format!("key server of {}", self.zone), &["peer", "state", "usage confirmed", "reports"]);
        for router in status["routers"].as_array().into_iter().flatten() {
            let up = router["connected"] == true;
            let name = router["name"].as_str().map_or_else(|| format!("router {}", router["number"]), str::to_owned);
            let confirmed = router["confirmed"].as_u64().filter(|second| *second > 0).map(utc);
            let state = if up { "connected" } else { "not connected" };
            overview.row(up, [json!(name), json!(state), json!(confirmed), router["reports"].clone()]);
        }
        if let Some(of) = self.routers.as_ref().map(|_| &status["lessor"]) {
            let state = match (&of["own"], of["identity"].as_str()) {
                (Value::Bool(true), _) => "by this server".to_owned(),
                (_, Some(identity)) => format!("by {identity}"),
                _ => "by nobody".to_owned(),
            };
            let is_connected = |router: &Value| router["connected"] == true;
            let is_wanted = status["routers"].as_array().is_some_and(|routers| routers.iter().any(is_connected));
            let up = of["own"] == true || of["identity"].is_string() || !is_wanted;
            overview.row(up, [json!("leases of rates"), json!(state), Value::Null, Value::Null]);
        }
        let database = &status["database"];
        let up = database["up"] == true;
        let state = if up { "in use" } else { "cannot be used" };
        overview.row(up, [json!("the database"), json!(state), Value::Null, Value::Null]);
        overview.problems.extend(database["problem"].as_str().map(str::to_owned));
        overview.count(format!("{} accounts, {} capabilities granted", status["accounts"], status["grants"]));
        overview.count(format!("{} revocations", status["revocations"]));
        overview.count(format!("change {}", status["number"]));
        overview.count(format!("{} secrets answered", cell(&status["answers"]["secrets"])));
        let quotas = |what: &str| status["quotas"][what].as_array().map_or(0, Vec::len);
        if quotas("exceeded") + quotas("used_up") > 0 {
            let (exceeded, used_up) = (quotas("exceeded"), quotas("used_up"));
            overview.count(format!("{exceeded} payers beyond a soft quota, {used_up} have used up a hard one"));
        }
        overview.count(format!("{} invitations open", cell(&status["invitations"]["open"])));
        Ok(overview)
    }

    async fn metrics(&self) -> Option<Vec<Metric>> {
        let routers = self.routers().await.ok()?;
        let of_routers = |what: &str| {
            routers.as_array().into_iter().flatten().map(|router| router[what].clone()).collect::<Vec<_>>()
        };
        let connected = of_routers("connected").iter().filter(|up| **up == true).count();
        let sum = |what: &str| of_routers(what).iter().filter_map(Value::as_u64).sum::<u64>();
        let core = lock(&self.core);
        let (server, state, of) = (&core.server, core.server.state(), core.server.counters());
        let denied = of.not_now + of.revoked + of.ended + of.used_up;
        let (exceeded, used_up) = self.over_quota(state);
        let unknown = of.unknown + of.wrong_epoch;
        let refused = of.orders_forged + of.orders_clock + of.orders_refused + of.orders_busy;
        let api: BTreeMap<&str, u64> = self.api.iter().flat_map(|counts| counts.all()).collect();
        let of_api = |names: &[&str]| names.iter().filter_map(|name| api.get(name)).sum::<u64>();
        let forged =
            ["forged", "used", "withdrawn", "expired", "clock", "gone"].map(|name| format!("redemptions_{name}"));
        let forged: Vec<&str> = forged.iter().map(String::as_str).collect();
        let mut metrics = self.connections.metrics();
        metrics.extend(metrics! {
            gauge "account" Members "Accounts of principals" = state.accounts();
            gauge "grant" Keys "Capabilities that are granted" = state.grants();
            gauge "revoked" Keys "Revocations in force" = state.revocations().len();
            gauge "sources" Number "Accounts and delegations whose sources were named" = state.sources().len();
            gauge "quota" Members "Payers with a quota by volume" = state.quotas().count();
            gauge "quota_exceeded" Members "Payers beyond their soft quota of this month" = exceeded.len();
            gauge "quota_used_up" Members "Payers who have used up their hard quota of this month" = used_up.len();
            gauge "change" Number "Number of the last change of accounts and revocations" = state.number();
            gauge "database_down" Seconds "How long the database could not be used; zero while it can" =
                core.outage().map_or(0.0, |outage| outage.since.elapsed().as_secs_f64());
            gauge "state" Bytes "Memory of accounts and handles" = server.memory();
            counter "secret" Messages "Secrets that were answered" = of.secrets;
            counter "denied" Messages "Holders that were denied a secret" = denied;
            counter "unknown" Messages "Look-ups that no capability fits" = unknown;
            counter "unanswerable" Messages "Look-ups for which the waypoint's key is missing" = of.no_key;
            counter "static" Messages "Questions about the zone itself" = of.static_records + of.nothing;
            counter "foreign" Messages "Questions about other zones" = of.foreign;
            counter "malformed" Messages "Messages that are no question" = of.malformed;
            counter "truncated" Messages "Answers that were cut, so that TCP follows" = of.truncated;
            counter "rate_slipped" Messages "Answers beyond the limit of their source prefix that were truncated" = of.rate_slipped;
            counter "rate_dropped" Messages "Answers beyond the limit of their source prefix that were not sent" = of.rate_dropped;
            counter "order" Messages "Orders of holders that were carried out" = of.orders;
            counter "order_refused" Messages "Orders that were refused" = refused;
            counter "api_request" Messages "Requests to the API" = of_api(&["requests"]);
            counter "api_stranger" Messages "Requests to the API without a valid token, or beyond the limit of strangers" =
                of_api(&["unauthenticated", "limited"]);
            counter "api_change" Changes "Changes by the API" = of_api(&["changes"]);
            counter "redemption" Messages "Invitations that were redeemed" = of_api(&["redeemed"]);
            counter "redemption_refused" Messages "Redemptions that were refused" = of_api(&forged);
            gauge "router" Links "Routers that are connected" = connected;
            counter "usage" Messages "Reports of usage that were taken" = sum("reports");
            counter "usage_refused" Messages "Reports of usage that were refused" = sum("refused");
            counter "usage_untaken" Messages "Accounts in reports that were not taken, since whoever pays for them has as many records as one may have" =
                sum("untaken");
            counter "usage_too_late" Messages "Totals of time that was closed before their router was configured, which are on no statement" =
                sum("too_late");
        });
        if let Some(of) = &self.routers {
            let name = |router: &Value| match &router["name"] {
                Value::String(name) => name.clone(),
                _ => router["number"].to_string(),
            };
            let confirmed = |router: &Value| (name(router), router["confirmed"].as_u64().unwrap_or(0));
            let confirmed = routers.as_array().into_iter().flatten().map(confirmed).collect();
            let own = state.rates().iter().filter(|(payer, _)| payer.delegation.is_none());
            let rates = own.map(|(payer, terms)| (payer.principal.number(), terms.rate)).collect();
            metrics.extend(of.metrics.metrics(&rates, &confirmed));
        }
        Some(metrics)
    }

    fn store(&self) -> Option<&Arc<FileStore>> {
        None
    }

    fn pages(views: Views<Self>) -> Views<Self> {
        views.page("usage", Self::usage)
    }

    async fn readiness(&self) -> Option<Result<(), String>> {
        let (is_prepared, list, staleness) = {
            let core = lock(&self.core);
            (core.is_prepared(), core.list(), core.staleness())
        };
        if let Some(staleness) = staleness {
            return Some(Err(staleness));
        }
        if let Some(problem) = list.and_then(|list| list.written().problem) {
            return Some(Err(format!("routers do not learn of revocations: {problem}")));
        }
        Some(if is_prepared { Ok(()) } else { Err("handles of the next key epoch are being made".to_owned()) })
    }
}

/// How many invitations there are in each state.
fn invitations(state: &State) -> Value {
    let now = unix_now().secs();
    let mut counts: BTreeMap<&str, usize> = InvitationState::ALL.map(|state| (state.name(), 0)).into();
    for (invitation, status) in state.invitations() {
        *counts.entry(state_of(invitation, status, now).name()).or_default() += 1;
    }
    json!(counts)
}

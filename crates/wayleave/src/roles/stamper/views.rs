//! What a stamper shows to its operator.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::Notify;
use wayleave_core::{Prefix, UnixTime};
use wayleave_dataplane::stamper::{Counters, LeaveReason, RuleAction, Rules};
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::http::{Metric, Parameters, Unit, ViewError};
use wayleave_runtime::metrics;
use wayleave_runtime::store::FileStore;

use super::registration::Registration;
use super::secrets::{Answers, Line, LookupCounters, line_of};
use super::worker::{Handle, IoCounters};
use crate::config::router::stamper::{Otherwise, RouteSection};
use crate::key_files::capability::Capabilities;
use crate::overview::Overview;
use crate::roles::daemon::{View, Views};
use crate::roles::stamping::{CapabilityFile, HeldKind};

/// A route and what pays for it.
pub struct RouteView {
    name: String,
    waypoints: Vec<Value>,
    mtu: u64,
    /// The Unix second from which no packet is stamped.
    ends: u64,
    /// What is wrong with its capabilities.
    troubles: Vec<String>,
    /// Those whose secrets come from a key server.
    lines: Vec<Line>,
}

impl RouteView {
    pub fn new(section: &RouteSection, files: &[CapabilityFile], now: UnixTime) -> Self {
        let held = files.iter().map(|held| (&held.capabilities, Some(held)));
        let troubles = files.iter().filter_map(|held| held.trouble(now)).collect();
        let line = |held: &CapabilityFile| match &held.kind {
            HeldKind::Line(credential, _) => Some(line_of(credential)),
            HeldKind::File => None,
        };
        let lines = files.iter().filter_map(line).collect();
        Self { troubles, lines, ..Self::of(&section.name, held.collect(), *section.mtu.get_ref(), now) }
    }

    /// What else is wrong with it.
    pub fn set_trouble(&mut self, why: &str) {
        self.troubles.push(why.to_owned());
    }

    /// Why no packet is stamped, if none is.
    fn halted(&self, now: u64) -> Option<String> {
        let why = || self.troubles.first().cloned().unwrap_or_else(|| "its capabilities have ended".to_owned());
        (self.ends <= now).then(why)
    }

    /// When the key server last answered for each of its lines; none if it has not, or there is none.
    fn answered(&self, answers: &Answers) -> Option<UnixTime> {
        self.lines.iter().map(|line| answers.get(line).copied()).min().flatten()
    }

    /// The route of what a user registered.
    pub fn registered(name: &str, registration: &Registration, now: UnixTime) -> Self {
        let held = registration.capabilities.iter().map(|held| (&held.capabilities, None));
        let failures = registration.capabilities.iter().filter_map(|held| held.failure);
        let troubles = failures.map(|failure| format!("its secret is missing: {failure}")).collect();
        let lines = registration.capabilities.iter().filter_map(|held| held.line.as_ref().map(line_of)).collect();
        Self { troubles, lines, ..Self::of(name, held.collect(), registration.mtu.into(), now) }
    }

    fn of(name: &str, held: Vec<(&Capabilities, Option<&CapabilityFile>)>, mtu: u64, now: UnixTime) -> Self {
        let waypoint = |(held, of): &(&Capabilities, Option<&CapabilityFile>)| {
            json!({
                "waypoint": held.waypoint,
                "principal": held.principal.number(),
                "delegation": held.delegation.map(|delegation| delegation.id.number()),
                "epoch": held.hop(now).map(|hop| hop.capability.epoch),
                "until": until(held.end()),
                "file": of.map(|of| &of.name),
                "by_dns": of.map(|of| matches!(of.kind, HeldKind::Line(..))),
                "trouble": of.and_then(|of| of.trouble(now)),
            })
        };
        Self {
            name: name.to_owned(),
            waypoints: held.iter().map(waypoint).collect(),
            mtu,
            ends: held.iter().map(|(held, _)| held.end()).min().unwrap_or(0),
            troubles: Vec::new(),
            lines: Vec::new(),
        }
    }
}

/// When secrets end. Where there is none, the end is that of the first key epoch, decades ago.
fn until(end: u64) -> Option<u64> {
    const DECADES: u64 = 1 << 30;
    (end >= DECADES).then_some(end)
}

/// A rule with its names.
pub struct RuleView {
    pub to: Prefix,
    pub user: Option<u32>,
    pub mark: Option<u32>,
    pub cgroup: Option<String>,
    /// There is no such control group now.
    pub is_missing: bool,
    pub route: Option<String>,
    pub otherwise: Option<Otherwise>,
    pub interface: String,
}

/// What is in force.
pub struct StamperSnapshot {
    pub routes: Vec<RouteView>,
    pub rules: Vec<RuleView>,
    pub lookups: LookupCounters,
    pub answers: Answers,
    /// Packets that the kernel has dropped.
    pub dropped: u64,
    pub table: Rules,
}

impl StamperSnapshot {
    /// Control groups of rules that do not exist, each once.
    fn missing(&self) -> Vec<String> {
        let mut missing: Vec<String> =
            self.rules.iter().filter(|rule| rule.is_missing).filter_map(|rule| rule.cgroup.clone()).collect();
        missing.sort();
        missing.dedup();
        missing
    }
}

#[derive(Clone)]
pub struct StamperView {
    pub worker: Handle,
    pub shown: Arc<RwLock<StamperSnapshot>>,
    /// Lets the role find out whether its secrets still hold.
    pub confirm: Arc<Notify>,
}

/// How long an answer of a key server is waited for by who asks why.
const ANSWER: Duration = Duration::from_secs(3);
const STEP: Duration = Duration::from_millis(50);

/// What became of capabilities for replies.
#[derive(Clone, Copy, Default)]
struct ReplyCounters {
    /// Servers that acknowledged one.
    servers: usize,
    /// Clients whose replies are stamped.
    clients: usize,
    /// Options that were refused; of these, grants for waypoints that `reply_waypoints` does not name.
    refused: u64,
    other_waypoint: u64,
}

impl StamperView {
    async fn counters(&self) -> Result<(IoCounters, Counters), ViewError> {
        self.worker.ask(|worker| worker.counted()).await.ok_or(ViewError::Unavailable)
    }

    async fn replies(&self) -> ReplyCounters {
        let counted = self.worker.ask(|worker| {
            let replies = worker.replies.as_ref()?;
            let of_clients = replies.grants.as_ref().map(|grants| ReplyCounters {
                servers: 0,
                clients: grants.clients().count(),
                refused: grants.refused,
                other_waypoint: grants.other_waypoint,
            });
            Some(ReplyCounters { servers: replies.requests.granted(), ..of_clients.unwrap_or_default() })
        });
        counted.await.flatten().unwrap_or_default()
    }

    fn with<T>(&self, of: impl FnOnce(&StamperSnapshot) -> T) -> T {
        of(&self.shown.read().unwrap_or_else(PoisonError::into_inner))
    }

    async fn routes(self) -> Result<Value, ViewError> {
        let route = |route: &RouteView| json!({ "route": route.name, "mtu": route.mtu, "until": until(route.ends), "waypoints": route.waypoints });
        let rule = |rule: &RuleView| {
            json!({
                "to": rule.to, "user": rule.user, "mark": rule.mark, "cgroup": rule.cgroup, "route": rule.route,
                "interface": rule.interface, "otherwise": rule.otherwise.map(Otherwise::name), "missing": rule.is_missing,
            })
        };
        let of = |shown: &StamperSnapshot| -> (Vec<Value>, Vec<Value>) {
            (shown.routes.iter().map(route).collect(), shown.rules.iter().map(rule).collect())
        };
        let (routes, rules) = self.with(of);
        Ok(json!({ "version": 1, "stamping": routes, "rules": rules }))
    }

    /// Waits until the key server has said whether the secrets that are stamped with still hold, or does not answer. What is not looked up,
    /// or was just now, is not waited for.
    async fn confirm(&self) {
        let ended = |shown: &StamperSnapshot| shown.lookups.found + shown.lookups.failed + shown.lookups.known;
        if !self.with(|shown| shown.routes.iter().any(|route| !route.lines.is_empty())) {
            return;
        }
        let before = self.with(ended);
        self.confirm.notify_one();
        let deadline = tokio::time::Instant::now() + ANSWER;
        while self.with(ended) == before && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(STEP).await;
        }
    }

    /// What becomes of packets to an address, for each kind of sender that there are rules for, and for anybody else.
    async fn why(self, parameters: Parameters) -> Result<Value, ViewError> {
        let expected = || ViewError::Request("expected the IP address of a destination".to_owned());
        let address: IpAddr = parameters.get("name").and_then(|name| name.parse().ok()).ok_or_else(expected)?;
        self.confirm().await;
        let now = unix_now().secs();
        let rows = self.with(|shown| {
            let mut senders: Vec<(Option<u32>, Option<u32>, Option<&String>)> = Vec::new();
            for rule in &shown.rules {
                let sender = (rule.user, rule.mark, rule.cgroup.as_ref());
                if !senders.contains(&sender) {
                    senders.push(sender);
                }
            }
            if !senders.contains(&(None, None, None)) {
                senders.push((None, None, None));
            }
            let row = |(user, mark, cgroup): (Option<u32>, Option<u32>, Option<&String>)| {
                let action = shown.table.find(address, user, mark.unwrap_or(0));
                let route = action.route().and_then(|route| shown.routes.get(usize::from(route)));
                let leaves = if action.is_required() { "is dropped" } else { "leaves without a stamp" };
                let why = match route.map(|route| (route, route.halted(now))) {
                    None if action == RuleAction::Drop => {
                        "is dropped: its rule's route is of the other address family".to_owned()
                    }
                    None => "leaves without a stamp: no rule gives it a route".to_owned(),
                    Some((route, Some(why))) => format!("{leaves}: route {}: {why}", route.name),
                    Some((route, None)) => {
                        let answered = route.answered(&shown.answers);
                        let answered = answered.map(|at| format!("; the key server answered at {}", utc(at.secs())));
                        format!("is stamped for route {}{}", route.name, answered.unwrap_or_default())
                    }
                };
                let is_missing = shown.rules.iter().any(|rule| rule.is_missing && rule.cgroup.as_ref() == cgroup);
                let why = if is_missing { format!("{why}; the group does not exist now") } else { why };
                // A control group's mark is the role's own affair.
                let mark = mark.filter(|_| cgroup.is_none());
                json!({
                    "user": user, "mark": mark, "cgroup": cgroup, "why": why,
                    "route": route.map(|route| &route.name), "waypoints": route.map(|route| &route.waypoints),
                })
            };
            senders.into_iter().map(row).collect::<Vec<_>>()
        });
        Ok(json!({ "version": 1, "destination": address, "senders": rows }))
    }
}

impl View for StamperView {
    async fn status(&self) -> Result<Value, ViewError> {
        let (io, counters) = self.counters().await?;
        let left: Map<String, Value> = LeaveReason::ALL
            .iter()
            .map(|reason| (reason.name().to_owned(), json!(counters.unchanged(*reason))))
            .collect();
        let replies = self.replies().await;
        let now = unix_now().secs();
        let (routes, rules, problems) = self.with(|shown| {
            let mut problems = Vec::new();
            for route in &shown.routes {
                match (&route.troubles[..], route.halted(now)) {
                    ([], Some(why)) => problems.push(format!("route {}: {why}", route.name)),
                    (troubles, _) => problems.extend(troubles.iter().map(|why| format!("route {}: {why}", route.name))),
                }
            }
            (shown.routes.len(), shown.rules.len(), problems)
        });
        let dropped: Map<String, Value> = LeaveReason::ALL
            .iter()
            .map(|reason| (reason.name().to_owned(), json!(counters.dropped(*reason))))
            .collect();
        let (lookups, dropped_by_kernel, missing) = self.with(|shown| (shown.lookups, shown.dropped, shown.missing()));
        Ok(json!({
            "routes": routes,
            "rules": rules,
            "stamper": { "stamped": counters.stamped, "appended": counters.appended },
            "left": left,
            "dropped": dropped,
            "dropped_by_kernel": dropped_by_kernel,
            "missing_groups": missing,
            "read": io.read,
            "sent": io.sent,
            "unsent": io.unsent,
            "arrived": io.arrived,
            "delivered": io.delivered,
            "refused_strangers": io.refused_strangers,
            "refused_sources": io.refused_sources,
            "replies": {
                "servers": replies.servers,
                "clients": replies.clients,
                "refused": replies.refused,
                "other_waypoint": replies.other_waypoint,
            },
            "lookups": { "found": lookups.found, "failed": lookups.failed, "events": lookups.events },
            "problems": problems,
        }))
    }

    async fn overview(&self, status: &Value) -> Result<Overview, ViewError> {
        let mut overview = Overview::new("stamper", &["route", "state", "until", "waypoints"]);
        let now = unix_now().secs();
        self.with(|shown| {
            for route in &shown.routes {
                let halted = route.halted(now).is_some();
                let state = if halted { "stamps nothing" } else { "stamps" };
                let waypoints: Vec<&Value> = route.waypoints.iter().map(|waypoint| &waypoint["waypoint"]).collect();
                let well = !halted && route.troubles.is_empty();
                overview
                    .row(well, [json!(route.name), json!(state), json!(until(route.ends).map(utc)), json!(waypoints)]);
            }
        });
        let sum =
            |counts: &Value| counts.as_object().into_iter().flatten().filter_map(|(_, n)| n.as_u64()).sum::<u64>();
        overview.count(format!("{} rules", status["rules"]));
        overview.count(format!("{} packets stamped", status["stamper"]["stamped"]));
        overview.count(format!("{} left without a stamp", sum(&status["left"])));
        let dropped = sum(&status["dropped"]) + status["dropped_by_kernel"].as_u64().unwrap_or(0);
        if dropped > 0 {
            overview.count(format!("{dropped} dropped without a stamp"));
        }
        let missing = status["missing_groups"].as_array().map_or(0, Vec::len);
        if missing > 0 {
            overview.count(format!("{missing} control groups missing"));
        }
        overview.count(format!("{} sent, {} unsent", status["sent"], status["unsent"]));
        overview.count(format!("{} stamped ones arrived", status["arrived"]));
        Ok(overview)
    }

    async fn metrics(&self) -> Option<Vec<Metric>> {
        let (io, counters) = self.counters().await.ok()?;
        let replies = self.replies().await;
        let (gauge, counter) = (Metric::gauge, Metric::counter);
        let (lookups, dropped, missing) = self.with(|shown| (shown.lookups, shown.dropped, shown.missing().len()));
        let required: u64 = LeaveReason::ALL.iter().map(|reason| counters.dropped(*reason)).sum();
        let (rules, end) = self.with(|shown| (shown.rules.len(), shown.routes.iter().map(|route| route.ends).min()));
        let mut all = metrics! {
            gauge "configured" Routes "Rules in force" = rules;
            counter "stamped" Packets "Packets stamped first here" = counters.stamped;
            counter "appended" Packets "Packets stamped before, and again here" = counters.appended;
            counter "read" Packets "Packets that the system handed over" = io.read;
            counter "sent" Packets "Packets sent, stamped or not" = io.sent;
            counter "unsent" Packets "Packets for which there was no room or no route" = io.unsent;
            counter "refused" Packets "Packets that contradict what the system says of them" = io.refused;
            counter "arrived" Packets "Stamped packets that arrived for this host" = io.arrived;
            counter "delivered" Packets "Arrived packets handed over without their header" = io.delivered;
            counter "refused_strangers" Packets "Arrived packets that no waypoint of this host sent" = io.refused_strangers;
            counter "refused_sources" Packets "Arrived packets whose original source cannot be outside" = io.refused_sources;
            counter "dropped" Packets "Packets that could not be stamped, and whose rule lets them leave in no other way" = required;
            counter "kernel_dropped" Packets "The same that the kernel has dropped, also while the role did not run" = dropped;
            gauge "missing_group" Number "Control groups of rules that do not exist" = missing;
            gauge "reply_server" Number "Servers that acknowledged a capability for replies" = replies.servers;
            gauge "reply_client" Number "Clients whose capabilities replies are stamped with" = replies.clients;
            counter "reply_refused" Messages "Reply options that were refused" = replies.refused;
            counter "reply_other_waypoint" Messages "Grants for waypoints that the configuration does not name" = replies.other_waypoint;
            counter "reply_option" Packets "Reply options sent" = io.options;
            counter "lookup_found" Messages "Secrets that were looked up" = lookups.found;
            counter "lookup_failed" Messages "Look-ups that gave no secret" = lookups.failed;
            counter "lookup_event" Messages "Answers that were forged, stray, or changed on their way" = lookups.events;
            counter "failed" Calls "System calls that failed" = io.failures;
        };
        if let Some(end) = end {
            let left = end.saturating_sub(unix_now().secs()) as f64;
            all.push(gauge("capability_left", Unit::Seconds, "Seconds until the first route's capabilities end", left));
        }
        for reason in LeaveReason::ALL {
            let thing = format!("left_{}", reason.name());
            all.push(counter(
                &thing,
                Unit::Packets,
                "Packets left without a stamp for this reason",
                counters.unchanged(reason),
            ));
        }
        Some(all)
    }

    async fn readiness(&self) -> Option<Result<(), String>> {
        self.counters().await.ok()?;
        let now = unix_now().secs();
        let ended =
            self.with(|shown| shown.routes.iter().find_map(|route| Some((route.name.clone(), route.halted(now)?))));
        Some(ended.map_or(Ok(()), |(name, why)| Err(format!("route {name}: {why}"))))
    }

    fn store(&self) -> Option<&Arc<FileStore>> {
        None
    }

    fn pages(views: Views<Self>) -> Views<Self> {
        views.page("stamping", |view, _| view.routes()).page("why", Self::why)
    }
}

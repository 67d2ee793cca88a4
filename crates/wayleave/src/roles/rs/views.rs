//! What a party shows to its operator. Nothing here depends on members' policies.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use wayleave_route_server::directory::MemberSet;
use wayleave_route_server::party::{OlderStore, Party, PartyStatus, UnfitGreeting};
use wayleave_runtime::Clock;
use wayleave_runtime::http::{Labels, Metric, Unit, ViewError};
use wayleave_runtime::identity::{Fingerprint, Identity};
use wayleave_runtime::links::{LastRefusal, Links};
use wayleave_runtime::metrics;
use wayleave_runtime::store::FileStore;
use wayleave_runtime::tls::Pins;

use super::io::{Event, PEER};
use super::replaced_links::ReplacedLinks;
use crate::config::PublicKey;
use crate::config::rs::RsConfig;
use crate::key_files::{member_set, signing_key};
use crate::output::{cell, versioned};
use crate::overview::Overview;
use crate::roles::daemon::{self, View, Views, most};
use crate::roles::link_faults::{LinkEndpoint, LinkFaults};

#[derive(Clone)]
pub struct PartyView {
    events: mpsc::Sender<Event>,
    clock: Clock,
    links: Links,
    store: Arc<FileStore>,
    faults: LinkFaults,
    replaced_links: ReplacedLinks,
    set: watch::Receiver<MemberSet>,
    /// The peer party's certificate, which a reload may replace.
    peer_party: Pins,
    keys: Arc<OwnKeys>,
    peer: Arc<Peer>,
    /// `[status] shares`: routes come with this party's shares.
    shares: bool,
}

struct OwnKeys {
    tls: Fingerprint,
    sign: PublicKey,
    operators: [PublicKey; 2],
}

/// The link to the peer party, as it is configured.
pub struct Peer {
    pub endpoint: LinkEndpoint,
    /// Where this party listens for it, if it does, and whom it refused there.
    pub listening: Option<(SocketAddr, LastRefusal)>,
}

impl Peer {
    /// Why there is no link, if a refusal is the reason.
    fn refusal(&self) -> Option<String> {
        let (_, last) = self.listening.as_ref()?;
        let (address, failure) = last.get()?;
        Some(LinkEndpoint { address: address.to_string(), ..self.endpoint.clone() }.describe(&failure))
    }

    /// What is known of a link that is not up and of which nothing else is.
    fn missing(&self) -> String {
        match &self.listening {
            Some((at, _)) => format!("the link to the peer party is down: this party waits for it at {at}"),
            None => format!("the link to the peer party is down: this party connects to {}", self.endpoint.address),
        }
    }
}

impl PartyView {
    pub fn new(
        config: &RsConfig,
        identity: &Identity,
        (links, store, faults, replaced_links): (&Links, &Arc<FileStore>, &LinkFaults, &ReplacedLinks),
        set: watch::Receiver<MemberSet>,
        (peer_party, peer): (&Pins, Peer),
        (events, clock): (&mpsc::Sender<Event>, Clock),
    ) -> Self {
        let keys = OwnKeys {
            tls: identity.fingerprint(),
            sign: PublicKey(signing_key(identity).verifying_key()),
            operators: config.party.operators.get_ref().each_ref().map(|key| key.0),
        };
        Self {
            events: events.clone(),
            clock,
            links: links.clone(),
            store: Arc::clone(store),
            faults: faults.clone(),
            replaced_links: replaced_links.clone(),
            set,
            peer_party: peer_party.clone(),
            keys: Arc::new(keys),
            peer: Arc::new(peer),
            shares: config.status.as_ref().is_some_and(|status| *status.shares.get_ref()),
        }
    }

    /// The member set in force.
    pub fn set(&self) -> MemberSet {
        self.set.borrow().clone()
    }

    async fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut Party) -> T + Send + 'static,
    ) -> Result<T, ViewError> {
        daemon::query(&self.events, query).await
    }

    async fn party(&self) -> Result<PartyStatus, ViewError> {
        let now = self.clock.now().instant;
        self.query(move |party| party.status_at(now)).await
    }

    async fn routes(self, most: usize) -> Result<Value, ViewError> {
        let shares = self.shares;
        let rows = self.query(move |party| party.routes(most.saturating_add(1), shares)).await?;
        Ok(daemon::routes(rows, most))
    }

    async fn members(self) -> Result<Value, ViewError> {
        let connected = self.party().await?.members;
        let mut value = versioned(member_set::describe(&self.set.borrow()));
        for member in value["members"].as_array_mut().into_iter().flatten() {
            let slot = member["slot"].as_u64().and_then(|slot| u32::try_from(slot).ok());
            member["connected"] = json!(slot.is_some_and(|slot| connected.contains(&slot)));
        }
        Ok(value)
    }

    async fn peers(self) -> Result<Value, ViewError> {
        let status = self.party().await?;
        let why = self.without_peer(&status);
        let other = json!({ "peer": "other party", "up": status.other_party, "last_end": why });
        let set = self.set();
        let member = |slot: &u32| {
            let of = set.slot(*slot);
            json!({ "peer": "member", "slot": slot, "name": of.map(|of| &of.name), "asn": of.map(|of| of.asn), "up": true })
        };
        let members = status.members.iter().map(member);
        Ok(json!({ "version": 1, "peers": std::iter::once(other).chain(members).collect::<Vec<_>>() }))
    }

    /// Why there is no peer party, if there is none.
    fn without_peer(&self, status: &PartyStatus) -> Option<String> {
        let why = || self.peer.refusal().or_else(|| self.faults.of(PEER)).unwrap_or_else(|| self.peer.missing());
        (!status.other_party).then(why)
    }

    fn keys(&self) -> Value {
        let OwnKeys { tls, sign, operators } = &*self.keys;
        let own = json!({ "of": "this party", "tls": tls.to_string(), "sign": sign.to_string(), "reload": "restart" });
        let peer = self.peer_party.fingerprints();
        let peer =
            peer.iter().map(|tls| json!({ "of": "the other party", "tls": tls.to_string(), "reload": "SIGHUP" }));
        let operators = (1..).zip(operators).map(|(party, key)| {
            json!({ "of": format!("party {party}'s operator"), "sign": key.to_string(), "reload": "restart" })
        });
        let all: Vec<Value> = std::iter::once(own).chain(peer).chain(operators).collect();
        json!({ "version": 1, "keys": all })
    }
}

impl View for PartyView {
    async fn status(&self) -> Result<Value, ViewError> {
        let status = self.party().await?;
        let mut value = json!(status);
        let mut problems = self.faults.list();
        if let Some(why) = self.without_peer(&status).filter(|why| !problems.contains(why)) {
            problems.insert(0, why);
        }
        problems.extend(older_store(&status));
        problems.extend(of_members(&status, &self.set.borrow()));
        let replaced_links = self.replaced_links.problems(Instant::now());
        problems.extend(replaced_links.iter().map(|(slot, words)| of_member(*slot, &self.set.borrow(), words)));
        value["problems"] = json!(problems);
        value["certificates_refused"] = json!(read(&self.links.counters().refused));
        Ok(value)
    }

    async fn overview(&self, status: &Value) -> Result<Overview, ViewError> {
        let set = self.set();
        let title = format!("party {} of {}", status["party"], cell(&status["exchange"]));
        let mut overview = Overview::new(title, &["peer", "as", "state", "prefixes"]);
        overview.party = status["party"].as_u64();
        overview.exchange = status["exchange"].as_str().map(ToOwned::to_owned);
        let up = status["other_party"] == true;
        overview.row(up, [json!("the peer party"), Value::Null, json!(if up { "up" } else { "down" }), Value::Null]);
        let mut connected = 0;
        let members: Vec<_> = set.iter().filter(|(_, of)| of.active).collect();
        for (slot, of) in &members {
            let state = state_of(status, *slot);
            connected += usize::from(state != AWAY);
            let mut budgets = status["budgets"].as_array().into_iter().flatten();
            let budget = budgets.find(|budget| budget["slot"] == *slot);
            let prefixes = budget.map(|budget| format!("{} of {}", budget["prefixes"], budget["max_prefixes"]));
            overview.row(state == CONNECTED, [json!(of.name), json!(of.asn), json!(state), json!(prefixes)]);
        }
        overview.count(format!("{connected} of {} members connected", members.len()));
        overview.count(format!("{} sealed objects for {} prefixes", status["objects"], status["prefixes"]));
        if status["lost"] != 0 {
            overview
                .count(format!("{} lost objects whose announcers have not said what became of them", status["lost"]));
        }
        overview.count(format!("batch {}", status["batch"]));
        overview.count(format!("member set {}", status["member_set"]));
        for line in speaks_less(status) {
            overview.count(line);
        }
        Ok(overview)
    }

    async fn metrics(&self) -> Option<Vec<Metric>> {
        let status = self.party().await.ok()?;
        let mut all = metrics(&status, &self.links);
        all.push(reported(&status, &self.set.borrow()));
        Some(all)
    }

    async fn readiness(&self) -> Option<Result<(), String>> {
        let status = self.party().await.ok()?;
        let down = "the link to the peer party is down";
        let words = |why: String| if why.starts_with(down) { why } else { format!("{down}: {why}") };
        Some(self.without_peer(&status).map_or(Ok(()), |why| Err(words(why))))
    }

    fn store(&self) -> Option<&Arc<FileStore>> {
        Some(&self.store)
    }

    fn pages(views: Views<Self>) -> Views<Self> {
        views
            .page("routes", |view, parameters| async move { view.routes(most(&parameters)?).await })
            .page("members", |view, _| view.members())
            .page("peers", |view, _| view.peers())
            .page("keys", |view, _| async move { Ok(view.keys()) })
    }
}

const CONNECTED: &str = "connected";
const AWAY: &str = "not connected";

/// How the member in a slot stands, in a word or two: the first of these that holds.
fn state_of(status: &Value, slot: u32) -> &'static str {
    let states = [
        ("misbehaving", "misbehaving"),
        ("over_budget", "over its budget"),
        ("behind", "behind"),
        ("deferred", "deferred"),
        ("on_probation", "on probation"),
        ("late", "ranks late"),
        ("synchronising", "synchronising"),
        ("waiting", "waits to synchronise"),
        ("members", CONNECTED),
    ];
    let has = |list: &Value| list.as_array().is_some_and(|slots| slots.iter().any(|other| *other == slot));
    states.iter().find(|(list, _)| has(&status[*list])).map_or(AWAY, |(_, words)| words)
}

/// Where members, or the peer party, speak less than this party, so that something newer cannot be used yet.
fn speaks_less(status: &Value) -> Vec<String> {
    let highest = |range: &Value| range.as_str().and_then(|range| range.rsplit(' ').next()?.parse::<u64>().ok());
    let (version, format) = (highest(&status["protocol_versions"]), highest(&status["formats"]));
    let (peer, used) = (status["peer_protocol_version"].as_u64(), status["format"].as_u64());
    let slots = |slots: &mut dyn Iterator<Item = &Value>| slots.map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let members = status["speaks"].as_array().into_iter().flatten();
    let mut older = members.filter(|of| of["protocol_version"].as_u64().is_some_and(|of| Some(of) < version));
    let older = slots(&mut older.by_ref().map(|of| &of["slot"]));
    let holding_back = slots(&mut status["holding_back"].as_array().into_iter().flatten());
    let mut lines = Vec::new();
    if let Some(peer) = peer.filter(|peer| Some(*peer) < version) {
        lines.push(format!("version {peer} with the peer party"));
    }
    if !older.is_empty() {
        lines.push(format!("an older version with slots {older}"));
    }
    if let Some(used) = used.filter(|used| Some(*used) < format && !holding_back.is_empty()) {
        lines.push(format!("format {used}, since slots {holding_back} read no higher"));
    }
    lines
}

/// That a party came with a store that holds less than it did.
fn older_store(status: &PartyStatus) -> Option<String> {
    let OlderStore { party, holds, agreed } = status.older_store.as_ref()?;
    let holds = if *holds == 0 { "no batch".to_owned() } else { format!("batch {holds}") };
    Some(format!(
        "party {party} came with an older store: it held {holds}, and had stored batch {agreed}. What it lacked was dropped at \
         both parties, and members sent it again; find out who replaced the store"
    ))
}

/// A state of members that their operators, or this party's, should know of.
struct Reported {
    /// As it stands in the metric's label.
    why: &'static str,
    slots: fn(&PartyStatus) -> &[u32],
    /// What a member in this state does, and what follows.
    words: &'static str,
}

const REPORTED: [Reported; 5] = [
    Reported {
        why: "behind",
        slots: |status| &status.behind,
        words: "reads too slowly: updates to it are paused until it has caught up",
    },
    Reported {
        why: "over-budget",
        slots: |status| &status.over_budget,
        words: "sends more, or asks for all routes more often, than its budget",
    },
    Reported {
        why: "misbehaving",
        slots: |status| &status.misbehaving,
        words: "sends frames that break the protocol, for which its links are closed; `wayleave show events` has what",
    },
    Reported {
        why: "on-probation",
        slots: |status| &status.on_probation,
        words: "does not rank in time: nobody waits for it, and its own order decides for it until it has been in time for a while",
    },
    Reported {
        why: "deferred",
        slots: |status| &status.deferred,
        words: "asked for all routes, or connected, more often than its budget, and is sent them later",
    },
];

/// A problem for each member and state.
fn of_members(status: &PartyStatus, set: &MemberSet) -> Vec<String> {
    let problem = |slot: &u32, words: &str| of_member(*slot, set, words);
    let of_state =
        |state: &Reported| (state.slots)(status).iter().map(|slot| problem(slot, state.words)).collect::<Vec<_>>();
    let unfit = status.unfit_greetings.iter().map(|UnfitGreeting { slot, why }| {
        problem(slot, &format!("is refused: {why}; its own proxy says so too, with what to do"))
    });
    REPORTED.iter().flat_map(of_state).chain(unfit).collect()
}

/// What a member does, with its name.
fn of_member(slot: u32, set: &MemberSet, words: &str) -> String {
    match set.slot(slot) {
        Some(of) => format!("the member in slot {slot} ({}, {}) {words}", of.name, of.asn),
        None => format!("the member in slot {slot} {words}"),
    }
}

/// Each member in such a state, and why. All of it is public to both parties: no label follows from a policy.
fn reported(status: &PartyStatus, set: &MemberSet) -> Metric {
    let labels = |slot: &u32, why: &str| -> Labels {
        let member = set.slot(*slot).map_or(String::new(), |of| of.name.clone());
        vec![("slot", slot.to_string()), ("member", member), ("why", why.to_owned())]
    };
    let of_state =
        |state: &Reported| (state.slots)(status).iter().map(|slot| (labels(slot, state.why), 1.0)).collect::<Vec<_>>();
    let values = REPORTED.iter().flat_map(of_state).collect();
    Metric::gauges("reported", Unit::Members, "Members that do what their operators should know of, and why", values)
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Totals that follow from public shape alone: no count by exporter and importer, no time.
fn metrics(status: &PartyStatus, links: &Links) -> Vec<Metric> {
    let (counters, link) = (&status.counters, links.counters());
    metrics! {
        gauge "peer_party" Up "Whether the peer party is connected and agrees" = status.other_party;
        gauge "connected" Members "Members connected to both parties" = status.members.len();
        gauge "on_probation" Members "Members for whose rankings nobody waits" = status.on_probation.len();
        gauge "synchronising" Members "Members that are being sent everything" = status.synchronising.len();
        gauge "late" Members "Members whose rankings came late in the last minute" = status.late.len();
        gauge "waiting" Members "Members that wait to be sent everything" = status.waiting.len();
        gauge "behind" Members "Members that get nothing until they have taken up what is on the way" = status.behind.len();
        gauge "over_budget" Members "Members that spent more than their budgets in the last minute" = status.over_budget.len();
        gauge "misbehaving" Members "Members that sent frames that break the protocol in the last minute" = status.misbehaving.len();
        gauge "deferred" Members "Members that asked for everything too often, and get it later" = status.deferred.len();
        gauge "waiting" Bytes "Objects of all members that wait to be applied" = status.octets_waiting_in_all;
        gauge "stored" Objects "Route objects stored" = status.objects;
        gauge "lost" Objects "Route objects that one party alone had, and whose announcers have not said what became of them" = status.lost;
        gauge "live" Prefixes "Prefixes with a live route" = status.prefixes;
        gauge "member_set" Number "Number of the member set in force" = status.member_set;
        counter "accepted" Objects "Route objects accepted" = counters.objects;
        counter "refused" Objects "Route objects refused" = counters.refused;
        counter "invalid" Frames "Invalid frames received" = counters.bad_frames;
        counter "delivered" Batches "Batches delivered" = counters.batches;
        counter "select_best" Rounds "Rounds of Select-Best finished" = counters.rounds;
        counter "select_best" Evaluations "Members times prefixes evaluated" = counters.lanes;
        counter "export_all" Evaluations "Objects times receivers multiplied by the parties" = counters.exports;
        counter "missed" Rankings "Rankings that came too late" = counters.missed_rankings;
        counter "late" Rankings "Rankings that came late and were evaluated later" = counters.late_rankings;
        counter "late_refused" Rankings "Rankings that came late and found no budget or no time" = counters.late_refused;
        counter "older_store" Sessions "Sessions with the peer party in which one of the two came with an older store" =
            counters.older_stores;
        counter "engine_sent" Messages "Messages of the computation sent" = counters.engine_messages;
        counter "engine_sent" Bytes "Sent by the computation" = counters.engine_bytes;
        counter "link_received" Bytes "Received in frames" = counters.bytes_received;
        counter "link_sent" Bytes "Sent in frames" = counters.bytes_sent;
        counter "certificate_refused" Connections "Connections refused for their certificate" = read(&link.refused);
        counter "failed" Connections "Connections that failed before a certificate was checked" = read(&link.failed);
        counter "too_slow" Links "Links closed because the peer read too slowly" = read(&link.too_slow);
    }
}

//! `run member`: a member's proxy between its own router and the two parties.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use toml::Spanned;
use tracing::{error, info, warn};
use wayleave_bgp::peer::PeerEvent;
use wayleave_core::Prefix;
use wayleave_member::{Input, MemberProxy, Output, router_session};
use wayleave_route_server::member::{MemberConfig as MachineConfig, MemberEvent, MemberStatus};
use wayleave_route_server::party::Number;
use wayleave_runtime::Clock;
use wayleave_runtime::bgp_tcp::TcpOptions;
use wayleave_runtime::drive::{Question, Told, ask, drive};
use wayleave_runtime::http::{Metric, Pages, Serving, ViewError};
use wayleave_runtime::identity::Identity;
use wayleave_runtime::links::{Limits, LinkEvent, Links};
use wayleave_runtime::signals::{Asked, Signals};
use wayleave_runtime::store::{FileStore, Health, Store, StoreError};
use wayleave_runtime::systemd::{Notice, monotonic_micros, notify};
use wayleave_runtime::tls::{Gate, Pin, Pins, Role};

use super::attest::{count, time_shown};
use super::attested;
use super::bgp_peer::{Command, Peer, PeerView, Place};
use super::origins::Origins;
use super::{Events, QUEUE, READY_EVERY, Ready, most_of, not_ready_yet, seed, stored, warn_of_restart};
use crate::commands::keys::signing_key;
use crate::config::Source;
use crate::config::member::{MemberConfig, PartyAt};
use crate::config::rs::examples_left;
use crate::failure::{Failure, Outcome};

/// What a reload takes in.
const LIVE: [&str; 6] =
    ["rule", "groups", "ranking", "attestation.policy", "attestation.keys.objects", "attestation.rpki"];
/// How often what nobody needs is let go.
const SWEEP: Duration = Duration::from_secs(30);

/// What reaches the loop around the machine.
enum Event {
    Link(LinkEvent),
    Machine(Input),
    Ask(Question<MemberProxy>),
    Stop,
}

impl From<LinkEvent> for Event {
    fn from(event: LinkEvent) -> Self {
        Event::Link(event)
    }
}

impl From<PeerEvent> for Event {
    fn from(event: PeerEvent) -> Self {
        Event::Machine(Input::Router(event))
    }
}

impl From<Input> for Event {
    fn from(input: Input) -> Self {
        Event::Machine(input)
    }
}

impl From<Question<MemberProxy>> for Event {
    fn from(question: Question<MemberProxy>) -> Self {
        Event::Ask(question)
    }
}

/// Runs the proxy until SIGTERM.
pub async fn run(path: &Path) -> Outcome {
    let source = Source::read(path)?;
    let config = MemberConfig::parse(&source)?;
    if config.has_examples() {
        return Err(examples_left().into());
    }
    let clock = Clock::start();
    let identity = Identity::load(&source.beside(config.file.member.key.get_ref()))?;
    let (store, held) = stored::open(&source.beside(&config.file.member.state))?;
    let policy = Box::new(config.policy.clone());
    let signing = signing_key(&identity);
    let asn = *config.file.router.get_ref().asn.get_ref();
    let attestation = config.file.attestation.as_ref().map(Spanned::get_ref);
    let started = match attestation {
        Some(section) => Some(attested::start(section, asn, &source, &store, clock).await?),
        None => None,
    };
    let (attestation, attesting) = match started {
        Some((attestation, origins, last_time)) => (Some(attestation), Some((origins, last_time))),
        None => (None, None),
    };
    let machine = MemberProxy::new(machine_config(&config), policy, signing, &seed()?, &held, attestation, clock.now());

    let (events, inbox) = mpsc::channel(QUEUE);
    let links = Links::new(Limits::default());
    let mut signals = Signals::listen().map_err(|error| Failure::new(format!("no signals: {error}")))?;
    let router = start_router(&config, clock, events.clone()).await?;
    let exchange = &config.file.exchange;
    let mut connecting = Vec::new();
    for (number, party) in [(1, &exchange.party1), (2, &exchange.party2)] {
        connecting.push(links.connect(party.address.0.to_string(), &identity, gate(number, party), events.clone())?);
    }
    let (ready, is_ready) = not_ready_yet();
    let log = Events::default();
    let shown = Shown {
        events: events.clone(),
        links: links.clone(),
        log: log.clone(),
        store: Arc::clone(&store),
        router: router.view.clone(),
        parties: [exchange.party1.address.0.to_string(), exchange.party2.address.0.to_string()],
    };
    let _pages = serve(&config, &shown, &identity, is_ready).await?;

    let routes = router.commands.clone();
    let worker = Worker { links, store: Arc::clone(&store), events: events.clone(), routes, log };
    let mut running = worker.start(machine, clock, inbox);
    let watching = tokio::spawn(watch_ready(shown.clone(), ready));
    let origins = attesting.map(|(origins, last_time)| {
        attested::follow(&origins, events.clone());
        tokio::spawn(look_after(shown.clone(), clock, last_time));
        origins
    });
    info!(member = %config.file.member.name, slot = config.file.member.slot, "running");
    notify(Notice::Ready);

    loop {
        tokio::select! {
            asked = signals.next() => match asked {
                Asked::Reload => {
                    notify(Notice::Reloading(monotonic_micros()));
                    if let Err(failures) = reload(path, &source, &events, origins.as_ref()).await {
                        failures.0.iter().for_each(|failure| error!("reload: {failure}; nothing changed"));
                    }
                    notify(Notice::Ready);
                }
                Asked::Stop => break,
            },
            ended = &mut running => {
                watching.abort();
                return Err(match ended {
                    Ok(()) => Failure::new("the proxy stopped: what must survive could not be handed to the store"),
                    Err(_) => Failure::new("the proxy stopped: a bug, please report it with the lines above"),
                }.into());
            }
        }
    }
    notify(Notice::Stopping);
    info!("stopping");
    watching.abort();
    router.stop().await;
    let _ = events.send(Event::Stop).await;
    let _ = running.await;
    Ok(())
}

fn machine_config(config: &MemberConfig) -> MachineConfig {
    let (member, exchange) = (&config.file.member, &config.file.exchange);
    MachineConfig {
        exchange: exchange.name.get_ref().clone(),
        rs_asn: *exchange.asn.get_ref(),
        operator: exchange.operator.get_ref().0.0,
        slot: member.slot,
        select_best: config.file.select_best.is_none_or(|section| section.enabled),
        stale: Duration::from_secs(*member.stale_secs.get_ref()),
        settle: Duration::from_secs(*member.settle_secs.get_ref()),
        lab: member.lab,
        validates: false, // set with the attestation that `MemberProxy::new` gets
    }
}

fn gate(number: u32, party: &PartyAt) -> Gate {
    let pin = Pin { name: format!("party {number}"), role: Role::Party, id: number };
    Gate::new(Pins::new([(party.pin.get_ref().0, pin)]), Role::Party)
}

async fn start_router(config: &MemberConfig, clock: Clock, events: mpsc::Sender<Event>) -> Outcome<Peer> {
    let (router, exchange) = (config.file.router.get_ref(), &config.file.exchange);
    let mut session = router_session(*exchange.asn.get_ref(), router.router_id.get_ref().0, *router.asn.get_ref());
    session.hold_time = config.hold_time;
    session.passive = router.connect.is_none();
    let place = Place {
        listen: router.listen.as_ref().map(|address| address.0),
        connect: router.connect.as_ref().map(|address| address.0),
        only: router.address.as_ref().map(|address| address.0),
        options: TcpOptions { bind: None, ttl: router.ttl.map(u32::from) },
    };
    let listen = place.listen;
    let peer = Peer::start(session, place, clock, events).await.map_err(|error| {
        let what = match listen {
            Some(address) => format!("cannot wait for the router at {address}"),
            None => "cannot start the router's session".to_owned(),
        };
        let failure = Failure::system(what, &error);
        match error.kind() {
            std::io::ErrorKind::PermissionDenied => {
                failure.help("ports below 1024 need CAP_NET_BIND_SERVICE (the systemd unit has it), or use port 1790")
            }
            _ => failure,
        }
    })?;
    if let Some(address) = peer.address {
        info!(%address, "waiting for the router");
    }
    Ok(peer)
}

/// Takes in what may change while the proxy runs: the policy.
async fn reload(path: &Path, before: &Source, events: &mpsc::Sender<Event>, origins: Option<&Origins>) -> Outcome {
    let source = Source::read(path)?;
    let config = MemberConfig::parse(&source)?;
    warn_of_restart(before, &source, &LIVE);
    let _ = events.send(Event::Machine(Input::Policy(Box::new(config.policy)))).await;
    if let (Some(origins), Some(section)) = (origins, config.file.attestation.as_ref().map(Spanned::get_ref)) {
        origins.look(attested::wanted(section, &source));
        let _ = events.send(Event::Machine(Input::AttestationPolicy(section.policy.policy()))).await;
    }
    info!("policy read again");
    Ok(())
}

/// Lets go of what nobody needs, and writes down what the clock shows, as long as the proxy runs.
async fn look_after(shown: Shown, clock: Clock, mut last_time: u64) {
    loop {
        tokio::time::sleep(SWEEP).await;
        last_time = last_time.max(clock.now().unix.secs());
        let _ = shown.store.submit(vec![time_shown(last_time)], Box::new(|| ()));
        let swept = ask(&shown.events, MemberProxy::sweep).await;
        if swept.is_none() {
            return;
        }
    }
}

/// What the loop around the machine acts with.
struct Worker {
    links: Links,
    store: Arc<FileStore>,
    events: mpsc::Sender<Event>,
    routes: mpsc::UnboundedSender<Command>,
    log: Events,
}

impl Worker {
    /// The machine gets a thread of its own: sharing keys among thousands of slots takes its time.
    fn start(self, machine: MemberProxy, clock: Clock, inbox: mpsc::Receiver<Event>) -> tokio::task::JoinHandle<()> {
        let handle = tokio::runtime::Handle::current();
        tokio::task::spawn_blocking(move || {
            let failed = std::cell::Cell::new(false);
            let told = |event| if failed.get() { Told::Stop } else { told(event) };
            let act = |output| {
                if let Err(error) = self.act(output) {
                    error!("{error}");
                    failed.set(true);
                    let _ = self.events.try_send(Event::Stop);
                }
            };
            drop(handle.block_on(drive(machine, clock, inbox, told, act)));
        })
    }

    fn act(&self, output: Output) -> Result<(), StoreError> {
        match output {
            Output::Send { link, frame } => self.links.send(link, frame),
            Output::Close { link, reason } => self.links.close(link, &reason),
            Output::Persist { id, changes } => {
                stored::submit(&self.store, changes, self.when_durable(Input::Persisted(id)))?;
            }
            Output::Install { prefix, attributes } => {
                let _ = self.routes.send(Command::Route { prefix, attributes });
            }
            Output::Event(event) => {
                note(&event);
                self.log.note(&event);
            }
            Output::Job(job) => attested::work(job, &self.events),
            Output::PersistSignatures { id, public, limit } => {
                let durable = self.when_durable(Input::SignaturesPersisted(id));
                self.store.submit(vec![count(public, limit)], durable)?;
            }
            Output::AttestationEvent(event) => {
                attested::note(&event).iter().for_each(|noted| self.log.note(noted));
            }
        }
        Ok(())
    }

    /// Gives the machine `input` once a write of the store is durable.
    fn when_durable(&self, input: Input) -> Box<dyn FnOnce() + Send> {
        let events = self.events.clone();
        Box::new(move || drop(events.blocking_send(Event::Machine(input))))
    }
}

fn told(event: Event) -> Told<MemberProxy> {
    Told::Input(match event {
        Event::Link(LinkEvent::Up { link, pin, .. }) => {
            Input::LinkUp { link, party: if pin.id == 1 { Number::One } else { Number::Two } }
        }
        Event::Link(LinkEvent::Frame { link, bytes, .. }) => Input::Frame { link, bytes },
        Event::Link(LinkEvent::Down { link, .. }) => Input::LinkDown { link },
        Event::Machine(input) => input,
        Event::Ask(question) => return Told::Asked(question),
        Event::Stop => return Told::Stop,
    })
}

fn note(event: &MemberEvent) {
    match event {
        MemberEvent::Alarm(alarm) => {
            let suspects: Vec<String> = alarm.suspects.iter().map(ToString::to_string).collect();
            error!(what = %alarm.what, route = alarm.handle, suspects = suspects.join(", "), "ALARM");
        }
        MemberEvent::SessionDown => warn!("the session with the parties ended; what was delivered is kept for now"),
        MemberEvent::Synced { objects, own } => info!(objects, own, "both parties told all that lives"),
        MemberEvent::Refused { version, reason } => warn!(version, %reason, "a party refused an own object"),
        MemberEvent::Column { from, to, objects } => info!(from, to, objects, "own objects extended to new members"),
        MemberEvent::NotAMember { slot } => error!(slot, "the member set does not list this key in this slot"),
        MemberEvent::OutcomeOverdue { batch } => warn!(batch, "no result of Select-Best; our own order decides"),
        MemberEvent::Stale { routes } => warn!(routes, "the parties were away too long; their routes are withdrawn"),
    }
}

/// Says when the proxy does its work, and when not, why not.
async fn watch_ready(shown: Shown, ready: Ready) {
    let health = shown.store.health();
    while let Some(status) = ask(&shown.events, |proxy: &mut MemberProxy| proxy.status()).await {
        let failing = match &*health.borrow() {
            Health::Failing(why) => Some(why.clone()),
            Health::Good => None,
        };
        let away = status.parties.iter().position(|up| !up).map(|index| format!("party {} is not there", index + 1));
        let syncing = (!status.synced).then(|| "the parties have not told all yet".to_owned());
        let router = (shown.router.show()["up"] != json!(true)).then(|| "the router has no session".to_owned());
        let now = failing.or(away).or(syncing).or(router).map_or(Ok(()), Err);
        ready.send_if_modified(|before| {
            let changed = *before != now;
            *before = now;
            changed
        });
        tokio::time::sleep(READY_EVERY).await;
    }
}

/// What views are made from.
#[derive(Clone)]
struct Shown {
    events: mpsc::Sender<Event>,
    links: Links,
    log: Events,
    store: Arc<FileStore>,
    router: PeerView,
    parties: [String; 2],
}

impl Shown {
    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut MemberProxy) -> T + Send + 'static,
    ) -> Result<T, ViewError> {
        ask(&self.events, question).await.ok_or(ViewError::Unavailable)
    }

    async fn status(&self) -> Result<Value, ViewError> {
        let asked = |proxy: &mut MemberProxy| (proxy.status(), proxy.attestation_status());
        let (status, attestation) = self.ask(asked).await?;
        let mut value = crate::output::versioned(json!(status));
        if let Some(attestation) = attestation {
            value["attestation"] = json!(attestation);
        }
        value["router"] = self.router.show()["state"].clone();
        value["store"] = match &*self.store.health().borrow() {
            Health::Good => json!("good"),
            Health::Failing(why) => json!(why),
        };
        Ok(value)
    }

    async fn routes(&self, most: usize) -> Result<Value, ViewError> {
        let installed = self.ask(move |proxy| {
            let route = |(prefix, slot, attributes): (Prefix, u32, &wayleave_bgp::Attributes)| {
                let next_hop = match attributes.ipv4_next_hop() {
                    Some(hop) if prefix.address().is_ipv4() => Some(hop.to_string()),
                    _ => attributes.ipv6_next_hop().map(|hop| hop.global.to_string()),
                };
                let path: Vec<u32> = attributes.as_path().asns().map(|asn| asn.0).collect();
                json!({ "prefix": prefix, "announcer": slot, "next_hop": next_hop, "as_path": path })
            };
            proxy.installed().take(most.saturating_add(1)).map(route).collect::<Vec<_>>()
        });
        let mut routes = installed.await?;
        let more = routes.len() > most;
        routes.truncate(most);
        Ok(json!({ "version": 1, "routes": routes, "more": more }))
    }

    async fn peers(&self) -> Result<Value, ViewError> {
        let up = self.ask(|proxy| proxy.status().parties).await?;
        let party = |index: usize| json!({ "peer": format!("party {}", index + 1), "up": up[index], "address": self.parties[index] });
        Ok(json!({ "version": 1, "peers": [party(0), party(1), self.router.show()] }))
    }

    async fn why(&self, prefix: Option<&String>) -> Result<Value, ViewError> {
        let prefix = prefix.ok_or_else(|| ViewError::Request("say ?prefix=ADDRESS/LENGTH".into()))?;
        let prefix: Prefix = prefix.parse().map_err(|error| ViewError::Request(format!("{error}")))?;
        let why = self.ask(move |proxy| proxy.why(prefix)).await?;
        Ok(crate::output::versioned(json!(why)))
    }
}

async fn serve(
    config: &MemberConfig,
    shown: &Shown,
    identity: &Identity,
    is_ready: watch::Receiver<Result<(), String>>,
) -> Outcome<Option<Serving>> {
    let Some(status) = &config.file.status else { return Ok(None) };
    let address = status.listen.get_ref().0;
    let exchange = &config.file.exchange;
    let sign = crate::config::PublicKey(signing_key(identity).verifying_key()).to_string();
    let keys = json!({
        "version": 1,
        "keys": [
            { "of": "this member", "tls": identity.fingerprint().to_string(), "sign": sign, "reload": "restart" },
            { "of": "party 1", "tls": exchange.party1.pin.get_ref().0.to_string(), "reload": "restart" },
            { "of": "party 2", "tls": exchange.party2.pin.get_ref().0.to_string(), "reload": "restart" },
            { "of": "the operator", "sign": exchange.operator.get_ref().0.to_string(), "reload": "restart" },
        ],
    });
    let of = || shown.clone();
    let (a, b, c, d, e, f) = (of(), of(), of(), of(), of(), of());
    let pages = Pages::new("member", is_ready)
        .view("/api/v1/status", move |_| {
            let shown = a.clone();
            async move { shown.status().await }
        })
        .view("/api/v1/routes", move |parameters| {
            let shown = b.clone();
            async move { shown.routes(most_of(&parameters)?).await }
        })
        .view("/api/v1/peers", move |_| {
            let shown = c.clone();
            async move { shown.peers().await }
        })
        .view("/api/v1/why", move |parameters| {
            let shown = d.clone();
            async move { shown.why(parameters.get("prefix")).await }
        })
        .view("/api/v1/events", move |_| {
            let list = e.log.list();
            async move { Ok(list) }
        })
        .view("/api/v1/keys", move |_| {
            let keys = keys.clone();
            async move { Ok(keys) }
        })
        .metrics(move || {
            let shown = f.clone();
            let asked = |proxy: &mut MemberProxy| (proxy.status(), proxy.attestation_status());
            async move {
                let (status, attestation) = shown.ask(asked).await.ok()?;
                let mut all = metrics(&status, &shown);
                all.extend(attestation.iter().flat_map(attested::metrics));
                Some(all)
            }
        });
    let serving = pages.serve(address).await;
    let serving =
        serving.map_err(|error| Failure::system(format!("cannot serve the status page at {address}"), &error))?;
    info!(address = %serving.address, "status page");
    Ok(Some(serving))
}

fn metrics(status: &MemberStatus, shown: &Shown) -> Vec<Metric> {
    let counters = &status.counters;
    let router = shown.router.show();
    let of_router = |name: &str| router["counters"][name].as_u64().unwrap_or(0);
    let refused = shown.links.counters().refused.load(Ordering::Relaxed);
    vec![
        Metric::gauge("party1_up", "Whether party 1's link is up", f64::from(status.parties[0])),
        Metric::gauge("party2_up", "Whether party 2's link is up", f64::from(status.parties[1])),
        Metric::gauge("router_up", "Whether the router's session is up", f64::from(router["up"] == json!(true))),
        Metric::gauge("router_routes", "Routes that the router announces", status.router_routes as f64),
        Metric::gauge("objects", "Route objects known, sealed ones included", status.objects as f64),
        Metric::gauge("installed", "Prefixes installed in the router", status.installed as f64),
        Metric::gauge("unconfirmed", "Changes that the parties have not applied yet", status.unconfirmed as f64),
        Metric::counter("announcements", "Route objects announced", counters.announcements),
        Metric::counter("withdrawals", "Withdrawals sent", counters.withdrawals),
        Metric::counter("objects_refused", "Own objects that a party refused", counters.refused),
        Metric::counter("delivered", "Route objects delivered", counters.delivered),
        Metric::counter("opened", "Route objects opened", counters.opened),
        Metric::counter("sealed", "Route objects not exported to this member", counters.sealed),
        Metric::counter("rankings", "Rankings sent", counters.rankings),
        Metric::counter("outcomes", "Results of Select-Best combined", counters.outcomes),
        Metric::counter("alarms", "Alarms raised", counters.alarms),
        Metric::counter("bad_frames", "Frames that cannot be", counters.bad_frames),
        Metric::counter("frames_received", "Received in frames", counters.bytes_received).of("bytes"),
        Metric::counter("frames_sent", "Sent in frames", counters.bytes_sent).of("bytes"),
        Metric::counter("certificates_refused", "Parties refused for their certificate", refused),
        Metric::counter("router_malformed_updates", "Malformed UPDATEs (RFC 7606)", of_router("malformed_updates")),
        Metric::counter("router_sessions", "Times that the router's session came up", of_router("established")),
    ]
}

//! `run rs`: one party of the route server.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tracing::{error, info, warn};
use wayleave_route_server::directory::{MemberSet, SignedMemberSet};
use wayleave_route_server::party::{
    Number, Party, PartyConfig, PartyEvent, PartyInput, PartyOutput, PartyStatus, PeerId,
};
use wayleave_runtime::Clock;
use wayleave_runtime::drive::{Question, Told, ask, drive};
use wayleave_runtime::http::{Metric, Pages, Serving, ViewError};
use wayleave_runtime::identity::{Fingerprint, Identity};
use wayleave_runtime::links::{Limits, LinkEvent, Links};
use wayleave_runtime::signals::{Asked, Signals};
use wayleave_runtime::store::{FileStore, Health, Store};
use wayleave_runtime::systemd::{Notice, monotonic_micros, notify};
use wayleave_runtime::tls::{Gate, Pin, Pins, Role};

use super::{Events, QUEUE, READY_EVERY, Ready, most_of, not_ready_yet, seed, stored, warn_of_restart};
use crate::commands::keys::signing_key;
use crate::commands::members;
use crate::config::rs::{Recommendation, RsConfig, examples_left};
use crate::config::{PublicKey, Source};
use crate::failure::{Failure, Failures, Outcome};

/// What a reload takes in.
const LIVE: [&str; 3] = ["party.members", "party.recommendation", "link.pin"];

/// What reaches the loop around the machine.
enum Event {
    Link(LinkEvent),
    Durable(u64),
    Given(PartyInput),
    Ask(Question<Party>),
    Stop,
}

impl From<LinkEvent> for Event {
    fn from(event: LinkEvent) -> Self {
        Event::Link(event)
    }
}

impl From<Question<Party>> for Event {
    fn from(question: Question<Party>) -> Self {
        Event::Ask(question)
    }
}

/// Runs the party until SIGTERM.
pub async fn run(path: &Path) -> Outcome {
    let source = Source::read(path)?;
    let config = RsConfig::parse(&source)?;
    if config.has_examples() {
        return Err(examples_left().into());
    }
    let clock = Clock::start();
    let party = &config.party;
    let identity = Identity::load(&source.beside(party.key.get_ref()))?;
    let set_file = source.beside(party.members.get_ref());
    let (set_bytes, set) = read_set(&set_file, &config)?;
    let (store, held) = stored::open(&source.beside(&party.state))?;
    let mut machine =
        Party::new(machine_config(&config), &seed()?, &set_bytes, held, clock.now()).map_err(|error| {
            Failure::from_error(&error).help(format!("see {} and {}", path.display(), set_file.display()))
        })?;

    let (events, inbox) = mpsc::channel(QUEUE);
    let links = Links::new(Limits::default());
    let members = Gate::new(Pins::new(pins_of(&set)), Role::Member);
    let other = Gate::new(Pins::new([other_pin(&config)]), Role::Party);
    let mut signals = Signals::listen().map_err(|error| Failure::new(format!("no signals: {error}")))?;

    let recommended = read_recommendation(&config, &source, &set)?;
    wayleave_core::Machine::handle(&mut machine, PartyInput::Recommendation(recommended), clock.now());

    let cannot_listen = |what: &str, error: std::io::Error| Failure::system(format!("cannot listen {what}"), &error);
    let at = party.listen.0;
    let _members = links
        .listen(at, &identity, members.clone(), events.clone())
        .await
        .map_err(|error| cannot_listen(&format!("for members at {at}"), error))?;
    let link = config.link.get_ref();
    let mut between = (None, None);
    if let Some(at) = &link.listen {
        let listening = links.listen(at.0, &identity, other.clone(), events.clone()).await;
        between.0 = Some(listening.map_err(|error| cannot_listen(&format!("for the other party at {}", at.0), error))?);
    } else if let Some(at) = &link.connect {
        between.1 = Some(links.connect(at.0.to_string(), &identity, other.clone(), events.clone())?);
    }
    let (ready, is_ready) = not_ready_yet();
    let log = Events::default();
    let (set_now, set) = watch::channel(set);
    let shown = Shown {
        events: events.clone(),
        links: links.clone(),
        log: log.clone(),
        store: Arc::clone(&store),
        set,
        other: other.pins().clone(),
    };
    let _pages = serve(&config, &shown, &identity, is_ready).await?;

    let (pins, to) = (members.pins().clone(), events.clone());
    let worker =
        Worker { links, store: Arc::clone(&store), events: to, pins, log, set: set_now, config: path.to_owned() };
    let running = worker.start(machine, clock, inbox);
    let watching = tokio::spawn(watch_ready(events.clone(), store.health(), ready));
    info!(party = *party.number.get_ref(), members = %party.listen.0, "running");
    notify(Notice::Ready);

    let mut running = running;
    loop {
        tokio::select! {
            asked = signals.next() => match asked {
                Asked::Reload => {
                    notify(Notice::Reloading(monotonic_micros()));
                    if let Err(failures) = reload(path, &source, &events, &other).await {
                        failures.0.iter().for_each(|failure| error!("reload: {failure}; nothing changed"));
                    }
                    notify(Notice::Ready);
                }
                Asked::Stop => break,
            },
            ended = &mut running => {
                watching.abort();
                return Err(match ended {
                    Ok(()) => Failure::new("the party stopped: what must survive could not be handed to the store"),
                    Err(_) => Failure::new("the party stopped: a bug, please report it with the lines above"),
                }.into());
            }
        }
    }
    notify(Notice::Stopping);
    info!("stopping");
    watching.abort();
    let _ = events.send(Event::Stop).await;
    let _ = running.await;
    Ok(())
}

fn machine_config(config: &RsConfig) -> PartyConfig {
    let party = &config.party;
    PartyConfig {
        number: if *party.number.get_ref() == 1 { Number::One } else { Number::Two },
        exchange: party.exchange.get_ref().clone(),
        operator: party.operator.get_ref().0.0,
        tick: Duration::from_millis(*party.tick_ms.get_ref()),
        stale: Duration::from_secs(*party.stale_secs.get_ref()),
        rank_wait: Duration::from_millis(*party.rank_wait_ms.get_ref()),
        match_wait: Duration::from_secs(2),
    }
}

/// The member set's file: its bytes and the set, whose signature holds.
fn read_set(file: &PathBuf, config: &RsConfig) -> Outcome<(Vec<u8>, MemberSet)> {
    let signed = members::read(file)?;
    let unsigned = || {
        Failure::new(format!("{} is not signed by the operator of this configuration", file.display()))
            .help("`operator` must be the key that `wayleave members init` printed")
    };
    let set = signed.verify(&config.party.operator.get_ref().0.0).map_err(|_| unsigned())?.clone();
    let bytes = fs::read(file).map_err(|error| Failure::new(format!("{}: {error}", file.display())))?;
    Ok((bytes, set))
}

/// The exchange's recommendation by slot; empty if the configuration names none.
fn read_recommendation(config: &RsConfig, source: &Source, set: &MemberSet) -> Outcome<BTreeMap<u32, u8>> {
    let Some(file) = &config.party.recommendation else { return Ok(BTreeMap::new()) };
    Recommendation::read(&source.beside(file.get_ref()), set)
}

/// Writes the member set in force to its file if the file's is older, so that a restart begins with no member that left.
async fn keep_set(events: mpsc::Sender<Event>, config: PathBuf) {
    let Some(bytes) = ask(&events, |party: &mut Party| party.member_set_bytes()).await else { return };
    let written = tokio::task::spawn_blocking(move || write_newer_set(&config, &bytes)).await;
    match written {
        Ok(Ok(Some(number))) => info!(number, "member set written to its file"),
        Ok(Ok(None)) | Err(_) => {}
        Ok(Err(failures)) => {
            warn!(
                error = String::from(failures),
                "the member set in force is not in its file; copy it before a restart"
            );
        }
    }
}

/// Gives the number of the set if it was written.
fn write_newer_set(config: &Path, bytes: &[u8]) -> Outcome<Option<u64>> {
    let source = Source::read(config)?;
    let config = RsConfig::parse(&source)?;
    let file = source.beside(config.party.members.get_ref());
    let new = SignedMemberSet::decode(bytes).map_err(|error| Failure::from_error(&error))?;
    let new = new.verify(&config.party.operator.get_ref().0.0).map_err(|error| Failure::from_error(&error))?;
    let is_newer = !file.exists() || read_set(&file, &config)?.1.number < new.number;
    if is_newer {
        members::replace(&file, bytes)?;
    }
    Ok(is_newer.then_some(new.number))
}

fn pins_of(set: &MemberSet) -> Vec<(Fingerprint, Pin)> {
    let active = set.iter().filter(|(_, slot)| slot.active);
    active.map(|(id, slot)| (Fingerprint(slot.tls), Pin { name: slot.name.clone(), role: Role::Member, id })).collect()
}

fn other_pin(config: &RsConfig) -> (Fingerprint, Pin) {
    let id = if *config.party.number.get_ref() == 1 { 2 } else { 1 };
    (config.link.get_ref().pin.get_ref().0, Pin { name: format!("party {id}"), role: Role::Party, id })
}

/// Takes in what may change while the party runs: the member set, the recommendation, the other party's pin.
async fn reload(path: &Path, before: &Source, events: &mpsc::Sender<Event>, other: &Gate) -> Outcome {
    let source = Source::read(path)?;
    let config = RsConfig::parse(&source)?;
    let (bytes, set) = read_set(&source.beside(config.party.members.get_ref()), &config)?;
    let recommended = read_recommendation(&config, &source, &set)?;
    warn_of_restart(before, &source, &LIVE);
    other.pins().replace([other_pin(&config)]);
    let _ = events.send(Event::Given(PartyInput::Members(bytes))).await;
    // Also if it is empty: what the configuration no longer names is no longer in force.
    let _ = events.send(Event::Given(PartyInput::Recommendation(recommended))).await;
    info!(member_set = set.number, "configuration read again");
    Ok(())
}

/// What the loop around the machine acts with.
struct Worker {
    links: Links,
    store: Arc<FileStore>,
    events: mpsc::Sender<Event>,
    pins: Pins,
    log: Events,
    set: watch::Sender<MemberSet>,
    /// The configuration's file, which says where the member set lies.
    config: PathBuf,
}

impl Worker {
    /// The machine gets a thread of its own: an evaluation may take longer than other tasks should wait.
    fn start(self, machine: Party, clock: Clock, inbox: mpsc::Receiver<Event>) -> tokio::task::JoinHandle<()> {
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

    fn act(&self, output: PartyOutput) -> Result<(), wayleave_runtime::store::StoreError> {
        match output {
            PartyOutput::Send { link, frame } => self.links.send(link, frame),
            PartyOutput::Close { link, reason } => self.links.close(link, &reason),
            PartyOutput::Persist { id, changes } => {
                let events = self.events.clone();
                let durable = move || drop(events.blocking_send(Event::Durable(id)));
                stored::submit(&self.store, changes, Box::new(durable))?;
            }
            PartyOutput::Members(set) => {
                info!(number = set.number, slots = set.slots.len(), "member set in force");
                self.pins.replace(pins_of(&set));
                self.set.send_replace(*set);
                tokio::spawn(keep_set(self.events.clone(), self.config.clone()));
            }
            PartyOutput::Event(event) => {
                note(&event);
                self.log.note(&event);
            }
        }
        Ok(())
    }
}

fn told(event: Event) -> Told<Party> {
    Told::Input(match event {
        Event::Link(LinkEvent::Up { link, pin, .. }) => {
            let peer = match pin.role {
                Role::Party => PeerId::Other,
                Role::Member => PeerId::Member(pin.id),
            };
            PartyInput::LinkUp { link, peer }
        }
        Event::Link(LinkEvent::Frame { link, bytes, .. }) => PartyInput::Frame { link, bytes },
        Event::Link(LinkEvent::Down { link, .. }) => PartyInput::LinkDown { link },
        Event::Durable(id) => PartyInput::Persisted(id),
        Event::Given(input) => input,
        Event::Ask(question) => return Told::Asked(question),
        Event::Stop => return Told::Stop,
    })
}

fn note(event: &PartyEvent) {
    match event {
        PartyEvent::Agreed { objects, dropped } => info!(objects, dropped, "the parties agree on what they store"),
        PartyEvent::OtherGone => warn!("the other party is gone; members keep what they have"),
        PartyEvent::BadFrame { slot, what } => warn!(?slot, %what, "a frame that cannot be; its sender erred"),
        PartyEvent::Refused { slot, version, reason } => info!(slot, version, %reason, "object refused"),
        PartyEvent::Mismatch { slot, version } => {
            warn!(slot, version, "the member gave the parties different objects, or one of them none; asked again");
        }
        PartyEvent::MissedRanking { slot } => info!(slot, "no ranking in time"),
        PartyEvent::Expired { slot } => info!(slot, "the member stayed away; its routes are gone"),
        PartyEvent::MembersRefused => error!("the member set was refused: not the operator's, or it does not follow"),
        PartyEvent::Engine { what } => error!(%what, "the other party's message does not fit the engine's state"),
    }
}

/// Says when the party does its work, and when not, why not.
async fn watch_ready(events: mpsc::Sender<Event>, health: watch::Receiver<Health>, ready: Ready) {
    while let Some(status) = ask(&events, |party: &mut Party| party.status()).await {
        let now = match (&*health.borrow(), status.other_party) {
            (Health::Failing(why), _) => Err(why.clone()),
            (Health::Good, false) => Err("the other party is not there".to_owned()),
            (Health::Good, true) => Ok(()),
        };
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
    set: watch::Receiver<MemberSet>,
    other: Pins,
}

impl Shown {
    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Party) -> T + Send + 'static,
    ) -> Result<T, ViewError> {
        ask(&self.events, question).await.ok_or(ViewError::Unavailable)
    }
}

async fn serve(
    config: &RsConfig,
    shown: &Shown,
    identity: &Identity,
    is_ready: watch::Receiver<Result<(), String>>,
) -> Outcome<Option<Serving>> {
    let Some(status) = &config.status else { return Ok(None) };
    let address = status.listen.get_ref().0;
    let shares = status.shares;
    let (own, sign) =
        (identity.fingerprint().to_string(), PublicKey(signing_key(identity).verifying_key()).to_string());
    let operator = config.party.operator.get_ref().0.to_string();
    let keys = move |shown: &Shown| {
        // As it is pinned now, which a reload may have changed.
        let others = shown.other.fingerprints();
        let other =
            others.iter().map(|tls| json!({ "of": "the other party", "tls": tls.to_string(), "reload": "SIGHUP" }));
        let own = json!({ "of": "this party", "tls": own, "sign": sign, "reload": "restart" });
        let operator = json!({ "of": "the operator", "sign": operator, "reload": "restart" });
        let all: Vec<Value> = std::iter::once(own).chain(other).chain([operator]).collect();
        json!({ "version": 1, "keys": all })
    };
    let of = || shown.clone();
    let (a, b, c, d, e, f) = (of(), of(), of(), of(), of(), of());
    let pages = Pages::new("rs", is_ready)
        .view("/api/v1/status", move |_| {
            let shown = a.clone();
            async move { Ok(status_view(shown.ask(|party| party.status()).await?, &shown)) }
        })
        .view("/api/v1/routes", move |parameters| {
            let shown = b.clone();
            async move {
                let most = most_of(&parameters)?;
                let mut routes = shown.ask(move |party| party.routes(most.saturating_add(1), shares)).await?;
                let more = routes.len() > most;
                routes.truncate(most);
                Ok(json!({ "version": 1, "routes": routes, "more": more }))
            }
        })
        .view("/api/v1/members", move |_| {
            let shown = c.clone();
            async move {
                let connected = shown.ask(|party| party.status().members).await?;
                let mut value = crate::output::versioned(members::describe(&shown.set.borrow()));
                for member in value["members"].as_array_mut().into_iter().flatten() {
                    let slot = member["slot"].as_u64().and_then(|slot| u32::try_from(slot).ok());
                    member["connected"] = json!(slot.is_some_and(|slot| connected.contains(&slot)));
                }
                Ok(value)
            }
        })
        .view("/api/v1/peers", move |_| {
            let shown = d.clone();
            async move {
                let status = shown.ask(|party| party.status()).await?;
                let other = json!({ "peer": "other party", "up": status.other_party });
                let members = status.members.iter().map(|slot| json!({ "peer": "member", "slot": slot, "up": true }));
                Ok(json!({ "version": 1, "peers": std::iter::once(other).chain(members).collect::<Vec<_>>() }))
            }
        })
        .view("/api/v1/events", {
            let log = shown.log.clone();
            move |_| {
                let list = log.list();
                async move { Ok(list) }
            }
        })
        .view("/api/v1/keys", move |_| {
            let keys = keys(&f);
            async move { Ok(keys) }
        })
        .metrics(move || {
            let shown = e.clone();
            async move { Some(metrics(&shown.ask(|party| party.status()).await.ok()?, &shown.links)) }
        });
    let serving = pages.serve(address).await;
    let serving =
        serving.map_err(|error| Failure::system(format!("cannot serve the status page at {address}"), &error))?;
    info!(address = %serving.address, "status page");
    Ok(Some(serving))
}

fn status_view(status: PartyStatus, shown: &Shown) -> Value {
    let mut value = crate::output::versioned(json!(status));
    value["store"] = match &*shown.store.health().borrow() {
        Health::Good => json!("good"),
        Health::Failing(why) => json!(why),
    };
    value["certificates_refused"] = json!(shown.links.counters().refused.load(Ordering::Relaxed));
    value
}

/// Totals that follow from public shape alone: no count by exporter and importer, no time.
fn metrics(status: &PartyStatus, links: &Links) -> Vec<Metric> {
    let counters = &status.counters;
    let link = links.counters();
    let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    vec![
        Metric::gauge("other_party_up", "Whether the other party is there and agrees", f64::from(status.other_party)),
        Metric::gauge("members_connected", "Members connected to both parties", status.members.len() as f64),
        Metric::gauge("objects", "Route objects stored", status.objects as f64),
        Metric::gauge("prefixes", "Prefixes with a live route", status.prefixes as f64),
        Metric::gauge("member_set_number", "Number of the member set in force", status.member_set as f64),
        Metric::counter("objects_taken", "Route objects taken", counters.objects),
        Metric::counter("objects_refused", "Route objects refused", counters.refused),
        Metric::counter("bad_frames", "Frames that cannot be", counters.bad_frames),
        Metric::counter("batches", "Batches delivered", counters.batches),
        Metric::counter("rounds", "Rounds of Select-Best finished", counters.rounds),
        Metric::counter("lanes", "Members times prefixes evaluated", counters.lanes),
        Metric::counter("rankings_missed", "Rankings that came too late", counters.missed_rankings),
        Metric::counter("engine_messages", "Messages of the engine sent", counters.engine_messages),
        Metric::counter("engine_sent", "Sent by the engine", counters.engine_bytes).of("bytes"),
        Metric::counter("frames_received", "Received in frames", counters.bytes_received).of("bytes"),
        Metric::counter("frames_sent", "Sent in frames", counters.bytes_sent).of("bytes"),
        Metric::counter("certificates_refused", "Connections refused for their certificate", read(&link.refused)),
        Metric::counter("links_failed", "Connections that failed before a certificate was judged", read(&link.failed)),
        Metric::counter("links_too_slow", "Links closed because the peer read too slowly", read(&link.too_slow)),
    ]
}

impl From<Failures> for String {
    fn from(failures: Failures) -> Self {
        failures.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use wayleave_crypto::secret::Secret;
    use wayleave_crypto::sign::SigningKey;

    use super::*;
    use crate::config::EXAMPLE_OPERATOR;

    /// A party's configuration beside a signed set of one member and a recommendation.
    fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("wayleave-rs-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder");
        let operator = SigningKey::from_seed(&Secret::new([7; 32]));
        let slot = wayleave_route_server::directory::Slot {
            active: true,
            asn: wayleave_core::Asn(64497),
            name: "alpha".to_owned(),
            addresses: vec!["192.0.2.1".parse().expect("an address")],
            tls: [1; 32],
            sign: SigningKey::from_seed(&Secret::new([8; 32])).verifying_key().to_bytes(),
            max_prefix: 0,
        };
        let set =
            MemberSet { exchange: "example-ix".to_owned(), number: 2, slots: vec![slot], attest: BTreeMap::new() };
        let signed = set.sign(&operator).expect("a sound set");
        let config =
            crate::commands::init::rs(1).replace(EXAMPLE_OPERATOR, &PublicKey(operator.verifying_key()).to_string());
        fs::write(folder.join("members"), signed.encode()).expect("written");
        fs::write(folder.join("recommendation.toml"), "[recommendation]\nalpha = 9\n").expect("written");
        fs::write(folder.join("party.toml"), config.replace("#recommendation", "recommendation")).expect("written");
        folder
    }

    #[tokio::test]
    async fn a_recommendation_that_the_configuration_no_longer_names_is_taken_back() {
        let folder = folder("reload");
        let path = folder.join("party.toml");
        let before = Source::read(&path).expect("a configuration");
        let config = RsConfig::parse(&before).expect("a sound one");
        let other = Gate::new(Pins::new([other_pin(&config)]), Role::Party);
        let (events, mut inbox) = mpsc::channel(8);
        let mut recommended = async || {
            reload(&path, &before, &events, &other).await.expect("read again");
            loop {
                match inbox.try_recv() {
                    Ok(Event::Given(PartyInput::Recommendation(recommended))) => return recommended,
                    Ok(_) => {}
                    Err(_) => panic!("no recommendation was given"),
                }
            }
        };
        assert_eq!(recommended().await, BTreeMap::from([(0, 9)]));
        let text = fs::read_to_string(&path).expect("the configuration");
        fs::write(&path, text.replace("\nrecommendation = ", "\n#recommendation = ")).expect("written");
        assert_eq!(recommended().await, BTreeMap::new());
        fs::remove_dir_all(folder).expect("removed");
    }
    #[test]
    fn a_newer_member_set_takes_the_place_of_the_files_and_an_older_does_not() {
        let folder = folder("newer");
        let (config, file) = (folder.join("party.toml"), folder.join("members"));
        let operator = SigningKey::from_seed(&Secret::new([7; 32]));
        let before = members::read(&file).expect("a set").verify(&operator.verifying_key()).expect("signed").clone();
        let signed =
            |number, key: &SigningKey| MemberSet { number, ..before.clone() }.sign(key).expect("a sound set").encode();
        assert_eq!(write_newer_set(&config, &signed(3, &operator)).expect("written"), Some(3));
        assert_eq!(fs::read(&file).expect("the file"), signed(3, &operator));
        for number in [2, 3] {
            assert_eq!(write_newer_set(&config, &signed(number, &operator)).expect("left"), None);
        }
        let stranger = SigningKey::from_seed(&Secret::new([9; 32]));
        assert!(write_newer_set(&config, &signed(4, &stranger)).is_err());
        assert_eq!(fs::read(&file).expect("the file"), signed(3, &operator));
        fs::remove_file(&file).expect("removed");
        assert_eq!(write_newer_set(&config, &signed(4, &operator)).expect("written"), Some(4));
        fs::remove_dir_all(folder).expect("removed");
    }
}

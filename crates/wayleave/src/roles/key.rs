//! `run key`: a key server. It answers holders of capabilities with their secrets by DNS, over UDP and TCP, takes their orders, and signs
//! the list of revocations that routers read.

pub mod api;
pub mod core;
pub mod dns;
mod holder_usage;
mod lessor;
mod listing;
pub mod operator;
mod parts;
pub mod quotas;
pub mod routers;
#[cfg(test)]
mod tests;
pub mod usage;
mod usage_metrics;
mod views;

#[cfg(test)]
pub use tests::metric_names;

use std::convert::Infallible;
use std::net::UdpSocket;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tracing::info;
use wayleave_control::capability::RouterServerInput;
use wayleave_runtime::Clock;
use wayleave_store::Store;

use self::api::RunningApi;
use self::api::counts::ApiCounts;
use self::core::{Core, lock};
use self::listing::{ListHandle, WrittenList};
use self::parts::{OwnRuntime, Parts, stopped};
use self::quotas::{QuotaTask, QuotaView};
use super::daemon::{Daemon, Role};
use crate::config::Source;
use crate::config::key::KeyFile;
use crate::config::rs::{StatusSection, examples_left};
use crate::failure::{Failure, Outcome};
use routers::Routers;
use views::{Connections, KeyView};

/// How often the database is looked at for what others wrote, and handles of the next epochs are made.
const FOLLOW: Duration = Duration::from_millis(200);

/// A running key server.
pub struct KeyRole {
    core: Arc<Mutex<Core>>,
    failures: mpsc::Receiver<Failure>,
    routers: Option<Routers>,
    view: KeyView,
    api: Option<RunningApi>,
    parts: Parts,
    _datagrams: dns::Datagrams,
    _lane: OwnRuntime,
}

impl Role for KeyRole {
    const NAME: &'static str = "key";
    const LIVE: &'static [&'static str] = &[
        "key.waypoint",
        "key.rule",
        "key.responses_per_second",
        "key.longest_interval",
        "key.max_staleness_secs",
        "key.router",
        "key.api.token",
        "key.api.requests_per_second",
        "key.api.url",
        "key.api.identity",
        "key.api.certificate",
        "key.api.private_key",
    ];
    type Config = KeyFile;
    type View = KeyView;
    type Event = Infallible;

    fn parse(source: &Source) -> Outcome<KeyFile> {
        KeyFile::parse(source)
    }

    fn status(config: &KeyFile) -> Option<&StatusSection> {
        config.status.as_ref()
    }

    async fn start(config: KeyFile, daemon: &Daemon) -> Outcome<Self> {
        let Daemon { clock, source, events: log, .. } = daemon;
        if !source.resolve(config.key.accounts.get_ref()).exists() {
            return Err(examples_left().into());
        }
        let (core, list_writer) = Core::open(&config, source, *clock, log.clone())?;
        let at = config.key.listen.get_ref().0;
        let failed = |error| Failure::system(format!("cannot listen for questions at {at}"), &error);
        let udp = UdpSocket::bind(at).map_err(failed)?;
        let address = udp.local_addr().map_err(failed)?;
        let tcp = TcpListener::bind(address).await.map_err(failed)?;
        info!(
            zone = %config.zone(), listen = %address, accounts = core.server.state().accounts(),
            number = core.server.state().number(), "answering questions"
        );
        let core = Arc::new(Mutex::new(core));
        let rates = core.lock().map(|core| core.server.state().shared_rates()).unwrap_or_default();
        let (to, failures) = mpsc::channel(1);
        let mut parts = Parts::default();
        // Look-ups by TCP and the API wait for locks and the disk; who leases rates must not.
        let lane = OwnRuntime::start("routers").map_err(|error| Failure::system("cannot start threads", &error))?;
        let begin = Routers::start(config.clone(), source.clone(), (Arc::clone(&core), rates), (*clock, log.clone()));
        let routers = lane.run(begin).await.map_err(|_| stopped("routers"))??;
        let store = routers.as_ref().map(|routers| routers.store.clone());
        let quotas = QuotaView::default();
        if let Some(store) = store.clone() {
            let of = (Arc::clone(&core), *clock, log.clone());
            parts.spawn("quotas", QuotaTask::new(store, of, Arc::clone(&quotas), to.clone()).run());
        }
        let of_holders = (Arc::clone(&core), store);
        let datagrams = dns::answer_datagrams(udp, of_holders.clone(), *clock, to.clone()).map_err(failed)?;
        let connections =
            Connections { dns: dns::connection_slots(), api: config.key.api.as_ref().map(|_| api::connection_slots()) };
        let slots = connections.dns.clone();
        parts.spawn("dns by TCP", dns::answer_connections(tcp, slots, of_holders, *clock, to.clone()));
        if let Some(writer) = list_writer {
            parts.spawn("list of revocations", writer.run(Arc::clone(&core), *clock));
        }
        let listeners = routers.as_ref().map(|routers| routers.running.events.clone());
        let clock = *clock;
        let changed = Arc::new(Notify::new());
        let (place, hint) = (config.database(source), Arc::clone(&changed));
        parts.spawn("hints of the database", async move {
            Store::listen(place, || hint.notify_one()).await;
            // A file tells nobody.
            std::future::pending::<()>().await;
        });
        parts.spawn("database", follow_database((Arc::clone(&core), changed), clock, listeners, to.clone()));
        let counts = config.key.api.as_ref().map(|_| Arc::new(ApiCounts::default()));
        let slots = connections.api.clone().unwrap_or_else(api::connection_slots);
        let view = KeyView::new(&core, &config, (routers.as_ref(), quotas), (counts.clone(), connections));
        let of_api = (Arc::clone(&core), view.clone());
        let counts = (slots, counts.unwrap_or_default());
        let api = RunningApi::start(&config, source, of_api, clock, counts, (to, &mut parts)).await?;
        Ok(Self { core, failures, routers, view, api, parts, _datagrams: datagrams, _lane: lane })
    }

    fn view(&self) -> KeyView {
        self.view.clone()
    }

    async fn reload(&mut self, config: KeyFile, source: &Source) -> Outcome {
        let waypoints = config.waypoints(source)?;
        self.api.as_ref().map_or(Ok(()), |api| api.configure(&config, source))?;
        {
            let mut core = lock(&self.core);
            core.configure(&config);
            let server = &mut core.server;
            server.reload(waypoints, config.policy(), config.responses_per_second());
            server.limit_intervals(config.longest_interval());
        }
        self.view.configure(&config);
        if let Some(routers) = &self.routers {
            let _ = routers.running.events.send(routers::Event::Own(routers::Own::Configure(Box::new(config)))).await; // fails if it has ended
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<Infallible, Failure> {
        let routers = async {
            match &mut self.routers {
                Some(routers) => routers.failed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // What a task reports comes before that it has ended.
            biased;
            failure = self.failures.recv() => match failure {
                Some(failure) => Err(failure),
                None => std::future::pending().await,
            },
            failure = routers => Err(failure),
            failure = self.parts.failed() => Err(failure),
        }
    }

    async fn stop(self) {
        let mut parts = self.parts;
        parts.end().await;
        if let Some(routers) = self.routers {
            routers.stop().await;
        }
    }
}

/// Takes over what others write to the database, and lets routers have what is new.
async fn follow_database(
    (core, changed): (Arc<Mutex<Core>>, Arc<Notify>),
    clock: Clock,
    listeners: Option<mpsc::Sender<routers::Event>>,
    failed: mpsc::Sender<Failure>,
) {
    let list = lock(&core).list();
    let (mut sent, mut rates) = (0, None);
    loop {
        // Whoever panicked with the server in hand may have left a change half done; the database is whole.
        let (following, now) = (Arc::clone(&core), clock.now());
        // It may wait for the database, which nobody else does here.
        let outcome = tokio::task::spawn_blocking(move || core::follow(&following, now)).await;
        let outcome =
            if core.is_poisoned() { Err(stopped("state")) } else { outcome.unwrap_or_else(|_| Err(stopped("state"))) };
        if let Err(failure) = outcome {
            let _ = failed.send(failure).await; // fails if the role has stopped
            return;
        }
        if let Some(listeners) = &listeners {
            let WrittenList { list, times, .. } = list.as_ref().map(ListHandle::written).unwrap_or_default();
            if let Some((number, octets)) = list.filter(|(number, _)| *number != sent) {
                sent = number;
                let event = routers::Event::Input(RouterServerInput::List { number, octets, times });
                let _ = listeners.send(event).await; // fails if the role has stopped
            }
            let (present, position, is_read) = {
                let core = lock(&core);
                let state = core.server.state();
                (state.shared_rates(), core.position(), core.outage().is_none())
            };
            if is_read {
                let event = routers::Event::Input(RouterServerInput::Read(position));
                let _ = listeners.send(event).await; // fails if the role has stopped
            }
            if rates.as_ref() != Some(&present) {
                rates = Some(present.clone());
                let _ = listeners.send(routers::Event::Own(routers::Own::Rates(present))).await; // fails if the role has stopped
            }
        }
        let _ = tokio::time::timeout(FOLLOW, changed.notified()).await; // nobody need tell
    }
}

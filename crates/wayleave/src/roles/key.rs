//! `run key`: a key server. It answers holders of capabilities with their secrets by DNS, over UDP and TCP; the writer also takes
//! their orders, and signs the list of revocations that routers read.

pub mod api;
mod compacting;
mod copies;
mod core;
pub mod dns;
mod fetching;
mod operator;
pub mod routers;
mod views;

use std::net::UdpSocket;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::info;

use self::api::RunningApi;
use self::api::counts::ApiCounts;
use self::core::{Core, lock};
use super::daemon::{Daemon, Role};
use crate::config::Source;
use crate::config::key::KeyFile;
use crate::config::rs::{StatusSection, examples_left};
use crate::failure::{Failure, Outcome};
use routers::Routers;
use views::{Connections, KeyView};

/// How often the records are looked at for what commands appended, and handles of the next epochs are made.
const FOLLOW: Duration = Duration::from_millis(200);

/// A running key server.
pub struct KeyRole {
    core: Arc<Mutex<Core>>,
    failures: mpsc::Receiver<Failure>,
    routers: Option<Routers>,
    view: KeyView,
    api: Option<RunningApi>,
    /// Ends its tasks when it is dropped.
    _tasks: JoinSet<()>,
    _datagrams: dns::Datagrams,
}

impl Role for KeyRole {
    const NAME: &'static str = "key";
    const LIVE: &'static [&'static str] = &[
        "key.waypoint",
        "key.rule",
        "key.responses_per_second",
        "key.router",
        "key.rate",
        "key.replica",
        "key.api.token",
        "key.api.requests_per_second",
        "key.api.url",
        "key.api.identity",
        "key.api.certificate",
        "key.api.private_key",
    ];
    type Config = KeyFile;
    type View = KeyView;
    type Event = Failure;

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
        let core = Core::open(&config, source, *clock, log.clone())?;
        let at = config.key.listen.get_ref().0;
        let failed = |error| Failure::system(format!("cannot listen for questions at {at}"), &error);
        let udp = UdpSocket::bind(at).map_err(failed)?;
        let address = udp.local_addr().map_err(failed)?;
        let tcp = TcpListener::bind(address).await.map_err(failed)?;
        info!(
            zone = %config.zone(), listen = %address, accounts = core.server.state().accounts(),
            number = core.server.state().number(), is_writer = config.key.writer_key.is_some(), "answering questions"
        );
        let routers = Routers::start(&config, source, *clock, log.clone()).await?;
        let core = Arc::new(Mutex::new(core));
        let (to, failures) = mpsc::channel(1);
        let mut tasks = JoinSet::new();
        let datagrams = dns::answer_datagrams(udp, Arc::clone(&core), *clock, to.clone()).map_err(failed)?;
        let connections =
            Connections { dns: dns::connection_slots(), api: config.key.api.as_ref().map(|_| api::connection_slots()) };
        let slots = connections.dns.clone();
        tasks.spawn(dns::answer_connections(tcp, slots, Arc::clone(&core), *clock, to.clone()));
        tasks.spawn(compacting::compact_when_due(config.clone(), source.clone(), *clock, log.clone()));
        let to_api = to.clone();
        let following =
            copies::follow(&config, source, Arc::clone(&core), (*clock, log.clone()), to.clone(), &mut tasks)?;
        let (followed, clock) = (Arc::clone(&core), *clock);
        let listeners = routers.as_ref().map(|routers| routers.running.events.clone());
        tasks.spawn(async move {
            let mut told = 0;
            loop {
                let (outcome, list) = {
                    let mut core = lock(&followed);
                    (core.follow(clock.now()), core.list())
                };
                if let Err(failure) = outcome {
                    let _ = to.send(failure).await; // fails if the role has stopped
                    return;
                }
                if let (Some((number, octets)), Some(listeners)) =
                    (list.filter(|(number, _)| *number != told), &listeners)
                {
                    told = number;
                    let _ = listeners.send(routers::Event::List(number, octets)).await; // fails if the role has stopped
                }
                if let Some(listeners) = &listeners {
                    let _ = listeners.try_send(routers::Event::Sweep); // with a full queue, at the next look
                }
                tokio::time::sleep(FOLLOW).await;
            }
        });
        let counts = config.key.api.as_ref().map(|_| Arc::new(ApiCounts::default()));
        let slots = connections.api.clone().unwrap_or_else(api::connection_slots);
        let view = KeyView::new(&core, &config, routers.as_ref(), following, (counts.clone(), connections));
        let of_api = (Arc::clone(&core), view.clone());
        let counts = (slots, counts.unwrap_or_default());
        let api = RunningApi::start(&config, source, of_api, clock, counts, to_api).await?;
        Ok(Self { core, failures, routers, view, api, _tasks: tasks, _datagrams: datagrams })
    }

    fn view(&self) -> KeyView {
        self.view.clone()
    }

    async fn reload(&mut self, config: KeyFile, source: &Source) -> Outcome {
        let waypoints = config.waypoints(source)?;
        self.api.as_ref().map_or(Ok(()), |api| api.configure(&config, source))?;
        lock(&self.core).server.reload(waypoints, config.policy(), config.responses_per_second());
        self.view.configure(&config);
        if let Some(routers) = &self.routers {
            let _ = routers.running.events.send(routers::Event::Configure(Box::new(config))).await; // fails if it has ended
        }
        Ok(())
    }

    async fn next(&mut self) -> Failure {
        let routers = async {
            match &mut self.routers {
                Some(routers) => routers.running.failed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            failure = self.failures.recv() => match failure {
                Some(failure) => failure,
                None => std::future::pending().await,
            },
            failure = routers => failure,
        }
    }

    async fn handle(&mut self, failure: Failure) -> Outcome {
        Err(failure.into())
    }

    async fn stop(self) {
        if let Some(routers) = self.routers {
            routers.running.stop(routers::Event::Stop).await;
        }
    }
}

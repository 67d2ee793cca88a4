//! `run rs`: one party of the route server.

mod config;
pub(super) mod io;
mod member_set;
mod replaced_links;
mod setup;
mod views;

use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tracing::info;
use wayleave_core::Machine;
use wayleave_route_server::directory::{Directory, MemberSet};
use wayleave_route_server::party::{Party, PartyInput};
use wayleave_runtime::identity::Identity;
use wayleave_runtime::links::{Connecting, Limits, Links, Listening};
use wayleave_runtime::process_metrics::Detail;
use wayleave_runtime::tls::{PinVerifier, Pins, Role as PeerRole};

use super::daemon::{Daemon, QUEUE, Role, Running, seed};
use super::link_driver::Driver;
use super::link_faults::LinkFaults;
use super::state;
use crate::config::Source;
use crate::config::rs::{RsConfig, StatusSection, examples_left};
use crate::failure::{Failure, Outcome};
pub use config::peer_endpoint;
use io::{Event, NoPeer, PartyIo};
use replaced_links::ReplacedLinks;
use views::{PartyView, Peer};

/// Accepts the certificate of the peer party alone.
pub fn peer_verifier(config: &RsConfig) -> PinVerifier {
    PinVerifier::new(Pins::new([config::peer_pin(config)]), PeerRole::Party)
}

/// How long after its start a party that listens expects the peer party.
const PEER_PATIENCE: Duration = Duration::from_secs(20);

/// A running party.
pub struct Rs {
    running: Running<Event>,
    view: PartyView,
    peer_party: Pins,
    identity: Identity,
    /// The configuration in force, and the file that it came from.
    config: (RsConfig, Source),
    _members: Listening,
    _peer_link: (Option<Listening>, Option<Connecting>),
}

impl Role for Rs {
    const NAME: &'static str = "rs";
    const LIVE: &'static [&'static str] = &["party.members", "party.recommendation", "link.pin"];
    const DETAIL: Detail = Detail::Coarse;
    type Config = RsConfig;
    type View = PartyView;
    type Event = Infallible;

    fn parse(source: &Source) -> Outcome<RsConfig> {
        RsConfig::parse(source)
    }

    fn status(config: &RsConfig) -> Option<&StatusSection> {
        config.status.as_ref()
    }

    async fn start(config: RsConfig, daemon: &Daemon) -> Outcome<Self> {
        if config.has_examples() {
            return Err(examples_left().into());
        }
        let Daemon { clock, source, path, events: log, .. } = daemon;
        let party = &config.party;
        config.check_trial(source)?;
        let identity = Identity::load(&source.resolve(party.key.get_ref()))?;
        let (octets, _) = member_set::read(&config, source)?;
        let (store, stored) = state::open(&source.resolve(party.state.get_ref()))?;
        let mut machine =
            Party::new(config.machine(&identity), &seed()?, &octets, stored, clock.now()).map_err(|error| {
                let help = config.start_help(&error, source);
                Failure::from_error(&error).help(help)
            })?;
        // The store may have a newer one than the file.
        let set = machine.members().clone();
        let recommendation = member_set::recommendation(&config, source, &set)?;
        machine.handle(PartyInput::Recommendation(recommendation), clock.now());

        let (events, inbox) = mpsc::channel(QUEUE);
        let links = Links::new(Limits::default());
        let members = PinVerifier::new(Pins::new(member_set::pins(&set)), PeerRole::Member);
        let peer_party = peer_verifier(&config);
        let cannot_listen = |who: &str, at, error| Failure::system(format!("cannot listen for {who} at {at}"), &error);
        let at = party.listen.get_ref().0;
        let listening = links.listen(at, &identity, members.clone(), events.clone()).await;
        let listening = listening.map_err(|error| cannot_listen("members", at, error))?;
        let mut peer_link = (None, None);
        if let Some(at) = &config.link.get_ref().listen {
            let link = links.listen(at.get_ref().0, &identity, peer_party.clone(), events.clone()).await;
            peer_link.0 = Some(link.map_err(|error| cannot_listen("the peer party", at.get_ref().0, error))?);
        } else if let Some(at) = &config.link.get_ref().connect {
            peer_link.1 = Some(links.connect(at.0.to_string(), &identity, peer_party.clone(), events.clone())?);
        }
        info!(party = *party.number.get_ref(), members = %party.listen.get_ref().0, member_set = set.number, "listening for members");

        let (set_in_force, set) = watch::channel(set);
        let faults = LinkFaults::default();
        let replaced_links = ReplacedLinks::default();
        let links_and_store = (&links, &store, &faults, &replaced_links);
        let peer = Peer {
            endpoint: config::peer_endpoint(&config, &identity),
            listening: peer_link.0.as_ref().map(|link| (link.address, link.refusal.clone())),
        };
        let view =
            PartyView::new(&config, &identity, links_and_store, set, (peer_party.pins(), peer), (&events, *clock));
        if let Some(at) = &config.link.get_ref().listen {
            tokio::spawn(miss_peer(config::no_peer(&config, at.get_ref().0), events.clone()));
        }
        let io = PartyIo {
            links,
            store,
            events: events.clone(),
            member_pins: members.pins().clone(),
            log: log.clone(),
            faults,
            replaced_links,
            member_links: HashMap::new(),
            peer: config::peer_endpoint(&config, &identity),
            peer_link: None,
            last_end: String::new(),
            set: set_in_force,
            configuration: path.clone(),
            setup: setup::start(events.clone())?,
        };
        let running = Running::start(machine, Driver(io), *clock, (events, inbox));
        let peer_party = peer_party.pins().clone();
        let config = (config, source.clone());
        Ok(Self { running, view, peer_party, identity, config, _members: listening, _peer_link: peer_link })
    }

    fn view(&self) -> PartyView {
        self.view.clone()
    }

    async fn reload(&mut self, config: RsConfig, source: &Source) -> Outcome {
        let events = &self.running.events;
        let reloaded = reload(&config, source, &self.identity, events, &self.peer_party, &self.view.set()).await;
        if reloaded.is_ok() {
            self.config = (config, source.clone());
        }
        reloaded
    }

    /// Who is a member does not wait for the rest of the configuration: a removal takes effect at once.
    async fn reload_without_configuration(&mut self) -> Outcome {
        let (config, source) = &self.config;
        reload_members(config, source, &self.identity, &self.running.events).await.map(drop)
    }

    async fn next(&mut self) -> Result<Infallible, Failure> {
        Err(self.running.failed().await)
    }

    async fn stop(self) {
        self.running.stop(Event::Stop).await;
    }
}

/// Says so when the peer party, which connects, has not done so for a while.
async fn miss_peer(words: String, events: mpsc::Sender<Event>) {
    tokio::time::sleep(PEER_PATIENCE).await;
    let _ = events.send(Event::Own(NoPeer(words))).await; // fails if the role has ended
}

/// Applies the member set, the recommendation and the peer party's pin. The member set counts whatever is wrong with the others.
async fn reload(
    config: &RsConfig,
    source: &Source,
    identity: &Identity,
    events: &mpsc::Sender<Event>,
    peer_party: &Pins,
    in_force: &MemberSet,
) -> Outcome {
    let in_file = reload_members(config, source, identity, events).await?;
    peer_party.replace([config::peer_pin(config)]);
    if in_file.set().number <= in_force.number {
        info!(
            number = in_force.number,
            "member set unchanged: the file has nothing newer than number {}", in_force.number
        );
    }
    // The file may be older than what the peer party has sent.
    let set = if in_file.set().number > in_force.number { in_file.set() } else { in_force };
    let recommendation = member_set::recommendation(config, source, set)?;
    // Also if it is empty: a recommendation that the configuration no longer names is withdrawn.
    let _ = events.send(Event::Input(PartyInput::Recommendation(recommendation))).await;
    Ok(())
}

async fn reload_members(
    config: &RsConfig,
    source: &Source,
    identity: &Identity,
    events: &mpsc::Sender<Event>,
) -> Outcome<Directory> {
    let (octets, in_file) = member_set::read(config, source)?;
    config.key_roles(identity)?.add_directory(&in_file)?;
    let _ = events.send(Event::Input(PartyInput::Keys(config.keys(identity)))).await;
    let _ = events.send(Event::Input(PartyInput::Members(octets))).await;
    Ok(in_file)
}

#[cfg(test)]
mod tests;

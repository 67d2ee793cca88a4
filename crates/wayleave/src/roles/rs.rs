//! `run rs`: one party of the route server.

mod config;
mod io;
mod member_set;
mod views;

use tokio::sync::{mpsc, watch};
use tracing::info;
use wayleave_core::Machine;
use wayleave_route_server::party::{Party, PartyInput};
use wayleave_runtime::identity::Identity;
use wayleave_runtime::links::{Connecting, Limits, Links, Listening};
use wayleave_runtime::tls::{PinVerifier, Pins, Role as PeerRole};

use super::daemon::{Daemon, QUEUE, Role, Running, seed};
use super::state;
use crate::config::Source;
use crate::config::rs::{RsConfig, StatusSection, examples_left};
use crate::failure::{Failure, Outcome};
use io::{Event, PartyIo};
use views::PartyView;

/// A running party.
pub struct Rs {
    running: Running<Event>,
    view: PartyView,
    peer_party: Pins,
    identity: Identity,
    _members: Listening,
    _peer_link: (Option<Listening>, Option<Connecting>),
}

impl Role for Rs {
    const NAME: &'static str = "rs";
    const LIVE: &'static [&'static str] = &["party.members", "party.recommendation", "link.pin"];
    type Config = RsConfig;
    type View = PartyView;
    type Event = Failure;

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
        let Daemon { clock, source, path, events: log } = daemon;
        let party = &config.party;
        let identity = Identity::load(&source.resolve(party.key.get_ref()))?;
        let (octets, in_file) = member_set::read(&config, source)?;
        let recommendation = member_set::recommendation(&config, source, in_file.set())?;
        let (store, stored) = state::open(&source.resolve(&party.state))?;
        let mut machine = Party::new(config::machine(&config, &identity), &seed()?, &octets, stored, clock.now())
            .map_err(|error| {
                let set = source.resolve(party.members.get_ref());
                Failure::from_error(&error).help(format!("see {} and {}", path.display(), set.display()))
            })?;
        machine.handle(PartyInput::Recommendation(recommendation), clock.now());
        // The store may have a newer one than the file.
        let set = machine.members().clone();

        let (events, inbox) = mpsc::channel(QUEUE);
        let links = Links::new(Limits::default());
        let members = PinVerifier::new(Pins::new(member_set::pins(&set)), PeerRole::Member);
        let peer_party = PinVerifier::new(Pins::new([config::peer_pin(&config)]), PeerRole::Party);
        let cannot_listen = |who: &str, at, error| Failure::system(format!("cannot listen for {who} at {at}"), &error);
        let at = party.listen.0;
        let listening = links.listen(at, &identity, members.clone(), events.clone()).await;
        let listening = listening.map_err(|error| cannot_listen("members", at, error))?;
        let mut peer_link = (None, None);
        if let Some(at) = &config.link.get_ref().listen {
            let link = links.listen(at.0, &identity, peer_party.clone(), events.clone()).await;
            peer_link.0 = Some(link.map_err(|error| cannot_listen("the peer party", at.0, error))?);
        } else if let Some(at) = &config.link.get_ref().connect {
            peer_link.1 = Some(links.connect(at.0.to_string(), &identity, peer_party.clone(), events.clone())?);
        }
        info!(party = *party.number.get_ref(), members = %party.listen.0, member_set = set.number, "listening for members");

        let (set_in_force, set) = watch::channel(set);
        let view = PartyView::new(&config, &identity, (&links, &store), set, peer_party.pins(), &events);
        let io = PartyIo {
            links,
            store,
            events: events.clone(),
            member_pins: members.pins().clone(),
            log: log.clone(),
            set: set_in_force,
            configuration: path.clone(),
        };
        let running = Running::start(machine, io, *clock, (events, inbox));
        let peer_party = peer_party.pins().clone();
        Ok(Self { running, view, peer_party, identity, _members: listening, _peer_link: peer_link })
    }

    fn view(&self) -> PartyView {
        self.view.clone()
    }

    async fn reload(&mut self, config: RsConfig, source: &Source) -> Outcome {
        reload(&config, source, &self.identity, &self.running.events, &self.peer_party).await
    }

    async fn next(&mut self) -> Failure {
        self.running.failed().await
    }

    async fn handle(&mut self, failure: Failure) -> Outcome {
        Err(failure.into())
    }

    async fn stop(self) {
        self.running.stop(Event::Stop).await;
    }
}

/// Applies the member set, the recommendation and the peer party's pin.
async fn reload(
    config: &RsConfig,
    source: &Source,
    identity: &Identity,
    events: &mpsc::Sender<Event>,
    peer_party: &Pins,
) -> Outcome {
    let (octets, in_file) = member_set::read(config, source)?;
    config.key_roles(identity)?.add_directory(&in_file)?;
    let recommendation = member_set::recommendation(config, source, in_file.set())?;
    peer_party.replace([config::peer_pin(config)]);
    let _ = events.send(Event::Input(PartyInput::Keys(config.keys(identity)))).await;
    let _ = events.send(Event::Input(PartyInput::Members(octets))).await;
    // Also if it is empty: a recommendation that the configuration no longer names is withdrawn.
    let _ = events.send(Event::Input(PartyInput::Recommendation(recommendation))).await;
    Ok(())
}

#[cfg(test)]
mod tests;

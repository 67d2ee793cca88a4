//! `run member`: a member's proxy between its own router and the two parties.

mod birdwatcher;
mod config;
mod data;
mod differences;
pub(super) mod io;
mod listing;
mod views;

use std::collections::HashMap;
use std::convert::Infallible;

use serde_json::Value;
use tokio::sync::{mpsc, watch};
use toml::Spanned;
use tracing::{info, warn};
use wayleave_member::{Input, MemberProxy};
use wayleave_route_server::key_roles::KeyRoles;
use wayleave_route_server::member::check_store;
use wayleave_runtime::identity::Identity;
use wayleave_runtime::links::{Connecting, Limits, Links};

use super::attestation;
use super::bgp_peer::Peer;
use super::daemon::{Daemon, QUEUE, Role, Running, seed};
use super::link_driver::Driver;
use super::link_faults::{LinkEndpoint, LinkFaults};
use super::origins::Origins;
use super::origins::rov::{self, PlainOrigins};
use super::state;
use crate::config::Source;
use crate::config::member::{MemberConfig, PartyAt, is_trial};
use crate::config::named_peers::NamedPeer;
use crate::config::rs::{StatusSection, examples_left};
use crate::failure::{Failure, Outcome};
use crate::key_files::signing_key;
pub use config::verifier as party_verifier;
use data::DataFile;
use io::{Event, MemberIo, NamedPeers};
use views::MemberView;

/// Both parties in the words of the configuration.
pub fn party_endpoints(config: &MemberConfig, identity: &Identity) -> [LinkEndpoint; 2] {
    config::labels(config, identity).parties
}

/// A running member's proxy.
pub struct MemberRole {
    running: Running<Event>,
    view: MemberView,
    router: Peer,
    /// What the rules name, for the machine's loop.
    named: watch::Sender<Vec<NamedPeer>>,
    /// With [attestation]: what is known of origins.
    origins: Option<Origins>,
    /// Without: what the RPKI says of origins.
    rpki: Option<PlainOrigins>,
    /// The exchange's data.
    data: DataFile,
    _parties: [Connecting; 2],
}

impl Role for MemberRole {
    const NAME: &'static str = "member";
    const LIVE: &'static [&'static str] = &[
        "rule",
        "groups",
        "ranking",
        "communities",
        "member.new_members",
        "member.known_slots",
        "member.released",
        "attestation.policy",
        "attestation.keys.objects",
        "attestation.rpki",
        "rpki",
        "data",
    ];
    type Config = MemberConfig;
    type View = MemberView;
    type Event = Infallible;

    fn parse(source: &Source) -> Outcome<MemberConfig> {
        MemberConfig::parse(source)
    }

    fn status(config: &MemberConfig) -> Option<&StatusSection> {
        config.file.status.as_ref()
    }

    async fn start(config: MemberConfig, daemon: &Daemon) -> Outcome<Self> {
        if config.has_examples() {
            return Err(examples_left().into());
        }
        let Daemon { clock, source, events: log, .. } = daemon;
        let (file, clock) = (&config.file, *clock);
        let identity = Identity::load(&source.resolve(file.member.key.get_ref()))?;
        let (store, stored) = state::open(&source.resolve(file.member.state.get_ref()))?;
        check_store(&stored).map_err(|error| Failure::from_error(&error))?;
        let asn = *file.router.get_ref().asn.get_ref();
        let started = match file.attestation.as_ref().map(Spanned::get_ref) {
            Some(section) => Some(attestation::start(section, asn, source, &store, clock).await?),
            None => None,
        };
        let (attestation, following) = started.unzip();
        let has_few_time_keys =
            attestation.as_ref().is_some_and(|attestation| attestation::has_few_time_keys(&attestation.key_ring));
        let attest = attestation.iter().flat_map(|attestation| &attestation.key_ring.pairs);
        let attest: Vec<[u8; 32]> = attest.map(|pair| pair.leaf_key().key).collect();
        let keys = config.keys(&identity, &attest);
        KeyRoles::of(keys.iter().copied())?;
        let exchange = file.exchange.name.get_ref();
        if is_trial(exchange) {
            warn!(
                "`{exchange}` is a trial: one person has the keys of both parties, and can read this member's policy"
            );
        }
        let (policy, signing) = (Box::new(config.policy.clone()), signing_key(&identity));
        let settings = config::machine(&config, keys);
        let machine = MemberProxy::new(settings, policy, signing, &seed()?, &stored, attestation, clock.now());

        let rpki = match (&following, config.file.rpki()) {
            (Some(_), _) => None,
            (None, section) => {
                let sources = section.map(|section| section.data_sources(source)).transpose()?.unwrap_or_default();
                Some(PlainOrigins::follow(sources).await)
            }
        };
        let known = following.as_ref().map(|(origins, _)| &origins.data).or(rpki.as_ref().map(|rpki| &rpki.data));
        let known = known.cloned().unwrap_or_else(|| watch::channel(rov::OriginData::default()).1);

        let (events, inbox) = mpsc::channel(QUEUE);
        // Before the first route.
        let first = known.borrow().records.clone();
        let _ = events.send(Event::Input(Input::Origins(first.clone()))).await; // the inbox is there
        rov::forward(known.clone(), first, events.clone(), Input::Origins);
        let links = Links::new(Limits::default());
        let router = config::start_router(&config, source, clock, events.clone()).await?;
        let connect = |number, party: &PartyAt| {
            links.connect(party.address.0.to_string(), &identity, config::verifier(number, party), events.clone())
        };
        let parties = [connect(1, &file.exchange.party1)?, connect(2, &file.exchange.party2)?];
        let faults = LinkFaults::default();
        let (named, rules) = watch::channel(config.file.named_peers());
        let of_data = config.file.data.as_ref().map(|section| source.resolve(section.file.get_ref()));
        let data = DataFile::follow(of_data, events.clone());
        let of_task = (&events, known, rules.clone(), data.state.clone());
        let view = MemberView::new(&config, &identity, (&links, &store), (&router, &faults), of_task);
        let exchange = config::labels(&config, &identity);
        let io = MemberIo {
            links,
            faults,
            exchange,
            up: HashMap::new(),
            last_end: String::new(),
            store: store.clone(),
            events: events.clone(),
            routes: router.routes.clone(),
            router: router.name.clone(),
            log: log.clone(),
            named: NamedPeers::new(rules),
        };
        let origins = following.map(|(origins, last_time)| {
            attestation::follow(&origins, events.clone(), Input::View);
            if let Some(section) = file.attestation.as_ref().filter(|_| has_few_time_keys) {
                let kept_otherwise = section.get_ref().keys.is_clock_kept_otherwise();
                attestation::watch_clock(kept_otherwise, events.clone(), Input::ClockSynchronised);
            }
            tokio::spawn(attestation::maintain(events.clone(), MemberProxy::sweep, (store, clock), last_time));
            origins
        });
        let running = Running::start(machine, Driver(io), clock, (events, inbox));
        info!(member = %file.member.name.get_ref(), slot = *file.member.slot.get_ref(), "connecting to both parties");
        Ok(Self { running, view, router, named, origins, rpki, data, _parties: parties })
    }

    fn view(&self) -> MemberView {
        self.view.clone()
    }

    /// Applies the policy, and what is known of origins.
    async fn reload(&mut self, config: MemberConfig, source: &Source) -> Outcome {
        let events = &self.running.events;
        self.named.send_replace(config.file.named_peers());
        let _ = events.send(Event::Input(Input::Policy(Box::new(config.policy)))).await;
        if let (Some(origins), Some(section)) = (&self.origins, &config.file.attestation) {
            origins.follow_other(attestation::origin_sources(section.get_ref(), source));
            let _ = events.send(Event::Input(Input::AttestationPolicy(section.get_ref().policy.policy()))).await;
        }
        self.data.follow_other(config.file.data.as_ref().map(|section| source.resolve(section.file.get_ref())));
        if let Some(rpki) = &self.rpki {
            // Also of an [attestation] that counts after a restart only.
            let section = config.file.rpki();
            rpki.follow_other(section.map(|section| section.data_sources(source)).transpose()?.unwrap_or_default());
        }
        Ok(())
    }

    async fn differences(&self, config: MemberConfig) -> Option<Value> {
        differences::differences(&self.running.events, config.policy).await
    }

    async fn next(&mut self) -> Result<Infallible, Failure> {
        Err(self.running.failed().await)
    }

    async fn stop(self) {
        self.router.stop().await;
        self.running.stop(Event::Stop).await;
    }
}

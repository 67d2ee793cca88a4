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
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::{mpsc, watch};
use toml::Spanned;
use tracing::{info, warn};
use wayleave_member::{AttestationConfig, Input, MemberProxy};
use wayleave_route_server::key_roles::KeyRoles;
use wayleave_route_server::member::check_store;
use wayleave_route_server::party::StoredRecord;
use wayleave_route_server::policy::Policy;
use wayleave_runtime::identity::Identity;
use wayleave_runtime::links::{Connecting, Limits, Links};
use wayleave_runtime::store::FileStore;

use super::attestation;
use super::bgp_peer::Peer;
use super::daemon::{Comparison, Daemon, QUEUE, Role, Running, seed};
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
use views::{MemberView, Watched};

/// Both parties in the words of the configuration.
pub fn party_endpoints(config: &MemberConfig, identity: &Identity, pair: Option<&str>) -> [LinkEndpoint; 2] {
    config::labels(config, identity, pair).parties
}

/// What a configuration says of the pair of this name, if it has it.
fn policy_of<'a>(config: &'a MemberConfig, pair: &str) -> Option<&'a Policy> {
    config.pairs().find(|config| config.pair_name() == pair).map(|config| &config.policy)
}

/// A running member's proxy.
pub struct MemberRole {
    /// One for each pair of parties.
    pairs: Vec<RunningPair>,
    view: MemberView,
    /// With [attestation]: what is known of origins.
    origins: Option<Origins>,
    /// Without: what the RPKI says of origins.
    rpki: Option<PlainOrigins>,
}

/// What a proxy has for each pair of parties: a machine, with a state, links and a session with the router of its own.
struct RunningPair {
    name: String,
    running: Running<Event>,
    view: MemberView,
    router: Peer,
    /// What the rules name, for the machine's loop.
    named: watch::Sender<Vec<NamedPeer>>,
    /// The exchange's data.
    data: DataFile,
    _parties: [Connecting; 2],
}

/// What a pair's files hold.
struct OpenPair<'c> {
    config: &'c MemberConfig,
    /// Its number and name, where there are several.
    of: Option<(usize, String)>,
    identity: Identity,
    store: Arc<FileStore>,
    stored: Vec<StoredRecord>,
}

/// What all pairs of a proxy have in common.
struct Common<'a> {
    daemon: &'a Daemon,
    origins: Option<&'a Origins>,
    /// What is known of origins.
    known: watch::Receiver<rov::OriginData>,
}

impl<'c> OpenPair<'c> {
    fn open(config: &'c MemberConfig, of: Option<(usize, String)>, source: &Source) -> Outcome<Self> {
        let member = &config.file.member;
        let identity = Identity::load(&source.resolve(member.key.get_ref()))?;
        let (store, stored) = state::open(&source.resolve(member.state.get_ref()))?;
        check_store(&stored).map_err(|error| Failure::from_error(&error))?;
        Ok(Self { config, of, identity, store, stored })
    }

    async fn start(
        self,
        common: &Common<'_>,
        (attestation, last_time): (Option<AttestationConfig>, u64),
    ) -> Outcome<RunningPair> {
        let Self { config, of, identity, store, stored } = self;
        let Daemon { clock, source, events: log, .. } = common.daemon;
        let (file, clock, known) = (&config.file, *clock, &common.known);
        let pair = of.as_ref().map(|(_, name)| name.as_str());
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
        let settings = config::machine(config, keys);
        let machine = MemberProxy::new(settings, policy, signing, &seed()?, &stored, attestation, clock.now());

        let (events, inbox) = mpsc::channel(QUEUE);
        // Before the first route.
        let first = known.borrow().records.clone();
        let _ = events.send(Event::Input(Input::Origins(first.clone()))).await; // the inbox is there
        rov::forward(known.clone(), first, events.clone(), Input::Origins);
        let links = Links::new(Limits::default());
        let router = config::start_router(config, source, clock, events.clone()).await?;
        let connect = |number, party: &PartyAt| {
            let verifier = config::verifier(number, party, pair);
            links.connect(party.address.0.to_string(), &identity, verifier, events.clone())
        };
        let parties = [connect(1, &file.exchange.party1)?, connect(2, &file.exchange.party2)?];
        let faults = LinkFaults::default();
        let (named, rules) = watch::channel(config.file.named_peers());
        let of_data = file.data.as_ref().map(|section| source.resolve(section.file.get_ref()));
        let data = DataFile::follow(of_data, events.clone());
        let watched = Watched { rpki: known.clone(), named: rules.clone(), data: data.state.clone() };
        let view = MemberView::new(config, &identity, (&links, &store), (&router, &faults), &events, watched);
        let exchange = config::labels(config, &identity, pair);
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
            pair: of.clone(),
            named: NamedPeers::new(rules),
        };
        if let Some(origins) = common.origins {
            attestation::follow(origins, events.clone(), Input::View);
            if let Some(section) = file.attestation.as_ref().filter(|_| has_few_time_keys) {
                let kept_otherwise = section.get_ref().keys.is_clock_kept_otherwise();
                attestation::watch_clock(kept_otherwise, events.clone(), Input::ClockSynchronised);
            }
            tokio::spawn(attestation::maintain(events.clone(), MemberProxy::sweep, (store, clock), last_time));
        }
        let running = Running::start(machine, Driver(io), clock, (events, inbox));
        info!(
            pair,
            member = %file.member.name.get_ref(),
            slot = *file.member.slot.get_ref(),
            "connecting to both parties"
        );
        let name = config.pair_name().to_owned();
        Ok(RunningPair { name, running, view, router, named, data, _parties: parties })
    }
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
        "pair.member.new_members",
        "pair.member.known_slots",
        "pair.member.released",
        "attestation.policy",
        "attestation.keys.objects",
        "attestation.rpki",
        "rpki",
        "data",
        "pair.data",
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
        let Daemon { clock, source, .. } = daemon;
        let file = &config.file;
        let has_several = !config.further.is_empty();
        let mut open = Vec::new();
        for (number, config) in config.pairs().enumerate() {
            let of = has_several.then(|| (number, config.pair_name().to_owned()));
            open.push(OpenPair::open(config, of, source)?);
        }
        if let Some(shared) = config.shared_by_pairs(source) {
            return Err(source.failure(shared).into());
        }
        let asn = *file.router.get_ref().asn.get_ref();
        let (mut attestations, mut origins) = (Vec::new(), None);
        for pair in &open {
            let Some(section) = file.attestation.as_ref().map(Spanned::get_ref) else {
                attestations.push((None, 0));
                continue;
            };
            match &origins {
                None => {
                    let started = attestation::start(section, asn, source, &pair.store, *clock).await?;
                    let (attestation, (followed, last_time)) = started;
                    origins = Some(followed);
                    attestations.push((Some(attestation), last_time));
                }
                Some(followed) => {
                    let last_time = attestation::check_clock(&pair.store, *clock)?;
                    let attestation = attestation::of_origins(section, asn, source, &pair.store, followed)?;
                    attestations.push((Some(attestation), last_time));
                }
            }
        }
        let rpki = match (&origins, config.file.rpki()) {
            (Some(_), _) => None,
            (None, section) => {
                let sources = section.map(|section| section.data_sources(source)).transpose()?.unwrap_or_default();
                Some(PlainOrigins::follow(sources).await)
            }
        };
        let known = origins.as_ref().map(|origins| &origins.data).or(rpki.as_ref().map(|rpki| &rpki.data));
        let known = known.cloned().unwrap_or_else(|| watch::channel(rov::OriginData::default()).1);
        let common = Common { daemon, origins: origins.as_ref(), known };
        let mut pairs = Vec::new();
        for (pair, attestation) in open.into_iter().zip(attestations) {
            pairs.push(pair.start(&common, attestation).await?);
        }
        let views: Vec<(String, MemberView)> =
            pairs.iter().map(|pair| (pair.name.clone(), pair.view.clone())).collect();
        let first = pairs.first().map(|pair| pair.view.clone());
        let first = first.ok_or_else(|| Failure::new("a proxy without a pair of parties: a bug, please report it"))?;
        let view = MemberView::of_pairs(&first, views);
        Ok(Self { pairs, view, origins, rpki })
    }

    fn view(&self) -> MemberView {
        self.view.clone()
    }

    /// Applies the policy, and what is known of origins.
    async fn reload(&mut self, config: MemberConfig, source: &Source) -> Outcome {
        for pair in &self.pairs {
            // A pair that is gone from the file goes on as it was until the restart that ends it.
            let Some(of_pair) = config.pairs().find(|config| config.pair_name() == pair.name) else { continue };
            let events = &pair.running.events;
            pair.named.send_replace(of_pair.file.named_peers());
            let _ = events.send(Event::Input(Input::Policy(Box::new(of_pair.policy.clone())))).await;
            pair.data.follow_other(of_pair.file.data.as_ref().map(|section| source.resolve(section.file.get_ref())));
            if let (Some(_), Some(section)) = (&self.origins, &config.file.attestation) {
                let _ = events.send(Event::Input(Input::AttestationPolicy(section.get_ref().policy.policy()))).await;
            }
        }
        if let (Some(origins), Some(section)) = (&self.origins, &config.file.attestation) {
            origins.follow_other(attestation::origin_sources(section.get_ref(), source));
        }
        if let Some(rpki) = &self.rpki {
            // Also of an [attestation] that counts after a restart only.
            let section = config.file.rpki();
            rpki.follow_other(section.map(|section| section.data_sources(source)).transpose()?.unwrap_or_default());
        }
        Ok(())
    }

    fn differences(&self, config: MemberConfig) -> Option<Comparison> {
        let has_several = self.pairs.len() > 1;
        let look = |pair: &RunningPair| {
            let policy = policy_of(&config, &pair.name)?.clone();
            Some((pair.running.events.clone(), policy, has_several.then(|| pair.name.clone())))
        };
        let looks: Vec<_> = self.pairs.iter().filter_map(look).collect();
        Some(Box::pin(async move {
            let mut all = differences::Found::default();
            for (events, policy, name) in looks {
                all.look(&events, policy, name.as_deref()).await?;
            }
            Some(all.json())
        }))
    }

    async fn next(&mut self) -> Result<Infallible, Failure> {
        // Whichever ends first; no wake-up is lost, since each is asked again with every turn.
        let first = poll_fn(|context| {
            let failed = |pair: &mut RunningPair| pin!(pair.running.failed()).poll(context);
            self.pairs.iter_mut().map(failed).find(Poll::is_ready).unwrap_or(Poll::Pending)
        });
        Err(first.await)
    }

    async fn stop(self) {
        let ends = self.pairs.into_iter().map(|RunningPair { router, running, .. }| {
            tokio::spawn(async move {
                router.stop().await;
                running.stop(Event::Stop).await;
            })
        });
        for end in ends.collect::<Vec<_>>() {
            let _ = end.await;
        }
    }
}

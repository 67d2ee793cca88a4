//! The I/O of a party: links to members and to the peer party, the store, the log.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tracing::{error, info, warn};
use wayleave_crypto::secret::Seed;
use wayleave_route_server::directory::MemberSet;
use wayleave_route_server::party::{Party, PartyEvent, PartyInput, PartyOutput, PeerId, SetupJob};
use wayleave_runtime::drive::{Io, Query, Step};
use wayleave_runtime::links::{LinkEvent, Links};
use wayleave_runtime::log_limit::Line;
use wayleave_runtime::starts::PeerName;
use wayleave_runtime::store::FileStore;
use wayleave_runtime::tls::{Pins, Role};

use super::member_set;
use crate::failure::Failure;
use crate::roles::daemon::fresh;
use crate::roles::link_faults::{Fault, LinkEndpoint, LinkFaults};
use crate::roles::{Events, state};

/// What reaches the machine's loop.
pub enum Event {
    Link(LinkEvent),
    Persisted(u64),
    Input(PartyInput),
    Query(Query<Party>),
    /// The peer party should have connected by now; what to say of it.
    NoPeer(String),
    Stop,
}

/// The number under which faults with the peer party are kept.
pub const PEER: u32 = 0;

impl From<LinkEvent> for Event {
    fn from(event: LinkEvent) -> Self {
        Event::Link(event)
    }
}

impl From<Query<Party>> for Event {
    fn from(query: Query<Party>) -> Self {
        Event::Query(query)
    }
}

pub struct PartyIo {
    pub links: Links,
    pub store: Arc<FileStore>,
    pub events: mpsc::Sender<Event>,
    pub member_pins: Pins,
    pub log: Events,
    pub faults: LinkFaults,
    /// The peer party.
    pub peer: LinkEndpoint,
    /// The link to it, if one is up.
    pub peer_link: Option<u64>,
    /// Why the last one ended.
    pub last_end: String,
    /// The member set in force, for views.
    pub set: watch::Sender<MemberSet>,
    /// The configuration's file, which names the member set's file.
    pub configuration: PathBuf,
    /// The thread that makes correlations.
    pub setup: std::sync::mpsc::Sender<SetupJob>,
}

impl Io<Party> for PartyIo {
    type Event = Event;
    type Error = Failure;

    fn source<'a>(&'a self, event: &'a Event) -> Option<&'a PeerName> {
        if let Event::Link(event) = event { event.source() } else { None }
    }

    fn step(&mut self, event: Event) -> Step<Party> {
        Step::Input(match event {
            Event::Link(LinkEvent::Up { link, pin, exporter, peer_clock, .. }) => {
                let peer = match pin.role {
                    Role::Party => {
                        self.faults.up(PEER, &self.peer, peer_clock);
                        self.peer_link = Some(link);
                        PeerId::Party
                    }
                    Role::Member => PeerId::Member(pin.id),
                    // No port of a party accepts nodes, or who was removed.
                    Role::Node(_) | Role::Former => return Step::Ignore,
                };
                PartyInput::LinkUp { link, peer, exporter: Seed::new(*exporter.0) }
            }
            Event::Link(LinkEvent::Frame { link, bytes, .. }) => PartyInput::Frame { link, bytes },
            Event::Link(LinkEvent::Down { link, reason }) => {
                if self.peer_link.take_if(|up| *up == link).is_some() {
                    self.ended(reason);
                }
                PartyInput::LinkDown { link }
            }
            Event::Link(LinkEvent::Failed { failure, .. }) => {
                self.faults.failed(PEER, &self.peer, &failure);
                return Step::Ignore;
            }
            Event::NoPeer(words) => {
                if self.peer_link.is_none() {
                    self.faults.report(Fault::Link(PEER), &words, false);
                }
                return Step::Ignore;
            }
            Event::Persisted(id) => PartyInput::Persisted(id),
            Event::Input(input) => input,
            Event::Query(query) => return Step::Query(query),
            Event::Stop => return Step::Stop,
        })
    }

    fn before(&mut self, machine: &mut Party) -> Result<(), Failure> {
        machine.reseed(&fresh()?);
        Ok(())
    }

    fn perform(&mut self, output: PartyOutput, _: &mut VecDeque<PartyInput>) -> Result<(), Failure> {
        match output {
            PartyOutput::Send { link, frame } => self.links.send(link, frame),
            PartyOutput::Close { link, reason } => {
                if self.peer_link == Some(link) {
                    self.ended(reason.clone());
                }
                self.links.close(link, &reason);
            }
            PartyOutput::Persist { id, changes } => {
                let events = self.events.clone();
                let durable = move || drop(events.blocking_send(Event::Persisted(id)));
                state::submit(&self.store, changes, Box::new(durable))?;
            }
            PartyOutput::Setup(job) => {
                let ended = || Failure::new("the thread that makes correlations has ended; start the party again");
                self.setup.send(job).map_err(|_| ended())?;
            }
            PartyOutput::Members(set) => {
                info!(number = set.number, slots = set.slots.len(), "member set in force");
                self.member_pins.replace(member_set::pins(&set));
                self.set.send_replace(*set);
                tokio::spawn(member_set::save(self.events.clone(), self.configuration.clone()));
            }
            PartyOutput::Event(event) => {
                let line = match kind(&event) {
                    Some((kind, slot)) => self.log.admit(kind, slot as usize),
                    None => Some(Line::default()),
                };
                if let Some(Line { suppressed }) = line {
                    self.log(&event, suppressed);
                    self.log.note(&event);
                }
            }
        }
        Ok(())
    }
}

impl PartyIo {
    fn ended(&mut self, reason: String) {
        self.faults.ended(PEER, &self.peer.name, &reason);
        self.last_end = reason;
    }

    fn log(&self, event: &PartyEvent, suppressed: Option<u64>) {
        match event {
            PartyEvent::PeerPartyDown => {
                warn!(
                    "link to the peer party down: {}; nothing is computed until it is up, and members keep their routes",
                    self.last_end
                );
            }
            event => {
                if matches!(event, PartyEvent::Agreed { .. }) {
                    self.faults.well();
                }
                log(event, suppressed);
            }
        }
    }
}

/// What a line is about that a member can cause again and again, and its slot.
fn kind(event: &PartyEvent) -> Option<(&'static str, u32)> {
    match event {
        PartyEvent::BadFrame { slot, .. } => Some(("bad-frame", slot.unwrap_or(u32::MAX))),
        PartyEvent::Refused { slot, .. } => Some(("refused", *slot)),
        PartyEvent::Mismatch { slot, .. } => Some(("mismatch", *slot)),
        PartyEvent::MissedRanking { slot } => Some(("missed-ranking", *slot)),
        PartyEvent::Probation { slot, .. } => Some(("probation", *slot)),
        PartyEvent::Behind { slot, .. } => Some(("behind", *slot)),
        PartyEvent::Deferred { slot, .. } => Some(("deferred", *slot)),
        PartyEvent::OwnOrder { slot, .. } => Some(("own-order", *slot)),
        PartyEvent::EpochLater { .. } => Some(("epoch-later", u32::MAX)),
        PartyEvent::Stalled { slot } => Some(("stalled", slot.unwrap_or(u32::MAX))),
        PartyEvent::Expired { slot } => Some(("expired", *slot)),
        PartyEvent::OlderStore(older) => Some(("older-store", u32::from(older.party))),
        _ => None,
    }
}

fn log(event: &PartyEvent, suppressed: Option<u64>) {
    match event {
        PartyEvent::Agreed { objects, dropped } => {
            info!(objects, dropped, "link to the peer party up: both parties store the same objects");
        }
        // With what the link said.
        PartyEvent::PeerPartyDown => {}
        PartyEvent::BadFrame { slot: Some(slot), what } => {
            warn!(slot, suppressed, "frame of the member in slot {slot} refused ({what}); link closed");
        }
        PartyEvent::BadFrame { slot: None, what } => {
            warn!(suppressed, "frame of the peer party refused: {what}; link closed")
        }
        PartyEvent::Refused { slot, version, reason } => {
            info!(slot, version, suppressed, "route object of the member in slot {slot} refused: {reason}");
        }
        PartyEvent::Mismatch { slot, version } => {
            warn!(
                slot,
                version,
                suppressed,
                "the parties received different versions of a route object; the member must send it again"
            );
        }
        PartyEvent::Behind { slot, begins: true } => {
            warn!(
                slot,
                suppressed,
                "the member in slot {slot} takes up what is sent to it too slowly: it gets nothing until it has caught up, and then everything; tell its operator to look at its link"
            );
        }
        PartyEvent::Behind { slot, begins: false } => {
            info!(slot, suppressed, "the member in slot {slot} has caught up and is sent everything");
        }
        PartyEvent::Deferred { slot, seconds } => {
            warn!(
                slot,
                seconds,
                suppressed,
                "the member in slot {slot} asks for all routes, or connects again, too often: it is sent them in {seconds} seconds at the earliest"
            );
        }
        PartyEvent::OwnOrder { slot, seconds } => {
            warn!(
                slot,
                seconds,
                suppressed,
                "the member in slot {slot} is sent all routes too often to have Select-Best choose among them each time: its own order decides; again in {seconds} seconds"
            );
        }
        PartyEvent::EpochLater { seconds } => {
            info!(
                seconds,
                suppressed,
                "the new recommendation counts in {seconds} seconds, once the present one has counted for epoch_secs"
            );
        }
        PartyEvent::Stalled { slot: Some(slot) } => {
            warn!(slot, suppressed, "the member in slot {slot} took up nothing of what was sent to it; link closed");
        }
        PartyEvent::Stalled { slot: None } => {
            warn!(suppressed, "the peer party took up nothing of what was sent to it; link closed");
        }
        PartyEvent::MissedRanking { slot } => {
            info!(slot, suppressed, "no ranking from the member in slot {slot} in time; this round goes on without it");
        }
        PartyEvent::Probation { slot, begins: true } => {
            warn!(
                slot,
                suppressed,
                "two rankings in a row of the member in slot {slot} did not come in time: nobody waits for it until it has been in time for a while; its own order decides for it"
            );
        }
        PartyEvent::Probation { slot, begins: false } => {
            info!(slot, suppressed, "the member in slot {slot} has been in time again: its rankings are waited for");
        }
        PartyEvent::Expired { slot } => {
            info!(
                slot,
                suppressed,
                "the member in slot {slot} has been away for longer than stale_secs: its routes are withdrawn"
            );
        }
        PartyEvent::OtherExport { objects } => {
            warn!(
                objects,
                "`export` has changed: {objects} stored route objects were shared for the other mode and are removed; their members send them again"
            );
        }
        PartyEvent::OlderStore(older) => {
            warn!(
                party = older.party,
                holds = older.holds,
                agreed = older.agreed,
                suppressed,
                "the store of party {} holds less than the parties had agreed on, as when it was replaced by an older copy: what it lacks is dropped at both, and members send it again; find out who put it there",
                older.party
            );
        }
        PartyEvent::MembersRefused { why } => {
            error!(
                "the member set's file is not taken: {why}; the set in force stays, and `wayleave members show` prints the file's"
            );
        }
        PartyEvent::Engine { what } => {
            error!("computation with the peer party failed: {what}; it starts again when both parties are ready");
        }
    }
}

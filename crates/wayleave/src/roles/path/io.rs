//! The I/O of a path server: links to nodes and to other path servers, the store, the log.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::json;
use tokio::sync::mpsc;
use tracing::{error, info};
use wayleave_control::path::{PathServer, PathServerEvent, PathServerInput, PathServerOutput};
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::drive::{Io, Query, Step};
use wayleave_runtime::links::{LinkEvent, Links};
use wayleave_runtime::log_limit::Line;
use wayleave_runtime::starts::PeerName;
use wayleave_runtime::store::FileStore;
use wayleave_runtime::tls::Role;

use crate::failure::Failure;
use crate::roles::Events;
use crate::roles::overlay::records;
use crate::roles::overlay::strangers::{Ends, surplus};

/// What reaches the machine's loop.
pub enum Event {
    Link(LinkEvent),
    Persisted(u64),
    /// Time to close links of strangers.
    Sweep,
    Query(Query<PathServer>),
    Stop,
}

impl From<LinkEvent> for Event {
    fn from(event: LinkEvent) -> Self {
        Event::Link(event)
    }
}

impl From<Query<PathServer>> for Event {
    fn from(query: Query<PathServer>) -> Self {
        Event::Query(query)
    }
}

pub struct PathIo {
    pub links: Links,
    pub store: Arc<FileStore>,
    pub events: mpsc::Sender<Event>,
    pub ends: Ends,
    pub log: Events,
}

impl Io<PathServer> for PathIo {
    type Event = Event;
    type Error = Failure;

    fn source<'a>(&'a self, event: &'a Event) -> Option<&'a PeerName> {
        if let Event::Link(event) = event { event.source() } else { None }
    }

    fn step(&mut self, event: Event) -> Step<PathServer> {
        Step::Input(match event {
            Event::Link(LinkEvent::Up { link, pin, .. }) => {
                let Role::Node(peer) = pin.role else { return Step::Ignore };
                if self.ends.up(link, peer) {
                    let _ = self.events.try_send(Event::Sweep); // with a full queue, at the next link
                }
                PathServerInput::Connected { link, peer }
            }
            Event::Link(LinkEvent::Frame { link, bytes, .. }) => PathServerInput::Frame { link, octets: bytes },
            Event::Link(LinkEvent::Down { link, .. }) => {
                self.ends.down(link);
                PathServerInput::Disconnected { link }
            }
            Event::Persisted(id) => PathServerInput::Persisted(id),
            Event::Link(LinkEvent::Failed { .. }) => return Step::Ignore,
            Event::Sweep => {
                let (ends, links) = (self.ends.all(), self.links.clone());
                let close = move |server: &mut PathServer| {
                    let now = unix_now().secs();
                    for link in surplus(&ends, |end| server.knows(end, now)) {
                        links.close(link, "too many nodes that are no members");
                    }
                };
                return Step::Query(Box::new(close));
            }
            Event::Query(query) => return Step::Query(query),
            Event::Stop => return Step::Stop,
        })
    }

    fn perform(&mut self, output: PathServerOutput, _: &mut VecDeque<PathServerInput>) -> Result<(), Failure> {
        match output {
            PathServerOutput::Send { link, octets } => self.links.send(link, octets),
            PathServerOutput::Persist { id, records } => {
                let events = self.events.clone();
                let durable = move || drop(events.blocking_send(Event::Persisted(id)));
                records::submit(&self.store, &records, Box::new(durable))?;
            }
            PathServerOutput::Event(event) => self.note(&event),
        }
        Ok(())
    }
}

impl PathIo {
    fn note(&self, event: &PathServerEvent) {
        let kind = match event {
            PathServerEvent::Registered(..) => "registered",
            PathServerEvent::Refused { .. } => "refused",
            PathServerEvent::Recovered(_) => "recovered",
            PathServerEvent::StoreDamaged => "store-damaged",
        };
        let Some(Line { suppressed }) = self.log.admit(kind, 0) else { return };
        match event {
            PathServerEvent::Registered(node, sequence) => {
                info!(%node, sequence, suppressed, "advert taken");
                self.log.note(&json!({ "event": kind, "node": node.to_string(), "sequence": sequence }));
            }
            PathServerEvent::Refused { peer, refusal } => {
                info!(node = %peer, suppressed, "request refused: {refusal}");
                self.log.note(&json!({ "event": kind, "node": peer.to_string(), "why": refusal.to_string() }));
            }
            PathServerEvent::Recovered(peer) => {
                info!(server = %peer, "the records that were lost are back from another path server: requests are answered");
                self.log.note(&json!({ "event": kind, "server": peer.to_string() }));
            }
            PathServerEvent::StoreDamaged => {
                error!(
                    "the state has records that this realm did not sign: it counts as lost, and is asked of other path servers"
                );
                self.log.note(&json!({ "event": kind }));
            }
        }
    }
}

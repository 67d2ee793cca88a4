//! The I/O of a consent server: links to senders, the audit log, the log.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tracing::{error, info, warn};
use wayleave_control::consent::{Audit, ConsentServer, ConsentServerEvent, ConsentServerInput, ConsentServerOutput};
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::drive::{Io, Query, Step};
use wayleave_runtime::links::{LinkEvent, Links};
use wayleave_runtime::log_limit::Line;
use wayleave_runtime::starts::PeerName;
use wayleave_runtime::tls::Role;

use super::audit::{AuditLog, Entry, describe, is_strangers};
use crate::failure::Failure;
use crate::roles::Events;
use crate::roles::daemon::fresh;
use crate::roles::overlay::strangers::{Ends, surplus};

/// What reaches the machine's loop.
pub enum Event {
    Link(LinkEvent),
    Input(Box<ConsentServerInput>),
    /// Time to close links of strangers.
    Sweep,
    Query(Query<ConsentServer>),
    Stop,
}

impl From<LinkEvent> for Event {
    fn from(event: LinkEvent) -> Self {
        Event::Link(event)
    }
}

impl From<Query<ConsentServer>> for Event {
    fn from(query: Query<ConsentServer>) -> Self {
        Event::Query(query)
    }
}

pub struct ConsentIo {
    pub audit: Arc<AuditLog>,
    pub log: Events,
    pub links: Links,
    pub events: mpsc::Sender<Event>,
    pub ends: Ends,
    /// The decision whose answer comes next.
    pub last: Option<Audit>,
}

impl Io<ConsentServer> for ConsentIo {
    type Event = Event;
    type Error = Failure;

    fn source<'a>(&'a self, event: &'a Event) -> Option<&'a PeerName> {
        if let Event::Link(event) = event { event.source() } else { None }
    }

    fn step(&mut self, event: Event) -> Step<ConsentServer> {
        Step::Input(match event {
            Event::Link(LinkEvent::Up { link, pin, .. }) => {
                let Role::Node(peer) = pin.role else { return Step::Ignore };
                if self.ends.up(link, peer) {
                    let _ = self.events.try_send(Event::Sweep); // with a full queue, at the next link
                }
                ConsentServerInput::Connected { link, peer }
            }
            Event::Link(LinkEvent::Frame { link, bytes, .. }) => ConsentServerInput::Frame { link, octets: bytes },
            Event::Link(LinkEvent::Down { link, .. }) => {
                self.ends.down(link);
                ConsentServerInput::Disconnected { link }
            }
            Event::Sweep => {
                let (ends, links) = (self.ends.all(), self.links.clone());
                let close = move |server: &mut ConsentServer| {
                    let now = unix_now().secs();
                    for link in surplus(&ends, |end| server.database().membership(end, now).is_ok()) {
                        links.close(link, "too many nodes that are no members");
                    }
                };
                return Step::Query(Box::new(close));
            }
            Event::Link(LinkEvent::Failed { .. }) => return Step::Ignore,
            Event::Input(input) => *input,
            Event::Query(query) => return Step::Query(query),
            Event::Stop => return Step::Stop,
        })
    }

    fn before(&mut self, machine: &mut ConsentServer) -> Result<(), Failure> {
        machine.reseed(&fresh()?);
        Ok(())
    }

    fn perform(&mut self, output: ConsentServerOutput, _: &mut VecDeque<ConsentServerInput>) -> Result<(), Failure> {
        match output {
            ConsentServerOutput::Audit(audit) => self.last = Some(audit),
            // The machine gives each answer right behind its decision.
            ConsentServerOutput::Send { link, octets } => match self.last.take() {
                Some(audit) => {
                    let line = self.line(&audit);
                    self.audit.write(Entry { line, link, octets });
                }
                None => self.links.send(link, octets),
            },
            // The node that follows the path servers for us stores the same records.
            ConsentServerOutput::Persist(_) => {}
            ConsentServerOutput::Event(event) => self.note(&event),
        }
        Ok(())
    }
}

impl ConsentIo {
    /// The line of a decision, if it is written.
    fn line(&self, audit: &Audit) -> Option<Value> {
        let mut line = describe(audit);
        if let Some(kind) = is_strangers(audit) {
            let Line { suppressed } = self.log.admit(kind, 0)?;
            if let Some(suppressed) = suppressed {
                line["not_written_before"] = json!(suppressed);
            }
        }
        Some(line)
    }

    fn note(&self, event: &ConsentServerEvent) {
        let kind = match event {
            ConsentServerEvent::Ready => "ready",
            ConsentServerEvent::RecordRefused(_) => "record-refused",
            ConsentServerEvent::StoreDamaged => "store-damaged",
            ConsentServerEvent::NotDelegated(_) => "not-delegated",
        };
        let Some(Line { suppressed }) = self.log.admit(kind, 1) else { return };
        match event {
            ConsentServerEvent::Ready => info!("requests are answered from now on"),
            ConsentServerEvent::RecordRefused(refusal) => {
                warn!(suppressed, "a record of a path server is not taken: {refusal}");
            }
            ConsentServerEvent::StoreDamaged => {
                error!(
                    "the state has records that this realm did not sign: it counts as lost, and is asked of path servers"
                );
            }
            ConsentServerEvent::NotDelegated(node) => {
                warn!(%node, suppressed, "a delegated prefix is not taken: the node is not served, or has too many");
            }
        }
        self.log.note(&json!({ "event": kind }));
    }
}

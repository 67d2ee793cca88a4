//! The I/O of a consent server: links to senders, the audit log, the log.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use wayleave_control::consent::{Audit, ConsentServer, ConsentServerEvent, ConsentServerInput, ConsentServerOutput};
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::drive::Step;
use wayleave_runtime::links::{LinkEvent, Links};
use wayleave_runtime::log_limit::Line;
use wayleave_runtime::tls::Role;

use super::audit::{AuditLog, Entry, describe, is_strangers};
use crate::failure::Failure;
use crate::roles::daemon::fresh;
use crate::roles::events::{EventLine, Events, event, shown};
use crate::roles::link_driver::{self, LinkIo};
use crate::roles::overlay::strangers::{self, Ends, MORE_LINKS, Sweep};

/// What reaches the machine's loop.
pub type Event = link_driver::Event<ConsentServer, Sweep>;

pub struct ConsentIo {
    pub audit: Arc<AuditLog>,
    pub log: Events,
    pub links: Links,
    pub events: mpsc::Sender<Event>,
    pub ends: Ends,
    /// The decision whose answer comes next.
    pub last: Option<Audit>,
}

impl LinkIo<ConsentServer> for ConsentIo {
    type Own = Sweep;

    fn link(&mut self, event: LinkEvent) -> Option<ConsentServerInput> {
        match event {
            LinkEvent::Up { link, pin, .. } => {
                let Role::Node(peer) = pin.role else { return None };
                if self.ends.up(link, peer) {
                    let _ = self.events.try_send(Event::Own(Sweep)); // with a full queue, at the next link
                }
                Some(ConsentServerInput::Connected { link, peer })
            }
            LinkEvent::Frame { link, bytes, .. } => Some(ConsentServerInput::Frame { link, octets: bytes.into() }),
            LinkEvent::Down { link, .. } => {
                self.ends.down(link);
                Some(ConsentServerInput::Disconnected { link })
            }
            LinkEvent::Failed { .. } => None,
        }
    }

    fn own(&mut self, Sweep: Sweep) -> Step<ConsentServer> {
        strangers::sweep(&self.ends, &self.links, |server: &ConsentServer, end| {
            server.database().membership(end, unix_now().secs()).is_ok()
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
            ConsentServerOutput::Close { link } => self.links.close(link, MORE_LINKS),
            // The node that follows the path servers for us stores the same records.
            ConsentServerOutput::Persist(_) => {}
            ConsentServerOutput::Event(event) => self.log.report(line(&event)),
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
}

/// What the operator is told.
pub fn line(event: &ConsentServerEvent) -> EventLine {
    match event {
        ConsentServerEvent::Ready => event!(INFO "ready" by 1, {} "requests are answered from now on"),
        ConsentServerEvent::RecordRefused(refusal) => event!(WARN "record-refused" by 1, {; why = shown(refusal) }
            "record of a path server refused: {refusal}"),
        ConsentServerEvent::StoreDamaged => event!(ERROR "store-damaged" by 1, {}
            "the state has records that this realm did not sign: it counts as lost, and is asked of path servers"),
        ConsentServerEvent::NotDelegated(node) => event!(WARN "not-delegated" by 1, { node = shown(node) }
            "delegated prefix ignored: the node is not served, or has too many"),
        ConsentServerEvent::Entrusted(node) => event!(INFO "entrusted" by 1, { node = shown(node) }
            "a node has given its tag keys: consent is given for it from now on"),
    }
}

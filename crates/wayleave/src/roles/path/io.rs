//! The I/O of a path server: links to nodes and to other path servers, the store, the log.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use wayleave_control::path::{PathServer, PathServerEvent, PathServerInput, PathServerOutput};
use wayleave_control::realm::KeyRoll;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::drive::Step;
use wayleave_runtime::links::{LinkEvent, Links};
use wayleave_runtime::store::FileStore;
use wayleave_runtime::tls::Role;

use crate::failure::Failure;
use crate::roles::events::{EventLine, Events, event, shown};
use crate::roles::link_driver::{self, LinkIo, when_durable};
use crate::roles::overlay::server_faults::ServerFaults;
use crate::roles::overlay::strangers::{self, Ends, MORE_LINKS, Sweep};
use crate::roles::overlay::{freshness, records};

/// What reaches the machine's loop.
pub type Event = link_driver::Event<PathServer, Sweep>;

pub struct PathIo {
    pub links: Links,
    pub store: Arc<FileStore>,
    pub events: mpsc::Sender<Event>,
    pub ends: Ends,
    /// The last roll of the realm's key, after which the server may need another membership.
    pub rolls: watch::Sender<Vec<KeyRoll>>,
    pub log: Events,
    /// To which other path servers there is no link, and why.
    pub faults: ServerFaults,
}

impl LinkIo<PathServer> for PathIo {
    type Own = Sweep;

    fn link(&mut self, event: LinkEvent) -> Option<PathServerInput> {
        self.faults.note(&event, |_| true);
        match event {
            LinkEvent::Up { link, pin, .. } => {
                let Role::Node(peer) = pin.role else { return None };
                if self.ends.up(link, peer) {
                    let _ = self.events.try_send(Event::Own(Sweep)); // with a full queue, at the next link
                }
                Some(PathServerInput::Connected { link, peer })
            }
            LinkEvent::Frame { link, bytes, .. } => Some(PathServerInput::Frame { link, octets: bytes }),
            LinkEvent::Down { link, .. } => {
                self.ends.down(link);
                Some(PathServerInput::Disconnected { link })
            }
            LinkEvent::Failed { .. } => None,
        }
    }

    fn own(&mut self, Sweep: Sweep) -> Step<PathServer> {
        strangers::sweep(&self.ends, &self.links, |server: &PathServer, end| server.knows(end, unix_now().secs()))
    }

    fn perform(&mut self, output: PathServerOutput, _: &mut VecDeque<PathServerInput>) -> Result<(), Failure> {
        match output {
            PathServerOutput::Send { link, octets } => self.links.send(link, octets),
            PathServerOutput::Close { link } => self.links.close(link, MORE_LINKS),
            PathServerOutput::Persist { id, records } => {
                let durable = when_durable(&self.events, PathServerInput::Persisted(id));
                records::submit(&self.store, &records, durable)?;
            }
            PathServerOutput::Event(event) => {
                if let PathServerEvent::KeyRoll(roll) = &event {
                    self.rolls.send_modify(|rolls| rolls.push(roll.clone()));
                }
                self.log.report(line(&event));
            }
        }
        Ok(())
    }
}

/// What the operator is told.
pub fn line(event: &PathServerEvent) -> EventLine {
    match event {
        PathServerEvent::Registered(node, sequence) => {
            event!(INFO "registered" by 0, { node = shown(node), sequence } "advert accepted")
        }
        PathServerEvent::Refused { peer, refusal } => {
            event!(INFO "refused" by 0, { node = shown(peer); why = shown(refusal) }
            "request refused: {refusal}")
        }
        PathServerEvent::Recovered(peer) => event!(INFO "recovered" by 0, { server = shown(peer) }
            "the records that were lost are back from another path server: requests are answered"),
        PathServerEvent::List(found) => freshness::line(*found),
        PathServerEvent::KeyRoll(roll) => freshness::roll_line(roll),
        PathServerEvent::StoreDamaged => event!(ERROR "store-damaged" by 0, {}
            "the state has records that this realm did not sign: it counts as lost, and is asked of other path servers"),
    }
}

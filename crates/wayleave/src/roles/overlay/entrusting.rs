//! A node gives the keys of its tags to its own provider's consent server, by a link between these two alone, and again whenever one of
//! them began anew: the server keeps them in memory, and no file with them is carried from one machine to the other.

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Duration, sleep};
use wayleave_control::database::Refusal;
use wayleave_control::frames::{Body, Frame, MAX_FRAME, PROTOCOLS};
use wayleave_control::realm::Server;
use wayleave_packet::icing::mint::TagMaster;
use wayleave_runtime::links::{Limits, LinkEvent, Links};
use wayleave_runtime::node_tls::NodeIdentity;

use crate::failure::Outcome;
use crate::roles::events::{EventLine, Events, event};

/// A server that refuses is asked again after this: its operator may be about to name the node.
const AGAIN: Duration = Duration::from_secs(10);

/// The masters of a node's tag keys, each with the epoch from which it is used.
pub type Masters = Vec<(u32, TagMaster)>;

/// What gives the keys, as long as it is held.
pub struct Entrusting {
    task: JoinHandle<()>,
    keys: watch::Sender<Masters>,
    problem: watch::Receiver<Option<String>>,
}

impl Drop for Entrusting {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Entrusting {
    /// Gives `masters` to `server` from now on.
    pub fn start(server: &Server, identity: &NodeIdentity, masters: Masters, log: &Events) -> Outcome<Self> {
        let (events, inbox) = mpsc::channel(64);
        let links = Links::new(Limits { frame: MAX_FRAME as u32, protocols: PROTOCOLS, ..Limits::default() });
        let connecting = links.connect_node(server.address.clone(), identity, server.identity, events)?;
        let (keys, given) = watch::channel(masters);
        let waiting = format!("the keys of this node's tags are not at its consent server at {} yet", server.address);
        let (said, problem) = watch::channel(Some(waiting));
        let (log, server) = (log.clone(), server.clone());
        let task = tokio::spawn(async move {
            let _connecting = connecting;
            Giving { server, links, log, problem: said }.run(inbox, given).await;
        });
        Ok(Self { task, keys, problem })
    }

    /// The keys are these from now on.
    pub fn set(&self, masters: Masters) {
        self.keys.send_if_modified(|known| {
            let same = |(a, b): (&(u32, TagMaster), &(u32, TagMaster))| a.0 == b.0 && a.1.key() == b.1.key();
            let is_new = known.len() != masters.len() || !known.iter().zip(&masters).all(same);
            if is_new {
                *known = masters;
            }
            is_new
        });
    }

    /// What an operator should see.
    pub fn problem(&self) -> Option<String> {
        self.problem.borrow().clone()
    }
}

struct Giving {
    server: Server,
    links: Links,
    log: Events,
    problem: watch::Sender<Option<String>>,
}

impl Giving {
    async fn run(self, mut inbox: mpsc::Receiver<LinkEvent>, mut keys: watch::Receiver<Masters>) {
        // Whether there was a link, and whether the log knows that there is none any more.
        let (mut up, mut was_up, mut is_told) = (None, false, false);
        loop {
            tokio::select! {
                event = inbox.recv() => match event {
                    None => return,
                    Some(LinkEvent::Up { link, .. }) => {
                        (up, was_up, is_told) = (Some(link), true, false);
                        self.give(link, &keys.borrow_and_update());
                    }
                    Some(LinkEvent::Frame { link, bytes, .. }) => {
                        if self.answered(&bytes) {
                            continue;
                        }
                        sleep(AGAIN).await;
                        if up == Some(link) {
                            self.give(link, &keys.borrow_and_update());
                        }
                    }
                    Some(LinkEvent::Down { .. }) => {
                        up = None;
                        self.is_away("the connection was closed", !is_told);
                        is_told = true;
                    }
                    // A server that begins a little later than the node is nothing to report.
                    Some(LinkEvent::Failed { failure, .. }) => {
                        self.is_away(&failure.to_string(), was_up && !is_told);
                        is_told |= was_up;
                    }
                },
                changed = keys.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    if let Some(link) = up {
                        self.give(link, &keys.borrow_and_update());
                    }
                }
            }
        }
    }

    fn give(&self, link: u64, masters: &Masters) {
        if masters.is_empty() {
            return; // a router's are not read yet
        }
        self.links.send(link, Frame { request: 1, body: Body::Entrust { masters: masters.clone() } }.encode());
    }

    /// Whether the server has the keys, or said nothing about them.
    fn answered(&self, octets: &[u8]) -> bool {
        match Frame::decode(octets) {
            Ok(Frame { request: 1, body: Body::Entrusted }) => {
                if self.problem.send_replace(None).is_some() {
                    self.log.report(entrusted_line(&self.server.address.to_string()));
                }
                true
            }
            Ok(Frame { request: 1, body: Body::Refused(refusal) }) => {
                self.lacks(&match refusal {
                    Refusal::NotServed => {
                        "it does not take them: its operator adds [[consent.node]] with this node's identity and `entrusted = true`".to_owned()
                    }
                    Refusal::Malformed => {
                        "its program is of a version before, which takes none: upgrade it, or give it the file of these keys (`tags`)".to_owned()
                    }
                    other => other.to_string(),
                });
                false
            }
            _ => true,
        }
    }

    /// The server cannot be reached: it may have the keys from before, or have ended and forgotten them.
    fn is_away(&self, why: &str, is_first: bool) {
        let text = format!(
            "the consent server at {} cannot be reached, and may not have the keys of this node's tags: {why}",
            self.server.address
        );
        self.problem.send_replace(Some(text.clone()));
        if is_first {
            self.log.report(not_entrusted_line(&text));
        }
    }

    fn lacks(&self, why: &str) {
        let text = format!(
            "the consent server at {} has not got the keys of this node's tags: {why}; no new consent for this node is given there",
            self.server.address
        );
        if self.problem.send_replace(Some(text.clone())).as_deref() != Some(&text) {
            self.log.report(not_entrusted_line(&text));
        }
    }
}

pub fn entrusted_line(at: &str) -> EventLine {
    event!(INFO "entrusted" { at } "the consent server has the keys of this node's tags")
}

pub fn not_entrusted_line(why: &str) -> EventLine {
    event!(WARN "not-entrusted" {; why } "{why}")
}

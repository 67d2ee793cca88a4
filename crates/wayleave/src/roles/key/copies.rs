//! Copies of the records: the writer sends changes to replicas as they come, and a replica appends them to its own file. A replica
//! that wants changes which the writer has no longer, or whose writer has compacted its records, gets the snapshot.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tracing::{error, info, warn};
use wayleave_control::capability::{CHANGES, Change, ChannelMessage, MAX_CHANGES, MAX_MESSAGE};
use wayleave_core::IdentityKey;
use wayleave_crypto::signed::Signed;
use wayleave_runtime::Clock;
use wayleave_runtime::links::{Connecting, Limits, LinkEvent, Links};
use wayleave_runtime::node_tls::NodeIdentity;
use wayleave_runtime::starts::Handling;

use super::core::{Core, follow as follow_records, lock};
use super::fetching::{Fault, Fetching};
use super::parts::Parts;
use crate::config::Source;
use crate::config::key::KeyFile;
use crate::failure::{Failure, Outcome};
use crate::key_files::changes::Changes;
use crate::key_files::changes_reader::{ChangesReader, Next, Portion};
use crate::key_files::node::{self, KeyKind};
use crate::key_files::records::Base;
use crate::roles::daemon::QUEUE;
use crate::roles::events::{Events, event};

/// Octets that may wait for the writer: a few requests.
const LINK_QUEUE: usize = 1 << 20;

/// The last change of the records, and its digest: all up to it are durable.
pub type End = Box<dyn Fn() -> (u64, [u8; 32]) + Send>;

/// Replicas that are connected, at the server whose records they copy.
pub struct Copies {
    records: PathBuf,
    replicas: BTreeSet<IdentityKey>,
    links: HashMap<u64, Copier>,
    end: End,
}

/// One of them.
struct Copier {
    peer: IdentityKey,
    reader: ChangesReader,
    /// Whether it knows where the records end.
    knows_end: bool,
    /// Up to which number it has the changes, if it waits for more.
    waits: Option<u64>,
    /// The snapshot that it has or was offered; `None` until it says so.
    offered: Option<u64>,
    /// The snapshot that it fetches. It is offered no other until it has this one whole, or it might never have any.
    fetches: Option<Base>,
}

impl Copies {
    pub fn new(records: PathBuf, replicas: BTreeSet<IdentityKey>, end: End) -> Self {
        Self { records, replicas, links: HashMap::new(), end }
    }

    /// Other replicas are configured. Returns the links of those that are gone.
    pub fn configure(&mut self, replicas: BTreeSet<IdentityKey>) -> Vec<u64> {
        self.replicas = replicas;
        let gone = self.links.iter().filter(|(_, copier)| !self.replicas.contains(&copier.peer));
        gone.map(|(link, _)| *link).collect()
    }

    /// A link is up. Returns whether it is a replica's.
    pub fn up(&mut self, link: u64, peer: &IdentityKey) -> bool {
        if !self.replicas.contains(peer) {
            return false;
        }
        match ChangesReader::open(&self.records) {
            Ok(reader) => {
                self.links.insert(link, Copier::new(*peer, reader));
                info!(replica = %peer, "a replica is connected");
            }
            Err(failure) => error!("a replica is not served: {failure}"),
        }
        true
    }

    /// A link is down. Returns whether it was a replica's.
    pub fn down(&mut self, link: u64) -> bool {
        self.links.remove(&link).is_some()
    }

    /// A replica's message; `None` if the link is not a replica's. Otherwise what to send, or why the link is to be closed.
    pub fn frame(&mut self, link: u64, octets: &[u8]) -> Option<Result<Vec<Vec<u8>>, &'static str>> {
        let copier = self.links.get_mut(&link)?;
        Some(match ChannelMessage::decode(octets) {
            Ok(ChannelMessage::Holds { snapshot }) => {
                copier.offered = Some(snapshot);
                Ok(copier.due((self.end)().0).into_iter().collect())
            }
            Ok(ChannelMessage::Copy { after }) => Ok(copier.copy(after, (self.end)())),
            Ok(ChannelMessage::Fetch { number, piece }) => copier.piece(number, piece),
            Ok(_) => Err("a message that replicas do not send"),
            Err(_) => Err("a malformed message"),
        })
    }

    /// What there is for replicas, by their links.
    pub fn sweep(&mut self) -> Vec<(u64, Vec<u8>)> {
        let (end, _) = (self.end)();
        let due = |(link, copier): (&u64, &mut Copier)| {
            let link = *link;
            copier.due(end).into_iter().map(move |octets| (link, octets))
        };
        self.links.iter_mut().flat_map(due).collect()
    }
}

impl Copier {
    fn new(peer: IdentityKey, reader: ChangesReader) -> Self {
        Self { peer, reader, knows_end: false, waits: None, offered: None, fetches: None }
    }

    /// It has the changes up to `after`, and wants more.
    fn copy(&mut self, after: u64, (number, last): (u64, [u8; 32])) -> Vec<Vec<u8>> {
        self.waits = Some(after);
        if after > number {
            error!(
                replica = %self.peer,
                "a replica has change {after}, and these records end with change {number}: they were set back to an old copy, and what \
                 was revoked since may work again; stop this server and restore them from the last backup, or from that replica"
            );
        }
        let mut due = Vec::new();
        if !self.knows_end {
            self.knows_end = true;
            due.push(ChannelMessage::End { number, last }.encode());
        }
        due.extend(self.due(number));
        due
    }

    /// The next changes, if it waits for some and there are any, `end` at most. Once it has all, a snapshot that is later than the one
    /// that it has.
    fn due(&mut self, end: u64) -> Option<Vec<u8>> {
        if let Err(failure) = self.reader.follow() {
            error!("the records cannot be read for a replica: {failure}");
            return None;
        }
        let portion = Portion { changes: MAX_CHANGES, octets: CHANGES, up_to: end };
        match self.reader.next(self.waits?, portion) {
            Ok(Next::Nothing) => self.offer(),
            Ok(Next::Changes(changes)) => {
                self.waits = None;
                Some(ChannelMessage::Changes(changes).encode())
            }
            // What follows the snapshot that it fetches is in the files that are open.
            Ok(Next::Compacted) if self.fetches.is_some() => None,
            Ok(Next::Compacted) => {
                self.offered.get_or_insert(0);
                self.reader.skip();
                self.offer()
            }
            Err(error) => {
                error!("the records cannot be read for a replica: {error}");
                None
            }
        }
    }

    /// The head of a snapshot that it was not offered.
    fn offer(&mut self) -> Option<Vec<u8>> {
        if self.fetches.is_some() {
            return None;
        }
        let base = self.reader.base()?;
        let offered = self.offered.as_mut().filter(|offered| **offered < base.number())?;
        *offered = base.number();
        // One without pieces is there with its head.
        self.fetches = Some(base.clone()).filter(|base| !base.head.object().pieces.is_empty());
        Some(ChannelMessage::Snapshot(base.head.octets().to_vec()).encode())
    }

    /// A piece of the snapshot that it was offered.
    fn piece(&mut self, number: u64, piece: u16) -> Result<Vec<Vec<u8>>, &'static str> {
        let Some(base) = self.fetches.as_ref().filter(|base| base.number() == number) else {
            return Err("a piece of a snapshot that was not offered");
        };
        let is_last = usize::from(piece) + 1 == base.head.object().pieces.len();
        match base.piece(piece.into()) {
            Ok(Some(octets)) => {
                if is_last {
                    self.fetches = None;
                }
                Ok(vec![ChannelMessage::SnapshotPiece { number, piece, octets }.encode()])
            }
            Ok(None) => Err("a piece that the snapshot does not have"),
            Err(error) => {
                error!("the records cannot be read for a replica: {error}");
                Err("the snapshot cannot be read now")
            }
        }
    }
}

/// How a replica stands with the server that it follows, for the status page.
#[derive(Clone, Default)]
pub struct Following(Arc<Mutex<Status>>);

#[derive(Default)]
struct Status {
    is_connected: bool,
    /// Why there is no link.
    problem: Option<String>,
    /// Why the last changes were not taken, until some are.
    refused: Option<String>,
    /// Pieces of snapshots that came since the start.
    pieces: u64,
}

impl Following {
    pub fn json(&self) -> Value {
        let status = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let problem = status.refused.as_ref().or(status.problem.as_ref());
        json!({ "connected": status.is_connected, "problem": problem, "pieces": status.pieces })
    }

    fn set(&self, is_connected: bool, problem: Option<String>) {
        let mut status = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (status.is_connected, status.problem) = (is_connected, problem);
    }

    fn count_piece(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pieces += 1;
    }

    fn set_refused(&self, why: Option<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).refused = why;
    }
}

/// Follows the server that the configuration names; `None` if it names none.
pub fn follow(
    config: &KeyFile,
    source: &Source,
    core: Arc<Mutex<Core>>,
    (clock, log): (Clock, Events),
    failed: mpsc::Sender<Failure>,
    parts: &mut Parts,
) -> Outcome<Option<Following>> {
    let Some(section) = config.key.follow.as_ref().map(toml::Spanned::get_ref) else { return Ok(None) };
    let seed = node::load(KeyKind::Identity, &source.resolve(section.identity.get_ref()))?;
    let identity = NodeIdentity::from_seed(seed.expose())?;
    drop(seed);
    let links = Links::new(Limits { queue: LINK_QUEUE, frame: MAX_MESSAGE as u32, ..Limits::default() });
    let (events, inbox) = mpsc::channel(QUEUE);
    let server = section.server.server();
    let connecting = links.connect_node(server.address, &identity, server.identity, events)?;
    let records = source.resolve(config.records()?.get_ref());
    let following = Following::default();
    let follower = Follower {
        core,
        clock,
        records,
        links,
        following: following.clone(),
        log,
        fetching: None,
        _connecting: connecting,
    };
    parts.spawn("replication", async move {
        if let Err(failure) = follower.run(inbox).await {
            let _ = failed.send(failure).await; // fails if the role has stopped
        }
    });
    Ok(Some(following))
}

/// A replica's end.
struct Follower {
    core: Arc<Mutex<Core>>,
    clock: Clock,
    records: PathBuf,
    links: Links,
    following: Following,
    log: Events,
    fetching: Option<Fetching>,
    _connecting: Connecting,
}

impl Follower {
    async fn run(mut self, mut inbox: mpsc::Receiver<LinkEvent>) -> Result<(), Failure> {
        while let Some(event) = inbox.recv().await {
            let _handling = event.source().map(Handling::begin);
            match event {
                LinkEvent::Up { link, .. } => {
                    info!("the server whose records are copied is connected");
                    self.following.set(true, None);
                    let snapshot = lock(&self.core).snapshot();
                    self.links.send(link, ChannelMessage::Holds { snapshot }.encode());
                    self.ask(link);
                }
                LinkEvent::Frame { link, bytes, .. } => self.frame(link, &bytes)?,
                LinkEvent::Down { reason, .. } => {
                    warn!("no link to the server whose records are copied: {reason}");
                    self.fetching = None;
                    self.following.set(false, Some(reason));
                }
                LinkEvent::Failed { failure, .. } => {
                    warn!("the server whose records are copied cannot be reached: {failure}");
                    self.following.set(false, Some(failure.to_string()));
                }
            }
        }
        Ok(())
    }

    fn ask(&self, link: u64) {
        let after = lock(&self.core).server.state().number();
        self.links.send(link, ChannelMessage::Copy { after }.encode());
    }

    /// Takes a message over. An error is this machine's; what the other end did wrong ends the link.
    fn frame(&mut self, link: u64, octets: &[u8]) -> Result<(), Failure> {
        match ChannelMessage::decode(octets) {
            Ok(ChannelMessage::Changes(changes)) => self.changes(link, &changes),
            Ok(ChannelMessage::Snapshot(head)) => {
                // What was fetched of an earlier one is in the same place.
                self.fetching = None;
                let begun = Fetching::begin(&lock(&self.core).server, &self.records, &head);
                begun
                    .map(|fetching| self.fetching = Some(fetching))
                    .and_then(|()| self.fetch(link))
                    .or_else(|fault| self.fail(link, fault))
            }
            Ok(ChannelMessage::End { number, last }) => {
                let (own, within) = {
                    let core = lock(&self.core);
                    (core.end(), core.server.state().is_within(number, &last))
                };
                if own == (number, last) {
                    self.following.set_refused(None);
                }
                within.or_else(|error| self.fail(link, error.into()))
            }
            Ok(ChannelMessage::SnapshotPiece { number, piece, octets }) => {
                self.following.count_piece();
                let fetching = self.fetching.as_mut();
                let Some(fetching) = fetching.filter(|own| own.number() == number && own.next() == Some(piece)) else {
                    return self.refuse(link, "a piece of a snapshot that was not asked for".to_owned());
                };
                fetching.take(&octets).and_then(|()| self.fetch(link)).or_else(|fault| self.fail(link, fault))
            }
            _ => self.refuse(link, "a message that is no list of changes, and no part of a snapshot".to_owned()),
        }
    }

    /// Asks for the next piece of a snapshot, or takes the whole over.
    fn fetch(&mut self, link: u64) -> Result<(), Fault> {
        let Some(fetching) = self.fetching.take() else { return Ok(()) };
        let number = fetching.number();
        if let Some(piece) = fetching.next() {
            self.fetching = Some(fetching);
            self.links.send(link, ChannelMessage::Fetch { number, piece }.encode());
            return Ok(());
        }
        let (held, new) = {
            let core = lock(&self.core);
            (core.server.state().number(), fetching.check(&core.server)?)
        };
        let octets = new.finish(Changes::open(&self.records)?)?;
        self.log.report(event!(INFO "snapshot" { number, octets } "the records begin with the writer's snapshot"));
        follow_records(&self.core, self.clock.now())?;
        self.following.set_refused(None);
        // Otherwise it waits for the next change already.
        if held < number {
            self.ask(link);
        }
        Ok(())
    }

    /// A snapshot is not taken.
    fn fail(&mut self, link: u64, fault: Fault) -> Result<(), Failure> {
        self.fetching = None;
        match fault {
            Fault::Peer(why) => self.refuse(link, why),
            Fault::Own(failure) => {
                error!("the writer's snapshot is not taken over: {failure}");
                self.following.set_refused(Some(format!("the writer's snapshot is not taken over: {failure}")));
                self.links.close_refused(link, "the snapshot cannot be kept here now");
                Ok(())
            }
        }
    }

    /// Takes changes over.
    fn changes(&self, link: u64, changes: &[Vec<u8>]) -> Result<(), Failure> {
        for octets in changes {
            let Ok(change) = Signed::<Change>::decode(octets) else {
                return self.refuse(link, "a change that cannot be read".to_owned());
            };
            let mut core = lock(&self.core);
            if let Err(error) = core.accepts(&change) {
                drop(core);
                return self.refuse(link, error);
            }
            core.copy(&change)?;
        }
        lock(&self.core).prepare(self.clock.now());
        self.following.set_refused(None);
        self.ask(link);
        Ok(())
    }

    fn refuse(&self, link: u64, why: String) -> Result<(), Failure> {
        self.log.report(event!(ERROR "copy-refused" {; why } "the server whose records are copied erred: {why}"));
        self.links.close_refused(link, "changes that this replica does not take");
        self.following.set_refused(Some(why));
        Ok(())
    }
}

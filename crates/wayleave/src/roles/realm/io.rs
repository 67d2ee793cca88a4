//! The I/O of the operator's side: links of nodes that join, links to path servers, the records, the log.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::{error, warn};
use wayleave_control::budget::Budget;
use wayleave_control::database::Refusal;
use wayleave_control::frames::{Body, Frame};
use wayleave_control::realm::{
    JoinError, MAX_SERVERS, Registrar, RegistrarEvent, RegistrarInput, RegistrarOutput, RevocationList, Server,
};
use wayleave_control::store::Record;
use wayleave_core::IdentityKey;
use wayleave_crypto::signed::Signed;
use wayleave_runtime::Clock;
use wayleave_runtime::clock::utc;
use wayleave_runtime::drive::Step;
use wayleave_runtime::links::{Connecting, LinkEvent, Links};
use wayleave_runtime::node_tls::NodeIdentity;
use wayleave_runtime::tls::Role;

use super::submission::{Submission, is_lasting};
use crate::ask::exchange;
use crate::config::Source;
use crate::config::realm::RealmFile;
use crate::failure::{Failure, Outcome};
use crate::key_files::ledger::Ledger;
use crate::key_files::node::fresh;
use crate::roles::events::{EventLine, Events, event, shown};
use crate::roles::link_driver::{self, LinkIo};
use crate::roles::overlay::server_faults::ServerFaults;

/// How often the records are looked at for what commands appended.
pub const FOLLOW: Duration = Duration::from_millis(500);
/// Joins of one link in a second, and at once: each takes four signatures.
const JOINS: (u32, u32) = (2, 10);

/// The number of a list as a request. A command that joins with a path server's identity has a link of its own, is told of the list too, and waits for
/// the answer to its request 1.
const SUBMISSION: u32 = 2;
/// The number of the list that begins a generation, which a server takes before later ones.
const OPENING: u32 = 3;
/// How long a server is waited for that is asked for its list.
const HEAR: Duration = Duration::from_secs(10);

/// Nodes that are connected. Beyond, the one that came first is left: joining takes a second.
const MAX_NODES: usize = 256;

/// What reaches the machine's loop.
pub type Event = link_driver::Event<Registrar, Follow>;

/// Time to look at the records.
pub struct Follow;

/// A path server that is told of removed nodes.
pub struct PathServerLink {
    server: Server,
    link: Option<u64>,
    /// What it was sent by that link.
    submission: Submission,
    _connecting: Connecting,
}

/// Which path servers do not take the list of removed nodes, and to which there is no link, and why.
#[derive(Clone, Debug)]
pub struct Refusals(Arc<Mutex<Refused>>, ServerFaults);

#[derive(Debug, Default)]
struct Refused {
    by: BTreeMap<IdentityKey, String>,
    /// By so many seconds a server's list was ahead of the clock here.
    ahead: Option<u64>,
    /// Why the file of path servers is not read, with what to do.
    servers: Option<String>,
}

impl Refusals {
    pub fn new(clock: Clock) -> Self {
        Self(Arc::default(), ServerFaults::new(clock))
    }

    fn all(&self) -> MutexGuard<'_, Refused> {
        // Nothing that holds this lock can panic half-way through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the file of path servers is read, or why not. Returns the reason if it is another than before.
    pub fn not_read(&self, why: Option<String>) -> Option<String> {
        let before = std::mem::replace(&mut self.all().servers, why.clone());
        why.filter(|why| before.as_ref() != Some(why))
    }

    /// What an operator should see of them.
    pub fn problems(&self) -> Vec<String> {
        let text = |(server, why): (&IdentityKey, &String)| {
            format!("path server {server} does not take the list of removed nodes: {why}")
        };
        let all = self.all();
        let clock = all.ahead.map(behind);
        let servers = all.servers.as_ref().map(|why| format!("path servers are not told who was removed: {why}"));
        servers.into_iter().chain(all.by.iter().map(text)).chain(clock).chain(self.1.problems()).collect()
    }
}

pub struct RealmIo {
    pub identity: NodeIdentity,
    pub links: Links,
    pub ledger: Ledger,
    pub events: mpsc::Sender<Event>,
    pub config: RealmFile,
    pub source: Source,
    /// Nodes that are connected, with what each may ask.
    pub nodes: HashMap<u64, (IdentityKey, Budget)>,
    pub servers: BTreeMap<IdentityKey, PathServerLink>,
    pub refusals: Refusals,
    /// The list that began the present generation.
    pub opening: Option<Signed<RevocationList>>,
    /// Who is on the list that servers were told last.
    pub handed: Vec<IdentityKey>,
    pub log: Events,
    pub clock: Clock,
    /// What others appended to the records, and the machine does not have yet.
    pub unread: Vec<Record>,
    /// Whether the path servers are to be looked at.
    pub is_due: bool,
}

impl LinkIo<Registrar> for RealmIo {
    type Own = Follow;

    fn link(&mut self, event: LinkEvent) -> Option<RegistrarInput> {
        let servers = &self.servers;
        self.refusals.1.note(&event, |server| servers.contains_key(server));
        match event {
            LinkEvent::Up { link, pin, .. } => {
                let Role::Node(identity) = pin.role else { return None };
                self.nodes.insert(link, (identity, Budget::new(JOINS.0, JOINS.1)));
                if self.nodes.len() > MAX_NODES
                    && let Some(oldest) = self.nodes.keys().filter(|link| !self.is_path_server(**link)).min().copied()
                {
                    self.links.close(oldest, "too many nodes want to join");
                }
                if let Some(path_server) =
                    self.servers.get_mut(&identity).filter(|path_server| path_server.link.is_none())
                {
                    path_server.link = Some(link);
                    path_server.submission = Submission::default();
                    self.is_due = true;
                    // Another machine may have signed a list meanwhile, or these records are from a backup.
                    let server = path_server.server.clone();
                    self.hear(server);
                    return Some(RegistrarInput::Records(Vec::new()));
                }
            }
            LinkEvent::Down { link, .. } => {
                self.nodes.remove(&link);
                for path_server in self.servers.values_mut().filter(|path_server| path_server.link == Some(link)) {
                    path_server.link = None;
                }
            }
            LinkEvent::Frame { link, bytes, .. } => return self.frame(link, &bytes),
            LinkEvent::Failed { .. } => {}
        }
        None
    }

    fn own(&mut self, Follow: Follow) -> Step<Registrar> {
        self.is_due = true;
        // What commands appended is read in `before`.
        Step::Input(RegistrarInput::Records(Vec::new()))
    }

    fn before(&mut self, machine: &mut Registrar) -> Result<(), Failure> {
        let mut unread = std::mem::take(&mut self.unread);
        unread.extend(self.ledger.read_new()?);
        self.is_due |= !unread.is_empty();
        unread.into_iter().for_each(|record| machine.restore(record));
        if std::mem::take(&mut self.is_due) {
            let why = self
                .follow(machine)
                .err()
                .map(|failures| failures.0.iter().map(Failure::in_one_line).collect::<Vec<_>>().join("; "));
            // Twice a second it is tried again: a line only for another reason.
            if let Some(why) = self.refusals.not_read(why)
                && self.log.admit("servers", 0).is_some()
            {
                error!("list of removed nodes not sent to path servers: {why}");
            }
        }
        Ok(())
    }

    fn perform(&mut self, output: RegistrarOutput, feedback: &mut VecDeque<RegistrarInput>) -> Result<(), Failure> {
        match output {
            RegistrarOutput::Persist { id, records } => {
                // The answer leaves once the records are durable.
                self.unread.extend(self.ledger.append(&records)?);
                feedback.push_back(RegistrarInput::Persisted(id));
            }
            RegistrarOutput::Reply { link, request, answer } => {
                let octets = Frame { request, body: Body::Joined(answer) }.encode();
                self.links.send(link, octets);
            }
            RegistrarOutput::Invited { link, request, answer } => {
                let body = answer.map_or_else(|error| Body::Joined(Err(error)), Body::Invited);
                self.links.send(link, Frame { request, body }.encode());
            }
            RegistrarOutput::Event(event) => {
                if let RegistrarEvent::Ahead { seconds } = event {
                    self.refusals.all().ahead = Some(seconds);
                }
                line(&event).into_iter().for_each(|line| self.log.report(line));
            }
        }
        Ok(())
    }
}

impl RealmIo {
    /// Whether it is the link to a path server.
    fn is_path_server(&self, link: u64) -> bool {
        self.servers.values().any(|path_server| path_server.link == Some(link))
    }

    fn frame(&mut self, link: u64, octets: &[u8]) -> Option<RegistrarInput> {
        let frame = Frame::decode(octets);
        if let Some((identity, path_server)) =
            self.servers.iter_mut().find(|(_, path_server)| path_server.link == Some(link))
        {
            let submission = &mut path_server.submission;
            match frame.as_ref().map(|frame| &frame.body) {
                Ok(Body::Registered { .. }) if frame.as_ref().is_ok_and(|frame| frame.request == OPENING) => {
                    submission.opened();
                    self.is_due = true;
                    return Some(RegistrarInput::Records(Vec::new()));
                }
                Ok(Body::Registered { number }) => {
                    submission.taken(*number);
                    let mut refused = self.refusals.all();
                    refused.by.remove(identity);
                    refused.ahead = None;
                }
                Ok(Body::Refused(refusal)) if frame.as_ref().is_ok_and(|frame| frame.request == OPENING) => {
                    submission.opening_refused(*refusal);
                    return None;
                }
                Ok(Body::Refused(refusal)) => {
                    let server = path_server.server.clone();
                    let text = refusal.to_string();
                    let before = self.refusals.all().by.insert(*identity, text);
                    if before.is_none_or(|before| before != refusal.to_string()) {
                        warn!(server = %identity, "path server refused the list of removed nodes: {refusal}");
                    }
                    let refusal = *refusal;
                    let order = self.opening.as_ref().map(|opening| opening.object().order());
                    let is_opened = submission.refused(refusal, order, self.clock.now().instant);
                    if let Some(opening) = self.opening.as_ref().filter(|_| is_opened) {
                        self.links.send(link, submitted(OPENING, opening));
                    }
                    if is_lasting(refusal) {
                        // The server's own list says who is missing here.
                        self.hear(server);
                    }
                    if let Refusal::LeavesOut(node) = refusal {
                        return Some(RegistrarInput::LeftOut(node));
                    }
                }
                _ => {}
            }
        }
        let (peer, budget) = self.nodes.get_mut(&link)?;
        let peer = *peer;
        let refused = |request, error| Frame { request, body: Body::Joined(Err(error)) }.encode();
        match frame {
            Ok(Frame { request, .. }) if !budget.take(self.clock.now().instant) => {
                self.links.send(link, refused(request, JoinError::Busy));
                None
            }
            Ok(Frame { request, body: Body::Join(join) }) => {
                let octets = join.octets().clone();
                Some(RegistrarInput::Join { link, request, octets })
            }
            Ok(Frame { request, body: Body::Roll { key } }) => {
                let own = self.config.own_server(&self.source).ok()?;
                let others = self.servers.values().map(|path_server| path_server.server.clone());
                let servers = [own].into_iter().chain(others).take(MAX_SERVERS).collect();
                Some(RegistrarInput::Roll { link, request, peer, key, servers })
            }
            Ok(Frame { request, body: Body::Renew { number } }) => {
                Some(RegistrarInput::Renewal { link, request, peer, number })
            }
            _ => {
                if !self.is_path_server(link) {
                    self.links
                        .close(link, "a node sends a request to join or for a later membership, and nothing else");
                }
                None
            }
        }
    }

    /// Asks a path server which list it has; the answer comes as an input. With a key of its own, since a later link of an identity takes the place of
    /// the one before.
    fn hear(&self, server: Server) {
        let events = self.events.clone();
        tokio::spawn(async move {
            let Ok(seed) = fresh::<32>() else { return };
            let Ok(own) = NodeIdentity::from_seed(&seed) else { return };
            let asked = timeout(HEAR, exchange(&server, &own, Body::FindRevocations)).await;
            if let Ok(Ok(Body::Revocations(Some(list)))) = asked {
                let _ = events.send(Event::Input(RegistrarInput::Heard(Box::new(list)))).await;
            }
        });
    }

    /// Keeps links to the path servers that the records know, and tells them of removed nodes.
    pub fn follow(&mut self, registrar: &Registrar) -> Outcome {
        let servers = self.config.path_servers(&self.source, registrar)?;
        for (identity, _) in self.servers.extract_if(.., |_, known| !servers.contains(&known.server)) {
            self.refusals.1.forget(&identity);
        }
        self.refusals.all().by.retain(|identity, _| self.servers.contains_key(identity));
        for server in servers {
            if !self.servers.contains_key(&server.identity) {
                let (address, events) = (server.address.clone(), self.events.clone());
                let connecting = self.links.connect_node(address, &self.identity, server.identity, events)?;
                let path_server = PathServerLink {
                    server: server.clone(),
                    link: None,
                    submission: Submission::default(),
                    _connecting: connecting,
                };
                self.servers.insert(server.identity, path_server);
            }
        }
        self.opening = registrar.opening().cloned();
        let Some(list) = registrar.revocations() else { return Ok(()) };
        self.submit_revocations(list);
        Ok(())
    }

    fn submit_revocations(&mut self, list: &Signed<RevocationList>) {
        let (order, revoked) = (list.object().order(), list.object().identities());
        if revoked != self.handed {
            self.handed = revoked;
            self.log.note(&json!({ "event": "revocations", "number": order.1 }));
        }
        let now = self.clock.now().instant;
        for PathServerLink { link, submission, .. } in self.servers.values_mut() {
            let Some(link) = *link else { continue };
            if let Some(opening) = &self.opening
                && submission.opens_again(opening.object().order(), now)
            {
                self.links.send(link, submitted(OPENING, opening));
            }
            if submission.sends(order, now) {
                self.links.send(link, submitted(SUBMISSION, list));
            }
        }
    }
}

/// A list as it is sent.
fn submitted(request: u32, list: &Signed<RevocationList>) -> Vec<u8> {
    Frame { request, body: Body::SubmitRevocations(list.clone()) }.encode()
}

/// What an operator reads whose clock is behind a path server's list.
fn behind(seconds: u64) -> String {
    format!(
        "a path server's list of removed nodes is {seconds} s ahead of this machine's clock: what it says is not taken, and the lists that are \
         signed here are refused as older; set the clock of this machine, or of the one that signed that list"
    )
}

/// What the operator is told; `None` of what the list of removed nodes says.
pub fn line(event: &RegistrarEvent) -> Option<EventLine> {
    Some(match event {
        RegistrarEvent::Admitted(membership) => {
            let object = membership.object();
            let name = object.grants.names.first().map(ToString::to_string).unwrap_or_default();
            event!(INFO "admitted" by 0, { name, identity = shown(object.identity) } "node admitted")
        }
        RegistrarEvent::Refused { identity, error } => {
            let identity = identity.map(|identity| identity.to_string());
            event!(INFO "join-refused" by 0, { identity; why = shown(error) } "a node that wants to join was refused: {error}")
        }
        RegistrarEvent::Renewed(membership) => {
            let object = membership.object();
            event!(INFO "renewed" by 0, { identity = shown(object.identity), until = utc(object.not_after); until = object.not_after } "membership renewed")
        }
        RegistrarEvent::NotRenewed { identity, error } => {
            event!(INFO "not-renewed" by 0, { identity = shown(identity); why = shown(error) }
                "a node asked for a later membership and was refused: {error}")
        }
        RegistrarEvent::Rolled { from, to } => event!(INFO "rolled" by 0, { from = shown(from), to = shown(to) }
            "a node has other keys; those of before are removed"),
        RegistrarEvent::ListKey(certificate) => {
            event!(INFO "list-key" by 0, {; until = certificate.object().not_after } "a list key was made or renewed")
        }
        RegistrarEvent::RemovedElsewhere(nodes) => {
            let nodes = nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            event!(WARN "removed-elsewhere" by 0, {; nodes } "a list that was signed elsewhere removes nodes, here too from now on; if nobody ordered \
                that, its key was stolen: `wayleave realm list-key revoke KEY --restore NODE`")
        }
        RegistrarEvent::Invented { key, left } => {
            event!(ERROR "invented" by 0, { key = format!("list:{}", IdentityKey(*key)); left }
                "a list that was signed elsewhere removes more nodes that are no members by the records than are taken from one key: path servers \
                 that have it refuse lists without them; its key was stolen: `wayleave realm list-key revoke KEY`, or, if it is the realm's, \
                 `wayleave realm roll-key new FILE --stolen`")
        }
        RegistrarEvent::Ahead { seconds } => {
            let why = behind(*seconds);
            event!(ERROR "clock-behind" by 0, {; seconds } "{why}")
        }
        RegistrarEvent::RolledElsewhere(roll) => {
            event!(ERROR "rolled-elsewhere" by 0, { next = shown(roll.next) }
                "a path server's list rolls the realm's key to one that is not here: it is not followed; if you ordered it, name that key as \
                 `next_key` of [realm], or publish the list with `wayleave realm list publish FILE --config FILE`; if nobody did, the realm's \
                 key was stolen: `wayleave realm roll-key new FILE --stolen`")
        }
        RegistrarEvent::Restored(nodes) => {
            let nodes = nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            event!(WARN "restored" by 0, {; nodes } "nodes are members again that the stolen key of the realm alone removed")
        }
        RegistrarEvent::KeyRolled(roll) => {
            event!(INFO "key-rolled" by 0, { next = shown(roll.next), from = utc(roll.from); from = roll.from }
                "the realm's key rolls: lists tell all nodes of it")
        }
        RegistrarEvent::NoList(error) => event!(ERROR "no-list" by 0, {; why = shown(error) }
            "the next list of removed nodes is not signed: {error}"),
        RegistrarEvent::Failed(why) => {
            event!(ERROR "failed" by 0, {; why } "the operator's order was not carried out: {why}")
        }
        RegistrarEvent::Revoked(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_path_servers_that_is_not_read_is_a_problem_and_is_logged_once_until_it_is_read() {
        let refusals = Refusals::new(Clock::start());
        let why = || Some("realm/servers: Permission denied".to_owned());
        assert_eq!(refusals.not_read(why()), why());
        assert_eq!(refusals.not_read(why()), None, "the same as half a second ago");
        let problems = refusals.problems();
        assert!(problems.iter().any(|problem| problem.contains("realm/servers: Permission denied")), "{problems:?}");
        assert_eq!(refusals.not_read(None), None);
        assert!(refusals.problems().is_empty());
        assert_eq!(refusals.not_read(why()), why());
    }
}

//! The client of consent servers: it asks all nodes of a path at once, opens the answers, and renews ahead of expiry.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use wayleave_core::{IdentityKey, Instant, Machine, Now};
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::Signed;
use wayleave_packet::Path;
use wayleave_packet::icing::header::{PathHash, Version};
use wayleave_packet::icing::mint::{Consent, EpochKey, NodeSecret};

use super::request::{ConsentRequest, RequestedPath};
use super::sealing::{SealingKey, open_with};
use crate::database::Refusal;
use crate::frames::{Body, Frame};
use crate::path::REQUEST_TIMEOUT;
use crate::realm::{Membership, RealmKey, Server};
use crate::rng::Rng;

/// Paths that are kept in consent at a time.
pub const MAX_PATHS_KEPT: usize = 4096;
/// IDs of the own node: of the previous, current and next epoch.
const MAX_IDS: usize = 3;
/// A path that a node refused for packets with sealed payloads is asked for without that for so long: as a consent lasts at most.
const UNSEALED: Duration = Duration::from_secs(3_600);
/// A renewal that failed is tried again after this at first.
const RETRY: Duration = Duration::from_secs(1);

/// What a client needs to know.
pub struct ConsentClientConfig {
    pub identity: SigningKey,
    pub realm: RealmKey,
    /// Uniformly random, and used for nothing else.
    pub seed: Seed,
}

/// What a client is given.
pub enum ConsentClientInput {
    /// The own node's membership, and its IDs, each signed by its identity.
    Node { membership: Signed<Membership>, ids: Vec<(NodeSecret, [u8; EpochKey::LENGTH])> },
    /// A path is to be sent on: `id` names it, `servers` has one for each node behind the sender, and consent is asked for so
    /// many seconds, for packets of the path's version. If that is for sealed payloads and a node does not allow it, or its server is
    /// too old for it, consent is asked for packets of the standard version, and the path that is ready names the node.
    Obtain { id: u64, path: Path, servers: Vec<Server>, seconds: u32 },
    /// The adverts of a path's nodes were renewed: the same path, without consents and with a later expiry. Another is ignored.
    Extend { id: u64, path: Path },
    /// A path is not used any longer.
    Release { id: u64 },
    /// A server answers.
    Frame { from: IdentityKey, octets: Vec<u8> },
    /// A server cannot be reached.
    Unreachable(IdentityKey),
}

/// What a client asks of its driver, and reports.
#[derive(Clone, Debug)]
pub enum ConsentClientOutput {
    Send {
        to: Server,
        octets: Vec<u8>,
    },
    /// Every node consented; the same again, with later consents, ahead of expiry.
    Ready {
        id: u64,
        path: Path,
    },
    /// Not every node consented, or a renewal failed until the consents expired: the path is gone.
    Failed {
        id: u64,
        reasons: Vec<HopFailure>,
    },
    /// A renewal failed; the path can be used until its expiry, and it is tried again.
    Delayed {
        id: u64,
        reasons: Vec<HopFailure>,
    },
}

/// Why a node's consent is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HopFailure {
    /// The node's number on the path.
    pub index: usize,
    pub server: IdentityKey,
    pub fault: HopFault,
}

/// What went wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HopFault {
    #[error("no answer within two seconds")]
    Silent,
    #[error("the server cannot be reached")]
    Unreachable,
    #[error("the server refused: {0}")]
    Refused(Refusal),
    #[error("the server's answer is malformed, or of another kind")]
    Malformed,
    #[error("the answer is not signed by the server")]
    Signature,
    #[error("the answer is for another request")]
    OtherRequest,
    #[error("the answer's expiry is past, or later than was asked for")]
    Expiry,
    #[error("the answer is not sealed to this node")]
    Sealed,
    #[error("the path does not begin at this node, or the servers are not one for each node behind it")]
    Path,
    #[error("too many paths are in use")]
    Full,
    #[error("the node's advert is gone, or names no consent server")]
    NoServer,
}

struct PendingRequest {
    server: IdentityKey,
    /// The request, by its digest.
    digest: [u8; 32],
    expiry: u32,
    outcome: Option<Result<(u32, Consent), HopFault>>,
}

struct Round {
    /// By request number.
    hops: BTreeMap<u32, (usize, PendingRequest)>,
    deadline: Instant,
}

struct Entry {
    /// Without consents.
    path: Path,
    servers: Vec<Server>,
    seconds: u32,
    round: Option<Round>,
    /// The last Unix second of the consents that were handed out.
    ready_until: Option<u64>,
    renew_at: Option<Instant>,
    retry: Duration,
    /// Sealed payloads were done without because of what a node said before.
    is_remembered: bool,
}

/// The client as a machine.
pub struct ConsentClient {
    identity: SigningKey,
    own: IdentityKey,
    realm: RealmKey,
    membership: Option<Signed<Membership>>,
    ids: Vec<(NodeSecret, [u8; EpochKey::LENGTH])>,
    entries: BTreeMap<u64, Entry>,
    /// Which path a request that waits is for.
    waiting: BTreeMap<u32, u64>,
    /// Paths, by the hash for packets of the standard version, of which these nodes refused those with sealed payloads, and until when that is
    /// believed.
    unsealed: HashMap<PathHash, (Vec<usize>, Instant)>,
    /// Of the last answer that was opened.
    opening: Option<SealingKey>,
    next: u32,
    requests: u64,
    rng: Rng,
    outputs: VecDeque<ConsentClientOutput>,
}

impl ConsentClient {
    #[must_use]
    pub fn new(config: ConsentClientConfig) -> Self {
        Self {
            own: IdentityKey(config.identity.verifying_key().to_bytes()),
            identity: config.identity,
            realm: config.realm,
            membership: None,
            ids: Vec::new(),
            entries: BTreeMap::new(),
            waiting: BTreeMap::new(),
            unsealed: HashMap::new(),
            opening: None,
            next: 1,
            requests: 0,
            rng: Rng::new(config.seed),
            outputs: VecDeque::new(),
        }
    }

    /// Fresh entropy of the system; the driver gives it before every input.
    pub fn reseed(&mut self, fresh: &Seed) {
        self.rng.reseed(fresh);
    }

    /// Requests that were sent so far: packets on a path that has its consents add none.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests
    }

    fn obtain(&mut self, id: u64, mut path: Path, servers: Vec<Server>, seconds: u32, now: Now) {
        let first = path.nodes().next();
        let is_own = first.is_some_and(|(identity, node, _)| {
            identity == self.own && self.ids.iter().any(|(secret, _)| secret.id() == node)
        });
        let fault = match () {
            () if !is_own || servers.len() + 1 != path.nodes().len() => Some(HopFault::Path),
            () if self.entries.len() >= MAX_PATHS_KEPT && !self.entries.contains_key(&id) => Some(HopFault::Full),
            () => None,
        };
        if let Some(fault) = fault {
            let reasons = vec![HopFailure { index: 0, server: self.own, fault }];
            return self.outputs.push_back(ConsentClientOutput::Failed { id, reasons });
        }
        self.release(id);
        let is_remembered = self.choose_version(&mut path, now.instant);
        let (round, ready_until, renew_at, retry) = (None, None, None, RETRY);
        let entry = Entry { path, servers, seconds, round, ready_until, renew_at, retry, is_remembered };
        self.entries.insert(id, entry);
        self.ask(id, now);
    }

    /// Does without sealed payloads on a path of which a node refused them lately; returns whether that is so.
    fn choose_version(&self, path: &mut Path, now: Instant) -> bool {
        let hash = path.consent_hash(Version::Standard).ok();
        let known = hash.and_then(|hash| self.unsealed.get(&hash)).filter(|(_, until)| now < *until);
        let (Version::Sealed, Some((nodes, _))) = (path.version(), known) else { return false };
        path.set_version(Version::Standard);
        nodes.iter().for_each(|index| path.add_unsealed_by(*index));
        true
    }

    /// If nodes refused packets with sealed payloads alone, remembers that and returns true.
    fn does_without_seals(&mut self, path: &Path, reasons: &[HopFailure], now: Instant) -> bool {
        // A server of before does not know the request.
        let is_about_seals =
            |failure: &HopFailure| matches!(failure.fault, HopFault::Refused(Refusal::Profile | Refusal::Malformed));
        if path.version() != Version::Sealed || reasons.is_empty() || !reasons.iter().all(is_about_seals) {
            return false;
        }
        if self.unsealed.len() >= MAX_PATHS_KEPT {
            self.unsealed.retain(|_, (_, until)| now < *until);
        }
        if self.unsealed.len() < MAX_PATHS_KEPT
            && let Ok(hash) = path.consent_hash(Version::Standard)
        {
            let nodes = reasons.iter().map(|failure| failure.index).collect();
            self.unsealed.insert(hash, (nodes, now + UNSEALED));
        }
        true
    }

    /// Asks every node of a path at once.
    fn ask(&mut self, id: u64, now: Now) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let nodes: Vec<_> = entry.path.nodes().collect();
        let sender = nodes.first().map(|(_, sender, _)| *sender);
        let own = self.ids.iter().find(|(secret, _)| Some(secret.id()) == sender);
        let (Some(membership), Some(sender), Some((_, epoch_key))) = (self.membership.clone(), sender, own) else {
            // The node's ID is another by now: whoever uses the path must find one with the new ID.
            self.entries.remove(&id);
            let reasons = vec![HopFailure { index: 0, server: self.own, fault: HopFault::Path }];
            return self.outputs.push_back(ConsentClientOutput::Failed { id, reasons });
        };
        let path = RequestedPath { sender, hops: nodes.iter().skip(1).map(|(_, node, tag)| (*node, *tag)).collect() };
        let time = now.unix.secs();
        let wanted = time.saturating_add(entry.seconds.into()).min(entry.path.expiry());
        let expiry = u32::try_from(wanted).unwrap_or(u32::MAX);
        let mut hops = BTreeMap::new();
        for (index, server) in (1..).zip(&entry.servers) {
            let request = ConsentRequest {
                realm: self.realm,
                server: server.identity,
                sender: self.own,
                nonce: self.rng.bytes(),
                time,
                path: path.clone(),
                index: index as u8,
                expiry,
                epoch_key: *epoch_key,
                packets: entry.path.version(),
            };
            let number = self.next;
            self.next = self.next.checked_add(1).unwrap_or(1);
            let mut pending = PendingRequest { server: server.identity, digest: [0; 32], expiry, outcome: None };
            match Signed::sign(&request, &self.identity) {
                Ok(request) => {
                    pending.digest = request.digest();
                    self.requests += 1;
                    let body = Body::Consent { membership: membership.clone(), request };
                    let octets = Frame { request: number, body }.encode();
                    self.outputs.push_back(ConsentClientOutput::Send { to: server.clone(), octets });
                }
                Err(_) => pending.outcome = Some(Err(HopFault::Path)),
            }
            self.waiting.insert(number, id);
            hops.insert(number, (index, pending));
        }
        entry.round = Some(Round { hops, deadline: now.instant + REQUEST_TIMEOUT });
        entry.renew_at = None;
    }

    fn frame(&mut self, from: IdentityKey, octets: &[u8], now: Now) {
        let frame = Frame::decode(octets);
        let number = frame.as_ref().map_or(0, |frame| frame.request);
        // A malformed frame is the answer to all that was asked of its sender.
        let ids: Vec<u64> = match frame {
            Ok(_) => self.waiting.get(&number).copied().into_iter().collect(),
            Err(_) => self.entries.keys().copied().collect(),
        };
        for id in ids {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            let Some(round) = &mut entry.round else { continue };
            let secret = entry.path.nodes().next().map(|(_, node, _)| node);
            let secret = secret.and_then(|node| self.ids.iter().find(|(secret, _)| secret.id() == node));
            let mut is_answer = false;
            for (request, (_, pending)) in &mut round.hops {
                // Another's answer, or one that came before, changes nothing.
                if pending.server != from || pending.outcome.is_some() || frame.is_ok() && *request != number {
                    continue;
                }
                is_answer = true;
                pending.outcome = Some(match (&frame, secret) {
                    (Ok(Frame { body: Body::Refused(refusal), .. }), _) => Err(HopFault::Refused(*refusal)),
                    (Ok(Frame { body: Body::Consented(answer), .. }), Some((secret, _))) => {
                        check_answer(answer, pending, self.realm, (secret, &mut self.opening), now.unix.secs())
                    }
                    _ => Err(HopFault::Malformed),
                });
            }
            if is_answer {
                self.finish(id, now, false);
            }
        }
    }

    /// Ends a round that is complete, or whose time is over.
    fn finish(&mut self, id: u64, now: Now, is_over: bool) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let Some(round) = &entry.round else { return };
        if !is_over && round.hops.values().any(|(_, pending)| pending.outcome.is_none()) {
            return;
        }
        let Some(round) = entry.round.take() else { return };
        round.hops.keys().for_each(|number| {
            self.waiting.remove(number);
        });
        let mut path = entry.path.clone();
        let mut reasons = Vec::new();
        for (index, pending) in round.hops.into_values() {
            let added = match pending.outcome.unwrap_or(Err(HopFault::Silent)) {
                Ok((expiry, consent)) => path.add_consent(index, expiry, consent).map_err(|_| HopFault::Path),
                Err(fault) => Err(fault),
            };
            if let Err(fault) = added {
                reasons.push(HopFailure { index, server: pending.server, fault });
            }
        }
        if self.does_without_seals(&path, &reasons, now.instant)
            && let Some(entry) = self.entries.get_mut(&id)
        {
            entry.path.set_version(Version::Standard);
            reasons.iter().for_each(|failure| entry.path.add_unsealed_by(failure.index));
            return self.ask(id, now);
        }
        let Some(entry) = self.entries.get_mut(&id) else { return };
        // What the node said before may hold no more: the other profile is asked for once.
        let is_refused = reasons.iter().any(|failure| matches!(failure.fault, HopFault::Refused(_)));
        if is_refused && std::mem::take(&mut entry.is_remembered) {
            entry.path.set_version(Version::Sealed);
            if let Ok(hash) = entry.path.consent_hash(Version::Standard) {
                self.unsealed.remove(&hash);
            }
            return self.ask(id, now);
        }
        let unix = now.unix.secs();
        if reasons.is_empty() {
            let left = path.expiry().saturating_sub(unix);
            entry.ready_until = Some(path.expiry());
            // A third of the time remains for servers that are slow or down.
            entry.renew_at = Some(now.instant + Duration::from_secs(left.saturating_sub(left / 3).max(1)));
            entry.retry = RETRY;
            return self.outputs.push_back(ConsentClientOutput::Ready { id, path });
        }
        if entry.ready_until.is_some_and(|until| until > unix) {
            entry.renew_at = Some(now.instant + entry.retry);
            entry.retry = (entry.retry * 2).min(Duration::from_secs(30));
            return self.outputs.push_back(ConsentClientOutput::Delayed { id, reasons });
        }
        self.entries.remove(&id);
        self.outputs.push_back(ConsentClientOutput::Failed { id, reasons });
    }

    fn release(&mut self, id: u64) {
        let round = self.entries.remove(&id).and_then(|entry| entry.round);
        for number in round.iter().flat_map(|round| round.hops.keys()) {
            self.waiting.remove(number);
        }
    }

    fn unreachable(&mut self, server: IdentityKey, now: Now) {
        let ids: Vec<u64> = self.entries.keys().copied().collect();
        for id in ids {
            let round = self.entries.get_mut(&id).and_then(|entry| entry.round.as_mut());
            let hops = round.into_iter().flat_map(|round| round.hops.values_mut());
            let mut waiting =
                hops.filter(|(_, pending)| pending.server == server && pending.outcome.is_none()).peekable();
            if waiting.peek().is_some() {
                waiting.for_each(|(_, pending)| pending.outcome = Some(Err(HopFault::Unreachable)));
                self.finish(id, now, false);
            }
        }
    }
}

/// Whether two paths lead over the same nodes by the same IDs and tags.
fn is_same(one: &Path, other: &Path) -> bool {
    one.nodes().eq(other.nodes())
}

fn check_answer(
    answer: &Signed<super::ConsentAnswer>,
    pending: &PendingRequest,
    realm: RealmKey,
    (secret, opening): (&NodeSecret, &mut Option<SealingKey>),
    unix: u64,
) -> Result<(u32, Consent), HopFault> {
    let object = answer.verify(&pending.server.0).map_err(|_| HopFault::Signature)?;
    if object.request != pending.digest || object.server != pending.server || object.realm != realm {
        return Err(HopFault::OtherRequest);
    }
    if u64::from(object.expiry) < unix || object.expiry > pending.expiry {
        return Err(HopFault::Expiry);
    }
    // A server that consents for several nodes of a path may seal all its answers with one ephemeral key.
    let known = opening.take().filter(|key| *key.ephemeral() == object.ephemeral && *key.id() == secret.id());
    let key = match known {
        Some(key) => key,
        None => SealingKey::of(&object.ephemeral, secret).map_err(|_| HopFault::Sealed)?,
    };
    let consent = open_with(object, opening.insert(key)).map_err(|_| HopFault::Sealed)?;
    Ok((object.expiry, consent))
}

impl Machine for ConsentClient {
    type Input = ConsentClientInput;
    type Output = ConsentClientOutput;

    fn handle(&mut self, input: ConsentClientInput, now: Now) {
        match input {
            ConsentClientInput::Node { membership, mut ids } => {
                ids.truncate(MAX_IDS);
                self.membership = Some(membership);
                self.ids = ids;
            }
            ConsentClientInput::Obtain { id, path, servers, seconds } => self.obtain(id, path, servers, seconds, now),
            ConsentClientInput::Extend { id, path } => {
                let entry = self.entries.get_mut(&id);
                // A round that is under way asked for the earlier expiry, which holds for the later one too.
                if let Some(entry) = entry.filter(|entry| is_same(&entry.path, &path)) {
                    let before = std::mem::replace(&mut entry.path, path);
                    entry.path.set_version(before.version());
                    before.unread_by().for_each(|index| entry.path.add_unread_by(index));
                    before.unsealed_by().for_each(|index| entry.path.add_unsealed_by(index));
                }
            }
            ConsentClientInput::Release { id } => self.release(id),
            ConsentClientInput::Frame { from, octets } => self.frame(from, &octets, now),
            ConsentClientInput::Unreachable(server) => self.unreachable(server, now),
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        let is_over = |entry: &Entry| entry.round.as_ref().is_some_and(|round| round.deadline <= now.instant);
        let over: Vec<u64> = self.entries.iter().filter(|(_, entry)| is_over(entry)).map(|(id, _)| *id).collect();
        over.into_iter().for_each(|id| self.finish(id, now, true));
        let is_due = |entry: &Entry| entry.round.is_none() && entry.renew_at.is_some_and(|at| at <= now.instant);
        let due: Vec<u64> = self.entries.iter().filter(|(_, entry)| is_due(entry)).map(|(id, _)| *id).collect();
        due.into_iter().for_each(|id| self.ask(id, now));
    }

    fn poll(&mut self) -> Option<ConsentClientOutput> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        let rounds = self.entries.values().filter_map(|entry| entry.round.as_ref().map(|round| round.deadline));
        let renewals = self.entries.values().filter(|entry| entry.round.is_none()).filter_map(|entry| entry.renew_at);
        rounds.chain(renewals).min()
    }
}

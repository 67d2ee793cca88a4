//! Reply capabilities between two stampers (paper, section 4.2): a client's stamper hands a server's stamper a capability for
//! packets to the client, so that the client pays for both directions.
//!
//! Two machines without I/O. [`ReplyRequests`] is the client's: it begins when packets to a server take a route that pays for
//! replies, and repeats its hello until the server acknowledges. [`ReplyGrants`] is the server's: until a grant is open it keeps
//! nothing of a client, and computes nothing but a MAC.
//! Their messages are the options of [`wayleave_packet::platypus::mint::reply`], in packets of their own that carry nothing else
//! ([`NO_NEXT_HEADER`]), so that packets of connections keep their length.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use wayleave_core::{Instant, Now, Prefix, UnixTime};
use wayleave_crypto::secret::Seed;
use wayleave_packet::platypus::header::{Capability, Carriage, Interval, Packet};
use wayleave_packet::platypus::mint::reply::{
    Acknowledgement, Granted, Opened, Parties, ReplyClient, ReplyOption, ReplyServer,
};
use wayleave_packet::platypus::mint::{Hop, epoch};
use wayleave_packet::platypus::verify::is_martian;

use crate::limit::TokenBucket;

/// The inner protocol of packets that carry an option and nothing else: no next header (IANA's protocol numbers, RFC 8200
/// section 4.7).
pub const NO_NEXT_HEADER: u8 = 59;
/// Servers that a client's stamper knows the state of, at most.
pub const MAX_SERVERS: usize = 4_096;
/// Clients that a server's stamper holds capabilities of, at most.
pub const MAX_CLIENTS: usize = 4_096;
/// Of these, clients of one /24 (IPv6: /56), which is often one customer's: a few networks do not fill the table.
pub const MAX_OF_NETWORK: usize = 64;
/// The longest key epoch, in the exponent of its seconds, of a capability that a client may grant: 18 hours. The client chooses it, and
/// the server holds the capability until the epoch after it has ended.
pub const LONGEST_GRANT: u8 = 16;
/// Seconds from the first hello to the second; each further one waits twice as long, up to `LONGEST_RETRY`.
const RETRY: u64 = 1;
const LONGEST_RETRY: u64 = 64;
/// Seconds from an acknowledgement to the next hello: a server that was started anew, or gave the capability up for others', is handed
/// it again.
const CHECK: u64 = 30;
/// Grants of one key whose acknowledgement counts: those of late offers may be under way when the server opens one.
const MAX_GRANTS: usize = 4;
/// Hellos that a server answers in a second, and grants that it opens, each two Diffie-Hellman agreements.
const OFFERS: u32 = 1_000;
const ACCEPTS: u32 = 200;

/// The state of one server.
#[derive(Debug)]
struct Request {
    /// Of the capability that it is to have.
    epoch: u32,
    client: Box<ReplyClient>,
    /// Hellos since the last acknowledgement.
    hellos: u32,
    /// When the next one is due.
    due: Instant,
    /// The last hello has not led to a grant yet.
    may_grant: bool,
    /// Of the latest grants.
    acknowledgements: VecDeque<Acknowledgement>,
    is_acknowledged: bool,
}

impl Request {
    fn hello(&mut self, now: Instant) -> Vec<u8> {
        let wait = RETRY.checked_shl(self.hellos).map_or(LONGEST_RETRY, |wait| wait.min(LONGEST_RETRY));
        (self.due, self.hellos, self.may_grant) =
            (now + Duration::from_secs(wait), self.hellos.saturating_add(1), true);
        self.client.hello()
    }
}

/// What a client's stamper knows of servers' stampers.
#[derive(Debug, Default)]
pub struct ReplyRequests {
    servers: HashMap<IpAddr, Request>,
}

impl ReplyRequests {
    /// Notes that a packet to `server` leaves on a route that pays for replies, with capabilities of key epoch `epoch`. Returns the
    /// option to send to it now, if one is due. `seed` must be fresh whenever it is called.
    pub fn leaves(
        &mut self,
        server: IpAddr,
        epoch: u32,
        now: Instant,
        seed: impl FnOnce() -> Option<Seed>,
    ) -> Option<Vec<u8>> {
        // Until it has one, an epoch that begins makes nobody ask more often.
        let is_current = |request: &&mut Request| request.epoch == epoch || !request.is_acknowledged;
        if let Some(request) = self.servers.get_mut(&server).filter(is_current) {
            return (request.due <= now).then(|| request.hello(now));
        }
        // New, or the capability that it has is of an epoch that ends.
        if !self.servers.contains_key(&server) && self.servers.len() >= MAX_SERVERS {
            self.forget(now);
        }
        let mut request = Request {
            epoch,
            client: Box::new(ReplyClient::new(&seed()?)),
            hellos: 0,
            due: now,
            may_grant: false,
            acknowledgements: VecDeque::new(),
            is_acknowledged: false,
        };
        let hello = request.hello(now);
        self.servers.insert(server, request);
        Some(hello)
    }

    /// Makes room: servers whose answer is overdue go, or else any one.
    fn forget(&mut self, now: Instant) {
        self.servers.retain(|_, request| request.is_acknowledged || request.due > now);
        if self.servers.len() >= MAX_SERVERS
            && let Some(any) = self.servers.keys().next().copied()
        {
            self.servers.remove(&any);
        }
    }

    /// Answers an offer in `packet`, which came for `client`, with a grant. `granted` is delegated to the client's address alone.
    pub fn offered(
        &mut self,
        packet: &Packet<'_>,
        client: IpAddr,
        granted: impl FnOnce(IpAddr) -> Option<Granted>,
    ) -> Option<(IpAddr, Vec<u8>)> {
        let server = packet.original_source();
        // Only a server that was asked, and once for each hello.
        let request = self.servers.get_mut(&server).filter(|request| request.may_grant)?;
        let (option, _) = ReplyOption::decode(packet.payload()).ok()?;
        let parties = Parties { client, server, protocol: packet.inner_protocol() };
        let granted = granted(server)?;
        let grant = request.client.grant(&option, &parties, None, &granted).ok()?;
        (request.epoch, request.may_grant, request.is_acknowledged) = (granted.capability.epoch, false, false);
        if request.acknowledgements.len() >= MAX_GRANTS {
            request.acknowledgements.pop_front();
        }
        request.acknowledgements.push_back(grant.acknowledgement);
        Some((server, grant.option))
    }

    /// Takes an acknowledgement in `packet`: the server has the capability, and is asked again some time later only. Returns whether it
    /// was one of a grant of ours.
    pub fn acknowledged(&mut self, packet: &Packet<'_>, now: Instant) -> bool {
        let Ok((option, _)) = ReplyOption::decode(packet.payload()) else { return false };
        let (Some(acknowledgement), Some(request)) =
            (option.acknowledgement(), self.servers.get_mut(&packet.original_source()))
        else {
            return false;
        };
        if !request.acknowledgements.contains(&acknowledgement) {
            return false;
        }
        (request.due, request.hellos, request.is_acknowledged) = (now + Duration::from_secs(CHECK), 0, true);
        true
    }

    /// Servers that acknowledged a capability.
    #[must_use]
    pub fn granted(&self) -> usize {
        self.servers.values().filter(|request| request.is_acknowledged).count()
    }
}

/// What a server's stamper does about an option.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// This option goes to the client: an offer, or the acknowledgement of what it granted before.
    Option(IpAddr, Vec<u8>),
    /// Packets to this client are stamped with what it granted from now on, and this acknowledgement goes to it.
    Granted(IpAddr, Vec<u8>),
}

/// A client's capability.
#[derive(Debug)]
struct Client {
    hop: Hop,
    /// What its grant came in: what reaches the server so may pass the other way too.
    carriage: Carriage,
    /// The client's public key, and what a hello with it is answered.
    key: [u8; 32],
    acknowledgement: Acknowledgement,
    /// How many grants were taken before this one.
    order: u64,
}

/// What a server's stamper holds of clients.
#[derive(Debug)]
pub struct ReplyGrants {
    server: ReplyServer,
    waypoints: Vec<Prefix>,
    clients: BTreeMap<IpAddr, Client>,
    taken: u64,
    offers: TokenBucket,
    accepts: TokenBucket,
    /// Options that were refused: malformed, stale, of another connection, over a limit.
    pub refused: u64,
    /// Of these, grants for waypoints that the operator does not name.
    pub other_waypoint: u64,
}

/// The addresses that count together, from the first to the last.
fn network(client: IpAddr) -> (IpAddr, IpAddr) {
    match client {
        IpAddr::V4(v4) => {
            let first = v4.to_bits() & !0xff;
            (IpAddr::V4(first.into()), IpAddr::V4((first | 0xff).into()))
        }
        IpAddr::V6(v6) => {
            let host = u128::MAX >> 56;
            let first = v6.to_bits() & !host;
            (IpAddr::V6(first.into()), IpAddr::V6((first | host).into()))
        }
    }
}

impl ReplyGrants {
    /// `seed` must be random. Clients may grant capabilities for `waypoints` alone: all packets to a client go to the waypoint that it
    /// granted, and any other would be a host that the client chose as the target of the server's packets.
    #[must_use]
    pub fn new(seed: &Seed, waypoints: Vec<Prefix>) -> Self {
        Self {
            server: ReplyServer::new(seed, None),
            waypoints,
            clients: BTreeMap::new(),
            taken: 0,
            offers: TokenBucket::new(OFFERS, OFFERS),
            accepts: TokenBucket::new(ACCEPTS, ACCEPTS),
            refused: 0,
            other_waypoint: 0,
        }
    }

    /// Handles the option of `packet`, which came for `server`.
    pub fn receive(&mut self, packet: &Packet<'_>, server: IpAddr, now: Now) -> Option<Answer> {
        let answer = self.try_receive(packet, server, now);
        self.refused += u64::from(answer.is_none());
        answer
    }

    fn try_receive(&mut self, packet: &Packet<'_>, server: IpAddr, now: Now) -> Option<Answer> {
        let client = packet.original_source();
        let parties = Parties { client, server, protocol: packet.inner_protocol() };
        let (option, _) = ReplyOption::decode(packet.payload()).ok()?;
        if let Some(key) = option.hello() {
            if let Some(held) = self.clients.get(&client).filter(|held| held.key == key) {
                return Some(Answer::Option(client, held.acknowledgement.option()));
            }
            if !self.offers.take(now.instant) {
                return None;
            }
            return Some(Answer::Option(client, self.server.offer(&option, &parties, now.unix).ok()?));
        }
        // What anybody can send takes nothing of what there is for clients.
        self.server.check(&option, &parties, now.unix).ok()?;
        if !self.accepts.take(now.instant) {
            return None;
        }
        let Opened { granted: Granted { capability, key: stamping }, client: key, acknowledgement } =
            self.server.accept(&option, &parties, now.unix).ok()?;
        if !self.is_named(capability.waypoint) {
            self.other_waypoint += 1;
            return None;
        }
        if !is_fit(&capability, now.unix) {
            return None;
        }
        self.make_room(client);
        let (answer, hop) = (acknowledgement.option(), Hop { capability, key: stamping });
        let carriage = packet.outer().carriage;
        self.clients.insert(client, Client { hop, carriage, key, acknowledgement, order: self.taken });
        self.taken += 1;
        Some(Answer::Granted(client, answer))
    }

    /// Whether clients may grant capabilities for this waypoint.
    fn is_named(&self, waypoint: IpAddr) -> bool {
        let length = if waypoint.is_ipv4() { 32 } else { 128 };
        let host = Prefix::new(waypoint, length);
        !is_martian(waypoint) && host.is_ok_and(|host| self.waypoints.iter().any(|named| named.contains(&host)))
    }

    /// The oldest grants leave for a new one, so that nobody who came first keeps others out: those of the client's own network if it
    /// has its number, else those of the network that has most.
    fn make_room(&mut self, client: IpAddr) {
        if self.clients.contains_key(&client) {
            return;
        }
        let (first, last) = network(client);
        let own = || self.clients.range(first..=last);
        let oldest = if own().count() >= MAX_OF_NETWORK {
            own().min_by_key(|(_, held)| held.order).map(|(address, _)| *address)
        } else if self.clients.len() >= MAX_CLIENTS {
            self.oldest_of_largest()
        } else {
            None
        };
        if let Some(oldest) = oldest {
            self.clients.remove(&oldest);
        }
    }

    fn oldest_of_largest(&self) -> Option<IpAddr> {
        let clients: Vec<(IpAddr, u64)> = self.clients.iter().map(|(client, held)| (*client, held.order)).collect();
        // In order of their addresses those of a network stand together.
        let networks = clients.chunk_by(|(one, _), (other, _)| network(*one) == network(*other));
        let oldest = networks.filter_map(|of| {
            let (client, order) = of.iter().min_by_key(|(_, order)| *order)?;
            Some(((of.len(), Reverse(*order)), *client))
        });
        oldest.max_by_key(|(rank, _)| *rank).map(|(_, client)| client)
    }

    /// The clients, what packets to each are stamped with, and what carries them.
    pub fn clients(&self) -> impl Iterator<Item = (IpAddr, &Hop, Carriage)> {
        self.clients.iter().map(|(client, held)| (*client, &held.hop, held.carriage))
    }

    /// Gives up capabilities that no waypoint accepts any longer. Returns whether there were any.
    pub fn expire(&mut self, now: UnixTime) -> bool {
        let before = self.clients.len();
        let is_accepted = |of: &Capability| epoch::is_accepted(of.interval, of.epoch, now);
        self.clients.retain(|_, held| is_accepted(&held.hop.capability));
        self.clients.len() < before
    }
}

/// Whether a client may grant this capability now.
fn is_fit(capability: &Capability, now: UnixTime) -> bool {
    let Capability { interval, epoch, .. } = *capability;
    let is_short = Interval::new(LONGEST_GRANT).is_some_and(|longest| interval <= longest);
    is_short && epoch::is_accepted(interval, epoch, now) && capability.is_consistent()
}

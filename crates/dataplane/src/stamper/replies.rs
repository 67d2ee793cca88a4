//! Reply capabilities between two stampers (paper, section 4.2): a client's stamper hands a server's stamper a capability for
//! packets to the client, so that the client pays for both directions.
//!
//! Two machines without I/O. [`ReplyRequests`] is the client's: it begins when packets to a server take a route that pays for
//! replies. [`ReplyGrants`] is the server's: until a grant is open it keeps nothing of a client, and computes nothing but a MAC.
//! Their messages are the options of [`wayleave_packet::platypus::mint::reply`], in packets of their own that carry nothing else
//! ([`NO_NEXT_HEADER`]), so that packets of connections keep their length.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use wayleave_core::{Instant, Now, UnixTime};
use wayleave_crypto::secret::Seed;
use wayleave_packet::platypus::header::Packet;
use wayleave_packet::platypus::mint::reply::{Granted, Parties, ReplyClient, ReplyOption, ReplyServer};
use wayleave_packet::platypus::mint::{Hop, epoch};

use crate::limit::TokenBucket;

/// The inner protocol of packets that carry an option and nothing else: no next header (IANA's protocol numbers, RFC 8200
/// section 4.7).
pub const NO_NEXT_HEADER: u8 = 59;
/// Servers that a client's stamper knows the state of, at most.
pub const MAX_SERVERS: usize = 4_096;
/// Clients that a server's stamper holds capabilities of, at most.
pub const MAX_CLIENTS: usize = 4_096;
/// Hellos in a row, a second apart, before a pause.
const TRIES: u32 = 3;
/// Seconds between hellos.
const RETRY: u64 = 1;
/// Seconds after which a server that does not answer is asked again.
const PAUSE: u64 = 60;
/// Grants that one hello may lead to.
const MAX_GRANTS: u32 = 3;
/// Hellos that a server answers in a second, and grants that it opens, each two Diffie-Hellman agreements.
const OFFERS: u32 = 1_000;
const ACCEPTS: u32 = 200;

/// The state of one server.
#[derive(Debug)]
enum Request {
    /// Hellos were sent with this key; the next one is due then.
    Asked { client: Box<ReplyClient>, tries: u32, due: Instant },
    /// It was sent a capability of this epoch, so many times.
    Granted { epoch: u32, client: Box<ReplyClient>, grants: u32 },
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
        match self.servers.get_mut(&server) {
            Some(Request::Granted { epoch: of, .. }) if *of == epoch => None,
            Some(Request::Asked { client, tries, due }) => {
                if now < *due {
                    return None;
                }
                *tries += 1;
                let wait = if tries.is_multiple_of(TRIES) { PAUSE } else { RETRY };
                *due = now + Duration::from_secs(wait);
                Some(client.hello())
            }
            // New, or the capability that it has is of an epoch that ends.
            known => {
                if known.is_none() && self.servers.len() >= MAX_SERVERS {
                    self.forget(now);
                }
                let client = Box::new(ReplyClient::new(&seed()?));
                let hello = client.hello();
                let due = now + Duration::from_secs(RETRY);
                self.servers.insert(server, Request::Asked { client, tries: 1, due });
                Some(hello)
            }
        }
    }

    /// Makes room: servers whose answer is overdue go, or else any one.
    fn forget(&mut self, now: Instant) {
        self.servers.retain(|_, request| !matches!(request, Request::Asked { due, .. } if *due <= now));
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
        // Only a server that was asked. An offer that somebody else sent in its name does not keep the server's own from being
        // answered, unless there are too many.
        let (ours, grants) = match self.servers.get(&server)? {
            Request::Asked { client, .. } => (client, 0),
            Request::Granted { client, grants, .. } if *grants < MAX_GRANTS => (client, *grants),
            Request::Granted { .. } => return None,
        };
        let (option, _) = ReplyOption::decode(packet.payload()).ok()?;
        let parties = Parties { client, server, protocol: packet.inner_protocol() };
        let granted = granted(server)?;
        let grant = ours.grant(&option, &parties, None, &granted).ok()?;
        let (client, grants) = (ours.clone(), grants + 1);
        self.servers.insert(server, Request::Granted { epoch: granted.capability.epoch, client, grants });
        Some((server, grant))
    }

    /// Servers that have a capability.
    #[must_use]
    pub fn granted(&self) -> usize {
        self.servers.values().filter(|request| matches!(request, Request::Granted { .. })).count()
    }
}

/// What a server's stamper does about an option.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// This option goes to the client.
    Offer(IpAddr, Vec<u8>),
    /// Packets to this client are stamped with what it granted from now on.
    Granted(IpAddr),
}

/// What a server's stamper holds of clients.
#[derive(Debug)]
pub struct ReplyGrants {
    server: ReplyServer,
    clients: BTreeMap<IpAddr, Hop>,
    offers: TokenBucket,
    accepts: TokenBucket,
    /// Options that were refused: malformed, stale, of another connection, over a limit.
    pub refused: u64,
}

impl ReplyGrants {
    /// `seed` must be random.
    #[must_use]
    pub fn new(seed: &Seed) -> Self {
        Self {
            server: ReplyServer::new(seed, None),
            clients: BTreeMap::new(),
            offers: TokenBucket::new(OFFERS, OFFERS),
            accepts: TokenBucket::new(ACCEPTS, ACCEPTS),
            refused: 0,
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
        if option.is_hello() {
            if !self.offers.take(now.instant) {
                return None;
            }
            return Some(Answer::Offer(client, self.server.offer(&option, &parties, now.unix).ok()?));
        }
        if !self.accepts.take(now.instant) {
            return None;
        }
        let Granted { capability, key } = self.server.accept(&option, &parties, now.unix).ok()?;
        let is_fit = epoch::is_accepted(capability.interval, capability.epoch, now.unix)
            && capability.is_consistent()
            && (self.clients.len() < MAX_CLIENTS || self.clients.contains_key(&client));
        if !is_fit {
            return None;
        }
        self.clients.insert(client, Hop { capability, key });
        Some(Answer::Granted(client))
    }

    /// The clients, and what packets to each are stamped with.
    pub fn clients(&self) -> impl Iterator<Item = (IpAddr, &Hop)> {
        self.clients.iter().map(|(client, hop)| (*client, hop))
    }

    /// Gives up capabilities that no waypoint accepts any longer. Returns whether there were any.
    pub fn expire(&mut self, now: UnixTime) -> bool {
        let before = self.clients.len();
        self.clients.retain(|_, hop| epoch::is_accepted(hop.capability.interval, hop.capability.epoch, now));
        self.clients.len() < before
    }
}

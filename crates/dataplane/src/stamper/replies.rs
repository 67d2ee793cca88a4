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
/// Servers that a client begins to ask in a second: each takes a key of its own.
const NEW_SERVERS: u32 = 100;
/// Seconds after which a server that has a capability may be forgotten for a new one, if nothing has left for it.
const IDLE: u64 = 3_600;
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
#[derive(Debug)]
pub struct ReplyRequests {
    servers: HashMap<IpAddr, Request>,
    new: TokenBucket,
}

impl Default for ReplyRequests {
    fn default() -> Self {
        Self { servers: HashMap::new(), new: TokenBucket::new(NEW_SERVERS, NEW_SERVERS) }
    }
}

impl ReplyRequests {
    /// Notes that a packet to `server` leaves on a route that pays for replies, with capabilities of key epoch `epoch`. Returns the
    /// option to send to it now, if one is due and the limits of new servers allow it. `seed` must be fresh whenever it is called.
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
        let has_place = self.servers.contains_key(&server) || self.new.take(now) && self.make_room(now);
        if !has_place {
            return None;
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

    /// Makes room: servers whose answer is overdue go, or else any one that has no capability. Those that have one stay while packets leave
    /// for them: whoever has this host send to ever new addresses does not take them away. Returns whether there is room.
    fn make_room(&mut self, now: Instant) -> bool {
        if self.servers.len() < MAX_SERVERS {
            return true;
        }
        let idle = Duration::from_secs(IDLE);
        let is_kept = |request: &Request| match request.is_acknowledged {
            true => request.due + idle > now,
            false => request.due > now,
        };
        self.servers.retain(|_, request| is_kept(request));
        if self.servers.len() >= MAX_SERVERS {
            let any = self.servers.iter().find(|(_, request)| !request.is_acknowledged).map(|(server, _)| *server);
            let Some(any) = any else { return false };
            self.servers.remove(&any);
        }
        true
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

/// The addresses that count together, from the first to the last: a /24, or a /56 of IPv6.
fn network(client: IpAddr) -> (IpAddr, IpAddr) {
    within(client, 56)
}

/// The networks that count together when the table is full: a /32 of IPv6, which is one provider's, since who has a /44 has 4,096 networks
/// of a /56. Of IPv4 nobody has many for nothing.
fn provider(client: IpAddr) -> (IpAddr, IpAddr) {
    within(client, 32)
}

/// The first and the last address of a client's /24, or of its network of `length` bits of IPv6.
fn within(client: IpAddr, length: u32) -> (IpAddr, IpAddr) {
    match client {
        IpAddr::V4(v4) => {
            let first = v4.to_bits() & !0xff;
            (IpAddr::V4(first.into()), IpAddr::V4((first | 0xff).into()))
        }
        IpAddr::V6(v6) => {
            let host = u128::MAX >> length;
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
    /// has its number, else those of the largest network of the provider that has most.
    fn make_room(&mut self, client: IpAddr) {
        if self.clients.contains_key(&client) {
            return;
        }
        let (first, last) = network(client);
        let own = || self.clients.range(first..=last);
        let oldest = if own().count() >= MAX_OF_NETWORK {
            own().min_by_key(|(_, held)| held.order).map(|(address, _)| *address)
        } else if self.clients.len() >= MAX_CLIENTS {
            let all: Vec<_> = self.clients.iter().map(|(client, held)| (*client, held.order)).collect();
            leaving(&all)
        } else {
            None
        };
        if let Some(oldest) = oldest {
            self.clients.remove(&oldest);
        }
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

/// Clients, in order of their addresses, and how many grants were taken before each one's.
type Held<'a> = &'a [(IpAddr, u64)];

/// Those of the network that has most clients, and of several such the one that has the oldest. In order of their addresses those of a network
/// stand together.
fn largest(clients: Held<'_>, network: impl Fn(IpAddr) -> (IpAddr, IpAddr)) -> Held<'_> {
    let networks = clients.chunk_by(|(one, _), (other, _)| network(*one) == network(*other));
    let oldest = |of: Held<'_>| of.iter().map(|(_, order)| *order).min();
    networks.max_by_key(|of| (of.len(), Reverse(oldest(of)))).unwrap_or_default()
}

/// Which client leaves where all places are taken.
fn leaving(clients: Held<'_>) -> Option<IpAddr> {
    let of = largest(largest(clients, provider), network);
    of.iter().min_by_key(|(_, order)| *order).map(|(client, _)| *client)
}

/// Whether a client may grant this capability now.
fn is_fit(capability: &Capability, now: UnixTime) -> bool {
    let Capability { interval, epoch, .. } = *capability;
    let is_short = Interval::new(LONGEST_GRANT).is_some_and(|longest| interval <= longest);
    is_short && epoch::is_accepted(interval, epoch, now) && capability.is_consistent()
}

#[cfg(test)]
mod tests {
    //! PLA, replies: one holder of an IPv6 /44 with a client in each of its networks, a host that is made to send to ever new servers.

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn who_has_many_networks_of_ipv6_makes_room_for_others_out_of_them() {
        // Others came first: one of each family, and two of one network.
        let others = ["192.0.2.1", "2001:db8:1:100::1", "2001:db8:2::1", "2001:db8:2::2"].map(address);
        let many = |number: u128| IpAddr::V6((0x2001_0db9_u128 << 96 | number << 72 | 1).into());
        let of_many = (0..1_000).map(many);
        let mut held: Vec<(IpAddr, u64)> = others.into_iter().chain(of_many).zip(0..).collect();
        held.sort_unstable();
        while held.len() > 8 {
            let leaves = leaving(&held).expect("one");
            assert!(!others.contains(&leaves), "{leaves} with {} clients", held.len());
            held.retain(|(client, _)| *client != leaves);
        }
        // The oldest went first.
        assert!((996..1_000).all(|number| held.iter().any(|(client, _)| *client == many(number))));
        // Within a provider the network that has most.
        let two = ["2001:db8:1::1", "2001:db8:2::1", "2001:db8:2::2"].map(address);
        assert_eq!(leaving(&two.into_iter().zip(0..).collect::<Vec<_>>()), Some(two[1]));
        assert_eq!(leaving(&[]), None);
    }

    #[test]
    fn servers_that_have_a_capability_stay_when_a_host_sends_to_ever_new_ones() {
        let mut requests = ReplyRequests::default();
        let server = |number: u32| IpAddr::V4((0x0a00_0000 + number).into());
        let ask = |requests: &mut ReplyRequests, number: u32, now: Instant| {
            requests.leaves(server(number), 1, now, || Some(Seed::new([7; 32]))).is_some()
        };
        let begin = Instant(1_000_000_000);
        // A second's worth at once.
        assert_eq!((0..1_000).filter(|number| ask(&mut requests, *number, begin)).count(), NEW_SERVERS as usize);
        let settled: Vec<IpAddr> = requests.servers.keys().copied().collect();
        for request in requests.servers.values_mut() {
            (request.is_acknowledged, request.due) = (true, begin + Duration::from_secs(CHECK));
        }
        let mut now = begin;
        for number in 10_000..10_000 + MAX_SERVERS as u32 {
            now = now + Duration::from_millis(10);
            assert!(ask(&mut requests, number, now), "{number}");
        }
        assert!(settled.iter().all(|server| requests.servers.contains_key(server)));
        // All have places, and the next ones too.
        for number in 20_000.. {
            if requests.servers.len() == MAX_SERVERS {
                break;
            }
            now = now + Duration::from_millis(10);
            assert!(ask(&mut requests, number, now), "{number}");
        }
        // With all places theirs there is none, until nothing has left for them for long.
        requests.servers.values_mut().for_each(|request| (request.is_acknowledged, request.due) = (true, now));
        now = now + Duration::from_secs(1);
        assert!(!ask(&mut requests, 9_999, now));
        now = now + Duration::from_secs(IDLE);
        assert!(ask(&mut requests, 9_999, now));
    }
}

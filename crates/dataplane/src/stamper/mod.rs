//! Platypus' stamper, on a host or as a router in the network: which packets take which route of waypoints, and the
//! stamping itself, over bursts and in place.
//!
//! The outcome is that of [`encapsulate`] and [`append`]; whatever cannot be stamped goes as it came, and is counted.

pub mod lanes;
mod rules;
mod traffic;

pub use rules::{Do, Rule, Rules};

use std::ops::Range;

use thiserror::Error;
use wayleave_core::{Prefix, UnixTime};
use wayleave_crypto::lanes::{BURST, CpuKernel};
use wayleave_packet::platypus::header::offsets::{IPV4, IPV6, MAX_CAPABILITIES, MAX_SAME_WAYPOINT};
use wayleave_packet::platypus::header::{Carriage, UDP_HEADER};
use wayleave_packet::platypus::mint::{self, Hop, Nonce, Position, append, encapsulate, epoch};
use wayleave_packet::platypus::verify::is_martian;

use lanes::{Burst, Ready, Unstamped};
use traffic::Traffic;

/// The longest IP packet: an IPv6 header and 65,535 octets.
const LONGEST: usize = 40 + 65_535;

/// Where the stamper is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Where packets begin: what is stamped already is left alone.
    Host,
    /// On the way: what is stamped already gets the route's capabilities too, at this position and in the route's order.
    Network(Position),
}

/// Waypoints, and how far a packet may grow on the way to them.
#[derive(Clone, Debug)]
pub struct Route {
    /// Capabilities and keys in order: one to eight, of one family.
    pub hops: Vec<Hop>,
    /// Whether nobody may add capabilities to a packet that is stamped here.
    pub sealed: bool,
    /// What carries a packet that is stamped here; what is stamped already keeps its own.
    pub carriage: Carriage,
    /// Octets of the longest IP packet that the path takes.
    pub mtu: usize,
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the stamper is.
    pub place: Place,
    /// Routes, which rules name by their place.
    pub routes: Vec<Route>,
    /// Rules in any order.
    pub rules: Vec<Rule>,
    /// Which of several stampers with the same routes this is, and how many there are: so no two use one nonce.
    pub share: (u32, u32),
}

/// Why a configuration makes no stamper.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ConfigError {
    /// Two rules for the same packets; the place of the second.
    #[error("rule {0} is for the same packets as one before it")]
    Twice(usize),
    /// A rule that names a route that is not there, or one of the other family.
    #[error("rule {0} names a route that is not there or is of the other family")]
    NoRoute(usize),
    /// A rule for destinations that its route's delegations do not reach.
    #[error("rule {0} is for destinations that are not delegated")]
    Delegation(usize),
    /// None or too many capabilities, of two families, contradicting themselves, or of one waypoint too often.
    #[error("route {0} cannot be taken")]
    Route(usize),
    /// A route whose carriage is not one of a packet.
    #[error("route {0} is carried by neither IP nor UDP")]
    Carriage(usize),
    /// This stamper is none of those that there are.
    #[error("stamper {0} of {1}")]
    Share(u32, u32),
}

/// Why a packet goes as it came.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Left {
    /// No rule, or one that says so.
    Rule,
    /// To or from a name server, which must work before there are capabilities.
    Dns,
    /// Not an IP packet that can be stamped: options, a fragment, lengths that lie.
    Malformed,
    /// From or to an address that no waypoint serves.
    Martian,
    /// Stamped already, and this is a host.
    Stamped,
    /// Stamped already, and nobody may add to it.
    Sealed,
    /// Stamped already, and all its waypoints are passed.
    NothingLeft,
    /// More than eight capabilities, or one waypoint more than twice.
    TooMany,
    /// It would be longer than the path takes; see [`Outcome::Left`] for what it may be at most.
    TooLong,
    /// There is no room in front of it.
    NoRoom,
    /// The route's capabilities are of an epoch that no waypoint accepts now.
    Epoch,
}

impl Left {
    /// All reasons in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::Rule,
        Self::Dns,
        Self::Malformed,
        Self::Martian,
        Self::Stamped,
        Self::Sealed,
        Self::NothingLeft,
        Self::TooMany,
        Self::TooLong,
        Self::NoRoom,
        Self::Epoch,
    ];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rule => "rule",
            Self::Dns => "dns",
            Self::Malformed => "malformed",
            Self::Martian => "martian",
            Self::Stamped => "stamped",
            Self::Sealed => "sealed",
            Self::NothingLeft => "nothing_left",
            Self::TooMany => "too_many",
            Self::TooLong => "too_long",
            Self::NoRoom => "no_room",
            Self::Epoch => "epoch",
        }
    }
}

/// A packet in place, and whose it is.
#[derive(Debug)]
pub struct Outgoing<'a> {
    /// Room, then the packet.
    pub buffer: &'a mut [u8],
    /// Where the packet begins.
    pub begin: usize,
    /// Number of the user whose socket sent it, if that is known.
    pub user: Option<u32>,
    /// Its socket's mark.
    pub mark: u32,
}

/// What became of a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Where the stamped packet lies in its buffer.
    Stamped(Range<usize>),
    /// It is as it was. `mtu`: octets that a packet may have on this route before it is stamped, if it has more; the
    /// sender can be told.
    Left {
        /// Why.
        why: Left,
        /// What it may be at most.
        mtu: Option<usize>,
    },
}

impl From<Left> for Outcome {
    fn from(why: Left) -> Self {
        Self::Left { why, mtu: None }
    }
}

/// What a stamper has counted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Stamped first here.
    pub stamped: u64,
    /// Stamped before, and again here.
    pub appended: u64,
    left: [u64; Left::ALL.len()],
}

impl Counters {
    /// Packets that were left as they were for this reason.
    #[must_use]
    pub fn left(&self, why: Left) -> u64 {
        self.left[why as usize]
    }
}

/// A route and what can be known of it before a packet comes.
struct Prepared {
    route: Route,
    /// Octets of all capabilities.
    list: usize,
    /// Octets that a packet grows by when it is stamped first.
    growth: usize,
    /// For packets that are stamped many at a time.
    ready: Option<Ready>,
}

/// One core's stamper.
pub struct Stamper {
    place: Place,
    routes: Box<[Prepared]>,
    rules: Rules,
    stamping: Burst,
    nonces: Nonces,
    /// Where a packet grows that is stamped by itself.
    scratch: Vec<u8>,
    counters: Counters,
}

impl std::fmt::Debug for Stamper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stamper of {} routes, {:?}", self.routes.len(), self.stamping)
    }
}

impl Stamper {
    /// A stamper of `config`.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn new(config: Config, kernel: CpuKernel) -> Result<Self, ConfigError> {
        let nonces = Nonces::new(config.share)?;
        let (routes, rules) = prepare(config.routes, &config.rules)?;
        // Whatever fits an IP packet, and the longest list on top, so that a packet that becomes too long is noticed.
        let scratch = Vec::with_capacity(LONGEST + UDP_HEADER + IPV6.capabilities + 255 * 4);
        Ok(Self {
            place: config.place,
            routes,
            rules,
            stamping: Burst::new(kernel),
            nonces,
            scratch,
            counters: Counters::default(),
        })
    }

    /// Takes other routes and rules between two bursts, as when an epoch begins; nonces and counters go on.
    ///
    /// # Errors
    /// What is wrong with them; the stamper stays as it was.
    pub fn reload(&mut self, routes: Vec<Route>, rules: &[Rule]) -> Result<(), ConfigError> {
        (self.routes, self.rules) = prepare(routes, rules)?;
        Ok(())
    }

    /// What this core has counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Stamps at most [`BURST`] packets in place, each as its rule says; outcomes beyond the packets are left.
    pub fn stamp(&mut self, packets: &mut [Outgoing<'_>], now: UnixTime, outcomes: &mut [Outcome]) {
        let count = packets.len().min(outcomes.len()).min(BURST);
        // Packets that are stamped together: their places in the burst, routes and nonces.
        let mut together = [(0, 0, Nonce { seconds: 0, counter: 0 }); BURST];
        let mut waiting = 0;
        for (slot, (packet, outcome)) in packets.iter_mut().zip(outcomes.iter_mut()).take(count).enumerate() {
            *outcome = match self.decide(packet, now) {
                Err(left) => left,
                Ok((route, nonce, None)) if self.routes[route].ready.is_some() => {
                    together[waiting] = (slot, route, nonce);
                    waiting += 1;
                    continue;
                }
                Ok((route, nonce, stamped)) => self.stamp_one(packet, route, nonce, stamped),
            };
        }
        self.stamp_together(packets, &together[..waiting], outcomes);
        for outcome in outcomes.iter().take(count) {
            if let Outcome::Left { why, .. } = outcome {
                self.counters.left[*why as usize] += 1;
            }
        }
    }

    /// The route of a packet that will be stamped, its nonce, and how many capabilities it has if it is stamped already.
    fn decide(&mut self, packet: &Outgoing<'_>, now: UnixTime) -> Result<(usize, Nonce, Option<usize>), Outcome> {
        let octets = packet.buffer.get(packet.begin..).ok_or(Left::Malformed)?;
        let traffic = Traffic::read(octets)?;
        if traffic.stamped.is_some() && self.place == Place::Host {
            return Err(Left::Stamped.into());
        }
        let Do::Take(route) = self.rules.find(traffic.destination, packet.user, packet.mark) else {
            return Err(Left::Rule.into());
        };
        if is_martian(traffic.source) || is_martian(traffic.destination) {
            return Err(Left::Martian.into());
        }
        let prepared = &self.routes[usize::from(route)];
        let hops = &prepared.route.hops;
        if !hops.iter().all(|hop| epoch::is_accepted(hop.capability.interval, hop.capability.epoch, now)) {
            return Err(Left::Epoch.into());
        }
        if traffic.stamped.unwrap_or(0) + hops.len() > MAX_CAPABILITIES {
            return Err(Left::TooMany.into());
        }
        let growth = if traffic.stamped.is_some() { prepared.list } else { prepared.growth };
        if traffic.length + growth > prepared.route.mtu {
            return Err(Outcome::Left { why: Left::TooLong, mtu: Some(prepared.route.mtu.saturating_sub(growth)) });
        }
        if packet.begin < growth {
            return Err(Left::NoRoom.into());
        }
        let nonce = if traffic.stamped.is_some() { Nonce::new(now, 0) } else { self.nonces.next(now) };
        Ok((usize::from(route), nonce, traffic.stamped))
    }

    /// Packets of the commonest shape.
    fn stamp_together(
        &mut self,
        packets: &mut [Outgoing<'_>],
        together: &[(usize, usize, Nonce)],
        outcomes: &mut [Outcome],
    ) {
        let ready = |route: usize| self.routes[route].ready.as_ref();
        let Some(filler) = together.first().and_then(|first| ready(first.1)) else { return };
        let nothing = Nonce { seconds: 0, counter: 0 };
        let mut unstamped: [Unstamped<'_>; BURST] =
            std::array::from_fn(|_| Unstamped { buffer: &mut [], begin: 0, ready: filler, nonce: nothing });
        let mut next = together.iter().peekable();
        let mut slots = unstamped.iter_mut();
        for (slot, packet) in packets.iter_mut().enumerate() {
            if let Some(&&(_, route, nonce)) = next.peek().filter(|one| one.0 == slot)
                && let (Some(unstamped), Some(ready)) = (slots.next(), ready(route))
            {
                *unstamped = Unstamped { buffer: packet.buffer, begin: packet.begin, ready, nonce };
                next.next();
            }
        }
        let mut begins = [const { Ok(0) }; BURST];
        self.stamping.stamp(&mut unstamped[..together.len()], &mut begins);
        for ((&(slot, _, _), packet), begin) in together.iter().zip(&unstamped).zip(begins) {
            outcomes[slot] = match begin {
                Ok(begin) => {
                    self.counters.stamped += 1;
                    let length = u16::from_be_bytes([packet.buffer[begin + 2], packet.buffer[begin + 3]]);
                    Outcome::Stamped(begin..begin + usize::from(length))
                }
                Err(_) => Left::Malformed.into(),
            };
        }
    }

    /// A packet of any shape, made in the scratch.
    fn stamp_one(&mut self, packet: &mut Outgoing<'_>, route: usize, nonce: Nonce, stamped: Option<usize>) -> Outcome {
        let Prepared { route, growth, list, .. } = &self.routes[route];
        let octets = &packet.buffer[packet.begin..];
        let (grows, done) = if stamped.is_some() {
            (list, append_all(octets, &route.hops, self.place, &mut self.scratch))
        } else {
            let Route { hops, sealed, carriage, .. } = route;
            let route = mint::Route { hops, nonce, sealed: *sealed, reply_option: &[], carriage: *carriage };
            self.scratch.clear();
            (growth, encapsulate(octets, &route, &mut self.scratch))
        };
        if let Err(error) = done {
            return match error {
                mint::MintError::TooLong(_) => Left::TooLong.into(),
                mint::MintError::Count(_) | mint::MintError::Outcome(_) => Left::TooMany.into(),
                mint::MintError::Sealed => Left::Sealed.into(),
                mint::MintError::NothingLeft => Left::NothingLeft.into(),
                mint::MintError::Inner(_) | mint::MintError::Capability(_) => Left::Malformed.into(),
            };
        }
        if stamped.is_some() {
            self.counters.appended += 1;
        } else {
            self.counters.stamped += 1;
        }
        let begin = packet.begin - grows;
        let place = begin..begin + self.scratch.len();
        packet.buffer[place.clone()].copy_from_slice(&self.scratch);
        Outcome::Stamped(place)
    }
}

/// Adds `hops` to the stamped packet in `octets`, so that they are passed in their order.
fn append_all(octets: &[u8], hops: &[Hop], place: Place, scratch: &mut Vec<u8>) -> Result<(), mint::MintError> {
    scratch.clear();
    scratch.extend_from_slice(&octets[..octets.len().min(LONGEST)]);
    match place {
        // What comes last in front of the current one is passed first.
        Place::Network(Position::Next) => hops.iter().rev().try_for_each(|hop| append(scratch, hop, Position::Next)),
        _ => hops.iter().try_for_each(|hop| append(scratch, hop, Position::Last)),
    }
}

/// Checks routes, and rules against them.
fn prepare(routes: Vec<Route>, rules: &[Rule]) -> Result<(Box<[Prepared]>, Rules), ConfigError> {
    let routes: Vec<Prepared> =
        routes.into_iter().enumerate().map(|(place, route)| prepare_one(place, route)).collect::<Result<_, _>>()?;
    for (place, rule) in rules.iter().enumerate() {
        let Do::Take(route) = rule.then else { continue };
        let route = &routes.get(usize::from(route)).ok_or(ConfigError::NoRoute(place))?.route;
        if route.hops.iter().any(|hop| hop.capability.waypoint.is_ipv6() != rule.to.address().is_ipv6()) {
            return Err(ConfigError::NoRoute(place));
        }
        let reaches = |prefix: &Prefix| prefix.contains(&rule.to);
        let delegations = route.hops.iter().filter_map(|hop| hop.capability.delegation.as_ref());
        if !delegations.map(|delegation| &delegation.prefix).all(reaches) {
            return Err(ConfigError::Delegation(place));
        }
    }
    Ok((routes.into(), Rules::new(rules)?))
}

fn prepare_one(place: usize, mut route: Route) -> Result<Prepared, ConfigError> {
    let is_same = |a: &Hop, b: &Hop| a.capability.waypoint == b.capability.waypoint;
    let times = |hop: &Hop| route.hops.iter().filter(|other| is_same(hop, other)).count();
    let first = route.hops.first().ok_or(ConfigError::Route(place))?.capability.waypoint;
    let is_sound = |hop: &Hop| hop.capability.is_consistent() && hop.capability.waypoint.is_ipv4() == first.is_ipv4();
    let is_fit = route.hops.iter().all(|hop| is_sound(hop) && times(hop) <= MAX_SAME_WAYPOINT);
    if !is_fit || route.hops.len() > MAX_CAPABILITIES {
        return Err(ConfigError::Route(place));
    }
    let udp = match route.carriage {
        Carriage::Ip => 0,
        Carriage::Udp => UDP_HEADER,
        Carriage::Socket => return Err(ConfigError::Carriage(place)),
    };
    let list = route.hops.iter().map(|hop| hop.capability.wire_length()).sum();
    let table = if first.is_ipv4() { &IPV4 } else { &IPV6 };
    let growth = udp + table.capabilities + list;
    let ready = match &route.hops[..] {
        [hop] if route.carriage == Carriage::Ip && !route.sealed => Ready::new(hop),
        _ => None,
    };
    route.mtu = route.mtu.min(if first.is_ipv4() { LONGEST - 40 } else { LONGEST });
    Ok(Prepared { route, list, growth, ready })
}

/// Numbers of packets: every `of`-th, beginning with this stamper's own. They run on from second to second, so that a clock
/// that goes back meets none of them again.
#[derive(Debug)]
struct Nonces {
    next: u32,
    own: u32,
    of: u32,
}

impl Nonces {
    fn new((own, of): (u32, u32)) -> Result<Self, ConfigError> {
        if own >= of {
            return Err(ConfigError::Share(own, of));
        }
        Ok(Self { next: own, own, of })
    }

    fn next(&mut self, now: UnixTime) -> Nonce {
        let counter = self.next;
        self.next = counter.checked_add(self.of).unwrap_or(self.own);
        Nonce::new(now, counter)
    }
}

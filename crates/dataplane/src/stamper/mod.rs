//! Platypus' stamper, on a host or as a router in the network: which packets take which route of waypoints, and the
//! stamping itself, over bursts and in place.
//!
//! The outcome is that of [`encapsulate`] and [`append`]; whatever cannot be stamped is left unchanged, and counted.

pub mod arriving;
pub mod lanes;
pub mod replies;
mod rules;
mod traffic;
pub mod transit;

pub use rules::{RANKS, Rule, RuleAction, Rules, SenderClass};

use std::net::IpAddr;
use std::ops::Range;

use thiserror::Error;
use wayleave_core::{Prefix, UnixTime};
use wayleave_crypto::lanes::CpuKernel;
use wayleave_packet::platypus::header::offsets::{IPV4, IPV6, MAX_CAPABILITIES, MAX_SAME_WAYPOINT};
use wayleave_packet::platypus::header::{Carriage, IPV4_HEADER, IPV6_HEADER, UDP_HEADER};
use wayleave_packet::platypus::mint::{self, Hop, Nonce, Position, append, encapsulate, epoch};
use wayleave_packet::platypus::verify::is_martian;

use crate::frame::BURST;
use crate::platypus::outer;
use lanes::{BurstStamper, PreparedCapability, StampInput};
use traffic::Traffic;

/// The longest IP packet: an IPv6 header and 65,535 octets.
const LONGEST: usize = 40 + 65_535;

/// Time to live of packets that begin here.
const TTL: u8 = 64;

/// Where the stamper is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Location {
    /// At the source host: packets that are stamped already are left unchanged.
    Host,
    /// On the way: packets that are stamped already get the route's capabilities too, at this position and in the route's
    /// order.
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
    /// The only source whose packets the capabilities serve, as those for replies do.
    pub only_from: Option<IpAddr>,
}

/// How a stamper is set up.
#[derive(Clone, Debug)]
pub struct Config {
    pub location: Location,
    /// Routes, which rules name by their index.
    pub routes: Vec<Route>,
    /// In any order.
    pub rules: Vec<Rule>,
    /// Which of several stampers with the same routes this is, and how many there are, so that no two use one nonce.
    pub share: (u32, u32),
}

/// Why a configuration makes no stamper. Numbers are indices into the configuration's lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ConfigError {
    #[error("rule {0} is for the same packets as a rule before it; remove one of them")]
    Twice(usize),
    #[error("rule {0} names a route that does not exist or is of the other address family")]
    NoRoute(usize),
    #[error("rule {0} is for destinations outside the prefix that its route's capabilities are delegated for")]
    Delegation(usize),
    #[error(
        "route {0} cannot be used: it needs one to eight consistent capabilities of one address family, and no waypoint \
         more than twice"
    )]
    Route(usize),
    #[error("route {0} must be carried by IP or UDP")]
    Carriage(usize),
    #[error("share {0} of {1} stampers does not exist; shares count from zero")]
    Share(u32, u32),
}

wayleave_core::named! {
    /// Why a packet is left unchanged.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[repr(u8)]
    pub enum LeaveReason {
        /// No rule, or one that says so.
        Rule = "rule",
        /// Its rule's route is of the other address family.
        Family = "family",
        /// To or from a name server, which must work before there are capabilities.
        Dns = "dns",
        /// Not an IP packet that can be stamped: options, a fragment, lengths that lie.
        Malformed = "malformed",
        /// From or to an address that no waypoint serves.
        Martian = "martian",
        /// Stamped already, and this is a host.
        Stamped = "stamped",
        /// Stamped already, and nobody may add to it.
        Sealed = "sealed",
        /// Stamped already, and all its waypoints are passed.
        NothingLeft = "nothing_left",
        /// More than eight capabilities, or one waypoint more than twice.
        TooMany = "too_many",
        /// It would be longer than the path takes; see [`Outcome::Unchanged`] for what it may be at most.
        TooLong = "too_long",
        /// There is not enough headroom in its buffer.
        NoHeadroom = "no_room",
        /// The route's capabilities are of an epoch that no waypoint accepts now.
        Epoch = "epoch",
        /// The route's capabilities are for packets of another source.
        Source = "source",
    }
}

/// A packet in place, and who sent it.
#[derive(Debug)]
pub struct OutgoingPacket<'a> {
    /// Headroom, then the packet.
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
    /// It is as it was.
    Unchanged {
        reason: LeaveReason,
        /// For a packet that is too long: how many octets one may have on this route before it is stamped, to be reported
        /// to the sender.
        mtu: Option<usize>,
    },
    /// It cannot be stamped, and its rule lets it leave in no other way ([`RuleAction::Require`]).
    Dropped(LeaveReason),
}

impl From<LeaveReason> for Outcome {
    fn from(reason: LeaveReason) -> Self {
        Self::Unchanged { reason, mtu: None }
    }
}

/// What a stamper has counted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Stamped first here.
    pub stamped: u64,
    /// Stamped before, and again here.
    pub appended: u64,
    unchanged: [u64; LeaveReason::ALL.len()],
    dropped: [u64; LeaveReason::ALL.len()],
}

impl Counters {
    /// Packets that were left unchanged for this reason.
    #[must_use]
    pub fn unchanged(&self, reason: LeaveReason) -> u64 {
        self.unchanged[reason as usize]
    }

    /// Packets that were dropped because for this reason they could not be stamped.
    #[must_use]
    pub fn dropped(&self, reason: LeaveReason) -> u64 {
        self.dropped[reason as usize]
    }
}

/// A route and what is computed of it before a packet comes.
struct PreparedRoute {
    route: Route,
    /// Octets of all capabilities.
    list: usize,
    /// Octets that a packet grows by when it is stamped first.
    growth: usize,
    /// Set if packets may take the vector path.
    prepared: Option<PreparedCapability>,
}

/// One core's stamper.
pub struct Stamper {
    location: Location,
    routes: Box<[PreparedRoute]>,
    rules: Rules,
    lanes: BurstStamper,
    nonces: Nonces,
    /// Where a packet grows that is stamped by itself.
    scratch: Vec<u8>,
    counters: Counters,
}

impl std::fmt::Debug for Stamper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stamper of {} routes, {:?}", self.routes.len(), self.lanes)
    }
}

impl Stamper {
    /// The greatest number of octets that a packet may have before it is stamped, so that it fits its route whatever route it
    /// takes; `None` without routes.
    #[must_use]
    pub fn least_headroom(routes: &[Route]) -> Option<usize> {
        let headroom = |route: &Route| {
            let (is_v4, list) = route.hops.iter().fold((true, 0), |(is_v4, list), hop| {
                (is_v4 && hop.capability.waypoint.is_ipv4(), list + hop.capability.wire_length())
            });
            let header = if is_v4 { IPV4.capabilities } else { IPV6.capabilities };
            let udp = if route.carriage == Carriage::Udp { UDP_HEADER } else { 0 };
            route.mtu.saturating_sub(udp + header + list)
        };
        routes.iter().map(headroom).min()
    }

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
            location: config.location,
            routes,
            rules,
            lanes: BurstStamper::new(kernel),
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

    /// The route of packets to `destination`, by its index, and the key epoch of its first capability.
    #[must_use]
    pub fn route_of(&self, destination: IpAddr, user: Option<u32>, mark: u32) -> Option<(u16, u32)> {
        let route = self.rules.find(destination, user, mark).route()?;
        let hops = &self.routes[usize::from(route)].route.hops;
        Some((route, hops.first()?.capability.epoch))
    }

    /// A packet that carries a reply option and nothing else, by a route or straight to its destination; both ends are of one family.
    ///
    /// # Errors
    /// What is wrong with addresses or option.
    pub fn carry(
        &mut self,
        option: &[u8],
        ends: (IpAddr, IpAddr),
        route: Option<u16>,
        now: UnixTime,
    ) -> Result<Vec<u8>, mint::MintError> {
        let nonce = self.nonces.next(now);
        let route = match route.and_then(|route| self.routes.get(usize::from(route))) {
            Some(PreparedRoute { route: Route { hops, sealed, carriage, .. }, .. }) => {
                mint::Route { hops, nonce, sealed: *sealed, reply_option: option, carriage: *carriage }
            }
            None => mint::Route { hops: &[], nonce, sealed: false, reply_option: option, carriage: Carriage::Ip },
        };
        carry(ends, &route)
    }

    /// The same straight to its destination, carried as what it answers.
    ///
    /// # Errors
    /// What is wrong with addresses or option.
    pub fn answer(
        &mut self,
        option: &[u8],
        ends: (IpAddr, IpAddr),
        carriage: Carriage,
        now: UnixTime,
    ) -> Result<Vec<u8>, mint::MintError> {
        let nonce = self.nonces.next(now);
        carry(ends, &mint::Route { hops: &[], nonce, sealed: false, reply_option: option, carriage })
    }

    /// What this core has counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Stamps at most [`BURST`] packets in place, each as its rule says; outcomes beyond the packets are left.
    pub fn stamp(&mut self, packets: &mut [OutgoingPacket<'_>], now: UnixTime, outcomes: &mut [Outcome]) {
        let count = packets.len().min(outcomes.len()).min(BURST);
        // Packets for the vector path: their indices in the burst, routes and nonces.
        let mut together = [(0, 0, Nonce { seconds: 0, counter: 0 }); BURST];
        let mut waiting = 0;
        for (index, (packet, outcome)) in packets.iter_mut().zip(outcomes.iter_mut()).take(count).enumerate() {
            *outcome = match self.decide(packet, now) {
                Err(unchanged) => unchanged,
                Ok((route, nonce, None)) if self.routes[route].prepared.is_some() => {
                    together[waiting] = (index, route, nonce);
                    waiting += 1;
                    continue;
                }
                Ok((route, nonce, stamped)) => self.stamp_one(packet, route, nonce, stamped),
            };
        }
        self.stamp_together(packets, &together[..waiting], outcomes);
        for (packet, outcome) in packets.iter().zip(outcomes).take(count) {
            let Outcome::Unchanged { reason, .. } = *outcome else { continue };
            if self.is_required(packet, reason) {
                *outcome = Outcome::Dropped(reason);
                self.counters.dropped[reason as usize] += 1;
            } else {
                self.counters.unchanged[reason as usize] += 1;
            }
        }
    }

    /// Whether a packet that was not stamped may not leave. Name servers' packets always may: without them no secret would ever be found.
    /// Any process can write a header that nobody has checked: it makes no difference, whatever it says.
    fn is_required(&self, packet: &OutgoingPacket<'_>, reason: LeaveReason) -> bool {
        let Some(octets) = packet.buffer.get(packet.begin..) else { return false };
        if reason == LeaveReason::Dns && !traffic::has_header(octets) {
            return false;
        }
        let is_required = |destination| self.rules.find(destination, packet.user, packet.mark).is_required();
        traffic::destination(octets).is_some_and(is_required) || outer::destination(octets).is_some_and(is_required)
    }

    /// The route of a packet that will be stamped, its nonce, and how many capabilities it has if it is stamped already.
    fn decide(&mut self, packet: &OutgoingPacket<'_>, now: UnixTime) -> Result<(usize, Nonce, Option<usize>), Outcome> {
        let octets = packet.buffer.get(packet.begin..).ok_or(LeaveReason::Malformed)?;
        let traffic = Traffic::read(octets)?;
        if traffic.stamped.is_some() && self.location == Location::Host {
            return Err(LeaveReason::Stamped.into());
        }
        // A route for one source decides for that one alone: what others send goes by the next rule.
        let is_of_another = |action: &RuleAction| {
            let only = action.route().and_then(|route| self.routes[usize::from(route)].route.only_from);
            only.is_some_and(|only| only != traffic.source)
        };
        let mut actions = self.rules.all(traffic.destination, packet.user, packet.mark).peekable();
        let none = actions.peek().map_or(LeaveReason::Rule, |_| LeaveReason::Source);
        let action = actions.find(|action| !is_of_another(action)).ok_or(none)?;
        let without = if action == RuleAction::Drop { LeaveReason::Family } else { LeaveReason::Rule };
        let route = action.route().ok_or(without)?;
        if is_martian(traffic.source) || is_martian(traffic.destination) {
            return Err(LeaveReason::Martian.into());
        }
        let prepared = &self.routes[usize::from(route)];
        let hops = &prepared.route.hops;
        if !hops.iter().all(|hop| epoch::is_accepted(hop.capability.interval, hop.capability.epoch, now)) {
            return Err(LeaveReason::Epoch.into());
        }
        if traffic.stamped.unwrap_or(0) + hops.len() > MAX_CAPABILITIES {
            return Err(LeaveReason::TooMany.into());
        }
        let growth = if traffic.stamped.is_some() { prepared.list } else { prepared.growth };
        if traffic.length + growth > prepared.route.mtu {
            return Err(Outcome::Unchanged {
                reason: LeaveReason::TooLong,
                mtu: Some(prepared.route.mtu.saturating_sub(growth)),
            });
        }
        if packet.begin < growth {
            return Err(LeaveReason::NoHeadroom.into());
        }
        let nonce = if traffic.stamped.is_some() { Nonce::new(now, 0) } else { self.nonces.next(now) };
        Ok((usize::from(route), nonce, traffic.stamped))
    }

    /// Stamps packets in lanes.
    fn stamp_together(
        &mut self,
        packets: &mut [OutgoingPacket<'_>],
        together: &[(usize, usize, Nonce)],
        outcomes: &mut [Outcome],
    ) {
        let prepared = |route: usize| self.routes[route].prepared.as_ref();
        let Some(filler) = together.first().and_then(|first| prepared(first.1)) else { return };
        let nothing = Nonce { seconds: 0, counter: 0 };
        let mut inputs: [StampInput<'_>; BURST] =
            std::array::from_fn(|_| StampInput { buffer: &mut [], begin: 0, capability: filler, nonce: nothing });
        let mut next = together.iter().peekable();
        let mut unused = inputs.iter_mut();
        for (index, packet) in packets.iter_mut().enumerate() {
            if let Some(&&(_, route, nonce)) = next.peek().filter(|one| one.0 == index)
                && let (Some(input), Some(capability)) = (unused.next(), prepared(route))
            {
                *input = StampInput { buffer: packet.buffer, begin: packet.begin, capability, nonce };
                next.next();
            }
        }
        let mut begins = [const { Ok(0) }; BURST];
        self.lanes.stamp(&mut inputs[..together.len()], &mut begins);
        for ((&(index, _, _), packet), begin) in together.iter().zip(&inputs).zip(begins) {
            outcomes[index] = match begin {
                Ok(begin) => {
                    self.counters.stamped += 1;
                    let length = u16::from_be_bytes([packet.buffer[begin + 2], packet.buffer[begin + 3]]);
                    Outcome::Stamped(begin..begin + usize::from(length))
                }
                Err(_) => LeaveReason::Malformed.into(),
            };
        }
    }

    /// Stamps a packet of any shape, in the scratch.
    fn stamp_one(
        &mut self,
        packet: &mut OutgoingPacket<'_>,
        route: usize,
        nonce: Nonce,
        stamped: Option<usize>,
    ) -> Outcome {
        let PreparedRoute { route, growth, list, .. } = &self.routes[route];
        let octets = &packet.buffer[packet.begin..];
        let (grows, done) = if stamped.is_some() {
            (list, append_all(octets, &route.hops, self.location, &mut self.scratch))
        } else {
            let Route { hops, sealed, carriage, .. } = route;
            let route = mint::Route { hops, nonce, sealed: *sealed, reply_option: &[], carriage: *carriage };
            self.scratch.clear();
            (growth, encapsulate(octets, &route, &mut self.scratch))
        };
        if let Err(error) = done {
            return match error {
                mint::MintError::TooLong(_) => LeaveReason::TooLong.into(),
                mint::MintError::Count(_) | mint::MintError::Outcome(_) => LeaveReason::TooMany.into(),
                mint::MintError::Sealed => LeaveReason::Sealed.into(),
                mint::MintError::NothingLeft => LeaveReason::NothingLeft.into(),
                mint::MintError::Inner(_) | mint::MintError::Capability(_) => LeaveReason::Malformed.into(),
            };
        }
        if stamped.is_some() {
            self.counters.appended += 1;
        } else {
            self.counters.stamped += 1;
        }
        let begin = packet.begin - grows;
        let range = begin..begin + self.scratch.len();
        packet.buffer[range.clone()].copy_from_slice(&self.scratch);
        Outcome::Stamped(range)
    }
}

/// A packet that carries the route's reply option and nothing else.
fn carry(ends: (IpAddr, IpAddr), route: &mint::Route<'_>) -> Result<Vec<u8>, mint::MintError> {
    let mut inner = Vec::with_capacity(IPV6_HEADER);
    match ends {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            inner.extend([0x45, 0, 0, IPV4_HEADER as u8, 0, 0, 0, 0, TTL, replies::NO_NEXT_HEADER, 0, 0]);
            inner.extend(source.octets());
            inner.extend(destination.octets());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            inner.extend([0x60, 0, 0, 0, 0, 0, replies::NO_NEXT_HEADER, TTL]);
            inner.extend(source.octets());
            inner.extend(destination.octets());
        }
        // No packet has these ends, as encapsulation says of none at all.
        _ => {}
    }
    let mut out = Vec::new();
    encapsulate(&inner, route, &mut out)?;
    Ok(out)
}

/// Adds `hops` to the stamped packet in `octets`, so that they are passed in their order.
fn append_all(octets: &[u8], hops: &[Hop], location: Location, scratch: &mut Vec<u8>) -> Result<(), mint::MintError> {
    scratch.clear();
    scratch.extend_from_slice(&octets[..octets.len().min(LONGEST)]);
    match location {
        // What comes last in front of the current one is passed first.
        Location::Network(Position::Next) => hops.iter().rev().try_for_each(|hop| append(scratch, hop, Position::Next)),
        _ => hops.iter().try_for_each(|hop| append(scratch, hop, Position::Last)),
    }
}

/// Checks routes, and rules against them.
fn prepare(routes: Vec<Route>, rules: &[Rule]) -> Result<(Box<[PreparedRoute]>, Rules), ConfigError> {
    let routes: Vec<PreparedRoute> =
        routes.into_iter().enumerate().map(|(index, route)| prepare_route(index, route)).collect::<Result<_, _>>()?;
    for (index, rule) in rules.iter().enumerate() {
        let Some(route) = rule.action.route() else { continue };
        let route = &routes.get(usize::from(route)).ok_or(ConfigError::NoRoute(index))?.route;
        if route.hops.iter().any(|hop| hop.capability.waypoint.is_ipv6() != rule.to.address().is_ipv6()) {
            return Err(ConfigError::NoRoute(index));
        }
        let reaches = |prefix: &Prefix| prefix.contains(&rule.to);
        let delegations = route.hops.iter().filter_map(|hop| hop.capability.delegation.as_ref());
        if !delegations.map(|delegation| &delegation.prefix).all(reaches) {
            return Err(ConfigError::Delegation(index));
        }
    }
    Ok((routes.into(), Rules::new(rules)?))
}

fn prepare_route(index: usize, mut route: Route) -> Result<PreparedRoute, ConfigError> {
    let is_same = |a: &Hop, b: &Hop| a.capability.waypoint == b.capability.waypoint;
    let times = |hop: &Hop| route.hops.iter().filter(|other| is_same(hop, other)).count();
    let first = route.hops.first().ok_or(ConfigError::Route(index))?.capability.waypoint;
    let is_sound = |hop: &Hop| hop.capability.is_consistent() && hop.capability.waypoint.is_ipv4() == first.is_ipv4();
    let is_fit = route.hops.iter().all(|hop| is_sound(hop) && times(hop) <= MAX_SAME_WAYPOINT);
    if !is_fit || route.hops.len() > MAX_CAPABILITIES {
        return Err(ConfigError::Route(index));
    }
    let udp = match route.carriage {
        Carriage::Ip => 0,
        Carriage::Udp => UDP_HEADER,
        Carriage::Socket => return Err(ConfigError::Carriage(index)),
    };
    let list = route.hops.iter().map(|hop| hop.capability.wire_length()).sum();
    let table = if first.is_ipv4() { &IPV4 } else { &IPV6 };
    let growth = udp + table.capabilities + list;
    let prepared = match &route.hops[..] {
        [hop] if route.carriage == Carriage::Ip && !route.sealed => PreparedCapability::new(hop),
        _ => None,
    };
    route.mtu = route.mtu.min(if first.is_ipv4() { LONGEST - 40 } else { LONGEST });
    Ok(PreparedRoute { route, list, growth, prepared })
}

/// Counters of nonces: every `of`-th number, beginning with this stamper's own. They are not reset when a second begins, so
/// that a clock that goes back repeats no nonce.
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

//! Stamping in the network: packets that come by a link and are for others get capabilities, and go on.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use toml::Spanned;
use tracing::error;
use wayleave_core::{Now, Prefix, UnixTime};
use wayleave_crypto::lanes::CpuKernel;
use wayleave_dataplane::frame::BURST;
use wayleave_dataplane::platypus::outer::{destination, source};
use wayleave_dataplane::stamper::transit::{Dropped, pass_on, stamped};
use wayleave_dataplane::stamper::{
    Config, ConfigError, LeaveReason, Location, Outcome, OutgoingPacket, Rule, RuleAction, Stamper,
};
use wayleave_packet::platypus::header::Packet;
use wayleave_packet::platypus::mint::Position;
use wayleave_packet::platypus::verify::Link;
use wayleave_runtime::packets::Burst;

use crate::config::router::stamper::{RuleSection, StamperSection};
use crate::config::router::{LinkSection, RouterFile};
use crate::failure::{Failure, Outcome as Answer};
use crate::roles::router::counters::Named;
use crate::roles::router::settings::Settings;
use crate::roles::stamping::{HEADROOM, NoLines, RouteCapabilities};

/// Reads the files of capabilities, if packets are stamped, and tries the plan that follows from them.
pub fn load(Settings { file, source, .. }: &Settings) -> Result<Option<RouteCapabilities>, Failure> {
    let Some(section) = file.stamper.as_ref().map(Spanned::get_ref) else { return Ok(None) };
    let capabilities = RouteCapabilities::load(section, source, &mut NoLines)?;
    match StampingPlan::new(file, &capabilities, UnixTime(0)).stamper(0) {
        Ok(_) => Ok(Some(capabilities)),
        Err(error) => Err(source.failure(section.locate(error))),
    }
}

/// What threads stamp by, until the next epoch or reload.
#[derive(Clone)]
pub struct StampingPlan {
    config: Config,
    threads: u32,
    links: Vec<StampedLink>,
    /// This router's ends of links.
    local: Vec<IpAddr>,
}

/// What is known of a link's packets.
#[derive(Clone, Default)]
struct StampedLink {
    /// The sources whose packets are stamped; without any, the link's packets are for waypoints of this router alone.
    stamp: Vec<Prefix>,
    /// From where stamped packets come.
    behind: Link,
    /// Sources that no packet over the link has: ends of other links, by which datagrams of these are known, and waypoints that are not
    /// behind this one.
    elsewhere: Vec<Prefix>,
}

impl StampedLink {
    fn is_elsewhere(&self, source: IpAddr) -> bool {
        is_in(&self.elsewhere, source) && !is_in(&self.behind.own, source) && !is_in(&self.behind.peers, source)
    }
}

fn is_in(networks: &[Prefix], address: IpAddr) -> bool {
    let host = Prefix::truncated(address, if address.is_ipv4() { 32 } else { 128 });
    host.is_ok_and(|host| networks.iter().any(|network| network.afi() == host.afi() && network.contains(&host)))
}

impl StampingPlan {
    pub fn new(file: &RouterFile, capabilities: &RouteCapabilities, now: UnixTime) -> Self {
        let section = file.stamper.as_ref().map(Spanned::get_ref);
        let rule = |rule: &Spanned<RuleSection>| {
            let rule = rule.get_ref();
            let route = rule.route.as_ref().and_then(|name| section?.route(name.get_ref()));
            let action = route.and_then(|route| u16::try_from(route).ok()).map_or(RuleAction::Pass, RuleAction::Take);
            // A rule without destinations is a fault.
            Some(Rule { to: rule.to?, user: None, mark: None, action })
        };
        let config = Config {
            location: Location::Network(section.map_or(Position::Next, |section| section.position.position())),
            routes: section.map_or(Vec::new(), |section| capabilities.routes(section, now)),
            rules: section.map_or(&[][..], |section| &section.rules).iter().filter_map(rule).collect(),
            share: section.map_or([0, 1], StamperSection::share).into(),
        };
        let links = || file.link.iter().map(Spanned::get_ref);
        let local: Vec<IpAddr> = links().map(|link| link.local.get_ref().0.ip()).collect();
        let host = |address: &IpAddr| Prefix::truncated(*address, if address.is_ipv4() { 32 } else { 128 }).ok();
        let section = file.platypus.as_ref().map(Spanned::get_ref);
        let own = section.map_or(Vec::new(), |section| {
            let here = section.waypoints.get_ref().iter().filter_map(|waypoint| host(&waypoint.0));
            let others = section.own_waypoints.iter().chain(&section.peer_waypoints);
            here.chain(others.map(|network| *network.get_ref())).collect()
        });
        let of_link = |link: &LinkSection| {
            let other = |other: &LinkSection| other.remote.get_ref().0.ip() != link.remote.get_ref().0.ip();
            let others = || links().filter(|of| other(of));
            let ends = local.iter().copied().chain(others().map(|of| of.remote.get_ref().0.ip()));
            let waypoints = others().flat_map(|of| of.own_waypoints.iter().chain(&of.peer_waypoints));
            let elsewhere = ends.filter_map(|end| host(&end)).chain(waypoints.map(|network| *network.get_ref()));
            let elsewhere = elsewhere.chain(own.iter().copied()).collect();
            StampedLink { stamp: link.stamp.clone(), behind: super::behind(link), elsewhere }
        };
        let links = links().map(of_link).collect();
        Self { config, threads: u32::try_from(*file.forwarding.workers.get_ref()).unwrap_or(1), links, local }
    }

    /// The stamper of a thread, which has nonces of its own.
    fn stamper(&self, thread: u32) -> Result<Stamper, ConfigError> {
        let (own, of) = self.config.share;
        let share = (own * self.threads + thread, of * self.threads);
        Stamper::new(Config { share, ..self.config.clone() }, CpuKernel::best())
    }
}

/// What a thread counts apart from its stamper.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct TransitCounters {
    /// Went on, stamped or not.
    passed: u64,
    /// Not stamped, since its source is not one of the link's.
    source: u64,
    /// Dropped, by [`Dropped`].
    unsound: u64,
    martian: u64,
    expired: u64,
    /// Dropped: packets whose outer source is somewhere else, and stamped ones from whom their link does not name.
    outer_source: u64,
    /// Dropped, since they are for this machine: what it sends to itself looks like its own.
    own_address: u64,
}

impl TransitCounters {
    fn drop(&mut self, dropped: Dropped) {
        *match dropped {
            Dropped::Unsound => &mut self.unsound,
            Dropped::Martian => &mut self.martian,
            Dropped::Expired => &mut self.expired,
        } += 1;
    }
}

/// One thread's stamping.
pub struct Stamping {
    stamper: Stamper,
    links: Vec<StampedLink>,
    local: Vec<IpAddr>,
    /// Whether each packet of the batch may be stamped, in their order.
    may_stamp: Vec<bool>,
    transit: TransitCounters,
}

impl Stamping {
    /// # Errors
    /// What is wrong with the plan.
    pub fn new(plan: &StampingPlan, thread: u32) -> Answer<Self> {
        let stamper = plan.stamper(thread).map_err(|error| Failure::new(error.to_string()))?;
        let (links, local) = (plan.links.clone(), plan.local.clone());
        Ok(Self { stamper, links, local, may_stamp: Vec::with_capacity(BURST), transit: TransitCounters::default() })
    }

    /// Takes another plan between two bursts; nonces and counters go on.
    pub fn reload(&mut self, plan: &StampingPlan) {
        if let Err(error) = self.stamper.reload(plan.config.routes.clone(), &plan.config.rules) {
            // The plan was tried before.
            error!(%error, "a forwarding thread refused the stamper's configuration and stamps by the old one: restart the router");
            return;
        }
        self.links.clone_from(&plan.links);
        self.local.clone_from(&plan.local);
    }

    /// What became of packets that may be stamped, and why packets were left without a stamp.
    pub fn counters(&self) -> (Named, Named) {
        let (transit, stamper) = (self.transit, self.stamper.counters());
        let became = [
            ("passed", transit.passed),
            ("stamped", stamper.stamped),
            ("appended", stamper.appended),
            ("unsound", transit.unsound),
            ("martian", transit.martian),
            ("expired", transit.expired),
            ("outer-source", transit.outer_source),
            ("own-address", transit.own_address),
        ];
        let unstamped = LeaveReason::ALL.into_iter().map(|reason| (reason.name(), stamper.unchanged(reason)));
        (became.into(), unstamped.chain([("source", transit.source)]).collect())
    }

    /// Whether packets that come by this link are stamped.
    pub fn is_for(&self, link: usize) -> bool {
        self.links.get(link).is_some_and(|link| !link.stamp.is_empty())
    }

    /// Copies a packet of `link` into `grown` with headroom, unless it goes no further. Returns whether there was memory for
    /// it.
    pub fn take(&mut self, link: usize, octets: &mut [u8], from: SocketAddr, grown: &mut Burst) -> bool {
        let length = match pass_on(octets) {
            Ok(length) => length,
            Err(dropped) => {
                self.transit.drop(dropped);
                return true;
            }
        };
        let octets = &octets[..length];
        let packet = match stamped(octets) {
            Ok(packet) => packet,
            Err(dropped) => {
                self.transit.drop(dropped);
                return true;
            }
        };
        if destination(octets).is_some_and(|address| self.local.contains(&address)) {
            self.transit.own_address += 1;
            return true;
        }
        let of = &self.links[link];
        let is_refused = |packet: &Packet<'_>| !of.behind.may_pass(packet);
        let is_elsewhere = source(octets).is_none_or(|source| of.is_elsewhere(source));
        if is_elsewhere || packet.as_ref().is_some_and(is_refused) {
            self.transit.outer_source += 1;
            return true;
        }
        if !grown.push_behind(HEADROOM, octets, from) {
            return false;
        }
        let source = packet.map_or_else(|| source(octets), |packet| Some(packet.original_source()));
        let may_stamp = source.is_some_and(|source| is_in(&self.links[link].stamp, source));
        self.transit.passed += 1;
        self.transit.source += u64::from(!may_stamp);
        self.may_stamp.push(may_stamp);
        true
    }

    /// Stamps the packets of the batch, at most [`BURST`].
    pub fn stamp(&mut self, grown: &mut Burst, now: Now) {
        let mut numbers = [0; BURST];
        let mut outcomes = [const { Outcome::Unchanged { reason: LeaveReason::Rule, mtu: None } }; BURST];
        let mut count = 0;
        {
            let mut packets: [OutgoingPacket<'_>; BURST] =
                std::array::from_fn(|_| OutgoingPacket { buffer: &mut [], begin: 0, user: None, mark: 0 });
            for (number, (_, buffer)) in grown.packets_mut(0).take(BURST).enumerate() {
                if self.may_stamp[number] {
                    numbers[count] = number;
                    packets[count] = OutgoingPacket { buffer, begin: HEADROOM, user: None, mark: 0 };
                    count += 1;
                }
            }
            self.stamper.stamp(&mut packets[..count], now.unix, &mut outcomes[..count]);
        }
        let mut ranges: [Option<Range<usize>>; BURST] = [const { None }; BURST];
        for (number, outcome) in numbers.into_iter().zip(outcomes).take(count) {
            if let Outcome::Stamped(range) = outcome {
                ranges[number] = Some(range);
            }
        }
        for (number, range) in ranges.into_iter().enumerate().take(grown.len()) {
            let whole = HEADROOM..grown.octets(number).len();
            grown.trim(number, range.unwrap_or(whole));
        }
        self.may_stamp.clear();
    }
}

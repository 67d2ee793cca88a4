//! Stamping in the network: packets that come by a link and are for others get capabilities, and go on.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use toml::Spanned;
use tracing::error;
use wayleave_core::{Now, Prefix, UnixTime};
use wayleave_crypto::lanes::CpuKernel;
use wayleave_dataplane::frame::BURST;
use wayleave_dataplane::stamper::transit::{Dropped, outer_source, pass_on, stamped};
use wayleave_dataplane::stamper::{
    Config, ConfigError, LeaveReason, Location, Outcome, OutgoingPacket, Rule, RuleAction, Stamper,
};
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
}

/// What is known of a link's packets.
#[derive(Clone, Default)]
struct StampedLink {
    /// The sources whose packets are stamped; without any, the link's packets are for waypoints of this router alone.
    stamp: Vec<Prefix>,
    /// From where stamped packets come.
    behind: Link,
}

impl StampingPlan {
    pub fn new(file: &RouterFile, capabilities: &RouteCapabilities, now: UnixTime) -> Self {
        let section = file.stamper.as_ref().map(Spanned::get_ref);
        let rule = |rule: &Spanned<RuleSection>| {
            let rule = rule.get_ref();
            let route = rule.route.as_ref().and_then(|name| section?.route(name.get_ref()));
            let action = route.and_then(|route| u16::try_from(route).ok()).map_or(RuleAction::Pass, RuleAction::Take);
            Rule { to: rule.to, user: None, mark: None, action }
        };
        let config = Config {
            location: Location::Network(section.map_or(Position::Next, |section| section.position.position())),
            routes: section.map_or(Vec::new(), |section| capabilities.routes(section, now)),
            rules: section.map_or(&[][..], |section| &section.rules).iter().map(rule).collect(),
            share: section.map_or([0, 1], StamperSection::share).into(),
        };
        let of_link = |link: &LinkSection| {
            let mut behind = super::behind(link);
            if let Some(sources) = &mut behind.sources {
                sources.extend(&link.stamp);
            } else if !behind.peers.is_empty() {
                behind.sources = Some(link.stamp.clone());
            }
            StampedLink { stamp: link.stamp.clone(), behind }
        };
        let links = file.link.iter().map(|link| of_link(link.get_ref())).collect();
        Self { config, threads: u32::try_from(*file.forwarding.workers.get_ref()).unwrap_or(1), links }
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
    /// Dropped: stamped packets whose outer source is none that they may have over their link.
    outer_source: u64,
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
    /// Whether each packet of the batch may be stamped, in their order.
    may_stamp: Vec<bool>,
    transit: TransitCounters,
}

impl Stamping {
    /// # Errors
    /// What is wrong with the plan.
    pub fn new(plan: &StampingPlan, thread: u32) -> Answer<Self> {
        let stamper = plan.stamper(thread).map_err(|error| Failure::new(error.to_string()))?;
        let links = plan.links.clone();
        Ok(Self { stamper, links, may_stamp: Vec::with_capacity(BURST), transit: TransitCounters::default() })
    }

    /// Takes another plan between two bursts; nonces and counters go on.
    pub fn reload(&mut self, plan: &StampingPlan) {
        if let Err(error) = self.stamper.reload(plan.config.routes.clone(), &plan.config.rules) {
            // The plan was tried before.
            error!(%error, "a forwarding thread refused the stamper's configuration and stamps by the old one: restart the router");
            return;
        }
        self.links.clone_from(&plan.links);
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
        if packet.as_ref().is_some_and(|packet| !self.links[link].behind.may_pass(packet)) {
            self.transit.outer_source += 1;
            return true;
        }
        if !grown.push_behind(HEADROOM, octets, from) {
            return false;
        }
        let source = packet.map_or_else(|| outer_source(octets), |packet| Some(packet.original_source()));
        let may_stamp = source.is_some_and(|source| self.is_source(link, source));
        self.transit.passed += 1;
        self.transit.source += u64::from(!may_stamp);
        self.may_stamp.push(may_stamp);
        true
    }

    fn is_source(&self, link: usize, source: IpAddr) -> bool {
        let Ok(host) = Prefix::truncated(source, if source.is_ipv4() { 32 } else { 128 }) else { return false };
        self.links[link].stamp.iter().any(|prefix| prefix.afi() == host.afi() && prefix.contains(&host))
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

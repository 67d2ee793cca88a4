//! Stamping in the network: packets that come by a link and are for others get capabilities, and go on.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::PathBuf;

use toml::Spanned;
use tracing::{error, warn};
use wayleave_core::{Now, Prefix, UnixTime};
use wayleave_crypto::lanes::CpuKernel;
use wayleave_dataplane::frame::BURST;
use wayleave_dataplane::stamper::transit::{Dropped, original_source, pass_on};
use wayleave_dataplane::stamper::{
    Config, ConfigError, LeaveReason, Location, Outcome, OutgoingPacket, Route, Rule, RuleAction, Stamper,
};
use wayleave_packet::platypus::header::Carriage;
use wayleave_packet::platypus::mint::Position;
use wayleave_runtime::packets::Burst;

use crate::config::Fault;
use crate::config::router::RouterFile;
use crate::config::router::stamper::{PositionName, RouteSection, RuleSection, StamperSection};
use crate::failure::{Failure, Outcome as Answer};
use crate::key_files::capability::Capabilities;
use crate::roles::router::counters::Named;
use crate::roles::router::settings::Settings;

/// Octets that a packet may grow by: a header, UDP, and eight capabilities of the greatest length.
const HEADROOM: usize = 44 + 8 + 8 * 64;
/// Seconds before the end of capabilities at which the log warns.
const WARNED_AHEAD: u64 = 3_600;

/// The capabilities of each route with the names of their files.
pub struct RouteCapabilities(Vec<Vec<(Capabilities, String)>>);

impl RouteCapabilities {
    /// Reads all files, if packets are stamped.
    pub fn load(Settings { file, source, .. }: &Settings) -> Result<Option<Self>, Failure> {
        let Some(section) = &file.stamper else { return Ok(None) };
        let one = |named: &Spanned<PathBuf>| {
            let path = source.resolve(named.get_ref());
            let loaded = Capabilities::load(&path);
            let loaded = loaded.map_err(|failure| source.failure(Fault::of(named.span(), &failure)))?;
            Ok((loaded, path.display().to_string()))
        };
        let route = |route: &Spanned<RouteSection>| {
            route.get_ref().capabilities.iter().map(one).collect::<Result<_, Failure>>()
        };
        let capabilities = Self(section.get_ref().routes.iter().map(route).collect::<Result<_, Failure>>()?);
        let plan = StampingPlan::new(file, &capabilities, UnixTime(0));
        if let Err(error) = plan.stamper(0) {
            return Err(source.failure(locate(section.get_ref(), error)));
        }
        Ok(Some(capabilities))
    }

    /// The key epochs that are stamped with at `now`; `None` where no capability is accepted.
    pub fn epochs(&self, now: UnixTime) -> Vec<Option<CapabilityEpoch>> {
        let all = self.0.iter().flatten();
        all.map(|(capabilities, _)| {
            let epoch = capabilities.hop(now)?.capability.epoch;
            Some(CapabilityEpoch { epoch, is_about_to_end: now.secs() + WARNED_AHEAD > capabilities.end() })
        })
        .collect()
    }

    /// Logs which files have come to their end, or are about to.
    pub fn warn(&self, now: UnixTime) {
        for (capabilities, name) in self.0.iter().flatten() {
            let end = capabilities.end();
            if capabilities.hop(now).is_none() {
                error!(
                    "{name} has no capability for the present epoch: packets on its route leave without a stamp; put a new \
                     file in its place, and reload"
                );
            } else if now.secs() + WARNED_AHEAD > end {
                warn!("the capabilities in {name} end at Unix time {end}: put a new file in its place, and reload");
            }
        }
    }
}

/// The key epoch that a file's capabilities are used with at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CapabilityEpoch {
    epoch: u32,
    is_about_to_end: bool,
}

/// What is wrong with the section, and where.
fn locate(section: &StamperSection, error: ConfigError) -> Fault {
    let rule = |index: usize| section.rules.get(index).map(Spanned::span);
    let route = |index: usize| section.routes.get(index).map(Spanned::span);
    let (span, message) = match error {
        ConfigError::Twice(index) => (rule(index), "a second rule for the same destinations, expected one"),
        ConfigError::NoRoute(index) => {
            (rule(index), "the route is of another family, expected one of the destinations'")
        }
        ConfigError::Delegation(index) => {
            (rule(index), "the route's capabilities are not delegated for all of these, expected narrower destinations")
        }
        ConfigError::Route(index) | ConfigError::Carriage(index) => (
            route(index),
            "a route that no packet can take, expected one to eight waypoints of one family, none thrice",
        ),
        ConfigError::Share(..) => (None, "no such share"),
    };
    Fault { span, message: message.to_owned(), help: None }
}

/// What threads stamp by, until the next epoch or reload.
#[derive(Clone)]
pub struct StampingPlan {
    config: Config,
    threads: u32,
    /// By link: the sources whose packets are stamped; none if its packets pass unchanged.
    sources: Vec<Vec<Prefix>>,
}

impl StampingPlan {
    pub fn new(file: &RouterFile, capabilities: &RouteCapabilities, now: UnixTime) -> Self {
        let section = file.stamper.as_ref().map(Spanned::get_ref);
        let sections = section.map_or(&[][..], |section| &section.routes);
        let route = |(section, files): (&Spanned<RouteSection>, &Vec<(Capabilities, String)>)| {
            let section = section.get_ref();
            Route {
                // Packets of a route whose capabilities have ended are left unstamped, and counted.
                hops: files.iter().map(|(capabilities, _)| capabilities.hop_or_first(now)).collect(),
                sealed: section.sealed,
                carriage: if section.udp { Carriage::Udp } else { Carriage::Ip },
                mtu: usize::try_from(*section.mtu.get_ref()).unwrap_or(usize::MAX),
            }
        };
        let rule = |rule: &Spanned<RuleSection>| {
            let rule = rule.get_ref();
            let route = rule.route.as_ref().and_then(|name| section?.route(name.get_ref()));
            let action = route.and_then(|route| u16::try_from(route).ok()).map_or(RuleAction::Pass, RuleAction::Take);
            Rule { to: rule.to, user: None, mark: None, action }
        };
        let position = match section.map(|section| section.position) {
            Some(PositionName::Last) => Position::Last,
            _ => Position::Next,
        };
        let config = Config {
            location: Location::Network(position),
            routes: sections.iter().zip(&capabilities.0).map(route).collect(),
            rules: section.map_or(&[][..], |section| &section.rules).iter().map(rule).collect(),
            share: section.map_or([0, 1], StamperSection::share).into(),
        };
        let sources = file.link.iter().map(|link| link.get_ref().stamp.clone()).collect();
        Self { config, threads: u32::try_from(*file.forwarding.workers.get_ref()).unwrap_or(1), sources }
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
}

/// One thread's stamping.
pub struct Stamping {
    stamper: Stamper,
    sources: Vec<Vec<Prefix>>,
    /// Whether each packet of the batch may be stamped, in their order.
    may_stamp: Vec<bool>,
    transit: TransitCounters,
}

impl Stamping {
    /// # Errors
    /// What is wrong with the plan.
    pub fn new(plan: &StampingPlan, thread: u32) -> Answer<Self> {
        let stamper = plan.stamper(thread).map_err(|error| Failure::new(error.to_string()))?;
        let sources = plan.sources.clone();
        Ok(Self { stamper, sources, may_stamp: Vec::with_capacity(BURST), transit: TransitCounters::default() })
    }

    /// Takes another plan between two bursts; nonces and counters go on.
    pub fn reload(&mut self, plan: &StampingPlan) {
        if let Err(error) = self.stamper.reload(plan.config.routes.clone(), &plan.config.rules) {
            // The plan was tried before.
            error!(%error, "a forwarding thread refused the stamper's configuration and stamps by the old one: restart the router");
            return;
        }
        self.sources.clone_from(&plan.sources);
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
        ];
        let unstamped = LeaveReason::ALL.into_iter().map(|reason| (reason.name(), stamper.unchanged(reason)));
        (became.into(), unstamped.chain([("source", transit.source)]).collect())
    }

    /// Whether packets that come by this link are stamped.
    pub fn is_for(&self, link: usize) -> bool {
        self.sources.get(link).is_some_and(|sources| !sources.is_empty())
    }

    /// Copies a packet of `link` into `grown` with headroom, unless it goes no further. Returns whether there was memory for
    /// it.
    pub fn take(&mut self, link: usize, octets: &mut [u8], from: SocketAddr, grown: &mut Burst) -> bool {
        let length = match pass_on(octets) {
            Ok(length) => length,
            Err(dropped) => {
                match dropped {
                    Dropped::Unsound => self.transit.unsound += 1,
                    Dropped::Martian => self.transit.martian += 1,
                    Dropped::Expired => self.transit.expired += 1,
                }
                return true;
            }
        };
        let octets = &octets[..length];
        if !grown.push_behind(HEADROOM, octets, from) {
            return false;
        }
        let may_stamp = original_source(octets).is_some_and(|source| self.is_source(link, source));
        self.transit.passed += 1;
        self.transit.source += u64::from(!may_stamp);
        self.may_stamp.push(may_stamp);
        true
    }

    fn is_source(&self, link: usize, source: IpAddr) -> bool {
        let Ok(host) = Prefix::truncated(source, if source.is_ipv4() { 32 } else { 128 }) else { return false };
        self.sources[link].iter().any(|prefix| prefix.afi() == host.afi() && prefix.contains(&host))
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

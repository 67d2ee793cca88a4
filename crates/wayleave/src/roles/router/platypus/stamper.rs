//! Stamping in the network: packets that come by a link and are for others get capabilities, and go on.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;

use toml::Spanned;
use tracing::{error, warn};
use wayleave_core::{Now, Prefix, UnixTime};
use wayleave_crypto::lanes::CpuKernel;
use wayleave_dataplane::frame::BURST;
use wayleave_dataplane::stamper::{
    Config, ConfigError, LeaveReason, Location, Outcome, OutgoingPacket, Route, Rule, RuleAction, Stamper,
};
use wayleave_packet::platypus::header::offsets::{PROTOCOL, UDP_PORT};
use wayleave_packet::platypus::header::{Carriage, Packet};
use wayleave_packet::platypus::mint::Position;
use wayleave_packet::platypus::verify::is_martian;
use wayleave_runtime::packets::Burst;

use crate::config::router::RouterFile;
use crate::config::stamper::{PositionName, StamperSection};
use crate::config::{Fault, Source};
use crate::failure::{Failure, Outcome as Answer};
use crate::key_files::capability::Capabilities;

/// Octets that a packet may grow by: a header, UDP, and eight capabilities of the greatest length.
const ROOM: usize = 44 + 8 + 8 * 64;
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: u8 = 17;
/// Seconds before the end of capabilities at which the log says so.
const WARNED_AHEAD: u64 = 3_600;

/// The capabilities of each route, as their files hold them.
pub struct Held(Vec<Vec<(Capabilities, String)>>);

impl Held {
    /// Reads all files.
    pub fn load(file: &RouterFile, source: &Source) -> Result<Option<Self>, Failure> {
        let Some(section) = &file.stamper else { return Ok(None) };
        let one = |named: &Spanned<std::path::PathBuf>| {
            let path = source.resolve(named.get_ref());
            let loaded = Capabilities::load(&path);
            let loaded = loaded.map_err(|failure| source.failure(Fault::of(named.span(), &failure)))?;
            Ok((loaded, path.display().to_string()))
        };
        let route = |route: &Spanned<crate::config::stamper::RouteSection>| {
            route.get_ref().capabilities.iter().map(one).collect::<Result<_, Failure>>()
        };
        let held = Self(section.get_ref().routes.iter().map(route).collect::<Result<_, Failure>>()?);
        let plan = Plan::new(file, &held, UnixTime(0));
        if let Err(error) = plan.stamper(0) {
            return Err(source.failure(place_of(section.get_ref(), error)));
        }
        Ok(Some(held))
    }

    /// The key epochs that are stamped with at `now`; none where no capability is accepted.
    pub fn epochs(&self, now: UnixTime) -> Vec<Option<Stamped>> {
        let all = self.0.iter().flatten();
        all.map(|(capabilities, _)| {
            let epoch = capabilities.hop(now)?.capability.epoch;
            Some(Stamped { epoch, is_about_to_end: now.secs() + WARNED_AHEAD > capabilities.end() })
        })
        .collect()
    }

    /// Says which files have come to their end, or are about to.
    pub fn warn(&self, now: UnixTime) {
        for (capabilities, name) in self.0.iter().flatten() {
            let end = capabilities.end();
            if capabilities.hop(now).is_none() {
                error!("ALARM: {name} has no capability for now: what needs it is not stamped");
            } else if now.secs() + WARNED_AHEAD > end {
                warn!("{name} ends at second {end}: put another in its place, and reload");
            }
        }
    }
}

/// What a file of capabilities is good for at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamped {
    epoch: u32,
    is_about_to_end: bool,
}

/// What is wrong, and where.
fn place_of(section: &StamperSection, error: ConfigError) -> Fault {
    let rule = |place: usize| section.rules.get(place).map(Spanned::span);
    let route = |place: usize| section.routes.get(place).map(Spanned::span);
    let (span, message) = match error {
        ConfigError::Twice(place) => (rule(place), "a second rule for the same destinations, expected one"),
        ConfigError::NoRoute(place) => {
            (rule(place), "the route is of another family, expected one of the destinations'")
        }
        ConfigError::Delegation(place) => {
            (rule(place), "the route's capabilities are not delegated for all of these, expected narrower destinations")
        }
        ConfigError::Route(place) | ConfigError::Carriage(place) => (
            route(place),
            "a route that no packet can take, expected one to eight waypoints of one family, none thrice",
        ),
        ConfigError::Share(..) => (None, "no such share"),
    };
    Fault { span, message: message.to_owned(), help: None }
}

/// What threads stamp by, at a time.
#[derive(Clone)]
pub struct Plan {
    config: Config,
    threads: u32,
    /// By link: the sources whose packets are stamped; none if its packets are left alone.
    sources: Vec<Vec<Prefix>>,
}

impl Plan {
    pub fn new(file: &RouterFile, held: &Held, now: UnixTime) -> Self {
        let section = file.stamper.as_ref().map(Spanned::get_ref);
        let sections = section.map_or(&[][..], |section| &section.routes);
        let route =
            |(section, files): (&Spanned<crate::config::stamper::RouteSection>, &Vec<(Capabilities, String)>)| {
                let section = section.get_ref();
                Route {
                    // What is over for now is left by its epoch, and counted.
                    hops: files.iter().map(|(capabilities, _)| capabilities.hop_or_first(now)).collect(),
                    sealed: section.sealed,
                    carriage: if section.udp { Carriage::Udp } else { Carriage::Ip },
                    mtu: usize::try_from(*section.mtu.get_ref()).unwrap_or(usize::MAX),
                }
            };
        let rule = |rule: &Spanned<crate::config::stamper::RuleSection>| {
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
            routes: sections.iter().zip(&held.0).map(route).collect(),
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

/// What a thread has counted beside its stamper.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Passed {
    /// Went on, stamped or not.
    pub passed: u64,
    /// Not stamped, since its source is not one of the link's.
    pub source: u64,
    /// Dropped: no sound IP packet, from or to a martian, or one hop too many.
    pub unsound: u64,
    pub martian: u64,
    pub expired: u64,
}

/// One thread's stamping.
pub struct Stamping {
    stamper: Stamper,
    sources: Vec<Vec<Prefix>>,
    /// Whether each packet taken in may be stamped, in their order.
    is_theirs: Vec<bool>,
    passed: Passed,
}

/// Why a packet goes no further.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dropped {
    Unsound,
    Martian,
    Expired,
}

impl Stamping {
    /// # Errors
    /// What is wrong with the plan.
    pub fn new(plan: &Plan, thread: u32) -> Answer<Self> {
        let stamper = plan.stamper(thread).map_err(|error| Failure::new(error.to_string()))?;
        let sources = plan.sources.clone();
        Ok(Self { stamper, sources, is_theirs: Vec::with_capacity(BURST), passed: Passed::default() })
    }

    /// Takes another plan between two bursts; nonces and counters go on.
    pub fn reload(&mut self, plan: &Plan) {
        if let Err(error) = self.stamper.reload(plan.config.routes.clone(), &plan.config.rules) {
            error!(%error, "ALARM: this thread did not take the stamper's configuration"); // it was tried before
            return;
        }
        self.sources.clone_from(&plan.sources);
    }

    /// What became of packets, and of how many.
    pub fn counts(&self) -> (Passed, u64, u64, impl Iterator<Item = (&'static str, u64)>) {
        let counters = self.stamper.counters();
        let left = LeaveReason::ALL.into_iter().map(|reason| (reason.name(), counters.unchanged(reason)));
        (self.passed, counters.stamped, counters.appended, left)
    }

    /// Whether packets that come by this link are stamped.
    pub fn is_for(&self, link: usize) -> bool {
        self.sources.get(link).is_some_and(|sources| !sources.is_empty())
    }

    /// Takes a packet of `link` into `grown`, with room in front of it, unless it goes no further. Returns whether there was
    /// memory for it.
    pub fn take(&mut self, link: usize, octets: &mut [u8], from: SocketAddr, grown: &mut Burst) -> bool {
        let length = match pass_on(octets) {
            Ok(length) => length,
            Err(dropped) => {
                match dropped {
                    Dropped::Unsound => self.passed.unsound += 1,
                    Dropped::Martian => self.passed.martian += 1,
                    Dropped::Expired => self.passed.expired += 1,
                }
                return true;
            }
        };
        let octets = &octets[..length];
        if !grown.push_behind(ROOM, octets, from) {
            return false;
        }
        let is_theirs = original_source(octets).is_some_and(|source| self.is_source(link, source));
        self.passed.passed += 1;
        self.passed.source += u64::from(!is_theirs);
        self.is_theirs.push(is_theirs);
        true
    }

    fn is_source(&self, link: usize, source: IpAddr) -> bool {
        let Ok(host) = Prefix::truncated(source, if source.is_ipv4() { 32 } else { 128 }) else { return false };
        self.sources[link].iter().any(|prefix| prefix.afi() == host.afi() && prefix.contains(&host))
    }

    /// Stamps what was taken in, at most [`BURST`] packets.
    pub fn stamp(&mut self, grown: &mut Burst, now: Now) {
        let mut places = [0; BURST];
        let mut outcomes = [const { Outcome::Unchanged { reason: LeaveReason::Rule, mtu: None } }; BURST];
        let mut count = 0;
        {
            let mut packets: [OutgoingPacket<'_>; BURST] =
                std::array::from_fn(|_| OutgoingPacket { buffer: &mut [], begin: 0, user: None, mark: 0 });
            for (place, (_, buffer)) in grown.packets_mut(0).take(BURST).enumerate() {
                if self.is_theirs[place] {
                    places[count] = place;
                    packets[count] = OutgoingPacket { buffer, begin: ROOM, user: None, mark: 0 };
                    count += 1;
                }
            }
            self.stamper.stamp(&mut packets[..count], now.unix, &mut outcomes[..count]);
        }
        let mut ranges: [Option<Range<usize>>; BURST] = [const { None }; BURST];
        for (place, outcome) in places.into_iter().zip(outcomes).take(count) {
            if let Outcome::Stamped(range) = outcome {
                ranges[place] = Some(range);
            }
        }
        for (place, range) in ranges.into_iter().enumerate().take(grown.len()) {
            let whole = ROOM..grown.octets(place).len();
            grown.trim(place, range.unwrap_or(whole));
        }
        self.is_theirs.clear();
    }
}

/// One hop of an IP packet: its octets by its own header, if it may go on.
fn pass_on(octets: &mut [u8]) -> Result<usize, Dropped> {
    let half = |octets: &[u8], at: usize| usize::from(u16::from_be_bytes([octets[at], octets[at + 1]]));
    match octets.first().map(|first| first >> 4) {
        Some(4) if octets.len() >= IPV4 => {
            let (header, length) = (4 * usize::from(octets[0] & 15), half(octets, 2));
            if header < IPV4 || length < header || length > octets.len() || checksum(&octets[..header]) != 0 {
                return Err(Dropped::Unsound);
            }
            let address = |at: usize| Ipv4Addr::new(octets[at], octets[at + 1], octets[at + 2], octets[at + 3]);
            check_ends(address(12).into(), address(16).into())?;
            octets[8] = octets[8].checked_sub(1).filter(|left| *left > 0).ok_or(Dropped::Expired)?;
            octets[10..12].fill(0);
            let sum = checksum(&octets[..header]);
            octets[10..12].copy_from_slice(&sum.to_be_bytes());
            Ok(length)
        }
        Some(6) if octets.len() >= IPV6 => {
            let length = IPV6 + half(octets, 4);
            if length > octets.len() {
                return Err(Dropped::Unsound);
            }
            let address = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&octets[at..at + 16]).unwrap_or_default());
            check_ends(address(8), address(24))?;
            octets[7] = octets[7].checked_sub(1).filter(|left| *left > 0).ok_or(Dropped::Expired)?;
            Ok(length)
        }
        _ => Err(Dropped::Unsound),
    }
}

fn check_ends(source: IpAddr, destination: IpAddr) -> Result<(), Dropped> {
    if is_martian(source) || is_martian(destination) { Err(Dropped::Martian) } else { Ok(()) }
}

/// RFC 1071, over whole words: zero for a header whose own checksum is right.
fn checksum(header: &[u8]) -> u16 {
    let sum: u32 = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// Who sent a packet, whether it is stamped or not. The octets are those of a whole IP packet.
fn original_source(octets: &[u8]) -> Option<IpAddr> {
    let (protocol, header) = match octets[0] >> 4 {
        4 => (octets[9], 4 * usize::from(octets[0] & 15)),
        _ => (octets[6], IPV6),
    };
    let port = || octets.get(header + 2..header + 4).map(|port| u16::from_be_bytes([port[0], port[1]]));
    if protocol == PROTOCOL || protocol == UDP && port() == Some(UDP_PORT) {
        return Some(Packet::decode(octets).ok()?.original_source());
    }
    Some(match octets[0] >> 4 {
        4 => Ipv4Addr::new(octets[12], octets[13], octets[14], octets[15]).into(),
        _ => <[u8; 16]>::try_from(&octets[8..24]).ok()?.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 203, 0, 113, 9];
        packet.extend([0; 8]);
        change(&mut packet);
        packet[10..12].fill(0);
        let sum = checksum(&packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet
    }

    #[test]
    fn a_hop_takes_one_from_the_time_to_live_and_leaves_the_checksum_right() {
        for ttl in [2, 64, 255] {
            let mut packet = v4(|packet| packet[8] = ttl);
            packet.extend([9; 5]);
            assert_eq!(pass_on(&mut packet), Ok(28), "what is beyond the length is cut off");
            assert_eq!((packet[8], checksum(&packet[..20])), (ttl - 1, 0));
        }
        let mut v6 = vec![0; 48];
        (v6[0], v6[5], v6[7]) = (0x60, 8, 2);
        v6[8..24].copy_from_slice(&"2001:db8::1".parse::<std::net::Ipv6Addr>().expect("IPv6").octets());
        v6[24..40].copy_from_slice(&"2001:db8::2".parse::<std::net::Ipv6Addr>().expect("IPv6").octets());
        assert_eq!((pass_on(&mut v6.clone()), pass_on(&mut v6[..47].to_vec())), (Ok(48), Err(Dropped::Unsound)));
        v6[7] = 1;
        assert_eq!(pass_on(&mut v6), Err(Dropped::Expired));
    }

    #[test]
    fn what_is_unsound_old_or_from_nowhere_goes_no_further() {
        let table: [(Vec<u8>, Dropped); 8] = [
            (v4(|packet| packet[8] = 1), Dropped::Expired),
            (v4(|packet| packet[8] = 0), Dropped::Expired),
            (v4(|packet| packet[12] = 127), Dropped::Martian),
            (v4(|packet| packet[16] = 224), Dropped::Martian),
            (v4(|packet| packet[3] = 29), Dropped::Unsound),
            (v4(|packet| packet[0] = 0x44), Dropped::Unsound),
            (v4(|_| ())[..19].to_vec(), Dropped::Unsound),
            (Vec::new(), Dropped::Unsound),
        ];
        for (mut packet, dropped) in table {
            assert_eq!(pass_on(&mut packet), Err(dropped), "{packet:?}");
        }
        let mut packet = v4(|_| ());
        packet[11] ^= 1;
        assert_eq!(pass_on(&mut packet), Err(Dropped::Unsound), "a wrong checksum is not made right");
    }
}

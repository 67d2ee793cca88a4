//! Platypus: packets by IP as they are, or in UDP over configured links; where they go follows from their outer header.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use wayleave_core::{Instant, Now, Prefix};
use wayleave_crypto::lanes::CpuKernel;
use wayleave_crypto::secret::Key128;
use wayleave_dataplane::frame::{BURST, Frame, Ingress};
use wayleave_dataplane::platypus::account::Total;
use wayleave_dataplane::platypus::{Action, Config, ReplayPolicy, Router};
use wayleave_dataplane::replay::ReplayFilter;
use wayleave_packet::platypus::header::{DelegationId, Interval, Principal};
use wayleave_packet::platypus::mint::{WaypointKey, WaypointKeys};
use wayleave_packet::platypus::verify::{Charge, Policy, Waypoint};
use wayleave_runtime::packets::Burst;

use super::rates::Rates;
use super::stamper::{Plan, Stamping};
use super::worker::{Attached, Out, Tally, Way};
use crate::config::router::{PlatypusSection, RepeatedName, RouterFile};
use crate::failure::{Failure, Outcome};
use crate::key_files::forwarding::ForwardingKeys;

/// Stamping keys of delegations that a thread keeps.
const DELEGATIONS: usize = 1024;
/// Octets of an IPv4 header without options.
const IPV4: usize = 20;
/// ICMP errors that another router may send about a packet that a waypoint sent on (RFC 792).
const ICMP_ERRORS: [u8; 3] = [3, 11, 12];

/// One thread's router.
pub struct Engine {
    pub router: Router,
    /// The other ends of links.
    remotes: Vec<SocketAddr>,
    /// What lies behind them, the longest prefix first.
    routes: Vec<(Prefix, usize)>,
    /// The ports of the links, and the one that sends by IP.
    links: Vec<usize>,
    ip: Option<usize>,
    stamping: Option<Stamping>,
}

/// What a reload changes.
#[derive(Clone)]
pub struct Table {
    pub waypoints: Vec<Waypoint>,
    rates: Rates,
    plan: Option<Plan>,
    remotes: Vec<SocketAddr>,
    routes: Vec<(Prefix, usize)>,
}

/// Where a packet goes.
#[derive(Clone, Copy)]
enum Next {
    /// Over this link.
    Link(usize),
    /// By this port, to this address.
    Ip(usize, IpAddr),
}

/// The waypoints with their live keys.
pub fn waypoints(section: &PlatypusSection, keys: &ForwardingKeys, now: u64, ahead: u64) -> Vec<Waypoint> {
    let policy = Policy {
        narrow: section.narrow,
        freshness: u32::try_from(*section.freshness_secs.get_ref()).unwrap_or(u32::MAX),
        check_source: true,
        refused: section.refused.clone(),
        waypoints: section.allowed_waypoints.iter().map(|address| address.0).collect(),
    };
    let live = keys.live(now, ahead);
    let key = |octets: &[u8; 16]| WaypointKey::new(&Key128::new(*octets));
    let mut all = WaypointKeys::new(key(&live[0].1));
    for (from, octets) in &live[1..] {
        // The file's keys are in order, and only the first counts from the beginning.
        let _ = all.rotate(key(octets), *from);
    }
    section
        .waypoints
        .get_ref()
        .iter()
        .map(|address| Waypoint::new(IpAddr::V4(address.0), all.clone(), policy.clone()))
        .collect()
}

impl Table {
    pub fn new(file: &RouterFile, section: &PlatypusSection, waypoints: Vec<Waypoint>, plan: Option<Plan>) -> Self {
        let links: Vec<_> = file.link.iter().map(toml::Spanned::get_ref).collect();
        let remotes = links.iter().map(|link| link.remote.get_ref().0).collect();
        let mut routes: Vec<(Prefix, usize)> =
            links.iter().enumerate().flat_map(|(n, link)| link.routes.iter().map(move |prefix| (*prefix, n))).collect();
        routes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        let rates = Rates::new(section, *file.forwarding.workers.get_ref());
        Self { waypoints, rates, plan, remotes, routes }
    }
}

/// The filter of repeated packets, which all threads share; a small one that nobody asks where there is none.
pub fn replay(file: &RouterFile) -> Outcome<ReplayFilter> {
    let section = file.platypus.as_ref().map(toml::Spanned::get_ref);
    let section = section.filter(|section| section.repeated != RepeatedName::Pass);
    let capacity = section.map_or(1, |section| *section.replay_capacity.get_ref());
    Ok(ReplayFilter::new(&Key128::new(random()?), usize::try_from(capacity).unwrap_or(usize::MAX)))
}

fn random<const N: usize>() -> Outcome<[u8; N]> {
    let mut octets = [0; N];
    getrandom::fill(&mut octets).map_err(|error| Failure::new(format!("the system gave no randomness: {error}")))?;
    Ok(octets)
}

/// The configuration of one thread's router.
pub fn config(
    file: &RouterFile,
    section: &PlatypusSection,
    waypoints: Vec<Waypoint>,
    replay: ReplayFilter,
) -> Outcome<Config> {
    let workers = (*file.forwarding.workers.get_ref()).max(1);
    let answers = *section.answers_per_second.get_ref();
    let share = (answers / workers).max(u64::from(answers > 0));
    let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    Ok(Config {
        repeated: match section.repeated {
            RepeatedName::Pass => ReplayPolicy::Pass,
            RepeatedName::CountOnce => ReplayPolicy::CountOnce,
            RepeatedName::Drop => ReplayPolicy::Drop,
        },
        waypoints,
        replay,
        need_revocations: section.revocations.as_ref().is_some_and(|list| list.get_ref().required),
        answers_per_second: u32::try_from(share).unwrap_or(u32::MAX),
        accounts: size(*section.accounts.get_ref()),
        account_seed: u64::from_be_bytes(random()?),
        delegations: DELEGATIONS,
    })
}

impl Engine {
    /// The engine of a thread.
    ///
    /// # Errors
    /// What is wrong with what it stamps by.
    pub fn new(config: Config, table: Table, ports: &[Attached], thread: usize) -> Outcome<Self> {
        let router = Router::new(config, CpuKernel::best());
        let thread = u32::try_from(thread).unwrap_or(u32::MAX);
        let stamping = table.plan.as_ref().map(|plan| Stamping::new(plan, thread)).transpose()?;
        let (remotes, routes, links) = (Vec::new(), Vec::new(), Vec::new());
        let mut engine = Self { router, remotes, routes, links, ip: None, stamping };
        // Every bucket is full whenever it begins.
        engine.take(table, ports, Instant(0));
        Ok(engine)
    }

    /// Takes other waypoints, rates and links between two bursts; counters, accounts and filters stay.
    pub fn reload(&mut self, table: Table, ports: &[Attached], now: Now) {
        self.router.set_waypoints(table.waypoints.clone());
        self.take(table, ports, now.instant);
    }

    fn take(&mut self, table: Table, ports: &[Attached], now: Instant) {
        table.rates.set(self.router.accounts(), now);
        if let (Some(stamping), Some(plan)) = (&mut self.stamping, &table.plan) {
            stamping.reload(plan);
        }
        self.ip = None;
        (self.remotes, self.routes) = (table.remotes, table.routes);
        self.links = vec![0; self.remotes.len()];
        for (place, attached) in ports.iter().enumerate().filter(|(_, attached)| !attached.is_control) {
            match attached.way {
                Way::Link(number) => self.links[number] = place,
                Way::Ip => self.ip = Some(place),
                _ => {}
            }
        }
    }

    /// As of the SCION engine.
    pub fn process(
        &mut self,
        burst: &mut Burst,
        first: usize,
        (_, way): (usize, Way),
        now: Now,
        out: &mut Out,
        tally: &mut Tally,
    ) {
        let mut count = 0;
        let mut numbers = [0; BURST];
        let mut lengths = [0; BURST];
        let actions = {
            let mut frames: [Frame<'_>; BURST] =
                std::array::from_fn(|_| Frame { octets: &mut [], ingress: Ingress::Internal });
            let mut last = None;
            for (number, (from, octets)) in burst.packets_mut(first).take(BURST).enumerate() {
                let is_expected = match (way, last) {
                    (Way::Link(_), Some((same, is_expected))) if std::ptr::eq(same, from) => is_expected,
                    _ => self.is_expected(way, from, octets),
                };
                last = Some((from, is_expected));
                if !is_expected {
                    tally.strangers += u64::from(way != Way::Icmp);
                    continue;
                }
                if let (Way::Link(link), Some(stamping)) = (way, &mut self.stamping)
                    && stamping.is_for(link)
                    && !self.router.is_waypoint(destination(octets))
                {
                    tally.unsent += u64::from(!stamping.take(link, octets, *from, &mut out.grown));
                    continue;
                }
                numbers[count] = first + number;
                frames[count] = Frame { octets, ingress: Ingress::Internal };
                count += 1;
            }
            let actions = self.router.process(&mut frames[..count], now);
            for (length, frame) in lengths.iter_mut().zip(&frames[..count]) {
                *length = frame.octets.len();
            }
            actions
        };
        // Neighbours often go to one place.
        let mut last = None;
        for ((number, length), action) in numbers.into_iter().zip(lengths).zip(actions).take(count) {
            if let Action::Drop(_) = action {
                continue;
            }
            burst.shorten(number, length);
            let destination = destination(burst.octets(number));
            let next = match last {
                Some((same, next)) if same == destination => next,
                _ => self.next(destination),
            };
            last = Some((destination, next));
            let Some(next) = next else {
                tally.unreachable += 1;
                continue;
            };
            let direct;
            let (port, to) = match next {
                Next::Link(link) => (self.links[link], &self.remotes[link]),
                Next::Ip(port, address) => {
                    direct = SocketAddr::new(address, 0);
                    (port, &direct)
                }
            };
            match action {
                Action::Answer(_) => out.urgent(port, number, *to),
                _ => out.data(port, number, to),
            }
        }
        self.stamp(now, out, tally);
    }

    /// Stamps what the burst had of packets for others, and sends it on.
    fn stamp(&mut self, now: Now, out: &mut Out, tally: &mut Tally) {
        let Some(stamping) = self.stamping.as_mut().filter(|_| !out.grown.is_empty()) else { return };
        stamping.stamp(&mut out.grown, now);
        for packet in 0..out.grown.len() {
            let next = self.next(destination(out.grown.octets(packet))).map(|next| match next {
                Next::Link(link) => (self.links[link], self.remotes[link]),
                Next::Ip(port, address) => (port, SocketAddr::new(address, 0)),
            });
            match next {
                // Not back to where it came from: two stampers would send it to each other until its end.
                Some((port, to)) if to != out.grown.from(packet) => out.grown_data(port, packet, to),
                _ => tally.unreachable += 1,
            }
        }
    }

    /// What the thread has stamped, if it does.
    pub fn stamping(&self) -> Option<&Stamping> {
        self.stamping.as_ref()
    }

    fn is_expected(&self, way: Way, from: &SocketAddr, octets: &[u8]) -> bool {
        match way {
            Way::Link(number) => self.remotes[number] == *from,
            Way::Icmp => octets.get(IPV4).is_some_and(|kind| ICMP_ERRORS.contains(kind)),
            _ => true,
        }
    }

    /// Where a packet to this outer destination goes.
    fn next(&self, destination: Option<IpAddr>) -> Option<Next> {
        let destination = destination?;
        let host = Prefix::truncated(destination, if destination.is_ipv4() { 32 } else { 128 }).ok()?;
        let is_behind = |prefix: &Prefix| prefix.afi() == host.afi() && prefix.contains(&host);
        match self.routes.iter().find(|(prefix, _)| is_behind(prefix)) {
            Some((_, link)) => Some(Next::Link(*link)),
            // Raw sockets of IPv6 do not take a packet with its header.
            None => self.ip.filter(|_| destination.is_ipv4()).map(|port| Next::Ip(port, destination)),
        }
    }
}

/// An IP packet's destination.
fn destination(octets: &[u8]) -> Option<IpAddr> {
    match octets.first()? >> 4 {
        4 => Some(IpAddr::V4(Ipv4Addr::from(*octets.get(16..20)?.first_chunk::<4>()?))),
        6 => Some(IpAddr::from(*octets.get(24..40)?.first_chunk::<16>()?)),
        _ => None,
    }
}

/// A record of the journal: the key is the thread's number and the account, the value its totals.
pub fn record(worker: usize, charge: &Charge, total: &Total) -> (Vec<u8>, Vec<u8>) {
    let (id, sub) = charge.delegation.map_or((None, None), |(id, sub)| (Some(id), sub));
    let mut key = (worker as u16).to_be_bytes().to_vec();
    key.extend(charge.principal.octets());
    key.push(u8::from(id.is_some()) | u8::from(sub.is_some()) << 1 | u8::from(charge.interval.is_some()) << 2);
    key.extend(id.unwrap_or_default().octets());
    key.extend(sub.unwrap_or_default().octets());
    key.push(charge.interval.map_or(0, Interval::exponent));
    key.extend(charge.epoch.to_be_bytes());
    let value = [total.packets.to_be_bytes(), total.octets.to_be_bytes()].concat();
    (key, value)
}

/// Reads a record again.
pub fn read_record(key: &[u8], value: &[u8]) -> Option<(usize, Charge, Total)> {
    let key: &[u8; 17] = key.try_into().ok()?;
    let (packets, octets) = value.split_first_chunk::<16>()?;
    let number = |at: usize| u32::from_be_bytes([0, key[at], key[at + 1], key[at + 2]]);
    let (flags, exponent) = (key[5], key[12]);
    let sub = if flags & 2 != 0 { Some(DelegationId::new(number(9))?) } else { None };
    let delegation = if flags & 1 != 0 { Some((DelegationId::new(number(6))?, sub)) } else { None };
    let interval = if flags & 4 != 0 { Some(Interval::new(exponent)?) } else { None };
    let epoch = u32::from_be_bytes(*key.last_chunk::<4>()?);
    let charge = Charge { principal: Principal::new(number(2))?, delegation, interval, epoch };
    let total = Total { packets: u128::from_be_bytes(*packets), octets: u128::from_be_bytes(octets.try_into().ok()?) };
    Some((u16::from_be_bytes([key[0], key[1]]).into(), charge, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_router_without_waypoints_filters_repeated_packets_for_those_that_a_reload_brings() {
        const FILE: &str = "[forwarding]\nformat = \"platypus\"\nkeys = \"k\"\n[platypus]\nwaypoints = []\n";
        let file: RouterFile = toml::from_str(FILE).expect("a configuration");
        let section = file.platypus.as_ref().expect("a section").get_ref();
        assert_eq!(
            config(&file, section, Vec::new(), replay(&file).expect("random octets")).expect("random octets").repeated,
            ReplayPolicy::Drop
        );
    }

    #[test]
    fn a_record_of_the_journal_is_read_as_it_was_written() {
        let principal = Principal::new(0x12_3456).expect("24 bits");
        let id = |id| DelegationId::new(id).expect("24 bits");
        let total = Total { packets: 7, octets: u128::from(u64::MAX) * 9 };
        for delegation in [None, Some((id(1), None)), Some((id(0xff_ffff), Some(id(3))))] {
            for interval in [None, Interval::new(12)] {
                let charge = Charge { principal, delegation, interval, epoch: 0xfedc_ba98 };
                let (key, value) = record(300, &charge, &total);
                let (worker, again, totals) = read_record(&key, &value).expect("sound");
                assert_eq!((worker, again, totals), (300, charge, total));
                assert_eq!(read_record(&key[1..], &value), None);
                assert_eq!(read_record(&key, &value[1..]), None);
            }
        }
    }
}

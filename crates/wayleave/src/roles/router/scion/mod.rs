//! SCION: which port and address each decision of the router means.

use std::net::{IpAddr, SocketAddr};

use wayleave_core::Now;
use wayleave_dataplane::frame::{BURST, Frame, Ingress};
use wayleave_dataplane::scion::{Action, Config, ConfigError, EpochKey, Interface, Keys, Link, Owner, Router};
use wayleave_packet::platypus::verify::is_martian;
use wayleave_packet::scion::{ForwardingKey, HostAddress, Layout, Service, next_header};
use wayleave_runtime::packets::Burst;

use super::worker::{Attached, Out, Tally, Way};
use crate::config::router::{LinkKind, RouterFile, ScionSection};
use crate::key_files::forwarding::ForwardingKeys;

/// Octets of the common header before the addresses.
const COMMON: usize = 12 + 16;
/// SCMP messages of these types and above are answers and questions; those below are errors.
const INFORMATIONAL: u8 = 128;

/// One thread's router.
pub struct Engine {
    pub router: Router,
    table: Table,
    /// The port of each interface, and the internal one, of this thread.
    ports: Vec<Option<usize>>,
    internal: usize,
}

/// Addresses of what a decision can name.
#[derive(Clone)]
pub struct Table {
    /// The neighbour's end of each interface that is this router's.
    remotes: Vec<Option<SocketAddr>>,
    siblings: Vec<SocketAddr>,
    services: [Option<SocketAddr>; 2],
    end_host_ports: [u16; 2],
    shared_port: u16,
    is_on_loopback: bool,
    /// Wrong MACs of an interface a second, and at once, before this thread checks none of its MACs.
    bad_mac_limit: Option<(u32, u32)>,
}

/// The router's own configuration.
pub fn config(file: &RouterFile, section: &ScionSection, keys: Keys) -> Config {
    let interface = |section: &crate::config::router::InterfaceSection| Interface {
        id: *section.id.get_ref(),
        link: match section.link {
            LinkKind::Core => Link::Core,
            LinkKind::Parent => Link::Parent,
            LinkKind::Child => Link::Child,
            LinkKind::Peer => Link::Peer,
        },
        neighbor: section.neighbor.get_ref().0,
        owner: section.sibling.as_ref().map_or(Owner::This, |sibling| Owner::Sibling(*sibling.get_ref())),
    };
    let address = match section.internal.get_ref().0.ip() {
        IpAddr::V4(v4) => HostAddress::V4(v4),
        IpAddr::V6(v6) => HostAddress::V6(v6),
    };
    // `check` has seen that it fits. A tenth of a second's answers may come at once.
    let answers = u32::try_from(*section.answers_per_second.get_ref()).unwrap_or(u32::MAX);
    let share = answers / u32::try_from(*file.forwarding.workers.get_ref()).unwrap_or(1).max(1);
    Config {
        isd_as: section.isd_as.get_ref().0,
        address,
        siblings: section.siblings.len() as u16,
        interfaces: file.interface.iter().map(|section| interface(section.get_ref())).collect(),
        keys,
        answers_per_second: share.max(u32::from(answers > 0)),
        answers_burst: (share / 10).max(u32::from(answers > 0)),
    }
}

/// The live keys: which one a segment uses follows from its timestamp.
pub fn keys(keys: &ForwardingKeys, now: u64, ahead: u64) -> Keys {
    let live = keys.live(now, ahead);
    let (_, first) = live[0];
    let mut out = Keys::one(ForwardingKey::new(&first));
    for (from, key) in &live[1..] {
        out = out.rotated(EpochKey { from: u32::try_from(*from).unwrap_or(u32::MAX), key: ForwardingKey::new(key) });
    }
    out
}

/// A thread's share of the limit on wrong MACs.
fn bad_mac_limit(file: &RouterFile, section: &ScionSection) -> Option<(u32, u32)> {
    let rate = *section.bad_macs_per_second.as_ref()?.get_ref();
    let burst = section.bad_macs_at_once.as_ref().map_or(rate, |burst| *burst.get_ref());
    let share = |limit: u64| u32::try_from(limit / *file.forwarding.workers.get_ref()).unwrap_or(u32::MAX);
    Some((share(rate), share(burst)))
}

impl Table {
    pub fn new(file: &RouterFile, section: &ScionSection) -> Self {
        let mut remotes = Vec::new();
        for section in file.interface.iter().map(toml::Spanned::get_ref) {
            let id = usize::from(*section.id.get_ref());
            if remotes.len() <= id {
                remotes.resize(id + 1, None);
            }
            remotes[id] = section.remote.as_ref().map(|remote| remote.get_ref().0);
        }
        Self {
            remotes,
            siblings: section.siblings.iter().map(|sibling| sibling.get_ref().0).collect(),
            services: [&section.discovery, &section.control].map(|service| service.as_ref().map(|address| address.0)),
            end_host_ports: *section.end_host_ports.get_ref(),
            shared_port: section.shared_port,
            is_on_loopback: section.internal.get_ref().0.ip().is_loopback(),
            bad_mac_limit: bad_mac_limit(file, section),
        }
    }

    /// Where the host of this AS that the header names is reached. The header's address is never a martian, which this
    /// machine would send to itself or to many; only a router that stands on loopback itself reaches hosts there.
    fn host(&self, octets: &[u8]) -> Option<SocketAddr> {
        let layout = Layout::decode(octets).ok()?;
        let nibble = octets[9] >> 4;
        let length = 4 * (usize::from(nibble & 3) + 1);
        let host = octets.get(COMMON..COMMON + length)?;
        match (nibble, host) {
            (0, &[a, b, c, d]) => self.address([a, b, c, d].into(), octets, &layout),
            (3, host) => self.address(<[u8; 16]>::try_from(host).ok()?.into(), octets, &layout),
            (4, &[a, b, ..]) => match Service(u16::from_be_bytes([a, b]) & !Service::MULTICAST) {
                Service::DISCOVERY => self.services[0],
                Service::CONTROL => self.services[1],
                _ => None,
            },
            _ => None,
        }
    }

    fn address(&self, host: IpAddr, octets: &[u8], layout: &Layout) -> Option<SocketAddr> {
        let is_refused = is_martian(host) && !(self.is_on_loopback && host.is_loopback());
        (!is_refused).then(|| SocketAddr::new(host, self.port(octets, layout)))
    }

    /// UDP goes to its own port if that is one of end hosts; echo and traceroute replies to the one that asked, which is
    /// their identifier; the rest to the shared port.
    fn port(&self, octets: &[u8], layout: &Layout) -> u16 {
        let payload = &octets[layout.header_len..];
        let number = |at: usize| payload.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]));
        let named = match layout.next_header {
            next_header::UDP => number(2),
            next_header::SCMP if payload.first().is_some_and(|kind| *kind > INFORMATIONAL && kind % 2 == 1) => {
                number(4)
            }
            _ => None,
        };
        let [first, last] = self.end_host_ports;
        named.filter(|port| (first..=last).contains(port)).unwrap_or(self.shared_port)
    }
}

impl Engine {
    /// An engine over a thread's ports.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn new(config: &Config, table: Table, ports: &[Attached]) -> Result<Self, ConfigError> {
        let mut engine = Self { router: Router::new(config)?, table, ports: Vec::new(), internal: 0 };
        engine.take(ports);
        Ok(engine)
    }

    /// Takes another configuration between two bursts; counters stay.
    ///
    /// # Errors
    /// What is wrong with it; all stays as it was.
    pub fn reload(&mut self, config: &Config, table: Table, ports: &[Attached]) -> Result<(), ConfigError> {
        self.router.reload(config)?;
        self.table = table;
        self.take(ports);
        Ok(())
    }

    fn take(&mut self, ports: &[Attached]) {
        self.router.set_bad_mac_limit(self.table.bad_mac_limit);
        self.ports = vec![None; self.table.remotes.len()];
        for (place, attached) in ports.iter().enumerate().filter(|(_, attached)| !attached.is_control) {
            match attached.way {
                Way::Interface(id) => {
                    if let Some(port) = self.ports.get_mut(usize::from(id)) {
                        *port = Some(place);
                    }
                }
                _ => self.internal = place,
            }
        }
    }

    /// Processes the packets of `burst` from `first` on, as many as a burst of the data plane holds.
    #[inline]
    pub fn process(
        &mut self,
        burst: &mut Burst,
        first: usize,
        (place, way): (usize, Way),
        now: Now,
        out: &mut Out,
        tally: &mut Tally,
    ) {
        let mut count = 0;
        let mut numbers = [0; BURST];
        let mut lengths = [0; BURST];
        let actions = {
            let mut packets = burst.packets_mut(first).take(BURST).enumerate();
            let mut frames: [Frame<'_>; BURST] =
                std::array::from_fn(|_| Frame { octets: &mut [], ingress: Ingress::Internal });
            let mut last = None;
            for (number, (from, octets)) in &mut packets {
                let ingress = match last {
                    Some((same, ingress)) if std::ptr::eq(same, from) => ingress,
                    _ => self.ingress(way, from),
                };
                last = Some((from, ingress));
                let Some(ingress) = ingress else {
                    tally.strangers += 1;
                    continue;
                };
                numbers[count] = first + number;
                frames[count] = Frame { octets, ingress };
                count += 1;
            }
            let actions = self.router.process(&mut frames[..count], now);
            for (length, frame) in lengths.iter_mut().zip(&frames[..count]) {
                *length = frame.octets.len();
            }
            actions
        };
        for ((number, length), action) in numbers.into_iter().zip(lengths).zip(actions).take(count) {
            self.route(burst, (number, length), (place, way), action, out, tally);
        }
    }

    /// Where a packet came in; `None` if nobody may send from there.
    #[inline]
    fn ingress(&self, way: Way, from: &SocketAddr) -> Option<Ingress> {
        match way {
            Way::Interface(id) => {
                let remote = self.table.remotes.get(usize::from(id)).and_then(Option::as_ref);
                let is_neighbor = remote == Some(from);
                is_neighbor.then_some(Ingress::External(id))
            }
            _ => Some(match self.table.siblings.iter().position(|sibling| sibling == from) {
                Some(sibling) => Ingress::Sibling(sibling as u16),
                None => Ingress::Internal,
            }),
        }
    }

    #[inline]
    fn route(
        &mut self,
        burst: &mut Burst,
        (number, length): (usize, usize),
        (place, way): (usize, Way),
        action: Action,
        out: &mut Out,
        tally: &mut Tally,
    ) {
        let to = match action {
            Action::Drop(_) => return,
            Action::Forward(id) => {
                // The address goes from one place to the other at once: piece by piece it would be slow to read whole.
                let id = usize::from(id);
                if let (Some(Some(port)), Some(Some(to))) = (self.ports.get(id), self.table.remotes.get(id)) {
                    return out.data(*port, number, to);
                }
                None
            }
            Action::Sibling(sibling) => self.table.siblings.get(usize::from(sibling)).map(|to| (self.internal, *to)),
            Action::Deliver => self.table.host(burst.octets(number)).map(|to| (self.internal, to)),
            Action::Control => {
                let ingress = self.ingress(way, &burst.from(number)).unwrap_or(Ingress::Internal);
                return out.control(ingress, burst.octets(number), tally);
            }
            Action::Answer(_) => {
                burst.shorten(number, length);
                return out.urgent(place, number, burst.from(number));
            }
        };
        match to {
            Some((port, to)) => out.data(port, number, &to),
            None => tally.unreachable += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use wayleave_packet::scion::{Header, IsdAs, OneHopPath, Packet, Path};

    use super::*;

    fn table() -> Table {
        Table {
            remotes: Vec::new(),
            siblings: Vec::new(),
            services: [None, Some(([10, 0, 0, 9], 30_252).into())],
            end_host_ports: [31_000, 32_767],
            shared_port: 30_041,
            is_on_loopback: false,
            bad_mac_limit: None,
        }
    }

    fn to(host: HostAddress, next_header: u8, payload: Vec<u8>) -> Option<SocketAddr> {
        let hop = OneHopPath { info: Default::default(), first: Default::default(), second: Default::default() };
        let (dst, src) = (IsdAs::new(1, 1), IsdAs::new(1, 2));
        let src_host = HostAddress::V4([10, 0, 0, 1].into());
        let path = Path::OneHop(hop);
        let header = Header { traffic_class: 0, flow_id: 1, next_header, dst, src, dst_host: host, src_host, path };
        table().host(&Packet { header, payload }.encode())
    }

    #[test]
    fn a_host_gets_packets_at_its_own_port_and_a_service_where_it_is() {
        let host = HostAddress::V4([10, 0, 0, 7].into());
        let udp = |port: u16| [&[0x80, 0][..], &port.to_be_bytes(), &[0, 8, 0, 0]].concat();
        let port = |next, payload| to(host, next, payload).map(|address| address.port());
        assert_eq!(to(host, next_header::UDP, udp(31_500)), Some(([10, 0, 0, 7], 31_500).into()));
        assert_eq!(port(next_header::UDP, udp(53)), Some(30_041));
        assert_eq!(port(next_header::UDP, vec![1]), Some(30_041));
        // An echo reply, and an error.
        assert_eq!(port(next_header::SCMP, vec![129, 0, 0, 0, 0x7d, 0, 0, 1]), Some(32_000));
        assert_eq!(port(next_header::SCMP, vec![1, 0, 0, 0, 0x7d, 0, 0, 1]), Some(30_041));
        let service = |service| to(HostAddress::Service(service), next_header::UDP, udp(1));
        assert_eq!(service(Service::CONTROL), Some(([10, 0, 0, 9], 30_252).into()));
        assert_eq!(service(Service::DISCOVERY), None);
    }

    #[test]
    fn martians_are_no_hosts_of_this_as() {
        let udp = vec![0x80, 0, 0x7b, 0x0c, 0, 8, 0, 0];
        for host in ["127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "169.254.1.1"] {
            assert_eq!(to(HostAddress::V4(host.parse().expect("IPv4")), next_header::UDP, udp.clone()), None, "{host}");
        }
        for host in ["::1", "::ffff:127.0.0.1", "ff02::1", "fe80::1"] {
            assert_eq!(to(HostAddress::V6(host.parse().expect("IPv6")), next_header::UDP, udp.clone()), None, "{host}");
        }
    }
}

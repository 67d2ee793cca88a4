//! Platypus: a host with an IPv4 address here, waypoints on the way, and another address here as the destination.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use wayleave_crypto::secret::Key128;
use wayleave_packet::platypus::header::{Capability, Carriage, Interval, Marks, Packet, Principal, Width};
use wayleave_packet::platypus::mint::{Hop, Nonce, Route, WaypointKey, WaypointKeys, encapsulate, epoch};
use wayleave_packet::platypus::verify::decapsulate;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::packets::ip::Ip;
use wayleave_runtime::packets::{Burst, Outgoing, Port};

use super::{Ends, MARKS, Ping, Seen, Via, answer_to, first_number, number};
use wayleave_config::failure::{Failure, Outcome};

/// The protocol numbers of Platypus in IP, of ICMP, and of pings inside: one for experiments (RFC 3692).
const PLATYPUS: u8 = 253;
const ICMP: u8 = 1;
const INNER: u8 = 254;
/// Octets of an IPv4 header without options.
const IPV4: usize = 20;
/// Capabilities last for 2^12 seconds.
const INTERVAL: u8 = 12;

/// Both ends.
pub(super) struct PlatypusEnds {
    hosts: [Ipv4Addr; 2],
    /// Platypus packets to each host.
    sockets: [Ip; 2],
    /// ICMP to the sender.
    errors: Ip,
    burst: Burst,
    /// Address and key of each waypoint, in the path's order.
    waypoints: Vec<(Ipv4Addr, [u8; 16])>,
    principal: Principal,
    counter: u32,
}

impl PlatypusEnds {
    pub(super) fn open(command: &Ping, via: &[Via]) -> Outcome<Self> {
        let host = |given: &Option<String>, what: &str| -> Outcome<Ipv4Addr> {
            let missing = || Failure::usage(format!("no IPv4 address of this machine as --{what}"));
            Ok(given.as_ref().and_then(|text| text.parse().ok()).ok_or_else(missing)?)
        };
        let hosts = [host(&command.from, "from")?, host(&command.to, "to")?];
        let open = |address: Ipv4Addr, protocol| {
            Ip::open(address, protocol).map_err(|error| {
                Failure::system(format!("cannot receive at {address}"), &error)
                    .help("raw sockets need root or CAP_NET_RAW, and an address of this machine")
            })
        };
        let mut waypoints = Vec::new();
        for one in via {
            let section = one.file.platypus.as_ref().map(toml::Spanned::get_ref);
            let section = section.ok_or_else(|| Failure::new(format!("{} has no section [platypus]", one.name)))?;
            let mut of_ipv4 = section.waypoints.get_ref().iter().filter_map(|address| match address.0 {
                IpAddr::V4(address) => Some(address),
                IpAddr::V6(_) => None,
            });
            let first = of_ipv4.next().ok_or_else(|| Failure::new(format!("{} has no waypoint of IPv4", one.name)))?;
            waypoints.push((first, one.key()?));
        }
        let principal = Principal::new(command.principal);
        let principal = principal.ok_or_else(|| Failure::usage("--principal: at most 16777215"))?;
        Ok(Self {
            hosts,
            sockets: [open(hosts[0], PLATYPUS)?, open(hosts[1], PLATYPUS)?],
            errors: open(hosts[0], ICMP)?,
            burst: Burst::default(),
            waypoints,
            principal,
            counter: first_number()?,
        })
    }

    fn send(&mut self, from: usize, payload: &[u8], spoil: bool) -> Outcome {
        let now = unix_now();
        let interval =
            Interval::new(INTERVAL).ok_or_else(|| Failure::new("no such interval: a bug, please report it"))?;
        let mut hops = Vec::new();
        for (address, key) in &self.waypoints {
            let keys = WaypointKeys::new(WaypointKey::new(&Key128::new(*key)));
            let capability = Capability {
                waypoint: IpAddr::V4(*address),
                principal: self.principal,
                interval,
                epoch: epoch::epoch_at(interval, now),
                marks: Marks::default(),
                delegation: None,
                width: Width::Full,
            };
            let key = keys.stamp_key(&capability);
            let key = key.ok_or_else(|| Failure::new("no key for the capability: a bug, please report it"))?;
            hops.push(Hop { key, capability });
        }
        if from == 1 {
            hops.reverse();
        }
        let (source, destination) = (self.hosts[from], self.hosts[1 - from]);
        let total = u16::try_from(IPV4 + payload.len()).unwrap_or(u16::MAX).to_be_bytes();
        let mut inner = vec![0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, INNER, 0, 0];
        inner.extend(source.octets());
        inner.extend(destination.octets());
        inner.extend(payload);
        let nonce = Nonce::new(now, self.counter);
        self.counter = self.counter.wrapping_add(1);
        let route = Route { hops: &hops, nonce, sealed: false, reply_option: &[], carriage: Carriage::Ip };
        let mut out = Vec::new();
        encapsulate(&inner, &route, &mut out).map_err(|error| Failure::new(format!("no packet: {error}")))?;
        if let Some(last) = out.last_mut().filter(|_| spoil) {
            // Every binding covers the payload: this one holds at no waypoint.
            *last ^= 1;
        }
        let first = Ipv4Addr::new(out[16], out[17], out[18], out[19]);
        let to = SocketAddr::from((first, 0));
        self.burst.clear();
        self.burst.push(&out, to);
        let sent = self.sockets[from].send(&self.burst, &[Outgoing { packet: 0, to }]);
        sent.map_err(|error| Failure::system(format!("cannot send to {first}"), &error))?;
        Ok(())
    }

    /// Payloads of pings that wait at a host.
    fn waiting(&mut self, host: usize) -> io::Result<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        while self.sockets[host].receive(&mut self.burst)? > 0 {
            for packet in 0..self.burst.len() {
                let decoded = Packet::decode(self.burst.octets(packet)).ok();
                let inner = decoded.as_ref().and_then(decapsulate);
                all.extend(inner.and_then(|inner| inner.get(IPV4..).map(<[u8]>::to_vec)));
            }
        }
        Ok(all)
    }
}

/// What an ICMP error says.
fn said(packet: &[u8]) -> Option<String> {
    let source = Ipv4Addr::from(*packet.get(12..16)?.first_chunk::<4>()?);
    let [kind, code, ..] = *packet.get(IPV4..)? else { return None };
    let what = match (kind, code) {
        (3, 4) => "packet too big",
        (3, 9 | 10 | 13) => "administratively prohibited",
        (3, _) => "destination unreachable",
        (11, _) => "time exceeded",
        (12, _) => "parameter problem",
        _ => return None,
    };
    Some(format!("ICMP from {source}: {what} (type {kind}, code {code})"))
}

impl Ends for PlatypusEnds {
    fn ask(&mut self, payload: &[u8], spoil: bool) -> Outcome {
        self.send(0, payload, spoil)
    }

    fn look(&mut self) -> io::Result<Vec<Seen>> {
        let mut seen = Vec::new();
        for payload in self.waiting(1)? {
            let Some((sequence, answer)) = answer_to(&payload) else { continue };
            seen.push(Seen::Arrived(sequence));
            if let Err(failures) = self.send(1, &answer, false) {
                seen.push(Seen::Error(format!("no answer: {failures}")));
            }
        }
        let answers = self.waiting(0)?;
        seen.extend(answers.iter().filter_map(|payload| number(MARKS[1], payload)).map(Seen::Answered));
        while self.errors.receive(&mut self.burst)? > 0 {
            seen.extend((0..self.burst.len()).filter_map(|packet| said(self.burst.octets(packet))).map(Seen::Error));
        }
        Ok(seen)
    }
}

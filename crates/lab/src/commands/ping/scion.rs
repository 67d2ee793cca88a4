//! SCION: an end host in the first AS and one in the last, by segments minted with the ASes' keys.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use wayleave_packet::scion::scmp::Message;
use wayleave_packet::scion::{
    Direction, ForwardingKey, Header, HostAddress, IsdAs, Packet, Path, PathBuilder, Segment, StandardPath, next_header,
};
use wayleave_runtime::clock::unix_now;

use super::{Ends, MARKS, Ping, Seen, Via, answer_to, end, number};
use wayleave_config::failure::{Failure, Outcome};
use wayleave_config::key_files::node::fresh;
use wayleave_config::router::scion::LinkKind;

/// Expiry of hop fields, in units of 337.5 s behind the first.
const LIFETIME: u8 = 10;
/// Segments begin a little before now: clocks differ.
const BEFORE: u32 = 30;
/// Octets of UDP's header.
const UDP: usize = 8;

/// An AS of the path: its name, its key, and the interface and kind of link to the next one, with the number at the other end.
struct As {
    name: IsdAs,
    key: ForwardingKey,
    internal: SocketAddr,
    next: Option<(u16, LinkKind, u16)>,
}

fn ases(via: &[Via]) -> Outcome<Vec<As>> {
    let mut all = Vec::new();
    for (place, one) in via.iter().enumerate() {
        let section = |via: &Via| {
            let section = via.file.scion.as_ref().map(|section| section.get_ref().clone());
            section.ok_or_else(|| Failure::new(format!("{} has no section [scion]", via.name)))
        };
        let own = section(one)?;
        let name = own.isd_as.get_ref().0;
        let to = |from: &Via, neighbour: IsdAs| {
            let links = from.file.interface.iter().map(toml::Spanned::get_ref);
            let link =
                links.filter(|link| link.neighbor.get_ref().0 == neighbour).map(|link| (*link.id.get_ref(), link.link));
            let none = || Failure::new(format!("{} has no interface to {neighbour}", from.name));
            link.into_iter().next().ok_or_else(none)
        };
        let next = match via.get(place + 1) {
            None => None,
            Some(next) => {
                let neighbour = section(next)?.isd_as.get_ref().0;
                let (egress, kind) = to(one, neighbour)?;
                Some((egress, kind, to(next, name)?.0))
            }
        };
        all.push(As { name, key: ForwardingKey::new(&one.key()?), internal: own.internal.get_ref().0, next });
    }
    Ok(all)
}

/// The path over all of them: up to a provider, over core links, down to a customer; each part may be missing.
fn path(ases: &[As]) -> Outcome<StandardPath> {
    let kinds: Vec<LinkKind> = ases.iter().filter_map(|one| one.next.map(|(_, kind, _)| kind)).collect();
    let count = |from: usize, kind: LinkKind| kinds[from..].iter().take_while(|one| **one == kind).count();
    let up = count(0, LinkKind::Parent);
    let core = count(up, LinkKind::Core);
    let down = count(up + core, LinkKind::Child);
    if up + core + down != kinds.len() {
        return Err(Failure::new(
            "these routers make no path: it goes up to providers, over core links, and down to customers",
        )
        .help("choose another order of --via; peering links are not used here")
        .into());
    }
    let mut builder = PathBuilder::new();
    // Each part with its direction: an upward one was built by its last AS.
    for (first, links, direction) in
        [(0, up, Direction::Against), (up, core, Direction::Against), (up + core, down, Direction::Construction)]
    {
        if links > 0 {
            let part = &ases[first..=first + links];
            let segment = segment(part, direction)?;
            let added = builder.segment(&segment, 0..part.len(), direction);
            builder = added.map_err(|error| Failure::new(format!("these routers make no path: {error}")))?;
        }
    }
    Ok(builder.build().map_err(|error| Failure::new(format!("these routers make no path: {error}")))?)
}

/// The segment over these ASes, in the order of its construction.
fn segment(part: &[As], direction: Direction) -> Outcome<Segment> {
    let random = u16::from_be_bytes(*fresh::<2>()?);
    let mut segment = Segment::new(random, (unix_now().secs() as u32).saturating_sub(BEFORE));
    // For each AS the interfaces towards the one before and the one behind it, in the order of the path.
    let interfaces: Vec<(u16, u16)> = (0..part.len())
        .map(|place| {
            let before = place.checked_sub(1).and_then(|place| part[place].next).map_or(0, |(_, _, there)| there);
            let behind = if place + 1 < part.len() { part[place].next.map_or(0, |(here, ..)| here) } else { 0 };
            (before, behind)
        })
        .collect();
    let all = part.iter().zip(interfaces);
    match direction {
        Direction::Construction => {
            all.for_each(|(one, (before, behind))| segment.extend(&one.key, LIFETIME, before, behind, &[]));
        }
        Direction::Against => {
            all.rev().for_each(|(one, (before, behind))| segment.extend(&one.key, LIFETIME, behind, before, &[]));
        }
    }
    Ok(segment)
}

/// Both ends.
pub(super) struct ScionEnds {
    hosts: [(IsdAs, UdpSocket, SocketAddr); 2],
    /// Where each host's packets go first.
    routers: [SocketAddr; 2],
    path: StandardPath,
}

impl ScionEnds {
    pub(super) fn open(command: &Ping, via: &[Via]) -> Outcome<Self> {
        let ases = ases(via)?;
        let [first, .., last] = &ases[..] else {
            return Err(Failure::usage("one router, expected two or more: packets leave one AS for another").into());
        };
        let host = |given: &Option<String>, what: &str, of: &As| -> Outcome<(IsdAs, UdpSocket, SocketAddr)> {
            let at = end(given.as_deref(), what, "127.0.0.1:31001")?;
            let bound = UdpSocket::bind(at).and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
            let socket = bound.map_err(|error| Failure::system(format!("cannot be at {at}"), &error))?;
            Ok((of.name, socket, at))
        };
        let hosts = [host(&command.from, "from", first)?, host(&command.to, "to", last)?];
        Ok(Self { hosts, routers: [first.internal, last.internal], path: path(&ases)? })
    }

    /// A UDP packet from one of the hosts to the other.
    fn packet(&self, from: usize, path: Path, data: &[u8]) -> Vec<u8> {
        let ((src, _, here), (dst, _, there)) = (&self.hosts[from], &self.hosts[1 - from]);
        let host = |address: &SocketAddr| match address {
            SocketAddr::V4(v4) => HostAddress::V4(*v4.ip()),
            SocketAddr::V6(v6) => HostAddress::V6(*v6.ip()),
        };
        let header = Header {
            traffic_class: 0,
            flow_id: 1,
            next_header: next_header::UDP,
            dst: *dst,
            src: *src,
            dst_host: host(there),
            src_host: host(here),
            path,
        };
        let length = u16::try_from(data.len() + UDP).unwrap_or(u16::MAX).to_be_bytes();
        let payload = [&here.port().to_be_bytes()[..], &there.port().to_be_bytes(), &length, &[0, 0], data].concat();
        Packet { header, payload }.encode()
    }

    fn waiting(&self, host: usize) -> io::Result<Vec<Packet>> {
        let mut all = Vec::new();
        let mut octets = [0; 4_096];
        loop {
            match self.hosts[host].1.recv(&mut octets) {
                Ok(length) => all.extend(Packet::decode(&octets[..length])),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(all),
                Err(error) => return Err(error),
            }
        }
    }
}

/// What an SCMP message says.
fn said(packet: &Packet) -> String {
    let from = packet.header.src;
    match Message::decode(&packet.payload) {
        Ok((message, _)) => {
            let (kind, code) = message.kind();
            let what = match message {
                Message::DestinationUnreachable { .. } => "destination unreachable".to_owned(),
                Message::PacketTooBig { mtu } => format!("packet too big, at most {mtu} octets"),
                Message::ParameterProblem { code: 51, .. } => "the MAC of a hop field is wrong".to_owned(),
                Message::ParameterProblem { code: 52, .. } => "a hop field has expired".to_owned(),
                Message::ParameterProblem { pointer, .. } => format!("parameter problem at octet {pointer}"),
                Message::ExternalInterfaceDown { interface, .. } => format!("interface {interface} is down"),
                Message::InternalConnectivityDown { .. } => "its routers do not reach each other".to_owned(),
                _ => "no error".to_owned(),
            };
            format!("SCMP from {from}: {what} (type {kind}, code {code})")
        }
        Err(error) => format!("SCMP from {from} that cannot be read: {error}"),
    }
}

impl Ends for ScionEnds {
    fn ask(&mut self, payload: &[u8], spoil: bool) -> Outcome {
        let mut path = self.path.clone();
        if let Some(last) = path.hops.last_mut().filter(|_| spoil) {
            last.mac[5] ^= 1;
        }
        let packet = self.packet(0, Path::Standard(path), payload);
        let sent = self.hosts[0].1.send_to(&packet, self.routers[0]);
        sent.map_err(|error| Failure::system(format!("cannot send to {}", self.routers[0]), &error))?;
        Ok(())
    }

    fn look(&mut self) -> io::Result<Vec<Seen>> {
        let mut seen = Vec::new();
        for packet in self.waiting(1)? {
            let Some((sequence, answer)) = packet.payload.get(UDP..).and_then(answer_to) else { continue };
            seen.push(Seen::Arrived(sequence));
            // Back along the path that the packet came with.
            let back = self.packet(1, packet.header.path.reversed(), &answer);
            self.hosts[1].1.send_to(&back, self.routers[1])?;
        }
        for packet in self.waiting(0)? {
            if packet.header.next_header == next_header::SCMP {
                seen.push(Seen::Error(said(&packet)));
            } else if let Some(answered) = packet.payload.get(UDP..).and_then(|data| number(MARKS[1], data)) {
                seen.push(Seen::Answered(answered));
            }
        }
        Ok(seen)
    }
}

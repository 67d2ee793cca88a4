//! The router's rules restated in plain code, by `docs/wire/scion.md` alone: one packet at a time, in the order of the checks,
//! with offsets of its own.

use cmac::{KeyInit, Mac};
use wayleave_core::Now;
use wayleave_dataplane::frame::Ingress;
use wayleave_dataplane::scion::{Link, Reason};
use wayleave_packet::scion::IsdAs;

use super::fixture::{INTERFACES, neighbor};

/// What must happen to a packet; a refusal may be answered or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Forward(u16),
    Sibling(u16),
    Deliver,
    Control,
    Refuse(Reason),
    Traceroute,
}

pub struct Model {
    pub here: IsdAs,
    pub key: [u8; 16],
    pub down: Vec<u16>,
}

/// One hop of the path in the packet, and where it lies.
#[derive(Clone, Copy)]
struct Hop {
    info_at: usize,
    cons: bool,
    peer: bool,
    seg_id: u16,
    timestamp: u32,
    flags: u8,
    exp: u8,
    cons_in: u16,
    cons_out: u16,
    mac: [u8; 6],
}

impl Hop {
    fn enters(&self) -> u16 {
        if self.cons { self.cons_in } else { self.cons_out }
    }
    fn leaves(&self) -> u16 {
        if self.cons { self.cons_out } else { self.cons_in }
    }
    fn turned(&self) -> u16 {
        self.seg_id ^ u16::from_be_bytes([self.mac[0], self.mac[1]])
    }
}

fn number(octets: &[u8]) -> u64 {
    octets.iter().fold(0, |sum, octet| sum << 8 | u64::from(*octet))
}

impl Model {
    pub fn process(&self, packet: &mut [u8], ingress: Ingress, now: Now) -> Verdict {
        match self.steps(packet, ingress, now) {
            Ok(verdict) => verdict,
            Err(reason) => Verdict::Refuse(reason),
        }
    }

    fn steps(&self, p: &mut [u8], ingress: Ingress, now: Now) -> Result<Verdict, Reason> {
        // Lengths.
        if p.len() < 28 || p[0] >> 4 != 0 {
            return Err(Reason::Malformed);
        }
        let header = 4 * p[5] as usize;
        if header > p.len() {
            return Err(Reason::Malformed);
        }
        if header + number(&p[6..8]) as usize != p.len() {
            return Err(Reason::PacketSize);
        }
        let hosts = 4 * (1 + (p[9] >> 4 & 3) as usize) + 4 * (1 + (p[9] & 3) as usize);
        let path = 28 + hosts;
        if header < path {
            return Err(Reason::Malformed);
        }
        match p[8] {
            0 if header == path => {}
            1 if header >= path + 4 => {}
            2 if header == path + 32 => {}
            0..=2 => return Err(Reason::Malformed),
            _ => return Err(Reason::PathType),
        }
        // Pointers.
        let meta = number(&p[path..(path + 4).min(p.len())]) as u32;
        let lengths = [meta >> 12 & 63, meta >> 6 & 63, meta & 63].map(|length| length as usize);
        let (current_info, current) = ((meta >> 30) as usize, (meta >> 24 & 63) as usize);
        let hops: usize = lengths.iter().sum();
        let infos = lengths.iter().filter(|length| **length > 0).count();
        let segment_of = |hop: usize| {
            if hop < lengths[0] {
                0
            } else if hop < lengths[0] + lengths[1] {
                1
            } else {
                2
            }
        };
        if p[8] == 1 {
            if lengths[0] == 0 || (lengths[1] == 0 && lengths[2] > 0) || hops > 64 {
                return Err(Reason::MalformedPath);
            }
            if current >= hops || segment_of(current) != current_info {
                return Err(Reason::MalformedPath);
            }
            if header != path + 4 + 8 * infos + 12 * hops {
                return Err(Reason::Malformed);
            }
        }
        // Extension headers.
        let (mut next, mut at, mut seen) = (p[4], header, 199);
        while next == 200 || next == 201 {
            if p.len() < at + 2 {
                return Err(Reason::Extension);
            }
            let end = at + 4 * (p[at + 1] as usize + 1);
            if end > p.len() || next <= seen {
                return Err(Reason::Extension);
            }
            let mut option = at + 2;
            while option < end {
                option += if p[option] == 0 {
                    1
                } else if option + 1 < end {
                    2 + p[option + 1] as usize
                } else {
                    2
                };
            }
            if option != end {
                return Err(Reason::Extension);
            }
            (seen, next, at) = (next, p[at], end);
        }
        if p[8] == 0 {
            return self.empty(p, ingress);
        }
        if p[8] == 2 {
            return self.one_hop(p, path, ingress, now);
        }
        let hop_at = |index: usize| path + 4 + 8 * infos + 12 * index;
        let hop = |index: usize| read_hop(p, path + 4 + 8 * segment_of(index), hop_at(index));
        let mut this = hop(current);
        // Peering, and segments of one hop.
        let mut peering = false;
        if this.peer {
            if lengths[0] == 0 || lengths[1] == 0 || lengths[2] != 0 {
                return Err(Reason::MalformedPath);
            }
            peering = current == lengths[0] - 1 || current == lengths[0];
        } else if lengths.contains(&1) {
            return Err(Reason::MalformedPath);
        }
        // Ingress.
        match ingress {
            Ingress::External(interface) => {
                if this.enters() != interface || interface == 0 {
                    return Err(Reason::WrongIngress);
                }
            }
            _ if current == 0 => {}
            Ingress::Internal => return Err(Reason::TransitSource),
            Ingress::Sibling(sibling) => {
                let changed = !peering && segment_of(current - 1) != current_info;
                let came_in = if changed { hop(current - 1).enters() } else { this.enters() };
                if port(came_in).is_none_or(|(_, owner)| owner != Some(sibling)) {
                    return Err(Reason::TransitSource);
                }
            }
        }
        // Source and destination.
        let (to_here, from_here) = (number(&p[12..20]) == self.here.0, number(&p[20..28]) == self.here.0);
        let outside = matches!(ingress, Ingress::External(_));
        if outside {
            if from_here {
                return Err(Reason::SourceAddress);
            }
            if (current + 1 == hops) != to_here {
                return Err(Reason::DestinationAddress);
            }
        } else {
            if current == 0 && !from_here {
                return Err(Reason::SourceAddress);
            }
            if to_here {
                return Err(Reason::DestinationAddress);
            }
        }
        in_time(&this, now)?;
        if outside && !this.cons && !peering {
            this.seg_id = this.turned();
        }
        let crossing = !to_here && !peering && current + 1 < hops && segment_of(current + 1) != current_info;
        let next = crossing.then(|| hop(current + 1));
        if let Some(next) = &next {
            in_time(next, now)?;
        }
        // MACs.
        self.mac(&this)?;
        if let Some(next) = &next {
            self.mac(next)?;
        }
        // The alert at the way in, and where it lies.
        let way_in = if this.cons { 2 } else { 1 };
        let alerted_in = outside && this.flags & way_in != 0;
        if alerted_in && traceroute(p, header) {
            return Ok(Verdict::Traceroute);
        }
        let this_at = hop_at(current);
        let on_at = hop_at(current + usize::from(crossing));
        let set = |p: &mut [u8], hop: &Hop, value: u16| {
            p[hop.info_at + 2..hop.info_at + 4].copy_from_slice(&value.to_be_bytes())
        };
        if to_here {
            host(p)?;
            p[this_at] &= if alerted_in { !way_in } else { 255 };
            set(p, &this, this.seg_id);
            return Ok(Verdict::Deliver);
        }
        // Where it goes.
        let on = next.unwrap_or(this);
        let egress = on.leaves();
        let (link, owner) = port(egress).ok_or(Reason::UnknownEgress)?;
        if let Ingress::External(interface) = ingress {
            let (came, _) = port(interface).ok_or(Reason::WrongIngress)?;
            use Link::{Child, Core, Parent, Peer};
            if crossing {
                if ![(Core, Child), (Child, Core), (Child, Child)].contains(&(came, link)) {
                    return Err(Reason::SegmentChange);
                }
            } else {
                let legal = [(Core, Core), (Child, Parent), (Parent, Child), (Child, Peer), (Peer, Child)];
                if !legal.contains(&(came, link)) {
                    return Err(Reason::Direction);
                }
            }
        } else if crossing {
            return Err(Reason::SegmentChange);
        } else if owner.is_some() {
            return Err(Reason::UnknownEgress);
        }
        let way_out = if on.cons { 1 } else { 2 };
        let alerted_out = owner.is_none() && on.flags & way_out != 0;
        if alerted_out && traceroute(p, header) {
            return Ok(Verdict::Traceroute);
        }
        if self.down.contains(&egress) {
            return Err(Reason::LinkDown);
        }
        let moved = current + usize::from(crossing) + usize::from(owner.is_none());
        if moved >= hops {
            return Err(Reason::PathEnd);
        }
        p[this_at] &= if alerted_in { !way_in } else { 255 };
        p[on_at] &= if alerted_out { !way_out } else { 255 };
        set(p, &this, this.seg_id);
        if owner.is_none() && on.cons && !peering {
            set(p, &on, on.turned());
        }
        if moved != current {
            p[path] = (segment_of(moved) << 6 | moved) as u8;
        }
        Ok(owner.map_or(Verdict::Forward(egress), Verdict::Sibling))
    }

    fn empty(&self, p: &[u8], ingress: Ingress) -> Result<Verdict, Reason> {
        let ours = number(&p[12..20]) == self.here.0 && number(&p[20..28]) == self.here.0;
        if matches!(ingress, Ingress::Sibling(_)) && ours && p[4] == 203 {
            Ok(Verdict::Control)
        } else {
            Err(Reason::PathType)
        }
    }

    fn one_hop(&self, p: &mut [u8], path: usize, ingress: Ingress, now: Now) -> Result<Verdict, Reason> {
        let first = read_hop(p, path, path + 8);
        if !first.cons {
            return Err(Reason::OneHop);
        }
        let (dst, src) = (number(&p[12..20]), number(&p[20..28]));
        match ingress {
            Ingress::Sibling(_) => Err(Reason::OneHop),
            Ingress::Internal => {
                if behind_extensions(p, 4 * usize::from(p[5])).0 == 203 {
                    return Err(Reason::OneHop);
                }
                if src != self.here.0 {
                    return Err(Reason::SourceAddress);
                }
                match port(first.cons_out) {
                    Some((_, None)) => {}
                    _ => return Err(Reason::UnknownEgress),
                }
                if dst != neighbor(first.cons_out).0 {
                    return Err(Reason::DestinationAddress);
                }
                expired(&first, now)?;
                self.mac(&first)?;
                if self.down.contains(&first.cons_out) {
                    return Err(Reason::LinkDown);
                }
                p[path + 2..path + 4].copy_from_slice(&first.turned().to_be_bytes());
                Ok(Verdict::Forward(first.cons_out))
            }
            Ingress::External(interface) => {
                if dst != self.here.0 {
                    return Err(Reason::DestinationAddress);
                }
                if port(interface).is_none() {
                    return Err(Reason::WrongIngress);
                }
                if src != neighbor(interface).0 {
                    return Err(Reason::SourceAddress);
                }
                in_time(&first, now)?;
                if p[4] == 203 {
                    return Ok(Verdict::Control);
                }
                host(p)?;
                let second = Hop { cons_in: interface, cons_out: 0, ..first };
                let mac = hop_mac(&self.key, &second);
                p[path + 20..path + 32].fill(0);
                p[path + 21] = first.exp;
                p[path + 22..path + 24].copy_from_slice(&interface.to_be_bytes());
                p[path + 26..path + 32].copy_from_slice(&mac);
                Ok(Verdict::Deliver)
            }
        }
    }

    fn mac(&self, hop: &Hop) -> Result<(), Reason> {
        if hop_mac(&self.key, hop) == hop.mac { Ok(()) } else { Err(Reason::BadMac) }
    }
}

/// The MAC by a public crate, not by the code that is tested.
fn hop_mac(key: &[u8; 16], hop: &Hop) -> [u8; 6] {
    let mut mac = cmac::Cmac::<aes::Aes128>::new(&(*key).into());
    mac.update(&block(hop));
    let tag: [u8; 16] = mac.finalize().into_bytes().into();
    std::array::from_fn(|n| tag[n])
}

fn block(hop: &Hop) -> [u8; 16] {
    let mut block = [0; 16];
    block[2..4].copy_from_slice(&hop.seg_id.to_be_bytes());
    block[4..8].copy_from_slice(&hop.timestamp.to_be_bytes());
    block[9] = hop.exp;
    block[10..12].copy_from_slice(&hop.cons_in.to_be_bytes());
    block[12..14].copy_from_slice(&hop.cons_out.to_be_bytes());
    block
}

fn read_hop(p: &[u8], info_at: usize, at: usize) -> Hop {
    Hop {
        info_at,
        cons: p[info_at] & 1 == 1,
        peer: p[info_at] & 2 == 2,
        seg_id: number(&p[info_at + 2..info_at + 4]) as u16,
        timestamp: number(&p[info_at + 4..info_at + 8]) as u32,
        flags: p[at],
        exp: p[at + 1],
        cons_in: number(&p[at + 2..at + 4]) as u16,
        cons_out: number(&p[at + 4..at + 6]) as u16,
        mac: p[at + 6..at + 12].try_into().unwrap(),
    }
}

fn port(id: u16) -> Option<(Link, Option<u16>)> {
    INTERFACES.iter().find(|(interface, _, _)| *interface == id).map(|(_, link, owner)| (*link, *owner))
}

fn expired(hop: &Hop, now: Now) -> Result<(), Reason> {
    // In half seconds, since a unit is 337.5 s.
    let end = 2 * u64::from(hop.timestamp) + 675 * (u64::from(hop.exp) + 1);
    if now.unix.0 >= end * 500_000 { Err(Reason::Expired) } else { Ok(()) }
}

fn in_time(hop: &Hop, now: Now) -> Result<(), Reason> {
    expired(hop, now)?;
    let ahead = u64::from(hop.timestamp) * 1_000_000 > now.unix.0 + 337_500_000;
    if ahead { Err(Reason::Future) } else { Ok(()) }
}

/// Whether the destination of a packet for this AS can be reached: the control service, or the address of one host.
fn host(p: &[u8]) -> Result<(), Reason> {
    let address = &p[28..44.min(p.len())];
    let is_none = match p[9] >> 4 {
        0 => matches!(*address, [0 | 127 | 224.., ..] | [169, 254, ..] | [192, 0, 0, ..]),
        3 => is_no_host_of_ipv6(address),
        4 if number(&address[..2]) & 0x7fff == 2 => false,
        4 => return Err(Reason::UnknownService),
        _ => true,
    };
    if is_none { Err(Reason::HostAddress) } else { Ok(()) }
}

/// What RFC 4291 and its kin reserve, and addresses that wrap an IPv4 one of the kind above.
fn is_no_host_of_ipv6(address: &[u8]) -> bool {
    let wraps = |at: usize| host(&[vec![0; 28], address[at..at + 4].to_vec()].concat()).is_err();
    number(&address[..8]) == 0
        || number(&address[..8]) == 0x0100_0000_0000_0000
        || address[0] == 0xff
        || address[0] == 0xfe && address[1] >= 0x80
        || address[..12] == [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0] && wraps(12)
        || address[..2] == [0x20, 0x02] && wraps(2)
}

/// Whether the packet is an SCMP traceroute request, behind its sound extension headers.
fn traceroute(p: &[u8], header: usize) -> bool {
    let (next, at) = behind_extensions(p, header);
    next == 202 && p.len() >= at + 24 && p[at] == 130
}

/// What follows the sound extension headers, and where it begins.
fn behind_extensions(p: &[u8], header: usize) -> (u8, usize) {
    let (mut next, mut at) = (p[4], header);
    while next == 200 || next == 201 {
        (next, at) = (p[at], at + 4 * (p[at + 1] as usize + 1));
    }
    (next, at)
}

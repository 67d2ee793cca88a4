//! Packets at one router: valid ones of every kind, random ones, and mutations of them.

use wayleave_dataplane::frame::Ingress;
use wayleave_packet::scion::{
    ForwardingKey, Header, Hop, HopField, HostAddress, InfoField, IsdAs, Packet, Path, PathMeta, Service, StandardPath,
    next_header,
};

use super::fixture::{HERE, INTERFACES, TIME, key, neighbor};
use crate::common::Random;

pub const ELSEWHERE: IsdAs = IsdAs(0x0002_ff00_0000_0222);
pub const FARAWAY: IsdAs = IsdAs(0x0003_ff00_0000_0333);

/// A packet and where it comes in.
pub type Arrival = (Vec<u8>, Ingress);

/// A packet whose path has segments of `lengths` hops, all in construction direction, with the router at hop `current`;
/// hop fields of other ASes are of no concern here.
pub fn template(lengths: &[u8], current: usize) -> Packet {
    let mut meta = PathMeta { current_info: 0, current_hop: current as u8, segment_len: [0; 3] };
    meta.segment_len[..lengths.len()].copy_from_slice(lengths);
    meta.current_info = meta.segment_of(current) as u8;
    let hops: usize = lengths.iter().map(|length| usize::from(*length)).sum();
    let info = |index: usize| InfoField {
        peering: false,
        construction: true,
        seg_id: 0x1111 * (index as u16 + 1),
        timestamp: TIME,
    };
    let field = HopField { exp_time: 63, cons_ingress: 1, cons_egress: 2, mac: [9; 6], ..HopField::default() };
    let path = StandardPath { meta, infos: (0..lengths.len()).map(info).collect(), hops: vec![field; hops] };
    Packet {
        header: Header {
            traffic_class: 0xb8,
            flow_id: 0xdead,
            next_header: next_header::UDP,
            dst: ELSEWHERE,
            src: FARAWAY,
            dst_host: HostAddress::V4([10, 0, 0, 1].into()),
            src_host: HostAddress::V4([10, 0, 0, 2].into()),
            path: Path::Standard(path),
        },
        payload: b"\x04\xd2\x16\x2e\x00\x10\x00\x00payload!".to_vec(),
    }
}

pub fn path(packet: &mut Packet) -> &mut StandardPath {
    match &mut packet.header.path {
        Path::Standard(path) => path,
        _ => panic!("a standard path"),
    }
}

/// Sets the interfaces of hop `index` as they are travelled, and mints it so that it verifies with the accumulator as it
/// is (a packet from within), or as the router at the way in makes it (`turned`).
pub fn mint(packet: &mut Packet, index: usize, enters: u16, leaves: u16, turned: bool, key: &ForwardingKey) {
    let path = path(packet);
    let segment = path.meta.segment_of(index);
    let info = path.infos[segment];
    let field = &mut path.hops[index];
    (field.cons_ingress, field.cons_egress) = if info.construction { (enters, leaves) } else { (leaves, enters) };
    field.mac = key.hop_mac(&Hop::new(&info, field).mac_input());
    if turned {
        path.infos[segment].seg_id ^= u16::from_be_bytes([field.mac[0], field.mac[1]]);
    }
}

/// A packet in transit within one segment, valid if the links are.
pub fn transit(enters: u16, leaves: u16, construction: bool, ingress: Ingress) -> Packet {
    let mut packet = template(&[3], 1);
    path(&mut packet).infos[0].construction = construction;
    let turned = !construction && matches!(ingress, Ingress::External(_));
    mint(&mut packet, 1, enters, leaves, turned, &key());
    packet
}

/// A packet that changes from one segment to another here, valid if the links are.
pub fn crossing(enters: u16, leaves: u16, first: bool, second: bool) -> Packet {
    let mut packet = template(&[2, 2], 1);
    (path(&mut packet).infos[0].construction, path(&mut packet).infos[1].construction) = (first, second);
    mint(&mut packet, 1, enters, 0, !first, &key());
    mint(&mut packet, 2, 0, leaves, false, &key());
    packet
}

/// A packet at a peering hop here, valid if the links are: the hop is the last of the up segment (`up`) or the first of
/// the down segment.
pub fn peering(enters: u16, leaves: u16, up: bool) -> Packet {
    let mut packet = template(&[2, 2], if up { 1 } else { 2 });
    let path = path(&mut packet);
    (path.infos[0].peering, path.infos[1].peering) = (true, true);
    path.infos[0].construction = false;
    mint(&mut packet, if up { 1 } else { 2 }, enters, leaves, false, &key());
    packet
}

/// A packet from a host of this AS.
pub fn outbound(leaves: u16, construction: bool) -> Packet {
    let mut packet = template(&[3], 0);
    packet.header.src = HERE;
    path(&mut packet).infos[0].construction = construction;
    mint(&mut packet, 0, 0, leaves, false, &key());
    packet
}

/// A packet to a host of this AS.
pub fn inbound(enters: u16, construction: bool) -> Packet {
    let mut packet = template(&[3], 2);
    packet.header.dst = HERE;
    path(&mut packet).infos[0].construction = construction;
    mint(&mut packet, 2, enters, 0, !construction, &key());
    packet
}

/// An arrival of a random kind, valid or nearly so.
pub fn random(random: &mut Random) -> Arrival {
    let interface = |random: &mut Random| random.pick(&INTERFACES).0;
    let (enters, leaves) = (interface(random), interface(random));
    let (cons, other) = (random.one_in(2), random.one_in(2));
    let owner = INTERFACES.iter().find(|(id, _, _)| *id == enters).and_then(|(_, _, owner)| *owner);
    let ingress = owner.map_or(Ingress::External(enters), Ingress::Sibling);
    let (mut packet, ingress) = match random.below(8) {
        0 | 1 => (transit(enters, leaves, cons, ingress), ingress),
        2 => (crossing(enters, leaves, cons, other), ingress),
        3 => (peering(enters, leaves, cons), ingress),
        4 => (outbound(leaves, cons), if random.one_in(4) { Ingress::Sibling(0) } else { Ingress::Internal }),
        5 => (inbound(enters, cons), ingress),
        6 => {
            // After another router of the AS has changed the segment.
            let mut packet = crossing(enters, leaves, cons, other);
            let path = path(&mut packet);
            (path.meta.current_info, path.meta.current_hop) = (1, 2);
            (packet, ingress)
        }
        _ => one_hop(random, enters, leaves),
    };
    let header = &mut packet.header;
    if random.one_in(4) {
        header.src_host = HostAddress::V6([7; 16].into());
    }
    if random.one_in(4) {
        header.dst_host = HostAddress::V6([8; 16].into());
    }
    // Services, and addresses that are no host's, on either side.
    let odd = [
        HostAddress::Service(Service(random.pick(&[1, 2, 0x8002, 9]))),
        HostAddress::V4(random.pick(&[[127, 0, 0, 1], [224, 0, 0, 9], [169, 254, 1, 1], [255; 4]]).into()),
        HostAddress::V6(random.pick(&[[0; 16], [0xff; 16], [0xfe; 16]]).into()),
        HostAddress::Other { kind: random.below(4) as u8, length: 1, octets: [1; 16] },
    ];
    if random.one_in(6) {
        header.dst_host = random.pick(&odd);
    }
    if random.one_in(12) {
        header.src_host = random.pick(&odd);
    }
    if random.one_in(8) {
        (header.next_header, packet.payload) = scmp(random);
    }
    if random.one_in(10) {
        let length = random.below(3);
        let mut extension = vec![header.next_header, length as u8, 1, length as u8 * 4];
        extension.resize(4 * (length + 1), 0);
        header.next_header = random.pick(&[next_header::HOP_BY_HOP, next_header::END_TO_END]);
        extension.append(&mut packet.payload);
        packet.payload = extension;
    }
    if let Path::Standard(path) = &mut packet.header.path
        && random.one_in(8)
    {
        // The alert flags are not under the MAC.
        for hop in &mut path.hops {
            (hop.ingress_alert, hop.egress_alert) = (random.one_in(2), random.one_in(2));
        }
    }
    (packet.encode(), ingress)
}

fn scmp(random: &mut Random) -> (u8, Vec<u8>) {
    let mut payload = vec![random.pick(&[1, 4, 5, 128, 130, 131]), 0, 0, 0];
    payload.resize(random.pick(&[8, 23, 24, 60]), 3);
    (next_header::SCMP, payload)
}

fn one_hop(random: &mut Random, enters: u16, leaves: u16) -> (Packet, Ingress) {
    let mut packet = template(&[2], 0);
    let outgoing = random.one_in(2);
    if random.one_in(4) {
        packet.header.next_header = next_header::BFD;
    }
    packet.header.path = Path::OneHop(key().one_hop(random.next() as u16, TIME, 63, leaves));
    if random.one_in(4) {
        packet.header.path = Path::Empty;
        (packet.header.src, packet.header.dst) = (HERE, HERE);
        return (packet, random.pick(&[Ingress::Sibling(0), Ingress::Internal, Ingress::External(enters)]));
    }
    if outgoing {
        (packet.header.src, packet.header.dst) = (HERE, neighbor(leaves));
        return (packet, Ingress::Internal);
    }
    (packet.header.src, packet.header.dst) = (neighbor(enters), HERE);
    (packet, Ingress::External(enters))
}

/// Changes a packet or where it comes in, in one of many ways.
pub fn mutate(random: &mut Random, (mut packet, mut ingress): Arrival) -> Arrival {
    let header = (4 * usize::from(packet[5])).min(packet.len());
    match random.below(10) {
        // One bit of the header, or of anything.
        0..=2 => {
            let at = random.below(header.min(packet.len()));
            packet[at] ^= 1 << random.below(8);
        }
        3 => {
            let at = random.below(packet.len());
            packet[at] = random.next() as u8;
        }
        // The path meta header.
        4 | 5 => {
            let hosts = 4 * usize::from((packet[9] >> 4 & 3) + 1) + 4 * usize::from((packet[9] & 3) + 1);
            let at = (28 + hosts + random.below(4)).min(packet.len() - 1);
            packet[at] = random.next() as u8;
        }
        // Cut, with or without a change of the length.
        6 => {
            packet.truncate(random.below(packet.len()));
        }
        7 => {
            let length = random.below(packet.len().saturating_sub(header) + 1);
            packet.truncate((header + length).max(8));
            packet[6..8].copy_from_slice(&(length as u16).to_be_bytes());
        }
        8 => {
            ingress = random.pick(&[Ingress::Internal, Ingress::Sibling(0), Ingress::Sibling(1), Ingress::External(0)])
        }
        _ => ingress = Ingress::External(random.pick(&INTERFACES).0),
    }
    (packet, ingress)
}

//! Captured and random SCION packets: an independent implementation reads in them what we wrote, writes the same octets,
//! makes the same way back, and computes the same MACs.

use sciparse::core::convert::TryFromView;
use sciparse::core::encode::WireEncode;
use sciparse::core::view::View;
use sciparse::dataplane_path::standard::mac::algo::{calculate_hop_mac, mac_chaining_beta};
use sciparse::dataplane_path::view::{ScionDpPathViewRef, ScionDpPathViewRefMut};
use sciparse::packet::model::{ScionRawPacket, ScionScmpPacket};
use sciparse::packet::view::{ScionRawPacketView, ScionScmpPacketView};
use wayleave_packet::scion::{
    Direction, ForwardingKey, Header, HostAddress, IsdAs, Packet, Path, PathBuilder, Segment, next_header, scmp,
};

fn main() {
    let count = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(20_000);
    let captured = include_str!("../../../test-data/scion/packets.txt");
    for line in captured.lines().filter(|line| !line.starts_with('#')) {
        let digits = line.rsplit(' ').next().expect("a line has fields");
        let octets = (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex"));
        compare(&octets.collect::<Vec<u8>>());
    }
    let mut random = Random(1);
    for _ in 0..count {
        let packet = packet(&mut random);
        compare(&packet);
    }
    println!("{count} random packets and the captured ones are the same to both");
}

/// Octets that we can decode are read and written by the other implementation as by us.
fn compare(octets: &[u8]) {
    let ours = Packet::decode(octets).expect("we read it");
    assert_eq!(ours.encode(), octets);
    let (view, rest) = ScionRawPacketView::try_from_slice(octets).expect("the other implementation reads it");
    assert!(rest.is_empty());
    assert_eq!(view.payload(), ours.payload);
    let header = view.header();
    assert_eq!(header.dst_ia().to_string(), ours.header.dst.to_string());
    assert_eq!(header.src_ia().to_string(), ours.header.src.to_string());
    match (header.path(), &ours.header.path) {
        (ScionDpPathViewRef::Standard(theirs), Path::Standard(path)) => {
            assert_eq!(theirs.info_fields().len(), path.infos.len());
            for (theirs, info) in theirs.info_fields().iter().zip(&path.infos) {
                assert_eq!((theirs.segment_id(), theirs.timestamp()), (info.seg_id, info.timestamp));
            }
            for (theirs, hop) in theirs.hop_fields().iter().zip(&path.hops) {
                assert_eq!((theirs.cons_ingress(), theirs.cons_egress()), (hop.cons_ingress, hop.cons_egress));
                assert_eq!((theirs.exp_time(), theirs.mac().0), (hop.exp_time, hop.mac));
            }
        }
        (ScionDpPathViewRef::OneHop(_), Path::OneHop(_)) | (ScionDpPathViewRef::Empty, Path::Empty) => {}
        _ => panic!("paths of different kinds"),
    }
    if let Path::Standard(path) = &ours.header.path {
        let mut turned = octets.to_vec();
        let (view, _) = ScionRawPacketView::try_from_mut_slice(&mut turned).expect("it was read before");
        let ScionDpPathViewRefMut::Standard(theirs) = view.header_mut().path_mut() else { panic!("a standard path") };
        theirs.try_reverse().expect("a path has a way back");
        let mut back = ours.clone();
        back.header.path = Path::Standard(path.reversed());
        assert_eq!(turned, back.encode(), "the way back");
    }
    let mut written = vec![0; octets.len()];
    let length = if ours.header.next_header == next_header::SCMP {
        let (view, _) = ScionScmpPacketView::try_from_slice(octets).expect("SCMP");
        let model = ScionScmpPacket::try_from_view(view).expect("a model");
        model.try_encode(&mut written).expect("it can be written")
    } else {
        let model = ScionRawPacket::try_from_view(view).expect("a model");
        model.try_encode(&mut written).expect("it can be written")
    };
    // Version 0.8.6 of the other implementation leaves the message out of SCMP's checksum; that of the captured network
    // is the same as ours, which a test of the packet crate shows.
    if ours.header.next_header == next_header::SCMP {
        let at = ours.header.wire_len() + 2;
        written[at..at + 2].copy_from_slice(&octets[at..at + 2]);
    }
    assert_eq!(&written[..length], octets);
}

/// A random valid packet; the MACs of its segments are compared on the way.
fn packet(random: &mut Random) -> Vec<u8> {
    let mut builder = PathBuilder::new();
    for _ in 0..1 + random.below(3) {
        let segment = segment(random);
        let direction = if random.below(2) == 0 { Direction::Against } else { Direction::Construction };
        let hops = segment.hops.len();
        builder = match random.below(4) {
            0 => builder.peering(&segment, random.below(hops)..hops, direction, 0),
            _ => builder.segment(&segment, 0..hops, direction),
        }
        .expect("at most three segments of at most six hops");
    }
    let mut path = builder.build().expect("at least one segment");
    let hop = random.below(path.hops.len());
    path.meta.current_hop = hop as u8;
    path.meta.current_info = path.meta.segment_of(hop) as u8;
    let v4 = |random: &mut Random| HostAddress::V4((random.next() as u32).into());
    let v6 = |random: &mut Random| HostAddress::V6((u128::from(random.next()) << 64 | 1).into());
    let host = |random: &mut Random| if random.below(2) == 0 { v4(random) } else { v6(random) };
    let mut header = Header {
        traffic_class: random.next() as u8,
        flow_id: random.next() as u32 & 0xf_ffff,
        next_header: next_header::UDP,
        dst: IsdAs(random.next()),
        src: IsdAs(random.next()),
        dst_host: host(random),
        src_host: host(random),
        path: Path::Standard(path),
    };
    if random.below(8) == 0 {
        header.path = Path::Empty;
    }
    let length = 8 + random.below(200);
    let payload: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
    if random.below(2) == 0 {
        return Packet { header, payload }.encode();
    }
    header.next_header = next_header::SCMP;
    let message = message(random);
    let mut body = message.octets()[..message.wire_len()].to_vec();
    if !matches!(message, scmp::Message::TracerouteRequest { .. } | scmp::Message::TracerouteReply { .. }) {
        body.extend(&payload);
    }
    let hosts = header.dst_host.wire_len() + header.src_host.wire_len();
    let mut packet = Packet { header, payload: body };
    let sum = scmp::checksum(&packet.encode(), hosts, &packet.payload);
    packet.payload[2..4].copy_from_slice(&sum.to_be_bytes());
    packet.encode()
}

fn message(random: &mut Random) -> scmp::Message {
    use scmp::Message;
    let (a, b) = (random.next() as u16, random.next() as u16);
    let (isd_as, interface) = (IsdAs(random.next()), u64::from(random.next() as u16));
    match random.below(9) {
        0 => Message::DestinationUnreachable { code: 4 },
        1 => Message::PacketTooBig { mtu: a },
        2 => Message::ParameterProblem { code: 51, pointer: a },
        3 => Message::ExternalInterfaceDown { isd_as, interface },
        4 => Message::InternalConnectivityDown { isd_as, ingress: a.into(), egress: b.into() },
        5 => Message::EchoRequest { identifier: a, sequence: b },
        6 => Message::EchoReply { identifier: a, sequence: b },
        7 => Message::TracerouteRequest { identifier: a, sequence: b },
        _ => Message::TracerouteReply { identifier: a, sequence: b, isd_as, interface },
    }
}

fn segment(random: &mut Random) -> Segment {
    let mut segment = Segment::new(random.next() as u16, random.next() as u32);
    let mut macs = Vec::new();
    for _ in 0..2 + random.below(5) {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&random.next().to_be_bytes());
        let (exp_time, ingress, egress) = (random.next() as u8, random.next() as u16, random.next() as u16);
        segment.extend(&ForwardingKey::new(&key), exp_time, ingress, egress, &[7]);
        let beta = mac_chaining_beta(segment.seg_id, macs.iter().copied());
        let hop = segment.hops.last().expect("one was added");
        let theirs = calculate_hop_mac(beta, segment.timestamp, exp_time, ingress, egress, &key);
        assert_eq!(hop.field.mac, theirs, "the MAC");
        macs.push(theirs);
        let beta = mac_chaining_beta(segment.seg_id, macs.iter().copied());
        let peer = calculate_hop_mac(beta, segment.timestamp, exp_time, 7, egress, &key);
        assert_eq!(hop.peers[0].field.mac, peer, "the peering hop's MAC");
    }
    segment
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

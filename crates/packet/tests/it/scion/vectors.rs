//! The published vectors of SCION are what this code computes.

use serde_json::{Value, json};
use wayleave_packet::scion::{
    Direction, ForwardingKey, Header, HostAddress, IsdAs, Packet, Path, PathBuilder, Segment, Service, mac_input,
    next_header, scmp,
};

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

fn key(number: u8) -> [u8; 16] {
    std::array::from_fn(|index| number * 16 + index as u8)
}

fn segment(peers: bool) -> Segment {
    let mut segment = Segment::new(0x1234, 1_700_000_000);
    let peer: &[u16] = if peers { &[77] } else { &[] };
    segment.extend(&ForwardingKey::new(&key(1)), 63, 0, 11, &[]);
    segment.extend(&ForwardingKey::new(&key(2)), 63, 21, 22, peer);
    segment.extend(&ForwardingKey::new(&key(3)), 10, 31, 0, &[]);
    segment
}

fn header(path: Path) -> Header {
    Header {
        traffic_class: 0xb8,
        flow_id: 0xabcde,
        next_header: next_header::UDP,
        dst: "2-ff00:0:210".parse().unwrap(),
        src: "1-64512".parse().unwrap(),
        dst_host: HostAddress::V6("2001:db8::1".parse().unwrap()),
        src_host: HostAddress::V4([192, 0, 2, 7].into()),
        path,
    }
}

fn hop_fields() -> Value {
    let segment = segment(true);
    let field = |(index, hop): (usize, &wayleave_packet::scion::AsHop)| {
        let one = |field: &wayleave_packet::scion::HopField, beta: u16| {
            let input = mac_input(beta, segment.timestamp, field.exp_time, field.cons_ingress, field.cons_egress);
            json!({
                "beta": beta, "timestamp": segment.timestamp, "exp_time": field.exp_time,
                "cons_ingress": field.cons_ingress, "cons_egress": field.cons_egress,
                "mac_input": hex(&input), "mac": hex(&field.mac), "hop_field": hex(&field.octets()),
            })
        };
        let peers: Vec<Value> = hop.peers.iter().map(|peer| one(&peer.field, segment.beta(index + 1))).collect();
        json!({ "key": hex(&key(index as u8 + 1)), "own": one(&hop.field, segment.beta(index)), "peers": peers })
    };
    segment.hops.iter().enumerate().map(field).collect()
}

fn packets() -> Value {
    let (plain, peering) = (segment(false), segment(true));
    let path = |builder: PathBuilder| Path::Standard(builder.build().unwrap());
    let down = PathBuilder::new().segment(&plain, 0..3, Direction::Construction).unwrap();
    let up_down = PathBuilder::new()
        .segment(&plain, 0..3, Direction::Against)
        .and_then(|path| path.segment(&plain, 0..3, Direction::Construction))
        .unwrap();
    let peers = PathBuilder::new()
        .peering(&peering, 1..3, Direction::Against, 0)
        .and_then(|path| path.peering(&peering, 1..3, Direction::Construction, 0))
        .unwrap();
    let one_hop = Path::OneHop(ForwardingKey::new(&key(1)).one_hop(0x1234, 1_700_000_000, 63, 11));
    let service = Header { dst_host: HostAddress::Service(Service::CONTROL), ..header(one_hop.clone()) };
    let cases = [
        ("one segment in construction direction", header(path(down))),
        ("up and down", header(path(up_down.clone()))),
        ("the way back of up and down", header(path(up_down).reversed())),
        ("over a peering link", header(path(peers))),
        ("one hop, to the control service", service),
        ("empty path", header(Path::Empty)),
    ];
    let packet = |(name, header): (&str, Header)| {
        let octets = Packet { header, payload: b"payload".to_vec() }.encode();
        assert_eq!(Packet::decode(&octets).unwrap().encode(), octets);
        json!({ "name": name, "packet": hex(&octets) })
    };
    cases.into_iter().map(packet).collect()
}

fn scmp_messages() -> Value {
    use scmp::Message;
    let isd_as = IsdAs::new(1, 0xff00_0000_0110);
    let messages = [
        Message::DestinationUnreachable { code: 4 },
        Message::PacketTooBig { mtu: 1_280 },
        Message::ParameterProblem { code: 51, pointer: 100 },
        Message::ExternalInterfaceDown { isd_as, interface: 41 },
        Message::InternalConnectivityDown { isd_as, ingress: 5, egress: 3 },
        Message::EchoRequest { identifier: 42, sequence: 1 },
        Message::EchoReply { identifier: 42, sequence: 1 },
        Message::TracerouteRequest { identifier: 42, sequence: 9 },
        Message::TracerouteReply { identifier: 42, sequence: 9, isd_as, interface: 41 },
    ];
    let message = |message: Message| {
        let mut payload = message.octets()[..message.wire_len()].to_vec();
        payload.extend(b"quote");
        let mut packet = Packet { header: header(Path::Empty), payload: payload.clone() };
        packet.header.next_header = next_header::SCMP;
        let sum = scmp::checksum(&packet.encode(), 20, &payload);
        packet.payload[2..4].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(Message::decode(&payload).unwrap(), (message, &b"quote"[..]));
        json!({ "message": format!("{message:?}"), "packet": hex(&packet.encode()) })
    };
    messages.into_iter().map(message).collect()
}

#[test]
fn the_published_vectors_are_what_this_code_computes() {
    let computed = json!({ "hop_fields": hop_fields(), "packets": packets(), "scmp": scmp_messages() });
    let published = include_str!("../../../../../test-data/wire/scion.json");
    let published: Value = serde_json::from_str(published).expect("the vectors are JSON");
    assert_eq!(computed, published["scion"], "{computed:#}");
}

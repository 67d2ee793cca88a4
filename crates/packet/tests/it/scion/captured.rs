//! Packets of a running network: every one decodes, encodes to the same octets, and verifies at its hop.

use wayleave_packet::scion::{ForwardingKey, Header, Hop, Packet, Path, hop_expiry, next_header, scmp};

const PACKETS: &str = include_str!("../../../../../test-data/scion/packets.txt");

fn hex(text: &str) -> Vec<u8> {
    let digit = |c: u8| (c as char).to_digit(16).expect("a hexadecimal digit") as u8;
    text.as_bytes().chunks(2).map(|two| digit(two[0]) << 4 | digit(two[1])).collect()
}

/// Kind, key, packet.
fn captured() -> Vec<(&'static str, ForwardingKey, Vec<u8>)> {
    let lines = PACKETS.lines().filter(|line| !line.starts_with('#'));
    let packet = |line: &'static str| {
        let fields: Vec<&str> = line.split(" | ").collect();
        (fields[0], ForwardingKey::new(&hex(fields[2]).try_into().unwrap()), hex(fields[3]))
    };
    lines.map(packet).collect()
}

#[test]
fn captured_packets_are_written_as_they_were_read() {
    for (kind, _, octets) in captured() {
        let packet = Packet::decode(&octets).unwrap();
        assert_eq!(packet.encode(), octets, "{kind}");
        let back = packet.header.path.reversed();
        assert_eq!(back.reversed(), packet.header.path);
    }
}

#[test]
fn captured_packets_verify_at_the_hop_where_they_were_captured() {
    let mut verified = 0;
    for (kind, key, octets) in captured() {
        let (header, _) = Header::decode(&octets).unwrap();
        let Path::Standard(path) = header.path else { panic!("{kind}") };
        let meta = path.meta;
        let field = path.hops[usize::from(meta.current_hop)];
        let mut hop = Hop::new(&path.infos[usize::from(meta.current_info)], &field);
        // Against construction, the router at which a packet comes in takes the MAC out before it verifies.
        if kind.starts_with("ext rev") {
            hop = hop.with_seg_id(hop.next_seg_id());
        }
        assert!(bool::from(key.verify(&hop.mac_input(), &field.mac)), "{kind}");
        assert_eq!(hop_expiry(hop.timestamp(), 0).secs(), u64::from(hop.timestamp()) + 337);
        let mut forged = field.mac;
        forged[5] ^= 1;
        assert!(!bool::from(key.verify(&hop.mac_input(), &forged)), "{kind}");
        verified += 1;
    }
    assert_eq!(verified, 6);
}

#[test]
fn scmp_in_a_captured_packet_has_the_checksum_that_we_compute() {
    let mut scmp_packets = 0;
    for (kind, _, octets) in captured() {
        let (header, payload) = Header::decode(&octets).unwrap();
        if header.next_header == next_header::SCMP {
            let hosts = header.dst_host.wire_len() + header.src_host.wire_len();
            assert_eq!(payload[2..4], scmp::checksum(&octets, hosts, payload).to_be_bytes(), "{kind}");
            scmp_packets += 1;
        }
    }
    assert_eq!(scmp_packets, 2);
}

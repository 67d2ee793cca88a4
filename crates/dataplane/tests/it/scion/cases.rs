//! SCI-01: the classes of cases by which border routers are accepted, each as one packet and what happens to it.
//!
//! SCI-07: segments of one hop, pointers that disagree: refused as malformed.
//! BFD-01, forged: BFD from a host, also behind extension headers; a path of one hop that begins later: dropped; no
//! second hop field is minted.

use super::fixture::{
    CHILD_1, CHILD_2, CHILD_SIBLING, CORE_1, CORE_2, HERE, PARENT_1, PARENT_2, PEER_1, TIME, key, neighbor, now,
    process, router,
};
use super::packets::{crossing, inbound, mint, outbound, path, peering, template, transit};
use super::scmp::check_answer;
use wayleave_dataplane::frame::Ingress;
use wayleave_dataplane::scion::{Action, Reason};
use wayleave_packet::scion::scmp::{Message, Problem};
use wayleave_packet::scion::{HostAddress, Packet, Path, PathMeta, Service, next_header};

/// Checks the packet's action; returns the packet as it is afterwards.
fn expect(packet: &Packet, ingress: Ingress, action: Action) -> Packet {
    let (got, octets) = process(&mut router(), &packet.encode(), ingress, now());
    assert_eq!(got, action, "{ingress:?} {packet:?}");
    Packet::decode(&octets).expect("what leaves can be decoded")
}

/// Checks that the packet is answered because of `reason`, with `message`; returns the answer.
fn expect_answer(packet: &Packet, ingress: Ingress, reason: Reason, message: Message) -> Packet {
    let octets = packet.encode();
    let (action, answer) = process(&mut router(), &octets, ingress, now());
    assert_eq!(action, Action::Answer(reason));
    check_answer(&octets, &answer);
    let decoded = Packet::decode(&answer).unwrap();
    assert_eq!(Message::decode(&decoded.payload).unwrap().0, message);
    decoded
}

fn problem(code: Problem, pointer: usize) -> Message {
    Message::ParameterProblem { code: code as u8, pointer: pointer as u16 }
}

/// Where hop field `index` lies in the packets of these tests.
fn hop_at(packet: &Packet, index: usize) -> usize {
    let Path::Standard(path) = &packet.header.path else { panic!("a standard path") };
    packet.header.wire_len() - 12 * (path.hops.len() - index)
}

fn with_payload(mut packet: Packet, octets: usize) -> Packet {
    packet.payload = vec![0x5a; octets];
    packet
}

#[test]
fn parent_to_child_goes_on_and_takes_the_mac_into_the_accumulator() {
    let mut packet = transit(PARENT_1, CHILD_1, true, Ingress::External(PARENT_1));
    let after = expect(&packet, Ingress::External(PARENT_1), Action::Forward(CHILD_1));
    let path = path(&mut packet);
    path.meta.current_hop = 2;
    path.infos[0].seg_id ^= u16::from_be_bytes([path.hops[1].mac[0], path.hops[1].mac[1]]);
    assert_eq!(after, packet);
}

#[test]
fn child_to_parent_goes_on_with_the_mac_taken_out_where_it_came_in() {
    let mut packet = transit(CHILD_1, PARENT_1, false, Ingress::External(CHILD_1));
    let after = expect(&packet, Ingress::External(CHILD_1), Action::Forward(PARENT_1));
    let path = path(&mut packet);
    path.meta.current_hop = 2;
    path.infos[0].seg_id ^= u16::from_be_bytes([path.hops[1].mac[0], path.hops[1].mac[1]]);
    assert_eq!(after, packet);
}

#[test]
fn a_way_out_at_another_router_takes_the_packet_there_and_on() {
    let mut packet = transit(PARENT_1, CHILD_SIBLING, true, Ingress::External(PARENT_1));
    let after = expect(&packet, Ingress::External(PARENT_1), Action::Sibling(1));
    assert_eq!(after, packet, "only the last router of the AS rewrites");
    let ingress = Ingress::Sibling(0);
    let packet2 = transit(super::fixture::PARENT_SIBLING, CHILD_1, true, ingress);
    expect(&packet2, ingress, Action::Forward(CHILD_1));
    // Not from a sibling that does not have the ingress interface, and not from a host.
    expect(&packet2, Ingress::Sibling(1), Action::Drop(Reason::TransitSource));
    expect(&packet2, Ingress::Internal, Action::Drop(Reason::TransitSource));
    // A packet from within does not go to a sibling again.
    let around = transit(super::fixture::PARENT_SIBLING, CHILD_SIBLING, true, ingress);
    let unknown = problem(Problem::UnknownHopFieldEgress, hop_at(&around, 1));
    expect_answer(&with_payload(around, 80), ingress, Reason::UnknownEgress, unknown);
    path(&mut packet).meta.current_hop = 2;
}

#[test]
fn core_to_core_goes_on_in_both_directions() {
    for construction in [true, false] {
        let packet = transit(CORE_1, CORE_2, construction, Ingress::External(CORE_1));
        expect(&packet, Ingress::External(CORE_1), Action::Forward(CORE_2));
    }
}

#[test]
fn child_to_child_changes_the_segment_and_verifies_both_hops() {
    let mut packet = crossing(CHILD_1, CHILD_2, false, true);
    let after = expect(&packet, Ingress::External(CHILD_1), Action::Forward(CHILD_2));
    let both = path(&mut packet);
    both.meta = PathMeta { current_info: 1, current_hop: 3, ..both.meta };
    for (info, hop) in [(0, 1), (1, 2)] {
        both.infos[info].seg_id ^= u16::from_be_bytes([both.hops[hop].mac[0], both.hops[hop].mac[1]]);
    }
    assert_eq!(after, packet);
    for wrong in [1, 2] {
        let mut packet = with_payload(crossing(CHILD_1, CHILD_2, false, true), 64);
        path(&mut packet).hops[wrong].mac[3] ^= 1;
        let message = problem(Problem::InvalidHopFieldMac, hop_at(&packet, wrong));
        expect_answer(&packet, Ingress::External(CHILD_1), Reason::BadMac, message);
    }
}

#[test]
fn segments_change_between_core_and_child_and_to_another_router() {
    for (enters, leaves, first, second) in
        [(CORE_1, CHILD_1, true, true), (CHILD_1, CORE_1, false, true), (CHILD_1, CORE_1, false, false)]
    {
        let packet = crossing(enters, leaves, first, second);
        expect(&packet, Ingress::External(enters), Action::Forward(leaves));
    }
    let after = expect(&crossing(CHILD_1, CHILD_SIBLING, false, true), Ingress::External(CHILD_1), Action::Sibling(1));
    let Path::Standard(path) = after.header.path else { panic!() };
    assert_eq!((path.meta.current_info, path.meta.current_hop), (1, 2));
}

#[test]
fn peering_hops_are_passed_without_an_update() {
    for (enters, leaves, up) in [(CHILD_1, PEER_1, true), (PEER_1, CHILD_1, false)] {
        let mut packet = peering(enters, leaves, up);
        let after = expect(&packet, Ingress::External(enters), Action::Forward(leaves));
        let path = path(&mut packet);
        path.meta.current_hop += 1;
        path.meta.current_info = 1;
        assert_eq!(after, packet);
    }
}

#[test]
fn packets_for_hosts_and_services_here_are_delivered() {
    for (enters, construction) in [(PARENT_1, true), (CHILD_1, false), (CORE_1, true)] {
        expect(&inbound(enters, construction), Ingress::External(enters), Action::Deliver);
    }
    let mut packet = inbound(PARENT_1, true);
    packet.header.dst_host = HostAddress::Service(Service::CONTROL);
    let after = expect(&packet, Ingress::External(PARENT_1), Action::Deliver);
    assert_eq!(after.header.dst_host, HostAddress::Service(Service::CONTROL));
    // A shortcut ends in the middle of a segment: the hop field's egress interface is not used.
    let mut packet = template(&[3], 2);
    packet.header.dst = HERE;
    mint(&mut packet, 2, PARENT_1, CHILD_1, false, &key());
    expect(&packet, Ingress::External(PARENT_1), Action::Deliver);
}

#[test]
fn packets_of_hosts_here_go_out() {
    for (leaves, construction) in [(CHILD_1, true), (PARENT_1, false), (CORE_1, true)] {
        let after = expect(&outbound(leaves, construction), Ingress::Internal, Action::Forward(leaves));
        let Path::Standard(path) = after.header.path else { panic!() };
        assert_eq!(path.meta.current_hop, 1);
    }
}

#[test]
fn jumbo_packets_pass() {
    let packet = with_payload(transit(PARENT_1, CHILD_1, true, Ingress::External(PARENT_1)), 9_000);
    expect(&packet, Ingress::External(PARENT_1), Action::Forward(CHILD_1));
    let packet = with_payload(packet, 65_535);
    expect(&packet, Ingress::External(PARENT_1), Action::Forward(CHILD_1));
}

#[test]
fn segments_of_one_hop_are_malformed_unless_they_peer() {
    let mut packet = template(&[1, 2], 0);
    path(&mut packet).infos[0].construction = false;
    mint(&mut packet, 0, CHILD_1, 0, true, &key());
    expect(&packet, Ingress::External(CHILD_1), Action::Drop(Reason::MalformedPath));
    let mut packet = template(&[1, 1], 0);
    packet.header.src = HERE;
    path(&mut packet).infos.iter_mut().for_each(|info| info.peering = true);
    mint(&mut packet, 0, 0, PEER_1, false, &key());
    expect(&packet, Ingress::Internal, Action::Forward(PEER_1));
}

#[test]
fn pointers_that_disagree_are_malformed() {
    let packet = transit(PARENT_1, CHILD_1, true, Ingress::External(PARENT_1)).encode();
    for octet in [0x41, 0x81, 0x03, 0x3f, 0xff] {
        let mut packet = packet.clone();
        packet[36] = octet;
        let (action, _) = process(&mut router(), &packet, Ingress::External(PARENT_1), now());
        assert_eq!(action, Action::Drop(Reason::MalformedPath), "{octet:x}");
    }
}

#[test]
fn one_hop_paths_go_out_and_come_in() {
    let mut packet = template(&[2], 0);
    (packet.header.src, packet.header.dst) = (HERE, neighbor(CHILD_1));
    packet.header.path = Path::OneHop(key().one_hop(7, TIME, 63, CHILD_1));
    let out = expect(&packet, Ingress::Internal, Action::Forward(CHILD_1));
    let Path::OneHop(path) = out.header.path else { panic!() };
    assert_ne!(path.info.seg_id, 7);
    let mut forged = packet.clone();
    if let Path::OneHop(path) = &mut forged.header.path {
        path.first.mac[5] ^= 0x80;
    }
    expect(&forged, Ingress::Internal, Action::Drop(Reason::BadMac));
    expect(&packet, Ingress::Sibling(0), Action::Drop(Reason::OneHop));

    (packet.header.src, packet.header.dst) = (neighbor(CHILD_1), HERE);
    let inside = expect(&packet, Ingress::External(CHILD_1), Action::Deliver);
    let Path::OneHop(path) = inside.header.path else { panic!() };
    assert_eq!((path.second.cons_ingress, path.second.cons_egress), (CHILD_1, 0));
    // The way back that the receiver makes of it is good for a packet of its own.
    let mut back = inside.clone();
    (back.header.src, back.header.dst) = (HERE, neighbor(CHILD_1));
    back.header.path = inside.header.path.reversed();
    let mut router = router();
    let (action, _) = process(&mut router, &back.encode(), Ingress::Internal, now());
    assert_eq!(action, Action::Forward(CHILD_1));
    packet.header.src = neighbor(CHILD_2);
    expect(&packet, Ingress::External(CHILD_1), Action::Drop(Reason::SourceAddress));
}

#[test]
fn bfd_of_neighbours_and_siblings_is_for_the_router_itself() {
    let mut packet = template(&[2], 0);
    packet.header.next_header = next_header::BFD;
    packet.header.path = Path::Empty;
    (packet.header.src, packet.header.dst) = (HERE, HERE);
    expect(&packet, Ingress::Sibling(0), Action::Control);
    expect(&packet, Ingress::External(CHILD_1), Action::Drop(Reason::PathType));
    expect(&packet, Ingress::Internal, Action::Drop(Reason::PathType));
    packet.header.src = neighbor(CHILD_1);
    packet.header.path = Path::OneHop(key().one_hop(7, TIME, 63, CHILD_1));
    expect(&packet, Ingress::External(CHILD_1), Action::Control);
}

/// The hop field that begins a segment here makes a path of one hop too, and every host that has such a segment knows it.
#[test]
fn a_host_does_not_speak_bfd_to_the_neighbours_router() {
    let mut packet = template(&[2], 0);
    (packet.header.src, packet.header.dst) = (HERE, neighbor(CHILD_1));
    packet.header.path = Path::OneHop(key().one_hop(7, TIME, 63, CHILD_1));
    expect(&packet, Ingress::Internal, Action::Forward(CHILD_1));
    packet.header.next_header = next_header::BFD;
    expect(&packet, Ingress::Internal, Action::Drop(Reason::OneHop));
    // Behind extension headers, of hop-by-hop and end-to-end options, as well.
    let payload = std::mem::take(&mut packet.payload);
    packet.header.next_header = next_header::END_TO_END;
    packet.payload = [&[next_header::BFD, 0, 0, 0], &payload[..]].concat();
    expect(&packet, Ingress::Internal, Action::Drop(Reason::OneHop));
    packet.header.next_header = next_header::HOP_BY_HOP;
    packet.payload = [&[next_header::END_TO_END, 0, 0, 0], &packet.payload[..]].concat();
    expect(&packet, Ingress::Internal, Action::Drop(Reason::OneHop));
}

#[test]
fn no_second_hop_field_is_minted_for_a_path_that_begins_later() {
    for (ahead, action) in [
        (0, Action::Deliver),
        (330, Action::Deliver),
        (400, Action::Drop(Reason::Future)),
        (1 << 30, Action::Drop(Reason::Future)),
    ] {
        let mut packet = template(&[2], 0);
        (packet.header.src, packet.header.dst) = (neighbor(CHILD_1), HERE);
        packet.header.path = Path::OneHop(key().one_hop(7, TIME + ahead, 63, CHILD_1));
        expect(&packet, Ingress::External(CHILD_1), action);
    }
}

#[test]
fn an_expired_hop_is_answered() {
    let mut packet = with_payload(template(&[3], 1), 100);
    path(&mut packet).hops[1].exp_time = 0;
    path(&mut packet).infos[0].timestamp = TIME - 600;
    mint(&mut packet, 1, PARENT_1, CHILD_1, false, &key());
    let message = problem(Problem::PathExpired, hop_at(&packet, 1));
    let answer = expect_answer(&packet, Ingress::External(PARENT_1), Reason::Expired, message);
    // It goes back the way it came: at the previous AS, against construction, with the accumulator as it was.
    let (Path::Standard(back), Path::Standard(path)) = (answer.header.path, packet.header.path) else { panic!() };
    assert_eq!(back.meta.current_hop, 2);
    assert!(!back.infos[0].construction);
    assert_eq!(back.infos[0].seg_id, path.infos[0].seg_id);
}

#[test]
fn a_wrong_way_in_is_answered() {
    let packet = with_payload(transit(PARENT_1, CHILD_1, true, Ingress::External(PARENT_1)), 100);
    let message = problem(Problem::UnknownHopFieldIngress, hop_at(&packet, 1));
    expect_answer(&packet, Ingress::External(PARENT_2), Reason::WrongIngress, message);
    let packet = with_payload(transit(CHILD_1, PARENT_1, false, Ingress::External(CHILD_1)), 100);
    let message = problem(Problem::UnknownHopFieldEgress, hop_at(&packet, 1));
    expect_answer(&packet, Ingress::External(CHILD_2), Reason::WrongIngress, message);
}

#[test]
fn addresses_that_cannot_be_here_are_answered() {
    let mut packet = with_payload(transit(PARENT_1, CHILD_1, true, Ingress::External(PARENT_1)), 100);
    packet.header.dst = HERE;
    let message = problem(Problem::InvalidDestinationAddress, 12);
    expect_answer(&packet, Ingress::External(PARENT_1), Reason::DestinationAddress, message);
    let mut packet = with_payload(outbound(CHILD_1, true), 100);
    packet.header.src = neighbor(CHILD_2);
    let message = problem(Problem::InvalidSourceAddress, 20);
    expect_answer(&packet, Ingress::Internal, Reason::SourceAddress, message);
    let mut packet = with_payload(outbound(CHILD_1, true), 100);
    packet.header.dst = HERE;
    let message = problem(Problem::InvalidDestinationAddress, 12);
    expect_answer(&packet, Ingress::Internal, Reason::DestinationAddress, message);
    // A packet from outside does not have this AS as source.
    let mut packet = with_payload(inbound(PARENT_1, true), 100);
    packet.header.src = HERE;
    let (action, _) = process(&mut router(), &packet.encode(), Ingress::External(PARENT_1), now());
    assert_eq!(action, Action::Answer(Reason::SourceAddress));
}

#[test]
fn a_packet_longer_than_it_says_is_answered_and_an_error_is_not() {
    let packet = with_payload(transit(PARENT_1, CHILD_1, true, Ingress::External(PARENT_1)), 200);
    let mut octets = packet.encode();
    octets[7] -= 1;
    let (action, answer) = process(&mut router(), &octets, Ingress::External(PARENT_1), now());
    assert_eq!(action, Action::Answer(Reason::PacketSize));
    let (message, _) = Message::decode(&Packet::decode(&answer).unwrap().payload).map(|(m, q)| (m, q.len())).unwrap();
    assert_eq!(message, problem(Problem::InvalidPacketSize, 0));

    let mut packet = with_payload(transit(PARENT_1, CHILD_1, true, Ingress::External(PARENT_1)), 200);
    packet.header.next_header = next_header::SCMP;
    path(&mut packet).hops[1].mac[0] ^= 1;
    for (kind, action) in [(4, Action::Drop(Reason::BadMac)), (128, Action::Answer(Reason::BadMac))] {
        packet.payload[0] = kind;
        let (got, _) = process(&mut router(), &packet.encode(), Ingress::External(PARENT_1), now());
        assert_eq!(got, action);
    }
}

#[test]
fn segments_that_may_not_be_joined_are_answered() {
    for (enters, leaves) in [(PARENT_1, CHILD_1), (PARENT_1, PARENT_2), (CHILD_1, PARENT_1), (CORE_1, CORE_2)] {
        let packet = with_payload(crossing(enters, leaves, false, true), 120);
        let message = problem(Problem::InvalidSegmentChange, packet.header.wire_len() - 4 * 12 - 8);
        expect_answer(&packet, Ingress::External(enters), Reason::SegmentChange, message);
    }
    // Within a segment no valley and no turn.
    for (enters, leaves) in [(PARENT_1, PARENT_2), (CHILD_1, CHILD_2), (CORE_1, CHILD_1), (PEER_1, PARENT_1)] {
        let packet = with_payload(transit(enters, leaves, true, Ingress::External(enters)), 120);
        let message = problem(Problem::InvalidPath, hop_at(&packet, 1));
        expect_answer(&packet, Ingress::External(enters), Reason::Direction, message);
    }
}

#[test]
fn an_unknown_way_out_is_answered() {
    let packet = with_payload(transit(PARENT_1, 404, true, Ingress::External(PARENT_1)), 120);
    let message = problem(Problem::UnknownHopFieldEgress, hop_at(&packet, 1));
    expect_answer(&packet, Ingress::External(PARENT_1), Reason::UnknownEgress, message);
}

#[test]
fn a_link_that_is_down_is_answered() {
    for (leaves, message) in [
        (CHILD_1, Message::ExternalInterfaceDown { isd_as: HERE, interface: CHILD_1.into() }),
        (
            CHILD_SIBLING,
            Message::InternalConnectivityDown { isd_as: HERE, ingress: PARENT_1.into(), egress: CHILD_SIBLING.into() },
        ),
    ] {
        let mut router = router();
        router.set_link(leaves, false);
        let packet = with_payload(transit(PARENT_1, leaves, true, Ingress::External(PARENT_1)), 120);
        let (action, answer) = process(&mut router, &packet.encode(), Ingress::External(PARENT_1), now());
        assert_eq!(action, Action::Answer(Reason::LinkDown));
        assert_eq!(Message::decode(&Packet::decode(&answer).unwrap().payload).unwrap().0, message);
    }
}

#[test]
fn traceroute_is_answered_at_the_way_in_and_at_the_way_out() {
    let request = Message::TracerouteRequest { identifier: 0x1234, sequence: 7 };
    for (ingress_alert, interface) in [(true, PARENT_1), (false, CHILD_1)] {
        let mut packet = transit(PARENT_1, CHILD_1, true, Ingress::External(PARENT_1));
        packet.header.next_header = next_header::SCMP;
        packet.payload = request.octets()[..24].to_vec();
        let hop = &mut path(&mut packet).hops[1];
        (hop.ingress_alert, hop.egress_alert) = (ingress_alert, !ingress_alert);
        let reply =
            Message::TracerouteReply { identifier: 0x1234, sequence: 7, isd_as: HERE, interface: interface.into() };
        expect_answer(&packet, Ingress::External(PARENT_1), Reason::Traceroute, reply);
        // Anything else with the flag goes on.
        packet.header.next_header = next_header::UDP;
        expect(&packet, Ingress::External(PARENT_1), Action::Forward(CHILD_1));
    }
}

//! SCMP as draft-dekater-scion-controlplane and the SCMP specification have it: every error at every kind of hop, in both
//! directions, with its code, its pointer and its interfaces; what is quoted; who is answered, and how often. Expected
//! values are worked out here, from the octets of the packet and a description of the hop.
//!
//! SCI-05, SCMP: each error (lengths, extension headers, ways in and out, addresses, expiry, MAC, direction, segments,
//! links down, services, hosts) at each kind of hop and router, in construction order and against: code, pointer and
//! interfaces as the specification has them; the error leaves the AS where the packet came in.
//! SCI-05, SCMP, quotes: packets of 72 to 60,000 octets; paths of 64 hops: the quote is the whole packet, or what 1,232
//! octets hold.
//! SCI-05, SCMP, traceroute: requests at every kind of hop: the router of the interface answers; flags leave what goes
//! on and what comes back.
//! FWD, limit of answers: every kind of packet that is answered, one by one and in bursts, for two seconds; floods at
//! one place: the rate to the last answer; the others have theirs.
//! FWD, amplification: errors, senders that are no one host: no answer; SCMP is as much longer than its cause as its
//! header.

use super::fixture::{
    CHILD_1, CHILD_2, CHILD_SIBLING, CORE_1, CORE_2, CORE_SIBLING, HERE, INTERFACES, PARENT_1, PARENT_2,
    PARENT_SIBLING, PEER_1, PEER_2, PEER_SIBLING, TIME, at, config, key, now, process, router,
};
use super::packets::{mint, path, template, transit};
use wayleave_dataplane::frame::{BURST, Frame, Ingress};
use wayleave_dataplane::scion::{Action, Config, Link, Owner, Reason, Router};
use wayleave_packet::scion::{HostAddress, IsdAs, Packet, Path, Service, next_header};

/// Octets of an error with its SCION header, at most.
const LONGEST: usize = 1_232;

fn number(octets: &[u8]) -> u64 {
    octets.iter().fold(0, |sum, octet| sum << 8 | u64::from(*octet))
}

/// Where the SCMP message of an answer begins.
fn message_at(answer: &[u8]) -> usize {
    4 * usize::from(answer[5])
}

/// Octets of an error in front of its quote, by its type.
fn front_of(kind: u8) -> usize {
    match kind {
        5 => 20,
        6 => 28,
        _ => 8,
    }
}

/// The first octet behind the SCION header and its extension headers, and what it belongs to.
fn upper_layer(p: &[u8]) -> (u8, usize) {
    let (mut next, mut at) = (p[4], 4 * usize::from(p[5]));
    while matches!(next, 200 | 201) && at + 1 < p.len() {
        (next, at) = (p[at], at + 4 * (usize::from(p[at + 1]) + 1));
    }
    (next, at)
}

/// What holds for every answer: to whom it goes, that it asks no router on its way to look at it, that its checksum is right,
/// that it quotes as much of the packet as fits, and that no error answers an error or a crowd.
pub fn check_answer(packet: &[u8], answer: &[u8]) {
    assert_eq!((answer[4], number(&answer[20..28])), (next_header::SCMP, HERE.0));
    assert_eq!(number(&answer[12..20]), number(&packet[20..28]), "to the AS that the packet came from");
    let (dst, src) = (usize::from(packet[9] >> 4 & 3), usize::from(packet[9] & 3));
    let source = &packet[28 + 4 * (dst + 1)..][..4 * (src + 1)];
    assert_eq!((answer[9] >> 4, &answer[28..28 + source.len()]), (packet[9] & 15, source), "and to its host");
    assert!(matches!(packet[9] & 15, 0 | 3), "no service and no unknown address is answered");
    assert!(!matches!(*source, [0 | 127 | 224.., _, _, _] | [0xff, ..]), "nor a crowd");
    let infos = match Packet::decode(answer).expect("an answer is a packet").header.path {
        Path::Standard(path) => {
            assert!(path.hops.iter().all(|hop| !hop.ingress_alert && !hop.egress_alert));
            path.infos.len()
        }
        other => panic!("{other:?}"),
    };
    assert!((1..=3).contains(&infos));
    // The checksum over addresses, length, protocol and message, with the checksum itself, is all ones.
    let at = message_at(answer);
    let message = &answer[at..];
    let hosts = 28 + source.len() + 4;
    let mut summed = answer[12..hosts].to_vec();
    summed.extend((message.len() as u32).to_be_bytes());
    summed.extend([0, 0, 0, 202]);
    summed.extend(message);
    summed.resize(summed.len().next_multiple_of(2), 0);
    let mut sum: u64 = summed.chunks(2).map(number).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    assert_eq!(sum, 0xffff);
    let (next, inner) = upper_layer(packet);
    if message[0] >= 128 {
        assert_eq!((message[0], message.len(), next, packet[inner]), (131, 24, next_header::SCMP, 130));
        assert!(answer.len() <= packet.len() + 12, "a reply is no longer than its request, but for our address");
        return;
    }
    // What a malformed extension header hides nobody knows: the error about that header is the only one.
    let is_error = next == next_header::SCMP && packet.get(inner).is_none_or(|kind| *kind < 128);
    assert!(!is_error || message[..2] == [4, 64], "an error is not answered");
    let front = front_of(message[0]);
    let quote = &message[front..];
    assert_eq!(quote.len(), packet.len().min(LONGEST - at - front), "as much as fits");
    assert_eq!(quote, &packet[..quote.len()], "as it came");
    assert!(answer.len() <= LONGEST);
}

/// A place in the network where a packet meets this router.
#[derive(Clone, Debug)]
struct PathPosition {
    name: &'static str,
    lengths: &'static [u8],
    current: usize,
    /// Of each segment: whether it is travelled in the order of construction.
    construction: [bool; 2],
    peering: bool,
    /// The AS's own hop fields: index, the way in, the way out.
    hops: Vec<(usize, u16, u16)>,
    ingress: Ingress,
}

impl PathPosition {
    /// The hop by which the packet leaves the AS: behind the current one if it changes its segment here.
    fn leaving(&self) -> usize {
        self.hops.last().expect("a hop").0
    }

    fn changes(&self) -> bool {
        self.leaving() != self.current
    }

    fn egress(&self) -> u16 {
        self.hops.last().expect("a hop").2
    }

    fn segment(&self, hop: usize) -> usize {
        usize::from(hop >= usize::from(self.lengths[0]))
    }

    fn is_from_neighbor(&self) -> bool {
        matches!(self.ingress, Ingress::External(_))
    }

    /// The packet; `tweak` changes it before it is minted.
    fn packet(&self, tweak: impl Fn(&mut Packet)) -> Packet {
        let mut packet = template(self.lengths, self.current);
        packet.payload.resize(90, 7);
        if self.ingress == Ingress::Internal {
            packet.header.src = HERE;
        }
        for (info, construction) in path(&mut packet).infos.iter_mut().zip(self.construction) {
            (info.construction, info.peering) = (construction, self.peering);
        }
        tweak(&mut packet);
        for &(hop, enters, leaves) in &self.hops {
            // Against construction the router at the way in takes the hop's MAC out of the accumulator.
            let is_undone = self.is_from_neighbor() && !self.peering && hop == self.current;
            let turned = is_undone && !self.construction[self.segment(hop)];
            mint(&mut packet, hop, enters, leaves, turned, &key());
        }
        packet
    }

    /// With another way out.
    fn leaving_by(&self, egress: u16) -> Self {
        let mut place = self.clone();
        place.hops.last_mut().expect("a hop").2 = egress;
        place
    }
}

/// All kinds of hop: transit, change of segment, peering, the way out of the AS; in construction order and against; at the
/// router that has both interfaces, at the one that has only the way in, and at the one that has only the way out.
fn places() -> Vec<PathPosition> {
    let mut all = Vec::new();
    let sibling = |id: u16| INTERFACES.iter().find(|interface| interface.0 == id).and_then(|interface| interface.2);
    let ingress = |id: u16| sibling(id).map_or(Ingress::External(id), Ingress::Sibling);
    let mut add = |name, lengths, current, construction, peering, hops: &[(usize, u16, u16)], ingress| {
        all.push(PathPosition { name, lengths, current, construction, peering, hops: hops.to_vec(), ingress });
    };
    for cons in [true, false] {
        let transit: &[(u16, u16)] = match cons {
            true => &[(PARENT_1, CHILD_1), (PARENT_1, CHILD_SIBLING), (PARENT_SIBLING, CHILD_1), (CORE_1, CORE_2)],
            false => &[(CHILD_1, PARENT_1), (CHILD_1, PARENT_SIBLING), (CHILD_SIBLING, PARENT_1), (CORE_1, CORE_2)],
        };
        for &(enters, leaves) in transit {
            add("transit", &[3], 1, [cons; 2], false, &[(1, enters, leaves)], ingress(enters));
        }
        let leaves = if cons { CHILD_1 } else { PARENT_1 };
        add("outbound", &[3], 0, [cons; 2], false, &[(0, 0, leaves)], Ingress::Internal);
    }
    for (enters, leaves, first, second) in [
        (CHILD_1, CHILD_2, false, true),
        (CORE_1, CHILD_1, true, true),
        (CORE_1, CHILD_1, false, true),
        (CHILD_1, CORE_1, false, true),
        (CHILD_1, CORE_1, false, false),
        (CHILD_1, CHILD_SIBLING, false, true),
        (CHILD_1, CORE_SIBLING, false, false),
    ] {
        let hops = [(1, enters, 0), (2, 0, leaves)];
        add("change of segment", &[2, 2], 1, [first, second], false, &hops, ingress(enters));
    }
    // Behind another router of the AS that has changed the segment.
    for (leaves, second) in [(CHILD_1, true), (CORE_1, false), (CORE_1, true)] {
        let hops = [(1, CHILD_SIBLING, 0), (2, 0, leaves)];
        add("changed segment", &[2, 2], 2, [false, second], false, &hops, ingress(CHILD_SIBLING));
    }
    for (enters, leaves) in [(CHILD_1, PEER_1), (CHILD_1, PEER_SIBLING), (CHILD_SIBLING, PEER_1)] {
        add("peering, up", &[2, 2], 1, [false, true], true, &[(1, enters, leaves)], ingress(enters));
    }
    for (enters, leaves) in [(PEER_1, CHILD_1), (PEER_1, CHILD_SIBLING), (PEER_SIBLING, CHILD_1)] {
        add("peering, down", &[2, 2], 2, [false, true], true, &[(2, enters, leaves)], ingress(enters));
    }
    all
}

/// Where packets end here.
fn ends() -> Vec<PathPosition> {
    let end = |enters, cons| PathPosition {
        name: "inbound",
        lengths: &[3],
        current: 2,
        construction: [cons; 2],
        peering: false,
        hops: vec![(2, enters, 0)],
        ingress: Ingress::External(enters),
    };
    vec![end(PARENT_1, true), end(CHILD_1, false)]
}

/// Type and code, and what stands behind the checksum and in front of the quote.
#[derive(PartialEq, Eq, Debug)]
enum Expected {
    Problem(u8, usize),
    Down(u16),
    Inside(u16, u16),
    Unreachable(u8),
}

impl Expected {
    fn octets(&self) -> Vec<u8> {
        let isd_as = HERE.0.to_be_bytes();
        let wide = |interface: u16| u64::from(interface).to_be_bytes();
        match *self {
            Self::Problem(_, pointer) => vec![0, 0, (pointer >> 8) as u8, pointer as u8],
            Self::Down(interface) => [isd_as, wide(interface)].concat(),
            Self::Inside(ingress, egress) => [isd_as, wide(ingress), wide(egress)].concat(),
            Self::Unreachable(_) => vec![0; 4],
        }
    }

    fn kind(&self) -> [u8; 2] {
        match *self {
            Self::Problem(code, _) => [4, code],
            Self::Down(_) => [5, 0],
            Self::Inside(..) => [6, 0],
            Self::Unreachable(code) => [1, code],
        }
    }
}

/// A router of the same AS that has what sibling 0 and 1 have; the fixture's router is its sibling 0.
fn other_router() -> Router {
    let mut config = config();
    for interface in &mut config.interfaces {
        interface.owner = if interface.owner == Owner::This { Owner::Sibling(0) } else { Owner::This };
    }
    Router::new(&config).expect("sound")
}

/// Where hop field `hop` and info field `info` of a packet begin.
fn hop_at(octets: &[u8], hop: usize) -> usize {
    let meta = number(&octets[36..40]);
    let infos = [meta >> 12 & 63, meta >> 6 & 63, meta & 63].iter().filter(|length| **length > 0).count();
    36 + 4 + 8 * infos + 12 * hop
}

fn info_at(info: usize) -> usize {
    36 + 4 + 8 * info
}

/// Sends the packet to `router`, and compares the error; then sends the error on its way back.
fn expect(
    router: &mut Router,
    place: &PathPosition,
    octets: &[u8],
    ingress: Ingress,
    reason: Reason,
    expected: &Expected,
) {
    let (action, answer) = process(router, octets, ingress, now());
    assert_eq!(action, Action::Answer(reason), "{place:?} {expected:?}");
    check_answer(octets, &answer);
    let message = &answer[message_at(&answer)..];
    let front = front_of(message[0]);
    assert_eq!(message[..2], expected.kind(), "{place:?} {expected:?}");
    assert_eq!(message[4..front], expected.octets(), "{place:?} {expected:?}");
    if let (Ingress::Sibling(_), Some(&(_, enters, _))) = (place.ingress, place.hops.first())
        && !matches!(reason, Reason::BadMac | Reason::Expired | Reason::Future)
        && place.egress() != 404
    {
        // It leaves the AS where the packet came in, as any other packet of the router that sent it.
        let (action, _) = process(&mut other_router(), &answer, Ingress::Sibling(0), now());
        assert_eq!(action, Action::Forward(enters), "{place:?} {expected:?}");
    }
}

#[test]
fn an_expired_or_future_hop_and_a_wrong_mac_are_shown_where_they_lie() {
    for place in places().into_iter().chain(ends()) {
        // At a change of segment this router checks both hops; a hop that another one has checked is of no concern.
        let own: Vec<usize> = place.hops.iter().map(|hop| hop.0).filter(|hop| *hop >= place.current).collect();
        for hop in own {
            let segment = place.segment(hop);
            let to_us = place.name == "inbound";
            let timed = |timestamp: u32, exp_time: u8| {
                let packet = place.packet(|packet| {
                    packet.header.dst = if to_us { HERE } else { packet.header.dst };
                    path(packet).infos[segment].timestamp = timestamp;
                    path(packet).hops[hop].exp_time = exp_time;
                });
                packet.encode()
            };
            let pointer = hop_at(&timed(TIME, 63), hop);
            let expired = Expected::Problem(52, pointer);
            expect(&mut router(), &place, &timed(TIME - 600, 0), place.ingress, Reason::Expired, &expired);
            expect(&mut router(), &place, &timed(TIME + 600, 63), place.ingress, Reason::Future, &expired);
            let mut forged = timed(TIME, 63);
            forged[pointer + 11] ^= 1;
            let wrong = Expected::Problem(51, pointer);
            expect(&mut router(), &place, &forged, place.ingress, Reason::BadMac, &wrong);
        }
    }
}

#[test]
fn a_link_that_is_down_is_named_by_the_interface_at_which_the_packet_would_have_left() {
    for place in places() {
        let mut router = router();
        router.set_link(place.egress(), false);
        let is_siblings = INTERFACES.iter().any(|(id, _, sibling)| *id == place.egress() && sibling.is_some());
        let expected = match (is_siblings, place.ingress) {
            (true, Ingress::External(ingress)) => Expected::Inside(ingress, place.egress()),
            _ => Expected::Down(place.egress()),
        };
        let octets = place.packet(|_| ()).encode();
        expect(&mut router, &place, &octets, place.ingress, Reason::LinkDown, &expected);
        // The same packet passes once the link is up again.
        router.set_link(place.egress(), true);
        let (action, _) = process(&mut router, &octets, place.ingress, now());
        assert!(matches!(action, Action::Forward(out) if out == place.egress()) || is_siblings, "{place:?} {action:?}");
    }
}

#[test]
fn an_unknown_way_out_is_shown_in_the_hop_that_names_it() {
    for place in places() {
        let octets = place.leaving_by(404).packet(|_| ()).encode();
        let code = if place.construction[place.segment(place.leaving())] { 50 } else { 49 };
        let expected = Expected::Problem(code, hop_at(&octets, place.leaving()));
        expect(&mut router(), &place.leaving_by(404), &octets, place.ingress, Reason::UnknownEgress, &expected);
        if let Ingress::Sibling(_) = place.ingress {
            // A packet from within does not go to a sibling again.
            let link = INTERFACES.iter().find(|interface| interface.0 == place.egress()).expect("known").1;
            let other = INTERFACES.iter().find(|interface| interface.1 == link && interface.2.is_some());
            let around = place.leaving_by(other.expect("one of each kind").0);
            let octets = around.packet(|_| ()).encode();
            let (action, answer) = process(&mut router(), &octets, place.ingress, now());
            assert_eq!(action, Action::Answer(Reason::UnknownEgress), "{place:?}");
            check_answer(&octets, &answer);
            let message = &answer[message_at(&answer)..];
            assert_eq!((message[..2].to_vec(), &message[4..8]), (vec![4, code], &expected.octets()[..]));
        }
    }
}

#[test]
fn a_wrong_way_in_is_shown_in_the_current_hop() {
    for place in places().into_iter().chain(ends()).filter(PathPosition::is_from_neighbor) {
        let octets = place.packet(|_| ()).encode();
        let code = if place.construction[place.segment(place.current)] { 49 } else { 50 };
        let expected = Expected::Problem(code, hop_at(&octets, place.current));
        for other in [PARENT_2, CHILD_2, PEER_2, CORE_2] {
            expect(&mut router(), &place, &octets, Ingress::External(other), Reason::WrongIngress, &expected);
        }
    }
}

#[test]
fn links_that_may_not_follow_each_other_are_shown_in_the_hop_or_in_the_segment_that_is_joined() {
    use Link::{Child, Core, Parent, Peer};
    let kind = |id: u16| INTERFACES.iter().find(|interface| interface.0 == id).expect("known").1;
    for place in places().into_iter().filter(PathPosition::is_from_neighbor) {
        let enters = kind(place.hops[0].1);
        for (leaves, link, _) in INTERFACES {
            let may = match place.changes() {
                true => matches!((enters, link), (Core, Child) | (Child, Core | Child)),
                false => matches!((enters, link), (Core, Core) | (Parent | Peer, Child) | (Child, Parent | Peer)),
            };
            let other = place.leaving_by(leaves);
            let octets = other.packet(|_| ()).encode();
            if may {
                let (action, _) = process(&mut router(), &octets, place.ingress, now());
                assert!(matches!(action, Action::Forward(_) | Action::Sibling(_)), "{other:?} {action:?}");
                continue;
            }
            let (reason, expected) = match place.changes() {
                true => (Reason::SegmentChange, Expected::Problem(53, info_at(1))),
                false => (Reason::Direction, Expected::Problem(48, hop_at(&octets, place.current))),
            };
            expect(&mut router(), &other, &octets, place.ingress, reason, &expected);
        }
    }
}

#[test]
fn addresses_that_cannot_be_here_are_shown_where_they_lie() {
    let other = IsdAs::new(9, 9);
    for place in places() {
        let octets = |src: Option<IsdAs>, dst: Option<IsdAs>| {
            let packet = place.packet(|packet| {
                packet.header.src = src.unwrap_or(packet.header.src);
                packet.header.dst = dst.unwrap_or(packet.header.dst);
            });
            packet.encode()
        };
        let (source, destination) = (Expected::Problem(33, 20), Expected::Problem(34, 12));
        let here = octets(None, Some(HERE));
        expect(&mut router(), &place, &here, place.ingress, Reason::DestinationAddress, &destination);
        let wrong = match place.ingress {
            Ingress::External(_) => octets(Some(HERE), None),
            Ingress::Internal => octets(Some(other), None),
            // The router at the way in has checked it.
            Ingress::Sibling(_) => continue,
        };
        expect(&mut router(), &place, &wrong, place.ingress, Reason::SourceAddress, &source);
    }
    // The path ends here, and the destination is another AS.
    for place in ends() {
        let octets = place.packet(|packet| packet.header.dst = other).encode();
        let expected = Expected::Problem(35, 12);
        expect(&mut router(), &place, &octets, place.ingress, Reason::DestinationAddress, &expected);
    }
    // The same of a packet from another router of the AS, of which only the way out can tell.
    let mut place = places().into_iter().find(|place| place.ingress == Ingress::Sibling(0)).expect("one");
    (place.current, place.hops) = (2, vec![(2, PARENT_SIBLING, CHILD_1)]);
    let octets = place.packet(|_| ()).encode();
    let (action, answer) = process(&mut router(), &octets, place.ingress, now());
    assert_eq!(action, Action::Answer(Reason::PathEnd));
    check_answer(&octets, &answer);
    assert_eq!(answer[message_at(&answer)..][..8][..2], [4, 35]);
}

#[test]
fn wrong_lengths_and_malformed_extension_headers_are_shown_at_every_hop() {
    for place in places().into_iter().chain(ends()) {
        let to_us = |packet: &mut Packet| {
            if place.name == "inbound" {
                packet.header.dst = HERE;
            }
        };
        for change in [-1i32, 1, 5_000] {
            let mut octets = place.packet(to_us).encode();
            octets.resize((octets.len() as i32 + change) as usize, 9);
            let expected = Expected::Problem(19, 0);
            expect(&mut router(), &place, &octets, place.ingress, Reason::PacketSize, &expected);
        }
        let octets = place.packet(|packet| {
            to_us(packet);
            packet.header.next_header = next_header::HOP_BY_HOP;
            packet.payload[..4].copy_from_slice(&[next_header::UDP, 0, 9, 200]);
        });
        let octets = octets.encode();
        let expected = Expected::Problem(64, usize::from(octets[5]) * 4);
        expect(&mut router(), &place, &octets, place.ingress, Reason::Extension, &expected);
    }
}

#[test]
fn an_unknown_service_is_unreachable_and_what_is_no_host_is_an_invalid_address() {
    let v4 = |text: &str| HostAddress::V4(text.parse().expect("IPv4"));
    let v6 = |text: &str| HostAddress::V6(text.parse().expect("IPv6"));
    let unknown = |kind, length| HostAddress::Other { kind, length, octets: [1; 16] };
    for place in ends() {
        let to = |host| {
            let packet = place.packet(|packet| (packet.header.dst, packet.header.dst_host) = (HERE, host));
            packet.encode()
        };
        for service in [Service::DISCOVERY, Service(15), Service(0x8001), Service(0xffff)] {
            let expected = Expected::Unreachable(0);
            let octets = to(HostAddress::Service(service));
            expect(&mut router(), &place, &octets, place.ingress, Reason::UnknownService, &expected);
        }
        for host in ["127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255"].map(v4) {
            let expected = Expected::Problem(34, 28);
            expect(&mut router(), &place, &to(host), place.ingress, Reason::HostAddress, &expected);
        }
        let refused = ["::1", "::", "ff02::1", "::ffff:10.0.0.1", "fe80::1"].map(v6);
        let kinds = [unknown(1, 1), unknown(2, 0), unknown(3, 3), unknown(0, 1)];
        for (host, code, pointer) in
            refused.map(|host| (host, 34, 28)).into_iter().chain(kinds.map(|kind| (kind, 21, 9)))
        {
            let octets = to(host);
            let (action, answer) = process(&mut router(), &octets, place.ingress, now());
            assert_eq!(action, Action::Answer(Reason::HostAddress), "{host:?}");
            let message = &answer[message_at(&answer)..];
            assert_eq!((&message[..2], number(&message[4..8])), (&[4, code][..], pointer), "{host:?}");
        }
        for host in [
            v4("10.0.0.1"),
            v6("2001:db8::1"),
            HostAddress::Service(Service::CONTROL),
            HostAddress::Service(Service(0x8002)),
        ] {
            assert_eq!(process(&mut router(), &to(host), place.ingress, now()).0, Action::Deliver, "{host:?}");
        }
    }
}

#[test]
fn a_quote_is_the_whole_packet_or_as_much_as_1232_octets_hold() {
    for payload in [0, 8, 90, 900, 1_072, 1_073, 1_074, 1_100, 1_500, 9_000, 60_000] {
        for place in places() {
            let mut packet = place.packet(|_| ());
            packet.payload = vec![0x5a; payload];
            let octets = packet.encode();
            let mut router = router();
            router.set_link(place.egress(), false);
            let (action, answer) = process(&mut router, &octets, place.ingress, now());
            assert_eq!(action, Action::Answer(Reason::LinkDown));
            check_answer(&octets, &answer);
            let all = message_at(&answer) + front_of(answer[message_at(&answer)]) + octets.len();
            assert_eq!(answer.len(), all.min(LONGEST));
        }
    }
    // The longest path there is leaves the quoted port in it.
    let mut packet = template(&[32, 32], 40);
    mint(&mut packet, 40, PARENT_1, CHILD_1, false, &key());
    path(&mut packet).hops[40].mac[0] ^= 1;
    let octets = packet.encode();
    let (action, answer) = process(&mut router(), &octets, Ingress::External(PARENT_1), now());
    assert_eq!(action, Action::Answer(Reason::BadMac));
    check_answer(&octets, &answer);
    assert!(answer.len() == LONGEST && octets.len() > LONGEST - 1_000);
}

/// A traceroute request at `place`, with every router alert of the path set or only those of `hop`.
fn traceroute(place: &PathPosition, hop: Option<usize>, enter: bool, leave: bool) -> Packet {
    place.packet(|packet| {
        if place.name == "inbound" {
            packet.header.dst = HERE;
        }
        packet.header.next_header = next_header::SCMP;
        packet.payload = [vec![130, 0, 0, 0, 0x12, 0x34, 0, 7], vec![0; 16]].concat();
        let construction = place.construction;
        for (index, field) in path(packet).hops.iter_mut().enumerate() {
            if hop.is_none_or(|hop| hop == index) {
                let cons = construction[place.segment(index)];
                (field.ingress_alert, field.egress_alert) = if cons { (enter, leave) } else { (leave, enter) };
            }
        }
    })
}

#[test]
fn a_traceroute_is_answered_by_the_router_of_the_interface_and_the_flag_leaves_the_packet() {
    for place in places().into_iter().chain(ends()) {
        for (enter, leave) in [(true, false), (false, true), (true, true)] {
            for hop in [None, Some(place.current), Some(place.leaving())] {
                let request = traceroute(&place, hop, enter, leave);
                let octets = request.encode();
                let is_own = INTERFACES.iter().any(|(id, _, owner)| *id == place.egress() && owner.is_none());
                let at_current = hop.is_none_or(|hop| hop == place.current);
                let at_leaving = hop.is_none_or(|hop| hop == place.leaving());
                let named = match place.ingress {
                    Ingress::External(interface) if enter && at_current => Some(interface),
                    _ if leave && at_leaving && is_own => Some(place.egress()),
                    _ => None,
                };
                // The link's state does not matter: the reply says which one it was.
                let mut down = router();
                down.set_link(place.egress(), false);
                for router in [&mut router(), &mut down] {
                    let (action, answer) = process(router, &octets, place.ingress, now());
                    let Some(interface) = named else {
                        assert_ne!(action, Action::Answer(Reason::Traceroute), "{place:?}");
                        continue;
                    };
                    assert_eq!(action, Action::Answer(Reason::Traceroute), "{place:?}");
                    check_answer(&octets, &answer);
                    let message = &answer[message_at(&answer)..];
                    assert_eq!(message[..2], [131, 0]);
                    let expected = [0x1234_0007, HERE.0 >> 32, HERE.0 & 0xffff_ffff, 0, interface.into()];
                    assert!(message[4..].chunks(4).map(number).eq(expected), "{place:?} {message:?}");
                }
                // What is no request goes on without the flags that were for this router, and with all others.
                let other = {
                    let mut other = request;
                    other.payload[0] = 131;
                    other
                };
                let (action, after) = process(&mut router(), &other.encode(), place.ingress, now());
                assert!(matches!(action, Action::Forward(_) | Action::Sibling(_) | Action::Deliver), "{action:?}");
                let (Path::Standard(before), Path::Standard(after)) =
                    (other.header.path, Packet::decode(&after).expect("sound").header.path)
                else {
                    panic!()
                };
                for (index, (before, after)) in before.hops.iter().zip(&after.hops).enumerate() {
                    let cons = place.construction[place.segment(index)];
                    let entered = place.is_from_neighbor() && index == place.current;
                    let left = is_own && place.egress() != 0 && index == place.leaving();
                    let (enters, leaves) = if cons { (entered, left) } else { (left, entered) };
                    assert_eq!(after.ingress_alert, before.ingress_alert && !enters, "{place:?} {index}");
                    assert_eq!(after.egress_alert, before.egress_alert && !leaves, "{place:?} {index}");
                }
            }
        }
    }
}

#[test]
fn errors_and_senders_that_are_not_one_host_get_no_answer() {
    let place = &places()[0];
    let forged = |tweak: &dyn Fn(&mut Packet)| {
        let mut packet = place.packet(tweak);
        path(&mut packet).hops[1].mac[0] ^= 1;
        let (action, _) = process(&mut router(), &packet.encode(), place.ingress, now());
        action == Action::Answer(Reason::BadMac)
    };
    assert!(forged(&|_| ()));
    for (kind, is_answered) in
        [(0, false), (1, false), (4, false), (6, false), (127, false), (128, true), (131, true), (200, true)]
    {
        let scmp = |packet: &mut Packet| (packet.header.next_header, packet.payload[0]) = (next_header::SCMP, kind);
        assert_eq!(forged(&scmp), is_answered, "{kind}");
        // Behind extension headers too.
        let behind = |packet: &mut Packet| {
            packet.header.next_header = next_header::HOP_BY_HOP;
            packet.payload[..9].copy_from_slice(&[next_header::END_TO_END, 0, 0, 0, next_header::SCMP, 0, 0, 0, kind]);
        };
        assert_eq!(forged(&behind), is_answered, "{kind}");
    }
    // SCMP that has no type is not answered either.
    assert!(!forged(&|packet| (packet.header.next_header, packet.payload) = (next_header::SCMP, Vec::new())));
    let v4 = |text: &str| HostAddress::V4(text.parse().expect("IPv4"));
    let v6 = |text: &str| HostAddress::V6(text.parse().expect("IPv6"));
    let crowds = ["224.0.0.1", "255.255.255.255", "240.0.0.1", "0.0.0.0", "127.0.0.1", "169.254.1.1"].map(v4);
    let crowds6 = ["ff02::1", "::", "::1", "fe80::1", "::ffff:224.0.0.1"].map(v6);
    let others = [
        HostAddress::Service(Service::CONTROL),
        HostAddress::Service(Service(Service::MULTICAST | 2)),
        HostAddress::Other { kind: 2, length: 0, octets: [9; 16] },
    ];
    for host in crowds.into_iter().chain(crowds6).chain(others) {
        assert!(!forged(&|packet| packet.header.src_host = host), "{host:?}");
        let mut request = traceroute(place, None, true, true);
        request.header.src_host = host;
        let (action, _) = process(&mut router(), &request.encode(), place.ingress, now());
        assert_eq!(action, Action::Drop(Reason::Traceroute), "{host:?}");
    }
    assert!(forged(&|packet| packet.header.src_host = v6("2001:db8::7")));
}

/// Packets that are answered, one of each kind there is; no packet among them has a second effect.
fn answered() -> Vec<(Vec<u8>, Ingress)> {
    let place = &places()[0];
    let mut forged = place.packet(|_| ()).encode();
    let mac_at = hop_at(&forged, 1) + 6;
    forged[mac_at] ^= 1;
    let mut long = place.packet(|_| ()).encode();
    long.push(0);
    let request = traceroute(place, None, true, false).encode();
    let late = traceroute(place, None, false, true).encode();
    [forged, long, request, late].map(|octets| (octets, place.ingress)).to_vec()
}

/// The rate is 100 a second and ten at once; there are eleven places where packets come in: hosts, two siblings, and eight
/// interfaces of this router. Each has 100/22 a second of its own, and all have 50 beside them.
fn limited() -> Router {
    Router::new(&Config { answers_per_second: 100, answers_burst: 10, ..config() }).expect("sound")
}

#[test]
fn every_kind_of_answer_is_within_the_limit_to_the_last_one() {
    for (octets, ingress) in answered() {
        let mut router = limited();
        let mut answers = 0;
        // Two seconds less a hundred microseconds, one packet in each hundred of them.
        for step in 0..20_000 {
            let (action, _) = process(&mut router, &octets, ingress, at(60_000_000 + step * 100));
            answers += u64::from(matches!(action, Action::Answer(_)));
        }
        // Of its own one at once and one in every 220 ms; of the shared half five at once and one in every 20 ms.
        assert_eq!(answers, (1 + 1_999_900 / 220_000) + (5 + 1_999_900 / 20_000));
        let counters = router.counters();
        assert_eq!((counters.answered, counters.unanswered, counters.forwarded), (answers, 20_000 - answers, 0));
    }
}

#[test]
fn bursts_of_answered_packets_take_no_more_than_packets_one_by_one() {
    for (octets, ingress) in answered() {
        let mut router = limited();
        for burst in 0..300 {
            let mut packets = vec![octets.clone(); BURST];
            let mut frames: Vec<Frame<'_>> = packets.iter_mut().map(|octets| Frame { octets, ingress }).collect();
            let actions = router.process(&mut frames, at(60_000_000 + burst * 6_400));
            let count = actions.iter().filter(|action| matches!(action, Action::Answer(_))).count();
            assert_eq!(router.answers().count(), count);
        }
        let last = 299 * 6_400;
        assert_eq!(router.counters().answered, (1 + last / 220_000) + (5 + last / 20_000));
    }
}

#[test]
fn a_flood_at_one_interface_leaves_the_others_their_answers() {
    let mut router = limited();
    let flood = answered().swap_remove(2);
    let mut quiet = transit(CHILD_1, PARENT_1, false, Ingress::External(CHILD_1));
    path(&mut quiet).hops[1].mac[0] ^= 1;
    let quiet = quiet.encode();
    let (mut bad_macs, mut errors) = (0, 0);
    for step in 0..100_000i64 {
        let time = at(60_000_000 + step * 100);
        process(&mut router, &flood.0, flood.1, time);
        // Four packets a second of another interface.
        if step % 2_500 == 0 {
            bad_macs += 1;
            let (action, _) = process(&mut router, &quiet, Ingress::External(CHILD_1), time);
            errors += u64::from(action == Action::Answer(Reason::BadMac));
        }
    }
    assert_eq!((bad_macs, errors), (40, 40));
    // What the flood's own part and the shared half allow in ten seconds.
    assert!(router.counters().answered - errors <= 6 + 10 * 55);
    // All places together get no more than the rate, and one each beyond the burst.
    let mut router = limited();
    let mut together = 0;
    for step in 0..20_000 {
        for place in places() {
            let mut octets = place.packet(|_| ()).encode();
            let at_hop = hop_at(&octets, place.current);
            octets[at_hop + 6] ^= 1;
            let (action, _) = process(&mut router, &octets, place.ingress, at(60_000_000 + step * 100));
            together += u64::from(matches!(action, Action::Answer(_)));
        }
    }
    assert!(together <= 200 + 10 + 11, "{together}");
}

/// An answer is work; what makes none costs no answer of others, and what makes work costs one.
#[test]
fn packets_that_get_no_answer_use_up_no_more_than_their_place_has() {
    let mut router = limited();
    let place = &places()[0];
    // SCMP errors with a wrong MAC: each is looked at within the limit of its own interface.
    let mut error = place.packet(|packet| (packet.header.next_header, packet.payload[0]) = (next_header::SCMP, 4));
    path(&mut error).hops[1].mac[0] ^= 1;
    let error = error.encode();
    for step in 0..1_000 {
        process(&mut router, &error, place.ingress, at(60_000_000 + step));
    }
    assert_eq!((router.counters().answered, router.counters().unanswered), (0, 1_000));
    let mut other = transit(CHILD_1, PARENT_1, false, Ingress::External(CHILD_1));
    path(&mut other).hops[1].mac[0] ^= 1;
    let (action, _) = process(&mut router, &other.encode(), Ingress::External(CHILD_1), at(60_001_000));
    assert_eq!(action, Action::Answer(Reason::BadMac));
}

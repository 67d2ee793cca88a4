//! What no packet may hold, and where no waypoint sends one.
//!
//! PLA-09, twice: the pointer moved, the capability and its binding copied, a like one appended in the network: no
//! place but its own.
//! PLA-10: pointers and lengths that lie, loops, too many capabilities: refused.
//! PLA-11: final destinations and next waypoints that are martians or our own networks: refused.
//! PLA-11, sources: a list whose first waypoint is the sender's own, original sources in our own networks, those of customers by
//! a peer's waypoint and others of the provider's, a peer over a link that leaves its waypoint out: refused.

use std::net::IpAddr;

use wayleave_core::{Afi, Prefix};
use wayleave_packet::platypus::header::{Delegation, Malformed, Marks, Packet};
use wayleave_packet::platypus::mint::{self, Hop, Route};
use wayleave_packet::platypus::verify::{Arrival, IcmpError, Link, Policy, Reason, Verdict, Waypoint};

use super::world::{self, NOW};

/// PLA-10. The packet: IPv4 20, header 20 (list length at 21, pointer at 22), capabilities of 28 octets from 40 on.
#[test]
fn pointers_and_lengths_that_lie_are_refused() {
    let hops: Vec<Hop> = (1..=3).map(|n| world::hop(world::capability(Afi::Ipv4, n))).collect();
    let datagram = world::stamp(&world::inner(Afi::Ipv4, &[0xff; 1_100]), &world::route(&hops));
    let with = |at: usize, octet: u8| {
        let mut changed = datagram.clone();
        changed[at] = octet;
        Packet::decode(&changed).map(|packet| packet.current()).err()
    };
    for pointer in 0..=255u8 {
        let expected = match pointer {
            0 | 7 | 14 | 21 => None,
            1..=20 => Some(Malformed::PointerMisaligned),
            _ => Some(Malformed::PointerBeyond),
        };
        assert_eq!(with(22, pointer), expected, "{pointer}");
    }
    for words in (0..=255u8).filter(|words| ![0, 7, 14, 21].contains(words)) {
        assert!(with(21, words).is_some(), "{words}");
    }
    for length in 0..datagram.len() {
        assert!(Packet::decode(&datagram[..length]).is_err(), "{length}");
    }
    for (at, octet, expected) in [
        (0, 0x46, Malformed::Options),
        (6, 0x20, Malformed::Fragment),
        (7, 0x01, Malformed::Fragment),
        (20, 0x00, Malformed::Version(0)),
        (20, 0x11, Malformed::Flags(1)),
        (20, 0x12, Malformed::Family),
        (47, 3, Malformed::Interval(3)),
        (47, 25, Malformed::Interval(25)),
        (47, 0x4c, Malformed::SubDelegationAlone),
        (48, 0x40, Malformed::ReplyUndelegated),
    ] {
        let mut changed = datagram.clone();
        changed[at] = octet;
        world::write_checksum(&mut changed);
        assert_eq!(Packet::decode(&changed).err(), Some(expected), "{at}: {octet:#x}");
    }
    assert_eq!(with(10, datagram[10] ^ 1), Some(Malformed::Checksum));
    assert_eq!(with(9, 6), Some(Malformed::Checksum));
}

/// PLA-10: a pointer into the bytes of a delegation that look like a capability.
#[test]
fn a_pointer_into_delegation_bytes_is_misaligned() {
    let mut capability = world::capability(Afi::Ipv4, 1);
    let prefix = Prefix::truncated(world::destination_address(Afi::Ipv4), 24).expect("a length");
    capability.delegation = Some(Delegation { prefix, id: world::delegation_id(1), sub: None });
    let hops = [world::hop(capability)];
    let mut datagram = world::stamp(&world::inner(Afi::Ipv4, b"payload"), &world::route(&hops));
    for pointer in 1..9 {
        datagram[22] = pointer;
        assert_eq!(Packet::decode(&datagram).err(), Some(Malformed::PointerMisaligned));
    }
}

/// PLA-10: a capability for replies to a network: whoever it was granted to would stamp for others than the client.
#[test]
fn a_capability_for_replies_to_more_than_one_host_is_malformed() {
    for (afi, at) in [(Afi::Ipv4, 48), (Afi::Ipv6, 104)] {
        for length in [0, 24, afi.bits() - 1, afi.bits()] {
            let mut capability = world::capability(afi, 1);
            let prefix = Prefix::truncated(world::destination_address(afi), length).expect("a length");
            capability.delegation = Some(Delegation { prefix, id: world::delegation_id(1), sub: None });
            let mut datagram = world::stamp(&world::inner(afi, b"payload"), &world::route(&[world::hop(capability)]));
            assert_eq!(Packet::decode(&datagram).err(), None);
            // The mark lies in the first octet of the epoch.
            assert_eq!(datagram[at] & 0x40, 0, "{afi:?}");
            datagram[at] |= 0x40;
            if afi == Afi::Ipv4 {
                world::write_checksum(&mut datagram);
            }
            let expected = (length < afi.bits()).then_some(Malformed::ReplyPrefix(length));
            assert_eq!(Packet::decode(&datagram).err(), expected, "{afi:?} {length}");
            capability.marks = Marks::REPLY;
            assert_eq!(capability.is_consistent(), length == afi.bits());
        }
    }
}

/// PLA-10: loops, and one capability too many.
#[test]
fn a_waypoint_may_occur_twice_and_a_packet_has_at_most_eight() {
    let hops =
        |numbers: &[u8]| -> Vec<Hop> { numbers.iter().map(|n| world::hop(world::capability(Afi::Ipv4, *n))).collect() };
    let stamp =
        |hops: &[Hop]| mint::encapsulate(&world::inner(Afi::Ipv4, b"payload"), &world::route(hops), &mut Vec::new());
    assert_eq!(stamp(&hops(&[1, 2, 1, 2, 3, 4, 5, 6])), Ok(()));
    assert_eq!(stamp(&hops(&[1, 2, 1, 2, 1])), Err(mint::MintError::Outcome(Malformed::WaypointLoop)));
    assert_eq!(stamp(&hops(&[1, 2, 3, 4, 5, 6, 7, 8, 9])), Err(mint::MintError::Count(9)));
    assert_eq!(stamp(&[]), Err(mint::MintError::Count(0)));
    // Nine capabilities on the wire: those of eight, and one more spliced in.
    let eight = world::stamp(&world::inner(Afi::Ipv4, b"payload"), &world::route(&hops(&[1, 2, 3, 4, 5, 6, 7, 8])));
    let mut nine = eight.clone();
    nine.splice(40..40, eight[40..68].to_vec());
    nine[21] += 7;
    let length = (nine.len() as u16).to_be_bytes();
    nine[2..4].copy_from_slice(&length);
    world::write_checksum(&mut nine);
    assert_eq!(Packet::decode(&nine).err(), Some(Malformed::TooManyCapabilities));
}

/// A path over one waypoint, another, and the first again with the same capability: each binding serves its own place, for the
/// list as stamped and for one that whoever is on the way has extended.
#[test]
fn a_binding_serves_the_first_or_the_second_place_of_its_capability_and_not_both() {
    for sealed in [false, true] {
        let hops: Vec<Hop> = [1, 2, 1].iter().map(|n| world::hop(world::capability(Afi::Ipv4, *n))).collect();
        let route = mint::Route { sealed, ..world::route(&hops) };
        let mut datagram = world::stamp(&world::inner(Afi::Ipv4, b"payload"), &route);
        for hop in &hops {
            datagram = world::process(&world::waypoint(hop.capability.waypoint), &datagram, NOW).expect("it passes");
        }
    }
    // One visit was stamped. A copy of the capability and its binding, in front or behind, makes no second one.
    let hop = world::hop(world::capability(Afi::Ipv4, 1));
    let here = world::waypoint(hop.capability.waypoint);
    let once = world::stamp(&world::inner(Afi::Ipv4, b"payload"), &world::route(&[hop]));
    let copy = once[40..68].to_vec();
    let mut twice = once.clone();
    twice.splice(68..68, copy);
    twice[21] += 7;
    let length = (twice.len() as u16).to_be_bytes();
    twice[2..4].copy_from_slice(&length);
    world::write_checksum(&mut twice);
    let second = world::process(&here, &twice, NOW).expect("the first place is as it was stamped");
    assert_eq!(second[22], 7);
    let mut second_by_itself = twice.clone();
    second_by_itself[22] = 7;
    // At the second place the outer source is the waypoint before: this one.
    let source: [u8; 4] = twice[16..20].try_into().expect("four octets");
    second_by_itself[12..16].copy_from_slice(&source);
    world::write_checksum(&mut second_by_itself);
    let verdict = here.verify(&world::decode(&second_by_itself), Arrival::Ip, world::at(NOW));
    assert!(matches!(verdict, Verdict::Answer(_, Reason::Binding)), "{verdict:?}");
}

/// A stamper in the network puts the capability in front that the host stamped with as well.
#[test]
fn a_capability_that_is_added_in_front_of_its_like_leaves_both_bindings_right() {
    for position in [mint::Position::Next, mint::Position::Last] {
        let hop = world::hop(world::capability(Afi::Ipv4, 1));
        let mut datagram =
            world::stamp(&world::inner(Afi::Ipv4, b"payload"), &world::route(std::slice::from_ref(&hop)));
        mint::append(&mut datagram, &hop, position).expect("not sealed");
        let here = world::waypoint(hop.capability.waypoint);
        datagram = world::process(&here, &datagram, NOW).expect("the first visit");
        world::process(&here, &datagram, NOW).expect("the second visit");
    }
}

/// PLA-11: where a waypoint sends nothing to.
#[test]
fn martians_and_networks_of_our_own_are_not_reached_through_a_waypoint() {
    let refused: Vec<Prefix> =
        ["198.51.100.0/24", "2001:db8:1::/48"].iter().map(|text| text.parse().expect("a prefix")).collect();
    let verdict = |hops: &[Hop], to: IpAddr| {
        let afi = if to.is_ipv4() { Afi::Ipv4 } else { Afi::Ipv6 };
        let first = hops[0].capability.waypoint;
        let waypoints = vec![world::waypoint_address(afi, 2)];
        let policy = Policy { refused: refused.clone(), waypoints, ..Policy::default() };
        let here = Waypoint::new(first, world::keys_of(first), policy);
        let inner = world::inner_to(world::source_address(afi), to, b"payload");
        let datagram = world::stamp(&inner, &world::route(hops));
        here.verify(&world::decode(&datagram), Arrival::Ip, world::at(NOW))
    };
    let hop = |afi, n| world::hop(world::capability(afi, n));
    for text in ["127.0.0.1", "0.1.2.3", "224.0.0.5", "255.255.255.255", "169.254.1.1", "240.0.0.1"] {
        let to: IpAddr = text.parse().expect("an address");
        assert_eq!(verdict(&[hop(Afi::Ipv4, 1)], to), Verdict::Drop(Reason::MartianDestination), "{text}");
    }
    for text in ["::1", "::", "fe80::1", "ff02::1", "::ffff:10.0.0.1", "2002:7f00:1::1", "64:ff9b::7f00:1"] {
        let to: IpAddr = text.parse().expect("an address");
        assert_eq!(verdict(&[hop(Afi::Ipv6, 1)], to), Verdict::Drop(Reason::MartianDestination), "{text}");
    }
    let own = Verdict::Answer(IcmpError::Prohibited, Reason::OwnNetwork);
    assert_eq!(verdict(&[hop(Afi::Ipv4, 1)], world::waypoint_address(Afi::Ipv4, 2)), own);
    assert_eq!(verdict(&[hop(Afi::Ipv6, 1)], world::waypoint_address(Afi::Ipv6, 2)), own);
    // Addresses of IPv6 that stand for those of IPv4 which are ours, and for others.
    for text in ["64:ff9b::198.51.100.9", "2002:c633:6409::1"] {
        let to: IpAddr = text.parse().expect("an address");
        assert_eq!(verdict(&[hop(Afi::Ipv6, 1)], to), own, "{text}");
    }
    for text in ["64:ff9b::192.0.2.1", "2002:c000:201::1", "64:ff9b:1::198.51.100.9"] {
        let to: IpAddr = text.parse().expect("an address");
        assert!(matches!(verdict(&[hop(Afi::Ipv6, 1)], to), Verdict::Forward(_)), "{text}");
    }
    // Next waypoints: one of ours that is named, one that is not.
    let destination = world::destination_address(Afi::Ipv4);
    assert!(matches!(verdict(&[hop(Afi::Ipv4, 1), hop(Afi::Ipv4, 2)], destination), Verdict::Forward(_)));
    assert_eq!(verdict(&[hop(Afi::Ipv4, 1), hop(Afi::Ipv4, 3)], destination), own);
}

#[test]
fn a_packet_from_elsewhere_than_it_says_is_refused() {
    let hops: Vec<Hop> = (1..=2).map(|n| world::hop(world::capability(Afi::Ipv4, n))).collect();
    let datagram = world::stamp(&world::inner(Afi::Ipv4, b"payload"), &world::route(&hops));
    let first = world::waypoint(hops[0].capability.waypoint);
    let second = world::waypoint(hops[1].capability.waypoint);
    let mut elsewhere = datagram.clone();
    elsewhere[15] ^= 1;
    world::write_checksum(&mut elsewhere);
    assert_eq!(world::process(&first, &elsewhere, NOW), Err(Verdict::Drop(Reason::Source)));
    // Straight to the second waypoint, with the pointer moved: the first waypoint is missed.
    let mut skipping = datagram;
    skipping[22] = 7;
    skipping[19] = 2;
    world::write_checksum(&mut skipping);
    assert_eq!(world::process(&second, &skipping, NOW), Err(Verdict::Drop(Reason::Source)));
    assert_eq!(world::process(&first, &skipping, NOW), Err(Verdict::Drop(Reason::NotForUs)));
}

/// The list of a holder of any capability: [its own address, with a binding that nobody checks][the real waypoint, with a right
/// binding over `source`], with the pointer at the second one, sent from its own address.
fn laundered(afi: Afi, source: IpAddr, sealed: bool) -> Vec<u8> {
    let hops: Vec<Hop> = (8..=9).map(|n| world::hop(world::capability(afi, n))).collect();
    let inner = world::inner_to(source, world::destination_address(afi), b"payload");
    let mut datagram = world::stamp(&inner, &Route { sealed, ..world::route(&hops) });
    let size = if afi == Afi::Ipv4 { 4 } else { 16 };
    let (ip, outer) = if afi == Afi::Ipv4 { (20, 12) } else { (40, 8) };
    let list = ip + 4 + 2 * size + 8;
    let first = size + 8;
    // A junk binding, the pointer behind it, and the outer addresses.
    datagram[list + first..list + first + 16].fill(0x5a);
    datagram[ip + 2] = ((first + 16) / 4) as u8;
    let second = list + first + 16;
    datagram.copy_within(list..list + size, outer);
    datagram.copy_within(second..second + size, outer + size);
    if afi == Afi::Ipv4 {
        world::write_checksum(&mut datagram);
    }
    datagram
}

/// A waypoint that nobody named vouches for no source: whoever holds a capability writes such a list.
#[test]
fn no_holder_of_a_capability_chooses_the_original_source_of_its_packets() {
    for (afi, sealed) in [(Afi::Ipv4, false), (Afi::Ipv4, true), (Afi::Ipv6, false), (Afi::Ipv6, true)] {
        let datagram = laundered(afi, world::source_address(afi), sealed);
        let [before, address] = [8, 9].map(|n| world::waypoint_address(afi, n));
        let verdict = |peers: Vec<Prefix>| {
            let policy = Policy { peers, ..Policy::default() };
            world::process(&Waypoint::new(address, world::keys_of(address), policy), &datagram, NOW)
        };
        let host = |address: IpAddr| Prefix::truncated(address, afi.bits()).expect("a host");
        let refused = Err(Verdict::Drop(Reason::ForeignWaypoint));
        assert_eq!(verdict(Vec::new()), refused);
        assert_eq!(verdict(vec![host(address), host(world::waypoint_address(afi, 7))]), refused);
        // A waypoint that a peer runs has checked the original source: its own binding is not for this one to check.
        assert!(verdict(vec![host(before)]).is_ok());
    }
}

/// A waypoint of the provider's that its operator forgot to name, from which customers' packets come too, and none that is made up.
#[test]
fn a_refused_packet_would_pass_if_its_waypoint_was_named_and_its_binding_is_right() {
    for afi in [Afi::Ipv4, Afi::Ipv6] {
        let datagram = laundered(afi, world::source_address(afi), false);
        let address = world::waypoint_address(afi, 9);
        let customers = vec![Prefix::truncated(world::source_address(afi), afi.bits()).expect("a host")];
        let refused = vec![Prefix::truncated(world::destination_address(afi), afi.bits()).expect("a host")];
        let would_pass = |policy: Policy, datagram: &[u8], now: u64| {
            let here = Waypoint::new(address, world::keys_of(address), policy);
            assert_eq!(world::process(&here, datagram, now), Err(Verdict::Drop(Reason::ForeignWaypoint)));
            here.would_pass(&world::decode(datagram), world::at(now))
        };
        assert!(would_pass(Policy { customers, ..Policy::default() }, &datagram, NOW));
        assert!(!would_pass(Policy { refused, ..Policy::default() }, &datagram, NOW));
        assert!(!would_pass(Policy::default(), &datagram, NOW + 6));
        let mut forged = datagram;
        *forged.last_mut().expect("octets") ^= 1;
        assert!(!would_pass(Policy::default(), &forged, NOW));
    }
}

/// The other end of a link writes the outer source, so that what a peer's waypoint or this one's own is by IP it is over a link
/// only if the link names it.
#[test]
fn the_other_end_of_a_link_is_a_waypoint_only_as_the_link_names_it() {
    for (afi, sealed) in [(Afi::Ipv4, false), (Afi::Ipv4, true), (Afi::Ipv6, false), (Afi::Ipv6, true)] {
        let datagram = laundered(afi, world::source_address(afi), sealed);
        let [before, address] = [8, 9].map(|n| world::waypoint_address(afi, n));
        let host = |address: IpAddr| Prefix::truncated(address, afi.bits()).expect("a host");
        let verdict = |policy: Policy, arrival| {
            let here = Waypoint::new(address, world::keys_of(address), policy);
            world::process_from(&here, &datagram, arrival, NOW)
        };
        let by_ip = || Policy { own: vec![host(before)], peers: vec![host(before)], ..Policy::default() };
        let refused = Err(Verdict::Drop(Reason::ForeignWaypoint));
        assert!(verdict(by_ip(), Arrival::Ip).is_ok());
        assert_eq!(verdict(by_ip(), Arrival::Link(1)), refused);
        let link = || Link { peers: vec![host(before)], ..Link::default() };
        let named = || Policy { links: vec![Link::default(), link()], ..Policy::default() };
        assert!(verdict(named(), Arrival::Link(2)).is_ok());
        assert_eq!(verdict(named(), Arrival::Link(1)), refused);
        // Nor is what is behind a link there by IP.
        assert_eq!(verdict(named(), Arrival::Ip), refused);
        // A second visit does not come over a link.
        let hop = world::hop(world::capability(afi, 9));
        let twice =
            world::stamp(&world::inner(afi, b"payload"), &Route { sealed, ..world::route(&[hop.clone(), hop]) });
        let here = Waypoint::new(address, world::keys_of(address), by_ip());
        let second = world::process_from(&here, &twice, Arrival::Link(1), NOW).expect("the first visit");
        assert!(world::process_from(&here, &second, Arrival::Ip, NOW).is_ok());
        assert_eq!(world::process_from(&here, &second, Arrival::Link(1), NOW), refused);
    }
}

/// A peer that leaves its own waypoint out of the list, with the outer source that the path would begin with, is no peer: over
/// its link paths begin from the sources that the link names, and from no others.
#[test]
fn over_a_link_of_a_peers_waypoint_a_path_begins_only_as_the_link_says() {
    for (afi, sealed) in [(Afi::Ipv4, false), (Afi::Ipv4, true), (Afi::Ipv6, false), (Afi::Ipv6, true)] {
        let hop = world::hop(world::capability(afi, 9));
        let address = hop.capability.waypoint;
        let datagram = world::stamp(&world::inner(afi, b"payload"), &Route { sealed, ..world::route(&[hop]) });
        let network = |address, short| Prefix::truncated(address, afi.bits() - short).expect("a length");
        let peers = || vec![network(world::waypoint_address(afi, 8), 0)];
        let (named, others) = (network(world::source_address(afi), 8), network(world::destination_address(afi), 8));
        let verdict = |link: Link, arrival| {
            let policy = Policy { links: vec![link], ..Policy::default() };
            world::process_from(&Waypoint::new(address, world::keys_of(address), policy), &datagram, arrival, NOW)
        };
        let refused = Err(Verdict::Drop(Reason::LinkSource));
        for own in [Vec::new(), peers()] {
            for (peers, sources, is_refused) in [
                (Vec::new(), None, false),
                (Vec::new(), Some(vec![others]), true),
                (Vec::new(), Some(vec![others, named]), false),
                (peers(), None, true),
                (peers(), Some(vec![others]), true),
                (peers(), Some(vec![others, named]), false),
            ] {
                let link = || Link { own: own.clone(), peers: peers.clone(), sources: sources.clone() };
                let found = verdict(link(), Arrival::Link(1));
                assert_eq!((found.is_err(), found == refused), (is_refused, is_refused), "{:?}: {found:?}", link());
                assert!(verdict(link(), Arrival::Ip).is_ok(), "{:?}", link());
                // Nobody says what is behind a link that the policy does not know.
                let judges = sources.is_some() || !peers.is_empty();
                assert_eq!(verdict(link(), Arrival::Link(2)).is_err(), judges, "{:?}", link());
            }
        }
    }
}

/// A customer's link that passes its stamped packets on, by IP, to another waypoint of the provider: that one believes an outer
/// source, and the customer wrote it.
#[test]
fn a_link_passes_on_no_packet_whose_outer_source_it_does_not_name() {
    for (afi, sealed) in [(Afi::Ipv4, false), (Afi::Ipv4, true), (Afi::Ipv6, false), (Afi::Ipv6, true)] {
        let host = |address: IpAddr| vec![Prefix::truncated(address, afi.bits()).expect("a host")];
        let (source, before) = (world::source_address(afi), world::waypoint_address(afi, 8));
        let hop = world::hop(world::capability(afi, 9));
        let begins = world::stamp(&world::inner(afi, b"payload"), &Route { sealed, ..world::route(&[hop]) });
        let behind = laundered(afi, source, sealed);
        let claimed = laundered(afi, before, sealed);
        let passes = |link: &Link, datagram: &[u8]| link.may_pass(&world::decode(datagram));
        let sources = |networks| Link { sources: Some(networks), ..Link::default() };
        for (link, [begins_may, behind_may, claimed_may]) in [
            (Link::default(), [true, false, false]),
            (sources(host(source)), [true, false, false]),
            (sources(host(before)), [false, false, false]),
            (Link { own: host(before), ..Link::default() }, [true, true, true]),
            (Link { peers: host(before), ..Link::default() }, [false, true, true]),
            (Link { peers: host(before), ..sources(host(source)) }, [true, true, true]),
        ] {
            assert_eq!(passes(&link, &begins), begins_may, "{link:?}");
            assert_eq!(passes(&link, &behind), behind_may, "{link:?}");
            assert_eq!(passes(&link, &claimed), claimed_may, "{link:?}");
        }
        // A path that begins, with the outer source of somebody else.
        let mut other = begins;
        let at = if afi == Afi::Ipv4 { 12 } else { 8 };
        other[at + 3] ^= 1;
        if afi == Afi::Ipv4 {
            world::write_checksum(&mut other);
        }
        assert!(!passes(&Link::default(), &other));
    }
}

/// A customer of one waypoint of the provider is unknown to another, which passes on what a peer sent: the list still shows that
/// it came by a peer's, since each waypoint of the provider has checked the one before.
#[test]
fn what_came_by_a_peers_waypoint_is_judged_anew_behind_those_of_the_provider() {
    for (afi, sealed) in [(Afi::Ipv4, false), (Afi::Ipv4, true), (Afi::Ipv6, false), (Afi::Ipv6, true)] {
        let hops: Vec<Hop> = (1..=4).map(|n| world::hop(world::capability(afi, n))).collect();
        let network = |address| Prefix::truncated(address, afi.bits()).expect("a host");
        let [first, ..] = [1, 2, 3, 4].map(|n| network(world::waypoint_address(afi, n)));
        let own = || (2..=4).map(|n| network(world::waypoint_address(afi, n))).collect::<Vec<_>>();
        let visit = |n: usize, datagram: &[u8], first_is_own: bool, customers: Vec<Prefix>| {
            let (mut own, mut peers) = (own(), vec![first]);
            if first_is_own {
                own.append(&mut peers);
            }
            let address = hops[n].capability.waypoint;
            let policy = Policy { own, peers, customers, ..Policy::default() };
            world::process(&Waypoint::new(address, world::keys_of(address), policy), datagram, NOW)
        };
        let stamped = world::stamp(&world::inner(afi, b"payload"), &Route { sealed, ..world::route(&hops) });
        let customer = || vec![network(world::source_address(afi))];
        let mut datagram = visit(0, &stamped, false, Vec::new()).expect("the peer's own");
        for n in 1..4 {
            assert_eq!(visit(n, &datagram, false, customer()), Err(Verdict::Drop(Reason::OwnSource)), "{n}");
            // Behind the provider's own alone, customers are sources like others.
            assert!(visit(n, &datagram, true, customer()).is_ok());
            datagram = visit(n, &datagram, false, Vec::new()).expect("who does not know the customer lets it pass");
        }
    }
}

/// A path may visit a waypoint twice in a row: what comes from there is its own.
#[test]
fn a_waypoint_is_a_peer_of_itself() {
    let hop = world::hop(world::capability(Afi::Ipv4, 1));
    let here = Waypoint::new(hop.capability.waypoint, world::keys_of(hop.capability.waypoint), Policy::default());
    let datagram = world::stamp(&world::inner(Afi::Ipv4, b"payload"), &world::route(&[hop.clone(), hop]));
    let second = world::process(&here, &datagram, NOW).expect("the first visit");
    world::process(&here, &second, NOW).expect("the second visit");
}

/// By themselves or by the provider's waypoints, and by no peer's; nor do customers' packets come by a peer's waypoint.
#[test]
fn networks_of_our_own_send_nothing_but_from_hosts_that_stamp_and_nothing_by_a_peer() {
    for afi in [Afi::Ipv4, Afi::Ipv6] {
        let source = world::source_address(afi);
        let network = |length| Prefix::truncated(source, length).expect("within the family's bits");
        let hops: Vec<Hop> = (1..=2).map(|n| world::hop(world::capability(afi, n))).collect();
        let datagram = world::stamp(&world::inner(afi, b"payload"), &world::route(&hops));
        let second = world::process(&world::waypoint(hops[0].capability.waypoint), &datagram, NOW).expect("it passes");
        for (hop, datagram) in hops.iter().zip([datagram, second]) {
            let is_first = hop.capability.waypoint == hops[0].capability.waypoint;
            let verdict = |policy: Policy| {
                let address = hop.capability.waypoint;
                world::process(&Waypoint::new(address, world::keys_of(address), policy), &datagram, NOW)
            };
            let behind = |is_own: bool| match is_own {
                true => Policy { own: world::peers(), ..Policy::default() },
                false => Policy { peers: world::peers(), ..Policy::default() },
            };
            let refused = Err(Verdict::Drop(Reason::OwnSource));
            for is_own in [false, true] {
                let own = || Policy { refused: vec![network(afi.bits() - 8)], ..behind(is_own) };
                assert_eq!(verdict(own()), refused);
                let stamps = verdict(Policy { sources: vec![network(afi.bits())], ..own() });
                assert_eq!(stamps.is_ok(), is_first || is_own, "{stamps:?}");
                let customer = verdict(Policy { customers: vec![network(afi.bits() - 8)], ..behind(is_own) });
                assert_eq!(customer.is_ok(), is_first || is_own, "{customer:?}");
                for verdict in [stamps, customer] {
                    assert!(verdict.is_ok() || verdict == refused);
                }
            }
        }
    }
}

#[test]
fn bindings_of_64_bits_pass_where_the_policy_says_so() {
    let mut capability = world::capability(Afi::Ipv4, 1);
    capability.width = wayleave_packet::platypus::header::Width::Narrow;
    let datagram = world::stamp(&world::inner(Afi::Ipv4, &[0; 4]), &world::route(&[world::hop(capability)]));
    assert_eq!(datagram.len(), 64);
    let strict = Waypoint::new(capability.waypoint, world::keys_of(capability.waypoint), Policy::default());
    let refused = Verdict::Answer(IcmpError::Prohibited, Reason::NarrowBinding);
    assert_eq!(world::process(&strict, &datagram, NOW), Err(refused));
    assert!(world::process(&world::waypoint(capability.waypoint), &datagram, NOW).is_ok());
}

/// What is wrong beside the source is not told to it: that would be a packet to an address that the sender chose.
#[test]
fn a_source_that_is_refused_is_never_answered() {
    for afi in [Afi::Ipv4, Afi::Ipv6] {
        let mut capability = world::capability(afi, 1);
        capability.width = wayleave_packet::platypus::header::Width::Narrow;
        let datagram = world::stamp(&world::inner(afi, b"payload"), &world::route(&[world::hop(capability)]));
        let network = Prefix::truncated(world::source_address(afi), afi.bits() - 8).expect("a length");
        let policy = Policy { refused: vec![network], ..Policy::default() };
        let here = Waypoint::new(capability.waypoint, world::keys_of(capability.waypoint), policy);
        assert_eq!(world::process(&here, &datagram, NOW), Err(Verdict::Drop(Reason::OwnSource)));
    }
}

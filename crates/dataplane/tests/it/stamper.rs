//! Platypus' stamper: its packets are those of the plain mint, by the rule that fits best; packets that it must not stamp are
//! left unchanged.
//!
//! PLA, stamper: random packets of both families in bursts, by destination, user and mark; name servers; path MTUs;
//! packets that are stamped already, sealed, passed or full; a clock that goes back: equal to the plain mint, or as it
//! came and counted.

use std::net::IpAddr;

use crate::common::{Random, times};
use wayleave_core::{Prefix, UnixTime};
use wayleave_crypto::lanes::{BURST, CpuKernel};
use wayleave_crypto::secret::Key128;
use wayleave_dataplane::stamper::{
    Config, ConfigError, LeaveReason, Location, Outcome, OutgoingPacket, Route, Rule, RuleAction, Rules, Stamper,
};
use wayleave_packet::platypus::header::{
    Capability, Carriage, Delegation, DelegationId, Interval, Marks, Packet, Principal, Width,
};
use wayleave_packet::platypus::mint::{self, Hop, Nonce, Position, StampKey, append, encapsulate, epoch};

const ROOM: usize = 700;
const V4: &str = "203.0.113.9";
const V6: &str = "2001:db8:3::9";

fn now() -> UnixTime {
    UnixTime(1_795_240_800_000_000)
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn prefix(text: &str, length: u8) -> Prefix {
    Prefix::truncated(address(text), length).unwrap()
}

/// A hop through waypoint `number`, of the family of `v4`.
fn hop(v4: bool, number: u8) -> Hop {
    let waypoint = address(&if v4 { format!("198.51.100.{number}") } else { format!("2001:db8:1::{number:x}") });
    let interval = Interval::new(12).unwrap();
    let capability = Capability {
        waypoint,
        principal: Principal::new(7_000).unwrap(),
        interval,
        epoch: epoch::epoch_at(interval, now()),
        marks: Marks::default(),
        delegation: None,
        width: if number.is_multiple_of(3) { Width::Narrow } else { Width::Full },
    };
    Hop { capability, key: StampKey::new(Key128::new([number; 16])) }
}

fn route(v4: bool, numbers: impl IntoIterator<Item = u8>) -> Route {
    let hops = numbers.into_iter().map(|number| hop(v4, number)).collect();
    Route { hops, sealed: false, carriage: Carriage::Ip, mtu: 1_500, only_from: None }
}

fn rule(to: Prefix, route: u16) -> Rule {
    Rule { to, user: None, mark: None, action: RuleAction::Take(route) }
}

fn config(location: Location, routes: Vec<Route>) -> Config {
    let everything = |(place, route): (usize, &Route)| {
        let to = if route.hops[0].capability.waypoint.is_ipv4() { "0.0.0.0" } else { "::" };
        Rule { mark: Some(place as u32), ..rule(prefix(to, 0), place as u16) }
    };
    let rules = routes.iter().enumerate().map(everything).collect();
    Config { location, routes, rules, share: (0, 1) }
}

fn stamper(config: Config) -> Stamper {
    Stamper::new(config, CpuKernel::PORTABLE).unwrap()
}

/// An IP packet of `protocol` with `payload`.
fn packet(to: &str, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = match address(to) {
        IpAddr::V4(to) => {
            let mut out = vec![0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 0x33, protocol, 0, 0, 192, 0, 2, 77];
            out[2..4].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
            out.extend(to.octets());
            let sum: u32 = out.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
            let sum = (sum & 0xffff) + (sum >> 16);
            out[10..12].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
            out
        }
        IpAddr::V6(to) => {
            let mut out = vec![0x60, 0, 0, 0, 0, 0, protocol, 0x33];
            out[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
            out.extend("2001:db8:2::77".parse::<std::net::Ipv6Addr>().unwrap().octets());
            out.extend(to.octets());
            out
        }
    };
    out.extend(payload);
    out
}

/// A payload from port 40,000 to `port`.
fn to_port(port: u16, octets: usize) -> Vec<u8> {
    let mut payload = vec![0x9c, 0x40];
    payload.extend(port.to_be_bytes());
    payload.resize(octets.max(4), 0x5a);
    payload
}

fn web(to: &str) -> Vec<u8> {
    packet(to, 6, &to_port(443, 100))
}

/// What the stamper makes of one packet.
fn stamp(
    stamper: &mut Stamper,
    octets: &[u8],
    user: Option<u32>,
    mark: u32,
) -> Result<Vec<u8>, (LeaveReason, Option<usize>)> {
    let mut buffer = [&[0; ROOM][..], octets].concat();
    let mut packets = [OutgoingPacket { buffer: &mut buffer, begin: ROOM, user, mark }];
    let mut outcomes = [Outcome::from(LeaveReason::Rule)];
    stamper.stamp(&mut packets, now(), &mut outcomes);
    match outcomes[0].clone() {
        Outcome::Stamped(place) => Ok(buffer[place].to_vec()),
        Outcome::Unchanged { reason: why, mtu } => {
            assert_eq!(buffer[ROOM..], *octets, "{why:?}");
            assert!(stamper.counters().unchanged(why) > 0);
            Err((why, mtu))
        }
        Outcome::Dropped(why) => panic!("dropped: {why:?}"),
    }
}

fn left(stamper: &mut Stamper, octets: &[u8]) -> LeaveReason {
    stamp(stamper, octets, None, 0).expect_err("it is left alone").0
}

/// Waypoints of a packet in order, from the current one on.
fn waypoints(octets: &[u8]) -> Vec<IpAddr> {
    let packet = Packet::decode(octets).unwrap();
    (packet.current().unwrap()..packet.count()).map(|index| packet.waypoint(index)).collect()
}

fn plain(octets: &[u8], route: &Route, counter: u32) -> Option<Vec<u8>> {
    let Route { hops, sealed, carriage, mtu, .. } = route;
    let nonce = Nonce::new(now(), counter);
    let route = mint::Route { hops, nonce, sealed: *sealed, reply_option: &[], carriage: *carriage };
    let mut out = Vec::new();
    encapsulate(octets, &route, &mut out).ok()?;
    (out.len() <= *mtu).then_some(out)
}

#[test]
fn a_burst_is_stamped_as_by_the_plain_mint() {
    let mut random = Random(4);
    for kernel in CpuKernel::available() {
        for _ in 0..times("WAYLEAVE_STAMPER_BURSTS", 60) {
            let routes: Vec<Route> = (0..6usize)
                .map(|place| Route {
                    sealed: random.one_in(4),
                    carriage: if random.one_in(4) { Carriage::Udp } else { Carriage::Ip },
                    mtu: 300 + random.below(1_200),
                    ..route(place.is_multiple_of(2), 1..=if random.one_in(2) { 1 } else { 1 + random.below(8) as u8 })
                })
                .collect();
            let mut stamper = Stamper::new(config(Location::Host, routes.clone()), kernel).unwrap();
            let inners: Vec<(usize, Vec<u8>)> = (0..random.below(BURST + 1))
                .map(|_| {
                    let place = random.below(6);
                    let mut octets =
                        packet(if place.is_multiple_of(2) { V4 } else { V6 }, 6, &to_port(443, 8 + random.below(900)));
                    if random.one_in(8) {
                        // A header that lies, or another TTL or identification.
                        octets[1 + random.below(9)] ^= 1 << random.below(8);
                    }
                    (place, octets)
                })
                .collect();
            let mut buffers: Vec<Vec<u8>> = inners.iter().map(|(_, inner)| [&[0; ROOM][..], inner].concat()).collect();
            let mut packets: Vec<OutgoingPacket<'_>> = buffers
                .iter_mut()
                .zip(&inners)
                .map(|(buffer, (place, _))| OutgoingPacket { buffer, begin: ROOM, user: None, mark: *place as u32 })
                .collect();
            let mut outcomes = vec![Outcome::from(LeaveReason::Rule); packets.len()];
            stamper.stamp(&mut packets, now(), &mut outcomes);
            let mut counter = 0;
            for (((place, inner), buffer), outcome) in inners.iter().zip(&buffers).zip(&outcomes) {
                match outcome {
                    Outcome::Stamped(at) => {
                        assert_eq!(Some(&buffer[at.clone()]), plain(inner, &routes[*place], counter).as_deref());
                        counter += 1;
                    }
                    Outcome::Unchanged { reason: LeaveReason::Malformed | LeaveReason::TooLong, .. } => {
                        assert_eq!(buffer[ROOM..], inner[..]);
                        // The mint stamps what has no ports, or hides them, and so might be for a name server.
                        let (protocol, length) =
                            if inner[0] >> 4 == 4 { (inner[9], &inner[2..4]) } else { (inner[6], &inner[4..6]) };
                        let is_hidden = protocol != 6 || u16::from_be_bytes([length[0], length[1]]) < 24;
                        assert!(is_hidden || plain(inner, &routes[*place], 0).is_none(), "{outcome:?}");
                    }
                    outcome => panic!("{outcome:?}: {inner:02x?}"),
                }
            }
            assert_eq!(stamper.counters().stamped, u64::from(counter));
        }
    }
}

#[test]
fn the_longest_prefix_decides_after_mark_and_user_as_in_a_list_of_all() {
    let mut random = Random(9);
    let nets = ["203.0.113.9", "203.0.113.200", "203.0.112.1", "10.1.2.3", "2001:db8:3::9", "2001:db8:4::1"];
    for _ in 0..200 {
        let mut rules: Vec<Rule> = Vec::new();
        for place in 0..random.below(40) as u16 {
            let to = address(random.pick(&nets));
            let length = random.below(if to.is_ipv4() { 33 } else { 129 }) as u8;
            let one = Rule {
                to: Prefix::truncated(to, length).unwrap(),
                user: random.one_in(3).then(|| random.below(2) as u32),
                mark: random.one_in(3).then(|| random.below(2) as u32),
                action: if random.one_in(5) { RuleAction::Pass } else { RuleAction::Take(place) },
            };
            if rules.iter().all(|other| (other.to, other.user, other.mark) != (one.to, one.user, one.mark)) {
                rules.push(one);
            }
        }
        let table = Rules::new(&rules).unwrap();
        for to in nets {
            for (user, mark) in [(None, 0), (Some(0), 0), (Some(1), 1), (Some(7), 1), (None, 7)] {
                let host = Prefix::truncated(address(to), if address(to).is_ipv4() { 32 } else { 128 }).unwrap();
                let fits = |rule: &&Rule| {
                    rule.to.contains(&host)
                        && (rule.user.is_none() || rule.user == user)
                        && (rule.mark.is_none() || rule.mark == Some(mark))
                };
                let best = |rule: &&Rule| (rule.mark.is_some(), rule.user.is_some(), rule.to.len());
                let expected = rules.iter().filter(fits).max_by_key(best).map_or(RuleAction::Pass, |rule| rule.action);
                assert_eq!(table.find(address(to), user, mark), expected, "{to} {user:?} {mark}");
            }
        }
    }
}

#[test]
fn name_servers_are_asked_without_stamps_over_udp_and_tcp() {
    let mut stamper = stamper(config(Location::Host, vec![route(true, [1])]));
    for protocol in [6, 17] {
        let mut answer = to_port(40_000, 40);
        answer[..2].copy_from_slice(&53u16.to_be_bytes());
        assert_eq!(left(&mut stamper, &packet(V4, protocol, &to_port(53, 40))), LeaveReason::Dns);
        assert_eq!(left(&mut stamper, &packet(V4, protocol, &answer)), LeaveReason::Dns);
        assert!(stamp(&mut stamper, &packet(V4, protocol, &to_port(54, 40)), None, 0).is_ok());
    }
    // Of a protocol without ports nothing is taken for one.
    assert!(stamp(&mut stamper, &packet(V4, 1, &to_port(53, 40)), None, 0).is_ok());

    let mut stamper = self::stamper(config(Location::Network(Position::Last), vec![route(false, [1])]));
    // Behind extension headers, and within what another has stamped.
    let behind = [&[17, 0, 1, 4, 0, 0, 0, 0][..], &to_port(53, 40)].concat();
    assert_eq!(left(&mut stamper, &packet(V6, 60, &behind)), LeaveReason::Dns);
    let query = packet(V6, 17, &to_port(53, 40));
    assert_eq!(left(&mut stamper, &plain(&query, &route(false, [9]), 0).unwrap()), LeaveReason::Dns);
    assert_eq!(left(&mut stamper, &packet(V6, 44, &behind)), LeaveReason::Malformed);
    assert_eq!(left(&mut stamper, &packet(V6, 60, &[60; 9])), LeaveReason::Malformed);
}

#[test]
fn a_packet_grows_to_the_path_mtu_and_no_further() {
    for (to, v4, grows) in [(V4, true, 20 + 28), (V6, false, 44 + 40)] {
        for stamped_before in [false, true] {
            let grows = if stamped_before { grows - if v4 { 20 } else { 44 } } else { grows };
            let place = Location::Network(Position::Next);
            let mut stamper = stamper(config(place, vec![route(v4, [1])]));
            let before = web(to);
            let before = if stamped_before { plain(&before, &route(v4, [2]), 0).unwrap() } else { before };
            let all = before.len() + grows;
            for (mtu, fits) in [(all, true), (all - 1, false)] {
                let narrower = config(place, vec![Route { mtu, ..route(v4, [1]) }]);
                stamper.reload(narrower.routes, &narrower.rules).unwrap();
                match stamp(&mut stamper, &before, None, 0) {
                    Ok(after) => assert!(fits && after.len() == mtu),
                    Err(why) => assert!(!fits && why == (LeaveReason::TooLong, Some(mtu - grows)), "{why:?}"),
                }
            }
        }
    }
}

#[test]
fn in_the_network_capabilities_are_added_in_the_order_of_the_route() {
    for (to, v4) in [(V4, true), (V6, false)] {
        let before = plain(&web(to), &route(v4, [1, 2]), 5).unwrap();
        for (position, order) in [(Position::Next, [7, 8, 1, 2]), (Position::Last, [1, 2, 7, 8])] {
            let mut stamper = stamper(config(Location::Network(position), vec![route(v4, [7, 8])]));
            let after = stamp(&mut stamper, &before, None, 0).unwrap();
            assert_eq!(waypoints(&after), order.map(|number| hop(v4, number).capability.waypoint));
            let mut expected = before.clone();
            let mut added = [hop(v4, 7), hop(v4, 8)];
            if position == Position::Next {
                added.reverse();
            }
            for hop in &added {
                append(&mut expected, hop, position).unwrap();
            }
            assert_eq!(after, expected);
            assert_eq!((stamper.counters().stamped, stamper.counters().appended), (0, 1));
            // What nobody has stamped gets them all the same.
            assert_eq!(stamp(&mut stamper, &web(to), None, 0).ok(), plain(&web(to), &route(v4, [7, 8]), 0));
        }
        let mut host = stamper(config(Location::Host, vec![route(v4, [7])]));
        assert_eq!(left(&mut host, &before), LeaveReason::Stamped);
    }
}

#[test]
fn no_packet_gets_more_than_eight_capabilities() {
    for (there, added) in [(7u8, 1u8), (1, 7), (8, 1), (5, 4), (4, 4)] {
        let mut stamper = stamper(config(Location::Network(Position::Next), vec![route(true, 50..50 + added)]));
        let before = plain(&web(V4), &route(true, 1..=there), 0).unwrap();
        match stamp(&mut stamper, &before, None, 0) {
            Ok(after) => assert_eq!(waypoints(&after).len(), usize::from(there + added)),
            Err((why, _)) => assert!(there + added > 8 && why == LeaveReason::TooMany),
        }
    }
    assert!(matches!(
        Stamper::new(config(Location::Host, vec![route(true, 1..=9)]), CpuKernel::PORTABLE),
        Err(ConfigError::Route(0))
    ));
}

/// A capability for replies makes no right binding for a source that it was not made for, so that a host with two addresses would
/// lose what it sends from the other one.
#[test]
fn a_route_for_one_source_leaves_packets_of_others_as_they_are() {
    for only_from in ["192.0.2.7", "192.0.2.8"] {
        let address: IpAddr = only_from.parse().unwrap();
        let here = Route { only_from: Some(address), ..route(true, [1]) };
        let mut stamper = stamper(config(Location::Host, vec![here]));
        for source in [[192, 0, 2, 7], [192, 0, 2, 8]] {
            let mut packet = web(V4);
            packet[12..16].copy_from_slice(&source);
            let is_stamped = stamp(&mut stamper, &packet, None, 0).is_ok();
            assert_eq!(is_stamped, IpAddr::from(source) == address);
        }
        assert_eq!(stamper.counters().unchanged(LeaveReason::Source), 1);
    }
}

#[test]
fn what_cannot_be_stamped_goes_as_it_came() {
    let network = Location::Network(Position::Next);
    let mut stamper = stamper(config(network, vec![route(true, [1])]));
    let sealed = Route { sealed: true, ..route(true, [2]) };
    assert_eq!(left(&mut stamper, &plain(&web(V4), &sealed, 0).unwrap()), LeaveReason::Sealed);
    let mut passed = plain(&web(V4), &route(true, [2]), 0).unwrap();
    passed[22] = passed[21];
    assert_eq!(left(&mut stamper, &passed), LeaveReason::NothingLeft);
    let twice = plain(&web(V4), &route(true, [1, 1]), 0).unwrap();
    assert_eq!(left(&mut stamper, &twice), LeaveReason::TooMany);
    assert_eq!(left(&mut stamper, &web("224.0.0.251")), LeaveReason::Martian);
    assert_eq!(left(&mut stamper, &web("255.255.255.255")), LeaveReason::Martian);
    assert_eq!(left(&mut stamper, &web(V6)), LeaveReason::Rule);
    let mut fragment = web(V4);
    fragment[6] = 0x20;
    assert_eq!(left(&mut stamper, &fragment), LeaveReason::Malformed);
    for length in 0..40 {
        assert_eq!(left(&mut stamper, &web(V4)[..length]), LeaveReason::Malformed);
    }
    let mut late = route(true, [1]);
    late.hops[0].capability.epoch -= 2;
    let late = config(network, vec![late]);
    stamper.reload(late.routes, &late.rules).unwrap();
    assert_eq!(left(&mut stamper, &web(V4)), LeaveReason::Epoch);
}

#[test]
fn without_room_in_front_a_packet_is_left_alone() {
    let mut stamper = stamper(config(Location::Host, vec![route(true, [1]), route(true, [1, 2])]));
    for (mark, grows) in [(0, 48), (1, 76)] {
        for (headroom, fits) in [(grows, true), (grows - 1, false)] {
            let mut buffer = [&vec![0; headroom][..], &web(V4)].concat();
            let mut outcomes = [Outcome::from(LeaveReason::Rule)];
            let mut packets = [OutgoingPacket { buffer: &mut buffer, begin: headroom, user: None, mark }];
            stamper.stamp(&mut packets, now(), &mut outcomes);
            let whole = 0..grows + web(V4).len();
            let expected = if fits { Outcome::Stamped(whole) } else { Outcome::from(LeaveReason::NoHeadroom) };
            assert_eq!(outcomes[0], expected);
        }
    }
}

#[test]
fn no_two_stampers_use_one_nonce_even_if_the_clock_goes_back() {
    let mut seen = std::collections::HashSet::new();
    for own in 0..3 {
        let mut stamper = stamper(Config { share: (own, 3), ..config(Location::Host, vec![route(true, [1])]) });
        for second in [5, 5, 6, 5, 6, 6, 7, 4, 7] {
            let mut buffer = [&[0; ROOM][..], &web(V4)].concat();
            let mut packets = [OutgoingPacket { buffer: &mut buffer, begin: ROOM, user: None, mark: 0 }];
            let mut outcomes = [Outcome::from(LeaveReason::Rule)];
            stamper.stamp(&mut packets, UnixTime(now().0 + second * 1_000_000), &mut outcomes);
            let [Outcome::Stamped(place)] = outcomes else { panic!("{outcomes:?}") };
            let nonce = Packet::decode(&buffer[place]).unwrap().nonce();
            assert!(seen.insert(nonce), "{nonce:02x?}");
        }
    }
    assert!(matches!(
        Stamper::new(Config { share: (3, 3), ..config(Location::Host, vec![]) }, CpuKernel::PORTABLE),
        Err(ConfigError::Share(3, 3))
    ));
}

#[test]
fn rules_that_no_waypoint_would_honour_are_refused() {
    let delegated = |length| {
        let mut route = route(true, [1]);
        let id = DelegationId::new(1).unwrap();
        route.hops[0].capability.delegation = Some(Delegation { prefix: prefix(V4, length), id, sub: None });
        route
    };
    let refused = |routes: Vec<Route>, rules: Vec<Rule>| {
        Stamper::new(Config { location: Location::Host, routes, rules, share: (0, 1) }, CpuKernel::PORTABLE).err()
    };
    let (net, host) = (rule(prefix(V4, 24), 0), rule(prefix(V4, 32), 0));
    assert_eq!(refused(vec![delegated(24)], vec![net, host]), None);
    assert_eq!(refused(vec![delegated(25)], vec![host, net]), Some(ConfigError::Delegation(1)));
    assert_eq!(refused(vec![route(true, [1])], vec![net, net]), Some(ConfigError::Twice(1)));
    assert_eq!(refused(vec![route(false, [1])], vec![net]), Some(ConfigError::NoRoute(0)));
    assert_eq!(refused(vec![], vec![net]), Some(ConfigError::NoRoute(0)));
    assert_eq!(refused(vec![route(true, [])], vec![]), Some(ConfigError::Route(0)));
    assert_eq!(refused(vec![route(true, [1, 1, 1])], vec![]), Some(ConfigError::Route(0)));
    let socket = Route { carriage: Carriage::Socket, ..route(true, [1]) };
    assert_eq!(refused(vec![socket], vec![]), Some(ConfigError::Carriage(0)));
}

/// A rule for both families whose route is of one.
#[test]
fn a_rule_that_requires_a_route_of_the_other_family_drops_all_but_name_servers_packets() {
    let mut config = config(Location::Host, vec![route(false, [1])]);
    let rule = |to: &str, action| Rule { action, ..rule(prefix(to, 0), 0) };
    config.rules = vec![rule("::", RuleAction::Require(0)), rule("0.0.0.0", RuleAction::Drop)];
    let mut stamper = stamper(config);
    let mut outcome = |octets: &[u8]| {
        let mut buffer = [&[0; ROOM][..], octets].concat();
        let mut outcomes = [Outcome::from(LeaveReason::Rule)];
        let mut packets = [OutgoingPacket { buffer: &mut buffer, begin: ROOM, user: None, mark: 0 }];
        stamper.stamp(&mut packets, now(), &mut outcomes);
        outcomes[0].clone()
    };
    assert!(matches!(outcome(&web(V6)), Outcome::Stamped(_)));
    assert_eq!(outcome(&web(V4)), Outcome::Dropped(LeaveReason::Family));
    assert_eq!(outcome(&packet(V4, 17, &to_port(53, 40))), Outcome::from(LeaveReason::Dns));
    assert_eq!(stamper.counters().dropped(LeaveReason::Family), 1);
    assert_eq!(RuleAction::Drop.route(), None);
}

/// The rule of a host whose packets have no other way. What is in pieces or has options has a rule too, by its destination.
#[test]
fn what_a_rule_requires_to_be_stamped_is_dropped_otherwise_but_for_name_servers() {
    let required = |route: Route| {
        let rules = vec![
            Rule { action: RuleAction::Require(0), ..rule(prefix("203.0.113.0", 24), 0) },
            Rule { action: RuleAction::Pass, ..rule(prefix("203.0.113.200", 32), 0) },
        ];
        stamper(Config { rules, ..config(Location::Host, vec![route]) })
    };
    let at = |stamper: &mut Stamper, octets: &[u8], now: UnixTime| {
        let mut buffer = [&[0; ROOM][..], octets].concat();
        let mut outcomes = [Outcome::from(LeaveReason::Rule)];
        let mut packets = [OutgoingPacket { buffer: &mut buffer, begin: ROOM, user: None, mark: 0 }];
        stamper.stamp(&mut packets, now, &mut outcomes);
        outcomes[0].clone()
    };
    let ended = UnixTime(now().0 + 100 * 86_400 * 1_000_000);
    for route in [route(true, [1]), route(true, [1, 2])] {
        let mut stamper = required(route.clone());
        assert!(matches!(at(&mut stamper, &web(V4), now()), Outcome::Stamped(_)));
        assert_eq!(at(&mut stamper, &web(V4), ended), Outcome::Dropped(LeaveReason::Epoch));
        let mut pieces = web(V4);
        pieces[6] = 0x20;
        let mut options = web(V4);
        options[0] = 0x46;
        for unreadable in [pieces, options] {
            assert_eq!(at(&mut stamper, &unreadable, now()), Outcome::Dropped(LeaveReason::Malformed));
        }
        assert_eq!(
            at(&mut stamper, &packet(V4, 17, &to_port(54, 1_500)), now()),
            Outcome::Dropped(LeaveReason::TooLong)
        );
        assert_eq!(at(&mut stamper, &packet(V4, 17, &to_port(53, 40)), ended), Outcome::from(LeaveReason::Dns));
        // Rules that say nothing of the sort.
        assert_eq!(at(&mut stamper, &web("203.0.113.200"), ended), Outcome::from(LeaveReason::Rule));
        assert_eq!(at(&mut stamper, &web("192.0.2.1"), ended), Outcome::from(LeaveReason::Rule));
        let stamped = plain(&web(V4), &route, 0).unwrap();
        // Nobody has checked what any process can write, whatever it says of its destination and of what is inside.
        assert_eq!(at(&mut stamper, &stamped, ended), Outcome::Dropped(LeaveReason::Stamped));
        let others = plain(&web("192.0.2.1"), &route, 0).unwrap();
        assert_eq!(at(&mut stamper, &others, ended), Outcome::from(LeaveReason::Stamped));
        let names = plain(&packet(V4, 17, &to_port(53, 40)), &route, 0).unwrap();
        assert_eq!(at(&mut stamper, &names, ended), Outcome::Dropped(LeaveReason::Dns));
        let counters = stamper.counters();
        let dropped = |reason| (counters.dropped(reason), counters.unchanged(reason));
        assert_eq!(dropped(LeaveReason::Epoch), (1, 0));
        assert_eq!(dropped(LeaveReason::Malformed), (2, 0));
        assert_eq!(dropped(LeaveReason::TooLong), (1, 0));
        assert_eq!(dropped(LeaveReason::Rule), (0, 2));
    }
}

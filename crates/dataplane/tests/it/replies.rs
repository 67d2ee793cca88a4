//! Stampers of a client and of a server: what the client grants is used for the client alone, and only what was asked for is
//! answered.
//!
//! PLA, replies: a stranger that names any host as its waypoint, a special-purpose address, key epochs of half a year;
//! a network of clients, and a table full of them: refused and counted; nobody is kept out, and what leaves is of the
//! largest network. Offers forged by who does not see the hellos, messages that are lost, repeated and late, a server that is started
//! anew: the client's own server has the capability in the end, and nobody is asked more often than with ever longer pauses.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use wayleave_core::{Instant, Now, Prefix, UnixTime};
use wayleave_crypto::lanes::CpuKernel;
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_dataplane::stamper::replies::{
    Answer, LONGEST_GRANT, MAX_CLIENTS, MAX_OF_NETWORK, ReplyGrants, ReplyRequests,
};
use wayleave_dataplane::stamper::{
    Config, LeaveReason, Location, Outcome, OutgoingPacket, Route, Rule, RuleAction, Stamper,
};
use wayleave_packet::platypus::header::{
    Capability, Carriage, DelegationId, Interval, Marks, Packet, Principal, Width,
};
use wayleave_packet::platypus::mint::reply::Granted;
use wayleave_packet::platypus::mint::{Hop, WaypointKey, WaypointKeys, epoch};
use wayleave_packet::platypus::verify::{Arrival, Policy, Verdict, Waypoint, verify};

const NOW: u64 = 1_795_240_800;
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
const SERVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
const WAYPOINT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

fn at(secs: u64) -> Now {
    Now { instant: Instant(secs * 1_000_000_000), unix: UnixTime((NOW + secs) * 1_000_000) }
}

fn key() -> WaypointKey {
    WaypointKey::new(&Key128::new([7; 16]))
}

/// A capability for `client` alone, of the key epoch at `now`.
fn granted(client: Ipv4Addr, now: UnixTime) -> Granted {
    granted_for(WAYPOINT, 12, client, now)
}

/// One for another waypoint, of a key epoch of another length.
fn granted_for(waypoint: impl Into<IpAddr>, interval: u8, client: Ipv4Addr, now: UnixTime) -> Granted {
    granted_between(waypoint.into(), interval, (client.into(), SERVER.into()), now)
}

fn granted_between(waypoint: IpAddr, interval: u8, (client, server): (IpAddr, IpAddr), now: UnixTime) -> Granted {
    let interval = Interval::new(interval).expect("in range");
    let (principal, epoch) = (Principal::new(11).expect("24 bits"), epoch::epoch_at(interval, now));
    let held = key().secret(waypoint, principal, interval, epoch);
    let prefix = Prefix::new(client, if client.is_ipv4() { 32 } else { 128 }).expect("a host");
    let held = held.delegate(DelegationId::new(5).expect("24 bits"), prefix).expect("of the family");
    let capability = Capability {
        waypoint,
        principal,
        interval,
        epoch,
        marks: Marks::REPLY,
        delegation: Some(held.delegation()),
        width: Width::Full,
    };
    Granted { capability, key: held.reply_key(server) }
}

fn stamper(routes: Vec<Route>, rules: Vec<Rule>) -> Stamper {
    Stamper::new(Config { location: Location::Host, routes, rules, share: (0, 1) }, CpuKernel::best()).expect("sound")
}

fn carried(option: &[u8], (from, to): (impl Into<IpAddr>, impl Into<IpAddr>)) -> Vec<u8> {
    stamper(Vec::new(), Vec::new()).carry(option, (from.into(), to.into()), None, at(0).unix).expect("a packet")
}

fn seed(number: u8) -> impl FnOnce() -> Option<Seed> {
    move || Some(Seed::new([number; 32]))
}

/// Each has a key of its own.
static EXCHANGES: AtomicU64 = AtomicU64::new(0);

/// The whole exchange of one client with one server. Returns whether the server took the grant.
fn exchange(requests: &mut ReplyRequests, grants: &mut ReplyGrants, client: Ipv4Addr, now: Now) -> bool {
    exchange_of(requests, grants, (client.into(), SERVER.into()), now, granted(client, now.unix))
}

fn exchange_of(
    requests: &mut ReplyRequests,
    grants: &mut ReplyGrants,
    (client, server): (IpAddr, IpAddr),
    now: Now,
    granted: Granted,
) -> bool {
    let epoch = granted.capability.epoch;
    let fresh = || {
        let mut seed = [1; 32];
        seed[..8].copy_from_slice(&EXCHANGES.fetch_add(1, Ordering::Relaxed).to_be_bytes());
        Some(Seed::new(seed))
    };
    let hello = requests.leaves(server, epoch, now.instant, fresh).expect("it asks");
    let hello = carried(&hello, (client, server));
    let hello = Packet::decode(&hello).expect("sound");
    let Some(Answer::Option(to, offer)) = grants.receive(&hello, server, now) else { panic!("an offer") };
    assert_eq!(to, client);
    let offer = carried(&offer, (server, client));
    let offer = Packet::decode(&offer).expect("sound");
    let answer = requests.offered(&offer, client, |_| Some(granted));
    let (to, grant) = answer.expect("a grant");
    assert_eq!(to, server);
    let grant = carried(&grant, (client, server));
    let taken = grants.receive(&Packet::decode(&grant).expect("sound"), server, now);
    let Some(Answer::Granted(to, acknowledgement)) = taken else { return false };
    assert_eq!(to, client);
    let acknowledgement = carried(&acknowledgement, (server, client));
    requests.acknowledged(&Packet::decode(&acknowledgement).expect("sound"), now.instant)
}

fn new() -> (ReplyRequests, ReplyGrants) {
    let waypoints = vec!["198.51.100.0/24".parse().expect("a prefix"), "127.0.0.0/8".parse().expect("a prefix")];
    (ReplyRequests::default(), ReplyGrants::new(&Seed::new([9; 32]), waypoints))
}

#[test]
fn what_is_granted_stamps_packets_to_the_client_and_to_nobody_else() {
    let (mut requests, mut grants) = new();
    assert!(exchange(&mut requests, &mut grants, CLIENT, at(0)));
    let (client, hop, carriage) = grants.clients().next().expect("one");
    assert_eq!(carriage, Carriage::Ip);
    assert_eq!((client, requests.granted(), grants.refused), (IpAddr::V4(CLIENT), 1, 0));
    let waypoint =
        Waypoint::new(WAYPOINT.into(), wayleave_packet::platypus::mint::WaypointKeys::new(key()), Policy::default());
    let route =
        || Route { hops: vec![hop.clone()], sealed: false, carriage: Carriage::Ip, mtu: 1_500, only_from: None };
    let passes = |from: Ipv4Addr, to: Ipv4Addr| {
        let packet =
            stamper(vec![route()], Vec::new()).carry(&[1, 1, 0, 0], (from.into(), to.into()), Some(0), at(0).unix);
        let packet = packet.expect("a packet");
        matches!(verify(std::slice::from_ref(&waypoint), &packet, Arrival::Ip, at(0).unix), Verdict::Forward(_))
    };
    assert!(passes(SERVER, CLIENT));
    assert!(!passes(SERVER, Ipv4Addr::new(192, 0, 2, 11)), "a neighbour of the client");
    assert!(!passes(Ipv4Addr::new(203, 0, 113, 11), CLIENT), "a neighbour of the server");
    // A stamper has a rule for the client alone: rules that reach further are refused.
    let rule =
        |to: &str| Rule { to: to.parse().expect("a prefix"), user: None, mark: None, action: RuleAction::Take(0) };
    let with =
        |to: &str| Config { location: Location::Host, routes: vec![route()], rules: vec![rule(to)], share: (0, 1) };
    assert!(Stamper::new(with("192.0.2.10/32"), CpuKernel::best()).is_ok());
    assert!(Stamper::new(with("192.0.2.8/29"), CpuKernel::best()).is_err());
}

/// The same over IPv6; ends of two families have no packet.
#[test]
fn hosts_of_ipv6_agree_as_those_of_ipv4_do() {
    let [client, server, waypoint]: [IpAddr; 3] =
        ["2001:db8:1::10", "2001:db8:2::10", "2001:db8:3::1"].map(|text| text.parse().expect("an address"));
    let named = vec!["2001:db8:3::/48".parse().expect("a prefix")];
    let (mut requests, mut grants) = (ReplyRequests::default(), ReplyGrants::new(&Seed::new([9; 32]), named));
    let granted = granted_between(waypoint, 12, (client, server), at(0).unix);
    assert!(exchange_of(&mut requests, &mut grants, (client, server), at(0), granted));
    let (of, hop, _) = grants.clients().next().expect("one");
    assert_eq!((of, requests.granted(), grants.refused), (client, 1, 0));
    let keys = wayleave_packet::platypus::mint::WaypointKeys::new(WaypointKey::new(&Key128::new([7; 16])));
    let at_waypoint = [Waypoint::new(waypoint, keys, Policy::default())];
    let route = Route { hops: vec![hop.clone()], sealed: false, carriage: Carriage::Ip, mtu: 1_500, only_from: None };
    let mut stamper = stamper(vec![route], Vec::new());
    for (from, to, passes) in [(server, client, true), (server, waypoint, false), (waypoint, client, false)] {
        let packet = stamper.carry(&[1, 1, 0, 0], (from, to), Some(0), at(0).unix).expect("a packet");
        let verdict = verify(&at_waypoint, &packet, Arrival::Ip, at(0).unix);
        assert_eq!(matches!(verdict, Verdict::Forward(_)), passes, "{from} {to}");
    }
    assert!(stamper.carry(&[1, 1, 0, 0], (server, CLIENT.into()), Some(0), at(0).unix).is_err());
    assert!(stamper.carry(&[1, 1, 0, 0], (SERVER.into(), client), None, at(0).unix).is_err());
}

/// The client made the capability for the address that it asked, and the host has another one.
#[test]
fn packets_of_another_address_to_a_client_take_the_route_that_is_configured_for_its_network() {
    /// Octets in front of a packet.
    const ROOM: usize = 100;
    let (mut requests, mut grants) = new();
    assert!(exchange(&mut requests, &mut grants, CLIENT, at(0)));
    let (_, replies, carriage) = grants.clients().next().expect("one");
    let configured = Ipv4Addr::new(198, 51, 100, 2);
    let capability = Capability {
        waypoint: configured.into(),
        marks: Marks::default(),
        delegation: None,
        ..granted(CLIENT, at(0).unix).capability
    };
    let key = WaypointKeys::new(key()).stamp_key(&capability).expect("one key for ever");
    let route = |hop: Hop, only_from| Route { hops: vec![hop], sealed: false, carriage, mtu: 1_500, only_from };
    let rule = |to: &str, action| Rule { to: to.parse().expect("a prefix"), user: None, mark: None, action };
    // By which waypoint a packet leaves, or why it is left unchanged.
    let sent = |rules: Vec<Rule>, from: Ipv4Addr| {
        let plain = Hop { capability, key: key.clone() };
        let routes = vec![route(plain, None), route(replies.clone(), Some(SERVER.into()))];
        let mut buffer = vec![0; ROOM + 100];
        (buffer[ROOM], buffer[ROOM + 3], buffer[ROOM + 8], buffer[ROOM + 9]) = (0x45, 100, 64, 17);
        buffer[ROOM + 12..ROOM + 16].copy_from_slice(&from.octets());
        buffer[ROOM + 16..ROOM + 20].copy_from_slice(&CLIENT.octets());
        let mut outcomes = [Outcome::from(LeaveReason::Malformed)];
        let mut packets = [OutgoingPacket { buffer: &mut buffer, begin: ROOM, user: None, mark: 0 }];
        stamper(routes, rules).stamp(&mut packets, at(0).unix, &mut outcomes);
        match outcomes[0].clone() {
            Outcome::Stamped(place) => Ok(Packet::decode(&buffer[place]).expect("sound").waypoint(0)),
            Outcome::Unchanged { reason, .. } | Outcome::Dropped(reason) => Err(reason),
        }
    };
    let (of_client, other) = (rule("192.0.2.10/32", RuleAction::Take(1)), Ipv4Addr::new(203, 0, 113, 11));
    for (wider, from_other) in [
        (Some(RuleAction::Take(0)), Ok(IpAddr::V4(configured))),
        (Some(RuleAction::Pass), Err(LeaveReason::Rule)),
        (None, Err(LeaveReason::Source)),
    ] {
        let wider = wider.map(|action| rule("192.0.2.0/24", action));
        let rules: Vec<Rule> = wider.into_iter().chain([of_client]).collect();
        assert_eq!(sent(rules.clone(), SERVER), Ok(WAYPOINT.into()));
        assert_eq!(sent(rules, other), from_other, "{wider:?}");
    }
}

#[test]
fn what_comes_in_udp_is_answered_in_udp_and_so_are_packets_to_the_client() {
    let (mut requests, mut grants) = new();
    let mut stamper = stamper(Vec::new(), Vec::new());
    let mut carried = |option: &[u8], (from, to): (Ipv4Addr, Ipv4Addr)| {
        stamper.answer(option, (from.into(), to.into()), Carriage::Udp, at(0).unix).expect("a packet")
    };
    let granted = granted(CLIENT, at(0).unix);
    let hello = requests.leaves(SERVER.into(), granted.capability.epoch, at(0).instant, seed(1)).expect("it asks");
    let hello = carried(&hello, (CLIENT, SERVER));
    let hello = Packet::decode(&hello).expect("sound");
    assert_eq!(hello.outer().carriage, Carriage::Udp);
    let Some(Answer::Option(_, offer)) = grants.receive(&hello, SERVER.into(), at(0)) else { panic!("an offer") };
    let offer = carried(&offer, (SERVER, CLIENT));
    let offer = Packet::decode(&offer).expect("sound");
    let (_, grant) = requests.offered(&offer, CLIENT.into(), |_| Some(granted)).expect("a grant");
    let grant = carried(&grant, (CLIENT, SERVER));
    let taken = grants.receive(&Packet::decode(&grant).expect("sound"), SERVER.into(), at(0));
    assert!(matches!(taken, Some(Answer::Granted(client, _)) if client == IpAddr::V4(CLIENT)));
    assert_eq!(grants.clients().map(|(.., carriage)| carriage).collect::<Vec<_>>(), [Carriage::Udp]);
}

#[test]
fn a_server_that_does_not_answer_is_asked_with_ever_longer_pauses() {
    let (mut requests, _) = new();
    let mut tenths = Vec::new();
    // Whatever key epoch begins meanwhile.
    for tenth in 0..2_600u64 {
        let instant = Instant(tenth * 100_000_000);
        if requests.leaves(SERVER.into(), (tenth / 160) as u32, instant, seed(1)).is_some() {
            tenths.push(tenth);
        }
    }
    assert_eq!(tenths, [0, 10, 30, 70, 150, 310, 630, 1_270, 1_910, 2_550]);
    assert_eq!(requests.granted(), 0);
}

/// The hello of a client whose grant is held is answered by its acknowledgement, whichever message was lost.
#[test]
fn a_grant_or_an_acknowledgement_that_is_lost_is_made_up_for() {
    let (mut requests, mut grants) = new();
    let epoch = granted(CLIENT, at(0).unix).capability.epoch;
    let hello = |requests: &mut ReplyRequests, grants: &mut ReplyGrants, secs: u64| {
        let at = at(secs);
        assert!(secs == 0 || requests.leaves(SERVER.into(), epoch, Instant(at.instant.0 - 1), seed(1)).is_none());
        let hello = requests.leaves(SERVER.into(), epoch, at.instant, seed(1)).expect("it is due");
        let packet = carried(&hello, (CLIENT, SERVER));
        let answer = grants.receive(&Packet::decode(&packet).expect("sound"), SERVER.into(), at);
        let Some(Answer::Option(_, answer)) = answer else { panic!("an answer") };
        assert!(answer.len() <= hello.len(), "it is longer than what was asked");
        answer
    };
    let grant = |requests: &mut ReplyRequests, offer: &[u8]| {
        let offer = carried(offer, (SERVER, CLIENT));
        let offer = Packet::decode(&offer).expect("sound");
        requests.offered(&offer, CLIENT.into(), |_| Some(granted(CLIENT, at(0).unix))).map(|(_, grant)| grant)
    };
    let open = |grants: &mut ReplyGrants, grant: &[u8], secs| {
        let grant = carried(grant, (CLIENT, SERVER));
        let taken = grants.receive(&Packet::decode(&grant).expect("sound"), SERVER.into(), at(secs));
        let Some(Answer::Granted(_, acknowledgement)) = taken else { panic!("taken") };
        acknowledgement
    };
    let acknowledge = |requests: &mut ReplyRequests, option: &[u8], secs| {
        let option = carried(option, (SERVER, CLIENT));
        requests.acknowledged(&Packet::decode(&option).expect("sound"), at(secs).instant)
    };
    // The first grant is lost, and the second's acknowledgement.
    let offer = hello(&mut requests, &mut grants, 0);
    assert!(grant(&mut requests, &offer).is_some());
    assert!(grant(&mut requests, &offer).is_none(), "one grant for a hello");
    let offer = hello(&mut requests, &mut grants, 1);
    let second = grant(&mut requests, &offer).expect("a grant");
    let lost = open(&mut grants, &second, 1);
    assert_eq!((requests.granted(), grants.clients().count()), (0, 1));
    let answer = hello(&mut requests, &mut grants, 3);
    assert_eq!(answer, lost, "the server has it");
    assert!(acknowledge(&mut requests, &answer, 3));
    assert_eq!(requests.granted(), 1);
    // Half a minute later it is asked again, and has it; when it is asked the next time, it was started anew.
    let answer = hello(&mut requests, &mut grants, 33);
    assert!(acknowledge(&mut requests, &answer, 33));
    let mut grants = new().1;
    let offer = hello(&mut requests, &mut grants, 63);
    let third = grant(&mut requests, &offer).expect("a grant");
    assert_eq!(requests.granted(), 0);
    let answer = open(&mut grants, &third, 63);
    assert!(acknowledge(&mut requests, &answer, 63));
    assert_eq!((requests.granted(), grants.clients().count()), (1, 1));
}

/// What a client and a server know of each other, on a network that loses, repeats and delays.
#[test]
fn whatever_is_lost_repeated_or_late_the_server_has_the_capability_in_the_end() {
    for seed_of_run in 0..60u64 {
        let mut state = seed_of_run.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let (mut requests, mut grants) = new();
        let epoch = granted(CLIENT, at(0).unix).capability.epoch;
        // When each arrives, whether at the server, and what.
        let mut under_way: Vec<(u64, bool, Vec<u8>)> = Vec::new();
        let mut hellos = 0;
        const LOSSY: u64 = 200;
        for secs in 0..LOSSY + 130 {
            let is_lossy = secs < LOSSY;
            let now = at(secs);
            if is_lossy && random(50) == 0 {
                grants = new().1; // the server is started anew
            }
            let hello = requests.leaves(SERVER.into(), epoch, now.instant, seed(1));
            hellos += u64::from(hello.is_some());
            under_way.extend(hello.map(|hello| (secs, true, hello)));
            while let Some(place) = under_way.iter().position(|(due, ..)| *due <= secs) {
                let (_, to_server, option) = under_way.remove(place);
                if is_lossy && random(3) == 0 {
                    continue;
                }
                if is_lossy && random(4) == 0 {
                    under_way.push((secs + 1 + random(8), to_server, option.clone()));
                }
                let ends = if to_server { (CLIENT, SERVER) } else { (SERVER, CLIENT) };
                let octets = carried(&option, ends);
                let packet = Packet::decode(&octets).expect("sound");
                let late = |random: &mut dyn FnMut(u64) -> u64| secs + if is_lossy { random(4) } else { 0 };
                if to_server {
                    match grants.receive(&packet, SERVER.into(), now) {
                        Some(Answer::Option(_, answer) | Answer::Granted(_, answer)) => {
                            under_way.push((late(&mut random), false, answer));
                        }
                        None => {}
                    }
                } else if !requests.acknowledged(&packet, now.instant) {
                    let grant = requests.offered(&packet, CLIENT.into(), |_| Some(granted(CLIENT, at(0).unix)));
                    under_way.extend(grant.map(|(_, grant)| (late(&mut random), true, grant)));
                }
            }
        }
        assert_eq!((requests.granted(), grants.clients().count()), (1, 1), "run {seed_of_run}");
        assert!(hellos < 60, "run {seed_of_run}: {hellos} hellos");
    }
}

#[test]
fn each_key_epoch_has_an_exchange_of_its_own_and_old_capabilities_are_given_up() {
    let (mut requests, mut grants) = new();
    assert!(exchange(&mut requests, &mut grants, CLIENT, at(0)));
    let epoch = granted(CLIENT, at(0).unix).capability.epoch;
    assert_eq!(requests.leaves(SERVER.into(), epoch, at(5).instant, seed(2)), None, "it has one");
    assert!(!grants.expire(at(0).unix));
    let next = 4_096;
    assert!(exchange(&mut requests, &mut grants, CLIENT, at(next)));
    let of = |grants: &ReplyGrants| grants.clients().map(|(_, hop, _)| hop.capability.epoch).collect::<Vec<_>>();
    assert_eq!(of(&grants), [epoch + 1]);
    // Accepted for one epoch more, and then given up.
    assert!(!grants.expire(at(next + 4_096).unix));
    assert!(grants.expire(at(next + 2 * 4_096).unix));
    assert_eq!(of(&grants), []);
}

#[test]
fn offers_that_nobody_asked_for_and_grants_of_others_are_refused() {
    let (mut requests, mut grants) = new();
    let now = at(0);
    let hello = requests.leaves(SERVER.into(), 1, now.instant, seed(1)).expect("it asks");
    let hello = carried(&hello, (CLIENT, SERVER));
    let hello = Packet::decode(&hello).expect("sound");
    let Some(Answer::Option(_, offer)) = grants.receive(&hello, SERVER.into(), now) else { panic!("an offer") };
    // From an address that was not asked.
    let stranger = Ipv4Addr::new(203, 0, 113, 99);
    let other = carried(&offer, (stranger, CLIENT));
    let mut wanted = 0;
    let answer = requests.offered(&Packet::decode(&other).expect("sound"), CLIENT.into(), |_| {
        wanted += 1;
        None
    });
    assert_eq!((answer, wanted), (None, 0), "no work for a stranger");
    // Of one who does not see the hello, in the server's name: as many as it likes.
    for number in 10..20 {
        let mut other = ReplyRequests::default();
        let hello = other.leaves(SERVER.into(), 1, now.instant, seed(number)).expect("it asks");
        let hello = carried(&hello, (stranger, SERVER));
        let answer = new().1.receive(&Packet::decode(&hello).expect("sound"), SERVER.into(), now);
        let Some(Answer::Option(_, forged)) = answer else { panic!("an offer") };
        let forged = carried(&forged, (SERVER, CLIENT));
        let forged = Packet::decode(&forged).expect("sound");
        assert_eq!(requests.offered(&forged, CLIENT.into(), |_| Some(granted(CLIENT, now.unix))), None);
    }
    // The grant, in another client's name, at another server, and too late.
    let offer = carried(&offer, (SERVER, CLIENT));
    let offer = Packet::decode(&offer).expect("sound");
    let (_, grant) = requests.offered(&offer, CLIENT.into(), |_| Some(granted(CLIENT, now.unix))).expect("a grant");
    let mut try_from = |from, server: Ipv4Addr, now| {
        let packet = carried(&grant, (from, server));
        grants.receive(&Packet::decode(&packet).expect("sound"), server.into(), now)
    };
    assert_eq!(try_from(stranger, SERVER, now), None);
    assert_eq!(try_from(CLIENT, stranger, now), None);
    assert_eq!(try_from(CLIENT, SERVER, at(31)), None);
    let Some(Answer::Granted(to, acknowledgement)) = try_from(CLIENT, SERVER, at(30)) else { panic!("taken") };
    assert_eq!((to, grants.refused), (IpAddr::V4(CLIENT), 3));
    // Nor is an acknowledgement taken of another, or one that somebody made up.
    let mut is_taken = |option: &[u8], from| {
        let packet = carried(option, (from, CLIENT));
        requests.acknowledged(&Packet::decode(&packet).expect("sound"), now.instant)
    };
    let mut forged = acknowledgement.clone();
    forged[19] ^= 1;
    assert!(!is_taken(&forged, SERVER) && !is_taken(&acknowledgement, stranger) && is_taken(&acknowledgement, SERVER));
}

#[test]
fn a_flood_of_options_is_limited() {
    let (mut requests, mut grants) = new();
    let hello = requests.leaves(SERVER.into(), 1, at(0).instant, seed(1)).expect("it asks");
    let hello = carried(&hello, (CLIENT, SERVER));
    let hello = Packet::decode(&hello).expect("sound");
    let offers = (0..3_000).filter(|_| grants.receive(&hello, SERVER.into(), at(0)).is_some()).count();
    assert_eq!(offers, 1_000, "a second's worth");
    assert!(grants.receive(&hello, SERVER.into(), at(1)).is_some());
}

/// Whoever connects could otherwise have all of the server's packets to it sent to a third host.
#[test]
fn a_grant_for_a_waypoint_that_the_operator_does_not_name_is_refused() {
    let (_, mut grants) = new();
    let now = at(0);
    let mut is_taken = |waypoint: &str, interval: u8| {
        let waypoint: IpAddr = waypoint.parse().expect("an address");
        let granted = granted_for(waypoint, interval, CLIENT, now.unix);
        exchange_of(&mut ReplyRequests::default(), &mut grants, (CLIENT.into(), SERVER.into()), now, granted)
    };
    for waypoint in ["203.0.113.99", "10.0.0.1", "198.51.101.1", "192.0.2.10"] {
        assert!(!is_taken(waypoint, 12), "{waypoint}");
    }
    // Special-purpose addresses, though the operator named them.
    assert!(!is_taken("127.0.0.1", 12));
    // The client chooses how long a key epoch is, and so how long the server holds the capability.
    for interval in [LONGEST_GRANT + 1, 24] {
        assert!(!is_taken("198.51.100.1", interval), "{interval}");
    }
    assert!(is_taken("198.51.100.1", LONGEST_GRANT) && is_taken("198.51.100.254", 4));
    assert_eq!((grants.refused, grants.other_waypoint, grants.clients().count()), (7, 5, 1));
}

#[test]
fn who_fills_the_table_of_clients_keeps_nobody_out() {
    let (_, mut grants) = new();
    let mut count = 0;
    let mut joins = |grants: &mut ReplyGrants, client: Ipv4Addr| {
        count += 1;
        let now = Now { instant: at(0).instant + Duration::from_millis(count * 6), ..at(0) };
        assert!(exchange(&mut ReplyRequests::default(), grants, client, now), "{client}");
    };
    let is_there = |grants: &ReplyGrants, client: Ipv4Addr| grants.clients().any(|(of, ..)| of == IpAddr::V4(client));
    let in_network = |network: u32, host: u32| Ipv4Addr::from(0x0a00_0000 + (network << 8) + host);
    joins(&mut grants, CLIENT);
    // One network takes its own share, whatever it has of addresses.
    let most = MAX_OF_NETWORK as u32;
    for host in 0..256 {
        joins(&mut grants, in_network(0, host));
    }
    assert_eq!(grants.clients().count(), 1 + MAX_OF_NETWORK);
    assert!(is_there(&grants, in_network(0, 255)) && !is_there(&grants, in_network(0, 255 - most)), "the oldest left");
    // Many together fill the table, and what leaves for others is theirs, the oldest first.
    for network in 1..=MAX_CLIENTS as u32 / most {
        (0..most).for_each(|host| joins(&mut grants, in_network(network, host)));
    }
    assert_eq!(grants.clients().count(), MAX_CLIENTS);
    let oldest = |grants: &ReplyGrants| (0..most).filter(|host| !is_there(grants, in_network(1, *host))).count();
    let before = oldest(&grants);
    let other = Ipv4Addr::new(203, 0, 113, 99);
    joins(&mut grants, other);
    assert!(is_there(&grants, CLIENT) && is_there(&grants, other));
    assert_eq!(grants.clients().count(), MAX_CLIENTS);
    // Who is known is renewed, and nobody leaves for it.
    joins(&mut grants, CLIENT);
    assert_eq!((grants.clients().count(), grants.refused), (MAX_CLIENTS, 0));
    assert!(before <= 1 && oldest(&grants) <= before + 1);
}

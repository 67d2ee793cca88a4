//! Stampers of a client and of a server: what the client grants is used for the client alone, and only what was asked for is
//! answered.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use wayleave_core::{Instant, Now, Prefix, UnixTime};
use wayleave_crypto::lanes::CpuKernel;
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_dataplane::stamper::replies::{Answer, MAX_CLIENTS, ReplyGrants, ReplyRequests};
use wayleave_dataplane::stamper::{Config, Location, Route, Rule, RuleAction, Stamper};
use wayleave_packet::platypus::header::{Capability, Carriage, DelegationId, Interval, Packet, Principal, Width};
use wayleave_packet::platypus::mint::reply::Granted;
use wayleave_packet::platypus::mint::{Hop, WaypointKey, epoch};
use wayleave_packet::platypus::verify::{Policy, Verdict, Waypoint, verify};

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
    let interval = Interval::new(12).expect("in range");
    let (principal, epoch) = (Principal::new(11).expect("24 bits"), epoch::epoch_at(interval, now));
    let held = key().secret(WAYPOINT.into(), principal, interval, epoch);
    let prefix = Prefix::new(client.into(), 32).expect("a host");
    let held = held.delegate(DelegationId::new(5).expect("24 bits"), prefix).expect("of the family");
    let capability = Capability {
        waypoint: WAYPOINT.into(),
        principal,
        interval,
        epoch,
        delegation: Some(held.delegation()),
        width: Width::Full,
    };
    Granted { capability, key: held.stamp_key() }
}

fn stamper(routes: Vec<Route>, rules: Vec<Rule>) -> Stamper {
    Stamper::new(Config { location: Location::Host, routes, rules, share: (0, 1) }, CpuKernel::best()).expect("sound")
}

fn carried(option: &[u8], ends: (Ipv4Addr, Ipv4Addr)) -> Vec<u8> {
    stamper(Vec::new(), Vec::new()).carry(option, ends, None, at(0).unix).expect("a packet")
}

fn seed(number: u8) -> impl FnOnce() -> Option<Seed> {
    move || Some(Seed::new([number; 32]))
}

/// The whole exchange of one client with one server. Returns whether the server took the grant.
fn exchange(requests: &mut ReplyRequests, grants: &mut ReplyGrants, client: Ipv4Addr, now: Now) -> bool {
    let epoch = granted(client, now.unix).capability.epoch;
    let hello = requests.leaves(SERVER.into(), epoch, now.instant, seed(1)).expect("it asks");
    let hello = carried(&hello, (client, SERVER));
    let hello = Packet::decode(&hello).expect("sound");
    let Some(Answer::Offer(to, offer)) = grants.receive(&hello, SERVER.into(), now) else { panic!("an offer") };
    assert_eq!(to, IpAddr::V4(client));
    let offer = carried(&offer, (SERVER, client));
    let offer = Packet::decode(&offer).expect("sound");
    let answer = requests.offered(&offer, client.into(), |_| Some(granted(client, now.unix)));
    let (to, grant) = answer.expect("a grant");
    assert_eq!(to, IpAddr::V4(SERVER));
    let grant = carried(&grant, (client, SERVER));
    let taken = grants.receive(&Packet::decode(&grant).expect("sound"), SERVER.into(), now);
    taken == Some(Answer::Granted(client.into()))
}

fn new() -> (ReplyRequests, ReplyGrants) {
    (ReplyRequests::default(), ReplyGrants::new(&Seed::new([9; 32])))
}

#[test]
fn what_is_granted_stamps_packets_to_the_client_and_to_nobody_else() {
    let (mut requests, mut grants) = new();
    assert!(exchange(&mut requests, &mut grants, CLIENT, at(0)));
    let (client, hop) = grants.clients().next().expect("one");
    assert_eq!((client, requests.granted(), grants.refused), (IpAddr::V4(CLIENT), 1, 0));
    let waypoint =
        Waypoint::new(WAYPOINT.into(), wayleave_packet::platypus::mint::WaypointKeys::new(key()), Policy::default());
    let passes = |to: Ipv4Addr| {
        let hops = vec![hop.clone()];
        let route = Route { hops, sealed: false, carriage: Carriage::Ip, mtu: 1_500 };
        let packet = stamper(vec![route], Vec::new()).carry(&[1, 1, 0, 0], (SERVER, to), Some(0), at(0).unix);
        let packet = packet.expect("a packet");
        matches!(verify(std::slice::from_ref(&waypoint), &packet, at(0).unix), Verdict::Forward(_))
    };
    assert!(passes(CLIENT));
    assert!(!passes(Ipv4Addr::new(192, 0, 2, 11)), "a neighbour of the client");
    // A stamper has a rule for the client alone: rules that reach further are refused.
    let route = || Route { hops: vec![hop.clone()], sealed: false, carriage: Carriage::Ip, mtu: 1_500 };
    let rule =
        |to: &str| Rule { to: to.parse().expect("a prefix"), user: None, mark: None, action: RuleAction::Take(0) };
    let with =
        |to: &str| Config { location: Location::Host, routes: vec![route()], rules: vec![rule(to)], share: (0, 1) };
    assert!(Stamper::new(with("192.0.2.10/32"), CpuKernel::best()).is_ok());
    assert!(Stamper::new(with("192.0.2.8/29"), CpuKernel::best()).is_err());
}

#[test]
fn a_server_that_does_not_answer_is_asked_three_times_and_then_once_a_minute() {
    let (mut requests, _) = new();
    let mut asked = Vec::new();
    for tenth in 0..2_000u64 {
        let instant = Instant(tenth * 100_000_000);
        if requests.leaves(SERVER.into(), 1, instant, seed(1)).is_some() {
            asked.push(tenth);
        }
    }
    assert_eq!(asked, [0, 10, 20, 620, 630, 640, 1_240, 1_250, 1_260, 1_860, 1_870, 1_880]);
    assert_eq!(requests.granted(), 0);
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
    let of = |grants: &ReplyGrants| grants.clients().map(|(_, hop)| hop.capability.epoch).collect::<Vec<_>>();
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
    let Some(Answer::Offer(_, offer)) = grants.receive(&hello, SERVER.into(), now) else { panic!("an offer") };
    // From an address that was not asked.
    let stranger = Ipv4Addr::new(203, 0, 113, 99);
    let other = carried(&offer, (stranger, CLIENT));
    let mut wanted = 0;
    let answer = requests.offered(&Packet::decode(&other).expect("sound"), CLIENT.into(), |_| {
        wanted += 1;
        None
    });
    assert_eq!((answer, wanted), (None, 0), "no work for a stranger");
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
    assert_eq!(try_from(CLIENT, SERVER, at(30)), Some(Answer::Granted(CLIENT.into())));
    assert_eq!(grants.refused, 3);
    // A forged offer in the server's name does not keep the server's own from being answered; too many do.
    for _ in 0..2 {
        assert!(requests.offered(&offer, CLIENT.into(), |_| Some(granted(CLIENT, now.unix))).is_some());
    }
    assert!(requests.offered(&offer, CLIENT.into(), |_| Some(granted(CLIENT, now.unix))).is_none());
}

#[test]
fn a_flood_of_options_is_limited_and_clients_have_a_limit() {
    let (mut requests, mut grants) = new();
    let hello = requests.leaves(SERVER.into(), 1, at(0).instant, seed(1)).expect("it asks");
    let hello = carried(&hello, (CLIENT, SERVER));
    let hello = Packet::decode(&hello).expect("sound");
    let offers = (0..3_000).filter(|_| grants.receive(&hello, SERVER.into(), at(0)).is_some()).count();
    assert_eq!(offers, 1_000, "a second's worth");
    assert!(grants.receive(&hello, SERVER.into(), at(1)).is_some());
    // Twenty-five seconds of grants fill the table; further clients are refused, those that are known are renewed.
    let (_, mut grants) = new();
    let client = |number: u32| Ipv4Addr::from(0x0a00_0000 + number);
    let when = |number: u32| {
        let now = at(0);
        Now { instant: now.instant + Duration::from_millis(u64::from(number) * 6), ..now }
    };
    for number in 0..MAX_CLIENTS as u32 {
        let mut requests = ReplyRequests::default();
        assert!(exchange(&mut requests, &mut grants, client(number), when(number)), "{number}");
    }
    let last = MAX_CLIENTS as u32;
    assert!(!exchange(&mut ReplyRequests::default(), &mut grants, client(last), when(last)));
    assert!(exchange(&mut ReplyRequests::default(), &mut grants, client(3), when(last + 1)));
    let known: Vec<Hop> = grants.clients().map(|(_, hop)| hop.clone()).collect();
    assert_eq!(known.len(), MAX_CLIENTS);
}

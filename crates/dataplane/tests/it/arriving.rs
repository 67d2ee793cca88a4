//! What a host takes the header off.
//!
//! PLA, a host that decapsulates: packets of a stranger with no list, with a list of its own, from a waypoint that the host does not know,
//! and with original sources of the host's own networks: none loses its header; those that a known waypoint sent do.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use wayleave_core::{Now, Prefix, UnixTime};
use wayleave_crypto::lanes::CpuKernel;
use wayleave_crypto::secret::Key128;
use wayleave_dataplane::frame::{Frame, Ingress};
use wayleave_dataplane::platypus::{Action, Config, ReplayPolicy, Router};
use wayleave_dataplane::replay::ReplayFilter;
use wayleave_dataplane::stamper::arriving::{ArrivalRefusal, Arriving};
use wayleave_dataplane::stamper::replies::NO_NEXT_HEADER;
use wayleave_packet::platypus::header::{Capability, Carriage, Interval, Marks, Packet, Principal, Width};
use wayleave_packet::platypus::mint::{Hop, Nonce, Route, WaypointKey, WaypointKeys, encapsulate, epoch};
use wayleave_packet::platypus::verify::{Forward, Policy, Waypoint, strip};

const NOW: UnixTime = UnixTime(1_795_240_800_000_000);
const WAYPOINT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const SENDER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
const HOST: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);
const STRANGER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 66);

fn hop(waypoint: Ipv4Addr) -> Hop {
    let interval = Interval::new(12).expect("in range");
    let principal = Principal::new(7).expect("24 bits");
    let capability = Capability {
        waypoint: waypoint.into(),
        principal,
        interval,
        epoch: epoch::epoch_at(interval, NOW),
        width: Width::Full,
        marks: Marks::default(),
        delegation: None,
    };
    let keys = WaypointKeys::new(WaypointKey::new(&Key128::new([7; 16])));
    Hop { capability, key: keys.stamp_key(&capability).expect("held") }
}

fn stamped(hops: &[Hop], source: Ipv4Addr) -> Vec<u8> {
    stamped_in(Carriage::Ip, hops, source)
}

fn stamped_in(carriage: Carriage, hops: &[Hop], source: Ipv4Addr) -> Vec<u8> {
    with_option(carriage, hops, source, &[])
}

/// With an option, and nothing behind it; or with eight octets, and none.
fn with_option(carriage: Carriage, hops: &[Hop], source: Ipv4Addr, reply_option: &[u8]) -> Vec<u8> {
    let nonce = Nonce::new(NOW, 1);
    let route = Route { hops, nonce, sealed: false, reply_option, carriage };
    let (protocol, payload): (u8, &[u8]) =
        if reply_option.is_empty() { (17, &[0x5a; 8]) } else { (NO_NEXT_HEADER, &[]) };
    let mut inner = vec![0x45, 0, 0, 20 + payload.len() as u8, 0, 0, 0, 0, 64, protocol, 0, 0];
    inner.extend_from_slice(&source.octets());
    inner.extend_from_slice(&HOST.octets());
    inner.extend_from_slice(payload);
    let mut out = Vec::new();
    encapsulate(&inner, &route, &mut out).expect("sound");
    out
}

/// A packet behind its waypoint, as that sends it.
fn passed(source: Ipv4Addr) -> Vec<u8> {
    passed_in(Carriage::Ip, source)
}

fn passed_in(carriage: Carriage, source: Ipv4Addr) -> Vec<u8> {
    let keys = WaypointKeys::new(WaypointKey::new(&Key128::new([7; 16])));
    let started = UnixTime(NOW.0 - 10_000_000);
    let config = Config {
        waypoints: vec![Waypoint::new(WAYPOINT.into(), keys, Policy::default())],
        repeated: ReplayPolicy::Pass,
        replay: ReplayFilter::new(&Key128::new([3; 16]), 64, started),
        need_revocations: false,
        answers_per_second: 0,
        accounts: 0,
        account_seed: 1,
        delegations: 16,
    };
    let mut router = Router::new(config, CpuKernel::PORTABLE);
    let mut octets = stamped_in(carriage, &[hop(WAYPOINT)], source);
    let now = Now { instant: wayleave_core::Instant(10_000_000_000), unix: NOW };
    let mut frames = [Frame { octets: &mut octets, ingress: Ingress::Internal }];
    assert_eq!(router.process(&mut frames, now)[0], Action::Route);
    octets
}

/// A packet with an empty list, which needs no capability at all.
fn bare(source: Ipv4Addr) -> Vec<u8> {
    let mut octets = stamped(&[hop(WAYPOINT)], source);
    let packet = Packet::decode(&octets).expect("sound");
    let binding = packet.binding_range(0);
    let list = packet.payload_offset() - packet.capability_octets(0).len() - binding.len()..packet.payload_offset();
    assert_eq!(list.end, binding.end);
    octets.drain(list);
    // Words of the list, and the pointer into it.
    octets[21..23].fill(0);
    let length = octets.len() as u16;
    octets[2..4].copy_from_slice(&length.to_be_bytes());
    octets[16..20].copy_from_slice(&HOST.octets());
    from(octets, source)
}

/// With another outer source, as whoever can send it has it.
fn from(mut octets: Vec<u8>, source: Ipv4Addr) -> Vec<u8> {
    octets[12..16].copy_from_slice(&source.octets());
    octets[10..12].fill(0);
    let sum: u32 = octets[..20].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    octets[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    octets
}

fn networks(all: &[&str]) -> Vec<Prefix> {
    all.iter().map(|text| text.parse().expect("a prefix")).collect()
}

fn taken(arriving: &Arriving, octets: &[u8]) -> Result<Vec<u8>, ArrivalRefusal> {
    let packet = Packet::decode(octets).expect("sound");
    arriving.layout(&packet).map(|layout| {
        let mut octets = octets.to_vec();
        let range = strip(&mut octets, &layout).expect("room");
        octets[range].to_vec()
    })
}

#[test]
fn a_host_takes_the_header_off_what_a_waypoint_that_it_knows_sent_and_nothing_else() {
    let mut arriving = Arriving::new(vec![HOST.into()], Vec::new(), networks(&["10.0.0.0/8"]));
    let good = passed(SENDER);
    assert_eq!(taken(&arriving, &good), Err(ArrivalRefusal::Stranger), "it knows none");
    arriving.set_waypoints([IpAddr::from(WAYPOINT)].into_iter());
    let inner = taken(&arriving, &good).expect("taken");
    assert_eq!((&inner[12..16], &inner[16..20]), (&SENDER.octets()[..], &HOST.octets()[..]));
    // The same in UDP.
    assert_eq!(taken(&arriving, &passed_in(Carriage::Udp, SENDER)), Ok(inner));
    // Without a list of waypoints; with a list of the stranger's own; in the name of a waypoint that did not send it.
    assert_eq!(taken(&arriving, &bare(SENDER)), Err(ArrivalRefusal::Stranger));
    assert_eq!(taken(&arriving, &from(bare(SENDER), WAYPOINT)), Err(ArrivalRefusal::Stranger));
    assert_eq!(taken(&arriving, &from(good.clone(), STRANGER)), Err(ArrivalRefusal::Stranger));
    // What still has a waypoint is not for the host to open.
    let ahead = stamped(&[hop(WAYPOINT)], SENDER);
    assert_eq!(taken(&arriving, &ahead), Err(ArrivalRefusal::Elsewhere));
    // From inside, from itself, from nobody.
    for source in [Ipv4Addr::new(10, 0, 0, 5), HOST] {
        assert_eq!(taken(&arriving, &passed(source)), Err(ArrivalRefusal::Source), "{source}");
    }
    // The operator names networks of others' waypoints.
    let named = Arriving::new(vec![HOST.into()], networks(&["198.51.100.0/24"]), Vec::new());
    assert!(taken(&named, &good).is_ok());
    assert_eq!(taken(&named, &from(good.clone(), Ipv4Addr::new(198, 51, 100, 2))), Err(ArrivalRefusal::Stranger));
    // It has more addresses than one, and comes from none of them.
    let several = Arriving::new(vec![HOST.into(), SENDER.into()], networks(&["198.51.100.0/24"]), Vec::new());
    assert_eq!(taken(&several, &good), Err(ArrivalRefusal::Source));
    let elsewhere = Arriving::new(vec![STRANGER.into()], networks(&["198.51.100.0/24"]), Vec::new());
    assert_eq!(taken(&elsewhere, &good), Err(ArrivalRefusal::Elsewhere));
    // The machine has others at which no packet with a header arrives, and they change.
    let mut changing = named;
    changing.set_local(BTreeSet::from([SENDER.into()]));
    assert_eq!(taken(&changing, &good), Err(ArrivalRefusal::Source));
    changing.set_local(BTreeSet::new());
    assert!(taken(&changing, &good).is_ok());
}

/// They are for the stampers, and change what is sent to whom: from nobody but who they say.
#[test]
fn an_option_comes_from_its_source_or_by_the_last_waypoint_of_its_list() {
    let mut arriving = Arriving::new(vec![HOST.into()], Vec::new(), Vec::new());
    arriving.set_local(BTreeSet::from([STRANGER.into()]));
    let option = [1, 1, 0, 0];
    let check = |octets: &[u8]| {
        let packet = Packet::decode(octets).expect("sound");
        assert!(arriving.is_option(&packet));
        arriving.check_option(&packet)
    };
    let straight = |source| with_option(Carriage::Ip, &[], source, &option);
    let passed = |source| {
        let mut octets = with_option(Carriage::Ip, &[hop(WAYPOINT)], source, &option);
        let packet = Packet::decode(&octets).expect("sound");
        Forward::of(&packet, 0).apply(&mut octets);
        octets
    };
    let ways: [&dyn Fn(Ipv4Addr) -> Vec<u8>; 2] = [&straight, &passed];
    for packet in ways {
        assert_eq!(check(&packet(SENDER)), Ok(()));
        assert_eq!(check(&from(packet(SENDER), STRANGER)), Err(ArrivalRefusal::Stranger));
        // In the name of this host, of another address of the machine, and of nobody.
        for source in [HOST, STRANGER, Ipv4Addr::LOCALHOST, Ipv4Addr::new(224, 0, 0, 1)] {
            assert_eq!(check(&packet(source)), Err(ArrivalRefusal::Source), "{source}");
        }
    }
    assert_eq!(check(&from(straight(SENDER), WAYPOINT)), Err(ArrivalRefusal::Stranger), "its list is empty");
    assert_eq!(check(&from(passed(SENDER), SENDER)), Err(ArrivalRefusal::Stranger), "its waypoint sent it");
}

/// The same rules hold for IPv6, at a host that has an address of each family.
#[test]
fn a_host_with_both_families_opens_what_a_waypoint_of_either_sent() {
    let [waypoint, sender, host, inside]: [IpAddr; 4] =
        ["2001:db8:1::1", "2001:db8:2::7", "2001:db8:3::9", "2001:db8:4::5"]
            .map(|text| text.parse().expect("an address"));
    let passed = |source: IpAddr| {
        let hop = Hop { capability: Capability { waypoint, ..hop(WAYPOINT).capability }, ..hop(WAYPOINT) };
        let route =
            Route { hops: &[hop], nonce: Nonce::new(NOW, 1), sealed: false, reply_option: &[], carriage: Carriage::Ip };
        let (IpAddr::V6(from), IpAddr::V6(to)) = (source, host) else { panic!("of IPv6") };
        let mut inner = vec![0x60, 0, 0, 0, 0, 8, 17, 64];
        inner.extend(from.octets());
        inner.extend(to.octets());
        inner.extend([0x5a; 8]);
        let mut octets = Vec::new();
        encapsulate(&inner, &route, &mut octets).expect("sound");
        let packet = Packet::decode(&octets).expect("sound");
        Forward::of(&packet, 0).apply(&mut octets);
        octets
    };
    let waypoints = [IpAddr::from(WAYPOINT), waypoint];
    let mut arriving = Arriving::new(vec![HOST.into(), host], Vec::new(), networks(&["10.0.0.0/8", "2001:db8:4::/48"]));
    assert_eq!(taken(&arriving, &passed(sender)), Err(ArrivalRefusal::Stranger), "it knows none");
    arriving.set_waypoints(waypoints.into_iter());
    let inner = taken(&arriving, &passed(sender)).expect("taken");
    assert_eq!((inner.len(), inner[6]), (48, 17));
    assert!(taken(&arriving, &self::passed(SENDER)).is_ok());
    for source in [host, inside, "fe80::1".parse().expect("an address"), "::1".parse().expect("an address")] {
        assert_eq!(taken(&arriving, &passed(source)), Err(ArrivalRefusal::Source), "{source}");
    }
    let named = Arriving::new(vec![host], networks(&["2001:db8:1::/48"]), Vec::new());
    assert!(taken(&named, &passed(sender)).is_ok());
    assert_eq!(taken(&named, &self::passed(SENDER)), Err(ArrivalRefusal::Elsewhere));
}

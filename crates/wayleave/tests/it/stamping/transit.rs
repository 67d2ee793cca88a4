//! An ordinary client behind a stamper in the network, an ordinary server behind the last waypoint.
//!
//! PLA, stamper by process: hosts behind a machine that forwards: stamped, and they see nothing of it.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use super::world::{self, PRINCIPALS, World, balance, settled};
use crate::router::common::eventually;
use crate::router::platypus::{HOST, LAST};

#[test]
fn ordinary_hosts_talk_through_paid_waypoints_and_see_nothing_of_it() {
    let name = "stamping::transit::ordinary_hosts_talk_through_paid_waypoints_and_see_nothing_of_it";
    if world::enter(name).is_none() {
        return;
    }
    let world = World::start("stamping-transit", true);
    let rules = "{ to = \"203.0.113.0/24\", route = \"paid\" }, { to = \"203.0.113.128/25\" }";
    let stamper = world.stamper("sources = [\"192.0.2.0/24\"]\n", rules);

    // A page by TCP: the server sees the client's own address, and every packet of the client's passed both waypoints.
    let [first, second] = world.fetch(None);
    assert!(first > 10 && first == second, "{first} {second} {}", stamper.status());
    assert_eq!(*world.site.peers.lock().expect("noted"), [HOST]);
    let stamped = settled(|| stamper.count("stamper", "stamped"));
    assert_eq!((stamped, stamper.count("stamper", "appended")), (world.forwarded(0), 0));
    // The first sends stamped packets on, the last takes the header off.
    let bare = |which: usize| world.routers[which].count("decided", "decapsulated");
    assert_eq!((bare(0), bare(1)), (0, world.forwarded(1)));
    // Two principals pay for one packet, each at its own waypoint.
    balance(&world);
    for (which, principal) in PRINCIPALS.into_iter().enumerate() {
        assert_eq!(world.books(which), [(u64::from(principal), world.forwarded(which))]);
    }

    // Datagrams of every length that fits, there and back; the longest one that fits is told by the interface's MTU.
    let bind = |port| move || UdpSocket::bind(SocketAddr::from((LAST, port))).expect("a port");
    let (echo, names) = (
        world.site.server.within(bind(7)).expect("in its place"),
        world.site.server.within(bind(53)).expect("in its place"),
    );
    let own = world
        .site
        .client
        .within(|| UdpSocket::bind(SocketAddr::from((HOST, 0))))
        .expect("in its place")
        .expect("a port");
    for socket in [&echo, &names, &own] {
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    }
    let mut octets = [0; 2_048];
    for length in [0, 1, 7, 100, 1_000, 1_396] {
        let payload: Vec<u8> = (0..length).map(|number| number as u8).collect();
        own.send_to(&payload, (LAST, 7)).expect("sent");
        let (count, from) = echo.recv_from(&mut octets).expect("it arrives");
        assert_eq!((&octets[..count], from.ip()), (&payload[..], HOST.into()), "{length}");
        echo.send_to(&octets[..count], from).expect("sent back");
        assert_eq!(own.recv(&mut octets).expect("an answer"), count);
    }
    assert_eq!(stamper.count("stamper", "stamped"), stamped + 6);
    // Never: name servers' packets. They arrive as they were sent.
    own.send_to(b"who is", (LAST, 53)).expect("sent");
    let (count, _) = names.recv_from(&mut octets).expect("it arrives");
    assert_eq!(&octets[..count], b"who is");
    assert_eq!((stamper.count("left", "dns"), world.forwarded(0)), (1, stamped + 6));
    // Not by a rule without a route.
    own.send_to(b"free", "203.0.113.200:9").expect("sent");
    eventually("it leaves unchanged", || stamper.count("left", "rule") == 1);
    assert_eq!(stamper.status()["problems"].as_array().map(Vec::len), Some(0));
}

//! What may lie between a stamper and its waypoints, or reach a stamper: address translation, links with a smaller MTU, fragments, IP
//! options. What becomes of such packets is in the guide.
//!
//! PLA-14: address translation in front of a stamper, and between it and a waypoint; links with a smaller MTU in front
//! of the first waypoint and behind it; fragments; IP options: passes; refused and charged to nobody; the sender learns
//! the MTU less the stamps; left as they came and counted.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use serde_json::Value;
use wayleave_lab::netns::NetworkNamespace;
use wayleave_lab::routers::Installation;

use super::nft;
use super::world::{self, GATEWAY, PRINCIPALS, World, body, ip, settled, text};
use crate::router::common::eventually;
use crate::router::platypus::{HOST, LAST, Socket, WAYPOINTS};

const RULE: &str = "{ to = \"203.0.113.0/24\", route = \"paid\" }";

/// The client stamps, and a machine that forwards lies between it and everybody else.
fn behind(name: &str) -> World {
    let mut world = World::start(name, true);
    world.site.stamping = world.site.client.clone();
    world
}

/// The machine between gives the client's packets its own address where they leave by this interface.
fn translate(nft: &Installation, out: &str) -> NetworkNamespace {
    let edge = edge();
    let rules = format!(
        "table ip nat {{ chain post {{ type nat hook postrouting priority srcnat; policy accept; \
         oifname \"{out}\" ip saddr {HOST} snat to {}; }}; }}",
        GATEWAY[1]
    );
    nft::set(nft, &edge, &rules);
    edge
}

fn edge() -> NetworkNamespace {
    NetworkNamespace::Named("edge".to_owned())
}

/// Addresses are bound: a waypoint charges nobody for packets whose source somebody has changed on the way.
#[test]
fn packets_that_are_translated_behind_their_stamper_pass_no_waypoint_and_nobody_pays() {
    let name = "stamping::between::packets_that_are_translated_behind_their_stamper_pass_no_waypoint_and_nobody_pays";
    let Some(nft) = nft::fetched(name) else { return };
    if world::enter(name).is_none() {
        return;
    }
    let world = behind("stamping-nat");
    translate(&nft, "eth0");
    let _stamper = world.stamper(&format!("address = \"{HOST}\"\n"), RULE);
    let output = world.curl_from(&world.site.client, None, &["--max-time", "3"]);
    assert!(output.stdout.is_empty());
    let refused = settled(|| world.routers[0].count("reasons", "source"));
    assert!(refused > 0, "{}", world.routers[0].status());
    assert_eq!((world.forwarded(0), world.books(0)), (0, vec![]), "nobody pays");
}

#[test]
fn packets_that_are_translated_in_front_of_their_stamper_pass_with_the_address_that_they_were_given() {
    let name = "stamping::between::packets_that_are_translated_in_front_of_their_stamper_pass_with_the_address_that_they_were_given";
    let Some(nft) = nft::fetched(name) else { return };
    if world::enter(name).is_none() {
        return;
    }
    let world = World::start("stamping-nat-front", true);
    translate(&nft, "stamp*");
    let stamper = world.stamper("sources = [\"192.0.2.0/24\"]\n", RULE);
    let [first, second] = world.fetch(None);
    assert!(first > 10 && first == second, "{first} {second} {}", stamper.status());
    let peers = world.site.peers.lock().expect("noted").clone();
    assert_eq!(peers.last().map(ToString::to_string).as_deref(), Some(GATEWAY[1]), "the translated address");
    for (which, principal) in PRINCIPALS.into_iter().enumerate() {
        assert_eq!(world.books(which).first().map(|book| book.0), Some(u64::from(principal)));
    }
}

/// The MTU that the client's system knows for the server.
fn path_mtu(world: &World) -> Option<u64> {
    let output = world.site.client.command("ip").args(["-json", "route", "get", &LAST.to_string()]).output();
    let shown: Value = serde_json::from_slice(&output.expect("ip runs").stdout).expect("JSON");
    let metrics = shown[0]["metrics"].as_array()?;
    metrics.iter().find_map(|metric| metric["mtu"].as_u64())
}

#[test]
fn a_link_behind_a_waypoint_with_a_smaller_mtu_is_told_to_the_sender_less_what_stamps_take() {
    let name =
        "stamping::between::a_link_behind_a_waypoint_with_a_smaller_mtu_is_told_to_the_sender_less_what_stamps_take";
    if world::enter(name).is_none() {
        return;
    }
    let world = behind("stamping-pmtu");
    // The way from the first waypoint to the second leads over the machine between, and is narrow there.
    let [first, second] = WAYPOINTS.map(|waypoint| waypoint.to_string());
    ip(&format!("-n waypoint0 route add {second}/32 via {} dev eth0 onlink", GATEWAY[1]));
    ip(&format!("-n edge route add {second}/32 dev eth0 mtu lock 1300"));
    let edge = edge();
    let set = |place: &NetworkNamespace, key: &str, value: &str| {
        let path = format!("/proc/sys/net/ipv4/conf/{key}");
        place.within(|| std::fs::write(path, value)).expect("in its place").expect("set");
    };
    // No router tells another that there is a shorter way.
    for interface in ["all", "eth0", "inside"] {
        set(&edge, &format!("{interface}/send_redirects"), "0");
    }
    let stamper = world.stamper(&format!("address = \"{HOST}\"\n"), RULE);
    let shown = world.site.client.command("ip").args(["-json", "link", "show", "dev", "stamp0"]).output();
    let shown: Value = serde_json::from_slice(&shown.expect("ip runs").stdout).expect("JSON");
    let growth = 1_500 - shown[0]["mtu"].as_u64().expect("an MTU");
    // A request that takes several full packets.
    let header = format!("X-Long: {}", "x".repeat(6_000));
    let output = world.curl_from(&world.site.client, None, &["--header", &header]);
    assert!(output.stdout == body(), "{} {}", text(&output.stderr), world.routers[0].status());
    assert_eq!(path_mtu(&world), Some(1_300 - growth), "{first}: {}", stamper.status());
    assert!(world.forwarded(1) > 5);
}

/// On the way to the first waypoint nobody knows of the sender's packet but the stamper: its route has the MTU.
#[test]
fn a_link_in_front_of_the_first_waypoint_with_a_smaller_mtu_is_met_by_the_routes_own() {
    let name = "stamping::between::a_link_in_front_of_the_first_waypoint_with_a_smaller_mtu_is_met_by_the_routes_own";
    if world::enter(name).is_none() {
        return;
    }
    let world = behind("stamping-narrow");
    ip(&format!("-n edge route add {}/32 dev eth0 mtu lock 1300", WAYPOINTS[0]));
    let host = format!("address = \"{HOST}\"\n");
    let narrow = super::world::config(&host, RULE).replace("\"1.cap\"]", "\"1.cap\"], mtu = 1300");
    let place = world.site.client.clone();
    let stamper = crate::router::common::Router::start_role("stamper", &world.folder, "stamper", place, &narrow);
    let header = format!("X-Long: {}", "x".repeat(6_000));
    let output = world.curl_from(&world.site.client, None, &["--header", &header]);
    assert!(output.stdout == body(), "{} {}", text(&output.stderr), stamper.status());
    let [first, second] = settled(|| [world.forwarded(0), world.forwarded(1)]);
    assert!(first > 10 && first == second, "{first} {second}");
}

#[test]
fn fragments_and_packets_with_options_leave_a_stamper_as_they_came_and_are_counted() {
    let name = "stamping::between::fragments_and_packets_with_options_leave_a_stamper_as_they_came_and_are_counted";
    if world::enter(name).is_none() {
        return;
    }
    let world = behind("stamping-fragments");
    let stamper = world.stamper(&format!("address = \"{HOST}\"\n"), RULE);
    let listen = world.site.server.within(|| UdpSocket::bind(SocketAddr::from((LAST, 7))));
    let listen = listen.expect("in its place").expect("a port");
    listen.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    // With options: no operation, four times.
    let mut packet = vec![0; 24 + 8 + 4];
    (packet[0], packet[3], packet[8], packet[9]) = (0x46, 36, 64, 17);
    packet[12..16].copy_from_slice(&HOST.octets());
    packet[16..20].copy_from_slice(&LAST.octets());
    packet[20..24].fill(1);
    (packet[25], packet[27], packet[29]) = (9, 7, 12);
    packet[32..].copy_from_slice(b"what");
    world.site.client.within(|| Socket::new("0.0.0.0".parse().expect("an address"), 255).send(&packet)).expect("sent");
    let mut octets = [0; 4_096];
    let (count, from) = listen.recv_from(&mut octets).expect("it arrives");
    assert_eq!((&octets[..count], from.ip()), (&b"what"[..], HOST.into()));
    eventually("it is counted", || stamper.count("left", "malformed") == 1);
    // A datagram that is longer than a packet: the system divides it before it is stamped.
    let own = world.site.client.within(|| UdpSocket::bind(SocketAddr::from((HOST, 0))));
    let own = own.expect("in its place").expect("a port");
    own.send_to(&[7; 3_000], (LAST, 7)).expect("sent");
    let (count, _) = listen.recv_from(&mut octets).expect("it arrives");
    assert_eq!(octets[..count], [7; 3_000]);
    assert!(settled(|| stamper.count("left", "malformed")) >= 3, "{}", stamper.status());
    assert_eq!((world.forwarded(0), stamper.count("stamper", "stamped")), (0, 0), "nobody pays");
}

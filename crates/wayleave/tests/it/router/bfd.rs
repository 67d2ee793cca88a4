//! BFD between SCION routers: links of a dead router go down, senders get SCMP errors, and the links come up again.
//!
//! BFD-02: three ASes of which the last one's router, and one of the middle's two, are killed and started again:
//! neighbours notice, senders are told by SCMP which link it was, packets pass again; a reload changes nothing, also not one that
//! gives a sibling another number.
//! BFD-03: a neighbour played by hand, octets that are no BFD; its silence: one-hop paths under the AS's key; counted;
//! `/readyz` is not ready while the only session is down.
//! OPS, status pages: parameters that a page does not have: refused by name.

use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroU32;

use wayleave_dataplane::bfd::{ControlPacket, Diagnostic, State};
use wayleave_lab::netns::NetworkNamespace;
use wayleave_packet::scion::{
    Direction, ForwardingKey, Header, HostAddress, Packet, Path, hop_expiry, mac_input, next_header, scmp::Message,
};
use wayleave_runtime::clock::unix_now;

use super::common::{Folder, Router, eventually, free};
use super::scion::{DOWN, KEYS, UP, config, host, name, now, packet, path, receive, segment, socket};

/// A second of silence: less would end sessions of processes that a busy machine lets wait.
const BFD: &str = "[scion.bfd]\ntransmit_ms = 100\nreceive_ms = 100\nmultiplier = 10\n";

/// A configuration of [`config`] with more lines in `[scion]`, and BFD.
pub(crate) fn with_bfd(config: &str, more: &str) -> String {
    let (head, interfaces) = config.split_once("[[interface]]").expect("an interface");
    format!("{head}{more}{BFD}[[interface]]{interfaces}")
}

fn sessions(router: &Router) -> serde_json::Value {
    router.status()["bfd"]["sessions"].clone()
}

pub(crate) fn are(router: &Router, states: serde_json::Value) {
    eventually(&format!("the sessions are {states}"), || sessions(router) == states);
}

/// Three ASes in a row, the middle one with a router for each of its neighbours.
#[test]
fn a_dead_router_takes_its_links_down_senders_get_scmp_errors_and_the_links_come_up_again() {
    let folder = Folder::new("bfd");
    (0..3).for_each(|index| folder.keys(&format!("{index}.key"), "scion", &[(0, KEYS[index])]));
    let [a, b1, b2, c] = [free(), free(), free(), free()];
    let [ab, ba, bc, cb] = [free(), free(), free(), free()];
    let sibling = |id: u16, link: &str, neighbor: usize| {
        format!("[[interface]]\nid = {id}\nlink = \"{link}\"\nneighbor = \"{}\"\nsibling = 0\n", name(neighbor))
    };
    let other = |address: &str| format!("siblings = [\"{address}\"]\n");
    let configs = [
        with_bfd(&config(0, &a, "", &[(DOWN, "child", 1, &ab, &ba)]), ""),
        with_bfd(&config(1, &b1, "workers = 2\n", &[(UP, "parent", 0, &ba, &ab)]), &other(&b2))
            + &sibling(DOWN, "child", 2),
        with_bfd(&config(1, &b2, "", &[(DOWN, "child", 2, &bc, &cb)]), &other(&b1)) + &sibling(UP, "parent", 0),
        with_bfd(&config(2, &c, "", &[(UP, "parent", 1, &cb, &bc)]), ""),
    ];
    let names = ["a", "b1", "b2", "c"];
    let mut routers: Vec<Router> = names
        .iter()
        .zip(&configs)
        .map(|(name, config)| Router::start(&folder, name, NetworkNamespace::Own, config))
        .collect();
    let (alice, bob) = (host(), host());
    let (here, there) = (alice.local_addr().expect("bound"), bob.local_addr().expect("bound"));
    let segment = segment(now() - 60, KEYS);
    let send = |data: &[u8]| {
        let question = packet((0, here), (2, there), path(&segment, Direction::Construction), data);
        alice.send_to(&question, &a).expect("sent");
    };
    let all_up = |routers: &[Router]| {
        are(&routers[0], serde_json::json!({ "interface 2": "up" }));
        are(&routers[1], serde_json::json!({ "interface 1": "up", "sibling 0": "up" }));
        are(&routers[2], serde_json::json!({ "interface 2": "up", "sibling 0": "up" }));
        are(&routers[3], serde_json::json!({ "interface 1": "up" }));
    };
    all_up(&routers);
    send(b"first");
    assert_eq!(Packet::decode(&receive(&bob).0).expect("sound").payload[8..], *b"first");
    // The last AS's router dies: the one in front of it says so.
    routers[3].kill();
    are(&routers[2], serde_json::json!({ "interface 2": "down", "sibling 0": "up" }));
    // Errors come to the port that sent what they quote.
    send(b"second");
    let expected = Message::ExternalInterfaceDown { isd_as: name(1), interface: DOWN.into() };
    assert_eq!(error(&alice), expected);
    // And then the other router of the middle AS.
    routers[2].kill();
    are(&routers[1], serde_json::json!({ "interface 1": "up", "sibling 0": "down" }));
    send(&[0; 100]);
    let expected = Message::InternalConnectivityDown { isd_as: name(1), ingress: UP.into(), egress: DOWN.into() };
    assert_eq!(error(&alice), expected);
    // A reload neither ends sessions nor brings up what is down.
    routers[1].reload();
    are(&routers[1], serde_json::json!({ "interface 1": "up", "sibling 0": "down" }));
    send(&[0; 100]);
    assert_eq!(error(&alice), expected);
    assert_eq!(routers[1].count("reasons", "link_down"), 2);
    routers[2].start_process();
    routers[3].start_process();
    all_up(&routers);
    send(b"last");
    assert_eq!(Packet::decode(&receive(&bob).0).expect("sound").payload[8..], *b"last");
    // Another router takes the first place among siblings: the session that is up has another number now, and goes on.
    let file = std::fs::read_to_string(folder.0.join("b1.toml")).expect("its configuration");
    let both = format!("siblings = [\"{}\", \"{b2}\"]\n", free());
    folder.write("b1.toml", &file.replace(&other(&b2), &both).replace("sibling = 0", "sibling = 1"));
    routers[1].reload();
    are(&routers[1], serde_json::json!({ "interface 1": "up", "sibling 0": "down", "sibling 1": "up" }));
    assert!(!routers[1].json("events").to_string().contains("sibling 1"), "{}", routers[1].json("events"));
    assert!(routers.iter().all(|router| router.status()["bfd"]["malformed"] == 0));
    let events = routers[1].json("events").to_string();
    assert!(events.contains("sibling 0") && events.contains("down"), "{events}");
}

fn error(socket: &UdpSocket) -> Message {
    let (octets, _) = receive(socket);
    let packet = Packet::decode(&octets).expect("sound");
    assert_eq!(packet.header.next_header, next_header::SCMP);
    Message::decode(&packet.payload).expect("SCMP").0
}

/// A neighbour of another make: what it gets is BFD in a one-hop path to it, and its session lives as long as it speaks.
#[test]
fn a_neighbour_gets_bfd_in_one_hop_paths_and_silence_takes_the_link_down() {
    let folder = Folder::new("bfd-neighbour");
    folder.keys("1.key", "scion", &[(0, KEYS[1])]);
    let neighbor = socket("127.0.0.1:0");
    let (inside, own) = (free(), free());
    let remote = neighbor.local_addr().expect("bound").to_string();
    let config = with_bfd(&config(1, &inside, "", &[(UP, "parent", 0, &own, &remote)]), "");
    let router = Router::start(&folder, "router", NetworkNamespace::Own, &config);
    let (octets, from) = receive(&neighbor);
    let got = Packet::decode(&octets).expect("sound");
    assert_eq!(from, own.parse::<SocketAddr>().expect("an address"));
    assert_eq!((got.header.dst, got.header.src, got.header.next_header), (name(0), name(1), next_header::BFD));
    let Path::OneHop(hop) = &got.header.path else { panic!("{:?}", got.header.path) };
    assert!(hop.info.construction && hop.first.cons_egress == UP && hop.first.cons_ingress == 0);
    assert!(hop_expiry(hop.info.timestamp, hop.first.exp_time) > unix_now());
    let input = mac_input(hop.info.seg_id, hop.info.timestamp, hop.first.exp_time, 0, UP);
    assert_eq!(hop.first.mac, ForwardingKey::new(&KEYS[1]).hop_mac(&input));
    let first = ControlPacket::decode(&got.payload).expect("BFD");
    assert_eq!((first.state, first.yours, first.desired_min_tx), (State::Down, None, 1_000_000));
    // What is no BFD packet is counted, and changes nothing.
    let key = ForwardingKey::new(&KEYS[0]);
    let say = |payload: Vec<u8>| {
        let header = Header {
            traffic_class: 0,
            flow_id: 0xdead,
            next_header: next_header::BFD,
            dst: name(1),
            src: name(0),
            dst_host: HostAddress::V4([127, 0, 0, 1].into()),
            src_host: HostAddress::V4([127, 0, 0, 1].into()),
            path: Path::OneHop(key.one_hop(0, now(), 63, 77)),
        };
        neighbor.send_to(&Packet { header, payload }.encode(), &own).expect("sent");
    };
    say(b"this is no packet of BFD".to_vec());
    eventually("it is counted", || router.status()["bfd"]["malformed"] == 1);
    let packet = |state, yours| ControlPacket {
        diagnostic: Diagnostic::NONE,
        state,
        poll: false,
        is_final: false,
        is_independent: false,
        demand: false,
        detect_multiplier: 3,
        mine: NonZeroU32::new(7).expect("not zero"),
        yours,
        // The least that waits for a test's slow questions: 1.5 seconds of silence.
        desired_min_tx: 500_000,
        required_min_rx: 100_000,
        required_min_echo_rx: 0,
    };
    are(&router, serde_json::json!({ "interface 1": "down" }));
    // A router whose only link does not work forwards nothing.
    let not_ready = || {
        let answer = router.ask("/readyz");
        answer.starts_with("HTTP/1.0 503") && answer.contains("no BFD session is up: interface 1")
    };
    eventually("it is not ready", not_ready);
    let slow = ControlPacket { desired_min_tx: 5_000_000, ..packet(State::Down, None) };
    say(slow.encode().to_vec());
    are(&router, serde_json::json!({ "interface 1": "init" }));
    // The other end's silence would be noticed soon: it speaks until the session is seen to be up.
    eventually("the session is up", || {
        say(packet(State::Init, Some(first.mine)).encode().to_vec());
        sessions(&router) == serde_json::json!({ "interface 1": "up" })
            && router.ask("/readyz").starts_with("HTTP/1.0 200")
    });
    are(&router, serde_json::json!({ "interface 1": "down" }));
    eventually("it is not ready again", not_ready);
    // A misspelt parameter is not ignored.
    let answer = router.ask("/api/v1/status?most=7");
    assert!(answer.starts_with("HTTP/1.0 400") && answer.contains("unknown parameter `most`"), "{answer}");
    let last = loop {
        let heard = ControlPacket::decode(&Packet::decode(&receive(&neighbor).0).expect("sound").payload).expect("BFD");
        if heard.state == State::Down && heard.diagnostic != Diagnostic::NONE {
            break heard;
        }
    };
    assert_eq!((last.diagnostic, last.mine), (Diagnostic::TIME_EXPIRED, first.mine));
}

//! DNS is never stamped, at the host itself: neither the stamper's own look-ups nor anybody else's, by UDP or by TCP, although the
//! resolver lies where a capability is for. Otherwise a host whose secrets have run out could never ask for others.
//!
//! PLA-07, DNS at a stamping host: a host whose capability covers every destination, its resolver too: questions of the
//! stamper's and of other programs, by UDP and TCP, leave without a stamp; all else is stamped; secrets are renewed
//! over the ends of epochs.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

use hickory_proto::op::{Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RecordType};
use wayleave_lab::wire::Capture;

use super::world::{self, World, settled};
use crate::router::common::{Router, eventually};
use crate::router::platypus::{HOST, LAST, PLATYPUS};

/// Octets of an Ethernet header; of an IPv4 header without options.
const ETHERNET: usize = 14;
const IPV4: usize = 20;

/// An IPv4 packet of the host's.
fn is_own(frame: &[u8]) -> bool {
    frame.get(12..ETHERNET) == Some(&[8, 0]) && frame.get(26..30) == Some(&HOST.octets())
}

/// Packets for a name server, of this protocol, that carry no stamp; and stamped ones with a question for our zone in them.
fn seen(capture: &Capture, protocol: u8) -> (usize, usize) {
    let port = 53_u16.to_be_bytes();
    let frames = capture.frames();
    let plain = frames.iter().filter(|frame| {
        frame[ETHERNET + 9] == protocol
            && frame[30..34] == LAST.octets()
            && frame.get(ETHERNET + IPV4 + 2..ETHERNET + IPV4 + 4) == Some(&port)
    });
    let zone = b"\x04keys\x07example\x03net";
    let stamped = frames.iter().filter(|frame| {
        frame[ETHERNET + 9] == PLATYPUS && frame[ETHERNET + IPV4..].windows(zone.len()).any(|window| window == zone)
    });
    (plain.count(), stamped.count())
}

fn question() -> Vec<u8> {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_ascii("keys.example.net.").expect("a name"), RecordType::SOA));
    message.to_vec().expect("encoded")
}

#[test]
fn questions_leave_the_host_without_a_stamp_by_udp_and_tcp_and_secrets_are_renewed() {
    let name = "stamping::dns::questions_leave_the_host_without_a_stamp_by_udp_and_tcp_and_secrets_are_renewed";
    if world::enter(name).is_none() {
        return;
    }
    let world = World::start("stamping-dns", false);
    let keys = world.key_server();
    (0..2).for_each(|which| world.grant(which));
    // Everything is to be stamped, the way to the resolver too.
    let config = format!(
        "[host]\nresolvers = [\"{LAST}\"]\n[stamper]\n\
         routes = [{{ name = \"paid\", capabilities = [\"0.line\", \"1.line\"] }}]\n\
         rules = [{{ to = \"0.0.0.0/0\", route = \"paid\" }}]\n"
    );
    let stamper = Router::start_role("stamper", &world.folder, "stamper", world.site.stamping.clone(), &config);
    eventually("both secrets are found", || stamper.status()["problems"] == serde_json::json!([]));
    let capture = Capture::start(&world.site.client, is_own).expect("a capture");

    // Anything else is stamped: a page by TCP.
    let [first, second] = world.fetch(None);
    assert!(first > 10 && first == second, "{first} {second} {}", stamper.status());
    let stamped = || settled(|| (stamper.count("stamper", "stamped"), world.forwarded(0)));
    let before = stamped();

    // Questions of any program, by UDP and by TCP: answered, and not a packet of them is stamped.
    world
        .site
        .client
        .within(|| {
            let socket = UdpSocket::bind((HOST, 0)).expect("a port");
            socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
            let mut octets = [0; 1_500];
            for _ in 0..20 {
                socket.send_to(&question(), (LAST, 53)).expect("sent");
                let length = socket.recv(&mut octets).expect("an answer");
                assert_eq!(Message::from_vec(&octets[..length]).expect("a message").metadata.id, 7);
            }
            let mut stream = TcpStream::connect((LAST, 53)).expect("connected");
            stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
            for _ in 0..20 {
                let octets = question();
                stream.write_all(&[&(octets.len() as u16).to_be_bytes()[..], &octets].concat()).expect("sent");
                let mut length = [0; 2];
                stream.read_exact(&mut length).expect("an answer");
                let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
                stream.read_exact(&mut answer).expect("an answer");
                assert_eq!(Message::from_vec(&answer).expect("a message").metadata.id, 7);
            }
        })
        .expect("in its place");
    assert_eq!(stamped(), before, "{}", stamper.status());
    let (udp, tcp) = (seen(&capture, 17), seen(&capture, 6));
    assert!(udp.0 >= 20 && tcp.0 >= 20, "{udp:?} {tcp:?}");
    assert_eq!((udp.1, tcp.1), (0, 0), "stamped questions");
    assert!(stamper.count("left", "dns") >= 40, "{}", stamper.status());

    // The stamper's own: over the ends of key epochs of sixteen seconds it finds the next secrets, and goes on stamping.
    let found = || stamper.count("lookups", "found");
    let at_first = found();
    eventually("the secrets of two more epochs are found", || {
        let [first, second] = world.fetch(None);
        assert!(first > 10 && first == second, "{first} {second} {}", stamper.status());
        found() >= at_first + 4
    });
    let after = seen(&capture, 17);
    assert!(after.0 >= udp.0 + 4, "{after:?}");
    assert_eq!(after.1, 0);
    assert_eq!(stamper.count("left", "epoch"), 0);
    assert!(keys.count("answers", "secrets") >= at_first + 4, "{}", keys.status());
}

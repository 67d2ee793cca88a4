//! Deliberately bad BGP peers: each has a name, what it does, and what must come of it.

use super::{announce, encode, keepalive, open, open_body, peer_open, raw};
use wayleave_bgp::{AddPathEntry, AddPathMode, Capability, GracefulRestartFamily, Message, end_of_rib};
use wayleave_core::Afi;

const ONES: [u8; 16] = [0xff; 16];
const ID: [u8; 4] = [10, 0, 0, 2];

/// What must come of a misbehaviour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The connection ends with a NOTIFICATION of this code and subcode.
    Told(u8, u8),
    /// The connection ends without a word (a NOTIFICATION is not answered).
    Silence,
    /// The session stands, and this many UPDATEs were counted as malformed.
    Stands { malformed: u64 },
    /// Nothing comes of it before a timer: the state stays what it was.
    Waits,
}

/// A peer that does one thing wrong.
pub struct BadPeer {
    pub name: &'static str,
    /// The session is brought to Established first.
    pub established: bool,
    pub octets: Vec<u8>,
    pub verdict: Verdict,
}

fn in_open(name: &'static str, octets: Vec<u8>, verdict: Verdict) -> BadPeer {
    BadPeer { name, established: false, octets, verdict }
}

fn in_established(name: &'static str, octets: Vec<u8>, verdict: Verdict) -> BadPeer {
    BadPeer { name, established: true, octets, verdict }
}

/// An UPDATE with these path attributes and, withdrawn and announced, these prefixes as octets.
pub fn update(withdrawn: &[u8], attributes: &[u8], announced: &[u8]) -> Vec<u8> {
    let mut body = (withdrawn.len() as u16).to_be_bytes().to_vec();
    body.extend_from_slice(withdrawn);
    body.extend_from_slice(&(attributes.len() as u16).to_be_bytes());
    body.extend_from_slice(attributes);
    body.extend_from_slice(announced);
    raw(ONES, None, 2, &body)
}

/// ORIGIN, AS_PATH of the peer alone, NEXT_HOP, then `more`.
pub fn sound_attributes(more: &[u8]) -> Vec<u8> {
    let mut attributes = vec![0x40, 1, 1, 0, 0x40, 2, 6, 2, 1, 0, 0, 0xfb, 0xff, 0x40, 3, 4, 192, 0, 2, 1];
    attributes.extend_from_slice(more);
    attributes
}

const PREFIX: [u8; 4] = [24, 198, 51, 100];

fn capability(capability: Capability) -> Vec<u8> {
    let mut open = open();
    open.capabilities.push(capability);
    encode(&Message::Open(open))
}

/// Those who cannot say hello.
pub fn bad_openers() -> Vec<BadPeer> {
    use Verdict::{Silence, Told, Waits};
    let body = |parameters: &[u8]| raw(ONES, None, 1, &open_body(4, 64511, 90, ID, parameters));
    let mut repeated = open();
    repeated.capabilities = vec![Capability::RouteRefresh; 100];
    let mut unknown = open();
    unknown.capabilities.extend((0..40).map(|i| Capability::Unknown { code: 128 + i, value: vec![i; 5] }));
    vec![
        in_open("speaks HTTP", b"GET / HTTP/1.1\r\nHost: example.net\r\n\r\n".to_vec(), Told(1, 1)),
        in_open("speaks TLS", [&[22u8, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3][..], &[7; 40]].concat(), Told(1, 1)),
        in_open("says nothing", vec![], Waits),
        in_open("stops within the header", ONES.to_vec(), Waits),
        in_open("stops within OPEN", peer_open()[..28].to_vec(), Waits),
        in_open("starts with KEEPALIVE", keepalive(), Told(5, 1)),
        in_open("starts with UPDATE", announce(&["192.0.2.0/24"]), Told(5, 1)),
        in_open("says goodbye at once", raw(ONES, None, 3, &[6, 5]), Silence),
        in_open("says hello twice", [peer_open(), peer_open()].concat(), Told(5, 2)),
        in_open("hello, then routes before KEEPALIVE", [peer_open(), announce(&["192.0.2.0/24"])].concat(), Told(5, 2)),
        in_open("OPEN of 28 octets", raw(ONES, None, 1, &[0; 9]), Told(1, 2)),
        in_open("OPEN of 4097 octets", raw(ONES, Some(4_097), 1, &[]), Told(1, 2)),
        in_open("parameters run beyond OPEN", body(&[2, 200, 1, 4]), Told(2, 0)),
        in_open("capability runs beyond its parameter", body(&[2, 4, 65, 9, 0, 0]), Told(2, 0)),
        in_open("multiprotocol capability of 3 octets", body(&[2, 5, 1, 3, 0, 1, 0]), Told(2, 0)),
        in_open("four-octet capability of 2 octets", body(&[2, 4, 65, 2, 251, 255]), Told(2, 0)),
        in_open("authentication parameter of old", body(&[1, 2, 0, 0]), Told(2, 4)),
        in_open("a hundred times the same capability", encode(&Message::Open(repeated)), Waits),
        in_open("forty unknown capabilities", encode(&Message::Open(unknown)), Waits),
        in_open(
            "ADD-PATH for odd families and modes",
            capability(Capability::AddPath(vec![
                AddPathEntry { afi: 25, safi: 70, mode: AddPathMode::Both },
                AddPathEntry { afi: 1, safi: 1, mode: AddPathMode::Other(9) },
            ])),
            Waits,
        ),
        in_open(
            "graceful restart for odd families",
            capability(Capability::GracefulRestart {
                flags: 0xf,
                restart_time: 4_095,
                families: vec![GracefulRestartFamily { afi: 99, safi: 99, flags: 0xff }; 20],
            }),
            Waits,
        ),
    ]
}

/// Those who behave until they are trusted.
pub fn bad_talkers() -> Vec<BadPeer> {
    use Verdict::{Silence, Stands, Told};
    let withdraws = |attributes: &[u8]| update(&[], attributes, &PREFIX);
    vec![
        in_established("speaks garbage after a KEEPALIVE", [keepalive(), vec![0xee; 64]].concat(), Told(1, 1)),
        in_established("says hello again", peer_open(), Told(5, 3)),
        in_established("type 0", raw(ONES, None, 0, &[]), Told(1, 3)),
        in_established("type 6", raw(ONES, None, 6, &[]), Told(1, 3)),
        in_established("UPDATE of 22 octets", raw(ONES, None, 2, &[0, 0, 0]), Told(1, 2)),
        in_established("long message without agreement", raw(ONES, Some(5_000), 2, &[0; 200]), Told(1, 2)),
        in_established("NOTIFICATION of 20 octets", raw(ONES, None, 3, &[6]), Told(1, 2)),
        in_established("unknown NOTIFICATION", raw(ONES, None, 3, &[99, 99, 1, 2, 3]), Silence),
        in_established("ROUTE-REFRESH of 3 octets", raw(ONES, None, 5, &[0, 1, 0]), Told(7, 1)),
        in_established("withdrawn routes run beyond UPDATE", raw(ONES, None, 2, &[0xff, 0xff, 0, 0]), Told(3, 1)),
        in_established("attributes run beyond UPDATE", raw(ONES, None, 2, &[0, 0, 0xff, 0xff]), Told(3, 1)),
        in_established(
            "IPv4 prefix of 33 bits",
            update(&[], &sound_attributes(&[]), &[33, 1, 2, 3, 4, 5]),
            Told(3, 10),
        ),
        in_established("prefix cut short", update(&[], &sound_attributes(&[]), &[24, 1]), Told(3, 10)),
        in_established(
            "MP_REACH_NLRI twice",
            withdraws(&sound_attributes(
                &[0x80, 14, 21, 0, 2, 1, 16, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0].repeat(2),
            )),
            Told(3, 1),
        ),
        in_established(
            "ORIGIN 7",
            withdraws(&[&[0x40, 1, 1, 7][..], &sound_attributes(&[])[4..]].concat()),
            Stands { malformed: 1 },
        ),
        in_established("no NEXT_HOP", withdraws(&sound_attributes(&[])[..13]), Stands { malformed: 1 }),
        in_established("no attribute at all, yet routes", withdraws(&[]), Stands { malformed: 1 }),
        in_established(
            "attribute runs beyond the list",
            withdraws(&sound_attributes(&[0xc0, 8, 200, 1])),
            Stands { malformed: 1 },
        ),
        in_established(
            "communities of 3 octets",
            withdraws(&sound_attributes(&[0xc0, 8, 3, 1, 2, 3])),
            Stands { malformed: 1 },
        ),
        in_established("ORIGIN twice", withdraws(&sound_attributes(&[0x40, 1, 1, 0])), Stands { malformed: 1 }),
        in_established(
            "only unknown attributes, no routes (BGP-03)",
            update(&[], &[0xc0, 99, 2, 1, 2, 0xc0, 100, 0], &[]),
            Stands { malformed: 0 },
        ),
        in_established("attributes without routes", update(&[], &sound_attributes(&[]), &[]), Stands { malformed: 0 }),
        in_established("withdraws what it never announced", update(&PREFIX, &[], &[]), Stands { malformed: 0 }),
        in_established("End-of-RIB a hundred times", end_of_rib(Afi::Ipv6).repeat(100), Stands { malformed: 0 }),
        in_established("ten thousand KEEPALIVEs at once", keepalive().repeat(10_000), Stands { malformed: 0 }),
        in_established("ROUTE-REFRESH for an odd family", raw(ONES, None, 5, &[0, 25, 0, 70]), Stands { malformed: 0 }),
    ]
}

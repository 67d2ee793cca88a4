//! `run attest` with what the RPKI says: an RTR cache, and router certificates in a folder.
#![allow(clippy::disallowed_methods, reason = "a test starts the program")]

mod program;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use program::attesting::{PREFIX, Proxy, own, prefix, speaker};
use program::{Folder, eventually, free, text};
use serde_json::json;
use wayleave_attestation::baseline::bgpsec::ski;
use wayleave_bgp::AttributeCode;

const ORIGIN: u32 = 64_496;
const LAST: u32 = 64_497;

/// A cache of a few items, which answers every query with all of them (RFC 8210).
struct Cache {
    address: String,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    serial: u32,
    items: Vec<u8>,
    clients: Vec<TcpStream>,
    is_gone: bool,
}

/// A PDU of version 1: type, session or flags, and what follows the length.
fn pdu(kind: u8, session: u16, body: &[u8]) -> Vec<u8> {
    let mut out = vec![1, kind];
    out.extend(session.to_be_bytes());
    out.extend(u32::try_from(8 + body.len()).expect("short").to_be_bytes());
    out.extend(body);
    out
}

/// That `asn` may originate 192.0.2.0/24.
fn origin(asn: u32) -> Vec<u8> {
    pdu(4, 0, &[&[1, 24, 24, 0, 192, 0, 2, 0][..], &asn.to_be_bytes()].concat())
}

/// That `point`, of P-256, is a key of a router of `asn`.
fn router_key(asn: u32, point: &[u8]) -> Vec<u8> {
    let head = [
        0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48,
        0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
    ];
    let ski = ski(point.try_into().expect("65 octets"));
    pdu(9, 0x0100, &[&ski[..], &asn.to_be_bytes(), &head, point].concat())
}

impl Cache {
    fn start(items: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let inner = Arc::new(Mutex::new(Inner { serial: 1, items, ..Inner::default() }));
        let of_thread = Arc::clone(&inner);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), inner) = (client, Arc::clone(&of_thread)) else { return };
                if lock(&inner).is_gone {
                    return;
                }
                lock(&inner).clients.push(client.try_clone().expect("a socket"));
                thread::spawn(move || serve(client, &inner));
            }
        });
        Self { address, inner }
    }

    /// Says something else from now on, and tells everybody.
    fn change(&self, items: Vec<u8>) {
        let mut inner = lock(&self.inner);
        inner.serial += 1;
        inner.items = items;
        let notify = pdu(0, 7, &inner.serial.to_be_bytes());
        inner.clients.retain_mut(|client| client.write_all(&notify).is_ok());
    }

    fn stop(&self) {
        let mut inner = lock(&self.inner);
        inner.is_gone = true;
        inner.clients.drain(..).for_each(|client| drop(client.shutdown(std::net::Shutdown::Both)));
    }
}

fn lock(inner: &Mutex<Inner>) -> std::sync::MutexGuard<'_, Inner> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(mut client: TcpStream, inner: &Mutex<Inner>) {
    let mut head = [0; 8];
    while client.read_exact(&mut head).is_ok() {
        let length = u32::from_be_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let mut rest = vec![0; length.saturating_sub(8)];
        if client.read_exact(&mut rest).is_err() {
            return;
        }
        let answer = match head[1] {
            // A reset query.
            2 => {
                let inner = lock(inner);
                let end = [inner.serial, 3600, 600, 7200].map(u32::to_be_bytes).concat();
                [pdu(3, 7, &[]), inner.items.clone(), pdu(7, 7, &end)].concat()
            }
            // A serial query: begin anew.
            1 => pdu(8, 0, &[]),
            _ => return,
        };
        if client.write_all(&answer).is_err() {
            return;
        }
    }
}

/// The key of a file of attestation keys, as octets.
fn public_key(shown: &str) -> Vec<u8> {
    let hex = shown.lines().find_map(|line| line.strip_prefix("attest  kc-p256:")).expect("a key");
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex")).collect()
}

#[test]
fn a_cache_names_origins_and_router_keys_and_is_heeded_without_a_new_update() {
    let folder = Folder::new("attest-rtr");
    let shown = folder.ok(&["keys", "attest", "64496.key", "--asn", "64496", "--suite", "kc-p256"]);
    folder.ok(&["keys", "attest", "64497.key", "--asn", "64497"]);
    let key = router_key(ORIGIN, &public_key(&shown));
    let cache = Cache::start([origin(ORIGIN), key.clone()].concat());
    let rpki = format!("[rpki]\ncache = \"{}\"\n", cache.address);
    let meet = free();
    let keys = |asn: u32| format!("signing = \"{asn}.key\"\n");
    let a = Proxy::with_keys(&folder, ORIGIN, &format!("connect = \"{meet}\""), &keys(ORIGIN), &rpki);
    let b = Proxy::with_keys(&folder, LAST, &format!("listen = \"{meet}\""), &keys(LAST), &rpki);
    let (left, right) = (speaker(ORIGIN, LAST, 1, &a), speaker(LAST, ORIGIN, 2, &b));
    left.announce(own(ORIGIN));
    let has = || right.learned().get(&prefix()).is_some_and(|route| route.get(AttributeCode(255)).is_some());
    eventually("the route arrives, attested", has);
    assert_eq!(b.class(), "valid");
    let why = text(&b.ask(&["why", PREFIX]).stdout);
    assert!(why.contains("+ AS64496  signed with kc-p256 and its registered key: proved"), "{why}");
    assert_eq!(a.json(&["show", "keys"])["keys"][0]["registered"], true);
    let known = b.json(&["show", "status"])["known"]["cache"].clone();
    let expected = json!({ "address": cache.address, "standing": "current", "vrps": 1, "router_keys": 1 });
    assert_eq!(known, expected);

    // Another AS may originate it now.
    cache.change([origin(64_499), key.clone()].concat());
    eventually("the route is refused", || right.learned().is_empty());
    assert_eq!(b.class(), "invalid");
    cache.change([origin(ORIGIN), key].concat());
    eventually("the route is let in again", has);
    // The router's key is taken back: nobody can prove anything, and the origin signs no more.
    cache.change(origin(ORIGIN));
    eventually("nothing is claimed", || b.class() == "unattested");
    cache.stop();
    eventually("the cache is missed", || b.json(&["show", "status"])["known"]["cache"]["standing"] == "stale");
    assert!(b.log().contains("ALARM: the RTR cache is gone; what it said counts until it expires"));
    // What it said still counts.
    assert_eq!(b.json(&["show", "status"])["known"]["vrps"], 1);
    assert!(right.learned().contains_key(&prefix()));
}

#[test]
fn check_knows_the_rpki_s_keys() {
    let folder = Folder::new("attest-rpki-check");
    let check = |rpki: &str| {
        folder.write("a.toml", &format!("[attest]\nasn = 64496\nstate = \"a.redb\"\n[keys]\n[rpki]\n{rpki}\n"));
        let output = folder.run(&["check", "a.toml"]);
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let (code, said) = check("cache = \"127.0.0.1:3323\"");
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("no origin's key is known"), "{said}");
    for (wrong, expected) in [
        ("cache = \"127.0.0.1\"", "expected a host and port"),
        ("tls = { name = \"a.example\", authorities = \"ca.pem\" }", "`tls` without a cache"),
        ("certificates = \"rpki\"", "certificates under no trust anchor"),
        ("anchors = [\"ta.cer\"]", "trust anchors without certificates"),
        ("cashe = 1", "unknown field `cashe`"),
    ] {
        let (code, said) = check(wrong);
        assert_eq!(code, Some(1), "{wrong}");
        assert!(said.contains(expected), "{wrong}: {said}");
    }
    folder.write("ca.pem", "nothing");
    let (code, said) = check("cache = \"127.0.0.1:3323\"\ntls = { name = \"a.example\", authorities = \"ca.pem\" }");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("it holds no certificate"), "{said}");
}

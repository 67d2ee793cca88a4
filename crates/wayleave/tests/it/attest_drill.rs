//! An attesting proxy, as a process, beside a neighbour that sends without end: its memory and its log.
//!
//! `WAYLEAVE_DRILL` multiplies what the neighbour sends in a round; `scripts/soak` sends the whole of it.
//!
//! KCX-39: the built proxy in rounds of 2,000 ordinary UPDATEs with ever new attestations, half of them false, and 100
//! of 16,000 octets (20,000 and 1,000 in `make soak`, `WAYLEAVE_DRILL`): memory does not rise after the first round and
//! stays within `most_memory_mib` of where it began; lines and suppressed lines together are the routes that were
//! refused.
#![allow(clippy::disallowed_methods, reason = "a test opens sockets and reads what the kernel says of a process")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::common::attesting::Proxy;
use crate::common::{Folder, eventually, free};
use wayleave_attestation::chain::TYPE_CODE;
use wayleave_attestation::leaf::Leaf;
use wayleave_attestation::sign::{self, KeyPair, KeyRing, Origination, Recipient, Speaker};
use wayleave_attestation::suite::{self, SuiteId};
use wayleave_bgp::{
    AsPathBuf, AttributeCode, AttributeFlags, Attributes, Capability, Message, Open, Origin, SessionParams,
};
use wayleave_core::{Asn, Prefix};
use wayleave_crypto::secret::Secret;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::identity::to_hex;

const OWN: u32 = 64_497;
const NEIGHBOUR: u32 = 64_498;
/// Prefixes over which the neighbour sends.
const PREFIXES: u32 = 1_000;
/// UPDATEs of a round: ordinary ones with ever new paths, and such of 16,000 octets.
const ORDINARY: u32 = 2_000;
const LARGE: u32 = 100;
const LARGE_OCTETS: usize = 16_000;
const ROUNDS: usize = 4;
/// What the pair's routes may take, in MiB: the least that the configuration takes.
const MOST_MIB: u64 = 64;

/// The type and the body of the next message.
fn message(reader: &mut TcpStream) -> std::io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 19];
    reader.read_exact(&mut head)?;
    let mut body = vec![0; usize::from(u16::from_be_bytes([head[16], head[17]])) - head.len()];
    reader.read_exact(&mut body)?;
    Ok((head[18], body))
}

/// A speaker that sends octets, and reads and forgets what comes.
struct Raw {
    stream: TcpStream,
    is_up: Arc<AtomicBool>,
    is_closed: Arc<AtomicBool>,
    /// Codes of NOTIFICATIONs.
    ended: Arc<Mutex<Vec<[u8; 2]>>>,
}

impl Raw {
    fn connect(asn: u32, number: u8, to: &str) -> Self {
        let stream = TcpStream::connect(to).expect("the proxy listens");
        let raw = Self { stream, is_up: Arc::default(), is_closed: Arc::default(), ended: Arc::default() };
        let capabilities = vec![
            Capability::Multiprotocol { afi: 1, safi: 1 },
            Capability::ExtendedMessage,
            Capability::FourOctetAs(Asn(asn)),
        ];
        // Without a hold time nobody sends KEEPALIVEs.
        let open = Open { asn: Asn(asn), hold_time: 0, identifier: [192, 0, 2, number].into(), capabilities };
        raw.send(&encoded(&Message::Open(open)));
        let mut reader = raw.stream.try_clone().expect("a descriptor");
        let (is_up, is_closed, ended) = (Arc::clone(&raw.is_up), Arc::clone(&raw.is_closed), Arc::clone(&raw.ended));
        std::thread::spawn(move || {
            while let Ok((kind, body)) = message(&mut reader) {
                match kind {
                    // Whoever closed the connection meanwhile is told of it by the next read.
                    1 => drop(reader.write_all(&encoded(&Message::Keepalive))),
                    3 => ended.lock().expect("no panic within").push([body[0], body[1]]),
                    4 => is_up.store(true, Ordering::Relaxed),
                    _ => {}
                }
            }
            is_closed.store(true, Ordering::Relaxed);
        });
        raw
    }

    /// Connects until the session is up: one that the proxy has just lost from the same address may still stand in the way.
    fn is_up(&mut self, asn: u32, number: u8, to: &str) -> bool {
        if self.is_closed.load(Ordering::Relaxed) {
            *self = Self::connect(asn, number, to);
        }
        self.is_up.load(Ordering::Relaxed)
    }

    fn send(&self, octets: &[u8]) {
        (&self.stream).write_all(octets).expect("it reads");
    }
}

fn encoded(message: &Message) -> Vec<u8> {
    message.encode(&SessionParams::new(Asn(0), Asn(0))).expect("short")
}

fn prefix(number: u32) -> Prefix {
    Prefix::new((0x0a00_0000 | (number % PREFIXES) << 8).to_be_bytes().into(), 24).expect("a prefix")
}

/// An UPDATE of one prefix.
fn update(prefix: Prefix, path: &[u32], value: &[u8]) -> Vec<u8> {
    let path: Vec<Asn> = path.iter().copied().map(Asn).collect();
    let mut edit = Attributes::builder();
    edit.origin(Origin::Igp).as_path(AsPathBuf::from_sequence(&path).as_path()).ipv4_next_hop([192, 0, 2, 2].into());
    edit.set(AttributeCode(TYPE_CODE), AttributeFlags::OPTIONAL_TRANSITIVE, value);
    let attributes = edit.finish();
    let length = |length: usize| u16::try_from(length).expect("it fits").to_be_bytes();
    let octets = attributes.as_octets();
    let mut update = vec![0xff; 16];
    update.extend_from_slice(&length(23 + octets.len() + 4));
    update.extend_from_slice(&[2, 0, 0]);
    update.extend_from_slice(&length(octets.len()));
    update.extend_from_slice(octets);
    update.push(24);
    update.extend_from_slice(&prefix.octets()[..3]);
    update
}

/// The neighbour, with a key that is registered.
struct Neighbour {
    ring: KeyRing,
    raw: Raw,
    sent: u32,
}

impl Neighbour {
    /// One round; its paths and attestations are all new.
    fn round(&mut self, factor: u32) {
        let speaker = Speaker { asn: Asn(NEIGHBOUR), prepend: 1, not_before: unix_now().secs(), lifetime: 60 };
        for number in 0..ORDINARY * factor {
            self.sent += 1;
            let (prefix, leaf) = (prefix(number), Leaf::keyless());
            let origination = Origination { prefixes: &[prefix], sequence: self.sent.into() };
            let onward = Recipient::Neighbour(Asn(OWN), leaf.view());
            let mut value = sign::originate(&origination, &speaker, &mut self.ring, onward).expect("it signs").value;
            // One in two is right; of the others one has a wrong signature, one another path.
            let far = 100_000 + self.sent;
            let path: &[u32] = match number % 4 {
                1 => &[NEIGHBOUR, far],
                _ => &[NEIGHBOUR],
            };
            if number % 4 == 3 {
                *value.last_mut().expect("octets") ^= 1;
            }
            self.raw.send(&update(prefix, path, &value));
        }
        for number in 0..LARGE * factor {
            self.sent += 1;
            let mut value = vec![1; LARGE_OCTETS];
            value[..4].copy_from_slice(&self.sent.to_be_bytes());
            self.raw.send(&update(prefix(number), &[NEIGHBOUR, 100_000 + self.sent], &value));
        }
    }
}

/// The proxy's resident memory in octets.
fn resident(proxy: &Proxy) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", proxy.id())).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line of it");
    1024 * line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok()).expect("a number")
}

/// Octets of all tables, none of them above its bound.
fn accounts(status: &Value) -> u64 {
    let tables = status["memory"].as_object().expect("tables");
    let octets = tables.iter().map(|(name, table)| {
        let (octets, most) = (table["octets"].as_u64().expect("octets"), table["most_octets"].as_u64());
        assert!(most.is_some_and(|most| octets <= most), "{name}: {table}");
        octets
    });
    octets.sum()
}

#[test]
fn a_neighbour_that_sends_for_rounds_raises_neither_the_proxys_memory_nor_its_log() {
    let factor = std::env::var("WAYLEAVE_DRILL").map_or(1, |factor| factor.parse().expect("a number"));
    let folder = Folder::new("attest-drill");
    folder.ok(&["keys", "anchor", "anchor.key", "--name", "lab"]);
    folder.ok(&["keys", "attest", &format!("{OWN}.key"), "--asn", &OWN.to_string()]);
    let key = suite::of(SuiteId::KcEd25519).expect("built in").generate(&Secret::new([7; 32]));
    let (neighbour, public) = (NEIGHBOUR.to_string(), format!("attest:kc-ed25519:{}", to_hex(key.public())));
    folder.sign(&["profile", "--asn", &neighbour, "--key", &public]);
    folder.sign(&["record", "--asn", &neighbour, "--prefix", "10.0.0.0/8-24", "--attested", "strict"]);
    let meet = free();
    let pair = format!("most_memory_mib = {MOST_MIB}\n");
    let keys = format!("signing = \"{OWN}.key\"\nanchor = \"anchor.pub\"\nobjects = \"objects\"\n");
    let proxy = Proxy::with_pair(&folder, OWN, &format!("listen = \"{meet}\""), &pair, &keys, "");
    eventually("the proxy listens", || TcpStream::connect(&proxy.inside).is_ok());
    let mut inside = Raw::connect(OWN, 1, &proxy.inside);
    let mut raw = Raw::connect(NEIGHBOUR, 2, &meet);
    eventually("both sessions are up", || {
        inside.is_up(OWN, 1, &proxy.inside)
            && raw.is_up(NEIGHBOUR, 2, &meet)
            && proxy.json(&["show", "status"])["pairs"][0]["outside"]["up"] == true
    });
    let ring = KeyRing { pairs: vec![KeyPair { suite: SuiteId::KcEd25519, key, registered: true }] };
    let mut neighbour = Neighbour { ring, raw, sent: 0 };

    let before = resident(&proxy);
    let (mut after, mut tables) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        neighbour.round(factor);
        let mut status = Value::Null;
        eventually("all of it is worked off", || {
            status = proxy.json(&["show", "status"]);
            let pair = &status["pairs"][0];
            let received = pair["outside"]["counters"]["received"]["update"].as_u64().unwrap_or(0);
            received >= u64::from(neighbour.sent) && pair["waiting"][0] == 0
        });
        after.push(resident(&proxy));
        tables.push(accounts(&status));
    }
    // Whatever job is left.
    std::thread::sleep(std::time::Duration::from_millis(200));
    let status = proxy.json(&["show", "status"]);
    println!("resident before {before}, after each round {after:?}; by the accounts {tables:?}");
    assert!(neighbour.raw.ended.lock().expect("no panic within").is_empty(), "the session stands");
    assert_eq!(status["pairs"][0]["outside"]["received"], PREFIXES);
    // The first round fills what is there; no later one raises it but for the caches of signatures, which fill up to 9 MiB, and
    // what the allocator leaves unused.
    let slack = (16 << 20) + after[0] / 10;
    assert!(after[1..].iter().all(|octets| *octets <= after[0] + slack), "{before}, then {after:?}");
    // A thousand ordinary routes and as many large ones as a round has, twice, and what the pool leaves unused; and the caches.
    let standing = u64::from(PREFIXES * 2_048 + (LARGE * factor).min(PREFIXES) * (LARGE_OCTETS as u32 + 2_048));
    assert!(tables.iter().all(|octets| *octets <= 3 * standing + (20 << 20)), "{tables:?}");
    assert!(after.iter().all(|octets| *octets < before + (MOST_MIB << 20)), "{before}, then {after:?}");

    // Every refused route is a line of the log or is counted, and there are few lines.
    let (mut lines, mut suppressed) = (0, 0);
    eventually("each is logged or counted", || {
        let log = proxy.log();
        let is_verdict = |line: &&str| line.contains(" is invalid:") || line.contains(" is malformed:");
        lines = log.lines().filter(is_verdict).count() as u64;
        suppressed = proxy.json(&["show", "events"])["suppressed"]["verdict"].as_u64().unwrap_or(0);
        proxy.json(&["show", "status"])["counts"]["rejected"].as_u64() == Some(lines + suppressed)
    });
    assert!(lines <= 100 && suppressed > 500, "{lines} lines, {suppressed} suppressed");
}

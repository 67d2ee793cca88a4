//! Bad input over the wire: strangers, liars, servers that hang, adverts that cannot be.
//!
//! ICC-01, by process: strangers, forged, stale and replayed requests, others' IDs and servers, over TLS: refused with
//! the reason; each is in the audit log.
//! ICC-03, by process: 16 partial paths of 16 nodes with loops, of nobody, of others, and a count of 10,000, over TLS:
//! refused, or at most 16 paths; another node's question is answered at once.
//! ICC-05, by process: adverts of strangers, of other nodes, from the future, old, with another's ID, too many, over
//! TLS: refused with the reason.
//! ICC, strangers: 320 nodes that are no members connect to a path server and stay: the latest 256 are kept; a member's
//! link is not touched.
//! ICC, liars: path servers that hang, babble, lie; another server at the right address: the next one is asked within
//! two seconds; the impostor is not spoken to.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::timeout;
use wayleave_control::advert::Advert;
use wayleave_control::consent::{ConsentRequest, RequestedPath};
use wayleave_control::database::Refusal;
use wayleave_control::frames::{Body, Frame, Host};
use wayleave_control::realm::{Membership, RealmKey};
use wayleave_control::topology::{PartialPath, Step};
use wayleave_core::IdentityKey;
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::Signed;
use wayleave_packet::icing::header::{NodeId, Version};
use wayleave_packet::icing::mint::{EpochKey, NodeSecret};
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::links::{Connecting, Limits, LinkEvent, Links};
use wayleave_runtime::node_tls::NodeIdentity;

use super::harness::{Realm, Row};
use crate::common::{eventually, free};

const SOON: Duration = Duration::from_secs(10);

pub(super) fn octets<const N: usize>(hex: &str) -> [u8; N] {
    let octet = |at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("hexadecimal");
    std::array::from_fn(octet)
}

pub(super) fn seed(file: &Path) -> Seed {
    let text = fs::read_to_string(file).expect("a key file");
    let line = text.lines().find_map(|line| line.strip_prefix("secret = \"")).expect("a secret");
    Seed::new(octets(line))
}

pub(super) fn key(text: &str) -> IdentityKey {
    let text = text.strip_prefix("node:").unwrap_or(text);
    IdentityKey(octets(text.strip_prefix("ed25519:").expect("a key")))
}

/// The membership of a node whose folder is in `folder`.
pub(super) fn membership(folder: &Path, name: &str) -> Signed<Membership> {
    let text = fs::read_to_string(folder.join(name).join("membership")).expect("a membership");
    let hex = text.trim().strip_prefix("wayleave-membership-v1.").expect("a membership");
    let all: Vec<u8> =
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal")).collect();
    Signed::decode(&all).expect("a membership")
}

/// Where a server of the realm listens.
pub(super) fn listens(realm: &Realm, file: &str) -> String {
    let text = realm.read(file);
    let line = text.lines().find_map(|line| line.strip_prefix("listen = \"")).expect("an address");
    line.trim_end_matches('"').to_owned()
}

/// Somebody who speaks to a server with a key, and says what it likes.
pub(super) struct Wire {
    runtime: Runtime,
    links: Links,
    events: mpsc::Receiver<LinkEvent>,
    link: u64,
    _connecting: Connecting,
}

impl Wire {
    pub(super) fn open(address: &str, server: &str, own: &Seed) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
        let own = NodeIdentity::from_seed(own.expose()).expect("a key");
        let (to, mut events) = mpsc::channel(1024);
        let links = Links::new(Limits::default());
        let connecting = {
            let _inside = runtime.enter();
            links.connect_node(address.to_owned(), &own, key(server), to).expect("a configuration")
        };
        let up = runtime.block_on(async { timeout(SOON, events.recv()).await }).expect("in time").expect("an event");
        let LinkEvent::Up { link, .. } = up else { panic!("{up:?}") };
        Self { runtime, links, events, link, _connecting: connecting }
    }

    /// Asks without waiting for the answer.
    pub(super) fn put(&self, body: Body) {
        self.send(Frame { request: 3, body }.encode());
    }

    /// What has come since: answers, how many of these refuse, and whether the link is another one than before.
    pub(super) fn drain(&mut self) -> (u64, u64, bool) {
        let (mut answers, mut refusals, mut is_new) = (0, 0, false);
        while let Ok(event) = self.events.try_recv() {
            match event {
                LinkEvent::Frame { bytes, .. } => {
                    answers += 1;
                    refusals +=
                        u64::from(matches!(Frame::decode(&bytes).map(|frame| frame.body), Ok(Body::Refused(_))));
                }
                LinkEvent::Up { link, .. } => (self.link, is_new) = (link, true),
                LinkEvent::Down { .. } | LinkEvent::Failed { .. } => {}
            }
        }
        (answers, refusals, is_new)
    }

    pub(super) fn send(&self, octets: Vec<u8>) {
        self.links.send(self.link, octets);
    }

    fn next(&mut self) -> LinkEvent {
        self.runtime.block_on(async { timeout(SOON, self.events.recv()).await }).expect("in time").expect("an event")
    }

    pub(super) fn frame(&mut self) -> Frame {
        loop {
            if let LinkEvent::Frame { bytes, .. } = self.next() {
                return Frame::decode(&bytes).expect("a frame");
            }
        }
    }

    fn answer(&mut self) -> Body {
        self.frame().body
    }

    pub(super) fn ask(&mut self, body: Body) -> Body {
        self.send(Frame { request: 3, body }.encode());
        self.answer()
    }

    pub(super) fn refused(&mut self, body: Body) -> Refusal {
        match self.ask(body) {
            Body::Refused(refusal) => refusal,
            other => panic!("{other:?}"),
        }
    }
}

/// An advert of a node without neighbours, to be changed.
pub(super) fn advert(realm: RealmKey, own: &SigningKey, id: NodeId) -> Advert {
    let now = unix_now().secs();
    let epoch_key = EpochKey { epoch: 1, not_before: now as u32 - 60, not_after: now as u32 + 3_600, node: id };
    Advert {
        realm,
        identity: IdentityKey(own.verifying_key().to_bytes()),
        sequence: now + 1_000,
        issued: now,
        lifetime: 5,
        mtu: 1400,
        ids: vec![epoch_key.sign(own)],
        links: Vec::new(),
        tags: Vec::new(),
        consent: None,
        open: None,
        extensions: Vec::new(),
    }
}

#[test]
fn a_path_server_takes_no_advert_of_a_stranger_of_another_node_of_the_future_or_with_anothers_id() {
    let realm = Realm::new("adverts");
    let server = realm.path_server("paths");
    let (address, who) = (listens(&realm, "paths/path.toml"), realm.identity("paths"));
    let page = realm.router("a", None);
    let _ = realm.router("b", None);
    let node = realm.start("a", "router", &page);
    eventually("a is registered", || server.count("adverts") == 0 && server.count("members") == 1);
    drop(node);
    let [a, b] = ["a", "b"].map(|name| seed(&realm.path(&format!("{name}/identity.key"))));
    let [key_a, key_b] = [&a, &b].map(SigningKey::from_seed);
    let of_a = membership(&realm.folder.0, "a");
    let realm_key = of_a.object().realm;
    let own_id = NodeSecret::from_seed(&Seed::new([5; 32])).id();
    let good = advert(realm_key, &key_b, own_id);
    let sign = |advert: &Advert, key: &SigningKey| Signed::sign(advert, key).expect("well formed");
    let of_b = membership(&realm.folder.0, "b");
    let register = |membership: &Signed<Membership>, advert: Signed<Advert>| Body::Register {
        membership: membership.clone(),
        advert,
    };
    // A stranger cannot ask for anything, whatever it says.
    let mut stranger = Wire::open(&address, &who, &Seed::new([66; 32]));
    assert_eq!(stranger.refused(register(&of_b, sign(&good, &key_b))), Refusal::NotOwn);
    let find = Body::FindHost { host: Host::Name("a".parse().expect("a name")), partials: Vec::new() };
    assert_eq!(stranger.refused(find), Refusal::NotMember);
    assert_eq!(stranger.refused(Body::Subscribe { instance: 0, since: 0 }), Refusal::NotMember);
    stranger.send(vec![1, 99, 0, 0, 0, 0]);
    assert!(matches!(stranger.answer(), Body::Refused(Refusal::Malformed)));
    let mut wire = Wire::open(&address, &who, &b);
    assert_eq!(wire.refused(register(&of_a, sign(&good, &key_b))), Refusal::NotOwn);
    assert_eq!(wire.refused(register(&of_b, sign(&good, &key_a))), Refusal::Signature);
    let ahead = Advert { issued: good.issued + 1_000, ..good.clone() };
    assert_eq!(wire.refused(register(&of_b, sign(&ahead, &key_b))), Refusal::Future);
    let old = Advert { issued: good.issued - 1_000, ..good.clone() };
    assert_eq!(wire.refused(register(&of_b, sign(&old, &key_b))), Refusal::Expired);
    assert!(matches!(wire.ask(register(&of_b, sign(&good, &key_b))), Body::Registered { .. }));
    let older = Advert { sequence: good.sequence - 1, ..good.clone() };
    assert_eq!(wire.refused(register(&of_b, sign(&older, &key_b))), Refusal::Older(good.sequence));
    let other = Advert { mtu: 1401, ..good.clone() };
    assert_eq!(wire.refused(register(&of_b, sign(&other, &key_b))), Refusal::Conflict);
    drop(wire);
    // The ID that b has now is b's.
    let mut wire = Wire::open(&address, &who, &a);
    let claimed = advert(realm_key, &key_a, own_id);
    let by = IdentityKey(key_b.verifying_key().to_bytes());
    assert_eq!(wire.refused(register(&of_a, sign(&claimed, &key_a))), Refusal::IdClaimed(by));
    // Too many: each is stored and sent to everybody.
    let mut taken = 0;
    for number in 0..40 {
        let id = NodeSecret::from_seed(&Seed::new([7; 32])).id();
        let advert = Advert { sequence: claimed.sequence + 10 + number, ..advert(realm_key, &key_a, id) };
        match wire.ask(register(&of_a, sign(&advert, &key_a))) {
            Body::Registered { .. } => taken += 1,
            Body::Refused(refusal) => assert_eq!(refusal, Refusal::TooOften),
            other => panic!("{other:?}"),
        }
    }
    assert!((5..=25).contains(&taken), "{taken}");
    assert!(server.count("refused") > 10);
}

#[test]
fn a_bogus_request_for_consent_is_refused_and_stands_in_the_audit_log() {
    let mut row = Row::new("bogus").settled();
    eventually("consented", || row.is_consented("c"));
    row.nodes[0].kill();
    let realm = &row.realm;
    let (address, who) = (listens(realm, "consent-b/consent.toml"), realm.identity("consent-b"));
    let a = seed(&realm.path("a/identity.key"));
    let key_a = SigningKey::from_seed(&a);
    let of_a = membership(&realm.folder.0, "a");
    let own = NodeSecret::from_seed(&Seed::new([5; 32])).id();
    let now = unix_now().secs();
    let epoch_key = EpochKey { epoch: 1, not_before: now as u32 - 60, not_after: now as u32 + 3_600, node: own };
    // b's ID of now, as its advert has it.
    let mut paths = Wire::open(&listens(realm, "paths/path.toml"), &realm.identity("paths"), &a);
    let find = Body::FindHost { host: Host::Name("c".parse().expect("a name")), partials: Vec::new() };
    let Body::Paths { paths: found, .. } = paths.ask(find) else { panic!("no path") };
    let hops: Vec<_> = found[0].nodes().skip(1).map(|(_, id, tag)| (id, tag)).collect();
    let good = ConsentRequest {
        realm: of_a.object().realm,
        server: key(&who),
        sender: of_a.object().identity,
        nonce: [1; 16],
        time: now,
        path: RequestedPath { sender: own, hops },
        index: 1,
        expiry: now as u32 + 30,
        epoch_key: epoch_key.sign(&key_a),
        packets: Version::Standard,
    };
    let body = |request: &ConsentRequest, key: &SigningKey| Body::Consent {
        membership: of_a.clone(),
        request: Signed::sign(request, key).expect("well formed"),
    };
    let stranger_seed = Seed::new([66; 32]);
    let mut stranger = Wire::open(&address, &who, &stranger_seed);
    // Unsigned by the sender, or sent by somebody else.
    assert_eq!(stranger.refused(body(&good, &key_a)), Refusal::NotOwn);
    let mut wire = Wire::open(&address, &who, &a);
    assert_eq!(wire.refused(body(&good, &SigningKey::from_seed(&stranger_seed))), Refusal::Signature);
    // An ID that another identity signed.
    let of_stranger = epoch_key.sign(&SigningKey::from_seed(&stranger_seed));
    let stolen = ConsentRequest { nonce: [2; 16], epoch_key: of_stranger, ..good.clone() };
    assert_eq!(wire.refused(body(&stolen, &key_a)), Refusal::Signature);
    let late = ConsentRequest { time: now - 100, ..good.clone() };
    assert_eq!(wire.refused(body(&late, &key_a)), Refusal::Stale);
    // A node of another provider: this server has no key of its.
    let elsewhere = ConsentRequest { index: 2, ..good.clone() };
    assert_eq!(wire.refused(body(&elsewhere, &key_a)), Refusal::NotServed);
    let to_other = ConsentRequest { server: key(&realm.identity("consent-c")), ..good.clone() };
    assert_eq!(wire.refused(body(&to_other, &key_a)), Refusal::NotServed);
    let good = ConsentRequest { nonce: [3; 16], ..good };
    assert!(matches!(wire.ask(body(&good, &key_a)), Body::Consented(_)), "as it should be, it is consented to");
    assert_eq!(wire.refused(body(&good, &key_a)), Refusal::Replayed);
    wire.send(vec![0xff; 500]);
    assert!(matches!(wire.answer(), Body::Refused(Refusal::Malformed)));
    // Each refusal was on disk before its answer came.
    let log = realm.read("consent-b/audit.log");
    let refused: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .filter(|line: &serde_json::Value| line["decision"] == "refused")
        .collect();
    assert_eq!(refused.len(), 8, "{log}");
    let by_stranger = IdentityKey(SigningKey::from_seed(&stranger_seed).verifying_key().to_bytes()).to_string();
    assert_eq!(refused[0]["sender"], serde_json::json!(by_stranger));
    assert!(refused[1]["why"].as_str().is_some_and(|why| why.contains("not signed")), "{log}");
    assert_eq!(row.consent[0].count("refused"), 8);
}

/// ICC-03: partial paths as many and as long as a frame takes, with loops, and more than that.
#[test]
fn a_bomb_of_partial_paths_is_refused_or_bounded_and_others_do_not_notice() {
    let mut row = Row::new("bomb").settled();
    row.nodes[0].kill();
    let realm = &row.realm;
    let (address, who) = (listens(realm, "paths/path.toml"), realm.identity("paths"));
    let mut wire = Wire::open(&address, &who, &seed(&realm.path("a/identity.key")));
    let [a, b, c] = ["a", "b", "c"].map(|name| key(&realm.identity(name)));
    let find = |nodes: &[IdentityKey], count: usize| {
        let partial = PartialPath { nodes: nodes.to_vec(), steps: vec![Step::Up; nodes.len() - 1] };
        Body::FindHost { host: Host::Name("c".parse().expect("a name")), partials: vec![partial; count] }
    };
    // Round and round; of nobody; and not one's own.
    let strange: Vec<IdentityKey> = (0..16u8).map(|number| IdentityKey([number; 32])).collect();
    let round: Vec<IdentityKey> = [a, b].into_iter().cycle().take(16).collect();
    for nodes in [round, [&[a][..], &strange[1..]].concat(), vec![b, c]] {
        for _ in 0..5 {
            match wire.ask(find(&nodes, 16)) {
                Body::Refused(_) => {}
                Body::Paths { paths, .. } => assert!(paths.len() <= 16),
                other => panic!("{other:?}"),
            }
        }
    }
    // 10,000 of them, by their count.
    let octets = [&[1, 7, 0, 0, 0, 9, 0x27, 0x10][..], &[0; 64]].concat();
    wire.send(octets);
    assert!(matches!(wire.answer(), Body::Refused(Refusal::Malformed)));
    eventually("others find paths as before", || row.nodes[1].show("paths", &["--host", "c"])["paths"].is_array());
}

/// A server that accepts every node and says what `answer` makes of each frame.
fn fake(answer: fn(&[u8]) -> Option<Vec<u8>>) -> (Runtime, String, String) {
    let (own, address) = ([99; 32], free());
    let identity = NodeIdentity::from_seed(&own).expect("a key").identity().to_string();
    (fake_at(&own, &address, &[], answer), identity, address)
}

/// The same with this key, at this address, and of a program that speaks these versions of the protocol.
pub(super) fn fake_at(
    own: &[u8; 32],
    address: &str,
    protocols: &'static [&'static str],
    answer: fn(&[u8]) -> Option<Vec<u8>>,
) -> Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
    let own = NodeIdentity::from_seed(own).expect("a key");
    let links = Links::new(Limits { protocols, ..Limits::default() });
    let (to, mut events) = mpsc::channel::<LinkEvent>(1024);
    let at = address.parse().expect("an address");
    let listening = runtime.block_on(links.listen_nodes(at, &own, to)).expect("listening");
    runtime.spawn(async move {
        let _listening = listening;
        while let Some(event) = events.recv().await {
            if let LinkEvent::Frame { link, bytes, .. } = event
                && let Some(octets) = answer(&bytes)
            {
                links.send(link, octets);
            }
        }
    });
    runtime
}

#[test]
fn a_path_server_that_hangs_or_lies_delays_its_clients_and_misleads_nobody() {
    let hangs: fn(&[u8]) -> Option<Vec<u8>> = |_| None;
    let babbles: fn(&[u8]) -> Option<Vec<u8>> = |_| Some(vec![0xee; 100]);
    // It claims to have registered everything, and that there is no such host.
    let lies: fn(&[u8]) -> Option<Vec<u8>> = |octets| {
        let frame = Frame::decode(octets).ok()?;
        let body = match frame.body {
            Body::Register { advert, .. } => Body::Registered { number: advert.object().sequence },
            Body::FindHost { .. } => Body::Refused(Refusal::NoSuchHost),
            _ => Body::Paths { is_cut: false, paths: Vec::new(), records: Vec::new() },
        };
        Some(Frame { request: frame.request, body }.encode())
    };
    let mut row = Row::new("liars").settled();
    for (what, answer) in [("hangs", hangs), ("babbles", babbles), ("lies", lies)] {
        let (runtime, who, address) = fake(answer);
        row.nodes[0].kill();
        let first = format!("path_servers = [{{ identity = \"{who}\", address = \"{address}\" }}, ");
        row.realm.edit("a/router.toml", |text| text.replace("path_servers = [", &first));
        row.nodes[0].resume();
        eventually(&format!("a path, though the first server {what}"), || !row.paths("c").is_null());
        eventually(&format!("consents, though the first server {what}"), || row.is_consented("c"));
        row.realm.edit("a/router.toml", |text| text.replace(&first, "path_servers = ["));
        runtime.shutdown_background();
    }
}

#[test]
fn another_server_at_the_right_address_is_not_spoken_to() {
    let mut row = Row::new("impostor").settled();
    let address = listens(&row.realm, "paths/path.toml");
    // The name stands for another key now: that of a server that answers there is not the one that is meant.
    row.nodes[0].kill();
    let (real, other) =
        (row.realm.identity("paths"), "ed25519:3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29");
    row.realm.edit("a/router.toml", |text| text.replace(&real, other));
    row.nodes[0].resume();
    eventually("a says so", || row.nodes[0].log().contains("another node answers there"));
    // What it held before is good until it ends; it learns nothing more.
    assert!(row.paths("nowhere").is_null());
    assert!(row.nodes[0].log().contains(&address));
}

#[test]
fn strangers_who_only_connect_take_few_links_and_no_members_one() {
    let realm = Realm::new("strangers");
    let server = realm.path_server("paths");
    let (address, who) = (listens(&realm, "paths/path.toml"), key(&realm.identity("paths")));
    let page = realm.router("a", None);
    let node = realm.start("a", "router", &page);
    eventually("a is registered", || server.count("members") == 1);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
    let links = Links::new(Limits::default());
    let mut connecting = Vec::new();
    for number in 0..320u32 {
        let mut octets = [77; 32];
        octets[..4].copy_from_slice(&number.to_be_bytes());
        let own = NodeIdentity::from_seed(&octets).expect("a key");
        let (to, mut events) = mpsc::channel::<LinkEvent>(16);
        let _inside = runtime.enter();
        let one = links.connect_node(address.clone(), &own, who, to).expect("a configuration");
        let up = runtime.block_on(async { timeout(SOON, events.recv()).await }).expect("in time").expect("an event");
        assert!(matches!(up, LinkEvent::Up { .. }), "{up:?}");
        // Nobody connects again: a link that is closed stays closed.
        drop(events);
        connecting.push(one);
    }
    // a, the operator and the strangers that are kept.
    eventually("the others are gone", || server.count("links") <= 258);
    assert_eq!(node.log().matches("link up").count(), 1, "a's link was never closed");
    assert!(server.log().contains("too many nodes that are no members"));
}

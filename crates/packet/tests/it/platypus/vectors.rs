//! The published test vectors hold: for the router, and for the model.
//!
//! `WAYLEAVE_WRITE_VECTORS=1` writes the file anew.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use wayleave_core::{Afi, Prefix};
use wayleave_crypto::secret::{Key128, Secret};
use wayleave_packet::platypus::header::{Capability, Carriage, Delegation, Marks, SubDelegation, Width};
use wayleave_packet::platypus::mint::{Hop, Nonce, Route, WaypointKey};
use wayleave_packet::platypus::verify::{Policy, Verdict, Waypoint};

use super::model;
use super::world::{self, NOW};

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/wire/platypus.json")
}

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

fn octets(value: &Value) -> Vec<u8> {
    let text = value.as_str().expect("a string");
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hex")).collect()
}

fn key(waypoint: IpAddr) -> WaypointKey {
    WaypointKey::new(&Key128::new(world::key_octets(waypoint)))
}

/// `s` for both families and some intervals.
fn secrets() -> Vec<Value> {
    let mut out = Vec::new();
    for (afi, n, marks) in [
        (Afi::Ipv4, 4, Marks::NONE),
        (Afi::Ipv4, 12, Marks::NONE),
        (Afi::Ipv6, 12, Marks::NONE),
        (Afi::Ipv6, 24, Marks::NONE),
        (Afi::Ipv4, 12, Marks::BOUND),
        (Afi::Ipv6, 24, Marks::BOUND),
    ] {
        let waypoint = world::waypoint_address(afi, 1);
        let epoch = (NOW >> n) as u32;
        let word = Capability { epoch, marks, ..world::capability(afi, 1) }.secret_epoch();
        let s = key(waypoint).secret(waypoint, world::principal(7_000), world::interval(n), word);
        out.push(json!({
            "k": hex(&world::key_octets(waypoint)), "waypoint": waypoint.to_string(), "principal": 7_000,
            "interval": n, "epoch": epoch, "bound": marks.is_bound(), "s": hex(s.expose()),
        }));
    }
    out
}

/// `s_p` and the stamping key for delegations of several lengths, with and without a sub-delegation.
fn delegations() -> Vec<Value> {
    let mut out = Vec::new();
    for (prefix, sub_prefix) in [
        ("0.0.0.0/0", None),
        ("203.0.113.0/24", None),
        ("203.0.113.9/32", Some("203.0.113.0/24")),
        ("2001:db8:3::/48", None),
        ("2001:db8:3::9/128", Some("2001:db8::/32")),
    ] {
        let prefix: Prefix = prefix.parse().expect("a prefix");
        let mut capability = world::capability(prefix.afi(), 1);
        let secret = key(capability.waypoint).secret(
            capability.waypoint,
            capability.principal,
            capability.interval,
            capability.epoch,
        );
        let id = world::delegation_id(0x00_0539);
        let held = match sub_prefix {
            None => secret.delegate(id, prefix).expect("of the family"),
            Some(first) => secret
                .delegate(id, first.parse().expect("a prefix"))
                .and_then(|held| held.hand_on(world::delegation_id(0x42)))
                .and_then(|held| held.narrow(prefix))
                .expect("it shrinks"),
        };
        capability.delegation = Some(held.delegation());
        let source = world::source_address(prefix.afi());
        out.push(json!({
            "s": hex(secret.expose()), "prefix": prefix.to_string(), "delegation_id": id.number(),
            "sub_delegation": held.delegation().sub.map(|sub| json!({ "at": sub.at, "id": sub.id.number() })),
            "s_p": hex(held.expose()), "stamp_key": hex(held.stamp_key().expose()),
            "reply_source": source.to_string(), "reply_key": hex(held.reply_key(source).expose()),
        }));
    }
    out
}

/// A capability whose shape `variant` chooses.
fn variant(afi: Afi, number: u8, variant: u8, marks: Marks) -> Capability {
    let mut capability = world::capability(afi, number);
    let length = if marks.is_reply() { afi.bits() } else { 24 };
    let prefix = Prefix::truncated(world::destination_address(afi), length).expect("a length");
    let sub = (variant == 2).then(|| SubDelegation { at: 16, id: world::delegation_id(0x42) });
    capability.delegation = (variant > 0).then(|| Delegation { prefix, id: world::delegation_id(0x00_0539), sub });
    capability.marks = marks;
    capability
}

/// Packets at each of their waypoints: before, after, and what the binding is made of.
fn packets() -> Vec<Value> {
    let mut out = Vec::new();
    for afi in [Afi::Ipv4, Afi::Ipv6] {
        let none = Marks::NONE;
        for (name, variants, carriage, sealed, width, marks) in [
            ("plain", &[0][..], Carriage::Ip, false, Width::Full, none),
            ("plain, 64 bits", &[0], Carriage::Ip, false, Width::Narrow, none),
            ("delegated", &[1], Carriage::Ip, false, Width::Full, none),
            ("sub-delegated, over UDP", &[2], Carriage::Udp, false, Width::Full, none),
            ("three waypoints", &[0, 1, 2], Carriage::Ip, false, Width::Full, none),
            ("three waypoints, sealed", &[2, 0, 1], Carriage::Ip, true, Width::Full, none),
            ("bound", &[0, 2], Carriage::Ip, false, Width::Full, Marks::BOUND),
            ("bound, for replies", &[1], Carriage::Ip, false, Width::Full, Marks::BOUND.with_reply()),
        ] {
            let hops: Vec<Hop> = (1..)
                .zip(variants)
                .map(|(n, shape)| world::hop(Capability { width, ..variant(afi, n, *shape, marks) }))
                .collect();
            let nonce = Nonce::new(world::at(NOW), 0x0102_0304);
            let route = Route { hops: &hops, nonce, sealed, reply_option: &[], carriage };
            let mut datagram = world::stamp(&world::inner(afi, b"the payload of a vector"), &route);
            for hop in &hops {
                let waypoint = hop.capability.waypoint;
                let k = world::key_octets(waypoint);
                let start = world::decode(&datagram).outer().length;
                let [stamp_key, mask, binding] = model::explain(&k, &datagram, start);
                let after = world::process(&world::waypoint(waypoint), &datagram, NOW).expect("it passes");
                out.push(json!({
                    "name": format!("{name}, IPv{}", if afi == Afi::Ipv4 { 4 } else { 6 }), "now": NOW,
                    "waypoint": waypoint.to_string(), "k": hex(&k), "before": hex(&datagram),
                    "stamp_key": hex(&stamp_key), "mask": hex(&mask), "binding": hex(&binding), "after": hex(&after),
                }));
                datagram = after;
            }
        }
    }
    out
}

/// Packets that are refused, and why.
fn refused() -> Vec<Value> {
    let hops: Vec<Hop> = (1..=2).map(|n| world::hop(world::capability(Afi::Ipv4, n))).collect();
    let sound = world::stamp(&world::inner(Afi::Ipv4, b"the payload of a vector"), &world::route(&hops));
    let bent = |at: usize, octets: &[u8]| {
        let mut datagram = sound.clone();
        datagram[at..at + octets.len()].copy_from_slice(octets);
        world::write_checksum(&mut datagram);
        datagram
    };
    [
        ("a wrong binding", bent(67, &[sound[67] ^ 1]), NOW),
        ("another payload", bent(sound.len() - 1, b"!"), NOW),
        ("a fragment", bent(6, &[0x20, 0]), NOW),
        ("IP options", bent(0, &[0x46]), NOW),
        ("a pointer into a capability", bent(22, &[1]), NOW),
        ("a pointer beyond the list", bent(22, &[15]), NOW),
        ("a list that ends within a capability", bent(21, &[13]), NOW),
        ("an interval of 8 seconds", bent(47, &[3]), NOW),
        ("a final destination in 127.0.0.0/8", bent(28, &[127, 0, 0, 1]), NOW),
        ("another source than the header's", bent(12, &[192, 0, 2, 78]), NOW),
        ("a time to live of 1", bent(8, &[1]), NOW),
        ("six seconds late", sound.clone(), NOW + 6),
        ("two seconds early", sound.clone(), NOW - 2),
        ("two epochs late", sound.clone(), NOW + 8_192),
    ]
    .into_iter()
    .map(|(name, datagram, now)| {
        let reason = match world::process(&world::waypoint(hops[0].capability.waypoint), &datagram, now) {
            Err(Verdict::Drop(reason) | Verdict::Answer(_, reason)) => reason.name(),
            other => panic!("{name}: {other:?}"),
        };
        json!({
            "name": name, "now": now, "waypoint": hops[0].capability.waypoint.to_string(),
            "k": hex(&world::key_octets(hops[0].capability.waypoint)), "packet": hex(&datagram), "reason": reason,
        })
    })
    .collect()
}

/// The three options of a reply exchange and what the server takes over.
fn reply() -> Value {
    use wayleave_packet::platypus::mint::reply::{Granted, Parties, ReplyClient, ReplyOption, ReplyServer};
    let parties = Parties {
        client: world::source_address(Afi::Ipv4),
        server: world::destination_address(Afi::Ipv4),
        protocol: 6,
    };
    let mut capability = world::capability(Afi::Ipv4, 1);
    let secret = key(capability.waypoint).secret(
        capability.waypoint,
        capability.principal,
        capability.interval,
        capability.epoch,
    );
    let own = Prefix::truncated(parties.client, 32).expect("a length");
    let held = secret.delegate(world::delegation_id(0x539), own).expect("of the family");
    capability.delegation = Some(held.delegation());
    capability.marks = Marks::REPLY;
    let key = held.reply_key(parties.server);
    let granted = Granted { capability, key: key.clone() };
    let client = ReplyClient::new(&Secret::new([1; 32]));
    let mut server = ReplyServer::new(&Secret::new([2; 32]), None);
    let hello = client.hello();
    let option = |octets| ReplyOption::decode(octets).expect("an option").0;
    let offer = server.offer(&option(&hello), &parties, world::at(NOW)).expect("a hello");
    let grant = client.grant(&option(&offer), &parties, None, &granted).expect("an offer");
    let opened = server.accept(&option(&grant.option), &parties, world::at(NOW)).expect("it opens");
    assert_eq!((&opened.granted, &opened.acknowledgement), (&granted, &grant.acknowledgement));
    json!({
        "client": parties.client.to_string(), "server": parties.server.to_string(), "protocol": 6, "now": NOW,
        "client_seed": hex(&[1; 32]), "server_seed": hex(&[2; 32]),
        "hello": hex(&hello), "offer": hex(&offer), "grant": hex(&grant.option),
        "acknowledgement": hex(&opened.acknowledgement.option()), "stamp_key": hex(key.expose()),
    })
}

#[test]
fn the_published_vectors_are_what_this_code_computes() {
    let published: Value = serde_json::from_slice(&std::fs::read(file()).expect("the file")).expect("JSON");
    let computed = json!({
        "format": "Platypus; see docs/wire/platypus.md", "secrets": secrets(), "delegations": delegations(),
        "packets": packets(), "refused": refused(), "reply": reply(),
        // Version 0, which the tests of `wayleave-papers` compare.
        "paper": published["paper"],
    });
    if std::env::var_os("WAYLEAVE_WRITE_VECTORS").is_some() {
        let text = serde_json::to_string_pretty(&computed).expect("plain values") + "\n";
        std::fs::write(file(), text).expect("the folder is there");
        return;
    }
    assert_eq!(published, computed);
}

/// From the file alone: keys and packets as another implementer reads them.
#[test]
fn the_published_vectors_hold_for_the_model_and_the_router() {
    let published: Value = serde_json::from_slice(&std::fs::read(file()).expect("the file")).expect("JSON");
    let list = |name: &str| published[name].as_array().expect("a list").clone();
    let here = |vector: &Value| {
        let address = vector["waypoint"].as_str().expect("text").parse().expect("an address");
        let key: [u8; 16] = octets(&vector["k"]).try_into().expect("16 octets");
        let keys = wayleave_packet::platypus::mint::WaypointKeys::new(WaypointKey::new(&Key128::new(key)));
        let policy = Policy { narrow: true, peers: world::peers(), ..Policy::default() };
        (model::Here::new(address, key), Waypoint::new(address, keys, policy))
    };
    let (packets, refused) = (list("packets"), list("refused"));
    assert_eq!((packets.len(), refused.len()), (26, 14));
    for vector in packets {
        let (model, router) = here(&vector);
        let (before, after) = (octets(&vector["before"]), octets(&vector["after"]));
        let now = vector["now"].as_u64().expect("a number");
        let binding = octets(&vector["binding"]);
        let tag = model::mac(&octets(&vector["stamp_key"]), &octets(&vector["mask"]));
        assert_eq!(tag[..binding.len()], binding);
        assert_eq!(model::process(&model, &before, now), Some(after.clone()));
        assert_eq!(world::process(&router, &before, now), Ok(after));
    }
    for vector in refused {
        let (model, router) = here(&vector);
        let now = vector["now"].as_u64().expect("a number");
        assert_eq!(model::process(&model, &octets(&vector["packet"]), now), None);
        assert!(world::process(&router, &octets(&vector["packet"]), now).is_err());
    }
}

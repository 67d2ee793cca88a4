//! The published vectors of the paper profiles are what this code computes.
//!
//! `WAYLEAVE_WRITE_VECTORS=1` writes those of Platypus to their file.
#![allow(clippy::disallowed_methods, reason = "a test reads its data from files and writes them where it is asked to")]

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use wayleave_papers::platypus::{
    self, Algorithm, DelegationKind, PaperCapability, PaperDelegation, PaperPacket, PaperPrefix, PaperRouter,
};
use wayleave_papers::scion_2015::{self, HalfPath, OpaqueKey, join};

use crate::platypus::{NOW, WAYPOINT, at, delegation_id, inner, key, principal};

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/wire").join(name)
}

fn read(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(file(name)).expect("the file")).expect("JSON")
}

/// Packets by both MACs and both kinds of delegation.
fn platypus_packets() -> Value {
    let (n, id) = (12, platypus::key_id(12, NOW));
    let mut out = Vec::new();
    for (mac, algorithm) in [("umac", Algorithm::Umac), ("cmac", Algorithm::Cmac)] {
        for kind in [None, Some(DelegationKind::Chaining), Some(DelegationKind::Xor)] {
            let prefix = PaperPrefix { address: [203, 0, 113, 0].into(), length: 24 };
            let delegation = kind.map(|kind| PaperDelegation { prefix, id: delegation_id(0x539), kind });
            let capability =
                PaperCapability { waypoint: WAYPOINT, principal: principal(7_000), key_id: id, delegation };
            let time = platypus::get_time(n, id, NOW);
            let s = platypus::secret(algorithm, &key(), WAYPOINT, capability.principal, time);
            let stamp_key = platypus::stamp_key(&s, &capability);
            let inner = inner(b"twenty octets of TCP");
            let before = platypus::encapsulate(&inner, &[(capability, stamp_key.clone())], algorithm).expect("sound");
            let packet = PaperPacket::decode(&before).expect("sound");
            let mut router = PaperRouter::new(WAYPOINT, key(), n, algorithm, 4).with_xor();
            let after = router.process(&packet, at(NOW)).expect("it passes");
            out.push(json!({
                "mac": mac, "delegation": kind.map(|kind| if kind == DelegationKind::Xor { "xor" } else { "chaining" }),
                "now": NOW, "interval": n, "k": hex(key().expose()), "s": hex(s.expose()),
                "stamp_key": hex(stamp_key.expose()), "before": hex(&before), "after": hex(&after),
            }));
        }
    }
    out.into()
}

#[test]
fn the_published_vectors_of_platypus_version_0_are_what_this_code_computes() {
    let mut published = read("platypus.json");
    if std::env::var_os("WAYLEAVE_WRITE_VECTORS").is_some() {
        published["paper"] = platypus_packets();
        let text = serde_json::to_string_pretty(&published).expect("plain values") + "\n";
        std::fs::write(file("platypus.json"), text).expect("the folder is there");
        return;
    }
    assert_eq!(published["paper"], platypus_packets());
}

fn scion_key(number: u8) -> [u8; 16] {
    std::array::from_fn(|index| number * 16 + index as u8)
}

fn scion_2015_packet() -> Value {
    let keys: [OpaqueKey; 5] = std::array::from_fn(|number| OpaqueKey::new(&scion_key(number as u8 + 1)));
    let (mut up, mut down) = (HalfPath::default(), HalfPath::default());
    up.extend(&keys[0], 0, 12);
    up.extend(&keys[1], 21, 23);
    up.extend(&keys[2], 32, 0);
    down.extend(&keys[0], 0, 14);
    down.extend(&keys[3], 41, 0);
    let header = join(&up, &down, *b"source..", *b"dest....", 17).unwrap();
    let fields = |half: &HalfPath, ases: &[usize]| -> Value {
        let mut previous = [0; 8];
        let field = |(field, of): (&scion_2015::OpaqueField, &usize)| {
            let input = scion_2015::mac_input(field.ingress, field.egress, previous);
            previous = field.octets();
            json!({ "key": hex(&scion_key(*of as u8)), "mac_input": hex(&input), "opaque_field": hex(&field.octets()) })
        };
        half.fields.iter().zip(ases).map(field).collect()
    };
    json!({
        "up": fields(&up, &[1, 2, 3]), "down": fields(&down, &[1, 4]),
        "packet": hex(&header.encode(b"payload")),
    })
}

#[test]
fn the_published_vectors_of_scion_2015_are_what_this_code_computes() {
    assert_eq!(read("scion.json")["scion-2015"], scion_2015_packet());
}

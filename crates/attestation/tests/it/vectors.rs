//! The published vectors of the format: made anew they are the same, octet by octet, and judged as they say.
//!
//! `WAYLEAVE_WRITE_VECTORS=1` writes the file instead of comparing with it.
#![allow(clippy::disallowed_methods, reason = "a test of a file")]

use crate::common::network::{NOW, Network, p};
use serde_json::{Value, json};
use wayleave_attestation::chain::{Attestation, SignedInput, Signer};
use wayleave_attestation::leaf::{Leaf, Tree};
use wayleave_attestation::path::Path;
use wayleave_attestation::sign::{self, Draft, Origination, Recipient, Signatures};
use wayleave_attestation::suite::SuiteId;
use wayleave_core::{Asn, Prefix};
use wayleave_crypto::hash::hash;
use wayleave_crypto::secret::Seed;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/attestation/chain.json");

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

/// One vector: what goes in, every hop's signed input and chain hash, the value, and the verdict.
fn vector(network: &Network, name: &str, prefixes: &[Prefix], path: &Path, value: &[u8], receiver: u32) -> Value {
    let report = network.validate(prefixes, path, value, receiver);
    let outcome = match (&report.broken, &report.lack) {
        (Some(broken), _) => json!(broken.problem),
        (_, Some(lack)) => json!(lack),
        _ => Value::Null,
    };
    json!({
        "name": name,
        "prefixes": prefixes,
        "path": path.entries(),
        "receiver": receiver,
        "value": hex(value),
        "hops": hops(path, value, receiver),
        "verdict": report.kind,
        "why": outcome,
    })
}

/// The signed input and the chain hash of each hop that stands on the path.
fn hops(path: &Path, value: &[u8], receiver: u32) -> Vec<Value> {
    let Ok(attestation) = Attestation::decode(value) else { return Vec::new() };
    let entries = path.entries();
    let (mut previous, mut cursor, mut shown) = ([0; 32], 0, Vec::new());
    for (index, hop) in attestation.hops().enumerate() {
        let skipped = match hop.signer {
            Signer::Registered { skipped, .. } => usize::from(skipped),
            Signer::Chained { .. } => 0,
        };
        let (Some(skipped), Some(&asn)) = (entries.get(cursor..cursor + skipped), entries.get(cursor + skipped)) else {
            break;
        };
        cursor += skipped.len() + usize::from(hop.prepend);
        let next = entries.get(cursor).copied().unwrap_or(Asn(receiver));
        let Some(commitment) = hop.commitment(next) else { break };
        let mut input = Vec::new();
        SignedInput { index: index as u8, asn, skipped, previous: &previous, commitment: &commitment }.encode(
            attestation.head(),
            &hop,
            &mut input,
        );
        previous = hop.chain_hash(&input);
        shown.push(json!({ "asn": asn, "signed_input": hex(&input), "chain_hash": hex(&previous) }));
    }
    shown
}

fn vectors() -> Value {
    let mut network = Network::new(6, &[SuiteId::KcEd25519]);
    network.register(Asn(3));
    let v4 = [p("192.0.2.0/24")];
    let many = [p("10.0.0.0/8"), p("10.1.0.0/16"), p("192.0.2.0/25")];
    let v6 = [p("2001:db8::/32"), p("2001:db8:1::/48")];
    let mut list = Vec::new();
    for (name, prefixes, ases, receiver) in [
        ("an origin alone", &v4[..], &[1][..], 2),
        ("three hops", &v4, &[1, 2, 4], 5),
        ("a list of three prefixes", &many, &[1, 2], 5),
        ("IPv6", &v6, &[1, 2, 3], 5),
        ("a gap of two legacy ASes that AS 3 closes", &v4, &[1, 2, 100, 101, 3], 5),
        ("a tail of one legacy AS", &v4, &[1, 2, 100], 5),
    ] {
        let (value, path) = network.chain(prefixes, ases, receiver);
        list.push(vector(&network, name, prefixes, &path, &value, receiver));
    }
    let (value, path) = network.chain(&many, &[1, 2], 5);
    list.push(vector(&network, "a subset of the signed list", &many[1..2], &path, &value, 5));
    list.push(vector(&network, "a prefix outside the list", &[p("10.2.0.0/16")], &path, &value, 5));
    let mut broken = value.clone();
    *broken.last_mut().expect("octets") ^= 1;
    list.push(vector(&network, "a wrong signature", &many, &path, &broken, 5));
    list.push(vector(&network, "another receiver", &many, &path, &value, 6));
    let shorter = Path::from_travel(&[Asn(1), Asn(5)]);
    list.push(vector(&network, "another path", &many, &shorter, &value, 6));
    let mut older = value.clone();
    older[0] = 1;
    list.push(vector(&network, "version 1", &many, &path, &older, 5));
    let mut later = value.clone();
    later[0] = 3;
    list.push(vector(&network, "a later version", &many, &path, &later, 5));
    list.push(vector(&network, "cut short", &many, &path, &value[..value.len() - 1], 5));
    list.push(burst(&mut network, &v4));
    list.push(slot(&mut network, &v4));
    list.push(exports(&mut network, &many));
    list.push(long_prepend(&mut network, &v4));
    let ases = (1..=6u32).map(|asn| {
        let seed = hash("test/key", &[&asn.to_be_bytes(), &[1, 0]]);
        json!({ "asn": asn, "ed25519_seed": hex(&seed), "registered": asn == 1 || asn == 3 })
    });
    json!({
        "about": "Values of the attestation attribute, version 2; see docs/attestation.md. ASes not listed are legacy. \
                  AS 1 may announce 192.0.2.0/24, 10.0.0.0/8, 2001:db8::/32 and what lies within. Every hop is signed at \
                  `now` for 1440 minutes with sequence 1; leaves ask for 112 bits.",
        "now": NOW,
        "ases": ases.collect::<Vec<_>>(),
        "vectors": list,
    })
}

/// AS 1 signs once for four neighbours.
fn burst(network: &mut Network, prefixes: &[Prefix]) -> Value {
    let leaves: Vec<(Asn, Leaf)> = [2, 3, 4, 5].iter().map(|asn| (Asn(*asn), network.leaf(Asn(*asn)))).collect();
    let speaker = network.speaker(Asn(1), 1);
    let ring = &mut network.nodes.get_mut(&Asn(1)).expect("AS 1").ring;
    let origination = Origination { prefixes, sequence: 1 };
    let drafts = leaves.iter().map(|(asn, leaf)| {
        let onward = Recipient::Neighbour(*asn, leaf.view());
        Draft::origination(&origination, &speaker, ring, onward).expect("may sign")
    });
    let drafts: Vec<Draft> = drafts.collect();
    let signed = sign::sign_all(drafts, ring, Signatures::Burst(&Seed::new([9; 32])));
    let value = signed[2].as_ref().expect("signs").value.clone();
    vector(network, "one of four hops with one signature", prefixes, &Path::from_travel(&[Asn(1)]), &value, 4)
}

/// AS 1 signs for the slots of a directory, and AS 4 opens its slot and passes the route on.
fn slot(network: &mut Network, prefixes: &[Prefix]) -> Value {
    let slots: Vec<(Asn, Leaf)> = [5, 4, 2].iter().map(|asn| (Asn(*asn), network.leaf(Asn(*asn)))).collect();
    let directory = Tree::directory(&slots).expect("a tree");
    let speaker = network.speaker(Asn(1), 1);
    let ring = &mut network.nodes.get_mut(&Asn(1)).expect("AS 1").ring;
    let origination = Origination { prefixes, sequence: 1 };
    let value = sign::originate(&origination, &speaker, ring, Recipient::Directory(&directory)).expect("signs").value;
    let opened = sign::open(&Attestation::decode(&value).expect("decodes"), &directory, Asn(4)).expect("a slot");
    let onward = network.send(prefixes, &Path::from_travel(&[Asn(1)]), &opened, Asn(4), Asn(6));
    let path = Path::from_travel(&[Asn(1), Asn(4)]);
    vector(network, "the second of three slots of an exchange", prefixes, &path, &onward, 6)
}

/// AS 2 passes on two of three prefixes, and AS 4 one of these.
fn exports(network: &mut Network, prefixes: &[Prefix]) -> Value {
    let (value, mut path) = network.chain(prefixes, &[1], 2);
    let value = network.send(&prefixes[1..], &path, &value, Asn(2), Asn(4));
    path.push(Asn(2), 1);
    let value = network.send(&prefixes[2..], &path, &value, Asn(4), Asn(5));
    path.push(Asn(4), 1);
    vector(network, "the second prefix, which AS 4 does not pass on", &prefixes[1..], &path, &value, 5)
}

fn long_prepend(network: &mut Network, prefixes: &[Prefix]) -> Value {
    let (leaf, speaker) = (network.leaf(Asn(4)), network.speaker(Asn(1), 20));
    let ring = &mut network.nodes.get_mut(&Asn(1)).expect("AS 1").ring;
    let origination = Origination { prefixes, sequence: 1 };
    let onward = Recipient::Neighbour(Asn(4), leaf.view());
    let value = sign::originate(&origination, &speaker, ring, onward).expect("signs").value;
    let mut path = Path::default();
    path.push(Asn(1), 20);
    vector(network, "twenty times in the path", prefixes, &path, &value, 4)
}

#[test]
fn the_published_vectors_are_made_and_validated_alike() {
    let made = vectors();
    if std::env::var("WAYLEAVE_WRITE_VECTORS").is_ok() {
        std::fs::write(FILE, format!("{made:#}\n")).expect("writes");
    }
    let kept: Value = serde_json::from_str(&std::fs::read_to_string(FILE).expect("a file")).expect("JSON");
    assert_eq!(kept["vectors"].as_array().map(Vec::len), made["vectors"].as_array().map(Vec::len));
    for (kept, made) in
        kept["vectors"].as_array().expect("a list").iter().zip(made["vectors"].as_array().expect("a list"))
    {
        assert_eq!(kept, made);
    }
    assert_eq!(kept, made);
}

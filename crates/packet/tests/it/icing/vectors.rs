//! The published test vectors of ICING hold.
//!
//! `WAYLEAVE_WRITE_VECTORS=1` writes a new file.

use std::path::{Path as FilePath, PathBuf};

use serde_json::{Value, json};
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_crypto::sign::SigningKey;
use wayleave_packet::icing::header::{Hop, Packet, Part, Path, SEALED, Tag, Version};
use wayleave_packet::icing::mint::{Consent, Form, NodeSecret, Nonce, Sender, TagMaster, encapsulate, tag_epoch};
use wayleave_packet::icing::verify::{PathKeys, ProofTags, check_consent, check_verifier};

const EXPIRY: u32 = 1_800_000_600;

fn file() -> PathBuf {
    FilePath::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/wire/icing.json")
}

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

fn seed(node: usize) -> [u8; 32] {
    std::array::from_fn(|n| (n as u8).wrapping_mul(7) ^ (node as u8 + 1))
}

fn secret(node: usize) -> NodeSecret {
    NodeSecret::from_seed(&Seed::new(seed(node)))
}

fn master_octets(node: usize) -> [u8; 16] {
    std::array::from_fn(|n| b"tag keys of node"[n] ^ node as u8)
}

fn master(node: usize) -> TagMaster {
    TagMaster::new(Key128::new(master_octets(node)))
}

fn path(count: usize) -> Path {
    let hop = |node: usize| Hop {
        node: secret(node).id(),
        tag: Tag(0x1234_5600 + node as u32),
        expiry: EXPIRY + node as u32,
    };
    Path::new(secret(0).id(), &(1..count).map(hop).collect::<Vec<_>>()).expect("nodes that differ")
}

fn consents(path: &Path, version: Version) -> Vec<Consent> {
    let hash = path.hash(version);
    let consent = |(node, hop): (usize, &Hop)| master(node).consent(&hash, node, hop.tag, hop.expiry);
    (1..).zip(path.hops()).map(consent).collect()
}

fn keys() -> Value {
    let nodes: Vec<Value> = (0..4)
        .map(|node| json!({ "seed": hex(&seed(node)), "id": hex(&secret(node).id().to_bytes()), "tag_master": hex(&master_octets(node)) }))
        .collect();
    let pair = |version: Version, a: usize, b: usize| {
        let key = secret(a).pair(&secret(b).id(), version).expect("honest keys");
        json!({ "version": version as u8, "nodes": [a, b], "k": hex(key.key().expose()) })
    };
    let tag = Tag(0xa5c3_0ff1);
    let branch = |depth: u8| {
        let branch = master(1).root(tag_epoch(EXPIRY)).descend(tag, depth).expect("under the root");
        json!({ "depth": depth, "key": hex(branch.key().expose()) })
    };
    json!({
        "nodes": nodes,
        "pairs": [pair(Version::Standard, 0, 1), pair(Version::Standard, 2, 1), pair(Version::Paper, 0, 1)],
        "tag_tree": {
            "tag_master": hex(&master_octets(1)), "epoch": tag_epoch(EXPIRY), "tag": tag.0,
            "branches": [branch(0), branch(1), branch(8), branch(31), branch(32)],
        },
    })
}

fn packets(version: Version, count: usize) -> Value {
    let path = path(count);
    let consents = consents(&path, version);
    let sender = Sender::new(version, &path, &secret(0), &consents).expect("one consent each");
    let mut wire = Vec::new();
    path.encode(&mut wire);
    let mut packets = Vec::new();
    let mut add = |form, part, payload: &[u8], number: u32, needs_sample: bool| {
        let mut octets = Vec::new();
        let nonce = Nonce(u64::from(EXPIRY - 600) << 32 | u64::from(number));
        let protocol = if version == Version::Sealed { SEALED } else { 4 };
        encapsulate(&sender, (form, part), protocol, nonce, payload, &mut octets).expect("it fits");
        let mut at_nodes = vec![hex(&octets)];
        let mut hash = [0; 32];
        let mut samples = Vec::new();
        for node in 1..count {
            let proof = pass(version, &path, node, &consents[node - 1], &mut octets);
            hash = *proof.hash();
            samples.extend(proof.is_sample().then_some(node));
            at_nodes.push(hex(&octets));
        }
        let is_wanted = !needs_sample || !samples.is_empty();
        match version {
            _ if !is_wanted => {}
            Version::Sealed => {
                packets.push(json!({ "hash": hex(&hash), "sample_for": samples, "at_nodes": at_nodes }));
            }
            Version::Standard | Version::Paper => packets.push(json!({ "hash": hex(&hash), "at_nodes": at_nodes })),
        }
        is_wanted
    };
    let whole = if version == Version::Sealed {
        &b"head of 16 octetsand between, then the tag of it"[..]
    } else {
        b"the payload of a vector"
    };
    for (number, (form, part, payload)) in (0..).zip([
        (Form::Path, Part::Whole, whole),
        (Form::Handle, Part::Whole, &[0x55; 64]),
        (Form::Path, Part::First, b""),
        (Form::Handle, Part::Second, b"second part"),
    ]) {
        add(form, part, payload, number, false);
    }
    if version == Version::Sealed {
        // The first packets that are samples for some node, by their nonces.
        let found = (4..).filter(|number| add(Form::Handle, Part::Whole, whole, *number, true));
        assert_eq!(found.take(3).count(), 3);
    }
    json!({
        "version": version as u8,
        "path": hex(&wire),
        "path_hash": hex(&path.hash(version).0),
        "route_hash": hex(&path.route(version).0),
        "consents": consents.iter().map(|consent| hex(consent.key().expose())).collect::<Vec<_>>(),
        "packets": packets,
    })
}

/// Verifies a packet at node `node` and rewrites it; returns what the node computed.
fn pass(version: Version, path: &Path, node: usize, consent: &Consent, octets: &mut [u8]) -> ProofTags {
    let mut keys = PathKeys::new(path.route(version), node, path.count(), consent);
    for other in (0..path.count()).filter(|other| *other != node) {
        keys.set_pair(other, &secret(node).pair(path.node(other), version).expect("honest keys"));
    }
    let proof = {
        let packet = Packet::decode(octets, version).expect("well-formed");
        assert_eq!(packet.index(), node);
        assert_eq!(check_consent(version, &packet, &keys), Ok(()));
        check_verifier(&packet, &keys).expect("it came the whole way")
    };
    proof.advance(octets);
    proof
}

/// What node 2 of the first path signs of a window: the octets are made here from the page, and compared with what a node signs in
/// `dataplane/icing/report.rs`.
fn reports() -> Vec<Value> {
    let identity = [0x21; 32];
    let (handle, index, window) = (path(4).route(Version::Standard).handle().0, 2u8, (EXPIRY - 600) >> 4);
    let report = |[packets, octets, samples, failed, spoiled]: [u64; 5], is_whole: bool| {
        let mut fields = [&handle[..], &[index], &window.to_be_bytes()].concat();
        fields.extend([packets, octets].map(u64::to_be_bytes).as_flattened());
        let is_short = is_whole && [samples, failed, spoiled] == [0; 3];
        if !is_short {
            fields.extend([samples, failed, spoiled].map(u64::to_be_bytes).as_flattened());
            fields.push(is_whole.into());
        }
        let label = if is_short { "wayleave/icing/report/v1" } else { "wayleave/icing/report/v2" };
        let signature = SigningKey::from_seed(&Seed::new(identity)).sign(label, &fields);
        json!({
            "identity_seed": hex(&identity), "label": label,
            "handle": hex(&handle), "index": index, "window": window, "whole": is_whole,
            "packets": packets, "octets": octets, "samples": samples, "failed": failed, "spoiled": spoiled,
            "signed": hex(&[fields, signature.to_vec()].concat()),
        })
    };
    vec![
        report([1_000, 64_000, 0, 0, 0], true),
        report([1_000, 64_000, 14, 2, 1], true),
        report([400, 25_600, 0, 0, 0], false),
        report([400, 25_600, 5, 1, 0], false),
    ]
}

fn vectors() -> Value {
    json!({
        "format": "ICING; see docs/wire/icing.md",
        "keys": keys(),
        "paths": [packets(Version::Standard, 4), packets(Version::Standard, 2), packets(Version::Paper, 3), packets(Version::Sealed, 4)],
        "reports": reports(),
    })
}

#[test]
fn the_published_vectors_hold() {
    let found = vectors();
    if std::env::var("WAYLEAVE_WRITE_VECTORS").is_ok() {
        let text = serde_json::to_string_pretty(&found).expect("numbers and text") + "\n";
        std::fs::write(file(), text).expect("the folder is there");
    }
    let published: Value = serde_json::from_slice(&std::fs::read(file()).expect("the file is there")).expect("JSON");
    assert_eq!(found, published);
}

//! `kc-hbs` against vectors of a plain model in another language, and its trees against SLH-DSA.

use wayleave_attestation::Suite;
use wayleave_attestation::hash::tree::{Claimed, Seeds, Tree, TreeId, Winternitz, roots};
use wayleave_attestation::hash::{Node, PublicSeed};
use wayleave_attestation::suite::SuiteKey;
use wayleave_attestation::suite::hbs::{HbsKey, KcHbs, Part};
use wayleave_core::UnixTime;
use wayleave_crypto::secret::Secret;

fn octets(hex: &str) -> Vec<u8> {
    let digit = |octet: u8| char::from(octet).to_digit(16).expect("hexadecimal") as u8;
    hex.as_bytes().as_chunks::<2>().0.iter().map(|[high, low]| digit(*high) << 4 | digit(*low)).collect()
}

#[test]
fn keys_and_signatures_are_those_of_the_plain_model() {
    let text = include_str!("../../../../test-data/attestation/kc-hbs.txt");
    let lines: Vec<(&str, &str)> = text.lines().map(|line| line.split_once(' ').unwrap_or((line, ""))).collect();
    assert_eq!(lines.len(), 16);
    for vector in lines.as_chunks::<8>().0 {
        let of = |name: &str| vector.iter().find(|line| line.0 == name).expect("a line").1;
        let number = |name: &str| -> u64 { of(name).parse().expect("a number") };
        let seed: [u8; 32] = octets(of("seed")).try_into().expect("a seed");
        let (part, parts) = of("part").split_once(" of ").expect("a part");
        let part = Part::new(part.parse().expect("a number"), parts.parse().expect("a number")).expect("a part");
        let (message, signature) = (octets(of("message")), octets(of("signature")));
        let mut key = HbsKey::new(&Secret::new(seed), number("birth"), part);
        assert_eq!(key.public(), octets(of("public")));
        let slots = key.slots().expect("a few-time key");
        key.set_slot(slots.at(UnixTime(number("time") * 1_000_000)));
        for _ in 0..number("number") {
            key.sign(b"another").expect("some are left");
        }
        assert_eq!(key.sign(&message).as_ref(), Ok(&signature));
        assert!(KcHbs.verify(key.public(), &message, &signature));
    }
}

#[test]
fn trees_and_chains_are_those_of_slh_dsa() {
    // A signature of the hypertree of SLH-DSA-SHA2-128f (FIPS 205 algorithm 12: 22 layers of height 3), made by the
    // Python package `slh-dsa` 0.2.
    let text = include_str!("../../../../test-data/attestation/slh-dsa-sha2-128f.hypertree.txt");
    let of = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).expect("a line");
    let node = |name: &str| -> Node { octets(of(name)).try_into().expect("16 octets") };
    let (winternitz, height) = (Winternitz { bits: 4 }, 3);
    let seeds = Seeds { secret: Secret::new(node("secret_seed")), public: PublicSeed::new(&node("public_seed")) };
    let signature = octets(of("signature"));
    let layers = signature.as_chunks::<16>().0.chunks_exact(winternitz.chains() + height as usize);
    assert_eq!(layers.len(), 22);
    let (mut tree, mut pair): (u64, u32) = (of("tree").parse().expect("a number"), of("leaf").parse().expect("one"));
    let mut message = node("message");
    for (layer, part) in (0u8..).zip(layers) {
        let tree_id = TreeId { layer, tree };
        let (chains, path) = part.split_at(winternitz.chains());
        let ours = Tree::new(&seeds, winternitz, tree_id, height);
        assert_eq!(seeds.sign(winternitz, tree_id, pair, &message), chains.as_flattened(), "layer {layer}");
        assert_eq!(ours.path(pair), path.as_flattened(), "layer {layer}");
        message = roots(winternitz, &[Claimed { seed: &seeds.public, tree_id, pair, message, chains, path }])[0];
        assert_eq!(message, ours.root(), "layer {layer}");
        (pair, tree) = ((tree & 7) as u32, tree >> height);
    }
    assert_eq!(message, node("root"));
}

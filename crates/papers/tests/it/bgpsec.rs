//! BGPsec against the published examples of RFC 8208 and 8608, and the attribute's decoder against bad input.

use proptest::prelude::*;
use wayleave_core::{Asn, Prefix};
use wayleave_crypto::secret::Secret;
use wayleave_papers::baseline::bgpsec::{Bgpsec, POINT_LEN, RouterKey, RouterKeys, ski};
use wayleave_papers::baseline::bgpsec_wire::{BgpsecError, BgpsecPath, SecurePathSegment};
use wayleave_papers::scheme::{Announcement, Scheme};

const UPDATE_IPV4: &[u8] = include_bytes!("../../../../test-data/bgpsec/update-ipv4.bin");
const UPDATE_IPV6: &[u8] = include_bytes!("../../../../test-data/bgpsec/update-ipv6.bin");
const CERTIFICATES: [&[u8]; 3] = [
    include_bytes!("../../../../test-data/bgpsec/as64496.cert"),
    include_bytes!("../../../../test-data/bgpsec/as65536.cert"),
    include_bytes!("../../../../test-data/bgpsec/as65537.cert"),
];
/// AS, key identifier, public key, private key.
const KEYS: [(u32, &str, &str, &str); 3] = [
    (
        64_496,
        "AB4D910F55CAE71A215EF3CAFE3ACC45B5EEC154",
        "047391BABB92A0CB3BE10E59B19EBFFB214E04A91E0CBA1B139A7D38D90F77E55AA05B8E695678E0FA16904B55D9D4F5C0DFC58895EE50\
         BC4F75D205A25BD36FF5",
        "D8AA4DFBE2478F86E88A7451BF075565709C575AC1C136D081C540254CA440B9",
    ),
    (
        65_536,
        "47F23BF1AB2F8A9D26864EBBD8DF2711C74406EC",
        "0428FC5FE9AFCF5F4CAB3F5F85CB212FC1E9D0E0DBEAEE425BD2F0D3175AA0E989EA9B603E38F35FB329DF495641F2BA040F1C3AC61383\
         07F257CBA6B8B588F41F",
        "6CB2E931B112F24554BCDCAAFD9553A9519A9AF33C023B60846A21FC95583172",
    ),
    (
        65_537,
        "3A7C104909B37C7177DF8F29C800C7C8E2B8101E",
        "04DB04B342E69ABA32BCC35277EFE0FF13438F02AB607C95560E9A84A6606508259C503F2024F8788461F717B10E4E493337968002\
         15F5129ABB668987F4770031",
        "7F9E85852E1D31F3A8928787B94373C5B2A7535CE43B607CA0025192AAF181E1",
    ),
];
const RECEIVER: Asn = Asn(65_537);

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().map(|c| c.to_digit(16).expect("a hex digit")).collect();
    digits.chunks(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).expect("two digits")).collect()
}

fn point(index: usize) -> [u8; POINT_LEN] {
    hex(KEYS[index].2).try_into().expect("a point")
}

fn private(index: usize) -> RouterKey {
    let scalar: [u8; 32] = hex(KEYS[index].3).try_into().expect("a scalar");
    RouterKey::from_scalar(&Secret::new(scalar)).expect("a published key")
}

fn published_keys() -> RouterKeys {
    let mut keys = RouterKeys::new();
    for (index, (asn, ..)) in KEYS.iter().enumerate() {
        keys.insert(Asn(*asn), &point(index)).expect("a published key");
    }
    keys
}

/// The value of the attribute that the examples number 0x1E.
fn value(update: &[u8]) -> &[u8] {
    let start = update.windows(4).position(|window| window == [0x90, 0x1e, 0x00, 0xcd]).expect("the attribute");
    &update[start + 4..start + 4 + 0xcd]
}

fn examples() -> [(BgpsecPath, Prefix); 2] {
    let decoded = |update| BgpsecPath::decode(value(update)).expect("well formed");
    let prefix = |text: &str| text.parse().expect("a prefix");
    [(decoded(UPDATE_IPV4), prefix("192.0.2.0/24")), (decoded(UPDATE_IPV6), prefix("2001:db8::/32"))]
}

#[test]
fn both_published_updates_verify_hop_by_hop() {
    let keys = published_keys();
    for (path, prefix) in examples() {
        assert_eq!(path.ases().collect::<Vec<_>>(), [Asn(64_496), Asn(65_536)]);
        assert!(keys.verify(&path, &prefix, RECEIVER));
        // The first hop alone, which AS 65536 received.
        let mut first = path.clone();
        first.segments.remove(0);
        first.blocks[0].signatures.remove(0);
        assert!(keys.verify(&first, &prefix, Asn(65_536)));
        assert!(!keys.verify(&first, &prefix, RECEIVER));
    }
}

#[test]
fn the_published_attribute_encodes_to_the_same_octets() {
    for (update, (path, _)) in [UPDATE_IPV4, UPDATE_IPV6].into_iter().zip(examples()) {
        assert_eq!(path.encode().as_deref(), Some(value(update)));
    }
}

#[test]
fn key_identifiers_are_the_sha_1_of_the_public_keys_and_the_certificates_carry_them() {
    for (index, (_, identifier, ..)) in KEYS.iter().enumerate() {
        assert_eq!(ski(&point(index)).to_vec(), hex(identifier));
        assert_eq!(private(index).point(), &point(index));
        assert!(CERTIFICATES[index].windows(POINT_LEN).any(|window| window == point(index)));
    }
}

#[test]
fn what_we_sign_with_the_published_keys_verifies() {
    let keys = published_keys();
    for (_, prefix) in examples() {
        let origin = private(0).extend(&BgpsecPath::default(), Asn(64_496), Asn(65_536), &prefix).expect("extends");
        assert!(keys.verify(&origin, &prefix, Asn(65_536)));
        let path = private(1).extend(&origin, Asn(65_536), RECEIVER, &prefix).expect("extends");
        assert!(keys.verify(&path, &prefix, RECEIVER));
    }
}

#[test]
fn the_signed_octets_are_those_of_figure_8() {
    let [(path, prefix), _] = examples();
    let block = &path.blocks[0];
    let origin = hex("00010000" /* target */).into_iter().chain(hex("01000000FBF0" /* segment 1 */));
    let origin: Vec<u8> = origin.chain(hex("01" /* suite */)).chain(hex("00010118C00002" /* NLRI */)).collect();
    assert_eq!(path.signed_octets(block, 1, Asn(65_536), &prefix), origin);
    let mut second = hex("00010001");
    second.extend(hex("AB4D910F55CAE71A215EF3CAFE3ACC45B5EEC1540048"));
    second.extend(&block.signatures[1].signature);
    second.extend(hex("010000010000"));
    second.extend(&origin[4..]);
    assert_eq!(path.signed_octets(block, 0, RECEIVER, &prefix), second);
}

#[test]
fn no_flipped_bit_verifies() {
    let keys = published_keys();
    for (update, (_, prefix)) in [UPDATE_IPV4, UPDATE_IPV6].into_iter().zip(examples()) {
        let good = value(update);
        for bit in 0..good.len() * 8 {
            let mut bad = good.to_vec();
            bad[bit / 8] ^= 0x80 >> (bit % 8);
            let accepted = BgpsecPath::decode(&bad).is_ok_and(|path| keys.verify(&path, &prefix, RECEIVER));
            assert!(!accepted, "bit {bit}");
        }
    }
}

#[test]
fn another_prefix_or_receiver_or_a_key_withdrawn_does_not_verify() {
    let mut keys = published_keys();
    let [(path, prefix), (_, other)] = examples();
    assert!(!keys.verify(&path, &other, RECEIVER));
    assert!(!keys.verify(&path, &"192.0.2.0/25".parse().expect("a prefix"), RECEIVER));
    assert!(!keys.verify(&path, &prefix, Asn(65_538)));
    keys.remove(Asn(64_496), &ski(&point(0)));
    assert!(!keys.verify(&path, &prefix, RECEIVER));
}

#[test]
fn bad_attributes_are_refused_by_their_defect() {
    let good = value(UPDATE_IPV4);
    let decode = |bytes: &[u8]| BgpsecPath::decode(bytes).expect_err("malformed");
    assert_eq!(decode(&[]), BgpsecError::Truncated);
    assert_eq!(decode(&[0, 2]), BgpsecError::NoSegment);
    assert_eq!(decode(&[0, 1]), BgpsecError::Length(1));
    assert_eq!(decode(&[0, 3, 9]), BgpsecError::Length(3));
    assert_eq!(decode(&good[..14]), BgpsecError::Blocks(0));
    assert_eq!(decode(&good[..good.len() - 1]), BgpsecError::Truncated);
    let twice = [good, &good[14..]].concat();
    assert_eq!(decode(&twice), BgpsecError::RepeatedSuite(1));
    let mut three = good.to_vec();
    for suite in [2, 3] {
        let mut block = good[14..].to_vec();
        block[2] = suite;
        three.extend(block);
    }
    assert_eq!(decode(&three), BgpsecError::Blocks(3));
    let mut short = BgpsecPath::decode(good).expect("good");
    short.segments.push(SecurePathSegment { p_count: 1, flags: 0, asn: Asn(1) });
    let expected = BgpsecError::Signatures { signatures: 2, segments: 3 };
    assert_eq!(decode(&short.encode().expect("fits")), expected);
}

#[test]
fn hostile_keys_are_refused() {
    let mut keys = RouterKeys::new();
    assert!(keys.insert(Asn(1), &[]).is_err());
    assert!(keys.insert(Asn(1), &[0]).is_err());
    let mut off_curve = point(0);
    off_curve[64] ^= 1;
    assert!(keys.insert(Asn(1), &off_curve).is_err());
    let mut hybrid = point(0);
    hybrid[0] = 6;
    assert!(keys.insert(Asn(1), &hybrid).is_err());
    assert!(RouterKey::from_scalar(&Secret::new([0; 32])).is_err());
    assert!(RouterKey::from_scalar(&Secret::new([0xff; 32])).is_err());
}

#[test]
fn a_world_attests_paths_of_several_prefixes_and_hops() {
    let mut scheme = Bgpsec::new(&Secret::new([7; 32]));
    let prefixes = ["192.0.2.0/24", "198.51.100.0/22"].map(|text| text.parse().expect("a prefix")).to_vec();
    let mut announcement = Announcement { prefixes, path: vec![] };
    let mut attestation = Vec::new();
    for hop in 1..=5 {
        announcement.path.push(Asn(hop));
        attestation = scheme.attest(&announcement, &attestation, Asn(hop + 1)).expect("attests");
        assert!(scheme.verify(&announcement, &attestation, Asn(hop + 1)));
        assert!(!scheme.verify(&announcement, &attestation, Asn(hop + 2)));
    }
    announcement.prefixes.swap(0, 1);
    assert!(!scheme.verify(&announcement, &attestation, Asn(6)));
}

proptest! {
    #[test]
    fn what_decodes_encodes_to_the_same_octets(mut bytes in prop::collection::vec(any::<u8>(), 0..300), cut in 0..210usize) {
        // Half of the inputs are changed valid attributes, which reach deeper parts of the decoder.
        let good = value(UPDATE_IPV4);
        bytes.splice(0..0, good[..cut.min(good.len())].iter().copied());
        if let Ok(path) = BgpsecPath::decode(&bytes) {
            prop_assert_eq!(path.encode(), Some(bytes));
        }
    }
}

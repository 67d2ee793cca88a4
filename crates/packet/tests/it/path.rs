//! A path as a value: each format mints from it what it would mint from its own parts.
//!
//! FWD, paths: `packet::Path` of each format: packets by it are those that the format's own parts make, and its nodes
//! accept them.

use wayleave_core::{Afi, IdentityKey};
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_packet::icing::header::{Packet, Part, Path as HeaderPath, Tag, Version};
use wayleave_packet::icing::mint::{Form, MintError, NodeSecret, Nonce, TagMaster, encapsulate};
use wayleave_packet::icing::verify::{PathKeys, check_consent, check_verifier};
use wayleave_packet::platypus;
use wayleave_packet::scion::header::IsdAs;
use wayleave_packet::scion::mint::{Direction, ForwardingKey, PathBuilder, Segment};
use wayleave_packet::{Format, Hop, HopId, Label, Path, PathError};

const EXPIRY: u32 = 1_800_000_600;

fn secret(node: u8) -> NodeSecret {
    NodeSecret::from_seed(&Seed::new([node + 1; 32]))
}

fn master(node: usize) -> TagMaster {
    TagMaster::new(Key128::new([node as u8; 16]))
}

fn hop(node: u8) -> Hop {
    let at = HopId::Node { identity: IdentityKey([node; 32]), id: secret(node).id(), tag: Tag(node.into()) };
    Hop { at, ingress: 0, egress: 0 }
}

fn path(count: u8) -> Path {
    Path::icing((0..count).map(hop).collect(), u64::from(EXPIRY) + 500, 1400).expect("nodes that differ")
}

#[test]
fn packets_of_a_consented_icing_path_are_accepted_by_its_nodes() {
    for version in [Version::Standard, Version::Paper] {
        let mut path = path(4);
        let hash = path.consent_hash(version).expect("of ICING");
        assert_eq!(path.sender(version, &secret(0)).err(), Some(PathError::Consent(1)));
        for index in [3, 1, 2] {
            let consent = master(index).consent(&hash, index, Tag(index as u32), EXPIRY + index as u32);
            path.add_consent(index, EXPIRY + index as u32, consent).expect("behind the sender");
        }
        assert_eq!(path.expiry(), u64::from(EXPIRY) + 1);
        let sender = path.sender(version, &secret(0)).expect("every node consented");
        let mut octets = Vec::new();
        encapsulate(&sender, (Form::Path, Part::Whole), 4, Nonce(7), b"payload", &mut octets).expect("it fits");
        let route = path.icing_path().expect("every node consented").route(version);
        for index in 1..4 {
            let packet = Packet::decode(&octets, version).expect("well-formed");
            let wire = HeaderPath::decode(packet.path().expect("with its path")).expect("a path");
            assert_eq!(wire, path.icing_path().expect("every node consented"));
            let consent = master(index).consent(&hash, index, Tag(index as u32), EXPIRY + index as u32);
            let mut keys = PathKeys::new(route, index, 4, &consent);
            for other in (0..4).filter(|other| *other != index) {
                let pair = secret(index as u8).pair(&secret(other as u8).id(), version).expect("honest");
                keys.set_pair(other, &pair);
            }
            assert_eq!(check_consent(version, &packet, &keys), Ok(()));
            let proof = check_verifier(&packet, &keys).expect("it came the whole way");
            proof.advance(&mut octets);
        }
        assert_eq!(path.sender(version, &secret(9)).err(), Some(PathError::Mint(MintError::Sender)));
    }
}

#[test]
fn a_path_has_two_to_sixteen_nodes_and_none_twice() {
    for count in 0..20u8 {
        let made = Path::icing((0..count).map(hop).collect(), 1, 1400);
        assert_eq!(made.is_ok(), (2..=16).contains(&count), "{count}");
    }
    let again = |node: fn(Hop) -> HopId| {
        let last = Hop { at: node(hop(0)), ..hop(2) };
        Path::icing(vec![hop(0), hop(1), last], 1, 1400).err()
    };
    // The identity of the first node with another ID, and its ID under another identity.
    assert_eq!(
        again(|h| HopId::Node { identity: h.at.node().expect("a node").0, id: secret(7).id(), tag: Tag(1) }),
        Some(PathError::Repeated(2))
    );
    assert_eq!(
        again(|h| HopId::Node { identity: IdentityKey([9; 32]), id: h.at.node().expect("a node").1, tag: Tag(1) }),
        Some(PathError::Repeated(2))
    );
    let foreign = Hop { at: HopId::As(IsdAs::new(1, 7)), ..hop(1) };
    assert_eq!(Path::icing(vec![hop(0), foreign], 1, 1400).err(), Some(PathError::HopFormat(1)));
}

#[test]
fn a_consent_or_a_label_for_a_hop_that_is_not_there_is_refused() {
    let mut path = path(3);
    let consent = || master(1).consent(&path_hash(), 1, Tag(1), EXPIRY);
    for index in [0, 3, 17] {
        assert_eq!(path.add_consent(index, EXPIRY, consent()), Err(PathError::NoSuchHop(index)));
    }
    let label = |hop| Label { hop, text: "green".into(), signer: IdentityKey([1; 32]) };
    assert_eq!(path.clone().with_labels(vec![label(3)]).err(), Some(PathError::NoSuchHop(3)));
    assert_eq!(path.clone().with_labels(vec![label(0); 65]).err(), Some(PathError::Labels(65)));
    assert_eq!(path.with_labels(vec![label(2)]).expect("hop 2 is there").labels(), [label(2)]);
}

fn path_hash() -> wayleave_packet::icing::header::PathHash {
    path(3).consent_hash(Version::Standard).expect("of ICING")
}

#[test]
fn a_scion_path_ends_with_its_first_hop_field_and_gives_the_path_of_headers() {
    let key = ForwardingKey::new(&[7; 16]);
    let mut segment = Segment::new(5, 1_800_000_000);
    segment.extend(&key, 63, 0, 1, &[]);
    segment.extend(&key, 10, 2, 0, &[]);
    let built = PathBuilder::new().segment(&segment, 0..2, Direction::Construction).expect("two hops");
    let built = built.build().expect("one segment");
    let at = |asn| Hop { at: HopId::As(IsdAs::new(1, asn)), ingress: 0, egress: 1 };
    let path = Path::scion(vec![at(1), at(2)], built.clone(), 1472).expect("ASes");
    assert_eq!((path.format(), path.mtu()), (Format::Scion, 1472));
    // (1 + 10) * 337.5 s, in whole seconds.
    assert_eq!(path.expiry(), 1_800_000_000 + 3_712);
    assert_eq!(path.standard_path(), Ok(&built));
    assert_eq!(path.icing_path().err(), Some(PathError::Format(Format::Scion)));
    assert_eq!(Path::scion(Vec::new(), built.clone(), 1).err(), Some(PathError::Count(0)));
    assert_eq!(Path::scion(vec![hop(1)], built, 1).err(), Some(PathError::HopFormat(0)));
}

#[test]
fn a_platypus_path_ends_with_its_first_epoch_and_stamps_as_its_capabilities_do() {
    use super::platypus::world;
    let hops = [1, 2].map(|number| world::hop(world::capability(Afi::Ipv4, number))).to_vec();
    let path = Path::platypus(hops.clone(), 1400).expect("two capabilities");
    assert_eq!(path.format(), Format::Platypus);
    let interval = hops[0].capability.interval.exponent();
    assert_eq!(path.expiry() >> interval, u64::from(hops[0].capability.epoch));
    assert_eq!((path.expiry() + 1) >> interval, u64::from(hops[0].capability.epoch) + 1);
    let nonce = platypus::mint::Nonce { seconds: 1, counter: 2 };
    let stamped = |route: &platypus::mint::Route<'_>| {
        let mut out = Vec::new();
        platypus::mint::encapsulate(&world::inner(Afi::Ipv4, b"payload"), route, &mut out).map(|()| out)
    };
    let carriage = platypus::header::Carriage::Ip;
    let own = platypus::mint::Route { hops: &hops, nonce, sealed: false, reply_option: &[], carriage };
    let from_path = path.stamping(nonce, false, carriage).expect("of Platypus");
    assert_eq!(stamped(&from_path), stamped(&own));
    assert!(stamped(&own).is_ok());
    assert_eq!(path.sender(Version::Standard, &secret(0)).err(), Some(PathError::Format(Format::Platypus)));
    assert_eq!(Path::platypus(Vec::new(), 1).err(), Some(PathError::Count(0)));
}

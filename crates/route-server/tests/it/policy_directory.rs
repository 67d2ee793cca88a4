//! Member sets: what may follow what, what is signed, and what a decoder refuses.

use std::net::IpAddr;

use crate::common::{RS, lan4, set, slot};
use proptest::prelude::*;
use wayleave_core::Asn;
use wayleave_crypto::secret::Secret;
use wayleave_crypto::sign::SigningKey;
use wayleave_route_server::directory::{
    AttestKey, DecodeError, MAX_SLOTS, MemberSet, NotSigned, SetError, SignedMemberSet, Slot,
};
use wayleave_route_server::wire::Malformed;

fn operator() -> SigningKey {
    SigningKey::from_seed(&Secret::new([7; 32]))
}

fn successor(previous: &MemberSet) -> MemberSet {
    MemberSet { number: previous.number + 1, ..previous.clone() }
}

#[test]
fn a_signed_set_survives_the_wire_and_verifies() {
    let signed = set(&[64497, 64498, 64498]).sign(&operator()).expect("a valid set");
    let read = SignedMemberSet::decode(&signed.encode()).expect("what was encoded");
    assert_eq!(read, signed);
    assert_eq!(read.verify(&operator().verifying_key()), Ok(&set(&[64497, 64498, 64498])));
}

#[test]
fn another_key_or_a_changed_octet_is_not_signed() {
    let signed = set(&[64497]).sign(&operator()).expect("a valid set");
    let other = SigningKey::from_seed(&Secret::new([8; 32])).verifying_key();
    assert_eq!(signed.verify(&other), Err(NotSigned));
    let bytes = signed.encode();
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 1;
        if let Ok(read) = SignedMemberSet::decode(&bad) {
            assert_eq!(read.verify(&operator().verifying_key()), Err(NotSigned), "octet {at}");
        }
    }
}

#[test]
fn every_truncation_and_every_tail_is_refused() {
    let bytes = set(&[64497, 64498]).sign(&operator()).expect("a valid set").encode();
    for length in 0..bytes.len() {
        let error = SignedMemberSet::decode(&bytes[..length]).expect_err("truncated");
        assert!(matches!(error, DecodeError::Malformed(_)), "{length}: {error}");
    }
    let tail = [bytes.as_slice(), &[0]].concat();
    assert_eq!(SignedMemberSet::decode(&tail), Err(Malformed::TooLong(1).into()));
}

#[test]
fn a_count_beyond_the_limit_is_refused_before_anything_is_read() {
    let mut bytes = vec![1, 0, 0, 0, 1, b'x'];
    bytes.extend_from_slice(&1u64.to_be_bytes());
    bytes.extend_from_slice(&u32::MAX.to_be_bytes());
    bytes.extend_from_slice(&[0; 200]);
    let error = SignedMemberSet::decode(&bytes).expect_err("a lie");
    assert_eq!(error, Malformed::TooMany { count: u32::MAX as usize, most: 2 }.into());
}

#[test]
fn a_policy_that_names_an_as_finds_its_active_slots_only() {
    let mut members = set(&[64497, 64498, 64497, 64497]);
    members.slots[2].active = false;
    assert_eq!(members.slots_of(Asn(64497)).collect::<Vec<_>>(), [0, 3]);
    assert_eq!(members.slots_of(RS).count(), 0);
    assert_eq!(members.slot_by_tls(&[4; 32]), Some(3));
    assert_eq!(members.slot_by_tls(&[3; 32]), None);
    assert_eq!(members.slot_by_name("as64498-1"), Some(1));
}

#[test]
fn a_set_may_append_and_members_may_leave() {
    let first = set(&[64497, 64498]);
    let mut second = successor(&first);
    second.slots[0].active = false;
    second.slots.push(slot(2, 64499));
    assert_eq!(second.may_follow(&first), Ok(()));
}

#[test]
fn a_set_may_not_follow_what_it_contradicts() {
    let first = set(&[64497, 64498]);
    let change = |edit: fn(&mut MemberSet)| {
        let mut next = successor(&first);
        edit(&mut next);
        next.may_follow(&first)
    };
    assert_eq!(first.may_follow(&first), Err(SetError::NumberNotRising { number: 1, previous: 1 }));
    assert_eq!(change(|s| s.exchange = "other".into()), Err(SetError::OtherExchange));
    assert_eq!(change(|s| drop(s.slots.pop())), Err(SetError::SlotsRemoved { have: 1, before: 2 }));
    assert_eq!(change(|s| s.slots[1].sign = [99; 32]), Err(SetError::ChangedInPlace(1)));
    assert_eq!(change(|s| s.slots[1].tls = [99; 32]), Err(SetError::ChangedInPlace(1)));
    assert_eq!(change(|s| s.slots[0].asn = Asn(64499)), Err(SetError::ChangedInPlace(0)));
    assert_eq!(change(|s| s.slots[0].addresses = vec![lan4(9)]), Err(SetError::ChangedInPlace(0)));
    assert_eq!(change(|s| s.slots[0].max_prefix = 5), Err(SetError::ChangedInPlace(0)));
    assert_eq!(change(|s| s.slots.swap(0, 1)), Err(SetError::ChangedInPlace(0)));
}

#[test]
fn a_leavers_slot_is_dead_for_ever() {
    let mut first = set(&[64497, 64498]);
    first.slots[1].active = false;
    let mut second = successor(&first);
    second.slots[1].active = true;
    assert_eq!(second.may_follow(&first), Err(SetError::Revived(1)));

    let mut returned = successor(&first);
    returned.slots.push(Slot { sign: [50; 32], tls: [50; 32], ..slot(1, 64498) });
    assert_eq!(returned.may_follow(&first), Ok(()), "a returning member gets a new slot and new keys");
    returned.slots[2].sign = first.slots[1].sign;
    assert_eq!(returned.may_follow(&first), Err(SetError::KeyTaken(2)), "a leaver's key is dead too");
}

#[test]
fn a_set_that_contradicts_itself_is_refused() {
    let broken = |edit: fn(&mut MemberSet)| {
        let mut members = set(&[64497, 64498]);
        edit(&mut members);
        members.sign(&operator()).expect_err("contradicts itself")
    };
    assert_eq!(broken(|s| s.exchange.clear()), SetError::ExchangeName);
    assert_eq!(broken(|s| s.slots[0].name = "a\nb".into()), SetError::SlotName(0));
    assert_eq!(broken(|s| s.slots[0].name = "n".repeat(65)), SetError::SlotName(0));
    assert_eq!(broken(|s| s.slots[0].asn = Asn(0)), SetError::Asn(0, Asn(0)));
    assert_eq!(broken(|s| s.slots[0].addresses.clear()), SetError::AddressCount(0, 0));
    assert_eq!(broken(|s| s.slots[1].name = s.slots[0].name.clone()), SetError::NameTaken(1));
    assert_eq!(broken(|s| s.slots[1].tls = s.slots[0].tls), SetError::KeyTaken(1));
    assert_eq!(broken(|s| s.slots[1].addresses = s.slots[0].addresses.clone()), SetError::AddressTaken(1, lan4(0)));
    assert_eq!(broken(|s| s.slots = vec![slot(0, 64497); MAX_SLOTS + 1]), SetError::TooManySlots(MAX_SLOTS + 1));
}

#[test]
fn attestation_keys_may_change_with_any_set_and_are_of_members() {
    let before = set(&[64497, 64498, 64497]);
    let key = |suite| AttestKey { suite, key: [suite; 32] };
    let with = |asn, keys: Vec<AttestKey>| {
        let mut next = successor(&before);
        next.attest.insert(Asn(asn), keys);
        next.may_follow(&before)
    };
    assert_eq!(with(64498, vec![key(1), key(2)]), Ok(()));
    assert_eq!(with(64499, vec![key(1)]), Err(SetError::AttestKeys(Asn(64499))));
    for keys in [vec![], vec![key(1), key(1)], vec![key(2), key(1)], (0..5).map(key).collect()] {
        assert_eq!(with(64498, keys), Err(SetError::AttestKeys(Asn(64498))));
    }
    let mut changed = successor(&before);
    changed.attest.insert(Asn(64498), vec![key(3)]);
    assert_ne!(changed.neighbours_digest(), before.neighbours_digest());
    let asns: Vec<Asn> = changed.neighbours().map(|(asn, _)| asn).collect();
    assert_eq!(asns, [Asn(64497), Asn(64498)], "an AS stands once");
    // Whoever has left is nobody's neighbour, and where one slot of an AS is left it keeps its place.
    changed.slots[0].active = false;
    let neighbours: Vec<(Asn, usize)> = changed.neighbours().map(|(asn, keys)| (asn, keys.len())).collect();
    assert_eq!(neighbours, [(Asn(64498), 1), (Asn(64497), 0)]);
}

#[test]
fn slots_of_one_as_may_share_an_address() {
    let mut members = set(&[64497, 64497]);
    members.slots[1].addresses = members.slots[0].addresses.clone();
    assert_eq!(members.check(), Ok(()));
}

fn any_slot(place: u8) -> impl Strategy<Value = Slot> {
    let third = prop::collection::vec(any::<u16>(), 0..3);
    (any::<bool>(), 1u32..65000, "[a-z]{1,8}", third, any::<u32>()).prop_map(move |(active, asn, name, more, limit)| {
        let mut addresses: Vec<IpAddr> = vec![lan4(place)];
        addresses.extend(
            more.iter().zip(0u16..).map(|(&low, at)| IpAddr::from([0x2001, 0xdb8, u16::from(place), at, 0, 0, 0, low])),
        );
        Slot { active, addresses, name: format!("{name}{place}"), max_prefix: limit, ..slot(place, asn) }
    })
}

fn any_set() -> impl Strategy<Value = MemberSet> {
    let slots = (0u8..6).prop_flat_map(|n| (0..n).map(any_slot).collect::<Vec<_>>());
    ("[a-z-]{1,10}", any::<u64>(), slots).prop_map(|(exchange, number, slots)| {
        // Every other AS attests, with a key more for each.
        let asns = slots.iter().map(|slot| slot.asn).enumerate().filter(|(place, _)| place % 2 == number as usize % 2);
        let keys = |count: usize| (0..1 + count as u8 % 4).map(|suite| AttestKey { suite, key: [suite; 32] }).collect();
        let attest = asns.map(|(place, asn)| (asn, keys(place))).collect();
        MemberSet { exchange, number, slots, attest }
    })
}

proptest! {
    #[test]
    fn every_set_reads_back_as_itself(members in any_set()) {
        let signed = members.clone().sign(&operator()).expect("a valid set");
        let read = SignedMemberSet::decode(&signed.encode()).expect("what was encoded");
        prop_assert_eq!(read.verify(&operator().verifying_key()), Ok(&members));
    }

    #[test]
    fn different_sets_never_encode_alike(a in any_set(), b in any_set()) {
        let bytes = |set: &MemberSet| set.clone().sign(&operator()).expect("a valid set").encode();
        prop_assert_eq!(a == b, bytes(&a) == bytes(&b));
        prop_assert_eq!(a == b, a.digest() == b.digest());
    }

    #[test]
    fn whatever_decodes_encodes_to_the_same_octets(
        members in any_set(), flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4)
    ) {
        let mut bytes = members.sign(&operator()).expect("a valid set").encode();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(read) = SignedMemberSet::decode(&bytes) {
            prop_assert_eq!(read.encode(), bytes);
        }
    }

    #[test]
    fn noise_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = SignedMemberSet::decode(&bytes);
    }
}

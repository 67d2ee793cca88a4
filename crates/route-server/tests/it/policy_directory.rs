//! Member sets: who is in one, and which lists are one.

use crate::common::{RS, lan4, set, slot};
use wayleave_core::Asn;
use wayleave_route_server::directory::{AttestKey, MAX_SLOTS, MemberSet, SetError, Slot};

fn successor(previous: &MemberSet) -> MemberSet {
    MemberSet { number: previous.number + 1, ..previous.clone() }
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
    assert_eq!(change(|s| s.slots[0].asn = Asn(64499)), Err(SetError::ChangedInPlace(0)));
    assert_eq!(change(|s| s.slots[1].sign = [99; 32]), Ok(()), "who may change keys is the directory's to say");
    assert_eq!(change(|s| s.slots[0].addresses = vec![lan4(9)]), Ok(()));
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
        members.check().expect_err("contradicts itself")
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

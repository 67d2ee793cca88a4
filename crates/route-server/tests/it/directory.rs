//! The directory: who can make whom a member, what follows what, and what a decoder refuses.
//!
//! MEM-01: each operator alone, a member alone, a member with one operator adds a slot; a slot whose holder never
//! signed, or signed for another exchange; every octet of a set changed: refused, by who did not sign.
//! MEM-01, older: a key that was replaced, in a thief's hands: it ends no slot that came after it.
//! MEM-02: a further slot, a removed AS that returns, with and without a key of the AS; a held slot vouches for
//! another: held without such a key.
//! MEM-03: an older set, a set of another exchange, of other operators, two sets of one number: refused.
//! MEM-04: removal by either operator alone: it outlives older and newer sets.
//! MEM-05: keys, addresses, limits and operators' keys change in place, with each signature missing or another's: only
//! with all.
//! MEM-06: an operator proposes the other's next key: it counts for nothing.
//! MEM-08: another AS lists a member's attestation key; a held slot lists keys; a replaced attestation key in another
//! role; a removed slot signs for another: nobody is kept out; not the AS's keys; refused; no say.
//! MEM-10: names that reorder a line, directories that are full or have more changes than any exchange: refused; room
//! for removals is left.
//! MEM, length: a directory of more changes than any exchange has, a count beyond the limit: refused before anything is
//! read.

use crate::common::{OPERATORS, admit, both, claim, empty, key, lan4, public, request};
use proptest::prelude::*;
use wayleave_core::Asn;
use wayleave_core::wire::Malformed;
use wayleave_route_server::directory::{
    AttestKey, ChainError, Change, Claim, Consent, Directory, MAX_ENCODED, Proposal, ProposalError, Registration,
    Request, SetError, SignedStep, Step, Succession, Trust,
};

/// Two members, each the first of its AS.
fn two() -> Directory {
    admit(&empty(), &[request(1, 64497), request(2, 64498)])
}

fn trust() -> Trust {
    Trust { exchange: "test-ix".to_owned(), operators: OPERATORS.map(public) }
}

fn join(request: &Request, registration: Registration) -> Change {
    Change::Join { claim: request.claim.clone(), signature: request.signature, registration, max_prefix: 0 }
}

/// What comes of the changes as the next step, signed by these.
fn signed_as(directory: &Directory, changes: Vec<Change>, keys: [u8; 2]) -> Result<Directory, ChainError> {
    directory.signed_by_both(changes, [&key(keys[0]), &key(keys[1])])
}

/// `directory` with this request, as operators with these keys sign it.
fn admit_under(directory: &Directory, request: &Request, operators: [u8; 2]) -> Directory {
    let change = directory.requested(request, 100).expect("of this exchange");
    signed_as(directory, vec![change], operators).expect("a sound set")
}

fn refused(directory: &Directory, change: Change) -> SetError {
    match signed_as(directory, vec![change], OPERATORS) {
        Err(ChainError::Set { error, .. }) => error,
        other => panic!("not refused for its content: {other:?}"),
    }
}

#[test]
fn an_operator_alone_makes_nobody_a_member() {
    let before = two();
    let own = request(3, 64497);
    for keys in [[200, 200], [200, 3], [1, 201], [201, 200], [3, 3]] {
        let result = signed_as(&before, vec![join(&own, Registration::Held)], keys);
        assert!(matches!(result, Err(ChainError::NotSigned { number: 3, .. })), "{keys:?}: {result:?}");
    }
}

#[test]
fn a_member_with_one_operator_makes_nobody_a_member() {
    let before = two();
    let further = request(3, 64497).with_consent(Consent::Further, &key(1));
    let change = before.requested(&further, 0).expect("sound");
    let result = signed_as(&before, vec![change], [200, 1]);
    assert_eq!(result, Err(ChainError::NotSigned { number: 3, party: 2 }));
}

#[test]
fn a_proposal_counts_once_the_other_operator_countersigns_it() {
    let before = two();
    let step = before.propose(vec![before.requested(&request(3, 64499), 7).expect("sound")]);
    let proposal = Proposal::sign(&before, step, &key(201)).expect("an operator's");
    let read = Proposal::decode(&proposal.encode()).expect("what was encoded");
    assert_eq!(read, proposal);
    assert_eq!(read.clone().countersign(&before, &key(201)), Err(ProposalError::OwnProposal(2)));
    assert_eq!(read.clone().countersign(&before, &key(3)), Err(ProposalError::NoOperator));
    let mut of_nobody = read.clone();
    of_nobody.signature[0] ^= 1;
    assert_eq!(of_nobody.check(&before), Err(ProposalError::NotSigned(2)));
    let after = read.countersign(&before, &key(200)).expect("the other operator");
    assert_eq!(after.set().slots[2].max_prefix, 7);
    assert_eq!(after.set().number, 3);
    assert!(matches!(before.succeed(&after.encode()), Ok(Succession::Newer(..))));
    // What was proposed for one set follows no other.
    let again = proposal.countersign(&after, &key(200));
    assert_eq!(again, Err(ProposalError::Chain(ChainError::Number { expected: 4, found: 3 })));
}

#[test]
fn a_slot_whose_holder_never_signed_is_refused() {
    let before = two();
    let mut forged = request(3, 64499);
    forged.signature = request(4, 64499).signature;
    assert_eq!(refused(&before, join(&forged, Registration::First)), SetError::NotClaimed(2));
    // Every field of the claim is signed.
    let edits: Vec<fn(&mut Request)> = vec![
        |r| r.claim.serial += 1,
        |r| r.claim.asn = Asn(64500),
        |r| r.claim.name.push('x'),
        |r| r.claim.tls = [9; 32],
        |r| r.claim.attest.push(AttestKey { suite: 1, key: [9; 32] }),
        |r| r.claim.addresses.truncate(1),
    ];
    for edit in edits {
        let mut changed = request(3, 64499);
        edit(&mut changed);
        assert!(!changed.is_sound());
        assert_eq!(refused(&before, join(&changed, Registration::First)), SetError::NotClaimed(2));
    }
}

#[test]
fn a_claim_for_another_exchange_is_refused() {
    let before = two();
    let of_another = claim(3, 64499).sign("other-ix", &key(3));
    assert_eq!(before.requested(&of_another, 0), Err(ChainError::OtherExchange("other-ix".to_owned())));
    assert_eq!(refused(&before, join(&of_another, Registration::First)), SetError::NotClaimed(2));
}

#[test]
fn a_further_slot_needs_the_signature_of_the_present_one_or_is_held() {
    let before = two();
    let plain = request(3, 64497);
    let asn = Asn(64497);
    assert_eq!(refused(&before, join(&plain, Registration::First)), SetError::MustBeHeld(2, asn));
    for (by, signer) in [(1, 2), (0, 3), (2, 3), (9, 1)] {
        let signature = Consent::Further.sign("test-ix", &plain.claim, &key(signer));
        let registration = Registration::Endorsed { by, signature };
        assert_eq!(refused(&before, join(&plain, registration)), SetError::NotEndorsed(2, asn), "{by} {signer}");
    }
    // A consent to new keys for the slot is none to a further one.
    let signature = Consent::Renewal.sign("test-ix", &plain.claim, &key(1));
    let registration = Registration::Endorsed { by: 0, signature };
    assert_eq!(refused(&before, join(&plain, registration)), SetError::NotEndorsed(2, asn));

    let held = admit(&before, std::slice::from_ref(&plain));
    assert!(held.set().slots[2].held);
    assert_eq!(held.further_slots().map(|(slot, _)| slot).collect::<Vec<_>>(), [2]);
    let endorsed = plain.with_consent(Consent::Further, &key(1));
    let after = admit(&before, std::slice::from_ref(&endorsed));
    assert!(!after.set().slots[2].held);
    assert_eq!(after.further_slots().count(), 1, "announcers are told of it all the same");
    // The key was found again: the slot is held no more.
    let found = admit(&held, &[endorsed]);
    assert!(!found.set().slots[2].held && found.set().slots.len() == 3);
    // The first slot of an AS needs no mark.
    assert_eq!(refused(&before, join(&request(4, 64500), Registration::Held)), SetError::NeedsNoMark(2, Asn(64500)));
}

#[test]
fn a_slot_that_is_held_cannot_vouch_for_another() {
    let held = admit(&two(), &[request(3, 64497)]);
    let next = request(4, 64497).with_consent(Consent::Further, &key(3));
    let change = held.requested(&next, 0).expect("of this exchange");
    assert_eq!(refused(&held, change), SetError::NotEndorsed(3, Asn(64497)));
}

#[test]
fn a_removed_as_that_returns_with_new_keys_is_held() {
    let removed = two().without(0, &key(200)).expect("an operator");
    let returned = admit(&removed, &[request(3, 64497)]);
    assert!(returned.set().slots[2].held && returned.set().slots[2].active && !returned.set().slots[0].active);
    // With the key that it had before it is not.
    let back = admit(&removed, &[request(3, 64497).with_consent(Consent::Further, &key(1))]);
    assert!(!back.set().slots[2].held);
    // Its old keys are spent.
    assert_eq!(refused(&removed, join(&request(1, 64497), Registration::Held)), SetError::KeyTaken(2));
}

#[test]
fn a_removal_is_one_operators_and_outlives_older_and_newer_sets() {
    let before = two();
    for operator in OPERATORS {
        let removed = before.without(1, &key(operator)).expect("an operator");
        assert!(!removed.set().slots[1].active && removed.set().number == 3);
        assert_ne!(removed.id(), before.id());
        // The set from before is older; it brings nobody back.
        assert!(matches!(removed.succeed(&before.encode()), Ok(Succession::Older(shown)) if shown == before.id()));
        // A set that both signed without knowing of the removal does not either.
        let unaware = admit(&before, &[request(3, 64499)]);
        let Ok(Succession::Newer(both_of_them, shown)) = removed.succeed(&unaware.encode()) else {
            panic!("it goes on")
        };
        assert_eq!(shown, unaware.id());
        assert!(!both_of_them.set().slots[1].active && both_of_them.set().slots.len() == 3);
        // The next set confirms it, and still nothing brings the member back.
        let confirmed = admit(&both_of_them, &[request(4, 64500)]);
        assert_eq!(confirmed.removals().count(), 0);
        assert!(!confirmed.set().slots[1].active);
        assert_eq!(confirmed.set().number, 5, "four sets and one that left, confirmed or not");
        let read = Directory::decode(&confirmed.encode()).expect("what was encoded");
        assert_eq!(read.set(), confirmed.set());
    }
    let error = before.without(1, &key(2)).expect_err("a member removes nobody");
    assert_eq!(error, ChainError::Removal(1));
    let forged = before.without(1, &key(200)).expect("an operator").encode();
    for at in forged.len() - 81..forged.len() {
        let mut bad = forged.clone();
        bad[at] ^= 1;
        assert!(Directory::decode(&bad).is_err(), "octet {at} of the removal");
    }
}

/// Whoever stole a key before it was replaced still has it.
#[test]
fn an_operators_former_key_ends_no_slot_that_came_after_it() {
    let before = two();
    let rolled = both(&before, vec![Change::operator(&before, 1, &key(202))]);
    let admitted = admit_under(&rolled, &request(3, 64499), [202, 201]);
    assert_eq!(admitted.without(2, &key(200)), Err(ChainError::Removal(2)));
    // As if it had been signed while the key was in force: that of slot 1 of then, with the number of slot 2.
    let encoded = |directory: &Directory, removal: &[u8]| {
        let mut octets = directory.encode();
        let end = octets.len() - 4;
        octets.truncate(end);
        octets.extend([&[0, 0, 0, 1], removal].concat());
        octets
    };
    let removal = |under: u64, slot: u32, asn: u32, operator: u8, party: u8| {
        let fields = [&under.to_be_bytes()[..], &slot.to_be_bytes(), &asn.to_be_bytes(), &[party]].concat();
        let signed = key(operator).sign("wayleave/directory/removal/v2", &[&before.origin()[..], &fields].concat());
        [fields, signed.to_vec()].concat()
    };
    // The slots of its time it still ends: whoever removed one did so for good.
    assert!(Directory::decode(&encoded(&admitted, &removal(2, 1, 64498, 200, 1))).is_ok());
    for (under, slot, asn, operator) in [(2, 2, 64499, 200), (3, 2, 64499, 202), (9, 2, 64499, 202)] {
        let read = Directory::decode(&encoded(&admitted, &removal(under, slot, asn, operator, 1)));
        assert_eq!(read, Err(ChainError::Removal(2)), "{under}");
    }
    assert!(Directory::decode(&encoded(&admitted, &removal(4, 2, 64499, 202, 1))).is_ok());
}

#[test]
fn both_operators_removals_of_one_slot_come_to_the_same_octets() {
    let before = two();
    let [one, two] = OPERATORS.map(|operator| before.without(0, &key(operator)).expect("an operator"));
    let merged = |a: &Directory, b: &Directory| match a.succeed(&b.encode()).expect("both are sound") {
        Succession::Newer(next, _) => next.encode(),
        Succession::Same | Succession::Older(_) => a.encode(),
    };
    assert_eq!(one.id(), two.id());
    let third = before.without(1, &key(201)).expect("an operator");
    assert_eq!(merged(&one, &third), merged(&third, &one));
    let mixed = Directory::decode(&merged(&two, &third)).expect("sound");
    assert_eq!(mixed.id(), Directory::decode(&merged(&one, &third)).expect("sound").id());
}

#[test]
fn keys_change_in_place_by_the_present_key_and_both_operators() {
    let before = two();
    let new = wayleave_route_server::directory::Claim { serial: 2, name: "as64497-1".into(), ..claim(5, 64497) };
    let request = new.clone().sign("test-ix", &key(5)).with_consent(Consent::Renewal, &key(1));
    let after = admit(&before, std::slice::from_ref(&request));
    assert_eq!((after.set().slots[0].sign, after.set().slots[0].tls), (public(5), [5; 32]));
    assert_eq!(after.set().slots.len(), 2);
    assert_eq!(after.set().slots[0].max_prefix, 100, "the operators' limit stays");
    let keys: Vec<[u8; 32]> = after.signing_keys()[0].iter().map(|key| key.to_bytes()).collect();
    assert_eq!(keys, [public(5), public(1)], "what was announced under the old key can still be read");
    // Not by another member's key, not by the new key alone, not with another AS or name, not to an old claim.
    let renew = |claim: &wayleave_route_server::directory::Claim, signer: u8| Change::Renew {
        slot: 0,
        claim: claim.clone(),
        signature: claim.clone().sign("test-ix", &key(5)).signature,
        consent: Consent::Renewal.sign("test-ix", claim, &key(signer)),
    };
    assert_eq!(refused(&before, renew(&new, 2)), SetError::NotRenewed(0));
    assert_eq!(refused(&before, renew(&new, 5)), SetError::NotRenewed(0));
    let elsewhere = wayleave_route_server::directory::Claim { asn: Asn(64500), ..new.clone() };
    assert_eq!(refused(&before, renew(&elsewhere, 1)), SetError::ChangedInPlace(0));
    let renamed = wayleave_route_server::directory::Claim { name: "other".into(), ..new.clone() };
    assert_eq!(refused(&before, renew(&renamed, 1)), SetError::ChangedInPlace(0));
    let old = wayleave_route_server::directory::Claim { serial: 1, ..new.clone() };
    assert_eq!(refused(&before, renew(&old, 1)), SetError::OldClaim(0));
    // A key that was replaced has no say any more, and cannot come back.
    let stolen = wayleave_route_server::directory::Claim { serial: 3, ..claim(6, 64497) };
    let stolen = stolen.sign("test-ix", &key(6)).with_consent(Consent::Renewal, &key(1));
    assert!(after.requested(&stolen, 0).is_err());
    assert_eq!(refused(&after, join(&crate::common::request(1, 64500), Registration::First)), SetError::KeyTaken(2));
}

#[test]
fn attestation_keys_are_in_the_members_claim() {
    let with = |number: u8, serial, suite| {
        let attest = vec![AttestKey { suite, key: [suite; 32] }];
        wayleave_route_server::directory::Claim { serial, attest, ..claim(number, 64497) }
    };
    let first = admit(&empty(), &[with(1, 1, 20).sign("test-ix", &key(1))]);
    assert_eq!(first.set().attest[&Asn(64497)], [AttestKey { suite: 20, key: [20; 32] }]);
    let renewed = with(1, 2, 21).sign("test-ix", &key(1)).with_consent(Consent::Renewal, &key(1));
    let second = admit(&first, &[renewed]);
    assert_eq!(second.set().attest[&Asn(64497)], [AttestKey { suite: 21, key: [21; 32] }]);
    // A further slot does not change the keys of its AS while the first one is there.
    let further = with(3, 1, 22).sign("test-ix", &key(3)).with_consent(Consent::Further, &key(1));
    let third = admit(&second, &[further]);
    assert_eq!(third.set().attest[&Asn(64497)], [AttestKey { suite: 21, key: [21; 32] }]);
    let removed = third.without(0, &key(200)).expect("an operator");
    assert_eq!(removed.set().attest[&Asn(64497)], [AttestKey { suite: 22, key: [22; 32] }]);
}

#[test]
fn a_slot_that_is_held_does_not_say_what_its_as_signs_with() {
    let attesting =
        |number: u8| Claim { attest: vec![AttestKey { suite: 1, key: [number + 50; 32] }], ..claim(number, 64497) };
    // Nobody of the AS is there, and somebody joins under it with keys of its own.
    let left = two().without(0, &key(200)).expect("an operator");
    let held = admit(&left, &[attesting(3).sign("test-ix", &key(3))]);
    assert!(held.set().slots[2].held && !held.set().attest.contains_key(&Asn(64497)));
    // The AS returns, with its own key's signature: its keys count, although its slot has the higher number.
    let returned = attesting(4).sign("test-ix", &key(4)).with_consent(Consent::Further, &key(1));
    let after = admit(&held, &[returned]);
    assert_eq!(after.set().attest[&Asn(64497)], [AttestKey { suite: 1, key: [54; 32] }]);
    // Nor beside a present slot that lists none.
    let beside = admit(&two(), &[attesting(5).sign("test-ix", &key(5))]);
    assert!(!beside.set().attest.contains_key(&Asn(64497)));
    let signature = Consent::Further.sign("test-ix", beside.claim(2).expect("a slot"), &key(1));
    let lifted = both(&beside, vec![Change::Endorse { slot: 2, by: 0, signature }]);
    assert_eq!(lifted.set().attest[&Asn(64497)], [AttestKey { suite: 1, key: [55; 32] }]);
}

#[test]
fn an_operator_proposes_no_new_key_of_the_other() {
    let before = two();
    let taken = Change::operator(&before, 2, &key(210));
    let step = before.propose(vec![before.requested(&request(3, 64499), 0).expect("sound"), taken]);
    let by_one = |step: Step| Proposal::sign(&before, step, &key(200));
    assert_eq!(by_one(step.clone()), Err(ProposalError::OthersKey(2)));
    // Whoever makes a proposal without this library is refused by the other operator.
    let forged = Proposal { party: 1, signature: step.sign(&key(200)), step };
    assert_eq!(forged.countersign(&before, &key(201)), Err(ProposalError::OthersKey(2)));
    assert!(by_one(before.propose(vec![Change::operator(&before, 1, &key(210))])).is_ok());
}

#[test]
fn a_removed_slot_has_no_say_where_its_removal_is_known() {
    let beside = |number: u8, by: u8| request(number, 64497).with_consent(Consent::Further, &key(by));
    let before = admit(&two(), &[beside(3, 1)]);
    let removed = before.without(2, &key(201)).expect("an operator");
    let countersigned = |changes: Vec<Change>| {
        let proposal = Proposal::sign(&before, before.propose(changes), &key(200)).expect("sound without the removal");
        proposal.countersign(&removed, &key(201)).map(drop)
    };
    let refused = |error| Err(ProposalError::Chain(ChainError::Set { number: 4, error }));
    let join = |by| before.requested(&beside(4, by), 0).expect("of this exchange");
    assert_eq!(countersigned(vec![join(3)]), refused(SetError::NotEndorsed(3, Asn(64497))));
    assert_eq!(countersigned(vec![Change::Left { slot: 2 }, join(1)]), Ok(()));
    assert_eq!(countersigned(vec![join(1)]), Ok(()), "the step need not confirm the removal");
    let amend = Change::Amend { slot: 2, addresses: vec![lan4(40)], max_prefix: 5 };
    assert_eq!(countersigned(vec![amend]), refused(SetError::NoSlot(2)));
    let renewed = Claim { serial: 2, name: "as64497-3".into(), ..claim(5, 64497) };
    let renewed = renewed.sign("test-ix", &key(5)).with_consent(Consent::Renewal, &key(3));
    assert_eq!(countersigned(vec![before.requested(&renewed, 0).expect("sound")]), refused(SetError::NoSlot(2)));
    let held = admit(&before, &[request(6, 64497)]);
    let signature = Consent::Further.sign("test-ix", held.claim(3).expect("a slot"), &key(3));
    let step = held.propose(vec![Change::Endorse { slot: 3, by: 2, signature }]);
    let proposal = Proposal::sign(&held, step, &key(200)).expect("sound without the removal");
    let removed = held.without(2, &key(201)).expect("an operator");
    assert!(proposal.countersign(&removed, &key(201)).is_err());
}

#[test]
fn an_as_that_lists_the_attestation_key_of_another_keeps_nobody_out() {
    let listing = |number: u8, asn| Claim { attest: vec![AttestKey { suite: 1, key: [90; 32] }], ..claim(number, asn) };
    let first = admit(&empty(), &[listing(1, 64497).sign("test-ix", &key(1))]);
    let second = admit(&first, &[listing(2, 64498).sign("test-ix", &key(2))]);
    assert_eq!(second.set().attest[&Asn(64497)], second.set().attest[&Asn(64498)]);
}

#[test]
fn a_replaced_attestation_key_gets_no_other_role() {
    let of = |serial, key| Claim { serial, attest: vec![AttestKey { suite: 1, key }], ..claim(1, 64497) };
    let first = admit(&empty(), &[of(1, public(9)).sign("test-ix", &key(1))]);
    let renewed = of(2, [91; 32]).sign("test-ix", &key(1)).with_consent(Consent::Renewal, &key(1));
    let before = admit(&first, &[renewed]);
    assert_eq!(refused(&before, join(&request(9, 64499), Registration::First)), SetError::KeyInTwoRoles);
    assert_eq!(refused(&before, Change::operator(&before, 1, &key(9))), SetError::KeyInTwoRoles);
    let mut certified = claim(3, 64499);
    certified.tls = public(9);
    let certified = certified.sign("test-ix", &key(3));
    assert_eq!(refused(&before, join(&certified, Registration::First)), SetError::KeyInTwoRoles);
}

#[test]
fn the_digest_of_a_claim_tells_every_key_and_every_address() {
    let whole = claim(3, 64499).digest("test-ix");
    assert_ne!(whole, claim(3, 64499).digest("other-ix"));
    let edits: Vec<fn(&mut Claim)> = vec![
        |claim| claim.serial += 1,
        |claim| claim.asn = Asn(64500),
        |claim| claim.name.push('x'),
        |claim| claim.tls = [9; 32],
        |claim| claim.sign = public(9),
        |claim| claim.attest.push(AttestKey { suite: 1, key: [9; 32] }),
        |claim| claim.addresses.truncate(1),
    ];
    for edit in edits {
        let mut changed = claim(3, 64499);
        edit(&mut changed);
        assert_ne!(changed.digest("test-ix"), whole);
    }
}

#[test]
fn what_a_holder_signed_is_found_in_the_history() {
    let held = admit(&two(), &[request(3, 64497)]);
    assert_eq!(held.request_of(2), Some(request(3, 64497)));
    assert_eq!(held.request_of(3), None);
    let consented = held.request_of(2).expect("a slot").with_consent(Consent::Further, &key(1));
    assert!(consented.is_sound());
    assert!(!admit(&held, &[consented]).set().slots[2].held);
}

#[test]
fn a_name_that_reorders_or_hides_what_an_operator_compares_is_none() {
    for character in ['\u{202e}', '\u{2066}', '\u{200b}', '\u{2028}', '\u{2029}', '\u{feff}', '\u{ad}', '\u{e0041}'] {
        let mut named = claim(3, 64499);
        named.name.push(character);
        let named = named.sign("test-ix", &key(3));
        assert_eq!(refused(&two(), join(&named, Registration::First)), SetError::SlotName(2), "{character:?}");
        assert!(Directory::new(&format!("test{character}ix"), OPERATORS.map(public)).is_err());
    }
    let mut named = claim(3, 64499);
    named.name = "Zürich-東京".to_owned();
    assert!(signed_as(&two(), vec![join(&named.sign("test-ix", &key(3)), Registration::First)], OPERATORS).is_ok());
}

#[test]
fn a_step_that_no_operator_signed_is_refused_before_its_claims_are_verified() {
    let before = two();
    let mut forged = request(3, 64499);
    forged.signature[0] ^= 1;
    let result = signed_as(&before, vec![join(&forged, Registration::First)], [3, 4]);
    assert_eq!(result, Err(ChainError::NotSigned { number: 3, party: 1 }));
}

/// So many changes that alternate between two limits of slot 0.
fn amendments(count: u32, addresses: &[std::net::IpAddr]) -> Vec<Change> {
    let amend = |max_prefix| Change::Amend { slot: 0, addresses: addresses.to_vec(), max_prefix };
    (0..count).map(|number| amend(1 + number % 2)).collect()
}

#[test]
fn a_directory_that_is_full_has_room_for_removals() {
    let addresses: Vec<std::net::IpAddr> =
        (0..16u16).map(|number| std::net::Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 1, number).into()).collect();
    let mut directory = two();
    let full = loop {
        match signed_as(&directory, amendments(4096, &addresses), OPERATORS) {
            Ok(next) => directory = next,
            Err(error) => break error,
        }
    };
    assert_eq!(full, ChainError::Full);
    // To the last few octets.
    let mut count = 2048;
    while count > 0 {
        match signed_as(&directory, amendments(count, &addresses), OPERATORS) {
            Ok(next) => directory = next,
            Err(_) => count /= 2,
        }
    }
    let removed = directory.without(1, &key(200)).expect("an operator");
    assert!(removed.encode().len() < MAX_ENCODED - 4000 * 81);
    assert!(Directory::decode(&removed.encode()).is_ok_and(|read| !read.set().slots[1].active));
}

#[test]
fn a_directory_of_more_changes_than_any_exchange_has_is_not_read() {
    let step = |number: u64| {
        let mut octets = number.to_be_bytes().to_vec();
        octets.extend([0; 32]);
        octets.extend(4096u32.to_be_bytes());
        octets.extend([5, 0, 0, 0, 0].repeat(4096));
        octets.extend([0; 128]);
        octets
    };
    let whole = empty().encode();
    let mut bytes = whole[..whole.len() - 8].to_vec();
    bytes.extend(20u32.to_be_bytes());
    (1..=20).for_each(|number| bytes.extend(step(number)));
    bytes.extend([0; 4]);
    assert!(bytes.len() < MAX_ENCODED);
    let error = Directory::decode(&bytes).expect_err("too many");
    assert!(matches!(error, ChainError::Malformed(Malformed::TooMany { count: 69_632, most: 65_536 })), "{error}");
}

#[test]
fn addresses_and_limits_change_by_both_operators() {
    let before = two();
    let amend = |slot, addresses, max_prefix| Change::Amend { slot, addresses, max_prefix };
    let after = both(&before, vec![amend(0, vec![lan4(40)], 5)]);
    assert_eq!((after.set().slots[0].addresses.clone(), after.set().slots[0].max_prefix), (vec![lan4(40)], 5));
    assert_eq!(refused(&before, amend(0, vec![lan4(2)], 5)), SetError::AddressTaken(0, lan4(2)));
    assert_eq!(refused(&before, amend(0, Vec::new(), 5)), SetError::AddressCount(0, 0));
    assert_eq!(refused(&before, amend(7, vec![lan4(9)], 5)), SetError::NoSlot(7));
    assert_eq!(refused(&after, amend(0, vec![lan4(40)], 5)), SetError::Empty);
    assert_eq!(
        before.signed_by_both(Vec::new(), [&key(200), &key(201)]),
        Err(ChainError::Set { number: 3, error: SetError::Empty })
    );
}

#[test]
fn an_operators_key_rolls_over_by_the_old_one_and_the_other_operator() {
    let before = two();
    let roll = Change::operator(&before, 1, &key(210));
    let alone = signed_as(&before, vec![roll.clone()], [200, 200]);
    assert_eq!(alone, Err(ChainError::NotSigned { number: 3, party: 2 }));
    let by_the_new = signed_as(&before, vec![roll.clone()], [210, 201]);
    assert_eq!(by_the_new, Err(ChainError::NotSigned { number: 3, party: 1 }));
    let after = both(&before, vec![roll.clone()]);
    assert_eq!(after.operators(), [public(210), public(201)]);
    let third = request(3, 64499);
    let with_the_old = signed_as(&after, vec![join(&third, Registration::First)], OPERATORS);
    assert_eq!(with_the_old, Err(ChainError::NotSigned { number: 4, party: 1 }));
    assert!(signed_as(&after, vec![join(&third, Registration::First)], [210, 201]).is_ok());
    // Whoever names the first keys, or the present ones, trusts it; nobody who names others.
    let read = |operators: [u8; 2]| {
        Directory::open(&after.encode(), &Trust { operators: operators.map(public), ..trust() }).map(drop)
    };
    assert_eq!([read([200, 201]), read([210, 201])], [Ok(()), Ok(())]);
    assert_eq!(read([200, 210]), Err(ChainError::OtherOperators));
    // The new key must prove itself, for this party and this set, and be new.
    let Change::Operator { proof, .. } = roll else { panic!("a roll-over") };
    let for_party = |party, number: u8, proof| Change::Operator { party, key: public(number), proof };
    assert_eq!(refused(&before, for_party(2, 210, proof)), SetError::OperatorProof(2));
    assert_eq!(refused(&before, for_party(1, 211, proof)), SetError::OperatorProof(1));
    for known in [200, 201, 1] {
        let change = Change::operator(&before, 1, &key(known));
        assert_eq!(refused(&before, change), SetError::KeyInTwoRoles, "{known}");
    }
}

#[test]
fn keys_have_one_role_each() {
    let before = two();
    let of_operator = |number: u8| join(&request(number, 64499), Registration::First);
    assert_eq!(refused(&before, of_operator(200)), SetError::KeyInTwoRoles);
    let mut attests = claim(3, 64499);
    for used in [public(3), public(1), public(201)] {
        attests.attest = vec![AttestKey { suite: 1, key: used }];
        let request = attests.clone().sign("test-ix", &key(3));
        assert_eq!(refused(&before, join(&request, Registration::First)), SetError::KeyInTwoRoles);
    }
    let same = Directory::new("test-ix", [public(200); 2]);
    assert_eq!(same, Err(ChainError::Origin(SetError::KeyInTwoRoles)));
}

#[test]
fn names_and_addresses_of_present_members_are_their_own() {
    let before = two();
    let mut taken = claim(3, 64499);
    taken.name = before.set().slots[1].name.clone();
    let change = join(&taken.sign("test-ix", &key(3)), Registration::First);
    assert_eq!(refused(&before, change.clone()), SetError::NameTaken(2));
    // Once it is confirmed that the member has left, its name is free.
    let removed = before.without(1, &key(201)).expect("an operator");
    assert!(signed_as(&removed, vec![change], OPERATORS).is_ok());
    let mut taken = claim(3, 64499);
    taken.addresses = vec![lan4(1)];
    let change = join(&taken.clone().sign("test-ix", &key(3)), Registration::First);
    assert_eq!(refused(&before, change), SetError::AddressTaken(2, lan4(1)));
    taken.asn = Asn(64497);
    assert!(signed_as(&before, vec![join(&taken.sign("test-ix", &key(3)), Registration::Held)], OPERATORS).is_ok());
}

#[test]
fn a_replayed_older_set_is_known_as_one() {
    let first = two();
    let second = admit(&first, &[request(3, 64499)]);
    assert!(matches!(second.succeed(&first.encode()), Ok(Succession::Older(shown)) if shown == first.id()));
    assert!(matches!(second.succeed(&second.encode()), Ok(Succession::Same)));
    let third = admit(&second, &[request(4, 64500)]);
    match first.succeed(&third.encode()).expect("two steps at once, each shown") {
        Succession::Newer(next, shown) => assert!(*next == third && shown == third.id()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn two_sets_of_one_number_are_known_as_such() {
    let before = two();
    let [a, b] = [(3, 64499), (4, 64500)].map(|(number, asn)| admit(&before, &[request(number, asn)]));
    assert_eq!(a.set().number, b.set().number);
    assert_ne!(a.id(), b.id());
    assert!(matches!(a.succeed(&b.encode()), Err(ChainError::Diverges(3))));
    let longer = admit(&b, &[request(5, 64501)]);
    assert!(matches!(a.succeed(&longer.encode()), Err(ChainError::Diverges(3))));
}

#[test]
fn a_set_of_another_exchange_or_of_other_operators_is_refused() {
    let ours = two();
    let other = Directory::new("other-ix", OPERATORS.map(public)).expect("sound");
    assert!(matches!(ours.succeed(&other.encode()), Err(ChainError::OtherExchange(name)) if name == "other-ix"));
    assert_eq!(Directory::open(&other.encode(), &trust()), Err(ChainError::OtherExchange("other-ix".to_owned())));
    let theirs = Directory::new("test-ix", [211, 212].map(public)).expect("sound");
    assert!(matches!(ours.succeed(&theirs.encode()), Err(ChainError::OtherOperators)));
    assert_eq!(Directory::open(&theirs.encode(), &trust()), Err(ChainError::OtherOperators));
    // A step that both signed for one exchange is none of another's, although the operators are the same.
    let step = SignedStep::clone(&ours.steps()[0]);
    assert_eq!(other.with(step), Err(ChainError::Previous(1)));
}

#[test]
fn every_changed_octet_and_every_truncation_is_noticed() {
    let whole = admit(&two().without(1, &key(200)).expect("an operator"), &[request(3, 64497)]);
    let whole = whole.without(0, &key(201)).expect("an operator");
    let bytes = whole.encode();
    assert_eq!(Directory::open(&bytes, &trust()), Ok(whole.clone()));
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 1;
        assert!(Directory::open(&bad, &trust()).is_err(), "octet {at}");
    }
    for length in (0..bytes.len()).step_by(7) {
        assert!(Directory::decode(&bytes[..length]).is_err(), "{length} octets");
    }
    let tail = [bytes.as_slice(), &[0]].concat();
    assert_eq!(Directory::decode(&tail), Err(Malformed::TooLong(1).into()));
    assert_eq!(Directory::decode(&vec![2; MAX_ENCODED + 1]), Err(ChainError::Full));
    assert_eq!(Directory::decode(&[1]), Err(ChainError::Version(1)));
}

#[test]
fn a_count_beyond_the_limit_is_refused_before_anything_is_read() {
    let mut bytes = empty().encode();
    let at = bytes.len() - 8;
    bytes[at..at + 4].copy_from_slice(&u32::MAX.to_be_bytes());
    bytes.extend_from_slice(&[0; 400]);
    let error = Directory::decode(&bytes).expect_err("a lie");
    assert!(
        matches!(error, ChainError::Malformed(Malformed::TooMany { count, most: 0..3 }) if count == u32::MAX as usize),
        "{error}"
    );
}

#[test]
fn a_request_survives_the_wire_and_says_whether_it_is_sound() {
    let plain = request(3, 64499);
    let consented = plain.clone().with_consent(Consent::Further, &key(1));
    for request in [plain, consented] {
        let read = Request::decode(&request.encode()).expect("what was encoded");
        assert_eq!(read, request);
        assert!(read.is_sound());
        let bytes = request.encode();
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(!Request::decode(&bad).is_ok_and(|read| read.is_sound()), "octet {at}");
        }
    }
}

fn any_change() -> impl Strategy<Value = Change> {
    let bytes32 = || any::<[u8; 32]>();
    let signature = || any::<[u8; 32]>().prop_map(|half| <[u8; 64]>::try_from([half, half].concat()).expect("64"));
    let addresses = || prop::collection::vec(any::<std::net::IpAddr>(), 0..3);
    let attest = prop::collection::btree_map(any::<u8>(), bytes32(), 0..3)
        .prop_map(|keys| keys.into_iter().map(|(suite, key)| AttestKey { suite, key }).collect::<Vec<_>>());
    let claim = (any::<u64>(), any::<u32>(), "[a-z]{0,8}", bytes32(), bytes32(), attest, addresses()).prop_map(
        |(serial, asn, name, tls, sign, attest, addresses)| wayleave_route_server::directory::Claim {
            serial,
            asn: Asn(asn),
            name,
            tls,
            sign,
            attest,
            addresses,
        },
    );
    let registration = prop_oneof![
        Just(Registration::First),
        Just(Registration::Held),
        (any::<u32>(), signature()).prop_map(|(by, signature)| Registration::Endorsed { by, signature }),
    ];
    prop_oneof![
        (claim.clone(), signature(), registration, any::<u32>()).prop_map(
            |(claim, signature, registration, max_prefix)| {
                Change::Join { claim, signature, registration, max_prefix }
            }
        ),
        (any::<u32>(), claim, signature(), signature()).prop_map(|(slot, claim, signature, consent)| Change::Renew {
            slot,
            claim,
            signature,
            consent
        }),
        (any::<u32>(), addresses(), any::<u32>()).prop_map(|(slot, addresses, max_prefix)| Change::Amend {
            slot,
            addresses,
            max_prefix
        }),
        (any::<u32>(), any::<u32>(), signature()).prop_map(|(slot, by, signature)| Change::Endorse {
            slot,
            by,
            signature
        }),
        any::<u32>().prop_map(|slot| Change::Left { slot }),
        (1u8..3, bytes32(), signature()).prop_map(|(party, key, proof)| Change::Operator { party, key, proof }),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    let changes = prop::collection::vec(any_change(), 0..4);
    (any::<u64>(), any::<[u8; 32]>(), changes).prop_map(|(number, previous, changes)| Step {
        number,
        previous,
        changes,
    })
}

fn wrapped(step: &Step) -> Vec<u8> {
    Proposal { step: step.clone(), party: 1, signature: [3; 64] }.encode()
}

proptest! {
    #[test]
    fn every_step_reads_back_as_itself_and_different_ones_never_encode_alike(a in any_step(), b in any_step()) {
        prop_assert_eq!(&Proposal::decode(&wrapped(&a)).expect("what was encoded").step, &a);
        prop_assert_eq!(a == b, wrapped(&a) == wrapped(&b));
        prop_assert_eq!(a == b, a.digest() == b.digest());
    }

    #[test]
    fn whatever_decodes_encodes_to_the_same_octets(
        step in any_step(), flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4)
    ) {
        let mut bytes = wrapped(&step);
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(read) = Proposal::decode(&bytes) {
            prop_assert_eq!(read.encode(), bytes);
        }
    }

    #[test]
    fn noise_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = Directory::decode(&bytes);
        let _ = Proposal::decode(&bytes);
        let _ = Request::decode(&bytes);
        let _ = empty().succeed(&bytes);
    }
}

//! No key has two roles: every pair of roles, at every place where keys meet.
//!
//! OPS, one role for each key: every pair of roles in a set, in a claim, at a party's start and with an operator's new
//! key, at a member: refused; the message names both roles.
//! MEM-08: another AS lists a member's attestation key: an alarm, and nobody is cut off.

use std::time::Duration;

use crate::common::{OPERATORS, RS, both, claim, empty, key, public};
use wayleave_core::{Asn, Instant, Machine, Now, UnixTime};
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::{SigningKey, VerifyingKey};
use wayleave_route_server::directory::{AttestKey, ChainError, Change, Claim, Consent, Directory, MemberSet, SetError};
use wayleave_route_server::frames::{FromMember, ToMember};
use wayleave_route_server::key_roles::{KeyRole, KeyRoles};
use wayleave_route_server::member::{Member, MemberConfig, MemberEvent, MemberInput, MemberOutput};
use wayleave_route_server::object::ExportMode;
use wayleave_route_server::party::{
    Budget, MAX_WAITING, Party, PartyConfig, PartyEvent, PartyInput, PartyNumber, PartyOutput, StartError,
};
use wayleave_route_server::policy::{Policy, PolicyConfig};
use wayleave_route_server::versions::{FORMATS, Speaks, VERSIONS};

const NOW: Now = Now { instant: Instant(1_000_000_000), unix: UnixTime(1_700_000_000_000_000) };
/// The number of the key that has two roles.
const SHARED: u8 = 90;

/// What parties, operators and their configurations know beside the set.
const OUTSIDE: [KeyRole; 6] = [
    KeyRole::PartyCertificate(1),
    KeyRole::PartyCertificate(2),
    KeyRole::PartySigning(1),
    KeyRole::PartySigning(2),
    KeyRole::Operator(1),
    KeyRole::Operator(2),
];
/// What a set holds.
const INSIDE: [KeyRole; 6] = [
    KeyRole::SlotCertificate(0),
    KeyRole::SlotCertificate(1),
    KeyRole::SlotSigning(0),
    KeyRole::SlotSigning(1),
    KeyRole::Attestation(Asn(64497)),
    KeyRole::Attestation(Asn(64498)),
];

fn seed(byte: u8) -> Seed {
    Seed::new([byte; 32])
}

/// The key that has two roles.
fn shared() -> [u8; 32] {
    public(SHARED)
}

fn operators() -> [VerifyingKey; 2] {
    OPERATORS.map(|number| key(number).verifying_key())
}

/// What two members say of themselves, and the numbers of their signing keys; these roles have the shared key.
fn claims_with(roles: &[KeyRole]) -> [(Claim, u8); 2] {
    [(0u32, 1u8, 64497), (1, 2, 64498)].map(|(slot, number, asn)| {
        let signing = if roles.contains(&KeyRole::SlotSigning(slot)) { SHARED } else { number };
        let mut claim = Claim { sign: public(signing), tls: [0x10 + number; 32], ..claim(number, asn) };
        claim.attest = vec![AttestKey { suite: 1, key: [0x20 + number; 32] }];
        if roles.contains(&KeyRole::SlotCertificate(slot)) {
            claim.tls = shared();
        }
        if roles.contains(&KeyRole::Attestation(Asn(asn))) {
            claim.attest[0].key = shared();
        }
        (claim, signing)
    })
}

/// The same, admitted by both operators.
fn directory_with(roles: &[KeyRole]) -> Result<Directory, ChainError> {
    claims_with(roles).into_iter().try_fold(empty(), |directory, (claim, signing)| {
        let join = directory.requested(&claim.sign("test-ix", &key(signing)), 100)?;
        let [one, two] = OPERATORS.map(key);
        directory.signed_by_both(vec![join], [&one, &two])
    })
}

/// A list of slots in which these roles have the shared key, whether or not a directory would take it.
fn set_with(roles: &[KeyRole]) -> MemberSet {
    let mut set = MemberSet::clone(directory_with(&[]).expect("a sound one").set());
    for role in roles {
        match role {
            KeyRole::SlotCertificate(slot) => set.slots[*slot as usize].tls = shared(),
            KeyRole::SlotSigning(slot) => set.slots[*slot as usize].sign = shared(),
            KeyRole::Attestation(asn) => set.attest.get_mut(asn).expect("it attests")[0].key = shared(),
            other => panic!("{other} is not in a set"),
        }
    }
    set
}

fn assert_names_both(message: &str, first: KeyRole, second: KeyRole) {
    for role in [first, second] {
        assert!(message.contains(&role.to_string()), "{message:?} does not name {role}");
    }
}

/// Two ASes may list one attestation key: nobody proves that it has the one that it lists.
fn are_attestations(first: KeyRole, second: KeyRole) -> bool {
    matches!((first, second), (KeyRole::Attestation(_), KeyRole::Attestation(_)))
}

#[test]
fn a_key_has_one_role_and_whoever_gives_it_another_is_told_both() {
    let all: Vec<KeyRole> = OUTSIDE.into_iter().chain(INSIDE).collect();
    for first in &all {
        for second in &all {
            let roles = KeyRoles::of([(*first, shared()), (*second, shared())]);
            match roles {
                Ok(_) => assert!(first == second || are_attestations(*first, *second)),
                Err(shared) => assert_names_both(&shared.to_string(), *first, *second),
            }
        }
    }
}

#[test]
fn a_set_that_gives_one_key_two_roles_names_both() {
    assert_eq!(KeyRoles::default().add_set(&set_with(&[])), Ok(()));
    for (at, first) in INSIDE.iter().enumerate() {
        for second in INSIDE[at + 1..].iter().filter(|second| !are_attestations(*first, **second)) {
            let error = KeyRoles::default().add_set(&set_with(&[*first, *second])).expect_err("one key in two roles");
            assert_names_both(&error.to_string(), *first, *second);
        }
    }
}

#[test]
fn no_directory_takes_a_claim_that_gives_one_key_two_roles() {
    directory_with(&[]).expect("a sound one");
    for (at, first) in INSIDE.iter().enumerate() {
        for second in INSIDE[at + 1..].iter().filter(|second| !are_attestations(*first, **second)) {
            let error = directory_with(&[*first, *second]).expect_err("one key in two roles");
            let refused =
                matches!(error, ChainError::Set { error: SetError::KeyInTwoRoles | SetError::KeyTaken(_), .. });
            assert!(refused, "{first}, {second}: {error}");
        }
    }
}

fn party(keys: Vec<(KeyRole, [u8; 32])>, directory: &Directory) -> Result<Party, StartError> {
    let config = PartyConfig {
        number: PartyNumber::One,
        exchange: "test-ix".to_owned(),
        operators: operators(),
        keys,
        tick: Duration::ZERO,
        stale: Duration::from_secs(60),
        rank_wait: Duration::from_secs(1),
        rank_allowance: None,
        match_wait: Duration::from_secs(2),
        export: ExportMode::Direct,
        order: 1,
        max_blob: 8192,
        max_prefix_limit: 1_000_000,
        max_waiting: MAX_WAITING,
        budget: Budget::default(),
        epoch: Duration::ZERO,
        speaks: Speaks::default(),
    };
    Party::new(config, &seed(1), &directory.encode(), Vec::new(), NOW)
}

#[test]
fn a_party_starts_with_no_set_and_takes_none_that_gives_one_of_its_keys_another_role() {
    for outside in OUTSIDE {
        for inside in INSIDE {
            let (keys, bad) = (vec![(outside, shared())], directory_with(&[inside]).expect("sound by itself"));
            let error = party(keys.clone(), &bad).err().expect("one key in two roles");
            assert_names_both(&error.to_string(), outside, inside);

            let mut running = party(keys, &empty()).expect("a sound start");
            running.handle(PartyInput::Members(bad.encode()), NOW);
            let why = std::iter::from_fn(|| running.poll()).find_map(|output| match output {
                PartyOutput::Event(PartyEvent::MembersRefused { why }) => Some(why),
                _ => None,
            });
            assert_names_both(&why.expect("it is refused"), outside, inside);
        }
    }
}

#[test]
fn a_party_takes_no_operator_s_new_key_that_it_knows_in_another_role() {
    for outside in [KeyRole::PartyCertificate(1), KeyRole::PartySigning(2), KeyRole::Operator(2)] {
        let mut running = party(vec![(outside, shared())], &empty()).expect("a sound start");
        let next = both(&empty(), vec![Change::operator(&empty(), 1, &key(SHARED))]);
        running.handle(PartyInput::Members(next.encode()), NOW);
        let why = std::iter::from_fn(|| running.poll()).find_map(|output| match output {
            PartyOutput::Event(PartyEvent::MembersRefused { why }) => Some(why),
            _ => None,
        });
        assert_names_both(&why.expect("it is refused"), outside, KeyRole::Operator(1));
    }
}

#[test]
fn a_party_with_two_of_its_own_keys_alike_does_not_start() {
    for (at, first) in OUTSIDE.iter().enumerate() {
        for second in &OUTSIDE[at + 1..] {
            let error = party(vec![(*first, shared()), (*second, shared())], &empty()).err();
            assert_names_both(&error.expect("one key in two roles").to_string(), *first, *second);
        }
    }
}

/// Why a member with these keys closes its links after a welcome with this set; `None` if it does not.
fn member_says(keys: Vec<(KeyRole, [u8; 32])>, directory: &Directory) -> Option<String> {
    let mut member = greeted(keys, directory, &[1]);
    std::iter::from_fn(|| member.poll()).find_map(|output| match output {
        MemberOutput::Close { link: 1, reason, .. } => Some(reason),
        _ => None,
    })
}

/// A member with these keys, after a welcome with this set from these parties.
fn greeted(keys: Vec<(KeyRole, [u8; 32])>, directory: &Directory, parties: &[u64]) -> Member {
    let config = MemberConfig {
        exchange: "test-ix".to_owned(),
        rs_asn: RS,
        operators: operators(),
        slot: 0,
        keys,
        select_best: true,
        stale: Duration::from_secs(60),
        settle: Duration::from_secs(5),
        lab: true,
        accept_as_set: false,
        paths: 1,
        has_role: false,
        validates: false,
        speaks: Speaks::default(),
    };
    let policy = Policy::compile(&PolicyConfig::default()).expect("the default policy");
    let mut member = Member::new(config, Box::new(policy), SigningKey::from_seed(&seed(2)), &seed(3), &[], NOW);
    for (link, party) in [(1, PartyNumber::One), (2, PartyNumber::Two)] {
        member.handle(MemberInput::LinkUp { link, party, exporter: seed(4) }, NOW);
    }
    let session = std::iter::from_fn(|| member.poll()).find_map(|output| match output {
        MemberOutput::Send { frame, .. } => match FromMember::decode(&frame) {
            Ok(FromMember::Hello { session, .. }) => Some(session),
            _ => None,
        },
        _ => None,
    });
    let welcome = ToMember::Welcome {
        versions: VERSIONS,
        session: session.expect("a hello"),
        epoch: 1,
        high_water: 0,
        export: ExportMode::Direct,
        tick_ms: 0,
        max_blob: 8192,
        budget: Default::default(),
        format: FORMATS.highest,
        later: Vec::new(),
        set: directory.encode().into(),
    };
    for link in parties {
        member.handle(MemberInput::Frame { link: *link, bytes: welcome.encode() }, NOW);
    }
    member
}

#[test]
fn a_member_uses_no_set_that_gives_a_key_that_it_knows_another_role() {
    let sound = |roles: &[KeyRole]| directory_with(roles).expect("sound by itself");
    assert_eq!(member_says(Vec::new(), &sound(&[])), None);
    let own = [KeyRole::SlotCertificate(0), KeyRole::SlotSigning(0), KeyRole::Attestation(Asn(64497))];
    for known in OUTSIDE.into_iter().chain(own) {
        for inside in INSIDE {
            let said = member_says(vec![(known, shared())], &sound(&[inside]));
            match said {
                None => assert!(known == inside || are_attestations(known, inside)),
                Some(said) => assert_names_both(&said, known, inside),
            }
        }
    }
}

#[test]
fn another_as_that_lists_a_member_s_attestation_key_is_an_alarm_and_cuts_nobody_off() {
    let own = KeyRole::Attestation(Asn(64497));
    let listed = directory_with(&[KeyRole::Attestation(Asn(64498))]).expect("sound by itself");
    let mut member = greeted(vec![(own, shared())], &listed, &[1, 2]);
    let outputs: Vec<MemberOutput> = std::iter::from_fn(|| member.poll()).collect();
    let closed = outputs.iter().any(|output| matches!(output, MemberOutput::Close { .. }));
    assert!(!closed, "{outputs:?}");
    let alarmed = outputs.iter().any(|output| {
        matches!(output, MemberOutput::Event(MemberEvent::Alarm(alarm)) if alarm.what.contains("AS64498 lists"))
    });
    assert!(alarmed, "{outputs:?}");
}

#[test]
fn a_party_starts_with_no_key_that_a_member_or_an_operator_had_before() {
    let first = directory_with(&[KeyRole::SlotSigning(0)]).expect("sound by itself");
    let new = Claim { serial: 2, tls: [77; 32], sign: public(7), name: "as64497-1".into(), ..claim(1, 64497) };
    let request = new.sign("test-ix", &key(7)).with_consent(Consent::Renewal, &key(SHARED));
    let renewed = both(&first, vec![first.requested(&request, 0).expect("sound")]);
    let own = vec![(KeyRole::PartySigning(1), shared())];
    let error = party(own.clone(), &renewed).err().expect("one key in two roles");
    assert_names_both(&error.to_string(), own[0].0, KeyRole::SlotSigning(0));

    let rolled = both(&empty(), vec![Change::operator(&empty(), 1, &key(SHARED))]);
    let changes = vec![Change::operator(&rolled, 1, &key(91))];
    let again = rolled.signed_by_both(changes, [&key(SHARED), &key(OPERATORS[1])]).expect("a sound set");
    let error = party(own.clone(), &again).err().expect("one key in two roles");
    assert_names_both(&error.to_string(), own[0].0, KeyRole::Operator(1));
}

//! Snapshots of a key server's state: going on from one changes no answer, and none but the writer's whole one is taken.
//!
//! PLA-06, compacted records: any changes with snapshots between; snapshots forged, damaged, cut off, out of order, of
//! another provider, older, of another history; an account closed and opened again: answers as without compaction;
//! refused by name; other keys.
//! PLA-06, behind and set back: a writer restored from a backup, before and after it has gone on: who follows notices
//! it and never goes back.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::path::Path;

use proptest::prelude::*;
use serde_json::Value;
use wayleave_control::capability::*;
use wayleave_core::UnixTime;
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::{Object, Signed};
use wayleave_packet::platypus::header::{Delegation, Interval, Width};
use wayleave_packet::platypus::revocation::Revocation;

use super::capability::{id, interval, principal, provider, signer, unhex};
use super::common::{NOW, seed};

/// Short epochs, so that revocations expire within a test.
const SHORT: u8 = 4;

fn unix(second: u64) -> UnixTime {
    UnixTime(second * 1_000_000)
}

type Made = (Signed<SnapshotHead>, Vec<Vec<u8>>);

pub(super) fn snapshot(state: &State, now: UnixTime) -> Made {
    let mut pieces = Vec::new();
    let take = |piece: &[u8]| -> Result<(), Infallible> {
        pieces.push(piece.to_vec());
        Ok(())
    };
    let Ok(head) = state.snapshot(&signer(), now, take);
    (head.expect("small enough"), pieces)
}

pub(super) fn restore(of: &State, (head, pieces): &Made) -> Result<State, SnapshotError> {
    let mut restoring = of.restoring(head.clone(), &signer().verifying_key())?;
    for (index, piece) in pieces.iter().enumerate() {
        assert_eq!(restoring.next(), Some(index));
        restoring.take(piece)?;
    }
    assert_eq!(restoring.next(), None);
    restoring.finish()
}

fn fresh() -> State {
    State::new(provider())
}

fn terms(number: u32, choice: u8) -> Terms {
    let last = 1 + choice % 3;
    let delegation = (choice & 4 != 0).then(|| Delegation {
        prefix: "203.0.113.0/24".parse().expect("a prefix"),
        id: id(choice.into()),
        sub: None,
    });
    let interval = if choice & 8 == 0 { interval(SHORT) } else { interval(12) };
    let waypoint = IpAddr::from([198, 51, 100, last]);
    Terms { waypoint, principal: principal(number), interval, width: Width::Full, delegation }
}

fn revocation(number: u32, choice: u8, now: u64) -> Revocation {
    let delegation = (choice & 1 != 0).then(|| (id((choice >> 1).into()), None));
    let epoch = (choice & 6 != 0).then(|| (interval(SHORT), (now >> SHORT) as u32 + u32::from(choice & 2)));
    Revocation { principal: principal(number), delegation, epoch }
}

#[derive(Clone, Debug)]
enum Step {
    Open(u32, u32),
    Close(u32),
    Grant(u32, u8, u64),
    Withdraw(u32, u8),
    WithdrawBranch(u32, u8),
    WithdrawDelegation(u32, u8),
    Revoke(u32, u8),
    Lift(u32, u8),
    Invite(u32, u8),
    Redeem(u8),
    Uninvite(u8),
    Wait(u64),
    /// The second state goes on from a snapshot of itself, or of the first.
    Compact(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let number = || 0u32..5;
    prop_oneof![
        3 => (number(), 0u32..4).prop_map(|(number, generation)| Step::Open(number, generation)),
        1 => number().prop_map(Step::Close),
        5 => (number(), 0u8..16, 0u64..400).prop_map(|(number, choice, time)| Step::Grant(number, choice, time)),
        1 => (number(), 0u8..16).prop_map(|(number, choice)| Step::Withdraw(number, choice)),
        1 => (number(), 0u8..16).prop_map(|(number, choice)| Step::WithdrawBranch(number, choice)),
        1 => (number(), 0u8..16).prop_map(|(number, choice)| Step::WithdrawDelegation(number, choice)),
        3 => (number(), any::<u8>()).prop_map(|(number, choice)| Step::Revoke(number, choice % 16)),
        1 => (number(), any::<u8>()).prop_map(|(number, choice)| Step::Lift(number, choice % 16)),
        2 => (number(), 0u8..8).prop_map(|(number, choice)| Step::Invite(number, choice)),
        2 => (0u8..8).prop_map(Step::Redeem),
        1 => (0u8..8).prop_map(Step::Uninvite),
        2 => (1u64..40).prop_map(Step::Wait),
        2 => any::<bool>().prop_map(Step::Compact),
    ]
}

fn body(step: &Step, now: u64) -> Option<ChangeBody> {
    Some(match *step {
        Step::Open(number, generation) => {
            ChangeBody::Account { principal: principal(number), generation, name: format!("number {number}") }
        }
        Step::Close(number) => ChangeBody::Close { principal: principal(number) },
        Step::Grant(number, choice, time) => {
            ChangeBody::Grant(Grant { terms: terms(number, choice), not_before: now, not_after: now + time })
        }
        Step::Withdraw(number, choice) => ChangeBody::Withdraw(terms(number, choice)),
        Step::WithdrawBranch(number, choice) => ChangeBody::WithdrawBranch(terms(number, choice)),
        Step::WithdrawDelegation(number, choice) => ChangeBody::WithdrawDelegation {
            holder: Terms { delegation: None, ..terms(number, choice) },
            delegation: (id(choice.into()), None),
        },
        Step::Revoke(number, choice) => ChangeBody::Revoke(revocation(number, choice, now)),
        Step::Lift(number, choice) => ChangeBody::Lift(revocation(number, choice, now)),
        Step::Invite(number, choice) => ChangeBody::Invite(Invitation {
            id: InvitationId([choice; 8]),
            key: [choice; 32],
            name: format!("guest {number}"),
            lasts: 50,
            not_after: now + 60,
            terms: vec![terms(number, choice)],
        }),
        Step::Redeem(choice) => ChangeBody::Redeem { invitation: InvitationId([choice; 8]), holder: [choice + 1; 32] },
        Step::Uninvite(choice) => ChangeBody::Uninvite(InvitationId([choice; 8])),
        Step::Wait(_) | Step::Compact(_) => return None,
    })
}

/// Everything that a key server answers by is the same.
fn assert_alike(plain: &State, compacted: &State, now: u64) {
    assert_eq!(
        (plain.number(), plain.grants(), plain.list()),
        (compacted.number(), compacted.grants(), compacted.list())
    );
    assert_eq!(plain.digest_of(plain.number()), compacted.digest_of(plain.number()));
    assert!(plain.invitations().eq(compacted.invitations()));
    for number in 0..5 {
        // In which order they are is for people.
        let sorted = |mut grants: Vec<Grant>| {
            grants.sort_by_key(|grant| grant.terms.digest());
            grants
        };
        let of = |state: &State| sorted(state.grants_of(principal(number)).collect());
        assert_eq!(of(plain), of(compacted));
        let capped = |state: &State| sorted(state.capped_grants_of(principal(number)).collect());
        assert_eq!(capped(plain), capped(compacted));
        // As by a walk up from each grant.
        let walked = of(plain).into_iter().map(|grant| {
            let above =
                grant.terms.ancestors().filter_map(|terms| plain.find(&terms)).filter_map(|slot| plain.grant(slot));
            above.fold(grant, |grant, above| Grant {
                not_before: grant.not_before.max(above.not_before),
                not_after: grant.not_after.min(above.not_after),
                ..grant
            })
        });
        assert_eq!(capped(plain), walked.collect::<Vec<_>>());
        assert_eq!(plain.next_generation(principal(number)), compacted.next_generation(principal(number)));
        for choice in 0..16 {
            let terms = terms(number, choice);
            let key = |state: &State| state.find(&terms).and_then(|slot| state.key(slot).cloned());
            assert_eq!(key(plain), key(compacted));
            let current = (now >> terms.interval.exponent()) as u32;
            for epoch in current - 1..=current + 1 {
                assert_eq!(plain.is_revoked(&terms, epoch), compacted.is_revoked(&terms, epoch));
            }
        }
    }
    let in_force = |state: &State| {
        let entries = state.revocations().filter(|entry| entry.expires_at().is_none_or(|second| second > now));
        entries.copied().collect::<Vec<_>>()
    };
    assert_eq!(in_force(plain), in_force(compacted));
    for exponent in 4..=24 {
        let interval = Interval::new(exponent).expect("in range");
        assert_eq!(plain.uses(interval), compacted.uses(interval));
    }
}

proptest! {
    /// A state that replays every change is the model of one that goes on from snapshots.
    #[test]
    fn going_on_from_snapshots_changes_no_answer(steps in proptest::collection::vec(step(), 1..80)) {
        let (mut plain, mut compacted, mut now) = (fresh(), fresh(), NOW);
        for step in steps {
            match step {
                Step::Wait(seconds) => now += seconds,
                Step::Compact(of_the_plain) => {
                    let made = snapshot(if of_the_plain { &plain } else { &compacted }, unix(now));
                    let next = restore(&compacted, &made).expect("the writer's");
                    prop_assert_eq!(compacted.is_continued_by(&next), Ok(()));
                    // One state has one encoding.
                    prop_assert_eq!(&snapshot(&next, unix(now)), &made);
                    compacted = next;
                }
                _ => {
                    let body = body(&step, now).expect("a change");
                    // Either may be the writer: what one signs the other takes.
                    let by_plain = plain.sign(body.clone(), &signer(), unix(now));
                    let by_compacted = compacted.sign(body, &signer(), unix(now));
                    let is_lift = matches!(step, Step::Lift(..));
                    prop_assert!(by_plain == by_compacted || is_lift, "{:?} {:?}", by_plain, by_compacted);
                    if let Ok(change) = by_plain {
                        let key = signer().verifying_key();
                        prop_assert_eq!(plain.apply(&change, &key), Ok(()));
                        prop_assert_eq!(compacted.apply(&change, &key), Ok(()));
                    }
                }
            }
            assert_alike(&plain, &compacted, now);
        }
    }
}

/// Rows as a database has them, kept by what each change does to them.
#[derive(Default)]
struct Kept {
    rows: BTreeMap<RowKey, Row>,
    past: Vec<([u8; 32], u64)>,
}

impl Kept {
    fn follow(&mut self, effects: RowEffects, change: &Signed<Change>) {
        effects.gone.iter().for_each(|key| assert!(self.rows.remove(key).is_some(), "{key:?}"));
        effects.expired.iter().for_each(|key| drop(self.rows.remove(key)));
        let made = effects.made.into_iter().map(|row| (row, false));
        for (row, is_changed) in made.chain(effects.changed.into_iter().map(|row| (row, true))) {
            assert_eq!(Row::decode(&row.encode()), Ok(row.clone()));
            let before = self.rows.insert(row.key(), row);
            // A revocation that has expired may be kept longer here than in the state.
            assert!(before.is_some() == is_changed || matches!(before, Some(Row::Revocation(_))));
        }
        self.past.push((change.digest(), change.object().issued));
    }

    fn state(&self) -> State {
        let past = self.past[self.past.len().saturating_sub(PAST)..].to_vec();
        let times = past.iter().map(|(_, issued)| *issued).skip(past.len().saturating_sub(256)).collect();
        let end = ChangesEnd { number: self.past.len() as u64, past, times };
        State::from_rows::<RowError>(provider(), &end, self.rows.values().cloned().map(Ok)).expect("rows of a state")
    }
}

proptest! {
    /// A state that replays every change is the model of one that is made of the rows which the changes left.
    #[test]
    fn the_rows_that_changes_leave_make_the_same_state(steps in proptest::collection::vec(step(), 1..80)) {
        let (mut plain, mut of_rows, mut kept, mut now) = (fresh(), fresh(), Kept::default(), NOW);
        for step in steps {
            match step {
                Step::Wait(seconds) => now += seconds,
                Step::Compact(_) => of_rows = kept.state(),
                _ => {
                    let body = body(&step, now).expect("a change");
                    let by_plain = plain.sign(body.clone(), &signer(), unix(now));
                    let by_rows = of_rows.sign(body, &signer(), unix(now));
                    let is_lift = matches!(step, Step::Lift(..));
                    prop_assert!(by_plain == by_rows || is_lift, "{:?} {:?}", by_plain, by_rows);
                    if let Ok(change) = by_plain {
                        let key = signer().verifying_key();
                        // Before it counts, and whoever makes it.
                        let effects = of_rows.effects(change.object());
                        kept.follow(effects, &change);
                        prop_assert_eq!(plain.apply(&change, &key), Ok(()));
                        prop_assert_eq!(of_rows.apply(&change, &key), Ok(()));
                    }
                }
            }
            assert_alike(&plain, &of_rows, now);
            assert_alike(&plain, &kept.state(), now);
            prop_assert_eq!(plain.reopened().len(), of_rows.reopened().len());
        }
    }
}

/// What a state forgets leaves the rows with the same change, and whoever starts from the rows forgets nothing else.
#[test]
fn what_a_state_forgets_leaves_its_rows_and_nothing_else_does() {
    let (mut states, mut kept) = ([fresh(), fresh()], Kept::default());
    let make = |states: &mut [State; 2], kept: &mut Kept, body: ChangeBody, second: u64| {
        let change = states[0].sign(body.clone(), &signer(), unix(second)).expect("possible");
        assert_eq!(states[1].sign(body, &signer(), unix(second)).expect("possible"), change);
        let effects = states[0].effects(change.object());
        assert_eq!(states[1].effects(change.object()), effects, "whoever makes it");
        kept.follow(effects, &change);
        states.iter_mut().for_each(|state| state.apply(&change, &signer().verifying_key()).expect("the next"));
        assert_eq!(kept.rows.values().cloned().collect::<Vec<_>>(), states[0].rows());
    };
    let account =
        |number: u32| ChangeBody::Account { principal: principal(number), generation: number, name: "somebody".into() };
    let grant =
        |choice: u8, not_after: u64| ChangeBody::Grant(Grant { terms: terms(1, choice), not_before: NOW, not_after });
    make(&mut states, &mut kept, account(1), NOW);
    make(&mut states, &mut kept, grant(0, NOW + (1 << 30)), NOW);
    make(&mut states, &mut kept, grant(4, NOW + 10), NOW);
    for number in 0..3 {
        let Some(ChangeBody::Invite(invitation)) = body(&Step::Invite(2, number), NOW) else { unreachable!() };
        make(&mut states, &mut kept, ChangeBody::Invite(invitation), NOW);
    }
    // The delegation has ended long ago, and so have the invitations; nothing has been forgotten yet, also by who starts from the rows.
    let late = NOW + 100 * 86_400;
    for number in 0..300 {
        make(&mut states, &mut kept, account(10 + number % 3), late);
    }
    states[1] = kept.state();
    let has = |kept: &Kept, kind: RowKind| kept.rows.keys().filter(|key| key.kind == kind).count();
    assert_eq!((has(&kept, RowKind::Grant), has(&kept, RowKind::Invitation)), (2, 3));
    // A change beside it takes nothing away.
    make(&mut states, &mut kept, ChangeBody::Revoke(revocation(1, 0, late)), late);
    make(&mut states, &mut kept, ChangeBody::Lift(revocation(1, 0, late)), late);
    assert_eq!(has(&kept, RowKind::Grant), 2);
    make(&mut states, &mut kept, grant(1, late + 10), late);
    assert_eq!(has(&kept, RowKind::Grant), 2, "one for one");
    let Some(ChangeBody::Invite(invitation)) = body(&Step::Invite(3, 5), late) else { unreachable!() };
    make(&mut states, &mut kept, ChangeBody::Invite(invitation), late);
    assert_eq!(has(&kept, RowKind::Invitation), 1);
    states[1] = kept.state();
    make(&mut states, &mut kept, ChangeBody::Close { principal: principal(1) }, late);
    assert_eq!((has(&kept, RowKind::Grant), kept.state().grants()), (0, 0));
}

#[test]
fn rows_that_make_no_state_are_refused() {
    let mut state = fresh();
    open(&mut state, 1, 1);
    let grant = Grant { terms: terms(1, 0), not_before: NOW, not_after: NOW + 10 };
    let change = apply(&mut state, ChangeBody::Grant(grant), NOW);
    let past = vec![(state.digest_of(1).expect("known"), NOW), (change.digest(), NOW)];
    let made = |end: &ChangesEnd, rows: Vec<Row>| {
        State::from_rows::<RowError>(provider(), end, rows.into_iter().map(Ok)).map(|state| state.grants())
    };
    let times = vec![NOW; 2];
    let end = ChangesEnd { number: 2, past: past.clone(), times: times.clone() };
    assert_eq!(made(&end, state.rows()), Ok(1));
    let twice = [state.rows(), vec![Row::Grant(grant)]].concat();
    assert_eq!(made(&end, twice), Err(RowError::Content("an account has a grant twice")));
    let without = vec![Row::Grant(grant)];
    assert_eq!(made(&end, without), Err(RowError::Content("a grant is of no account")));
    let ended = Row::Grant(Grant { not_before: NOW + 1, not_after: NOW, ..grant });
    let of_account = state.rows()[..1].to_vec();
    let wrong = made(&end, [of_account, vec![ended]].concat());
    assert_eq!(wrong, Err(RowError::Content("a grant ends before it begins")));
    let behind = ChangesEnd { number: 1, past, times };
    assert_eq!(made(&behind, Vec::new()), Err(RowError::Past { digests: 2, number: 1 }));
    assert_eq!(
        made(&ChangesEnd { number: 1, ..ChangesEnd::default() }, vec![]),
        Err(RowError::Past { digests: 0, number: 1 })
    );
}

fn apply(state: &mut State, body: ChangeBody, second: u64) -> Signed<Change> {
    let change = state.sign(body, &signer(), unix(second)).expect("possible");
    state.apply(&change, &signer().verifying_key()).expect("the next");
    change
}

fn open(state: &mut State, number: u32, generation: u32) -> Signed<Change> {
    apply(state, ChangeBody::Account { principal: principal(number), generation, name: "somebody".into() }, NOW)
}

fn some() -> State {
    let mut state = fresh();
    for number in 0..400 {
        open(&mut state, number, 0);
        for choice in 0..16 {
            let grant = Grant { terms: terms(number, choice), not_before: NOW, not_after: NOW + 10 };
            apply(&mut state, ChangeBody::Grant(grant), NOW);
        }
    }
    apply(&mut state, ChangeBody::Close { principal: principal(0) }, NOW);
    apply(&mut state, ChangeBody::Revoke(revocation(1, 0, NOW)), NOW);
    state
}

/// `test-data/wire/capabilities.py`, which shares no code with this.
#[test]
fn changes_and_their_snapshot_are_as_an_independent_program_makes_them() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/wire/capabilities.json");
    let file: Value = serde_json::from_slice(&std::fs::read(path).expect("there")).expect("JSON");
    let published = &file["snapshot"];
    let writer = SigningKey::from_seed(&Seed::new([30; 32]));
    let mut state = fresh();
    for change in published["changes"].as_array().expect("a list") {
        let change = Signed::<Change>::decode(&unhex(change)).expect("a change");
        state.apply(&change, &writer.verifying_key()).expect("the next");
    }
    assert_eq!((state.number(), state.accounts(), state.grants(), state.revocations().len()), (8, 1, 3, 2));
    let mut pieces = Vec::new();
    let take = |piece: &[u8]| -> Result<(), Infallible> {
        pieces.push(piece.to_vec());
        Ok(())
    };
    let Ok(head) = state.snapshot(&writer, unix(u64::MAX >> 20), take);
    assert_eq!(pieces, [unhex(&published["piece"])]);
    assert_eq!(head.expect("small enough").octets()[..], unhex(&published["head"]));
}

#[test]
fn a_snapshot_is_of_bounded_pieces_and_any_change_of_it_is_refused_by_name() {
    let state = some();
    let made = snapshot(&state, unix(NOW));
    let (head, pieces) = &made;
    assert!(pieces.len() >= 2 && pieces.iter().all(|piece| piece.len() <= MAX_PIECE), "{}", pieces.len());
    assert_eq!(head.object().octets(), pieces.iter().map(Vec::len).sum::<usize>() as u64);
    assert_alike(&state, &restore(&fresh(), &made).expect("whole"), NOW);

    // Forged: signed by another, or changed behind the signature.
    let stranger = SigningKey::from_seed(&seed(99, 0));
    let forged = Signed::sign(head.object(), &stranger).expect("signed");
    assert_eq!(restore(&fresh(), &(forged, pieces.clone())).err(), Some(SnapshotError::Signature(state.number())));
    for place in (1..head.octets().len()).step_by(7) {
        let mut octets = head.octets().to_vec();
        octets[place] ^= 1;
        let Ok(changed) = Signed::<SnapshotHead>::decode(&octets) else { continue };
        assert!(matches!(
            fresh().restoring(changed, &signer().verifying_key()).err(),
            Some(SnapshotError::Signature(_))
        ));
    }
    // Damaged, cut off, out of order, of another snapshot.
    let first = |pieces: Vec<Vec<u8>>| {
        let mut restoring = fresh().restoring(head.clone(), &signer().verifying_key()).expect("signed");
        for piece in &pieces {
            restoring.take(piece)?;
        }
        restoring.finish().map(|_| ())
    };
    for place in (0..pieces[0].len()).step_by(997) {
        let mut changed = pieces.clone();
        changed[0][place] ^= 0x10;
        assert_eq!(first(changed), Err(SnapshotError::Piece(0)));
    }
    let missing = Err(SnapshotError::Missing { expected: pieces.len(), got: pieces.len() - 1 });
    assert_eq!(first(pieces[..pieces.len() - 1].to_vec()), missing);
    assert_eq!(first(vec![pieces[1].clone()]), Err(SnapshotError::Piece(0)));
    let mut other = some();
    open(&mut other, 7_000, 0);
    let (_, others) = snapshot(&other, unix(NOW));
    assert_eq!(first(vec![others[0].clone()]), Err(SnapshotError::Piece(0)));
    let mut more = pieces.clone();
    more.push(pieces[0].clone());
    assert_eq!(first(more), Err(SnapshotError::Piece(pieces.len())));
}

/// A head that the writer signed over these pieces: what a later version, or a writer that erred, may have made.
fn signed_over(pieces: &[&[u8]], number: u64, last: [u8; 32]) -> Made {
    let label = "wayleave/capability/snapshot-piece/v1";
    let named = pieces.iter().enumerate().map(|(index, piece)| {
        let index = (index as u64).to_be_bytes();
        (piece.len() as u32, wayleave_crypto::hash::hash(label, &[&number.to_be_bytes(), &index, piece]))
    });
    let head = SnapshotHead { number, last, issued: NOW, pieces: named.collect() };
    (Signed::sign(&head, &signer()).expect("signed"), pieces.iter().map(|piece| piece.to_vec()).collect())
}

#[test]
fn what_a_snapshot_says_is_checked_though_it_is_signed() {
    let digest = [&[5][..], &[9; 32]].concat();
    let account = |number: u8| [&[2, 0, 0, number, 0, 0, 0, 0, 1][..], b"x"].concat();
    let with =
        |records: &[&[u8]]| restore(&fresh(), &signed_over(&[&[&[1], &records.concat()[..]].concat()], 1, [9; 32]));
    assert_eq!(with(&[&account(7), &digest]).expect("well made").accounts(), 1);
    let refused = |records: &[&[u8]]| with(records).err().expect("refused");
    let (order, content) = (SnapshotError::Order(0), |what| SnapshotError::Content { index: 0, what });
    assert_eq!(refused(&[&account(7), &account(7), &digest]), order);
    assert_eq!(refused(&[&account(7), &account(6), &digest]), order);
    assert_eq!(refused(&[&digest, &account(7)]), order);
    assert_eq!(refused(&[&account(7)]), content("the digests do not end with that of the last change"));
    assert_eq!(refused(&[&digest, &digest]), content("the digests do not end with that of the last change"));
    assert_eq!(refused(&[&account(7), &[77]]), SnapshotError::Kind { index: 0, kind: 77 });
    assert_eq!(refused(&[&[1, 1, 0, 0, 0, 0, 0, 0, 0]]), content("a closed account is of no principal"));
    assert!(matches!(refused(&[&account(7)[..5]]), SnapshotError::Malformed { index: 0, .. }));
    let mut state = fresh();
    open(&mut state, 7, 0);
    apply(&mut state, ChangeBody::Grant(Grant { terms: terms(7, 0), not_before: 0, not_after: 1 }), NOW);
    apply(&mut state, ChangeBody::Revoke(revocation(7, 2, NOW - 1_000)), NOW);
    let (_, pieces) = snapshot(&state, unix(NOW - 1_000));
    let records = &pieces[0][1..];
    let account_length = 1 + 3 + 4 + 1 + "somebody".len();
    let grant_length = 1 + 8 + 8 + 5 + 3 + 1 + 1;
    let (account, rest) = records.split_at(account_length);
    let (grant, rest) = rest.split_at(grant_length);
    let revoked = &rest[..rest.len() - 3 * 33];
    assert_eq!(refused(&[grant, &digest]), content("a grant is of no account"));
    assert_eq!(refused(&[account, grant, grant, &digest]), content("an account has a grant twice"));
    assert_eq!(refused(&[account, grant, revoked, &digest]), content("a revocation had expired"));
    assert_eq!(with(&[account, grant, &digest]).expect("well made").grants(), 1);
    let too_many: Vec<&[u8]> = vec![&digest; PAST + 1];
    assert_eq!(refused(&too_many), content("too many digests of changes"));
    let version = restore(&fresh(), &signed_over(&[&[&[2], &digest[..]].concat()], 1, [9; 32])).err();
    assert!(matches!(version, Some(SnapshotError::Malformed { index: 0, .. })), "{version:?}");
}

#[test]
fn who_follows_never_goes_back_and_notices_a_writer_that_was_set_back() {
    let (mut writer, mut replica) = (fresh(), fresh());
    for number in 0..20 {
        let change = open(&mut writer, number, 0);
        replica.apply(&change, &signer().verifying_key()).expect("the next");
    }
    let old = restore(&writer, &snapshot(&writer, unix(NOW))).expect("a backup");
    for number in 20..30 {
        let change = open(&mut writer, number, 0);
        replica.apply(&change, &signer().verifying_key()).expect("the next");
    }
    assert_eq!(replica.is_continued_by(&old), Err(SnapshotError::Older { held: 30, got: 20 }));
    // The writer goes on from its backup, beyond what the replica has, and makes a snapshot of that.
    let mut forked = old;
    for number in 100..130 {
        open(&mut forked, number, 0);
    }
    let forked = restore(&replica, &snapshot(&forked, unix(NOW))).expect("well made");
    assert_eq!(replica.is_continued_by(&forked), Err(SnapshotError::Fork(30)));
    // The true one, however much later.
    let behind = restore(&replica, &snapshot(&replica, unix(NOW))).expect("well made");
    for number in 0..PAST as u32 - 1 {
        open(&mut writer, 1_000 + number, 0);
    }
    let true_one = restore(&replica, &snapshot(&writer, unix(NOW))).expect("well made");
    assert_eq!(behind.is_continued_by(&true_one), Ok(()));
    assert_eq!(fresh().is_continued_by(&true_one), Ok(()), "a new replica begins anywhere");
    open(&mut writer, 9_999, 0);
    // What the head shows by itself is seen before a piece is fetched.
    let made = snapshot(&writer, unix(NOW));
    let later = restore(&fresh(), &made).expect("well made");
    let too_far = SnapshotError::TooFar { held: 30, first: 31 };
    assert_eq!(behind.is_continued_by(&later), Err(too_far));
    let of_head = |state: &State, made: &Made| state.restoring(made.0.clone(), &signer().verifying_key()).err();
    assert_eq!(of_head(&behind, &made), Some(too_far));
    assert_eq!(of_head(&forked, &snapshot(&replica, unix(NOW))), Some(SnapshotError::Fork(30)));
    assert_eq!(of_head(&later, &snapshot(&true_one, unix(NOW))), None);
    // And where the other's records end.
    let end = |state: &State| (state.number(), state.digest_of(state.number()).unwrap_or_default());
    let within = |state: &State, (number, last): (u64, [u8; 32])| state.is_within(number, &last);
    assert_eq!(within(&later, end(&replica)), Err(SnapshotError::Older { held: later.number(), got: 30 }));
    assert_eq!(within(&replica, (30, [7; 32])), Err(SnapshotError::Fork(30)));
    assert_eq!(within(&replica, end(&behind)), Ok(()));
    assert_eq!((within(&replica, end(&later)), within(&fresh(), end(&fresh()))), (Ok(()), Ok(())));
    // And a change behind a snapshot has to follow it.
    let mut follower = restore(&fresh(), &snapshot(&writer, unix(NOW))).expect("well made");
    let next = open(&mut writer, 10_000, 0);
    let after = open(&mut writer, 10_001, 0);
    let held = follower.number();
    let gap = ChangeError::Gap { held, got: held + 2 };
    assert_eq!(follower.apply(&after, &signer().verifying_key()), Err(gap));
    assert_eq!(follower.apply(&next, &signer().verifying_key()), Ok(()));
}

#[test]
fn an_account_that_was_closed_and_opened_again_has_other_keys_also_after_a_snapshot() {
    let mut state = fresh();
    open(&mut state, 3, 5);
    let grant = ChangeBody::Grant(Grant { terms: terms(3, 0), not_before: NOW, not_after: NOW + 10 });
    apply(&mut state, grant.clone(), NOW);
    let old = state.find(&terms(3, 0)).and_then(|slot| state.key(slot).cloned()).expect("granted");
    apply(&mut state, ChangeBody::Close { principal: principal(3) }, NOW);
    for mut state in [restore(&fresh(), &snapshot(&state, unix(NOW))).expect("well made"), state] {
        assert_eq!(state.next_generation(principal(3)), 6);
        for generation in 0..=5 {
            let body = ChangeBody::Account { principal: principal(3), generation, name: String::new() };
            let closed = ChangeError::Closed { held: 5, got: generation };
            assert_eq!(state.sign(body, &signer(), unix(NOW)), Err(closed));
        }
        let later = NOW + (4 << 12);
        let body = ChangeBody::Account { principal: principal(3), generation: 6, name: "somebody".into() };
        apply(&mut state, body, later);
        apply(&mut state, grant.clone(), later);
        let new = state.find(&terms(3, 0)).and_then(|slot| state.key(slot).cloned()).expect("granted");
        assert!(new != old, "the same capability, and a key of its own");
        assert_eq!(state.next_generation(principal(3)), 7);
        // Whose usage is whose is known, also from a snapshot alone.
        let reopened = [Reopening { principal: 3, at: later, generation: 5 }];
        assert_eq!(state.reopened(), reopened);
        let again = restore(&fresh(), &snapshot(&state, unix(NOW))).expect("well made");
        assert_eq!(again.reopened(), reopened);
    }
}

#[test]
fn revocations_that_have_expired_are_left_out_and_lifting_one_stops_nobody() {
    let mut state = fresh();
    open(&mut state, 3, 0);
    let entry = revocation(3, 2, NOW);
    let expiry = entry.expires_at().expect("of an epoch");
    apply(&mut state, ChangeBody::Revoke(entry), NOW);
    let kept = |state: &State, second| {
        restore(&fresh(), &snapshot(state, unix(second))).expect("well made").revocations().len()
    };
    assert_eq!(kept(&state, expiry + 1_000_000), 1, "a clock that is wrong drops nothing: the last change was before");
    open(&mut state, 4, 0);
    // As many changes as it takes until what was signed before counts no more.
    let name = |number: u32| format!("renamed {number} times");
    for number in 1..256 {
        let body = ChangeBody::Account { principal: principal(3), generation: 0, name: name(number) };
        apply(&mut state, body, expiry);
    }
    assert_eq!(kept(&state, expiry), 1);
    apply(&mut state, ChangeBody::Close { principal: principal(4) }, expiry);
    assert_eq!(kept(&state, expiry - 1), 1);
    let mut after = restore(&fresh(), &snapshot(&state, unix(expiry))).expect("well made");
    assert_eq!(after.revocations().len(), 0);
    // The writer still has it, and takes it back: whoever began with the snapshot goes on.
    let lift = apply(&mut state, ChangeBody::Lift(entry), expiry + 1);
    assert_eq!(after.apply(&lift, &signer().verifying_key()), Ok(()));
    assert_eq!(after.sign(ChangeBody::Lift(entry), &signer(), unix(expiry)), Err(ChangeError::NotRevoked));
}

#[test]
fn a_head_is_bounded_and_has_one_encoding() {
    let (head, _) = snapshot(&some(), unix(NOW));
    for length in 0..head.octets().len() {
        assert!(Signed::<SnapshotHead>::decode(&head.octets()[..length]).is_err());
    }
    const { assert!(SnapshotHead::MAX < MAX_MESSAGE, "it fits a message to a replica") };
    let head = SnapshotHead { number: 1, last: [1; 32], issued: 0, pieces: vec![(MAX_PIECE as u32 + 1, [0; 32])] };
    assert!(Signed::sign(&head, &signer()).is_err());
}

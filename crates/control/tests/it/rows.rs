//! Rows of a key server's state: those that the changes leave make the same state; and the snapshots that earlier versions wrote, which
//! are read once.
//!
//! PLA-06, rows of a database: any changes, with the state made anew from the rows between; rows of no state: answers as with every
//! change replayed; refused by name; other keys of an account that was closed and opened again.
//! PLA-06, snapshots of earlier versions: forged, damaged, cut off, out of order, of another provider: refused by name.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use proptest::prelude::*;
use serde_json::Value;
use wayleave_control::capability::*;
use wayleave_control::leases;
use wayleave_core::UnixTime;
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::Signed;
use wayleave_packet::platypus::header::{Delegation, Interval, SubDelegation, Width};
use wayleave_packet::platypus::revocation::Revocation;
use wayleave_packet::platypus::sources::Sources;

use super::capability::{id, interval, principal, provider, signer, unhex};
use super::common::NOW;

/// Short epochs, so that revocations expire within a test.
const SHORT: u8 = 4;

fn unix(second: u64) -> UnixTime {
    UnixTime(second * 1_000_000)
}

/// The state that a snapshot has.
fn restore(head: &Signed<SnapshotHead>, pieces: &[Vec<u8>], writer: &SigningKey) -> Result<State, SnapshotError> {
    let piece = |index: usize| Ok(pieces.get(index).cloned().unwrap_or_default());
    State::from_snapshot(provider(), head, &writer.verifying_key(), piece)
}

/// The state as whoever starts now has it from the rows. It was made by replaying changes.
pub(super) fn reloaded(state: &State) -> State {
    let issued = state.times().seconds;
    // By the earliest of them is judged what has expired.
    let times = vec![state.settled()];
    let end = ChangesEnd { number: state.number(), last: state.last(), issued: issued.to_vec(), times };
    State::from_rows::<RowError>(provider(), &end, state.rows().into_iter().map(Ok)).expect("rows of a state")
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

fn payer(number: u32, choice: u8) -> RatePayer {
    RatePayer { principal: principal(number), delegation: (choice & 1 != 0).then(|| id(choice.into())) }
}

/// Of each payer by turns none, one, or two prefixes, which lie within each other.
fn sources(number: u32, choice: u8) -> Sources {
    let RatePayer { principal, delegation } = payer(number, choice);
    let mut prefixes = vec!["198.18.0.0/24".parse().expect("a prefix"), "198.18.0.0/26".parse().expect("a prefix")];
    prefixes.sort_unstable();
    prefixes.truncate(usize::from(choice >> 1) % 3);
    Sources { principal, delegation, delegates_any: delegation.is_none() && choice & 8 != 0, prefixes }
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
    SetRate(u32, u8),
    EndRate(u32, u8),
    SetSources(u32, u8),
    /// Of the account (16) or of a grant, what follows from the last number.
    SetBilling(u32, u8, u8),
    SetQuota(u32, u64),
    EndQuota(u32),
    UseUpQuota(u32, u8),
    Limit(u32, u8),
    /// An account, a grant, sources and what billing knows in one.
    Several(u32, u8, u64),
    Wait(u64),
    /// The second state is made anew from the rows.
    Reload,
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
        2 => (number(), 0u8..4).prop_map(|(number, choice)| Step::SetRate(number, choice)),
        1 => (number(), 0u8..4).prop_map(|(number, choice)| Step::EndRate(number, choice)),
        3 => (number(), 0u8..16).prop_map(|(number, choice)| Step::SetSources(number, choice)),
        4 => (number(), 0u8..=16, 0u8..6).prop_map(|(number, choice, what)| Step::SetBilling(number, choice, what)),
        2 => (number(), 1u64..4).prop_map(|(number, hard)| Step::SetQuota(number, hard)),
        1 => number().prop_map(Step::EndQuota),
        3 => (number(), 0u8..8).prop_map(|(number, choice)| Step::UseUpQuota(number, choice)),
        2 => (number(), 0u8..8).prop_map(|(number, choice)| Step::Limit(number, choice)),
        3 => (number(), 0u8..16, 0u64..400).prop_map(|(number, choice, time)| Step::Several(number, choice, time)),
        2 => (1u64..40).prop_map(Step::Wait),
        2 => Just(Step::Reload),
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
        Step::SetRate(number, choice) => {
            let terms = RateTerms { rate: 1 + u64::from(choice), ..RateTerms::default() };
            ChangeBody::SetRate { payer: payer(number, choice), terms }
        }
        Step::EndRate(number, choice) => ChangeBody::EndRate(payer(number, choice)),
        Step::SetSources(number, choice) => ChangeBody::SetSources(sources(number, choice)),
        Step::SetBilling(number, choice, what) => ChangeBody::SetBilling {
            of: BillingSubject { principal: principal(number), grant: (choice < 16).then(|| terms(number, choice)) },
            billing: Billing {
                external_id: if what & 1 == 0 { String::new() } else { format!("customer {}", what / 2) },
                price: ["", "gold", "silver"][usize::from(what / 2)].to_owned(),
                metadata: if what == 5 { vec![pair("team", "night")] } else { Vec::new() },
            },
        },
        Step::SetQuota(number, hard) => ChangeBody::SetQuota {
            principal: principal(number),
            quota: VolumeQuota { soft: None, hard: Some(hard).filter(|hard| *hard < 3) },
        },
        Step::EndQuota(number) => ChangeBody::EndQuota { principal: principal(number) },
        Step::UseUpQuota(number, choice) => {
            ChangeBody::UseUpQuota { payer: payer(number, choice), month: Month::of(now).begin() }
        }
        Step::Limit(number, choice) => {
            let rate = (choice & 2 != 0).then(|| RateTerms { rate: u64::from(choice), ..RateTerms::default() });
            let limit = DelegationLimit { rate, month_octets: (choice & 4 != 0).then(|| choice.into()) };
            ChangeBody::LimitDelegation { payer: payer(number, choice | 1), limit }
        }
        Step::Several(number, choice, time) => {
            let steps = [
                Step::Open(number, time as u32 % 4),
                Step::Grant(number, choice, time),
                Step::SetSources(number, choice),
                Step::SetBilling(number, choice, choice % 6),
            ];
            ChangeBody::Several(steps.iter().filter_map(|step| body(step, now)).collect())
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
        Step::Wait(_) | Step::Reload => return None,
    })
}

/// Everything that a key server answers by is the same.
fn assert_alike(plain: &State, of_rows: &State, now: u64) {
    assert_eq!((plain.number(), plain.grants(), plain.list()), (of_rows.number(), of_rows.grants(), of_rows.list()));
    assert_eq!(plain.last(), of_rows.last());
    assert!(plain.invitations().eq(of_rows.invitations()));
    assert!(plain.sources().eq(of_rows.sources()));
    assert_eq!(plain.shared_rates(), of_rows.shared_rates());
    assert!(plain.volumes().eq(of_rows.volumes()));
    for number in 0..5 {
        // In which order they are is for people.
        let sorted = |mut grants: Vec<Grant>| {
            grants.sort_by_key(|grant| grant.terms.digest());
            grants
        };
        let of = |state: &State| sorted(state.grants_of(principal(number)).collect());
        assert_eq!(of(plain), of(of_rows));
        let capped = |state: &State| sorted(state.capped_grants_of(principal(number)).collect());
        assert_eq!(capped(plain), capped(of_rows));
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
        assert_eq!(plain.next_generation(principal(number)), of_rows.next_generation(principal(number)));
        for choice in 0..16 {
            let terms = terms(number, choice);
            let key = |state: &State| state.find(&terms).and_then(|slot| state.key(slot).cloned());
            assert_eq!(key(plain), key(of_rows));
            let current = (now >> terms.interval.exponent()) as u32;
            for epoch in current - 1..=current + 1 {
                assert_eq!(plain.is_revoked(&terms, epoch), of_rows.is_revoked(&terms, epoch));
            }
        }
    }
    let in_force = |state: &State| {
        let entries = state.revocations().filter(|entry| entry.expires_at().is_none_or(|second| second > now));
        entries.copied().collect::<Vec<_>>()
    };
    assert_eq!(in_force(plain), in_force(of_rows));
    let listed = |state: &State| {
        let mut all: Vec<_> = state.listed(now).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(listed(plain), listed(of_rows));
    for number in 0..5 {
        let of = |state: &State| {
            let all = state.billing_of(principal(number)).map(|(of, record)| (of.grant, record.clone()));
            all.collect::<std::collections::HashMap<_, _>>()
        };
        assert_eq!(of(plain), of(of_rows));
    }
    for customer in 0..3 {
        let known = |state: &State| state.known_as(&format!("customer {customer}"), None).collect::<Vec<_>>();
        assert_eq!(known(plain), known(of_rows));
        let has = |number: &u32| {
            let mut all = plain.billing_of(principal(*number));
            all.any(|(_, record)| record.external_id == format!("customer {customer}"))
        };
        assert_eq!(known(plain), (0..5).filter(has).map(principal).collect::<Vec<_>>());
    }
    for exponent in 4..=24 {
        let interval = Interval::new(exponent).expect("in range");
        assert_eq!(plain.uses(interval), of_rows.uses(interval));
    }
}

/// Rows as a database has them, kept by what each change does to them.
#[derive(Default)]
struct Kept {
    rows: BTreeMap<RowKey, Row>,
    last: [u8; 32],
    issued: Vec<u64>,
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
        self.last = change.digest();
        self.issued.push(change.object().issued);
    }

    fn state(&self) -> State {
        let of = |most: usize| self.issued[self.issued.len().saturating_sub(most)..].to_vec();
        let end = ChangesEnd { number: self.issued.len() as u64, last: self.last, issued: of(TIMES), times: of(256) };
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
                Step::Reload => of_rows = kept.state(),
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
    let of_delegation = |number: u32| Sources {
        delegation: Some(id(number)),
        prefixes: vec!["198.18.0.0/24".parse().expect("a prefix")],
        ..sources(1, 0)
    };
    // Of the delegation, and of one that nobody registered.
    make(&mut states, &mut kept, ChangeBody::SetSources(of_delegation(4)), NOW);
    make(&mut states, &mut kept, ChangeBody::SetSources(of_delegation(99)), NOW);
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
    assert!(states[0].sources().eq([&of_delegation(99)]), "they are forgotten with the delegation");
    let Some(ChangeBody::Invite(invitation)) = body(&Step::Invite(3, 5), late) else { unreachable!() };
    make(&mut states, &mut kept, ChangeBody::Invite(invitation), late);
    assert_eq!(has(&kept, RowKind::Invitation), 1);
    states[1] = kept.state();
    make(&mut states, &mut kept, ChangeBody::Close { principal: principal(1) }, late);
    assert_eq!((has(&kept, RowKind::Grant), kept.state().grants()), (0, 0));
    assert_eq!(has(&kept, RowKind::Sources), 0);
}

/// A price tag that a statement may need is never put aside for another one: the change is refused.
#[test]
fn a_price_tag_that_statements_may_need_is_not_forgotten_for_another() {
    let mut state = fresh();
    let sign = |state: &State, body: ChangeBody, second: u64| state.sign(body, &signer(), unix(second));
    let make = |state: &mut State, body: ChangeBody, second: u64| {
        let change = sign(state, body, second).expect("possible");
        state.apply(&change, &signer().verifying_key()).expect("the next");
    };
    let of = BillingSubject::account(principal(1));
    let price = |number: usize| ChangeBody::SetBilling {
        of,
        billing: Billing { price: format!("tag {number}"), ..Billing::default() },
    };
    make(&mut state, ChangeBody::Account { principal: principal(1), generation: 1, name: String::new() }, NOW);
    (0..SET_PRICES).for_each(|number| make(&mut state, price(number), NOW + number as u64));
    let last = NOW + SET_PRICES as u64;
    assert_eq!(sign(&state, price(SET_PRICES), last).err(), Some(ChangeError::Prices));
    // What is not about the price is set all the same.
    let id =
        Billing { external_id: "cust-1".to_owned(), price: format!("tag {}", SET_PRICES - 1), ..Billing::default() };
    make(&mut state, ChangeBody::SetBilling { of, billing: id }, last);
    let tags = |state: &State| state.billing(&of).map_or(0, |held| held.prices_within(None, 0, u64::MAX).len());
    assert_eq!(tags(&state), SET_PRICES);
    // Once no statement needs the first, which ended when the second began.
    let late = NOW + 500 * 86_400;
    assert_eq!(sign(&state, price(SET_PRICES), late).err(), Some(ChangeError::Prices));
    make(&mut state, price(SET_PRICES), late + 1);
    assert_eq!(tags(&state), SET_PRICES + 1);
}

/// Price tags stay for statements when what had them ends, and for no longer.
#[test]
fn price_tags_outlive_what_they_were_of_and_are_forgotten_at_last() {
    let mut state = fresh();
    open(&mut state, 1, 1);
    let granted = terms(1, 0);
    let (account, grant) = (BillingSubject::account(principal(1)), BillingSubject::grant(granted));
    let billing = |price: &str| Billing { external_id: "c".to_owned(), price: price.to_owned(), metadata: Vec::new() };
    let set = |of, price: &str| ChangeBody::SetBilling { of, billing: billing(price) };
    let refused = |state: &State, body| state.sign(body, &signer(), unix(NOW)).err();
    assert_eq!(refused(&state, set(grant, "gold")), Some(ChangeError::NoGrant));
    let stranger = BillingSubject::account(principal(2));
    assert_eq!(refused(&state, set(stranger, "gold")), Some(ChangeError::NoAccount(2)));
    assert_eq!(refused(&state, set(account, "g\n")), Some(ChangeError::Billing));
    apply(&mut state, ChangeBody::Grant(Grant { terms: granted, not_before: NOW, not_after: NOW + 10 }), NOW);
    apply(&mut state, set(grant, "gold"), NOW);
    apply(&mut state, set(account, "silver"), NOW + 1);
    assert_eq!(state.known_as("c", None).collect::<Vec<_>>(), [principal(1)]);
    assert_eq!(state.known_as("c", Some(principal(1))).count(), 0);
    apply(&mut state, ChangeBody::Withdraw(granted), NOW + 2);
    assert_eq!(state.billing(&grant).map(BillingRecord::present), Some(Billing::default()));
    apply(&mut state, ChangeBody::Close { principal: principal(1) }, NOW + 3);
    assert_eq!(state.known_as("c", None).count(), 0);
    let tags = |state: &State, of: &BillingSubject| {
        let record = state.billing(of).expect("remembered");
        record
            .prices_within(None, NOW, NOW + 100)
            .into_iter()
            .map(|tag| (tag.price, tag.since, tag.until))
            .collect::<Vec<_>>()
    };
    for state in [&state, &reloaded(&state)] {
        assert_eq!(tags(state, &grant), [("gold".to_owned(), NOW, Some(NOW + 2))]);
        assert_eq!(tags(state, &account), [("silver".to_owned(), NOW + 1, Some(NOW + 3))]);
    }
    // Another one has the number. What the first one had is known for as long as time may be open, whatever one wrong clock says.
    let late = NOW + 501 * 86_400;
    let reopen = ChangeBody::Account { principal: principal(1), generation: 9, name: "another".into() };
    apply(&mut state, reopen.clone(), late);
    assert_eq!(tags(&state, &account).len(), 1);
    for _ in 0..256 {
        apply(&mut state, reopen.clone(), late);
    }
    assert_eq!(state.billing_of(principal(1)).count(), 0);
}

#[test]
fn rows_that_make_no_state_are_refused() {
    let mut state = fresh();
    open(&mut state, 1, 1);
    let grant = Grant { terms: terms(1, 0), not_before: NOW, not_after: NOW + 10 };
    apply(&mut state, ChangeBody::Grant(grant), NOW);
    let made = |end: &ChangesEnd, rows: Vec<Row>| {
        State::from_rows::<RowError>(provider(), end, rows.into_iter().map(Ok)).map(|state| state.grants())
    };
    let end = ChangesEnd { number: 2, last: state.last(), issued: vec![NOW; 2], times: vec![NOW; 2] };
    assert_eq!(made(&end, state.rows()), Ok(1));
    let twice = [state.rows(), vec![Row::Grant(grant)]].concat();
    assert_eq!(made(&end, twice), Err(RowError::Content("an account has a grant twice")));
    let without = vec![Row::Grant(grant)];
    assert_eq!(made(&end, without), Err(RowError::Content("a grant is of no account")));
    let ended = Row::Grant(Grant { not_before: NOW + 1, not_after: NOW, ..grant });
    let of_account = state.rows()[..1].to_vec();
    let wrong = made(&end, [of_account, vec![ended]].concat());
    assert_eq!(wrong, Err(RowError::Content("a grant ends before it begins")));
    let behind = ChangesEnd { number: 1, ..end };
    assert_eq!(made(&behind, Vec::new()), Err(RowError::Times { times: 2, number: 1 }));
    let without = ChangesEnd { number: 1, ..ChangesEnd::default() };
    assert_eq!(made(&without, Vec::new()), Err(RowError::Times { times: 0, number: 1 }));
}

fn apply(state: &mut State, body: ChangeBody, second: u64) -> Signed<Change> {
    let change = state.sign(body, &signer(), unix(second)).expect("possible");
    state.apply(&change, &signer().verifying_key()).expect("the next");
    change
}

fn open(state: &mut State, number: u32, generation: u32) -> Signed<Change> {
    apply(state, ChangeBody::Account { principal: principal(number), generation, name: "somebody".into() }, NOW)
}

/// The sub-delegation of `test-data/wire/capabilities.py`.
fn branch() -> Terms {
    let sub = SubDelegation { at: 8, id: id(9) };
    let delegation = Delegation { prefix: "203.0.112.0/20".parse().expect("a prefix"), id: id(3), sub: Some(sub) };
    Terms { waypoint: IpAddr::from([198, 51, 100, 1]), delegation: Some(delegation), ..terms(7, 8) }
}

fn pair(key: &str, value: &str) -> Metadata {
    Metadata { key: key.to_owned(), value: value.to_owned() }
}

/// `test-data/wire/capabilities.py`, which shares no code with this.
#[test]
fn the_snapshot_of_an_independent_program_is_the_state_that_its_changes_make() {
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
    let head = Signed::<SnapshotHead>::decode(&unhex(&published["head"])).expect("a head");
    let piece = unhex(&published["piece"]);
    let restored = restore(&head, std::slice::from_ref(&piece), &writer).expect("the writer's");
    assert_alike(&state, &restored, NOW);
    // But a revocation that had expired.
    assert_eq!((restored.rows().len() + 1, restored.times().last), (state.rows().len(), 8));

    let withdrawals = file["withdrawals"].as_array().expect("a list").iter().map(unhex);
    let branch = branch();
    let whole = Terms { delegation: None, ..branch };
    let floored = RateTerms { rate: 500, burst: 2_000, offline: leases::Offline::Floor };
    let bodies = [
        ChangeBody::Withdraw(branch),
        ChangeBody::WithdrawBranch(branch),
        ChangeBody::WithdrawDelegation { holder: whole, delegation: (id(3), Some(id(9))) },
        ChangeBody::SetRate { payer: payer(7, 0), terms: RateTerms { rate: 1_250_000, ..RateTerms::default() } },
        ChangeBody::SetRate { payer: payer(7, 3), terms: floored },
        ChangeBody::EndRate(payer(7, 3)),
        ChangeBody::SetSources(Sources {
            principal: principal(7),
            delegation: None,
            delegates_any: true,
            prefixes: vec!["192.0.2.0/25".parse().expect("a prefix"), "2001:db8::/36".parse().expect("a prefix")],
        }),
        ChangeBody::SetSources(Sources {
            principal: principal(7),
            delegation: Some(id(3)),
            delegates_any: false,
            prefixes: Vec::new(),
        }),
        ChangeBody::SetBilling {
            of: BillingSubject::account(principal(7)),
            billing: Billing {
                external_id: "cust-17".to_owned(),
                price: "EUR 0.42/TB".to_owned(),
                metadata: vec![pair("contract", "2026-17"), pair("team", "")],
            },
        },
        ChangeBody::SetBilling {
            of: BillingSubject::grant(branch),
            billing: Billing { price: "gold".to_owned(), ..Billing::default() },
        },
        ChangeBody::SetQuota {
            principal: principal(7),
            quota: VolumeQuota { soft: Some(8 << 40), hard: Some(10 << 40) },
        },
        ChangeBody::SetQuota { principal: principal(7), quota: VolumeQuota { soft: None, hard: Some(10 << 40) } },
        ChangeBody::UseUpQuota { payer: payer(7, 0), month: 1_798_761_600 },
        ChangeBody::EndQuota { principal: principal(7) },
        ChangeBody::LimitDelegation {
            payer: payer(7, 3),
            limit: DelegationLimit { rate: Some(floored), month_octets: Some(10 << 40) },
        },
        ChangeBody::LimitDelegation { payer: payer(7, 3), limit: DelegationLimit::default() },
        ChangeBody::UseUpQuota { payer: payer(7, 3), month: 1_798_761_600 },
        ChangeBody::Several(vec![
            ChangeBody::Account { principal: principal(7), generation: 3, name: "customer".to_owned() },
            ChangeBody::Grant(Grant { terms: whole, not_before: NOW - 5, not_after: NOW + 5 }),
            ChangeBody::SetSources(Sources {
                principal: principal(7),
                delegation: None,
                delegates_any: false,
                prefixes: vec!["192.0.2.0/25".parse().expect("a prefix")],
            }),
        ]),
    ];
    assert_eq!(withdrawals.len(), bodies.len());
    for (octets, body) in withdrawals.zip(bodies) {
        let change = Signed::<Change>::decode(&octets).expect("a change");
        assert_eq!(change.verify(&writer.verifying_key().to_bytes()).expect("signed").body, body);
    }
    // Forged, changed, cut off, of another provider.
    let forged = Signed::sign(head.object(), &signer()).expect("signed");
    assert_eq!(restore(&forged, std::slice::from_ref(&piece), &writer).err(), Some(SnapshotError::Signature(8)));
    for length in 0..head.octets().len() {
        assert!(Signed::<SnapshotHead>::decode(&head.octets()[..length]).is_err());
    }
    for place in 0..piece.len() {
        let mut changed = piece.clone();
        changed[place] ^= 0x10;
        assert_eq!(restore(&head, &[changed], &writer).err(), Some(SnapshotError::Piece(0)));
    }
    for length in 0..piece.len() {
        assert_eq!(restore(&head, &[piece[..length].to_vec()], &writer).err(), Some(SnapshotError::Piece(0)));
    }
}

/// `test-data/wire/capabilities.py`, which shares no code with this.
#[test]
fn the_statement_of_an_independent_program_is_signed_and_every_change_of_it_is_noticed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/wire/capabilities.json");
    let file: Value = serde_json::from_slice(&std::fs::read(path).expect("there")).expect("JSON");
    let octets = unhex(&file["statement"]);
    let writer = SigningKey::from_seed(&Seed::new([30; 32]));
    let (month, day) = (1_798_761_600, 1_801_440_000);
    let whole = StatementLine {
        delegation: None,
        sub_delegation: None,
        begins: month,
        ends: month + 31 * 86_400,
        is_late: false,
        usage: Usage { packets: 5, octets: 584 },
    };
    let usage = Usage { packets: 1, octets: 1 << 120 };
    let late = StatementLine {
        delegation: Some(3),
        sub_delegation: Some(9),
        begins: day,
        ends: day + 86_400,
        is_late: true,
        usage,
    };
    let expected = Statement {
        zone: "keys.example.net".to_owned(),
        number: 2,
        principal: 7,
        owner: 1,
        after: month,
        before: day,
        made: day + 90_000,
        gaps: vec![StatementGap { router: 11, confirmed: day - 1 }],
        lines: vec![whole, late],
        prices: vec![
            PriceTag { grant: None, price: "gold".to_owned(), since: month - 5, until: Some(month + 5) },
            PriceTag { grant: Some(branch()), price: "silver".to_owned(), since: month + 7, until: None },
        ],
        percentiles: vec![Percentile {
            owner: 1,
            begins: month,
            ends: month + 31 * 86_400,
            octets_per_second: 1_250_000,
            rough: 3,
        }],
    };
    let signed = Signed::<Statement>::decode(&octets).expect("a statement");
    let key = writer.verifying_key().to_bytes();
    assert_eq!(signed.verify(&key), Ok(&expected));
    assert_eq!(Signed::sign(&expected, &writer).expect("signed"), signed);
    assert_eq!(expected.total(), usage.plus(whole.usage));
    for place in 0..octets.len() {
        let mut changed = octets.clone();
        changed[place] ^= 1;
        let is_refused = Signed::<Statement>::decode(&changed).map_or(true, |signed| signed.verify(&key).is_err());
        assert!(is_refused, "{place}");
    }
    for length in 0..octets.len() {
        assert!(Signed::<Statement>::decode(&octets[..length]).is_err(), "{length}");
    }
}

/// A snapshot of change 1 that the writer signed over this piece: what a later version, or a writer that erred, may have made.
fn signed_over(piece: &[u8]) -> Result<State, SnapshotError> {
    let digest =
        wayleave_crypto::hash::hash("wayleave/capability/snapshot-piece/v1", &[&1_u64.to_be_bytes(), &[0; 8], piece]);
    let head = SnapshotHead { number: 1, last: [9; 32], issued: NOW, pieces: vec![(piece.len() as u32, digest)] };
    restore(&Signed::sign(&head, &signer()).expect("signed"), &[piece.to_vec()], &signer())
}

#[test]
fn what_a_snapshot_says_is_checked_though_it_is_signed() {
    let digest = [&[5][..], &[9; 32]].concat();
    let account = [&[2, 0, 0, 7, 0, 0, 0, 0, 1][..], b"x"].concat();
    let with = |records: &[&[u8]]| signed_over(&[&[1], &records.concat()[..]].concat());
    assert_eq!(with(&[&account, &digest]).expect("well made").accounts(), 1);
    let refused = |records: &[&[u8]]| with(records).err().expect("refused");
    assert_eq!(refused(&[&account]), SnapshotError::Last);
    let malformed = [[&account[..], &[77]].concat(), vec![1, 1, 0, 0, 0, 0, 0, 0, 0], account[..5].to_vec()];
    for record in malformed {
        assert!(matches!(refused(&[&record]), SnapshotError::Malformed { index: 0, .. }), "{record:?}");
    }
    let version = signed_over(&[&[2], &digest[..]].concat()).err();
    assert!(matches!(version, Some(SnapshotError::Malformed { index: 0, .. })), "{version:?}");
    let head = SnapshotHead { number: 1, last: [1; 32], issued: 0, pieces: vec![(1 << 20, [0; 32])] };
    assert!(Signed::sign(&head, &signer()).is_err(), "pieces are bounded");
}

#[test]
fn an_account_that_was_closed_and_opened_again_has_other_keys_also_from_its_rows() {
    let mut state = fresh();
    open(&mut state, 3, 5);
    let grant = ChangeBody::Grant(Grant { terms: terms(3, 0), not_before: NOW, not_after: NOW + 10 });
    apply(&mut state, grant.clone(), NOW);
    let old = state.find(&terms(3, 0)).and_then(|slot| state.key(slot).cloned()).expect("granted");
    apply(&mut state, ChangeBody::Close { principal: principal(3) }, NOW);
    for mut state in [reloaded(&state), state] {
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
        // Whose usage is whose is known, also from the rows alone.
        let reopened = [Reopening { principal: 3, at: later, generation: 5 }];
        assert_eq!(state.reopened(), reopened);
        assert_eq!(reloaded(&state).reopened(), reopened);
    }
}

#[test]
fn revocations_that_have_expired_are_left_out_and_lifting_one_stops_nobody() {
    let mut state = fresh();
    open(&mut state, 3, 0);
    let entry = revocation(3, 2, NOW);
    let expiry = entry.expires_at().expect("of an epoch");
    apply(&mut state, ChangeBody::Revoke(entry), NOW);
    assert_eq!(reloaded(&state).revocations().len(), 1);
    // As many changes as it takes until what was signed before counts no more: a clock that is ahead for a few drops nothing.
    for number in 1..=256 {
        assert_eq!(reloaded(&state).revocations().len(), 1, "{number}");
        let name = format!("renamed {number} times");
        apply(&mut state, ChangeBody::Account { principal: principal(3), generation: 0, name }, expiry);
    }
    let mut after = reloaded(&state);
    assert_eq!(after.revocations().len(), 0);
    // Who started before still has it, and takes it back: whoever began with the rows goes on.
    let lift = apply(&mut state, ChangeBody::Lift(entry), expiry + 1);
    assert_eq!(after.apply(&lift, &signer().verifying_key()), Ok(()));
    assert_eq!(after.sign(ChangeBody::Lift(entry), &signer(), unix(expiry)), Err(ChangeError::NotRevoked));
}

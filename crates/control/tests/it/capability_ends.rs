//! When capabilities end, and with them what was delegated.
//!
//! PLA, a delegation and its parent: it is renewed, shortened, withdrawn or given an end of its own: it ends with it, or sooner.
//! PLA, a reseller's churn: more delegations than an account has places for, ended by its orders or by their time: each is done.
//! PLA, a delegation that leaves, in every way that it can: its sources and limits leave too, and no secret of it is judged by wider ones.
//! PLA, an account that is closed: secrets that were looked up before, also of grants that were withdrawn: revoked; the number is given
//! to nobody as long as any could be good.

use wayleave_control::capability::*;
use wayleave_control::leases::Offline;
use wayleave_core::Now;
use wayleave_crypto::signed::Signed;
use wayleave_packet::platypus::header::{Interval, Marks};
use wayleave_packet::platypus::mint::epoch;
use wayleave_packet::platypus::revocation::Revocation;
use wayleave_packet::platypus::sources::Sources;

use super::capability::*;
use super::common::{NOW, at};
use super::rows::reloaded;

const DAY: u64 = 86_400;
const ENDED: Result<Obtained, LookupFailure> = Err(LookupFailure::Denied(Denial::Ended));

/// So many seconds after [`NOW`].
fn later(seconds: u64) -> Now {
    at(seconds)
}

fn until(server: &mut KeyServer, of: &Credential, not_after: u64, now: Now) {
    change(server, ChangeBody::Grant(Grant { terms: of.terms, not_before: 0, not_after }), now);
}

fn look_up(server: &mut KeyServer, credential: &Credential, now: Now) -> Result<Obtained, LookupFailure> {
    assert!(server.prepare(now.unix, u32::MAX));
    direct(server, credential, epoch::epoch_at(credential.terms.interval, now.unix), now).0
}

/// Gives an order, which must be looked at, and returns what became of it. Each has a number of its own.
fn status(server: &mut KeyServer, holder: &Credential, given: Order, number: u8, now: Now) -> Status {
    assert!(server.prepare(now.unix, u32::MAX));
    order(server, holder, given, number, now).expect("acknowledged").status
}

fn part(number: u32, until: Option<u64>) -> Order {
    Order::Delegate { id: id(number), prefix: prefix("203.0.113.0/24"), until }
}

fn of_part(holder: &Credential, number: u32) -> Credential {
    holder.delegate(delegated(&holder.terms, id(number), prefix("203.0.113.0/24")).expect("possible"))
}

#[test]
fn what_was_delegated_is_renewed_with_what_it_was_delegated_from() {
    let (mut server, whole) = one();
    until(&mut server, &whole, NOW + 10 * DAY, at(0));
    assert_eq!(status(&mut server, &whole, part(3, None), 1, at(0)), Status::Done);
    let delegate = of_part(&whole, 3);
    assert!(look_up(&mut server, &delegate, at(0)).is_ok());
    let after = later(11 * DAY);
    assert_eq!(look_up(&mut server, &delegate, after), ENDED);
    until(&mut server, &whole, NOW + 400 * DAY, after);
    assert!(look_up(&mut server, &delegate, after).is_ok());
    assert_eq!(look_up(&mut server, &delegate, later(401 * DAY)), ENDED);
}

#[test]
fn a_delegation_with_an_end_of_its_own_has_it_until_the_holder_says_another() {
    let (mut server, whole) = one();
    until(&mut server, &whole, NOW + 100 * DAY, at(0));
    let of = |end: u64| part(3, Some(NOW + end * DAY));
    assert_eq!(status(&mut server, &whole, of(10), 1, at(0)), Status::Done);
    let delegate = of_part(&whole, 3);
    assert_eq!(look_up(&mut server, &delegate, later(11 * DAY)), ENDED);
    // Ordered again it changes nothing, and with another end it has that, never beyond the holder's own.
    let number = server.state().number();
    assert_eq!(status(&mut server, &whole, of(10), 2, later(11 * DAY)), Status::NotAllowed, "it is past");
    assert_eq!(status(&mut server, &whole, of(20), 3, later(11 * DAY)), Status::Done);
    assert_eq!(status(&mut server, &whole, of(20), 4, later(12 * DAY)), Status::Done);
    assert_eq!(server.state().number(), number + 1);
    assert!(look_up(&mut server, &delegate, later(19 * DAY)).is_ok());
    assert_eq!(look_up(&mut server, &delegate, later(21 * DAY)), ENDED);
    assert_eq!(status(&mut server, &whole, part(3, None), 5, later(21 * DAY)), Status::Done);
    assert!(look_up(&mut server, &delegate, later(99 * DAY)).is_ok());
    assert_eq!(look_up(&mut server, &delegate, later(101 * DAY)), ENDED);
}

#[test]
fn what_stays_of_a_grant_that_is_withdrawn_ends_when_that_would_have() {
    let (mut server, whole) = one();
    until(&mut server, &whole, NOW + 10 * DAY, at(0));
    assert_eq!(status(&mut server, &whole, part(3, None), 1, at(0)), Status::Done);
    change(&mut server, ChangeBody::Withdraw(whole.terms), later(DAY));
    let delegate = of_part(&whole, 3);
    assert!(look_up(&mut server, &delegate, later(9 * DAY)).is_ok());
    assert_eq!(look_up(&mut server, &delegate, later(11 * DAY)), ENDED);
    // It can be written down.
    let again = reloaded(server.state());
    assert_eq!(again.grants(), 1);
}

#[test]
fn a_delegation_that_its_holder_withdraws_ends_with_its_branch_and_leaves_its_place() {
    let (mut server, whole) = one();
    let first = branch(&mut server, &whole, 7, u64::MAX);
    let second = branch(&mut server, &whole, 8, u64::MAX);
    assert_eq!(status(&mut server, &first, part(9, None), 1, at(0)), Status::Done);
    assert_eq!(status(&mut server, &second, part(9, None), 2, at(0)), Status::Done);
    let (own, others) = (of_part(&first, 9), of_part(&second, 9));
    let withdraw = |of: u32, sub: Option<u32>| Order::Withdraw { id: id(of), sub: sub.map(id) };
    // Nobody's but one's own.
    for (who, given, number) in
        [(&first, withdraw(8, None), 3), (&own, withdraw(7, None), 4), (&own, withdraw(8, Some(9)), 5)]
    {
        assert_eq!(status(&mut server, who, given, number, at(0)), Status::NotAllowed, "{given:?}");
    }
    let revoked = Order::RevokeDelegation { id: id(7), sub: None };
    assert_eq!(status(&mut server, &whole, revoked, 6, at(0)), Status::Done);
    assert_eq!(status(&mut server, &whole, withdraw(7, None), 7, at(0)), Status::Done);
    for gone in [&first, &own] {
        assert_eq!(look_up(&mut server, gone, at(0)), Err(LookupFailure::Unknown));
    }
    assert!(look_up(&mut server, &second, at(0)).is_ok() && look_up(&mut server, &others, at(0)).is_ok());
    // What was looked up before is revoked for as long as routers take it, and no longer.
    let now = epoch::epoch_at(whole.terms.interval, at(0).unix);
    let entries: Vec<Revocation> = server.state().revocations().copied().collect();
    let of = |epoch| Revocation {
        principal: whole.terms.principal,
        delegation: Some((id(7), None)),
        epoch: Some((whole.terms.interval, epoch)),
    };
    let lasting = Revocation { epoch: None, ..of(now) };
    assert_eq!(entries, [lasting, of(now - 1), of(now), of(now + 1)], "nobody lifts a revocation by this");
    // A second time there is nothing to do; a part of a branch goes alone.
    let number = server.state().number();
    assert_eq!(status(&mut server, &whole, withdraw(7, None), 8, at(0)), Status::Done);
    assert_eq!(server.state().number(), number);
    assert_eq!(status(&mut server, &second, withdraw(8, Some(9)), 9, at(0)), Status::Done);
    assert_eq!(look_up(&mut server, &others, at(0)), Err(LookupFailure::Unknown));
    assert!(look_up(&mut server, &second, at(0)).is_ok());
    // A delegate ends its own.
    assert_eq!(status(&mut server, &second, withdraw(8, None), 10, at(0)), Status::Done);
    assert_eq!(look_up(&mut server, &second, at(0)), Err(LookupFailure::Unknown));
    assert!(look_up(&mut server, &whole, at(0)).is_ok());
}

#[test]
fn a_reseller_that_withdraws_what_it_delegated_never_fills_its_account() {
    let (mut server, whole) = one();
    for number in 0..(MAX_GRANTS as u32 + 100) {
        let now = later(u64::from(number) * 2);
        let (given, withdrawn) = (part(number, None), Order::Withdraw { id: id(number), sub: None });
        assert_eq!(status(&mut server, &whole, given, 1, now), Status::Done, "{number}");
        assert_eq!(status(&mut server, &whole, withdrawn, 2, now), Status::Done, "{number}");
    }
    assert_eq!(server.state().grants(), 1);
}

#[test]
fn delegations_that_ended_long_ago_leave_their_places() {
    let (mut server, whole) = one();
    let places = MAX_GRANTS - OPERATOR_GRANTS - 1;
    for number in 0..places as u32 {
        let now = later(u64::from(number));
        assert_eq!(status(&mut server, &whole, part(number, Some(NOW + DAY)), 1, now), Status::Done, "{number}");
    }
    let full = later(places as u64);
    assert_eq!(status(&mut server, &whole, part(5_000, None), 1, full), Status::Full);
    // So long they are answered that they have ended; a clock that is wrong for less than some hundred changes forgets none.
    let soon = later(30 * DAY);
    assert_eq!(look_up(&mut server, &of_part(&whole, 1), soon), ENDED);
    let after = |seconds: u64| later(32 * DAY + seconds);
    assert_eq!(status(&mut server, &whole, part(5_000, None), 2, after(0)), Status::Full);
    for number in 0..256 {
        until(&mut server, &whole, NOW + 300 * DAY, after(number));
    }
    assert_eq!(status(&mut server, &whole, part(5_000, None), 3, after(300)), Status::Done);
    assert_eq!(server.state().grants(), 2);
    assert_eq!(look_up(&mut server, &of_part(&whole, 1), after(300)), Err(LookupFailure::Unknown));
    assert!(look_up(&mut server, &of_part(&whole, 5_000), after(300)).is_ok());
}

fn sources_of(number: u32, text: &str) -> Sources {
    let prefixes = vec![text.parse().expect("a prefix")];
    Sources { principal: principal(7), delegation: Some(id(number)), delegates_any: false, prefixes }
}

/// A delegation that ended long ago is granted again, with other terms: its sources leave with it, and those that are named with the new one
/// count.
#[test]
fn what_is_forgotten_takes_its_sources_along_and_none_that_are_named_with_what_has_its_number_next() {
    for named in [None, Some(sources_of(3, "192.0.2.0/24")), Some(sources_of(3, "198.18.0.0/24"))] {
        let (mut server, whole) = one();
        assert_eq!(status(&mut server, &whole, part(3, Some(NOW + DAY)), 1, later(0)), Status::Done);
        change(&mut server, ChangeBody::SetSources(sources_of(3, "198.18.0.0/24")), later(0));
        for number in 0..256 {
            until(&mut server, &whole, NOW + 300 * DAY, later(32 * DAY + number));
        }
        let terms = delegated(&whole.terms, id(3), "203.0.113.0/25".parse().expect("a prefix")).expect("possible");
        let again = ChangeBody::Grant(Grant { terms, not_before: 0, not_after: u64::MAX });
        let all = [Some(again), named.clone().map(ChangeBody::SetSources)].into_iter().flatten().collect();
        change(&mut server, ChangeBody::all_of(all).expect("some"), later(33 * DAY));
        assert!(server.state().sources().eq(&named));
        assert_eq!(server.state().grants(), 2, "the old one is forgotten");
        assert_eq!(server.state().revocations().len(), 0, "nothing of it is good");
    }
}

/// Revoked key epochs of delegation 3 and what is handed on from it: the present one of each length, that before and that after.
fn revoked_epochs(lengths: &[Interval], now: Now) -> Vec<Revocation> {
    let epochs = |interval: &Interval| {
        let current = epoch::epoch_at(*interval, now.unix);
        let interval = *interval;
        (current - 1..=current + 1).map(move |epoch| Revocation {
            principal: principal(7),
            delegation: Some((id(3), None)),
            epoch: Some((interval, epoch)),
        })
    };
    lengths.iter().flat_map(epochs).collect()
}

/// However a delegation leaves, its sources and limits leave with it, and no secret of it is judged by its principal's sources.
#[test]
fn a_delegation_that_leaves_takes_its_sources_along_and_its_secrets_are_good_no_more() {
    let short = interval(6);
    let by_holder =
        |holder: &Credential| ChangeBody::WithdrawDelegation { holder: holder.terms, delegation: (id(3), None) };
    let (server, whole) = one();
    drop(server);
    let of_provider = of_part(&whole, 3).terms;
    let kinds = [
        by_holder(&whole),
        ChangeBody::Withdraw(of_provider),
        ChangeBody::WithdrawBranch(of_provider),
        ChangeBody::WithdrawBranch(whole.terms),
    ];
    for withdrawn in kinds {
        // It is delegated at another waypoint too, with shorter epochs.
        let (mut server, whole) = one();
        let other = grant(&mut server, Terms { interval: short, waypoint: [198, 51, 100, 2].into(), ..terms(7) });
        assert_eq!(status(&mut server, &whole, part(3, None), 1, at(0)), Status::Done);
        assert_eq!(status(&mut server, &other, part(3, None), 2, at(0)), Status::Done);
        let sources = sources_of(3, "192.0.2.0/24");
        change(&mut server, ChangeBody::SetSources(sources.clone()), at(0));
        let limit = DelegationLimit { rate: None, month_octets: Some(1_000) };
        let payer = RatePayer { principal: principal(7), delegation: Some(id(3)) };
        change(&mut server, ChangeBody::LimitDelegation { payer, limit }, at(0));
        assert_eq!(server.state().marks_of(&of_part(&whole, 3).terms), Marks::BOUND);
        // There it leaves first: the number is still somebody's.
        change(&mut server, by_holder(&other), at(0));
        assert!(server.state().sources().eq([&sources]));
        assert_eq!((server.state().limit_of(&payer), server.state().revocations().len()), (limit, 0));
        // As whoever starts from the rows.
        let mut again = reloaded(server.state());
        let last = change(&mut server, withdrawn.clone(), at(1));
        again.apply(&last, &signer().verifying_key()).expect("the next");
        for state in [server.state(), &again] {
            assert_eq!(state.sources().len(), 0, "{withdrawn:?}");
            assert!(state.limit_of(&payer).is_empty(), "{withdrawn:?}");
            let revoked: Vec<Revocation> = state.revocations().copied().collect();
            assert_eq!(revoked, revoked_epochs(&[short, whole.terms.interval], at(1)), "{withdrawn:?}");
        }
    }
}

/// What has neither sources nor a volume is good until its key epochs have ended, as the guide says.
#[test]
fn a_delegation_without_sources_is_not_revoked_when_its_provider_withdraws_it() {
    let (mut server, whole) = one();
    assert_eq!(status(&mut server, &whole, part(3, None), 1, at(0)), Status::Done);
    change(&mut server, ChangeBody::Withdraw(of_part(&whole, 3).terms), at(0));
    assert_eq!(server.state().revocations().len(), 0);
    // One with a rate is: its secrets would have its principal's.
    assert_eq!(status(&mut server, &whole, part(4, None), 2, at(0)), Status::Done);
    let payer = RatePayer { principal: principal(7), delegation: Some(id(4)) };
    let rate = Some(RateTerms { rate: 1_000, burst: 0, offline: Offline::Decay });
    change(
        &mut server,
        ChangeBody::LimitDelegation { payer, limit: DelegationLimit { rate, month_octets: None } },
        at(0),
    );
    change(&mut server, ChangeBody::Withdraw(of_part(&whole, 4).terms), at(0));
    assert_eq!(server.state().revocations().len(), 3);
}

/// An account, a grant, its sources and what billing knows are made together, or none of them.
#[test]
fn several_changes_are_made_as_one_or_not_at_all() {
    let mut server = server_with(&[]);
    server.limit_intervals(interval(18));
    let terms = terms(7);
    let number = server.state().number();
    let sources = |text: &str| {
        let prefixes = vec![text.parse().expect("a prefix")];
        Sources { principal: principal(7), delegation: None, delegates_any: false, prefixes }
    };
    let account = ChangeBody::Account { principal: principal(7), generation: 1, name: "customer".into() };
    let grant = |not_after| ChangeBody::Grant(Grant { terms, not_before: NOW, not_after });
    let billing = |price: &str| ChangeBody::SetBilling {
        of: BillingSubject::grant(terms),
        billing: Billing { price: price.to_owned(), ..Billing::default() },
    };
    let named = ChangeBody::SetSources(sources("192.0.2.0/24"));
    let signed =
        |server: &KeyServer, bodies: Vec<ChangeBody>| server.sign(ChangeBody::Several(bodies), at(0).unix).map(drop);
    // Each is checked where those before it are made.
    let all = vec![account.clone(), grant(NOW + DAY), named.clone(), billing("gold")];
    assert_eq!(signed(&server, all[1..].to_vec()), Err(ChangeError::NoAccount(7)));
    assert_eq!(signed(&server, vec![account.clone(), billing("gold")]), Err(ChangeError::NoGrant));
    assert_eq!(signed(&server, vec![account.clone(), named.clone(), grant(NOW - 1)]), Err(ChangeError::Times));
    let long =
        ChangeBody::Grant(Grant { terms: Terms { interval: interval(24), ..terms }, not_before: NOW, not_after: NOW });
    assert!(matches!(signed(&server, vec![account.clone(), long]), Err(ChangeError::Interval { .. })));
    // Of one principal, and of these kinds alone.
    let other = ChangeBody::Account { principal: principal(8), generation: 1, name: "another".into() };
    for wrong in
        [vec![account.clone(), other], vec![account.clone(), ChangeBody::Close { principal: principal(7) }], vec![]]
    {
        assert_eq!(signed(&server, wrong), Err(ChangeError::Several));
    }
    assert_eq!((server.state().number(), server.state().accounts()), (number, 0), "nothing has changed");
    let made = change(&mut server, ChangeBody::Several(all), at(0));
    assert_eq!(Signed::<Change>::decode(made.octets()).expect("a change"), made);
    assert_eq!((server.state().number(), server.state().grants()), (number + 1, 1));
    assert!(server.state().sources().eq([&sources("192.0.2.0/24")]));
    assert_eq!(
        server.state().billing(&BillingSubject::grant(terms)).map(|held| held.present().price),
        Some("gold".into())
    );
    // It is answered at once, bound to its sources.
    let slot = server.state().find(&terms).expect("granted");
    let key = server.state().key(slot).expect("there").clone();
    let credential = Credential { zone: zone(), terms, key };
    let found = look_up(&mut server, &credential, at(0)).expect("a secret");
    assert_eq!(found.secret.capability.marks, Marks::BOUND);
}

/// Where a change lies in another one, nothing reads within it without end.
#[test]
fn several_changes_within_several_are_none() {
    let account = ChangeBody::Account { principal: principal(7), generation: 1, name: String::new() };
    for bodies in [vec![ChangeBody::Several(vec![account.clone()])], vec![account; MAX_SEVERAL + 1]] {
        let body = ChangeBody::Several(bodies);
        let object = Change { number: 1, previous: [0; 32], issued: NOW, body };
        let signed = Signed::sign(&object, &signer());
        assert!(signed.is_err() || Signed::<Change>::decode(signed.expect("signed").octets()).is_err());
    }
}

#[test]
fn what_the_holder_of_a_closed_account_looked_up_is_revoked_and_its_number_is_nobodys_until_that_has_ended() {
    for is_withdrawn_first in [false, true] {
        let (mut server, whole) = one();
        let narrow = grant(&mut server, Terms { interval: interval(6), ..terms(7) });
        if is_withdrawn_first {
            change(&mut server, ChangeBody::Withdraw(whole.terms), at(0));
            change(&mut server, ChangeBody::Withdraw(narrow.terms), at(0));
        }
        // Through the rows, as whoever starts now.
        let mut again = reloaded(server.state());
        let closed = change(&mut server, ChangeBody::Close { principal: principal(7) }, at(0));
        let entries: Vec<Revocation> = server.state().revocations().copied().collect();
        again.apply(&closed, &signer().verifying_key()).expect("the next");
        assert_eq!(again.revocations().copied().collect::<Vec<_>>(), entries);
        let epochs = |of: &Credential| {
            let now = epoch::epoch_at(of.terms.interval, at(0).unix);
            (now - 1..=now + 1).map(|epoch| (of.terms.interval, epoch)).collect::<Vec<_>>()
        };
        let revoked: Vec<_> = entries.iter().filter_map(|entry| entry.epoch).collect();
        assert_eq!(revoked, [epochs(&narrow), epochs(&whole)].concat());
        assert!(entries.iter().all(|entry| entry.principal == principal(7) && entry.delegation.is_none()));
        // Neither a new account nor an invitation gets the number.
        let generation = server.state().next_generation(principal(7));
        let open = || ChangeBody::Account { principal: principal(7), generation, name: "another".into() };
        let last = entries.iter().filter_map(Revocation::expires_at).max().expect("some");
        let refused = server.sign(open(), at(0).unix).err();
        assert_eq!(refused, Some(ChangeError::LatelyClosed { until: last, now: NOW }));
        let invitation = Invitation {
            id: InvitationId([1; 8]),
            key: [2; 32],
            name: "another".into(),
            lasts: 50,
            not_after: NOW + DAY,
            terms: vec![terms(7)],
        };
        change(&mut server, ChangeBody::Invite(invitation), at(0));
        let redeem = || ChangeBody::Redeem { invitation: InvitationId([1; 8]), holder: [3; 32] };
        let refused = server.sign(redeem(), at(0).unix).err();
        assert_eq!(refused, Some(ChangeError::LatelyClosed { until: last, now: NOW }));
        assert!(server.sign(redeem(), later(last - NOW).unix).is_ok());
        assert!(server.sign(open(), later(last - NOW - 1).unix).is_err());
        assert!(server.sign(open(), later(last - NOW).unix).is_ok());
        // It was a mistake: the revocations are lifted, and the number is its holder's again.
        entries.iter().for_each(|entry| {
            change(&mut server, ChangeBody::Lift(*entry), at(1));
        });
        change(&mut server, open(), at(1));
    }
}

#[test]
fn who_delegates_and_withdraws_without_end_fills_no_list_of_others() {
    let (mut server, _) = one();
    let whole = grant(&mut server, Terms { interval: interval(18), ..terms(7) });
    let mut number = 0;
    let full = loop {
        let now = later(u64::from(number));
        let given = part(number, None);
        assert_eq!(status(&mut server, &whole, given, 1, now), Status::Done, "{number}");
        let status = status(&mut server, &whole, Order::Withdraw { id: id(number), sub: None }, 2, now);
        if status != Status::Done {
            break status;
        }
        number += 1;
    };
    assert_eq!(full, Status::Full);
    assert!(server.state().revocations().len() <= MAX_REVOCATIONS / 256 + 3, "{}", server.state().revocations().len());
}

#[test]
fn nobody_lifts_by_withdrawing_what_another_has_revoked() {
    let (mut server, whole) = one();
    let reseller = branch(&mut server, &whole, 3, u64::MAX);
    assert_eq!(status(&mut server, &reseller, part(5, None), 1, at(0)), Status::Done);
    let thief = of_part(&reseller, 5);
    let revoked = Order::RevokeDelegation { id: id(3), sub: Some(id(5)) };
    assert_eq!(status(&mut server, &whole, revoked, 2, at(0)), Status::Done);
    let withdraw = Order::Withdraw { id: id(3), sub: Some(id(5)) };
    assert_eq!(status(&mut server, &reseller, withdraw, 3, at(0)), Status::Done);
    assert_eq!(status(&mut server, &reseller, part(5, None), 4, at(0)), Status::Done);
    for epochs in [0, 2, 9] {
        let denied = Err(LookupFailure::Denied(Denial::Revoked));
        assert_eq!(look_up(&mut server, &thief, later(epochs << 12)), denied);
    }
    // Nor does one who is revoked order anything.
    let all = Revocation { principal: principal(7), delegation: Some((id(3), None)), epoch: None };
    change(&mut server, ChangeBody::Revoke(all), at(1));
    assert_eq!(status(&mut server, &reseller, Order::Withdraw { id: id(3), sub: None }, 5, at(1)), Status::NotAllowed);
}

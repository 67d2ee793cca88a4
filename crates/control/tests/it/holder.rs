//! What a holder is told of its own capability: how it stands, what it used, what it delegated, what was refused to it.
//!
//! PLA, refusals: payers that nobody knows, endless counts, another owner of a number, a delegate: sums are bounded, and nobody learns
//! what others sent.
//! PLA, who asks for another's status, repeats a question or bends an answer: nobody but the holder reads one, each question is
//! answered once and not before it is known that the answer may go out, and no other answer is taken for it.

use std::net::IpAddr;

use wayleave_control::capability::*;
use wayleave_core::Now;
use wayleave_packet::platypus::mint::epoch;

use super::capability::*;
use super::common::{NOW, at};

/// An order of the holder's that asks for something.
fn asking(credential: &Credential, asked: Order, nonce: u8, now: Now) -> Ordering {
    let epoch = epoch::epoch_at(credential.terms.interval, now.unix);
    Ordering::new(credential.clone(), asked, [nonce; 4], epoch, now.unix)
}

/// What the server says to it by TCP.
fn ask(
    server: &mut KeyServer,
    credential: &Credential,
    asked: Order,
    nonce: u8,
    now: Now,
) -> Option<Result<HolderReport, Status>> {
    let ordering = asking(credential, asked, nonce, now);
    let answer = reply(server, &ordering.question(1), Transport::Tcp, now);
    ordering.read_report(&answer, 1).expect("an answer")
}

fn status(server: &mut KeyServer, credential: &Credential, nonce: u8, now: Now) -> CapabilityStatus {
    match ask(server, credential, Order::Status, nonce, now).expect("the holder").expect("answered").content {
        HolderContent::Status(status) => status,
        other => panic!("{other:?}"),
    }
}

fn page(server: &mut KeyServer, credential: &Credential, from: u32, nonce: u8, now: Now) -> DelegationPage {
    match ask(server, credential, Order::Delegations { from }, nonce, now)
        .expect("the holder")
        .expect("answered")
        .content
    {
        HolderContent::Delegations(page) => page,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_holder_learns_how_its_capability_stands_and_nobody_else_does() {
    let (mut server, credential) = one();
    let now = at(0);
    let rate = RateTerms { rate: 1_250_000, ..RateTerms::default() };
    change(
        &mut server,
        ChangeBody::SetRate { payer: RatePayer { principal: principal(7), delegation: None }, terms: rate },
        now,
    );
    let ordering = asking(&credential, Order::Status, 1, now);
    let question = ordering.question(1);
    // Without a cookie no answer is longer than its question: by UDP it is cut, and nothing is looked at.
    let cut = reply(&mut server, &question, Transport::Udp, now);
    assert!(cut.len() <= question.len());
    assert_eq!((ordering.read_report(&cut, 1), server.counters().truncated), (Ok(None), 1));
    let Served::Status(pending) = server.serve(&question, client(Transport::Tcp), now) else { panic!("a question") };
    assert_eq!(pending.grant.terms, credential.terms);
    let usage = HolderUsage { packets: 3, octets: 300, ..HolderUsage::default() };
    let answer = server.answer_status(&pending, Some(usage), now);
    let report = ordering.read_report(&answer, 1).expect("an answer").expect("the server's").expect("answered");
    assert_eq!((report.number, report.time), (server.state().number(), NOW));
    let HolderContent::Status(told) = report.content else { panic!("a status") };
    assert_eq!((told.rate, told.usage, told.denied, told.delegations), (Some(rate), Some(usage), None, 0));
    let grant = server.state().find(&credential.terms).and_then(|slot| server.state().grant(slot)).expect("granted");
    assert_eq!((told.not_before, told.not_after), (grant.not_before, grant.not_after));
    // The same question again has no second answer, and a later question is not answered by this one.
    let again = reply(&mut server, &question, Transport::Tcp, at(1));
    assert_eq!(ordering.read_report(&again, 1), Ok(Some(Err(Status::Busy))));
    let later = asking(&credential, Order::Status, 2, now);
    let other = Credential { key: MasterKey::new(wayleave_crypto::secret::Key128::new([9; 16])), ..credential.clone() };
    for (asked, of) in [(&later, 1), (&asking(&other, Order::Status, 1, now), 1)] {
        assert!(!matches!(asked.read_report(&answer, of), Ok(Some(_))), "another's answer");
    }
    let forged = asking(&other, Order::Status, 3, now).question(1);
    let before = server.counters().orders_forged;
    assert!(matches!(server.serve(&forged, client(Transport::Tcp), now), Served::Reply(_)));
    assert_eq!(server.counters().orders_forged, before + 1);
    // An old question is not answered at all.
    let old = asking(&credential, Order::Status, 4, now).question(1);
    let late = reply(&mut server, &old, Transport::Tcp, at(301));
    assert_eq!(asking(&credential, Order::Status, 4, now).read_report(&late, 1), Ok(Some(Err(Status::Clock))));
}

#[test]
fn an_answer_that_was_bent_is_none() {
    let (mut server, credential) = one();
    let ordering = asking(&credential, Order::Delegations { from: 0 }, 1, at(0));
    let answer = reply(&mut server, &ordering.question(1), Transport::Tcp, at(0));
    assert!(matches!(ordering.read_report(&answer, 1), Ok(Some(Ok(_)))));
    for octet in 0..answer.len() {
        let mut bent = answer.clone();
        bent[octet] ^= 1;
        let read = ordering.read_report(&bent, 1);
        // What lies around the answer, such as its TTL, is not under the seal.
        assert!(!matches!(read, Ok(Some(Err(_)))), "{octet}");
        if let Ok(Some(Ok(report))) = read {
            assert!(matches!(report.content, HolderContent::Delegations(DelegationPage { all: 0, .. })), "{octet}");
        }
    }
}

#[test]
fn a_capability_that_is_revoked_or_has_ended_says_so() {
    let (mut server, credential) = one();
    let until = |server: &mut KeyServer, not_after| {
        change(server, ChangeBody::Grant(Grant { terms: credential.terms, not_before: 0, not_after }), at(0));
    };
    until(&mut server, NOW - 1);
    assert_eq!(status(&mut server, &credential, 1, at(0)).denied, Some(Denial::Ended));
    until(&mut server, NOW + 86_400);
    assert_eq!(status(&mut server, &credential, 2, at(0)).denied, None);
    order(&mut server, &credential, Order::RevokeEpoch, 3, at(0)).expect("acknowledged");
    assert_eq!(status(&mut server, &credential, 4, at(0)).denied, Some(Denial::Revoked));
    change(&mut server, ChangeBody::Close { principal: principal(7) }, at(0));
    assert_eq!(ask(&mut server, &credential, Order::Status, 5, at(0)), None, "nobody holds it");
}

#[test]
fn a_holder_lists_what_it_delegated_and_a_delegate_what_it_handed_on() {
    let (mut server, credential) = one();
    let part = |number: u32| Order::Delegate { id: id(number), prefix: prefix("203.0.0.0/16"), until: None };
    for number in (1..=30).rev() {
        let done = order(&mut server, &credential, part(number), number as u8, at(0)).expect("acknowledged");
        assert_eq!(done.status, Status::Done);
    }
    let payer = RatePayer { principal: principal(7), delegation: Some(id(3)) };
    let rate = RateTerms { rate: 1_000_000, ..RateTerms::default() };
    change(&mut server, ChangeBody::SetRate { payer, terms: rate }, at(0));
    let terms = delegated(&credential.terms, id(3), prefix("203.0.0.0/16")).expect("possible");
    let delegate = credential.delegate(terms);
    assert!(server.prepare(at(0).unix, u32::MAX));
    let on = Order::Delegate { id: id(9), prefix: prefix("203.0.113.0/24"), until: Some(NOW + 60) };
    assert_eq!(order(&mut server, &delegate, on, 40, at(0)).expect("acknowledged").status, Status::Done);
    let revoked = Order::RevokeDelegation { id: id(5), sub: None };
    order(&mut server, &credential, revoked, 41, at(0)).expect("acknowledged");

    let now = at(61);
    let (mut all, mut nonce) = (Vec::new(), 50);
    while all.len() < 31 {
        let page = page(&mut server, &credential, all.len() as u32, nonce, now);
        assert_eq!((page.all, page.from as usize), (31, all.len()));
        all.extend(page.delegations);
        nonce += 1;
    }
    assert_eq!(nonce, 54, "ten on a page");
    let numbers: Vec<u32> = all.iter().filter(|held| held.id.1.is_none()).map(|held| held.id.0.number()).collect();
    assert_eq!(numbers, (1..=30).collect::<Vec<_>>());
    assert_eq!((all[2].rate, all[3].id, all[3].rate), (Some(rate), (id(3), Some(id(9))), Some(rate)));
    assert_eq!((all[3].prefix, all[3].not_after), (prefix("203.0.113.0/24"), NOW + 60));
    let denied: Vec<_> = all.iter().filter_map(|held| Some((held.id.0.number(), held.denied?))).collect();
    assert_eq!(denied, [(3, Denial::Ended), (5, Denial::Revoked)]);
    // The delegate sees its own part, and what bounds it.
    let own = page(&mut server, &delegate, 0, 60, now);
    assert_eq!((own.all, own.delegations[0].id), (1, (id(3), Some(id(9)))));
    let told = status(&mut server, &delegate, 61, now);
    assert_eq!((told.delegations, told.rate), (1, Some(rate)));
    assert_eq!(status(&mut server, &credential, 62, now).delegations, 31);
    // Behind the last there is nothing.
    let behind = page(&mut server, &credential, u32::MAX, 63, now);
    assert_eq!((behind.all, behind.delegations.len()), (31, 0));
}

/// The account of principal 7 at routers: its delegation and sub-delegation or zeros, in the key epoch of 4,096 s at `NOW` + `secs`.
fn account(delegation: Option<u8>, sub: Option<u8>, secs: u64) -> ChargedAccount {
    let flags = 4 | u8::from(delegation.is_some()) | u8::from(sub.is_some()) << 1;
    let [a, b, c, d] = (((NOW + secs) >> 12) as u32).to_be_bytes();
    let (id, sub) = (delegation.unwrap_or(0), sub.unwrap_or(0));
    ChargedAccount([0, 0, 7, flags, 0, 0, id, 0, 0, sub, 12, a, b, c, d])
}

#[test]
fn usage_is_that_of_the_holder_and_not_of_who_had_the_number_before() {
    let root = terms(7);
    let three = delegated(&root, id(3), prefix("203.0.0.0/16")).expect("possible");
    let nine = delegated(&three, id(9), prefix("203.0.113.0/24")).expect("possible");
    let month = 40 * 86_400;
    let charged = [
        (account(None, None, 0), 1),
        (account(None, None, month), 10),
        (account(Some(3), None, month), 100),
        (account(Some(3), Some(9), month), 1_000),
        (account(Some(4), Some(9), month), 10_000),
        (account(None, None, month).sum(0), 100_000),
        (account(None, None, month).folded(), 1_000_000),
        (ChargedAccount([0, 0, 8, 4, 0, 0, 0, 0, 0, 0, 12, 0, 6, 26, 128]), 10_000_000),
    ];
    let sum = |terms: &Terms, periods: &AccountPeriods| {
        let mut usage = HolderUsage::default();
        for (account, octets) in &charged {
            usage.add(terms, (account, Usage { packets: 1, octets: *octets }), periods, at(month).unix);
        }
        (usage.octets, usage.month_octets)
    };
    let none = AccountPeriods::default();
    assert_eq!(sum(&root, &none), (111_111, 111_110));
    assert_eq!(sum(&three, &none), (1_100, 1_100));
    assert_eq!(sum(&nine, &none), (1_000, 1_000));
    // The number got another owner before the last month: the sum of the first owner is not this one's.
    let reopened = [Reopening { principal: 7, at: NOW + month - 86_400, generation: 1 }];
    assert_eq!(sum(&root, &reopened.into_iter().collect()), (11_110, 11_110));
    assert_eq!(sum(&Terms { waypoint: IpAddr::from([198, 51, 100, 2]), ..nine }, &none), (1_000, 1_000));
}

fn limit(number: u32, rate: u64) -> Order {
    let rate = (rate > 0).then(|| RateTerms { rate, ..RateTerms::default() });
    Order::Limit { id: id(number), limit: DelegationLimit { rate, month_octets: None } }
}

/// PLA, a holder that limits: its own delegations alone, never beyond what the operator set, and without taking others' places.
#[test]
fn a_holder_limits_its_own_delegations_and_never_beyond_the_operators_rate() {
    let (mut server, credential) = one();
    open_account(&mut server, 8);
    let other = grant(&mut server, terms(8));
    let mut nonce = 0;
    let mut give = |server: &mut KeyServer, holder: &Credential, given: Order| {
        nonce += 1;
        assert!(server.prepare(at(0).unix, u32::MAX));
        order(server, holder, given, nonce, at(u64::from(nonce))).expect("acknowledged").status
    };
    let part = |number: u32| Order::Delegate { id: id(number), prefix: prefix("203.0.0.0/16"), until: None };
    assert_eq!(give(&mut server, &credential, limit(3, 1_000)), Status::NotAllowed, "there is no such delegation");
    assert_eq!(give(&mut server, &credential, part(3)), Status::Done);
    let payer = RatePayer { principal: principal(7), delegation: Some(id(3)) };
    assert_eq!(give(&mut server, &other, limit(3, 1_000)), Status::NotAllowed, "another principal's");
    let delegate = credential.delegate(delegated(&credential.terms, id(3), prefix("203.0.0.0/16")).expect("possible"));
    assert_eq!(give(&mut server, &delegate, limit(3, 9_000)), Status::NotAllowed, "its own");
    let unsound = RateTerms { rate: 1_000, burst: 10, ..RateTerms::default() };
    let unsound = Order::Limit { id: id(3), limit: DelegationLimit { rate: Some(unsound), month_octets: None } };
    assert_eq!(give(&mut server, &credential, unsound), Status::NotAllowed);

    assert_eq!(give(&mut server, &credential, limit(3, 1_000)), Status::Done);
    let number = server.state().number();
    assert_eq!(give(&mut server, &credential, limit(3, 1_000)), Status::Done);
    assert_eq!(server.state().number(), number, "nothing has changed");
    let rate = |server: &KeyServer| server.state().shared_rates().get(&payer).map(|terms| terms.rate);
    assert_eq!(rate(&server), Some(1_000));
    // The operator's rate of the delegation stays, whatever the holder says.
    let set = ChangeBody::SetRate { payer, terms: RateTerms { rate: 500, burst: 3_000, ..RateTerms::default() } };
    change(&mut server, set, at(0));
    assert_eq!(rate(&server), Some(500));
    assert_eq!(give(&mut server, &credential, limit(3, 200)), Status::Done);
    assert_eq!((rate(&server), server.state().rate_of(&payer).map(|terms| terms.burst)), (Some(200), Some(3_000)));
    assert_eq!(give(&mut server, &credential, limit(3, 0)), Status::Done);
    assert_eq!(rate(&server), Some(500));
    assert_eq!(give(&mut server, &credential, limit(3, 0)), Status::Done, "there is none");
    change(&mut server, ChangeBody::EndRate(payer), at(0));

    // A delegation that is withdrawn takes its limit along.
    assert_eq!(give(&mut server, &credential, limit(3, 1_000)), Status::Done);
    assert_eq!(give(&mut server, &credential, Order::Withdraw { id: id(3), sub: None }), Status::Done);
    assert_eq!((rate(&server), server.state().limit_of(&payer)), (None, DelegationLimit::default()));

    // One principal limits a few, and leaves space to others and to the operator.
    for number in 0..PRINCIPAL_LIMITS as u32 {
        assert_eq!(give(&mut server, &credential, part(100 + number)), Status::Done);
        assert_eq!(give(&mut server, &credential, limit(100 + number, 1_000)), Status::Done);
    }
    assert_eq!(give(&mut server, &credential, part(200)), Status::Done);
    assert_eq!(give(&mut server, &credential, limit(200, 1_000)), Status::Full);
    assert_eq!(give(&mut server, &credential, limit(100, 2_000)), Status::Done, "it is changed");
    assert_eq!(give(&mut server, &other, part(1)), Status::Done);
    assert_eq!(give(&mut server, &other, limit(1, 1_000)), Status::Done);
    // All are gone with the account.
    change(&mut server, ChangeBody::Close { principal: principal(7) }, at(0));
    assert_eq!(server.state().shared_rates().len(), 1);
}

/// PLA, a delegate that sends on: once its volume of the month is used up it gets no secrets and what it has is revoked, and its principal and
/// other delegates know nothing of it.
#[test]
fn a_delegation_whose_volume_is_used_up_is_refused_until_its_holder_raises_it() {
    let (mut server, credential) = one();
    // Answers by datagrams have a rate.
    let second = std::cell::Cell::new(0);
    let tick = || at(second.replace(second.get() + 1));
    let mut nonce = 0;
    let mut give = |server: &mut KeyServer, given: Order| {
        nonce += 1;
        let now = tick();
        assert!(server.prepare(now.unix, u32::MAX));
        order(server, &credential, given, nonce, now).expect("acknowledged").status
    };
    let part = |number: u32| Order::Delegate { id: id(number), prefix: prefix("203.0.0.0/16"), until: None };
    let volume = |number: u32, octets: u64| Order::Limit {
        id: id(number),
        limit: DelegationLimit { rate: None, month_octets: Some(octets) },
    };
    assert_eq!((give(&mut server, part(3)), give(&mut server, part(4))), (Status::Done, Status::Done));
    assert_eq!(give(&mut server, volume(3, 0)), Status::NotAllowed, "to let nothing pass, it is revoked");
    assert_eq!(give(&mut server, volume(3, 1_000)), Status::Done);
    let payer = RatePayer { principal: principal(7), delegation: Some(id(3)) };
    assert_eq!(server.state().quota(principal(7)), None, "its principal has none");
    assert_eq!(
        server.state().volume(&payer).map(|status| status.is_newly_used_up(Month::of(NOW).begin(), 1_000)),
        Some(true)
    );
    let [delegate, other] = [3, 4].map(|number| {
        credential.delegate(delegated(&credential.terms, id(number), prefix("203.0.0.0/16")).expect("possible"))
    });
    let epoch = epoch::epoch_at(credential.terms.interval, at(0).unix);
    let denied = |server: &mut KeyServer| {
        [&credential, &delegate, &other].map(|holder| direct(server, holder, epoch, tick()).0.err())
    };
    assert_eq!(denied(&mut server), [None, None, None]);
    change(&mut server, ChangeBody::UseUpQuota { payer, month: Month::of(NOW).begin() }, at(0));
    let used_up = Some(LookupFailure::Denied(Denial::UsedUp));
    assert_eq!(denied(&mut server), [None, used_up, None]);
    let listed: Vec<_> = server.state().listed(NOW).collect();
    assert_eq!(listed.len(), 3);
    assert!(listed.iter().all(|entry| entry.delegation == Some((id(3), None))));
    let page = page(&mut server, &credential, 0, 90, tick());
    let shown: Vec<_> = page.delegations.iter().map(|held| (held.month_octets, held.denied)).collect();
    assert_eq!(shown, [(Some(1_000), Some(Denial::UsedUp)), (None, None)]);
    assert_eq!(status(&mut server, &delegate, 91, tick()).month_octets, Some(1_000));
    // A rate beside it changes nothing of that, and more octets do.
    let both = |octets: u64| Order::Limit {
        id: id(3),
        limit: DelegationLimit {
            rate: Some(RateTerms { rate: 1_000, ..RateTerms::default() }),
            month_octets: Some(octets),
        },
    };
    assert_eq!((give(&mut server, both(1_000)), denied(&mut server)), (Status::Done, [None, used_up, None]));
    assert_eq!((give(&mut server, both(1_001)), denied(&mut server)), (Status::Done, [None, None, None]));
    assert_eq!(server.state().listed(NOW).count(), 0);
    assert_eq!(give(&mut server, limit(3, 0)), Status::Done);
    assert_eq!((server.state().volumes().count(), server.state().shared_rates().len()), (0, 0));
}

fn refused(principals: &[(u32, &[(RefusalReason, u64)])], secs: u64) -> RefusalReport {
    let of = |(number, packets): &(u32, &[(RefusalReason, u64)])| PayerRefusals {
        principal: principal(*number),
        packets: packets.to_vec(),
    };
    RefusalReport { secs, payers: principals.iter().map(of).collect() }
}

/// What the holder is told of refusals.
fn refusals(server: &mut KeyServer, credential: &Credential, nonce: u8, now: Now) -> HeldRefusals {
    match ask(server, credential, Order::Refusals, nonce, now).expect("the holder").expect("answered").content {
        HolderContent::Refusals(refusals) => refusals,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_holder_sees_what_routers_refused_to_it_and_a_router_that_starts_again_counts_from_zero() {
    use RefusalReason::{Rate, Replayed, Revoked};
    let (mut server, credential) = one();
    assert_eq!(refusals(&mut server, &credential, 1, at(0)), HeldRefusals::default(), "no router reports");
    server.take_refusals(10, refused(&[(7, &[(Revoked, 3), (Rate, 40)]), (8, &[(Rate, 999)])], 60), at(0).unix);
    server.take_refusals(20, refused(&[(7, &[(Replayed, 5), (Rate, 2)])], 100), at(1).unix);
    let told = refusals(&mut server, &credential, 2, at(2));
    let packets = vec![(Revoked, 3), (Replayed, 5), (Rate, 42)];
    assert_eq!(told, HeldRefusals { routers: 2, since: NOW - 99, as_of: NOW, packets });
    // Reported again with what came since, and not in addition.
    server.take_refusals(10, refused(&[(7, &[(Revoked, 3), (Rate, 50)])], 65), at(5).unix);
    let told = refusals(&mut server, &credential, 3, at(6));
    let packets = vec![(Revoked, 3), (Replayed, 5), (Rate, 52)];
    assert_eq!(told, HeldRefusals { routers: 2, since: NOW - 99, as_of: NOW + 1, packets });
    // Both start again, one has refused nothing since.
    server.take_refusals(10, refused(&[], 1), at(10).unix);
    server.take_refusals(20, refused(&[(7, &[(Rate, 1)])], 2), at(10).unix);
    let told = refusals(&mut server, &credential, 4, at(11));
    assert_eq!(told, HeldRefusals { routers: 2, since: NOW + 8, as_of: NOW + 10, packets: vec![(Rate, 1)] });
    // A router that is no longer configured.
    server.retain_refusals(&[10].into());
    let told = refusals(&mut server, &credential, 5, at(12));
    assert_eq!(told, HeldRefusals { routers: 1, since: NOW + 9, as_of: NOW + 10, packets: Vec::new() });
}

/// PLA, refusals: payers that nobody knows, and counts beyond every number.
#[test]
fn payers_that_the_state_does_not_know_are_not_kept_and_sums_are_bounded() {
    let (mut server, credential) = one();
    let all: Vec<(RefusalReason, u64)> = RefusalReason::ALL.map(|reason| (reason, u64::MAX)).to_vec();
    let unknown = refused(&[(7, &all), (9, &all), ((1 << 24) - 1, &all)], u64::MAX);
    for router in 0..=300 {
        server.take_refusals(router, unknown.clone(), at(0).unix);
    }
    // What is longest fits the answer.
    let told = refusals(&mut server, &credential, 1, at(0));
    assert_eq!(told, HeldRefusals { routers: 301, since: 0, as_of: NOW, packets: all });
    // An account that is opened later begins without what was said of its number.
    open_account(&mut server, 9);
    assert_eq!(server.refusals_of(principal(9)).packets, []);
}

/// PLA, refusals: a number that gets another owner, and a delegate that asks: nobody learns what others sent.
#[test]
fn what_was_refused_is_told_to_no_later_owner_of_the_number_and_to_no_delegate() {
    let (mut server, credential) = one();
    let part = Order::Delegate { id: id(3), prefix: prefix("203.0.0.0/16"), until: None };
    assert_eq!(order(&mut server, &credential, part, 1, at(0)).expect("acknowledged").status, Status::Done);
    assert!(server.prepare(at(0).unix, u32::MAX));
    server.take_refusals(10, refused(&[(7, &[(RefusalReason::Revoked, 3)])], 60), at(0).unix);
    let delegate = credential.delegate(delegated(&credential.terms, id(3), prefix("203.0.0.0/16")).expect("possible"));
    assert_eq!(ask(&mut server, &delegate, Order::Refusals, 2, at(1)), Some(Err(Status::NotAllowed)));

    change(&mut server, ChangeBody::Close { principal: principal(7) }, at(10));
    let generation = server.state().next_generation(principal(7));
    let again = ChangeBody::Account { principal: principal(7), generation, name: "another".to_owned() };
    change(&mut server, again, at(20_000));
    let opened = server.state().reopened().last().expect("another owner").at;
    let now = |secs: u64| at(opened + secs - NOW).unix;
    server.take_refusals(10, refused(&[(7, &[(RefusalReason::Revoked, 4)])], opened - NOW + 65), now(5));
    assert_eq!(server.refusals_of(principal(7)), HeldRefusals::default(), "counted since before");
    server.take_refusals(10, refused(&[(7, &[(RefusalReason::Rate, 1)])], 2), now(9));
    assert_eq!(server.refusals_of(principal(7)).packets, [(RefusalReason::Rate, 1)]);
}

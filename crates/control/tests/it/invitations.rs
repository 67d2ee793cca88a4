//! Invitations: redeemed once, by who holds them, in one change; repeated by the same holder; refused to everybody else.
//!
//! PLA, invitations: redeemed twice, by two holders; forged, expired, withdrawn, with a wrong clock; the account closed
//! or its keys replaced: one holder, all or nothing, the same again for that holder alone; refused.

use std::path::Path;

use proptest::prelude::*;
use serde_json::Value;
use wayleave_control::capability::*;
use wayleave_core::{Now, UnixTime};
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::Signed;
use wayleave_packet::platypus::header::Delegation;

use super::capability::{change, id, principal, provider, server_with, signer, terms, zone};
use super::common::{at, seed};

const DAY: u64 = 86_400;
const LASTS: u64 = 30 * DAY;

fn line(number: u8) -> InvitationLine {
    InvitationLine {
        url: "https://keys.example.net:8495".parse().expect("an address"),
        pin: [3; 32],
        id: InvitationId([number; 8]),
        secret: Seed::new([number; 32]),
        not_after: at(0).unix.secs() + DAY,
    }
}

fn invitation(line: &InvitationLine, terms: Vec<Terms>) -> Invitation {
    let (id, key, not_after) = (line.id, line.key(), line.not_after);
    Invitation { id, key, name: "customer".to_owned(), lasts: LASTS, not_after, terms }
}

fn holder(number: u64) -> SigningKey {
    SigningKey::from_seed(&seed(40, number as u32))
}

/// Makes a new redemption durable.
fn redeem(
    server: &mut KeyServer,
    request: &RedemptionRequest,
    now: Now,
) -> Result<Vec<(Credential, u64)>, RedemptionRefusal> {
    if let Redemption::New(body) = server.state().redemption(request, now.unix)? {
        change(server, body, now);
    }
    server.state().invited(request.id, &zone())
}

#[test]
fn an_invitation_opens_the_account_and_grants_in_one_change_and_its_holder_may_repeat_it() {
    let mut server = server_with(&[]);
    let line = line(1);
    let delegated = Delegation { prefix: "203.0.113.0/24".parse().expect("a prefix"), id: id(3), sub: None };
    let all = vec![terms(7), Terms { delegation: Some(delegated), ..terms(7) }];
    change(&mut server, ChangeBody::Invite(invitation(&line, all.clone())), at(0));
    assert_eq!((server.state().accounts(), server.state().grants()), (0, 0));
    let (number, request) = (server.state().number(), line.redeem(&holder(1), at(1).unix));
    let given = redeem(&mut server, &request, at(1)).expect("redeemed");
    assert_eq!(server.state().number(), number + 1);
    assert_eq!((server.state().accounts(), server.state().grants()), (1, 2));
    let (name, generation) = server.state().account(principal(7)).expect("an account");
    assert_eq!(name, "customer");
    for ((credential, until), terms) in given.iter().zip(all) {
        assert_eq!((credential.terms, *until), (terms, at(1).unix.secs() + LASTS));
        assert_eq!(credential.key, provider().account(principal(7), generation).master(&terms));
    }
    // The answer was lost: the same again, at any time, and no further change.
    let later = at(1 + 2 * DAY);
    assert_eq!(redeem(&mut server, &line.redeem(&holder(1), later.unix), later), Ok(given));
    assert_eq!(server.state().number(), number + 1);
    // Somebody else who has the line.
    let stranger = line.redeem(&holder(2), at(2).unix);
    assert_eq!(redeem(&mut server, &stranger, at(2)), Err(RedemptionRefusal::Used));
    assert!(server.sign(ChangeBody::Redeem { invitation: line.id, holder: [9; 32] }, at(2).unix).is_err());
}

#[test]
fn who_does_not_hold_an_invitation_learns_nothing_of_it() {
    let mut server = server_with(&[]);
    let line = line(1);
    let good = line.redeem(&holder(1), at(0).unix);
    let unknown = Err(RedemptionRefusal::Unknown);
    assert_eq!(redeem(&mut server, &good, at(0)), unknown);
    change(&mut server, ChangeBody::Invite(invitation(&line, vec![terms(7)])), at(0));
    let other = InvitationLine { secret: Seed::new([9; 32]), ..line.clone() };
    let with_another_holder = line.redeem(&holder(2), at(0).unix);
    let forged = [
        RedemptionRequest { proof: [0; 64], ..good },
        RedemptionRequest { possession: [0; 64], ..good },
        RedemptionRequest { proof: good.possession, possession: good.proof, ..good },
        RedemptionRequest { time: good.time + 1, ..good },
        RedemptionRequest { holder: with_another_holder.holder, ..good },
        // The one-time key signed, and the holder is another's.
        RedemptionRequest { possession: good.possession, ..with_another_holder },
        RedemptionRequest { id: InvitationId([2; 8]), ..good },
        RedemptionRequest { holder: [0; 32], ..good },
        other.redeem(&holder(1), at(0).unix),
    ];
    for request in forged {
        assert_eq!(redeem(&mut server, &request, at(0)), unknown, "{request:?}");
    }
    // Also once it was used, withdrawn or has expired.
    change(&mut server, ChangeBody::Uninvite(line.id), at(0));
    for request in forged {
        assert_eq!(redeem(&mut server, &request, at(DAY * 2)), unknown, "{request:?}");
    }
    assert_eq!(server.state().accounts(), 0);
}

#[test]
fn what_has_expired_was_withdrawn_or_has_a_wrong_clock_is_refused() {
    let mut server = server_with(&[]);
    let [first, second] = [line(1), line(2)];
    for line in [&first, &second] {
        change(&mut server, ChangeBody::Invite(invitation(line, vec![terms(7)])), at(0));
    }
    let refused = |server: &mut KeyServer, line: &InvitationLine, requested: u64, now: u64| {
        redeem(server, &line.redeem(&holder(1), at(requested).unix), at(now)).expect_err("refused")
    };
    assert_eq!(refused(&mut server, &first, 0, WINDOW + 1), RedemptionRefusal::Clock);
    assert_eq!(refused(&mut server, &first, WINDOW + 1, 0), RedemptionRefusal::Clock);
    assert_eq!(refused(&mut server, &first, DAY + 1, DAY + 1), RedemptionRefusal::Expired);
    change(&mut server, ChangeBody::Uninvite(second.id), at(0));
    assert_eq!(refused(&mut server, &second, 0, 0), RedemptionRefusal::Withdrawn);
    let error = |server: &KeyServer, body| server.sign(body, at(0).unix).expect_err("refused");
    assert_eq!(error(&server, ChangeBody::Uninvite(second.id)), InvitationError::Withdrawn.into());
    assert_eq!(error(&server, ChangeBody::Uninvite(InvitationId([5; 8]))), InvitationError::Unknown.into());
    assert!(redeem(&mut server, &first.redeem(&holder(1), at(DAY).unix), at(DAY)).is_ok(), "at the last second");
    assert_eq!(error(&server, ChangeBody::Uninvite(first.id)), InvitationError::Used.into());
}

#[test]
fn a_closed_account_takes_its_invitations_with_it_and_its_keys_never_return() {
    let mut server = server_with(&[]);
    let [first, second, third] = [line(1), line(2), line(3)];
    for line in [&first, &second] {
        change(&mut server, ChangeBody::Invite(invitation(line, vec![terms(7)])), at(0));
    }
    let request = first.redeem(&holder(1), at(0).unix);
    let given = redeem(&mut server, &request, at(0)).expect("redeemed");
    change(&mut server, ChangeBody::Close { principal: principal(7) }, at(1));
    assert_eq!(redeem(&mut server, &request, at(1)), Err(RedemptionRefusal::Gone));
    let open = second.redeem(&holder(1), at(1).unix);
    assert_eq!(redeem(&mut server, &open, at(1)), Err(RedemptionRefusal::Withdrawn));
    // As long as any secret of the old account may be good, nobody gets its number; a request may be repeated until then.
    change(&mut server, ChangeBody::Invite(invitation(&third, vec![terms(7)])), at(2));
    let early = redeem(&mut server, &third.redeem(&holder(3), at(2).unix), at(2));
    assert_eq!(early, Err(RedemptionRefusal::TooSoon));
    let later = at(4 << 12);
    // A new account of the same number has other keys, and the old invitation does not give them.
    let again = redeem(&mut server, &third.redeem(&holder(3), later.unix), later).expect("redeemed");
    assert_ne!(again[0].0.key, given[0].0.key);
    assert_eq!(redeem(&mut server, &first.redeem(&holder(1), later.unix), later), Err(RedemptionRefusal::Gone));
    // Neither does it give keys that replaced those that it gave.
    let generation = server.state().next_generation(principal(7));
    let body = ChangeBody::Account { principal: principal(7), generation, name: "customer".to_owned() };
    change(&mut server, body, later);
    assert_eq!(redeem(&mut server, &third.redeem(&holder(3), later.unix), later), Err(RedemptionRefusal::Gone));
}

#[test]
fn a_redemption_never_shortens_what_is_granted() {
    let mut server = server_with(&[]);
    let body = ChangeBody::Account { principal: principal(7), generation: 0, name: "first".to_owned() };
    change(&mut server, body, at(0));
    let held = Grant { terms: terms(7), not_before: 5, not_after: u64::MAX };
    change(&mut server, ChangeBody::Grant(held), at(0));
    change(&mut server, ChangeBody::Invite(invitation(&line(1), vec![terms(7)])), at(0));
    let given = redeem(&mut server, &line(1).redeem(&holder(1), at(0).unix), at(0)).expect("redeemed");
    assert_eq!(given[0].1, u64::MAX);
    assert_eq!(server.state().grants_of(principal(7)).collect::<Vec<_>>(), [held]);
    assert_eq!(server.state().account(principal(7)), Some(("first", 0)), "an account keeps its name and keys");
}

#[test]
fn a_redeemed_delegation_is_said_to_end_with_what_it_was_delegated_from() {
    let mut server = server_with(&[]);
    let end = at(0).unix.secs() + DAY;
    let delegated = Delegation { prefix: "203.0.113.0/24".parse().expect("a prefix"), id: id(3), sub: None };
    let part = Terms { delegation: Some(delegated), ..terms(7) };
    change(&mut server, ChangeBody::Account { principal: principal(7), generation: 1, name: String::new() }, at(0));
    change(&mut server, ChangeBody::Grant(Grant { terms: terms(7), not_before: 0, not_after: end }), at(0));
    change(&mut server, ChangeBody::Invite(invitation(&line(1), vec![part])), at(0));
    let given = redeem(&mut server, &line(1).redeem(&holder(1), at(1).unix), at(1)).expect("redeemed");
    assert_eq!(given[0].1, end);
}

#[test]
fn an_invitation_that_cannot_be_redeemed_is_not_made() {
    let mut server = server_with(&[]);
    let good = invitation(&line(1), vec![terms(7)]);
    let error =
        |server: &KeyServer, invitation| server.sign(ChangeBody::Invite(invitation), at(0).unix).expect_err("refused");
    for terms in [vec![], vec![terms(7), terms(7)], vec![terms(7), terms(8)], vec![terms(7); MAX_INVITED + 1]] {
        assert_eq!(error(&server, Invitation { terms, ..good.clone() }), InvitationError::Terms.into());
    }
    for name in ["x".repeat(MAX_NAME + 1), "line\nbreak".to_owned(), "é".to_owned()] {
        assert_eq!(error(&server, Invitation { name, ..good.clone() }), InvitationError::Terms.into());
    }
    change(&mut server, ChangeBody::Invite(good.clone()), at(0));
    assert_eq!(error(&server, good), InvitationError::Twice.into());
}

#[test]
fn invitations_are_forgotten_a_while_after_they_expired() {
    let mut server = server_with(&[]);
    change(&mut server, ChangeBody::Invite(invitation(&line(1), vec![terms(7)])), at(0));
    let until = line(1).not_after + REMEMBERED - at(0).unix.secs();
    let next = |number, second| Invitation { not_after: u64::MAX, ..invitation(&line(number), vec![terms(second)]) };
    change(&mut server, ChangeBody::Invite(next(2, 8)), at(until));
    assert_eq!(server.state().invitations().len(), 2);
    change(&mut server, ChangeBody::Invite(next(3, 9)), at(until + 1));
    assert_eq!(server.state().invitations().len(), 2);
    assert!(server.state().invitation(line(1).id).is_none());
}

/// Whoever has the first line, used or stolen, holds nothing when the same request is sent again.
#[test]
fn the_same_request_makes_another_key_once_its_invitation_is_forgotten() {
    let mut server = server_with(&[]);
    let (key, content) = ([5; 32], [6; 32]);
    let made = |server: &KeyServer, not_after| {
        let (id, secret) = server.state().names_of_request(&key, &content, not_after);
        InvitationLine { id, secret, not_after, ..line(1) }
    };
    let first = made(&server, line(1).not_after);
    change(&mut server, ChangeBody::Invite(invitation(&first, vec![terms(7)])), at(0));
    let (held, _) = server.state().invitation_of_request(&key).expect("it is remembered");
    assert_eq!((held.key, made(&server, held.not_after).key()), (first.key(), first.key()), "a repeat has the same");
    let request = first.redeem(&holder(1), at(1).unix);
    redeem(&mut server, &request, at(1)).expect("redeemed");
    let forgotten = at(first.not_after + REMEMBERED + 1 - at(0).unix.secs());
    change(&mut server, ChangeBody::Invite(invitation(&line(2), vec![terms(8)])), forgotten);
    assert!(server.state().invitation_of_request(&key).is_none());
    let second = made(&server, forgotten.unix.secs() + DAY);
    change(&mut server, ChangeBody::Invite(invitation(&second, vec![terms(7)])), forgotten);
    let by_another = |line: &InvitationLine| line.redeem(&holder(2), forgotten.unix);
    assert_eq!(redeem(&mut server, &by_another(&first), forgotten), Err(RedemptionRefusal::Unknown));
    assert!(redeem(&mut server, &by_another(&second), forgotten).is_ok());
}

#[test]
fn a_replica_follows_invitations_and_gives_the_same_and_takes_no_redemption_that_the_writer_could_not_sign() {
    let (mut writer, mut replica) = (server_with(&[]), server_with(&[]));
    let mut changes = vec![change(&mut writer, ChangeBody::Invite(invitation(&line(1), vec![terms(7)])), at(0))];
    let request = line(1).redeem(&holder(1), at(0).unix);
    let Ok(Redemption::New(body)) = writer.state().redemption(&request, at(0).unix) else { panic!("a new one") };
    changes.push(change(&mut writer, body.clone(), at(0)));
    for change in &changes {
        let read = Signed::<Change>::decode(change.octets()).expect("it reads back");
        replica.apply(&read).expect("the next");
    }
    assert_eq!(replica.state().invited(line(1).id, &zone()), writer.state().invited(line(1).id, &zone()));
    // Signed by the writer's key, and not possible: an expired invitation is not redeemed by replay either.
    let mut late = server_with(&[]);
    late.apply(&changes[0]).expect("the next");
    let issued = line(1).not_after + 1;
    let previous = changes[0].digest();
    let late_change = Signed::sign(&Change { number: 2, previous, issued, body }, &signer()).expect("signed");
    assert_eq!(late.apply(&late_change), Err(InvitationError::Expired.into()));
}

#[test]
fn pages_of_very_many_accounts_have_each_once_however_the_numbers_lie() {
    let key = signer();
    let mut state = State::new(provider());
    let numbers: Vec<u32> = (0..66_000).map(|number| number * 251).chain([(1 << 24) - 1]).collect();
    for number in &numbers {
        let body = ChangeBody::Account { principal: principal(*number), generation: 0, name: String::new() };
        let change = state.sign(body, &key, at(0).unix).expect("possible");
        state.apply(&change, &key.verifying_key()).expect("the next");
    }
    let (mut found, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let (page, next) = state.accounts_after(after, 500);
        assert!(page.len() <= 500);
        found.extend(page.into_iter().map(|principal| principal.number()));
        pages += 1;
        match next {
            None => break,
            next => after = next,
        }
    }
    assert_eq!(found, numbers);
    assert!(pages < 300, "{pages}");
}

/// `test-data/wire/invitations.py` makes these from the page alone, and shares no code with the program.
#[test]
fn lines_redemptions_and_changes_are_as_an_independent_program_makes_them() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/wire/invitations.json");
    #[allow(clippy::disallowed_methods, reason = "a test reads its data")]
    let text = std::fs::read_to_string(path).expect("there");
    let published: Value = serde_json::from_str(&text).expect("JSON");
    let text = |of: &str| published[of].as_str().expect("a text");
    let octets = |of: &str| -> Vec<u8> {
        let digits = text(of);
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex")).collect()
    };
    let array = |of: &str| <[u8; 32]>::try_from(octets(of)).expect("32 octets");
    let line: InvitationLine = text("line").parse().expect("an invitation");
    assert_eq!((line.url.as_str(), line.id.to_string().as_str()), (text("url"), text("id")));
    assert_eq!((line.pin, line.secret.expose()), (array("pin"), &array("secret")));
    assert_eq!(line.expose(), text("line"));
    let now = UnixTime(published["time"].as_u64().expect("seconds") * 1_000_000);
    let request = line.redeem(&SigningKey::from_seed(&Seed::new(array("holder"))), now);
    assert_eq!((request.proof.to_vec(), request.possession.to_vec()), (octets("proof"), octets("possession")));
    let writer = SigningKey::from_seed(&Seed::new(array("writer")));
    let state = || State::new(provider());
    let mut of = state();
    let mut made = Vec::new();
    for kind in ["invite", "redeem"] {
        let change = Signed::<Change>::decode(&octets(kind)).expect("a change");
        of.apply(&change, &writer.verifying_key()).expect("the next");
        made.push(change.object().clone());
    }
    assert_eq!((of.accounts(), of.grants()), (1, 2));
    assert_eq!(of.redemption(&request, now), Ok(Redemption::Repeated));
    let mut other = state();
    for kind in ["invite", "withdraw"] {
        let change = Signed::<Change>::decode(&octets(kind)).expect("a change");
        other.apply(&change, &writer.verifying_key()).expect("the next");
    }
    assert_eq!(other.redemption(&request, now), Err(RedemptionRefusal::Withdrawn));
    let signed = Signed::sign(&made[0], &writer).expect("signed");
    assert_eq!(signed.octets().to_vec(), octets("invite"));
}

proptest! {
    #[test]
    fn a_line_reads_back_and_no_changed_one_does(secret: [u8; 32], id: [u8; 8], not_after: u64, at: usize, to in 0u8..64) {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let line = InvitationLine { secret: Seed::new(secret), id: InvitationId(id), not_after, ..line(1) };
        let text = line.expose();
        prop_assert!(text.bytes().all(|octet| octet.is_ascii_graphic()));
        prop_assert_eq!(text.parse::<InvitationLine>(), Ok(line));
        let at = INVITATION_PREFIX.len() + at % (text.len() - INVITATION_PREFIX.len());
        let mut changed = text.clone().into_bytes();
        changed[at] = DIGITS[usize::from(to)];
        let changed = String::from_utf8(changed).expect("ASCII");
        prop_assert!(changed == text || changed.parse::<InvitationLine>().is_err());
        prop_assert!(text[..at].parse::<InvitationLine>().is_err());
    }

    #[test]
    fn redemptions_of_many_holders_leave_one(order in prop::collection::vec((0u64..4, 0u64..400), 1..20)) {
        let mut server = server_with(&[]);
        change(&mut server, ChangeBody::Invite(invitation(&line(1), vec![terms(7)])), at(0));
        let mut winner = None;
        for (who, second) in order {
            let request = line(1).redeem(&holder(who), at(second).unix);
            let outcome = redeem(&mut server, &request, at(second));
            match winner {
                Some(winner) if winner != who => prop_assert_eq!(outcome, Err(RedemptionRefusal::Used)),
                _ => { prop_assert!(outcome.is_ok()); winner = Some(who); }
            }
            prop_assert_eq!((server.state().accounts(), server.state().grants(), server.state().number()), (1, 1, 2));
        }
    }
}

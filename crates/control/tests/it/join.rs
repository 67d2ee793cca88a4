//! Joining a realm by an invitation.
//!
//! ICC, join: a token used twice, by two at once, after a restart, without records; forged, cut, withdrawn, expired
//! ones: one node is admitted; refused with the reason.
//! ICC, renewal: a node that was removed, is no member, whose name another has: its renewal is refused with the reason.

use std::str::FromStr;

use wayleave_control::realm::{
    InviteError, Invitee, JoinError, JoinRequest, Membership, NodeKeys, Registrar, RegistrarEvent, RegistrarInput,
    RegistrarOutput, Token, TokenError,
};
use wayleave_control::store::{Record, Store};
use wayleave_core::Machine;
use wayleave_crypto::signed::Signed;

use super::common::*;

fn invitee(node: u32) -> Invitee {
    let grants = membership(node).grants;
    Invitee { grants, not_after: NOW + 3_600, membership: 86_400, servers: vec![server(900)] }
}

fn keys(node: u32) -> NodeKeys {
    NodeKeys { identity: identity_key(node), noise: noise(node) }
}

fn registrar() -> Registrar {
    Registrar::new(realm_key(0), Store::New, at(0).unix)
}

type Answer = Result<Signed<Membership>, JoinError>;

/// Gives the machine a request; returns what it wants stored and what it answers.
fn ask(
    registrar: &mut Registrar,
    request: &Signed<JoinRequest>,
    secs: u64,
) -> (Option<(u64, Vec<Record>)>, Option<Answer>) {
    registrar.handle(RegistrarInput::Join { link: 1, request: 2, octets: request.octets().clone() }, at(secs));
    split(drain(registrar))
}

fn split(outputs: Vec<RegistrarOutput>) -> (Option<(u64, Vec<Record>)>, Option<Answer>) {
    let (mut persist, mut reply) = (None, None);
    for output in outputs {
        match output {
            RegistrarOutput::Persist { id, records } => persist = Some((id, records)),
            RegistrarOutput::Reply { link: 1, request: 2, answer } => reply = Some(answer),
            RegistrarOutput::Reply { .. } => panic!("to another"),
            RegistrarOutput::Invited { .. } | RegistrarOutput::Event(_) => {}
        }
    }
    (persist, reply)
}

/// The whole exchange.
fn join(registrar: &mut Registrar, token: &Token, node: u32) -> (Vec<Record>, Answer) {
    match ask(registrar, &token.join(&keys(node)).expect("in order"), 1) {
        (None, Some(answer)) => (Vec::new(), answer),
        (Some((id, records)), None) => {
            registrar.handle(RegistrarInput::Persisted(id), at(1));
            (records, split(drain(registrar)).1.expect("answered once it is stored"))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_node_joins_with_one_line_and_gets_what_was_promised() {
    let mut registrar = registrar();
    let token = registrar.invite(invitee(7), seed(9, 1), at(0).unix).expect("in order");
    let line = token.expose();
    assert!(!line.contains(char::is_whitespace));
    let token = Token::from_str(&format!("  {line}\n")).expect("the line");
    let (records, answer) = join(&mut registrar, &token, 7);
    assert_eq!(records.len(), 2);
    let membership = token.accept(&keys(7), answer.expect("admitted").octets(), at(1).unix).expect("as promised");
    let object = membership.object();
    assert_eq!((object.identity, &object.grants), (identity(7), &invitee(7).grants));
    assert_eq!(object.not_after, NOW + 1 + 86_400);
    assert_eq!(registrar.members().count(), 1);
    // A secret has no printable form.
    assert!(!format!("{token:?}").contains(&line[20..40]));
}

#[test]
fn a_token_works_once_and_its_own_node_gets_the_same_answer_again() {
    let mut registrar = registrar();
    let token = registrar.invite(invitee(7), seed(9, 1), at(0).unix).expect("in order");
    let (_, first) = join(&mut registrar, &token, 7);
    let first = first.expect("admitted");
    assert_eq!(join(&mut registrar, &token, 7).1, Ok(first));
    assert_eq!(join(&mut registrar, &token, 8).1, Err(JoinError::Used));
    // The same identity with another Noise key is another node.
    let other = NodeKeys { identity: identity_key(7), noise: noise(8) };
    assert_eq!(ask(&mut registrar, &token.join(&other).expect("in order"), 1).1, Some(Err(JoinError::Used)));
}

#[test]
fn of_two_nodes_that_come_together_one_is_admitted() {
    let mut registrar = registrar();
    let token = registrar.invite(invitee(7), seed(9, 1), at(0).unix).expect("in order");
    let (first, none) = ask(&mut registrar, &token.join(&keys(7)).expect("in order"), 1);
    assert_eq!(none, None);
    // Before the first is stored.
    assert_eq!(ask(&mut registrar, &token.join(&keys(8)).expect("in order"), 1), (None, Some(Err(JoinError::Used))));
    assert_eq!(ask(&mut registrar, &token.join(&keys(7)).expect("in order"), 1), (None, Some(Err(JoinError::Busy))));
    registrar.handle(RegistrarInput::Persisted(first.expect("stored").0), at(1));
    assert!(split(drain(&mut registrar)).1.expect("answered").is_ok());
}

#[test]
fn a_token_that_was_used_before_a_restart_is_not_good_after_it() {
    let mut before = registrar();
    let token = before.invite(invitee(7), seed(9, 1), at(0).unix).expect("in order");
    let (records, _) = join(&mut before, &token, 7);
    let mut kept = Registrar::new(realm_key(0), Store::Kept(records), at(10).unix);
    assert_eq!(join(&mut kept, &token, 8).1, Err(JoinError::Used));
    assert!(join(&mut kept, &token, 7).1.is_ok());
    // Without its records nobody knows: invitations from before are not good any longer, new ones are.
    let mut lost = Registrar::new(realm_key(0), Store::Lost, at(10).unix);
    assert_eq!(join(&mut lost, &token, 8).1, Err(JoinError::RecordsLost));
    let token = lost.invite(invitee(8), seed(9, 2), at(11).unix).expect("in order");
    assert!(join(&mut lost, &token, 8).1.is_ok());
}

#[test]
fn expired_withdrawn_foreign_and_taken_invitations_are_refused_with_the_reason() {
    let mut registrar = registrar();
    let token = registrar.invite(invitee(7), seed(9, 1), at(0).unix).expect("in order");
    let request = token.join(&keys(7)).expect("in order");
    assert_eq!(ask(&mut registrar, &request, 3_601).1, Some(Err(JoinError::Expired)));
    registrar.handle(RegistrarInput::Withdraw(token.invitation().key), at(1));
    drain(&mut registrar);
    assert_eq!(ask(&mut registrar, &request, 2).1, Some(Err(JoinError::Withdrawn)));
    let foreign = Registrar::new(realm_key(1), Store::New, at(0).unix);
    let foreign = foreign.invite(invitee(7), seed(9, 1), at(0).unix).expect("in order");
    assert_eq!(join(&mut registrar, &foreign, 7).1, Err(JoinError::Realm));
    // Two invitations for one name: the first to join has it.
    let invite = |registrar: &Registrar, number| registrar.invite(invitee(9), seed(9, number), at(0).unix);
    let (a, b) = (invite(&registrar, 3).expect("free"), invite(&registrar, 4).expect("free"));
    assert!(join(&mut registrar, &a, 9).1.is_ok());
    assert_eq!(join(&mut registrar, &b, 10).1, Err(JoinError::Taken));
    assert_eq!(invite(&registrar, 5).err(), Some(InviteError::Name(name("n9"), identity(9))));
    let again = Invitee { grants: membership(11).grants, ..invitee(11) };
    let again = registrar.invite(again, seed(9, 6), at(0).unix).expect("free");
    assert_eq!(join(&mut registrar, &again, 9).1, Err(JoinError::Member));
}

#[test]
fn nobody_joins_with_anothers_identity_or_without_the_one_time_key() {
    let mut registrar = registrar();
    let token = registrar.invite(invitee(7), seed(9, 1), at(0).unix).expect("in order");
    let honest = token.join(&keys(7)).expect("in order");
    // Another identity and Noise key in the request, under the one-time key.
    let mut theirs = honest.object().clone();
    theirs.identity = identity(8);
    let theirs = Signed::sign(&theirs, &wayleave_crypto::sign::SigningKey::from_seed(&seed(9, 1))).expect("in order");
    assert_eq!(ask(&mut registrar, &theirs, 1).1, Some(Err(JoinError::Identity)));
    let mut noise_key = honest.object().clone();
    noise_key.noise = noise(8).public();
    let noise_key =
        Signed::sign(&noise_key, &wayleave_crypto::sign::SigningKey::from_seed(&seed(9, 1))).expect("in order");
    assert_eq!(ask(&mut registrar, &noise_key, 1).1, Some(Err(JoinError::Identity)));
    let outsider = Signed::sign(honest.object(), &identity_key(7)).expect("in order");
    assert_eq!(ask(&mut registrar, &outsider, 1).1, Some(Err(JoinError::OneTimeKey)));
    assert_eq!(registrar.members().count(), 0);
}

#[test]
fn a_changed_or_cut_line_is_no_token() {
    let registrar = registrar();
    let line = registrar.invite(invitee(7), seed(9, 1), at(0).unix).expect("in order").expose();
    for at in 0..line.len() {
        let mut other = line.clone().into_bytes();
        other[at] = if other[at] == b'A' { b'B' } else { b'A' };
        assert!(Token::from_str(std::str::from_utf8(&other).expect("ASCII")).is_err(), "character {at}");
        assert!(Token::from_str(&line[..at]).is_err(), "{at} characters");
    }
    assert_eq!(Token::from_str("").err(), Some(TokenError::Text));
}

#[test]
fn a_node_believes_no_membership_but_its_own_as_promised_by_its_realm() {
    let mut registrar = registrar();
    let token = registrar.invite(invitee(7), seed(9, 1), at(0).unix).expect("in order");
    let answer = join(&mut registrar, &token, 7).1.expect("admitted");
    let accept = |membership: &Membership, realm: u32| {
        let signed = Signed::sign(membership, &realm_key(realm)).expect("in order");
        token.accept(&keys(7), signed.octets(), at(1).unix).err()
    };
    let honest = answer.object().clone();
    assert_eq!(accept(&honest, 0), None);
    assert_eq!(accept(&honest, 1), Some(JoinError::Realm));
    assert_eq!(accept(&Membership { identity: identity(8), ..honest.clone() }, 0), Some(JoinError::Identity));
    assert_eq!(accept(&Membership { noise: noise(8).public(), ..honest.clone() }, 0), Some(JoinError::Identity));
    assert_eq!(accept(&Membership { grants: membership(8).grants, ..honest.clone() }, 0), Some(JoinError::Grants));
    assert_eq!(
        accept(&Membership { not_before: NOW - 10, not_after: NOW, ..honest.clone() }, 0),
        Some(JoinError::Expired)
    );
    assert_eq!(accept(&Membership { realm: realm(1), ..honest }, 0), Some(JoinError::Realm));
}

#[test]
fn a_revoked_node_never_joins_again_and_lists_are_numbered_on() {
    let mut registrar = registrar();
    let token = registrar.invite(invitee(7), seed(9, 1), at(0).unix).expect("in order");
    join(&mut registrar, &token, 7).1.expect("admitted");
    let mut number = 0;
    let mut revoke = |registrar: &mut Registrar, node: u32, secs| {
        registrar.handle(RegistrarInput::Revoke(identity(node)), at(secs));
        let (persist, _) = split(drain(registrar));
        registrar.handle(RegistrarInput::Persisted(persist.expect("stored").0), at(secs));
        let list = drain(registrar).into_iter().find_map(|output| match output {
            RegistrarOutput::Event(RegistrarEvent::Revoked(list)) => Some(list),
            _ => None,
        });
        let list = list.expect("handed out once it is stored");
        assert!(list.object().number > number);
        number = list.object().number;
        list
    };
    assert!(revoke(&mut registrar, 7, 2).object().has(&identity(7)));
    let list = revoke(&mut registrar, 8, 2);
    assert!(list.object().has(&identity(7)) && list.object().has(&identity(8)));
    // A list of a registrar that lost its records has a higher number still, by the clock.
    let mut lost = Registrar::new(realm_key(0), Store::Lost, at(9).unix);
    revoke(&mut lost, 9, 10);
    let token = registrar.invite(invitee(20), seed(9, 2), at(3).unix).expect("in order");
    assert_eq!(join(&mut registrar, &token, 7).1, Err(JoinError::Revoked));
    registrar.handle(RegistrarInput::Renew(identity(7), 100), at(4));
    assert_eq!(drain(&mut registrar), [RegistrarOutput::Event(RegistrarEvent::Failed("the node is revoked"))]);
}

#[test]
fn a_renewed_membership_has_a_higher_number_and_the_same_grants() {
    let mut registrar = registrar();
    let token = registrar.invite(invitee(7), seed(9, 1), at(0).unix).expect("in order");
    let first = join(&mut registrar, &token, 7).1.expect("admitted");
    registrar.handle(RegistrarInput::Renew(identity(7), 500), at(100));
    let (persist, _) = split(drain(&mut registrar));
    registrar.handle(RegistrarInput::Persisted(persist.expect("stored").0), at(100));
    let [RegistrarOutput::Event(RegistrarEvent::Renewed(renewed))] = &drain(&mut registrar)[..] else { panic!() };
    assert!(renewed.object().number > first.object().number);
    assert_eq!(renewed.object().grants, first.object().grants);
    assert_eq!(renewed.object().not_after, NOW + 600);
    assert!(renewed.object().holds(NOW + 50), "where the clock is behind the operator's");
}

/// A membership that the registrar's operator orders, once it is stored.
fn order(registrar: &mut Registrar, node: u32, lasts: u64, secs: u64) -> Signed<Membership> {
    registrar.handle(RegistrarInput::Renew(identity(node), lasts), at(secs));
    let (persist, _) = split(drain(registrar));
    registrar.handle(RegistrarInput::Persisted(persist.expect("stored").0), at(secs));
    let [RegistrarOutput::Event(RegistrarEvent::Renewed(renewed))] = &drain(registrar)[..] else { panic!() };
    renewed.clone()
}

#[test]
fn a_removed_node_stays_on_the_list_while_any_of_its_memberships_lasts() {
    const DAY: u64 = 86_400;
    let mut registrar = registrar();
    let long = Invitee { membership: 100 * DAY, ..invitee(7) };
    let token = registrar.invite(long, seed(9, 1), at(0).unix).expect("in order");
    join(&mut registrar, &token, 7).1.expect("admitted");
    // Nobody fetches this one: what servers hold is the one before, which lasts longer.
    order(&mut registrar, 7, DAY, 2);
    let mut list = |node: u32, secs: u64| {
        registrar.handle(RegistrarInput::Revoke(identity(node)), at(secs));
        let (persist, _) = split(drain(&mut registrar));
        registrar.handle(RegistrarInput::Persisted(persist.expect("stored").0), at(secs));
        let outputs = drain(&mut registrar).into_iter();
        let mut lists = outputs.filter_map(|output| match output {
            RegistrarOutput::Event(RegistrarEvent::Revoked(list)) => Some(list),
            _ => None,
        });
        lists.next().expect("handed out once it is stored")
    };
    list(7, 3);
    assert!(list(8, 3 * DAY).object().has(&identity(7)));
    assert!(!list(9, 102 * DAY).object().has(&identity(7)));
}

#[test]
fn what_is_signed_from_old_records_is_newer_than_what_the_member_has() {
    let mut registrar = registrar();
    let token = registrar.invite(invitee(7), seed(9, 1), at(0).unix).expect("in order");
    let (records, answer) = join(&mut registrar, &token, 7);
    answer.expect("admitted");
    let of_member = order(&mut registrar, 7, 500, 1_000);
    let mut old = Registrar::new(realm_key(0), Store::Kept(records), at(2_000).unix);
    assert!(order(&mut old, 7, 500, 2_000).object().number > of_member.object().number);
}

/// A node asks for a membership later than `number`.
fn renew(registrar: &mut Registrar, node: u32, number: u64, secs: u64) -> Answer {
    let peer = identity(node);
    registrar.handle(RegistrarInput::Renewal { link: 1, request: 2, peer, number }, at(secs));
    match split(drain(registrar)) {
        (None, answer) => answer.expect("an answer"),
        (Some((id, _)), answer) => {
            assert!(answer.is_none(), "nothing is answered before it is stored");
            registrar.handle(RegistrarInput::Persisted(id), at(secs));
            split(drain(registrar)).1.expect("answered once it is stored")
        }
    }
}

#[test]
fn a_node_gets_its_next_membership_once_half_of_its_time_is_over_and_as_often_as_it_asks_the_same() {
    let mut registrar = registrar();
    let token = registrar.invite(invitee(7), seed(9, 1), at(0).unix).expect("in order");
    let first = join(&mut registrar, &token, 7).1.expect("admitted");
    // 86,400 seconds from second 1: too early, nothing is signed anew.
    assert_eq!(renew(&mut registrar, 7, 1, 43_000), Ok(first.clone()));
    let second = renew(&mut registrar, 7, 1, 43_300).expect("renewed");
    let (before, object) = (first.object(), second.object());
    let number = NOW + 43_300;
    assert_eq!((object.number, &object.grants, &object.noise), (number, &before.grants, &before.noise));
    assert_eq!((object.not_before, object.not_after), (NOW + 43_300, NOW + 43_300 + 86_400));
    assert!(second.verify(&realm(0).0).is_ok());
    // Its answer was lost, say.
    assert_eq!(renew(&mut registrar, 7, 1, 43_301), Ok(second.clone()));
    assert_eq!(renew(&mut registrar, 7, number, 43_301), Ok(second));
    // Until its last second, and not after it, though nobody else has its name.
    let last = 43_300 + 86_400;
    assert_eq!(renew(&mut registrar, 7, number, last).expect("renewed").object().number, NOW + last);
    let (number, last) = (NOW + last, last + 86_400);
    assert_eq!(renew(&mut registrar, 7, number, last + 1), Err(JoinError::Expired));
    assert_eq!(renew(&mut registrar, 7, 2, last + 1), Err(JoinError::Expired));
    // The operator may order it.
    registrar.handle(RegistrarInput::Renew(identity(7), 100), at(last + 2));
    let (persist, _) = split(drain(&mut registrar));
    registrar.handle(RegistrarInput::Persisted(persist.expect("stored").0), at(last + 2));
    drain(&mut registrar);
    assert!(renew(&mut registrar, 7, number, last + 3).expect("the ordered one").object().number > number);
}

#[test]
fn who_was_removed_is_no_member_or_has_lost_its_name_gets_no_later_membership_and_is_told_why() {
    let mut registrar = registrar();
    let token = registrar.invite(invitee(7), seed(9, 1), at(0).unix).expect("in order");
    join(&mut registrar, &token, 7).1.expect("admitted");
    assert_eq!(renew(&mut registrar, 8, 1, 43_300), Err(JoinError::NotMember));
    registrar.set_renews(false);
    assert_eq!(renew(&mut registrar, 7, 1, 43_300), Err(JoinError::ByHand));
    // An order of the operator counts all the same.
    registrar.handle(RegistrarInput::Renew(identity(7), 100), at(43_300));
    let (persist, _) = split(drain(&mut registrar));
    registrar.handle(RegistrarInput::Persisted(persist.expect("stored").0), at(43_300));
    drain(&mut registrar);
    assert!(renew(&mut registrar, 7, 1, 43_301).expect("the ordered one").object().number > 1);
    registrar.set_renews(true);
    // Its membership ended, and another node has its name since.
    let again = Invitee { not_after: NOW + 60_000, ..invitee(7) };
    let token = registrar.invite(again, seed(9, 2), at(50_000).unix).expect("the name is free");
    let request = token.join(&keys(9)).expect("in order");
    registrar.handle(RegistrarInput::Join { link: 1, request: 2, octets: request.octets().clone() }, at(50_001));
    let (persist, _) = split(drain(&mut registrar));
    registrar.handle(RegistrarInput::Persisted(persist.expect("admitted").0), at(50_001));
    drain(&mut registrar);
    assert_eq!(renew(&mut registrar, 7, 2, 50_002), Err(JoinError::Expired));
    registrar.handle(RegistrarInput::Renew(identity(7), 100), at(50_002));
    let taken = RegistrarEvent::Failed("another member has one of the node's names or prefixes");
    assert_eq!(drain(&mut registrar), [RegistrarOutput::Event(taken)]);
    registrar.handle(RegistrarInput::Revoke(identity(9)), at(50_003));
    drain(&mut registrar);
    assert_eq!(renew(&mut registrar, 9, 1, 150_000), Err(JoinError::Revoked));
}

/// A day after its memberships have ended, with one that it may have got since these records were copied, a removed node needs no entry of
/// the list any more: it is no member, and never is one again.
#[test]
fn the_list_of_removed_nodes_has_those_whose_memberships_last_and_none_of_the_others_returns() {
    let mut registrar = registrar();
    let mut stored = Vec::new();
    for node in 7..10 {
        let token = registrar.invite(invitee(node), seed(9, node), at(0).unix).expect("in order");
        stored.extend(join(&mut registrar, &token, node).0);
    }
    let mut revoke = |registrar: &mut Registrar, node: u32, secs| {
        registrar.handle(RegistrarInput::Revoke(identity(node)), at(secs));
        let (persist, _) = split(drain(registrar));
        let (id, records) = persist.expect("stored");
        registrar.handle(RegistrarInput::Persisted(id), at(secs));
        drain(registrar);
        stored.extend(records);
        registrar.revocations().expect("a list").object().clone()
    };
    revoke(&mut registrar, 7, 2);
    // Of a node that never was a member nobody knows when it would end.
    revoke(&mut registrar, 50, 3);
    let list = revoke(&mut registrar, 8, 86_401 + 86_399);
    assert_eq!([7, 8, 9, 50].map(|node| list.has(&identity(node))), [true, true, false, true]);
    let next = revoke(&mut registrar, 9, 86_402 + 86_401);
    assert_eq!([7, 8, 9, 50].map(|node| next.has(&identity(node))), [false, true, true, true]);
    assert!(next.number > list.number);
    let kept = Registrar::new(realm_key(0), Store::Kept(stored), at(200_000).unix);
    for mut registrar in [registrar, kept] {
        for node in [7, 9] {
            registrar.handle(RegistrarInput::Renew(identity(node), 100), at(200_000));
            let failed = RegistrarEvent::Failed("the node is revoked");
            assert_eq!(drain(&mut registrar), [RegistrarOutput::Event(failed)]);
            assert_eq!(renew(&mut registrar, node, 1, 200_000), Err(JoinError::Revoked));
        }
    }
}

/// Who has another's Noise key would be taken for it by every gateway.
#[test]
fn a_noise_key_that_a_live_member_has_is_refused_to_others() {
    let mut registrar = registrar();
    let token = registrar.invite(invitee(7), seed(9, 1), at(0).unix).expect("in order");
    join(&mut registrar, &token, 7).1.expect("admitted");
    let token = registrar.invite(invitee(8), seed(9, 2), at(0).unix).expect("in order");
    let theirs = NodeKeys { noise: keys(7).noise, ..keys(8) };
    let request = token.join(&theirs).expect("in order");
    let (stored, answer) = ask(&mut registrar, &request, 2);
    assert_eq!((stored, answer), (None, Some(Err(JoinError::NoiseTaken))));
    // It is free once its holder is no member, and its holder gets no later membership then.
    let token = registrar.invite(Invitee { not_after: NOW + 90_000, ..invitee(8) }, seed(9, 3), at(0).unix);
    let (stored, _) = ask(&mut registrar, &token.expect("in order").join(&theirs).expect("in order"), 86_402);
    registrar.handle(RegistrarInput::Persisted(stored.expect("admitted").0), at(86_402));
    drain(&mut registrar);
    registrar.handle(RegistrarInput::Renew(identity(7), 100), at(86_403));
    let failed = RegistrarEvent::Failed("another member has the node's Noise key");
    assert_eq!(drain(&mut registrar), [RegistrarOutput::Event(failed)]);
}

/// The public key of a gateway is in its membership: whoever copies it has no proof for it.
#[test]
fn nobody_joins_with_a_noise_key_that_it_does_not_have() {
    let mut registrar = registrar();
    let token = registrar.invite(invitee(8), seed(9, 1), at(0).unix).expect("in order");
    let honest = token.join(&keys(8)).expect("in order");
    let one_time = wayleave_crypto::sign::SigningKey::from_seed(&seed(9, 1));
    let invitation = honest.object().invitation.octets().len();
    let (noise_at, claim_at, proof_at) = (5 + invitation + 32, 5 + invitation + 64, 5 + invitation + 128);
    let mut refused = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut body = honest.octets()[..proof_at + 32].to_vec();
        change(&mut body);
        let signature = one_time.sign(<JoinRequest as wayleave_crypto::signed::Object>::LABEL, &body);
        body.extend_from_slice(&signature);
        let request = Signed::decode(&body).expect("well-formed");
        ask(&mut registrar, &request, 1).1.and_then(Result::err)
    };
    assert_eq!(refused(&|body| body[proof_at] ^= 1), Some(JoinError::NoiseProof));
    // All that its sender has in order: the identity states that it joins with the other's key.
    let theirs = noise(7).public().to_bytes();
    let of_another = refused(&|body| {
        body[noise_at..noise_at + 32].copy_from_slice(&theirs);
        let claim = [&realm(0).0[..], &one_time.verifying_key().to_bytes(), &identity(8).0, &theirs].concat();
        let possession = identity_key(8).sign("wayleave/control/join-identity/v1", &claim);
        body[claim_at..claim_at + 64].copy_from_slice(&possession);
    });
    assert_eq!(of_another, Some(JoinError::NoiseProof));
    assert_eq!(refused(&|_| ()), None, "admitted");
}

#[test]
fn a_token_of_the_version_before_is_refused_with_what_to_do() {
    let line = registrar().invite(invitee(7), seed(9, 1), at(0).unix).expect("in order").expose();
    let before = line.replace("wayleave-join-v2.", "wayleave-join-v1.");
    let error = Token::from_str(&before).expect_err("refused");
    assert!(error == TokenError::Before && error.to_string().contains("invites anew"), "{error}");
}

/// Two commands of the operator at once: each begins with the records of before, and the second finds the first's when it stores its own.
#[test]
fn of_two_removals_at_once_both_hold() {
    let mut first = registrar();
    let mut stored = Vec::new();
    for node in 7..9 {
        let token = first.invite(invitee(node), seed(9, node), at(0).unix).expect("in order");
        stored.extend(join(&mut first, &token, node).0);
    }
    let mut second = Registrar::new(realm_key(0), Store::Kept(stored.clone()), at(2).unix);
    let mut of_first = Vec::new();
    for (registrar, node) in [(&mut first, 7), (&mut second, 8)] {
        registrar.handle(RegistrarInput::Revoke(identity(node)), at(2));
        let (id, records) = split(drain(registrar)).0.expect("stored");
        if node == 8 {
            registrar.handle(RegistrarInput::Records(std::mem::take(&mut of_first)), at(2));
        }
        registrar.handle(RegistrarInput::Persisted(id), at(2));
        of_first.extend(records.clone());
        stored.extend(records);
    }
    while let Some(output) = second.poll() {
        if let RegistrarOutput::Persist { id, records } = output {
            second.handle(RegistrarInput::Persisted(id), at(2));
            stored.extend(records);
        }
    }
    let list = second.revocations().expect("a list").object();
    assert_eq!([7, 8].map(|node| list.has(&identity(node))), [true, true]);
    let later = Registrar::new(realm_key(0), Store::Kept(stored), at(3).unix);
    assert_eq!(later.revocations().map(Signed::object), Some(list));
}

/// Asks as the node's identity for an invitation under the one-time key of seed `number`.
fn roll(registrar: &mut Registrar, node: u32, number: u32, secs: u64) -> Result<Token, JoinError> {
    let key = wayleave_crypto::sign::SigningKey::from_seed(&seed(9, number)).verifying_key().to_bytes();
    let servers = vec![server(900)];
    let input = RegistrarInput::Roll { link: 1, request: 2, peer: identity(node), key, servers };
    registrar.handle(input, at(secs));
    let answer = drain(registrar).into_iter().find_map(|output| match output {
        RegistrarOutput::Invited { answer, .. } => Some(answer),
        _ => None,
    });
    answer.expect("answered").map(|invitation| Token::of(invitation, seed(9, number)).expect("for this key"))
}

#[test]
fn a_node_has_other_keys_by_its_old_identity_and_keeps_names_prefixes_roles_and_end() {
    let mut registrar = registrar();
    let token = registrar.invite(invitee(7), seed(9, 1), at(0).unix).expect("in order");
    let old = join(&mut registrar, &token, 7).1.expect("admitted");
    assert_eq!(roll(&mut registrar, 8, 2, 10).err(), Some(JoinError::NotMember));
    let token = roll(&mut registrar, 7, 2, 10).expect("invited");
    let request = token.join(&keys(70)).expect("in order");
    let (persist, _) = ask(&mut registrar, &request, 11);
    let (id, records) = persist.expect("stored");
    assert_eq!(records.len(), 4, "the token, the membership, who it was before and the list are one batch");
    registrar.handle(RegistrarInput::Persisted(id), at(11));
    let outputs = drain(&mut registrar);
    let rolled = RegistrarEvent::Rolled { from: identity(7), to: identity(70) };
    assert!(outputs.contains(&RegistrarOutput::Event(rolled)));
    let new = split(outputs).1.expect("answered").expect("admitted");
    let new = token.accept(&keys(70), new.octets(), at(11).unix).expect("as promised");
    let (before, after) = (old.object(), new.object());
    assert_eq!((after.identity, &after.grants), (identity(70), &before.grants));
    assert_eq!((after.noise, after.not_after), (noise(70).public(), before.not_after));
    assert!(registrar.revocations().expect("a list").object().has(&identity(7)));
    // The old key gets nothing more, and a lost answer is given again.
    assert_eq!(renew(&mut registrar, 7, 1, 80_000), Err(JoinError::Revoked));
    assert_eq!(roll(&mut registrar, 7, 3, 12).err(), Some(JoinError::Revoked));
    assert_eq!(ask(&mut registrar, &request, 12).1, Some(Ok(new.clone())));
    // Others take it in once they have the list.
    let mut database = wayleave_control::database::Database::new(realm(0), 10);
    database.apply_membership(old, NOW + 2).expect("in order");
    let taken = wayleave_control::database::Refusal::Taken(identity(7));
    assert_eq!(database.apply_membership(new.clone(), NOW + 12), Err(taken));
    database.apply_revocations(registrar.revocations().expect("a list").clone(), NOW + 12).expect("in order");
    database.apply_membership(new, NOW + 12).expect("the names are free");
    assert_eq!(database.named(&name("n7"), NOW + 12), Some(identity(70)));
}

#[test]
fn an_invitation_for_other_keys_is_for_a_live_node_and_ends() {
    let mut registrar = registrar();
    let token = registrar.invite(invitee(7), seed(9, 1), at(0).unix).expect("in order");
    join(&mut registrar, &token, 7).1.expect("admitted");
    let first = roll(&mut registrar, 7, 2, 10).expect("invited");
    // Another after it takes its place, as does a time.
    let second = roll(&mut registrar, 7, 3, 11).expect("invited");
    let try_at = |registrar: &mut Registrar, token: &Token, secs| {
        ask(registrar, &token.join(&keys(70)).expect("in order"), secs).1.and_then(Result::err)
    };
    assert_eq!(try_at(&mut registrar, &first, 12), Some(JoinError::Withdrawn));
    assert_eq!(try_at(&mut registrar, &second, 3_612), Some(JoinError::Withdrawn));
    let third = roll(&mut registrar, 7, 4, 4_000).expect("invited");
    registrar.handle(RegistrarInput::Revoke(identity(7)), at(4_001));
    drain(&mut registrar);
    // The operator removed it meanwhile: the names are free, and nobody has them by the old key.
    assert_eq!(try_at(&mut registrar, &third, 4_002), Some(JoinError::Withdrawn));
    assert_eq!(roll(&mut registrar, 7, 5, 4_003).err(), Some(JoinError::Revoked));
    // Nor by any earlier invitation, whatever was forgotten of it.
    for token in [&first, &second] {
        assert_eq!(try_at(&mut registrar, token, 4_004), Some(JoinError::Withdrawn));
    }
}

#[test]
fn keys_are_rolled_once_a_day_and_each_invitation_is_one_members() {
    let mut registrar = registrar();
    for (node, number) in [(7, 1), (8, 6)] {
        let token = registrar.invite(invitee(node), seed(9, number), at(0).unix).expect("in order");
        join(&mut registrar, &token, node).1.expect("admitted");
    }
    let token = roll(&mut registrar, 7, 2, 10).expect("invited");
    assert_eq!(roll(&mut registrar, 8, 2, 10).err(), Some(JoinError::Used));
    let (persist, _) = ask(&mut registrar, &token.join(&keys(70)).expect("in order"), 11);
    registrar.handle(RegistrarInput::Persisted(persist.expect("stored").0), at(11));
    drain(&mut registrar);
    assert_eq!(roll(&mut registrar, 70, 3, 12).err(), Some(JoinError::Busy));
    // The membership has ended by then.
    assert_eq!(roll(&mut registrar, 70, 4, 86_412).err(), Some(JoinError::Expired));
}

//! Who is a member, in a running exchange: what each operator, each party and an old backup can do about it, and what not.
//!
//! MEM-02: a further slot of an AS: told to every announcer.
//! MEM-03: an older set, two sets of one number, other operators, at a start, a reload, one member, between the
//! parties: what was in force stays; nothing is used or computed meanwhile.
//! MEM-04: removal by either operator alone, then older files, older stores, restarts, a party 1 that does not take
//! party 2's: the session ends at both parties, nothing brings the member back; party 2 stops.
//! MEM-05: addresses and keys change in place: routes under the old key stay.
//! MEM-06: two sets of one number that wait: one takes effect, the other is dropped and its operator told.
//! MEM-07: party 1 drops a removal of party 2's operator, or makes no batch; a link that comes up while its member is
//! removed; members that stay connected while the parties' link is down: in force when the link comes up, in two
//! minutes at most; not served; told.
//! MEM-09: a set with more steps but without a removal that the member knows; operators' new keys in a configuration,
//! after what was in force: past, and nothing is used; it starts, and remembers.

use std::time::Duration;

use crate::common::{Exchange, LIMIT, nlri, route};
use wayleave_lab::sim::{
    EXCHANGE, FrameAction, Node, PARTIES, Setup, Sim, claim_of, member_key, operator_key, operator_keys,
};
use wayleave_route_server::directory::{Change, Claim, Consent, Directory};
use wayleave_route_server::frames::{PartyFrame, ToMember};
use wayleave_route_server::member::MemberEvent;
use wayleave_route_server::party::{PartyEvent, PartyNumber, StartError};

const MEMBERS: u32 = 4;

fn setup(seed: u64) -> Setup {
    Setup { members: MEMBERS as usize, seed, ..Setup::default() }
}

/// `directory` with a claim, as both operators sign it.
fn admit(directory: &Directory, seed: u64, claim: Claim, slot: u32) -> Directory {
    let request = claim.sign(EXCHANGE, &member_key(seed, slot));
    let join = directory.requested(&request, 1000).expect("of this exchange");
    let [one, two] = operator_keys(seed);
    directory.signed_by_both(vec![join], [&one, &two]).expect("a sound set")
}

/// Two sets of one number that both operators signed: in slot 4 another member each.
fn forked(sim: &Sim, seed: u64) -> [Directory; 2] {
    [MEMBERS, MEMBERS + 1].map(|slot| admit(&sim.directory, seed, claim_of(&setup(seed), slot), slot))
}

fn events(sim: &Sim, slot: u32) -> Vec<&MemberEvent> {
    sim.member_events.iter().filter(|(of, _)| *of == slot).map(|(_, event)| event).collect()
}

/// Runs for a while. Whoever closes a link connects again after a tenth of a second, as a process does.
fn run(sim: &mut Sim, tenths: u32) {
    for _ in 0..tenths {
        sim.run_for(Duration::from_millis(100));
        sim.connect_all();
    }
}

/// Both links of the member in `slot` were closed, by a party for this reason or, since the other one did, by the member.
fn assert_links_closed(sim: &Sim, slot: u32, why: &str) {
    let member = Node::Member(slot);
    let by_party = |at: Node| sim.closed.iter().any(|(by, of, said)| (*by, *of) == (at, member) && said.contains(why));
    let by_member = |at: Node| sim.closed.iter().any(|(by, of, _)| (*by, *of) == (member, at));
    assert!(PARTIES.into_iter().any(by_party), "{:?}", sim.closed);
    assert!(PARTIES.into_iter().all(|at| by_party(at) || by_member(at)), "{:?}", sim.closed);
}

/// Shows `set` to the member in `slot`, whatever these parties would show.
fn show(parties: Vec<Node>, slot: u32, set: Vec<u8>) -> wayleave_lab::sim::Tamper {
    Box::new(move |from, to, bytes| {
        if to != Node::Member(slot) || !parties.contains(&from) {
            return FrameAction::Pass;
        }
        let changed = match ToMember::decode(bytes) {
            Ok(ToMember::Welcome {
                versions,
                session,
                epoch,
                high_water,
                tick_ms,
                export,
                max_blob,
                budget,
                format,
                later,
                ..
            }) => ToMember::Welcome {
                versions,
                session,
                epoch,
                high_water,
                tick_ms,
                export,
                max_blob,
                budget,
                format,
                set: set.clone().into(),
                later,
            },
            Ok(ToMember::Renew { epoch, .. }) => ToMember::Renew { epoch, set: set.clone().into() },
            _ => return FrameAction::Pass,
        };
        FrameAction::Change(changed.encode())
    })
}

#[test]
fn a_member_whose_parties_show_different_sets_uses_nothing_and_says_so() {
    let seed = 700;
    let mut exchange = Exchange::new(setup(seed));
    let [ours, other] = forked(&exchange.sim, seed);
    exchange.sim.tamper = Some(show(vec![PARTIES[1]], 2, other.encode()));
    exchange.sim.publish(PARTIES[0], ours);
    exchange.sim.start(Node::Member(MEMBERS));
    let prefix = nlri("20.0.0.0/16");
    exchange.sim.announce(MEMBERS, &[prefix], &route(MEMBERS, &[64500], &[]));
    run(&mut exchange.sim, 50);
    let differs = |event: &&MemberEvent| matches!(event, MemberEvent::SetsDiffer { numbers: [2, 2] });
    assert!(events(&exchange.sim, 2).iter().any(differs), "{:?}", events(&exchange.sim, 2));
    assert!(!exchange.sim.tables[&2].contains_key(&prefix.prefix), "nothing is used");
    assert!(exchange.sim.tables[&1].contains_key(&prefix.prefix), "others are served");
    assert_eq!(exchange.sim.member(2).expect("runs").status().member_set, Some(1));
    exchange.sim.tamper = None;
    assert!(exchange.sim.settle(LIMIT), "{}", exchange.describe());
    assert!(exchange.sim.tables[&2].contains_key(&prefix.prefix));
}

#[test]
fn two_sets_of_one_number_shown_to_different_members_are_noticed_when_they_meet() {
    let seed = 701;
    let mut exchange = Exchange::new(setup(seed));
    let [ours, other] = forked(&exchange.sim, seed);
    // Both parties lie to one member, with the signatures of both operators.
    exchange.sim.tamper = Some(show(PARTIES.to_vec(), 2, other.encode()));
    exchange.sim.publish(PARTIES[0], ours);
    run(&mut exchange.sim, 20);
    assert_eq!(exchange.sim.member(2).expect("runs").status().member_set, Some(2));
    exchange.sim.tamper = None;
    exchange.sim.kill(Node::Member(2));
    exchange.sim.start(Node::Member(2));
    run(&mut exchange.sim, 20);
    let noticed = |event: &&MemberEvent| matches!(event, MemberEvent::SetRefused { why, .. } if why.contains("two sets of one number"));
    assert!(events(&exchange.sim, 2).iter().any(noticed), "also after a restart: {:?}", events(&exchange.sim, 2));
    assert!(!exchange.sim.member(2).expect("runs").status().synced);
}

#[test]
fn a_party_that_shows_an_older_set_is_an_event_and_nothing_is_used() {
    let seed = 702;
    let mut exchange = Exchange::new(setup(seed));
    let old = exchange.sim.directory.encode();
    exchange.join();
    exchange.check();
    exchange.sim.forget_events();
    exchange.sim.tamper = Some(show(PARTIES.to_vec(), 2, old));
    exchange.sim.cut_all();
    let prefix = nlri("20.0.0.0/16");
    exchange.announce(1, &[prefix], &route(1, &[64500], &[]));
    run(&mut exchange.sim, 20);
    let older = |event: &&MemberEvent| matches!(event, MemberEvent::OlderSet { shown: 1, in_force: 2, .. });
    assert!(events(&exchange.sim, 2).iter().any(older), "{:?}", events(&exchange.sim, 2));
    assert!(!exchange.sim.tables[&2].contains_key(&prefix.prefix));
    exchange.sim.tamper = None;
    exchange.check();
}

#[test]
fn a_removal_by_either_operator_alone_ends_the_member_at_both_parties() {
    for (party, number) in PARTIES.into_iter().zip([PartyNumber::One, PartyNumber::Two]) {
        let seed = 703;
        let mut exchange = Exchange::new(setup(seed));
        let prefix = nlri("20.0.0.0/16");
        exchange.announce(1, &[prefix], &route(1, &[64500], &[]));
        exchange.check();
        let before = exchange.sim.directory.encode();
        let removed = exchange.sim.directory.without(1, &operator_key(seed, number)).expect("an operator");
        exchange.sim.publish(party, removed);
        run(&mut exchange.sim, 10);
        for at in PARTIES {
            assert_eq!(exchange.sim.party(at).expect("runs").member_set(), 2, "{party:?} {at:?}");
            assert!(!exchange.sim.party(at).expect("runs").active().any(|slot| slot == 1));
        }
        assert_links_closed(&exchange.sim, 1, "has left the exchange");
        assert!(!exchange.sim.tables[&2].contains_key(&prefix.prefix));
        // The set from before brings nobody back, at either party.
        for at in PARTIES {
            exchange.sim.forget_events();
            exchange.sim.give_members(at, &before);
            run(&mut exchange.sim, 10);
            let refused =
                |(by, event): &(Node, PartyEvent)| *by == at && matches!(event, PartyEvent::MembersRefused { .. });
            assert!(exchange.sim.party_events.iter().any(refused));
            assert_eq!(exchange.sim.party(at).expect("runs").member_set(), 2);
        }
    }
}

#[test]
fn party_1_cannot_keep_a_member_that_party_2s_operator_removed() {
    let seed = 704;
    let mut exchange = Exchange::new(setup(seed));
    exchange.sim.tamper = Some(Box::new(|from, to, bytes| {
        let hides = (from, to) == (PARTIES[1], PARTIES[0])
            && matches!(PartyFrame::decode(bytes), Ok(PartyFrame::Members { .. }));
        if hides { FrameAction::Drop } else { FrameAction::Pass }
    }));
    let removed = exchange.sim.directory.without(1, &operator_key(seed, PartyNumber::Two)).expect("an operator");
    exchange.sim.give_members(PARTIES[1], &removed.encode());
    for round in 0..80u8 {
        exchange.sim.announce(2, &[nlri(&format!("20.{round}.0.0/16"))], &route(2, &[64500], &[]));
        run(&mut exchange.sim, 2);
    }
    let refuses = |(by, of, why): &(Node, Node, String)| {
        (*by, *of) == (PARTIES[1], PARTIES[0]) && why.contains("does not take a member set or a removal")
    };
    assert!(exchange.sim.closed.iter().any(refuses), "{:?}", exchange.sim.closed);
}

#[test]
fn a_party_does_not_start_with_a_set_that_does_not_follow_what_was_in_force() {
    let seed = 705;
    let mut exchange = Exchange::new(setup(seed));
    let [ours, other] = forked(&exchange.sim, seed);
    exchange.sim.publish(PARTIES[0], ours);
    exchange.sim.start(Node::Member(MEMBERS));
    assert!(exchange.sim.settle(LIMIT));
    for party in PARTIES {
        exchange.sim.kill(party);
        // The same slot number, another holder, and the signatures of both operators.
        exchange.sim.files.insert(party, other.encode());
        assert_eq!(exchange.sim.try_start(party), Err(StartError::Diverges(2)), "{party:?}");
        let [one, two] = operator_keys(seed).map(|key| key.verifying_key().to_bytes());
        let foreign = Directory::new("other-ix", [one, two]).expect("a name and two keys");
        exchange.sim.files.insert(party, foreign.encode());
        assert_eq!(exchange.sim.try_start(party), Err(StartError::Exchange("other-ix".to_owned())));
        exchange.sim.files.remove(&party);
        exchange.sim.start(party);
    }
    assert!(exchange.sim.settle(LIMIT), "{}", exchange.describe());
    // File and configuration agree, and the store does not: what is wrong is named.
    let [one, two] = operator_keys(seed).map(|key| key.verifying_key());
    let swapped =
        Directory::new(wayleave_lab::sim::EXCHANGE, [two.to_bytes(), one.to_bytes()]).expect("a name and two keys");
    exchange.sim.kill(PARTIES[1]);
    exchange.sim.operators = [two, one];
    exchange.sim.files.insert(PARTIES[1], swapped.encode());
    assert_eq!(exchange.sim.try_start(PARTIES[1]), Err(StartError::StoredOperators));
}

#[test]
fn an_older_file_does_not_replace_what_was_in_force_and_an_older_store_learns_it_again() {
    let seed = 706;
    let mut exchange = Exchange::new(setup(seed));
    let old = exchange.sim.directory.encode();
    let backup = exchange.sim.store(PARTIES[0]).clone();
    let removed = exchange.sim.directory.without(3, &operator_key(seed, PartyNumber::Two)).expect("an operator");
    exchange.sim.publish(PARTIES[1], removed);
    run(&mut exchange.sim, 10);
    exchange.sim.kill(Node::Member(3));
    for party in PARTIES {
        exchange.sim.forget_events();
        exchange.sim.kill(party);
        exchange.sim.files.insert(party, old.clone());
        exchange.sim.start(party);
        run(&mut exchange.sim, 10);
        assert_eq!(exchange.sim.party(party).expect("runs").member_set(), 2);
        let said = |(by, event): &(Node, PartyEvent)| {
            *by == party && matches!(event, PartyEvent::MembersRefused { why } if why.contains("set 2 was in force"))
        };
        assert!(exchange.sim.party_events.iter().any(said), "{:?}", exchange.sim.party_events);
    }
    // A party whose file and store both come from an old backup learns from the other what was in force.
    exchange.sim.kill(PARTIES[0]);
    *exchange.sim.store(PARTIES[0]) = backup;
    exchange.sim.start(PARTIES[0]);
    run(&mut exchange.sim, 20);
    assert_eq!(exchange.sim.party(PARTIES[0]).expect("runs").member_set(), 2);
}

#[test]
fn parties_with_two_sets_of_one_number_compute_nothing() {
    let seed = 707;
    let mut exchange = Exchange::new(setup(seed));
    let files = forked(&exchange.sim, seed);
    for (party, file) in PARTIES.into_iter().zip(files) {
        exchange.sim.kill(party);
        exchange.sim.files.insert(party, file.encode());
        exchange.sim.start(party);
    }
    let prefix = nlri("20.0.0.0/16");
    exchange.sim.announce(1, &[prefix], &route(1, &[64500], &[]));
    run(&mut exchange.sim, 30);
    let said = |(_, event): &(Node, PartyEvent)| matches!(event, PartyEvent::BadFrame { slot: None, what } if what.contains("two sets of one number"));
    assert!(exchange.sim.party_events.iter().any(said), "{:?}", exchange.sim.party_events);
    assert!(exchange.sim.tables.values().all(|table| !table.contains_key(&prefix.prefix)));
}

#[test]
fn a_further_slot_of_an_as_is_an_event_at_every_announcer() {
    let seed = 708;
    let mut exchange = Exchange::new(setup(seed));
    let of_member_1 = Claim { asn: wayleave_lab::sim::member_asn(1), ..claim_of(&setup(seed), MEMBERS) };
    let next = admit(&exchange.sim.directory, seed, of_member_1, MEMBERS);
    exchange.sim.publish(PARTIES[0], next);
    run(&mut exchange.sim, 10);
    for slot in 0..MEMBERS {
        let is_expected = |event: &&MemberEvent| {
            matches!(event, MemberEvent::NewMember { slot: 4, earlier: Some(1), held: true, .. })
        };
        assert!(events(&exchange.sim, slot).iter().any(is_expected), "{slot}");
        let status = exchange.sim.member(slot).expect("runs").status();
        assert!(status.further_slots.iter().any(|further| further.slot == 4 && further.held));
    }
}

#[test]
fn routes_under_a_key_that_was_replaced_stay_until_the_member_announces_again() {
    let seed = 709;
    let mut exchange = Exchange::new(setup(seed));
    let prefix = nlri("20.0.0.0/16");
    exchange.announce(1, &[prefix], &route(1, &[64500], &[]));
    exchange.check();
    let new = member_key(seed, 77);
    let claim = Claim { serial: 2, sign: new.verifying_key().to_bytes(), tls: [77; 32], ..claim_of(&setup(seed), 1) };
    let request = claim.sign(EXCHANGE, &new).with_consent(Consent::Renewal, &member_key(seed, 1));
    let change = exchange.sim.directory.requested(&request, 0).expect("sound");
    let [one, two] = operator_keys(seed);
    let next = exchange.sim.directory.signed_by_both(vec![change], [&one, &two]).expect("a sound set");
    exchange.sim.publish(PARTIES[0], next);
    run(&mut exchange.sim, 10);
    assert_links_closed(&exchange.sim, 1, "new certificate");
    // A receiver that takes everything again still has the route.
    exchange.sim.kill(Node::Member(2));
    exchange.sim.start(Node::Member(2));
    run(&mut exchange.sim, 20);
    assert!(exchange.sim.tables[&2].contains_key(&prefix.prefix));
    assert_eq!(exchange.sim.alarms(2).count(), 0);
}

/// Drops the frames by which party 2 gives party 1 its operator's sets.
fn hide_offers() -> wayleave_lab::sim::Tamper {
    Box::new(|from, to, bytes| {
        let hides = (from, to) == (PARTIES[1], PARTIES[0])
            && matches!(PartyFrame::decode(bytes), Ok(PartyFrame::Members { .. }));
        if hides { FrameAction::Drop } else { FrameAction::Pass }
    })
}

/// The member in slot 1 is served by neither party, and gets no route that is announced from now on.
fn assert_slot_1_has_left(exchange: &mut Exchange) {
    for at in PARTIES {
        assert_eq!(exchange.sim.party(at).expect("runs").member_set(), 2, "{at:?}");
        assert!(!exchange.sim.party(at).expect("runs").active().any(|slot| slot == 1), "{at:?}");
    }
    let prefix = nlri("20.200.0.0/16");
    exchange.sim.announce(2, &[prefix], &route(2, &[64500], &[]));
    run(&mut exchange.sim, 10);
    assert!(!exchange.sim.tables[&1].contains_key(&prefix.prefix));
    assert!(exchange.sim.tables[&3].contains_key(&prefix.prefix), "others are served");
}

#[test]
fn a_removal_that_party_1_drops_takes_effect_when_the_parties_link_comes_up_again() {
    let seed = 710;
    let mut exchange = Exchange::new(setup(seed));
    exchange.sim.tamper = Some(hide_offers());
    let removed = exchange.sim.directory.without(1, &operator_key(seed, PartyNumber::Two)).expect("an operator");
    exchange.sim.give_members(PARTIES[1], &removed.encode());
    // Party 1 takes fewer batches than it may, and begins anew.
    for round in 0..3u8 {
        exchange.sim.announce(2, &[nlri(&format!("20.{round}.0.0/16"))], &route(2, &[64500], &[]));
        run(&mut exchange.sim, 2);
    }
    assert!(exchange.sim.party(PARTIES[1]).expect("runs").active().any(|slot| slot == 1));
    exchange.sim.cut_parties();
    run(&mut exchange.sim, 10);
    assert_slot_1_has_left(&mut exchange);
}

#[test]
fn a_removal_that_party_1_drops_takes_effect_in_time_however_few_batches_it_makes() {
    let seed = 711;
    let mut exchange = Exchange::new(setup(seed));
    exchange.sim.tamper = Some(hide_offers());
    let removed = exchange.sim.directory.without(1, &operator_key(seed, PartyNumber::Two)).expect("an operator");
    exchange.sim.give_members(PARTIES[1], &removed.encode());
    run(&mut exchange.sim, 1_150);
    assert!(exchange.sim.party(PARTIES[1]).expect("runs").active().any(|slot| slot == 1));
    run(&mut exchange.sim, 100);
    assert_slot_1_has_left(&mut exchange);
}

#[test]
fn members_that_stay_connected_learn_a_set_that_took_effect_when_the_parties_met() {
    for party in PARTIES {
        let seed = 712;
        let mut exchange = Exchange::new(setup(seed));
        exchange.sim.cut_parties();
        exchange.sim.run_for(Duration::from_millis(50));
        let removed = exchange.sim.directory.without(1, &operator_key(seed, PartyNumber::Two)).expect("an operator");
        exchange.sim.publish(party, removed);
        run(&mut exchange.sim, 10);
        assert_slot_1_has_left(&mut exchange);
        assert_eq!(exchange.sim.member(2).expect("runs").status().member_set, Some(2));
        let refused = events(&exchange.sim, 2).into_iter().filter(|e| matches!(e, MemberEvent::Refused { .. }));
        assert!(refused.count() < 3);
    }
}

#[test]
fn of_two_sets_of_one_number_that_wait_one_takes_effect_and_the_other_is_its_operators_error() {
    for is_linked in [false, true] {
        let seed = 713;
        let mut exchange = Exchange::new(setup(seed));
        let [one, other] = forked(&exchange.sim, seed);
        if !is_linked {
            exchange.sim.cut_parties();
            exchange.sim.run_for(Duration::from_millis(50));
        }
        exchange.sim.give_members(PARTIES[0], &one.encode());
        exchange.sim.give_members(PARTIES[1], &other.encode());
        exchange.sim.run_for(Duration::from_millis(200));
        run(&mut exchange.sim, 10);
        let sets = PARTIES.map(|at| exchange.sim.party(at).expect("runs").member_set_bytes());
        assert!(sets[0] == sets[1] && (sets[0][..] == one.encode() || sets[0][..] == other.encode()));
        let refused = |(_, event): &(Node, PartyEvent)| matches!(event, PartyEvent::MembersRefused { why } if why.contains("two sets of one number"));
        assert!(exchange.sim.party_events.iter().any(refused), "{:?}", exchange.sim.party_events);
        let blamed = |(_, event): &(Node, PartyEvent)| matches!(event, PartyEvent::BadFrame { .. });
        assert!(!exchange.sim.party_events.iter().any(blamed), "{:?}", exchange.sim.party_events);
        let prefix = nlri("20.0.0.0/16");
        exchange.sim.announce(1, &[prefix], &route(1, &[64500], &[]));
        run(&mut exchange.sim, 10);
        assert!(exchange.sim.tables[&2].contains_key(&prefix.prefix), "{}", exchange.describe());
    }
}

#[test]
fn a_set_that_is_queued_while_another_of_its_number_is_proposed_is_dropped() {
    let seed = 714;
    let mut exchange = Exchange::new(setup(seed));
    let [one, other] = forked(&exchange.sim, seed);
    exchange.sim.give_members(PARTIES[1], &one.encode());
    // Party 1's own file comes while it waits for the answer to its proposal of the other set.
    let given = std::rc::Rc::new(std::cell::Cell::new(false));
    let seen = std::rc::Rc::clone(&given);
    exchange.sim.tamper = Some(Box::new(move |from, to, bytes| {
        if (from, to) == (PARTIES[0], PARTIES[1]) && matches!(PartyFrame::decode(bytes), Ok(PartyFrame::Propose { .. }))
        {
            seen.set(true);
        }
        FrameAction::Pass
    }));
    while !given.get() {
        assert!(exchange.sim.step(Duration::from_secs(1)));
    }
    exchange.sim.tamper = None;
    exchange.sim.give_members(PARTIES[0], &other.encode());
    run(&mut exchange.sim, 20);
    for at in PARTIES {
        assert_eq!(exchange.sim.party(at).expect("runs").member_set_bytes()[..], one.encode());
    }
    let said =
        |(by, event): &(Node, PartyEvent)| *by == PARTIES[0] && matches!(event, PartyEvent::MembersRefused { .. });
    assert!(exchange.sim.party_events.iter().any(said), "{:?}", exchange.sim.party_events);
    assert!(exchange.sim.closed.is_empty(), "{:?}", exchange.sim.closed);
}

#[test]
fn a_change_of_addresses_counts_for_the_routes_that_are_there() {
    let seed = 715;
    let mut exchange = Exchange::new(setup(seed));
    let prefix = nlri("20.0.0.0/16");
    let address = std::net::Ipv4Addr::new(192, 0, 2, 250);
    let mut editor = wayleave_bgp::Attributes::builder();
    editor.prepend(wayleave_lab::sim::member_asn(1), 1).origin(wayleave_bgp::Origin::Igp).ipv4_next_hop(address);
    exchange.sim.announce(1, &[prefix], &editor.finish());
    run(&mut exchange.sim, 10);
    assert!(!exchange.sim.tables[&2].contains_key(&prefix.prefix), "the next hop is nobody's");
    let before = exchange.sim.set.slots[1].addresses.clone();
    let more: Vec<std::net::IpAddr> = before.iter().copied().chain([address.into()]).collect();
    for (addresses, usable) in [(more, true), (before, false)] {
        let amend = Change::Amend { slot: 1, addresses, max_prefix: exchange.sim.set.slots[1].max_prefix };
        let [one, two] = operator_keys(seed);
        let next = exchange.sim.directory.signed_by_both(vec![amend], [&one, &two]).expect("a sound set");
        exchange.sim.publish(PARTIES[0], next);
        run(&mut exchange.sim, 10);
        assert_eq!(exchange.sim.tables[&2].contains_key(&prefix.prefix), usable);
    }
}

#[test]
fn a_set_without_a_removal_that_the_member_knows_is_past_although_it_has_more_steps() {
    let seed = 716;
    let mut exchange = Exchange::new(setup(seed));
    let unaware = admit(&exchange.sim.directory, seed, claim_of(&setup(seed), MEMBERS), MEMBERS);
    let removed = exchange.sim.directory.without(3, &operator_key(seed, PartyNumber::Two)).expect("an operator");
    exchange.sim.publish(PARTIES[1], removed);
    run(&mut exchange.sim, 10);
    exchange.sim.forget_events();
    // As parties do that were both restored from before it.
    exchange.sim.tamper = Some(show(PARTIES.to_vec(), 2, unaware.encode()));
    exchange.sim.cut_all();
    let prefix = nlri("20.0.0.0/16");
    exchange.sim.announce(1, &[prefix], &route(1, &[64500], &[]));
    exchange.sim.announce(2, &[nlri("20.1.0.0/16")], &route(2, &[64500], &[]));
    run(&mut exchange.sim, 30);
    let said = events(&exchange.sim, 2);
    assert!(said.iter().any(|event| matches!(event, MemberEvent::OlderSet { shown: 2, in_force: 2, .. })), "{said:?}");
    assert!(!said.iter().any(|event| matches!(event, MemberEvent::Refused { .. })), "{said:?}");
    assert!(!exchange.sim.tables[&2].contains_key(&prefix.prefix), "nothing is used");
}

/// The next set, in which party 1's operator has another key, and both operators as configurations then name them.
fn rolled(directory: &Directory, seed: u64) -> (Directory, [wayleave_crypto::sign::VerifyingKey; 2]) {
    let (new, [one, two]) = (member_key(seed, 99), operator_keys(seed));
    let roll = Change::operator(directory, 1, &new);
    let next = directory.signed_by_both(vec![roll], [&one, &two]).expect("a sound set");
    (next, [new.verifying_key(), two.verifying_key()])
}

#[test]
fn a_party_starts_with_the_operators_keys_that_its_file_leads_to() {
    let seed = 717;
    let mut exchange = Exchange::new(setup(seed));
    let (next, operators) = rolled(&exchange.sim.directory, seed);
    exchange.sim.kill(PARTIES[0]);
    exchange.sim.operators = operators;
    assert_eq!(exchange.sim.try_start(PARTIES[0]), Err(StartError::Operators), "its file has not got them yet");
    exchange.sim.files.insert(PARTIES[0], next.encode());
    exchange.sim.start(PARTIES[0]);
    run(&mut exchange.sim, 10);
    for at in PARTIES {
        assert_eq!(exchange.sim.party(at).expect("runs").member_set(), 2);
    }
}

#[test]
fn a_member_with_the_operators_new_keys_remembers_what_was_in_force_under_the_old_ones() {
    let seed = 718;
    let mut exchange = Exchange::new(setup(seed));
    let before = exchange.sim.directory.clone();
    let removed = before.without(3, &operator_key(seed, PartyNumber::Two)).expect("an operator");
    exchange.sim.publish(PARTIES[1], removed.clone());
    run(&mut exchange.sim, 10);
    exchange.sim.kill(Node::Member(2));
    let (next, operators) = rolled(&removed, seed);
    let (unaware, _) = rolled(&before, seed);
    exchange.sim.publish(PARTIES[0], next);
    exchange.sim.operators = operators;
    run(&mut exchange.sim, 10);
    exchange.sim.forget_events();
    // Both parties show the roll-over without the removal that the member knows.
    exchange.sim.tamper = Some(show(PARTIES.to_vec(), 2, unaware.encode()));
    exchange.sim.start(Node::Member(2));
    run(&mut exchange.sim, 10);
    let older = |event: &&MemberEvent| matches!(event, MemberEvent::OlderSet { .. });
    assert!(events(&exchange.sim, 2).iter().any(older), "{:?}", events(&exchange.sim, 2));
    exchange.sim.tamper = None;
    run(&mut exchange.sim, 10);
    assert_eq!(exchange.sim.member(2).expect("runs").status().member_set, Some(3));
}

#[test]
fn a_member_whose_configuration_names_another_exchanges_operators_forgets_the_one_before() {
    let seed = 719;
    let mut exchange = Exchange::new(setup(seed));
    exchange.join();
    exchange.check();
    let store = exchange.sim.store(Node::Member(2)).clone();
    // Another exchange of this name, whose first set has a lower number.
    let mut other = Exchange::new(Setup { seed: 720, ..setup(seed) });
    other.sim.kill(Node::Member(2));
    *other.sim.store(Node::Member(2)) = store;
    other.sim.start(Node::Member(2));
    other.check();
    assert_eq!(other.sim.member(2).expect("runs").status().member_set, Some(1));
}

#[test]
fn a_member_whose_link_came_up_while_it_was_removed_is_not_served() {
    let seed = 721;
    let mut exchange = Exchange::new(setup(seed));
    let removed = exchange.sim.directory.without(1, &operator_key(seed, PartyNumber::One)).expect("an operator");
    // The simulator does not look at who is a member when it connects, as a driver's queue does not.
    exchange.sim.give_members(PARTIES[0], &removed.encode());
    run(&mut exchange.sim, 20);
    let late = |(by, of, why): &(Node, Node, String)| {
        PARTIES.contains(by) && *of == Node::Member(1) && why.contains("has left the exchange")
    };
    assert!(exchange.sim.closed.iter().filter(|closed| late(closed)).count() > 4, "{:?}", exchange.sim.closed);
    assert_slot_1_has_left(&mut exchange);
}

//! Members and parties that break the rules: each misbehaviour has a name, and a verdict that it must come to.
//!
//! SIX-04: an object to one party only, or different ones to the two: not evaluated; the member is named and asked
//! again.
//! SIX-06: old headers, other epochs, sets, exchanges: refused and counted.
//! SIX-07: party 1 shows different members different blobs: an alarm.
//! SIX-14: the dummy key as key, another's key, forged blobs: they harm their sender only.
//! SIX-16: the highest version: refused, so that not even its own slot is burnt; the highest that is taken leaves enough.

use std::time::Duration;

use crate::common::{Exchange, LIMIT, in_both_modes, nlri, route};
use wayleave_bgp::Nlri;
use wayleave_lab::sim::bad::{Draft, Forger, Object, Split, once, signed_again};
use wayleave_lab::sim::{
    EXCHANGE, FrameAction, Node, PARTIES, Recorded, Setup, Sim, member_address, member_asn, member_key,
};
use wayleave_route_server::frames::{Body, FromMember, Refusal, ToMember};
use wayleave_route_server::member::Suspect;
use wayleave_route_server::object::{ExportMode, Kind, dummy_key};
use wayleave_route_server::party::PartyEvent;

const ATTACKER: u32 = 0;

fn exchange(seed: u64, export: ExportMode) -> Exchange {
    Exchange::new(Setup { members: 4, seed, export, ..Setup::default() })
}

fn blamed(sim: &Sim) -> Vec<u32> {
    let slots = sim.party_events.iter().filter_map(|(_, event)| match event {
        PartyEvent::Mismatch { slot, .. } | PartyEvent::Refused { slot, .. } => Some(*slot),
        PartyEvent::BadFrame { slot, .. } => *slot,
        _ => None,
    });
    slots.collect()
}

/// What was delivered to members since the recording began.
fn deliveries(recording: &[Recorded]) -> usize {
    let count = |frame: &Recorded| match (frame.to, ToMember::decode(&frame.bytes)) {
        (Node::Member(_), Ok(ToMember::Tick(tick))) => tick.deliver.len(),
        _ => 0,
    };
    recording.iter().map(count).sum()
}

in_both_modes!(halves_that_differ_are_not_evaluated_their_member_is_named_and_asked_again);
fn halves_that_differ_are_not_evaluated_their_member_is_named_and_asked_again(export: ExportMode) {
    for (seed, split) in (0u64..).zip(Split::ALL) {
        let mut exchange = exchange(500 + seed, export);
        let other = nlri("20.1.0.0/16");
        exchange.announce(1, &[other], &route(1, &[64500], &[]));
        exchange.check();
        exchange.sim.forget_events();
        exchange.sim.tamper = Some(split.tamper(500 + seed, ATTACKER));
        exchange.sim.recording = Some(Vec::new());
        let split_prefix = nlri("20.0.0.0/16");
        exchange.announce(ATTACKER, &[split_prefix], &route(ATTACKER, &[64500], &["64496:0:65003"]));
        exchange.sim.run_for(Duration::from_millis(500));
        assert_eq!(deliveries(exchange.sim.recording.as_deref().unwrap_or_default()), 0, "{split:?}: delivered");
        assert!(exchange.sim.tables.values().all(|table| !table.contains_key(&split_prefix.prefix)), "{split:?}");
        // Others are served while the half waits.
        exchange.announce(2, &[other], &route(2, &[64501], &[]));
        exchange.sim.run_for(Duration::from_millis(500));
        assert!(exchange.sim.tables[&1].contains_key(&other.prefix), "{split:?}: another member was held up");
        exchange.check();
        let blamed = blamed(&exchange.sim);
        assert!(!blamed.is_empty() && blamed.iter().all(|slot| *slot == ATTACKER), "{split:?}: {blamed:?}");
        assert!(exchange.sim.tables[&1].contains_key(&split_prefix.prefix), "{split:?}: the honest retry");
        assert!(!exchange.sim.tables[&3].contains_key(&split_prefix.prefix), "{split:?}: hidden from 3");
    }
}

in_both_modes!(a_withdrawal_that_reached_one_party_is_asked_for_again);
fn a_withdrawal_that_reached_one_party_is_asked_for_again(export: ExportMode) {
    for (seed, split) in (0u64..).zip(Split::ALL) {
        let mut exchange = exchange(510 + seed, export);
        let prefix = nlri("20.0.0.0/16");
        exchange.announce(ATTACKER, &[prefix], &route(ATTACKER, &[64500], &[]));
        exchange.check();
        exchange.sim.forget_events();
        exchange.sim.tamper = Some(split.tamper(510 + seed, ATTACKER));
        exchange.withdraw(ATTACKER, &[prefix]);
        exchange.check();
        assert!(blamed(&exchange.sim).contains(&ATTACKER), "{split:?}");
        assert!(!exchange.sim.tables[&1].contains_key(&prefix.prefix), "{split:?}");
    }
}

in_both_modes!(a_column_that_reached_one_party_is_asked_for_again);
fn a_column_that_reached_one_party_is_asked_for_again(export: ExportMode) {
    for (seed, split) in (0u64..).zip(Split::ALL) {
        let mut exchange = exchange(520 + seed, export);
        let prefix = nlri("20.0.0.0/16");
        exchange.announce(ATTACKER, &[prefix], &route(ATTACKER, &[64500], &["64496:0:65001"]));
        exchange.check();
        exchange.sim.forget_events();
        exchange.sim.tamper = Some(split.tamper(520 + seed, ATTACKER));
        let newcomer = exchange.join();
        exchange.check();
        assert!(blamed(&exchange.sim).contains(&ATTACKER), "{split:?}");
        assert!(exchange.sim.tables[&newcomer].contains_key(&prefix.prefix), "{split:?}");
    }
}

/// What a party says to a frame.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Verdict {
    Refused(Refusal),
    LinkClosed,
}

fn last_frames(recording: &[Recorded], slot: u32) -> [Vec<u8>; 2] {
    PARTIES.map(|party| {
        let submits = |frame: &&Recorded| {
            (frame.from, frame.to) == (Node::Member(slot), party) && matches!(frame.bytes.first(), Some(2 | 3))
        };
        recording.iter().rfind(submits).map(|frame| frame.bytes.to_vec()).expect("the member announced")
    })
}

/// The frame with its header changed by `change` and signed by `signer`.
fn resigned(
    frame: &[u8],
    signer: u32,
    seed: u64,
    change: impl Fn(&mut wayleave_route_server::object::Description),
) -> Vec<u8> {
    let key = member_key(seed, signer);
    match FromMember::decode(frame).expect("a frame of ours") {
        FromMember::SubmitOne { header, body } => {
            let mut description = header.description.clone();
            change(&mut description);
            FromMember::SubmitOne { header: Box::new(signed_again(&header, description, &key)), body }.encode()
        }
        FromMember::SubmitTwo { header, share } => {
            let mut description = header.description.clone();
            change(&mut description);
            FromMember::SubmitTwo { header: Box::new(signed_again(&header, description, &key)), share }.encode()
        }
        _ => panic!("no object"),
    }
}

/// One signed header under another exchange's name, sound otherwise.
fn of_another_exchange(forger: &mut Forger, sim: &Sim) -> Object {
    let draft = forger.draft(sim, &[nlri("20.9.0.0/16")], &route(ATTACKER, &[64500], &[]));
    forger.seal(&Draft { exchange: "other-ix".to_owned(), ..draft })
}

in_both_modes!(old_and_foreign_headers_are_refused_and_counted);
fn old_and_foreign_headers_are_refused_and_counted(export: ExportMode) {
    let seed = 530;
    let mut exchange = exchange(seed, export);
    let prefix = nlri("20.0.0.0/16");
    exchange.sim.recording = Some(Vec::new());
    exchange.announce(ATTACKER, &[prefix], &route(ATTACKER, &[64500], &[]));
    exchange.check();
    let old = last_frames(exchange.sim.recording.as_deref().unwrap_or_default(), ATTACKER);
    for recommended in [1, 2] {
        exchange.recommend(&std::collections::BTreeMap::from([(1, recommended)]));
        exchange.check();
    }
    exchange.announce(ATTACKER, &[prefix], &route(ATTACKER, &[64501], &["64496:0:65002"]));
    exchange.check();
    let new = last_frames(exchange.sim.recording.take().as_deref().unwrap_or_default(), ATTACKER);
    let higher = 1 << 30;
    let foreign = of_another_exchange(&mut Forger::new(seed, ATTACKER), &exchange.sim);
    use Verdict::{LinkClosed, Refused};
    type Make<'a> = Box<dyn Fn(usize) -> Vec<u8> + 'a>;
    let cases: Vec<(&str, u32, Make, Verdict)> = vec![
        ("the same frame again", ATTACKER, Box::new(|p| new[p].clone()), Refused(Refusal::OldVersion)),
        ("an older version, as it was", ATTACKER, Box::new(|p| old[p].clone()), Refused(Refusal::OldVersion)),
        (
            "version zero",
            ATTACKER,
            Box::new(|p| resigned(&new[p], ATTACKER, seed, |d| d.version = 0)),
            Refused(Refusal::OldVersion),
        ),
        (
            "an epoch before the last",
            ATTACKER,
            Box::new(|p| {
                resigned(&new[p], ATTACKER, seed, |d| {
                    d.version = higher;
                    d.epoch -= 2;
                })
            }),
            Refused(Refusal::Epoch),
        ),
        (
            "an epoch to come",
            ATTACKER,
            Box::new(|p| {
                resigned(&new[p], ATTACKER, seed, |d| {
                    d.version = higher;
                    d.epoch = u64::MAX;
                })
            }),
            Refused(Refusal::Epoch),
        ),
        (
            "another member set",
            ATTACKER,
            Box::new(|p| {
                resigned(&new[p], ATTACKER, seed, |d| {
                    d.version = higher;
                    d.set += 1;
                })
            }),
            Refused(Refusal::Set),
        ),
        (
            "another exchange",
            ATTACKER,
            Box::new(|p| if p == 0 { foreign.to_one() } else { foreign.to_two() }),
            Refused(Refusal::Proof),
        ),
        ("another member's frame", 1, Box::new(|p| new[p].clone()), Refused(Refusal::Proof)),
        (
            "another member's slot, signed by its own key",
            1,
            Box::new(|p| resigned(&new[p], 1, seed, |d| d.version = higher)),
            Refused(Refusal::Proof),
        ),
        (
            "its own slot, signed by another's key",
            ATTACKER,
            Box::new(|p| resigned(&new[p], 1, seed, |d| d.version = higher)),
            Refused(Refusal::Proof),
        ),
        ("the other party's frame", ATTACKER, Box::new(|p| new[1 - p].clone()), LinkClosed),
    ];
    for (name, sender, make, verdict) in cases {
        for (p, party) in PARTIES.into_iter().enumerate() {
            exchange.sim.forget_events();
            let before = exchange.sim.party(party).expect("runs").counters().clone();
            assert!(exchange.sim.inject(Node::Member(sender), party, &make(p)), "{name}");
            exchange.sim.run_for(Duration::from_millis(10));
            let events: Vec<_> = exchange.sim.party_events.iter().filter(|(at, _)| *at == party).collect();
            let counters = exchange.sim.party(party).expect("runs").counters().clone();
            match verdict {
                Refused(expected) => {
                    let as_expected = |(_, event): &&(Node, PartyEvent)| matches!(event, PartyEvent::Refused { slot, reason, .. } if (*slot, *reason) == (sender, expected));
                    assert!(events.iter().any(as_expected), "{name} at {party:?}: {events:?}");
                    assert_eq!(counters.refused, before.refused + 1, "{name}");
                }
                LinkClosed => {
                    let named = PartyEvent::BadFrame {
                        slot: Some(sender),
                        what: "a frame meant for the other party".to_owned(),
                    };
                    assert!(events.iter().any(|(_, event)| *event == named), "{name} at {party:?}: {events:?}");
                    assert_eq!(counters.bad_frames, before.bad_frames + 1, "{name}");
                }
            }
            exchange.check();
        }
    }
}

/// Changes deliveries from `party` to `slot`, from the next tick that has one on.
fn change_deliveries(
    party: Node,
    slot: u32,
    change: impl Fn(&mut wayleave_route_server::frames::Deliver) + 'static,
) -> wayleave_lab::sim::Tamper {
    once(move |from, to, bytes| {
        if (from, to) != (party, Node::Member(slot)) {
            return None;
        }
        let Ok(ToMember::Tick(mut tick)) = ToMember::decode(bytes) else { return None };
        if tick.deliver.is_empty() {
            return None;
        }
        tick.deliver.iter_mut().for_each(&change);
        Some(FrameAction::Change(ToMember::Tick(tick).encode()))
    })
}

in_both_modes!(the_member_that_is_shown_another_blob_raises_an_alarm);
fn the_member_that_is_shown_another_blob_raises_an_alarm(export: ExportMode) {
    let mut exchange = exchange(540, export);
    let shown_another = 2;
    exchange.sim.tamper = Some(change_deliveries(PARTIES[0], shown_another, |delivery| {
        if let Body::Blob(blob) = &mut delivery.body {
            let mut other = blob.to_vec();
            other[100] ^= 1;
            *blob = other.into();
        }
    }));
    let prefix = nlri("20.0.0.0/16");
    exchange.announce(ATTACKER, &[prefix], &route(ATTACKER, &[64500], &[]));
    assert!(exchange.sim.settle(LIMIT));
    for slot in 1..4 {
        let alarms: Vec<_> = exchange.sim.alarms(slot).cloned().collect();
        let has_it = exchange.sim.tables[&slot].contains_key(&prefix.prefix);
        assert_eq!((alarms.len(), has_it), if slot == shown_another { (1, false) } else { (0, true) }, "{alarms:?}");
        assert!(alarms.iter().all(|alarm| alarm.suspects.contains(&Suspect::Party(1))));
    }
    let is_usual = |event: &PartyEvent| matches!(event, PartyEvent::Agreed { .. } | PartyEvent::Order { .. });
    assert!(exchange.sim.party_events.iter().all(|(_, event)| is_usual(event)));
}

in_both_modes!(an_old_blob_under_a_new_name_is_noticed);
fn an_old_blob_under_a_new_name_is_noticed(export: ExportMode) {
    let mut exchange = exchange(541, export);
    let prefix = nlri("20.0.0.0/16");
    exchange.sim.recording = Some(Vec::new());
    exchange.announce(ATTACKER, &[prefix], &route(ATTACKER, &[64500], &[]));
    exchange.check();
    let old = exchange.sim.recording.take().unwrap_or_default();
    let of_tick = |frame: &Recorded| match ToMember::decode(&frame.bytes) {
        Ok(ToMember::Tick(tick)) if (frame.from, frame.to) == (PARTIES[0], Node::Member(2)) => {
            tick.deliver.into_iter().next()
        }
        _ => None,
    };
    let old = old.iter().find_map(of_tick).expect("it was delivered");
    exchange.sim.tamper = Some(change_deliveries(PARTIES[0], 2, move |delivery| delivery.body.clone_from(&old.body)));
    exchange.announce(ATTACKER, &[prefix], &route(ATTACKER, &[64500, 64501], &[]));
    assert!(exchange.sim.settle(LIMIT));
    assert_eq!(exchange.sim.alarms(2).count(), 1);
    assert!(!exchange.sim.tables[&2].contains_key(&prefix.prefix), "the old route is not kept for the new one");
}

in_both_modes!(replayed_ticks_and_outcomes_are_counted_and_change_nothing);
fn replayed_ticks_and_outcomes_are_counted_and_change_nothing(export: ExportMode) {
    let mut exchange = exchange(542, export);
    exchange.sim.recording = Some(Vec::new());
    for slot in [0, 1] {
        exchange.announce(slot, &[nlri("20.0.0.0/16")], &route(slot, &[64500], &[]));
    }
    exchange.check();
    exchange.withdraw(0, &[nlri("20.0.0.0/16")]);
    exchange.check();
    let recorded = exchange.sim.recording.take().unwrap_or_default();
    let replay =
        recorded.iter().filter(|frame| frame.to == Node::Member(2) && matches!(frame.bytes.first(), Some(3 | 4)));
    let mut replayed = 0;
    for frame in replay {
        exchange.sim.inject(frame.from, frame.to, &frame.bytes);
        replayed += 1;
    }
    assert!(replayed >= 6, "{replayed}");
    exchange.check();
    let status = exchange.sim.member(2).expect("runs").status();
    assert_eq!((status.counters.replayed, status.counters.alarms), (replayed, 0));
}

/// What a forged object comes to at members that are in its export set.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Comes {
    /// It arrives as any other.
    All,
    /// Nobody may open it: its announcer hid it from everybody.
    Nobody,
    /// A party refuses it.
    ARefusal(Refusal),
    /// Every receiver opens it, and names its announcer in an alarm.
    AnAlarm,
    /// Every receiver opens it, and does not use it.
    NoUse,
}

in_both_modes!(forged_objects_come_to_their_verdicts);
fn forged_objects_come_to_their_verdicts(export: ExportMode) {
    let seed = 550;
    let mut exchange = exchange(seed, export);
    exchange.sim.play_member(ATTACKER);
    let mut forger = Forger::new(seed, ATTACKER);
    forger.greet(&mut exchange.sim, false);
    exchange.sim.run_for(Duration::from_secs(1));
    let honest = nlri("20.1.0.0/16");
    exchange.announce(1, &[honest], &route(1, &[64500], &[]));
    exchange.sim.run_for(Duration::from_secs(1));
    let mut others_key =
        Draft { key: [7; 16], ..forger.draft(&exchange.sim, &[nlri("20.2.0.0/16")], &route(0, &[1], &[])) };
    let sealed = forger.seal(&others_key);
    forger.submit(&mut exchange.sim, &sealed);
    exchange.sim.run_for(Duration::from_secs(1));
    others_key.key = [7; 16];

    type Forge = fn(&mut Draft);
    let cases: &[(&str, Forge, Comes)] = &[
        ("nothing forged", |_| (), Comes::All),
        ("the key is the dummy key", |d| d.key = *dummy_key(EXCHANGE, d.description.epoch).expose(), Comes::Nobody),
        ("the key is another route's", |d| d.key = [7; 16], Comes::All),
        ("the blob describes other prefixes", |d| set_prefixes(d, "20.77.0.0/16"), Comes::AnAlarm),
        ("the blob describes another version", |d| d.inside.version += 1, Comes::AnAlarm),
        ("the blob describes another slot", |d| d.inside.slot = 1, Comes::AnAlarm),
        ("the blob describes a withdrawal", |d| make_withdrawal(d), Comes::AnAlarm),
        ("attributes that do not decode", |d| d.attributes = vec![0x40, 1, 200, 0], Comes::AnAlarm),
        ("no attributes", |d| d.attributes.clear(), Comes::AnAlarm),
        ("a route signed by another member", |d| d.route_signer = 1, Comes::AnAlarm),
        ("a header signed by another member", |d| d.header_signer = 1, Comes::ARefusal(Refusal::Proof)),
        ("a blob of no size class", |d| d.excess = 1, Comes::ARefusal(Refusal::Size)),
        ("a blob that the header does not name", |d| d.other_blob = true, Comes::ARefusal(Refusal::Proof)),
        ("a row that is too short", |d| d.exported.clear(), Comes::ARefusal(Refusal::Size)),
        ("a row that is too long", |d| d.exported.extend([true; 9]), Comes::ARefusal(Refusal::Size)),
        ("the first AS is another member's", |d| d.attributes = route(1, &[1], &[]).encode(), Comes::NoUse),
        ("the next hop is another member's", |d| d.attributes = foreign_next_hop(), Comes::NoUse),
        ("a path through the receivers", |d| d.attributes = looped(), Comes::NoUse),
    ];
    for (i, (name, forge, comes)) in (10..).zip(cases) {
        exchange.sim.forget_events();
        let prefix = nlri(&format!("20.{i}.0.0/16"));
        let mut draft = forger.draft(&exchange.sim, &[prefix], &route(ATTACKER, &[64500], &[]));
        forge(&mut draft);
        let object = forger.seal(&draft);
        forger.submit(&mut exchange.sim, &object);
        exchange.sim.run_for(Duration::from_secs(5));
        let refused = exchange.sim.party_events.iter().find_map(|(_, event)| match event {
            PartyEvent::Refused { slot: ATTACKER, reason, .. } => Some(*reason),
            _ => None,
        });
        for slot in 1..4 {
            let table = &exchange.sim.tables[&slot];
            let alarms: Vec<_> = exchange.sim.alarms(slot).collect();
            assert!(table.contains_key(&honest.prefix) || slot == 1, "{name}: another member's route is gone");
            assert_eq!(table.contains_key(&prefix.prefix), *comes == Comes::All, "{name} at member {slot}: {alarms:?}");
            assert_eq!(alarms.len(), usize::from(*comes == Comes::AnAlarm), "{name} at member {slot}: {alarms:?}");
            let named = |s: &Suspect| matches!(s, Suspect::Announcer(None | Some(ATTACKER)));
            assert!(alarms.iter().all(|alarm| alarm.suspects.iter().any(named)), "{name}: {alarms:?}");
        }
        let expected = if let Comes::ARefusal(reason) = comes { Some(*reason) } else { None };
        assert_eq!(refused, expected, "{name}");
        assert!(exchange.sim.closed.is_empty(), "{name}: {:?}", exchange.sim.closed);
    }
}

fn set_prefixes(draft: &mut Draft, text: &str) {
    draft.inside.kind = Kind::Announce { prefixes: vec![nlri(text)] };
}

fn make_withdrawal(draft: &mut Draft) {
    let prefixes: Vec<Nlri> = draft.description.prefixes().to_vec();
    draft.inside.kind = Kind::Withdraw { prefixes };
}

fn foreign_next_hop() -> Vec<u8> {
    let mut editor = wayleave_bgp::Attributes::builder();
    editor.prepend(member_asn(ATTACKER), 1).origin(wayleave_bgp::Origin::Igp).ipv4_next_hop(member_address(1));
    editor.finish().encode()
}

fn looped() -> Vec<u8> {
    route(ATTACKER, &[member_asn(1).0, member_asn(2).0, member_asn(3).0], &[]).encode()
}

in_both_modes!(the_highest_version_burns_no_slot);
fn the_highest_version_burns_no_slot(export: ExportMode) {
    for last in [u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
        let seed = 560;
        let mut exchange = exchange(seed, export);
        exchange.announce(ATTACKER, &[nlri("20.0.0.0/16")], &route(ATTACKER, &[64500], &[]));
        exchange.check();
        exchange.sim.play_member(ATTACKER);
        let mut forger = Forger::new(seed, ATTACKER);
        forger.greet(&mut exchange.sim, false);
        exchange.sim.run_for(Duration::from_secs(1));
        forger.version = last - 1;
        let draft = forger.draft(&exchange.sim, &[nlri("20.5.0.0/16")], &route(ATTACKER, &[64500], &[]));
        let object = forger.seal(&draft);
        forger.submit(&mut exchange.sim, &object);
        exchange.sim.run_for(Duration::from_secs(1));
        let is_taken = exchange.sim.tables[&1].contains_key(&nlri("20.5.0.0/16").prefix);
        assert_eq!(is_taken, last == u64::from(u32::MAX), "{last}");
        for object in [forger.withdraw(&exchange.sim, &[nlri("20.5.0.0/16")]), forger.seal(&draft)] {
            forger.submit(&mut exchange.sim, &object);
        }
        exchange.announce(1, &[nlri("20.1.0.0/16")], &route(1, &[64500], &[]));
        exchange.sim.run_for(Duration::from_secs(5));
        assert!(exchange.sim.tables[&2].contains_key(&nlri("20.1.0.0/16").prefix), "{last}: others are served");
        // The honest software comes back in this slot, and announces.
        exchange.sim.start(Node::Member(ATTACKER));
        exchange.sim.cut_all();
        let steps = exchange.sim.recording.replace(Vec::new()).map_or(0, |r| r.len());
        assert_eq!(steps, 0);
        for _ in 0..50 {
            exchange.sim.connect_all();
            exchange.sim.run_for(Duration::from_millis(100));
        }
        let sent = exchange.sim.recording.take().unwrap_or_default().len();
        assert!(sent < 2000, "{last}: {sent} frames in 5 s");
        let own = exchange.sim.tables[&2].contains_key(&nlri("20.0.0.0/16").prefix);
        assert!(own, "{last}: what was announced before stays or is announced again");
        exchange.announce(ATTACKER, &[nlri("20.6.0.0/16")], &route(ATTACKER, &[64500], &[]));
        exchange.sim.run_for(Duration::from_secs(5));
        assert!(exchange.sim.tables[&2].contains_key(&nlri("20.6.0.0/16").prefix), "{last}: no version is left");
        for party in PARTIES {
            exchange.sim.kill(party);
            exchange.sim.start(party);
        }
        for _ in 0..50 {
            exchange.sim.connect_all();
            exchange.sim.run_for(Duration::from_millis(100));
        }
        assert!(exchange.sim.tables[&2].contains_key(&nlri("20.1.0.0/16").prefix), "{last}: after a restart");
    }
}

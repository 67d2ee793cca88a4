//! Order and position say nothing of whose a sealed route is: candidates are numbered by a key that the parties draw together.
//!
//! SIX, what any member sees: one that announces to nobody finds its own candidate in each place as often, whosever the others are; ticks
//! name all things by handles and hashes; the key is in no frame to a member.
//! SIX, members in league: the candidate between two of theirs is of any slot as often.
//! SIX, a candidate that goes and returns has its old place among those that stayed, also after restarts and a lost store.
//! SIX, a party with a member: what both see is the same whatever others may open, rank and get.
//! SIX, the key: drawn together, kept over restarts, taken over after one store was lost, drawn anew after both were, after a number that
//! both operators changed, and after an old copy; a process that dies at any step; a party that opens something else is named.
//! SIX, too many: with more candidates than are compared announcers of the others are told, and no receiver loses a route.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::Prefix;
use wayleave_lab::sim::bad::{Shape, once};
use wayleave_lab::sim::{EXCHANGE, FrameAction, Node, PARTIES, Recorded, Setup, Sim, Store, Tamper};
use wayleave_route_server::digests;
use wayleave_route_server::frames::{Candidate, FromMember, MAX_CANDIDATES, PartyFrame, Tick, ToMember};
use wayleave_route_server::member::MemberEvent;
use wayleave_route_server::object::{ExportMode, Handle};
use wayleave_route_server::party::PartyEvent;

use crate::common::{Exchange, LIMIT, in_both_modes, nlri, policy, route};

type Table = BTreeMap<Prefix, Attributes>;

const TICK: Duration = Duration::from_millis(50);
/// So that nobody may open it.
const TO_NOBODY: &str = "64496:0:0";

fn exchange(members: usize, seed: u64, export: ExportMode) -> Exchange {
    Exchange::new(Setup { members, tick: TICK, seed, export, ..Setup::default() })
}

fn prefix(number: u32) -> Nlri {
    nlri(&format!("20.{}.{}.0/24", number / 250, number % 250))
}

/// The prefix and index of each object that a member submitted.
fn submitted(frames: &[Recorded], slot: u32) -> BTreeMap<Handle, Vec<Nlri>> {
    let own = frames.iter().filter(|frame| (frame.from, frame.to) == (Node::Member(slot), PARTIES[0]));
    let header = |frame: &Recorded| match FromMember::decode(&frame.bytes) {
        Ok(FromMember::SubmitOne { header, body: Some(_) }) => Some(header),
        _ => None,
    };
    let headers = own.filter_map(header);
    headers.map(|header| (header.description.handle(EXCHANGE), header.description.prefixes().to_vec())).collect()
}

/// What party 1 sent a member with batches.
fn ticks(frames: &[Recorded], slot: u32) -> Vec<Tick> {
    let to = frames.iter().filter(|frame| (frame.from, frame.to) == (PARTIES[0], Node::Member(slot)));
    let tick = |frame: &Recorded| match ToMember::decode(&frame.bytes) {
        Ok(ToMember::Tick(tick)) => Some(*tick),
        _ => None,
    };
    to.filter_map(tick).collect()
}

/// The last list of candidates of each prefix that a member was sent, as far as it has one of its own objects in it.
fn listed(frames: &[Recorded], slot: u32) -> BTreeMap<Nlri, Vec<Candidate>> {
    let own = submitted(frames, slot);
    let mut listed = BTreeMap::new();
    for tick in ticks(frames, slot) {
        for instance in tick.instances {
            let nlri = instance.iter().find_map(|(handle, index)| Some(own.get(handle)?[usize::from(*index)]));
            nlri.into_iter().for_each(|nlri| drop(listed.insert(nlri, instance.to_vec())));
        }
    }
    listed
}

fn assert_ascending<T: Ord>(all: impl Iterator<Item = T>, what: &str) {
    let all: Vec<T> = all.collect();
    assert!(all.is_sorted(), "{what}");
}

/// Whether a tick names everything by handles and hashes.
fn assert_is_by_names(tick: &Tick) {
    let hashes: Vec<_> = tick.instances.iter().map(|instance| digests::instance(instance)).collect();
    let (live, later) = hashes.split_at(tick.live as usize);
    assert_ascending(live.iter(), "instances that changed");
    assert_ascending(later.iter(), "instances that are evaluated again");
    assert_ascending(tick.deliver.iter().map(|deliver| deliver.handle), "objects");
    assert_ascending(tick.dead.iter(), "prefixes that died");
    assert_ascending(tick.gone.iter(), "objects that are gone");
}

in_both_modes!(where_candidates_stand_tells_a_member_nothing_of_their_slots);
fn where_candidates_stand_tells_a_member_nothing_of_their_slots(export: ExportMode) {
    const CURIOUS: u32 = 2;
    const EACH: u32 = 120;
    let mut exchange = exchange(5, 1200, export);
    exchange.sim.recording = Some(Vec::new());
    // Of the first prefixes both others are of slots below its own, of the last of slots above.
    for number in 0..2 * EACH {
        exchange.announce(CURIOUS, &[prefix(number)], &route(CURIOUS, &[64500], &[TO_NOBODY]));
        let others = if number < EACH { [0, 1] } else { [3, 4] };
        for slot in others {
            exchange.announce(slot, &[prefix(number)], &route(slot, &[64500], &[]));
        }
        if number % 16 == 15 {
            exchange.sim.pass(TICK);
        }
    }
    exchange.check();
    exchange.withdraw(0, &[prefix(3), prefix(1)]);
    exchange.withdraw(4, &[prefix(EACH + 1), prefix(EACH + 7)]);
    exchange.sim.cut_member(1);
    exchange.check();
    let frames = exchange.sim.recording.take().expect("it records");
    let own = submitted(&frames, CURIOUS);
    let mut places = [[0; 3]; 2];
    for (nlri, candidates) in listed(&frames, CURIOUS) {
        let [_] = own.values().filter(|of| of.contains(&nlri)).collect::<Vec<_>>()[..] else { panic!("{nlri:?}") };
        let place = candidates.iter().position(|(handle, _)| own.contains_key(handle)).expect("its own");
        if candidates.len() == 3 {
            let number = (0..2 * EACH).position(|number| prefix(number) == nlri).expect("one of them");
            places[usize::from(number >= EACH as usize)][place] += 1;
        }
    }
    for (of, places) in places.iter().enumerate() {
        // A third each, and four standard deviations.
        assert!(places.iter().all(|count| (19..=61).contains(count)), "slots of half {of}: {places:?}");
    }
    for slot in 0..5 {
        let ticks = ticks(&frames, slot);
        assert!(ticks.iter().any(|tick| tick.live > 2), "several prefixes change with a batch");
        ticks.iter().for_each(assert_is_by_names);
    }
    let key = exchange.sim.order_key(PARTIES[0]).expect("agreed on");
    let to_members = frames.iter().filter(|frame| matches!(frame.to, Node::Member(_)));
    for frame in to_members {
        assert!(!frame.bytes.windows(32).any(|octets| octets == key.secret().expose()), "the key leaves the parties");
    }
    assert_eq!(exchange.sim.alarms(CURIOUS).count(), 0);
}

in_both_modes!(members_in_league_learn_nothing_of_the_slots_between_theirs);
fn members_in_league_learn_nothing_of_the_slots_between_theirs(export: ExportMode) {
    const LEAGUE: [u32; 2] = [1, 3];
    const EACH: u32 = 80;
    let mut exchange = exchange(5, 1201, export);
    exchange.sim.recording = Some(Vec::new());
    let announcer = |number: u32| number % 3 * 2;
    for number in 0..3 * EACH {
        for slot in LEAGUE {
            exchange.announce(slot, &[prefix(number)], &route(slot, &[64500], &[TO_NOBODY]));
        }
        let slot = announcer(number);
        exchange.announce(slot, &[prefix(number)], &route(slot, &[64500], &[TO_NOBODY]));
        if number % 16 == 15 {
            exchange.sim.pass(TICK);
        }
    }
    exchange.check();
    let frames = exchange.sim.recording.take().expect("it records");
    let own: BTreeSet<Handle> = LEAGUE.iter().flat_map(|slot| submitted(&frames, *slot).into_keys()).collect();
    let mut places: BTreeMap<u32, [u32; 3]> = BTreeMap::new();
    for (nlri, candidates) in listed(&frames, LEAGUE[0]) {
        let number = (0..3 * EACH).find(|number| prefix(*number) == nlri).expect("one of them");
        assert_eq!(candidates.len(), 3);
        let place = candidates.iter().position(|(handle, _)| !own.contains(handle)).expect("the sealed one");
        places.entry(announcer(number)).or_default()[place] += 1;
    }
    assert_eq!(places.len(), 3);
    for (slot, places) in places {
        assert!(places.iter().all(|count| (10..=44).contains(count)), "slot {slot}: {places:?}");
    }
}

in_both_modes!(a_reload_does_not_show_prefixes_by_their_order);
fn a_reload_does_not_show_prefixes_by_their_order(export: ExportMode) {
    const ROUTES: u32 = 120;
    let mut exchange = exchange(3, 1212, export);
    (0..ROUTES).for_each(|number| exchange.announce(0, &[prefix(number)], &route(0, &[64500], &[TO_NOBODY])));
    exchange.check();
    exchange.sim.recording = Some(Vec::new());
    exchange.set_policy(0, &policy("[[rule]]\ndirection = \"import\"\nclass = 7\n"));
    exchange.check();
    let frames = exchange.sim.recording.take().expect("it records");
    let own = submitted(&frames, 0);
    // Batch after batch, as another member sees them.
    let batches: Vec<Vec<Nlri>> = ticks(&frames, 1)
        .into_iter()
        .map(|tick| tick.deliver.iter().filter_map(|deliver| Some(own.get(&deliver.handle)?[0])).collect())
        .filter(|batch: &Vec<Nlri>| !batch.is_empty())
        .collect();
    assert_eq!(batches.iter().map(Vec::len).sum::<usize>(), ROUTES as usize);
    assert!(batches.len() > 1, "{} batches", batches.len());
    let (low, high) = (batches[0].iter().min(), batches[0].iter().max());
    let between = batches[1..].iter().flatten().filter(|nlri| Some(*nlri) > low && Some(*nlri) < high).count();
    assert!(between > ROUTES as usize / 3, "{between} of the others lie between those of the first batch");
}

/// The handles of the candidates of a prefix, by announcer, in their order.
fn order_of(exchange: &mut Exchange, frames: &[Recorded], nlri: Nlri) -> Vec<u32> {
    let slots: Vec<u32> = exchange.sim.tables.keys().copied().collect();
    let by: BTreeMap<Handle, u32> =
        slots.iter().flat_map(|slot| submitted(frames, *slot).into_keys().map(|handle| (handle, *slot))).collect();
    let candidates = slots.iter().find_map(|slot| listed(frames, *slot).remove(&nlri)).expect("it is listed");
    candidates.iter().map(|(handle, _)| by[handle]).collect()
}

in_both_modes!(a_candidate_that_goes_and_returns_has_its_old_place);
fn a_candidate_that_goes_and_returns_has_its_old_place(export: ExportMode) {
    let mut exchange = exchange(6, 1202, export);
    exchange.sim.recording = Some(Vec::new());
    let announce = |exchange: &mut Exchange, slot: u32, tail: u32| {
        exchange.announce(slot, &[prefix(0)], &route(slot, &[tail], &[]));
    };
    (0..6).for_each(|slot| announce(&mut exchange, slot, 64500));
    exchange.check();
    let frames = exchange.sim.recording.clone().expect("it records");
    let before = order_of(&mut exchange, &frames, prefix(0));
    assert_eq!(before.iter().collect::<BTreeSet<_>>().len(), 6);
    let key = exchange.sim.order_key(PARTIES[0]).expect("agreed on");
    let check = |exchange: &mut Exchange, what: &str| {
        exchange.check();
        let frames = exchange.sim.recording.clone().expect("it records");
        assert_eq!(order_of(exchange, &frames, prefix(0)), before, "{what}");
    };
    for slot in 0..6 {
        exchange.withdraw(slot, &[prefix(0)]);
        exchange.check();
        announce(&mut exchange, slot, 64501);
        check(&mut exchange, "gone and back");
        announce(&mut exchange, slot, 64502);
        check(&mut exchange, "another version");
    }
    for party in PARTIES {
        exchange.sim.kill(party);
        exchange.sim.start(party);
        announce(&mut exchange, 0, 64503);
        check(&mut exchange, "a restart");
        exchange.sim.kill(party);
        exchange.sim.store(party).clear();
        exchange.sim.start(party);
        exchange.check();
        announce(&mut exchange, 0, 64504);
        check(&mut exchange, "a lost store");
    }
    assert!(PARTIES.iter().all(|party| exchange.sim.order_key(*party).as_ref() == Some(&key)));
}

/// How a party came to the key since events were last forgotten.
fn agreements(sim: &Sim, party: Node) -> Vec<bool> {
    let drawn = |(by, event): &(Node, PartyEvent)| match event {
        PartyEvent::Order { is_drawn, .. } if *by == party => Some(*is_drawn),
        _ => None,
    };
    sim.party_events.iter().filter_map(drawn).collect()
}

/// Both parties have the same key.
fn same_key(sim: &Sim) -> [u8; 32] {
    let [one, two] = PARTIES.map(|party| sim.order_key(party).expect("it is stored"));
    assert!(one == two, "the parties have different keys");
    *one.secret().expose()
}

/// Both parties end, `change` has its way with their stores, and they start again.
fn restart(exchange: &mut Exchange, change: impl Fn(&mut Sim)) {
    exchange.sim.forget_events();
    PARTIES.into_iter().for_each(|party| exchange.sim.kill(party));
    change(&mut exchange.sim);
    PARTIES.into_iter().for_each(|party| exchange.sim.start(party));
    exchange.check();
}

fn with_ties(seed: u64, export: ExportMode) -> Exchange {
    let mut exchange = exchange(4, seed, export);
    for number in 0..24 {
        for slot in 0..3 {
            exchange.announce(slot, &[prefix(number)], &route(slot, &[64500], &[]));
        }
    }
    exchange.check();
    exchange
}

in_both_modes!(the_parties_draw_the_key_together_and_keep_it);
fn the_parties_draw_the_key_together_and_keep_it(export: ExportMode) {
    let mut exchange = with_ties(1203, export);
    assert_eq!(PARTIES.map(|party| agreements(&exchange.sim, party)), [[true], [true]]);
    let first = same_key(&exchange.sim);
    let both = |exchange: &Exchange| PARTIES.map(|party| agreements(&exchange.sim, party));
    restart(&mut exchange, |_| {});
    assert_eq!((both(&exchange), same_key(&exchange.sim)), ([vec![], vec![]], first), "a restart");
    for (i, party) in PARTIES.into_iter().enumerate() {
        restart(&mut exchange, |sim| sim.store(party).clear());
        let mut expected = [vec![], vec![]];
        expected[i] = vec![false];
        assert_eq!((both(&exchange), same_key(&exchange.sim)), (expected, first), "{party:?} lost its store");
    }
    // Both may be lost, one is of another key, both operators want another one.
    let drawn = [vec![true], vec![true]];
    let mut keys = BTreeSet::from([first]);
    restart(&mut exchange, |sim| PARTIES.into_iter().for_each(|party| sim.store(party).clear()));
    assert_eq!(both(&exchange), drawn, "both lost");
    assert!(keys.insert(same_key(&exchange.sim)));
    let is_key = |(table, key): &(String, Vec<u8>)| table == "meta" && key == b"order";
    for party in PARTIES {
        restart(&mut exchange, |sim| {
            let (_, value) = sim.store(party).iter_mut().find(|(of, _)| is_key(of)).expect("it is stored");
            *value.last_mut().expect("a key") ^= 1;
        });
        assert_eq!(both(&exchange), drawn, "an old copy at {party:?}");
        assert!(keys.insert(same_key(&exchange.sim)));
    }
    restart(&mut exchange, |sim| sim.orders.extend(PARTIES.map(|party| (party, 2))));
    assert_eq!(both(&exchange), drawn, "another number");
    assert!(keys.insert(same_key(&exchange.sim)));
    let slots: Vec<u32> = exchange.sim.tables.keys().copied().collect();
    assert!(slots.iter().all(|slot| exchange.sim.alarms(*slot).count() == 0));
}

#[test]
fn one_operator_alone_changes_no_order() {
    let mut exchange = with_ties(1204, ExportMode::Direct);
    let before = same_key(&exchange.sim);
    let [one, two] = PARTIES;
    exchange.sim.kill(two);
    exchange.sim.orders.insert(two, 2);
    exchange.sim.forget_events();
    exchange.sim.start(two);
    exchange.sim.run_for(Duration::from_secs(1));
    let why = "it has another number of the order of candidates; compare `order` in both configurations";
    let refused =
        |(_, event): &&(Node, PartyEvent)| matches!(event, PartyEvent::BadFrame { slot: None, what } if what == why);
    assert!(exchange.sim.party_events.iter().any(|event| refused(&event)), "{:?}", exchange.sim.party_events);
    exchange.sim.kill(one);
    exchange.sim.orders.insert(one, 2);
    exchange.sim.start(one);
    exchange.check();
    assert_ne!(same_key(&exchange.sim), before);
}

#[test]
fn a_party_that_dies_at_any_step_of_the_drawing_leaves_one_key() {
    // Which of the parties had the key when one of them died.
    let mut found = BTreeSet::new();
    for victim in PARTIES {
        for steps in 0..120 {
            let mut exchange = Exchange::of(Sim::new(Setup { members: 3, seed: 1205 + steps % 4, ..Setup::default() }));
            for _ in 0..steps {
                exchange.sim.step(Duration::from_secs(1));
            }
            exchange.sim.kill(victim);
            found.insert(PARTIES.map(|party| exchange.sim.order_key(party).is_some()));
            exchange.sim.start(victim);
            assert!(exchange.sim.settle(LIMIT), "{victim:?}, {steps} steps");
            for slot in 0..2 {
                exchange.announce(slot, &[prefix(0)], &route(slot, &[64500], &[]));
            }
            exchange.check();
            let key = same_key(&exchange.sim);
            exchange.sim.cut_parties();
            exchange.check();
            assert_eq!(same_key(&exchange.sim), key);
        }
    }
    assert_eq!(found.len(), 4, "neither, either and both: {found:?}");
}

/// Changes frames from one party to the other, once, if it can.
fn between(from: Node, change: impl Fn(PartyFrame) -> Option<PartyFrame> + 'static) -> Tamper {
    once(move |by, to, bytes| {
        let is_party = by == from && matches!(to, Node::Party(_));
        let frame = is_party.then(|| PartyFrame::decode(bytes).ok()).flatten()?;
        Some(FrameAction::Change(change(frame)?.encode()))
    })
}

#[test]
fn a_party_that_does_not_open_what_it_committed_to_is_named() {
    let opened = "its share of the order of candidates is not the one that it committed to";
    let told = "its key of the order of candidates is not the one that its hello shows";
    let other = wayleave_crypto::secret::Seed::new([9; 32]);
    for (i, from) in PARTIES.into_iter().enumerate() {
        let by = PARTIES[1 - i];
        let share = other.clone();
        let opens = move |frame| match frame {
            PartyFrame::OrderShare { opening, .. } => Some(PartyFrame::OrderShare { opening, share: share.clone() }),
            _ => None,
        };
        let key = other.clone();
        let tells = move |frame| match frame {
            PartyFrame::OrderKey { .. } => Some(PartyFrame::OrderKey { key: key.clone() }),
            _ => None,
        };
        let skips = |frame| match frame {
            PartyFrame::OrderShare { .. } => Some(PartyFrame::Go { seq: 1 }),
            _ => None,
        };
        let early = "a frame before the order of candidates was agreed on";
        let cases: [(&str, Tamper, [bool; 2]); 3] = [
            (opened, between(from, opens), [true, true]),
            (told, between(from, tells), [from != PARTIES[0], from != PARTIES[1]]),
            (early, between(from, skips), [true, true]),
        ];
        for (why, tamper, lost) in cases {
            let mut exchange = with_ties(1206, ExportMode::Direct);
            PARTIES.into_iter().for_each(|party| exchange.sim.kill(party));
            for (party, lost) in PARTIES.into_iter().zip(lost) {
                if lost {
                    exchange.sim.store(party).clear();
                }
            }
            exchange.sim.forget_events();
            exchange.sim.tamper = Some(tamper);
            PARTIES.into_iter().for_each(|party| exchange.sim.start(party));
            exchange.sim.run_for(Duration::from_secs(1));
            let named = |(of, event): &&(Node, PartyEvent)| {
                *of == by && matches!(event, PartyEvent::BadFrame { slot: None, what } if what == why)
            };
            assert_eq!(
                exchange.sim.party_events.iter().filter(named).count(),
                1,
                "{why}: {:?}",
                exchange.sim.party_events
            );
            assert!(exchange.sim.closed.iter().any(|(who, of, what)| (*who, *of, what.as_str()) == (by, from, why)));
            // The next link is none of the lie.
            exchange.check();
            same_key(&exchange.sim);
        }
    }
}

in_both_modes!(ties_fall_to_the_lowest_number_and_favour_no_slot);
fn ties_fall_to_the_lowest_number_and_favour_no_slot(export: ExportMode) {
    let mut exchange = exchange(4, 1207, export);
    for number in 0..150 {
        for slot in 0..3 {
            exchange.announce(slot, &[prefix(number)], &route(slot, &[64500], &[]));
        }
        if number % 16 == 15 {
            exchange.sim.pass(TICK);
        }
    }
    // Against the oracle, which numbers them itself.
    exchange.check();
    let mut wins = BTreeMap::<u32, u32>::new();
    for attributes in exchange.sim.tables[&3].values() {
        let winner = (0..3).find(|slot| attributes.as_path().first_asn() == Some(crate::common::asn(*slot)));
        *wins.entry(winner.expect("one of the three")).or_default() += 1;
    }
    assert!(wins.len() == 3 && wins.values().all(|wins| (26..=74).contains(wins)), "{wins:?}");
}

/// Paths of each announcer: as many as one may have compete.
const PATHS: u32 = 4;
/// As many announcers as fill a list of candidates.
const FULL: u32 = MAX_CANDIDATES as u32 / PATHS;

/// A list that is full but for the last announcer. Of each announcer the next slot alone may open the last path.
fn crowd(seed: u64) -> Exchange {
    let mut exchange = Exchange::new(Setup { members: FULL as usize + 2, tick: TICK, seed, ..Setup::default() });
    (0..FULL).for_each(|slot| announce_paths(&mut exchange, slot, 64500));
    exchange
}

fn announce_paths(exchange: &mut Exchange, slot: u32, tail: u32) {
    let to_next = format!("64496:1:{}", crate::common::asn(receiver(slot)).0);
    for path_id in 1..=PATHS {
        let communities: &[&str] = if path_id == PATHS { &[TO_NOBODY, &to_next] } else { &[TO_NOBODY] };
        let path = Nlri { path_id, ..prefix(0) };
        exchange.announce(slot, &[path], &route(slot, &[tail, 64600 + path_id], communities));
    }
}

fn receiver(slot: u32) -> u32 {
    (slot + 1) % (FULL + 1)
}

fn told(exchange: &Exchange) -> BTreeSet<u32> {
    let of = |(slot, event): &(u32, MemberEvent)| matches!(event, MemberEvent::NotCompeting { .. }).then_some(*slot);
    exchange.sim.member_events.iter().filter_map(of).collect()
}

/// Announcers with routes that do not compete, as they know.
fn outside(exchange: &mut Exchange) -> BTreeMap<u32, usize> {
    let status = |slot: u32| (slot, exchange.sim.member(slot).map_or(0, |member| member.status().not_competing));
    (0..FULL + 2).map(status).filter(|(_, routes)| *routes > 0).collect()
}

#[test]
fn beyond_what_is_compared_announcers_are_told_and_no_receiver_loses_a_route() {
    let mut exchange = crowd(1208);
    exchange.check();
    assert_eq!((told(&exchange), outside(&mut exchange)), (BTreeSet::new(), BTreeMap::new()));
    let last = FULL;
    let changes = exchange.sim.router_changes.len();
    announce_paths(&mut exchange, last, 64500);
    // Against the oracle, to which nothing is too many: every receiver has the one route that it may have.
    exchange.check();
    let out = outside(&mut exchange);
    assert_eq!(out.values().sum::<usize>(), PATHS as usize, "as many give way as came");
    assert_eq!(out.keys().copied().collect::<BTreeSet<_>>(), told(&exchange));
    assert!(out.values().all(|routes| *routes == 1), "first paths go before others: {out:?}");
    let withdrawn =
        |(slot, of, is_there): &(u32, Prefix, bool)| !is_there && *of == prefix(0).prefix && *slot != receiver(last);
    assert!(!exchange.sim.router_changes[changes..].iter().any(withdrawn), "no route flaps");
    let first = *out.keys().next().expect("there are some");
    let why = exchange.sim.member(first).expect("runs").why(prefix(0).prefix).own;
    assert_eq!(why.iter().filter(|route| route.reason.outcome.contains("does not compete")).count(), 1, "{why:?}");
    let kept = exchange.sim.member(receiver(first)).expect("runs").why(prefix(0).prefix).routes;
    let rules: Vec<&str> = kept
        .iter()
        .filter(|route| route.route.reason.outcome == "installed")
        .map(|route| route.route.reason.rule.as_ref())
        .collect();
    assert!(rules.len() == 1 && rules[0].contains("does not compete"), "{rules:?}");
    // Other versions of them arrive, and whoever starts from nothing has them, too.
    out.keys().for_each(|slot| announce_paths(&mut exchange, *slot, 64501));
    exchange.check();
    for slot in out.keys() {
        exchange.sim.kill(Node::Member(receiver(*slot)));
        exchange.sim.start(Node::Member(receiver(*slot)));
    }
    exchange.check();
    exchange.sim.cut_parties();
    exchange.check();
    assert_eq!(outside(&mut exchange), out, "they are outside still, and know it");
    // Room again: one that was away learns it when it is back.
    exchange.sim.cut_member(first);
    for path_id in 1..=PATHS {
        exchange.withdraw(last, &[Nlri { path_id, ..prefix(0) }]);
    }
    exchange.sim.run_for(Duration::from_secs(1));
    exchange.check();
    assert_eq!(outside(&mut exchange), BTreeMap::new());
    let slots: Vec<u32> = exchange.sim.tables.keys().copied().collect();
    assert!(slots.iter().all(|slot| exchange.sim.alarms(*slot).count() == 0));
}

#[test]
fn what_a_member_sends_does_not_depend_on_routes_that_do_not_compete() {
    // The receivers may open the last paths, or nobody may: all that the parties see is the same.
    let play = |is_open: bool| {
        let mut exchange =
            Exchange::new(Setup { members: FULL as usize + 2, tick: TICK, seed: 1209, ..Setup::default() });
        exchange.sim.recording = Some(Vec::new());
        for (slot, path_id) in (0..=FULL).flat_map(|slot| (1..=PATHS).map(move |path_id| (slot, path_id))) {
            let communities: &[&str] = if is_open { &[] } else { &[TO_NOBODY] };
            let path = Nlri { path_id, ..prefix(0) };
            exchange.announce(slot, &[path], &route(slot, &[64500], communities));
        }
        assert!(exchange.sim.settle(LIMIT));
        let tables = exchange.sim.tables.values().map(BTreeMap::len).sum::<usize>();
        let shapes: Vec<_> = exchange.sim.recording.take().expect("it records").iter().map(Recorded::shape).collect();
        (tables, shapes)
    };
    let (open, sealed) = (play(true), play(false));
    assert_eq!((open.0, sealed.0), (FULL as usize + 2, 0));
    let differs = open.1.iter().zip(&sealed.1).find(|(a, b)| a != b);
    assert_eq!((differs, open.1.len()), (None, sealed.1.len()));
}

#[test]
fn a_key_that_is_drawn_anew_lists_everything_anew_and_loses_nobody_a_route() {
    let mut exchange = with_ties(1210, ExportMode::Direct);
    let stores: Vec<Store> = PARTIES.iter().map(|party| exchange.sim.store(*party).clone()).collect();
    let changes = exchange.sim.router_changes.len();
    restart(&mut exchange, |sim| {
        for (party, store) in PARTIES.into_iter().zip(&stores) {
            *sim.store(party) = store.clone();
            sim.orders.insert(party, 7);
        }
    });
    let withdrawn = exchange.sim.router_changes[changes..].iter().filter(|(.., is_there)| !is_there).count();
    assert_eq!(withdrawn, 0);
}

/// The member in league with a party, and what both of them see of a life in which others may open this and rank so.
fn of_party_and_member(export: ExportMode, hidden_from: u32, rules: &str) -> (Vec<Shape>, Table, usize) {
    const IN_LEAGUE: u32 = 2;
    let mut exchange = exchange(5, 1211, export);
    for slot in [3, 4] {
        exchange.set_policy(slot, &policy(rules));
    }
    exchange.check();
    exchange.sim.recording = Some(Vec::new());
    for (slot, number) in [0, 1, 3].into_iter().flat_map(|slot| (0..6).map(move |number| (slot, number))) {
        // What it may have itself is the same.
        let hides = [format!("64496:0:{}", crate::common::asn(hidden_from).0), "64496:0:65002".to_owned()];
        let hides: Vec<&str> = hides.iter().map(String::as_str).take(1 + usize::from(number == slot)).collect();
        exchange.announce(slot, &[prefix(number)], &route(slot, &[64500 + number], &hides));
    }
    exchange.check();
    exchange.withdraw(1, &[prefix(2)]);
    exchange.check();
    let others = [3, 4].map(|slot| exchange.sim.tables[&slot].len()).iter().sum();
    let shapes = exchange.sim.recording.take().expect("it records").iter().map(Recorded::shape).collect();
    (shapes, exchange.sim.tables[&IN_LEAGUE].clone(), others)
}

in_both_modes!(a_party_with_a_member_sees_the_same_whatever_others_may_open);
fn a_party_with_a_member_sees_the_same_whatever_others_may_open(export: ExportMode) {
    let (shapes, table, others) = of_party_and_member(export, 0, "");
    let reject = "[[rule]]\ndirection = \"import\"\nreject = true\n";
    let favour = "[[rule]]\ndirection = \"import\"\npeer = [\"65001\"]\nclass = 250\n";
    let mut differ = BTreeSet::from([others]);
    for (hidden_from, rules) in [(4, ""), (0, reject), (3, favour)] {
        let (others_shapes, others_table, others) = of_party_and_member(export, hidden_from, rules);
        let at = shapes.iter().zip(&others_shapes).find(|(a, b)| a != b);
        assert_eq!((at, others_shapes.len()), (None, shapes.len()), "hidden from {hidden_from}, {rules}");
        assert_eq!(others_table, table);
        differ.insert(others);
    }
    assert!(differ.len() > 1, "the runs do not differ");
}

//! Flipped bits, on the way or by a party: noticed before delivery or by the receiver's alarm, and no table is wrong.
//!
//! SIX-05: bits of shares, blobs and results flipped on their way: noticed; no table wrong.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use crate::common::{Exchange, LIMIT, in_both_modes, nlri, route};
use wayleave_bgp::Attributes;
use wayleave_core::Prefix;
use wayleave_lab::sim::bad::once;
use wayleave_lab::sim::{FrameAction, Node, PARTIES, Recorded, Setup, Sim};
use wayleave_route_server::frames::{Body, Deliver, FromMember, PartyFrame, ToMember};
use wayleave_route_server::member::Suspect;
use wayleave_route_server::object::ExportMode;
use wayleave_route_server::party::PartyEvent;

const RECEIVER: u32 = 2;

fn flip(bytes: &mut [u8], bit: usize) {
    let at = (bit / 8) % bytes.len();
    bytes[at] ^= 1 << (bit % 8);
}

/// Flips a bit of the next delivery from `party` to the receiver.
fn flip_delivery(party: Node, what: impl Fn(&mut Deliver) + 'static) -> wayleave_lab::sim::Tamper {
    once(move |from, to, bytes| {
        let Ok(ToMember::Tick(mut tick)) = ToMember::decode(bytes) else { return None };
        if (from, to) != (party, Node::Member(RECEIVER)) || tick.deliver.is_empty() {
            return None;
        }
        tick.deliver.iter_mut().for_each(&what);
        Some(FrameAction::Change(ToMember::Tick(tick).encode()))
    })
}

/// What went over each link, in order: which of the parties has a result of both first is chance. Without grants of credit,
/// which follow from how much went over the link before.
fn shapes(recording: &[Recorded]) -> Vec<(Node, Node, usize)> {
    let is_grant = |frame: &&Recorded| match (frame.from, frame.to) {
        (Node::Member(_), _) => matches!(FromMember::decode(&frame.bytes), Ok(FromMember::Credit { .. })),
        (_, Node::Member(_)) => matches!(ToMember::decode(&frame.bytes), Ok(ToMember::Credit { .. })),
        _ => matches!(PartyFrame::decode(&frame.bytes), Ok(PartyFrame::Credit { .. })),
    };
    let frames = recording.iter().filter(|frame| !is_grant(frame));
    let mut shapes: Vec<_> = frames.map(|frame| (frame.from, frame.to, frame.bytes.len())).collect();
    shapes.sort_by_key(|(from, to, _)| (*from, *to));
    shapes
}

in_both_modes!(each_flipped_bit_of_a_delivery_is_an_alarm_that_no_party_sees);
fn each_flipped_bit_of_a_delivery_is_an_alarm_that_no_party_sees(export: ExportMode) {
    let mut exchange = Exchange::new(Setup { members: 4, seed: 600, export, ..Setup::default() });
    // Each bit of both shares; of blob and hash one bit of each byte.
    let share = (0..128).flat_map(|bit| [(PARTIES[0], "share", bit), (PARTIES[1], "share", bit)]);
    let blob = (0..512).map(|byte| (PARTIES[0], "body", byte * 8 + byte % 8));
    let hash = (0..32).map(|byte| (PARTIES[1], "body", byte * 8 + byte % 8));
    let cases: Vec<_> = share.chain(blob).chain(hash).collect();
    let prefix = nlri("20.0.0.0/16");
    let mut untouched = None;
    // In mode `mpc` each case then begins with a full pool of correlations.
    exchange.announce(0, &[prefix], &route(0, &[64000], &[]));
    exchange.check();
    exchange.withdraw(0, &[prefix]);
    exchange.check();
    for (i, (party, field, bit)) in (1u32..).zip(cases) {
        let is_hidden = i.is_multiple_of(2);
        let communities: &[&str] = if is_hidden { &["64496:0:65002"] } else { &["64496:0:65001"] };
        let attributes = route(0, &[64000 + i], communities);
        exchange.sim.forget_events();
        if untouched.is_some() {
            exchange.sim.tamper = Some(flip_delivery(party, move |delivery| match (&mut delivery.body, field) {
                (_, "share") => flip(&mut delivery.share, bit),
                (Body::Blob(blob), _) => {
                    let mut bytes = blob.to_vec();
                    flip(&mut bytes, bit);
                    *blob = bytes.into();
                }
                (Body::Hash(hash), _) => flip(hash, bit),
            }));
        }
        exchange.sim.fill_pools();
        exchange.sim.recording = Some(Vec::new());
        exchange.announce(0, &[prefix], &attributes);
        assert!(exchange.sim.settle(LIMIT));
        let seen = shapes(&exchange.sim.recording.take().unwrap_or_default());
        exchange.withdraw(0, &[prefix]);
        let had_it = exchange.sim.tables[&RECEIVER].contains_key(&prefix.prefix);
        assert!(exchange.sim.settle(LIMIT));
        let Some(honest) = &untouched else {
            untouched = Some(seen);
            continue;
        };
        let alarms: Vec<_> = exchange.sim.alarms(RECEIVER).collect();
        assert_eq!((alarms.len(), had_it), (1, false), "bit {bit} of {field} from {party:?}, hidden: {is_hidden}");
        assert!(alarms[0].suspects.contains(&Suspect::Party(1)) && alarms[0].suspects.contains(&Suspect::Party(2)));
        assert!((0..4).filter(|slot| *slot != RECEIVER).all(|slot| exchange.sim.alarms(slot).count() == 0));
        assert_eq!(seen, *honest, "bit {bit} of {field} from {party:?}: the parties could tell");
        assert!(exchange.sim.party_events.is_empty(), "{:?}", exchange.sim.party_events);
    }
}

in_both_modes!(each_flipped_byte_of_a_submission_is_refused_before_delivery);
fn each_flipped_byte_of_a_submission_is_refused_before_delivery(export: ExportMode) {
    let prefix = nlri("20.0.0.0/16");
    for (p, party) in PARTIES.into_iter().enumerate() {
        let mut exchange = Exchange::new(Setup { members: 3, seed: 610, export, ..Setup::default() });
        let is_submission = move |from: Node, to: Node, bytes: &[u8]| {
            let submits = matches!(
                FromMember::decode(bytes),
                Ok(FromMember::SubmitOne { body: Some(_), .. } | FromMember::SubmitTwo { share: Some(_), .. })
            );
            submits && (from, to) == (Node::Member(0), party)
        };
        // Party 1 gets a blob of one size class, party 2 a row: both frames always have one length.
        let row = export.row_bytes(3);
        let len = if p == 0 { 861 } else { 277 + row };
        for byte in 0..len {
            exchange.sim.forget_events();
            exchange.sim.tamper = Some(once(move |from, to, bytes| {
                is_submission(from, to, bytes).then(|| {
                    let mut bytes = bytes.to_vec();
                    flip(&mut bytes, byte * 8 + byte % 8);
                    FrameAction::Change(bytes)
                })
            }));
            exchange.announce(0, &[prefix], &route(0, &[64500], &["64496:0:65002"]));
            assert!(exchange.sim.settle(LIMIT), "byte {byte} to {party:?}");
            let noticed = exchange.sim.party_events.iter().any(|(at, event)| {
                *at == party
                    && matches!(event, PartyEvent::Refused { slot: 0, .. } | PartyEvent::BadFrame { slot: Some(0), .. })
            });
            assert!(noticed, "byte {byte} to {party:?}: {:?}", exchange.sim.party_events);
            assert!((0..3).all(|slot| exchange.sim.alarms(slot).count() == 0), "byte {byte} to {party:?}");
            assert!(!exchange.sim.tables[&2].contains_key(&prefix.prefix), "byte {byte} to {party:?}: forbidden");
            exchange.withdraw(0, &[prefix]);
            exchange.check();
        }
    }
}

/// For each member and prefix the routes that it may have at some time of the scenario.
type Allowed = BTreeMap<(u32, Prefix), BTreeSet<Vec<u8>>>;

fn allow(allowed: &mut Allowed, exchange: &Exchange) {
    for slot in 0..3 {
        for text in ["20.0.0.0/16", "20.1.0.0/16"] {
            let prefix = nlri(text).prefix;
            let offers = exchange.oracle.offers(slot, prefix).into_iter().map(|offer| offer.attributes.encode());
            allowed.entry((slot, prefix)).or_default().extend(offers);
        }
    }
}

fn assert_allowed(sim: &Sim, allowed: &Allowed, name: &str) {
    let check = |slot: u32, prefix: &Prefix, attributes: &Attributes| {
        let may = allowed.get(&(slot, *prefix)).is_some_and(|routes| routes.contains(&attributes.encode()));
        assert!(may, "{name}: member {slot} has a forbidden or false route to {prefix}: {attributes:?}");
    };
    for (slot, table) in &sim.tables {
        table.iter().for_each(|(prefix, attributes)| check(*slot, prefix, attributes));
    }
}

/// Time passes, links that were closed are made anew, and nobody ever has what it may not have.
fn live(sim: &mut Sim, time: Duration, allowed: &Allowed, name: &str) {
    for _ in 0..time.as_millis() / 500 {
        sim.connect_all();
        sim.run_for(Duration::from_millis(500));
        assert_allowed(sim, allowed, name);
    }
}

struct Flip {
    /// Which frame of the run.
    frame: usize,
    bit: usize,
}

type Carried = Rc<RefCell<Vec<(Node, Node, Vec<u8>)>>>;

/// Plays the scenario with at most one flip. At the end, over fresh links, every table must be right.
fn play(export: ExportMode, flip_at: Option<Flip>, name: &str) -> Vec<(Node, Node, Vec<u8>)> {
    let carried = Carried::default();
    let mut sim = Sim::new(Setup { members: 3, seed: 620, export, ..Setup::default() });
    let (record, mut count) = (Rc::clone(&carried), 0);
    let keep = flip_at.is_none();
    sim.tamper = Some(Box::new(move |from, to, bytes| {
        count += 1;
        if keep {
            record.borrow_mut().push((from, to, bytes.to_vec()));
        }
        match &flip_at {
            Some(one) if one.frame == count - 1 => {
                let mut bytes = bytes.to_vec();
                flip(&mut bytes, one.bit);
                FrameAction::Change(bytes)
            }
            _ => FrameAction::Pass,
        }
    }));
    let mut exchange = Exchange::of(sim);
    let mut allowed = Allowed::new();
    let (a, b) = (nlri("20.0.0.0/16"), nlri("20.1.0.0/16"));
    live(&mut exchange.sim, Duration::from_secs(1), &allowed, name);
    let steps: [&dyn Fn(&mut Exchange); 4] = [
        &|e| {
            e.announce(0, &[a, b], &route(0, &[64500], &["64496:0:65001"]));
            e.announce(1, &[a], &route(1, &[64501], &[]));
        },
        &|e| e.recommend(&BTreeMap::from([(0, 3), (1, 9)])),
        &|e| e.announce(1, &[b], &route(1, &[64501, 64502], &[])),
        &|e| e.withdraw(0, &[a]),
    ];
    for step in steps {
        step(&mut exchange);
        allow(&mut allowed, &exchange);
        live(&mut exchange.sim, Duration::from_secs(3), &allowed, name);
    }
    live(&mut exchange.sim, Duration::from_secs(20), &allowed, name);
    exchange.sim.tamper = None;
    exchange.sim.cut_all();
    assert!(exchange.sim.settle(LIMIT), "{name}: does not come to rest over fresh links");
    for (slot, table) in &exchange.sim.tables {
        let expected = exchange.oracle.table(*slot).into_iter().map(|(prefix, (_, route))| (prefix, route)).collect();
        assert_eq!(*table, expected, "{name}: member {slot} over fresh links");
    }
    carried.take()
}

/// Flips in up to two frames of each type between each kind of ends, in bits all over the frame.
fn flips(export: ExportMode, only: fn(Node, Node) -> bool, bits: usize) {
    let bits = bits * crate::common::factor() / if export == ExportMode::Mpc { 2 } else { 1 };
    let frames = play(export, None, "nothing flipped");
    let mut seen: BTreeMap<(bool, bool, Node, u8), usize> = BTreeMap::new();
    let mut runs = 0;
    for (number, (from, to, bytes)) in frames.iter().enumerate() {
        let is_member = |node: &Node| matches!(node, Node::Member(_));
        let party = if is_member(from) { *to } else { *from };
        let class = (is_member(from), is_member(to), party, bytes[0]);
        let times = seen.entry(class).or_default();
        *times += 1;
        if *times > 2 || !only(*from, *to) {
            continue;
        }
        for i in 0..bits {
            // The type and the fields at the front, then places all over the frame.
            let total = bytes.len() * 8;
            let bit = if i < bits / 2 { i * 11 } else { (i - bits / 2) * 2 * total / bits + i % 8 };
            let name =
                format!("frame {number}, type {} of {} bytes, {from:?} to {to:?}, bit {bit}", bytes[0], bytes.len());
            play(export, Some(Flip { frame: number, bit }), &name);
            runs += 1;
        }
    }
    assert!(runs >= 5 * bits, "{runs} flips");
}

in_both_modes!(a_flipped_bit_from_a_member_makes_no_table_wrong);
fn a_flipped_bit_from_a_member_makes_no_table_wrong(export: ExportMode) {
    flips(export, |from, _| matches!(from, Node::Member(_)), 10);
}

in_both_modes!(a_flipped_bit_to_a_member_makes_no_table_wrong);
fn a_flipped_bit_to_a_member_makes_no_table_wrong(export: ExportMode) {
    flips(export, |_, to| matches!(to, Node::Member(_)), 10);
}

in_both_modes!(a_flipped_bit_between_the_parties_makes_no_table_wrong);
fn a_flipped_bit_between_the_parties_makes_no_table_wrong(export: ExportMode) {
    flips(export, |from, to| matches!((from, to), (Node::Party(_), Node::Party(_))), 8);
}

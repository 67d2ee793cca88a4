//! What the parties see: two runs of equal public shape have the same messages, whatever policies, rankings, routes and
//! results are.
//!
//! SIX-11, 12: equal public shape, different policies, rankings, routes, results: equal messages in equal order at each
//! party.
//! SIX-11, reloads: reloads that touch the first, the last, all or no prefixes, or the ranking alone, two in a row with
//! other events between: equal messages in equal order; every object once, at most fifty in a tenth of a second.
//! SIX-11, two pairs: what party 1 of one pair sees, and what party 2 of another sees in a run of its own, with the same members and routes:
//! equal messages in equal order at each.
//! SIX-11, joins during a reload: a slot joins before the objects of an UPDATE that the new rules split have their
//! turn: equal messages.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::held::ExpectedHoldings;
use crate::common::{LIMIT, asn, in_both_modes, nlri, policy, route};
use wayleave_core::Instant;
use wayleave_lab::sim::bad::Shape;
use wayleave_lab::sim::costs::{Costs, Wire};
use wayleave_lab::sim::{FrameAction, Node, PARTIES, Setup, Sim};
use wayleave_route_server::frames::{FromMember, ToMember};
use wayleave_route_server::object::ExportMode;
use wayleave_route_server::party::{Budget, Counters, PartyEvent};

const MEMBERS: u32 = 6;
const PREFIXES: u32 = 5;

/// All that the parties must not learn.
#[derive(Clone)]
struct Secrets {
    name: &'static str,
    /// Control communities of the route that this slot announces to this prefix.
    communities: fn(u32, u32) -> Vec<String>,
    /// The AS path behind the slot's own AS.
    tail: fn(u32, u32) -> Vec<u32>,
    /// Every member's rules.
    rules: &'static str,
    /// The same, from the middle of the run on. The change concerns every route.
    later_rules: &'static str,
    /// The exchange's recommendation of each slot, in two epochs.
    recommended: [fn(u32) -> u8; 2],
    /// How many routes to a prefix every member's router gets (ADD-PATH).
    paths: u8,
}

const PLAIN: Secrets = Secrets {
    name: "everybody may have everything",
    communities: |_, _| vec![],
    tail: |_, _| vec![64500],
    rules: "",
    later_rules: "[[rule]]\ndirection = \"export\"\nhide_from = [\"65001\", \"65002\"]\n",
    recommended: [|_| 1, |_| 2],
    paths: 1,
};

const HIDE_ANOTHER: &str = "[[rule]]\ndirection = \"export\"\nhide_from = [\"65003\", \"65004\"]\n";

fn variants() -> Vec<Secrets> {
    vec![
        Secrets { name: "later hidden from another member", later_rules: HIDE_ANOTHER, ..PLAIN },
        Secrets {
            name: "hidden from one member by a community",
            communities: |_, _| vec!["64496:0:65003".to_owned()],
            ..PLAIN
        },
        Secrets {
            name: "for one member only, another for each prefix",
            communities: |_, prefix| vec!["64496:0:0".to_owned(), format!("64496:1:{}", 65000 + prefix)],
            later_rules: "[[rule]]\ndirection = \"export\"\nignore_communities = true\nannounce = [\"65005\"]\n",
            ..PLAIN
        },
        Secrets {
            name: "half of the routes for nobody",
            communities: |slot, prefix| {
                if (slot + prefix).is_multiple_of(2) { vec!["64496:0:0".to_owned()] } else { vec![] }
            },
            later_rules: "[[rule]]\ndirection = \"export\"\nignore_communities = true\nannounce = [\"65005\"]\n",
            ..PLAIN
        },
        Secrets {
            name: "other paths",
            tail: |slot, prefix| (0..=(slot * 3 + prefix) % 7).map(|i| 64500 + i).collect(),
            ..PLAIN
        },
        Secrets {
            name: "everything is rejected on import",
            rules: "[[rule]]\ndirection = \"import\"\nreject = true\n",
            later_rules: concat!(
                "[[rule]]\ndirection = \"import\"\nreject = true\n",
                "[[rule]]\ndirection = \"export\"\nhide_from = [\"65001\", \"65002\"]\n"
            ),
            ..PLAIN
        },
        Secrets {
            name: "a favourite neighbour",
            rules: "[[rule]]\ndirection = \"import\"\npeer = [\"65002\"]\nclass = 250\n",
            later_rules: concat!(
                "[[rule]]\ndirection = \"import\"\npeer = [\"65003\"]\nclass = 250\n",
                "[[rule]]\ndirection = \"export\"\nhide_from = [\"65001\", \"65002\"]\n"
            ),
            ..PLAIN
        },
        Secrets {
            name: "strict ranking",
            rules: "[ranking]\nstrict = true\n",
            later_rules: concat!(
                "[[rule]]\ndirection = \"export\"\nhide_from = [\"65001\", \"65002\"]\n",
                "[ranking]\nstrict = true\n"
            ),
            ..PLAIN
        },
        Secrets {
            name: "other recommendations",
            recommended: [|slot| u8::try_from(slot * 40).unwrap_or(255), |slot| 255 - u8::try_from(slot).unwrap_or(0)],
            ..PLAIN
        },
        Secrets { name: "several paths for routers", paths: 4, ..PLAIN },
    ]
}

/// All that the parties saw, and something to tell that the runs did differ.
struct Observations {
    shapes: Vec<Shape>,
    events: Vec<(Node, PartyEvent)>,
    counters: Vec<Counters>,
    tables: BTreeMap<u32, BTreeSet<String>>,
}

fn rest(sim: &mut Sim) {
    assert!(sim.settle(LIMIT), "the exchange did not come to rest");
}

fn announce(sim: &mut Sim, secrets: &Secrets, slot: u32, prefixes: &[u32]) {
    // One UPDATE: its prefixes share their attributes.
    let communities = (secrets.communities)(slot, prefixes[0]);
    let communities: Vec<&str> = communities.iter().map(String::as_str).collect();
    let attributes = route(slot, &(secrets.tail)(slot, prefixes[0]), &communities);
    let list: Vec<_> = prefixes.iter().map(|prefix| nlri(&format!("20.{prefix}.0.0/16"))).collect();
    sim.announce(slot, &list, &attributes);
}

/// Runs with other handles that are made until there is one in which no two share a bucket: objects that share one with an object
/// that is lacking are sent with it, which the parties know from the handles.
const MOST_BRANCHES: u64 = 32;

/// The same public events for any secrets, in a run in which each bucket has one handle at most.
fn play(secrets: &Secrets, tick: Duration, seed: u64, export: ExportMode) -> Observations {
    let played = (0..MOST_BRANCHES).map(|branch| play_once(secrets, tick, (seed, branch), export));
    played.flatten().next().expect("most runs have no two handles in a bucket")
}

/// The same public events for any secrets: UPDATEs, withdrawals, epochs, a new policy, kills, a join, a leave. In each, what members say
/// by buckets has the length that follows from the handles that came to them. `None` if two handles shared a bucket.
fn play_once(
    secrets: &Secrets,
    tick: Duration,
    (seed, branch): (u64, u64),
    export: ExportMode,
) -> Option<Observations> {
    let opted_out = BTreeSet::from([5]);
    let paths = (0..MEMBERS).map(|slot| (slot, secrets.paths)).collect();
    let mut sim =
        Sim::new(Setup { members: MEMBERS as usize, tick, seed, opted_out, export, paths, ..Setup::default() });
    sim.diverge(branch);
    let held: Arc<Mutex<ExpectedHoldings>> = Arc::default();
    let watched = Arc::clone(&held);
    sim.tamper = Some(Box::new(move |from, to, bytes| {
        watched.lock().expect("one thread").frame(from, to, bytes);
        FrameAction::Pass
    }));
    sim.recording = Some(Vec::new());
    for slot in 0..MEMBERS {
        sim.set_policy(slot, policy(secrets.rules));
    }
    rest(&mut sim);
    for round in 0..2 {
        for slot in 0..4 {
            for prefix in 0..PREFIXES {
                if (slot + prefix) % 3 == round {
                    announce(&mut sim, secrets, slot, &[prefix, prefix + 100]);
                }
            }
        }
        for _ in 0..30 {
            sim.step(Duration::from_secs(1));
        }
    }
    rest(&mut sim);
    let tables = sim.tables.iter();
    let in_the_middle = tables.map(|(slot, t)| (*slot, t.keys().map(ToString::to_string).collect())).collect();
    for recommended in secrets.recommended {
        sim.recommend((0..MEMBERS).map(|slot| (slot, recommended(slot))).collect());
        rest(&mut sim);
    }
    sim.withdraw(1, &[nlri("20.0.0.0/16"), nlri("20.101.0.0/16")]);
    announce(&mut sim, secrets, 4, &[0, 1, 2, 3, 4]);
    rest(&mut sim);
    for slot in 0..MEMBERS {
        sim.set_policy(slot, policy(secrets.later_rules));
    }
    rest(&mut sim);
    let newcomer = sim.join();
    rest(&mut sim);
    announce(&mut sim, secrets, newcomer, &[1, 2]);
    sim.leave(3);
    rest(&mut sim);
    for node in [Node::Member(2), PARTIES[0], PARTIES[1]] {
        sim.kill(node);
        for _ in 0..10 {
            sim.step(Duration::from_secs(1));
        }
        sim.start(node);
        rest(&mut sim);
    }
    // More often than its budget has everything sent, or has it choose.
    for _ in 0..20 {
        sim.inject(Node::Member(1), PARTIES[0], &FromMember::holds_nothing().encode());
        rest(&mut sim);
    }
    // Links that fail while nothing changes, and while something does.
    for slot in 0..3 {
        sim.cut_member(slot);
        if slot > 0 {
            announce(&mut sim, secrets, 4, &[0, 1, 2, 3, 4]);
            sim.withdraw(4, &[nlri("20.2.0.0/16")]);
            for _ in 0..20 * slot {
                sim.step(Duration::from_secs(1));
            }
        }
        rest(&mut sim);
    }
    let shapes: Vec<Shape> = sim.recording.take().expect("it records").iter().map(|frame| frame.shape()).collect();
    let counters: Vec<Counters> =
        PARTIES.iter().filter_map(|node| Some(sim.party(*node)?.counters().clone())).collect();
    let held = held.lock().expect("one thread");
    assert!(held.compared >= 3, "{} members said what they hold by buckets", held.compared);
    assert!(held.named >= 3, "{} members named what they hold", held.named);
    let events = std::mem::take(&mut sim.party_events);
    (!held.shares_a_bucket).then_some(Observations { shapes, events, counters, tables: in_the_middle })
}

fn assert_same(plain: &Observations, other: &Observations, name: &str) {
    let differs = plain.shapes.iter().zip(&other.shapes).position(|(a, b)| a != b);
    if let Some(at) = differs {
        panic!("{name}: frame {at} is {:?} and {:?}", plain.shapes[at], other.shapes[at]);
    }
    assert_eq!(plain.shapes.len(), other.shapes.len(), "{name}: number of frames");
    assert_eq!(plain.events, other.events, "{name}: events");
    assert_eq!(plain.counters, other.counters, "{name}: counters");
}

fn compare_all(tick: Duration, seed: u64, export: ExportMode) {
    let plain = play(&PLAIN, tick, seed, export);
    assert!(plain.shapes.len() > 1000, "{} frames", plain.shapes.len());
    for (slot, is_one) in [(1, true), (2, false)] {
        let own_order = |event: &PartyEvent| matches!(event, PartyEvent::OwnOrder { slot: of, .. } if *of == slot);
        assert_eq!(plain.events.iter().any(|(_, event)| own_order(event)), is_one, "member {slot}");
    }
    for secrets in variants() {
        assert_same(&plain, &play(&secrets, tick, seed, export), secrets.name);
    }
}

in_both_modes!(equal_public_shape_gives_equal_messages_without_a_tick);
fn equal_public_shape_gives_equal_messages_without_a_tick(export: ExportMode) {
    compare_all(Duration::ZERO, 41, export);
}

in_both_modes!(equal_public_shape_gives_equal_messages_with_a_tick);
fn equal_public_shape_gives_equal_messages_with_a_tick(export: ExportMode) {
    for seed in [42, 43] {
        compare_all(Duration::from_millis(50), seed, export);
    }
}

in_both_modes!(a_member_that_may_open_nothing_looks_like_one_that_may_open_everything);
fn a_member_that_may_open_nothing_looks_like_one_that_may_open_everything(export: ExportMode) {
    let hidden = Secrets {
        name: "nothing for member 2",
        communities: |_, _| vec!["64496:0:65002".to_owned()],
        later_rules: "[[rule]]\ndirection = \"export\"\nhide_from = [\"65001\", \"65003\"]\n",
        ..PLAIN
    };
    let (all, none) = (play(&PLAIN, Duration::ZERO, 43, export), play(&hidden, Duration::ZERO, 43, export));
    assert!(all.tables[&2].len() >= 5, "{:?}", all.tables[&2]);
    assert!(none.tables[&2].is_empty(), "{:?}", none.tables[&2]);
    assert_same(&all, &none, hidden.name);
}

in_both_modes!(party_1_of_one_pair_and_party_2_of_another_see_the_same_whatever_the_policies_are);
fn party_1_of_one_pair_and_party_2_of_another_see_the_same_whatever_the_policies_are(export: ExportMode) {
    // The same members announce the same to two pairs with randomness of their own, as proxies with two pairs do. The pairs run one after
    // the other, so that nothing is shown of what happens at both at one time.
    let seen = |secrets: &Secrets| {
        [(51, PARTIES[0]), (52, PARTIES[1])].map(|(seed, party)| {
            let shapes = play(secrets, Duration::ZERO, seed, export).shapes;
            shapes.into_iter().filter(|shape| shape.from == party || shape.to == party).collect::<Vec<Shape>>()
        })
    };
    let plain = seen(&PLAIN);
    assert!(plain.iter().all(|shapes| shapes.len() > 300), "{:?}", plain.each_ref().map(Vec::len));
    let variants = variants();
    for secrets in [&variants[2], &variants[6]] {
        let other = seen(secrets);
        for (plain, other) in plain.iter().zip(&other) {
            let differs = plain.iter().zip(other).position(|(a, b)| a != b);
            assert_eq!(differs.map(|at| (plain[at], other[at])), None, "{}", secrets.name);
            assert_eq!(plain.len(), other.len(), "{}", secrets.name);
        }
    }
}

in_both_modes!(equal_attributes_of_two_updates_look_like_different_ones);
fn equal_attributes_of_two_updates_look_like_different_ones(export: ExportMode) {
    let play = |tails: [&[u32]; 2], communities: [&[&str]; 2]| {
        let tick = Duration::from_millis(50);
        let mut sim = Sim::new(Setup { members: 3, tick, seed: 44, export, ..Setup::default() });
        sim.recording = Some(Vec::new());
        rest(&mut sim);
        for i in 0..2 {
            sim.announce(0, &[nlri(&format!("20.{i}.0.0/16"))], &route(0, tails[i], communities[i]));
        }
        rest(&mut sim);
        sim.cut_all();
        rest(&mut sim);
        sim.join();
        rest(&mut sim);
        sim.recording.take().expect("it records").iter().map(|frame| frame.shape()).collect::<Vec<_>>()
    };
    let equal = play([&[64500], &[64500]], [&[], &[]]);
    assert_eq!(equal, play([&[64500], &[64501]], [&[], &[]]), "paths differ");
    assert_eq!(equal, play([&[64500], &[64500]], [&[], &["64496:0:65001"]]), "policies differ");
}

/// Announcements of one member, more than one burst of repeats, and an UPDATE with many prefixes.
const REPEATED: usize = 60;

/// A reload of `member 0` in the middle of a life: what both parties see from then on.
fn reload(export: ExportMode, before: &str, reloads: [&str; 2], tick: Duration) -> (Vec<Shape>, BTreeMap<u32, usize>) {
    let mut sim = Sim::new(Setup { members: 4, tick, seed: 45, export, ..Setup::default() });
    sim.set_policy(0, policy(before));
    for i in 0..REPEATED {
        let prefix = nlri(&format!("20.0.{i}.0/24"));
        sim.announce(0, &[prefix], &route(0, &[64500], &[]));
    }
    let many: Vec<_> = (0..10).map(|i| nlri(&format!("21.{i}.0.0/16"))).collect();
    sim.announce(0, &many, &route(0, &[64501], &[]));
    sim.announce(1, &[nlri("20.0.3.0/24")], &route(1, &[64500], &[]));
    rest(&mut sim);
    sim.recording = Some(Vec::new());
    sim.set_policy(0, policy(reloads[0]));
    // In the middle: a route changes, one goes, links fail, and there is another reload.
    sim.run_for(Duration::from_millis(150));
    sim.announce(0, &[nlri("20.0.55.0/24")], &route(0, &[64500, 64501], &[]));
    sim.withdraw(0, &[nlri("20.0.56.0/24")]);
    sim.run_for(Duration::from_millis(20));
    sim.cut_all();
    sim.pass(Duration::from_millis(30));
    sim.join();
    sim.pass(Duration::from_millis(30));
    sim.set_policy(0, policy(reloads[1]));
    rest(&mut sim);
    let tables = sim.tables.iter().map(|(slot, table)| (*slot, table.len())).collect();
    (sim.recording.take().expect("it records").iter().map(|frame| frame.shape()).collect(), tables)
}

fn compare_reloads(export: ExportMode, tick: Duration, before: &str, reloads: &[[&str; 2]]) {
    let (same, served) = reload(export, before, [before, before], tick);
    let mut outcomes = BTreeSet::from([served]);
    for later in reloads {
        let (shapes, tables) = reload(export, before, *later, tick);
        let differs = same.iter().zip(&shapes).position(|(a, b)| a != b);
        assert_eq!(differs.map(|at| (same[at], shapes[at])), None, "{later:?}");
        assert_eq!(same.len(), shapes.len(), "{later:?}");
        outcomes.insert(tables);
    }
    assert!(outcomes.len() > 2, "the reloads have effects: {outcomes:?}");
}

in_both_modes!(a_reload_does_not_show_which_prefixes_it_touches_or_whether_it_touches_any);
fn a_reload_does_not_show_which_prefixes_it_touches_or_whether_it_touches_any(export: ExportMode) {
    const BASE: &str = "[[rule]]\ndirection = \"export\"\nprefix = \"99.0.0.0/8\"\nhide_from = [\"65001\"]\n";
    let hide = |prefix: &str, from: &str| {
        format!("{BASE}[[rule]]\ndirection = \"export\"\nprefix = \"{prefix}\"\nhide_from = [\"{from}\"]\n")
    };
    let (first, last, all) = (hide("20.0.0.0/24", "65001"), hide("21.0.0.0/8+", "65002"), hide("0.0.0.0/0+", "65003"));
    let ranking = format!("{BASE}[[rule]]\ndirection = \"import\"\npeer = [\"65001\"]\nclass = 250\n");
    let reloads = [
        [first.as_str(), BASE],
        [BASE, first.as_str()],
        [first.as_str(), last.as_str()],
        [last.as_str(), all.as_str()],
        [all.as_str(), BASE],
        [ranking.as_str(), ranking.as_str()],
    ];
    compare_reloads(export, Duration::ZERO, BASE, &reloads);
    compare_reloads(export, Duration::from_millis(50), BASE, &reloads[2..4]);
}

in_both_modes!(a_reload_of_rules_that_look_at_no_prefix_keeps_what_shared_an_update_together);
fn a_reload_of_rules_that_look_at_no_prefix_keeps_what_shared_an_update_together(export: ExportMode) {
    let hide = |from: &str| format!("[[rule]]\ndirection = \"export\"\nhide_from = [\"{from}\"]\n");
    let (one, other) = (hide("65001"), hide("65002"));
    let path = "[[rule]]\ndirection = \"export\"\nas_path = \"_64501_\"\nhide_from = [\"65003\"]\n";
    compare_reloads(export, Duration::ZERO, "", &[[&one, &other], [path, &one], ["", path]]);
}

/// What both parties see of a reload to `later`, and of a slot that joins before the objects of one UPDATE have their turn.
fn reload_and_join(export: ExportMode, later: &str) -> Vec<Shape> {
    let mut sim = Sim::new(Setup { members: 4, seed: 47, export, ..Setup::default() });
    for i in 0..REPEATED {
        sim.announce(0, &[nlri(&format!("20.0.{i}.0/24"))], &route(0, &[64500], &[]));
    }
    let many: Vec<_> = (0..10).map(|i| nlri(&format!("21.{i}.0.0/16"))).collect();
    sim.announce(0, &many, &route(0, &[64501], &[]));
    rest(&mut sim);
    sim.recording = Some(Vec::new());
    sim.set_policy(0, policy(later));
    sim.run_for(Duration::from_millis(50));
    sim.join();
    rest(&mut sim);
    sim.recording.take().expect("it records").iter().map(|frame| frame.shape()).collect()
}

in_both_modes!(a_slot_that_joins_during_a_reload_does_not_show_which_objects_the_new_rules_split);
fn a_slot_that_joins_during_a_reload_does_not_show_which_objects_the_new_rules_split(export: ExportMode) {
    let hide =
        |prefix: &str| format!("[[rule]]\ndirection = \"export\"\nprefix = \"{prefix}\"\nhide_from = [\"65001\"]\n");
    let [split, whole] = ["21.0.0.0/16", "20.0.0.0/24"].map(|prefix| reload_and_join(export, &hide(prefix)));
    let differs = split.iter().zip(&whole).position(|(a, b)| a != b);
    assert_eq!(differs.map(|at| (split[at], whole[at])), None);
    assert_eq!(split.len(), whole.len());
}

in_both_modes!(a_reload_announces_every_object_once_and_no_more_of_them_at_a_time_than_its_limit);
fn a_reload_announces_every_object_once_and_no_more_of_them_at_a_time_than_its_limit(export: ExportMode) {
    let mut sim = Sim::new(Setup { members: 3, seed: 46, export, ..Setup::default() });
    for i in 0..REPEATED {
        sim.announce(0, &[nlri(&format!("20.0.{i}.0/24"))], &route(0, &[64500], &[]));
    }
    rest(&mut sim);
    let begin = sim.now().instant;
    sim.recording = Some(Vec::new());
    sim.set_policy(0, policy("[[rule]]\ndirection = \"export\"\nprefix = \"20.0.7.0/24\"\nhide_from = [\"65001\"]\n"));
    rest(&mut sim);
    let shapes = sim.recording.take().expect("it records").iter().map(|frame| frame.shape()).collect::<Vec<_>>();
    let is_object = |shape: &&Shape| (shape.from, shape.to, shape.kind) == (Node::Member(0), PARTIES[0], 2);
    let times: Vec<_> = shapes.iter().filter(is_object).map(|shape| shape.at).collect();
    assert_eq!(times.len(), REPEATED);
    for second in 0..3u32 {
        let tenth = |n: u32| begin + Duration::from_millis(100) * n;
        let sent = times.iter().filter(|at| (tenth(second)..tenth(second + 1)).contains(*at)).count();
        assert!(sent <= 50, "{sent} objects in tenth {second}");
    }
    assert!(!sim.tables[&1].contains_key(&"20.0.7.0/24".parse().expect("a prefix")));
    assert_eq!(sim.tables[&2].len(), REPEATED);
}

/// What both parties see while members are sent everything in several slices, with grants of credit, where work takes time: members
/// that may open all, some or none of it, and rank it so.
fn synchronise(export: ExportMode, communities: fn(u32) -> Vec<String>, rules: &str) -> (Vec<Shape>, usize) {
    let (tick, costs) = (Duration::from_millis(50), Some(Costs::default()));
    let mut sim = Sim::new(Setup { members: 4, tick, seed: 48, export, costs, ..Setup::default() });
    for slot in 0..4 {
        sim.set_policy(slot, policy(rules));
    }
    for i in 0..1_600u32 {
        // Two routes for some prefixes, so that there is something to rank in each slice.
        for slot in 0..1 + u32::from(i.is_multiple_of(200)) {
            let filling = (0..60).map(|n| format!("64999:{n}:1"));
            let communities: Vec<String> = filling.chain(communities(i)).collect();
            let communities: Vec<&str> = communities.iter().map(String::as_str).collect();
            let prefix = nlri(&format!("20.{}.{}.0/24", i / 250, i % 250));
            sim.announce(slot, &[prefix], &route(slot, &[64500], &communities));
        }
    }
    rest(&mut sim);
    sim.recording = Some(Vec::new());
    sim.cut_all();
    rest(&mut sim);
    for slot in 0..4 {
        sim.inject(Node::Member(slot), PARTIES[0], &FromMember::holds_nothing().encode());
    }
    rest(&mut sim);
    let shapes: Vec<Shape> = sim.recording.take().expect("it records").iter().map(|frame| frame.shape()).collect();
    (shapes, sim.tables[&2].len())
}

fn first(shapes: &[Shape]) -> Instant {
    shapes.first().map_or(Instant(0), |shape| shape.at)
}

in_both_modes!(slices_and_grants_of_credit_say_nothing_of_what_was_opened_and_how_it_was_ranked);
fn slices_and_grants_of_credit_say_nothing_of_what_was_opened_and_how_it_was_ranked(export: ExportMode) {
    let (plain, all) = synchronise(export, |_| vec![], "");
    let from = |node: Node, kind: u8| plain.iter().filter(|shape| (shape.from, shape.kind) == (node, kind)).count();
    assert!(from(Node::Member(2), 7) >= 3, "{} grants", from(Node::Member(2), 7));
    assert!(from(PARTIES[0], 3) >= 8, "{} slices", from(PARTIES[0], 3));
    let hidden: fn(u32) -> Vec<String> = |_| vec!["64496:0:65002".to_owned()];
    let some: fn(u32) -> Vec<String> = |i| if i < 800 { vec!["64496:0:65002".to_owned()] } else { vec![] };
    let favourite = "[[rule]]\ndirection = \"import\"\npeer = [\"65001\"]\nclass = 250\n";
    let mut opened = BTreeSet::from([all]);
    for (communities, rules) in [(hidden, ""), (some, ""), ((|_| vec![]) as fn(u32) -> Vec<String>, favourite)] {
        let (shapes, tables) = synchronise(export, communities, rules);
        // The order of equal times is that of processes at work; what each link carries, and when, is what a party sees.
        let of_links = |shapes: &[Shape]| {
            let mut links: BTreeMap<(Node, Node), Vec<(u8, usize)>> = BTreeMap::new();
            for shape in shapes {
                links.entry((shape.from, shape.to)).or_default().push((shape.kind, shape.len));
            }
            links
        };
        assert_eq!(of_links(&plain), of_links(&shapes));
        // To a millisecond: what a member opens of one slice takes it many.
        let times = |shapes: &[Shape]| {
            let mut times: BTreeMap<(Node, Node), Vec<Instant>> = BTreeMap::new();
            for shape in shapes.iter().filter(|shape| matches!(shape.from, Node::Member(_))) {
                times.entry((shape.from, shape.to)).or_default().push(shape.at);
            }
            times
        };
        for ((link, one), other) in times(&plain).into_iter().zip(times(&shapes).into_values()) {
            for (one, other) in
                one.iter().map(|at| *at - first(&plain)).zip(other.iter().map(|at| *at - first(&shapes)))
            {
                let apart = one.abs_diff(other);
                assert!(apart < Duration::from_millis(1), "{link:?}: {one:?} and {other:?}");
            }
        }
        opened.insert(tables);
    }
    assert_eq!(opened.len(), 3, "{opened:?}");
}

/// The member that is slow, one that is as others are, and those that announce.
const SLOW: u32 = 17;
const USUAL: u32 = 16;
const ANNOUNCERS: u32 = 4;
/// UPDATEs of each announcer, and prefixes of each: a quarter of these of all announcers is one batch.
const UPDATES: u32 = 760;
const PREFIXES_EACH: u32 = 4;

/// Announcer `slot` announces `updates` again, of which the slow member may open those that `hides` does not hide from it.
fn announce_some(sim: &mut Sim, slot: u32, updates: std::ops::Range<u32>, tail: &[u32], hides: fn(u32) -> bool) {
    let from_slow = format!("64496:0:{}", asn(SLOW).0);
    for update in updates {
        let prefixes: Vec<_> = (0..PREFIXES_EACH)
            .map(|n| update * PREFIXES_EACH + n)
            .map(|n| nlri(&format!("20.{}.{}.0/24", n / 256, n % 256)))
            .collect();
        let communities: &[&str] = if hides(update) { &[&from_slow] } else { &[] };
        sim.announce(slot, &prefixes, &route(slot, tail, communities));
    }
}

/// Each announcer changes a quarter of its routes, another one than the others do. All is done a fixed time later.
fn change_all(sim: &mut Sim, tail: &[u32], hides: fn(u32) -> bool) {
    let quarter = UPDATES / ANNOUNCERS;
    for slot in 0..ANNOUNCERS {
        announce_some(sim, slot, slot * quarter..(slot + 1) * quarter, tail, hides);
    }
    sim.run_for(Duration::from_secs(20));
}

/// What is seen of a member that is thirty times slower than others, while rounds have more comparators than one evaluation.
fn be_slow(export: ExportMode, hides: fn(u32) -> bool) -> (Sim, Vec<Shape>, usize) {
    let sinks = (ANNOUNCERS..USUAL).collect();
    let budget = Budget { objects: 1_000_000, octets: 1 << 30, ..Budget::default() };
    let (tick, costs) = (Duration::from_millis(200), Some(Costs::default()));
    let members = SLOW as usize + 1;
    // The sinks rank at once. What a slice makes later is less than this.
    let rank_allowance = Some(Duration::from_millis(100));
    let setup = Setup { members, tick, seed: 49, export, costs, sinks, budget, rank_allowance, ..Setup::default() };
    let mut sim = Sim::new(setup);
    rest(&mut sim);
    for slot in 0..ANNOUNCERS {
        announce_some(&mut sim, slot, 0..UPDATES, &[64500, 64501], hides);
    }
    rest(&mut sim);
    sim.run_for(Duration::from_secs(60).saturating_sub(sim.now().instant - Instant(0)));
    sim.forget_events();
    sim.recording = Some(Vec::new());
    sim.costs().expect("it has costs").slower.insert(Node::Member(SLOW), 30);
    change_all(&mut sim, &[64502, 64501], hides);
    change_all(&mut sim, &[64503, 64501], hides);
    let recorded = sim.recording.take().expect("it records");
    let mut outcomes: BTreeMap<u64, usize> = BTreeMap::new();
    for frame in recorded.iter().filter(|frame| (frame.from, frame.to) == (PARTIES[0], Node::Member(USUAL))) {
        if let Ok(ToMember::Outcome { seq, .. }) = ToMember::decode(&frame.bytes) {
            *outcomes.entry(seq).or_default() += 1;
        }
    }
    let most = outcomes.into_values().max().unwrap_or(0);
    (sim, recorded.iter().map(|frame| frame.shape()).collect(), most)
}

/// Of each frame on each link: when it was sent, type and length. What a slow member grants again of what came while it was opening
/// something, it grants as much later as that took it.
type Links = BTreeMap<(Node, Node), Vec<(Option<Instant>, u8, usize)>>;

fn of_links(shapes: &[Shape]) -> Links {
    let mut links = Links::new();
    for shape in shapes {
        let is_grant = (shape.from, shape.kind) == (Node::Member(SLOW), 7);
        let frame = (Some(shape.at).filter(|_| !is_grant), shape.kind, shape.len);
        links.entry((shape.from, shape.to)).or_default().push(frame);
    }
    links
}

fn assert_same_links(plain: &Links, other: &Links) {
    let differs = plain.iter().zip(other).filter_map(|((link, plain), (_, other))| {
        let (one, two) = plain.iter().zip(other).find(|(a, b)| a != b)?;
        Some((*one, *two, *link))
    });
    assert_eq!(differs.min(), None, "the first frame that differs");
    let numbers = |links: &Links| links.iter().map(|(link, frames)| (*link, frames.len())).collect::<Vec<_>>();
    assert_eq!(numbers(plain), numbers(other), "frames on each link");
}

/// A slice of work of the slow member, for whose end a frame waits.
const SLOW_SLICE: Duration = Duration::from_millis(6);

/// The same frames of each type on each link, and those of members at the same time but for a slice. When and in which order the parties
/// evaluate follows from when these come.
fn assert_same_but_for_a_slice(plain: &[Shape], other: &[Shape]) {
    let by_type = |shapes: &[Shape]| {
        let mut frames: BTreeMap<(Node, Node, u8), Vec<(Instant, usize)>> = BTreeMap::new();
        // How many grants of credit there are between the parties follows from how much came at once.
        let is_grant =
            |shape: &&Shape| matches!((shape.from, shape.to, shape.kind), (Node::Party(_), Node::Party(_), 17));
        for shape in shapes.iter().filter(|shape| !is_grant(shape)) {
            frames.entry((shape.from, shape.to, shape.kind)).or_default().push((shape.at, shape.len));
        }
        frames
    };
    let (plain, other) = (by_type(plain), by_type(other));
    assert!(plain.keys().eq(other.keys()), "the same types on the same links");
    for ((of, plain), other) in plain.iter().zip(other.values()) {
        assert_eq!(plain.len(), other.len(), "{of:?}");
        let lengths = |frames: &[(Instant, usize)]| {
            let mut lengths: Vec<usize> = frames.iter().map(|(_, len)| *len).collect();
            lengths.sort_unstable();
            lengths
        };
        assert_eq!(lengths(plain), lengths(other), "{of:?}");
        // What a slow member grants again of what came while it was opening something, it grants as much later as that took it.
        if !matches!(of.0, Node::Member(_)) || (of.0, of.2) == (Node::Member(SLOW), 7) {
            continue;
        }
        for (one, two) in plain.iter().zip(other) {
            let apart = if one.0 < two.0 { two.0 - one.0 } else { one.0 - two.0 };
            assert!(one.1 == two.1 && apart < SLOW_SLICE, "{of:?}: {one:?} and {two:?}");
        }
    }
}

in_both_modes!(a_slow_members_rankings_and_parts_of_results_say_nothing_of_what_was_opened);
fn a_slow_members_rankings_and_parts_of_results_say_nothing_of_what_was_opened(export: ExportMode) {
    let (all, shapes, parts) = be_slow(export, |_| false);
    assert!(parts >= 2, "{parts} parts of a batch's results");
    assert_eq!(all.tables[&SLOW], all.tables[&USUAL], "its own order decides where it had not looked in time");
    let mut opened = BTreeSet::from([all.tables[&SLOW].len()]);
    for hides in [(|_| true) as fn(u32) -> bool, |update| update.is_multiple_of(2)] {
        let (sim, other, _) = be_slow(export, hides);
        assert_same_but_for_a_slice(&shapes, &other);
        assert_eq!(all.party_events, sim.party_events);
        opened.insert(sim.tables[&SLOW].len());
    }
    assert_eq!(opened.len(), 3, "{opened:?}");
}

/// The member whose links are slow.
const LATE: u32 = 5;

/// What is seen of a member whose rankings come later by `by`: after two seconds it goes on probation and comes back from it. `None` if two
/// handles shared a bucket.
fn be_late(export: ExportMode, by: Duration, branch: u64, hides: fn(u32) -> bool) -> Option<(Sim, Vec<Shape>)> {
    let (tick, costs) = (Duration::from_millis(50), Some(Costs::default()));
    let mut sim = Sim::new(Setup { members: 6, tick, seed: 50, export, costs, ..Setup::default() });
    sim.diverge(branch);
    let held: Arc<Mutex<ExpectedHoldings>> = Arc::default();
    let watched = Arc::clone(&held);
    sim.tamper = Some(Box::new(move |from, to, bytes| {
        watched.lock().expect("one thread").frame(from, to, bytes);
        FrameAction::Pass
    }));
    rest(&mut sim);
    let change = |sim: &mut Sim, number: u32| {
        let (slot, prefix) = (number % 3, number / 3 % 4);
        let from_late = format!("64496:0:{}", asn(LATE).0);
        let communities: &[&str] = if hides(prefix) { &[&from_late] } else { &[] };
        let attributes = route(slot, &[64500 + number, 64501], communities);
        sim.announce(slot, &[nlri(&format!("20.{prefix}.0.0/16"))], &attributes);
    };
    (0..12).for_each(|number| change(&mut sim, number));
    rest(&mut sim);
    sim.run_for(Duration::from_secs(60).saturating_sub(sim.now().instant - Instant(0)));
    sim.forget_events();
    sim.recording = Some(Vec::new());
    for number in 12..30 {
        let delay = if number < 18 { by } else { Wire::LAN.delay };
        for party in PARTIES {
            let wires = &mut sim.costs().expect("it has costs").wires;
            wires.insert((party, Node::Member(LATE)), Wire { delay, ..Wire::LAN });
        }
        change(&mut sim, number);
        sim.run_for(Duration::from_secs(5));
    }
    let shapes = sim.recording.take().expect("it records").iter().map(|frame| frame.shape()).collect();
    sim.tamper = None;
    let shares_a_bucket = held.lock().expect("one thread").shares_a_bucket;
    (!shares_a_bucket).then_some((sim, shapes))
}

in_both_modes!(missed_rankings_and_probation_say_nothing_of_what_was_opened);
fn missed_rankings_and_probation_say_nothing_of_what_was_opened(export: ExportMode) {
    let by = Duration::from_secs(2);
    let play = |hides| (0..MOST_BRANCHES).find_map(|branch| be_late(export, by, branch, hides)).expect("most runs do");
    let (all, shapes) = play(|_| false);
    let begins = |of: bool| {
        let event = (PARTIES[0], PartyEvent::Probation { slot: LATE, begins: of });
        all.party_events.iter().filter(|one| **one == event).count()
    };
    assert_eq!((begins(true), begins(false)), (1, 1), "{:?}", all.party_events);
    assert!(all.party_events.contains(&(PARTIES[0], PartyEvent::MissedRanking { slot: LATE })));
    let (plain, mut opened) = (of_links(&shapes), BTreeSet::from([all.tables[&LATE].len()]));
    for hides in [(|_| true) as fn(u32) -> bool, |prefix| prefix < 2] {
        let (sim, shapes) = play(hides);
        assert_same_links(&plain, &of_links(&shapes));
        assert_eq!(all.party_events, sim.party_events);
        opened.insert(sim.tables[&LATE].len());
    }
    assert_eq!(opened.len(), 3, "{opened:?}");
}

in_both_modes!(late_rankings_and_their_results_say_nothing_of_what_was_opened);
fn late_rankings_and_their_results_say_nothing_of_what_was_opened(export: ExportMode) {
    let by = Duration::from_millis(300);
    let play = |hides| (0..MOST_BRANCHES).find_map(|branch| be_late(export, by, branch, hides)).expect("most runs do");
    let (all, shapes) = play(|_| false);
    let counted = |sim: &Sim| sim.party(PARTIES[0]).expect("it runs").counters().late_rankings;
    assert!(counted(&all) >= 6, "{} late rankings", counted(&all));
    let (plain, mut opened) = (of_links(&shapes), BTreeSet::from([all.tables[&LATE].len()]));
    for hides in [(|_| true) as fn(u32) -> bool, |prefix| prefix < 2] {
        let (sim, shapes) = play(hides);
        assert_same_links(&plain, &of_links(&shapes));
        assert_eq!(all.party_events, sim.party_events);
        assert_eq!(counted(&all), counted(&sim));
        opened.insert(sim.tables[&LATE].len());
    }
    assert_eq!(opened.len(), 3, "{opened:?}");
}

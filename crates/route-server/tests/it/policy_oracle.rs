//! The plaintext route server: whose tables have which route, through announcements, policies, joins and leavers.

use std::collections::BTreeMap;

use crate::common::{RS, attributes, policy, prefix, set, slot, with_communities};
use proptest::prelude::*;
use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::{Asn, Prefix, VerdictKind};
use wayleave_route_server::directory::{MemberSet, SetError, SlotId};
use wayleave_route_server::oracle::{Oracle, Precedence, Refused};
use wayleave_route_server::policy::validate::{Invalid, Martians};

const ALPHA: SlotId = 0;
const BRAVO: SlotId = 1;
const CHARLIE: SlotId = 2;
const DELTA: SlotId = 3;
const ASNS: [u32; 4] = [64497, 64498, 64499, 64500];

fn lab(recommendation: &[(SlotId, u8)]) -> Oracle {
    lab_of(set(&ASNS), recommendation)
}

fn lab_of(members: MemberSet, recommendation: &[(SlotId, u8)]) -> Oracle {
    Oracle::new(members, RS, recommendation.iter().copied().collect()).with_martians(Martians::AllowDocumentation)
}

fn site() -> Prefix {
    prefix("198.51.100.0/24")
}

/// A route of the member in `slot` with `behind` further ASes on its path.
fn route(slot: SlotId, behind: usize, communities: &[&str]) -> Attributes {
    let path: Vec<u32> = std::iter::once(ASNS[slot as usize]).chain((0..behind).map(|_| 65_000)).collect();
    with_communities(&path, slot as u8, communities)
}

fn announce(oracle: &mut Oracle, slot: SlotId, behind: usize, communities: &[&str]) {
    assert_eq!(oracle.announce(slot, &[site().into()], &route(slot, behind, communities)), []);
}

/// Who announced the best route to [`site`] at each slot.
fn winners(oracle: &Oracle) -> Vec<Option<SlotId>> {
    let width = oracle.members().slots.len() as SlotId;
    (0..width).map(|slot| oracle.table(slot).get(&site()).map(|(announcer, _)| *announcer)).collect()
}

#[test]
fn a_route_reaches_everybody_but_its_announcer() {
    let mut oracle = lab(&[]);
    announce(&mut oracle, ALPHA, 1, &[]);
    assert_eq!(winners(&oracle), [None, Some(ALPHA), Some(ALPHA), Some(ALPHA)]);
    oracle.withdraw(ALPHA, &[site().into()]);
    assert_eq!(winners(&oracle), [None; 4]);
    assert_eq!(oracle.table(BRAVO), BTreeMap::new());
}

#[test]
fn a_hidden_route_is_in_no_table_it_is_hidden_from_and_its_control_communities_in_none() {
    let mut oracle = lab(&[]);
    announce(&mut oracle, ALPHA, 1, &["0:64500", "64511:1"]);
    announce(&mut oracle, DELTA, 1, &["64496:1:64497"]);
    // P[receiver][route] with routes of alpha and delta is not symmetric.
    assert_eq!(winners(&oracle), [Some(DELTA), Some(ALPHA), Some(ALPHA), None]);
    assert_eq!(oracle.table(BRAVO)[&site()].1, route(ALPHA, 1, &["64511:1"]));
    assert_eq!(oracle.table(ALPHA)[&site()].1, route(DELTA, 1, &[]));
}

#[test]
fn the_shorter_path_wins_and_the_recommendation_decides_among_equals() {
    let mut oracle = lab(&[(ALPHA, 3), (BRAVO, 9), (CHARLIE, 5)]);
    announce(&mut oracle, ALPHA, 1, &[]);
    announce(&mut oracle, BRAVO, 2, &[]);
    announce(&mut oracle, CHARLIE, 1, &[]);
    assert_eq!(winners(&oracle), [Some(CHARLIE), Some(CHARLIE), Some(ALPHA), Some(CHARLIE)]);
    oracle.recommend([(ALPHA, 6), (CHARLIE, 5)].into());
    assert_eq!(winners(&oracle), [Some(CHARLIE), Some(ALPHA), Some(ALPHA), Some(ALPHA)]);
}

#[test]
fn the_exchange_may_have_precedence() {
    let mut oracle = lab(&[(BRAVO, 9)]).with_precedence(Precedence::Exchange);
    announce(&mut oracle, ALPHA, 1, &[]);
    announce(&mut oracle, BRAVO, 2, &[]);
    announce(&mut oracle, CHARLIE, 1, &[]);
    assert_eq!(winners(&oracle), [Some(BRAVO), Some(ALPHA), Some(BRAVO), Some(BRAVO)]);
}

#[test]
fn ties_go_to_the_lowest_number() {
    let mut oracle = lab(&[]);
    announce(&mut oracle, CHARLIE, 1, &[]);
    announce(&mut oracle, BRAVO, 1, &[]);
    let paths = [Nlri { prefix: site(), path_id: 9 }, Nlri { prefix: site(), path_id: 2 }];
    let mut med = route(BRAVO, 1, &[]).edit();
    assert_eq!(oracle.announce(BRAVO, &paths, &med.med(Some(1)).finish()), []);
    assert_eq!(winners(&oracle), [Some(BRAVO), Some(CHARLIE), Some(BRAVO), Some(BRAVO)]);
    let offers: Vec<_> = oracle.offers(ALPHA, site()).iter().map(|offer| (offer.announcer, offer.path_id)).collect();
    assert_eq!(offers, [(BRAVO, 0), (BRAVO, 2), (BRAVO, 9), (CHARLIE, 0)]);
    assert_eq!(oracle.best(ALPHA, site()).expect("one").path_id, 0);
    oracle.withdraw(BRAVO, &[Nlri::new(site())]);
    assert_eq!(oracle.best(ALPHA, site()).expect("one").path_id, 2);
}

#[test]
fn a_policy_change_moves_what_is_announced_already() {
    let mut oracle = lab(&[]);
    announce(&mut oracle, ALPHA, 1, &[]);
    oracle.set_policy(ALPHA, policy("rule = [{ direction = 'export', hide_from = 64500 }]"));
    assert_eq!(winners(&oracle), [None, Some(ALPHA), Some(ALPHA), None]);
    oracle.set_policy(ALPHA, policy(""));
    oracle.set_policy(BRAVO, policy("rule = [{ direction = 'import', as_path = '^64497_', reject = true }]"));
    assert_eq!(winners(&oracle), [None, None, Some(ALPHA), Some(ALPHA)]);
}

#[test]
fn import_rules_prefer_and_change_the_receivers_routes_only() {
    let mut oracle = lab(&[]);
    announce(&mut oracle, ALPHA, 1, &[]);
    announce(&mut oracle, CHARLIE, 3, &[]);
    let rules =
        "rule = [{ direction = 'import', peer = 64499, local_pref = 300, set_med = 4, add_community = '64498:1' }]";
    oracle.set_policy(BRAVO, policy(rules));
    assert_eq!(winners(&oracle), [Some(CHARLIE), Some(CHARLIE), Some(ALPHA), Some(ALPHA)]);
    let mut changed = route(CHARLIE, 3, &["64498:1"]).edit();
    assert_eq!(oracle.table(BRAVO)[&site()].1, changed.med(Some(4)).finish());
    assert_eq!(oracle.table(ALPHA)[&site()].1, route(CHARLIE, 3, &[]));
}

#[test]
fn a_member_that_joins_gets_what_it_may_have_and_one_that_leaves_takes_its_routes() {
    let mut oracle = lab(&[]);
    announce(&mut oracle, ALPHA, 1, &["0:64505"]);
    announce(&mut oracle, BRAVO, 2, &[]);
    let echo = oracle.join(slot(4, 64505)).expect("a new slot");
    assert_eq!(winners(&oracle)[echo as usize], Some(BRAVO));
    assert_eq!(oracle.leave(BRAVO), Ok(()));
    assert_eq!(winners(&oracle), [None, None, Some(ALPHA), Some(ALPHA), None]);
    let refused = oracle.announce(BRAVO, &[site().into()], &route(BRAVO, 1, &[]));
    assert_eq!(refused, [(site().into(), Refused::NotAMember(BRAVO))]);
    assert_eq!(oracle.join(slot(1, 64498)), Err(SetError::KeyTaken(5)), "a returning member brings new keys");
}

#[test]
fn slots_of_one_as_hear_nothing_from_each_other() {
    let mut oracle = lab_of(set(&[64497, 64498, 64497]), &[]);
    announce(&mut oracle, ALPHA, 1, &[]);
    assert_eq!(winners(&oracle), [None, Some(ALPHA), None], "its own AS is on the path");
    announce(&mut oracle, BRAVO, 1, &["64496:64497", "0:64496"]);
    assert_eq!(winners(&oracle), [Some(BRAVO), Some(ALPHA), Some(BRAVO)], "a policy that names an AS covers its slots");
}

#[test]
fn an_invalid_route_takes_the_place_of_what_it_replaces() {
    let mut oracle = lab(&[]);
    announce(&mut oracle, ALPHA, 1, &[]);
    let refused = oracle.announce(ALPHA, &[site().into()], &route(BRAVO, 1, &[]));
    let invalid = Invalid::FirstAs { found: Some(Asn(64498)), announcer: Asn(64497) };
    assert_eq!(refused, [(site().into(), Refused::Invalid(invalid))]);
    assert_eq!(winners(&oracle), [None; 4]);
    let martian = prefix("10.0.0.0/8");
    assert_eq!(oracle.announce(ALPHA, &[martian.into(), site().into()], &route(ALPHA, 1, &[])).len(), 1);
    assert_eq!(winners(&oracle)[1..], [Some(ALPHA); 3]);
}

#[test]
fn a_loop_is_a_matter_of_the_receiver() {
    let mut oracle = lab(&[]);
    let looped = attributes(&[64497, 64499], 0).finish();
    assert_eq!(oracle.announce(ALPHA, &[site().into()], &looped), []);
    assert_eq!(winners(&oracle), [None, Some(ALPHA), None, Some(ALPHA)]);
}

#[test]
fn a_route_with_an_invalid_verdict_is_used_only_where_a_rule_says_so() {
    let mut oracle = lab(&[]);
    let refused = oracle.announce_with_verdict(ALPHA, &[site().into()], &route(ALPHA, 0, &[]), VerdictKind::Invalid);
    assert_eq!(refused, []);
    oracle.set_policy(DELTA, policy("rule = [{ direction = 'import', verdict = 'invalid', accept = true }]"));
    assert_eq!(winners(&oracle), [None, None, None, Some(ALPHA)]);
}

#[test]
fn prefixes_beyond_the_limit_are_refused_and_room_is_made_by_withdrawing() {
    let mut members = set(&ASNS);
    members.slots[0].max_prefix = 2;
    let mut oracle = lab_of(members, &[]);
    let [a, b, c] = ["192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"].map(|text| Nlri::new(prefix(text)));
    let of_alpha = route(ALPHA, 1, &[]);
    assert_eq!(oracle.announce(ALPHA, &[a, b, c], &of_alpha), [(c, Refused::MaxPrefix { slot: ALPHA, most: 2 })]);
    assert_eq!(oracle.announce(ALPHA, &[a, b], &route(ALPHA, 2, &[])), [], "replacing needs no room");
    assert_eq!(oracle.table(BRAVO).into_keys().collect::<Vec<_>>(), [a.prefix, b.prefix]);
    oracle.withdraw(ALPHA, &[a, a]);
    assert_eq!(oracle.announce(ALPHA, &[c], &of_alpha), []);
    assert_eq!(oracle.table(BRAVO).into_keys().collect::<Vec<_>>(), [b.prefix, c.prefix]);
    oracle.withdraw_all(ALPHA);
    assert_eq!(oracle.announce(ALPHA, &[a, c], &of_alpha), []);
}

/// One thing that happens at an exchange of four members, two of one AS, and a fifth that joins.
#[derive(Clone, Debug)]
enum Event {
    Announce { slot: u8, prefix: u8, path_id: u32, behind: usize, communities: Vec<&'static str> },
    Withdraw { slot: u8, prefix: u8, path_id: u32 },
    Policy { slot: u8, policy: usize },
    Join,
    Leave { slot: u8 },
}

const PREFIXES: [&str; 3] = ["192.0.2.0/24", "198.51.100.0/24", "2001:db8:1::/48"];
const COMMUNITIES: [&str; 6] = ["0:64500", "64496:64498", "0:64496", "64496:1:0", "rt:0:64505", "64511:1"];
const POLICIES: [&str; 5] = [
    "",
    "rule = [{ direction = 'export', prefix = '192.0.2.0/24', hide_from = [64498, 64505] }]",
    "rule = [{ direction = 'export', family = 'ipv6', announce = 64500, ignore_communities = true }]",
    "rule = [{ direction = 'import', as_path = ' 65000 65000', reject = true }, { direction = 'import', peer = 64500, class = 200 }]",
    "ranking = { strict = true }",
];
const POOL: [u32; 5] = [64497, 64498, 64500, 64500, 64505];

fn any_event() -> impl Strategy<Value = Event> {
    let communities = prop::sample::subsequence(COMMUNITIES.to_vec(), 0..3);
    let key = || (0u8..5, 0u8..3, 0u32..2);
    prop_oneof![
        12 => (key(), 0usize..3, communities).prop_map(|((slot, prefix, path_id), behind, communities)| {
            Event::Announce { slot, prefix, path_id, behind, communities }
        }),
        5 => key().prop_map(|(slot, prefix, path_id)| Event::Withdraw { slot, prefix, path_id }),
        3 => (0u8..5, 0usize..POLICIES.len()).prop_map(|(slot, policy)| Event::Policy { slot, policy }),
        1 => Just(Event::Join),
        1 => (0u8..5).prop_map(|slot| Event::Leave { slot }),
    ]
}

/// What is true at the end, kept without any of the oracle's own bookkeeping.
#[derive(Default)]
struct Final {
    routes: BTreeMap<(SlotId, Nlri), Attributes>,
    policies: BTreeMap<SlotId, usize>,
}

fn nlri(prefix_at: u8, path_id: u32) -> Nlri {
    Nlri { prefix: prefix(PREFIXES[usize::from(prefix_at)]), path_id }
}

fn happen(oracle: &mut Oracle, last: &mut Final, event: Event) {
    match event {
        Event::Announce { slot, prefix, path_id, behind, communities } => {
            let path: Vec<u32> = std::iter::once(POOL[usize::from(slot)]).chain((0..behind).map(|_| 65_000)).collect();
            let attributes = with_communities(&path, slot, &communities);
            let nlri = nlri(prefix, path_id);
            if oracle.announce(slot.into(), &[nlri], &attributes).is_empty() {
                last.routes.insert((slot.into(), nlri), attributes);
            }
        }
        Event::Withdraw { slot, prefix, path_id } => {
            oracle.withdraw(slot.into(), &[nlri(prefix, path_id)]);
            last.routes.remove(&(slot.into(), nlri(prefix, path_id)));
        }
        Event::Policy { slot, policy: which } => {
            oracle.set_policy(slot.into(), policy(POLICIES[which]));
            last.policies.insert(slot.into(), which);
        }
        Event::Join if oracle.members().slots.len() < POOL.len() => {
            oracle.join(slot(4, POOL[4])).expect("a new slot");
        }
        Event::Leave { slot } if oracle.members().active(slot.into()).is_some() => {
            oracle.leave(slot.into()).expect("an active slot");
            last.routes.retain(|(announcer, _), _| *announcer != SlotId::from(slot));
        }
        Event::Join | Event::Leave { .. } => {}
    }
}

fn tables(oracle: &Oracle) -> Vec<BTreeMap<Prefix, (SlotId, Attributes)>> {
    (0..oracle.members().slots.len() as SlotId).map(|slot| oracle.table(slot)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn only_the_last_of_everything_counts(events in prop::collection::vec(any_event(), 0..60)) {
        let mut oracle = lab_of(set(&POOL[..4]), &[(0, 2), (2, 5)]);
        let mut last = Final::default();
        events.into_iter().for_each(|event| happen(&mut oracle, &mut last, event));

        let mut fresh = lab_of(oracle.members().clone(), &[(0, 2), (2, 5)]);
        last.policies.iter().for_each(|(slot, which)| fresh.set_policy(*slot, policy(POLICIES[*which])));
        for ((slot, nlri), attributes) in last.routes.iter().rev() {
            prop_assert_eq!(fresh.announce(*slot, &[*nlri], attributes), []);
        }
        prop_assert_eq!(tables(&oracle), tables(&fresh));
    }

    #[test]
    fn no_table_has_a_control_community_an_own_route_or_a_loop(
        events in prop::collection::vec(any_event(), 0..60)
    ) {
        let mut oracle = lab_of(set(&POOL[..4]), &[]);
        let mut last = Final::default();
        events.into_iter().for_each(|event| happen(&mut oracle, &mut last, event));
        for (receiver, table) in (0..).zip(tables(&oracle)) {
            for (announcer, attributes) in table.values() {
                let own = &oracle.members().slots[receiver as usize];
                prop_assert_ne!(*announcer, receiver);
                prop_assert!(own.active && !attributes.as_path().contains(own.asn));
                prop_assert!(attributes.communities().all(|community| community.upper() == 64511));
                prop_assert_eq!(attributes.large_communities().count() + attributes.extended_communities().count(), 0);
            }
        }
    }
}

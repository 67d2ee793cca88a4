//! A small exchange with a table for each cause of a difference.

use std::net::IpAddr;

use wayleave_bgp::origins::{Vrp, Vrps};
use wayleave_bgp::{Attributes, Community, LargeCommunity, Nlri, Origin};
use wayleave_core::Asn;

use super::text::{bird_routes, path};
use super::*;
use crate::directory::Profile;
use crate::policy::PolicyConfig;

const RS: Asn = Asn(64_500);
const PREFIX: &str = "20.0.0.0/16";
/// Slots.
const ALPHA: u32 = 0;
const BRAVO: u32 = 1;
const CHARLIE: u32 = 2;

fn prefix(text: &str) -> Prefix {
    text.parse().expect("a prefix")
}

fn exchange() -> Exchange {
    let slot = |name: &str, number: u8| Slot {
        active: true,
        asn: Asn(64_500 + u32::from(number)),
        name: name.to_owned(),
        addresses: vec![IpAddr::from([192, 0, 2, number])],
        tls: [number; 32],
        sign: [number; 32],
        max_prefix: 0,
        held: false,
    };
    let members = MemberSet {
        exchange: "test-ix".to_owned(),
        number: 1,
        slots: vec![slot("alpha", 1), slot("bravo", 2), slot("charlie", 3)],
        attest: BTreeMap::new(),
        profile: Some(Profile::default()),
        data: None,
    };
    Exchange::new(members, RS, Martians::AllowDocumentation)
}

/// A route of the member with this slot: its AS and these behind it.
fn route(slot: u32, behind: &str) -> Attributes {
    with(slot, behind, |_| {})
}

fn with(slot: u32, behind: &str, edit: impl Fn(&mut wayleave_bgp::AttributesEditor)) -> Attributes {
    let number = slot as u8 + 1;
    let mut editor = Attributes::builder();
    editor.origin(Origin::Igp);
    editor.as_path(path(&format!("{} {behind}", 64_500 + u32::from(number))).expect("a path").as_path());
    editor.ipv4_next_hop([192, 0, 2, number].into());
    edit(&mut editor);
    editor.finish()
}

fn communities(list: &'static [(u16, u16)]) -> impl Fn(&mut wayleave_bgp::AttributesEditor) {
    move |editor| {
        let list: Vec<Community> = list.iter().map(|(upper, lower)| Community::new(*upper, *lower)).collect();
        editor.communities(&list);
    }
}

/// What the server learned of each member, and what it gives to each, at [`PREFIX`].
fn compare(exchange: &Exchange, learned: &[(u32, Attributes)], given: &[(u32, Attributes)]) -> Vec<Difference> {
    let mut tables = Tables::new();
    for (slot, attributes) in learned {
        let peer = exchange.members.slots[*slot as usize].addresses[0];
        tables.learn(exchange, *slot, Some(peer), Nlri::new(prefix(PREFIX)), attributes).expect("few");
    }
    (ALPHA..=CHARLIE).for_each(|member| tables.has_table(member));
    for (member, attributes) in given {
        tables.give(*member, Nlri::new(prefix(PREFIX)), attributes).expect("few");
    }
    let mut found = Vec::new();
    let report = exchange.compare(&tables, |difference| found.push(difference));
    assert_eq!(report.differences(), found.len() as u64);
    assert_eq!(report.causes.values().map(|group| group.count).sum::<u64>(), found.len() as u64);
    found
}

fn only(found: &[Difference]) -> (u32, &Cause) {
    let [difference] = found else { panic!("one difference: {found:?}") };
    (difference.member, &difference.cause)
}

#[test]
fn the_same_routes_are_no_difference_and_control_communities_count_as_stripped() {
    let received = with(ALPHA, "30", communities(&[(64_500, 64_500), (64_501, 1)]));
    let given = with(ALPHA, "30", communities(&[(64_501, 1)]));
    assert_eq!(compare(&exchange(), &[(ALPHA, received)], &[(BRAVO, given.clone()), (CHARLIE, given)]), []);
}

#[test]
fn a_choice_among_equal_routes_is_counted_and_is_no_difference() {
    let exchange = exchange();
    let mut tables = Tables::new();
    for slot in [ALPHA, BRAVO] {
        tables.learn(&exchange, slot, None, Nlri::new(prefix(PREFIX)), &route(slot, "30")).expect("few");
    }
    tables.give(CHARLIE, Nlri::new(prefix(PREFIX)), &route(BRAVO, "30")).expect("few");
    let report = exchange.compare(&tables, |difference| panic!("{difference:?}"));
    let expected = MemberTotals { given: 1, computed: 1, same: 1, equal_choice: 1, different: 0 };
    assert_eq!(report.members[&CHARLIE], expected);
    assert_eq!(report.members.len(), 1, "of others there is no table");
}

#[test]
fn a_route_that_two_sources_have_is_one() {
    let exchange = exchange();
    let mut tables = Tables::new();
    let dumped = with(ALPHA, "30", |editor| {
        editor.local_pref(Some(100));
    });
    for (source, attributes) in [(1, route(ALPHA, "30")), (2, dumped)] {
        tables.learn(&exchange, source, None, Nlri::new(prefix(PREFIX)), &attributes).expect("few");
    }
    tables.give(CHARLIE, Nlri::new(prefix(PREFIX)), &route(ALPHA, "30")).expect("few");
    let report = exchange.compare(&tables, |difference| panic!("{difference:?}"));
    assert_eq!((report.learned[&ALPHA], report.members[&CHARLIE].equal_choice), (1, 0));
}

#[test]
fn what_every_proxy_refuses_is_named_by_its_rule() {
    let longer = prefix("20.0.0.0/25");
    let exchange = exchange();
    let mut tables = Tables::new();
    tables.learn(&exchange, 1, None, Nlri::new(longer), &route(ALPHA, "30")).expect("few");
    tables.give(BRAVO, Nlri::new(longer), &route(ALPHA, "30")).expect("few");
    let mut found = Vec::new();
    let report = exchange.compare(&tables, |difference| found.push(difference));
    let (member, Cause::Refused { rule, why }) = only(&found) else { panic!("{found:?}") };
    assert_eq!((member, rule.as_str()), (BRAVO, "prefix length"));
    assert!(why.to_string().contains("8 to 24"), "{why}");
    assert_eq!(report.refused, [RefusedRoutes { announcer: ALPHA, rule: "prefix length".to_owned(), routes: 1 }]);

    // Another's next hop, which the server passes on.
    let stolen = with(ALPHA, "30", |editor| {
        editor.ipv4_next_hop([192, 0, 2, 2].into());
    });
    let found = compare(&exchange, &[(ALPHA, stolen.clone())], &[(CHARLIE, stolen)]);
    assert!(matches!(only(&found), (CHARLIE, Cause::Refused { rule, .. }) if rule == "next hop"), "{found:?}");
}

#[test]
fn an_origin_that_the_rpki_refuses_is_named() {
    let vrps: Vrps = [Vrp { prefix: prefix(PREFIX), max_length: 16, asn: Asn(31) }].into_iter().collect();
    let exchange = Exchange { vrps: Some(vrps), ..exchange() };
    let found = compare(&exchange, &[(ALPHA, route(ALPHA, "30"))], &[(BRAVO, route(ALPHA, "30"))]);
    assert!(matches!(only(&found), (BRAVO, Cause::Refused { rule, .. }) if rule == "RPKI origin"), "{found:?}");
}

#[test]
fn a_path_that_aspa_records_refuse_is_named_where_the_profile_refuses_it() {
    // AS30 buys from AS31 alone, and alpha passes its route on.
    let mut exchange = Exchange { aspas: Some([(Asn(30), Asn(31))].into_iter().collect()), ..exchange() };
    let (learned, given) = ([(ALPHA, route(ALPHA, "30"))], [(BRAVO, route(ALPHA, "30"))]);
    exchange.members.profile = Some(Profile { refuse_aspa_invalid: true, ..Profile::default() });
    let found = compare(&exchange, &learned, &given);
    assert!(matches!(only(&found), (BRAVO, Cause::Refused { rule, .. }) if rule == "ASPA"), "{found:?}");
    exchange.members.profile = Some(Profile { refuse_aspa_invalid: false, ..Profile::default() });
    assert_eq!(only(&compare(&exchange, &learned, &given)), (CHARLIE, &Cause::Unexplained));
    assert_eq!(rule_name(Check::IrrOrigin), "IRR origin");
}

#[test]
fn hops_that_communities_add_count_and_those_for_one_receiver_where_the_policy_lets_them_be_read() {
    // Twice more to all: the other route is shorter.
    let longer = with(ALPHA, "30", communities(&[(65_502, 64_500)]));
    let learned = [(ALPHA, longer), (BRAVO, route(BRAVO, "29 30"))];
    let given = [(ALPHA, route(BRAVO, "29 30")), (BRAVO, route(ALPHA, "64501 64501 30"))];
    let both = [given[0].clone(), given[1].clone(), (CHARLIE, route(BRAVO, "29 30"))];
    assert_eq!(compare(&exchange(), &learned, &both), []);

    // To one alone it is not done, unless its announcer lets that be read.
    let longer = with(ALPHA, "30", |editor| {
        editor.large_communities(&[LargeCommunity::new(64_500, 102, 64_503)]);
    });
    let learned = [(ALPHA, longer), (BRAVO, route(BRAVO, "29 30"))];
    let to_bravo = (BRAVO, route(ALPHA, "30"));
    let private = [given[0].clone(), to_bravo.clone(), (CHARLIE, route(ALPHA, "30"))];
    assert_eq!(compare(&exchange(), &learned, &private), []);
    let mut exchange = exchange();
    let policy: PolicyConfig = toml::from_str("[communities]\nper_peer = \"readable\"\n").expect("a policy");
    exchange.policies.insert(ALPHA, Policy::compile(&policy).expect("a policy"));
    let readable = [given[0].clone(), to_bravo.clone(), (CHARLIE, route(BRAVO, "29 30"))];
    assert_eq!(compare(&exchange, &learned, &readable), []);
    let found = compare(&exchange, &learned[..1], &[to_bravo, (CHARLIE, route(ALPHA, "64501 64501 30"))]);
    assert_eq!(found, [], "and so it gets it");
}

#[test]
fn of_several_routes_that_a_member_is_given_one_that_is_right_is_enough() {
    let exchange = exchange();
    let mut tables = Tables::new();
    tables.learn(&exchange, 0, None, Nlri::new(prefix(PREFIX)), &route(ALPHA, "30")).expect("few");
    for (path_id, behind) in [(1, "29 30"), (2, "30")] {
        let nlri = Nlri { path_id, prefix: prefix(PREFIX) };
        tables.give(CHARLIE, nlri, &route(ALPHA, behind)).expect("few");
    }
    let report = exchange.compare(&tables, |difference| panic!("{difference:?}"));
    assert_eq!((report.members[&CHARLIE].given, report.members[&CHARLIE].same), (1, 1));
    tables.take_back(CHARLIE, Nlri { path_id: 2, prefix: prefix(PREFIX) });
    assert_eq!(exchange.compare(&tables, |_| {}).differences(), 1);
}

#[test]
fn of_several_slots_of_one_as_the_next_hop_says_whose_a_route_is() {
    let mut exchange = exchange();
    exchange.members.slots[2].asn = Asn(64_501);
    let exchange = Exchange::new(exchange.members, RS, Martians::AllowDocumentation);
    let of = |peer, attributes| exchange.announcer(Afi::Ipv4, peer, attributes);
    let second = with(ALPHA, "30", |editor| {
        editor.ipv4_next_hop([192, 0, 2, 3].into());
    });
    let others = with(ALPHA, "30", |editor| {
        editor.ipv4_next_hop([192, 0, 2, 2].into());
    });
    let first = route(ALPHA, "30");
    assert_eq!((of(None, &first), of(None, &second)), (Some(ALPHA), Some(CHARLIE)));
    assert_eq!(of(None, &others), Some(ALPHA), "another AS's next hop says nothing");
    assert_eq!(of(Some([192, 0, 2, 2].into()), &second), Some(BRAVO));
    let (stranger, bravos) = (with(8, "30", |_| {}), route(BRAVO, ""));
    assert_eq!((of(None, &bravos), Exchange::announcer(&exchange, Afi::Ipv6, None, &stranger)), (Some(BRAVO), None));
}

#[test]
fn export_by_communities_and_by_rules_is_named() {
    let hidden = with(ALPHA, "30", communities(&[(0, 64_503)]));
    let given = route(ALPHA, "30");
    let found = compare(&exchange(), &[(ALPHA, hidden)], &[(BRAVO, given.clone()), (CHARLIE, given.clone())]);
    let (member, Cause::Export(decision)) = only(&found) else { panic!("{found:?}") };
    assert_eq!((member, decision.to_string().as_str()), (CHARLIE, "a community denies it to this AS"));
    assert_eq!(found[0].computed, None);

    // To one alone: Wayleave exports it to nobody else, which some servers do.
    let only_bravo = with(ALPHA, "30", |editor| {
        editor.large_communities(&[LargeCommunity::new(64_500, 1, 64_502)]);
    });
    let found = compare(&exchange(), &[(ALPHA, only_bravo)], &[(BRAVO, given.clone()), (CHARLIE, given.clone())]);
    assert!(matches!(only(&found), (CHARLIE, Cause::Export(_))), "{found:?}");

    let rules: PolicyConfig = toml::from_str("[[rule]]\ndirection = \"export\"\nhide_from = 64502\n").expect("rules");
    let mut exchange = exchange();
    exchange.policies.insert(ALPHA, Policy::compile(&rules).expect("a policy"));
    let both = [(BRAVO, given.clone()), (CHARLIE, given.clone())];
    let found = compare(&exchange, &[(ALPHA, given)], &both);
    assert!(matches!(only(&found), (BRAVO, Cause::Export(_))), "{found:?}");
}

#[test]
fn a_path_with_the_receiver_on_it_is_a_loop() {
    let looped = route(ALPHA, "64503 30");
    let both = [(BRAVO, looped.clone()), (CHARLIE, looped.clone())];
    let found = compare(&exchange(), &[(ALPHA, looped)], &both);
    assert_eq!(only(&found), (CHARLIE, &Cause::Loop(Asn(64_503))));
}

#[test]
fn another_winner_is_named_by_the_step_and_by_the_rule() {
    let learned = [(ALPHA, route(ALPHA, "29 30")), (BRAVO, route(BRAVO, "30"))];
    let given = [(ALPHA, route(BRAVO, "30")), (BRAVO, route(ALPHA, "29 30")), (CHARLIE, route(ALPHA, "29 30"))];
    let found = compare(&exchange(), &learned, &given);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].cause.detail().as_deref(), Some("AS path length"));
    assert_eq!(found[0].computed.as_ref().map(|route| route.announcer), Some(Some(BRAVO)));

    let rules = "[[rule]]\ndirection = \"import\"\npeer = 64501\nclass = 200\n";
    let mut exchange = exchange();
    exchange.policies.insert(CHARLIE, Policy::compile(&toml::from_str(rules).expect("rules")).expect("a policy"));
    let given = [(ALPHA, route(BRAVO, "30")), (BRAVO, route(ALPHA, "29 30")), (CHARLIE, route(BRAVO, "30"))];
    let found = compare(&exchange, &learned, &given);
    let (member, cause) = only(&found);
    assert_eq!((member, cause.detail().as_deref()), (CHARLIE, Some("class by rules")));

    let rules = "[[rule]]\ndirection = \"import\"\npeer = 64502\nreject = true\n";
    exchange.policies.insert(CHARLIE, Policy::compile(&toml::from_str(rules).expect("rules")).expect("a policy"));
    let found = compare(&exchange, &learned, &given);
    assert_eq!(only(&found).1.name(), "import-policy");
}

#[test]
fn a_hidden_path_no_export_and_what_nobody_gets_are_told_apart() {
    let learned = [(ALPHA, with(ALPHA, "30", communities(&[(0, 64_503)]))), (BRAVO, route(BRAVO, "29 30"))];
    let found = compare(&exchange(), &learned, &[(BRAVO, route(ALPHA, "30")), (ALPHA, route(BRAVO, "29 30"))]);
    assert_eq!(only(&found), (CHARLIE, &Cause::PathHiding { best: ALPHA }));
    let words = found[0].cause.words(&exchange().members);
    assert!(words.contains("of alpha"), "{words}");

    let no_export = with(ALPHA, "30", communities(&[(65_535, 65_281)]));
    let found = compare(&exchange(), &[(ALPHA, no_export)], &[]);
    assert_eq!(found.len(), 2);
    assert!(found.iter().all(|difference| difference.cause == Cause::NoExport), "{found:?}");

    let found = compare(&exchange(), &[(ALPHA, route(ALPHA, "30"))], &[]);
    assert!(found.len() == 2 && found.iter().all(|difference| difference.cause == Cause::NotServed), "{found:?}");
}

#[test]
fn changed_attributes_are_listed() {
    let given = with(ALPHA, "30", |editor| {
        editor.med(Some(5)).communities(&[Community::new(64_500, 1)]).ipv4_next_hop([192, 0, 2, 9].into());
    });
    let found = compare(&exchange(), &[(ALPHA, route(ALPHA, "30"))], &[(BRAVO, route(ALPHA, "30")), (CHARLIE, given)]);
    let fields = vec![Field::NextHop, Field::Med, Field::Communities];
    assert_eq!(only(&found), (CHARLIE, &Cause::Attributes(fields)));
    // The server's LOCAL_PREF, which a dump of its table has, is none.
    let dumped = with(ALPHA, "30", |editor| {
        editor.local_pref(Some(100));
    });
    let both = [(BRAVO, route(ALPHA, "30")), (CHARLIE, route(ALPHA, "30"))];
    assert_eq!(compare(&exchange(), &[(ALPHA, dumped)], &both), []);
}

#[test]
fn a_route_that_no_source_has_and_one_without_a_reason_say_so() {
    let found = compare(&exchange(), &[], &[(CHARLIE, route(ALPHA, "30"))]);
    assert_eq!(only(&found), (CHARLIE, &Cause::NotLearned));
    // The server gives the route to one, and nothing says why not to the other.
    let found = compare(&exchange(), &[(ALPHA, route(ALPHA, "30"))], &[(BRAVO, route(ALPHA, "30"))]);
    assert_eq!(only(&found), (CHARLIE, &Cause::Unexplained));
    assert!(found[0].cause.words(&exchange().members).contains("unexplained"));
}

#[test]
fn a_route_of_no_member_is_counted_by_its_first_as_and_compared_with_nobodys() {
    let exchange = exchange();
    let mut tables = Tables::new();
    let stranger = with(8, "30", |_| {});
    assert_eq!(tables.learn(&exchange, 1, None, Nlri::new(prefix(PREFIX)), &stranger), Ok(false));
    let report = exchange.compare(&tables, |difference| panic!("{difference:?}"));
    assert_eq!(report.strangers, BTreeMap::from([(Some(Asn(64_509)), 1)]));
}

#[test]
fn several_paths_of_one_session_are_told_apart_and_withdrawn_by_their_identifiers() {
    let exchange = exchange();
    let mut tables = Tables::new();
    let nlri = |path_id| Nlri { path_id, prefix: prefix(PREFIX) };
    for (path_id, slot) in [(1, ALPHA), (2, BRAVO)] {
        tables.learn(&exchange, 0, None, nlri(path_id), &route(slot, "30")).expect("few");
    }
    tables.learn(&exchange, 0, None, nlri(2), &route(BRAVO, "29 30")).expect("few");
    tables.has_table(CHARLIE);
    assert_eq!(tables.learned(), 2);
    tables.withdraw(0, nlri(1));
    let mut found = Vec::new();
    exchange.compare(&tables, |difference| found.push(difference));
    assert_eq!(found[0].computed.as_ref().map(|route| route.announcer), Some(Some(BRAVO)));
    tables.forget(0);
    assert!(tables.is_empty());
}

#[test]
fn what_birds_client_prints_is_read() {
    let text = "BIRD 2.0.12 ready.\nTable master4:\n\
        203.0.113.0/24       unicast [alpha 2026-12-01 from 192.0.2.1] * (100) [AS30i]\n\
        \tvia 192.0.2.1 on eth0\n\tType: BGP univ\n\tBGP.origin: IGP\n\tBGP.as_path: 64501 29 {30 31}\n\
        \tBGP.next_hop: 192.0.2.1\n\tBGP.med: 10\n\tBGP.local_pref: 100\n\
        \tBGP.community: (64501,7) (65535,65281)\n\tBGP.large_community: (64500, 0, 64503)\n\
        \tBGP.ext_community: (rt, 64500, 1) (generic, 0x3000000, 0x1)\n\tBGP.otc: 64501\n\
        \x20                    unicast [bravo 12:00:00.000] (100) [AS64502i]\n\tbgp_origin: Incomplete\n\tbgp_path: 64502\n\
        2001:db8:1::/48      unicast [bravo6 12:00:00.000 from 2001:db8::2] * (100) [AS64502i]\n\
        \tvia 2001:db8::2 on eth0\n\tBGP.origin: EGP\n\tBGP.as_path: 64502\n\tBGP.next_hop: 2001:db8::2 fe80::2\n";
    let routes = bird_routes(text).expect("as BIRD prints it");
    assert_eq!(routes.len(), 3);
    let first = &routes[0].attributes;
    assert_eq!((routes[0].prefix, routes[0].protocol.as_deref()), (prefix("203.0.113.0/24"), Some("alpha")));
    assert_eq!(first.as_path().to_string(), "64501 29 {30 31}");
    assert_eq!((first.med(), first.only_to_customer()), (Some(10), Some(Asn(64_501))));
    assert_eq!(first.communities().collect::<Vec<_>>(), [Community::new(64_501, 7), Community::NO_EXPORT]);
    assert_eq!(first.large_communities().count(), 1);
    assert_eq!(
        first.extended_communities().map(|c| c.0).collect::<Vec<_>>(),
        [[0, 2, 0xfb, 0xf4, 0, 0, 0, 1], [3, 0, 0, 0, 0, 0, 0, 1]]
    );
    assert_eq!((routes[1].prefix, routes[1].attributes.origin()), (prefix("203.0.113.0/24"), Some(Origin::Incomplete)));
    assert_eq!(next_hop(Afi::Ipv6, &routes[2].attributes), "2001:db8::2".parse().ok());
    assert_eq!(bird_routes("Network not found\n").expect_err("no table").line, 1);
    assert!(bird_routes("10.0.0.0/8 unicast [a 1] (1)\n\tBGP.med: x\n").is_err());
}

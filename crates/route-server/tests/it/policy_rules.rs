//! Rules: what their conditions match, what they decide, and how a wrong configuration is refused.

use std::ops::Range;

use crate::common::{RS, attributes, policy, prefix, set, with_communities};
use wayleave_bgp::{AsPathBuf, Attributes, Community, SegmentKind};
use wayleave_core::{Asn, VerdictKind};
use wayleave_route_server::policy::pattern::{CommunityPattern, PathPattern, PrefixPattern, path_text};
use wayleave_route_server::policy::{
    Changes, Decision, Exported, Imported, Policy, PolicyConfig, PolicyProblem, Rejection, Route, export_decisions,
    export_set,
};

fn imported(rules: &str, attributes: &Attributes) -> Imported {
    policy(rules).import(&Route::new(prefix("198.51.100.0/24"), attributes, Asn(64498)))
}

fn accepted(rules: &str, attributes: &Attributes) -> Changes {
    match imported(rules, attributes) {
        Imported::Accepted(changes) => changes,
        Imported::Rejected(rejection) => panic!("{rejection:?}"),
    }
}

fn receivers(rules: &str, prefix_text: &str, attributes: &Attributes) -> Vec<u32> {
    let members = set(&[64497, 64498, 64499, 64500]);
    export_set(prefix(prefix_text), attributes, 0, &members, RS, &policy(rules)).iter().collect()
}

#[test]
fn whom_a_policy_lets_have_a_route_is_told_with_the_reason() {
    let rules = "[[rule]]\ndirection = \"export\"\nprefix = \"10.0.0.0/8+\"\nhide_from = 64499\n";
    let mut members = set(&[64497, 64498, 64499, 64500, 64501]);
    members.slots[3].held = true;
    members.slots[4].active = false;
    let attributes = attributes(&[64497], 0).finish();
    for text in ["10.0.0.0/8", "11.0.0.0/8"] {
        let of = (prefix(text), &attributes, 0, &members, RS, &policy(rules));
        let decisions = export_decisions(of.0, of.1, of.2, of.3, of.4, of.5);
        let permitted: Vec<u32> = decisions.iter().filter(|(_, why)| why.permits()).map(|(slot, _)| *slot).collect();
        assert_eq!(permitted, export_set(of.0, of.1, of.2, of.3, of.4, of.5).iter().collect::<Vec<_>>(), "{text}");
        let slots: Vec<u32> = decisions.iter().map(|(slot, _)| *slot).collect();
        assert_eq!(slots, [1, 2, 3], "neither its own slot nor one whose member left");
        assert_eq!(decisions[2].1, Decision::Held);
        let is_hidden = decisions[1].1 == Decision::Policy(Exported::DeniedByRule(0));
        assert_eq!(is_hidden, text == "10.0.0.0/8", "{text}: {}", decisions[1].1);
    }
}

#[test]
fn prefix_patterns_match_by_place_and_length() {
    let table = [
        ("10.0.0.0/8", "10.0.0.0/8", true),
        ("10.0.0.0/8", "10.1.0.0/16", false),
        ("10.0.0.0/8 exact", "10.0.0.0/8", true),
        ("10.0.0.0/8+", "10.0.0.0/8", true),
        ("10.0.0.0/8+", "10.255.255.255/32", true),
        ("10.0.0.0/8 orlonger", "10.1.0.0/16", true),
        ("10.0.0.0/8+", "11.0.0.0/8", false),
        ("10.0.0.0/8{16,24}", "10.0.0.0/15", false),
        ("10.0.0.0/8{16,24}", "10.1.0.0/16", true),
        ("10.0.0.0/8{16,24}", "10.1.1.0/24", true),
        ("10.0.0.0/8{ 16, 24 }", "10.1.1.0/25", false),
        ("10.0.0.0/8 ge 16", "10.1.1.1/32", true),
        ("10.0.0.0/8 ge 16", "10.0.0.0/8", false),
        ("10.0.0.0/8 le 16", "10.0.0.0/8", true),
        ("10.0.0.0/8 le 16", "10.1.0.0/17", false),
        ("10.0.0.0/8 ge 16 le 24", "10.1.0.0/20", true),
        ("2001:db8::/32{48,64}", "2001:db8:1::/48", true),
        ("2001:db8::/32{48,64}", "2001:db8::/32", false),
        ("0.0.0.0/0+", "::/0", false),
    ];
    for (pattern, text, holds) in table {
        let parsed: PrefixPattern = pattern.parse().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(parsed.matches(&prefix(text)), holds, "{pattern} and {text}");
    }
}

#[test]
fn prefix_patterns_that_make_no_sense_are_refused() {
    for text in [
        "",
        "10.0.0.0",
        "10.0.0.1/8",
        "10.0.0.0/33",
        "10.0.0.0/8{24,16}",
        "10.0.0.0/8{4,16}",
        "10.0.0.0/8{16,33}",
        "10.0.0.0/8{16}",
        "10.0.0.0/8{16,24",
        "10.0.0.0/8++",
        "10.0.0.0/8 le",
        "10.0.0.0/8 le 4",
        "10.0.0.0/8 longer",
        "10.0.0.0/8 ge 16 ge 24",
        "10.0.0.0/8 le -1",
    ] {
        assert!(text.parse::<PrefixPattern>().is_err(), "{text}");
    }
}

#[test]
fn a_path_prints_as_routers_print_it() {
    let mut path = AsPathBuf::new();
    path.push_segment(SegmentKind::Sequence, &[Asn(64497), Asn(4_200_000_000)]);
    path.push_segment(SegmentKind::Set, &[Asn(1), Asn(2)]);
    assert_eq!(path_text(path.as_path()), "64497 4200000000 {1,2}");
    path.push_segment(SegmentKind::ConfedSequence, &[Asn(65001), Asn(65002)]);
    path.push_segment(SegmentKind::ConfedSet, &[Asn(65003), Asn(65004)]);
    assert_eq!(path_text(path.as_path()), "64497 4200000000 {1,2} (65001 65002) [65003,65004]");
    assert_eq!(path_text(AsPathBuf::new().as_path()), "");
}

#[test]
fn path_expressions_match_as_operators_write_them() {
    let table = [
        ("_64500_", "64497 64500 64501", true),
        ("_64500_", "64500", true),
        ("_64500_", "64497 64500", true),
        ("_64500_", "164500 645001", false),
        ("_64500_", "64497 {64499,64500}", true),
        ("_64500_", "(64500 65001) 64497", true),
        ("_64500_", "[65001,64500]", true),
        ("^64497_", "64497 64500", true),
        ("^64497_", "64497", true),
        ("^64497_", "644970 64500", false),
        ("_64500$", "64497 64500", true),
        ("_64500$", "64500 64497", false),
        ("^$", "", true),
        ("^$", "64497", false),
        ("_", "", true),
        ("_64499_64500_", "64497 64499 64500 64501", true),
        ("_64499_64500_", "64499 64498 64500", false),
        ("^64497( 64497)*$", "64497 64497 64497", true),
        ("^64497( 64497)*$", "64497 64498", false),
        ("^[0-9]+( [0-9]+){0,2}$", "1 2 3", true),
        ("^[0-9]+( [0-9]+){0,2}$", "1 2 3 4", false),
        ("^64497 (64500|64501)_", "64497 64501 1", true),
        (".*", "64497 {1,2}", true),
        (r"_6451[0-1]_", "64497 64511", true),
        (r"\{1,2\}$", "64497 {1,2}", true),
        (r"[^_]64500", "64497 64500", true),
        (r"[]_]64500", "64497 64500", false),
        (r"[^]_]64500", "64497 64500", true),
    ];
    for (expression, path, holds) in table {
        let pattern: PathPattern = expression.parse().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(pattern.matches(path), holds, "{expression} and {path}");
    }
}

#[test]
fn path_expressions_that_cost_too_much_or_mean_nothing_are_refused() {
    let long = "1".repeat(1025);
    let nested = format!("{}1{}", "(".repeat(40), ")".repeat(40));
    for text in ["(", "[", "*", "{1", "_(", "(((a{1000}){1000}){1000})", &long, &nested] {
        assert!(text.parse::<PathPattern>().is_err(), "{text}");
    }
    let error = "_(64500".parse::<PathPattern>().expect_err("unclosed").to_string();
    assert!(error.starts_with("`_(64500` is not an AS path expression: "), "{error}");
    assert!(!error.contains('\n') && !error.contains("?:"), "{error}");
}

#[test]
fn a_hard_expression_takes_linear_time() {
    let pattern: PathPattern = "^(([0-9]+ ?)+)+x$".parse().expect("it compiles");
    assert!(!pattern.matches(&"64497 ".repeat(5000)));
}

#[test]
fn community_patterns_take_wildcards_in_every_kind() {
    let route = with_communities(&[64498], 1, &["64511:7", "64511:1:2", "rt:64511:9", "ro:4200000000:3", "no-export"]);
    let table = [
        ("64511:7", true),
        ("64511:*", true),
        ("*:7", true),
        ("*:8", false),
        ("*:*", true),
        ("64510:*", false),
        ("64511:1:2", true),
        ("64511:*:*", true),
        ("64511:*:3", false),
        ("*:1:*", true),
        ("rt:64511:9", true),
        ("rt:64511:*", true),
        ("rt:*:10", false),
        ("ro:4200000000:*", true),
        ("ro:64511:*", false),
        ("no-export", true),
        ("65535:65281", true),
        ("no-advertise", false),
    ];
    for (text, holds) in table {
        let pattern: CommunityPattern = text.parse().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(pattern.matches(&route), holds, "{text}");
        assert!(!pattern.matches(&attributes(&[64498], 1).finish()), "{text} and a route without any");
    }
    for text in
        ["", "64511", "64511:", ":", "64511:65536", "65536:1", "1:2:3:4", "rt:1", "rt:1:4294967296", "1:+2", "**:1"]
    {
        assert!(text.parse::<CommunityPattern>().is_err(), "{text}");
    }
}

#[test]
fn a_rule_holds_if_all_its_conditions_hold() {
    let rules = "
        [[rule]]
        direction = 'import'
        prefix = ['198.51.100.0/24', '203.0.113.0/24']
        as_path = '^64498_'
        community = '64511:*'
        peer = 64498
        family = 'ipv4'
        verdict = 'unattested'
        class = 9";
    let good = with_communities(&[64498], 1, &["64511:7"]);
    assert_eq!(accepted(rules, &good).class, Some(9));
    assert_eq!(accepted(rules, &attributes(&[64498], 1).finish()).class, None);
    let route = |p| Route::new(prefix(p), &good, Asn(64498));
    let class = |route: &Route<'_>| match policy(rules).import(route) {
        Imported::Accepted(changes) => changes.class,
        Imported::Rejected(rejection) => panic!("{rejection:?}"),
    };
    assert_eq!(class(&route("203.0.113.0/24")), Some(9));
    assert_eq!(class(&route("192.0.2.0/24")), None);
    assert_eq!(class(&route("2001:db8::/32")), None);
    assert_eq!(class(&route("203.0.113.0/24").with_verdict(VerdictKind::Valid)), None);
    assert_eq!(class(&Route::new(prefix("203.0.113.0/24"), &good, Asn(64499))), None);
}

#[test]
fn import_changes_add_up_until_a_rule_ends_the_reading() {
    let route = attributes(&[64498, 64511], 1).finish();
    let rules = "
        [[rule]]
        direction = 'import'
        local_pref = 200
        add_community = '64511:1'
        [[rule]]
        direction = 'import'
        as_path = '_64511$'
        local_pref = 50
        add_community = ['64511:1', '64511:1:2', 'rt:64511:3']
        accept = true
        [[rule]]
        direction = 'import'
        reject = true";
    let changes = accepted(rules, &route);
    assert_eq!((changes.local_pref, changes.add_community.len()), (Some(50), 3));
    let other = attributes(&[64498, 64510], 1).finish();
    assert_eq!(imported(rules, &other), Imported::Rejected(Rejection::Rule(2)));
}

#[test]
fn changes_reach_the_routers_attributes_and_nothing_else_does() {
    let route = with_communities(&[64498], 1, &["64511:9"]);
    let rules =
        "rule = [{ direction = 'import', set_med = 5, local_pref = 7, add_community = ['64511:9', '64511:8'] }]";
    let applied = accepted(rules, &route).apply(&route);
    assert_eq!(applied.med(), Some(5));
    assert_eq!(applied.local_pref(), None);
    assert_eq!(applied.communities().collect::<Vec<_>>(), [Community::new(64511, 9), Community::new(64511, 8)]);
    assert_eq!(applied.as_path(), route.as_path());
    assert_eq!(Changes::default().apply(&route).as_octets(), route.as_octets());
}

#[test]
fn an_invalid_route_is_rejected_unless_a_rule_accepts_that_by_name() {
    let route = attributes(&[64498], 1).finish();
    let invalid = Route::new(prefix("198.51.100.0/24"), &route, Asn(64498)).with_verdict(VerdictKind::Invalid);
    let rejected = Imported::Rejected(Rejection::Invalid);
    assert_eq!(policy("").import(&invalid), rejected);
    assert_eq!(policy("rule = [{ direction = 'import', accept = true }]").import(&invalid), rejected);
    assert_eq!(
        policy("rule = [{ direction = 'import', verdict = 'invalid', local_pref = 1 }]").import(&invalid),
        rejected
    );
    let by_name = policy("rule = [{ direction = 'import', verdict = ['invalid', 'expired'], accept = true }]");
    assert_eq!(by_name.import(&invalid), Imported::Accepted(Changes::default()));
}

#[test]
fn export_rules_are_read_for_each_receiver_and_the_first_that_speaks_decides() {
    let route = attributes(&[64497], 0).finish();
    let rules = "
        [groups]
        rivals = [64499, 64500]
        [[rule]]
        direction = 'export'
        prefix = '198.51.100.0/24'
        hide_from = 'rivals'
        [[rule]]
        direction = 'export'
        peer = 64498
        announce = 'none'
        [[rule]]
        direction = 'export'
        prefix = '203.0.113.0/24+'
        announce = ['rivals', 64498]
        [[rule]]
        direction = 'export'
        peer_group = 'rivals'
        family = 'ipv6'
        announce = 'none'";
    assert_eq!(receivers(rules, "198.51.100.0/24", &route), [0u32; 0]);
    assert_eq!(receivers(rules, "203.0.113.0/24", &route), [2, 3]);
    assert_eq!(receivers(rules, "192.0.2.0/24", &route), [2, 3]);
    assert_eq!(receivers(rules, "2001:db8::/32", &route), [0u32; 0]);
}

#[test]
fn an_announce_list_denies_everybody_else_and_hide_from_goes_first() {
    let route = attributes(&[64497], 0).finish();
    assert_eq!(receivers("rule = [{ direction = 'export', announce = '64499' }]", "198.51.100.0/24", &route), [2]);
    assert_eq!(receivers("rule = [{ direction = 'export', announce = 'none' }]", "198.51.100.0/24", &route), [0u32; 0]);
    assert_eq!(receivers("rule = [{ direction = 'export', announce = [] }]", "198.51.100.0/24", &route), [0u32; 0]);
    let both = "rule = [{ direction = 'export', announce = 'all', hide_from = ['AS64499'] }]";
    assert_eq!(receivers(both, "198.51.100.0/24", &route), [1, 3]);
    let first = "rule = [{ direction = 'export', announce = 'all' }, { direction = 'export', hide_from = 64499 }]";
    assert_eq!(receivers(first, "198.51.100.0/24", &route), [1, 2, 3]);
}

#[test]
fn a_group_of_nobody_matches_nobody() {
    let route = attributes(&[64497], 0).finish();
    let rules = "groups = { empty = [] }\nrule = [{ direction = 'export', peer_group = 'empty', announce = 'none' }]";
    assert_eq!(receivers(rules, "198.51.100.0/24", &route), [1, 2, 3]);
}

#[test]
fn a_policy_says_whether_prefixes_of_one_update_may_part() {
    assert!(!policy("rule = [{ direction = 'export', as_path = '_1_', hide_from = 64499 }]").exports_by_prefix());
    assert!(policy("rule = [{ direction = 'export', family = 'ipv4', hide_from = 64499 }]").exports_by_prefix());
    assert!(!policy("rule = [{ direction = 'import', prefix = '192.0.2.0/24', reject = true }]").exports_by_prefix());
    assert!(
        policy("rule = [{ direction = 'export', prefix = '192.0.2.0/24', hide_from = 64499 }]").exports_by_prefix()
    );
}

/// Where an error points, and what it says.
fn refused(text: &str) -> (Range<usize>, String) {
    match toml::from_str::<PolicyConfig>(text) {
        Err(error) => (error.span().unwrap_or_default(), error.message().to_owned()),
        Ok(config) => {
            let error = Policy::compile(&config).expect_err("a wrong configuration");
            (error.span.clone().unwrap_or_default(), error.to_string())
        }
    }
}

#[test]
fn a_wrong_value_is_pointed_at() {
    let table = [
        (
            "[[rule]]\ndirection = 'export'\nprefix = ['192.0.2.0/24', '192.0.2.1/24']\n",
            "'192.0.2.1/24'",
            "beyond the prefix length",
        ),
        ("[[rule]]\ndirection = 'export'\nas_path = '_(1'\n", "'_(1'", "AS path expression"),
        ("[[rule]]\ndirection = 'export'\ncommunity = ['1:2', '1:65536']\n", "'1:65536'", "0 to 65535"),
        ("[[rule]]\ndirection = 'sideways'\n", "'sideways'", "sideways"),
        ("[[rule]]\ndirection = 'import'\nclass = 256\n", "256", "256"),
        ("[[rule]]\ndirection = 'import'\nverdict = 'good'\n", "'good'", "good"),
        ("[[rule]]\ndirection = 'import'\nlocal_perf = 5\n", "local_perf", "local_perf"),
        ("[[rule]]\ndirection = 'import'\nadd_community = '1:*'\n", "'1:*'", "community"),
        ("[[rule]]\ndirection = 'export'\nhide_from = [64500, 'rivals']\n", "[64500, 'rivals']", "no group `rivals`"),
        ("[[rule]]\ndirection = 'export'\npeer_group = 'rivals'\nannounce = 'all'\n", "'rivals'", "no group"),
        ("[[rule]]\ndirection = 'export'\nannounce = ['all', 64500]\n", "['all', 64500]", "by itself"),
        ("[[rule]]\ndirection = 'export'\nhide_from = 4294967296\n", "4294967296", "AS number"),
        ("[ranking]\nwidth = 9\n", "[ranking]", "1 to 8 bits"),
        ("[groups]\n64500 = [1]\n", "", "cannot name a group"),
        ("[groups]\nrivals = ['x']\n", "'x'", "invalid type"),
    ];
    for (text, place, says) in table {
        let (span, message) = refused(text);
        assert!(message.contains(says), "{text}{message}");
        assert_eq!(&text[span], place, "{text}{message}");
    }
}

#[test]
fn a_rule_whose_fields_do_not_go_together_is_pointed_at() {
    let table = [
        ("direction = 'export'\nlocal_pref = 5", "`local_pref` has no meaning in an export rule"),
        ("direction = 'export'\nverdict = 'valid'\nannounce = 'all'", "`verdict` has no meaning in an export rule"),
        ("direction = 'import'\nhide_from = 5", "`hide_from` has no meaning in an import rule"),
        ("direction = 'export'\npeer = 64500", "the rule does nothing"),
        ("direction = 'import'\npeer = 64500", "the rule does nothing"),
        ("direction = 'import'\nreject = true\nclass = 5", "cannot also have `class`"),
        ("direction = 'export'\nhide_from = 5\nignore_communities = true", "needs `announce`"),
    ];
    for (body, says) in table {
        let text = format!("[[rule]]\ndirection = 'import'\nreject = true\n\n[[rule]]\n{body}\n");
        let (span, message) = refused(&text);
        assert!(message.contains(says), "{body}: {message}");
        assert_eq!((span.start, &text[span]), (text.rfind("[[rule]]").expect("two rules"), "[[rule]]"), "{body}");
    }
}

#[test]
fn too_many_rules_are_refused() {
    let text = "[[rule]]\ndirection = 'import'\nreject = true\n".repeat(1025);
    let config: PolicyConfig = toml::from_str(&text).expect("well formed");
    assert_eq!(Policy::compile(&config).expect_err("too many").problem, PolicyProblem::TooManyRules(1025));
}

//! Each format by excerpts of real files, each fault with its place and text.

use std::fs;
use std::path::Path;

use super::*;

#[expect(clippy::disallowed_methods, reason = "a test reads its data")]
fn data(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/imports").join(name)).expect("a file")
}

fn all() -> Selection {
    Selection { all: true, ..Selection::default() }
}

fn take(text: &str) -> Import {
    parse(text.as_bytes(), &Selection::default()).expect("members")
}

fn faults(text: &str) -> Vec<String> {
    match parse(text.as_bytes(), &Selection::default()) {
        Err(ImportError::Faults(faults)) => faults.shown().iter().map(ToString::to_string).collect(),
        other => panic!("{other:?}"),
    }
}

fn names(import: &Import) -> Vec<&str> {
    import.members.iter().map(|member| member.name.as_str()).collect()
}

#[test]
fn clients_of_arouteserver_become_routers_with_both_addresses() {
    let import = parse(&data("arouteserver.clients.ams-ix.yml"), &Selection::default()).expect("members");
    assert_eq!((import.format, import.addresses, import.members.len()), (Format::Arouteserver, 12, 7));
    // Two ASes have one description, and two more of its clients are one router.
    let expected =
        ["1-1-internet-ag", "23media-gmbh", "2at-b-v", "3p-system-srl", "3t-com", "a2b-internet", "a2b-internet-2"];
    assert_eq!(names(&import), expected);
    let first = &import.members[0];
    let addresses: Vec<String> = first.addresses().iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["80.249.208.220", "2001:7f8:1::a500:8560:1"]);
    assert_eq!(
        (first.asn, first.max_prefix(), first.as_sets.join(" ")),
        (Asn(8560), Some(6000), "AS-1AND1".to_owned())
    );
    let places: Vec<String> = first.places.iter().map(ToString::to_string).collect();
    assert_eq!(places, ["clients[0] (line 5)", "clients[1] (line 16)"]);
    // Without an IPv6 address the limit of IPv6 does not count; and who has no limit has none.
    assert_eq!(import.members[4].max_prefix(), Some(150));
    assert_eq!(import.members[6].max_prefix(), None);
}

#[test]
fn an_ixf_export_gives_a_router_for_each_pair_of_a_connection() {
    let text = data("ixf-0.6.bcix.json");
    let Err(ImportError::Nothing(left_out)) = parse(&text, &Selection::default()) else {
        panic!("it says nothing of it")
    };
    assert_eq!(left_out.into_iter().collect::<Vec<_>>(), [("that say nothing of the route server".to_owned(), 42)]);
    let import = parse(&text, &all()).expect("members");
    assert_eq!((import.format, import.addresses, import.members.len()), (Format::Ixf, 42, 22));
    assert_eq!(names(&import)[..5], ["as15169", "as20676", "as31529", "as2906", "as2906-2"]);
    assert_eq!(import.members[0].max_prefix(), Some(15_750));
    let second: Vec<String> = import.members[4].addresses().iter().map(ToString::to_string).collect();
    assert_eq!(second, ["193.178.185.81", "2001:7f8:19:1::b5a:2"]);
}

/// As IXP Manager writes an export of version 1.0.
const EXPORT: &str = r#"{"version": "1.0", "ixp_list": [{"ixp_id": 1, "vlan": [{"id": 2}, {"id": 3}]}], "member_list": [
    {"asnum": 64497, "member_type": "peering", "name": "Alpha, Inc.", "connection_list": [
        {"ixp_id": 1, "state": "active", "vlan_list": [
            {"vlan_id": 2, "ipv4": {"address": "192.0.2.1", "routeserver": true, "max_prefix": 10, "as_macro": "AS-ALPHA"},
             "ipv6": {"address": "2001:db8::1", "routeserver": true, "max_prefix": null, "as_macro": "AS-ALPHA"}},
            {"vlan_id": 3, "ipv4": {"address": "198.51.100.1", "routeserver": true}}]},
        {"ixp_id": 1, "state": "inactive", "vlan_list": [{"vlan_id": 2, "ipv4": {"address": "192.0.2.9", "routeserver": true}}]}]},
    {"asnum": 64498, "name": "Bravo", "connection_list": [
        {"ixp_id": 1, "vlan_list": [
            {"vlan_id": 2, "ipv4": {"address": "192.0.2.2", "routeserver": false}, "ipv6": []}]}]},
    {"asnum": 64496, "member_type": "routeserver", "name": "Route servers", "connection_list": [
        {"ixp_id": 1, "vlan_list": [{"vlan_id": 2, "ipv4": {"address": "192.0.2.251", "routeserver": true}}]}]}
]}"#;

#[test]
fn of_an_ixf_export_one_lan_and_its_sessions_with_the_route_server_are_taken() {
    let of = |selection: &Selection| parse(EXPORT.as_bytes(), selection);
    let Err(ImportError::SeveralLans(lans)) = of(&Selection::default()) else { panic!("two LANs have IPv4") };
    let lan = |vlan: &str| ("1".to_owned(), vlan.to_owned());
    assert_eq!(lans, [(lan("2"), 2), (lan("3"), 1)]);

    let one = Selection { vlans: vec!["2".to_owned()], ..Selection::default() };
    let import = of(&one).expect("members");
    assert_eq!(names(&import), ["alpha-inc"]);
    let alpha = &import.members[0];
    assert_eq!((alpha.addresses().len(), alpha.limits, alpha.max_prefix()), (2, [Some(10), None], None));
    assert_eq!(alpha.as_sets, ["AS-ALPHA"]);
    let left_out: Vec<(&str, usize)> = import.left_out.iter().map(|(why, count)| (why.as_str(), *count)).collect();
    assert_eq!(
        left_out,
        [
            ("of connections that are not active", 1),
            ("of the exchange's own route servers", 1),
            ("on other LANs", 1),
            ("without a session with the route server", 1),
        ]
    );
    assert_eq!(names(&of(&Selection { all: true, ..one.clone() }).expect("members")), ["alpha-inc", "bravo"]);
    // What is chosen is one LAN of one exchange, too, but for one of each family.
    let both = Selection { vlans: vec!["2".to_owned(), "3".to_owned()], ..Selection::default() };
    assert!(matches!(of(&both), Err(ImportError::SeveralLans(lans)) if lans.len() == 2));
    let lan_of = |ixp: u8, number: u8| {
        let address = if number == 3 {
            "\"ipv6\": {\"address\": \"2001:db8::7\""
        } else {
            "\"ipv4\": {\"address\": \"192.0.2.7\""
        };
        format!("{{\"ixp_id\": {ixp}, \"vlan_list\": [{{\"vlan_id\": {number}, {address}, \"routeserver\": true}}}}]}}")
    };
    let export = |lans: [String; 2]| {
        format!(
            "{{\"version\": \"1.0\", \"member_list\": [{{\"asnum\": 64497, \"connection_list\": [{}]}}]}}",
            lans.join(", ")
        )
    };
    for (lans, is_one) in [([(1, 2), (1, 3)], true), ([(1, 2), (7, 2)], false), ([(1, 2), (7, 3)], false)] {
        let text = export(lans.map(|(ixp, number)| lan_of(ixp, number)));
        let read = parse(text.as_bytes(), &both);
        assert_eq!(!matches!(read, Err(ImportError::SeveralLans(_))), is_one, "{read:?}");
        assert_eq!(read.is_ok(), is_one, "{text}");
    }
    let none = Selection { ixp: Some("7".to_owned()), ..Selection::default() };
    assert!(matches!(of(&none), Err(ImportError::Nothing(left_out)) if left_out["on other LANs"] == 6));
}

/// Settings as arouteserver's documentation has them.
const CLIENTS: &str = r#"asns:
  AS64497:
    as_sets: ["AS-ALPHA", "RIPE::AS-ALPHA-V6"]
clients:
- asn: 64497
  ip: ["192.0.2.1", "2001:db8::1", "192.0.2.2"]
  password: "s3cret"
  cfg:
    passive: True
    add_path: False
    gtsm: yes
    filtering:
      next_hop:
        policy: authorized_addresses
        authorized_addresses_list: ["192.0.2.101"]
      ipv4_pref_len: {min: 8, max: 24}
      black_list_pref:
      - {prefix: 203.0.113.0, length: 24, comment: "ours"}
      - {prefix: "198.51.100.0", length: 24, exact: true}
      - {prefix: "2001:db8:f::", length: 48, ge: 56, le: 64}
      - {prefix: 10.0.0.0, length: 8, le: 24}
      irrdb:
        enforce_origin_in_as_set: True
      max_prefix: {action: shutdown, limit_ipv4: 100, limit_ipv6: 0}
      roles: {enabled: False}
    blackhole_filtering: {announce_to_client: True}
- asn: AS64498
  ip: 192.0.2.3
  description: "  Ünïted\tNetworks of a very long name that no folder should have \u202e"
  cfg:
    filtering: {irrdb: {as_sets: [AS-B, "=cmd()", AS-B]}, next_hop: {policy: same-as}}
"#;

#[test]
fn settings_of_a_client_are_taken_or_listed_and_a_password_is_neither() {
    let import = take(CLIENTS);
    assert_eq!(names(&import), ["as64497", "as64497-2", "nted-networks-of-a-very-long-nam"]);
    let [alpha, second, bravo] = &import.members[..] else { panic!("{import:?}") };
    let addresses = |member: &ImportedMember| member.addresses().iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(addresses(alpha), ["192.0.2.1", "2001:db8::1", "192.0.2.101"]);
    assert_eq!(addresses(second), ["192.0.2.2", "192.0.2.101"]);
    assert_eq!((alpha.max_prefix(), second.max_prefix()), (None, Some(100)), "0 is no limit");
    assert_eq!(alpha.as_sets, ["AS-ALPHA", "RIPE::AS-ALPHA-V6"]);
    let refused: Vec<(&str, Vec<&str>)> =
        alpha.refused.iter().map(|of| (of.setting, of.prefixes.iter().map(String::as_str).collect())).collect();
    assert_eq!(
        refused,
        [
            ("filtering.ipv4_pref_len", vec!["0.0.0.0/0{0,7}", "0.0.0.0/0{25,32}"]),
            (
                "filtering.black_list_pref",
                vec!["203.0.113.0/24+", "198.51.100.0/24", "2001:db8:f::/48{56,64}", "10.0.0.0/8{8,24}"],
            ),
        ]
    );
    for pattern in alpha.refused.iter().flat_map(|of| &of.prefixes) {
        pattern.parse::<wayleave_route_server::policy::pattern::PrefixPattern>().expect("a rule takes it");
    }
    let settings: Vec<&str> = alpha.not_taken.iter().map(|of| of.setting.as_str()).collect();
    assert_eq!(
        settings,
        [
            "passive",
            "gtsm",
            "filtering.irrdb.enforce_origin_in_as_set",
            "filtering.max_prefix.action",
            "blackhole_filtering.announce_to_client",
            "password",
        ]
    );
    assert!(!format!("{import:?}").contains("s3cret"));
    assert_eq!(alpha.not_taken[1].instead(), "the member sets `ttl_security` in [router]");
    assert_eq!(alpha.not_taken[4].instead(), "no equivalent for one member");
    assert_eq!((&bravo.as_sets[..], bravo.not_taken.len()), (&["AS-B".to_owned()][..], 2));
    assert_eq!(bravo.description.as_deref(), Some("Ünïted Networks of a very long name that no folder should have"));
}

#[test]
fn no_setting_whose_name_is_that_of_a_secret_shows_its_value() {
    let text = "clients:\n- asn: 64497\n  ip: 192.0.2.1\n  MD5: hidden1\n  tcp_ao_Key: hidden2\n  cfg:\n    session: {bgp_Passwd: hidden3}\n    Secrets: {old: hidden4}\n    mtu: 9000\n";
    let import = take(text);
    assert!(!format!("{import:?}").contains("hidden"), "{import:?}");
    let values: Vec<_> = import.members[0].not_taken.iter().map(|of| of.value.as_deref()).collect();
    assert_eq!(values, [None, None, Some("9000"), None, None]);
}

#[test]
fn what_routers_of_one_as_differ_in_is_listed_as_no_rule_for_others() {
    let client = |ip: &str, least: u8| {
        format!("- {{asn: 64497, ip: {ip}, cfg: {{filtering: {{ipv4_pref_len: {{min: {least}, max: 24}}}}}}}}\n")
    };
    for (second, is_listed) in [(8, false), (9, true)] {
        let import = take(&format!("clients:\n{}{}", client("192.0.2.1", 8), client("192.0.2.2", second)));
        for member in &import.members {
            let listed: Vec<&str> = member.not_taken.iter().map(|of| of.setting.as_str()).collect();
            assert_eq!(listed.contains(&"filtering.ipv4_pref_len"), is_listed, "{member:?}");
            assert!(member.not_taken.iter().all(|of| of.instead().contains("by AS")));
        }
    }
}

#[test]
fn names_are_unique_and_no_folder_of_a_trial() {
    let client = |number: u8, name: &str| {
        format!("- {{asn: {}, ip: 192.0.2.{number}, description: \"{name}\"}}\n", 64_496 + u32::from(number))
    };
    let (long, longer) = ("x".repeat(40), "x".repeat(50));
    let wanted = ["Net", "net-2", "NET!", "net", "party1", "", "--", "Operators", long.as_str(), longer.as_str()];
    let text: String = (1..).zip(wanted).map(|(number, name)| client(number, name)).collect();
    let expected = [
        "net",
        "net-2",
        "net-3",
        "net-4",
        "party1-2",
        "as64502",
        "as64503",
        "operators-2",
        &long[..32],
        &format!("{}-2", &long[..30]),
    ];
    assert_eq!(names(&take(&format!("clients:\n{text}"))), expected);
}

#[test]
fn each_fault_is_named_with_its_place() {
    for (text, expected) in [
        ("clients:\n- ip: 192.0.2.1\n", ":2: clients[0]: no `asn`"),
        ("clients:\n- asn: 64497\n", ":2: clients[0]: no `ip`"),
        ("clients:\n- asn: x\n  ip: 192.0.2.1\n", ":2: clients[0].asn: `x`, expected an AS number"),
        (
            "clients:\n- asn: 23456\n  ip: 192.0.2.1\n",
            ":2: clients[0].asn: AS23456 is reserved, expected an AS number that may appear in a route",
        ),
        (
            "clients:\n- asn: 64497\n  ip:\n  - 192.0.2.1\n  - 192.0.2.256\n",
            ":5: clients[0].ip[1]: `192.0.2.256`, expected an IPv4 or IPv6 address",
        ),
        (
            "clients:\n- {asn: 64497, ip: 192.0.2.1}\n- {asn: 64498, ip: 192.0.2.1}\n",
            ":3: clients[1].ip: 192.0.2.1 of AS64498 is AS64497's, too (line 2)",
        ),
        (
            "clients:\n- {asn: 64497, ip: 192.0.2.1}\n- {asn: 64497, ip: 192.0.2.1}\n",
            ":3: clients[1].ip: 192.0.2.1 of AS64497 twice (line 2)",
        ),
        (
            "clients:\n- {asn: 64497, ip: 127.0.0.1}\n",
            ":2: clients[0].ip: 127.0.0.1 cannot be a router's address on the exchange's network",
        ),
        ("clients:\n- 64497\n", ":2: clients[0]: expected a client with `asn` and `ip`"),
        ("clients: all\n", ":1: clients: expected a list"),
        ("clients:\n- {asn: 64497, ip: 192.0.2.1, cfg: []}\n", ":2: clients[0].cfg: expected a map of keys and values"),
        (
            "clients:\n- {asn: 64497, ip: 192.0.2.1, cfg: {filtering: {max_prefix: {limit_ipv4: -1}}}}\n",
            ":2: clients[0].cfg.filtering.max_prefix.limit_ipv4: `-1`, expected a number from 0 to 4294967295",
        ),
        (
            "clients:\n- {asn: 64497, ip: 192.0.2.1, cfg: {filtering: {black_list_pref: [{prefix: 10.0.0.0, length: 33}]}}}\n",
            ":2: clients[0].cfg.filtering.black_list_pref[0]: 10.0.0.0 has no prefixes of 33 bits",
        ),
        (
            "clients:\n- {asn: 64497, ip: 192.0.2.1, cfg: {filtering: {black_list_pref: [{prefix: 10.0.0.0}]}}}\n",
            ":2: clients[0].cfg.filtering.black_list_pref[0]: expected `prefix` and `length`",
        ),
        (
            "clients:\n- {asn: 64497, ip: 192.0.2.1, cfg: {filtering: {ipv4_pref_len: {min: 24, max: 8}}}}\n",
            ":2: clients[0].cfg.filtering.ipv4_pref_len: `min` 24 is more than `max` 8",
        ),
        ("asns:\n  X: {}\nclients: []\n", ":2: asns.X: `X`, expected an AS number as AS64497"),
        ("clients:\n- asn: [1\n", ""),
        ("members: []\n", ":1: neither `clients` (arouteserver) nor `member_list` (IX-F member export)"),
        ("", ": the file is empty"),
        ("{\"member_list\": [{}]}", ": no `version`, expected 0.6, 0.7, 0.8 or 1.0"),
        (
            "{\"version\": \"0.5\", \"member_list\": []}",
            ": version: version `0.5` is not known, expected 0.6, 0.7, 0.8 or 1.0",
        ),
        ("{\"version\": \"1.0\", \"member_list\": [{}]}", ": member_list[0]: no `asnum`"),
        ("{\"version\": 1.0, \"member_list\": [{\"asnum\": 0}]}", ": member_list[0].asnum: AS0 is reserved"),
        (
            r#"{"version": "0.7", "member_list": [{"asnum": 64497, "connection_list": [{"vlan_list": [{"ipv4":
                {"address": "2001:db8::1", "routeserver": true}}]}]}]}"#,
            ": member_list[0].connection_list[0].vlan_list[0].ipv4.address: `2001:db8::1` is no address of ipv4",
        ),
        (
            r#"{"version": "0.8", "member_list": [{"asnum": 64497, "connection_list": [{"vlan_list": [{"ipv6":
                {"routeserver": "perhaps"}}]}]}]}"#,
            ".ipv6.routeserver: `perhaps`, expected true or false",
        ),
        (
            r#"{"version": "0.8", "member_list": [{"asnum": 64497, "connection_list": [{"vlan_list": [{"ipv6":
                {"routeserver": true}}]}]}]}"#,
            ".vlan_list[0].ipv6: no `address`",
        ),
    ] {
        let found = faults(text);
        assert!(found.iter().any(|fault| fault.contains(expected)), "{text}: {found:?}");
    }
    let no_text = parse(b"clients:\n- \xff", &Selection::default());
    let Err(ImportError::Faults(faults)) = no_text else { panic!("{no_text:?}") };
    assert_eq!(faults.shown()[0].to_string(), ":2: no UTF-8 text");
}

#[test]
fn all_faults_are_counted_and_twenty_are_shown() {
    let text: String = (0..70_000).map(|_| "- {asn: 0, ip: x}\n").collect();
    let Err(ImportError::Faults(faults)) = parse(format!("clients:\n{text}").as_bytes(), &Selection::default()) else {
        panic!("it is wrong")
    };
    assert_eq!((faults.count(), faults.shown().len()), (140_000, 20));
    let first = ":2: clients[0].asn: AS0 is reserved, expected an AS number that may appear in a route";
    assert_eq!(faults.shown()[0].to_string(), first);
}

#[test]
fn what_no_member_set_could_have_is_refused() {
    let hops: Vec<String> = (2..30).map(|number| format!("192.0.2.{number}")).collect();
    let next_hop = format!("{{policy: authorized_addresses, authorized_addresses_list: [{}]}}", hops.join(", "));
    let many = format!("clients:\n- {{asn: 64497, ip: 192.0.2.1, cfg: {{filtering: {{next_hop: {next_hop}}}}}}}\n");
    assert_eq!(faults(&many), [":2: clients[0]: 29 addresses of one router, a slot has 16 at most"]);
    // What is said of a client would be copied to each of many routers.
    let list = |count: usize| (0..count).map(|number| format!("AS-{number}")).collect::<Vec<_>>().join(", ");
    let sets = |count| {
        format!(
            "clients:\n- {{asn: 64497, ip: 192.0.2.1, cfg: {{filtering: {{irrdb: {{as_sets: [{}]}}}}}}}}\n",
            list(count)
        )
    };
    assert_eq!(faults(&sets(100_000)), [":2: clients[0]: more than 256 AS sets"]);
    assert_eq!(take(&sets(256)).members[0].as_sets.len(), 256);
    // Nor are lists made that are refused: each entry is another's copy, and each of its routers would have all of it.
    let settings: String = (0..300).map(|number| format!("s{number}: 1, ")).collect();
    let text = format!("clients:\n- {{asn: 64497, ip: 192.0.2.1, cfg: {{{settings}}}}}\n");
    assert_eq!(faults(&text), [":2: clients[0]: more than 256 settings"]);
    let addresses = |client: usize| {
        let all = (0..250).map(|at| format!("10.{}.{}.{}", client >> 8, client & 255, at + 1));
        all.collect::<Vec<_>>().join(", ")
    };
    let long: String = (0..240).map(|number| format!("s{number}: {}, ", "x".repeat(120))).collect();
    let entries = |count: usize, cfg: &str| -> String {
        (0..count)
            .map(|client| format!("- {{asn: {}, ip: [{}], cfg: {{{cfg}}}}}\n", client + 1, addresses(client)))
            .collect()
    };
    let text = format!("clients:\n{}", entries(40, ""));
    assert_eq!(faults(&text), [": more than 4096 routers, and a member set has 4096 slots at most"]);
    let text = format!("clients:\n{}", entries(10, &long));
    let expected = ": more than 64 MiB of settings, those of an entry counted for each of its routers";
    assert_eq!(faults(&text), [expected]);
    let routers: String = (0..4_097u32)
        .map(|number| format!("- {{asn: {}, ip: 10.{}.{}.1}}\n", number + 1, number >> 8, number & 255))
        .collect();
    assert_eq!(faults(&format!("clients:\n{routers}")), [": 4097 routers, and a member set has 4096 slots at most"]);
}

#[test]
fn the_list_that_is_written_is_the_list_that_is_read() {
    let mut import = take(CLIENTS);
    import.members[1].description = Some("Alpha;=1+1; -2".to_owned());
    assert!(write_list(&import.members).contains(",\"Alpha;'=1+1;' -2\"\n"), "{}", write_list(&import.members));
    import.members[0].description = Some("=HYPERLINK(\"x\"), Inc.".to_owned());
    let text = write_list(&import.members);
    let line = text.lines().nth(1).expect("a member");
    assert_eq!(
        line,
        "as64497,64497,192.0.2.1 2001:db8::1 192.0.2.101,,100,,AS-ALPHA RIPE::AS-ALPHA-V6,\"'=HYPERLINK(\"\"x\"\"), Inc.\""
    );
    let read = list::parse(&text).expect("a list");
    for (member, expected) in import.members.iter().zip(&read) {
        let known = (&expected.name, expected.asn, expected.addresses.clone(), expected.max_prefix);
        assert_eq!(known, (&member.name, member.asn, member.addresses(), member.max_prefix()));
    }
    assert_eq!(read.len(), 3);
}

#[test]
fn a_list_of_an_operator_may_have_other_columns_and_its_faults_have_lines() {
    let good = "\u{feff}port,addresses,name,asn\r\n\r\n\"1\n2\",192.0.2.1,alpha,AS64497\r\n";
    let read = list::parse(good).expect("a list");
    assert_eq!((read[0].name.as_str(), read[0].asn, read[0].max_prefix), ("alpha", Asn(64_497), None));
    for (text, expected) in [
        ("", ":1: expected a first line with the columns `name`, `asn` and `addresses`"),
        ("name,asn\n", ":1: expected a first line"),
        ("name,asn,addresses\n,64497,192.0.2.1\n", ":2: ``, expected a name"),
        ("name,asn,addresses\na,0,192.0.2.1\n", ":2: `0`, expected an AS number that may appear in a route"),
        ("name,asn,addresses\na,64497\n", ":2: ``, expected addresses"),
        ("name,asn,addresses\na,64497,192.0.2.1 x\n", ":2: `192.0.2.1 x`, expected addresses"),
        ("name,asn,addresses,max_prefix\na,64497,192.0.2.1,many\n", ":2: `many`, expected a number of prefixes"),
        ("name,asn,addresses\na,64497,192.0.2.1\na,64498,192.0.2.2\n", ":3: `a` stands in line 2 already"),
        ("name,asn,addresses\n\"a,64497,192.0.2.1\n", ":2: a quoted field that does not end"),
    ] {
        let faults = list::parse(text).expect_err(text);
        assert!(faults.shown().iter().any(|fault| fault.to_string().contains(expected)), "{text}: {faults:?}");
    }
}

/// Files of strangers: whatever is cut, doubled or changed in one, there is an answer and no panic.
#[test]
fn damaged_files_are_read_or_refused() {
    const MARKS: &[u8] = b"[]{}:-,\"'&*\n #|>!%@`0";
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed % below as u64).expect("it is below")
    };
    let files = [CLIENTS.as_bytes().to_vec(), EXPORT.as_bytes().to_vec(), data("arouteserver.clients.ams-ix.yml")];
    for round in 0..3_000 {
        let mut text = files[round % files.len()].clone();
        for _ in 0..=next(3) {
            let (at, other) = (next(text.len()), next(text.len()));
            match next(4) {
                0 => text.truncate(at + 1),
                1 => text[at] = MARKS[next(MARKS.len())],
                2 => text = [&text[..at], &text[other..]].concat(),
                _ => text.swap(at, other),
            }
        }
        for selection in [all(), Selection { all: true, vlans: vec!["2".to_owned()], ..Selection::default() }] {
            if let Ok(import) = parse(&text, &selection) {
                let known: std::collections::BTreeSet<&str> = names(&import).into_iter().collect();
                assert_eq!(known.len(), import.members.len());
                list::parse(&write_list(&import.members)).expect("a list of members");
            }
        }
    }
}

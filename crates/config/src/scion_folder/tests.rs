use super::*;

const ROUTER_TOML: &str = r#"
[general]
id = "br1-ff00_0_110-1"
config_dir = "/etc/scion"
[metrics]
prometheus = "127.0.0.1:30442"
[router]
num_processors = 4
"#;

const TOPOLOGY_JSON: &str = r#"{
  "isd_as": "1-ff00:0:110",
  "attributes": ["core"],
  "mtu": 1472,
  "dispatched_ports": "31000-32767",
  "border_routers": {
    "br1-ff00_0_110-1": {
      "internal_addr": "10.0.0.1:30042",
      "interfaces": {
        "1": {
          "underlay": { "local": "192.0.2.1:50000", "remote": "192.0.2.2:50000" },
          "isd_as": "1-ff00:0:111", "link_to": "CHILD", "mtu": 1472
        },
        "12": {
          "underlay": { "local": "[2001:db8::1]:50000", "remote": "[2001:db8::2]:50000" },
          "isd_as": "2-ff00:0:210", "link_to": "core", "mtu": 1400, "bfd": { "disable": true }
        },
        "2": {
          "underlay": { "public": "198.51.100.1:50002", "bind": "10.0.0.1", "remote": "203.0.113.2:50002" },
          "isd_as": "2-64496", "link_to": "PEER", "mtu": 1400, "remote_interface_id": 7
        }
      }
    },
    "br1-ff00_0_110-2": {
      "internal_addr": "10.0.0.2:30042",
      "interfaces": { "3": { "isd_as": "1-ff00:0:112", "link_to": "CHILD", "mtu": 1472 } }
    }
  },
  "control_service": { "cs1": { "addr": "10.0.0.3:31000" } },
  "discovery_service": { "cs1": { "addr": "10.0.0.3:31000" } },
  "sigs": {}
}"#;

fn translate(router: &str, topology: &str) -> Translation {
    Translation::new(&FolderFiles { name: "router.toml", router, topology })
}

fn texts(remarks: &[Remark]) -> Vec<String> {
    remarks.iter().map(ToString::to_string).collect()
}

/// The example with these changes, each at one place, in the file that has it.
fn changed(changes: &[(&str, &str)]) -> Translation {
    let (mut router, mut topology) = (ROUTER_TOML.to_owned(), TOPOLOGY_JSON.to_owned());
    for (before, after) in changes {
        let file = if router.contains(before) { &mut router } else { &mut topology };
        assert!(file.contains(before), "{before}");
        *file = file.replacen(before, after, 1);
    }
    translate(&router, &topology)
}

fn faults(changes: &[(&str, &str)]) -> Vec<String> {
    let translation = changed(changes);
    assert_eq!(translation.text().is_empty(), !translation.faults().is_empty());
    texts(translation.faults())
}

/// The text of the changed example, which has no faults.
fn text(changes: &[(&str, &str)]) -> String {
    let translation = changed(changes);
    assert_eq!(texts(translation.faults()), [""; 0]);
    translation.text().to_owned()
}

#[test]
fn a_folder_becomes_a_configuration_with_the_place_of_each_line() {
    let translation = translate(ROUTER_TOML, TOPOLOGY_JSON);
    assert_eq!(texts(translation.faults()), [""; 0]);
    let expected = r#"[forwarding]
format = "scion"
keys = "keys/master0.key"
workers = 4
[scion]
isd_as = "1-ff00:0:110"
internal = "10.0.0.1:30042"
siblings = [
"10.0.0.2:30042",
]
end_host_ports = [31000, 32767]
shared_port = 30041
control = "10.0.0.3:31000"
discovery = "10.0.0.3:31000"
[scion.bfd]
transmit_ms = 200
receive_ms = 200
multiplier = 3
[[interface]]
id = 1
link = "child"
neighbor = "1-ff00:0:111"
local = "192.0.2.1:50000"
remote = "192.0.2.2:50000"
[[interface]]
id = 2
link = "peer"
neighbor = "2-64496"
local = "10.0.0.1:50002"
remote = "203.0.113.2:50002"
[[interface]]
id = 12
link = "core"
neighbor = "2-ff00:0:210"
local = "[2001:db8::1]:50000"
remote = "[2001:db8::2]:50000"
bfd = false
[[interface]]
id = 3
link = "child"
neighbor = "1-ff00:0:112"
sibling = 0
[status]
listen = "127.0.0.1:30442"
"#;
    assert_eq!(translation.text(), expected);
    let place = |line: &str| translation.place(expected.find(line).expect("a line"));
    let own = "topology.json: border_routers.br1-ff00_0_110-1";
    assert_eq!(place("workers"), Some("router.toml: router.num_processors"));
    assert_eq!(place("internal"), Some(format!("{own}.internal_addr").as_str()));
    assert_eq!(place("\"10.0.0.2:30042\""), Some("topology.json: border_routers.br1-ff00_0_110-2.internal_addr"));
    assert_eq!(place("\"192.0.2.2:50000\""), Some(format!("{own}.interfaces.1.underlay.remote").as_str()));
    assert_eq!(place("\"10.0.0.1:50002\""), Some(format!("{own}.interfaces.2.underlay.bind").as_str()));
    assert_eq!(place("listen"), Some("router.toml: metrics.prometheus"));
    assert_eq!(translation.place(expected.len()), None);
    let metrics = "router.toml: metrics.prometheus: this router's status pages are there";
    assert!(matches!(&texts(translation.warnings())[..], [one] if one.starts_with(metrics)));
}

#[test]
fn a_fault_has_its_file_and_the_path_within_it() {
    let own = "topology.json: border_routers.br1-ff00_0_110-1";
    let one = format!("{own}.interfaces.1");
    for (before, after, place, message) in [
        ("\"192.0.2.2:50000\"", "\"br.example:50000\"", format!("{one}.underlay.remote"), "does not look names up"),
        ("\"192.0.2.2:50000\"", "\"192.0.2.2:0\"", format!("{one}.underlay.remote"), "the port is 0"),
        ("\"192.0.2.2:50000\"", "5", format!("{one}.underlay.remote"), "expected text in quotes"),
        (", \"remote\": \"192.0.2.2:50000\"", "", format!("{one}.underlay.remote"), "is missing"),
        ("\"192.0.2.1:50000\"", "\":50000\"", format!("{one}.underlay.local"), "a port alone"),
        ("\"192.0.2.1:50000\"", "\"[fe80::1%eth0]:5\"", format!("{one}.underlay.local"), "the name of a zone"),
        ("\"local\": \"192.0.2.1:50000\", ", "", format!("{one}.underlay.local"), "is missing"),
        ("{ \"local\": \"192", "{ \"bind\": \"10.0.0.1\", \"local\": \"192", format!("{one}.underlay.local"), "beside"),
        (
            "{ \"local\": \"192",
            "{ \"provider\": \"xyz\", \"local\": \"192",
            format!("{one}.underlay.provider"),
            "an underlay",
        ),
        (
            "\"bind\": \"10.0.0.1\"",
            "\"bind\": \"a\"",
            format!("{own}.interfaces.2.underlay.bind"),
            "expected an IP address",
        ),
        ("\"CHILD\"", "\"child of\"", format!("{one}.link_to"), "expected \"core\""),
        ("\"CHILD\"", "\"PARENT\"", format!("{one}.link_to"), "a core AS has no provider"),
        ("[\"core\"]", "[]", format!("{own}.interfaces.12.link_to"), "a link between core ASes"),
        ("[\"core\"]", "[\"cor\"]", "topology.json: attributes".to_owned(), "an unknown attribute"),
        ("\"1-ff00:0:111\"", "\"111\"", format!("{one}.isd_as"), "expected an ISD and AS"),
        ("\"isd_as\": \"1-ff00:0:111\", ", "", format!("{one}.isd_as"), "is missing"),
        ("\"disable\": true", "\"disable\": 1", format!("{own}.interfaces.12.bfd.disable"), "expected true or false"),
        (
            "\"disable\": true",
            "\"desired_min_tx_interval\": \"1h2m\"",
            format!("{own}.interfaces.12.bfd.desired_min_tx_interval"),
            "expected a duration",
        ),
        ("\"12\": {", "\"012\": 3, \"12\": {", format!("{own}.interfaces.012"), "expected an object"),
        ("\"12\": {", "\"65536\": {", format!("{own}.interfaces.65536"), "not the number of an interface"),
        (
            "\"3\": {",
            "\"1\": {",
            "topology.json: border_routers.br1-ff00_0_110-2.interfaces.1".to_owned(),
            "interface 1 exists already, at topology.json: border_routers.br1-ff00_0_110-1.interfaces.1",
        ),
        (
            "\"10.0.0.2:30042\"",
            "\"10.0.0.1:30042\"",
            "topology.json: border_routers.br1-ff00_0_110-2.internal_addr".to_owned(),
            "is that of br1-ff00_0_110-1 as well",
        ),
        ("\"internal_addr\": \"10.0.0.1:30042\",", "", format!("{own}.internal_addr"), "is missing"),
        ("\"31000-32767\"", "\"32767-31000\"", "topology.json: dispatched_ports".to_owned(), "expected the first and"),
        ("\"31000-32767\"", "\"0-5\"", "topology.json: dispatched_ports".to_owned(), "expected the first and"),
        ("\"border_routers\"", "\"routers\"", "topology.json: border_routers".to_owned(), "is missing"),
        (
            "\"addr\": \"10",
            "\"addr\": \"cs.example:",
            "topology.json: control_service.cs1.addr".to_owned(),
            "look names up",
        ),
        (
            "br1-ff00_0_110-1\"\nconfig",
            "br2\"\nconfig",
            "router.toml: general.id".to_owned(),
            "not a router of topology.json, expected one of br1-",
        ),
        (
            "[general]\nid",
            "[general]\nname",
            "router.toml: general.name".to_owned(),
            "unknown setting, expected one of `id`",
        ),
        ("num_processors = 4", "batchsize = 4", "router.toml: router.batchsize".to_owned(), "unknown setting"),
        ("num_processors = 4", "num_processors = -1", "router.toml: router.num_processors".to_owned(), "from 0 to 256"),
        ("num_processors = 4", "bfd = 4", "router.toml: router.bfd".to_owned(), "expected an object"),
        (
            "num_processors = 4",
            "bfd.detectmult = 4",
            "router.toml: router.bfd.detectmult".to_owned(),
            "unknown setting",
        ),
        (
            "num_processors = 4",
            "bfd.detect_mult = 256",
            "router.toml: router.bfd.detect_mult".to_owned(),
            "from 0 to 255",
        ),
        (
            "num_processors = 4",
            "dispatched_port_end = 4",
            "router.toml: router.dispatched_port_start".to_owned(),
            "is missing",
        ),
        (
            "num_processors = 4",
            "dispatched_port_start = 5\ndispatched_port_end = 4",
            "router.toml: router.dispatched_port_start".to_owned(),
            "above",
        ),
        ("[general]", "[general", "router.toml:2:9".to_owned(), "not TOML"),
        ("\"mtu\": 1472,\n", "\"mtu\": ,\n", "topology.json:4:10".to_owned(), "not JSON"),
    ] {
        let faults = faults(&[(before, after)]);
        let expected = format!("{place}: ");
        let is_there = faults.iter().any(|fault| fault.starts_with(&expected) && fault.contains(message));
        assert!(is_there, "{before} -> {after}: expected {expected}{message}, found {faults:?}");
    }
    assert_eq!(texts(translate("", "[]").faults()).len(), 2);
    assert_eq!(texts(translate(ROUTER_TOML, "{").faults()), ["topology.json:1:1: not JSON: the file ends too early"]);
}

#[test]
fn a_value_that_is_wrong_is_not_repeated() {
    let secret = "hunter2";
    for (before, quoted) in
        [("\"192.0.2.2:50000\"", true), ("\"CHILD\"", true), ("\"1-ff00:0:111\"", true), ("= 4", false)]
    {
        let after = if quoted { format!("\"{secret}\"") } else { format!("= \"{secret}\"") };
        let faults = faults(&[(before, &after)]);
        assert!(!faults.is_empty() && !faults.concat().contains(secret), "{faults:?}");
    }
}

#[test]
fn what_a_name_has_in_it_does_not_reach_a_terminal() {
    let faults = faults(&[("\"br1-ff00_0_110-2\": {", "\"\\u001b[2J\\n\": {"), ("\"10.0.0.2:30042\"", "\"\"")]);
    assert_eq!(faults.len(), 1);
    assert!(faults[0].starts_with("topology.json: border_routers.\\u{1b}[2J\\n.internal_addr: "), "{faults:?}");
}

#[test]
fn dispatched_ports_are_those_of_the_other_router() {
    let ports = |after: &str| {
        let text = text(&[("\"31000-32767\"", after)]);
        let line = text.lines().find(|line| line.starts_with("end_host_ports")).expect("there").to_owned();
        let control = text.lines().find(|line| line.starts_with("control")).expect("there").to_owned();
        (line, control)
    };
    let expected =
        |ports: &str, control: &str| (format!("end_host_ports = {ports}"), format!("control = \"{control}\""));
    for none in ["\"-\"", "\"\"", "null"] {
        assert_eq!(ports(none), expected("[30041, 30041]", "10.0.0.3:30041"), "{none}");
    }
    assert_eq!(ports("\"all\""), expected("[1, 65535]", "10.0.0.3:31000"));
    assert_eq!(ports("\"1024-65535\""), expected("[1024, 65535]", "10.0.0.3:31000"));
    // A service elsewhere is reached through a dispatcher.
    assert_eq!(ports("\"31001-65535\""), expected("[31001, 65535]", "10.0.0.3:30041"));
    let alias = text(&[("\"dispatched_ports\": \"31000-32767\"", "\"endhost_port_range\": \"31000-31002\"")]);
    assert!(alias.contains("end_host_ports = [31000, 31002]"));
    // The router's own file comes first.
    let own = |first: u16, last: u16| {
        text(&[("num_processors = 4", &format!("dispatched_port_start = {first}\ndispatched_port_end = {last}"))])
    };
    assert!(own(0, 0).contains("end_host_ports = [30041, 30041]"));
    assert!(own(0, 9).contains("end_host_ports = [1, 9]"));
    assert!(own(7, 40_000).contains("end_host_ports = [7, 40000]"));
}

#[test]
fn bfd_is_as_the_other_router_has_it() {
    let bfd = |changes: &[(&str, &str)]| {
        let translation = changed(changes);
        assert_eq!(texts(translation.faults()), [""; 0]);
        let text = translation.text().to_owned();
        let section =
            text.split("[scion.bfd]\n").nth(1).map(|rest| rest.split('[').next().unwrap_or_default().to_owned());
        let off: Vec<String> = text
            .split("[[interface]]\nid = ")
            .skip(1)
            .filter(|one| one.contains("bfd = false"))
            .map(|one| one.lines().next().unwrap_or_default().to_owned())
            .collect();
        let warnings = texts(translation.warnings()).into_iter().filter(|one| one.contains("same timers")).count();
        (section.unwrap_or_default(), off.join(" "), warnings)
    };
    let timers = |transmit: u64, receive: u64, multiplier: u64| {
        format!("transmit_ms = {transmit}\nreceive_ms = {receive}\nmultiplier = {multiplier}\n")
    };
    let all = "bfd.detect_mult = 5\nbfd.desired_min_tx_interval = \"1s\"\nbfd.required_min_rx_interval = \"300us\"";
    assert_eq!(bfd(&[("num_processors = 4", all)]), (timers(1_000, 1, 5), "12".to_owned(), 0));
    // Zero is what is not set.
    assert_eq!(
        bfd(&[("num_processors = 4", "bfd.detect_mult = 0\nbfd.desired_min_tx_interval = \"0s\"")]),
        (timers(200, 200, 3), "12".to_owned(), 0)
    );
    let off = ("num_processors = 4", "bfd.disable = true");
    assert_eq!(bfd(&[off]), (String::new(), String::new(), 0));
    // An interface may have what the router has not, and then the other routers of the AS have none.
    let on = ("\"disable\": true", "\"disable\": false, \"detect_mult\": 9");
    assert_eq!(bfd(&[off, on]), (timers(200, 200, 9) + "siblings = false\n", "1 2".to_owned(), 0));
    // Two sets of timers at once are not to be had.
    assert_eq!(bfd(&[("\"disable\": true", "\"detect_mult\": 9")]), (timers(200, 200, 3), String::new(), 1));
}

#[test]
fn what_this_router_does_otherwise_is_named() {
    let warnings = |changes: &[(&str, &str)]| {
        let translation = changed(changes);
        assert_eq!(texts(translation.faults()), [""; 0]);
        texts(translation.warnings())
    };
    let features = "num_processors = 4\nbatch_size = 256\nsend_buffer_size = 0\n[features]\nexperimental_scmp_authentication = true\n\
                    [log.console]\nlevel = \"debug\"\n[api]\naddr = \"127.0.0.1:1\"\n[router.preferred_underlays]\nudpip = \"inet\"\n";
    let found = warnings(&[("num_processors = 4", features)]);
    for place in [
        "router.toml: router.batch_size: ",
        "router.toml: router.send_buffer_size: ",
        "router.toml: features.experimental_scmp_authentication: not used",
        "router.toml: log.console.level: not used: `--log`",
        "router.toml: api.addr: ",
        "router.toml: router.preferred_underlays: ",
        "router.toml: metrics.prometheus: ",
    ] {
        assert_eq!(found.iter().filter(|one| one.starts_with(place)).count(), 1, "{place} {found:?}");
    }
    let more = "{ \"cs1\": { \"addr\": \"10.0.0.3:31000\" }, \"cs0\": { \"addr\": \"10.0.0.4:31000\" } }";
    let found = warnings(&[("{ \"cs1\": { \"addr\": \"10.0.0.3:31000\" } }", more)]);
    assert!(found.contains(&"topology.json: control_service.cs1.addr: not used: this router sends packets for the service to one instance, 10.0.0.4:31000".to_owned()), "{found:?}");
    let found = warnings(&[("\"sigs\"", "\"colibri_service\""), ("\"remote_interface_id\"", "\"remote_ifid\"")]);
    for place in [
        "topology.json: colibri_service: unknown",
        "topology.json: border_routers.br1-ff00_0_110-1.interfaces.2.remote_ifid: unknown",
    ] {
        assert!(found.iter().any(|one| one.starts_with(place)), "{place} {found:?}");
    }
    // A name is not looked up: there are no status pages then.
    assert!(!text(&[("127.0.0.1:30442", "localhost:30442")]).contains("[status]"));
    assert!(text(&[("127.0.0.1:30442", ":30442")]).contains("listen = \"0.0.0.0:30442\""));
}

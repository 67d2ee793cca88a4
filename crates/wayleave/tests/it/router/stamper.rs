//! A stamper in the network: packets that come by its link get capabilities of a file that was handed on twice, and pass a
//! waypoint.
//!
//! PLA, stamper on the way: plain and stamped packets over a link to a stamper, by way of one waypoint or two: stamped
//! with a capability handed on twice, and charged to it; DNS, other rules, other sources, too long, old, spoilt: left
//! as they were, or dropped, each counted.
//! PLA, capabilities: minted, delegated, handed on, made narrower; outside the bounds; files that others may read:
//! stamp as the waypoint verifies; refused.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use serde_json::Value;
use wayleave_lab::netns::{self, NetworkNamespace};

use super::common::{Folder, Router, eventually, free};
use super::platypus::{HOST, KEYS, LAST, PLATYPUS, Socket, WAYPOINTS, lay_out, packet, start};

/// Reached through the stamper's other link, by a rule and without one.
const BESIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 130);
const LEFT: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 200);

fn ok(folder: &Folder, arguments: &[&str]) -> String {
    let output = folder.run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn fails(folder: &Folder, code: i32, arguments: &[&str]) -> String {
    let output = folder.run(arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stderr).replace("\n  │ ", " ")
}

/// Files of capabilities at the first waypoint: the principal's, delegated, and handed on.
fn mint(folder: &Folder) {
    folder.keys("0.key", "platypus", &[(0, KEYS[0])]);
    let waypoint = WAYPOINTS[0].to_string();
    ok(folder, &["cap", "mint", "own.cap", "--key", "0.key", "--waypoint", &waypoint, "--principal", "7"]);
    ok(folder, &["cap", "narrow", "isp.cap", "--of", "own.cap", "--prefix", "203.0.0.0/8", "--id", "3"]);
    ok(folder, &["cap", "narrow", "edge.cap", "--of", "isp.cap", "--prefix", "203.0.113.0/24", "--id", "9"]);
}

/// An IP packet from `from` to port `port` of `to`.
fn plain(from: Ipv4Addr, to: Ipv4Addr, port: u16, length: usize) -> Vec<u8> {
    let mut out = vec![0; length];
    out[0] = 0x45;
    out[2..4].copy_from_slice(&(length as u16).to_be_bytes());
    (out[8], out[9]) = (64, 17);
    out[12..16].copy_from_slice(&from.octets());
    out[16..20].copy_from_slice(&to.octets());
    out[22..24].copy_from_slice(&port.to_be_bytes());
    out[24..26].copy_from_slice(&(length as u16 - 20).to_be_bytes());
    checked(out)
}

/// The packet with a right checksum of its IP header.
fn checked(mut packet: Vec<u8>) -> Vec<u8> {
    packet[10..12].fill(0);
    let sum: u32 = packet[..20].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    packet[10..12].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    packet
}

fn bound() -> (UdpSocket, String) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    let address = socket.local_addr().expect("bound").to_string();
    (socket, address)
}

#[test]
fn packets_are_stamped_on_their_way_and_pass_a_waypoint() {
    if netns::enter_for_test("router::stamper::packets_are_stamped_on_their_way_and_pass_a_waypoint").is_none() {
        return;
    }
    let folder = lay_out();
    mint(&folder);
    folder.keys("s.key", "platypus", &[(0, [9; 16])]);
    let ((host, outside), (beside, tail)) = (bound(), bound());
    let [inside, there, here, other] = [free(), free(), free(), free()];
    let first = start(&folder, 0, &format!("[[link]]\nlocal = \"{here}\"\nremote = \"{there}\"\n"));
    let second = start(&folder, 1, "");
    let config = |rules: &str| {
        format!(
            "[forwarding]\nformat = \"platypus\"\nkeys = \"s.key\"\n[platypus]\nwaypoints = []\naccounts = 0\n\
             own_waypoints = [\"{}/32\"]\n\
             [stamper]\nroutes = [{{ name = \"through\", capabilities = [\"edge.cap\"], mtu = 1400 }}]\nrules = [{rules}]\n\
             [[link]]\nlocal = \"{inside}\"\nremote = \"{outside}\"\nstamp = [\"192.0.2.0/24\"]\nroutes = [\"192.0.2.0/24\"]\n\
             [[link]]\nlocal = \"{there}\"\nremote = \"{here}\"\nroutes = [\"0.0.0.0/0\"]\n\
             [[link]]\nlocal = \"{other}\"\nremote = \"{tail}\"\nroutes = [\"203.0.113.128/25\"]\n",
            WAYPOINTS[0]
        )
    };
    let rules = "{ to = \"203.0.113.0/24\", route = \"through\" }, { to = \"203.0.113.192/26\" }";
    let stamper = Router::start(&folder, "stamper", NetworkNamespace::Own, &config(rules));
    let mut last = Socket::new(LAST, PLATYPUS);
    let send = |packet: &[u8]| assert_eq!(host.send_to(packet, &inside).expect("sent"), packet.len());
    let left = |why: &str| stamper.count("left", why);

    for number in 0..30 {
        send(&plain(HOST, LAST, 443, 40 + 30 * number));
    }
    let arrived = last.all(30);
    assert_eq!(arrived.len(), 30, "{} {}", stamper.status(), first.status());
    for (number, packet) in arrived.iter().enumerate() {
        // A hop at the stamper, a hop at the waypoint; the inner packet is what was sent.
        assert_eq!((&packet[12..16], &packet[16..20]), (&WAYPOINTS[0].octets()[..], &LAST.octets()[..]));
        assert_eq!(packet[8], 62);
        assert!(packet.ends_with(&plain(HOST, LAST, 443, 40 + 30 * number)[20..]));
    }
    // What is stamped already passes both waypoints.
    send(&checked(packet(&[1], 1, 200)));
    assert_eq!(last.all(1)[0][12..16], WAYPOINTS[1].octets());
    assert_eq!((stamper.count("stamper", "stamped"), stamper.count("stamper", "appended")), (30, 1));
    assert_eq!((first.count("decided", "forwarded"), second.count("decided", "forwarded")), (31, 1));
    // The waypoint's books say by whom: a sub-delegation of the principal's delegation.
    let row = |accounts: Value| accounts["accounts"].as_array().expect("rows").first().cloned().unwrap_or_default();
    eventually("all are in the accounts", || row(first.json("accounts"))["packets"] == "31");
    let row = row(first.json("accounts"));
    assert_eq!((&row["principal"], &row["delegation"], &row["sub_delegation"]), (&7.into(), &3.into(), &9.into()));

    // Left as they came, but for the hop: name servers, by rule, from elsewhere, too long for the path.
    let stranger = Ipv4Addr::new(198, 18, 0, 1);
    for (packet, why) in [
        (plain(HOST, BESIDE, 53, 100), "dns"),
        (plain(HOST, LEFT, 443, 100), "rule"),
        (plain(stranger, BESIDE, 443, 100), "source"),
        (plain(HOST, BESIDE, 443, 1_390), "too_long"),
    ] {
        send(&packet);
        let mut octets = [0; 2048];
        let length = beside.recv(&mut octets).expect("a packet in time");
        let mut expected = packet;
        expected[8] -= 1;
        assert_eq!(octets[..length], checked(expected), "{why}");
        assert_eq!(left(why), 1, "{why}: {}", stamper.status());
    }
    // Not sent back to where it came from: two stampers would hand it to each other until its last hop.
    let before = stamper.status()["unreachable"].as_u64().expect("a number");
    send(&plain(HOST, Ipv4Addr::new(192, 0, 2, 77), 443, 100));
    eventually("it is counted", || stamper.status()["unreachable"] == before + 1);
    host.set_nonblocking(true).expect("set");
    assert!(host.recv(&mut [0; 2048]).is_err());
    host.set_nonblocking(false).expect("set");
    // Dropped: the last hop, a wrong checksum.
    let mut old = plain(HOST, LAST, 443, 100);
    old[8] = 1;
    send(&checked(old));
    let mut spoilt = plain(HOST, LAST, 443, 100);
    spoilt[10] ^= 1;
    send(&spoilt);
    eventually("both are counted", || stamper.count("stamper", "expired") + stamper.count("stamper", "unsound") == 2);
    // As from the first waypoint, which would vouch for its original source at the second: but it comes from the customer.
    let mut claimed = packet(&[0, 1], 2, 200);
    claimed[12..16].copy_from_slice(&WAYPOINTS[0].octets());
    claimed[16..20].copy_from_slice(&WAYPOINTS[1].octets());
    claimed[22] = 7;
    send(&checked(claimed));
    // Nor does an ordinary packet come from there.
    send(&plain(WAYPOINTS[0], LAST, 443, 100));
    // In pieces, which the waypoint's system would put together.
    let mut piece = packet(&[1], 3, 200);
    piece[6] = 0x20;
    send(&checked(piece));
    let dropped = |why: &str| stamper.count("stamper", why);
    eventually("all are counted", || (dropped("outer-source"), dropped("unsound")) == (2, 2));

    // Rules that the delegation does not reach change nothing; others are taken.
    let page = fs::read_to_string(folder.0.join("stamper.toml")).expect("its configuration");
    let status = page.split_once("[status]").expect("its page").1;
    let rewrite = |rules: &str| folder.write("stamper.toml", &format!("{}[status]{status}", config(rules)));
    rewrite("{ to = \"203.0.112.0/23\", route = \"through\" }");
    stamper.signal("-HUP");
    eventually("it is refused", || stamper.log().contains("are not delegated for all of these"));
    send(&plain(HOST, LAST, 443, 100));
    assert_eq!(last.all(1).len(), 1);
    rewrite("{ to = \"203.0.113.0/24\" }");
    stamper.reload();
    let before = left("rule");
    send(&plain(HOST, LAST, 443, 100));
    eventually("it is left", || left("rule") == before + 1);
}

#[test]
fn capabilities_are_minted_and_delegated_within_their_bounds_and_read_by_their_owner_alone() {
    let folder = Folder::new("capabilities");
    mint(&folder);
    let shown: Value = serde_json::from_str(&ok(&folder, &["keys", "show", "edge.cap", "--json"])).expect("JSON");
    let bounds = (&shown["prefix"], &shown["delegation"], &shown["sub_delegation"], &shown["principal"]);
    assert_eq!(bounds, (&"203.0.113.0/24".into(), &3.into(), &9.into(), &7.into()));
    // No secret is printed, and each file has others.
    let secret = |file: &str| {
        let text = fs::read_to_string(folder.0.join(file)).expect("the file");
        text.lines().find_map(|line| line.strip_prefix("secret = ")).expect("a secret").trim_matches('"').to_owned()
    };
    let secrets = ["own.cap", "isp.cap", "edge.cap"].map(secret);
    assert!(secrets[0] != secrets[1] && secrets[1] != secrets[2] && secrets[0].len() == 32);
    assert!(!shown.to_string().contains(&secrets[2]));
    let delegate = |more: &[&'static str]| [&["cap", "narrow", "new.cap"], more].concat();
    let table: [(Vec<&str>, i32, &str); 6] = [
        (delegate(&["--of", "own.cap", "--prefix", "203.0.0.0/8"]), 2, "the delegation has no number"),
        (
            delegate(&["--of", "isp.cap", "--prefix", "192.0.2.0/24"]),
            2,
            "192.0.2.0/24 does not lie in the delegated prefix 203.0.0.0/8",
        ),
        (delegate(&["--of", "own.cap", "--prefix", "2001:db8::/32", "--id", "1"]), 2, "another address family"),
        (delegate(&["--of", "edge.cap", "--prefix", "203.0.113.0/25", "--id", "1"]), 2, "was already handed on"),
        (delegate(&["--of", "0.key", "--prefix", "203.0.113.0/25", "--id", "1"]), 1, "is not a file of capabilities"),
        (vec!["cap", "narrow", "own.cap", "--of", "own.cap", "--prefix", "203.0.0.0/8", "--id", "1"], 1, "exists"),
    ];
    for (arguments, code, reason) in table {
        let said = fails(&folder, code, &arguments);
        assert!(said.contains(reason), "{arguments:?}: expected {reason}, got {said}");
    }
    ok(&folder, &delegate(&["--of", "edge.cap", "--prefix", "203.0.113.128/25"]));
    ok(&folder, &delegate(&["--of", "edge.cap", "--prefix", "203.0.113.0/25", "--replace"]));
    // A stamper with a file that others can read, or none, does not start.
    folder.keys("s.key", "platypus", &[(0, [9; 16])]);
    let config = format!(
        "[forwarding]\nformat = \"platypus\"\nkeys = \"s.key\"\n[platypus]\nwaypoints = []\naccounts = 0\n[stamper]\n\
         routes = [{{ name = \"through\", capabilities = [\"edge.cap\"] }}]\n\
         rules = [{{ to = \"203.0.113.0/24\", route = \"through\" }}]\n\
         [[link]]\nlocal = \"{}\"\nremote = \"{}\"\nstamp = [\"192.0.2.0/24\"]\n",
        free(),
        free()
    );
    folder.write("s.toml", &config);
    ok(&folder, &["check", "s.toml"]);
    let path = folder.0.join("edge.cap");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("mode");
    for command in [&["check", "s.toml"][..], &["run", "router", "--config", "s.toml"]] {
        assert!(fails(&folder, 1, command).contains("can be read by others than its owner"), "{command:?}");
    }
    fs::remove_file(&path).expect("removed");
    assert!(fails(&folder, 1, &["run", "router", "--config", "s.toml"]).contains("edge.cap"));
    for (from, to, reason) in [
        ("route = \"through\"", "route = \"elsewhere\"", "no route `elsewhere`"),
        ("stamp = [\"192.0.2.0/24\"]", "", "no packet is stamped"),
        ("[stamper]", "[stamper]\nshare = [2, 2]", "stamper 2 of 2"),
        ("\"edge.cap\"", "", "a route without capabilities"),
    ] {
        folder.write("s.toml", &config.replace(from, to));
        let said = fails(&folder, 1, &["check", "s.toml"]);
        assert!(said.split_whitespace().collect::<Vec<_>>().join(" ").contains(reason), "{reason}: {said}");
    }
}

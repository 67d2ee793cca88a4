//! A stamper on the client's own machine: by user and by mark.
//!
//! PLA, stamper by process: stamping by user and by mark: only what was chosen; all else as ever.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::json;
use wayleave_lab::netns::{self, NetworkNamespace, Rung};
use wayleave_runtime::packets::ip::Ip;
use wayleave_runtime::packets::{Burst, Outgoing, Port};

use super::world::{self, PRINCIPALS, World, balance, config, text};
use crate::router::common::eventually;
use crate::router::platypus::{HOST, LAST};

const USER: u32 = 4_711;
const MARK: u32 = 77;

/// What `ip rule` shows, apart from what every machine has.
fn rules(place: &NetworkNamespace) -> Vec<String> {
    let output = place.command("ip").args(["rule", "show"]).output().expect("ip runs");
    let own = |line: &&str| {
        !["local", "main", "default"].iter().any(|table| line.ends_with(&format!("from all lookup {table}")))
    };
    text(&output.stdout).lines().map(str::trim).filter(own).map(str::to_owned).collect()
}

/// Sends a UDP packet to a port of the server where nobody listens, from a socket with a mark.
fn send_marked(place: &NetworkNamespace, mark: Option<u32>) {
    let mut packet = vec![0; 40];
    (packet[0], packet[3], packet[8], packet[9]) = (0x45, 40, 64, 17);
    packet[12..16].copy_from_slice(&HOST.octets());
    packet[16..20].copy_from_slice(&LAST.octets());
    (packet[23], packet[25]) = (9, 20);
    let to = SocketAddr::from((LAST, 0));
    let send = || {
        let mut socket = Ip::open(Ipv4Addr::UNSPECIFIED, 255).expect("a raw socket");
        if let Some(mark) = mark {
            socket.set_mark(mark).expect("a mark");
        }
        let mut burst = Burst::default();
        assert!(burst.push(&packet, to));
        assert_eq!(socket.send(&burst, &[Outgoing { packet: 0, to }]).expect("sent"), 1);
    };
    place.within(send).expect("in its place");
}

#[test]
fn packets_are_stamped_by_user_and_by_mark_and_all_others_leave_as_ever() {
    let name = "stamping::chosen::packets_are_stamped_by_user_and_by_mark_and_all_others_leave_as_ever";
    let Some(rung) = world::enter(name) else { return };
    let world = World::start("stamping-chosen", false);
    let host = format!("address = \"{HOST}\"\n");
    let by = format!(
        "{{ to = \"203.0.113.0/24\", route = \"paid\", user = {USER} }}, \
         {{ to = \"203.0.113.0/24\", route = \"paid\", mark = {MARK} }}"
    );
    assert_eq!(world.fetch(None), [0, 0], "without a stamper");
    let mut stamper = world.stamper(&host, &by);
    assert_eq!(world.fetch(None), [0, 0], "another user");
    if rung == Rung::Root {
        let [first, second] = world.fetch(Some(USER));
        assert!(first > 10 && first == second, "{first} {second} {}", stamper.status());
    } else {
        netns::skipped("stamping by user: the namespace has one user only, since this test does not run as root");
    }
    send_marked(&world.site.client, Some(MARK + 1));
    send_marked(&world.site.client, None);
    let before = world.forwarded(1);
    send_marked(&world.site.client, Some(MARK));
    eventually("it passes", || world.forwarded(1) == before + 1);
    assert!(world.site.peers.lock().expect("noted").iter().all(|peer| *peer == HOST), "the client's own address");
    balance(&world);
    for (which, principal) in PRINCIPALS.into_iter().enumerate() {
        assert_eq!(world.books(which), [(u64::from(principal), world.forwarded(which))]);
    }

    // What is shown: routes with their principals, and why a packet is stamped.
    let routes = stamper.json("stamping")["stamping"].clone();
    assert_eq!(routes[0]["route"], "paid");
    let principals: Vec<_> = (0..2).map(|which| routes[0]["waypoints"][which]["principal"].clone()).collect();
    assert_eq!(principals, [json!(PRINCIPALS[0]), json!(PRINCIPALS[1])]);
    let why = |destination: &str| {
        let output = stamper.show(&["why", destination]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let said = why(&LAST.to_string());
    assert!(said.contains(&format!("from user {USER}: is stamped for route paid")), "{said}");
    assert!(said.contains(&format!("from mark {MARK}: is stamped")), "{said}");
    assert!(said.contains("from anybody else: leaves without a stamp"), "{said}");
    assert!(said.contains(&format!("principal {} pays", PRINCIPALS[1])), "{said}");
    assert!(!why("192.0.2.77").contains("is stamped"));

    // Other capabilities in a file's place are used at once: another principal pays.
    world.mint(1, 9, &["--replace"]);
    eventually("the file is read again", || stamper.log().contains("files of capabilities have changed"));
    let before = world.forwarded(1);
    send_marked(&world.site.client, Some(MARK));
    eventually("it passes", || world.forwarded(1) == before + 1);
    eventually("the other pays", || world.books(1).last() == Some(&(9, 1)));
    // A file that cannot be used changes nothing.
    world.folder.write("1.cap", "role = \"capability\"\n");
    eventually("it is refused", || stamper.log().contains("read before stay in force"));
    let before = world.forwarded(1);
    send_marked(&world.site.client, Some(MARK));
    eventually("it passes", || world.forwarded(1) == before + 1);

    // Killed, it leaves rules to nowhere: everything goes on without stamps. Started again, it replaces them; at its end none stay.
    stamper.kill();
    assert_eq!(world.fetch((rung == Rung::Root).then_some(USER)), [0, 0], "without a stamper");
    let left = rules(&world.site.client);
    assert_eq!(left.len(), 4, "{left:?}");
    world.mint(1, 9, &["--replace"]);
    stamper.start_process();
    assert_eq!(rules(&world.site.client).len(), 4);
    let before = world.forwarded(1);
    send_marked(&world.site.client, Some(MARK));
    eventually("it passes", || world.forwarded(1) == before + 1);
    // A reload with other rules.
    let page = std::fs::read_to_string(world.folder.0.join("stamper.toml")).expect("its configuration");
    let status = page.split_once("[status]").expect("its page").1;
    let fewer = format!("{{ to = \"203.0.113.0/24\", route = \"paid\", mark = {} }}", MARK + 1);
    world.folder.write("stamper.toml", &format!("{}[status]{status}", config(&host, &fewer)));
    stamper.reload();
    assert_eq!(rules(&world.site.client).len(), 3);
    send_marked(&world.site.client, Some(MARK));
    send_marked(&world.site.client, Some(MARK + 1));
    eventually("the other passes", || world.forwarded(1) == before + 2);
    stamper.signal("-TERM");
    let mut child = stamper.child.take().expect("running");
    assert!(child.wait().expect("it ends").success(), "{}", stamper.log());
    assert_eq!(rules(&world.site.client), Vec::<String>::new());
    let links = world.site.client.command("ip").args(["link", "show"]).output().expect("ip runs");
    assert!(!text(&links.stdout).contains("stamp0"));
}

#[test]
fn mistakes_in_a_stampers_configuration_are_refused_with_their_place() {
    use crate::router::common::Folder;
    let folder = Folder::new("stamping-mistakes");
    folder.keys("0.key", "platypus", &[(0, [1; 16])]);
    for which in ["0.cap", "1.cap"] {
        let line = ["cap", "mint", which, "--key", "0.key", "--waypoint", "198.51.100.1", "--principal", "7"];
        assert!(folder.run(&line).status.success());
    }
    let rule = "{ to = \"203.0.113.0/24\", route = \"paid\" }";
    folder.write("s.toml", &config("", rule));
    let output = folder.run(&["check", "s.toml"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for (host, rules, reason) in [
        ("interface = \"a name\"\n", rule, "begins no interface's name"),
        ("table = 200\n", rule, "200"),
        ("mark = 0\n", rule, "every socket has mark 0"),
        ("address = \"192.0.2.1\"\nreceive_from = [\"2001:db8::/32\"]\n", rule, "expected `address6`"),
        ("", "{ route = \"paid\" }", "expected `to`, or who sends them"),
        ("", "{ to = \"203.0.113.0/24\", route = \"other\" }", "no route `other`"),
        ("", "{ to = \"203.0.113.0/24\", user = \"no-such-user\" }", "no such user"),
        ("", "{ to = \"203.0.113.0/24\", mark = 0 }", "every socket's mark"),
        ("", "{ to = \"203.0.113.0/24\", mark = 1463877632 }", "are the role's"),
        ("", "{ to = \"203.0.113.0/24\", mark = 5, cgroup = \"a\" }", "one of them"),
        ("", "{ to = \"203.0.113.0/24\", cgroup = \"../a\" }", "no path of a control group"),
        ("", "{ to = \"203.0.113.0/24\", cgroup = \"a\\\" accept\" }", "no path of a control group"),
        ("", "{ to = \"203.0.113.0/24\", otherwise = \"drop\" }", "never stamped"),
        ("", "{ to = \"203.0.113.0/24\", route = \"paid\", otherwise = \"close\" }", "drop"),
    ] {
        folder.write("s.toml", &config(host, rules));
        let output = folder.run(&["check", "s.toml"]);
        let said = text(&output.stderr).replace("\n  │ ", " ");
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(output.status.code() == Some(1) && said.contains(reason), "{reason}: {said}");
    }
    // Where the stamper is made: a route of the other family, one that leaves less than IPv6 needs, two rules for the same packets.
    let line = ["cap", "mint", "6.cap", "--key", "0.key", "--waypoint", "2001:db8:a0::1", "--principal", "7"];
    assert!(folder.run(&line).status.success());
    let by = |file: &str, mtu: u32| {
        format!(
            "[host]\n[stamper]\nroutes = [{{ name = \"paid\", capabilities = [\"{file}\"], mtu = {mtu} }}]\n\
             rules = [{{ to = \"2001:db8::/32\", route = \"paid\" }}]\n"
        )
    };
    for (config, reason) in [(by("0.cap", 1_500), "of another family"), (by("6.cap", 1_300), "needs 1280")] {
        folder.write("s.toml", &config);
        let output = folder.run(&["run", "stamper", "--config", "s.toml"]);
        let said = text(&output.stderr).replace("\n  │ ", " ");
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(output.status.code() == Some(1) && said.contains(reason), "{reason}: {said}");
    }
    folder.write("s.toml", &config("", &format!("{rule}, {rule}")));
    let output = folder.run(&["run", "stamper", "--config", "s.toml"]);
    assert!(text(&output.stderr).contains("a second rule for the same destinations"), "{}", text(&output.stderr));
}

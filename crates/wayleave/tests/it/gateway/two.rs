//! Two gateways on one machine.
//!
//! ICC, two gateways: in one namespace, both with the blocks that names have without a key: the second one says who has them and which key to set,
//! and starts not; with blocks of its own packets to names of each go by its own interface, and it takes back what is its own.

use super::*;
use crate::common::eventually;

#[test]
fn a_second_gateway_needs_blocks_for_names_of_its_own_and_then_names_of_both_are_reached() {
    let test = "gateway::two::a_second_gateway_needs_blocks_for_names_of_its_own_and_then_names_of_both_are_reached";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let mut world = World::start("gateway-two");
    let mut b = world.gateways.pop().expect("b");
    assert!(b.daemon.stop(TIMEOUT), "{}", b.daemon.log_tail(20));
    // b moves to the machine of a, with the address at which its neighbours are.
    let done = |node: usize, line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let output = world.run(node, words[0], &words[1..]);
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    done(B, "ip addr del 192.0.2.2/24 dev eth0");
    done(A, "ip addr add 192.0.2.2/24 dev eth0");
    // What one of them delivers comes from an address of the machine itself.
    for setting in ["accept_local=1", "rp_filter=0"] {
        done(A, &format!("sysctl -q -w net.ipv4.conf.all.{setting} net.ipv4.conf.default.{setting}"));
    }
    for node in 2..NODES.len() {
        done(node, "ip neigh flush all");
    }
    let config = fs::read_to_string(world.folder.0.join("b.toml")).expect("a configuration");
    let config = config.replace("way0", "way1").replace("127.0.0.1:53", "127.0.0.1:54").replace("8492", "8493");
    let launch = || {
        let mut command = world.places[A].command(env!("CARGO_BIN_EXE_wayleave"));
        command.args(["run", "gateway", "--config", "two.toml"]).current_dir(&world.folder.0);
        let daemon = Daemon::start(&mut command, &world.folder.0.join("two.log")).expect("started");
        let page = "127.0.0.1:8493".parse().expect("an address");
        Gateway { daemon, page, place: world.places[A].clone() }
    };
    let start = |keys: &str| {
        world.folder.write("two.toml", &config.replace("[laboratory]", &format!("{keys}[laboratory]")));
        launch()
    };
    let ended = |mut second: Gateway, parts: &[String]| {
        eventually("it ends", || !second.daemon.is_running());
        // Long lines are broken.
        let said = second.daemon.log_tail(40).replace('│', " ").split_whitespace().collect::<Vec<_>>().join(" ");
        parts.iter().for_each(|part| assert!(said.contains(part), "{part} is not in: {said}"));
        let kept = done(A, "ip route show table 20520");
        assert!(kept.contains("198.18.0.0/15 dev way0"), "what the first one has stays: {kept}");
    };
    let refused = |keys: &str, parts: &[String]| ended(start(keys), parts);
    // Queues of one interface would share its packets, whichever realm they are of.
    let same = config.replace("way1", "way0");
    world.folder.write("two.toml", &same.replace("[laboratory]", "table = 20600\n[laboratory]"));
    let said = ["cannot make the TUN interface way0", "give `interface` of [gateway] another name"];
    ended(launch(), &said.map(str::to_owned));
    // b had that table on its own machine.
    let said = ["routing table 20520 is in use by the interface way0", "give `table` of [gateway] another number"];
    refused("", &said.map(str::to_owned));
    let (table, ipv4) = ("table = 20600\n", "table = 20600\nnames_ipv4 = \"100.64.0.0/16\"\n");
    for (keys, block, key, example) in [
        (table, "198.18.0.0/15", "names_ipv4", "100.64.0.0/16"),
        (ipv4, "fd77:6179:6c65::/64", "names", "fd77:6179:6c65:1::/64"),
    ] {
        let parts = [
            format!("{block}, where names have their addresses (`{key}`), is in use on this machine"),
            format!("routing table 20520 has {block} at the interface way0"),
            format!("give `{key}` of [gateway] a block that nobody uses here, such as \"{example}\""),
        ];
        refused(keys, &parts);
        let checked = world.run(A, env!("CARGO_BIN_EXE_wayleave"), &["check", "two.toml"]);
        let said = text(&checked.stdout) + &text(&checked.stderr);
        assert!(checked.status.success() && said.contains("is in use on this machine"), "{said}");
        assert_eq!(done(A, "ip rule show priority 20602"), "", "it has taken back its rules");
    }
    let mut second = start(&format!("{ipv4}names = \"fd77:6179:6c65:1::/64\"\n"));
    eventually("it starts", || {
        assert!(second.daemon.is_running(), "{}", second.daemon.log_tail(20));
        !second.status().is_null()
    });
    let address = |server: &str, name: &str| world.look_up_at(server, name).and_then(|(_, address)| address);
    let names =
        [("127.0.0.1:53", "fast.b.demo.", "10.0.2.1", "way0"), ("127.0.0.1:54", "fast.a.demo.", "10.0.1.1", "way1")];
    for (server, name, inner, interface) in names {
        let address = address(server, name).expect("an address");
        let expected = if interface == "way0" { "198.18.0.1" } else { "100.64.0.1" };
        assert_eq!(address, expected, "{name}");
        let route = done(A, &format!("ip route get {address}"));
        assert!(route.contains(&format!("dev {interface}")), "{route}");
        let (receiver, sender) = world.places[A]
            .within(|| (UdpSocket::bind((inner, 7)).expect("a port"), UdpSocket::bind("0.0.0.0:0").expect("a port")))
            .expect("in its place");
        receiver.set_read_timeout(Some(Duration::from_millis(200))).expect("set");
        let mut octets = [0; 16];
        eventually(&format!("a packet to {name}: {}", second.daemon.log_tail(20)), || {
            sender.send_to(b"by name", (address.as_str(), 7)).is_ok()
                && receiver.recv(&mut octets).is_ok_and(|length| &octets[..length] == b"by name")
        });
    }
    assert!(second.daemon.stop(TIMEOUT), "{}", second.daemon.log_tail(20));
    assert_eq!(done(A, "ip route show table 20600 type blackhole"), "");
    assert!(done(A, "ip route show table 20520").contains("198.18.0.0/15 dev way0"));
}

//! One ICING node as a process: accounts by tag, signed reports, links over Ethernet, many packets in one message.
//!
//! ICD-11: 500 packets in ten messages that the system cuts and joins, every seventh forged; the least and the greatest
//! payload that a datagram carries: each packet is verified by itself.
//! ICD, Ethernet: packets over two nodes by frames; from another station, to another station, longer than the link
//! carries: the same as over UDP; none comes in, or leaves.
//! ICD, accounts: a node killed while it counts, twice: never over, and nothing lost that is older than a second.
//! ICD, reports: reports of three nodes of which one lost packets, one under another's key, one changed: the place is
//! told; refused (a window of a running node: in `make soak`).

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_dataplane::icing::{Count, Report, WINDOW};
use wayleave_lab::netns::{self, Network, NetworkNamespace};
use wayleave_packet::icing::header::{ETHERTYPE, Handle, Packet, Tag, Version};
use wayleave_packet::icing::mint::Sender;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::identity::to_hex;
use wayleave_runtime::packets::ethernet::{self, Ethernet};
use wayleave_runtime::packets::udp::{self, Intake};
use wayleave_runtime::packets::{Burst, Outgoing, Port};

use super::common::{Folder, Router, eventually, free};
use super::icing::{key, link, packet, path, path_with, secret, sender, socket};

/// Octets of an IPv4 datagram's payload, at most.
const GREATEST: usize = 65_507;
/// Octets of the header of a packet with its path over two nodes.
const HEADER: usize = 128;
/// Tags of this node: the first is charged to account 5, the second to account 6.
const TAGS: [Tag; 2] = [Tag(0x4900_0001), Tag(0x4a00_0001)];

/// Node 1 as the receiver, with its service, behind an open link.
struct Node {
    router: Router,
    service: UdpSocket,
    host: UdpSocket,
    entry: String,
    folder: Folder,
}

impl Node {
    fn start(name: &str, more: &str) -> Self {
        let folder = Folder::new(name);
        folder.keys("1.key", "icing", &[(0, key(1))]);
        assert!(folder.run(&["keys", "new", "node.identity"]).status.success());
        let ((host, host_at), (service, service_at)) = (socket(), socket());
        let (entry, inside) = (free(), free());
        let config = format!(
            "[forwarding]\nformat = \"icing\"\nkeys = \"1.key\"\nstate = \"1.redb\"\n[icing]\ninternal = \"{inside}\"\n\
             accounts = [{{ id = 5 }}, {{ id = 6, rate = 1000000 }}]\n\
             tags = [{{ prefix = \"49000000/8\", service = 7, account = 5 }}, {{ prefix = \"4a000000/8\", service = 7, account = 6 }}]\n\
             services = [{{ id = 7, address = \"{service_at}\" }}]\n{more}{}",
            link(1, &entry, &host_at, None)
        );
        let router = Router::start(&folder, "node", NetworkNamespace::Own, &config);
        Self { router, service, host, entry, folder }
    }

    fn send(&self, octets: &[u8]) {
        self.host.send_to(octets, &self.entry).expect("sent");
    }

    /// Packets and octets of an account.
    fn account(&self, id: u64) -> (u64, u64) {
        let accounts = self.router.json("accounts");
        let row = accounts["accounts"].as_array().into_iter().flatten().find(|row| row["account"] == id);
        let number = |name: &str| row.and_then(|row| row[name].as_str()?.parse().ok()).unwrap_or(0);
        (number("packets"), number("octets"))
    }
}

/// The next packet that came to a service.
fn delivered(service: &UdpSocket) -> Vec<u8> {
    let mut octets = vec![0; 1 << 16];
    let (length, _) = service.recv_from(&mut octets).expect("a packet in time");
    octets.truncate(length);
    octets
}

fn sender_with(tag: Tag) -> Sender {
    sender(&[0, 1], &path_with(&[0, 1], tag))
}

#[test]
fn accounts_by_tag_are_never_too_high_after_a_kill_and_what_was_journalled_is_not_lost() {
    let mut node = Node::start("icing-accounts", "");
    let senders = TAGS.map(sender_with);
    let (mut sent, mut number) = (0, 0);
    for _ in 0..2 {
        let (before, _) = node.account(5);
        assert!(before <= sent, "{before} of {sent}");
        let mut send = |node: &Node, count: u32| {
            for _ in 0..count {
                node.send(&packet(&senders[0], number, &[0; 72]));
                delivered(&node.service);
                number += 1;
            }
        };
        send(&node, 100);
        eventually("all are in the account", || node.account(5) == (before + 100, (before + 100) * 200));
        // What is older than a second is durable.
        std::thread::sleep(Duration::from_secs(1));
        send(&node, 50);
        sent = before + 150;
        node.router.kill();
        node.router.start_process();
        let (restored, octets) = node.account(5);
        assert!((before + 100..=sent).contains(&restored), "{restored} of {}..={sent}", before + 100);
        assert_eq!(octets, restored * 200);
        sent = restored;
    }
    // A million octets at once and a second: of more than twenty in a row the last do not pass.
    for number in 0..40 {
        node.send(&packet(&senders[1], number, &[0; 60_000]));
    }
    eventually("what is too much is refused", || node.router.count("reasons", "rate") >= 1);
    assert_eq!(node.router.count("reasons", "rate") + node.router.count("decided", "delivered"), 40);
    let passed = node.router.count("decided", "delivered");
    eventually("and what passed is in the other account", || node.account(6).0 == passed);
    assert_eq!(node.account(5), (sent, sent * 200));
}

#[test]
fn accounts_that_are_not_defined_or_not_kept_are_refused() {
    let folder = Folder::new("icing-accounts-refused");
    folder.keys("1.key", "icing", &[(0, key(1))]);
    let head = |state: &str, icing: &str, link: &str| {
        format!(
            "[forwarding]\nformat = \"icing\"\nkeys = \"1.key\"\n{state}[icing]\n{icing}\n[[link]]\nid = 1\nopen = true\n{link}"
        )
    };
    let (state, ends) = ("state = \"1.redb\"\n", "local = \"127.0.0.1:39301\"\nremote = \"127.0.0.1:39302\"\n");
    let mac = "neighbor = \"02:00:00:00:00:02\"\n";
    let ethernet = "backend = \"ethernet\"\ndevice = \"nothing0\"\n";
    let table = [
        (head("", "accounts = [{ id = 1 }]", ends), "would not survive a restart"),
        (head(state, "accounts = [{ id = 1 }, { id = 1 }]", ends), "account 1 exists already"),
        (head(state, "tags = [{ prefix = \"40000000/2\", account = 3 }]", ends), "account 3 is not defined"),
        (head(state, "accounts = [{ id = 1, rate = 5, depth = 1499 }]", ends), "drops every full-size packet"),
        (head(state, "identity = \"none.identity\"", ends), "none.identity"),
        (head(state, "", ""), "a link without `local` and `remote`"),
        (head(state, "", &format!("{ends}{mac}")), "belongs to backend = \"ethernet\""),
        (head(state, "", ethernet), "backend ethernet is incomplete"),
        (head(state, "", &format!("{ethernet}{mac}{ends}")), "`local` and `remote` with ethernet"),
        (head(state, "", &format!("{ethernet}neighbor = \"ff:ff:ff:ff:ff:ff\"\n")), "of one station"),
        (head(state, "", &format!("{ethernet}{mac}")), "cannot receive from device nothing0"),
    ];
    for (config, reason) in table {
        folder.write("node.toml", &config);
        let output = folder.run(&["run", "router", "--config", "node.toml"]);
        let text = String::from_utf8_lossy(&output.stderr).replace("\n  │ ", " ");
        assert_eq!(output.status.code(), Some(1), "{config}: {text}");
        let words: Vec<&str> = text.split_whitespace().collect();
        assert!(words.join(" ").contains(reason), "{config}: expected {reason}, got {text}");
    }
}

/// ICD-11: what a batching sender sent as one message is verified packet by packet; the least and the greatest payload pass.
#[test]
fn each_packet_of_a_merged_message_is_verified_by_itself() {
    // The host's port is given up and taken again: nobody else may have it meanwhile.
    if netns::enter_for_test("router::icing_node::each_packet_of_a_merged_message_is_verified_by_itself").is_none() {
        return;
    }
    let _network = Network::new().expect("a network");
    let Node { router, service, host, entry, folder: _folder } = Node::start("icing-merged", "");
    let honest = sender(&[0, 1], &path(&[0, 1]));
    let from: SocketAddr = host.local_addr().expect("bound");
    drop(host);
    let mut port = udp::open(from, 1, Intake::Single, None).expect("a socket").data.remove(0);
    let entry = entry.parse().expect("an address");
    let mut burst = Burst::default();
    let (rounds, together) = (10u32, 50u32);
    let mut out = Vec::new();
    for number in 0..rounds * together {
        let mut octets = packet(&honest, number, &[7; 300]);
        let place = octets.len() - 1 - (number as usize * 37) % 300;
        octets[place] ^= u8::from(number % 7 == 3);
        assert!(burst.push(&octets, from));
        out.push(Outgoing { packet: number, to: entry });
    }
    let forged = (0..rounds * together).filter(|number| number % 7 == 3).count() as u64;
    for message in out.chunks(together as usize) {
        assert_eq!(port.send(&burst, message).expect("sent"), message.len());
        for _ in message.iter().filter(|out| out.packet % 7 != 3) {
            let octets = delivered(&service);
            assert_eq!(Packet::decode(&octets, Version::Standard).expect("sound").payload(), [7; 300]);
        }
    }
    let good = u64::from(rounds * together) - forged;
    eventually("all are decided", || {
        router.count("decided", "delivered") == good && router.count("reasons", "verifier") == forged
    });
    let status = router.status();
    assert!(status["bursts"].as_u64() < status["received"].as_u64(), "no packets came merged: {status}");
    for (number, length) in [0, 1, GREATEST - HEADER].into_iter().enumerate() {
        let octets = packet(&honest, 10_000 + number as u32, &vec![9; length]);
        assert_eq!(octets.len(), HEADER + length);
        burst.clear();
        assert!(burst.push(&octets, from));
        assert_eq!(port.send(&burst, &[Outgoing { packet: 0, to: entry }]).expect("sent"), 1);
        let arrived = delivered(&service);
        assert_eq!(Packet::decode(&arrived, Version::Standard).expect("sound").payload().len(), length);
    }
    service.set_nonblocking(true).expect("set");
    assert!(service.recv_from(&mut [0; 2048]).is_err(), "a forged packet was delivered");
}

#[test]
fn without_an_identity_a_node_reports_nothing() {
    let nobody = Node::start("icing-reports-nobody", "");
    assert_eq!(nobody.router.json("reports"), serde_json::Value::Null);
}

/// Counts of a window are whole only if the path was known half a minute before it, and it is closed half a minute behind
/// its end.
#[test]
#[ignore = "waits two minutes for a window to be closed"]
fn a_node_signs_what_it_received_on_each_path() {
    let node = Node::start("icing-reports", "identity = \"node.identity\"\n");
    let honest = sender(&[0, 1], &path(&[0, 1]));
    let mut number = 0;
    let mut send = || {
        node.send(&packet(&honest, number, &[0; 100]));
        delivered(&node.service);
        number += 1;
    };
    send();
    assert_eq!(node.router.json("reports")["reports"], serde_json::json!([]), "no window was counted whole yet");
    let (begin, mut by_window) = (unix_now().secs(), std::collections::BTreeMap::<u64, u64>::new());
    while unix_now().secs() < begin + 110 {
        let second = unix_now().secs();
        send();
        // A packet that was stamped in the next second is not counted here.
        if unix_now().secs() == second {
            *by_window.entry(second >> WINDOW).or_default() += 1;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let reports = node.router.json("reports");
    let row = &reports["reports"][0];
    assert_eq!(row["handle"], to_hex(&honest.handle().0));
    let (window, packets) = (row["window"].as_u64().expect("a number"), row["packets"].as_u64().expect("a number"));
    assert!(packets >= by_window[&window] && packets <= by_window[&window] + 16, "{packets} {by_window:?}");
    node.folder.write("node.json", &reports.to_string());
    let key = String::from_utf8(node.folder.run(&["keys", "show", "node.identity", "--json"]).stdout).expect("text");
    let key: serde_json::Value = serde_json::from_str(&key).expect("JSON");
    let named = format!("{}=node.json", key["sign"].as_str().expect("a key"));
    let sent = (packets + 3).to_string();
    let window = window.to_string();
    let output = node.folder.run(&["locate", &named, "--window", &window, "--sent", &sent]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("3 packets lost between node 0 and node 1"), "{text}");
}

#[test]
fn reports_say_where_packets_vanished_and_a_forged_one_is_refused() {
    let folder = Folder::new("icing-locate");
    let identity = |node: u8| SigningKey::from_seed(&Seed::new([node; 32]));
    let public = |node: u8| format!("ed25519:{}", to_hex(&identity(node).verifying_key().to_bytes()));
    let row = |node: u8, window, packets| {
        let count = Count { packets, octets: packets * 64, ..Count::default() };
        let report = Report { handle: Handle([9; 16]), index: node, window, is_whole: true, count };
        serde_json::json!({ "signed": to_hex(&report.sign(&identity(node))) })
    };
    let write = |node: u8, rows: &[serde_json::Value]| {
        folder.write(&format!("{node}.json"), &serde_json::json!({ "reports": rows }).to_string());
    };
    write(1, &[row(1, 100, 50), row(1, 101, 70)]);
    write(2, &[row(2, 100, 50), row(2, 99, 3)]);
    write(3, &[row(3, 100, 41)]);
    let named: Vec<String> = (1..4).map(|node| format!("{}={node}.json", public(node))).collect();
    let locate = |named: &[String], more: &[&str]| {
        let mut arguments = vec!["locate"];
        arguments.extend(named.iter().map(String::as_str));
        arguments.extend(more);
        let output = folder.run(&arguments);
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (code, text) = locate(&named, &["--sent", "52", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((code, &report["window"]), (Some(0), &100.into()));
    let losses = [(0, 1, 2), (2, 3, 9)]
        .map(|(from, to, packets)| serde_json::json!({ "from": from, "to": to, "packets": packets }));
    assert_eq!(report["losses"], serde_json::json!(losses));
    // Without the sender's number, and in a window that one node alone reports.
    assert!(locate(&named, &[]).1.contains("9 packets lost between node 2 and node 3"));
    let (code, text) = locate(&named[..1], &["--window", "101"]);
    assert!(code == Some(0) && text.contains("node 1: 70 packets") && !text.contains("lost"), "{text}");
    // Where payloads were replaced.
    let of_samples = |node: u8, window, is_whole, (failed, spoiled)| {
        let count = Count { packets: 100 - failed - spoiled, octets: 6_400, samples: 2, failed, spoiled };
        let report = Report { handle: Handle([9; 16]), index: node, window, is_whole, count };
        serde_json::json!({ "signed": to_hex(&report.sign(&identity(node))) })
    };
    // In a part of a window as in a whole one, and not in the last one.
    let write_all = |failed: [(u64, u64); 3]| {
        for (node, failed) in (1..).zip(failed) {
            let quiet = of_samples(node, 100, true, (0, 0));
            write(node, &[of_samples(node, 99, false, failed), quiet.clone(), quiet]);
        }
    };
    write_all([(0, 0), (6, 0), (5, 0)]);
    let (code, text) = locate(&named, &["--json"]);
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let place = serde_json::json!({ "from": 1, "to": 2, "failed_samples": 6 });
    let wrong = serde_json::json!({ "windows": [99], "replaced": place, "spoiled": [] });
    assert_eq!((code, &report["window"], &report["wrong"]), (Some(0), &100.into(), &wrong), "{text}");
    let (_, text) = locate(&named, &[]);
    let said = "no packets lost\npackets dropped for their verifiers in window 99\n  payloads replaced between node 1 and node 2, or by one of \
                them: 6 samples failed";
    assert!(text.contains(said), "{text}");
    let (_, text) = locate(&named, &["--window", "99"]);
    assert!(text.contains("node 1: 100 packets of a part of the window") && !text.contains("lost"), "{text}");
    write_all([(0, 0), (0, 0), (3, 90)]);
    let (_, text) = locate(&named, &[]);
    let said = "verifiers for node 3 spoiled by the sender or a node in front of it: 90 packets and 3 samples dropped";
    assert!(text.contains(said) && !text.contains("replaced"), "{text}");
    write_all([(0, 0), (1, 0), (0, 0)]);
    assert!(locate(&named, &[]).1.contains("too few to say where"));
    // A file is of one node, and a node's is one file.
    let under = |index, window, key| {
        let count = Count { packets: 50, octets: 50 * 64, ..Count::default() };
        let report = Report { handle: Handle([9; 16]), index, window, is_whole: true, count };
        serde_json::json!({ "signed": to_hex(&report.sign(&identity(key))) })
    };
    for (rows, said) in [
        (&[under(2, 100, 2), under(3, 101, 2)][..], "2.json: reports of node 2 and of node 3 of one path"),
        (&[under(2, 100, 2), of_samples(2, 100, true, (1, 0))], "2.json: two reports of node 2 on window 100"),
        (&[under(1, 100, 2)], "1.json and 2.json: both are of node 1 of the path"),
    ] {
        write(2, rows);
        let (code, text) = locate(&named, &[]);
        assert!(code == Some(2) && text.contains(said), "{code:?}: {text}");
    }
    write(2, &[row(2, 100, 50), row(2, 99, 3)]);
    write(1, &[row(1, 100, 50), row(1, 101, 70)]);
    // Another's report, and one whose number was changed.
    let (code, text) = locate(&[format!("{}=1.json", public(2))], &[]);
    assert!(code == Some(1) && text.contains("a report is not signed by"), "{text}");
    let mut changed = row(3, 100, 41)["signed"].as_str().expect("text").to_owned();
    changed.replace_range(56..58, "ff");
    write(3, &[serde_json::json!({ "signed": changed })]);
    let (code, text) = locate(&named, &[]);
    assert!(code == Some(1) && text.contains("a report is not signed by"), "{text}");
}

/// A node's addresses: towards the one before it, and towards the next.
const SENDER: &str = "02:00:00:00:00:01";
const FIRST: [&str; 2] = ["02:00:00:00:00:02", "02:00:00:00:00:03"];
const SECOND: &str = "02:00:00:00:00:04";

fn ethernet_link(id: u16, device: &str, neighbor: &str, nodes: &str) -> String {
    format!("[[link]]\nid = {id}\nbackend = \"ethernet\"\ndevice = \"{device}\"\nneighbor = \"{neighbor}\"\n{nodes}\n")
}

fn set_address(place: &NetworkNamespace, device: &str, address: &str) {
    let line = ["link", "set", device, "address", address];
    assert!(place.command("ip").args(line).status().expect("ip").success());
}

#[test]
fn packets_pass_two_nodes_straight_over_ethernet() {
    if netns::enter_for_test("router::icing_node::packets_pass_two_nodes_straight_over_ethernet").is_none() {
        return;
    }
    let network = Network::new().expect("a network");
    let [host, first, second] = ["host", "first", "second"].map(|name| network.apart(name).expect("a namespace"));
    network.join("in", ("host", "10.3.0.1/24"), ("first", "10.3.0.2/24")).expect("a link");
    network.join("mid", ("first", "10.4.0.1/24"), ("second", "10.4.0.2/24")).expect("a link");
    set_address(&host, "in", SENDER);
    set_address(&first, "in", FIRST[0]);
    set_address(&first, "mid", FIRST[1]);
    set_address(&second, "mid", SECOND);
    let folder = Folder(network.state().join("nodes"));
    std::fs::create_dir_all(&folder.0).expect("a folder");
    (1..3).for_each(|node| folder.keys(&format!("{node}.key"), "icing", &[(0, key(node))]));
    let behind = |node: usize| format!("nodes = [\"{}\"]", to_hex(&secret(node).id().to_bytes()));
    let head =
        |node: usize, more: &str| format!("[forwarding]\nformat = \"icing\"\nkeys = \"{node}.key\"\n[icing]\n{more}");
    let (service, service_at) = second.within(socket).expect("in its place");
    let inside = second.within(free).expect("in its place");
    let configs = [
        head(1, "tags = [{ prefix = \"49000000/8\" }]\n")
            + &ethernet_link(1, "in", SENDER, "open = true")
            + &ethernet_link(2, "mid", SECOND, &behind(2)),
        head(
            2,
            &format!(
                "internal = \"{inside}\"\ntags = [{{ prefix = \"49000000/8\", service = 7 }}]\n\
                 services = [{{ id = 7, address = \"{service_at}\" }}]\n"
            ),
        ) + &ethernet_link(1, "mid", FIRST[1], &behind(1)),
    ];
    let nodes = [
        Router::start(&folder, "first", NetworkNamespace::Named("first".to_owned()), &configs[0]),
        Router::start(&folder, "second", NetworkNamespace::Named("second".to_owned()), &configs[1]),
    ];
    let endpoint =
        ethernet::Endpoint { interface: "in".to_owned(), neighbor: [2, 0, 0, 0, 0, 2], ether_type: ETHERTYPE };
    let mut port = host.within(|| Ethernet::open(&endpoint)).expect("in its place").expect("a packet socket");
    let honest = sender(&[0, 1, 2], &path(&[0, 1, 2]));
    let mut burst = Burst::default();
    let mut send = |packets: &[Vec<u8>]| {
        burst.clear();
        packets.iter().for_each(|octets| assert!(burst.push(octets, ethernet::NEIGHBOR)));
        let out = |packet| Outgoing { packet: packet as u32, to: ethernet::NEIGHBOR };
        let out: Vec<Outgoing> = (0..packets.len()).map(out).collect();
        port.send(&burst, &out)
    };
    let packets: Vec<Vec<u8>> =
        (0..100).map(|number| packet(&honest, number, &vec![number as u8; 13 * number as usize])).collect();
    assert_eq!(send(&packets).expect("sent"), 100);
    for number in 0..100usize {
        let arrived = delivered(&service);
        let arrived = Packet::decode(&arrived, Version::Standard).expect("sound");
        assert_eq!((arrived.payload(), arrived.held()), (&vec![number as u8; 13 * number][..], 0b110));
    }
    // What is longer than the link carries does not leave; what was forged does not pass.
    let mut forged = packet(&honest, 200, &[1; 64]);
    *forged.last_mut().expect("octets") ^= 1;
    assert!(send(&[packet(&honest, 201, &[0; 1_400])]).is_err());
    assert_eq!(send(&[packet(&honest, 202, &[0; 1_400]), forged]).expect("sent"), 1);
    eventually("a forged packet ends at the first node", || nodes[0].count("reasons", "verifier") == 1);
    // From another address nothing comes in, and neither does what is for another.
    let received = || nodes[0].status()["received"].as_u64();
    let before = received();
    set_address(&host, "in", "02:00:00:00:00:99");
    assert_eq!(send(&[packet(&honest, 203, b"stranger")]).expect("sent"), 1);
    set_address(&host, "in", SENDER);
    let endpoint = ethernet::Endpoint { neighbor: [2, 0, 0, 0, 0, 0x77], ..endpoint };
    let mut elsewhere = host.within(|| Ethernet::open(&endpoint)).expect("in its place").expect("a packet socket");
    let mut other = Burst::default();
    assert!(other.push(&packet(&honest, 204, b"not for it"), ethernet::NEIGHBOR));
    let out = Outgoing { packet: 0, to: ethernet::NEIGHBOR };
    assert_eq!(elsewhere.send(&other, &[out]).expect("sent"), 1);
    assert_eq!(send(&[packet(&honest, 205, b"last")]).expect("sent"), 1);
    assert_eq!(Packet::decode(&delivered(&service), Version::Standard).expect("sound").payload(), b"last");
    assert_eq!(received(), before.map(|before| before + 1));
    assert_eq!(nodes[1].count("decided", "delivered"), 101);
    // A link that is taken away, and made again.
    assert!(first.command("ip").args(["link", "del", "mid"]).status().expect("ip").success());
    network.join("mid", ("first", "10.4.0.1/24"), ("second", "10.4.0.2/24")).expect("a link");
    set_address(&first, "mid", FIRST[1]);
    set_address(&second, "mid", SECOND);
    for node in &nodes {
        eventually("the port is opened anew", || node.log().contains("opened anew"));
    }
    // Addresses are set one after the other; the node may have met the interface in between, and looks again in a second.
    let mut number = 205;
    service.set_nonblocking(true).expect("set");
    eventually("packets pass again", || {
        number += 1;
        assert_eq!(send(&[packet(&honest, number, b"again")]).expect("sent"), 1);
        std::thread::sleep(Duration::from_millis(100));
        service.recv_from(&mut [0; 2048]).is_ok()
    });
}

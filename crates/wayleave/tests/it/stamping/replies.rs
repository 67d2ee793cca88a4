//! A client that pays for both directions: its stamper hands the server's stamper a capability for replies.

use std::fs;
use std::net::Ipv4Addr;

use wayleave_lab::netns::NetworkNamespace;

use super::nft;
use super::world::{self, World, body, ip, settled, text};
use crate::router::common::{Router, eventually};
use crate::router::platypus::{HOST, LAST};

/// Who pays for replies at the first waypoint, under which delegation.
const PAYER: u32 = 11;
const DELEGATION: u32 = 5;
/// A client that pays for nothing.
const OTHER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 11);

/// Sends a datagram behind a header with an empty list, with a genuine outer source.
fn send_bare(place: &NetworkNamespace, source: Ipv4Addr, to: Ipv4Addr) {
    let mut octets = vec![0x10, 0, 0, 17];
    octets.extend_from_slice(&source.octets());
    octets.extend_from_slice(&to.octets());
    octets.extend_from_slice(&[0; 8]);
    octets.extend_from_slice(&[0, 9, 0, 9, 0, 8, 0, 0]);
    let hex: String = octets.iter().map(|octet| format!("{octet:02x}")).collect();
    let send = "import socket, sys\n\
                raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, 253)\n\
                raw.sendto(bytes.fromhex(sys.argv[1]), (sys.argv[2], 0))";
    let sent = place.command("python3").args(["-c", send, &hex, &to.to_string()]).status();
    assert!(sent.expect("python3 runs").success());
}

#[test]
fn a_client_pays_for_replies_and_the_server_uses_that_for_this_client_alone() {
    let name = "stamping::replies::a_client_pays_for_replies_and_the_server_uses_that_for_this_client_alone";
    if world::enter(name).is_none() {
        return;
    }
    // No waypoint takes the header off: both hosts have stampers.
    let mut world = World::start_with("stamping-replies", false, "");
    world.mint_file("back.cap", 0, PAYER, &[]);
    let page =
        |address, more: &str, stamper: &str| format!("[host]\naddress = \"{address}\"\n{more}[stamper]\n{stamper}");
    let paid = format!(
        "routes = [{{ name = \"paid\", capabilities = [\"0.cap\", \"1.cap\"], reply = \"back.cap\", reply_id = {DELEGATION} }}]\n\
         rules = [{{ to = \"203.0.113.0/24\", route = \"paid\" }}]\n"
    );
    let server = world.site.server.clone();
    let config = page(LAST, "replies = true\nreply_waypoints = [\"198.51.100.0/24\"]\n", "routes = []\nrules = []\n");
    let mut server = Router::start_role("stamper", &world.folder, "server", server, &config);
    let client = world.site.client.clone();
    let client = Router::start_role("stamper", &world.folder, "client", client, &page(HOST, "", &paid));

    // The first connection's packets begin the exchange; those of the next are paid for in both directions.
    world.fetch(None);
    eventually("the server has a capability", || server.status()["replies"]["clients"] == 1);
    eventually("the client has the acknowledgement", || client.status()["replies"]["servers"] == 1);
    let before = settled(|| server.count("stamper", "stamped"));
    let [first, second] = world.fetch(None);
    let replies = settled(|| server.count("stamper", "stamped")) - before;
    assert!(replies > 10, "{replies} {}", server.status());
    assert!(first > second, "the first waypoint has replies too: {first} {second}");
    // Each reply is in the waypoint's books, under the delegation's number, and the client's host sees none of it.
    let stamped = settled(|| server.count("stamper", "stamped"));
    eventually("the books have the replies", || world.delegated(0, DELEGATION) == stamped);
    assert_eq!(world.delegated(1, DELEGATION), 0);
    assert!(client.status()["delivered"].as_u64() >= Some(stamped), "{}", client.status());
    assert!(world.site.peers.lock().expect("noted").iter().all(|peer| *peer == HOST));
    // Packets of the server's to anybody else are not stamped: only the client's address leads to the stamper.
    let routes = world.site.server.command("ip").args(["route", "show", "table", "22100"]).output().expect("ip runs");
    let routes = text(&routes.stdout);
    assert_eq!(routes.lines().count(), 1, "{routes}");
    assert!(routes.starts_with(&HOST.to_string()), "{routes}");

    // From another address of the server's, for which the client's capability makes no right binding, nothing is stamped.
    let second = Ipv4Addr::new(203, 0, 113, 77);
    let added = world.site.server.command("ip").args(["addr", "add", &format!("{second}/32"), "dev", "lo"]).status();
    assert!(added.expect("ip runs").success());
    let send = "import socket, sys\n\
                udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
                udp.bind((sys.argv[1], 0))\n\
                udp.sendto(b'hello', (sys.argv[2], 9))";
    let sent = world.site.server.command("python3").args(["-c", send, &second.to_string(), &HOST.to_string()]).status();
    assert!(sent.expect("python3 runs").success());
    eventually("it is counted", || server.count("left", "source") == 1);

    // Another client of the server's, which hands nothing over: its pages come without a stamp.
    let other = world.site.network.attach("other", &[format!("{OTHER}/24")]).expect("a namespace");
    ip("-n other route add default dev eth0");
    let before = (settled(|| server.count("stamper", "stamped")), world.forwarded(0));
    let page = world.curl_from(&other, None, &[]);
    assert!(page.stdout == body(), "{}", text(&page.stderr));
    assert_eq!((settled(|| server.count("stamper", "stamped")), world.forwarded(0)), before);
    assert_eq!(server.status()["replies"]["clients"], 1);
    assert_eq!(world.site.peers.lock().expect("noted").last(), Some(&OTHER.into()));

    // A stranger sends the server a packet with a header and no waypoint, from an address that it trusts: it keeps the header.
    let count = |name: &str| server.status()[name].as_u64().expect("a count");
    let delivered = count("delivered");
    send_bare(&other, Ipv4Addr::new(10, 0, 0, 5), LAST);
    eventually("the server has refused it", || count("refused_strangers") == 1);
    assert_eq!(count("delivered"), delivered);

    // The server's stamper is started anew, and knows nothing: the client asks from time to time, and hands it over again.
    server.kill();
    server.start_process();
    eventually("the server has the capability again", || {
        world.fetch(None);
        server.status()["replies"]["clients"] == 1
    });

    // A server without a stamper, and a last waypoint that takes the header off for it: the page comes all the same, and replies take
    // their usual path.
    drop(server);
    let paid = world.delegated(0, DELEGATION);
    let config = fs::read_to_string(world.folder.0.join("waypoint1.toml")).expect("its configuration");
    world.routers[1].kill();
    let bare = "[platypus]\ndecapsulate = [\"203.0.113.0/24\"]\n";
    world.folder.write("waypoint1.toml", &config.replace("[platypus]\n", bare));
    world.routers[1].start_process();
    let [first, second] = world.fetch(None);
    assert!(first > 10 && first == second, "{first} {second} {}", client.status());
    assert_eq!(settled(|| world.delegated(0, DELEGATION)), paid, "nobody pays for replies");
}

/// Neither machine sends or receives protocol 253: hosts carry everything in UDP, and so do waypoints what came so.
#[test]
fn where_protocol_253_does_not_pass_packets_replies_and_registered_ones_go_in_udp() {
    let name = "stamping::replies::where_protocol_253_does_not_pass_packets_replies_and_registered_ones_go_in_udp";
    let Some(nft) = nft::fetched(name) else { return };
    if world::enter(name).is_none() {
        return;
    }
    let world = World::start_with("stamping-udp", false, "");
    let block = "table ip block { \
                 chain sent { type filter hook output priority filter; ip protocol 253 drop; }; \
                 chain received { type filter hook input priority filter; ip protocol 253 drop; }; }";
    for place in [&world.site.client, &world.site.server] {
        nft::set(&nft, place, block);
    }
    world.mint_file("back.cap", 0, PAYER, &[]);
    world.mint_file("own0.cap", 0, 21, &[]);
    world.mint_file("own1.cap", 1, 22, &[]);
    let page = |address, more: &str, rest: &str| format!("[host]\naddress = \"{address}\"\n{more}[stamper]\n{rest}");
    let paid = |udp: bool| {
        format!(
            "routes = [{{ name = \"paid\", capabilities = [\"0.cap\", \"1.cap\"], reply = \"back.cap\", reply_id = {DELEGATION}, \
             udp = {udp} }}]\nrules = [{{ to = \"203.0.113.0/24\", route = \"paid\" }}]\n"
        )
    };
    let config = page(LAST, "replies = true\nreply_waypoints = [\"198.51.100.0/24\"]\n", "routes = []\nrules = []\n");
    let server = Router::start_role("stamper", &world.folder, "server", world.site.server.clone(), &config);
    let socket = "socket = \"stamper.sock\"\n";
    let client = |udp| {
        let config = page(HOST, socket, &paid(udp));
        Router::start_role("stamper", &world.folder, "client", world.site.client.clone(), &config)
    };

    // Over IP nothing passes.
    let over_ip = client(false);
    let output = world.curl_from(&world.site.client, None, &["--max-time", "2"]);
    assert!(output.stdout.is_empty(), "{}", over_ip.status());
    drop(over_ip);

    let client = client(true);
    // Replies cross the first waypoint, as soon as the server has the capability.
    let [first, second] = world.fetch(None);
    assert!(second > 10 && first >= second, "{first} {second} {}", client.status());
    eventually("the server has a capability", || server.status()["replies"]["clients"] == 1);
    let before = settled(|| server.count("stamper", "stamped"));
    world.fetch(None);
    let replies = settled(|| server.count("stamper", "stamped")) - before;
    assert!(replies > 10, "{replies} {}", server.status());
    eventually("the books have the replies", || world.delegated(0, DELEGATION) == before + replies);

    // What a user registers: root's here, whose capabilities come before those of everybody's rule.
    let binary = env!("CARGO_BIN_EXE_wayleave");
    let url = format!("http://{LAST}/");
    let line = [
        "stamp",
        "--socket",
        "stamper.sock",
        "--to",
        "203.0.113.0/24",
        "--capability",
        "own0.cap",
        "--capability",
        "own1.cap",
        "--udp",
        "--",
        "curl",
        "--silent",
        "--show-error",
        "--max-time",
        "20",
        &url,
    ];
    let mut command = world.site.client.command(binary);
    let output = world.with_curl(&mut command).args(line).current_dir(&world.folder.0).output().expect("it runs");
    assert!(output.stdout == body(), "{}", text(&output.stderr));
    for (which, principal) in [(0, 21), (1, 22)] {
        eventually("the books have its packets", || {
            world.books(which).iter().any(|(of, packets)| *of == principal && *packets > 10)
        });
    }
}

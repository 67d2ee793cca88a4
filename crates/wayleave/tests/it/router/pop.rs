//! A point of presence: two routers with one waypoint address and key, between which a provider's traffic is divided.

use std::fs;
use std::net::Ipv4Addr;

use serde_json::Value;
use wayleave_lab::netns::{self, Network, NetworkNamespace};

use super::common::{Folder, Router, eventually};
use super::platypus::{HOST, KEYS, LAST, PLATYPUS, Socket, WAYPOINTS, packet};
use crate::common::text;
use crate::stamping::world::ip;

/// The routers' own addresses, beside that of the waypoint.
const ROUTERS: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 51, 100, 3), Ipv4Addr::new(198, 51, 100, 4)];
/// Where the key server listens for them.
const REPORTS: u16 = 8_494;
/// Packets through each router.
const SENT: [u32; 2] = [40, 20];
/// Packets of the first router's that are sent to the second too.
const COPIED: usize = 10;

struct Site {
    host: NetworkNamespace,
    last: NetworkNamespace,
    routers: Vec<Router>,
    key: Router,
    folder: Folder,
}

impl Site {
    fn start() -> Self {
        let network = Network::new().expect("a network");
        let attach = |name: &str, address: Ipv4Addr| {
            let place = network.attach(name, &[format!("{address}/24")]).expect("a namespace");
            // Everybody is on the LAN, whatever the address.
            ip(&format!("-n {name} route add default dev eth0"));
            place
        };
        let (host, last) = (attach("host", HOST), attach("last", LAST));
        let places: Vec<NetworkNamespace> =
            (0..2).map(|which| attach(&format!("pop{which}"), ROUTERS[which])).collect();
        for (which, address) in ROUTERS.into_iter().enumerate() {
            ip(&format!("-n pop{which} addr add {}/32 dev lo", WAYPOINTS[0]));
            // The host's mark says by which router a packet goes, as its provider's routes would.
            let table = 101 + which;
            ip(&format!("-n host route add default via {address} dev eth0 onlink table {table}"));
            ip(&format!("-n host rule add fwmark {} table {table}", which + 1));
        }
        let folder = Folder(network.state().join("routers"));
        fs::create_dir_all(&folder.0).expect("a folder");
        let ok = |line: &[&str]| run(&folder, line);
        let identity = |file: &str| {
            let made = ok(&["keys", "node", file, "--kind", "identity", "--json"]);
            let made: Value = serde_json::from_str(&made).expect("JSON");
            made["public"].as_str().expect("a key").to_owned()
        };
        let zone = ["--zone", "keys.example.net", "--name-server", "ns1.example.net"];
        ok(&[&["cap", "init", "server", "--listen", "127.0.0.1:53", "--status", "127.0.0.1:1"], &zone[..]].concat());
        let mut server = fs::read_to_string(folder.0.join("server/key.toml")).expect("there");
        server.truncate(server.find("[status]").expect("a section"));
        for file in ["accounts.key", "writer.key", "accounts.db", "revoked"] {
            server = server.replace(&format!("\"{file}\""), &format!("\"server/{file}\""));
        }
        let own = identity("server.identity");
        server += &format!(
            "[key.routers]\nlisten = \"{LAST}:{REPORTS}\"\nidentity = \"server.identity\"\n\
             [[key.waypoint]]\naddress = \"{}\"\nkey = \"pop.key\"\nkind = \"pop\"\nname = \"fra\"\n",
            WAYPOINTS[0]
        );
        for which in 0..2 {
            let router = identity(&format!("{which}.identity"));
            server += &format!("[[key.router]]\nnumber = {}\nidentity = \"{router}\"\n", which + 1);
        }
        folder.keys("pop.key", "platypus", &[(0, KEYS[0])]);
        let key = Router::start_role("key", &folder, "key", last.clone(), &server);
        let start = |(which, place): (usize, &NetworkNamespace)| {
            let config = format!(
                "[forwarding]\nformat = \"platypus\"\nkeys = \"pop.key\"\nstate = \"{which}.redb\"\n[platypus]\n\
                 waypoints = [\"{}\"]\nreplay_capacity = 100000\n\
                 provider = {{ identity = \"{which}.identity\", server = {{ identity = \"{own}\", \
                 address = \"{LAST}:{REPORTS}\" }} }}\n",
                WAYPOINTS[0]
            );
            Router::start(&folder, &format!("pop{which}"), place.clone(), &config)
        };
        let routers = places.iter().enumerate().map(start).collect();
        Self { host, last, routers, key, folder }
    }

    /// A statement, written at the key server's machine: the command asks the running server.
    fn usage(&self, form: &[&str]) -> String {
        let mut command = self.last.command(env!("CARGO_BIN_EXE_wayleave"));
        command.args(["cap", "usage", "--config", "key.toml"]).args(form).current_dir(&self.folder.0);
        let output = command.output().expect("the program runs");
        assert!(output.status.success(), "{form:?}: {}{}", text(&output.stderr), text(&output.stdout));
        text(&output.stdout)
    }

    /// Packets of principal 7 at each router, by the statement.
    fn billed(&self) -> [u64; 2] {
        let statement = self.usage(&["--by", "router", "--json"]);
        let statement: Value = serde_json::from_str(&statement).expect("JSON");
        let lines = statement["usage"].as_array().expect("lines");
        [1, 2].map(|router| {
            let of = |line: &&Value| line["router"] == router && line["principal"] == 7;
            let packets = lines.iter().find(of).and_then(|line| line["packets"].as_str());
            packets.map_or(0, |packets| packets.parse().expect("a number"))
        })
    }

    fn repeated(&self) -> [u64; 2] {
        [0, 1].map(|which| self.routers[which].count("reasons", "replayed"))
    }
}

fn run(folder: &Folder, line: &[&str]) -> String {
    let output = folder.run(line);
    assert!(output.status.success(), "{line:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// A replay filter is each router's own: the statement has every packet that a router forwarded, and a copy at another router is one
/// (`docs/guide/router.md` says so).
#[test]
fn two_routers_of_one_waypoint_bill_what_each_forwarded_and_a_copy_at_the_other_one_is_billed_there() {
    let name =
        "router::pop::two_routers_of_one_waypoint_bill_what_each_forwarded_and_a_copy_at_the_other_one_is_billed_there";
    if netns::enter_for_test(name).is_none() {
        return;
    }
    let site = Site::start();
    let grant = ["cap", "grant", "--principal", "7", "--waypoint", &WAYPOINTS[0].to_string(), "--config", "key.toml"];
    run(&site.folder, &grant);
    let listed = run(&site.folder, &["cap", "list", "--config", "key.toml"]);
    assert!(listed.contains("fra"), "{listed}");
    let mut by_router = [1, 2].map(|mark| {
        let open = || {
            let socket = Socket::new(HOST, PLATYPUS);
            socket.0.set_mark(mark).expect("a mark");
            socket
        };
        site.host.within(open).expect("in its place")
    });
    let mut last = site.last.within(|| Socket::new(LAST, PLATYPUS)).expect("in its place");

    // Each packet twice by its own router, which forwards it once.
    let mut copies = Vec::new();
    for which in 0..2 {
        for number in 0..SENT[which] {
            let packet = packet(&[0], number * 2 + which as u32, 100);
            by_router[which].send(&packet);
            by_router[which].send(&packet);
            copies.push(packet);
        }
    }
    // Some of the first router's by the second one, twice.
    for packet in copies.iter().take(COPIED) {
        by_router[1].send(packet);
        by_router[1].send(packet);
    }
    let expected = [u64::from(SENT[0]), u64::from(SENT[1]) + COPIED as u64];
    let sum = expected.iter().sum::<u64>();
    assert_eq!(last.all(sum as usize).len() as u64, sum);
    eventually(&format!("the statement by router is what each forwarded: {}", site.key.log()), || {
        site.billed() == expected
    });
    assert_eq!(site.repeated(), expected, "each router refuses what it has forwarded");
    let forwarded = [0, 1].map(|which: usize| site.routers[which].count("decided", "forwarded"));
    assert_eq!(forwarded, expected);
    let csv = site.usage(&["--by", "principal", "--csv"]);
    let octets = sum * copies[0].len() as u64;
    assert_eq!(csv, format!("principal,account,late,packets,octets\r\n7,,false,{sum},{octets}\r\n"));
}

//! Hosts and waypoints with addresses of IPv6: stamped packets directly over IP and in UDP, registered capabilities, replies, and
//! packets that may leave in no other way.
//!
//! PLA, stamper by process, IPv6: over IP and in UDP, by registration, replies to a client that pays for them, a rule for both
//! families that fails closed: as over IPv4, and neighbour discovery goes on; a machine whose new interfaces have no IPv6.

use std::fs;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use wayleave_lab::netns::{self, Network, NetworkNamespace};
use wayleave_lab::wire::Capture;

use super::nft;
use super::world::{body, ip, serve, settled, text};
use crate::router::common::{Folder, Router, eventually};
use crate::router::platypus::{KEYS, PLATYPUS};

const CLIENT: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xc0, 0, 0, 0, 0, 0x10);
const SERVER: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xb0, 0, 0, 0, 0, 0x10);
const WAYPOINTS: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0x2001, 0xdb8, 0xa0, 0, 0, 0, 0, 1), Ipv6Addr::new(0x2001, 0xdb8, 0xa0, 0, 0, 0, 0, 2)];
/// The other family of client and server.
const SERVER_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 20);
const UDP: u8 = 17;
/// Who pays for replies at the first waypoint, under which delegation.
const PAYER: u32 = 11;
const DELEGATION: u32 = 5;
/// A port where nobody listens.
const DISCARD: u16 = 9;

/// The machines, on one LAN, with their waypoints running.
struct Lan {
    _network: Network,
    client: NetworkNamespace,
    server: NetworkNamespace,
    waypoints: Vec<NetworkNamespace>,
    folder: Folder,
    routers: Vec<Router>,
    peers: Arc<Mutex<Vec<IpAddr>>>,
}

impl Lan {
    /// With more lines in the waypoints' sections.
    fn start(name: &str, more: &str) -> Self {
        let network = Network::new().expect("a network");
        // A waypoint sends what others sent first: it looks for neighbours by its link-local address.
        let of = |v6: Ipv6Addr, number: usize| vec![format!("{v6}/32"), format!("fe80::{number}/64")];
        let attach = |name: &str, addresses: Vec<String>| network.attach(name, &addresses).expect("a namespace");
        let client = attach("client", [of(CLIENT, 1), vec!["192.0.2.10/24".to_owned()]].concat());
        let server = attach("server", [of(SERVER, 2), vec![format!("{SERVER_V4}/24")]].concat());
        let waypoints: Vec<NetworkNamespace> =
            (0..2).map(|which| attach(&format!("waypoint{which}"), of(WAYPOINTS[which], 3 + which))).collect();
        let peers = serve(&server, SERVER.into());
        let folder = Folder::new(name);
        let routers = (0..2)
            .map(|which| {
                folder.keys(&format!("{which}.key"), "platypus", &[(0, KEYS[which])]);
                let config = format!(
                    "[forwarding]\nformat = \"platypus\"\nkeys = \"{which}.key\"\nstate = \"{which}.redb\"\n[platypus]\n\
                     waypoints = [\"{}\"]\nown_waypoints = [\"{}/128\"]\nreplay_capacity = 100000\n{more}",
                    WAYPOINTS[which],
                    WAYPOINTS[1 - which]
                );
                Router::start(&folder, &format!("waypoint{which}"), waypoints[which].clone(), &config)
            })
            .collect();
        let lan = Self { _network: network, client, server, waypoints, folder, routers, peers };
        lan.mint("0.cap", 0, 7);
        lan.mint("1.cap", 1, 8);
        lan
    }

    fn mint(&self, file: &str, which: usize, principal: u32) {
        let (key, waypoint) = (format!("{which}.key"), WAYPOINTS[which].to_string());
        let principal = principal.to_string();
        let line = ["cap", "mint", file, "--key", &key, "--waypoint", &waypoint, "--principal", &principal];
        let output = self.folder.run(&line);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    fn stamper(&self, name: &str, config: &str) -> Router {
        let place = if name == "server" { &self.server } else { &self.client };
        Router::start_role("stamper", &self.folder, name, place.clone(), config)
    }

    fn forwarded(&self) -> [u64; 2] {
        [0, 1].map(|which| self.routers[which].count("decided", "forwarded"))
    }

    /// Fetches the server's page, and returns how many packets each waypoint forwarded for it.
    fn fetch(&self) -> [u64; 2] {
        let before = self.forwarded();
        let page = self.client.within(page).expect("in its place").expect("a page");
        assert!(page.ends_with(&body()), "{} octets arrived", page.len());
        let after = settled(|| self.forwarded());
        [after[0] - before[0], after[1] - before[1]]
    }

    fn is_stamped(&self) {
        let [first, second] = self.fetch();
        assert!(first > 10 && first == second, "{first} {second} {}", self.routers[0].status());
    }

    /// Packets of a delegation in the first waypoint's books.
    fn delegated(&self) -> u64 {
        let accounts = self.routers[0].json("accounts");
        let rows = accounts["accounts"].as_array().into_iter().flatten();
        let of = rows.filter(|row| row["delegation"] == DELEGATION);
        of.filter_map(|row| row["packets"].as_str()?.parse::<u64>().ok()).sum()
    }
}

/// What the server answers, with its head.
fn page() -> io::Result<Vec<u8>> {
    let timeout = Duration::from_secs(20);
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from((SERVER, 80)), timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut page = Vec::new();
    stream.read_to_end(&mut page)?;
    Ok(page)
}

/// Sends a datagram from a machine.
fn send(place: &NetworkNamespace, to: impl Into<IpAddr>) -> io::Result<usize> {
    let to = SocketAddr::new(to.into(), DISCARD);
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    place.within(|| UdpSocket::bind((any, 0)).and_then(|socket| socket.send_to(b"hello", to))).expect("in its place")
}

fn config(host: &str, rules: &str, udp: bool) -> String {
    format!(
        "[host]\naddress6 = \"{CLIENT}\"\n{host}[stamper]\n\
         routes = [{{ name = \"paid\", capabilities = [\"0.cap\", \"1.cap\"], udp = {udp} }}]\nrules = [{rules}]\n"
    )
}

/// A frame with a packet that is stamped for the first waypoint, in UDP or not.
fn is_stamped(frame: &[u8]) -> bool {
    let in_udp = frame.get(20) == Some(&UDP) && frame.get(56..58) == Some(&49_253u16.to_be_bytes());
    frame.get(12..14) == Some(&[0x86, 0xdd])
        && (frame.get(20) == Some(&PLATYPUS) || in_udp)
        && frame.get(38..54) == Some(&WAYPOINTS[0].octets())
}

const TO_SERVER: &str = "{ to = \"2001:db8:b0::/48\", route = \"paid\" }";
const DECAPSULATE: &str = "decapsulate = [\"2001:db8:b0::/48\"]\n";

#[test]
fn packets_pass_waypoints_over_ip_and_in_udp_and_come_from_their_sender() {
    let name = "stamping::ipv6::packets_pass_waypoints_over_ip_and_in_udp_and_come_from_their_sender";
    if netns::enter_for_test(name).is_none() {
        return;
    }
    let lan = Lan::start("stamping-ipv6", DECAPSULATE);
    assert_eq!(lan.fetch(), [0, 0], "without a stamper");
    for (udp, protocol) in [(false, PLATYPUS), (true, UDP)] {
        let capture = Capture::start(&lan.waypoints[0], is_stamped).expect("a capture");
        let mut stamper = lan.stamper("client", &config("", TO_SERVER, udp));
        let before = stamper.count("stamper", "stamped");
        let [first, second] = lan.fetch();
        assert!(first > 10 && first == second, "{udp} {first} {second} {}", lan.routers[0].status());
        assert_eq!(settled(|| stamper.count("stamper", "stamped")) - before, first);
        let frames = capture.frames();
        assert_eq!(frames.len() as u64, first);
        assert!(frames.iter().all(|frame| frame[20] == protocol && frame[22..38] == CLIENT.octets()));
        let why = text(&stamper.show(&["why", &SERVER.to_string()]).stdout);
        assert!(why.contains("is stamped for route paid"), "{why}");
        // Nothing of it stays.
        stamper.stop();
        let rules = lan.client.command("ip").args(["-6", "rule", "show"]).output().expect("ip runs");
        assert!(!text(&rules.stdout).contains("221"), "{}", text(&rules.stdout));
    }
    assert!(lan.peers.lock().expect("noted").iter().all(|peer| *peer == CLIENT));
    assert_eq!(lan.fetch(), [0, 0], "without a stamper");

    // Nobody is at the second waypoint's address: the system says so to the first, which relays it to the sender.
    let _stamper = lan.stamper("client", &config("", TO_SERVER, false));
    ip("-n waypoint1 link set eth0 down");
    eventually("the error is relayed", || {
        let _ = send(&lan.client, SERVER);
        lan.routers[0].count("reasons", "relayed") > 0
    });
}

#[test]
fn a_user_registers_capabilities_for_destinations_of_ipv6() {
    let name = "stamping::ipv6::a_user_registers_capabilities_for_destinations_of_ipv6";
    if netns::enter_for_test(name).is_none() {
        return;
    }
    let lan = Lan::start("stamping-ipv6-registered", DECAPSULATE);
    lan.mint("own0.cap", 0, 21);
    lan.mint("own1.cap", 1, 22);
    let page =
        format!("[host]\naddress6 = \"{CLIENT}\"\nsocket = \"stamper.sock\"\n[stamper]\nroutes = []\nrules = []\n");
    let stamper = lan.stamper("client", &page);
    let stamp = |more: &[&str]| -> Child {
        let mut command = lan.client.command(env!("CARGO_BIN_EXE_wayleave"));
        command.args(["stamp", "--socket", "stamper.sock", "--capability", "own0.cap", "--capability", "own1.cap"]);
        let command = command.args(more).current_dir(&lan.folder.0).env("NO_COLOR", "1");
        command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs")
    };
    // A route that leaves less than IPv6 needs, and one of the other family.
    for (more, reason) in [
        (&["--to", "2001:db8:b0::/48", "--mtu", "1300"][..], "IPv6 needs 1280"),
        (&["--to", "2001:db8:b0::/48", "--to", "203.0.113.0/24"], "of two families"),
    ] {
        let output = stamp(more).wait_with_output().expect("it ends");
        let said = text(&output.stderr).replace("\n  │ ", " ");
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(!output.status.success() && said.contains(reason), "{reason}: {said}");
    }
    assert_eq!(lan.fetch(), [0, 0]);
    // Until its standard input ends.
    let mut registered = stamp(&["--to", "2001:db8:b0::/48"]);
    eventually("it is registered", || stamper.status()["rules"] == 1);
    lan.is_stamped();
    drop(registered.stdin.take());
    assert!(registered.wait().expect("it ends").success());
    eventually("the registration has ended", || stamper.status()["rules"] == 0);
    assert_eq!(lan.fetch(), [0, 0]);
}

#[test]
fn a_client_pays_for_replies_over_ipv6() {
    let name = "stamping::ipv6::a_client_pays_for_replies_over_ipv6";
    if netns::enter_for_test(name).is_none() {
        return;
    }
    // No waypoint takes the header off: both hosts have stampers.
    let lan = Lan::start("stamping-ipv6-replies", "");
    lan.mint("back.cap", 0, PAYER);
    let server = format!(
        "[host]\naddress6 = \"{SERVER}\"\nreplies = true\nreply_waypoints = [\"2001:db8:a0::/48\"]\n[stamper]\nroutes = []\nrules = []\n"
    );
    let server = lan.stamper("server", &server);
    let client = format!(
        "[host]\naddress6 = \"{CLIENT}\"\n[stamper]\nroutes = [{{ name = \"paid\", capabilities = [\"0.cap\", \"1.cap\"], \
         reply = \"back.cap\", reply_id = {DELEGATION} }}]\nrules = [{TO_SERVER}]\n"
    );
    // Without an address of the capability's family there is nobody to reply to.
    let mistaken = client.replace(&format!("address6 = \"{CLIENT}\""), "address = \"192.0.2.10\"");
    lan.folder.write("mistaken.toml", &mistaken);
    let refused = lan
        .client
        .command(env!("CARGO_BIN_EXE_wayleave"))
        .args(["run", "stamper", "--config", "mistaken.toml"])
        .current_dir(&lan.folder.0)
        .output()
        .expect("it runs");
    assert!(!refused.status.success() && text(&refused.stderr).contains("address6"), "{}", text(&refused.stderr));
    let client = lan.stamper("client", &client);

    lan.fetch();
    eventually("the server has a capability", || server.status()["replies"]["clients"] == 1);
    eventually("the client has the acknowledgement", || client.status()["replies"]["servers"] == 1);
    let before = settled(|| server.count("stamper", "stamped"));
    let [first, second] = lan.fetch();
    let stamped = settled(|| server.count("stamper", "stamped"));
    assert!(stamped - before > 10, "{}", server.status());
    assert!(first > second, "the first waypoint has replies too: {first} {second}");
    eventually("the books have the replies", || lan.delegated() == stamped);
    assert!(client.status()["delivered"].as_u64() >= Some(stamped), "{}", client.status());
    assert!(lan.peers.lock().expect("noted").iter().all(|peer| *peer == CLIENT));
    // The rule is for this client alone.
    let routes = lan.server.command("ip").args(["-6", "route", "show", "table", "22100"]).output().expect("ip runs");
    assert!(text(&routes.stdout).starts_with(&CLIENT.to_string()), "{}", text(&routes.stdout));
}

/// Interfaces that are there keep theirs.
#[test]
fn where_new_interfaces_have_no_ipv6_a_rule_without_destinations_is_for_the_other_family() {
    let name = "stamping::ipv6::where_new_interfaces_have_no_ipv6_a_rule_without_destinations_is_for_the_other_family";
    if netns::enter_for_test(name).is_none() {
        return;
    }
    let lan = Lan::start("stamping-ipv6-off", DECAPSULATE);
    let switch = || fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    lan.client.within(switch).expect("in its place").expect("a setting of its own");
    // Who asks for destinations of IPv6 is told.
    lan.folder.write("asked.toml", &config("", TO_SERVER, false));
    let refused = lan
        .client
        .command(env!("CARGO_BIN_EXE_wayleave"))
        .args(["run", "stamper", "--config", "asked.toml"])
        .current_dir(&lan.folder.0)
        .output()
        .expect("it runs");
    assert!(!refused.status.success() && text(&refused.stderr).contains("disable_ipv6"), "{}", text(&refused.stderr));
    // Whoever named no destinations has those that there are: of the route's family none.
    let stamper = lan.stamper("client", &config("", "{ route = \"paid\", user = 0 }", false));
    assert_eq!(lan.fetch(), [0, 0], "{}", stamper.status());
    let problems = stamper.status()["problems"].to_string();
    assert!(
        problems.contains("route paid: its waypoints have IPv6 addresses, and new interfaces have no IPv6"),
        "{problems}"
    );
}

#[test]
fn a_rule_without_destinations_fails_closed_in_both_families_and_neighbours_are_found() {
    let name = "stamping::ipv6::a_rule_without_destinations_fails_closed_in_both_families_and_neighbours_are_found";
    let Some(nft) = nft::fetched(name) else { return };
    if netns::enter_for_test(name).is_none() {
        return;
    }
    let lan = Lan::start("stamping-ipv6-closed", DECAPSULATE);
    nft::install(&nft, &lan.folder.0);
    let mut stamper = lan.stamper("client", &config("", "{ route = \"paid\", user = 0, otherwise = \"drop\" }", false));
    lan.is_stamped();
    // The route has no waypoint of IPv4.
    let dropped = || stamper.status()["dropped"]["family"].as_u64().expect("a count");
    let before = dropped();
    send(&lan.client, SERVER_V4).expect("the stamper drops it");
    eventually("it is counted", || dropped() > before);
    let why = text(&stamper.show(&["why", &SERVER_V4.to_string()]).stdout);
    assert!(why.contains("of the other address family"), "{why}");

    // Killed: the kernel drops both.
    stamper.kill();
    for to in [IpAddr::from(SERVER), SERVER_V4.into()] {
        assert_eq!(send(&lan.client, to).expect_err("dropped").kind(), ErrorKind::PermissionDenied, "{to}");
    }

    // For everybody's packets to everybody on the LAN: those by which neighbours are found leave.
    let page = fs::read_to_string(lan.folder.0.join("client.toml")).expect("its configuration");
    let status = page.split_once("[status]").expect("a section").1;
    let everybody = config("", "{ to = \"2001:db8::/32\", route = \"paid\", otherwise = \"drop\" }", false);
    lan.folder.write("client.toml", &format!("{everybody}[status]{status}"));
    stamper.start_process();
    lan.is_stamped();
    stamper.kill();
    assert_eq!(send(&lan.client, SERVER).expect_err("dropped").kind(), ErrorKind::PermissionDenied);
    send(&lan.client, SERVER_V4).expect("no rule is about it");
    let listening = lan.client.within(|| UdpSocket::bind((CLIENT, DISCARD))).expect("in its place").expect("a port");
    listening.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    ip("-n server -6 neigh flush dev eth0");
    send(&lan.server, CLIENT).expect("sent");
    let mut octets = [0; 16];
    let length = listening.recv(&mut octets).expect("the server finds the client");
    assert_eq!(&octets[..length], b"hello");
}

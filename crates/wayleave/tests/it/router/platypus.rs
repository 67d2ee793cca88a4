//! Platypus packets by IP, from a host through two waypoints to another, in a namespace that has all their addresses.
//!
//! PLA-11, sources, by process: a list whose first waypoint is the sender's own: dropped and counted.
//! PLA-11, sources, links: a waypoint as the outer source over two links: accepted where the link names it.
//! PLA-12, by process: a thousand wrong bindings by raw sockets: answers within the limit, none longer than its cause;
//! the others counted as unanswered.
//! PLA-12, relayed errors: an error about what was sent is relayed by a running router, forged ones are counted.
//! PLA, credit, by process: the interface behind a waypoint is down, and up again: who pays pays for what left, before
//! and after a restart.
//! PLA, revocations at a restart: a restart beside an older list, with state and without: refused by its number;
//! refused as too old, and nothing passes until a recent list is there; `show status` says so.
//! PLA-11, source prefixes, by process: two payers, of whom the second may not send from here: refused at the second waypoint, also
//! after a restart; without a list, what is bound is refused.
//! PLA, crash: `kill -9` under traffic: accounts never over; what is older than a second is kept.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use wayleave_core::UnixTime;
use wayleave_crypto::secret::Key128;
use wayleave_crypto::secret::Secret;
use wayleave_crypto::sign::SigningKey;
use wayleave_dataplane::platypus::revocation::{ListKind, Revocation, Sources, sign_list, sign_whole};
use wayleave_lab::netns::{self, Network, NetworkNamespace};
use wayleave_packet::platypus::header::{Capability, Carriage, DelegationId, Interval, Marks, Principal, Width};
use wayleave_packet::platypus::mint::{Hop, Nonce, Route, WaypointKey, WaypointKeys, encapsulate, epoch};
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::packets::ip::Ip;
use wayleave_runtime::packets::udp::{self, Intake};
use wayleave_runtime::packets::{Burst, Outgoing, Port, wait};

use super::common::{Folder, Router, eventually, free};

pub(crate) const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
pub(crate) const WAYPOINTS: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 51, 100, 1), Ipv4Addr::new(198, 51, 100, 2)];
pub(crate) const LAST: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
pub(crate) const KEYS: [[u8; 16]; 2] = [[1; 16], [2; 16]];
pub(crate) const PLATYPUS: u8 = 253;
pub(crate) const ICMP: u8 = 1;

/// What the test does as hosts: sends any packet, and receives those of one protocol at one address.
pub(crate) struct Socket(pub(crate) Ip, pub(crate) Burst);

impl Socket {
    pub(crate) fn new(address: Ipv4Addr, protocol: u8) -> Self {
        Self(Ip::open(address, protocol).expect("a raw socket"), Burst::default())
    }

    pub(crate) fn send(&mut self, packet: &[u8]) {
        let to = Ipv4Addr::new(packet[16], packet[17], packet[18], packet[19]);
        self.1.clear();
        assert!(self.1.push(packet, SocketAddr::from((to, 0))));
        let out = Outgoing { packet: 0, to: SocketAddr::from((to, 0)) };
        assert_eq!(self.0.send(&self.1, &[out]).expect("sent"), 1);
    }

    /// What comes within a time; all that waits at once.
    pub(crate) fn receive(&mut self, within: Duration) -> Vec<Vec<u8>> {
        wait([&self.0 as &dyn Port].into_iter(), within).expect("waited");
        let count = self.0.receive(&mut self.1).expect("received");
        (0..count).map(|packet| self.1.octets(packet).to_vec()).collect()
    }

    pub(crate) fn all(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        let begin = Instant::now();
        while all.len() < count && begin.elapsed() < Duration::from_secs(20) {
            all.extend(self.receive(Duration::from_millis(100)));
        }
        all
    }
}

/// An inner UDP packet of `length` octets through `waypoints`, the `number`-th of this second, for principal 7.
pub(crate) fn packet(waypoints: &[usize], number: u32, length: usize) -> Vec<u8> {
    packet_of((7, None), waypoints, number, length)
}

/// The same for any principal, and one of its delegations.
pub(crate) fn packet_of(payer: (u32, Option<u32>), waypoints: &[usize], number: u32, length: usize) -> Vec<u8> {
    let path: Vec<(usize, _)> = waypoints.iter().map(|which| (*which, payer)).collect();
    packet_by(&path, Marks::NONE, number, length)
}

/// The same with a payer for each waypoint, and marks of the last capability.
pub(crate) fn packet_by(path: &[(usize, (u32, Option<u32>))], marks: Marks, number: u32, length: usize) -> Vec<u8> {
    let now = unix_now();
    let interval = Interval::new(12).expect("in range");
    let hop = |(which, payer): &(usize, (u32, Option<u32>))| {
        let principal = Principal::new(payer.0).expect("24 bits");
        let key = WaypointKey::new(&Key128::new(KEYS[*which]));
        let (waypoint, epoch) = (IpAddr::V4(WAYPOINTS[*which]), epoch::epoch_at(interval, now));
        let delegation = payer.1.map(|id| {
            let (id, all) = (DelegationId::new(id).expect("24 bits"), "0.0.0.0/0".parse().expect("a prefix"));
            key.secret(waypoint, principal, interval, epoch).delegate(id, all).expect("of the family").delegation()
        });
        let keys = WaypointKeys::new(key);
        let marks = if path.last().is_some_and(|(last, _)| last == which) { marks } else { Marks::NONE };
        let capability = Capability { waypoint, principal, interval, epoch, marks, delegation, width: Width::Full };
        Hop { key: keys.stamp_key(&capability).expect("one key for ever"), capability }
    };
    let hops: Vec<Hop> = path.iter().map(hop).collect();
    let nonce = Nonce::new(now, number);
    let route = Route { hops: &hops, nonce, sealed: false, reply_option: &[], carriage: Carriage::Ip };
    let mut inner = vec![0; length];
    inner[0] = 0x45;
    inner[2..4].copy_from_slice(&(length as u16).to_be_bytes());
    (inner[8], inner[9]) = (64, 17);
    inner[12..16].copy_from_slice(&HOST.octets());
    inner[16..20].copy_from_slice(&LAST.octets());
    let mut out = Vec::new();
    encapsulate(&inner, &route, &mut out).expect("a sound packet");
    out
}

/// Makes the checksum of an IPv4 header right.
fn write_checksum(packet: &mut [u8]) {
    packet[10..12].fill(0);
    let sum: u32 = packet[..20].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Gives the namespace all addresses.
pub(crate) fn lay_out() -> Folder {
    let network = Network::new().expect("a network");
    for address in [HOST, WAYPOINTS[0], WAYPOINTS[1], LAST] {
        let line = ["addr", "add", &format!("{address}/32"), "dev", "lo"];
        assert!(Command::new("ip").args(line).status().expect("ip").success());
    }
    let folder = Folder(network.state().join("routers"));
    std::fs::create_dir_all(&folder.0).expect("a folder");
    folder
}

pub(crate) fn config(which: usize, more: &str) -> String {
    format!(
        "[forwarding]\nformat = \"platypus\"\nkeys = \"{which}.key\"\nstate = \"{which}.redb\"\n[platypus]\n\
         waypoints = [\"{}\"]\npeer_waypoints = [\"{}/32\"]\nreplay_capacity = 100000\n{more}",
        WAYPOINTS[which],
        WAYPOINTS[1 - which]
    )
}

pub(crate) fn start(folder: &Folder, which: usize, more: &str) -> Router {
    folder.keys(&format!("{which}.key"), "platypus", &[(0, KEYS[which])]);
    Router::start(folder, &format!("waypoint{which}"), NetworkNamespace::Own, &config(which, more))
}

#[test]
fn a_large_filter_has_huge_pages_where_the_system_gives_them() {
    if netns::enter_for_test("router::platypus::a_large_filter_has_huge_pages_where_the_system_gives_them").is_none()
        || !std::path::Path::new("/sys/kernel/mm/transparent_hugepage/enabled").exists()
    {
        return;
    }
    let folder = lay_out();
    folder.keys("0.key", "platypus", &[(0, KEYS[0])]);
    let large = config(0, "").replace("replay_capacity = 100000", "replay_capacity = 1000000");
    let router = Router::start(&folder, "waypoint0", NetworkNamespace::Own, &large);
    let smaps = format!("/proc/{}/smaps", router.child.as_ref().expect("running").id());
    let smaps = std::fs::read_to_string(smaps).expect("the process");
    // The flag `hg`: the system was asked (proc_pid_smaps(5)).
    let is_advised = |line: &str| line.starts_with("VmFlags:") && line.split_whitespace().any(|flag| flag == "hg");
    assert!(smaps.lines().any(is_advised), "{smaps}");
}

fn account(router: &Router) -> u64 {
    let accounts = router.json("accounts");
    let packets = |row: &serde_json::Value| row["packets"].as_str()?.parse::<u64>().ok();
    accounts["accounts"].as_array().into_iter().flatten().filter_map(packets).sum()
}

#[test]
fn two_waypoints_rewrite_and_answer_in_icmp() {
    if netns::enter_for_test("router::platypus::two_waypoints_rewrite_and_answer_in_icmp").is_none() {
        return;
    }
    let folder = lay_out();
    let (first, second) = (start(&folder, 0, ""), start(&folder, 1, "answers_per_second = 20\n"));
    let (mut host, mut last) = (Socket::new(HOST, ICMP), Socket::new(LAST, PLATYPUS));
    for number in 0..50 {
        host.send(&packet(&[0, 1], number, 20 + number as usize * 20));
    }
    let arrived = last.all(50);
    assert_eq!(arrived.len(), 50, "{} {}", first.status(), second.status());
    for packet in &arrived {
        // The last waypoint is the outer source, the final destination the outer destination, two hops less to live.
        assert_eq!((&packet[12..16], &packet[16..20]), (&WAYPOINTS[1].octets()[..], &LAST.octets()[..]));
        assert_eq!(packet[8], 62);
    }
    for router in [&first, &second] {
        assert_eq!(router.count("decided", "forwarded"), 50);
        eventually("all are in the accounts", || account(router) == 50);
    }
    // The host's own address as the first waypoint, so that it could name any original source: no waypoint of a peer's.
    let mut laundered = packet(&[0, 1], 500, 100);
    laundered[16..20].copy_from_slice(&WAYPOINTS[1].octets());
    laundered[40..44].copy_from_slice(&HOST.octets());
    laundered[22] = 7;
    host.send(&laundered);
    eventually("it is counted", || second.count("reasons", "foreign-waypoint") == 1);
    let is_told = |event: &serde_json::Value| {
        event["what"]["event"] == "foreign-waypoint" && event["what"]["waypoint"] == HOST.to_string()
    };
    eventually("the operator is told", || {
        second.json("events")["events"].as_array().into_iter().flatten().any(is_told)
    });
    assert_eq!(second.count("decided", "forwarded"), 50);
    // A replay passes nobody; a wrong binding is told to the original source, who hears of it through the first waypoint.
    let replayed = packet(&[0], 1_000, 100);
    host.send(&replayed);
    host.send(&replayed);
    eventually("the replay is counted", || first.count("reasons", "replayed") == 1);
    let begin = Instant::now();
    let mut forged = packet(&[1], 2_000, 200);
    *forged.last_mut().expect("octets") ^= 1;
    for _ in 0..1_000 {
        host.send(&forged);
    }
    eventually("all forgeries are counted", || second.count("reasons", "binding") == 1_000);
    let (answered, unanswered) = (second.count("decided", "answered"), second.count("decided", "unanswered"));
    assert_eq!(answered + unanswered, 1_000);
    // Twenty at once, and twenty for each second that this took.
    assert!(answered >= 1 && answered <= 40 + 20 * begin.elapsed().as_secs(), "{answered}");
    let answers = host.all(answered as usize);
    assert!(!answers.is_empty());
    for answer in &answers {
        assert_eq!(answer[9], ICMP);
        assert!(answer.len() <= forged.len(), "{} octets answer {}", answer.len(), forged.len());
        assert_eq!(answer[20], 3, "destination unreachable");
    }
}

/// Over a link, the other end of which writes any outer source: only what the link names is a waypoint there.
#[test]
fn a_waypoint_is_behind_a_link_only_if_the_link_names_it() {
    if netns::enter_for_test("router::platypus::a_waypoint_is_behind_a_link_only_if_the_link_names_it").is_none() {
        return;
    }
    let folder = lay_out();
    let ends = [[free(), free()], [free(), free()]];
    let link =
        |[here, there]: &[String; 2], more: &str| format!("[[link]]\nlocal = \"{here}\"\nremote = \"{there}\"\n{more}");
    let named = format!("peer_waypoints = [\"{}/32\"]\n", WAYPOINTS[0]);
    let router = start(&folder, 1, &(link(&ends[0], "") + &link(&ends[1], &named)));
    let mut last = Socket::new(LAST, PLATYPUS);
    let mut sent = 0;
    let mut send = |[here, there]: &[String; 2], begins_here: bool| {
        sent += 1;
        let mut packet = packet(if begins_here { &[1] } else { &[0, 1] }, sent, 100);
        if !begins_here {
            packet[12..16].copy_from_slice(&WAYPOINTS[0].octets());
            packet[16..20].copy_from_slice(&WAYPOINTS[1].octets());
            packet[22] = 7;
            write_checksum(&mut packet);
        }
        let (from, to) = (there.parse().expect("an address"), here.parse().expect("an address"));
        let mut neighbor = udp::open(from, 1, Intake::Single, None).expect("a socket").data.remove(0);
        let mut burst = Burst::default();
        assert!(burst.push(&packet, to));
        assert_eq!(neighbor.send(&burst, &[Outgoing { packet: 0, to }]).expect("sent"), 1);
    };
    send(&ends[0], false);
    eventually("it is refused", || router.count("reasons", "foreign-waypoint") == 1);
    let is_told = |event: &serde_json::Value| {
        event["what"]["event"] == "foreign-waypoint" && event["what"]["link"] == ends[0][1].as_str()
    };
    eventually("the operator is told of the link", || {
        router.json("events")["events"].as_array().into_iter().flatten().any(is_told)
    });
    send(&ends[1], false);
    assert_eq!(last.all(1).len(), 1, "{}", router.status());
    // The peer leaves its waypoint out of the list; whoever is behind the other link is none.
    send(&ends[1], true);
    eventually("it is refused", || router.count("reasons", "link-source") == 1);
    send(&ends[0], true);
    assert_eq!(last.all(1).len(), 1, "{}", router.status());
    assert_eq!(router.count("decided", "forwarded"), 2);
}

#[test]
fn an_error_about_what_was_sent_is_relayed_and_forged_ones_are_counted() {
    let test = "router::platypus::an_error_about_what_was_sent_is_relayed_and_forged_ones_are_counted";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let folder = lay_out();
    let router = start(&folder, 0, "");
    let (mut host, mut last) = (Socket::new(HOST, ICMP), Socket::new(LAST, PLATYPUS));
    host.send(&packet(&[0], 1, 1_000));
    let sent = last.all(1).swap_remove(0);
    // What a router on the way quotes: as much as 576 octets hold (RFC 1812).
    let error = |quoted: &[u8]| {
        let mut out = vec![0; 20];
        let total = (20 + 8 + quoted.len()) as u16;
        (out[0], out[8], out[9]) = (0x45, 64, ICMP);
        out[2..4].copy_from_slice(&total.to_be_bytes());
        out[12..16].copy_from_slice(&LAST.octets());
        out[16..20].copy_from_slice(&WAYPOINTS[0].octets());
        out.extend([3, 1, 0, 0, 0, 0, 0, 0]);
        out.extend(quoted);
        out
    };
    last.send(&error(&sent[..548]));
    let relayed = host.all(1).swap_remove(0);
    assert_eq!((&relayed[12..16], &relayed[20..22]), (&WAYPOINTS[0].octets()[..], &[3, 1][..]));
    // It quotes what the host itself has sent.
    assert_eq!((&relayed[40..44], &relayed[44..48]), (&HOST.octets()[..], &LAST.octets()[..]));
    // Another nonce, another binding, a connection of somebody else's; too short to tell; stamped, but never sent.
    let octet = |at: usize| {
        let mut forged = sent.clone();
        forged[at] ^= 1;
        forged[..548].to_vec()
    };
    let forged = [
        octet(20 + 19),
        octet(20 + 20 + 12),
        sent[..20 + 20 + 12 + 7].to_vec(),
        packet(&[0], 2, 1_000)[..548].to_vec(),
    ];
    for quoted in &forged {
        // The last one never left, and has another outer source.
        last.send(&error(quoted));
    }
    eventually("three are forged", || router.count("reasons", "unrelated") == 3);
    eventually("one is about nothing of ours", || router.count("reasons", "malformed") == 1);
    assert_eq!(router.count("reasons", "relayed"), 1);
    assert!(host.receive(Duration::from_millis(200)).is_empty());
}

/// The way to the packets' destination is an interface that goes down and comes back.
#[test]
fn what_could_not_be_sent_is_credited_to_its_payer() {
    if netns::enter_for_test("router::platypus::what_could_not_be_sent_is_credited_to_its_payer").is_none() {
        return;
    }
    let folder = lay_out();
    let ip = |line: &str| {
        assert!(Command::new("ip").args(line.split(' ')).status().expect("ip").success(), "ip {line}");
    };
    ip(&format!("addr del {LAST}/32 dev lo"));
    ip("link add out0 type veth peer name out1");
    ip("addr add 203.0.113.1/24 dev out0");
    ip("link set out1 up");
    // Nobody answers there: what leaves is what the system took.
    let up = || {
        ip("link set out0 up");
        ip(&format!("neigh replace {LAST} lladdr 02:00:00:00:00:09 dev out0"));
    };
    up();
    let mut router = start(&folder, 0, "");
    let mut host = Socket::new(HOST, ICMP);
    let mut number = 0;
    let mut send = |principal: u32, count: u64| {
        for _ in 0..count {
            number += 1;
            host.send(&packet_of((principal, None), &[0], number, 100));
        }
    };
    let credited = |router: &Router| router.status()["accounts"]["credited"]["packets"].clone();
    let of = |router: &Router, principal: u32| {
        let status = router.status();
        let rows = status["payers"].as_array().cloned().unwrap_or_default();
        let row = rows.into_iter().find(|row| row["principal"] == principal).unwrap_or_default();
        (row["accepted"]["packets"].clone(), row["credited"]["packets"].clone())
    };
    send(7, 5);
    eventually("those that left are in the accounts", || account(&router) == 5);
    ip("link set out0 down");
    send(7, 4);
    send(9, 3);
    eventually("those that could not be sent are credited", || credited(&router) == "7");
    assert_eq!(router.count("decided", "forwarded"), 12, "{}", router.status());
    up();
    send(9, 2);
    eventually("what leaves counts again", || account(&router) == 7);
    assert_eq!((of(&router, 7), of(&router, 9)), ((json!("5"), json!("4")), (json!("2"), json!("3"))));
    // What was written down is what left.
    std::thread::sleep(Duration::from_secs(1));
    router.kill();
    router.start_process();
    assert_eq!(account(&router), 7);
    assert_eq!(of(&router, 7), (json!("5"), json!("0")));
}

/// The filter is lost with the process; what it knew does not pass again.
#[test]
fn a_packet_that_passed_before_a_crash_does_not_pass_after_it() {
    if netns::enter_for_test("router::platypus::a_packet_that_passed_before_a_crash_does_not_pass_after_it").is_none() {
        return;
    }
    let folder = lay_out();
    let mut router = start(&folder, 0, "freshness_secs = 5\n");
    let (mut host, mut last) = (Socket::new(HOST, ICMP), Socket::new(LAST, PLATYPUS));
    let passed = packet(&[0], 1, 100);
    host.send(&passed);
    assert_eq!(last.all(1).len(), 1, "{}", router.status());
    router.kill();
    router.start_process();
    host.send(&passed);
    // On a machine that is very slow it is stale by now.
    let refused = || router.count("reasons", "before-start") + router.count("reasons", "stale");
    eventually("the copy is counted", || refused() == 1);
    host.send(&packet(&[0], 2, 100));
    assert_eq!(last.all(1).len(), 1, "{}", router.status());
    assert_eq!(router.count("decided", "forwarded"), 1);
}

/// A message goes to the thread of its first packet; the copies behind the first packets are of one packet.
#[test]
fn one_of_several_copies_passes_whichever_threads_receive_them() {
    if netns::enter_for_test("router::platypus::one_of_several_copies_passes_whichever_threads_receive_them").is_none()
    {
        return;
    }
    const MESSAGES: u32 = 200;
    let folder = lay_out();
    let [here, there] = [free(), free()];
    folder.keys("0.key", "platypus", &[(0, KEYS[0])]);
    let text = config(0, &format!("[[link]]\nlocal = \"{here}\"\nremote = \"{there}\"\n"));
    let text = text.replace("[platypus]", "workers = 4\n[platypus]");
    let router = Router::start(&folder, "threads", NetworkNamespace::Own, &text);
    let mut last = Socket::new(LAST, PLATYPUS);
    let (from, to) = (there.parse().expect("an address"), here.parse().expect("an address"));
    let mut neighbor = udp::open(from, 1, Intake::Single, None).expect("a socket").data.remove(0);
    let copied = packet(&[0], MESSAGES, 100);
    for number in 0..MESSAGES {
        // The outer source is no part of what the binding covers, and here names the thread; the waypoint looks at it
        // only after it has found the thread. Such a packet is refused, and the copy behind it is not.
        let mut first = packet(&[0], number, 100);
        first[15] = 128 + (number % 64) as u8;
        let mut burst = Burst::default();
        assert!(burst.push(&first, to) && burst.push(&copied, to));
        let out = [0, 1].map(|packet| Outgoing { packet, to });
        assert_eq!(neighbor.send(&burst, &out).expect("sent"), 2);
    }
    eventually("all copies are decided", || {
        router.count("decided", "forwarded") + router.count("reasons", "replayed") == u64::from(MESSAGES)
    });
    assert_eq!(router.count("decided", "forwarded"), 1, "{}", router.status());
    assert_eq!(last.all(1).len(), 1);
    eventually("it is in the accounts", || account(&router) == 1);
    // Each message came whole to its thread, and several threads had some: so each of these met copies.
    let threads = router.status()["by_thread"].clone();
    let received: Vec<u64> =
        threads.as_array().into_iter().flatten().filter_map(|thread| thread["received"].as_u64()).collect();
    assert!(received.iter().all(|count| count % 2 == 0), "{threads}");
    assert!(received.iter().filter(|count| **count > 0).count() > 1, "{threads}");
}

#[test]
fn counters_are_never_too_high_after_a_kill_and_what_was_journalled_is_not_lost() {
    if netns::enter_for_test(
        "router::platypus::counters_are_never_too_high_after_a_kill_and_what_was_journalled_is_not_lost",
    )
    .is_none()
    {
        return;
    }
    let folder = lay_out();
    let mut router = start(&folder, 0, "");
    let mut host = Socket::new(HOST, ICMP);
    let _last = Socket::new(LAST, PLATYPUS);
    let (mut sent, mut number) = (0, 0);
    for _ in 0..3 {
        let before = account(&router);
        assert!(before <= sent, "{before} of {sent}");
        for _ in 0..200 {
            host.send(&packet(&[0], number, 100));
            number += 1;
        }
        eventually("all are in the accounts", || account(&router) == before + 200);
        // What is older than a second is durable.
        std::thread::sleep(Duration::from_secs(1));
        for _ in 0..100 {
            host.send(&packet(&[0], number, 100));
            number += 1;
        }
        sent = before + 300;
        router.kill();
        router.start_process();
        let restored = account(&router);
        assert!((before + 200..=sent).contains(&restored), "{restored} of {}..={sent}", before + 200);
        sent = restored;
    }
}

#[test]
fn a_list_of_revocations_is_taken_over_and_an_older_one_is_not() {
    if netns::enter_for_test("router::platypus::a_list_of_revocations_is_taken_over_and_an_older_one_is_not").is_none()
    {
        return;
    }
    let folder = lay_out();
    let signer = SigningKey::from_seed(&Secret::new([5; 32]));
    let key: String = signer.verifying_key().to_bytes().iter().map(|octet| format!("{octet:02x}")).collect();
    let publish = |sequence, entries: &[Revocation]| {
        let (list, signature) = sign_list(&signer, sequence, unix_now(), ListKind::Whole, entries);
        std::fs::write(folder.0.join("next"), [&signature[..], &list].concat()).expect("written");
        std::fs::rename(folder.0.join("next"), folder.0.join("revoked")).expect("renamed");
    };
    let more = format!("revocations = {{ file = \"revoked\", key = \"ed25519:{key}\" }}\n");
    let mut router = start(&folder, 0, &more);
    let (mut host, mut last) = (Socket::new(HOST, ICMP), Socket::new(LAST, PLATYPUS));
    let mut number = 0;
    let mut send = |host: &mut Socket| {
        number += 1;
        host.send(&packet(&[0], number, 100));
    };
    send(&mut host);
    eventually("nothing passes without a list", || router.count("reasons", "revocations-unknown") == 1);
    publish(1, &[]);
    eventually("the list is there", || router.log().contains("revocations taken over"));
    send(&mut host);
    assert_eq!(last.all(1).len(), 1);
    publish(2, &[Revocation { principal: Principal::new(7).expect("24 bits"), delegation: None, epoch: None }]);
    eventually("the principal is revoked", || {
        send(&mut host);
        router.count("reasons", "revoked") > 0
    });
    // Not even after a restart is an older list taken.
    router.kill();
    publish(1, &[]);
    router.start_process();
    eventually("the older list is refused", || router.log().contains("which was in force before"));
    send(&mut host);
    eventually("nothing passes", || router.count("reasons", "revocations-unknown") > 0);
}

/// Threat P10 without state, or with a new state file: nobody remembers which list was in force.
#[test]
fn a_router_without_record_of_the_last_list_takes_only_one_signed_recently_and_says_so() {
    let test = "router::platypus::a_router_without_record_of_the_last_list_takes_only_one_signed_recently_and_says_so";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let folder = lay_out();
    let signer = SigningKey::from_seed(&Secret::new([5; 32]));
    let key: String = signer.verifying_key().to_bytes().iter().map(|octet| format!("{octet:02x}")).collect();
    let hour = 3_600_000_000;
    let publish = |sequence, issued| {
        let entry = Revocation { principal: Principal::new(7).expect("24 bits"), delegation: None, epoch: None };
        let entries = if sequence == 2 { vec![entry] } else { Vec::new() };
        let (list, signature) = sign_list(&signer, sequence, issued, ListKind::Whole, &entries);
        std::fs::write(folder.0.join("next"), [&signature[..], &list].concat()).expect("written");
        std::fs::rename(folder.0.join("next"), folder.0.join("revoked")).expect("renamed");
    };
    folder.keys("0.key", "platypus", &[(0, KEYS[0])]);
    let list =
        format!("accounts = 0\nrevocations = {{ file = \"revoked\", key = \"ed25519:{key}\", recent_secs = 1800 }}\n");
    let with_state = config(0, &list);
    for (name, has_state) in [("stateless", false), ("emptied", true)] {
        // List 1 revokes nothing, list 2, an hour later, the principal of all packets here.
        let now = unix_now();
        publish(2, now);
        let text = if has_state { with_state.clone() } else { with_state.replace("state = \"0.redb\"\n", "") };
        let mut router = Router::start(&folder, name, NetworkNamespace::Own, &text);
        let list = || router.status()["revocations"].clone();
        eventually("the list is in force", || list()["sequence"] == 2);
        if has_state {
            eventually("its number is written down", || list()["durable"] == 2);
        }
        let durable = if has_state { serde_json::json!(2) } else { serde_json::Value::Null };
        let expected = serde_json::json!({
            "sequence": 2, "issued": now.secs(), "entries": 1, "sources": 0, "state": has_state, "durable": durable,
            "refused": null
        });
        assert_eq!(list(), expected);
        assert_eq!(router.log().contains("no `state` in [forwarding]"), !has_state, "{}", router.log());
        // While it runs, an older list is refused by its number.
        publish(1, UnixTime(now.0 - hour));
        eventually("the older list is refused", || list()["refused"].is_string());
        assert_eq!(list()["sequence"], 2);
        // After the restart nobody knows the number, and the list is too old to be taken for the last one.
        router.kill();
        if has_state {
            std::fs::remove_file(folder.0.join("0.redb")).expect("the state file");
        }
        router.start_process();
        let list = || router.status()["revocations"].clone();
        eventually("the older list is refused again", || list()["refused"].is_string());
        let refused = list()["refused"].as_str().expect("a reason").to_owned();
        assert!(refused.contains("no record of the list that was in force before"), "{refused}");
        assert_eq!(list()["sequence"], serde_json::Value::Null);
        let mut host = Socket::new(HOST, ICMP);
        host.send(&packet(&[0], 1, 100));
        eventually("nothing passes", || router.count("reasons", "revocations-unknown") == 1);
        // A list signed now is taken, with a number of its own.
        publish(3, unix_now());
        eventually("a recent list is taken", || list()["sequence"] == 3);
        assert_eq!(list()["refused"], serde_json::Value::Null);
        router.kill();
    }
}

/// An original source is judged by the payer's prefixes wherever the packet comes from, and by the last list that was heard of.
#[test]
fn a_payers_sources_hold_at_every_place_and_through_a_restart_without_the_key_server() {
    let test = "router::platypus::a_payers_sources_hold_at_every_place_and_through_a_restart_without_the_key_server";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let folder = lay_out();
    let signer = SigningKey::from_seed(&Secret::new([5; 32]));
    let key: String = signer.verifying_key().to_bytes().iter().map(|octet| format!("{octet:02x}")).collect();
    let publish = |sequence, sources: &[Sources]| {
        let (list, signature) = sign_whole(&signer, sequence, unix_now(), &[], sources);
        std::fs::write(folder.0.join("next"), [&signature[..], &list].concat()).expect("written");
        std::fs::rename(folder.0.join("next"), folder.0.join("revoked")).expect("renamed");
    };
    let more = format!("revocations = {{ file = \"revoked\", key = \"ed25519:{key}\" }}\n");
    publish(1, &[]);
    let (first, mut second) = (start(&folder, 0, ""), start(&folder, 1, &more));
    let mut host = Socket::new(HOST, ICMP);
    let mut number = 0;
    let mut send = |payer: u32, marks: Marks| {
        number += 1;
        host.send(&packet_by(&[(0, (8, None)), (1, (payer, None))], marks, number, 100));
    };
    eventually("packets of both pass", || {
        send(7, Marks::NONE);
        send(8, Marks::NONE);
        second.count("decided", "forwarded") >= 2
    });
    // Where principal 7 may send from, this host is not.
    let elsewhere = vec!["10.0.0.0/8".parse().expect("a prefix")];
    let principal = Principal::new(7).expect("24 bits");
    publish(2, &[Sources { principal, delegation: None, delegates_any: false, prefixes: elsewhere }]);
    eventually("the sources are in force", || second.status()["revocations"]["sources"] == 1);
    let before = (first.count("decided", "forwarded"), second.count("decided", "forwarded"));
    send(7, Marks::NONE);
    eventually("it is refused at the second waypoint", || second.count("reasons", "sources") == 1);
    eventually("the first forwards for its own payer", || first.count("decided", "forwarded") == before.0 + 1);
    send(8, Marks::NONE);
    eventually("others pass", || second.count("decided", "forwarded") == before.1 + 1);
    // Cut off: nothing but what it has on its disk.
    second.kill();
    second.start_process();
    eventually("it is refused again", || {
        send(7, Marks::BOUND);
        second.count("reasons", "sources") > 0
    });
    eventually("others pass", || {
        send(8, Marks::NONE);
        second.count("decided", "forwarded") > 0
    });
    assert_eq!(second.count("reasons", "sources-unknown"), 0);
    // Cut off before it heard of them, with no list at all: whose sources it must know is refused.
    second.kill();
    std::fs::remove_file(folder.0.join("revoked")).expect("the list");
    std::fs::remove_file(folder.0.join("1.redb")).expect("the state");
    let more = more.replace(" }", ", required = false }");
    let second = start(&folder, 1, &more);
    eventually("it is refused", || {
        send(7, Marks::BOUND);
        second.count("reasons", "sources-unknown") > 0
    });
    assert_eq!(second.count("decided", "forwarded"), 0);
    eventually("others pass", || {
        send(8, Marks::NONE);
        second.count("decided", "forwarded") > 0
    });
    assert_eq!(second.count("reasons", "sources"), 0);
}

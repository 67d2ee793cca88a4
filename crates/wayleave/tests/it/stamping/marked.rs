//! Packets whose mark is set by the system's packet filter, as the guide has it: the host's own where they leave, and those of other hosts
//! where they arrive.

use wayleave_lab::netns::{self, Rung};

use super::nft;
use super::world::{self, PRINCIPALS, World, balance, text};
use crate::guide::snippets;
use crate::router::platypus::{HOST, LAST};

const MARK: u32 = 77;
const USER: u32 = 4_711;

/// For all destinations: the waypoints are among them.
fn rule() -> String {
    format!("{{ to = \"0.0.0.0/0\", route = \"paid\", mark = {MARK} }}")
}

/// The guide's table, which marks packets to port 80, with another condition in its place.
fn table(condition: &str) -> String {
    let tables = snippets("stamper.md", "text").into_iter().filter(|text| text.starts_with("table ip marks"));
    let [table] = tables.collect::<Vec<_>>().try_into().expect("one table");
    table.replace("tcp dport 80", condition)
}

#[test]
fn nftables_marks_a_hosts_own_packets_by_port_or_user_and_these_alone_are_stamped() {
    let name = "stamping::marked::nftables_marks_a_hosts_own_packets_by_port_or_user_and_these_alone_are_stamped";
    let Some(nft) = nft::fetched(name) else { return };
    let Some(rung) = world::enter(name) else { return };
    let world = World::start("stamping-marked", false);
    let stamper = world.stamper(&format!("address = \"{HOST}\"\n"), &rule());
    let mark = |condition: &str| nft::set(&nft, &world.site.client, &table(condition));
    let unmark = || nft::set(&nft, &world.site.client, "delete table ip marks");
    let is_stamped = |user: Option<u32>| {
        let [first, second] = world.fetch(user);
        assert!(first > 10 && first == second, "{first} {second} {}", stamper.status());
    };
    assert_eq!(world.fetch(None), [0, 0], "nobody marks");
    mark("tcp dport 81");
    assert_eq!(world.fetch(None), [0, 0], "another port");
    unmark();
    mark("tcp dport 80");
    is_stamped(None);
    unmark();
    assert_eq!(world.fetch(None), [0, 0], "nobody marks any more");
    // All packets of the user that the stamper runs as: what has left the stamper does not come back to it.
    mark("meta skuid 0");
    is_stamped(None);
    unmark();
    if rung == Rung::Root {
        mark(&format!("meta skuid {USER}"));
        assert_eq!(world.fetch(None), [0, 0], "another user");
        is_stamped(Some(USER));
    } else {
        netns::skipped("marks by user: the namespace has one user only, since this test does not run as root");
    }
    assert_eq!(stamper.count("left", "stamped"), 0);
    assert!(world.site.peers.lock().expect("noted").iter().all(|peer| *peer == HOST), "the client's own address");
    balance(&world);
    let why = stamper.show(&["why", &LAST.to_string()]);
    assert!(text(&why.stdout).contains(&format!("from mark {MARK}: is stamped")), "{}", text(&why.stdout));
}

/// The machine that forwards has no `sources`: what others send leaves as it came, but for what is marked.
#[test]
fn nftables_marks_packets_of_other_hosts_where_they_arrive_and_these_alone_are_stamped() {
    let name = "stamping::marked::nftables_marks_packets_of_other_hosts_where_they_arrive_and_these_alone_are_stamped";
    let Some(nft) = nft::fetched(name) else { return };
    if world::enter(name).is_none() {
        return;
    }
    let world = World::start("stamping-marked-forwarded", true);
    let stamper = world.stamper("", &rule());
    assert_eq!(world.fetch(None), [0, 0], "nobody marks");
    nft::set(&nft, &world.site.stamping, &table("tcp dport 80"));
    let [first, second] = world.fetch(None);
    assert!(first > 10 && first == second, "{first} {second} {}", stamper.status());
    assert!(world.site.peers.lock().expect("noted").iter().all(|peer| *peer == HOST), "the client's own address");
    balance(&world);
    for (which, principal) in PRINCIPALS.into_iter().enumerate() {
        assert_eq!(world.books(which), [(u64::from(principal), world.forwarded(which))]);
    }
}

/// Sockets of a host for packets with a header (IP protocol 253).
fn sockets(world: &World) -> usize {
    let output = world.site.client.command("cat").arg("/proc/net/raw").output().expect("cat runs");
    let is_one = |line: &&str| line.split_whitespace().nth(1).is_some_and(|address| address.ends_with(":00FD"));
    text(&output.stdout).lines().filter(is_one).count()
}

/// An address alone takes no header off: there is a socket for such packets only where somebody asked for them.
#[test]
fn a_host_has_a_socket_for_packets_with_a_header_only_if_it_was_asked_for() {
    let name = "stamping::marked::a_host_has_a_socket_for_packets_with_a_header_only_if_it_was_asked_for";
    if world::enter(name).is_none() {
        return;
    }
    let world = World::start("stamping-socket", false);
    for (more, expected) in [("", 0), ("receive_from = [\"198.51.100.0/24\"]\n", 1), ("", 0)] {
        let stamper = world.stamper(&format!("address = \"{HOST}\"\n{more}"), &rule());
        assert_eq!(sockets(&world), expected, "{more}");
        drop(stamper);
    }
}

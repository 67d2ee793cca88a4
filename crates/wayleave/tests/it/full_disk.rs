//! The disk of a party is full: it refuses the peer party meanwhile, and goes on by itself with space.
//!
//! Real processes of the binary, real TLS, real BGP sessions on loopback. The state of one party lies on a small disk of its own.
//!
//! SIX, full disk: the disk of either party is full while routes change: its status says so and that of the peer party
//! that the link is down; it refuses the peer party again and again and does not end, and routers keep what they have;
//! with space all goes on in the same processes, and no route is lost.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use wayleave_bgp::LargeCommunity;
use wayleave_core::Prefix;
use wayleave_lab::demo::exchange::DemoExchange;
use wayleave_lab::demo::layout::Layout;
use wayleave_lab::netns::enter_for_test;
use wayleave_lab::process::wait_until;
use wayleave_lab::table::{Announcement, LearnedRoute};

use crate::common::screen::status;

const TIMEOUT: Duration = Duration::from_secs(90);
/// Refused links of the peer party, before there is space again.
const ATTEMPTS: usize = 5;
/// Routes of which a full disk takes some at most.
const BURST: usize = 500;
/// What is announced only while the disk is full.
const NEW: &str = "198.51.100.0/26";
/// What a party's log has of a link that it refuses, and of a session with the peer party.
const REFUSED: &str = "reason=this party cannot write its state file";
const AGREED: &str = "both parties store the same objects";

/// An exchange of which one party's state lies on a disk of 8 MiB.
struct SmallDisk {
    exchange: DemoExchange,
    state: PathBuf,
    /// That party, and the other one, as indices.
    party: usize,
    peer: usize,
}

impl SmallDisk {
    fn start(number: u8) -> Self {
        assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().expect("ip runs").success());
        let state = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("full-disk-{number}"));
        let _ = fs::remove_dir_all(&state);
        fs::create_dir_all(state.join("disk")).expect("a folder");
        // The mount is that of this test's own namespace, and ends with it.
        let mount = ["-t", "tmpfs", "-o", "size=8m", "tmpfs", "disk"];
        assert!(Command::new("mount").args(mount).current_dir(&state).status().expect("mount runs").success());
        let layout = Layout::simulated(&state).expect("free ports");
        let binary = Path::new(env!("CARGO_BIN_EXE_wayleave"));
        let mut exchange = DemoExchange::new(layout, binary, None).expect("keys and configurations");
        let configuration = exchange.files.party(number);
        let text = fs::read_to_string(&configuration).expect("a configuration");
        let file = format!("/party{number}.redb\"");
        assert!(text.contains(&file), "{text}");
        fs::write(configuration, text.replace(&file, &format!("/disk{file}"))).expect("written");
        for party in &mut exchange.parties {
            party.role.start().expect("a party that starts");
        }
        for member in &mut exchange.members {
            member.role.start().expect("a member that starts");
            member.router.start().expect("a speaker");
        }
        let party = usize::from(number) - 1;
        Self { exchange, state, party, peer: 1 - party }
    }

    /// What fills the disk.
    fn other(&self) -> PathBuf {
        self.state.join("disk/other")
    }

    fn fill(&self) {
        let mut file = File::create(self.other()).expect("created");
        let full = loop {
            if let Err(error) = file.write_all(&[7; 4_096]) {
                break error;
            }
        };
        assert_eq!(full.kind(), ErrorKind::StorageFull);
    }

    /// Makes a member announce exactly these prefixes.
    fn announce(&mut self, member: usize, prefixes: &[String]) {
        let name = self.exchange.members[member].at.name.clone();
        let routes: Vec<Announcement> = prefixes.iter().map(|prefix| route(prefix)).collect();
        self.exchange.announce(&name, &routes).expect("a router that takes routes");
    }

    fn settle(&mut self, when: &str) {
        let settled = self.exchange.settle();
        assert!(settled.is_ok(), "{when}: {settled:?}; {}", self.ends());
    }

    fn eventually(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let held = wait_until(TIMEOUT, || holds(self).then_some(()));
        assert!(held.is_some(), "never: {what}; {}", self.ends());
    }

    /// Who has ended, and the ends of the parties' logs and their statuses.
    fn ends(&mut self) -> String {
        let logs = self.exchange.parties.each_ref().map(|party| party.role.log_tail());
        format!("{:?}\n{}\n{:#?}", self.exchange.exited(), logs.join("\n--\n"), [0, 1].map(|party| self.of(party)))
    }

    fn of(&self, party: usize) -> Value {
        self.exchange.parties[party].ask("/api/v1/status").unwrap_or(Value::Null)
    }

    /// The party's `show status`.
    fn screen(&self, party: usize) -> String {
        let at = &self.exchange.parties[party].at.process;
        status(&at.namespace, at.status, &[])
    }

    /// How often a party's log says this.
    fn said(&self, party: usize, words: &str) -> usize {
        let log = fs::read_to_string(self.state.join(format!("party{}.log", party + 1))).expect("a log");
        log.matches(words).count()
    }

    /// The process of each party.
    fn processes(&mut self) -> [Option<u32>; 2] {
        self.exchange.parties.each_mut().map(|party| party.role.is_running().then(|| party.role.id()).flatten())
    }

    /// All routers have these routes, whatever others they have.
    fn assert_kept(&mut self, tables: &[Vec<LearnedRoute>]) {
        for (member, routes) in self.exchange.members.iter_mut().zip(tables) {
            let has = member.router.table().expect("a table");
            let lost = routes.iter().find(|route| !has.contains(route));
            assert!(lost.is_none(), "{} has lost {lost:?}", member.at.name);
        }
    }
}

/// A route with attributes of its own: others with the same would share its object, and the store would have little to write.
fn route(prefix: &str) -> Announcement {
    let prefix: Prefix = prefix.parse().expect("a prefix");
    let IpAddr::V4(address) = prefix.address() else { panic!("{prefix} is of IPv4") };
    Announcement::of(prefix).with_large(LargeCommunity::new(4_200_000_000, 0, address.into()))
}

/// Two prefixes of each member.
fn own_prefixes(member: usize) -> Vec<String> {
    (0..2).map(|number| format!("203.0.113.{}/28", 32 * member + 16 * number)).collect()
}

fn a_full_disk(test: &str, number: u8) {
    if enter_for_test(test).is_none() {
        return;
    }
    let mut world = SmallDisk::start(number);
    let (party, peer, members) = (world.party, world.peer, world.exchange.members.len());
    (0..members).for_each(|member| world.announce(member, &own_prefixes(member)));
    world.settle("before the disk is full");
    let (tables, processes) = (world.exchange.tables().expect("tables"), world.processes());
    assert!(processes.iter().all(Option::is_some), "{processes:?}");

    world.fill();
    let burst: Vec<String> = (0..BURST).map(|number| format!("20.0.{}.{}/28", number / 16, number % 16 * 16)).collect();
    world.announce(0, &[own_prefixes(0), burst].concat());
    world.eventually("the party says that it cannot write, and why", |world| {
        let (store, file) = (world.of(party)["store"].to_string(), format!("disk/party{number}.redb"));
        store.contains("no space is left to write") && store.contains(&file) && store.contains("make room")
    });
    let agreed = [0, 1].map(|party| world.said(party, AGREED));
    // What changes from now on reaches nobody until there is space.
    world.announce(1, &[own_prefixes(1), vec![NEW.to_owned()]].concat());
    world.announce(2, &own_prefixes(2)[1..]);
    world.eventually("the peer party's link is refused again and again", |world| {
        world.assert_kept(&tables);
        world.said(party, REFUSED) >= ATTEMPTS
    });
    let new: Prefix = NEW.parse().expect("a prefix");
    let has_new = |table: &Vec<LearnedRoute>| table.iter().any(|route| route.prefix == new);
    assert!(!world.exchange.tables().expect("tables").iter().any(has_new));
    assert_eq!([0, 1].map(|party| world.said(party, AGREED)), agreed, "a session began; {}", world.ends());
    let says =
        |screen: &str, words: &str| screen.lines().any(|line| line.starts_with("problem: ") && line.contains(words));
    world.eventually("both parties say what is wrong", |world| {
        let [own, other] = [party, peer].map(|party| world.screen(party));
        own.contains(": not ready\n")
            && says(&own, "no space is left to write")
            && says(&own, "the peer party's link is refused while the state file cannot be written")
            && other.contains(": not ready\n")
            && says(&other, "the link to the peer party ")
            && world.of(peer)["store"] == "good"
    });
    assert_eq!(world.processes(), processes, "{}", world.ends());

    fs::remove_file(world.other()).expect("removed");
    world.settle("with space");
    // One was withdrawn meanwhile, and one is new.
    let routes = 2 * members + BURST;
    world.eventually("nothing is wrong any more", |world| {
        [party, peer].iter().all(|party| {
            let status = world.of(*party);
            let is_well = (&status["store"], &status["problems"], &status["other_party"])
                == (&json!("good"), &json!([]), &json!(true));
            is_well && status["objects"] == routes && status["older_store"].is_null()
        })
    });
    world.settle("in the end");
    assert_eq!(world.processes(), processes, "{}", world.ends());
    assert_eq!([0, 1].map(|party| world.said(party, "has not connected to")), [0, 0], "it has, and was refused");
}

#[test]
fn party_one_refuses_the_peer_party_while_its_disk_is_full_and_no_route_is_lost() {
    a_full_disk("full_disk::party_one_refuses_the_peer_party_while_its_disk_is_full_and_no_route_is_lost", 1);
}

#[test]
fn party_two_refuses_the_peer_party_while_its_disk_is_full_and_no_route_is_lost() {
    a_full_disk("full_disk::party_two_refuses_the_peer_party_while_its_disk_is_full_and_no_route_is_lost", 2);
}

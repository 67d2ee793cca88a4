//! A role that starts for the third time within a minute, after runs that did not end in order, refuses the peer whose input came last.
//!
//! OPS, starts: runs that end by `kill -9` or by a panic in a peer's input, three starts in a minute: the third names
//! the peer and refuses it for a minute; others are served; an orderly end counts for nothing.

use super::world::{Configured, Process};
use crate::common::attesting::speaker_at;
use crate::common::{Folder, eventually};
use crate::overlay::harness::Realm;

const INSIDE: &str = "the inside peer of pair there";
const OUTSIDE: &str = "the outside peer of pair there";
const REFUSED: &str = "its input was the last before this role ended, again and again";

impl Configured {
    /// Waits for words in the log after its first octets.
    fn says(&self, after: usize, words: &str) {
        eventually(&format!("{words}: {}", self.log()), || self.log()[after..].contains(words));
    }

    /// Whose input the running process took last, as its record has it.
    fn last_input(&self) -> String {
        let folder = std::fs::read_dir(self.folder()).expect("a folder");
        let mut files = folder.map(|entry| entry.expect("an entry").path());
        let record = files.find(|path| path.extension().is_some_and(|name| name == "starts")).expect("a record");
        let octets = std::fs::read(record).expect("a record");
        // The first entry: second, kind, length, name.
        let name = &octets[16 + 10..][..usize::from(octets[16 + 9])];
        String::from_utf8(name.to_vec()).expect("UTF-8")
    }

    fn takes_input_of(&self, peer: &str) {
        eventually(&format!("input of {peer}: {}", self.log()), || self.last_input() == peer);
    }
}

/// `kill -9`.
fn kill(mut process: Process) {
    process.child.kill().expect("it runs");
    process.ended();
}

#[test]
fn a_speaker_that_was_the_last_before_two_kills_is_refused_for_a_minute_unless_told_otherwise() {
    let role = Configured::new("kills", "attest").expect("it needs no rights");
    let speaker = speaker_at(64_496, 64_497, 1, &role.setting("inside"));
    for _ in 0..2 {
        let process = role.start(role.log_file(), &[]);
        role.takes_input_of(INSIDE);
        kill(process);
    }
    let before = role.log().len();
    let mut process = role.start(role.log_file(), &[]);
    role.says(before, "the last input was that of the inside peer of pair there; this peer is refused for a minute");
    role.says(before, REFUSED);
    assert_eq!(role.last_input(), "");
    // It is so over a further start; but not where the operator says so.
    process.signal(rustix::process::Signal::TERM);
    assert_eq!(process.ended().code(), Some(0));
    let before = role.log().len();
    kill(role.start(role.log_file(), &[]));
    let process = role.start(role.log_file(), &[]);
    role.says(before, REFUSED);
    kill(process);
    let process = role.spawn(role.log_file(), &[], &["--refuse-nobody"]);
    role.takes_input_of(INSIDE);
    kill(process);
    drop(speaker);
}

#[test]
fn a_peer_in_whose_input_the_process_panics_is_refused_and_the_others_are_served() {
    let role = Configured::new("poison", "attest").expect("it needs no rights");
    let outside = role.setting("outside");
    let inside = role.setting("inside");
    let good = speaker_at(64_497, 64_496, 2, &outside);
    // Killed once from outside while the other end's input is the last; then the inside end's input is at fault.
    let process = role.start(role.log_file(), &[]);
    role.takes_input_of(OUTSIDE);
    kill(process);
    drop(good);
    let bad = speaker_at(64_496, 64_497, 1, &inside);
    // Before its OPEN comes, which may be before the role is ready.
    role.order("panic input");
    let mut process = role.spawn(role.log_file(), &[], &[]);
    assert_eq!(process.ended().code(), Some(70), "{}", role.log());
    let before = role.log().len();
    let _process = role.start(role.log_file(), &[]);
    role.says(before, "the last input was that of the inside peer of pair there; this peer is refused for a minute");
    let _good = speaker_at(64_497, 64_496, 2, &outside);
    role.says(before, REFUSED);
    role.takes_input_of(OUTSIDE);
    drop(bad);
}

#[test]
fn a_node_that_was_the_last_before_two_kills_is_refused_and_another_is_served() {
    let realm = Realm::new("ends-starts");
    let server = realm.path_server("paths");
    let [a, b] = ["a", "b"].map(|name| realm.router(name, None));
    let name = format!("node {}", realm.identity("a").trim_start_matches("node:"));
    drop(server);
    let config = realm.path("paths").join("path.toml");
    let role = Configured::of("path", config, Folder::new("ends-starts-log"));
    // The realm's operator connects too, and its input would be the last one now and then.
    realm.operator.signal("-STOP");
    for _ in 0..2 {
        let before = role.log().len();
        let process = role.start(role.log_file(), &[]);
        // Behind the role, since one that finds nobody waits before it tries again: all starts are to be within a minute.
        let _a = realm.start("a", "router", &a);
        role.says(before, "advert accepted");
        kill(process);
    }
    realm.operator.signal("-CONT");
    let before = role.log().len();
    let _process = role.start(role.log_file(), &[]);
    let _a = realm.start("a", "router", &a);
    role.says(before, &format!("the last input was that of {name}; this peer is refused for a minute"));
    role.says(before, REFUSED);
    let _b = realm.start("b", "router", &b);
    role.says(before, "advert accepted");
    let of_b = format!("node {}", realm.identity("b").trim_start_matches("node:"));
    let log = role.log()[before..].to_owned();
    let is_up = |node: &str| log.lines().any(|line| line.contains("link up") && line.contains(node));
    assert!(is_up(&of_b) && !is_up(&name), "{log}");
}

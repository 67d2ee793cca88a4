//! Users bring their own capabilities over the stamper's socket.
//!
//! PLA, stamper by process: stamping by registration: while the user is registered; the bill is what was captured.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use wayleave_lab::netns::{self, Rung};
use wayleave_lab::wire::Capture;

use super::world::{self, World, balance, body, text};
use crate::router::common::eventually;
use crate::router::platypus::{LAST, PLATYPUS, WAYPOINTS};

const USER: u32 = 4_711;
const STRANGER: u32 = 4_712;

/// Runs a line as a user of the client's machine, in the folder.
fn as_user(world: &World, user: u32, line: &[&str]) -> Output {
    let mut command: Command = world.site.client.command("setpriv");
    command.args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"]).args(line);
    world.with_curl(&mut command).current_dir(&world.folder.0).env("NO_COLOR", "1").output().expect("setpriv runs")
}

/// Another user's connections (root's), as many as it gets, which say nothing and are opened again as they are closed.
struct Idle(Arc<AtomicBool>);

impl Idle {
    fn hold(socket: PathBuf) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let idle = Self(Arc::clone(&ends));
        // Not waited for: a socket that takes no more connections lets it wait.
        std::thread::spawn(move || {
            let mut held = VecDeque::new();
            while !ends.load(Ordering::Relaxed) {
                held.extend(UnixStream::connect(&socket).ok());
                if held.len() > 300 {
                    held.pop_front();
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        });
        idle
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A frame with a packet that is stamped for the first waypoint.
fn is_paid(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[8, 0])
        && frame.get(23) == Some(&PLATYPUS)
        && frame.get(30..34) == Some(&WAYPOINTS[0].octets())
}

#[test]
fn a_users_own_packets_are_stamped_while_it_is_registered_and_the_bill_is_what_was_captured() {
    let name = "stamping::registered::a_users_own_packets_are_stamped_while_it_is_registered_and_the_bill_is_what_was_captured";
    let Some(rung) = world::enter(name) else { return };
    if rung != Rung::Root {
        netns::skipped("registration by users: the namespace has one user only, since this test does not run as root");
        return;
    }
    let world = World::start("stamping-registered", false);
    let capture = Capture::start(&world.site.waypoints[0], is_paid).expect("a capture");
    let stamper = world.stamper(&format!("socket = \"stamper.sock\"\nusers = [{USER}]\n"), "");
    // Files that the user alone may read.
    for file in ["mine0.cap", "mine1.cap", "narrow.cap"] {
        let which = usize::from(file == "mine1.cap");
        world.mint_file("made.cap", which, 21 + which as u32, &["--replace"]);
        let path = world.folder.0.join(file);
        std::fs::rename(world.folder.0.join("made.cap"), &path).expect("renamed");
    }
    let delegate =
        ["cap", "narrow", "narrow.cap", "--of", "mine0.cap", "--prefix", "192.0.2.0/24", "--id", "3", "--replace"];
    assert!(world.folder.run(&delegate).status.success());
    let mut chown = Command::new("chown");
    chown.args([&USER.to_string(), "mine0.cap", "mine1.cap", "narrow.cap"]).current_dir(&world.folder.0);
    assert!(chown.status().expect("chown runs").success());
    let wayleave = env!("CARGO_BIN_EXE_wayleave");
    let url = format!("http://{LAST}/");
    let curl = ["curl", "--silent", "--show-error", "--max-time", "20", &url];
    let stamp = |files: &[&'static str]| {
        let mut line = vec![wayleave, "stamp", "--socket", "stamper.sock", "--to", "203.0.113.0/24"];
        files.iter().for_each(|file| line.extend(["--capability", *file]));
        line.push("--");
        line.extend(curl);
        line.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()
    };
    let run = |user: u32, files: &[&'static str]| {
        let line = stamp(files);
        as_user(&world, user, &line.iter().map(String::as_str).collect::<Vec<_>>())
    };

    // Another user holds all the connections that it gets, and sends nothing: it keeps nobody out.
    let idle = Idle::hold(world.folder.0.join("stamper.sock"));
    // As that user without it, and as the user with it.
    assert!(as_user(&world, USER, &curl).stdout == body());
    assert_eq!(capture.frames().len(), 0);
    let output = run(USER, &["mine0.cap", "mine1.cap"]);
    assert!(output.stdout == body(), "{}", text(&output.stderr));
    drop(idle);
    balance(&world);
    let captured = capture.frames();
    let octets: usize = captured.iter().map(|frame| usize::from(u16::from_be_bytes([frame[16], frame[17]]))).sum();
    assert!(captured.len() > 10);
    // The bill is what was captured, in packets and octets, for the user's principals and nobody else's.
    assert_eq!(world.books(0), [(21, captured.len() as u64)]);
    assert_eq!(world.books(1), [(22, captured.len() as u64)]);
    let accounts = world.routers[0].json("accounts");
    assert_eq!(accounts["accounts"][0]["octets"], json!(octets.to_string()));
    // With the command's end the registration ends.
    eventually("it is gone", || stamper.status()["rules"] == 0);
    assert!(as_user(&world, USER, &curl).stdout == body());
    assert_eq!(capture.frames().len(), captured.len());
    // The command's exit code is the program's own.
    let code = as_user(
        &world,
        USER,
        &[
            wayleave,
            "stamp",
            "--socket",
            "stamper.sock",
            "--to",
            "203.0.113.0/24",
            "--capability",
            "mine0.cap",
            "--",
            "sh",
            "-c",
            "exit 7",
        ],
    );
    assert_eq!(code.status.code(), Some(7));

    // Who may not, and what does not fit, is refused with a reason.
    for (user, files, reason) in [
        (STRANGER, &["mine0.cap"][..], "mine0.cap"),
        (USER, &["0.cap"], "0.cap"),
        (USER, &["narrow.cap"], "not delegated for all destinations"),
        (USER, &["0.key"], "0.key"),
    ] {
        let output = run(user, files);
        assert!(output.status.code() == Some(1) && output.stdout.is_empty(), "{files:?}");
        let said = text(&output.stderr);
        assert!(said.contains(reason), "{reason}: {said}");
    }
    // Straight at the socket: another user's word counts for nothing.
    let ask = |line: &str| -> Value {
        let mut stream = UnixStream::connect(world.folder.0.join("stamper.sock")).expect("the socket");
        stream.write_all(line.as_bytes()).expect("written");
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).expect("an answer");
        serde_json::from_str(&answer).expect("JSON")
    };
    for (line, reason) in [
        ("{}\n", "malformed"),
        ("not JSON\n", "malformed"),
        ("{\"version\":2,\"to\":[],\"capabilities\":[],\"mtu\":1500}\n", "version 2"),
        ("{\"version\":1,\"to\":[],\"capabilities\":[\"a\"],\"mtu\":1500}\n", "destinations"),
        ("{\"version\":1,\"to\":[\"203.0.113.0/24\"],\"capabilities\":[],\"mtu\":1500}\n", "1 to 8 files"),
        (
            "{\"version\":1,\"to\":[\"203.0.113.0/24\"],\"capabilities\":[\"secret\"],\"mtu\":1500}\n",
            "file 1 of the request",
        ),
        ("{\"version\":1,\"to\":[\"203.0.113.0/24\"],\"capabilities\":[\"a\"],\"mtu\":1500,\"user\":1}\n", "malformed"),
    ] {
        let answer = ask(line);
        let said = answer["error"].as_str().expect("a reason");
        assert!(said.contains(reason) && !said.contains("secret"), "{reason}: {said}");
    }
    // A user who is not named learns that, whatever it brings.
    let own = world.folder.0.join("theirs.cap");
    std::fs::copy(world.folder.0.join("mine0.cap"), &own).expect("copied");
    let chown = Command::new("chown").args([&STRANGER.to_string(), "theirs.cap"]).current_dir(&world.folder.0).status();
    assert!(chown.expect("chown runs").success());
    let output = run(STRANGER, &["theirs.cap"]);
    assert!(text(&output.stderr).contains(&format!("user {STRANGER} may not register")), "{}", text(&output.stderr));
    assert_eq!(stamper.status()["rules"], 0);
}

//! The disk of the database is full.
//!
//! PLA-06, disk: the disk is full while orders come by the API, by DNS, by an invitation and by commands:
//! refused by each as the disk's fault, nothing changes, also after a restart, and all go on with space.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::process::{Command, Output};

use serde_json::{Value, json};
use wayleave_lab::netns::enter_for_test;

use super::world::{Answer, WAYPOINT, World};
use crate::common::eventually;
use crate::key::copy_database;

/// A world whose database and list are on a disk of 1 MiB.
fn on_a_small_disk() -> World {
    assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().expect("ip runs").success());
    let mut world = World::new("full-disk");
    world.running.kill();
    let server = world.folder.0.join("server");
    fs::create_dir(server.join("disk")).expect("a folder");
    // The mount is that of this test's own namespace, and ends with it.
    let mount = ["-t", "tmpfs", "-o", "size=1m", "tmpfs", "disk"];
    assert!(Command::new("mount").args(mount).current_dir(&server).status().expect("mount runs").success());
    copy_database(&server, &server.join("disk"));
    fs::copy(server.join("revoked"), server.join("disk/revoked")).expect("copied");
    let text = fs::read_to_string(server.join("key.toml")).expect("there");
    let text = text.replace("\"accounts.db\"", "\"disk/accounts.db\"").replace("\"revoked\"", "\"disk/revoked\"");
    fs::write(server.join("key.toml"), text).expect("written");
    world.running.resume();
    world
}

fn fill(world: &World) {
    let mut file = File::create(world.folder.0.join("server/disk/other")).expect("created");
    let full = loop {
        if let Err(error) = file.write_all(&[7; 4_096]) {
            break error;
        }
    };
    assert_eq!(full.kind(), ErrorKind::StorageFull);
}

fn revoke(world: &World, principal: u32) -> Answer {
    world.call(Some(&world.full), "POST", "/v1/revocations", Some(&json!({ "entry": principal.to_string() })))
}

/// What an attempt says that is refused, after those that what the database has of the disk already still takes.
fn refused<T>(attempt: &mut dyn FnMut() -> Result<(), T>) -> T {
    (0..400).find_map(|_| attempt().err()).expect("the disk is full")
}

/// What a command says on standard error, in one line.
fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let words: Vec<&str> = text.split_whitespace().filter(|word| *word != "│").collect();
    words.join(" ")
}

#[test]
fn orders_on_a_full_disk_are_refused_and_leave_nothing_and_go_on_once_there_is_space() {
    let name = "key_api::full_disk::orders_on_a_full_disk_are_refused_and_leave_nothing_and_go_on_once_there_is_space";
    if enter_for_test(name).is_none() {
        return;
    }
    let mut world = on_a_small_disk();
    let writer = world.running.status("writer").as_str().expect("a key").to_owned();
    world.done("POST", "/v1/accounts", Some(&json!({ "principal": 7, "name": "customer" })));
    let granted = world.done("POST", "/v1/grants", Some(&json!({ "principal": 7, "waypoint": WAYPOINT })));
    world.folder.write("own.line", granted["capability"].as_str().expect("a line"));
    let invited = world.done(
        "POST",
        "/v1/invitations",
        Some(&json!({ "principal": 9, "name": "guest", "waypoints": [WAYPOINT] })),
    );
    world.folder.write("guest", invited["invitation"].as_str().expect("a line"));

    fill(&world);
    let mut revoked = 0;
    let mut by_api = || {
        let answer = revoke(&world, 1_000 + revoked);
        revoked += u32::from(answer.status < 300);
        if answer.status < 300 { Ok(()) } else { Err(answer) }
    };
    let refused = refused(&mut by_api);
    assert!(refused.is("disk") && refused.status == 500, "{refused:?}");
    assert!(refused.body.contains("nothing has changed"), "{refused:?}");
    // By the API, by a holder's order over DNS, and by the operator's command at the database: each says that it is the disk.
    let order = |world: &World, id: u32| {
        let id = id.to_string();
        world.folder.run(&["cap", "revoke", "--line", "own.line", "--delegation", &id, "--server", &world.listen])
    };
    let (mut accounts, mut ordered, mut granted) = (100, 0, 0);
    for _ in 0..3 {
        assert!(self::refused(&mut by_api).is("disk"));
        let answer = self::refused(&mut || {
            accounts += 1;
            let account = json!({ "principal": accounts, "name": "x".repeat(64) });
            let answer = world.call(Some(&world.full), "POST", "/v1/accounts", Some(&account));
            if answer.status < 300 { Ok(()) } else { Err(answer) }
        });
        assert!(answer.is("disk"), "{answer:?}");
        let why = self::refused(&mut || {
            let output = order(&world, 1_000 + ordered);
            ordered += u32::from(output.status.success());
            if output.status.success() { Ok(()) } else { Err(said(&output)) }
        });
        // A connection that met the full disk may be lost, and another one takes a while: then nobody knows, and the holder is told to repeat.
        let is_refused = why.contains("cannot write to its disk") && why.contains("nothing was changed");
        assert!(is_refused || why.contains("it is not known whether the order was carried out"), "{why}");
        let why = self::refused(&mut || {
            granted += 1;
            let principal = (1_000 + granted).to_string();
            let of = ["--principal", &principal, "--waypoint", WAYPOINT, "--config", "server/key.toml"];
            let output = world.folder.run(&[&["cap", "grant"], &of[..]].concat());
            if output.status.success() { Ok(()) } else { Err(said(&output)) }
        });
        assert!(why.contains("full") && why.contains("accounts.db"), "{why}");
    }
    let log = world.running.log();
    assert!(log.contains("a change by the API was not made") && log.contains("nothing can be changed"), "{log}");
    assert!(log.contains("full"), "{log}");
    // What was told as not known is known by the database.
    let number = world.list(&[])["number"].as_u64().expect("a number");
    let revoked = world.list(&[])["revocations"].as_array().map_or(0, Vec::len);
    eventually("the server follows", || world.running.count("number") == number);
    let nothing_changed = |world: &World| {
        assert_eq!(world.list(&[])["number"], number);
        assert_eq!(world.running.count("number"), number);
        assert_eq!(world.running.count("revocations"), revoked as u64);
    };
    nothing_changed(&world);
    // Questions are answered, and a restart finds what was acknowledged.
    world.folder.ok(&["cap", "lookup", "--line", "own.line", "--server", &world.listen]);
    world.running.kill();
    world.running.resume();
    nothing_changed(&world);

    // With space, all of it works again in the same process.
    fs::remove_file(world.folder.0.join("server/disk/other")).expect("removed");
    assert_eq!(revoke(&world, 9_000).status / 100, 2);
    assert!(order(&world, 9_000).status.success());
    world.folder.ok(&["cap", "accept", "--line", "guest", "--out", "guest.lines"]);
    assert_eq!(world.running.count("number"), number + 3);
    eventually("routers learn of all", || {
        let list = world.folder.ok(&["cap", "revoked", "server/disk/revoked", "--key", &writer, "--json"]);
        let list: Value = serde_json::from_str(&list).expect("JSON");
        list["entries"].as_array().map(Vec::len) == Some(revoked + 2)
    });
    assert!(world.running.status("list_problem").is_null());
}

//! The list of revocations is written while the server does its work.
//!
//! PLA-06, disk: a list whose writing takes for ever: questions are answered, and orders that came meanwhile are in one
//! list.

use std::process::Command;
use std::sync::mpsc::{TryRecvError, channel};
use std::{fs, thread};

use serde_json::{Value, json};

use super::world::{WAYPOINT, World};
use crate::common::eventually;

/// The entries of the list that routers read.
fn entries(world: &World, writer: &str) -> Vec<Value> {
    let list = world.folder.ok(&["cap", "revoked", "server/revoked", "--key", writer, "--json"]);
    let list: Value = serde_json::from_str(&list).expect("JSON");
    list["entries"].as_array().expect("a list").clone()
}

fn written(world: &World) -> usize {
    world.running.log().matches("list of revocations written").count()
}

#[test]
fn questions_and_orders_go_on_while_a_list_is_written_and_what_came_meanwhile_is_in_one_more() {
    let world = World::new("listing");
    let writer = world.running.status("writer").as_str().expect("a key").to_owned();
    let of_seven = ["--principal", "7", "--waypoint", WAYPOINT, "--config", "server/key.toml"];
    let line = world.folder.ok(&[&["cap", "grant"], &of_seven[..]].concat());
    world.folder.write("own.line", &line);
    eventually("the server follows", || world.running.count("grants") == 1);
    let number = world.running.count("number");
    eventually("the list is written", || written(&world) > 1 && entries(&world, &writer).is_empty());
    // A pipe in the place of the file that is written: the writer waits until somebody reads.
    let part = world.folder.0.join("server/revoked.part");
    assert!(Command::new("mkfifo").arg(&part).status().expect("mkfifo runs").success());
    let (done, answered) = channel();
    thread::scope(|scope| {
        for principal in 1_000..1_020 {
            let (world, done) = (&world, done.clone());
            scope.spawn(move || {
                let made = world.done("POST", "/v1/revocations", Some(&json!({ "entry": principal.to_string() })));
                done.send(made).expect("the test waits");
            });
        }
        // A holder's order by DNS beside them.
        let (world, done) = (&world, done.clone());
        scope.spawn(move || {
            let order = ["cap", "revoke", "--line", "own.line", "--delegation", "4", "--server", &world.listen];
            let output = world.folder.run(&order);
            done.send(json!(output.status.success())).expect("the test waits");
        });
        eventually("all are durable", || world.running.count("number") == number + 21);
        let look_up = || world.folder.ok(&["cap", "lookup", "--line", "own.line", "--server", &world.listen]);
        (0..3).for_each(|_| drop(look_up()));
        assert_eq!(world.done("GET", "/v1/revocations", None)["revocations"].as_array().map(Vec::len), Some(21));
        assert_eq!(answered.try_recv(), Err(TryRecvError::Empty), "no list that routers read has them");
        assert!(entries(world, &writer).is_empty());
        let before = written(world);
        // A pipe cannot be made durable, so that this attempt fails: what waits is answered, as the records have it.
        assert!(!fs::read(&part).expect("read").is_empty());
        (0..21).for_each(|_| drop(answered.recv().expect("answered")));
        let problem = world.running.status("list_problem");
        assert!(problem.as_str().is_some_and(|problem| problem.contains("revoked.part")), "{problem}");
        eventually("the list is written", || entries(world, &writer).len() == 21);
        assert_eq!(written(world), before + 1, "one list has all of them");
    });
    assert!(!part.exists() && world.running.status("list_problem").is_null());
}

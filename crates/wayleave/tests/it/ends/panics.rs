//! A panic of any thread or task ends the process; but where a route alone is to be left out, it stays so.
//!
//! KCX-19: a panic in work on a route alone: the process goes on.
//! OPS, panic: a panic in the loop, the machine, a task, a blocking task, a thread, the forwarding threads and the
//! audit writer of each role: the process ends within a second with code 70, its locks are free.

use std::time::Duration;

use rustix::process::Signal;

use super::world::{Configured, with_each};
use crate::common::attesting::{Proxy, own, speaker};
use crate::common::{Folder, eventually, free};

/// Where a panic is ordered: the role's loop, a task, a blocking task, a thread, and what a role has besides.
const EVERYWHERE: [&str; 4] = ["main", "task", "blocking", "thread"];

fn places(role: &str) -> Vec<&'static str> {
    let more: &[&str] = match role {
        "rs" | "member" | "attest" | "realm" | "path" => &["machine"],
        "consent" => &["machine", "audit"],
        "gateway" => &["machine", "worker"],
        "router" | "stamper" => &["worker"],
        "key" => &["worker"],
        _ => &[],
    };
    [&EVERYWHERE, more].concat()
}

/// The process has one second from the line of its log that says so.
fn ends_by_a_panic(role: &Configured, place: &str) {
    let before = role.log().len();
    let mut process = role.start(role.log_file(), &[]);
    role.order(&format!("panic {place}"));
    let said = format!("a test has ordered it ({place})");
    eventually(&format!("{}: {said}", process.role), || {
        if place == "audit" {
            process.signal(Signal::HUP);
        }
        role.log()[before..].contains(&said)
    });
    let status = process.ends_within(Duration::from_secs(1));
    let code = status.and_then(|status| status.code());
    assert_eq!(code, Some(70), "{} {place}: {}", process.role, &role.log()[before..]);
}

#[test]
fn a_panic_of_any_thread_or_task_ends_the_process_within_a_second_and_frees_its_locks() {
    with_each("panics", |role| {
        // Each start takes the locks of the one before.
        for place in places(role.role) {
            ends_by_a_panic(&role, place);
        }
        let mut process = role.start(role.log_file(), &[]);
        process.signal(Signal::TERM);
        assert_eq!(process.ended().code(), Some(0), "{}", process.role);
    });
}

#[test]
fn a_panic_in_work_on_a_route_costs_the_route_and_the_process_goes_on() {
    let folder = Folder::new("ends-contained");
    folder.ok(&["keys", "anchor", "anchor.key", "--name", "lab", "--classical"]);
    folder.ok(&["keys", "attest", "64496.key", "--asn", "64496"]);
    folder.sign(&["profile", "--attest", "64496.key"]);
    let order = folder.0.join("order");
    let meet = free();
    let mut proxy = Proxy::new(&folder, 64_496, &format!("listen = \"{meet}\""), "");
    proxy.kill();
    proxy.start_with(&[("WAYLEAVE_TEST_FAULT", order.to_str().expect("UTF-8"))]);
    eventually("it runs", || !proxy.json(&["show", "status"]).is_null());
    std::fs::write(&order, "panic contained").expect("written");
    eventually("the order is taken", || !order.exists());
    let inside = speaker(64_496, 64_497, 1, &proxy);
    let outside = crate::common::attesting::speaker_at(64_497, 64_496, 2, &meet);
    inside.announce(own(64_496));
    eventually("the route is left out", || proxy.json(&["show", "status"])["counts"]["failed"] == 1);
    let log = proxy.log();
    assert!(log.contains("the work in hand is left out, and the process goes on"), "{log}");
    assert!(log.contains("its routes are held back and tried again later"), "{log}");
    assert!(outside.learned().is_empty());
}

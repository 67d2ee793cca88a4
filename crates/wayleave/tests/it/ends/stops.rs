//! SIGTERM always ends a role, and systemd's watchdog hears from one that works and from no other.
//!
//! OPS, SIGTERM and watchdog: the loop, the shutdown or the machine of each role stands still: SIGTERM ends it within
//! 15 seconds with code 71; systemd hears no more of it.

use std::time::Duration;

use rustix::process::Signal;

use super::world::with_each;

#[test]
fn sigterm_ends_a_role_whose_threads_stand_still() {
    with_each("stop", |role| {
        for place in ["main", "stop"] {
            let mut process = role.start(role.log_file(), &[]);
            role.order(&format!("stall {place}"));
            role.taken();
            process.signal(Signal::TERM);
            if place == "stop" {
                process.expect("STOPPING=1");
            }
            assert_eq!(process.ended().code(), Some(71), "{} {place}: {}", process.role, role.log());
        }
        assert!(role.log().contains("did not stop within 15 seconds"), "{}", role.log());
    });
}

#[test]
fn the_watchdog_hears_from_a_role_until_its_loop_or_its_machine_stands_still() {
    with_each("watchdog", |role| {
        let places: &[&str] = match role.role {
            "router" | "stamper" | "gateway" => &["main", "worker"],
            "key" | "console" => &["main"],
            _ => &["main", "machine"],
        };
        for place in places {
            let process = role.start(role.log_file(), &[("WATCHDOG_USEC", "2000000")]);
            for _ in 0..3 {
                process.expect("WATCHDOG=1");
            }
            role.order(&format!("stall {place}"));
            role.taken();
            // Those that are due before the standstill is noticed are few; then nothing comes for longer than systemd waits.
            let heard = (0..20).take_while(|_| process.notice(Duration::from_secs(3)).is_some()).count();
            assert!(heard < 20, "{} {place}", process.role);
        }
    });
}

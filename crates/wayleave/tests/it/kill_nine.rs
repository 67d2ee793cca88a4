//! `kill -9` of a party or a member, thirty times at random moments: no route lost, resurrected or forbidden.
//!
//! Real processes of the binary, real TLS, real BGP sessions on loopback.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use wayleave_core::{Asn, Prefix};
use wayleave_lab::demo::exchange::{DemoExchange, RoleProcess};
use wayleave_lab::demo::layout::Layout;
use wayleave_lab::process::wait_until;
use wayleave_lab::table::Announcement;

const KILLS: usize = 30;
const TIMEOUT: Duration = Duration::from_secs(60);
/// Hidden from the member in the first column by whoever announces it, always.
const HIDDEN: [(&str, u32); 3] = [("203.0.113.0/26", 64500), ("203.0.113.64/26", 64497), ("203.0.113.128/26", 64501)];
const OPEN: [&str; 4] = ["198.51.100.0/26", "198.51.100.64/26", "198.51.100.128/26", "198.51.100.192/26"];

/// A small generator, so that a failure can be played again from its seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((self.0 >> 33) % below as u64).expect("below a usize")
    }
}

fn announcement(dice: &mut Dice) -> Announcement {
    let number = dice.below(HIDDEN.len() + OPEN.len());
    match HIDDEN.get(number) {
        Some((prefix, from)) => {
            let hide = format!("0:{from}").parse().expect("a community");
            Announcement::of(prefix.parse().expect("a prefix")).with(hide)
        }
        None => Announcement::of(OPEN[number - HIDDEN.len()].parse().expect("a prefix")),
    }
}

/// A random member announces one thing more, or one thing less.
fn change(exchange: &mut DemoExchange, dice: &mut Dice) {
    let names: Vec<String> = exchange.members.iter().map(|member| member.at.name.clone()).collect();
    let name = &names[dice.below(names.len())];
    let route = announcement(dice);
    exchange.withdraw(name, route.prefix).expect("a router that takes routes");
    if dice.below(3) > 0 {
        exchange.announce_also(name, route).expect("a router that takes routes");
    }
}

/// Nobody has a route that is always hidden from it, at any moment.
fn assert_nothing_forbidden(exchange: &mut DemoExchange) {
    for member in &mut exchange.members {
        for route in member.router.table().unwrap_or_default() {
            let forbidden = |(prefix, from): &&(&str, u32)| {
                prefix.parse::<Prefix>() == Ok(route.prefix) && Asn(*from) == member.at.asn
            };
            assert!(HIDDEN.iter().find(forbidden).is_none(), "{} has {}", member.at.name, route.prefix);
        }
    }
}

/// Party 1, party 2, then the members by slot.
fn role(exchange: &mut DemoExchange, number: usize) -> &mut RoleProcess {
    match number {
        party @ 0..=1 => &mut exchange.parties[party].role,
        member => &mut exchange.members[member - 2].role,
    }
}

#[test]
fn after_thirty_kills_no_route_is_lost_resurrected_or_forbidden() {
    let state = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kill-nine");
    let _ = std::fs::remove_dir_all(&state);
    std::fs::create_dir_all(&state).expect("a folder");
    let layout = Layout::simulated(&state).expect("free ports");
    let binary = Path::new(env!("CARGO_BIN_EXE_wayleave"));
    let mut exchange = DemoExchange::new(layout, binary, None).expect("keys and configurations");
    for party in &mut exchange.parties {
        party.role.start().expect("a party that starts");
    }
    for member in &mut exchange.members {
        member.role.start().expect("a member that starts");
        member.router.start().expect("a speaker");
    }
    let up = wait_until(TIMEOUT, || {
        exchange.members.iter_mut().all(|m| m.router.is_established().unwrap_or(false)).then_some(())
    });
    assert!(up.is_some(), "sessions came up; {:?}", exchange.exited());

    let mut dice = Dice(20_131_201);
    for kill in 0..KILLS {
        for _ in 0..1 + dice.below(3) {
            change(&mut exchange, &mut dice);
        }
        sleep(Duration::from_millis(dice.below(150) as u64));
        let members = exchange.members.len();
        let victim = dice.below(2 + members);
        role(&mut exchange, victim).kill();
        sleep(Duration::from_millis(dice.below(300) as u64));
        change(&mut exchange, &mut dice);
        role(&mut exchange, victim).start().expect("it starts again");
        assert_nothing_forbidden(&mut exchange);
        if kill % 6 == 5
            && let Err(wrong) = exchange.settle()
        {
            panic!("after kill {kill} (victim {victim}): {wrong}\n{:?}", exchange.exited());
        }
    }
    exchange.settle().expect("every table right in the end");
    assert!(exchange.exited().is_empty(), "{:?}", exchange.exited());
}

//! `kill -9` of parties and members, and links that are cut, at random moments while routes change: no route is lost,
//! resurrected or forbidden.
//!
//! Real processes of the binary, real TLS, real BGP sessions on loopback. A [`History`] judges every table, at any time;
//! what is announced at present, in plaintext, judges the settled ones.
//!
//! SIX-02: `kill -9` of either party or a member and cut links while routes change, in each mode of export (20 kills
//! and 10 cuts; 1,000 and 300 in `make soak`): no route is lost, resurrected or forbidden.
//! SIX, older store: a real party's store replaced by an older copy: both parties name it, and nothing is brought back.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use wayleave_core::Asn;
use wayleave_lab::demo::exchange::DemoExchange;
use wayleave_lab::demo::http::get;
use wayleave_lab::demo::layout::Layout;
use wayleave_lab::process::wait_until;
use wayleave_lab::role_process::RoleProcess;
use wayleave_lab::table::Announcement;

use crate::common::history::History;
use crate::common::relay::Relay;

/// Faults of each kind in each mode of export, if the environment does not say.
const KILLS: usize = 20;
const CUTS: usize = 10;
/// The exchange is to settle each time after so many faults.
const SETTLE_EACH: usize = 6;
const TIMEOUT: Duration = Duration::from_secs(60);
const PREFIXES: [&str; 7] = [
    "198.51.100.0/26",
    "198.51.100.64/26",
    "198.51.100.128/26",
    "198.51.100.192/26",
    "203.0.113.0/26",
    "203.0.113.64/26",
    "203.0.113.128/26",
];

/// A small generator, so that a failure can be played again from its seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((self.0 >> 33) % below as u64).expect("below a usize")
    }

    fn millis(&mut self, below: usize) -> Duration {
        Duration::from_millis(self.below(below) as u64)
    }
}

/// An exchange whose links all pass through relays.
struct Faults {
    exchange: DemoExchange,
    /// The link between the parties, then each member's links to party 1 and to party 2.
    links: Vec<Relay>,
    history: History,
    dice: Dice,
}

impl Faults {
    fn start(name: &str, export: &str, seed: u64) -> Self {
        let state = &Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{export}"));
        let _ = fs::remove_dir_all(state);
        fs::create_dir_all(state).expect("a folder");
        let layout = Layout::simulated(state).expect("free ports");
        let (parties, link) = (layout.parties.clone(), layout.link);
        let binary = Path::new(env!("CARGO_BIN_EXE_wayleave"));
        let exchange = DemoExchange::new(layout, binary, None).expect("keys and configurations");
        // What is killed a thousand times is not to wait for its turn.
        for number in [1, 2] {
            let path = exchange.files.party(number);
            let text = fs::read_to_string(&path).expect("a configuration");
            let budget = "[budget]\nresyncs_per_hour = 100000\nchoices_per_hour = 100000\n";
            let text = text.replacen("export = \"direct\"", &format!("export = \"{export}\""), 1);
            fs::write(path, format!("{text}\n{budget}")).expect("written");
        }
        let mut links = vec![relayed(&exchange.files.party(2), link)];
        for member in &exchange.members {
            let config = exchange.files.member(&member.at.name);
            links.extend(parties.iter().map(|party| relayed(&config, party.listen)));
        }
        let mut faults = Self { exchange, links, history: History::default(), dice: Dice(seed) };
        let exchange = &mut faults.exchange;
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
        faults
    }

    /// A random member withdraws a route or announces one, for all others or for all but one.
    fn change(&mut self) {
        let dice = &mut self.dice;
        let members: Vec<(String, Asn)> =
            self.exchange.members.iter().map(|member| (member.at.name.clone(), member.at.asn)).collect();
        let (name, asn) = &members[dice.below(members.len())];
        let mut route = Announcement::of(PREFIXES[dice.below(PREFIXES.len())].parse().expect("a prefix"));
        if dice.below(3) == 0 {
            self.exchange.withdraw(name, route.prefix).expect("a router that takes routes");
            self.history.ends(*asn, route.prefix);
            return;
        }
        let mut hidden = Vec::new();
        if dice.below(2) == 0 {
            let (_, from) = members[dice.below(members.len())];
            route = route.with(format!("0:{}", from.0).parse().expect("a community"));
            hidden.push(from);
        }
        let route = self.history.announces(*asn, route, hidden);
        self.exchange.replace(name, route).expect("a router that takes routes");
    }

    /// Nobody has a route that it may not have at this moment.
    fn observe(&mut self) {
        for member in &mut self.exchange.members {
            let table = member.router.table().unwrap_or_default();
            if let Err(wrong) = self.history.observe(member.at.asn, &table) {
                panic!("{wrong}\n{}", member.role.log_tail());
            }
        }
    }

    /// Observes again and again for so long.
    fn pass(&mut self, time: Duration) {
        let mut left = time;
        while !left.is_zero() {
            let step = left.min(Duration::from_millis(20));
            sleep(step);
            left -= step;
            self.observe();
        }
    }

    /// Kills a random process and starts it again.
    fn kill(&mut self) -> String {
        let number = self.dice.below(2 + self.exchange.members.len());
        role(&mut self.exchange, number).kill();
        let time = self.dice.millis(300);
        self.pass(time);
        self.change();
        role(&mut self.exchange, number).start().expect("it starts again");
        match number {
            0 | 1 => format!("kill of party {}", number + 1),
            member => format!("kill of {}", self.exchange.members[member - 2].at.name),
        }
    }

    /// Cuts one link, or all of one party or member, and joins them again.
    fn partition(&mut self) -> String {
        let number = self.dice.below(self.links.len());
        let (what, links) = match self.dice.below(3) {
            0 => (format!("cut of party {} from all", 1 + number % 2), self.of_party(number % 2)),
            1 if number > 0 => (format!("cut of member {}", (number - 1) / 2), self.of_member((number - 1) / 2)),
            _ => (format!("cut of link {number}"), vec![number]),
        };
        // Most are short; some are longer than the processes wait for each other.
        let time = if self.dice.below(8) == 0 { 12_000 } else { 600 };
        links.iter().for_each(|link| self.links[*link].cut(true));
        for _ in 0..3 {
            self.change();
            let time = self.dice.millis(time / 3);
            self.pass(time);
        }
        links.iter().for_each(|link| self.links[*link].cut(false));
        what
    }

    fn of_party(&self, party: usize) -> Vec<usize> {
        (0..self.links.len()).filter(|link| *link == 0 || (link - 1) % 2 == party).collect()
    }

    fn of_member(&self, member: usize) -> Vec<usize> {
        vec![1 + 2 * member, 2 + 2 * member]
    }

    fn settle(&mut self, after: &str) {
        // The right routes first, then each in its last version, then nothing that waits behind a better route.
        if let Err(wrong) = self.exchange.settle() {
            panic!("{after}: {wrong}\n{:?}", self.exchange.exited());
        }
        let mut unsettled = None;
        let settled = wait_until(TIMEOUT, || {
            unsettled = self.unsettled();
            unsettled.is_none().then_some(())
        });
        assert!(settled.is_some(), "{after}: {unsettled:?}");
        self.history.settled();
        self.observe();
    }

    /// Who has an old version of a route, or not as many objects as there are routes.
    fn unsettled(&mut self) -> Option<String> {
        let tables = self.exchange.tables().expect("tables");
        if let Some(stale) = tables.iter().find_map(|table| self.history.stale(table)) {
            return Some(stale);
        }
        let wrong = |status: Result<Value, String>, expected: usize| match status {
            Ok(status) if status["objects"] == expected && status["synced"] != false => None,
            Ok(status) => Some(format!("{expected} objects expected: {status}")),
            Err(error) => Some(error),
        };
        let all = self.history.live();
        let parties = self.exchange.parties.iter().map(|party| wrong(party.ask("/api/v1/status"), all));
        let members = self.exchange.members.iter().map(|member| wrong(member.ask("/api/v1/status"), all));
        parties.chain(members).flatten().next()
    }
}

/// A relay before `address`, to which the configuration points from now on.
fn relayed(config: &Path, address: SocketAddr) -> Relay {
    let relay = Relay::start(address).expect("a free port");
    let text = fs::read_to_string(config).expect("a configuration");
    let changed = text.replace(&format!("\"{address}\""), &format!("\"{}\"", relay.address));
    assert_ne!(text, changed, "{} connects to {address}", config.display());
    fs::write(config, changed).expect("written");
    relay
}

/// Party 1, party 2, then the members by slot.
fn role(exchange: &mut DemoExchange, number: usize) -> &mut RoleProcess {
    match number {
        party @ 0..=1 => &mut exchange.parties[party].role,
        member => &mut exchange.members[member - 2].role,
    }
}

fn count(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn kills_and_partitions(export: &str) {
    let seed = count("WAYLEAVE_FAULT_SEED", 20_131_201) as u64;
    let (mut kills, mut cuts) = (count("WAYLEAVE_EXCHANGE_KILLS", KILLS), count("WAYLEAVE_EXCHANGE_CUTS", CUTS));
    let mut faults = Faults::start("kill-nine", export, seed);
    for number in 1.. {
        let left = kills + cuts;
        if left == 0 {
            break;
        }
        for _ in 0..1 + faults.dice.below(3) {
            faults.change();
        }
        let time = faults.dice.millis(150);
        faults.pass(time);
        let what = if faults.dice.below(left) < kills {
            kills -= 1;
            faults.kill()
        } else {
            cuts -= 1;
            faults.partition()
        };
        faults.observe();
        if number % SETTLE_EACH == 0 {
            faults.settle(&format!("{export}, seed {seed}, after fault {number} ({what})"));
        }
    }
    faults.settle("in the end");
    assert!(faults.exchange.exited().is_empty(), "{:?}", faults.exchange.exited());
    // Processes that were killed come back with their own stores.
    for party in &faults.exchange.parties {
        let status = party.ask("/api/v1/status").expect("it runs");
        assert_eq!((&status["export"], &status["older_store"]), (&export.into(), &Value::Null), "{status:#}");
    }
    println!("{export}: {} routes observed", faults.history.observations());
}

#[test]
fn after_kills_and_partitions_no_route_is_lost_resurrected_or_forbidden() {
    kills_and_partitions("direct");
}

#[test]
fn after_kills_and_partitions_no_route_is_lost_resurrected_or_forbidden_where_the_parties_multiply() {
    kills_and_partitions("mpc");
}

#[test]
fn a_party_whose_store_was_replaced_by_an_older_copy_is_named_by_both_and_brings_nothing_back() {
    for (export, number) in [("direct", 2), ("mpc", 1)] {
        let mut faults = Faults::start("older-store", export, number);
        let index = usize::try_from(number).expect("1 or 2") - 1;
        let store = faults.exchange.files.path(&format!("../party{number}.redb"));
        let copy = format!("{store}.copy");
        let changed = |faults: &mut Faults, after: &str| {
            (0..12).for_each(|_| faults.change());
            faults.settle(after);
        };
        let stopped = |faults: &mut Faults, from: &str, to: &str| {
            assert!(faults.exchange.parties[index].role.stop(TIMEOUT), "party {number} stops");
            fs::copy(from, to).expect("copied");
            faults.exchange.parties[index].role.start().expect("it starts again");
        };
        changed(&mut faults, "before the copy");
        stopped(&mut faults, &store, &copy);
        changed(&mut faults, "after the copy");
        for party in &faults.exchange.parties {
            assert_eq!(party.ask("/api/v1/status").expect("it runs")["older_store"], Value::Null);
        }
        stopped(&mut faults, &copy, &store);
        faults.settle("with the copy");
        for party in &faults.exchange.parties {
            let at = &party.at.process;
            let status = party.ask("/api/v1/status").expect("it runs");
            let older = &status["older_store"];
            assert!(older["party"] == number && older["holds"].as_u64() < older["agreed"].as_u64(), "{status:#}");
            let shown = faults.exchange.files.tool(&["show", "status", "--url", &at.status.to_string()]);
            let problem = format!("problem: party {number} came with an older store");
            assert!(shown.as_ref().is_ok_and(|shown| shown.contains(&problem)), "{shown:?}");
            let page = get(&at.namespace, at.status, "/metrics").expect("a page");
            assert!(page.contains("\nwayleave_rs_older_store_sessions_total 1\n"), "{page}");
        }
    }
}

//! Members with two pairs of parties, as every exchange runs two route servers: one proxy with a session for each pair.
//!
//! OPS, two pairs: both parties of a pair killed: no route that the other has is lost, and what is announced meanwhile comes by the
//! other; they return: both have all; a pair with a name, party or key of the other: refused before the start.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use wayleave_bgp::mrt::{MrtReader, Record};
use wayleave_core::{Asn, Prefix};
use wayleave_lab::demo::exchange::DemoExchange;
use wayleave_lab::demo::http::get;
use wayleave_lab::demo::layout::Layout;
use wayleave_lab::process::wait_until;
use wayleave_lab::table::Announcement;

use crate::common::metrics::assert_named_by_the_rule;
use crate::common::screen::assert_one_screen;

const TIMEOUT: Duration = Duration::from_secs(60);
const NAMES: [&str; 2] = ["demo-ix", "demo-ix-rs2"];
const PREFIX: &str = "203.0.113.0/24";
const LATER: &str = "198.51.100.0/24";
const ALPHA: usize = 0;
const BRAVO: usize = 1;

/// Two pairs with the same two members: the proxies of the first run with both, and each member's router has a speaker for each session.
struct TwoPairs([DemoExchange; 2]);

impl TwoPairs {
    fn new() -> Self {
        let exchange = |name: &str| {
            let state = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("two-pairs-{name}"));
            let _ = fs::remove_dir_all(&state);
            fs::create_dir_all(&state).expect("a folder");
            let mut layout = Layout::simulated(&state).expect("free ports");
            layout.members.truncate(2);
            DemoExchange::named(name, layout, Path::new(env!("CARGO_BIN_EXE_wayleave")), None).expect("files")
        };
        let both = Self(NAMES.map(exchange));
        let [one, two] = &both.0;
        for member in &one.members {
            let file = one.files.member(&member.at.name);
            let (own, other) = (read(&file), read(&two.files.member(&member.at.name)));
            fs::write(file, own + &as_pair(&other)).expect("written");
        }
        both
    }

    fn has(&mut self, pair: usize, member: usize, prefix: &str) -> bool {
        let prefix: Prefix = prefix.parse().expect("a prefix");
        let table = self.0[pair].members[member].router.table().unwrap_or_default();
        table.iter().any(|route| route.prefix == prefix)
    }

    /// The router of alpha announces these by both sessions.
    fn announce(&mut self, prefixes: &[&str]) {
        let routes: Vec<Announcement> =
            prefixes.iter().map(|prefix| Announcement::of(prefix.parse().expect("a prefix"))).collect();
        for exchange in &mut self.0 {
            exchange.announce("alpha", &routes).expect("taken");
        }
    }

    fn ask(&self, member: usize, page: &str) -> Value {
        self.0[0].members[member].ask(page).unwrap_or(Value::Null)
    }

    fn eventually(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        if wait_until(TIMEOUT, || holds(self).then_some(())).is_none() {
            let status = self.ask(BRAVO, "/api/v1/status");
            panic!("never: {what}; {:?}\n{status:#}\n{}", self.0[0].exited(), self.0[0].members[BRAVO].role.log_tail());
        }
    }

    /// What a command prints that asks a member's proxy.
    fn says(&self, member: usize, arguments: &[&str]) -> String {
        let url = self.0[0].members[member].at.proxy.status.to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_wayleave"));
        let output = command.args(arguments).args(["--url", &url]).env("NO_COLOR", "1").output().expect("it runs");
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).expect("a configuration")
}

/// A whole configuration as the second pair of another one.
fn as_pair(text: &str) -> String {
    let (text, _) = text.split_once("[status]").expect("its sections");
    let text = text.replace("[member]", "\n[[pair]]\n[pair.member]").replace("[exchange]", "[pair.exchange]");
    // That of another route server.
    let other = |line: &str| match line.strip_prefix("router_id = ").and_then(|id| id.rsplit_once('.')) {
        Some((network, host)) => format!("router_id = {network}.2{}", &host[1..]),
        None => line.to_owned(),
    };
    let text = text.replace("[router]", "[pair.router]");
    text.lines().map(|line| other(line) + "\n").collect()
}

#[test]
fn a_pair_that_fails_costs_no_route_that_the_other_has() {
    let mut both = TwoPairs::new();
    let file = both.0[0].files.member("alpha");
    let whole = read(&file);
    let check = || {
        let output = Command::new(env!("CARGO_BIN_EXE_wayleave")).arg("check").arg(&file).env("NO_COLOR", "1").output();
        let output = output.expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        // Long lines are broken.
        (output.status.success(), said.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let (is_good, said) = check();
    assert!(is_good, "{said}");
    // What would let one pair use what was made for the other.
    fs::write(&file, whole.replace(&format!("name = \"{}\"", NAMES[1]), "name = \"demo-ix\"")).expect("written");
    let (is_good, said) = check();
    assert!(!is_good && said.contains("the same name as of the pair `demo-ix`"), "{said}");
    let key = |exchange: &DemoExchange| {
        let text = read(&exchange.files.member("alpha"));
        text.lines().find(|line| line.starts_with("key = ")).expect("a key").to_owned()
    };
    let [own, other] = [key(&both.0[0]), key(&both.0[1])];
    // A copy: the files differ, and what is in them does not.
    let path = |line: &str| line.split('"').nth(1).expect("a path").to_owned();
    let copy = format!("{}.copy", path(&own));
    fs::copy(path(&own), &copy).expect("copied");
    fs::write(&file, whole.replace(&other, &format!("key = \"{copy}\""))).expect("written");
    let (is_good, said) = check();
    assert!(!is_good && said.contains("of the pair `demo-ix`"), "{said}");
    fs::write(&file, &whole).expect("written");

    for exchange in &mut both.0 {
        for party in &mut exchange.parties {
            party.role.start().expect("a party that starts");
        }
        for member in &mut exchange.members {
            member.router.start().expect("a speaker");
        }
    }
    for member in &mut both.0[0].members {
        member.role.start().expect("a member that starts");
    }
    both.announce(&[PREFIX]);
    both.eventually("the router has both winners", |both| both.has(0, BRAVO, PREFIX) && both.has(1, BRAVO, PREFIX));

    // Pages and commands are of both pairs, or of one.
    let status = both.ask(BRAVO, "/api/v1/status");
    let names: Vec<&str> =
        status["pairs"].as_array().into_iter().flatten().filter_map(|pair| pair["name"].as_str()).collect();
    assert_eq!(names, NAMES, "{status:#}");
    let choices = &status["choices_of_all_pairs"];
    assert_eq!(choices["per_hour"], 64, "both pairs' budgets: {status:#}");
    let one = both.ask(BRAVO, &format!("/api/v1/status?pair={}", NAMES[1]));
    assert_eq!((&one["exchange"], &one["installed"]), (&NAMES[1].into(), &1.into()), "{one:#}");
    let routes = both.says(BRAVO, &["show", "routes"]);
    assert!(NAMES.iter().all(|name| routes.contains(&format!("  {name}  "))), "{routes}");
    let routes = both.says(BRAVO, &["show", "routes", "--pair", NAMES[1], "--json"]);
    let routes: Value = serde_json::from_str(&routes).expect("JSON");
    assert_eq!(routes["routes"].as_array().map(Vec::len), Some(1), "{routes:#}");
    // Other programs read them in a file.
    let dump = both.0[0].files.member("bravo").with_extension("mrt");
    let write = ["show", "routes", "--mrt", dump.to_str().expect("a path")];
    let said = both.says(BRAVO, &write);
    assert!(said.contains("choose one by `--pair NAME`") && !dump.exists(), "{said}");
    let said = both.says(BRAVO, &[&write[..], &["--pair", NAMES[1]]].concat());
    assert!(said.starts_with("1 routes to 1 prefixes in "), "{said}");
    let records = MrtReader::new(fs::File::open(&dump).expect("a dump")).map(|record| record.expect("a record"));
    let routes: Vec<_> = records
        .flat_map(|record| if let Record::Rib(entries) = record { entries } else { Vec::new() })
        .map(|entry| (entry.prefix.to_string(), entry.peer_asn))
        .collect();
    assert_eq!(routes, [(PREFIX.to_owned(), Asn(64_497))]);
    let why = both.says(BRAVO, &["why", PREFIX]);
    assert!(NAMES.iter().all(|name| why.contains(&format!("from alpha (AS64497) by {name}"))), "{why}");
    let said = both.says(BRAVO, &["show", "peers", "--pair", "rs3"]);
    assert!(said.contains("no pair `rs3`"), "{said}");
    let peers = both.ask(BRAVO, "/api/v1/peers");
    assert_eq!(peers["peers"].as_array().map(Vec::len), Some(6), "{peers:#}");
    let proxy = both.0[0].members[BRAVO].at.proxy.clone();
    assert_named_by_the_rule("member", &proxy.namespace, proxy.status);
    assert_one_screen(&proxy.namespace, proxy.status);
    let metrics = get(&proxy.namespace, proxy.status, "/metrics").expect("a page");
    for name in NAMES {
        assert!(metrics.contains(&format!("wayleave_member_party1_up{{pair=\"{name}\"}} 1")), "{metrics}");
    }
    let said = both.says(BRAVO, &["session", "disable", "--pair", NAMES[1], "--message", "one of two"]);
    assert!(said.contains("the session with the router is ended"), "{said}");
    both.eventually("the session of the other pair alone is there", |both| {
        both.has(0, BRAVO, PREFIX) && !both.has(1, BRAVO, PREFIX)
    });
    both.says(BRAVO, &["session", "enable", "--pair", NAMES[1]]);
    both.eventually("both are there", |both| both.has(0, BRAVO, PREFIX) && both.has(1, BRAVO, PREFIX));

    // Both parties of the first pair fail at once.
    for party in &mut both.0[0].parties {
        party.role.kill();
    }
    both.eventually("it is said", |both| {
        let status = both.ask(BRAVO, "/api/v1/status");
        status["pairs"][0]["parties"] == serde_json::json!([false, false])
    });
    both.announce(&[PREFIX, LATER]);
    both.eventually("what is announced now comes by the other", |both| both.has(1, BRAVO, LATER));
    assert!(both.has(1, BRAVO, PREFIX), "no route of the other is lost");
    let status = both.ask(BRAVO, "/api/v1/status");
    assert_eq!(status["pairs"][1]["parties"], serde_json::json!([true, true]), "{status:#}");
    let overview = both.ask(BRAVO, "/api/v1/overview");
    assert_eq!(overview["ready"], true, "one pair does the work of both: {overview:#}");
    let problems = overview["problems"].to_string();
    assert!(problems.contains("demo-ix: ") && !problems.contains("demo-ix-rs2: "), "{problems}");
    let events = both.ask(BRAVO, &format!("/api/v1/events?pair={}", NAMES[0]));
    let is_down = |event: &Value| event["what"]["event"] == "session-down";
    assert!(events["events"].as_array().is_some_and(|events| events.iter().any(is_down)), "{events:#}");
    // They return.
    for party in &mut both.0[0].parties {
        party.role.start().expect("a party that starts");
    }
    both.eventually("both pairs have all", |both| {
        [0, 1].iter().all(|pair| both.has(*pair, BRAVO, PREFIX) && both.has(*pair, BRAVO, LATER))
    });

    // What is compared is each pair's own policy, and a reload is of the whole proxy: its errors are told once.
    let held = "[pair.member]\nnew_members = \"hold\"\nknown_slots = 1\n";
    let changed = file.with_file_name("changed.toml");
    fs::write(&changed, whole.replace("[pair.member]\n", held)).expect("written");
    let said = both.says(ALPHA, &["diff", &changed.to_string_lossy(), "--json"]);
    let said: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
    let rows = said["policy"]["routes"].as_array().map_or(&[][..], Vec::as_slice);
    let is_of_second = |row: &Value| row["pair"] == NAMES[1] && row["change"] == "hidden";
    assert!(!rows.is_empty() && rows.iter().all(is_of_second), "{said:#}");
    fs::write(&file, format!("{whole}unknown = 1\n")).expect("written");
    let said = both.says(ALPHA, &["reload"]);
    assert_eq!(said.matches("the configuration in force stays").count(), 1, "{said}");

    // Rules are of the proxy, and count for both.
    let rule = "\n[[rule]]\ndirection = \"export\"\nhide_from = [\"64498\"]\n";
    fs::write(&file, whole + rule).expect("written");
    both.0[0].members[ALPHA].role.reload().expect("it runs");
    both.eventually("neither pair gives bravo anything", |both| {
        [0, 1].iter().all(|pair| !both.has(*pair, BRAVO, PREFIX) && !both.has(*pair, BRAVO, LATER))
    });
    assert!(both.0[0].members.iter_mut().all(|member| member.role.is_running()), "{:?}", both.0[0].exited());
}

//! The steps of the demonstration, in the order played.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use wayleave_bgp::{Community, LargeCommunity};
use wayleave_core::Prefix;

use super::attested;
use super::exchange::{DemoExchange, NAME, TIMEOUT};
use super::expect::EXCHANGE;
use super::overlay;
use super::paid;
use super::{DEFAULT_PREFIXES, Options, default_table};
use crate::netns::Rung;
use crate::process::wait_until;
use crate::table::{Announcement, LearnedRoute};

/// How long the routers' tables are watched while a process is down.
const OUTAGE: Duration = Duration::from_secs(2);
/// How often they are read meanwhile.
const WATCH_EVERY: Duration = Duration::from_millis(200);
/// How long a process may take to stop after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

type Facts = Vec<String>;

/// One step: its name and what it does.
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) play: Play,
    /// The rungs that have it.
    pub(super) rungs: &'static [Rung],
    /// Whether the demonstration ends after it.
    pub(super) is_last: bool,
}

const ALL: &[Rung] = &[Rung::Root, Rung::Rootless, Rung::Simulated];
/// Gateways and stampers have interfaces of their own, and packets are captured on links.
const NAMESPACES: &[Rung] = &[Rung::Root, Rung::Rootless];
/// Without root the namespaces have one user only, and the step needs two.
const TWO_USERS: &[Rung] = &[Rung::Root];

type Play = fn(&mut DemoExchange, &Options, &mut Facts) -> Result<(), String>;

const fn step(rungs: &'static [Rung], name: &'static str, play: Play) -> Step {
    Step { name, play, rungs, is_last: false }
}

/// All steps, with the rungs that have them.
pub(super) const STEPS: &[Step] = &[
    step(ALL, "two parties, six members: all sessions are up", sessions),
    step(ALL, "announcements reach every router that may have them", announcements),
    step(ALL, "a recorded table passes through the exchange", real_table),
    step(ALL, "what party 1, party 2 and a member see of a route", views),
    step(ALL, "alpha's route stays hidden from delta, bravo's from echo", hidden),
    step(ALL, "the exchange's recommendation changes a choice, and no member learns why", recommendation),
    step(ALL, "a withdrawal reaches every table", withdrawal),
    step(ALL, "kill -9 of party 1: tables stay; after its restart nothing is lost", kill_party_1),
    step(
        ALL,
        "party 2 loses its machine, and comes back from one file without its state: no table changes",
        move_party_2,
    ),
    step(ALL, "kill -9 of a member's proxy: other members keep its routes; nothing is lost", kill_proxy),
    step(ALL, "the exchange's operator alone tries to add itself under alpha's AS", intruder),
    step(ALL, "attested announcements pass BIRD and FRR routers", attested::announced),
    step(ALL, "an AS without attestation on the path: the gap is reported, the rest is proved", attested::gap),
    step(ALL, "a hijack by a forged shorter path is refused", attested::hijack),
    step(ALL, "a stripped attestation is refused", attested::stripped),
    step(ALL, "an expired attestation is refused", attested::expired),
    step(
        NAMESPACES,
        "an overlay from nothing: ssh by name over the clean west, and over the fast east",
        overlay::by_name,
    ),
    step(
        NAMESPACES,
        "a bogus consent, a skipped node, a changed octet and a replay die where they are",
        overlay::attacks,
    ),
    step(NAMESPACES, "kill -9 of a node on the path: the session goes on over the other clean path", overlay::killed),
    step(NAMESPACES, "a consent is not renewed, and the user sees why", overlay::refused),
    step(
        TWO_USERS,
        "curl as one user crosses the paid transit, as another it does not; the bill is the capture",
        paid::transit,
    ),
    Step { name: "no alarm was raised, and every process stops on SIGTERM", play: end, rungs: ALL, is_last: true },
];

/// Announced by alpha, hidden from delta by a standard community.
const HIDDEN: &str = "203.0.113.0/26";
/// Announced by bravo, hidden from echo by a large community.
const HIDDEN_TOO: &str = "203.0.113.64/26";
/// Announced by bravo and by charlie.
const SHARED: &str = "198.51.100.0/24";

fn prefix(text: &str) -> Prefix {
    text.parse().expect("the prefixes of the scenario are prefixes")
}

fn route(text: &str) -> Announcement {
    Announcement::of(prefix(text))
}

fn sessions(exchange: &mut DemoExchange, _: &Options, facts: &mut Facts) -> Result<(), String> {
    let begin = Instant::now();
    for party in &mut exchange.parties {
        party.role.start()?;
    }
    for member in &mut exchange.members {
        member.role.start()?;
        member.router.start().map_err(|error| error.to_string())?;
    }
    let mut missing = String::new();
    let up = wait_until(TIMEOUT, || match first_missing(exchange) {
        None => Some(()),
        Some(what) => {
            missing = what;
            None
        }
    });
    up.ok_or_else(|| format!("after {} s: {missing}", TIMEOUT.as_secs()))?;
    for member in &exchange.members {
        let software = member.router.software();
        facts.push(format!("{:8} {} {software:28} session up, party 1 up, party 2 up", member.at.name, member.at.asn));
    }
    facts.push(format!("all up after {:.1} s", begin.elapsed().as_secs_f64()));
    Ok(())
}

/// The first thing that is not up yet.
fn first_missing(exchange: &mut DemoExchange) -> Option<String> {
    let members = exchange.members.len();
    for party in &exchange.parties {
        let status = match party.ask("/api/v1/status") {
            Ok(status) => status,
            Err(error) => return Some(error),
        };
        let number = party.at.number;
        if status["other_party"] != Value::Bool(true) {
            return Some(format!("party {number} is not connected to the peer party"));
        }
        let connected = status["members"].as_array().map_or(0, Vec::len);
        if connected != members {
            return Some(format!("party {number} has {connected} of {members} members"));
        }
    }
    exchange.members.iter_mut().find_map(|member| {
        let name = &member.at.name;
        match member.router.is_established() {
            Ok(true) => None,
            Ok(false) => {
                Some(format!("{name}'s router has no BGP session with its proxy: {}", member.router.log_tail()))
            }
            Err(error) => Some(error.to_string()),
        }
    })
}

fn announcements(exchange: &mut DemoExchange, _: &Options, facts: &mut Facts) -> Result<(), String> {
    let not_to_delta = Community::new(0, 64500);
    let not_to_echo = LargeCommunity::new(EXCHANGE.0, 0, 64501);
    exchange.announce("alpha", &[route(HIDDEN).with(not_to_delta), route("2001:db8:a::/48")])?;
    exchange.announce("bravo", &[route(HIDDEN_TOO).with_large(not_to_echo), route(SHARED)])?;
    exchange.announce("charlie", &[route("203.0.113.128/26"), route(SHARED)])?;
    exchange.announce("delta", &[route("203.0.113.192/26")])?;
    exchange.announce("echo", &[route("2001:db8:e::/48")])?;
    let time = exchange.settle()?;
    facts.push(format!("alpha hides {HIDDEN} from AS64500 by the community {not_to_delta}"));
    facts.push(format!("bravo hides {HIDDEN_TOO} from AS64501 by the large community {not_to_echo}"));
    let counts: Vec<String> = counts(exchange)?;
    facts.push(format!("routes in the routers: {}", counts.join(", ")));
    facts.push(format!(
        "all tables equal those of a plaintext route server, {:.1} s after the announcements",
        time.as_secs_f64()
    ));
    Ok(())
}

fn counts(exchange: &mut DemoExchange) -> Result<Vec<String>, String> {
    let tables = exchange.tables()?;
    let named = exchange.members.iter().zip(tables);
    Ok(named.map(|(member, table)| format!("{} {}", member.at.name, table.len())).collect())
}

fn real_table(exchange: &mut DemoExchange, options: &Options, facts: &mut Facts) -> Result<(), String> {
    let file = options.table.clone().unwrap_or_else(default_table);
    let (count, refused) = exchange.announce_table(&file, options.prefixes.unwrap_or(DEFAULT_PREFIXES))?;
    let time = exchange.settle()?;
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    facts.push(format!("foxtrot's customer announces {count} prefixes of {name}"));
    if !refused.is_empty() {
        let refused: Vec<String> = refused.iter().map(ToString::to_string).collect();
        facts.push(format!("and {}, which every route server refuses (RFC 7948)", refused.join(", ")));
    }
    facts.push(format!("they are in every other member's router {:.1} s later", time.as_secs_f64()));
    facts.push(format!("routes in the routers: {}", counts(exchange)?.join(", ")));
    Ok(())
}

fn views(exchange: &mut DemoExchange, _: &Options, facts: &mut Facts) -> Result<(), String> {
    for party in &exchange.parties {
        let routes = party.ask("/api/v1/routes")?;
        let views = routes.as_array().or_else(|| routes["routes"].as_array()).cloned().unwrap_or_default();
        let number = party.at.number;
        let of_hidden = views
            .iter()
            .find(|view| view["prefixes"].as_array().is_some_and(|all| all.iter().any(|p| p.as_str() == Some(HIDDEN))));
        let view = of_hidden.ok_or_else(|| format!("party {number} does not list {HIDDEN}"))?;
        facts.push(format!("party {number} sees of {HIDDEN}:"));
        let sealed = view["blob"].as_str().unwrap_or_default();
        let what = if number == 1 { "sealed route " } else { "hash of it   " };
        facts.push(format!("  {what} {sealed}..."));
        for slot in [1, 3] {
            let share = view["policy_share"][slot].as_str().unwrap_or_default();
            facts.push(format!("  share for {:8} {share}", exchange.members[slot].at.name));
        }
        let shares: Vec<&str> = views.iter().flat_map(shares_of).collect();
        facts.push(format!("  {}", looks_random(&shares)?));
    }
    let bravo = exchange.member("bravo");
    let table = bravo.router.show(prefix(HIDDEN)).map_err(|error| error.to_string())?;
    facts.push(format!("bravo, to which alpha exports the route, has it:\n{table}"));
    Ok(())
}

fn shares_of(view: &Value) -> Vec<&str> {
    view["policy_share"].as_array().map(|all| all.iter().filter_map(Value::as_str).collect()).unwrap_or_default()
}

/// Checks that the share of ones in hexadecimal shares is within five standard deviations of one half.
fn looks_random(shares: &[&str]) -> Result<String, String> {
    let digits = shares.iter().flat_map(|share| share.chars()).filter_map(|digit| digit.to_digit(16));
    let (ones, bits) = digits.fold((0u64, 0u64), |(ones, bits), d| (ones + u64::from(d.count_ones()), bits + 4));
    if bits == 0 {
        return Err("the parties list no shares".to_owned());
    }
    let (ones, bits) = (ones as f64, bits as f64);
    let share = ones / bits;
    let line = format!("{:.2} % ones in {bits} bits of shares", share * 100.0);
    let deviation = (share - 0.5).abs() / (0.25 / bits).sqrt();
    if deviation > 5.0 { Err(format!("{line}: not uniformly random")) } else { Ok(line) }
}

fn hidden(exchange: &mut DemoExchange, _: &Options, facts: &mut Facts) -> Result<(), String> {
    for (hidden, from) in [(HIDDEN, "delta"), (HIDDEN_TOO, "echo")] {
        for member in &mut exchange.members {
            let table = member.router.table().map_err(|error| error.to_string())?;
            let has = table.iter().any(|route| route.prefix == prefix(hidden));
            let announces = matches!((hidden, &member.at.name[..]), (HIDDEN, "alpha") | (HIDDEN_TOO, "bravo"));
            let may_have = member.at.name != from && !announces;
            if has != may_have {
                return Err(format!("{} {} {hidden}", member.at.name, if has { "has" } else { "lacks" }));
            }
        }
    }
    for (name, hidden) in [("charlie", HIDDEN), ("delta", HIDDEN), ("echo", HIDDEN_TOO)] {
        let shown = exchange.member(name).router.show(prefix(hidden)).map_err(|error| error.to_string())?;
        facts.push(format!("{name}: {shown}"));
    }
    let why = exchange.member("delta").ask(&format!("/api/v1/why?prefix={HIDDEN}"))?;
    facts.push(format!("wayleave why at delta's proxy: {}", why["summary"].as_str().unwrap_or_default()));
    Ok(())
}

fn recommendation(exchange: &mut DemoExchange, _: &Options, facts: &mut Facts) -> Result<(), String> {
    facts.push(format!("bravo and charlie announce {SHARED}; the other members rank both routes alike"));
    for favourite in ["charlie", "bravo"] {
        let asn = exchange.member(favourite).at.asn;
        exchange.recommend(favourite)?;
        exchange.expected.set_favourite(asn);
        let time = exchange.settle()?;
        let shown = exchange.member("delta").router.show(prefix(SHARED)).map_err(|error| error.to_string())?;
        facts.push(format!(
            "recommended: {favourite}; all tables follow after {:.1} s\ndelta: {shown}",
            time.as_secs_f64()
        ));
    }
    Ok(())
}

fn withdrawal(exchange: &mut DemoExchange, _: &Options, facts: &mut Facts) -> Result<(), String> {
    for gone in [HIDDEN_TOO, SHARED] {
        exchange.withdraw("bravo", prefix(gone))?;
    }
    let time = exchange.settle()?;
    let seconds = time.as_secs_f64();
    facts.push(format!("bravo withdraws {HIDDEN_TOO} and {SHARED}: {seconds:.1} s later no table has the first,"));
    facts.push("and all others have charlie's route to the second".to_owned());
    Ok(())
}

fn kill_party_1(exchange: &mut DemoExchange, _: &Options, facts: &mut Facts) -> Result<(), String> {
    const ANNOUNCER: &str = "alpha";
    const NEW: &str = "198.51.100.128/25";
    let before = exchange.tables()?;
    exchange.parties[0].role.kill();
    exchange.announce_also(ANNOUNCER, route(NEW))?;
    stay(exchange, &before, "party 1")?;
    facts.push(format!("{} s without party 1: no table changed", OUTAGE.as_secs()));
    exchange.parties[0].role.start()?;
    let time = exchange.settle()?;
    facts.push(format!(
        "{ANNOUNCER} announced {NEW} meanwhile: it is in all tables {:.1} s after the restart; nothing else changed",
        time.as_secs_f64()
    ));
    Ok(())
}

/// Its keys and the member set come from a copy; what it had stored it learns from party 1 and the members.
fn move_party_2(exchange: &mut DemoExchange, _: &Options, facts: &mut Facts) -> Result<(), String> {
    let files = &exchange.files;
    let (config, copy) = (files.party(2).display().to_string(), files.path("party2.tar"));
    files.tool(&["backup", "--config", &config, &copy])?;
    let octets = fs::metadata(&copy).map_err(|error| format!("{copy}: {error}"))?.len();
    facts.push(format!("`wayleave backup` while it runs: one file of {octets} octets"));
    let before = exchange.tables()?;
    exchange.parties[1].role.kill();
    for file in exchange.files.of_party_2() {
        fs::remove_file(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    exchange.announce_also("echo", route("203.0.113.208/28"))?;
    stay(exchange, &before, "party 2")?;
    facts.push(format!("kill -9, and its files are gone; {} s without it: no table changed", OUTAGE.as_secs()));
    let folder = Path::new(&config).parent().unwrap_or(Path::new(".")).display().to_string();
    exchange.files.tool(&["restore", &copy, "--to", &folder, "--outside"])?;
    exchange.parties[1].role.start()?;
    let restarted = Instant::now();
    while let Some(difference) = exchange.first_difference() {
        let has = |table: &[LearnedRoute], prefix| table.iter().any(|route| route.prefix == prefix);
        let tables = exchange.tables()?;
        let mut gone =
            before.iter().zip(&tables).flat_map(|(before, now)| before.iter().filter(|route| !has(now, route.prefix)));
        if let Some(route) = gone.next() {
            return Err(format!("a router lost {} while party 2 learnt what it had stored", route.prefix));
        }
        if restarted.elapsed() > TIMEOUT {
            return Err(format!("after {} s: {difference}", TIMEOUT.as_secs()));
        }
        sleep(WATCH_EVERY);
    }
    facts.push(format!(
        "restored from it, without its state: after {:.1} s echo's 203.0.113.208/28, announced meanwhile, is in all tables, and no router lost a route",
        restarted.elapsed().as_secs_f64()
    ));
    Ok(())
}

/// Watches the tables while a process is away.
fn stay(exchange: &mut DemoExchange, before: &[Vec<LearnedRoute>], who: &str) -> Result<(), String> {
    let begin = Instant::now();
    while begin.elapsed() < OUTAGE {
        if exchange.tables()? != before {
            return Err(format!("a table changed while {who} was away"));
        }
        sleep(WATCH_EVERY);
    }
    Ok(())
}

/// Bravo's own router loses its session and so its routes. All other members keep theirs, bravo's routes included.
fn kill_proxy(exchange: &mut DemoExchange, _: &Options, facts: &mut Facts) -> Result<(), String> {
    const KILLED: &str = "bravo";
    const NEW: &str = "203.0.113.64/27";
    let others = |exchange: &mut DemoExchange| -> Result<Vec<_>, String> {
        let tables = exchange.tables()?;
        let names = exchange.members.iter().map(|member| member.at.name != KILLED);
        Ok(tables.into_iter().zip(names).filter_map(|(table, other)| other.then_some(table)).collect())
    };
    let before = others(exchange)?;
    exchange.member(KILLED).role.kill();
    exchange.announce_also(KILLED, route(NEW))?;
    let killed = Instant::now();
    while killed.elapsed() < OUTAGE {
        if others(exchange)? != before {
            return Err("another member's table changed".to_owned());
        }
        sleep(WATCH_EVERY);
    }
    facts.push(format!("{} s without {KILLED}'s proxy: no other table changed", OUTAGE.as_secs()));
    exchange.member(KILLED).role.start()?;
    let seconds = exchange.settle()?.as_secs_f64();
    facts.push(format!("{KILLED} announced {NEW} meanwhile: it is in all tables {seconds:.1} s after the restart,"));
    facts.push(format!("and {KILLED}'s router has all routes again"));
    Ok(())
}

/// Numbers of the member set in force at both parties and at a member.
fn set_numbers(exchange: &mut DemoExchange) -> Result<[u64; 3], String> {
    let number = |status: &Value| status["member_set"].as_u64().unwrap_or(0);
    let mut numbers = [0; 3];
    for (party, shown) in exchange.parties.iter().zip(&mut numbers) {
        *shown = number(&party.ask("/api/v1/status")?);
    }
    numbers[2] = number(&exchange.member("bravo").ask("/api/v1/status")?);
    Ok(numbers)
}

/// A slot under a member's AS would get every route that others export to that AS. The operator of party 1 has all of the
/// exchange's keys but party 2's operator's.
fn intruder(exchange: &mut DemoExchange, _: &Options, facts: &mut Facts) -> Result<(), String> {
    let before = set_numbers(exchange)?;
    let asn = exchange.member("alpha").at.asn.0.to_string();
    let files = &exchange.files;
    let path = |name: &str| files.path(name);
    let (set, mine, proposal) = (files.member_set(1), path("operator1.key"), path("intrusion"));
    let (key, request) = (path("intruder.key"), path("intruder.request"));
    files.tool(&["keys", "new", &key, "--name", "intruder"])?;
    let mut wanted = vec!["members", "request", &request, "--key", &key, "--exchange", NAME, "--asn", &asn];
    wanted.extend(["--name", "alpha-2", "--address", "198.18.0.200"]);
    files.tool(&wanted)?;
    let mut proposed = vec!["members", "propose", &set, "--operator", &mine, "--out", &proposal];
    proposed.extend(["--request", &request, "--max-prefix", "alpha-2=100"]);
    let said = files.tool(&proposed)?;
    if !said.contains("HELD") {
        return Err(format!("the proposal does not say that alpha's key is missing: {said}"));
    }
    facts.push(format!("a request for AS{asn} without alpha's signature is marked: every member may hold the slot"));
    // Signed twice with the only key that it has.
    match files.tool(&["members", "countersign", &set, &proposal, "--operator", &mine, "--yes"]) {
        Ok(said) => return Err(format!("one operator signed for both: {said}")),
        Err(refused) => facts.push(format!("countersigned by the same operator: {}", last_line(&refused))),
    }
    // A set of its own, where a second key of its own stands for party 2's operator.
    let public = |file: &str| -> Result<String, String> {
        let shown = files.tool(&["keys", "show", file])?;
        let key = shown.split_whitespace().find(|word| word.starts_with("sign:ed25519:"));
        key.map(str::to_owned).ok_or_else(|| format!("{file}: no public key"))
    };
    let (forged, first, second) = (path("forged.members"), public(&mine)?, public(&key)?);
    files.tool(&["members", "init", &forged, "--exchange", NAME, "--operator1", &first, "--operator2", &second])?;
    let kept = std::fs::read(&set).map_err(|error| format!("{set}: {error}"))?;
    std::fs::copy(&forged, &set).map_err(|error| format!("{set}: {error}"))?;
    let put_back = || std::fs::write(&set, &kept).map_err(|error| format!("{set}: {error}"));
    exchange.parties[0].role.reload()?;
    sleep(OUTAGE);
    let log = exchange.parties[0].role.log_tail();
    put_back()?;
    let refused = log.lines().find(|line| line.contains("other operators"));
    facts
        .push(format!("a set with a key of its own in place of party 2's operator's: {}", refused.ok_or(log.clone())?));
    let after = set_numbers(exchange)?;
    if after != before || before[0] != before[2] {
        return Err(format!("member sets in force: {before:?} before, {after:?} after"));
    }
    facts.push(format!("the set in force is still number {} at both parties and at the members", after[0]));
    exchange.settle()?;
    Ok(())
}

fn last_line(text: &str) -> &str {
    text.lines().find(|line| line.contains("error")).unwrap_or(text).trim()
}

/// Checks the counters that stay at zero between honest processes.
fn alarms(exchange: &DemoExchange) -> Result<(), String> {
    for member in &exchange.members {
        let status = member.ask("/api/v1/status")?;
        let counters = &status["counters"];
        if counters["alarms"] != 0 || counters["bad_frames"] != 0 {
            return Err(format!("{} counts {counters}", member.at.name));
        }
    }
    for party in &exchange.parties {
        let status = party.ask("/api/v1/status")?;
        if status["counters"]["bad_frames"] != 0 {
            return Err(format!("party {} counts {}", party.at.number, status["counters"]));
        }
    }
    Ok(())
}

fn end(exchange: &mut DemoExchange, _: &Options, facts: &mut Facts) -> Result<(), String> {
    alarms(exchange)?;
    let begin = Instant::now();
    let members = exchange.members.iter_mut().map(|member| &mut member.role);
    let roles = members.chain(exchange.parties.iter_mut().map(|party| &mut party.role));
    let killed = roles.map(|role| role.stop(STOP_TIMEOUT)).filter(|in_order| !in_order).count();
    let second = exchange.attested.as_mut().is_none_or(|internet| internet.stop(STOP_TIMEOUT));
    let third = exchange.overlay.as_mut().map_or(0, overlay::SshDemo::stop);
    if killed + third > 0 || !second {
        return Err(format!("{} processes had to be killed", killed + third + usize::from(!second)));
    }
    facts.push(format!("every process stopped on SIGTERM within {:.1} s", begin.elapsed().as_secs_f64()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_rung_has_every_step_and_each_lower_one_says_which_it_lacks() {
        let missing = |rung: Rung| STEPS.iter().filter(|step| !step.rungs.contains(&rung)).count();
        assert_eq!([Rung::Root, Rung::Rootless, Rung::Simulated].map(missing), [0, 1, 5]);
    }

    #[test]
    fn shares_that_are_all_zero_are_not_random() {
        assert!(looks_random(&["00000000000000000000000000000000"]).is_err());
        assert!(looks_random(&["0123456789abcdef", "fedcba9876543210"]).is_ok());
        assert!(looks_random(&[]).is_err());
    }
}

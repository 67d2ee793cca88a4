//! The steps of the demonstration, in the order played.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use wayleave_bgp::{Community, LargeCommunity};
use wayleave_core::Prefix;

use super::attested;
use super::expect::EXCHANGE;
use super::world::{PATIENCE, World};
use super::{DEFAULT_PREFIXES, Options, default_table};
use crate::process::wait_until;
use crate::table::Announcement;

/// How long the routers' tables are watched while a party is dead.
const OUTAGE: Duration = Duration::from_secs(2);
/// How often they are looked at meanwhile.
const WATCH_EVERY: Duration = Duration::from_millis(200);
/// How long a process may take to end when asked.
const ORDERLY_END: Duration = Duration::from_secs(10);

type Facts = Vec<String>;

/// One step: what it shows, and how.
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) play: fn(&mut World, &Options, &mut Facts) -> Result<(), String>,
    /// Nothing runs after it.
    pub(super) is_last: bool,
}

const fn step(name: &'static str, play: fn(&mut World, &Options, &mut Facts) -> Result<(), String>) -> Step {
    Step { name, play, is_last: false }
}

/// All steps.
pub(super) const STEPS: &[Step] = &[
    step("two parties, six members: every session is up", sessions),
    step("live announcements reach every router that may have them", announcements),
    step("a real table passes through the exchange", real_table),
    step("what party 1 sees, what party 2 sees, what a member gets", views),
    step("alpha's route stays hidden from delta, bravo's from echo", hidden),
    step("the exchange's recommendation moves a choice, and no member learns why", recommendation),
    step("a withdrawal reaches every table", withdrawal),
    step("kill -9 of party 1: tables stay, it returns, nothing is lost", kill_party_1),
    step("kill -9 of party 2: tables stay, it returns, nothing is lost", kill_party_2),
    step("kill -9 of a member's proxy: the others keep its routes, nothing is lost", kill_proxy),
    step("attested announcements cross real BIRD and FRR", attested::announced),
    step("an AS without attestations in the middle: the gap shows, the rest is proved", attested::gap),
    step("a hijack by a forged path shorter than the real one is refused", attested::hijack),
    step("a stripped attestation is refused", attested::stripped),
    step("an expired attestation is refused", attested::expired),
    Step { name: "no alarm was raised, and all ends in order when asked", play: end, is_last: true },
];

/// Alpha's, hidden from delta by a standard community.
const HIDDEN: &str = "203.0.113.0/26";
/// Bravo's, hidden from echo by a large community.
const HIDDEN_TOO: &str = "203.0.113.64/26";
/// Announced by bravo and by charlie.
const SHARED: &str = "198.51.100.0/24";

fn prefix(text: &str) -> Prefix {
    text.parse().expect("the prefixes of the scenario are prefixes")
}

fn route(text: &str) -> Announcement {
    Announcement::of(prefix(text))
}

fn sessions(world: &mut World, _: &Options, facts: &mut Facts) -> Result<(), String> {
    let begin = Instant::now();
    for party in &mut world.parties {
        party.role.start()?;
    }
    for member in &mut world.members {
        member.role.start()?;
        member.router.start().map_err(|error| error.to_string())?;
    }
    let mut missing = String::new();
    let up = wait_until(PATIENCE, || match first_missing(world) {
        None => Some(()),
        Some(what) => {
            missing = what;
            None
        }
    });
    up.ok_or_else(|| format!("after {} s: {missing}", PATIENCE.as_secs()))?;
    for member in &world.members {
        let software = member.router.software();
        facts.push(format!("{:8} {} {software:28} session up, both parties up", member.at.name, member.at.asn));
    }
    facts.push(format!("all up after {:.1} s", begin.elapsed().as_secs_f64()));
    Ok(())
}

/// What is not up yet; `None` if all is.
fn first_missing(world: &mut World) -> Option<String> {
    let members = world.members.len();
    for party in &world.parties {
        let status = match party.ask("/api/v1/status") {
            Ok(status) => status,
            Err(error) => return Some(error),
        };
        let number = party.at.number;
        if status["other_party"] != Value::Bool(true) {
            return Some(format!("party {number} does not see the other party"));
        }
        let connected = status["members"].as_array().map_or(0, Vec::len);
        if connected != members {
            return Some(format!("party {number} has {connected} of {members} members"));
        }
    }
    world.members.iter_mut().find_map(|member| {
        let name = &member.at.name;
        match member.router.is_established() {
            Ok(true) => None,
            Ok(false) => Some(format!("{name}'s router has no session with its proxy: {}", member.router.log_tail())),
            Err(error) => Some(error.to_string()),
        }
    })
}

fn announcements(world: &mut World, _: &Options, facts: &mut Facts) -> Result<(), String> {
    let not_to_delta = Community::new(0, 64500);
    let not_to_echo = LargeCommunity::new(EXCHANGE.0, 0, 64501);
    world.announce("alpha", &[route(HIDDEN).with(not_to_delta), route("2001:db8:a::/48")])?;
    world.announce("bravo", &[route(HIDDEN_TOO).with_large(not_to_echo), route(SHARED)])?;
    world.announce("charlie", &[route("203.0.113.128/26"), route(SHARED)])?;
    world.announce("delta", &[route("203.0.113.192/26")])?;
    world.announce("echo", &[route("2001:db8:e::/48")])?;
    let time = world.settle()?;
    facts.push(format!("alpha hides {HIDDEN} from AS64500 by the community {not_to_delta}"));
    facts.push(format!("bravo hides {HIDDEN_TOO} from AS64501 by the large community {not_to_echo}"));
    let counts: Vec<String> = counts(world)?;
    facts.push(format!("routes in the routers: {}", counts.join(", ")));
    facts.push(format!(
        "every table equals what a plaintext route server would give, {:.1} s after the announcements",
        time.as_secs_f64()
    ));
    Ok(())
}

fn counts(world: &mut World) -> Result<Vec<String>, String> {
    let tables = world.tables()?;
    let named = world.members.iter().zip(tables);
    Ok(named.map(|(member, table)| format!("{} {}", member.at.name, table.len())).collect())
}

fn real_table(world: &mut World, options: &Options, facts: &mut Facts) -> Result<(), String> {
    let file = options.table.clone().unwrap_or_else(default_table);
    let (count, refused) = world.announce_table(&file, options.prefixes.unwrap_or(DEFAULT_PREFIXES))?;
    let time = world.settle()?;
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    facts.push(format!("foxtrot's customer announces {count} prefixes of {name}"));
    if !refused.is_empty() {
        let refused: Vec<String> = refused.iter().map(ToString::to_string).collect();
        facts.push(format!("and {} which is refused, as by any route server", refused.join(", ")));
    }
    facts.push(format!("in every other member's router {:.1} s later", time.as_secs_f64()));
    facts.push(format!("routes in the routers: {}", counts(world)?.join(", ")));
    Ok(())
}

fn views(world: &mut World, _: &Options, facts: &mut Facts) -> Result<(), String> {
    for party in &world.parties {
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
            facts.push(format!("  share for {:8} {share}", world.members[slot].at.name));
        }
        let shares: Vec<&str> = views.iter().flat_map(shares_of).collect();
        facts.push(format!("  {}", looks_random(&shares)?));
    }
    let bravo = world.member("bravo");
    let table = bravo.router.show(prefix(HIDDEN)).map_err(|error| error.to_string())?;
    facts.push(format!("bravo, who may have it, gets the route:\n{table}"));
    Ok(())
}

fn shares_of(view: &Value) -> Vec<&str> {
    view["policy_share"].as_array().map(|all| all.iter().filter_map(Value::as_str).collect()).unwrap_or_default()
}

/// Counts ones in hexadecimal shares: a fair coin's count lies within five standard deviations of a half.
fn looks_random(shares: &[&str]) -> Result<String, String> {
    let digits = shares.iter().flat_map(|share| share.chars()).filter_map(|digit| digit.to_digit(16));
    let (ones, bits) = digits.fold((0u64, 0u64), |(ones, bits), d| (ones + u64::from(d.count_ones()), bits + 4));
    if bits == 0 {
        return Err("no shares are shown".to_owned());
    }
    let (ones, bits) = (ones as f64, bits as f64);
    let share = ones / bits;
    let line = format!("{:.2} % ones in {bits} bits of shares", share * 100.0);
    let deviation = (share - 0.5).abs() / (0.25 / bits).sqrt();
    if deviation > 5.0 { Err(format!("{line}: not random")) } else { Ok(line) }
}

fn hidden(world: &mut World, _: &Options, facts: &mut Facts) -> Result<(), String> {
    for (hidden, from) in [(HIDDEN, "delta"), (HIDDEN_TOO, "echo")] {
        for member in &mut world.members {
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
        let shown = world.member(name).router.show(prefix(hidden)).map_err(|error| error.to_string())?;
        facts.push(format!("{name}: {shown}"));
    }
    let why = world.member("delta").ask(&format!("/api/v1/why?prefix={HIDDEN}"))?;
    facts.push(format!("delta's proxy, asked why: {}", why["summary"].as_str().unwrap_or_default()));
    Ok(())
}

fn recommendation(world: &mut World, _: &Options, facts: &mut Facts) -> Result<(), String> {
    facts.push(format!("bravo and charlie announce {SHARED}, equally good to the others"));
    for favourite in ["charlie", "bravo"] {
        let asn = world.member(favourite).at.asn;
        world.recommend(favourite)?;
        world.expected.set_favourite(asn);
        let time = world.settle()?;
        let shown = world.member("delta").router.show(prefix(SHARED)).map_err(|error| error.to_string())?;
        facts.push(format!("recommended: {favourite}; all follow after {:.1} s\ndelta: {shown}", time.as_secs_f64()));
    }
    Ok(())
}

fn withdrawal(world: &mut World, _: &Options, facts: &mut Facts) -> Result<(), String> {
    for gone in [HIDDEN_TOO, SHARED] {
        world.withdraw("bravo", prefix(gone))?;
    }
    let time = world.settle()?;
    let seconds = time.as_secs_f64();
    facts.push(format!("bravo withdraws {HIDDEN_TOO} and {SHARED}: {seconds:.1} s later the first is nowhere,"));
    facts.push("and of the second everyone has charlie's route".to_owned());
    Ok(())
}

fn kill_party_1(world: &mut World, _: &Options, facts: &mut Facts) -> Result<(), String> {
    kill_party(world, 0, "alpha", "198.51.100.128/25", facts)
}

fn kill_party_2(world: &mut World, _: &Options, facts: &mut Facts) -> Result<(), String> {
    kill_party(world, 1, "echo", "203.0.113.208/28", facts)
}

fn kill_party(world: &mut World, index: usize, announcer: &str, new: &str, facts: &mut Facts) -> Result<(), String> {
    let before = world.tables()?;
    world.parties[index].role.kill();
    world.announce_also(announcer, route(new))?;
    let killed = Instant::now();
    while killed.elapsed() < OUTAGE {
        if world.tables()? != before {
            return Err("a table changed while a party was dead".to_owned());
        }
        sleep(WATCH_EVERY);
    }
    facts.push(format!("for {} s without party {}: no table changed", OUTAGE.as_secs(), index + 1));
    world.parties[index].role.start()?;
    let time = world.settle()?;
    facts.push(format!(
        "{announcer} announced {new} meanwhile: in every table {:.1} s after the restart; all else is as it was",
        time.as_secs_f64()
    ));
    Ok(())
}

/// Bravo's own router loses its session and so its routes; everybody else keeps everything, bravo's routes included.
fn kill_proxy(world: &mut World, _: &Options, facts: &mut Facts) -> Result<(), String> {
    const DEAD: &str = "bravo";
    const NEW: &str = "203.0.113.64/27";
    let others = |world: &mut World| -> Result<Vec<_>, String> {
        let tables = world.tables()?;
        let names = world.members.iter().map(|member| member.at.name != DEAD);
        Ok(tables.into_iter().zip(names).filter_map(|(table, other)| other.then_some(table)).collect())
    };
    let before = others(world)?;
    world.member(DEAD).role.kill();
    world.announce_also(DEAD, route(NEW))?;
    let killed = Instant::now();
    while killed.elapsed() < OUTAGE {
        if others(world)? != before {
            return Err("another member's table changed".to_owned());
        }
        sleep(WATCH_EVERY);
    }
    facts.push(format!("for {} s without {DEAD}'s proxy: no other table changed", OUTAGE.as_secs()));
    world.member(DEAD).role.start()?;
    let seconds = world.settle()?.as_secs_f64();
    facts.push(format!("{DEAD} announced {NEW} meanwhile: in every table {seconds:.1} s after the restart,"));
    facts.push(format!("and {DEAD}'s router has everything again"));
    Ok(())
}

/// What honest processes never count.
fn alarms(world: &World) -> Result<(), String> {
    for member in &world.members {
        let status = member.ask("/api/v1/status")?;
        let counters = &status["counters"];
        if counters["alarms"] != 0 || counters["bad_frames"] != 0 {
            return Err(format!("{} counts {counters}", member.at.name));
        }
    }
    for party in &world.parties {
        let status = party.ask("/api/v1/status")?;
        if status["counters"]["bad_frames"] != 0 {
            return Err(format!("party {} counts {}", party.at.number, status["counters"]));
        }
    }
    Ok(())
}

fn end(world: &mut World, _: &Options, facts: &mut Facts) -> Result<(), String> {
    alarms(world)?;
    let begin = Instant::now();
    let members = world.members.iter_mut().map(|member| &mut member.role);
    let roles = members.chain(world.parties.iter_mut().map(|party| &mut party.role));
    let killed = roles.map(|role| role.stop(ORDERLY_END)).filter(|in_order| !in_order).count();
    let second = world.attested.as_mut().is_none_or(|internet| internet.stop(ORDERLY_END));
    if killed > 0 || !second {
        return Err(format!("{} processes had to be killed", killed + usize::from(!second)));
    }
    facts.push(format!("every process ended on SIGTERM within {:.1} s", begin.elapsed().as_secs_f64()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_that_are_all_zero_are_not_random() {
        assert!(looks_random(&["00000000000000000000000000000000"]).is_err());
        assert!(looks_random(&["0123456789abcdef", "fedcba9876543210"]).is_ok());
        assert!(looks_random(&[]).is_err());
    }
}

//! The demonstration's second internet: attested paths through real routers, and what does not pass for one.
//!
//! ```text
//! golf ---- hotel ---- india ---- juliet ---- kilo ---- lima
//! BIRD      FRR        BIRD       FRR         BIRD      BIRD
//! attests   attests    knows      attests     attests   knows
//!                      nothing                 |        nothing
//!                                           mallory ------+
//! ```

use std::time::{Duration, Instant};

use wayleave_core::{Asn, Prefix};

use super::Options;
use super::forge;
use super::internet::{Internet, Plan, Proxied};
use super::layout::Software::{Bird, Frr};
use super::world::{PATIENCE, World};
use crate::process::wait_until;
use crate::speaker::Routes;

type Facts = Vec<String>;

const GOLF: Asn = Asn(64505);
const MALLORY: Asn = Asn(64511);
/// What kilo's proxy marks a route with a gap with, for its own router.
const GAP: &str = "64509:1:2";
/// Golf's.
const PREFIXES: [&str; 3] = ["198.51.100.0/25", "203.0.113.0/24", "2001:db8:6000::/36"];
/// What mallory wants.
const WANTED: &str = "203.0.113.0/24";
/// Part of golf's, of which golf once told mallory.
const LENT: &str = "203.0.113.128/25";
/// The real path to golf, as kilo has it, and as lima has it.
const TO_KILO: [u32; 4] = [64508, 64507, 64506, 64505];
const TO_LIMA: [u32; 5] = [64509, 64508, 64507, 64506, 64505];

fn prefix(text: &str) -> Prefix {
    text.parse().expect("the prefixes of the scenario are prefixes")
}

fn plan() -> Plan {
    let golf = Proxied::strict(&PREFIXES.map(prefix));
    let kilo = Proxied { policy: format!("gap = {{ large_community = \"{GAP}\" }}\n"), ..Proxied::strict(&[]) };
    Plan::default()
        .attesting("golf", GOLF.0, Bird, golf)
        .attesting("hotel", 64506, Frr, Proxied::strict(&[]))
        .legacy("india", 64507, Bird)
        .attesting("juliet", 64508, Frr, Proxied::strict(&[]))
        .attesting("kilo", 64509, Bird, kilo)
        .legacy("lima", 64510, Bird)
        .link("golf", "hotel")
        .link("hotel", "india")
        .link("india", "juliet")
        .link("juliet", "kilo")
        .link("kilo", "lima")
        .guest("mallory", MALLORY.0, "kilo")
        .guest("mallory-too", MALLORY.0, "lima")
}

/// Golf's routes go out and are attested hop by hop.
pub(super) fn announced(world: &mut World, _: &Options, facts: &mut Facts) -> Result<(), String> {
    let begin = Instant::now();
    let internet = Internet::new(plan(), world.ground(), world.binary(), "attested")?;
    let internet = world.attested.insert(internet);
    internet.announce("golf", &PREFIXES.map(prefix))?;
    internet.start()?;
    let mut missing = String::new();
    let up = wait_until(PATIENCE, || match internet.first_missing() {
        None => Some(()),
        Some(what) => {
            missing = what;
            None
        }
    });
    up.ok_or_else(|| format!("after {} s: {missing}", PATIENCE.as_secs()))?;
    has_path(internet, "hotel", PREFIXES[0], &[GOLF.0])?;
    for text in PREFIXES {
        let verdict = verdict(internet, "hotel", text)?;
        if verdict != "valid" {
            return Err(format!("hotel's proxy calls {text} {verdict}"));
        }
    }
    for site in &internet.sites {
        let proxy = if site.plan.proxy.is_some() { "behind an attesting proxy" } else { "without attestations" };
        facts.push(format!("{:7} {} {:28} {proxy}", site.plan.name, site.plan.asn, site.router.software()));
    }
    facts.push(format!("golf announces {}: valid at hotel's proxy, one hop", PREFIXES.join(", ")));
    facts.push(show(internet, "hotel", PREFIXES[0])?);
    facts.push(format!("all up and attested after {:.1} s", begin.elapsed().as_secs_f64()));
    Ok(())
}

/// India's router carries what it does not know; juliet signs again, and kilo sees which part is proved.
pub(super) fn gap(world: &mut World, _: &Options, facts: &mut Facts) -> Result<(), String> {
    let internet = running(world)?;
    for text in PREFIXES {
        has_path(internet, "kilo", text, &TO_KILO)?;
        has_path(internet, "lima", text, &TO_LIMA)?;
        for name in ["juliet", "kilo"] {
            let verdict = verdict(internet, name, text)?;
            if verdict != "gap" {
                return Err(format!("{name}'s proxy calls {text} {verdict}, not a gap"));
            }
        }
    }
    let table = internet.site("kilo").best().map_err(|error| error.to_string())?;
    let marked = |route: &&crate::table::LearnedRoute| route.large_communities.iter().any(|c| c.to_string() == GAP);
    let tagged = table.iter().filter(marked).count();
    if tagged != PREFIXES.len() {
        return Err(format!("{tagged} of {} routes in kilo's router are tagged {GAP}", PREFIXES.len()));
    }
    facts.push("india knows nothing of attestations; its BIRD passes them on as they are".to_owned());
    facts.push(show(internet, "kilo", WANTED)?);
    facts.push(format!("kilo's proxy: a gap at AS64507, all else is proved; its router sees that as {GAP}"));
    facts.push(chain(internet, "kilo", WANTED)?);
    Ok(())
}

/// Mallory claims to be next to golf, with golf's own attestation, copied.
pub(super) fn hijack(world: &mut World, _: &Options, facts: &mut Facts) -> Result<(), String> {
    let internet = running(world)?;
    let wanted = prefix(WANTED);
    let mallory = internet.guest("mallory");
    let identity = mallory.identity.clone();
    let speaker = mallory.start();
    let heard = wait_until(PATIENCE, || speaker.learned().get(&wanted).and_then(forge::attestation));
    let copied = heard.ok_or("mallory hears no attested route from kilo")?;
    let forged = forge::route(&identity, &[MALLORY, GOLF], Some(&copied));
    speaker.announce(Routes::from([(wanted, forged.clone())]));
    let believes = internet.guests.iter().any(|guest| guest.identity.name == "mallory-too");
    if believes {
        let guest = internet.guest("mallory-too");
        let forged = forge::route(&guest.identity.clone(), &[MALLORY, GOLF], Some(&copied));
        guest.start().announce(Routes::from([(wanted, forged)]));
    }
    let why = refused(internet, "invalid", WANTED, 2)?;
    has_path(internet, "kilo", WANTED, &TO_KILO)?;
    facts
        .push(format!("mallory tells kilo: {WANTED} by AS{} AS{}, with golf's attestation, copied", MALLORY.0, GOLF.0));
    facts.push(format!("that path is shorter than the real one by two; kilo's proxy refuses it: {why}"));
    facts.push(show(internet, "kilo", WANTED)?);
    if believes {
        has_path(internet, "lima", WANTED, &[MALLORY.0, GOLF.0])?;
        facts.push(format!("lima, which checks nothing, believes the same lie:\n{}", show(internet, "lima", WANTED)?));
        internet.guest("mallory-too").start().announce(Routes::new());
        has_path(internet, "lima", WANTED, &TO_LIMA)?;
    }
    quiet(internet)
}

/// Mallory takes the attestation off.
pub(super) fn stripped(world: &mut World, _: &Options, facts: &mut Facts) -> Result<(), String> {
    let internet = running(world)?;
    let mallory = internet.guest("mallory");
    let identity = mallory.identity.clone();
    let route = forge::route(&identity, &[MALLORY, Asn(64506), GOLF], None);
    mallory.start().announce(Routes::from([(prefix(WANTED), route)]));
    let why = refused(internet, "invalid", WANTED, 3)?;
    has_path(internet, "kilo", WANTED, &TO_KILO)?;
    facts.push(format!("mallory tells kilo: {WANTED} by AS{} AS64506 AS{}, no attestation", MALLORY.0, GOLF.0));
    facts.push(format!("golf's record says that its routes always have one: refused: {why}"));
    facts.push(show(internet, "kilo", WANTED)?);
    quiet(internet)
}

/// What golf once signed for mallory counts for an hour and no longer.
pub(super) fn expired(world: &mut World, _: &Options, facts: &mut Facts) -> Result<(), String> {
    let internet = running(world)?;
    let lent = prefix(LENT);
    let key = internet.folder.join("golf.key");
    let attested = |ago| forge::attest(&key, GOLF, lent, MALLORY, Duration::from_secs(ago));
    let (fresh, stale) = (attested(60)?, attested(3 * 3600)?);
    let mallory = internet.guest("mallory");
    let identity = mallory.identity.clone();
    let route = |value: &[u8]| Routes::from([(lent, forge::route(&identity, &[MALLORY, GOLF], Some(value)))]);
    mallory.start().announce(route(&fresh));
    has_path(internet, "kilo", LENT, &[MALLORY.0, GOLF.0])?;
    facts.push(format!("golf attests {LENT} to mallory, for an hour; mallory passes it on, and kilo has it:"));
    facts.push(show(internet, "kilo", LENT)?);
    internet.guest("mallory").start().announce(route(&stale));
    let why = refused(internet, "expired", LENT, 2)?;
    is_gone(internet, "kilo", LENT)?;
    facts.push(format!("the same, signed three hours ago: refused: {why}"));
    facts.push(show(internet, "kilo", LENT)?);
    quiet(internet)
}

fn running(world: &mut World) -> Result<&mut Internet, String> {
    world.attested.as_mut().ok_or_else(|| "the second internet does not run".to_owned())
}

/// Mallory says nothing any more.
fn quiet(internet: &mut Internet) -> Result<(), String> {
    internet.guest("mallory").start().announce(Routes::new());
    let dead = internet.dead();
    if dead.is_empty() { Ok(()) } else { Err(format!("not running: {}", dead.join("\n"))) }
}

/// Waits until the router of `name` uses this path.
fn has_path(internet: &mut Internet, name: &str, text: &str, path: &[u32]) -> Result<(), String> {
    let wanted: Vec<Asn> = path.iter().map(|asn| Asn(*asn)).collect();
    let mut last = None;
    let found = wait_until(PATIENCE, || {
        let table = internet.site(name).best().ok()?;
        last = table.into_iter().find(|route| route.prefix == prefix(text)).map(|route| route.as_path);
        (last.as_ref() == Some(&wanted)).then_some(())
    });
    found.ok_or_else(|| format!("{name} has {text} by {last:?}, not by {wanted:?}"))
}

fn is_gone(internet: &mut Internet, name: &str, text: &str) -> Result<(), String> {
    let gone = wait_until(PATIENCE, || {
        let table = internet.site(name).best().ok()?;
        (!table.iter().any(|route| route.prefix == prefix(text))).then_some(())
    });
    gone.ok_or_else(|| format!("{name} still has {text}"))
}

fn show(internet: &mut Internet, name: &str, text: &str) -> Result<String, String> {
    let shown = internet.site(name).router.show(prefix(text)).map_err(|error| error.to_string())?;
    let table = internet.site(name).best().map_err(|error| error.to_string())?;
    let path = table.into_iter().find(|route| route.prefix == prefix(text)).map(|route| route.as_path);
    let path = path.map(|path| path.iter().map(|asn| asn.0.to_string()).collect::<Vec<_>>().join(" "));
    let path = path.map_or(String::new(), |path| format!("\nby the AS path {path}"));
    Ok(format!("{name}: {shown}{path}"))
}

/// What the proxy of `name` says of each route to a prefix that came from outside.
fn verdicts(internet: &mut Internet, name: &str, text: &str) -> Result<Vec<serde_json::Value>, String> {
    let why = internet.site(name).ask(&format!("/api/v1/why?prefix={text}"))?;
    let routes = why["routes"].as_array().into_iter().flatten();
    Ok(routes.filter(|route| route["direction"] == "in").cloned().collect())
}

/// The class of the route to a prefix that the proxy of `name` lets inside.
fn verdict(internet: &mut Internet, name: &str, text: &str) -> Result<String, String> {
    let mut last = Vec::new();
    let found = wait_until(PATIENCE, || {
        last = verdicts(internet, name, text).ok()?;
        last.iter().find_map(|route| route["class"].as_str().map(str::to_owned))
    });
    found.ok_or_else(|| format!("{name}'s proxy says of {text}: {last:?}"))
}

/// Waits until kilo's proxy has refused mallory's route by a path of so many ASes as `class`; why.
fn refused(internet: &mut Internet, class: &str, text: &str, length: usize) -> Result<String, String> {
    let mut last = Vec::new();
    let found = wait_until(PATIENCE, || {
        last = verdicts(internet, "kilo", text).ok()?;
        let is_it = |route: &&serde_json::Value| {
            let path = route["as_path"].as_array().map(Vec::len);
            route["pair"] == "mallory" && route["class"] == class && path == Some(length)
        };
        let of_class = last.iter().find(is_it);
        of_class.map(|route| route["reason"].as_str().unwrap_or_default().to_owned())
    });
    found.ok_or_else(|| format!("kilo's proxy says of {text}: {last:?}"))
}

/// `wayleave why PREFIX`, as a person asks it.
fn chain(internet: &mut Internet, name: &str, text: &str) -> Result<String, String> {
    let routes = verdicts(internet, name, text)?;
    let first = routes.first().ok_or("no route")?;
    let line = |hop: &serde_json::Value| format!("  {}: {}", hop["asn"], hop["words"].as_str().unwrap_or_default());
    let hops: Vec<String> = first["hops"].as_array().into_iter().flatten().map(line).collect();
    Ok(hops.join("\n"))
}

//! The demonstration's second internet: attested paths through real routers, and forged ones that are refused.
//!
//! ```text
//! golf ---- hotel ---- india ---- juliet ---- kilo ---- lima
//! BIRD      FRR        BIRD       FRR         BIRD      BIRD
//! attests   attests    legacy     attests     attests   legacy
//!                                              |           |
//!                                           mallory ------+
//! ```

use std::time::{Duration, Instant};

use wayleave_core::{Asn, Prefix};

use super::Options;
use super::exchange::{DemoExchange, TIMEOUT};
use super::forge;
use super::internet::{Internet, Plan, ProxyPlan};
use super::layout::Software::{Bird, Frr};
use crate::process::wait_until;
use crate::speaker::Routes;

type Facts = Vec<String>;

const GOLF: Asn = Asn(64505);
const MALLORY: Asn = Asn(64511);
/// The large community with which kilo's proxy marks a route with a gap.
const GAP: &str = "64509:1:2";
/// Originated by golf.
const PREFIXES: [&str; 3] = ["198.51.100.0/25", "203.0.113.0/24", "2001:db8:6000::/36"];
/// The prefix that mallory hijacks.
const HIJACKED: &str = "203.0.113.0/24";
/// Part of golf's address space that golf once announced to mallory.
const LENT: &str = "203.0.113.128/25";
/// The real paths to golf at kilo and at lima.
const TO_KILO: [u32; 4] = [64508, 64507, 64506, 64505];
const TO_LIMA: [u32; 5] = [64509, 64508, 64507, 64506, 64505];

fn prefix(text: &str) -> Prefix {
    text.parse().expect("the prefixes of the scenario are prefixes")
}

fn plan() -> Plan {
    let golf = ProxyPlan::strict(&PREFIXES.map(prefix));
    let kilo = ProxyPlan { policy: format!("gap = {{ large_community = \"{GAP}\" }}\n"), ..ProxyPlan::strict(&[]) };
    Plan::default()
        .attesting("golf", GOLF.0, Bird, golf)
        .attesting("hotel", 64506, Frr, ProxyPlan::strict(&[]))
        .legacy("india", 64507, Bird)
        .attesting("juliet", 64508, Frr, ProxyPlan::strict(&[]))
        .attesting("kilo", 64509, Bird, kilo)
        .legacy("lima", 64510, Bird)
        .link("golf", "hotel")
        .link("hotel", "india")
        .link("india", "juliet")
        .link("juliet", "kilo")
        .link("kilo", "lima")
        .injector("mallory", MALLORY.0, "kilo")
        .injector("mallory-too", MALLORY.0, "lima")
}

/// Golf's routes are attested hop by hop.
pub(super) fn announced(exchange: &mut DemoExchange, _: &Options, facts: &mut Facts) -> Result<(), String> {
    let begin = Instant::now();
    let internet = Internet::new(plan(), exchange.testbed(), exchange.binary(), "attested")?;
    let internet = exchange.attested.insert(internet);
    internet.announce("golf", &PREFIXES.map(prefix))?;
    internet.start()?;
    let mut missing = String::new();
    let up = wait_until(TIMEOUT, || match internet.first_missing() {
        None => Some(()),
        Some(what) => {
            missing = what;
            None
        }
    });
    up.ok_or_else(|| format!("after {} s: {missing}", TIMEOUT.as_secs()))?;
    has_path(internet, "hotel", PREFIXES[0], &[GOLF.0])?;
    for text in PREFIXES {
        let verdict = verdict(internet, "hotel", text)?;
        if verdict != "valid" {
            return Err(format!("at hotel's proxy {text} is {verdict}, not valid"));
        }
    }
    for site in &internet.sites {
        let proxy = if site.plan.proxy.is_some() { "behind an attesting proxy" } else { "without attestation" };
        facts.push(format!("{:7} {} {:28} {proxy}", site.plan.name, site.plan.asn, site.router.software()));
    }
    facts.push(format!("golf announces {}: valid at hotel's proxy, one hop", PREFIXES.join(", ")));
    facts.push(show(internet, "hotel", PREFIXES[0])?);
    facts.push(format!("all sessions up, all routes attested after {:.1} s", begin.elapsed().as_secs_f64()));
    Ok(())
}

/// India's router passes the unknown attribute on; juliet signs again, and kilo validates both parts.
pub(super) fn gap(exchange: &mut DemoExchange, _: &Options, facts: &mut Facts) -> Result<(), String> {
    let internet = running(exchange)?;
    for text in PREFIXES {
        has_path(internet, "kilo", text, &TO_KILO)?;
        has_path(internet, "lima", text, &TO_LIMA)?;
        for name in ["juliet", "kilo"] {
            let verdict = verdict(internet, name, text)?;
            if verdict != "gap" {
                return Err(format!("at {name}'s proxy {text} is {verdict}, not a gap"));
            }
        }
    }
    let table = internet.site("kilo").best().map_err(|error| error.to_string())?;
    let marked = |route: &&crate::table::LearnedRoute| route.large_communities.iter().any(|c| c.to_string() == GAP);
    let tagged = table.iter().filter(marked).count();
    if tagged != PREFIXES.len() {
        return Err(format!("{tagged} of {} routes in kilo's router are tagged {GAP}", PREFIXES.len()));
    }
    facts.push("india does not know attestation; its BIRD passes the attribute on unchanged".to_owned());
    facts.push(show(internet, "kilo", HIJACKED)?);
    facts.push(format!(
        "kilo's proxy: gap at AS64507, the rest of the path is proved; its router gets the community {GAP}"
    ));
    facts.push(chain(internet, "kilo", HIJACKED)?);
    Ok(())
}

/// Mallory claims to be golf's neighbour, with a copy of golf's attestation.
pub(super) fn hijack(exchange: &mut DemoExchange, _: &Options, facts: &mut Facts) -> Result<(), String> {
    let internet = running(exchange)?;
    let wanted = prefix(HIJACKED);
    let mallory = internet.injector("mallory");
    let identity = mallory.identity.clone();
    let speaker = mallory.start();
    let heard = wait_until(TIMEOUT, || speaker.learned().get(&wanted).and_then(forge::attestation));
    let copied = heard.ok_or("mallory received no attested route from kilo")?;
    let forged = forge::route(&identity, &[MALLORY, GOLF], Some(&copied));
    speaker.announce(Routes::from([(wanted, forged.clone())]));
    let has_second = internet.injectors.iter().any(|injector| injector.identity.name == "mallory-too");
    if has_second {
        let injector = internet.injector("mallory-too");
        let forged = forge::route(&injector.identity.clone(), &[MALLORY, GOLF], Some(&copied));
        injector.start().announce(Routes::from([(wanted, forged)]));
    }
    let why = refused(internet, "invalid", HIJACKED, 2)?;
    has_path(internet, "kilo", HIJACKED, &TO_KILO)?;
    facts.push(format!(
        "mallory announces to kilo: {HIJACKED} by AS{} AS{}, with a copy of golf's attestation",
        MALLORY.0, GOLF.0
    ));
    facts.push(format!("that path is two ASes shorter than the real one; kilo's proxy refuses it: {why}"));
    facts.push(show(internet, "kilo", HIJACKED)?);
    if has_second {
        has_path(internet, "lima", HIJACKED, &[MALLORY.0, GOLF.0])?;
        facts.push(format!(
            "lima, which validates nothing, uses the same forged route:\n{}",
            show(internet, "lima", HIJACKED)?
        ));
        internet.injector("mallory-too").start().announce(Routes::new());
        has_path(internet, "lima", HIJACKED, &TO_LIMA)?;
    }
    finish(internet)
}

/// Mallory removes the attestation.
pub(super) fn stripped(exchange: &mut DemoExchange, _: &Options, facts: &mut Facts) -> Result<(), String> {
    let internet = running(exchange)?;
    let mallory = internet.injector("mallory");
    let identity = mallory.identity.clone();
    let route = forge::route(&identity, &[MALLORY, Asn(64506), GOLF], None);
    mallory.start().announce(Routes::from([(prefix(HIJACKED), route)]));
    let why = refused(internet, "invalid", HIJACKED, 3)?;
    has_path(internet, "kilo", HIJACKED, &TO_KILO)?;
    facts.push(format!(
        "mallory announces to kilo: {HIJACKED} by AS{} AS64506 AS{}, without attestation",
        MALLORY.0, GOLF.0
    ));
    facts.push(format!("golf's record demands an attestation; refused: {why}"));
    facts.push(show(internet, "kilo", HIJACKED)?);
    finish(internet)
}

/// What golf once signed for mallory is valid for an hour.
pub(super) fn expired(exchange: &mut DemoExchange, _: &Options, facts: &mut Facts) -> Result<(), String> {
    let internet = running(exchange)?;
    let lent = prefix(LENT);
    let key = internet.folder.join("golf.key");
    let attested = |ago| forge::attest(&key, GOLF, lent, MALLORY, Duration::from_secs(ago));
    let (fresh, stale) = (attested(60)?, attested(3 * 3600)?);
    let mallory = internet.injector("mallory");
    let identity = mallory.identity.clone();
    let route = |value: &[u8]| Routes::from([(lent, forge::route(&identity, &[MALLORY, GOLF], Some(value)))]);
    mallory.start().announce(route(&fresh));
    has_path(internet, "kilo", LENT, &[MALLORY.0, GOLF.0])?;
    facts.push(format!("golf signs {LENT} for mallory, for one hour; mallory passes it on, and kilo has it:"));
    facts.push(show(internet, "kilo", LENT)?);
    internet.injector("mallory").start().announce(route(&stale));
    let why = refused(internet, "expired", LENT, 2)?;
    is_gone(internet, "kilo", LENT)?;
    facts.push(format!("the same, signed three hours ago; refused: {why}"));
    facts.push(show(internet, "kilo", LENT)?);
    finish(internet)
}

fn running(exchange: &mut DemoExchange) -> Result<&mut Internet, String> {
    exchange.attested.as_mut().ok_or_else(|| "the internet of attesting sites is not running".to_owned())
}

/// Mallory withdraws everything; no proxy may have exited.
fn finish(internet: &mut Internet) -> Result<(), String> {
    internet.injector("mallory").start().announce(Routes::new());
    let exited = internet.exited();
    if exited.is_empty() { Ok(()) } else { Err(format!("not running: {}", exited.join("\n"))) }
}

/// Waits until the router of `name` uses this path.
fn has_path(internet: &mut Internet, name: &str, text: &str, path: &[u32]) -> Result<(), String> {
    let wanted: Vec<Asn> = path.iter().map(|asn| Asn(*asn)).collect();
    let mut last = None;
    let found = wait_until(TIMEOUT, || {
        let table = internet.site(name).best().ok()?;
        last = table.into_iter().find(|route| route.prefix == prefix(text)).map(|route| route.as_path);
        (last.as_ref() == Some(&wanted)).then_some(())
    });
    found.ok_or_else(|| format!("{name} has {text} with path {last:?}, not {wanted:?}"))
}

fn is_gone(internet: &mut Internet, name: &str, text: &str) -> Result<(), String> {
    let gone = wait_until(TIMEOUT, || {
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

/// The verdicts of the proxy of `name` on each route to a prefix from outside.
fn verdicts(internet: &mut Internet, name: &str, text: &str) -> Result<Vec<serde_json::Value>, String> {
    let why = internet.site(name).ask(&format!("/api/v1/why?prefix={text}"))?;
    let routes = why["routes"].as_array().into_iter().flatten();
    Ok(routes.filter(|route| route["direction"] == "in").cloned().collect())
}

/// The class of the route to a prefix that the proxy of `name` lets inside.
fn verdict(internet: &mut Internet, name: &str, text: &str) -> Result<String, String> {
    let mut last = Vec::new();
    let found = wait_until(TIMEOUT, || {
        last = verdicts(internet, name, text).ok()?;
        last.iter().find_map(|route| route["class"].as_str().map(str::to_owned))
    });
    found.ok_or_else(|| format!("verdicts of {name}'s proxy on {text}: {last:?}"))
}

/// Waits until kilo's proxy has refused mallory's route with `length` ASes as `class`; returns the reason.
fn refused(internet: &mut Internet, class: &str, text: &str, length: usize) -> Result<String, String> {
    let mut last = Vec::new();
    let found = wait_until(TIMEOUT, || {
        last = verdicts(internet, "kilo", text).ok()?;
        let is_it = |route: &&serde_json::Value| {
            let path = route["as_path"].as_array().map(Vec::len);
            route["pair"] == "mallory" && route["class"] == class && path == Some(length)
        };
        let of_class = last.iter().find(is_it);
        of_class.map(|route| route["reason"].as_str().unwrap_or_default().to_owned())
    });
    found.ok_or_else(|| format!("verdicts of kilo's proxy on {text}: {last:?}"))
}

/// The hops of `wayleave why PREFIX`.
fn chain(internet: &mut Internet, name: &str, text: &str) -> Result<String, String> {
    let routes = verdicts(internet, name, text)?;
    let first = routes.first().ok_or("no route")?;
    let line = |hop: &serde_json::Value| format!("  {}: {}", hop["asn"], hop["words"].as_str().unwrap_or_default());
    let hops: Vec<String> = first["hops"].as_array().into_iter().flatten().map(line).collect();
    Ok(hops.join("\n"))
}

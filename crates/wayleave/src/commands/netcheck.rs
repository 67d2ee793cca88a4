//! `netcheck`: what the network lets through between a node of an overlay and its neighbours, and what to do where it does not.
//!
//! A role that runs has sessions with its neighbours, and its page says how they are. For one that does not, sessions are begun here by
//! its configuration and what its state has of the realm, for some seconds. A session goes by one family of addresses; at those of the
//! other one neighbours are asked without a session whether they answer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use wayleave_control::advert::Endpoint;
use wayleave_core::IdentityKey;
use wayleave_dataplane::link::Links;
use wayleave_runtime::Clock;
use wayleave_runtime::packets::{Burst, Outgoing, Port, tls, wait};

use crate::config::Source;
use crate::config::gateway::GatewayFile;
use crate::config::links::{LinkSocket, OpenLinks, machine, peers, session_peers, sockets};
use crate::config::overlay::{OverlaySection, Settings};
use crate::config::router::RouterFile;
use crate::failure::{Failure, Outcome};
use crate::fetch::{self, Target};
use crate::output::{cell, print, print_json, warn};
use crate::roles::links::{MOST_APART, open_socket, rows};

/// Sessions that are begun here have so long.
const PROBE: Duration = Duration::from_secs(8);
/// Then other endpoints than theirs are asked, and have so long: three attempts, a second apart.
const ASKED: Duration = Duration::from_millis(3_500);
/// How often a role is asked for what came of it.
const LOOK: Duration = Duration::from_millis(250);
/// A server over TLS may take so long to answer.
const TLS: Duration = Duration::from_secs(5);
/// Octets of the smallest datagram that every link has to pass: an IPv6 packet of 1,280.
const LEAST: u64 = 1_232;

#[derive(Args, Debug)]
pub struct NetCheck {
    #[command(flatten)]
    pub target: Target,
    #[arg(long)]
    pub json: bool,
}

/// Something that was found, and what to do about it if it is bad.
struct Finding {
    about: String,
    words: String,
    advice: Option<&'static str>,
}

pub fn run(command: &NetCheck) -> Outcome {
    let (links, is_running) = match fetch::json(&command.target, "/api/v1/links?ask=1") {
        Ok(_) => (asked(&command.target)?, true),
        Err(failures) => match &command.target.config {
            Some(config) => (probe(&Source::read(config)?)?, false),
            None => return Err(failures),
        },
    };
    let reached = tls_reached(&links)?;
    let mut found: Vec<Finding> = links.iter().flat_map(|link| of_link(link, &reached)).collect();
    found.extend(families(&links));
    let mapping = mapping(&links);
    found.extend(mapping.finding());
    if links.is_empty() {
        found.push(Finding {
            about: "links".to_owned(),
            words: "no neighbour is a member with an advert that is known here".to_owned(),
            advice: Some("let the role run once, so that its state has the realm, and see `wayleave show neighbours`"),
        });
    }
    if command.json {
        let finding = |finding: &Finding| json!({ "about": finding.about, "good": finding.advice.is_none(), "words": finding.words, "advice": finding.advice });
        let reached: BTreeMap<String, Value> =
            reached.iter().map(|(at, result)| (at.to_string(), json!(result.as_ref().err()))).collect();
        print_json(json!({
            "running": is_running,
            "links": links,
            "nat": mapping.name(),
            "tls_errors": reached,
            "findings": found.iter().map(finding).collect::<Vec<_>>(),
        }));
        return Ok(());
    }
    if !is_running {
        warn("no role answers: sessions were begun by this command, with what the state has of the realm");
    }
    for finding in &found {
        let mark = if finding.advice.is_some() { "bad " } else { "good" };
        print(&format!("{mark}  {}: {}\n", finding.about, finding.words));
        if let Some(advice) = finding.advice {
            print(&format!("      {advice}\n"));
        }
    }
    Ok(())
}

/// The links of a role that runs, once all endpoints that it was told to ask have answered, or have had the time.
fn asked(target: &Target) -> Outcome<Vec<Value>> {
    let begin = Instant::now();
    loop {
        std::thread::sleep(LOOK);
        let value = fetch::json(target, "/api/v1/links")?;
        let links = value["links"].as_array().cloned().unwrap_or_default();
        let is_open = links.iter().flat_map(answers).any(|(_, micros)| micros.is_none());
        if !is_open || begin.elapsed() >= ASKED {
            return Ok(links);
        }
    }
}

/// The endpoints of a neighbour that were asked without a session, and after how many microseconds each answered.
fn answers(link: &Value) -> Vec<(SocketAddr, Option<u64>)> {
    let of = |one: &Value| Some((one["address"].as_str()?.parse().ok()?, one["answered_micros"].as_u64()));
    link["reached"].as_array().into_iter().flatten().filter_map(of).collect()
}

fn family(at: &SocketAddr) -> &'static str {
    if at.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// What is to be said of one link.
fn of_link(link: &Value, reached: &BTreeMap<SocketAddr, Result<Duration, String>>) -> Vec<Finding> {
    let about = cell(&link["node"]);
    let mut found = Vec::new();
    let mut say = |words: String, advice| found.push(Finding { about: about.clone(), words, advice });
    let address = link["address"].as_str().unwrap_or("-");
    match (link["state"].as_str(), link["transport"].as_str()) {
        (Some("up"), Some("tls")) => say(
            format!("no answer by UDP; the link goes over TLS, to {address}"),
            Some("let UDP out to the neighbour's port: over TLS the link is slower where packets are lost"),
        ),
        (Some("up"), _) => say(format!("UDP passes, to {address}"), None),
        (Some("stopped"), _) => say(
            "the neighbour has said that it stops".to_owned(),
            Some("nothing here: it is begun with again once it runs"),
        ),
        (Some("awaited"), _) => say(
            "it has to come to this node, and has not".to_owned(),
            Some("look at its side: does it run, does it know this node's advert, and may it send UDP here"),
        ),
        _ => say(
            "no answer".to_owned(),
            Some(
                "is it running, and are its addresses those of its advert? If its UDP is blocked, ask its operator for [overlay.tls]",
            ),
        ),
    }
    let is_up = link["state"] == "up";
    for (at, micros) in answers(link) {
        match micros {
            Some(micros) => {
                say(format!("UDP passes over {} too, to {at}: {:.1} ms", family(&at), micros as f64 / 1e3), None)
            }
            None if is_up => say(
                format!("no answer by UDP over {}, at {at}", family(&at)),
                Some(
                    "the link has no other way if the one in use fails: does this network carry that family, let UDP out by it, and the neighbour's let it in?",
                ),
            ),
            None => {}
        }
    }
    if let Some(seen) = link["seen"].as_str() {
        say(format!("it sees this node at {seen}"), None);
    }
    if let Some(micros) = link["round_trip_micros"].as_u64() {
        say(format!("round trip {:.1} ms", micros as f64 / 1e3), None);
    }
    match link["size"].as_u64() {
        Some(size) => say(
            format!("datagrams of {size} octets pass"),
            (size < LEAST).then_some("a tunnel or firewall on the way takes no full packets: raise its MTU"),
        ),
        None if link["state"] == "up" => say(
            "no datagram of 1,232 octets was answered yet".to_owned(),
            Some("ask again in a few seconds; if it stays so, a tunnel or firewall on the way takes no full packets"),
        ),
        None => {}
    }
    if let Some(micros) = link["clock_ahead_micros"].as_i64() {
        let words = format!(
            "its clock is {:.1} s {} ours",
            micros.unsigned_abs() as f64 / 1e6,
            if micros < 0 { "behind" } else { "ahead of" }
        );
        let is_far = micros.unsigned_abs() > MOST_APART;
        say(
            words,
            is_far.then_some(
                "synchronise both clocks: nodes refuse packets that are a second ahead of their clock or five behind it",
            ),
        );
    }
    for at in addresses(&link["tls_endpoints"]) {
        match reached.get(&at) {
            Some(Ok(after)) => {
                say(format!("TLS on TCP answers at {at}, after {:.1} ms", after.as_secs_f64() * 1e3), None)
            }
            Some(Err(error)) => say(
                format!("TLS on TCP does not answer at {at}: {error}"),
                Some(
                    "where UDP fails this link has no other way: let TCP to that port out, or ask the neighbour's operator",
                ),
            ),
            None => {}
        }
    }
    found
}

fn addresses(value: &Value) -> Vec<SocketAddr> {
    value.as_array().into_iter().flatten().filter_map(|at| at.as_str()?.parse().ok()).collect()
}

/// Whether UDP passes by each family of addresses by which neighbours can be reached.
fn families(links: &[Value]) -> Vec<Finding> {
    let in_use = links
        .iter()
        .filter(|link| link["state"] == "up" && link["transport"] == "udp")
        .filter_map(|link| Some(link["address"].as_str()?.parse::<SocketAddr>().ok()?.is_ipv4()));
    let asked: Vec<(SocketAddr, Option<u64>)> = links.iter().flat_map(answers).collect();
    let answered = asked.iter().filter(|(_, micros)| micros.is_some()).map(|(at, _)| at.is_ipv4());
    let passes: BTreeSet<bool> = in_use.chain(answered).collect();
    let is_asked = |is_ipv4: bool| asked.iter().any(|(at, _)| at.is_ipv4() == is_ipv4);
    let known: BTreeSet<bool> = links
        .iter()
        .flat_map(|link| addresses(&link["endpoints"]))
        .map(|at| at.is_ipv4())
        .chain(passes.clone())
        .collect();
    let by_udp = links.iter().any(|link| link["transport"] == "udp");
    known
        .into_iter()
        .rev()
        .map(|is_ipv4| Finding {
            about: if is_ipv4 { "UDP over IPv4" } else { "UDP over IPv6" }.to_owned(),
            words: match (passes.contains(&is_ipv4), by_udp) {
                (true, _) => "passes".to_owned(),
                (false, true) if !is_asked(is_ipv4) => "not in use: the neighbours are reached otherwise".to_owned(),
                (false, _) => "no neighbour answers by it".to_owned(),
            },
            advice: (!passes.contains(&is_ipv4) && (!by_udp || is_asked(is_ipv4)))
                .then_some("does this network let UDP out at all? Ask its operator, or go by another network"),
        })
        .collect()
}

/// How a NAT in front of this node gives it ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mapping {
    /// Neighbours see an address of this machine.
    None,
    /// One port for all destinations.
    One,
    /// Another port for each destination (RFC 4787 section 4.1: address-dependent).
    ByDestination,
    /// There is one; with fewer than two neighbours by UDP nobody knows.
    Unknown,
    /// No neighbour has said where it sees this node.
    Unseen,
}

fn mapping(links: &[Value]) -> Mapping {
    let mut by_socket: BTreeMap<(u64, bool), Vec<SocketAddr>> = BTreeMap::new();
    for link in links.iter().filter(|link| link["state"] == "up" && link["transport"] == "udp") {
        let seen = link["seen"].as_str().and_then(|seen| seen.parse::<SocketAddr>().ok());
        if let Some((seen, socket)) = seen.zip(link["socket"].as_u64()) {
            by_socket.entry((socket, seen.is_ipv4())).or_default().push(seen);
        }
    }
    let is_own = |ip: IpAddr| UdpSocket::bind((ip, 0)).is_ok();
    let groups: Vec<&Vec<SocketAddr>> = by_socket.values().filter(|seen| !is_own(seen[0].ip())).collect();
    if by_socket.is_empty() {
        Mapping::Unseen
    } else if groups.is_empty() {
        Mapping::None
    } else if groups.iter().any(|seen| seen.iter().any(|at| *at != seen[0])) {
        Mapping::ByDestination
    } else if groups.iter().any(|seen| seen.len() > 1) {
        Mapping::One
    } else {
        Mapping::Unknown
    }
}

impl Mapping {
    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::One => "one port",
            Self::ByDestination => "by destination",
            Self::Unknown => "unknown kind",
            Self::Unseen => "unseen",
        }
    }

    fn finding(self) -> Option<Finding> {
        let words = match self {
            Self::None => "there is none: neighbours see an address of this machine",
            Self::One => "there is one, which gives this node one port for all destinations",
            Self::ByDestination => {
                "there is one, which gives this node another port for each destination; links go on, since this node begins them"
            }
            Self::Unknown => "there is one; with two neighbours by UDP it would be known how it gives ports",
            Self::Unseen => return None,
        };
        Some(Finding { about: "NAT".to_owned(), words: words.to_owned(), advice: None })
    }
}

/// How long each server over TLS takes to answer, or why it does not.
fn tls_reached(links: &[Value]) -> Outcome<BTreeMap<SocketAddr, Result<Duration, String>>> {
    let all: BTreeSet<SocketAddr> = links.iter().flat_map(|link| addresses(&link["tls_endpoints"])).collect();
    if all.is_empty() {
        return Ok(BTreeMap::new());
    }
    Ok(runtime()?.block_on(async {
        let ask = |at| async move { (at, tls::probe(at, TLS).await.map_err(|error| error.to_string())) };
        let asked: Vec<_> = all.into_iter().map(|at| tokio::spawn(ask(at))).collect();
        let mut reached = BTreeMap::new();
        for asked in asked {
            reached.extend(asked.await);
        }
        reached
    }))
}

fn runtime() -> Outcome<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    Ok(runtime.map_err(|error| Failure::system("cannot start threads", &error))?)
}

/// The node's part in an overlay, by the configuration of a gateway or router.
fn section(source: &Source) -> Outcome<(Settings, OverlaySection)> {
    let overlay = match GatewayFile::parse(source) {
        Ok(file) => file.overlay,
        Err(failures) => match RouterFile::parse(source) {
            Ok(file) => file.overlay,
            Err(_) => return Err(failures),
        },
    };
    let overlay = overlay.ok_or_else(|| Failure::new("no section [overlay]: this role has no links of an overlay"))?;
    Ok((overlay.get_ref().load(source)?, overlay.into_inner()))
}

/// Begins sessions with all neighbours, and returns how the links are, as the role's page has them.
fn probe(source: &Source) -> Outcome<Vec<Value>> {
    let (settings, section) = section(source)?;
    let known = section.stored_realm(source)?;
    let all = peers(settings.own(), &section, &known, &mut OpenLinks::default());
    let locals = sockets(&section);
    let largest = u16::try_from(*section.mtu.get_ref()).unwrap_or(u16::MAX);
    let resolve = |endpoint: &Endpoint, _: SocketAddr| {
        endpoint.as_str().to_socket_addrs().map(Iterator::collect).unwrap_or_default()
    };
    let all = session_peers(all, &locals, largest, resolve);
    let runtime = runtime()?;
    let _within = runtime.enter();
    let mut ports: Vec<Box<dyn Port>> = Vec::new();
    for local in &locals {
        let without_server = match local {
            LinkSocket::Tls(_) => LinkSocket::Tls(None),
            LinkSocket::Udp(_) => *local,
        };
        let opened = open_socket(without_server, None);
        ports.push(opened.map_err(|error| Failure::system(format!("cannot use {local:?}"), &error))?);
    }
    let (mut links, clock) = (machine(&settings)?, Clock::start());
    links.set_peers(all, clock.now());
    let (mut burst, mut out) = (Burst::default(), Burst::default());
    let begin = clock.now().instant;
    let mut has_asked = false;
    loop {
        let elapsed = clock.now().instant.since(begin);
        if elapsed >= PROBE && !std::mem::replace(&mut has_asked, true) {
            links.ask_endpoints(clock.now());
        }
        if elapsed >= PROBE + ASKED {
            break;
        }
        for (socket, port) in ports.iter_mut().enumerate() {
            if port.receive(&mut burst).is_ok_and(|count| count > 0) {
                for (from, octets) in burst.packets_mut(0) {
                    links.receive((socket, *from), octets, clock.now());
                }
            }
        }
        links.handle_timeout(clock.now());
        send(&mut links, &mut ports, &mut out);
        let due = links.deadline().since(clock.now().instant).min(Duration::from_millis(50));
        let _ = wait(ports.iter().map(|port| &**port), due); // an interruption
    }
    let name = |identity: &IdentityKey| {
        let names = known.nodes.get(identity).and_then(|member| member.membership.grants.names.first());
        names.map_or_else(|| identity.to_string(), ToString::to_string)
    };
    let rows = rows(&links.status(clock.now()), name);
    // Neighbours leave at once what ends here.
    links.close();
    send(&mut links, &mut ports, &mut out);
    Ok(rows)
}

/// Sends what links have to say.
fn send(links: &mut Links, ports: &mut [Box<dyn Port>], out: &mut Burst) {
    while let Some(datagram) = links.poll() {
        out.clear();
        if out.push(&datagram.octets, datagram.to)
            && let Some(port) = ports.get_mut(datagram.socket)
        {
            let _ = port.send(out, &[Outgoing { packet: 0, to: datagram.to }]); // as if it were lost on the way
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(socket: u64, address: &str, seen: &str) -> Value {
        json!({ "node": "w", "state": "up", "transport": "udp", "socket": socket, "address": address, "seen": seen })
    }

    #[test]
    fn a_nat_is_known_by_what_neighbours_see() {
        let of = |links: &[Value]| mapping(links);
        assert_eq!(of(&[]), Mapping::Unseen);
        assert_eq!(of(&[link(0, "127.0.0.2:1", "127.0.0.1:5")]), Mapping::None);
        let (one, other) = (link(0, "192.0.2.2:1", "192.0.2.77:5"), link(0, "192.0.2.3:1", "192.0.2.77:6"));
        assert_eq!(of(std::slice::from_ref(&one)), Mapping::Unknown);
        assert_eq!(of(&[one.clone(), link(0, "192.0.2.3:1", "192.0.2.77:5")]), Mapping::One);
        assert_eq!(of(&[one.clone(), other]), Mapping::ByDestination);
        assert_eq!(of(&[one, link(1, "[2001:db8::3]:1", "[2001:db8::77]:6")]), Mapping::Unknown, "two families");
    }

    #[test]
    fn a_family_is_known_by_those_who_answer_by_it_in_a_session_or_without_one() {
        let of = |links: &[Value]| {
            let found = families(links).into_iter();
            found.map(|found| (found.about, found.words, found.advice.is_some())).collect::<Vec<_>>()
        };
        let line = |family: &str, words: &str, is_bad| (format!("UDP over {family}"), words.to_owned(), is_bad);
        let mut both = link(0, "192.0.2.2:1", "192.0.2.77:5");
        both["endpoints"] = json!(["192.0.2.2:1", "[2001:db8::2]:1"]);
        let otherwise = line("IPv6", "not in use: the neighbours are reached otherwise", false);
        assert_eq!(of(std::slice::from_ref(&both)), [line("IPv4", "passes", false), otherwise]);
        both["reached"] = json!([{ "address": "[2001:db8::2]:1", "answered_micros": null }]);
        let silent = line("IPv6", "no neighbour answers by it", true);
        assert_eq!(of(std::slice::from_ref(&both)), [line("IPv4", "passes", false), silent]);
        both["reached"] = json!([{ "address": "[2001:db8::2]:1", "answered_micros": 900 }]);
        assert_eq!(of(&[both]), [line("IPv4", "passes", false), line("IPv6", "passes", false)]);
    }

    #[test]
    fn each_bad_finding_says_what_to_do() {
        let at: SocketAddr = "192.0.2.2:443".parse().expect("an address");
        let reached = BTreeMap::from([(at, Err("no route".to_owned()))]);
        let bad = |link: &Value| {
            let found = of_link(link, &reached);
            found
                .iter()
                .filter(|finding| finding.advice.is_some())
                .map(|finding| finding.words.clone())
                .collect::<Vec<_>>()
        };
        let mut good = link(0, "192.0.2.2:1", "192.0.2.77:5");
        good["size"] = json!(1_400);
        good["clock_ahead_micros"] = json!(-40_000);
        assert!(bad(&good).is_empty());
        for (field, value, words) in [
            ("transport", json!("tls"), "no answer by UDP"),
            ("state", json!("stopped"), "it stops"),
            ("state", json!("asked"), "no answer"),
            ("state", json!("awaited"), "has to come"),
            ("size", json!(600), "600 octets"),
            ("size", Value::Null, "no datagram of 1,232"),
            ("clock_ahead_micros", json!(-130_000_000), "130.0 s behind ours"),
            ("tls_endpoints", json!([at.to_string()]), "no route"),
            (
                "reached",
                json!([{ "address": "[2001:db8::2]:1", "answered_micros": null }]),
                "no answer by UDP over IPv6, at [2001:db8::2]:1",
            ),
        ] {
            let mut link = good.clone();
            link[field] = value;
            let found = bad(&link);
            assert!(found.len() == 1 && found[0].contains(words), "{field}: {found:?}");
        }
    }
}

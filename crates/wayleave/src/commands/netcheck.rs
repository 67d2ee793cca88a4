//! `netcheck`: what the network lets through between a node of an overlay and its neighbours, and what to do where it does not.
//!
//! A role that runs has sessions with its neighbours, and its page says how they are. For one that does not, sessions are begun here by
//! its configuration and what its state has of the realm, for some seconds. A session goes by one family of addresses; at those of the
//! other one neighbours are asked without a session whether they answer. Whether a role runs is never guessed: one may where its pages do
//! not answer as they should, and where its state is open.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use wayleave_control::advert::Endpoint;
use wayleave_core::IdentityKey;
use wayleave_dataplane::link::Links;
use wayleave_runtime::Clock;
use wayleave_runtime::packets::{Burst, Outgoing, Port, tls, wait};
use wayleave_runtime::routes::{mark_connections, may_mark};
use wayleave_runtime::store;

use crate::config::Source;
use crate::config::gateway::GatewayFile;
use crate::config::links::{LinkSocket, OpenLinks, PeerState, Resolution, machine, peers, session_peers, sockets};
use crate::config::overlay::{OverlaySection, Settings};
use crate::config::router::RouterFile;
use crate::failure::{Failure, Failures, Outcome};
use crate::fetch::{self, NoAnswer, Target};
use crate::output::{cell, print, print_json, warn};
use crate::roles::links::{MOST_APART, add_adverts, missing, open_socket, rows};

/// Sessions that are begun here have so long.
const PROBE: Duration = Duration::from_secs(8);
/// Then other endpoints than theirs are asked, and have so long: three attempts, a second apart.
const ASKED: Duration = Duration::from_millis(3_500);
/// How often a role is asked for what came of it.
const LOOK: Duration = Duration::from_millis(250);
/// A server over TLS may take so long to answer, and so may the machine's resolver for all names together.
const TLS: Duration = Duration::from_secs(5);
const RESOLVE: Duration = Duration::from_secs(5);
/// Names that are resolved at a time, each by a thread that the system may keep waiting.
const MOST_NAMES: usize = 256;
/// Octets of the smallest datagram that every link has to pass: an IPv6 packet of 1,280.
const LEAST: u64 = 1_232;

#[derive(Args, Debug)]
pub struct NetCheck {
    #[command(flatten)]
    pub target: Target,
    #[arg(long)]
    pub json: bool,
}

/// After how long servers over TLS answered, or why they did not.
type Reached = BTreeMap<SocketAddr, Result<Duration, String>>;

/// Something that was found, and what to do about it if it is bad.
struct Finding {
    about: String,
    words: String,
    advice: Option<&'static str>,
}

/// The links of a node.
#[derive(Default)]
struct NodeLinks {
    /// As the role's page has them.
    links: Vec<Value>,
    /// Neighbours to which there is none, and why.
    missing: Vec<Value>,
    /// With which the role marks what it sends.
    mark: Option<u32>,
}

pub fn run(command: &NetCheck) -> Outcome {
    let (seen, is_running) = match fetch::order(&command.target, "/api/v1/links/ask") {
        Ok(_) => (asked(&command.target)?, true),
        Err(why) => match (&command.target.config, why) {
            (Some(config), NoAnswer::NoPages(_) | NoAnswer::NotListening(_)) => (probe(&Source::read(config)?)?, false),
            (Some(_), NoAnswer::Failed(failures)) => return Err(not_begun(failures)),
            (None, why) => return Err(why.into()),
        },
    };
    let NodeLinks { links, missing, mark } = seen;
    let (reached, is_marked) = tls_reached(&links, mark)?;
    let mut found: Vec<Finding> = links.iter().flat_map(|link| of_link(link, &reached)).collect();
    found.extend(missing.iter().map(|peer| Finding {
        about: cell(&peer["node"]),
        words: format!("there is no link to it: {}", cell(&peer["why"])),
        advice: Some("compare its [[overlay.neighbour]] here and there; `wayleave show neighbours` lists all"),
    }));
    if let Some(mark) = mark.filter(|_| !is_marked && !reached.is_empty()) {
        found.push(Finding {
            about: "TLS".to_owned(),
            words: format!(
                "asked without the gateway's mark {mark}, which needs root or CAP_NET_ADMIN: where `accept` covers a neighbour, the question went \
                 into the overlay"
            ),
            advice: None,
        });
    }
    found.extend(families(&links));
    let mapping = mapping(&links, |ip| UdpSocket::bind((ip, 0)).is_ok());
    found.extend(mapping.finding());
    if links.is_empty() && missing.is_empty() {
        found.push(Finding {
            about: "links".to_owned(),
            words: "this node has no neighbour".to_owned(),
            advice: Some("`wayleave link add` adds one; the neighbour lists this node too"),
        });
    } else if links.is_empty() && !is_running {
        found.push(Finding {
            about: "links".to_owned(),
            words: "no neighbour is a member with an advert that is known here".to_owned(),
            advice: Some("let the role run once, so that its state has the realm"),
        });
    }
    let is_good = found.iter().all(|finding| finding.advice.is_none());
    if command.json {
        let finding = |finding: &Finding| json!({ "about": finding.about, "good": finding.advice.is_none(), "words": finding.words, "advice": finding.advice });
        let errors = reached.iter().filter_map(|(at, result)| Some((at.to_string(), result.as_ref().err()?)));
        let errors: BTreeMap<String, &String> = errors.collect();
        print_json(json!({
            "running": is_running,
            "links": links,
            "missing": missing,
            "nat": mapping.name(),
            "tls_errors": errors,
            "findings": found.iter().map(finding).collect::<Vec<_>>(),
        }));
        return ended(is_good);
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
    ended(is_good)
}

/// The command's end: what is bad has been said.
fn ended(is_good: bool) -> Outcome {
    if is_good { Ok(()) } else { Err(Failures(Vec::new())) }
}

/// Why no sessions are begun where a role may run.
fn not_begun(mut failures: Failures) -> Failures {
    let why = "no session was begun in its place, since the role may run: two processes with one identity would take each other's links";
    failures.0.push(Failure::new(why).help("look at the role's log; once it has stopped, ask again"));
    failures
}

/// The links of a role that runs, once all endpoints that it was told to ask have answered, or have had the time.
fn asked(target: &Target) -> Outcome<NodeLinks> {
    let begin = Instant::now();
    loop {
        std::thread::sleep(LOOK);
        let value = fetch::json(target, "/api/v1/links")?;
        let list = |name: &str| value[name].as_array().cloned().unwrap_or_default();
        let links = list("links");
        let is_open = links.iter().flat_map(answers).any(|(_, micros)| micros.is_none());
        if !is_open || begin.elapsed() >= ASKED {
            let mark = value["mark"].as_u64().and_then(|mark| u32::try_from(mark).ok());
            return Ok(NodeLinks { links, missing: list("missing"), mark });
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
fn of_link(link: &Value, reached: &Reached) -> Vec<Finding> {
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
        (Some("awaited"), _) => {
            let (words, advice) = awaited(link);
            say(words, Some(advice));
        }
        _ => say(
            "no answer".to_owned(),
            Some(
                "is it running, and are its addresses those of its advert? If its UDP is blocked, ask its operator for [overlay.tls]",
            ),
        ),
    }
    for (endpoint, addresses, fault) in advertised(link) {
        // What keeps the link from beginning is said above.
        if let (Some(fault), true) = (fault, link["state"] != "awaited" || endpoint.transport != "udp") {
            let name = endpoint.name;
            let effect = if addresses.is_empty() {
                "so that it is not tried there"
            } else {
                "and the addresses of before are used"
            };
            say(format!("its name {name} does not resolve here ({fault}), {effect}"), Some(RESOLVER));
        }
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

/// What to do about a name without addresses.
const RESOLVER: &str = "can this machine's resolver answer for it (`getent ahosts`)? If not, ask its operator for an address as `endpoint`";

/// An endpoint of a neighbour, as its advert has it.
struct Advertised<'a> {
    name: &'a str,
    transport: &'a str,
}

/// A neighbour's endpoints with their addresses, and why they have none, or none since.
fn advertised(link: &Value) -> Vec<(Advertised<'_>, Vec<SocketAddr>, Option<&str>)> {
    let rows = link["advertised"].as_array().into_iter().flatten();
    let read = rows.filter_map(|row| {
        let endpoint = Advertised { name: row["endpoint"].as_str()?, transport: row["transport"].as_str()? };
        Some((endpoint, addresses(&row["addresses"]), row["error"].as_str()))
    });
    read.collect()
}

/// Why no session to a neighbour begins here, and what to do.
fn awaited(link: &Value) -> (String, &'static str) {
    if link["neighbour"] == PeerState::NoAdvert.text() {
        return (
            "no advert of it is known here, and so no address: no session to it begins here".to_owned(),
            "does it run and publish itself, and does a path server answer this node (`wayleave show status`)?",
        );
    }
    let all = advertised(link);
    let Some((endpoint, addresses, fault)) = all.iter().find(|(endpoint, ..)| endpoint.transport == "udp") else {
        return (
            "it has to come to this node, and has not".to_owned(),
            "look at its side: does it run, does it know this node's advert, and may it send UDP here",
        );
    };
    let name = endpoint.name;
    let Some(first) = addresses.first() else {
        let fault = fault.unwrap_or("no address");
        return (format!("its name {name} does not resolve here ({fault}): no session to it begins here"), RESOLVER);
    };
    let (has, lacks) = if first.is_ipv4() { ("IPv4", "IPv6") } else { ("IPv6", "IPv4") };
    let all: Vec<String> = addresses.iter().map(|at| at.ip().to_string()).collect();
    (
        format!(
            "{name} has no {lacks} address (it has {}), and this node has no socket of {has} for the link: no session to it begins here",
            all.join(", ")
        ),
        "give this machine that family, or the neighbour's section a `local` of it; or ask its operator for an address of the other one",
    )
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
    /// No neighbour on another machine has said where it sees this node.
    Unseen,
}

/// `is_own` says whether an address is one of this machine.
fn mapping(links: &[Value], is_own: impl Fn(IpAddr) -> bool) -> Mapping {
    let mut by_socket: BTreeMap<(u64, bool), Vec<SocketAddr>> = BTreeMap::new();
    for link in links.iter().filter(|link| link["state"] == "up" && link["transport"] == "udp") {
        let seen = link["seen"].as_str().and_then(|seen| seen.parse::<SocketAddr>().ok());
        // A neighbour on this machine, which no NAT is in front of, knows nothing of one.
        let seen = seen.filter(|seen| !seen.ip().to_canonical().is_loopback());
        if let Some((seen, socket)) = seen.zip(link["socket"].as_u64()) {
            by_socket.entry((socket, seen.is_ipv4())).or_default().push(seen);
        }
    }
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

/// How long each server over TLS takes to answer, or why it does not; and whether it was asked with the mark of the role's own packets.
fn tls_reached(links: &[Value], mark: Option<u32>) -> Outcome<(Reached, bool)> {
    let all: BTreeSet<SocketAddr> = links.iter().flat_map(|link| addresses(&link["tls_endpoints"])).collect();
    if all.is_empty() {
        return Ok((BTreeMap::new(), false));
    }
    let mark = mark.filter(|mark| may_mark(*mark));
    mark.into_iter().for_each(mark_connections);
    let reached = runtime()?.block_on(async {
        let ask = |at| async move { (at, tls::probe(at, TLS).await.map_err(|error| error.to_string())) };
        let asked: Vec<_> = all.into_iter().map(|at| tokio::spawn(ask(at))).collect();
        let mut reached = BTreeMap::new();
        for asked in asked {
            reached.extend(asked.await);
        }
        reached
    });
    Ok((reached, mark.is_some()))
}

fn runtime() -> Outcome<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    Ok(runtime.map_err(|error| Failure::system("cannot start threads", &error))?)
}

/// The node's part in an overlay, by the configuration of a gateway or router, and the mark of its own packets.
fn section(source: &Source) -> Outcome<(Settings, OverlaySection, Option<u32>)> {
    let (overlay, mark) = match GatewayFile::parse(source) {
        Ok(file) => {
            (file.overlay, u32::try_from(*file.gateway.table.get_ref()).ok().filter(|_| file.gateway.proxy.is_none()))
        }
        Err(failures) => match RouterFile::parse(source) {
            Ok(file) => (file.overlay, None),
            Err(_) => return Err(failures),
        },
    };
    let overlay = overlay.ok_or_else(|| Failure::new("no section [overlay]: this role has no links of an overlay"))?;
    Ok((overlay.get_ref().load(source)?, overlay.into_inner(), mark))
}

/// The addresses of names, or why they have none, after a bounded time: a thread that still waits ends with the command.
fn resolve(
    names: impl IntoIterator<Item = Endpoint>,
    within: Duration,
    look_up: fn(&str) -> std::io::Result<Vec<SocketAddr>>,
) -> HashMap<Endpoint, Resolution> {
    let unanswered = |_: &Endpoint| Resolution {
        addresses: Vec::new(),
        fault: Some(format!("this machine's resolver has not answered within {} s", within.as_secs_f64())),
    };
    let mut all: HashMap<Endpoint, Resolution> =
        names.into_iter().map(|name| (name.clone(), unanswered(&name))).collect();
    let (answers, answered) = mpsc::channel();
    for name in all.keys().take(MOST_NAMES).cloned() {
        let answers = answers.clone();
        std::thread::spawn(move || {
            let found = look_up(name.as_str());
            let _ = answers.send((name, found)); // nobody waits any more
        });
    }
    drop(answers);
    let begin = Instant::now();
    while let Ok((name, found)) = answered.recv_timeout(within.saturating_sub(begin.elapsed())) {
        let (addresses, fault) = match found {
            Ok(addresses) if addresses.is_empty() => (addresses, Some("it has no address".to_owned())),
            Ok(addresses) => (addresses, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        all.insert(name, Resolution { addresses, fault });
    }
    all
}

/// Begins sessions with all neighbours, and returns how the links are, as the role's page has them.
fn probe(source: &Source) -> Outcome<NodeLinks> {
    let (settings, section, mark) = section(source)?;
    let state = source.resolve(section.state.get_ref());
    if store::is_open(&state)? {
        let why = format!(
            "nothing answers where the role's status pages would be, and {} is in use by another process",
            state.display()
        );
        return Err(not_begun(Failure::new(why).into()));
    }
    let known = section.stored_realm(source)?;
    let all = peers(settings.own(), &section, &known, &mut OpenLinks::default());
    let names = all.iter().flat_map(|peer| peer.endpoint.iter().chain(&peer.tls)).cloned();
    let resolved = resolve(names, RESOLVE, |name| name.to_socket_addrs().map(Iterator::collect));
    let resolution = |endpoint: &Endpoint| resolved.get(endpoint).cloned().unwrap_or_default();
    let (link_peers, mark) = (all.clone(), mark.filter(|mark| may_mark(*mark)));
    mark.into_iter().for_each(mark_connections);
    let locals = sockets(&section);
    let largest = u16::try_from(*section.mtu.get_ref()).unwrap_or(u16::MAX);
    let all = session_peers(all, &locals, largest, |endpoint, _| resolution(endpoint).addresses);
    let runtime = runtime()?;
    let _within = runtime.enter();
    let mut ports: Vec<Box<dyn Port>> = Vec::new();
    for local in &locals {
        let without_server = match local {
            LinkSocket::Tls(_) => LinkSocket::Tls(None),
            LinkSocket::Udp(_) => *local,
        };
        let opened = open_socket(without_server, mark);
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
    let mut rows = rows(&links.status(clock.now()), name);
    add_adverts(&mut rows, &link_peers, resolution);
    // Neighbours leave at once what ends here.
    links.close();
    send(&mut links, &mut ports, &mut out);
    Ok(NodeLinks { links: rows, missing: missing(&link_peers), mark })
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
        let of = |links: &[Value]| mapping(links, |ip| ip.to_string() == "192.0.2.9");
        assert_eq!(of(&[]), Mapping::Unseen);
        assert_eq!(of(&[link(0, "192.0.2.2:1", "192.0.2.9:5")]), Mapping::None);
        for here in ["127.0.0.1:5", "[::1]:5", "[::ffff:127.0.0.1]:5"] {
            assert_eq!(of(&[link(0, "127.0.0.2:1", here)]), Mapping::Unseen, "{here} says nothing of a NAT");
        }
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
    fn a_neighbour_to_which_nothing_begins_is_said_to_have_to_come_only_if_its_advert_has_no_address() {
        let of = |advertised: Value| {
            let link = json!({
                "node": "w", "state": "awaited", "neighbour": PeerState::Known.text(), "advertised": advertised,
            });
            let found = of_link(&link, &Reached::new());
            found.iter().map(|finding| finding.words.clone()).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(of(json!([])), "it has to come to this node, and has not");
        let named = |addresses: &[&str], error: Option<&str>| json!([{ "endpoint": "w.example:1", "transport": "udp", "addresses": addresses, "error": error }]);
        assert_eq!(
            of(named(&[], Some("Name or service not known"))),
            "its name w.example:1 does not resolve here (Name or service not known): no session to it begins here"
        );
        assert_eq!(
            of(named(&["[2001:db8::2]:1"], None)),
            "w.example:1 has no IPv4 address (it has 2001:db8::2), and this node has no socket of IPv6 for the link: no session to it begins here"
        );
        let without =
            json!({ "node": "w", "state": "awaited", "neighbour": PeerState::NoAdvert.text(), "advertised": [] });
        assert!(of_link(&without, &Reached::new())[0].words.starts_with("no advert of it is known here"));
        // A name that has become silent beside a link that is up, and one of TLS.
        let mut up = link(0, "192.0.2.2:1", "192.0.2.77:5");
        up["size"] = json!(1_400);
        for (transport, addresses, effect) in [
            ("udp", json!(["192.0.2.2:1"]), "and the addresses of before are used"),
            ("tls", json!([]), "so that it is not tried there"),
        ] {
            up["advertised"] = json!([{ "endpoint": "w.example:1", "transport": transport, "addresses": addresses, "error": "no answer" }]);
            let found = of_link(&up, &Reached::new());
            let words = format!("its name w.example:1 does not resolve here (no answer), {effect}");
            assert!(found.iter().any(|finding| finding.words == words && finding.advice.is_some()), "{transport}");
        }
    }

    #[test]
    fn a_resolver_that_does_not_answer_keeps_no_other_name_waiting_and_nobody_for_long() {
        let names = ["slow.example:1", "none.example:1", "w.example:1"]
            .map(|name| name.parse::<Endpoint>().expect("an endpoint"));
        let resolved = resolve(names.clone(), Duration::from_millis(400), |name| match name {
            "slow.example:1" => loop {
                std::thread::park();
            },
            "none.example:1" => Err(std::io::Error::other("no such name")),
            _ => Ok(vec![SocketAddr::from(([192, 0, 2, 2], 1))]),
        });
        let fault = |name: &Endpoint| resolved[name].fault.clone();
        assert_eq!(fault(&names[0]).as_deref(), Some("this machine's resolver has not answered within 0.4 s"));
        assert_eq!(fault(&names[1]).as_deref(), Some("no such name"));
        assert_eq!((resolved[&names[2]].addresses.len(), fault(&names[2])), (1, None));
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

//! Sessions of links, as forwarders and gateways run them: what the machine of `dataplane` is set up with, what is shown of it, and
//! what the log says.

use std::collections::BTreeMap;
use std::io;

use serde_json::{Value, json};
use wayleave_control::advert::{Endpoint, MIN_MTU};
use wayleave_control::node::{Member, Realm};
use wayleave_core::IdentityKey;
use wayleave_dataplane::link::message::{is_for_proven, is_initiation};
use wayleave_dataplane::link::{Counters, LinkStatus, Peer, State, Transport, Volume};
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::http::Metric;
use wayleave_runtime::identity::to_hex;
use wayleave_runtime::metrics;
use wayleave_runtime::packets::Port;
use wayleave_runtime::packets::steering::Steering;
use wayleave_runtime::packets::tls::{self, Kinds};
use wayleave_runtime::packets::udp::{self, Group, Intake};

use super::events::{EventLine, event};
use super::overlay::Handle;
use crate::config::links::{LinkPeer, LinkSocket, PeerState, Resolution, session_peers};
pub use crate::config::links::{machine, sockets};
use crate::config::overlay::{NodeRef, OverlaySection};

/// Microseconds by which clocks may differ before that is said. Nodes refuse packets that are a second ahead of their clock
/// (`docs/wire/icing.md`).
pub const MOST_APART: u64 = 500_000;
/// The bit of the first octet by which messages of links differ from packets of any version (`docs/wire/link.md`).
pub const MESSAGE: u8 = 0x80;
/// Where ICING packets have their handle (`docs/wire/icing.md`).
const HANDLE_AT: u32 = 16;
/// Neighbours that are named, at most.
const NAMED: usize = 4;
/// What a gateway without neighbours says.
const NO_NEIGHBOUR: &str =
    "no neighbour is configured, and nobody is reached: `wayleave link add` adds one, here and at the other end";
/// Handshakes in a row after whose silence something is wrong: those of the first seconds.
const MOST_ATTEMPTS: u32 = 6;
/// A clock that was read less exactly than this says nothing.
const MOST_UNCERTAIN: u64 = 250_000;

/// The neighbours that can prove themselves now, with `sockets` as [`sockets`] has them.
pub fn peers(node: &Handle, section: &OverlaySection, sockets: &[LinkSocket]) -> Vec<Peer> {
    let largest = u16::try_from(*section.mtu.get_ref()).unwrap_or(u16::MAX);
    session_peers(node.link_peers(section), sockets, largest, |endpoint, local| node.resolved(endpoint, local))
}

/// What a port over TLS knows of the messages of links.
pub const KINDS: Kinds = Kinds { begins: is_initiation, proves: is_for_proven };

/// A socket of links: one for each thread, and at the first thread one for what neighbours say to each other. Over TLS the first thread
/// has all of it.
pub struct Opened {
    pub data: Vec<Box<dyn Port>>,
    pub control: Option<Box<dyn Port>>,
}

/// Opens a socket of links, whose packets are marked if that is asked for.
///
/// # Errors
/// What the system said.
pub fn open_socket(local: LinkSocket, mark: Option<u32>) -> io::Result<Box<dyn Port>> {
    let opened = open_sockets(local, mark, 1)?;
    opened.data.into_iter().next().ok_or(io::ErrorKind::AddrNotAvailable.into())
}

/// The same for `threads` threads: packets of one path come to one of them, whoever of the neighbours sends them.
///
/// # Errors
/// What the system said.
pub fn open_sockets(local: LinkSocket, mark: Option<u32>, threads: usize) -> io::Result<Opened> {
    let of = |socket: udp::Udp| {
        mark.map_or(Ok(()), |mark| socket.set_mark(mark))?;
        socket.never_fragment()?;
        Ok::<Box<dyn Port>, io::Error>(Box::new(socket))
    };
    match local {
        LinkSocket::Udp(local) => {
            let steering = (threads > 1).then_some(Steering::Word { control: MESSAGE, at: HANDLE_AT });
            let Group { data, control } = udp::open(local, threads, Intake::Merged, steering)?;
            let data = data.into_iter().map(of).collect::<io::Result<_>>()?;
            Ok(Opened { data, control: control.map(of).transpose()? })
        }
        LinkSocket::Tls(listen) => Ok(Opened { data: vec![Box::new(tls::open(listen, KINDS)?)], control: None }),
    }
}

/// Has the names of neighbours resolved again that do not answer.
pub fn resolve_again(node: &Handle, section: &OverlaySection, all: &[LinkStatus]) {
    let silent = |identity: &IdentityKey| all.iter().any(|link| link.identity == *identity && is_sought(link));
    if !all.iter().any(is_sought) {
        return;
    }
    for peer in node.link_peers(section) {
        if let (Some(endpoint), Some(identity)) = (&peer.endpoint, &peer.identity)
            && silent(identity)
        {
            node.resolve_again(endpoint);
            peer.tls.iter().for_each(|endpoint| node.resolve_again(endpoint));
        }
    }
}

/// A neighbour is asked, and has not answered.
fn is_sought(link: &LinkStatus) -> bool {
    matches!(link.state, State::Asked | State::Stopped)
}

/// Octets of the largest ICING packet that passes over each of the node's links, as far as they were measured, and at most what the
/// configuration says; and whether all that are up were measured, so that it may become more. None if none was measured.
pub fn usable_mtu(section: &OverlaySection, all: &[LinkStatus]) -> Option<(u16, bool)> {
    let configured = u16::try_from(*section.mtu.get_ref()).unwrap_or(u16::MAX);
    let up = || all.iter().filter(|link| link.state == State::Up);
    let least = up().filter_map(|link| link.size).min()?;
    Some((configured.min(least).max(MIN_MTU), up().all(|link| link.size.is_some())))
}

/// The section with an MTU that is at most this.
pub fn with_mtu(section: &OverlaySection, mtu: u16) -> OverlaySection {
    let most = u64::from(mtu).min(*section.mtu.get_ref());
    OverlaySection { mtu: toml::Spanned::new(section.mtu.span(), most), ..section.clone() }
}

fn volume(volume: Volume) -> Value {
    json!({ "packets": volume.packets, "octets": volume.octets })
}

fn state(state: State) -> &'static str {
    match state {
        State::Up => "up",
        State::Asked => "asked",
        State::Stopped => "stopped",
        State::Awaited => "awaited",
    }
}

fn transport(transport: Transport) -> &'static str {
    match transport {
        Transport::Udp => "udp",
        Transport::Tls => "tls",
    }
}

/// What pages show of links; `name` says what a node is called.
pub fn rows(all: &[LinkStatus], name: impl Fn(&IdentityKey) -> String) -> Vec<Value> {
    let row = |link: &LinkStatus| {
        json!({
            "node": name(&link.identity),
            "identity": link.identity.to_string(),
            "interface": link.link,
            "state": state(link.state),
            "address": link.address.map(|address| address.to_string()),
            "socket": link.socket,
            "endpoints": link.endpoints,
            "tls_endpoints": link.tls_endpoints,
            "transport": link.transport.map(transport),
            "seen": link.seen.map(|address| address.to_string()),
            "reached": link.reached.iter().map(|(at, after)| json!({
                "address": at.to_string(),
                "answered_micros": after.map(|span| span.as_micros() as u64),
            })).collect::<Vec<_>>(),
            "last_handshake": link.handshake.map(|at| at.secs()),
            "heard_millis": link.heard.map(|span| span.as_millis() as u64),
            "moved": link.moved,
            "sent": volume(link.sent),
            "received": volume(link.received),
            "round_trip_micros": link.round_trip.map(|span| span.as_micros() as u64),
            "loss_ppm": link.loss,
            "clock_ahead_micros": link.clock.map(|clock| clock.ahead),
            "clock_within_micros": link.clock.map(|clock| clock.within),
            "size": link.size,
            "attempts": link.attempts,
            "other_versions": link.other_versions,
        })
    };
    all.iter().map(row).collect()
}

/// Adds to rows of [`rows`] what is known of their neighbours, and where they are by their adverts.
pub fn add_adverts(rows: &mut [Value], peers: &[LinkPeer], resolution: impl Fn(&Endpoint) -> Resolution) {
    let advertised = |over: Transport, endpoint: &Endpoint| {
        let Resolution { addresses, fault } = resolution(endpoint);
        json!({ "endpoint": endpoint.as_str(), "transport": transport(over), "addresses": addresses, "error": fault })
    };
    for row in rows {
        let is_its = |peer: &&LinkPeer| row["interface"] == json!(peer.link);
        let Some(peer) = peers.iter().find(is_its) else { continue };
        let udp = peer.endpoint.iter().map(|endpoint| advertised(Transport::Udp, endpoint));
        let tls = peer.tls.iter().map(|endpoint| advertised(Transport::Tls, endpoint));
        let all: Vec<Value> = udp.chain(tls).collect();
        row["neighbour"] = json!(peer.state.text());
        row["advertised"] = json!(all);
    }
}

/// The neighbours to which there is no link at all, and why.
pub fn missing(peers: &[LinkPeer]) -> Vec<Value> {
    let without = peers.iter().filter(|peer| peer.noise.is_none());
    without.map(|peer| json!({ "node": peer.node.to_string(), "why": peer.fault() })).collect()
}

/// The neighbours for status pages.
pub fn neighbour_rows(peers: Vec<LinkPeer>, realm: &Realm) -> Vec<Value> {
    let row = |peer: LinkPeer| {
        let member = peer.identity.filter(|_| peer.state == PeerState::Known);
        let member = member.and_then(|identity| realm.nodes.get(&identity));
        json!({
            "node": peer.node.to_string(),
            "identity": peer.identity.map(|identity| identity.to_string()),
            "interface": peer.link,
            "state": peer.state.text(),
            "why": peer.fault(),
            "local": (peer.local.port() > 0).then(|| peer.local.to_string()),
            "remote": peer.endpoint.map(|endpoint| endpoint.to_string()),
            "open": peer.is_open,
            "id": member.and_then(|member| current_id(member)),
            "ids": peer.ids.len(),
        })
    };
    peers.into_iter().map(row).collect()
}

/// The ID by which packets name a node now.
fn current_id(member: &Member) -> Option<String> {
    let key = member.advert.as_ref()?.current(unix_now().secs())?;
    Some(to_hex(&key.node.to_bytes()))
}

/// The neighbours that say otherwise than this node what the two are to each other.
pub fn disagreements(peers: &[LinkPeer]) -> Vec<String> {
    let all = peers.iter().filter(|peer| peer.state == PeerState::Disagrees).filter_map(LinkPeer::fault);
    limited(all.map(|fault| format!("no link to a neighbour: {fault}")).collect())
}

/// The same of a gateway, to which it is a fault to have no neighbours.
pub fn gateway_faults(peers: &[LinkPeer]) -> Vec<String> {
    if peers.is_empty() { vec![NO_NEIGHBOUR.to_owned()] } else { disagreements(peers) }
}

/// Why none of a gateway's neighbours is known. `removal` says that one was removed from the realm.
pub fn no_neighbour(peers: &[LinkPeer], removal: impl Fn(&NodeRef) -> Option<String>) -> String {
    if peers.is_empty() {
        return NO_NEIGHBOUR.to_owned();
    }
    let of = |peer: &LinkPeer| removal(&peer.node).or_else(|| peer.fault());
    let faults: Vec<String> = peers.iter().filter_map(of).take(NAMED).collect();
    format!("no link to a neighbour: {}", faults.join("; "))
}

/// Links whose neighbour has proved itself and answers.
pub fn up(all: &[LinkStatus]) -> usize {
    all.iter().filter(|link| link.state == State::Up).count()
}

/// What the metrics page has of links.
pub fn metrics(all: &[LinkStatus], counters: Counters) -> Vec<Metric> {
    let up = up(all);
    let by_tls = all.iter().filter(|link| link.transport == Some(Transport::Tls)).count();
    let moved: u64 = all.iter().map(|link| link.moved).sum();
    metrics! {
        gauge "link_up" Sessions "Links whose neighbour has proved itself and answers" = up;
        gauge "link_tls" Sessions "Links that go over TLS, since UDP does not pass" = by_tls;
        counter "link_moved" Changes "Changes of neighbours' addresses" = moved;
        counter "link_received" Packets "Messages of links that came" = counters.received;
        counter "link_sent" Packets "Messages of links that were sent" = counters.sent;
        counter "link_malformed" Packets "Messages of links that are none" = counters.malformed;
        counter "link_strange" Packets "Initiations of who is no neighbour" = counters.strangers;
        counter "link_stale" Packets "Initiations that are repeated, or of a wrong clock" = counters.stale;
        counter "link_cookie" Packets "Cookies that were asked for" = counters.cookies;
        counter "link_busy" Packets "Initiations with a cookie that were not answered" = counters.busy;
        counter "link_refused" Packets "Messages of no session, changed or repeated" = counters.refused;
    }
}

/// How the node's clock and those of its neighbours differ by so much that packets are refused, if they do. Who is wrong is said where most
/// agree: whoever has most of the neighbours could have them say so.
pub fn clock_problems(all: &[LinkStatus], name: impl Fn(&IdentityKey) -> String) -> Vec<String> {
    let up = all.iter().filter(|link| link.state == State::Up);
    // What is not certain, since the round trip is long, is not said.
    let of = |link: &LinkStatus| {
        let clock = link.clock.filter(|clock| clock.within < MOST_UNCERTAIN)?;
        Some((clock.ahead, name(&link.identity)))
    };
    let mut clocks: Vec<(i64, String)> = up.filter_map(of).collect();
    clocks.sort();
    let by = |ahead: i64, ahead_word: &str| {
        format!("{:.1} s {}", ahead.unsigned_abs() as f64 / 1e6, if ahead > 0 { ahead_word } else { "behind" })
    };
    let wrong = || clocks.iter().filter(|(ahead, _)| ahead.unsigned_abs() > MOST_APART);
    if wrong().count() == 0 {
        return Vec::new();
    }
    // The largest group of clocks that agree.
    let agreeing = |from: i64| {
        clocks.iter().filter(move |(ahead, _)| (0..MOST_APART as i64).contains(&ahead.saturating_sub(from)))
    };
    let Some((from, _)) = clocks.iter().max_by_key(|(from, _)| agreeing(*from).count()) else { return Vec::new() };
    let group: Vec<&(i64, String)> = agreeing(*from).collect();
    let Some((median, _)) = group.get(group.len() / 2) else { return Vec::new() };
    let has_most = group.len() >= 2 && 2 * group.len() > clocks.len();
    if has_most && median.unsigned_abs() > MOST_APART {
        let names: Vec<&str> = group.iter().map(|(_, name)| name.as_str()).take(NAMED).collect();
        return vec![format!(
            "the clock of this machine is {}, by those of {} of {} neighbours ({}), and nodes refuse packets that are a second ahead of their \
             clock or five behind it: `timedatectl` or `chronyc tracking` says what sets it",
            by(median.saturating_neg(), "ahead"),
            group.len(),
            clocks.len(),
            names.join(", ")
        )];
    }
    let advice = match has_most {
        true => "most other neighbours agree with this machine's",
        false => "compare both with a third; `timedatectl` or `chronyc tracking` says what sets this one",
    };
    let one = |(ahead, node): &(i64, String)| {
        format!(
            "the clock of {node} is {} this machine's, and nodes refuse packets that are a second ahead of their clock or five behind it: {advice}",
            by(*ahead, "ahead of")
        )
    };
    wrong().map(one).collect()
}

/// What the operator of an end of these links has to see to.
pub fn problems(all: &[LinkStatus], name: impl Fn(&IdentityKey) -> String) -> Vec<String> {
    [clock_problems(all, &name), session_problems(all, &name)].concat()
}

/// The neighbours with which no session begins, and what may be the reason. A neighbour that does not know this node, or speaks another
/// version of handshakes, answers nothing, so that only its silence is known here.
fn session_problems(all: &[LinkStatus], name: impl Fn(&IdentityKey) -> String) -> Vec<String> {
    let one = |link: &LinkStatus| {
        let node = name(&link.identity);
        if let Some((least, highest)) = link.other_versions.filter(|_| link.state != State::Up) {
            return Some(format!(
                "no link to {node}: it speaks versions {least} to {highest} of links, and none of them is spoken here: upgrade the older of \
                 the two"
            ));
        }
        let is_silent = link.state == State::Asked && link.attempts >= MOST_ATTEMPTS;
        is_silent.then(|| {
            format!(
                "no link to {node}: {MOST_ATTEMPTS} handshakes in a row were not answered: it does not run, it does not know this node, a firewall \
                 drops the datagrams, or its program is of another version, to which these are no handshakes (`wayleave --version` at both ends)"
            )
        })
    };
    limited(all.iter().filter_map(one).collect())
}

/// The first of these, and how many there are beside them.
fn limited(mut problems: Vec<String>) -> Vec<String> {
    let more = problems.len().saturating_sub(NAMED);
    problems.truncate(NAMED);
    problems.extend((more > 0).then(|| format!("no link to {more} more neighbours: `wayleave show links`")));
    problems
}

/// Whether any link can be used.
///
/// # Errors
/// Why none can.
pub fn readiness(all: &[LinkStatus], name: impl Fn(&IdentityKey) -> String) -> Result<(), String> {
    if all.is_empty() {
        return Err("no neighbour is a member with an advert".to_owned());
    }
    if all.iter().any(|link| link.state == State::Up) {
        return Ok(());
    }
    let names: Vec<String> = all.iter().map(|link| name(&link.identity)).collect();
    Err(format!("no neighbour answers: {}", names.join(", ")))
}

/// What was last said of each link.
#[derive(Debug, Default)]
pub struct Watch(BTreeMap<IdentityKey, LinkStatus>);

impl Watch {
    /// What is to be said of links now.
    pub fn lines(&mut self, all: &[LinkStatus], name: impl Fn(&IdentityKey) -> String) -> Vec<EventLine> {
        let mut lines = Vec::new();
        for link in all {
            let before = self.0.insert(link.identity, link.clone());
            lines.extend(line(before.as_ref(), link, name(&link.identity)));
        }
        self.0.retain(|identity, _| all.iter().any(|link| link.identity == *identity));
        lines
    }
}

pub fn line(before: Option<&LinkStatus>, link: &LinkStatus, node: String) -> Option<EventLine> {
    let was_up = before.is_some_and(|before| before.state == State::Up);
    let interface = usize::from(link.link);
    if link.other_versions.is_some() && link.other_versions != before.and_then(|before| before.other_versions) {
        let (least, highest) = link.other_versions?;
        return Some(event!(WARN "link-version" by interface, { node, least, highest }
            "the neighbour speaks versions {least} to {highest} of links, and none of them is spoken here: upgrade the older of the two"));
    }
    let address = link.address.map(|address| address.to_string());
    let by = link.transport.map(transport);
    match (was_up, link.state == State::Up) {
        (false, true) => {
            Some(event!(INFO "link-up" by interface, { node, address, by } "a neighbour has proved itself"))
        }
        (true, false) if link.state == State::Stopped => {
            Some(event!(INFO "link-stopped" by interface, { node } "a neighbour has said that it stops"))
        }
        (true, false) => Some(
            event!(WARN "link-down" by interface, { node } "a neighbour answers nothing: it has no address any more"),
        ),
        (true, true) if before.is_some_and(|before| before.transport != link.transport) => match link.transport {
            Some(Transport::Tls) => Some(event!(WARN "link-tls" by interface, { node, address }
                "UDP does not pass to a neighbour: the link goes over TLS, and UDP is tried again now and then")),
            _ => {
                Some(event!(INFO "link-udp" by interface, { node, address } "the link goes by UDP again, which passes"))
            }
        },
        (true, true) if before.is_some_and(|before| before.address != link.address) => {
            Some(event!(INFO "link-moved" by interface, { node, address } "a neighbour is at another address"))
        }
        _ => None,
    }
}

#[cfg(test)]
pub mod tests {
    use std::time::Duration;

    use wayleave_dataplane::link::Clock;

    use super::*;

    pub fn link(node: u8, state: State, size: Option<u16>, clock: Option<(i64, u64)>) -> LinkStatus {
        LinkStatus {
            link: node.into(),
            identity: IdentityKey([node; 32]),
            state,
            address: None,
            begun: 1,
            moved: 0,
            handshake: None,
            heard: Some(Duration::ZERO),
            sent: Volume::default(),
            received: Volume::default(),
            round_trip: None,
            clock: clock.map(|(ahead, within)| Clock { ahead, within }),
            loss: None,
            socket: None,
            endpoints: Vec::new(),
            tls_endpoints: Vec::new(),
            transport: None,
            seen: None,
            reached: Vec::new(),
            size,
            attempts: 0,
            other_versions: None,
        }
    }

    #[test]
    fn the_clock_that_is_wrong_is_named_with_its_error_and_no_other() {
        let said = |clocks: &[i64]| {
            let nodes = (1..).zip(clocks);
            let all: Vec<_> = nodes.map(|(node, ahead)| link(node, State::Up, None, Some((*ahead, 9_000)))).collect();
            clock_problems(&all, |node| format!("w{}", node.0[0]))
        };
        assert!(said(&[]).is_empty() && said(&[0]).is_empty() && said(&[-499_000, 499_000]).is_empty());
        let own = said(&[7_200_000, 7_300_000, 7_250_000]);
        let text = "the clock of this machine is 7.2 s behind, by those of 3 of 3 neighbours (w1, w3, w2), and";
        assert!(own.len() == 1 && own[0].starts_with(text), "{own:?}");
        let own = said(&[-86_400_000_000, 0, -86_400_100_000]);
        let text = "the clock of this machine is 86400.0 s ahead, by those of 2 of 3 neighbours (w3, w1), and";
        assert!(own.len() == 1 && own[0].starts_with(text), "{own:?}");
        // One neighbour alone cannot say whose it is, nor can two against two; one of several that is wrong is named itself.
        let one = said(&[-3_000_000]);
        assert!(
            one[0].starts_with("the clock of w1 is 3.0 s behind this machine's") && one[0].contains("with a third"),
            "{one:?}"
        );
        let one = said(&[0, 10_000, -9_000_000]);
        assert!(one.len() == 1 && one[0].starts_with("the clock of w3 is 9.0 s behind this machine's"), "{one:?}");
        assert!(one[0].ends_with("most other neighbours agree with this machine's"), "{one:?}");
        let two = said(&[5_000_000, 0, 5_000_000, 0]);
        assert!(two.len() == 2 && two.iter().all(|said| said.contains("with a third")), "{two:?}");
        let two = said(&[5_000_000, -5_000_000]);
        assert_eq!(two.len(), 2, "{two:?}");
        assert_eq!(said(&[i64::MAX, i64::MIN]).len(), 2);
        // What is read over a slow link may be wrong by as much, and what is down says nothing.
        let all =
            [link(1, State::Up, None, Some((900_000, 300_000))), link(2, State::Asked, None, Some((9_000_000, 9)))];
        assert!(clock_problems(&all, ToString::to_string).is_empty());
    }

    #[test]
    fn a_gateway_without_a_link_says_which_neighbour_is_missing_and_why() {
        use wayleave_control::advert::Relationship;

        let peer = |name: &str, state, claimed| LinkPeer {
            link: 1,
            node: NodeRef::Name(name.parse().expect("a name")),
            identity: None,
            noise: None,
            relationship: Relationship::Peer,
            claimed,
            local: "127.0.0.1:1".parse().expect("an address"),
            endpoint: None,
            tls: None,
            ids: Vec::new(),
            is_open: false,
            serves: false,
            state,
        };
        let removal = |node: &NodeRef| (node.to_string() == "r").then(|| "r was removed".to_owned());
        assert!(no_neighbour(&[], removal).contains("`wayleave link add`"));
        assert_eq!(gateway_faults(&[]), [NO_NEIGHBOUR]);
        let claimed = Some(Relationship::Customer);
        let peers = [peer("b", PeerState::Disagrees, claimed), peer("r", PeerState::Unknown, None)];
        let faults = gateway_faults(&peers);
        assert!(faults.len() == 1 && faults[0].contains("b is a peer of this node"), "{faults:?}");
        assert!(faults[0].contains("this node is a customer of b"), "{faults:?}");
        let said = no_neighbour(&peers, removal);
        assert!(said.contains(&faults[0]) && said.ends_with("; r was removed"), "{said}");
        let rows = neighbour_rows(peers.to_vec(), &Realm::default());
        assert!(rows[0]["why"].is_string() && rows[0]["state"] == PeerState::Disagrees.text(), "{rows:?}");
    }

    #[test]
    fn a_path_takes_what_passes_over_all_its_links_and_rises_once_all_are_measured() {
        let text = crate::config::overlay::template_with(&crate::config::overlay::OverlayValues {
            local: Some("127.0.0.1:7300".to_owned()),
            ..crate::config::overlay::OverlayValues::example("overlay.redb")
        });
        #[derive(serde::Deserialize)]
        struct File {
            overlay: OverlaySection,
        }
        let section = toml::from_str::<File>(&text).expect("a section").overlay;
        let configured = u16::try_from(*section.mtu.get_ref()).expect("an MTU");
        let of = |sizes: &[(State, Option<u16>)]| {
            let all: Vec<_> = (1..).zip(sizes).map(|(node, (state, size))| link(node, *state, *size, None)).collect();
            usable_mtu(&section, &all)
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(State::Up, None)]), None);
        assert_eq!(of(&[(State::Up, Some(1_400)), (State::Up, Some(1_252))]), Some((1_252, true)));
        assert_eq!(of(&[(State::Up, Some(1_400)), (State::Up, None)]), Some((1_400.min(configured), false)));
        assert_eq!(of(&[(State::Up, Some(1_400)), (State::Asked, Some(1_252))]), Some((1_400.min(configured), true)));
        assert_eq!(of(&[(State::Up, Some(100))]), Some((MIN_MTU, true)));
        assert_eq!(*with_mtu(&section, 1_300).mtu.get_ref(), 1_300);
        assert_eq!(*with_mtu(&section, u16::MAX).mtu.get_ref(), u64::from(configured));
    }
}

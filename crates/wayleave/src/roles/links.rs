//! Sessions of links, as forwarders and gateways run them: what the machine of `dataplane` is set up with, what is shown of it, and
//! what the log says.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};

use serde_json::{Value, json};
use wayleave_control::advert::MIN_MTU;
use wayleave_core::IdentityKey;
use wayleave_crypto::kdf;
use wayleave_crypto::secret::Seed;
use wayleave_dataplane::link::{Config, Counters, LinkStatus, Links, Peer, State, Volume};
use wayleave_runtime::http::{Metric, Unit};
use wayleave_runtime::metrics;

use super::daemon::seed;
use super::events::{EventLine, event};
use super::overlay::Handle;
use crate::config::links::{ANYWHERE, LinkPeer};
use crate::config::overlay::{OverlaySection, Settings};
use crate::failure::Outcome;

/// The same as [`ANYWHERE`] for IPv6.
const ANYWHERE_V6: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);
/// Octets by which IP and UDP may make a datagram longer than the ICING packet in it; larger ones are worth no try.
const JUMBO: u16 = 9_000;

/// A machine without neighbours yet, for the node of `settings`.
///
/// # Errors
/// If the system gives no randomness.
pub fn machine(settings: &Settings) -> Outcome<Links> {
    Ok(Links::new(Config {
        identity: settings.own(),
        realm: settings.section.realm().0,
        noise: static_key(settings),
        seed: seed()?,
    }))
}

/// The static key of the node's membership: a gateway's lies in a file, another node's follows from its identity, as `join` made it.
fn static_key(settings: &Settings) -> Seed {
    let derived = || kdf::derive("wayleave/node/join-noise/v1", settings.identity.expose(), b"");
    settings.noise.clone().unwrap_or_else(derived)
}

/// Where the node receives what its neighbours send, each address once. A link that has none is at one of both families, as far as the
/// machine has them.
pub fn sockets(section: &OverlaySection) -> Vec<SocketAddr> {
    let mut all = Vec::new();
    let mut add = |local: SocketAddr| {
        if !all.contains(&local) {
            all.push(local);
        }
    };
    for neighbour in &section.neighbour {
        match &neighbour.get_ref().local {
            Some(local) => add(local.get_ref().0),
            None => {
                add(ANYWHERE);
                if UdpSocket::bind(ANYWHERE_V6).is_ok() {
                    add(ANYWHERE_V6);
                }
            }
        }
    }
    section.open.iter().for_each(|open| add(open.local.get_ref().0));
    all
}

/// The neighbours that can prove themselves now, with `sockets` as [`sockets`] has them.
pub fn peers(node: &Handle, section: &OverlaySection, sockets: &[SocketAddr]) -> Vec<Peer> {
    let largest = u16::try_from(*section.mtu.get_ref()).unwrap_or(u16::MAX).min(JUMBO);
    let peer = |peer: LinkPeer| {
        let (identity, noise) = peer.identity.zip(peer.noise)?;
        let is_ours = |at: &SocketAddr| *at == peer.local || peer.local == ANYWHERE && *at == ANYWHERE_V6;
        let ours: Vec<usize> = (0..sockets.len()).filter(|number| is_ours(&sockets[*number])).collect();
        let resolved = peer.endpoint.iter().flat_map(|endpoint| node.resolved(endpoint));
        let by = |there: SocketAddr| {
            let number = *ours.iter().find(|number| sockets[**number].is_ipv4() == there.is_ipv4())?;
            Some((number, there))
        };
        let endpoints = resolved.filter_map(by).collect();
        Some(Peer { link: peer.link, identity, noise, sockets: ours, endpoints, largest })
    };
    node.link_peers(section).into_iter().filter_map(peer).collect()
}

/// Octets of the largest ICING packet that passes over each of the node's links, as far as they were measured, and at most what the
/// configuration says.
pub fn usable_mtu(section: &OverlaySection, all: &[LinkStatus]) -> u16 {
    let configured = u16::try_from(*section.mtu.get_ref()).unwrap_or(u16::MAX);
    let measured = all.iter().filter(|link| link.state == State::Up).filter_map(|link| link.size).min();
    configured.min(measured.unwrap_or(u16::MAX)).max(MIN_MTU)
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
        State::Awaited => "awaited",
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
            "last_handshake": link.handshake.map(|at| at.secs()),
            "heard_millis": link.heard.map(|span| span.as_millis() as u64),
            "moved": link.moved,
            "sent": volume(link.sent),
            "received": volume(link.received),
            "round_trip_micros": link.round_trip.map(|span| span.as_micros() as u64),
            "loss_ppm": link.loss,
            "size": link.size,
            "other_versions": link.other_versions,
        })
    };
    all.iter().map(row).collect()
}

/// What the metrics page has of links.
pub fn metrics(all: &[LinkStatus], counters: Counters) -> Vec<Metric> {
    let up = all.iter().filter(|link| link.state == State::Up).count();
    let moved: u64 = all.iter().map(|link| link.moved).sum();
    metrics! {
        gauge "link_up" Sessions "Links whose neighbour has proved itself and answers" = up;
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

fn line(before: Option<&LinkStatus>, link: &LinkStatus, node: String) -> Option<EventLine> {
    let was_up = before.is_some_and(|before| before.state == State::Up);
    let interface = usize::from(link.link);
    if link.other_versions.is_some() && link.other_versions != before.and_then(|before| before.other_versions) {
        let (least, highest) = link.other_versions?;
        return Some(event!(WARN "link-version" by interface, { node, least, highest }
            "the neighbour speaks versions {least} to {highest} of links, and none of them is spoken here: upgrade the older of the two"));
    }
    let address = link.address.map(|address| address.to_string());
    match (was_up, link.state == State::Up) {
        (false, true) => Some(event!(INFO "link-up" by interface, { node, address } "a neighbour has proved itself")),
        (true, false) => Some(
            event!(WARN "link-down" by interface, { node } "a neighbour answers nothing: it has no address any more"),
        ),
        (true, true) if before.is_some_and(|before| before.address != link.address) => {
            Some(event!(INFO "link-moved" by interface, { node, address } "a neighbour is at another address"))
        }
        _ => None,
    }
}

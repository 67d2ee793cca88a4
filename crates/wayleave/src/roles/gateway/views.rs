//! What a gateway shows to its operator.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wayleave_control::frames::Host;
use wayleave_control::realm::Roles;
use wayleave_core::{IdentityKey, InnerTraffic, Prefix};
use wayleave_dataplane::gateway::{
    Counters, PathStatus, PeerStatus, Reason, RouteState, RouteStatus, Traffic, Unsealed, Volume,
};
use wayleave_dataplane::icing;
use wayleave_dataplane::link::{Counters as LinkCounters, LinkStatus, Transport};
use wayleave_packet::icing::header::Version;
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::http::{Metric, Parameters, Unit, ViewError};
use wayleave_runtime::metrics;
use wayleave_runtime::store::FileStore;

use super::names::{Directory, Meaning, meaning};
use super::proxy::Proxy;
use super::proxy::associations::Dropped;
use super::resolver;
use super::worker::IoCounters;
use super::{Shared, Unresolved};
use crate::config::Text;
use crate::config::choices::{ChoicesFile, PinSection};
use crate::config::links::LinkPeer;
use crate::config::overlay::NodeRef;
use crate::config::receiving::Known;
use crate::overview::Overview;
use crate::roles::daemon::{View, Views};
use crate::roles::links;
use crate::roles::overlay::refused_consents::Consents;

/// How long `ping` waits for an answer.
const TIMEOUT: Duration = Duration::from_secs(4);
const STEP: Duration = Duration::from_millis(20);
/// Routes of the machine that an answer names for a prefix, at most.
const FIRST: usize = 4;
/// Removed nodes that an answer names, at most, and how many seconds ago they were removed.
const NAMED: usize = 4;
/// Names of members that an error names, at most.
const NAMES: usize = 16;
const RECENT: u64 = 7 * 86_400;

/// What may be wrong with a path on which nothing was answered.
const UNPROVEN: &str = "the path is ready, and no probe on it has been answered: if `wayleave ping` has no answer either, a node on the way has failed \
                        or refuses packets, since its consent server has other tag keys than the node (`wayleave show status` there), or the \
                        other gateway has no consent for its answers (`wayleave why` there)";

#[derive(Clone)]
pub struct GatewayView(pub Arc<Shared>);

impl GatewayView {
    async fn counters(&self) -> Result<(Counters, IoCounters), ViewError> {
        let counters = self.0.worker.ask(|worker| worker.gateway.counters()).await;
        if let Some(counters) = &counters {
            let refused = counters.refused(icing::Reason::Consent);
            let good = counters.received + counters.answers + counters.sessions;
            self.0.refused_consents().note(Consents { refused, good }, Instant::now());
        }
        let mut threads = Vec::new();
        for worker in &self.0.workers {
            threads.push(worker.ask(|worker| worker.counters).await.ok_or(ViewError::Unavailable)?);
        }
        Ok((counters.ok_or(ViewError::Unavailable)?, threads.into_iter().sum()))
    }

    /// How the links are, and what they count; `None` in the laboratory, where they are fixed.
    async fn links(&self) -> Option<(Vec<LinkStatus>, LinkCounters)> {
        let of = self.0.worker.ask(|worker| {
            let links = worker.ends.links()?;
            Some((links.status(worker.clock.now()), links.counters()))
        });
        of.await.flatten()
    }

    /// Asks neighbours at their other endpoints whether they answer there.
    async fn ask_endpoints(self) -> Result<Value, ViewError> {
        self.0.worker.send(|worker| {
            let now = worker.clock.now();
            if let Some(links) = worker.ends.links_mut() {
                links.ask_endpoints(now);
            }
        });
        Ok(json!({ "version": 1 }))
    }

    async fn link_rows(self, _: Parameters) -> Result<Value, ViewError> {
        let known = self.0.known();
        let links = self.links().await.map(|(links, _)| links).unwrap_or_default();
        let mut rows = links::rows(&links, |node| known.describe(node));
        let peers = self.link_peers();
        if let Some(node) = &self.0.node {
            links::add_adverts(&mut rows, &peers, |endpoint| node.resolution(endpoint));
        }
        Ok(json!({ "version": 1, "links": rows, "missing": links::missing(&peers), "mark": self.0.mark }))
    }

    async fn peers(&self) -> Result<Vec<PeerStatus>, ViewError> {
        let all = self.0.worker.ask(|worker| {
            let now = worker.clock.now();
            worker.gateway.status(now)
        });
        all.await.ok_or(ViewError::Unavailable)
    }

    /// That this gateway was removed from the realm.
    fn removal(&self) -> Option<&'static str> {
        self.0.node.as_ref().and_then(|node| node.removal())
    }

    /// Why programs here do not find names by systemd-resolved, though it runs.
    fn resolver_fault(&self) -> Option<String> {
        match self.0.resolver() {
            Some(resolver::State::Failed(why)) => Some(why),
            _ => None,
        }
    }

    /// Which clock is wrong.
    async fn clock_problems(&self, known: &Known) -> Vec<String> {
        let links = self.links().await.map(|(links, _)| links).unwrap_or_default();
        links::clock_problems(&links, |node| known.describe(node))
    }

    /// Which neighbours cannot be used, and which clock is wrong.
    async fn link_problems(&self, known: &Known) -> Vec<String> {
        let links = self.links().await.map(|(links, _)| links).unwrap_or_default();
        let of_peers = self.0.node.as_ref().map(|_| links::gateway_faults(&self.link_peers())).unwrap_or_default();
        [of_peers, links::problems(&links, |node| known.describe(node))].concat()
    }

    fn link_peers(&self) -> Arc<Vec<LinkPeer>> {
        Arc::clone(&self.0.link_peers.read().unwrap_or_else(PoisonError::into_inner))
    }

    async fn neighbours(self) -> Result<Value, ViewError> {
        let node = self.0.node.as_ref().ok_or_else(|| ViewError::NotFound("no realm in a laboratory".to_owned()))?;
        let realm = node.realm().borrow().clone();
        Ok(json!({ "version": 1, "neighbours": links::neighbour_rows(self.link_peers().to_vec(), &realm) }))
    }

    /// What path servers say of a node to which nothing is sent.
    async fn idle(&self, node: IdentityKey) -> Result<String, String> {
        const IDLE: &str = "nothing was sent there lately";
        let find = self.0.node.as_ref().map(|handle| handle.find_paths(Host::Identity(node)));
        let found = match find {
            Some(find) => tokio::time::timeout(TIMEOUT, find).await.ok(),
            None => None,
        };
        let no_path = |none| self.0.node.as_ref().map_or_else(String::new, |handle| handle.no_path(&none));
        match found.map(|found| found.map_err(no_path)) {
            Some(Ok(paths)) => {
                let s = if paths.len() == 1 { "" } else { "s" };
                let count = paths.len();
                Ok(format!("{IDLE}; {count} path{s} can be had: `wayleave ping` asks for consent to them"))
            }
            Some(Err(why)) => Err(format!("{IDLE}, and nothing can be: {why}")),
            None => Ok(format!("{IDLE}: `wayleave ping` asks for a path")),
        }
    }

    /// The nodes that were removed from the realm lately: those that matter here, and others.
    fn removed_lately(known: &Known, matters: impl Fn(&IdentityKey) -> bool) -> [Vec<String>; 2] {
        let since = unix_now().secs().saturating_sub(RECENT);
        let lately = known.removed.iter().filter(|(_, (_, at))| *at >= since).map(|(node, _)| node);
        let (here, elsewhere): (Vec<_>, Vec<_>) = lately.partition(|node| matters(node));
        [here, elsewhere].map(|all| all.into_iter().filter_map(|node| known.removal(node)).take(NAMED).collect())
    }

    /// What the node's problems are, and to whom all paths are dead.
    async fn problems(&self, known: &Known, peers: &[PeerStatus]) -> Vec<String> {
        let mut problems = self.0.node.as_ref().map(|node| node.problems()).unwrap_or_default();
        problems.extend(self.link_problems(known).await);
        problems.extend(self.0.filter_faults());
        problems.extend(self.resolver_fault());
        problems.extend(self.0.unresolved().iter().map(ToString::to_string));
        problems.extend(self.0.refused_consents().problem());
        let mut unsent: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for peer in peers {
            let name = known.describe(&peer.identity);
            let mut live = peer.routes.iter().filter(|route| route.is_live);
            if let Some(why) = live.find_map(|route| no_consent(&route.state)) {
                unsent.entry(why).or_default().push(name.clone());
            }
            for route in peer.routes.iter().filter(|route| route.mirror.is_none()) {
                if let Some(since) = route.active.as_ref().and_then(|path| path.dead_since) {
                    let (policy, suffix) = (&route.policy, &self.0.suffix);
                    let why = format!("wayleave why {policy}.{name}.{suffix}");
                    problems
                        .push(format!("every path to {name} by policy {policy} is dead since {}: {why}", utc(since)));
                }
            }
        }
        problems.extend(refusals(&unsent));
        problems
    }

    async fn paths(self) -> Result<Value, ViewError> {
        let (known, (choices, _)) = (self.0.known(), self.0.choices());
        let mut rows = Vec::new();
        for peer in self.peers().await? {
            for path in &peer.paths {
                let used: Vec<String> = peer.routes.iter().filter_map(|route| usage(route, path)).collect();
                let mut row = describe(path, &known);
                row["to"] = json!(known.describe(&peer.identity));
                row["used"] = json!(used);
                row["pinned"] = json!(pinned_by(&choices, &known, peer.identity, path));
                row["avoided"] = json!(avoided(&choices, &known, &path.nodes));
                rows.push(row);
            }
        }
        Ok(json!({ "version": 1, "paths": rows }))
    }

    /// Every member for which something was carried since the start, and how its paths stand.
    async fn peer_page(self) -> Result<Value, ViewError> {
        let known = self.0.known();
        let all = self.0.worker.ask(|worker| {
            let now = worker.clock.now();
            (worker.gateway.traffic(), worker.gateway.status(now))
        });
        let (traffic, peers) = all.await.ok_or(ViewError::Unavailable)?;
        let admitted = self.0.admitted.read().unwrap_or_else(PoisonError::into_inner).clone();
        let of = |(identity, traffic): &(IdentityKey, Traffic)| {
            let peer = peers.iter().find(|peer| peer.identity == *identity);
            (peer.is_some() || traffic.handshake.is_some()).then(|| {
                let mut row = describe_peer(*identity, traffic, peer, &known);
                let texts = |all: &Vec<InnerTraffic>| all.iter().map(ToString::to_string).collect::<Vec<_>>();
                // All: no list; nothing: null.
                row["admitted"] = match &admitted {
                    None => json!(["all"]),
                    Some(admitted) => match admitted.get(identity) {
                        Some(all) if all.is_empty() => json!(["all"]),
                        other => json!(other.map(texts).unwrap_or_default()),
                    },
                };
                row
            })
        };
        Ok(json!({ "version": 1, "peers": traffic.iter().filter_map(of).collect::<Vec<_>>() }))
    }

    /// What the realm offers, and what becomes of it on this machine.
    async fn routes(self) -> Result<Value, ViewError> {
        if self.0.interface.is_none() {
            return Err(ViewError::NotFound(
                "a proxy has no routes: what applications ask for goes to members".to_owned(),
            ));
        }
        let known = self.0.known();
        // Of a machine with many routes this takes a while.
        let own = tokio::task::spawn_blocking(super::own_routes).await.unwrap_or_default();
        let unaccepted = self.0.unaccepted.read().unwrap_or_else(PoisonError::into_inner).clone();
        let accepted = self.0.accepted.read().unwrap_or_else(PoisonError::into_inner).clone();
        let row = |(prefix, owner): (&Prefix, &IdentityKey)| {
            let is_first = |own: &&Prefix| own.contains(prefix) || prefix.contains(own);
            let first: Vec<String> = own.iter().filter(is_first).take(FIRST).map(ToString::to_string).collect();
            json!({
                "prefix": prefix.to_string(),
                "member": known.describe(owner),
                "accepted": !unaccepted.contains(prefix),
                "covered_by": first,
            })
        };
        let of_others = known.prefixes.iter().filter(|(_, owner)| **owner != self.0.own);
        Ok(json!({
            "version": 1,
            "routes": of_others.map(row).collect::<Vec<_>>(),
            "accept": accepted.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "missing": unaccepted.iter().map(ToString::to_string).collect::<Vec<_>>(),
        }))
    }

    async fn names(self) -> Result<Value, ViewError> {
        let known = self.0.known();
        let names = self.0.names.names();
        let row = |(policy, node, number): (&str, IdentityKey, u32)| {
            let [v4, v6] = self.0.blocks.addresses(number);
            json!({
                "name": format!("{policy}.{}.{}", known.describe(&node), self.0.suffix),
                "ipv4": v4.to_string(),
                "ipv6": v6.to_string(),
            })
        };
        Ok(json!({ "version": 1, "names": names.given().map(row).collect::<Vec<_>>() }))
    }

    /// Which policy and node a name or address means.
    fn target(&self, parameters: &Parameters) -> Result<(usize, IdentityKey), ViewError> {
        let text = parameters.get("name").ok_or_else(|| ViewError::Request("?name=NAME is missing".to_owned()))?;
        let known = self.0.known();
        let gateway = |node: IdentityKey| {
            if node == self.0.own {
                let what = format!("{text} is this gateway itself: name another one");
                return Err(ViewError::NotFound(what));
            }
            let is_none = || format!("{} is no gateway, by its membership: it takes no packets", known.describe(&node));
            if known.is_gateway(&node) { Ok(node) } else { Err(ViewError::NotFound(is_none())) }
        };
        if let Ok(address) = text.parse::<IpAddr>() {
            let former = || known.former.owner(address).and_then(|owner| known.removal(&owner));
            let owner = known.prefixes.owner(address).ok_or_else(|| {
                ViewError::NotFound(match former() {
                    Some(removal) => format!("{removal}, with the address {address}: ask the realm's operator"),
                    None => format!("no member has the address {address}"),
                })
            })?;
            return Ok((0, gateway(owner)?));
        }
        let of = |policy: &str, node: &str| {
            let policies = self.0.policies();
            let place = policies.iter().position(|name| name.eq_ignore_ascii_case(policy)).ok_or_else(|| {
                ViewError::NotFound(format!("there is no policy `{policy}`; there are: {}", policies.join(", ")))
            })?;
            let identity = known.names.iter().find(|(name, _)| name.eq_ignore_ascii_case(node));
            let (_, identity) = identity.ok_or_else(|| {
                let removed = known.removed.iter().find(|(_, (name, _))| name.eq_ignore_ascii_case(node));
                ViewError::NotFound(match removed.and_then(|(identity, _)| known.removal(identity)) {
                    Some(removal) => format!("{removal}: it is no member any more; ask the realm's operator"),
                    None => format!(
                        "no member of the realm that is known here is called `{node}`: names are POLICY.NODE.{}, NODE.{0}, or NODE alone; \
                         known so far: {}; a node that has started, or joined, since some seconds may not have been heard of yet",
                        self.0.suffix,
                        few(known.names.keys().map(ToString::to_string))
                    ),
                })
            })?;
            Ok((place, gateway(*identity)?))
        };
        match meaning(text, self.0.suffix()) {
            Meaning::Pair(policy, node) => of(&policy, &node),
            // A node's name alone, with the suffix or without, is meant by the first policy.
            Meaning::Node(node) => of(&self.0.policies().first().cloned().unwrap_or_default(), &node),
            _ => of(&self.0.policies().first().cloned().unwrap_or_default(), text),
        }
    }

    /// What the user has decided, and which nodes there are to decide about.
    async fn choices(self) -> Result<Value, ViewError> {
        let (known, (choices, wrong)) = (self.0.known(), self.0.choices());
        let pin = |pin: &PinSection| {
            let (policy, node) = (&pin.policy, pin.node.0.to_string());
            let is_known = self.0.policies().iter().any(|name| name.eq_ignore_ascii_case(policy))
                && known.identity(&pin.node.0).is_some();
            json!({ "policy": policy, "node": node, "over": texts_of(&pin.over), "known": is_known })
        };
        Ok(json!({
            "version": 1,
            "avoid": texts_of(&choices.avoid),
            "pins": choices.pin.iter().map(pin).collect::<Vec<_>>(),
            "nodes": known.names.keys().collect::<Vec<_>>(),
            "identities": known.names.iter().map(|(name, node)| (name, node.to_string())).collect::<BTreeMap<_, _>>(),
            "own": self.0.own.to_string(),
            "ends": self.ends().iter().map(ToString::to_string).collect::<Vec<_>>(),
            "wrong": wrong,
        }))
    }

    /// The members that forward nothing: no path crosses them.
    fn ends(&self) -> Vec<IdentityKey> {
        let Some(node) = &self.0.node else { return Vec::new() };
        let realm = node.realm().borrow().clone();
        let ends = realm.nodes.iter().filter(|(_, member)| !member.membership.grants.roles.has(Roles::FORWARDER));
        ends.map(|(identity, _)| *identity).collect()
    }

    /// How a route stands, and what to do if it does not.
    async fn why(self, parameters: Parameters) -> Result<Value, ViewError> {
        let (policy, node) = self.target(&parameters)?;
        let (known, (choices, _)) = (self.0.known(), self.0.choices());
        let name = self.0.policies().get(policy).cloned().unwrap_or_default();
        let pinned = pin_of(&choices, &known, &name, node).map(|pin| texts_of(&pin.over));
        let avoided = texts_of(&choices.avoid);
        let all = self.0.unresolved();
        let concerns = |one: &&Unresolved| one.policy.as_ref().is_none_or(|policy| policy.eq_ignore_ascii_case(&name));
        let unresolved: Vec<String> = all.iter().filter(concerns).map(ToString::to_string).collect();
        let peers = self.peers().await?;
        let route = peers.iter().find(|peer| peer.identity == node).and_then(|peer| {
            let route = peer.routes.iter().find(|route| route.policy == name && route.mirror.is_none())?;
            Some((peer, route))
        });
        if let Some(removal) = self.removal() {
            return Ok(json!({
                "version": 1, "node": known.describe(&node), "policy": name, "state": "removed", "why": removal,
                "pinned": pinned, "avoided": avoided, "unresolved": unresolved,
            }));
        }
        let Some((peer, route)) = route else {
            let mut why = match self.idle(node).await {
                Ok(why) => vec![why],
                Err(why) => {
                    let [here, elsewhere] = Self::removed_lately(&known, |removed| *removed == node);
                    [here, vec![why], self.link_problems(&known).await, elsewhere].concat()
                }
            };
            // Who finds no name sends nothing.
            why.extend(self.resolver_fault());
            return Ok(json!({
                "version": 1, "node": known.describe(&node), "policy": name, "state": "idle", "why": why.join("; "),
                "pinned": pinned, "avoided": avoided, "unresolved": unresolved,
            }));
        };
        let paths = route.active.iter().chain(&route.spare);
        let removed = paths.flat_map(|path| &path.nodes).find_map(|node| known.removal(node));
        let of_path = removed.map(|removal| {
            format!(
                "{removal}, and the path crosses it: it ends, and a path without it is asked for; if there is none, the realm's operator has to \
                 admit another node in its place"
            )
        });
        let is_dead =
            route.state == RouteState::Ready && route.active.as_ref().is_some_and(|path| path.dead_since.is_some());
        let of_state = match &route.state {
            RouteState::Ready if peer.sessions == 0 => {
                "the path is ready; the other gateway has not answered the handshake yet: if that stays so, it does not run, packets do not \
                 arrive, a node refuses them, since its consent server has other tag keys than the node (`wayleave show status` there), or its \
                 program is of another version, to which this is no handshake (`wayleave --version` at both ends)"
            }
            RouteState::Ready if is_dead => {
                "every path is dead: probes stay unanswered: a node on the way has failed or refuses packets (`wayleave show status` there), or \
                 the other gateway has no consent for its answers (`wayleave why` there)"
            }
            RouteState::Ready if route.active.as_ref().is_some_and(|path| path.answered.is_none()) => UNPROVEN,
            RouteState::Ready => "packets go by the active path",
            RouteState::Asking => "servers have not answered yet",
            RouteState::NoPath(why) | RouteState::NoConsent(why) => why,
        };
        // Where no path is left, those who were removed are the first that one looks for, if they were on one.
        let [gone, elsewhere] = match &route.state {
            RouteState::Ready if !is_dead => Default::default(),
            RouteState::Asking | RouteState::NoConsent(_) => Default::default(),
            _ => {
                let is_crossed = |removed: &IdentityKey| peer.paths.iter().any(|path| path.nodes.contains(removed));
                Self::removed_lately(&known, |removed| *removed == node || is_crossed(removed))
            }
        };
        let of_links = match &route.state {
            RouteState::Ready => self.clock_problems(&known).await,
            RouteState::Asking | RouteState::NoPath(_) | RouteState::NoConsent(_) => {
                let servers = self.0.node.as_ref().map(|node| node.clock_problems()).unwrap_or_default();
                [servers, self.link_problems(&known).await].concat()
            }
        };
        let mut of_state = [gone, vec![of_state.to_owned()], of_links, elsewhere].concat();
        of_state.extend(self.resolver_fault());
        let first = route.active.as_ref().and_then(|path| path.nodes.get(1));
        let links = self.links().await.map(|(links, _)| links).unwrap_or_default();
        let is_first_over_tls =
            |link: &LinkStatus| Some(&link.identity) == first && link.transport == Some(Transport::Tls);
        let over_tls = links.iter().find(|link| is_first_over_tls(link)).map(|link| known.describe(&link.identity));
        let profile = route.active.as_ref().and_then(|path| unsealed(path, &known));
        let why = of_path.unwrap_or_else(|| of_state.join("; "));
        Ok(json!({
            "version": 1,
            "node": known.describe(&node),
            "policy": name,
            "state": if is_dead { "dead" } else { state(&route.state) },
            "why": why,
            "over_tls": over_tls,
            "unsealed": profile,
            "active": route.active.as_ref().map(|path| describe(path, &known)),
            "spare": route.spare.as_ref().map(|path| describe(path, &known)),
            "pinned": pinned,
            "avoided": avoided,
            "unresolved": unresolved,
        }))
    }

    /// Asks for a path, probes it, and tells how long the answer took.
    async fn ping(self, parameters: Parameters) -> Result<Value, ViewError> {
        let (policy, node) = self.target(&parameters)?;
        let known = self.0.known();
        let name = self.0.policies().get(policy).cloned().unwrap_or_default();
        let end = tokio::time::Instant::now() + TIMEOUT;
        let want = self.0.worker.ask(move |worker| {
            let now = worker.clock.now();
            worker.gateway.want(node, policy, now);
            now.instant
        });
        let begin = want.await.ok_or(ViewError::Unavailable)?;
        loop {
            let peers = self.peers().await?;
            let route = peers
                .iter()
                .find(|peer| peer.identity == node)
                .and_then(|peer| peer.routes.iter().find(|route| route.policy == name && route.mirror.is_none()));
            // What was answered before says nothing of the path now.
            let is_now = |path: &&PathStatus| path.round_trip.is_some() && path.answered.is_some_and(|at| at >= begin);
            let answered = route.and_then(|route| route.active.as_ref()).filter(is_now);
            if let Some(path) = answered {
                let mut row = describe(path, &known);
                row["version"] = json!(1);
                row["node"] = json!(known.describe(&node));
                row["policy"] = json!(name);
                return Ok(row);
            }
            if tokio::time::Instant::now() >= end {
                let why = match route.map(|route| &route.state) {
                    Some(RouteState::NoPath(why) | RouteState::NoConsent(why)) => why.clone(),
                    _ if self.removal().is_some() => self.removal().unwrap_or_default().to_owned(),
                    Some(RouteState::Ready) => "no answer by the path: a node on the way has failed or refuses packets, since its consent \
                        server has other tag keys than the node, or for another reason (`wayleave show status` there), or the other \
                        gateway has no consent for its answers (`wayleave why` there); `wayleave why` here says how the path stands"
                        .to_owned(),
                    _ => "servers have not answered".to_owned(),
                };
                let of_links = match route.map(|route| &route.state) {
                    Some(RouteState::NoPath(_)) => self.link_problems(&known).await,
                    _ => Vec::new(),
                };
                let why = [vec![why], of_links].concat().join("; ");
                return Err(ViewError::NotFound(format!("{}: {why}", known.describe(&node))));
            }
            tokio::time::sleep(STEP).await;
        }
    }
}

/// Names for an error, of many the first.
fn few(names: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = names.collect();
    let more = all.len().saturating_sub(NAMES);
    match (all.is_empty(), more) {
        (true, _) => "none".to_owned(),
        (_, 0) => all.join(", "),
        _ => format!("{} and {more} more", all[..NAMES].join(", ")),
    }
}

fn texts_of(nodes: &[Text<NodeRef>]) -> Vec<String> {
    nodes.iter().map(|node| node.0.to_string()).collect()
}

/// Why a route has no consent, if that is what it lacks.
fn no_consent(state: &RouteState) -> Option<&String> {
    match state {
        RouteState::NoConsent(why) => Some(why),
        _ => None,
    }
}

/// To whom nothing is sent for want of consent, by the reason.
fn refusals(unsent: &BTreeMap<&str, Vec<String>>) -> Vec<String> {
    let line = |(why, names): (&&str, &Vec<String>)| {
        let more = names.len().saturating_sub(NAMED);
        let named = names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        format!("nothing is sent to {named}{more}: {why}")
    };
    let others = unsent.values().skip(NAMED).map(Vec::len).sum::<usize>();
    let others = (others > 0).then(|| format!("nothing is sent to {others} more gateways: `wayleave why` says why"));
    unsent.iter().take(NAMED).map(line).chain(others).collect()
}

/// The pin to a node by a policy.
fn pin_of<'a>(choices: &'a ChoicesFile, known: &Known, policy: &str, node: IdentityKey) -> Option<&'a PinSection> {
    let is_it =
        |pin: &&PinSection| pin.policy.eq_ignore_ascii_case(policy) && known.identity(&pin.node.0) == Some(node);
    choices.pin.iter().find(is_it)
}

/// The policies by which a path is pinned.
fn pinned_by(choices: &ChoicesFile, known: &Known, to: IdentityKey, path: &PathStatus) -> Vec<String> {
    let between = path.nodes.get(1..path.nodes.len().saturating_sub(1)).unwrap_or(&[]);
    let is_it = |pin: &&PinSection| {
        known.identity(&pin.node.0) == Some(to)
            && pin.over.iter().map(|node| known.identity(&node.0)).eq(between.iter().map(|node| Some(*node)))
    };
    choices.pin.iter().filter(is_it).map(|pin| pin.policy.clone()).collect()
}

/// The nodes for which a path is avoided.
fn avoided(choices: &ChoicesFile, known: &Known, nodes: &[IdentityKey]) -> Vec<String> {
    let is_on = |node: &&Text<NodeRef>| known.identity(&node.0).is_some_and(|node| nodes.contains(&node));
    choices.avoid.iter().filter(is_on).map(|node| node.0.to_string()).collect()
}

/// How a route uses a path, if it does.
fn usage(route: &RouteStatus, path: &PathStatus) -> Option<String> {
    let is = |other: &Option<PathStatus>| other.as_ref().is_some_and(|other| other.nodes == path.nodes);
    let how = match (is(&route.active), is(&route.spare)) {
        (true, _) => "active",
        (false, true) => "spare",
        (false, false) => return None,
    };
    let answers = if route.mirror.is_some() { ", answers" } else { "" };
    route.is_live.then(|| format!("{how} of {}{answers}", route.policy))
}

fn describe_peer(identity: IdentityKey, traffic: &Traffic, peer: Option<&PeerStatus>, known: &Known) -> Value {
    let volume = |volume: Volume| json!({ "packets": volume.packets, "octets": volume.octets });
    let routes = || peer.into_iter().flat_map(|peer| &peer.routes);
    let active = routes().filter(|route| route.is_live).find_map(|route| route.active.as_ref());
    let path = |path: &PathStatus| {
        json!({
            "nodes": path.nodes.iter().map(|node| known.describe(node)).collect::<Vec<_>>(),
            "used": routes().filter_map(|route| usage(route, path)).collect::<Vec<_>>(),
            "round_trip_micros": path.round_trip.map(|span| span.as_micros() as u64),
            "loss_ppm": path.loss,
            "room": path.headroom,
            "dead": path.dead_since.is_some(),
        })
    };
    json!({
        "node": known.describe(&identity),
        "identity": identity.to_string(),
        "sessions": peer.map_or(0, |peer| peer.sessions),
        "last_handshake": traffic.handshake,
        "sent": volume(traffic.sent),
        "received": volume(traffic.received),
        "loss_ppm": active.and_then(|path| path.loss),
        "round_trip_micros": active.and_then(|path| path.round_trip).map(|span| span.as_micros() as u64),
        "flows": peer.map_or(0, |peer| peer.flows),
        "paths": peer.into_iter().flat_map(|peer| &peer.paths).map(path).collect::<Vec<_>>(),
    })
}

fn state(state: &RouteState) -> &'static str {
    match state {
        RouteState::Ready => "ready",
        RouteState::Asking => "asking",
        RouteState::NoPath(_) => "no-path",
        RouteState::NoConsent(_) => "no-consent",
    }
}

fn describe(path: &PathStatus, known: &Known) -> Value {
    json!({
        "nodes": path.nodes.iter().map(|node| known.describe(node)).collect::<Vec<_>>(),
        "listed": path.is_listed,
        "proven_until": path.proven_until,
        "room": path.headroom,
        "round_trip_micros": path.round_trip.map(|span| span.as_micros() as u64),
        "loss_ppm": path.loss,
        "dead": path.dead_since.is_some(),
        "dead_since": path.dead_since,
        "held": path.is_held,
        "profile": path.packets.map(Version::profile),
        "unsealed": unsealed(path, known),
        "refused": path.refused,
    })
}

/// Why nodes on a path pass over all of every payload.
fn unsealed(path: &PathStatus, known: &Known) -> Option<String> {
    if path.packets != Some(Version::Standard) {
        return None;
    }
    let Unsealed { before, refusing } = &path.unsealed;
    let names = |nodes: &[IdentityKey]| nodes.iter().map(|node| known.describe(node)).collect::<Vec<_>>().join(", ");
    let refusing = (!refusing.is_empty()).then(|| {
        let (does, its, server) = match refusing.len() {
            1 => ("does", "its", "server is"),
            _ => ("do", "their", "servers are"),
        };
        let names = names(refusing);
        format!("{names} {does} not consent to packets of the profile `sealed`, or {its} consent {server} of a version before it")
    });
    let before = (!before.is_empty()).then(|| {
        let s = if before.len() == 1 { "s" } else { "" };
        format!("{} run{s} a version before the profile `sealed`", names(before))
    });
    let reasons: Vec<String> = refusing.into_iter().chain(before).collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// What is shown of a proxy; `dropped` are packets to it for which its queue had no room.
fn proxy_status(proxy: &Proxy, io: &IoCounters) -> Value {
    let (stack, datagrams) = (proxy.stack.counters(), &proxy.datagrams);
    let count = |counter: &AtomicU64| counter.load(Relaxed);
    let dropped: serde_json::Map<String, Value> =
        Dropped::ALL.iter().map(|(why, name)| ((*name).to_owned(), json!(datagrams.dropped(*why)))).collect();
    json!({
        "address": proxy.address.to_string(),
        "inherited": proxy.is_inherited,
        "open": stack.open,
        "opened": proxy.opened.load(Relaxed),
        "refused": proxy.refused.load(Relaxed),
        "sent_octets": stack.sent,
        "received_octets": stack.received,
        "dropped": io.refused,
        "datagrams": {
            "open": datagrams.open.load(Relaxed),
            "opened": datagrams.opened.load(Relaxed),
            "sent": count(&datagrams.sent[0]),
            "sent_octets": count(&datagrams.sent[1]),
            "received": count(&datagrams.received[0]),
            "received_octets": count(&datagrams.received[1]),
            "dropped": dropped,
        },
    })
}

impl View for GatewayView {
    async fn status(&self) -> Result<Value, ViewError> {
        let (counters, io) = self.counters().await?;
        let (known, peers) = (self.0.known(), self.peers().await?);
        let names = self.0.names.names().given().count();
        let problems = self.problems(&known, &peers).await;
        let unaccepted = self.0.unaccepted.read().unwrap_or_else(PoisonError::into_inner);
        let unaccepted: Vec<String> = unaccepted.iter().map(ToString::to_string).collect();
        let (choices, _) = self.0.choices();
        let rows: Vec<Value> = peers
            .iter()
            .map(|peer| {
                json!({
                    "peer": known.describe(&peer.identity), "sessions": peer.sessions, "flows": peer.flows,
                    "waiting": peer.waiting, "paths": peer.paths.len(), "routes": peer.routes.len(),
                })
            })
            .collect();
        let dead_paths: Vec<Value> = peers
            .iter()
            .flat_map(|peer| peer.paths.iter().map(move |path| (peer, path)))
            .filter_map(|(peer, path)| {
                let nodes: Vec<String> = path.nodes.iter().map(|node| known.describe(node)).collect();
                Some(json!({ "to": known.describe(&peer.identity), "nodes": nodes, "since": path.dead_since? }))
            })
            .collect();
        let dropped: serde_json::Map<String, Value> =
            Reason::ALL.iter().map(|reason| (reason.name().to_owned(), json!(counters.dropped(*reason)))).collect();
        let refused: serde_json::Map<String, Value> = icing::Reason::ALL
            .iter()
            .map(|reason| (reason.name().to_owned(), json!(counters.refused(*reason))))
            .collect();
        Ok(json!({
            "identity": self.0.own.to_string(),
            "interface": self.0.interface,
            "proxy": self.0.proxy.as_ref().map(|proxy| proxy_status(proxy, &io)),
            "suffix": self.0.suffix,
            "resolver": self.0.resolver().map(|state| state.name()),
            "members": known.nodes.len(),
            "gateways": known.members.len(),
            "neighbours": known.neighbours.len(),
            "names": names,
            "unaccepted": unaccepted,
            "policies": self.0.policies(),
            "avoided": choices.avoid.len(),
            "pins": choices.pin.len(),
            "sent": counters.sent,
            "received": counters.received,
            "split": counters.split,
            "failovers": counters.failovers,
            "dead": counters.dead,
            "dead_paths": dead_paths,
            "resent": counters.resent,
            "flows_given_way": counters.flows_given_way,
            "flows_recorded": io.flows_recorded,
            "path_requests": counters.path_requests,
            "proof_requests": counters.proof_requests,
            "strangers": io.strangers,
            "unsent": io.unsent,
            "peers": rows,
            "problems": problems,
            "dropped": dropped,
            "refused": refused,
        }))
    }

    async fn overview(&self, status: &Value) -> Result<Overview, ViewError> {
        let known = self.0.known();
        let title = format!("gateway {}", known.describe(&self.0.own));
        let mut overview = Overview::new(title, &["gateway", "sessions", "route", "state", "active path"]);
        for peer in self.peers().await? {
            let name = known.describe(&peer.identity);
            for route in peer.routes.iter().filter(|route| route.mirror.is_none()) {
                let active = route.active.as_ref();
                let nodes = active.map(|path| path.nodes.iter().map(|node| known.describe(node)).collect::<Vec<_>>());
                let is_dead = active.is_some_and(|path| path.dead_since.is_some());
                let words = if is_dead { "dead" } else { state(&route.state) };
                let well = matches!(route.state, RouteState::Ready | RouteState::Asking) && !is_dead;
                overview
                    .row(well, [json!(name), json!(peer.sessions), json!(route.policy), json!(words), json!(nodes)]);
            }
        }
        overview.count(format!("{} members, {} neighbours known", status["members"], status["neighbours"]));
        overview.count(format!("{} packets sent, {} received", status["sent"], status["received"]));
        overview.count(format!("{} changes of path", status["failovers"]));
        let sum =
            |counts: &Value| counts.as_object().into_iter().flatten().filter_map(|(_, n)| n.as_u64()).sum::<u64>();
        overview.count(format!("{} dropped, {} refused", sum(&status["dropped"]), sum(&status["refused"])));
        if let Some(proxy) = &self.0.proxy {
            let stack = proxy.stack.counters();
            let (opened, refused) = (proxy.opened.load(Relaxed), proxy.refused.load(Relaxed));
            overview.count(format!(
                "proxy at {}: {} connections open, {opened} opened, {refused} refused; {} associations for datagrams",
                proxy.address,
                stack.open,
                proxy.datagrams.open.load(Relaxed)
            ));
        }
        overview.count(format!("{} nodes avoided, {} pins", status["avoided"], status["pins"]));
        Ok(overview)
    }

    async fn metrics(&self) -> Option<Vec<Metric>> {
        let (counters, io) = self.counters().await.ok()?;
        let peers = self.peers().await.ok()?;
        let counter = Metric::counter;
        let sessions: usize = peers.iter().map(|peer| peer.sessions).sum();
        let mut all = metrics! {
            gauge "open" Sessions "Sessions with other gateways" = sessions;
            counter "inner_sent" Packets "Inner packets sent, sealed" = counters.sent;
            counter "inner_sent" Bytes "Octets of inner packets sent" = counters.sent_octets;
            counter "inner_received" Packets "Inner packets received and let out" = counters.received;
            counter "inner_received" Bytes "Octets of inner packets received" = counters.received_octets;
            counter "split" Packets "Messages that left in two packets" = counters.split;
            counter "probed" Packets "Probes sent" = counters.probes;
            counter "answered" Packets "Probes answered" = counters.answers;
            counter "begun" Sessions "Sessions begun" = counters.sessions;
            counter "dead_path" Alarms "Paths found dead" = counters.dead;
            counter "path" Changes "Changes of flows to another path" = counters.failovers;
            counter "inner_resent" Packets "TCP segments sent again because their path was dead" = counters.resent;
            counter "flow_given_way" Connections "Flows that gave way to others in a full table" = counters.flows_given_way;
            counter "flow_recorded" Changes "Changes of flows by name that are on disk" = io.flows_recorded;
            counter "path_asked" Calls "Questions for paths" = counters.path_requests;
            counter "proof_asked" Calls "Questions for consents" = counters.proof_requests;
            counter "strange" Packets "Packets from addresses of no neighbour" = io.strangers;
            counter "unsent" Packets "Packets for which the system had no room" = io.unsent;
            counter "failed" Calls "System calls that failed" = io.failures;
        };
        if let Some(proxy) = &self.0.proxy {
            let stack = proxy.stack.counters();
            all.extend(metrics! {
                gauge "proxy_open" Connections "Connections of applications that are open" = stack.open;
                counter "proxy_opened" Connections "Connections that were opened for applications" = proxy.opened.load(Relaxed);
                counter "proxy_refused" Connections "Requests of applications that were refused" = proxy.refused.load(Relaxed);
                counter "proxy_sent" Bytes "Octets of applications sent" = stack.sent;
                counter "proxy_received" Bytes "Octets received and let out to applications" = stack.received;
                counter "proxy_dropped" Packets "Packets to the proxy for which there was no room" = io.refused;
                gauge "proxy_datagram_open" Sessions "Associations for datagrams of applications that are open" = proxy.datagrams.open.load(Relaxed);
                counter "proxy_datagram_opened" Sessions "Associations for datagrams that were opened" = proxy.datagrams.opened.load(Relaxed);
                counter "proxy_datagram_sent" Packets "Datagrams of applications sent" = proxy.datagrams.sent[0].load(Relaxed);
                counter "proxy_datagram_sent" Bytes "Octets of these" = proxy.datagrams.sent[1].load(Relaxed);
                counter "proxy_datagram_received" Packets "Datagrams let out to applications" = proxy.datagrams.received[0].load(Relaxed);
                counter "proxy_datagram_received" Bytes "Octets of those" = proxy.datagrams.received[1].load(Relaxed);
                counter "proxy_datagram_dropped" Packets "Datagrams of the proxy that were dropped" = Dropped::ALL.iter().map(|(why, _)| proxy.datagrams.dropped(*why)).sum::<u64>();
            });
        }
        for reason in Reason::ALL {
            let thing = format!("dropped_{}", reason.name().replace('-', "_"));
            all.push(counter(&thing, Unit::Packets, "Packets dropped for this reason", counters.dropped(reason)));
        }
        for reason in icing::Reason::ALL {
            let thing = format!("refused_{}", reason.name().replace('-', "_"));
            all.push(counter(&thing, Unit::Packets, "ICING packets refused for this reason", counters.refused(reason)));
        }
        if let Some((links, counters)) = self.links().await {
            all.extend(links::metrics(&links, counters));
        }
        Some(all)
    }

    async fn readiness(&self) -> Option<Result<(), String>> {
        self.counters().await.ok()?;
        if let Some(removal) = self.removal() {
            return Some(Err(removal.to_owned()));
        }
        let known = self.0.known();
        if known.neighbours.is_empty() {
            return Some(Err(links::no_neighbour(&self.link_peers(), |node| known.removal_of(node))));
        }
        let Some(links) = self.links().await else { return Some(Ok(())) };
        Some(links::readiness(&links.0, |node| known.describe(node)))
    }

    fn store(&self) -> Option<&Arc<FileStore>> {
        Some(self.0.names.store())
    }

    fn pages(views: Views<Self>) -> Views<Self> {
        views
            .page("paths", |view, _| view.paths())
            .page("links", Self::link_rows)
            .page("neighbours", |view, _| view.neighbours())
            .order("links/ask", Self::ask_endpoints)
            .page("peers", |view, _| view.peer_page())
            .page("routes", |view, _| view.routes())
            .page("names", |view, _| view.names())
            .page("choices", |view, _| view.choices())
            .page("why", Self::why)
            .page("ping", Self::ping)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateways_without_consent_are_named_by_the_reason_and_not_without_end() {
        let names = |count: usize| (0..count).map(|number| format!("g{number}")).collect::<Vec<_>>();
        assert_eq!(refusals(&BTreeMap::from([("refused", names(1))])), ["nothing is sent to g0: refused"]);
        let many =
            BTreeMap::from([("a", names(6)), ("b", names(1)), ("c", names(1)), ("d", names(2)), ("e", names(3))]);
        let said = refusals(&many);
        assert_eq!(said.len(), NAMED + 1);
        assert_eq!(said[0], "nothing is sent to g0, g1, g2, g3 and 2 more: a");
        assert_eq!(said[3], "nothing is sent to g0, g1: d");
        assert_eq!(said[4], "nothing is sent to 3 more gateways: `wayleave why` says why");
    }
}

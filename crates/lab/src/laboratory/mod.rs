//! A laboratory: one description of one of four kinds of network, and what runs of it.

pub mod check;
pub mod processes;
pub mod routers;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use self::check::{Mistake, read};
use crate::attested::{self, Attested};
use crate::exchange::layout::Software;
use crate::exchange::{self, Exchange};
use crate::netns::{Network, NetworkNamespace, Rung};
use crate::overlay::{self, Overlay, graph};
use crate::process::wait_until;
use crate::routers::Routers;

/// How long nodes may take to find each other, and gateways their paths.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
/// How long real routers may take to have their routes.
const ROUTERS_PATIENCE: Duration = Duration::from_secs(90);

/// What runs of a description. It ends with this value.
pub trait Laboratory {
    /// Waits until everything has found what it needs, and starts the commands of the description. `say` gets a line for each stage.
    ///
    /// # Errors
    /// If a process has ended, or something is still missing.
    fn settle(&mut self, say: &mut dyn FnMut(&str)) -> Result<(), String>;

    /// What runs, as `status` shows it: processes and commands with their IDs; and what does not work as it should.
    fn describe(&self) -> Value;

    /// Waits for what has ended, so that nothing of it is left.
    fn reap(&mut self);

    /// Ends everything by SIGTERM; how many processes had to be killed.
    fn stop(&mut self) -> usize;
}

/// Waits until nothing is missing that routers are to have. `missing` names what is still to happen, or fails if it never will.
pub(crate) fn until_nothing_is_missing(
    mut missing: impl FnMut() -> Result<Option<String>, String>,
) -> Result<(), String> {
    let mut last = String::new();
    let found = wait_until(ROUTERS_PATIENCE, || match missing() {
        Ok(None) => Some(Ok(())),
        Ok(Some(what)) => {
            last = what;
            None
        }
        Err(ended) => Some(Err(ended)),
    });
    found.ok_or_else(|| format!("after {} s: {last}", ROUTERS_PATIENCE.as_secs()))?
}

/// A description, read and checked.
#[derive(Clone, Debug)]
pub enum Plan {
    /// An overlay, or ordinary routers with waypoints.
    Overlay(overlay::plan::Plan),
    /// An exchange of two parties.
    Exchange(exchange::plan::Plan),
    /// Networks behind attesting proxies.
    Attested(attested::plan::Plan),
}

/// Where a laboratory is started: its network, the rung, and the real routers if it has some.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    pub network: &'a Network,
    pub rung: Rung,
    pub routers: Option<&'a Routers>,
}

impl Plan {
    /// Reads a description.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn parse(text: &str) -> Result<Self, Vec<Mistake>> {
        let sections: toml::Table = read(text)?;
        if exchange::plan::Plan::is_of(&sections) {
            return exchange::plan::Plan::parse(text).map(Self::Exchange);
        }
        if attested::plan::Plan::is_of(&sections) {
            return attested::plan::Plan::parse(text).map(Self::Attested);
        }
        overlay::plan::Plan::parse(text).map(Self::Overlay)
    }

    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Overlay(plan) => &plan.name,
            Self::Exchange(plan) => &plan.name,
            Self::Attested(plan) => &plan.name,
        }
    }

    /// Everything that has a network namespace of its own.
    #[must_use]
    pub fn places(&self) -> BTreeSet<String> {
        match self {
            Self::Overlay(plan) => {
                // An overlay has an operator.
                let realm = (!plan.is_routed()).then_some("realm");
                plan.places().chain(realm).map(str::to_owned).collect()
            }
            Self::Exchange(plan) => plan.places().collect(),
            Self::Attested(plan) => plan.places().collect(),
        }
    }

    /// The namespace of a place.
    #[must_use]
    pub fn namespace(&self, place: &str) -> NetworkNamespace {
        match self {
            Self::Overlay(_) => overlay::namespace(place),
            Self::Exchange(plan) => plan.namespace(place),
            Self::Attested(plan) => plan.namespace(place),
        }
    }

    /// Whether it takes TUN interfaces.
    #[must_use]
    pub fn needs_tun(&self) -> bool {
        match self {
            Self::Overlay(plan) => {
                let stamps = !plan.capabilities.is_empty();
                stamps || !plan.gateways.is_empty() || plan.links.iter().any(|link| !link.delay.is_zero())
            }
            Self::Exchange(_) | Self::Attested(_) => false,
        }
    }

    /// Whether it takes real routers.
    #[must_use]
    pub fn needs_routers(&self) -> bool {
        match self {
            Self::Overlay(_) => false,
            Self::Exchange(_) | Self::Attested(_) => true,
        }
    }

    /// The software of its real routers.
    #[must_use]
    pub fn software(&self) -> Vec<Software> {
        match self {
            Self::Overlay(_) => Vec::new(),
            Self::Exchange(plan) => plan.members.iter().map(|member| member.software).collect(),
            Self::Attested(plan) => plan.networks.iter().map(|network| network.software).collect(),
        }
    }

    /// What to try at its places, as arguments of `wayleave-lab exec`.
    #[must_use]
    pub fn to_try(&self) -> Vec<String> {
        match self {
            Self::Overlay(plan) => plan.to_try(),
            Self::Exchange(plan) => plan.to_try(),
            Self::Attested(plan) => plan.to_try(),
        }
    }

    /// The plan as a graph in DOT; what is in `ended` is grey.
    #[must_use]
    pub fn dot(&self, ended: &BTreeSet<String>) -> String {
        match self {
            Self::Overlay(plan) => graph::dot(plan, ended),
            Self::Exchange(plan) => Picture::of_exchange(plan).dot(&plan.name, ended),
            Self::Attested(plan) => Picture::of_networks(plan).dot(&plan.name, ended),
        }
    }

    /// The plan as lines of text.
    #[must_use]
    pub fn drawing(&self, ended: &BTreeSet<String>) -> String {
        match self {
            Self::Overlay(plan) => graph::drawing(plan, ended),
            Self::Exchange(plan) => Picture::of_exchange(plan).drawing(ended),
            Self::Attested(plan) => Picture::of_networks(plan).drawing(ended),
        }
    }

    /// Lays it out, with keys, configurations, state and logs in `folder`, and starts everything. `binary` is the program; `say` gets
    /// a line for each stage.
    ///
    /// # Errors
    /// What failed, and what the failing part said.
    pub fn start(
        self,
        site: Site<'_>,
        folder: &Path,
        binary: &Path,
        say: &mut dyn FnMut(&str),
    ) -> Result<Box<dyn Laboratory>, String> {
        let Site { network, rung, routers } = site;
        let routers = || routers.ok_or("no real routers".to_owned());
        Ok(match self {
            Self::Overlay(plan) => Box::new(Overlay::start(plan, network, folder, binary, say)?),
            Self::Exchange(plan) => Box::new(Exchange::start(plan, (network, rung, routers()?), folder, binary, say)?),
            Self::Attested(plan) => Box::new(Attested::start(plan, (network, routers()?), folder, binary, say)?),
        })
    }
}

/// Networks and the sessions between them.
struct Picture {
    /// Places with what they are.
    nodes: Vec<(String, String)>,
    /// By places.
    sessions: Vec<(String, String)>,
}

impl Picture {
    fn of_exchange(plan: &exchange::plan::Plan) -> Self {
        let mut nodes = vec![
            ("party1".to_owned(), format!("the exchange {}, AS{}", plan.name, plan.asn.0)),
            ("party2".to_owned(), "the neutral organisation".to_owned()),
        ];
        let mut sessions = vec![("party1".to_owned(), "party2".to_owned())];
        for member in &plan.members {
            let prefixes: Vec<String> = member.routes.iter().map(|route| route.prefix.to_string()).collect();
            nodes.push((member.name.clone(), format!("proxy of AS{}", member.asn.0)));
            nodes.push((member.router(), format!("{} with {}", member.software.name(), prefixes.join(", "))));
            sessions.push((member.name.clone(), member.router()));
            sessions.extend(["party1", "party2"].map(|party| (party.to_owned(), member.name.clone())));
        }
        Self { nodes, sessions }
    }

    fn of_networks(plan: &attested::plan::Plan) -> Self {
        let (mut nodes, mut sessions) = (Vec::new(), Vec::new());
        for network in &plan.networks {
            let prefixes: Vec<String> = network.routes.iter().map(|route| route.prefix.to_string()).collect();
            let with = if prefixes.is_empty() { String::new() } else { format!(" with {}", prefixes.join(", ")) };
            let router = format!("{} of AS{}{with}", network.software.name(), network.asn.0);
            if network.proxy.is_some() {
                nodes.push((network.name.clone(), format!("attesting proxy of AS{}", network.asn.0)));
                sessions.push((network.name.clone(), network.router()));
            }
            nodes.push((network.router(), router));
        }
        let end = |name: &String| {
            let found = plan.networks.iter().find(|network| network.name == *name);
            found.filter(|network| network.proxy.is_none()).map_or_else(|| name.clone(), attested::plan::AsPlan::router)
        };
        sessions.extend(plan.sessions.iter().map(|(from, to)| (end(from), end(to))));
        Self { nodes, sessions }
    }

    fn dot(&self, name: &str, ended: &BTreeSet<String>) -> String {
        let mut text = format!("graph \"{name}\" {{\n  rankdir = TB;\n  node [fontname = \"sans-serif\"];\n");
        for (node, what) in &self.nodes {
            let colour = if ended.contains(node) { ", color = grey, fontcolor = grey" } else { "" };
            let _ = writeln!(text, "  \"{node}\" [shape = ellipse, label = \"{node}\\n{what}\"{colour}];");
        }
        for (from, to) in &self.sessions {
            let _ = writeln!(text, "  \"{from}\" -- \"{to}\";");
        }
        text + "}\n"
    }

    fn drawing(&self, ended: &BTreeSet<String>) -> String {
        let mut text = String::new();
        for (node, what) in &self.nodes {
            let is_ended = if ended.contains(node) { "  (has ended)" } else { "" };
            let _ = writeln!(text, "{node}  {what}{is_ended}");
            let lower: Vec<&String> = self.sessions.iter().filter(|(from, _)| from == node).map(|(_, to)| to).collect();
            for (number, to) in lower.iter().enumerate() {
                let corner = if number + 1 == lower.len() { "└─" } else { "├─" };
                let _ = writeln!(text, "{corner} {to}");
            }
        }
        text
    }
}

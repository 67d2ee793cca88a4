//! The graph of nodes and links that count, and the search for valley-free paths on it.
//!
//! A path goes up from customers to providers, then over at most one link between peers, then down from providers to customers
//! (L. Gao: "On Inferring Autonomous System Relationships in the Internet", 2001); the paper's section 7.1 asks for the same.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::time::Duration;

use wayleave_core::{IdentityKey, Instant, Now};
use wayleave_packet::icing::header::MAX_NODES;

use crate::advert::{Advert, Link, Relationship, TagUse};
use crate::database::Database;
use crate::realm::Roles;

/// Nodes of a path, sender and receiver among them.
pub const MAX_HOPS: usize = MAX_NODES;
/// Paths that a search returns, and partial paths that it takes.
pub const MAX_PATHS: usize = 16;
/// Links that one search looks at. Beyond, it returns what it has and says so.
pub const MAX_STEPS: usize = 200_000;
/// The graph is made again at most this often, however many adverts come: that takes a while where there are many nodes.
const REBUILD: Duration = Duration::from_millis(200);

wayleave_core::wire! {
    /// The direction of a step from one node to the next.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    pub enum Step: "a step" {
        /// To a provider.
        1 = Up,
        /// To a peer.
        2 = Across,
        /// To a customer.
        3 = Down,
    }
}

impl Step {
    /// The step to a neighbour that is this to the node.
    #[must_use]
    pub fn towards(relationship: Relationship) -> Self {
        match relationship {
            Relationship::Provider => Self::Up,
            Relationship::Peer => Self::Across,
            Relationship::Customer => Self::Down,
        }
    }

    /// The same step from the other end.
    #[must_use]
    pub fn reversed(self) -> Self {
        match self {
            Self::Up => Self::Down,
            Self::Across => Self::Across,
            Self::Down => Self::Up,
        }
    }
}

/// How far a path has gone over the hill.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Phase {
    /// Every step went up.
    Climbing = 0,
    /// It crossed to a peer or went down: only down from here.
    Descending = 1,
}

impl Phase {
    /// After `step`; `None` if that would make a valley.
    #[must_use]
    pub fn after(self, step: Step) -> Option<Self> {
        match (self, step) {
            (Self::Climbing, Step::Up) => Some(Self::Climbing),
            (Self::Climbing, Step::Across) | (_, Step::Down) => Some(Self::Descending),
            (Self::Descending, _) => None,
        }
    }
}

/// What a node that joined a partial path claims of the steps on it: the paper's paths that "the client has consent to use".
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartialPath {
    /// From the client on.
    pub nodes: Vec<IdentityKey>,
    /// One fewer.
    pub steps: Vec<Step>,
}

/// A node's advert, and whether it is a forwarder.
pub type End<'a> = (&'a Advert, bool);

/// The link from `from` to `to` counts: both ends list it, with matching relationships, and both mark it public; or one is open, does not
/// list the other, and the other lists it as a provider and publicly.
#[must_use]
pub fn counted_step(from: End<'_>, to: End<'_>) -> Option<Step> {
    match (from.0.link(&to.0.identity), to.0.link(&from.0.identity)) {
        (Some(there), Some(back)) => {
            let counts = there.public && back.public && there.relationship == back.relationship.reversed();
            counts.then(|| Step::towards(there.relationship))
        }
        (Some(there), None) => is_served(to, there).then_some(Step::Up),
        (None, Some(back)) => is_served(from, back).then_some(Step::Down),
        (None, None) => None,
    }
}

/// Whether a member that `open` does not list is its customer by `link`.
fn is_served((open, is_forwarder): End<'_>, link: &Link) -> bool {
    open.open.is_some() && is_forwarder && link.public && link.relationship == Relationship::Provider
}

#[derive(Clone, Copy)]
struct Edge {
    to: u32,
    step: Step,
}

struct Node {
    identity: IdentityKey,
    /// It passes others' packets on.
    is_transit: bool,
    /// First those to nodes that pass packets on, then the others, each ascending by `to`.
    edges: Vec<Edge>,
    /// The number of the first.
    transit: usize,
}

impl Node {
    fn edge(&self, to: u32) -> Option<&Edge> {
        let (transit, leaves) = self.edges.split_at(self.transit);
        let find = |edges: &'_ [Edge]| edges.binary_search_by_key(&to, |edge| edge.to).ok();
        find(leaves).map(|at| &leaves[at]).or_else(|| find(transit).map(|at| &transit[at]))
    }

    /// The edges to nodes that pass packets on, and to these `ends`. An open node has thousands of others, which no path goes over.
    fn edges_to<'a>(&'a self, ends: &'a [u32]) -> impl Iterator<Item = &'a Edge> {
        let (transit, leaves) = self.edges.split_at(self.transit);
        let find = |end: &u32| leaves.binary_search_by_key(end, |edge| edge.to).ok().map(|at| &leaves[at]);
        transit.iter().chain(ends.iter().filter_map(find))
    }
}

/// The nodes that are there and the links that count, as of one time.
pub struct Topology {
    nodes: Vec<Node>,
    index: HashMap<IdentityKey, u32>,
    /// The database's [`Database::topology_version`].
    version: u64,
    /// The last Unix second for which this holds.
    until: u64,
}

/// The graph of a database, made again when somebody searches it, and at most every [`REBUILD`].
#[derive(Default)]
pub(crate) struct Current {
    topology: Option<Topology>,
    built_at: Instant,
}

impl Current {
    /// For a search by `sender`. It may be a little old, unless `sender` itself came or went; paths are built from the database, which
    /// is not.
    pub(crate) fn topology(&mut self, database: &Database, sender: &IdentityKey, now: Now) -> &Topology {
        let unix = now.unix.secs();
        let is_young = now.instant.since(self.built_at) < REBUILD;
        let is_usable = |topology: &Topology| {
            topology.is_current(database, unix)
                || is_young && topology.has(sender) == database.advert(sender, unix).is_some()
        };
        if !self.topology.as_ref().is_some_and(is_usable) {
            self.topology = None;
            self.built_at = now.instant;
        }
        self.topology.get_or_insert_with(|| Topology::new(database, unix))
    }
}

/// What a search found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SearchResult {
    /// The paths by their nodes, the shortest first; at most [`MAX_PATHS`].
    pub paths: Vec<Vec<IdentityKey>>,
    /// Links that were looked at.
    pub steps: usize,
    /// The search stopped at its limit: there may be more paths.
    pub is_cut: bool,
}

/// Why a partial path is not used: its sender erred.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PartialError {
    #[error("the partial path does not begin at its sender")]
    Start,
    #[error("the partial path has {0} nodes, or not one step fewer")]
    Length(usize),
    #[error("node {0} of the partial path is not known, or passes no packets on")]
    Unknown(usize),
    #[error("node {0} of the partial path occurs twice")]
    Loop(usize),
    #[error("step {0} of the partial path makes a valley")]
    Valley(usize),
    #[error("step {0} of the partial path contradicts what both its nodes state")]
    Contradiction(usize),
}

impl Topology {
    /// Of what the database has at the Unix second `now`.
    #[must_use]
    pub fn new(database: &Database, now: u64) -> Self {
        let mut until = u64::MAX;
        let there = database.members(now).filter_map(|membership| {
            let advert = database.advert(&membership.identity, now)?;
            let key = advert.current(now)?;
            until = until.min(advert.expires()).min(membership.not_after).min(key.not_after.into());
            Some((advert, membership.grants.roles.has(Roles::FORWARDER)))
        });
        let there: Vec<End<'_>> = there.collect();
        Self { version: database.topology_version(), until, ..Self::of_adverts(&there) }
    }

    /// Of these adverts, all of which count.
    #[must_use]
    pub fn of_adverts(there: &[End<'_>]) -> Self {
        let index: HashMap<IdentityKey, u32> = (0..).zip(there).map(|(at, (node, _))| (node.identity, at)).collect();
        let node = |(advert, is_forwarder): &End<'_>| Node {
            identity: advert.identity,
            is_transit: *is_forwarder && advert.tag(TagUse::Transit).is_some(),
            edges: Vec::new(),
            transit: 0,
        };
        let mut nodes: Vec<Node> = there.iter().map(node).collect();
        for (at, from) in (0..).zip(there) {
            for link in &from.0.links {
                let Some(&to) = index.get(&link.neighbour) else { continue };
                let other = there[to as usize];
                let Some(step) = counted_step(*from, other) else { continue };
                nodes[at as usize].edges.push(Edge { to, step });
                if other.0.link(&from.0.identity).is_none() {
                    nodes[to as usize].edges.push(Edge { to: at, step: step.reversed() });
                }
            }
        }
        let is_transit: Vec<bool> = nodes.iter().map(|node| node.is_transit).collect();
        for node in &mut nodes {
            node.edges.sort_unstable_by_key(|edge| (!is_transit[edge.to as usize], edge.to));
            node.transit = node.edges.partition_point(|edge| is_transit[edge.to as usize]);
        }
        Self { nodes, index, version: 0, until: u64::MAX }
    }

    /// Whether it is still what the database would give.
    #[must_use]
    pub fn is_current(&self, database: &Database, now: u64) -> bool {
        self.version == database.topology_version() && now <= self.until
    }

    /// Whether a node is there.
    #[must_use]
    pub fn has(&self, identity: &IdentityKey) -> bool {
        self.index.contains_key(identity)
    }

    /// Nodes that are there, and links that count, each from both ends.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        (self.nodes.len(), self.nodes.iter().map(|node| node.edges.len()).sum())
    }

    /// The partial path is one from `sender` that could be gone on: known nodes, no loop, no valley, and no step that
    /// contradicts a link that counts.
    ///
    /// # Errors
    /// The first reason against it.
    pub fn check_partial(&self, partial: &PartialPath, sender: &IdentityKey) -> Result<Phase, PartialError> {
        let PartialPath { nodes, steps } = partial;
        if !(1..=MAX_HOPS).contains(&nodes.len()) || steps.len() + 1 != nodes.len() {
            return Err(PartialError::Length(nodes.len()));
        }
        if nodes[0] != *sender {
            return Err(PartialError::Start);
        }
        let mut phase = Phase::Climbing;
        let mut last = None;
        for (at, identity) in nodes.iter().enumerate() {
            let index = *self.index.get(identity).ok_or(PartialError::Unknown(at))?;
            if nodes[..at].contains(identity) {
                return Err(PartialError::Loop(at));
            }
            let Some(before) = last.replace(index) else { continue };
            let (before, step) = (self.node(before), steps[at - 1]);
            let known = before.edge(index);
            if known.is_some_and(|known| known.step != step) {
                return Err(PartialError::Contradiction(at - 1));
            }
            if at > 1 && !before.is_transit {
                return Err(PartialError::Unknown(at - 1));
            }
            phase = phase.after(step).ok_or(PartialError::Valley(at - 1))?;
        }
        Ok(phase)
    }

    fn node(&self, index: u32) -> &Node {
        &self.nodes[index as usize]
    }

    /// The shortest valley-free paths without a loop that begin with one of `partials` (each of which was checked, with its
    /// phase) or at `sender` itself, and end at one of `targets`.
    ///
    /// Best first, by the length so far and the least that is missing, which a search back from the targets gives. So paths
    /// come out by length, and no more links are looked at than that takes, or [`MAX_STEPS`].
    #[must_use]
    pub fn search(
        &self,
        sender: &IdentityKey,
        partials: &[(PartialPath, Phase)],
        targets: &[IdentityKey],
        most_steps: usize,
    ) -> SearchResult {
        let mut found = SearchResult::default();
        let indices = |nodes: &mut dyn Iterator<Item = &IdentityKey>| {
            let known: BTreeSet<u32> = nodes.filter_map(|node| self.index.get(node).copied()).collect();
            known.into_iter().collect::<Vec<u32>>()
        };
        let targets = indices(&mut targets.iter());
        let lasts = partials.iter().take(MAX_PATHS).filter_map(|(partial, _)| partial.nodes.last());
        let starts = indices(&mut lasts.chain([sender]));
        let missing = self.missing((&starts, &targets), &mut found.steps, most_steps);
        if found.steps >= most_steps {
            found.is_cut = true;
            return found;
        }
        // Paths so far, as a tree: each has its last node and where the rest of it is.
        let mut tree: Vec<Branch> = Vec::new();
        let mut open: BinaryHeap<Reverse<(u8, u32)>> = BinaryHeap::new();
        let alone = PartialPath { nodes: vec![*sender], steps: Vec::new() };
        for (partial, phase) in std::iter::once(&(alone, Phase::Climbing)).chain(partials.iter().take(MAX_PATHS)) {
            let mut last = None;
            for (identity, length) in partial.nodes.iter().zip(1u8..) {
                let Some(&node) = self.index.get(identity) else { break };
                tree.push(Branch { node, phase: *phase, length, before: last });
                last = Some(tree.len() as u32 - 1);
            }
            let Some(last) = last.filter(|_| partial.nodes.len() <= MAX_HOPS) else { continue };
            let branch = &tree[last as usize];
            if let Some(total) = total(branch, &missing) {
                open.push(Reverse((total, last)));
            }
        }
        while let Some(Reverse((_, at))) = open.pop() {
            let branch = tree[at as usize];
            if targets.contains(&branch.node) {
                // A sender is not its own receiver.
                let path = self.path(&tree, at);
                if branch.length > 1 && !found.paths.contains(&path) {
                    found.paths.push(path);
                }
                if found.paths.len() == MAX_PATHS {
                    return found;
                }
                continue;
            }
            if branch.length > 1 && !self.node(branch.node).is_transit {
                continue;
            }
            for edge in self.node(branch.node).edges_to(&targets) {
                found.steps += 1;
                if found.steps >= most_steps {
                    found.is_cut = true;
                    return found;
                }
                let Some(phase) = branch.phase.after(edge.step) else { continue };
                let next = Branch { node: edge.to, phase, length: branch.length + 1, before: Some(at) };
                let Some(total) = total(&next, &missing) else { continue };
                if !is_on(&tree, at, edge.to) {
                    tree.push(next);
                    open.push(Reverse((total, tree.len() as u32 - 1)));
                }
            }
        }
        found
    }

    /// For each of the starts and of the nodes that pass packets on, and each phase, the steps to the nearest target, regardless of loops:
    /// what a search back over the links gives.
    fn missing(&self, (starts, targets): (&[u32], &[u32]), steps: &mut usize, most: usize) -> Vec<[u8; 2]> {
        let mut missing = vec![[u8::MAX; 2]; self.nodes.len()];
        let mut front: Vec<(u32, Phase)> = Vec::new();
        for target in targets {
            missing[*target as usize] = [0; 2];
            front.extend([(*target, Phase::Climbing), (*target, Phase::Descending)]);
        }
        for distance in 1..MAX_HOPS as u8 {
            let mut next = Vec::new();
            for (node, phase) in front {
                // Nobody goes on behind a node that passes nothing on; targets are the ends.
                if distance > 1 && !self.node(node).is_transit {
                    continue;
                }
                for edge in self.node(node).edges_to(starts) {
                    *steps += 1;
                    if *steps >= most {
                        return missing;
                    }
                    let step = edge.step.reversed();
                    for before in [Phase::Climbing, Phase::Descending] {
                        let slot = &mut missing[edge.to as usize][before as usize];
                        if before.after(step) == Some(phase) && *slot == u8::MAX {
                            *slot = distance;
                            next.push((edge.to, before));
                        }
                    }
                }
            }
            front = next;
        }
        missing
    }

    fn path(&self, tree: &[Branch], last: u32) -> Vec<IdentityKey> {
        let mut path: Vec<IdentityKey> = branches(tree, last).map(|branch| self.node(branch.node).identity).collect();
        path.reverse();
        path
    }
}

/// A path so far.
#[derive(Clone, Copy)]
struct Branch {
    node: u32,
    phase: Phase,
    /// Nodes.
    length: u8,
    /// The path without its last node.
    before: Option<u32>,
}

fn branches(tree: &[Branch], last: u32) -> impl Iterator<Item = &Branch> {
    std::iter::successors(Some(&tree[last as usize]), |branch| branch.before.map(|before| &tree[before as usize]))
}

fn is_on(tree: &[Branch], last: u32, node: u32) -> bool {
    branches(tree, last).any(|branch| branch.node == node)
}

/// The nodes of the shortest whole path that may begin like this, if one can be short enough.
fn total(branch: &Branch, missing: &[[u8; 2]]) -> Option<u8> {
    let missing = missing[branch.node as usize][branch.phase as usize];
    branch.length.checked_add(missing).filter(|total| usize::from(*total) <= MAX_HOPS)
}

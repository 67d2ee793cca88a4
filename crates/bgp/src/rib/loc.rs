//! Loc-RIB: every candidate for each prefix, and the best of them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use wayleave_core::Prefix;

use crate::decision::{self, Candidate, Explanation, Options};
use crate::{Attributes, Nlri, Origin};

/// A peer, numbered by the owner of the RIB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct PeerId(pub u32);

/// What the decision process uses of the peer that announced a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Source {
    pub router_id: Ipv4Addr,
    pub address: IpAddr,
    /// It is in another AS.
    pub external: bool,
    /// Interior cost to the next hop, if known.
    pub igp_metric: Option<u32>,
}

/// Reduces a route to what the decision process compares.
///
/// `local_pref` overrides the attribute: the degree of preference that policy computed. Of a route from an external
/// peer the attribute itself does not count (RFC 4271 section 5.1.5).
#[must_use]
pub fn candidate(attributes: &Attributes, path_id: u32, source: &Source, local_pref: Option<u32>) -> Candidate {
    let path = attributes.as_path();
    Candidate {
        local_pref: local_pref.or_else(|| attributes.local_pref().filter(|_| !source.external)),
        as_path_length: u32::try_from(path.length()).unwrap_or(u32::MAX),
        origin: attributes.origin().map_or(2, Origin::octet),
        med: attributes.med(),
        neighbour_as: path.first_asn(),
        external: source.external,
        igp_metric: source.igp_metric,
        router_id: attributes.originator_id().unwrap_or(source.router_id),
        cluster_list_length: u32::try_from(attributes.cluster_list().len()).unwrap_or(u32::MAX),
        peer_address: source.address,
        path_id,
    }
}

/// A candidate of a prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocRoute {
    pub peer: PeerId,
    /// Its attributes, after import policy.
    pub attributes: Arc<Attributes>,
    /// What the decision process compares.
    pub candidate: Candidate,
}

/// What a change of candidates did to the best route of a prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BestChange {
    Unchanged,
    /// This is the best route now, or has new attributes.
    Best(LocRoute),
    /// There is no route any more.
    Gone,
}

/// All candidates for each prefix, best first.
#[derive(Clone, Debug)]
pub struct LocRib {
    routes: BTreeMap<Prefix, Vec<LocRoute>>,
    options: Options,
}

impl LocRib {
    /// Empty; `options` steer the decision process.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self { routes: BTreeMap::new(), options }
    }

    /// Adds or replaces the route of (peer, prefix, path identifier).
    pub fn announce(&mut self, prefix: Prefix, route: LocRoute) -> BestChange {
        let routes = self.routes.entry(prefix).or_default();
        let before = routes.first().cloned();
        let key = (route.peer, route.candidate.path_id);
        match routes.iter_mut().find(|other| (other.peer, other.candidate.path_id) == key) {
            Some(other) => *other = route,
            None => routes.push(route),
        }
        sort(routes, &self.options);
        change(before.as_ref(), routes.first())
    }

    /// Removes the route of (peer, prefix, path identifier).
    pub fn withdraw(&mut self, peer: PeerId, nlri: &Nlri) -> BestChange {
        let Some(routes) = self.routes.get_mut(&nlri.prefix) else { return BestChange::Unchanged };
        let before = routes.first().cloned();
        routes.retain(|route| (route.peer, route.candidate.path_id) != (peer, nlri.path_id));
        // What is left without the best need not be in order: MED is no total order.
        sort(routes, &self.options);
        let change = change(before.as_ref(), routes.first());
        if routes.is_empty() {
            self.routes.remove(&nlri.prefix);
        }
        change
    }

    /// Removes every route of a peer; the prefixes whose best route changed.
    pub fn purge(&mut self, peer: PeerId) -> Vec<(Prefix, BestChange)> {
        let options = self.options;
        let mut changes = Vec::new();
        self.routes.retain(|prefix, routes| {
            let before = routes.first().cloned();
            let count = routes.len();
            routes.retain(|route| route.peer != peer);
            if routes.len() < count {
                sort(routes, &options);
                match change(before.as_ref(), routes.first()) {
                    BestChange::Unchanged => {}
                    change => changes.push((*prefix, change)),
                }
            }
            !routes.is_empty()
        });
        changes
    }

    /// The best route of a prefix.
    #[must_use]
    pub fn best(&self, prefix: &Prefix) -> Option<&LocRoute> {
        self.routes.get(prefix)?.first()
    }

    /// All candidates of a prefix, best first.
    #[must_use]
    pub fn candidates(&self, prefix: &Prefix) -> &[LocRoute] {
        self.routes.get(prefix).map_or(&[], Vec::as_slice)
    }

    /// Why a candidate of a prefix, by its place in [`LocRib::candidates`], is not the best.
    #[must_use]
    pub fn explain(&self, prefix: &Prefix, place: usize) -> Option<Explanation> {
        let routes = self.candidates(prefix);
        routes.get(place)?;
        let candidates: Vec<Candidate> = routes.iter().map(|route| route.candidate).collect();
        decision::explain(&candidates, place, &self.options)
    }

    /// The best routes in prefix order.
    pub fn iter(&self) -> impl Iterator<Item = (&Prefix, &LocRoute)> {
        self.routes.iter().filter_map(|(prefix, routes)| Some((prefix, routes.first()?)))
    }

    /// Prefixes that have a route.
    #[must_use]
    pub fn len(&self) -> usize {
        self.routes.len()
    }

    /// Whether it has no route.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }
}

fn sort(routes: &mut Vec<LocRoute>, options: &Options) {
    if routes.len() < 2 {
        return;
    }
    // By peer first, so that what the process calls equal does not depend on the order of arrival.
    routes.sort_by_key(|route| (route.peer, route.candidate.path_id));
    let candidates: Vec<Candidate> = routes.iter().map(|route| route.candidate).collect();
    *routes = decision::order(&candidates, options).into_iter().map(|i| routes[i].clone()).collect();
}

fn change(before: Option<&LocRoute>, after: Option<&LocRoute>) -> BestChange {
    match (before, after) {
        (before, after) if before == after => BestChange::Unchanged,
        (_, Some(after)) => BestChange::Best(after.clone()),
        (_, None) => BestChange::Gone,
    }
}

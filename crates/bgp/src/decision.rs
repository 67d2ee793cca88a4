//! The BGP decision process: which of the routes to one prefix is best, how the others rank, and why.
//!
//! Phase 2 of RFC 4271 section 9.1.2, with the tie breakers that RFC 4456 section 9 adds. The steps, first to last, are
//! the variants of [`Step`].
//!
//! # MED is not a total order
//!
//! RFC 4271 compares `MULTI_EXIT_DISC` only between routes of one neighbouring AS. So three routes can form a cycle:
//! *a* beats *b* by MED, *b* beats *c* and *c* beats *a* by a later step. A sort by [`compare`] then depends on the
//! order of arrival, and so does a running best. Here [`rank`], [`best`] and [`explain`] therefore never sort by pairs:
//! they group by neighbouring AS (what routers call *deterministic MED*), order each group by all steps, and merge the
//! groups by all steps but MED. The outcome is a function of the set alone; its head is exactly the route that the
//! elimination of RFC 4271 section 9.1.2.2 leaves, and what follows is what it would leave were the routes before
//! withdrawn. With [`Med::AlwaysCompare`], or one neighbouring AS, [`compare`] is a total order and the same thing.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use wayleave_core::Asn;

/// One route to a prefix, reduced to what the decision process compares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// `LOCAL_PREF`, or the degree of preference that policy computed; `None` takes [`Options::default_local_pref`].
    pub local_pref: Option<u32>,
    /// Length of the AS path: an `AS_SET` counts one (RFC 4271 section 9.1.2.2 a), a confederation segment none
    /// (RFC 5065 section 5.3).
    pub as_path_length: u32,
    /// `ORIGIN`: 0 IGP, 1 EGP, 2 INCOMPLETE.
    pub origin: u8,
    pub med: Option<u32>,
    /// The AS that the path enters by; `None` if it is our own (empty path, or one that starts with a set).
    pub neighbour_as: Option<Asn>,
    /// Learned from a neighbour in another AS.
    pub external: bool,
    /// Interior cost to the next hop; `None` if unknown, which is further than any known cost.
    pub igp_metric: Option<u32>,
    /// `ORIGINATOR_ID` if present, else the peer's BGP identifier (RFC 4456 section 9).
    pub router_id: Ipv4Addr,
    /// Clusters in `CLUSTER_LIST`.
    pub cluster_list_length: u32,
    pub peer_address: IpAddr,
    /// Path identifier (RFC 7911); zero without ADD-PATH. Settles nothing between peers, only between one peer's paths.
    pub path_id: u32,
}

/// When and how MED is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Med {
    /// Between routes of one neighbouring AS, as in RFC 4271, and independent of the order of arrival.
    #[default]
    SameNeighbour,
    /// Between any two routes (`bgp always-compare-med`). A total order.
    AlwaysCompare,
    /// Never.
    Ignore,
}

/// The operator's options of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Taken by a route without `LOCAL_PREF`.
    pub default_local_pref: u32,
    /// When MED is compared.
    pub med: Med,
    /// A missing MED is the worst instead of the best (RFC 4271).
    pub missing_med_is_worst: bool,
    /// Whether a longer AS path loses.
    pub as_path_length: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { default_local_pref: 100, med: Med::SameNeighbour, missing_med_is_worst: false, as_path_length: true }
    }
}

wayleave_core::named! {
    /// A step of the process, in the order in which they are taken.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    pub enum Step {
        /// Highest degree of preference (RFC 4271 section 9.1.1).
        LocalPref = "local preference",
        /// Shortest AS path (section 9.1.2.2 a).
        AsPathLength = "AS path length",
        /// Lowest origin (b).
        Origin = "origin",
        /// Lowest MED within one neighbouring AS (c).
        Med = "MED",
        /// External before internal (d).
        External = "external over internal",
        /// Lowest interior cost to the next hop (e).
        IgpMetric = "interior cost to the next hop",
        /// Lowest BGP identifier, or originator identifier (f; RFC 4456 section 9).
        RouterId = "router identifier",
        /// Shortest cluster list (RFC 4456 section 9).
        ClusterListLength = "cluster list length",
        /// Lowest peer address (g).
        PeerAddress = "peer address",
        /// Lowest path identifier: one peer's paths that agree in all else (our own step, so that ranks never depend on the
        /// order of arrival).
        PathId = "path identifier",
    }
}

impl Step {
    /// `Less` if `a` is preferred at this step alone.
    fn compare(self, a: &Candidate, b: &Candidate, options: &Options) -> Ordering {
        let local_pref = |c: &Candidate| c.local_pref.unwrap_or(options.default_local_pref);
        match self {
            Step::LocalPref => local_pref(b).cmp(&local_pref(a)),
            Step::AsPathLength if options.as_path_length => a.as_path_length.cmp(&b.as_path_length),
            Step::AsPathLength => Ordering::Equal,
            Step::Origin => a.origin.cmp(&b.origin),
            Step::Med if med_comparable(a, b, options) => med(a, options).cmp(&med(b, options)),
            Step::Med => Ordering::Equal,
            Step::External => b.external.cmp(&a.external),
            Step::IgpMetric => a.igp_metric.unwrap_or(u32::MAX).cmp(&b.igp_metric.unwrap_or(u32::MAX)),
            Step::RouterId => a.router_id.cmp(&b.router_id),
            Step::ClusterListLength => a.cluster_list_length.cmp(&b.cluster_list_length),
            Step::PeerAddress => a.peer_address.cmp(&b.peer_address),
            Step::PathId => a.path_id.cmp(&b.path_id),
        }
    }

    /// The value of `candidate` that this step compares, as text.
    #[must_use]
    pub fn value(self, candidate: &Candidate, options: &Options) -> String {
        match self {
            Step::LocalPref => candidate.local_pref.unwrap_or(options.default_local_pref).to_string(),
            Step::AsPathLength => candidate.as_path_length.to_string(),
            Step::Origin => match candidate.origin {
                0 => "IGP".to_owned(),
                1 => "EGP".to_owned(),
                _ => "incomplete".to_owned(),
            },
            Step::Med => candidate.med.map_or_else(|| "none".to_owned(), |med| med.to_string()),
            Step::External => if candidate.external { "external" } else { "internal" }.to_owned(),
            Step::IgpMetric => candidate.igp_metric.map_or_else(|| "unknown".to_owned(), |metric| metric.to_string()),
            Step::RouterId => candidate.router_id.to_string(),
            Step::ClusterListLength => candidate.cluster_list_length.to_string(),
            Step::PeerAddress => candidate.peer_address.to_string(),
            Step::PathId => candidate.path_id.to_string(),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why one route of a set ranks behind another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Explanation {
    /// The step that ranked the route behind.
    pub step: Step,
    /// Index of the route that beat it. With MED this need not be the best route: it is the one of the same neighbouring
    /// AS, which then lost to another.
    pub by: usize,
}

/// Compares two routes step by step: `Less` if `a` is preferred, `Equal` only if they agree in every field compared.
///
/// Not transitive under [`Med::SameNeighbour`] (see the head of this file): use it for two routes, and [`rank`] for
/// more.
#[must_use]
pub fn compare(a: &Candidate, b: &Candidate, options: &Options) -> Ordering {
    deciding_step(a, b, options).map_or(Ordering::Equal, |(_, ordering)| ordering)
}

/// The first step at which two routes differ, and who wins there (`Less`: `a`); `None` if no step tells them apart.
#[must_use]
pub fn deciding_step(a: &Candidate, b: &Candidate, options: &Options) -> Option<(Step, Ordering)> {
    Step::ALL.into_iter().map(|step| (step, step.compare(a, b, options))).find(|(_, ordering)| ordering.is_ne())
}

/// Sorts `candidates` from best to worst and returns the class of each, in the new order: 0 for the best, rising by one
/// wherever some step tells two neighbours apart, so that equal routes share a class.
///
/// The classes do not depend on the order in which the candidates came. O(n log n) for n routes of few neighbouring
/// ASes, O(n g) for g of them.
pub fn rank(candidates: &mut [Candidate], options: &Options) -> Vec<usize> {
    let order = order(candidates, options);
    let sorted: Vec<Candidate> = order.iter().map(|&i| candidates[i]).collect();
    candidates.copy_from_slice(&sorted);
    let mut class = 0;
    let mut classes = Vec::with_capacity(candidates.len());
    for (i, candidate) in candidates.iter().enumerate() {
        if i > 0 && compare(&candidates[i - 1], candidate, options).is_ne() {
            class += 1;
        }
        classes.push(class);
    }
    classes
}

/// The indices of `candidates` from best to worst. Equal ones are in the order of their neighbouring ASes, and within
/// one in the order in which they came.
#[must_use]
pub fn order(candidates: &[Candidate], options: &Options) -> Vec<usize> {
    let mut indices: Vec<usize> = (0..candidates.len()).collect();
    if options.med != Med::SameNeighbour {
        indices.sort_by(|&a, &b| {
            let (a, b) = (&candidates[a], &candidates[b]);
            compare(a, b, options).then(a.neighbour_as.cmp(&b.neighbour_as))
        });
        return indices;
    }
    // Within one neighbouring AS every step applies to every pair, so the order is total there.
    indices.sort_by(|&a, &b| {
        let (a, b) = (&candidates[a], &candidates[b]);
        a.neighbour_as.cmp(&b.neighbour_as).then_with(|| compare(a, b, options))
    });
    let mut groups: Vec<std::iter::Peekable<std::slice::Iter<'_, usize>>> = indices
        .chunk_by(|&a, &b| candidates[a].neighbour_as == candidates[b].neighbour_as)
        .map(|group| group.iter().peekable())
        .collect();
    let mut merged = Vec::with_capacity(candidates.len());
    while let Some(best) = best_head(&mut groups, candidates, options) {
        merged.push(best);
    }
    merged
}

/// The index of the best route; `None` of none.
#[must_use]
pub fn best(candidates: &[Candidate], options: &Options) -> Option<usize> {
    survivors(candidates, options).into_iter().min_by_key(|&i| (candidates[i].neighbour_as, i))
}

/// Why `loser` is not the best of `candidates`: the step of RFC 4271's elimination that removed it, and the route that beat
/// it. `None` if it is the best, or equal to it in all that is compared.
#[must_use]
pub fn explain(candidates: &[Candidate], loser: usize, options: &Options) -> Option<Explanation> {
    let mut left: Vec<usize> = (0..candidates.len()).collect();
    for step in Step::ALL {
        let by = |&other: &usize| step.compare(&candidates[other], &candidates[loser], options).is_lt();
        // Of the routes that beat it there, the one that is best at this step, so that the answer does not depend on the
        // order of the candidates.
        let strongest = left.iter().copied().filter(by).min_by(|&a, &b| {
            let (a, b) = (&candidates[a], &candidates[b]);
            step.compare(a, b, options).then_with(|| compare_but_med(a, b, options))
        });
        if let Some(by) = strongest {
            return Some(Explanation { step, by });
        }
        eliminate(&mut left, step, candidates, options);
    }
    None
}

/// Takes the head of the group whose head is best, MED aside; of equal heads the first group's, and groups are in the
/// order of their AS numbers, so that the outcome does not depend on the order of arrival.
fn best_head(
    groups: &mut [std::iter::Peekable<std::slice::Iter<'_, usize>>],
    candidates: &[Candidate],
    options: &Options,
) -> Option<usize> {
    let mut best: Option<(usize, usize)> = None;
    for (group, heads) in groups.iter_mut().enumerate() {
        let Some(&&head) = heads.peek() else { continue };
        let better =
            best.is_none_or(|(_, other)| compare_but_med(&candidates[head], &candidates[other], options).is_lt());
        if better {
            best = Some((group, head));
        }
    }
    let (group, head) = best?;
    groups[group].next();
    Some(head)
}

/// All steps but MED: how routes of different neighbouring ASes compare.
fn compare_but_med(a: &Candidate, b: &Candidate, options: &Options) -> Ordering {
    compare(a, b, &Options { med: Med::Ignore, ..*options })
}

/// Indices that the elimination of RFC 4271 section 9.1.2.2 leaves.
fn survivors(candidates: &[Candidate], options: &Options) -> Vec<usize> {
    let mut left: Vec<usize> = (0..candidates.len()).collect();
    for step in Step::ALL {
        if left.len() > 1 {
            eliminate(&mut left, step, candidates, options);
        }
    }
    left
}

/// Removes from `left` whatever another of `left` beats at `step`.
fn eliminate(left: &mut Vec<usize>, step: Step, candidates: &[Candidate], options: &Options) {
    if step == Step::Med && options.med == Med::SameNeighbour {
        let mut lowest: BTreeMap<Option<Asn>, u32> = BTreeMap::new();
        for candidate in left.iter().map(|&i| &candidates[i]) {
            let entry = lowest.entry(candidate.neighbour_as).or_insert(u32::MAX);
            *entry = (*entry).min(med(candidate, options));
        }
        left.retain(|&i| med(&candidates[i], options) == lowest[&candidates[i].neighbour_as]);
        return;
    }
    let best = left.iter().copied().min_by(|&a, &b| step.compare(&candidates[a], &candidates[b], options));
    left.retain(|&i| best.is_some_and(|best| step.compare(&candidates[i], &candidates[best], options).is_eq()));
}

fn med_comparable(a: &Candidate, b: &Candidate, options: &Options) -> bool {
    match options.med {
        Med::SameNeighbour => a.neighbour_as == b.neighbour_as,
        Med::AlwaysCompare => true,
        Med::Ignore => false,
    }
}

fn med(candidate: &Candidate, options: &Options) -> u32 {
    candidate.med.unwrap_or(if options.missing_med_is_worst { u32::MAX } else { 0 })
}

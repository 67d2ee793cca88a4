//! A member's own order of the routes that it holds for one prefix, as classes (SIXPACK section 5.2, step II).
//!
//! Routes of one class are equal to the member, and the exchange's recommendation decides among them; so a class must
//! not say more than the member cares about. The order, first to last:
//!
//! 1. the `class` that import rules give, bigger first; a route to which no rule gives one stands at 128, just behind
//!    those to which a rule gives 128;
//! 2. by default, for routes without a class from a rule: `local_pref` that import rules give (100 if none does), bigger
//!    first, then the AS path's length, shorter first. Routes with a class from a rule go no further: equal class is
//!    equal;
//! 3. with `strict`, for all routes: BGP's whole decision process ([`wayleave_bgp::decision`]), as on an external session
//!    to each announcer's slot. It ends in the announcer's address and the path identifier, so that two routes never
//!    share a class and the recommendation decides nothing.
//!
//! LOCAL_PREF as received counts for nothing: it has no place on an external session (RFC 4271 section 5.1.5).
//!
//! Classes are numbered from the top, `2^width - 1` for the best, one less for each step down that order, and zero for
//! whatever is further down than the width can tell. A class is thus about the routes that are there and no others: it
//! is no absolute preference.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use wayleave_bgp::Attributes;
use wayleave_bgp::decision::{self, Candidate, Med, Options};
use wayleave_core::{Prefix, VerdictKind};

use super::rules::{Changes, Imported, Policy, Route};
use crate::directory::Slot;

/// Where a route stands to which no rule gives a class.
pub const DEFAULT_CLASS: u8 = 128;

/// One of the routes that a member holds for a prefix: opened, and valid by [`super::validate`].
#[derive(Clone, Copy, Debug)]
pub struct RankInput<'a> {
    /// The prefix, the same for all.
    pub prefix: Prefix,
    /// The attributes from the blob.
    pub attributes: &'a Attributes,
    /// The announcer's slot.
    pub announcer: &'a Slot,
    /// Path identifier of the announcement; 0 without ADD-PATH.
    pub path_id: u32,
    /// What validation concluded.
    pub verdict: VerdictKind,
}

impl<'a> RankInput<'a> {
    /// The route as rules look at it.
    #[must_use]
    pub fn route(&self) -> Route<'a> {
        Route::new(self.prefix, self.attributes, self.announcer.asn).with_verdict(self.verdict)
    }
}

/// The class of each route, bigger preferred, `None` for those that import rules reject. A function of the routes as a
/// set: their order changes nothing but the order of the answer.
#[must_use]
pub fn rank(policy: &Policy, routes: &[RankInput<'_>]) -> Vec<Option<u8>> {
    let strict = policy.ranking().strict;
    let mut classes = vec![None; routes.len()];
    // Routes by what rules say of their class, worst first; `true` for a class that a rule gave.
    let mut groups: BTreeMap<(u8, bool), Vec<(usize, Candidate)>> = BTreeMap::new();
    for (index, input) in routes.iter().enumerate() {
        if let Imported::Accepted(changes) = policy.import(&input.route()) {
            let group = (changes.class.unwrap_or(DEFAULT_CLASS), changes.class.is_some());
            groups.entry(group).or_default().push((index, candidate(input, &changes)));
        }
    }
    let top = u8::MAX >> (8 - policy.ranking().width.clamp(1, 8));
    let mut class = top;
    for (&(_, by_rule), group) in groups.iter().rev() {
        for level in levels(group, strict, by_rule) {
            level.into_iter().for_each(|index| classes[index] = Some(class));
            class = class.saturating_sub(1);
        }
    }
    classes
}

/// The routes of a group, best first; those that share a class together.
fn levels(group: &[(usize, Candidate)], strict: bool, by_rule: bool) -> Vec<Vec<usize>> {
    if by_rule && !strict {
        return vec![group.iter().map(|(index, _)| *index).collect()];
    }
    let options = if strict { Options::default() } else { Options { med: Med::Ignore, ..Options::default() } };
    let candidates: Vec<Candidate> =
        group.iter().map(|(_, candidate)| if strict { *candidate } else { coarse(candidate) }).collect();
    decision::order(&candidates, &options)
        .chunk_by(|&a, &b| decision::compare(&candidates[a], &candidates[b], &options).is_eq())
        .map(|level| level.iter().map(|&at| group[at].0).collect())
        .collect()
}

/// What the decision process looks at. A blob does not carry the announcer's BGP identifier: its slot's first IPv4
/// address stands for it.
fn candidate(input: &RankInput<'_>, changes: &Changes) -> Candidate {
    let addresses = &input.announcer.addresses;
    let router_id = addresses.iter().find_map(|address| match address {
        IpAddr::V4(v4) => Some(*v4),
        IpAddr::V6(_) => None,
    });
    Candidate {
        local_pref: changes.local_pref,
        as_path_length: u32::try_from(input.attributes.as_path().length()).unwrap_or(u32::MAX),
        origin: input.attributes.origin().map_or(2, |origin| origin.octet()),
        med: changes.set_med.or(input.attributes.med()),
        neighbour_as: input.attributes.as_path().first_asn(),
        external: true,
        igp_metric: Some(0),
        router_id: router_id.unwrap_or(Ipv4Addr::UNSPECIFIED),
        cluster_list_length: 0,
        peer_address: addresses.first().copied().unwrap_or(Ipv4Addr::UNSPECIFIED.into()),
        path_id: input.path_id,
    }
}

/// The candidate with everything but `local_pref` and the AS path's length made equal.
fn coarse(candidate: &Candidate) -> Candidate {
    Candidate {
        local_pref: candidate.local_pref,
        as_path_length: candidate.as_path_length,
        origin: 0,
        med: None,
        neighbour_as: None,
        external: true,
        igp_metric: None,
        router_id: Ipv4Addr::UNSPECIFIED,
        cluster_list_length: 0,
        peer_address: Ipv4Addr::UNSPECIFIED.into(),
        path_id: 0,
    }
}

//! A member's own order of the routes that it holds for one prefix, as classes (SIXPACK section 5.2, step II).
//!
//! Routes of one class are equal to the member, and the exchange's recommendation decides among them; so a class must
//! not say more than the member cares about. The order, first to last:
//!
//! 1. routes without LLGR_STALE before those with it (RFC 9494 section 4.3), then
//!    routes without GRACEFUL_SHUTDOWN before those with it (RFC 8326), unless `graceful_shutdown` is off or an import rule that
//!    matches the route names the community: then the rule alone says what that means;
//! 2. the `class` that import rules give, bigger first; a route to which no rule gives one stands at 128, just behind
//!    those to which a rule gives 128;
//! 3. by default, for routes without a class from a rule: `local_pref` that import rules give (100 if none does), bigger
//!    first; the AS path's length, shorter first; ORIGIN, IGP before EGP before INCOMPLETE; MED, lower first, between routes of one neighbouring AS
//!    ([`MedRule`]), as routers and BIRD's route servers compare them (RFC 4271 section 9.1.2.2). Routes with a class from a
//!    rule go no further: equal class is equal;
//! 4. with `strict`, for all routes: BGP's whole decision process ([`wayleave_bgp::decision`]), as on an external session
//!    to each announcer's slot. It ends in the announcer's address and the path identifier, so that two routes never
//!    share a class and the recommendation decides nothing.
//!
//! LOCAL_PREF as received counts for nothing: it has no place on an external session (RFC 4271 section 5.1.5).
//!
//! Classes are numbered from the top, `2^width - 1` for the best, one less for each step down that order, and zero for
//! whatever is further down than the width can tell. A class is thus about the routes that are there and no others: it
//! is no absolute preference. A prefix has 128 candidates at most, so that eight bits tell all apart; with a narrower
//! width ORIGIN and MED may be what is lost, but never which routes are best.
//!
//! MED is not a total order ([`wayleave_bgp::decision`]): of routes that agree in all before it, those with the lowest MED
//! of their neighbouring AS share a class, those with the next lowest the class below, and so on. So the best class is
//! what RFC 4271's elimination leaves.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use wayleave_bgp::decision::{self, Candidate, Med, Options, Step};
use wayleave_bgp::{Attributes, Community};
use wayleave_core::{Asn, Prefix, VerdictKind};

use super::config::MedRule;
use super::rules::{Changes, Imported, Policy, Rejection, Route};
use crate::directory::Slot;

/// The class of a route to which no rule gives one.
pub const DEFAULT_CLASS: u8 = 128;

/// One of the routes that a member holds for a prefix: opened, and valid by [`super::validate`].
#[derive(Clone, Copy, Debug)]
pub struct RankInput<'a> {
    pub prefix: Prefix,
    /// The attributes from the blob.
    pub attributes: &'a Attributes,
    pub announcer: &'a Slot,
    /// Path identifier of the announcement; 0 without ADD-PATH.
    pub path_id: u32,
    pub verdict: VerdictKind,
}

impl<'a> RankInput<'a> {
    /// The route as rules look at it.
    #[must_use]
    pub fn route(&self) -> Route<'a> {
        Route::new(self.prefix, self.attributes, self.announcer.asn).with_verdict(self.verdict)
    }
}

/// Why a route is not in the best class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RankLoss {
    /// Import policy rejects it.
    Rejected(Rejection),
    /// It carries LLGR_STALE (RFC 9494), and the best does not.
    Stale,
    /// It carries GRACEFUL_SHUTDOWN (RFC 8326), and the best does not.
    GracefulShutdown,
    /// Rules give it a lower class than the best route's; [`DEFAULT_CLASS`] where none does.
    Class {
        /// Its own class by rules.
        own: u8,
        best: u8,
    },
    /// It loses to the best at this step of the decision process.
    Step(Step),
}

impl fmt::Display for RankLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RankLoss::Rejected(rejection) => rejection.fmt(f),
            RankLoss::Stale => f.write_str("it carries LLGR_STALE (RFC 9494), and the best does not"),
            RankLoss::GracefulShutdown => f.write_str("it carries GRACEFUL_SHUTDOWN (RFC 8326), and the best does not"),
            RankLoss::Class { own, best } => write!(f, "rules give it class {own}, and {best} to the best"),
            RankLoss::Step(step) => write!(f, "{step}"),
        }
    }
}

/// Routes that rules put alike, by place in the input, with what the decision process looks at. By whether they are not stale, whether
/// they stay, class, and whether a rule gave it: worst first.
type Groups = BTreeMap<(bool, bool, u8, bool), Vec<(usize, Candidate)>>;

/// The class of each route, bigger preferred, `None` for those that import rules reject. A function of the routes as a
/// set: their order changes nothing but the order of the answer.
#[must_use]
pub fn rank(policy: &Policy, routes: &[RankInput<'_>]) -> Vec<Option<u8>> {
    if !policy.ranking().strict {
        let ranks: Vec<Option<Rank>> = routes.iter().map(|route| rank_alone(policy, route)).collect();
        return rank_all(policy, &ranks);
    }
    let mut classes = vec![None; routes.len()];
    let mut class = best_class(policy);
    for group in groups(policy, routes).values().rev() {
        for level in levels(policy, group) {
            level.into_iter().for_each(|index| classes[index] = Some(class));
            class = class.saturating_sub(1);
        }
    }
    classes
}

/// The rank of one route by itself in the order that is not strict. It is computed once per route, whatever the route is compared
/// with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rank {
    level: Level,
    /// Whose MED it is; `None` for all where any two are compared.
    neighbour_as: Option<Asn>,
    med: u32,
}

/// All that two routes can be compared by, whatever others there are: bigger is better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Level {
    /// Whether it carries no LLGR_STALE (RFC 9494 section 4.3): before everything else.
    is_fresh: bool,
    /// Whether the route does not go away soon by GRACEFUL_SHUTDOWN (RFC 8326 section 4.2): before all that the member's rules say.
    stays: bool,
    class: u8,
    by_rule: bool,
    local_pref: u32,
    nearness: Reverse<u32>,
    origin: Reverse<u8>,
}

impl Rank {
    /// Whether GRACEFUL_SHUTDOWN puts it behind all routes that have none.
    #[must_use]
    pub fn is_lowered(self) -> bool {
        !self.level.stays
    }

    /// By which two ranks of one and the same route compare, under different verdicts: bigger is better.
    pub(crate) fn of_one_route(self) -> impl Ord {
        (self.level, Reverse(self.med))
    }

    /// Whether LLGR_STALE puts it behind all routes that have none.
    #[must_use]
    pub fn is_stale(self) -> bool {
        !self.level.is_fresh
    }
}

/// The rank of a route; `None` if import rules reject it.
#[must_use]
pub fn rank_alone(policy: &Policy, route: &RankInput<'_>) -> Option<Rank> {
    let Imported::Accepted(changes) = policy.import(&route.route()) else { return None };
    let stays = stays(policy, route, &changes);
    let (class, by_rule) = (changes.class.unwrap_or(DEFAULT_CLASS), changes.class.is_some());
    let (is_fresh, local_pref) = (is_fresh(route), 0);
    let alike = Level { is_fresh, stays, class, by_rule, local_pref, nearness: Reverse(0), origin: Reverse(0) };
    if by_rule {
        return Some(Rank { level: alike, neighbour_as: None, med: 0 });
    }
    let candidate = candidate(route, &changes);
    let level = Level {
        local_pref: changes.local_pref.unwrap_or(Options::default().default_local_pref),
        nearness: Reverse(candidate.as_path_length),
        origin: Reverse(candidate.origin),
        ..alike
    };
    let med = candidate.med.unwrap_or(0);
    Some(match policy.ranking().med {
        MedRule::SameNeighbour => Rank { level, neighbour_as: candidate.neighbour_as, med },
        MedRule::Always => Rank { level, neighbour_as: None, med },
        MedRule::Never => Rank { level, neighbour_as: None, med: 0 },
    })
}

/// Whether a route is not one that its announcer's router lost long ago (RFC 9494 section 4.2).
fn is_fresh(route: &RankInput<'_>) -> bool {
    !route.attributes.communities().any(|community| community == Community::LLGR_STALE)
}

/// Whether a route has no GRACEFUL_SHUTDOWN that lowers it (RFC 8326).
fn stays(policy: &Policy, route: &RankInput<'_>, changes: &Changes) -> bool {
    let goes = || route.attributes.communities().any(|community| community == Community::GRACEFUL_SHUTDOWN);
    !policy.ranking().graceful_shutdown || changes.names_graceful_shutdown || !goes()
}

/// [`rank`] of routes whose ranks are known, for a policy that is not strict.
#[must_use]
pub fn rank_all(policy: &Policy, ranks: &[Option<Rank>]) -> Vec<Option<u8>> {
    // Within a level, the lowest MED of each neighbouring AS stands at step 0, the next one at step 1.
    let mut meds: Vec<(Level, Option<Asn>, u32)> =
        ranks.iter().flatten().map(|rank| (rank.level, rank.neighbour_as, rank.med)).collect();
    meds.sort_unstable();
    meds.dedup();
    let place = |rank: &Rank| {
        let below = |med| meds.partition_point(|known| *known < (rank.level, rank.neighbour_as, med));
        (rank.level, Reverse(below(rank.med) - below(0)))
    };
    let places: Vec<Option<(Level, Reverse<usize>)>> = ranks.iter().map(|rank| rank.as_ref().map(place)).collect();
    let mut levels: Vec<(Level, Reverse<usize>)> = places.iter().flatten().copied().collect();
    levels.sort_unstable_by(|a, b| b.cmp(a));
    levels.dedup();
    let best = best_class(policy);
    let class = |place: &(Level, Reverse<usize>)| {
        let down = levels.partition_point(|level| level > place);
        best.saturating_sub(u8::try_from(down).unwrap_or(u8::MAX))
    };
    places.iter().map(|place| place.as_ref().map(class)).collect()
}

fn best_class(policy: &Policy) -> u8 {
    u8::MAX >> (8 - policy.ranking().width.clamp(1, 8))
}

/// Why `routes[loser]` is not in the best class; `None` if it is.
#[must_use]
pub fn explain(policy: &Policy, routes: &[RankInput<'_>], loser: usize) -> Option<RankLoss> {
    if let Imported::Rejected(rejection) = policy.import(&routes.get(loser)?.route()) {
        return Some(RankLoss::Rejected(rejection));
    }
    let groups = groups(policy, routes);
    let (&(best_is_fresh, best_stays, best, by_rule), group) = groups.last_key_value()?;
    let Some(at) = group.iter().position(|(index, _)| *index == loser) else {
        let has_loser = |group: &[(usize, Candidate)]| group.iter().any(|(index, _)| *index == loser);
        let (&(is_fresh, stays, own, _), _) = groups.iter().find(|(_, group)| has_loser(group))?;
        return Some(match () {
            () if is_fresh != best_is_fresh => RankLoss::Stale,
            () if stays != best_stays => RankLoss::GracefulShutdown,
            () => RankLoss::Class { own, best },
        });
    };
    let strict = policy.ranking().strict;
    if by_rule && !strict {
        return None;
    }
    let (candidates, options) = compared(policy, group);
    decision::explain(&candidates, at, &options).map(|explanation| RankLoss::Step(explanation.step))
}

fn groups(policy: &Policy, routes: &[RankInput<'_>]) -> Groups {
    let mut groups = Groups::new();
    for (index, input) in routes.iter().enumerate() {
        if let Imported::Accepted(changes) = policy.import(&input.route()) {
            let stays = stays(policy, input, &changes);
            let key = (is_fresh(input), stays, changes.class.unwrap_or(DEFAULT_CLASS), changes.class.is_some());
            groups.entry(key).or_default().push((index, candidate(input, &changes)));
        }
    }
    groups
}

/// The routes of a group in the strict order, best first; those that share a class together.
fn levels(policy: &Policy, group: &[(usize, Candidate)]) -> Vec<Vec<usize>> {
    let (candidates, options) = compared(policy, group);
    decision::order(&candidates, &options)
        .chunk_by(|&a, &b| decision::compare(&candidates[a], &candidates[b], &options).is_eq())
        .map(|level| level.iter().map(|&at| group[at].0).collect())
        .collect()
}

/// What of a group is compared, and how.
fn compared(policy: &Policy, group: &[(usize, Candidate)]) -> (Vec<Candidate>, Options) {
    let ranking = policy.ranking();
    let compared = |candidate: &Candidate| if ranking.strict { *candidate } else { coarse(candidate) };
    let candidates = group.iter().map(|(_, candidate)| compared(candidate)).collect();
    let med = match ranking.med {
        MedRule::SameNeighbour => Med::SameNeighbour,
        MedRule::Always => Med::AlwaysCompare,
        MedRule::Never => Med::Ignore,
    };
    (candidates, Options { med, ..Options::default() })
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

/// The candidate with everything made equal by which one announcer is not better than another.
fn coarse(candidate: &Candidate) -> Candidate {
    Candidate {
        external: true,
        igp_metric: None,
        router_id: Ipv4Addr::UNSPECIFIED,
        cluster_list_length: 0,
        peer_address: Ipv4Addr::UNSPECIFIED.into(),
        path_id: 0,
        ..*candidate
    }
}

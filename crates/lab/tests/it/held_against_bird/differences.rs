//! What both make of each route, and every difference with its cause.

use std::collections::{BTreeMap, BTreeSet};

use wayleave_bgp::origins::Vrps;
use wayleave_bgp::{Attributes, Community, ExtendedCommunity, LargeCommunity, NextHop, Origin};
use wayleave_core::{Asn, Prefix};
use wayleave_route_server::directory::{MemberSet, SlotId};
use wayleave_route_server::policy::communities::{CommunityReason, Controls};
use wayleave_route_server::policy::treatments::{Treatments, prepend, prepended, received};
use wayleave_route_server::policy::validate::{
    Check, Invalid, RouteRules, for_router, is_blackhole, validate, validate_for, validate_origin,
};
use wayleave_route_server::policy::{PerPeer, Policy, PolicyConfig, export_set, sealed_for};

use super::filter::{BLACKHOLE_REFUSED, REASON};
use super::routes::{ANNOUNCERS, RECEIVERS, RS, Route, Routes, per_peer};

/// A route leak, a loop, and what arouteserver has no number for.
const LEAK: u32 = 101;
const LOOP: u32 = 102;
const OTHER: u32 = 199;

/// Why a route differs, where it may. Each is hit, and nothing else is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Difference {
    /// Both refuse it. It breaks several rules, and each names the first in its order.
    AnotherOfItsFaults,
    /// BIRD does not take it into its table, so that no filter sees it (a route leak by its role, an address that no host has), or it says why
    /// it refuses it in a message that our watcher treats as a withdrawal (AS 0 on the path, multicast). We refuse it by a rule.
    NotInBirdsTable,
    /// The receiver's AS is on the path. A route server leaves that to the receiver's router, our receiver's proxy does not.
    Loop,
    /// NO_ADVERTISE: to nobody (RFC 1997), where route servers pass it on.
    NoAdvertise,
    /// Communities announce to others by name, and say nothing of all others: to those others only, where route servers take it as no
    /// restriction.
    OnlyOthers,
    /// Additional hops make the path longer than the exchange allows; a route server checks before it prepends.
    LongWithHops,
    /// For one peer alone, of an announcer that lets nobody read that: hops are not added.
    PrivateHops,
    /// The same with NO_EXPORT or NO_ADVERTISE: that peer does not get it.
    PrivateRestriction,
    /// BLACKHOLE whose origin the RPKI does not know: arouteserver takes it from whoever may ask for one.
    BlackholeOrigin,
    /// BLACKHOLE for a prefix shorter than the exchange takes: arouteserver looks at no length of one.
    BlackholeLength,
}

impl Difference {
    pub(super) const ALL: [Self; 10] = [
        Self::AnotherOfItsFaults,
        Self::NotInBirdsTable,
        Self::Loop,
        Self::NoAdvertise,
        Self::OnlyOthers,
        Self::LongWithHops,
        Self::PrivateHops,
        Self::PrivateRestriction,
        Self::BlackholeOrigin,
        Self::BlackholeLength,
    ];
}

/// How many of each there are.
pub(super) type Differences = BTreeMap<Difference, usize>;

/// A route as one may compare it: what BIRD writes in another order is sorted.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Seen {
    path: Vec<u32>,
    hops: usize,
    next_hop: Option<NextHop>,
    origin: Option<Origin>,
    med: Option<u32>,
    otc: Option<Asn>,
    communities: Vec<Community>,
    large: Vec<LargeCommunity>,
    extended: Vec<ExtendedCommunity>,
}

fn sorted<T: Ord>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut all: Vec<T> = all.collect();
    all.sort_unstable();
    all
}

fn seen(prefix: Prefix, attributes: &Attributes) -> Seen {
    Seen {
        path: attributes.as_path().asns().map(|asn| asn.0).collect(),
        hops: attributes.as_path().length(),
        next_hop: attributes.next_hop(prefix.afi()).map(|next_hop| match next_hop {
            // What BIRD says of a link of its own does not count.
            NextHop::V6(next_hop) => NextHop::V6(wayleave_bgp::Ipv6NextHop { link_local: None, ..next_hop }),
            v4 => v4,
        }),
        origin: attributes.origin(),
        med: attributes.med(),
        otc: attributes.only_to_customer(),
        communities: sorted(attributes.communities()),
        large: sorted(attributes.large_communities()),
        extended: sorted(attributes.extended_communities()),
    }
}

/// The number of the reason.
fn number(invalid: &Invalid) -> u32 {
    match invalid {
        Invalid::LongPath { .. } => 1,
        Invalid::Martian { .. } | Invalid::DefaultRoute(_) => 2,
        Invalid::NextHop(_) | Invalid::NoNextHop(_) => 5,
        Invalid::FirstAs { .. } => 6,
        Invalid::AsSet | Invalid::BogonAsn { .. } => 7,
        Invalid::TransitFree(_) => 8,
        Invalid::PrefixLength { .. } => 13,
        Invalid::Origin { .. } => 14,
        Invalid::NoBlackhole | Invalid::BlackholeNotPermitted(_) => BLACKHOLE_REFUSED,
        Invalid::Leak(_) => LEAK,
        Invalid::Loop(_) => LOOP,
        _ => OTHER,
    }
}

/// Our exchange.
pub(super) struct Ours<'a> {
    pub(super) members: &'a MemberSet,
    pub(super) vrps: &'a Vrps,
}

/// What our exchange makes of a route for a receiver.
enum Outcome {
    Refused(Invalid),
    /// The announcer's policy, or its communities.
    NotExported,
    Received(Attributes),
}

impl Ours<'_> {
    fn rules(&self) -> RouteRules<'_> {
        RouteRules { profile: self.members.profile.as_ref(), ..RouteRules::default() }
    }

    fn slot(&self, place: usize) -> &wayleave_route_server::directory::Slot {
        self.members.slot(place as SlotId).expect("a member")
    }

    /// How many routes each rule refuses, by its number.
    pub(super) fn hits(&self, routes: &Routes) -> BTreeMap<u32, usize> {
        let mut hits = BTreeMap::new();
        for invalid in routes.iter().filter_map(|(prefix, route)| self.announced(*prefix, route).err()) {
            *hits.entry(number(&invalid)).or_default() += 1;
        }
        hits
    }

    /// Routes that BIRD may leave out of its table ([`Difference::NotInBirdsTable`]).
    pub(super) fn dropped(&self, routes: &Routes) -> BTreeSet<Prefix> {
        let is_dropped = |(prefix, route): &(&Prefix, &Route)| self.may_be_dropped(**prefix, route);
        routes.iter().filter(is_dropped).map(|(prefix, _)| *prefix).collect()
    }

    fn may_be_dropped(&self, prefix: Prefix, route: &Route) -> bool {
        let has_zero = route.attributes.as_path().asns().any(|asn| asn.0 == 0);
        has_zero || [2, LEAK].into_iter().any(|reason| self.breaks(prefix, route, reason))
    }

    /// As the announcer's proxy checks it.
    fn announced(&self, prefix: Prefix, route: &Route) -> Result<Attributes, Invalid> {
        let attributes = prepended(route.attributes.clone(), RS);
        validate(prefix, &attributes, self.slot(route.announcer), self.rules())?;
        validate_origin(prefix, &attributes, Some(self.vrps), self.rules())?;
        Ok(attributes)
    }

    /// Through both proxies. The receiver's proxy makes every check again, and of what the announcer's proxy refuses it refuses the same.
    fn outcome(&self, prefix: Prefix, route: &Route, receiver: usize) -> Outcome {
        let place = ANNOUNCERS.len() + receiver;
        let attributes = self.announced(prefix, route);
        let unchecked = prepended(route.attributes.clone(), RS);
        let exported =
            export_set(prefix, &unchecked, route.announcer as SlotId, self.members, RS, &policy(route.announcer));
        let sealed = sealed_for(&unchecked, RS, per_peer(route.announcer));
        let (opened, hops) = received(sealed, RS, RECEIVERS[receiver]);
        let opened = prepend(opened, hops);
        let announcer = self.slot(route.announcer);
        let checked = validate_for(RECEIVERS[receiver], prefix, &opened, announcer, self.rules())
            .and_then(|()| validate_origin(prefix, &opened, Some(self.vrps), self.rules()));
        match (attributes, checked) {
            (Err(early), Err(_)) => Outcome::Refused(early),
            (Err(early), Ok(())) => panic!("{prefix}: a receiver would take what is refused at announce ({early})"),
            (Ok(_), _) if !exported.contains(place as SlotId) => Outcome::NotExported,
            (Ok(_), Err(late)) => Outcome::Refused(late),
            // What the session to the router adds (RFC 9234 section 5).
            (Ok(_), Ok(())) => {
                let attributes = for_router(prefix.afi(), opened, self.rules());
                Outcome::Received(attributes.edit().only_to_customer(Some(RS)).finish())
            }
        }
    }

    /// Whether the route breaks the rule with this number.
    fn breaks(&self, prefix: Prefix, route: &Route, reason: u32) -> bool {
        let slot = self.slot(route.announcer);
        let broken = |check: &Check| check.make(prefix, &route.attributes, slot, self.rules()).err();
        let origin = validate_origin(prefix, &route.attributes, Some(self.vrps), self.rules()).err();
        Check::ALL.iter().filter_map(broken).chain(origin).any(|invalid| number(&invalid) == reason)
    }
}

fn policy(announcer: usize) -> Policy {
    let text = if per_peer(announcer) == PerPeer::Readable { "communities = { per_peer = 'readable' }" } else { "" };
    let config: PolicyConfig = toml::from_str(text).expect("a policy");
    Policy::compile(&config).expect("sound")
}

/// Why BIRD would not give the route to anybody, if its filter says so.
fn reason_of(attributes: &Attributes) -> Option<u32> {
    let mut reasons = attributes.large_communities().filter(|large| large.global == RS.0 && large.local1 == REASON);
    reasons.next().map(|large| large.local2)
}

/// What the communities that say who may have the route say of this receiver, with nothing before them: NO_ADVERTISE, and what is to be
/// added for this receiver alone, would hide a mistake in them.
fn asked(route: &Route, peer: Asn) -> CommunityReason {
    let others: Vec<Community> =
        route.attributes.communities().filter(|community| *community != Community::NO_ADVERTISE).collect();
    Controls::read(&route.attributes.edit().communities(&others).finish(), RS).decide(peer)
}

/// Whether BIRD does not export what communities say so of.
fn is_denied(asked: CommunityReason) -> bool {
    matches!(asked, CommunityReason::Denied | CommunityReason::ToNobody)
}

/// Compares all routes. `in_table`: what is in BIRD's table, with its reasons; `received`: what each receiver has from it.
pub(super) fn compare(
    ours: &Ours<'_>,
    routes: &Routes,
    in_table: &BTreeMap<Prefix, Attributes>,
    received: [&BTreeMap<Prefix, Attributes>; 2],
) -> (Differences, Vec<String>) {
    let (mut differences, mut unexplained) = (Differences::new(), Vec::new());
    for (prefix, route) in routes {
        for (receiver, theirs) in received.into_iter().enumerate() {
            let theirs = theirs.get(prefix);
            let table = in_table.get(prefix);
            let outcome = ours.outcome(*prefix, route, receiver);
            match explain(ours, (*prefix, route, receiver), outcome, table, theirs) {
                Ok(found) => {
                    for difference in found {
                        *differences.entry(difference).or_default() += 1;
                    }
                }
                Err(what) => {
                    let to = RECEIVERS[receiver];
                    unexplained.push(format!(
                        "{prefix} of {} to {to}: {what}\n  {:?}",
                        ANNOUNCERS[route.announcer], route.attributes
                    ));
                }
            }
        }
    }
    (differences, unexplained)
}

fn explain(
    ours: &Ours<'_>,
    (prefix, route, receiver): (Prefix, &Route, usize),
    outcome: Outcome,
    table: Option<&Attributes>,
    theirs: Option<&Attributes>,
) -> Result<Vec<Difference>, String> {
    let peer = RECEIVERS[receiver];
    let reason = table.and_then(reason_of);
    let treatments = Treatments::read(&route.attributes, RS);
    let is_private = per_peer(route.announcer) == PerPeer::Private;
    let invalid = match outcome {
        Outcome::Refused(invalid) => invalid,
        Outcome::NotExported => {
            let asked = asked(route, peer);
            return match (theirs, reason) {
                (None, None) if table.is_some() && is_denied(asked) => Ok(Vec::new()),
                (None, _) => Err(format!("not exported by us ({asked:?}); BIRD's reason is {reason:?}")),
                (Some(_), _) if is_denied(asked) => Err(format!("BIRD exports it, and we read {asked:?}")),
                (Some(_), _) => {
                    let has_no_advertise = route.attributes.communities().any(|of| of == Community::NO_ADVERTISE);
                    let is_restricted = is_private && treatments.restricted().contains(&peer);
                    let causes = [
                        (has_no_advertise, Difference::NoAdvertise),
                        (asked == CommunityReason::OnlyOthers, Difference::OnlyOthers),
                        (is_restricted, Difference::PrivateRestriction),
                    ];
                    let found: Vec<_> =
                        causes.into_iter().filter(|(holds, _)| *holds).map(|(_, cause)| cause).collect();
                    if found.is_empty() { Err(format!("BIRD exports it and we do not ({asked:?})")) } else { Ok(found) }
                }
            };
        }
        Outcome::Received(attributes) => {
            let Some(theirs) = theirs else {
                return Err(format!(
                    "we export it and BIRD does not: reason {reason:?}, in its table: {}",
                    table.is_some()
                ));
            };
            let (ours, mut theirs) = (seen(prefix, &attributes), seen(prefix, theirs));
            let hops = usize::from(treatments.to(peer).prepend - treatments.to_all().prepend);
            let mut found = Vec::new();
            if is_private && hops > 0 {
                theirs.path.drain(..hops);
                theirs.hops -= hops;
                found.push(Difference::PrivateHops);
            }
            return if ours == theirs { Ok(found) } else { Err(format!("ours {ours:?}\n  BIRD {theirs:?}")) };
        }
    };
    let own = number(&invalid);
    match (table, reason, theirs) {
        (Some(_), Some(reason), None) if reason == own => Ok(Vec::new()),
        (Some(_), Some(reason), None) if ours.breaks(prefix, route, reason) => Ok(vec![Difference::AnotherOfItsFaults]),
        (None, None, None) => {
            if ours.may_be_dropped(prefix, route) {
                Ok(vec![Difference::NotInBirdsTable])
            } else {
                Err(format!("we refuse it ({invalid}), and BIRD does not have it"))
            }
        }
        // BIRD takes it: whether it goes to this receiver is up to communities.
        (Some(_), None, _) => match own {
            LOOP => Ok(vec![Difference::Loop]),
            1 if route.attributes.as_path().length() <= 32 => Ok(vec![Difference::LongWithHops]),
            14 if is_blackhole(&route.attributes) => Ok(vec![Difference::BlackholeOrigin]),
            13 if is_blackhole(&route.attributes) => Ok(vec![Difference::BlackholeLength]),
            _ => Err(format!("we refuse it ({invalid}), and BIRD takes it")),
        },
        (table, reason, _) => {
            Err(format!("we refuse it ({invalid}); BIRD's reason is {reason:?}, in its table: {}", table.is_some()))
        }
    }
}

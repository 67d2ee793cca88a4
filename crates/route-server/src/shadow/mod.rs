//! Shadow mode: what Wayleave would give each member of an exchange where another route server runs, and where and why that
//! differs from what the other one gives.
//!
//! [`Tables`] has the routes that the server learned and those that it gives each member, as files and sessions have them.
//! [`Exchange::compare`] makes of each route what members' proxies would make of it, by the same functions: communities and rules
//! of the announcer decide who may have it ([`export_decisions`]), the receiver checks it ([`validate`], [`validate_origin`]) and
//! ranks it ([`rank`]). Nothing is announced or installed.
//!
//! What other members' recommendations and the order of candidates decide cannot be known here: of routes in one class each is as
//! right as another, and the server's choice of one of them is no difference ([`MemberTotals::equal_choice`]).

mod report;
mod tables;
#[cfg(test)]
mod tests;
pub mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use wayleave_bgp::origins::Vrps;
use wayleave_bgp::{Attributes, Community, NextHop};
use wayleave_core::{Afi, Asn, Prefix, VerdictKind};

use crate::directory::{MemberSet, Slot, SlotId};
use crate::policy::ranking::{RankInput, RankLoss, explain, rank};
use crate::policy::validate::{Check, Invalid, Martians, RouteRules, for_router, validate, validate_origin};
use crate::policy::{Decision, Imported, Policy, Rejection, export_decisions, sealed_attributes};

pub use report::{Group, MAX_EXAMPLES, MemberTotals, RefusedRoutes, Report};
pub use tables::{Full, MAX_ATTRIBUTE_OCTETS, MAX_ROUTES, SourceId, Tables};

/// The exchange as it is now, in the words of Wayleave.
#[derive(Debug)]
pub struct Exchange {
    /// Its members; keys and certificates count for nothing here.
    pub members: MemberSet,
    /// The route server's AS, as communities have it.
    pub rs: Asn,
    pub martians: Martians,
    /// For checks of origins; without them none is refused.
    pub vrps: Option<Vrps>,
    /// Of those that have one. The others have the default, which has no rules.
    pub policies: BTreeMap<SlotId, Policy>,
}

/// Why a member's table differs at a prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cause {
    /// The proxies refuse the route that the server gives.
    Refused { rule: String, why: Invalid },
    /// The announcer's communities or rules do not let this member have the route that the server gives.
    Export(Decision),
    /// The member's AS is on the path of the route that the server gives (RFC 4271 section 9.1.2).
    Loop(Asn),
    /// The member's import rules reject the route that the server gives.
    ImportPolicy(Rejection),
    /// Both have a route, and the one that the server gives loses here.
    Ranking(RankLoss),
    /// The server's best route may not go to this member, and the server gives it no other (RFC 7947 section 2.3.1).
    PathHiding { best: SlotId },
    /// The server keeps a route with NO_EXPORT, which members' proxies pass (RFC 7947 section 2.2.4).
    NoExport,
    /// The server gives what this announcer has for the prefix to no member.
    NotServed,
    /// The same route with other attributes.
    Attributes(Vec<Field>),
    /// The server gives a route of an announcer that no source has.
    NotLearned,
    /// None of the above.
    Unexplained,
}

impl Cause {
    /// A word for programs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "refused",
            Self::Export(_) => "export",
            Self::Loop(_) => "loop",
            Self::ImportPolicy(_) => "import-policy",
            Self::Ranking(_) => "ranking",
            Self::PathHiding { .. } => "path-hiding",
            Self::NoExport => "no-export",
            Self::NotServed => "not-served",
            Self::Attributes(_) => "attributes",
            Self::NotLearned => "not-learned",
            Self::Unexplained => "unexplained",
        }
    }

    /// Which rule, community, step or attribute of several, where the word alone does not say it.
    #[must_use]
    pub fn detail(&self) -> Option<String> {
        match self {
            Self::Refused { rule, .. } => Some(rule.clone()),
            Self::Export(decision) => Some(decision.to_string()),
            Self::ImportPolicy(rejection) => Some(rejection.to_string()),
            Self::Ranking(RankLoss::Step(step)) => Some(step.to_string()),
            Self::Ranking(RankLoss::Class { .. }) => Some("class by rules".to_owned()),
            Self::Ranking(RankLoss::GracefulShutdown) => Some("GRACEFUL_SHUTDOWN".to_owned()),
            Self::Ranking(RankLoss::Stale) => Some("LLGR_STALE".to_owned()),
            Self::Ranking(RankLoss::Rejected(rejection)) => Some(rejection.to_string()),
            Self::Attributes(fields) => Some(fields.iter().map(|field| field.name()).collect::<Vec<_>>().join(", ")),
            Self::Loop(_)
            | Self::PathHiding { .. }
            | Self::NoExport
            | Self::NotServed
            | Self::NotLearned
            | Self::Unexplained => None,
        }
    }

    /// A sentence for people.
    #[must_use]
    pub fn words(&self, members: &MemberSet) -> String {
        match self {
            Self::Refused { rule, why } => format!("every member's proxy refuses the server's route ({rule}): {why}"),
            Self::Export(decision) => {
                format!("the announcer's policy keeps the server's route from this member: {decision}")
            }
            Self::Loop(asn) => format!("the path of the server's route already has {asn}"),
            Self::ImportPolicy(rejection) => {
                format!("the member's policy rejects the server's route: {rejection}")
            }
            Self::Ranking(loss) => format!("the server's route is not the best for this member: {loss}"),
            Self::PathHiding { best } => format!(
                "the server gives none: its best route is of {}, may not go to this member, and hides the next best",
                members.slot(*best).map_or("another member", |slot| slot.name.as_str())
            ),
            Self::NoExport => {
                "the server keeps a route with NO_EXPORT; Wayleave passes it to the member, whom it binds".to_owned()
            }
            Self::NotServed => {
                "the server learned this route and gives it to no member: its own import filter refuses it, or the source has what it does not use"
                    .to_owned()
            }
            Self::Attributes(fields) => {
                let names: Vec<_> = fields.iter().map(|field| field.name()).collect();
                format!("the same route with another {}", names.join(", another "))
            }
            Self::NotLearned => {
                "no source has a route of this announcer: it came or went between the two readings, or a source is missing"
                    .to_owned()
            }
            Self::Unexplained => "unexplained: nothing that Wayleave knows of the server makes this difference".to_owned(),
        }
    }
}

/// What two routes may differ in, as far as all sources show it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Field {
    NextHop,
    AsPath,
    Origin,
    Med,
    Communities,
    LargeCommunities,
    ExtendedCommunities,
    OnlyToCustomer,
}

impl Field {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::NextHop,
        Self::AsPath,
        Self::Origin,
        Self::Med,
        Self::Communities,
        Self::LargeCommunities,
        Self::ExtendedCommunities,
        Self::OnlyToCustomer,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NextHop => "next hop",
            Self::AsPath => "AS path",
            Self::Origin => "origin",
            Self::Med => "MED",
            Self::Communities => "set of communities",
            Self::LargeCommunities => "set of large communities",
            Self::ExtendedCommunities => "set of extended communities",
            Self::OnlyToCustomer => "OTC",
        }
    }

    fn is_equal(self, afi: Afi, one: &Attributes, other: &Attributes) -> bool {
        match self {
            Self::NextHop => next_hop(afi, one) == next_hop(afi, other),
            Self::AsPath => one.as_path().octets() == other.as_path().octets(),
            Self::Origin => one.origin() == other.origin(),
            // One that is missing is the lowest (RFC 4271 section 9.1.2.2 c), and some programs print it as 0.
            Self::Med => one.med().unwrap_or(0) == other.med().unwrap_or(0),
            Self::Communities => same(one.communities(), other.communities()),
            Self::LargeCommunities => {
                same(one.large_communities().map(|c| c.octets()), other.large_communities().map(|c| c.octets()))
            }
            Self::ExtendedCommunities => {
                same(one.extended_communities().map(|c| c.0), other.extended_communities().map(|c| c.0))
            }
            Self::OnlyToCustomer => one.only_to_customer() == other.only_to_customer(),
        }
    }
}

fn same<T: Ord>(one: impl Iterator<Item = T>, other: impl Iterator<Item = T>) -> bool {
    one.collect::<BTreeSet<T>>() == other.collect::<BTreeSet<T>>()
}

/// The address alone: a link-local one beside it is for one link.
#[must_use]
pub fn next_hop(afi: Afi, attributes: &Attributes) -> Option<std::net::IpAddr> {
    Some(match attributes.next_hop(afi)? {
        NextHop::V4(address) => address.into(),
        NextHop::V6(next_hop) => next_hop.global.into(),
    })
}

/// A route of one of the two tables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shown {
    /// `None` where no member has the first AS or the next hop.
    pub announcer: Option<SlotId>,
    pub attributes: Attributes,
}

/// A prefix at which a member's two tables differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    pub member: SlotId,
    pub prefix: Prefix,
    /// What the server gives.
    pub given: Option<Shown>,
    /// What Wayleave would give, or one of several as good.
    pub computed: Option<Shown>,
    pub cause: Cause,
}

/// What is the same for all receivers of a route.
struct Examined<'a> {
    announcer: SlotId,
    slot: &'a Slot,
    path_id: u32,
    sealed: Attributes,
    refused: Option<(String, Invalid)>,
    decisions: Vec<(SlotId, Decision)>,
}

impl Examined<'_> {
    fn decision(&self, receiver: SlotId) -> Option<Decision> {
        self.decisions.iter().find(|(slot, _)| *slot == receiver).map(|(_, decision)| *decision)
    }

    fn may_have(&self, receiver: SlotId) -> bool {
        self.decision(receiver).is_some_and(Decision::permits)
    }

    fn input(&self, prefix: Prefix) -> RankInput<'_> {
        let verdict = VerdictKind::default();
        RankInput { prefix, attributes: &self.sealed, announcer: self.slot, path_id: self.path_id, verdict }
    }
}

/// What a receiver without a policy of its own takes of the routes to one prefix: the routes that it may have, and the best.
type Ranked = (Vec<usize>, Vec<usize>);

impl Exchange {
    /// Whose route it is: the member at the address that it came from, or by the first AS, and among several slots of that by the
    /// next hop.
    #[must_use]
    pub fn announcer(&self, afi: Afi, peer: Option<std::net::IpAddr>, attributes: &Attributes) -> Option<SlotId> {
        let owner = |address: std::net::IpAddr| {
            self.members.iter().find(|(_, slot)| slot.active && slot.owns(address)).map(|(id, _)| id)
        };
        if let Some(slot) = peer.and_then(owner) {
            return Some(slot);
        }
        let by_next_hop = next_hop(afi, attributes).and_then(owner);
        let Some(first) = attributes.as_path().first_asn() else { return by_next_hop };
        let mut slots = self.members.slots_of(first);
        match (slots.next(), slots.next()) {
            (None, _) => by_next_hop,
            (Some(only), None) => Some(only),
            (Some(one), Some(_)) => {
                by_next_hop.filter(|slot| self.members.slot(*slot).is_some_and(|slot| slot.asn == first)).or(Some(one))
            }
        }
    }

    /// Compares, prefix by prefix in their order, what each member of whom there is a table has with what it would have. `each` gets
    /// every difference.
    pub fn compare(&self, tables: &Tables, mut each: impl FnMut(Difference)) -> Report {
        let mut report = Report::new(&self.members, tables);
        let strictless = Policy::default();
        for (prefix, entry) in tables.prefixes() {
            let routes = self.examine(*prefix, tables, entry);
            for route in &routes {
                report.note_learned(route.announcer, route.refused.as_ref().map(|(rule, _)| rule.as_str()));
            }
            let mut known: Vec<Ranked> = Vec::new();
            for member in tables.members_given() {
                let Some(slot) = self.members.active(member) else { continue };
                let policy = self.policies.get(&member);
                let open = self.open_to(member, slot, &routes);
                let best = match policy {
                    Some(policy) => best_of(policy, *prefix, &routes, &open),
                    // Most members have none, and most prefixes the same routes for all of them.
                    None => match known.iter().find(|(of, _)| *of == open) {
                        Some((_, best)) => best.clone(),
                        None => {
                            let best = best_of(&strictless, *prefix, &routes, &open);
                            known.push((open.clone(), best.clone()));
                            best
                        }
                    },
                };
                let given = tables.given_to(entry, member);
                let receiver = Receiver { member, slot, policy: policy.unwrap_or(&strictless) };
                let found = self.judge(&receiver, *prefix, &routes, &open, &best, given, tables, entry);
                report.note(member, given.is_some(), !best.is_empty(), best.len() > 1, &found);
                if let Some(difference) = found {
                    report.keep(&difference);
                    each(difference);
                }
            }
        }
        report
    }

    fn rules(&self) -> RouteRules<'_> {
        RouteRules { profile: self.members.profile.as_ref(), ..self.martians.into() }
    }

    fn examine(&self, prefix: Prefix, tables: &Tables, entry: &tables::Entry) -> Vec<Examined<'_>> {
        let none = Policy::default();
        let rules = self.rules();
        let mut examined: Vec<Examined<'_>> = Vec::new();
        for learned in entry.learned() {
            let Some(slot) = self.members.active(learned.slot) else { continue };
            let Some(received) = tables.attributes(learned.attributes) else { continue };
            let policy = self.policies.get(&learned.slot).unwrap_or(&none);
            // LOCAL_PREF is the server's own (RFC 4271 section 5.1.5); dumps of its table have it.
            let received = match received.local_pref() {
                Some(_) => received.edit().local_pref(None).finish(),
                None => received.clone(),
            };
            let sealed = sealed_attributes(&received, self.rs);
            let decisions = export_decisions(prefix, &received, learned.slot, &self.members, self.rs, policy);
            // Two sources may have one route.
            let is_known = |other: &Examined<'_>| {
                other.announcer == learned.slot && other.sealed == sealed && other.decisions == decisions
            };
            if examined.iter().any(is_known) {
                continue;
            }
            let refused = refusal(prefix, &sealed, slot, self.vrps.as_ref(), rules);
            let (announcer, path_id) = (learned.slot, learned.path_id);
            examined.push(Examined { announcer, slot, path_id, sealed, refused, decisions });
        }
        examined
    }

    /// The routes that a member's proxy has and does not refuse, whatever its policy is.
    fn open_to(&self, member: SlotId, slot: &Slot, routes: &[Examined<'_>]) -> Vec<usize> {
        let is_open = |route: &Examined<'_>| {
            route.refused.is_none() && route.may_have(member) && !route.sealed.as_path().contains(slot.asn)
        };
        routes.iter().enumerate().filter(|(_, route)| is_open(route)).map(|(at, _)| at).collect()
    }

    #[expect(clippy::too_many_arguments, reason = "what is known of one member and one prefix")]
    fn judge(
        &self,
        receiver: &Receiver<'_>,
        prefix: Prefix,
        routes: &[Examined<'_>],
        open: &[usize],
        best: &[usize],
        given: Option<&Attributes>,
        tables: &Tables,
        entry: &tables::Entry,
    ) -> Option<Difference> {
        let afi = prefix.afi();
        let computed = |at: usize| Shown {
            announcer: Some(routes[at].announcer),
            attributes: self.as_received(receiver, prefix, &routes[at]),
        };
        let difference = |given: Option<Shown>, at: Option<usize>, cause: Cause| {
            Some(Difference { member: receiver.member, prefix, given, computed: at.map(computed), cause })
        };
        let Some(given) = given else {
            let first = *best.first()?;
            let cause = self.why_not_given(receiver, prefix, routes, best, tables, entry);
            return difference(None, Some(first), cause);
        };
        let announcer = self.announcer(afi, None, given);
        let shown = Some(Shown { announcer, attributes: given.clone() });
        let Some(at) = same_route(afi, routes, announcer, given) else {
            return difference(shown, best.first().copied(), Cause::NotLearned);
        };
        if best.contains(&at) {
            let own = self.as_received(receiver, prefix, &routes[at]);
            let fields: Vec<Field> = Field::ALL.into_iter().filter(|field| !field.is_equal(afi, &own, given)).collect();
            return if fields.is_empty() { None } else { difference(shown, Some(at), Cause::Attributes(fields)) };
        }
        let route = &routes[at];
        let cause = if let Some((rule, why)) = &route.refused {
            Cause::Refused { rule: rule.clone(), why: why.clone() }
        } else if let Some(decision) = route.decision(receiver.member).filter(|decision| !decision.permits()) {
            Cause::Export(decision)
        } else if route.sealed.as_path().contains(receiver.slot.asn) {
            Cause::Loop(receiver.slot.asn)
        } else if let Imported::Rejected(rejection) = receiver.policy.import(&route.input(prefix).route()) {
            Cause::ImportPolicy(rejection)
        } else {
            let inputs: Vec<RankInput<'_>> = open.iter().map(|at| routes[*at].input(prefix)).collect();
            let place = open.iter().position(|open| *open == at);
            let loss = place.and_then(|place| explain(receiver.policy, &inputs, place));
            loss.map_or(Cause::Unexplained, Cause::Ranking)
        };
        difference(shown, best.first().copied(), cause)
    }

    fn why_not_given(
        &self,
        receiver: &Receiver<'_>,
        prefix: Prefix,
        routes: &[Examined<'_>],
        best: &[usize],
        tables: &Tables,
        entry: &tables::Entry,
    ) -> Cause {
        let has_no_export =
            |at: &usize| routes[*at].sealed.communities().any(|community| community == Community::NO_EXPORT);
        if best.iter().all(has_no_export) {
            return Cause::NoExport;
        }
        let afi = prefix.afi();
        let served: Vec<Option<SlotId>> = tables
            .members_given()
            .filter_map(|member| tables.given_to(entry, member))
            .map(|given| self.announcer(afi, None, given))
            .collect();
        // The route that the server most probably has for all: the best of those that it gives, or, where it gives nobody any, of all.
        let candidates: Vec<usize> =
            (0..routes.len()).filter(|at| served.is_empty() || served.contains(&Some(routes[*at].announcer))).collect();
        let servers_best = best_of(&Policy::default(), prefix, routes, &candidates);
        let hides = |at: &&usize| !routes[**at].may_have(receiver.member);
        if let Some(at) = servers_best.iter().find(hides).filter(|_| routes.len() > 1) {
            return Cause::PathHiding { best: routes[*at].announcer };
        }
        if best.iter().all(|at| !served.contains(&Some(routes[*at].announcer))) {
            return Cause::NotServed;
        }
        Cause::Unexplained
    }

    /// As the member's router would get it.
    fn as_received(&self, receiver: &Receiver<'_>, prefix: Prefix, route: &Examined<'_>) -> Attributes {
        let changed = match receiver.policy.import(&route.input(prefix).route()) {
            Imported::Accepted(changes) => changes.apply(&route.sealed),
            Imported::Rejected(_) => route.sealed.clone(),
        };
        for_router(prefix.afi(), changed, self.rules())
    }
}

struct Receiver<'a> {
    member: SlotId,
    slot: &'a Slot,
    policy: &'a Policy,
}

/// Of these routes those in the best class.
fn best_of(policy: &Policy, prefix: Prefix, routes: &[Examined<'_>], of: &[usize]) -> Vec<usize> {
    let inputs: Vec<RankInput<'_>> = of.iter().map(|at| routes[*at].input(prefix)).collect();
    let classes = rank(policy, &inputs);
    let Some(best) = classes.iter().flatten().max() else { return Vec::new() };
    of.iter().zip(&classes).filter(|(_, class)| class.as_ref() == Some(best)).map(|(at, _)| *at).collect()
}

/// The learned route that the server gives: of the same announcer, and of several the one that is most like it.
fn same_route(afi: Afi, routes: &[Examined<'_>], announcer: Option<SlotId>, given: &Attributes) -> Option<usize> {
    let of_announcer = routes.iter().enumerate().filter(|(_, route)| Some(route.announcer) == announcer);
    let likeness =
        |route: &Examined<'_>| Field::ALL.into_iter().filter(|field| field.is_equal(afi, &route.sealed, given)).count();
    of_announcer.max_by_key(|(at, route)| (likeness(route), std::cmp::Reverse(*at))).map(|(at, _)| at)
}

/// Which check refuses a route, and how.
fn refusal(
    prefix: Prefix,
    attributes: &Attributes,
    announcer: &Slot,
    vrps: Option<&Vrps>,
    rules: RouteRules<'_>,
) -> Option<(String, Invalid)> {
    if let Err(invalid) = validate(prefix, attributes, announcer, rules) {
        let check = Check::ALL.into_iter().find(|check| check.make(prefix, attributes, announcer, rules).is_err());
        return Some((check.map_or_else(|| "route".to_owned(), rule_name), invalid));
    }
    let invalid = validate_origin(prefix, attributes, vrps, rules).err()?;
    Some(("RPKI origin".to_owned(), invalid))
}

/// `PrefixLength` as `prefix length`.
fn rule_name(check: Check) -> String {
    let mut words = String::new();
    for letter in format!("{check:?}").chars() {
        if letter.is_ascii_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.push(letter.to_ascii_lowercase());
    }
    words.replace("bogon asn", "bogon ASN").replace("as set", "AS_SET").replace("first as", "first AS")
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

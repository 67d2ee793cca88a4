//! Shadow mode: what Wayleave would give each member of an exchange where another route server runs, and where and why that
//! differs from what the other one gives.
//!
//! [`Tables`] has the routes that the server learned and those that it gives each member, as files and sessions have them.
//! [`Exchange::compare`] makes of each route what members' proxies would make of it, by the same functions: communities and rules
//! of the announcer decide who may have it ([`export_decisions`]) and what is changed in it ([`prepended`], [`received`]), the receiver
//! checks it ([`validate`], [`validate_known`]) and ranks it ([`rank`]). Nothing is announced or installed.
//!
//! What other members' recommendations and the order of candidates decide cannot be known here: of routes in one class each is as
//! right as another, and the server's choice of one of them is no difference ([`MemberTotals::equal_choice`]).

mod report;
mod tables;
#[cfg(test)]
mod tests;
pub mod text;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;

use wayleave_bgp::aspa::Aspas;
use wayleave_bgp::origins::Vrps;
use wayleave_bgp::{Attributes, Community, NextHop};
use wayleave_core::{Afi, Asn, Prefix, VerdictKind};

use crate::directory::{MemberSet, Slot, SlotId};
use crate::policy::ranking::{RankInput, RankLoss, explain, rank};
use crate::policy::treatments::{prepend, prepended, received};
use crate::policy::validate::{Check, Invalid, Known, Martians, RouteRules, for_router, validate, validate_known};
use crate::policy::{Decision, Imported, Policy, Rejection, export_decisions, sealed_for};

pub use report::{Group, MAX_EXAMPLES, MemberTotals, RefusedRoutes, Report};
pub use tables::{Full, MAX_ATTRIBUTE_OCTETS, MAX_ROUTES, SourceId, Tables};

/// The exchange as it is now, in the words of Wayleave.
#[derive(Debug)]
pub struct Exchange {
    /// Its members; keys and certificates count for nothing here.
    members: MemberSet,
    owners: Owners,
    /// The route server's AS, as communities have it.
    pub rs: Asn,
    pub martians: Martians,
    /// For checks of origins; without them none is refused.
    pub vrps: Option<Vrps>,
    /// For checks of paths, where the profile refuses those that are invalid.
    pub aspas: Option<Aspas>,
    /// Of those that have one. The others have the default, which has no rules.
    pub policies: BTreeMap<SlotId, Policy>,
}

/// Who of the members has an address, and an AS: of each the active slots, in their order.
#[derive(Debug, Default)]
struct Owners {
    by_address: HashMap<IpAddr, SlotId>,
    by_asn: HashMap<Asn, Vec<SlotId>>,
}

impl Owners {
    fn of(members: &MemberSet) -> Self {
        let mut owners = Self::default();
        for (id, slot) in members.iter().filter(|(_, slot)| slot.active) {
            owners.by_asn.entry(slot.asn).or_default().push(id);
            for address in &slot.addresses {
                owners.by_address.entry(*address).or_insert(id);
            }
        }
        owners
    }
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
pub fn next_hop(afi: Afi, attributes: &Attributes) -> Option<IpAddr> {
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

/// What a receiver gets of a route, and whether its proxy refuses that.
#[derive(Debug)]
struct Opened {
    attributes: Attributes,
    refused: Option<(String, Invalid)>,
}

/// What members' proxies make of a route.
struct Examined<'a> {
    announcer: SlotId,
    slot: &'a Slot,
    path_id: u32,
    /// The server learned it with NO_EXPORT.
    has_no_export: bool,
    /// As those get it whom no community names.
    common: Opened,
    /// As those get it for whom a community changes something, where the announcer lets receivers read that.
    own: BTreeMap<SlotId, Opened>,
    /// By slot, ascending.
    decisions: Vec<(SlotId, Decision)>,
}

impl Examined<'_> {
    fn decision(&self, receiver: SlotId) -> Option<Decision> {
        let at = self.decisions.binary_search_by_key(&receiver, |(slot, _)| *slot).ok()?;
        Some(self.decisions[at].1)
    }

    fn may_have(&self, receiver: SlotId) -> bool {
        self.decision(receiver).is_some_and(Decision::permits)
    }

    /// `None`: as those get it whom no community names.
    fn opened(&self, receiver: Option<SlotId>) -> &Opened {
        receiver.and_then(|receiver| self.own.get(&receiver)).unwrap_or(&self.common)
    }

    fn input(&self, prefix: Prefix, receiver: Option<SlotId>) -> RankInput<'_> {
        let verdict = VerdictKind::default();
        let attributes = &self.opened(receiver).attributes;
        RankInput { prefix, attributes, announcer: self.slot, path_id: self.path_id, verdict }
    }
}

/// What is known of a prefix, for all members.
struct Place<'a> {
    prefix: Prefix,
    routes: Vec<Examined<'a>>,
    tables: &'a Tables,
    entry: &'a tables::Entry,
    served: OnceCell<BTreeSet<Option<SlotId>>>,
    servers_best: OnceCell<Vec<usize>>,
}

impl Place<'_> {
    /// Whose routes the server gives to any member.
    fn served(&self, exchange: &Exchange) -> &BTreeSet<Option<SlotId>> {
        let afi = self.prefix.afi();
        self.served.get_or_init(|| {
            self.tables.all_given(self.entry).map(|given| exchange.announcer(afi, None, given)).collect()
        })
    }

    /// The route that the server most probably has for all: the best of those that it gives, or, where it gives nobody any, of all.
    fn servers_best(&self, exchange: &Exchange) -> &[usize] {
        self.servers_best.get_or_init(|| {
            let served = self.served(exchange);
            let is_candidate = |at: &usize| served.is_empty() || served.contains(&Some(self.routes[*at].announcer));
            let candidates: Vec<usize> = (0..self.routes.len()).filter(is_candidate).collect();
            best_of(&Policy::default(), self.prefix, &self.routes, &candidates, None)
        })
    }
}

/// What a receiver without a policy of its own takes of the routes to one prefix: the routes that it may have, and the best.
type Ranked = (Vec<usize>, Vec<usize>);

impl Exchange {
    /// An exchange without data of the RPKI and without policies, which fields take.
    #[must_use]
    pub fn new(members: MemberSet, rs: Asn, martians: Martians) -> Self {
        let owners = Owners::of(&members);
        Self { members, owners, rs, martians, vrps: None, aspas: None, policies: BTreeMap::new() }
    }

    #[must_use]
    pub fn members(&self) -> &MemberSet {
        &self.members
    }

    /// The member who has this address.
    #[must_use]
    pub fn owner(&self, address: IpAddr) -> Option<SlotId> {
        self.owners.by_address.get(&address).copied()
    }

    /// Whose route it is: the member at the address that it came from, or by the first AS, and among several slots of that by the
    /// next hop.
    #[must_use]
    pub fn announcer(&self, afi: Afi, peer: Option<IpAddr>, attributes: &Attributes) -> Option<SlotId> {
        if let Some(slot) = peer.and_then(|peer| self.owner(peer)) {
            return Some(slot);
        }
        let by_next_hop = || next_hop(afi, attributes).and_then(|address| self.owner(address));
        let Some(first) = attributes.as_path().first_asn() else { return by_next_hop() };
        match self.owners.by_asn.get(&first).map_or(&[][..], Vec::as_slice) {
            [] => by_next_hop(),
            [only] => Some(*only),
            several => by_next_hop().filter(|slot| several.contains(slot)).or(several.first().copied()),
        }
    }

    /// Compares, prefix by prefix in their order, what each member of whom there is a table has with what it would have. `each` gets
    /// every difference.
    pub fn compare(&self, tables: &Tables, mut each: impl FnMut(Difference)) -> Report {
        let mut report = Report::new(&self.members, tables);
        let strictless = Policy::default();
        for (prefix, entry) in tables.prefixes() {
            let routes = self.examine(*prefix, tables, entry);
            let (served, servers_best) = (OnceCell::new(), OnceCell::new());
            let place = Place { prefix: *prefix, routes, tables, entry, served, servers_best };
            let routes = &place.routes;
            for route in routes {
                report.note_learned(route.announcer, route.common.refused.as_ref().map(|(rule, _)| rule.as_str()));
            }
            let mut known: Vec<Ranked> = Vec::new();
            for member in tables.members_given() {
                let Some(slot) = self.members.active(member) else { continue };
                let policy = self.policies.get(&member);
                let open = self.open_to(member, slot, routes);
                let is_named = routes.iter().any(|route| route.own.contains_key(&member));
                let best = match policy {
                    None if !is_named => match known.iter().find(|(of, _)| *of == open) {
                        // Most members have none, and most prefixes the same routes for all of them.
                        Some((_, best)) => best.clone(),
                        None => {
                            let best = best_of(&strictless, *prefix, routes, &open, None);
                            known.push((open.clone(), best.clone()));
                            best
                        }
                    },
                    _ => best_of(policy.unwrap_or(&strictless), *prefix, routes, &open, Some(member)),
                };
                let receiver = Receiver { member, slot, policy: policy.unwrap_or(&strictless) };
                let given: Vec<&Attributes> = tables.given_to(entry, member).collect();
                let judge = |given| self.judge(&receiver, &place, &open, &best, given);
                // Of several, such as by ADD-PATH, one that is right is enough.
                let found = match given.split_first() {
                    None => judge(None),
                    Some((first, others)) => {
                        judge(Some(*first)).filter(|_| others.iter().all(|given| judge(Some(*given)).is_some()))
                    }
                };
                let is_given = !given.is_empty();
                report.note(member, is_given, !best.is_empty(), best.len() > 1, &found);
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
        let mut examined: Vec<Examined<'_>> = Vec::new();
        for learned in entry.learned() {
            let Some(slot) = self.members.active(learned.slot) else { continue };
            let Some(announced) = tables.attributes(learned.attributes) else { continue };
            let policy = self.policies.get(&learned.slot).unwrap_or(&none);
            // LOCAL_PREF is the server's own (RFC 4271 section 5.1.5); dumps of its table have it.
            let announced = match announced.local_pref() {
                Some(_) => announced.edit().local_pref(None).finish(),
                None => announced.clone(),
            };
            let has_no_export = announced.communities().any(|community| community == Community::NO_EXPORT);
            let announced = prepended(announced, self.rs);
            let decisions = export_decisions(prefix, &announced, learned.slot, &self.members, self.rs, policy);
            let sealed = sealed_for(&announced, self.rs, policy.per_peer());
            let common = opened(&sealed, self.rs, Asn(0));
            let mut own = BTreeMap::new();
            // Where all is read there is nothing for one receiver alone.
            if common != sealed {
                let receivers = self.members.iter().filter(|(id, slot)| slot.active && *id != learned.slot);
                let each = receivers.map(|(id, slot)| (id, opened(&sealed, self.rs, slot.asn)));
                own.extend(each.filter(|(_, attributes)| *attributes != common));
            }
            // Two sources may have one route.
            let is_known = |other: &Examined<'_>| {
                other.announcer == learned.slot
                    && other.common.attributes == common
                    && other.own.iter().map(|(id, own)| (id, &own.attributes)).eq(own.iter())
                    && other.decisions == decisions
            };
            if examined.iter().any(is_known) {
                continue;
            }
            let check = |attributes: Attributes| {
                let refused = self.refusal(prefix, &attributes, slot);
                Opened { attributes, refused }
            };
            let own = own.into_iter().map(|(id, attributes)| (id, check(attributes))).collect();
            let (announcer, path_id, common) = (learned.slot, learned.path_id, check(common));
            examined.push(Examined { announcer, slot, path_id, has_no_export, common, own, decisions });
        }
        examined
    }

    /// Which check refuses a route, and how.
    fn refusal(&self, prefix: Prefix, attributes: &Attributes, announcer: &Slot) -> Option<(String, Invalid)> {
        let rules = self.rules();
        if let Err(invalid) = validate(prefix, attributes, announcer, rules) {
            let check = Check::ALL.into_iter().find(|check| check.make(prefix, attributes, announcer, rules).is_err());
            return Some((check.map_or_else(|| "route".to_owned(), rule_name), invalid));
        }
        let known = Known { vrps: self.vrps.as_ref(), aspas: self.aspas.as_ref() };
        let invalid = validate_known(prefix, attributes, announcer, known, rules).err()?;
        let rule = match invalid {
            Invalid::Origin { .. } => "RPKI origin",
            Invalid::Aspa(_) => "ASPA",
            Invalid::IrrPrefix { .. } => "IRR prefix",
            _ => "route",
        };
        Some((rule.to_owned(), invalid))
    }

    /// The routes that a member's proxy has and does not refuse, whatever its policy is.
    fn open_to(&self, member: SlotId, slot: &Slot, routes: &[Examined<'_>]) -> Vec<usize> {
        let is_open = |route: &Examined<'_>| {
            let opened = route.opened(Some(member));
            opened.refused.is_none() && route.may_have(member) && !opened.attributes.as_path().contains(slot.asn)
        };
        routes.iter().enumerate().filter(|(_, route)| is_open(route)).map(|(at, _)| at).collect()
    }

    fn judge(
        &self,
        receiver: &Receiver<'_>,
        place: &Place<'_>,
        open: &[usize],
        best: &[usize],
        given: Option<&Attributes>,
    ) -> Option<Difference> {
        let (prefix, routes, member) = (place.prefix, &place.routes, Some(receiver.member));
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
            return difference(None, Some(first), self.why_not_given(receiver, place, best));
        };
        let announcer = self.announcer(afi, None, given);
        let shown = Some(Shown { announcer, attributes: given.clone() });
        let Some(at) = same_route(afi, routes, announcer, receiver.member, given) else {
            return difference(shown, best.first().copied(), Cause::NotLearned);
        };
        if best.contains(&at) {
            let own = self.as_received(receiver, prefix, &routes[at]);
            let fields: Vec<Field> = Field::ALL.into_iter().filter(|field| !field.is_equal(afi, &own, given)).collect();
            return if fields.is_empty() { None } else { difference(shown, Some(at), Cause::Attributes(fields)) };
        }
        let route = &routes[at];
        let opened = route.opened(member);
        let cause = if let Some((rule, why)) = &opened.refused {
            Cause::Refused { rule: rule.clone(), why: why.clone() }
        } else if let Some(decision) = route.decision(receiver.member).filter(|decision| !decision.permits()) {
            Cause::Export(decision)
        } else if opened.attributes.as_path().contains(receiver.slot.asn) {
            Cause::Loop(receiver.slot.asn)
        } else if let Imported::Rejected(rejection) = receiver.policy.import(&route.input(prefix, member).route()) {
            Cause::ImportPolicy(rejection)
        } else {
            let inputs: Vec<RankInput<'_>> = open.iter().map(|at| routes[*at].input(prefix, member)).collect();
            let place = open.iter().position(|open| *open == at);
            let loss = place.and_then(|place| explain(receiver.policy, &inputs, place));
            loss.map_or(Cause::Unexplained, Cause::Ranking)
        };
        difference(shown, best.first().copied(), cause)
    }

    fn why_not_given(&self, receiver: &Receiver<'_>, place: &Place<'_>, best: &[usize]) -> Cause {
        let routes = &place.routes;
        if best.iter().all(|at| routes[*at].has_no_export) {
            return Cause::NoExport;
        }
        let hides = |at: &&usize| !routes[**at].may_have(receiver.member);
        if let Some(at) = place.servers_best(self).iter().find(hides).filter(|_| routes.len() > 1) {
            return Cause::PathHiding { best: routes[*at].announcer };
        }
        let served = place.served(self);
        if best.iter().all(|at| !served.contains(&Some(routes[*at].announcer))) {
            return Cause::NotServed;
        }
        Cause::Unexplained
    }

    /// As the member's router would get it.
    fn as_received(&self, receiver: &Receiver<'_>, prefix: Prefix, route: &Examined<'_>) -> Attributes {
        let member = Some(receiver.member);
        let attributes = &route.opened(member).attributes;
        let changed = match receiver.policy.import(&route.input(prefix, member).route()) {
            Imported::Accepted(changes) => changes.apply(attributes),
            Imported::Rejected(_) => attributes.clone(),
        };
        for_router(prefix.afi(), changed, self.rules())
    }
}

struct Receiver<'a> {
    member: SlotId,
    slot: &'a Slot,
    policy: &'a Policy,
}

/// A route as the proxy of a receiver in this AS opens it.
fn opened(sealed: &Attributes, rs: Asn, receiver: Asn) -> Attributes {
    let (attributes, times) = received(sealed.clone(), rs, receiver);
    prepend(attributes, times)
}

/// Of these routes those in the best class.
fn best_of(
    policy: &Policy,
    prefix: Prefix,
    routes: &[Examined<'_>],
    of: &[usize],
    receiver: Option<SlotId>,
) -> Vec<usize> {
    let inputs: Vec<RankInput<'_>> = of.iter().map(|at| routes[*at].input(prefix, receiver)).collect();
    let classes = rank(policy, &inputs);
    let Some(best) = classes.iter().flatten().max() else { return Vec::new() };
    of.iter().zip(&classes).filter(|(_, class)| class.as_ref() == Some(best)).map(|(at, _)| *at).collect()
}

/// The learned route that the server gives: of the same announcer, and of several the one that is most like it.
fn same_route(
    afi: Afi,
    routes: &[Examined<'_>],
    announcer: Option<SlotId>,
    receiver: SlotId,
    given: &Attributes,
) -> Option<usize> {
    let of_announcer = routes.iter().enumerate().filter(|(_, route)| Some(route.announcer) == announcer);
    let likeness = |route: &Examined<'_>| {
        let own = &route.opened(Some(receiver)).attributes;
        Field::ALL.into_iter().filter(|field| field.is_equal(afi, own, given)).count()
    };
    of_announcer.max_by_key(|(at, route)| (likeness(route), std::cmp::Reverse(*at))).map(|(at, _)| at)
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
    words
        .replace("bogon asn", "bogon ASN")
        .replace("as set", "AS_SET")
        .replace("first as", "first AS")
        .replace("irr", "IRR")
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

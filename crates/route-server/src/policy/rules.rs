//! A member's rules, compiled.
//!
//! Rules are read in order. They match a route as it was announced, never as an earlier rule changed it.
//!
//! **Export.** Rules are read for each receiver. A rule whose conditions hold (`peer` and `peer_group` are about the
//! receiver) decides if it speaks of the receiver: `hide_from` denies those it names, `announce` decides for everybody
//! (`"all"`, `"none"`, or only those it names), and within one rule `hide_from` goes first. The first rule that decides
//! ends the reading; if none does, rules permit. The communities of the route must permit the receiver too, unless the
//! rule that decided says `ignore_communities`; NO_ADVERTISE always denies, and so does a NO_EXPORT or NO_ADVERTISE that is
//! to be added for the receiver and cannot ([`Controls::withholding`]).
//!
//! **Import.** A rule whose conditions hold (`peer` and `peer_group` are about the announcer) changes what it names; a
//! later rule overrides an earlier one, except that `add_community` adds up. `reject` and `accept` end the reading. A
//! route whose verdict is *invalid* is rejected unless a rule accepts it that names this verdict.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fmt;

use wayleave_bgp::Attributes;
use wayleave_core::{Afi, Asn, Prefix, VerdictKind};

use super::communities::{CommunityReason, Controls};
use super::compile::{PolicyError, compile};
use super::config::{PerPeer, PolicyConfig, RankingConfig};
use super::pattern::{AnyCommunity, CommunityPattern, PathPattern, PrefixPattern, path_text};
use super::treatments::Treatments;
use crate::directory::{Slot, SlotId};

/// As a rule names it; a pattern that happens to match it does not.
const GRACEFUL_SHUTDOWN: CommunityPattern = CommunityPattern::Standard(Some(0xffff), Some(0));

/// A route as rules look at it.
#[derive(Clone, Debug)]
pub struct Route<'a> {
    pub prefix: Prefix,
    pub attributes: &'a Attributes,
    pub announcer: Asn,
    pub verdict: VerdictKind,
    path_text: OnceCell<String>,
}

impl<'a> Route<'a> {
    /// A route without a verdict of validation.
    #[must_use]
    pub fn new(prefix: Prefix, attributes: &'a Attributes, announcer: Asn) -> Self {
        Self { prefix, attributes, announcer, verdict: VerdictKind::default(), path_text: OnceCell::new() }
    }

    /// The same route with a verdict.
    #[must_use]
    pub fn with_verdict(self, verdict: VerdictKind) -> Self {
        Self { verdict, ..self }
    }

    fn path_text(&self) -> &str {
        self.path_text.get_or_init(|| path_text(self.attributes.as_path()))
    }
}

/// A member's policy. The default has no rules: everybody may have everything, and everything valid is accepted.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    pub(super) export: Vec<ExportRule>,
    pub(super) import: Vec<ImportRule>,
    pub(super) ranking: RankingConfig,
    pub(super) per_peer: PerPeer,
    new_members: NewMembers,
}

/// Which slots get no routes because the member has not let them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NewMembers {
    /// Slots from this number on are held. Those that the set marks ([`Slot::held`]) are in any case.
    pub held_from: Option<SlotId>,
    /// Slots that are not held, marked or not.
    pub released: BTreeSet<SlotId>,
}

/// The conditions of a rule; those that are empty hold.
#[derive(Clone, Debug)]
pub(super) struct Match {
    pub(super) prefixes: Vec<PrefixPattern>,
    pub(super) as_paths: Vec<PathPattern>,
    pub(super) communities: Vec<CommunityPattern>,
    /// `None`: the rule has no such condition. An empty set matches nobody.
    pub(super) peers: Option<BTreeSet<Asn>>,
    pub(super) family: Option<Afi>,
    pub(super) verdicts: Vec<VerdictKind>,
}

#[derive(Clone, Debug)]
pub(super) struct ExportRule {
    pub(super) number: usize,
    pub(super) conditions: Match,
    pub(super) announce: Option<Audience>,
    pub(super) hide_from: BTreeSet<Asn>,
    pub(super) ignore_communities: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Audience {
    All,
    Only(BTreeSet<Asn>),
}

#[derive(Clone, Debug)]
pub(super) struct ImportRule {
    pub(super) number: usize,
    pub(super) conditions: Match,
    pub(super) reject: bool,
    pub(super) accept: bool,
    pub(super) local_pref: Option<u32>,
    pub(super) class: Option<u8>,
    pub(super) add_community: Vec<AnyCommunity>,
    pub(super) set_med: Option<u32>,
}

/// Why a receiver may or may not have a route. Rules are named by their place in the configuration, from zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exported {
    /// This rule denies the receiver.
    DeniedByRule(usize),
    /// This rule permits the receiver and ignores communities.
    PermittedByRule(usize),
    /// Rules permit (or none speaks), and communities settle it.
    Communities(CommunityReason),
}

impl Exported {
    /// Whether the receiver may have the route.
    #[must_use]
    pub fn permits(self) -> bool {
        match self {
            Exported::DeniedByRule(_) => false,
            Exported::PermittedByRule(_) => true,
            Exported::Communities(because) => because.permits(),
        }
    }
}

impl fmt::Display for Exported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exported::DeniedByRule(number) => write!(f, "rule {} hides it", number + 1),
            Exported::PermittedByRule(number) => write!(f, "rule {} announces it and ignores communities", number + 1),
            Exported::Communities(because) => because.fmt(f),
        }
    }
}

/// What import rules make of a route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Imported {
    /// The route may be used.
    Accepted(Changes),
    /// The route is not used.
    Rejected(Rejection),
}

/// Why import policy rejects a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rejection {
    /// The rule in this place of the configuration, from zero.
    Rule(usize),
    /// Its verdict is *invalid*, and no rule accepts that by name.
    Invalid,
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rejection::Rule(number) => write!(f, "rule {} rejects it", number + 1),
            Rejection::Invalid => f.write_str("validation found it invalid"),
        }
    }
}

/// What import rules change in a route.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// The degree of preference.
    pub local_pref: Option<u32>,
    /// The class in the member's own order.
    pub class: Option<u8>,
    /// Communities to add, in order, without repeats.
    pub add_community: Vec<AnyCommunity>,
    /// The MED to set.
    pub set_med: Option<u32>,
    /// Whether a rule that matched names GRACEFUL_SHUTDOWN (RFC 8326) among its communities: what the community means is then said
    /// by rules.
    pub names_graceful_shutdown: bool,
}

impl Changes {
    /// The attributes as the member's own router gets them. LOCAL_PREF is not among them: the session to the router is
    /// external (RFC 4271 section 5.1.5).
    #[must_use]
    pub fn apply(&self, attributes: &Attributes) -> Attributes {
        if self.set_med.is_none() && self.add_community.is_empty() {
            return attributes.clone();
        }
        let mut editor = attributes.edit();
        if self.set_med.is_some() {
            editor.med(self.set_med);
        }
        let mut standard: Vec<_> = attributes.communities().collect();
        let mut large: Vec<_> = attributes.large_communities().collect();
        let mut extended: Vec<_> = attributes.extended_communities().collect();
        let before = (standard.len(), large.len(), extended.len());
        for community in &self.add_community {
            match *community {
                AnyCommunity::Standard(c) if !standard.contains(&c) => standard.push(c),
                AnyCommunity::Large(c) if !large.contains(&c) => large.push(c),
                AnyCommunity::Extended(c) if !extended.contains(&c) => extended.push(c),
                _ => {}
            }
        }
        if standard.len() > before.0 {
            editor.communities(&standard);
        }
        if large.len() > before.1 {
            editor.large_communities(&large);
        }
        if extended.len() > before.2 {
            editor.extended_communities(&extended);
        }
        editor.finish()
    }
}

impl Policy {
    /// Resolves groups and refuses rules that make no sense.
    pub fn compile(config: &PolicyConfig) -> Result<Self, PolicyError> {
        compile(config)
    }

    /// The same rules, with these slots held.
    #[must_use]
    pub fn with_new_members(self, new_members: NewMembers) -> Self {
        Self { new_members, ..self }
    }

    /// Whether this slot gets no routes because the member has not let it: it is new to the member, or the set says that no
    /// earlier slot of its AS signed for it.
    #[must_use]
    pub fn holds(&self, id: SlotId, slot: &Slot) -> bool {
        let NewMembers { held_from, released } = &self.new_members;
        (slot.held || held_from.is_some_and(|from| id >= from)) && !released.contains(&id)
    }

    /// What becomes of what communities ask for one peer alone.
    #[must_use]
    pub fn per_peer(&self) -> PerPeer {
        self.per_peer
    }

    /// What the communities of a route demand at the route server of AS `rs`.
    #[must_use]
    pub fn controls(&self, attributes: &Attributes, rs: Asn) -> Controls {
        let controls = Controls::read(attributes, rs);
        match self.per_peer {
            PerPeer::Private => controls.withholding(Treatments::read(attributes, rs).restricted()),
            PerPeer::Readable => controls,
        }
    }

    /// How routes are ranked.
    #[must_use]
    pub fn ranking(&self) -> RankingConfig {
        self.ranking
    }

    /// Whether two prefixes of one UPDATE may be exported differently. A member whose policy does must announce each
    /// prefix in a route object of its own, always, since to split only where policies differ would show them.
    #[must_use]
    pub fn exports_by_prefix(&self) -> bool {
        self.export.iter().any(|rule| !rule.conditions.prefixes.is_empty() || rule.conditions.family.is_some())
    }

    #[must_use]
    pub fn has_export_rules(&self) -> bool {
        !self.export.is_empty()
    }

    /// Whether import rules look at verdicts, beyond that an invalid route is rejected.
    #[must_use]
    pub fn imports_by_verdict(&self) -> bool {
        self.import.iter().any(|rule| !rule.conditions.verdicts.is_empty())
    }

    /// The export rules that match `route`, for a decision about each receiver.
    #[must_use]
    pub fn export_rules(&self, route: &Route<'_>) -> ExportRules<'_> {
        ExportRules(self.export.iter().filter(|rule| rule.conditions.hold_for_route(route)).collect())
    }

    /// What import rules make of `route`.
    #[must_use]
    pub fn import(&self, route: &Route<'_>) -> Imported {
        let mut changes = Changes::default();
        for rule in &self.import {
            if !rule.conditions.hold_for_route(route) || !rule.conditions.hold_for_peer(route.announcer) {
                continue;
            }
            if rule.reject {
                return Imported::Rejected(Rejection::Rule(rule.number));
            }
            rule.change(&mut changes);
            if rule.accept {
                if route.verdict == VerdictKind::Invalid && !rule.conditions.verdicts.contains(&VerdictKind::Invalid) {
                    break;
                }
                return Imported::Accepted(changes);
            }
        }
        match route.verdict {
            VerdictKind::Invalid => Imported::Rejected(Rejection::Invalid),
            _ => Imported::Accepted(changes),
        }
    }
}

/// The export rules that match one route.
#[derive(Clone, Debug)]
pub struct ExportRules<'a>(Vec<&'a ExportRule>);

impl ExportRules<'_> {
    /// Their numbers in the configuration, from one.
    #[must_use]
    pub fn numbers(&self) -> Vec<usize> {
        self.0.iter().map(|rule| rule.number + 1).collect()
    }

    /// Whether the members of `receiver` may have the route whose communities say `controls`, and why.
    #[must_use]
    pub fn decide(&self, receiver: Asn, controls: &Controls) -> Exported {
        for rule in self.0.iter().filter(|rule| rule.conditions.hold_for_peer(receiver)) {
            match rule.decide(receiver) {
                Some(false) => return Exported::DeniedByRule(rule.number),
                Some(true) if rule.ignore_communities && !controls.no_advertise() => {
                    return if controls.restricts(receiver) {
                        Exported::Communities(CommunityReason::Restricted)
                    } else {
                        Exported::PermittedByRule(rule.number)
                    };
                }
                Some(true) => break,
                None => {}
            }
        }
        Exported::Communities(controls.decide(receiver))
    }
}

impl Match {
    fn hold_for_route(&self, route: &Route<'_>) -> bool {
        any_or_none(&self.prefixes, |pattern| pattern.matches(&route.prefix))
            && self.family.is_none_or(|family| family == route.prefix.afi())
            && any_or_none(&self.verdicts, |verdict| *verdict == route.verdict)
            && any_or_none(&self.communities, |pattern| pattern.matches(route.attributes))
            && any_or_none(&self.as_paths, |pattern| pattern.matches(route.path_text()))
    }

    fn hold_for_peer(&self, peer: Asn) -> bool {
        self.peers.as_ref().is_none_or(|peers| peers.contains(&peer))
    }
}

fn any_or_none<T>(conditions: &[T], holds: impl Fn(&T) -> bool) -> bool {
    conditions.is_empty() || conditions.iter().any(holds)
}

impl ExportRule {
    /// The rule's decision about `receiver`, if it makes one.
    fn decide(&self, receiver: Asn) -> Option<bool> {
        if self.hide_from.contains(&receiver) {
            return Some(false);
        }
        self.announce.as_ref().map(|audience| match audience {
            Audience::All => true,
            Audience::Only(asns) => asns.contains(&receiver),
        })
    }
}

impl ImportRule {
    fn change(&self, changes: &mut Changes) {
        changes.local_pref = self.local_pref.or(changes.local_pref);
        changes.class = self.class.or(changes.class);
        changes.set_med = self.set_med.or(changes.set_med);
        changes.names_graceful_shutdown |= self.conditions.communities.contains(&GRACEFUL_SHUTDOWN);
        for community in &self.add_community {
            if !changes.add_community.contains(community) {
                changes.add_community.push(*community);
            }
        }
    }
}

//! Tables of the routes that this member may open, filtered and a part at a time, for its own operator; none of this goes to the
//! parties.
//!
//! A table may be large, and the machine has other work: a list visits so many prefixes, and says where it stopped.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::Duration;

use serde::Serialize;
use wayleave_bgp::{Attributes, LargeCommunity};
use wayleave_core::{Afi, Asn, Prefix, VerdictKind};

use super::Member;
use super::receive::Validation;
use crate::directory::SlotId;
use crate::frames::Candidate;
use crate::policy::pattern::CommunityPattern;
use crate::policy::validate::Invalid;
use crate::policy::{Imported, Rejection};

/// How a route stands at the member that it was announced to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouteState {
    /// The router is to have it.
    Installed,
    /// The same, though a party lost its object: until its announcer has said what became of it.
    Kept,
    /// It could be used, and another one is preferred.
    Other,
    /// It waits to be validated, or no member set is in force.
    Waiting,
    /// It is not used, whatever others there are.
    Refused,
}

wayleave_core::named! {
    /// What a route is refused for.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Cause {
        FirstAs = "first-as",
        NextHop = "next-hop",
        BogonPrefix = "bogon-prefix",
        DefaultRoute = "default-route",
        AsSet = "as-set",
        Confederation = "confederation",
        PathLength = "path-length",
        PrefixLength = "prefix-length",
        BogonAsn = "bogon-asn",
        TransitFree = "transit-free-asn",
        Blackhole = "blackhole",
        RpkiInvalid = "rpki-invalid",
        AspaInvalid = "aspa-invalid",
        IrrOrigin = "irr-origin",
        IrrPrefix = "irr-prefix",
        RouteLeak = "route-leak",
        MaxPrefixes = "max-prefixes",
        /// The member's own AS is on the path, which is no error.
        Loop = "loop",
        /// An import rule of the member's own.
        ImportRule = "import-rule",
        /// The treatment of its verdict, `[attestation.policy]`.
        Attestation = "attestation",
        /// Its verdict is *invalid*, and no rule accepts that by name.
        InvalidVerdict = "invalid-verdict",
    }
}

impl Cause {
    /// The cause of a check that failed.
    #[must_use]
    pub fn of(invalid: &Invalid) -> Self {
        match invalid {
            Invalid::FirstAs { .. } => Self::FirstAs,
            Invalid::NoNextHop(_) | Invalid::NextHop(_) => Self::NextHop,
            Invalid::Martian { .. } => Self::BogonPrefix,
            Invalid::DefaultRoute(_) => Self::DefaultRoute,
            Invalid::AsSet => Self::AsSet,
            Invalid::Confederation => Self::Confederation,
            Invalid::LongPath { .. } => Self::PathLength,
            Invalid::PrefixLength { .. } => Self::PrefixLength,
            Invalid::BogonAsn { .. } => Self::BogonAsn,
            Invalid::TransitFree(_) => Self::TransitFree,
            Invalid::NoBlackhole | Invalid::BlackholeNotPermitted(_) => Self::Blackhole,
            Invalid::ListedBogon { .. } => Self::BogonPrefix,
            Invalid::Origin { .. } => Self::RpkiInvalid,
            Invalid::Aspa(_) => Self::AspaInvalid,
            Invalid::IrrOrigin { .. } => Self::IrrOrigin,
            Invalid::IrrPrefix { .. } => Self::IrrPrefix,
            Invalid::Leak(_) => Self::RouteLeak,
            Invalid::MaxPrefixes { .. } => Self::MaxPrefixes,
            Invalid::Loop(_) => Self::Loop,
        }
    }

    /// The numbers by which IXP Manager and arouteserver name the cause, where they have one for it. The first has two for the lengths of
    /// prefixes, too long and too short.
    #[must_use]
    pub fn numbers(self) -> (Option<u32>, Option<u32>) {
        match self {
            Self::FirstAs => (Some(7), Some(6)),
            Self::NextHop => (Some(8), Some(5)),
            Self::BogonPrefix | Self::DefaultRoute => (Some(3), Some(2)),
            Self::PathLength => (Some(5), Some(1)),
            Self::PrefixLength => (None, Some(13)),
            Self::BogonAsn => (Some(4), Some(7)),
            Self::AsSet => (None, Some(7)),
            Self::TransitFree => (Some(14), Some(8)),
            Self::RpkiInvalid => (Some(13), Some(14)),
            Self::IrrOrigin => (Some(10), Some(9)),
            Self::IrrPrefix => (Some(9), Some(12)),
            Self::Blackhole
            | Self::AspaInvalid
            | Self::Confederation
            | Self::RouteLeak
            | Self::MaxPrefixes
            | Self::Loop
            | Self::ImportRule
            | Self::Attestation
            | Self::InvalidVerdict => (None, None),
        }
    }

    /// The large communities by which looking glasses name the cause: `RS:1101:N` (IXP Manager) and `RS:65520:N` (arouteserver).
    #[must_use]
    pub fn communities(self, rs: Asn) -> Vec<LargeCommunity> {
        let (ixp_manager, arouteserver) = self.numbers();
        let of = |function: u32, number: Option<u32>| number.map(|number| LargeCommunity::new(rs.0, function, number));
        of(1101, ixp_manager).into_iter().chain(of(65520, arouteserver)).collect()
    }
}

/// Whose routes are wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AnnouncerFilter {
    Asn(Asn),
    Name(String),
    Slot(SlotId),
}

/// Which routes are wanted; without a condition all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RouteFilter {
    /// This prefix, and whether those inside it too.
    pub prefix: Option<(Prefix, bool)>,
    pub family: Option<Afi>,
    pub announcer: Option<AnnouncerFilter>,
    /// An AS anywhere on the path.
    pub on_path: Option<Asn>,
    /// The last AS of the path.
    pub origin: Option<Asn>,
    pub community: Option<CommunityPattern>,
    pub verdict: Option<VerdictKind>,
    pub cause: Option<Cause>,
    /// Only what the router is to have.
    pub is_installed: bool,
}

/// A route in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedRoute<'a> {
    pub prefix: Prefix,
    /// The announcer's slot.
    pub slot: SlotId,
    /// As the router gets them if it is installed, otherwise as its announcer sent them.
    pub attributes: &'a Attributes,
    pub state: RouteState,
    /// What validation found; `None` without validation, and before it.
    pub verdict: Option<VerdictKind>,
    /// Why it is refused, if it is, and in words.
    pub refused: Option<(Cause, String)>,
    /// How long ago it came; `None` for one that is kept.
    pub age: Option<Duration>,
}

impl RouteFilter {
    /// Whether the filter's conditions on what a route is hold; [`RouteFilter::announcer`] is the list's to look at, which knows the
    /// members.
    #[must_use]
    pub fn matches(&self, route: &ListedRoute<'_>) -> bool {
        let path = route.attributes.as_path();
        let is_installed = matches!(route.state, RouteState::Installed | RouteState::Kept);
        self.holds_prefix(&route.prefix)
            && (is_installed || !self.is_installed)
            && self.cause.is_none_or(|cause| route.refused.as_ref().is_some_and(|(of, _)| *of == cause))
            && self.verdict.is_none_or(|verdict| route.verdict == Some(verdict))
            && self.on_path.is_none_or(|asn| path.contains(asn))
            && self.origin.is_none_or(|asn| path.origin_asn() == Some(asn))
            && self.community.is_none_or(|pattern| pattern.matches(route.attributes))
    }

    fn holds_prefix(&self, prefix: &Prefix) -> bool {
        self.family.is_none_or(|family| prefix.afi() == family)
            && self.prefix.is_none_or(|(of, longer)| if longer { of.contains(prefix) } else { of == *prefix })
    }
}

/// A part of a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part<T> {
    pub rows: Vec<T>,
    /// The last prefix that was visited, if there are others behind it.
    pub after: Option<Prefix>,
}

/// A place in a list that is read a page at a time: behind the routes of one announcer to one prefix. It stays a place, whatever comes
/// and goes: an offset would show a route twice, or never, once another one before it has gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ListPosition {
    pub prefix: Prefix,
    pub slot: SlotId,
}

impl ListPosition {
    /// Behind all routes to a prefix.
    #[must_use]
    pub fn behind(prefix: Prefix) -> Self {
        Self { prefix, slot: SlotId::MAX }
    }
}

impl Member {
    /// Like [`Member::list_routes`], behind a position, with the position of each row and in the order of positions.
    pub fn list_behind<T>(
        &mut self,
        filter: &RouteFilter,
        position: Option<ListPosition>,
        visits: usize,
        mut row: impl FnMut(&ListedRoute<'_>) -> T,
    ) -> Part<(ListPosition, T)> {
        let mut placed =
            |route: &ListedRoute<'_>| (ListPosition { prefix: route.prefix, slot: route.slot }, row(route));
        let mut rest = Vec::new();
        if let Some(of) = position.filter(|of| filter.holds_prefix(&of.prefix)) {
            self.list_prefix(of.prefix, filter, &mut |route| {
                if route.slot > of.slot {
                    rest.push(placed(route));
                }
            });
        }
        let mut part = self.list_routes(filter, position.map(|of| of.prefix), visits, placed);
        part.rows.splice(..0, rest);
        part.rows.sort_by_key(|(position, _)| *position);
        part
    }

    /// Prefixes that the router is to have a route to.
    #[must_use]
    pub fn installed_prefixes(&self) -> usize {
        self.installed.len()
    }

    /// The rows that `row` makes of the routes that `filter` lets through, of at most `visits` prefixes behind `after`, in order.
    pub fn list_routes<T>(
        &mut self,
        filter: &RouteFilter,
        after: Option<Prefix>,
        visits: usize,
        mut row: impl FnMut(&ListedRoute<'_>) -> T,
    ) -> Part<T> {
        let prefixes = self.prefixes_of(filter, after, visits);
        let is_last = prefixes.len() < visits;
        let mut rows = Vec::new();
        for prefix in prefixes.iter().filter(|prefix| filter.holds_prefix(prefix)) {
            self.list_prefix(*prefix, filter, &mut |route| rows.push(row(route)));
        }
        Part { rows, after: prefixes.last().copied().filter(|_| !is_last) }
    }

    /// The first `most` prefixes behind `after` that the filter may let through and of which something is known.
    pub(super) fn prefixes_of(&self, filter: &RouteFilter, after: Option<Prefix>, most: usize) -> Vec<Prefix> {
        let first = filter.prefix.map(|(prefix, _)| prefix);
        let from = match (after, first) {
            (Some(after), Some(first)) if after < first => Bound::Included(first),
            (Some(after), _) => Bound::Excluded(after),
            (None, Some(first)) => Bound::Included(first),
            (None, None) => Bound::Unbounded,
        };
        let range = (from, Bound::Unbounded);
        // Those inside a prefix follow it without a gap.
        let is_inside = |prefix: &&Prefix| {
            filter.prefix.is_none_or(|(of, longer)| if longer { of.contains(prefix) } else { of == **prefix })
        };
        let mut all: BTreeSet<Prefix> =
            self.choices.range(range).map(|(prefix, _)| prefix).take_while(is_inside).take(most).copied().collect();
        all.extend(self.not_competing.range(range).map(|(prefix, _)| prefix).take_while(is_inside).take(most));
        all.extend(self.installed.range(range).map(|(prefix, _)| prefix).take_while(is_inside).take(most));
        all.into_iter().take(most).collect()
    }

    fn list_prefix(&mut self, prefix: Prefix, filter: &RouteFilter, take: &mut dyn FnMut(&ListedRoute<'_>)) {
        let candidates = self.known_routes(&prefix);
        let installed = self.installed.get(&prefix).map(|installed| installed.handle);
        let mut is_installed_listed = false;
        for candidate in &*candidates {
            let is_installed = installed == Some(candidate.0) && !is_installed_listed;
            is_installed_listed |= is_installed;
            let Some((state, refused)) = self.state_of(prefix, candidate, is_installed) else { continue };
            let Some(route) = self.routes.get(&candidate.0) else { continue };
            let Some(open) = route.opened.as_ref().filter(|open| self.is_of(filter, open.slot)) else { continue };
            let of_router = self.installed.get(&prefix).filter(|_| is_installed).map(|installed| &installed.attributes);
            let finding = match &route.validation {
                Validation::Done(findings) => findings.get(usize::from(candidate.1)),
                Validation::NotRequested | Validation::Pending => None,
            };
            let listed = ListedRoute {
                prefix,
                slot: open.slot,
                attributes: of_router.unwrap_or(&open.attributes),
                state,
                verdict: finding.filter(|_| self.config.validates).map(|finding| finding.verdict),
                refused,
                age: Some(self.at.since(route.since)),
            };
            if filter.matches(&listed) {
                take(&listed);
            }
        }
        let Some(route) = self.installed.get(&prefix).filter(|_| !is_installed_listed) else { return };
        let (slot, attributes, state) = (route.announcer, &route.attributes, RouteState::Kept);
        let kept = ListedRoute { prefix, slot, attributes, state, verdict: None, refused: None, age: None };
        if self.is_of(filter, slot) && filter.matches(&kept) {
            take(&kept);
        }
    }

    /// Whether the filter is for routes of the member in this slot.
    fn is_of(&self, filter: &RouteFilter, slot: SlotId) -> bool {
        let of = || self.set.as_ref().and_then(|set| set.slot(slot));
        match &filter.announcer {
            None => true,
            Some(AnnouncerFilter::Slot(wanted)) => *wanted == slot,
            Some(AnnouncerFilter::Asn(asn)) => of().is_some_and(|of| of.asn == *asn),
            Some(AnnouncerFilter::Name(name)) => of().is_some_and(|of| of.name == *name),
        }
    }

    /// How an open route stands, and what it is refused for; `None` if this member may not open it, or it is dead.
    fn state_of(
        &mut self,
        prefix: Prefix,
        candidate: &Candidate,
        is_installed: bool,
    ) -> Option<(RouteState, Option<(Cause, String)>)> {
        let assessment = self.assessment(candidate)?;
        if is_installed {
            return Some((RouteState::Installed, None));
        }
        let refused = |cause: Cause, words: String| Some((RouteState::Refused, Some((cause, words))));
        let route = self.routes.get(&candidate.0)?;
        let open = route.opened.as_ref()?;
        if let Err(error) = self.checked(prefix, open) {
            return refused(Cause::of(&error), error.to_string());
        }
        if assessment.best_case.is_some() && !self.awaited.contains(&candidate.0) {
            // It is validated once it could become best.
            return Some((RouteState::Other, None));
        }
        if !assessment.usable {
            return Some((RouteState::Waiting, None));
        }
        if assessment.rank.is_some() {
            return Some((RouteState::Other, None));
        }
        let finding = route.validation.of(usize::from(candidate.1)).filter(|_| self.config.validates);
        if finding.is_some_and(|finding| finding.attributes.is_none()) {
            return refused(Cause::Attestation, "[attestation.policy] rejects its verdict".to_owned());
        }
        let nlri = open.prefixes.get(usize::from(candidate.1))?;
        let announcer = self.set.as_ref()?.slot(open.slot)?;
        match self.policy.import(&open.rank_input(nlri, announcer, assessment.verdict).route()) {
            Imported::Rejected(Rejection::Rule(number)) => {
                refused(Cause::ImportRule, format!("your import rule {} rejects it", number + 1))
            }
            Imported::Rejected(Rejection::Invalid) => {
                refused(Cause::InvalidVerdict, "validation found it invalid".to_owned())
            }
            Imported::Accepted(_) => Some((RouteState::Other, None)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use wayleave_bgp::{AsPathBuf, AttributesEditor, Community, ExtendedCommunity, Nlri, Origin};
    use wayleave_core::{Instant, Now, UnixTime};
    use wayleave_crypto::secret::Secret;
    use wayleave_crypto::sign::SigningKey;

    use super::super::receive::{OpenRoute, ReceivedObject};
    use super::super::select::{Choice, InstalledRoute};
    use super::super::{Finding, MemberConfig};
    use super::*;
    use crate::directory::{MemberSet, Slot};
    use crate::object::Handle;
    use crate::policy::{Policy, PolicyConfig};
    use crate::versions::Speaks;

    const RULES: &str = "[[rule]]\ndirection = \"import\"\nas_path = \"_64511_\"\nreject = true\n";

    fn prefix(text: &str) -> Prefix {
        text.parse().expect("a prefix")
    }

    fn policy(rules: &str) -> Policy {
        let rules: PolicyConfig = toml::from_str(rules).expect("rules");
        Policy::compile(&rules).expect("a policy")
    }

    fn member(validates: bool) -> Member {
        let key = |number: u8| SigningKey::from_seed(&Secret::new([number; 32]));
        let config = MemberConfig {
            exchange: "test-ix".to_owned(),
            rs_asn: Asn(64_496),
            operators: [key(1).verifying_key(), key(2).verifying_key()],
            slot: 0,
            keys: Vec::new(),
            select_best: true,
            stale: Duration::from_secs(60),
            settle: Duration::from_secs(5),
            lab: true,
            accept_as_set: false,
            paths: 1,
            has_role: true,
            validates,
            speaks: Speaks::default(),
        };
        let rules: PolicyConfig = toml::from_str(RULES).expect("rules");
        let policy = Policy::compile(&rules).expect("a policy");
        let now = Now { instant: Instant(0), unix: UnixTime(1_700_000_000_000_000) };
        let mut member = Member::new(config, Box::new(policy), key(3), &Secret::new([4; 32]), &[], now);
        let slot = |(number, name): (u8, &str)| Slot {
            active: true,
            asn: Asn(64_497 + u32::from(number)),
            name: name.to_owned(),
            addresses: vec![[192, 0, 2, 1 + number].into()],
            tls: [number; 32],
            sign: [number; 32],
            max_prefix: 0,
            held: false,
        };
        let slots = [(0, "alpha"), (1, "bravo"), (2, "charlie")].map(slot).to_vec();
        member.set = Some(MemberSet {
            exchange: "test-ix".to_owned(),
            number: 1,
            slots,
            attest: BTreeMap::new(),
            profile: None,
            data: None,
        });
        member
    }

    /// A route of the member in `slot` over `path`, with a next hop of its own.
    fn add(member: &mut Member, number: u8, slot: u32, of: &str, path: &[u32]) {
        let asns: Vec<Asn> = path.iter().copied().map(Asn).collect();
        let mut editor = AttributesEditor::default();
        editor.origin(Origin::Igp);
        editor.as_path(AsPathBuf::from_sequence(&asns).as_path());
        editor.ipv4_next_hop([192, 0, 2, 1 + slot as u8].into());
        editor.communities(&[Community::new(64_500, u16::from(number))]);
        editor.large_communities(&[LargeCommunity::new(64_500, 1, number.into())]);
        editor.extended_communities(&[ExtendedCommunity::route_target(64_500, number.into())]);
        let (handle, prefix) = (Handle([number; 32]), prefix(of));
        let prefixes = vec![Nlri::new(prefix)];
        let open = OpenRoute { slot, prefixes, attributes: editor.finish(), prepended: None, set: [0; 32] };
        let object = ReceivedObject {
            unopened: None,
            opened: Some(Arc::new(open)),
            is_broken: false,
            is_late: false,
            dead: BTreeSet::new(),
            assessment: None,
            validation: Validation::NotRequested,
            since: Instant(0),
        };
        member.routes.insert(handle, object);
        let choice: &mut Choice = member.choices.entry(prefix).or_default();
        choice.candidates = choice.candidates.iter().copied().chain([(handle, 0)]).collect();
    }

    fn install(member: &mut Member, number: u8) {
        let open = member.routes[&Handle([number; 32])].opened.clone().expect("it is open");
        let (announcer, attributes) = (open.slot, open.attributes.clone());
        let installed = InstalledRoute { handle: Handle([number; 32]), announcer, path_id: 0, attributes };
        member.installed.insert(open.prefixes[0].prefix, installed);
    }

    fn table() -> Member {
        let mut member = member(false);
        add(&mut member, 1, 1, "20.0.0.0/8", &[64_498, 64_600]);
        add(&mut member, 2, 2, "20.0.0.0/8", &[64_499, 64_510, 64_600]);
        add(&mut member, 3, 1, "20.1.0.0/16", &[64_498, 64_601]);
        add(&mut member, 4, 2, "20.1.0.0/16", &[64_511]); // not its own AS
        add(&mut member, 5, 2, "20.1.2.0/24", &[64_499, 64_511]); // a rule rejects it
        add(&mut member, 6, 2, "30.0.0.0/8", &[64_499, 64_497]); // it came back
        add(&mut member, 7, 1, "10.0.0.0/8", &[64_498]);
        add(&mut member, 8, 2, "40.0.0.0/8", &[64_499, 64_600]);
        [1, 3, 8].into_iter().for_each(|number| install(&mut member, number));
        member
    }

    /// The community of each route in a list, which tells them apart.
    fn listed(member: &mut Member, filter: &RouteFilter, visits: usize) -> Vec<(u16, RouteState, Option<Cause>)> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let part = member.list_routes(filter, after, visits, |route| {
                let number = route.attributes.communities().next().expect("a community").lower();
                (number, route.state, route.refused.as_ref().map(|(cause, _)| *cause))
            });
            all.extend(part.rows);
            after = part.after;
            if after.is_none() {
                return all;
            }
        }
    }

    #[test]
    fn another_policy_is_compared_with_the_one_in_force_route_by_route() {
        use super::super::policy_diff::Difference::{self, Changed, Ranked, Refused, Taken};
        let mut member = table();
        let all = |member: &mut Member, other: &Policy, visits: usize| {
            let (mut rows, mut after) = (Vec::new(), None);
            loop {
                let part = member.import_differences(other, after, visits);
                rows.extend(part.rows);
                after = part.after;
                if after.is_none() {
                    return rows;
                }
            }
        };
        assert_eq!(all(&mut member, &policy(RULES), 100), []);
        // 64601 instead of 64511 is refused, and slot 2 is preferred.
        let other = "[[rule]]\ndirection = \"import\"\nas_path = \"_64601_\"\nreject = true\n\
                     [[rule]]\ndirection = \"import\"\nas_path = \"^64499_\"\nlocal_pref = 500\n";
        let other = policy(other);
        let expected = |member: &Member| -> Vec<Difference> {
            vec![
                Ranked { prefix: prefix("20.0.0.0/8") },
                Refused { prefix: prefix("20.1.0.0/16"), announcer: member.announcer(1) },
                Taken { prefix: prefix("20.1.2.0/24"), announcer: member.announcer(2) },
            ]
        };
        for visits in [1, 3, 100] {
            assert_eq!(all(&mut member, &other, visits), expected(&member), "{visits}");
        }
        // A rule that changes what the router gets, and not the order; one that sets what is there already changes nothing.
        let community = |number: u8| {
            let rule = "[[rule]]\ndirection = \"import\"\nprefix = \"20.1.0.0/16\"\nadd_community = ";
            policy(&format!("{RULES}{rule}\"64500:{number}\"\n"))
        };
        let changed = [Changed { prefix: prefix("20.1.0.0/16"), announcer: member.announcer(1) }];
        assert_eq!(all(&mut member, &community(9), 100), changed);
        assert_eq!(all(&mut member, &community(3), 100), []);
        assert!(member.export_differences(&other, None, 10).rows.is_empty(), "its router announces nothing");
    }

    #[test]
    fn another_policy_is_compared_by_who_gets_own_routes_and_by_what_they_get_and_can_read() {
        use super::super::announce::Bar;
        use super::super::policy_diff::Difference::{Exported, Hidden, Readable, Treated};
        let mut member = table();
        let (announced, barred) = (prefix("50.0.0.0/8"), prefix("51.0.0.0/8"));
        let mut editor = AttributesEditor::default();
        editor.origin(Origin::Igp);
        editor.as_path(AsPathBuf::from_sequence(&[Asn(64_497)]).as_path());
        // Twice more for 64498, and NO_EXPORT for 64499.
        editor.large_communities(&[
            LargeCommunity::new(64_496, 102, 64_498),
            LargeCommunity::new(64_496, 65_281, 64_499),
        ]);
        let attributes = editor.finish();
        member.announcements.router_update(&[], &[announced, barred].map(Nlri::new), Some(&attributes));
        member.announcements.bar(Nlri::new(barred), Bar::SurplusPath);
        let readable = "communities = { per_peer = \"readable\" }\n";
        let [bravo, charlie] = [1, 2].map(|slot| member.announcer(slot));
        let rows = |other: &Policy| member.export_differences(other, None, 10).rows;
        assert_eq!(rows(&policy(RULES)), []);
        let prefix = announced;
        let expected =
            [Treated { prefix, receiver: bravo.clone() }, Exported { prefix, receiver: charlie }, Readable { prefix }];
        assert_eq!(rows(&policy(readable)), expected);
        let hidden = "[[rule]]\ndirection = \"export\"\nannounce = \"none\"\n";
        assert_eq!(
            rows(&policy(&format!("{readable}{hidden}"))),
            [Hidden { prefix, receiver: bravo }],
            "nobody reads it"
        );
    }

    #[test]
    fn installed_routes_are_counted_by_announcer_and_family() {
        let mut member = table();
        add(&mut member, 9, 2, "2001:db8:5::/48", &[64_499]);
        install(&mut member, 9);
        let tally = member.tally();
        let counts: Vec<(u32, Afi, usize)> =
            tally.installed.iter().map(|((slot, _, afi), count)| (*slot, *afi, *count)).collect();
        assert_eq!(counts, [(1, Afi::Ipv4, 2), (2, Afi::Ipv4, 1), (2, Afi::Ipv6, 1)]);
        assert_eq!(counts.iter().map(|(.., count)| count).sum::<usize>(), member.status().installed);
        assert!(tally.router.is_empty());
        // A slot that is in no set has no name, and is counted.
        member.set = None;
        assert_eq!(member.tally().installed[&(2, String::new(), Afi::Ipv6)], 1);
    }

    #[test]
    fn routes_are_listed_in_order_each_with_its_state_whatever_the_size_of_a_part() {
        use RouteState::{Installed, Other, Refused};
        let mut member = table();
        let expected = [
            (7, Refused, Some(Cause::BogonPrefix)),
            (1, Installed, None),
            (2, Other, None),
            (3, Installed, None),
            (4, Refused, Some(Cause::FirstAs)),
            (5, Refused, Some(Cause::ImportRule)),
            (6, Refused, Some(Cause::Loop)),
            (8, Installed, None),
        ];
        for visits in [1, 2, 3, 6, 7, 100] {
            assert_eq!(listed(&mut member, &RouteFilter::default(), visits), expected, "{visits}");
        }
        // A party lost the object of an installed route.
        member.routes.remove(&Handle([8; 32]));
        member.choices.remove(&prefix("40.0.0.0/8"));
        let last = listed(&mut member, &RouteFilter::default(), 2).pop();
        assert_eq!(last, Some((8, RouteState::Kept, None)));
    }

    /// Number and position of each route behind a position, whatever the size of a part.
    fn behind(member: &mut Member, position: Option<ListPosition>, visits: usize) -> Vec<(u16, ListPosition)> {
        let (mut all, mut from) = (Vec::new(), position);
        loop {
            let part = member.list_behind(&RouteFilter::default(), from, visits, |route| {
                route.attributes.communities().next().expect("a community").lower()
            });
            all.extend(part.rows.into_iter().map(|(position, number)| (number, position)));
            match part.after {
                Some(prefix) => from = Some(ListPosition::behind(prefix)),
                None => return all,
            }
        }
    }

    fn numbers(rows: &[(u16, ListPosition)]) -> Vec<u16> {
        rows.iter().map(|(number, _)| *number).collect()
    }

    #[test]
    fn a_list_goes_on_behind_each_of_its_positions() {
        let mut member = table();
        add(&mut member, 9, 1, "2001:db8:5::/48", &[64_498]);
        add(&mut member, 10, 2, "2001:db8:5::/48", &[64_499]);
        let all = behind(&mut member, None, 100);
        assert_eq!(numbers(&all), [7, 1, 2, 3, 4, 5, 6, 8, 9, 10], "IPv4 first, then IPv6");
        for visits in [1, 2, 100] {
            for (at, (_, position)) in all.iter().enumerate() {
                assert_eq!(behind(&mut member, Some(*position), visits), all[at + 1..], "{position:?}, {visits}");
            }
        }
    }

    #[test]
    fn routes_that_vanish_between_two_pages_hide_no_others_and_show_none_twice() {
        let position = |text: &str, slot: u32| ListPosition { prefix: prefix(text), slot };
        // The first of two routes to a prefix was the last one shown; it goes, and so does one long before it.
        let mut member = table();
        for (number, of) in [(1, "20.0.0.0/8"), (7, "10.0.0.0/8")] {
            member.routes.remove(&Handle([number; 32]));
            member.choices.get_mut(&prefix(of)).expect("it is known").candidates = member.choices[&prefix(of)]
                .candidates
                .iter()
                .copied()
                .filter(|one| one.0 != Handle([number; 32]))
                .collect();
        }
        member.installed.remove(&prefix("20.0.0.0/8"));
        let rest = behind(&mut member, Some(position("20.0.0.0/8", 1)), 2);
        assert_eq!(numbers(&rest), [2, 3, 4, 5, 6, 8]);
        // Its prefix goes with it.
        member.choices.remove(&prefix("20.0.0.0/8"));
        let rest = behind(&mut member, Some(position("20.0.0.0/8", 1)), 2);
        assert_eq!(numbers(&rest), [3, 4, 5, 6, 8]);
        // What comes before the position is on a page that was shown already.
        add(&mut member, 11, 2, "11.0.0.0/8", &[64_499]);
        assert_eq!(behind(&mut member, Some(position("20.0.0.0/8", 1)), 2), rest);
    }

    #[test]
    fn behind_the_end_of_a_table_there_is_nothing() {
        let mut member = table();
        for last in ["40.0.0.0/8", "2001:db8::/32"] {
            let part = member.list_behind(&RouteFilter::default(), Some(ListPosition::behind(prefix(last))), 9, |_| ());
            assert_eq!(part, Part { rows: Vec::new(), after: None }, "{last}");
        }
        assert_eq!(member.installed_prefixes(), 3);
    }

    #[test]
    fn a_position_outside_the_filter_shows_nothing_of_its_own_prefix() {
        let mut member = table();
        let filter = RouteFilter { prefix: Some((prefix("20.1.0.0/16"), true)), ..RouteFilter::default() };
        let position = ListPosition { prefix: prefix("20.0.0.0/8"), slot: 1 };
        let part = member.list_behind(&filter, Some(position), 100, |route| route.prefix);
        let prefixes: Vec<Prefix> = part.rows.into_iter().map(|(_, prefix)| prefix).collect();
        assert_eq!(prefixes, ["20.1.0.0/16", "20.1.0.0/16", "20.1.2.0/24"].map(prefix));
    }

    /// A filter is a list of everything, of which a plain condition leaves some.
    #[test]
    fn a_filter_lets_through_what_a_plain_condition_does() {
        let mut member = table();
        let all = listed(&mut member, &RouteFilter::default(), 100);
        // Number, slot, prefix and path of each.
        let facts: [(u16, u32, &str, &[u32]); 8] = [
            (1, 1, "20.0.0.0/8", &[64_498, 64_600]),
            (2, 2, "20.0.0.0/8", &[64_499, 64_510, 64_600]),
            (3, 1, "20.1.0.0/16", &[64_498, 64_601]),
            (4, 2, "20.1.0.0/16", &[64_511]),
            (5, 2, "20.1.2.0/24", &[64_499, 64_511]),
            (6, 2, "30.0.0.0/8", &[64_499, 64_497]),
            (7, 1, "10.0.0.0/8", &[64_498]),
            (8, 2, "40.0.0.0/8", &[64_499, 64_600]),
        ];
        let of = |number: u16| facts.iter().find(|fact| fact.0 == number).expect("a fact");
        type Plain<'a> = Box<dyn Fn(&(u16, RouteState, Option<Cause>)) -> bool + 'a>;
        let filter = RouteFilter::default;
        let community = |text: &str| RouteFilter { community: Some(text.parse().expect("a pattern")), ..filter() };
        let within = |text: &str, longer| RouteFilter { prefix: Some((prefix(text), longer)), ..filter() };
        let announcer = |announcer| RouteFilter { announcer: Some(announcer), ..filter() };
        let cases: Vec<(RouteFilter, Plain<'_>)> = vec![
            (within("20.1.0.0/16", false), Box::new(|row| of(row.0).2 == "20.1.0.0/16")),
            (within("20.0.0.0/8", true), Box::new(|row| of(row.0).2.starts_with("20."))),
            (within("20.0.0.0/7", true), Box::new(|row| of(row.0).2.starts_with("20."))),
            (within("20.2.0.0/16", true), Box::new(|_| false)),
            (RouteFilter { family: Some(Afi::Ipv6), ..filter() }, Box::new(|_| false)),
            (announcer(AnnouncerFilter::Asn(Asn(64_498))), Box::new(|row| of(row.0).1 == 1)),
            (announcer(AnnouncerFilter::Name("charlie".to_owned())), Box::new(|row| of(row.0).1 == 2)),
            (announcer(AnnouncerFilter::Slot(2)), Box::new(|row| of(row.0).1 == 2)),
            (RouteFilter { on_path: Some(Asn(64_511)), ..filter() }, Box::new(|row| of(row.0).3.contains(&64_511))),
            (RouteFilter { origin: Some(Asn(64_600)), ..filter() }, Box::new(|row| of(row.0).3.ends_with(&[64_600]))),
            (community("64500:3"), Box::new(|row| row.0 == 3)),
            (community("64500:1:4"), Box::new(|row| row.0 == 4)),
            (community("rt:64500:5"), Box::new(|row| row.0 == 5)),
            (community("64500:*"), Box::new(|_| true)),
            (RouteFilter { is_installed: true, ..filter() }, Box::new(|row| row.1 == RouteState::Installed)),
            (RouteFilter { cause: Some(Cause::Loop), ..filter() }, Box::new(|row| row.2 == Some(Cause::Loop))),
            (RouteFilter { verdict: Some(VerdictKind::Valid), ..filter() }, Box::new(|_| false)),
        ];
        for (filter, plain) in &cases {
            let expected: Vec<_> = all.iter().copied().filter(|row| plain(row)).collect();
            for visits in [1, 3, 100] {
                assert_eq!(listed(&mut member, filter, visits), expected, "{filter:?}, {visits}");
            }
        }
    }

    #[test]
    fn a_verdict_is_listed_once_validation_has_one() {
        let mut member = member(true);
        add(&mut member, 1, 1, "20.0.0.0/8", &[64_498]);
        assert_eq!(listed(&mut member, &RouteFilter::default(), 9), [(1, RouteState::Other, None)], "not validated");
        let route = member.routes.get_mut(&Handle([1; 32])).expect("it is there");
        route.validation = Validation::Done(vec![Finding { verdict: VerdictKind::Gap, attributes: None }]);
        route.assessment = None;
        let of = |verdict| RouteFilter { verdict: Some(verdict), ..RouteFilter::default() };
        let expected = [(1, RouteState::Refused, Some(Cause::Attestation))];
        assert_eq!(listed(&mut member, &of(VerdictKind::Gap), 9), expected);
        assert_eq!(listed(&mut member, &of(VerdictKind::Valid), 9), []);
    }

    #[test]
    fn reasons_are_numbered_as_ixp_manager_and_arouteserver_do() {
        let texts =
            |cause: Cause| cause.communities(Asn(64_496)).into_iter().map(|of| of.to_string()).collect::<Vec<_>>();
        assert_eq!(texts(Cause::FirstAs), ["64496:1101:7", "64496:65520:6"]);
        assert_eq!(texts(Cause::NextHop), ["64496:1101:8", "64496:65520:5"]);
        assert_eq!(texts(Cause::BogonPrefix), ["64496:1101:3", "64496:65520:2"]);
        assert_eq!(texts(Cause::PathLength), ["64496:1101:5", "64496:65520:1"]);
        assert_eq!(texts(Cause::IrrOrigin), ["64496:1101:10", "64496:65520:9"]);
        assert_eq!(texts(Cause::IrrPrefix), ["64496:1101:9", "64496:65520:12"]);
        assert!(texts(Cause::ImportRule).is_empty() && texts(Cause::Loop).is_empty());
    }
}

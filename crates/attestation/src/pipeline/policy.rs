//! Policy by verdict class: reject a route, tag it, rank it lower, or only report it.

use std::collections::BTreeMap;

use serde::Serialize;
use wayleave_bgp::{Attributes, LargeCommunity};
use wayleave_core::{Prefix, VerdictKind};

use crate::report::{Lack, Problem, Report};

wayleave_core::named! {
    /// The classes of verdicts that policy distinguishes.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum VerdictClass {
        /// Every hop is proved, and the origin may announce the prefix.
        Valid = "valid",
        /// Proved with gaps.
        Gap = "gap",
        /// Nothing is claimed, and nothing had to be.
        Unattested = "unattested",
        /// Nothing is claimed, and nothing can be: the path has an AS_SET.
        Aggregate = "aggregate",
        /// Nothing is claimed, though the origin's record says that it usually does.
        Missing = "missing",
        /// What was claimed has expired.
        Expired = "expired",
        /// Something is false, or missing where it must be.
        Invalid = "invalid",
        /// The attribute cannot be read.
        Malformed = "malformed",
    }
}

impl VerdictClass {
    /// The class of `prefix` in a report.
    #[must_use]
    pub fn of(report: &Report, prefix: &Prefix) -> VerdictClass {
        Self::from(report, report.verdict_of(prefix).kind, report.lack_of(prefix))
    }

    /// The class of each prefix of the UPDATE, in order.
    #[must_use]
    pub fn of_all(report: &Report) -> Vec<VerdictClass> {
        report.prefixes.iter().map(|of_prefix| Self::from(report, of_prefix.kind, of_prefix.lack)).collect()
    }

    fn from(report: &Report, kind: VerdictKind, lack: Option<Lack>) -> VerdictClass {
        if report.broken.as_ref().is_some_and(|broken| broken.problem == Problem::Malformed) {
            return VerdictClass::Malformed;
        }
        match kind {
            VerdictKind::Valid => VerdictClass::Valid,
            VerdictKind::Gap => VerdictClass::Gap,
            VerdictKind::Unattested if lack == Some(Lack::PreferredMissing) => VerdictClass::Missing,
            VerdictKind::Unattested if lack == Some(Lack::Aggregate) => VerdictClass::Aggregate,
            VerdictKind::Unattested => VerdictClass::Unattested,
            VerdictKind::Expired => VerdictClass::Expired,
            VerdictKind::Invalid => VerdictClass::Invalid,
        }
    }
}

/// What follows from a class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Treatment {
    /// The route does not go inside: it is as if it had been withdrawn.
    pub reject: bool,
    /// Tagged so.
    pub large_community: Option<LargeCommunity>,
    /// MULTI_EXIT_DISC in place of the route's own: routers prefer the lowest among routes of one neighbour AS.
    pub med: Option<u32>,
    /// LOCAL_PREF; it goes out only where both ends of the pair are in one AS.
    pub local_pref: Option<u32>,
    /// Each such route is reported in the log.
    pub log: bool,
}

/// What follows from each class.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    treatments: BTreeMap<VerdictClass, Treatment>,
}

impl Default for Policy {
    /// Rejects and reports routes that are invalid, expired or malformed, and aggregates with an AS_SET (RFC 9774 section 3);
    /// all others pass unchanged.
    fn default() -> Self {
        let rejected = Treatment { reject: true, log: true, ..Treatment::default() };
        let classes = [VerdictClass::Aggregate, VerdictClass::Expired, VerdictClass::Invalid, VerdictClass::Malformed];
        Self { treatments: classes.into_iter().map(|class| (class, rejected)).collect() }
    }
}

impl Policy {
    /// Sets what follows from `class`.
    pub fn set(&mut self, class: VerdictClass, treatment: Treatment) {
        self.treatments.insert(class, treatment);
    }

    /// What follows from `class`.
    #[must_use]
    pub fn treatment(&self, class: VerdictClass) -> Treatment {
        self.treatments.get(&class).copied().unwrap_or_default()
    }

    /// The route as it is passed on; `None` if it is rejected. Tags of ours that came with it are removed: only this
    /// policy sets them.
    #[must_use]
    pub fn apply(&self, class: VerdictClass, attributes: &Attributes) -> Option<Attributes> {
        let treatment = self.treatment(class);
        if treatment.reject {
            return None;
        }
        let is_ours = |community: LargeCommunity| {
            self.treatments.values().any(|treatment| treatment.large_community == Some(community))
        };
        let mut edit = attributes.edit();
        edit.retain_large_communities(|community| !is_ours(community));
        if let Some(tag) = treatment.large_community {
            let mut communities: Vec<LargeCommunity> =
                attributes.large_communities().filter(|community| !is_ours(*community)).collect();
            communities.push(tag);
            edit.large_communities(&communities);
        }
        if treatment.med.is_some() {
            edit.med(treatment.med);
        }
        if treatment.local_pref.is_some() {
            edit.local_pref(treatment.local_pref);
        }
        Some(edit.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wayleave_bgp::Origin;

    #[test]
    fn a_route_is_tagged_by_us_alone() {
        let tag: LargeCommunity = "64497:1:1".parse().expect("a community");
        let other: LargeCommunity = "64498:7:7".parse().expect("a community");
        let mut policy = Policy::default();
        policy.set(VerdictClass::Valid, Treatment { large_community: Some(tag), ..Treatment::default() });
        policy.set(VerdictClass::Gap, Treatment { med: Some(50), ..Treatment::default() });
        let route = Attributes::builder().origin(Origin::Igp).large_communities(&[tag, other]).finish();
        let tags = |class| policy.apply(class, &route).map(|route| route.large_communities().collect::<Vec<_>>());
        assert_eq!(tags(VerdictClass::Valid), Some(vec![other, tag]));
        assert_eq!(tags(VerdictClass::Unattested), Some(vec![other]));
        assert_eq!(tags(VerdictClass::Invalid), None);
        assert_eq!(policy.apply(VerdictClass::Gap, &route).and_then(|route| route.med()), Some(50));
    }

    #[test]
    fn a_route_that_nothing_is_done_to_keeps_its_octets() {
        let route = Attributes::builder().origin(Origin::Igp).med(Some(7)).finish();
        assert_eq!(Policy::default().apply(VerdictClass::Gap, &route), Some(route));
    }
}

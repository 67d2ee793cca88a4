//! What an operator does with a conclusion: refuse the route, lower its preference, tag it, log it.

use serde::{Deserialize, Serialize};
use wayleave_bgp::LargeCommunity;
use wayleave_core::{Prefix, VerdictKind};

use crate::report::{Lack, Report};

/// What is done with a route of one conclusion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Action {
    /// Whether it is treated as withdrawn.
    pub reject: bool,
    /// What is added to its local preference.
    pub local_preference: i32,
    /// What is added to its large communities.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub large_community: Option<LargeCommunity>,
    /// Whether a line is logged.
    pub log: bool,
}

/// An action for each conclusion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Policy {
    /// Wholly proved, by an origin that may announce the prefix.
    pub valid: Action,
    /// Proved in parts.
    pub gap: Action,
    /// Nothing claimed, and nothing had to be.
    pub unattested: Action,
    /// Nothing claimed, though the origin's record says that its routes are better preferred with an attestation.
    pub preferred_missing: Action,
    /// Proved once.
    pub expired: Action,
    /// False, or without what must be there.
    pub invalid: Action,
}

impl Default for Policy {
    /// Invalid routes are rejected and logged, expired ones and those without a preferred attestation lie 50 lower.
    fn default() -> Self {
        let nothing = Action::default();
        Self {
            valid: nothing,
            gap: nothing,
            unattested: nothing,
            preferred_missing: Action { local_preference: -50, ..nothing },
            expired: Action { local_preference: -50, log: true, ..nothing },
            invalid: Action { reject: true, log: true, ..nothing },
        }
    }
}

impl Policy {
    /// What is done with `prefix` of the UPDATE that `report` is about.
    #[must_use]
    pub fn action(&self, report: &Report, prefix: &Prefix) -> &Action {
        match report.verdict_of(prefix).kind {
            VerdictKind::Valid => &self.valid,
            VerdictKind::Gap => &self.gap,
            VerdictKind::Unattested if report.lack == Some(Lack::PreferredMissing) => &self.preferred_missing,
            VerdictKind::Unattested => &self.unattested,
            VerdictKind::Expired => &self.expired,
            VerdictKind::Invalid => &self.invalid,
        }
    }
}

impl Action {
    /// The local preference after the action: RFC 4271 has it as an unsigned number of four octets.
    #[must_use]
    pub fn preference(&self, before: u32) -> u32 {
        before.saturating_add_signed(self.local_preference)
    }
}

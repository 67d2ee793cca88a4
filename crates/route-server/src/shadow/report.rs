//! What a comparison found, in a size that does not grow with the tables.

use std::collections::BTreeMap;

use wayleave_core::Asn;

use super::{Difference, Tables};
use crate::directory::{MemberSet, SlotId};

/// Differences of one cause, with its detail, that are kept as examples: our own limit.
pub const MAX_EXAMPLES: usize = 20;
/// Causes with different details of which examples are kept: our own limit.
const MAX_GROUPS: usize = 500;

/// How a member's two tables compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemberTotals {
    /// Prefixes for which the server gives it a route.
    pub given: u64,
    /// Prefixes for which Wayleave would.
    pub computed: u64,
    /// Prefixes with the same route and the same attributes in both tables.
    pub same: u64,
    /// Of these, those where Wayleave has several routes that are equal to the member, and the server's is one of them.
    pub equal_choice: u64,
    pub different: u64,
}

/// Routes of an announcer that every proxy refuses by one rule, whether or not the server gives them to anybody.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RefusedRoutes {
    pub announcer: SlotId,
    pub rule: String,
    pub routes: u64,
}

/// Differences of one cause, with one detail.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Group {
    pub count: u64,
    /// The first of them, [`MAX_EXAMPLES`] at most.
    pub examples: Vec<Difference>,
}

/// What a comparison found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    pub members: BTreeMap<SlotId, MemberTotals>,
    /// By the cause's name, then its detail.
    pub causes: BTreeMap<(&'static str, Option<String>), Group>,
    pub refused: Vec<RefusedRoutes>,
    /// Routes that the server learned, by announcer.
    pub learned: BTreeMap<SlotId, u64>,
    /// First ASes of learned routes that are no member's, and how many routes those are.
    pub strangers: BTreeMap<Option<Asn>, u64>,
    pub prefixes: u64,
}

impl Report {
    pub(super) fn new(members: &MemberSet, tables: &Tables) -> Self {
        let active = |member: &SlotId| members.active(*member).is_some();
        Self {
            members: tables.members_given().filter(active).map(|member| (member, MemberTotals::default())).collect(),
            causes: BTreeMap::new(),
            refused: Vec::new(),
            learned: BTreeMap::new(),
            strangers: tables.strangers().clone(),
            prefixes: tables.len() as u64,
        }
    }

    /// Differences of all causes.
    #[must_use]
    pub fn differences(&self) -> u64 {
        self.members.values().map(|member| member.different).sum()
    }

    /// Differences of a cause, whatever its detail.
    #[must_use]
    pub fn count(&self, cause: &str) -> u64 {
        self.causes.iter().filter(|((name, _), _)| *name == cause).map(|(_, group)| group.count).sum()
    }

    pub(super) fn note_learned(&mut self, announcer: SlotId, refused_by: Option<&str>) {
        *self.learned.entry(announcer).or_default() += 1;
        let Some(rule) = refused_by else { return };
        match self.refused.iter_mut().find(|known| known.announcer == announcer && known.rule == rule) {
            Some(known) => known.routes += 1,
            None => self.refused.push(RefusedRoutes { announcer, rule: rule.to_owned(), routes: 1 }),
        }
    }

    pub(super) fn note(
        &mut self,
        member: SlotId,
        is_given: bool,
        is_computed: bool,
        is_open_choice: bool,
        difference: &Option<Difference>,
    ) {
        let totals = self.members.entry(member).or_default();
        totals.given += u64::from(is_given);
        totals.computed += u64::from(is_computed);
        match difference {
            Some(_) => totals.different += 1,
            None if is_given && is_computed => {
                totals.same += 1;
                totals.equal_choice += u64::from(is_open_choice);
            }
            None => {}
        }
    }

    pub(super) fn keep(&mut self, difference: &Difference) {
        let cause = &difference.cause;
        let mut key = (cause.name(), cause.detail());
        if !self.causes.contains_key(&key) && self.causes.len() >= MAX_GROUPS {
            key.1 = None;
        }
        let group = self.causes.entry(key).or_default();
        group.count += 1;
        if group.examples.len() < MAX_EXAMPLES {
            group.examples.push(difference.clone());
        }
    }
}

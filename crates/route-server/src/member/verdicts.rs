//! Validation of received routes: which routes are validated, and what follows from the result.
//!
//! A route is validated before it is used, and only if it could become best: with the best verdict that it could get, it
//! would be in the best class of the routes to a prefix (the keychain paper's rule). A route whose result comes too late
//! for a ranking counts as not valid in that ranking. When the result comes, the member decides by its own ranking and
//! sends nothing more: the parties must not see whether or when a validation ended.

use std::collections::BTreeSet;
use std::time::Duration;

use wayleave_core::{Now, Prefix};

use super::receive::{Assessment, Validation};
use super::{Finding, Member, MemberOutput, Unvalidated};
use crate::frames::{Candidate, Instance};
use crate::object::Handle;

/// How long a route that its announcer replaced may stay while the new one is validated.
const SUCCESSOR_WAIT: Duration = Duration::from_secs(120);

impl Member {
    /// Requests the validation of those routes to a prefix that could become best.
    pub(super) fn request_validations(&mut self, prefix: Prefix) {
        let candidates = self.known_routes(&prefix);
        let assessments: Vec<Option<Assessment>> =
            candidates.iter().map(|candidate| self.assessment(candidate)).collect();
        if assessments.iter().flatten().all(|assessment| assessment.best_case.is_none()) {
            return;
        }
        let best_cases: Vec<Option<Assessment>> =
            assessments.iter().map(|assessment| assessment.map(with_best_case)).collect();
        let classes = self.class_of_each(&candidates, &best_cases);
        // As many as the router gets at least.
        let mut ordered: Vec<u8> = classes.iter().flatten().copied().collect();
        ordered.sort_unstable_by(|a, b| b.cmp(a));
        let least = ordered.get(usize::from(self.config.paths.max(1)) - 1).or(ordered.last()).copied();
        for ((candidate, assessment), class) in candidates.iter().zip(&assessments).zip(&classes) {
            if class.is_some() && *class >= least && assessment.is_some_and(|assessment| assessment.best_case.is_some())
            {
                self.request_validation(candidate.0);
            }
        }
    }

    fn request_validation(&mut self, handle: Handle) {
        let Some(route) =
            self.routes.get_mut(&handle).filter(|route| matches!(route.validation, Validation::NotRequested))
        else {
            return;
        };
        let Some(open) = &route.opened else { return };
        route.validation = Validation::Pending;
        let (slot, set) = (open.slot, open.set);
        let (prefixes, attributes) = (open.prefixes.clone(), open.signed().clone());
        self.awaited.insert(handle);
        let unvalidated = Unvalidated { handle, slot, prefixes, attributes, set };
        self.output.push_back(MemberOutput::Validate(Box::new(unvalidated)));
    }

    /// Takes the result of a validation, or a changed one.
    pub(super) fn on_findings(&mut self, handle: Handle, findings: Vec<Finding>) {
        self.on_kept_findings(&handle, &findings);
        let Some(route) = self.routes.get_mut(&handle) else { return };
        let Some(open) = route.opened.as_ref().filter(|open| open.prefixes.len() == findings.len()) else { return };
        let prefixes: BTreeSet<Prefix> = open.prefixes.iter().map(|nlri| nlri.prefix).collect();
        route.validation = Validation::Done(findings.iter().map(|finding| open.with_hops(finding)).collect());
        route.assessment = None;
        self.awaited.remove(&handle);
        self.counters.validated += 1;
        self.update_waiting_rankings(&prefixes);
        self.touched.extend(prefixes);
    }

    /// Updates rankings that concern one of these prefixes and have not been sent.
    pub(super) fn update_waiting_rankings(&mut self, prefixes: &BTreeSet<Prefix>) {
        let mut waiting = std::mem::take(&mut self.rankings_due);
        for due in &mut waiting {
            let Some(round) = self.rounds.remove(&due.seq) else { continue };
            let mut at = 0;
            for (candidates, _, prefix) in &round.multi {
                let end = at + candidates.len() * 2;
                if prefix.is_some_and(|prefix| prefixes.contains(&prefix)) {
                    let assessments: Vec<Option<Assessment>> =
                        candidates.iter().map(|one| self.assessment(one)).collect();
                    due.ranking[at..end].copy_from_slice(&self.ranking_row(candidates, &assessments));
                }
                at = end;
            }
            self.rounds.insert(due.seq, round);
        }
        self.rankings_due = waiting;
    }

    /// Whether what Select-Best chose is right: while it is in the best class. Without validation, and under the rules of the ranking,
    /// nothing can have changed that, and when results come no time is spent that depends on how many candidates were opened.
    pub(super) fn is_still_best(&mut self, prefix: &Prefix, chosen: Candidate) -> bool {
        let is_as_ranked = self.choices.get(prefix).is_some_and(|choice| choice.chosen_under == self.rules);
        if is_as_ranked && !self.config.validates && !self.not_competing.contains_key(prefix) {
            return self.is_accepted(&chosen);
        }
        self.is_best(prefix, chosen)
    }

    /// Whether the member's own order puts no other candidate above this one, which it may use.
    pub(super) fn is_best(&mut self, prefix: &Prefix, chosen: Candidate) -> bool {
        let candidates = self.known_routes(prefix);
        let classes = self.classes(&candidates);
        let best = classes.iter().filter_map(|(_, _, class)| *class).max();
        best.is_some() && classes.iter().any(|(_, candidate, class)| *candidate == chosen && *class == best)
    }

    /// Whether the installed route is still a candidate, but may no longer be used: by its verdict or by rules for import, which may have
    /// changed, or since its announcer's addresses did. One whose validation has no result yet is not refused.
    pub(super) fn is_refused(&mut self, prefix: &Prefix) -> bool {
        let Some(handle) = self.installed.get(prefix).map(|installed| installed.handle) else { return false };
        let candidates = self.known_routes(prefix);
        let of = |candidates: &Instance| candidates.iter().find(|(of, _)| *of == handle).copied();
        let assessment = of(&candidates).and_then(|candidate| self.assessment(&candidate));
        assessment.is_some_and(|assessment| assessment.rank.is_none() && assessment.best_case.is_none())
    }

    /// Whether the installed route was replaced by its announcer, and the new one is being validated: until that is
    /// done the old one stays, so that no traffic is lost over each new signature; but not for longer than
    /// [`SUCCESSOR_WAIT`], however often it is replaced.
    pub(super) fn waits_for_successor(&mut self, prefix: &Prefix, now: Now) -> bool {
        if !self.is_replaced(prefix) {
            return false;
        }
        let until = *self.successors.entry(*prefix).or_insert(now.instant + SUCCESSOR_WAIT);
        now.instant < until
    }

    /// Prefixes whose replaced route has stayed long enough.
    pub(super) fn late_successors(&self, now: Now) -> Vec<Prefix> {
        self.successors.iter().filter(|(_, until)| **until <= now.instant).map(|(prefix, _)| *prefix).collect()
    }

    fn is_replaced(&self, prefix: &Prefix) -> bool {
        let Some(installed) = self.installed.get(prefix) else { return false };
        let candidates = self.known_routes(prefix);
        let is_awaited = |(handle, _): &Candidate| {
            let open = self.routes.get(handle).and_then(|route| route.opened.as_ref());
            self.awaited.contains(handle) && open.is_some_and(|open| open.slot == installed.announcer)
        };
        !candidates.iter().any(|(handle, _)| *handle == installed.handle) && candidates.iter().any(is_awaited)
    }
}

/// The assessment with the best possible result of validation.
fn with_best_case(assessment: Assessment) -> Assessment {
    match assessment.best_case {
        Some((rank, verdict)) => Assessment { usable: true, verdict, rank: Some(rank), ..assessment },
        None => assessment,
    }
}

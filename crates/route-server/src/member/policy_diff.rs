//! What another policy would make of the routes that are there, for the member's own operator: nothing is changed, and none of it goes to
//! the parties.

use serde::Serialize;
use wayleave_bgp::Attributes;
use wayleave_core::Prefix;

use super::listing::{Part, RouteFilter};
use super::{Announcer, Member};
use crate::frames::Candidate;
use crate::policy::ranking::{Rank, rank_all, rank_alone};
use crate::policy::{Policy, export_decisions};

/// One route that another policy treats otherwise.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Difference {
    /// It was used, or could be, and is refused.
    Refused { prefix: Prefix, announcer: Announcer },
    /// It was refused, and may be used.
    Taken { prefix: Prefix, announcer: Announcer },
    /// Which routes to the prefix stand above which others is not as before, of those that both policies take.
    Ranked { prefix: Prefix },
    /// The member gets a route of the own router that it did not get.
    Exported { prefix: Prefix, receiver: Announcer },
    /// The member no longer gets it.
    Hidden { prefix: Prefix, receiver: Announcer },
}

impl Member {
    /// What `other` would treat otherwise of the routes to the first `visits` prefixes behind `after`.
    pub fn import_differences(&mut self, other: &Policy, after: Option<Prefix>, visits: usize) -> Part<Difference> {
        let prefixes = self.prefixes_of(&RouteFilter::default(), after, visits);
        let mut rows = Vec::new();
        for prefix in &prefixes {
            let candidates: Vec<Candidate> = self.known_routes(prefix).iter().copied().collect();
            let ranks: Vec<(u32, [Option<Rank>; 2])> =
                candidates.iter().filter_map(|candidate| self.ranks(candidate, other)).collect();
            for (slot, ranks) in &ranks {
                let (prefix, announcer) = (*prefix, self.announcer(*slot));
                match ranks {
                    [Some(_), None] => rows.push(Difference::Refused { prefix, announcer }),
                    [None, Some(_)] => rows.push(Difference::Taken { prefix, announcer }),
                    _ => {}
                }
            }
            let both = ranks.iter().filter(|(_, ranks)| ranks.iter().all(Option::is_some));
            let (old, new): (Vec<_>, Vec<_>) = both.map(|(_, [old, new])| (*old, *new)).unzip();
            if is_other_order(&rank_all(&self.policy, &old), &rank_all(other, &new)) {
                rows.push(Difference::Ranked { prefix: *prefix });
            }
        }
        Part { rows, after: prefixes.last().copied().filter(|_| prefixes.len() >= visits) }
    }

    /// The announcer of a route that is valid, and its ranks by both policies.
    fn ranks(&mut self, candidate: &Candidate, other: &Policy) -> Option<(u32, [Option<Rank>; 2])> {
        let assessment = self.assessment(candidate).filter(|assessment| assessment.usable)?;
        let open = self.routes.get(&candidate.0)?.opened.as_ref()?;
        let nlri = open.prefixes.get(usize::from(candidate.1))?;
        let announcer = self.set.as_ref()?.slot(open.slot)?;
        let input = open.rank_input(nlri, announcer, assessment.verdict);
        Some((open.slot, [&*self.policy, other].map(|policy| rank_alone(policy, &input))))
    }

    /// To whom `other` would let the router's routes go that did not have them, and the reverse, for the first `visits` prefixes behind `after`.
    #[must_use]
    pub fn export_differences(&self, other: &Policy, after: Option<Prefix>, visits: usize) -> Part<Difference> {
        let prefixes = self.own_prefixes(after, visits);
        let mut rows = Vec::new();
        for prefix in &prefixes {
            for (attributes, _) in self.announcements.own_routes(prefix) {
                self.compare_exports(*prefix, attributes, other, &mut rows);
            }
        }
        rows.dedup();
        Part { rows, after: prefixes.last().copied().filter(|_| prefixes.len() >= visits) }
    }

    fn compare_exports(&self, prefix: Prefix, attributes: &Attributes, other: &Policy, rows: &mut Vec<Difference>) {
        let Some(set) = &self.set else { return };
        let of =
            |policy: &Policy| export_decisions(prefix, attributes, self.config.slot, set, self.config.rs_asn, policy);
        for ((slot, before), (_, after)) in of(&self.policy).into_iter().zip(of(other)) {
            let receiver = self.announcer(slot);
            match (before.permits(), after.permits()) {
                (true, false) => rows.push(Difference::Hidden { prefix, receiver }),
                (false, true) => rows.push(Difference::Exported { prefix, receiver }),
                _ => {}
            }
        }
    }
}

/// Whether any two routes stand to each other otherwise by the second classes than by the first.
fn is_other_order(old: &[Option<u8>], new: &[Option<u8>]) -> bool {
    let pairs = || (0..old.len()).flat_map(|one| (0..one).map(move |other| (one, other)));
    pairs().any(|(one, other)| old[one].cmp(&old[other]) != new[one].cmp(&new[other]))
}

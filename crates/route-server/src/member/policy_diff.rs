//! What another policy would make of the routes that are there, for the member's own operator: nothing is changed, and none of it goes to
//! the parties.

use serde::Serialize;
use wayleave_bgp::Attributes;
use wayleave_core::{Asn, Prefix};

use super::announce::OwnState;
use super::listing::{Part, RouteFilter};
use super::{Announcer, Member};
use crate::frames::Candidate;
use crate::policy::ranking::{Rank, RankInput, rank_all, rank_alone};
use crate::policy::treatments::Treatments;
use crate::policy::{Imported, PerPeer, Policy, export_decisions};

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
    /// Both policies take it, and import rules change it otherwise for the member's router.
    Changed { prefix: Prefix, announcer: Announcer },
    /// The member gets a route of the own router that it did not get.
    Exported { prefix: Prefix, receiver: Announcer },
    /// The member no longer gets it.
    Hidden { prefix: Prefix, receiver: Announcer },
    /// The member gets it by both policies, with other hops, or with NO_EXPORT or NO_ADVERTISE by one of them alone.
    Treated { prefix: Prefix, receiver: Announcer },
    /// Receivers can read which peers its communities name, which they could not.
    Readable { prefix: Prefix },
}

/// A route that is valid, by the policy in force and by another one.
struct Compared {
    announcer: u32,
    ranks: [Option<Rank>; 2],
    /// Whether import rules change its attributes otherwise.
    is_changed: bool,
}

impl Member {
    /// What `other` would treat otherwise of the routes to the first `visits` prefixes behind `after`.
    pub fn import_differences(&mut self, other: &Policy, after: Option<Prefix>, visits: usize) -> Part<Difference> {
        let prefixes = self.prefixes_of(&RouteFilter::default(), after, visits);
        let mut rows = Vec::new();
        for prefix in &prefixes {
            let candidates: Vec<Candidate> = self.known_routes(prefix).iter().copied().collect();
            let all: Vec<Compared> =
                candidates.iter().filter_map(|candidate| self.compared(candidate, other)).collect();
            for route in &all {
                let (prefix, announcer) = (*prefix, self.announcer(route.announcer));
                match route.ranks {
                    [Some(_), None] => rows.push(Difference::Refused { prefix, announcer }),
                    [None, Some(_)] => rows.push(Difference::Taken { prefix, announcer }),
                    _ if route.is_changed => rows.push(Difference::Changed { prefix, announcer }),
                    _ => {}
                }
            }
            let both = all.iter().filter(|route| route.ranks.iter().all(Option::is_some));
            let (old, new): (Vec<_>, Vec<_>) = both.map(|route| route.ranks.into()).unzip();
            if is_other_order(&rank_all(&self.policy, &old), &rank_all(other, &new)) {
                rows.push(Difference::Ranked { prefix: *prefix });
            }
        }
        Part { rows, after: prefixes.last().copied().filter(|_| prefixes.len() >= visits) }
    }

    fn compared(&mut self, candidate: &Candidate, other: &Policy) -> Option<Compared> {
        let assessment = self.assessment(candidate).filter(|assessment| assessment.usable)?;
        let open = self.routes.get(&candidate.0)?.opened.as_ref()?;
        let nlri = open.prefixes.get(usize::from(candidate.1))?;
        let announcer = self.set.as_ref()?.slot(open.slot)?;
        let input = open.rank_input(nlri, announcer, assessment.verdict);
        let policies = [&*self.policy, other];
        let ranks = policies.map(|policy| rank_alone(policy, &input));
        Some(Compared { announcer: open.slot, ranks, is_changed: is_changed(policies, &input) })
    }

    /// To whom `other` would let the router's routes go that did not have them, the reverse, and what receivers would have otherwise, for the
    /// first `visits` prefixes behind `after`. Those that are not announced, whatever the policy, have no row.
    #[must_use]
    pub fn export_differences(&self, other: &Policy, after: Option<Prefix>, visits: usize) -> Part<Difference> {
        let prefixes = self.own_prefixes(after, visits);
        let mut rows = Vec::new();
        for prefix in &prefixes {
            let routes = self.announcements.own_routes(prefix).into_iter();
            for (attributes, _) in routes.filter(|(_, state)| !matches!(state, OwnState::Barred(_))) {
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
        let treatments = Treatments::read(attributes, self.config.rs_asn);
        let per_peer = [self.policy.per_peer(), other.per_peer()];
        let is_treated = |asn: Asn| {
            let [old, new] = per_peer.map(|per_peer| treatments.done_for(asn, per_peer));
            old != new
        };
        let mut goes_out = false;
        for ((slot, before), (_, after)) in of(&self.policy).into_iter().zip(of(other)) {
            let receiver = self.announcer(slot);
            goes_out |= after.permits();
            match (before.permits(), after.permits()) {
                (true, false) => rows.push(Difference::Hidden { prefix, receiver }),
                (false, true) => rows.push(Difference::Exported { prefix, receiver }),
                (true, true) if set.slot(slot).is_some_and(|slot| is_treated(slot.asn)) => {
                    rows.push(Difference::Treated { prefix, receiver });
                }
                _ => {}
            }
        }
        if goes_out && treatments.names_peers() && per_peer == [PerPeer::Private, PerPeer::Readable] {
            rows.push(Difference::Readable { prefix });
        }
    }
}

/// Whether the import rules of two policies that both take a route leave it with different attributes.
fn is_changed(policies: [&Policy; 2], input: &RankInput<'_>) -> bool {
    match policies.map(|policy| policy.import(&input.route())) {
        [Imported::Accepted(old), Imported::Accepted(new)] => {
            (old.set_med, &old.add_community) != (new.set_med, &new.add_community)
                && old.apply(input.attributes) != new.apply(input.attributes)
        }
        _ => false,
    }
}

/// Whether any two routes stand to each other otherwise by the second classes than by the first.
fn is_other_order(old: &[Option<u8>], new: &[Option<u8>]) -> bool {
    let pairs = || (0..old.len()).flat_map(|one| (0..one).map(move |other| (one, other)));
    pairs().any(|(one, other)| old[one].cmp(&old[other]) != new[one].cmp(&new[other]))
}

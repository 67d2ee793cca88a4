//! What was refused and credited to payers: for each of a bounded number of principals, and for all others together.
//!
//! Who is counted here has a packet with a right MAC, so that nobody makes entries in another's name.

use std::collections::HashMap;

use wayleave_packet::platypus::header::Principal;

use super::router::Reason;
use super::totals::SeededHash;
use crate::tally::Total;

/// Principals that are told apart, at most: those that come first.
pub const MOST_PAYERS: usize = 1_024;

/// What a payer sent that did not leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PayerCounters {
    /// Accepted and counted, then not sent, and so taken back.
    pub credited: Total,
    refused: [u64; Reason::OF_PAYERS],
}

impl PayerCounters {
    /// Packets that were refused for `reason`. A reason that a packet alone gives has no payer.
    #[must_use]
    pub fn refused(&self, reason: Reason) -> u64 {
        reason.of_payer().map_or(0, |number| self.refused[number])
    }
}

/// The counters of one thread.
#[derive(Clone, Debug)]
pub(super) struct Payers {
    of: HashMap<Principal, PayerCounters, SeededHash>,
    others: PayerCounters,
}

impl Payers {
    /// All memory is taken at once. `seed` must be random.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            of: HashMap::with_capacity_and_hasher(MOST_PAYERS, SeededHash::new(seed)),
            others: PayerCounters::default(),
        }
    }

    #[cold]
    pub(super) fn refuse(&mut self, principal: Principal, reason: Reason) {
        if let Some(number) = reason.of_payer() {
            self.counters(principal).refused[number] += 1;
        }
    }

    pub(super) fn credit(&mut self, principal: Principal, octets: u64) {
        let credited = &mut self.counters(principal).credited;
        *credited = credited.plus(Total { packets: 1, octets: octets.into() });
    }

    fn counters(&mut self, principal: Principal) -> &mut PayerCounters {
        let Self { of, others } = self;
        if of.len() < MOST_PAYERS || of.contains_key(&principal) { of.entry(principal).or_default() } else { others }
    }

    /// Those of each principal, in no order, and those of all others under `None`.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Option<Principal>, &PayerCounters)> {
        let others = std::iter::once((None, &self.others));
        self.of.iter().map(|(principal, counters)| (Some(*principal), counters)).chain(others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_comes_when_all_places_are_taken_counts_among_the_others() {
        let mut payers = Payers::new(1);
        let principal = |number: usize| Principal::new(number as u32).expect("24 bits");
        for number in 0..MOST_PAYERS + 10 {
            payers.refuse(principal(number), Reason::Rate);
            payers.credit(principal(number), 100);
        }
        payers.refuse(principal(0), Reason::Rate);
        let of = |who| payers.iter().find(|(principal, _)| *principal == who).map(|(_, counters)| *counters);
        let (first, others) = (of(Some(principal(0))).expect("a place"), of(None).expect("always"));
        assert_eq!((first.refused(Reason::Rate), first.credited), (2, Total { packets: 1, octets: 100 }));
        assert_eq!((others.refused(Reason::Rate), others.credited), (10, Total { packets: 10, octets: 1_000 }));
        assert_eq!((others.refused(Reason::Replayed), payers.iter().count()), (0, MOST_PAYERS + 1));
    }
}

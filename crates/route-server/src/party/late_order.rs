//! Which late rankings are evaluated, at party 1.
//!
//! Those of all members and rounds that are at both parties wait in one queue. Once a tick at most, the first of them are evaluated
//! together, as work that can wait: so what is late takes no more than a share of the engine. What a member has evaluated late of that
//! which changed just now it pays from a budget of its own; what it is sent again it has paid for already. What is over, or finds no time
//! in that share, the member's own order answers, and it is told so.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use wayleave_core::Instant;

use super::round::LATER_JOB_COMPARATORS;
use crate::frames::{MAX_LATE_ROUNDS, MAX_LATE_ROWS};

/// Comparators of the late rankings that are evaluated together: our own limit; one ranking is taken whatever it costs.
pub(super) const TOGETHER: usize = LATER_JOB_COMPARATORS;
/// Rounds of which late rankings are awaited, and octets of these, about: our own limits. Beyond them those of the first round are
/// answered by their members' own orders.
pub(super) const MAX_ROUNDS: usize = MAX_LATE_ROUNDS / 2;
pub(super) const MAX_OCTETS: usize = 32 << 20;
/// How much of its budget a member has at once, when nothing of it was late for long.
const BURST: Duration = Duration::from_secs(8);
/// For how long the status shows that a member was late.
const SHOWN: Duration = Duration::from_secs(60);

/// Party 1's part of late rankings.
#[derive(Default)]
pub(super) struct LateOrder {
    /// Those that are at both parties: batch and slot, in the order in which they came to be.
    pub queue: VecDeque<(u64, u32)>,
    /// When the next ones may be evaluated.
    pub next: Instant,
    /// Until when each member has paid.
    paid: BTreeMap<u32, Instant>,
    /// When each member was last late, and when its budget was last spent.
    late: BTreeMap<u32, Instant>,
    spent: BTreeMap<u32, Instant>,
    /// Members whose own orders decided, and that have not been in time since.
    owed: BTreeSet<u32>,
}

impl LateOrder {
    /// The member pays for so many comparators from a budget of `each` a second. `false` if it cannot.
    pub(super) fn pay(&mut self, slot: u32, comparators: usize, each: u32, now: Instant) -> bool {
        let cost = Duration::from_nanos(comparators as u64 * 1_000_000_000 / u64::from(each.max(1)));
        let paid = self.paid.entry(slot).or_default();
        let next = (*paid).max(now) + cost;
        let pays = next.since(now) <= BURST;
        if pays {
            *paid = next;
        }
        pays
    }

    pub(super) fn note_late(&mut self, slot: u32, now: Instant) {
        self.late.insert(slot, now);
    }

    /// The member's budget is spent. Returns whether that is new.
    pub(super) fn note_spent(&mut self, slot: u32, now: Instant) -> bool {
        self.spent.insert(slot, now).is_none_or(|at| now.since(at) >= SHOWN)
    }

    /// The member's own order decided where its ranking was late.
    pub(super) fn owe(&mut self, slot: u32) {
        self.owed.insert(slot);
    }

    /// Whether it did since the member was last in time, which it is now.
    pub(super) fn is_owed(&mut self, slot: u32) -> bool {
        self.owed.remove(&slot)
    }

    /// The link to the peer party is gone: all members are compared with the next one.
    pub(super) fn end_session(&mut self) {
        self.queue.clear();
        self.owed.clear();
    }

    /// Members that were late in the last minute.
    pub(super) fn late(&self, now: Instant) -> Vec<u32> {
        self.late.iter().filter(|(_, at)| now.since(**at) < SHOWN).map(|(slot, _)| *slot).collect()
    }

    /// The next rankings to evaluate together, each by what `cost` says of it. Those of which it says nothing are awaited no more.
    pub(super) fn take(&mut self, cost: impl Fn(u64, u32) -> Option<(usize, [u8; 16])>) -> Vec<(u64, u32, [u8; 16])> {
        let (mut rows, mut all) = (Vec::new(), 0);
        while let Some((seq, slot)) = self.queue.front().copied() {
            if let Some((comparators, row)) = cost(seq, slot) {
                if !rows.is_empty() && all + comparators > TOGETHER || rows.len() >= MAX_LATE_ROWS {
                    break;
                }
                all += comparators;
                rows.push((seq, slot, row));
            }
            self.queue.pop_front();
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_pays_from_its_own_budget_and_not_from_anothers() {
        let (mut order, at) = (LateOrder::default(), |secs: u64| Instant(secs * 1_000_000_000));
        assert!(order.pay(7, 10_000, 2_000, at(100)));
        assert!(!order.pay(7, 10_000, 2_000, at(100)), "more than its burst");
        assert!(order.pay(7, 6_000, 2_000, at(100)), "what was refused cost nothing");
        assert!(order.pay(8, 16_000, 2_000, at(100)));
        assert!(!order.pay(7, 2_001, 2_000, at(101)));
        assert!(order.pay(7, 2_000, 2_000, at(101)));
    }

    #[test]
    fn so_many_are_evaluated_together_and_one_in_any_case() {
        let mut order = LateOrder::default();
        order.queue.extend([(1, 7), (1, 8), (2, 7), (3, 9), (4, 7)]);
        let cost = |seq: u64, slot: u32| match (seq, slot) {
            (1, 8) => None,
            (3, _) => Some((TOGETHER * 2, [3; 16])),
            _ => Some((TOGETHER / 2, [1; 16])),
        };
        let taken = |order: &mut LateOrder| order.take(cost).iter().map(|row| row.0).collect::<Vec<_>>();
        assert_eq!([taken(&mut order), taken(&mut order), taken(&mut order)], [vec![1, 2], vec![3], vec![4]]);
    }
}

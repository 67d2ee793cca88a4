//! Late rankings: which count, which are evaluated, and of which their members are told that their own orders decide.
//!
//! [`LateOrder`](super::super::late_order::LateOrder) has the queue and the budgets, [`LateRounds`](super::super::late::LateRounds) the
//! rankings; here is what follows from them at party 1.

use std::collections::{BTreeSet, VecDeque};

use wayleave_core::Instant;

use super::super::PartyEvent;
use super::super::late::{LateRound, waits_until};
use super::super::late_order;
use super::super::state::State;
use super::Sequencer;
use crate::frames::{Miss, PartyFrame, ToMember};

impl Sequencer {
    /// A ranking is at both parties, perhaps.
    pub(super) fn ranked(&mut self, party: &mut State, seq: u64, slot: u32) {
        let Some((expected_at, is_late)) = party.rounds.matched(seq, slot) else { return };
        let now = party.now();
        self.allowance.note(slot, now.since(expected_at), now);
        if !is_late {
            return;
        }
        let Some(((_, live), _)) = party.rounds.late.cost(seq, slot) else { return };
        if self.late.pay(slot, live, party.env.config.budget.late, now) {
            // It is later than others, and in time for the probation, which is for those that do not rank.
            party.links.note_in_time(slot);
            self.punctuality.in_time(slot, now);
            self.late.queue.push_back((seq, slot));
            return;
        }
        party.links.note_overspent(slot, now);
        if self.late.note_spent(slot, now) {
            party.event(PartyEvent::LateRankings { slot });
        }
        self.refuse_late(party, (seq, slot), Miss::Budget);
    }

    /// A late ranking is not evaluated: its member's own order decides, until the member is in time again.
    fn refuse_late(&mut self, party: &mut State, (seq, slot): (u64, u32), why: Miss) {
        party.rounds.late.drop_member(seq, slot);
        party.env.counters.late_refused += 1;
        self.late.owe(slot);
        party.send_to_member(slot, &ToMember::Missed { seq, why });
    }

    /// Has late rankings evaluated, and ends the rounds of which none is awaited any more.
    pub(super) fn order_late(&mut self, party: &mut State) {
        self.expire_late(party);
        let now = party.now();
        if now < self.late.next {
            return;
        }
        let rounds = &party.rounds.late;
        let cost = |seq, slot| rounds.cost(seq, slot).map(|((all, _), row)| (all, row));
        let rows = if rounds.is_idle() { self.late.take(cost) } else { Vec::new() };
        let mut ended = rounds.emptied();
        // What the rows are of ends with them, if nothing else is awaited of it.
        if !rows.is_empty() {
            let taken: BTreeSet<(u64, u32)> = rows.iter().map(|(seq, slot, _)| (*seq, *slot)).collect();
            let is_done = |(seq, round): &(u64, &LateRound)| {
                round.slots().next().is_some() && round.slots().all(|slot| taken.contains(&(*seq, slot)))
            };
            ended.extend(rounds.iter().filter(is_done).map(|(seq, _)| seq));
        }
        if rows.is_empty() && ended.is_empty() {
            return;
        }
        self.late.next = now + party.batches.tick();
        if let Err(what) = party.rounds.late.take(&rows, &ended) {
            party.close_peer(what);
            return;
        }
        party.env.counters.late_rankings += rows.len() as u64;
        party.links.note_heard(now);
        party.send_to_peer(&PartyFrame::Late { rows, ended });
    }

    /// Late rankings that did not come until the deadline, or for which the engine had no time, and those beyond the limits.
    fn expire_late(&mut self, party: &mut State) {
        let (now, wait) = (party.now(), party.env.config.rank_wait);
        let is_over = |party: &State| {
            party.rounds.late.len() > late_order::MAX_ROUNDS || party.rounds.late.octets() > late_order::MAX_OCTETS
        };
        let mut seqs: VecDeque<u64> = party.rounds.late.iter().map(|(seq, _)| seq).collect();
        while is_over(party) && seqs.len() > 1 {
            let Some(seq) = seqs.pop_front() else { break };
            let slots: Vec<u32> = party.rounds.late.get(seq).into_iter().flat_map(LateRound::slots).collect();
            slots.into_iter().for_each(|slot| self.refuse_late(party, (seq, slot), Miss::Share));
        }
        for seq in seqs {
            let Some(round) = party.rounds.late.get(seq).filter(|round| now >= round.deadline) else { continue };
            for slot in round.absent() {
                // Unless it went with another one.
                let Some(missing) = party.rounds.late.missing(seq, slot) else { continue };
                party.rounds.late.drop_member(seq, slot);
                self.missed_ranking(party, (seq, slot), &missing);
            }
            let Some(round) = party.rounds.late.get(seq).filter(|round| now >= waits_until(round, wait)) else {
                continue;
            };
            let slots: Vec<u32> = round.slots().collect();
            slots.into_iter().for_each(|slot| self.refuse_late(party, (seq, slot), Miss::Share));
        }
    }

    /// When something of late rankings is due.
    pub(super) fn late_due(&self, party: &State) -> Option<Instant> {
        let (rounds, wait) = (&party.rounds.late, party.env.config.rank_wait);
        let has_work = !self.late.queue.is_empty() && rounds.is_idle() || !rounds.emptied().is_empty();
        let next = has_work.then_some(self.late.next);
        let expires = rounds
            .iter()
            .filter(|(_, round)| round.slots().next().is_some())
            .map(|(_, round)| if round.absent().is_empty() { waits_until(round, wait) } else { round.deadline });
        expires.chain(next).min()
    }
}

//! Rankings, evaluations and setup, as far as they go over several owners: what comes in goes to the rounds, what the engine and the
//! rounds yield goes to members and to the peer party.

use wayleave_mpc::BitRows;

use super::round::{RankShare, Ranking};
use super::state::State;
use super::supply::SetupDone;
use super::{PartyEvent, PartyOutput};
use crate::frames::{EngineStream, LATE, PartyFrame, ToMember};

impl State {
    /// Takes a member's ranking. Returns whether it counts.
    pub(super) fn rank(&mut self, slot: u32, seq: u64, row: [u8; 16], share: RankShare) -> bool {
        match self.rounds.rank(seq, slot, row, share) {
            Ranking::Counts => return true,
            Ranking::Late => self.env.counters.missed_rankings += 1,
            Ranking::Wrong(what) => self.bad_member_frame(slot, what),
        }
        false
    }

    /// Starts the evaluation with the rankings that party 1 named, and without those that are late.
    pub(super) fn evaluate(&mut self, seq: u64, rows: &[(u32, [u8; 16])], late: &[u32]) -> Result<(), &'static str> {
        self.rounds.start(seq, (rows, late), self.env.now())?;
        self.finish_round(seq);
        Ok(())
    }

    pub(super) fn engine_frame(&mut self, stream: EngineStream, step: u64, bytes: Vec<u8>) -> Result<(), &'static str> {
        self.rounds.receive(stream, step, bytes).map_err(|what| match what {
            None => "an engine message without a session",
            Some(what) => {
                self.env.event(PartyEvent::Engine { what });
                "an engine message out of turn"
            }
        })
    }

    fn send_engine(&mut self, stream: EngineStream, step: u64, bytes: Vec<u8>) {
        self.env.counters.engine_messages += 1;
        self.env.counters.engine_bytes += bytes.len() as u64;
        self.send_to_peer(&PartyFrame::Engine { stream, step, bytes });
    }

    fn engine_failed(&mut self, what: String) {
        self.event(PartyEvent::Engine { what });
        self.close_peer("invalid message of the two-party evaluation");
    }

    /// Gives out the next job of setup.
    pub(super) fn run_setup(&mut self) {
        match self.rounds.next_setup() {
            Ok(None) => {}
            Ok(Some(job)) => self.env.emit(PartyOutput::Setup(job)),
            Err(what) => self.engine_failed(what),
        }
    }

    /// Takes a job of setup back. One of a link that has gone is dropped with all that it made.
    pub(super) fn setup_done(&mut self, done: SetupDone) {
        match self.rounds.setup_done(done, self.links.peer_link(), self.env.now()) {
            Ok(None) => {}
            Ok(Some((step, bytes))) => self.send_engine(EngineStream::Setup, step, bytes),
            Err(what) => self.engine_failed(what),
        }
    }

    /// Takes the evaluation as far as it can go.
    pub(super) fn run_engine(&mut self) {
        while self.has_work() {
            let (messages, finished) = match self.rounds.pump() {
                Ok(done) => done,
                Err(what) => return self.engine_failed(what),
            };
            for (step, bytes) in messages {
                self.send_engine(EngineStream::Evaluation, step, bytes);
            }
            let Some(outputs) = finished else { return };
            let Some(seq) = self.rounds.take_work() else { return };
            if self.is_exporting(seq) {
                self.exports_done(&outputs);
            } else {
                self.job_done(seq, &outputs);
            }
        }
    }

    /// Gives the engine its next work, if it has none. `false` if there is nothing to do.
    fn has_work(&mut self) -> bool {
        if !self.rounds.is_free() {
            return self.rounds.engine().is_some();
        }
        if !self.rounds.is_at_work() {
            let next = self.next_work();
            self.rounds.take_up(next);
        }
        let Some(seq) = self.rounds.work() else { return false };
        let begun = if self.is_exporting(seq) { self.begin_export() } else { self.begin_job(seq) };
        begun.unwrap_or_else(|what| {
            self.event(PartyEvent::Engine { what });
            self.close_peer("an evaluation that cannot begin");
            false
        })
    }

    /// Party 1 chooses what the engine does next, and tells party 2.
    fn next_work(&mut self) -> Option<u64> {
        if !self.env.is_party_one() {
            return self.rounds.next_ordered();
        }
        let seq = self.rounds.choose(self.batches.exporting().map(|exporting| exporting.seq()))?;
        self.links.note_heard(self.env.now());
        self.send_to_peer(&PartyFrame::Next { seq });
        Some(seq)
    }

    /// Gives the engine the next evaluation of a round. `false` while the pool lacks what it takes.
    fn begin_job(&mut self, seq: u64) -> Result<bool, String> {
        let (recommendation, table) = (self.membership.recommendation(), self.objects.table());
        let of_announcer = |handle: &_| recommendation.get(&table.announcer(handle)?).copied();
        let comparators = self.rounds.begin_job(seq, of_announcer)?;
        self.env.counters.comparators += comparators.unwrap_or(0);
        Ok(comparators.is_some())
    }

    /// Sends each member its share of the results of an evaluation.
    fn job_done(&mut self, seq: u64, outputs: &BitRows) {
        if seq == LATE {
            self.env.counters.lanes += outputs.lanes() as u64;
            for (slot, seq, share) in self.rounds.late_job_done(outputs) {
                self.send_to_member(slot, &ToMember::Outcome { seq, first: 0, share });
            }
            return;
        }
        let Some((first, shares)) = self.rounds.job_done(seq, outputs) else { return };
        self.env.counters.lanes += outputs.lanes() as u64;
        for (slot, share) in shares {
            self.send_to_member(slot, &ToMember::Outcome { seq, first, share });
        }
        self.finish_round(seq);
    }

    /// Tells the members of each round now and then that it goes on, if it does: they wait for as long as that.
    pub(super) fn report_progress(&mut self) {
        for (seq, slots) in self.rounds.take_progress(self.env.now()) {
            for slot in slots {
                self.send_to_member(slot, &ToMember::Progress { seq });
            }
        }
    }

    /// Forgets a round once all of it is evaluated.
    pub(super) fn finish_round(&mut self, seq: u64) {
        if self.rounds.finish(seq, self.env.now()) {
            self.env.counters.rounds += 1;
        }
    }
}

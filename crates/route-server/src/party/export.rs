//! Export-All in mode `mpc`: before a batch's ticks leave, the parties multiply policy and key of each object for each slot that
//! gets it (SIXPACK, section 5.4). A result is sent and forgotten: who gets the object again later, after it was away, gets one
//! that is computed anew, so that nothing has to be durable at both parties together.

use std::collections::{BTreeMap, VecDeque};

use wayleave_mpc::{BitRows, Demand};

use super::PartyNumber;
use super::delivery::PendingRound;
use super::engine::MAX_TARGET;
use super::state::State;
use crate::frames::Tick;
use crate::object::{ExportMode, Handle, dummy_key};
use crate::object_table::ObjectTable;

/// Lanes of one evaluation: our own limit on what is in memory at once.
const JOB_LANES: usize = 1 << 15;
/// Objects of one batch for which correlations are kept ahead, for all who are connected.
const READY_OBJECTS: usize = 128;
/// Octets of a lane of inputs: one bit of policy, key and dummy.
const LANE: usize = 33;

/// A batch whose ticks wait for Export-All.
pub(super) struct Exporting {
    seq: u64,
    /// By slot, each with deliveries whose shares are still to be computed.
    ticks: Vec<(u32, Tick)>,
    round: PendingRound,
    jobs: VecDeque<Job>,
}

/// One evaluation: objects, each for some slots.
#[derive(Default)]
struct Job {
    objects: Vec<(Handle, Vec<ShareDestination>)>,
    lanes: usize,
}

/// Where a share goes: the number of the tick, and of the delivery in it.
#[derive(Clone, Copy)]
struct ShareDestination {
    tick: usize,
    delivery: usize,
}

impl Exporting {
    pub(super) fn seq(&self) -> u64 {
        self.seq
    }

    /// Whether all shares are computed.
    pub(super) fn is_done(&self) -> bool {
        self.jobs.is_empty()
    }

    /// The member has gone: nobody will wait for its ranking.
    pub(super) fn leave(&mut self, slot: u32) {
        self.round.without_tick.insert(slot);
    }
}

impl State {
    /// Computes the shares of `ticks`, then sends them; at once if there are none to compute. The same happens at both parties,
    /// with the same lanes: which slots get which objects follows from the batch.
    pub(super) fn export(&mut self, seq: u64, ticks: Vec<(u32, Tick)>, round: PendingRound) {
        let jobs = jobs(&ticks);
        self.batches.begin_export(Exporting { seq, ticks, round, jobs });
        self.expect_exports();
        self.finish_exports();
    }

    /// Whether the ticks of this batch wait for Export-All.
    pub(super) fn is_exporting(&self, seq: u64) -> bool {
        self.batches.exporting().is_some_and(|exporting| exporting.seq == seq)
    }

    /// Gives the engine the next part of Export-All. `false` if the pool lacks something for it, which is supplied.
    pub(super) fn begin_export(&mut self) -> Result<bool, String> {
        let Some((exporting, engine)) = self.batches.exporting().zip(self.rounds.engine_mut()) else {
            return Ok(false);
        };
        let job = exporting.jobs.front().ok_or("nothing to export")?;
        let program = engine.export_program();
        if !engine.has(&Demand::of(&program, job.lanes)) {
            return Ok(false);
        }
        let config = &self.env.config;
        let inputs = inputs(job, &exporting.ticks, self.objects.table(), (&config.exchange, config.number));
        engine.evaluate(&program, &inputs)?;
        Ok(true)
    }

    /// Puts the results of the job at the front where they go.
    pub(super) fn exports_done(&mut self, outputs: &BitRows) {
        let Some(exporting) = self.batches.exporting_mut() else { return };
        let Some(job) = exporting.jobs.pop_front() else { return };
        self.env.counters.exports += outputs.lanes() as u64;
        let lanes = outputs.to_lanes();
        let places = job.objects.iter().flat_map(|(_, places)| places);
        for (place, share) in places.zip(lanes.as_chunks::<16>().0) {
            exporting.ticks[place.tick].1.deliver[place.delivery].share = *share;
        }
        self.finish_exports();
    }

    /// Sends the ticks once all is computed, and waits for rankings.
    fn finish_exports(&mut self) {
        let Some(mut done) = self.batches.exported() else { return };
        for (slot, tick) in std::mem::take(&mut done.ticks) {
            if !self.send_tick(slot, tick) && self.env.is_party_one() {
                done.leave(slot);
            }
        }
        self.begin_round(done.seq, done.round);
    }

    /// Raises the pool's target to a burst of [`READY_OBJECTS`] for all who are connected. It follows from public shape alone.
    fn expect_exports(&mut self) {
        let members = self.batches.active().len();
        let is_needed = self.env.config.export == ExportMode::Mpc && members > 0;
        let Some(engine) = self.rounds.engine_mut().filter(|_| is_needed) else { return };
        let lane = Demand::of(&engine.export_program(), 1);
        engine.keep(&(lane * (members * READY_OBJECTS).min(MAX_TARGET / 2)));
    }
}

/// What is to be computed for these ticks: all lanes of an object together, objects in an order that both parties have.
fn jobs(ticks: &[(u32, Tick)]) -> VecDeque<Job> {
    let mut by_object: BTreeMap<Handle, Vec<ShareDestination>> = BTreeMap::new();
    for (tick, (_, content)) in ticks.iter().enumerate() {
        for (delivery, deliver) in content.deliver.iter().enumerate() {
            by_object.entry(deliver.handle).or_default().push(ShareDestination { tick, delivery });
        }
    }
    let mut jobs = VecDeque::new();
    let mut job = Job::default();
    for (handle, places) in by_object {
        // An object has at most as many lanes as there are slots, which is far below the limit.
        if job.lanes + places.len() > JOB_LANES && job.lanes > 0 {
            jobs.push_back(std::mem::take(&mut job));
        }
        job.lanes += places.len();
        job.objects.push((handle, places));
    }
    if job.lanes > 0 {
        jobs.push_back(job);
    }
    jobs
}

/// This party's shares of a job's inputs, as the circuit's rows have them: policy (1), key (128), dummy (128, of party 1 alone).
fn inputs(job: &Job, ticks: &[(u32, Tick)], table: &ObjectTable, (exchange, number): (&str, PartyNumber)) -> BitRows {
    let mut lanes = vec![0u8; job.lanes * LANE];
    let mut places_left = lanes.chunks_exact_mut(LANE);
    for (handle, places) in &job.objects {
        let entry = table.by_handle(handle);
        let factors = entry.and_then(|entry| Some((entry.factors()?, entry.header.description.epoch)));
        let ((key, policy), epoch) = factors.unwrap_or_default();
        let key = u128::from_le_bytes(key);
        let dummy = match number {
            PartyNumber::One => u128::from_le_bytes(*dummy_key(exchange, epoch).expose()),
            PartyNumber::Two => 0,
        };
        for (place, lane) in places.iter().zip(&mut places_left) {
            let slot = ticks[place.tick].0 as usize;
            let bit = policy.get(slot / 8).map_or(0, |byte| byte >> (slot % 8) & 1);
            lane[..16].copy_from_slice(&(u128::from(bit) | key << 1).to_le_bytes());
            lane[16..32].copy_from_slice(&(key >> 127 | dummy << 1).to_le_bytes());
            lane[32] = u8::from(dummy >> 127 == 1);
        }
    }
    BitRows::from_lanes(257, job.lanes, &lanes).expect("one lane of 257 bits for each place")
}

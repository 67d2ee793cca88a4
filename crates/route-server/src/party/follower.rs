//! Party 2: takes up what party 1 sequences.

use std::collections::BTreeMap;
use std::sync::Arc;

use wayleave_core::Now;

use super::batch::Applied;
use super::engine;
use super::reconcile::CHUNK;
use super::role::Role;
use super::state::{Departure, Stage, State};
use crate::directory::Directory;
use crate::frames::{InventoryRow, PartyFrame, Refusal, SessionId, Step};
use crate::object_table::Effects;

/// How far the number of a batch may be above the last one. Only batches that were rejected lie between.
const MAX_SEQ_STEP: u64 = 1 << 16;

/// Batches that party 1 may make before it takes a member set or a removal from here.
const MAX_OFFERED: u32 = 64;

/// Party 2's part. All that it decides follows from what party 1 sends, but for its operator's member sets and removals,
/// which party 1 must take: neither operator can keep a member whom the other removed.
#[derive(Default)]
pub(super) struct Follower {
    /// The directory that party 1 has not put into a batch yet, and how many batches it made since.
    offered: Option<(Arc<[u8]>, u32)>,
}

impl Role for Follower {
    fn peer_frame_before_ready(&mut self, party: &mut State, frame: PartyFrame, now: Now) -> Result<(), &'static str> {
        match frame {
            PartyFrame::Reconciled { .. } => self.peer_frame(party, frame, now),
            _ => Err("a frame before the inventories were compared"),
        }
    }

    fn peer_frame(&mut self, party: &mut State, frame: PartyFrame, now: Now) -> Result<(), &'static str> {
        match frame {
            PartyFrame::Reconciled { epoch, set, drop, differ, high_water, view } => {
                reconcile(party, epoch, &set, &drop, &differ, &high_water, view)?;
                self.offer(party)
            }
            PartyFrame::Propose { seq, steps } => self.apply_proposal(party, seq, &steps, now),
            PartyFrame::Go { seq } => deliver_accepted(party, seq, now),
            PartyFrame::Evaluate { seq, rows } => party.evaluate(seq, &rows),
            PartyFrame::Refill { demand } => refill(party, &demand),
            PartyFrame::Drop { objects } => {
                for (slot, version) in objects {
                    if party.take_pending(slot, version).is_some() {
                        party.refuse(slot, version, Refusal::Mismatch);
                    }
                }
                Ok(())
            }
            _ => Err("a frame that only party 1 may get"),
        }
    }

    /// Party 1 concludes from the inventory of party 2, which goes out at once.
    fn peer_greeted(&mut self, party: &mut State) {
        let rows = party.table.inventory();
        let mut chunks: Vec<Vec<InventoryRow>> = rows.chunks(CHUNK).map(<[InventoryRow]>::to_vec).collect();
        let last = chunks.pop().unwrap_or_default();
        for rows in chunks {
            party.send_to_peer(&PartyFrame::Inventory { rows, high_water: Vec::new(), more: true });
        }
        let high_water = party.table.high_waters();
        party.send_to_peer(&PartyFrame::Inventory { rows: last, high_water, more: false });
    }

    fn new_member_set(&mut self, party: &mut State, next: &Directory) {
        self.offered = Some((next.encode().into(), 0));
        if party.peer_ready() {
            // What is in force was checked a moment ago.
            let _ = self.offer(party);
        }
    }

    fn is_at_rest(&self, _party: &State) -> bool {
        self.offered.is_none()
    }

    fn member_greeted(&mut self, party: &mut State, slot: u32, session: SessionId, select_best: bool) {
        party.send_to_peer(&PartyFrame::Joined { slot, session, select_best });
    }

    fn departed(&mut self, party: &mut State, departure: Departure) {
        if let Departure::Member { slot, session } = departure {
            party.send_to_peer(&PartyFrame::Left { slot, session });
        }
    }

    fn object_submitted(&mut self, party: &mut State, slot: u32, version: u64, digest: [u8; 32]) {
        party.send_to_peer(&PartyFrame::Holding { objects: vec![(slot, version, digest)] });
    }

    fn ranking_submitted(&mut self, party: &mut State, seq: u64, slot: u32, row: [u8; 16]) {
        party.send_to_peer(&PartyFrame::Ranked { seq, slot, row });
    }

    fn batch_persisted(&mut self, party: &mut State, seq: u64, applied: Box<Applied>, _now: Now) {
        party.send_to_peer(&PartyFrame::Accept { seq, view: applied.view });
        party.stage = Stage::Accepted { seq, applied };
    }
}

impl Follower {
    /// Applies a batch that party 1 proposed, or rejects it if an object of it is not here.
    fn apply_proposal(&mut self, party: &mut State, seq: u64, steps: &[Step], now: Now) -> Result<(), &'static str> {
        if !matches!(party.stage, Stage::Idle) || seq <= party.seq {
            return Err("a batch proposed out of turn");
        }
        if seq - party.seq > MAX_SEQ_STEP {
            return Err("a batch number too far ahead");
        }
        let lacks = |step: &Step| match step {
            Step::Object { slot, version, digest } => {
                let pending = party.pending.get(slot).and_then(|waiting| waiting.get(version));
                let same = pending.is_some_and(|object| object.digest == *digest);
                (!same).then_some((*slot, *version))
            }
            _ => None,
        };
        let missing: Vec<(u32, u64)> = steps.iter().filter_map(lacks).collect();
        if !missing.is_empty() {
            party.send_to_peer(&PartyFrame::Reject { seq, missing });
            return Ok(());
        }
        party.apply(self, seq, steps, now)?;
        let is_done = match &self.offered {
            Some((offered, _)) => party.newer_set(offered)?.is_none(),
            None => true,
        };
        match self.offered.as_mut().filter(|_| !is_done) {
            None => self.offered = None,
            Some((_, batches)) if *batches < MAX_OFFERED => *batches += 1,
            Some(_) => return Err("it does not take a member set or a removal of this party's operator"),
        }
        Ok(())
    }

    /// Sends party 1 the directory of this party's operator, unless it is in force by now.
    fn offer(&mut self, party: &mut State) -> Result<(), &'static str> {
        let Some((offered, batches)) = &mut self.offered else { return Ok(()) };
        if party.newer_set(offered)?.is_none() {
            self.offered = None;
            return Ok(());
        }
        *batches = 0;
        party.send_to_peer(&PartyFrame::Members { set: Arc::clone(offered) });
        Ok(())
    }
}

/// Delivers the batch of which party 1 has the same view.
fn deliver_accepted(party: &mut State, seq: u64, now: Now) -> Result<(), &'static str> {
    match std::mem::replace(&mut party.stage, Stage::Idle) {
        Stage::Accepted { seq: accepted, applied } if accepted == seq => {
            party.deliver(seq, &applied, now);
            Ok(())
        }
        stage => {
            party.stage = stage;
            Err("a go for another batch")
        }
    }
}

/// Fills the pool with the chunks that party 1 named.
fn refill(party: &mut State, demand: &[(u32, u64)]) -> Result<(), &'static str> {
    if !matches!(party.stage, Stage::Idle) {
        return Err("a refill out of turn");
    }
    let chunks = engine::from_frame(demand)?;
    let engine = party.engine.as_mut().ok_or("a refill without a session")?;
    engine.fill(&chunks).map_err(|_| "a refill that is not possible")?;
    party.stage = Stage::Refill;
    Ok(())
}

/// Does what party 1 concluded from the inventories; both must then have the same view.
fn reconcile(
    party: &mut State,
    epoch: u64,
    set: &Arc<[u8]>,
    drop: &[(u32, u64)],
    differ: &[(u32, u64, u32, Vec<u16>)],
    high_water: &[(u32, u64)],
    view: [u8; 32],
) -> Result<(), &'static str> {
    if party.peer_ready() || party.engine.is_none() {
        return Err("a reconciliation out of turn");
    }
    if epoch < party.epoch {
        return Err("an epoch that is past");
    }
    let mut effects = Effects::default();
    party.adopt_newer_set(set, &mut effects)?;
    party.epoch = epoch;
    for (slot, version) in high_water {
        party.table.saw(*slot, *version);
    }
    for (slot, version) in drop {
        party.table.drop_object(*slot, *version, &mut effects);
    }
    for (slot, version, width, dead) in differ {
        party.table.narrow(*slot, *version, *width);
        party.table.mark_dead(*slot, *version, dead, &mut effects);
        effects.marked.insert((*slot, *version));
    }
    party.table.reset_view(party.epoch, &party.directory.id().hash);
    if party.table.view() != view {
        return Err("after the inventories were compared the views differ");
    }
    party.agreed(&effects);
    let joined: Vec<PartyFrame> = party
        .members
        .iter()
        .filter_map(|(slot, m)| {
            m.session.map(|session| PartyFrame::Joined { slot: *slot, session, select_best: m.select_best })
        })
        .collect();
    for frame in joined {
        party.send_to_peer(&frame);
    }
    let digest = |slot: u32, (version, object): (&u64, &super::state::PendingObject)| (slot, *version, object.digest);
    let of_slot = |(slot, waiting): (&u32, &BTreeMap<u64, super::state::PendingObject>)| {
        waiting.iter().map(|object| digest(*slot, object)).collect::<Vec<_>>()
    };
    let objects: Vec<(u32, u64, [u8; 32])> = party.pending.iter().flat_map(of_slot).collect();
    for chunk in objects.chunks(CHUNK) {
        party.send_to_peer(&PartyFrame::Holding { objects: chunk.to_vec() });
    }
    Ok(())
}

//! What the two parties do differently: party 1 sequences ([`Sequencer`](super::sequencer::Sequencer)), party 2 follows
//! ([`Follower`](super::follower::Follower)).

use std::collections::BTreeMap;

use wayleave_core::{Instant, Now};

use super::batch::Applied;
use super::compare::Holding;
use super::state::{Departure, PendingObject, Stage, State};
use crate::directory::Directory;
use crate::frames::{BudgetLeft, PartyFrame, SessionId};

/// A party's part in the protocol between the two. Each method that does nothing by default concerns one party only.
pub(super) trait Role: Send {
    /// A frame of the peer party, other than its hello and the engine's. `Err` says how the peer party erred.
    fn peer_frame(&mut self, party: &mut State, frame: PartyFrame, now: Now) -> Result<(), &'static str>;

    /// Before the inventories were compared, only frames that compare them may come.
    fn peer_frame_before_ready(&mut self, party: &mut State, frame: PartyFrame, now: Now) -> Result<(), &'static str>;

    /// The link to the peer party is up; the hello goes out next.
    fn peer_linked(&mut self, _party: &mut State) {}

    /// The hello to the peer party has gone out.
    fn peer_greeted(&mut self, _party: &mut State) {}

    fn member_greeted(&mut self, _party: &mut State, _slot: u32, _session: SessionId, _select_best: bool) {}

    /// The peer party has granted credit.
    fn peer_granted(&mut self, _party: &mut State) {}

    /// The credit of members has changed ([`State::flow_changed`]).
    fn flow_changed(&mut self, party: &mut State) {
        party.flow_changed.clear();
    }

    fn departed(&mut self, party: &mut State, departure: Departure);

    /// This party took a member's object, which waits for its other half now.
    fn object_submitted(&mut self, _party: &mut State, _slot: u32, _version: u64, _digest: [u8; 32]) {}

    /// This party refused a member's object, and told the member why.
    fn object_refused(&mut self, _party: &mut State, _slot: u32, _version: u64) {}

    /// This party took a member's ranking.
    fn ranking_submitted(&mut self, _party: &mut State, _seq: u64, _slot: u32, _row: [u8; 16]) {}

    /// This party got a member's ranking too late for its round: batch and slot.
    fn ranking_was_late(&mut self, _party: &mut State, _of: (u64, u32), _row: [u8; 16], _now: Now) {}

    /// Slots for whose rankings nobody waits.
    fn on_probation(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Slots that wait to be sent everything.
    fn waiting(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Slots that get nothing until they have caught up.
    fn behind(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Slots of members that asked for everything too often, and get it later.
    fn deferred(&self) -> Vec<u32> {
        Vec::new()
    }

    /// At party 1, what a member may cost, and what is left of that.
    fn budget_of(&self, _party: &State, _slot: u32) -> Option<BudgetLeft> {
        None
    }

    /// A member requested everything again.
    fn resync(&mut self, _party: &mut State, _slot: u32) {}

    /// A member says what it holds. `Err` says how it erred.
    fn member_holds(&mut self, _party: &mut State, _slot: u32, _held: Holding) -> Result<(), &'static str> {
        Err("a frame meant for the other party")
    }

    /// A newer directory of this party's operator, which has been checked.
    fn new_member_set(&mut self, party: &mut State, next: &Directory);

    fn new_recommendation(&mut self, _party: &mut State, _recommendation: BTreeMap<u32, u8>) {}

    /// The object that a step of a batch names.
    fn take_object(&mut self, party: &mut State, slot: u32, version: u64) -> Option<PendingObject> {
        party.take_pending(slot, version)
    }

    /// A batch made the member active.
    fn member_synced(&mut self, _slot: u32) {}

    /// A batch made the member inactive.
    fn member_inactive(&mut self, _slot: u32, _now: Now) {}

    /// A batch began an epoch; returns the recommendation for it, if that changes.
    fn epoch_began(&mut self, _party: &State) -> Option<BTreeMap<u32, u8>> {
        None
    }

    /// The store holds what the batch changed.
    fn batch_persisted(&mut self, party: &mut State, seq: u64, applied: Box<Applied>, now: Now);

    /// Proposes a batch, if it is time.
    fn propose(&mut self, _party: &mut State, _now: Now) {}

    /// Starts the evaluation of a round, if it is time.
    fn start_evaluation(&mut self, _party: &mut State, _now: Now) {}

    /// Orders correlations, if the pool is short of them.
    fn supply(&mut self, _party: &mut State, _now: Now) {}

    /// Does what is due by the clock alone.
    fn sweep(&mut self, _party: &mut State, _now: Now) {}

    /// When this role next has something to do by the clock.
    fn deadline(&self, _party: &State) -> Option<Instant> {
        None
    }

    /// Whether this party can go on only when the peer party sends something.
    fn awaits_peer(&self, party: &State) -> bool {
        is_in_agreement(party) || !party.rounds.is_empty()
    }

    /// Whether everything that was given to this role has had its effect.
    fn is_at_rest(&self, _party: &State) -> bool {
        true
    }

    /// Whether the pool of correlations holds what it should.
    fn is_stocked(&self, _party: &State) -> bool {
        true
    }
}

/// Whether the parties agree on a batch, on what is stored, or compute: each then waits for the other.
pub(super) fn is_in_agreement(party: &State) -> bool {
    match &party.stage {
        Stage::Idle | Stage::Persisting { .. } => {
            party.work.is_some() || party.peer.as_ref().is_some_and(|peer| !peer.ready)
        }
        Stage::Proposed { .. } | Stage::Accepted { .. } | Stage::Exporting(_) => true,
    }
}

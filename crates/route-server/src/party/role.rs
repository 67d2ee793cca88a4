//! What the two parties do differently: party 1 sequences ([`Sequencer`](super::sequencer::Sequencer)), party 2 follows
//! ([`Follower`](super::follower::Follower)).

use std::collections::BTreeMap;
use std::time::Duration;

use wayleave_core::Instant;

use super::batch::Applied;
use super::compare::Holding;
use super::lack::{Half, Named};
use super::links::Departure;
use super::state::State;
use crate::directory::Directory;
use crate::frames::{BudgetLeft, PartyFrame, SessionId};

/// What happened, or what it is time for, as far as it concerns a party's role.
pub(super) enum RoleEvent {
    /// The link to the peer party is up; the hello goes out next.
    PeerLinked,
    /// The peer party's hello has come, so that the version between the two is known.
    PeerGreeted,
    /// A frame of the peer party, other than its hello and the engine's.
    PeerFrame(PartyFrame),
    /// The peer party has granted credit.
    PeerGranted,
    /// A member has begun its session.
    MemberGreeted {
        slot: u32,
        session: SessionId,
        select_best: bool,
    },
    /// A link is gone.
    Departed(Departure),
    /// This party took a member's object, which waits for its other half now.
    Submitted {
        slot: u32,
        version: u64,
    },
    /// This party refused a member's object, and told the member why.
    Refused {
        slot: u32,
        version: u64,
    },
    /// This party took a member's ranking.
    Ranked {
        seq: u64,
        slot: u32,
        row: [u8; 16],
    },
    /// This party got a member's ranking too late for its round.
    RankedLate {
        seq: u64,
        slot: u32,
        row: [u8; 16],
    },
    /// A member says what it holds.
    Holds {
        slot: u32,
        holding: Holding,
    },
    /// A member answers a question: what it holds of some buckets.
    Named {
        slot: u32,
        half: Half,
        question: u32,
        named: Named,
    },
    /// A newer directory of this party's operator, which has been checked.
    NewMemberSet(Box<Directory>),
    NewRecommendation(BTreeMap<u32, u8>),
    /// The store holds what the batch changed.
    Persisted {
        seq: u64,
        applied: Box<Applied>,
    },
    /// A batch may be proposed, if it is time.
    Propose,
    /// The evaluation of a round may start, if it is time.
    StartEvaluation,
    /// Correlations may be ordered, if the pool is short of them.
    Supply,
    /// The whole step is done: the credit of members may have changed with it.
    FlowChanged,
    /// What is due by the clock alone.
    Sweep,
}

/// A party's part in the protocol between the two.
pub(super) trait Role: Send {
    /// Takes an event. What it does goes to the owners of the party's state, and leaves by their queue of effects; what does not concern
    /// this role it passes over.
    ///
    /// # Errors
    /// How the peer party erred, or the member whose frame it is.
    fn on(&mut self, party: &mut State, event: RoleEvent) -> Result<(), &'static str>;

    /// When this role next has something to do by the clock.
    fn deadline(&self, party: &State) -> Option<Instant>;

    /// Whether this party can go on only when the peer party sends something.
    fn awaits_peer(&self, party: &State) -> bool;

    /// Whether everything that was given to this role has had its effect.
    fn is_at_rest(&self, party: &State) -> bool;

    /// Whether the pool of correlations holds what it should.
    fn is_stocked(&self, _party: &State) -> bool {
        true
    }

    /// At party 1, what a member may cost, and what is left of that.
    fn budget_of(&self, _party: &State, _slot: u32) -> Option<BudgetLeft> {
        None
    }

    /// At party 1, how it stands with members.
    fn status(&self, _party: &State, _now: Instant) -> RoleStatus {
        RoleStatus::default()
    }
}

/// How it stands with members, by slot, ascending but for `waiting`.
#[derive(Default)]
pub(super) struct RoleStatus {
    /// Those for whose rankings nobody waits.
    pub on_probation: Vec<u32>,
    /// Those whose rankings were late lately, and how much later than by the schedule they may come.
    pub late: Vec<u32>,
    pub rank_allowance: Duration,
    /// Those that wait to be sent what they lack, in the order of their turns.
    pub waiting: Vec<u32>,
    /// Those that get nothing until they have caught up.
    pub behind: Vec<u32>,
    /// Those that asked for it too often, and get it later.
    pub deferred: Vec<u32>,
}

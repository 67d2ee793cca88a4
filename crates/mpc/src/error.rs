//! Errors, typed by who erred: a misbehaving peer, or our caller.

use thiserror::Error;

use crate::demand::Width;
use crate::party::Role;

/// Why a round failed. After any error the machine that returned it has wiped its secrets, and every later round fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// The peer sent what no honest peer sends; the link should be dropped.
    #[error("{peer}: {fault}")]
    Peer { peer: Role, fault: Fault },
    /// Our caller's mistake.
    #[error(transparent)]
    Caller(#[from] Misuse),
}

/// How a peer broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// A message of another length than the public shape gives.
    #[error("message of {got} bytes, expected {expected}")]
    Length { expected: usize, got: usize },
    /// A version of the protocol that we do not speak.
    #[error("protocol version {0} is not supported")]
    Version(u8),
    /// Both ends claim the same role, or the role is unknown.
    #[error("it claims to be party {0}, as this end does, or an unknown party")]
    Role(u8),
    /// The two ends disagree about the columns of a group.
    #[error("its OT extension has groups of {0} columns, ours has others")]
    Group(u8),
    /// The two ends disagree about the session.
    #[error("the peer's session id differs from this end's")]
    Session,
    /// A message of another circuit, layer, chunk or place in the pool than ours: the two ends are out of step.
    #[error("its message belongs to another circuit, layer, chunk or pool position than ours (out of step)")]
    OutOfStep,
    /// Bits past the last lane are set.
    #[error("its message has padding bits set")]
    Padding,
    /// A point of the base OTs is refused.
    #[error("base OT point {index} is {fault}")]
    Point {
        /// 0 for the one in the greeting, else 1 to 256.
        index: usize,
        fault: PointFault,
    },
    /// What it sent of its trees of seeds is not of one tree. Whoever guesses at our secret fails like this.
    #[error("the seeds of its correlations failed their check, which nobody fails who follows the protocol")]
    Trees,
    /// The transfers of a chunk failed SoftSpokenOT's consistency check. Whoever guesses at our secret fails like this.
    #[error("its correlations failed their check, which nobody fails who follows the protocol")]
    Transfers,
}

/// Why a point is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PointFault {
    /// Not the one canonical encoding of a Ristretto point (RFC 9496 section 4.3.1); covers points of low order.
    #[error("not canonical")]
    NotCanonical,
    #[error("the identity")]
    Identity,
    /// A repetition: in this message, or of our own point.
    #[error("repeated")]
    Repeated,
}

/// How our caller erred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Misuse {
    /// A round after the end, or after an error.
    #[error("round called after the protocol ended")]
    Ended,
    /// A first round with a message, or a later one without.
    #[error("round called out of turn: the first takes no message, every other one takes one")]
    OutOfTurn,
    /// A round of setup without a requested chunk.
    #[error("setup round without a requested chunk")]
    NoChunk,
    /// A chunk's count is zero, too large, or no multiple of 128.
    #[error("a chunk of {0} correlations: the count must be a multiple of 128, within the limit")]
    ChunkCount(usize),
    /// Correlations of another session, another party, or out of order.
    #[error("correlations of another session or party, or not next in this pool")]
    ForeignCorrelations,
    /// Correlations past the pool's limit.
    #[error("the pool is full: its limit is {0} bytes")]
    PoolFull(usize),
    /// An evaluation from a pool without any correlations so far, so that it has no session and no role.
    #[error("the pool has no session yet")]
    NoSession,
    /// Inputs with another number of rows than the circuit's.
    #[error("{got} input rows given, the circuit has {expected}")]
    InputRows { expected: usize, got: usize },
}

/// Why an evaluation cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StartError {
    /// The pool has too few correlations; none was taken.
    #[error("the pool has {have} correlations of width {width}, {need} are needed", width = width.bits())]
    NotEnough { width: Width, have: usize, need: usize },
    /// Our caller's mistake.
    #[error(transparent)]
    Caller(#[from] Misuse),
}

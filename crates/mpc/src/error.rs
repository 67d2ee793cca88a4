//! Errors, typed by who erred: a misbehaving peer, or our caller.

use thiserror::Error;

use crate::demand::Width;
use crate::party::Role;

/// Why a round did not happen. After any error the machine that gave it has wiped its secrets and gives no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// The peer sent what no honest peer sends; the link should be dropped.
    #[error("{peer}: {fault}")]
    Peer {
        /// The party that erred.
        peer: Role,
        /// What it did.
        fault: Fault,
    },
    /// Our caller's mistake.
    #[error(transparent)]
    Caller(#[from] Misuse),
}

/// What a peer did wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// A message of another length than the public shape gives.
    #[error("message of {got} bytes where {expected} were due")]
    Length {
        /// Bytes due.
        expected: usize,
        /// Bytes that came.
        got: usize,
    },
    /// A version of the protocol that we do not speak.
    #[error("protocol version {0}")]
    Version(u8),
    /// Both ends claim one role, or the role is unknown.
    #[error("role {0} claimed")]
    Role(u8),
    /// The two ends disagree about the session.
    #[error("another session id")]
    Session,
    /// A message of another circuit, layer, chunk or place in the pool than ours: the two ends are out of step.
    #[error("out of step")]
    OutOfStep,
    /// Bits past the last lane are set.
    #[error("padding bits are set")]
    Padding,
    /// A point of the base transfers is refused.
    #[error("point {index} of the base transfers is {fault}")]
    Point {
        /// Its place: 0 for the one in the greeting, else 1 to 128.
        index: usize,
        /// Why.
        fault: PointFault,
    },
}

/// Why a point is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PointFault {
    /// Not the one canonical encoding of a Ristretto point (RFC 9496 section 4.3.1); covers points of low order.
    #[error("not canonical")]
    NotCanonical,
    /// The identity.
    #[error("the identity")]
    Identity,
    /// Seen before: in this message, or as a point of ours.
    #[error("repeated")]
    Repeated,
}

/// How our caller erred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Misuse {
    /// A round after the end, or after an error.
    #[error("this machine has ended")]
    Ended,
    /// A first round with a message, or a later one without.
    #[error("the first round takes no message and every other one takes one")]
    Turn,
    /// A round of setup without a chunk asked for.
    #[error("no chunk was asked for")]
    NothingAsked,
    /// A chunk's count is zero, too large, or no multiple of 128.
    #[error("a chunk of {0} correlations")]
    ChunkCount(usize),
    /// Stock of another session, another party, or out of order.
    #[error("stock that does not continue this pool")]
    ForeignStock,
    /// Stock past the pool's limit.
    #[error("the pool's limit of {0} bytes")]
    PoolFull(usize),
    /// An evaluation from a pool that never took any stock, so that it has no session and no role.
    #[error("the pool has no session yet")]
    NoSession,
    /// Inputs with another number of rows than the circuit's.
    #[error("{got} input rows, the circuit has {expected}")]
    InputRows {
        /// The circuit's.
        expected: usize,
        /// What came.
        got: usize,
    },
}

/// Why an evaluation cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StartError {
    /// The pool has too little stock; nothing was taken.
    #[error("{have} correlations of width {width}, {need} needed", width = width.bits())]
    NotEnough {
        /// Of which width.
        width: Width,
        /// How many there are.
        have: usize,
        /// How many it takes.
        need: usize,
    },
    /// Our caller's mistake.
    #[error(transparent)]
    Caller(#[from] Misuse),
}

//! What a proxy is told at construction and later, what it wants done, and what it counts.

use std::sync::Arc;

use serde::Serialize;
use wayleave_bgp::session::ConnectionId;
use wayleave_bgp::{AttributeCode, Nlri};
use wayleave_core::{Asn, Prefix};

use super::handover::Handover;
use super::session_pair::{self, EndConfig, PairEvent, Side};
use crate::attest::AttestError;
use crate::clock_doubt::ClockDoubt;
use crate::grant::GrantError;
use crate::leaf::{LeafKey, Tree};
use crate::pipeline::jobs::{Done, Job, Outcome};
use crate::pipeline::keys::few_time::SignaturesLeft;
use crate::pipeline::policy::{Policy, VerdictClass};
use crate::pki::View;
use crate::report::Report;
use crate::validate::Rules;

/// The longest value that is sent to a peer without extended messages: BIRD keeps 1,024 of a message's 4,096 octets
/// for itself, and the other attributes take their part.
pub const MOST_OCTETS: usize = 2_800;
/// Likewise with extended messages.
pub const MOST_OCTETS_EXTENDED: usize = 60_000;

/// One pair's part of the configuration.
#[derive(Clone, Debug)]
pub struct PairOptions {
    /// Its name for people.
    pub name: String,
    /// How each end is reached: inside, then outside.
    pub ends: [EndConfig; 2],
    /// Octets of an attestation that the outside peer takes, at most.
    pub most: usize,
    /// Likewise with extended messages.
    pub most_extended: usize,
    /// Whether keys are handed over with the outside peer.
    pub handover: Handover,
}

/// The configuration of a proxy.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// The AS whose proxy this is.
    pub asn: Asn,
    /// The attribute's type code.
    pub attribute: AttributeCode,
    /// The code of the capability that offers keys.
    pub capability: u8,
    /// What is required of every chain.
    pub rules: Rules,
    /// Seconds by which clocks may be wrong.
    pub uncertainty: u64,
    /// Minutes that what is signed here holds.
    pub lifetime: u16,
    /// Bits of strength, a multiple of 16, below which no neighbour may sign after us.
    pub least_strength: u16,
    /// What follows from each verdict.
    pub policy: Policy,
    /// Own prefixes that are signed, with those within them; `None`: all.
    pub own: Option<Vec<Prefix>>,
    /// The pairs.
    pub pairs: Vec<PairOptions>,
}

/// What the world tells a proxy.
#[derive(Debug)]
pub enum Input {
    /// Of one pair, by its place.
    Pair(usize, session_pair::Input),
    /// Work that was asked for is done.
    Done(Done),
    /// What is known of origins has changed.
    View(Arc<View>),
    /// The directories of the exchanges have changed.
    Directories(Arc<Vec<Tree>>),
    /// What follows from verdicts has changed.
    Policy(Policy),
    /// What [`Output::Persist`] asked for is durable.
    Persisted(u64),
}

/// What a proxy wants done.
#[derive(Debug)]
pub enum Output {
    /// Open a connection, as in [`session_pair::Output::Connect`].
    Connect {
        /// The pair's place.
        pair: usize,
        /// Which side.
        side: Side,
        /// Which attempt.
        attempt: u64,
    },
    /// Send these octets.
    Send {
        /// The pair's place.
        pair: usize,
        /// Which side.
        side: Side,
        /// Where.
        connection: ConnectionId,
        /// Whole messages.
        bytes: Vec<u8>,
    },
    /// Close the connection, once what was sent is out.
    Close {
        /// The pair's place.
        pair: usize,
        /// Which side.
        side: Side,
        /// Which.
        connection: ConnectionId,
    },
    /// Run this, on any thread, and bring back [`Input::Done`].
    Work(Job),
    /// Make durable that the few-time key `public` may have signed with every index below `limit`, then bring back
    /// [`Input::Persisted`].
    Persist {
        /// Rises by one each time.
        id: u64,
        /// The key's name in the store: its encoded public half.
        public: Vec<u8>,
        /// Indices below it count as used after a restart.
        limit: u64,
    },
    /// Something happened.
    Event(Event),
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// To a pair's sessions.
    Pair(usize, PairEvent),
    /// The outside peer offers these keys; none: it does not attest.
    Offered(usize, Vec<LeafKey>),
    /// A route of a class that is to be told.
    Verdict {
        /// The pair's place.
        pair: usize,
        /// Which route.
        nlri: Nlri,
        /// What was concluded.
        class: VerdictClass,
        /// Why.
        report: Arc<Report>,
    },
    /// Routes went out with the attestation that they came with.
    NotExtended(usize, Vec<Nlri>, AttestError),
    /// Routes did not go out: no attestation was small enough.
    TooLong(usize, Vec<Nlri>, usize),
    /// Routes did not go out: the keys are spent.
    Exhausted(usize, Vec<Nlri>),
    /// An attestation is older than one which the same origin had sent the same way: perhaps a replay.
    Older {
        /// The pair's place.
        pair: usize,
        /// Which route.
        nlri: Nlri,
        /// Whose attestation.
        origin: Asn,
        /// Its sequence.
        have: u64,
        /// The newest one's.
        newest: u64,
    },
    /// The outside peer handed over keys that were not taken.
    GrantRefused(usize, GrantError),
    /// A few-time key will end: make another.
    KeyEnds(SignaturesLeft),
    /// Work panicked: a fault of ours. These routes go nowhere, and are tried again later.
    Failed {
        /// The pair's place.
        pair: usize,
        /// What was being done.
        what: &'static str,
        /// With which routes.
        routes: Vec<Nlri>,
    },
    /// The wall clock was set by so many seconds.
    ClockStepped(i64),
    /// Most origins disagree with our clock; or no longer.
    ClockInDoubt(Option<ClockDoubt>),
}

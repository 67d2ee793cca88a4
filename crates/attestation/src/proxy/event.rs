//! The proxy's configuration, inputs, outputs and events.

use std::collections::HashMap;
use std::sync::Arc;

use wayleave_bgp::Nlri;
use wayleave_bgp::peer::TcpRequest;
use wayleave_core::Asn;

use super::handover::Handover;
use super::session_pair::{self, EndConfig, PairEvent, Side};
use crate::grant::GrantError;
use crate::leaf::{KeyId, LeafKey, Tree};
use crate::pipeline::policy::Policy;
use crate::pipeline::{Job, JobResult, PipelineConfig, ProcessEvent, Reserve, RouteEvent};
use crate::pki::View;
use crate::sign::KeyRing;

/// The longest value that is sent to a peer without extended messages: BIRD keeps 1,024 of a message's 4,096 octets
/// for itself, and the other attributes take their part.
pub const MAX_OCTETS: usize = 2_800;
/// Likewise with extended messages.
pub const MAX_OCTETS_EXTENDED: usize = 60_000;
/// What the routes of a pair may take, in octets: two full tables with attestations of some thousand octets.
pub const MOST_MEMORY: usize = 8 << 30;

/// The configuration of one pair.
#[derive(Clone, Debug)]
pub struct PairOptions {
    pub name: String,
    /// How each end is reached: inside, then outside.
    pub ends: [EndConfig; 2],
    /// Octets of an attestation that the outside peer takes, at most.
    pub max_octets: usize,
    /// Likewise with extended messages.
    pub max_octets_extended: usize,
    /// Octets that the pair's routes may take.
    pub most_memory: usize,
    /// Whether keys are handed over on the session with the outside peer.
    pub handover: Handover,
}

/// The configuration of a proxy.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    pub pipeline: PipelineConfig,
    /// The code of the capability that offers keys.
    pub capability: u8,
    /// Bits of strength, a multiple of 16, below which no neighbour may sign after us.
    pub least_strength: u16,
    /// Whether all who extend what this AS signs must have post-quantum suites: see [`crate::leaf::Leaf::requiring_post_quantum`].
    pub require_post_quantum: bool,
    pub pairs: Vec<PairOptions>,
}

/// Pairs are named by their index in [`ProxyConfig::pairs`].
#[derive(Debug)]
pub enum Input {
    Pair(usize, session_pair::Input),
    /// A job of [`Output::Job`] is done.
    JobDone(JobResult),
    /// The PKI lists other keys, records or origins.
    View(Arc<View>),
    /// The trees over the members of the exchanges (one for each member set, old and new) have changed. `run attest` gives none.
    Directories(Arc<Vec<Tree>>),
    Policy(Policy),
    /// The reserve with this id is durable.
    Persisted(u64),
    /// Whether the system says that the wall clock is synchronised; to be repeated every second or so. Until the first time it
    /// is not.
    ClockSynchronised(bool),
    /// The AS's keys, the preferred first, of which some may be new; by encoded public key the last slot of time in which a few-time key
    /// may have signed.
    Keys(KeyRing, HashMap<Vec<u8>, u64>),
}

#[derive(Debug)]
pub enum Output {
    /// For the driver of the connections of one side of a pair.
    Tcp {
        pair: usize,
        side: Side,
        request: TcpRequest,
    },
    /// Run this on any thread, and return its result as [`Input::JobDone`].
    Job(Job),
    /// Make this durable, then return its id as [`Input::Persisted`].
    Persist(Reserve),
    Event(Event),
}

#[derive(Debug)]
pub enum Event {
    /// Of a pair's sessions.
    Pair(usize, PairEvent),
    /// The outside peer offers these keys; none: it does not attest.
    Offered(usize, Vec<LeafKey>),
    /// Of a pair's routes.
    Route {
        pair: usize,
        event: RouteEvent,
    },
    /// An attestation has a lower sequence (`have`) than the newest that the same origin sent the same way: perhaps a
    /// replay.
    Older {
        pair: usize,
        nlri: Nlri,
        origin: Asn,
        have: u64,
        newest: u64,
    },
    /// The outside peer has sent so many wrong signatures that its routes are validated alone, within a budget.
    Suspect(usize),
    /// The outside peer handed over a key that was not taken.
    GrantRefused(usize, GrantError),
    /// Some of these keys of the AS are new, and all routes are signed again. `signs`: the key that signs now, the first of all that is
    /// registered.
    NewKeys {
        keys: Vec<KeyId>,
        signs: Option<KeyId>,
        /// Whether the AS has registered keys, so that others sign nothing.
        is_bound: bool,
    },
    Process(ProcessEvent),
}

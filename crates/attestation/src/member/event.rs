//! The configuration, inputs, outputs and events of a member's attestation.

use std::collections::BTreeSet;
use std::sync::Arc;

use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::{Afi, Asn, VerdictKind};

use crate::leaf::LeafKey;
use crate::pipeline::policy::Policy;
use crate::pipeline::{Job, JobResult, PipelineConfig, ProcessEvent, Reserve, RouteEvent};
use crate::pki::View;

/// What other members' routes may take, in octets.
pub const MOST_MEMORY: usize = 4 << 30;

/// What a member calls a route that it has opened.
pub type RouteId = [u8; 32];

/// The configuration of a member's attestation.
#[derive(Clone, Debug)]
pub struct MemberAttestationConfig {
    pub pipeline: PipelineConfig,
    /// Octets of an attestation, at most: it must fit the messages of every member's router.
    pub max_octets: usize,
    /// Octets that the routes of other members may take with what is known of them, at most; those of one announcer take at most
    /// a quarter.
    pub most_memory: usize,
}

#[derive(Debug)]
pub enum Input {
    /// The member's router sent an UPDATE. What it withdraws counts first.
    RouterUpdate {
        withdrawn: Vec<Nlri>,
        announced: Vec<Nlri>,
        attributes: Option<Attributes>,
    },
    /// The member's router has sent all routes.
    RouterEndOfRib,
    /// The session with the member's router is down, and its routes are gone.
    RouterDown,
    /// The session is lost, and of its routes these stay announced, and signed, until the router has said what it still has.
    RouterLost {
        stays: BTreeSet<Nlri>,
    },
    /// Those of them of this family that the router has not announced again are gone.
    StaleGone(Afi),
    /// There is a new member set.
    Members {
        /// The set's number.
        set: u64,
        /// Tells its neighbours from another set's.
        digest: [u8; 32],
        /// The members' ASes in the directory's order, each once, with the keys with which they sign.
        neighbours: Vec<(Asn, Vec<LeafKey>)>,
    },
    /// The member wants findings on a route of another member.
    Route {
        id: RouteId,
        /// The announcer's slot.
        announcer: u32,
        /// The digest of the member set for which the announcer says that it signed.
        set: [u8; 32],
        prefixes: Vec<Nlri>,
        attributes: Attributes,
    },
    /// That route is gone.
    Gone(RouteId),
    /// The PKI lists other keys, records or origins.
    View(Arc<View>),
    Policy(Policy),
    /// A job of [`Output::Job`] is done.
    JobDone(JobResult),
    /// The reserve with this id is durable.
    Persisted(u64),
    /// Whether the system says that the wall clock is synchronised; to be repeated every second or so. Until the first time it
    /// is not.
    ClockSynchronised(bool),
}

/// The verdict on a route to one prefix, and what policy makes of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    pub verdict: VerdictKind,
    /// The route as the member's router gets it; `None` if policy rejects the verdict.
    pub attributes: Option<Attributes>,
}

#[derive(Debug)]
pub enum Output {
    /// The router's routes as they go to the exchange; withdrawals count first.
    Announce {
        withdrawn: Vec<Nlri>,
        announced: Vec<Nlri>,
        attributes: Option<Attributes>,
        /// The digest of the member set for which they were signed ([`Input::Members`]); `None`: nothing was signed.
        under: Option<[u8; 32]>,
    },
    /// Everything before the router's End-of-RIB has been announced.
    EndOfRib,
    /// The findings on a route have changed; one for each of its prefixes, in order.
    Findings {
        id: RouteId,
        findings: Vec<Finding>,
    },
    /// Run this on any thread, and return its result as [`Input::JobDone`].
    Job(Job),
    /// Make this durable, then return its id as [`Input::Persisted`].
    Persist(Reserve),
    Event(MemberAttestationEvent),
}

#[derive(Debug)]
pub enum MemberAttestationEvent {
    /// Of a route of another member, with the announcer's slot; `None`: of routes of the member's own router.
    Route {
        announcer: Option<u32>,
        event: RouteEvent,
    },
    /// The announcer in this slot has sent so many wrong signatures that its routes are validated alone, within a budget.
    Suspect(u32),
    /// A route of the announcer in this slot is not used: it would take more memory than the announcer's may.
    OutOfMemory(u32),
    /// The member set lists other keys of this AS than those that sign here.
    OtherKeysListed,
    Process(ProcessEvent),
}

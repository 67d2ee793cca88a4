//! What an attestor is told, and what it wants done.

use std::sync::Arc;

use wayleave_bgp::{AttributeCode, Attributes, Nlri};
use wayleave_core::{Asn, Prefix, VerdictKind};

use super::received::{Done, Job};
use crate::attest::AttestError;
use crate::clock_doubt::ClockDoubt;
use crate::leaf::LeafKey;
use crate::pipeline::SignaturesLeft;
use crate::pipeline::policy::{Policy, VerdictClass};
use crate::pki::View;
use crate::report::Report;
use crate::validate::Rules;

/// What a member calls a route that it has opened.
pub type RouteId = [u8; 32];

/// The configuration of an attestor.
#[derive(Clone, Debug)]
pub struct MemberAttestationConfig {
    /// The member's AS.
    pub asn: Asn,
    /// The attribute's type code.
    pub attribute: AttributeCode,
    /// What is required of every chain.
    pub rules: Rules,
    /// Seconds by which clocks may be wrong.
    pub uncertainty: u64,
    /// Minutes that what is signed here holds.
    pub lifetime: u16,
    /// What follows from each verdict.
    pub policy: Policy,
    /// Own prefixes that are signed, with those within them; `None`: all.
    pub own: Option<Vec<Prefix>>,
    /// Octets of an attestation, at most: it must fit the messages of every member's router.
    pub most: usize,
}

/// What the world tells an attestor.
#[derive(Debug)]
pub enum Input {
    /// The member's router sent an UPDATE.
    RouterUpdate {
        /// Withdrawn, first.
        withdrawn: Vec<Nlri>,
        /// Announced with the attributes.
        announced: Vec<Nlri>,
        /// Theirs; `None` if nothing is announced.
        attributes: Option<Attributes>,
    },
    /// It sent all it had.
    RouterEndOfRib,
    /// Its session is down: its routes are gone.
    RouterDown,
    /// There is a new member set.
    Members {
        /// Its number.
        set: u64,
        /// What tells its neighbours from another set's.
        digest: [u8; 32],
        /// The members' ASes in the directory's order, each once, with the keys that they attest with.
        neighbours: Vec<(Asn, Vec<LeafKey>)>,
    },
    /// The member asks what to make of a route.
    Route {
        /// Its name.
        id: RouteId,
        /// The announcer's slot.
        announcer: u32,
        /// The number of the member set under which it was made.
        set: u64,
        /// Its prefixes.
        prefixes: Vec<Nlri>,
        /// Its attributes.
        attributes: Attributes,
    },
    /// That route is gone.
    Gone(RouteId),
    /// What is known of origins has changed.
    View(Arc<View>),
    /// What follows from verdicts has changed.
    Policy(Policy),
    /// Work that was asked for is done.
    Done(Done),
    /// What [`Output::Persist`] asked for is durable.
    Persisted(u64),
}

/// What was found of a route to one prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The conclusion.
    pub verdict: VerdictKind,
    /// The route as the member's router gets it; `None` if policy rejects what was found.
    pub attributes: Option<Attributes>,
}

/// What an attestor wants done.
#[derive(Debug)]
pub enum Output {
    /// The router's routes as they go to the exchange; withdrawn first.
    Announce {
        /// Withdrawn.
        withdrawn: Vec<Nlri>,
        /// Announced with the attributes.
        announced: Vec<Nlri>,
        /// Theirs.
        attributes: Option<Attributes>,
        /// The neighbours for whom they were signed, as [`Input::Members`] named them; `None`: nothing was signed.
        under: Option<[u8; 32]>,
    },
    /// Everything before the router's end of routes has been announced.
    EndOfRib,
    /// What is made of a route now.
    Found {
        /// Which.
        id: RouteId,
        /// Of each of its prefixes, in order.
        findings: Vec<Finding>,
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
    Event(MemberAttestationEvent),
}

/// What happened.
#[derive(Debug)]
pub enum MemberAttestationEvent {
    /// A route of another member has a class that is to be told.
    Verdict {
        /// The announcer's slot.
        announcer: u32,
        /// Which route.
        nlri: Nlri,
        /// What was concluded.
        class: VerdictClass,
        /// Why.
        report: Arc<Report>,
    },
    /// Routes of the own router are not announced: policy rejects what was found of them.
    Refused(Vec<Nlri>, VerdictClass, Arc<Report>),
    /// Routes went out with the attestation that they came with.
    NotExtended(Vec<Nlri>, AttestError),
    /// Routes did not go out: no attestation was small enough.
    TooLong(Vec<Nlri>, usize),
    /// Routes did not go out: the keys are spent.
    Exhausted(Vec<Nlri>),
    /// Less is left of a few-time key than had to be told.
    KeyEnds(SignaturesLeft),
    /// Work on routes panicked: those of others are not used, own ones not announced.
    Failed {
        /// What was being done.
        what: &'static str,
        /// The routes.
        routes: Vec<Nlri>,
    },
    /// The member set lists other keys of our AS than those that are held here.
    OtherKeysListed,
    /// The wall clock was set by so many seconds.
    ClockStepped(i64),
    /// Most origins disagree with our clock; or no longer.
    ClockInDoubt(Option<ClockDoubt>),
}

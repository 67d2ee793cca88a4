//! What becomes of a packet, why one is dropped, and what a core counts.

/// What becomes of a packet. Forwarded ones are rewritten for the next node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Nothing more.
    Drop(Reason),
    /// Out of this link, to the next node.
    Forward {
        /// The link.
        link: u16,
        /// The queue in which it waits for the link.
        queue: u8,
    },
    /// To a service of this node, which sends it on out of this link.
    Service {
        /// The service.
        service: u16,
        /// The link behind it.
        link: u16,
        /// The queue in which it waits for the service.
        queue: u8,
    },
    /// This node is the receiver: to a service of it; zero is the one that takes inner packets out.
    Deliver {
        /// The service.
        service: u16,
        /// The queue in which it waits for the service.
        queue: u8,
    },
}

impl Default for Action {
    fn default() -> Self {
        Self::Drop(Reason::Unprocessed)
    }
}

/// Why a packet is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Reason {
    /// No check was made: the value before processing.
    Unprocessed,
    /// Lengths, version, flags, count, index or nodes.
    Malformed,
    /// A handle without its path, which this node does not hold.
    UnknownHandle,
    /// The handle is not that of the path, or of as many nodes.
    Handle,
    /// The node at the packet's index is not this one, under any of its keys.
    NotForUs,
    /// It came in elsewhere than from the node before.
    Ingress,
    /// The tag means nothing here.
    UnknownTag,
    /// No link leads to the next node.
    NoRoute,
    /// The consent has ended.
    Expired,
    /// The consent ends later than any may.
    Future,
    /// The packet's time is too far off.
    Stale,
    /// The pre-check is wrong: this node, or its delegate, did not consent.
    Consent,
    /// A node of the path is no key of the curve.
    Node,
    /// Its neighbour brings more new nodes than agreements may be computed.
    Busy,
    /// The verifier is wrong: no consent, or the packet did not come the way that its path says.
    Verifier,
    /// It came before.
    Replayed,
    /// The replay filter is full: traffic waits for the next turn.
    ReplayFull,
    /// Its account sends more than it may.
    Rate,
}

impl Reason {
    /// All reasons in the order of their numbers.
    pub const ALL: [Self; 18] = [
        Self::Unprocessed,
        Self::Malformed,
        Self::UnknownHandle,
        Self::Handle,
        Self::NotForUs,
        Self::Ingress,
        Self::UnknownTag,
        Self::NoRoute,
        Self::Expired,
        Self::Future,
        Self::Stale,
        Self::Consent,
        Self::Node,
        Self::Busy,
        Self::Verifier,
        Self::Replayed,
        Self::ReplayFull,
        Self::Rate,
    ];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unprocessed => "unprocessed",
            Self::Malformed => "malformed",
            Self::UnknownHandle => "unknown-handle",
            Self::Handle => "handle",
            Self::NotForUs => "not-for-us",
            Self::Ingress => "ingress",
            Self::UnknownTag => "unknown-tag",
            Self::NoRoute => "no-route",
            Self::Expired => "expired",
            Self::Future => "future",
            Self::Stale => "stale",
            Self::Consent => "consent",
            Self::Node => "node",
            Self::Busy => "busy",
            Self::Verifier => "verifier",
            Self::Replayed => "replayed",
            Self::ReplayFull => "replay-full",
            Self::Rate => "rate",
        }
    }
}

/// One core's counters, on cache lines of their own.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    /// Sent on to next nodes.
    pub forwarded: u64,
    /// Given to services that send them on.
    pub served: u64,
    /// Given to services of this node as the receiver.
    pub delivered: u64,
    /// Agreements (X25519) computed.
    pub agreements: u64,
    reasons: [u64; Reason::ALL.len()],
}

impl Counters {
    /// Packets that were dropped for `reason`.
    #[must_use]
    pub fn of(&self, reason: Reason) -> u64 {
        self.reasons[reason as usize]
    }

    #[inline]
    pub(super) fn count(&mut self, action: Action) {
        match action {
            Action::Drop(reason) => self.reasons[reason as usize] += 1,
            Action::Forward { .. } => self.forwarded += 1,
            Action::Service { .. } => self.served += 1,
            Action::Deliver { .. } => self.delivered += 1,
        }
    }
}

//! What an ICING router does with a packet, why it drops one, and what a core counts.

use wayleave_packet::icing::verify;

/// What happens to a packet. Forwarded packets are rewritten for the next node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// It is dropped.
    Drop(Reason),
    /// It leaves by this link, to the next node.
    Forward {
        link: u16,
        /// The queue in which it waits for the link.
        queue: u8,
    },
    /// It goes to a service of this node, which sends it on by this link.
    Service {
        service: u16,
        link: u16,
        /// The queue in which it waits for the service.
        queue: u8,
    },
    /// This node is the receiver: the packet goes to a service of it. Service zero takes inner packets out.
    Deliver {
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

wayleave_core::named! {
    /// Why a packet is dropped.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[repr(u8)]
    pub enum Reason {
        /// The packet was not processed: the default.
        Unprocessed = "unprocessed",
        /// Lengths, version, flags, count, index or nodes.
        Malformed = "malformed",
        /// A handle without its path, which this node does not know.
        UnknownHandle = "unknown-handle",
        /// The handle is not that of the path, or of a path with as many nodes.
        Handle = "handle",
        /// The node at the packet's index is not this one, under any of its keys.
        NotForUs = "not-for-us",
        /// It did not come in by the link to the node in front.
        Ingress = "ingress",
        /// The tag has no meaning here.
        UnknownTag = "unknown-tag",
        /// No link leads to the next node.
        NoRoute = "no-route",
        /// The consent has ended.
        Expired = "expired",
        /// The consent ends later than any may.
        Future = "future",
        /// The packet's time is too far off.
        Stale = "stale",
        /// The pre-check is wrong: this node, or its delegate, did not consent.
        Consent = "consent",
        /// A node of the path has an ID that is not a key of the curve.
        Node = "node",
        /// The path has new nodes, and the link's rate of agreements is used up.
        Busy = "busy",
        /// The verifier is wrong: no consent, or the packet did not come the way that its path says.
        Verifier = "verifier",
        /// The verifier of a sealed packet that is a sample is wrong: as before, or the payload is not the sender's.
        Sample = "sample",
        /// It was made before this router started, or before its clock went back: nobody remembers what came then.
        BeforeStart = "before-start",
        /// It came before.
        Replayed = "replayed",
        /// Its payer's partition in the replay filter is full until the next turn.
        ReplayFull = "replay-full",
        /// Its account is charged more by this link than it may.
        Rate = "rate",
    }
}

impl From<verify::Reason> for Reason {
    #[inline]
    fn from(reason: verify::Reason) -> Self {
        match reason {
            verify::Reason::Handle => Self::Handle,
            verify::Reason::NotForUs => Self::NotForUs,
            verify::Reason::Expired => Self::Expired,
            verify::Reason::Future => Self::Future,
            verify::Reason::Stale => Self::Stale,
            verify::Reason::Consent => Self::Consent,
            verify::Reason::Node => Self::Node,
            verify::Reason::Verifier => Self::Verifier,
            verify::Reason::Sample => Self::Sample,
        }
    }
}

/// One core's counters. The alignment gives each core cache lines of its own: two, since processors fetch lines in pairs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    pub forwarded: u64,
    /// Given to services of this node that send them on.
    pub served: u64,
    /// Given to services of this node, which is the receiver.
    pub delivered: u64,
    /// Agreements (X25519) that were computed.
    pub agreements: u64,
    /// Octets of payloads that were hashed.
    pub hashed: u64,
    /// Paths that were decided anew since the policy changed: those that this core knows, and those that any has learnt if it heard of the
    /// policy first.
    pub decided: u64,
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

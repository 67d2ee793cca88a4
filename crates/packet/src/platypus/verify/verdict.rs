//! What a waypoint decides on a packet, and the reasons for refusing one.

use super::super::header::Malformed;
use super::Forward;

wayleave_core::named! {
    /// Why a packet does not pass. The sender erred, or the waypoint's policy forbids it.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
    #[repr(u8)]
    pub enum Reason {
        /// It could not be decoded.
        Malformed = "malformed",
        /// Its outer destination or its current capability is not this waypoint's.
        NotForUs = "not-for-us",
        /// No capability is left.
        NothingLeft = "nothing-left",
        /// Its outer source is neither the original source nor the waypoint before.
        Source = "source",
        /// Its outer source is the waypoint before, but this is none that the provider or a configured peer runs.
        ForeignWaypoint = "foreign-waypoint",
        /// Its path begins here, and its original source is none that may begin one over this link.
        LinkSource = "link-source",
        /// The original source is a martian.
        MartianSource = "martian-source",
        /// The final destination or the next waypoint is a martian.
        MartianDestination = "martian-destination",
        /// The original source lies in a network of our own.
        OwnSource = "own-source",
        /// The final destination or the next waypoint lies in a network of our own.
        OwnNetwork = "own-network",
        /// The final destination lies outside the delegated prefix.
        OutsidePrefix = "outside-prefix",
        /// The binding is of 64 bits, and the policy asks for 128.
        NarrowBinding = "narrow-binding",
        TtlExceeded = "ttl-exceeded",
        /// The key epoch is neither the previous, current nor next one.
        KeyEpoch = "key-epoch",
        /// The key version of this epoch was removed.
        KeyGone = "key-gone",
        /// The nonce's time is too far off.
        Stale = "stale",
        /// The binding is not the packet's MAC.
        Binding = "binding",
    }
}

impl Reason {
    /// The ICMP error that may be sent to the original source, under the router's rate limit. Reasons that say that the
    /// source address itself is doubtful get none.
    fn answer(self) -> Option<IcmpError> {
        match self {
            Self::TtlExceeded => Some(IcmpError::TimeExceeded),
            Self::OwnNetwork
            | Self::OutsidePrefix
            | Self::NarrowBinding
            | Self::KeyEpoch
            | Self::KeyGone
            | Self::Stale
            | Self::Binding => Some(IcmpError::Prohibited),
            _ => None,
        }
    }
}

/// An ICMP error that a waypoint may send to the original source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IcmpError {
    TimeExceeded,
    /// Destination unreachable: administratively prohibited.
    Prohibited,
}

/// What becomes of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// To be rewritten and forwarded, unless revocation, replay or accounting forbids it.
    Forward(Forward),
    /// Dropped; an ICMP error may be sent to the original source.
    Answer(IcmpError, Reason),
    Drop(Reason),
}

impl Default for Verdict {
    fn default() -> Self {
        Self::Drop(Reason::Malformed)
    }
}

impl From<Malformed> for Verdict {
    fn from(_: Malformed) -> Self {
        Self::Drop(Reason::Malformed)
    }
}

impl From<Reason> for Verdict {
    fn from(reason: Reason) -> Self {
        reason.answer().map_or(Self::Drop(reason), |error| Self::Answer(error, reason))
    }
}

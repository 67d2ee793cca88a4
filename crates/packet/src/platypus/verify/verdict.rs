//! What a waypoint decides on a packet, and the reasons for refusing one.

use super::super::header::Malformed;
use super::Forward;

/// Why a packet does not pass. The sender erred, or the waypoint's policy forbids it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Reason {
    /// It could not be decoded.
    Malformed,
    /// Its outer destination or its current capability is not this waypoint's.
    NotForUs,
    /// No capability is left.
    NothingLeft,
    /// Its outer source is neither the original source nor the waypoint before.
    Source,
    /// The original source is a martian.
    MartianSource,
    /// The final destination or the next waypoint is a martian.
    MartianDestination,
    /// The final destination or the next waypoint lies in a network of our own.
    OwnNetwork,
    /// The final destination lies outside the delegated prefix.
    OutsidePrefix,
    /// The binding is of 64 bits, and the policy asks for 128.
    NarrowBinding,
    TtlExceeded,
    /// The key epoch is neither the previous, current nor next one.
    KeyEpoch,
    /// The key version of this epoch was removed.
    KeyGone,
    /// The nonce's time is too far off.
    Stale,
    /// The binding is not the packet's MAC.
    Binding,
}

impl Reason {
    /// Every reason, in the order of their numbers.
    pub const ALL: [Self; 14] = [
        Self::Malformed,
        Self::NotForUs,
        Self::NothingLeft,
        Self::Source,
        Self::MartianSource,
        Self::MartianDestination,
        Self::OwnNetwork,
        Self::OutsidePrefix,
        Self::NarrowBinding,
        Self::TtlExceeded,
        Self::KeyEpoch,
        Self::KeyGone,
        Self::Stale,
        Self::Binding,
    ];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::NotForUs => "not-for-us",
            Self::NothingLeft => "nothing-left",
            Self::Source => "source",
            Self::MartianSource => "martian-source",
            Self::MartianDestination => "martian-destination",
            Self::OwnNetwork => "own-network",
            Self::OutsidePrefix => "outside-prefix",
            Self::NarrowBinding => "narrow-binding",
            Self::TtlExceeded => "ttl-exceeded",
            Self::KeyEpoch => "key-epoch",
            Self::KeyGone => "key-gone",
            Self::Stale => "stale",
            Self::Binding => "binding",
        }
    }

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

//! What a core counts: what became of packets, each drop with its reason.

/// Why a packet was not forwarded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Reason {
    /// No check was made: the value before processing.
    Unprocessed,
    /// Lengths, version or counts of the header.
    Malformed,
    /// The payload's length is not what the header says.
    PacketSize,
    /// Pointers, segment lengths or flags of the path do not fit together.
    MalformedPath,
    /// An extension header is malformed.
    Extension,
    /// A path type that is not routed.
    PathType,
    /// The packet came in elsewhere than its hop field says.
    WrongIngress,
    /// A packet in transit that does not come from the router that owns its way in.
    TransitSource,
    /// The source AS cannot be here.
    SourceAddress,
    /// The destination AS cannot be here.
    DestinationAddress,
    /// The hop field has expired.
    Expired,
    /// The segment's timestamp lies in the future.
    Future,
    /// The MAC is wrong.
    BadMac,
    /// The way out is no interface of this AS, or not one that this packet may take.
    UnknownEgress,
    /// These two links may not be used one after the other within a segment.
    Direction,
    /// These two segments may not be joined here.
    SegmentChange,
    /// The path ends before its destination.
    PathEnd,
    /// The link behind the way out is down.
    LinkDown,
    /// A one-hop path that does not fit its link.
    OneHop,
    /// Not dropped: a traceroute request that was answered.
    Traceroute,
    /// So many wrong MACs came in by the same interface that none of its MACs is checked for now.
    Throttled,
}

impl Reason {
    /// All reasons in the order of their numbers.
    pub const ALL: [Self; 21] = [
        Self::Unprocessed,
        Self::Malformed,
        Self::PacketSize,
        Self::MalformedPath,
        Self::Extension,
        Self::PathType,
        Self::WrongIngress,
        Self::TransitSource,
        Self::SourceAddress,
        Self::DestinationAddress,
        Self::Expired,
        Self::Future,
        Self::BadMac,
        Self::UnknownEgress,
        Self::Direction,
        Self::SegmentChange,
        Self::PathEnd,
        Self::LinkDown,
        Self::OneHop,
        Self::Traceroute,
        Self::Throttled,
    ];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unprocessed => "unprocessed",
            Self::Malformed => "malformed",
            Self::PacketSize => "packet_size",
            Self::MalformedPath => "malformed_path",
            Self::Extension => "extension",
            Self::PathType => "path_type",
            Self::WrongIngress => "wrong_ingress",
            Self::TransitSource => "transit_source",
            Self::SourceAddress => "source_address",
            Self::DestinationAddress => "destination_address",
            Self::Expired => "expired",
            Self::Future => "future",
            Self::BadMac => "bad_mac",
            Self::UnknownEgress => "unknown_egress",
            Self::Direction => "direction",
            Self::SegmentChange => "segment_change",
            Self::PathEnd => "path_end",
            Self::LinkDown => "link_down",
            Self::OneHop => "one_hop",
            Self::Traceroute => "traceroute",
            Self::Throttled => "throttled",
        }
    }
}

/// One core's counters, on cache lines of their own.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    /// Sent to neighbours.
    pub forwarded: u64,
    /// Sent to other routers of this AS.
    pub to_siblings: u64,
    /// Sent to hosts of this AS.
    pub delivered: u64,
    /// Control traffic of this router.
    pub control: u64,
    /// Answers sent; the packets they answer are counted by their reason too.
    pub answered: u64,
    /// Answers that the rate limit, the question's length or its kind forbade.
    pub unanswered: u64,
    /// Hop fields whose MAC was checked: one AES block each, apart from lanes that are computed because others are.
    pub macs: u64,
    reasons: [u64; Reason::ALL.len()],
}

impl Counters {
    /// Packets that were not forwarded for `reason`.
    #[must_use]
    pub fn of(&self, reason: Reason) -> u64 {
        self.reasons[reason as usize]
    }

    /// Packets that were not forwarded, for any reason.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.reasons.iter().sum()
    }

    /// Counts what became of a packet.
    pub fn count(&mut self, action: crate::frame::Action) {
        use crate::frame::Action;
        match action {
            Action::Forward(_) => self.forwarded += 1,
            Action::Sibling(_) => self.to_siblings += 1,
            Action::Deliver => self.delivered += 1,
            Action::Control => self.control += 1,
            Action::Drop(reason) => self.reasons[reason as usize] += 1,
            Action::Answer(reason) => {
                self.answered += 1;
                self.reasons[reason as usize] += 1;
            }
        }
    }
}

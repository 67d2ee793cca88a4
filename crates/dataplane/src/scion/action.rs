//! What a SCION router does with a packet, why it does not forward one, and what a core counts.

use wayleave_packet::scion::verify;

/// What happens to a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// It is dropped.
    Drop(Reason),
    /// It leaves by this interface of this router.
    Forward(u16),
    /// It goes to another router of this AS, by its index in the configuration: that one has the egress interface.
    Sibling(u16),
    /// It goes to the host of this AS that the header names.
    Deliver,
    /// It is control traffic of this router (BFD).
    Control,
    /// It goes no further, and its sender gets an SCMP message, back to where the packet came from; the reason says why.
    /// The packet stays as it is: the message is one of [`Router::answers`](super::Router::answers).
    Answer(Reason),
}

impl Default for Action {
    fn default() -> Self {
        Self::Drop(Reason::Unprocessed)
    }
}

wayleave_core::named! {
    /// Why a packet was not forwarded.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[repr(u8)]
    pub enum Reason {
        /// The packet was not processed: the default.
        Unprocessed = "unprocessed",
        /// Lengths, version or counts of the header.
        Malformed = "malformed",
        /// The payload's length is not what the header says.
        PacketSize = "packet_size",
        /// Pointers, segment lengths or flags of the path do not fit together.
        MalformedPath = "malformed_path",
        /// An extension header is malformed.
        Extension = "extension",
        /// A path type that is not routed.
        PathType = "path_type",
        /// The packet came in by another interface than its hop field names.
        WrongIngress = "wrong_ingress",
        /// A packet in transit that does not come from the router by which it entered the AS.
        TransitSource = "transit_source",
        /// A packet with this source AS cannot be here.
        SourceAddress = "source_address",
        /// A packet with this destination AS cannot be here.
        DestinationAddress = "destination_address",
        /// The hop field has expired.
        Expired = "expired",
        /// The segment's timestamp lies in the future.
        Future = "future",
        /// The MAC is wrong.
        BadMac = "bad_mac",
        /// The egress interface does not exist, or this packet may not use it.
        UnknownEgress = "unknown_egress",
        /// These two links may not be used one after the other within a segment.
        Direction = "direction",
        /// These two segments may not be joined here.
        SegmentChange = "segment_change",
        /// The path ends before its destination.
        PathEnd = "path_end",
        /// The link at the egress interface is down.
        LinkDown = "link_down",
        /// A one-hop path that does not fit its link.
        OneHop = "one_hop",
        /// A traceroute request for this router. It is answered within the limit, and goes no further in any case.
        Traceroute = "traceroute",
        /// The interface brought so many wrong MACs that its packets are dropped unchecked for now.
        Throttled = "throttled",
        /// The packet ends in this AS, at a service that it does not have.
        UnknownService = "unknown_service",
        /// The packet ends in this AS, at an address that is no host of it.
        HostAddress = "host_address",
    }
}

impl From<verify::Reason> for Reason {
    #[inline]
    fn from(reason: verify::Reason) -> Self {
        match reason {
            verify::Reason::Malformed => Self::Malformed,
            verify::Reason::PacketSize => Self::PacketSize,
            verify::Reason::MalformedPath => Self::MalformedPath,
            verify::Reason::Extension => Self::Extension,
            verify::Reason::PathType => Self::PathType,
            verify::Reason::WrongIngress => Self::WrongIngress,
            verify::Reason::TransitSource => Self::TransitSource,
            verify::Reason::SourceAddress => Self::SourceAddress,
            verify::Reason::DestinationAddress => Self::DestinationAddress,
            verify::Reason::Expired => Self::Expired,
            verify::Reason::Future => Self::Future,
            verify::Reason::BadMac => Self::BadMac,
            verify::Reason::Direction => Self::Direction,
            verify::Reason::SegmentChange => Self::SegmentChange,
            verify::Reason::PathEnd => Self::PathEnd,
        }
    }
}

/// One core's counters. The alignment gives each core cache lines of its own: two, since processors fetch lines in pairs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    pub forwarded: u64,
    pub to_siblings: u64,
    pub delivered: u64,
    pub control: u64,
    /// SCMP messages sent; the packets that they answer are counted by their reasons too.
    pub answered: u64,
    /// SCMP messages not sent: over the limit, or to a packet that gets none (an error, or one without a single sender).
    pub unanswered: u64,
    /// Hop fields whose MAC was checked, at one AES block each. Lanes without a packet that needs it are not counted.
    pub macs: u64,
    reasons: [u64; Reason::ALL.len()],
}

impl Counters {
    /// Packets that were not forwarded, for this reason.
    #[must_use]
    pub fn of(&self, reason: Reason) -> u64 {
        self.reasons[reason as usize]
    }

    /// Packets that were not forwarded, for any reason.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.reasons.iter().sum()
    }

    /// Counts what happened to one packet.
    pub fn count(&mut self, action: Action) {
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

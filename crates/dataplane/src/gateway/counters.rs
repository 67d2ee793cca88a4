//! What a gateway counts, and why it drops a packet.

use crate::icing;
use crate::noise::OpenError;

wayleave_core::named! {
    /// Why an inner packet, on its way out or in, or a message is dropped.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[repr(u8)]
    pub enum Reason {
        /// Out: no plain IP packet of its length.
        NotIp = "not-ip",
        /// Out: an IPv4 fragment; its source was told.
        Fragment = "fragment",
        /// Out: an IPv4 packet with options; its source was told.
        IpOptions = "ip-options",
        /// Out: its destination is not that of a host.
        Martian = "martian",
        /// Out: its source is none of this gateway's prefixes.
        OwnSource = "own-source",
        /// Out: no member has the destination.
        NoMember = "no-member",
        /// Out: no path is known that the policy allows.
        NoPath = "no-path",
        /// Out: no node in use consents, or consent was not renewed.
        NoConsent = "no-consent",
        /// Out: it waited too long for a path, consents or a session.
        Waited = "waited",
        /// Out: too much waits already.
        QueueFull = "queue-full",
        /// Out: it is longer than the path takes; its source was told.
        TooBig = "too-big",
        /// Out: two names of one node at one pair of ports.
        FlowConflict = "flow-conflict",
        /// Out: it stands for more segments than any system makes of one packet.
        TooManySegments = "too-many-segments",
        /// Out: it could not be sealed or stamped.
        NotSent = "not-sent",
        /// In: not a sealed message to this gateway.
        NotSealed = "not-sealed",
        /// In: it is for another node, and this is no forwarder.
        NotForwarder = "not-forwarder",
        /// In: no message of this format.
        Malformed = "malformed",
        /// In: too many handshakes or probes by this sender.
        Busy = "busy",
        /// In: a handshake by no member, or an old one.
        Stranger = "stranger",
        /// In: the gateway that sealed it is not the node that sent the packet.
        OtherSender = "other-sender",
        /// In: no such session.
        UnknownSession = "unknown-session",
        /// In: it does not open.
        Seal = "seal",
        /// In: it came before.
        Replayed = "replayed",
        /// In: it is so late that it is not known any more whether it came before.
        TooOld = "too-old",
        /// In: the inner packet is not a plain IP packet.
        InnerNotIp = "inner-not-ip",
        /// In: the inner source is none of the sender's.
        InnerSource = "inner-source",
        /// In: the inner destination is a martian or loopback.
        InnerMartian = "inner-martian",
        /// In: the inner destination is none of this gateway's.
        InnerDestination = "inner-destination",
        /// In: tunnels in tunnels deeper than two.
        InnerNested = "inner-nested",
        /// In: what the sender began is not among what is taken of it.
        InnerRefused = "inner-refused",
        /// In: an ICMP error about nothing that was sent to who sends it.
        InnerUnrelated = "inner-unrelated",
    }
}

impl From<OpenError> for Reason {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Seal => Self::Seal,
            OpenError::Replayed => Self::Replayed,
            OpenError::TooOld => Self::TooOld,
        }
    }
}

/// What a gateway has done since its start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Inner packets sent, each segment counted, and their octets.
    pub sent: u64,
    pub sent_octets: u64,
    /// Inner packets received, and their octets.
    pub received: u64,
    pub received_octets: u64,
    /// Inner packets that left in two outer ones.
    pub split: u64,
    /// SYNs whose greatest segment was lowered.
    pub clamped: u64,
    pub probes: u64,
    pub answers: u64,
    /// Sessions begun.
    pub sessions: u64,
    /// Paths that were found dead, and changes to another path.
    pub dead: u64,
    pub failovers: u64,
    /// TCP segments that were sent again because their path was found dead: the newest one of each flow.
    pub resent: u64,
    /// Flows that gave way to others in a full table.
    pub flows_given_way: u64,
    /// Peers whose timers were looked at.
    pub visits: u64,
    /// How often a thread had what all threads share to itself, to change it.
    pub turns: u64,
    /// Questions to path and consent servers.
    pub path_requests: u64,
    pub proof_requests: u64,
    dropped: [u64; Reason::ALL.len()],
    /// Packets that the ICING receiver refused, by its reasons.
    refused: [u64; icing::Reason::ALL.len()],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            sent: 0,
            sent_octets: 0,
            received: 0,
            received_octets: 0,
            split: 0,
            clamped: 0,
            probes: 0,
            answers: 0,
            sessions: 0,
            dead: 0,
            failovers: 0,
            resent: 0,
            flows_given_way: 0,
            visits: 0,
            turns: 0,
            path_requests: 0,
            proof_requests: 0,
            dropped: [0; Reason::ALL.len()],
            refused: [0; icing::Reason::ALL.len()],
        }
    }
}

impl Counters {
    pub(super) fn drop(&mut self, reason: Reason) {
        self.dropped[reason as usize] += 1;
    }

    pub(super) fn refuse(&mut self, reason: icing::Reason) {
        self.refused[reason as usize] += 1;
    }

    /// Packets dropped for `reason`.
    #[must_use]
    pub fn dropped(&self, reason: Reason) -> u64 {
        self.dropped[reason as usize]
    }

    /// Packets that the ICING receiver refused for `reason`.
    #[must_use]
    pub fn refused(&self, reason: icing::Reason) -> u64 {
        self.refused[reason as usize]
    }
}

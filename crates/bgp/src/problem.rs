//! What is wrong with an UPDATE and what follows from it (RFC 7606), as values.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::AttributeCode;

wayleave_core::named! {
    /// What follows from a fault, from the mildest to the strongest; the strongest of an UPDATE applies (RFC 7606
    /// section 3 (h)).
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Action {
        /// The prefix is ignored, the rest counts (RFC 4271 section 6.3, on semantically wrong prefixes).
        IgnorePrefix = "prefix ignored",
        /// The routes of a family that was not agreed are ignored, the rest counts.
        IgnoreFamily = "family ignored",
        /// The attribute is dropped, the rest counts.
        DiscardAttribute = "attribute discarded",
        /// The announced routes are withdrawn instead.
        TreatAsWithdraw = "treated as withdraw",
        /// The session ends with a NOTIFICATION.
        SessionReset = "session reset",
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What the peer (or a network behind it) did wrong. Lengths are in octets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, thiserror::Error)]
pub enum Fault {
    /// The header or the value of an attribute runs beyond the attributes.
    #[error("attribute runs {excess} octets beyond the path attributes")]
    AttributeOverrun {
        /// Octets missing.
        excess: usize,
    },
    /// The Optional or Transitive bit differs from the attribute's definition.
    #[error("attribute flags {0:#04x} contradict its definition")]
    Flags(u8),
    /// The value's length is not one that the attribute can have.
    #[error("length {0} is impossible for this attribute")]
    Length(usize),
    /// A well-known attribute that no standard defines.
    #[error("well-known attribute is not known")]
    UnknownWellKnown,
    /// A second attribute of the same code.
    #[error("attribute is repeated")]
    Repeated,
    /// A mandatory attribute is absent.
    #[error("mandatory attribute is missing")]
    Missing,
    /// ORIGIN is not 0, 1 or 2.
    #[error("origin {0} is undefined")]
    OriginValue(u8),
    /// A segment of an AS path has an undefined type.
    #[error("segment type {0} is undefined")]
    SegmentType(u8),
    /// A segment of an AS path has no AS number.
    #[error("segment is empty")]
    EmptySegment,
    /// A segment runs beyond its AS path, or one octet is left over.
    #[error("segment runs beyond the attribute")]
    SegmentOverrun,
    /// A confederation segment from a peer outside the confederation (RFC 5065 section 5).
    #[error("confederation segment from a peer outside the confederation")]
    ConfederationSegment,
    /// AS 0 (RFC 7607).
    #[error("AS 0 is not an AS number")]
    AsZero,
    /// The leftmost AS is not the peer's.
    #[error("path does not begin with the peer's AS")]
    FirstAs,
    /// The next hop is not the address of a host.
    #[error("next hop is not a host's address")]
    NextHopAddress,
    /// IPv4 routes with two different next hops in one UPDATE; one set of attributes cannot hold both (our limit).
    #[error("two next hops for IPv4 in one UPDATE")]
    TwoNextHops,
    /// The attribute is not accepted from an external peer.
    #[error("attribute is not for external peers")]
    NotFromExternal,
    /// The attribute is only for sessions with two-octet AS numbers (RFC 6793 section 6).
    #[error("attribute is only for two-octet sessions")]
    NotOnFourOctetSession,
    /// An attribute within ATTR_SET is malformed or not allowed there (RFC 6368 section 5).
    #[error("contained attribute is malformed")]
    Contained,
    /// A type, length or value within the attribute does not fit.
    #[error("contained element is malformed")]
    Element,
    /// The family was not agreed on this session.
    #[error("AFI {afi} SAFI {safi} was not agreed")]
    Family { afi: u16, safi: u8 },
    /// The prefix is no unicast prefix.
    #[error("prefix is not unicast")]
    NotUnicast,
    /// The prefix length exceeds the family's.
    #[error("prefix length {0} is impossible")]
    PrefixLength(u8),
    /// A prefix runs beyond its field.
    #[error("prefix runs beyond its field")]
    PrefixOverrun,
    /// Withdrawn Routes Length or Total Path Attribute Length runs beyond the message.
    #[error("section length {0} runs beyond the message")]
    SectionLength(usize),
}

/// Our limit on the problems reported of one UPDATE.
pub(crate) const MAX_PROBLEMS: usize = 64;

/// One thing wrong with an UPDATE.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Problem {
    /// The attribute it lies in; `None` for the fields outside the path attributes.
    pub attribute: Option<AttributeCode>,
    pub fault: Fault,
    /// What follows.
    pub action: Action,
}

impl Problem {
    /// Adds the problem to `problems`, of which at most [`MAX_PROBLEMS`] are kept: beyond that only a stronger
    /// consequence than any before is worth the last place.
    pub(crate) fn note(self, problems: &mut Vec<Problem>) {
        if problems.len() < MAX_PROBLEMS {
            problems.push(self);
        } else if problems.iter().all(|other| other.action < self.action) {
            problems[MAX_PROBLEMS - 1] = self;
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.attribute {
            Some(code) => write!(f, "{code}: {}: {}", self.fault, self.action),
            None => write!(f, "{}: {}", self.fault, self.action),
        }
    }
}

//! SCMP, the control messages of SCION: errors, echo and traceroute, under a checksum over the addresses.

use thiserror::Error;

use super::address::IsdAs;
use super::{field, next_header};

/// Octets of type, code and checksum.
const FIXED_LEN: usize = 4;

/// Code of an unreachable destination for which the destination AS has no entry: an unknown service.
pub const NO_ROUTE: u8 = 0;

/// Codes of a parameter problem.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Problem {
    /// The header as a whole.
    ErroneousHeaderField = 0,
    /// The length field and the packet do not agree.
    InvalidPacketSize = 19,
    /// A host address of a type that is not known.
    UnknownAddressFormat = 21,
    /// The source AS is not one that can be here.
    InvalidSourceAddress = 33,
    /// The destination AS is not one that can be here, or the host is none.
    InvalidDestinationAddress = 34,
    /// The path ends here, and the destination AS is another.
    NonLocalDelivery = 35,
    /// The path as a whole.
    InvalidPath = 48,
    /// `ConsIngress` is not where the packet came in, or no interface of the AS.
    UnknownHopFieldIngress = 49,
    /// `ConsEgress` is not where the packet came in, or no interface of the AS.
    UnknownHopFieldEgress = 50,
    /// The MAC is wrong.
    InvalidHopFieldMac = 51,
    /// The hop field has expired, or its segment has not begun.
    PathExpired = 52,
    /// These segments may not be joined here.
    InvalidSegmentChange = 53,
    /// An extension header.
    InvalidExtensionHeader = 64,
}

/// A message, without what it quotes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// Type 1.
    DestinationUnreachable {
        /// Why: [`NO_ROUTE`] or another.
        code: u8,
    },
    /// Type 2.
    PacketTooBig {
        /// What the link takes, in octets.
        mtu: u16,
    },
    /// Type 4.
    ParameterProblem {
        /// One of [`Problem`], or another.
        code: u8,
        /// The octet of the packet at which the problem lies.
        pointer: u16,
    },
    /// Type 5: the link to a neighbour is down.
    ExternalInterfaceDown {
        /// The AS that says so.
        isd_as: IsdAs,
        /// Its interface.
        interface: u64,
    },
    /// Type 6: two routers of one AS cannot reach each other.
    InternalConnectivityDown {
        /// The AS that says so.
        isd_as: IsdAs,
        /// Where packets come in.
        ingress: u64,
        /// Where they would go out.
        egress: u64,
    },
    /// Type 128.
    EchoRequest {
        /// Of the sender's choice.
        identifier: u16,
        /// Of the sender's choice.
        sequence: u16,
    },
    /// Type 129.
    EchoReply {
        /// As in the request.
        identifier: u16,
        /// As in the request.
        sequence: u16,
    },
    /// Type 130.
    TracerouteRequest {
        /// Of the sender's choice.
        identifier: u16,
        /// Of the sender's choice.
        sequence: u16,
    },
    /// Type 131.
    TracerouteReply {
        /// As in the request.
        identifier: u16,
        /// As in the request.
        sequence: u16,
        /// The AS that answers.
        isd_as: IsdAs,
        /// Its interface.
        interface: u64,
    },
}

/// Why octets are not an SCMP message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ScmpError {
    /// Too few octets for its type.
    #[error("{0} octets are too few")]
    Truncated(usize),
    /// A type that we do not know: errors are below 128.
    #[error("type {0}")]
    UnknownType(u8),
}

impl Message {
    /// Type and code.
    #[must_use]
    pub fn kind(&self) -> (u8, u8) {
        match *self {
            Self::DestinationUnreachable { code } => (1, code),
            Self::PacketTooBig { .. } => (2, 0),
            Self::ParameterProblem { code, .. } => (4, code),
            Self::ExternalInterfaceDown { .. } => (5, 0),
            Self::InternalConnectivityDown { .. } => (6, 0),
            Self::EchoRequest { .. } => (128, 0),
            Self::EchoReply { .. } => (129, 0),
            Self::TracerouteRequest { .. } => (130, 0),
            Self::TracerouteReply { .. } => (131, 0),
        }
    }

    /// Whether it tells of an error, and so is never answered by one.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.kind().0 < 128
    }

    /// Octets before the quote or the data.
    #[must_use]
    pub fn wire_len(&self) -> usize {
        match self {
            Self::ExternalInterfaceDown { .. } => 20,
            Self::InternalConnectivityDown { .. } => 28,
            Self::TracerouteRequest { .. } | Self::TracerouteReply { .. } => 24,
            _ => 8,
        }
    }

    /// Decodes a message, and gives what follows it: the quote or the data. The checksum is for [`checksum`] to check.
    ///
    /// # Errors
    /// If it is too short or of an unknown type.
    pub fn decode(octets: &[u8]) -> Result<(Self, &[u8]), ScmpError> {
        let truncated = ScmpError::Truncated(octets.len());
        let &[kind, code, _, _, ref body @ ..] = octets else { return Err(truncated) };
        let two = |at: usize| body.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]])).ok_or(truncated);
        let eight = |at: usize| {
            let octets: [u8; 8] = body.get(at..at + 8).ok_or(truncated)?.try_into().map_err(|_| truncated)?;
            Ok(u64::from_be_bytes(octets))
        };
        let message = match kind {
            1 => Self::DestinationUnreachable { code },
            2 => Self::PacketTooBig { mtu: two(2)? },
            4 => Self::ParameterProblem { code, pointer: two(2)? },
            5 => Self::ExternalInterfaceDown { isd_as: IsdAs(eight(0)?), interface: eight(8)? },
            6 => Self::InternalConnectivityDown { isd_as: IsdAs(eight(0)?), ingress: eight(8)?, egress: eight(16)? },
            128 => Self::EchoRequest { identifier: two(0)?, sequence: two(2)? },
            129 => Self::EchoReply { identifier: two(0)?, sequence: two(2)? },
            130 => Self::TracerouteRequest { identifier: two(0)?, sequence: two(2)? },
            131 => Self::TracerouteReply {
                identifier: two(0)?,
                sequence: two(2)?,
                isd_as: IsdAs(eight(4)?),
                interface: eight(12)?,
            },
            other => return Err(ScmpError::UnknownType(other)),
        };
        let rest = octets.get(message.wire_len()..).ok_or(truncated)?;
        Ok((message, rest))
    }

    /// The octets before the quote or the data, checksum zero: as many as [`Self::wire_len`], in the front of 28.
    #[must_use]
    pub fn octets(&self) -> [u8; 28] {
        let mut out = [0; 28];
        (out[0], out[1]) = self.kind();
        let mut two = |at: usize, value: u16| out[FIXED_LEN + at..][..2].copy_from_slice(&value.to_be_bytes());
        let eights: &[u64] = match *self {
            Self::DestinationUnreachable { .. } => &[],
            Self::PacketTooBig { mtu } => {
                two(2, mtu);
                &[]
            }
            Self::ParameterProblem { pointer, .. } => {
                two(2, pointer);
                &[]
            }
            Self::ExternalInterfaceDown { isd_as, interface } => &[isd_as.0, interface],
            Self::InternalConnectivityDown { isd_as, ingress, egress } => &[isd_as.0, ingress, egress],
            Self::EchoRequest { identifier, sequence }
            | Self::EchoReply { identifier, sequence }
            | Self::TracerouteRequest { identifier, sequence } => {
                two(0, identifier);
                two(2, sequence);
                &[]
            }
            Self::TracerouteReply { identifier, sequence, isd_as, interface } => {
                two(0, identifier);
                two(2, sequence);
                &[isd_as.0, interface]
            }
        };
        let start = if matches!(self, Self::TracerouteReply { .. }) { 8 } else { FIXED_LEN };
        for (place, value) in out[start..].chunks_exact_mut(8).zip(eights) {
            place.copy_from_slice(&value.to_be_bytes());
        }
        out
    }
}

/// The checksum of `message` (its own checksum octets count as zero) under the addresses of the packet `header`, whose
/// hosts take `hosts` octets: the Internet checksum over both ISD-AS, both hosts, the length, the protocol, the message.
#[must_use]
pub fn checksum(header: &[u8], hosts: usize, message: &[u8]) -> u16 {
    let addresses = header.get(field::DST_IA.start..field::HOSTS + hosts).unwrap_or_default();
    let length = (message.len() as u32).to_be_bytes();
    let fixed = message.get(..2).unwrap_or_default();
    let rest = message.get(FIXED_LEN..).unwrap_or_default();
    let parts = [addresses, &length, &[0, 0, 0, next_header::SCMP], fixed, rest];
    let mut sum: u64 = parts.iter().map(|part| sum_words(part)).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The sum of big-endian words; an odd octet at the end is a word's high one.
fn sum_words(octets: &[u8]) -> u64 {
    let (words, rest) = octets.as_chunks::<2>();
    let last = rest.first().map_or(0, |&octet| u64::from(octet) << 8);
    words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum::<u64>() + last
}

//! Work for the benchmark of the codec; the caller measures the time.

use crate::SessionParams;

/// One UPDATE of a trace.
#[derive(Clone, Copy, Debug)]
pub struct TraceMessage<'a> {
    /// The whole message, header included.
    pub octets: &'a [u8],
    /// The session it came over.
    pub params: SessionParams,
}

/// What [`decode_encode`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Messages seen.
    pub messages: u64,
    /// Messages whose encoding equals what was decoded.
    pub identical: u64,
    /// Messages that could not be decoded.
    pub refused: u64,
    /// Messages with a problem by RFC 7606 that did not end the session.
    pub with_problems: u64,
    /// Prefixes announced.
    pub announced: u64,
    /// Prefixes withdrawn.
    pub withdrawn: u64,
    /// Octets decoded.
    pub octets: u64,
}

/// Decodes every message, checks it, writes it again from its parts and compares.
#[must_use]
pub fn decode_encode(_messages: &[TraceMessage<'_>]) -> Counts {
    todo!()
}

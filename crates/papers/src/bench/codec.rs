//! Work for the benchmark of the codec; the caller measures the time.

use crate::{MessageType, SessionParams, UpdateView, frame};

/// One UPDATE of a trace.
#[derive(Clone, Copy, Debug)]
pub struct TraceMessage<'a> {
    /// The whole message, header included.
    pub octets: &'a [u8],
    pub params: SessionParams,
}

/// The outcome of [`decode_encode`].
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
    /// Octets decoded.
    pub octets: u64,
}

/// Decodes every message, checks it by RFC 7606, writes it again from its parts and compares.
#[must_use]
pub fn decode_encode(messages: &[TraceMessage<'_>]) -> Counts {
    let mut counts = Counts::default();
    let mut written = Vec::with_capacity(65_535);
    for message in messages {
        counts.messages += 1;
        counts.octets += message.octets.len() as u64;
        let Some(view) = view(message) else {
            counts.refused += 1;
            continue;
        };
        written.clear();
        view.encode(&mut written);
        counts.with_problems += u64::from(!view.problems().is_empty());
        counts.identical += u64::from(written == message.octets);
    }
    counts
}

fn view<'a>(message: &TraceMessage<'a>) -> Option<UpdateView<'a>> {
    let (frame, rest) = frame(message.octets, &message.params).ok()?;
    if frame.kind != MessageType::Update || !rest.is_empty() {
        return None;
    }
    UpdateView::decode(frame.body(), &message.params).ok()
}

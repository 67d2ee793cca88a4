//! `bench bgp-codec`: decodes, checks by RFC 7606, re-encodes and compares the UPDATEs of a trace.

use std::time::Duration;

use serde_json::json;
use wayleave_bgp::{MessageType, SessionParams, UpdateView, frame};

use crate::report::Report;

/// One UPDATE of a trace, with the session that it came over.
#[derive(Clone, Copy, Debug)]
pub struct TraceMessage<'a> {
    /// The whole message, including its header.
    pub octets: &'a [u8],
    pub params: SessionParams,
}

/// The outcome of [`decode_encode`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    pub messages: u64,
    /// Messages whose encoding equals what was decoded.
    pub identical: u64,
    pub refused: u64,
    /// Messages with a problem by RFC 7606 that did not end the session.
    pub with_problems: u64,
    pub octets: u64,
}

/// Measures `messages`, the trace `name`, `repetitions` times. `clock` is any monotonic clock.
pub fn run(
    name: &str,
    messages: &[TraceMessage<'_>],
    repetitions: usize,
    clock: &mut dyn FnMut() -> Duration,
) -> Report {
    let (mut rates, mut counts) = (Vec::with_capacity(repetitions), decode_encode(messages));
    for _ in 0..repetitions {
        let start = clock();
        counts = decode_encode(messages);
        rates.push(counts.messages as f64 / clock().saturating_sub(start).as_secs_f64());
    }
    let params = json!({
        "mrt": name, "updates": counts.messages, "octets": counts.octets, "refused": counts.refused,
        "with_problems": counts.with_problems,
    });
    let mut report = Report::new("bgp-codec", params);
    report.add("decode_encode", "UPDATE/s", &rates);
    report.exact("identical", "ratio", counts.identical as f64 / counts.messages as f64);
    report
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

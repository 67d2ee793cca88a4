//! `bench bgp-codec`: decode, check by RFC 7606, re-encode, compare, on one core.

use std::fs::File;
use std::io::BufReader;
use std::time::Instant;

use serde_json::json;
use wayleave_bgp::bench::{TraceMessage, decode_encode};
use wayleave_bgp::mrt::{self, RecordedMessage};
use wayleave_bgp::{MessageType, frame};

use super::{Report, trace_file};
use crate::cli::Bench;
use crate::failure::{Failure, Outcome};

pub fn run(bench: &Bench) -> Outcome<Report> {
    let path = trace_file(bench.mrt.as_ref(), "routeviews.2013-12-01.updates.bz2")?;
    let unreadable = |error: std::io::Error| Failure::new(format!("{}: {error}", path.display()));
    let file = BufReader::new(File::open(&path).map_err(unreadable)?);
    let is_update = |message: &RecordedMessage| {
        frame(&message.octets, &message.params()).is_ok_and(|(frame, _)| frame.kind == MessageType::Update)
    };
    let recorded: Vec<RecordedMessage> =
        mrt::messages(mrt::decompress(file).map_err(unreadable)?).filter(is_update).collect();
    let messages: Vec<TraceMessage<'_>> =
        recorded.iter().map(|message| TraceMessage { octets: &message.octets, params: message.params() }).collect();
    if messages.is_empty() {
        return Err(Failure::new(format!("{} holds no UPDATE", path.display())).into());
    }
    let repetitions = bench.repetitions.unwrap_or(if bench.short { 20 } else { 100 });
    let (mut rates, mut counts) = (Vec::with_capacity(repetitions), decode_encode(&messages));
    for _ in 0..repetitions {
        let start = Instant::now();
        counts = decode_encode(&messages);
        rates.push(counts.messages as f64 / start.elapsed().as_secs_f64());
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut report = Report::new(
        "bgp-codec",
        json!({ "mrt": name, "updates": counts.messages, "octets": counts.octets, "refused": counts.refused, "with_problems": counts.with_problems }),
    );
    report.add("decode_encode", "UPDATE/s", &rates);
    report.exact("identical", "ratio", counts.identical as f64 / counts.messages as f64);
    Ok(report)
}

//! `bench bgp-codec`.

use serde_json::json;
use wayleave_bgp::mrt::{MrtReader, Record, RecordedMessage};
use wayleave_bgp::{MessageType, frame};
use wayleave_papers::bench::codec::{self, TraceMessage};
use wayleave_papers::report::Report;

use super::{clock, file_name, open, trace_file};
use crate::commands::bench::Bench;
use wayleave_config::failure::{Failure, Outcome};

pub fn run(bench: &Bench) -> Outcome<Report> {
    let path = trace_file(bench.mrt.as_ref(), "routeviews.2013-12-01.updates.bz2")?;
    let is_update = |message: &RecordedMessage| {
        frame(&message.octets, &message.params()).is_ok_and(|(frame, _)| frame.kind == MessageType::Update)
    };
    let (mut recorded, mut skipped) = (Vec::new(), 0);
    for (number, record) in MrtReader::new(open(&path)?).enumerate() {
        match record {
            Ok(Record::Message(message)) if is_update(&message) => recorded.push(message),
            Ok(Record::Message(_)) => {}
            // A table of peers, routes, or a type of record that nobody here knows.
            Ok(Record::Rib(_) | Record::Other(..)) => skipped += 1,
            Err(error) => {
                let damaged = Failure::from_error(&error);
                let damaged = Failure::new(format!("{}, record {}: {damaged}", path.display(), number + 1));
                return Err(damaged
                    .help("the file is damaged: fetch it again, or cut it in front of that record")
                    .into());
            }
        }
    }
    let messages: Vec<TraceMessage<'_>> =
        recorded.iter().map(|message| TraceMessage { octets: &message.octets, params: message.params() }).collect();
    if messages.is_empty() {
        return Err(Failure::new(format!("{} holds no UPDATE", path.display())).into());
    }
    let repetitions = bench.repetitions.unwrap_or(if bench.short { 20 } else { 100 });
    let mut report = codec::run(&file_name(&path), &messages, repetitions, &mut clock());
    report.params.insert("skipped_records".to_owned(), json!(skipped));
    Ok(report)
}

//! `bench bgp-codec`.

use wayleave_bgp::mrt::{self, RecordedMessage};
use wayleave_bgp::{MessageType, frame};
use wayleave_papers::bench::codec::{self, TraceMessage};
use wayleave_papers::report::Report;

use super::{clock, file_name, open, trace_file};
use crate::commands::bench::Bench;
use crate::failure::{Failure, Outcome};

pub fn run(bench: &Bench) -> Outcome<Report> {
    let path = trace_file(bench.mrt.as_ref(), "routeviews.2013-12-01.updates.bz2")?;
    let is_update = |message: &RecordedMessage| {
        frame(&message.octets, &message.params()).is_ok_and(|(frame, _)| frame.kind == MessageType::Update)
    };
    let recorded: Vec<RecordedMessage> = mrt::messages(open(&path)?).filter(is_update).collect();
    let messages: Vec<TraceMessage<'_>> =
        recorded.iter().map(|message| TraceMessage { octets: &message.octets, params: message.params() }).collect();
    if messages.is_empty() {
        return Err(Failure::new(format!("{} holds no UPDATE", path.display())).into());
    }
    let repetitions = bench.repetitions.unwrap_or(if bench.short { 20 } else { 100 });
    Ok(codec::run(&file_name(&path), &messages, repetitions, &mut clock()))
}

//! Measures the codec over an MRT file: `cargo run --release -p wayleave-papers --example codec_speed -- FILE [ROUNDS]`.
#![allow(clippy::disallowed_methods, reason = "an example that measures reads a file and a clock")]

use std::io::Read;
use std::time::Instant;

use wayleave_bgp::{Message, Update, frame, mrt};
use wayleave_papers::bench::codec::{TraceMessage, decode_encode};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().expect("an MRT file");
    let rounds: u32 = arguments.next().map_or(20, |text| text.parse().expect("a number of rounds"));
    let mut octets = Vec::new();
    let file = std::fs::File::open(path).expect("a file that can be read");
    mrt::decompress(file).and_then(|mut source| source.read_to_end(&mut octets)).expect("a sound compression");
    let recorded: Vec<_> = mrt::messages(&octets[..]).filter(|message| message.octets.get(18) == Some(&2)).collect();
    let trace: Vec<_> =
        recorded.iter().map(|message| TraceMessage { octets: &message.octets, params: message.params() }).collect();

    let mut best = f64::MAX;
    let mut counts = decode_encode(&trace);
    for _ in 0..rounds {
        let start = Instant::now();
        counts = decode_encode(&trace);
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!("{counts:?}");
    println!("borrowed: {:.2} million UPDATE/s (best of {rounds})", counts.messages as f64 / best / 1e6);

    let start = Instant::now();
    let mut prefixes = 0;
    for message in &trace {
        let Ok((found, _)) = frame(message.octets, &message.params) else { continue };
        let Ok(update) = Update::decode(found.body(), &message.params) else { continue };
        prefixes += update.announced.len() + update.withdrawn.len();
        update.problems.iter().for_each(|problem| println!("{problem}"));
    }
    let owned = trace.len() as f64 / start.elapsed().as_secs_f64() / 1e6;
    println!("owned: {owned:.2} million UPDATE/s, {prefixes} prefixes");
    let identical = trace.iter().filter(|message| reencodes(message)).count();
    println!("owned messages that encode as they came: {identical}");
}

fn reencodes(message: &TraceMessage<'_>) -> bool {
    let Ok((decoded, _)) = Message::decode(message.octets, &message.params) else { return false };
    decoded.encode(&message.params).is_ok_and(|octets| octets == message.octets)
}

//! Any octets as BFD control packets, one after another, into a session: what is read is written as the same, a session always
//! has a next deadline or waits for the other end, and it never sends without an end.
//!
//! BFD-01: any octets as a packet: an error or a value with this encoding.
#![no_main]

use std::num::NonZeroU32;

use libfuzzer_sys::fuzz_target;
use wayleave_core::Instant;
use wayleave_dataplane::bfd::{Config, ControlPacket, Output, Session};

fuzz_target!(|input: &[u8]| {
    let config = Config {
        discriminator: NonZeroU32::MIN,
        desired_min_tx: 200_000,
        required_min_rx: 200_000,
        detect_multiplier: 3,
        seed: 7,
    };
    let mut session = Session::new(config, Instant(0));
    let mut now = 0u64;
    for record in input.chunks(28) {
        let (pause, octets) = record.split_at(record.len().min(4));
        now += pause.iter().fold(0, |sum, octet| sum << 8 | u64::from(*octet));
        session.handle_timeout(Instant(now));
        if let Ok(packet) = ControlPacket::decode(octets) {
            let written = packet.encode();
            assert_eq!(ControlPacket::decode(&written), Ok(packet));
            session.receive(&packet, Instant(now));
        }
        let outputs = std::iter::from_fn(|| session.poll()).collect::<Vec<Output>>();
        assert!(outputs.len() <= 8, "{outputs:?}");
        assert!(session.deadline().is_none_or(|due| due > Instant(now)));
    }
});

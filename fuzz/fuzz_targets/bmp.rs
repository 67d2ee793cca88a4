//! Any octets as what a monitored router sends by BMP, in pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wayleave_bgp::bmp::BmpReader;

fuzz_target!(|data: &[u8]| {
    let mut reader = BmpReader::new();
    for piece in data.chunks(97) {
        reader.push(piece);
        while let Ok(Some(_)) = reader.next_message() {}
    }
});

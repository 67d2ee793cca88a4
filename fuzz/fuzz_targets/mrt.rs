//! Any octets as an MRT dump.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wayleave_bgp::Message;
use wayleave_bgp::mrt::{MrtReader, Record};

fuzz_target!(|data: &[u8]| {
    for record in MrtReader::new(data) {
        match record {
            Ok(Record::Message(message)) => {
                let _ = Message::decode(&message.octets, &message.params());
            }
            Ok(Record::Rib(entries)) => {
                for entry in entries {
                    let _ = entry.to_attributes();
                }
            }
            Ok(Record::Other(..)) | Err(_) => {}
        }
    }
});

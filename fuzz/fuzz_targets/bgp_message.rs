//! Any octets as a stream of messages: what is read is written so that it is read again as the same.
//!
//! BGP-13: any octets as a message: an error or a value with this encoding.
#![no_main]

mod session;

use libfuzzer_sys::fuzz_target;
use wayleave_bgp::{Message, MessageError};

fuzz_target!(|data: &[u8]| {
    let Some((&kind, mut stream)) = data.split_first() else { return };
    let params = session::session(kind);
    loop {
        match Message::decode(stream, &params) {
            Ok((message, rest)) => {
                assert!(rest.len() < stream.len());
                stream = rest;
                // UPDATEs have a target of their own.
                if let Message::Update(_) = message {
                    continue;
                }
                let written = message.encode(&params).expect("only an UPDATE can be too long");
                // Capabilities in several parameters may not fit one OPEN again.
                if let Ok((again, [])) = Message::decode(&written, &params) {
                    if !matches!(message, Message::Open(_)) {
                        assert_eq!(again, message);
                    }
                } else {
                    panic!("what is written can be read");
                }
            }
            Err(MessageError::Incomplete { need }) => {
                assert!(need > stream.len());
                break;
            }
            Err(MessageError::Peer(notification)) => {
                let encoded = Message::Notification(notification).encode(&params).expect("it is cut to fit");
                assert!(Message::decode(&encoded, &params).is_ok());
                break;
            }
        }
    }
});

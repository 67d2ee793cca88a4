//! Any octets as what an application says to a gateway that is a proxy: whole, and octet by octet, which comes to the same. And as a datagram.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wayleave_dataplane::gateway::proxy::{Command, Fault, Reader, Request, Step};
use wayleave_dataplane::gateway::socks_datagram::{decode, encode};

/// What comes of octets that arrive in pieces, and how many were not used; `None` if more are needed.
fn read(octets: &[u8], piece: usize) -> Result<Option<(Request, usize)>, Fault> {
    let (mut reader, mut begin, mut end) = (Reader::default(), 0, 0);
    loop {
        match reader.step(&octets[begin..end])? {
            Step::More if end == octets.len() => return Ok(None),
            Step::More => end = octets.len().min(end + piece),
            Step::Answer(used, _) => begin += used,
            Step::Request(used, request) => return Ok(Some((*request, octets.len() - begin - used))),
        }
    }
}

fuzz_target!(|octets: &[u8]| {
    let whole = read(octets, octets.len().max(1));
    // Heads beyond the limit are refused as soon as they reach it.
    if octets.len() < wayleave_dataplane::gateway::proxy::LONGEST_HEAD {
        assert_eq!(whole, read(octets, 1));
    }
    if let Ok(Some((request, _))) = whole {
        assert!(request.target.port > 0 || request.command == Command::Associate);
    }
    if let Ok(datagram) = decode(octets) {
        let mut again = Vec::new();
        encode(datagram.form, datagram.target.port, datagram.payload, &mut again);
        assert_eq!(again, octets);
    }
});

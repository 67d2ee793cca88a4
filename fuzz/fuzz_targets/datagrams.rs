//! Any octets as a stream of datagrams: read as they are written, however much of them has come, or refused for good.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wayleave_core::stream::{LENGTH, LONGEST, first_datagram};

fuzz_target!(|data: &[u8]| {
    let mut rest = data;
    while let Ok(Some(datagram)) = first_datagram(rest) {
        let length = datagram.len();
        assert!((1..=LONGEST).contains(&length));
        let (octets, behind) = rest.split_at(LENGTH + length);
        assert_eq!([&(length as u16).to_be_bytes()[..], datagram].concat(), octets);
        // No part of it is another datagram, and nothing behind it changes it.
        assert!([0, 1, LENGTH, LENGTH + length - 1].iter().all(|cut| first_datagram(&octets[..*cut]) == Ok(None)));
        assert_eq!(first_datagram(octets), Ok(Some(datagram)));
        rest = behind;
    }
    if let Err(bad) = first_datagram(rest) {
        assert_eq!(first_datagram(&rest[..LENGTH]), Err(bad));
    }
});

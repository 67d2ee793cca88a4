//! Any octets as the body of an OPEN: what is read is written so that it is read again as the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wayleave_bgp::Open;

fuzz_target!(|body: &[u8]| {
    let Ok(open) = Open::decode(body) else { return };
    assert!(open.hold_time == 0 || open.hold_time >= 3);
    let mut written = Vec::new();
    open.encode_body(&mut written);
    let again = Open::decode(&written).expect("what is written can be read");
    // Of more capabilities than one OPEN holds the first are kept.
    assert!(open.capabilities.starts_with(&again.capabilities));
    if body.len() <= 4_000 {
        assert_eq!(again.capabilities, open.capabilities);
        assert_eq!(again.asn, open.asn);
    }
});

//! Any octets as what a member sends to a party: an error, or a frame that has this encoding and no other.
//!
//! SIX-09: any octets as a frame: an error or a value with this encoding.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wayleave_route_server::frames::FromMember;

fuzz_target!(|data: &[u8]| {
    if let Ok(frame) = FromMember::decode(data) {
        assert_eq!(frame.encode(), data);
    }
});

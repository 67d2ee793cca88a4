//! A BGPsec attribute is refused or encodes to the octets it came from; what it signs never panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wayleave_core::Asn;
use wayleave_papers::baseline::bgpsec::RouterKeys;
use wayleave_papers::baseline::bgpsec_wire::BgpsecPath;

fuzz_target!(|bytes: &[u8]| {
    let Ok(path) = BgpsecPath::decode(bytes) else { return };
    assert_eq!(path.encode().as_deref(), Some(bytes));
    let prefix = "192.0.2.0/24".parse().expect("a prefix");
    for block in &path.blocks {
        for index in 0..path.segments.len() {
            let _ = path.signed_octets(block, index, Asn(1), &prefix);
        }
    }
    assert!(!RouterKeys::new().verify(&path, &prefix, Asn(1)));
});

//! Any octets as a signed member set: an error, or a set that has this encoding and no other, and that
//! no key verifies by chance.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_route_server::directory::SignedMemberSet;

fuzz_target!(|data: &[u8]| {
    let key = SigningKey::from_seed(&Seed::new([1; 32]));
    if let Ok(signed) = SignedMemberSet::decode(data) {
        assert_eq!(signed.encode(), data);
        assert!(signed.verify(&key.verifying_key()).is_err());
    }
});

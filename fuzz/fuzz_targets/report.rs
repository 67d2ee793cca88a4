//! Any octets as a signed report, and as what a node signed: refused, or read as they are written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_dataplane::icing::Report;

fuzz_target!(|data: &[u8]| {
    let identity = SigningKey::from_seed(&Seed::new([1; 32]));
    let key = identity.verifying_key();
    // Nobody here signs like this.
    assert!(Report::verify(data, &key).is_err());
    for label in ["wayleave/icing/report/v1", "wayleave/icing/report/v2"] {
        let signed = [data, &identity.sign(label, data)].concat();
        if let Ok(report) = Report::verify(&signed, &key) {
            assert_eq!(report.sign(&identity), signed);
        }
    }
});

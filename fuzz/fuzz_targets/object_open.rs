//! Any octets as a sealed route, and any octets inside a blob that its key opens: an error, or a route.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wayleave_bgp::Attributes;
use wayleave_core::wire::{Reader, Wire};
use wayleave_crypto::seal;
use wayleave_crypto::secret::Key128;
use wayleave_route_server::object::{Description, Handle, OpenError, dummy_key, open};

const EXCHANGE: &str = "ix";
const LABEL: &str = "wayleave/route-server/blob/v1";

/// The handle that the description at the front of `plain` has, if there is one.
fn handle_of(plain: &[u8]) -> Option<Handle> {
    let mut reader = Reader::new(Reader::new(plain).blob(plain.len()).ok()?);
    Some(Description::read(&mut reader).ok()?.handle(EXCHANGE))
}

fuzz_target!(|data: &[u8]| {
    let key = [5; 16];
    let handle = handle_of(data).unwrap_or(Handle([0; 32]));
    assert_eq!(open(EXCHANGE, 1, &handle, [&key, &[0; 16]], data), Err(OpenError::Key));
    let dummy = dummy_key(EXCHANGE, 1);
    assert_eq!(open(EXCHANGE, 1, &handle, [dummy.expose(), &[0; 16]], data), Ok(None));
    let blob = seal::seal(LABEL, &Key128::new(key), &handle.0, data);
    if let Ok(Some(opened)) = open(EXCHANGE, 1, &handle, [&key, &[0; 16]], &blob) {
        assert_eq!(opened.description.handle(EXCHANGE), handle);
        let _ = Attributes::decode(&opened.attributes);
    }
});
